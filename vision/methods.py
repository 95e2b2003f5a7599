"""SimCLR, MoCo, BYOL, SwAV and CMC: which views of a batch are compared with which.

Shapes: B images, S side in pixels, H features of the backbone, D dimensions of the head.

A method is a function ``(config, networks, *views) -> (pairs, features)``: one ``Pairs`` for each
direction, whose losses are averaged, and the backbone's features of the student's views, to which
CLLR's projection is applied.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from shared import Pairs, query_key
from shared.chunks import check_chunk, in_chunks, split
from shared.distributed import broadcast, gather, local_slice, world_size
from shared.momentum import Teacher, bank_size, enqueue, mixed_negatives, random_bank
from shared.notices import notice
from shared.pairs import paired_views, unit_rows, with_own_negatives
from shared.precision import bfloat16, upcast
from shared.ranges import COUNT, require, require_ranges, require_words
from vision.augmentation import POLICIES
from vision.config import Config
from vision.encoder import (
    check_backbone,
    encoder_of,
    fixed_size,
    head,
    name_of,
    width_of,
)
from vision.export import started
from vision.swav import Crops, crop_pairs

Compared = tuple[list[Pairs], list[Tensor]]
Given = TypeVar("Given")


class Networks(nn.Module):
    """The encoder, its head, and the other modules of the configuration's method.

    Args:
        config: names backbone, stem, widths and method.
        images: the number of training images, each with an entry in CMC's memory; a queue that
            is longer is shortened, and a notice says so. 0: not known.
    """

    predictor: nn.Module | None
    teacher: Teacher | None
    prototypes: nn.Linear | None
    colour_head: nn.Module | None
    queue: Tensor | None
    memory: Tensor | None

    def __init__(self, config: Config, images: int = 0) -> None:
        super().__init__()
        lab = config.method == "cmc"
        self.encoder = encoder_of(
            config.backbone, config.stem, size=config.image_size, heads=config.heads, lab=lab
        )
        if config.init is not None:
            started(self.encoder, config, config.init)
        self.dim = width_of(self.encoder, config.backbone, config.image_size)
        make_head = partial(
            head,
            self.dim // 2 if lab else self.dim,
            config.head_hidden,
            config.head_output,
            layers=config.head_layers,
            output_norm=config.head_output_norm,
            output_scale=config.head_output_scale,
        )
        self.head = make_head()
        self.predictor = self.teacher = self.prototypes = self.colour_head = None
        queue = memory = None
        match config.method:
            case "moco_v2":
                self.teacher = Teacher(self.encoder, self.head)
                keys = config.queue
                if 0 < images < keys:
                    keys = bank_size(keys, images)
                    notice(
                        f"queue {config.queue} is longer than the {images} images, so that it "
                        f"would hold keys of the query's own image as negatives: {keys} are kept"
                    )
                queue = random_bank(keys, config.head_output)
            case "moco_v3" | "byol":
                self.predictor = head(
                    config.head_output, config.predictor_hidden, config.head_output
                )
                self.teacher = Teacher(self.encoder, self.head)
            case "swav":
                self.prototypes = nn.Linear(config.head_output, config.prototypes, bias=False)
                if config.queue:  # of zeros until it is full
                    queue = torch.zeros(2, config.queue, config.head_output)
            case "cmc":
                self.colour_head = make_head()
                # As in its program: uniform numbers, of unit mean squared norm.
                bound = math.sqrt(3 / config.head_output)
                memory = torch.rand(2, images, config.head_output) * 2 * bound - bound
        self.register_buffer("queue", queue)
        self.register_buffer("memory", memory)
        self.memory_momentum = config.memory_momentum
        # Indices of the step's images, those of all processes, for the memory.
        self.samples: Tensor | None = None
        self.epoch = 0.0  # of the step, for what starts at a certain epoch
        self.queue_from = config.queue_from
        self._is_full = False  # SwAV's queue

    def follow(self, momentum: float) -> None:
        """Update the teacher, if there is one; ``momentum`` is the share of itself it keeps."""
        if self.teacher is not None:
            self.teacher.follow(self.encoder, self.head, momentum)

    def full_queue(self) -> Tensor | None:
        """SwAV's queue once it is full, which is checked until then; None before and without."""
        if self.queue is None or self.epoch < self.queue_from:
            return None
        self._is_full = self._is_full or bool(self.queue[:, -1].any())
        return self.queue if self._is_full else None

    @torch.no_grad()
    def remember(self, pairs: Pairs, *others: Pairs) -> None:
        """Replace the oldest keys of the queue, if there is one, by those of the batch.

        CMC's memory moves towards the embeddings of both directions. On several processes the batch
        is that of all of them.
        """
        if self.memory is not None:
            momentum = self.memory_momentum
            for memory, direction in zip(self.memory, (pairs, *others), strict=True):
                anchor = unit_rows(upcast(gather(direction.anchor.detach())))
                moved = momentum * memory[self.samples] + (1 - momentum) * anchor
                memory[self.samples] = unit_rows(moved)
        if self.queue is None:
            return
        if not isinstance(pairs, Crops):
            enqueue(self.queue, pairs.candidate[: len(pairs.anchor) * world_size()])
        elif self.epoch >= self.queue_from:
            for bank, crop in zip(self.queue, pairs.crops, strict=False):  # of the large ones
                enqueue(bank, gather(crop.detach()))


