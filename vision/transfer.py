"""The transfer suite of Ericsson et al. 2021: how well an encoder transfers to other images.

Shapes: n training images, m test images, H features, C classes, E episodes.

Three protocols: logistic regression on frozen features of all training images ("many-shot"), the
whole network trained with labels ("fine-tuned"), and episodes of a few images of each of a few
classes ("few-shot"). The first two choose hyperparameters on the published validation images, or
on a fifth of the training images, the same in every run; the final model is then trained on all.
Each dataset has its usual metric (:attr:`vision.data.Dataset.metric`): accuracy, mean per-class
accuracy, or the mean average precision at eleven recalls of Pascal VOC 2007.

As in the suite's program, images on disk are centre-cropped along their longer side only, in
episodes to 1 / 1.15 of the shorter side; its resizing is bicubic everywhere, here for training
crops only.
"""

import contextlib
import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from shared import logistic
from shared.errors import UserError
from shared.experiment.files import write_atomically
from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from shared.precision import bfloat16
from vision.config import Config
from vision.data import choose, permutation
from vision.datasets import Dataset, Split, describe
from vision.features import (
    SOLVED,
    FewShot,
    FineTuning,
    ManyShot,
    check_labels,
    device_of,
    embed,
    load_split,
    record_data,
    standardised,
    starting_classifier,
    statistics,
    training_views,
)
from vision.images import ImageFiles, Images

HELD_OUT = 5  # one training image in this many, if no validation images are published
WHOLE, IN_EPISODES = 1.0, 1 / 1.15  # share of the shorter side that a crop keeps
TRIED = "fine-tuning.json"  # in the run's folder: the validation scores so far
RECALLS = tuple(step / 10 for step in range(11))


def transferred(
    config: Config,
    protocol: ManyShot | FewShot | FineTuning,
    encoder: nn.Module,
    run: Run,
    *,
    project: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, object]:
    """Score an encoder by one protocol of the suite.

    Keys of the result, all in percent: ``many_shot_`` and ``finetuned_``, each with ``top1`` and
    ``mean_per_class``, or ``map11`` where an image has several classes; ``few_shot_top1``, the mean
    over the episodes, and ``few_shot_interval``, half of its 95% interval. The run records the
    hyperparameters chosen on the validation images. The encoder is restored afterwards.

    encoder: (B, 3, S, S) -> (B, H), on the device to compute on. project: (B, H) -> (B, R), applied
    to the features before they are scored (CLLR's L).
    """
    if config.beside is not None or config.probe_batch_norm == "train":
        raise ValueError(f"{config.protocol} has no probe; omit beside and probe_batch_norm")
    if project is not None and isinstance(protocol, FineTuning):
        raise ValueError("fine-tuning trains the backbone only; evaluate L by another protocol")
    name = config.evaluate_on or config.dataset
    dataset = describe(name)
    if not dataset.test and not isinstance(protocol, FewShot):
        raise UserError(f"{name} has no test images: it is one part, for few-shot episodes")
    if dataset.metric == "map11" and isinstance(protocol, FewShot):
        raise UserError(f"{name} has several classes per image; episodes need one")
    parts: tuple[Split, ...] = ("train", "test") if dataset.test else ("train",)
    train, *rest = (load_split(config, name, split, run) for split in parts)
    if name != config.dataset:
        record_data(run, name)
    if config.images is not None:
        train = choose(train, min(config.images, len(train)))
    device = device_of(encoder)
    mean, std = statistics(config, dataset)

    def embedded(images: Images | ImageFiles, network: nn.Module, crop: float = WHOLE) -> Tensor:
        size = config.test_size or config.image_size
        seen = {"precision": config.precision, "workers": run.workers, "crop_fraction": crop}
        return embed(network, images, size, mean, std, **seen)  # type: ignore[arg-type]

    if isinstance(protocol, FineTuning):
        (test,) = rest
        return _fine_tune(config, protocol, encoder, run, dataset, train, test, embedded)
    run.progress(0, 1, config.protocol)
    if isinstance(protocol, FewShot):
        all_parts = [train, *rest]
        features = torch.cat([embedded(part, encoder, IN_EPISODES) for part in all_parts])
        labels = torch.cat([part.labels for part in all_parts]).to(device)
        accuracies = few_shot(features if project is None else project(features), labels, protocol)
        average, interval = mean_and_interval(accuracies)
        return {"few_shot_top1": average, "few_shot_interval": interval}
    features, test_features = (embedded(part, encoder) for part in (train, *rest))
    if project is not None:
        features, test_features = project(features), project(test_features)
    cost, outputs = many_shot(
        features,
        train.labels.to(device),
        test_features,
        held_out(dataset, len(train)).to(device),
        protocol.costs,
        metric=dataset.metric,
    )
    run.record(many_shot_cost=f"{cost:g}")
    return _named("many_shot", scores(outputs, rest[0].labels.to(device)))


