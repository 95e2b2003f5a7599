"""Encoders and heads.

Shapes: B images, S side in pixels, H features of the backbone, D dimensions of the head.
"""

import torch
from torch import nn

from shared.compat import make_torchvision_importable

make_torchvision_importable()

from torchvision.models import resnet18, resnet50  # noqa: E402 (needs the line above)

from vision.config import Backbone, Stem  # noqa: E402

BUILDERS = {"resnet18": resnet18, "resnet50": resnet50}
WIDTH: dict[str, int] = {"resnet18": 512, "resnet50": 2048}


def encoder(backbone: Backbone = "resnet18", stem: Stem = "cifar") -> nn.Module:
    """A ResNet of torchvision without its classifier: (B, 3, S, S) -> (B, H).

    Its parameters have torchvision's names.

    Args:
        backbone: ``"resnet18"`` (H = 512) or ``"resnet50"`` (H = 2048).
        stem: ``"cifar"``: 3x3 convolution of stride 1, no pooling; ``"small"``: the same with
            torchvision's max pooling; ``"imagenet"``: torchvision's 7x7 of stride 2 with pooling.

    Raises:
        ValueError: an unknown backbone or stem.

    Source: Rho et al. 2023 and Robinson et al. 2021 for the small stems.
    """
    if backbone not in BUILDERS:
        raise ValueError(f"backbone is one of {', '.join(BUILDERS)}; got {backbone!r}")
    if stem not in ("cifar", "small", "imagenet"):
        raise ValueError(f"stem is 'cifar', 'small' or 'imagenet'; got {stem!r}")
    network = BUILDERS[backbone]()
    network.fc = nn.Identity()
    if stem != "imagenet":
        network.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    if stem == "cifar":
        network.maxpool = nn.Identity()
    made: nn.Module = network.to(memory_format=torch.channels_last)
    return made


def head(inputs: int, hidden: int, outputs: int, *, output_norm: bool = False) -> nn.Sequential:
    """A projection head or predictor: linear, batch norm, ReLU, linear: (B, inputs) -> (B, D).

    Args:
        inputs: width of the input.
        hidden: width of the middle layer.
        outputs: D.
        output_norm: a batch norm without trainable shift after the last layer (MMCL on ImageNet).
    """
    layers: list[nn.Module] = [
        nn.Linear(inputs, hidden, bias=False),  # the batch norm has a shift of its own
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=not output_norm),
    ]
    if output_norm:
        norm = nn.BatchNorm1d(outputs)
        norm.bias.requires_grad_(False)
        layers.append(norm)
    return nn.Sequential(*layers)
