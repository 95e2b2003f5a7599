"""What a training step takes on a GPU, as docs/expected.csv estimates it; none has measured it."""

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from shared.experiment.config import Config
from shared.losses import max_margin
from shared.objective import Objective

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


@functools.cache
def _lines() -> dict[str, GpuStep]:
    if not TABLE.is_file():  # without a checkout
        return {}
    with TABLE.open(newline="") as stream:
        return {
            line["kind"]: GpuStep(float(line["likely_seconds"]), float(line["peak_bytes"]) / 1e9)
            for line in csv.DictReader(stream)
        }
