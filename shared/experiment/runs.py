"""A run is a folder: configuration, environment, log, checkpoint and, written last, the result.

    config.json        canonical, written first; another configuration is refused
    environment.json   commit, command, versions, hardware, arithmetic, hashes of the data, further
                       facts, notices of the training; no names of hosts, users and folders, see
                       :func:`environment`
    log.jsonl          one line for each logged step; tensorboard/ holds the same as event files
    checkpoint.pt      everything tracked, the step, the seconds, every random state, and a SHA-256
                       of it all; a domain may have it deleted once the run is done
    checkpoint.previous.pt  the one before it, in case that is damaged; gone once the run is done
    failure.json       why the last attempt gave no result; gone once the run is done
    result.json        metrics, and the hash of the run; its existence means done

Every file is written beside its target, flushed to disk, and moved over it, so that a process
killed at any moment leaves either the old or the new one. The log alone is appended to; lines past
the checkpoint, and a torn last line, are cut when the run resumes.
"""

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import filelock
import numpy as np
import psutil
import torch
from torch import Tensor

from shared.distributed import anywhere, everyone, leave, rank, world_size
from shared.errors import UserError
from shared.experiment.arithmetic import arithmetic_used
from shared.experiment.history import differences, form_of, upgraded_config
from shared.experiment.records import HASH, Damaged, content_hash, read_json
from shared.experiment.seal import read_sealed, write_sealed
from shared.experiment.tables import TIERS, Config, canonical, canonical_json, place_of, run_key
from shared.experiment.tracking import VARIABLE, weights_and_biases
from shared.experiment.versions import lock_hash
from shared.notices import listeners
from shared.precision import tf32_allowed, without_tf32

LOG = "log.jsonl"
INTERRUPTED = 75  # EX_TEMPFAIL: the same command goes on where this one stopped
PACKAGES = (
    "torch",
    "torchvision",
    "torch-geometric",
    "scikit-learn",
    "numpy",
    "scipy",
    "safetensors",
    "transformers",
    "tokenizers",
    "mujoco",
    "dm-control",
    "gymnasium",
)
OWN = "own"  # the tier of runs outside tables
LOCK_WAIT = 10.0  # seconds; a process that was just told to stop gets to its checkpoint in them
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # ask to save and stop
# What of a command line is not for others to read: where absolute paths lie, and secrets.
FOLDERS = re.compile(r"(?<![^\s='\":,])(?:~|(?:\.\./)*\.\.)?/(?:(?:\\.|[^\s/\\])+/)+")
SECRETS = re.compile(
    r"([\w-]*(?:token|secret|passw|credential|api[_-]?key)[\w-]*[= ])(?:\\.|[^\s\\])+",
    re.IGNORECASE,
)
USERS = re.compile(r"(?<=://)[^\s/@]+@")


class Locked(UserError):
    """Another process holds the folder, or it is no longer the folder that this one began in."""


class Conflict(UserError):
    """The folder was made with another configuration."""


class Interrupted(SystemExit):
    """The run was told to stop and has saved its state."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


class Served(SystemExit):
    """A process that is not the first of its run has nothing left to do."""

    def __init__(self) -> None:
        super().__init__(0)


class Stateful(Protocol):
    """Anything with a state that torch can save: modules, optimisers, schedules, scalers."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take the state over."""