def held_out(dataset: Dataset, count: int) -> Tensor:
    """Which of ``count`` training images validate, (n,) bool: the published ones, else a fifth."""
    chosen = torch.zeros(count, dtype=torch.bool)
    if dataset.validation and count == dataset.train:
        chosen[-dataset.validation :] = True
    else:
        chosen[torch.from_numpy(permutation(count, 0, 0)[: max(1, count // HELD_OUT)])] = True
    return chosen


def many_shot(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    validating: Tensor,
    costs: Sequence[float],
    *,
    metric: str,
) -> tuple[float, Tensor]:
    """The chosen cost, and the scores (m, C) of the test features (m, H).

    L2-regularised logistic regression on standardised features (mean 0, standard deviation 1 over
    the training images; constant features are 0), solved to the minimum; the suite's program uses
    raw features and at most 100 steps. The cost is chosen by the metric on the images that are
    ``validating``, (n,) bool; ties go to the smallest. With several classes per image there is one
    regression per class, all with the same cost.

    labels: (n,) int64, or (n, C) of 1, 0, and -1 for entries to ignore. metric: of :func:`scores`.
    """
    train, test = standardised(train, test)
    costs = sorted(costs)
    tried = _regressions(train, labels, ~validating, costs, train[validating])
    metrics = [scores(outputs, labels[validating])[metric] for outputs in tried]
    best = costs[int(np.argmax(metrics))]  # ties go to the first
    everything = torch.ones_like(validating)
    (outputs,) = _regressions(train, labels, everything, [best], test)
    return best, outputs


def _regressions(
    train: Tensor, labels: Tensor, inside: Tensor, costs: Sequence[float], test: Tensor
) -> Tensor:
    """Scores (costs, m, C) by regressions on the training images that are ``inside``."""
    if labels.ndim == 1:
        solution = logistic.fit(train, labels, inside[:, None], costs, tolerance=SOLVED)
        outputs = _linear(solution, test)
        return torch.cat([-outputs, outputs], 2) if outputs.shape[2] == 1 else outputs
    columns = []
    for of_class in labels.T:
        counted = (inside & (of_class >= 0))[:, None]
        solution = logistic.fit(train, of_class.clamp(min=0), counted, costs, tolerance=SOLVED)
        columns.append(_linear(solution, test))
    return torch.cat(columns, 2)


def _linear(solution: logistic.Solution, features: Tensor) -> Tensor:
    """Scores (costs, m, K) of a solution with a single training set."""
    products = torch.einsum("nd,cdk->cnk", features.to(solution.weights), solution.weights[0])
    return products + solution.intercepts[0][:, None]


def scores(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """All metrics, in percent, of outputs (m, C), which are larger for likelier classes.

    For labels (m,) int64 ``top1`` and ``mean_per_class``, for (m, C) ``map11``.
    """
    if labels.ndim == 2:
        return {"map11": mean_average_precision(outputs, labels)}
    predicted = outputs.argmax(1)
    right = 100 * int((predicted == labels).sum()) / len(labels)
    return {"top1": right, "mean_per_class": mean_per_class(predicted, labels)}


def mean_per_class(predicted: Tensor, labels: Tensor) -> float:
    """Mean per-class accuracy in percent, over the classes that occur; (m,) int64 both."""
    members = one_hot(labels).double()
    right = members[predicted == labels].sum(0)
    count = members.sum(0)
    return 100 * float((right / count)[count > 0].mean())


def mean_average_precision(outputs: Tensor, labels: Tensor) -> float:
    """Mean over the classes, in percent, of :func:`average_precision` of each.

    outputs: (m, C), larger for likelier classes. labels: (m, C) of 1, 0, and -1 for entries to
    ignore.
    """
    precisions = []
    for column, label in zip(outputs.T, labels.T, strict=True):
        counted = label >= 0
        precisions.append(average_precision(column[counted], label[counted] > 0))
    return 100 * sum(precisions) / len(precisions)


def average_precision(outputs: Tensor, positive: Tensor) -> float:
    """The mean, over the recalls 0, 0.1, ..., 1, of the best precision at that recall or above.

    Images with equal outputs (m,) share one threshold. Scikit-learn's curve, which the suite's
    program uses, adds precision 1 at recall 0, so that the first of the eleven is always 1.

    Source: Everingham et al. 2010, "The Pascal Visual Object Classes (VOC) Challenge", Section 4.2.
    """
    if not positive.any():
        raise ValueError("average precision: no image is of the class")
    order = outputs.argsort(descending=True)
    outputs, hits = outputs[order], positive[order].cumsum(0).double()
    last = torch.ones_like(outputs, dtype=torch.bool)  # of each group of equal outputs
    last[:-1] = outputs[1:] != outputs[:-1]
    rank = torch.arange(1, len(outputs) + 1, device=outputs.device)
    precision, recall = (hits / rank)[last], (hits / hits[-1])[last]
    # A recall of 3 / 10 has to reach the threshold 0.3 in spite of floating-point rounding.
    best = [precision[recall > level - 1e-9].max() for level in RECALLS]
    return float(torch.stack(best).mean())


def few_shot(features: Tensor, labels: Tensor, protocol: FewShot) -> Tensor:
    """Accuracies (E,) float64, in percent, of the episodes: the nearest prototype's class.

    A prototype is the mean of its shots; the distance is Euclidean, between features (n, H). The
    episodes of a dataset are the same in every run, so that encoders are compared on the same ones.

    Source: Snell et al. 2017, "Prototypical Networks for Few-shot Learning", and few_shot.py of
    Ericsson et al. 2021.
    """
    check_labels(labels)
    logistic.check_finite(features)
    index = episodes(labels, protocol)
    accuracies = []
    for chosen in index.to(features.device):
        shots, queries = features[chosen].split([protocol.shots, protocol.queries], dim=1)
        distances = torch.cdist(
            queries.flatten(0, 1), shots.mean(1), compute_mode="donot_use_mm_for_euclid_dist"
        )
        nearest = distances.argmin(1).view(protocol.ways, protocol.queries)
        expected = torch.arange(protocol.ways, device=nearest.device)[:, None]
        accuracies.append((nearest == expected).double().mean())
    return 100 * torch.stack(accuracies).cpu()


def episodes(labels: Tensor, protocol: FewShot) -> Tensor:
    """Positions (E, ways, shots + queries) of the images of each episode, each at most once."""
    needed = protocol.shots + protocol.queries
    members = [torch.where(labels.cpu() == label)[0] for label in range(int(labels.max()) + 1)]
    members = [images for images in members if len(images) >= needed]
    if len(members) < protocol.ways:
        raise UserError(
            f"an episode needs {needed} images of {protocol.ways} classes; {len(members)} classes "
            f"have as many: give more images or another protocol"
        )
    episodes = []
    for number in range(protocol.episodes):
        generator = np.random.default_rng([0, number])
        chosen = generator.permutation(len(members))[: protocol.ways]
        drawn = [
            members[label][generator.choice(len(members[label]), needed, replace=False)]
            for label in chosen
        ]
        episodes.append(torch.stack(drawn))
    return torch.stack(episodes)


def mean_and_interval(accuracies: Tensor) -> tuple[float, float]:
    """The mean of E numbers, and half of its 95% interval: 1.96 deviations / sqrt(E)."""
    deviation = accuracies.std(unbiased=False)
    return float(accuracies.mean()), float(1.96 * deviation / math.sqrt(len(accuracies)))


def _fine_tune(
    config: Config,
    protocol: FineTuning,
    encoder: nn.Module,
    run: Run,
    dataset: Dataset,
    train: Images | ImageFiles,
    test: Images | ImageFiles,
    embedded: Callable[[Images | ImageFiles, nn.Module], Tensor],
) -> dict[str, object]:
    """Choose rate and decay on the validation images, train on all, score on the test images."""
    validating = held_out(dataset, len(train))
    inside, outside = (train.subset(torch.where(part)[0]) for part in (~validating, validating))
    steps = config.tuning_steps or protocol.steps
    grid = [(rate, decay / rate) for rate in protocol.rates for decay in protocol.decays]
    total = (len(grid) + 1) * steps
    file = run.folder / TRIED
    tried: dict[str, float | None] = json.loads(file.read_text()) if file.is_file() else {}

    def trained(images: Images | ImageFiles, rate: float, decay: float, done: int) -> nn.Sequential:
        def after_step(step: int) -> None:
            run.progress(done + step, total, config.protocol)
            if run.stopping:
                raise Interrupted

        return fine_tuned(
            config,
            protocol,
            encoder,
            images,
            rate,
            decay,
            steps,
            run.workers,
            after_step=after_step,
        )

    for number, (rate, decay) in enumerate(grid):
        key = f"{rate:g} {decay:g}"
        if key not in tried:
            network = trained(inside, rate, decay, number * steps)
            tried[key] = None  # diverged
            with contextlib.suppress(ValueError):  # outputs that are not finite
                outputs = embedded(outside, network)
                tried[key] = scores(outputs, outside.labels.to(outputs.device))[dataset.metric]
            write_atomically(file, json.dumps(tried, indent=2) + "\n")
    scored = [
        (score, rate, decay)
        for rate, decay in grid
        if (score := tried[f"{rate:g} {decay:g}"]) is not None
    ]
    if not scored:
        raise FloatingPointError(f"fine-tuning diverged at every rate of {protocol.rates}")
    _, rate, decay = max(scored, key=lambda result: result[0])  # ties go to the first
    network = trained(train, rate, decay, len(grid) * steps)
    outputs = embedded(test, network)
    run.record(fine_tuning=f"rate {rate:g}, decay {decay:g}")
    return _named("finetuned", scores(outputs, test.labels.to(outputs.device)))


def fine_tuned(
    config: Config,
    protocol: FineTuning,
    encoder: nn.Module,
    images: Images | ImageFiles,
    rate: float,
    decay: float,
    steps: int,
    workers: int = 0,
    *,
    after_step: Callable[[int], None] | None = None,
) -> nn.Sequential:
    """A copy of the encoder and a linear layer (B, 3, S, S) -> (B, C), trained with labels.

    Initialisation, order and augmentations are functions of the configuration's seed alone; an
    incomplete last batch is dropped. The encoder is not changed.

    images: with labels (n,), or (n, C) where an image has several classes. rate: the initial one;
    it follows a cosine to 0. steps: of SGD. after_step: called with the number of steps done.
    """
    dataset = describe(config.evaluate_on or config.dataset)
    device = device_of(encoder)
    backbone = copy.deepcopy(encoder)
    with torch.no_grad():  # the width is found by a forward pass, for any network
        side = config.image_size
        width = backbone.eval()(torch.zeros(1, 3, side, side, device=device)).shape[1]
    classifier = starting_classifier(width, dataset.classes, None, config.seed).to(device)
    network = nn.Sequential(backbone, classifier).train()
    optimiser = torch.optim.SGD(
        network.parameters(), rate, momentum=protocol.momentum, nesterov=True, weight_decay=decay
    )
    labels = images.labels.to(device)
    size = min(protocol.batch_size, len(images))
    per_epoch = len(images) // size
    for epoch in range(math.ceil(steps / per_epoch)):
        first = epoch * per_epoch
        order = permutation(len(images), config.seed, epoch)[: per_epoch * size]
        chosen = list(order.reshape(per_epoch, size)[: steps - first])
        views = training_views(config, protocol.policy, images, epoch, chosen, device, workers)
        for step, (batch, inputs) in enumerate(zip(chosen, views, strict=True), start=first):
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            with bfloat16(device.type, enabled=config.precision == "bfloat16"):
                outputs = network(inputs)
            loss = _loss(outputs.float(), labels[torch.from_numpy(batch).to(device)])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if after_step is not None:
                after_step(step + 1)
    return network


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.ndim == 1:
        return cross_entropy(outputs, labels)
    counted = labels >= 0
    return binary_cross_entropy_with_logits(outputs[counted], labels[counted].float())


def _named(protocol: str, metrics: Mapping[str, float]) -> dict[str, object]:
    return {f"{protocol}_{metric}": value for metric, value in metrics.items()}
