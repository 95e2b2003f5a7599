"""The video domain as one object; what is heavy is imported by the functions that need it."""

from collections.abc import Sequence
from pathlib import Path

from shared.experiment.domain import Asked, Domain, Experiment, Metrics, Scores
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


def _figures(
    paper: str, runs: Path, results: Path, *, data_root: Path, to: Path | None = None
) -> list[Path]:
    from video import figures

    return figures.write(paper, runs, results, data_root=data_root, to=to)


def _export(folder: Path, target: Path) -> Path:
    from video import export

    return export.write(folder, target)


def _score(asked: Asked) -> Scores:
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
    scored_by=("skip_damaged",),
)
