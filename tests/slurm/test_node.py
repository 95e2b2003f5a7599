"""Grids on a real Slurm: a private node, made for these tests and stopped after them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.command import cells, reproduce, slurm

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NODE = Path(__file__).with_name("node.sh")
PROGRAMS = ("sbatch", "slurmctld", "slurmd", "munged")
WHERE = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
PATIENCE = 600  # seconds; other tests run beside


@pytest.fixture(scope="module")
def node() -> Iterator[dict[str, str]]:
    """The variables by which Slurm's programs speak to the private node."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=WHERE)]:
        pytest.skip(
            f"needs Slurm, {', '.join(missing)} are missing: "
            "apt-get install slurmctld slurmd slurm-client munge"
        )
    folder = tempfile.mkdtemp(prefix="slurm-")  # short: a socket lies in it
    done = subprocess.run([NODE, "start", folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    try:
        yield {"SLURM_CONF": done.stdout.strip(), "COLUMNS": "200"}
    finally:
        subprocess.run([NODE, "stop", folder], check=True, timeout=60)
        shutil.rmtree(folder)


Call = Callable[..., str]


@pytest.fixture
def call(
    node: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Calls one of Slurm's programs, or in this process the command line with toys.

    What Slurm starts is that of a process of its own, which takes seconds to import torch.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cells, "DOMAINS", ("toy",))
    monkeypatch.setattr(slurm, "MODULE", "toy")
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    for name, value in {**node, "PYTHONPATH": paths}.items():
        monkeypatch.setenv(name, value)

    def call(*words: str, code: int = 0) -> str:
        if words[0] == "toy":
            monkeypatch.setattr(sys, "argv", [*words])
            found = reproduce.main(words[1:])
            out, err = capsys.readouterr()
        else:
            done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
            found, out, err = done.returncode, done.stdout, done.stderr
        assert found == code, f"{words}\n{out}\n{err}"
        assert "Traceback" not in err
        return out + err

    return call


def eventually(what: Callable[[], Any]) -> Any:
    """What ``what`` gives, once it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)
    return found


def queue(call: Call) -> dict[str, str]:
    """By task its state."""
    lines = call("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
    return dict(line.split() for line in lines)


def wait_for_all(call: Call) -> None:
    """Until the queue is empty; what was put back into it begins at once, not after two minutes."""

    def is_empty() -> bool:
        tasks = queue(call)
        for job, state in tasks.items():
            reason = call("squeue", "--noheader", "--format=%r", f"--jobs={job}").strip()
            if state == "PENDING" and reason == "BeginTime":
                call("scontrol", "update", f"JobId={job}", "StartTime=now")
        return not tasks

    eventually(is_empty)


def steps_of(runs: Path) -> dict[Path, list[int]]:
    """By run the steps in its log."""
    return {
        file.parent.relative_to(runs): [
            json.loads(line)["step"] for line in file.read_text().splitlines()
        ]
        for file in runs.rglob("log.jsonl")
    }


def test_a_grid_is_submitted_saves_when_its_time_is_up_goes_on_and_equals_a_plain_run(
    call: Call, tmp_path: Path
) -> None:
    words = ("toy", "toy", "slow", "--row", "plain", "--column", "left", "--seeds", "0,1")
    assert ": 2 tasks of up to " in call(*words, "--slurm", "--array-limit", "1")
    assert "2 cells are queued already" in call(*words, "--slurm")
    runs = tmp_path / "runs"
    assert len(json.loads((runs / ".slurm/jobs.json").read_text())) == 2
    # The first is told that its time is nearly over, saves, and goes back into the queue.
    eventually(lambda: any(len(steps) >= 4 for steps in steps_of(runs).values()))
    (job,) = (job for job, state in queue(call).items() if state == "RUNNING")
    call("scancel", "--signal=USR2", f"{job}.0")
    eventually(lambda: queue(call).get(job) == "PENDING")
    assert len(list(runs.rglob("checkpoint.pt"))) == 1
    assert " 0/2 " in call("toy", "plan", *words[1:])
    # The second is cancelled: it saves, and stays away until it is submitted anew.
    (other,) = eventually(lambda: [j for j, s in queue(call).items() if s == "RUNNING"])
    eventually(lambda: len(steps_of(runs)) == 2)
    call("scancel", other)
    eventually(lambda: other not in queue(call))
    wait_for_all(call)
    said = call("toy", "plan", *words[1:])
    assert " 1/2 " in said
    assert said.endswith("\n1 failed\n")
    assert "submitted job" in call(*words, "--slurm")
    wait_for_all(call)
    assert " 2/2 " in call("toy", "plan", *words[1:])
    call(*words, "--runs", "plain")
    assert steps_of(tmp_path / "plain") == steps_of(runs)
    for file in (tmp_path / "plain").rglob("result.json"):
        plain, ours = (
            json.loads(each.read_text())["metrics"]
            for each in (file, runs / file.relative_to(tmp_path / "plain"))
        )
        assert plain == ours


def test_failures_and_refusals_are_said_in_one_line(call: Call, tmp_path: Path) -> None:
    words = ("toy", "toy", "broken", "--row", "made to fail", "--column", "left", "--seeds", "0")
    call(*words, "--slurm")
    wait_for_all(call)
    said = call("toy", "plan", *words[1:])
    assert said.endswith("\n1 failed\n")
    assert "failed: RuntimeError: made to fail" in said
    for more in (("--partition", "nowhere"), ("--memory", "1000000")):
        said = call(*words, "--slurm", *more, code=2)
        assert said.splitlines()[-1].startswith("error: Slurm refused the job: ")
        assert said.count("\n") == 2
