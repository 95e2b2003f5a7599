"""What would run and what it would take: cells, their times, missing data; nothing is trained.

A plan is a table, or the lines of an array job: each the words of one call of the command line.
"""

import csv
import itertools
import json
import math
import shlex
import statistics
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from shared.command.cells import Chosen, Places, encoder_of, experiment_of, missing_data
from shared.command.progress import duration
from shared.errors import not_installed
from shared.experiment.config import Config
from shared.experiment.frame import Frame, finished, unfinished
from shared.experiment.records import ENCODER_PROCESSOR
from shared.experiment.tables import Cell, Table
from shared.objective import Objective
from shared.report.console import empty_grid, say, unbroken
from shared.report.wording import counted

# Sources of a time, the best first; ~ marks those that no run on this machine measured.
SOURCES = {
    "measured": "measured on this machine",
    "recorded": "~ from committed records of other machines",
    "column": "~ as other rows of the column took",
}
MEASURED = Path(__file__).resolve().parents[2] / "docs" / "measured.csv"
# Fields of configurations that change the time of a step; those that a domain lacks are omitted.
FIELDS = (
    *("method", "backbone", "stem", "image_size", "small_crops", "symmetric", "mixed"),
    *("encoder", "embedding", "hidden", "vocabulary", "bidirectional", "layers"),
    *("contrastive", "crop", "filters", "clip_frames", "size", "width", "network", "chunk"),
    *("head_hidden", "precision"),
)


@dataclass(frozen=True)
class Cost:
    """The cells of one row in one column, and the time of one."""

    done: int  # the number of chosen seeds that are finished
    seeds: int  # the number of chosen seeds
    runs: int = 0  # the number of unfinished runs that no other cell of the plan has already
    seconds: float | None = None  # of one run: the median of those known; None without any
    source: str = "unknown"  # of the time, a key of ``SOURCES``

    @property
    def left(self) -> int:
        """The number of unfinished cells."""
        return self.seeds - self.done

    @property
    def time(self) -> float:
        """Seconds of all unfinished runs whose time is known."""
        return self.runs * (self.seconds or 0.0)


Costs = dict[tuple[str, str], Cost]  # by row, and by the column or the run that columns share


def plan_table(
    table: Table,
    cells: Sequence[Cell],
    places: Places,
    frame: Frame,
    jobs: int,
    seen: set[str] | None = None,
    recorded: Collection[str] = (),
) -> RenderableType:
    """What is done, what is left and the time of one cell, row by row; then what is missing.

    ``recorded`` are the addresses of cells that need no run, since their records are committed.
    """
    costs = costs_of(table, cells, frame, seen, recorded)
    cells = [cell for cell in cells if cell.address not in recorded]
    grid = empty_grid(("method", "done", "left", "time of a cell", "time left"), left=("method",))
    for row in dict.fromkeys(row for row, _ in costs):
        grid.add_row(Text(row), *_columns([cost for (of, _), cost in costs.items() if of == row]))
    grid.add_section()
    grid.add_row("all", *_columns(list(costs.values())))
    parts: list[RenderableType] = [Text(f"{table.address}: {table.title}", style="bold"), grid]
    to_get: dict[str, None] = {}
    for cell in cells:
        lacking = [str(data) for data in missing_data(cell, places.data)]
        if not to_get.keys() >= {*lacking} and finished(cell, places.runs) is None:
            to_get |= dict.fromkeys(lacking)
    parts += [unbroken(f"Data to get first: {data}") for data in to_get]
    parts += [Text(line) for line in _notes(costs, cells, places, jobs)]
    return Group(*parts)


def costs_of(
    table: Table,
    cells: Sequence[Cell],
    frame: Frame,
    seen: set[str] | None = None,
    recorded: Collection[str] = (),
) -> Costs:
    """The cost of each row in each column; ``frame`` has the table's runs and records.

    The time is the median of runs of an equal configuration with any seed, on this machine or else
    among the committed records that no accelerator made; else that of the column's other rows. A
    run that found its encoder in the store counts as it took. Runs whose keys are in ``seen``, of
    other tables of the plan, cost nothing more; those of these cells are added.
    """
    cells = tuple({cell.address: cell for cell in cells}.values())
    seen = set() if seen is None else seen
    tier = cells[0].tier
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    done = set(recorded)
    for line in (line for name in table.tiers for line in frame.of(table, name)):
        if line.record is None or line.source is None:
            continue
        here, environment = line.source.origin == "run", line.record.environment
        if here and line.tier == tier and line.measurement:
            done.add(line.record.address)
        facts, hardware = environment.get("facts", {}), environment["hardware"]
        # An accelerator, also of another run that trained the encoder, tells nothing about a core.
        if here or not (ENCODER_PROCESSOR in facts or hardware.get("accelerators")):
            source = "measured" if here else "recorded"
            taken = line.record.result["seconds"]
            seconds[_without_seed(line.record.config), source].append(taken)
    known: dict[tuple[str, str], tuple[float, str]] = {}
    trained: dict[tuple[str, str], bool] = {}
    for cell in (*cells, *table.cells(tier)):
        pair = (cell.row, cell.run_name)
        trained.setdefault(pair, trains(cell.config))
        for source in ("measured", "recorded"):
            taken = seconds.get((_without_seed(cell.content), source))
            if pair not in known and taken:
                known[pair] = statistics.median(taken), source
    costs: Costs = {}
    time: tuple[float | None, str]
    for pair in dict.fromkeys((cell.row, cell.run_name) for cell in cells):
        of_pair = [cell for cell in cells if (cell.row, cell.run_name) == pair]
        left = {cell.key for cell in of_pair if cell.address not in done} - seen
        seen |= left
        # Rows that train tell nothing of those that do not.
        others = [
            known[other][0]
            for other in known
            if other[1] == pair[1] and trained[other] == trained[pair]
        ]
        if pair in known:
            time = known[pair]
        else:
            time = (statistics.median_high(others), "column") if others else (None, "unknown")
        finished_here = sum(cell.address in done for cell in of_pair)
        costs[pair] = Cost(finished_here, len(of_pair), len(left), *time)
    return costs


