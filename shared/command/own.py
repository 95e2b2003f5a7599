"""Runs with settings or losses of the user's, beside those of the tables.

They are in ``runs/own/``, and their results have the tier "own", which no table or report uses.
"""

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import pickle
import re
import sys
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text
from torch import Tensor, nn

from shared import functions
from shared.checks import without_effect
from shared.command.cells import (
    Chosen,
    Places,
    choose,
    imported,
    run_folder,
)
from shared.command.running import print_ending, run_waiting
from shared.command.settings import checked_term, numbers_of, typed, with_settings
from shared.errors import UserError, suggestion
from shared.experiment.config import (
    USER_TIER,
    canonical,
    changed,
    differing,
    is_archived,
    short_text,
)
from shared.experiment.frame import finished
from shared.experiment.records import Damaged, read_json
from shared.experiment.tables import Cell, Column, Row, Table, Tier
from shared.objective import Objective, Term
from shared.pairs import cosine, two_views
from shared.report.console import say
from shared.report.statistics import summarise
from shared.report.wording import DASH, TIER_NOTES, mean_sd, shown_metric

HASH = re.compile("[0-9a-f]{64}")  # of a loss's source, or of the weights that training starts from
UNTRAINED = (
    "which is neither trained nor saved here: give a number as an nn.Parameter to shared.term and "
    "train with shared.Criterion, see docs/losses.md"
)
# What a user's file must leave as it is: it would hold for the whole run.
SETTINGS = {
    "default type": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "number of threads": torch.get_num_threads,
    "determinism": torch.are_deterministic_algorithms_enabled,
    "precision of products": torch.get_float32_matmul_precision,
    "recording of gradients": torch.is_grad_enabled,
}


def run_with_settings(options: argparse.Namespace, places: Places) -> int:
    """Run the chosen cells with the changes of ``--set``, and print the results."""
    console = Console()
    declared = choose(options)
    chosen = [
        dataclasses.replace(each, cells=apply_settings(each.cells, options.set))
        for each in declared
    ]
    where = places.runs / USER_TIER
    say(console, f"These runs are yours, in {where}; they enter no table and no report.")
    for before, after in zip(declared, chosen, strict=True):
        print_changes(console, f"{after.table.address} as declared", before.cells, after.cells)
    if older := older_runs(chosen, places):
        folders = ", ".join(str(folder) for folder, _ in older[:2]) + ", ..." * (len(older) > 2)
        text = "the same settings with other weights as init; they stay as they are"
        say(console, f"{folders}: {text}")
    pool = run_waiting(chosen, places, options, console)
    for each in chosen:
        _print_values(console, each, options.set, places)
    return print_ending(console, pool, again=options.again)


def load_loss(file: Path, name: str, settings: Sequence[str]) -> Term:
    """The loss in a file of the user's, called once on a few pairs to check it.

    Args:
        file: a module; it can import modules beside it.
        name: of a function ``(pairs, similarity, *, numbers) -> (N,)``.
        settings: its numbers, ``NAME=VALUE``.
    """
    if not file.is_file():
        raise UserError(f"--with {file}: there is no such file")
    before = {each: read() for each, read in SETTINGS.items()}
    folder = str(file.resolve().parent)
    if folder not in sys.path:  # last, so that nothing beside the file hides a library
        sys.path.append(folder)
    try:
        module = importlib.import_module(file.stem)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise UserError(_of_theirs(error, file)) from error
    _check_settings(file, before)
    if Path(getattr(module, "__file__", None) or "").resolve() != file.resolve():
        raise UserError(f"{file}: another module is called {file.stem!r}; rename the file")
    visible = {key: value for key, value in vars(module).items() if inspect.isfunction(value)}
    found = {key: value for key, value in visible.items() if value.__module__ == module.__name__}
    if inspect.isclass(getattr(module, name, None)):
        raise UserError(f"{file}: {name} is a class; a loss is a function (pairs, similarity)")
    if name not in found:
        if name in visible:
            home = visible[name].__module__
            raise UserError(
                f"{file}: {name} is imported from {home}; define a function in {file.name} that "
                f"calls it"
            )
        has = suggestion(name, found, "it has") if found else "; it defines none"
        raise UserError(f"{file} has no function {name!r}{has}")
    known = numbers_of(found[name])
    numbers = {}
    for setting in settings:
        key, _, text = (part.strip() for part in setting.partition("="))
        if key not in known:
            if key in list(inspect.signature(found[name]).parameters)[2:]:
                raise UserError(
                    f"{name}: {key} is not given by name alone; put a * before it, as in "
                    f"def {name}(pairs, similarity, *, {key})"
                )
            takes = suggestion(key, known, "it takes by name") if known else "; it takes none"
            raise UserError(f"{name} takes no number {key!r}{takes}")
        if key in numbers:
            raise UserError(f"--with {name}: {key} is given twice; give it once")
        numbers[key] = typed(f"{name}'s {key}", text, known[key])
    loss = checked_term(found[name], 1.0, numbers)
    _check_modules(loss)
    _try(loss, file)
    _check_state(loss, file)
    _check_settings(file, before)
    return loss