def simclr(config: Config, networks: Networks, first: Tensor, second: Tensor) -> Compared:
    """Both views through one network, in separate passes (batch norm sees one view at a time)."""
    both = [_encoded(config, networks, networks.head, view) for view in (first, second)]
    (x, z), features = ([outputs[item] for outputs in both] for item in (0, 1))
    return [paired_views(x, z, config.pairs, gather=gather)], features


def moco_v2(config: Config, networks: Networks, first: Tensor, second: Tensor) -> Compared:
    """Queries against the teacher's keys; negatives come from the queue only (He et al. 2020).

    With ``config.mixed``, mixtures of the hardest ones are added (Kalantidis et al. 2020).
    """
    feature = networks.encoder(first)
    query = networks.head(feature)
    key = _teacher(networks)(second)
    pairs = query_key(query, key, networks.queue, in_batch=False, gather=gather)
    if config.mixed is not None and networks.queue is not None:
        if networks.epoch >= config.mixed_from:
            hardest, two, one = config.mixed
            numbers = {"hardest": hardest, "pairs": two, "with_query": one}
            mixed = mixed_negatives(query, networks.queue, **numbers, together=True)
            pairs = with_own_negatives(pairs, mixed)
    return [pairs], [feature]


def moco_v3(config: Config, networks: Networks, first: Tensor, second: Tensor) -> Compared:
    """Predicted queries against the teacher's keys of the batch (Chen et al. 2021); also BYOL.

    One direction, first to second view; with ``config.symmetric`` both.
    """
    directions = [(first, second), (second, first)][: 2 if config.symmetric else 1]
    pairs, features = [], []
    for query_view, key_view in directions:
        query, feature = _encoded(
            config, networks, lambda x: _predictor(networks)(networks.head(x)), query_view
        )
        teacher = _teacher(networks)
        key = in_chunks(precise(config, teacher), split(config.chunk, key_view), teacher)
        pairs.append(query_key(query, key, gather=gather))
        features.append(feature)
    return pairs, features


