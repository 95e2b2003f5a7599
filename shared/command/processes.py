"""One cell on several processes: torchrun's, which ``--processes`` calls.

All of them run :func:`take_part`; the first also does what a pool does for a cell of one process.
If several fail, the first to fail reports why, unless it was killed.
"""

import contextlib
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.distributed.run as torchrun
from rich.console import Console
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from shared.command import slurm
from shared.command.cells import Chosen, Places, run_folder
from shared.command.pool import cores, lost, outcome, set_up_torch
from shared.command.progress import watching
from shared.command.reproduce import STARTED
from shared.command.running import main_metrics, move_aside, not_done, show_tables
from shared.distributed import all_gather_objects, initialise, is_lost, rank, world_size
from shared.errors import UserError
from shared.experiment.run import INTERRUPTED, Run, check_processes, record_failure
from shared.experiment.tables import Cell

LEFT = 76  # exit code when another process is gone, for an unknown reason


def launch(
    chosen: Sequence[Chosen], places: Places, options: Namespace, arguments: Sequence[str]
) -> int:
    """Start the processes of a cell on this machine by torchrun; returns the exit code.

    Raises:
        UserError: the batch cannot be divided among so many.
    """
    (cell,) = chosen[0].cells
    check_processes(cell.config, options.processes)
    os.environ[STARTED] = str(options.processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    if sys.platform == "linux":  # the host name may not resolve to this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name in list(logging.root.manager.loggerDict):  # replace torchrun's report by one line
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    words = ["--standalone", "--local-addr=localhost", f"--nproc-per-node={options.processes}"]
    try:
        torchrun.run(torchrun.parse_args([*words, "-m", slurm.MODULE, *arguments]))
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        codes = {number: failure.exitcode for number, failure in error.failures.items()}
        return _explain_failures(cell, places, options.processes, codes)
    return 0


def _explain_failures(cell: Cell, places: Places, processes: int, codes: dict[int, int]) -> int:
    """The exit code, given those of the failed processes; reports those that were killed."""
    # The launcher sends SIGTERM after another process has failed.
    killed = {number: -code for number, code in codes.items() if code < 0}
    killed = {number: by for number, by in killed.items() if by != signal.SIGTERM}
    reported = {code for code in codes.values() if code > 0} - {LEFT}
    if INTERRUPTED in reported or (reported and not killed):
        return INTERRUPTED if INTERRUPTED in reported else max(reported)
    why = lost(processes)
    for number, by in killed.items():
        why = lost(processes, f"process {number}", f"was killed ({signal.Signals(by).name})")
    return _report_failure(cell, places, ("failed", "", why))


def take_part(
    chosen: Sequence[Chosen], places: Places, options: Namespace, arguments: Sequence[str]
) -> int:
    """Work on a cell as one of several processes; returns the exit code."""
    initialise()
    set_up_torch(options.threads, deterministic=options.deterministic)
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
                print("interrupted; the same command continues from here")
            return INTERRUPTED
        case "lost" if STARTED in os.environ:  # launch reports it, with the exit codes
            return LEFT
    return _report_failure(cell, places, message) if _first_to_fail() else 1


def _take_part(
    chosen: Sequence[Chosen], cell: Cell, places: Places, options: Namespace
) -> tuple[Any, ...]:
    waiting: Sequence[Cell] = ()
    if rank() == 0:
        waiting = not_done(chosen, places, options, Console())
        if options.again:
            move_aside(waiting, places, Console())
    (going, *_) = all_gather_objects(bool(waiting))
    if not going:
        return ("done",) if rank() == 0 else ("served",)
    console = Console(quiet=rank() > 0)  # only the first process prints
    with watching(console, 1, main_metrics(chosen)) as watch:
        watch.started(cell)

        def progress(done: int, total: int, what: str) -> None:
            watch.heard(cell, done, total, what)
            watch.tick()

        run = Run(
            run_folder(places, cell),
            cell.config,
            tier=cell.tier,
            workers=max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),
            data_root=places.data,
            allow_missing=options.allow_missing,
            progress=progress,
            watch=options.watch,
            show=partial(watch.shown, cell),
            store=places.store_of(cell),
        )
        message = outcome(run, cell)
        if message[0] == "done":
            watch.ended(cell, message)
    return message


def _report_failure(cell: Cell, places: Places, message: tuple[Any, ...]) -> int:
    """Print and record why there is no result; returns the exit code."""
    if message[0] in ("failed", "lost"):
        with contextlib.suppress(OSError):  # a full disk has been reported already
            record_failure(run_folder(places, cell), message[2], message[1])
    print(f"{cell.address}: {message[-1]}", file=sys.stderr, flush=True)
    return 1


def _first_to_fail() -> bool:
    """Whether this process is the first to fail; called once."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # exists only at run time
            *where, is_master=False, timeout=timedelta(seconds=5)
        )
        return bool(store.add("suite/failed", 1) == 1)
    except (RuntimeError, ValueError):  # the process that hosted the store is gone
        return True
