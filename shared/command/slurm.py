"""Cells as one array job of Slurm, submitted through submitit.

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
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
from rich.console import Console

from shared.command.cells import Chosen, Places, find_cell, pretraining_of, run_folder
from shared.command.plan import costs_of
from shared.errors import UserError, program
from shared.experiment.config import canonical_json
from shared.experiment.files import write_atomically
from shared.experiment.tables import Cell
from shared.report.console import say

MODULE = "shared"  # what runs a cell: python -m MODULE --cell ADDRESS
FOLDER = ".slurm"  # in the folder of runs
NOTICE = 120  # seconds before the time limit at which a task saves
TASKS = 64  # at a time, by default
SLICE = 24 * 60  # minutes of a task at most, by default; longer cells continue in the next one
# How many times as fast as on a CPU core a cell should train on an H100: its declared minutes over
# the seconds of its steps as `gpu.step_of` gives them. Video's steps were measured on no GPU.
FASTER = {"vision": 360.0, "text": 290.0, "rl": 250.0, "video": 80.0, "graph": 0.6}


@dataclass
class Task:
    """One task of the array: cells that share an encoder, one after the other, by ``command``."""

    command: tuple[str, ...]
    addresses: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None  # of the cell at work

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
            self.process.terminate()
            # This interrupts __call__, which waits as well and holds Popen's lock.
            with contextlib.suppress(ChildProcessError):  # it has just ended
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Task(self.command, self.addresses))


def submit(
    chosen: Sequence[Chosen],
    waiting: Sequence[Cell],
    places: Places,
    options: Namespace,
    console: Console,
) -> int:
    """Submit the waiting cells that are not queued as one array job; returns the exit code."""
    try:
        import submitit
    except ImportError:
        raise UserError(
            "submitit is not installed; install it with: pip install -e '.[slurm]'"
        ) from None
    places = places.absolute()
    folder = places.runs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    refusals = submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError
    with filelock.FileLock(folder / ".lock"):  # two commands would submit the same cells
        jobs, queue = last_jobs(places.runs), queued()
        in_queue = (address for address, job in jobs.items() if job in queue)
        folders = {run_folder(places, cell) for cell in _declared(in_queue)}
        to_submit = [cell for cell in waiting if run_folder(places, cell) not in folders]
        if len(to_submit) < len(waiting):
            console.print(f"{len(waiting) - len(to_submit)} cells are queued already")
        if not to_submit:
            return 0
        minutes, gigabytes = _limits(chosen, to_submit, places, options)
        cores = options.cores or options.threads
        executor = submitit.SlurmExecutor(folder, max_num_timeout=10_000)
        executor.update_parameters(
            job_name=to_submit[0].table_address.replace("/", "-"),
            time=minutes,
            mem=f"{math.ceil(1024 * gigabytes)}M",
            cpus_per_task=cores,
            srun_args=[f"--cpus-per-task={cores}"],  # since Slurm 22.05 not inherited from the job
            array_parallelism=options.array_limit or TASKS,
            signal_delay_s=NOTICE,
            stderr_to_stdout=True,
            additional_parameters={"requeue": True},
            **({"gpus_per_node": options.gpus} if options.gpus else {}),
            **({"partition": options.partition} if options.partition else {}),
        )
        tasks = _tasks(to_submit, places, options)
        try:
            with contextlib.redirect_stderr(io.StringIO()), executor.batch():
                submitted = [executor.submit(task) for task in tasks]
        except refusals as error:
            why = " ".join(str(error).split()) or "it gave no reason"
            raise UserError(f"Slurm refused the job: {why}") from None
        for task, job in zip(tasks, submitted, strict=True):
            jobs |= dict.fromkeys(task.addresses, job.job_id)
        write_atomically(folder / "jobs.json", json.dumps(jobs, indent=1) + "\n")
    say(
        console,
        f"submitted job {submitted[0].job_id.partition('_')[0]}: {len(tasks)} tasks of up to "
        f"{minutes} minutes and {gigabytes:g} GB for {len(to_submit)} cells; they log to "
        f"{folder}, and {program()} plan shows them",
    )
    return 0


def _tasks(cells: Sequence[Cell], places: Places, options: Namespace) -> list[Task]:
    """The tasks that run the cells, one for those that share an encoder."""
    command = (
        *(sys.executable, "-m", MODULE, "--jobs", "1", "--threads", str(options.threads)),
        *("--runs", str(places.runs), "--results", str(places.results)),
        # Nodes often have no network, and hundreds of tasks would download at once.
        *("--data-root", str(places.data), "--no-download"),
        *(["--allow-missing"] if options.allow_missing else []),
        *(["--deterministic"] if options.deterministic else []),
        *(["--watch", str(options.watch)] if options.watch else []),
    )
    by_encoder: dict[str, list[str]] = {}
    for cell in cells:
        encoder = canonical_json(pretraining_of(cell) or cell.config)
        by_encoder.setdefault(encoder, []).append(cell.address)
    return [Task(command, tuple(addresses)) for addresses in by_encoder.values()]


def _limits(
    chosen: Sequence[Chosen], cells: Sequence[Cell], places: Places, options: Namespace
) -> tuple[int, float]:
    """Minutes and gigabytes that each task asks for, by the largest cell of the plan.

    The time is twice the estimate, on a GPU divided by ``FASTER``, and ``--time`` or ``SLICE`` at
    most: a task that runs out of time is requeued, and loses no work.
    """
    addresses = {cell.address for cell in cells}
    faster = FASTER.get(cells[0].domain, 1.0) if options.gpus else 1.0
    seconds = gigabytes = 0.0
    for selected in chosen:
        costs = costs_of(selected.table, selected.cells, places)
        for cell in (cell for cell in selected.cells if cell.address in addresses):
            cost = costs[cell.row, cell.source].run
            seconds = max(seconds, cost.seconds / (1.0 if cost.source == "measured" else faster))
            gigabytes = max(gigabytes, cost.gigabytes)
    minutes = min(math.ceil(2 * seconds / 60 + 10), options.time or SLICE)
    return minutes, options.memory or math.ceil(1.25 * gigabytes + 2)


def _declared(addresses: Iterable[str]) -> Iterator[Cell]:
    """The cells of these addresses, without those that no table declares any more."""
    for address in addresses:
        with contextlib.suppress(UserError):
            yield find_cell(address).cells[0]


def last_jobs(runs: Path) -> dict[str, str]:
    """By address, the task in which each cell was last submitted."""
    file = runs / FOLDER / "jobs.json"
    if not file.exists():
        return {}
    try:
        return dict(json.loads(file.read_text()))
    except (TypeError, ValueError):
        raise UserError(
            f"{file} does not say which cells are queued: it is damaged; delete it once squeue "
            f"shows none of them, which would be submitted again"
        ) from None


def log_of(runs: Path, job: str) -> Path:
    """The file with what a task printed."""
    return runs / FOLDER / f"{job}_0_log.out"


def queued() -> dict[str, str]:
    """State and reason of the user's queued and running tasks, by the name of the task.

    submitit would ask sacct, which many clusters have switched off.
    """
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
