import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.experiment.tables import Cell, Tier
from shared.report.figures import CannotDraw, DrawnFigure
from tests.stages.drawing import drawn, finish, table_of, titles
from vision import figures
from vision.encoder import make_encoder
from vision.export import save_encoder
from vision.figures import FIGURES, gradient_map, support_weights
from vision.images import Images
from vision.tables import TABLES

TAU, COUNT = 0.25, 20


@pytest.fixture
def random_pictures(monkeypatch: pytest.MonkeyPatch) -> Images:
    """What every dataset loads as."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (60, 3, 32, 32), generator=generator, dtype=torch.uint8)
    images = Images(pixels, torch.arange(60) % 10)
    monkeypatch.setattr(figures, "load", lambda name, root, split: images)
    monkeypatch.setattr(figures, "COUNT", 40)
    monkeypatch.setattr(figures, "BATCH", 40)
    return images


def cell_of(
    paper: str, table: str, tier: Tier, row: str, column: str | None = None, seed: int = 0
) -> Cell:
    declared = table_of(TABLES, paper, table, tier)
    return declared.cells(tier, row=row, column=column, seeds=(seed,))[0]


def keep(runs: Path, cell: Cell) -> None:
    """A finished run with an untrained encoder."""
    metric = table_of(TABLES, cell.paper, cell.table, cell.tier).metric
    folder = finish(runs, cell, {metric: 50.0, "linear_top1": 1.0, "knn_top1": 1.0})
    config: Any = cell.config
    torch.manual_seed(config.seed)
    save_encoder(make_encoder(config.backbone, config.stem), folder, config=config)


def draw(figure: str, runs: Path) -> tuple[Tier, DrawnFigure]:
    return drawn(TABLES, FIGURES, figure, runs)


def softmax_of_positive(positive: float, negative: float) -> float:
    return 1 / (1 + COUNT * math.exp((math.cos(negative) - math.cos(positive)) / TAU))


@pytest.mark.parametrize(("positive", "negative"), [(0.3, 1.6), (1.2, 0.8), (2.9, 2.4)])
def test_gradient_maps_follow_the_closed_forms(positive: float, negative: float) -> None:
    def at(**numbers: Any) -> tuple[float, float]:
        angles = torch.tensor([positive]), torch.tensor([negative])
        pull, push = gradient_map(*angles, negatives=COUNT, temperature=TAU, **numbers)
        return float(pull), float(push)

    q = softmax_of_positive(positive, negative)
    pull, push = (1 - q) * math.sin(positive) / TAU, (1 - q) * math.sin(negative) / TAU
    assert at() == pytest.approx((pull, push), rel=1e-5)
    assert at(emphasis=20.0) == pytest.approx((20 * pull, push), rel=1e-5)
    for c in (1 / 3, 1.0, 2.5):
        weight = (1 - (positive / math.pi) ** c) ** (1 / c)
        assert at(curvature=c) == pytest.approx((weight * pull, push), rel=1e-5)

    moved = softmax_of_positive(positive + 0.5, negative)
    angular = ((1 - moved) * math.sin(positive + 0.5) / TAU, (1 - moved) * math.sin(negative) / TAU)
    assert at(angular=0.5) == pytest.approx(angular, rel=1e-4)
    ratio = (1 - moved) / (1 - q)  # of the denominators; the negatives' sum is in both
    assert at(angular=0.5, ratio="row") == pytest.approx((ratio * pull, ratio * push), rel=1e-5)
    assert at(angular=0.5, ratio="positive") == pytest.approx((ratio * pull, push), rel=1e-5)

    less = 1 / (1 + COUNT * math.exp((math.cos(negative) - math.cos(positive) + 0.4) / TAU))
    subtractive = (1 - less) * math.sin(positive) / TAU, (1 - less) * math.sin(negative) / TAU
    assert at(subtractive=0.4) == pytest.approx(subtractive, rel=1e-5)

    weight = 1 / (1 - 0.5 * q)
    assert at(attenuation=0.5) == pytest.approx((weight * pull, weight * push), rel=1e-5)
    # Lemma 4.4: type II with alpha = 1 leaves sin(theta) / tau.
    full = at(attenuation=1.0, attenuation_scope="positive")
    assert full == pytest.approx((math.sin(positive) / TAU, push), rel=1e-5)


def test_every_figure_names_declared_tables() -> None:
    for paper, declared in FIGURES.items():
        names = {table.name for table in TABLES[paper]}
        assert all(names >= set(drawing.tables) for drawing in declared.values())


def test_a_sweep_draws_means_and_deviations_of_a_panel_for_each_dataset(tmp_path: Path) -> None:
    for row, column, seed, score in (
        ("MoCo, s=1", "CIFAR10", 0, 50.0),
        ("MoCo, s=20", "CIFAR10", 0, 61.5),
        ("MoCo, s=20", "CIFAR10", 1, 62.5),
        ("SimCLR, s=1.25", "CIFAR10", 0, 55.0),
        ("MoCo, s=10", "CIFAR100", 0, 20.0),
    ):
        cell = cell_of("margins", "figure-3", "paper", row, column, seed)
        finish(tmp_path, cell, {"linear_top1": score})
    _, found = draw("margins/figure-3-emphasis", tmp_path)
    first, second = found.figure.axes
    assert titles(found.figure) == ["CIFAR10", "CIFAR100"]
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "1.25", "10", "20"]
    points = [container.lines[0].get_xydata().tolist() for container in first.containers]
    assert points == [[[0, 50], [3, 62]], [[1, 55]]]
    _, bar = first.containers[0].lines[2][0].get_segments()
    assert bar[:, 1] == pytest.approx([62 - math.sqrt(0.5), 62 + math.sqrt(0.5)])
    (line,) = second.containers
    assert line.lines[0].get_xydata().tolist() == [[2, 20]]


def test_distances_with_and_without_the_penalty(tmp_path: Path, random_pictures: Images) -> None:
    def keep_row(row: str, seed: int) -> None:
        keep(tmp_path, cell_of("lmcl", "figure-4-cifar10", "short", row, "CIFAR-10, 128", seed))

    keep_row("SimCLR", 0)
    keep_row("LMCL(SimCLR+DP)", 1)
    with pytest.raises(CannotDraw):
        draw("lmcl/figure-5-distances", tmp_path)  # another seed is another run
    keep_row("LMCL(SimCLR+DP)", 0)
    _, found = draw("lmcl/figure-5-distances", tmp_path)
    assert [run.row.label for run in found.runs] == ["SimCLR", "LMCL(SimCLR+DP)"]
    # All three encoders are equal, and so is what is noted of them.
    notes = [[text.get_text() for text in axis.texts] for axis in found.figure.axes]
    assert notes[0] == notes[1] == notes[2]


def test_support_weights_solve_the_dual() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    weights = support_weights(first, second, {"gamma": 0.7, "ridge": 0.2, "cost": 1.5})
    points = torch.nn.functional.normalize(torch.cat([first, second]), dim=1)
    kernel = torch.exp(-0.7 * torch.cdist(points, points).square())
    assert weights.shape == (6, 12)
    for anchor in range(6):
        others = [j for j in range(12) if j not in (anchor, anchor + 6)]
        row = kernel[anchor, others]
        delta = 1 + kernel[others][:, others] - row[:, None] - row[None, :] + 0.2 * torch.eye(10)
        alpha = torch.linalg.solve(delta, torch.full((10,), 2.0, dtype=torch.float64)).clamp(0, 1.5)
        torch.testing.assert_close(weights[anchor, others], alpha)
        assert float(weights[anchor, anchor]) == pytest.approx(-float(alpha.sum()))
        assert weights[anchor, anchor + 6] == 0


def test_support_vectors_are_shown_in_order(tmp_path: Path, random_pictures: Images) -> None:
    row = table_of(TABLES, "mmcl", "figure-3a-cifar10", "short").rows[0].label
    keep(tmp_path, cell_of("mmcl", "figure-3a-cifar10", "short", row))
    tier, found = draw("mmcl/figure-4-support-vectors", tmp_path)
    assert tier == "short"
    rows = np.array(found.figure.axes).reshape(5, 10)
    for anchor, tiles in enumerate(rows):
        shown = tiles[0].images[0].get_array()
        assert np.array_equal(shown, random_pictures.pixels[anchor].permute(1, 2, 0))
        numbers = [float(axis.get_title(loc="left")) for axis in tiles[2:]]
        assert numbers == sorted(numbers, reverse=True)
        assert float(tiles[1].get_title(loc="left").split()[1]) >= sum(numbers) * 0.99


def test_toy_maps_show_the_mapped_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.tensor([[2.0, 0.0], [1.0, -1.0]])
    monkeypatch.setattr(figures.toy, "learn", lambda config, points: matrix)
    _, found = draw("lmcl/figure-3-toy", tmp_path)
    rows = np.array(found.figure.axes).reshape(2, 4)
    for axes, data in zip(rows, ("three_bars", "nested_moons"), strict=True):
        points, _ = figures.toy.sample(data, 0)
        offsets = [axis.collections[0].get_offsets() for axis in axes]
        assert np.allclose(offsets[0], points)
        for moved in offsets[1:]:
            assert np.allclose(moved, points @ matrix.T)
        assert f"Euclidean space\n{data}, " in axes[0].get_title(loc="left")
