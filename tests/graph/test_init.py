"""Pretraining on graphs that starts from weights of PyG and of this project."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GCN, GraphSAGE, global_add_pool

import graph
from graph.config import Config
from graph.data import load
from graph.encoder import make_encoder
from graph.export import load_encoder, save_encoder
from graph.train import pretrain
from shared.errors import UserError
from shared.experiment.initial import InitialWeights
from shared.experiment.run import Run

ATLAS = Config(dataset="atlas", epochs=1, batch_size=64, learning_rate=0.0)


def start(folder: Path, config: Config) -> torch.nn.Module:
    graphs = load("atlas", folder)
    with Run(folder / "run", config, data_root=folder) as run:
        encoder: torch.nn.Module = pretrain(config, graphs, run)[0]
    return encoder.cpu()


def test_training_goes_on_from_an_export(tmp_path: Path) -> None:
    torch.manual_seed(3)
    width = load("atlas", tmp_path).x.shape[1]
    first = make_encoder(ATLAS, width).double()
    save_encoder(first, tmp_path / "export", config=ATLAS, features=width)
    config = dataclasses.replace(ATLAS, init=InitialWeights.of(tmp_path / "export"))
    for name, parameter in start(tmp_path, config).named_parameters():
        assert parameter.dtype == torch.float64
        assert torch.equal(parameter, first.get_parameter(name)), name


def test_what_is_stated_beside_the_weights_is_compared(tmp_path: Path) -> None:
    width = load("atlas", tmp_path).x.shape[1]
    state = GCN(width, 8, 2, act="elu").state_dict()
    config = dataclasses.replace(ATLAS, network="GCN", hidden=8, layers=2)
    right = dataclasses.replace(config, network_options={"act": "elu"})
    lightning = {
        "state_dict": {f"model.{name}": tensor for name, tensor in state.items()},
        "hyper_parameters": {"act": "elu", "lr": 0.1},
    }
    for place, content in (("lightning", lightning), ("hub", state)):
        folder = tmp_path / place
        folder.mkdir()
        torch.save(content, folder / "model.pth")
        if place == "hub":
            (folder / "config.json").write_text(json.dumps({"act": "elu", "jk": None}))
        init = InitialWeights.of(folder / "model.pth")
        with pytest.raises(UserError, match=r"model.pth: its network has act='elu', not 'relu'"):
            start(folder / "wrong", dataclasses.replace(config, init=init))
        start(folder / "right", dataclasses.replace(right, init=init))


def test_a_network_of_pyg_s_that_pyg_saved(tmp_path: Path) -> None:
    torch.manual_seed(3)
    width = load("atlas", tmp_path).x.shape[1]
    nodes = GCN(width, 8, 2)
    torch.save(nodes.state_dict(), tmp_path / "gcn.pth")
    init = InitialWeights.of(tmp_path / "gcn.pth")
    config = dataclasses.replace(ATLAS, network="GCN", hidden=8, layers=2, init=init)
    found = start(tmp_path, config).model.state_dict()
    for name, tensor in nodes.state_dict().items():
        assert torch.equal(found[name], tensor.double()), name
    why = r"gcn.pth: has tensors that GCN has no place for: convs.1.*; set network, hidden, layers"
    with pytest.raises(UserError, match=why):
        start(tmp_path / "shallow", dataclasses.replace(config, layers=1))
    with pytest.raises(UserError, match=r"gcn.pth: does not fill Encoder: .*unexpected are"):
        start(tmp_path / "other", dataclasses.replace(ATLAS, init=init))
    sizes = dataclasses.replace(config, features="sizes")
    with Run(tmp_path / "sizes", sizes, data_root=tmp_path) as run:
        with pytest.raises(ValueError, match="features 'sizes' have no weights to start from"):
            graph.measure(sizes, run)


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({"norm": "batch_norm"}, "norms.0.module.bias"),
        ({"norm": "layer_norm"}, "norms.0.bias"),
        ({"jk": "cat"}, "lin.bias, lin.weight"),
        ({"jk": "last"}, "lin.bias, lin.weight"),
        ({"jk": "lstm"}, "jk.att.bias"),
    ],
)
def test_parts_that_the_network_lacks_are_refused(
    tmp_path: Path, options: dict[str, Any], extra: str
) -> None:
    width = load("atlas", tmp_path).x.shape[1]
    torch.save(GCN(width, 8, 2, **options).state_dict(), tmp_path / "gcn.pth")
    init = InitialWeights.of(tmp_path / "gcn.pth")
    config = dataclasses.replace(ATLAS, network="GCN", hidden=8, layers=2, init=init)
    with pytest.raises(UserError, match=rf"gcn.pth: has tensors that GCN has no place .*{extra}"):
        start(tmp_path, config)
    torch.testing.assert_close(*both(tmp_path, GCN, config, options))


def both(
    folder: Path, kind: Any, config: Config, options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of a network that training started from, and those by PyG alone."""
    graphs = load("atlas", folder)
    source = kind(graphs.x.shape[1], 8, 2, **options).double()
    assert config.init is not None
    source.load_state_dict(torch.load(config.init.file))
    filled = start(folder / "filled", dataclasses.replace(config, network_options=options))
    x, batch = graphs.x.double(), graphs.batch
    source.train()  # as the encoder, which has just been trained, at a rate of 0
    for module in (source, filled):
        for norm in module.modules():
            if isinstance(norm, torch.nn.BatchNorm1d):
                norm.reset_running_stats()
    with torch.no_grad():
        nodes = source(x, graphs.edge_index, batch=batch, batch_size=graphs.num_graphs)
        found = filled(x, graphs.edge_index, batch, graphs.num_graphs)
    return found, global_add_pool(nodes, batch)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (GCN, {"act": "elu"}),
        (GCN, {"act": "tanh", "act_first": True, "norm": "graph_norm"}),
        (GCN, {"normalize": False}),
        (GraphSAGE, {"aggr": "sum"}),
    ],
)
def test_what_no_tensor_shows_is_an_option(
    tmp_path: Path, kind: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    width = load("atlas", tmp_path).x.shape[1]
    torch.save(kind(width, 8, 2, **options).state_dict(), tmp_path / "net.pth")
    init = InitialWeights.of(tmp_path / "net.pth")
    config = dataclasses.replace(ATLAS, network=kind.__name__, hidden=8, layers=2, init=init)
    found, expected = both(tmp_path, kind, config, options)
    torch.testing.assert_close(found, expected)
    if "norm" not in options:  # without the option it is another function
        graphs = load("atlas", tmp_path)
        plain = start(tmp_path / "plain", config)
        with torch.no_grad():
            other = plain(graphs.x.double(), graphs.edge_index, graphs.batch, graphs.num_graphs)
        assert (other - expected).norm() > 0.05 * expected.norm()


def test_an_export_with_other_options_is_refused(tmp_path: Path) -> None:
    width = load("atlas", tmp_path).x.shape[1]
    config = dataclasses.replace(ATLAS, network="GCN", hidden=8, layers=2)
    elu = dataclasses.replace(config, network_options={"act": "elu"})
    save_encoder(make_encoder(elu, width), tmp_path / "elu", config=elu, features=width)
    init = InitialWeights.of(tmp_path / "elu")
    start(tmp_path / "same", dataclasses.replace(elu, init=init))
    assert isinstance(load_encoder(tmp_path / "elu").model.act, torch.nn.ELU)
    with pytest.raises(
        UserError, match=r'its network_options is \{"act": "elu"\}, that of the net'
    ):
        start(tmp_path / "other", dataclasses.replace(config, init=init))
    with pytest.raises(UserError, match=r'its readout is "sum", that of the network "mean"; set'):
        start(tmp_path / "mean", dataclasses.replace(elu, readout="mean", init=init))


def test_options_that_the_network_does_not_have_are_refused() -> None:
    for network, options, why in (
        ("gin", {"act": "elu"}, "network_options are of networks of torch_geometric.nn; gin takes"),
        ("GCN", {"heads": 2}, r"GCN cannot be made with \{'heads': 2\}: "),
        ("GCN", {"act": "swoosh"}, r"GCN cannot be made with \{'act': 'swoosh'\}: "),
    ):
        config = dataclasses.replace(ATLAS, network=network, network_options=options)
        with pytest.raises(ValueError, match=why):
            make_encoder(config, 3)
