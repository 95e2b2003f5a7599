"""Whole runs beside plain programs, which share crops, colours and the backbone with them alone."""

import copy
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import video
from shared import Objective, Projection
from shared.experiment.run import Run
from shared.pixels import uniforms
from tests.stages.training import losses, spied
from video import evaluation, own
from video import train as module
from video.augmentation import augment, centre, flip_flow, ten_crops
from video.config import INFO_NCE, Config
from video.data import Video, Videos, part_of
from video.evaluation import linear_probe, ridge
from video.train import order_of

FRAMES, BATCH = 4, 4


def tiny() -> nn.Module:
    """Without biases before the norm: Adam would make steps of the rounding in their gradients."""
    convolution = nn.Conv3d(3, 5, (2, 3, 3), bias=False)
    layers = nn.BatchNorm3d(5), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()
    return nn.Sequential(convolution, *layers)


LOW_RANK = Objective(INFO_NCE.loss, projection=Projection(0.3, {"norm": "l21", "alpha": 0.1}))
SIMCLR = Config(
    dataset="own",
    network=tiny,
    clip_frames=FRAMES,
    size=16,
    head_hidden=7,
    head_output=6,
    method="simclr",
    objective=LOW_RANK,
    projection_dimensions=3,
    batch_size=BATCH,
    epochs=2,
    milestones=(1,),
    learning_rate=0.01,
    weight_decay=0.1,
    precision="float32",
    probe_epochs=4,
    probe_batch_size=5,
    seed=1,
)
MOCO = dataclasses.replace(
    SIMCLR,
    method="moco",
    queue=100,
    teacher_momentum=0.7,
    schedule="cosine",
    optimiser="adamw",
    sampling="two_clips",
    policy="strong",
)


def made_videos() -> Videos:
    """13 training and 6 test videos of six classes and four groups, of 3 to 12 frames."""
    generator = torch.Generator().manual_seed(0)
    made, frames = [], []
    for number in range(19):
        made.append(Video(f"v{number}", number // 3 % 6, number % 4, number % 3 != 2))
        frames.append(torch.randint(0, 256, (3 + number % 10, 3, 17, 20), generator=generator))
    length = torch.tensor([len(each) for each in frames])
    start = length.cumsum(0) - length
    names = tuple(f"class {label}" for label in range(6))
    return Videos(tuple(made), names, torch.cat(frames).to(torch.uint8), start, length)


def clips_of(videos: Videos, index: Sequence[int], starts: Sequence[int]) -> Tensor:
    """(B, 3, T, h, w): of a video that is too short its first frame is repeated before it."""
    clips = []
    for number, start in zip(index, starts, strict=True):
        first, count = int(videos.start[number]), int(videos.length[number])
        places = range(start, start + FRAMES) if count >= FRAMES else range(count - FRAMES, count)
        clips.append(torch.stack([videos.frames[first + max(0, place)] for place in places], 1))
    return torch.stack(clips)


def starts_of(videos: Videos, index: np.ndarray, epoch: int, one_clip: bool) -> list[list[int]]:
    """Of both clips, any place in the video; with ``one_clip`` half of the pairs share theirs."""
    draws = uniforms(1, epoch, index, -1, 3)
    room = (videos.length[index] - FRAMES).clamp(min=0).numpy() + 1
    first, second = ((draws[:, column] * room).astype(int) for column in (1, 2))
    same = (draws[:, 0] < 0.5) & one_clip
    return [first.tolist(), np.where(same, first, second).tolist()]


def drawn(videos: Videos, index: Tensor, epoch: int, view: int, config: Config) -> Tensor:
    """A view of each video."""
    starts = starts_of(videos, index.numpy(), epoch, config.sampling == "coclr")[view]
    return augment(
        clips_of(videos, index.tolist(), starts),
        16,
        seed=1,
        epoch=epoch,
        samples=index,
        view=view,
        policy="flow" if config.modality == "flow" else config.policy,
        sampling=config.sampling,
    )


class Plain(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = tiny()
        self.head = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6))
        self.teacher: nn.Module | None = None
        if config.method == "moco":
            self.teacher = copy.deepcopy(nn.Sequential(self.encoder, self.head))
            self.teacher.requires_grad_(False)
            self.queue = normalize(torch.randn(6, 6), dim=1)  # half as many as there are videos
        self.matrix = nn.Parameter(torch.eye(5))

    def penalty(self, features: Tensor) -> Tensor:
        rebuilt = (features @ self.matrix.T @ self.matrix - features).square().sum(1).mean()
        return 0.3 * (rebuilt + 0.1 * self.matrix.norm(dim=0).sum())

    def loss(self, first: Tensor, second: Tensor) -> Tensor:
        if self.teacher is None:  # SimCLR: one pass of both views, so of one batch norm
            features = self.encoder(torch.cat([first, second]))
            z = normalize(self.head(features), dim=1)
            cosines = (z @ z.T / 0.07).fill_diagonal_(-math.inf)
            other = (torch.arange(2 * BATCH) + BATCH) % (2 * BATCH)
            return cross_entropy(cosines, other) + self.penalty(features)
        # MoCo: halves have a batch norm each, those of the keys after a shuffle.
        features = torch.cat([self.encoder(x) for x in first.chunk(2)])
        query = normalize(self.head(features), dim=1)
        order = torch.randperm(BATCH)
        with torch.no_grad():
            shuffled = torch.cat([self.teacher(x) for x in second[order].chunk(2)])
            key = torch.empty_like(query)
            key[order] = normalize(shuffled, dim=1)
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.T], 1)
        self.queue = torch.cat([key, self.queue])[:6]
        value = cross_entropy(scores / 0.07, torch.zeros(BATCH, dtype=torch.int64))
        return value + self.penalty(features)


