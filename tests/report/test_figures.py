"""Figures whatever their domain: what they are drawn from, where they go, and the forms."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy.tables import TABLES

from shared.errors import UserError
from shared.experiment.frame import load
from shared.experiment.tables import Table, Tier
from shared.report import files, pictures
from shared.report.figures import (
    CannotDraw,
    DeclaredFigure,
    DrawnFigure,
    FigureRuns,
    FinishedRun,
    draw,
    finished,
    write,
)
from shared.report.measuring import measure
from tests.stages.drawing import finish, lines

(TABLE,) = TABLES["toy"]


def points_of(source: FigureRuns) -> DrawnFigure:
    if all(run.row.label == "better" for run in source.runs):
        raise CannotDraw("no run of the plain row")
    numbers = {run.cell.address: [pictures.Point(run.value)] for run in source.runs}
    figure = pictures.points(pictures.Picture([pictures.Panel("", "", numbers)], 1, {}))
    rows = [{"row": run.row.label, "value": run.value} for run in source.runs]
    return DrawnFigure(figure, "Toys", "Computed here.", source.runs, rows)


FIGURES = {"toy": {"figure-1": DeclaredFigure(points_of, ("table-1",))}}


def finish_toy(runs: Path, tier: Tier, row: str, column: str, seed: int, value: float) -> Path:
    (cell,) = TABLE.cells(tier, row=row, column=column, seeds=(seed,))
    return finish(runs, cell, {"accuracy": value, "norm": 1.0})


def write_toy(folder: Path) -> list[Path]:
    to = folder / "to"
    return write(TABLES, FIGURES, "toy", folder / "runs", folder / "results", folder, to)


def test_a_figure_is_written_where_it_was_asked_for_with_its_numbers(tmp_path: Path) -> None:
    finish_toy(tmp_path / "runs", "short", "plain", "left", 0, 1.5)
    written = write_toy(tmp_path)
    folder = tmp_path / "to/short/toy/toy/figures"
    assert written == [folder / f"figure-1.{kind}" for kind in ("png", "pdf", "csv")]
    assert sorted(tmp_path.rglob("figure-1.*")) == sorted(written)
    assert written[1].read_bytes().startswith(b"%PDF")
    assert b"/Type3" not in written[1].read_bytes()  # fonts that conferences refuse
    assert written[2].read_text() == "row,value\nplain,1.5\n"
    before = [file.read_bytes() for file in written]
    assert [file.read_bytes() for file in write_toy(tmp_path)] == before
    with Image.open(written[0]) as picture:
        assert picture.format == "PNG"


def found(table: Table, tier: Tier, runs: Path) -> list[FinishedRun]:
    """The runs of a table on this disk."""
    return finished(load([table], runs=runs), table, tier, runs)


def test_committed_records_suffice(tmp_path: Path) -> None:
    finish_toy(tmp_path / "runs", "paper", "plain", "left", 0, 1.5)
    frame = load([TABLE], runs=tmp_path / "runs")
    files.write(tmp_path / "results", measure(TABLE, "paper", frame.of(TABLE, "paper")))
    (tmp_path / "runs").rename(tmp_path / "away")
    assert tmp_path / "to/toy/toy/figures/figure-1.png" in write_toy(tmp_path)


def test_the_papers_scale_is_drawn_as_soon_as_it_can_be_and_smoke_never(tmp_path: Path) -> None:
    def drawn() -> Tier:
        frame = load(TABLES["toy"], runs=tmp_path)
        return draw(FIGURES["toy"]["figure-1"], TABLES["toy"], frame, tmp_path, tmp_path)[0]

    finish_toy(tmp_path, "smoke", "plain", "embedded sample", 0, 1.5)
    with pytest.raises(CannotDraw, match="no finished run of toy/toy/table-1"):
        drawn()
    finish_toy(tmp_path, "paper", "better", "left", 0, 1.5)
    with pytest.raises(CannotDraw, match="no run of the plain row"):
        drawn()
    finish_toy(tmp_path, "short", "plain", "left", 0, 1.5)
    assert drawn() == "short"
    finish_toy(tmp_path, "paper", "plain", "left", 0, 1.5)
    assert drawn() == "paper"


def test_figures_without_runs_are_named_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write_toy(tmp_path) == []
    assert "./reproduce.sh toy toy --table table-1 --tier short" in capsys.readouterr().out
    assert not (tmp_path / "to").exists()
    with pytest.raises(UserError, match="'broken'"):
        write(TABLES, FIGURES, "broken", tmp_path, tmp_path, tmp_path, tmp_path)


def test_runs_of_an_earlier_declaration_and_unfinished_ones_are_left_out(tmp_path: Path) -> None:
    folder = finish_toy(tmp_path, "short", "plain", "left", 0, 1.5)
    assert [run.folder for run in found(TABLE, "short", tmp_path)] == [folder]
    rows = tuple(dataclasses.replace(row, changes={"offset": 9.0}) for row in TABLE.rows)
    assert found(dataclasses.replace(TABLE, rows=rows), "short", tmp_path) == []
    (folder / "result.json").unlink()
    assert found(TABLE, "short", tmp_path) == []


def test_columns_that_are_read_from_one_run_give_it_once(tmp_path: Path) -> None:
    (shared,) = TABLES["shared"]
    (*_, cell) = shared.cells("paper", row="plain", column="norm", seeds=(0,))
    finish(tmp_path, cell, {"accuracy": 1.0, "norm": 2.0})
    (run,) = found(shared, "paper", tmp_path)
    assert (run.column.label, run.value) == ("left", 1.0)


# The forms


def test_curves_are_means_with_bands() -> None:
    both = {"two runs": {10.0: [1.0, 3.0], 20.0: [2.0, 6.0]}, "one run": {10.0: [0.0]}}
    panel = pictures.Curves("a", "x", "y", both, {"baseline": 0.5})
    (axis,) = pictures.curves([panel], 1).axes
    found = lines(axis)
    assert found["two runs"] == ([10, 20], [2, 4])
    assert found["baseline"][1] == [0.5, 0.5]
    (band,) = axis.collections  # none of a single run
    heights = set(band.get_paths()[0].vertices[:, 1].round(6))
    assert heights == {round(m + s * d, 6) for m, d in ((2, 2**0.5), (4, 8**0.5)) for s in (-1, 1)}


def test_even_curves_have_a_place_for_infinity() -> None:
    panels = [
        pictures.Curves("a", "C", "y", {"one": {1.0: [1.0], float("inf"): [2.0]}}),
        pictures.Curves("b", "C", "y", {"one": {100.0: [3.0]}}),
    ]
    figure = pictures.curves(panels, 2, even=True)
    for axis, places in zip(figure.axes, ([0, 2], [1]), strict=True):
        assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "100", "inf"]
        (line,) = axis.containers
        assert line.lines[0].get_xdata().tolist() == places


def test_histograms_are_densities_with_notes_on_the_band() -> None:
    groups = {"near": np.array([0.1, 0.2, 0.3, 0.9]), "far": np.array([0.5, 0.7])}
    panels = [pictures.Histogram("a", groups)]
    (axis,) = pictures.histograms(
        panels, 1, unit="D", bins=10, limits=(0, 1), band=(0.15, 0.6)
    ).axes
    assert [text.get_text() for text in axis.texts] == [
        "near: mean 0.38, 50% in band",
        "far: mean 0.60, 50% in band",
    ]
    outline = next(patch for patch in axis.patches if patch.get_label() == "near")
    values, edges, _ = outline.get_data()
    assert (values * np.diff(edges)).sum() == pytest.approx(1)


def test_means_show_what_they_are_of() -> None:
    mean = pictures.Mean(2.0, values=(1.0, 3.0))
    figure = pictures.points(
        pictures.Picture([pictures.Panel("", "", {"a": [mean]})], 1, {"a": "#000000"})
    )
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [[1, 3], [2]]
