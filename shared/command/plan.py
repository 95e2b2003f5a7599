"""What would run, and the time, memory and disk that it would take."""

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from shared.command.domains import imported
from shared.command.places import Places, finished
from shared.command.pool import pretraining_of
from shared.command.progress import duration
from shared.experiment.records import RECORDS, Damaged, Record, records_in
from shared.experiment.store import is_kept, seconds_alone
from shared.experiment.tables import Cell, Config, Table, canonical, canonical_json
from shared.report.measuring import folder_of

# Where the plan has its figures from; a ~ marks those that are not of such a cell on this machine.
SOURCES = {
    "measured": "measured on this machine",
    "estimated": "estimated by a calibration on this machine",
    "recorded": "~ as the committed records took, elsewhere",
    "column": "~ as other rows of the column took on this machine",
    "declared": "~ declared for one CPU core",
}
WIDTH = 80  # characters of a terminal
LABEL = 24  # of a row's label in one line
HEADING = 12  # of a column's


@dataclass(frozen=True)
class Cost:
    """What one row takes in one column.

    Args:
        done: how many of the chosen seeds are done.
        seeds: how many are chosen.
        seconds: of one cell.
        gigabytes: peak memory of one cell.
        source: where the two are from, of ``SOURCES``.
        shared: seconds, of all that is left, that are spent once for other cells, too, and counted
            there.
    """

    done: int
    seeds: int
    seconds: float
    gigabytes: float
    source: str
    shared: float = 0.0

    @property
    def left(self) -> int:
        """How many cells are to run."""
        return self.seeds - self.done

    @property
    def time(self) -> float:
        """Seconds that all that is left takes."""
        return max(0.0, self.left * self.seconds - self.shared)

    def shown(self) -> str:
        """``2/5 48 s``: seeds done of those chosen, and the time of one that is not."""
        counts = f"{self.done}/{self.seeds}"
        about = "~" if SOURCES[self.source].startswith("~") else ""
        return f"{counts} {about}{duration(self.seconds)}" if self.left else counts


Costs = dict[tuple[str, str], Cost]  # by row, and by the column or the run that columns share


def planned(
    table: Table,
    cells: tuple[Cell, ...],
    places: Places,
    jobs: int,
    estimates: Mapping[str, tuple[float, float]],
    counted: set[str] | None = None,
) -> RenderableType:
    """What is done, and what the rest will take: rows and columns in 80 characters.

    Args:
        table: the table.
        cells: those of it that were chosen.
        places: where finished runs and committed records lie.
        jobs: how many cells run at a time.
        estimates: minutes and gigabytes by configuration without seed, of :func:`estimated`.
        counted: what other tables of the plan have counted, see :func:`costs_of`.
    """
    costs = costs_of(table, cells, places, estimates, set() if counted is None else counted)
    rows, columns = (list(dict.fromkeys(pair[i] for pair in costs)) for i in (0, 1))
    lines: dict[str, list[str]] = {column: [] for column in columns}
    for column in columns:
        some = [costs.get((row, column)) for row in rows]
        lines[column] = [cost.shown() if cost else "" for cost in some]
        own = [cost for cost in some if cost]
        lines[column].append(_time(own))
        biggest = max((cost.gigabytes for cost in own), default=0.0)
        lines[column].append(f"{biggest:.1f} GB" if biggest else "")
    whole = [_time([cost for (of, _), cost in costs.items() if of == row]) for row in rows]
    lines["time left"] = [*whole, _time(list(costs.values())), ""]
    parts: list[RenderableType] = [Text(f"{table.address}: {table.title}", style="bold")]
    labels = [*rows, "time left", "memory of one"]
    parts += _grids(labels, lines)
    parts += [Text(f"Data to get first: {what}") for what in missing_data(cells, places)]
    parts.append(Text(" ".join(_summary(costs, jobs))))
    return Group(*parts)


def missing_data(cells: Sequence[Cell], places: Places) -> list[str]:
    """A sentence for each dataset that cells which are to run need and that is not there."""
    found: dict[str, None] = {}
    for cell in cells:
        missing = imported(cell.domain).experiment(cell.config).missing
        if missing is None:
            continue
        said = list(map(str, missing(cell.config, places.data)))
        if not found.keys() >= set(said) and finished(cell, places) is None:
            found.update(dict.fromkeys(said))
    return list(found)


