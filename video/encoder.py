"""Encoders of clips, and SimCLR and MoCo: which clips of a batch are compared with which.

Shapes: B videos, T frames of a clip, S side in pixels, H features of the encoder, D dimensions of
the head, Q keys in the queue.

Networks are S3D and, for small clips, R(2+1)D with configurable strides. Two features without
training, a thumbnail and a colour histogram, are encoders as well: they are trivial baselines that
a trained network has to beat.

A method is a function ``(config, networks, first, second) -> (pairs, features)``: the pairs, and
the student's features, to which CLLR's projection is applied. [CoCLR] is Han et al. 2020
("Self-supervised Co-training for Video Representation Learning") with its program.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool3d, pad
from torch.nn.modules.utils import _triple

from shared import Pairs, query_key
from shared.chunks import check_chunk, in_chunks, split
from shared.distributed import broadcast, gather, local_slice, world_size
from shared.errors import UserError, suggestion
from shared.experiment.compat import make_torchvision_importable
from shared.experiment.export import stating
from shared.experiment.weights import initialise
from shared.modes import evaluating
from shared.momentum import Teacher, enqueue, random_bank
from shared.pairs import paired_views
from shared.ranges import COUNT, require, require_ranges, require_words
from video.augmentation import MEAN, STD
from video.config import BASELINES, STRIDES, Config

make_torchvision_importable()

from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D  # noqa: E402
from torchvision.models.video.s3d import (  # noqa: E402 (needs the line above)
    SepInceptionBlock3D,
    TemporalSeparableConv,
)
from torchvision.ops.misc import Conv3dNormActivation  # noqa: E402

Compared = tuple[Pairs, list[Tensor]]

CHANNELS_LAST = torch.channels_last_3d
TORCHVISION_EPSILON = 1e-3  # of the batch norms of torchvision's S3D
DEVIATION = 0.01  # of the convolutions' initial weights; [CoCLR]
# Channels of S3D's blocks in torchvision's order; size, stride and padding of its poolings.
INCEPTIONS: tuple[tuple[int, ...], ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (3, 2, 1),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (2, 2, 0),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
# Smaller clips vanish before the last pooling. With fewer than 8 frames torch's backward pass of
# the first convolution over time is wrong on a CPU, or crashes (seen with 2.13).
LEAST_FRAMES, LEAST_SIDE = 8, 17
# MoCo's batch norms see the batch in this many groups: [CoCLR] trains on two devices.
GROUPS = 2


class MaxPool3d(nn.MaxPool3d):
    """torch's, with a deterministic gradient on a GPU where deterministic algorithms are required.

    torch has none there and raises. Windows are then reduced one axis at a time, which is slower;
    among equal values the gradient is divided, where torch's goes to the first.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, T, S, S) -> the same with T and S reduced."""
        if not (maps.is_cuda and torch.are_deterministic_algorithms_enabled()):
            pooled: Tensor = super().forward(maps)
            return pooled
        options = map(_triple, (self.kernel_size, self.stride, self.padding))
        return pooled_by_axis(maps, *options)


def pooled_by_axis(
    maps: Tensor, sizes: Sequence[int], strides: Sequence[int], paddings: Sequence[int]
) -> Tensor:
    """Maxima over windows of (B, C, T, S, S) as elementwise maxima of shifted slices."""
    for axis, (size, stride, padding) in enumerate(
        zip(sizes, strides, paddings, strict=True), start=2
    ):
        before_and_after = [0, 0] * (maps.dim() - 1 - axis) + [padding, padding]
        padded = pad(maps, before_and_after, value=-torch.inf)
        last = (padded.shape[axis] - size) // stride * stride  # where the last window begins
        whole = (slice(None),) * axis
        slices = (padded[(*whole, slice(i, i + last + 1, stride))] for i in range(size))
        maps = reduce(torch.maximum, slices)
    return maps


