"""The rl domain as one object; what is heavy is imported when it is called."""

from rl.config import Config, ImitationConfig, ProbeConfig
from rl.tables import TABLES
from shared.experiment.domain import Domain, Experiment, Later

DOMAIN = Domain(
    name="rl",
    tables=TABLES,
    experiments=(
        Experiment(Config, Later("rl.train:measure")),
        Experiment(ProbeConfig, Later("rl.probe:measure"), several=True),
        Experiment(ImitationConfig, Later("rl.imitation:measure")),
    ),
    datasets=Later("rl.data:DATASETS"),
    fetch=Later("rl.data:fetch"),
    figures=Later("rl.figures:FIGURES"),
    film=Later("rl.film:write"),
    export=Later("rl.export:write"),
    protocols=Later("rl.evaluation:PROTOCOLS"),
)
