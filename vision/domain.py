"""The vision domain as one object; heavy modules are imported only when they are needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.experiment.data import MissingData
from shared.experiment.domain import Domain, Experiment, OwnData
from shared.experiment.store import part_of
from shared.lazy import LazyImport
from vision.config import PRETRAINING, Config, ToyConfig
from vision.tables import TABLES


def _part(config: Config) -> Mapping[str, Any] | None:
    if config.weights is not None or config.features != "encoder":
        return None
    return part_of(config, PRETRAINING)


def _steps(config: Config) -> int | None:
    from vision.datasets import DATASETS, DIGITS, OWN, describe

    known = config.dataset in (*DATASETS, DIGITS) or config.dataset.startswith(OWN)
    about = describe(config.dataset) if known else None
    images = config.images or (about and about.train + about.unlabelled)
    return config.epochs * (images // config.batch_size) if images else None


def _missing(config: Config, data_root: Path) -> list[MissingData]:
    from vision import checkpoints, datasets

    names = [config.evaluate_on or config.dataset]
    if config.weights is None:
        return datasets.missing(dict.fromkeys([config.dataset, *names]), data_root)
    return [*checkpoints.missing(config.weights, data_root), *datasets.missing(names, data_root)]


def _fetch(name: str, data_root: Path) -> None:
    from vision import checkpoints, data

    (checkpoints if name in checkpoints.CHECKPOINTS else data).fetch(name, data_root)


DOMAIN = Domain(
    name="vision",
    tables=TABLES,
    experiments=(
        Experiment(
            Config,
            LazyImport("vision.train:measure"),
            _missing,
            several=True,
            pretraining=_part,
            steps=_steps,
        ),
        Experiment(ToyConfig, LazyImport("vision.toy:measure")),
    ),
    datasets=LazyImport("vision.datasets:DATASETS"),
    fetch=_fetch,
    prepare=LazyImport("vision.data:prepare"),
    figures=LazyImport("vision.figures:FIGURES"),
    export=LazyImport("vision.export:write"),
    score=LazyImport("vision.checkpoint_eval:score"),
    scored_by=("backbone", "stem", "prefix", "heads", "size", "statistics", "skip_damaged"),
    protocols=LazyImport("vision.evaluation:PROTOCOLS"),
    own_data=OwnData(
        "margins", "table-2-cifar10", ("CIFAR10",), LazyImport("vision.data:read_own")
    ),
)
