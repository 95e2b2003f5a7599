"""Time and memory of a run, estimated from a few frames and a few updates.

A frame is timed as the task renders it. An update is timed with few transitions and with more, and
its line drawn on to the run's batch. Both are multiplied by how many the run needs. Left out: what
losses other than InfoNCE add, and, on a GPU, what the run gains by capturing its updates and by
rendering beside them.
"""

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rl.agent import Agent, Contrast
from rl.config import Config
from rl.environment import DeepMindControl
from rl.replay import Batch

BASELINE = 0.45e9  # bytes of a process that has imported everything and done nothing
COPIES = 5  # of each parameter: itself, its gradient, the states of one or two optimisers
# Bytes at the peak of an update for each byte that the convolutions give: measured, 3.0 to 3.5.
ACTIVATIONS = 3.5
# Seconds of the probe's regression on one core: for n^3 of n training frames, and for n (n + m) d
# of m test frames and d features. 2000 and 500 frames took 4 seconds, and 10 with their pixels.
SOLVING = 5e-10
KERNEL = 3.2e-11
ACTIONS = 6  # dimensions, of the timed agent; the task's own hardly matter
FRAMES = 5  # timed, after as many that are not
BATCHES = (8, 24)  # transitions of the timed updates

# What a frame costs is decided by these.
RENDERING = ("task", "action_repeat", "frame_size", "quality")
# What an update costs is decided by these.
DECIDING = (
    "protocol",
    "crop",
    "stack",
    "filters",
    "convolutions",
    "latent",
    "hidden",
    "contrastive",
    "double_step",
    "update_every",
    "precision",
)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What the networks of a configuration cost on this machine.

    Args:
        per_update: seconds of an update, however small its batch.
        per_transition: seconds of an update for each transition of its batch.
        forward: seconds for each observation that is acted on or embedded.
        fixed: bytes of parameters, gradients and optimisers.
    """

    per_update: float
    per_transition: float
    forward: float
    fixed: int


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of one run on this machine's device.

    Args:
        config: of the run.
        data_root: where the frames of a probe may already lie.

    Raises:
        shared.errors.UserError: an unknown task, or no renderer.
    """
    seconds, size = (_probe if config.protocol == "state-probe-v1" else _agent)(config, data_root)
    return seconds / 60, (BASELINE + size) / 1e9


