"""Environments in the form that the agent needs: a task of DeepMind Control, or your own inside.

Shapes: S pixels of a frame, K frames of an observation, A dimensions of an action, n numbers of
the state.

An environment step is one step of what is inside; a decision takes ``action_repeat`` of them. The
papers' tasks are also registered: ``gymnasium.make("rl.environment:rl/cartpole-swingup-v0")``.
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
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl.config import ACTION_REPEATS, TASKS, Config
from rl.simulator import QUALITIES, Task
from shared.errors import UserError
from shared.functions import function_name, identity
from shared.ranges import COUNT, require

Make = Callable[[], gymnasium.Env[Any, Any]]
RENDERED = 240  # pixels of an image for films and for gymnasium's render()


class Environment(gymnasium.Env[np.ndarray, np.ndarray]):
    """An environment of pictures whose observations are stacked frames, with actions in [-1, 1].

    Observations are (3K, S, S) uint8, the oldest frame first; the first frame of an episode is
    repeated K times. An action is repeated, and its rewards summed. Returned arrays are never
    overwritten.

    Args:
        make: a function without arguments that makes what is inside, whose observations are
            (S, S, 3) or (3, S, S) uint8. A Box of real actions (A,) is scaled from [-1, 1]; other
            spaces stay as they are, which suffices for frames under random actions.
        action_repeat: environment steps of a decision.
        frame_size: S.
        stack: K.
        episode_steps: environment steps until an episode is truncated.
        name: for errors; None: the function's.

    Attributes:
        observation: (3K, S, S) uint8, the latest.
        frame: (3, S, S) uint8, the latest.

    Raises:
        ValueError: observations of another kind, actions in integers or without bounds, or a
            number out of range.
    """

    observation: np.ndarray
    frame: np.ndarray

    def __init__(
        self,
        make: Make,
        *,
        action_repeat: int,
        frame_size: int,
        stack: int,
        episode_steps: int,
        name: str | None = None,
    ) -> None:
        require("action_repeat", action_repeat, COUNT)
        require("frame_size", frame_size, COUNT)
        require("stack", stack, COUNT)
        require("episode_steps", episode_steps, COUNT)
        self._name, self._inner = name or make.__name__, make()
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
        self._seed, self._episode, self._steps, self._running = 0, 0, 0, False
        self._actions: list[np.ndarray] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode, determined by the last seed and the number of episodes since."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, 0
        image, info = self._inner.reset(seed=self._seed_inside(), options=options)
        self._episode += 1
        self._steps, self._actions, self._running = 0, [], True
        self._frames.clear()
        return self._seen(image), {**info, **self._told()}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action; fewer times where the episode ends.

        Raises:
            FloatingPointError: a reward that is not finite, or a simulation that diverged.
            ValueError: an action of another shape, or not finite.
            gymnasium.error.ResetNeeded: the episode has not started, or has ended.
        """
        if not self._running:
            raise gymnasium.error.ResetNeeded(f"{self._name}: call reset before step")
        chosen: Any = action
        if isinstance(self._box, gymnasium.spaces.Box):
            values = np.asarray(action, np.float64)
            if values.shape != self._box.shape or not np.isfinite(values).all():
                raise ValueError(
                    f"{self._name}: an action is {self._box.shape[0]} finite numbers; "
                    f"got {values.tolist()}"
                )
            share = (np.clip(values, -1, 1) + 1) / 2
            chosen = self._box.low + share * (self._box.high - self._box.low)
            chosen = chosen.astype(self._box.dtype)
        self._actions.append(np.asarray(action).copy())
        total, terminated, truncated = 0.0, False, False
        for _ in range(self._repeat):
            image, reward, terminated, truncated, info = self._inner.step(chosen)
            total += float(reward)
            self._steps += 1
            truncated = truncated or self._steps >= self._limit
            if terminated or truncated:
                break
        if not np.isfinite(total):
            raise FloatingPointError(
                f"{self._name}: the reward is {total} in step {self._steps} of the episode"
            )
        self._running = not (terminated or truncated)
        return self._seen(image), total, bool(terminated), bool(truncated), {**info, **self._told()}

    def snapshot(self) -> dict[str, Any]:
        """Seed, actions and frames of the episode, from which :meth:`restore` repeats it.

        Raises:
            gymnasium.error.ResetNeeded: no episode has started.
        """
        if not self._frames:
            raise gymnasium.error.ResetNeeded(f"{self._name}: call reset before snapshot")
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
        self._repeat_episode(snapshot)
        if not np.array_equal(np.stack(self._frames), snapshot["frames"].numpy()):
            raise self._differs()

    def close(self) -> None:
        """Close the environment inside."""
        self._inner.close()

    def _repeat_episode(self, snapshot: dict[str, Any]) -> None:
        self._seed, self._episode = snapshot["seed"], snapshot["episode"] - 1
        self.reset()
        for action in snapshot["actions"].numpy():
            self.step(action)

    def _differs(self) -> ValueError:
        return ValueError(
            f"{self._name}: the same seed and actions gave other frames, so that the run "
            f"cannot be resumed; make the environment deterministic given its seed"
        )

    def _seed_inside(self) -> int | None:
        """The seed with which the episode starts inside."""
        return int(np.random.default_rng([self._seed, self._episode]).integers(2**31))

    def _picture(self, image: Any) -> np.ndarray:
        """The frame of what was returned inside."""
        picture: np.ndarray = image
        return picture

    def _told(self) -> dict[str, Any]:
        """What ``info`` holds besides that of the environment inside."""
        return {}

    def _seen(self, image: Any) -> np.ndarray:
        """The observation after the frame of what was returned inside."""
        picture = self._picture(image)
        frame = picture.transpose(2, 0, 1) if self._channels_last else picture
        self.frame = np.array(frame, order="C")  # the environment may draw into one buffer
        while len(self._frames) < (self._frames.maxlen or 1) - 1:
            self._frames.append(self.frame)  # the first of an episode
        self._frames.append(self.frame)
        self.observation = np.concatenate(self._frames)
        return self.observation


