"""The TU data sets of graphs, with the counts and means that their page prints."""

from dataclasses import dataclass
from pathlib import Path

from shared.errors import program
from shared.experiment.data import MissingData


@dataclass(frozen=True)
class Statistics:
    """The published statistics of a TU dataset: counts, and means per graph to two decimals.

    ``edges`` counts undirected edges once. ``features`` is the width of the one-hot node labels,
    1 where the set has no labels. Source: the TU collection (Morris et al. 2020).
    """

    graphs: int
    classes: int
    nodes: float
    edges: float
    features: int
    edge_tolerance: float = 0.01


DATASETS: dict[str, Statistics] = {
    "MUTAG": Statistics(188, 2, 17.93, 19.79, 7),
    "DD": Statistics(1178, 2, 284.32, 715.66, 89),
    "REDDIT-BINARY": Statistics(2000, 2, 429.63, 497.75, 1),
    "REDDIT-MULTI-5K": Statistics(4999, 5, 508.52, 594.87, 1),
    "IMDB-BINARY": Statistics(1000, 2, 19.77, 96.53, 1),
    "IMDB-MULTI": Statistics(1500, 3, 13.00, 65.94, 1),
    "NCI1": Statistics(4110, 2, 29.87, 32.30, 37),
    "PROTEINS": Statistics(1113, 2, 39.06, 72.82, 3),
    # COLLAB's published mean is 0.6 above that of the graphs as PyG reads them (4914.4 directed).
    "COLLAB": Statistics(5000, 3, 74.49, 2457.78, 1, edge_tolerance=1.0),
}


def raw_folder(name: str, data_root: Path) -> Path:
    """Where the files of a dataset belong."""
    return data_root / "TUDataset" / name / "raw"


def raw_files(name: str, data_root: Path) -> list[Path]:
    """The files of a dataset; none where it is not there."""
    return sorted(raw_folder(name, data_root).glob(f"{name}_*.txt"))


def command(name: str) -> str:
    """The command that downloads a dataset."""
    return f"{program()} data graph --dataset {name}"


def missing(name: str, data_root: Path) -> list[MissingData]:
    """The dataset, if its files are not there."""
    there = name not in DATASETS or raw_files(name, data_root)
    return [] if there else [MissingData(name, raw_folder(name, data_root), command(name))]
