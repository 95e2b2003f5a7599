import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from resealed import set_config
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shared import Objective, Projection, info_nce, term
from shared.errors import UserError
from shared.experiment.runs import Run
from vision.config import HCL, Config
from vision.encoder import LabEncoder, make_encoder
from vision.export import FILE, load_encoder, save_encoder, write

State = dict[str, Tensor]
CONFIG = Config(stem="small", images=64, epochs=3)


def trained(config: Config = CONFIG, seed: int = 0) -> nn.Module:
    """An encoder whose batch norms have seen data, as after training."""
    torch.manual_seed(seed)
    network = make_encoder(config.backbone, config.stem)
    network(torch.randn(8, 3, 32, 32))
    return network


def finished(folder: Path, config: Config = CONFIG, tier: str = "own") -> nn.Module:
    """A finished run's folder, without the training."""
    network = trained(config)
    with Run(folder, config, tier=tier) as run:
        run.record_data(CIFAR10="5f" * 32)
        save_encoder(network, folder / FILE, config=config)
        run.finish(
            {"linear_top1": 71.25, "knn_top1": 60.5, "linear_best_top1": 72.5, "curve": [1.0, 2.0]}
        )
    return network


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as stream:
        return stream.metadata()


@pytest.mark.parametrize(("backbone", "stem"), [("resnet18", "cifar"), ("resnet50", "imagenet")])
def test_round_trip_gives_the_same_outputs(tmp_path: Path, backbone: str, stem: str) -> None:
    config = dataclasses.replace(CONFIG, backbone=backbone, stem=stem)
    network = trained(config)
    before = torch.get_rng_state()
    save_encoder(network, tmp_path / FILE, config=config)
    loaded = load_encoder(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)  # a run goes on as if nothing was saved
    assert network.training
    assert not loaded.training
    images = torch.randn(2, 3, 40, 40)
    assert torch.equal(loaded(images), network.eval()(images))


def test_cmc_s_two_networks_go_the_same_way(tmp_path: Path) -> None:
    config = Config(method="cmc", statistics="none", backbone="resnet8", stem="small")
    torch.manual_seed(0)
    network = LabEncoder("resnet8", "small").eval()
    save_encoder(network, tmp_path / "encoder.safetensors", config=config)
    images = torch.rand(2, 3, 16, 16)
    loaded = load_encoder(tmp_path)
    assert isinstance(loaded, LabEncoder)
    assert torch.equal(loaded(images), network(images))
    with pytest.raises(ValueError, match="this module is no resnet8 as built here"):
        save_encoder(make_encoder("resnet8", "small"), tmp_path / "other", config=config)
    plain = dataclasses.replace(config, method="simclr")
    save_encoder(make_encoder("resnet8", "small"), tmp_path / "plain", config=plain)
    assert "colours" not in metadata(tmp_path / "plain")


def test_metadata_say_how_the_encoder_is_built_and_fed(tmp_path: Path) -> None:
    config = Config(dataset="CIFAR100", **HCL)
    save_encoder(trained(config), tmp_path / FILE, config=config)
    said = metadata(tmp_path / FILE)
    assert said["backbone"] == "resnet50"
    assert said["stem"] == "cifar"
    assert said["dim"] == "2048"
    assert said["image_size"] == "32"
    # HCL normalises every dataset by CIFAR-10's numbers.
    assert json.loads(said["mean"]) == pytest.approx([0.4914, 0.4822, 0.4465])
    assert json.loads(said["std"]) == pytest.approx([0.2023, 0.1994, 0.2010])
    plain = dataclasses.replace(config, statistics="none")
    save_encoder(trained(config), tmp_path / FILE, config=plain)
    assert json.loads(metadata(tmp_path / FILE)["mean"]) == [0, 0, 0]
    assert json.loads(metadata(tmp_path / FILE)["std"]) == [1, 1, 1]


def test_a_module_of_another_architecture_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this module is no resnet50"):
        save_encoder(trained(), tmp_path / FILE, config=Config(backbone="resnet50"))
    assert list(tmp_path.iterdir()) == []


def edit_tensor(state: State, said: dict[str, str]) -> None:
    state["layer1.0.conv1.weight"][0, 0, 0, 0] += 1


def edit_shape(state: State, said: dict[str, str]) -> None:
    state["bn1.weight"] = state["bn1.weight"].view(1, 64)


def rename_key(state: State, said: dict[str, str]) -> None:
    state["bn9.weight"] = state.pop("bn1.weight")


def drop_key(state: State, said: dict[str, str]) -> None:
    del state["bn1.weight"]


def edit_stem(state: State, said: dict[str, str]) -> None:
    said["stem"] = "cifar"  # the same parameters, another network


def edit_features(state: State, said: dict[str, str]) -> None:
    said["features"] = json.dumps([0.0] * 16)