class DeepMindControl(Environment):
    """A task of DeepMind Control, seen through its camera 0; see :class:`Environment`.

    ``info`` holds ``"frame"`` and ``"state"``, the attributes. A seed restarts the task's random
    stream, which otherwise continues from episode to episode.

    Args:
        task: domain and name, as in ``"cartpole_swingup"``.
        action_repeat: environment steps of a decision.
        frame_size: S.
        stack: K.
        quality: of the rendering, see :class:`rl.simulator.Task`.
        episode_steps: environment steps until an episode is truncated.
        render_mode: gymnasium's; :meth:`render` returns an image in any case.

    Attributes:
        state: (n,) float64, the latest; joint positions and velocities in most tasks.
        state_names: of its n entries, as in ``"position[0]"``.

    Raises:
        UserError: the task is unknown or cannot be used, the episode is not a multiple of the
            action repeat, or no renderer works.
        ValueError: an unknown quality, or a number out of range.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as gymnasium has it)
    action_space: gymnasium.spaces.Box
    observation_space: gymnasium.spaces.Box
    state: np.ndarray
    _inner: Task

    def __init__(
        self,
        task: str,
        *,
        action_repeat: int,
        frame_size: int = 100,
        stack: int = 3,
        quality: str = "full",
        episode_steps: int = 1000,
        render_mode: str | None = None,
    ) -> None:
        if quality not in QUALITIES:
            raise ValueError(f"quality is one of {', '.join(QUALITIES)}; got {quality!r}")
        self._drawing = True  # not while an episode is repeated
        super().__init__(
            lambda: Task(task, quality, frame_size),
            action_repeat=action_repeat,
            frame_size=frame_size,
            stack=stack,
            episode_steps=episode_steps,
            name=task,
        )
        if episode_steps % action_repeat:
            raise UserError(
                f"{task}: action_repeat {action_repeat} does not divide the {episode_steps} steps "
                f"of an episode; choose a divisor"
            )
        self.state_names = self._inner.state_names
        self.render_mode = render_mode
        seconds = self._inner.control.control_timestep() * action_repeat
        self.metadata = {**self.metadata, "render_fps": max(1, round(1 / seconds))}

    def snapshot(self) -> dict[str, Any]:
        """See :meth:`Environment.snapshot`."""
        return {**super().snapshot(), "state": torch.from_numpy(self.state)}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """See :meth:`Environment.restore`; nothing is drawn, on whatever renderer.

        The resets of the episodes before are repeated for the task's random stream.
        """
        self._drawing = False
        for number in range(snapshot["episode"] - 1):
            self.reset(seed=None if number else snapshot["seed"])
        self._repeat_episode(snapshot)
        self._drawing = True
        if not np.allclose(self.state, snapshot["state"].numpy(), rtol=1e-6, atol=1e-6):
            raise self._differs()
        self._frames.extend(snapshot["frames"].numpy().copy())
        self.frame, self.observation = self._frames[-1], np.concatenate(self._frames)

    def render(self) -> np.ndarray:
        """The current camera image, (240, 240, 3) uint8."""
        return self._inner.draw(RENDERED)

    def _seed_inside(self) -> int | None:
        return None if self._episode else self._seed

    def _picture(self, image: None) -> np.ndarray:
        self.state = self._inner.state()
        if self._drawing:
            return self._inner.draw()
        size = self.observation_space.shape[-1]
        return np.zeros((size, size, 3), np.uint8)

    def _told(self) -> dict[str, Any]:
        return {"state": self.state, "frame": self.frame}


def settings_of(config: Config) -> dict[str, Any]:
    """A configuration's arguments for :class:`DeepMindControl`."""
    return {
        "task": config.task,
        "action_repeat": config.action_repeat,
        "frame_size": config.frame_size,
        "stack": config.stack,
        "quality": config.quality,
        "episode_steps": config.episode_steps,
    }