def _agent(config: Config, data_root: Path) -> tuple[float, float]:
    """Seconds and bytes of an agent's run, or of the random policy's one evaluation."""
    frame = _of(config, RENDERING, seconds_of_frame)
    episodes = config.evaluation_episodes * (config.episode_steps // config.action_repeat)
    if not config.train:
        return episodes * frame, 0.0
    costs = _of(config, DECIDING, calibrate)
    decisions = config.environment_steps // config.action_repeat
    evaluations = config.environment_steps // config.evaluate_every
    updates = max(0, decisions - config.initial_steps)
    seconds = (decisions + evaluations * episodes) * (frame + costs.forward)
    seconds += updates * (costs.per_update + config.batch_size * costs.per_transition)
    replay = decisions * 3 * config.frame_size**2
    return seconds, replay + costs.fixed + config.batch_size * _bytes_of_transition(config)


def _probe(config: Config, data_root: Path) -> tuple[float, float]:
    """Seconds and bytes of a probe's run."""
    fitted = config.probe_episodes * config.probe_steps
    count = fitted + config.probe_test_episodes * config.probe_steps
    pixels = 3 * config.stack * config.crop**2
    seconds = 0.0
    if not are_rendered(config, data_root):
        seconds += count * _of(config, RENDERING, seconds_of_frame)
    size = count * 3 * config.frame_size**2 + 5 * 8.0 * fitted**2
    features = config.latent
    if config.probe_input == "pixels":
        features = pixels
        size += 4 * count * pixels
    else:
        costs = _of(config, DECIDING, calibrate)
        updates = config.probe_updates if config.train else 0
        seconds += count * costs.forward
        seconds += updates * (costs.per_update + config.batch_size * costs.per_transition)
        size += costs.fixed + config.batch_size * _bytes_of_transition(config)
    return seconds + SOLVING * fitted**3 + KERNEL * fitted * count * features, size


def are_rendered(config: Config, data_root: Path) -> bool:
    """Whether the frames of a probe lie below ``data_root``."""
    wanted = {
        "action_repeat": config.action_repeat,
        "episodes": config.probe_episodes + config.probe_test_episodes,
        "steps": config.probe_steps,
        "seed": config.seed,
    }
    name = f"{config.task}-{config.frame_size}-{config.quality}-*"
    files = (data_root / "prepared" / "rl").glob(f"{name}/meta.json")
    for file in files:
        with contextlib.suppress(ValueError):  # damaged; the run itself says so
            kept = json.loads(file.read_text())
            if all(kept.get(field) == value for field, value in wanted.items()):
                return True
    return False


def _of(config: Config, names: tuple[str, ...], measure: Callable[..., Any]) -> Any:
    """What ``measure`` gives for these fields of the configuration."""
    return measure(*(getattr(config, name) for name in names))


def _bytes_of_transition(config: Config) -> float:
    """What an update holds for each transition of its batch, at its peak."""
    sides = [(config.crop - 3) // 2 + 1 - 2 * layer for layer in range(config.convolutions)]
    return ACTIVATIONS * 4 * config.filters * sum(side**2 for side in sides)


@functools.cache
def seconds_of_frame(task: str, action_repeat: int, frame_size: int, quality: str) -> float:
    """Seconds from one frame of a task to the next, physics included."""
    # Its own length of an episode does not matter here, but must be a multiple of the repeat.
    length = 2 * FRAMES * action_repeat
    settings: dict[str, Any] = {"frame_size": frame_size, "quality": quality}
    environment = DeepMindControl(
        task, action_repeat=action_repeat, episode_steps=length, **settings
    )
    with contextlib.closing(environment):
        environment.reset(seed=0)
        action = 0 * environment.action_space.sample()
        for _ in range(FRAMES):
            environment.step(action)
        start = _clock()
        for _ in range(FRAMES):
            environment.step(action)
        return (_clock() - start) / FRAMES


@functools.cache
def calibrate(*values: Any) -> Calibration:
    """Time a few updates and passes of networks on the machine's device.

    Args:
        values: of the fields ``DECIDING``.
    """
    config = dataclasses.replace(Config(), **dict(zip(DECIDING, values, strict=True)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if config.protocol == "state-probe-v1":
        contrast = Contrast(config, device)
        parameters = list(contrast.parameters())

        def update(batch: Batch, step: int) -> None:
            contrast.update(batch.observation, batch.positive, step)

        def forward(observation: torch.Tensor) -> None:
            with torch.no_grad():
                contrast.encoder(observation)
    else:
        agent = Agent(config, ACTIONS, device)
        parameters = list(agent.parameters())

        def update(batch: Batch, step: int) -> None:
            agent.update(batch, step)

        def forward(observation: torch.Tensor) -> None:
            agent.act(observation, sample=True)

    times = []
    for size in BATCHES:
        work = functools.partial(update, made_up(config, size, device))
        times.append(_seconds(work, config.update_every))
    per_transition = max(0.0, times[1] - times[0]) / (BATCHES[1] - BATCHES[0])
    observation = made_up(config, BATCHES[0], device).observation
    return Calibration(
        per_update=max(0.0, times[0] - BATCHES[0] * per_transition),
        per_transition=per_transition,
        forward=_seconds(lambda step: forward(observation), 1) / BATCHES[0],
        fixed=4 * COPIES * sum(parameter.numel() for parameter in parameters),
    )


def made_up(config: Config, size: int, device: str) -> Batch:
    """A batch of noise: ``size`` transitions."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, size, 3 * config.stack, config.crop, config.crop)
    crops = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)
    action = torch.zeros(size, ACTIONS, device=device)
    return Batch(crops[0], crops[1], crops[2], action, torch.zeros(size, device=device))


def _seconds(work: Callable[[int], None], steps: int) -> float:
    """Time of ``work``, mean over so many steps, the shorter of two: the first sets things up."""
    threads = 1 if torch.cuda.is_available() else torch.get_num_threads()
    times = []
    for _ in range(2):
        start = _clock()
        for step in range(1, steps + 1):
            work(step)
        times.append((_clock() - start) / steps / threads)
    return min(times)


def _clock() -> float:
    """Seconds; on the CPU of the processor, all threads, which no other process stretches."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()