@pytest.mark.parametrize(
    "edit", [edit_tensor, edit_shape, rename_key, drop_key, edit_stem, edit_features]
)
def test_an_edited_file_is_refused(
    tmp_path: Path, edit: Callable[[State, Mapping[str, str]], None]
) -> None:
    file = tmp_path / FILE
    save_encoder(trained(), file, config=CONFIG)
    state, said = load_file(file), metadata(file)
    edit(state, said)
    save_file(state, file, said)
    with pytest.raises(UserError, match=r"encoder\.safetensors: damaged or edited .*SHA-256"):
        load_encoder(file)


def test_a_cut_foreign_or_missing_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / FILE
    save_encoder(trained(), file, config=CONFIG)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="damaged or edited"):
        load_encoder(file)
    save_file({"weight": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="not written by this project"):
        load_encoder(file)
    file.unlink()
    with pytest.raises(UserError, match="there is no such file"):
        load_encoder(tmp_path)


def test_a_network_that_is_built_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_encoder(trained(), tmp_path / FILE, config=CONFIG)
    monkeypatch.setattr(
        "vision.export.make_encoder", lambda backbone, *_, **__: make_encoder(backbone, "cifar")
    )
    with pytest.raises(UserError, match="features are not those stored"):
        load_encoder(tmp_path)


def test_an_exported_run_loads_and_its_card_says_what_it_is(tmp_path: Path) -> None:
    network = finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "deep" / "export")
    assert target == tmp_path / "deep" / "export"
    assert sorted(path.name for path in target.iterdir()) == ["README.md", FILE]
    assert (target / FILE).read_bytes() == (tmp_path / "run" / FILE).read_bytes()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(load_encoder(target)(images), network.eval()(images))

    card = (target / "README.md").read_text()
    _, header, body = card.split("---\n", 2)
    front = {
        key: json.loads(value)
        for key, value in (line.split(": ", 1) for line in header.splitlines())
    }
    assert front["license"] == "mit"
    assert front["datasets"] == ["uoft-cs/cifar10"]
    (model,) = front["model-index"]
    (result,) = model["results"]
    assert result["dataset"] == {"type": "uoft-cs/cifar10", "name": "CIFAR10"}
    assert {item["name"]: item["value"] for item in result["metrics"]} == {
        "linear_top1": 71.25,
        "knn_top1": 60.5,
    }
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    for text in (
        "simclr with the\nloss `info_nce`, 3 epochs, batches of 256, seed 0",
        "tier `own`",
        "mean [0.4914, 0.4822, 0.4465]",
        environment["commit"],
        f"CIFAR10: SHA-256 `{'5f' * 32}`",
        "Protocol `linear-sgd-v1` on CIFAR10",
        "| linear_top1 | 71.25 |",
        "## Intended use and limits",
        "## Licence",
        (tmp_path / "run" / "config.json").read_text(),
    ):
        assert text in body
    assert "72.5" not in card  # the best epoch on the test images is no result
    assert "maxpool" not in body  # the stem "small" keeps torchvision's
    assert "low-rank projection" not in body
    write(tmp_path / "run", target)
    assert (target / "README.md").read_text() == card


def test_the_lines_for_torchvision_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = finished(tmp_path / "run", Config())
    card = (write(tmp_path / "run", tmp_path / "export") / "README.md").read_text()
    blocks = card.split("```python\n")[1:]
    monkeypatch.chdir(tmp_path / "export")
    images = torch.randn(2, 3, 32, 32)
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, nn.Module] = {}
        exec(block.split("```")[0], names)
        torch.testing.assert_close(names["encoder"](images), network.eval()(images))


def test_the_card_mentions_a_projection_and_transfer(tmp_path: Path) -> None:
    objective = Objective(term(info_nce, temperature=0.5), projection=Projection(0.1))
    config = dataclasses.replace(CONFIG, objective=objective, evaluate_on="CIFAR100")
    finished(tmp_path / "run", config, tier="short")
    card = (write(tmp_path / "run", tmp_path / "export") / "README.md").read_text()
    assert "the projection is not part of this file" in card
    assert "cannot stand beside published ones" in card
    assert '{"type": "uoft-cs/cifar100", "name": "CIFAR100"}' in card
    assert "Protocol `linear-sgd-v1` on CIFAR100, tier `short`" in card


def test_runs_without_an_encoder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a finished run"):
        write(tmp_path / "nothing", tmp_path / "export")
    finished(tmp_path / "smoke", tier="smoke")
    with pytest.raises(UserError, match="a smoke run proves the path only"):
        write(tmp_path / "smoke", tmp_path / "export")
    finished(tmp_path / "lost")
    (tmp_path / "lost" / FILE).unlink()
    with pytest.raises(UserError, match="there is no such file"):
        write(tmp_path / "lost", tmp_path / "export")
    finished(tmp_path / "toy")
    set_config(tmp_path / "toy", '{"data": "three_bars", "seed": 0}')
    with pytest.raises(UserError, match="trains no image encoder"):
        write(tmp_path / "toy", tmp_path / "export")
    assert not (tmp_path / "export").exists()
