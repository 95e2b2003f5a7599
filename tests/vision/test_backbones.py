"""Backbones that no table has: other ResNets, networks of timm, functions of one's own."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Criterion, max_margin, term
from shared.objective import Objective
from vision.config import Config
from vision.encoder import make_encoder, width_of
from vision.methods import check, networks_of
from vision.methods.base import Networks, Step
from vision.train import make_optimiser, make_step

CONFIG = dataclasses.replace(
    Config().reduced(), head_hidden=16, head_output=8, batch_size=4, stem="imagenet", image_size=32
)
VIT = "vit_small_patch16_224"


class Pooled(nn.Module):
    """(B, 3, S, S) -> (B, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images).mean((2, 3))


def pooled() -> nn.Module:
    return Pooled()


def maps() -> nn.Module:
    return nn.Conv2d(3, 5, 3)


def check_with(**changes: Any) -> None:
    check(dataclasses.replace(CONFIG, **changes))


def step(config: Config) -> tuple[Networks, dict[str, Tensor], dict[str, Tensor]]:
    """Networks after a step on random views, its parts, and the parameters before it."""
    check(config)
    torch.manual_seed(0)
    networks = networks_of(config).train()
    criterion = Criterion(config.objective, networks.dim)
    before = {name: item.detach().clone() for name, item in networks.encoder.named_parameters()}
    views = tuple(torch.randn(4, 3, config.image_size, config.image_size) for _ in range(2))
    optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))
    parts = make_step(config, networks, criterion, optimiser)(views, Step())
    return networks, parts, before


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
        networks, parts, before = step(config)
        assert networks.dim == width
        assert networks.head[0].in_features == width
        assert torch.isfinite(parts["loss"])
        after = dict(networks.encoder.named_parameters())
        still = [name for name, item in before.items() if torch.equal(item, after[name])]
        assert not still


def test_a_resnet_20_is_that_of_he_et_al() -> None:
    network = make_encoder("resnet20", "cifar")
    assert len([each for each in network.modules() if isinstance(each, nn.Conv2d)]) == 19 + 2
    shortcuts = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    count = sum(item.numel() for item in network.parameters()) - shortcuts
    assert count == 269_722 - 650  # 0.27M in the paper, with a classifier of 650


CMC_OF_A_VIT = {"backbone": VIT, "method": "cmc", "statistics": "none"}


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: make_encoder("resnet35"), "resnet34"),
        (lambda: make_encoder("qqqqqq", "imagenet"), "list_models"),
        (lambda: make_encoder(pooled, "cifar"), "pooled"),
        (lambda: make_encoder(str, "imagenet"), "str"),
        (lambda: check_with(backbone="vit_smal_patch16_224"), VIT),
        (lambda: check_with(**CMC_OF_A_VIT), "resnet8"),
        (lambda: check_with(backbone=VIT, test_size=64), "32, 64"),
        (lambda: networks_of(dataclasses.replace(CONFIG, backbone=maps)), r"\(2, 5, 30, 30\)"),
        (lambda: width_of(maps(), maps, 1), "1 pixels"),
    ],
)
def test_what_does_not_go_together_is_refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()
