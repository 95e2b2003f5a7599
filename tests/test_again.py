"""From the command line: a loss of a user's own, changed, run again, and taken over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from shared.command import domains, reproduce
from shared.errors import UserError
from shared.experiment import runs

ROOT = Path(__file__).resolve().parents[1]
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
CELL = Path("runs/own/own/table-1/mine/ones/seed-0")
SECOND = Path("runs/own/own/table-2/mine/ones/seed-0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A domain with two losses of one name in two files."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("from own.tables import DOMAIN\n")
    (tmp_path / "own/tables.py").write_text(DOMAIN)
    (tmp_path / "my_losses.py").write_text(LOSS)
    (tmp_path / "his_losses.py").write_text(LOSS.replace("1.0", "7.0"))
    return tmp_path


def call(folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    program = (
        "import sys; from shared.command import domains, reproduce; domains.DOMAINS = ('own',); "
        "sys.exit(reproduce.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def number(run: Path) -> float:
    return float(json.loads((run / "result.json").read_text())["metrics"]["loss"])


@pytest.mark.slow
def test_a_changed_loss_is_refused_and_run_again_beside_the_old_run(folder: Path) -> None:
    out, _ = call(folder, "own", "own")
    # Two functions of one name are two functions: each cell has its own number.
    assert number(folder / CELL) == 1.0
    assert number(folder / "runs/own/own/table-1/his/ones/seed-0") == 7.0
    # An equal run of another table is taken over, and the line says so.
    address, second = (str(each.relative_to("runs")) for each in (CELL, SECOND))
    assert f"{second}: taken over from {address}: loss 1 (" in out
    assert out.count("taken over") == 1
    before = {file: file.read_bytes() for file in (folder / "runs").rglob("*.json")}

    (folder / "my_losses.py").write_text(LOSS.replace("SCALE)", "3 * SCALE)"))
    _, err = call(folder, "own", "own", code=2)
    (line,) = err.splitlines()
    assert line.startswith(f"error: {CELL} holds a run with another configuration (objective.loss.")
    words = line.split("objective.loss.function: ")[1].split(")")[0].split()
    assert words[:3] == ["my_losses.loss", "with", "source"]
    assert [words[4], words[6]] == ["there,", "here"]
    assert words[3] != words[5]
    assert {len(words[3]), len(words[5])} == {12 + len("...")}
    assert line.endswith("--again, or choose another folder with --runs")
    assert {file: file.read_bytes() for file in (folder / "runs").rglob("*.json")} == before

    out, _ = call(folder, "own", "own", "--row", "mine", "--again")
    assert f"2 runs were moved aside: {CELL}.1, ..." in out
    assert [number(folder / each) for each in (CELL, SECOND)] == [3.0, 3.0]
    for cell in (CELL, SECOND):
        aside = folder / f"{cell}.1"
        assert number(aside) == 1.0
        for file in aside.rglob("*.json"):
            assert file.read_bytes() == before[folder / cell / file.name]

    # The run aside is no cell, and the table says what was taken over.
    call(folder, "report")
    lines = (folder / "results/own/own/table-1.records.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["result"]["metrics"]["loss"] for line in lines) == [3.0, 7.0]
    heading = "**Taken over from runs of an equal configuration**"
    written = (folder / "results/own/own/table-2.md").read_text()
    assert f"{heading}\n\n- mine: 1 from own/own/table-1\n" in written
    assert heading not in (folder / "results/own/own/table-1.md").read_text()
    pages = [page.read_text() for page in (folder / "results/site").rglob("*.html")]
    assert sum(page.count(f"taken over from the equal run {address}") for page in pages) == 1

    # What is to run anew is not taken over from a run that was there before.
    out, _ = call(folder, "own", "own", "--table", "2", "--again")
    assert "taken over" not in out
    assert "run_at" not in json.loads((folder / SECOND / "environment.json").read_text())


def test_a_run_aside_is_no_cell_and_a_plan_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(domains, "DOMAINS", (*domains.DOMAINS, "toy"))
    cell = Path("runs/toy/toy/table-1/plain/left/seed-0")
    cell.mkdir(parents=True)
    assert reproduce.main(["toy", "toy", "--again", "--plan"]) == 2
    text = "error: --again moves runs aside, --plan touches nothing; leave one of them out\n"
    assert capsys.readouterr().err == text
    assert cell.exists()
    assert reproduce.main(["--cell", f"{cell.relative_to('runs')}.1"]) == 2
    assert "a cell is addressed as" in capsys.readouterr().err


def test_a_run_is_moved_aside_under_its_lock_to_a_free_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LOCK_WAIT", 0.1)
    folder = tmp_path / "seed-0"
    for what in ("first", "second"):
        folder.mkdir()
        (folder / "result.json").write_text(what)
        runs.set_aside(folder)
        assert not folder.exists()
    assert (tmp_path / "seed-0.1/result.json").read_text() == "first"
    assert (tmp_path / "seed-0.2/result.json").read_text() == "second"
    assert [runs.is_aside(each) for each in (folder, tmp_path / "seed-0.2")] == [False, True]
    folder.mkdir()
    with (
        filelock.FileLock(folder / ".lock"),
        pytest.raises(UserError, match="another process is at work"),
    ):
        runs.set_aside(folder)
    assert folder.exists()
