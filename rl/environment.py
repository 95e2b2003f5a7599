"""DeepMind Control from pixels as gymnasium environments, and the renderer that draws them.

Shapes: S pixels of a frame, K frames of an observation, A dimensions of an action, n numbers of
the task's own observation, which is computed from the physics and here called the state.

An environment step is one step of DeepMind Control, a decision ``action_repeat`` of them. The
environments are also ``gymnasium.make("rl.environment:rl/cartpole-swingup-v0")`` and so on.
"""

import ctypes
import functools
import hashlib
import importlib
import logging
import os
import sys
from collections import deque
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl.config import TASKS, Config
from shared.errors import UserError
from shared.experiment.data import sha256_of_files

# Of the tasks in Laskin et al. 2020, Table 3.
ACTION_REPEATS = {
    "finger_spin": 2,
    "cartpole_swingup": 8,
    "reacher_easy": 4,
    "cheetah_run": 4,
    "walker_walk": 2,
    "ball_in_cup_catch": 4,
}
QUALITIES = ("full", "fast")
OBSERVED = ("pixels", "state")
RENDERED = 240  # pixels of a picture for films, gymnasium's included

# Names that DM Control knows for a renderer which needs a display, and for none at all.
_WITH_DISPLAY = ("glfw", "on", "enable", "enabled", "true", "1")
_WITHOUT_RENDERER = ("off", "disable", "disabled", "false", "0")
_UNBOUNDED = 1e10  # what DM Control gives for the bounds of an actuator that has none
_EGL_PLATFORM_DEVICE = 0x313F  # of the extension EGL_EXT_platform_device


def choose_renderer() -> str:
    """What draws the frames, as ``MUJOCO_GL`` then says: EGL, else OSMesa, unless it is set.

    Neither needs a display. On macOS and Windows, which have one, the choice is DM Control's. Once
    DM Control has been imported, the choice cannot be changed.

    Raises:
        UserError: nothing to render with, or ``MUJOCO_GL``, ``PYOPENGL_PLATFORM`` or
            ``MUJOCO_EGL_DEVICE_ID`` asks for something that does not work.
    """
    imported = sys.modules.get("dm_control._render")
    if imported is not None and imported.BACKEND is not None:
        # Processes started from this one have to choose the same.
        os.environ["MUJOCO_GL"] = imported.BACKEND
        return str(imported.BACKEND)
    wanted = os.environ.get("MUJOCO_GL", "")
    if wanted in _WITHOUT_RENDERER:
        raise UserError(f"MUJOCO_GL={wanted} switches rendering off; unset it")
    if wanted in _WITH_DISPLAY:
        return "glfw"
    if wanted not in ("", *_PROBES):
        known = ", ".join([*_PROBES, "glfw"])
        raise UserError(f"MUJOCO_GL={wanted} is no renderer; unset it, or set one of: {known}")
    if not wanted and sys.platform in ("darwin", "win32"):
        return "glfw"
    platform = os.environ.get("PYOPENGL_PLATFORM", "")
    others = []
    for name in [wanted] if wanted else _PROBES:
        if _PROBES[name]():
            if platform in ("", name):
                os.environ["MUJOCO_GL"] = name
                return name
            others.append(name)
    if others:
        raise UserError(
            f"PYOPENGL_PLATFORM={platform} keeps OpenGL from {' and '.join(others)}, which "
            f"{'work' if others[1:] else 'works'} here; unset it"
        )
    broken = f"MUJOCO_GL={wanted} does not work" if wanted else "neither EGL nor OSMesa works"
    raise UserError(
        f"no renderer: {broken}; install libegl1, libgl1 and libgl1-mesa-dri, or libosmesa6, as "
        f"Debian calls them, or on a GPU the driver's graphics libraries"
    )


@functools.cache
def renderer_in_use() -> str:
    """The renderer and the device or program behind it, as in ``"egl: llvmpipe (LLVM 15.0.6)"``.

    Raises:
        UserError: nothing to render with.
    """
    _suite()
    from dm_control import mujoco
    from OpenGL import GL

    physics = mujoco.Physics.from_xml_string("<mujoco/>")
    try:
        with _contexts(physics).gl.make_current() as context:
            name = context.call(GL.glGetString, GL.GL_RENDERER)
    finally:
        physics.free()
    return f"{choose_renderer()}: {name.decode()}"


