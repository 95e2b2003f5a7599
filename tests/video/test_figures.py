import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import drawn, rows_of, titles
from drawing import finish as finish_cell

from shared.experiment.data import MissingData
from shared.experiment.tables import Table, Tier
from shared.report.figures import CannotDraw, DrawnFigure
from shared.report.pictures import GREEN, INK, RED
from video.config import EMBEDDED, Config
from video.data import Video, Videos
from video.encoder import S3D
from video.export import save_encoder
from video.figures import FIGURES, SHOWN, chosen, frame_strip, tiles
from video.tables import TABLE_5

TINY: dict[str, Any] = {
    "dataset": EMBEDDED,
    "width": 0.125,
    "clip_frames": 8,
    "size": 32,
    "precision": "float32",
}


def table(**changes: Any) -> Table:
    """Table 5 with runs so small that they can be made up."""
    tiny = {**TINY, **changes}
    seeds: dict[Tier, tuple[int, ...]] = {"paper": (0, 1, 2), "short": (0, 1, 2)}
    config = dataclasses.replace(Config(), **tiny)
    return dataclasses.replace(TABLE_5, config=config, short=tiny, seeds=seeds)


TABLE = table()


def draw(kind: str, runs: Path, declared: Table = TABLE) -> DrawnFigure:
    return drawn({"mmcl": (declared,)}, FIGURES, f"mmcl/table-5-{kind}", runs)[1]


def finish(
    runs: Path, row: str, value: float = 60.0, *, encoder: bool = True, declared: Table = TABLE
) -> None:
    """The first short RGB run of a row, without the training."""
    cell = declared.cells("short", row=row, column="RGB linear", seeds=(0,))[0]
    values = {"top1": value, "R@1": value - 20}
    low = {f"{name}_low": number - 4 for name, number in values.items()}
    high = {f"{name}_high": number + 6 for name, number in values.items()}
    details = {"classes": 6, "training_videos": 24, "test_videos": 12}
    folder = finish_cell(runs, cell, {**values, **low, **high, "details": details})
    config = cell.config
    assert isinstance(config, Config)
    if encoder:
        save_encoder(S3D(width=config.width), folder, config=config)


def test_the_encoder_of_mmcl_is_preferred_and_an_untrained_one_is_not_shown(
    tmp_path: Path,
) -> None:
    finish(tmp_path, "untrained encoder")
    finish(tmp_path, "MMCL INV, first view", encoder=False)
    with pytest.raises(CannotDraw, match="no trained run of video/mmcl/table-5 keeps an encoder"):
        draw("neighbours", tmp_path)
    finish(tmp_path, "SimCLR")
    finish(tmp_path, SHOWN)
    found = draw("neighbours", tmp_path)
    assert [run.row.label for run in found.runs] == [SHOWN]
    assert len(found.figure.axes) == 6 * 5  # a query of each class of the stand-in


def test_the_first_row_that_was_trained_stands_in_for_mmcl(tmp_path: Path) -> None:
    finish(tmp_path, "SimCLR")
    finish(tmp_path, "DCL")
    assert [run.row.label for run in draw("neighbours", tmp_path).runs] == ["SimCLR"]


def made_up(labels: list[int]) -> Videos:
    """Videos of 5 frames of 4 x 6 pixels; frame t of video v is 20 v + t throughout."""
    count = len(labels)
    numbers = (20 * torch.arange(count)[:, None] + torch.arange(5)).flatten()
    return Videos(
        tuple(Video(f"v_A_g01_c{k:02d}", label, 1, True) for k, label in enumerate(labels)),
        ("Archery", "Biking", "Diving"),
        numbers.to(torch.uint8)[:, None, None, None].expand(-1, 3, 4, 6),
        5 * torch.arange(count),
        torch.full((count,), 5),
    )


def test_a_strip_spans_the_video() -> None:
    strip = frame_strip(made_up([0, 0]), 1)
    assert strip.shape == (4, 4 * 6 + 3 * 2, 3)
    # Frames 0, 1.33, 2.67 and 4, with white between.
    assert strip[0, [0, 6, 8, 16, 24, 29], 0].tolist() == [20, 255, 21, 23, 24, 24]


def test_one_query_of_each_class() -> None:
    assert chosen(made_up([1, 1, 0, 2, 0])) == [2, 0, 3]


def test_neighbours_are_marked_by_sign_and_colour() -> None:
    found = torch.tensor([[0, 1], [2, 0]])
    rows = tiles(made_up([0, 1]), made_up([0, 2, 1]), found)
    assert [[(tile.title, tile.color) for tile in row] for row in rows] == [
        [("Archery", INK), ("✓ Archery", GREEN), ("✗ Diving", RED)],
        [("Biking", INK), ("✓ Biking", GREEN), ("✗ Archery", RED)],
    ]
    # The second neighbour of the first query is video 1.
    assert np.asarray(rows[0][2].image)[0, 0, 0] == 20


def test_accuracies_have_intervals_and_the_best_row_without_training(tmp_path: Path) -> None:
    finish(tmp_path, "untrained encoder", 40.0)
    finish(tmp_path, SHOWN, 70.0)
    found = draw("accuracies", tmp_path)
    assert titles(found.figure) == ["RGB: linear, top-1", "RGB: retrieval, R@1"]
    assert rows_of(found.figure.axes[0]) == ["untrained encoder", SHOWN]
    for axis, shift in zip(found.figure.axes, (0, -20), strict=True):
        assert [[x + 0.0 for x in line.get_xdata()] for line in axis.lines] == [
            [36 + shift, 46 + shift],
            [40 + shift],
            [66 + shift, 76 + shift],
            [70 + shift],
            [40 + shift] * 2,
        ]
    assert "12 test videos of 6 classes" in found.caption


def test_without_the_videos_only_accuracies_are_drawn(tmp_path: Path) -> None:
    absent = table(dataset="ucf101")
    finish(tmp_path, "SimCLR", declared=absent)
    assert draw("accuracies", tmp_path, absent).runs
    with pytest.raises(MissingData, match="ucf101: data missing"):
        draw("neighbours", tmp_path, absent)
