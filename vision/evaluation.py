"""Evaluation of a frozen encoder: linear probes and nearest neighbours, named and versioned.

Shapes: n training images, m test images, B images of a batch, S side in pixels, H features, C
classes.

Every accuracy is in percent and is that of a probe's last epoch; the epoch that is best on the test
images is recorded separately and never enters a table. All random numbers (the classifier's
initialisation, the order of the batches, the augmentations) depend on the seed alone, so that an
evaluation does not depend on what ran before it.

Test images whose side is not S are resized to 70/64 S and cropped at the centre, as ReSSL's
program does to STL-10 (96 -> 70 -> 64); streamed ones as is usual on ImageNet (256 -> 224).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shared import logistic
from shared.experiment.randomness import preserve_state
from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from shared.notices import notice
from shared.pairs import unit_rows
from shared.spectrum import effective_rank
from vision.config import Config
from vision.data import choose, permutation
from vision.datasets import describe
from vision.features import (
    SOLVED,
    Batches,
    FewShot,
    FineTuning,
    ManyShot,
    check_labels,
    device_of,
    embed,
    features_of,
    load_split,
    record_data,
    standardised,
    starting_classifier,
    statistics,
    training_views,
)
from vision.images import ImageFiles, Images
from vision.transfer import transferred

ENTRIES = 2**26  # of the cosine matrix that is held at a time for nearest neighbours: 256 MB


@dataclass(frozen=True)
class Probe:
    """How a linear classifier is trained on frozen features."""

    optimiser: Literal["sgd", "adam"]
    learning_rate: float  # the initial one
    batch_size: int  # the last batch of an epoch may be smaller
    epochs: int
    momentum: float = 0.0  # of SGD
    nesterov: bool = False
    weight_decay: float = 0.0  # L2, on weights and biases
    # "cosine" and "linear" fall to 0, step by step, "epoch_cosine" once per epoch; "steps"
    # multiplies by the factor at the milestones.
    schedule: Literal["constant", "cosine", "epoch_cosine", "linear", "steps"] = "constant"
    milestones: tuple[float, ...] = ()  # shares of the epochs
    factor: float = 1.0
    # Standard deviation of the initial weights, with biases 0; None: torch's default for both.
    deviation: float | None = None
    policy: str = "crop_flip"  # of vision.augmentation.POLICIES, for the training images


@dataclass(frozen=True)
class Protocol:
    """What is measured: nearest neighbours and, where there are any, linear classifiers."""

    temperature: float  # of the neighbours' votes
    probe: Probe | None = None  # how a linear classifier is trained by gradient steps
    penalties: tuple[float, ...] = ()  # from which regularised_probe chooses; empty: it is skipped
    # A protocol of the transfer suite, measured instead of all the others.
    transfer: ManyShot | FewShot | FineTuning | None = None


# A probe of that rate, batch size and epochs.
_sgd = partial(Probe, "sgd", momentum=0.9)
# Of the transfer suite, where no neighbours vote.
_transfer = partial(Protocol, 0.1, None, ())

# Nearest neighbours: 0.5 is the temperature of the program of Robinson et al. 2021 (HCL), which
# LMCL, CLLR and MMCL go back to; 0.1 is what programs around ReSSL use (MSVQ, lightly).
PROTOCOLS: dict[str, Protocol] = {
    # Rho et al. 2023: SGD with momentum 0.9, rate 1, cosine, 100 epochs, as the author of ReSSL
    # advises; batch, Nesterov, no decay, start and augmentation are those of ReSSL's program.
    "linear-sgd-v1": Protocol(
        0.1, _sgd(1.0, 256, 100, schedule="cosine", nesterov=True, deviation=0.01)
    ),
    # linear.py of HCL's program, and of MMCL's for CIFAR-100
    "linear-adam-v1": Protocol(0.5, Probe("adam", 1e-3, 512, 100, weight_decay=1e-6, policy="hcl")),
    # imagenet100_eval.yaml and models/ssl.py of MMCL's program; 100 epochs as in Shah et al. 2022
    # (the program: 126 on ImageNet-100, 90 on ImageNet)
    "linear-mmcl-imagenet-v1": Protocol(
        0.5, _sgd(1.6, 4096, 100, schedule="linear", deviation=0.0)
    ),
    # eval_moco_ins.py of CMC's program (Tian et al. 2020), with the rate that its notes advise for
    # ImageNet-100
    "linear-cmc-v1": Protocol(
        0.5,
        _sgd(
            10.0,
            256,
            60,
            schedule="steps",
            milestones=(30 / 60, 40 / 60, 50 / 60),
            factor=0.2,
            deviation=0.01,
            policy="cmc",
        ),
    ),
    # main_lincls.py of MoCo v3's program (Chen et al. 2021): rate 0.1 * batch / 256
    "linear-mocov3-v1": Protocol(0.1, _sgd(0.4, 1024, 90, schedule="epoch_cosine", deviation=0.01)),
    # The program of SimCLR (Chen et al. 2020), "fine-tuning a linear head" on ImageNet: rate
    # 0.1 * batch / 256
    "linear-simclr-v1": Protocol(
        0.1, _sgd(1.6, 4096, 90, schedule="cosine", nesterov=True, weight_decay=1e-6, deviation=0.0)
    ),
    # The accuracy that HCL's program prints during training; Table 6 of Shah et al. 2022
    "knn-200-v1": Protocol(temperature=0.5),
    # Additional, for small budgets: unlike the result of a probe with a fixed number of steps at
    # one rate, the solution does not depend on the norm of the features. Neighbours as in ReSSL.
    "linear-l2-v1": Protocol(temperature=0.1, penalties=(1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)),
    # The transfer suite, github.com/linusericsson/ssl-transfer (Ericsson et al. 2021): linear.py's
    # 45 costs; finetune.py's grid of 4 rates and 5 decays; few_shot.py's episodes, of 5 images in
    # the suite and of 20 in Table 1 of Shah et al. 2022.
    "many-shot-linear-v1": _transfer(ManyShot(tuple(10 ** (e / 4) for e in range(-20, 25)))),
    "fine-tuned-v1": _transfer(
        FineTuning(5000, rates=(1e-1, 1e-2, 1e-3, 1e-4), decays=(0.0, 1e-6, 1e-5, 1e-4, 1e-3))
    ),
    "few-shot-5way-5shot-v1": _transfer(FewShot(shots=5)),
    "few-shot-5way-20shot-v1": _transfer(FewShot(shots=20)),
    # Additional, for what one core can do in a minute or two.
    "many-shot-linear-small-v1": _transfer(ManyShot((1e-4, 1e-3, 1e-2, 1e-1, 1.0))),
    "fine-tuned-small-v1": _transfer(FineTuning(200, rates=(1e-1, 1e-2), decays=(0.0,))),
}
HELD_OUT = 10  # one training image in this many is held out to choose the penalty


@dataclass(frozen=True)
class ProbeResult:
    """A trained classifier and its accuracies on the test images.

    top1, top5: (epochs,) float64 in percent, after each epoch; with fewer than 5 classes ``top5``
    is over all of them.
    """

    classifier: nn.Linear
    top1: Tensor
    top5: Tensor


def evaluate(
    config: Config,
    encoder: nn.Module,
    run: Run,
    *,
    project: Callable[[Tensor], Tensor] | None = None,
    images: tuple[Images | ImageFiles, Images | ImageFiles] | None = None,
    kept: dict[str, Tensor] | None = None,
) -> dict[str, object]:
    """Score an encoder by the configuration's protocol, on its dataset or on ``evaluate_on``.

    Keys of the result, all in percent: ``knn_top1``; with a probe ``linear_top1`` and, for more
    than 5 classes, ``linear_top5``, both after the last epoch, and ``linear_best_top1``, of the
    epoch that is best on the test images, for the record only. With penalties ``l2_top1``, and the
    run records the penalty that was chosen, and the effective rank of an encoder's features of the
    test images. The probe may also come from a second protocol, ``config.beside``. The encoder is
    restored afterwards. For a protocol of the transfer suite the result is that of
    :func:`vision.transfer.transferred` instead.

    The training images are those of the labelled split, or ``config.images`` of them. Without
    ``probe_augmentation`` the probe sees them preprocessed like test images. With
    ``probe_batch_norm="train"`` batch norms use the statistics of each of the probe's batches;
    their running statistics, which are used on the test images, are updated.

    encoder: (B, 3, S, S) -> (B, H), on the device to compute on. project: (B, H) -> (B, R), applied
    to the features before they are scored (CLLR's L). images: training and test images of your own,
    instead of a dataset's; they are normalised as ``config.statistics`` says. kept: the features of
    both parts, for calls that differ in the protocol alone: the first call adds them, the others
    use them.
    """
    protocol, beside = (
        _protocol(name) for name in (config.protocol, config.beside or config.protocol)
    )
    if protocol.transfer is not None:
        return transferred(config, protocol.transfer, encoder, run, project=project)
    train, test, classes = _labelled(config, run, images)
    device = device_of(encoder)
    if isinstance(train, Images):
        train = train.to(device)  # once, not in every epoch
    mean, std = statistics(config, describe(config.evaluate_on or config.dataset))
    size = config.test_size or config.image_size

    def embedded(images: Images | ImageFiles) -> Tensor:
        features = embed(
            encoder, images, size, mean, std, precision=config.precision, workers=run.workers
        )
        return features if project is None else project(features)

    probe = protocol.probe or beside.probe
    if probe is not None and config.probe_epochs is not None:
        probe = dataclasses.replace(probe, epochs=config.probe_epochs)
    run.progress(0, 1 if probe is None else probe.epochs, config.protocol)

    def features_in(name: str, part: Images | ImageFiles) -> Tensor:
        if kept is None:
            return embedded(part)
        if name not in kept:
            kept[name] = embedded(part).cpu()  # a protocol that needs none has the GPU's memory
        return kept[name].to(device)

    features, labels = features_in("train", train), train.labels.to(device)
    test_features, test_labels = features_in("test", test), test.labels.to(device)
    if config.features == "encoder" and images is None:
        run.record(effective_rank=f"{effective_rank(test_features):.4g}")
    top1 = knn(
        features,
        labels,
        test_features,
        test_labels,
        classes=classes,
        temperature=protocol.temperature,
    )
    metrics: dict[str, object] = {"knn_top1": top1}
    if protocol.penalties:
        try:
            penalty, predicted = regularised_probe(
                features, labels, test_features, protocol.penalties
            )
        except NothingToHoldOut as error:
            notice(f"no l2_top1: {error}")
        else:
            run.record(l2_penalty=f"{penalty:g}")
            right = int((predicted == test_labels).sum())
            metrics["l2_top1"] = 100 * right / len(test_labels)
    if probe is None:
        return metrics

    policy, epochs = probe.policy, probe.epochs
    drifts = config.probe_batch_norm == "train"

    def batches(epoch: int, chosen: list[np.ndarray]) -> Iterator[Tensor]:
        encoder.train(drifts)
        for views in training_views(config, policy, train, epoch, chosen, device, run.workers):
            of_views = features_of(encoder, views, config.precision)
            yield of_views if project is None else project(of_views)

    def after_epoch(done: int) -> None:
        run.progress(done, epochs, config.protocol)
        if run.stopping:
            raise Interrupted

    with preserve_state(encoder):
        result = linear_probe(
            batches if drifts or config.probe_augmentation else features,
            labels,
            test_features,
            test_labels,
            classes=classes,
            probe=probe,
            seed=config.seed,
            test_again=(lambda: embedded(test)) if drifts else None,
            after_epoch=after_epoch,
        )
    metrics["linear_top1"] = float(result.top1[-1])
    if classes > 5:
        metrics["linear_top5"] = float(result.top5[-1])
    metrics["linear_best_top1"] = float(result.top1.max())
    return metrics


def _labelled(
    config: Config, run: Run, images: tuple[Images | ImageFiles, Images | ImageFiles] | None
) -> tuple[Images | ImageFiles, Images | ImageFiles, int]:
    """Training and test images, those given or a dataset's, and the number of classes."""
    name = config.evaluate_on or config.dataset
    train, test = images or (
        load_split(config, name, "train", run),
        load_split(config, name, "test", run),
    )
    classes = describe(name).classes
    if images is not None:
        classes = 1 + max(int(part.labels.max()) for part in images)
    elif name != config.dataset:
        record_data(run, name)
    if config.images is not None:
        train = choose(train, min(config.images, len(train)))
    return train, test, classes


def linear_probe(
    train: Tensor | Batches,
    labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    classes: int,
    probe: Probe,
    seed: int = 0,
    test_again: Callable[[], Tensor] | None = None,
    after_epoch: Callable[[int], None] | None = None,
) -> ProbeResult:
    """Train a linear classifier on features, and score it after each epoch.

    Initialisation and order are functions of the seed alone. There is no synchronisation with the
    device but at the start and at the end.

    Args:
        train: (n, H) features, or a function that yields them by batch, see ``Batches``.
        labels: (n,) int64.
        test: (m, H) features.
        test_labels: (m,) int64.
        classes: C.
        probe: how to train; that of a protocol is ``PROTOCOLS[name].probe``.
        seed: of initialisation and order.
        test_again: recomputes the test features after each epoch, for an encoder that changes.
        after_epoch: called with the number of epochs done.

    Raises:
        ValueError: an image without a label of the C, or a feature that is NaN or infinite.
        FloatingPointError: the classifier's weights are no longer finite.
    """
    for values in (labels, test_labels):
        check_labels(values, classes)
    if isinstance(train, Tensor):
        logistic.check_finite(train, "training")
    logistic.check_finite(test, "test")
    classifier = starting_classifier(test.shape[1], classes, probe.deviation, seed).to(test.device)
    optimiser = _optimiser(probe, classifier)
    per_epoch = math.ceil(len(labels) / probe.batch_size)
    step = 0
    hits = []
    for epoch in range(probe.epochs):
        order = torch.from_numpy(permutation(len(labels), seed, epoch))
        index = order.to(labels.device).split(probe.batch_size)
        if isinstance(train, Tensor):
            features: Iterable[Tensor] = (train.index_select(0, batch) for batch in index)
        else:
            features = train(epoch, [batch.numpy() for batch in order.split(probe.batch_size)])
        for batch, inputs in zip(index, features, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(probe, step, per_epoch)
            loss = cross_entropy(classifier(inputs), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
        if test_again is not None:
            test = test_again()
        with torch.no_grad():
            best = classifier(test).topk(min(5, classes)).indices == test_labels[:, None]
            hits.append(torch.stack([best[:, 0].sum(), best.any(1).sum()]))
        if after_epoch is not None:
            after_epoch(epoch + 1)
    if not all(torch.isfinite(parameter).all() for parameter in classifier.parameters()):
        raise FloatingPointError(f"the probe diverged at a learning rate of {probe.learning_rate}")
    top1, top5 = 100 * torch.stack(hits, dim=1).cpu().double() / len(test_labels)
    return ProbeResult(classifier, top1, top5)


def regularised_probe(
    train: Tensor, labels: Tensor, test: Tensor, penalties: Sequence[float]
) -> tuple[float, Tensor]:
    """The chosen penalty, and the class (m,) int64 of each test feature (m, H).

    Minimises the mean cross entropy plus penalty times |w|^2 / 2 over the weights w of a linear
    classifier on standardised features (mean 0, standard deviation 1 over the training images;
    constant features are 0). The penalty is the one with the best accuracy on one training image in
    ten, the same ones in every run, after training on the others; ties go to the stronger penalty.
    The classifier is then trained on all images. scikit-learn's C is 1 / (penalty * images).

    Where this would hold out every image of a class, a tenth of each class is held out instead: at
    least one image, but none of a class with a single one, which a notice names.
    """
    check_labels(labels)
    train, test = standardised(train, test)
    held_out = _held_out(labels)
    inside = torch.ones(len(train), 1, dtype=torch.bool, device=train.device)
    everything = inside.clone()
    inside[held_out] = False

    penalties = sorted(penalties, reverse=True)
    costs = [1 / (penalty * int(inside.sum())) for penalty in penalties]
    solution = logistic.fit(train, labels, inside, costs, tolerance=SOLVED)
    right = solution.predict(train[held_out])[0] == labels[held_out]
    best = int(right.sum(1).cpu().numpy().argmax())  # ties go to the first, strongest penalty
    cost = 1 / (penalties[best] * len(train))
    solution = logistic.fit(train, labels, everything, [cost], tolerance=SOLVED)
    return penalties[best], solution.predict(test)[0, 0]


class NothingToHoldOut(ValueError):
    """No image can be held out to choose a penalty; the message names the classes."""


def _held_out(labels: Tensor) -> Tensor:
    """Positions of the images that choose the penalty, on the labels' device."""
    order = torch.from_numpy(permutation(len(labels), 0, 0)).to(labels.device)
    held_out = order[: max(1, len(labels) // HELD_OUT)]
    counts = labels.bincount()
    present = counts.nonzero().flatten().tolist()
    if len(present) < 2:
        raise NothingToHoldOut(f"all {len(labels)} training images are of one class, {present}")
    left = counts - labels[held_out].bincount(minlength=len(counts))
    if (left > 0).sum() == len(present):
        return held_out
    parts = []
    for label in present:
        of_class = order[labels[order] == label]
        parts.append(of_class[: min(max(1, len(of_class) // HELD_OUT), len(of_class) - 1)])
    single = [label for label in present if counts[label] == 1]
    if len(single) == len(present):
        raise NothingToHoldOut(f"each of {len(present)} classes has a single training image")
    if single:
        named = ", ".join(map(str, single[:10])) + (", ..." if len(single) > 10 else "")
        notice(f"classes with a single training image do not choose the penalty: {named}")
    return torch.cat(parts)


def learning_rate(probe: Probe, step: int, per_epoch: int) -> float:
    """The rate of a step, counted from 0, where an epoch has ``per_epoch`` steps."""
    done = step / (probe.epochs * per_epoch)
    epochs_done = step // per_epoch / probe.epochs
    match probe.schedule:
        case "constant":
            return probe.learning_rate
        case "cosine":
            return probe.learning_rate * (1 + math.cos(math.pi * done)) / 2
        case "epoch_cosine":
            return probe.learning_rate * (1 + math.cos(math.pi * epochs_done)) / 2
        case "linear":
            return probe.learning_rate * (1 - done)
        case "steps":
            passed = sum(epochs_done >= milestone for milestone in probe.milestones)
            return float(probe.learning_rate * probe.factor**passed)


def knn(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    classes: int,
    temperature: float,
    neighbours: int = 200,
) -> float:
    """Accuracy in percent of :func:`knn_predictions` for labels (m,) of the test features.

    Raises:
        ValueError: as :func:`knn_predictions`, also for the test labels.
    """
    check_labels(test_labels, classes)
    predicted = knn_predictions(
        train, labels, test, classes=classes, temperature=temperature, neighbours=neighbours
    )
    return 100 * int((predicted == test_labels).sum()) / len(test_labels)


def knn_predictions(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    classes: int,
    temperature: float,
    neighbours: int = 200,
) -> Tensor:
    """The class (m,) int64 of each test feature (m, H), by a vote of its nearest neighbours.

    A neighbour's vote is ``exp(cos / temperature)``; if there are fewer than ``neighbours``
    training features, all of them vote.

    Source: Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance
    Discrimination", Section 3.4.

    Raises:
        ValueError: a training image without a label of the C, a feature that is NaN or infinite, or
            a temperature or number of neighbours that is not positive.
    """
    if temperature <= 0 or neighbours < 1:
        raise ValueError(
            f"temperature and neighbours are positive; got {temperature} and {neighbours}"
        )
    check_labels(labels, classes)
    logistic.check_finite(train, "training")
    logistic.check_finite(test, "test")
    train, test = unit_rows(train), unit_rows(test)
    predicted = []
    for block in test.split(max(1, ENTRIES // len(train))):
        cosines, index = (block @ train.T).topk(min(neighbours, len(train)))
        # Relative to the nearest neighbour, so that no temperature overflows.
        votes = ((cosines - cosines[:, :1]) / temperature).exp()
        scores = votes.new_zeros(len(block), classes).scatter_add_(1, labels[index], votes)
        predicted.append(scores.argmax(1))
    return torch.cat(predicted)


def kmeans_accuracy(
    points: np.ndarray, labels: np.ndarray, clusters: int, seed: int, restarts: int
) -> float:
    """Accuracy in percent of K-means under the best one-to-one assignment of clusters to classes.

    Args:
        points: (n, H).
        labels: (n,) classes from 0 to ``clusters`` - 1.
        clusters: number of clusters and of classes.
        seed: of the initialisations.
        restarts: number of initialisations; the clustering of lowest inertia is scored.
    """
    # Every run imports this module and few cluster; these take a third of the import of all names.
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    with threadpool_limits(1):  # sums, and with them the result, depend on the number of threads
        assigned = KMeans(clusters, n_init=restarts, random_state=seed).fit_predict(points)
    together = np.zeros((clusters, clusters), dtype=np.int64)
    np.add.at(together, (assigned, labels), 1)
    return 100 * float(together[linear_sum_assignment(together, maximize=True)].sum()) / len(points)


def _optimiser(probe: Probe, classifier: nn.Linear) -> torch.optim.Optimizer:
    usual: dict[str, Any] = {"lr": probe.learning_rate, "weight_decay": probe.weight_decay}
    if probe.optimiser == "adam":
        return torch.optim.Adam(classifier.parameters(), **usual)
    momentum, nesterov = probe.momentum, probe.nesterov
    return torch.optim.SGD(classifier.parameters(), momentum=momentum, nesterov=nesterov, **usual)


def _protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}; got {name!r}")
    return PROTOCOLS[name]
