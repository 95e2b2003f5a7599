"""Weights & Biases: what is sent, that nothing is sent unasked, and the library itself offline."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import toy
from toy.train import Config

from shared.experiment.run import Run
from shared.experiment.tracking import VARIABLE, WeightsAndBiases


class Session:
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.lines.append((step, numbers))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """The sessions that a stand-in for the library was asked for."""
    made: list[Session] = []
    module = ModuleType("wandb")

    def init(**options: Any) -> Session:
        made.append(Session(**options))
        return made[-1]

    module.init = init  # type: ignore[attr-defined] # a stand-in
    monkeypatch.setitem(sys.modules, "wandb", module)
    return made


def logged(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_line_of_the_log_is_sent_and_a_resumed_run_is_the_same(
    tmp_path: Path, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "margins")
    for _ in range(2):
        with Run(tmp_path / "run", Config()) as run:
            run.log(1, loss=2.0)
            run.log(2, loss=1.5, rate=0.1)
    first, second = sessions
    assert first.lines == [(1, {"loss": 2.0}), (2, {"loss": 1.5, "rate": 0.1})]
    assert first.finished
    assert first.options["project"] == "margins"
    assert first.options["config"]["seed"] == Config().seed
    assert first.options["id"] == second.options["id"]
    assert second.options["resume"] == "allow"
    assert [line["loss"] for line in logged(tmp_path / "run")][:2] == [2.0, 1.5]
    with Run(tmp_path / "other", Config(seed=1)) as run:
        run.log(1, loss=2.0)
    assert sessions[2].options["id"] != first.options["id"]


def test_nothing_is_sent_unasked_or_of_a_run_that_logs_nothing(
    tmp_path: Path, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with Run(tmp_path / "a", Config()) as run:
        run.log(1, loss=2.0)
    with Run(tmp_path / "b", Config()) as run:
        run.loggers.append(WeightsAndBiases(run.folder, run.config, "margins"))
    assert sessions == []


@pytest.mark.slow
def test_the_library_takes_it_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = Config()
    with Run(tmp_path / "run", config) as run:
        run.loggers.append(WeightsAndBiases(run.folder, run.config, "margins"))
        toy.DOMAIN.measure(config, run)
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert file.stat().st_size > 0
