"""Pretraining on graphs that starts from weights of PyG and of this project."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GCN

import graph
from graph.config import Config
from graph.data import load
from graph.encoder import make_encoder
from graph.export import save_encoder
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
