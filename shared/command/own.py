"""User runs beside the tables: changed configurations, and a loss of the user's as one more row.

They are in ``runs/own/``, and their results have the tier "own", which no table or report uses.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    choose_tables,
    most_helpful,
    run_folder,
    with_cells,
)
from shared.command.running import print_ending, run_waiting
from shared.command.settings import checked_term, numbers_of, typed, with_settings
from shared.errors import UserError, suggestion
from shared.experiment.config import USER_TIER, canonical, changed, differing, is_archived, shown
from shared.experiment.frame import finished
from shared.experiment.records import Damaged, read_json
from shared.experiment.tables import Cell, Row, Table, Tier
from shared.objective import Objective, Term
from shared.pairs import cosine, two_views
from shared.report.statistics import compared, summarise
from shared.report.wording import DASH, TIER_NOTES, counted, mean_sd

MINE = "mine"
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
COLOURS = {"better": "green", "worse": "red", "open": "yellow", "not run": "bright_black"}
Values = dict[tuple[str, str], dict[int, float]]  # by row and column, then by seed


def run_with_settings(options: argparse.Namespace, places: Places) -> int:
    """Run the chosen cells with the changes of ``--set``, and print the results.

    Raises:
        UserError: a setting that does not fit a chosen row.
    """
    console = Console()
    declared = choose(options)
    chosen = [dataclasses.replace(each, cells=_set(each.cells, options.set)) for each in declared]
    home = _own(places)
    text = f"These runs are yours, in {home.runs}; they enter no table and no report."
    console.print(text, soft_wrap=True, highlight=False)
    for before, after in zip(declared, chosen, strict=True):
        _print_changes(console, f"{after.table.address} as declared", before.cells, after.cells)
    if older := _older(chosen, home):
        folders = ", ".join(str(folder) for folder, _ in older[:2]) + ", ..." * (len(older) > 2)
        text = f"{folders}: the same settings with other weights as init; they stay as they are"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    pool = run_waiting(chosen, home, options, console, own=True)
    for each in chosen:
        _print_values(console, each, f"with {', '.join(options.set)}", _values(each, home))
    return print_ending(console, pool, again=options.again)


def run_with_loss(options: argparse.Namespace, places: Places) -> int:
    """Run a loss of the user's as the row "mine" of tables, and compare it with their baselines.

    Both rows have the same seeds. The baseline uses the table's runs, unless ``--set`` changes its
    configuration as well.

    Raises:
        UserError: an unusable loss, or no table with a row to compare it with.
    """
    if options.cell:
        raise UserError(
            "--with takes DOMAIN PAPER in place of --cell; choose with --table, --row and --column"
        )
    console = Console()
    loss = load_loss(*options.loss)
    baselines, refused, reasons = [], [], {}
    domain, paper = options.words
    for table in choose_tables(domain, paper, options.table, options.tier):
        choice = {"column": options.column, "seeds": options.seeds}
        try:
            row, why = baseline_of(table, options.tier, options.row)
            cells = table.cells(options.tier, row=row.label, **choice)
        except UserError as error:
            refused.append(error)
            continue
        baselines.append(Chosen(table, _set(cells, options.set)))
        reasons[table.address] = f"compared with {row.label}, {why}"
    if not baselines:
        raise most_helpful(refused)
    baselines = with_cells(baselines)
    home = _own(places)
    text = f"Your loss is the row {MINE!r}, in {home.runs}; it enters no table and no report."
    console.print(text, soft_wrap=True, highlight=False)
    mine = []
    for each in baselines:
        mine.append(Chosen(each.table, tuple(_with_loss(cell, loss) for cell in each.cells)))
        what = f"{each.table.address}: {reasons[each.table.address]}; what differs from it"
        _print_changes(console, what, each.cells, mine[-1].cells)
    mine, said = _with_older(mine, home, loss, take=options.same_loss)
    if said:
        console.print(said, soft_wrap=True, highlight=False, markup=False)
    pools = [run_waiting(mine, home, options, console, own=True)]
    theirs = home if options.set else places
    if not pools[0].interrupted:  # a loss that fails is reported before the baseline runs
        plain = argparse.Namespace(**{**vars(options), "again": False})
        pools.append(run_waiting(baselines, theirs, plain, console, own=bool(options.set)))
    for ours, other in zip(mine, baselines, strict=True):
        _print_pairs(console, ours, other, _values(ours, home), _values(other, theirs))
    if options.same_loss and said:
        console.print(said, soft_wrap=True, highlight=False, markup=False)
    return print_ending(console, *pools, again=options.again)


def load_loss(file: Path, name: str, settings: Sequence[str]) -> Term:
    """The loss in a file of the user's, called once on a few pairs to check it.

    Args:
        file: a module; it can import modules beside it.
        name: of a function ``(pairs, similarity, *, numbers) -> (N,)``.
        settings: its numbers, ``NAME=VALUE``.

    Raises:
        UserError: no such file, function or number, or a function that is not a loss.
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
    found = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
    if inspect.isclass(getattr(module, name, None)):
        raise UserError(f"{file}: {name} is a class; a loss is a function (pairs, similarity)")
    if name not in found:
        raise UserError(f"{file} has no function {name!r}{suggestion(name, found, 'it has')}")
    known = numbers_of(found[name])
    numbers = {}
    for setting in settings:
        key, _, text = (part.strip() for part in setting.partition("="))
        if key not in known:
            takes = suggestion(key, known, "it takes by name") if known else "; it takes none"
            raise UserError(f"{name} takes no number {key!r}{takes}")
        if key in numbers:
            raise UserError(f"--with {name}: {key} is given twice; give it once")
        numbers[key] = typed(f"{name}'s {key}", text, known[key])
    loss = checked_term(found[name], 1.0, numbers)
    _check_modules(loss)
    _try(loss, file)
    _check_settings(file, before)
    return loss


