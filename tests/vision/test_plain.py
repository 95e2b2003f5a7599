"""Whole runs beside plain programs, which share augmentations and backbones with them alone."""

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import vision
from shared import Objective, Projection, alignment, info_nce, term
from shared.experiment.run import Run
from tests.stages.training import losses, spied
from vision import evaluation
from vision import train as module
from vision.augmentation import POLICIES, augment
from vision.config import Config
from vision.data import choose, load
from vision.encoder import LabEncoder
from vision.images import Images
from vision.methods import networks_of
from vision.methods.swav import codes, swapped_prediction
from vision.train import batches

MEAN, STD = (0.2, 0.5, 0.7), (0.2, 0.3, 0.4)
COUNT, BATCH, STEPS = 13, 4, 6  # two epochs of three steps, and an image left over in each


def tiny() -> nn.Module:
    """Without biases before the norm: Adam would make steps of the rounding in their gradients."""
    convolution = nn.Conv2d(3, 5, 3, bias=False)
    layers = nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(convolution, *layers)


NCE = Objective(term(info_nce, temperature=0.25))
CONFIG = Config(
    dataset="own",
    backbone=tiny,
    stem="imagenet",
    image_size=8,
    head_hidden=7,
    head_output=6,
    predictor_hidden=4,
    objective=NCE,
    batch_size=BATCH,
    epochs=2,
    learning_rate=0.5,
    weight_decay=0.1,
    warmup_epochs=1.0,
    precision="float32",
    seed=1,
)
LOW_RANK = Objective(NCE.loss, projection=Projection(0.3, {"norm": "nuclear", "alpha": 0.1}))
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"objective": LOW_RANK},
    "simclr of second views": {"method": "simclr", "pairs": "both_views"},
    "moco_v2": {"queue": 6, "teacher_momentum": 0.7},
    "moco_v3": {
        "objective": LOW_RANK,
        "head_output_norm": True,
        "head_output_scale": False,
        "teacher_momentum": 0.7,
        "loss_factor": 0.5,
        "optimiser": "adam",
        "learning_rate": 0.01,
    },
    "byol": {
        "objective": Objective(term(alignment)),
        "symmetric": True,
        "teacher_momentum": 0.7,
        "teacher_schedule": "cosine",
    },
    "cmc": {
        "backbone": "resnet8",
        "stem": "small",
        "statistics": "none",
        "head_layers": 1,
        "queue": 7,
        "memory_momentum": 0.3,
        "learning_rate": 0.05,
    },
    "swav": {
        "objective": Objective(term(swapped_prediction), projection=LOW_RANK.projection),
        "prototypes": 5,
        "prototypes_still": 2 / 3,
        "queue": 6,
        "queue_from": 1 / 3,
        "small_crops": 1,
        "small_size": 7,
    },
}
METHODS["swav of two crops"] = {**METHODS["swav"], "method": "swav", "small_crops": 0, "queue": 0}


def images() -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (COUNT, 3, 10, 10), generator=generator).to(torch.uint8)
    return Images(pixels, torch.arange(COUNT) % 2)


def plain_head(hidden: int, inputs: int = 5, normed: bool = False) -> nn.Sequential:
    first, last = nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, 6, bias=not normed)
    norm = [nn.BatchNorm1d(6, affine=False)] if normed else []
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), last, *norm)


