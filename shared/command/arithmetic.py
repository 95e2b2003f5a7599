"""The same cells under other code paths of one processor: how far a seed moves by rounding alone.

Libraries choose a path when they are loaded, so that every path is a command line of its own, with
runs of its own in ``RUNS/arithmetic/PATH``; ``report`` puts them beside the records.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.command.places import repeats_folder
from shared.experiment.arithmetic import OTHER_PATHS
from shared.experiment.runs import INTERRUPTED


def repeat(arguments: Sequence[str], runs: Path) -> int:
    """Run the command line ``arguments`` once under each of the other paths; the worst exit code.

    A path that is done is skipped cell by cell, as any run is; an interrupted one ends the command.
    """
    # How this command was started, whatever that was: a module, a script.
    start = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
    worst = 0
    for path, variables in OTHER_PATHS.items():
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        print(f"code path {path}: {words}", flush=True)
        where = ("--runs", str(repeats_folder(runs, path)))
        code = _run([*start, *arguments, *where], os.environ | variables)
        if code == INTERRUPTED:
            return INTERRUPTED
        worst = max(worst, code)
    return worst


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of a command, which is told when this process is to end, and waited for."""
    with subprocess.Popen(command, env=environment) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        # A terminal interrupts both; the child saves what it has.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
            signal.signal(signal.SIGINT, interrupt)