def trains(config: Config) -> bool:
    """Whether a run of the configuration trains a network, and is no toy."""
    return (
        getattr(config, "batch_size", None) is not None
        and isinstance(getattr(config, "objective", None), Objective)
        and getattr(config, "weights", None) is None
        and getattr(config, "features", "encoder") == "encoder"
        and getattr(config, "train", True) is not False
        and getattr(config, "epochs", 1) != 0
        and type(config).__name__ == "Config"  # those of toys and probes have other names
    )


def kind_of(domain: str, config: Config) -> str:
    """What the time of a training step depends on, as text."""
    fields = {name: getattr(config, name, None) for name in FIELDS}
    if domain == "graph":  # whose batches are as large as the graphs of a data set
        fields["dataset"] = getattr(config, "dataset", None)
    objective = getattr(config, "objective", None)
    if isinstance(objective, Objective):
        loss = objective.loss
        solver = loss.kwargs.get("solver", "closed_form")
        fields["loss"] = f"max_margin {solver}" if loss.identity == "max_margin" else "softmax"
        fields["penalties"] = ",".join(term.identity for term in objective.penalties)
        fields["projection"] = objective.projection and dict(objective.projection.kwargs)
    fields["batch"] = getattr(config, "batch_size", 0)
    used = {name: value for name, value in fields.items() if value not in (None, False, (), "")}
    texts = (f"{name}={value}" for name, value in used.items())
    return f"{domain} {type(config).__name__} {' '.join(texts)}"


def on_gpu(cells: Iterable[Cell]) -> str | None:
    """The hours of trainings whose kind of step was measured on a GPU, as text; None without any.

    docs/measured.csv has what one GPU took for a step of four kinds.
    """
    if not MEASURED.is_file():  # without a checkout
        return None
    with MEASURED.open(newline="") as stream:
        lines = {line["kind"]: line for line in csv.DictReader(stream)}
    hours: defaultdict[str, float] = defaultdict(float)
    number = 0
    for cell in {cell.key: cell for cell in cells}.values():
        steps, line = steps_of(cell), lines.get(kind_of(cell.domain, cell.config))
        if steps and line:
            number += 1
            hours[line["device"]] += steps * float(line["seconds_with_graphs"]) / 3600
    text = ", ".join(f"{value:.1f} hours on an {device}" for device, value in hours.items())
    return f"training of {counted(number, 'cell')} takes about {text}" if number else None


def steps_of(cell: Cell) -> int | None:
    """The training steps of a cell; None where it trains nothing, or no one can tell."""
    steps = experiment_of(cell).steps
    return steps(cell.config) if steps and trains(cell.config) else None


def _without_seed(config: Mapping[str, object]) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "seed"}, sort_keys=True)


def _columns(costs: Sequence[Cost]) -> tuple[str, str, str, str]:
    """Cells done and left, the time of one of them, and of all that are left."""
    left = [cost for cost in costs if cost.left]
    known = [cost for cost in left if cost.seconds is not None]
    times = sorted({(cost.seconds or 0.0, cost.source != "measured") for cost in known})
    of_one = [f"{'~' * about}{duration(seconds)}" for seconds, about in (times[:1] + times[-1:])]
    parts = [" to ".join(dict.fromkeys(of_one))] if of_one else []
    parts += ["unknown"] if len(known) < len(left) else []
    total = sum(cost.time for cost in left)
    time_left = duration(total) if known else "unknown"
    return (
        f"{sum(cost.done for cost in costs)}/{sum(cost.seeds for cost in costs)}",
        f"{sum(cost.left for cost in costs)}",
        ", ".join(parts),
        (time_left + " or more" * (len(known) < len(left) and bool(known))) if left else "done",
    )


