"""What would run, and the time, memory and disk that it would take."""

import statistics
from collections.abc import Mapping, Sequence

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
    columns = {column.label: column for column in table.columns_of(cells[0].tier)}
    minutes_left, memory, sources = 0.0, 0.0, set()
    for row, label in dict.fromkeys((cell.row, cell.column) for cell in cells):
        some = [cell for cell in cells if (cell.row, cell.column) == (row, label)]
        if some[0].unavailable:
            text.add_row(row, some[0].source, "", "", "", "", unavailable(some[0]))
            continue
        own = [record for cell in some if (record := records[cell.address])]
        left = len(some) - len(own)
        same_column = (records[cell.address] for cell in available if cell.column == label)
        own = own or [record for record in same_column if record]
        source = "declared"
        minutes, gigabytes = columns[label].minutes, columns[label].gigabytes
        if own:
            source = "measured"
            minutes = statistics.median(r.result["seconds"] for r in own) / 60
            gigabytes = max(r.result["peak_memory_bytes"] for r in own) / 1e9
        elif estimate := estimates.get(_without_seed(some[0].config)):
            source = "estimated"
            minutes, gigabytes = estimate
        sources.add(source)
        minutes_left += minutes * left
        memory = max(memory, gigabytes if left else 0.0)
        numbers = (str(len(some) - left), str(left), f"{minutes:.1f}", f"{gigabytes:.1f} GB")
        text.add_row(row, some[0].source, *numbers, source)
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
