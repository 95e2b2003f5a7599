"""DeepMind Control from pixels as gymnasium environments, and the renderer that draws them.

Shapes: S pixels of a frame, K frames of an observation, A dimensions of an action, n numbers of
the task's own observation, which is computed from the physics and here called the state.

An environment step is one step of DeepMind Control; a decision takes ``action_repeat`` of them. The
environments are also registered: ``gymnasium.make("rl.environment:rl/cartpole-swingup-v0")``.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl.config import ACTION_REPEATS, TASKS, Config
from shared.errors import UserError
from shared.experiment.data import sha256_of_files
from shared.notices import notice

# torch's compiler, which the first optimiser imports, brings an LLVM in its CUDA builds. Loaded
# after that of Mesa, which comes with the first frame, it ends the process.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

QUALITIES = ("full", "fast")
OBSERVED = ("pixels", "state")
RENDERED = 240  # pixels of an image for films and for gymnasium's render()

# DM Control's names for renderers that need a display, and for no rendering at all.
_WITH_DISPLAY = ("glfw", "on", "enable", "enabled", "true", "1")
_WITHOUT_RENDERER = ("off", "disable", "disabled", "false", "0")
SOFTWARE = ("llvmpipe", "softpipe", "swrast", "osmesa")  # renderers on the CPU
_UNBOUNDED = 1e10  # DM Control's bounds of an actuator without any
_EGL_PLATFORM_DEVICE = 0x313F  # of the extension EGL_EXT_platform_device


def choose_renderer() -> str:
    """Choose the renderer and set ``MUJOCO_GL``: EGL, else OSMesa, unless it is set already.

    Neither needs a display. On macOS and Windows, which have one, the choice is DM Control's. The
    choice is final once DM Control has been imported.
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
        raise UserError(f"MUJOCO_GL={wanted} is not a renderer; unset it, or set one of: {known}")
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
            f"PYOPENGL_PLATFORM={platform} excludes {' and '.join(others)}, which "
            f"{'work' if others[1:] else 'works'} here; unset it"
        )
    broken = f"MUJOCO_GL={wanted} does not work" if wanted else "neither EGL nor OSMesa works"
    raise UserError(
        f"no renderer: {broken}; install (Debian's names) libegl1, libgl1 and libgl1-mesa-dri, or "
        f"libosmesa6, or on a GPU the driver's graphics libraries"
    )


@functools.cache
def renderer_in_use() -> str:
    """The renderer and the device or program behind it, as in ``"egl: llvmpipe (LLVM 15.0.6)"``."""
    _suite()
    from dm_control import mujoco
    from OpenGL import GL

    physics = mujoco.Physics.from_xml_string("<mujoco/>")
    try:
        with _contexts(physics).gl.make_current() as context:
            name = context.call(GL.glGetString, GL.GL_RENDERER)
    finally:
        physics.free()
    renderer = f"{choose_renderer()}: {name.decode()}"
    if torch.cuda.is_available() and any(software in renderer for software in SOFTWARE):
        notice(
            f"frames are drawn by the CPU ({renderer}), 5 to 10 times slower than by the available "
            f"GPU: give the container the driver's graphics libraries "
            f"(NVIDIA_DRIVER_CAPABILITIES=all, or graphics beside compute)"
        )
    return renderer


def task_fingerprint(task: str) -> str:
    """SHA-256 over a task's program and model, and the versions of MuJoCo and DM Control."""
    domain, _ = _domain_and_name(task)
    program = Path(str(importlib.import_module(f"dm_control.suite.{domain}").__file__))
    shared = (program.parent / "common").glob("*.xml")
    files = sha256_of_files([program, program.with_suffix(".xml"), *shared])
    parts = (task, files, version("mujoco"), version("dm-control"))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


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


def make_environment(config: Config) -> "DeepMindControl":
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


