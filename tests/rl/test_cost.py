import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from rl import cost as module
from rl.config import Config, ImitationConfig, ProbeConfig
from rl.cost import (
    are_rendered,
    cost_of_agent,
    estimate,
    estimate_imitation,
    estimate_probe,
    seconds_of_frame,
)
from rl.data import random_frames
from shared.experiment.trial import Cost

AGENT = Config()
PROBE = ProbeConfig(batch_size=64)
SMALL = Config(quality="fast").reduced()
SMALL_PROBE = ProbeConfig(quality="fast").reduced()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Costs that are not measured, and which frames and batches of losses were asked for."""
    asked: list[tuple[Any, ...]] = []

    def frame(*values: Any) -> float:
        asked.append(values)
        return 0.01

    def loss(objective: object, batch: int, dim: int, pairs: object) -> float:
        asked.append((batch, dim))
        return 0.05

    def networks(train: object, config: Config, deciding: object, **sizes: int) -> Cost:
        # An agent's step has its frame in it.
        beside = 0.0 if isinstance(config, ProbeConfig) else 0.01
        return Cost(per_step=0.05 + beside, per_item=0.002, fixed=1e8, kept=1e6)

    monkeypatch.setattr(module, "seconds_of_frame", frame)
    monkeypatch.setattr(module, "seconds_of_loss", loss)
    monkeypatch.setattr(module, "cost_of", networks)
    return asked


def seconds(config: Config, data_root: Path) -> float:
    of = estimate_probe if isinstance(config, ProbeConfig) else estimate
    return 60 * of(config, data_root)[0]


def test_an_agent_takes_decisions_updates_and_evaluations(
    measured: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    # 12,500 decisions, 11,500 with an update of 512; 10 evaluations of 10 episodes of 125.
    frames = (12_500 + 12_500) * 0.01
    assert seconds(AGENT, tmp_path) == pytest.approx(frames + 11_500 * (0.1 + 512 * 0.002))
    assert measured[0] == ("cartpole_swingup", 8, 100, "full")
    assert (512, 50) in measured
    half = dataclasses.replace(AGENT, batch_size=256)
    assert seconds(half, tmp_path) == pytest.approx(frames + 11_500 * (0.1 + 256 * 0.002))
    spin = dataclasses.replace(AGENT, action_repeat=2)
    assert seconds(spin, tmp_path) == pytest.approx(100_000 * 0.01 + 49_000 * 1.124)


def test_a_random_policy_is_evaluated_once(measured: list[tuple[Any, ...]], tmp_path: Path) -> None:
    minutes, gigabytes = estimate(dataclasses.replace(AGENT, train=False), tmp_path)
    assert 60 * minutes == pytest.approx(10 * 125 * 0.01)
    assert gigabytes == pytest.approx(0.45)
    assert len(measured) == 1  # no network


def test_without_contrast_there_is_no_contrastive_loss(
    measured: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    without = dataclasses.replace(AGENT, contrastive=False)
    assert seconds(AGENT, tmp_path) - seconds(without, tmp_path) == pytest.approx(11_500 * 0.05)


def test_memory_holds_replay_networks_and_batch(
    measured: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    _, gigabytes = estimate(AGENT, tmp_path)
    replay = 12_500 * 30_000
    assert 1e9 * gigabytes == pytest.approx(0.45e9 + 1e8 + replay + 512 * 1e6)
    _, spin = estimate(dataclasses.replace(AGENT, action_repeat=2), tmp_path)
    assert 1e9 * (spin - gigabytes) == pytest.approx(3 * replay)


def test_a_probe_takes_frames_updates_and_a_regression(
    measured: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    regression = 5e-10 * 2000**3 + 3.2e-11 * 2000 * 2500 * 50
    updates = 500 * (0.1 + 64 * 0.002)
    assert seconds(PROBE, tmp_path) == pytest.approx(2500 * 0.0105 + updates + regression)
    untrained = dataclasses.replace(PROBE, train=False)
    assert seconds(untrained, tmp_path) == pytest.approx(2500 * 0.0105 + regression)
    pixels = dataclasses.replace(PROBE, probe_input="pixels")
    of_pixels = 5e-10 * 2000**3 + 3.2e-11 * 2000 * 2500 * 63_504
    assert seconds(pixels, tmp_path) == pytest.approx(2500 * 0.01 + of_pixels)
    assert estimate_probe(pixels, tmp_path)[1] > 2500 * 63_504 * 4 / 1e9


def test_an_imitation_takes_updates_its_frames_seen_once_a_regression_and_episodes(
    measured: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    def of(**changes: Any) -> tuple[float, float]:
        minutes, gigabytes = estimate_imitation(
            dataclasses.replace(ImitationConfig(), **changes), tmp_path
        )
        return 60 * minutes, gigabytes

    # 10 episodes of 125; 4500 frames of training and 1500 of the test, every third of them read.
    played = 10 * 125 * 0.01
    seen = (6000 + 1250) * 0.0005
    regression = 5e-10 * 1500**3 + 3.2e-11 * 1500 * 2000 * 50
    updates = 500 * (0.1 + 64 * 0.002)
    assert of()[0] == pytest.approx(played + seen + regression + updates)
    assert of(train=False)[0] == pytest.approx(played + seen + regression)
    components = 3.2e-11 * 1500**2 * 63_504
    raw = of(train=False, probe_input="pixels")
    assert raw[0] == pytest.approx(played + regression + components)
    assert raw[1] > 1500 * 63_504 * 8 / 1e9
    for acts in ("expert", "random"):
        assert of(train=False, acts=acts)[0] == pytest.approx(played)


def test_frames_that_lie_there_are_not_rendered_again(
    measured: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    config = dataclasses.replace(
        SMALL_PROBE, probe_episodes=2, probe_test_episodes=1, probe_steps=2
    )
    before = seconds(config, tmp_path)
    random_frames(
        config.task,
        config.action_repeat,
        episodes=3,
        steps=2,
        frame_size=config.frame_size,
        quality=config.quality,
        seed=config.seed,
        data_root=tmp_path,
    )
    assert are_rendered(config, tmp_path)
    assert before - seconds(config, tmp_path) == pytest.approx(6 * 0.01)
    for changes in ({"seed": 1}, {"probe_steps": 3}, {"probe_episodes": 4}, {"frame_size": 50}):
        assert not are_rendered(dataclasses.replace(config, **changes), tmp_path)
    (file,) = (tmp_path / "prepared" / "rl").glob("*/meta.json")
    file.write_text("{")
    assert not are_rendered(config, tmp_path)


@pytest.mark.slow
def test_real_updates_and_frames_are_timed(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    seconds_of_frame.cache_clear()
    minutes, gigabytes = estimate(SMALL, tmp_path)
    assert 0 < minutes < 1
    assert gigabytes < 1
    longer = estimate(dataclasses.replace(SMALL, environment_steps=3200, seed=1), tmp_path)
    assert longer[0] > 5 * minutes
    assert seconds_of_frame.cache_info().misses == 2  # the run's and the trial's
    wide = dataclasses.replace(SMALL, filters=64, crop=36)
    assert cost_of_agent(wide).per_item > cost_of_agent(SMALL).per_item
    probe = dataclasses.replace(SMALL_PROBE, probe_updates=1000)
    assert 0 < estimate_probe(probe, tmp_path)[0] < 1
