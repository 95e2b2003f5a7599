import dataclasses
from pathlib import Path

import pytest
import torch

from text import estimate as module
from text.config import Config
from text.estimate import count_of, estimate
from text.tables import TABLE_2

BAG = dataclasses.replace(Config(), encoder="bag_of_words", embedding=32, vocabulary=500)


def test_the_size_of_the_files_gives_the_number_of_sentences(tmp_path: Path) -> None:
    assert count_of("books", tmp_path) == 836_000
    (tmp_path / "books" / "part").mkdir(parents=True)
    (tmp_path / "books" / "part" / "one.txt").write_text("a" * 7_800)
    assert count_of("books", tmp_path) == 100


def test_time_follows_steps_and_is_calibrated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def calibrate(config: Config) -> tuple[float, float]:
        asked.append(config)
        return 0.01, 0.001

    monkeypatch.setattr(module, "_calibrations", {})
    monkeypatch.setattr(module, "_calibrate", calibrate)
    steps = 836_000 // 400
    evaluation = 52_600 * 0.001 / 2 + 0.05 * 64
    for changes, count in (
        ({}, steps),
        ({"epochs": 3}, 3 * steps),
        ({"steps": 100, "seed": 4}, 100),
        ({"train": False}, 0),
    ):
        minutes, _ = estimate(dataclasses.replace(BAG, **changes), tmp_path)
        assert minutes * 60 == pytest.approx(count * 0.41 + evaluation)
    assert len(asked) == 1
    estimate(dataclasses.replace(BAG, embedding=16), tmp_path)
    assert len(asked) == 2


def test_real_steps_are_timed_and_a_nuclear_norm_costs_more(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    plain, _ = estimate(BAG, tmp_path)
    low_rank = TABLE_2.cells("short", row="CLLR(DCL+nuclear-norm)", column="MR")[0].config
    wide = dataclasses.replace(BAG, embedding=128)
    without, small = estimate(wide, tmp_path)
    with_it, large = estimate(
        dataclasses.replace(wide, objective=low_rank.objective, similarity="cosine"), tmp_path
    )
    assert 0 < plain < 60
    assert with_it > without
    assert large - small == pytest.approx(4 * 4 * 256**2 / 1e9)


@pytest.mark.parametrize("baseline", ["majority", "tfidf"])
def test_baselines_are_declared(baseline: str, tmp_path: Path) -> None:
    minutes, gigabytes = estimate(dataclasses.replace(Config(), baseline=baseline), tmp_path)
    assert 0 < minutes < 10
    assert 0 < gigabytes < 1
