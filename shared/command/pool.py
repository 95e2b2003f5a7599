"""Runs cells side by side, each in its own process, and collects their outcomes."""

import contextlib
import multiprocessing
import os
import resource
import signal
import stat
import tempfile
import threading
import time
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from rich.console import Console

from shared import functions
from shared.capture import SWITCH, CaptureFailed, graphs_wanted
from shared.command import devices
from shared.command.cells import Places, imported, run_folder
from shared.command.progress import Main, Watch, watching
from shared.distributed import all_gather_objects, is_lost
from shared.errors import UserError, describe_os_error
from shared.experiment.config import USER_TIER, Config, canonical, canonical_json, run_key
from shared.experiment.data import MissingData
from shared.experiment.frame import NOT_RUN
from shared.experiment.records import Damaged, read_record
from shared.experiment.run import (
    STOPS,
    Conflict,
    Interrupted,
    Locked,
    Run,
    WorkerDone,
    record_failure,
)
from shared.experiment.tables import Cell

# Seconds in which a duplicate SIGINT is ignored: a terminal and a wrapper may both send one.
DUPLICATE_SIGINT = 1.0
SERVER_START = 300.0  # seconds, in which the server of processes has imported everything
WAITED = f"in {SERVER_START:.0f} s"
ADDRESS_SPACE = 2 * 2**30  # bytes: the imports of a domain take up to 1.2 GB, and training more


def pretraining_of(cell: Cell) -> Mapping[str, Any] | None:
    """The pretraining part of a cell's configuration, which other cells may share; None without."""
    pretraining = imported(cell.domain).experiment(cell.config).pretraining
    return None if pretraining is None else pretraining(cell.config)


def preloaded(domain: str) -> list[str]:
    """The modules that the server of processes has imported before it forks cells of a domain."""
    own = (f"{domain}.{module}" for module in ("domain", "train"))
    modules = ("shared.command.pool", "torch.utils.tensorboard", "scipy.linalg")
    return [*own, *modules, "shared.command.preloaded"]


