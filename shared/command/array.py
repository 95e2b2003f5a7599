"""Cells still to run as lines of an array job: each the words of one call of the command line."""

import argparse
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console

from shared.command.cells import Chosen, Places, encoder_of, imported
from shared.errors import not_installed
from shared.experiment.frame import unfinished
from shared.experiment.tables import Cell
from shared.report.console import say
from shared.report.wording import counted

Item = TypeVar("Item")


def lines_of(
    chosen: Sequence[Chosen], places: Places, options: argparse.Namespace, console: Console
) -> list[str]:
    """The lines of a plan, at most ``options.cells``: cells of one encoder are on one line."""
    by_encoder: dict[str, list[str]] = {}
    for cell in _runnable(chosen, places, console):
        by_encoder.setdefault(encoder_of(cell) or cell.key, []).append(cell.address)
    tasks = _joined(list(by_encoder.values()), options.cells)
    return [shlex.join(["--cell", *addresses]) for addresses in tasks]


def lines_of_comparison(
    chosen: Sequence[Chosen], places: Places, options: argparse.Namespace, console: Console
) -> list[str]:
    """The lines of a comparison: each has all rows, in one column, of some seeds."""
    parts: dict[str, list[int]] = {}
    for cell in _runnable(chosen, places, console):
        seeds = parts.setdefault(cell.column, [])
        seeds += [] if cell.seed in seeds else [cell.seed]
    words = ["compare", *options.words, "--tier", options.tier]
    for name in ("row", "records", "set"):
        values = getattr(options, name)
        for value in values:
            text = ":".join([value[0], *value[1]]) if isinstance(value, tuple) else str(value)
            words += [f"--{name}", text]
    for file, name, numbers in options.loss:
        words += ["--with", f"{file}:{','.join([name, *numbers])}"]
    words += ["--rows", ",".join(options.rows)] if options.rows else []
    for name in ("table", "against", "data"):
        words += [f"--{name}", str(getattr(options, name))] if getattr(options, name) else []
    room = max(1, options.cells // max(1, len(parts)))  # lines of a column
    return [
        shlex.join([*words, "--column", column, "--seeds", ",".join(map(str, some))])
        for column, seeds in parts.items()
        for some in _joined([[seed] for seed in seeds], room)
    ]


def print_lines(lines: Sequence[str]) -> None:
    """Print the lines as they are, however long."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _runnable(chosen: Sequence[Chosen], places: Places, console: Console) -> Iterator[Cell]:
    """The unfinished cells whose data and extra are here; says which others are left out."""
    cells = {cell.key: cell for selected in chosen for cell in selected.cells}
    left_out: dict[str, int] = {}
    for cell in unfinished(cells.values(), places.runs):
        find = imported(cell.domain).experiment(cell.config).missing
        lacks = [data.remedy for data in (find(cell.config, places.data) if find else ())]
        lacks += [f"{name} is not installed" for name in not_installed(cell.domain)]
        if lacks:
            left_out["; ".join(lacks)] = left_out.get("; ".join(lacks), 0) + 1
        else:
            yield cell
    for why, number in left_out.items():
        say(console, f"{counted(number, 'cell')} left out: {why}")


def _joined(groups: Sequence[Sequence[Item]], most: int) -> list[list[Item]]:
    """The groups, with neighbours joined so that there are at most ``most``."""
    size = math.ceil(len(groups) / most) or 1
    return [
        [item for group in groups[start : start + size] for item in group]
        for start in range(0, len(groups), size)
    ]
