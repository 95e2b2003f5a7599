"""Encoders in files: what is written, and a training that starts from one."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors import safe_open
from torch import nn
from torch.optim.swa_utils import AveragedModel

from shared.errors import UserError
from shared.experiment.data import SUMS
from shared.experiment.export import CARD, CONFIG, read_weights
from shared.experiment.initial import FILE, InitialWeights
from shared.experiment.run import Run
from tests.stages.rounding import lengths_of, rounding
from vision.config import HCL, Config
from vision.encoder import LabEncoder, make_encoder
from vision.export import load_encoder, save_encoder, write
from vision.methods import networks_of
from vision.methods.base import Networks

CONFIG_OF_RUN = Config(stem="small", images=64, epochs=3)


def trained(config: Config = CONFIG_OF_RUN) -> nn.Module:
    """An encoder whose batch norms have seen data, as after training."""
    torch.manual_seed(0)
    network = make_encoder(config.backbone, config.stem)
    network(torch.randn(8, 3, 32, 32))
    return network


def finished(folder: Path, config: Config = CONFIG_OF_RUN) -> nn.Module:
    """A finished run's folder, without the training."""
    network = trained(config)
    with Run(folder, config, tier="own") as run:
        run.record_data(CIFAR10="5f" * 32)
        save_encoder(network, folder, config=config)
        run.finish({"linear_top1": 71.25, "linear_best_top1": 72.5, "curve": [1.0, 2.0]})
    return network


def metadata(folder: Path) -> dict[str, str]:
    with safe_open(folder / FILE, framework="pt") as stream:
        return stream.metadata()


def colours(folder: Path) -> list[list[float]]:
    return [json.loads(metadata(folder)[name]) for name in ("mean", "std")]


def test_cmc_s_two_networks_are_read_again(tmp_path: Path) -> None:
    config = Config(method="cmc", statistics="none", backbone="resnet8", stem="small")
    torch.manual_seed(0)
    network = LabEncoder("resnet8", "small").eval()
    save_encoder(network, tmp_path, config=config)
    images = torch.rand(2, 3, 16, 16)
    loaded = load_encoder(tmp_path)
    assert isinstance(loaded, LabEncoder)
    assert torch.equal(loaded(images), network(images))
    with pytest.raises(ValueError, match="not the network"):
        save_encoder(make_encoder("resnet8", "small"), tmp_path / "other", config=config)
    assert not (tmp_path / "other").exists()


def test_a_wrapped_encoder_is_saved_as_itself(tmp_path: Path) -> None:
    network = trained(CONFIG_OF_RUN)
    wrapped = torch.compile(nn.DataParallel(AveragedModel(network)), backend="eager")
    save_encoder(network, tmp_path / "plain", config=CONFIG_OF_RUN)
    save_encoder(wrapped, tmp_path / "wrapped", config=CONFIG_OF_RUN)
    (plain, stated), (state, also) = (read_weights(tmp_path / n) for n in ("plain", "wrapped"))
    assert state.keys() == plain.keys()
    assert all(torch.equal(item, plain[name]) for name, item in state.items())
    assert also == stated


def test_metadata_say_how_the_encoder_is_built_and_fed(tmp_path: Path) -> None:
    config = Config(dataset="CIFAR100", **HCL)
    network = trained(config)
    save_encoder(network, tmp_path, config=config)
    assert network.training
    said = {"backbone": "resnet50", "stem": "cifar", "dim": "2048", "image_size": "32"}
    assert metadata(tmp_path).items() >= said.items()
    assert "colours" not in metadata(tmp_path)
    # HCL normalises every dataset by CIFAR-10's numbers.
    cifar = [[0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]]
    assert colours(tmp_path) == [pytest.approx(each) for each in cifar]
    save_encoder(network, tmp_path, config=dataclasses.replace(config, statistics="none"))
    assert colours(tmp_path) == [[0, 0, 0], [1, 1, 1]]
    save_encoder(network, tmp_path, config=config, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert colours(tmp_path) == [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]
    with pytest.raises(ValueError, match="std"):
        save_encoder(network, tmp_path, config=config, mean=(0.1, 0.2, 0.3))
    with pytest.raises(ValueError, match="0 to 1"):
        save_encoder(network, tmp_path, config=config, mean=(125, 123, 114), std=(63, 62, 67))


def test_a_network_that_is_built_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_encoder(trained(), tmp_path, config=CONFIG_OF_RUN)
    monkeypatch.setattr(
        "vision.encoder.make_encoder", lambda backbone, *_, **__: make_encoder(backbone, "cifar")
    )
    with pytest.raises(UserError, match="features differ"):
        load_encoder(tmp_path)


def test_exports_of_earlier_versions_are_loaded(tmp_path: Path) -> None:
    network = finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    for name in (SUMS, CONFIG):  # which they did not have
        (target / name).unlink()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(load_encoder(target)(images), network.eval()(images))


@pytest.mark.parametrize(
    ("backbone", "stem"),
    [("resnet18", "cifar"), ("resnet50", "imagenet"), ("mobilenetv3_small_050", "imagenet")],
)
def test_the_code_of_the_card_loads_the_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str, stem: str
) -> None:
    config = dataclasses.replace(CONFIG_OF_RUN, backbone=backbone, stem=stem, image_size=32)
    network = finished(tmp_path / "run", config)
    card = (write(tmp_path / "run", tmp_path / "export") / CARD).read_text()
    assert "| linear_top1 | 71.25 |" in card
    assert "72.5" not in card  # the best epoch on the test images is no result
    monkeypatch.chdir(tmp_path / "export")
    images = torch.randn(2, 3, 32, 32)
    expected = network.eval()(images)
    (code,) = (part.split("```")[0] for part in card.split("```python\n")[1:])
    names: dict[str, nn.Module] = {}
    exec(code, names)
    limit = rounding(torch.float32, *lengths_of(network))
    close = {"rtol": limit, "atol": limit * float(expected.detach().max())}
    torch.testing.assert_close(names["encoder"](images), expected, **close)


# Training that starts from weights of torchvision, timm and this project


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
