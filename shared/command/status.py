"""What unfinished cells that were started or submitted do now."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from shared.command import slurm
from shared.command.cells import Places, run_folder
from shared.errors import UserError
from shared.experiment.frame import NOT_RUN
from shared.experiment.records import Damaged, read_failure
from shared.experiment.run_folders import is_locked
from shared.experiment.tables import Cell
from shared.report.console import say


def print_states(cells: Sequence[Cell], places: Places, console: Console) -> None:
    """Print which unfinished cells run, wait in Slurm's queue, were stopped or have failed."""
    states = list(_states(cells, places))
    for state, cell, last in states:
        say(console, f"{state:9} {cell.address}  {last}".rstrip())
    count = Counter(state for state, *_ in states)
    if count:
        console.print(", ".join(f"{n} {state}" for state, n in count.items()), highlight=False)


def _states(cells: Sequence[Cell], places: Places) -> Iterator[tuple[str, Cell, str]]:
    """The state of each unfinished cell that was started or submitted, and its last message.

    A cell that was stopped is resumed by the same command; one is submitted where Slurm does not
    answer.
    """
    jobs, queue, silent = slurm.last_jobs(places.runs), dict[str, str](), ""
    if any(cell.address in jobs for cell in cells):
        try:
            queue = slurm.queued()
        except UserError as error:
            silent = str(error)
    for cell in cells:
        folder, job = run_folder(places, cell), jobs.get(cell.address, "")
        log, state = slurm.log_of(places.runs, job), queue.get(job, "")
        if state and not re.match("RUNNING|CONFIGURING|COMPLETING", state):
            yield "queued", cell, state
        elif state or is_locked(folder):
            yield "running", cell, _last_line(folder / "log.jsonl") or _last_line(log)
        elif job and silent:
            yield "submitted", cell, silent
        elif failure := _failure(folder):
            yield "data missing" if failure.startswith(NOT_RUN) else "failed", cell, failure
        elif job:
            lost = f"no log: cancelled before it started, or its node cannot reach {log.parent}"
            yield "failed", cell, _last_line(log) or lost
        elif (folder / "config.json").exists():
            yield "stopped", cell, _last_line(folder / "log.jsonl")


def _failure(folder: Path) -> str | None:
    try:
        return read_failure(folder)
    except Damaged as error:
        return str(error)


def _last_line(file: Path) -> str:
    """The last line of a log that is not from submitit; empty without one."""
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return next((line for line in reversed(lines) if line and "submitit " not in line), "")