class S3D(nn.Module):
    """S3D without gates and classifier, and the mean over time and place of its last features.

    At width 1 its parameters have the names and shapes of torchvision's ``s3d().features``, 7.9
    million of them. All weights of convolutions start from N(0, 0.01) as in [CoCLR].

    Args:
        width: factor on the number of channels of each layer, rounded to multiples of 8, at least
            8. ``dim``, the resulting H, is 1024 at width 1.
        momentum: of the batch norms, the share of the batch in the running statistics.
        epsilon: of the batch norms.

    Source: Xie et al. 2018, "Rethinking Spatiotemporal Feature Learning".
    """

    def __init__(self, *, width: float = 1.0, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        norm = partial(nn.BatchNorm3d, eps=epsilon, momentum=momentum)
        scaled = partial(_scaled_channels, width=width)

        inputs = scaled(192)
        layers: list[nn.Module] = [
            TemporalSeparableConv(3, scaled(64), 7, 2, 3, norm),
            MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
            Conv3dNormActivation(scaled(64), scaled(64), kernel_size=1, stride=1, norm_layer=norm),
            TemporalSeparableConv(scaled(64), inputs, 3, 1, 1, norm),
            MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        ]
        for channels in INCEPTIONS:
            if len(channels) == 3:
                layers.append(MaxPool3d(*channels))
                continue
            planes = [scaled(count) for count in channels]
            block = SepInceptionBlock3D(inputs, *planes, norm)
            block.branch3[0] = MaxPool3d(3, 1, 1)
            layers.append(block)
            inputs = planes[0] + planes[2] + planes[4] + planes[5]

        self.dim = inputs
        self.features = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv3d):
                # nearly twice as fast on a CPU
                module.weight.data = module.weight.contiguous(memory_format=CHANNELS_LAST)
                nn.init.normal_(module.weight, 0.0, DEVIATION)

    def forward(self, clips: Tensor) -> Tensor:
        """Features (B, H) float32 of clips (B, 3, T, S, S), T at least 8 and S at least 17.

        The mean is float32 under autocast as well: differences between videos are small compared
        with what their features have in common, which centring subtracts.
        """
        maps: Tensor = self.features(clips.contiguous(memory_format=CHANNELS_LAST))
        return maps.mean(dim=(2, 3, 4), dtype=torch.float32)


class R2Plus1D(nn.Module):
    """R(2+1)D with one block in each of four stages, and the mean over time and place.

    Each 3 x 3 x 3 convolution is split into one over 3 x 3 pixels, batch norm, ReLU, and one over 3
    frames, with as many channels in between as keep the number of parameters. The stem has 3 x 3
    pixels instead of 7 x 7, since clips are small.

    Args:
        width: factor on the channels of the stages, 64, 128, 256 and 512, rounded to multiples of
            8, at least 8; ``dim``, H, is the last of them.
        strides: of the stem, in space alone, and of the four stages, in space and time.
        momentum: of the batch norms, the share of the batch in the running statistics.
        epsilon: of the batch norms.

    Source: Tran et al. 2018, "A Closer Look at Spatiotemporal Convolutions for Action Recognition".
    """

    def __init__(
        self, *, width: float, strides: Sequence[int], momentum: float, epsilon: float
    ) -> None:
        super().__init__()
        inputs, *planes = (
            _scaled_channels(channels, width) for channels in (64, 64, 128, 256, 512)
        )
        between = (3 * inputs * 27) // (3 * 9 + inputs * 3)
        self.stem = nn.Sequential(
            nn.Conv3d(3, between, (1, 3, 3), (1, strides[0], strides[0]), (0, 1, 1), bias=False),
            nn.BatchNorm3d(between),
            nn.ReLU(inplace=True),
            nn.Conv3d(between, inputs, (3, 1, 1), 1, (1, 0, 0), bias=False),
            nn.BatchNorm3d(inputs),
            nn.ReLU(inplace=True),
        )
        stages = []
        for outputs, stride in zip(planes, strides[1:], strict=True):
            shortcut = None
            if stride > 1 or outputs != inputs:
                convolution = nn.Conv3d(inputs, outputs, 1, stride, bias=False)
                shortcut = nn.Sequential(convolution, nn.BatchNorm3d(outputs))
            stages.append(BasicBlock(inputs, outputs, Conv2Plus1D, stride, shortcut))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.dim = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                # more than twice as fast on a CPU
                module.weight.data = module.weight.contiguous(memory_format=CHANNELS_LAST)
            elif isinstance(module, nn.BatchNorm3d):
                module.momentum, module.eps = momentum, epsilon

    def forward(self, clips: Tensor) -> Tensor:
        """Features (B, H) float32 of clips (B, 3, T, S, S)."""
        maps: Tensor = self.stages(self.stem(clips.contiguous(memory_format=CHANNELS_LAST)))
        return maps.mean(dim=(2, 3, 4), dtype=torch.float32)