class DeepMindControl(gymnasium.Env[np.ndarray, np.ndarray]):
    """A task of DeepMind Control whose observations are stacked frames of its camera 0.

    Observations are (3K, S, S) uint8, the oldest frame first; the first frame of an episode is
    repeated K times. Actions are (A,) in [-1, 1], scaled to the task's bounds. The reward of a
    decision is the sum over its environment steps. ``info`` holds ``"frame"`` and ``"state"``, the
    attributes. Returned arrays are never overwritten.

    Args:
        task: domain and name, as in ``"cartpole_swingup"``.
        action_repeat: environment steps of a decision.
        frame_size: S.
        stack: K.
        quality: of the rendering. ``"full"``: DM Control's own. ``"fast"``: without multisampling
            and with coarser shadows.
        episode_steps: environment steps until an episode is truncated.
        observe: ``"pixels"``, or ``"state"``: nothing is rendered, observations are the state.
        render_mode: gymnasium's; with ``"rgb_array"`` :meth:`render` returns an image.

    Attributes:
        observation: (3K, S, S) uint8, the latest; with ``observe="state"`` (n,) float64.
        frame: (3, S, S) uint8, the latest; not set with ``observe="state"``.
        state: (n,) float64, the latest; joint positions and velocities in most tasks.
        state_names: of its n entries, as in ``"position[0]"``.

    Raises:
        UserError: the task is unknown or cannot be used, the episode is not a multiple of the
            action repeat, or no renderer works.
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
        # Without the task's own time limit, which is in seconds and differs between tasks.
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
            # Kept, since a new one per frame would reallocate the scene. In a forked process this
            # would hang; reset reports that, since gymnasium passes its errors on.
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
        """Start an episode; a seed restarts the task's random stream, which otherwise continues.

        Args:
            seed: of the episode and of those after it.
            options: not used.

        Returns:
            The observation and ``info``.

        Raises:
            FloatingPointError: the state is not finite.
            UserError: the process was forked from one that has rendered, and cannot render.
        """
        if self._pixels and self._is_forked():
            raise UserError(
                f"{self._task}: a process forked from one that has rendered frames cannot render; "
                f"use rl.make_vector, or start processes by spawn: gymnasium.make_vec(..., "
                f"vector_kwargs={{'context': 'spawn'}})"
            )
        super().reset(seed=seed)
        if seed is not None:
            self._control.task.random.seed(seed)
        self._random_before = self._control.task.random.get_state()
        time_step = self._control.reset()
        self._steps, self._running = 0, True
        self._observe(time_step.observation, reward=0.0, copies=self._settings["stack"])
        return self.observation, self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action; fewer times where the task itself ends the episode.

        Args:
            action: (A,) in [-1, 1]; the actuators clip other values.

        Returns:
            The observation, the sum of rewards, whether the task ended the episode, whether the
            episode is truncated, and ``info``.

        Raises:
            FloatingPointError: the simulation diverged, or state or reward are not finite.
            ValueError: an action of another shape, or not finite.
            gymnasium.error.ResetNeeded: the episode has not started, or has ended.
        """
        if not self._running:
            raise gymnasium.error.ResetNeeded(f"{self._task}: call reset before step")
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
        self._observe(time_step.observation, reward)
        truncated = self._steps >= self._episode_steps
        self._running = not (terminated or truncated)
        return self.observation, reward, terminated, truncated, self._info()

    def snapshot(self) -> dict[str, Any]:
        """The full state, from which :meth:`restore` continues bitwise; tensors and plain data.

        Raises:
            gymnasium.error.ResetNeeded: no episode has started.
            ValueError: the environment does not render.
        """
        if self._camera is None:
            raise ValueError(f"{self._task}: snapshots need an environment that observes pixels")
        if not self._frames:
            raise gymnasium.error.ResetNeeded(f"{self._task}: call reset before snapshot")
        return {
            "settings": dict(self._settings),
            # An episode may begin with a change of the model, such as a target's position, that is
            # drawn from the stream: with the stream's state at that point it can be repeated.
            "random_before": _plain(self._random_before),
            "random": _plain(self._control.task.random.get_state()),
            "physics": torch.from_numpy(self._physics.get_state(_integration_state())),
            "steps": self._steps,
            "running": self._running,
            "state": torch.from_numpy(self.state.copy()),
            "frames": torch.from_numpy(np.stack(self._frames)),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot, possibly one of another process.

        Raises:
            ValueError: the snapshot is from an environment with other settings.
        """
        if snapshot["settings"] != self._settings:
            raise ValueError(f"a snapshot for {snapshot['settings']} is not for {self._settings}")
        import mujoco

        random = self._control.task.random
        self._random_before = _random_state(snapshot["random_before"])
        random.set_state(self._random_before)
        self._control.reset()
        random.set_state(_random_state(snapshot["random"]))
        self._physics.set_state(snapshot["physics"].numpy(), _integration_state())
        # A step ends with the quantities derived from positions and velocities, and needs them.
        mujoco.mj_step1(self._physics.model.ptr, self._physics.data.ptr)
        self._steps, self._running = snapshot["steps"], snapshot["running"]
        # Not recomputed: contact force sensors belong to the previous step.
        self.state = snapshot["state"].numpy().copy()
        self._stack(snapshot["frames"].numpy().copy())
        self.frame = self._frames[-1]

    def render(self) -> np.ndarray | None:
        """The current camera image, (240, 240, 3) uint8; None without a ``render_mode``."""
        return None if self.render_mode is None else self.picture(RENDERED)

    def picture(self, size: int) -> np.ndarray:
        """The current camera image, (size, size, 3) uint8, for videos.

        Raises:
            ValueError: larger than the model's frame buffer.
        """
        camera = self._camera_of(size)
        return np.ascontiguousarray(camera.render())

    def close(self) -> None:
        """Free the renderer's memory."""
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

    def _observe(
        self, observation: dict[str, np.ndarray], reward: float, *, copies: int = 1
    ) -> None:
        """Update the state from the task's observation, and render the latest frame if needed.

        The frame is appended to the stack ``copies`` times.
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
    """Whether OpenGL is installed and EGL can use one of its devices without a display."""
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
    devices, count = (pointer * 16)(), number()
    if not query(len(devices), devices, ctypes.byref(count)):
        return False

    # Not terminated: that would close the display for the whole process, and DM Control uses it.
    def works(device: int) -> bool:
        display = display_of(_EGL_PLATFORM_DEVICE, devices[device], None)
        return bool(display and egl.eglInitialize(display, None, None))

    chosen = os.environ.get("MUJOCO_EGL_DEVICE_ID")
    usable = [device for device in range(count.value) if works(device)]
    if chosen is not None and chosen not in map(str, usable):
        raise UserError(
            f"MUJOCO_EGL_DEVICE_ID={chosen} is not a device that EGL can use; unset it, or set one "
            f"of: {', '.join(map(str, usable)) or 'there are none'}"
        )
    # EGL sees every GPU regardless of CUDA_VISIBLE_DEVICES: cells on several would all render on
    # the first. So the one visible to CUDA is chosen, numbered alike by drivers, unless one is set.
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if shown in map(str, usable):
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", shown)
    return bool(usable)


def _osmesa_works() -> bool:
    """Whether OSMesa's library is installed, under any of its names."""
    return any(_loads(f"libOSMesa.so{suffix}") for suffix in ("", ".8", ".6"))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# In order of preference: EGL may render on a GPU.
_PROBES = {"egl": _egl_works, "osmesa": _osmesa_works}


@functools.cache
def _suite() -> Any:
    """DM Control's suite, imported after the renderer is chosen, which the import reads."""
    choose_renderer()
    # Older models set their total mass by an attribute that MuJoCo has deprecated; only DM
    # Control's authors can change that.
    logging.getLogger("absl").addFilter(lambda record: "settotalmass" not in record.getMessage())
    from dm_control import suite

    return suite


@functools.cache
def _integration_state() -> int:
    """MuJoCo's constant for all that determines the next step: mjSTATE_INTEGRATION."""
    import mujoco

    return int(mujoco.mjtState.mjSTATE_INTEGRATION)


# The process that has rendered; renderers do not survive a fork.
_drawing: int | None = None


def _contexts(physics: Any) -> Any:
    """The rendering contexts of a model, created at the first call."""
    global _drawing
    try:
        contexts = physics.contexts
        _drawing = os.getpid()
        return contexts
    except Exception as error:  # each renderer has its own exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"the renderer {choose_renderer()} does not work here ({reason}); "
            f"unset MUJOCO_GL, and import rl.environment before dm_control"
        ) from error


def _domain_and_name(task: str) -> tuple[str, str]:
    """Domain and name of a task in DM Control; both may contain underscores."""
    for domain, name in _suite().ALL_TASKS:
        if f"{domain}_{name}" == task:
            return domain, name
    raise UserError(
        f"no task {task!r}; the papers' are {', '.join(TASKS)}, and any other domain_task of DM "
        f"Control's suite whose actions are bounded works (those of lqr are not); an "
        f"environment of your own goes to rl.train_agent or rl.pretrain"
    )


def _names(specification: dict[str, Any]) -> tuple[str, ...]:
    """Names of the entries of a task's observation; a scalar has no index."""
    names: list[str] = []
    for name, array in specification.items():
        size = int(np.prod(array.shape))
        names += [f"{name}[{index}]" for index in range(size)] if array.shape else [name]
    return tuple(names)


def _plain(state: tuple[Any, ...]) -> dict[str, Any]:
    """The state of a numpy random stream in a form that torch loads with ``weights_only``."""
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
    )
