"""Weights that training starts from: identified by content, found by name, refused in one line."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import graph.config
from graph.data import load
from graph.encoder import make_encoder
from shared.command.reproduce import main
from shared.command.settings import with_settings
from shared.errors import UserError
from shared.experiment.config import canonical, run_key, upgraded_config
from shared.experiment.initial import InitialWeights
from shared.experiment.weights import initialise

CONFIG = graph.config.Config(dataset="atlas")


def network(depth: int = 2) -> nn.ModuleDict:
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(depth))
    return nn.ModuleDict({"layers": layers, "last": nn.Linear(3, 2)})


def saved(file: Path, module: nn.Module, prefix: str = "") -> InitialWeights:
    torch.save({f"{prefix}{k}": v for k, v in module.state_dict().items()}, file)
    return InitialWeights.of(file)


def test_a_configuration_knows_weights_by_their_content_alone(tmp_path: Path) -> None:
    plain = canonical(CONFIG)
    assert "init" not in plain  # so that all other runs keep their keys
    first = saved(tmp_path / "a.pth", network())
    (tmp_path / "elsewhere").mkdir()
    copied = tmp_path / "elsewhere" / "b.pth"
    copied.write_bytes((tmp_path / "a.pth").read_bytes())
    with_init = dataclasses.replace(CONFIG, init=first)
    content = canonical(with_init)
    assert content == plain | {"init": {"sha256": first.sha256}}
    assert str(tmp_path) not in json.dumps(content)
    assert canonical(dataclasses.replace(CONFIG, init=InitialWeights.of(copied))) == content
    other = dataclasses.replace(CONFIG, init=saved(tmp_path / "c.pth", network()))
    keys = {run_key("own", canonical(each)) for each in (CONFIG, with_init, other)}
    assert len(keys) == 3
    # Records of today and of before there was the field.
    kind = graph.config.Config
    assert upgraded_config(content, kind) == content
    assert upgraded_config(plain, kind) == plain


def test_it_is_set_by_a_file_and_refused_without_one(tmp_path: Path) -> None:
    init = saved(tmp_path / "model.pth", network())
    assert with_settings(CONFIG, [f"init={tmp_path / 'model.pth'}"]).init == init
    assert with_settings(dataclasses.replace(CONFIG, init=init), ["init=None"]).init is None
    chosen = with_settings(CONFIG, [f"init={tmp_path / 'model.pth'},prefix=online"]).init
    assert chosen == dataclasses.replace(init, prefix="online")
    with pytest.raises(UserError, match="none"):
        with_settings(CONFIG, [f"init={tmp_path / 'none.pth'}"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        InitialWeights.of(tmp_path / "empty")
    save_file({"weight": torch.ones(2)}, tmp_path / "empty" / "encoder.safetensors")
    assert InitialWeights.of(tmp_path / "empty").file.name == "encoder.safetensors"


def test_a_file_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    init = saved(tmp_path / "model.pth", network())
    saved(tmp_path / "model.pth", network())
    with pytest.raises(UserError, match="changed"):
        initialise(network(), init, "remedy")


def test_all_tensors_are_loaded_behind_a_prefix_into_a_wrapped_network(tmp_path: Path) -> None:
    source, target = network(), nn.ModuleDict({"model": network()}).double()
    random = torch.get_rng_state()
    match = initialise(target, saved(tmp_path / "m.pth", source, "module.encoder_q."), "remedy")
    assert torch.equal(torch.get_rng_state(), random)
    assert match.place == "prefix 'module.encoder_q.'"
    for name, tensor in target["model"].state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name].double())


def test_tensors_that_do_not_fill_the_network_are_named(tmp_path: Path) -> None:
    source = network()
    before = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    other = nn.ModuleDict({"layers": network()["layers"], "first": nn.Linear(3, 2)})
    diverged = network()
    diverged["last"].bias.data[0] = torch.nan
    for file, module, why in (
        ("m.pth", other, r"2 of 6 .*last.weight, last.bias.* first.bias, first.weight; take "),
        ("deep.pth", network(3), "layers.2.bias"),
        ("nan.pth", diverged, "last.bias is NaN"),
    ):
        with pytest.raises(UserError, match=why):
            initialise(source, saved(tmp_path / file, module), "take another")
    # The scale of quantised weights is elsewhere; a complex one's imaginary part would be dropped.
    for kind in (torch.int8, torch.complex64):
        state = {name: tensor.to(kind) for name, tensor in network().state_dict().items()}
        torch.save(state, tmp_path / "kind.pth")
        with pytest.raises(UserError, match=str(kind)[6:]):
            initialise(source, InitialWeights.of(tmp_path / "kind.pth"), "take another")
    with pytest.raises(UserError, match="Identity"):
        initialise(nn.Identity(), saved(tmp_path / "m.pth", other), "take another")
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, before[name])  # refused as a whole


@pytest.mark.slow
def test_the_command_line_starts_from_weights_and_records_their_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    width = load("atlas", tmp_path).x.shape[1]
    init = saved(tmp_path / "model.pth", make_encoder(CONFIG, width))
    words = ["graph", "mmcl", "--tier", "smoke", "--row", "GraphCL", "--seeds", "0", "--jobs", "1"]
    words += ["--data-root", str(tmp_path), "--runs", str(tmp_path / "runs")]
    words += ["--set", "epochs=1"]
    assert main([*words, "--set", "init=model.pth"]) == 0
    assert f'init: nothing -> {{"sha256": "{init.sha256[:8]}' in capsys.readouterr().out
    (file,) = (tmp_path / "runs").rglob("result.json")
    written = json.loads((file.parent / "config.json").read_text())
    assert written["init"] == {"sha256": init.sha256}
    environment = json.loads((file.parent / "environment.json").read_text())
    assert environment["data"]["init"] == init.sha256
    assert "model.pth" not in "".join(each.read_text() for each in file.parent.glob("*.json"))
    saved(tmp_path / "wrong.pth", network())
    assert main([*words, "--set", "init=wrong.pth"]) == 1
    assert "wrong.pth: does not fill Encoder" in "".join(capsys.readouterr())
