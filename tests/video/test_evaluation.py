import copy
import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shared.experiment.run import Run
from video import evaluation
from video.config import Config
from video.data import Video, Videos
from video.evaluation import (
    PENALTIES,
    PROTOCOLS,
    accuracy,
    embed_clips,
    evaluate,
    finetune,
    linear_probe,
    nearest,
    of_length_one,
    random_crops,
    ridge,
)

CONFIG = Config(
    protocol="coclr-linear-retrieval-v1",
    clip_frames=4,
    size=16,
    precision="float32",
    epochs=0,
    probe_epochs=5,
    probe_batch_size=8,
    probe_views=2,
    seed=3,
)


@pytest.fixture
def encoder() -> nn.Module:
    """In the place of S3D: convolution, batch norm, 2 x 2 averages."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv3d(3, 8, (4, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(8), nn.ReLU()
        return nn.Sequential(*layers, nn.AdaptiveAvgPool3d((1, 2, 2)), nn.Flatten())


def made_videos(classes: int = 3, train: int = 4, test: int = 2) -> Videos:
    """Videos of 2 to 14 frames of 20 x 24 pixels in a colour of their class, with noise."""
    generator = torch.Generator().manual_seed(1)
    videos, lengths, frames = [], [], []
    for label, number in itertools.product(range(classes), range(train + test)):
        videos.append(Video(f"v_{label}_{number}", label, 1, number < train))
        lengths.append(int(torch.randint(2, 15, (), generator=generator)))
        colour = torch.tensor([[label >> shift & 1] for shift in range(3)]) * 60 + 60
        noise = torch.randint(0, 80, (lengths[-1], 3, 20 * 24), generator=generator)
        frames.append((colour + noise).to(torch.uint8).view(-1, 3, 20, 24))
    length = torch.tensor(lengths)
    return Videos(
        tuple(videos),
        tuple(f"class {label}" for label in range(classes)),
        torch.cat(frames),
        length.cumsum(0) - length,
        length,
    )


def scored(
    folder: Path, encoder: nn.Module, videos: Videos, config: Config = CONFIG, **options: Any
) -> dict[str, Any]:
    with Run(folder, config, data_root=folder / "data") as run:
        return evaluate(config, encoder, videos, run, **options)


def clusters(count: int, classes: int, distance: float, width: int = 16) -> tuple[Tensor, Tensor]:
    """Gaussian classes around random centres, in the order 0, 1, ..., 0, 1, ..."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % classes
    centres = distance * torch.randn(classes, width, generator=generator)
    return centres[labels] + torch.randn(count, width, generator=generator), labels


# intervals


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with z = 1.959964, by hand
        (0, 10, 0.0, 27.7533),
        (10, 10, 72.2467, 100.0),
        (153, 306, 44.4327, 55.5673),
    ],
)
def test_wilson_intervals(hits: int, total: int, low: float, high: float) -> None:
    found = accuracy("top1", torch.arange(total) < hits)
    assert found["top1"] == pytest.approx(100 * hits / total)
    assert found["top1_low"] == pytest.approx(low, abs=1e-3)
    assert found["top1_high"] == pytest.approx(high, abs=1e-3)


# the probe


def test_probe_is_the_plain_loop_to_the_last_epoch() -> None:
    points, labels = clusters(49, 3, 0.7)
    config = dataclasses.replace(CONFIG, probe_epochs=5, probe_batch_size=16)
    asked: list[int] = []
    done: list[tuple[int, int]] = []

    def features(epoch: int) -> Tensor:
        asked.append(epoch)
        return points * (epoch + 1) + epoch  # other features in every epoch

    probe = linear_probe(features, labels, 3, config, lambda *now: done.append(now))
    assert asked == [0, 0, 1, 2, 3, 4]  # the first for the width
    assert done == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]

    generator = torch.Generator().manual_seed(3)
    norm, linear = nn.BatchNorm1d(16), nn.Linear(16, 3)
    with torch.no_grad():
        linear.weight.copy_(0.01 * torch.randn(3, 16, generator=generator))
        linear.bias.zero_()
    optimiser = torch.optim.SGD(
        [*norm.parameters(), *linear.parameters()], lr=1.0, momentum=0.9, weight_decay=1e-3
    )
    for epoch, rate in enumerate([0.1, 0.1, 0.1, 0.01, 0.001]):
        optimiser.param_groups[0]["lr"] = rate
        order = torch.randperm(49, generator=generator)
        for start in (0, 16, 32):  # the last video would be alone
            batch = order[start : start + 16]
            inputs = points[batch] * (epoch + 1) + epoch
            inputs = inputs / inputs.norm(dim=1, keepdim=True)
            optimiser.zero_grad()
            cross_entropy(linear(norm(inputs)), labels[batch]).backward()
            optimiser.step()
    torch.testing.assert_close(probe.linear.weight, linear.weight)
    torch.testing.assert_close(probe.norm.running_mean, norm.running_mean)
    expected = linear(norm.eval()(of_length_one(points)))
    torch.testing.assert_close(probe(points), expected)


