"""The same cells under other code paths of one processor: how far a seed moves by rounding alone.

Libraries choose a path when they are loaded, so that every path is a command line of its own, with
runs of its own in ``RUNS/arithmetic/PATH``; ``report`` puts them beside the records.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
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
        done = subprocess.run([*start, *arguments, *where], env=os.environ | variables, check=False)
        if done.returncode == INTERRUPTED:
            return INTERRUPTED
        worst = max(worst, done.returncode)
    return worst
