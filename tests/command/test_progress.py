"""What is shown while cells run."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from toy.tables import TABLES

from shared.command import progress
from shared.command.cells import Chosen
from shared.command.progress import INTERRUPTED, Outcome, duration, sentence, watching
from shared.command.running import main_metrics
from shared.experiment.records import Reason

CELLS = TABLES["toy"][0].cells(row="plain")
DONE = Outcome("done", result={"metrics": {"norm": 3.0, "accuracy": 1.25}, "seconds": 7})


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


def test_without_a_terminal_there_are_plain_lines(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.get_time = clock
    first, _, third = CELLS[:3]
    with watching(console, 3, {first.address: ("accuracy", "1.00 ± 0.10")}) as watch:
        watch.started(first)
        assert written(console) == ["3 cells to run"]
        watch.started(third)
        watch.update(first, 10, 30, "training")  # resumed: its pace is not that of 10 steps
        clock.now += 28
        watch.update(first, 14, 30, "training")
        watch.tick()
        assert written(console) == []  # not more than one in a minute
        clock.now += 32
        watch.tick()
        label = "plain / left / seed"
        assert written(console) == [
            f"0/3 done; {label} 0: training 14 of 30, about 1.9 min left; and 1 more"
        ]
        watch.tick()
        assert written(console) == []
        clock.now += 60
        watch.ended(first, DONE)
        beside = "accuracy 1.25 (7 s); paper: 1.00 ± 0.10"
        assert written(console) == [f"[1/3] {label} 0: {beside}"]
        watch.update(third, 0, 2, "probe")
        clock.now += 60
        watch.tick()
        assert written(console) == [f"1/3 done; {label} 2: probe 0 of 2"]
        watch.ended(third, Outcome(Reason.FAILED, "failed: it broke"))
        clock.now += 60
        watch.tick()  # nothing runs
        assert written(console) == [f"[2/3] {label} 2: failed: it broke"]


def test_durations_have_the_unit_that_suits_them() -> None:
    found = [duration(seconds) for seconds in (89, 90, 5400, 200_000, 1e8)]
    assert found == ["89 s", "1.5 min", "1.5 h", "2.3 d", "3.2 years"]


def test_a_finished_cell_shows_the_metric_that_it_is_run_for() -> None:
    (toy,), (shared,) = TABLES["toy"], TABLES["shared"]
    cells = (*toy.cells("paper", seeds=[0]), *toy.cells("smoke", row="plain"))
    assert main_metrics([Chosen(toy, tuple(cells))]) == {
        "toy/toy/table-1/plain/left/seed-0": ("accuracy", "1.00 ± 0.10"),
        "toy/toy/table-1/plain/right/seed-0": ("accuracy", "2.00"),
        "toy/toy/table-1/better/left/seed-0": ("accuracy", "3.00"),
        "toy/toy/table-1/better/right/seed-0": ("accuracy", ""),
        "smoke/toy/toy/table-1/plain/embedded-sample/seed-0": ("accuracy", ""),
    }
    own = tuple(replace(cell, own=True) for cell in toy.cells("paper", seeds=[0]))
    changed = main_metrics([Chosen(toy, own)])
    assert {*changed.values()} == {("accuracy", "")}
    mine = replace(toy.cells("paper", seeds=[0])[0], row="mine")
    assert main_metrics([Chosen(toy, (mine,))]) == {mine.address: ("accuracy", "")}
    both = main_metrics([Chosen(shared, tuple(shared.cells("paper", seeds=[0])))])
    assert both["toy/shared/table-1/plain/both/seed-0"] == ("accuracy", "1.00 ± 0.10")
    assert sentence(DONE) == "norm 3 (7 s)"
    assert sentence(INTERRUPTED) == "interrupted, state saved"


def test_without_a_terminal_every_tenth_cell_has_a_line(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.get_time = clock
    cells = [replace(CELLS[0], row=str(number)) for number in range(26)]
    with watching(console, 26, {}) as watch:
        for cell in cells:
            watch.started(cell)
            clock.now += 2
            watch.ended(cell, DONE)
    assert [line.partition(" ")[0] for line in written(console)] == ["26", "[10/26]", "[20/26]"]