class Logger(Protocol):
    """Takes what a run logs, beside its folder."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """One line."""

    def close(self) -> None:
        """The run is left."""


class Run:
    """One run in its folder; a context manager that holds the folder's lock.

    Entering seeds Python's, numpy's and torch's generators from the configuration, keeps GPUs from
    taking TF32 for float32 until the run is left, and makes
    SIGTERM, SIGINT and SIGHUP a request: the next :meth:`checkpoint` saves and raises
    :class:`Interrupted`.

    Of several processes (torchrun's, see :mod:`shared.distributed`) each has a run of the same
    configuration. The first one's holds the lock and writes, the others read its checkpoint; the
    steps go on, are saved and end together, and :meth:`alone` leaves the rest to the first.

    Args:
        folder: where the run lives.
        config: its configuration.
        tier: of the cell; free text for runs outside tables.
        workers: how many processes or threads the run may use.
        data_root: where datasets lie.
        allow_missing: whether the run may leave out files that a dataset lacks or that cannot be
            read; the environment says so.
        progress: called with (done, total, what) as the run goes on.
        store: where pretrained models are shared, see :mod:`shared.experiment.store`; None: they
            are not.

    Attributes:
        stopping: whether the run was asked to stop.
        keep_checkpoint: set to False, :meth:`finish` deletes the checkpoint.
        loggers: that get each line of the log, too; :mod:`shared.experiment.tracking` has one.
        means: of what the steps give it; :meth:`steps` logs them, a checkpoint holds them.
        temporary: folders that :meth:`finish` deletes, too, once the result is written.
        saved_step: the step that the checkpoint on disk holds; None without one.
        processes: how many work on the run.

    Raises:
        Locked: another process holds the folder; later, by what writes there: it was removed.
        Conflict: the folder was made with another configuration.
        UserError: a folder whose name is no UTF-8; of several processes, when the batch cannot be
            divided among them, another number began the run, or they have another code or
            configuration than the first.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        *,
        tier: str = OWN,
        workers: int = 1,
        data_root: Path = Path("data"),
        allow_missing: bool = False,
        progress: Callable[[int, int, str], None] | None = None,
        store: Path | None = None,
    ) -> None:
        self.folder = folder
        self.store = store
        self.config = config
        self.tier = tier
        self.workers = workers
        self.data_root = data_root
        self.allow_missing = allow_missing
        self.stopping = False
        self.keep_checkpoint = True
        self.loggers: list[Logger] = []
        self.means = Means()
        self.temporary: list[Path] = []
        self.saved_step: int | None = None
        self.processes = 1
        self._first = True
        self._random_of_others: list[dict[str, Any]] = []
        self._progress = progress
        self._tracked: dict[str, Stateful] = {}
        self._reached = 0
        self._seconds_before = 0.0
        self._started = self._saved = time.monotonic()
        self._lock = filelock.FileLock(folder / ".lock", timeout=LOCK_WAIT)
        self._locked_as: tuple[int, int] | None = None  # the file that the lock is on
        self._handlers: dict[int, Any] = {}
        self._writer: Any = None
        self._precision = contextlib.ExitStack()

    def __enter__(self) -> "Run":
        if project := os.environ.get(VARIABLE):
            weights_and_biases(self, project)
        check_name(self.folder)
        self.processes, self._first = world_size(), rank() == 0
        check_processes(self.config, self.processes)
        if self._first:
            self.folder.mkdir(parents=True, exist_ok=True)
            _acquire(self._lock, self.folder)
            self._locked_as = self._lock_on_disk()
        self._precision.enter_context(without_tf32())
        try:
            self._environment = environment(self.workers)
            if self.processes > 1:
                self._environment["processes"] = self.processes
                _check_alike(self._environment, self.config)
            if self.allow_missing:
                self._environment["allow_missing"] = True
            if notices := self._notices_before():
                self._environment["notices"] = notices
            if self._first:
                for part in self.folder.glob(".*.part"):  # what a killed process left half-written
                    part.unlink(missing_ok=True)
                check_config(self.folder, self.config)
                check_begun(self.folder, self.processes)
                if not (self.folder / "config.json").exists():
                    write_atomically(self.folder / "config.json", canonical_json(self.config))
                self._note_environment()
        except BaseException:
            self._precision.close()
            self._lock.release()
            raise
        for number in STOPS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # as nohup wants it
            with contextlib.suppress(ValueError):  # not the main thread
                self._handlers[number] = signal.signal(number, self._ask_to_stop)
        self._started = self._saved = time.monotonic()
        seed_everything(self.config.seed)
        listeners.append(self.keep_notice)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        listeners.remove(self.keep_notice)
        self._precision.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._writer is not None:
            self._writer.close()
        for logger in self.loggers:
            logger.close()
        self._lock.release()

    @property
    def seconds(self) -> float:
        """Seconds spent on the run so far, those before the checkpoint it resumed from included."""
        return self._seconds_before + time.monotonic() - self._started

    def record_data(self, **fingerprints: str) -> None:
        """Note the hashes of the datasets used, by name."""
        self._environment["data"] |= fingerprints
        self._note_environment()

    def record(self, **facts: str) -> None:
        """Note further facts about where or with what the run takes place, by name."""
        self._environment.setdefault("facts", {}).update(facts)
        self._note_environment()

    @property
    def environment(self) -> Mapping[str, Any]:
        """Where and with what the run takes place, as far as it is known."""
        return self._environment

    def wait_for_another(self) -> None:
        """Say that another process is doing what this run needs.

        Raises:
            Interrupted: the run was told to stop.
        """
        self.progress(0, 1, "waiting for another run")
        if self.stopping:
            raise Interrupted

    def alone(self) -> None:
        """From here on the first process works alone; the others end, and nobody waits for them.

        Raises:
            Served: in all processes but the first.
        """
        if world_size() > 1:
            leave()
            if not self._first:
                raise Served

    def track(self, **objects: Stateful) -> int:
        """Name what a checkpoint holds, restore it if there is one, and give the step reached.

        In place of a damaged checkpoint the one before it is used, with a warning that says so: the
        steps between the two are repeated, to the same numbers. What is tracked and has files of
        its own must therefore be able to go back by one checkpoint.

        Raises:
            UserError: a checkpoint that does not fit the objects, or is damaged as is the one
                before it.
        """
        self._tracked = objects
        file = self.folder / "checkpoint.pt"
        step = 0
        (saved, *_) = everyone(file.exists())
        if saved:
            # The first alone: it may have to put the one before in a damaged one's place.
            state = self._saved_state(file) if self._first else None
            everyone(None)
            if state is None:
                state = _read_shared(file)
            try:
                for name, item in objects.items():
                    item.load_state_dict(state["objects"][name])
                # Not every run of earlier days had means.
                self.means.load_state_dict(state["objects"].get("means", Means().state_dict()))
                step = self.saved_step = int(state["step"])
                self._seconds_before = float(state["seconds"])
                self._random_of_others = state.get("random_of_others", [])
                every_state = [state["random"], *self._random_of_others]
                restore_random_state(every_state[rank()])
            except UserError:  # what is tracked has files of its own, and names them
                raise
            except Exception as error:  # what does not fit can raise anything
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                raise UserError(
                    f"{file} cannot be resumed ({reason}); delete the folder to start again"
                ) from error
        if self._first:
            self._trim_log(step)
        self._reached = step
        return step

    def steps(
        self,
        total: int,
        what: str,
        *,
        unit: int = 1,
        log_every: int = 1,
        save_every: float = 0.0,
        also: Callable[[int], Mapping[str, float]] | None = None,
    ) -> Iterator[int]:
        """The steps of a loop that are left, from the one that :meth:`track` has reached.

        After each step whoever watches is told, every ``log_every`` steps and after the last one
        the :attr:`means` are logged, and what is tracked is saved when that is due::

            run.track(model=model, optimiser=optimiser)
            for step in run.steps(1000, "training", log_every=100, save_every=120.0):
                run.means.add(train_step(model, optimiser, step))

        Args:
            total: how many steps there are, counted from 0, those done before included.
            what: the loop is doing, for whoever watches.
            unit: what a step counts for in log, checkpoint and progress; a step that was reached
                counts so, too.
            log_every: steps that a line of the log is the mean of.
            save_every: seconds between two checkpoints, see :meth:`checkpoint`. One that is older
                than a tenth of them is renewed after the last step, since an evaluation can take
                long, too.
            also: further numbers for the line of the log that a step ends, by name.

        Raises:
            Interrupted: after a step and its save, when the run was told to stop.
        """
        first = self._reached // unit
        for step in range(first, total):
            yield step
            done = step + 1
            if done % log_every == 0 or done == total:
                numbers = {**(also(step) if also else {}), **_mean_of(everyone(self.means.take()))}
                if numbers:
                    self.log(done * unit, **numbers)
            self.progress(done * unit, total * unit, what)
            self.checkpoint(done * unit, every=save_every)
        last = first < total and self.saved_step != total * unit
        (stopping,) = anywhere(self.stopping)
        if stopping or last:
            self.checkpoint(total * unit, every=save_every / 10)

    def log(self, step: int, **numbers: float) -> None:
        """Append one line to the log, and the same to TensorBoard's event file."""
        if not self._first:
            return
        self._check_lock()
        line = {"step": step, "seconds": round(self.seconds, 3), **numbers}
        with (self.folder / LOG).open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step)
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)
        for logger in self.loggers:
            logger.log(step, numbers)

    def progress(self, done: int, total: int, what: str) -> None:
        """Tell whoever watches how far the run is."""
        if self._progress is not None:
            self._progress(done, total, what)

    def checkpoint(self, step: int, *, every: float = 0.0) -> None:
        """Save what is tracked; then stop, if that was asked for.

        Large models with short epochs would spend much of their time on saves: ``every`` spaces
        them out. A run that is killed then repeats up to that much work, to the same numbers; one
        that is told to stop still loses nothing. The last step of a run is best saved without
        ``every``, so that the checkpoint holds what is evaluated.

        Args:
            step: the step reached.
            every: seconds that must have passed since the last save, or since the start; 0 saves
                always.

        Raises:
            Interrupted: after the save, when the run was told to stop.
        """
        due = self._first and time.monotonic() - self._saved >= every
        if not any(anywhere(self.stopping, due)):  # all processes, or none
            return
        self._save(step)
        self.saved_step, self._saved = step, time.monotonic()
        if any(anywhere(self.stopping)):
            raise Interrupted

    def _save(self, step: int) -> None:
        if world_size() > 1:
            _, *self._random_of_others = everyone(random_state())
        if not self._first:
            return
        self._check_lock()
        state = {
            "step": step,
            "seconds": self.seconds,
            "objects": {
                name: item.state_dict()
                for name, item in {**self._tracked, "means": self.means}.items()
            },
            "random": random_state(),
        }
        if self._random_of_others:
            state["random_of_others"] = self._random_of_others
        file = self.folder / "checkpoint.pt"
        with replacing(file) as part:
            write_sealed(part, state)
            # A link, so that there is no moment without a checkpoint; none before the first save,
            # nor on a file system without links.
            with contextlib.suppress(OSError):
                self._previous.unlink(missing_ok=True)
                os.link(file, self._previous)

    def finish(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Write the result; the run is done. Of several processes, the first alone gets here."""
        self.alone()
        self._check_lock()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if torch.cuda.is_available():
            self._environment["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated()
        (self.folder / "result.json").unlink(missing_ok=True)  # of the same run, finished before
        self._note_environment()
        result = {
            "metrics": canonical(metrics),
            "protocol": self.config.protocol,
            "tier": self.tier,
            "seconds": round(self.seconds, 3),
            "peak_memory_bytes": peak,
            "finished": now(),
        }
        config = read_json(self.folder / "config.json")
        result[HASH] = content_hash(config, self._environment, result)
        self._previous.unlink(missing_ok=True)
        write_atomically(self.folder / "result.json", json.dumps(result, indent=2) + "\n")
        (self.folder / "failure.json").unlink(missing_ok=True)
        if not self.keep_checkpoint:
            (self.folder / "checkpoint.pt").unlink(missing_ok=True)
        for folder in self.temporary:
            shutil.rmtree(folder, ignore_errors=True)
        return result

    @property
    def _previous(self) -> Path:
        return self.folder / "checkpoint.previous.pt"

    def _saved_state(self, file: Path) -> Any:
        """What the checkpoint holds, or the one before it, which then takes its place."""
        try:
            return read_sealed(file)
        except ValueError as error:
            reason = str(error)
        if self._previous.exists():
            try:
                state = read_sealed(self._previous)
            except ValueError as error:
                reason += f"; {self._previous.name}: {error}"
            else:
                self._previous.replace(file)
                text = f"{reason}; going on from the checkpoint before it, of step {state['step']}"
                warnings.warn(f"{file}: {text}", stacklevel=3)
                return state
        raise UserError(f"{file} cannot be resumed ({reason}); delete the folder to start again")

    def _lock_on_disk(self) -> tuple[int, int] | None:
        """Device and inode of the folder's lock; None where there is none."""
        try:
            found = (self.folder / ".lock").stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _check_lock(self) -> None:
        """Refuse to write where another process may be at work by now.

        Raises:
            Locked: the folder was removed while the run went on, and perhaps made anew.
        """
        if self._locked_as != self._lock_on_disk():
            raise Locked(
                f"{self.folder}: the folder was removed while its run went on, so this process "
                f"stops; the same command starts the run anew"
            )

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def keep_notice(self, text: str) -> None:
        """Note a line about the training for whoever reads the record."""
        self._environment.setdefault("notices", []).append(text)
        self._note_environment()

    def _notices_before(self) -> list[str]:
        """Notices of the part of the run that a checkpoint holds."""
        file = self.folder / "environment.json"
        if not file.exists() or not (self.folder / "checkpoint.pt").exists():
            return []
        notices: list[str] = read_json(file).get("notices", [])
        return notices

    def _note_environment(self) -> None:
        if not self._first or (self.folder / "result.json").exists():
            return  # the hash of a result speaks of the file that is there
        self._check_lock()
        text = json.dumps(self._environment, indent=2) + "\n"
        write_atomically(self.folder / "environment.json", text)

    def _trim_log(self, step: int) -> None:
        """Cut what was logged after the checkpoint: it is about to be computed again."""
        file = self.folder / LOG
        if not file.exists():
            return
        kept = []
        for line in file.read_text(errors="replace").splitlines():
            try:
                if json.loads(line)["step"] > step:
                    break
            except (ValueError, KeyError):  # a line torn by a kill
                break
            kept.append(line + "\n")
        write_atomically(file, "".join(kept))


class Means:
    """Running means of the parts of the loss; nothing waits for the device before they are taken.

    A part that some steps lack counts in those that have it. It has a state, so that the log of an
    interrupted epoch comes out as if it had not been.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, parts: dict[str, Tensor]) -> None:
        """Take the scalars of one step in."""
        for name, value in parts.items():
            value, sum_ = value.double(), self._sums.get(name)
            self._sums[name] = value if sum_ is None else sum_.to(value.device) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """The means since the last call."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def state_dict(self) -> dict[str, object]:
        """Sums and counts."""
        return {"sums": self._sums, "counts": self._counts}

    def load_state_dict(self, state: dict[str, object], /) -> None:
        """Take sums and counts over."""
        sums, counts = state["sums"], state["counts"]
        assert isinstance(sums, dict)
        assert isinstance(counts, dict)
        self._sums, self._counts = sums, counts


def check_config(folder: Path, config: Config) -> None:
    """Compare the folder's configuration with ``config``.

    Raises:
        Conflict: they differ; the text names the keys.
    """
    file = folder / "config.json"
    if file.exists() and (differing := differences(read_json(file), config)):
        raise Conflict(
            f"{folder} holds a run with another configuration ({'; '.join(differing)}); "
            f"move it aside and run anew with --again, or choose another folder with --runs"
        )


def check_name(folder: Path) -> None:
    """Refuse a folder whose name is no UTF-8, which TensorBoard's files cannot lie in.

    Raises:
        UserError: it is none.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{folder!r}: the name is no UTF-8, and TensorBoard writes to no such folder; rename "
            f"it, or choose another with --runs"
        ) from None


def check_processes(config: Config, processes: int) -> None:
    """Refuse a number of processes that the batch cannot be divided among.

    Raises:
        UserError: it does not divide the batch.
    """
    size = getattr(config, "batch_size", 1)
    if processes > 1 and size % processes:
        some = ", ".join(str(number) for number in range(2, 17) if size % number == 0)
        raise UserError(
            f"batch_size {size} cannot be divided among {processes} processes; take one"
            f"{f', or {some}' if some else ''}"
        )


def check_begun(folder: Path, processes: int) -> None:
    """Refuse to go on from the checkpoint of another number of processes.

    Raises:
        Conflict: the run in the folder was begun on another number.
    """
    if not (folder / "checkpoint.pt").exists() or (folder / "result.json").exists():
        return
    begun = read_json(folder / "environment.json").get("processes", 1)
    if begun != processes:
        raise Conflict(
            f"{folder} holds a run that was begun on {begun} process{'es' * (begun > 1)}, not "
            f"{processes}; go on with --processes {begun}, or move it aside and run anew with "
            f"--again"
        )


def set_aside(folder: Path) -> Path:
    """Move a run to a folder beside its own, ``NAME`` to ``NAME.1``, and return where it is.

    Raises:
        Locked: another process holds the folder.
    """
    lock = filelock.FileLock(folder / ".lock", timeout=LOCK_WAIT)
    _acquire(lock, folder)
    try:
        taken = {path.name for path in folder.parent.iterdir()}
        number = next(n for n in itertools.count(1) if f"{folder.name}.{n}" not in taken)
        return folder.rename(folder.with_name(f"{folder.name}.{number}"))
    finally:
        lock.release()


def is_aside(folder: Path) -> bool:
    """Whether :func:`set_aside` has moved a run to this folder."""
    return re.search(r"-[0-9a-f]{16}\.\d+$", folder.name) is not None


def move_earlier(runs: Path, domain: str, kinds: Collection[type]) -> int:
    """Move the runs of a domain to where they would be made today; returns how many were moved.

    A run's folder is named by its configuration: those from before it was, and those of a
    configuration that a field was added to or renamed in since, lie elsewhere. Looked for once for
    each form of the configurations, which a file in the domain's folder tells. Runs that were moved
    aside stay, as do those that somebody works on and a second one of one configuration.

    Args:
        runs: the folder of runs.
        domain: whose runs.
        kinds: the classes of the domain's configurations.
    """
    mark, form = runs / domain / ".form", form_of(kinds)
    if not os.access(runs, os.W_OK) or (mark.exists() and mark.read_text() == form):
        return 0
    by_address = f"{domain}/*/*/*/*/seed-*/config.json"
    found = [("", file) for file in runs.glob(f"{domain}/*/*/config.json")]
    found += [("paper", file) for file in runs.glob(by_address)]
    found += [(tier, file) for tier in TIERS for file in (runs / tier).glob(by_address)]
    moved = 0
    for tier, file in sorted(found):
        target = _place_today(file, tier, domain, kinds)
        if target is not None and not (runs / target).exists():
            moved += _moved(file.parent, runs / target)
    write_atomically(mark, form)
    return moved


def _place_today(file: Path, tier: str, domain: str, kinds: Collection[type]) -> Path | None:
    """Where the run of a ``config.json`` belongs below the folder of runs; None if none knows.

    The tier is known of a folder that was named by an address, else told by the key that it has.
    """
    name = file.parent.name
    try:
        config = read_json(file)
    except Damaged:  # said of the run, should anyone want it
        return None
    if tier and not re.fullmatch(r"seed-\d+", name):  # it was moved aside
        return None
    for each in TIERS if not tier else ():
        if name.endswith(f"-{run_key(each, config)}"):
            tier = each
    for kind in kinds:
        today = upgraded_config(config, kind)
        if tier and today.keys() == {item.name for item in dataclasses.fields(kind)}:
            return place_of(domain, tier, today)
    return None


def _moved(folder: Path, target: Path) -> bool:
    """Move a run that nobody works on, and remove the folders that this leaves empty."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock", timeout=0)
    try:
        with lock:
            folder.rename(target)
    except filelock.Timeout:
        return False
    with contextlib.suppress(OSError):  # not empty
        for parent in folder.parents:
            parent.rmdir()
    return True


