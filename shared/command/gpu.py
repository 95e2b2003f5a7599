"""What a training step takes on a GPU, as docs/expected.csv estimates it; none has measured it."""

import csv
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shared.command.cells import imported
from shared.experiment.config import Config, canonical_json
from shared.experiment.tables import Cell
from shared.losses import max_margin
from shared.objective import Objective
from shared.report.wording import counted

H100 = "h100"  # the one device with estimates
TABLE = Path(__file__).resolve().parents[2] / "docs" / "expected.csv"
# Fields of configurations that change what a step takes; those that a domain has not are left out.
FIELDS = (
    *("method", "backbone", "stem", "image_size", "small_crops", "symmetric", "mixed"),
    *("encoder", "embedding", "hidden", "vocabulary", "bidirectional", "layers", "update"),
    *("contrastive", "crop", "filters", "clip_frames", "size", "width", "network", "chunk"),
    *("head_hidden", "precision"),
)
BY_DATA = ("graph",)  # domains whose batches are as large as the graphs of a data set


@dataclass(frozen=True)
class GpuStep:
    """A training step on an H100.

    Args:
        seconds: of the step.
        gigabytes: of the device's memory.
    """

    seconds: float
    gigabytes: float


def kind_of(domain: str, config: Config, *, batch: int | None = None) -> str:
    """What a step of a configuration costs is a function of, as text.

    Args:
        domain: its name.
        config: of the run.
        batch: in place of the configuration's.
    """
    named = {name: getattr(config, name) for name in FIELDS if hasattr(config, name)}
    if domain in BY_DATA:
        named["dataset"] = getattr(config, "dataset", None)
    objective = getattr(config, "objective", None)
    if isinstance(objective, Objective):
        loss = objective.loss
        solver = loss.numbers.get("solver", "closed_form")
        named["loss"] = f"max_margin {solver}" if loss.function is max_margin else "softmax"
    named["batch"] = getattr(config, "batch_size", 0) if batch is None else batch
    values = (f"{name}={value}" for name, value in named.items() if value not in (None, False, ()))
    return f"{domain} {type(config).__name__} {' '.join(values)}"


def trains(config: Config) -> bool:
    """Whether a run of the configuration trains a network, and is no toy."""
    return (
        getattr(config, "batch_size", None) is not None
        and isinstance(getattr(config, "objective", None), Objective)
        and getattr(config, "weights", None) is None
        and getattr(config, "features", "encoder") == "encoder"
        and getattr(config, "train", True) is not False
        and getattr(config, "epochs", 1) != 0
        and type(config).__name__ == "Config"
    )


def step_of(domain: str, config: Config) -> GpuStep | None:
    """The estimate of a configuration's step; None without one, and where nothing is trained."""
    return _lines().get(kind_of(domain, config)) if trains(config) else None


@dataclass(frozen=True)
class GpuCost:
    """What unfinished cells take on H100s; runs and encoders that they share are counted once.

    Args:
        hours: of one GPU, of training alone.
        gigabytes: of its memory, at most.
        missing: how many trainings have no estimate.
    """

    hours: float = 0.0
    gigabytes: float = 0.0
    missing: int = 0

    def __add__(self, other: "GpuCost") -> "GpuCost":
        return GpuCost(
            self.hours + other.hours,
            max(self.gigabytes, other.gigabytes),
            self.missing + other.missing,
        )

    def __str__(self) -> str:
        """``about 12 GPU-hours of training, up to 31 GB of GPU memory``, or what is not known."""
        known = f"about {_number(self.hours)} GPU-hours of training on H100s, "
        known += f"up to {math.ceil(self.gigabytes)} GB of GPU memory"
        if not self.missing:
            return known if self.hours else "no training on a GPU"
        if not self.hours:
            return "not estimated on a GPU"
        return f"{known}, and {counted(self.missing, 'training')} not estimated"


def cost_of(cells: Iterable[Cell], known: set[str]) -> GpuCost:
    """The cost of the trainings of cells, apart from those in ``known``, to which it adds them."""
    cost = GpuCost()
    for cell in cells:
        domain = imported(cell.domain)
        experiment = domain.experiment(cell.config)
        part = experiment.pretraining and experiment.pretraining(cell.config)
        key = canonical_json(part or cell.config)
        if key in known or not trains(cell.config):
            continue
        known.add(key)
        step = step_of(cell.domain, cell.config)
        steps = experiment.steps and experiment.steps(cell.config)
        if step is None or steps is None:
            cost += GpuCost(missing=1)
        else:
            cost += GpuCost(steps * step.seconds / 3600, step.gigabytes)
    return cost


def _number(hours: float) -> str:
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


@functools.cache
def _lines() -> dict[str, GpuStep]:
    if not TABLE.is_file():  # without a checkout
        return {}
    with TABLE.open(newline="") as stream:
        return {
            line["kind"]: GpuStep(float(line["likely_seconds"]), float(line["peak_bytes"]) / 1e9)
            for line in csv.DictReader(stream)
        }
