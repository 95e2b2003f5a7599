import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from shared.experiment.export import FILE
from shared.experiment.records import read_records
from shared.experiment.runs import Run
from shared.experiment.tables import Row, Table
from shared.report import files
from shared.report.figures import Lacking, finished
from shared.report.measuring import measure_finished
from video import figures as module
from video.config import EMBEDDED, Config
from video.data import Video, Videos
from video.encoder import S3D
from video.export import save_encoder
from video.figures import (
    SHOWN,
    chosen,
    draw_accuracies,
    draw_neighbours,
    frame_strip,
    with_encoder,
    write,
)
from video.tables import TABLE_5

TINY: dict[str, Any] = {
    "dataset": EMBEDDED,
    "width": 0.125,
    "clip_frames": 8,
    "size": 32,
    "precision": "float32",
}
TABLE = dataclasses.replace(
    TABLE_5,
    config=dataclasses.replace(Config(), **TINY),
    short=TINY,
    seeds={"paper": (0, 1, 2), "short": (0, 1, 2)},
)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Table 5 with runs so small that they can be made up."""
    monkeypatch.setattr(module, "TABLES", {"mmcl": (TABLE,)})
    return TABLE


def metrics(value: float) -> dict[str, Any]:
    details = {"classes": 6, "training_videos": 24, "test_videos": 12}
    values = {"top1": value, "R@1": value - 20}
    low = {f"{name}_low": number - 4 for name, number in values.items()}
    high = {f"{name}_high": number + 6 for name, number in values.items()}
    return {**values, **low, **high, "details": details}


def finish(runs: Path, row: str, *, value: float = 60.0, encoder: bool = True) -> Path:
    """The first short RGB run of a row, without the training."""
    cell = TABLE.cells("short", row=row, column="RGB linear", seeds=(0,))[0]
    config, folder = cell.config, runs / cell.folder
    assert isinstance(config, Config)
    with Run(folder, config, tier="short") as run:
        if encoder:
            save_encoder(S3D(width=config.width), folder, config=config)
        run.finish(metrics(value))
    return folder


def test_figures_wait_for_runs(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write("mmcl", tmp_path / "runs", tmp_path / "results", data_root=tmp_path) == []
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("table-5-neighbours: not drawn: no finished run of video/mmcl/tab")
    assert lines[1].startswith("table-5-accuracies: not drawn: no finished run of video/mmcl/tab")
    assert not (tmp_path / "results").exists()
    with pytest.raises(Exception, match="video has no figures for 'lmcl'"):
        write("lmcl", tmp_path, tmp_path, data_root=tmp_path)


def test_the_encoder_of_mmcl_is_preferred_and_an_untrained_one_is_not_shown(
    table: Table, tmp_path: Path
) -> None:
    finish(tmp_path, "untrained encoder")
    finish(tmp_path, "MMCL INV, first view", encoder=False)
    with pytest.raises(Lacking, match="with an encoder"):
        with_encoder(table, tmp_path)
    finish(tmp_path, "SimCLR")
    finish(tmp_path, "DCL")
    assert with_encoder(table, tmp_path).cell.row == "SimCLR"
    finish(tmp_path, SHOWN)
    assert with_encoder(table, tmp_path).cell.row == SHOWN
    assert len(finished(Config, table, "short", tmp_path)) == 5  # linear and R@1 are of one run


def test_a_run_of_an_earlier_declaration_does_not_count(table: Table, tmp_path: Path) -> None:
    finish(tmp_path, "SimCLR")
    assert len(finished(Config, table, "short", tmp_path)) == 1
    rows = tuple(
        Row("SimCLR", {**row.changes, "epochs": 7}) if row.label == "SimCLR" else row
        for row in table.rows
    )
    assert finished(Config, dataclasses.replace(table, rows=rows), "short", tmp_path) == []


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


def texts(figure: Figure) -> list[list[tuple[str, Any]]]:
    """Title and colour of each panel, by line."""
    axes = np.array(figure.axes).reshape(2, -1)
    titles = [[axis.get_title(loc="left") for axis in line] for line in axes]
    colors = [[axis._left_title.get_color() for axis in line] for line in axes]
    return [list(zip(*line, strict=True)) for line in zip(titles, colors, strict=True)]


def test_neighbours_are_marked_by_sign_and_colour() -> None:
    found = torch.tensor([[0, 1], [2, 0]])
    figure = draw_neighbours(made_up([0, 1]), made_up([0, 2, 1]), found, "title")
    assert texts(figure) == [
        [("Archery", "black"), ("✓ Archery", module.RIGHT), ("✗ Diving", module.WRONG)],
        [("Biking", "black"), ("✓ Biking", module.RIGHT), ("✗ Archery", module.WRONG)],
    ]
    picture = figure.axes[2].images[0].get_array()
    assert picture is not None
    assert picture[0, 0, 0] == 20  # the second neighbour of the first query is video 1


def test_both_figures_are_drawn_from_runs_and_videos(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    finish(runs, "untrained encoder", value=40.0)
    finish(runs, SHOWN, value=70.0)
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", keep(drawn, Figure.savefig))
    files = write("mmcl", runs, tmp_path / "results", data_root=tmp_path)
    folder = tmp_path / "results" / "short" / "video" / "mmcl" / "figures"
    assert files[::2] == [folder / "table-5-neighbours.png", folder / "table-5-accuracies.png"]
    for file in files[::2]:
        assert np.ptp(imread(file)) > 0.5
    pictures, numbers = drawn[::2]
    assert len(pictures.axes) == 6 * 5  # a query of each class of the stand-in
    linear, retrieval = numbers.axes
    assert [label.get_text() for label in linear.get_yticklabels()] == ["untrained encoder", SHOWN]
    for axis, shift in ((linear, 0), (retrieval, -20)):
        baseline, *points = [line.get_xdata() for line in axis.lines]
        assert list(baseline) == [40 + shift] * 2  # the best row without training
        assert [float(point[0]) for point in points] == [40 + shift, 70 + shift]
        ends = [bar.get_segments()[0][:, 0].tolist() for bar in axis.collections]
        assert ends == [[36 + shift, 46 + shift], [66 + shift, 76 + shift]]
    assert "12 test videos of 6 classes" in numbers.get_supxlabel()


def test_accuracies_are_drawn_from_committed_records(table: Table, tmp_path: Path) -> None:
    folder = finish(tmp_path / "runs", "SimCLR", value=55.0)
    files.write(tmp_path / "results", measure_finished(table, "short", tmp_path / "runs"))
    shutil.rmtree(tmp_path / "runs")
    file, _ = write("mmcl", tmp_path / "runs", tmp_path / "results", data_root=tmp_path)
    assert file.name == "table-5-accuracies.png"
    committed = read_records(tmp_path / "results")
    (run,) = finished(Config, table, "short", tmp_path / "runs", committed)
    assert (run.record.result["metrics"]["top1"], run.folder) == (55, folder)
    said = draw_accuracies(table, [run]).get_supxlabel()
    assert said.startswith("Points: one run each, seed 0; lines: ")  # there is nothing below it


def keep(drawn: list[Figure], savefig: Any) -> Any:
    def saved(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        savefig(figure, *arguments, **options)

    return saved


def test_without_the_videos_only_accuracies_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {**TINY, "dataset": "ucf101"}
    config = dataclasses.replace(Config(), **there)
    absent = dataclasses.replace(TABLE, config=config, short=there)
    monkeypatch.setattr(module, "TABLES", {"mmcl": (absent,)})
    cell = absent.cells("short", row="SimCLR", column="RGB linear", seeds=(0,))[0]
    assert isinstance(cell.config, Config)
    with Run(tmp_path / cell.folder, cell.config, tier="short") as run:
        save_encoder(S3D(width=0.125), run.folder, config=cell.config)
        run.finish(metrics(50.0))
    assert (run.folder / FILE).is_file()
    file, _ = write("mmcl", tmp_path, tmp_path / "results", data_root=tmp_path / "none")
    assert file.name == "table-5-accuracies.png"
    assert "table-5-neighbours: not drawn: ucf101: data missing" in capsys.readouterr().out
