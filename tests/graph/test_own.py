"""Graphs, encoders and augmentations of one's own, exports, and the protocol for large sets."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import graph
from graph import evaluation
from graph.config import Config
from graph.data import Graphs, from_pyg, load
from graph.encoder import NETWORKS, Encoder, Pooled, make_encoder
from graph.evaluation import COSTS, LOGISTIC, embed, logistic_ten_fold, svm_ten_fold
from graph.export import load_encoder, save_encoder, write
from graph.train import check_view
from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.runs import Run

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "graph.md"
ATLAS = Config(dataset="atlas", epochs=1, batch_size=64)


def narrow(features: int) -> nn.Module:
    return GCN(features, 8, 2, out_channels=6)


class Whole(nn.Module):
    """An encoder of graphs as it is: the mean of the features and the number of nodes, often."""

    dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        count = torch.bincount(batch, minlength=num_graphs).to(x)
        total = x.new_zeros(num_graphs).index_add_(0, batch, x.mean(1))
        return self.scale * torch.stack((total / count, count), 1).repeat(1, 4)


def whole(features: int) -> nn.Module:
    return Whole()


def nothing(features: int) -> Any:
    return features


def sums(features: int) -> nn.Module:
    class Sums(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return x.sum(0, keepdim=True)

    return Sums()


def quieter(graphs: Graphs, generator: torch.Generator) -> Graphs:
    noise = torch.rand(graphs.x.shape, generator=generator, dtype=graphs.x.dtype)
    return dataclasses.replace(graphs, x=graphs.x * noise)


def fewer(graphs: Graphs, generator: torch.Generator) -> Graphs:
    keep = graphs.batch > 0
    nodes = keep.cumsum(0) - 1
    edges = nodes[graphs.edge_index[:, keep[graphs.edge_index].all(0)]]
    return Graphs(graphs.x[keep], edges, graphs.batch[keep] - 1, graphs.y[1:])


def test_the_code_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL):
        exec(compile(block, "docs/graph.md", "exec"), names)
    sys.modules.pop("mine")
    assert names["features"].shape == (60, 48)
    assert 0 <= names["found"]["accuracy"] <= 100
    with torch.no_grad():
        np.testing.assert_array_equal(embed(names["again"], names["graphs"]), names["features"])


def test_graphs_of_pyg_are_made_as_those_of_the_collection() -> None:
    edges = torch.tensor([[0, 1, 1, 1, 2], [1, 0, 1, 2, 1]])
    one = Data(x=torch.tensor([[1], [2], [3]]), edge_index=edges, y=torch.tensor([4]))
    other = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, y=torch.tensor([0.5]))
    lone = Data(x=torch.ones(1, 1), y=torch.tensor([1, 2]))
    found = from_pyg([one, other, lone])
    assert found.x.tolist() == [[1.0], [2.0], [3.0], [1.0], [1.0], [1.0]]
    assert found.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [3, 4], [4, 3]]
    assert found.batch.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.y.tolist() == [4, -1, -1]
    with pytest.raises(ValueError, match="graph 1 has 2 node features, graph 0 has 1"):
        from_pyg([one, Data(x=torch.ones(2, 2), edge_index=torch.zeros(2, 0).long())])
    with pytest.raises(ValueError, match="graph 0 has no nodes"):
        from_pyg([Data(x=torch.ones(0, 2))])
    with pytest.raises(ValueError, match="a dataset without graphs"):
        from_pyg([])


@pytest.mark.parametrize("network", [*NETWORKS, narrow, whole])
def test_any_network_is_an_encoder_and_learns(tmp_path: Path, network: Any) -> None:
    graphs = load("atlas", tmp_path)
    config = dataclasses.replace(ATLAS, network=network, hidden=8, layers=2, learning_rate=0.05)
    torch.manual_seed(0)
    start = make_encoder(config, 1).double()
    with Run(tmp_path / "run", config) as run:
        encoder, _ = graph.pretrain(config, graphs, run)
    features = embed(encoder, graphs)
    width = 6 if network is narrow else 8
    assert features.shape == (graphs.num_graphs, encoder.dim) == (128, width)
    before = dict(start.named_parameters())
    moved = [not torch.equal(before[n], p.cpu()) for n, p in encoder.named_parameters()]
    assert any(moved)


def test_pooling_is_over_the_nodes_of_each_graph() -> None:
    graphs = from_pyg([Data(x=torch.tensor([[1.0], [3.0]])), Data(x=torch.tensor([[5.0]]))])

    class Same(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return torch.cat((x, 2 * x), 1)

    for readout, first in (("sum", 4.0), ("mean", 2.0), ("max", 3.0)):
        pooled = Pooled(Same(), 1, readout)
        found = pooled(graphs.x, graphs.edge_index, graphs.batch, 2)
        assert found.tolist() == [[first, 2 * first], [5.0, 10.0]]
        assert pooled.dim == 2


def test_what_is_no_encoder_is_refused() -> None:
    def made(**changes: Any) -> nn.Module:
        return make_encoder(dataclasses.replace(ATLAS, **changes), 1)

    assert isinstance(made(), Encoder)
    with pytest.raises(ValueError, match="no network 'GraphSAG': did you mean GraphSAGE"):
        made(network="GraphSAG")
    with pytest.raises(ValueError, match="nothing makes a int; it has to make a torch module"):
        made(network=nothing)
    with pytest.raises(ValueError, match=r"Sums gives \(1, 1\) for 3 nodes, not a row for each"):
        made(network=sums)
    with pytest.raises(ValueError, match="readout is one of sum, mean, max; got 'last'"):
        made(network="GCN", readout="last")


def test_an_augmentation_of_one_s_own_is_used_and_checked(tmp_path: Path) -> None:
    config = dataclasses.replace(ATLAS, augmentations=quieter)
    graphs = load("atlas", tmp_path)
    seen = [view for _, view in graph.train.views(config, graphs, 0)]
    assert all(0 <= float(view.x.min()) < float(view.x.max()) < 1 for view in seen)
    again = [view for _, view in graph.train.views(config, graphs, 0)]
    assert all(torch.equal(a.x, b.x) for a, b in zip(seen, again, strict=True))
    with pytest.raises(ValueError, match="fewer gives 63 graphs of 1 features for 64 of 1"):
        list(graph.train.views(dataclasses.replace(ATLAS, augmentations=fewer), graphs, 0))
    with pytest.raises(ValueError, match=r"mine gives a dict; it has to give graph.Graphs"):
        check_view("mine", graphs, {})  # type: ignore[arg-type] # the mistake under test
    wrong = dataclasses.replace(graphs, edge_index=graphs.edge_index + 1)
    with pytest.raises(ValueError, match="mine gives nodes or edges that are out of place"):
        check_view("mine", graphs, wrong)


def test_the_logistic_protocol_is_the_nested_search_of_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(90) % 3
    features = generator.normal(size=(90, 4)) * [1, 10, 0.1, 0] + labels[:, None] * [1, 4, 0, 0]
    found = logistic_ten_fold(features, labels, 3)
    accuracies, costs = [], []
    for train, test in StratifiedKFold(10, shuffle=True, random_state=3).split(features, labels):
        scaler = StandardScaler().fit(features[train])
        search = GridSearchCV(
            LogisticRegression(tol=1e-8, max_iter=10_000), {"C": COSTS}, cv=StratifiedKFold(5)
        ).fit(scaler.transform(features[train]), labels[train])
        accuracies.append(100 * search.score(scaler.transform(features[test]), labels[test]))
        costs.append(search.best_params_["C"])
    assert found["fold_accuracies"] == pytest.approx(accuracies)
    assert found["fold_costs"] == costs
    assert found["protocol"] == LOGISTIC
    assert found["accuracy"] == pytest.approx(np.mean(accuracies))


def test_protocols_refuse_what_they_cannot_score(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = np.ones((20, 2)), np.arange(20) % 2
    with pytest.raises(ValueError, match="no protocol 'svm'; there are: svm-10fold-nested-v1, log"):
        evaluation.score("svm", features, labels, 0)
    with pytest.raises(ValueError, match="graph 3 has no label"):
        evaluation.score(LOGISTIC, features, np.where(np.arange(20) == 3, -1, labels), 0)
    monkeypatch.setattr(evaluation, "LARGEST_KERNEL", 19)
    with pytest.raises(ValueError, match="kernel matrix of 20 graphs has 0 GB; set protocol to 'l"):
        svm_ten_fold(features, labels, 0)
    with pytest.raises(ValueError, match="feature 0 of graph 0 is nan"):
        logistic_ten_fold(np.full((20, 2), np.nan), labels, 0)


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Path, nn.Module]:
    """A run's folder with an encoder, and the encoder."""
    torch.manual_seed(0)
    encoder = make_encoder(ATLAS, 1).double()
    with Run(tmp_path / "run", ATLAS) as run:
        run.record_data(atlas="5f" * 32)
        save_encoder(encoder, tmp_path / "run", config=ATLAS, features=1)
        run.finish({"accuracy": 61.5, "fold_accuracies": [61.5] * 10})
    return tmp_path / "run", encoder


