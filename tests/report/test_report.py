"""What a measured table holds, and that all its forms show the records' numbers and no others."""

import csv
import dataclasses
import io
import itertools
import json
import re
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from toy.program import AtOnce
from toy.tables import run_of

from shared.experiment.config import canonical, slug
from shared.experiment.records import Record, content_hash
from shared.experiment.tables import (
    Cell,
    Claim,
    Column,
    Comparison,
    Published,
    Row,
    Seeds,
    Table,
    Tier,
    Value,
)
from shared.report import files, pictures
from shared.report.console import Terminal
from shared.report.files import csv_text, markdown
from shared.report.measuring import Measured, MeasuredCell, narrowed
from shared.report.wording import (
    DASH,
    further_grids,
    gain_text,
    headline,
    legend_of,
    published_value,
)
from tests.stages.measured import measure, read_records

ROOT = Path(__file__).parents[2]
PROTOCOL = "svm-10fold-nested-v1"
OWN = "own & <new>_1"
GRAPHCL = {0: 86.0, 1: 87.0, 2: 88.0}
MMCL = {0: 87.9, 1: 89.0, 2: 90.1}


@dataclass(frozen=True)
class Config:
    seed: int = 0
    dataset: str = "MUTAG"
    loss: str = "nce"
    widths: tuple[int, ...] = (32, 32)
    epochs: int = 20

    @property
    def protocol(self) -> str:
        return PROTOCOL

    def reduced(self) -> "Config":
        return dataclasses.replace(self, epochs=1)


def make_table(**changes: Any) -> Table:
    published = Published(
        source="Max-Margin Contrastive Learning, Table 4",
        title="Graphs",
        columns=("MUTAG", "DD"),
        rows={
            "GraphCL": (Value(86.80, 1.34), Value(78.62, 0.40)),
            "MMCL": (Value(88.42, 1.33), None),
        },
        statistic="mean ± std",
        notes={"MMCL": "variant not stated"},
        warnings=("the second column cannot be right",),
    )
    table = Table(
        domain="graph",
        paper="mmcl",
        name="table-4",
        title="Graph classification",
        section="Section 5.3, Table 4",
        metric="accuracy",
        unit="%",
        protocol=PROTOCOL,
        config=Config(),
        rows=(
            Row("GraphCL", {"loss": "nce"}, "GraphCL", "one-hop subgraph, as in the code"),
            Row("MMCL", {"loss": "mmcl"}, "MMCL"),
            Row(OWN, {"loss": "new"}),
        ),
        columns=(Column("MUTAG"), Column("DD", {"dataset": "DD"})),
        seeds={"paper": (0, 1, 2), "short": (0, 1), "smoke": (0,)},
        published=published,
        claims=(
            Claim(
                id="mmcl-table-4",
                paper="mmcl",
                sentence="MMCL improves on GraphCL",
                brief="better than GraphCL",
                place="5.3",
                source="a transcription",
                form="superiority",
                comparisons=(Comparison("MMCL", "GraphCL", ("MUTAG", "DD")),),
            ),
        ),
        short={"epochs": 2},
        varies="pretraining seed; folds fixed",
        references=(Published("A README", "Other losses", ("MUTAG",), {"DCL": (Value(88.09),)}),),
        notes=("Pretrained on all graphs.",),
    )
    return dataclasses.replace(table, **changes)


TABLE = make_table()


def cell_of(row: str, column: str, seed: int, tier: Tier = "paper") -> Cell:
    (cell,) = TABLE.cells(tier, row=row, column=column, seeds=[seed])
    return cell


def sealed(record: Record, **changes: Any) -> Record:
    """The record with changes, and the hash that belongs to them."""
    new = dataclasses.replace(record, **changes)
    hashed = content_hash(new.config, new.environment, new.result)
    return dataclasses.replace(new, sha256=hashed)


