"""A grid of cells as one array job of Slurm, submitted through submitit, and what became of it.

A task of the array is one call of the command line, ``--cell ADDRESS``, and everything that counts
lies in the run's folder: the same command again submits what is neither done nor in the queue.

    runs/.slurm/1/submission.json    which cells were submitted as which tasks
    runs/.slurm/1/12_0_0_log.out     what task 0 of job 12 said
    runs/.slurm/1/12_0.kills         a line for each time that it was killed

A task that is told to stop, or whose time is about to end, has its cell save and end with code 75;
the job script then puts the task back into the queue, as it does with one that was killed, but
with that at most ``KILLS`` times. Whoever cancels a job cancels it.
"""

import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import filelock
import psutil
from rich.console import Console
from rich.table import Table as TextTable
from rich.text import Text

from shared.command.choosing import Chosen
from shared.command.places import Places, run_folder, undamaged
from shared.command.plan import Cost, costs_of
from shared.command.pool import asked_to_stop, default_jobs, pretraining_of
from shared.command.progress import sentence
from shared.errors import UserError
from shared.experiment.records import Damaged, read_failure, read_json
from shared.experiment.runs import INTERRUPTED, now, write_atomically
from shared.experiment.tables import Cell, canonical_json

MODULE = "shared"  # what runs a cell: python -m MODULE --cell ADDRESS
FOLDER = ".slurm"  # in the folder of runs
ANNOUNCED = (signal.SIGUSR1, signal.SIGUSR2)  # before the time limit
STOP = (signal.SIGTERM, signal.SIGINT, *ANNOUNCED)
KILLS = 3
NOTICE = 120  # seconds before the time limit at which a task is told to stop
AUTO = "auto"
# Of the states that squeue names, those of a task that has a node; in all others it waits for one.
RUNNING = {"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT"}
_NOT_FOUND = (
    "is not on the PATH; submit from a login node of the cluster, or run the same tasks on this "
    "machine with --executor local"
)
_REQUEUE = """\
code=$?
job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}
kills={folder}/$job.kills
[ $code -le 128 ] || echo "$(date --utc +%FT%TZ) code $code" >>"$kills"
if [ $code -eq {interrupted} ] || {{ [ $code -gt 128 ] && [ "$(wc -l <"$kills")" -le {most} ]; }}
then
  # Not what somebody cancels: that is no longer RUNNING.
  [ "$(squeue --noheader --jobs=$job --format=%T)" != RUNNING ] || scontrol requeue $job
fi
exit $code"""


@dataclass(frozen=True)
class Task:
    """One task of the array: cells of one configuration, of which the first runs.

    The others take its result over. It ends with the exit code of the command line, or with what
    has submitit start a local task again.

    Args:
        addresses: of the cells.
        arguments: of the command line, for each of them.
        module: of the command line.
        time_is_up: exit code in place of 75 where SIGUSR1 or SIGUSR2 announced the time limit.
    """

    addresses: tuple[str, ...]
    arguments: tuple[str, ...]
    module: str
    time_is_up: int = INTERRUPTED

    def __call__(self) -> None:
        """Run the cells, one after the other."""
        asked: list[int] = []
        running: list[subprocess.Popen[bytes]] = []

        def stop(number: int, frame: FrameType | None) -> None:
            asked.append(number)
            for each in running:
                each.terminate()

        for number in STOP:
            signal.signal(number, stop)
        worst = 0
        for address in self.addresses:
            words = [*self.arguments, "--cell", address]
            environment = os.environ | {"PYTHONUNBUFFERED": "1"}
            if "SUITE_COMMAND" in environment:
                environment["SUITE_COMMAND"] = shlex.join(["./reproduce.sh", *words])
            process = subprocess.Popen(
                [sys.executable, "-m", self.module, *words],
                env=environment,
                start_new_session=True,
                preexec_fn=_heed_sigterm_alone,
            )
            running[:] = [process]
            print(f"{address}: begins", flush=True)
            if asked:  # in between
                process.terminate()
            code = process.wait()
            if code == INTERRUPTED or (asked and code == -signal.SIGTERM):
                sys.exit(self.time_is_up if {*ANNOUNCED} & {*asked} else INTERRUPTED)
            worst = max(worst, 128 - code if code < 0 else code)
        sys.exit(worst)


def _heed_sigterm_alone() -> None:
    """In the process of a cell: Slurm signals every process of a task, and one passes it on."""
    for number in ANNOUNCED:
        signal.signal(number, signal.SIG_IGN)


