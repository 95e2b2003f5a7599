"""What would run, and the time, memory and disk that it would take; nothing is trained.

Times are those of one core, unless stated otherwise.
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

from shared.command.cells import Places, imported, pretraining_of
from shared.command.gpu import trains
from shared.command.progress import duration
from shared.experiment.config import canonical
from shared.experiment.data import MissingData
from shared.experiment.frame import finished, load
from shared.experiment.records import ENCODER_PROCESSOR, Record
from shared.experiment.store import SAVED, is_stored, seconds_alone
from shared.experiment.tables import Cell, Column, Table, Tier
from shared.report.console import blocks, unbroken
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
class RunCost:
    """The measured or estimated cost of one run."""

    seconds: float  # time of one run, including the training of its encoder
    gigabytes: float  # peak memory
    source: str  # of both, a key of ``SOURCES``
    # Seconds of a run that found its encoder in the store; None if unknown.
    evaluation: float | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of one row in one column."""

    done: int  # the number of chosen seeds that are finished
    seeds: int  # the number of chosen seeds
    run: RunCost  # of one cell
    # Seconds that unfinished cells save by sharing runs and encoders with others.
    shared: float = 0.0
    unknown: int = 0  # how many unfinished cells only evaluate, which has never been timed

    @property
    def left(self) -> int:
        """The number of unfinished cells."""
        return self.seeds - self.done

    @property
    def time(self) -> float:
        """Seconds of all unfinished cells."""
        return max(0.0, self.left * self.run.seconds - self.shared)

    def shown(self) -> str:
        """``2/5 48 s``: finished and chosen seeds, and the time of an unfinished one."""
        counts = f"{self.done}/{self.seeds}"
        if not self.left:
            return counts
        if self.run.source == "unknown":
            return f"{counts} unknown"
        about = "~" if SOURCES[self.run.source].startswith("~") else ""
        return f"{counts} {about}{duration(self.run.seconds)}"


Costs = dict[tuple[str, str], Cost]  # by row, and by the column or the run that columns share


def planned(
    table: Table,
    cells: tuple[Cell, ...],
    places: Places,
    jobs: int,
    counted: set[str] | None = None,
) -> RenderableType:
    """What is done, and what the rest will take, in rows and columns of 80 characters.

    A table that would take more than a hundred days is one line. For ``counted`` see
    :func:`costs_of`.
    """
    costs = costs_of(table, cells, places, counted)
    if sum(cost.time for cost in costs.values()) >= LONG:
        return Text(_line_of_long_table(table, list(costs.values()), jobs))
    rows, columns = (list(dict.fromkeys(pair[i] for pair in costs)) for i in (0, 1))
    lines: dict[str, list[str]] = {}
    for column in columns:
        of_column = {row: cost for (row, name), cost in costs.items() if name == column}
        lines[column] = [of_column[row].shown() if row in of_column else "" for row in rows]
        biggest = max(cost.run.gigabytes for cost in of_column.values())
        lines[column] += [_time_text([*of_column.values()]), f"{biggest:.1f} GB" if biggest else ""]
    times = [_time_text([cost for (name, _), cost in costs.items() if name == row]) for row in rows]
    lines["time left"] = [*times, _time_text(list(costs.values())), ""]
    parts: list[RenderableType] = [Text(f"{table.address}: {table.title}", style="bold")]
    parts += _grids([*rows, "time left", "memory of one"], lines)
    parts += [unbroken(f"Data to get first: {data}") for data in missing_data(cells, places)]
    parts.append(Text(" ".join(_summary(list(costs.values()), jobs))))
    return Group(*parts)


def missing_data(cells: Sequence[Cell], places: Places) -> list[MissingData]:
    """The datasets that unfinished cells need and that are missing."""
    by_text: dict[str, MissingData] = {}
    for cell in cells:
        missing = imported(cell.domain).experiment(cell.config).missing
        if missing is None:
            continue
        of_cell = {str(data): data for data in missing(cell.config, places.data)}
        if not by_text.keys() >= of_cell.keys() and finished(cell, places.runs) is None:
            by_text.update(of_cell)
    return list(by_text.values())


