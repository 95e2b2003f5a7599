"""The rl domain: CURL from pixels on DM Control, with any objective, and a probe of its encoder.

The names below are imported when first used, so that planning and reporting stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl.agent import Agent, Contrast
    from rl.config import TASKS, Config, ProbeConfig
    from rl.data import Frames, random_frames
    from rl.domain import DOMAIN
    from rl.encoder import Bilinear, Encoder
    from rl.environment import DeepMindControl, make_vector
    from rl.evaluate import PROTOCOLS, evaluate_policy, state_probe
    from rl.replay import Batch, Replay
    from rl.tables import TABLES
    from rl.train import run

__all__ = [
    "DOMAIN",
    "PROTOCOLS",
    "TABLES",
    "TASKS",
    "Agent",
    "Batch",
    "Bilinear",
    "Config",
    "Contrast",
    "DeepMindControl",
    "Encoder",
    "Frames",
    "ProbeConfig",
    "Replay",
    "evaluate_policy",
    "make_vector",
    "random_frames",
    "run",
    "state_probe",
]

_HOMES = {
    "DOMAIN": "domain",
    "PROTOCOLS": "evaluate",
    "TABLES": "tables",
    "TASKS": "config",
    "Agent": "agent",
    "Batch": "replay",
    "Bilinear": "encoder",
    "Config": "config",
    "Contrast": "agent",
    "DeepMindControl": "environment",
    "Encoder": "encoder",
    "Frames": "data",
    "ProbeConfig": "config",
    "Replay": "replay",
    "evaluate_policy": "evaluate",
    "make_vector": "environment",
    "random_frames": "data",
    "run": "train",
    "state_probe": "evaluate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rl.{_HOMES[name]}"), name)
