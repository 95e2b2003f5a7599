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

    # "done"; "served", for a process that is not needed after training; "interrupted"; "missing", a
    # dataset; "refused", a folder of another run; "not captured", as a CUDA graph; "failed";
    # "lost", when another process of the cell is gone.
    kind: Literal[
        "done", "served", "interrupted", "missing", "refused", "not captured", "failed", "lost"
    ]
    why: str = ""  # why there is no result, in one line
    trace: str = ""  # the traceback of an error
    result: Mapping[str, Any] | None = None  # of the finished run
    dataset: str = ""  # the one that is missing

    def note(self, folder: Path) -> None:
        """Write a failure to the folder of the run; one that is refused belongs to another run."""
        if self.kind in ("missing", "failed", "lost"):
            with contextlib.suppress(OSError):  # a full disk has been reported already
                record_failure(folder, self.why, self.trace)


INTERRUPTED = Outcome("interrupted", "interrupted, state saved")
