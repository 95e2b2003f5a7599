import contextlib
import csv
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rl
from rl import train
from rl.agent import Agent
from rl.config import CURL, Config, ProbeConfig
from rl.replay import Replay
from shared import Objective, Projection, distance_polarization, max_margin, term
from shared.experiment.run import Run
from tests.stages import training
from tests.stages.simulated_device import SimulatedDevice

# Twelve decisions, six of them with an update; the first episode ends after the eighth.
AGENT = dataclasses.replace(
    Config().reduced(),
    episode_steps=64,
    frame_size=20,
    crop=16,
    filters=4,
    convolutions=2,
    latent=6,
    hidden=8,
    batch_size=8,
    environment_steps=96,
    initial_steps=6,
    evaluate_every=48,
    probe_episodes=5,
    probe_test_episodes=2,
    probe_steps=6,
    probe_updates=8,
)
PROBE = ProbeConfig(**{**vars(AGENT), "protocol": "state-probe-v1"})
LOW_RANK = Objective(CURL.loss, projection=Projection(10.0, {"norm": "l21", "alpha": 0.1}))
CONFIGS = {
    "CURL": AGENT,
    "CLLR": dataclasses.replace(AGENT, objective=LOW_RANK),
    "SAC": dataclasses.replace(AGENT, contrastive=False),
}
DIED_AT, SAVED_AT = 11, 5  # decisions


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs and checkpoints come after steps, as there are too few for minutes."""
    monkeypatch.setattr(train, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(train, "LOG_EVERY", 4)


def die(folder: Path) -> None:
    """A run that is killed some decisions after its last checkpoint, in its second episode."""
    torch.set_num_threads(1)
    train.SAVE_EVERY = 0.0

    def watch(done: int, total: int, what: str) -> None:
        if done == 8 * DIED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        if done == 8 * (SAVED_AT + 1):
            run.checkpoint = lambda step, every: None  # none is due any more

    with Run(folder, AGENT, progress=watch) as run:
        rl.DOMAIN.measure(AGENT, run)


def timeless(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a curve without what the clock says."""
    assert all(float(row["seconds"]) >= 0 for row in rows)
    return [{name: row[name] for name in row if name != "seconds"} for row in rows]


def curve_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "curve.csv").open(newline="") as stream:
        return timeless(list(csv.DictReader(stream)))


