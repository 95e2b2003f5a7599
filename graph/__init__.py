"""The graph domain: GraphCL's unsupervised pretraining on TU datasets, with any objective.

The names below are imported when first used, so that planning and reporting stay quick. The
function ``augment`` shares its module's name: ``from graph.augment import augment``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph.config import Config
    from graph.data import Graphs, batches, load
    from graph.domain import DOMAIN
    from graph.encoder import Encoder, ProjectionHead
    from graph.evaluate import embed, svm_ten_fold
    from graph.tables import TABLES
    from graph.train import run

__all__ = [
    "DOMAIN",
    "TABLES",
    "Config",
    "Encoder",
    "Graphs",
    "ProjectionHead",
    "batches",
    "embed",
    "load",
    "run",
    "svm_ten_fold",
]

_HOMES = {
    "DOMAIN": "domain",
    "TABLES": "tables",
    "Config": "config",
    "Encoder": "encoder",
    "Graphs": "data",
    "ProjectionHead": "encoder",
    "batches": "data",
    "embed": "evaluate",
    "load": "data",
    "run": "train",
    "svm_ten_fold": "evaluate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'graph' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graph.{_HOMES[name]}"), name)