@dataclass(frozen=True)
class Submitted:
    """What ``submission.json`` says of one cell.

    Args:
        executor: slurm or local.
        job: the task's name in the queue, as ``12_0``; of a local one its process; None as long as
            a local one waits.
        time: when it was submitted.
        host: where it was submitted.
        process: that submitted it, and goes on doing so with local ones.
        folder: of the submission.
        run: folder of the cell's run.
    """

    executor: str
    job: str | None
    time: str
    host: str
    process: int
    folder: Path
    run: Path

    @property
    def log(self) -> Path:
        """What the task said."""
        return self.folder / f"{self.job}_0_log.out"


@dataclass(frozen=True)
class Limits:
    """What one task may take: minutes, gigabytes, cores and GPUs."""

    minutes: int
    gigabytes: float
    cores: int
    gpus: int


def submit(
    chosen: Sequence[Chosen],
    waiting: Sequence[Cell],
    twins: Mapping[str, tuple[str, ...]],
    places: Places,
    options: Namespace,
    console: Console,
) -> int:
    """Submit the cells as one array job; returns the exit code.

    Cells of one configuration, or that share a pretraining, are one task. Those that are in the
    queue already, or are equal to one that is, are not submitted.

    Args:
        chosen: tables and cells that were asked for.
        waiting: those of them that are not done, in the order in which to run them.
        twins: by address, where an equal run may lie.
        places: where things lie.
        options: of the command line.
        console: to speak to.

    Raises:
        UserError: submitit or Slurm is missing, Slurm does not know the partition, or refuses.
    """
    asked = None if options.time in (None, AUTO) else parse_time(options.time)
    places = Places(*(path.absolute() for path in (places.runs, places.results, places.data)))
    _check_programs(options.executor)
    with _locked(places.runs / FOLDER):
        states = _states(_submitted(places.runs))
        busy = {address for address, (state, _) in states.items() if state in ("queued", "running")}
        left = [cell for cell in waiting if cell.address not in busy]
        equal = [cell for cell in left if not busy.isdisjoint(twins[cell.address])]
        if len(left) < len(waiting):
            console.print(f"{len(waiting) - len(left)} cells are in the queue already")
        if equal:
            console.print(
                f"{len(equal)} cells are equal to cells in the queue: the same command takes their "
                f"results over once those are done",
                soft_wrap=True,
            )
        groups = _groups([cell for cell in left if cell not in equal])
        if not groups:
            console.print("nothing to submit; ./reproduce.sh status shows what became of the rest")
            return 0
        limits, why = _limits(chosen, groups, asked, places, options, console)
        submission = _Submission(places, options, groups)
        if options.executor == "slurm":
            limits, capped = _checked_partition(options.partition, asked, limits)
            job = _submit_array(submission, limits)
            console.print(
                f"submitted job {job}: {len(groups)} tasks of up to {limits.minutes} minutes and "
                f"{limits.gigabytes:g} GB ({capped or why}) for {sum(map(len, groups))} cells; "
                f"./reproduce.sh status shows them",
                soft_wrap=True,
                highlight=False,
            )
            return 0
        devices = _checked_devices(limits)
        submission.note()
    # The lock is free: another may look, and submit what is not among these.
    return _run_locally(submission, limits, devices, console)


def print_status(places: Places) -> int:
    """Show for every cell that was submitted what became of it; returns the exit code."""
    console = Console()
    runs = places.runs.absolute()
    submitted = _submitted(runs)
    if not submitted:
        raise UserError(
            f"nothing was submitted from {places.runs}/; submit with --slurm, or name the folder "
            f"with --runs"
        )
    text = TextTable(box=None, pad_edge=False)
    for name in ("state", "job", "cell", "last line"):
        text.add_column(name, overflow="fold")
    shown: dict[str, list[tuple[str, str, str]]] = {
        state: [] for state in ("done", "queued", "running", "failed")
    }
    for address, (state, last) in _states(submitted).items():
        shown[state].append((submitted[address].job or "", address, last))
    for state, rows in shown.items():
        for row in rows:
            text.add_row(state, *map(Text, row))  # as it is: [1/1] is no markup
    console.print(text)
    console.print(", ".join(f"{len(rows)} {state}" for state, rows in shown.items()))
    return 0


def _groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells by what they train, else by their configuration: each is a task."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        part = pretraining_of(cell)
        key = canonical_json(cell.config) if part is None else canonical_json(part)
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


