"""What is shown while cells run: bars on a terminal, elsewhere a line now and then."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shared.experiment.tables import Cell

EVERY = 5.0  # seconds between two lines
NAMED = 2  # running cells that a line names


class Watch(Protocol):
    """Whoever is told how the cells go on."""

    def started(self, cell: Cell) -> None:
        """A process was started."""

    def heard(self, cell: Cell, done: int, total: int, what: str) -> None:
        """A cell says how far it is."""

    def stopped(self, cell: Cell) -> None:
        """A cell waits again."""

    def ended(self, cell: Cell, message: tuple[Any, ...]) -> None:
        """A cell has said its last."""

    def tick(self) -> None:
        """Some time has passed."""


@contextlib.contextmanager
def watching(
    console: Console, total: int, printed: Mapping[str, str] | None = None
) -> Iterator[Watch]:
    """Whoever is to be told of ``total`` cells: bars on a terminal, else lines.

    Args:
        console: where to.
        total: how many cells there are.
        printed: by address, what the paper prints where a cell's number goes.
    """
    if not console.is_terminal:
        yield Lines(console, total, printed or {})
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as bars:
        yield Bars(bars, total, printed or {})


@dataclass
class _Heard:
    """How far a cell is, and how far it was at the first word of the same work."""

    done: int
    total: int
    what: str
    first: int
    since: float


class Lines:
    """A line when a cell has ended, and every few seconds one about those that run.

    Args:
        console: where to.
        total: how many cells there are.
        printed: by address, what the paper prints there.
    """

    def __init__(self, console: Console, total: int, printed: Mapping[str, str]) -> None:
        self.console = console
        self.total = total
        self.printed = printed
        self.done = 0
        self._start = self._said = time.monotonic()
        self._running: dict[str, tuple[Cell, _Heard | None]] = {}

    def started(self, cell: Cell) -> None:
        """Note it; the first of all is told at once."""
        if not self._running and not self.done:
            self._say(f"{self.total} cells to run; the first: {cell.address}")
        self._running[cell.address] = cell, None

    def heard(self, cell: Cell, done: int, total: int, what: str) -> None:
        """Note it, for the next line."""
        _, before = self._running[cell.address]
        if before is None or (before.what, before.total) != (what, total):
            before = _Heard(done, total, what, done, time.monotonic())
        before.done = done
        self._running[cell.address] = cell, before

    def stopped(self, cell: Cell) -> None:
        """Forget it."""
        del self._running[cell.address]

    def ended(self, cell: Cell, message: tuple[Any, ...]) -> None:
        """Tell its numbers, or why there are none."""
        del self._running[cell.address]
        self.done += 1
        text = sentence(message, self.printed.get(cell.address, ""))
        self._say(f"[{self.done}/{self.total}] {cell.address}: {text}")

    def tick(self) -> None:
        """Tell of what runs, unless something was told a moment ago."""
        if not self._running or time.monotonic() - self._said < EVERY:
            return
        texts = [self._text(*each) for each in list(self._running.values())[:NAMED]]
        if more := len(self._running) - len(texts):
            texts.append(f"and {more} more")
        seconds = time.monotonic() - self._start
        self._say(f"{duration(seconds):>6}  {self.done}/{self.total} done; {'; '.join(texts)}")

    def _text(self, cell: Cell, heard: _Heard | None) -> str:
        label = label_of(cell)
        if heard is None:
            return f"{label}: starting"
        text = f"{label}: {heard.what} {heard.done} of {heard.total}"
        if gone := heard.done - heard.first:
            left = (heard.total - heard.done) * (time.monotonic() - heard.since) / gone
            text += f", about {duration(left)} left"
        return text

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


class Bars:
    """A bar for all cells, and one for each that runs.

    Args:
        bars: what draws them.
        total: how many cells there are.
        printed: by address, what the paper prints there.
    """

    def __init__(self, bars: Progress, total: int, printed: Mapping[str, str]) -> None:
        self.bars = bars
        self.total = total
        self.printed = printed
        self.done = 0
        self._all = bars.add_task("cells", total=total)
        self._single: dict[str, Any] = {}

    def started(self, cell: Cell) -> None:
        """Add a bar that only moves to and fro."""
        label = f"{label_of(cell)}: starting"
        self._single[cell.address] = self.bars.add_task(label, total=None)

    def heard(self, cell: Cell, done: int, total: int, what: str) -> None:
        """Move its bar; other work starts another one, whose pace is its own."""
        bar, label = self._single[cell.address], f"{label_of(cell)}: {what}"
        (task,) = (each for each in self.bars.tasks if each.id == bar)
        if task.description != label:
            self.bars.reset(bar, total=total, description=label)
        self.bars.update(bar, completed=done, total=total)

    def stopped(self, cell: Cell) -> None:
        """Take its bar away."""
        self.bars.remove_task(self._single.pop(cell.address))

    def ended(self, cell: Cell, message: tuple[Any, ...]) -> None:
        """Tell its numbers above the bars, or why there are none."""
        self.stopped(cell)
        self.done += 1
        said = sentence(message, self.printed.get(cell.address, ""))
        text = f"[{self.done}/{self.total}] {cell.address}: {said}"
        self.bars.console.print(text, soft_wrap=True, highlight=False, markup=False)
        self.bars.advance(self._all)

    def tick(self) -> None:
        """Bars move by themselves."""


def label_of(cell: Cell) -> str:
    """What a cell is called while it runs."""
    return f"{cell.row} / {cell.column} / seed {cell.seed}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it: "8 s", "2.5 min", "31 h", "4.2 d", "1.5 years"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    size, unit = (60, "min") if seconds < 90 * 60 else (3600, "h")
    size, unit = (size, unit) if seconds < 48 * 3600 else (86400, "d")
    size, unit = (size, unit) if seconds < 365 * 86400 else (365 * 86400, "years")
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


def sentence(message: tuple[Any, ...], printed: str = "") -> str:
    """The last word of a cell: its numbers beside the printed one, or why there are none."""
    if message[0] == "done":
        numbers = {
            name: value
            for name, value in message[1]["metrics"].items()
            if isinstance(value, (int, float))
        }
        shown = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        whose = f"taken over from {message[2]}: " if message[2] else ""
        beside = f"; published {printed}" if printed else ""
        return f"{whose}{shown} ({message[1]['seconds']:.0f} s){beside}"
    if message[0] == "interrupted":
        return "interrupted, state saved"
    return str(message[-1])
