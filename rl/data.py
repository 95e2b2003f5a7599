"""Frames and physics states of a random policy, rendered once and kept.

Shapes: n frames, S pixels of a frame, d numbers of a state.

They are stored below the data root, in a folder whose name depends on all settings:

    prepared/rl/<task>-<S>-<quality>-<hash>/
        frames.bin      n frames in order, (3, S, S) bytes each
        states.bin      (n, d) float64
        meta.json       what was rendered, and the names of the state
        SHA256SUMS      of all the above
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.config import TASKS
from rl.environment import DeepMindControl
from rl.simulator import renderer_in_use, task_fingerprint
from shared.experiment.data import (
    build_once,
    check_prepared,
    read_meta,
    short_hash,
    write_meta,
    writing,
)
from shared.notices import Progress

# Part of the key of stored frames; to be increased when the same arguments give other frames.
FORMAT = 1

FILES = ("frames.bin", "states.bin", "meta.json")

DATASETS = TASKS


@dataclass(frozen=True)
class Frames:
    """Frames of whole episodes in order, with the states that they show.

    frames: (n, 3, S, S) uint8, memory-mapped. first: (n,) int64, the first frame of the episode.
    episode: (n,) int64, from 0 on. state: (n, d) float64. names: of the d entries of a state.
    """

    frames: Tensor
    first: Tensor
    episode: Tensor
    state: Tensor
    names: tuple[str, ...]


def random_frames(
    task: str,
    action_repeat: int,
    *,
    episodes: int,
    steps: int,
    frame_size: int,
    quality: str,
    seed: int,
    data_root: Path,
    progress: Progress | None = None,
) -> Frames:
    """Frames under uniformly random actions, rendered on first use.

    The start and actions of an episode are a function of the seed and its number. Concurrent
    processes render once, and interrupted rendering is repeated.

    Args:
        task: of DM Control.
        action_repeat: environment steps from frame to frame.
        episodes: number of episodes.
        steps: frames of each, including the first.
        frame_size: S, pixels.
        quality: see :class:`rl.simulator.Task`.
        seed: of all that is random.
        data_root: ``prepared`` is made in it.
        progress: called during rendering with the frames done, their total, and a description.

    Raises:
        UserError: an unknown task, no renderer, a data root that cannot be written, or damaged
            stored frames.
        ValueError: no frames are requested, or more of an episode than it has.
    """
    if min(episodes, steps) < 1:
        raise ValueError(f"{episodes} episodes of {steps} frames are none")
    # The settings that determine the frames.
    key = {
        "task": task,
        "fingerprint": task_fingerprint(task),
        "renderer": renderer_in_use(),
        "action_repeat": action_repeat,
        "episodes": episodes,
        "steps": steps,
        "frame_size": frame_size,
        "quality": quality,
        "seed": seed,
        "format": FORMAT,
    }
    name = f"{task}-{frame_size}-{quality}-{short_hash(key)}"
    folder = data_root / "prepared" / "rl" / name

    def build(part: Path) -> None:
        with writing(part.parent):
            names = _render(part, key, progress)
            write_meta(part, key | {"names": names}, FILES)

    build_once(folder, build)
    return _read_frames(folder)


def frames_fingerprint(frames: Frames) -> str:
    """SHA-256 over all arrays of the frames."""
    digest = hashlib.sha256(json.dumps([frames.names, list(frames.frames.shape)]).encode())
    for tensor in (frames.frames, frames.first, frames.episode, frames.state):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def fetch(name: str, data_root: Path) -> None:
    """Check that a task loads and renders, and that stored frames are intact; downloads nothing.

    ``name`` is of ``DATASETS``, or another task of DM Control.
    """
    check_prepared(data_root / "prepared" / "rl", f"{name}-*")
    with contextlib.closing(DeepMindControl(name, action_repeat=1, quality="fast")) as environment:
        environment.reset(seed=0)


def _render(folder: Path, key: dict[str, Any], progress: Progress | None) -> tuple[str, ...]:
    """Write frames and states; the names of the latter are returned."""
    episodes, steps = key["episodes"], key["steps"]
    settings = {name: key[name] for name in ("action_repeat", "frame_size", "quality")}
    with (
        contextlib.closing(DeepMindControl(key["task"], **settings)) as environment,
        (folder / "frames.bin").open("wb") as frames,
        (folder / "states.bin").open("wb") as states,
    ):
        for episode in range(episodes):
            for frame, state in _episode(environment, key["seed"], episode, steps):
                frames.write(frame.tobytes())
                states.write(state.astype("<f8").tobytes())
            if progress is not None:
                progress((episode + 1) * steps, episodes * steps, f"rendering {key['task']}")
        return environment.state_names


def _episode(
    environment: DeepMindControl, seed: int, episode: int, steps: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Frame and state after the reset and after each of ``steps - 1`` random actions."""
    generator = np.random.default_rng([seed, episode])
    environment.reset(seed=int(generator.integers(2**31)))
    yield environment.frame, environment.state
    for step in range(1, steps):
        action = generator.uniform(-1, 1, environment.action_space.shape).astype(np.float32)
        _, _, terminated, truncated, _ = environment.step(action)
        yield environment.frame, environment.state
        if (terminated or truncated) and step + 1 < steps:
            raise ValueError(f"{steps} frames of an episode that has no more than {step + 1}")


def _read_frames(folder: Path) -> Frames:
    """The frames stored in ``folder``, after checking that they are intact."""
    meta = read_meta(folder, FILES)
    episodes, steps, size, names = (
        meta[name] for name in ("episodes", "steps", "frame_size", "names")
    )

    def mapped(name: str, kind: str, *shape: int) -> Tensor:
        # Copy-on-write, since torch has no read-only tensors: changes would stay in this process.
        return torch.from_numpy(np.memmap(folder / name, kind, mode="c", shape=shape))

    frames = mapped("frames.bin", "u1", episodes * steps, 3, size, size)
    state = mapped("states.bin", "<f8", episodes * steps, len(names))
    episode = torch.arange(episodes).repeat_interleave(steps)
    return Frames(frames, episode * steps, episode, state, tuple(names))