def swav(config: Config, networks: Networks, *crops: Tensor) -> Compared:
    """Crops against prototypes (Caron et al. 2020): two large crops, then any number of small ones.

    As in its program, crops of one size share a forward pass of the backbone, and all of them one
    of the head, so that batch norms see them together.
    """
    if networks.prototypes is None:
        raise ValueError("these networks were made for a method without prototypes")
    weight = networks.prototypes.weight
    with torch.no_grad():
        weight.copy_(unit_rows(weight))
    passes = [crops[:2], crops[2:]][: 2 if config.small_crops else 1]
    features = torch.cat([networks.encoder(torch.cat(views)) for views in passes])
    embeddings = networks.head(features).unflatten(0, (len(crops), -1))
    still = networks.epoch < config.prototypes_still
    prototypes = weight.detach() if still else weight
    pairs = crop_pairs(embeddings, prototypes, networks.full_queue(), gather=gather)
    return [pairs], list(features.unflatten(0, (len(crops), -1))[:2])


def cmc(config: Config, networks: Networks, images: Tensor, *_: Tensor) -> Compared:
    """Lightness against the memory of colours, and the reverse (Tian et al. 2020).

    As in its program, an image's positive is its own entry in the other memory, and the negatives
    are entries drawn with replacement; here they are drawn once for the batch.
    """
    if networks.memory is None or networks.colour_head is None or networks.samples is None:
        raise ValueError("cmc needs networks made for it, and the numbers of the step's images")
    features = networks.encoder(images)
    lightness, colours = features.chunk(2, dim=1)
    embeddings = networks.head(lightness), networks.colour_head(colours)
    count = networks.memory.shape[1]
    drawn = broadcast(torch.randint(count, (config.queue,), device=networks.memory.device))
    samples = networks.samples[local_slice(len(networks.samples))]
    pairs = [
        query_key(query, other[samples], other[drawn], in_batch=False, gather=gather)
        for query, other in zip(embeddings, (networks.memory[1], networks.memory[0]), strict=True)
    ]
    return pairs, [features]


def _encoded(
    config: Config, networks: Networks, head: Callable[[Tensor], Tensor], view: Tensor
) -> tuple[Tensor, Tensor]:
    """The head's (B, D) and the backbone's features (B, H) of a view, in the batch's chunks."""

    def both(images: Tensor) -> tuple[Tensor, Tensor]:
        feature = networks.encoder(images)
        return head(feature), feature

    embedding, features = in_chunks(precise(config, both), split(config.chunk, view), networks)
    return embedding, features


METHODS: dict[str, Callable[..., Compared]] = {
    "simclr": simclr,
    "moco_v2": moco_v2,
    "moco_v3": moco_v3,
    "byol": moco_v3,  # they differ in the loss alone
    "swav": swav,
    "cmc": cmc,
}


def compare(config: Config, networks: Networks, *views: Tensor) -> Compared:
    """The pairs of a batch, one for each direction, and the student's features.

    Args:
        config: names the method.
        networks: made for the same configuration.
        views: (B, 3, S, S) each: the student's and the teacher's, and SwAV's small crops; one
            for CMC.
    """
    return METHODS[config.method](config, networks, *views)


def precise(config: Config, function: Callable[[Tensor], Given]) -> Callable[[Tensor], Given]:
    """A function of a chunk of images in the configuration's precision, whenever it is called.

    The backward pass calls it again, when every context around :func:`compare` has been left.
    """
    if config.chunk is None:
        return function

    def called(images: Tensor) -> Given:
        with bfloat16(images.device.type, enabled=config.precision == "bfloat16"):
            return function(images)

    return called


def check(config: Config) -> None:
    """Refuse an inconsistent configuration."""
    require_words(config)
    check_backbone(config.backbone, config.stem, half=config.method == "cmc", heads=config.heads)
    check_chunk(config.chunk)
    faults = itertools.chain(
        _faults_of_loss(config),
        _faults_of_options(config),
        FAULTS[config.method](config) if config.method in FAULTS else (),
        _faults_of_images(config),
        _faults_of_training(config),
    )
    for fault in faults:
        raise ValueError(fault)
    require_ranges(config)