def costs_of(
    table: Table, cells: Sequence[Cell], places: Places, counted: set[str] | None = None
) -> Costs:
    """The estimated cost of each row in each column.

    The best source is a run of an equal configuration with any seed, on this machine or else among
    the committed records that no accelerator made. Next are runs that differ only in the length of
    training, scaled by it; then the other rows of the column; last, what the column declares.

    What cells run and train is added to ``counted``; what is in it already, of other tables of one
    plan, costs nothing more.
    """
    cells = tuple({cell.address: cell for cell in cells}.values())
    counted = set() if counted is None else counted
    tier = cells[0].tier
    tiers: Sequence[Tier] = [t for t in table.tiers if (t == "smoke") == (tier == "smoke")]
    results = None if tier == "smoke" else places.results
    frame = load([table], runs=places.runs, results=results, tiers=tiers, also=cells)
    runs: defaultdict[str, list[tuple[Record, str]]] = defaultdict(list)
    done: set[str] = set()
    for line in frame:
        if line.record is None or line.source is None:
            continue
        measured_here = line.source.origin == "run"
        if not measured_here and _on_accelerator(line.record):
            continue  # tells nothing about a core
        source = "measured" if measured_here else "recorded"
        runs[_training_key(line.record.config)].append((line.record, source))
        if measured_here and line.tier == tier and line.measurement:
            done.add(line.record.address)
    # By row and run of a column, of the chosen cells first; None where no run is known.
    estimates: dict[tuple[str, str], RunCost | None] = {}
    trained: dict[tuple[str, str], bool] = {}
    for cell in (*cells, *table.cells(tier)):
        pair = (cell.row, cell.source)
        if pair not in estimates:
            estimates[pair] = _estimate(canonical(cell.config), runs)
            trained[pair] = trains(cell.config)
    costs: Costs = {}
    for row, run in dict.fromkeys((cell.row, cell.source) for cell in cells):
        of_pair = [cell for cell in cells if (cell.row, cell.source) == (row, run)]
        # Those of the column's rows that train if this one does, else of those that do not.
        alike = {
            pair: estimate
            for pair, estimate in estimates.items()
            if estimate and pair[1] == run and trained[pair] == trained[row, run]
        }
        # The chosen rows may train for another length than the declared ones.
        chosen = [
            alike[cell.row, run]
            for cell in cells
            if cell.source == run and (cell.row, run) in alike
        ]
        others_train = any(trained[pair] for pair in trained if pair[1] == run)
        only_evaluated = others_train and not trained[row, run]
        column = None if only_evaluated else table.column_of(tier, of_pair[0].column)
        cost = estimates[row, run] or _cost_from_column(chosen or list(alike.values()), column)
        left = [cell for cell in of_pair if cell.address not in done]
        shared, unknown = _savings(left, cost, places, counted)
        costs[row, run] = Cost(len(of_pair) - len(left), len(of_pair), cost, shared, unknown)
    return costs


def _on_accelerator(record: Record) -> bool:
    """Whether a run computed on an accelerator, or may have an encoder that another run did."""
    environment = record.environment
    in_part = ENCODER_PROCESSOR in environment.get("facts", {})
    return in_part or bool(environment["hardware"].get("accelerators"))


def _training_key(config: Mapping[str, object]) -> str:
    """A key over a configuration without its seed and its length of training."""
    left_out = ("seed", *LENGTHS)
    return json.dumps({k: v for k, v in config.items() if k not in left_out}, sort_keys=True)


def _estimate(
    config: Mapping[str, object], runs: Mapping[str, Sequence[tuple[Record, str]]]
) -> RunCost | None:
    """The cost of a run, estimated from runs of its key; None without any."""
    by_source: defaultdict[str, list[tuple[Record, float]]] = defaultdict(list)
    for record, source in runs.get(_training_key(config), ()):
        ratio = _length_ratio(record.config, config)
        if ratio is not None:
            by_source[source if ratio == 1 else "scaled"].append((record, ratio))
    for source in SOURCES:
        if known := by_source.get(source):
            times = [seconds_alone(x.result, x.environment) * ratio for x, ratio in known]
            sizes = [record.result["peak_memory_bytes"] / 1e9 for record, _ in known]
            evaluations = [
                record.result["seconds"]
                for record, _ in known
                if SAVED in record.environment.get("facts", {})
            ]
            evaluation = statistics.median(evaluations) if evaluations else None
            return RunCost(statistics.median(times), max(sizes), source, evaluation)
    return None


def _length_ratio(known: Mapping[str, object], wanted: Mapping[str, object]) -> float | None:
    """How many times as long ``wanted`` trains as ``known``; None if they are not comparable."""
    ratio = 1.0
    for name in LENGTHS:
        before, after = known.get(name), wanted.get(name)
        if before == after:
            continue
        if ratio != 1 or not isinstance(before, int) or not isinstance(after, int) or not before:
            return None
        ratio = after / before
    return ratio


def _cost_from_column(rows: Sequence[RunCost], column: Column | None) -> RunCost:
    """The cost of a row without known runs: as other rows of its column, or as that declares.

    A column declares what its rows train; of a row that trains nothing it is None.
    """
    if not rows:
        if column is None:
            return RunCost(0.0, 0.0, "unknown")
        return RunCost(60 * column.minutes, column.gigabytes, "declared")
    # Not the lower of two: that may be a baseline that trains nothing.
    seconds = statistics.median_high(row.seconds for row in rows)
    return RunCost(seconds, max(row.gigabytes for row in rows), "column")


