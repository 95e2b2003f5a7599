"""NaN and infinity: a run stops before it writes them, and continues from what is finite."""

import copy
import dataclasses
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from toy.train import Config

from shared import Criterion, Objective, info_nce, query_key, same_label, term
from shared.experiment import states
from shared.experiment.data import sha256_of, write_sums
from shared.experiment.records import read_json
from shared.experiment.run import Means, Run
from shared.experiment.states import not_finite, read_state
from shared.experiment.store import pretrained
from tests.experiment.test_store import DATA, KEY, PART
from tests.experiment.test_watch import RUNS, domain_and_config
from tests.stages.errors import error_of
from tests.stages.simulated_device import SimulatedDevice

NAN = torch.tensor(math.nan)


def train(run: Run, steps: int, *, bad: int = -1, what: str = "", log_every: int = 1) -> nn.Linear:
    """A loop in which the loss, or a gradient under a finite loss, is NaN at the step ``bad``."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    run.track(model=model, optimiser=optimiser)
    for step in run.steps(steps, "training", log_every=log_every):
        loss = model(torch.ones(3, 2)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        if step == bad and what == "gradient":
            model.weight.grad[0, 0] = math.nan  # type: ignore[index]
        optimiser.step()
        run.means.add({"loss": NAN if step == bad and what == "loss" else loss.detach()})
    return model


def assert_finite(folder: Path) -> None:
    """Nothing in the folder of a run is NaN or infinite."""
    for file in folder.glob("checkpoint*.pt"):
        assert not_finite(read_state(file)["objects"]) is None, file
    if (folder / "log.jsonl").exists():
        assert "NaN" not in (folder / "log.jsonl").read_text()


@pytest.mark.parametrize("log_every", [1, 10_000])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_numbers_that_are_not_finite_are_never_written(
    tmp_path: Path, what: str, log_every: int
) -> None:
    whole = tmp_path / "whole"
    with Run(whole, Config()) as run:
        expected = train(run, 12, log_every=log_every)
    for bad in (7, 11):  # the last one, too
        with Run(tmp_path / "run", Config()) as run:
            text = error_of(
                lambda run=run, bad=bad: train(run, 12, bad=bad, what=what, log_every=log_every),  # type: ignore[misc]
                FloatingPointError,
            )
        assert f"is NaN or infinite by step {bad + 1}; lower the learning rate" in text
        assert run.saved_step == bad
        assert_finite(tmp_path / "run")
    with Run(tmp_path / "run", Config()) as run:  # goes on with step 11
        found = train(run, 12, log_every=log_every)
    assert torch.equal(found.weight, expected.weight)
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 12 // min(
        log_every, 12
    )


def test_the_loss_is_looked_at_between_lines_of_the_log(tmp_path: Path) -> None:
    with Run(tmp_path / "run", Config()) as run:
        run.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]
        with pytest.raises(FloatingPointError, match="loss is NaN or infinite by step 300"):
            train(run, 10_000, bad=201, what="loss", log_every=10_000)


def test_on_a_gpu_a_look_at_the_means_is_read_a_step_later(tmp_path: Path) -> None:
    with SimulatedDevice(), Run(tmp_path / "run", Config()) as run:
        run.track()
        run.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]
        value = torch.ones(()).to("cuda")

        def loop() -> None:
            for step in run.steps(10_000, "training", log_every=10_000):
                run.means.add({"loss": value * (math.nan if step == 201 else 1)})

        assert "by step 300" in error_of(loop, FloatingPointError)


def test_on_a_gpu_a_criterion_tells_at_the_next_call() -> None:
    """And the parts of its loss tell at once whoever reads them."""
    criterion = Criterion(Objective(term(info_nce, temperature=0.5)), 4, check_every=2)
    with SimulatedDevice():
        bad, good = torch.full((4, 4), math.nan).to("cuda"), torch.eye(4).to("cuda")
        for step in (0, 1, 3):
            criterion(query_key(good, good + 1), step=step)
        criterion(query_key(good, bad), step=4)
        with pytest.raises(FloatingPointError, match="at step 4"):
            criterion(query_key(good, good), step=5)
        alone = same_label(bad, torch.arange(4).to("cuda"))  # of loss 0: none has a positive
        _, parts = criterion(alone, step=5)
        assert math.isnan(float(parts["info_nce"]))


def test_on_a_gpu_a_collapse_is_noticed_a_call_later() -> None:
    criterion = Criterion(Objective(term(info_nce, temperature=0.5)), 4, check_every=100)
    with SimulatedDevice(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = torch.ones(4, 4).to("cuda")
        for step in (200, 300, 400):
            criterion(query_key(x, x), step=step)
        assert not caught
        criterion(query_key(x, x), step=401)
    (warning,) = caught
    assert "at step 400 the contrastive loss is 1.39" in str(warning.message)
    assert copy.deepcopy(criterion).monitor._checks_at_chance == 3


def test_a_checkpoint_full_of_nan_is_not_continued(tmp_path: Path) -> None:
    """Older versions wrote such checkpoints, and called them good."""
    folder = tmp_path / "run"
    with Run(folder, Config()) as run:
        train(run, 4)
    state = read_state(folder / "checkpoint.pt")
    state["objects"]["model"]["weight"][0, 1] = math.inf
    states.write_state(folder / "checkpoint.pt", state)
    with Run(folder, Config()) as run:
        text = error_of(lambda: train(run, 6))
    assert "model.weight" in text
    assert "--again" in text


def test_an_interrupted_run_saves_no_nan_either(tmp_path: Path) -> None:
    with Run(tmp_path / "run", Config()) as run:
        run.stopping = True
        with pytest.raises(FloatingPointError):
            train(run, 5, bad=0, what="gradient")
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.parametrize("damage", ["weights", "loss"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_in_every_domain(
    tmp_path: Path, built_data: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    """NaN at the second step: nothing is saved, logged, exported or stored."""
    calls = 0
    domain, config = domain_and_config(name)
    original = Means.add

    def poisoned(self: Means, parts: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 and damage == "loss":
            parts = {key: value * NAN for key, value in parts.items()}
        if calls == 2 and damage == "weights":
            modules = [each for each in run._tracked.values() if hasattr(each, "parameters")]
            weight = next(modules[0].parameters()).data
            weight[(0,) * weight.ndim] = math.nan
        original(self, parts)

    with Run(tmp_path / "run", config, data_root=built_data, store=tmp_path / "store") as run:
        monkeypatch.setattr(Means, "add", poisoned)
        with pytest.raises((FloatingPointError, ValueError), match=r"NaN|not finite"):
            domain.measure(config, run)
    assert_finite(tmp_path / "run")
    for folder in ("run", "store"):
        assert not list((tmp_path / folder).rglob("*.safetensors"))


def test_the_store_takes_no_weights_that_are_not_finite(tmp_path: Path) -> None:
    def trainer(value: float) -> Any:
        weights = {"a": torch.zeros(2), "b": torch.tensor([1.0, value])}
        return lambda: lambda folder: save_file(weights, folder / "encoder.safetensors")

    with Run(tmp_path / "run", Config(), store=tmp_path / "encoders") as run:
        text = error_of(lambda: pretrained(run, PART, DATA, trainer(math.nan)), FloatingPointError)
        assert "encoder.safetensors.b is NaN or infinite" in text
        assert not (tmp_path / "encoders" / KEY).exists()
        folder = pretrained(run, PART, DATA, trainer(2.0))
        # One that an older version has stored is trained again.
        save_file({"b": torch.tensor([math.nan])}, folder / "encoder.safetensors")
        name = "encoder.safetensors"
        write_sums(folder, {name: sha256_of(folder / name)})
        with pytest.warns(UserWarning, match="trained again"):
            pretrained(run, PART, DATA, trainer(3.0))


@pytest.mark.parametrize(("last", "says"), [(7.9, None), (8.1, "the loss began at 4 ")])
def test_a_run_that_ends_diverged_says_so_once(
    tmp_path: Path, last: float, says: str | None
) -> None:
    def loop(run: Run) -> None:
        run.track()
        for step in run.steps(20, "training"):
            run.means.add({"loss": torch.tensor(4.0 if step < 2 else last)})

    with Run(tmp_path / "run", Config()) as run, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop(run)
        with Run(tmp_path / "copy", Config()) as again:  # goes on with no step left
            shutil.copy(tmp_path / "run" / "checkpoint.pt", again.folder)
            loop(again)
    texts = [str(each.message) for each in caught if "diverged" in str(each.message)]
    assert len(texts) == (says is not None)
    assert all(says in text for text in texts if says)
    assert read_json(tmp_path / "run" / "environment.json").get("notices", []) == texts


@pytest.mark.slow
def test_weights_beyond_all_measure_are_a_divergence_too(tmp_path: Path) -> None:
    """At a learning rate of 1e6 the bounded loss of cosines ends near where it began."""
    domain, config = domain_and_config("graph")
    changed = dataclasses.replace(config, learning_rate=1e6)
    with Run(tmp_path / "run", changed, data_root=tmp_path) as run:
        with pytest.warns(RuntimeWarning, match="largest weight"):
            domain.measure(changed, run)
