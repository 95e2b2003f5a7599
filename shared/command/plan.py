"""What would run, and the time, memory and disk that it would take; nothing is trained.

A time is that of one core, if nothing else is said.
"""

import json
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from shared.command.cells import Places, imported
from shared.command.gpu import trains
from shared.command.pool import pretraining_of
from shared.command.progress import duration
from shared.experiment.config import canonical
from shared.experiment.data import MissingData
from shared.experiment.frame import finished, load
from shared.experiment.records import Record
from shared.experiment.store import SAVED, is_stored, seconds_alone
from shared.experiment.tables import Cell, Column, Table, Tier
from shared.report.wording import counted as number_of

# Sources of an estimate, the best first; ~ marks those that no run on this machine measured.
SOURCES = {
    "measured": "measured on this machine",
    "recorded": "~ from committed records of other machines",
    "scaled": "~ in proportion to a run of another length",
    "column": "~ as other rows of the column took",
    "declared": "~ declared",
    "unknown": "not estimated",  # nothing is trained, and no such row was run
}
LENGTHS = ("epochs", "steps", "environment_steps", "probe_updates")  # of a configuration
LONG = 100 * 86400.0  # seconds; a table that would take longer is one line
WIDTH = 80  # characters of a terminal
LABEL = 24  # of a row's label in one line
HEADING = 12  # of a column's


