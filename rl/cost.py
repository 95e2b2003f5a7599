"""Time and memory of a run, estimated from a few frames and a few steps of its loop.

A frame is timed as the task renders it, an update in the loop of an agent or of a probe. Left out:
what, on a GPU, a run gains by capturing its updates and by rendering beside them.
"""

import contextlib
import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import Any

import torch

from rl import probe
from rl import train as agents
from rl.config import Config, ImitationConfig, ProbeConfig
from rl.data import Frames
from rl.environment import DeepMindControl
from rl.expert import LEVELS
from rl.imitation import STRIDE
from shared import query_key
from shared.experiment.runs import Run
from shared.experiment.trial import Cost, cost_of, seconds_of_loss

BASELINE = 0.45e9  # bytes of a process that has imported everything and done nothing
# Seconds of the probe's regression on one core: for n^3 of n training frames, and for n (n + m) d
# of m test frames and d features. 2000 and 500 frames took 4 seconds, and 10 with their pixels.
SOLVING = 5e-10
KERNEL = 3.2e-11
FRAMES = 5  # timed, after as many that are not
SMALLEST, LARGEST = 8, 32  # transitions of the timed updates
RANDOM, DECISIONS = 2, 32  # decisions of a timed agent: those at random, and all of them
# Passes of the encoder that a transition of a probe's update costs: anchor, its way back, and key.
PASSES = 4

# What a frame costs is decided by these.
RENDERING = ("task", "action_repeat", "frame_size", "quality")
# What an update costs is decided by these.
DECIDING = (
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


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of an agent's run on this machine's device.

    Args:
        config: of the run.
        data_root: not read.

    Raises:
        shared.errors.UserError: an unknown task, or no renderer.
    """
    frame = seconds_of_frame(*(getattr(config, name) for name in RENDERING))
    episodes = config.evaluation_episodes * (config.episode_steps // config.action_repeat)
    if not config.train:
        return episodes * frame / 60, BASELINE / 1e9
    cost = cost_of_agent(config)
    decisions = config.environment_steps // config.action_repeat
    evaluations = config.environment_steps // config.evaluate_every
    updates = max(0, decisions - config.initial_steps)
    update = cost.seconds(config.batch_size) + _loss(config)
    seconds = (decisions + evaluations * episodes) * frame + updates * update
    replay = decisions * 3 * config.frame_size**2
    size = BASELINE + replay + cost.fixed + config.batch_size * cost.kept
    return seconds / 60, size / 1e9


def estimate_probe(config: ProbeConfig, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of a probe's run on this machine's device.

    Args:
        config: of the run.
        data_root: where its frames may already lie.

    Raises:
        shared.errors.UserError: an unknown task, or no renderer.
    """
    fitted = config.probe_episodes * config.probe_steps
    count = fitted + config.probe_test_episodes * config.probe_steps
    pixels = 3 * config.stack * config.crop**2
    seconds, size = 0.0, count * 3 * config.frame_size**2 + 5 * 8.0 * fitted**2
    if not are_rendered(config, data_root):
        seconds += count * seconds_of_frame(*(getattr(config, name) for name in RENDERING))
    features = config.latent
    if config.probe_input == "pixels":
        features = pixels
        size += 4 * count * pixels
    else:
        cost = _cost_of_probe(config)
        updates = config.probe_updates if config.train else 0
        seconds += count * cost.per_item / PASSES
        seconds += updates * (cost.seconds(config.batch_size) + _loss(config))
        size += cost.fixed + config.batch_size * cost.kept
    seconds += SOLVING * fitted**3 + KERNEL * fitted * count * features
    return seconds / 60, (BASELINE + size) / 1e9


def estimate_imitation(config: ImitationConfig, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of an imitation's run on this machine's device.

    The expert is left out, which the first run of a task trains for all others.

    Args:
        config: of the run.
        data_root: not read.

    Raises:
        shared.errors.UserError: an unknown task, or no renderer.
    """
    frame = seconds_of_frame(*(getattr(config, name) for name in RENDERING))
    played = config.evaluation_episodes * (config.episode_steps // config.action_repeat)
    if config.acts != "head":
        return played * frame / 60, BASELINE / 1e9
    count = len(LEVELS) * config.probe_steps
    fitted, count = (
        count * config.probe_episodes,
        count * (config.probe_episodes + config.probe_test_episodes),
    )
    pixels = 3 * config.stack * config.crop**2
    # The regression of the state, and the inner products of the principal components.
    read = fitted // STRIDE
    seconds = played * frame + SOLVING * read**3 + KERNEL * read * count / STRIDE * config.latent
    size = BASELINE + count * 3 * config.frame_size**2 + 5 * 8.0 * read**2
    if config.probe_input == "pixels":
        seconds += KERNEL * read**2 * pixels
        size += 2 * 4 * read * pixels
    else:
        cost = _cost_of_probe(config)
        updates = config.probe_updates if config.train else 0
        seconds += (count + played) * cost.per_item / PASSES
        seconds += updates * (cost.seconds(config.batch_size) + _loss(config))
        size += cost.fixed + config.batch_size * cost.kept
    return seconds / 60, size / 1e9


def _cost_of_probe(config: ProbeConfig) -> Cost:
    """What an update of the contrastive step alone costs."""
    return cost_of(
        train_probe,
        ProbeConfig(),
        {name: getattr(config, name) for name in DECIDING},
        smallest=SMALLEST,
        largest=LARGEST,
        skip=config.update_every,
        cycle=config.update_every,
    )


def _loss(config: Config) -> float:
    """Seconds of the contrastive loss of an update."""
    if not config.contrastive:
        return 0.0
    return seconds_of_loss(config.objective, config.batch_size, config.latent, query_key)


def cost_of_agent(config: Config) -> Cost:
    """What an agent's step costs beside its frame."""
    base = Config(
        quality="fast",
        frame_size=config.crop + 16,
        initial_steps=RANDOM,
        environment_steps=DECISIONS * Config.action_repeat,
        evaluate_every=DECISIONS * Config.action_repeat,
        evaluation_episodes=1,
    )
    cost = cost_of(
        agents.measure,
        base,
        {name: getattr(config, name) for name in DECIDING},
        smallest=SMALLEST,
        largest=LARGEST,
        skip=RANDOM + config.update_every,
        cycle=config.update_every,
    )
    frame = seconds_of_frame(*(getattr(base, name) for name in RENDERING))
    return dataclasses.replace(cost, per_step=max(0.0, cost.per_step - frame))


def train_probe(config: ProbeConfig, run: Run) -> None:
    """The loop of a probe on frames of noise, four batches of them."""
    count, side = 4 * config.batch_size, config.frame_size
    generator = torch.Generator().manual_seed(0)
    frames = Frames(
        torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator),
        torch.zeros(count, dtype=torch.int64),
        torch.zeros(count, dtype=torch.int64),
        torch.zeros(count, 1),
        ("nothing",),
    )
    probe.pretrain(config, frames, run)


def are_rendered(config: ProbeConfig, data_root: Path) -> bool:
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
        # Of the processor, with whatever threads render, unless a GPU does.
        clock = time.perf_counter if torch.cuda.is_available() else time.process_time
        start = clock()
        for _ in range(FRAMES):
            environment.step(action)
        return (clock() - start) / FRAMES
