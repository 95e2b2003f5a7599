"""The text domain as one object; heavy modules are imported by the functions that need them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.experiment.domain import Domain, EvaluationRequest, Experiment, Metrics, Scores
from shared.experiment.runs import Run
from text.config import Config
from text.tables import TABLES


def _measure(config: Config, run: Run) -> Metrics:
    from text import train

    return train.measure(config, run)


def _datasets() -> Sequence[str]:
    from text import data

    return tuple(data.DATASETS)


def _fetch(name: str, data_root: Path) -> None:
    from text import data

    data.fetch(name, data_root)


def _figures() -> Mapping[str, Mapping[str, Any]]:
    from text import figures

    return figures.FIGURES


def _export(folder: Path, target: Path) -> Path:
    from text import export

    return export.write(folder, target)


def _score(asked: EvaluationRequest) -> Scores:
    from text import export

    return export.score(asked)


DOMAIN = Domain(
    name="text",
    tables=TABLES,
    experiments=(Experiment(Config, _measure, several=True),),
    datasets=_datasets,
    fetch=_fetch,
    figures=_figures,
    export=_export,
    score=_score,
)
