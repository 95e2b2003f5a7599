"""What is known of one cell, in a few lines: printed number, configuration, records, claims."""

import json
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from shared.command.domains import find_cell
from shared.command.places import Committed, Places, measure
from shared.errors import UserError
from shared.experiment.history import differing, shown
from shared.experiment.tables import Cell, Table, canonical
from shared.report.measuring import Measured, MeasuredCell, narrowed
from shared.report.wording import SCALES, gain_text, named_seeds, printed_value

COMMIT = 10  # characters shown of one


def print_page(address: str, places: Places) -> int:
    """Print what is known of a cell, by its address with or without seed; returns the exit code.

    Raises:
        UserError: no such cell.
    """
    chosen = find_cell(address, seedless=True)
    if not chosen.cells:
        raise UserError(f"{address}: the row has no such seed")
    console = Console()
    for line in page(chosen.table, chosen.cells, places):
        console.print(Text(line, style="" if line.startswith(" ") else "bold"))
    return 0


def page(table: Table, cells: Sequence[Cell], places: Places) -> Iterator[str]:
    """The lines about one row in one column, over the seeds of ``cells``; headings first."""
    cell = cells[0]
    measured = measure(table, cell.tier, places, {}, Committed.read(places))
    ((found,),) = narrowed(measured, {cell.row}, {cell.column}).cells
    yield f"{cell.row}, {cell.column} ({SCALES[cell.tier]}): {table.section}, {table.title}"
    yield f"  printed: {printed_value(found.published)} {table.unit}"
    if found.row.deviation:
        yield f"  {found.row.deviation}"
    yield "Configuration, where it differs from the table's"
    for path, there, here in differing(canonical(table.config), canonical(cell.config)):
        if path not in ("seed", "history"):
            yield f"  {path}: {shown(there)} -> {shown(here)}"
    yield f"Records: {table.metric_of(found.column)}, protocol {table.protocol}"
    yield from _records(cells, found)
    yield "Claims, as the last report has them"
    yield from _claims(measured, cell, places)


def _records(cells: Sequence[Cell], found: MeasuredCell) -> Iterator[str]:
    missing: dict[str, list[int]] = {}
    for cell in cells:
        if record := found.records.get(cell.seed):
            made = record.environment
            changed = ", with uncommitted changes" if made["dirty"] else ""
            yield (
                f"  seed {cell.seed}: {found.values[cell.seed]:.4g}, commit "
                f"{made['commit'][:COMMIT]}{changed}, {made['hardware'].get('processor')}"
            )
        else:
            why = found.missing.get(cell.seed, "not a declared seed")
            missing.setdefault(why, []).append(cell.seed)
    yield from (f"  {named_seeds(seeds)}: {why}" for why, seeds in missing.items())


def _claims(measured: Measured, cell: Cell, places: Places) -> Iterator[str]:
    file = places.results / "claims.json"
    every = json.loads(file.read_text(encoding="utf-8"))["readings"] if file.exists() else []
    for each in every:
        here = (each["address"], each["tier"], each["column"])
        if here == (measured.table.address, cell.tier, cell.column) and cell.row in (
            each["better"],
            each["than"],
        ):
            gain = gain_text(each["gain"], each["low"], each["high"])
            yield f"  {each['better']} over {each['than']}: {each['outcome']}, {gain}"
