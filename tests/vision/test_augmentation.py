"""The augmentations against torchvision's image by image, their draws against loops and chance.

The references call torchvision.transforms.v2.functional on one image with the numbers of one
sample.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor
from torchvision.transforms.v2 import functional

from shared.pixels import resized_crop, uniforms
from vision.augmentation import POLICIES, Parameters, Policy, augment, parameters

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
ADJUST: tuple[Callable[[Tensor, float], Tensor], ...] = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)


def images(count: int = 12, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """At least 8: noise, smooth, smooth, gray, black, white, saturated, almost gray, noise..."""
    rng = torch.Generator().manual_seed(seed)
    batch = torch.rand(count, 3, height, width, generator=rng)
    corners = torch.rand(2, 3, 2, 2, generator=rng)
    batch[1:3] = functional.resize(corners, [height, width], antialias=True)
    batch[3] = batch[3, :1]
    batch[4], batch[5] = 0, 1
    batch[6] = (batch[6] > 0.5).float()
    batch[7] = 0.5 + 1e-7 * batch[7]
    return batch


def bytes_of(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    return images(count, height, width, seed).mul(255).round().to(torch.uint8)


def view_of(pixels: Tensor, policy: Policy, size: int, **changes: Any) -> Tensor:
    settings = {"seed": 3, "epoch": 5, "samples": np.arange(len(pixels)), "view": 1}
    return augment(pixels, policy, size, **{**settings, "mean": MEAN, "std": STD, **changes})


def reference(image: Tensor, drawn: Parameters, i: int, policy: Policy, size: int) -> Tensor:
    """One uint8 image under its row of the parameters, by torchvision's functions alone."""
    image = functional.to_dtype(image, torch.float32, scale=True)
    box = [int(side[i]) for side in (drawn.top, drawn.left, drawn.height, drawn.width)]
    image = functional.resized_crop(image, *box, [size, size], antialias=True)
    if drawn.flip[i]:
        image = functional.horizontal_flip(image)
    if drawn.grayscale[i] and policy.grayscale_first:
        image = functional.rgb_to_grayscale(image, num_output_channels=3)
    if drawn.jitter[i]:
        for operation in drawn.order[i]:
            image = ADJUST[operation](image, float(drawn.factors[i, operation]))
    if drawn.grayscale[i] and not policy.grayscale_first:
        image = functional.rgb_to_grayscale(image, num_output_channels=3)
    if drawn.blur[i]:
        kernel = policy.kernel or 2 * (size // 10 // 2) + 1
        border = 0 if policy.reflected else kernel  # of black, seen by the blur, then cut off
        image = functional.pad(image, [border])
        image = functional.gaussian_blur(image, [kernel, kernel], [float(drawn.sigma[i])] * 2)
        image = functional.center_crop(image, [size, size])
    if drawn.solarize[i]:
        image = functional.solarize(image, threshold=128 / 255)
    return functional.normalize(image, list(MEAN), list(STD))


# The transforms, each against torchvision's


@pytest.mark.parametrize(("height", "width", "size"), [(8, 8, 32), (40, 56, 24)])
def test_resized_crop_is_torchvisions(height: int, width: int, size: int):
    rng = np.random.default_rng(size)
    boxes = [(0, 0, height, width), (0, 0, 1, 1), (height - 1, width - 1, 1, 1)]
    boxes += [(0, 0, height, 1), (height - 1, 0, 1, width), (height - 3, width - 2, 3, 2)]
    boxes += [(0, width // 2, height // 2, 2), (1, 2, min(size, height - 1), min(size, width - 2))]
    while len(boxes) < 40:
        tall, wide = rng.integers(1, height + 1), rng.integers(1, width + 1)
        top, left = rng.integers(0, height - tall + 1), rng.integers(0, width - wide + 1)
        boxes.append((int(top), int(left), int(tall), int(wide)))
    batch = images(len(boxes), height, width)
    ours = resized_crop(batch, *torch.tensor(boxes, dtype=torch.float32).T, size)
    for image, box, found in zip(batch, boxes, ours, strict=True):
        expected = functional.resized_crop(image, *box, [size, size], antialias=True)
        torch.testing.assert_close(found, expected, atol=3e-6, rtol=0)


# The parameters


def reference_box(
    numbers: np.ndarray, scale: tuple, ratio: tuple, height: int, width: int
) -> tuple[int, int, int, int]:
    """torchvision's loop for one image, on 10 draws of area, 10 of ratio, and 2 of position."""
    for area, log_ratio in zip(numbers[:10], numbers[10:20], strict=True):
        target = height * width * (scale[0] + area * (scale[1] - scale[0]))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + log_ratio * (high - low))
        wide, tall = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            top = math.floor(numbers[20] * (height - tall + 1))
            return top, math.floor(numbers[21] * (width - wide + 1)), tall, wide
    if width / height < min(ratio):
        wide, tall = width, round(width / min(ratio))
    elif width / height > max(ratio):
        wide, tall = round(height * max(ratio)), height
    else:
        wide, tall = width, height
    return (height - tall) // 2, (width - wide) // 2, tall, wide


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [
        (32, 32, (0.08, 1.0)),
        (96, 96, (0.2, 1.0)),
        (20, 90, (0.5, 1.0)),  # too wide for large crops: often the centre
        (90, 20, (0.5, 1.0)),
        (31, 31, (0.99, 1.0)),  # nearly only square ratios fit
        (3, 3, (0.01, 0.2)),  # boxes of no or one pixel
    ],
)
def test_crops_follow_the_loop_of_torchvision(height: int, width: int, scale: tuple):
    policy = Policy(scale=scale)
    numbers = uniforms(7, 2, np.arange(800), 1, 22)
    drawn = parameters(policy, 7, 2, np.arange(800), 1, height, width)
    found = np.stack((drawn.top, drawn.left, drawn.height, drawn.width), 1).tolist()
    for row, box in zip(numbers, found, strict=True):
        assert tuple(box) == reference_box(row, scale, policy.ratio, height, width)


def test_rates_factors_and_sigma_are_those_of_the_policy():
    count = 20_000
    for policy in (POLICIES["hcl"], POLICIES["simclr"], POLICIES["moco_v3_second"]):
        drawn = parameters(policy, 0, 0, np.arange(count), 0, 32, 32)
        rates = (policy.flip, policy.jitter_probability, policy.grayscale, policy.blur)
        rates = (*rates, policy.solarize)
        flags = (drawn.flip, drawn.jitter, drawn.grayscale, drawn.blur, drawn.solarize)
        for rate, flag in zip(rates, flags, strict=True):
            assert abs(flag.mean() - rate) <= 4 * math.sqrt(rate * (1 - rate) / count)
        varied = [flag for flag in flags if flag.any()]
        assert np.abs(np.corrcoef(varied) - np.eye(len(varied))).max() < 4 / math.sqrt(count)
        for factor, strength in zip(drawn.factors.T[:3], policy.jitter, strict=False):
            assert kstest(factor, "uniform", (1 - strength, 2 * strength)).pvalue > 0.01
        shift = policy.jitter[3]
        assert kstest(drawn.factors[:, 3], "uniform", (-shift, 2 * shift)).pvalue > 0.01
        assert kstest(drawn.sigma, "uniform", (0.1, 1.9)).pvalue > 0.01
        # Each of the jitter's operations is as often in each place.
        assert (np.sort(drawn.order, axis=1) == np.arange(4)).all()
        places = [np.bincount(place, minlength=4) / count for place in drawn.order.T]
        assert np.abs(np.array(places) - 1 / 4).max() < 4 * math.sqrt(3 / 16 / count)


# augment


@pytest.mark.parametrize(
    ("name", "height", "width", "size"),
    [(name, 32, 32, 32) for name in POLICIES]
    + [("hcl", 96, 96, 32), ("ressl_strong", 96, 96, 64), ("simclr", 28, 28, 32)]
    + [("hcl", 8, 8, 8), ("simclr", 30, 50, 40), ("plain", 30, 50, 32)],
)
def test_view_is_the_composition_of_torchvisions_transforms(
    name: str, height: int, width: int, size: int
):
    policy, pixels = POLICIES[name], bytes_of(40, height, width)
    before = pixels.clone()
    found = view_of(pixels, policy, size)
    drawn = parameters(policy, 3, 5, np.arange(40), 1, height, width)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    for i in range(40):
        expected = reference(pixels[i], drawn, i, policy, size)
        # One step of 8-bit pixels is 0.02 here; the division by std multiplies errors by five.
        torch.testing.assert_close(found[i], expected, atol=3e-5, rtol=0)
    assert torch.equal(pixels, before)


def test_view_of_a_sample_does_not_depend_on_its_batch():
    pixels, policy = bytes_of(48, 32, 32), POLICIES["hcl"]
    whole = view_of(pixels, policy, 32)
    order = torch.from_numpy(np.random.default_rng(0).permutation(48))
    shuffled = view_of(pixels[order], policy, 32, samples=order.numpy())
    torch.testing.assert_close(shuffled, whole[order], atol=1e-5, rtol=0)
    for part in order.split(5):
        some = view_of(pixels[part], policy, 32, samples=part.numpy())
        torch.testing.assert_close(some, whole[part], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "change", [{"seed": 4}, {"epoch": 6}, {"view": 0}, {"samples": np.ones(1)}]
)
def test_another_seed_epoch_view_or_sample_gives_another_view(change: dict):
    pixels = bytes_of(8, 32, 32)[:1]
    views = [view_of(pixels, POLICIES["hcl"], 32, **settings) for settings in ({}, {}, change)]
    assert torch.equal(views[0], views[1])
    assert (views[0] - views[2]).abs().mean() > 0.1


def test_neither_global_random_states_nor_autocast_matter_to_a_view():
    pixels = bytes_of(12, 32, 32)
    torch.manual_seed(1)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first = view_of(pixels, POLICIES["hcl"], 32)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    torch.manual_seed(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(view_of(pixels, POLICIES["hcl"], 32), first)


@pytest.mark.parametrize(
    ("pixels", "size", "word"),
    [
        (torch.zeros(4, 4, 8, 8, dtype=torch.uint8), 32, "4 channels"),
        (torch.zeros(5, 3, 8, 8, dtype=torch.uint8), 32, "5 images"),
        (bytes_of(32, 8, 8), 6, "blur of 13"),
    ],
)
def test_wrong_pixels_are_named(pixels: Tensor, size: int, word: str):
    samples = np.arange(4 if size == 32 else 32)
    with pytest.raises(ValueError, match=word):
        view_of(pixels, POLICIES["ressl_strong"], size, samples=samples)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"scale": (0.5, 0.2)}, "scale"),
        ({"ratio": (0.0, 1.0)}, "ratio"),
        ({"sigma": (2.0, 0.1)}, "sigma"),
        ({"flip": 1.5}, "flip"),
        ({"blur": -0.1}, "blur"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "hue"),
        ({"jitter": (-0.4, 0.4, 0.4, 0.1)}, "jitter"),
        ({"kernel": 22}, "kernel"),
    ],
)
def test_impossible_policies_are_named(settings: dict, word: str):
    ends = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "sigma": (1.0, 1.0), "flip": 1.0}
    Policy(**ends, jitter=(0.0, 0.0, 0.0, 0.5), kernel=1)
    with pytest.raises(ValueError, match=word):
        Policy(**settings)


@pytest.mark.cuda
@pytest.mark.parametrize("name", POLICIES)
def test_accelerator_gives_the_same_view_without_being_waited_for(name: str):
    pixels = bytes_of(48, 96, 96)
    there = pixels.cuda()
    view_of(there, POLICIES[name], 64)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = view_of(there, POLICIES[name], 64)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = view_of(pixels, POLICIES[name], 64)
    torch.testing.assert_close(found.cpu(), expected, atol=5e-5, rtol=0)
