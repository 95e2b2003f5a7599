"""One page about one cell: from the paper's sentence to the loss, the record and the verdict."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shared.command.choosing import find_cell
from shared.command.own import baseline_of
from shared.command.places import Committed, Places, finished, measure
from shared.command.progress import duration
from shared.errors import UserError
from shared.experiment.history import differing, shown
from shared.experiment.records import Record
from shared.experiment.tables import Cell, Row, Table, canonical
from shared.objective import Objective
from shared.projection import LowRankProjection
from shared.report.console import KIND_COLOURS
from shared.report.losses import TWINS
from shared.report.measuring import Measured, MeasuredCell, narrowed
from shared.report.wording import explain as explained
from shared.report.wording import named_seeds, printed_value

HASH = 12  # characters shown of one


def print_page(address: str, places: Places) -> int:
    """Print the page of a cell, by its address with or without seed; returns the exit code.

    Raises:
        UserError: no such cell.
    """
    chosen = find_cell(address, seedless=True)
    if not chosen.cells:
        raise UserError(f"{address}: the row has no such seed")
    Console().print(page(chosen.table, chosen.cells, places))
    return 0


def page(table: Table, cells: Sequence[Cell], places: Places) -> RenderableType:
    """What is known of one row in one column, over the seeds of ``cells``."""
    cell = cells[0]
    measured = measure(table, cell.tier, places, {}, Committed.read(places))
    measured = narrowed(measured, {cell.row}, {cell.column})
    ((found,),) = measured.cells
    seeds = named_seeds([cell.seed for cell in cells])
    parts: list[RenderableType] = [
        Text(cell.address.rpartition("/")[0], style="bold"),
        Text(f"{cell.row}, {cell.column}, {cell.tier} tier, {seeds}"),
    ]
    sections = {
        "The paper": _paper(table, found),
        "The configuration": _configuration(table, cell, found.row),
        **{f"The {what}": lines for what, lines in _functions(cell)},
        "The record": _records(cells, found, places),
        "The verdict": _verdicts(measured),
    }
    for heading, lines in sections.items():
        parts.append(Text(f"\n{heading}", style="bold cyan"))
        parts += [Padding(line, (0, 0, 0, 2)) for line in lines]
    return Group(*parts)


def _paper(table: Table, found: MeasuredCell) -> Iterator[Text]:
    """What the paper says and prints, and where the row departs from it."""
    yield Text(f"{table.section}: {table.title}")
    row = found.row
    about = [claim for claim in table.claims if row.label in (claim.better, claim.than)]
    for claim in about:
        if found.column.label in claim.columns:
            yield Text(f"It says: {claim.text} ({claim.better} over {claim.than})")
    if row.published is None:
        yield Text("It has no such row.")
    elif found.published is not None:
        printed = f"{printed_value(found.published)} {table.unit}"
        yield Text(f"It prints, as {row.published}: {printed} ({table.published.statistic})")
    if row.deviation:
        yield Text(f"Here: {row.deviation}")


def _configuration(table: Table, cell: Cell, row: Row) -> Iterator[Text]:
    """What of the configuration is other than in the baseline's row, or than the table's own."""
    base, what = table.config, "the table's configuration"
    try:
        baseline, why = baseline_of(table, cell.tier)
    except UserError:
        baseline, why = row, ""
    if baseline.label != cell.row:
        same = (each for each in table.cells(cell.tier, row=baseline.label, column=cell.column))
        base, what = next(same).config, f"the row {baseline.label}, {why}"
    yield Text(f"Beside {what}:")
    changes = [
        f"  {path}: {shown(there)} -> {shown(here)}"
        for path, there, here in differing(canonical(base), canonical(cell.config))
        if path not in ("seed", "history")
    ]
    yield from map(Text, changes or ["  nothing differs"])
    yield Text(f"Evaluated by {table.protocol}; varies between repeats: {table.varies}.")


def _functions(cell: Cell) -> Iterator[tuple[str, list[Text]]]:
    """The loss, penalties and projection of a cell, each with its equation and its twin."""
    objective = getattr(cell.config, "objective", None)
    if not isinstance(objective, Objective):
        yield "loss", [Text("The row has no objective.")]
        return
    yield "loss", _equation(objective.loss.function, repr(objective.loss))
    for penalty in objective.penalties:
        yield "penalty", _equation(penalty.function, repr(penalty))
    if objective.projection is not None:
        yield "projection", _equation(LowRankProjection, repr(objective.projection))


def _equation(function: Callable[..., Any], called: str) -> list[Text]:
    """What a docstring says up to the arguments, its source, and the test that guards it."""
    blocks = (inspect.getdoc(function) or "It has no description.").split("\n\n")
    end = next((i for i, block in enumerate(blocks) if block.startswith("Args:")), len(blocks))
    told = [block for i, block in enumerate(blocks) if i < end or block.startswith("Source:")]
    lines = [Text(called, style="italic"), *(Text(" ".join(each.split())) for each in told)]
    twin = TWINS.get(function.__name__)
    return [*lines, Text(f"Held to a slow twin in tests/reference.py by {twin}")] if twin else lines


def _records(cells: Sequence[Cell], found: MeasuredCell, places: Places) -> Iterator[Text]:
    """The numbers of the seeds, and with what each was measured."""
    missing: dict[str, list[int]] = {}
    for cell in cells:
        record = found.records.get(cell.seed)
        if record is None:
            missing.setdefault(found.missing.get(cell.seed, "not a declared seed"), []).append(
                cell.seed
            )
            continue
        own = finished(cell, places)
        where = places.runs if own and own.sha256 == record.sha256 else places.results
        value = found.values[cell.seed]
        yield Text(f"seed {cell.seed}: {value:.4g}, in {where}; {_environment(record)}")
    for why, seeds in missing.items():
        yield Text(f"{named_seeds(seeds)}: {why}")
    if found.summary is not None and found.summary.sd is not None:
        summary = found.summary
        yield Text(f"{summary.n} seeds: {summary.mean:.2f} ± {summary.sd:.2f}")


def _environment(record: Record) -> str:
    """Commit, machine, data and time of a record."""
    environment = record.environment
    clean = ", changed" if environment["dirty"] else ""
    data = ", ".join(f"{name} {value[:HASH]}" for name, value in environment["data"].items())
    taken = environment.get("run_at")
    parts = (
        f"commit {environment['commit'][:HASH]}{clean}",
        str(environment["hardware"].get("processor")),
        f"data {data}" if data else "no data on record",
        f"{duration(record.result['seconds'])}, {environment['started'][:10]}",
        f"taken over from {taken}" if taken else "",
    )
    return "; ".join(filter(None, parts))


def _verdicts(measured: Measured) -> Iterator[Text]:
    """The verdicts that the cell enters."""
    for judged in measured.verdicts:
        claim, kind = judged.claim, judged.verdict.kind
        text = Text(f"{claim.better} over {claim.than}: ").append(kind, style=KIND_COLOURS[kind])
        yield text.append(f": {explained(judged, measured)}")
    if not measured.verdicts:
        why = (
            "the smoke tier proves nothing" if measured.tier == "smoke" else "no claim is about it"
        )
        yield Text(f"None: {why}.")
