"""Experts on the physics state: what is learnt, what is kept, and how they act."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rl.expert
from rl.agent import gaussian_of
from rl.expert import (
    EVALUATIONS,
    FILES,
    LEVELS,
    Expert,
    Learner,
    Memory,
    mean_action,
    trained_expert,
)
from shared.errors import UserError


class Point:
    """A point on a line, pushed by actions; the nearer to 0, the higher the reward."""

    state_names = ("position", "velocity")
    made = 0

    def __init__(self, task: str, *, action_repeat: int, episode_steps: int, observe: str) -> None:
        assert observe == "state"
        type(self).made += 1
        self.action_space = np.zeros(1)  # has the shape of one
        self.length = episode_steps // action_repeat
        self.random = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.state = np.array([self.random.uniform(-1, 1), 0.0])
        self.steps = 0
        return self.state, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float32
        assert abs(action[0]) <= 1
        self.steps += 1
        position = float(np.clip(self.state[0] + 0.3 * action[0], -1, 1))
        self.state = np.array([position, 0.3 * action[0]])
        return self.state, 1 - abs(position), False, self.steps == self.length, {}

    def close(self) -> None:
        pass


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl.expert, "DeepMindControl", Point)
    monkeypatch.setattr(rl.expert, "task_fingerprint", lambda task: f"of {task}")
    monkeypatch.setattr(rl.expert, "HIDDEN", 16)
    monkeypatch.setattr(rl.expert, "BATCH", 32)
    Point.made = 0


def trained(root: Path, **changes: Any) -> Expert:
    settings: dict[str, Any] = {"episode_steps": 20, "decisions": 600, "seed": 0}
    return trained_expert("point", 2, **(settings | changes), data_root=root)


def folder_of(root: Path) -> Path:
    (folder,) = (each for each in (root / "prepared" / "rl").iterdir() if each.is_dir())
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("point")
def test_it_learns_and_its_levels_are_ordered(tmp_path: Path) -> None:
    expert = trained(tmp_path)
    assert list(expert.policies) == list(LEVELS) == ["weak", "middle", "expert"]
    best = expert.returns["expert"]
    # Staying where one starts gives 5 of 10 on average; going to 0 takes 2 decisions on average.
    assert best > 8
    for level, share in LEVELS.items():
        assert share * best <= expert.returns[level] <= best
    left, right = (mean_action(expert.policies["expert"], np.array([x, 0.0])) for x in (0.7, -0.7))
    assert left < -0.5
    assert right > 0.5


@pytest.mark.usefixtures("point")
def test_it_is_trained_once_and_moves_no_random_numbers_and_no_threads(tmp_path: Path) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first = trained(tmp_path, decisions=60)
    made = Point.made
    assert made > 0
    again = trained(tmp_path, decisions=60)
    assert Point.made == made
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    elsewhere = trained(tmp_path / "elsewhere", decisions=60)
    other = trained(tmp_path / "other", decisions=60, seed=1)
    assert first.fingerprint == again.fingerprint == elsewhere.fingerprint != other.fingerprint
    for level in LEVELS:
        for one, two in zip(
            first.policies[level].parameters(), again.policies[level].parameters(), strict=True
        ):
            assert torch.equal(one, two)
    assert {path.name for path in folder_of(tmp_path).iterdir()} == {*FILES, "SHA256SUMS"}


@pytest.mark.usefixtures("point")
def test_a_level_is_the_first_evaluation_that_reaches_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter([3.0, 1.0, 2.0, 4.0, 3.9, 9.0, 6.0, 8.9, *[5.0] * (EVALUATIONS - 8)] * 3)
    seen: list[int] = []

    def told(policy: Any, environment: Any, seed: int) -> float:
        seen.append(seed)
        return next(returns)

    returns = (each for each in given for _ in range(rl.expert.EPISODES))
    monkeypatch.setattr(rl.expert, "episode_return", told)
    assert trained(tmp_path, decisions=60).returns == {"weak": 3.0, "middle": 9.0, "expert": 9.0}
    # Each evaluation is of the same episodes.
    assert len(set(seen)) == rl.expert.EPISODES
    assert len(seen) == EVALUATIONS * rl.expert.EPISODES
    monkeypatch.setattr(rl.expert, "episode_return", lambda *_: 0.0)
    with pytest.warns(UserWarning, match="earned nothing in 61 decisions"):
        trained(tmp_path, decisions=61)


@pytest.mark.usefixtures("point")
def test_a_damaged_expert_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, decisions=60)
    file = folder_of(tmp_path) / "policies.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"SHA-256 of policies\.safetensors .*; delete .*-expert-"):
        trained(tmp_path, decisions=60)


def critics_loss(learner: Learner, batch: list[Tensor], noise: Tensor) -> Tensor:
    """The critics' loss by the equation, transition by transition."""
    total = torch.zeros(())
    alpha = learner.log_temperature.exp()
    for state, action, reward, after, drawn in zip(*batch, noise, strict=True):
        mean, log_std = gaussian_of(learner.policy(after[None]))
        squashed = (mean[0] + drawn * log_std[0].exp()).tanh()
        normal = torch.distributions.Normal(mean[0], log_std[0].exp())
        density = normal.log_prob(mean[0] + drawn * log_std[0].exp())
        density = (density - (1 - squashed**2 + 1e-6).log()).sum()
        value = learner.targets(after[None], squashed[None]).min() - alpha * density
        target = (reward[0] + rl.expert.DISCOUNT * value).detach()
        for critic in (learner.critics.first, learner.critics.second):
            total = total + (critic(torch.cat([state, action]))[0] - target) ** 2
    return total / len(batch[0])


def test_the_critics_follow_the_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    learner = Learner(3, 2)
    memory = Memory(10, 3, 2)
    generator = np.random.default_rng(0)
    for _ in range(10):
        state, after = generator.standard_normal((2, 3))
        memory.add(state, generator.uniform(-1, 1, 2), generator.uniform(), after)
    batch = memory.batch(6)
    assert [tuple(each.shape) for each in batch] == [(6, 3), (6, 2), (6, 1), (6, 3)]
    losses: list[float] = []

    def kept(loss: Tensor, *optimisers: Any) -> None:
        losses.append(float(loss.detach()))

    monkeypatch.setattr(rl.expert, "descend", kept)
    torch.manual_seed(5)
    learner.update(batch, step=1)
    torch.manual_seed(5)
    expected = critics_loss(learner, batch, torch.randn(6, 2))
    assert losses == [
        pytest.approx(float(expected.detach()), rel=1e-5)
    ]  # at odd steps the critics alone
    learner.update(batch, step=2)
    assert len(losses) == 4


def test_critics_learn_at_odd_steps_and_everything_at_even_ones() -> None:
    torch.manual_seed(0)
    learner = Learner(3, 1)
    batch = [torch.randn(8, width) for width in (3, 1, 1, 3)]
    parts: dict[str, Callable[[], Any]] = {
        "policy": learner.policy.parameters,
        "critics": learner.critics.parameters,
        "targets": learner.targets.parameters,
        "temperature": lambda: iter([learner.log_temperature]),
    }
    for step, expected in ((1, {"critics"}), (2, set(parts))):
        before = {name: [p.detach().clone() for p in get()] for name, get in parts.items()}
        learner.update(batch, step)
        moved = {
            name
            for name, get in parts.items()
            if any(not torch.equal(a, b) for a, b in zip(before[name], get(), strict=True))
        }
        assert moved == expected