def record_of(cell: Cell, value: float, **result: Any) -> Record:
    record = Record(
        address=cell.address,
        config=canonical(cell.config),
        environment={
            "commit": "c0ffee" * 6 + "beef",
            "dirty": cell.seed == 1,
            "command": f"./reproduce.sh --cell {cell.address}",
            "started": "2026-01-02T03:04:05+00:00",
            "hardware": {"processor": "Some <Processor>", "cores": 2},
            "versions": {"torch": "2.13.0"},
            "data": {cell.column: "ab" * 32},
        },
        result={
            "metrics": {"accuracy": value, "folds": [value] * 10},
            "protocol": PROTOCOL,
            "tier": cell.tier,
            "seconds": 34.25,
            "peak_memory_bytes": 400 * 2**20,
        }
        | result,
    )
    return sealed(record)


def records_of(row: str, column: str, values: dict[int, float]) -> list[Record]:
    return [record_of(cell_of(row, column, seed), value) for seed, value in values.items()]


RECORDS = [
    *records_of("GraphCL", "MUTAG", GRAPHCL),
    *records_of("MMCL", "MUTAG", MMCL),
    *records_of(OWN, "MUTAG", {0: 85.0, 2: 86.0}),
    *records_of("GraphCL", "DD", {0: 78.0}),
]
STATUS = {
    cell_of("MMCL", "DD", seed).address: "data missing; fetch it with: ./reproduce.sh data graph"
    for seed in range(3)
}


@pytest.fixture
def measured() -> Measured:
    return measure(TABLE, "paper", RECORDS, STATUS)


def found(measured: Measured, row: str, column: str) -> MeasuredCell:
    (cell,) = (
        cell
        for cell in itertools.chain(*measured.cells)
        if (cell.row.label, cell.column.label) == (row, column)
    )
    return cell