@dataclass(frozen=True)
class Taken:
    """The measured or estimated cost of one run.

    Args:
        seconds: time of one run, including the training of its encoder.
        gigabytes: peak memory.
        source: the source of both, a key of ``SOURCES``.
        evaluation: seconds of a run that found its encoder in the store; None if unknown.
    """

    seconds: float
    gigabytes: float
    source: str
    evaluation: float | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of one row in one column.

    Args:
        done: the number of chosen seeds that are finished.
        seeds: the number of chosen seeds.
        each: the cost of one cell.
        shared: seconds that unfinished cells save by sharing runs and encoders with others.
        unknown: how many unfinished cells only evaluate, which nobody has timed.
    """

    done: int
    seeds: int
    each: Taken
    shared: float = 0.0
    unknown: int = 0

    @property
    def left(self) -> int:
        """The number of unfinished cells."""
        return self.seeds - self.done

    @property
    def time(self) -> float:
        """Seconds of all unfinished cells."""
        return max(0.0, self.left * self.each.seconds - self.shared)

    def shown(self) -> str:
        """``2/5 48 s``: finished and chosen seeds, and the time of an unfinished one."""
        counts = f"{self.done}/{self.seeds}"
        if not self.left:
            return counts
        if self.each.source == "unknown":
            return f"{counts} unknown"
        about = "~" if SOURCES[self.each.source].startswith("~") else ""
        return f"{counts} {about}{duration(self.each.seconds)}"


Costs = dict[tuple[str, str], Cost]  # by row, and by the column or the run that columns share


def planned(
    table: Table,
    cells: tuple[Cell, ...],
    places: Places,
    jobs: int,
    counted: set[str] | None = None,
) -> RenderableType:
    """What is done, and what the rest will take, in rows and columns of 80 characters.

    A table that would take more than a hundred days is one line.

    Args:
        table: the table.
        cells: those of it that were chosen.
        places: the folders of finished runs and committed records.
        jobs: how many cells run at a time.
        counted: what other tables of the plan include already, see :func:`costs_of`.
    """
    costs = costs_of(table, cells, places, set() if counted is None else counted)
    if sum(cost.time for cost in costs.values()) >= LONG:
        return Text(_in_one_line(table, list(costs.values()), jobs))
    rows, columns = (list(dict.fromkeys(pair[i] for pair in costs)) for i in (0, 1))
    lines: dict[str, list[str]] = {}
    for column in columns:
        some = [costs.get((row, column)) for row in rows]
        lines[column] = [cost.shown() if cost else "" for cost in some]
        own = [cost for cost in some if cost]
        biggest = max((cost.each.gigabytes for cost in own), default=0.0)
        lines[column] += [_time(own), f"{biggest:.1f} GB" if biggest else ""]
    whole = [_time([cost for (of, _), cost in costs.items() if of == row]) for row in rows]
    lines["time left"] = [*whole, _time(list(costs.values())), ""]
    parts: list[RenderableType] = [Text(f"{table.address}: {table.title}", style="bold")]
    parts += _grids([*rows, "time left", "memory of one"], lines)
    parts += [Text(f"Data to get first: {what}") for what in missing_data(cells, places)]
    parts.append(Text(" ".join(_summary(list(costs.values()), jobs))))
    return Group(*parts)


def missing_data(cells: Sequence[Cell], places: Places) -> list[MissingData]:
    """The datasets that unfinished cells need and that are missing."""
    found: dict[str, MissingData] = {}
    for cell in cells:
        missing = imported(cell.domain).experiment(cell.config).missing
        if missing is None:
            continue
        named = {str(each): each for each in missing(cell.config, places.data)}
        if not found.keys() >= named.keys() and finished(cell, places.runs) is None:
            found.update(named)
    return list(found.values())


def costs_of(
    table: Table, cells: Sequence[Cell], places: Places, counted: set[str] | None = None
) -> Costs:
    """The estimated cost of each row in each column.

    The best source is a run of an equal configuration with any seed, on this machine or else among
    the committed records. Next are runs that differ only in the length of training, scaled by it;
    then the other rows of the column; last, what the column declares.

    Args:
        table: the table.
        cells: those of it that were chosen.
        places: the folders of finished runs and committed records.
        counted: configurations and pretrainings that the plan includes already, to which those of
            these cells are added; None: each cell is estimated on its own.
    """
    cells = tuple({cell.address: cell for cell in cells}.values())
    tier = cells[0].tier
    every = {cell.address: cell for cell in (*cells, *table.cells(tier))}  # the chosen ones first
    tiers: Sequence[Tier] = [each for each in table.tiers if (each == "smoke") == (tier == "smoke")]
    results = None if tier == "smoke" else places.results
    frame = load([table], runs=places.runs, results=results, tiers=tiers, also=cells)
    runs: defaultdict[str, list[tuple[Record, str]]] = defaultdict(list)
    done: set[str] = set()
    for line in frame:
        if line.record is None or line.source is None:
            continue
        here = line.source.origin == "run"
        runs[_key(line.record.config)].append((line.record, "measured" if here else "recorded"))
        if here and line.tier == tier and line.measurement:
            done.add(line.record.address)
    known: dict[tuple[str, str], Taken | None] = {}
    kinds: dict[tuple[str, str], bool] = {}
    for cell in every.values():
        pair = (cell.row, cell.source)
        if pair not in known:
            known[pair], kinds[pair] = _taken(canonical(cell.config), runs), trains(cell.config)
    columns = {column.label: column for column in table.columns_of(cells[0].tier)}
    costs: Costs = {}
    for row, source in dict.fromkeys((cell.row, cell.source) for cell in cells):
        some = [cell for cell in cells if (cell.row, cell.source) == (row, source)]
        like = [pair for pair in known if pair[1] == source and kinds[pair] == kinds[row, source]]
        others = [each for pair in like if (each := known[pair])]
        # The chosen rows may train for another length than the declared ones.
        beside = [
            each
            for cell in cells
            if (cell.row, source) in like and cell.source == source
            if (each := known[cell.row, source])
        ]
        trivial = not kinds[row, source] and any(kinds[pair] for pair in kinds if pair[1] == source)
        column = None if trivial else columns[some[0].column]
        each = known[row, source] or _like(beside or others, column)
        left = [cell for cell in some if cell.address not in done]
        shared, unknown = 0.0, len(left) * (each.source == "unknown")
        if counted is not None:
            shared, unknown = _shared(left, each, places, counted)
        costs[row, source] = Cost(len(some) - len(left), len(some), each, shared, unknown)
    return costs


def _key(config: Mapping[str, object]) -> str:
    """A key over a configuration without its seed and its length of training."""
    left_out = ("seed", *LENGTHS)
    return json.dumps({k: v for k, v in config.items() if k not in left_out}, sort_keys=True)


def _taken(
    config: Mapping[str, object], runs: Mapping[str, Sequence[tuple[Record, str]]]
) -> Taken | None:
    """The cost of a run, estimated from runs of its key; None without any."""
    found: defaultdict[str, list[tuple[Record, float]]] = defaultdict(list)
    for record, source in runs.get(_key(config), ()):
        ratio = _ratio(record.config, config)
        if ratio is not None:
            found[source if ratio == 1 else "scaled"].append((record, ratio))
    for source in SOURCES:
        if some := found.get(source):
            times = [seconds_alone(x.result, x.environment) * ratio for x, ratio in some]
            sizes = [record.result["peak_memory_bytes"] / 1e9 for record, _ in some]
            evaluations = [
                record.result["seconds"]
                for record, _ in some
                if SAVED in record.environment.get("facts", {})
            ]
            evaluation = statistics.median(evaluations) if evaluations else None
            return Taken(statistics.median(times), max(sizes), source, evaluation)
    return None


def _ratio(there: Mapping[str, object], here: Mapping[str, object]) -> float | None:
    """How many times as long ``here`` trains as ``there``; None where they are not comparable."""
    ratio = 1.0
    for name in LENGTHS:
        before, after = there.get(name), here.get(name)
        if before == after:
            continue
        if ratio != 1 or not isinstance(before, int) or not isinstance(after, int) or not before:
            return None
        ratio = after / before
    return ratio


def _like(others: Sequence[Taken], column: Column | None) -> Taken:
    """The cost of a row without known runs: as other rows of its column, or as that declares.

    A column declares what its rows train; of a row that trains nothing it is None.
    """
    if not others:
        if column is None:
            return Taken(0.0, 0.0, "unknown")
        return Taken(60 * column.minutes, column.gigabytes, "declared")
    # Not the lower of two: that may be a baseline that trains nothing.
    seconds = statistics.median_high(each.seconds for each in others)
    return Taken(seconds, max(each.gigabytes for each in others), "column")


def _shared(
    cells: Sequence[Cell], each: Taken, places: Places, counted: set[str]
) -> tuple[float, int]:
    """What cells, which differ only in their seed, save by sharing runs and encoders.

    What they run and train is added to ``counted``.

    Returns:
        Seconds; and how many of the cells only evaluate, for an unknown time.
    """
    shared, unknown = 0.0, 0
    stored = places.store.is_dir()
    whole = canonical(cells[0].config) if cells else {}
    part = pretraining_of(cells[0]) if cells else None
    kind = type(cells[0].config).__name__ if cells else ""
    for cell in cells:
        run = json.dumps([kind, whole | {"seed": cell.seed}], sort_keys=True)
        trained = None if part is None else {**part, "seed": cell.seed}
        encoder = json.dumps(trained, sort_keys=True)
        if run in counted:
            shared += each.seconds
        elif trained is not None and (
            encoder in counted or (stored and is_stored(places.store, trained))
        ):
            shared += each.seconds - (each.evaluation or 0.0)
            unknown += each.evaluation is None
        else:
            unknown += each.source == "unknown"
        counted |= {run, encoder}
    return shared, unknown


def _time(costs: Sequence[Cost]) -> str:
    """The time of all unfinished cells, one after the other."""
    if not any(cost.left for cost in costs):
        return "done"
    seconds = sum(cost.time for cost in costs)
    return duration(seconds) if seconds or not any(cost.unknown for cost in costs) else "unknown"


def _in_one_line(table: Table, costs: Sequence[Cost], jobs: int) -> str:
    """A table that would take very long: its time, and the source of most of that estimate."""
    done, seeds = (sum(getattr(cost, name) for cost in costs) for name in ("done", "seeds"))
    source = max(costs, key=lambda cost: cost.time).each.source
    return f"{table.address}: {done}/{seeds} cells done; left: {_times(costs, jobs)} ({source})"


def _times(costs: Sequence[Cost], jobs: int) -> str:
    """The time of all unfinished cells, of one core and as they run, and how many lack one."""
    seconds, unknown = sum(cost.time for cost in costs), sum(cost.unknown for cost in costs)
    parts = [f"about {duration(seconds)} of one core"] * bool(seconds or not unknown)
    parts += [f"{duration(side_by_side(costs, jobs))} at --jobs {jobs}"] * bool(
        seconds and jobs > 1
    )
    parts += [f"{number_of(unknown, 'evaluation')} not estimated"] * bool(unknown)
    return ", ".join(parts)


def side_by_side(costs: Iterable[Cost], jobs: int) -> float:
    """Seconds of all unfinished cells, so many at a time: no less than the longest takes alone."""
    times = [(cost.time, min(cost.time, cost.each.seconds)) for cost in costs]
    whole, longest = sum(each for each, _ in times), max((one for _, one in times), default=0.0)
    return max(whole / jobs, longest)


def _grids(labels: Sequence[str], lines: Mapping[str, Sequence[str]]) -> Iterator[Grid]:
    """The matrix, split by columns into grids that fit the width."""
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


def _summary(costs: Sequence[Cost], jobs: int) -> Iterator[str]:
    left = sum(cost.left for cost in costs)
    chosen = sum(cost.seeds for cost in costs)
    memory = max((cost.each.gigabytes for cost in costs if cost.left), default=0.0)
    yield (
        f"{left} of {chosen} cells to run: {_times(costs, jobs)}, "
        f"{memory * min(jobs, max(left, 1)):.1f} GB of memory, {max(1, left // 2)} MB of disk."
    )
    if saved := sum(cost.shared for cost in costs):
        yield f"Without sharing runs and encoders it would be {duration(saved)} of one core more."
    used = {cost.each.source for cost in costs}
    if known := "; ".join(words for name, words in SOURCES.items() if name in used - {"unknown"}):
        yield f"Time and memory: {known}."
