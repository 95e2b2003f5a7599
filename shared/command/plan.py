"""What would run, and the time, memory and disk that it would take."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as TextTable

from shared.command.domains import imported
from shared.command.places import Places, finished
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
    """What one cell takes: seconds, gigabytes of memory, and the source of the two."""

    seconds: float
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
    costs = costs_of(table, cells, places, estimates)
    minutes_left, memory, sources = 0.0, 0.0, set()
    for row, label in dict.fromkeys((cell.row, cell.column) for cell in cells):
        some = [cell for cell in cells if (cell.row, cell.column) == (row, label)]
        if some[0].unavailable:
            text.add_row(row, some[0].source, "", "", "", "", unavailable(some[0]))
            continue
        left = sum(records[cell.address] is None for cell in some)
        cost = costs[row, some[0].source]
        minutes = cost.seconds / 60
        sources.add(cost.source)
        minutes_left += minutes * left
        memory = max(memory, cost.gigabytes if left else 0.0)
        each = (f"{minutes:.1f}", f"{cost.gigabytes:.1f} GB", cost.source)
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
    places: Places,
    estimates: Mapping[str, tuple[float, float]],
) -> dict[tuple[str, str], Cost]:
    """What a cell of each row takes in each column, or in the run that columns share.

    As the finished cells of the row measured it, else those of the column, else as estimated, else
    as declared.
    """
    cells = [cell for cell in cells if not cell.unavailable]
    records = {cell.address: finished(cell, places) for cell in cells}
    columns = {column.label: column for cell in cells[:1] for column in table.columns_of(cell.tier)}
    costs: dict[tuple[str, str], Cost] = {}
    for cell in cells:
        place = cell.row, cell.source
        if place in costs:
            continue
        same_column = [each for each in cells if each.source == cell.source]
        same_row = [each for each in same_column if each.row == cell.row]
        for some in (same_row, same_column):
            if own := [record for each in some if (record := records[each.address])]:
                seconds = statistics.median(record.result["seconds"] for record in own)
                gigabytes = max(record.result["peak_memory_bytes"] for record in own) / 1e9
                costs[place] = Cost(seconds, gigabytes, "measured")
                break
        else:
            if estimate := estimates.get(_without_seed(cell.config)):
                costs[place] = Cost(60 * estimate[0], estimate[1], "estimated")
            else:
                column = columns[cell.column]
                costs[place] = Cost(60 * column.minutes, column.gigabytes, "declared")
    return costs


def estimated(
    cells: Sequence[Cell], places: Places, threads: int, console: Console
) -> dict[str, tuple[float, float]]:
    """Minutes and gigabytes that a domain expects of its cells, by configuration without seed.

    Only for columns without a finished cell; empty for domains that estimate nothing.
    """
    import torch

    torch.set_num_threads(threads)  # those of the cells that it speaks for
    measured = {(cell.table, cell.column) for cell in cells if finished(cell, places)}
    unknown = [cell for cell in cells if (cell.table, cell.column) not in measured]
    examples = {_without_seed(cell.config): cell for cell in unknown}
    found = {}
    with console.status("estimating") as status:
        for number, (key, cell) in enumerate(examples.items(), start=1):
            status.update(f"estimating {number} of {len(examples)}: {cell.row} / {cell.column}")
            estimate = imported(cell.domain).experiment(cell.config).estimate
            if estimate is not None:
                found[key] = estimate(cell.config, places.data)
    return found


def _without_seed(config: Config) -> str:
    return canonical_json({k: v for k, v in canonical(config).items() if k != "seed"})
