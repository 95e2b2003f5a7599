"""A whole run of an agent beside a plain program, in an environment that is not rendered.

The agent's update, which they share, is held by a plain program in test_agent.py.
"""

import csv
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rl
from rl import probe, train
from rl.agent import Agent, Contrast
from rl.config import Config, ProbeConfig
from rl.replay import Batch
from shared.experiment.run import Run
from tests.stages.training import spied

SIZE, CROP, STACK, REPEAT, LIMIT, A = 10, 8, 2, 2, 8, 2


class Drift(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point that actions push about, from where the seed puts it; walls end the episode."""

    action_space = gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]), dtype=np.float32)

    def __init__(self, first: bool = False) -> None:
        """With the channels first it draws into one array."""
        self.buffer = np.zeros((3, SIZE, SIZE), np.uint8) if first else None
        shape = (3, SIZE, SIZE) if first else (SIZE, SIZE, 3)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def picture(self) -> np.ndarray:
        """All channels, rows and columns differ."""
        grid = np.arange(SIZE * SIZE * 3).reshape(SIZE, SIZE, 3)
        phase = np.array([5.0, 11.0, 23.0]) * self.place.sum() + 3 * self.steps
        drawn = ((grid * 37 + 100 * self.place[0] + phase) % 251).astype(np.uint8)
        if self.buffer is None:
            return drawn
        self.buffer[:] = drawn.transpose(2, 0, 1)
        return self.buffer

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(-1, 1, 2), 0
        return self.picture(), {}

    def step(self, action: np.ndarray) -> Any:
        self.place = self.place + 0.2 * action
        self.steps += 1
        reward = float(np.cos(self.place).sum() + action[0] + 0.1 * self.steps)
        left = self.place[1] > 1.4  # for where it is not followed
        return self.picture(), reward, bool(abs(self.place[0]) > 1.5), bool(left), {}


def drift() -> Any:
    return Drift()


def drift_in_a_buffer() -> Any:
    return Drift(first=True)


CONFIG = Config(
    task="drift",
    action_repeat=REPEAT,
    episode_steps=LIMIT,
    frame_size=SIZE,
    crop=CROP,
    stack=STACK,
    filters=4,
    convolutions=2,
    latent=5,
    hidden=6,
    batch_size=6,
    environment_steps=60,
    initial_steps=12,
    learning_rate=0.01,
    evaluate_every=6,
    evaluation_episodes=3,
    protocol="dmc-return-v2",
    seed=1,
)


class Wrapped:
    """The same environment with actions in [-1, 1], repeats, a limit and stacked frames."""

    def __init__(self) -> None:
        self.inner, self.seed, self.episode = Drift(), 0, 0

    def reset(self, seed: int | None = None) -> np.ndarray:
        self.seed, self.episode = (self.seed, self.episode + 1) if seed is None else (seed, 0)
        start = np.random.default_rng([self.seed, self.episode]).integers(2**31)
        self.frames = [self.inner.reset(seed=int(start))[0].transpose(2, 0, 1)] * STACK
        self.steps = 0
        return np.concatenate(self.frames)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        share, total = (np.asarray(action, np.float64) + 1) / 2, 0.0
        chosen = (np.array([-2.0, 0.0]) + share * np.array([4.0, 1.0])).astype(np.float32)
        for _ in range(REPEAT):
            frame, reward, terminated, left, _ = self.inner.step(chosen)
            total, self.steps = total + reward, self.steps + 1
            limited = left or self.steps == LIMIT
            if terminated or limited:
                break
        self.frames = [*self.frames[1:], frame.transpose(2, 0, 1)]
        return np.concatenate(self.frames), total, terminated, limited


def start_of(seed: int, step: int, episode: int) -> int:
    entropy = (0x65766131, seed * 1_000_000 + step, episode)
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def plain_returns(act: Any, seed: int, step: int) -> list[float]:
    """Sums of rewards, each episode alone, from starts of their own."""
    sums = []
    for episode in range(3):
        world, ended, total = Wrapped(), False, 0.0
        observation = world.reset(start_of(seed, step, episode))
        while not ended:
            observation, reward, terminated, limited = world.step(act(observation, episode))
            total, ended = total + reward, terminated or limited
        sums.append(total)
    return sums


def cut(observations: list[np.ndarray], corners: torch.Tensor) -> torch.Tensor:
    windows = [
        each[:, y : y + CROP, x : x + CROP]
        for each, (y, x) in zip(observations, corners.tolist(), strict=True)
    ]
    return torch.from_numpy(np.stack(windows))


Parts = list[dict[str, torch.Tensor]]


def plain_run() -> tuple[Agent, Parts, list[list[float]], list[tuple[bool, bool, bool]]]:
    """The agent, each update's parts, each evaluation's returns, and how each decision ended."""
    torch.manual_seed(1)
    agent, world = Agent(CONFIG, A), Wrapped()
    memory: list[tuple[Any, ...]] = []
    parts: Parts = []
    evaluated, ends = [], []
    observation = world.reset(seed=1)
    for decision in range(30):
        if decision < 12:
            action = (2 * torch.rand(A) - 1).numpy()
        else:
            action = agent.act(torch.from_numpy(observation)[None], sample=True)[0].numpy()
            drawn = [memory[i] for i in torch.randint(len(memory), (6,))]
            corners = torch.randint(SIZE - CROP + 1, (3, 6, 2))
            before, actions, rewards, after, ended = (
                list(each) for each in zip(*drawn, strict=True)
            )
            batch = Batch(
                observation=cut(before, corners[0]),
                next_observation=cut(after, corners[1]),
                positive=cut(before, corners[2]),
                action=torch.from_numpy(np.stack(actions)),
                reward=torch.tensor(rewards, dtype=torch.float32),
                terminated=torch.tensor(ended, dtype=torch.float32),
            )
            parts.append(agent.update(batch, decision))
        following, reward, terminated, limited = world.step(action)
        memory.append((observation, action, reward, following, terminated))
        ends.append((terminated, limited, world.steps == LIMIT))
        observation = world.reset() if terminated or limited else following
        if decision % 3 == 2:

            def act(seen: np.ndarray, _: int) -> np.ndarray:
                return agent.act(torch.from_numpy(seen)[None], sample=False)[0].numpy()

            evaluated.append(plain_returns(act, 1, 2 * decision + 2))
    return agent, parts, evaluated, ends


@pytest.mark.parametrize("make", [drift, drift_in_a_buffer])
def test_a_whole_run_by_hand(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "LOG_EVERY", 10)
    agents = spied(monkeypatch, train, "make_update", lambda _, agent, *__: agent)
    shown: list[str] = []
    with Run(tmp_path, CONFIG, watch=2, show=shown.append) as run:
        found = rl.train_agent(CONFIG, make, run)
    agent, parts, evaluated, ends = plain_run()
    left, limited = (False, True, False), (False, True, True)
    assert {(True, False, False), left, limited, (False, False, False)} <= set(ends)
    close = functools.partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    close(agents[0].state_dict(), agent.state_dict())
    curve = found["details"]["curve"]
    assert [entry["step"] for entry in curve] == list(range(6, 61, 6))
    for entry, sums in zip(curve, evaluated, strict=True):
        assert entry["episodes"] == pytest.approx(sums, rel=1e-4)
    means = [sum(sums) / 3 for sums in evaluated]
    assert found["return"] == pytest.approx(means[-1], rel=1e-4)
    # From a fifth of sixty steps on: all but the first.
    assert found["mean_return"] == pytest.approx(sum(means[1:]) / 9, rel=1e-4)

    # What it leaves: means over ten decisions, of which two had no update; the curve; the weights.
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    returns = [(line["step"], line["evaluation"]) for line in lines if "evaluation" in line]
    assert returns == [(entry["step"], entry["return"]) for entry in curve]
    logged = [line for line in lines if "critic_loss" in line]
    for line, step, some in zip(logged, (40, 60), (parts[:8], parts[8:]), strict=True):
        assert line["step"] == step
        for name in set().union(*some):
            values = torch.stack([each[name] for each in some if name in each])
            close(torch.tensor(line[name]), values.mean(), msg=name)
    with (tmp_path / "curve.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [[row[name] for name in ("task", "seed", "step", "return")] for row in rows] == [
        ["drift", "1", str(step), str(value)] for step, value in returns
    ]
    assert [float(row["seconds"]) for row in rows] == [entry["seconds"] for entry in curve]
    assert shown == [
        f"environment steps {step} of 60: evaluation {value:.4g}" for step, value in returns[1::2]
    ]
    state = agents[0].state_dict()
    weights = {k: x for k, x in state.items() if k.startswith(("contrast.encoder.", "actor."))}
    close(load_file(tmp_path / "model.safetensors"), weights, rtol=0, atol=0)


def test_the_random_policy_by_hand(tmp_path: Path) -> None:
    """Its actions are drawn for all episodes at once, also for those that have ended."""
    config = dataclasses.replace(CONFIG, train=False)
    with Run(tmp_path, config) as run:
        found = rl.train_agent(config, drift, run)
    generator = torch.Generator().manual_seed(1)
    actions = [(2 * torch.rand(3, A, generator=generator) - 1).numpy() for _ in range(4)]
    sums = []
    for episode in range(3):
        world, total = Wrapped(), 0.0
        world.reset(start_of(1, 60, episode))
        for action in actions:
            _, reward, terminated, limited = world.step(action[episode])
            total += reward
            if terminated or limited:
                break
        sums.append(total)
    assert found["details"]["curve"][0]["episodes"] == pytest.approx(sums)
    assert found["return"] == found["mean_return"] == pytest.approx(sum(sums) / 3)


def test_seeds_start_apart() -> None:
    """Weights, first and later episodes, and random actions; of evaluations see theirs."""
    weights, first, actions = set(), set(), set()
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        agent = Agent(CONFIG, A)
        weights |= {float(part.detach().sum()) for part in agent.contrast.criterion.parameters()}
        world = Wrapped()
        first |= {world.reset(seed).tobytes(), world.reset().tobytes(), world.reset().tobytes()}
        policy = train.random_policy(dataclasses.replace(CONFIG, seed=seed), A)
        actions |= {str(policy(torch.zeros(3, 1)).tolist()) for _ in range(2)}
    assert (len(weights), len(first), len(actions)) == (3, 9, 6)


# The state probe

PROBE = ProbeConfig(
    **{**vars(CONFIG), "protocol": "state-probe-v1"}
    | {"probe_episodes": 5, "probe_test_episodes": 2, "probe_steps": 4, "probe_updates": 5}
)
FRAMES = rl.data.Frames(
    frames=torch.randint(
        256, (28, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    ),
    first=torch.arange(28) // 4 * 4,
    episode=torch.arange(28) // 4,
    state=torch.arange(56.0).view(28, 2).double(),
    names=("position", "velocity"),
)


def stack_of(number: int) -> np.ndarray:
    """The frame and the one before it; the first of the four of an episode is repeated."""
    return np.concatenate([FRAMES.frames[max(number - 1, number // 4 * 4)], FRAMES.frames[number]])


@pytest.mark.parametrize("kind", ["trained", "untrained", "pixels"])
def test_a_state_probe_by_hand(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = PROBE
    if kind != "trained":
        changes = {"probe_input": "pixels"} if kind == "pixels" else {"precision": "bfloat16"}
        config = dataclasses.replace(PROBE, train=False, **changes)
    forward: list[type[torch.nn.Module]] = []

    def replicated(function: Any, module: torch.nn.Module) -> Any:
        return lambda *args: forward.append(type(module)) or function(*args)

    monkeypatch.setattr(probe, "replicated", replicated)
    asked: list[dict[str, Any]] = []
    probed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        probe, "random_frames", lambda *_, **given: asked.append({"of": _, **given}) or FRAMES
    )
    monkeypatch.setattr(probe, "state_probe", lambda *args: probed.append(args) or {"r2": 7.0})
    monkeypatch.setattr(probe, "renderer_in_use", lambda: "none")
    monkeypatch.setattr(probe, "task_fingerprint", lambda task: f"of {task}")
    with Run(tmp_path, config, data_root=tmp_path, watch=1, show=lambda text: None) as run:
        assert probe.measure(config, run) == {"r2": 7.0}
        assert run.environment["data"].keys() == {"drift", "frames"}
        assert run.environment["data"]["drift"] == "of drift"
        assert run.environment["facts"]["renderer"] == "none"
    assert asked == [
        {
            "of": ("drift", REPEAT),
            "episodes": 7,
            "steps": 4,
            "frame_size": SIZE,
            "quality": "full",
            "seed": 1,
            "data_root": tmp_path,
            "progress": run.progress,
        }
    ]

    torch.manual_seed(1)
    contrast = Contrast(config)
    parts: Parts = []
    for step in range(5 if kind == "trained" else 0):
        stacks = [stack_of(number) for number in torch.randint(20, (6,)).tolist()]
        corners = torch.randint(SIZE - CROP + 1, (2, 6, 2))
        if step % config.update_every == 0:
            contrast.follow()
        parts.append(contrast.update(cut(stacks, corners[0]), cut(stacks, corners[1]), step))
    centre = torch.full((28, 2), (SIZE - CROP) // 2)
    crops = cut([stack_of(number) for number in range(28)], centre)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=kind == "untrained"):
        expected = crops.flatten(1) / 255 if kind == "pixels" else contrast.encoder(crops).float()
    given = [expected, FRAMES.state, FRAMES.episode]
    *looks, found = probed
    for (*arrays, names), every in [(found, 1), *((look, 3) for look in looks)]:
        assert names == FRAMES.names
        wanted = [each[:20][::every] for each in given] + [each[20:][::every] for each in given]
        for one, other in zip(arrays, wanted[:5], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    if kind == "pixels":
        assert not (tmp_path / "model.safetensors").exists()
        return
    state = {f"encoder.{name}": value for name, value in contrast.encoder.state_dict().items()}
    weights = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(weights, state, rtol=1e-4, atol=1e-5)
    if kind == "trained":
        (line,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
        assert (line["step"], line["watch/r2"], len(looks)) == (5, 7.0, 1)
        losses = [float(each["contrastive_loss"]) for each in parts]
        assert line["contrastive_loss"] == pytest.approx(sum(losses) / 5, rel=1e-4)
        assert forward == [Contrast] * 5
        assert not run.keep_checkpoint
