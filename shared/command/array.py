"""Cells still to run as lines of an array job: each the words of one call of the command line."""

import argparse
import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console

from shared.command.cells import Chosen, Places, encoder_of, missing_data
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
    seeds_of: dict[str, list[int]] = {}  # by column
    for cell in _runnable(chosen, places, console):
        seeds = seeds_of.setdefault(cell.column, [])
        seeds += [] if cell.seed in seeds else [cell.seed]
    words = ["compare", *options.words, "--tier", options.tier]
    given = [("--row", ":".join([row, *settings])) for row, settings in options.row]
    given += [("--records", str(folder)) for folder in options.records]
    given += [("--set", setting) for setting in options.set]
    given += [("--with", ",".join([f"{file}:{name}", *rest])) for file, name, rest in options.loss]
    given += [("--rows", ",".join(options.rows))] if options.rows else []
    for name in ("table", "against", "data"):
        given += [(f"--{name}", str(value))] if (value := getattr(options, name)) else []
    words += itertools.chain(*given)
    room = max(1, options.cells // max(1, len(seeds_of)))  # lines of a column
    return [
        shlex.join([*words, "--column", column, "--seeds", ",".join(map(str, some))])
        for column, seeds in seeds_of.items()
        for some in _joined([[seed] for seed in seeds], room)
    ]


def _runnable(chosen: Sequence[Chosen], places: Places, console: Console) -> Iterator[Cell]:
    """The unfinished cells whose data and extra are here; says which others are left out."""
    cells = {cell.key: cell for selected in chosen for cell in selected.cells}
    left_out = Counter[str]()
    for cell in unfinished(cells.values(), places.runs):
        lacks = [data.remedy for data in missing_data(cell, places.data)]
        lacks += [f"{name} is not installed" for name in not_installed(cell.domain)]
        if lacks:
            left_out["; ".join(lacks)] += 1
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
