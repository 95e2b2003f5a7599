import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shared import Objective, distance_polarization, info_nce, term
from shared.experiment.run import Run
from tests.stages.training import finish, stop
from vision import toy
from vision.config import ToyConfig
from vision.evaluation import kmeans_accuracy
from vision.toy import RESTARTS, learn, sample, views

SHORT = ToyConfig(steps=250, seed=4)
BASE = term(info_nce, temperature=0.5)


def polarized(reduction: str) -> Objective:
    return Objective(BASE, (term(distance_polarization, weight=0.1, reduction=reduction),))


# data


@pytest.mark.parametrize(("data", "level"), [("three_bars", 75.2), ("nested_moons", 77.3)])
def test_points_as_they_are_have_the_papers_level(tmp_path: Path, data: str, level: float) -> None:
    """Table 1, "Euclidean space": within one of its deviations for bars, 2.2 points for moons."""
    config = ToyConfig(data=data, objective=None)
    found = []
    for seed in range(20):
        trial = dataclasses.replace(config, seed=seed)
        with Run(tmp_path / str(seed), trial) as run:
            found.append(toy.measure(trial, run)["accuracy"])
    assert abs(np.mean(found) - level) < (1.2 if data == "three_bars" else 2.2)
    assert 1 < np.std(found, ddof=1) < 3


# learning


def test_views_are_noisy_points_of_one_batch() -> None:
    config = ToyConfig(noise=0.03, batch_size=500)
    points, _ = sample("three_bars", 0)
    first, second = views(config, points, 7)
    nearest = [torch.cdist(view, points).amin(1) for view in (first, second)]
    assert max(float(distance.max()) for distance in nearest) < 0.15
    for view in views(dataclasses.replace(config, noise=0.0), points, 7):
        distance, index = torch.cdist(view, points).min(1)
        assert float(distance.max()) < 1e-3
        assert len(index.unique()) == 500  # nothing is drawn twice
    difference = (first - second).std(0)
    torch.testing.assert_close(difference, torch.full((2,), 0.03 * 2**0.5), rtol=0.1, atol=0)
    again = views(config, points, 7)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    for other in (views(config, points, 8), views(dataclasses.replace(config, seed=1), points, 7)):
        assert not torch.equal(first, other[0])


def reference_loss(
    map_: Tensor, first: Tensor, second: Tensor, config: ToyConfig, weight: float
) -> Tensor:
    """NT-Xent at temperature 0.5 and the polarization of all other pairs, added per anchor."""
    mapped = torch.cat([first @ map_.T, second @ map_.T])
    total = len(mapped)
    unit = mapped / mapped.norm(dim=1, keepdim=True)
    scores = (unit @ unit.T if config.normalised else mapped @ mapped.T) / 0.5
    loss = torch.zeros(())
    for anchor in range(total):
        positive = (anchor + total // 2) % total
        others = [j for j in range(total) if j != anchor]
        loss = loss + scores[anchor, others].logsumexp(0) - scores[anchor, positive]
        negatives = [j for j in others if j != positive]
        distance = (1 - unit[negatives] @ unit[anchor]) / 2
        inside = ((distance - 0.1) * (distance - 0.5)).clamp(max=0).abs()
        loss = loss + weight * inside.sum()
    return loss / total


@pytest.mark.parametrize(("normalised", "weight"), [(True, 0.0), (False, 0.1)])
def test_three_steps_are_adams_on_the_written_loss(normalised: bool, weight: float) -> None:
    objective = polarized("anchor_sum") if weight else Objective(BASE)
    config = ToyConfig(
        *("nested_moons", objective, normalised), batch_size=12, steps=3, learning_rate=0.01
    )
    points, _ = sample("nested_moons", 0)
    map_ = (0.1 * torch.eye(2)).requires_grad_()
    optimiser = torch.optim.Adam([map_], lr=0.01)
    for step in range(3):
        optimiser.zero_grad()
        reference_loss(map_, *views(config, points, step), config, weight).backward()
        optimiser.step()
    learned = learn(config, points)
    torch.testing.assert_close(learned, map_.detach(), rtol=1e-4, atol=1e-5)
    assert (learned - 0.1 * torch.eye(2)).abs().max() > 0.01


@pytest.mark.parametrize("normalised", [True, False])
def test_the_stated_start_a_matrix_of_zeros_cannot_train(normalised: bool) -> None:
    objective = polarized("anchor_sum")
    config = ToyConfig("nested_moons", objective, normalised, batch_size=12, steps=5, init=0.0)
    assert torch.equal(learn(config, sample("nested_moons", 0)[0]), torch.zeros(2, 2))


def test_accuracy_is_that_of_the_mapped_points(tmp_path: Path) -> None:
    points, labels = sample(SHORT.data, SHORT.seed)
    mapped = points @ learn(SHORT, points).T
    accuracy = kmeans_accuracy(mapped.numpy(), labels.numpy(), 3, SHORT.seed, RESTARTS)
    assert finish(tmp_path, SHORT, toy.measure) == {"accuracy": accuracy}
    raw = finish(tmp_path / "raw", dataclasses.replace(SHORT, objective=None), toy.measure)
    assert raw["accuracy"] != accuracy


def test_stopped_and_resumed_it_gives_the_same_bits(tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, steps=5)
    points, _ = sample(config.data, config.seed)
    whole = learn(config, points)
    for step in range(1, 6):
        assert stop(tmp_path, config, toy.measure).saved_step == step
    with Run(tmp_path, config) as run:
        assert torch.equal(learn(config, points, run), whole)