def plain_training(config: Config, videos: Videos) -> tuple[Plain, list[float]]:
    torch.manual_seed(1)
    plain = Plain(config)
    kind = torch.optim.Adam if config.optimiser == "adam" else torch.optim.AdamW
    trained = [weight for weight in plain.parameters() if weight.requires_grad]
    adam, values = kind(trained, weight_decay=0.1), []
    steps = len(videos.videos) // BATCH  # of each of two epochs; what is left over is not seen
    for step in range(2 * steps):
        epoch, number = divmod(step, steps)
        generator = torch.Generator().manual_seed(1_000_003 + epoch)
        order = torch.randperm(len(videos.videos), generator=generator)
        index = order[number * BATCH : (number + 1) * BATCH]
        loss = plain.loss(*(drawn(videos, index, epoch, view, config) for view in (0, 1)))
        # A tenth after the milestone, or half of the cosine's turn at half of the epochs.
        later = 0.1 if config.schedule == "milestones" else 0.5
        adam.param_groups[0]["lr"] = 0.01 * (later if epoch else 1.0)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if plain.teacher is not None:
            student = [*plain.encoder.parameters(), *plain.head.parameters()]
            for kept, given in zip(plain.teacher.parameters(), student, strict=True):
                kept.copy_(0.7 * kept + 0.3 * given.detach())
        values.append(loss.item())
    return plain, [sum(values[:steps]) / steps, sum(values[steps:]) / steps]


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    pairs = zip(found.state_dict().items(), expected.state_dict().values(), strict=True)
    for (name, value), other in pairs:
        torch.testing.assert_close(value, other, rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("config", [SIMCLR, MOCO], ids=["simclr", "moco"])
def test_training_is_the_plain_loop(tmp_path: Path, config: Config) -> None:
    train = made_videos().of(train=True)
    assert len(train.videos) == 13
    with Run(tmp_path, config) as run:
        networks, criterion = video.pretrain(config, train, run)
    plain, of_epochs = plain_training(config, train)
    assert losses(tmp_path) == pytest.approx(of_epochs, rel=1e-4)
    assert_same(networks.encoder, plain.encoder)
    assert_same(networks.head, plain.head)
    if plain.teacher is not None:
        assert_same(nn.Sequential(networks.teacher.encoder, networks.teacher.head), plain.teacher)
        torch.testing.assert_close(networks.queue, plain.queue, rtol=2e-3, atol=2e-4)
    found = criterion.projection.matrix.detach()
    torch.testing.assert_close(found, plain.matrix.detach(), rtol=2e-3, atol=2e-4)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    later = 0.001 if config is SIMCLR else 0.005
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.01, later])
    assert [line["epoch"] for line in lines] == [1, 2]


