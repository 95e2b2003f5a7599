"""The rl domain as one object; heavy modules are imported only when they are needed."""

from rl.config import Config, ProbeConfig
from rl.tables import TABLES
from shared.experiment.domain import Domain, Experiment
from shared.lazy import LazyImport


def _steps(config: Config) -> int:
    return max(0, config.environment_steps // config.action_repeat - config.initial_steps)


DOMAIN = Domain(
    name="rl",
    tables=TABLES,
    experiments=(
        Experiment(Config, LazyImport("rl.train:measure"), steps=_steps),
        Experiment(ProbeConfig, LazyImport("rl.probe:measure"), several=True),
    ),
    datasets=LazyImport("rl.data:DATASETS"),
    fetch=LazyImport("rl.data:fetch"),
    figures=LazyImport("rl.figures:FIGURES"),
    film=LazyImport("rl.film:write"),
    export=LazyImport("rl.export:write"),
    protocols=LazyImport("rl.evaluation:PROTOCOLS"),
)
