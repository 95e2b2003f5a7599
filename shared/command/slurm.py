"""Cells as one array job of Slurm, submitted through submitit, and their status.

A task of the array calls the command line with ``--cell ADDRESS``; the same command again submits
the cells that are neither done nor queued.

    runs/.slurm/jobs.json       by address, the task in which each cell was last submitted
    runs/.slurm/12_0_0_log.out  what task 0 of job 12 printed

Shortly before its time limit a task saves and goes back into the queue; so do tasks that Slurm
preempts, and those whose node fails. A task that is cancelled, killed or fails is not requeued.
"""

import contextlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import psutil
from rich.console import Console

from shared.command.cells import Chosen, Places, find_cell, run_folder
from shared.command.plan import costs_of
from shared.command.pool import pretraining_of
from shared.errors import UserError, program
from shared.experiment.config import canonical_json
from shared.experiment.files import write_atomically
from shared.experiment.records import Damaged, read_failure
from shared.experiment.run import is_locked
from shared.experiment.tables import Cell

MODULE = "shared"  # what runs a cell: python -m MODULE --cell ADDRESS
FOLDER = ".slurm"  # in the folder of runs
NOTICE = 120  # seconds before the time limit at which a task saves
TASKS = 64  # at a time, by default
SLICE = 24 * 60  # minutes of a task at most, by default; longer cells go on in the next one
# How many times as fast as on a CPU core a cell should train on an H100: its declared minutes over
# the likely seconds of its steps in docs/expected.csv. Nothing of it is measured.
FASTER = {"vision": 500.0, "text": 3000.0, "rl": 150.0, "video": 80.0, "graph": 1.0}


@dataclass
class Task:
    """One task of the array: cells that share an encoder, one after the other.

    Args:
        command: runs a cell when its address is appended.
        addresses: of the cells.
        process: of the cell at work.
    """

    command: tuple[str, ...]
    addresses: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Run the cells, and exit with the highest of their exit codes."""
        codes = []
        for address in self.addresses:
            # Slurm signals every process of a task; only this one acts on it.
            self.process = subprocess.Popen(
                [*self.command, "--cell", address],
                preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
            code = self.process.wait()
            codes.append(128 - code if code < 0 else code)
        sys.exit(max(codes))

    def checkpoint(self) -> Any:
        """Have the cell save; submitit calls this near the time limit, and requeues the task."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                process = psutil.Process(self.process.pid)  # Popen.wait would be interrupted
                process.terminate()
                process.wait()
        return DelayedSubmission(Task(self.command, self.addresses))


def submit(
    chosen: Sequence[Chosen],
    waiting: Sequence[Cell],
    places: Places,
    options: Namespace,
    console: Console,
) -> int:
    """Submit the cells that are not in the queue as one array job; returns the exit code.

    Args:
        chosen: the chosen tables and cells.
        waiting: the unfinished ones, in the order in which to run them.
        places: the folders of runs, results and data.
        options: of the command line.
        console: to print to.
    """
    try:
        import submitit  # noqa: F401  (asked for before anything is done)
    except ImportError:
        why = "submitit is not installed; install it with: pip install -e '.[slurm]'"
        raise UserError(why) from None
    places = Places(*(path.absolute() for path in (places.runs, places.results, places.data)))
    folder = places.runs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / ".lock"):  # two commands would submit the same cells
        jobs, queue = _jobs(places.runs), _queue()
        queued = [find_cell(address).cells[0] for address, job in jobs.items() if job in queue]
        busy = {run_folder(places, cell) for cell in queued}
        left = [cell for cell in waiting if run_folder(places, cell) not in busy]
        if len(left) < len(waiting):
            console.print(f"{len(waiting) - len(left)} cells are queued already")
        if not left:
            return 0
        minutes, gigabytes = _limits(chosen, left, places, options)
        parameters = {
            **({"gpus_per_node": options.gpus} if options.gpus else {}),
            **({"partition": options.partition} if options.partition else {}),
            "job_name": left[0].table_address.replace("/", "-"),
            "time": minutes,
            "mem": f"{math.ceil(1024 * gigabytes)}M",
            "cpus_per_task": options.cores or options.threads,
            # Since Slurm 22.05, srun does not inherit it from the job.
            "srun_args": [f"--cpus-per-task={options.cores or options.threads}"],
            "array_parallelism": options.array_limit or TASKS,
        }
        tasks = _tasks(left, places, options)
        for task, job in zip(tasks, _submitted(tasks, folder, parameters), strict=True):
            jobs |= dict.fromkeys(task.addresses, job)
        write_atomically(folder / "jobs.json", json.dumps(jobs, indent=1) + "\n")
    console.print(
        f"submitted job {jobs[left[0].address].partition('_')[0]}: {len(tasks)} tasks of up to "
        f"{minutes} minutes and {gigabytes:g} GB for {len(left)} cells; they log to {folder}, and "
        f"{program()} plan shows them",
        soft_wrap=True,
        highlight=False,
    )
    return 0


