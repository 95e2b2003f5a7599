"""The same cells with other instructions of one processor: how far rounding alone moves a seed.

Libraries choose their instructions when they are loaded, so each choice is a command of its own,
with its runs in ``RUNS/arithmetic/PATH``; ``report`` puts them beside the records.
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
    """Run the command line ``arguments`` with each other choice; returns the worst exit code.

    Finished cells are skipped, as in any run; an interrupt ends the command.
    """
    # How this command was started, whatever that was: a module, a script.
    start = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
    worst = 0
    for path, variables in OTHER_PATHS.items():
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        print(f"instructions {path}: {words}", flush=True)
        where = ("--runs", str(repeats_folder(runs, path)))
        code = _run([*start, *arguments, *where], os.environ | variables)
        if code == INTERRUPTED:
            return INTERRUPTED
        worst = max(worst, code)
    return worst


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of a command; a request to end is passed on, and its end is waited for."""
    with subprocess.Popen(command, env=environment) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        # A terminal interrupts both; the child saves what it has.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
            signal.signal(signal.SIGINT, interrupt)