def baseline_of(table: Table, tier: Tier, wanted: str | None = None) -> Row:
    """The row of a table that a user's loss is compared with.

    Among the rows that train with a loss: the row ``wanted``, else the one that most of the paper's
    claims compare with, else the first that the paper gives, else the first.
    """
    if wanted is not None:
        label = table.cells(tier, row=wanted)[0].row
        able = [row for row in trainable_rows(table, tier) if row.label == label]
        if not able:
            raise UserError(f"{table.address}: {label} trains with no loss")
        return able[0]
    able = trainable_rows(table, tier)
    if not able:
        raise UserError(f"{table.address} has no row that trains with a loss")
    counts = Counter(each.than for claim in table.claims for each in claim.comparisons)
    if not any(counts[row.label] for row in able):
        return max(able, key=lambda row: row.published is not None)
    return max(able, key=lambda row: counts[row.label])


def trainable_rows(table: Table, tier: Tier) -> list[Row]:
    """The rows that train with a replaceable loss."""
    objectives: dict[str, Any] = {}
    for cell in table.cells(tier):
        if getattr(cell.config, "train", True):
            objectives.setdefault(cell.row, getattr(cell.config, "objective", None))
    return [
        row
        for row in table.rows
        if not row.baseline and isinstance(objectives.get(row.label), Objective)
    ]


def with_loss(cell: Cell, loss: Term, label: str) -> Cell:
    """The cell as a row of another label, with its loss replaced."""
    objective = getattr(cell.config, "objective", None)
    if not isinstance(objective, Objective):
        raise UserError(f"{cell.row} trains in {cell.column} with no loss that can be replaced")
    changes = {"objective": dataclasses.replace(objective, loss=loss)}
    config = changed(cell.config, changes, cell.address)
    return dataclasses.replace(cell, row=label, config=config, own=True)


def older_runs(chosen: Sequence[Chosen], home: Places) -> list[tuple[Path, dict[str, Any]]]:
    """Runs of the cells that differ from them only in the hash of a function or of weights.

    Each is a folder and its configuration; the latest is the last. Cells with a run of their own
    are left out.
    """
    found: dict[Path, dict[str, Any]] = {}
    for cell in (cell for each in chosen for cell in each.cells):
        folder = run_folder(home, cell)
        if not HASH.search(json.dumps(cell.content)) or folder.exists():
            continue
        for file in folder.parent.glob(f"{folder.name.removesuffix(cell.key)}*/config.json"):
            try:
                config = read_json(file)
            except Damaged:
                continue
            if not is_archived(file.parent) and without_hashes(config) == without_hashes(
                cell.content
            ):
                found[file.parent] = config
    return sorted(found.items(), key=lambda pair: (pair[0] / "config.json").stat().st_mtime)


def without_hashes(config: Mapping[str, Any]) -> str:
    """A canonical configuration as text, without the hashes of functions and weights."""
    return HASH.sub("", json.dumps(config, sort_keys=True))


