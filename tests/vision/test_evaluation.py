import copy
import dataclasses
import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shared.experiment.data import MissingData
from shared.experiment.run import Run
from shared.spectrum import effective_rank
from vision import evaluation as module
from vision import features, transfer
from vision.augmentation import POLICIES, augment, parameters
from vision.config import Config
from vision.data import central_crops, choose, load, permutation, stream
from vision.datasets import describe
from vision.encoder import make_encoder
from vision.evaluation import (
    PROTOCOLS,
    Probe,
    ProbeResult,
    _held_out,
    evaluate,
    kmeans_accuracy,
    knn,
    knn_predictions,
    linear_probe,
    regularised_probe,
)
from vision.features import as_test_images, embed
from vision.images import ImageFiles, Images

SGD = Probe("sgd", 1.0, 256, 100, momentum=0.9, nesterov=True, schedule="cosine", deviation=0.01)
# 200 training and 500 test digits, features without augmentation
DIGITS = Config(
    dataset="digits",
    images=200,
    image_size=8,
    precision="float32",
    probe_augmentation=False,
    probe_epochs=3,
    seed=3,
)
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def small_encoder() -> nn.Module:
    """Convolution, batch norm, 2 x 2 averages: (B, 3, S, S) -> (B, 32)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def scored(
    folder: Path, config: Config, encoder: nn.Module | None = None, **options: object
) -> dict[str, object]:
    with Run(folder, config, data_root=folder / "data") as run:
        return evaluate(config, encoder or small_encoder(), run, **options)


def clusters(count: int, classes: int, distance: float, width: int = 16) -> tuple[Tensor, Tensor]:
    """Gaussian classes around random centres, in the order 0, 1, ..., 0, 1, ..."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % classes
    centres = distance * torch.randn(classes, width, generator=generator)
    return centres[labels] + torch.randn(count, width, generator=generator), labels


def random_states() -> list[object]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


# nearest neighbours


def reference_knn(
    train: Tensor, labels: Tensor, test: Tensor, classes: int, temperature: float, neighbours: int
) -> list[int]:
    """By scikit-learn, whose cosine distance is one minus the cosine."""
    model = KNeighborsClassifier(
        min(neighbours, len(train)),
        weights=lambda distances: np.exp((1 - distances) / temperature),
        algorithm="brute",
        metric="cosine",
    )
    found: list[int] = model.fit(train.double(), labels).predict(test.double()).tolist()
    return found


