"""Clip sampling against its rules; the augmentations against torchvision's, frame by frame.

The references call torchvision.transforms.v2.functional on one frame with the numbers of one clip.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from video.augmentation import (
    MEAN,
    OF_PYTORCHVIDEO,
    POLICIES,
    STD,
    TAPS,
    Parameters,
    augment,
    centre,
    gather_clips,
    parameters,
    sample_clips,
    ten_crops,
    windows,
)
from video.config import Config
from video.data import Video, Videos

# The others: test_pytorchvideo.
OURS = tuple(policy for policy in POLICIES if policy not in OF_PYTORCHVIDEO)
LENGTHS = (5, 8, 9, 30, 2, 100, 12)
SIZE, HEIGHT, WIDTH = 16, 18, 24
CONFIG = Config(clip_frames=8, size=SIZE, seed=3)
ADJUST: tuple[Callable[[Tensor, float], Tensor], ...] = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)


def videos() -> Videos:
    """Videos of random pixels, of which the first in the corner counts the frames of all."""
    total = sum(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (total, 3, HEIGHT, WIDTH), generator=generator)
    frames = frames.to(torch.uint8)
    frames[:, :, 0, 0] = torch.arange(total, dtype=torch.uint8)[:, None]
    length = torch.tensor(LENGTHS)
    return Videos(
        videos=tuple(Video(f"v_{i}", 0, i, True) for i in range(len(LENGTHS))),
        classes=("Archery",),
        frames=frames,
        start=length.cumsum(0) - length,
        length=length,
        left_out=(),
    )


def clips(count: int = 40, frames: int = 3, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    """Smooth moving colours under noise, (count, 3, frames, height, width) uint8."""
    generator = torch.Generator().manual_seed(1)
    small = torch.rand(count, 3, 2, 3, 3, generator=generator)
    smooth = torch.nn.functional.interpolate(small, (frames, height, width), mode="trilinear")
    noisy = smooth + 0.1 * torch.randn(smooth.shape, generator=generator)
    return noisy.clamp(0, 1).mul(255).round().to(torch.uint8)


def view_of(pixels: Tensor, policy: str, size: int = SIZE, **changes: Any) -> Tensor:
    settings: dict[str, Any] = {"seed": 3, "epoch": 5, "samples": torch.arange(len(pixels))}
    return augment(pixels, size, **{**settings, "view": 1, "policy": policy, **changes})


def draw(policy: str, count: int, *, view: int = 0, **changes: Any) -> Parameters:
    settings: dict[str, Any] = {"height": HEIGHT, "width": WIDTH, **changes}
    return parameters(policy, 3, 5, torch.arange(count), view, **settings)


def reference(frame: Tensor, drawn: Parameters, i: int, policy: str, size: int) -> Tensor:
    """One uint8 frame under its clip's parameters, by torchvision's functions alone."""
    frame = functional.to_dtype(frame, torch.float32, scale=True)
    box = [int(side) for side in drawn.box[:, i]]
    bicubic = functional.InterpolationMode.BICUBIC
    frame = functional.resized_crop(frame, *box, [size, size], bicubic, antialias=True).clamp(0, 1)
    if drawn.flip[i]:
        frame = functional.horizontal_flip(frame)
        if policy == "flow":
            frame = torch.stack((1 - frame[0], frame[1], frame[2]))
    if drawn.jitter[i]:
        for operation in drawn.order[i]:
            frame = ADJUST[operation](frame, float(drawn.factors[operation, i]))
    if drawn.gray[i]:
        frame = frame[drawn.channel[i]].expand(3, -1, -1)
    if drawn.blur[i]:
        frame = functional.gaussian_blur(frame, [TAPS, TAPS], [float(drawn.sigma[i])] * 2)
    return functional.normalize(frame, list(MEAN), list(STD))


# Which frames


def sample(video: int, count: int, sampling: str, **changes: int) -> tuple[Tensor, Tensor]:
    """Starts of a video that is there so often: what happens to each is drawn anew."""
    few, settings = videos(), {"seed": 1, "epoch": 2, **changes}
    places = [video] * count
    many = dataclasses.replace(few, start=few.start[places], length=few.length[places])
    return sample_clips(many, torch.arange(count), 8, sampling=sampling, **settings)


def test_starts_are_uniform_and_independent_or_half_of_the_pairs_one_clip():
    first, second = sample(3, 4600, "two_clips")
    assert first.dtype == torch.int64
    for one in (first, second):
        counts = torch.bincount(one, minlength=23)
        assert len(counts) == 23
        assert (counts - 200).abs().max() < 4.5 * math.sqrt(200)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(4600)
    first, second = sample(5, 2000, "coclr")
    same = (first == second).double().mean()
    assert abs(same - (0.5 + 0.5 / 93)) < 4 * 0.5 / math.sqrt(2000)


def test_clips_are_consecutive_frames_and_short_videos_begin_with_copies_of_the_first():
    found = gather_clips(videos(), torch.tensor([3, 0, 4, 1]), torch.tensor([22, 0, 0, 0]), 8)
    assert found.shape == (4, 3, 8, HEIGHT, WIDTH)
    assert found.dtype == torch.uint8
    assert found[:, 1, :, 0, 0].tolist() == [
        [*range(44, 52)],
        [0, 0, 0, 0, 1, 2, 3, 4],
        [52] * 7 + [53],
        [*range(5, 13)],
    ]
    assert torch.equal(found[0, :, 2], videos().frames[46])


def test_windows_overlap_by_half_and_one():
    assert windows(100, 32).tolist() == [0, 15, 30, 45, 60]  # the next would end at 107
    assert windows(62, 32).tolist() == [0, 15, 30]
    assert windows(61, 32).tolist() == [0, 15]
    assert windows(32, 32).tolist() == windows(5, 32).tolist() == [0]
    assert windows(4, 2).tolist() == [0, 1, 2]
    # At most so many are evenly spread.
    assert windows(91, 8).tolist() == list(range(0, 84, 3))
    assert windows(91, 8, 10).tolist() == [0, 9, 18, 27, 36, 46, 55, 64, 73, 83]
    assert windows(20, 8, 10).tolist() == windows(20, 8).tolist() == [0, 3, 6, 9, 12]
    assert windows(5, 8, 10).tolist() == windows(91, 8, 1).tolist() == [0]


# What happens to a clip


@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize(("height", "width", "size"), [(36, 48, 20), (16, 12, 24)])
def test_view_is_torchvisions_frame_by_frame(policy: str, height: int, width: int, size: int):
    pixels = clips(40, 2, height, width)
    before = pixels.clone()
    found = view_of(pixels, policy, size)
    drawn = draw(policy, 40, view=1, height=height, width=width)
    assert found.shape == (40, 3, 2, size, size)
    for i in range(40):
        for frame in range(2):
            expected = reference(pixels[i, :, frame], drawn, i, policy, size)
            # One step of 8-bit pixels is 0.02 here; the division by std multiplies by five.
            torch.testing.assert_close(found[i, :, frame], expected, atol=5e-5, rtol=0)
    assert torch.equal(pixels, before)


def test_rates_factors_and_orders_are_those_of_the_program():
    drawn = draw("strong", 20_000)
    flags = (drawn.flip, drawn.jitter, drawn.gray, drawn.blur)
    for flag, rate in zip(flags, (0.5, 0.8, 0.2, 0.5), strict=True):
        assert abs(flag.mean() - rate) < 4 * math.sqrt(rate * (1 - rate) / 20_000)
    assert np.abs(np.corrcoef(flags) - np.eye(4)).max() < 4 / math.sqrt(20_000)
    for factor, (low, high) in zip(drawn.factors, [(0.6, 1.4)] * 3 + [(-0.1, 0.1)], strict=True):
        assert factor.min() == pytest.approx(low, abs=1e-3)
        assert factor.max() == pytest.approx(high, abs=1e-3)
        assert factor.mean() == pytest.approx((low + high) / 2, abs=0.01)
    assert drawn.sigma.min() == pytest.approx(0.1, abs=1e-3)
    assert drawn.sigma.max() == pytest.approx(2, abs=1e-3)
    assert len(np.unique(drawn.order, axis=0)) == 24
    channels = np.bincount(drawn.channel[drawn.gray]) / drawn.gray.sum()
    assert channels == pytest.approx([1 / 3] * 3, abs=0.03)


def is_strong(drawn: Parameters) -> np.ndarray:
    """Whether something shows that a view is strong, as it does for 92 of 100."""
    return drawn.jitter | drawn.gray | drawn.blur


SHOWS = 1 - 0.2 * 0.8 * 0.5  # of strong views, those that jitter, lose colour or blur


def test_two_clips_are_strong_in_three_of_ten_views_and_one_clip_in_one():
    pair = [is_strong(draw("coclr", 20_000, view=view, sampling="two_clips")) for view in (0, 1)]
    for strong in pair:
        assert strong.mean() == pytest.approx(0.3 * SHOWS, abs=0.015)
    assert abs(np.corrcoef(pair)[0, 1]) < 4 / math.sqrt(20_000)
    first, second = sample(5, 4000, "coclr", seed=3, epoch=5)
    pair = np.stack([is_strong(draw("coclr", 4000, view=view)) for view in (0, 1)])
    one = (first == second).numpy()  # a few of them by chance
    assert pair[:, one].all(0).mean() < 0.02
    assert pair[:, one].any(0).mean() == pytest.approx(SHOWS, abs=0.03)
    assert pair[0, one].mean() == pytest.approx(SHOWS / 2, abs=0.04)
    assert pair[:, ~one].all(0).mean() == pytest.approx((0.3 * SHOWS) ** 2, abs=0.03)


def test_view_depends_on_seed_epoch_video_and_view_alone():
    pixels = clips(24)
    whole = view_of(pixels, "strong")
    state = torch.get_rng_state()
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    for part in order.split(7):
        some = view_of(pixels[part], "strong", samples=part)
        torch.testing.assert_close(some, whole[part], atol=1e-5, rtol=0)
    assert torch.equal(torch.get_rng_state(), state)
    changes: list[dict[str, Any]] = [{"seed": 4}, {"epoch": 6}, {"view": 0}]
    for change in [*changes, {"samples": torch.arange(1, 25)}]:
        assert (view_of(pixels, "strong", **change) - whole).abs().mean() > 0.1


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: view_of(torch.zeros(4, 3, 2, 18, 24), "weak"), "float32"),
        (lambda: view_of(clips(4)[:, :, 0], "weak"), r"\(4, 3, 18, 24\)"),
        (lambda: view_of(clips(5), "weak", samples=torch.arange(4)), "5 clips"),
        (lambda: view_of(clips(2), "medium"), "medium"),
        (lambda: sample(3, 2, "three"), "three"),
        (lambda: gather_clips(videos(), torch.tensor([3]), torch.tensor([23]), 8), "start outside"),
        (lambda: gather_clips(videos(), torch.tensor([3]), torch.tensor([-1]), 8), "start outside"),
        (lambda: gather_clips(videos(), torch.tensor([0]), torch.tensor([1]), 8), "start outside"),
    ],
)
def test_wrong_clips_policies_and_starts_are_named(call: Callable[[], object], word: str):
    with pytest.raises(ValueError, match=word):
        call()


# At test


@pytest.mark.parametrize(("share", "top", "left", "side"), [(1.0, 0, 3, 18), (7 / 8, 1, 4, 16)])
def test_centre_is_the_middle_square(share: float, top: int, left: int, side: int):
    pixels = clips(2, 3, 18, 25)
    found = centre(pixels, 12, share)
    bicubic = functional.InterpolationMode.BICUBIC
    for i in range(2):
        for frame in range(3):
            square = pixels[i, :, frame, top : top + side, left : left + side] / 255
            expected = functional.resize(square, [12, 12], bicubic, antialias=True).clamp(0, 1)
            expected = functional.normalize(expected, list(MEAN), list(STD))
            torch.testing.assert_close(found[i, :, frame], expected, atol=2e-5, rtol=0)


def test_ten_crops_are_torchvisions():
    pixels = clips(2, 3, 16, 24)
    found = ten_crops(pixels, 14)
    assert found.shape == (10, 2, 3, 3, 14, 14)
    for i in range(2):
        expected = functional.ten_crop(pixels[i].transpose(0, 1) / 255, [14, 14])
        # torchvision mirrors the frame before it crops: its left corners were the right ones.
        expected = [expected[place] for place in (0, 1, 2, 3, 4, 6, 5, 8, 7, 9)]
        for crop, other in zip(found[:, i], expected, strict=True):
            other = functional.normalize(other, list(MEAN), list(STD))
            torch.testing.assert_close(crop.transpose(0, 1), other, atol=1e-5, rtol=0)


@pytest.mark.cuda
@pytest.mark.parametrize("policy", OURS)
def test_accelerator_gives_the_same_view_without_being_waited_for(policy: str):
    pixels = clips(24)
    there = pixels.cuda()
    view_of(there, policy)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = view_of(there, policy)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), view_of(pixels, policy), atol=5e-5, rtol=0)


def test_the_probes_policy_is_weak_with_a_jitter_now_and_then() -> None:
    samples = torch.arange(4000)
    probe, weak, flow, strong = (
        parameters(policy, 1, 2, samples, 0, height=40, width=50)
        for policy in ("probe", "weak", "flow", "strong")
    )
    assert probe.jitter.mean() == pytest.approx(0.3, abs=0.03)
    for never in (probe.gray, probe.blur, weak.jitter, flow.jitter, flow.gray, flow.blur):
        assert not never.any()
    assert strong.jitter.mean() == pytest.approx(0.8, abs=0.03)
    for name in ("box", "flip", "factors"):
        assert (getattr(probe, name) == getattr(weak, name)).all()
