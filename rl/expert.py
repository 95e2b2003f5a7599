"""An expert for each task: soft actor-critic on the physics state, kept at three levels of skill.

Nothing is rendered during its training, which therefore takes minutes on one CPU core. Networks,
density, steps and targets are those of the pixel agent (:mod:`rl.agent`), without the encoder.

    policies.safetensors   the policy at each level of ``LEVELS``
    meta.json              the task, the budget, the curve, and the return of each level
    SHA256SUMS             of both

Shapes: n numbers of a state, A dimensions of an action, B of a batch.
"""

import contextlib
import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rl.agent import Critics, adam, descend, gaussian_of, perceptron, squashed_sample
from rl.environment import DeepMindControl, task_fingerprint
from shared.experiment.data import (
    build_once,
    read_meta,
    sha256_of,
    short_hash,
    write_meta,
    writing,
)
from shared.momentum import follow
from shared.notices import Progress

# Part of the key of stored experts; to be increased when the same budget gives other experts.
FORMAT = 1

FILES = ("policies.safetensors", "meta.json")
# By level, a share of the best evaluation's return; the first policy that reaches it is kept.
LEVELS = {"weak": 1 / 3, "middle": 2 / 3, "expert": 1.0}

HIDDEN = 256  # width of policy and critics
BATCH = 256
LEARNING_RATE = 1e-3
TEMPERATURE = 0.1  # alpha at the start
DISCOUNT = 0.99  # for each decision
CRITIC_MOMENTUM = 0.01
INITIAL = 15  # the first 1 / 15 of the decisions are random and without updates
EVALUATIONS = 15  # during training
EPISODES = 3  # of an evaluation
# Separates the seeds of these episodes from all others.
STREAM = 0x65787065


@dataclass(frozen=True)
class Expert:
    """Policies from one training run, by the names of ``LEVELS``, and their returns.

    policies: states (B, n) float32 -> (B, 2A), see :func:`rl.agent.gaussian_of`. returns: mean over
    the episodes of the evaluation at which the policy was kept. fingerprint: SHA-256 of the
    policies.
    """

    policies: dict[str, nn.Sequential]
    returns: dict[str, float]
    fingerprint: str


def trained_expert(
    task: str,
    action_repeat: int,
    *,
    episode_steps: int,
    decisions: int,
    seed: int,
    data_root: Path,
    progress: Progress | None = None,
) -> Expert:
    """The expert of a task, trained on first use, by the first process that needs it.

    On one type of processor it is a function of its arguments; on another the same arguments may
    give a different expert, since rounding errors grow over so long a training run. Every run
    records the fingerprint of its frames, which are what results depend on.

    Args:
        task: of DM Control.
        action_repeat: environment steps of a decision.
        episode_steps: environment steps of an episode.
        decisions: of its training; each has an update, except for the first, random ones.
        seed: of all randomness.
        data_root: ``prepared`` is created in it.
        progress: called during training with the decisions done, their total, and a description.

    Raises:
        UserError: an unknown task, a data root that cannot be written, or a damaged expert.
        ValueError: fewer decisions than ``EVALUATIONS``.
    """
    if decisions < EVALUATIONS:
        raise ValueError(f"an expert makes at least {EVALUATIONS} decisions; got {decisions}")
    key = {
        "task": task,
        "fingerprint": task_fingerprint(task),
        "action_repeat": action_repeat,
        "episode_steps": episode_steps,
        "decisions": decisions,
        "seed": seed,
        "format": FORMAT,
    }
    folder = data_root / "prepared" / "rl" / f"{task}-expert-{short_hash(key)}"
    build_once(folder, lambda part: _build(part, key, progress))
    return _read_expert(folder)


def mean_action(policy: nn.Module, state: np.ndarray) -> np.ndarray:
    """A policy's actions without noise, (B, A) or (A,) float32, in states (B, n) or (n,)."""
    with torch.no_grad():
        mean, _ = gaussian_of(policy(torch.from_numpy(state).float()))
    action: np.ndarray = mean.tanh().numpy()
    return action