class _Submission:
    """What goes to an executor at once: its folder, its tasks, and what they are called there."""

    def __init__(
        self, places: Places, options: Namespace, groups: Sequence[Sequence[Cell]]
    ) -> None:
        self.options = options
        self.groups = groups
        self.jobs: list[str | None] = [None] * len(groups)
        self.runs = places.runs
        base = places.runs / FOLDER
        taken = [int(path.name) for path in base.iterdir() if path.name.isdecimal()]
        self.folder = base / str(max(taken, default=0) + 1)
        self._time = now()
        self._places = places

    def tasks(self, time_is_up: int = INTERRUPTED) -> list[Task]:
        """The tasks, in the order of the cells."""
        places, options = self._places, self.options
        arguments = [
            *("--runs", str(places.runs), "--results", str(places.results)),
            *("--data-root", str(places.data), "--threads", str(options.threads), "--jobs", "1"),
            # Hundreds of tasks would fetch at once, and nodes often reach no network.
            "--no-download",
            *(["--allow-missing"] if options.allow_missing else []),
        ]
        return [
            Task(tuple(cell.address for cell in group), tuple(arguments), MODULE, time_is_up)
            for group in self.groups
        ]

    def note(self) -> None:
        """Write what :func:`_submitted` reads."""
        content = {
            "executor": self.options.executor,
            "time": self._time,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "tasks": [
                {"job": job, "cells": {cell.address: self._run(cell) for cell in group}}
                for job, group in zip(self.jobs, self.groups, strict=True)
            ],
        }
        text = json.dumps(content, indent=2) + "\n"
        write_atomically(self.folder / "submission.json", text)

    def _run(self, cell: Cell) -> str:
        return str(run_folder(self._places, cell).relative_to(self.runs))


def _limits(
    chosen: Sequence[Chosen],
    groups: Sequence[Sequence[Cell]],
    minutes: int | None,
    places: Places,
    options: Namespace,
    console: Console,
) -> tuple[Limits, str]:
    """What a task of the array may take, and how that is known.

    An array has one limit for all of its tasks, so it is that of the largest: twice the minutes of
    the plan and ten, five quarters of its memory and two gigabytes. Too little time costs no work.
    """
    gigabytes, why = options.memory, "as asked for"
    if minutes is None or gigabytes is None:
        first = {group[0].address: group[0] for group in groups}
        costs: list[Cost] = []
        for each in chosen:
            known = costs_of(each.table, each.cells, places)
            costs += [known[cell.row, cell.source] for cell in each.cells if cell.address in first]
        largest = max((cost.each for cost in costs), key=lambda each: each.seconds)
        if minutes is None:
            minutes = math.ceil(2 * largest.seconds / 60) + 10
        if gigabytes is None:
            gigabytes = math.ceil(1.25 * max(cost.each.gigabytes for cost in costs) + 2)
        why = f"the largest cell: {largest.seconds / 60:.1f} minutes, {largest.source}"
    cores = options.cores or options.threads
    return Limits(minutes, gigabytes, cores, options.gpus or 0), why


def parse_time(text: str) -> int:
    """Minutes of a time as Slurm writes it: ``90``, ``1:30:00``, ``2-12``, ``2-12:30``.

    Raises:
        UserError: something else, or none.
    """
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    known = len(parts) <= 3 and all(each.isdecimal() for each in parts)
    if not known or (dash and not days.isdecimal()):
        raise UserError(
            f"--time {text!r} is no time of Slurm; write minutes, hours:minutes:seconds or "
            f"days-hours, or auto"
        )
    numbers = [int(each) for each in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, *numbers, 0][:3] if len(numbers) < 3 else numbers
    minutes += 60 * (24 * int(days or 0) + hours) + (seconds > 0)
    if minutes < 1:
        raise UserError(f"--time {text!r} is no time at all; write at least 1, in minutes")
    return minutes


def _checked_partition(
    partition: str | None, asked: int | None, limits: Limits
) -> tuple[Limits, str]:
    """The limits that the partition allows, and why others than wanted.

    Raises:
        UserError: the cluster has no such partition, or it does not allow the time asked for.
    """
    lines = _slurm("sinfo", "--noheader", "--format=%P|%l").splitlines()
    allowed = dict(line.strip().split("|") for line in lines)
    default = next((name[:-1] for name in allowed if name.endswith("*")), None)
    allowed = {name.rstrip("*"): limit for name, limit in allowed.items()}
    if partition is not None and partition not in allowed:
        known = ", ".join(sorted(allowed))
        raise UserError(f"--partition {partition!r}: this cluster has none; it has: {known}")
    limit = allowed.get(partition or default or "", "infinite")
    if not limit[0].isdigit() or parse_time(limit) >= limits.minutes:
        return limits, ""
    most = f"the most that partition {partition or default} allows"
    if asked is not None:
        raise UserError(
            f"--time, {asked} minutes: more than {limit}, {most}; ask for less, or auto"
        )
    most += "; what is not done by then goes on in the queue"
    return Limits(parse_time(limit), limits.gigabytes, limits.cores, limits.gpus), most


