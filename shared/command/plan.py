"""What would run, and the time, memory and disk that it would take."""

import importlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from rich.console import Console
from rich.table import Table as TextTable

from shared.command.places import Places, finished
from shared.experiment.records import Record
from shared.experiment.tables import Cell, Config, Table, canonical, canonical_json
from shared.report.measuring import UNAVAILABLE, unavailable

# Where the plan has its figures from.
SOURCES = {
    "measured": "measured on this machine",
    "estimated": "estimated by a calibration on this machine",
    "declared": "declared for one CPU core",
}


@dataclass(frozen=True)
class Cost:
    """What one cell takes: minutes, gigabytes of memory, and whence that is known (``SOURCES``)."""

    minutes: float
    gigabytes: float
    source: str


def planned(
    table: Table,
    cells: tuple[Cell, ...],
    places: Places,
    jobs: int,
    estimates: Mapping[str, tuple[float, float]],
) -> TextTable:
    """What is done, and what the rest will take: measured where cells of the column are done."""
    text = TextTable(title=f"{table.address}: {table.title}", title_justify="left")
    for name in ("row", "column", "seeds done", "seeds to run", "minutes each", "memory", "source"):
        left_aligned = name in ("row", "column", "source")
        text.add_column(name, justify="left" if left_aligned else "right")
    cells = tuple({cell.address: cell for cell in cells}.values())
    available = [cell for cell in cells if not cell.unavailable]
    records = {cell.address: finished(cell, places) for cell in available}
    costs = costs_of(table, cells, records, estimates)
    minutes_left, memory, sources = 0.0, 0.0, set()
    for row, label in dict.fromkeys((cell.row, cell.column) for cell in cells):
        some = [cell for cell in cells if (cell.row, cell.column) == (row, label)]
        if some[0].unavailable:
            text.add_row(row, some[0].source, "", "", "", "", unavailable(some[0]))
            continue
        left = sum(records[cell.address] is None for cell in some)
        cost = costs[row, label]
        sources.add(cost.source)
        minutes_left += cost.minutes * left
        memory = max(memory, cost.gigabytes if left else 0.0)
        each = (f"{cost.minutes:.1f}", f"{cost.gigabytes:.1f} GB", cost.source)
        text.add_row(row, some[0].source, str(len(some) - left), str(left), *each)
    left = sum(record is None for record in records.values())
    known = "; ".join(words for source, words in SOURCES.items() if source in sources)
    caption = [
        f"{left} of {len(available)} cells to run, {jobs} at a time: about "
        f"{minutes_left / jobs:.0f} minutes, {memory * min(jobs, max(left, 1)):.1f} GB of memory, "
        f"{max(1, left // 2)} MB of disk."
    ]
    if len(available) < len(cells):
        caption.append(f"{len(cells) - len(available)} cells are {UNAVAILABLE}.")
    if known:
        caption.append(f"Minutes and memory: {known}.")
    text.caption = " ".join(caption)
    text.caption_justify = "left"
    return text


def costs_of(
    table: Table,
    cells: Sequence[Cell],
    records: Mapping[str, Record | None],
    estimates: Mapping[str, tuple[float, float]],
) -> dict[tuple[str, str], Cost]:
    """By row and column what a cell takes, of those that can run.

    As the finished runs of the row in the column measured it, else those of the column, else as
    estimated, else as declared.

    Args:
        table: of the cells.
        cells: of one tier.
        records: by address the finished run, or None.
        estimates: see :func:`estimated`.
    """
    columns = {column.label: column for column in table.columns_of(cells[0].tier)} if cells else {}
    by_place: dict[tuple[str, str], list[Record]] = {}
    by_column: dict[str, list[Record]] = {}
    for cell in cells:
        if record := records.get(cell.address):
            by_place.setdefault((cell.row, cell.column), []).append(record)
            by_column.setdefault(cell.column, []).append(record)
    costs = {}
    for cell in cells:
        place = cell.row, cell.column
        if cell.unavailable or place in costs:
            continue
        if own := by_place.get(place) or by_column.get(cell.column):
            minutes = statistics.median(record.result["seconds"] for record in own) / 60
            gigabytes = max(record.result["peak_memory_bytes"] for record in own) / 1e9
            costs[place] = Cost(minutes, gigabytes, "measured")
        elif estimate := estimates.get(_without_seed(cell.config)):
            costs[place] = Cost(*estimate, "estimated")
        else:
            column = columns[cell.column]
            costs[place] = Cost(column.minutes, column.gigabytes, "declared")
    return costs


def estimated(
    cells: Sequence[Cell], places: Places, threads: int, console: Console
) -> dict[str, tuple[float, float]]:
    """Minutes and gigabytes that a domain expects of its cells, by configuration without seed.

    Only for columns without a finished cell; empty for domains that estimate nothing.
    """
    if not cells or not find_spec(f"{cells[0].domain}.estimate"):
        return {}
    import torch

    estimate = importlib.import_module(f"{cells[0].domain}.estimate").estimate
    torch.set_num_threads(threads)  # those of the cells that it speaks for
    measured = {(cell.table, cell.column) for cell in cells if finished(cell, places)}
    unknown = [cell for cell in cells if (cell.table, cell.column) not in measured]
    examples = {_without_seed(cell.config): cell for cell in unknown}
    found = {}
    with console.status("estimating") as status:
        for number, (key, cell) in enumerate(examples.items(), start=1):
            status.update(f"estimating {number} of {len(examples)}: {cell.row} / {cell.column}")
            found[key] = estimate(cell.config, places.data)
    return found


def _without_seed(config: Config) -> str:
    return canonical_json({k: v for k, v in canonical(config).items() if k != "seed"})
