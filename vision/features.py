"""Features of frozen encoders, and what the evaluation protocols share."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.compat import make_torchvision_importable
from shared.experiment.data import is_approximate
from shared.experiment.run import Run
from shared.logistic import check_finite
from shared.modes import evaluating
from shared.pixels import normalise
from shared.precision import bfloat16, cast_for
from vision.augmentation import POLICIES, augment
from vision.config import Config
from vision.data import central_crops, fingerprint, load, stream
from vision.datasets import Dataset, Split, describe
from vision.images import ImageFiles, Images, in_channels, pixels_of
from vision.prepared import PreparedImages

make_torchvision_importable()

from torchvision.transforms.v2.functional import (  # noqa: E402 (needs the line above)
    center_crop,
    resize,
)

# Yields the features (B, H) of each batch of an epoch, given the epoch's number, from 0 on, and the
# image indices (B,) of each batch.
Batches = Callable[[int, list[np.ndarray]], Iterable[Tensor]]

BATCH = 256  # images per forward pass of the frozen encoder
RESIZED = 70 / 64  # side of the resized test image over that of its central crop; ReSSL's program
SOLVED = 1e-6  # relative suboptimality at which a regularised probe is solved


@dataclass(frozen=True)
class ManyShot:
    """Logistic regression on frozen features of all training images: vision.transfer."""

    costs: tuple[float, ...]  # scikit-learn's C, to be chosen on the validation images


@dataclass(frozen=True)
class FewShot:
    """Episodes of nearest prototypes on frozen features: vision.transfer."""

    shots: int  # images whose mean is a class's prototype
    ways: int = 5  # classes of an episode
    queries: int = 15  # images of each class that are classified
    episodes: int = 600


@dataclass(frozen=True)
class FineTuning:
    """The whole network trained with labels, by SGD with Nesterov's momentum: vision.transfer."""

    steps: int  # of one training run; the rate follows a cosine to 0
    # Chosen on the validation images among all combinations; a decay is given times the rate.
    rates: tuple[float, ...]
    decays: tuple[float, ...]
    batch_size: int = 64
    momentum: float = 0.9
    policy: str = "crop_flip_bicubic"  # of vision.augmentation.POLICIES


def load_split(config: Config, name: str, split: Split, run: Run) -> Images | ImageFiles:
    """A split as a configuration reads it; a run records the hash of prepared images."""
    side = config.prepared_side if name == config.dataset else None
    missing = run.allow_missing
    images = load(name, run.data_root, split, allow_missing=missing, prepared_side=side)
    if isinstance(images, ImageFiles) and isinstance(images.files, PreparedImages):
        run.record_data(prepared=images.files.sha256)
        run.checks["prepared"] = images.files.check
    return images


def record_data(run: Run, name: str) -> None:
    """Record the fingerprint of a dataset that a run uses."""
    digest = fingerprint(name, run.data_root)
    if run.tier == "paper" and is_approximate(digest):
        raise UserError(
            f"{name} in {run.data_root} is an approximate copy, which the paper tier does not "
            f"accept; get the published files, or choose --tier short"
        )
    run.record_data(**{name: digest})