def _submit_array(submission: _Submission, limits: Limits) -> str:
    """Submit the tasks to Slurm; returns the job's number.

    Raises:
        UserError: Slurm refuses the job.
    """
    import submitit

    tasks, options, folder = submission.tasks(), submission.options, submission.folder
    most = re.search(r"MaxArraySize\s*=\s*(\d+)", _slurm("scontrol", "show", "config"))
    if most and len(tasks) > int(most[1]):
        raise UserError(
            f"{len(tasks)} tasks, and an array of this cluster holds {most[1]}; submit one table, "
            f"row or column after the other (--table, --row, --column)"
        )
    executor = submitit.SlurmExecutor(folder)
    teardown = _REQUEUE.format(folder=shlex.quote(str(folder)), interrupted=INTERRUPTED, most=KILLS)
    asked: dict[str, Any] = {"gpus_per_node": limits.gpus} if limits.gpus else {}
    if options.partition:
        asked["partition"] = options.partition
    executor.update_parameters(
        **asked,
        job_name=submission.groups[0][0].table_address.replace("/", "-"),
        time=limits.minutes,
        mem=f"{math.ceil(1024 * limits.gigabytes)}M",
        cpus_per_task=limits.cores,
        # Since 22.05, srun does not take it over from the job.
        srun_args=[f"--cpus-per-task={limits.cores}"],
        array_parallelism=options.array_limit or 64,
        signal_delay_s=NOTICE,
        stderr_to_stdout=True,
        teardown=teardown.splitlines(),
        additional_parameters={"requeue": True},
    )
    try:
        # What Slurm says against it goes into the error.
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [executor.submit(task) for task in tasks]
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        shutil.rmtree(folder)
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"Slurm refused the job: {' '.join(said) or 'it gave no reason'}") from None
    submission.jobs = [job.job_id for job in jobs]
    submission.note()
    return str(jobs[0].job_id).partition("_")[0]


def _checked_devices(limits: Limits) -> int:
    """The GPUs of this machine.

    Raises:
        UserError: a task wants more.
    """
    import torch

    devices = torch.cuda.device_count()
    if limits.gpus > devices:
        raise UserError(f"--gpus {limits.gpus}: this machine has {devices}; ask for no more")
    return devices