def task_fingerprint(task: str) -> str:
    """SHA-256 over a task's program and model, and the versions of MuJoCo and DM Control.

    Raises:
        UserError: the task is unknown, or there is nothing to render with.
    """
    domain, _ = _domain_and_name(task)
    program = Path(str(importlib.import_module(f"dm_control.suite.{domain}").__file__))
    shared = (program.parent / "common").glob("*.xml")
    files = sha256_of_files([program, program.with_suffix(".xml"), *shared])
    parts = (task, files, version("mujoco"), version("dm-control"))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def settings_of(config: Config) -> dict[str, Any]:
    """What a configuration says about environments, as arguments of :class:`DeepMindControl`."""
    return {
        "task": config.task,
        "action_repeat": config.action_repeat,
        "frame_size": config.frame_size,
        "stack": config.stack,
        "quality": config.quality,
        "episode_steps": config.episode_steps,
    }


def make_environment(config: Config) -> "DeepMindControl":
    """The environment of a configuration.

    Raises:
        UserError: see :class:`DeepMindControl`.
        ValueError: likewise.
    """
    return DeepMindControl(**settings_of(config))


def make_vector(
    count: int, workers: int, task: str, **settings: Any
) -> VectorEnv[np.ndarray, np.ndarray, np.ndarray]:
    """Environments that step together; ``reset`` comes from the caller, after all have ended.

    Args:
        count: how many environments.
        workers: 1: all in this process. More: a process for each environment; the observations are
            the same to the bit.
        task: of each environment.
        settings: the other arguments of :class:`DeepMindControl`.

    Raises:
        UserError: see :class:`DeepMindControl`.
        ValueError: likewise, or no environments or workers.
    """
    if count < 1 or workers < 1:
        raise ValueError(f"count and workers are at least 1; got {count} and {workers}")
    make = [functools.partial(DeepMindControl, task, **settings)] * count
    if workers == 1:
        return SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED)
    # Spawned: a process forked from one that has rendered hangs as soon as it renders.
    return AsyncVectorEnv(make, context="spawn", autoreset_mode=AutoresetMode.DISABLED)


