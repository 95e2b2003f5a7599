import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shared import (
    Objective,
    distance_polarization,
    info_nce,
    term,
)
from shared.experiment.runs import Interrupted, Run
from vision import toy
from vision.config import ToyConfig
from vision.evaluation import kmeans_accuracy
from vision.toy import RESTARTS, learn, nested_moons, sample, three_bars, views

SHORT = ToyConfig(steps=250, seed=4)
BASE = term(info_nce, temperature=0.5)


def polarized(reduction: str) -> Objective:
    return Objective(BASE, (term(distance_polarization, weight=0.1, reduction=reduction),))


def finish(folder: Path, config: ToyConfig) -> dict[str, object]:
    with Run(folder, config) as run:
        return run.finish(toy.measure(config, run))["metrics"]


# data


@pytest.mark.parametrize(
    ("data", "classes", "count"), [("three_bars", 3, 200), ("nested_moons", 2, 300)]
)
def test_samples_are_functions_of_the_seed(data: str, classes: int, count: int) -> None:
    points, labels = sample(data, 3)
    assert points.shape == (classes * count, 2)
    assert points.dtype == torch.float32
    assert labels.bincount().tolist() == [count] * classes
    again, _ = sample(data, 3)
    assert torch.equal(points, again)
    other, _ = sample(data, 4)
    assert not torch.isclose(points, other).all(1).any()


def test_bars_lie_where_the_arguments_say() -> None:
    numbers = {"count": 5000, "length": 4.0, "width": 0.5, "gap": 2.0, "stagger": 1.0}
    bars = three_bars(np.random.default_rng(0), blur=0.0, **numbers)
    for bar, side in zip(bars, (-1, 0, 1), strict=True):
        middle = np.array([1.0, 2.0]) * side
        reach = np.abs(bar - middle).max(0)
        assert (reach <= [2.0, 0.25]).all()
        assert (reach > [1.98, 0.2475]).all()
        np.testing.assert_allclose(bar.mean(0), middle, atol=0.06)
        uniform = np.array([4.0, 0.5]) / math.sqrt(12)
        np.testing.assert_allclose(bar.std(0), uniform, rtol=0.03)
    blurred = three_bars(np.random.default_rng(0), blur=0.3, **numbers)
    np.testing.assert_allclose((blurred - bars).std((0, 1)), 0.3, rtol=0.03)


def test_moons_are_half_circles_one_within_the_other() -> None:
    upper, lower = nested_moons(np.random.default_rng(0), count=2000, noise=0.0)
    np.testing.assert_allclose(np.hypot(*upper.T), 1)
    np.testing.assert_allclose(np.hypot(*(lower - [1, 0.5]).T), 1)
    assert (upper[:, 1] >= 0).all()
    assert (lower[:, 1] <= 0.5).all()
    assert upper[:, 0].min() < -0.999
    assert lower[:, 0].max() > 1.999
    noisy = nested_moons(np.random.default_rng(0), count=2000, noise=0.2)
    np.testing.assert_allclose((noisy - [upper, lower]).std((0, 1)), 0.2, rtol=0.03)


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
    assert not torch.equal(first, views(config, points, 8)[0])


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


def test_the_papers_start_cannot_train() -> None:
    points, _ = sample("nested_moons", 0)
    for normalised in (False, True):
        config = ToyConfig("nested_moons", normalised=normalised, init=0.0, steps=5)
        learned = learn(config, points)
        assert torch.equal(learned, torch.zeros(2, 2))
    config = ToyConfig("nested_moons", init=1e-3, steps=5)
    assert (learn(config, points) - 1e-3 * torch.eye(2)).abs().min() > 1e-3


def test_accuracy_is_that_of_the_mapped_points(tmp_path: Path) -> None:
    metrics = finish(tmp_path, SHORT)
    points, labels = sample(SHORT.data, SHORT.seed)
    mapped = points @ learn(SHORT, points).T
    accuracy = kmeans_accuracy(mapped.numpy(), labels.numpy(), 3, SHORT.seed, RESTARTS)
    assert metrics == {"accuracy": accuracy}
    raw = finish(tmp_path / "raw", dataclasses.replace(SHORT, objective=None))
    assert raw["accuracy"] != accuracy


@pytest.mark.slow
def test_stopped_and_resumed_it_gives_the_same_bits(tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, steps=40)
    points, _ = sample(config.data, config.seed)
    whole = learn(config, points)
    for step in range(1, 41):
        with Run(tmp_path, config) as run:
            run.stopping = True
            with pytest.raises(Interrupted):
                toy.measure(config, run)
            assert run.saved_step == step
    with Run(tmp_path, config) as run:
        assert torch.equal(learn(config, points, run), whole)