# the ridge regression


def hard_to_tell() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, labels = clusters(90, 3, 0.5, width=7)
    points = points * torch.tensor([1, 100, 0.01, 1, 1, 5, 0]) + 3.0  # the last says nothing
    return points[:60], labels[:60], torch.arange(60) // 9, points[60:]


def easy_to_tell() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All penalties find every held-out video; queries between the classes tell them apart."""
    labels = torch.arange(40) % 2
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * 0.1
    points[:, 0] += 2.0 * labels
    points[::5, 1] += 4.0  # a few far out, which weak penalties follow
    queries = torch.cat([torch.linspace(0.5, 1.5, 200)[:, None], torch.rand(200, 2) * 6], 1)
    return points, labels, torch.arange(40) // 8, queries


@pytest.mark.parametrize("kind", ["hard", "easy", "one group"])
def test_ridge_is_the_loop_over_groups(kind: str) -> None:
    """Of penalties that are as good the largest is taken."""
    train, labels, groups, test = hard_to_tell() if kind == "hard" else easy_to_tell()
    groups = torch.zeros(len(train)) if kind == "one group" else groups
    scale = train.double().std(0)
    scale = torch.where(scale > 0, scale, math.inf)
    inputs, queries = ((each.double() - train.double().mean(0)) / scale for each in (train, test))
    targets = torch.nn.functional.one_hot(labels).double()

    def guesses(rows: Tensor, asked: Tensor, penalty: float) -> Tensor:
        x, y = inputs[rows], targets[rows]
        centred = x - x.mean(0)
        system = centred.T @ centred + penalty * len(x) * torch.eye(x.shape[1])
        weights = torch.linalg.solve(system, centred.T @ (y - y.mean(0)))
        return ((asked - x.mean(0)) @ weights + y.mean(0)).argmax(1)

    hits = dict.fromkeys(PENALTIES, 0)
    held_out = [groups == group for group in groups.unique() if (groups != group).any()]
    for penalty, out in itertools.product(PENALTIES, held_out):
        hits[penalty] += int((guesses(~out, inputs[out], penalty) == labels[out]).sum())
    best = max(penalty for penalty in PENALTIES if hits[penalty] == max(hits.values()))
    every = torch.ones(len(labels), dtype=torch.bool)
    found = ridge(train, labels, groups, test)
    assert torch.equal(found, guesses(every, queries, best))
    others = [guesses(every, queries, penalty) for penalty in PENALTIES]
    assert len({tuple(other.tolist()) for other in others}) > 1
    if kind != "hard":
        assert best == max(PENALTIES)


def test_embedding_leaves_the_mode_and_the_buffers(encoder: nn.Module) -> None:
    before = copy.deepcopy(encoder.state_dict())
    clips = 3 + torch.randn(4, 3, 4, 16, 16)
    features = embed_clips(encoder, clips, "float32")
    assert encoder.training
    assert not features.requires_grad
    assert all(torch.equal(item, before[name]) for name, item in encoder.state_dict().items())
    torch.testing.assert_close(features, encoder.eval()(clips).detach())
    assert torch.equal(embed_clips(encoder, clips, "bfloat16"), features)  # on a GPU alone


@pytest.mark.cuda
def test_embedding_in_bfloat16_is_rounded(encoder: nn.Module) -> None:
    encoder.cuda()
    clips = 3 + torch.randn(4, 3, 4, 16, 16, device="cuda")
    features, half = (embed_clips(encoder, clips, each) for each in ("float32", "bfloat16"))
    assert half.dtype == torch.float32
    assert 1e-4 < float((half - features).abs().max()) < 0.1


# everything


def test_with_few_classes_there_is_no_top5(tmp_path: Path, encoder: nn.Module) -> None:
    videos = made_videos(classes=2)
    metrics = scored(tmp_path / "v1", encoder, videos)
    assert "top1" in metrics
    assert "top5" not in metrics
    of_probes = {name for name, protocol in PROTOCOLS.items() if not protocol.finetunes}
    assert of_probes == {CONFIG.protocol[:-1] + version for version in "123"}


# fine-tuning


FINETUNED = dataclasses.replace(CONFIG, protocol="coclr-finetune-v1", probe_batch_size=8)


def test_fine_tuning_is_the_plain_loop_and_leaves_the_encoder(
    encoder: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "DROPOUT", 0.5)
    assert PROTOCOLS["coclr-finetune-v1"].finetunes
    videos = made_videos(train=3).of(train=True)  # nine: the last of each epoch would be alone
    before = copy.deepcopy(encoder.state_dict())
    model = finetune(FINETUNED, encoder, videos, 3, 10)
    assert not model.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])

    generator = torch.Generator().manual_seed(3)
    own, linear = copy.deepcopy(encoder).train(), nn.Linear(32, 3)
    with torch.no_grad():
        linear.weight.copy_(0.01 * torch.randn(3, 32, generator=generator))
        linear.bias.zero_()
    adam = torch.optim.Adam(
        [{"params": own.parameters(), "lr": 0.0}, {"params": linear.parameters(), "lr": 0.0}],
        weight_decay=1e-3,
    )
    labels = torch.tensor([video.label for video in videos.videos])
    torch.manual_seed(3)  # of the dropout: that of the configuration
    for epoch, rate in enumerate([1e-3] * 8 + [1e-4, 1e-5]):
        adam.param_groups[0]["lr"], adam.param_groups[1]["lr"] = rate / 10, rate
        batch = torch.randperm(9, generator=generator)[:8]
        clips = random_crops(FINETUNED, videos, batch, epoch, torch.device("cpu"))
        adam.zero_grad()
        features = nn.functional.dropout(own(clips), 0.5)
        cross_entropy(linear(features), labels[batch]).backward()
        adam.step()
    torch.testing.assert_close(model.linear.weight, linear.weight)
    for name in ("0.weight", "1.running_mean"):
        torch.testing.assert_close(model.encoder.state_dict()[name], own.state_dict()[name])
        assert not torch.equal(own.state_dict()[name], before[name])


def test_fine_tuning_goes_by_the_seed_alone_and_learns(tmp_path: Path, encoder: nn.Module) -> None:
    videos = made_videos(classes=7)

    def weight(seed: int = 3) -> Tensor:
        torch.rand(1)  # what ran before does not matter, to the dropout neither
        config = dataclasses.replace(FINETUNED, seed=seed)
        return finetune(config, encoder, videos.of(train=True), 7, 2).linear.weight

    first = weight()
    assert torch.equal(weight(), first)
    assert not torch.equal(weight(seed=4), first)
    config = dataclasses.replace(FINETUNED, windows=1)
    found = scored(tmp_path / "learned", encoder, videos, config, finetune_epochs=30)
    ends = ("", "_low", "_high")
    assert set(found) == {f"top{k}{end}" for k in (1, 5) for end in ends} | {"details"}
    assert found["top1"] > 60  # of seven classes
    hits = int(found["details"]["right"]["top1"], 16).bit_count()
    assert found["top1"] == pytest.approx(100 * hits / 14)


def test_what_cannot_be_scored_is_refused(tmp_path: Path, encoder: nn.Module) -> None:
    videos = made_videos()
    broken = copy.deepcopy(encoder)
    broken[0].weight.data[0, 0, 0, 0, 0] = math.nan
    of_other_flow = dataclasses.replace(videos, modality="flow")
    for number, (given, config, word) in enumerate(
        (
            ((encoder, videos), dataclasses.replace(CONFIG, protocol="best"), "best"),
            ((encoder, videos.of(train=True)), CONFIG, "0 test videos"),
            ((encoder, of_other_flow), CONFIG, "flow"),
            ((broken, videos), CONFIG, "NaN"),
            ((broken, videos), FINETUNED, "diverged"),
            ((encoder, videos), FINETUNED, "epoch"),
        )
    ):
        epochs = int(word != "epoch")
        with pytest.raises((ValueError, FloatingPointError), match=word):
            scored(tmp_path / str(number), *given, config, finetune_epochs=epochs)


NAN = torch.ones(12, 4)
NAN[7, 2] = math.nan
LABELS = torch.arange(12) % 2


def probe(**changes: float) -> nn.Module:
    points = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    config = dataclasses.replace(CONFIG, **changes)
    return linear_probe(lambda epoch: points, LABELS, 2, config)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: nearest(NAN, torch.ones(12, 4), 3), "training.* row 7"),
        (lambda: nearest(torch.ones(12, 4), NAN, 3), "test.* row 7"),
        (lambda: ridge(NAN, LABELS, LABELS, torch.ones(12, 4)), "training.* row 7"),
        (lambda: ridge(torch.ones(12, 4), LABELS, LABELS, NAN), "test.* row 7"),
        (lambda: probe(probe_learning_rate=1e38), "diverged"),
        (lambda: probe(probe_epochs=0), "epoch"),
    ],
)
def test_what_is_not_finite_or_not_trained_is_refused(
    call: Callable[[], object], word: str
) -> None:
    with pytest.raises((ValueError, FloatingPointError), match=word):
        call()
