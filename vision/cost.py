"""Time and memory of a run, estimated from a few steps of its loop on made-up images of its size.

Shapes: B images of a batch, S side in pixels, H features of the backbone.

The evaluation is counted in passes of the frozen encoder, a pass as its share of a training step.
Left out: ``compile``, the probe's own layer, and the decoding of images that stream from disk.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from shared import Objective, alignment, term
from shared.experiment.runs import Run
from shared.experiment.trial import cost_of, seconds_of_loss
from vision.config import Config
from vision.data import Dataset, Images, describe
from vision.encoder import WIDTH, make_encoder, width_of
from vision.evaluation import BATCH, PROTOCOLS, FineTuning
from vision.swav import swapped_prediction
from vision.train import pretrain
from vision.transfer import HELD_OUT

BASELINE = 0.5e9  # bytes of a process that has imported everything and done nothing
# What an image of a batch costs in passes of an encoder: two views forward, and each way back twice
# as much as forward; a teacher has no way back.
PASSES = {"simclr": 6, "moco_v2": 4, "moco_v3": 4, "byol": 4, "swav": 6, "cmc": 3}
# The losses of methods that take no other.
OWN_LOSS = {"byol": term(alignment), "swav": term(swapped_prediction)}
# Bytes that a frozen encoder holds for an image, of those that a step keeps of it: measured.
FROZEN = 0.05

# The fields that decide what an image costs; runs that agree in them are measured once.
DECIDING = (
    "image_size",
    "backbone",
    "stem",
    "head_hidden",
    "head_output",
    "head_layers",
    "head_output_norm",
    "predictor_hidden",
    "method",
    "symmetric",
    "queue",
    "mixed",
    "prototypes",
    "small_crops",
    "small_size",
    "small_augmentation",
    "augmentations",
    "optimiser",
    "precision",
    "statistics",
)


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of one run on this machine's device.

    Args:
        config: of the run.
        data_root: not read; the images are made up.
    """
    cost = cost_of(train, Config(dataset=of_size(config)), deciding(config))
    step = cost.seconds(config.batch_size)
    if config.method != "swav":  # whose loss needs more than pairs; it was measured in the step
        step += seconds_of_loss(config.objective, config.batch_size, config.head_output)
    seconds = _steps(config) * step + _passed(config) * cost.per_item / _passes(config)

    source, target = describe(config.dataset), describe(config.evaluate_on or config.dataset)
    scale = _scale(config)
    trained = _at_most(config.images, target.train)
    images = sum(_bytes(dataset) for dataset in {source, target})
    features = 4 * _width(config) * (trained + target.test)
    working = cost.kept * max(config.batch_size, FROZEN * scale * BATCH)
    return seconds / 60, (BASELINE + images + features + cost.fixed + working) / 1e9


def share(config: Config) -> float:
    """The share of a run's time that its pretraining takes, in passes of the encoder alone."""
    training = _steps(config) * config.batch_size * _passes(config)
    return training / (training + _passed(config))


def _steps(config: Config) -> int:
    """Steps of the pretraining."""
    source = describe(config.dataset)
    pretrained = _at_most(config.images, source.train + source.unlabelled)
    return config.epochs * (pretrained // config.batch_size)


def _scale(config: Config) -> float:
    """How much larger test images are, and training images seen as such."""
    return ((config.test_size or config.image_size) / config.image_size) ** 2


def _passes(config: Config) -> float:
    """What an image of a batch costs in the pretraining, in passes of the encoder."""
    both = 1 + (config.symmetric and config.method in ("moco_v3", "byol"))
    small = config.small_crops * (config.small_size / config.image_size) ** 2 / 2
    return both * PASSES[config.method] * (1 + small)


def _passed(config: Config) -> float:
    """Images that pass the encoder in the evaluation, a training step's three times."""
    target = describe(config.evaluate_on or config.dataset)
    trained, scale = _at_most(config.images, target.train), _scale(config)
    protocol = PROTOCOLS[config.protocol]
    if isinstance(protocol.transfer, FineTuning):
        runs = len(protocol.transfer.rates) * len(protocol.transfer.decays)
        steps = (runs + 1) * (config.tuning_steps or protocol.transfer.steps)
        validated = runs * trained / HELD_OUT
        return 3 * steps * protocol.transfer.batch_size + scale * (validated + target.test)
    passed = scale * (trained + target.test)
    probe = protocol.probe
    if probe is not None:
        epochs = probe.epochs if config.probe_epochs is None else config.probe_epochs
        drifts = config.probe_batch_norm == "train"
        if config.probe_augmentation:
            passed += epochs * trained
        elif drifts:
            passed += epochs * scale * trained
        if drifts:
            passed += epochs * scale * target.test
    return passed


def deciding(config: Config) -> dict[str, Any]:
    """What decides a run's cost, and a loss that its method takes."""
    found = {name: getattr(config, name) for name in DECIDING}
    if loss := OWN_LOSS.get(config.method):
        found["objective"] = Objective(loss)
    return found


def _width(config: Config) -> int:
    """H of the backbone; one that is not a ResNet here is made for it, from no random numbers."""
    if config.backbone in WIDTH:
        return WIDTH[str(config.backbone)]
    with torch.random.fork_rng(devices=[]):
        network = make_encoder(config.backbone, config.stem, size=config.image_size)
    return width_of(network, config.backbone, config.image_size)


def of_size(config: Config) -> str:
    """CIFAR-10, or the run's data set where its images have another size."""
    same = describe(config.dataset).size == describe("CIFAR10").size
    return "CIFAR10" if same else config.dataset


def train(config: Config, run: Run) -> None:
    """The loop of a run on noise: images of its data set's size, four batches of them."""
    side = describe(config.dataset).size
    generator = torch.Generator().manual_seed(0)
    shape = (4 * config.batch_size, 3, side, side)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))
    config = dataclasses.replace(config, warmup_epochs=0.0)
    mean, std = (0.0, 1.0) if config.statistics == "none" else (0.5, 0.5)
    pretrain(config, images, run, mean=(mean,) * 3, std=(std,) * 3)


def _bytes(dataset: Dataset) -> int:
    """Bytes of a dataset in memory, the training split twice: pretraining's and the probe's."""
    if dataset.streams:
        return 0
    count = 2 * dataset.train + dataset.unlabelled + dataset.test
    return count * 3 * dataset.size**2


def _at_most(limit: int | None, count: int) -> int:
    return count if limit is None else min(limit, count)
