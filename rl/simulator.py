"""Tasks of DeepMind Control, one environment step at a time, and the renderer that draws them.

Shapes: S pixels of a frame, A dimensions of an action, n numbers of the task's own observation,
which is computed from the physics and here called the state.
"""

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from rl.config import TASKS
from shared.errors import UserError, first_line
from shared.experiment.data import sha256_of_files
from shared.notices import notice

# torch's compiler, which the first optimiser imports, brings an LLVM in its CUDA builds. Loaded
# after that of Mesa, which comes with the first frame, it ends the process.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

SOFTWARE = ("llvmpipe", "softpipe", "swrast", "osmesa")  # renderers on the CPU
QUALITIES = ("full", "fast")
_UNBOUNDED = 1e10  # DM Control's bounds of an actuator without any
# What chooses a renderer; DM Control and PyOpenGL read them when they are imported.
_VARIABLES = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID")


@functools.cache
def suite() -> Any:
    """DM Control's suite, which draws by EGL unless ``MUJOCO_GL`` says otherwise.

    Raises:
        UserError: the renderer does not work; the variables that are set are named.
    """
    given = _variables()
    if sys.platform == "linux" and not os.environ.get("MUJOCO_GL"):
        os.environ["MUJOCO_GL"] = "egl"
    # EGL sees every GPU regardless of CUDA_VISIBLE_DEVICES: cells on several would all render on
    # the first. So the one visible to CUDA is chosen, numbered alike by drivers, unless one is set.
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if shown.isdigit():
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", shown)
    # Older models set their total mass by an attribute that MuJoCo has deprecated; only DM
    # Control's authors can change that.
    logging.getLogger("absl").addFilter(lambda record: "settotalmass" not in record.getMessage())
    try:
        from dm_control import _render, suite
    except ModuleNotFoundError:
        raise  # DM Control is not installed
    except Exception as error:  # each renderer has its own exceptions
        raise _no_renderer(error, given) from error
    if _render.BACKEND:  # processes started from this one have to choose the same
        os.environ["MUJOCO_GL"] = _render.BACKEND
    return suite


def _variables() -> str:
    return ", ".join(f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ)


def _no_renderer(error: Exception, given: str) -> UserError:
    remedy = (
        "install (Debian's names) libegl1, libgl1 and libgl1-mesa-dri or, on a GPU, the driver's "
        "graphics libraries; or libosmesa6, with MUJOCO_GL=osmesa"
    )
    if given:
        remedy = f"unset {given}, or {remedy}"
    return UserError(f"no renderer: {first_line(error)}; {remedy}")


# The process that has rendered; renderers do not survive a fork.
_drawing: int | None = None


def _contexts(physics: Any) -> Any:
    """The rendering contexts of a model, created at the first call."""
    global _drawing
    try:
        contexts = physics.contexts
    except Exception as error:  # each renderer has its own exceptions
        raise _no_renderer(error, _variables()) from error
    _drawing = os.getpid()
    return contexts


def _is_forked() -> bool:
    return _drawing not in (None, os.getpid())


@functools.cache
def renderer_in_use() -> str:
    """The renderer and the device or program behind it, as in ``"egl: llvmpipe (LLVM 15.0.6)"``."""
    suite()
    from dm_control import mujoco
    from OpenGL import GL

    physics = mujoco.Physics.from_xml_string("<mujoco/>")
    try:
        with _contexts(physics).gl.make_current() as context:
            name = context.call(GL.glGetString, GL.GL_RENDERER)
    finally:
        physics.free()
    renderer = f"{os.environ['MUJOCO_GL']}: {name.decode()}"
    if torch.cuda.is_available() and any(software in renderer for software in SOFTWARE):
        notice(
            f"frames are drawn by the CPU ({renderer}), 5 to 10 times slower than by the available "
            f"GPU: give the container the driver's graphics libraries "
            f"(NVIDIA_DRIVER_CAPABILITIES=all, or graphics beside compute)"
        )
    return renderer


def domain_and_name(task: str) -> tuple[str, str]:
    """Domain and name of a task in DM Control; both may contain underscores."""
    for domain, name in suite().ALL_TASKS:
        if f"{domain}_{name}" == task:
            return domain, name
    raise UserError(
        f"no task {task!r}; the papers' are {', '.join(TASKS)}, and any other domain_task of DM "
        f"Control's suite whose actions are bounded works (those of lqr are not); an "
        f"environment of your own goes to rl.train_agent or rl.pretrain"
    )


def task_fingerprint(task: str) -> str:
    """SHA-256 over a task's program and model, and the versions of MuJoCo and DM Control."""
    domain, _ = domain_and_name(task)
    program = Path(str(importlib.import_module(f"dm_control.suite.{domain}").__file__))
    shared = (program.parent / "common").glob("*.xml")
    files = sha256_of_files([program, program.with_suffix(".xml"), *shared])
    parts = (task, files, version("mujoco"), version("dm-control"))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


