"""What can be said of grids and devices without a cluster: refusals, scripts, placement."""

import csv
import json
import math
import os
import pickle
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from toy.program import AtOnce
from toy.tables import TABLES, run_of

from shared.command import devices, gpu, pool, reproduce, slurm
from shared.command.cells import Chosen, Places, every_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AtOnce:
    """The command line in this process, in a folder of its own, with the toy domain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shared.command.cells.DOMAINS", ("toy",))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str, code: int = 0) -> tuple[str, str]:
        assert reproduce.main(words) == code
        out, err = capsys.readouterr()
        return out, err

    return call


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--partition", "main"), "--partition needs --slurm; add that, or omit --partition"),
        (("--slurm", "--gpus", "0"), "'0' is not a positive number"),
        (("--slurm", "--time", "soon"), "'soon' is not a positive number"),
        (("--slurm", "--set", "steps=2"), "--slurm runs cells of the tables; omit --slurm"),
        (("--slurm",), "squeue is not on the PATH; run this on a login node of the cluster"),
    ],
)
def test_options_that_cannot_be(
    command: AtOnce, words: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    _, err = command("toy", "toy", *words, code=2)
    assert error in err
    assert err.count("\n") == 1


def test_submitit_that_is_not_there_is_named(
    command: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    _, err = command("toy", "toy", "--slurm", code=2)
    assert err == ("error: submitit is not installed; install it with: pip install -e '.[slurm]'\n")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins for Slurm's programs: what they print lies beside them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "srun", "sbatch"):
        (folder / f"{name}.txt").touch()
        program = folder / name
        program.write_text(f"#!/bin/bash\ncat {folder}/{name}.txt\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_unfinished_cells_are_submitted_and_queued_ones_not_again(
    cluster: Path, command: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_built_for_gpus", lambda: True)
    (cluster / "sbatch.txt").write_text("Submitted batch job 7\n")
    words = ("toy", "costly", "--slurm", "--seeds", "0", "--column", "left", "--threads", "2")
    # Two tables of the same two rows: equal cells are one run, and one task.
    limits = ("--gpus", "1", "--partition", "short", "--array-limit", "2")
    out, _ = command(*words, *limits, "--watch", "3")
    # The toys declare a minute and a gigabyte.
    assert "submitted job 7: 2 tasks of up to 12 minutes and 4 GB for 2 cells" in out
    script = Path("runs/.slurm/7_submission.sh").read_text()
    for line in (
        "--array=0-1%2",
        "--time=12",
        "--mem=4096M",
        "--partition=short",
        "--gpus-per-node=1",
        "--cpus-per-task=2",
        f"--signal=USR2@{slurm.NOTICE}",
        "--requeue",
        "--job-name=toy-costly-table-1",
    ):
        assert f"#SBATCH {line}\n" in script
    (task, _) = Path("runs/.slurm").glob("7_*_submitted.pkl")
    given = pickle.loads(task.read_bytes()).function.command
    assert given[given.index("--watch") + 1] == "3"
    # One runs, the other waits.
    (cluster / "squeue.txt").write_text("7_0|RUNNING|None\n7_1|PENDING|Resources\n")
    assert "2 cells are queued already" in command(*words)[0]
    plan = ("plan", "toy", "costly", "--seeds", "0", "--column", "left")
    lines = [" ".join(line.split()) for line in command(*plan)[0].splitlines()]
    assert "queued toy/costly/table-1/better/left/seed-0 PENDING, Resources" in lines
    assert "running toy/costly/table-1/plain/left/seed-0" in lines
    assert lines[-1] == "1 running, 1 queued"
    # The plan of a machine without Slurm says why it does not know, and goes on.
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PATH", "/nowhere")
        assert "2 submitted" in command(*plan)[0]
    # They end without a result, one with a word and one without a log: both go again.
    (cluster / "squeue.txt").write_text("")
    Path("runs/.slurm/7_0_0_log.out").write_text(
        "submitit INFO - Starting\nslurmstepd: error: DUE TO TIME LIMIT ***\nsubmitit INFO - x\n"
    )
    out, _ = command(*plan)
    assert out.count("slurmstepd: error: DUE TO TIME LIMIT ***") == 1
    assert out.count("no log: cancelled before it started, or its node cannot reach") == 1
    assert out.endswith("\n2 failed\n")
    (cluster / "sbatch.txt").write_text("Submitted batch job 9\n")
    assert "submitted job 9: 2 tasks" in command(*words)[0]


def test_a_queued_cell_that_no_table_declares_any_more_holds_up_no_other(
    cluster: Path, command: AtOnce
) -> None:
    (cluster / "sbatch.txt").write_text("Submitted batch job 8\n")
    (cluster / "squeue.txt").write_text("7_0|RUNNING|None\n")
    jobs = Path("runs/.slurm/jobs.json")
    jobs.parent.mkdir(parents=True)
    jobs.write_text('{"toy/costly/table-1/gone/left/seed-0": "7_0"}')
    words = ("toy", "costly", "--slurm", "--seeds", "0", "--column", "left")
    assert "submitted job 8: 2 tasks" in command(*words)[0]


@pytest.mark.parametrize("content", ["", '{"toy/cos', "[1]", "3"])
def test_a_damaged_list_of_jobs_is_named_with_a_remedy(
    cluster: Path, command: AtOnce, content: str
) -> None:
    jobs = Path("runs/.slurm/jobs.json")
    jobs.parent.mkdir(parents=True)
    jobs.write_text(content)
    for words in (("toy", "costly", "--slurm"), ("plan", "toy", "costly")):
        _, err = command(*words, code=2)
        assert err.startswith(f"error: {jobs.absolute() if words[-1] == '--slurm' else jobs} does")
        assert "delete it once squeue shows none of them" in err
        assert err.count("\n") == 1


def test_a_task_asks_for_the_time_of_its_gpu_in_slices(tmp_path: Path) -> None:
    """Not for years, of which the cell would take minutes."""
    (table,) = (each for each in every_table("vision") if each.address == "vision/mmcl/table-2")
    cells = table.cells("paper", row=table.rows[0].label, seeds=[0])
    places = Places(tmp_path / "runs", tmp_path / "results", tmp_path)

    def minutes(**given: int) -> int:
        options = SimpleNamespace(**{"time": None, "memory": None, "gpus": None, **given})
        return slurm._limits([Chosen(table, cells)], cells, places, options)[0]  # type: ignore[arg-type]

    declared = table.columns[0].minutes
    assert minutes(gpus=1) == math.ceil(2 * declared / slurm.FASTER["vision"] + 10)
    assert minutes(gpus=1, time=60) == 60
    assert minutes(gpus=1, time=100_000) == minutes(gpus=1)
    assert minutes() == slurm.SLICE < declared


def test_how_much_faster_a_gpu_is_follows_from_the_expected_steps() -> None:
    root = Path(__file__).resolve().parents[2]
    steps = {  # of each run of docs/expected.csv
        "vision/margins/table-2/SimCLR/CIFAR10": 200 * 195,
        "vision/mmcl/table-2/MMCL_INV/top1": 200 * 989,
        "text/lmcl/table-4-bookcorpus/QT/MR": 114_466,
        "rl/lmcl/table-5/CURL/Swingup": 12_500,
        "video/mmcl/table-5/MMCL INV, both views/RGB linear": 300 * 74,
        "graph/mmcl/table-4/GraphCL/DD": 20 * 10,
    }
    with (root / "docs/expected.csv").open() as stream:
        lines = {
            line["cell"]: gpu.steps_by_kind()[line["kind"]].seconds
            for line in csv.DictReader(stream)
            if "=" not in line["workload"]  # those of kinds of rows have no name
        }
    assert lines.keys() == steps.keys()
    for cell, seconds in lines.items():
        domain, paper, name, _, label = cell.split("/")
        columns = [
            column
            for table in every_table(domain)
            if table.address == f"{domain}/{paper}/{name}" and "paper" in table.tiers
            for column in table.columns
            if column.label == label
        ]
        times = 60 * columns[0].minutes / (steps[cell] * seconds)
        assert times >= slurm.FASTER[domain], cell


def test_a_refusal_of_slurm_is_one_line(cluster: Path, command: AtOnce) -> None:
    (cluster / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: no account' >&2\nexit 1\n")
    words = ("toy", "toy", "--slurm", "--row", "plain", "--column", "left")
    _, err = command(*words, code=2)
    assert err == "error: Slurm refused the job: sbatch: error: no account\n"
    (cluster / "squeue").write_text("#!/bin/bash\necho 'Unable to contact' >&2\nexit 1\n")
    _, err = command(*words, code=2)
    assert err == "error: squeue failed (Unable to contact); the same command tries again\n"
    assert not Path("runs/.slurm/jobs.json").exists()


# ---- several GPUs on one machine ----------------------------------------------------------------


def some_pool(tmp_path: Path, jobs: int) -> pool.Pool:
    options = Namespace(
        jobs=jobs,
        threads=1,
        deterministic=False,
        allow_missing=False,
        no_download=True,
        minutes=None,
        watch=None,
    )
    places = Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")
    return pool.Pool(places, options, Console(quiet=True))


def test_cells_are_placed_on_gpus_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(devices, "may_have_gpu", lambda: True)
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
    ("shown", "count", "names"),
    [
        (None, 2, ("0", "1")),
        ("3,1", 2, ("3", "1")),
        ("GPU-8f, GPU-2c", 2, ("GPU-8f", "GPU-2c")),
        ("0,1,9", 2, ("0", "1")),
        ("", 0, ()),
    ],
)
def test_gpus_are_those_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(devices, "may_have_gpu", lambda: True)
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert pool.visible_devices() == names


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_choice_nothing_is_placed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(devices, "may_have_gpu", lambda: True)
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
    placed.run(chosen)
    assert placed.outcomes == {}
    facts = [
        json.loads((run_of(tmp_path / "runs", cell.address) / "environment.json").read_text())[
            "facts"
        ]
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
