"""Runs with settings or losses of the user's, beside those of the tables.

They are in ``runs/own/``, and their results have the tier "own", which no table or report uses.
"""

import dataclasses
import importlib
import inspect
import sys
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from shared.command.cells import Chosen, Places, choose, imported
from shared.command.running import print_ending, run_waiting
from shared.command.settings import kwargs_of, typed, with_settings
from shared.errors import UserError, suggestion
from shared.experiment.config import USER_TIER, changed, differing, short_text
from shared.experiment.frame import finished
from shared.experiment.randomness import seed_everything
from shared.experiment.tables import Cell, Column, Row, Table, Tier
from shared.objective import Objective, Term
from shared.pairs import cosine, two_views
from shared.ranges import without_effect
from shared.report.console import empty_grid, say
from shared.report.statistics import summarise
from shared.report.wording import TIER_NOTES, shown_metric, summary_text

# Batches on which a loss is tried: the number of instances, and how far apart two views of one are,
# None being independent.
TRIED: tuple[tuple[int, float | None], ...] = ((3, None), (64, None), (64, 0.1), (64, 1.0))


def run_with_settings(options: Namespace, places: Places) -> int:
    """Run the chosen cells with the changes of ``--set``, and print the results."""
    console = Console()
    declared = choose(options)
    chosen = [Chosen(table, apply_settings(cells, options.set)) for table, cells in declared]
    folder = places.runs / USER_TIER
    say(console, f"These runs are yours, in {folder}; they enter no table and no report.")
    for (table, before), (_, after) in zip(declared, chosen, strict=True):
        print_changes(console, f"{table.address} as declared", before, after)
    pool = run_waiting(chosen, places, options, console)
    for selected in chosen if not pool.interrupted else ():
        _print_numbers(console, selected, options.set, places)
    return print_ending(console, pool, again=options.again)


def load_loss(file: Path, name: str, settings: Sequence[str]) -> Term:
    """The loss in a file of the user's, called once on a few pairs to check it.

    It is a function ``(pairs, similarity, *, numbers) -> (N,)``; ``settings`` gives its numbers as
    ``NAME=VALUE``. The file can import modules beside it.
    """
    if not file.is_file():
        raise UserError(f"--with {file}: there is no such file")
    folder = str(file.resolve().parent)
    if folder not in sys.path:  # last, so that nothing beside the file hides a library
        sys.path.append(folder)
    try:
        module = importlib.import_module(file.stem)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise UserError(_error_line(error, file)) from error
    if Path(getattr(module, "__file__", None) or "").resolve() != file.resolve():
        raise UserError(f"{file}: another module is called {file.stem!r}; rename the file")
    defined = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
    if name not in defined:
        has = suggestion(name, defined, "it has") if defined else "; it has none"
        raise UserError(f"{file} defines no function {name!r}{has}")
    known = kwargs_of(defined[name])
    numbers: dict[str, Any] = {}
    for setting in settings:
        key, _, text = (part.strip() for part in setting.partition("="))
        if key in numbers:
            raise UserError(f"--with {name}: {key} is given twice; give it once")
        if known and key not in known:
            raise UserError(f"{name} takes no number {key!r}{suggestion(key, known, 'it takes')}")
        numbers[key] = typed(f"{name}'s {key}", text, known.get(key, Any))
    loss = Term(defined[name], numbers)
    try:
        loss.check()
    except ValueError as error:
        raise UserError(str(error)) from None
    _check(loss, file)
    return loss


def baseline_of(table: Table, tier: Tier, wanted: str | None = None) -> Row:
    """The row of a table that a user's loss is compared with.

    Among the rows that train with a loss: the row ``wanted``, else the one that most of the paper's
    claims compare with, else the first that the paper gives, else the first.
    """
    rows, where = trainable_rows(table, tier), table.address
    if wanted is not None:
        label = table.cells(tier, row=wanted)[0].row
        rows, where = [row for row in rows if row.label == label], f"{where}: {label}"
    if not rows:
        raise UserError(f"{where} trains with no loss")
    counts = Counter(pair.baseline for claim in table.claims for pair in claim.comparisons)
    if not any(counts[row.label] for row in rows):
        return max(rows, key=lambda row: row.published is not None)
    return max(rows, key=lambda row: counts[row.label])


