"""The graph domain as one object; heavy modules are imported by the functions that need them."""

from collections.abc import Sequence
from pathlib import Path

from graph.config import Config
from graph.tables import TABLES
from shared.experiment.domain import Domain, EvaluationRequest, Experiment, Metrics, Scores
from shared.experiment.runs import Run


def _measure(config: Config, run: Run) -> Metrics:
    from graph import train

    return train.measure(config, run)


def _datasets() -> Sequence[str]:
    from graph import data

    return tuple(data.DATASETS)


def _fetch(name: str, data_root: Path) -> None:
    from graph import data

    data.fetch(name, data_root)


def _export(folder: Path, target: Path) -> Path:
    from graph import export

    return export.write(folder, target)


def _score(asked: EvaluationRequest) -> Scores:
    from graph import export

    return export.score(asked)


DOMAIN = Domain(
    name="graph",
    tables=TABLES,
    experiments=(Experiment(Config, _measure, several=True),),
    datasets=_datasets,
    fetch=_fetch,
    export=_export,
    score=_score,
)
