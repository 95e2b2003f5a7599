"""What a domain is to everyone outside it: one object, in which what it lacks is None.

A domain is a package whose front gives it as ``DOMAIN``. Tables and configurations are there at
once, so that planning and reporting stay quick; a function imports what is heavy when it is called.
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from shared.errors import UserError
from shared.experiment.data import MissingData
from shared.experiment.runs import Run
from shared.experiment.tables import Config, Table, Tier

Its = TypeVar("Its", bound=Config)
Metrics = Mapping[str, Any]
Missing = Callable[[Its, Path], Sequence[MissingData]]


class Film(Protocol):
    """Films the models of a paper's finished runs."""

    def __call__(self, paper: str, tier: Tier, runs: Path) -> list[Path]:
        """The films, beside the runs of that tier."""


@dataclass(frozen=True)
class Asked:
    """What ``./reproduce.sh evaluate`` was asked for; what is not said is the domain's to choose.

    Attributes:
        model: a checkpoint or an exported folder.
        data: what to score on, in the domain's words: a folder, a data set, tasks.
        protocols: by name.
        data_root: where data sets lie.
        seed: of everything random in a protocol.
        options: further ones of the domain, by name.
        say: prints a line as soon as it is known.
    """

    model: Path
    data: str | None = None
    protocols: tuple[str, ...] = ()
    data_root: Path = Path("data")
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = print


@dataclass(frozen=True)
class Scores:
    """What came out: facts of model and data; for each protocol metrics and environment."""

    facts: Mapping[str, Any]
    protocols: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Experiment(Generic[Its]):
    """A kind of configuration, and what is done with one.

    Args:
        config: the configuration's class; a table's row in this domain is an instance of it.
        measure: trains and evaluates as a configuration says; gives the metrics of its protocol.
        missing: what of a run's data is not below the data root, at a glance; None where only the
            run itself finds out.
        several: whether a run may take several processes, see :mod:`shared.distributed`.
        pretraining: the fields of a configuration, canonical, that say what is trained and kept in
            the store, see :mod:`shared.experiment.store`; None where runs share nothing.
    """

    config: type[Its]
    measure: Callable[[Its, Run], Metrics]
    missing: Missing[Its] | None = None
    several: bool = False
    pretraining: Callable[[Its], Mapping[str, Any] | None] | None = None


@dataclass(frozen=True)
class Domain:
    """A domain: its tables, its experiments, its data, and what can be made of finished runs.

    Args:
        name: of the package, and the first word of the addresses of its cells.
        tables: by paper.
        experiments: one for each class of configuration.
        datasets: names of what :attr:`fetch` knows.
        fetch: downloads a dataset below the data root where that can be, and verifies it; may say
            what there is.
        figures: gives, for each paper, its figures by name: ``shared.report.figures.Drawing``.
        film: films the models of a paper's finished runs.
        export: puts the model of a finished run, given by its folder, with a card into a second
            folder, and returns what to show.
        score: scores a trained model, this project's or another's, by the domain's protocols.
        scored_by: the options of :attr:`score` beside those of every domain.

    Raises:
        ValueError: a table of another domain, or one whose configuration no experiment has.
    """

    name: str
    tables: Mapping[str, tuple[Table, ...]]
    experiments: tuple[Experiment[Any], ...]
    datasets: Callable[[], Sequence[str]]
    fetch: Callable[[str, Path], str | None]
    figures: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None
    film: Film | None = None
    export: Callable[[Path, Path], Path] | None = None
    score: Callable[[Asked], Scores] | None = None
    scored_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        for table in (table for some in self.tables.values() for table in some):
            if table.domain != self.name:
                raise ValueError(f"{self.name}: {table.address} is a table of another domain")
            self.experiment(table.config)

    def experiment(self, config: Config) -> Experiment[Any]:
        """What is done with a configuration.

        Raises:
            ValueError: no experiment has configurations of its class.
        """
        for each in self.experiments:
            if type(config) is each.config:
                return each
        known = ", ".join(each.config.__name__ for each in self.experiments)
        kind = type(config).__name__
        raise ValueError(f"{self.name} has no experiment with a {kind}; it has some with: {known}")

    def measure(self, config: Config, run: Run) -> Metrics:
        """Do what a configuration says, and give the metrics of its protocol.

        Raises:
            ValueError: as :meth:`experiment`.
            UserError: several processes, which its kind of run cannot use.
        """
        if run.processes > 1 and not self.experiment(config).several:
            raise UserError(
                f"a run of {self.name} with a {type(config).__name__} takes one process; leave "
                f"--processes out, and run seeds side by side with --jobs"
            )
        metrics: Metrics = self.experiment(config).measure(config, run)
        return metrics


def measure_protocol(
    config: Any,
    protocol: str,
    score: Callable[[Any, Run], Mapping[str, Any]],
    asked: Asked,
) -> dict[str, Any]:
    """The metrics of a protocol, printed at once, and where and on which data they were taken.

    Args:
        config: what to score by; its protocol and seed are set here.
        protocol: its name.
        score: gives the metrics; its run has a folder that is gone afterwards.
        asked: knows the seed and where data lie.
    """
    config = dataclasses.replace(config, protocol=protocol, seed=asked.seed)
    asked.say(f"{protocol}: measuring")
    with (
        tempfile.TemporaryDirectory() as folder,
        Run(
            Path(folder) / "run",
            config,
            data_root=asked.data_root,
            allow_missing="skip_damaged" in asked.options,
        ) as run,
    ):
        metrics = dict(score(config, run))
        # At once, so that what is finished is seen whatever happens to the next protocol.
        for metric, value in metrics.items():
            if isinstance(value, int | float):
                asked.say(f"{protocol}: {metric} {value:.2f}")
        environment = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
    return {"metrics": metrics, "environment": environment}