def trainable_rows(table: Table, tier: Tier) -> list[Row]:
    """The rows that train with a replaceable loss."""
    trained = {
        cell.row
        for cell in table.cells(tier)
        if getattr(cell.config, "train", True)
        and isinstance(getattr(cell.config, "objective", None), Objective)
    }
    return [row for row in table.rows if row.label in trained and not row.baseline]


def with_loss(cell: Cell, loss: Term, label: str) -> Cell:
    """The cell as a row of another label, with its loss replaced."""
    objective = getattr(cell.config, "objective", None)
    if not isinstance(objective, Objective):
        raise UserError(f"{cell.row} trains in {cell.column} with no loss that can be replaced")
    changes = {"objective": dataclasses.replace(objective, loss=loss)}
    config = changed(cell.config, changes, cell.address)
    return dataclasses.replace(cell, row=label, config=config, own=True)


def _check(loss: Term, file: Path) -> None:
    """Refuse a loss that fails, keeps a state, or whose gradient is 0 on every batch of ``TRIED``.

    A hinge may be inactive on one of them. Each is tried twice, with the same arguments and state
    of the global generators.
    """
    name, learns = loss.function.__name__, False
    for count, distance in TRIED:
        first, noise = torch.randn(2, count, 16, generator=torch.Generator().manual_seed(0))
        second = noise if distance is None else first + distance * noise
        views = [view.requires_grad_() for view in (first, second)]
        pairs = two_views(*views)
        values = []
        for _ in range(2):
            seed_everything(0)  # checkpoints hold these states, and a run seeds its own
            try:
                value = loss(pairs, cosine(pairs.anchor, pairs.candidate))
                if value.requires_grad:
                    gradients = torch.autograd.grad(value.sum(), views, allow_unused=True)
            except (Exception, SystemExit) as error:  # whatever the user's function raises
                raise UserError(f"{name}: {_error_line(error, file)}") from error
            if not value.requires_grad:
                raise UserError(f"{name} has no gradient: its value depends on no embedding")
            if any(all(leaf is not view for view in views) for leaf in _leaves(value)):
                raise UserError(f"{name} makes a parameter or module, which nothing here trains")
            values.append(value)
        if not torch.allclose(values[0], values[1], rtol=0.0, atol=0.0, equal_nan=True):
            raise UserError(
                f"{file}: {name} gives other values when it is called again with the same "
                f"arguments and seed; make it a function of these, without a state of its own"
            )
        learns |= any(each is not None and bool(each.any()) for each in gradients)  # NaN, too
    if not learns:
        raise UserError(
            f"{name} has a gradient of 0 on all {len(TRIED)} batches that it was tried on, and "
            f"would train nothing; look for what detaches, rounds or clamps"
        )


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
        waiting += [following for following, _ in node.next_functions]