def test_an_export_is_read_again_and_its_card_says_how(
    finished: tuple[Path, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, encoder = finished
    target = write(folder, tmp_path / "out")
    assert sorted(each.name for each in target.iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "encoder.safetensors",
    ]
    graphs = load("atlas", tmp_path)
    np.testing.assert_array_equal(embed(load_encoder(target), graphs), embed(encoder, graphs))
    card = (target / "README.md").read_text()
    assert "96 features of each graph, in float64" in card
    assert "| accuracy | 61.50 |" in card
    (target / "encoder.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match="damaged or edited"):
        load_encoder(target)
    with pytest.raises(UserError, match="there is no such file; give an exported folder"):
        load_encoder(tmp_path / "none")


def test_a_network_of_one_s_own_is_named_by_its_export(tmp_path: Path) -> None:
    config = dataclasses.replace(ATLAS, network=narrow)
    encoder = make_encoder(config, 1).double()
    save_encoder(encoder, tmp_path, config=config, features=1)
    with pytest.raises(UserError, match=r"made by .*narrow; give that function, too: load_encoder"):
        load_encoder(tmp_path)
    state = load_encoder(tmp_path, narrow).state_dict()
    assert all(torch.equal(item, state[name]) for name, item in encoder.state_dict().items())
    with pytest.raises(UserError, match="damaged or edited"):
        load_encoder(tmp_path, whole)


def test_the_verb_scores_an_export(
    finished: tuple[Path, nn.Module], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, encoder = finished
    target = write(folder, tmp_path / "out")
    out = tmp_path / "found.json"
    words = ["evaluate", "graph", str(target), "--protocol", LOGISTIC, "--out", str(out)]
    assert main(words) == 0
    assert "took every tensor of gin" in capsys.readouterr().out
    graphs = load("atlas", tmp_path)
    expected = logistic_ten_fold(embed(encoder, graphs), graphs.y.numpy(), 0)
    content = json.loads(out.read_text())
    assert content["protocols"][LOGISTIC]["metrics"] == expected
    assert main(["evaluate", "graph", str(target), "--size", "3"]) == 2
    assert "graph has no --size in evaluate" in capsys.readouterr().err
    assert main(["evaluate", "graph", str(target), "--data", "MUTAGG"]) == 2
    assert "unknown dataset 'MUTAGG'" in capsys.readouterr().err


def test_a_run_keeps_its_encoder_and_what_was_scored_is_it(tmp_path: Path) -> None:
    config = dataclasses.replace(ATLAS, protocol=LOGISTIC)
    with Run(tmp_path / "run", config) as run:
        metrics = run.finish(graph.measure(config, run))["metrics"]
    target = write(tmp_path / "run", tmp_path / "out")
    graphs = load("atlas", tmp_path)
    found = logistic_ten_fold(embed(load_encoder(target), graphs), graphs.y.numpy(), 0)
    assert found["accuracy"] == metrics["accuracy"]
