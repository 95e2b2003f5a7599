"""Encoders and heads.

Shapes: B images, S side in pixels, H features of the backbone, D dimensions of the head.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from shared.compat import make_torchvision_importable

make_torchvision_importable()

from torchvision.models import resnet18, resnet50  # noqa: E402 (needs the line above)
from torchvision.models.resnet import BasicBlock, conv1x1  # noqa: E402

from vision.config import Backbone, Stem  # noqa: E402

STEMS = ("cifar", "strided", "small", "imagenet")


class SmallResNet(nn.Module):
    """Three residual blocks of W, 2W and 4W channels: (B, 3, S, S) -> (B, 4W).

    The smallest of the networks for 32 pixels of He et al. 2016, "Deep Residual Learning", Section
    4.2 (6n + 2 layers, n = 1), twice as wide, made of torchvision's parts under its names and with
    the first layers of its larger ones; of width 32 and with a 3x3 stem it has 0.31M parameters.

    Args:
        width: W.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(width, width))
        self.layer2 = nn.Sequential(_halving(width))
        self.layer3 = nn.Sequential(_halving(2 * width))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, 4W)."""
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features: Tensor = self.layer3(self.layer2(self.layer1(stem))).mean((2, 3))
        return features


def _halving(channels: int) -> BasicBlock:
    """A block that halves the side and doubles the channels."""
    downsample = nn.Sequential(conv1x1(channels, 2 * channels, 2), nn.BatchNorm2d(2 * channels))
    return BasicBlock(channels, 2 * channels, 2, downsample)


BUILDERS = {"resnet8": SmallResNet, "resnet18": resnet18, "resnet50": resnet50}
WIDTH: dict[str, int] = {"resnet8": 128, "resnet18": 512, "resnet50": 2048}


def encoder(backbone: Backbone = "resnet18", stem: Stem = "cifar") -> nn.Module:
    """A ResNet without its classifier: (B, 3, S, S) -> (B, H).

    Its parameters have torchvision's names.

    Args:
        backbone: ``"resnet8"`` (H = 128, see :class:`SmallResNet`), ``"resnet18"`` (H = 512) or
            ``"resnet50"`` (H = 2048) of torchvision.
        stem: ``"cifar"``: 3x3 convolution of stride 1, no pooling; ``"strided"``: the same of
            stride 2; ``"small"``: that of stride 1 with torchvision's max pooling; ``"imagenet"``:
            torchvision's 7x7 of stride 2 with pooling.

    Raises:
        ValueError: an unknown backbone or stem.

    Source: Rho et al. 2023 and Robinson et al. 2021 for the small stems; the strided one is ours.
    """
    if backbone not in BUILDERS:
        raise ValueError(f"backbone is one of {', '.join(BUILDERS)}; got {backbone!r}")
    if stem not in STEMS:
        raise ValueError(f"stem is one of {', '.join(STEMS)}; got {stem!r}")
    network = BUILDERS[backbone]()
    network.fc = nn.Identity()
    if stem != "imagenet":
        first, stride = network.conv1.out_channels, 2 if stem == "strided" else 1
        network.conv1 = nn.Conv2d(3, first, kernel_size=3, stride=stride, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    if stem in ("cifar", "strided"):
        network.maxpool = nn.Identity()
    made: nn.Module = network.to(memory_format=torch.channels_last)
    return made


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
    made: list[nn.Module] = []
    if layers == 2:
        made += [
            nn.Linear(inputs, hidden, bias=False),  # the batch norm has a shift of its own
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
        ]
        inputs = hidden
    made.append(nn.Linear(inputs, outputs, bias=not output_norm))
    if output_norm:
        norm = nn.BatchNorm1d(outputs, affine=output_scale)
        if output_scale:
            norm.bias.requires_grad_(False)
        made.append(norm)
    return nn.Sequential(*made)
