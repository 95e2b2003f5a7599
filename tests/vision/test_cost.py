import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from shared import Objective, alignment, max_margin, term
from shared.experiment.tables import canonical_json
from shared.experiment.trial import Cost
from vision import cost as module
from vision.config import HCL, Config
from vision.cost import DECIDING, deciding, estimate, of_size, share
from vision.methods import check
from vision.tables import TABLES

HERE = Path()
DEAR = Objective(term(max_margin, gamma=0.1))
# A pass of the encoder is a sixth of a step of SimCLR: 0.125 seconds.
COSTS = Cost(per_step=0.5, per_item=0.75, fixed=3e9, kept=2e7)


@pytest.fixture(autouse=True)
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked for; costs are known, but for tests that are marked slow."""
    questions: list[dict[str, Any]] = []

    def known(train: object, config: Config, deciding: dict[str, Any]) -> Cost:
        questions.append({"dataset": config.dataset, **deciding})
        return COSTS

    if "slow" not in request.keywords:
        monkeypatch.setattr(module, "cost_of", known)
        monkeypatch.setattr(module, "seconds_of_loss", lambda objective, batch, dim: 0.0)
    return questions


def test_minutes_count_steps_and_passes() -> None:
    config = Config(images=1000, batch_size=100, epochs=7, probe_augmentation=False)
    training, test = 70 * (0.5 + 75), 10_000 * 0.125
    seen = 1000 * 0.125
    assert estimate(config, HERE)[0] == pytest.approx((training + seen + test) / 60)
    # A last batch that is not full is dropped.
    odd = dataclasses.replace(config, images=1099)
    assert estimate(odd, HERE)[0] == pytest.approx((training + 1.099 * seen + test) / 60)
    augmented = dataclasses.replace(config, probe_augmentation=True)
    assert estimate(augmented, HERE)[0] == pytest.approx((training + 101 * seen + test) / 60)
    short = dataclasses.replace(augmented, probe_epochs=3)
    assert estimate(short, HERE)[0] == pytest.approx((training + 4 * seen + test) / 60)
    drifting = dataclasses.replace(short, probe_batch_norm="train")
    assert estimate(drifting, HERE)[0] == pytest.approx((training + 4 * (seen + test)) / 60)
    neighbours = dataclasses.replace(augmented, protocol="knn-200-v1")
    assert estimate(neighbours, HERE)[0] == pytest.approx((training + seen + test) / 60)
    # STL-10: 105,000 to pretrain on, 5,000 to probe on, tested at three times the side.
    stl10 = Config(dataset="STL10", test_size=96, epochs=1, probe_augmentation=False)
    training, seen = 410 * (0.5 + 192), 9 * 13_000 * 0.125
    assert estimate(stl10, HERE)[0] == pytest.approx((training + seen) / 60)
    transfer = dataclasses.replace(stl10, evaluate_on="CIFAR100", test_size=None)
    assert estimate(transfer, HERE)[0] == pytest.approx((training + 60_000 * 0.125) / 60)


def test_gigabytes_count_what_is_held() -> None:
    config = Config(batch_size=256)
    cifar10 = 3 * 32**2 * 110_000
    features = 4 * 512 * 60_000
    assert estimate(config, HERE)[1] == pytest.approx(
        (0.5e9 + 3e9 + 256 * 2e7 + cifar10 + features) / 1e9
    )
    larger = dataclasses.replace(config, batch_size=1024)
    assert estimate(larger, HERE)[1] - estimate(config, HERE)[1] == pytest.approx(768 * 0.02)
    # The frozen encoder's pass decides where training batches are small and test images large.
    tested = Config(dataset="STL10", batch_size=32, test_size=96)
    wide = dataclasses.replace(tested, test_size=192)
    batches = 0.05 * 256 * (36 - 9)
    assert estimate(wide, HERE)[1] - estimate(tested, HERE)[1] == pytest.approx(batches * 0.02)
    streamed = Config(dataset="ImageNet100", batch_size=256)
    assert estimate(streamed, HERE)[1] == pytest.approx(
        (0.5e9 + 3e9 + 256 * 2e7 + 4 * 512 * (126_689 + 5_000)) / 1e9
    )


def test_fine_tuning_counts_its_trainings_and_what_validates_them() -> None:
    config = Config(images=1000, batch_size=100, epochs=0, protocol="fine-tuned-small-v1")
    # Two rates and the last training, 200 steps of 64 images, forward and twice as much back.
    passed = 3 * 200 * 64 * 3 + 2 * 1000 / 5 + 10_000
    assert estimate(config, HERE)[0] == pytest.approx(passed * 0.125 / 60)
    fewer = dataclasses.replace(config, tuning_steps=10)
    passed = 3 * 10 * 64 * 3 + 2 * 1000 / 5 + 10_000
    assert estimate(fewer, HERE)[0] == pytest.approx(passed * 0.125 / 60)
    frozen = dataclasses.replace(config, protocol="few-shot-5way-5shot-v1")
    assert estimate(frozen, HERE)[0] == pytest.approx(11_000 * 0.125 / 60)


def test_the_share_of_the_pretraining_is_in_passes() -> None:
    config = Config(images=1000, batch_size=100, epochs=7, probe_augmentation=False)
    assert share(config) == pytest.approx(7000 * 6 / (7000 * 6 + 11_000))
    assert share(dataclasses.replace(config, epochs=0)) == 0
    # It is the pretraining's alone: another evaluation changes the rest.
    augmented = dataclasses.replace(config, probe_augmentation=True)
    assert share(augmented) == pytest.approx(7000 * 6 / (7000 * 6 + 111_000))


def test_a_teacher_has_no_way_back() -> None:
    """The same step then holds more passes, of which fewer are an evaluation's."""
    passed = {"images": 1000, "epochs": 0, "probe_augmentation": False}
    seconds = [
        60 * estimate(Config(**passed, **changes), HERE)[0]
        for changes in ({}, {"method": "moco_v2"}, {"method": "byol", "symmetric": True})
    ]
    assert seconds == pytest.approx([11_000 * 0.75 / share for share in (6, 4, 8)])


