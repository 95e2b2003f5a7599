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
from toy.tables import run_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(__file__).with_name("node.sh")
PROGRAMS = ("sbatch", "slurmctld", "slurmd", "munged")
WHERE = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
PATIENCE = 600  # seconds; other tests run beside


@pytest.fixture(scope="module")
def node() -> Iterator[dict[str, str]]:
    """The environment in which Slurm's programs speak to the private node."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=WHERE)]:
        pytest.skip(
            f"needs Slurm, {', '.join(missing)} are missing: "
            "apt-get install slurmctld slurmd slurm-client munge"
        )
    folder = tempfile.mkdtemp(prefix="slurm-")  # short: a socket lies in it
    done = subprocess.run([NODE, "start", folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    try:
        yield {**os.environ, "SLURM_CONF": done.stdout.strip(), "COLUMNS": "200"}
    finally:
        subprocess.run([NODE, "stop", folder], check=True, timeout=60)
        shutil.rmtree(folder)


Call = Callable[..., str]


@pytest.fixture
def call(node: dict[str, str], tmp_path: Path) -> Call:
    """Calls a program in the test's folder: one of Slurm's, or the command line with toys."""
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"

    def call(*words: str, code: int = 0) -> str:
        if words[0] in ("toy", "shared"):
            words = (sys.executable, "-m", *words)
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**node, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

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


def submission(runs: Path, number: int = 1) -> dict[str, str]:
    """By the address of a cell its task."""
    content = json.loads((runs / f".slurm/{number}/submission.json").read_text())
    return {address: task["job"] for task in content["tasks"] for address in task["cells"]}


def log_of(runs: Path, task: str, number: int = 1) -> str:
    file = runs / f".slurm/{number}/{task}_0_log.out"
    return file.read_text() if file.exists() else ""


def outcome(run: Path) -> dict[str, Any]:
    """All that a run leaves behind but its times, and where and when it took place."""
    result = json.loads((run / "result.json").read_text())
    for name in ("seconds", "finished", "peak_memory_bytes", "sha256"):
        del result[name]
    log = run / "log.jsonl"  # what trains nothing logs nothing
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for line in lines:
        del line["seconds"]
    environment = json.loads((run / "environment.json").read_text())
    same = ("commit", "versions", "lock", "hardware", "arithmetic", "threads", "data")
    return {
        "config": (run / "config.json").read_bytes(),
        "result": result,
        "log": lines,
        "environment": {name: environment[name] for name in same},
    }


def outcomes(runs: Path) -> dict[str, Any]:
    return {
        str(file.parent.relative_to(runs)): outcome(file.parent)
        for file in runs.rglob("result.json")
    }


def test_a_smoke_table_as_an_array_equals_a_plain_run(call: Call, tmp_path: Path) -> None:
    table = ("shared", "vision", "margins", "--table", "9", "--tier", "smoke")
    said = call(*table, "--slurm", "--array-limit", "3")
    runs = tmp_path / "runs"
    tasks = submission(runs)
    assert f"submitted job 1: {len(tasks)} tasks" in said
    every = len(tasks)
    assert every == 4
    # Nothing is submitted twice.
    assert f"{every} cells are in the queue already" in call(*table, "--slurm")
    assert not (runs / ".slurm/2").exists()
    # Whenever that is in the life of these two: before, within or after their training.
    for task, signal in (("1_0", "USR1"), ("1_1", "KILL")):
        eventually(lambda task=task: ": begins" in log_of(runs, task))
        call("scancel", f"--signal={signal}", f"{task}.0")
    wait_for_all(call)
    # Told to stop, or killed by the same signal before its Python listens: put back once.
    told = log_of(runs, "1_0").count("exit code 75")
    kills = runs / ".slurm/1/1_0.kills"
    assert told + (len(kills.read_text().splitlines()) if kills.exists() else 0) == 1
    assert len((runs / ".slurm/1/1_1.kills").read_text().splitlines()) == 1
    assert f"{every} done, 0 queued, 0 running, 0 failed" in call("shared", "status")

    call(*table, "--runs", "plain")
    plain, ours = outcomes(tmp_path / "plain"), outcomes(runs)
    assert set(plain) == set(ours) == set(tasks)
    for address, expected in plain.items():
        assert ours[address] == expected, address
    # The cells are done, for a plain call, too.
    assert f"{every} cells are done already" in call(*table, "--slurm")


def test_tasks_killed_within_their_training_go_on_where_they_were(
    call: Call, tmp_path: Path
) -> None:
    words = ("toy", "toy", "slow", "--row", "plain", "--column", "left", "--seeds", "0,1,2")
    # One at a time, so that none ends while another is looked at.
    job = call(*words, "--slurm", "--array-limit", "1").split("submitted job ")[1].split(":")[0]
    runs = tmp_path / "runs"
    tasks = submission(runs)
    assert len(tasks) == 3
    folders = {task: runs / address for address, task in tasks.items()}

    def steps(task: str) -> int:
        file = folders[task] / "log.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    for number, signal in enumerate(("USR1", "KILL", "TERM")):
        task = f"{job}_{number}"
        eventually(lambda task=task: steps(task) >= 4)
        call("scancel", f"--signal={signal}", f"{task}.0")
        eventually(lambda task=task: queue(call).get(task) == "PENDING")
        assert 4 <= steps(task) < 30
    wait_for_all(call)
    for number in (0, 2):
        assert "interrupted, state saved" in log_of(runs, f"{job}_{number}")
        assert not (runs / f".slurm/1/{job}_{number}.kills").exists()
    assert "interrupted" not in log_of(runs, f"{job}_1")
    call(*words, "--runs", "plain")
    plain = outcomes(tmp_path / "plain")
    assert set(plain) == set(tasks)
    assert outcomes(runs) == plain


def test_failures_and_cancelled_tasks_are_told_and_submitted_anew(
    call: Call, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    words = ("toy", "toy", "broken", "--column", "left", "--seeds", "0", "--slurm")
    call(*words, "--row", "made to fail")
    call("scontrol", "update", "PartitionName=main", "State=DOWN")  # the next waits
    try:
        call(*words, "--row", "better")
        (better,) = submission(runs, 2).values()
        call("scancel", better)
    finally:
        call("scontrol", "update", "PartitionName=main", "State=UP")
    wait_for_all(call)
    said = call("toy", "status")
    assert "0 done, 0 queued, 0 running, 2 failed" in said
    assert "failed: RuntimeError: made to fail" in said
    assert "left no log: it was cancelled before it began, or its node cannot see" in said
    assert json.loads(
        (run_of(runs, "toy/broken/table-1/made-to-fail/left/seed-0") / "failure.json").read_text()
    )

    # Whoever cancels a running task wants it to end: it saves, and is not put back.
    slow = ("toy", "toy", "slow", "--row", "plain", "--column", "left", "--seeds", "0", "--slurm")
    call(*slow)
    ((address, task),) = submission(runs, 3).items()
    eventually(lambda: (runs / address / "log.jsonl").exists())
    call("scancel", task)
    wait_for_all(call)
    assert "0 done, 0 queued, 0 running, 3 failed" in call("toy", "status")
    call(*slow)
    call(*words, "--row", "better")
    wait_for_all(call)
    said = call("toy", "status")
    assert "2 done, 0 queued, 0 running, 1 failed" in said
    assert len((runs / address / "log.jsonl").read_text().splitlines()) == 30


def test_a_node_that_cannot_see_the_runs_is_told(call: Call, tmp_path: Path) -> None:
    """As without a shared file system: the folder is away while the node looks for it."""
    name = os.uname().nodename
    call("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=test")
    runs = tmp_path / "runs"
    call("toy", "toy", "toy", "--row", "plain", "--column", "left", "--seeds", "0", "--slurm")
    runs.rename(tmp_path / "elsewhere")
    call("scontrol", "update", f"NodeName={name}", "State=RESUME")
    wait_for_all(call)
    (tmp_path / "elsewhere").rename(runs)
    said = " ".join(call("toy", "status").split())
    assert "its node cannot see" in said
    assert "put runs on a file system that all nodes share" in said
    assert "1 failed" in said


def test_what_slurm_cannot_do_is_said_in_one_line(call: Call, tmp_path: Path) -> None:
    words = ("toy", "toy", "toy", "--slurm")
    said = call(*words, "--partition", "nowhere", code=2)
    reading, said = said.splitlines()
    assert reading == "toy/toy, paper tier: reading the tables"
    assert said == "error: --partition 'nowhere': this cluster has none; it has: brief, main"
    said = call(*words, "--partition", "brief", "--time", "1:00:00", code=2)
    assert "more than 30:00, the most that partition brief allows; ask for less, or auto" in said
    said = call(*words, "--memory", "1000000", code=2)
    assert said.splitlines()[1].startswith("error: Slurm refused the job: ")
    assert said.count("\n") == 2
    assert not list((tmp_path / "runs/.slurm").glob("[0-9]*"))
    # Estimated at 100 minutes each: with auto it is what the partition allows.
    said = " ".join(call(*words, "--partition", "brief", "--seeds", "0", "--row", "plain").split())
    assert "tasks of up to 30 minutes" in said
    assert "what is not done by then goes on in the queue" in said
    wait_for_all(call)
    assert "2 done, 0 queued, 0 running, 0 failed" in call("toy", "status")
