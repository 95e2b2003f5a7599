"""The video domain as one object; what is heavy is imported when it is called."""

from shared.experiment.domain import Domain, Experiment, Later
from video.config import Config
from video.tables import TABLES

DOMAIN = Domain(
    name="video",
    tables=TABLES,
    experiments=(Experiment(Config, Later("video.train:measure"), several=True),),
    datasets=Later("video.data:DATASETS"),
    fetch=Later("video.data:fetch"),
    figures=Later("video.figures:FIGURES"),
    export=Later("video.export:write"),
    score=Later("video.export:score"),
    scored_by=("skip_damaged", "split"),
    protocols=Later("video.evaluation:PROTOCOLS"),
)