def test_what_decides_a_cost_is_asked_for(asked: list[dict[str, Any]]) -> None:
    config = Config()
    for changes in ({}, {"seed": 3}, {"epochs": 9}, {"batch_size": 64}, {"dataset": "CIFAR100"}):
        estimate(dataclasses.replace(config, **changes), HERE)
    assert all(each == asked[0] for each in asked)
    assert asked[0] == {"dataset": "CIFAR10", **{name: vars(config)[name] for name in DECIDING}}
    for changes in ({"stem": "small"}, {"precision": "float32"}, {"method": "byol"}, HCL):
        estimate(dataclasses.replace(config, **changes), HERE)
        assert asked[-1] != asked[0]
    estimate(dataclasses.replace(config, dataset="STL10"), HERE)
    assert asked[-1] == {**asked[0], "dataset": "STL10"}


def test_a_row_with_a_dearer_loss_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "seconds_of_loss", lambda objective, *_: 2.0 if objective == DEAR else 0.5
    )
    config = Config(images=1000, batch_size=100, epochs=7)
    dear = dataclasses.replace(config, objective=DEAR)
    assert estimate(dear, HERE)[0] - estimate(config, HERE)[0] == pytest.approx(70 * 1.5 / 60)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["simclr", "moco_v2", "moco_v3", "byol"])
def test_real_steps_are_timed(method: str) -> None:
    torch.set_num_threads(1)
    small = Config(method=method, precision="float32").reduced()
    if method == "byol":
        small = dataclasses.replace(small, objective=Objective(term(alignment)))
    minutes, gigabytes = estimate(small, HERE)
    assert 0 < minutes < 1
    assert 0.5 < gigabytes < 1
    longer = dataclasses.replace(small, epochs=200)
    assert estimate(longer, HERE)[0] > 10 * minutes


def test_what_is_timed_is_a_run_in_every_row_of_every_table() -> None:
    cells = [
        cell
        for table in (table for some in TABLES.values() for table in some)
        for tier in table.tiers
        for cell in table.cells(tier, seeds=table.seeds[tier][:1])
        if isinstance(cell.config, Config)
    ]
    timed = {
        canonical_json(config): config
        for cell in cells
        for config in [Config(dataset=of_size(cell.config), **deciding(cell.config))]
    }
    assert {config.method for config in timed.values()} >= {
        "simclr",
        "moco_v2",
        "byol",
        "cmc",
        "swav",
    }
    for config in timed.values():
        for batch_size in (2, 256):
            check(dataclasses.replace(config, batch_size=batch_size, warmup_epochs=0.0))
