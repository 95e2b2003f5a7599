"""A run that is made again: the old one is moved aside."""

import json
import os
import shutil
import signal
from pathlib import Path

import filelock
import pytest
from toy.program import AtOnce, start
from toy.tables import run_of

from shared.errors import UserError
from shared.experiment import config, run_folders
from tests.stages.measured import read_records

ADDRESS = "toy/toy/table-1/plain/left/seed-0"


def test_again_runs_anew_and_leaves_the_old_run_beside(
    done: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    run = run_of(tmp_path / "runs", ADDRESS)
    before = {file.name: file.read_bytes() for file in run.glob("*.json")}
    at_once("--cell", ADDRESS, "--again")
    aside = run.with_name(f"{run.name}.1")
    assert {file.name: file.read_bytes() for file in aside.glob("*.json")} == before
    assert (run / "result.json").read_bytes() != before["result.json"]  # of another moment
    metrics = [json.loads((each / "result.json").read_text())["metrics"] for each in (run, aside)]
    assert metrics[0] == metrics[1]
    # One of the two counts.
    at_once("report")
    records = read_records(tmp_path / "results")
    assert [record.address for record in records].count(ADDRESS) == 1


def test_what_again_has_begun_goes_on_without_it(
    done: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    at_once("report", "--results", str(tmp_path / "results"), folder=done)
    words = ("toy", "toy", "--row", "plain", "--column", "left", "--seeds", "0")
    assert "has committed results" in at_once(*words)[0]
    run = run_of(tmp_path / "runs", ADDRESS)
    assert not run.exists()
    at_once(*words, "--again")
    (run / "result.json").unlink()  # as an interrupted one
    assert "1 of 1 cells to run" in at_once("plan", *words)[0]
    at_once(*words)
    assert (run / "result.json").exists()


@pytest.mark.slow
def test_interrupted_while_libraries_are_imported_it_leaves_every_run_where_it_was(
    done: Path, tmp_path: Path
) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json")}
    process = start(tmp_path, "toy", "toy", "--again")
    assert process.stdout is not None
    assert "reading the tables" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75
    assert err in ("interrupted; the same command starts again\n", "")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json")} == before


def test_a_run_is_moved_aside_under_its_lock_to_a_free_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "LOCK_WAIT", 0.1)
    folder = tmp_path / "seed-0-0123456789abcdef"
    for what in ("first", "second"):
        folder.mkdir()
        (folder / "result.json").write_text(what)
        run_folders.archive(folder)
        assert not folder.exists()
    assert (tmp_path / f"{folder.name}.1/result.json").read_text() == "first"
    assert (tmp_path / f"{folder.name}.2/result.json").read_text() == "second"
    assert [config.is_archived(each) for each in (folder, tmp_path / f"{folder.name}.2")] == [
        False,
        True,
    ]
    folder.mkdir()
    with (
        filelock.FileLock(folder / ".lock"),
        pytest.raises(UserError, match="another process is using it"),
    ):
        run_folders.archive(folder)
    assert folder.exists()