class Task(gymnasium.Env[Any, np.ndarray]):
    """A task of DM Control: an action is one step of it, and nothing is drawn until asked for.

    A seed restarts the task's random stream, which otherwise continues from episode to episode.
    There is no time limit: DM Control's own is in seconds and differs between tasks.

    Args:
        task: domain and name, as in ``"cartpole_swingup"``.
        quality: of the rendering. ``"full"``: DM Control's own. ``"fast"``: without multisampling
            and with coarser shadows.
        frame_size: S.

    Raises:
        UserError: the task is unknown or has unbounded actions, or no renderer works.
        ValueError: larger pictures than the model's frame buffer.
    """

    def __init__(self, task: str, quality: str, frame_size: int) -> None:
        domain, name = domain_and_name(task)
        self._task = task
        self.control = suite().load(domain, name, task_kwargs={"time_limit": np.inf})
        actions = self.control.action_spec()
        if np.abs([actions.minimum, actions.maximum]).max() >= _UNBOUNDED:
            raise UserError(f"{task}: its actions have no bounds to scale to; choose another task")
        self.action_space = gymnasium.spaces.Box(actions.minimum, actions.maximum, dtype=np.float64)
        self.observation_space = gymnasium.spaces.Box(0, 255, (frame_size, frame_size, 3), np.uint8)
        self.state_names = _names(self.control.observation_spec())
        model = self.control.physics.model
        if quality == "fast":
            model.vis.quality.offsamples = 0
            model.vis.quality.shadowsize = 512
        # Kept, since a new one per frame would reallocate the scene. In a forked process this
        # would hang; reset reports that, since gymnasium passes its errors on.
        if not _is_forked():
            _contexts(self.control.physics)
            self._camera = self._camera_of(frame_size)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[None, dict[str, Any]]:
        """Start an episode; the observation is left to :meth:`draw`.

        Raises:
            UserError: the process was forked from one that has rendered, and cannot render.
        """
        if _is_forked():
            raise UserError(
                f"{self._task}: a process forked from one that has rendered frames cannot render; "
                f"use rl.make_vector, or start processes by spawn: gymnasium.make_vec(..., "
                f"vector_kwargs={{'context': 'spawn'}})"
            )
        if seed is not None:
            self.control.task.random.seed(seed)
        self._observation = self.control.reset().observation
        return None, {}

    def step(self, action: np.ndarray) -> tuple[None, float, bool, bool, dict[str, Any]]:
        """One step of the physics; the observation is left to :meth:`draw`.

        Raises:
            FloatingPointError: the simulation diverged.
        """
        from dm_control.rl.control import PhysicsError

        try:
            time_step = self.control.step(action)
        except PhysicsError as error:
            raise FloatingPointError(f"{self._task}: the simulation diverged") from error
        self._observation = time_step.observation
        return None, float(time_step.reward), bool(time_step.last()), False, {}

    def state(self) -> np.ndarray:
        """The state (n,) float64: joint positions and velocities in most tasks.

        Raises:
            FloatingPointError: it is not finite.
        """
        state = np.concatenate([np.ravel(value) for value in self._observation.values()])
        if not np.isfinite(state).all():
            wrong = [self.state_names[entry] for entry in np.flatnonzero(~np.isfinite(state))]
            raise FloatingPointError(f"{self._task}: not finite: {', '.join(wrong)}")
        return state

    def draw(self, size: int | None = None) -> np.ndarray:
        """The image of camera 0, (S, S, 3) uint8, or of another size.

        Raises:
            ValueError: larger than the model's frame buffer.
        """
        camera = self._camera if size is None else self._camera_of(size)
        return np.ascontiguousarray(camera.render())

    def close(self) -> None:
        """Free the renderer's memory."""
        self.control.physics.free()

    def _camera_of(self, size: int) -> Any:
        from dm_control import mujoco

        buffer = self.control.physics.model.vis.global_
        largest = min(buffer.offwidth, buffer.offheight)
        if not 1 <= size <= largest:
            raise ValueError(f"{self._task} renders 1 to {largest} pixels; got {size}")
        return mujoco.Camera(self.control.physics, height=size, width=size, camera_id=0)


def _names(specification: dict[str, Any]) -> tuple[str, ...]:
    """Names of the entries of a task's observation; a scalar has no index."""
    names: list[str] = []
    for name, array in specification.items():
        size = int(np.prod(array.shape))
        names += [f"{name}[{index}]" for index in range(size)] if array.shape else [name]
    return tuple(names)
