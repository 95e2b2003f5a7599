import dataclasses
import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import video
from shared.errors import UserError
from shared.experiment.run import Run
from tests.stages.training import finish
from video import train as module
from video.augmentation import views
from video.config import EMBEDDED, Config
from video.data import Videos, load
from video.encoder import encoder_of
from video.train import batches_of, calibrate, learning_rate, order_of, pretrain

# Six steps in two epochs on the 24 training videos of the embedded set.
SIMCLR = dataclasses.replace(
    Config().reduced(),
    method="simclr",
    clip_frames=8,
    size=17,
    head_hidden=16,
    head_output=8,
    epochs=2,
    milestones=(1,),
    probe_epochs=2,
    probe_views=1,
)
MOCO = dataclasses.replace(SIMCLR, method="moco")


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def train(data_root: Path) -> Videos:
    return load(EMBEDDED, data_root, size=SIMCLR.size).of(train=True)


def test_the_rate_falls_after_each_milestone() -> None:
    rates = [learning_rate(Config(), epoch) for epoch in (0, 249, 250, 279, 280, 299)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])


def test_calibrated_batch_norms_have_the_statistics_of_an_epoch(train: Videos) -> None:
    config = dataclasses.replace(
        SIMCLR, network="r2plus1d", train=False, calibrate=True, batch_size=24
    )
    torch.manual_seed(0)
    encoder = encoder_of(config)
    weights = [parameter.clone() for parameter in encoder.parameters()]
    calibrate(config, encoder, train, torch.device("cpu"))
    order = order_of(24, config.seed, 0)
    first, _ = views(train, order, config, 0)
    seen = encoder.stem[0](first)
    norm = encoder.stem[1]
    torch.testing.assert_close(norm.running_mean, seen.mean((0, 2, 3, 4)), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(norm.running_var, seen.var((0, 2, 3, 4)), rtol=1e-3, atol=1e-4)
    assert norm.momentum == config.batch_norm_momentum
    assert all(torch.equal(*pair) for pair in zip(weights, encoder.parameters(), strict=True))


def test_a_batch_larger_than_the_set_is_named(tmp_path: Path, train: Videos) -> None:
    config = dataclasses.replace(SIMCLR, batch_size=25)
    with Run(tmp_path, config) as run, pytest.raises(UserError, match="batch_size 25"):
        pretrain(config, train, run)


def test_nan_names_its_step(tmp_path: Path, train: Videos, monkeypatch: pytest.MonkeyPatch) -> None:
    given = module.batches

    def damaged(*args: Any, **keywords: Any) -> Generator[tuple[Tensor, Tensor]]:
        for step, (first, second) in enumerate(given(*args, **keywords)):
            if step == 2:
                first[0, 0, 0, 0, 0] = math.nan
            yield first, second

    monkeypatch.setattr(module, "batches", damaged)
    with Run(tmp_path, MOCO) as run, pytest.raises(FloatingPointError, match="step 2;"):
        pretrain(MOCO, train, run)


def test_batches_are_parts_of_the_order() -> None:
    config = dataclasses.replace(SIMCLR, batch_size=11, seed=2)
    expected = [
        (order_of(24, 2, epoch)[start : start + 11].tolist(), epoch)
        for epoch in (0, 1)
        for start in (0, 11)  # what is left after the last full batch is not seen
    ]
    for first in (0, 3):
        found = [(index.tolist(), epoch) for index, epoch in batches_of(config, 24, first, 4)]
        assert found == expected[first:]


@pytest.mark.slow
def test_a_run_on_flow_ends_with_metrics(tmp_path: Path, data_root: Path) -> None:
    config = dataclasses.replace(SIMCLR, modality="flow", flow="dis", epochs=1, milestones=())
    assert 0 <= finish(tmp_path, config, video.measure, data_root=data_root)["top1"] <= 100
