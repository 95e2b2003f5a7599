"""The TU data sets of graphs (Morris et al. 2020): what has to be there; torch is not imported."""

from dataclasses import dataclass
from pathlib import Path

from shared.errors import program
from shared.experiment.data import MissingData


@dataclass(frozen=True)
class TUDataset:
    """A set of the collection: its number of graphs, and by what its files are verified.

    files: SHA-256 over the raw files, see :func:`shared.experiment.data.sha256_of_files`. archive:
    of the collection's zip file, where the raw files have not been seen; as also given by other
    packages that download it, such as GraphDatasets.jl (src/TUDatasets.jl).
    """

    graphs: int
    files: str | None = None
    archive: str | None = None


DATASETS: dict[str, TUDataset] = {
    "MUTAG": TUDataset(188, "3605b2426dc78271dfefc036264f7eae15804a80f62bf116e63837218baaacd7"),
    "DD": TUDataset(1178, "8aeace052fe6ef43decee10f97aeeb6489a5d169bf15927dd9b512ab65b29747"),
    "REDDIT-BINARY": TUDataset(
        2000, "13dc79b6977463c0333b4f570f4d7fbc2e50fe2f996a240a0008ef806969de77"
    ),
    "REDDIT-MULTI-5K": TUDataset(
        4999, archive="68587783c33d54dd6107a1fc101594fd2b9d1af4e99cafe733636f383ae0c8ee"
    ),
    "IMDB-BINARY": TUDataset(
        1000, "f4200e6a4dc276874ab6166f1a8cf069cfbc66f5501b7b40c3cf92dfc341e090"
    ),
    "IMDB-MULTI": TUDataset(
        1500, "287a2c98895bd2933d9c237a194bdabce35f142db574850bc2c8c5a4f9e792d3"
    ),
    "NCI1": TUDataset(4110, "113bca0bcae85696cd5b0de8e1f7802eeab109ce66eaf718a04f07e1f4aec225"),
    "PROTEINS": TUDataset(1113, "8f762d5d07585783399963af5bc9ac356cc23eb6a9ae826aa9fbce29d550c5fe"),
    "COLLAB": TUDataset(
        5000, archive="cb5b772bc4f3a4690d0601378a3fc993b092aeafd63e2b0f2330137dda1cdcc6"
    ),
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
