"""The processes of cells: each runs in one of its own, beside others, and says how it went."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from shared.command.domains import imported, tables_of
from shared.command.places import Places, run_folder, undamaged
from shared.command.progress import Main, Watch, watching
from shared.distributed import everyone, is_lost
from shared.errors import UserError, describe_os_error
from shared.experiment.data import MissingData
from shared.experiment.history import differences, home
from shared.experiment.records import Damaged, read_record
from shared.experiment.runs import (
    OWN,
    Conflict,
    Interrupted,
    Locked,
    Run,
    Served,
    adopt,
    record_failure,
)
from shared.experiment.tables import Cell, Config, canonical_json
from shared.report.measuring import NOT_RUN

# Seconds in which a second SIGINT is no second wish: a terminal and a wrapper may both send one.
ECHO = 1.0


def twins_of(cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    """By address, the other cells of the domain and tier with an equal configuration.

    Two papers print the same baselines: what one table has run, another need not run again.
    """
    if not cells:
        return {}
    wanted = {canonical_json(cell.config) for cell in cells}
    by_config: dict[str, dict[str, None]] = {text: {} for text in wanted}
    for tables in tables_of(cells[0].domain).values():
        for table in tables:
            for cell in table.cells(cells[0].tier):
                text = canonical_json(cell.config)
                if text in wanted:
                    by_config[text][cell.address] = None
    return {
        cell.address: tuple(
            address for address in by_config[canonical_json(cell.config)] if address != cell.address
        )
        for cell in cells
    }


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
        allow_missing: see :class:`shared.experiment.runs.Run`.
        download: whether missing data are fetched.
        console: where progress is shown.
        own: whether the runs are someone's own, of the tier "own", which no table takes.
        main: by address, the metric that a cell is run for, and what the paper prints there.
    """

    def __init__(
        self,
        places: Places,
        jobs: int,
        *,
        threads: int,
        allow_missing: bool,
        download: bool,
        console: Console,
        own: bool = False,
        main: Main | None = None,
    ) -> None:
        self.places = places
        self.jobs = jobs
        self.threads = threads
        self.allow_missing = allow_missing
        self.download = download
        self.console = console
        self.own = own
        self.main = main
        self.interrupted = False
        self.outcomes: dict[str, str] = {}  # by address, why a cell has no result
        self._waiting: list[Cell] = []
        self._twins: Mapping[str, tuple[str, ...]] = {}
        self._trained_as: Mapping[str, str] = {}  # by address, what it is pretrained as
        # By the pipe that the process talks through; the last is its device.
        self._running: dict[Any, tuple[Cell, Any, str | None]] = {}
        self._devices = visible_devices()
        self._tried: set[str] = set()  # datasets that could not be fetched

    def run(self, cells: list[Cell], twins: Mapping[str, tuple[str, ...]]) -> None:
        """Run the cells; what kept some from being done is then in ``outcomes``.

        Args:
            cells: of one domain.
            twins: by address, where an equal run may lie; see :func:`twins_of`.
        """
        context = multiprocessing.get_context("forkserver")
        own = (f"{cells[0].domain}.{module}" for module in ("domain", "train"))
        modules = ("shared.command.pool", "torch.utils.tensorboard", "scipy.linalg")
        context.set_forkserver_preload([*own, *modules, "shared.command.preloaded"])
        workers = max(1, cores() // min(self.jobs, len(cells)))
        self._waiting, self._twins, told = list(cells), twins, False
        self._trained_as = {
            cell.address: canonical_json(part)
            for cell in cells
            if (part := pretraining_of(cell)) is not None
        }
        with asked_to_stop() as asked, watching(self.console, len(cells), self.main) as watch:
            while self._running or (self._waiting and not asked):
                while len(self._running) < self.jobs and not asked and (cell := self._next()):
                    here, there = context.Pipe()
                    device = self._free_device()
                    options = (self.threads, workers, self.allow_missing)
                    given = (
                        cell,
                        self._twins[cell.address],
                        self.places,
                        *options,
                        self.own,
                        device,
                        there,
                    )
                    process = context.Process(target=_work, args=given, name=cell.address)
                    process.start()
                    there.close()
                    self._running[here] = (cell, process, device)
                    watch.started(cell)
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
        """Take the first cell that waits, but for those whose twin is running.

        Those whose encoder may be in training come last: they might have to wait for it.
        """
        running = {cell.address for cell, _, _ in self._running.values()}
        trained = {self._trained_as.get(address) for address in running} - {None}
        free = [cell for cell in self._waiting if running.isdisjoint(self._twins[cell.address])]
        free.sort(key=lambda cell: self._trained_as.get(cell.address) in trained)
        if not free:
            return None
        self._waiting.remove(free[0])
        return free[0]

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


def _work(
    cell: Cell,
    twins: tuple[str, ...],
    places: Places,
    threads: int,
    workers: int,
    allow_missing: bool,
    own: bool,
    device: str | None,
    pipe: Connection,
) -> None:
    """The process of one cell: run it, and say through the pipe how it went."""
    if device is not None:  # before anything asks for the GPUs; renderers go by it, too
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    set_up_torch(threads)

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
    message = outcome(run, cell, twins, places)
    with contextlib.suppress(OSError):  # the parent is gone; the files say it all
        pipe.send(message)


def set_up_torch(threads: int) -> None:
    """Make torch compute the same numbers as in any other process of a cell."""
    import torch

    # One cell gives the same numbers to the bit however many run beside it; with another number
    # of threads the last bits may differ, so that is not left to the machine.
    torch.set_num_threads(threads)
    # Bits are promised on the CPU alone: on a GPU that would cost much of its speed.
    torch.use_deterministic_algorithms(not torch.cuda.is_available(), warn_only=True)
    # It would write every new tensor twice, to make equal what is read before it is written. torch
    # makes the name when it runs, where mypy does not see it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = True


def outcome(run: Run, cell: Cell, twins: Sequence[str], places: Places) -> tuple[Any, ...]:
    """Run a cell, unless an equal run can be taken over, and say how it went.

    Returns:
        One of: "done", the result and the address that it was taken over from; "interrupted";
        "missing", a dataset and why; "refused" and why; "failed", the traceback and why; of several
        processes also "served", for those that the first leaves behind, and "lost", the traceback
        and why, for those that others left.
    """
    folder = run.folder
    try:
        domain = imported(cell.domain)
        with run:
            _stop_with_parent(run)
            finished = read_record(folder, cell.address) is not None
            equal = _equal_runs(cell, twins, places)
            ((finished, equal), *_) = everyone((finished, equal))  # as the first process sees it
            if finished or equal:
                run.alone()
            if equal and not finished:
                adopt(folder, *equal[0], cell.config)
            elif not finished:
                with _told_together(run):
                    run.finish(domain.measure(cell.config, run))
            record = read_record(folder, cell.address)
        assert record is not None  # just written
        return ("done", record.result, record.environment.get("run_at"))
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


def _equal_runs(cell: Cell, twins: Sequence[str], places: Places) -> list[tuple[Path, str]]:
    """Folder and address of the finished runs that have the cell's configuration to this day."""
    found = []
    for twin in twins:
        folder = home(places.runs, twin, type(cell.config))
        record = undamaged(folder, twin)
        if record is not None and not differences(record.config, cell.config):
            found.append((folder, twin))
    return found


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
    """A list that fills when SIGTERM or SIGINT arrives: once, and again for a later SIGINT alone.

    Schedulers and wrappers repeat themselves, and a run needs its time to save.
    """
    asked: list[int] = []
    echoes_until = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal echoes_until
        if not asked:
            echoes_until = time.monotonic() + ECHO
        if not asked or (number == signal.SIGINT and time.monotonic() > echoes_until):
            asked.append(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
