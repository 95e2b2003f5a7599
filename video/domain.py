"""The video domain as one object; heavy modules are imported by the functions that need them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.experiment.domain import Domain, EvaluationRequest, Experiment, Metrics, Scores
from shared.experiment.runs import Run
from video.config import Config
from video.tables import TABLES


def _measure(config: Config, run: Run) -> Metrics:
    from video import train

    return train.measure(config, run)


def _datasets() -> Sequence[str]:
    from video import data

    return tuple(data.DATASETS)


def _fetch(name: str, data_root: Path) -> str:
    from video import data

    return data.fetch(name, data_root)


def _figures() -> Mapping[str, Mapping[str, Any]]:
    from video import figures

    return figures.FIGURES


def _export(folder: Path, target: Path) -> Path:
    from video import export

    return export.write(folder, target)


def _score(asked: EvaluationRequest) -> Scores:
    from video import export

    return export.score(asked)


DOMAIN = Domain(
    name="video",
    tables=TABLES,
    experiments=(Experiment(Config, _measure, several=True),),
    datasets=_datasets,
    fetch=_fetch,
    figures=_figures,
    export=_export,
    score=_score,
    scored_by=("skip_damaged", "split"),
)
