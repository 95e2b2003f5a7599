"""Whether what a run left behind is believed: edited, incomplete and impossible results."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy.tables import TABLES
from toy.train import measure as train

from shared.experiment.frame import impossible
from shared.experiment.records import (
    Damaged,
    Record,
    content_hash,
    read_failure,
    read_record,
    record_line,
)
from shared.experiment.run import Run
from shared.experiment.run_folders import check_config, record_failure
from tests.stages.errors import error_of
from tests.stages.measured import measure, read_records

TABLE = TABLES["toy"][0]
(CELL,) = TABLE.cells(row="plain", column="left", seeds=[0])


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    with Run(folder, CELL.config, tier="paper") as run:
        run.record_data(toys="ab" * 32)
        run.finish(train(run.config, run))
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def record(finished: Path) -> Record:
    read = read_record(finished, CELL.address)
    assert read is not None
    return read


def test_a_finished_run_carries_the_hash_of_its_files(folder: Path, record: Record) -> None:
    config, environment, result = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("config", "environment", "result")
    )
    assert result["sha256"] == record.sha256 == content_hash(config, environment, result)
    assert "sha256" not in record.result
    # Written out from the definition, so that old hashes stay what they are.
    known = content_hash({"b": 1, "a": 0.1}, {"run_at": "x"}, {"sha256": "y", "z": None})
    assert known == "8fae3172a423c83a063710746a9a563af319a8e1ec975f28b096843d00699f73"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("result", lambda result: result["metrics"].update(accuracy=180.0)),
        ("result", lambda result: result.update(sha256="0" * 64)),
        ("config", lambda config: config.update(steps=4)),
        ("environment", lambda environment: environment["data"].update(toys="cd" * 32)),
    ],
)
def test_an_edited_run_is_refused(
    folder: Path, file: str, change: Callable[[dict[str, Any]], None]
) -> None:
    edit(folder / f"{file}.json", change)
    with pytest.raises(Damaged, match=r"run/result\.json: its SHA-256"):
        read_record(folder, CELL.address)


def test_going_into_a_finished_run_again_leaves_it_valid(folder: Path, record: Record) -> None:
    with Run(folder, CELL.config, workers=3) as run:
        run.record(renderer="another")
        assert read_record(folder, CELL.address) == record
        metrics = train(run.config, run)
        assert read_record(folder, CELL.address) == record
        run.finish(metrics)
    again = read_record(folder, CELL.address)
    assert again is not None
    assert again.sha256 != record.sha256
    assert again.environment["workers"] == 3
    assert again.environment["facts"] == {"renderer": "another"}
    assert again.result["metrics"] == record.result["metrics"]


@pytest.mark.parametrize("name", ["config", "environment", "result"])
@pytest.mark.parametrize(
    "text", ["", '{"metrics": {"accuracy": 1', '{"metrics": {"accuracy": NaN}}', "[]", "\xff"]
)
def test_a_broken_file_is_named_in_one_line(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.json").write_text(text, encoding="latin-1")
    assert f"{name}.json is not" in error_of(lambda: read_record(folder, CELL.address), Damaged)
    if name == "config":
        assert "config.json is not" in error_of(lambda: check_config(folder, CELL.config), Damaged)


@pytest.mark.parametrize(
    ("name", "key"),
    [("result", "metrics"), ("result", "tier"), ("environment", "commit"), ("environment", "data")],
)
def test_a_lacking_key_or_file_is_named(folder: Path, name: str, key: str) -> None:
    edit(folder / f"{name}.json", lambda content: content.pop(key))
    with pytest.raises(Damaged, match=rf"run/result\.json: {name} lacks '{key}'"):
        read_record(folder, CELL.address)
    (folder / "environment.json").unlink()
    with pytest.raises(Damaged, match=r"environment\.json is missing"):
        read_record(folder, CELL.address)


@pytest.mark.parametrize("text", ["[]", '{"why": "tor'])
def test_a_failure_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    record_failure(tmp_path, "the loss is not finite", "")
    assert read_failure(tmp_path) == "the loss is not finite"
    (tmp_path / "failure.json").write_text(text)
    with pytest.raises(Damaged, match=r"failure\.json"):
        read_failure(tmp_path)


def write(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "table-1.records.jsonl"
    file.write_text("".join(f"{line.rstrip()}\n" for line in lines), encoding="latin-1")
    return file


def changed_line(record: Record, change: Callable[[dict[str, Any]], None]) -> str:
    content = json.loads(record_line(record))
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda line: line["result"]["metrics"].update(accuracy=99.0), "seed-0: .* was altered"),
        (lambda line: line["config"].update(offset=3.0), "seed-0: .* was altered"),
        (lambda line: line.update(sha256="0" * 64), "seed-0: .* was altered"),
        (lambda line: line.pop("sha256"), "a record lacks 'sha256'"),
        (lambda line: line["result"].pop("metrics"), "result lacks 'metrics'"),
        (lambda line: line["result"]["metrics"].update(accuracy=float("nan")), "not JSON"),
    ],
)
def test_an_edited_or_incomplete_record_is_refused_by_line(
    tmp_path: Path, record: Record, change: Callable[[dict[str, Any]], None], fault: str
) -> None:
    write(tmp_path, record_line(record), changed_line(record, change))
    with pytest.raises(Damaged, match=rf"table-1\.records\.jsonl, line 2: .*{fault}"):
        read_records(tmp_path)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", ["[]", '{"address": "a"', "null", "\xff", f'{{"a": {DEEP}}}'])
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, record: Record, text: str) -> None:
    write(tmp_path, record_line(record), text)
    with pytest.raises(Damaged, match="line 2: not "):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("unit", "value", "fault"),
    [
        ("%", 0.0, None),
        ("%", 100.00000763, None),  # a mean of hundreds in float32
        ("%", 100.01, "accuracy is 100.01, outside 0 to 100 %"),
        ("%", -0.5, "accuracy is -0.5, outside 0 to 100 %"),
        ("% of variance", -731.0, None),
        ("points of 1000", 1000.0, None),
        ("points of 1000", 1180.0, "accuracy is 1180, outside 0 to 1000 points of 1000"),
        ("%", float("nan"), "accuracy is NaN, not a finite number"),
        ("% of variance", float("-inf"), "accuracy is -Infinity, not a finite number"),
        ("%", "90", 'accuracy is "90", not a finite number'),
        ("%", True, "accuracy is true, not a finite number"),
        ("%", None, "accuracy is null, not a finite number"),
    ],
)
def test_a_metric_has_a_range(unit: str, value: object, fault: str | None) -> None:
    assert impossible("accuracy", value, unit) == fault


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"accuracy": 180.0}, "refused: accuracy is 180, outside -inf to 100 % of variance"),
        ({"norm": "nan"}, 'refused: norm is "nan", not a finite number'),
    ],
)
def test_an_impossible_number_does_not_count(
    record: Record, metrics: dict[str, object], why: str
) -> None:
    """Also without a hash: a run of older code whose result was edited."""
    table = dataclasses.replace(TABLE, also=("norm",))
    result = record.result | {"metrics": record.result["metrics"] | metrics}
    edited = dataclasses.replace(record, result=result, sha256=None)
    for some, missing in (([record], {}), ([edited], {0: why})):
        cell = measure(table, "paper", some).cells[0][0]
        assert {seed: text for seed, text in cell.missing.items() if seed == 0} == missing