def baseline_of(table: Table, tier: Tier, wanted: str | None = None) -> tuple[Row, str]:
    """The row of a table that a user's loss is compared with, and why that one.

    Among the rows that train with a loss: the row ``wanted``, else the one that most of the paper's
    claims compare with, else the first that the paper gives, else the first.

    Raises:
        UserError: there is none.
    """
    if wanted is not None:
        label = table.cells(tier, row=wanted)[0].row
        able = [row for row in _able(table, tier) if row.label == label]
        if not able:
            raise UserError(f"{table.address}: {label} trains with no loss")
        return able[0], "as you said"
    able = _able(table, tier)
    counts = Counter(each.than for claim in table.claims for each in claim.comparisons)
    claimed = [row for row in able if counts[row.label]]
    if claimed:
        row = max(claimed, key=lambda row: counts[row.label])
        return row, f"which {counts[row.label]} of {counts.total()} claims are made against"
    if published := [row for row in able if row.published is not None]:
        return published[0], "the first row that the paper gives"
    if not able:
        raise UserError(f"{table.address} has no row that trains with a loss")
    return able[0], "the first row"


def _able(table: Table, tier: Tier) -> list[Row]:
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


def _with_loss(cell: Cell, loss: Term) -> Cell:
    objective = getattr(cell.config, "objective", None)
    if not isinstance(objective, Objective):
        return dataclasses.replace(cell, row=MINE)
    changes = {"objective": dataclasses.replace(objective, loss=loss)}
    return dataclasses.replace(cell, row=MINE, config=changed(cell.config, changes, cell.address))


def _older(chosen: Sequence[Chosen], home: Places) -> list[tuple[Path, dict[str, Any]]]:
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
            if not is_archived(file.parent) and _without_hashes(config) == _without_hashes(
                cell.content
            ):
                found[file.parent] = config
    return sorted(found.items(), key=lambda pair: (pair[0] / "config.json").stat().st_mtime)


def _without_hashes(config: Mapping[str, Any]) -> str:
    return HASH.sub("", json.dumps(config, sort_keys=True))


def _with_older(
    mine: Sequence[Chosen], home: Places, loss: Term, *, take: bool
) -> tuple[list[Chosen], str]:
    """The cells, with ``take`` those of the latest older source of the loss; a line about it."""
    functions.same.clear()
    if not (older := _older(mine, home)):
        return list(mine), ""
    folder, config = older[-1]
    now, then = functions.identity(loss.function), config["objective"]["loss"]["function"]
    done = sum((each / "result.json").exists() for each, _ in older)
    text = f"{counted(len(older), 'run')} ({done} finished) with another source of the loss"
    if not take:
        return list(mine), f"{text}, as {folder}: --same-loss takes them if it computes the same"
    functions.same[now] = then
    again = [
        Chosen(each.table, tuple(dataclasses.replace(cell) for cell in each.cells)) for each in mine
    ]
    return again, f"{text}: taken as the same loss on your word (--same-loss)"


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
            f"{file}: changes torch's {' and '.join(changes)} for the whole run; leave that out, "
            f"and give single tensors a type and device"
        )


