"""Encoders and heads.

A backbone is one of the ResNets here, any network of timm by its name, or a function that makes
one: ``() -> network``, (B, 3, S, S) -> (B, H).

Shapes: B images, S side in pixels, H features of the backbone, D dimensions of the head.
"""

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from shared.experiment.compat import make_torchvision_importable
from shared.experiment.export import stating
from shared.modes import evaluating
from shared.ranges import COUNT, optional, require

make_torchvision_importable()

from torchvision.models.resnet import (  # noqa: E402 (needs the line above)
    BasicBlock,
    Bottleneck,
    ResNet,
    conv1x1,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
)

from vision.config import Backbone, Stem  # noqa: E402

STEMS = get_args(Stem)
LAB = "lab"  # the ``colours`` of an export: two networks, of lightness and of colours
UNPOOLED = ("cifar", "strided", "small_padding_2")  # without the max pooling


class SmallResNet(nn.Module):
    """Three stages of n residual blocks of W, 2W and 4W channels: (B, 3, S, S) -> (B, 4W).

    The networks for 32 pixels of He et al. 2016, "Deep Residual Learning", Section 4.2 (6n + 2
    layers), made of torchvision's parts under its names and with the first layers of its larger
    ones. The smallest, twice as wide as there, has 0.31M parameters with a 3x3 stem.
    """

    def __init__(self, width: int = 32, blocks: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        more = range(1, blocks)
        self.layer1 = nn.Sequential(*(BasicBlock(width, width) for _ in range(blocks)))
        self.layer2 = nn.Sequential(
            _halving_block(width), *(BasicBlock(2 * width, 2 * width) for _ in more)
        )
        self.layer3 = nn.Sequential(
            _halving_block(2 * width), *(BasicBlock(4 * width, 4 * width) for _ in more)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, 4W)."""
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features: Tensor = self.layer3(self.layer2(self.layer1(stem))).mean((2, 3))
        return features


def _halving_block(channels: int) -> BasicBlock:
    """A block that halves the side and doubles the channels."""
    downsample = nn.Sequential(conv1x1(channels, 2 * channels, 2), nn.BatchNorm2d(2 * channels))
    return BasicBlock(channels, 2 * channels, 2, downsample)


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "resnet8": SmallResNet,
    "resnet18": resnet18,
    "resnet20": partial(SmallResNet, 16, 3),
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
}
WIDTH = {
    "resnet8": 128,
    "resnet18": 512,
    "resnet20": 64,
    "resnet34": 512,
    "resnet50": 2048,
    "resnet101": 2048,
}


class _HalfResNet(ResNet):
    """torchvision's ResNet with half as many channels after its stem."""

    def _make_layer(self, block: Any, planes: int, *others: Any, **options: Any) -> nn.Sequential:
        layers: nn.Sequential = super()._make_layer(block, planes // 2, *others, **options)
        return layers


HALVES: dict[str, Callable[[], nn.Module]] = {
    "resnet8": partial(SmallResNet, 16),
    "resnet18": partial(_HalfResNet, BasicBlock, [2, 2, 2, 2]),
    "resnet20": partial(SmallResNet, 8, 3),
    "resnet34": partial(_HalfResNet, BasicBlock, [3, 4, 6, 3]),
    "resnet50": partial(_HalfResNet, Bottleneck, [3, 4, 6, 3]),
    "resnet101": partial(_HalfResNet, Bottleneck, [3, 4, 23, 3]),
}


def make_encoder(
    backbone: Backbone = "resnet18",
    stem: Stem = "cifar",
    *,
    size: int = 224,
    channels: int = 3,
    half: bool = False,
    heads: int | None = None,
) -> nn.Module:
    """A backbone without its classifier: (B, 3, S, S) -> (B, H).

    The parameters of a ResNet of :data:`BUILDERS` have torchvision's names, those of another
    network timm's.

    Args:
        backbone: of :data:`BUILDERS`, from ``"resnet8"`` (see :class:`SmallResNet`) to
            ``"resnet101"``; any name of ``timm.list_models()``; or a function that makes a network.
        stem: of a ResNet here. ``"cifar"``: 3x3 convolution of stride 1, no pooling;
            ``"strided"``: the same of stride 2; ``"small"``: that of stride 1 with torchvision's
            max pooling; ``"small_padding_2"``: ``"cifar"`` with padding 2, as solo-learn has it,
            whose maps have 2 pixels more; ``"imagenet"``: torchvision's 7x7 of stride 2 with
            pooling. Every other network has its own first layers, which ``"imagenet"`` keeps.
        size: S, for networks that are built for one (ViT, Swin).
        channels: of the images, if not 3.
        half: half as wide, H / 2 features; see :class:`LabEncoder`.
        heads: attention heads of a transformer of timm; None: timm's number. No tensor shows it.

    Raises:
        ValueError: an unknown backbone or stem.

    Source: Rho et al. 2023 and Robinson et al. 2021 for the small stems; the strided one is
    additional.
    """
    check_backbone(backbone, stem, half=half, heads=heads)
    if backbone in BUILDERS:
        network: Any = (HALVES if half else BUILDERS)[str(backbone)]()
        network.fc = nn.Identity()
        side, stride = (7, 2) if stem == "imagenet" else (3, 2 if stem == "strided" else 1)
        if stem != "imagenet" or channels != 3:
            first = network.conv1.out_channels
            padding = 2 if stem == "small_padding_2" else side // 2
            network.conv1 = nn.Conv2d(channels, first, side, stride, padding, bias=False)
            nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        if stem in UNPOOLED:
            network.maxpool = nn.Identity()
    elif callable(backbone):
        network = backbone()
    else:
        import timm  # takes a second, which the ResNets here need not

        options: dict[str, Any] = {"img_size": size} if fixed_size(backbone) else {}
        if heads is not None:
            options["num_heads"] = heads
        try:
            network = timm.create_model(backbone, num_classes=0, in_chans=channels, **options)
        except (AssertionError, TypeError) as error:
            if heads is None:
                raise
            raise ValueError(f"{backbone} cannot have {heads} attention heads: {error}") from error
    model: nn.Module = network.to(memory_format=torch.channels_last)
    if callable(backbone):
        return model
    return stating(
        model,
        backbone=backbone,
        stem=stem,
        heads=None if heads is None else str(heads),
        colours=None,
        **({"image_size": str(size)} if fixed_size(backbone) else {}),
    )


def check_backbone(
    backbone: Backbone, stem: Stem, *, half: bool = False, heads: int | None = None
) -> None:
    """Refuse an unknown backbone, or one that does not go with this stem or with heads."""
    require("heads", heads, optional(COUNT))
    if heads is not None and (callable(backbone) or backbone in BUILDERS):
        raise ValueError(f"{name_of(backbone)} takes no heads; they are of timm's transformers")
    if stem not in STEMS:
        raise ValueError(f"stem is one of {', '.join(STEMS)}; got {stem!r}")
    if backbone in BUILDERS:
        return
    if not callable(backbone):
        import timm

        if not timm.is_model(backbone):
            names = dict.fromkeys([*BUILDERS, *timm.list_models()])
            near = difflib.get_close_matches(backbone, names, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "see timm.list_models()"
            raise ValueError(
                f"backbone is one of {', '.join(BUILDERS)}, a timm model or a function; got "
                f"{backbone!r}: {hint}"
            )
    if half:
        known = ", ".join(BUILDERS)
        raise ValueError(f"cmc needs half the width, of {known}; got {name_of(backbone)}")
    if stem != "imagenet":
        name = name_of(backbone)
        raise ValueError(f"{name} has its own first layers: set stem to 'imagenet', not {stem!r}")


def fixed_size(backbone: Backbone) -> bool:
    """Whether a network of timm is built for images of one size."""
    if callable(backbone) or backbone in BUILDERS:
        return False
    import timm

    known = timm.get_pretrained_cfg(backbone)
    return known is not None and bool(known.fixed_input_size)


def name_of(backbone: Backbone) -> str:
    """What a backbone is called."""
    return backbone if isinstance(backbone, str) else backbone.__name__


def width_of(network: nn.Module, backbone: Backbone, size: int) -> int:
    """H of an encoder on the CPU; unless it is a ResNet defined here, found by a forward pass.

    network: (B, 3, S, S) -> (B, H). size: S.
    """
    if backbone in WIDTH:
        return WIDTH[str(backbone)]
    with torch.no_grad(), evaluating(network):
        features = network(torch.zeros(2, 3, size, size))
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"a backbone returns features (B, H), {name_of(backbone)} returns {shape} for 2 "
            f"images; remove its classifier and pool its feature maps"
        )
    return features.shape[1]


class LabEncoder(nn.Module):
    """CMC's encoder: (B, 3, S, S) in [0, 1], RGB -> (B, H), of two networks half as wide.

    The first sees the lightness of CIE Lab, the second its two colours; the first half of the
    features is the first's. A network of half the width has half the channels after its stem; H is
    that of one network of full width.

    Source: Tian et al. 2020 (CMC) and the ResNets of its program.
    """

    centre: Tensor
    half_range: Tensor
    xyz: Tensor

    def __init__(self, backbone: Backbone, stem: Stem) -> None:
        super().__init__()
        self.lightness = make_encoder(backbone, stem, channels=1, half=True)
        self.colours = make_encoder(backbone, stem, channels=2, half=True)
        # On the encoder's device, so that no step copies them there; no part of its weights.
        for name, constant in (("centre", _LAB_CENTRE), ("half_range", _LAB_HALF), ("xyz", _XYZ)):
            self.register_buffer(name, constant.clone(), persistent=False)
        stating(self, backbone=name_of(backbone), stem=stem, heads=None, colours=LAB)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, H)."""
        with torch.autocast(images.device.type, enabled=False):  # the cube root of dark values
            lab = (rgb_to_lab(images.float(), self.xyz) - self.centre) / self.half_range
        return torch.cat([self.lightness(lab[:, :1]), self.colours(lab[:, 1:])], dim=1)


def encoder_of(
    backbone: Backbone, stem: Stem, *, size: int, heads: int | None, lab: bool
) -> nn.Module:
    """The encoder that a method trains: CMC's with ``lab``, else :func:`make_encoder`'s."""
    if lab:
        return LabEncoder(backbone, stem)
    return make_encoder(backbone, stem, size=size, heads=heads)


# Middle and half of the ranges that CMC's program takes for L, a and b.
_LAB_CENTRE = torch.tensor([50.0, 6.025, -6.6895])[:, None, None]
_LAB_HALF = torch.tensor([50.0, 92.208, 101.1675])[:, None, None]
# Of sRGB, linear, to CIE XYZ; rows divided by the white of D65 seen by the observer of 2 degrees.
_XYZ = torch.tensor(
    [
        [0.412453, 0.357580, 0.180423],
        [0.212671, 0.715160, 0.072169],
        [0.019334, 0.119193, 0.950227],
    ]
) / torch.tensor([[0.95047], [1.0], [1.08883]])


def rgb_to_lab(images: Tensor, to_xyz: Tensor = _XYZ) -> Tensor:
    """CIE Lab of sRGB images (B, 3, S, S) in [0, 1]: L in [0, 100], a and b about [-108, 99].

    The definition is scikit-image's, with the D65 white point. ``to_xyz`` is the constant (3, 3) of
    linear sRGB to XYZ, on the device of the images.
    """
    dark = images <= 0.04045
    linear = torch.where(dark, images / 12.92, ((images.clamp(min=0) + 0.055) / 1.055) ** 2.4)
    xyz = torch.einsum("ij,bjhw->bihw", to_xyz.to(images), linear)
    bright = xyz > 0.008856
    # The cube root's derivative is unbounded at 0, which the branch not selected must not see.
    root = torch.where(bright, xyz, 1.0) ** (1 / 3)
    x, y, z = torch.where(bright, root, 7.787 * xyz + 16 / 116).unbind(1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)


def head(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    layers: Literal[1, 2] = 2,
    output_norm: bool = False,
    output_scale: bool = True,
) -> nn.Sequential:
    """A projection head or predictor: linear, batch norm, ReLU, linear: (B, inputs) -> (B, D).

    Args:
        inputs: width of the input.
        hidden: width of the middle layer.
        outputs: D.
        layers: 1 leaves out all but the last layer (the first MoCo).
        output_norm: a batch norm without trainable shift after the last layer (MMCL on ImageNet).
        output_scale: whether that batch norm has a trainable scale (MoCo v3's has none).
    """
    modules: list[nn.Module] = []
    if layers == 2:
        modules += [
            nn.Linear(inputs, hidden, bias=False),  # the batch norm has a bias
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
        ]
        inputs = hidden
    modules.append(nn.Linear(inputs, outputs, bias=not output_norm))
    if output_norm:
        norm = nn.BatchNorm1d(outputs, affine=output_scale)
        if output_scale:
            norm.bias.requires_grad_(False)
        modules.append(norm)
    return nn.Sequential(*modules)
