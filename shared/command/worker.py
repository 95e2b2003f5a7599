"""One cell at work in its process, whoever started that: the pool or torchrun."""

import multiprocessing
import os
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from shared import functions
from shared.capture import CaptureFailed
from shared.command import devices
from shared.command.cells import Places, imported
from shared.command.progress import INTERRUPTED, Outcome
from shared.distributed import all_gather_objects, is_lost, world_size
from shared.errors import UserError, describe_os_error, lacking
from shared.experiment.config import USER_TIER, canonical, run_key
from shared.experiment.data import MissingData
from shared.experiment.records import Damaged, Reason, read_record
from shared.experiment.run import Run
from shared.experiment.run_folders import Conflict, Interrupted, Locked, WorkerDone
from shared.experiment.tables import Cell
from shared.notices import show_plain_warnings
from shared.report.wording import counted
from shared.switches import SWITCH

Report = Callable[..., None]
FEW_STEPS = 100  # of a user's training


def run_cell(
    cell: Cell, places: Places, options: Namespace, workers: int, report: Report
) -> Outcome:
    """Run a cell, unless another process has done so by now.

    ``report`` is called with the name of a method of :class:`shared.command.progress.Watch` and its
    arguments after the cell. ``workers`` are processes or threads that the run may use.
    """
    set_up_torch(options.threads, deterministic=options.deterministic)
    show_plain_warnings()
    report("print_once", devices.used(options.threads, cell.config))
    if run_key(cell.tier, canonical(cell.config)) != cell.key:  # as this process has imported it
        why = "the source of its loss changed since the command began; start it again"
        return Outcome(Reason.REFUSED, f"{Reason.REFUSED}: {why}")
    run = Run(
        places.runs / cell.folder,
        cell.config,
        tier=USER_TIER if cell.own else cell.tier,
        workers=workers,
        data_root=places.data,
        allow_missing=options.allow_missing,
        progress=partial(report, "update"),
        watch=options.watch,
        show=partial(report, "print_line"),
        store=places.store_of(cell),
    )
    if world_size() > 1:
        # Beyond the run's end: once one process has ended, torchrun sends SIGTERM to the others,
        # and one of them still has to report why.
        run.stop_on_signals()
    try:
        with run:
            _stop_with_parent(run)
            # As the first process sees it.
            (finished, *_) = all_gather_objects(read_record(run.folder, cell.address) is not None)
            if finished:
                run.continue_on_rank_zero()
            else:
                metrics = imported(cell.domain).measure(cell.config, run)
                if cell.own and cell.tier != "smoke" and 0 < run.steps_taken < FEW_STEPS:
                    few = f"{counted(run.steps_taken, 'training step')}, too few to tell losses "
                    few += "apart: raise epochs or steps, or lower batch_size, with --set"
                    run.keep_notice(few)
                    report("print_once", [f"warning: {few}"])
                run.finish(metrics)
            record = read_record(run.folder, cell.address)
        assert record is not None  # just written
        return Outcome("done", result=record.result)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return _outcome_of(error, run, cell.domain)


def _outcome_of(error: BaseException, run: Run, domain: str) -> Outcome:
    """What an error of a run means, the particular ones first."""
    match error:
        case WorkerDone():
            return Outcome("helper done")
        case Interrupted():
            return INTERRUPTED
        # A signal to all processes of a job ends the run's helpers, too, perhaps before it.
        case EOFError() | ConnectionError() | KeyboardInterrupt() if run.stopping:
            return INTERRUPTED
        case MissingData():
            return Outcome(Reason.NOT_RUN, f"{Reason.NOT_RUN}: data missing; {error.remedy}")
        case Locked() | Conflict() | Damaged():
            return Outcome(Reason.REFUSED, f"{Reason.REFUSED}: {error}")
        case CaptureFailed():
            why = f"{error}; {SWITCH}=0 trains without CUDA graphs"
        case SystemExit():
            frame = traceback.extract_tb(error.__traceback__)[-1]
            why = f"SystemExit({error.code!r}) from {frame.filename}, line {frame.lineno}"
        case ModuleNotFoundError() if domain in functions.PROJECT:
            why = lacking(domain, error)
        case OSError():
            why = describe_os_error(error)
        case FloatingPointError() if run.saved_step is not None:
            file = run.folder / "checkpoint.pt"
            why = f"{error}; last good checkpoint: {file} at step {run.saved_step}"
        case UserError() | FloatingPointError():
            why = str(error)
        case Exception() if is_lost(error):
            return Outcome(Reason.FAILED, lost(run.processes), traceback.format_exc())
        case _ if _is_out_of_memory(error):
            size = getattr(run.config, "batch_size", None)
            why = "out of memory" if size is None else f"out of memory; lower batch_size ({size})"
        case _:
            why = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
    return Outcome(Reason.FAILED, f"{Reason.FAILED}: {why}", traceback.format_exc())


def set_up_torch(threads: int, *, deterministic: bool) -> None:
    """Set up torch so that every process of a cell computes the same numbers.

    With ``deterministic`` on a GPU as well, where an operator without a deterministic form then
    raises RuntimeError. Call it before the process has used cuBLAS.
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
    # Filling would write every new tensor twice. The name exists only at run time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not deterministic  # its choice can be another in each process


def lost(processes: int) -> str:
    """The message when one of several processes ended without a message."""
    return (
        f"{Reason.FAILED}: one of its {processes} processes ended; "
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


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    # The CPU allocator raises a plain RuntimeError with one of these phrases.
    words = ("not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in words)
    )
