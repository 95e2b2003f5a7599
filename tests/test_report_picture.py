"""A picture of a table shows its numbers, and the documents show the committed records."""

import io
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from PIL import Image

from graph.tables import TABLE_4
from shared.command.domains import tables_of
from shared.command.verbs import DOCUMENTS
from shared.errors import UserError
from shared.experiment.records import Record, read_records, read_repeats
from shared.experiment.tables import Table, Tier, canonical
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
    assert [axis.get_title(loc="left") for axis in figure.axes[:2]] == ["DD", "MUTAG"]
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    floors = ["largest class", "sizes and labels"]
    assert rows == ["GraphCL", "MMCL INV, both views", *floors, "SimCLR"]
    dd, mutag = (
        {
            str(bar.get_label()): (bar.lines[0].get_xdata()[0], bar.lines[0].get_ydata()[0])
            for bar in axis.containers
            if isinstance(bar, ErrorbarContainer)
        }
        for axis in figure.axes[:2]
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


def test_gains_stand_below_with_what_is_published(measured: Measured) -> None:
    figure = picture.draw(measured)
    dd, mutag = figure.axes[2:]
    assert [label.get_text() for label in dd.get_yticklabels()] == [
        "MMCL INV, both views\nover GraphCL"
    ]
    marks = {str(line.get_label()): list(line.get_xdata()) for line in mutag.lines}
    assert marks["no gain"] == [0, 0]
    power = next(each for each in TABLE_4.powers if "MUTAG" in each.columns)
    assert marks["declared gain"] == [power.gain] * 2
    # Of the seeds that both rows have: 87.9 - 86 and 89 - 87.
    assert marks["MMCL INV, both views over GraphCL"] == pytest.approx([1.95])
    assert marks["MMCL INV, both views over GraphCL published"] == pytest.approx([88.42 - 86.80])
    half = 12.706 * statistics.stdev([1.9, 2.0]) / math.sqrt(2)
    ends = [1.95 - half, 1.95 + half]
    assert any(list(line.get_xdata()) == pytest.approx(ends, abs=1e-3) for line in mutag.lines)
    (gain,) = picture.numbers_of(measured)["gains"]
    assert [text.get_text() for text in mutag.texts] == [f"+1.95 {gain['verdict']}", "+1.62"]
    assert [text.get_text() for text in dd.texts] == ["no result"]
    assert gain["low"] == pytest.approx(ends[0], abs=1e-3)


def test_the_arithmetic_spread_is_a_band_around_no_gain(measured: Measured) -> None:
    said = "arithmetic spread: one seed, other code paths"
    (legend,) = picture.draw(measured).legends
    assert said not in [text.get_text() for text in legend.texts]  # nothing was repeated
    records = [
        replace(record, environment={"arithmetic": {"path": path}, "data": {}})
        for record, path in zip(measured.records, "abcdefghijklmnopqrstuvwxyz", strict=False)
    ]
    first = next(each for each in records if "/graphcl/mutag/seed-0" in each.address)
    moved = replace(
        first,
        environment={"arithmetic": {"path": "other"}, "data": {}},
        result=first.result | {"metrics": {"accuracy": 87.0}},
    )
    repeated = measure(TABLE_4, "paper", records, {}, repeats=[moved])
    figure = picture.draw(repeated)
    (legend,) = figure.legends
    assert said in [text.get_text() for text in legend.texts]
    (band,) = (each for each in figure.axes[3].patches if each.get_label() == "arithmetic spread")
    spread = statistics.stdev([86.0, 87.0])
    box = band.get_window_extent().transformed(figure.axes[3].transData.inverted())
    assert (box.x0, box.x1) == pytest.approx((-spread, spread))
    assert picture.numbers_of(repeated)["spreads"]["MUTAG"] == pytest.approx(spread)


def test_a_smaller_budget_shows_published_gains_and_not_published_means() -> None:
    table = table_at("vision/margins/table-2-cifar10")
    records = []
    for row, score in (("MoCo", 55.0), ("MoCo + margins", 56.0)):
        for cell in table.cells("short", row=row):
            result = {"tier": "short", "protocol": table.protocol}
            result |= {"metrics": {"l2_top1": score + cell.seed, "knn_top1": score}}
            records.append(Record(cell.address, canonical(cell.config), {"data": {}}, result))
    numbers = picture.numbers_of(measured := measure(table, "short", records, {}))
    assert {cell["published"] for cell in numbers["cells"]} == {None}
    (gain,) = numbers["gains"]
    assert gain["gain"] == pytest.approx(1.0)
    assert gain["published"] == pytest.approx(89.84 - 89.41, abs=0.01)
    above, below = picture.draw(measured).axes
    # Of three seeds; no heading of rows that have no number.
    assert [text.get_text() for text in above.texts] == ["56.00 ± 1.00", "57.00 ± 1.00"]
    assert [text.get_text() for text in below.texts] == ["+1.00 gain", "+0.43"]


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


@pytest.mark.parametrize(("address", "tier"), DOCUMENTS)
def test_the_documents_show_the_committed_records(address: str, tier: Tier) -> None:
    shown = picture.read(ROOT / DOCUMENTS[address, tier])
    records, repeats = read_records(ROOT / "results"), read_repeats(ROOT / "results")
    measured = measure(table_at(address), tier, records, {}, repeats=repeats)
    counted = picture.numbers_of(measured)
    again = "draw it again with: ./reproduce.sh report"
    for part in ("cells", "gains"):
        for each, wanted in zip(shown.pop(part), counted.pop(part), strict=True):
            # Sums may differ in their last digit where the processor does.
            numbers = {name: each.pop(name) for name in list(each) if type(each[name]) is float}
            assert numbers == pytest.approx({name: wanted.pop(name) for name in numbers}), again
            assert each == wanted, again
    assert shown.pop("spreads") == pytest.approx(counted.pop("spreads")), again
    assert shown == counted, again


def test_title_and_legend_lie_within_the_picture(measured: Measured) -> None:
    figure = picture.draw(measured)
    figure.savefig(io.BytesIO())  # lays it out
    (legend,) = figure.legends
    for each in (legend, figure._suptitle):
        box = each.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
