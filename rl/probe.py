"""Contrastive training on frames of a random policy, and a probe of the physics state: one loop.

Shapes: n frames, B of a batch, K frames of a stack, S pixels of a frame.
"""

import dataclasses
from functools import partial

import torch

from rl.agent import Contrast
from rl.config import ProbeConfig, check
from rl.data import Frames, frames_fingerprint, random_frames
from rl.evaluation import embed, pixels, state_probe
from rl.replay import gather
from rl.simulator import renderer_in_use, task_fingerprint
from rl.train import SAVE_EVERY, save_weights
from shared.distributed import broadcast, local_slice, replicated
from shared.experiment.domain import Metrics
from shared.experiment.run import Run

LOG_EVERY = 20  # updates averaged in a line of the log
STRIDE = 3  # frames between two that the state probe reads during training


def measure(config: ProbeConfig, run: Run) -> Metrics:
    """Train a contrastive encoder on frames of a random policy, and probe it for the state.

    The held-out episodes are used only to score the final regression.
    """
    check(config)
    run.record(renderer=renderer_in_use())
    episodes = config.probe_episodes + config.probe_test_episodes
    frames = random_frames(
        config.task,
        config.action_repeat,
        episodes=episodes,
        steps=config.probe_steps,
        frame_size=config.frame_size,
        quality=config.quality,
        seed=config.seed,
        data_root=run.data_root,
        progress=run.progress,
    )
    run.record_data(
        **{config.task: task_fingerprint(config.task), "frames": frames_fingerprint(frames)}
    )
    cut = config.probe_episodes * config.probe_steps
    train, test = part_of(frames, 0, cut), part_of(frames, cut, len(frames.frames))
    if config.probe_input == "pixels":
        features = [pixels(part, crop=config.crop, stack=config.stack) for part in (train, test)]
    else:
        run.score = partial(state_so_far, config, train, test)
        contrast = pretrain(config, train, run)
        run.continue_on_rank_zero()
        save_weights(run, contrast, ("encoder.",))
        features = [
            embed(
                contrast.encoder,
                part,
                crop=config.crop,
                stack=config.stack,
                precision=config.precision,
            )
            for part in (train, test)
        ]
    return state_probe(
        features[0], train.state, train.episode, features[1], test.state, frames.names
    )


def state_so_far(
    config: ProbeConfig, train: Frames, test: Frames, contrast: Contrast, **_: object
) -> dict[str, float]:
    """``r2`` of the state probe, on every few frames."""
    shape = {"crop": config.crop, "stack": config.stack}
    features, test_features = (
        embed(contrast.encoder, part, **shape, precision=config.precision)[::STRIDE]
        for part in (train, test)
    )
    state, episode, test_state = (
        values[::STRIDE] for values in (train.state, train.episode, test.state)
    )
    scores = state_probe(features, state, episode, test_features, test_state, train.names)
    return {"r2": scores["r2"]}


def part_of(frames: Frames, start: int, stop: int) -> Frames:
    """The frames from ``start`` to ``stop``, which are whole episodes."""
    return dataclasses.replace(
        frames,
        frames=frames.frames[start:stop],
        first=frames.first[start:stop] - start,
        episode=frames.episode[start:stop],
        state=frames.state[start:stop],
    )


def pretrain(config: ProbeConfig, frames: Frames, run: Run) -> Contrast:
    """Train the contrastive encoder of a configuration on frames, without an agent.

    Batches are drawn from the frames with new crops each time. The encoder is returned with its
    momentum encoder, on the GPU if there is one.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    contrast = Contrast(config, device=device)
    if not config.train:
        return contrast
    run.keep_checkpoint = False
    run.track(contrast=contrast, **contrast.optimisers)
    forward = replicated(contrast.loss, contrast)
    images, first = frames.frames.to(device), frames.first.to(device)
    places = config.frame_size - config.crop + 1
    local = local_slice(config.batch_size)
    for step in run.steps(
        config.probe_updates,
        "contrastive updates",
        log_every=LOG_EVERY,
        save_every=SAVE_EVERY,
    ):
        index = broadcast(torch.randint(len(images), (config.batch_size,)))[local]
        offsets = broadcast(torch.randint(places, (2, config.batch_size, 2)))[:, local]
        offsets = offsets.to(device, non_blocking=True)
        index = index.to(device, non_blocking=True)
        anchor, positive = (
            gather(images, index, first[index], corners, stack=config.stack, crop=config.crop)
            for corners in offsets
        )
        if step % config.update_every == 0:
            contrast.follow()
        run.means.add(contrast.update(anchor, positive, step, forward))
    return contrast