@pytest.mark.parametrize("version", ["retrieval-v1", "retrieval-v2", "retrieval-v3"])
def test_a_whole_run_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """L's features of centres, of other crops in each epoch of the probe, and of ten crops."""
    second, share = not version.endswith("1"), 7 / 8 if version.endswith("3") else 1.0
    config = dataclasses.replace(SIMCLR, protocol=f"coclr-linear-{version}", split=2)
    videos = made_videos()
    if version == "retrieval-v2":
        config = dataclasses.replace(config, modality="flow")
        videos = dataclasses.replace(videos, modality="flow")
    if version == "retrieval-v3":
        config = dataclasses.replace(config, windows=2)
    loads: list[Any] = []
    monkeypatch.setattr(
        module, "load", lambda *args, **options: loads.append((args, options)) or videos
    )
    monkeypatch.setattr(own, "fingerprint", lambda name, root: f"{name} in {root}")
    retrieved = spied(monkeypatch, evaluation, "nearest", lambda _, x, z, *rest, **__: (x, z))
    regressed = spied(monkeypatch, evaluation, "ridge", lambda _, *args: args[1:3])
    probed = spied(monkeypatch, evaluation, "_top", lambda _, probabilities, __: probabilities)
    parts = spied(monkeypatch, module, "pretrain", lambda result, *_: result)
    with Run(tmp_path, config) as run:
        metrics = run.finish(video.measure(config, run))["metrics"]
        assert run.score(*parts[0]) == {"R@1": metrics["R@1"]}  # what is shown in the meantime

    if share < 1:  # videos of half a clip and a frame, or fewer, are left out
        long = [place for place, n in enumerate(videos.length) if n > FRAMES // 2 + 1]
        assert len(long) < len(videos.videos)
        videos = part_of(videos, long)
    train, test = videos.of(train=True), videos.of(train=False)
    count, asked_count = len(train.videos), len(test.videos)
    plain, _ = plain_training(config, train)
    encoder, matrix = plain.encoder.eval(), plain.matrix.detach()
    strongest = matrix.norm(dim=0).topk(3).indices

    def embedded(clips: Tensor) -> Tensor:
        with torch.no_grad():
            return encoder(clips)[:, strongest] @ matrix[:, strongest].T

    def of_windows(part: Videos, number: int) -> list[Tensor]:
        starts = range(max(int(part.length[number]) - FRAMES, 0) + 1)  # T / 2 - 1 apart
        if config.windows is not None:
            starts = sorted({starts[0], starts[-1]})
        return [clips_of(part, [number], [start]) for start in starts]

    features = []
    for part in (train, test):
        rows = [
            torch.cat([embedded(centre(clip, 16, share)) for clip in of_windows(part, number)])
            for number in range(len(part.videos))
        ]
        rows = [normalize(each, dim=1) for each in rows] if second else rows
        features.append(torch.stack([each.mean(0) for each in rows]))
    x, z = features
    for found, expected in zip(retrieved[0], (x, z), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4)
    labels, asked = (torch.tensor([each.label for each in part.videos]) for part in (train, test))
    cosines = normalize(z - x.mean(0), dim=1) @ normalize(x - x.mean(0), dim=1).T
    hit = labels[cosines.topk(10).indices] == asked[:, None]
    for rank in (1, 5, 10):
        assert metrics[f"R@{rank}"] == pytest.approx(
            100 * float(hit[:, :rank].any(1).sum()) / asked_count
        )
    assert ("ridge" in metrics) is second
    if second:
        groups = torch.tensor([each.group for each in train.videos])
        assert [each.tolist() for each in regressed[0]] == [labels.tolist(), groups.tolist()]
        right = ridge(x, labels, groups, z) == asked
        assert metrics["ridge"] == pytest.approx(100 * float(right.sum()) / asked_count)
        packed = sum(2 ** (7 - place) for place in range(asked_count) if right[place])
        assert metrics["details"]["right"]["ridge"] == f"{packed:02x}"

    weak = dataclasses.replace(config, policy="probe" if second else "weak", sampling="two_clips")

    def crops(epoch: int) -> Tensor:
        return embedded(drawn(train, torch.arange(count), 2 + epoch, 0, weak))

    probe = linear_probe(crops, labels, 6, config)
    of_videos = []
    for number in range(asked_count):
        each = [
            probe(embedded(crop)).softmax(1)
            for clip in of_windows(test, number)
            for crop in ten_crops(clip, 16, mirror=flip_flow if config.modality == "flow" else None)
        ]
        of_videos.append(torch.cat(each).mean(0))
    torch.testing.assert_close(probed[0], torch.stack(of_videos).detach(), rtol=2e-3, atol=2e-4)
    names = [*(f"R@{rank}" for rank in (1, 5, 10, 20)), "top1", "top5", *["ridge"][: int(second)]]
    ends = {f"{name}{end}" for name in names for end in ("", "_low", "_high")}
    assert set(metrics) == ends | {"details"}
    right = {"right": metrics["details"]["right"]} if second else {}
    counts = {"classes": 6, "training_videos": count, "test_videos": asked_count}
    assert metrics["details"] == {**counts, **right}
    facts = {"classes": "6 present", "left_out": str(19 - count - asked_count)}
    assert run.environment["facts"] == facts
    assert run.environment["data"] == {"own": f"own in {run.data_root}"}
    for name, kept_tensor in load_file(tmp_path / "encoder.safetensors").items():
        assert torch.equal(kept_tensor, parts[0][0].encoder.state_dict()[name])
    (((name, root), options),) = loads
    assert (name, root) == ("own", run.data_root)
    kept = {name: options[name] for name in ("split", "modality", "flow", "size")}
    assert kept == {"split": 2, "modality": config.modality, "flow": "tvl1", "size": 16}


def test_probe_views_are_encoded_once_and_used_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(SIMCLR, probe_views=3, probe_epochs=7, objective=INFO_NCE)
    views = spied(monkeypatch, evaluation, "crop_features", lambda _, *args: args[3])
    asked: list[Tensor] = []

    def probed(features: Any, *args: Any, **others: Any) -> nn.Module:
        asked.extend(features(epoch) for epoch in range(7))
        return linear_probe(features, *args, **others)

    monkeypatch.setattr(evaluation, "linear_probe", probed)
    torch.manual_seed(0)
    with Run(tmp_path, config) as run:
        evaluation.evaluate(config, tiny(), made_videos(), run)
    assert views == [0, 1, 2]
    assert all(torch.equal(asked[epoch], asked[epoch % 3]) for epoch in range(7))
    assert not any(torch.equal(asked[0], other) for other in asked[1:3])


def test_seeds_and_epochs_are_apart_in_start_order_and_clips() -> None:
    videos = made_videos().of(train=True)
    starts, orders, places, looks = set(), set(), set(), set()
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        networks = video.encoder.Networks(dataclasses.replace(MOCO, seed=seed), 6)
        starts |= {float(networks.encoder[0].weight.detach().sum()), float(networks.queue.sum())}
        for epoch in (0, 1, 2):
            orders.add(str(order_of(13, seed, epoch).tolist()))
            index = torch.arange(13)
            config = dataclasses.replace(MOCO, seed=seed)
            pair = video.augmentation.sampled_starts(videos, index, config, epoch)
            places |= {str(start.tolist()) for start in pair}
            first, second = video.augmentation.views(videos, index, config, epoch)
            looks |= {str(view[:, 0, 0, 0, 0].tolist()) for view in (first, second)}
    assert (len(starts), len(orders), len(places), len(looks)) == (6, 9, 18, 18)