def _try(loss: Term, file: Path) -> None:
    """Refuse a loss that fails, returns no value for each anchor, or has no gradient."""
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(3, 4, generator=generator, requires_grad=True) for _ in range(2)]
    pairs = two_views(*views)
    name = loss.function.__name__
    try:
        value = loss(pairs, cosine(pairs.anchor, pairs.candidate))
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raise UserError(f"{name}: {_of_theirs(error, file)}") from error
    if not value.requires_grad:
        raise UserError(f"{name} has no gradient: its value does not depend on the embeddings")
    if any(all(leaf is not view for view in views) for leaf in _leaves(value)):
        raise UserError(f"{name} makes a parameter or module itself, {UNTRAINED}")


def _check_settings(file: Path, before: Mapping[str, Any]) -> None:
    """Refuse a file that has changed ``SETTINGS``."""
    if changes := [each for each, read in SETTINGS.items() if read() != before[each]]:
        raise UserError(
            f"{file}: changes torch's {' and '.join(changes)} for the whole run; omit that, "
            f"and give single tensors a type and device"
        )


def _check_modules(loss: Term) -> None:
    """Refuse parameters and modules of torch in the user's files."""
    for (path, name), value in _globals(loss).items():
        trained = isinstance(value, Tensor) and value.requires_grad
        if isinstance(value, nn.Module) or trained:
            raise UserError(f"{path}: {name} is a parameter or module, {UNTRAINED}")


def _check_state(loss: Term, file: Path) -> None:
    """Refuse a loss that changes a variable of the user's files whenever it is called.

    A checkpoint does not hold it, and a resumed run would begin with what the file says. The first
    call, which may fill a cache, has been made.
    """
    before = {place: _content(value) for place, value in _globals(loss).items()}
    _try(loss, file)
    for place, value in _globals(loss).items():
        if _content(value) != before.get(place):
            path, name = place
            raise UserError(
                f"{path}: every call of {loss.function.__name__} changes {name}, which no "
                f"checkpoint holds: a resumed run would differ; make the loss a function of its "
                f"arguments, and of torch's global generator where it draws"
            )


def _content(value: Any) -> Any:
    """What a variable holds, to compare: of a function what is stored with it."""
    if inspect.isfunction(value):
        value = [value.__defaults__, value.__kwdefaults__, vars(value)]
    try:
        return pickle.dumps(value)
    except Exception:  # whatever an object of the user's raises
        return id(value)


def _globals(loss: Term) -> dict[tuple[str, str], Any]:
    """By file and name the variables of the user's files."""
    assert inspect.isfunction(loss.function)  # its identity was asked for
    files = {_inode(file) for file in functions.files_of(loss.function)}
    return {
        (path, name): value
        for module in list(sys.modules.values())
        if (path := getattr(module, "__file__", None)) and _inode(path) in files
        for name, value in vars(module).items()
        if not name.startswith("__")
    }


def _inode(path: str | Path) -> tuple[int, int] | None:
    """What a file is on its disk, which is found faster than where its links lead."""
    with contextlib.suppress(OSError):  # of a module in an archive
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def _leaves(value: Tensor) -> Iterator[Tensor]:
    """The tensors whose gradients a value gives."""
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [each for each, _ in node.next_functions]


