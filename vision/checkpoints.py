"""Published encoders in PyTorch files, which rows of MMCL's Table 1 evaluate.

They belong in ``checkpoints/`` below the data root, and are evaluated like any other encoder.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import UserError
from shared.experiment.data import MissingData
from vision.config import Config

if TYPE_CHECKING:
    from torch import nn

FOLDER = "checkpoints"


_MOCO = "https://dl.fbaipublicfiles.com/moco/moco_checkpoints"
_PCL = "https://storage.googleapis.com/sfr-pcl-data-research/PCL_checkpoint"
# By name, the folder that a file is from and its name: those compared by Ericsson et al. 2021
# (download_and_prepare_models.py of their program), and MoCHI's.
CHECKPOINTS = {
    "supervised-resnet50": ("https://download.pytorch.org/models", "resnet50-0676ba61.pth"),
    "insdis-resnet50": ("the models of github.com/HobbitLong/PyContrast", "InsDis.pth"),
    "moco-v1-resnet50": (f"{_MOCO}/moco_v1_200ep", "moco_v1_200ep_pretrain.pth.tar"),
    "moco-v2-resnet50": (f"{_MOCO}/moco_v2_800ep", "moco_v2_800ep_pretrain.pth.tar"),
    "pcl-v1-resnet50": (_PCL, "PCL_v1_epoch200.pth.tar"),
    "pcl-v2-resnet50": (_PCL, "PCL_v2_epoch200.pth.tar"),
    "mochi-resnet50": ("the models of europe.naverlabs.com/mochi (renamed)", "mochi.pth.tar"),
}


def missing(name: str, data_root: Path) -> list[MissingData]:
    """What has to be obtained before a checkpoint can be read; empty if the file exists."""
    file = file_of(name, data_root)
    if file.is_file():
        return []
    how = f"get {file.name} from {CHECKPOINTS[name][0]} and put it at {file}"
    return [MissingData(name, file.parent, "", how)]


def fetch(name: str, data_root: Path) -> None:
    """Check that the file of a checkpoint exists; no checksums are published for them."""
    for absent in missing(name, data_root):
        raise absent


def file_of(name: str, data_root: Path) -> Path:
    """Where the checkpoint of that name belongs."""
    if name not in CHECKPOINTS:
        raise UserError(f"unknown checkpoint {name!r}; known are {', '.join(CHECKPOINTS)}")
    return data_root / FOLDER / CHECKPOINTS[name][1]


def load(config: Config, data_root: Path) -> "nn.Module":
    """The published encoder that a configuration names, on the CPU."""
    assert config.weights is not None
    fetch(config.weights, data_root)
    file = file_of(config.weights, data_root)
    from vision.checkpoint_eval import loaded

    network, _ = loaded(
        file, size=config.image_size, backbone=config.backbone, stem=config.stem, heads=config.heads
    )
    return network
