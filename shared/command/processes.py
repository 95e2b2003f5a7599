"""One cell on several processes: torchrun's, or those that its engine starts here.

All of them go through :func:`take_part`; the first does what a pool does for a cell of one process.
Of several that fail one says why, the first to fail, unless it was killed and could not.
"""

import contextlib
import logging
import os
import signal
import sys
import uuid
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from rich.console import Console
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from shared.command import slurm
from shared.command.choosing import Chosen
from shared.command.places import Places, run_folder
from shared.command.pool import cores, lost, outcome, set_up_torch
from shared.command.progress import Watch, watching
from shared.command.reproduce import STARTED
from shared.command.running import move_aside, not_done, show_tables
from shared.distributed import everyone, initialise, is_lost, rank, world_size
from shared.errors import UserError
from shared.experiment.runs import (
    INTERRUPTED,
    Conflict,
    Run,
    check_begun,
    check_processes,
    record_failure,
)
from shared.experiment.tables import Cell

LEFT = 76  # exit code of a process that another has left, when nobody has heard why


def launch(
    chosen: Sequence[Chosen], places: Places, options: Namespace, arguments: Sequence[str]
) -> int:
    """Start the processes of a cell on this machine, and wait for them; returns the exit code."""
    (cell,) = chosen[0].cells
    check_processes(cell.config, options.processes)
    if not options.again:
        try:
            check_begun(run_folder(places, cell), options.processes)
        except Conflict as error:
            return _tell(cell, places, ("refused", str(error)))
    os.environ[STARTED] = str(options.processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    if sys.platform == "linux":  # the name of a machine need not lead to it
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name in list(logging.root.manager.loggerDict):  # what they say is said here, in one line
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=options.processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", slurm.MODULE, *arguments)
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        codes = {number: failure.exitcode for number, failure in error.failures.items()}
        return _say_why(cell, places, options.processes, codes)
    return 0


def _say_why(cell: Cell, places: Places, processes: int, codes: dict[int, int]) -> int:
    """Say what no process could say, given the exit codes of those that failed."""
    killed = {number: -code for number, code in codes.items() if code < 0}
    if set(killed.values()) == {signal.SIGTERM}:  # by the launcher, after another had failed
        killed = {} if len(killed) < len(codes) else killed
    spoken = [code for code in codes.values() if code > 0 and code != LEFT]
    if INTERRUPTED in spoken:
        return INTERRUPTED
    if spoken and not killed:
        return spoken[0]
    why = lost(processes)
    if killed:
        number, by = next(iter(killed.items()))
        why = lost(processes, f"process {number}", f"was killed ({signal.Signals(by).name})")
    return _tell(cell, places, ("failed", "", why))


def take_part(
    chosen: Sequence[Chosen], places: Places, options: Namespace, arguments: Sequence[str]
) -> int:
    """Work on a cell as one of several processes; returns the exit code."""
    initialise()
    set_up_torch(options.threads)
    (cell,) = chosen[0].cells
    try:
        message = _take_part(chosen, cell, places, options)
    except UserError as error:
        message = ("refused", str(error))
    except RuntimeError as error:
        if not is_lost(error):
            raise
        message = ("lost", "", lost(world_size()))
    match message[0]:
        case "done":
            show_tables(chosen, places, {}, Console())
            return 0
        case "served":
            return 0
        case "interrupted":
            if rank() == 0:
                print("interrupted; the same command goes on from here")
            return INTERRUPTED
        case "lost" if STARTED in os.environ:  # launch says it, who knows more
            return LEFT
    return _tell(cell, places, message) if _first_to_fail() else 1


def _take_part(
    chosen: Sequence[Chosen], cell: Cell, places: Places, options: Namespace
) -> tuple[Any, ...]:
    waiting: Sequence[Cell] = ()
    if rank() == 0:
        waiting = not_done(chosen, places, options, Console())
        if options.again:
            move_aside(waiting, places, Console())
    (going, *_) = everyone(bool(waiting))
    if not going:
        return ("done",) if rank() == 0 else ("served",)
    with _watched(cell) as watch:
        run = Run(
            run_folder(places, cell),
            cell.config,
            tier=cell.tier,
            workers=max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),
            data_root=places.data,
            allow_missing=options.allow_missing,
            progress=None if watch is None else _progress(watch, cell),
            store=places.store_of(cell),
        )
        message = outcome(run, cell)
        if watch is not None and message[0] == "done":
            watch.ended(cell, message)
    return message


@contextlib.contextmanager
def _watched(cell: Cell) -> Iterator[Watch | None]:
    """Whoever is told how the cell goes on, by the first process."""
    if rank() > 0:
        yield None
        return
    with watching(Console(), 1) as watch:
        watch.started(cell)
        yield watch


def _progress(watch: Watch, cell: Cell) -> Any:
    def progress(done: int, total: int, what: str) -> None:
        watch.heard(cell, done, total, what)
        watch.tick()

    return progress


def _tell(cell: Cell, places: Places, message: tuple[Any, ...]) -> int:
    """Say and note why there is no result; returns the exit code."""
    if message[0] in ("failed", "lost"):
        with contextlib.suppress(OSError):  # a full disk is the failure already reported
            record_failure(run_folder(places, cell), message[2], message[1])
    print(f"{cell.address}: {message[-1]}", file=sys.stderr, flush=True)
    return 1


def _first_to_fail() -> bool:
    """Whether no other process has failed before; asked once."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # has it at run time alone
            *where, is_master=False, timeout=timedelta(seconds=5)
        )
        return bool(store.add("suite/failed", 1) == 1)
    except (RuntimeError, ValueError):  # it has gone with the process that kept it
        return True
