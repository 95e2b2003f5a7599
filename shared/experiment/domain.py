"""The interface of a domain: one object, with None for what the domain does not have.

A domain is a package with a ``DOMAIN``. Tables and configurations are imported with it, and what is
heavy when it is called (:class:`shared.lazy.LazyImport`), so that planning and reporting stay fast.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.errors import UserError, suggestion
from shared.experiment.config import Config
from shared.experiment.data import MissingData, sha256_of
from shared.experiment.tables import Table, Tier

if TYPE_CHECKING:
    from shared.experiment.run import Run

Its = TypeVar("Its", bound=Config)
Metrics = Mapping[str, Any]
Missing = Callable[[Its, Path], Sequence[MissingData]]


@dataclass(frozen=True)
class EvaluationRequest:
    """The arguments of ``./reproduce.sh evaluate``; the domain chooses what is left out."""

    model: Path  # a checkpoint or an exported folder
    # What to score on: a folder, a data set or tasks, depending on the domain.
    data: str | None = None
    protocols: tuple[str, ...] = ()  # by name
    data_root: Path = Path("data")  # the folder of data sets
    seed: int = 0  # of all random draws of a protocol
    options: Mapping[str, str] = field(default_factory=dict)  # further ones of the domain, by name
    say: Callable[[str], None] = print  # prints a line at once

    def chosen(self, known: Iterable[str], *default: str) -> tuple[str, ...]:
        """The protocols to score with: the named ones, all known, or the domain's default."""
        for protocol in self.protocols:
            if protocol not in known:
                raise UserError(
                    f"no protocol {protocol!r}{suggestion(protocol, known, 'there are')}"
                )
        return self.protocols or default


@dataclass(frozen=True)
class Scores:
    """Scores of a model: facts about model and data; for each protocol metrics and environment."""

    facts: Mapping[str, Any]
    protocols: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Experiment(Generic[Its]):
    """A class of configurations, and the functions that run one.

    Args:
        config: the configuration's class; a table's row in this domain is an instance of it.
        measure: trains and evaluates a configuration; returns the metrics of its protocol.
        missing: a quick check for data that are not below the data root; None where only the run
            itself finds out.
        several: whether a run may use several processes, see :mod:`shared.distributed`.
        pretraining: the part of a canonical configuration that identifies an encoder in the store,
            see :mod:`shared.experiment.store`; None where runs share nothing.
        steps: how many steps a run trains, as far as that is known without its data; None, or a
            function that returns None, where it is not.
    """

    config: type[Its]
    measure: "Callable[[Its, Run], Metrics]"
    missing: Missing[Its] | None = None
    several: bool = False
    pretraining: Callable[[Its], Mapping[str, Any] | None] | None = None
    steps: Callable[[Its], int | None] | None = None


@dataclass(frozen=True)
class OwnData:
    """How rows are compared on the user's own data, with a reduced budget."""

    paper: str  # whose table has the rows
    table: str  # its name; its short tier has the budget
    columns: tuple[str, ...]  # labels of those that are measured
    # Called with the path of the data, relative to the working directory, and the data root; gives
    # the changes of a configuration that is trained and scored on them, and their hash by the name
    # under which a run records it. Raises a UserError for data that cannot be used.
    read: Callable[[Path, Path], tuple[Mapping[str, Any], Mapping[str, str]]]


@dataclass(frozen=True)
class Domain:
    """A domain: its tables, experiments and data, and what it makes from finished runs.

    Args:
        name: of the package, and the first word of the addresses of its cells.
        tables: by paper.
        experiments: one for each class of configuration.
        datasets: the names that :attr:`fetch` takes.
        fetch: downloads a dataset below the data root where possible, and verifies it; may return a
            description.
        prepare: decodes the images of a dataset once, with so many pixels of the shorter side.
        figures: returns, for each paper, ``shared.report.figures.DeclaredFigure`` by name.
        film: films the models of a paper's finished runs in a tier, below the folder of runs.
        export: writes the model of a finished run, given by its folder, with a card into a second
            folder, and returns the path to print.
        score: scores a trained model, this project's or another's, by the domain's protocols.
        scored_by: the options of :attr:`score` beyond those of every domain.
        protocols: the names that a configuration's protocol may have.
        own_data: how rows are compared on the user's own data.
    """

    name: str
    tables: Mapping[str, tuple[Table, ...]]
    experiments: tuple[Experiment[Any], ...]
    datasets: Callable[[], Iterable[str]]
    fetch: Callable[[str, Path], str | None]
    prepare: Callable[[str, Path, int], None] | None = None
    figures: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None
    film: Callable[[str, Tier, Path], list[Path]] | None = None
    export: Callable[[Path, Path], Path] | None = None
    score: Callable[[EvaluationRequest], Scores] | None = None
    scored_by: Sequence[str] = ()
    protocols: Callable[[], Collection[str]] | None = None
    own_data: OwnData | None = None

    def __post_init__(self) -> None:
        for table in (table for tables in self.tables.values() for table in tables):
            if table.domain != self.name:
                raise ValueError(f"{self.name}: {table.address} is a table of another domain")
            self.experiment(table.config)

    def experiment(self, config: Config) -> Experiment[Any]:
        """The experiment of a configuration; ValueError if none has those of its class."""
        by_class = {experiment.config: experiment for experiment in self.experiments}
        if type(config) not in by_class:
            known = ", ".join(kind.__name__ for kind in by_class)
            kind = type(config).__name__
            raise ValueError(f"{self.name} has no experiment with a {kind}; it has: {known}")
        return by_class[type(config)]

    def measure(self, config: Config, run: "Run") -> Metrics:
        """Run a configuration, and return the metrics of its protocol."""
        experiment = self.experiment(config)
        if run.processes > 1 and not experiment.several:
            raise UserError(
                f"a run of {self.name} with a {type(config).__name__} takes one process; start "
                f"it without torchrun, and run seeds side by side with --jobs"
            )
        metrics: Metrics = experiment.measure(config, run)
        return metrics


def scores_of(
    request: EvaluationRequest,
    file: Path,
    data: str,
    protocols: Iterable[str],
    config: Any,
    score: "Callable[[Any, Run], Mapping[str, Any]]",
    **facts: Any,
) -> Scores:
    """The scores of the model in a file by several protocols, see :func:`measure_protocol`.

    ``data`` is the name of what it is scored on, ``facts`` are further ones.
    """
    return Scores(
        facts={"model": str(file), "sha256": sha256_of(file), **facts, "data": data},
        protocols={
            protocol: measure_protocol(config, protocol, score, request) for protocol in protocols
        },
    )


def measure_protocol(
    config: Any,
    protocol: str,
    score: "Callable[[Any, Run], Mapping[str, Any]]",
    request: EvaluationRequest,
) -> dict[str, Any]:
    """Score a model with one protocol: its metrics, printed at once, and the environment.

    Protocol and seed of the configuration are set here. ``score`` returns the metrics; its run has
    a temporary folder.
    """
    from shared.experiment.run import Run  # needs torch

    config = dataclasses.replace(config, protocol=protocol, seed=request.seed)
    request.say(f"{protocol}: measuring")
    with (
        tempfile.TemporaryDirectory() as folder,
        Run(
            Path(folder) / "run",
            config,
            data_root=request.data_root,
            allow_missing="skip_damaged" in request.options,
        ) as run,
    ):
        metrics = dict(score(config, run))
        # At once, so that finished scores are seen even if the next protocol fails.
        for metric, value in metrics.items():
            if isinstance(value, int | float):
                request.say(f"{protocol}: {metric} {value:.2f}")
    return {"metrics": metrics, "environment": run.environment}
