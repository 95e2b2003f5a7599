"""The video domain: S3D on UCF-101, RGB and optical flow, with any objective.

The names below are imported when first used, so that planning and reporting stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from video.config import Config
    from video.data import Video, Videos, load
    from video.domain import DOMAIN
    from video.encoder import S3D, Networks
    from video.evaluate import PROTOCOLS
    from video.tables import TABLES
    from video.train import pretrain, run

__all__ = [
    "DOMAIN",
    "PROTOCOLS",
    "S3D",
    "TABLES",
    "Config",
    "Networks",
    "Video",
    "Videos",
    "load",
    "pretrain",
    "run",
]

_HOMES = {
    "DOMAIN": "domain",
    "PROTOCOLS": "evaluate",
    "S3D": "encoder",
    "TABLES": "tables",
    "Config": "config",
    "Networks": "encoder",
    "Video": "data",
    "Videos": "data",
    "load": "data",
    "pretrain": "train",
    "run": "train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'video' has no attribute {name!r}")
    return getattr(importlib.import_module(f"video.{_HOMES[name]}"), name)
