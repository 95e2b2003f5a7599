"""What can be said of grids and devices without a cluster: refusals, states, placement."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from toy.tables import TABLES, run_of

from shared.command import pool, reproduce, slurm
from shared.command.places import Places
from shared.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
AtOnce = Callable[..., tuple[str, str]]


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("10:30", 11),
        ("1:30:00", 90),
        ("0:00:01", 1),
        ("2-12", 3600),
        ("2-12:30", 3630),
        ("1-00:00:00", 1440),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, minutes: int) -> None:
    assert slurm.parse_time(text) == minutes


@pytest.mark.parametrize("text", ["3 hours", "-5", "1:2:3:4", "x-1", "", "0", "0:00:00"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^--time '.*' is no time"):
        slurm.parse_time(text)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--partition", "main"), "--partition is of --slurm; add that, or leave --partition out"),
        (("--array-limit", "3"), "--array-limit is of --slurm; add that, or leave"),
        (("--slurm", "--gpus", "0"), "'0' is not a positive number"),
        (("--slurm", "--memory", "much"), "'much' is not a positive number"),
        (("--slurm", "--time", "soon"), "--time 'soon' is no time of Slurm; write minutes"),
        (("--slurm",), "sbatch is not on the PATH; submit from a login node of the cluster, or"),
        (("--executor", "local", "--gpus", "99"), "--gpus 99: this machine has "),
    ],
)
def test_options_that_cannot_be(
    command: AtOnce, words: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if "soon" in words:
        monkeypatch.setattr(slurm, "_check_programs", lambda executor: None)
    _, err = command("toy", "toy", *words, code=2)
    assert error in err
    assert "Traceback" not in err
    assert not list(Path("runs").rglob("submission.json"))


def test_submitit_that_is_not_there_is_named(
    command: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    _, err = command("toy", "toy", "--slurm", code=2)
    assert err == ("error: submitit is not installed; install it with: pip install -e '.[slurm]'\n")


def test_status_of_nothing(command: AtOnce) -> None:
    _, err = command("status", code=2)
    assert err == (
        "error: nothing was submitted from runs/; submit with --slurm, or name the folder with "
        "--runs\n"
    )


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AtOnce:
    """The command line in this process, in a folder of its own, with the toy domain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shared.command.domains.DOMAINS", ("toy",))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str, code: int = 0) -> tuple[str, str]:
        assert reproduce.main(words) == code
        out, err = capsys.readouterr()
        return out, err

    return call


