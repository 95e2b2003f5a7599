"""Pretraining on graphs that starts from weights of PyG; of exports see tests/domains."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GCN

import graph
from graph.config import Config
from graph.data import load
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
    with pytest.raises(UserError, match=r"convs\.1"):
        start(tmp_path / "shallow", dataclasses.replace(config, layers=1))
    with pytest.raises(UserError, match="Encoder"):
        start(tmp_path / "other", dataclasses.replace(ATLAS, init=init))
    sizes = dataclasses.replace(config, features="sizes")
    with Run(tmp_path / "sizes", sizes, data_root=tmp_path) as run:
        with pytest.raises(ValueError, match="sizes"):
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
    with pytest.raises(UserError, match=extra):
        start(tmp_path, config)
