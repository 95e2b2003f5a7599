"""Prefetched training views: threads copy the next batch's clips while the device works.

Shapes: n videos, B clips of a batch, T frames of a clip, h x w pixels of a stored frame, S side of
a clip in pixels.

Where all frames fit in a share of a GPU's memory they are moved there once, and clips are gathered
there. Otherwise threads copy them out of the memory-mapped file into reused buffers, of each frame
the cropped region only; for a GPU the buffers are pinned, so that transfers do not block. Either
way the views are those of :func:`video.augmentation.views`, to the bit, however many threads there
are.
"""

import dataclasses
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from video.augmentation import (
    Parameters,
    augment_both,
    copy_clip,
    first_frames,
    parameters,
    policy_of,
    sampled_starts,
    views,
)
from video.config import Config
from video.data import Videos

PREFETCH_BATCHES = 1  # batches that are copied while one is worked on
RESIDENT_FRACTION = 0.25  # of a GPU's free memory that the frames may take; networks need the rest
CLIPS_PER_TASK = 8  # clips that a thread copies at a time


def batches(
    config: Config,
    videos: Videos,
    chosen: Iterable[tuple[Tensor, int]],
    *,
    device: torch.device,
    workers: int = 1,
) -> Generator[tuple[Tensor, Tensor]]:
    """The two views (B, 3, T, S, S) of each batch, as :func:`video.augmentation.views` makes them.

    chosen: of each batch, which videos (B,) int64 and the number of the epoch; no batch is larger
    than the first. device: where to augment. workers: threads that copy clips.
    """
    videos = resident(videos, device)
    if videos.frames.device.type != "cpu":
        for index, epoch in chosen:
            yield views(videos, index, config, epoch, device=device)
        return
    buffers: deque[_Buffer] = deque()
    waiting: deque[_PendingBatch] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for index, epoch in chosen:
            if not buffers and not waiting:
                shape = (2, len(index), config.clip_frames, *videos.frames.shape[1:])
                buffers.extend(
                    _Buffer(torch.zeros(shape, dtype=videos.frames.dtype), device)
                    for _ in range(1 + PREFETCH_BATCHES)
                )
            waiting.append(_submit_copies(config, videos, index, epoch, buffers.popleft(), pool))
            if len(waiting) > PREFETCH_BATCHES:
                # Its buffer is reused once the caller is done with views that may share memory.
                yield _await_views(config, waiting[0], device)
                buffers.append(waiting.popleft().buffer)
        while waiting:
            yield _await_views(config, waiting.popleft(), device)
    finally:
        pool.shutdown(cancel_futures=True)


def resident(videos: Videos, device: torch.device) -> Videos:
    """The videos, all frames on a GPU where they fit in ``RESIDENT_FRACTION`` of its memory."""
    if device.type != "cuda" or videos.frames.device.type != "cpu":
        return videos
    if videos.frames.nbytes > RESIDENT_FRACTION * torch.cuda.mem_get_info(device)[0]:
        return videos
    return dataclasses.replace(videos, frames=videos.frames.to(device))


class _Buffer:
    """Host memory for the clips of both views of a batch, (2, B, T, 3, h, w) uint8.

    What lies outside of a clip's crop stays from earlier clips; no view depends on it.
    """

    def __init__(self, clips: Tensor, device: torch.device) -> None:
        self.clips = clips.pin_memory() if device.type == "cuda" else clips
        # Recorded after the copies to the device, whose source must not change until they are done.
        self.transfer_done = torch.cuda.Event(blocking=True) if device.type == "cuda" else None


@dataclass(frozen=True)
class _PendingBatch:
    """A batch whose clips are being copied."""

    index: Tensor
    epoch: int
    drawn: tuple[Parameters, Parameters]
    buffer: _Buffer
    parts: list[Future[None]]


def _submit_copies(
    config: Config,
    videos: Videos,
    index: Tensor,
    epoch: int,
    buffer: _Buffer,
    pool: ThreadPoolExecutor,
) -> _PendingBatch:
    """Draw what happens to the clips of a batch, and have them copied."""
    height, width = videos.frames.shape[-2:]
    frames, target = videos.frames.numpy(), buffer.clips.numpy()
    every_drawn, parts = [], []
    for view, start in enumerate(sampled_starts(videos, index, config, epoch)):
        drawn = parameters(
            policy_of(config),
            config.seed,
            epoch,
            index,
            view,
            height=height,
            width=width,
            sampling=config.sampling,
        )
        first, lack = first_frames(videos, index, start, config.clip_frames)
        clips = target[view, : len(index)]
        work = list(zip(clips, first.tolist(), lack.tolist(), drawn.box.T, strict=True))
        for begin in range(0, len(index), CLIPS_PER_TASK):
            task = work[begin : begin + CLIPS_PER_TASK]
            parts.append(pool.submit(_copy, frames, task, buffer.transfer_done))
        every_drawn.append(drawn)
    return _PendingBatch(index, epoch, (every_drawn[0], every_drawn[1]), buffer, parts)


def _copy(
    frames: np.ndarray,
    work: list[tuple[np.ndarray, int, int, np.ndarray]],
    transfer_done: torch.cuda.Event | None,
) -> None:
    """Copy clips once their buffer has been read: target, first frame, lack of frames and crop."""
    if transfer_done is not None:
        transfer_done.synchronize()
    for target, first, lack, box in work:
        copy_clip(target, frames, first, lack, box)


def _await_views(
    config: Config, copied: _PendingBatch, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The views of a batch, once its clips are copied."""
    for part in copied.parts:
        part.result()
    buffer, size = copied.buffer, len(copied.index)
    every_clips = [
        stored[:size].to(device, non_blocking=True).transpose(1, 2) for stored in buffer.clips
    ]
    if buffer.transfer_done is not None:
        buffer.transfer_done.record()
    return augment_both(every_clips, config, copied.epoch, copied.index, copied.drawn)