class DeepMindControl(gymnasium.Env[np.ndarray, np.ndarray]):
    """A task of DeepMind Control whose observations are stacked frames of its camera 0.

    Observations are (3K, S, S) uint8, the oldest frame first; the first frame of an episode stands
    K times. Actions are (A,) in [-1, 1], scaled to the task's bounds. The reward of a decision is
    the sum over its environment steps. ``info`` holds ``"frame"`` and ``"state"``, the attributes.
    Whatever is returned may be kept: nothing is written to again.

    Args:
        task: domain and name, as in ``"cartpole_swingup"``.
        action_repeat: environment steps of a decision.
        frame_size: S.
        stack: K.
        quality: of the rendering. ``"full"``: DM Control's own. ``"fast"``: without multisampling
            and with coarser shadows.
        episode_steps: environment steps until an episode is truncated.
        observe: ``"pixels"``, or ``"state"``: nothing is drawn, observations are the state.
        render_mode: gymnasium's; ``"rgb_array"`` makes :meth:`render` a picture.

    Attributes:
        observation: (3K, S, S) uint8, the latest; of ``observe="state"`` (n,) float64.
        frame: (3, S, S) uint8, the latest; there is none of ``observe="state"``.
        state: (n,) float64, the latest; joints' positions and velocities in most tasks.
        state_names: of its n numbers, as in ``"position[0]"``.

    Raises:
        UserError: the task is unknown or cannot be used, the episode is no multiple of the
            repeats, or there is nothing to render with.
        ValueError: an unknown quality, or a number out of range.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as gymnasium has it)
    action_space: gymnasium.spaces.Box
    observation: np.ndarray
    frame: np.ndarray
    state: np.ndarray

    def __init__(
        self,
        task: str,
        *,
        action_repeat: int,
        frame_size: int = 100,
        stack: int = 3,
        quality: str = "full",
        episode_steps: int = 1000,
        observe: str = "pixels",
        render_mode: str | None = None,
    ) -> None:
        numbers = {
            "action_repeat": action_repeat,
            "frame_size": frame_size,
            "stack": stack,
            "episode_steps": episode_steps,
        }
        for name, number in numbers.items():
            if number < 1:
                raise ValueError(f"{name} is at least 1; got {number}")
        if quality not in QUALITIES:
            raise ValueError(f"quality is one of {', '.join(QUALITIES)}; got {quality!r}")
        if observe not in OBSERVED:
            raise ValueError(f"observe is one of {', '.join(OBSERVED)}; got {observe!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode is 'rgb_array' or None; got {render_mode!r}")
        if episode_steps % action_repeat:
            raise UserError(
                f"{task}: action_repeat {action_repeat} does not divide the {episode_steps} steps "
                f"of an episode; choose a divisor"
            )
        domain, name = _domain_and_name(task)
        # Without a time limit of its own: the tasks' limits are seconds, and differ.
        self._control = _suite().load(domain, name, task_kwargs={"time_limit": np.inf})
        self._physics = self._control.physics
        self._settings: dict[str, Any] = {"task": task, "quality": quality, **numbers}
        self._task, self._action_repeat, self._episode_steps = task, action_repeat, episode_steps

        actions = self._control.action_spec()
        if np.abs([actions.minimum, actions.maximum]).max() >= _UNBOUNDED:
            raise UserError(f"{task}: its actions have no bounds to scale to; choose another task")
        self._lowest, self._range = actions.minimum, actions.maximum - actions.minimum
        self.action_space = gymnasium.spaces.Box(-1, 1, actions.shape, np.float32)
        self.state_names = _names(self._control.observation_spec())
        self.render_mode = render_mode
        seconds = self._control.control_timestep() * action_repeat
        self.metadata = {**self.metadata, "render_fps": max(1, round(1 / seconds))}

        if quality == "fast":
            self._physics.model.vis.quality.offsamples = 0
            self._physics.model.vis.quality.shadowsize = 512
        self._camera: Any = None
        self._pixels = observe == "pixels"
        if self._pixels:
            shape = (3 * stack, frame_size, frame_size)
            self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
            # Kept, for a new one for each frame would allocate the scene anew. In a forked process
            # this would hang; reset says so, where gymnasium hands errors on.
            if not self._is_forked():
                _contexts(self._physics)
                self._camera = self._camera_of(frame_size)
        else:
            count = (len(self.state_names),)
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, count, np.float64)
        self._frames: deque[np.ndarray] = deque(maxlen=stack)
        self._steps = 0
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; a seed starts the task's random stream anew, else it goes on.

        Args:
            seed: of the episode and of those after it.
            options: there are none.

        Returns:
            The observation and ``info``.

        Raises:
            FloatingPointError: the state is not finite.
            UserError: the process was forked from one that has drawn, and cannot draw.
        """
        if self._pixels and self._is_forked():
            raise UserError(
                f"{self._task}: a process that was forked from one that has drawn frames cannot "
                f"draw; take rl.make_vector, or start processes by spawn: gymnasium.make_vec(..., "
                f"vector_kwargs={{'context': 'spawn'}})"
            )
        super().reset(seed=seed)
        if seed is not None:
            self._control.task.random.seed(seed)
        self._random_before = self._control.task.random.get_state()
        time_step = self._control.reset()
        self._steps, self._running = 0, True
        self._look(time_step.observation, reward=0.0, copies=self._settings["stack"])
        return self.observation, self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action; fewer times where the task itself ends the episode.

        Args:
            action: (A,) in [-1, 1]; the actuators cut off what is beyond.

        Returns:
            The observation, the sum of rewards, whether the task ended the episode, whether the
            episode has had its number of steps, and ``info``.

        Raises:
            FloatingPointError: the simulation diverged, or state or reward are not finite.
            ValueError: an action of another shape, or not finite.
            gymnasium.error.ResetNeeded: the episode has not begun, or has ended.
        """
        if not self._running:
            raise gymnasium.error.ResetNeeded(f"{self._task}: reset comes before step")
        values = np.asarray(action, np.float64)
        if values.shape != self._range.shape or not np.isfinite(values).all():
            raise ValueError(
                f"{self._task}: an action is {len(self._range)} finite numbers; "
                f"got {values.tolist()}"
            )
        control = self._lowest + (values + 1) / 2 * self._range
        reward, terminated = 0.0, False
        for _ in range(self._action_repeat):
            time_step = self._advance(control)
            reward += float(time_step.reward)
            terminated = bool(time_step.last())
            if terminated:
                break
        self._look(time_step.observation, reward)
        truncated = self._steps >= self._episode_steps
        self._running = not (terminated or truncated)
        return self.observation, reward, terminated, truncated, self._info()

    def snapshot(self) -> dict[str, Any]:
        """All that it takes to go on from here to the bit, as tensors and plain data.

        Raises:
            gymnasium.error.ResetNeeded: no episode has begun.
            ValueError: the environment draws nothing.
        """
        if self._camera is None:
            raise ValueError(f"{self._task}: snapshots are of environments that observe pixels")
        if not self._frames:
            raise gymnasium.error.ResetNeeded(f"{self._task}: reset comes before snapshot")
        return {
            "settings": dict(self._settings),
            # An episode may begin with a change of the model, such as a target's place, which is
            # drawn from the stream: as the stream was then, the change can be made again.
            "random_before": _plain(self._random_before),
            "random": _plain(self._control.task.random.get_state()),
            "physics": torch.from_numpy(self._physics.get_state(_integration_state())),
            "steps": self._steps,
            "running": self._running,
            "state": torch.from_numpy(self.state.copy()),
            "frames": torch.from_numpy(np.stack(self._frames)),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on where a snapshot was taken, be it in another process.

        Raises:
            ValueError: the snapshot is of an environment with other settings.
        """
        if snapshot["settings"] != self._settings:
            raise ValueError(f"a snapshot of {snapshot['settings']} is not of {self._settings}")
        import mujoco

        random = self._control.task.random
        self._random_before = _random_state(snapshot["random_before"])
        random.set_state(self._random_before)
        self._control.reset()
        random.set_state(_random_state(snapshot["random"]))
        self._physics.set_state(snapshot["physics"].numpy(), _integration_state())
        # A step leaves behind what follows from positions and velocities, and begins with it.
        mujoco.mj_step1(self._physics.model.ptr, self._physics.data.ptr)
        self._steps, self._running = snapshot["steps"], snapshot["running"]
        # Not computed: sensors of contact forces belong to the step before.
        self.state = snapshot["state"].numpy().copy()
        self._stack(snapshot["frames"].numpy().copy())
        self.frame = self._frames[-1]

    def render(self) -> np.ndarray | None:
        """What the camera sees now, (240, 240, 3) uint8; None without a ``render_mode``."""
        return None if self.render_mode is None else self.picture(RENDERED)

    def picture(self, size: int) -> np.ndarray:
        """What the camera sees now, (size, size, 3) uint8, for videos.

        Raises:
            ValueError: larger than the model's frame buffer.
        """
        camera = self._camera_of(size)
        return np.ascontiguousarray(camera.render())

    def close(self) -> None:
        """Give the renderer's memory back."""
        self._physics.free()

    def _is_forked(self) -> bool:
        return _drawing not in (None, os.getpid())

    def _camera_of(self, size: int) -> Any:
        from dm_control import mujoco

        largest = min(
            self._physics.model.vis.global_.offwidth, self._physics.model.vis.global_.offheight
        )
        if not 1 <= size <= largest:
            raise ValueError(f"{self._task} renders 1 to {largest} pixels; got {size}")
        return mujoco.Camera(self._physics, height=size, width=size, camera_id=0)

    def _advance(self, control: np.ndarray) -> Any:
        from dm_control.rl.control import PhysicsError

        self._steps += 1
        try:
            return self._control.step(control)
        except PhysicsError as error:
            raise FloatingPointError(
                f"{self._task}: the simulation diverged in step {self._steps} of the episode"
            ) from error

    def _look(self, observation: dict[str, np.ndarray], reward: float, *, copies: int = 1) -> None:
        """Make the state from what the task observes, and draw the latest frame, if any is drawn.

        The frame comes to the stack so many times.
        """
        self.state = np.concatenate([np.ravel(value) for value in observation.values()])
        if not (np.isfinite(reward) and np.isfinite(self.state).all()):
            numbers = {"reward": reward, **dict(zip(self.state_names, self.state, strict=True))}
            wrong = [name for name, number in numbers.items() if not np.isfinite(number)]
            raise FloatingPointError(
                f"{self._task}: not finite after step {self._steps} of the episode: "
                f"{', '.join(wrong)}"
            )
        if self._camera is None:
            self.observation = self.state
            return
        self.frame = self._camera.render().transpose(2, 0, 1).copy()
        self._stack([self.frame] * copies)

    def _stack(self, frames: Iterable[np.ndarray]) -> None:
        self._frames.extend(frames)
        self.observation = np.concatenate(self._frames)

    def _info(self) -> dict[str, Any]:
        drawn = {} if self._camera is None else {"frame": self.frame}
        return {"state": self.state, **drawn}


