import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import vision
from shared import Objective, distance_polarization, max_margin, term
from shared.experiment.runs import Run
from shared.report.figures import Lacking
from shared.report.measuring import folder_of
from vision import figures
from vision.config import Config
from vision.data import Images
from vision.encoder import make_encoder
from vision.export import save_encoder
from vision.figures import (
    FIGURES,
    Places,
    finished,
    gradient_map,
    support_weights,
    write,
)
from vision.tables import TABLES

TAU, COUNT = 0.25, 20
PENALTY = (term(distance_polarization, weight=0.1),)
DIGITS = dataclasses.replace(Config().reduced(), stem="small", images=96, probe_epochs=1)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")


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


def finish(
    places: Places, address: str, config: Any, score: float, tier: str, *, keep: bool = False
) -> None:
    """A finished run's folder, without the training."""
    with Run(places.runs / address, config, tier=tier) as run:
        if keep:
            torch.manual_seed(config.seed)
            network = make_encoder(config.backbone, config.stem)
            save_encoder(network, places.runs / address, config=config)
        run.finish({"linear_top1": score, "knn_top1": score})


def finish_cells(places: Places, table: str, tier: str, scores: dict[tuple, float]) -> None:
    """Finished cells of a table of the margins paper, by row, column and seed."""
    (declared,) = (each for each in TABLES["margins"] if each.name == table)
    for (row, column, seed), score in scores.items():
        (cell,) = declared.cells(tier, row=row, column=column, seeds=(seed,))
        finish(places, str(cell.folder), cell.config, score, tier)


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(match=lambda o: hasattr(o, "get_text"))
    )


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


def test_figures_without_runs_are_drawn_or_said_to_lack(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    written = write("margins", places.runs, places.results, data_root=places.data)
    folder = places.results / "vision" / "margins" / "figures"
    sizes = {
        "figure-1-margins.png": (7.5, 5.2),
        "figure-2-effects.png": (9.5, 4.8),
        "figure-8-curvature.png": (8.5, 3.1),
    }
    assert written[::2] == [folder / name for name in sizes]
    assert sorted(folder.iterdir()) == sorted(written)
    for file, inches in zip(written[::2], sizes.values(), strict=True):
        with Image.open(file) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert picture.size == tuple(round(150 * side) for side in inches)
            colours = picture.convert("RGB").getcolors(maxcolors=2**24)
            assert len(colours) > 50
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "figure-3-emphasis",
        "figure-4-batch-size",
        "figure-5-curvature",
        "figure-6-emphasis-and-curvature",
        "figure-7-ratio",
        "figure-3-emphasis-cifar10",
        "figure-4-batch-size-cifar10",
        "figure-5-curvature-cifar10",
        "figure-6-emphasis-and-curvature-cifar10",
        "figure-7-ratio-cifar10",
    ]
    assert lines[0] == (
        "figure-3-emphasis: not drawn: no finished cell of vision/margins/figure-3; run "
        "./reproduce.sh vision margins --table figure-3"
    )


def test_every_sweep_names_a_declared_table() -> None:
    for paper, drawers in FIGURES.items():
        for draw in drawers.values():
            if isinstance(draw, figures.Sweep):
                assert draw.paper == paper
                assert draw.table in [table.name for table in TABLES[paper]]


