import dataclasses
import json
import math
import os
import signal
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
from shared.experiment.run_folders import Interrupted
from tests.stages.training import spied
from video import evaluation
from video import train as module
from video.augmentation import flip_flow, views
from video.config import EMBEDDED, INFO_NCE, Config
from video.data import Videos, fingerprint, load
from video.encoder import Networks, encoder_of
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
FILES = {"config.json", "environment.json", "result.json"}
TRAINED = FILES | {"encoder.safetensors", "log.jsonl", "tensorboard"}
CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="promised of a CPU alone")


@dataclasses.dataclass
class Finished:
    """What is left of a run: its folder, its metrics, and all that was trained."""

    folder: Path
    metrics: dict[str, Any]
    state: dict[str, Tensor]

    @property
    def log(self) -> list[dict[str, float]]:
        """The lines, without the seconds."""
        lines = [json.loads(line) for line in (self.folder / "log.jsonl").read_text().splitlines()]
        return [{name: line[name] for name in line if name != "seconds"} for line in lines]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def finish(folder: Path, config: Config, data_root: Path, tier: str = "own") -> Finished:
    state: dict[str, Tensor] = {}

    def keep(trained: Any, *_: Any) -> None:
        networks, criterion = trained
        for name, part in (("networks", networks), ("criterion", criterion)):
            state.update({f"{name}.{key}": x.clone() for key, x in part.state_dict().items()})

    with (
        pytest.MonkeyPatch.context() as patch,
        Run(folder, config, data_root=data_root, tier=tier) as run,
    ):
        spied(patch, module, "pretrain", keep)
        metrics = run.finish(video.measure(config, run))["metrics"]
    return Finished(folder, metrics, state)


def stop(folder: Path, config: Config, data_root: Path, step: int | None) -> None:
    """A run that is told to stop in a step, or (None) in its evaluation, and does so."""

    def told(*args: Any) -> None:
        if args[6] == step:
            terminate()

    def watch(done: int, total: int, what: str) -> None:
        if step is None and what == "linear probe":
            terminate()

    with (
        pytest.MonkeyPatch.context() as patch,
        Run(folder, config, data_root=data_root, progress=watch) as run,
    ):
        spied(patch, module, "train_step", told)
        if step is None:
            patch.setattr(module, "SAVE_EVERY", 0.0)
        with pytest.raises(Interrupted):
            video.measure(config, run)
    assert run.saved_step == (6 if step is None else step + 1)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def train(data_root: Path) -> Videos:
    return load(EMBEDDED, data_root, size=SIMCLR.size).of(train=True)


@pytest.fixture(scope="module")
def whole(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Runs in one go."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: finish(folder / name, config, data_root) for name, config in CONFIGS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_leaves_its_metrics_log_and_encoder(
    whole: dict[str, Finished], data_root: Path, name: str
) -> None:
    done = whole[name]
    assert {path.name for path in done.folder.iterdir() if path.name[0] != "."} == TRAINED
    assert set(done.metrics) == METRICS
    details = dict(done.metrics["details"])
    assert set(details.pop("right")) == {"R@1", "ridge", "top1"}
    assert details == {"classes": 6, "training_videos": 24, "test_videos": 12}
    for metric in METRICS - {"details"}:
        assert 0 <= done.metrics[metric] <= 100
    environment = json.loads((done.folder / "environment.json").read_text())
    assert environment["data"] == {EMBEDDED: fingerprint(EMBEDDED, data_root)}
    assert environment["facts"] == {"classes": "6 present", "left_out": "0"}
    assert [(line["step"], line["epoch"]) for line in done.log] == [(3, 1), (6, 2)]
    assert [line["learning_rate"] for line in done.log] == pytest.approx([1e-3, 1e-4])
    for line in done.log:
        # Not far from where nothing is told apart: 14 or 12 negatives, and the positive.
        assert 0.5 < line["info_nce"] < math.log(15) + 2
        assert ("projection_norm" in line) == (name == "CLLR")
    prefix = "networks.encoder."
    encoder = {
        key.removeprefix(prefix): x for key, x in done.state.items() if key.startswith(prefix)
    }
    assert_equal(load_file(done.folder / "encoder.safetensors"), encoder)


