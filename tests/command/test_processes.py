"""One run on several processes: the same curve, one folder, stops, resumes and refusals."""

import csv
import dataclasses
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import toy
from toy.program import AtOnce, on_two_processes, start
from toy.tables import run_of
from toy.train import Config

from shared.errors import UserError
from shared.experiment import run as run_module
from shared.experiment.domain import Experiment
from shared.experiment.run import Run, check_processes
from shared.experiment.run_folders import Conflict, check_same_processes
from tests.experiment.test_watch import assert_alike
from tests.stages import curves

ROOT = Path(__file__).resolve().parents[2]
CELL = "toy/toy/table-1/plain/left/seed-0"
SLOW = "toy/slow/table-1/plain/left/seed-0"
# Images of digits have no colour: batch norms in training mode would turn the rounding of CMC's
# colour channels into its input.
MEMORIES = tuple(f"vision, {name}" for name in ("MoCHI", "SwAV", "CMC, batch norms fixed"))
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "toy")


def read(folder: Path, address: str, name: str) -> Any:
    return json.loads((run_of(folder / "runs", address) / name).read_text())


def reaches(folder: Path, step: int) -> None:
    """Wait for a step of the slow cell."""
    log = run_of(folder / "runs", SLOW) / "log.jsonl"
    for _ in range(2400):
        if log.exists() and log.read_text().count("\n") >= step:
            return
        time.sleep(0.05)
    raise AssertionError("waited two minutes in vain")


@pytest.fixture(scope="module")
def whole(filled_once: Callable[..., Path]) -> Path:
    """A folder in which the slow cell has run to its end on two processes."""
    return filled_once("two-processes", lambda folder: on_two_processes(folder, "--cell", SLOW))