def test_a_sweep_draws_what_was_measured(places: Places) -> None:
    finish_cells(
        places,
        "figure-3",
        "short",
        {
            ("MoCo, s=1", "CIFAR10", 0): 50.0,
            ("MoCo, s=20", "CIFAR10", 0): 61.5,
            ("SimCLR, s=1.25", "CIFAR10", 0): 55.0,
            ("MoCo, s=10", "CIFAR100", 0): 20.0,
        },
    )
    draw = FIGURES["margins"]["figure-3-emphasis"]
    _, figure = draw(places)
    assert "(short tier)" in texts(figure)
    assert "seeds 0; bars" in texts(figure)
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("CIFAR10", "CIFAR100")
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "1.25", "10", "20"]
    points = [container.lines[0].get_xydata().tolist() for container in first.containers]
    assert points == [[[0, 50], [3, 61.5]], [[1, 55]]]
    (line,) = second.containers
    assert line.lines[0].get_xydata().tolist() == [[2, 20]]

    # The paper's tier is drawn as soon as it has a cell, with mean and deviation over seeds.
    moco = {("MoCo, s=10", "CIFAR10", seed): 90.0 + seed for seed in (0, 1)}
    finish_cells(places, "figure-3", "paper", moco)
    _, figure = draw(places)
    assert "(paper tier)" in texts(figure)
    assert "seeds 0, 1" in texts(figure)
    ((line,),) = ([*axis.containers] for axis in figure.axes)
    assert line.lines[0].get_xydata().tolist() == [[0, 90.5]]
    (bar,) = line.lines[2][0].get_segments()
    assert bar[:, 1] == pytest.approx([90.5 - math.sqrt(0.5), 90.5 + math.sqrt(0.5)])


def test_a_sweep_on_cifar10_has_a_panel_for_each_metric(
    places: Places,
) -> None:
    (declared,) = (each for each in TABLES["margins"] if each.name == "figure-3-cifar10")
    for row, linear, near in (
        ("MoCo, s=1", 50.0, 45.0),
        ("MoCo, s=20", 61.5, 44.0),
        ("raw pixels", 40.0, 35.0),
    ):
        (cell,) = declared.cells("short", row=row, seeds=(0,))
        with Run(places.runs / cell.folder, cell.config, tier="short") as run:
            run.finish({"l2_top1": linear, "knn_top1": near, "linear_top1": 1.0})
    _, figure = FIGURES["margins"]["figure-3-emphasis-cifar10"](places)
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("l2_top1", "knn_top1")
    for axis, scores, floor in ((first, (50, 61.5), 40), (second, (45, 44), 35)):
        (line,) = (each for each in axis.containers if len(each.lines[0].get_xydata()))
        assert line.lines[0].get_xydata().tolist() == [[0, scores[0]], [1, scores[1]]]
        across = [each for each in axis.lines if each.get_linestyle() == ":"]
        assert [each.get_ydata()[0] for each in across] == [floor]
    assert "raw pixels" in texts(figure)


@pytest.mark.parametrize("tier", ["paper", "short"])
def test_a_figure_lies_beside_the_table_of_its_tier(places: Places, tier: str) -> None:
    finish_cells(places, "figure-3", tier, {("MoCo, s=10", "CIFAR10", 0): 50.0})
    written = write("margins", places.runs, places.results, data_root=places.data)
    (table,) = (each for each in TABLES["margins"] if each.name == "figure-3")
    folder = places.results / folder_of(table, tier) / "figures"
    assert folder / "figure-3-emphasis.png" in written
    # What needs no run is the paper's.
    assert places.results / "vision/margins/figures/figure-2-effects.png" in written


def test_finished_runs_with_an_encoder_are_found_the_papers_first(places: Places) -> None:
    for name, tier in (("a/b", "short"), ("z/y", "paper"), ("c/d", "paper"), ("e/f", "smoke")):
        finish(places, f"vision/{name}", DIGITS, 1.0, tier, keep=True)
    finish(places, "other/a/b", DIGITS, 1.0, "paper", keep=True)
    finish(places, "vision/nothing/kept", DIGITS, 1.0, "paper")
    (places.runs / "vision" / "z" / "y" / "result.json").unlink()
    assert [record.address for record in finished(places.runs)] == ["vision/c/d", "vision/a/b"]


def test_histograms_of_two_trained_runs(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "PICTURES", "digits")
    monkeypatch.setattr(figures, "COUNT", 50)
    draw = FIGURES["lmcl"]["figure-5-distances"]
    penalised = dataclasses.replace(
        DIGITS, objective=dataclasses.replace(DIGITS.objective, penalties=PENALTY)
    )
    another = dataclasses.replace(penalised, seed=1)
    for name, config in (("simclr", DIGITS), ("another", another)):
        with Run(places.runs / "vision/digits" / name, config, tier="own") as run:
            run.finish(vision.measure(config, run))
    with pytest.raises(Lacking, match="no two finished runs of SimCLR on digits"):
        draw(places)  # another seed is another run
    with Run(places.runs / "vision/digits/simclr-dp", penalised, tier="own") as run:
        run.finish(vision.measure(penalised, run))
    _, figure = draw(places)
    assert [axis.get_title() for axis in figure.axes] == [
        "untrained",
        "SimCLR",
        "SimCLR + distance polarization",
    ]
    assert "vision/digits/simclr and vision/digits/simclr-dp" in texts(figure).replace("\n", " ")
    for axis in figure.axes:
        positive, negative = axis.containers
        for bars in (positive, negative):
            assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(1)