def _egl_works() -> bool:
    """Whether OpenGL's libraries are there and EGL can use one of its devices without a display.

    Raises:
        UserError: ``MUJOCO_EGL_DEVICE_ID`` is no device that EGL can use.
    """
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    if not (_loads("libOpenGL.so.0") or _loads("libGL.so.1")):
        return False
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglInitialize.argtypes = [ctypes.c_void_p] * 3
    query_address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    display_address = egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
    if not (query_address and display_address):
        return False
    pointer, number = ctypes.c_void_p, ctypes.c_int
    query = ctypes.CFUNCTYPE(ctypes.c_uint, number, pointer, pointer)(query_address)
    display_of = ctypes.CFUNCTYPE(pointer, ctypes.c_uint, pointer, pointer)(display_address)
    devices, found = (pointer * 16)(), number()
    if not query(len(devices), devices, ctypes.byref(found)):
        return False

    # Not terminated: that would close the display for everyone in the process, and DM Control goes
    # on with it.
    def works(device: int) -> bool:
        display = display_of(_EGL_PLATFORM_DEVICE, devices[device], None)
        return bool(display and egl.eglInitialize(display, None, None))

    chosen = os.environ.get("MUJOCO_EGL_DEVICE_ID")
    usable = [device for device in range(found.value) if works(device)]
    if chosen is not None and chosen not in map(str, usable):
        raise UserError(
            f"MUJOCO_EGL_DEVICE_ID={chosen} is no device that EGL can use; unset it, or take one "
            f"of: {', '.join(map(str, usable)) or 'there are none'}"
        )
    # EGL sees every GPU, whatever CUDA is shown: cells on several would all draw on the first. So
    # the one that CUDA is left with is chosen, which drivers number alike, unless one is already.
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if shown in map(str, usable):
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", shown)
    return bool(usable)


