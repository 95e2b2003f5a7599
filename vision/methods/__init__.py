"""SimCLR, MoCo, BYOL, SwAV and CMC: which views of a batch are compared with which.

Each is a class in a file of its own: its networks, its step, and what it refuses.
"""

import itertools
from collections.abc import Iterator

from shared.chunks import check_chunk
from shared.ranges import require_ranges, require_words
from vision.augmentation import POLICIES
from vision.config import Config
from vision.encoder import check_backbone, fixed_size, name_of
from vision.methods.base import Networks
from vision.methods.byol import BYOL
from vision.methods.cmc import CMC
from vision.methods.moco import MoCoV2, MoCoV3
from vision.methods.simclr import SimCLR
from vision.methods.swav import SwAV

METHODS: dict[str, type[Networks]] = {
    "simclr": SimCLR,
    "moco_v2": MoCoV2,
    "moco_v3": MoCoV3,
    "byol": BYOL,
    "swav": SwAV,
    "cmc": CMC,
}
# Options of some methods, and the value that stands for none.
OPTIONS = {"pairs": "both", "symmetric": False, "chunk": None, "mixed": None, "small_crops": 0}


def networks_of(config: Config, images: int = 0) -> Networks:
    """The networks of the configuration's method; ``images`` is the number of training images."""
    return METHODS[config.method](config, images)


def check(config: Config) -> None:
    """Refuse an inconsistent configuration."""
    require_words(config)
    check_backbone(config.backbone, config.stem, half=config.method == "cmc", heads=config.heads)
    check_chunk(config.chunk)
    faults = itertools.chain(
        _faults_of_loss(config),
        _faults_of_options(config),
        METHODS[config.method].faults(config),
        _faults_of_images(config),
        _faults_of_training(config),
    )
    for fault in faults:
        raise ValueError(fault)
    require_ranges(config)


def _faults_of_loss(config: Config) -> Iterator[str]:
    loss = config.objective.loss
    name = loss.function.__name__
    for method, networks in METHODS.items():
        if networks.loss is None:
            continue
        own_loss, why = networks.loss
        if (config.method == method) is not (loss.identity == own_loss):
            yield (
                f"method {method} and the loss {own_loss} go together, since {why}; got "
                f"{config.method} and {name}"
            )
    if config.gamma_schedule and loss.identity != "max_margin":
        yield f"gamma_schedule is for kernels; {name} has no kernel"


def _faults_of_options(config: Config) -> Iterator[str]:
    for name, none in OPTIONS.items():
        methods = [method for method, networks in METHODS.items() if name in networks.options]
        if getattr(config, name) != none and config.method not in methods:
            yield (
                f"{name} is not used by method {config.method}; omit it, or use method "
                f"{' or '.join(methods)}"
            )
    if config.mixed is None and config.mixed_from:
        yield f"mixed_from {config.mixed_from:g} needs mixed, which is None; set both"


def _faults_of_images(config: Config) -> Iterator[str]:
    small = config.method == "swav" and config.small_crops
    sizes = {config.image_size, config.test_size or config.image_size}
    sizes |= {config.small_size} if small else set()
    if len(sizes) > 1 and fixed_size(config.backbone):
        yield (
            f"{name_of(config.backbone)} is built for one image size; got "
            f"{', '.join(map(str, sorted(sizes)))}, make them equal or use another backbone"
        )
    augmentations = {*config.augmentations, *([config.small_augmentation] if small else [])}
    if unknown := augmentations - set(POLICIES):
        found = sorted(getattr(each, "__name__", str(each)) for each in unknown)
        yield (
            f"augmentations are of {', '.join(POLICIES)}; got {', '.join(found)}: one of your own "
            f"needs a loop of your own, see docs/vision.md"
        )


def _faults_of_training(config: Config) -> Iterator[str]:
    if config.init is not None and (config.weights is not None or config.features != "encoder"):
        yield "init starts a training, which weights and features do without; drop init"
    if config.features != "encoder" and config.epochs:
        yield f"features {config.features!r} are not trained; set epochs = 0"
    if config.weights is not None and (config.epochs or config.features != "encoder"):
        yield f"weights {config.weights!r} are trained; set epochs = 0 and features = 'encoder'"
    if config.calibrated and (config.weights is not None or config.epochs):
        yield "calibrated is for an untrained encoder; set epochs = 0 and omit weights"
    if config.batch_size < 2:
        yield f"batch_size {config.batch_size}: a single image has no negatives; use 2"
