import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.experiment.trial import Cost
from text import cost as module
from text.config import Config
from text.cost import count_of, estimate
from text.tables import TABLE_2

BAG = dataclasses.replace(Config(), encoder="bag_of_words", embedding=32, vocabulary=500)


def test_the_size_of_the_files_gives_the_number_of_sentences(tmp_path: Path) -> None:
    assert count_of("books", tmp_path) == 836_000
    (tmp_path / "books" / "part").mkdir(parents=True)
    (tmp_path / "books" / "part" / "one.txt").write_text("a" * 7_800)
    assert count_of("books", tmp_path) == 100


def test_time_and_memory_follow_steps_and_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def known(train: object, config: Config, deciding: dict[str, Any], **sizes: int) -> Cost:
        asked.append(deciding)
        return Cost(per_step=0.01, per_item=0.001, fixed=1e8, kept=1e5)

    monkeypatch.setattr(module, "cost_of", known)
    monkeypatch.setattr(module, "seconds_of_loss", lambda *_: 0.09)
    steps = 836_000 // 400
    evaluation = 52_600 * 0.001 / 2 + 0.05 * 64
    scored = 0.6e9 + 1e8 + 3 * 4 * 10_662 * 64
    for changes, count, kept in (
        ({}, steps, 4e7),
        ({"epochs": 3}, 3 * steps, 4e7),
        ({"steps": 100, "seed": 4}, 100, 4e7),
        ({"train": False}, 0, 0.0),
    ):
        minutes, gigabytes = estimate(dataclasses.replace(BAG, **changes), tmp_path)
        assert minutes * 60 == pytest.approx(count * 0.5 + evaluation)
        assert gigabytes * 1e9 == pytest.approx(scored + kept)
    assert all(each == asked[0] for each in asked)
    estimate(dataclasses.replace(BAG, embedding=16), tmp_path)
    assert asked[-1] == {**asked[0], "embedding": 16}


@pytest.mark.slow
def test_real_steps_are_timed_and_a_nuclear_norm_costs_more(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    plain, _ = estimate(BAG, tmp_path)
    low_rank = TABLE_2.cells("paper", row="CLLR(DCL+nuclear-norm)", column="MR")[0].config
    wide = dataclasses.replace(BAG, embedding=128)
    without, small = estimate(wide, tmp_path)
    with_it, large = estimate(
        dataclasses.replace(wide, objective=low_rank.objective, similarity="cosine"), tmp_path
    )
    assert 0 < plain < 60
    assert with_it > without
    assert large > small


@pytest.mark.parametrize("baseline", ["majority", "tfidf", "ppmi_svd"])
def test_baselines_are_declared(baseline: str, tmp_path: Path) -> None:
    minutes, gigabytes = estimate(dataclasses.replace(Config(), baseline=baseline), tmp_path)
    assert 0 < minutes < 10
    assert 0 < gigabytes < 1.2
