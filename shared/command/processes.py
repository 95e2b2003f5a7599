"""One cell on the several processes that torchrun has started.

All of them run :func:`take_part`; the first also does what a pool does for a cell of one process.
If several fail, the first to fail reports why.
"""

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from rich.console import Console

from shared.command import devices
from shared.command.cells import Chosen, Places, run_folder
from shared.command.pool import cores, lost, outcome, set_up_torch
from shared.command.progress import watching
from shared.command.running import main_metrics, move_aside, not_done, show_tables
from shared.distributed import all_gather_objects, initialise, is_lost, rank, world_size
from shared.errors import UserError
from shared.experiment.run import INTERRUPTED, Run, record_failure
from shared.experiment.tables import Cell


def take_part(chosen: Sequence[Chosen], places: Places, options: Namespace) -> int:
    """Work on a cell as one of several processes; returns the exit code."""
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    if one_machine and sys.platform == "linux":  # the host name may not resolve to this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    initialise()
    set_up_torch(options.threads, deterministic=options.deterministic)
    (cell,) = chosen[0].cells
    try:
        if rank() == 0:
            for line in (*devices.check(), *devices.used(options.threads, cell.config)):
                print(line, flush=True)
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
                print("interrupted; rerun the same command to resume")
            return INTERRUPTED
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