def make_environment(config: Config) -> DeepMindControl:
    """The environment of a configuration."""
    return DeepMindControl(**settings_of(config))


def make_vector(
    count: int, workers: int, task: str, **settings: Any
) -> VectorEnv[np.ndarray, np.ndarray, np.ndarray]:
    """Environments that step together; the caller resets them, after all have ended.

    Args:
        count: number of environments.
        workers: 1: all in this process. More: one process per environment; observations are
            bitwise equal.
        task: of each environment.
        settings: the other arguments of :class:`DeepMindControl`.

    Raises:
        UserError: see :class:`DeepMindControl`.
        ValueError: likewise, or no environments or workers.
    """
    if count < 1 or workers < 1:
        raise ValueError(f"count and workers are at least 1; got {count} and {workers}")
    return vector_of(functools.partial(DeepMindControl, task, **settings), count, workers)


def vector_of(
    make: Callable[[], gymnasium.Env[np.ndarray, np.ndarray]], count: int, workers: int
) -> VectorEnv[np.ndarray, np.ndarray, np.ndarray]:
    """Environments of any kind that step together, see :func:`make_vector`."""
    if workers == 1:
        return SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.DISABLED)
    # Spawned, since a process forked from one that has rendered hangs when it renders.
    return AsyncVectorEnv([make] * count, context="spawn", autoreset_mode=AutoresetMode.DISABLED)


def checked_maker(config: Config, make: Make) -> Callable[[], Environment]:
    """A function that makes your environment for the agent, after a check of gymnasium's rules."""
    if config.task in TASKS:
        raise ValueError(
            f"task {config.task!r} is of DM Control; give your environment a name of its own, "
            f"such as task={function_name(identity(make)).rpartition('.')[2]!r}"
        )
    make_checked = functools.partial(
        Environment,
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


for _name in TASKS:
    gymnasium.register(
        id=f"rl/{_name.replace('_', '-')}-v0",
        entry_point="rl.environment:DeepMindControl",
        kwargs={"task": _name, "action_repeat": ACTION_REPEATS[_name]},
    )