class Thumbnail(nn.Module):
    """The mean of all frames in 8 x 8 pixels, a feature without training; H is 192."""

    SIDE = 8
    dim = 3 * SIDE**2

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.zeros(0), persistent=False)  # holds the device

    def forward(self, clips: Tensor) -> Tensor:
        """Features (B, H) float32 of clips (B, 3, T, S, S)."""
        return adaptive_avg_pool3d(clips.float(), (1, self.SIDE, self.SIDE)).flatten(1)


class Colours(nn.Module):
    """The colour histogram of all pixels, 6 bins per channel; H is 216.

    For flow only its two channels vary, so that 6 x 6 bins are used.
    """

    STEPS = 6
    dim = STEPS**3
    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        shape = (3, 1, 1, 1)
        self.register_buffer("mean", torch.tensor(MEAN).view(shape), persistent=False)
        self.register_buffer("deviation", torch.tensor(STD).view(shape), persistent=False)

    def forward(self, clips: Tensor) -> Tensor:
        """Shares (B, H) float32 of the pixels of clips (B, 3, T, S, S), as normalised."""
        colours = clips.float() * self.deviation + self.mean
        steps = (colours * self.STEPS).long().clamp(0, self.STEPS - 1)
        bins = (steps[:, 0] * self.STEPS + steps[:, 1]) * self.STEPS + steps[:, 2]
        bins = bins.flatten(1)
        counts = torch.zeros(len(bins), self.dim, device=clips.device)
        counts.scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.float32))
        return counts / bins.size(1)


def encoder_of(config: Config) -> nn.Module:
    """The encoder that a configuration names, (B, 3, T, S, S) -> (B, H); its ``dim`` is H."""
    network = config.network
    if callable(network):
        return _network_of_function(network, config)
    # What no tensor shows. Files of an S3D from before there were others lack its name.
    facts: dict[str, str | None] = {
        name: json.dumps(getattr(config, name)) for name in ("batch_norm_epsilon", "modality")
    }
    if network != "s3d":
        facts |= {name: json.dumps(getattr(config, name)) for name in ("network", "strides")}
    return stating(_built_in_network(network, config), **facts)


def _built_in_network(network: str, config: Config) -> nn.Module:
    constants = {
        "width": config.width,
        "momentum": config.batch_norm_momentum,
        "epsilon": config.batch_norm_epsilon,
    }
    match network:
        case "s3d":
            return S3D(**constants)
        case "r2plus1d":
            return R2Plus1D(strides=config.strides, **constants)
        case "thumbnail":
            return Thumbnail()
        case "colours":
            return Colours()
    from video.pytorchvideo import Headless

    _check_name(network)
    return Headless(network, config.clip_frames, config.size)


def _check_name(network: str) -> None:
    """Refuse a name of no network."""
    from video.pytorchvideo import NETWORKS

    known = ("s3d", "r2plus1d", *BASELINES, *NETWORKS)
    if network not in known:
        raise ValueError(f"no network {network!r}{suggestion(network, known, 'there are')}")


def _network_of_function(make: Callable[[], Any], config: Config) -> nn.Module:
    """The module made by a user's function, with its width as ``dim``."""
    encoder: nn.Module = make()
    clips = torch.zeros(1, 3, config.clip_frames, config.size, config.size)
    with torch.no_grad(), evaluating(encoder):
        features = encoder(clips)
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"an encoder returns features (B, H), that of {make.__name__} returns {shape} for 1 "
            f"clip; remove its classifier and pool its feature maps"
        )
    encoder.dim = features.shape[1]  # type: ignore[assignment] # as of the encoders here
    return encoder


def name_of(network: str | Callable[[], Any]) -> str:
    """The name of a network."""
    return network if isinstance(network, str) else network.__name__


