"""Your own gymnasium environments: pixels and bounded actions, under any objective.

Shapes: S pixels of a frame, K frames of an observation, A dimensions of an action, n frames.
"""

import contextlib
from typing import Any

import gymnasium
import numpy as np
import torch

from rl.agent import Contrast
from rl.config import Config, ProbeConfig, check
from rl.data import Frames, frames_fingerprint
from rl.environment import Environment, Make, checked_maker, vector_of
from rl.probe import pretrain as pretrain_on_frames
from rl.train import Environments, check_agent, train_with
from shared.experiment.run import Run
from shared.functions import identity


def train_agent(config: Config, make: Make, run: Run) -> dict[str, Any]:
    """Train soft actor-critic with the contrastive step on your environment.

    Args:
        config: how; ``task`` is the name of your environment. ``quality`` is not used.
        make: see :class:`Environment`; a function at the top level of a file.
        run: where it is logged, saved and resumed from.

    Returns:
        As :func:`rl.measure`.

    Raises:
        ValueError: as :func:`rl.measure` and :class:`Environment`; a task of DM Control, or
            actions that are not numbers.
        FloatingPointError: training diverged, or a reward is not finite.
    """
    check_agent(config)
    make_checked = checked_maker(config, make)
    with contextlib.closing(make_checked()) as environment:
        if not isinstance(environment.action_space, gymnasium.spaces.Box):
            raise ValueError(
                f"{make.__name__}: its actions are {environment.action_space}; the agent takes a "
                f"Box. rl.pretrain trains the encoder alone, whatever the actions"
            )

    def make_environments(config: Config, run: Run) -> Environments:
        return vector_of(make_checked, config.evaluation_episodes, run.workers)

    run.record_data(**{config.task: identity(make).partition("@")[2]})
    return train_with(config, run, make_checked, make_environments, episodes=None)


def pretrain(config: ProbeConfig, make: Make, run: Run) -> Contrast:
    """Train the contrastive encoder on frames of your environment under random actions.

    Args:
        config: how; ``task`` is the name of your environment, and there are ``probe_episodes`` of
            at most ``probe_steps`` frames.
        make: see :class:`Environment`; its actions may be of any space.
        run: where it is logged, saved and resumed from.

    Returns:
        The encoder with its momentum encoder, on the GPU if there is one.

    Raises:
        ValueError: what :func:`rl.config.check` and :class:`Environment` refuse, or a task of
            DM Control.
        FloatingPointError: the training diverged.
    """
    check(config)
    make_checked = checked_maker(config, make)
    with contextlib.closing(make_checked()) as environment:
        frames = random_frames_of(
            environment, config.probe_episodes, config.probe_steps, config.seed
        )
    key = identity(make).partition("@")[2]
    run.record_data(**{config.task: key, "frames": frames_fingerprint(frames)})
    return pretrain_on_frames(config, frames, run)


def random_frames_of(environment: Environment, episodes: int, steps: int, seed: int) -> Frames:
    """Frames of episodes under random actions, a function of the seed; their states are empty.

    ``steps`` is the largest number of frames of an episode, including the first. The environment is
    left open.
    """
    frames: list[np.ndarray] = []
    first: list[int] = []
    episode: list[int] = []
    environment.action_space.seed(seed)
    for number in range(episodes):
        environment.reset(seed=seed if number == 0 else None)
        start, ended = len(frames), False
        while True:
            frames.append(environment.frame)
            first.append(start)
            episode.append(number)
            if ended or len(frames) - start == steps:
                break
            _, _, terminated, truncated, _ = environment.step(environment.action_space.sample())
            ended = terminated or truncated
    return Frames(
        torch.from_numpy(np.stack(frames)),
        torch.tensor(first),
        torch.tensor(episode),
        torch.zeros(len(frames), 0, dtype=torch.float64),
        (),
    )
