"""The ResNets here, networks of timm and functions of one's own."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import max_pool2d

from shared import Criterion, Objective, max_margin, term
from vision.config import Config
from vision.encoder import LabEncoder, head, make_encoder
from vision.methods import check, networks_of
from vision.methods.base import Step
from vision.train import make_optimiser, make_step

CONFIG = dataclasses.replace(
    Config().reduced(), head_hidden=16, head_output=8, batch_size=4, stem="imagenet", image_size=32
)
VIT = "vit_small_patch16_224"


def maps() -> nn.Module:
    return nn.Conv2d(3, 5, 3)


def pooled() -> nn.Module:
    """(B, 3, S, S) -> (B, 5)."""
    return nn.Sequential(maps(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


# The ResNets here


@pytest.mark.parametrize(
    ("stem", "first", "last"),
    [
        ("cifar", 32, 4),
        ("strided", 16, 2),
        ("small", 32, 2),
        ("small_padding_2", 34, 5),
        ("imagenet", 16, 1),
    ],
)
def test_the_stems_shrink_a_32_pixel_image_to_their_sides(stem: Any, first: int, last: int) -> None:
    network = make_encoder("resnet18", stem)
    seen: list[torch.Size] = []
    for layer in (network.conv1, network.layer4):
        layer.register_forward_hook(lambda _, __, output: seen.append(output.shape))
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 512)
    assert seen == [(2, 64, first, first), (2, 512, last, last)]


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
def test_parameters_are_torchvision_s(backbone: str) -> None:
    from torchvision import models

    theirs = {
        name: item.shape
        for name, item in getattr(models, backbone)().state_dict().items()
        if not name.startswith("fc.")
    }
    small = {**theirs, "conv1.weight": (64, 3, 3, 3)}
    for stem, expected in (("imagenet", theirs), ("cifar", small)):
        network = make_encoder(backbone, stem)
        assert {name: item.shape for name, item in network.state_dict().items()} == expected


@pytest.mark.parametrize("backbone", ["resnet8", "resnet18", "resnet20"])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_convolutions_start_as_he_et_al_say_by_their_outputs(backbone: str, stem: Any) -> None:
    """Normal, of variance 2 / (outputs times pixels of a kernel); norms are the identity."""
    torch.manual_seed(0)
    convolutions = 0
    for module in make_encoder(backbone, stem).modules():
        if isinstance(module, nn.Conv2d):
            convolutions += 1
            count = module.weight.numel()
            expected = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            found = float(module.weight.detach().std())
            assert found == pytest.approx(expected, rel=max(0.02, 3 / count**0.5))
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight.detach(), torch.ones(module.num_features))
            assert torch.equal(module.bias.detach(), torch.zeros(module.num_features))
    assert convolutions == {"resnet8": 9, "resnet18": 20, "resnet20": 21}[backbone]


@pytest.mark.parametrize(("backbone", "width"), [("resnet8", 32), ("resnet20", 16)])
def test_small_resnets_are_those_of_he_et_al(backbone: str, width: int) -> None:
    """Values by the equations of their blocks; 0.27M parameters of 20 layers, as in the paper."""
    network = make_encoder(backbone, "small").double().eval()
    images = torch.randn(2, 3, 21, 21, dtype=torch.float64)
    maps = max_pool2d(network.bn1(network.conv1(images)).relu(), 3, 2, 1)
    sides = [maps.shape[1:]]
    for stage in (network.layer1, network.layer2, network.layer3):
        for block in stage:
            inner = block.bn2(block.conv2(block.bn1(block.conv1(maps)).relu()))
            maps = (inner + (maps if block.downsample is None else block.downsample(maps))).relu()
        sides.append(maps.shape[1:])
    torch.testing.assert_close(network(images), maps.mean((2, 3)))
    shapes = [(width, 11), (width, 11), (2 * width, 6), (4 * width, 3)]
    assert sides == [(channels, side, side) for channels, side in shapes]
    if backbone == "resnet20":
        shortcuts = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
        count = sum(item.numel() for item in network.parameters()) - shortcuts
        assert count == 269_722 - 650  # with a classifier of 650


def test_heads_have_the_norms_that_they_are_asked_for() -> None:
    def kinds(network: nn.Sequential) -> list[str]:
        return [type(layer).__name__ for layer in network]

    plain = ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds(head(3, 4, 5)) == plain
    normed, bare = (head(3, 4, 5, output_norm=True, output_scale=scale) for scale in (True, False))
    assert kinds(normed) == kinds(bare) == [*plain, "BatchNorm1d"]
    assert normed[3].bias is None
    assert normed[4].weight.requires_grad
    assert not normed[4].bias.requires_grad
    assert bare[4].weight is bare[4].bias is None


# Any backbone


@pytest.mark.parametrize(
    ("backbone", "width"),
    [
        (pooled, 5),
        ("resnet20", 64),
        pytest.param(VIT, 384, marks=pytest.mark.slow),
        ("mobilenetv3_small_050", 1024),
    ],
)
def test_a_step_trains_every_layer(backbone: Any, width: int) -> None:
    loss = Objective(term(max_margin, gamma=0.1, cost=1.0))
    for method, objective in (("simclr", CONFIG.objective), ("moco_v3", loss)):
        config = dataclasses.replace(
            CONFIG, backbone=backbone, method=method, objective=objective, learning_rate=0.1
        )
        check(config)
        torch.manual_seed(0)
        networks = networks_of(config).train()
        criterion = Criterion(config.objective, networks.dim)
        before = {name: item.detach().clone() for name, item in networks.encoder.named_parameters()}
        optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))
        views = tuple(torch.randn(4, 3, 32, 32) for _ in range(2))
        parts = make_step(config, networks, criterion, optimiser)(views, Step())
        assert networks.dim == networks.head[0].in_features == width
        assert torch.isfinite(parts["loss"])
        after = dict(networks.encoder.named_parameters())
        assert not [name for name, item in before.items() if torch.equal(item, after[name])]


def test_an_encoder_states_what_its_tensors_do_not_show() -> None:
    named = {"stem": "imagenet", "colours": None}
    small = make_encoder("resnet8", "strided")
    assert small.facts == {**named, "backbone": "resnet8", "stem": "strided", "heads": None}
    vit = make_encoder("vit_tiny_patch16_224", "imagenet", size=32, heads=6)
    stated = {"backbone": "vit_tiny_patch16_224", "heads": "6", "image_size": "32"}
    assert vit.facts == {**named, **stated}
    assert vit.blocks[0].attn.num_heads == 6
    assert LabEncoder("resnet8", "small").facts["colours"] == "lab"


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: make_encoder("resnet35"), "resnet34"),
        (lambda: make_encoder("qqqqqq", "imagenet"), "list_models"),
        (lambda: make_encoder(pooled, "cifar"), "pooled"),
        (lambda: make_encoder("vit_smal_patch16_224", "imagenet"), VIT),
        (lambda: check(dataclasses.replace(CONFIG, backbone=VIT, test_size=64)), "32, 64"),
        (lambda: networks_of(dataclasses.replace(CONFIG, backbone=maps)), r"\(2, 5, 30, 30\)"),
    ],
)
def test_what_does_not_go_together_is_refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()
