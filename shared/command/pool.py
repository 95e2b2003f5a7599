"""The processes of cells: each runs in one of its own, beside others, and says how it went."""

import contextlib
import multiprocessing
import os
import signal
import stat
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from rich.console import Console

from shared.command.domains import imported
from shared.command.places import Places, run_folder
from shared.command.progress import Main, Watch, watching
from shared.distributed import everyone, is_lost
from shared.errors import UserError, describe_os_error
from shared.experiment.data import MissingData
from shared.experiment.records import Damaged, read_record
from shared.experiment.runs import (
    OWN,
    STOPS,
    Conflict,
    Interrupted,
    Locked,
    Run,
    Served,
    record_failure,
)
from shared.experiment.tables import Cell, Config, canonical_json
from shared.report.measuring import NOT_RUN

# Seconds in which a second SIGINT is no second wish: a terminal and a wrapper may both send one.
ECHO = 1.0


def pretraining_of(cell: Cell) -> Mapping[str, Any] | None:
    """What of a cell's configuration is pretraining that others may share; None if nothing is."""
    pretraining = imported(cell.domain).experiment(cell.config).pretraining
    return None if pretraining is None else pretraining(cell.config)


class Pool:
    """Runs cells side by side, each in a process of its own that starts with everything imported.

    Processes are forked from a server that has imported the domain and trained nothing: that is
    fast, and safe for threads, CUDA and renderers.

    Args:
        places: where runs and data lie.
        jobs: how many cells run at a time.
        threads: of each cell.
        deterministic: see :func:`set_up_torch`.
        allow_missing: see :class:`shared.experiment.runs.Run`.
        download: whether missing data are fetched.
        console: where progress is shown.
        own: whether the runs are someone's own, of the tier "own", which no table takes.
        main: by address, the metric that a cell is run for, and what the paper prints there.
        minutes: after which the cells are told to save and stop; None: they get all their time.
    """

    def __init__(
        self,
        places: Places,
        jobs: int,
        *,
        threads: int,
        deterministic: bool,
        allow_missing: bool,
        download: bool,
        console: Console,
        own: bool = False,
        main: Main | None = None,
        minutes: float | None = None,
    ) -> None:
        self.places = places
        self.jobs = jobs
        self.threads = threads
        self.deterministic = deterministic
        self.allow_missing = allow_missing
        self.download = download
        self.console = console
        self.own = own
        self.main = main
        self.minutes = minutes
        self._begun = time.monotonic()
        self.interrupted = False
        self.outcomes: dict[str, str] = {}  # by address, why a cell has no result
        self._waiting: list[Cell] = []
        self._trained_as: Mapping[str, str] = {}  # by address, what it is pretrained as
        # By the pipe that the process talks through; the last is its device.
        self._running: dict[Any, tuple[Cell, Any, str | None]] = {}
        self._devices = visible_devices()
        self._tried: set[str] = set()  # datasets that could not be fetched

    def run(self, cells: list[Cell], before: Callable[[], None] | None = None) -> None:
        """Run the cells; what kept some from being done is then in ``outcomes``.

        Args:
            cells: of one domain, no two with one key.
            before: called when nothing but the first cell's start is left to do, unless the
                command was told to stop by then.
        """
        context = multiprocessing.get_context("forkserver")
        own = (f"{cells[0].domain}.{module}" for module in ("domain", "train"))
        modules = ("shared.command.pool", "torch.utils.tensorboard", "scipy.linalg")
        context.set_forkserver_preload([*own, *modules, "shared.command.preloaded"])
        workers = max(1, cores() // min(self.jobs, len(cells)))
        self._waiting, told = list(cells), False
        self._trained_as = {
            cell.address: canonical_json(part)
            for cell in cells
            if (part := pretraining_of(cell)) is not None
        }
        with asked_to_stop() as asked, watching(self.console, len(cells), self.main) as watch:
            _start_server()
            if before is not None and not asked:
                before()
            while self._running or (self._waiting and not asked):
                while len(self._running) < self.jobs and not asked and (cell := self._next()):
                    here, there = context.Pipe()
                    device = self._free_device()
                    options = (self.threads, self.deterministic, workers, self.allow_missing)
                    given = (cell, self.places, *options, self.own, device, there)
                    process = context.Process(target=_work, args=given, name=cell.address)
                    process.start()
                    there.close()
                    self._running[here] = (cell, process, device)
                    watch.started(cell)
                if self._is_time_up() and not asked:
                    asked.append(signal.SIGTERM)
                if asked and not told:
                    told = True
                    self.console.print("stopping once what runs is saved; with Ctrl-C at once")
                    for _, process, _ in self._running.values():
                        process.terminate()
                if len(asked) > 1:
                    for _, process, _ in self._running.values():
                        process.kill()
                for pipe in wait(list(self._running), timeout=0.2):
                    self._listen(pipe, watch, stopping=bool(asked))
                watch.tick()
        self.interrupted |= bool(asked and self._waiting)

    def _next(self) -> Cell | None:
        """Take the first cell that waits; those whose encoder may be in training come last."""
        running = (cell.address for cell, _, _ in self._running.values())
        trained = {self._trained_as.get(address) for address in running} - {None}
        free = sorted(self._waiting, key=lambda cell: self._trained_as.get(cell.address) in trained)
        if free:
            self._waiting.remove(free[0])
        return next(iter(free), None)

    def _is_time_up(self) -> bool:
        """Whether the minutes that the command has are over."""
        return self.minutes is not None and time.monotonic() - self._begun >= 60 * self.minutes

    def _free_device(self) -> str | None:
        """The GPU with the fewest cells, the first of them; None where there is no choice."""
        if len(self._devices) < 2:
            return None
        taken = Counter(device for _, _, device in self._running.values())
        return min(self._devices, key=lambda device: taken[device])

    def _listen(self, pipe: Any, watch: Watch, *, stopping: bool) -> None:
        """Take one message of a process; any but progress is its last."""
        cell, process, _ = self._running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            why = f"failed: its process ended with code {process.exitcode}"
            # Told to stop before it could listen, a process just ends.
            message = ("interrupted",) if stopping else ("failed", "", why)
        if message[0] == "progress":
            watch.heard(cell, *message[1:])
            return
        process.join()
        del self._running[pipe]
        pipe.close()
        if message[0] == "missing" and self._fetch(cell, message[1]):
            self._waiting.insert(0, cell)
            watch.stopped(cell)
            return
        if message[0] == "interrupted":
            self.interrupted = True
        elif message[0] != "done":
            self.outcomes[cell.address] = message[-1]
            if message[0] != "refused":  # a refused folder belongs to another run
                self._note(cell, message)
        watch.ended(cell, message)

    def _note(self, cell: Cell, message: tuple[Any, ...]) -> None:
        _, trace, why = message
        with contextlib.suppress(OSError):  # a full disk is the failure already reported
            record_failure(run_folder(self.places, cell), why, trace)

    def _fetch(self, cell: Cell, name: str) -> bool:
        """Try once to fetch a dataset that a cell misses."""
        if not self.download or name in self._tried:
            return False
        self._tried.add(name)
        self.console.print(f"fetching {name} ...")
        try:
            imported(cell.domain).fetch(name, self.places.data)
        except (UserError, OSError) as error:
            self.console.print(f"fetching {name} failed: {error}", soft_wrap=True)
            return False
        return True


def _start_server() -> None:
    """Start what the processes are forked of; a terminal's signals are for this process alone."""
    ignored = [number for number in STOPS if number != signal.SIGTERM]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(
    cell: Cell,
    places: Places,
    threads: int,
    deterministic: bool,
    workers: int,
    allow_missing: bool,
    own: bool,
    device: str | None,
    pipe: Connection,
) -> None:
    """The process of one cell: run it, and say through the pipe how it went."""
    if device is not None:  # before anything asks for the GPUs; renderers go by it, too
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    set_up_torch(threads, deterministic=deterministic)

    def progress(done: int, total: int, what: str) -> None:
        with contextlib.suppress(OSError):
            pipe.send(("progress", done, total, what))

    run = Run(
        run_folder(places, cell),
        cell.config,
        tier=OWN if own else cell.tier,
        workers=workers,
        data_root=places.data,
        allow_missing=allow_missing,
        progress=progress,
        store=places.store_of(cell),
    )
    message = outcome(run, cell)
    with contextlib.suppress(OSError):  # the parent is gone; the files say it all
        pipe.send(message)


def set_up_torch(threads: int, *, deterministic: bool) -> None:
    """Make torch compute the same numbers as in any other process of a cell.

    Args:
        threads: of torch.
        deterministic: on a GPU, too; an operator that cannot then raises RuntimeError. Called
            before the process has multiplied anything there.
    """
    import torch

    # One cell gives the same numbers to the bit however many run beside it; with another number
    # of threads the last bits may differ, so that is not left to the machine.
    torch.set_num_threads(threads)
    # Bits are promised on the CPU alone, where nobody asks: on a GPU that costs much of its speed.
    same_bits = deterministic or not torch.cuda.is_available()
    torch.use_deterministic_algorithms(same_bits, warn_only=not deterministic)
    if deterministic:
        # Of the values that torch accepts, the one its documentation of recurrent layers has, too.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    # It would write every new tensor twice, to make equal what is read before it is written. torch
    # makes the name when it runs, where mypy does not see it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not deterministic  # its choice can be another in each process


def outcome(run: Run, cell: Cell) -> tuple[Any, ...]:
    """Run a cell, unless another process has done so by now, and say how it went.

    Returns:
        One of: "done" and the result; "interrupted"; "missing", a dataset and why; "refused" and
        why; "failed", the traceback and why; of several processes also "served", for those that
        the first leaves behind, and "lost", the traceback and why, for those that others left.
    """
    folder = run.folder
    try:
        domain = imported(cell.domain)
        with temporary_folder(), run:
            _stop_with_parent(run)
            # As the first process sees it.
            (finished, *_) = everyone(read_record(folder, cell.address) is not None)
            if finished:
                run.alone()
            else:
                with _told_together(run):
                    run.finish(domain.measure(cell.config, run))
            record = read_record(folder, cell.address)
        assert record is not None  # just written
        return ("done", record.result)
    except Served:
        return ("served",)
    except Interrupted:
        return ("interrupted",)
    except MissingData as error:
        why = f"{NOT_RUN}: data missing; {error.remedy}"
        return ("missing", error.name, why)
    except (Locked, Conflict, Damaged) as error:
        return ("refused", str(error))
    except OSError as error:
        return ("failed", traceback.format_exc(), f"failed: {describe_os_error(error)}")
    except UserError as error:
        return ("failed", traceback.format_exc(), f"failed: {error}")
    except FloatingPointError as error:
        why = f"failed: {error}"
        if run.saved_step is not None:
            file = folder / "checkpoint.pt"
            why = f"{why}; last good checkpoint: {file} at step {run.saved_step}"
        return ("failed", traceback.format_exc(), why)
    except Exception as error:
        if is_lost(error):
            return ("lost", traceback.format_exc(), lost(run.processes))
        why = f"failed: {type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
        if _is_out_of_memory(error):
            why = f"failed: {_describe_out_of_memory(cell.config)}"
        return ("failed", traceback.format_exc(), why)


@contextlib.contextmanager
def _told_together(run: Run) -> Iterator[None]:
    """Processes of a run's own hear what tells it to stop, too, and are gone before it has stopped.

    Terminals and schedulers tell all of a job's processes at once.
    """
    try:
        yield
    except (EOFError, ConnectionError, KeyboardInterrupt) as error:
        if run.stopping:
            raise Interrupted from error
        raise


def lost(processes: int, which: str = "one", went: str = "ended") -> str:
    """What to say when one of several processes has gone without a word."""
    return (
        f"failed: {which} of its {processes} processes {went}; "
        f"the same command goes on from the last checkpoint"
    )


def _stop_with_parent(run: Run) -> None:
    """Save and stop when the process that started this one is gone."""
    parent, number = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:
        if parent is not None:
            parent.join()
        while parent is None and os.getppid() == number:  # under torchrun
            time.sleep(1)
        run.stopping = True

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """A list that fills when one of ``STOPS`` arrives: once, and again for a later SIGINT alone.

    Schedulers and wrappers repeat themselves, and a run needs its time to save.
    """
    asked: list[int] = []
    echoes_until = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal echoes_until
        if number == signal.SIGHUP:
            _leave_terminal()
        if not asked:
            echoes_until = time.monotonic() + ECHO
        if not asked or (number == signal.SIGINT and time.monotonic() > echoes_until):
            asked.append(number)

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as nohup wants it
    numbers = [number for number in STOPS if number != signal.SIGHUP or not ignored]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    """Say nothing more where nobody listens: writing to a terminal that has gone is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere, number)
    os.close(nowhere)


@contextlib.contextmanager
def temporary_folder() -> Iterator[None]:
    """What libraries leave in the folder for temporary files goes when the block is left."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="run-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = None
            del os.environ["TMPDIR"]
            if before is not None:
                os.environ["TMPDIR"] = before


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The allocator of the CPU has no exception of its own, only these words.
    words = ("not enough memory", "can't allocate memory")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def _describe_out_of_memory(config: Config) -> str:
    size = getattr(config, "batch_size", None)
    return "out of memory" if size is None else f"out of memory; lower batch_size ({size})"


def default_jobs(threads: int) -> int:
    """How many cells of so many threads run at a time where nobody says: on GPUs, one each."""
    return len(visible_devices()) or max(1, cores() // threads)


def cores() -> int:
    """The cores that this process may use: those it is bound to, or of its task of Slurm."""
    bound = hasattr(os, "sched_getaffinity")  # not on macOS
    here = len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1
    return min(here, int(os.environ.get("SLURM_CPUS_PER_TASK", here)))


def visible_devices() -> tuple[str, ...]:
    """The GPUs that cells can be placed on, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if named is None else named.split(",")
    return tuple(name.strip() for name in names)[:count]