def _tasks(cells: Sequence[Cell], places: Places, options: Namespace) -> list[Task]:
    """The cells, those that share an encoder as one task."""
    command = (
        *(sys.executable, "-m", MODULE, "--jobs", "1", "--threads", str(options.threads)),
        *("--runs", str(places.runs), "--results", str(places.results)),
        # Nodes often have no network, and hundreds of tasks would download at once.
        *("--data-root", str(places.data), "--no-download"),
        *(["--allow-missing"] if options.allow_missing else []),
        *(["--deterministic"] if options.deterministic else []),
        *(["--watch", str(options.watch)] if options.watch else []),
    )
    groups: dict[str, list[str]] = {}
    for cell in cells:
        shared = canonical_json(pretraining_of(cell) or cell.config)
        groups.setdefault(shared, []).append(cell.address)
    return [Task(command, tuple(addresses)) for addresses in groups.values()]


def _submitted(tasks: Sequence[Task], folder: Path, parameters: Mapping[str, Any]) -> list[str]:
    """Submit the tasks as one array job that goes back into the queue; returns their names."""
    import submitit

    executor = submitit.SlurmExecutor(folder, max_num_timeout=10_000)
    executor.update_parameters(
        **parameters,
        signal_delay_s=NOTICE,
        stderr_to_stdout=True,
        additional_parameters={"requeue": True},
    )
    refusals = submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError
    try:
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [executor.submit(task) for task in tasks]
    except refusals as error:
        why = " ".join(str(error).split()) or "it gave no reason"
        raise UserError(f"Slurm refused the job: {why}") from None
    return [job.job_id for job in jobs]


def states(cells: Sequence[Cell], places: Places) -> list[tuple[str, Cell, str]]:
    """The state of each unfinished cell that was started or submitted, and what it said last.

    A cell is running, queued, stopped (the same command continues it), failed, or, where Slurm does
    not answer, submitted.

    Args:
        cells: unfinished ones.
        places: the folder of runs.
    """
    jobs, queue, silent = _jobs(places.runs), dict[str, str](), ""
    if any(cell.address in jobs for cell in cells):
        try:
            queue = _queue()
        except UserError as error:
            silent = str(error)
    found = []
    for cell in cells:
        state, last = _state(cell, jobs.get(cell.address), queue, silent, places)
        found += [(state, cell, last)] * bool(state)
    return found


def _limits(
    chosen: Sequence[Chosen], cells: Sequence[Cell], places: Places, options: Namespace
) -> tuple[int, float]:
    """Minutes and gigabytes of a task, for the largest cell by the plan's estimate.

    The time is twice the estimate, on a GPU divided by ``FASTER``, and ``--time`` or ``SLICE`` at
    most: a task that runs out of time is requeued, and loses no work. All tasks of an array have
    the same limits.
    """
    addresses = {cell.address for cell in cells}
    faster = FASTER.get(cells[0].domain, 1.0) if options.gpus else 1.0
    seconds = gigabytes = 0.0
    for some in chosen:
        costs = costs_of(some.table, some.cells, places)
        for cell in (cell for cell in some.cells if cell.address in addresses):
            each = costs[cell.row, cell.source].each
            ratio = 1.0 if each.source == "measured" else faster
            seconds = max(seconds, each.seconds / ratio)
            gigabytes = max(gigabytes, each.gigabytes)
    minutes = min(math.ceil(2 * seconds / 60 + 10), options.time or SLICE)
    return minutes, options.memory or math.ceil(1.25 * gigabytes + 2)


def _jobs(runs: Path) -> dict[str, str]:
    """By address, the task in which each cell was last submitted."""
    file = runs / FOLDER / "jobs.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _queue() -> dict[str, str]:
    """The user's queued and running tasks: their state by name, and the reason."""
    command = ("squeue", "--me", "--noheader", "--array", "--format=%i|%T|%r")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise UserError(
            "squeue is not on the PATH; run this on a login node of the cluster"
        ) from None
    except subprocess.CalledProcessError as error:
        why = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise UserError(f"squeue failed ({why}); the same command tries again") from None
    tasks = (line.strip().split("|") for line in done.stdout.splitlines())
    return {job: f"{state}, {why}" for job, state, why in tasks}


def _state(
    cell: Cell, job: str | None, queue: Mapping[str, str], silent: str, places: Places
) -> tuple[str, str]:
    """The state of an unfinished cell, empty if it never started, and the latest message of it."""
    folder, log = run_folder(places, cell), places.runs / FOLDER / f"{job}_0_log.out"
    state = queue.get(job or "")
    if state and not re.match("RUNNING|CONFIGURING|COMPLETING", state):
        return "queued", state
    if state or is_locked(folder):
        return "running", _last_line(folder / "log.jsonl") or _last_line(log)
    if job and silent:
        return "submitted", silent
    if failure := _failure(folder):
        return "failed", failure
    if job:
        lost = f"no log: cancelled before it started, or its node cannot reach {log.parent}"
        return "failed", _last_line(log) or lost
    if (folder / "config.json").exists():
        return "stopped", _last_line(folder / "log.jsonl")
    return "", ""


def _failure(folder: Path) -> str | None:
    try:
        return read_failure(folder)
    except Damaged as error:
        return str(error)


def _last_line(file: Path) -> str:
    """The last line of a log that is not from submitit; empty without one."""
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return next((line for line in reversed(lines) if line and "submitit " not in line), "")