def _run_locally(submission: _Submission, limits: Limits, devices: int, console: Console) -> int:
    """Run the tasks on this machine, some at a time, and wait for them; returns the exit code."""
    import submitit
    from submitit.local.local import LOCAL_REQUEUE_RETURN_CODE

    executor = submitit.LocalExecutor(submission.folder)
    at_a_time = submission.options.array_limit or default_jobs(limits.cores)
    if limits.gpus:
        at_a_time = min(at_a_time, devices // limits.gpus)
    running: dict[int, Any] = {}  # by the slot, of which each has GPUs of its own
    tasks = submission.tasks(LOCAL_REQUEUE_RETURN_CODE)
    with asked_to_stop() as asked:
        for number, task in enumerate(tasks):
            while len(running) == at_a_time and not asked:
                _wait_for_one(running)
            if asked:
                break
            slot = next(each for each in range(at_a_time) if each not in running)
            executor.update_parameters(
                timeout_min=limits.minutes,
                signal_delay_s=NOTICE,
                stderr_to_stdout=True,
                gpus_per_node=limits.gpus,
                visible_gpus=[slot * limits.gpus + each for each in range(limits.gpus)],
            )
            job = running[slot] = executor.submit(task)
            submission.jobs[number] = job.job_id
            submission.note()
            console.print(
                f"[{number + 1}/{len(tasks)}] {task.addresses[0]}: {job.paths.stdout}",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )
        told = False
        while running:
            if asked and not told:
                told = True
                for job in running.values():  # named by its process, which passes it on
                    os.kill(int(job.job_id), signal.SIGTERM)
            _wait_for_one(running)
    states = _states(_submitted(submission.runs))
    mine = {cell.address: states[cell.address] for group in submission.groups for cell in group}
    failed = {address: last for address, (state, last) in mine.items() if state == "failed"}
    if asked and failed:
        console.print("interrupted; the same command goes on from here")
        return INTERRUPTED
    for address, last in failed.items():
        print(f"{address}: {last}", file=sys.stderr)
    return 1 if failed else 0


def _wait_for_one(running: dict[int, Any]) -> None:
    """Wait a little, and take away what is done."""
    time.sleep(0.2)
    for slot, job in list(running.items()):
        if job.done():
            del running[slot]


def _submitted(runs: Path) -> dict[str, Submitted]:
    """By address, the latest submission of every cell that was submitted."""
    files = (runs / FOLDER).glob("*/submission.json")
    found: dict[str, Submitted] = {}
    for file in sorted(files, key=lambda file: int(file.parent.name)):
        content = read_json(file)
        common = (content["time"], content["host"], content["process"], file.parent)
        for task in content["tasks"]:
            for address, folder in task["cells"].items():
                each = Submitted(content["executor"], task["job"], *common, runs / folder)
                found.pop(address, None)  # to the end, in the order of submission
                found[address] = each
    return found


def _states(submitted: Mapping[str, Submitted]) -> dict[str, tuple[str, str]]:
    """By address the state of what was submitted, and the last that is known of it.

    States are done, queued, running and failed: ended without a result, for whatever reason.
    """
    states = {}
    open_: dict[str, Submitted] = {}
    for address, each in submitted.items():
        if record := undamaged(each.run, address):
            told = ("done", record.result, record.environment.get("run_at"))
            states[address] = "done", sentence(told)
        else:
            open_[address] = each
    queue = _queue(each for each in open_.values() if each.executor == "slurm")
    for address, each in open_.items():
        waits = queue.get(each.job or "") if each.executor == "slurm" else _local_state(each)
        if waits is None:
            states[address] = "failed", _why(each)
        elif waits in RUNNING:
            states[address] = "running", _last_step(each.run) or _last_line(each.log)
        else:
            states[address] = "queued", waits
    return {address: states[address] for address in submitted}


def _queue(submitted: Iterable[Submitted]) -> dict[str, str]:
    """By task, ``RUNNING`` or the like, or what it waits for, of those that are in the queue."""
    jobs = {(each.job or "").partition("_")[0] for each in submitted}
    if not jobs:
        return {}
    command = ("squeue", "--noheader", "--array", "--format=%i|%T|%r", f"--jobs={','.join(jobs)}")
    try:
        lines = _slurm(*command).splitlines()
    except UserError as error:
        if "Invalid job id" in str(error):  # the only one, and forgotten: it ended long ago
            return {}
        raise
    parts = (line.strip().split("|") for line in lines)
    return {job: state if state in RUNNING else f"{state}, {why}" for job, state, why in parts}


def _local_state(each: Submitted) -> str | None:
    """As of the queue, for a task of this machine."""
    if each.host != socket.gethostname():
        return None
    waits = each.job is None
    process = each.process if waits else int(each.job or 0)
    with contextlib.suppress(psutil.Error):
        words = psutil.Process(process).cmdline()
        if waits or str(each.folder) in words:  # no other process of the same number
            return "waiting" if waits else "RUNNING"
    return None


def _why(each: Submitted) -> str:
    """Why a task ended without a result, as far as is known."""
    file = each.run / "failure.json"
    with contextlib.suppress(Damaged):
        if file.exists() and str(read_json(file).get("time")) >= each.time:
            return read_failure(each.run) or ""
    return _last_line(each.log) or (
        f"left no log: it was cancelled before it began, or its node cannot see {each.folder}; "
        f"put runs on a file system that all nodes share, and name it with --runs"
    )


def _last_step(run: Path) -> str:
    """The last line of a run's log, as ``step 12, loss 0.31``."""
    try:
        numbers = json.loads(_last_line(run / "log.jsonl"))
        return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    except ValueError:  # none yet, or torn
        return ""


def _last_line(file: Path) -> str:
    """The last line that a cell or Slurm wrote, not submitit; empty without one."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - 20_000))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = (line.strip() for line in reversed(lines))
    return next((line for line in said if line and not line.startswith("submitit ")), "")


def _slurm(*command: str) -> str:
    """What a program of Slurm prints.

    Raises:
        UserError: it is not there, or fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise UserError(f"{command[0]} {_NOT_FOUND}") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise UserError(f"{command[0]} failed ({said}); the same command tries again") from None
    return done.stdout


def _check_programs(executor: str) -> None:
    try:
        import submitit  # noqa: F401  (whether it is there)
    except ImportError:
        why = "submitit is not installed; install it with: pip install -e '.[slurm]'"
        raise UserError(why) from None
    if executor == "slurm" and not shutil.which("sbatch"):
        raise UserError(f"sbatch {_NOT_FOUND}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else submits: of two commands the second would not see what the first does."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(folder / ".lock", timeout=60):
            yield
    except filelock.Timeout:
        raise UserError(f"{folder}: another command is submitting there; wait for it") from None
