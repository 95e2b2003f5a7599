"""The rl domain as one object; heavy modules are imported by the functions that need them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.config import Config, ImitationConfig, ProbeConfig
from rl.tables import TABLES
from shared.experiment.domain import Domain, Experiment, Metrics
from shared.experiment.runs import Run
from shared.experiment.tables import Tier


def _measure(config: Config, run: Run) -> Metrics:
    from rl import train

    return train.measure(config, run)


def _measure_probe(config: ProbeConfig, run: Run) -> Metrics:
    from rl import probe

    return probe.measure(config, run)


def _measure_imitation(config: ImitationConfig, run: Run) -> Metrics:
    from rl import imitation

    return imitation.measure(config, run)


def _datasets() -> Sequence[str]:
    from rl import data

    return tuple(data.DATASETS)


def _fetch(name: str, data_root: Path) -> None:
    from rl import data

    data.fetch(name, data_root)


def _figures() -> Mapping[str, Mapping[str, Any]]:
    from rl import figures

    return figures.FIGURES


def _film(paper: str, tier: Tier, runs: Path) -> list[Path]:
    from rl import film

    return film.write(paper, tier, runs)


def _export(folder: Path, target: Path) -> Path:
    from rl import export

    return export.write(folder, target)


DOMAIN = Domain(
    name="rl",
    tables=TABLES,
    experiments=(
        Experiment(Config, _measure),
        Experiment(ProbeConfig, _measure_probe, several=True),
        Experiment(ImitationConfig, _measure_imitation),
    ),
    datasets=_datasets,
    fetch=_fetch,
    figures=_figures,
    film=_film,
    export=_export,
)
