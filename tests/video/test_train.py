import dataclasses
import json
import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import video
from shared import Objective, Projection
from shared.errors import UserError
from shared.experiment.run import Run
from tests.stages.training import finish, spied
from video import evaluation
from video import train as module
from video.augmentation import flip_flow, views
from video.config import EMBEDDED, INFO_NCE, Config
from video.data import Videos, fingerprint, load
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
LOW_RANK = Objective(INFO_NCE.loss, projection=Projection(0.1, {"norm": "l21", "alpha": 0.1}))
CONFIGS = {
    # More than the twelve keys that 24 videos are given.
    "MoCo": dataclasses.replace(SIMCLR, method="moco", queue=100),
    "CLLR": dataclasses.replace(SIMCLR, objective=LOW_RANK, projection_dimensions=4),
}
METRICS = {
    name + end
    for name in ("R@1", "R@5", "R@10", "R@20", "ridge", "top1", "top5")
    for end in ("", "_low", "_high")
} | {"details"}


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def train(data_root: Path) -> Videos:
    return load(EMBEDDED, data_root, size=SIMCLR.size).of(train=True)


def log_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_leaves_its_metrics_log_and_encoder(
    tmp_path: Path, data_root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = spied(monkeypatch, module, "pretrain", lambda result, *_: result[0])
    metrics = finish(tmp_path, CONFIGS[name], video.measure, data_root=data_root)
    assert set(metrics) == METRICS
    details = dict(metrics["details"])
    assert set(details.pop("right")) == {"R@1", "ridge", "top1"}
    assert details == {"classes": 6, "training_videos": 24, "test_videos": 12}
    assert all(0 <= metrics[metric] <= 100 for metric in METRICS - {"details"})
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["data"] == {EMBEDDED: fingerprint(EMBEDDED, data_root)}
    assert environment["facts"] == {"classes": "6 present", "left_out": "0"}
    log = log_of(tmp_path)
    assert [(line["step"], line["epoch"]) for line in log] == [(3, 1), (6, 2)]
    assert [line["learning_rate"] for line in log] == pytest.approx([1e-3, 1e-4])
    for line in log:
        # Not far from where nothing is told apart: 14 or 12 negatives, and the positive.
        assert 0.5 < line["info_nce"] < math.log(15) + 2
        assert ("projection_norm" in line) == (name == "CLLR")
    kept, state = load_file(tmp_path / "encoder.safetensors"), trained[0].encoder.state_dict()
    assert kept.keys() == state.keys()
    assert all(torch.equal(kept[key], value.cpu()) for key, value in state.items())


def test_the_rate_falls_after_each_milestone() -> None:
    rates = [learning_rate(Config(), epoch) for epoch in (0, 249, 250, 279, 280, 299)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    assert learning_rate(Config(milestones=()), 299) == 1e-3


def test_the_cosine_falls_to_nothing_over_the_epochs() -> None:
    config = Config(schedule="cosine", epochs=40, learning_rate=2e-3)
    rates = [learning_rate(config, epoch) for epoch in (0, 10, 20, 30, 39)]
    expected = [2e-3 * (1 + math.cos(math.pi * share)) / 2 for share in (0, 0.25, 0.5, 0.75, 0.975)]
    assert rates == pytest.approx(expected)
    assert rates[2] == pytest.approx(1e-3)
    assert 0 < rates[-1] < 1e-5


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
    with Run(tmp_path, CONFIGS["MoCo"]) as run, pytest.raises(FloatingPointError, match="step 2;"):
        pretrain(CONFIGS["MoCo"], train, run)


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
def test_a_run_on_flow_ends_with_metrics(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(SIMCLR, modality="flow", flow="dis", epochs=1, milestones=())
    mirrors = spied(monkeypatch, evaluation, "ten_crops", lambda *_, mirror: mirror)
    policies = spied(monkeypatch, evaluation, "augment", lambda *_, policy, **others: policy)
    metrics = finish(tmp_path, config, video.measure, data_root=data_root)
    assert set(metrics) == METRICS
    assert math.isfinite(log_of(tmp_path)[0]["loss"])
    assert set(mirrors) == {flip_flow}
    assert set(policies) == {"flow"}
