"""The graph domain as one object; heavy modules are imported only when they are needed."""

from pathlib import Path

from graph.config import Config
from graph.datasets import DATASETS, missing
from graph.tables import TABLES
from shared.experiment.data import MissingData
from shared.experiment.domain import Domain, Experiment, OwnData
from shared.lazy import LazyImport


def _steps(config: Config) -> int | None:
    about = DATASETS.get(config.dataset)
    return config.epochs * -(-about.graphs // config.batch_size) if about else None


def _missing(config: Config, data_root: Path) -> list[MissingData]:
    return missing(config.dataset, data_root)


DOMAIN = Domain(
    name="graph",
    tables=TABLES,
    experiments=(
        Experiment(Config, LazyImport("graph.train:measure"), _missing, several=True, steps=_steps),
    ),
    datasets=LazyImport("graph.datasets:DATASETS"),
    fetch=LazyImport("graph.data:fetch"),
    export=LazyImport("graph.export:write"),
    score=LazyImport("graph.export:score"),
    protocols=LazyImport("graph.evaluation:PROTOCOLS"),
    own_data=OwnData("mmcl", "table-4", ("MUTAG",), LazyImport("graph.own:read")),
)
