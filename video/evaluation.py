"""Evaluation of an encoder: linear probe, retrieval and fine-tuning, named and versioned.

Shapes: n training videos, m test videos, B clips, T frames of a clip, h x w pixels of a stored
frame, S side of a clip in pixels, H features, C classes.

The encoder is in evaluation mode throughout, including its batch norms, unless it is fine-tuned,
and test crops are fixed. All randomness (initialisation and order of what is trained, its training
crops) depends on the seed alone, so that an evaluation does not depend on what ran before it.
Accuracies are in percent, with Wilson's 95% intervals over the test videos.

``coclr-linear-retrieval``. Linear probe: pooled features, divided by their length, through a
trained batch norm and a linear layer; SGD with momentum, a random crop with flip of each training
video per epoch, last epoch. Test: ten crops of all windows of a video, mean of the probabilities.
Retrieval: central crop, mean over all windows, cosine of features centred by the training mean;
test videos are the queries, training videos the gallery.

``coclr-finetune``: the whole encoder and a linear layer on its features, of which nine in ten are
dropped; Adam, the encoder at a tenth of the rate, crops and test as for the probe.

The second version of a protocol follows the program of [CoCLR], Han et al. 2020, in two points
where the first did not: each window's feature is normalised before a video's windows are averaged,
and three in ten of the probe's RGB training clips have colour jitter. It also has a second linear
metric, ridge regression on the features of retrieval, whose penalty is chosen on groups of training
videos that are left out, and records which test videos were classified correctly. The third version
follows the program in two further points: retrieval crops the centre of 7/8 of the short side (224
of 256 pixels) in place of all of it, and videos of ``T // 2 + 1`` frames or fewer are left out, in
training and test, in place of being padded. Three habits of the program are in no protocol here,
because they select on the test videos, or make a score random or dependent on other queries: it
reports the probe's best epoch on part of the test videos, applies colour jitter to test clips, and
centres training and test features by their own means.
"""

import copy
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from shared.logistic import check_finite
from shared.modes import evaluating
from shared.pairs import unit_rows
from shared.pixels import flip
from shared.precision import cast_for
from video.augmentation import (
    augment,
    centre,
    flip_flow,
    gather_clips,
    sample_clips,
    ten_crops,
    windows,
)
from video.config import Config
from video.data import Videos, part_of
from video.encoder import autocast

BATCH = 64  # clips per forward pass of the frozen encoder
RANKS = (1, 5, 10, 20)  # of the nearest videos in retrieval
WATCHED_VIDEOS = (500, 250)  # at most, of the training and the test part, by retrieval_so_far
DEVIATION = 0.01  # of the probe's initial weights; [CoCLR]
MOMENTUM = 0.9  # of the probe's SGD; [CoCLR]
# Fine-tuning of [CoCLR]: Adam, the encoder at a tenth of the classifier's learning rate; both rates
# are divided by ten at each milestone, a fraction of the epochs.
FINETUNE_EPOCHS = 500
DROPOUT = 0.9  # of the features
FINETUNE_RATE, FINETUNE_DECAY, FINETUNE_MILESTONES = 1e-3, 1e-3, (0.8, 0.9)
# Penalties of the ridge regression, times the number of training videos: the covariance of
# standardised features has eigenvalues that sum to H.
PENALTIES = tuple(10.0**power for power in range(-3, 3))

Embed = Callable[[Tensor], Tensor]  # clips (B, 3, T, S, S) float32 -> (B, H)
After = Callable[[int, int], None]  # called with the amount done, and the total


@dataclass(frozen=True)
class Protocol:
    """What is measured."""

    version: int = 1  # to 3, see the module
    finetunes: bool = False  # the encoder is trained with a classifier; no probe, no retrieval


PROTOCOLS: dict[str, Protocol] = {
    "coclr-linear-retrieval-v1": Protocol(),
    "coclr-linear-retrieval-v2": Protocol(version=2),
    "coclr-linear-retrieval-v3": Protocol(version=3),
    "coclr-finetune-v1": Protocol(version=2, finetunes=True),
}


