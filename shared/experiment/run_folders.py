"""The folder of a run: what it may be used for, who uses it, and how work in it ends.

Needs no torch; :mod:`shared.experiment.run` trains in such a folder.
"""

import itertools
import json
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import filelock

from shared.errors import UserError, naming
from shared.experiment.checkout import now
from shared.experiment.config import Config, differences
from shared.experiment.files import write_atomically
from shared.experiment.records import read_json

LOG = "log.jsonl"
INTERRUPTED = 75  # EX_TEMPFAIL: the same command continues where this one stopped
RUN_OUTPUTS = ("checkpoint.pt", "result.json")  # what a run continues from, or ended with
LOCK_WAIT = 10.0  # seconds, in which an interrupted process reaches its checkpoint
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # ask to save and stop
WATCHED = "watch/"  # begins the names of scores during pretraining, which are not metrics


class Locked(UserError):
    """Another process uses the folder."""


class Conflict(UserError):
    """The folder was made with another configuration."""


class Interrupted(SystemExit):
    """The run was asked to stop and has saved its state."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


class WorkerDone(SystemExit):
    """A process other than the first of its run has nothing left to do."""

    def __init__(self) -> None:
        super().__init__(0)


def stop_signals() -> list[signal.Signals]:
    """The signals that ask to save and stop; no SIGHUP where nohup has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in STOPS if number != signal.SIGHUP or not ignored]


def check_config(folder: Path, config: Config) -> None:
    """Raise a :class:`Conflict` that names the keys in which the folder's configuration differs.

    :class:`Damaged`: there is a checkpoint or result, but no configuration that says of what.
    """
    file = folder / "config.json"
    if any((folder / name).exists() for name in RUN_OUTPUTS):
        read_json(file)
    if file.exists() and (differing := differences(read_json(file), config)):
        raise Conflict(
            f"{folder} holds a run with another configuration ({'; '.join(differing)}); "
            f"rename it, or choose another folder; --again and --runs do so for a table's cells"
        )


def check_same_processes(folder: Path, processes: int) -> None:
    """Raise a :class:`Conflict` for a checkpoint of another number of processes."""
    if not (folder / "checkpoint.pt").exists() or (folder / "result.json").exists():
        return
    before = read_json(folder / "environment.json").get("processes", 1)
    if before != processes:
        raise Conflict(
            f"{folder} holds a run that was started with {before} process{'es' * (before > 1)}, "
            f"not {processes}; continue with torchrun --nproc-per-node {before}, or use --again"
        )


def archive(folder: Path) -> Path:
    """Move a run to a folder beside its own, ``NAME`` to ``NAME.1``, and return its path.

    :class:`Locked`: another process uses the folder.
    """
    with locked(folder):
        names = {path.name for path in folder.parent.iterdir()}
        number = next(n for n in itertools.count(1) if f"{folder.name}.{n}" not in names)
        return folder.rename(folder.with_name(f"{folder.name}.{number}"))


def record_failure(folder: Path, why: str, trace: str) -> None:
    """Write why an attempt failed, for the table and for debugging."""
    content = {"why": why, "traceback": trace, "time": now()}
    write_atomically(folder / "failure.json", json.dumps(content, indent=2) + "\n")


def log_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's log; none if the run has none."""
    file = folder / LOG
    return map(json.loads, file.read_text("utf-8").splitlines() if file.is_file() else ())


def is_locked(folder: Path) -> bool:
    """Whether a process uses the folder of a run now."""
    if not (folder / ".lock").exists():
        return False
    try:
        with filelock.FileLock(folder / ".lock", timeout=0):
            return False
    except filelock.Timeout:
        return True
    except OSError:  # of another user, or on a file system without locks
        return False


def locked(folder: Path) -> AbstractContextManager[object]:
    """The lock of a folder, for a with block; :class:`Locked` if another process has it."""
    try:
        with naming("flock", folder / ".lock"):
            return filelock.FileLock(folder / ".lock", timeout=LOCK_WAIT).acquire()
    except filelock.Timeout:
        raise Locked(f"{folder}: another process is using it; wait for it to end") from None
