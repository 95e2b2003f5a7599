"""From the command line: a loss of a user's own, changed, run again, and shared by two tables."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import filelock
import pytest
from toy.program import AtOnce, start

from shared.command import cells
from shared.errors import UserError
from shared.experiment import config, run_folders

ROOT = Path(__file__).resolve().parents[2]
FILES = ("own", "my_losses", "his_losses")
LOSS = """\
import torch

SCALE = 1.0


def loss(pairs, similarity):
    return torch.full((len(similarity),), SCALE)
"""
DOMAIN = """\
import dataclasses
from dataclasses import dataclass

import torch

import his_losses
import my_losses
from shared import Objective, term, two_views
from shared.experiment.domain import Domain, Experiment
from shared.experiment.tables import Column, Published, Row, Table


@dataclass(frozen=True)
class Config:
    objective: Objective = Objective(term(my_losses.loss))
    seed: int = 0
    protocol: str = "v1"

    def reduced(self):
        return self


def run(config, run):
    pairs = two_views(torch.eye(2), torch.eye(2))
    return {"loss": float(config.objective.build(dim=2)(pairs)[0])}


def table(name, *rows):
    return Table(
        domain="own",
        paper="own",
        name=name,
        title="Losses",
        section="none",
        metric="loss",
        unit="points of 1000",
        protocol="v1",
        config=Config(),
        rows=rows,
        columns=(Column("ones"),),
        seeds={"paper": (0,)},
        published=Published("", "", (), {}),
    )


MINE, HIS = (
    Row(name, {"objective": Objective(term(module.loss))})
    for name, module in (("mine", my_losses), ("his", his_losses))
)
DOMAIN = Domain(
    name="own",
    tables={"own": (table("table-1", MINE, HIS), table("table-2", MINE))},
    experiments=(Experiment(Config, run),),
    datasets=lambda: (),
    fetch=lambda name, data_root: None,
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A domain with two losses of one name in two files."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("from own.tables import DOMAIN\n")
    program = (ROOT / "tests/toy/__main__.py").read_text()
    (tmp_path / "own/__main__.py").write_text(program.replace("toy", "own"))
    (tmp_path / "own/tables.py").write_text(DOMAIN)
    (tmp_path / "my_losses.py").write_text(LOSS)
    (tmp_path / "his_losses.py").write_text(LOSS.replace("1.0", "7.0"))
    return tmp_path


@pytest.fixture
def call(
    folder: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """The command line with that domain alone, whose files are imported anew at each call."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(cells, "DOMAINS", ("own",))
    written: dict[Path, str] = {}

    def forget() -> None:
        for name in [each for each in sys.modules if each.split(".")[0] in FILES]:
            del sys.modules[name]
        there = {file: file.read_text() for file in folder.glob("*.py")}
        if there != written:
            forkserver._forkserver._stop()  # cells are forked of it
            written.clear()
            written.update(there)

    def call(*words: str) -> str:
        forget()
        return at_once(*words, folder=folder)[0]

    yield call
    written.clear()
    forget()


def numbers(folder: Path) -> dict[Path, float]:
    """The number of each finished run, those that were moved aside included."""
    return {
        file.parent.relative_to(folder): json.loads(file.read_text())["metrics"]["loss"]
        for file in sorted((folder / "runs").rglob("result.json"))
    }


@pytest.mark.slow
def test_a_loss_is_known_by_its_source_and_tables_share_its_run(
    folder: Path, call: Callable[..., str]
) -> None:
    call("own", "own")
    # Two functions of one name are two functions; two tables with one of them have one run.
    first = numbers(folder)
    assert sorted(first.values()) == [1.0, 7.0]
    assert all(each.parts[:3] == ("runs", "own", "v1") for each in first)
    (mine,) = (each for each, number in first.items() if number == 1.0)
    assert mine.name.startswith("my-losses-loss-seed-0-")
    assert "3 cells done already" in call("own", "own")
    content = {file: file.read_bytes() for file in (folder / mine).rglob("*.json")}

    (folder / "my_losses.py").write_text(LOSS.replace("SCALE)", "3 * SCALE)"))
    call("own", "own")  # what was changed is another loss, and runs beside the old run
    assert sorted(numbers(folder).values()) == [1.0, 3.0, 7.0]
    call("own", "own", "--row", "mine", "--again")
    before = numbers(folder)
    assert sorted(before.values()) == [1.0, 3.0, 3.0, 7.0]
    assert {file: file.read_bytes() for file in (folder / mine).rglob("*.json")} == content

    # Both tables have the number; what lies aside and what the old loss made is in neither.
    call("report")
    for table, losses in ((1, [3.0, 7.0]), (2, [3.0])):
        file = folder / f"results/own/own/table-{table}.records.jsonl"
        lines = map(json.loads, file.read_text().splitlines())
        assert sorted(line["result"]["metrics"]["loss"] for line in lines) == losses

    # Ctrl-C while libraries are imported: one line, 75, and every run is where it was.
    process = start(folder, "own", "own", "--again", module=("own",))
    assert process.stdout is not None
    assert "reading the tables" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75
    assert err in ("interrupted; the same command starts again\n", "")
    assert numbers(folder) == before


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
