"""Batches that threads copy ahead are the views of one batch at a time, to the bit."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.stages.simulated_device import SimulatedDevice
from tests.video.test_augmentation import CONFIG
from tests.video.test_augmentation import videos as made_videos
from video import loading
from video.augmentation import copy_clip, views
from video.config import Config
from video.data import Videos
from video.loading import batches, resident

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CHOSEN = [
    (torch.tensor(index), epoch)
    for epoch in (4, 5)
    for index in ([3, 0, 6], [5, 4, 1], [2, 3, 3], [1])
]


@pytest.fixture(scope="module")
def videos() -> Videos:
    return made_videos()


def assert_are_views(found: Iterator[tuple[Tensor, Tensor]], videos: Videos, config: Config):
    for (index, epoch), pair in zip(CHOSEN, found, strict=True):
        for one, expected in zip(pair, views(videos, index, config, epoch), strict=True):
            assert torch.equal(one, expected)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "changes", [{}, {"modality": "flow"}, {"policy": "strong", "sampling": "two_clips"}]
)
def test_batches_are_the_views_of_each(
    videos: Videos, changes: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading, "CLIPS_PER_TASK", 2)
    config = dataclasses.replace(CONFIG, **changes)
    found = batches(config, videos, iter(CHOSEN), device=CPU, workers=workers)
    assert_are_views(found, videos, config)


def test_of_a_clip_its_box_alone_is_copied():
    frames = np.random.default_rng(0).integers(1, 256, (20, 3, 6, 7)).astype(np.uint8)
    clip = np.zeros((5, 3, 6, 7), np.uint8)
    copy_clip(clip, frames, 4, 2, np.array([1, 2, 3, 4]))
    expected = np.zeros_like(clip)
    expected[:, :, 1:4, 2:6] = frames[[4, 4, 4, 5, 6], :, 1:4, 2:6]
    assert np.array_equal(clip, expected)


def test_errors_in_a_thread_are_raised(videos: Videos):
    outside = [(torch.tensor([3, 99]), 0)]
    with pytest.raises(IndexError):
        next(batches(CONFIG, videos, outside, device=CPU))
    torn = dataclasses.replace(videos, frames=videos.frames[:20])
    with pytest.raises(ValueError, match="broadcast"):
        next(batches(CONFIG, torn, [(torch.tensor([5]), 0)], device=CPU))


@pytest.mark.parametrize("free", [1000, 80 << 30])
def test_a_gpu_gets_them_without_being_waited_for(
    videos: Videos, free: int, monkeypatch: pytest.MonkeyPatch
):
    there: list[Tensor] = []
    with SimulatedDevice() as device:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, free))
        kept = resident(videos, GPU)
        assert (kept.frames.device.type == "cuda") == (free > 1000)
        device.waits.clear()  # of frames that are brought there once
        for pair in batches(CONFIG, kept, iter(CHOSEN), device=GPU, workers=2):
            there += pair
        # A thread that copies waits until its buffer was read; the one that trains never waits.
        assert set(device.waits) <= {("an event", "video/loading.py _copy")}
        found = [each.cpu() for each in there]
    assert_are_views(zip(found[::2], found[1::2], strict=True), videos, CONFIG)


def test_a_buffer_is_not_written_to_before_the_device_has_read_it(
    videos: Videos, monkeypatch: pytest.MonkeyPatch
):
    """Events that are never over until they are asked for."""
    unread: set[int] = set()

    class Event:
        def __init__(self, **_: Any) -> None:
            pass

        def record(self) -> None:
            unread.add(id(self))

        def synchronize(self) -> None:
            unread.discard(id(self))

    asked: list[bool] = []

    def noted(*args: Any) -> None:
        copy_clip(*args)
        asked.append(len(unread) < 2)

    monkeypatch.setattr(loading, "copy_clip", noted)
    with SimulatedDevice():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (0, 0))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        for _ in batches(CONFIG, videos, iter(CHOSEN), device=GPU):
            pass
    assert len(asked) == sum(2 * len(index) for index, _ in CHOSEN)
    assert all(asked)


@pytest.mark.cuda
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_real_gpu_gives_the_same_views(
    videos: Videos, share: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading, "RESIDENT_FRACTION", share)
    found = list(batches(CONFIG, videos, CHOSEN, device=GPU, workers=2))
    for (index, epoch), pair in zip(CHOSEN, found, strict=True):
        expected = views(videos, index, CONFIG, epoch, device=GPU)
        assert all(torch.equal(*each) for each in zip(pair, expected, strict=True))
