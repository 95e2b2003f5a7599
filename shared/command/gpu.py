"""What a training step takes on a GPU: docs/expected.csv estimates it for each kind of row.

docs/measured.csv has what one GPU took for a step of four domains; the estimates of a domain are
scaled by what its step took over its estimate.
"""

import csv
import functools
import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.command.cells import imported, pretraining_of
from shared.experiment.config import Config
from shared.experiment.frame import Frame, load
from shared.experiment.tables import Cell, Table
from shared.objective import Objective
from shared.report.wording import counted

H100 = "h100"  # the one device with estimates
MEMORY = 80  # gigabytes of one
DOCS = Path(__file__).resolve().parents[2] / "docs"
EXPECTED, MEASURED = DOCS / "expected.csv", DOCS / "measured.csv"
# Fields of configurations that change the cost of a step; those that a domain lacks are omitted.
FIELDS = (
    *("method", "backbone", "stem", "image_size", "small_crops", "symmetric", "mixed"),
    *("encoder", "embedding", "hidden", "vocabulary", "bidirectional", "layers", "update"),
    *("contrastive", "crop", "filters", "clip_frames", "size", "width", "network", "chunk"),
    *("head_hidden", "precision"),
)
BY_DATA = ("graph",)  # domains whose batches are as large as the graphs of a data set


@dataclass(frozen=True)
class GpuStep:
    """A training step on an H100."""

    seconds: float
    gigabytes: float  # of the device's memory
    state: float = 0.0  # gigabytes of weights with their gradients and the optimiser's moments


def kind_of(domain: str, config: Config, *, batch: int | None = None) -> str:
    """What the cost of a step depends on, as text: configurations with equal text cost the same.

    ``batch`` replaces the configuration's.
    """
    fields = {name: getattr(config, name) for name in FIELDS if hasattr(config, name)}
    if domain in BY_DATA:
        fields["dataset"] = getattr(config, "dataset", None)
    objective = getattr(config, "objective", None)
    if isinstance(objective, Objective):
        loss = objective.loss
        solver = loss.kwargs.get("solver", "closed_form")
        fields["loss"] = f"max_margin {solver}" if loss.identity == "max_margin" else "softmax"
    fields["batch"] = getattr(config, "batch_size", 0) if batch is None else batch
    texts = (f"{name}={value}" for name, value in fields.items() if value not in (None, False, ()))
    return f"{domain} {type(config).__name__} {' '.join(texts)}"


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


def step_of(domain: str, config: Config) -> GpuStep | None:
    """The estimate of a configuration's step; None without one, and where nothing is trained."""
    return steps_by_kind().get(kind_of(domain, config)) if trains(config) else None


@dataclass(frozen=True)
class GpuCost:
    """What unfinished cells take on H100s; runs and encoders that they share are counted once."""

    hours: float = 0.0  # of one GPU, of training alone
    gigabytes: float = 0.0  # of its memory, at most
    missing: int = 0  # how many trainings have no estimate
    longest: float = 0.0  # hours of the longest training, on as many GPUs as its memory needs
    disk: float = 0.0  # gigabytes of models

    def __add__(self, other: "GpuCost") -> "GpuCost":
        return GpuCost(
            self.hours + other.hours,
            max(self.gigabytes, other.gigabytes),
            self.missing + other.missing,
            max(self.longest, other.longest),
            self.disk + other.disk,
        )

    def hours_on(self, gpus: int) -> float:
        """Hours until everything is trained, on ``gpus`` GPUs at a time."""
        return max(self.longest, self.hours / gpus)

    def __str__(self) -> str:
        """``about 12 GPU-hours of training, up to 31 GB of GPU memory``, or what is not known."""
        known = f"about {rounded(self.hours)} GPU-hours of training on H100s, "
        known += f"up to {math.ceil(self.gigabytes)} GB of GPU memory"
        known += " over several GPUs" * (self.gigabytes > MEMORY)
        if not self.missing:
            return known if self.hours else "no training on a GPU"
        if not self.hours:
            return "not estimated on a GPU"
        return f"{known}, and {counted(self.missing, 'training')} not estimated"


def cost_of(cells: Iterable[Cell]) -> GpuCost:
    """The cost of the trainings of cells."""
    return total(trainings(cells))


def total(costs: Mapping[str, GpuCost], priced: Container[str] = ()) -> GpuCost:
    """The cost of trainings, as :func:`trainings` gives them, without those already ``priced``."""
    return sum((cost for key, cost in costs.items() if key not in priced), GpuCost())


