"""Time and memory of a run, estimated from a few steps on made-up images of its size.

Shapes: B images of a batch, S side in pixels, H features of the backbone.

A step is timed with few images and with more, its line drawn on to the run's batch, and multiplied
by the number of steps; the evaluation is counted in passes of the frozen encoder. What a step keeps
for its backward pass is counted as it is kept. Left out: losses that cost more than InfoNCE,
``compile``, the probe's own layer, and the decoding of images that stream from disk.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from vision.config import NT_XENT, Config
from vision.data import Dataset, Images, describe
from vision.encoder import WIDTH
from vision.evaluate import BATCH, PROTOCOLS
from vision.methods import Networks, compare
from vision.train import batches, make_optimiser, train_step

BASELINE = 0.5e9  # bytes of a process that has imported everything and done nothing
SMALLEST, LARGEST = 2, 256  # images of the timed steps
TEMPORARIES = 3  # tensors of the largest size that a frozen network holds at a time
ENOUGH = 0.5  # seconds; where a step takes as long, none with more images is timed

# The fields that decide what an image costs; runs that agree in them are calibrated once.
DECIDING = (
    "image_size",
    "backbone",
    "stem",
    "head_hidden",
    "head_output",
    "head_output_norm",
    "predictor_hidden",
    "method",
    "symmetric",
    "queue",
    "augmentations",
    "optimiser",
    "precision",
)


@dataclass(frozen=True)
class Calibration:
    """What a configuration costs on this machine.

    Args:
        per_step: seconds of a step, however small its batch.
        per_image: seconds of a step for each image of its batch, augmentation included.
        forward: seconds for each image of side S that the frozen encoder sees.
        fixed: bytes of parameters, gradients, optimiser state and teacher.
        saved: bytes that a step keeps for each image of its batch.
        largest: bytes of the largest tensor among these.
    """

    per_step: float
    per_image: float
    forward: float
    fixed: float
    saved: float
    largest: float


_calibrations: dict[tuple[Any, ...], Calibration] = {}


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of one run on this machine's device.

    Args:
        config: of the run.
        data_root: not read; the images are made up.
    """
    calibration = _calibrated(config)
    source, target = describe(config.dataset), describe(config.evaluate_on or config.dataset)
    pretrained = _at_most(config.images, source.train + source.unlabelled)
    trained = _at_most(config.images, target.train)

    steps = config.epochs * (pretrained // config.batch_size)
    step = calibration.per_step + config.batch_size * calibration.per_image
    # Test images, and training images seen as such, are larger by this factor.
    scale = ((config.test_size or config.image_size) / config.image_size) ** 2
    passed = scale * (trained + target.test)
    probe = PROTOCOLS[config.protocol].probe
    if probe is not None:
        epochs = probe.epochs if config.probe_epochs is None else config.probe_epochs
        drifts = config.probe_batch_norm == "train"
        if config.probe_augmentation:
            passed += epochs * trained
        elif drifts:
            passed += epochs * scale * trained
        if drifts:
            passed += epochs * scale * target.test
    seconds = steps * step + passed * calibration.forward

    images = sum(_bytes(dataset) for dataset in {source, target})
    features = 4 * WIDTH[config.backbone] * (trained + target.test)
    working = max(
        config.batch_size * calibration.saved,
        TEMPORARIES * scale * BATCH * calibration.largest,
    )
    size = BASELINE + images + features + calibration.fixed + working
    return seconds / 60, size / 1e9


def _bytes(dataset: Dataset) -> int:
    """Bytes of a dataset in memory, the training split twice: pretraining's and the probe's."""
    if dataset.folder == "imagenet":  # streams from disk
        return 0
    count = 2 * dataset.train + dataset.unlabelled + dataset.test
    return count * 3 * dataset.size**2


def _at_most(limit: int | None, count: int) -> int:
    return count if limit is None else min(limit, count)


def _calibrated(config: Config) -> Calibration:
    side = describe(config.dataset).size
    key = (side, *(getattr(config, name) for name in DECIDING))
    if key not in _calibrations:
        _calibrations[key] = calibrate(config)
    return _calibrations[key]


def calibrate(config: Config) -> Calibration:
    """Time and measure a few steps of the configuration's networks on the machine's device."""
    config = dataclasses.replace(config, objective=NT_XENT, compile=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    networks = Networks(config).to(device)
    criterion = config.objective.build(networks.dim).to(device)
    optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))

    def views(size: int) -> tuple[Tensor, Tensor]:
        return made_up_views(config, size, device)

    def step(size: int) -> None:
        train_step(config, networks, criterion, optimiser, views(size), 1)

    def forward(size: int) -> None:
        with torch.no_grad(), _autocast(config, device):
            networks.encoder(views(size)[0])

    few, more = (saved_sizes(config, networks, views(size)) for size in (2, 4))
    # Parameters and their copies in half precision do not grow with the batch.
    grown = [larger - smaller for smaller, larger in zip(few, more, strict=True)]
    size, smallest = SMALLEST, _seconds(device, step, SMALLEST)
    largest = smallest
    while size < LARGEST and (largest < ENOUGH or size == SMALLEST):
        size *= 2
        largest = _seconds(device, step, size)
    per_image = max(0.0, largest - smallest) / (size - SMALLEST)
    networks.eval()

    held = [*networks.parameters(), *networks.buffers()]
    held += [parameter.grad for parameter in networks.parameters() if parameter.grad is not None]
    for state in optimiser.state.values():
        held += [item for item in state.values() if isinstance(item, Tensor)]
    return Calibration(
        per_step=max(0.0, smallest - SMALLEST * per_image),
        per_image=per_image,
        forward=_seconds(device, forward, size) / size,
        fixed=sum(item.nbytes for item in held),
        saved=sum(grown) / 2,
        largest=max(grown) / 2,
    )


def made_up_views(config: Config, size: int, device: str) -> tuple[Tensor, Tensor]:
    """Both views of a batch of noise, (size, 3, S, S) each, augmented as in a run."""
    side = describe(config.dataset).size
    pixels = torch.randint(0, 256, (size, 3, side, side), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(size, dtype=torch.int64))
    config = dataclasses.replace(config, batch_size=size)
    colours = (0.5, 0.5, 0.5)
    return next(batches(config, images, device, 0, 1, mean=colours, std=colours))


def saved_sizes(config: Config, networks: Networks, views: tuple[Tensor, Tensor]) -> list[int]:
    """Bytes of each storage that the forward pass keeps for the backward pass, in order."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with _autocast(config, views[0].device.type), saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = compare(config, networks, *views)
    del kept  # until here no storage was freed, so that no address stood for two
    return list(sizes.values())


def _autocast(config: Config, device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16, enabled=config.precision == "bfloat16")


def _seconds(device: str, work: Callable[[Any], None], argument: Any) -> float:
    """Time of ``work(argument)``, the shorter of two: the first also chooses kernels.

    On the CPU it is processor time for each thread, which other processes do not stretch.
    """
    times = []
    for _ in range(2):
        start = _clock(device)
        work(argument)
        times.append(_clock(device) - start)
    return min(times)


def _clock(device: str) -> float:
    if device == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()
