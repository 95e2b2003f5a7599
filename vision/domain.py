"""The vision domain as one object; heavy modules are imported by the functions that need them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.experiment.data import MissingData
from shared.experiment.domain import Domain, EvaluationRequest, Experiment, Metrics, Scores
from shared.experiment.runs import Run
from shared.experiment.store import part_of
from vision.config import PRETRAINING, Config, ToyConfig
from vision.tables import TABLES


def _measure(config: Config, run: Run) -> Metrics:
    from vision import train

    return train.measure(config, run)


def _measure_toy(config: ToyConfig, run: Run) -> Metrics:
    from vision import toy

    return toy.measure(config, run)


def _part(config: Config) -> Mapping[str, Any] | None:
    if config.weights is not None or config.features != "encoder":
        return None
    return part_of(config, PRETRAINING)


def _missing(config: Config, data_root: Path) -> list[MissingData]:
    from vision import checkpoints, data

    names = [config.evaluate_on or config.dataset]
    if config.weights is None:
        return data.missing(dict.fromkeys([config.dataset, *names]), data_root)
    return [*checkpoints.missing(config.weights, data_root), *data.missing(names, data_root)]


def _datasets() -> Sequence[str]:
    from vision import data

    return tuple(data.DATASETS)


def _fetch(name: str, data_root: Path) -> None:
    from vision import checkpoints, data

    (checkpoints if name in checkpoints.CHECKPOINTS else data).fetch(name, data_root)


def _prepare(name: str, data_root: Path, side: int) -> None:
    from vision import data

    data.prepare(name, data_root, side)


def _figures() -> Mapping[str, Mapping[str, Any]]:
    from vision import figures

    return figures.FIGURES


def _export(folder: Path, target: Path) -> Path:
    from vision import export

    return export.write(folder, target)


def _score(asked: EvaluationRequest) -> Scores:
    from vision import foreign

    return foreign.score(asked)


DOMAIN = Domain(
    name="vision",
    tables=TABLES,
    experiments=(
        Experiment(Config, _measure, _missing, several=True, pretraining=_part),
        Experiment(ToyConfig, _measure_toy),
    ),
    datasets=_datasets,
    fetch=_fetch,
    prepare=_prepare,
    figures=_figures,
    export=_export,
    score=_score,
    scored_by=("backbone", "stem", "prefix", "size", "statistics", "skip_damaged"),
)
