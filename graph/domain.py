"""The graph domain as one object; what is heavy is imported when it is called."""

from graph.config import Config
from graph.tables import TABLES
from shared.experiment.domain import Domain, Experiment, Later

DOMAIN = Domain(
    name="graph",
    tables=TABLES,
    experiments=(Experiment(Config, Later("graph.train:measure"), several=True),),
    datasets=Later("graph.data:DATASETS"),
    fetch=Later("graph.data:fetch"),
    export=Later("graph.export:write"),
    score=Later("graph.export:score"),
    protocols=Later("graph.evaluation:PROTOCOLS"),
)