def record_failure(folder: Path, why: str, trace: str) -> None:
    """Note why an attempt gave no result, for the table and for whoever looks into it."""
    content = {"why": why, "traceback": trace, "time": now()}
    write_atomically(folder / "failure.json", json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside ``path`` to write to; flush what was written to disk, and move it over."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # not every file system can flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def link(source: Path, target: Path) -> None:
    """Put a file that never changes at a second place: a link where the disk can, else a copy."""
    if target.exists() and target.samefile(source):  # which no move would replace
        return
    with replacing(target) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is never seen half-written; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The states of all global generators, as data that ``torch.load(weights_only=True)`` takes."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set all global generators to a state from :func:`random_state`."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, tensor, *rest = state["numpy"]
    np.random.set_state((name, tensor.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def environment(workers: int) -> dict[str, Any]:
    """Where and with what a run takes place; hashes of the data are added as they are read.

    It is published with the results, so it names no host and no user: of variables only those that
    steer the arithmetic are kept, and the command is given by :func:`public`.
    """
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        **commit(),
        "command": public(os.environ.get("SUITE_COMMAND") or " ".join(sys.argv)),
        "started": now(),
        "versions": versions,
        "lock": lock_hash(),
        "hardware": {
            "system": "-".join(
                filter(None, (platform.system(), platform.machine(), *platform.libc_ver()))
            ),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "accelerators": [
                torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
            ],
        },
        "arithmetic": arithmetic_used(),
        "tf32": tf32_allowed(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "workers": workers,
        "data": {},
    }


def public(command: str) -> str:
    """A command line without the folders of absolute paths, without secrets and users of addresses.

    >>> public("./reproduce.sh graph mmcl --data-root /home/ada/data")
    './reproduce.sh graph mmcl --data-root .../data'
    """
    text = command.encode("utf-8", "backslashreplace").decode()  # a path may be no UTF-8
    home = re.escape(os.path.expanduser("~"))
    text = re.sub(rf"(?<![^\s='\":,]){home}(?=[\s/]|$)", "~", text)
    return SECRETS.sub(r"\1...", USERS.sub("", FOLDERS.sub(".../", text)))


def commit() -> dict[str, Any]:
    """The checked-out commit, and whether code that a run uses differs from it."""
    root = Path(__file__).resolve().parents[2]
    code = [path.name for path in root.iterdir() if (path / "__init__.py").exists()]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            raise OSError("a copy that is installed inside the checkout of something else")
        dirty = git("status", "--porcelain", "--", "pyproject.toml", *sorted(code))
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(dirty)}
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout
        return {"commit": "unknown", "dirty": True}


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _check_alike(environment_: Mapping[str, Any], config: Config) -> None:
    """Refuse a process whose code or configuration is another than the first one's."""
    own = {
        "commit": environment_["commit"],
        "changed files": environment_["dirty"],
        "torch": environment_["versions"]["torch"],
        "configuration": canonical_json(config),
    }
    every = everyone(own)
    for number, other in enumerate(every):
        for name, value in every[0].items():
            if other[name] != value:
                shown = "" if name == "configuration" else f": {other[name]}, not {value}"
                raise UserError(
                    f"process {number} has another {name} than process 0{shown}; give all "
                    f"processes of a run the same checkout and arguments"
                )


def _read_shared(file: Path) -> Any:
    try:
        return read_sealed(file)
    except (OSError, ValueError) as error:
        raise UserError(
            f"process {rank()} cannot read {file} ({error}); all processes of a run need the same "
            f"runs/, on a file system that they share"
        ) from None


def _mean_of(found: list[dict[str, float]]) -> dict[str, float]:
    """The mean over processes of each number; of one process, its numbers."""
    if len(found) == 1:
        return found[0]
    return {name: sum(each[name] for each in found) / len(found) for name in found[0]}


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _acquire(lock: filelock.BaseFileLock, folder: Path) -> None:
    try:
        lock.acquire()
    except filelock.Timeout:
        raise Locked(f"{folder}: another process is at work there; wait for it") from None