def costs_of(
    table: Table,
    cells: Sequence[Cell],
    places: Places,
    estimates: Mapping[str, tuple[float, float]],
    counted: set[str] | None = None,
) -> Costs:
    """What each row takes in each column: as its own cells took here, else as is next best known.

    After a row's own finished cells come the estimate of its configuration, the committed records
    of the row, what other rows of the column took here, and what the column declares.

    Args:
        table: the table.
        cells: those of it that were chosen.
        places: where finished runs and committed records lie.
        estimates: minutes and gigabytes by configuration without seed, of :func:`estimated`.
        counted: pretrainings that have been counted, to which those of these cells are added;
            None: what cells share is counted for each of them.
    """
    cells = tuple({cell.address: cell for cell in cells}.values())
    records = {cell.address: finished(cell, places) for cell in cells}
    committed = _committed(table, cells[0], places)
    columns = {column.label: column for column in table.columns_of(cells[0].tier)}
    costs: Costs = {}
    for row, source in dict.fromkeys((cell.row, cell.source) for cell in cells):
        some = [cell for cell in cells if (cell.row, cell.source) == (row, source)]
        own = [record for cell in some if (record := records[cell.address])]
        others = [
            record
            for cell in cells
            if cell.source == source and (record := records.get(cell.address))
        ]
        column = columns[some[0].column]
        found = ("declared", 60 * column.minutes, column.gigabytes)
        if own:
            found = ("measured", *_taken(own))
        elif estimate := estimates.get(_without_seed(some[0].config)):
            found = ("estimated", 60 * estimate[0], estimate[1])
        elif recorded := committed.get(some[0].address.rpartition("/")[0]):
            found = ("recorded", *_taken(recorded))
        elif others:
            found = ("column", *_taken(others))
        left = [cell for cell in some if records[cell.address] is None]
        saved = 0.0 if counted is None else sum(_counted(cell, places, counted) for cell in left)
        costs[row, source] = Cost(
            len(own), len(some), found[1], found[2], found[0], shared=saved * found[1]
        )
    return costs


def _counted(cell: Cell, places: Places, counted: set[str]) -> float:
    """The share of a cell's time that is counted already; what it trains is counted from now on."""
    shared = imported(cell.domain).experiment(cell.config).pretraining
    part = pretraining_of(cell)
    if shared is None or part is None:
        return 0.0
    trained = canonical_json(part)
    if trained in counted or is_kept(places.store, part):
        return shared.share(cell.config)
    counted.add(trained)
    return 0.0


def _committed(table: Table, cell: Cell, places: Places) -> dict[str, list[Record]]:
    """The committed records of a table, by address without seed."""
    found: dict[str, list[Record]] = {}
    file = places.results / folder_of(table, cell.tier) / f"{table.name}{RECORDS}"
    for record in records_in(file) if file.exists() else ():
        if not isinstance(record, Damaged):
            address = record.upgraded(type(cell.config)).address.rpartition("/")[0]
            found.setdefault(address, []).append(record)
    return found


def _taken(records: Sequence[Record]) -> tuple[float, float]:
    """Seconds and gigabytes of a finished cell."""
    seconds = statistics.median(
        seconds_alone(record.result, record.environment) for record in records
    )
    return seconds, max(record.result["peak_memory_bytes"] for record in records) / 1e9


def _time(costs: Sequence[Cost]) -> str:
    """The time of all that is left, one cell after the other."""
    if not any(cost.left for cost in costs):
        return "done"
    return duration(sum(cost.time for cost in costs))


def _grids(labels: Sequence[str], lines: Mapping[str, Sequence[str]]) -> Iterator[Grid]:
    """The matrix in as many grids, one below the other, as its width asks for."""
    first = min(LABEL, max(map(len, labels)))
    waiting = list(lines)
    while waiting:
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        grid.add_column("method", width=first, overflow="fold")
        room, shown = WIDTH - first - 3, list[str]()  # of a column two more, of both edges one
        while waiting:
            heading = textwrap.wrap(waiting[0], HEADING)
            needs = max(map(len, (*heading, *lines[waiting[0]]))) + 2
            if needs > room and shown:
                break
            room -= needs
            grid.add_column("\n".join(heading), justify="right", no_wrap=True)
            shown.append(waiting.pop(0))
        for number, label in enumerate(labels):
            if number == len(labels) - 2:
                grid.add_section()
            grid.add_row(Text(label), *(lines[column][number] for column in shown))
        yield grid


def _summary(costs: Costs, jobs: int) -> Iterator[str]:
    every = list(costs.values())
    left = sum(cost.left for cost in every)
    chosen = sum(cost.seeds for cost in every)
    memory = max((cost.gigabytes for cost in every if cost.left), default=0.0)
    seconds = sum(cost.time for cost in every) / jobs
    yield (
        f"{left} of {chosen} cells to run, {jobs} at a time: about {duration(seconds)}, "
        f"{memory * min(jobs, max(left, 1)):.1f} GB of memory, {max(1, left // 2)} MB of disk."
    )
    if saved := sum(cost.shared for cost in every):
        yield f"Without what is trained once for several it would be {duration(saved / jobs)} more."
    used = {cost.source for cost in every}
    if known := "; ".join(words for name, words in SOURCES.items() if name in used):
        yield f"Time and memory: {known}."


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
