"""The vision domain: SimCLR, MoCo and BYOL on images, with any objective, and their evaluation.

The names below are imported when first used, so that planning and reporting stay quick. Functions
that share their module's name are imported from there: ``from vision.encoder import encoder``,
``from vision.augment import augment``, ``from vision.evaluate import evaluate``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vision.augment import POLICIES, Policy
    from vision.config import Config, ToyConfig
    from vision.data import ImageFiles, Images, choose, load
    from vision.domain import DOMAIN
    from vision.encoder import head
    from vision.evaluate import embed, kmeans_accuracy, knn, linear_probe
    from vision.export import load_encoder, save_encoder
    from vision.methods import Networks, compare
    from vision.tables import TABLES
    from vision.train import pretrain, run

__all__ = [
    "DOMAIN",
    "POLICIES",
    "TABLES",
    "Config",
    "ImageFiles",
    "Images",
    "Networks",
    "Policy",
    "ToyConfig",
    "choose",
    "compare",
    "embed",
    "head",
    "kmeans_accuracy",
    "knn",
    "linear_probe",
    "load",
    "load_encoder",
    "pretrain",
    "run",
    "save_encoder",
]

_HOMES = {
    "DOMAIN": "domain",
    "POLICIES": "augment",
    "TABLES": "tables",
    "Config": "config",
    "ImageFiles": "data",
    "Images": "data",
    "Networks": "methods",
    "Policy": "augment",
    "ToyConfig": "config",
    "choose": "data",
    "compare": "methods",
    "embed": "evaluate",
    "head": "encoder",
    "kmeans_accuracy": "evaluate",
    "knn": "evaluate",
    "linear_probe": "evaluate",
    "load": "data",
    "load_encoder": "export",
    "pretrain": "train",
    "run": "train",
    "save_encoder": "export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vision' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vision.{_HOMES[name]}"), name)
