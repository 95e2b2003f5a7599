"""The one join of cells and records: what counts for a cell, and what the long table says."""

import dataclasses
import json
from pathlib import Path

import pytest
from toy.tables import TABLES

from shared.experiment.frame import ReadRecord, join, load
from shared.experiment.records import Damaged, Record, read_record, record_line
from shared.experiment.tables import Cell
from tests.stages.drawing import finish
from tests.stages.pages import run_page

(TABLE,) = TABLES["toy"]
CELLS = {(cell.row, cell.column, cell.seed): cell for cell in TABLE.cells("paper")}
PLAIN = CELLS["plain", "left", 0]


def run_of(folder: Path, cell: Cell, accuracy: float) -> Record:
    record = read_record(finish(folder, cell, {"accuracy": accuracy, "norm": 2.0}), cell.address)
    assert record is not None
    return record


def commit(results: Path, *records: Record) -> Path:
    file = results / "toy/toy/table-1.records.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(map(record_line, records)))
    return file


def test_a_run_of_this_disk_counts_before_a_committed_record(tmp_path: Path) -> None:
    commit(tmp_path / "results", run_of(tmp_path / "elsewhere", PLAIN, 1.0))
    frame = load([TABLE], results=tmp_path / "results", tiers=("paper",))
    (line,) = [line for line in frame if line.status == "valid"]
    assert (line.cell, line.source and line.source.origin) == (PLAIN, "record")
    run_of(tmp_path / "runs", PLAIN, 3.0)
    for stays, counts in ((False, "run"), (True, "record")):
        places = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
        frame = load([TABLE], **places, tiers=("paper",), records_stay=stays)
        both = [line for line in frame if line.status == "valid"]
        assert {line.source.origin: line.counts for line in both if line.source} == {
            origin: origin == counts for origin in ("run", "record")
        }


def test_the_long_table_has_a_row_for_each_cell_and_metric(tmp_path: Path) -> None:
    record = run_of(tmp_path, PLAIN, 1.0)
    frame = load([TABLE], runs=tmp_path, tiers=("paper",))
    table = frame.dataframe()
    assert len(table) == len(CELLS) + 1  # one has two metrics
    valid = table[table.status == "valid"]
    assert dict(zip(valid.metric, valid.value, strict=True)) == {"accuracy": 1.0, "norm": 2.0}
    assert set(valid.sha) == {record.sha256}
    missing = table[table.status != "valid"]
    assert set(missing.status) == {"missing"}
    assert missing.value.isna().all()
    done = table[table.metric == "accuracy"].groupby(["row", "column"]).value.count()
    assert done["plain", "left"] == 1
    assert done.sum() == 1


def test_records_that_are_not_valid_say_why(tmp_path: Path) -> None:
    record = run_of(tmp_path, PLAIN, 1.0)
    stale = dataclasses.replace(record, config={**record.config, "offset": 9.0})
    infinite = dataclasses.replace(record, result={**record.result, "metrics": {"accuracy": 200.0}})
    stranger = dataclasses.replace(stale, address=record.address.replace("seed-0", "seed-77"))
    lines = join(TABLE, "paper", map(ReadRecord, (stale, infinite, stranger)))
    mine = [line for line in lines if line.cell == PLAIN]
    assert [line.status for line in mine] == ["invalid", "invalid"]
    assert [line.counts for line in mine] == [False, True]
    assert mine[0].why == "stale: measured with another configuration"
    assert mine[1].why == "refused: accuracy is 200, outside -inf to 100 % of variance"
    (undeclared,) = [line for line in lines if line.cell is None]
    assert undeclared.status == "undeclared"
    assert undeclared.record is not None
    assert undeclared.record.address.endswith("seed-77")


def test_a_record_counts_for_each_cell_with_its_configuration(tmp_path: Path) -> None:
    rows = (*TABLE.rows, dataclasses.replace(TABLE.rows[0], label="again", published="plain"))
    table = dataclasses.replace(TABLE, rows=rows, claims=())
    record = run_of(tmp_path, PLAIN, 1.0)
    valid = [line for line in join(table, "paper", [ReadRecord(record)]) if line.status == "valid"]
    assert {line.cell.row for line in valid if line.cell} == {"plain", "again"}
    # Where each has a record of its own, each has its own.
    other = dataclasses.replace(record, address=record.address.replace("/plain/", "/again/"))
    lines = join(table, "paper", [ReadRecord(record), ReadRecord(other)])
    for line in lines:
        if line.status == "valid" and line.cell and line.source:
            assert line.source.record.address == line.cell.address


def test_cells_of_other_seeds_are_joined_where_they_are_given(tmp_path: Path) -> None:
    (cell,) = TABLE.cells("paper", row="better", column="right", seeds=(50,))
    run_of(tmp_path, cell, 1.0)
    assert all(line.status == "missing" for line in load([TABLE], runs=tmp_path))
    (line,) = [line for line in load([TABLE], runs=tmp_path, also=[cell]) if line.record]
    assert (line.cell, line.status) == (cell, "valid")


def test_runs_that_cannot_be_read_are_kept_apart(tmp_path: Path) -> None:
    run_of(tmp_path / "runs", PLAIN, 1.0)
    file = tmp_path / "runs" / PLAIN.folder / "result.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "seconds": 1e6}))
    frame = load([TABLE], runs=tmp_path / "runs", tiers=("paper",))
    ((origin, error),) = frame.damaged
    assert origin == "run"
    assert "SHA-256" in str(error)
    (line,) = [line for line in frame if line.cell == PLAIN]
    assert (line.status, line.why) == ("missing", f"refused: {error}")
    frame.check("record")
    with pytest.raises(Damaged):
        frame.check()


def test_everything_is_read_when_asked_for(tmp_path: Path) -> None:
    (cell,) = TABLE.cells("paper", row="better", column="right", seeds=(50,))
    run_of(tmp_path, cell, 1.0)
    assert load([TABLE], runs=tmp_path).sources == []
    for domain, count in ((None, 1), ("toy", 1), ("graph", 0)):
        found = load([TABLE], runs=tmp_path, everything=True, domain=domain).sources
        assert len(found) == count


def test_the_guide_reads_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    summary = run_page("guide.md")["summary"]
    found = summary.loc["table-4", "MMCL INV, both views", "MUTAG"]
    page = Path("results/graph/mmcl/table-4.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| MMCL INV, both views | **m")]
    assert f"| {found['mean']:.2f} ± {found['std']:.2f}" in row
    assert found["count"] == 20
