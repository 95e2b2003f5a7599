"""Backbones that no table has: other ResNets, networks of timm, functions of one's own."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Criterion, max_margin, term
from shared.errors import UserError
from shared.experiment.config import canonical
from shared.experiment.initial import FILE
from shared.objective import Objective
from vision.config import Config
from vision.encoder import make_encoder, width_of
from vision.export import load_encoder, save_encoder
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


def test_unknown_backbones_get_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"got 'resnet35': did you mean .*resnet34"):
        make_encoder("resnet35")
    with pytest.raises(ValueError, match=r"got 'qqqqqq': see timm.list_models\(\)"):
        make_encoder("qqqqqq", "imagenet")
    config = dataclasses.replace(CONFIG, backbone="vit_smal_patch16_224")
    with pytest.raises(ValueError, match="did you mean vit_small_patch16_224"):
        check(config)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pooled has its own first layers, set stem to 'imag"):
        make_encoder(pooled, "cifar")
    with pytest.raises(ValueError, match="str returns a network, a torch module; got str"):
        make_encoder(str, "imagenet")
    cmc = dataclasses.replace(CONFIG, backbone=VIT, method="cmc", statistics="none")
    with pytest.raises(ValueError, match="half the width, available for resnet8"):
        check(cmc)
    with pytest.raises(ValueError, match="built for one image size; got 32, 64"):
        check(dataclasses.replace(CONFIG, backbone=VIT, test_size=64))
    with pytest.raises(ValueError, match=r"maps returns \(2, 5, 30, 30\) for 2 images"):
        networks_of(dataclasses.replace(CONFIG, backbone=maps))
    with pytest.raises(ValueError, match="cannot take images of 1 pixels"):
        width_of(maps(), maps, 1)


def test_an_export_of_a_function_s_network_needs_the_function(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, backbone=pooled)
    torch.manual_seed(0)
    network = make_encoder(pooled, "imagenet", size=32)
    before = torch.get_rng_state()
    save_encoder(network, tmp_path, config=config)
    assert torch.equal(torch.get_rng_state(), before)
    name = canonical(pooled).partition("@")[0]
    with pytest.raises(UserError, match=f"made by {name}; pass that function as well"):
        load_encoder(tmp_path / FILE)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        found = load_encoder(tmp_path / FILE, pooled)(images)
        assert torch.equal(found, network.eval()(images))
