"""How the work of a process on a cell ended; needs no torch."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.experiment.records import Reason
from shared.experiment.run_folders import record_failure


@dataclass(frozen=True)
class Outcome:
    """How the work of a process on a cell ended."""

    # "helper done" is of a process that is not needed after training.
    kind: Literal["done", "helper done", "interrupted"] | Reason
    why: str = ""  # why there is no result, in one line
    trace: str = ""  # the traceback of an error
    result: Mapping[str, Any] | None = None  # of the finished run

    def note(self, folder: Path) -> None:
        """Write a failure to the folder of the run; what is refused may be of another run."""
        if self.kind in (Reason.NOT_RUN, Reason.FAILED):
            with contextlib.suppress(OSError):  # a full disk has been reported already
                record_failure(folder, self.why, self.trace)


INTERRUPTED = Outcome("interrupted", "interrupted, state saved")