def test_histograms_over_dimensions(places: Places, random_pictures: Images) -> None:
    (table,) = (each for each in TABLES["cllr"] if each.name == "table-1")
    draw = FIGURES["cllr"]["figure-2-distances"]
    rows = ("2048-dim (w/o R)", "256-dim (w/o R)")
    for count, row in enumerate(rows):
        if count:
            with pytest.raises(Lacking, match="no two rows of vision/cllr/table-1"):
                draw(places)
        (cell,) = table.cells("short", row=row, column="cifar10_ep100")
        finish(places, str(cell.folder), cell.config, 50.0, "short", keep=True)
    _, figure = draw(places)
    assert "table-1, cifar10_ep100 (short tier)" in texts(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(rows)
    for outline in figure.axes[0].patches:
        # The same untrained encoder: the same distances, as a density.
        (low, *_), (high, *_) = outline.get_xy().min(0), outline.get_xy().max(0)
        assert 0 <= low < high < 1


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


def test_support_vectors_are_shown_in_order(places: Places, random_pictures: Images) -> None:
    objective = Objective(term(max_margin, gamma=0.5))
    config = dataclasses.replace(
        DIGITS, objective=objective, image_size=32, augmentations=("plain", "plain")
    )
    finish(places, "vision/mmcl/cifar100", config, 1.0, "paper", keep=True)
    draw = FIGURES["mmcl"]["figure-4-support-vectors"]
    _, figure = draw(places)
    assert "(paper tier)" in texts(figure)
    assert "Run: vision/mmcl/cifar100" in texts(figure).replace("\n", " ")
    rows = np.array(figure.axes).reshape(5, 10)
    for anchor, row in enumerate(rows):
        shown = row[0].images[0].get_array()
        assert np.array_equal(shown, random_pictures.pixels[anchor].permute(1, 2, 0))
        numbers = [float(axis.get_title()) for axis in row[2:]]
        assert numbers == sorted(numbers, reverse=True)
        assert float(row[1].get_title().split("\n")[1]) >= sum(numbers) * 0.99
    on_pictures = dataclasses.replace(config, dataset="CIFAR10")
    finish(places, "vision/mmcl/later", on_pictures, 1.0, "paper", keep=True)
    assert "Run: vision/mmcl/later" in texts(draw(places)[1]).replace("\n", " ")


def test_data_that_lack_are_said(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(DIGITS, objective=Objective(term(max_margin, gamma=0.5)))
    finish(places, "vision/mmcl/some", config, 1.0, "paper", keep=True)
    assert write("mmcl", places.runs, places.results, data_root=places.data) == []
    said = capsys.readouterr().out.splitlines()
    waits = "figure-4-support-vectors: not drawn: CIFAR10: data missing"
    assert any(line.startswith(waits) for line in said)


def test_toy_maps_show_the_mapped_points(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.tensor([[2.0, 0.0], [1.0, -1.0]])
    monkeypatch.setattr(figures.toy, "learn", lambda config, points: matrix)
    tier, figure = FIGURES["lmcl"]["figure-3-toy"](places)
    assert tier == "paper"
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)
    rows = np.array(figure.axes).reshape(2, 4)
    for axes, data in zip(rows, ("three_bars", "nested_moons"), strict=True):
        points, _ = figures.toy.sample(data, 0)
        offsets = [axis.collections[0].get_offsets() for axis in axes]
        assert np.allclose(offsets[0], points)
        for moved in offsets[1:]:
            assert np.allclose(moved, points @ matrix.T)
        assert f"Euclidean space\n{data}, " in axes[0].get_title()