class Plain(nn.Module):
    """What a method trains, drawn in the order of its networks, and how its step is made."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        lab = config.method == "cmc"
        self.encoder = LabEncoder("resnet8", "small") if lab else tiny()
        normed = config.head_output_norm
        self.head: nn.Module = nn.Linear(64, 6) if lab else plain_head(7, normed=normed)
        low_rank = config.objective.projection is not None
        self.matrix = nn.Parameter(torch.eye(5)) if low_rank else None
        self.samples = np.arange(BATCH)  # of the step
        self.teacher: nn.Module | None = None
        self.keep = 1.0
        made: Callable[[], Callable[..., Tensor]] = getattr(self, config.method)
        self.loss = made()

    def student(self, view: Tensor) -> Tensor:
        return self.head(self.encoder(view))

    def follow(self) -> None:
        if self.teacher is None:
            return
        own = [*self.encoder.parameters(), *self.head.parameters()]
        with torch.no_grad():
            for kept, given in zip(self.teacher.parameters(), own, strict=True):
                kept.copy_(self.keep * kept + (1 - self.keep) * given)

    def copied(self) -> nn.Module:
        self.teacher = copy.deepcopy(nn.Sequential(self.encoder, self.head))
        return self.teacher.requires_grad_(False)

    def low_rank(self, *features: Tensor) -> Tensor | float:
        if self.matrix is None:
            return 0.0
        both = torch.cat(features)
        rebuilt = (both @ self.matrix.T @ self.matrix - both).square().sum(1).mean()
        return 0.3 * (rebuilt + 0.1 * torch.linalg.svdvals(self.matrix).sum())

    def simclr(self) -> Callable[..., Tensor]:
        config = self.config

        def loss(first: Tensor, second: Tensor, step: int) -> Tensor:
            features = [self.encoder(view) for view in (first, second)]
            z = normalize(torch.cat([self.head(feature) for feature in features]), dim=1)
            cosines = (z @ z.T / 0.25).fill_diagonal_(-math.inf)
            other = (torch.arange(2 * BATCH) + BATCH) % (2 * BATCH)
            anchors = slice(0 if config.pairs == "both" else BATCH, None)
            return cross_entropy(cosines[anchors], other[anchors]) + self.low_rank(*features)

        return loss

    def moco_v2(self) -> Callable[..., Tensor]:
        teacher, self.keep = self.copied(), 0.7
        self.queue = normalize(torch.randn(6, 6), dim=1)

        def loss(first: Tensor, second: Tensor, step: int) -> Tensor:
            query = normalize(self.student(first), dim=1)
            key = normalize(teacher(second), dim=1)
            scores = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.T], 1)
            self.queue = torch.cat([key, self.queue])[:6]  # the oldest leave
            return cross_entropy(scores / 0.25, torch.zeros(BATCH, dtype=torch.int64))

        return loss

    def moco_v3(self) -> Callable[..., Tensor]:
        self.predictor, teacher, self.keep = plain_head(4, 6), self.copied(), 0.7

        def loss(first: Tensor, second: Tensor, step: int) -> Tensor:
            feature = self.encoder(first)
            query = normalize(self.predictor(self.head(feature)), dim=1)
            scores = query @ normalize(teacher(second), dim=1).T
            value = cross_entropy(scores / 0.25, torch.arange(BATCH))
            return 0.5 * (value + self.low_rank(feature))

        return loss

    def byol(self) -> Callable[..., Tensor]:
        self.predictor, teacher = plain_head(4, 6), self.copied()

        def loss(first: Tensor, second: Tensor, step: int) -> Tensor:
            self.keep = 1 - 0.3 * (1 + math.cos(math.pi * step / STEPS)) / 2
            values = []
            for one, other in ((first, second), (second, first)):
                query = normalize(self.predictor(self.student(one)), dim=1)
                values.append(2 - 2 * (query * normalize(teacher(other), dim=1)).sum(1).mean())
            return (values[0] + values[1]) / 2

        return loss

    def cmc(self) -> Callable[..., Tensor]:
        self.colour_head = nn.Linear(64, 6)
        self.memory = (2 * torch.rand(2, COUNT, 6) - 1) * (3 / 6) ** 0.5  # of unit mean square

        def loss(view: Tensor, step: int) -> Tensor:
            light, colour = self.encoder(view).chunk(2, dim=1)
            others, values, memory = torch.randint(COUNT, (7,)), [], self.memory.clone()
            both = self.head(light), self.colour_head(colour)
            for place, query in enumerate(normalize(z, dim=1) for z in both):
                other = normalize(memory[1 - place], dim=1)  # what the other network saw before
                own = (query * other[self.samples]).sum(1, keepdim=True)
                scores = torch.cat([own, query @ other[others].T], 1) / 0.25
                values.append(cross_entropy(scores, torch.zeros(BATCH, dtype=torch.int64)))
                moved = 0.3 * memory[place][self.samples] + 0.7 * query.detach()
                self.memory[place][self.samples] = normalize(moved, dim=1)
            return (values[0] + values[1]) / 2

        return loss

    def swav(self) -> Callable[..., Tensor]:
        self.prototypes = nn.Linear(6, 5, bias=False)
        self.queue = torch.zeros(2, self.config.queue, 6)

        def loss(first: Tensor, second: Tensor, *others: Any) -> Tensor:
            *small, step = others
            weight = self.prototypes.weight
            weight.data = normalize(weight.data, dim=1)
            weight = weight.detach() if step < 2 else weight  # of the first two steps
            features = [self.encoder(crops) for crops in (torch.cat([first, second]), *small)]
            z = normalize(self.head(torch.cat(features)), dim=1).view(-1, BATCH, 6)
            scores = z @ weight.T
            full, values = bool(self.queue[0, -1:].any()), []
            for crop in (0, 1):
                known = scores[crop].detach()
                if full:
                    known = torch.cat([known, self.queue[crop] @ weight.detach().T])
                code = codes(known, epsilon=0.05, iterations=3)[:BATCH]
                for place in {*range(len(z))} - {crop}:
                    values.append(-(code * (scores[place] / 0.1).log_softmax(1)).sum(1).mean())
            if step >= 1:  # from a third of an epoch on
                kept = torch.cat([z[:2].detach(), self.queue], 1)
                self.queue = kept[:, : self.config.queue]
            return torch.stack(values).mean() + self.low_rank(features[0])

        return loss


def rate(step: int) -> float:
    """Shares of the rate: a warm-up over the first epoch, then half a turn of the cosine."""
    return (step + 1) / 3 if step < 3 else 0.5 * (1 + math.cos(math.pi * (step - 3) / 3))


def plain_training(config: Config, given: Images, mean: Any, std: Any) -> tuple[Plain, list[float]]:
    torch.manual_seed(1)
    plain, values = Plain(config), []
    trained = [weight for weight in plain.parameters() if weight.requires_grad]
    if config.optimiser == "adam":
        optimiser: torch.optim.Optimizer = torch.optim.Adam(trained, weight_decay=0.1)
    else:
        optimiser = torch.optim.SGD(trained, lr=0.0, momentum=0.9, weight_decay=0.1)
    drawn = [("ressl_strong", 8), ("ressl_weak", 8), ("swav_small", 7)]
    for step in range(STEPS):
        epoch, number = divmod(step, 3)
        order = np.random.default_rng([1, epoch]).permutation(COUNT)
        samples = plain.samples = order[number * BATCH : (number + 1) * BATCH]
        views = [
            augment(
                given.pixels[samples],
                POLICIES[name],
                size,
                seed=1,
                epoch=epoch,
                samples=samples,
                view=view,
                mean=mean,
                std=std,
            )
            for view, (name, size) in enumerate(
                drawn[: 1 if config.method == "cmc" else 2 + config.small_crops]
            )
        ]
        loss = plain.loss(*views, step)
        optimiser.param_groups[0]["lr"] = config.learning_rate * rate(step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        plain.follow()
        values.append(loss.item())
    return plain, [sum(values[:3]) / 3, sum(values[3:]) / 3]


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    pairs = zip(found.state_dict().items(), expected.state_dict().values(), strict=True)
    for (name, value), other in pairs:
        torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_training_is_the_plain_loop(tmp_path: Path, method: Any) -> None:
    config = dataclasses.replace(CONFIG, **{"method": method, **METHODS[method]})
    mean, std = ((0.0,) * 3, (1.0,) * 3) if method == "cmc" else (MEAN, STD)
    with Run(tmp_path, config) as run:
        networks, criterion = vision.pretrain(config, images(), run, mean=mean, std=std)
    plain, of_epochs = plain_training(config, images(), mean, std)
    assert losses(tmp_path) == pytest.approx(of_epochs, rel=1e-4)
    for name in ("encoder", "head", "predictor", "prototypes", "colour_head"):
        if hasattr(networks, name):
            assert_same(getattr(networks, name), getattr(plain, name))
    if plain.teacher is not None:
        assert_same(nn.Sequential(networks.teacher.encoder, networks.teacher.head), plain.teacher)
    if method in ("moco_v2", "swav"):
        torch.testing.assert_close(networks.queue, plain.queue, rtol=1e-3, atol=1e-4)
    if method == "cmc":
        torch.testing.assert_close(networks.memory, plain.memory, rtol=1e-3, atol=1e-3)
    if criterion.projection is not None:
        found = criterion.projection.matrix.detach()
        torch.testing.assert_close(found, plain.matrix.detach(), rtol=1e-3, atol=1e-4)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [config.learning_rate * rate(step) for step in (2, 5)]
    )
    assert [line["epoch"] for line in lines] == [1, 2]


def plain_knn(x: Tensor, labels: Tensor, z: Tensor, test_labels: Tensor) -> float:
    """All of thirteen vote, by exp(cos / 0.5)."""
    votes = (normalize(z, dim=1) @ normalize(x, dim=1).T / 0.5).exp()
    return 100 * float(((votes @ torch.eye(10)[labels]).argmax(1) == test_labels).double().mean())


@pytest.mark.parametrize("trained", [True, False], ids=["low rank", "calibrated"])
def test_a_whole_run_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: bool
) -> None:
    """Thirteen digits: L's two strongest directions, or batch norms with the images' statistics."""
    config = dataclasses.replace(
        CONFIG,
        dataset="digits",
        images=COUNT,
        protocol="knn-200-v1",
        objective=LOW_RANK if trained else NCE,
        projection_dimensions=2,
        **({} if trained else {"epochs": 0, "calibrated": True}),
    )
    given = spied(monkeypatch, evaluation, "knn", lambda _, x, labels, z, *rest, **named: (x, z))
    parts = spied(monkeypatch, module, "pretrain", lambda result, *_, **__: result)
    with Run(tmp_path, config) as run:
        found = run.finish(vision.measure(config, run))["metrics"]
        assert run.score(*parts[0]) == found  # what is shown in the meantime
    train, test = choose(load("digits", Path(), "train"), COUNT), load("digits", Path(), "test")
    mean, std = (torch.tensor([number] * 3) for number in (0.3059, 0.3754))
    x, z = (
        (part.pixels / 255 - mean[:, None, None]) / std[:, None, None] for part in (train, test)
    )
    if trained:
        plain, _ = plain_training(config, train, mean.tolist(), std.tolist())
        strongest = torch.linalg.svd(plain.matrix.detach()).Vh[:2]
        matrix = plain.matrix.detach() @ strongest.T @ strongest
    else:
        torch.manual_seed(1)
        plain, matrix = Plain(config), torch.eye(5)
        seen, norm = plain.encoder[0](x), plain.encoder[1]
        norm.running_mean, norm.running_var = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
    encoder = plain.encoder.eval()
    with torch.no_grad():
        features = [encoder(part) @ matrix.T for part in (x, z)]
    for one, other in zip(given[0], features, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert found == {"knn_top1": plain_knn(features[0], train.labels, features[1], test.labels)}


def test_seeds_are_apart_in_start_order_augmentation_and_queue() -> None:
    """Of three seeds and two epochs, no two agree in anything that is drawn."""
    config = dataclasses.replace(CONFIG, method="moco_v2", **METHODS["moco_v2"])
    starts, queues, orders, crops = set(), set(), set(), set()
    numbered = Images(
        torch.arange(COUNT, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 10, 10),
        torch.zeros(COUNT, dtype=torch.int64),
    )
    column = torch.arange(10, dtype=torch.uint8).expand(COUNT, 3, 10, 10)
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        networks = networks_of(config)
        starts.add(float(networks.encoder[0].weight.detach().sum()))
        queues.add(float(networks.queue.sum()))
        plain = dataclasses.replace(config, seed=seed, augmentations=("plain", "crop_flip"))
        args: Any = ("cpu", 0, STEPS)
        kept = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
        seen = list(batches(plain, numbered, *args, **kept))
        moved = list(batches(plain, Images(column, numbered.labels), *args, **kept))
        for epoch in (0, 1):
            part = slice(3 * epoch, 3 * epoch + 3)
            orders.add(str([view[:, 0, 0, 0].mul(255).round().tolist() for view, _ in seen[part]]))
            # Where crops begin does not depend on which image is there.
            crops.add(str([view[:, 0, 0, 0].tolist() for _, view in moved[part]]))
    assert (len(starts), len(queues), len(orders), len(crops)) == (3, 3, 6, 6)
