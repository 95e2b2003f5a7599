"""Runs cells side by side, each in its own process, and collects their outcomes."""

import contextlib
import multiprocessing
import os
import signal
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from shared.command import devices, server
from shared.command.cells import Places, encoder_of, imported, missing_data
from shared.command.progress import INTERRUPTED, Main, Outcome, Watch, watching
from shared.errors import UserError
from shared.experiment.config import Config
from shared.experiment.records import Reason, read_json
from shared.experiment.run_folders import archive, is_locked, stop_signals
from shared.experiment.store import discard, is_stored
from shared.experiment.tables import Cell
from shared.report.console import say
from shared.report.wording import counted


class Pool:
    """Runs cells in parallel, each in its own process, forked from :mod:`shared.command.server`.

    Of cells that share an encoder one trains it, and the others start once it is stored.
    """

    def __init__(
        self, places: Places, options: Namespace, console: Console, main: Main | None = None
    ) -> None:
        self.places = places
        self.options = options
        self.console = console
        self.main = main or {}
        self.jobs = jobs_of(options)
        self.interrupted = False  # whether cells were left unfinished
        self.outcomes: dict[str, str] = {}  # by address, why a cell has no result
        self._waiting: list[Cell] = []
        self._encoders: dict[str, tuple[Path, str]] = {}  # by address, the store and its entry
        # By the pipe that a process talks through: its cell, the process and its device.
        self._running: dict[Any, tuple[Cell, Any, str | None]] = {}

    def run(self, cells: list[Cell]) -> None:
        """Run cells of one domain, with distinct keys; ``outcomes`` has those without a result."""
        workers = max(1, cores() // min(self.jobs, len(cells)))
        self._waiting, stopping = list(cells), False
        self._encoders = {
            cell.address: (store, encoder)
            for cell in cells
            if (store := self.places.store_of(cell)) and (encoder := encoder_of(cell))
        }
        with stop_requests() as requests, watching(self.console, len(cells), self.main) as watch:
            watch.print_once(cells[0], devices.check())
            server.start(cells[0].domain)
            if self.options.again:  # only now, when they can start
                move_aside(cells, self.places, self.console)
            while self._running or (self._waiting and not requests):
                while len(self._running) < self.jobs and not requests and (cell := self._next()):
                    self._start(cell, workers)
                    watch.started(cell)
                processes = [process for _, process, _ in self._running.values()]
                if requests and not stopping:
                    stopping = True
                    self.console.print(
                        "stopping after running cells have saved; Ctrl-C again stops at once"
                    )
                    for process in processes:
                        process.terminate()
                if len(requests) > 1:
                    for process in processes:
                        process.kill()
                for pipe in wait(list(self._running), timeout=0.2):
                    self._listen(pipe, watch, stopping=bool(requests))
                watch.tick()
        self.interrupted |= bool(requests and self._waiting)

    def _next(self) -> Cell | None:
        """Take the first waiting cell whose encoder is not in training here.

        Those that another command runs come last.
        """
        of_running = (self._encoders.get(cell.address) for cell, *_ in self._running.values())
        in_training = {encoder for encoder in of_running if encoder and not is_stored(*encoder)}
        waiting = self._waiting
        free = (cell for cell in waiting if self._encoders.get(cell.address) not in in_training)
        runs = self.places.runs
        cell = min(free, key=lambda cell: is_locked(runs / cell.folder), default=None)
        if cell is not None:
            waiting.remove(cell)
        return cell

    def _start(self, cell: Cell, workers: int) -> None:
        """Start the process of a cell, on the first GPU with the fewest cells."""
        context = multiprocessing.get_context("forkserver")
        pipe, pipe_of_process = context.Pipe()
        counts = Counter(device for _, _, device in self._running.values())
        names = visible_devices()
        device = min(names, key=lambda name: counts[name]) if len(names) > 1 else None
        process = context.Process(
            target=_run_in_process,
            args=(pipe_of_process, device, (cell, self.places, self.options, workers)),
            name=cell.address,
        )
        try:
            process.start()
        except (EOFError, ConnectionError) as error:
            text = "the process that cells are forked from has ended; free 2 GB of memory"
            raise UserError(f"{text} and address space") from error
        pipe_of_process.close()
        self._running[pipe] = (cell, process, device)

    def _listen(self, pipe: Any, watch: Watch, *, stopping: bool) -> None:
        """Handle one message of a process: a call of the watch, or its outcome, which is last."""
        cell, process, _ = self._running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            why = f"{Reason.FAILED}: {_describe_end(process.exitcode, cell.config)}"
            # A process that is stopped before it handles signals just ends.
            message = INTERRUPTED if stopping else Outcome(Reason.FAILED, why)
        if not isinstance(message, Outcome):
            method, *arguments = message
            getattr(watch, method)(cell, *arguments)
            return
        process.join()
        del self._running[pipe]
        pipe.close()
        if message.kind == "interrupted":
            self.interrupted = True
        elif message.kind != "done":
            self.outcomes[cell.address] = message.why
            message.note(self.places.runs / cell.folder)
        watch.ended(cell, message)

    def leave_out(self, cells: list[Cell]) -> list[Cell]:
        """The cells whose data are there, once each missing data set was fetched where possible.

        The others are named with all that they lack; ``outcomes`` has them.
        """
        by_reason: dict[str, list[Cell]] = {}
        tried: set[str] = set()
        for cell in cells:
            for data in missing_data(cell, self.places.data):
                if data.how or self.options.no_download or data.name in tried:
                    continue
                tried.add(data.name)
                say(self.console, f"fetching {data.name} ...")
                try:
                    imported(cell.domain).fetch(data.name, self.places.data)
                except (UserError, OSError) as error:
                    say(self.console, f"fetching {data.name} failed: {error}")
            why = "; ".join(data.remedy for data in missing_data(cell, self.places.data))
            by_reason.setdefault(why, []).append(cell)
        left = by_reason.pop("", [])
        for why, without in by_reason.items():
            if left:
                say(self.console, f"{counted(len(without), 'cell')} not run: data missing; {why}")
            why = f"{Reason.NOT_RUN}: data missing; {why}"
            self.outcomes |= {cell.address: why for cell in without}
        return left


def _run_in_process(
    pipe: Connection, device: str | None, arguments: tuple[Cell, Places, Namespace, int]
) -> None:
    """The process of one cell: run it, and send its outcome through the pipe."""
    if device is not None:  # before anything uses the GPUs; renderers read the variable, too
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    from shared.command.worker import run_cell  # needs torch, the pool does not

    def send(message: Any) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; the files say it all
            pipe.send(message)

    send(run_cell(*arguments, report=lambda *message: send(message)))


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """A list of the received signals to stop: the first one, then only SIGINTs.

    Schedulers repeat signals, and a run needs time to save.
    """
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if not requests or number == signal.SIGINT:
            requests.append(number)

    before = {number: signal.signal(number, note) for number in stop_signals()}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe_end(code: int | None, config: Config) -> str:
    """Why a process ended without a word."""
    if code is None or code >= 0:
        return f"its process ended with code {code} and no message"
    if -code != signal.SIGKILL:
        return f"its process was ended by signal {-code} ({signal.strsignal(-code)})"
    size = getattr(config, "batch_size", None)
    lower = "--jobs" if size is None else f"--jobs or batch_size ({size})"
    return f"its process was killed (SIGKILL), as it is when memory runs out; lower {lower}"


def jobs_of(options: Namespace) -> int:
    """How many cells run at a time; by default one per GPU, else as many as the cores allow."""
    return options.jobs or len(visible_devices()) or max(1, cores() // options.threads)


def cores() -> int:
    """The number of cores that this process may use, by its affinity and its Slurm task."""
    on_linux = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1
    return min(count, int(os.environ.get("SLURM_CPUS_PER_TASK", count)))


def visible_devices() -> tuple[str, ...]:
    """The GPUs that cells can be placed on, as CUDA_VISIBLE_DEVICES names them."""
    if not devices.may_have_gpu():
        return ()
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if named is None else named.split(",")
    return tuple(name.strip() for name in names)[:count]


def move_aside(cells: Sequence[Cell], places: Places, console: Console) -> None:
    """Move the runs of the cells aside, and say so; delete their encoders from the store."""
    moved = []
    for cell in cells:
        if (folder := places.runs / cell.folder).exists():
            environment, store = folder / "environment.json", places.store_of(cell)
            if store and environment.is_file():
                discard(store, read_json(environment))
            moved.append(archive(folder))
    if moved:
        folders = f"{moved[0]}{', ...' if len(moved) > 1 else ''}"
        say(console, f"moved {counted(len(moved), 'run')} aside: {folders}")