class Pool:
    """Runs cells in parallel, each in its own process that starts with everything imported.

    Processes are forked from a server that has imported the domain and trained nothing, which is
    fast, and safe for threads, CUDA and renderers.

    Args:
        places: the folders of runs and data.
        options: of the command line, how cells are run.
        console: where progress is shown.
        main: by address, the metric that a cell is run for, and what the paper gives there.
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
        self._begun = time.monotonic()
        self.interrupted = False
        self.outcomes: dict[str, str] = {}  # by address, why a cell has no result
        self._waiting: list[Cell] = []
        self._trained_as: Mapping[str, str] = {}  # by address, what it is pretrained as
        # By the pipe that the process talks through; the last is its device.
        self._running: dict[Any, tuple[Cell, Any, str | None]] = {}
        self._devices = visible_devices()
        self._tried: set[str] = set()  # datasets that could not be fetched
        self._said: set[str] = set()  # about the devices
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
        context.set_forkserver_preload(preloaded(cells[0].domain))
        workers = max(1, cores() // min(self.jobs, len(cells)))
        self._waiting, stopping = list(cells), False
        self._trained_as = {
            cell.address: canonical_json(part)
            for cell in cells
            if (part := pretraining_of(cell)) is not None
        }
        with asked_to_stop() as asked, watching(self.console, len(cells), self.main) as watch:
            for line in devices.check():
                self._say(line)
            _start_server()
            if before is not None and not asked:
                before()
            while self._running or (self._waiting and not asked):
                while len(self._running) < self.jobs and not asked and (cell := self._next()):
                    here, there = context.Pipe()
                    device = self._free_device()
                    graphs = self._graphs and cell.address not in self._without_graphs
                    how = (workers, device, graphs)
                    given = (cell, self.places, self.options, *how, there)
                    process = context.Process(
                        target=_work, args=(*given, dict(functions.same)), name=cell.address
                    )
                    process.start()
                    there.close()
                    self._running[here] = (cell, process, device)
                    watch.started(cell)
                if self._is_time_up() and not asked:
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

    def _is_time_up(self) -> bool:
        """Whether the time limit of the command has passed."""
        minutes = self.options.minutes
        return minutes is not None and time.monotonic() - self._begun >= 60 * minutes

    def _free_device(self) -> str | None:
        """The first GPU with the fewest cells; None where there is no choice."""
        if len(self._devices) < 2:
            return None
        taken = Counter(device for _, _, device in self._running.values())
        return min(self._devices, key=lambda device: taken[device])

    def _listen(self, pipe: Any, watch: Watch, *, stopping: bool) -> None:
        """Handle one message of a process; any but "device", "progress" and "shown" is its last."""
        cell, process, _ = self._running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            why = f"failed: {_describe_end(process.exitcode, cell.config)}"
            # A process that is stopped before it handles signals just ends.
            message = ("interrupted",) if stopping else ("failed", "", why)
        if message[0] == "progress":
            watch.heard(cell, *message[1:])
            return
        if message[0] == "shown":
            watch.shown(cell, message[1])
            return
        if message[0] == "device":
            for line in message[1]:
                self._say(line)
            return
        process.join()
        del self._running[pipe]
        pipe.close()
        if message[0] == "missing" and self._fetch(cell, message[1]):
            self._waiting.insert(0, cell)
            watch.stopped(cell)
            return
        if message[0] == "not captured":
            self._without_graphs.add(cell.address)
            self._say(f"{cell.address}: {message[1]}; it goes on without graphs")
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

    def _say(self, line: str) -> None:
        """Print a line, once."""
        if line not in self._said:
            self._said.add(line)
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _note(self, cell: Cell, message: tuple[Any, ...]) -> None:
        _, trace, why = message
        with contextlib.suppress(OSError):  # a full disk has been reported already
            record_failure(run_folder(self.places, cell), why, trace)

    def _fetch(self, cell: Cell, name: str) -> bool:
        """Try once to fetch a dataset that a cell lacks."""
        if self.options.no_download or name in self._tried:
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
    """Start the server that processes are forked from; it ignores the terminal's signals.

    Raises:
        UserError: too little address space for it, or it does not answer.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise UserError(
            f"ulimit -v allows {limit / 2**30:.1f} GB of address space, and a cell needs "
            f"{ADDRESS_SPACE / 2**30:.0f} GB or more; raise it: ulimit -v unlimited"
        )
    ignored = [number for number in STOPS if number != signal.SIGTERM]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        forkserver.ensure_running()
        _await_server()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _await_server() -> None:
    """Have the server start a process that does nothing, in a limited time."""
    failed: list[Exception] = []

    def start() -> None:
        try:
            process = multiprocessing.get_context("forkserver").Process(target=_nothing)
            process.start()
            process.join()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=start, daemon=True)  # its call cannot be interrupted
    thread.start()
    thread.join(SERVER_START)
    if thread.is_alive() or failed:
        why = f"{type(failed[0]).__name__}: {failed[0]}" if failed else f"no answer {WAITED}"
        raise UserError(
            f"the process that cells are forked from does not start ({why}); it needs "
            f"{ADDRESS_SPACE / 2**30:.0f} GB of memory or address space: free some, or raise "
            f"ulimit -v"
        )


def _nothing() -> None:
    """What a process does that only shows that it can be started."""


def _work(
    cell: Cell,
    places: Places,
    options: Namespace,
    workers: int,
    device: str | None,
    graphs: bool,
    pipe: Connection,
    same: Mapping[str, str],
) -> None:
    """The process of one cell: run it, and send its outcome through the pipe."""
    functions.same.update(same)
    if device is not None:  # before anything uses the GPUs; renderers read it as well
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    os.environ[SWITCH] = str(int(graphs))  # the server may have started with another value
    set_up_torch(options.threads, deterministic=options.deterministic)

    def send(*message: Any) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; the files say it all
            pipe.send(message)

    send("device", devices.used(options.threads, cell.config))
    if run_key(cell.tier, canonical(cell.config)) != cell.key:  # as this process has imported it
        send("refused", "the source of its loss changed since the command began; start it again")
        return
    run = Run(
        run_folder(places, cell),
        cell.config,
        tier=USER_TIER if cell.own else cell.tier,
        workers=workers,
        data_root=places.data,
        allow_missing=options.allow_missing,
        progress=partial(send, "progress"),
        watch=options.watch,
        show=partial(send, "shown"),
        store=places.store_of(cell),
    )
    send(*outcome(run, cell))


