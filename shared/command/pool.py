"""Runs cells side by side, each in its own process, and collects their outcomes."""

import contextlib
import math
import multiprocessing
import os
import signal
import stat
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from rich.console import Console

from shared import functions
from shared.capture import SWITCH, graphs_wanted
from shared.command import devices, server
from shared.command.cells import Places, imported, pretraining_of, run_folder
from shared.command.progress import Main, Watch, watching
from shared.command.worker import INTERRUPTED, Outcome, run_cell
from shared.errors import UserError
from shared.experiment.config import Config, canonical_json
from shared.experiment.run import STOPS
from shared.experiment.tables import Cell

# Seconds in which a duplicate SIGINT is ignored: a terminal and a wrapper may both send one.
DUPLICATE_SIGINT = 1.0


class Pool:
    """Runs cells in parallel, each in its own process that starts with everything imported.

    Processes are forked from a server that has imported the domain and trained nothing, which is
    fast, and safe for threads, CUDA and renderers.

    Args:
        places: the folders of runs and data.
        options: of the command line, how cells are run.
        console: where progress is shown.
        main: by address, the metric that a cell is run for, and what the paper gives there.

    Attributes:
        interrupted: whether cells were left unfinished since the command was asked to stop.
        outcomes: by address, why a cell has no result.
    """

    def __init__(
        self,
        places: Places,
        options: Namespace,
        console: Console,
        *,
        main: Main | None = None,
    ) -> None:
        self.places = places
        self.options = options
        self.console = console
        self.main = main
        self.jobs = options.jobs or default_jobs(options.threads)
        self.interrupted = False
        self.outcomes: dict[str, str] = {}
        self._ends = time.monotonic() + 60 * (options.minutes or math.inf)
        self._waiting: list[Cell] = []
        self._trained_as: Mapping[str, str] = {}  # by address, what it is pretrained as
        # By the pipe that the process talks through; the last is its device.
        self._running: dict[Any, tuple[Cell, Any, str | None]] = {}
        self._devices = visible_devices()
        self._tried: set[str] = set()  # datasets that could not be fetched
        self._graphs = graphs_wanted()
        self._without_graphs: set[str] = set()  # addresses of cells that could not be captured

    def run(self, cells: list[Cell], before: Callable[[], None] | None = None) -> None:
        """Run the cells; afterwards ``outcomes`` has those without a result.

        Args:
            cells: of one domain, with distinct keys.
            before: called just before the first cell starts, unless the command was interrupted
                by then.
        """
        context = multiprocessing.get_context("forkserver")
        workers = max(1, cores() // min(self.jobs, len(cells)))
        self._waiting, stopping = list(cells), False
        self._trained_as = {
            cell.address: canonical_json(part)
            for cell in cells
            if (part := pretraining_of(cell)) is not None
        }
        with asked_to_stop() as asked, watching(self.console, len(cells), self.main) as watch:
            watch.said(cells[0], devices.check())
            server.start(cells[0].domain)
            if before is not None and not asked:
                before()
            while self._running or (self._waiting and not asked):
                while len(self._running) < self.jobs and not asked and (cell := self._next()):
                    self._start(cell, workers, context)
                    watch.started(cell)
                if time.monotonic() >= self._ends and not asked:
                    asked.append(signal.SIGTERM)
                if asked and not stopping:
                    stopping = True
                    self.console.print(
                        "stopping after running cells have saved; Ctrl-C again stops at once"
                    )
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
        """Take the first waiting cell; those whose encoder may be in training come last."""
        running = (cell.address for cell, _, _ in self._running.values())
        trained = {self._trained_as.get(address) for address in running} - {None}
        free = sorted(self._waiting, key=lambda cell: self._trained_as.get(cell.address) in trained)
        if free:
            self._waiting.remove(free[0])
        return next(iter(free), None)

    def _free_device(self) -> str | None:
        """The first GPU with the fewest cells; None where there is no choice."""
        if len(self._devices) < 2:
            return None
        taken = Counter(device for _, _, device in self._running.values())
        return min(self._devices, key=lambda device: taken[device])

    def _start(self, cell: Cell, workers: int, context: Any) -> None:
        """Start the process of a cell."""
        here, there = context.Pipe()
        device = self._free_device()
        graphs = self._graphs and cell.address not in self._without_graphs
        variables = {SWITCH: str(int(graphs))}  # the server may have started with another value
        if device is not None:
            variables["CUDA_VISIBLE_DEVICES"] = device
        given = (cell, self.places, self.options, workers)
        process = context.Process(
            target=_run_in_process,
            args=(there, variables, dict(functions.same), given),
            name=cell.address,
        )
        process.start()
        there.close()
        self._running[here] = (cell, process, device)

    def _listen(self, pipe: Any, watch: Watch, *, stopping: bool) -> None:
        """Handle one message of a process: a call of the watch, or its outcome, which is last."""
        cell, process, _ = self._running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            why = f"failed: {_describe_end(process.exitcode, cell.config)}"
            # A process that is stopped before it handles signals just ends.
            message = INTERRUPTED if stopping else Outcome("failed", why)
        if not isinstance(message, Outcome):
            name, *given = message
            getattr(watch, name)(cell, *given)
            return
        process.join()
        del self._running[pipe]
        pipe.close()
        if message.kind == "not captured":
            self._without_graphs.add(cell.address)
            watch.said(cell, [f"{cell.address}: {message.why}; it goes on without graphs"])
        if message.kind == "not captured" or self._fetch(cell, message.dataset):
            self._waiting.insert(0, cell)
            watch.stopped(cell)
            return
        if message.kind == "interrupted":
            self.interrupted = True
        elif message.kind != "done":
            self.outcomes[cell.address] = message.why
            message.note(run_folder(self.places, cell))
        watch.ended(cell, message)

    def _fetch(self, cell: Cell, name: str) -> bool:
        """Try once to fetch the dataset that a cell lacks; whether it is there now."""
        if not name or self.options.no_download or name in self._tried:
            return False
        self._tried.add(name)
        self.console.print(f"fetching {name} ...")
        try:
            imported(cell.domain).fetch(name, self.places.data)
        except (UserError, OSError) as error:
            self.console.print(f"fetching {name} failed: {error}", soft_wrap=True)
            return False
        return True


def _run_in_process(
    pipe: Connection,
    variables: Mapping[str, str],
    same: Mapping[str, str],
    given: tuple[Cell, Places, Namespace, int],
) -> None:
    """The process of one cell: run it, and send its outcome through the pipe.

    Args:
        pipe: to the pool.
        variables: of the environment, set before anything uses the GPUs; renderers read them too.
        same: see :data:`shared.functions.same`.
        given: the arguments of :func:`run_cell`.
    """
    os.environ.update(variables)
    functions.same.update(same)

    def send(message: Any) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; the files say it all
            pipe.send(message)

    send(run_cell(*given, lambda *message: send(message)))


@contextlib.contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """A list of the received ``STOPS``: the first signal, then only later SIGINTs.

    Schedulers and wrappers repeat signals, and a run needs time to save.
    """
    asked: list[int] = []
    duplicates_until = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal duplicates_until
        if number == signal.SIGHUP:
            _leave_terminal()
        if not asked:
            duplicates_until = time.monotonic() + DUPLICATE_SIGINT
        if not asked or (number == signal.SIGINT and time.monotonic() > duplicates_until):
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
    """Send output to /dev/null: writing to a terminal that is gone is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere, number)
    os.close(nowhere)


def _describe_end(code: int | None, config: Config) -> str:
    """Why a process ended without a word."""
    if code is None or code >= 0:
        return f"its process ended with code {code} and no message"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    text = f"its process was ended by signal {-code} ({name})"
    if -code != signal.SIGKILL:
        return text
    size = getattr(config, "batch_size", None)
    lower = "--jobs" if size is None else f"--jobs or batch_size ({size})"
    return f"{text}, as the system does when memory runs out; lower {lower}"


def default_jobs(threads: int) -> int:
    """How many cells with so many threads run at a time by default: one for each GPU, if any."""
    return len(visible_devices()) or max(1, cores() // threads)


def cores() -> int:
    """The number of cores that this process may use, by its affinity and its Slurm task."""
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
