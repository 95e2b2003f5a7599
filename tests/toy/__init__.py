"""A domain for the tests of the core: cells that work, fail, diverge, and lack their data."""

from shared.experiment.domain import Domain, Experiment
from toy import data, export, figures
from toy.tables import TABLES
from toy.train import Config, measure

DOMAIN = Domain(
    name="toy",
    tables=TABLES,
    experiments=(Experiment(Config, measure, data.missing, several=True),),
    datasets=lambda: tuple(data.DATASETS),
    fetch=data.fetch,
    figures=lambda: figures.FIGURES,
    film=figures.film,
    export=export.write,
)

__all__ = ["DOMAIN", "TABLES", "Config", "measure"]
