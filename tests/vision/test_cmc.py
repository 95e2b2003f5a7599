"""CMC: Lab, the two half networks, and a step against its program's formula written as loops."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from shared import Criterion, Objective, info_nce, term
from vision.config import Config
from vision.encoder import rgb_to_lab
from vision.images import Images
from vision.methods import networks_of
from vision.methods.base import Step
from vision.methods.cmc import CMC
from vision.train import batches, make_optimiser, make_step, samples_of

CONFIG = dataclasses.replace(
    Config(method="cmc", statistics="none").reduced(),
    objective=Objective(term(info_nce, temperature=0.07)),
    head_layers=1,
    head_output=8,
    batch_size=4,
    queue=7,
    loss_factor=2.0,
    memory_momentum=0.3,
)


def test_lab_is_scikit_image_s() -> None:
    case = json.loads((Path(__file__).parents[1] / "parity" / "vision" / "lab.json").read_text())
    colours = torch.tensor(case["rgb"], dtype=torch.float64).T[None, :, :, None]
    expected = torch.tensor(case["lab"], dtype=torch.float64)
    torch.testing.assert_close(rgb_to_lab(colours)[0, :, :, 0].T, expected, rtol=0, atol=1e-4)


def unit(row: Tensor) -> Tensor:
    return row / (row * row).sum().sqrt()


def test_a_step_is_that_of_the_program() -> None:
    """Loss, and the memories after it, by the loops of NCEAverage with a softmax."""
    torch.manual_seed(0)
    networks = networks_of(CONFIG, images=10)
    assert isinstance(networks, CMC)
    assert float(networks.memory.square().sum(2).mean()) == pytest.approx(1.0, abs=0.3)
    samples = torch.tensor([3, 9, 0, 4])
    images = torch.rand(4, 3, 8, 8)
    before = networks.memory.clone()

    torch.manual_seed(5)
    drawn = torch.randint(10, (7,)).tolist()
    features = networks.encoder(images)
    of_light, of_colour = networks.head(features[:, :256]), networks.colour_head(features[:, 256:])
    expected = torch.zeros(())
    for query, memory in ((of_light, before[1]), (of_colour, before[0])):
        for row, own in zip(query, samples.tolist(), strict=True):
            entries = [memory[own], *(memory[j] for j in drawn)]
            logits = torch.stack([(unit(row) * unit(entry)).sum() / 0.07 for entry in entries])
            expected = expected - torch.log_softmax(logits, 0)[0] / 4

    criterion = Criterion(CONFIG.objective, networks.dim)
    config = dataclasses.replace(CONFIG, learning_rate=0.0)
    # Batch norms in training mode see the same batch, whatever their running statistics.
    torch.manual_seed(5)
    optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))
    parts = make_step(config, networks, criterion, optimiser)((images,), Step(samples=samples))
    torch.testing.assert_close(parts["loss"], expected.detach(), rtol=1e-4, atol=1e-4)
    for memory, old, embeddings in zip(networks.memory, before, (of_light, of_colour), strict=True):
        for number in range(10):
            if number in (3, 9, 0, 4):
                new = unit(embeddings[[3, 9, 0, 4].index(number)].detach())
                torch.testing.assert_close(
                    memory[number], unit(0.3 * old[number] + 0.7 * new), rtol=1e-4, atol=1e-5
                )
            else:
                assert torch.equal(memory[number], old[number])


def test_samples_are_those_of_the_batches() -> None:
    """The memory's places are those of the images that the step sees."""
    pixels = torch.arange(11, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8)
    images = Images(pixels.contiguous(), torch.zeros(11, dtype=torch.int64))
    config = dataclasses.replace(CONFIG, augmentations=("plain", "plain"))
    zero, one = (0.0,) * 3, (1.0,) * 3
    found = list(batches(config, images, "cpu", 0, 6, mean=zero, std=one))
    assert len(found) == 6
    for step, views in enumerate(found):
        assert len(views) == 1
        numbers = (views[0][:, 0, 0, 0] * 255).round().long()
        assert numbers.tolist() == samples_of(config, step, 11).tolist()


def test_without_the_numbers_of_its_images_it_says_so() -> None:
    with pytest.raises(ValueError, match="numbers"):
        networks_of(CONFIG, images=10).compare((torch.rand(4, 3, 8, 8),), Step())
