import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vision
from shared import Objective, max_margin, term
from shared.errors import UserError
from tests.stages.training import finish
from vision.config import CMC, HCL, Config
from vision.train import learning_rate, make_optimiser

DIGITS = dataclasses.replace(Config(backbone="resnet8").reduced(), epochs=2, learning_rate=0.01)


def test_rates_are_constant_or_fall_in_steps() -> None:
    """Warm-up and cosine: test_plain."""
    assert learning_rate(Config(**HCL), 12345, 195) == 1e-3
    rates = [learning_rate(Config(**CMC), epoch * 10, 10) for epoch in (0, 49, 50, 67, 83, 99)]
    assert rates == pytest.approx([0.03, 0.03, 0.003, 3e-4, 3e-5, 3e-5])


def test_the_kernel_width_follows_its_schedule() -> None:
    schedule = ((75, 10.0), (125, 10.0))
    config = Config(objective=Objective(term(max_margin, gamma=0.02)), gamma_schedule=schedule)
    gammas = [config.objective_at(epoch).loss.kwargs["gamma"] for epoch in (0, 74, 75, 125, 399)]
    assert gammas == pytest.approx([0.02, 0.02, 0.2, 2.0, 2.0])
    assert config.objective_at(10) is config.objective


def test_lars_leaves_vectors_out_of_decay_and_adaptation() -> None:
    config = dataclasses.replace(DIGITS, optimiser="lars", weight_decay=0.5, learning_rate=1.0)
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    module.weight.grad = torch.tensor([[0.0, 0.0], [6.0, 8.0]])
    module.bias.grad = torch.tensor([0.5, -0.5])
    bias = module.bias.detach().clone()
    make_optimiser(config, module).step()
    # You et al. 2017, Eq. 6: rate * trust * |w| / (|g| + decay |w|) * (g + decay w); |w| = 5
    step = 1e-3 * 5 / (10 + 0.5 * 5)
    moved = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    moved = moved - step * torch.tensor([[1.5, 0.0], [6.0, 10.0]])
    torch.testing.assert_close(module.weight.detach(), moved)
    torch.testing.assert_close(module.bias.detach(), bias - torch.tensor([0.5, -0.5]))


def test_a_diverging_run_names_the_step(tmp_path: Path) -> None:
    config = dataclasses.replace(DIGITS, learning_rate=1e30, epochs=4)
    with pytest.raises(FloatingPointError, match=r"at step [1-9]"):
        finish(tmp_path, config, vision.measure)
    assert not (tmp_path / "result.json").exists()


def test_a_batch_larger_than_the_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="batch_size 97"):
        finish(tmp_path, dataclasses.replace(DIGITS, batch_size=97), vision.measure)


@pytest.mark.slow
def test_one_epoch_on_real_images(suite_data: Path, tmp_path: Path) -> None:
    """A path through everything in the paper's form, on 256 real images."""
    config = Config(
        backbone="resnet8", stem="small", images=256, batch_size=64, epochs=1, probe_epochs=3
    )
    metrics = finish(tmp_path, config, vision.measure, data_root=suite_data)
    assert 10 < metrics["linear_top1"] < 60
    assert 10 < metrics["knn_top1"] < 60
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert len(environment["data"]["CIFAR10"]) == 64
    (line,) = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert 0 < line["loss"] < math.log(2 * 64) + 4
    assert np.isfinite(line["learning_rate"])