@pytest.mark.slow
@CPU
@pytest.mark.parametrize(("name", "stops"), [("MoCo", (1, 4)), ("CLLR", (3, None))])
def test_stopped_in_mid_epoch_or_the_evaluation_and_resumed_it_gives_the_same_bits(
    tmp_path: Path,
    whole: dict[str, Finished],
    data_root: Path,
    name: str,
    stops: tuple[int | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, expected = CONFIGS[name], whole[name]
    for step in stops:
        stop(tmp_path, config, data_root, step)
        assert not (tmp_path / "result.json").exists()
    if step is None:
        monkeypatch.delattr(module, "train_step")  # everything was trained before
    resumed = finish(tmp_path, config, data_root)
    assert resumed.metrics == expected.metrics
    assert resumed.log == expected.log
    assert_equal(resumed.state, expected.state)
    assert not (tmp_path / "checkpoint.pt").exists()
    kinds = {key.rsplit(".")[1] for key in resumed.state}
    wanted = {"MoCo": {"teacher", "queue"}, "CLLR": {"projection"}}[name]
    assert kinds == {"encoder", "head"} | wanted


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
    with (
        Run(tmp_path, config) as run,
        pytest.raises(UserError, match="batch_size 25 is larger than the 24 training videos"),
    ):
        pretrain(config, train, run)


def test_nan_names_its_step(tmp_path: Path, train: Videos, monkeypatch: pytest.MonkeyPatch) -> None:
    given = module.batches

    def damaged(*args: Any, **keywords: Any) -> Generator[tuple[Tensor, Tensor]]:
        for step, (first, second) in enumerate(given(*args, **keywords)):
            if step == 2:
                first[0, 0, 0, 0, 0] = math.nan
            yield first, second

    monkeypatch.setattr(module, "batches", damaged)
    with (
        Run(tmp_path, CONFIGS["MoCo"]) as run,
        pytest.raises(FloatingPointError, match="embeddings are NaN or infinite at step 2;"),
    ):
        pretrain(CONFIGS["MoCo"], train, run)


def given_clips() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    clips = torch.randn(3, 2, 8, 3, 8, 17, 17, generator=generator)
    return [(first, second) for first, second in clips]


def plain_loss(networks: Networks, first: Tensor, second: Tensor) -> Tensor:
    """NT-Xent at a temperature of 0.07, anchor by anchor."""
    embedded = networks.head(networks.encoder(torch.cat([first, second])))
    embedded = embedded / embedded.norm(dim=1, keepdim=True)
    cosines = (embedded @ embedded.T) / 0.07
    losses = []
    for anchor in range(16):
        others = [other for other in range(16) if other != anchor]
        positive = cosines[anchor, (anchor + 8) % 16]
        losses.append(cosines[anchor, others].logsumexp(0) - positive)
    return torch.stack(losses).mean()


def test_training_is_the_plain_loop(
    tmp_path: Path, train: Videos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of Adam with weight decay in the gradient, its moments written out."""
    # Small steps: Adam makes as much of a gradient that is rounding as of any other.
    config = dataclasses.replace(
        SIMCLR, epochs=1, milestones=(), learning_rate=1e-5, weight_decay=0.1
    )
    given = (each for each in given_clips())  # a generator, which can be closed
    monkeypatch.setattr(module, "batches", lambda *args, **keywords: given)
    with Run(tmp_path, config) as run:
        trained, _ = pretrain(config, train, run)
    (line,) = Finished(tmp_path, {}, {}).log

    torch.manual_seed(config.seed)
    networks = Networks(config, queue=0).to(next(trained.parameters()).device)
    parameters = list(networks.parameters())
    start = [parameter.detach().clone() for parameter in parameters]
    first_moments = [torch.zeros_like(parameter) for parameter in parameters]
    second_moments = [torch.zeros_like(parameter) for parameter in parameters]
    losses = []
    for step, (first, second) in enumerate(given_clips(), start=1):
        loss = plain_loss(networks, first, second)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for place, parameter in enumerate(parameters):
                gradient = gradients[place] + 0.1 * parameter
                first_moments[place].lerp_(gradient, 0.1)
                second_moments[place].lerp_(gradient**2, 0.001)
                mean = first_moments[place] / (1 - 0.9**step)
                deviation = (second_moments[place] / (1 - 0.999**step)).sqrt()
                parameter.sub_(1e-5 * mean / (deviation + 1e-8))
    assert line["loss"] == pytest.approx(sum(losses) / 3, rel=1e-4)
    off = moved = 0.0
    for parameter, found, before in zip(parameters, trained.parameters(), start, strict=True):
        off += float((found - parameter).detach().abs().sum())
        moved += float((parameter - before).detach().abs().sum())
    assert off < 5e-3 * moved


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
    done = finish(tmp_path, config, data_root)
    assert set(done.metrics) == METRICS
    assert math.isfinite(done.log[0]["loss"])
    assert set(mirrors) == {flip_flow}
    assert set(policies) == {"flow"}
