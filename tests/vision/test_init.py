"""Pretraining on images that starts from weights of torchvision, timm, the hub and this project."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vision
from shared.compat import make_torchvision_importable
from shared.errors import UserError
from shared.experiment.runs import Run
from shared.experiment.weights import InitialWeights
from vision.config import Config
from vision.export import load_encoder, save_encoder
from vision.methods import Networks, check

make_torchvision_importable()

import timm  # noqa: E402 (needs the line above)
import torchvision  # noqa: E402

DIGITS = dataclasses.replace(Config().reduced(), backbone="resnet8", method="moco_v2")


def from_file(config: Config, file: Path) -> Networks:
    return Networks(dataclasses.replace(config, init=InitialWeights.of(file)))


def assert_filled(network: nn.Module, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_torchvision_s_weights_start_encoder_and_teacher(tmp_path: Path) -> None:
    state = torchvision.models.resnet18().state_dict()  # with its classifier
    torch.save(state, tmp_path / "resnet18.pth")
    config = dataclasses.replace(DIGITS, backbone="resnet18", stem="imagenet", image_size=64)
    networks = from_file(config, tmp_path / "resnet18.pth")
    assert_filled(networks.encoder, state)
    assert networks.teacher is not None
    assert_filled(networks.teacher.encoder, state)


def test_timm_s_weights_as_the_hub_has_them(tmp_path: Path) -> None:
    state = timm.create_model("test_resnet").state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "model.safetensors")
    config = dataclasses.replace(DIGITS, backbone="test_resnet", stem="imagenet", image_size=64)
    assert_filled(from_file(config, tmp_path / "model.safetensors").encoder, state)


def test_an_export_starts_a_run_that_records_its_hash(tmp_path: Path) -> None:
    torch.manual_seed(3)
    first = Networks(DIGITS)
    save_encoder(first.encoder, tmp_path / "export", config=DIGITS)
    init = InitialWeights.of(tmp_path / "export")
    assert_filled(from_file(DIGITS, tmp_path / "export").encoder, first.encoder.state_dict())

    # At a rate of 0 the run ends where it started, but for the batch norms' statistics.
    config = dataclasses.replace(DIGITS, learning_rate=0.0, weight_decay=0.0, init=init)
    with Run(tmp_path / "run", config, tier="own") as run:
        run.finish(vision.measure(config, run))
        assert run.environment["data"]["init"] == init.sha256
    trained = load_encoder(tmp_path / "run" / "encoder.safetensors")
    for name, parameter in trained.named_parameters():
        assert torch.equal(parameter, first.encoder.get_parameter(name)), name


def test_another_network_is_refused_with_the_keys_and_the_remedy(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "resnet18.pth")
    remedy = "; set backbone, stem and image_size as in the file"
    why = rf"resnet18.pth: has more blocks than SmallResNet: layer1.1.bn1.bias, .*{remedy}"
    with pytest.raises(UserError, match=why):
        from_file(DIGITS, tmp_path / "resnet18.pth")
    why = (
        rf"does not fill ResNet: 1 of 120 tensors missing or of another shape \(conv1.weight\), "
        rf"found were .* unexpected are conv1.weight, fc.bias, fc.weight{remedy}"
    )
    with pytest.raises(UserError, match=why):  # its stem is another
        from_file(dataclasses.replace(DIGITS, backbone="resnet18"), tmp_path / "resnet18.pth")
    init = InitialWeights.of(tmp_path / "resnet18.pth")
    for changes in ({"features": "pixels"}, {"weights": "moco-v1-resnet50"}):
        with pytest.raises(ValueError, match="init starts a training, which weights and features"):
            check(dataclasses.replace(DIGITS, init=init, **changes))
