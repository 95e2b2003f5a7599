"""Progress of running cells: bars on a terminal, elsewhere a line now and then."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from shared.experiment.records import Reason
from shared.experiment.run_folders import record_failure
from shared.experiment.tables import Cell
from shared.report.console import say
from shared.report.wording import counted

EVERY = 60.0  # seconds after which a line is due without a terminal
TENTH = 10  # and after so many cells
LEAST = 20  # minimal characters of a label on a narrow terminal
# By address, the metric that a cell is run for, and what the paper gives there.
Main = Mapping[str, tuple[str, str]]


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


@contextlib.contextmanager
def watching(console: Console, total: int, main: Main) -> Iterator["Watch"]:
    """Show the progress of ``total`` cells while the block runs."""
    # The label shrinks first, so that counts and times are never cut.
    room = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    bars = Progress(
        TextColumn("{task.description}", markup=False, table_column=room),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        expand=True,
        disable=not console.is_terminal,
    )
    with bars:
        yield Watch(bars, total, main)


class Watch:
    """Receives the progress of cells, and shows it: one bar for all, one for each that runs."""

    def __init__(self, bars: Progress, total: int, main: Main) -> None:
        self.bars = bars
        self.main = main
        self._done, self._total = 0, total
        self._all = bars.add_task("cells", total=total)
        self._running: dict[str, TaskID] = {}
        self._printed = time.monotonic()
        self._why = ""  # the last cell has no result
        self._said: set[str] = set()

    def started(self, cell: Cell) -> None:
        """A process was started."""
        if self.bars.disable and not self._running and not self._done:
            self._print(f"{counted(self._total, 'cell')} to run")
        label = f"{label_of(cell)}: starting"
        self._running[cell.address] = self.bars.add_task(label, total=None)

    def update(self, cell: Cell, done: int, total: int, what: str) -> None:
        """A cell reports progress; a new phase of work restarts its bar and time estimate."""
        bar, label = self._running[cell.address], f"{label_of(cell)}: {what}"
        if self.bars.tasks[self.bars.task_ids.index(bar)].description != label:
            self.bars.reset(bar, total=total, description=label)
        self.bars.update(bar, completed=done, total=total)

    def print_line(self, cell: Cell, text: str) -> None:
        """A cell shows a line."""
        self._print(f"{label_of(cell)}: {text}")

    def print_once(self, _: Cell, lines: Sequence[str]) -> None:
        """Print lines that hold for more than one cell, each once."""
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                self._print(line)

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """Print the main metric of a cell or why there is none, without a terminal if it is due."""
        self.bars.remove_task(self._running.pop(cell.address))
        self.bars.advance(self._all)
        self._done += 1
        count = f"[{self._done}/{self._total}] "
        label, text = label_of(cell), sentence(outcome, *self.main.get(cell.address, ()))
        if not self.bars.disable:
            room = max(LEAST, self.bars.console.width - len(count) - len(text) - 2)
            label = label if len(label) <= room else f"{label[: room - 1]}…"
        failed = isinstance(outcome.kind, Reason)
        if failed:
            again, self._why = text == self._why, text
            text = "the same" if again else text
        if failed or not self.bars.disable or self._done % TENTH == 0 or self._is_due():
            self._print(f"{count}{label}: {text}")

    def tick(self) -> None:
        """Print a line when it is due; bars refresh by themselves."""
        if self.bars.disable and self._running and self._is_due():
            _, first, *others = self.bars.tasks
            text = first.description
            if first.total:
                text += f" {first.completed:.0f} of {first.total:.0f}"
            if (left := first.time_remaining) is not None:
                text += f", about {duration(left)} left"
            more = f"; and {len(others)} more" if others else ""
            self._print(f"{self._done}/{self._total} done; {text}{more}")

    def _is_due(self) -> bool:
        return time.monotonic() - self._printed >= EVERY

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        say(self.bars.console, text)


def label_of(cell: Cell) -> str:
    """The label of a running cell."""
    return f"{cell.row} / {cell.column} / seed {cell.seed}"


def duration(seconds: float) -> str:
    """A time in a readable unit: "8 s", "2.5 min", "31 h", "4.2 d", "1.5 years"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    size, unit = (60, "min") if seconds < 90 * 60 else (3600, "h")
    size, unit = (size, unit) if seconds < 48 * 3600 else (86400, "d")
    size, unit = (size, unit) if seconds < 365 * 86400 else (365 * 86400, "years")
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


def sentence(outcome: Outcome, metric: str = "", published: str = "") -> str:
    """The outcome of a cell: its main metric beside the published one, or why there is none.

    Without a main metric it is the first that the result has.
    """
    if outcome.result is None:
        return outcome.why
    metrics = outcome.result["metrics"]
    numbers = [name for name, value in metrics.items() if isinstance(value, int | float)]
    name = metric if metric in numbers else numbers[0]
    beside = f"; paper: {published}" if published else ""
    return f"{name} {metrics[name]:.4g} ({duration(outcome.result['seconds'])}){beside}"
