import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vision import estimate as module
from vision.config import HCL, Config
from vision.estimate import Calibration, estimate, made_up_views, saved_sizes
from vision.methods import Networks

HERE = Path()
COSTS = Calibration(per_step=0.5, per_image=0.25, forward=0.125, fixed=3e9, saved=2e7, largest=1e6)


@pytest.fixture
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibrate", lambda config: COSTS)
    monkeypatch.setattr(module, "_calibrations", {})


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_calibrations", {})


@pytest.mark.usefixtures("known_costs")
def test_minutes_count_steps_and_passes() -> None:
    config = Config(images=1000, batch_size=100, epochs=7, probe_augmentation=False)
    training, test = 70 * (0.5 + 25), 10_000 * 0.125
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
    training, seen = 410 * (0.5 + 64), 9 * 13_000 * 0.125
    assert estimate(stl10, HERE)[0] == pytest.approx((training + seen) / 60)
    transfer = dataclasses.replace(stl10, evaluate_on="CIFAR100", test_size=None)
    assert estimate(transfer, HERE)[0] == pytest.approx((training + 60_000 * 0.125) / 60)


@pytest.mark.usefixtures("known_costs")
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
    assert estimate(wide, HERE)[1] - estimate(tested, HERE)[1] == pytest.approx(
        3 * 256 * (36 - 9) * 1e-3
    )
    streamed = Config(dataset="ImageNet100", batch_size=256)
    assert estimate(streamed, HERE)[1] == pytest.approx(
        (0.5e9 + 3e9 + 256 * 2e7 + 4 * 512 * (126_689 + 5_000)) / 1e9
    )


@pytest.mark.usefixtures("empty_cache")
def test_a_configuration_is_calibrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Config] = []
    monkeypatch.setattr(module, "calibrate", lambda config: calls.append(config) or COSTS)
    config = Config()
    for changes in ({}, {"seed": 3}, {"epochs": 9}, {"batch_size": 64}, {"dataset": "CIFAR100"}):
        estimate(dataclasses.replace(config, **changes), HERE)
    assert calls == [config]
    for changes in ({"stem": "small"}, {"precision": "float32"}, {"method": "byol"}, HCL):
        estimate(dataclasses.replace(config, **changes), HERE)
    assert len(calls) == 5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_a_step_keeps_is_counted_as_it_is_kept(precision: str) -> None:
    config = Config(precision=precision)
    networks = Networks(config)
    two, four, six = (
        saved_sizes(config, networks, made_up_views(config, size, "cpu")) for size in (2, 4, 6)
    )
    grown = [more - few for few, more in zip(two, four, strict=True)]
    assert [more - few for few, more in zip(four, six, strict=True)] == grown

    # Convolutions and batch norms keep their inputs; what ReLU keeps is the next one's input.
    alive: list[Tensor] = []
    for layer in networks.encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, out: alive.extend((*inputs, out)))
    first, _ = made_up_views(config, 2, "cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        networks.encoder(first)
    storages = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in alive}
    assert sum(grown) / 2 == pytest.approx(sum(storages.values()), rel=0.02)
