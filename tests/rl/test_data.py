import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl.data
from rl.data import Frames, frames_fingerprint, random_frames

SIZE = 6


class Fake:
    """An environment whose frame and state tell what led to them."""

    state_names = ("position[0]", "position[1]", "velocity")
    longest = 9  # decisions of an episode
    closed = 0

    def __init__(self, task: str, *, action_repeat: int, frame_size: int, quality: str) -> None:
        self.size, self.settings = frame_size, f"{task}, {action_repeat}, {quality}"
        self.action_space = np.zeros(2)  # has the shape of one

    def reset(self, *, seed: int) -> None:
        self.steps = 0
        self._show(np.array([seed, 0.0]))

    def step(self, action: np.ndarray) -> tuple[None, float, bool, bool, None]:
        assert action.dtype == np.float32
        assert (np.abs(action) <= 1).all()
        self.steps += 1
        self._show(action.astype(np.float64))
        return None, 0.0, False, self.steps == self.longest, None

    def close(self) -> None:
        type(self).closed += 1

    def _show(self, numbers: np.ndarray) -> None:
        self.state = np.array([*numbers, self.steps])
        told = self.state.tobytes() + self.settings.encode()
        digest = hashlib.sha256(told).digest()[:3]
        self.frame = np.frombuffer(digest, np.uint8)[:, None, None].repeat(self.size, 1)
        self.frame = self.frame.repeat(self.size, 2)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl.data, "DeepMindControl", Fake)
    monkeypatch.setattr(rl.data, "renderer_in_use", lambda: "fake")
    monkeypatch.setattr(rl.data, "task_fingerprint", lambda task: f"of {task}")


def small(root: Path, **changes: Any) -> Frames:
    settings: dict[str, Any] = {
        "task": "finger_spin",
        "action_repeat": 2,
        "episodes": 3,
        "steps": 4,
        "frame_size": SIZE,
        "quality": "fast",
        "seed": 0,
    }
    return random_frames(**(settings | changes), data_root=root)


def folders_of(root: Path) -> list[Path]:
    return [each for each in (root / "prepared" / "rl").iterdir() if each.is_dir()]


# What is kept


@pytest.mark.usefixtures("fake")
def test_frames_and_states_are_those_of_the_environment(tmp_path: Path):
    made = small(tmp_path, seed=5)
    environment = Fake("finger_spin", action_repeat=2, frame_size=SIZE, quality="fast")
    row = 0
    for episode in range(3):
        generator = np.random.default_rng([5, episode])
        environment.reset(seed=int(generator.integers(2**31)))
        for step in range(4):
            if step:
                environment.step(generator.uniform(-1, 1, 2).astype(np.float32))
            np.testing.assert_array_equal(made.frames[row], environment.frame)
            np.testing.assert_array_equal(made.state[row], environment.state)
            row += 1
    assert made.frames.shape == (12, 3, SIZE, SIZE)
    assert made.frames.dtype == torch.uint8
    assert made.state.dtype == torch.float64
    assert made.state[:, 2].tolist() == [0, 1, 2, 3] * 3
    assert made.episode.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert made.first.tolist() == [0] * 4 + [4] * 4 + [8] * 4
    assert made.names == Fake.state_names
    assert len(folders_of(tmp_path)) == 1
    assert folders_of(tmp_path)[0].name.startswith(f"finger_spin-{SIZE}-fast-")


@pytest.mark.usefixtures("fake")
def test_they_are_rendered_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[int, int, str]] = []
    closed = Fake.closed
    first = small(tmp_path, progress=lambda *message: told.append(message))
    assert told == [(n, 12, "rendering finger_spin") for n in (4, 8, 12)]
    assert Fake.closed == closed + 1
    monkeypatch.delattr("rl.data._render")
    second = small(tmp_path)
    for name in ("frames", "first", "episode", "state"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.names == second.names
    # Changes stay with whom made them.
    first.frames.zero_()
    first.state.zero_()
    assert torch.equal(small(tmp_path).frames, second.frames)
    assert second.frames.any()


@pytest.mark.usefixtures("fake")
def test_whatever_decides_the_frames_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"task": "cheetah_run"},
        {"action_repeat": 4},
        {"episodes": 2},
        {"steps": 5},
        {"frame_size": 7},
        {"quality": "full"},
        {"seed": 1},
    )
    for number, change in enumerate(changes, start=1):
        small(tmp_path, **change)
        assert len(folders_of(tmp_path)) == number
    for name, value in (
        ("renderer_in_use", lambda: "another"),
        ("task_fingerprint", lambda task: "another version"),
        ("FORMAT", 0),
    ):
        monkeypatch.setattr(rl.data, name, value)
        small(tmp_path)
        number += 1
        assert len(folders_of(tmp_path)) == number


@pytest.mark.usefixtures("fake")
def test_the_fingerprint_is_of_all_parts(tmp_path: Path):
    made = small(tmp_path)
    expected = frames_fingerprint(made)
    assert len(expected) == 64
    assert frames_fingerprint(small(tmp_path)) == expected
    others = {frames_fingerprint(small(tmp_path, seed=1)), expected}
    for name in ("frames", "first", "episode", "state"):
        changed = {key: value for key, value in vars(made).items() if key != name}
        tensor = getattr(made, name).clone()
        tensor[-1] += 1
        others.add(frames_fingerprint(Frames(**changed, **{name: tensor})))
    others.add(frames_fingerprint(Frames(**(vars(made) | {"names": ("a", "b", "c")}))))
    assert len(others) == 7