def _check_modules(loss: Term) -> None:
    """Refuse parameters and modules of torch in the user's files."""
    assert inspect.isfunction(loss.function)  # its identity was asked for
    files = functions.files_of(loss.function)
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is None or Path(path).resolve() not in files:
            continue
        for name, value in vars(module).items():
            trained = isinstance(value, Tensor) and value.requires_grad
            if isinstance(value, nn.Module) or trained:
                raise UserError(f"{path}: {name} is a parameter or module, {UNTRAINED}")


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
    return f"{where}: {type(error).__name__}: {error}".splitlines()[0]


def _set(cells: Sequence[Cell], settings: Sequence[str]) -> tuple[Cell, ...]:
    """The cells with the settings applied.

    Raises:
        UserError: a setting that does not fit a row, or that has no effect in any.
    """
    found = []
    for cell in cells:
        try:
            config = with_settings(cell.config, settings)
        except UserError as error:
            raise UserError(f"{cell.row}: {error}") from None
        found.append(dataclasses.replace(cell, config=config))
    names = {setting.partition("=")[0].partition(".")[0].strip() for setting in settings}
    idle = [without_effect(cell.config, names) for cell in found]
    for name in sorted(set.intersection(*map(set, idle)) if idle else ()):
        raise UserError(
            f"--set {name} has no effect in any chosen row: it needs {idle[0][name]}; leave it out"
        )
    return tuple(found)


def _own(places: Places) -> Places:
    """Places with a folder of runs apart from that of the tables."""
    return dataclasses.replace(places, runs=places.runs / USER_TIER)


def _print_changes(
    console: Console, what: str, before: Sequence[Cell], after: Sequence[Cell]
) -> None:
    """Print which fields of the configurations change, and in which rows if not in all."""
    changes: dict[str, dict[str, None]] = {}
    for there, here in zip(before, after, strict=True):
        for path, *pair in differing(canonical(there.config), canonical(here.config)):
            text = f"{path}: {' -> '.join(map(shown, pair))}"
            changes.setdefault(text, {})[there.row] = None
    rows = {cell.row for cell in before}
    console.print(f"{what}:" if changes else f"{what}: nothing", soft_wrap=True, highlight=False)
    for text, which in changes.items():
        where = "" if len(which) == len(rows) else f"  ({', '.join(which)})"
        console.print(f"  {text}{where}", soft_wrap=True, highlight=False, markup=False)


def _values(chosen: Chosen, places: Places) -> Values:
    """The metrics of the finished cells."""
    tier = chosen.cells[0].tier
    metrics = {
        column.label: chosen.table.metric_of(column) for column in chosen.table.columns_of(tier)
    }
    values: Values = {}
    for cell in chosen.cells:
        some = values.setdefault((cell.row, cell.column), {})
        if (record := finished(cell, places.runs)) is not None:
            some[cell.seed] = float(record.result["metrics"][metrics[cell.column]])
    return values


def _shown(values: Mapping[int, float]) -> str:
    if not values:
        return DASH
    summary = summarise(values.values())
    return mean_sd(summary.mean, summary.sd)


def _print_values(console: Console, chosen: Chosen, what: str, values: Values) -> None:
    """Print rows and columns of numbers without published ones."""
    rows, columns = (dict.fromkeys(pair[i] for pair in values) for i in (0, 1))
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("method")
    for column in columns:
        grid.add_column(column, justify="right")
    for row in rows:
        grid.add_row(Text(row), *(_shown(values.get((row, column), {})) for column in columns))
    _print_head(console, chosen, what)
    console.print(grid)


def _print_pairs(
    console: Console, ours: Chosen, other: Chosen, mine: Values, theirs: Values
) -> None:
    """Print a line for each column: both rows, and whether the user's is better."""
    baseline = other.cells[0].row
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("column", baseline, MINE, f"{MINE} is, against {baseline}"):
        grid.add_column(name, justify="right" if name in (baseline, MINE) else "left")
    for (_, column), values in mine.items():
        against = theirs[baseline, column]
        word, sentence = compared(values, against)
        outcome = Text(word, style=COLOURS[word]).append(f": {sentence}", style="default")
        grid.add_row(Text(column), _shown(against), _shown(values), outcome)
    _print_head(console, ours, f"{MINE} beside {baseline}")
    console.print(grid)


def _print_head(console: Console, chosen: Chosen, what: str) -> None:
    table, tier = chosen.table, chosen.cells[0].tier
    console.print(Text(f"{table.address} ({tier} tier), {what}", style="bold"))
    metrics = dict.fromkeys(table.metric_of(column) for column in table.columns_of(tier))
    console.print(Text(f"{', '.join(metrics)} ({table.unit}), mean ± deviation over seeds"))
    if note := TIER_NOTES[tier]:
        console.print(Text(note, style="bold yellow"))