def shown(measured: Measured, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(Terminal(measured, Path("results")))
    return capture.get()


def test_an_end_of_an_interval_keeps_its_side_of_zero() -> None:
    assert gain_text(-0.43, -0.87, -0.0034) == "-0.43 [-0.87, -0.00]"
    assert gain_text(0.5, 0.0024, 1.0) == "+0.50 [+0.00, +1.00]"
    assert gain_text(-0.001, -0.0, 1e-12) == "+0.00 [+0.00, +0.00]"
    assert gain_text(0.25) == "+0.25"
    assert published_value(Value(5.0, interval=0.25)) == "5.00 ± 0.25"


def test_measured_stands_beside_published(measured: Measured) -> None:
    cell = found(measured, "GraphCL", "MUTAG")
    assert cell.summary is not None
    assert (cell.summary.n, cell.summary.mean, cell.summary.sd) == (3, 87.0, 1.0)
    assert cell.published == Value(86.80, 1.34)
    assert cell.difference == pytest.approx(0.20)
    assert (dict(cell.values), dict(cell.missing)) == (GRAPHCL, {})


def test_cells_without_result_say_why(measured: Measured) -> None:
    missing = found(measured, "MMCL", "DD")
    assert missing.summary is None
    assert set(missing.missing.values()) == set(STATUS.values())
    assert missing.published is None
    assert dict(found(measured, OWN, "DD").missing) == dict.fromkeys(range(3), "not run")
    assert dict(found(measured, "GraphCL", "DD").missing) == {1: "not run", 2: "not run"}


def test_the_later_counting_record_of_one_address_is_taken() -> None:
    cell = cell_of("MMCL", "MUTAG", 0)
    first, second = record_of(cell, 80.0), record_of(cell, 81.0)
    stale = dataclasses.replace(record_of(cell, 99.0), config={})
    measured = measure(TABLE, "paper", [first, second, stale])
    assert dict(found(measured, "MMCL", "MUTAG").values) == {0: 81.0}


def test_undeclared_seeds_are_named_but_do_not_count() -> None:
    extra = records_of("MMCL", "MUTAG", {9: 99.0})
    measured = measure(TABLE, "paper", [*RECORDS, *extra])
    assert dict(found(measured, "MMCL", "MUTAG").values) == MMCL
    (line,) = measured.ignored
    assert line.startswith("graph/mmcl/table-4/mmcl/mutag/seed-9: ")
    assert "seed-9" in markdown(measured)


def test_records_round_trip(tmp_path: Path) -> None:
    foreign = dataclasses.replace(RECORDS[0], address="graph/other/table-1/a/b/seed-0")
    stale = sealed(RECORDS[0], config={})
    measured = measure(TABLE, "paper", [*reversed(RECORDS), foreign, stale], STATUS)
    files.write(tmp_path, measured)
    folder = tmp_path / "graph" / "mmcl"
    assert sorted(file.name for file in folder.iterdir()) == [
        "table-4.csv",
        "table-4.md",
        "table-4.records.jsonl",
    ]
    read = read_records(tmp_path)
    assert [record.address for record in read] == sorted(record.address for record in RECORDS)
    assert {record.address: record for record in read} == {r.address: r for r in RECORDS}
    assert measure(TABLE, "paper", read, STATUS) == measured


def test_a_stale_record_is_kept_in_results(tmp_path: Path) -> None:
    stale = sealed(RECORDS[0], config={})
    measured = measure(TABLE, "paper", [stale])
    files.write(tmp_path, measured)
    assert read_records(tmp_path) == [stale]
    assert "stale: measured with another configuration" in markdown(measured)


def test_tiers_are_never_mixed(tmp_path: Path) -> None:
    short = [record_of(cell_of("MMCL", "MUTAG", seed, "short"), 70.0) for seed in (0, 1)]
    disguised = record_of(cell_of("MMCL", "MUTAG", 2), 70.0, tier="short")
    records = [*short, disguised, *RECORDS[:3]]
    paper = found(measure(TABLE, "paper", records), "MMCL", "MUTAG")
    assert paper.summary is None
    assert paper.missing[2] == "stale: measured in the short tier"
    measured = measure(TABLE, "short", records)
    assert dict(found(measured, "MMCL", "MUTAG").values) == {0: 70.0, 1: 70.0}
    assert found(measured, "GraphCL", "MUTAG").summary is None
    assert "Small: real data" in markdown(measured)
    assert "epochs = 2" in markdown(measured)
    files.write(tmp_path, measured)
    assert [path.name for path in tmp_path.iterdir()] == ["short"]
    assert read_records(tmp_path) == short


def test_the_smoke_tier_shows_no_printed_number_and_never_enters_results(tmp_path: Path) -> None:
    record = record_of(cell_of("MMCL", "embedded sample", 0, "smoke"), 60.0)
    measured = measure(TABLE, "smoke", [record, *RECORDS])
    for text in (shown(measured), markdown(measured)):
        assert "60.00" in text
        assert "86.80" not in text
        assert "Smoke: embedded data" in text
    with pytest.raises(ValueError, match="smoke"):
        files.write(tmp_path, measured)
    assert list(tmp_path.iterdir()) == []


def wide() -> Measured:
    """More columns than 80 characters hold, with long words."""
    names = ("MUTAG", "a data set of several words", "REDDIT-MULTI-12K", "IMDB-BINARY", "DD")
    columns = tuple(Column(name, {"dataset": name}) for name in names)
    long = Row("low-rank projection, form number one of many", {"loss": "long"})
    table = make_table(rows=(*TABLE.rows, long), columns=columns, claims=())
    records = [record_of(cell, 80.0 + cell.seed) for cell in table.cells("paper") if cell.seed < 2]
    return measure(table, "paper", records)


def test_the_terminal_shows_every_column_whatever_its_width() -> None:
    measured = wide()
    text = shown(measured, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("80.50 ± 0.71") == len(measured.columns) * len(measured.table.rows)


def test_the_page_has_what_was_measured_beside_what_was_published(measured: Measured) -> None:
    text, commit = markdown(measured), "c0ffeec0ff"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    for row in (
        ["GraphCL", "**measured**", "87.00 ± 1.00", "78.00; 1 of 3 seeds"],
        ["", "*published*", "*86.80 ± 1.34*", "*78.62 ± 0.40*"],
        ["MMCL", "**measured**", "89.00 ± 1.10", f"{DASH} (2)"],
        ["", "*published*", "*88.42 ± 1.33*", f"*{DASH}*"],
        ["DCL", "88.09"],
        ["GraphCL", "DD", "0", commit, "Some &lt;Processor>", "0.01"],
        ["GraphCL", "MUTAG", "0-2", f"{commit}, {commit}, changed", "Some &lt;Processor>", "0.03"],
    ):
        assert row in rows
    for qualified in (
        "GraphCL: one-hop subgraph, as in the code",
        "MMCL: variant not stated",
        "the second column cannot be right",
    ):
        assert f"- {qualified}" in text


def test_where_a_row_has_no_cell_its_lines_are_empty() -> None:
    table = make_table(seed_exceptions=(Seeds((), ("DD",), ("GraphCL",)),), claims=())
    lines = "| GraphCL | **measured** | 87.00 ± 1.00 |  |\n|  | *published* | *86.80 ± 1.34* |  |"
    assert lines in markdown(measure(table, "paper", RECORDS))


def test_rows_that_a_paper_only_plots_are_not_additional(measured: Measured) -> None:
    assert "additional rows" in markdown(measured)
    plotted = Published("A paper", "Curves", (), {})
    table = make_table(published=plotted, rows=(Row("GraphCL", {"loss": "nce"}),), claims=())
    assert "additional rows" not in markdown(measure(table, "paper", RECORDS))


def test_text_means_itself_in_markdown() -> None:
    table = make_table(title="a | b_c <d> & 5%", notes=("a | b <c>",))
    measured = measure(table, "paper", RECORDS)
    assert markdown(measured).startswith("# a \\| b\\_c &lt;d> &amp; 5%\n")
    assert "- a \\| b &lt;c>" in markdown(measured)


def test_seeds_added_after_a_look_are_marked() -> None:
    table = make_table(post_hoc_seeds={"paper": {"GraphCL": 2}})
    measured = measure(table, "paper", RECORDS)
    assert "87.00 ± 1.00 †" in markdown(measured)
    assert any("declared after others had been seen" in line for line in legend_of(measured))
    assert not any("†" in line for line in legend_of(measure(TABLE, "paper", RECORDS)))
    with pytest.raises(ValueError, match="no row"):
        make_table(post_hoc_seeds={"paper": {"no row": 1}})


def test_seeds_that_were_run_and_failed_are_not_said_to_be_not_run() -> None:
    failed = {"failed: singular": Seeds((1,), rows=(OWN,))}
    lines = [legend_of(measure(make_table(failed=each), "paper", RECORDS)) for each in (failed, {})]
    assert lines == [
        ["(1) 7 of 18 numbers: not run", "(2) 2 of 18 numbers: failed: singular"],
        ["(1) 9 of 18 numbers: not run"],
    ]
    with pytest.raises(ValueError, match="no row"):
        make_table(failed={"failed": Seeds((1,), rows=("no row",))})


def test_a_part_of_a_table_has_its_rows_columns_and_seeds() -> None:
    table = make_table(seed_exceptions=(Seeds((0, 1), ("DD",), ("GraphCL",)),))
    whole = measure(table, "paper", RECORDS)
    part = narrowed(whole, {"GraphCL"}, {"MUTAG", "DD"}, {1, 2})
    left, right = part.flat
    assert part.seeds == (1, 2)
    assert dict(left.values) == {1: 87.0, 2: 88.0}
    assert left.records.keys() == {1, 2}
    assert (dict(right.values), right.missing.keys(), right.declared) == ({}, {1}, (1,))
    assert (left.fewer, right.fewer) == (False, True)
    whole = measure(table, "paper", [*RECORDS, *records_of("GraphCL", "DD", {1: 79.0})])
    assert "78.50 ± 0.71; 2 seeds" in markdown(whole)
    (right,) = narrowed(whole, {"GraphCL"}, {"DD"}, {0}).flat
    assert not right.fewer
    assert narrowed(whole, {"GraphCL"}, {"MUTAG"}, {9}).seeds == (0, 1, 2)


def test_the_csv_is_what_was_measured(measured: Measured) -> None:
    for table in (measured, wide(), measure(TABLE, "short", [])):
        lines = list(csv.DictReader(io.StringIO(csv_text(table))))
        cells = [cell for cells in table.cells for cell in cells]
        for line, cell in zip(lines, cells, strict=True):
            assert (line["row"], line["column"]) == (cell.row.label, cell.column.label)
            values = {seed: line[f"measured_seed_{seed}"] for seed in table.seeds}
            assert {s: float(text) for s, text in values.items() if text} == dict(cell.values)
            assert line["seeds_measured"] == str(len(cell.values))
            if len(cell.values) > 1:
                values = list(cell.values.values())
                assert float(line["measured_mean"]) == pytest.approx(statistics.mean(values))
                assert float(line["measured_sd"]) == pytest.approx(statistics.stdev(values))
                low, mean, high = (float(line[f"measured_{n}"]) for n in ("low", "mean", "high"))
                assert low < mean < high
            else:
                assert line["measured_sd"] == ""
            assert (line["published_mean"] != "") == (cell.published is not None)
            assert line["additional"] == ("yes" if cell.row.published is None else "no")


def test_every_number_of_the_committed_pages_is_the_records() -> None:
    """Means and deviations computed here from the records, held against pages and CSV files."""
    shown = 0
    for file in sorted((ROOT / "results").rglob("*.csv")):
        page = file.with_suffix(".md")
        if not page.exists():
            continue  # of a figure
        stored = list(map(json.loads, file.with_suffix(".records.jsonl").read_text().splitlines()))
        metrics = {record["address"]: record["result"]["metrics"] for record in stored}
        text = page.read_text(encoding="utf-8")
        for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
            seeds = {
                key.removeprefix("measured_seed_"): float(value)
                for key, value in line.items()
                if key.startswith("measured_seed_") and value
            }
            known = {
                (address.rpartition("seed-")[2], found[line["metric"]])
                for address, found in metrics.items()
                if f"/{slug(line['row'])}/" in address and line["metric"] in found
            }
            assert set(seeds.items()) <= known, (file, line["row"], line["column"])
            if seeds:
                values = list(seeds.values())
                number = f"{statistics.fmean(values):.2f}"
                if len(values) > 1:
                    number += f" ± {statistics.stdev(values):.2f}"
                assert number in text, (file, line["row"], line["column"])
                shown += 1
    assert shown > 300


def test_a_column_shows_its_own_metric() -> None:
    columns = (Column("MUTAG"), Column("DD", {"dataset": "DD"}, metric="top5"))
    table = make_table(columns=columns)
    records = [
        record_of(cell, 0.0, metrics={"accuracy": 80.0 + cell.seed, "top5": 95.0})
        for cell in table.cells("paper")
    ]
    measured = measure(table, "paper", records)
    assert dict(found(measured, "MMCL", "MUTAG").values) == {0: 80.0, 1: 81.0, 2: 82.0}
    assert dict(found(measured, "MMCL", "DD").values) == {0: 95.0, 1: 95.0, 2: 95.0}
    assert headline(measured).startswith("accuracy in MUTAG; top5 in DD (%), mean ±")


@pytest.mark.parametrize(
    ("environment", "heading"),
    [
        ({"allow_missing": True}, "Runs with missing data files"),
        ({"data": {"MUTAG": "ab" * 32 + " approximate"}}, "Data that are not the published"),
    ],
)
def test_numbers_of_other_data_are_named(environment: dict[str, Any], heading: str) -> None:
    whole, other = records_of("MMCL", "MUTAG", {0: 88.0, 1: 89.0})
    other = dataclasses.replace(other, environment=other.environment | environment)
    assert heading in markdown(measure(TABLE, "paper", [whole, other]))
    assert heading not in markdown(measure(TABLE, "paper", [whole]))


def test_further_metrics_of_the_same_runs_have_tables_of_their_own() -> None:
    table = make_table(also=("knn", "unknown"))
    records = [
        record_of(cell_of("GraphCL", "MUTAG", seed), 0.0, metrics={"accuracy": 1.0, "knn": value})
        for seed, value in {0: 36.0, 1: 37.0, 2: 38.0}.items()
    ]
    records += records_of("MMCL", "MUTAG", MMCL)  # these have no such metric
    (grid,) = further_grids(measure(table, "paper", records))
    assert grid.head == ("method", "MUTAG")
    assert grid.lines == (("GraphCL", "37.00 ± 1.00"),)


def test_missing_numbers_are_counted_by_their_reason(measured: Measured) -> None:
    assert legend_of(measure(TABLE, "paper", [])) == ["(1) 18 of 18 numbers: not run"]
    assert legend_of(measured) == [
        "(1) 6 of 18 numbers: not run",
        "(2) 3 of 18 numbers: data missing; fetch it with: ./reproduce.sh data graph",
    ]


def test_pictures_show_the_numbers_that_they_are_given(tmp_path: Path) -> None:
    here = pictures.Point(2.0, 1.0, 3.5, published=4.0, margin=(-1.0, 1.0))
    panel = pictures.Panel("gains", "points", {"one": [here], "none": []}, rule=0.0)
    picture = pictures.Picture([panel], 1, {"mean": "#000000"}, "published")
    (axis,) = pictures.points(picture).axes
    drawn = {tuple(line.get_xdata()) for line in axis.lines}
    assert drawn == {(1.0, 3.5), (2.0,), (4.0,), (0.0, 0.0), (-1.0, 1.0)}
    file = tmp_path / "a.png"
    pictures.write(file, picture)
    assert json.loads(pictures.shown_by(file))["panels"][0]["lines"]["one"][0]["value"] == 2.0
    before = file.stat().st_mtime_ns
    pictures.write(file, picture)
    assert file.stat().st_mtime_ns == before  # equal numbers are not drawn again
    pictures.write(file, dataclasses.replace(picture, published="as published"))
    assert file.stat().st_mtime_ns != before


def test_a_picture_has_published_means_at_the_paper_s_scale_and_no_interval_of_two_seeds(
    tmp_path: Path,
) -> None:
    columns = tuple(Column(name, {"dataset": name}) for name in ("MUTAG", "DD"))
    trivial = Row("degrees", {"loss": "none"}, baseline=True)
    table = make_table(columns=columns, rows=(*TABLE.rows, trivial))

    def panels(tier: Tier) -> list[dict[str, Any]]:
        records = [record_of(cell, 80.0 + cell.seed) for cell in table.cells(tier)]
        two = [r for r in records if not (r.address.endswith("seed-2") and "/mutag/" in r.address)]
        measured = measure(table, tier, two)
        files.write(tmp_path, measured)
        picture = tmp_path / measured.folder / "table-4.png"
        found: list[dict[str, Any]] = json.loads(pictures.shown_by(picture))["panels"]
        return found

    first, second = panels("paper")
    for panel, low, rule in ((first, True, 80.5), (second, False, 81.0)):
        assert [line[0]["low"] is None for line in panel["lines"].values()] == [low] * 3
        assert panel["rule"] == rule
    assert [line[0]["published"] for line in first["lines"].values()] == [86.8, 88.42, None]
    assert {line[0]["published"] for line in panels("short")[0]["lines"].values()} == {None}
    files.write(tmp_path, measure(TABLE, "paper", RECORDS))  # of few numbers
    assert not (tmp_path / "graph/mmcl/table-4.png").exists()


@pytest.mark.slow
def test_a_record_stays_unless_it_is_replaced(done: Path, tmp_path: Path, at_once: AtOnce) -> None:
    """A visitor's run of a recorded cell changes nothing of the results by itself."""
    shutil.copytree(done / "runs", tmp_path / "runs")
    at_once("report")
    before = {file: file.read_bytes() for file in (tmp_path / "results").rglob("*.*")}
    address = "toy/toy/table-1/plain/left/seed-0"
    shutil.rmtree(run_of(tmp_path / "runs", address))
    at_once("--cell", address)  # another run of equal numbers
    out, _ = at_once("report")
    assert re.search(r"^toy/toy/table-1.*: \d numbers recorded before and run here, too: the", out)
    assert before == {file: file.read_bytes() for file in (tmp_path / "results").rglob("*.*")}
    at_once("report", "--results", "mine")
    assert (tmp_path / "mine/toy/toy/table-1.md").exists()
    out, _ = at_once("report", "--replace")
    assert re.search(rf"{address}: accuracy -?[\d.]+ \(\w+\) is replaced by accuracy ", out)
    file = tmp_path / "results/toy/toy/table-1.records.jsonl"
    assert file.read_bytes() != before[file]
    out, _ = at_once("report", "--replace")
    assert "is replaced" not in out