def _savings(
    cells: Sequence[Cell], cost: RunCost, places: Places, counted: set[str]
) -> tuple[float, int]:
    """Seconds that cells, which differ only in their seed, save by sharing runs and encoders.

    What they run and train is added to ``counted``. Returns also how many of the cells only
    evaluate, for an unknown time.
    """
    shared, unknown = 0.0, 0
    stored = places.store.is_dir()
    config = canonical(cells[0].config) if cells else {}
    pretraining = pretraining_of(cells[0]) if cells else None
    config_type = type(cells[0].config).__name__ if cells else ""
    for cell in cells:
        run = json.dumps([config_type, config | {"seed": cell.seed}], sort_keys=True)
        trained = None if pretraining is None else {**pretraining, "seed": cell.seed}
        encoder = json.dumps(trained, sort_keys=True)
        if run in counted:
            shared += cost.seconds
        elif trained is not None and (
            encoder in counted or (stored and is_stored(places.store, trained))
        ):
            shared += cost.seconds - (cost.evaluation or 0.0)
            unknown += cost.evaluation is None
        else:
            unknown += cost.source == "unknown"
        counted |= {run, encoder}
    return shared, unknown


def _time_text(costs: Sequence[Cost]) -> str:
    """The time of all unfinished cells, one after the other."""
    if not any(cost.left for cost in costs):
        return "done"
    seconds = sum(cost.time for cost in costs)
    return duration(seconds) if seconds or not any(cost.unknown for cost in costs) else "unknown"


def _line_of_long_table(table: Table, costs: Sequence[Cost], jobs: int) -> str:
    """A table that would take very long: its time, and the source of most of that estimate."""
    done, seeds = (sum(getattr(cost, name) for cost in costs) for name in ("done", "seeds"))
    source = max(costs, key=lambda cost: cost.time).run.source
    return (
        f"{table.address}: {done}/{seeds} cells done; left: {_times_text(costs, jobs)} ({source})"
    )


def _times_text(costs: Sequence[Cost], jobs: int) -> str:
    """The time of all unfinished cells, of one core and as they run, and how many lack one."""
    seconds, unknown = sum(cost.time for cost in costs), sum(cost.unknown for cost in costs)
    parts = [f"about {duration(seconds)} of one core"] * bool(seconds or not unknown)
    parts += [f"{duration(side_by_side(costs, jobs))} at --jobs {jobs}"] * bool(
        seconds and jobs > 1
    )
    parts += [f"{number_of(unknown, 'evaluation')} not estimated"] * bool(unknown)
    return ", ".join(parts)


def side_by_side(costs: Iterable[Cost], jobs: int) -> float:
    """Seconds of all unfinished cells, ``jobs`` at a time; at least those of the longest run."""
    times = [(cost.time, min(cost.time, cost.run.seconds)) for cost in costs]
    total, longest = sum(time for time, _ in times), max((run for _, run in times), default=0.0)
    return max(total / jobs, longest)


def _grids(labels: Sequence[str], lines: Mapping[str, Sequence[str]]) -> Iterator[Grid]:
    """The matrix, split by columns into grids that fit the width."""
    first = min(LABEL, max(map(len, labels)))
    columns = [(textwrap.wrap(heading, HEADING), texts) for heading, texts in lines.items()]
    widths = [max(map(len, (*heading, *texts))) for heading, texts in columns]
    for block in blocks(widths, WIDTH - first - 3):  # 2 after the first, 1 of both edges
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        grid.add_column("method", width=first, overflow="fold")
        for heading, _ in columns[block]:
            grid.add_column(Text("\n".join(heading)), justify="right", no_wrap=True)
        for number, label in enumerate(labels):
            if number == len(labels) - 2:
                grid.add_section()
            grid.add_row(Text(label), *(texts[number] for _, texts in columns[block]))
        yield grid


def _summary(costs: Sequence[Cost], jobs: int) -> Iterator[str]:
    left = sum(cost.left for cost in costs)
    chosen = sum(cost.seeds for cost in costs)
    memory = max((cost.run.gigabytes for cost in costs if cost.left), default=0.0)
    yield (
        f"{left} of {chosen} cells to run: {_times_text(costs, jobs)}, "
        f"{memory * min(jobs, max(left, 1)):.1f} GB of memory, {max(1, left // 2)} MB of disk."
    )
    if saved := sum(cost.shared for cost in costs):
        yield f"Without sharing runs and encoders it would be {duration(saved)} of one core more."
    used = {cost.run.source for cost in costs}
    if known := "; ".join(words for name, words in SOURCES.items() if name in used - {"unknown"}):
        yield f"Time and memory: {known}."
