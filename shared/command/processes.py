"""One cell on the several processes that torchrun has started.

All of them run :func:`take_part`; the first also does what a pool does for a cell of one process.
Each that fails says why, and the first writes it down.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence

from rich.console import Console

from shared.command import devices
from shared.command.cells import Chosen, Places
from shared.command.pool import cores, move_aside
from shared.command.progress import Outcome, watching
from shared.command.running import main_metrics, show_tables, unfinished_cells
from shared.command.worker import lost, run_cell
from shared.distributed import all_gather_objects, initialise, is_lost, rank, world_size
from shared.errors import UserError
from shared.experiment.records import Reason
from shared.experiment.run_folders import INTERRUPTED
from shared.experiment.tables import Cell


def take_part(chosen: Sequence[Chosen], places: Places, options: Namespace) -> int:
    """Work on a cell as one of several processes; returns the exit code."""
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    if one_machine and sys.platform == "linux":  # the host name may not resolve to this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    started = time.time()
    initialise()
    (cell,) = chosen[0].cells
    try:
        outcome = _work_on(cell, chosen, places, options)
    except UserError as error:
        outcome = Outcome(Reason.REFUSED, f"{Reason.REFUSED}: {error}")
    except RuntimeError as error:
        if not is_lost(error):
            raise
        outcome = Outcome(Reason.FAILED, lost(world_size()))
    if outcome.kind == "done":
        show_tables(chosen, places, {}, Console())
    elif outcome.kind == "interrupted":
        if rank() == 0:
            print("interrupted; rerun the same command to resume")
        return INTERRUPTED
    elif outcome.why:
        failure = places.runs / cell.folder / "failure.json"
        if not (failure.exists() and failure.stat().st_mtime >= started):
            outcome.note(failure.parent)
        print(f"{cell.address}: {outcome.why}", file=sys.stderr, flush=True)
        return 1
    return 0


def _work_on(cell: Cell, chosen: Sequence[Chosen], places: Places, options: Namespace) -> Outcome:
    console = Console(quiet=rank() > 0)  # only the first process prints
    has_work = False
    if rank() == 0:
        waiting = unfinished_cells(chosen, places, options, console)
        has_work = bool(waiting)
        if options.again:
            move_aside(waiting, places, console)
    (has_work, *_) = all_gather_objects(has_work)
    if not has_work:
        return Outcome("done" if rank() == 0 else "helper done")
    workers = max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    with watching(console, 1, main_metrics(chosen)) as watch:
        watch.started(cell)

        def report(name: str, *arguments: object) -> None:
            getattr(watch, name)(cell, *arguments)
            watch.tick()

        if rank() == 0:
            watch.print_once(cell, devices.check())
        outcome = run_cell(cell, places, options, workers, report)
        if outcome.kind == "done":
            watch.ended(cell, outcome)
    return outcome