@pytest.mark.slow
def test_two_processes_leave_one_record_that_says_so(whole: Path, at_once: AtOnce) -> None:
    assert read(whole, SLOW, "environment.json")["processes"] == 2
    lines = (run_of(whole / "runs", SLOW) / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    accuracy = read(whole, SLOW, "result.json")["metrics"]["accuracy"]
    out, err = at_once("--cell", SLOW, folder=whole)  # on any number of processes
    assert "1 run done already" in out
    assert f"{accuracy:.2f}" in out
    assert not err


@pytest.mark.slow
def test_stopped_killed_and_resumed_they_give_the_same_bits(
    whole: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    stopped = start(tmp_path, "--cell", SLOW, module=TORCHRUN)
    reaches(tmp_path, 3)
    stopped.send_signal(signal.SIGTERM)
    out, _ = stopped.communicate(timeout=60)
    assert stopped.returncode != 0
    assert "interrupted; rerun the same command to resume" in out

    _, err = at_once("--cell", SLOW, code=1)
    folder = run_of(Path("runs"), SLOW)
    assert err.startswith(f"{SLOW}: refused: {folder} ")
    assert "torchrun --nproc-per-node 2" in err

    reached = (tmp_path / folder / "log.jsonl").read_text().count("\n")
    killed = start(tmp_path, "--cell", SLOW, module=TORCHRUN)
    reaches(tmp_path, reached + 3)
    (second,) = [
        each
        for each in psutil.Process(killed.pid).children(recursive=True)
        if each.environ().get("RANK") == "1" and each.ppid() == killed.pid
    ]
    second.kill()
    _, err = killed.communicate(timeout=60)
    assert killed.returncode == 1
    why = read(tmp_path, SLOW, "failure.json")["why"]
    assert "one of its 2 processes ended" in why
    assert err.count(f"{SLOW}: {why}\n") == 1

    on_two_processes(tmp_path, "--cell", SLOW)
    for name in ("metrics", "protocol", "tier"):
        assert read(tmp_path, SLOW, "result.json")[name] == read(whole, SLOW, "result.json")[name]
    losses = [
        [json.loads(line)["loss"] for line in (at / folder / "log.jsonl").read_text().splitlines()]
        for at in (whole, tmp_path)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_of_several_processes_the_first_scores(whole: Path, tmp_path: Path) -> None:
    out = on_two_processes(tmp_path, "--cell", SLOW, "--watch", "10")
    assert out.count("watch/moved") == 2
    assert_alike(*(run_of(each / "runs", SLOW) for each in (whole, tmp_path)))


def test_bad_calls_are_refused_before_anything_starts(
    at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for arguments in (("toy", "toy"), ("--cell", CELL, "--set", "steps=2")):
        assert "--cell ADDRESS" in at_once(*arguments, code=2)[1]


def test_kinds_of_runs_that_take_one_process_say_so(tmp_path: Path) -> None:
    domain = dataclasses.replace(toy.DOMAIN, experiments=(Experiment(Config, toy.measure),))
    with Run(tmp_path, Config()) as run:
        run.processes = 2
        with pytest.raises(UserError, match="Config takes one process"):
            domain.measure(run.config, run)


def test_another_number_of_processes_is_refused_once_there_is_a_checkpoint(tmp_path: Path) -> None:
    with Run(tmp_path, Config()) as run:
        check_same_processes(tmp_path, 2)
        run.track()
        run.checkpoint(1)
    check_same_processes(tmp_path, 1)
    with pytest.raises(Conflict, match="torchrun"):
        check_same_processes(tmp_path, 2)


def test_processes_with_another_code_or_configuration_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "world_size", lambda: 2)
    for name, value in (("commit", "abc"), ("configuration", "{}"), ("torch", "0.4")):
        monkeypatch.setattr(
            run_module, "all_gather_objects", lambda own, n=name, v=value: [own, {**own, n: v}]
        )
        with pytest.raises(UserError, match=f"process 1 has another {name}"):
            Run(tmp_path, Config()).__enter__()
        assert not (tmp_path / "config.json").exists()
    monkeypatch.setattr(run_module, "all_gather_objects", lambda own: [own, own])
    with Run(tmp_path, Config()) as run:  # the folder is free again
        assert run.processes == 2


def test_the_batch_is_divided_evenly() -> None:
    check_processes(Config(batch_size=5), 1)
    check_processes(Config(batch_size=6), 3)
    with pytest.raises(UserError, match="batch_size 5"):
        check_processes(Config(batch_size=5), 2)


COMPARED = [
    case
    for case in curves.CASES
    # Where as many losses agree with batch norms in training mode, once is enough.
    if curves.steps_that_agree(case.removesuffix(curves.FIXED), double=True) < curves.COMPARED
    or not case.endswith(curves.FIXED)
    if case not in MEMORIES
]


@pytest.fixture(scope="module")
def first_losses(filled_once: Callable[..., Path]) -> Any:
    """By number of processes and case, in double precision; measured once, for the two tests."""
    cases = dict.fromkeys(COMPARED, (1, 4)) | dict.fromkeys(MEMORIES, curves.WORLDS)

    def measure(folder: Path) -> None:
        torch.save(curves.measured(cases, folder, single=(), compared=True), folder / "found.pt")

    found = torch.load(filled_once("curves", measure) / "found.pt")
    return {
        world: {case: losses for (case, _), losses in each.items()} for world, each in found.items()
    }


@pytest.mark.slow
def test_the_first_losses_are_those_of_one_process(first_losses: Any) -> None:
    apart = {}
    for case in COMPARED:
        one = first_losses[1][case]
        agree = curves.steps_that_agree(case, double=True)
        assert len(set(one)) == min(agree, curves.COMPARED)  # it trains
        apart[case] = curves.largest_difference(one, first_losses[4][case])
    assert {case: apart[case] for case in apart if not apart[case] < 1e-5} == {}


@pytest.mark.slow
def test_memories_beyond_a_batch_are_those_of_one_process(first_losses: Any) -> None:
    """Of two and of four: a fault in a gradient or in what is remembered shows in later losses."""
    for case in MEMORIES:
        one = first_losses[1][case]
        assert len(set(one)) == curves.COMPARED
        assert curves.largest_difference(one, first_losses[2][case]) < 1e-13
        assert curves.largest_difference(one, first_losses[4][case]) < 1e-13


def test_the_document_has_the_curves_of_every_domain() -> None:
    with (ROOT / "docs" / "processes.csv").open(encoding="utf-8", newline="") as stream:
        _, *rows = csv.reader(stream)
    assert {row[0] for row in rows} == set(curves.CASES)
    assert {domain for domain, *_ in curves.CASES.values()} == {
        "graph",
        "rl",
        "text",
        "video",
        "vision",
    }
    for case, _, _, *differences in rows:
        for double, number in zip((False, False, True, True), map(float, differences), strict=True):
            if curves.steps_that_agree(case, double=double) == curves.STEPS:
                assert number <= 1e-5
