"""Pretraining on images that starts from weights of torchvision, timm, the hub and this project."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from shared.errors import UserError
from shared.experiment.initial import InitialWeights
from vision.config import Config
from vision.export import load_encoder, save_encoder
from vision.methods import check, networks_of
from vision.methods.base import Networks

DIGITS = dataclasses.replace(Config().reduced(), backbone="resnet8", method="moco_v2")


def from_file(config: Config, file: Path) -> Networks:
    return networks_of(dataclasses.replace(config, init=InitialWeights.of(file)))


def assert_filled(network: nn.Module, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_torchvision_s_weights_start_encoder_and_teacher(tmp_path: Path) -> None:
    state = torchvision.models.resnet18().state_dict()  # with its classifier
    torch.save(state, tmp_path / "resnet18.pth")
    config = dataclasses.replace(DIGITS, backbone="resnet18", stem="imagenet", image_size=64)
    networks = from_file(config, tmp_path / "resnet18.pth")
    assert_filled(networks.encoder, state)
    assert_filled(networks.teacher.encoder, state)


def test_another_network_is_refused_with_the_keys(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "resnet18.pth")
    with pytest.raises(UserError, match="SmallResNet"):
        from_file(DIGITS, tmp_path / "resnet18.pth")
    with pytest.raises(UserError, match=r"conv1\.weight"):  # its stem is another
        from_file(dataclasses.replace(DIGITS, backbone="resnet18"), tmp_path / "resnet18.pth")
    init = InitialWeights.of(tmp_path / "resnet18.pth")
    for changes in ({"features": "pixels"}, {"weights": "moco-v1-resnet50"}):
        with pytest.raises(ValueError, match="init"):
            check(dataclasses.replace(DIGITS, init=init, **changes))


RESNET = dataclasses.replace(DIGITS, backbone="resnet18", stem="cifar", image_size=32)
VIT = dataclasses.replace(
    DIGITS, backbone="vit_tiny_patch16_224", stem="imagenet", image_size=32, heads=6
)


@pytest.mark.parametrize(
    ("config", "field", "saved"),
    [
        (RESNET, "stem", "small"),
        (RESNET, "stem", "small_padding_2"),
        (VIT, "heads", None),
        (dataclasses.replace(VIT, heads=None), "heads", 6),
    ],
)
def test_an_export_with_another_stem_or_other_heads_is_refused(
    tmp_path: Path, config: Config, field: str, saved: object
) -> None:
    first = dataclasses.replace(config, **{field: saved})
    encoder = networks_of(first).encoder
    save_encoder(encoder, tmp_path / "export", config=first)
    for again in (load_encoder(tmp_path / "export"), from_file(first, tmp_path / "export").encoder):
        assert_filled(again, encoder.state_dict())
    with pytest.raises(UserError, match=f"{field} is {saved}"):
        from_file(config, tmp_path / "export")


def test_a_sequence_without_the_stem_s_relu_or_pooling_is_refused(tmp_path: Path) -> None:
    parts = dict(torchvision.models.resnet18().named_children())
    del parts["fc"]
    config = dataclasses.replace(DIGITS, backbone="resnet18", stem="imagenet", image_size=32)
    for left_out in ("maxpool", "relu"):
        del parts[left_out]
        torch.save(nn.Sequential(*parts.values()).state_dict(), tmp_path / "cut.pth")
        with pytest.raises(UserError, match="maxpool"):
            from_file(config, tmp_path / "cut.pth")
