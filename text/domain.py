"""The text domain as one object; heavy modules are imported only when they are needed."""

from pathlib import Path

from shared.experiment.data import MissingData
from shared.experiment.domain import Domain, Experiment, OwnData
from shared.lazy import LazyImport
from text.config import Config
from text.tables import TABLES


def _missing(config: Config, data_root: Path) -> list[MissingData]:
    from text.data import missing

    corpus = None if config.baseline == "majority" else config.corpus
    return missing(corpus, config.tasks, data_root)


DOMAIN = Domain(
    name="text",
    tables=TABLES,
    experiments=(
        Experiment(
            Config,
            LazyImport("text.train:measure"),
            _missing,
            several=True,
            steps=lambda config: config.steps,
        ),
    ),
    datasets=LazyImport("text.data:DATASETS"),
    fetch=LazyImport("text.data:fetch"),
    figures=LazyImport("text.figures:FIGURES"),
    export=LazyImport("text.export:write"),
    score=LazyImport("text.export:score"),
    protocols=LazyImport("text.evaluation:PROTOCOLS"),
    own_data=OwnData(
        "lmcl",
        "table-4-small",
        ("MR", "CR", "TREC", "MSRP", "mean of the tasks"),
        LazyImport("text.own:read"),
    ),
)
