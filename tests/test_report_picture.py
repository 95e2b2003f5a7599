"""A picture of a table shows its numbers, and the documents show the committed records."""

import io
import json
import re
from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from PIL import Image

from graph.tables import TABLE_4
from shared.command.domains import tables_of
from shared.command.verbs import DOCUMENTS
from shared.errors import UserError
from shared.experiment.records import Record, read_records
from shared.experiment.tables import Table, canonical
from shared.report import picture
from shared.report.measuring import Measured, measure

ROOT = Path(__file__).resolve().parents[1]
SEEDS = {
    ("GraphCL", "MUTAG"): dict(enumerate([86.0, 87.0, 88.0, 86.5, 87.5] * 4)),
    ("MMCL INV, both views", "MUTAG"): {0: 87.9, 1: 89.0},
    ("SimCLR", "DD"): {0: 78.0},
    ("largest class", "MUTAG"): {0: 66.5},
    ("sizes and labels", "MUTAG"): {0: 86.5},
}


@pytest.fixture
def measured() -> Measured:
    records = []
    for (row, column), scores in SEEDS.items():
        for cell in TABLE_4.cells("paper", row=row, column=column, seeds=tuple(scores)):
            result = {"tier": "paper", "protocol": TABLE_4.protocol}
            result |= {"metrics": {"accuracy": scores[cell.seed]}}
            records.append(Record(cell.address, canonical(cell.config), {"data": {}}, result))
    return measure(TABLE_4, "paper", records, {})


def table_at(address: str) -> Table:
    domain, paper, name = address.split("/")
    (table,) = (each for each in tables_of(domain)[paper] if each.name == name)
    return table


def test_marks_and_numbers_are_the_measured_ones(measured: Measured) -> None:
    figure = picture.draw(measured)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["DD", "MUTAG"]
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    floors = ["largest class", "sizes and labels"]
    assert rows == ["GraphCL", "MMCL INV, both views", *floors, "SimCLR"]
    dd, mutag = (
        {
            str(bar.get_label()): (bar.lines[0].get_xdata()[0], bar.lines[0].get_ydata()[0])
            for bar in axis.containers
            if isinstance(bar, ErrorbarContainer)
        }
        for axis in figure.axes
    )
    assert {label: mean for label, (mean, _) in dd.items()} == {"simclr": 78.0}
    means = {label: mean for label, (mean, _) in mutag.items()}
    assert means == pytest.approx(
        {
            "graphcl": 87.0,
            "graphcl published": 86.8,
            "mmcl-inv-both-views": 88.45,
            "mmcl-inv-both-views published": 88.42,
            "largest-class": 66.5,
            "sizes-and-labels": 86.5,
        }
    )
    # The highest floor goes through the panel; DD has none.
    lines = [line for line in figure.axes[1].lines if line.get_label() == "highest floor"]
    assert [list(line.get_xdata()) for line in lines] == [[86.5, 86.5]]
    assert not [line for line in figure.axes[0].lines if line.get_label() == "highest floor"]
    assert picture.numbers_of(measured)["floors"] == {"MUTAG": ["sizes and labels", 86.5]}
    places = dict(zip(rows, figure.axes[0].get_yticks(), strict=True))
    for label, row in (("graphcl", "GraphCL"), ("mmcl-inv-both-views", "MMCL INV, both views")):
        assert abs(mutag[label][1] - places[row]) < 0.5  # beside its own name
        assert abs(mutag[f"{label} published"][1] - places[row]) < 0.5
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert texts == [
        *("87.00 ± 0.73", "86.80 ± 1.34", "88.45 ± 0.78*", "88.42 ± 1.33"),
        *("66.50", "86.50", "no result"),
    ]
    said = figure.get_supxlabel()
    assert "* fewer seeds than declared" in said
    assert "no result: REDDIT-BINARY, REDDIT-MULTI-5K, IMDB-BINARY;" in said


def test_a_scale_does_not_blow_up_noise(measured: Measured) -> None:
    low, high = picture.draw(measured).axes[0].get_xlim()  # one seed, no spread
    assert high - low >= picture.LEAST
    low, _ = picture.draw(measured).axes[1].get_xlim()
    assert 80 < low < 86  # the lower floor, 66.5, does not squeeze the others


def test_a_picture_says_what_it_shows(measured: Measured, tmp_path: Path) -> None:
    file = tmp_path / "docs/table-4.png"
    picture.write(file, measured)
    assert picture.read(file) == json.loads(json.dumps(picture.numbers_of(measured)))
    assert [each.name for each in file.parent.iterdir()] == ["table-4.png"]
    Image.new("RGB", (4, 4)).save(tmp_path / "mute.png")
    with pytest.raises(UserError, match=r"mute.png does not say what it shows; draw it with"):
        picture.read(tmp_path / "mute.png")


def test_nothing_measured_is_no_picture() -> None:
    with pytest.raises(ValueError, match="nothing is measured"):
        picture.draw(measure(TABLE_4, "paper", [], {}))


def test_every_picture_of_the_documents_is_drawn_by_the_report() -> None:
    drawn = {ROOT / file for file in DOCUMENTS.values()}
    shots = set((ROOT / "docs").rglob("*.png")) - drawn  # of the report, by tests/browser.py
    shown = (ROOT / "docs/report.md").read_text(encoding="utf-8")
    assert all(file.exists() for file in drawn)
    assert {f'src="{file.name}"' for file in shots} == set(re.findall(r'src="[^"]*"', shown))


@pytest.mark.parametrize("address", DOCUMENTS)
def test_the_documents_show_the_committed_records(address: str) -> None:
    shown = picture.read(ROOT / DOCUMENTS[address])
    records = read_records(ROOT / "results")
    counted = picture.numbers_of(measure(table_at(address), "paper", records, {}))
    cells = shown.pop("cells")
    expected = counted.pop("cells")
    assert shown == counted
    again = "draw it again with: ./reproduce.sh report"
    for cell, wanted in zip(cells, expected, strict=True):
        spread = {name: cell.pop(name) for name in ("mean", "sd", "low", "high")}
        assert spread == pytest.approx({name: wanted.pop(name) for name in spread}), again
        assert cell == wanted, again


def test_title_and_legend_lie_within_the_picture(measured: Measured) -> None:
    figure = picture.draw(measured)
    figure.savefig(io.BytesIO())  # lays it out
    (legend,) = figure.legends
    for each in (legend, figure._suptitle):
        box = each.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