def set_up_torch(threads: int, *, deterministic: bool) -> None:
    """Set up torch so that every process of a cell computes the same numbers.

    Args:
        threads: of torch.
        deterministic: on a GPU as well; an operator that has no deterministic form then raises
            RuntimeError. To be called before the process has used cuBLAS.
    """
    import torch

    # A cell has the same bits however many run beside it. They may differ with the number of
    # threads, which therefore does not depend on the machine.
    torch.set_num_threads(threads)
    # By default only on the CPU: on a GPU it would cost much speed.
    same_bits = deterministic or not torch.cuda.is_available()
    torch.use_deterministic_algorithms(same_bits, warn_only=not deterministic)
    if deterministic:
        # The value that torch's documentation names for cuBLAS and for recurrent layers alike.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    # Filling would write every new tensor twice, for reads of uninitialised memory. The name
    # exists only at run time, so mypy does not see it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not deterministic  # its choice can be another in each process


def outcome(run: Run, cell: Cell) -> tuple[Any, ...]:
    """Run a cell, unless another process has done so by now, and return the outcome.

    Returns:
        One of: "done" and the result; "interrupted"; "missing", a dataset and why; "refused" and
        why; "not captured" and why, for a CUDA graph; "failed", the traceback and why; of several
        processes also "served", for those that are not needed after training, and "lost", the
        traceback and why, when another one is gone.
    """
    folder = run.folder
    try:
        domain = imported(cell.domain)
        with temporary_folder(), run:
            _stop_with_parent(run)
            if functions.same:
                run.record(
                    same_loss=", ".join(f"{now} for {then}" for now, then in functions.same.items())
                )
            # As the first process sees it.
            (finished, *_) = all_gather_objects(read_record(folder, cell.address) is not None)
            if finished:
                run.continue_on_rank_zero()
            else:
                with _stopped_together(run):
                    run.finish(domain.measure(cell.config, run))
            record = read_record(folder, cell.address)
        assert record is not None  # just written
        return ("done", record.result)
    except WorkerDone:
        return ("served",)
    except Interrupted:
        return ("interrupted",)
    except MissingData as error:
        why = f"{NOT_RUN}: data missing; {error.remedy}"
        return ("missing", error.name, why)
    except (Locked, Conflict, Damaged) as error:
        return ("refused", str(error))
    except SystemExit as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        why = f"failed: SystemExit({error.code!r}) from {frame.filename}, line {frame.lineno}"
        return ("failed", traceback.format_exc(), why)
    except OSError as error:
        return ("failed", traceback.format_exc(), f"failed: {describe_os_error(error)}")
    except CaptureFailed as error:
        return ("not captured", str(error))
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
def _stopped_together(run: Run) -> Iterator[None]:
    """Treat the end of a run's helper processes as an interruption when the run was interrupted.

    Terminals and schedulers signal all processes of a job at once, so helpers may end first.
    """
    try:
        yield
    except (EOFError, ConnectionError, KeyboardInterrupt) as error:
        if run.stopping:
            raise Interrupted from error
        raise


def lost(processes: int, which: str = "one", went: str = "ended") -> str:
    """The message when one of several processes ended without a message."""
    return (
        f"failed: {which} of its {processes} processes {went}; "
        f"rerun the same command to resume from the last checkpoint"
    )


def _stop_with_parent(run: Run) -> None:
    """Save and stop when the parent process is gone."""
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


@contextlib.contextmanager
def temporary_folder() -> Iterator[None]:
    """Give libraries a folder for temporary files that is deleted at the end of the block."""
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
    # The CPU allocator raises a plain RuntimeError with one of these phrases.
    words = ("not enough memory", "can't allocate memory")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def _describe_out_of_memory(config: Config) -> str:
    size = getattr(config, "batch_size", None)
    return "out of memory" if size is None else f"out of memory; lower batch_size ({size})"


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
