"""An array job on a real Slurm: a private node, made for this test and stopped after it."""

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

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NODE = Path(__file__).with_name("node.sh")
EXAMPLE = ROOT / "docs/examples/array.sbatch"
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
# What the example starts here: the command line with toys.
SCRIPT = f"""#!/bin/bash
export PYTHONPATH={ROOT}:{ROOT / "tests"}
exec {sys.executable} -m toy "$@"
"""


@pytest.fixture
def call(node: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls a program in a folder with a ``reproduce.sh``; what it prints."""
    monkeypatch.chdir(tmp_path)
    for name, value in node.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "reproduce.sh").write_text(SCRIPT)
    (tmp_path / "reproduce.sh").chmod(0o755)

    def call(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

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


def stop_one(call: Call, runs: Path, begun: int) -> None:
    """Signal the task that runs, once so many runs have done four steps."""
    eventually(lambda: sum(len(steps) >= 4 for steps in steps_of(runs).values()) >= begun)
    (job,) = eventually(lambda: [job for job, state in queue(call).items() if state == "RUNNING"])
    call("scancel", "--batch", "--signal=TERM", job)
    eventually(lambda: queue(call).get(job) == "PENDING")
    assert list(runs.rglob("checkpoint.pt"))


def test_tasks_save_when_their_time_is_up_go_on_and_equal_plain_runs(
    call: Call, tmp_path: Path
) -> None:
    """By the example of docs/clusters.md: a cell of a table, and one beside a row of one's own."""
    suite, choice = "./reproduce.sh", ("toy", "slow", "--column", "left")
    lines = call(suite, "plan", *choice, "--row", "plain", "--seeds", "0", "--cells")
    assert lines == "--cell toy/slow/table-1/plain/left/seed-0\n"
    own = ("compare", *choice, "--row", "plain", "--row", "plain:steps=15", "--seeds", "1")
    lines += call(suite, "plan", *own, "--cells")
    (tmp_path / "cells").write_text(lines)
    assert len(lines.splitlines()) == 2
    call("sbatch", "--array=1-2%1", str(EXAMPLE), "cells", "--threads", "1")
    runs = tmp_path / "runs"
    # Each is told that its time is nearly over, saves, and goes back into the queue.
    stop_one(call, runs, 1)
    stop_one(call, runs, 2)
    wait_for_all(call)
    log = "".join(file.read_text() for file in tmp_path.glob("*.log"))
    assert log.count("interrupted; rerun the same command") == 2
    assert call(suite, "plan", *choice, "--row", "plain", "--seeds", "0,1", "--cells") == ""
    assert call(suite, "plan", *own, "--cells") == ""
    call(suite, *choice, "--row", "plain", "--seeds", "0,1", "--runs", "plain")
    call(suite, *own, "--runs", "plain")
    assert steps_of(tmp_path / "plain") == steps_of(runs)
    results = [*(tmp_path / "plain").rglob("result.json")]
    assert len(results) == 3
    for file in results:
        ours = runs / file.relative_to(tmp_path / "plain")
        plain, resumed = (json.loads(each.read_text())["metrics"] for each in (file, ours))
        assert plain == resumed
