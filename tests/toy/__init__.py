"""A domain for the tests of the core: cells that work, fail, diverge, and lack their data."""

from shared.experiment.domain import Domain, Experiment
from shared.lazy import LazyImport
from toy import data
from toy.tables import TABLES
from toy.train import Config, measure

DOMAIN = Domain(
    name="toy",
    tables=TABLES,
    experiments=(Experiment(Config, measure, data.missing, several=True),),
    datasets=lambda: tuple(data.DATASETS),
    fetch=data.fetch,
    figures=LazyImport("toy.figures:FIGURES"),
    film=LazyImport("toy.figures:film"),
    export=LazyImport("toy.export:write"),
)

__all__ = ["DOMAIN", "TABLES", "Config", "measure"]