def _of_theirs(error: BaseException, file: Path) -> str:
    """An error of the user's code in one line, with its place in the file."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    where = f"{file}, line {line}" if line else str(file)
    text = f"{where}: {type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, ImportError) and "no known parent package" in text:
        text += "; name a file beside the package, with a function that calls the one in it"
    return text


def apply_settings(cells: Sequence[Cell], settings: Sequence[str]) -> tuple[Cell, ...]:
    """The cells with the settings applied."""
    found = []
    for cell in cells:
        try:
            config = with_settings(cell.config, settings)
        except UserError as error:
            raise UserError(f"{cell.row}: {error}") from None
        found.append(dataclasses.replace(cell, config=config, own=True))
    names = {setting.partition("=")[0].partition(".")[0].strip() for setting in settings}
    for cell in found[:1]:
        _check_protocols(cell, names)
    idle = [without_effect(cell.config, names) for cell in found]
    for name in sorted(set.intersection(*map(set, idle)) if idle else ()):
        raise UserError(
            f"--set {name} has no effect in any chosen row: it needs {idle[0][name]}; omit it"
        )
    return tuple(found)


def _check_protocols(cell: Cell, names: set[str]) -> None:
    """Refuse a new protocol that the domain does not have, before anything is trained for it."""
    known = imported(cell.domain).protocols
    for name in {"protocol", "beside"} & names:
        value = getattr(cell.config, name, None)
        if known is not None and value is not None and value not in known():
            raise UserError(f"no protocol {value!r}{suggestion(value, known(), 'there are')}")


def print_changes(
    console: Console, what: str, before: Sequence[Cell], after: Sequence[Cell]
) -> None:
    """Print which fields of the configurations change, and in which rows if not in all."""
    changes: dict[str, dict[str, None]] = {}
    for there, here in zip(before, after, strict=True):
        for path, *pair in differing(canonical(there.config), canonical(here.config)):
            text = f"{path}: {' -> '.join(map(short_text, pair))}"
            changes.setdefault(text, {})[there.row] = None
    rows = {cell.row for cell in before}
    say(console, f"{what}:" if changes else f"{what}: nothing")
    for text, which in changes.items():
        where = "" if len(which) == len(rows) else f"  ({', '.join(which)})"
        say(console, f"  {text}{where}")


def column_metrics(
    table: Table,
    columns: Iterable[Column],
    results: Mapping[str, Collection[Mapping[str, Any]]],
) -> dict[str, str]:
    """By the label of a column the metric that it shows; columns of one run show none twice.

    Where runs follow another protocol than the table's, or other tasks, columns lack their metric.
    Those of one run would then all show the same other one: they are left out, but for the first
    where no column of the run has its own.

    Args:
        table: of the columns.
        columns: that may be shown.
        results: by label, the metrics of runs by name.
    """
    every = list(columns)
    metrics = {
        each.label: shown_metric(table.metric_of(each), results[each.label]) for each in every
    }
    lacking = {each.label for each in every if metrics[each.label] != table.metric_of(each)}
    told = {each.run for each in every if each.label not in lacking}
    shown = {}
    for each in every:
        if not (each.run and each.label in lacking and each.run in told):
            shown[each.label] = metrics[each.label]
            told.add(each.run)
    return shown


def _print_values(console: Console, chosen: Chosen, settings: Sequence[str], home: Places) -> None:
    """Print rows and columns of numbers without published ones, and where the runs are."""
    table, tier = chosen.table, chosen.cells[0].tier
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}  # by column and row, over seeds
    for cell in chosen.cells:
        some = found.setdefault(cell.column, {}).setdefault(cell.row, [])
        if (record := finished(cell, home.runs)) is not None:
            some.append(record.result["metrics"])
    results = {
        label: [one for some in by_row.values() for one in some] for label, by_row in found.items()
    }
    columns = [column for column in table.columns_of(tier) if column.label in found]
    shown = column_metrics(table, columns, results)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("method")
    texts: dict[str, dict[str, str]] = {cell.row: {} for cell in chosen.cells}
    metrics = {}
    for column, name in shown.items():
        grid.add_column(column, justify="right")
        metrics[name] = table.unit_of(name)
        for row, some in found[column].items():
            summary = summarise(float(each[name]) for each in some) if some else None
            texts[row][column] = mean_sd(summary.mean, summary.sd) if summary else DASH
    for row, of_row in texts.items():
        grid.add_row(Text(row), *(of_row.get(column, DASH) for column in shown))
    # Never the tier alone, which would read as the paper's setting.
    title = f"{table.address} ({tier} tier, changed by {', '.join(settings)})"
    console.print(Text(title, style="bold"))
    unit = ", ".join(f"{metric} ({unit})" for metric, unit in metrics.items())
    console.print(Text(f"{unit}, mean ± deviation over seeds"))
    if note := TIER_NOTES[tier]:
        console.print(Text(note, style="bold yellow"))
    console.print(grid)
    for folder in dict.fromkeys(run_folder(home, cell) for cell in chosen.cells):
        say(console, f"  {folder}")