def trainings(cells: Iterable[Cell]) -> dict[str, GpuCost]:
    """The cost of each training of the cells, by a key that cells with the same training share."""
    costs: dict[str, GpuCost] = {}
    for cell in cells:
        if not trains(cell.config):
            continue
        count_steps = imported(cell.domain).experiment(cell.config).steps
        steps = None if count_steps is None else count_steps(cell.config)
        step = step_of(cell.domain, cell.config)
        if step is None or steps is None:
            cost = GpuCost(missing=1)
        else:
            hours = steps * step.seconds / 3600
            gpus = max(1, math.ceil(step.gigabytes / MEMORY))
            cost = GpuCost(hours, step.gigabytes, longest=hours / gpus, disk=step.state)
        pretraining = pretraining_of(cell)
        costs[json.dumps(pretraining, sort_keys=True) if pretraining else cell.key] = cost
    return costs


def cheapest_first(
    costs: Mapping[str, Mapping[str, GpuCost]],
) -> Iterator[tuple[str, GpuCost]]:
    """Names of what needs trainings, the cheapest next one first, and what it costs then.

    Trainings are shared, so each is priced after those before it; what is not estimated comes last.
    """
    waiting, priced = dict(costs), set[str]()
    while waiting:
        totals = {name: total(needed, priced) for name, needed in waiting.items()}
        cheapest = min(totals, key=lambda name: (totals[name].missing, totals[name].hours))
        yield cheapest, totals[cheapest]
        priced.update(waiting.pop(cheapest))


@dataclass(frozen=True)
class ClaimCost:
    """What it takes to decide a claim at the paper's setting."""

    claim: str  # its identifier
    tables: tuple[str, ...]  # those whose rows it compares, by domain, paper and name
    runs: int  # how many cells have neither a run here nor a record
    cost: GpuCost  # of them, apart from what claims before it train


def by_claim(
    tables: Sequence[Table], runs: Path, results: Path
) -> tuple[list[ClaimCost], list[str]]:
    """The claims that could be decided at the papers' setting, the cheapest next one first.

    Returns also the claims that are left out, since a training is not estimated.
    """
    cells_of = _cells_to_decide(tables, load(tables, runs=runs, results=results, tiers=("paper",)))
    costs_of = {claim: trainings(cells) for claim, cells in cells_of.items()}
    missing = [claim for claim, costs in costs_of.items() if total(costs).missing]
    estimated = {claim: costs for claim, costs in costs_of.items() if claim not in missing}
    priced = []
    for claim, cost in cheapest_first(estimated):
        cells = cells_of[claim]
        addresses = tuple(dict.fromkeys(cell.table_address for cell in cells))
        priced.append(ClaimCost(claim, addresses, len(cells), cost))
    return priced, missing


def _cells_to_decide(tables: Sequence[Table], frame: Frame) -> dict[str, list[Cell]]:
    """By claim, the cells not measured yet that it compares at the paper's setting, at least one.

    Claims of one seed, which decide nothing, are left out.
    """
    needed: dict[str, dict[str, Cell]] = {}  # by claim and address
    for table in tables:
        if len(table.seeds.get("paper", ())) < 2:
            continue
        open_cells = [
            line.cell for line in frame.of(table, "paper") if line.cell and not line.measurement
        ]
        for claim in table.claims:
            pairs = [pair for pair in claim.comparisons if "paper" in pair.tiers]
            for pair in pairs if not claim.additional else ():
                needed.setdefault(claim.id, {}).update(
                    (cell.address, cell)
                    for cell in open_cells
                    if cell.row in (pair.better, pair.than) and cell.column in pair.columns
                )
    return {claim: list(cells.values()) for claim, cells in needed.items() if cells}


def rounded(value: float) -> str:
    """Hours or gigabytes as text, with a digit after the point below ten."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


@functools.cache
def steps_by_kind() -> dict[str, GpuStep]:
    """The estimates of docs/expected.csv by kind, scaled by docs/measured.csv."""
    if not EXPECTED.is_file():  # without a checkout
        return {}
    with EXPECTED.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    seconds = measured()
    factors = {
        _domain(line): seconds[line["workload"]] / float(line["likely_seconds"])
        for line in lines
        if line["workload"] in seconds
    }
    return {
        line["kind"]: GpuStep(
            float(line["likely_seconds"]) * factors.get(_domain(line), 1.0),
            float(line["peak_bytes"]) / 1e9,
            float(line["state_bytes"]) / 1e9,
        )
        for line in lines
    }


def measured(*, graphs: bool = True) -> dict[str, float]:
    """The seconds of the steps that were measured on a GPU, by the name of the workload."""
    column = "seconds_with_graphs" if graphs else "seconds_without_graphs"
    with MEASURED.open(newline="") as stream:
        return {line["workload"]: float(line[column]) for line in csv.DictReader(stream)}


def _domain(line: Mapping[str, str]) -> str:
    return line["kind"].partition(" ")[0]