def _scaled_channels(channels: int, width: float) -> int:
    return max(8, 8 * int(channels * width / 8 + 0.5))


def autocast(precision: str, clips: Tensor) -> torch.autocast:
    """The precision on the device of the clips: "bfloat16" on a GPU alone.

    On a CPU the gradient of a bfloat16 convolution over two frames is wrong, up to NaN, in the
    versions of torch that were tried (2.13); its forward pass is correct.
    """
    kind = clips.device.type
    return torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16" and kind == "cuda")


def head(inputs: int, hidden: int, outputs: int, *, batch_norm: bool = False) -> nn.Sequential:
    """[CoCLR]'s projection head, linear, ReLU, linear: (B, inputs) -> (B, outputs).

    With ``batch_norm`` there is one after the first layer.
    """
    norm = [nn.BatchNorm1d(hidden)] if batch_norm else []
    return nn.Sequential(
        nn.Linear(inputs, hidden), *norm, nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )


class ShuffledTeacher(Teacher):
    """The moving average of the encoder with its head, which gives MoCo's keys from shuffled clips.

    Its batch norms are in training mode while the student's are. On several devices MoCo shuffles
    the clips among them, so that a query and its key are not normalised by the same videos, which
    would leak which key belongs to the query. On one device shuffling alone changes nothing: here
    the shuffled keys are encoded in groups, and so are the queries, unshuffled. The authors of MoCo
    do the same on one device, with batch norms that split the batch; with two groups a key and its
    query share half of their videos, as on [CoCLR]'s two devices. On several processes each is part
    of a group (:func:`shared.distributed.synchronise`), and the clips of all are shuffled.
    """

    @torch.no_grad()
    def forward(self, clips: Tensor) -> Tensor:
        """(B, 3, T, S, S) -> (B, D), row i of clip i."""
        everyone = gather(clips)
        order = broadcast(torch.randperm(len(everyone), device=clips.device))
        local = local_slice(len(everyone))
        keys = gather(embedded(self.head, in_groups(self.encoder, everyone[order[local]])))
        return keys[order.argsort()[local]]


def in_groups(encoder: nn.Module, clips: Tensor) -> Tensor:
    """Features (B, H) of clips (B, 3, T, S, S), each group normalised separately in training.

    With a head instead of the encoder: (B, D) of features (B, H). On several processes the groups
    are those of the processes.
    """
    if world_size() > 1:
        outputs: Tensor = encoder(clips)
        return outputs
    return torch.cat([encoder(group) for group in clips.chunk(GROUPS)])


def embedded(head: nn.Module, features: Tensor) -> Tensor:
    """MoCo's (B, D) of features (B, H): a head with a batch norm uses the encoder's groups."""
    if any(isinstance(module, nn.BatchNorm1d) for module in head.modules()):
        return in_groups(head, features)
    outputs: Tensor = head(features)
    return outputs


class Networks(nn.Module):
    """The encoder, its head, and with MoCo the teacher and the queue of its keys.

    Args:
        config: names network, widths, batch-norm constants and method.
        queue: Q, for MoCo.

    Raises:
        ValueError: a queue without keys.
    """

    def __init__(self, config: Config, queue: int) -> None:
        super().__init__()
        self.encoder = encoder_of(config)
        if config.init is not None:
            remedy = "set network, width, strides, modality and batch_norm_epsilon as in the file"
            match = initialise(self.encoder, config.init, remedy)
            # torchvision's S3D, known by its classifier.
            if (
                any(key.endswith("classifier.1.weight") for key in match.dropped)
                and config.network == "s3d"
                and config.batch_norm_epsilon != TORCHVISION_EPSILON
            ):
                raise UserError(
                    f"{config.init.file}: torchvision's S3D has batch norms with epsilon "
                    f"{TORCHVISION_EPSILON:g}; set batch_norm_epsilon={TORCHVISION_EPSILON:g}"
                )
        self.dim = int(self.encoder.dim)  # type: ignore[arg-type]
        self.head = head(
            self.dim, config.head_hidden, config.head_output, batch_norm=config.head_batch_norm
        )
        self.teacher: ShuffledTeacher | None = None
        self.queue: Tensor | None
        keys = None
        if config.method == "moco":
            self.teacher = ShuffledTeacher(self.encoder, self.head)
            keys = random_bank(queue, config.head_output)
        self.register_buffer("queue", keys)

    def follow(self, momentum: float) -> None:
        """Update the teacher, if there is one; ``momentum`` is the share of itself it keeps."""
        if self.teacher is not None:
            self.teacher.follow(self.encoder, self.head, momentum)

    def remember(self, pairs: Pairs) -> None:
        """Replace the oldest keys of the queue, if there is one, by those of the batch."""
        if self.queue is not None:
            enqueue(self.queue, pairs.candidate[: len(pairs.candidate) - len(self.queue)])