def _osmesa_works() -> bool:
    """Whether OSMesa's library is there, by the names that it has had."""
    return any(_loads(f"libOSMesa.so{suffix}") for suffix in ("", ".8", ".6"))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# In the order of preference: EGL may draw on a GPU.
_PROBES = {"egl": _egl_works, "osmesa": _osmesa_works}


@functools.cache
def _suite() -> Any:
    """DM Control's suite, imported once the renderer is chosen, which the import reads."""
    choose_renderer()
    # Older models set their total mass by an attribute that MuJoCo is about to drop; this concerns
    # DM Control's authors alone.
    logging.getLogger("absl").addFilter(lambda record: "settotalmass" not in record.getMessage())
    from dm_control import suite

    return suite


@functools.cache
def _integration_state() -> int:
    """MuJoCo's name for all that decides the next step: mjSTATE_INTEGRATION."""
    import mujoco

    return int(mujoco.mjtState.mjSTATE_INTEGRATION)


# The process that has drawn. What draws is not there in processes forked from it.
_drawing: int | None = None


def _contexts(physics: Any) -> Any:
    """The contexts that draw a model, made at the first call.

    Raises:
        UserError: they cannot be made.
    """
    global _drawing
    try:
        contexts = physics.contexts
        _drawing = os.getpid()
        return contexts
    except Exception as error:  # each renderer fails with exceptions of its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"the renderer {choose_renderer()} does not work here ({reason}); "
            f"unset MUJOCO_GL, and import rl.environment before dm_control"
        ) from error


def _domain_and_name(task: str) -> tuple[str, str]:
    """A task as DM Control names it; both parts may hold underscores.

    Raises:
        UserError: the task is unknown, or there is nothing to render with.
    """
    for domain, name in _suite().ALL_TASKS:
        if f"{domain}_{name}" == task:
            return domain, name
    raise UserError(
        f"no task {task!r}; the papers' are {', '.join(TASKS)}, and any other domain_task of DM "
        f"Control's suite whose actions are bounded works (those of lqr are not)"
    )


def _names(specification: dict[str, Any]) -> tuple[str, ...]:
    """Names of the numbers of a task's observation; a single number has no index."""
    names: list[str] = []
    for name, array in specification.items():
        size = int(np.prod(array.shape))
        names += [f"{name}[{place}]" for place in range(size)] if array.shape else [name]
    return tuple(names)


def _plain(state: tuple[Any, ...]) -> dict[str, Any]:
    """The state of a numpy stream, which torch can load with ``weights_only``."""
    _, keys, position, has_gauss, gauss = state
    return {
        "keys": torch.from_numpy(keys.astype(np.int64)),
        "position": int(position),
        "has_gauss": int(has_gauss),
        "gauss": float(gauss),
    }


def _random_state(plain: dict[str, Any]) -> tuple[Literal["MT19937"], np.ndarray, int, int, float]:
    keys = plain["keys"].numpy().astype(np.uint32)
    return "MT19937", keys, plain["position"], plain["has_gauss"], plain["gauss"]


for _name in TASKS:
    gymnasium.register(
        id=f"rl/{_name.replace('_', '-')}-v0",
        entry_point="rl.environment:DeepMindControl",
        kwargs={"task": _name, "action_repeat": ACTION_REPEATS[_name]},
        max_episode_steps=1000 // ACTION_REPEATS[_name],  # decisions; the episode ends itself, too
    )
