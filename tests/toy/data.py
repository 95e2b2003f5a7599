from pathlib import Path

from shared.errors import UserError
from shared.experiment.data import MissingData
from toy.train import Config

DATASETS = {"toys": None}
COMMAND = "./reproduce.sh data toy --dataset toys"


def fetch(name: str, data_root: Path) -> None:
    if not (data_root / name).exists():
        raise UserError(f"{name}: download failed: there is no such place")


def missing(config: Config, data_root: Path) -> list[MissingData]:
    there = config.kind != "missing" or (data_root / "toys").exists()
    return [] if there else [MissingData("toys", data_root / "toys", COMMAND)]