# ---- programs of Slurm that are scripts ---------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins for Slurm's programs: what they print lies beside them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    says = {
        "sinfo": "main*|infinite\nshort|2:00:00\n",
        "scontrol": "MaxArraySize            = 3\n",
        "squeue": "",
        "srun": "",
        "sbatch": "",
    }
    for name, text in says.items():
        (folder / f"{name}.txt").write_text(text)
        program = folder / name
        program.write_text(
            f'#!/bin/bash\necho "$@" >>{folder}/{name}.calls\ncat {folder}/{name}.txt\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_an_unknown_partition_an_array_too_large_and_a_refusal(
    cluster: Path, command: AtOnce
) -> None:
    words = ("toy", "toy", "--slurm", "--time", "30", "--memory", "1")
    _, err = command(*words, "--partition", "gpu", code=2)
    assert err == "error: --partition 'gpu': this cluster has none; it has: main, short\n"
    _, err = command(*words, code=2)
    assert err.startswith("error: 9 tasks, and an array of this cluster holds 3; submit one table")
    (cluster / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: no account' >&2\nexit 1\n")
    _, err = command(*words, "--row", "plain", "--column", "left", code=2)
    assert err == "error: Slurm refused the job: sbatch: error: no account\n"
    (cluster / "sinfo").write_text("#!/bin/bash\necho 'Unable to contact' >&2\nexit 1\n")
    _, err = command(*words, code=2)
    assert err == "error: sinfo failed (Unable to contact); the same command tries again\n"
    assert not list(Path("runs").rglob("submission.json"))
    assert [path.name for path in Path("runs/.slurm").iterdir()] == [".lock"]


def test_what_is_submitted_and_what_is_not_submitted_again(cluster: Path, command: AtOnce) -> None:
    (cluster / "sbatch.txt").write_text("Submitted batch job 7\n")
    words = ("toy", "costly", "--slurm", "--seeds", "0", "--column", "left", "--threads", "2")
    # Two tables of the same two rows: equal cells are one task.
    out, _ = command(*words, "--gpus", "1", "--partition", "short", "--array-limit", "2")
    # As planned: the toys are estimated at 100 and 102 minutes, and 3 GB.
    assert (
        "submitted job 7: 2 tasks of up to 120 minutes and 6 GB (the most that partition short "
        "allows; what is not done by then goes on in the queue) for 4 cells" in out
    )
    script = Path("runs/.slurm/1/7_submission.sh").read_text()
    for line in (
        "--array=0-1%2",
        "--time=120",
        "--mem=6144M",
        "--partition=short",
        "--gpus-per-node=1",
        "--cpus-per-task=2",
        f"--signal=USR2@{slurm.NOTICE}",
        "--requeue",
        "--job-name=toy-costly-table-1",
    ):
        assert f"#SBATCH {line}\n" in script
    assert " --cpus-per-task=2 " in script.split("\nsrun ")[1]
    content = json.loads(Path("runs/.slurm/1/submission.json").read_text())
    assert [(task["job"], list(task["cells"])) for task in content["tasks"]] == [
        (
            f"7_{number}",
            [f"toy/costly/table-{table}/{row}/left/seed-0" for table in (1, 2)],
        )
        for number, row in enumerate(("plain", "better"))
    ]
    # One runs, the other waits; an equal cell of another paper waits for them.
    (cluster / "squeue.txt").write_text("7_0|RUNNING|None\n7_1|PENDING|Resources\n")
    out, _ = command(*words)
    assert "4 cells are in the queue already" in out
    assert "nothing to submit" in out
    out, _ = command("toy", "toy", *words[2:])
    assert "2 cells are in the queue already" in out
    log = run_of(Path("runs"), "toy/costly/table-1/plain/left/seed-0") / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    out, _ = command("status")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "queued 7_1 toy/costly/table-1/better/left/seed-0 PENDING, Resources" in lines
    assert "running 7_0 toy/costly/table-1/plain/left/seed-0 step 2, loss 0.25" in lines
    assert lines[-1] == "0 done, 2 queued, 2 running, 0 failed"
    # They end without a result, one with a word and one without a log: both go again.
    (cluster / "squeue.txt").write_text("")
    Path("runs/.slurm/1/7_0_0_log.out").write_text(
        "submitit INFO - Starting\nslurmstepd: error: DUE TO TIME LIMIT ***\nsubmitit INFO - x\n"
    )
    out, _ = command("status")
    assert out.count("slurmstepd: error: DUE TO TIME LIMIT ***") == 2
    assert out.count("left no log: it was cancelled before it began, or its node cannot see") == 2
    assert "0 done, 0 queued, 0 running, 4 failed" in out
    (cluster / "sbatch.txt").write_text("Submitted batch job 9\n")
    assert "submitted job 9: 2 tasks" in command(*words)[0]
    # A controller that has forgotten the only job that is asked for has ended it.
    (cluster / "squeue").write_text("#!/bin/bash\necho 'Invalid job id specified' >&2\nexit 1\n")
    assert "4 failed" in command("status")[0]


# ---- a task, without an executor ----------------------------------------------------------------


def task_process(folder: Path, *addresses: str, again: int = 75) -> subprocess.Popen[str]:
    program = f"""
from shared.command.slurm import Task
Task({addresses!r}, ("--runs", "runs", "--jobs", "1"), "toy", {again})()
"""
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "SUITE_COMMAND": "./reproduce.sh toy slow"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR2, 144)])
def test_a_task_that_is_told_to_stop_saves_and_says_so(
    tmp_path: Path, number: int, code: int
) -> None:
    address = "toy/slow/table-1/plain/left/seed-0"
    run = tmp_path / "runs" / address
    process = task_process(tmp_path, address, again=144)
    while not (run / "log.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == code
    assert "interrupted, state saved" in out
    assert (run / "checkpoint.pt").exists()
    assert not (run / "result.json").exists()


@pytest.mark.slow
def test_a_task_runs_the_first_cell_and_hands_it_to_its_equals_and_fails_as_they_do(
    tmp_path: Path,
) -> None:
    equal = [f"toy/costly/table-{table}/plain/left/seed-0" for table in (1, 2)]
    out, _ = (process := task_process(tmp_path, *equal)).communicate(timeout=240)
    assert process.returncode == 0
    assert f"{equal[1]}: taken over from {equal[0]}" in out
    environment = json.loads((tmp_path / "runs" / equal[0] / "environment.json").read_text())
    assert environment["command"].endswith(f"--cell {equal[0]}")
    failing = "toy/broken/table-1/made-to-fail/left/seed-0"
    (process := task_process(tmp_path, failing)).communicate(timeout=240)
    assert process.returncode == 1
    assert "made to fail" in (tmp_path / "runs" / failing / "failure.json").read_text()


# ---- the same tasks on this machine -------------------------------------------------------------


def local(folder: Path, *words: str) -> subprocess.Popen[str]:
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    return subprocess.Popen(
        [sys.executable, "-m", "toy", "toy", *words, "--executor", "local", "--array-limit", "2"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_local_executor_runs_the_same_tasks_and_is_interrupted_and_goes_on(
    tmp_path: Path,
) -> None:
    words = ("slow", "--row", "plain", "--column", "left", "--seeds", "0,1,2")
    process = local(tmp_path, *words)
    runs = tmp_path / "runs/toy/works"
    while len(list(runs.glob("*/log.jsonl"))) < 2:
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 75, out + err
    assert "interrupted; the same command goes on from here" in out
    assert len(list(runs.glob("*/checkpoint.pt"))) == 2
    assert not list(runs.glob("*/result.json"))
    process = local(tmp_path, *words)
    out, err = process.communicate(timeout=480)
    assert process.returncode == 0, out + err
    for run in runs.iterdir():
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 31))
    process = local(tmp_path, "broken", "--row", "made to fail", "--column", "left", "--seeds", "0")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert err.splitlines()[-1].endswith("/seed-0: failed: RuntimeError: made to fail")


def test_local_tasks_are_known_by_process_and_folder(tmp_path: Path) -> None:
    here = slurm.Submitted(
        "local", None, "2026", socket.gethostname(), os.getpid(), tmp_path, tmp_path / "run"
    )
    (tmp_path / "run").mkdir()

    def state(**changes: Any) -> str:
        each = dataclasses.replace(here, **changes)
        return slurm._states({"toy/a/b/c/d/seed-0": each})["toy/a/b/c/d/seed-0"][0]

    assert state() == "queued"  # whoever submits it is alive
    assert state(host="elsewhere") == "failed"
    # This process is there, but not of that folder.
    assert state(job=str(os.getpid())) == "failed"
    program = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert state(job=str(process.pid)) == "running"
        finally:
            process.kill()
    assert state(job=str(process.pid)) == "failed"


# ---- several GPUs on one machine ----------------------------------------------------------------


def some_pool(tmp_path: Path, jobs: int) -> pool.Pool:
    return pool.Pool(
        Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data"),
        jobs,
        threads=1,
        allow_missing=False,
        download=False,
        console=Console(quiet=True),
    )


def test_cells_are_placed_on_gpus_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert pool.default_jobs(8) == 3
    cells = some_pool(tmp_path, 6)
    placed = []
    for number in range(7):
        device = cells._free_device()
        placed.append(device)
        cells._running[number] = (None, None, device)
    assert placed == ["0", "1", "2", "0", "1", "2", "0"]
    del cells._running[4]  # one on GPU 1 ends
    assert cells._free_device() == "1"


@pytest.mark.parametrize(
    ("shown", "count", "devices"),
    [
        (None, 2, ("0", "1")),
        ("3,1", 2, ("3", "1")),
        ("GPU-8f, GPU-2c", 2, ("GPU-8f", "GPU-2c")),
        ("0,1,9", 2, ("0", "1")),
        ("", 0, ()),
    ],
)
def test_gpus_are_those_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int, devices: tuple[str, ...]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert pool.visible_devices() == devices


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_choice_nothing_is_placed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert some_pool(tmp_path, 2)._free_device() is None


@pytest.mark.slow
def test_the_process_of_a_cell_sees_its_gpu_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pool, "visible_devices", lambda: ("4", "7"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    (table,) = TABLES["toy"]
    chosen = list(table.cells("smoke", row="plain", seeds=(0, 1, 2)))
    placed = some_pool(tmp_path, 2)
    placed.run(chosen, {cell.address: () for cell in chosen})
    assert placed.outcomes == {}
    facts = [
        json.loads((tmp_path / "runs" / cell.address / "environment.json").read_text())["facts"]
        for cell in chosen
    ]
    assert [fact["shown to CUDA"] for fact in facts[:2]] == ["4", "7"]
    assert facts[2]["shown to CUDA"] in ("4", "7")


def test_a_task_of_slurm_uses_its_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert (pool.cores(), pool.default_jobs(8)) == (64, 8)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert (pool.cores(), pool.default_jobs(3)) == (6, 2)