# Losses that need one method, and why that takes no other.
LOSSES = {
    "byol": ("alignment", "it has no negatives, and the method keeps it from collapse"),
    "swav": ("swapped_prediction", "it compares with prototypes, which the method has"),
}
# Options of some methods: the value that stands for none, and the methods.
OPTIONS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "pairs": ("both", ("simclr",)),
    "symmetric": (False, ("moco_v3", "byol")),
    "chunk": (None, ("simclr", "moco_v3", "byol")),  # the others have no negatives in the batch
    "mixed": (None, ("moco_v2",)),
    "small_crops": (0, ("swav",)),
}


def _faults_of_loss(config: Config) -> Iterator[str]:
    loss = config.objective.loss
    name = loss.function.__name__
    for method, (own_loss, why) in LOSSES.items():
        if (config.method == method) is not (loss.identity == own_loss):
            yield (
                f"method {method} and the loss {own_loss} go together, since {why}; got "
                f"{config.method} and {name}"
            )
    if config.gamma_schedule and loss.identity != "max_margin":
        yield f"gamma_schedule is for kernels; {name} has no kernel"


def _faults_of_options(config: Config) -> Iterator[str]:
    for name, (none, methods) in OPTIONS.items():
        if getattr(config, name) != none and config.method not in methods:
            yield (
                f"{name} is not used by method {config.method}; omit it, or use method "
                f"{' or '.join(methods)}"
            )
    if config.mixed is None and config.mixed_from:
        yield f"mixed_from {config.mixed_from:g} needs mixed, which is None; set both"


def _faults_of_moco_v2(config: Config) -> Iterator[str]:
    require("queue", config.queue, COUNT)
    mixed = config.mixed
    if mixed is not None and (min(mixed) < 0 or not 1 <= mixed[0] <= config.queue):
        yield (
            f"mixed is (N, s, s'), N from 1 to the queue's {config.queue} and the others at "
            f"least 0; got {mixed}"
        )


def _faults_of_swav(config: Config) -> Iterator[str]:
    if config.prototypes < 2:
        yield f"prototypes {config.prototypes}: a single one cannot discriminate; use 2"


def _faults_of_cmc(config: Config) -> Iterator[str]:
    if config.statistics != "none":
        yield (
            f"cmc converts images in [0, 1] to Lab; set statistics to 'none', not "
            f"{config.statistics!r}"
        )
    if config.queue < 1:
        yield f"queue {config.queue}: cmc's only negatives come from it; use 1 or more"
    if not 0 <= config.memory_momentum < 1:
        yield f"memory_momentum is from 0 to below 1; got {config.memory_momentum}"


FAULTS: Mapping[str, Callable[[Config], Iterator[str]]] = {
    "moco_v2": _faults_of_moco_v2,
    "swav": _faults_of_swav,
    "cmc": _faults_of_cmc,
}


def _faults_of_images(config: Config) -> Iterator[str]:
    small = config.method == "swav" and config.small_crops
    sizes = {config.image_size, config.test_size or config.image_size}
    sizes |= {config.small_size} if small else set()
    if len(sizes) > 1 and fixed_size(config.backbone):
        yield (
            f"{name_of(config.backbone)} is built for one image size; got "
            f"{', '.join(map(str, sorted(sizes)))}, make them equal or use another backbone"
        )
    if isinstance(config.augmentations, str) or len(config.augmentations) != 2:
        yield f"augmentations are a pair, of both views; got {config.augmentations!r}"
        return
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
    if config.calibrated and config.weights is not None:
        yield "calibrated is for an untrained encoder; omit weights"
    if config.calibrated and config.epochs:
        yield "calibrated is for an untrained encoder; set epochs = 0"
    if config.batch_size < 2:
        yield f"batch_size {config.batch_size}: a single image has no negatives; use 2"


def _teacher(networks: Networks) -> Teacher:
    if networks.teacher is None:
        raise ValueError("these networks were made for a method without a teacher")
    return networks.teacher


def _predictor(networks: Networks) -> nn.Module:
    if networks.predictor is None:
        raise ValueError("these networks were made for a method without a predictor")
    return networks.predictor
