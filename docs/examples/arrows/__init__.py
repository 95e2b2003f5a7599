"""A small domain: an encoder of noisy vectors from eight groups."""

from arrows.config import Config
from arrows.tables import TABLES
from arrows.train import measure
from shared.experiment.domain import Domain, Experiment

DOMAIN = Domain(
    name="arrows",
    tables=TABLES,
    experiments=(Experiment(Config, measure),),
    datasets=lambda: (),
    fetch=lambda name, data_root: None,
)