@pytest.mark.parametrize(("neighbours", "temperature"), [(1, 0.5), (7, 0.07), (200, 0.5)])
def test_knn_is_scikit_learns(neighbours: int, temperature: float) -> None:
    train, labels = clusters(90, 4, 0.5)
    test, _ = clusters(130, 4, 0.5)
    test = test[90:]
    numbers = {"classes": 4, "temperature": temperature, "neighbours": neighbours}
    found = knn_predictions(train, labels, test, **numbers)
    assert found.tolist() == reference_knn(train, labels, test, **numbers)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_an_encoder_of_another_precision_gets_images_in_it(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    encoder = make_encoder("resnet8", "small").eval()
    images = Images(torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8), torch.zeros(4).long())
    numbers = {"size": 16, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    expected = embed(encoder, images, **numbers)
    found = embed(encoder.to(precision), images, **numbers)
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.05 * expected.norm()


# linear probes


def reference_probe(
    train: Callable[[int, np.ndarray], Tensor],
    labels: Tensor,
    test: Callable[[], Tensor],
    test_labels: Tensor,
    probe: Probe,
    seed: int,
) -> tuple[nn.Linear, list[float]]:
    """The protocol as its words say it, with torch's own parts.

    train: features of some samples in an epoch. test: features after an epoch.
    """
    width = test().shape[1]
    layer = nn.Linear(width, int(labels.max()) + 1)
    generator = torch.Generator().manual_seed(seed)
    if probe.deviation is None:
        bound = width**-0.5
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    else:
        nn.init.normal_(layer.weight, 0, probe.deviation, generator=generator)
        nn.init.zeros_(layer.bias)
    if probe.optimiser == "sgd":
        optimiser = torch.optim.SGD(
            layer.parameters(),
            lr=probe.learning_rate,
            momentum=probe.momentum,
            nesterov=probe.nesterov,
            weight_decay=probe.weight_decay,
        )
    else:
        optimiser = torch.optim.Adam(
            layer.parameters(), lr=probe.learning_rate, weight_decay=probe.weight_decay
        )
    per_epoch = math.ceil(len(labels) / probe.batch_size)
    total = probe.epochs * per_epoch
    shapes: dict[str, Callable[[int], float]] = {
        "constant": lambda step: 1.0,
        "cosine": lambda step: 0.5 * (1 + math.cos(math.pi * step / total)),
        "epoch_cosine": lambda s: 0.5 * (1 + math.cos(math.pi * (s // per_epoch) / probe.epochs)),
        "linear": lambda step: 1 - step / total,
        "steps": lambda step: (
            probe.factor ** sum(step >= share * total for share in probe.milestones)
        ),
    }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, shapes[probe.schedule])
    accuracies = []
    for epoch in range(probe.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(labels))
        for start in range(0, len(labels), probe.batch_size):
            batch = order[start : start + probe.batch_size]
            optimiser.zero_grad()
            cross_entropy(layer(train(epoch, batch)), labels[batch]).backward()
            optimiser.step()
            schedule.step()
        accuracies.append(100 * float((layer(test()).argmax(1) == test_labels).double().mean()))
    return layer, accuracies


@pytest.mark.parametrize(
    "probe",
    [
        dataclasses.replace(SGD, batch_size=64, epochs=4),
        dataclasses.replace(SGD, batch_size=64, epochs=4, schedule="linear", nesterov=False),
        dataclasses.replace(SGD, batch_size=64, epochs=4, schedule="epoch_cosine", deviation=0.0),
        dataclasses.replace(
            *(SGD,), batch_size=64, epochs=4, schedule="steps", milestones=(0.5, 0.75), factor=0.2
        ),
        Probe("adam", 1e-2, batch_size=100, epochs=4, weight_decay=0.1),
        Probe("sgd", 0.1, batch_size=1000, epochs=4, weight_decay=0.01),
    ],
    ids=lambda probe: f"{probe.optimiser}-{probe.schedule}-{probe.batch_size}",
)
def test_probe_is_the_plain_loop(probe: Probe) -> None:
    points, labels = clusters(330, 7, 0.6)
    train, kept, test, asked = points[:230], labels[:230], points[230:], labels[230:]
    layer, accuracies = reference_probe(
        lambda _, batch: train[batch], kept, lambda: test, asked, probe, seed=5
    )
    done: list[int] = []
    more = {"classes": 7, "probe": probe, "seed": 5, "after_epoch": done.append}
    result = linear_probe(train, kept, test, asked, **more)
    assert done == list(range(1, probe.epochs + 1))
    assert result.top1.tolist() == pytest.approx(accuracies, abs=1e-12)
    torch.testing.assert_close(result.classifier.weight, layer.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.classifier.bias, layer.bias, rtol=1e-5, atol=1e-6)
    assert 20 < accuracies[-1] < 95


# the regularised probe


def clouds(rows: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Overlapping classes in columns of very different scale, one of them constant."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(0, 4, rows))
    centres = torch.from_numpy(np.random.default_rng(7).normal(size=(4, 12)))
    points = (centres[labels] + torch.from_numpy(rng.normal(size=(rows, 12)))) * torch.logspace(
        -2, 3, 12, dtype=torch.float64
    )
    points[:, 3] = 5.0
    return (points + shift).float(), labels


def by_scikit_learn(
    train: Tensor, labels: Tensor, test: Tensor, penalties: tuple[float, ...]
) -> tuple[float, np.ndarray]:
    """The choice and the predictions, from scikit-learn's parts."""
    held_out = module.permutation(len(train), 0, 0)[: len(train) // 10]
    others = np.setdiff1d(np.arange(len(train)), held_out)
    scaler = StandardScaler().fit(train.double())
    x, y, z = scaler.transform(train.double()), labels.numpy(), scaler.transform(test.double())

    def fitted(penalty: float, rows: np.ndarray) -> LogisticRegression:
        model = LogisticRegression(C=1 / (penalty * len(rows)), tol=1e-10, max_iter=10_000)
        return model.fit(x[rows], y[rows])

    right = {
        penalty: int((fitted(penalty, others).predict(x[held_out]) == y[held_out]).sum())
        for penalty in penalties
    }
    chosen = max(right, key=lambda penalty: (right[penalty], penalty))
    return chosen, fitted(chosen, np.arange(len(x))).predict(z)


def test_the_regularised_probe_is_scikit_learns() -> None:
    (train, labels), (test, _) = clouds(400, 0), clouds(300, 10)
    penalties = (1e-4, 1e-2, 1.0, 1e2)
    penalty, predicted = regularised_probe(train, labels, test, penalties)
    chosen, expected = by_scikit_learn(train, labels, test, penalties)
    assert penalty == chosen
    assert 1e-4 < penalty < 1e2
    assert (predicted.numpy() == expected).mean() >= 0.99  # both stop short of the minimum


def test_a_class_is_split_only_where_the_draw_takes_all_of_it() -> None:
    order = torch.from_numpy(permutation(20, 0, 0))
    labels = torch.zeros(20, dtype=torch.int64)
    labels[order[1:3]] = 1
    assert torch.equal(_held_out(labels), order[:2])
    labels[:], labels[order[:2]] = 0, 1
    assert labels[_held_out(labels)].tolist() == [0, 1]
    labels[order[1]] = 0  # what is left of the class is a single image
    with pytest.warns(RuntimeWarning, match="do not choose the penalty: 1"):
        assert torch.equal(_held_out(labels), order[1:2])


# features


def test_stl10_at_64_pixels_is_resized_to_70_and_cropped() -> None:
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((96, 96))
    pixels = torch.from_numpy(np.array(smooth)).permute(2, 0, 1)[None]
    found = as_test_images(pixels, 64, *PLAIN)
    pillow = np.array(smooth.resize((70, 70), Image.Resampling.BILINEAR))[3:67, 3:67]
    assert found.shape == (1, 3, 64, 64)
    # Pillow rounds to whole pixel values after each of its two passes.
    expected = torch.from_numpy(pillow).permute(2, 0, 1)[None].float() / 255
    torch.testing.assert_close(found, expected, rtol=0, atol=1.5 / 255)


def test_features_are_standardised_as_by_scikit_learn() -> None:
    (train, _), (test, _) = clouds(40, 0), clouds(30, 10)
    train[:, 3] = test[:, 3] = 5.0
    scaler = StandardScaler().fit(train.double())
    found = features.standardised(train, test)
    for part, given in zip(found, (train, test), strict=True):
        np.testing.assert_allclose(part, scaler.transform(given.double()), rtol=1e-4, atol=1e-5)


# the whole evaluation


def digits_by_hand(config: Config) -> tuple[Images, Images]:
    train = choose(load("digits", Path(), "train"), config.images)
    return train, load("digits", Path(), "test")


@pytest.mark.parametrize(
    ("protocol", "temperature"),
    [("linear-sgd-v1", 0.1), ("linear-adam-v1", 0.5), ("knn-200-v1", 0.5), ("linear-l2-v1", 0.1)],
)
def test_evaluation_on_kept_features_by_hand(
    tmp_path: Path, protocol: str, temperature: float
) -> None:
    found = scored(tmp_path, dataclasses.replace(DIGITS, protocol=protocol))
    train, test = digits_by_hand(DIGITS)
    numbers = 8, describe("digits").mean, describe("digits").std
    x, z = (embed(small_encoder(), part, *numbers) for part in (train, test))
    votes = reference_knn(x, train.labels, z, 10, temperature, 200)
    assert found.pop("knn_top1") == 100 * np.mean(np.array(votes) == test.labels.numpy())
    facts = {"effective_rank": f"{effective_rank(z):.4g}"}
    if protocol == "linear-l2-v1":
        penalties = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
        chosen, predicted = by_scikit_learn(x, train.labels, z, penalties)
        facts["l2_penalty"] = f"{chosen:g}"
        right = 100 * (predicted == test.labels.numpy()).mean()
        assert found == {"l2_top1": pytest.approx(right, abs=1)}
    elif protocol == "knn-200-v1":
        assert not found
    else:
        probe = dataclasses.replace(PROTOCOLS[protocol].probe, epochs=3)
        layer, accuracies = reference_probe(
            lambda _, batch: x[batch], train.labels, lambda: z, test.labels, probe, seed=3
        )
        best = (layer(z).topk(5).indices == test.labels[:, None]).any(1)
        assert found == {
            "linear_top1": pytest.approx(accuracies[-1]),
            "linear_best_top1": pytest.approx(max(accuracies)),
            "linear_top5": pytest.approx(100 * float(best.double().mean())),
        }
    assert json.loads((tmp_path / "environment.json").read_text())["facts"] == facts


def test_a_probe_of_another_protocol_is_scored_beside(tmp_path: Path) -> None:
    l2 = dataclasses.replace(DIGITS, protocol="linear-l2-v1")
    found, sgd = scored(tmp_path / "alone", l2), scored(tmp_path / "sgd", DIGITS)
    both = scored(tmp_path / "both", dataclasses.replace(l2, beside="linear-sgd-v1"))
    assert both == {**sgd, **found}
    # Where the protocol has a probe of its own, no other is run.
    assert scored(tmp_path / "own", dataclasses.replace(DIGITS, beside="linear-adam-v1")) == sgd


def test_the_last_epoch_counts_and_the_best_is_only_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = torch.tensor([[50.0, 70.0, 60.0], [90.0, 95.0, 92.0]], dtype=torch.float64)
    result = ProbeResult(nn.Linear(1, 1), *curves)
    monkeypatch.setattr(module, "linear_probe", lambda *arguments, **options: result)
    found = scored(tmp_path, DIGITS)
    del found["knn_top1"]
    assert found == {"linear_top1": 60.0, "linear_best_top1": 70.0, "linear_top5": 92.0}


def digits_below(classes: int) -> Images:
    digits = load("digits", Path(), "test")
    return digits.subset(torch.nonzero(digits.labels < classes)[:, 0])


def test_five_classes_have_no_top5_and_one_has_no_penalty(tmp_path: Path) -> None:
    for classes in (5, 6):
        found = scored(tmp_path / str(classes), DIGITS, images=(digits_below(classes),) * 2)
        top5 = {"linear_top5"} if classes > 5 else set()
        assert set(found) == {"knn_top1", "linear_top1", "linear_best_top1"} | top5
    config = dataclasses.replace(DIGITS, protocol="linear-l2-v1")
    with pytest.warns(RuntimeWarning, match="no l2_top1: .*one class"):
        found = scored(tmp_path / "one", config, images=(digits_below(1),) * 2)
    assert found == {"knn_top1": 100.0}


@pytest.mark.parametrize(("batch_norm", "test_size"), [("eval", None), ("train", 16)])
def test_augmented_probe_by_hand(tmp_path: Path, batch_norm: str, test_size: int | None) -> None:
    config = dataclasses.replace(
        DIGITS, probe_augmentation=True, probe_batch_norm=batch_norm, test_size=test_size
    )
    seen: list[Tensor] = []
    encoder, plain = small_encoder(), small_encoder()
    norm = encoder[1]
    norm.register_forward_hook(lambda *_: seen.append(norm.running_mean.clone()))
    before = norm.running_mean.clone()
    found = scored(tmp_path, config, encoder)

    train, test = digits_by_hand(config)
    digits = describe("digits")
    colours = {"mean": digits.mean, "std": digits.std}
    probe = dataclasses.replace(PROTOCOLS["linear-sgd-v1"].probe, epochs=3)

    @torch.no_grad()
    def of_views(epoch: int, samples: np.ndarray) -> Tensor:
        drawn = {"seed": 3, "epoch": epoch, "samples": samples, "view": 0}
        views = augment(train.pixels[samples], POLICIES[probe.policy], 8, **drawn, **colours)
        return plain.train(batch_norm == "train")(views)

    @torch.no_grad()
    def of_tests() -> Tensor:
        return plain.eval()(as_test_images(test.pixels, test_size or 8, **colours))

    _, accuracies = reference_probe(of_views, train.labels, of_tests, test.labels, probe, seed=3)
    assert found["linear_top1"] == pytest.approx(accuracies[-1])
    torch.testing.assert_close(seen[-1], plain[1].running_mean)
    assert torch.equal(seen[-1], before) is (batch_norm == "eval")


@pytest.mark.parametrize(("batch_norm", "training"), [("eval", True), ("train", False)])
def test_encoder_and_generators_are_left_as_they_were(
    tmp_path: Path, batch_norm: str, training: bool
) -> None:
    config = dataclasses.replace(DIGITS, probe_augmentation=True, probe_batch_norm=batch_norm)
    encoder = small_encoder().train(training)
    before = copy.deepcopy(encoder.state_dict())
    with Run(tmp_path, config) as run:
        states = random_states()
        first = evaluate(config, encoder, run)
        assert random_states() == states
        torch.manual_seed(99)  # what ran before does not matter
        assert evaluate(config, encoder, run) == first
    assert encoder.training is training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_transfer_uses_the_other_dataset(tmp_path: Path) -> None:
    config = dataclasses.replace(DIGITS, dataset="CIFAR10")
    with pytest.raises(MissingData, match="CIFAR10"):
        scored(tmp_path / "own", config)
    transfer = dataclasses.replace(config, evaluate_on="digits")
    assert scored(tmp_path / "other", transfer) == scored(tmp_path / "digits", DIGITS)
    recorded = [
        json.loads((tmp_path / name / "environment.json").read_text())["data"]
        for name in ("other", "digits")
    ]
    assert set(recorded[0]) == {"digits"}
    assert recorded[1] == {}  # the training run has recorded its own


def test_a_projection_is_scored_in_place_of_the_features(tmp_path: Path) -> None:
    full = scored(tmp_path / "full", DIGITS)
    narrow = scored(tmp_path / "narrow", DIGITS, project=lambda features: features[:, :2])
    assert narrow["knn_top1"] < full["knn_top1"]
    assert narrow["linear_top1"] < full["linear_top1"]
    augmented = dataclasses.replace(DIGITS, probe_augmentation=True)
    found = scored(tmp_path / "augmented", augmented, project=lambda features: features[:, :2])
    assert found["knn_top1"] == narrow["knn_top1"]
    assert found["linear_top1"] != narrow["linear_top1"]


# images on disk


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    """Forty digits as files of 24 x 32 pixels."""
    images = load("digits", Path(), "train")
    paths = []
    for number in range(40):
        array = images.pixels[number].permute(1, 2, 0).numpy()
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(array).resize((32, 24)).save(paths[-1])
    return ImageFiles(tuple(paths), images.labels[:40])


def test_streamed_test_images_are_cropped_at_the_centre(files: ImageFiles) -> None:
    expected = []
    for file in files.files:
        image = Image.open(file).resize((round(32 * 16 / 24), 16), Image.Resampling.BILINEAR)
        left = round((image.width - 14) / 2)
        expected.append(np.array(image)[1:15, left : left + 14])
    pixels = torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2)
    features = embed(small_encoder(), files, 14, *PLAIN)
    by_hand = embed(small_encoder(), Images(pixels, files.labels), 14, *PLAIN)
    torch.testing.assert_close(features, by_hand)


@pytest.mark.parametrize("augmentation", [True, False])
def test_streamed_training_images_are_cropped_once(files: ImageFiles, augmentation: bool) -> None:
    config = dataclasses.replace(DIGITS, image_size=12, probe_augmentation=augmentation)
    chosen, policy = [np.array([3, 30]), np.array([7])], POLICIES["crop_flip"]
    mean, std = (
        torch.tensor(each)[:, None, None]
        for each in features.statistics(config, describe("digits"))
    )
    crops = (crop for (crop,) in stream(files, chosen, [policy], 12, config.seed, 2))
    if not augmentation:
        crops = (torch.cat([*central_crops(files.subset(part), 12)]) for part in chosen)
    found = features.training_views(config, "crop_flip", files, 2, chosen, torch.device("cpu"), 0)
    for samples, crop, view in zip(map(torch.tensor, chosen), crops, found, strict=True):
        drawn = parameters(policy, config.seed, 2, samples.numpy(), 0, 24, 32)
        flips = torch.from_numpy(drawn.flip & augmentation)[:, None, None, None]
        expected = (torch.where(flips, crop.flip(3), crop) / 255 - mean) / std
        torch.testing.assert_close(view, expected)


@pytest.mark.parametrize("augmentation", [True, False])
def test_streamed_images_whatever_the_workers(
    tmp_path: Path, files: ImageFiles, augmentation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "load", lambda *arguments, **options: files)
    config = dataclasses.replace(
        *(DIGITS,),
        images=None,
        image_size=12,
        probe_augmentation=augmentation,
        probe_batch_norm="train",
        probe_epochs=2,
    )
    found = []
    for workers in (0, 2):
        with Run(tmp_path / f"run-{workers}", config, workers=workers) as run:
            found.append(evaluate(config, small_encoder(), run))
    assert found[0] == found[1]
    assert 0 <= found[0]["linear_top1"] <= 100


# K-means


def test_kmeans_takes_the_best_assignment() -> None:
    from sklearn.cluster import KMeans

    points, labels = (part.numpy() for part in clusters(150, 5, 0.3))
    accuracies = set()
    for seed in (1, 2, 3):
        found = KMeans(5, n_init=2, random_state=seed).fit_predict(points)
        orders = itertools.permutations(range(5))
        best = max(np.mean(np.array(order)[found] == labels) for order in orders)
        accuracy = kmeans_accuracy(points, labels, 5, seed=seed, restarts=2)
        assert accuracy == pytest.approx(100 * best)
        accuracies.add(accuracy)
    assert len(accuracies) == 3


# real images, accelerators


@pytest.mark.cuda
def test_cuda_agrees_with_the_cpu(tmp_path: Path) -> None:
    config = dataclasses.replace(DIGITS, probe_augmentation=True)
    expected = scored(tmp_path / "cpu", config)
    found = scored(tmp_path / "cuda", config, small_encoder().to("cuda"))
    assert found == pytest.approx(expected, abs=1.0)


# what cannot be scored

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
NAN = ROWS.clone()
NAN[3, 2] = math.nan
KNOWN, UNKNOWN = torch.tensor([0, 1, 0, 1, 0, 0]), torch.tensor([0, 1, 0, 1, -1, -1])


def by_neighbours(
    *labels: Tensor, train: Tensor = ROWS, test: Tensor = ROWS, **numbers: float
) -> float:
    known, asked = labels or (KNOWN, KNOWN)
    return knn(train, known, test, asked, **{"classes": 2, "temperature": 0.5, **numbers})


def by_a_probe(
    *labels: Tensor, train: Tensor = ROWS, test: Tensor = ROWS, **changes: float
) -> ProbeResult:
    known, asked = labels or (KNOWN, KNOWN)
    probe = dataclasses.replace(SGD, **{"batch_size": 2, "epochs": 1, **changes})
    return linear_probe(train, known, test, asked, classes=2, probe=probe)


def by_regression(labels: Tensor) -> tuple[float, Tensor]:
    return regularised_probe(ROWS, labels, ROWS, (1.0,))


def broken() -> nn.Module:
    layer = nn.Conv2d(3, 1, 3)
    layer.weight.data[0, 0, 0, 0] = math.nan
    return layer


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: by_neighbours(UNKNOWN, KNOWN), "2 of 6 images"),
        (lambda: by_neighbours(KNOWN, UNKNOWN), "2 of 6 images"),
        (lambda: by_neighbours(KNOWN, 0 * KNOWN, classes=1), "label 1"),
        (lambda: by_neighbours(0 * KNOWN, KNOWN, classes=1), "label 1"),
        (lambda: by_neighbours(temperature=0.0), "temperature and neighbours"),
        (lambda: by_neighbours(neighbours=0), "temperature and neighbours"),
        (lambda: by_neighbours(train=NAN), "training.* row 3"),
        (lambda: by_neighbours(test=NAN), "test.* row 3"),
        (lambda: by_a_probe(UNKNOWN, KNOWN), "2 of 6 images"),
        (lambda: by_a_probe(KNOWN, UNKNOWN), "2 of 6 images"),
        (lambda: by_a_probe(learning_rate=1e38, weight_decay=1.0), "diverged"),
        (lambda: by_a_probe(train=NAN), "training.* row 3"),
        (lambda: by_a_probe(test=NAN), "test.* row 3"),
        (lambda: by_regression(UNKNOWN), "2 of 6 images"),
        (lambda: by_regression(KNOWN * 0 + 2), r"one class, \[2\]"),
        (lambda: by_regression(torch.arange(6)), "6 classes"),
        (lambda: features.standardised(NAN, ROWS), "training.* row 3"),
        (lambda: features.standardised(ROWS, NAN), "test.* row 3"),
        (lambda: transfer.few_shot(NAN, KNOWN, features.FewShot(2, 2, 2, 1)), "row 3"),
        (lambda: scored(Path(), dataclasses.replace(DIGITS, protocol="svm")), "svm"),
        (lambda: scored(Path(), DIGITS, nn.Sequential(broken(), nn.Flatten())), "NaN or infinite"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    call: Callable[[], object], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FloatingPointError), match=word):
        call()
