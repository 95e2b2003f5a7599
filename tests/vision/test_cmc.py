"""CMC: Lab, and the images whose places of the memory a step takes; its steps: test_plain."""

import dataclasses
import json
from pathlib import Path

import torch

from vision.config import Config
from vision.encoder import rgb_to_lab
from vision.images import Images
from vision.train import batches, samples_of

CONFIG = dataclasses.replace(
    Config(method="cmc", statistics="none").reduced(), batch_size=4, augmentations=("plain",) * 2
)


def test_lab_is_scikit_image_s() -> None:
    case = json.loads((Path(__file__).parents[1] / "parity" / "vision" / "lab.json").read_text())
    colours = torch.tensor(case["rgb"], dtype=torch.float64).T[None, :, :, None]
    expected = torch.tensor(case["lab"], dtype=torch.float64)
    torch.testing.assert_close(rgb_to_lab(colours)[0, :, :, 0].T, expected, rtol=0, atol=1e-4)


def test_samples_are_those_of_the_batches() -> None:
    """The memory's places are those of the images that the step sees."""
    pixels = torch.arange(11, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8)
    images = Images(pixels.contiguous(), torch.zeros(11, dtype=torch.int64))
    for first in (0, 3):  # as a run that goes on after three steps
        found = batches(CONFIG, images, "cpu", first, 6, mean=(0.0,) * 3, std=(1.0,) * 3)
        for step, (view,) in zip(range(first, 6), found, strict=True):
            numbers = (view[:, 0, 0, 0] * 255).round().long()
            assert numbers.tolist() == samples_of(CONFIG, step, 11).tolist()
