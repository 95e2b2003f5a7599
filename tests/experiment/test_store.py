"""The store of pretrained models: one trains, the others wait; whole entries or none."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from shared.experiment.frame import processor_of
from shared.experiment.records import Record
from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from shared.experiment.store import (
    FACT,
    RECORD,
    SAVED,
    discard,
    encoder_key,
    is_stored,
    key_of,
    pretrained,
)


@dataclass(frozen=True)
class Config:
    steps: int = 3
    seed: int = 0
    protocol: str = "none-v1"

    def reduced(self) -> "Config":
        return self


PART, DATA = {"steps": 3}, {"files": "abc"}
KEY = key_of(PART, DATA)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path / "run", Config(), store=tmp_path / "encoders") as run:
        yield run


def trainer(
    text: str = "weights", calls: list[str] | None = None
) -> Callable[[], Callable[[Path], None]]:
    """What trains to ``text``, and notes in ``calls`` that it did."""

    def write(folder: Path) -> None:
        (folder / "model").write_text(text)

    def train() -> Callable[[Path], None]:
        if calls is not None:
            calls.append(text)
        return write

    return train


def facts(run: Run) -> dict[str, str]:
    return dict(run.environment.get("facts", {}))


def test_the_second_takes_what_the_first_trained(tmp_path: Path, run: Run) -> None:
    calls: list[str] = []
    run.keep_notice("something of the training")
    folder = pretrained(run, PART, DATA, trainer("first", calls))
    assert folder == tmp_path / "encoders" / KEY
    assert facts(run) == {FACT: KEY}
    assert is_stored(tmp_path / "encoders", encoder_key(PART))
    assert not is_stored(tmp_path / "encoders", encoder_key({"steps": 4}))
    with Run(tmp_path / "other", Config(), store=tmp_path / "encoders") as other:
        assert pretrained(other, PART, DATA, trainer("second", calls)) == folder
        assert facts(other).keys() == {FACT, SAVED}
        assert other.environment["notices"] == ["something of the training"]
        pretrained(other, {"steps": 4}, DATA, trainer("third", calls))
        pretrained(other, PART, {"files": "abd"}, trainer("fourth", calls))
    assert calls == ["first", "third", "fourth"]
    assert (folder / "model").read_text() == "first"


def test_a_run_says_what_its_encoder_was_trained_on(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One from elsewhere is part of what its number was computed on."""
    monkeypatch.setitem(run.environment["hardware"], "accelerators", ["A GPU"])
    pretrained(run, PART, DATA, trainer())
    assert facts(run) == {FACT: KEY}
    with Run(tmp_path / "other", Config(), store=tmp_path / "encoders") as other:
        pretrained(other, PART, DATA, trainer())
        record = Record("", {}, dict(other.environment), {})
    processor = record.environment["hardware"]["processor"]
    assert processor_of(record) == f"{processor}, encoder: A GPU"


def test_the_seconds_of_a_training_are_its_own(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [run._started + 5.0]
    monkeypatch.setattr("shared.experiment.run.time.monotonic", lambda: clock[0])

    def train() -> Callable[[Path], None]:
        clock[0] += 7.0
        return trainer()()

    pretrained(run, PART, DATA, train)
    with Run(tmp_path / "other", Config(), store=tmp_path / "encoders") as other:
        pretrained(other, PART, DATA, trainer())
        assert facts(other)[SAVED] == "7.000"


def test_a_training_that_fails_leaves_nothing(tmp_path: Path, run: Run) -> None:
    def train() -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            (folder / "model").write_text("half")
            raise OSError("the disk is full")

        return write

    with pytest.raises(OSError, match="the disk is full"):
        pretrained(run, PART, DATA, train)
    assert [path for path in (tmp_path / "encoders").iterdir() if path.is_dir()] == []
    assert (pretrained(run, PART, DATA, trainer()) / RECORD).is_file()


def test_a_second_process_waits_for_the_first_and_takes_its_encoder(
    tmp_path: Path, run: Run
) -> None:
    told: list[str] = []
    (tmp_path / "encoders").mkdir()
    lock = FileLock(tmp_path / "encoders" / f".{KEY}.lock", thread_local=False)
    lock.acquire()
    with Run(tmp_path / "first", Config(), store=tmp_path / "elsewhere") as first:
        made = pretrained(first, PART, DATA, trainer("the first's"))

    def progress(done: int, total: int, what: str) -> None:
        told.append(what)
        if len(told) == 1:
            made.rename(tmp_path / "encoders" / KEY)
            threading.Thread(target=lock.release).start()

    run._progress = progress
    folder = pretrained(run, PART, DATA, trainer("never"))
    assert set(told) == {"waiting for another run"}
    assert (folder / "model").read_text() == "the first's"
    assert SAVED in facts(run)


def test_a_waiting_run_can_be_told_to_stop(tmp_path: Path, run: Run) -> None:
    (tmp_path / "encoders").mkdir()
    with FileLock(tmp_path / "encoders" / f".{KEY}.lock"):
        run.stopping = True
        with pytest.raises(Interrupted):
            pretrained(run, PART, DATA, trainer())
    assert not (tmp_path / "encoders" / KEY).exists()


def test_a_discarded_encoder_is_trained_anew(tmp_path: Path, run: Run) -> None:
    folder = pretrained(run, PART, DATA, trainer("old"))
    assert json.loads((folder / RECORD).read_text())["config"] == PART
    discard(tmp_path / "encoders", {})
    assert folder.is_dir()
    discard(tmp_path / "encoders", run.environment)
    assert not folder.exists()
    pretrained(run, PART, DATA, trainer("new"))
    assert (folder / "model").read_text() == "new"


def test_a_damaged_entry_is_named_and_trained_again(tmp_path: Path, run: Run) -> None:
    folder = pretrained(run, PART, DATA, trainer("first"))
    (folder / "model").write_text("firsd")
    with Run(tmp_path / "other", Config(), store=tmp_path / "encoders") as other:
        with pytest.warns(UserWarning, match="model is not the one in .*trained again"):
            pretrained(other, PART, DATA, trainer("first"))
        assert facts(other) == {FACT: KEY}
    assert (folder / "model").read_text() == "first"