@pytest.mark.slow
def test_an_agent_that_is_killed_gives_the_same_bits(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    metrics = training.finish(whole, AGENT, rl.DOMAIN.measure)
    here, root = Path(__file__).parent, Path(rl.__file__).parents[1]
    program = "import sys, pathlib, test_train; test_train.die(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(killed)],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{here}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(curve_of(killed)) == 1  # from after the checkpoint
    assert torch.load(killed / "checkpoint.pt")["objects"]["progress"]["curve"] == []
    again = training.finish(killed, AGENT, rl.DOMAIN.measure)
    curves = [timeless(found["details"]["curve"]) for found in (metrics, again)]
    assert curves[0] == curves[1]
    # Each of the environment steps gives up to one point.
    assert all(0 < each < AGENT.episode_steps for row in curves[0] for each in row["episodes"])
    assert again["return"] == metrics["return"] == curves[0][-1]["return"]
    weights = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert curve_of(killed) == curve_of(whole)
    assert not (killed / "replay").exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"evaluate_every": 36, "environment_steps": 72}, "evaluate_every"),
        ({"crop": 1000}, "crop"),
        ({"stack": 1000}, "stack"),
        ({"environment_steps": 100}, "environment_steps"),
        ({"protocol": "state-probe-v1"}, "state-probe-v1"),
    ],
)
def test_meaningless_configurations_are_refused(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    config = dataclasses.replace(AGENT, **changes)
    with Run(tmp_path, config) as run, pytest.raises(ValueError, match=word):
        rl.DOMAIN.measure(config, run)


REAL = pytest.mark.cuda


@pytest.mark.parametrize(
    ("name", "update_every", "simulated"),
    [
        ("CURL", 2, True),
        *(
            pytest.param(name, update_every, False, marks=REAL)
            for name in ("CURL", "CLLR", "SAC", "polarization")
            for update_every in (2, 8)
        ),
    ],
)
def test_captured_updates_are_the_eager_ones(
    tmp_path: Path,
    name: str,
    update_every: int,
    simulated: bool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("SUITE_GRAPHS", "1")
    if not simulated:
        request.getfixturevalue("exact")
    with SimulatedDevice() if simulated else contextlib.nullcontext() as gpu:
        _compare_updates(tmp_path, name, update_every)
    if gpu is not None:
        assert gpu.operators["graph"] == 6  # half of them with a step of the actor


def _compare_updates(tmp_path: Path, name: str, update_every: int) -> None:
    polarized = dataclasses.replace(CURL, penalties=(term(distance_polarization, weight=0.1),))
    config = CONFIGS.get(name) or dataclasses.replace(AGENT, objective=polarized)
    config = dataclasses.replace(config, update_every=update_every)
    device = torch.device("cuda")
    replay = Replay(
        tmp_path,
        40,
        frame_size=config.frame_size,
        stack=config.stack,
        action_dimensions=2,
        device=device,
    )
    generator = np.random.default_rng(0)
    frames = generator.integers(0, 256, (41, 3, 20, 20), dtype=np.uint8)
    replay.begin(frames[0])
    for frame in frames[1:]:
        action, reward = generator.uniform(-1, 1, 2).astype(np.float32), generator.uniform()
        replay.add(action, float(reward), frame)

    found = []
    # Updates of both kinds before and after one that is looked at, and enough to replay both.
    steps = range(95, 107) if update_every == 2 else range(95, 95 + 5 * update_every)
    for captured in (False, True):
        torch.manual_seed(0)
        agent = Agent(config, 2, device=device)
        with mock.patch.object(train, "can_be_captured", return_value=captured):
            update = train.make_update(agent, replay, config)
        parts = []
        for step in steps:
            named = update(replay.draw(config.batch_size, config.crop), step)
            parts.append({key: float(value) for key, value in named.items()})
        found.append((parts, {key: x.cpu() for key, x in agent.state_dict().items()}))
    (eager, weights), (graphs, same) = found
    assert eager == graphs
    assert all(torch.equal(same[key], value) for key, value in weights.items())
    replay.delete()


def test_a_run_trains_in_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(train, "train_with", lambda *args, **of: calls.append((*args, of)) or {})
    monkeypatch.setattr(train, "make_environment", lambda config: config)
    monkeypatch.setattr(train, "renderer_in_use", lambda: "none")
    monkeypatch.setattr(train, "task_fingerprint", lambda task: f"of {task}")
    with Run(tmp_path, AGENT) as run:
        rl.DOMAIN.measure(AGENT, run)
        assert run.environment["data"] == {AGENT.task: f"of {AGENT.task}"}
        assert run.environment["facts"] == {"renderer": "none"}
    ((config, of, make, several, others),) = calls
    assert (config, of, make(), others) == (AGENT, run, AGENT, {"episodes": 2})
    assert several is train.evaluation_environments


def test_what_waits_is_not_captured() -> None:
    solver = dataclasses.replace(AGENT, objective=Objective(term(max_margin)))
    assert train.can_be_captured(AGENT)
    for waits in (solver, dataclasses.replace(AGENT, chunk=4)):
        assert not train.can_be_captured(waits)
        assert train.can_be_captured(dataclasses.replace(waits, contrastive=False))


def test_a_checkpoint_holds_the_environment_and_the_curve() -> None:
    environment = mock.Mock(**{"snapshot.return_value": 7})
    first, second = train.Progress(environment), train.Progress(environment)
    first.curve.append({"step": 8, "return": 0.5})
    second.load_state_dict(first.state_dict())
    environment.restore.assert_called_once_with(7)
    assert second.curve == [{"step": 8, "return": 0.5}]