class Probe(nn.Module):
    """[CoCLR]'s classifier on frozen features: length 1, batch norm, linear: (B, H) -> (B, C).

    The generator draws the weights; biases start at 0.
    """

    def __init__(self, features: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.linear = _linear(features, classes, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.linear(self.norm(of_length_one(features)))
        return scores


def evaluate(
    config: Config,
    encoder: nn.Module,
    videos: Videos,
    run: Run,
    project: Callable[[Tensor], Tensor] | None = None,
    finetune_epochs: int = FINETUNE_EPOCHS,
) -> dict[str, Any]:
    """Score an encoder by the configuration's protocol, on the videos of a whole split.

    Keys of the result: ``top1``, with more than 5 classes ``top5``, both of the probe's last epoch,
    and ``R@1``, ``R@5``, ``R@10`` and ``R@20``, the share of test videos with a video of their
    class among the k nearest training videos; in the second version also ``ridge``, the top-1 of
    the ridge regression; each with ``_low`` and ``_high``, the ends of its interval, in percent.
    ``details`` holds counts and, in the second version, ``right``: for each top-1 metric, which
    test videos were correct, see :func:`packed`. Fine-tuning gives ``top1`` and ``top5`` only, and
    trains a copy. The encoder is restored afterwards.

    encoder: (B, 3, T, S, S) -> (B, H), on the device to compute on. project: (B, H) -> (B, R),
    applied to the features before they are scored (CLLR's L), unless the encoder is fine-tuned.
    finetune_epochs: in place of the protocol's.
    """
    if config.protocol not in PROTOCOLS:
        raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}; got {config.protocol!r}")
    videos.check(config.modality)
    protocol = PROTOCOLS[config.protocol]
    train, test = _parts(long_enough(config, videos))
    device = _device_of(encoder)
    labels, test_labels = (_labels(part, device) for part in (train, test))
    classes = len(videos.classes)

    embed = _embedding(config, encoder, project)

    def tell(what: str) -> After:
        def after(done: int, total: int) -> None:
            run.progress(done, total, what)
            if run.stopping:
                raise Interrupted

        return after

    details: dict[str, Any] = {
        "classes": classes,
        "training_videos": len(train.videos),
        "test_videos": len(test.videos),
    }
    if protocol.finetunes:
        model = finetune(
            config, encoder, train, classes, finetune_epochs, after=tell("fine-tuning")
        )
        embed = functools.partial(embed_clips, model.encoder, precision=config.precision)
        tops, right = _top(
            ten_crop_probabilities(
                config, embed, model.linear, test, device, after=tell("ten crops of test videos")
            ),
            test_labels,
        )
        return tops | {"details": details | {"right": {"top1": packed(right)}}}

    features, test_features = (
        video_features(config, embed, part, device, after=tell(f"features of {name} videos"))
        for name, part in (("training", train), ("test", test))
    )
    neighbours = nearest(features, test_features, max(RANKS))
    hit = labels[neighbours] == test_labels[:, None]
    metrics: dict[str, Any] = {}
    for rank in RANKS:
        metrics |= accuracy(f"R@{rank}", hit[:, :rank].any(1))
    right_of = {"R@1": hit[:, 0]}
    if protocol.version > 1:
        groups = torch.tensor([video.group for video in train.videos], device=device)
        guessed = ridge(features, labels, groups, test_features)
        right_of["ridge"] = guessed == test_labels
        metrics |= accuracy("ridge", right_of["ridge"])

    @functools.lru_cache(config.probe_views or 1)
    def crops(view: int) -> Tensor:
        return crop_features(config, embed, train, view, device)

    probe = linear_probe(
        lambda epoch: crops(epoch % (config.probe_views or config.probe_epochs)),
        labels,
        classes,
        config,
        after=tell("linear probe"),
    )
    probabilities = ten_crop_probabilities(
        config, embed, probe, test, device, after=tell("ten crops of test videos")
    )
    tops, right_of["top1"] = _top(probabilities, test_labels)
    if protocol.version > 1:
        details["right"] = {name: packed(correct) for name, correct in right_of.items()}
    return metrics | tops | {"details": details}


def retrieval_so_far(
    config: Config,
    encoder: nn.Module,
    videos: Videos,
    project: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """``R@1`` as :func:`evaluate` measures it, on a fixed part of the videos."""
    device, embed = _device_of(encoder), _embedding(config, encoder, project)
    train, test = (
        part.every(math.ceil(len(part.videos) / most))
        for part, most in zip(_parts(long_enough(config, videos)), WATCHED_VIDEOS, strict=True)
    )
    features, queries = (video_features(config, embed, part, device) for part in (train, test))
    neighbours = nearest(features, queries, 1)
    hit = _labels(train, device)[neighbours[:, 0]] == _labels(test, device)
    return {"R@1": accuracy("R@1", hit)["R@1"]}


def long_enough(config: Config, videos: Videos) -> Videos:
    """The videos that a configuration's protocol does not leave out for their length."""
    if PROTOCOLS[config.protocol].version < 3:
        return videos
    least = config.clip_frames // 2 + 2
    return part_of(videos, (videos.length >= least).nonzero().flatten().tolist())


def _device_of(encoder: nn.Module) -> torch.device:
    return next(itertools.chain(encoder.parameters(), encoder.buffers())).device


def _labels(videos: Videos, device: torch.device) -> Tensor:
    return torch.tensor([video.label for video in videos.videos], device=device)


def _parts(videos: Videos) -> tuple[Videos, Videos]:
    """The training and the test videos of a split, all with labels."""
    if unlabelled := [video.name for video in videos.videos if video.label < 0]:
        raise ValueError(
            f"{len(unlabelled)} videos without a label cannot be scored, for instance "
            f"{unlabelled[0]}; put them into class folders"
        )
    train, test = videos.of(train=True), videos.of(train=False)
    if len(train.videos) < 2 or not test.videos:
        raise ValueError(
            f"{len(train.videos)} training and {len(test.videos)} test videos cannot be evaluated; "
            f"use at least 2 and 1"
        )
    return train, test


def _embedding(
    config: Config, encoder: nn.Module, project: Callable[[Tensor], Tensor] | None
) -> Embed:
    def embed(clips: Tensor) -> Tensor:
        features = embed_clips(encoder, clips, config.precision)
        return features if project is None else project(features)

    return embed


class Classifier(nn.Module):
    """[CoCLR]'s network for fine-tuning, encoder, dropout, linear: (B, 3, T, S, S) -> (B, C).

    The generator draws the weights of the linear layer; biases start at 0.
    """

    def __init__(
        self, encoder: nn.Module, features: int, classes: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(DROPOUT)
        self.linear = _linear(features, classes, generator)

    def forward(self, clips: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.linear(self.dropout(self.encoder(clips).float()))
        return scores


def finetune(
    config: Config,
    encoder: nn.Module,
    videos: Videos,
    classes: int,
    epochs: int = FINETUNE_EPOCHS,
    after: After | None = None,
) -> Classifier:
    """A copy of an encoder with a classifier after the last epoch, in evaluation mode.

    Start, order, crops and dropout are functions of the seed alone. What is left of an epoch after
    its last full batch is a smaller batch, unless it is a single video.

    encoder: (B, 3, T, S, S) -> (B, H), on the device that is to do the work. after: called after
    each epoch with the number of epochs done, and of all.
    """
    if epochs < 1:
        raise ValueError(f"fine-tuning takes at least 1 epoch; got {epochs}")
    device = next(encoder.parameters()).device
    labels = _labels(videos, device)
    generator = torch.Generator().manual_seed(config.seed)
    clips = random_crops(config, videos, torch.arange(1), 0, device)
    width = embed_clips(encoder, clips, config.precision).shape[1]
    model = Classifier(copy.deepcopy(encoder), width, classes, generator)
    model = model.requires_grad_(True).to(device).train()
    rates = (FINETUNE_RATE / 10, FINETUNE_RATE)
    optimiser = torch.optim.Adam(
        [{"params": part.parameters()} for part in (model.encoder, model.linear)],
        weight_decay=FINETUNE_DECAY,
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)  # of the dropout
        for epoch in range(epochs):
            share = epoch / epochs
            passed = sum(share >= milestone for milestone in FINETUNE_MILESTONES)
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * 0.1**passed
            order = torch.randperm(len(labels), generator=generator)
            for batch in order.split(config.probe_batch_size):
                if len(batch) < 2:
                    continue
                clips = random_crops(config, videos, batch, epoch, device)
                with autocast(config.precision, clips):
                    scores = model(clips)
                loss = cross_entropy(scores.float(), labels[batch.to(device)])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            if after is not None:
                after(epoch + 1, epochs)
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        raise FloatingPointError(f"fine-tuning diverged at a learning rate of {FINETUNE_RATE}")
    return model.eval()


def _top(probabilities: Tensor, labels: Tensor) -> tuple[dict[str, float], Tensor]:
    """``top1``, of more than 5 classes ``top5``; and which of (n,) the first guess was right for.

    probabilities: (n, C). labels: (n,).
    """
    classes = probabilities.shape[1]
    right = probabilities.topk(min(5, classes)).indices == labels[:, None]
    metrics = accuracy("top1", right[:, 0])
    if classes > 5:
        metrics |= accuracy("top5", right.any(1))
    return metrics, right[:, 0]


def _linear(features: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """[CoCLR]'s linear layer at the start, drawn by a generator."""
    linear: nn.Linear = nn.Linear(features, classes, device="meta").to_empty(device="cpu")
    nn.init.normal_(linear.weight, 0.0, DEVIATION, generator=generator)
    nn.init.zeros_(linear.bias)
    return linear


@torch.no_grad()
def embed_clips(encoder: nn.Module, clips: Tensor, precision: str) -> Tensor:
    """Features (B, H) float32 of clips, by the encoder in evaluation mode; its mode is restored.

    encoder: (B, 3, T, S, S) -> (B, H). clips: (B, 3, T, S, S) float32, normalised, on the encoder's
    device. precision: of the encoder on a GPU, "bfloat16" or "float32".
    """
    with autocast(precision, clips), evaluating(encoder):
        features: Tensor = encoder(cast_for(encoder, clips))
    return features.float()


def video_features(
    config: Config,
    embed: Embed,
    videos: Videos,
    device: torch.device,
    after: After | None = None,
) -> Tensor:
    """Features (n, H) of videos: central crop, mean over all windows.

    Of the configuration ``clip_frames``, ``size``, ``windows`` and ``protocol`` are used. ``after``
    is called after each batch with the number of windows done, and the total.
    """
    version = PROTOCOLS[config.protocol].version
    unit, share = version > 1, 7 / 8 if version > 2 else 1.0

    def of_windows(clips: Tensor) -> Tensor:
        features = embed(centre(clips, config.size, share))
        return of_length_one(features) if unit else features

    features = over_windows(
        of_windows, videos, config.clip_frames, device, most=config.windows, after=after
    )
    if not torch.isfinite(features).all():
        raise ValueError("features are NaN or infinite and cannot be scored; did training diverge?")
    return features


def crop_features(
    config: Config, embed: Embed, videos: Videos, view: int, device: torch.device
) -> Tensor:
    """Features (n, H) of one random clip of each video, see :func:`random_crops`."""
    return torch.cat(
        [
            embed(random_crops(config, videos, index, view, device))
            for index in torch.arange(len(videos.videos)).split(BATCH)
        ]
    )


def random_crops(
    config: Config, videos: Videos, index: Tensor, view: int, device: torch.device
) -> Tensor:
    """One random clip (B, 3, T, S, S) of each video, randomly cropped and mirrored, normalised.

    They are a function of (seed, view); views are numbered on from those of the training. ``index``
    (B,) int64 says which of the videos.
    """
    epoch = config.epochs + view
    policy = "probe" if PROTOCOLS[config.protocol].version > 1 else "weak"
    start, _ = sample_clips(
        videos, index, config.clip_frames, seed=config.seed, epoch=epoch, sampling="two_clips"
    )
    return augment(
        gather_clips(videos, index, start, config.clip_frames).to(device),
        config.size,
        seed=config.seed,
        epoch=epoch,
        samples=index,
        view=0,
        policy="flow" if config.modality == "flow" else policy,
    )


def linear_probe(
    features: Callable[[int], Tensor],
    labels: Tensor,
    classes: int,
    config: Config,
    after: After | None = None,
) -> Probe:
    """The probe after its last epoch, in evaluation mode.

    Initialisation and order are functions of the seed alone. The last batch of an epoch may be
    smaller, but is dropped if it is a single video, on which batch norm is undefined.

    features: from the number of an epoch, from 0 on, to its features (n, H). labels: (n,) int64, on
    the same device. after: called after each epoch with the number of epochs done, and the total.
    """
    if config.probe_epochs < 1:
        raise ValueError(f"a probe trains for at least 1 epoch; got {config.probe_epochs}")
    generator = torch.Generator().manual_seed(config.seed)
    probe = Probe(features(0).shape[1], classes, generator).to(labels.device).train()
    optimiser = torch.optim.SGD(
        probe.parameters(),
        lr=config.probe_learning_rate,
        momentum=MOMENTUM,
        weight_decay=config.probe_weight_decay,
    )
    for epoch in range(config.probe_epochs):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, epoch)
        inputs = features(epoch)
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        for batch in order.split(config.probe_batch_size):
            if len(batch) < 2:
                continue
            loss = cross_entropy(probe(inputs[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if after is not None:
            after(epoch + 1, config.probe_epochs)
    if not all(torch.isfinite(parameter).all() for parameter in probe.parameters()):
        raise FloatingPointError(
            f"the probe diverged at a learning rate of {config.probe_learning_rate}"
        )
    return probe.eval()


def learning_rate(config: Config, epoch: int) -> float:
    """The probe's rate in an epoch: a tenth after each milestone."""
    passed = sum(epoch / config.probe_epochs >= share for share in config.probe_milestones)
    return config.probe_learning_rate * 0.1**passed


def ten_crop_probabilities(
    config: Config,
    embed: Embed,
    probe: nn.Module,
    videos: Videos,
    device: torch.device,
    after: After | None = None,
) -> Tensor:
    """Probabilities of the classes (n, C), the mean over ten crops of all windows of each video.

    ``probe`` is (B, H) -> (B, C), in evaluation mode; ``after`` is called after each batch with the
    number of windows done, and the total.
    """
    mirror = flip_flow if config.modality == "flow" else flip

    def probabilities(clips: Tensor) -> Tensor:
        crops = ten_crops(clips, config.size, mirror=mirror)
        scores: Tensor = probe(embed(crops.flatten(0, 1)))
        # Every window has equally many crops, so means can be taken in either order.
        return scores.softmax(1).view(*crops.shape[:2], -1).mean(0)

    return over_windows(
        probabilities,
        videos,
        config.clip_frames,
        device,
        batch=BATCH // 10,
        most=config.windows,
        after=after,
    )


@torch.no_grad()
def over_windows(
    function: Callable[[Tensor], Tensor],
    videos: Videos,
    clip_frames: int,
    device: torch.device,
    *,
    batch: int = BATCH,
    most: "int | Callable[[int, int], Tensor] | None" = None,
    after: After | None = None,
) -> Tensor:
    """Mean (n, K) of a function over all windows of each video.

    function: clips (B, 3, T, h, w) uint8 on ``device`` -> (B, K). batch: clips at a time. most:
    windows of a video, see :func:`video.augmentation.windows`. after: called after each batch with
    the number of windows done, and the total.
    """
    starts = [windows(length, clip_frames, most) for length in videos.length.tolist()]
    counts = [len(positions) for positions in starts]
    index = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    start = torch.cat(starts)
    values, done = [], 0
    for index_of_chunk, start_of_chunk in zip(index.split(batch), start.split(batch), strict=True):
        clips = gather_clips(videos, index_of_chunk, start_of_chunk, clip_frames)
        values.append(function(clips.to(device)))
        done += len(index_of_chunk)
        if after is not None:
            after(done, len(index))
    return torch.stack([features.mean(0) for features in torch.cat(values).split(counts)])


def nearest(train: Tensor, test: Tensor, count: int) -> Tensor:
    """The nearest training videos of each test video, (m, count) int64, nearest first.

    Similarity is the cosine of features (n, H) and (m, H), centred by the training mean. There are
    n neighbours if that is less than ``count``.
    """
    check_finite(train, "training")
    check_finite(test, "test")
    mean = train.double().mean(0)
    gallery, query = of_length_one(train - mean), of_length_one(test - mean)
    cosines = query @ gallery.T
    return cosines.topk(min(count, len(train))).indices


def ridge(train: Tensor, labels: Tensor, groups: Tensor, test: Tensor) -> Tensor:
    """Classes (m,) int64 of test videos, predicted by a ridge regression to one-hot labels.

    Features (n, H) and (m, H) are standardised on the training videos. The penalty of ``PENALTIES``
    with the best accuracy on held-out groups of training videos, those cut from one recording, is
    used; ties go to the largest. Other folds would favour the smallest penalty. With a single group
    the largest is used. The regression is deterministic.
    """
    check_finite(train, "training")
    check_finite(test, "test")
    inputs, queries = train.double(), test.double()
    mean = inputs.mean(0)
    # Features that are constant over the training videos become 0, without a division by 0.
    scale = torch.where((deviation := inputs.std(0)) > 0, deviation, torch.inf)
    inputs, queries = (inputs - mean) / scale, (queries - mean) / scale
    targets = torch.nn.functional.one_hot(labels).double()

    def scores(fitted: Tensor, queried: Tensor) -> Tensor:
        """Scores (penalties, queried, C) by the regression on the videos ``fitted``."""
        offset, level = inputs[fitted].mean(0), targets[fitted].mean(0)
        centred = inputs[fitted] - offset
        values, vectors = torch.linalg.eigh(centred.T @ centred)
        wanted = vectors.T @ centred.T @ (targets[fitted] - level)
        penalties = len(centred) * torch.tensor(PENALTIES, dtype=values.dtype, device=values.device)
        shrunk = wanted / (values.clamp(min=0) + penalties[:, None])[..., None]
        result: Tensor = (queried - offset) @ vectors @ shrunk + level
        return result

    hits = torch.zeros(len(PENALTIES), dtype=torch.int64, device=labels.device)
    folds = groups.unique()
    for group in folds if len(folds) > 1 else ():
        out = groups == group
        hits += (scores(~out, inputs[out]).argmax(2) == labels[out]).sum(1)
    best = len(PENALTIES) - 1 - int(hits.flip(0).argmax())
    everything = torch.ones_like(labels, dtype=torch.bool)
    return scores(everything, queries)[best].argmax(1)


def packed(right: Tensor) -> str:
    """Booleans (m,) as hexadecimal digits, the first in the highest bit, 0 up to whole bytes."""
    return np.packbits(right.cpu().numpy()).tobytes().hex()


def accuracy(name: str, right: Tensor) -> dict[str, float]:
    """Share of ``right`` (m,) bool and the ends of Wilson's 95% interval, in percent, by name."""
    hits = int(right.sum())
    interval = binomtest(hits, len(right)).proportion_ci(0.95, method="wilson")
    return {
        name: 100 * hits / len(right),
        f"{name}_low": 100 * float(interval.low),
        f"{name}_high": 100 * float(interval.high),
    }


def of_length_one(features: Tensor) -> Tensor:
    """Normalised rows (B, H) float32.

    An untrained network has features of the order of 1e-16, whose squares underflow in float32.
    """
    return unit_rows(features.double()).float()
