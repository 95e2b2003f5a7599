"""Environments of one's own: a pendulum's pictures, with bounded and with discrete actions."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rl
from rl import export
from rl.config import Config, ProbeConfig
from rl.environment import Environment
from shared.errors import UserError
from shared.experiment.run import Run

SIZE = 16


class Pictures(gymnasium.ObservationWrapper[np.ndarray, np.ndarray, np.ndarray]):
    """A pendulum as a bright pixel on a black square."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)

    def observation(self, state: np.ndarray) -> np.ndarray:
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        place = np.clip(np.rint((state[:2] + 1) / 2 * (SIZE - 1)), 0, SIZE - 1).astype(int)
        picture[place[0], place[1]] = (255, 128, int(128 + 10 * state[2]))
        return picture


def pendulum() -> Any:
    return Pictures(gymnasium.make("Pendulum-v1"))


def whole_torques() -> Any:
    made = pendulum()
    made.action_space = gymnasium.spaces.Box(-2, 2, (1,), np.int64)
    return made


class Steps(gymnasium.ActionWrapper[np.ndarray, np.ndarray, Any]):
    """Three torques."""

    def __init__(self) -> None:
        super().__init__(pendulum())
        self.action_space = gymnasium.spaces.Discrete(3)

    def action(self, action: Any) -> np.ndarray:
        return np.array([2.0 * (int(action) - 1)], np.float32)


def discrete() -> Any:
    return Steps()


class Drifting(gymnasium.ObservationWrapper[np.ndarray, np.ndarray, np.ndarray]):
    """Pictures that are no function of the seed."""

    count = 0

    def observation(self, picture: np.ndarray) -> np.ndarray:
        Drifting.count += 1
        return np.full_like(picture, Drifting.count % 256)


def drifting() -> Any:
    return Drifting(pendulum())


def states() -> Any:
    return gymnasium.make("Pendulum-v1")


SETTINGS = {"task": "pendulum", "action_repeat": 2, "frame_size": SIZE, "crop": 12}
CONFIG = dataclasses.replace(
    Config().reduced(),
    **SETTINGS,
    convolutions=2,
    episode_steps=40,
    environment_steps=80,
    initial_steps=8,
    evaluate_every=40,
)
PROBE = dataclasses.replace(ProbeConfig().reduced(), **SETTINGS, convolutions=2, probe_updates=4)


def test_the_policy_that_a_training_leaves_has_the_returns_of_its_curve(tmp_path: Path) -> None:
    with Run(tmp_path / "run", CONFIG) as run:
        found = run.finish(rl.train_agent(CONFIG, pendulum, run))["metrics"]
        assert list(run.environment["data"]) == ["pendulum"]
    policy: Any = export.read(tmp_path / "run")
    seed = CONFIG.seed * 1_000_000 + CONFIG.environment_steps  # of the run's last evaluation
    sums = rl.evaluate_policy(policy, CONFIG, seed=seed, make=pendulum)
    assert sums == found["details"]["curve"][-1]["episodes"]
    assert rl.evaluate_policy(policy, CONFIG, seed=seed + 1, make=pendulum) != sums
    with pytest.raises(ValueError, match="states"):
        rl.evaluate_policy(policy, CONFIG, seed=seed, make=states)


@pytest.mark.parametrize("make", [pendulum, discrete])
def test_a_restored_environment_goes_on(make: Any) -> None:
    settings = {"action_repeat": 2, "frame_size": SIZE, "stack": 3, "episode_steps": 40}
    whole, resumed = (Environment(make, **settings) for _ in "12")
    action = np.int64(2) if make is discrete else np.array([0.5], np.float32)
    with pytest.raises(gymnasium.error.ResetNeeded, match=make.__name__):
        whole.snapshot()
    whole.reset(seed=5)
    for _ in range(2):  # in its third episode
        whole.reset()
        whole.step(action)
    snapshot = whole.snapshot()
    resumed.restore(snapshot)
    for one, other in zip(whole.step(action), resumed.step(action), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(whole.reset()[0], resumed.reset()[0])
    snapshot["frames"] = snapshot["frames"] + 1
    with pytest.raises(ValueError, match=f"{make.__name__}: .* other frames"):
        resumed.restore(snapshot)


def test_actions_reach_the_bounds_and_no_further() -> None:
    environment = Environment(pendulum, action_repeat=1, frame_size=SIZE, stack=1, episode_steps=9)
    environment.reset(seed=0)
    step, reached = environment._inner.step, list[float]()
    environment._inner.step = lambda action: reached.extend(action) or step(action)  # type: ignore[method-assign]
    for action in (-7.0, -1.0, 0.5, 7.0):
        environment.step(np.array([action]))
    assert reached == [-2.0, -2.0, 1.0, 2.0]


@pytest.mark.parametrize("make", [pendulum, discrete])
def test_the_encoder_alone_takes_any_actions(tmp_path: Path, make: Any) -> None:
    with Run(tmp_path / "run", PROBE) as run:
        contrast = rl.pretrain(PROBE, make, run)
        assert set(run.environment["data"]) == {"pendulum", "frames"}
    device = next(contrast.encoder.parameters()).device
    crops = torch.zeros(2, 9, 12, 12, dtype=torch.uint8, device=device)
    assert contrast.encoder(crops).shape == (2, PROBE.latent)


@pytest.mark.parametrize(
    ("make", "changes", "word"),
    [
        (states, {}, "states"),
        (pendulum, {"frame_size": 20}, r"\(20, 20, 3\)"),
        (discrete, {}, "Discrete"),
        (whole_torques, {}, "floating"),
        (drifting, {}, "drifting"),
        (pendulum, {"task": "walker_walk"}, "DM Control"),
    ],
)
def test_what_is_refused(tmp_path: Path, make: Any, changes: dict[str, Any], word: str) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with Run(tmp_path / "run", config) as run:
        with pytest.raises(ValueError, match=word):
            rl.train_agent(config, make, run)
        if config.task == "pendulum":  # names nothing
            with pytest.raises(UserError, match="train_agent"):
                rl.measure(config, run)
