"""Finished runs made elsewhere: what ``report --from`` takes, and what it refuses."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from toy.program import AtOnce
from toy.tables import TABLES, run_of

from shared.command import collect, verify
from shared.command.cells import Places
from shared.errors import UserError
from shared.experiment.records import content_hash, read_records

ALL = [table for some in TABLES.values() for table in some]
ONE = list(TABLES["toy"])  # other papers have equal configurations
PLACE = "toy/toy/table-1/plain/left"
HEAD = subprocess.run(
    ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
).stdout.strip()


def change(folder: Path, *, seal: bool = True, **environment: Any) -> None:
    """Other facts in the run's environment; with the hash that belongs to them, or not."""
    files = {name: folder / f"{name}.json" for name in ("config", "environment", "result")}
    config, there, result = (json.loads(file.read_text()) for file in files.values())
    there |= environment
    if seal:
        result["sha256"] = content_hash(config, there, result)
    files["environment"].write_text(json.dumps(there))
    files["result"].write_text(json.dumps(result))


@pytest.fixture
def source(done: Path, tmp_path: Path) -> Path:
    """A folder of runs, as a clean commit of this history would have left it."""
    for seed in range(3):
        run = run_of(Path("runs"), f"{PLACE}/seed-{seed}")
        copy = tmp_path / "brought" / run.relative_to("runs")
        shutil.copytree(done / run, copy)
        change(copy, commit=HEAD, dirty=False)
    return tmp_path / "brought"


def taken(source: Path, tmp_path: Path) -> tuple[set[str], list[str]]:
    places = Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")
    records, refused = collect.collected(source, ONE, places)
    return {record.address for record in records}, refused


def test_runs_of_this_history_enter_the_results(
    source: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    out, err = at_once("report", "--from", "brought")
    assert "taken from brought, 0 refused" in out
    assert err == ""
    records = read_records(tmp_path / "results")
    addresses = {record.address for record in records}
    assert addresses > {f"{PLACE}/seed-{seed}" for seed in range(3)}
    assert "toy/partial/table-3/plain/left/seed-0" in addresses  # of an equal configuration
    assert verify.check(ALL, tmp_path / "results", tmp_path / "none").faults == ()
    assert not (tmp_path / "runs").exists()  # nothing is copied there
    # The same again changes nothing; another record of a cell is refused, and the old one stays.
    change(run_of(source, f"{PLACE}/seed-1"), started="2026-01-01T00:00:00+00:00")
    out, err = at_once("report", "--from", "brought", code=1)
    assert f"{PLACE}/seed-1 has another record, which stays" in err
    assert read_records(tmp_path / "results") == records


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"commit": "HEAD"}, "names no commit but 'HEAD'"),
        ({"commit": "0" * 40}, "commit 000000000000 is not in the history checked out here"),
        ({"dirty": True}, "was not measured at a clean commit"),
        ({"cores": 3, "seal": False}, "its SHA-256 is not that of the run's"),
    ],
)
def test_a_run_that_cannot_be_believed_is_refused(
    changes: dict[str, Any], why: str, source: Path, tmp_path: Path
) -> None:
    change(run_of(source, f"{PLACE}/seed-1"), **changes)
    addresses, refused = taken(source, tmp_path)
    assert addresses == {f"{PLACE}/seed-0", f"{PLACE}/seed-2"}
    (fault,) = refused
    assert why in fault
    assert "\n" not in fault


def test_a_run_without_a_hash_or_of_no_cell_is_refused(source: Path, tmp_path: Path) -> None:
    file = run_of(source, f"{PLACE}/seed-0") / "result.json"
    result = json.loads(file.read_text())
    del result["sha256"]
    file.write_text(json.dumps(result))
    run_of(source, f"{PLACE}/seed-1").rename(source / "toy/moved")
    addresses, refused = taken(source, tmp_path)
    assert addresses == {f"{PLACE}/seed-2"}
    assert any("lacks 'sha256'" in fault for fault in refused)
    assert any("toy/moved: belongs to no cell that is declared today" in fault for fault in refused)


def test_what_is_no_folder_of_runs_is_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no such folder; name a folder of runs"):
        taken(tmp_path / "nowhere", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no finished run"):
        taken(tmp_path / "empty", tmp_path)
    monkeypatch.setattr(collect, "LARGEST", 100)
    with pytest.raises(UserError, match="at most 0"):
        taken(source, tmp_path)