def _notes(costs: Costs, cells: Sequence[Cell], places: Places, jobs: int) -> Iterator[str]:
    """The time of all, its sources, the hours on a GPU, and how to time what was never timed."""
    waiting = {pair: cost for pair, cost in costs.items() if cost.runs}
    known = [cost for cost in waiting.values() if cost.seconds is not None]
    left, chosen = sum(cost.left for cost in costs.values()), sum(c.seeds for c in costs.values())
    text = f"{left} of {chosen} cells to run"
    if known:
        whole, slowest = sum(cost.time for cost in known), max(cost.seconds or 0 for cost in known)
        at_once = f", {duration(max(whole / jobs, slowest))} at --jobs {jobs}" * (jobs > 1)
        about = "about" if len(known) == len(waiting) else "at least"
        text += f": {about} {duration(whole)} of one core{at_once}"
        used = [SOURCES[name] for name in SOURCES if any(cost.source == name for cost in known)]
        text += f". Times: {'; '.join(used)}"
    yield f"{text}."
    by_run = Counter[str]()
    for (_, run), cost in costs.items():
        by_run[run] += cost.left
    if left and not all(by_run.values()):
        yield f"Left in {', '.join(f'{run} ({n})' for run, n in by_run.items() if n)}."
    to_run = [cell for cell in cells if (cell.row, cell.run_name) in waiting]
    if hours := on_gpu(cell for cell in to_run if finished(cell, places.runs) is None):
        yield f"On a GPU the {hours}."
    unknown = [cell for cell in to_run if waiting[cell.row, cell.run_name].seconds is None]
    if unknown:
        longest = max(unknown, key=lambda cell: steps_of(cell) or 0)
        steps, batch = steps_of(longest), getattr(longest.config, "batch_size", 0)
        size = f" a cell has up to {steps:,} steps of {batch:,};" if steps else ""
        first = unknown[0]
        column = "" if first.run else f" --column {first.column!r}"
        yield (
            f"Never timed here:{size} run one with --seeds {first.seed}{column}, then plan again."
        )


def lines_of(
    chosen: Sequence[Chosen], places: Places, options: Namespace, console: Console
) -> list[str]:
    """The lines of a plan, at most ``options.cells``: cells of one encoder are on one line."""
    by_encoder: dict[str, list[str]] = {}
    for cell in _runnable(chosen, places, console):
        by_encoder.setdefault(encoder_of(cell) or cell.key, []).append(cell.address)
    tasks = _joined(list(by_encoder.values()), options.cells)
    return [shlex.join(["--cell", *addresses]) for addresses in tasks]


def lines_of_comparison(
    chosen: Sequence[Chosen], places: Places, options: Namespace, console: Console
) -> list[str]:
    """The lines of a comparison: each has all rows, in one column, of some seeds."""
    seeds_of: dict[str, dict[str, None]] = {}  # by column
    for cell in _runnable(chosen, places, console):
        seeds_of.setdefault(cell.column, {})[str(cell.seed)] = None
    words = ["compare", *options.words, "--tier", options.tier]
    given = [("--row", ":".join([row, *settings])) for row, settings in options.row]
    given += [("--records", str(folder)) for folder in options.records]
    given += [("--set", setting) for setting in options.set]
    given += [("--with", ",".join([f"{file}:{name}", *rest])) for file, name, rest in options.loss]
    given += [("--rows", ",".join(options.rows))] if options.rows else []
    for name in ("table", "against", "data"):
        given += [(f"--{name}", str(value))] if (value := getattr(options, name)) else []
    words += itertools.chain(*given)
    room = max(1, options.cells // max(1, len(seeds_of)))  # lines of a column
    return [
        shlex.join([*words, "--column", column, "--seeds", ",".join(some)])
        for column, seeds in seeds_of.items()
        for some in _joined([[seed] for seed in seeds], room)
    ]


def _runnable(chosen: Sequence[Chosen], places: Places, console: Console) -> Iterator[Cell]:
    """The unfinished cells whose data and extra are here; says which others are left out."""
    cells = {cell.key: cell for selected in chosen for cell in selected.cells}
    left_out = Counter[str]()
    for cell in unfinished(cells.values(), places.runs):
        lacks = [data.remedy for data in missing_data(cell, places.data)]
        lacks += [f"{name} is not installed" for name in not_installed(cell.domain)]
        if lacks:
            left_out["; ".join(lacks)] += 1
        else:
            yield cell
    for why, number in left_out.items():
        say(console, f"{counted(number, 'cell')} left out: {why}")


def _joined(groups: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """The groups, with neighbours joined so that there are at most ``most``."""
    size = math.ceil(len(groups) / most) or 1
    return [
        [item for group in groups[start : start + size] for item in group]
        for start in range(0, len(groups), size)
    ]