def drawn_action(
    policy: nn.Module, state: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """A sampled action of a policy, (A,) float32, in a state (n,)."""
    with torch.no_grad():
        mean, log_std = gaussian_of(policy(torch.from_numpy(state).float()))
    noise = torch.from_numpy(generator.standard_normal(len(mean))).float()
    action: np.ndarray = (mean + noise * log_std.exp()).tanh().numpy()
    return action


def episode_return(policy: nn.Module, environment: DeepMindControl, seed: int) -> float:
    """The return of an episode without noise, in an environment that observes states."""
    state, _ = environment.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        state, reward, terminated, truncated, _ = environment.step(mean_action(policy, state))
        total += reward
        over = terminated or truncated
    return total


def _build(part: Path, key: dict[str, Any], progress: Progress | None) -> None:
    with writing(part.parent):
        by_level, curve = _train(key, progress)
        weights = {
            f"{level}.{name}": value.clone()  # several levels may share a snapshot
            for level, (policy, _) in by_level.items()
            for name, value in policy.state_dict().items()
        }
        save_file(weights, part / "policies.safetensors")
        meta = key | {
            "returns": {level: total for level, (_, total) in by_level.items()},
            "curve": curve,
        }
        write_meta(part, meta, FILES)


def _train(
    key: dict[str, Any], progress: Progress | None
) -> tuple[dict[str, tuple[nn.Module, float]], list[float]]:
    """Policy and return at each level, and the return at each evaluation."""
    threads = torch.get_num_threads()
    # The random state of a run that waits for its expert must not change, and the expert must not
    # depend on that run's number of threads.
    with torch.random.fork_rng(devices=[]), contextlib.ExitStack() as stack:
        torch.manual_seed(key["seed"])
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, threads)
        settings = {name: key[name] for name in ("task", "action_repeat", "episode_steps")}
        environment, test_environment = (
            stack.enter_context(contextlib.closing(DeepMindControl(observe="state", **settings)))
            for _ in range(2)
        )
        learner = Learner(len(environment.state_names), environment.action_space.shape[0])
        memory = Memory(key["decisions"], learner.states, learner.actions)
        random_steps, interval = key["decisions"] // INITIAL, key["decisions"] // EVALUATIONS
        snapshots: list[tuple[nn.Module, float]] = []
        state, _ = environment.reset(seed=key["seed"])
        for step in range(key["decisions"]):
            if step < random_steps:
                action = (2 * torch.rand(learner.actions) - 1).numpy()
            else:
                action = learner.act(state)
            following, reward, terminated, truncated, _ = environment.step(action)
            memory.add(state, action, reward, following)
            state = environment.reset()[0] if terminated or truncated else following
            if step >= random_steps:
                learner.update(memory.batch(BATCH), step)
            if (step + 1) % interval == 0:
                seeds = [
                    int(np.random.SeedSequence((STREAM, key["seed"], episode)).generate_state(1)[0])
                    for episode in range(EPISODES)
                ]
                total = fmean(
                    episode_return(learner.policy, test_environment, seed) for seed in seeds
                )
                snapshots.append((copy.deepcopy(learner.policy), total))
            if progress is not None:
                progress(step + 1, key["decisions"], f"an expert learns {key['task']}")
    curve = [total for _, total in snapshots]
    if max(curve) <= 0:
        warnings.warn(
            f"the expert of {key['task']} earned nothing in {key['decisions']} decisions, and is "
            f"imitated nevertheless: raise expert_decisions",
            stacklevel=2,
        )
    by_level = {
        level: next(snapshot for snapshot in snapshots if snapshot[1] >= share * max(curve))
        for level, share in LEVELS.items()
    }
    return by_level, curve


class Memory:
    """All transitions of a training run, (state, action, reward, next state), float32."""

    def __init__(self, capacity: int, states: int, actions: int) -> None:
        self.arrays = [torch.zeros(capacity, width) for width in (states, actions, 1, states)]
        self.count = 0

    def add(self, state: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray) -> None:
        """Add a transition."""
        for array, value in zip(self.arrays, (state, action, [reward], after), strict=True):
            array[self.count] = torch.as_tensor(value)
        self.count += 1

    def batch(self, size: int) -> list[Tensor]:
        """A random batch, with replacement, from torch's global generator."""
        index = torch.randint(self.count, (size,))
        return [array[index] for array in self.arrays]


class Learner:
    """Soft actor-critic on states (n,) with actions (A,), in float32 on the CPU.

    Source: Haarnoja et al. 2018, with the parts of :class:`rl.agent.Agent`.
    """

    def __init__(self, states: int, actions: int) -> None:
        self.states, self.actions = states, actions
        self.policy = perceptron(states, HIDDEN, 2 * actions)
        self.critics = Critics(states, actions, HIDDEN)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(TEMPERATURE).log())
        self.critic_optimiser = adam(self.critics.parameters(), LEARNING_RATE)
        self.policy_optimiser = adam(self.policy.parameters(), LEARNING_RATE)
        self.temperature_optimiser = adam([self.log_temperature], LEARNING_RATE, first_beta=0.5)

    @torch.no_grad()
    def act(self, state: np.ndarray) -> np.ndarray:
        """An action (A,) drawn from the policy in a state (n,)."""
        action, _ = squashed_sample(
            *gaussian_of(self.policy(torch.from_numpy(state).float()[None]))
        )
        drawn: np.ndarray = action[0].numpy()
        return drawn

    def update(self, batch: list[Tensor], step: int) -> None:
        """One update from transitions; policy, temperature and targets only at even steps."""
        state, action, reward, after = batch
        alpha = self.log_temperature.detach().exp()
        with torch.no_grad():
            next_action, log_probability = squashed_sample(*gaussian_of(self.policy(after)))
            value = self.targets(after, next_action).amin(1) - alpha * log_probability
            # The tasks end by their time limit only, so every state has a successor.
            target = reward + DISCOUNT * value[:, None]
        loss = (self.critics(state, action) - target).square().mean(0).sum()
        descend(loss, self.critic_optimiser)
        if step % 2 == 0:
            drawn, log_probability = squashed_sample(*gaussian_of(self.policy(state)))
            value = self.critics(state, drawn).amin(1)
            descend((alpha * log_probability - value).mean(), self.policy_optimiser)
            surplus = -log_probability.detach().mean() + self.actions
            descend(self.log_temperature.exp() * surplus, self.temperature_optimiser)
            follow(self.targets, self.critics, CRITIC_MOMENTUM)


def _read_expert(folder: Path) -> Expert:
    """The expert stored in ``folder``, after checking that it is intact."""
    meta = read_meta(folder, FILES)
    weights = load_file(folder / "policies.safetensors")
    policies = {}
    for level in LEVELS:
        state = {
            name.removeprefix(f"{level}."): value
            for name, value in weights.items()
            if name.startswith(f"{level}.")
        }
        # Building a network draws initial weights; the caller's random state must not change.
        with torch.random.fork_rng(devices=[]):
            policy = perceptron(state["0.weight"].shape[1], HIDDEN, len(state["4.bias"]))
        policy.load_state_dict(state)
        policies[level] = policy.eval()
    return Expert(policies, meta["returns"], sha256_of(folder / "policies.safetensors"))
