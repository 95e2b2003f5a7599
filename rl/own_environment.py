"""Your own gymnasium environments in the form that the agent needs.

Shapes: S pixels of a frame, K frames of an observation, A dimensions of an action.
"""

import contextlib
import functools
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.utils.env_checker import check_env

from rl.config import TASKS, Config
from shared.functions import function_name, identity

Make = Callable[[], gymnasium.Env[Any, Any]]


class OwnEnvironment(gymnasium.Env[np.ndarray, np.ndarray]):
    """Your environment in the form that the agent needs: stacked frames, actions in [-1, 1].

    Observations are (3K, S, S) uint8, the oldest frame first; the first frame of an episode is
    repeated K times. An action is repeated, and its rewards summed.

    Args:
        make: a function without arguments that makes the environment, whose observations are
            (S, S, 3) or (3, S, S) uint8. A Box of real actions (A,) is scaled from [-1, 1]; other
            spaces stay as they are, which suffices for frames under random actions.
        action_repeat: for how many steps an action is repeated.
        frame_size: S.
        stack: K.
        episode_steps: steps until an episode is truncated.

    Attributes:
        observation: (3K, S, S) uint8, the latest.
        frame: (3, S, S) uint8, the latest.

    Raises:
        ValueError: observations of another kind, actions in integers or without bounds, or an
            environment that breaks gymnasium's rules.
    """

    observation: np.ndarray
    frame: np.ndarray

    def __init__(
        self, make: Make, *, action_repeat: int, frame_size: int, stack: int, episode_steps: int
    ) -> None:
        self._name, self._inner = make.__name__, make()
        space = self._inner.observation_space
        shapes = ((frame_size, frame_size, 3), (3, frame_size, frame_size))
        if space.dtype != np.uint8 or space.shape not in shapes:
            raise ValueError(
                f"{self._name}: observations are uint8 of shape {shapes[0]} or {shapes[1]}, got "
                f"{space.dtype} of shape {space.shape}; wrap it in AddRenderObservation and "
                f"ResizeObservation of gymnasium.wrappers, or set frame_size; repeat the channel "
                f"of grey images three times"
            )
        self._channels_last = space.shape == shapes[0]
        self._box = self._inner.action_space
        if isinstance(self._box, gymnasium.spaces.Box):
            real = np.issubdtype(self._box.dtype, np.floating)  # integers would be cut off
            if len(self._box.shape) != 1 or not self._box.is_bounded() or not real:
                raise ValueError(
                    f"{self._name}: its actions are {self._box}; a bounded Box of shape (A,) and "
                    f"floating point is needed: gymnasium.wrappers.RescaleAction or TransformAction"
                )
            self.action_space = gymnasium.spaces.Box(-1, 1, self._box.shape, np.float32)
        else:
            self.action_space = self._box
        self.observation_space = gymnasium.spaces.Box(
            0, 255, (3 * stack, frame_size, frame_size), np.uint8
        )
        self._repeat, self._limit = action_repeat, episode_steps
        self._frames: deque[np.ndarray] = deque(maxlen=stack)
        self._seed, self._episode, self._steps = 0, 0, 0
        self._actions: list[np.ndarray] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode, determined by the last seed and the number of episodes since."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, 0
        start = np.random.default_rng([self._seed, self._episode]).integers(2**31)
        self._episode += 1
        image, info = self._inner.reset(seed=int(start), options=options)
        self._steps, self._actions = 0, []
        for _ in range(self._frames.maxlen or 1):
            self._add_frame(image)
        return self.observation, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action; fewer times where the episode ends.

        Raises:
            FloatingPointError: a reward that is not finite.
        """
        self._actions.append(np.asarray(action).copy())
        chosen: Any = action
        if isinstance(self._box, gymnasium.spaces.Box):
            share = (np.clip(np.asarray(action, np.float64), -1, 1) + 1) / 2
            chosen = self._box.low + share * (self._box.high - self._box.low)
            chosen = chosen.astype(self._box.dtype)
        total, terminated, truncated = 0.0, False, False
        info: dict[str, Any] = {}
        for _ in range(self._repeat):
            image, reward, terminated, truncated, info = self._inner.step(chosen)
            total += float(reward)
            self._steps += 1
            truncated = truncated or self._steps >= self._limit
            if terminated or truncated:
                break
        if not np.isfinite(total):
            raise FloatingPointError(f"{self._name}: the reward is {total}")
        self._add_frame(image)
        return self.observation, total, bool(terminated), bool(truncated), info

    def snapshot(self) -> dict[str, Any]:
        """Seed, actions and frames of the episode, from which :meth:`restore` repeats it."""
        return {
            "seed": self._seed,
            "episode": self._episode,
            "actions": torch.from_numpy(np.array(self._actions)),
            "frames": torch.from_numpy(np.stack(self._frames)),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Repeat an episode up to where the snapshot was taken.

        Raises:
            ValueError: the environment is not a function of its seed and actions.
        """
        self._seed, self._episode = snapshot["seed"], snapshot["episode"] - 1
        self.reset()
        for action in snapshot["actions"].numpy():
            self.step(action)
        if not np.array_equal(np.stack(self._frames), snapshot["frames"].numpy()):
            raise ValueError(
                f"{self._name}: the same seed and actions gave other frames, so that the run "
                f"cannot be resumed; make the environment deterministic given its seed"
            )

    def close(self) -> None:
        """Close the environment."""
        self._inner.close()

    def _add_frame(self, image: np.ndarray) -> None:
        frame = image.transpose(2, 0, 1) if self._channels_last else image
        self.frame = np.array(frame, order="C")  # the environment may draw into one buffer
        self._frames.append(self.frame)
        self.observation = np.concatenate(self._frames)


def checked_maker(config: Config, make: Make) -> Callable[[], OwnEnvironment]:
    """A function that makes the environment for the agent, after a check of gymnasium's rules."""
    if config.task in TASKS:
        raise ValueError(
            f"task {config.task!r} is of DM Control; give your environment a name of its own, "
            f"such as task={function_name(identity(make)).rpartition('.')[2]!r}"
        )
    make_checked = functools.partial(
        OwnEnvironment,
        make,
        action_repeat=config.action_repeat,
        frame_size=config.frame_size,
        stack=config.stack,
        episode_steps=config.episode_steps,
    )
    # Our wrapper is checked, not the environment inside: gymnasium's check makes a wrapped
    # environment again, which not every wrapper allows.
    with contextlib.closing(make_checked()) as environment:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice about names and ranges
                check_env(environment, skip_render_check=True)
        except Exception as error:  # whatever the environment or the check raises
            reason = " ".join(str(error).split())
            raise ValueError(f"{make.__name__} breaks gymnasium's rules: {reason}") from error
    return make_checked
