"""What is shown while cells run."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from toy.tables import TABLES

from shared.command import progress
from shared.command.choosing import Chosen
from shared.command.progress import Bars, Lines, duration, watching
from shared.command.running import printed_beside
from shared.experiment.tables import Cell

CELLS = TABLES["toy"][0].cells(row="plain")
DONE = ("done", {"metrics": {"accuracy": 1.25}, "seconds": 7})


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress.time, "monotonic", found)
    return found


def written(console: Console) -> list[str]:
    stream = console.file
    assert isinstance(stream, io.StringIO)
    lines = stream.getvalue().splitlines()
    stream.seek(0)
    stream.truncate()
    return lines


def test_lines_say_how_far_cells_are_and_how_long_they_take(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    first, second, third = CELLS[:3]
    with watching(console, 3, {first.address: "left 1.00 ± 0.10"}) as watch:
        assert isinstance(watch, Lines)
        watch.started(first)
        assert written(console) == [f"3 cells to run; the first: {first.address}"]
        watch.started(second)
        watch.started(third)
        watch.heard(first, 10, 30, "training")  # resumed: its pace is not that of 10 steps
        clock.now += 4
        watch.heard(first, 14, 30, "training")
        watch.tick()
        assert written(console) == []  # not more than one in five seconds
        clock.now += 2
        watch.tick()
        label = "plain / left / seed"
        assert written(console) == [
            f"   6 s  0/3 done; {label} 0: training 14 of 30, about 24 s left; "
            f"{label} 1: starting; and 1 more"
        ]
        watch.tick()
        assert written(console) == []
        watch.stopped(second)
        watch.ended(first, DONE)
        beside = "accuracy 1.25 (7 s); published left 1.00 ± 0.10"
        assert written(console) == [f"[1/3] {first.address}: {beside}"]
        watch.heard(third, 0, 2, "probe")
        clock.now += 60
        watch.tick()
        assert written(console) == [f"  66 s  1/3 done; {label} 2: probe 0 of 2"]
        watch.ended(third, ("failed", "", "failed: it broke"))
        clock.now += 60
        watch.tick()  # nothing runs
        assert written(console) == [f"[2/3] {third.address}: failed: it broke"]


def test_on_a_terminal_there_are_bars(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    cell: Cell = CELLS[0]
    with watching(console, 1) as watch:
        assert isinstance(watch, Bars)
        watch.started(cell)
        watch.heard(cell, 1, 4, "training")
        (_, bar) = watch.bars.tasks
        assert (bar.completed, bar.total) == (1, 4)
        assert bar.description.endswith("seed 0: training")
        watch.heard(cell, 1, 2, "probe")
        assert (bar.completed, bar.total, bar.description[-5:]) == (1, 2, "probe")
        watch.ended(cell, DONE)
        (whole,) = watch.bars.tasks
        assert whole.finished
    assert any(f"[1/1] {cell.address}: accuracy 1.25 (7 s)" in line for line in written(console))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (89, "89 s"),
        (90, "1.5 min"),
        (600, "10 min"),
        (5400, "1.5 h"),
        (36000, "10 h"),
        (200_000, "2.3 d"),
    ],
)
def test_durations_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_the_paper_prints_stands_beside_a_finished_cell() -> None:
    (toy,), (shared,) = TABLES["toy"], TABLES["shared"]
    cells = (*toy.cells("paper", seeds=[0]), *toy.cells("smoke"))
    found = printed_beside([Chosen(toy, tuple(cells))])
    assert found == {
        "toy/toy/table-1/plain/left/seed-0": "left 1.00 ± 0.10",
        "toy/toy/table-1/plain/right/seed-0": "right 2.00",
        "toy/toy/table-1/better/left/seed-0": "left 3.00",
    }
    mine = replace(toy.cells("paper", seeds=[0])[0], row="mine")
    assert printed_beside([Chosen(toy, (mine,))]) == {}
    both = printed_beside([Chosen(shared, tuple(shared.cells("paper", seeds=[0])))])
    assert both["toy/shared/table-1/plain/both/seed-0"] == "left 1.00 ± 0.10"
