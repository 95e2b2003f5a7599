"""Encoders that others have published, as rows of Table 1 of MMCL have them: files of PyTorch's.

They belong in ``checkpoints/`` below the data root; whoever has one evaluates it as any other.
"""

import argparse
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.data import MissingData
from vision.config import Config
from vision.encoder import make_encoder

FOLDER = "checkpoints"


@dataclass(frozen=True)
class Checkpoint:
    """A file, where it is from, and what its encoder's names begin with in it."""

    file: str
    source: str
    prefix: str = ""


_MOCO = "https://dl.fbaipublicfiles.com/moco/moco_checkpoints"
_PCL = "https://storage.googleapis.com/sfr-pcl-data-research/PCL_checkpoint"
# Those that Ericsson et al. 2021 compare (download_and_prepare_models.py of their program), and
# MoCHI's own.
CHECKPOINTS: dict[str, Checkpoint] = {
    "supervised-resnet50": Checkpoint(
        "resnet50-0676ba61.pth", "https://download.pytorch.org/models/resnet50-0676ba61.pth"
    ),
    "insdis-resnet50": Checkpoint(
        "InsDis.pth", "the models of github.com/HobbitLong/PyContrast", "module.encoder."
    ),
    "moco-v1-resnet50": Checkpoint(
        "moco_v1_200ep_pretrain.pth.tar",
        f"{_MOCO}/moco_v1_200ep/moco_v1_200ep_pretrain.pth.tar",
        "module.encoder_q.",
    ),
    "moco-v2-resnet50": Checkpoint(
        "moco_v2_800ep_pretrain.pth.tar",
        f"{_MOCO}/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
        "module.encoder_q.",
    ),
    "pcl-v1-resnet50": Checkpoint(
        "PCL_v1_epoch200.pth.tar", f"{_PCL}/PCL_v1_epoch200.pth.tar", "module.encoder_q."
    ),
    "pcl-v2-resnet50": Checkpoint(
        "PCL_v2_epoch200.pth.tar", f"{_PCL}/PCL_v2_epoch200.pth.tar", "module.encoder_q."
    ),
    "mochi-resnet50": Checkpoint(
        "mochi.pth.tar",
        "the models of europe.naverlabs.com/mochi, renamed to this",
        "module.encoder_q.",
    ),
}
HEADS = ("fc.", "head.", "projection_head.", "prototypes.")


def missing(name: str, data_root: Path) -> list[MissingData]:
    """What is to be got before the checkpoint of that name can be read; nothing if it is there."""
    file = file_of(name, data_root)
    if file.is_file():
        return []
    how = f"get it from {CHECKPOINTS[name].source} and put it at {file}"
    return [MissingData(name, file.parent, "", how)]


def fetch(name: str, data_root: Path) -> None:
    """Look whether the checkpoint of that name is there; no checksum of one is published.

    Raises:
        MissingData: it is not.
    """
    for absent in missing(name, data_root):
        raise absent


def file_of(name: str, data_root: Path) -> Path:
    """Where the checkpoint of that name belongs.

    Raises:
        UserError: the name is unknown.
    """
    if name not in CHECKPOINTS:
        raise UserError(f"unknown checkpoint {name!r}; known are {', '.join(CHECKPOINTS)}")
    return data_root / FOLDER / CHECKPOINTS[name].file


def load(config: Config, data_root: Path) -> nn.Module:
    """The published encoder of a configuration, on the CPU.

    Of the file what the encoder has is taken, and all of the encoder must be there; what else
    there is must be of a head.

    Args:
        config: names it, and the network that it is.
        data_root: the folder that holds the datasets.

    Raises:
        MissingData: the file is not there.
        UserError: an unknown name, or a file that holds no such network.
    """
    assert config.weights is not None
    fetch(config.weights, data_root)
    file = file_of(config.weights, data_root)
    state = _read(file)
    prefix = CHECKPOINTS[config.weights].prefix
    # A momentum encoder's copy and a queue lie beside it under other names.
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix) and not name.removeprefix(prefix).startswith(HEADS)
    }
    encoder = make_encoder(config.backbone, config.stem)
    try:
        encoder.load_state_dict(own, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        where = f"under names that begin with {prefix!r}" if prefix else "in it"
        raise UserError(
            f"{file}: no whole {config.backbone} {where} ({reason}); get it from "
            f"{CHECKPOINTS[config.weights].source}"
        ) from error
    return encoder


def _read(file: Path) -> Mapping[str, Tensor]:
    """The tensors of a file by name, wherever in it they lie."""
    try:
        # The older programs keep their arguments beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    # What a damaged file raises depends on the damage.
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{file}: no checkpoint of PyTorch's that is safe to read ({reason})"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(each, Tensor) for each in content.values()
    ):
        raise UserError(
            f"{file}: holds no weights by name, neither itself nor as state_dict or model"
        )
    return content