def _error_line(error: BaseException, file: Path) -> str:
    """An error of the user's code in one line, with its place in the file."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    where = f"{file}, line {line}" if line else str(file)
    return f"{where}: {type(error).__name__}: {error}".splitlines()[0]


def apply_settings(cells: Sequence[Cell], settings: Sequence[str]) -> tuple[Cell, ...]:
    """The cells with the settings of ``--set``; refuses one that has no effect in any of them.

    Beside rows that train, those of no epoch stay so.
    """
    varied = []
    untrained = [getattr(cell.config, "epochs", 1) == 0 for cell in cells]
    for cell, stays in zip(cells, untrained, strict=True):
        kept = "epochs" if stays and not all(untrained) else ""
        given = [text for text in settings if text.partition("=")[0].strip() != kept]
        try:
            config = with_settings(cell.config, given)
        except UserError as error:
            raise UserError(f"{cell.row}: {error}") from None
        varied.append(dataclasses.replace(cell, config=config, own=True))
    names = {setting.partition("=")[0].partition(".")[0].strip() for setting in settings}
    # A protocol that the domain does not have would be missed only after the training.
    protocols = imported(cells[0].domain).protocols
    known = protocols() if protocols else ()
    for name in {"protocol", "beside"} & names:
        value = getattr(varied[0].config, name, None)
        if known and value not in (None, *known):
            raise UserError(f"no protocol {value!r}{suggestion(str(value), known, 'there are')}")
    unused = [without_effect(cell.config, names) for cell in varied]
    for name in sorted(set.intersection(*map(set, unused))):
        raise UserError(
            f"--set {name} has no effect in any chosen row: it needs {unused[0][name]}; omit it"
        )
    return tuple(varied)


def print_changes(
    console: Console, title: str, before: Sequence[Cell], after: Sequence[Cell]
) -> None:
    """Print which fields of the configurations change, and in which rows if not in all."""
    rows_by_change: dict[str, dict[str, None]] = {}
    for old, new in zip(before, after, strict=True):
        for path, *values in differing(old.content, new.content):
            text = f"{path}: {' -> '.join(map(short_text, values))}"
            rows_by_change.setdefault(text, {})[old.row] = None
    count = len({cell.row for cell in before})
    say(console, f"{title}:" if rows_by_change else f"{title}: nothing")
    for text, rows in rows_by_change.items():
        say(console, f"  {text}" if len(rows) == count else f"  {text}  ({', '.join(rows)})")


def column_metrics(
    table: Table, columns: Iterable[Column], results: Mapping[str, Collection[Mapping[str, Any]]]
) -> dict[str, str]:
    """By the label of a column the metric that it shows; columns of one run show none twice.

    Where runs follow another protocol than the table's, or other tasks, columns lack their metric.
    Those of one run would then all show the same other one: they are left out, but for the first
    where no column of the run has its own. ``results`` has metrics of runs by label of the column.
    """
    columns = list(columns)
    metrics = {c.label: shown_metric(table.metric_of(c), results[c.label]) for c in columns}
    lacking = {c.label for c in columns if metrics[c.label] != table.metric_of(c)}
    runs_shown = {c.run for c in columns if c.label not in lacking}
    for column in columns:
        if column.run and column.label in lacking and column.run in runs_shown:
            del metrics[column.label]
        runs_shown.add(column.run)
    return metrics


def _print_numbers(
    console: Console, chosen: Chosen, settings: Sequence[str], places: Places
) -> None:
    """Print rows and columns of numbers without published ones, and where the runs are."""
    table, tier = chosen.table, chosen.tier
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}  # by row and column, over seeds
    results: dict[str, list[Mapping[str, Any]]] = {}
    for cell in chosen.cells:
        record = finished(cell, places.runs)
        metrics = [record.result["metrics"]] if record else []
        found.setdefault((cell.row, cell.column), []).extend(metrics)
        results.setdefault(cell.column, []).extend(metrics)
    columns = [column for column in table.columns_of(tier) if column.label in results]
    shown = column_metrics(table, columns, results)
    grid = empty_grid(["method", *shown], left=["method"])
    for row in dict.fromkeys(row for row, _ in found):
        values = (
            [float(metrics[metric]) for metrics in found.get((row, column), ())]
            for column, metric in shown.items()
        )
        grid.add_row(Text(row), *(summary_text(summarise(v) if v else None) for v in values))
    # Never the tier alone, which would read as the paper's setting.
    title = f"{table.address} ({tier} tier, changed by {', '.join(settings)})"
    console.print(Text(title, style="bold"), soft_wrap=True)
    names = (f"{metric} ({table.unit_of(metric)})" for metric in dict.fromkeys(shown.values()))
    console.print(Text(f"{', '.join(names)}, mean ± deviation over seeds"))
    if note := TIER_NOTES[tier]:
        console.print(Text(note, style="bold yellow"))
    console.print(grid)
    for folder in dict.fromkeys(places.runs / cell.folder for cell in chosen.cells):
        say(console, f"  {folder}")
