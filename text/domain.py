"""The text domain as one object; what is heavy is imported when it is called."""

from shared.experiment.domain import Domain, Experiment, Later
from text.config import Config
from text.tables import TABLES

DOMAIN = Domain(
    name="text",
    tables=TABLES,
    experiments=(Experiment(Config, Later("text.train:measure"), several=True),),
    datasets=Later("text.data:DATASETS"),
    fetch=Later("text.data:fetch"),
    figures=Later("text.figures:FIGURES"),
    export=Later("text.export:write"),
    score=Later("text.export:score"),
    protocols=Later("text.evaluation:PROTOCOLS"),
)