def statistics(config: Config, dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each colour that the input is normalised with.

    They are those of ``dataset`` unless the configuration names others.
    """
    if config.statistics == "none":
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if config.statistics is not None:
        dataset = describe(config.statistics)
    return dataset.mean, dataset.std


def embed(
    encoder: nn.Module,
    images: Images | ImageFiles,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    precision: Literal["bfloat16", "float32"] = "float32",
    workers: int = 0,
    crop_fraction: float = 0.875,
) -> Tensor:
    """Features (n, H) float32 of images preprocessed as test images, in evaluation mode.

    They are on the encoder's device, wherever the images are. The encoder's mode is restored.

    Args:
        encoder: (B, C, S, S) -> (B, H), in any precision.
        images: n images in memory or on disk, of C channels; grey ones in memory are repeated to
            as many channels as ``mean`` has, those on disk have three.
        size: S; see the module for images of another size.
        mean: per channel, on the scale from 0 to 1.
        std: per channel.
        precision: of the encoder's operations.
        workers: processes that decode images on disk.
        crop_fraction: share of the shorter side that is kept of images on disk.

    Raises:
        ValueError: no images, or a feature that is NaN or infinite.
    """
    if not isinstance(images, Images | ImageFiles) or not len(images):
        what = "none" if isinstance(images, Images | ImageFiles) else type(images).__name__
        raise ValueError(f"embed takes images, got {what}; give vision.Images(pixels, labels)")
    views = preprocessed(images, size, mean, std, device_of(encoder), workers, crop_fraction)
    with evaluating(encoder):
        features = torch.cat([features_of(encoder, batch, precision) for batch in views])
    if not torch.isfinite(features).all():
        raise ValueError("features are NaN or infinite and cannot be scored; did training diverge?")
    return features


def preprocessed(
    images: Images | ImageFiles,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
    workers: int = 0,
    crop_fraction: float = 0.875,
) -> Iterator[Tensor]:
    """Batches of images in their order, on a device, as :func:`as_test_images` makes them."""
    pixels: Iterable[Tensor]
    if isinstance(images, Images):
        pixels = images.pixels.split(BATCH)
    else:
        pixels = central_crops(images, size, crop_fraction, batch_size=BATCH, workers=workers)
    return (as_test_images(batch.to(device), size, mean, std) for batch in pixels)


def as_test_images(
    pixels: Tensor, size: int, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Test images (B, C, S, S) float32, normalised, of pixels (B, C, H, W), on their device.

    The pixels are as :func:`vision.images.pixels_of` takes them; a single channel is repeated to as
    many as ``mean`` has. Mean and deviation are per channel, on the scale from 0 to 1.
    """
    images = in_channels(pixels_of(pixels), len(mean)).float().div_(255)
    if images.shape[-2:] != (size, size):
        images = center_crop(resize(images, [round(size * RESIZED)]), [size, size])
    return normalise(images, mean, std)


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Features (n, H), (m, H) with mean 0 and deviation 1 over the first; constant ones are 0."""
    check_finite(train, "training")
    check_finite(test, "test")
    mean, deviation = train.mean(0), train.std(0, unbiased=False)
    scale = torch.where(deviation > 1e-6 * deviation.max(), deviation, torch.inf)
    return (train - mean) / scale, (test - mean) / scale


def check_labels(labels: Tensor, classes: int | None = None) -> None:
    """Refuse missing labels (-1) among (n,), and those not below the number of classes."""
    if none := int((labels < 0).sum()):
        raise ValueError(f"{none} of {len(labels)} images have no label (-1); omit them")
    if classes is not None and len(labels) and int(labels.max()) >= classes:
        raise ValueError(f"label {int(labels.max())} is not one of {classes} classes, 0 and up")


def training_views(
    config: Config,
    policy: str,
    images: Images | ImageFiles,
    epoch: int,
    chosen: list[np.ndarray],
    device: torch.device,
    workers: int,
) -> Iterator[Tensor]:
    """A probe's training images, (B, 3, S, S) for each batch, augmented if configured."""
    mean, std = statistics(config, describe(config.evaluate_on or config.dataset))
    drawn = POLICIES[policy]
    size = config.image_size if config.probe_augmentation else config.test_size or config.image_size
    order = torch.from_numpy(np.concatenate(chosen))
    pixels: Iterable[Tensor]
    if isinstance(images, Images):
        resident = images.pixels.to(device)
        pixels = (resident[index] for index in order.to(device).split(len(chosen[0])))
    elif config.probe_augmentation:
        crops = stream(images, chosen, [drawn], size, config.seed, epoch, workers)
        pixels = (crop for (crop,) in crops)
        drawn = dataclasses.replace(drawn, scale=None)
    else:
        ordered = images.subset(order)
        pixels = central_crops(ordered, size, batch_size=len(chosen[0]), workers=workers)
    for samples, batch in zip(chosen, pixels, strict=True):
        batch = batch.to(device, non_blocking=True)
        if config.probe_augmentation:
            yield augment(
                batch,
                drawn,
                size,
                seed=config.seed,
                epoch=epoch,
                samples=samples,
                view=0,
                mean=mean,
                std=std,
            )
        else:
            yield as_test_images(batch, size, mean, std)


@torch.no_grad()
def features_of(encoder: nn.Module, views: Tensor, precision: str) -> Tensor:
    """Features (B, H) float32 of views (B, 3, S, S), in the encoder's mode."""
    views = cast_for(encoder, views).contiguous(memory_format=torch.channels_last)
    # In training mode the batch norms must see the batch as a whole.
    parts = (views,) if encoder.training else views.split(BATCH)
    with bfloat16(views.device.type, enabled=precision == "bfloat16"):
        return torch.cat([encoder(part) for part in parts]).float()


def starting_classifier(
    features: int, classes: int, deviation: float | None, seed: int
) -> nn.Linear:
    """A linear layer with a probe's initialisation, drawn from a separate generator."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(features, classes, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        if deviation is None:
            bound = 1 / math.sqrt(features)  # nn.Linear's initialisation
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
        else:
            layer.weight.normal_(0, deviation, generator=generator)
            layer.bias.zero_()
    return layer


def device_of(encoder: nn.Module) -> torch.device:
    """The device of an encoder's parameters, or of its buffers if it has none."""
    return next(itertools.chain(encoder.parameters(), encoder.buffers())).device