def simclr(config: Config, networks: Networks, first: Tensor, second: Tensor) -> Compared:
    """Both clips through one network in one forward pass of 2B.

    In separate passes, each clip would be normalised by the same videos as its positive.
    """

    def both(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        features = networks.encoder(torch.cat([first, second]))
        return *networks.head(features).chunk(2), *features.chunk(2)

    x, z, *features = in_chunks(both, split(config.chunk, first, second), networks)
    return paired_views(x, z, config.pairs, gather=gather), features


def moco(config: Config, networks: Networks, first: Tensor, second: Tensor) -> Compared:
    """Queries against the teacher's keys; negatives come from the queue ([CoCLR]'s InfoNCE)."""
    assert networks.teacher is not None
    feature = in_groups(networks.encoder, first)
    key = networks.teacher(second)
    query = embedded(networks.head, feature)
    pairs = query_key(query, key, networks.queue, in_batch=False, gather=gather)
    return pairs, [feature]


METHODS: dict[str, Callable[[Config, Networks, Tensor, Tensor], Compared]] = {
    "simclr": simclr,
    "moco": moco,
}


def compare(config: Config, networks: Networks, first: Tensor, second: Tensor) -> Compared:
    """The pairs of a batch and the student's features.

    first, second: (B, 3, T, S, S), the clips of the queries and of the keys.
    """
    return METHODS[config.method](config, networks, first, second)


def check(config: Config) -> None:
    """Refuse an invalid configuration."""
    require_words(config)
    require_ranges(config)
    if isinstance(config.network, str):
        _check_name(config.network)
    if config.method == "moco":
        require("queue", config.queue, COUNT)
    if config.objective.loss.identity == "alignment":
        raise ValueError(
            f"alignment has no negatives, and {config.method} nothing else to prevent collapse; "
            f"use another loss"
        )
    if config.method == "moco" and config.pairs != "both":
        raise ValueError(f"pairs {config.pairs!r} are SimCLR's; moco has its own")
    check_chunk(config.chunk)
    if config.chunk is not None and config.method == "moco":
        raise ValueError(
            "chunk is for negatives from the batch, moco has none; omit chunk, or use "
            "method 'simclr'"
        )
    if config.network in BASELINES and config.train:
        raise ValueError(f"network {config.network!r} has nothing to train; set train=False")
    if config.network in BASELINES and config.init is not None:
        raise ValueError(f"network {config.network!r} has no weights to start from; drop init")
    if config.network != "r2plus1d" and config.strides != STRIDES:
        raise ValueError(f"strides are for r2plus1d; {name_of(config.network)} has its own")
    if config.network not in ("s3d", "r2plus1d", *BASELINES) and config.width != 1:
        raise ValueError(
            f"width is for s3d and r2plus1d; {name_of(config.network)} has its own: set width=1"
        )
    if config.calibrate and config.train:
        raise ValueError("calibrate is for an untrained encoder; set train=False")
    if config.network == "s3d" and config.clip_frames < LEAST_FRAMES:
        raise ValueError(
            f"clip_frames {config.clip_frames} are too few for S3D; use {LEAST_FRAMES} or more"
        )
    if config.network == "s3d" and config.size < LEAST_SIDE:
        raise ValueError(f"size {config.size} is too small for S3D; use {LEAST_SIDE} or more")
    least = 2 * GROUPS if config.method == "moco" else 2
    if config.batch_size < least:
        raise ValueError(
            f"batch_size {config.batch_size}: {config.method} has nothing to compare or to "
            f"normalise a clip with; use {least} or more"
        )
