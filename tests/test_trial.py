"""What a run costs is found in the first steps of its own loop."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from shared import Objective, info_nce, max_margin, term
from shared.experiment import trial
from shared.experiment.runs import Run
from shared.experiment.trial import Cost, cost_of, seconds_of_loss

WIDTH = 64


@dataclass(frozen=True)
class Config:
    batch_size: int = 1000
    layers: int = 1
    total: int = 10**9  # steps: no trial comes to their end
    seed: int = 0
    protocol: str = "none"

    def reduced(self) -> "Config":
        return self


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_costs", {})
    monkeypatch.setattr(trial, "_losses", {})


def train(config: Config, run: Run) -> None:
    """Layers of which each keeps its input; left with the first steps."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(config.layers)))
    optimiser = torch.optim.Adam(model.parameters())
    run.record_data(noise="0" * 64)
    run.record(place="here")
    run.keep_checkpoint = False
    run.track(model=model, optimiser=optimiser)
    for step in run.steps(config.total, "training", log_every=1, save_every=0.0):
        loss = model(torch.randn(config.batch_size, WIDTH)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        run.log(step + 1, loss=float(loss.detach()))
        run.means.add({"loss": loss.detach()})
    raise AssertionError("a trial does not come to the end of the loop")


def test_what_is_held_and_kept_is_counted() -> None:
    cost = cost_of(train, Config(), {"layers": 3})
    parameters = 3 * WIDTH**2
    # Parameters, gradients and Adam's two moments; beside them three counts of steps.
    assert cost.fixed == pytest.approx(4 * 4 * parameters, abs=3 * 8)
    # Each layer keeps its input, the square its own.
    assert cost.kept == pytest.approx(4 * WIDTH * 4, rel=0.05)


def test_seconds_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for each step and a hundredth for each item; the first step takes longer."""
    now = 0.0
    monkeypatch.setattr(trial, "clock", lambda: now)

    def slow(config: Config, run: Run) -> None:
        nonlocal now
        for step in run.steps(config.total, "training"):
            now += 0.05 + 0.01 * config.batch_size + (7.0 if step == 0 else 0.0)
            now += 0.02 * (step % 2)  # every other step does more

    cost = cost_of(slow, Config(), {}, smallest=2, largest=32, skip=2, cycle=2)
    assert cost.per_item == pytest.approx(0.01)
    assert cost.per_step == pytest.approx(0.06)
    assert cost.seconds(100) == pytest.approx(1.06)


def test_larger_batches_are_timed_until_a_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sizes = 0.0, []
    monkeypatch.setattr(trial, "clock", lambda: now)

    def slow(config: Config, run: Run) -> None:
        nonlocal now
        sizes.append(config.batch_size)
        for _ in run.steps(config.total, "training"):
            now += 0.03 * config.batch_size

    cost_of(slow, Config(), {}, smallest=2, largest=256)
    assert sizes == [2, 8, 32]  # 32 take a second; of two sizes there is a line
    sizes.clear()
    cost_of(slow, Config(), {"layers": 2}, smallest=100, largest=1000)
    assert sizes == [100, 400]


def test_equal_questions_are_measured_once() -> None:
    asked = []

    def count(config: Config, run: Run) -> None:
        asked.append((config.layers, config.seed))
        for _ in run.steps(config.total, "training"):
            pass

    for config in (Config(), Config(), dataclasses.replace(Config(), layers=9)):
        cost_of(count, config, {"layers": 2, "batch_size": 5}, smallest=2, largest=8)
    assert asked == [(2, 0)] * 2
    cost_of(count, Config(), {"layers": 3}, smallest=2, largest=8)
    assert len(asked) == 4


def test_a_trial_leaves_nothing_and_moves_no_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(trial.tempfile, "tempdir", None)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert isinstance(cost_of(train, Config(), {}), Cost)
    assert torch.equal(torch.rand(3), expected)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_loop_come_through() -> None:
    def broken(config: Config, run: Run) -> None:
        for _ in run.steps(config.total, "training"):
            raise FloatingPointError("the loss is not finite at step 0")

    with pytest.raises(FloatingPointError, match="not finite at step 0"):
        cost_of(broken, Config(), {})


def test_a_solver_costs_more_than_a_sum_and_more_with_larger_batches() -> None:
    plain = Objective(term(info_nce, temperature=0.5))
    solved = Objective(term(max_margin, gamma=1.0, solver="projected_gradient"))
    assert 0 < seconds_of_loss(plain, 32, 8) < seconds_of_loss(solved, 32, 8)
    assert seconds_of_loss(solved, 8, 8) < seconds_of_loss(solved, 64, 8)
    before = time.perf_counter()
    seconds_of_loss(solved, 64, 8)
    assert time.perf_counter() - before < 0.01  # known
