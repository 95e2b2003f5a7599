"""How the work of a process on a cell ended; needs no torch."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.experiment.run_folders import record_failure


@dataclass(frozen=True)
class Outcome:
    """How the work of a process on a cell ended."""

    # "helper done", for a process that is not needed after training; "missing", a dataset;
    # "conflict", with what the run's folder holds; "process died", one of several of the cell.
    kind: Literal[
        "done", "helper done", "interrupted", "missing", "conflict", "failed", "process died"
    ]
    why: str = ""  # why there is no result, in one line
    trace: str = ""  # the traceback of an error
    result: Mapping[str, Any] | None = None  # of the finished run

    def note(self, folder: Path) -> None:
        """Write a failure to the folder of the run; in a conflict the folder is another run's."""
        if self.kind in ("missing", "failed", "process died"):
            with contextlib.suppress(OSError):  # a full disk has been reported already
                record_failure(folder, self.why, self.trace)


INTERRUPTED = Outcome("interrupted", "interrupted, state saved")
