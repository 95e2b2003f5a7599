"""Graphs, encoders and augmentations of one's own, and the protocol for large sets."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, GIN
from torch_geometric.transforms import ToSparseTensor

import graph
from graph import evaluation
from graph.config import Config
from graph.data import Graphs, check, load
from graph.encoder import NETWORKS, Encoder, Pooled, make_encoder
from graph.evaluation import COSTS, LOGISTIC, embed, logistic_ten_fold, svm_ten_fold
from graph.own import from_pyg
from graph.train import check_view
from shared.experiment.run import Run
from tests.stages.pages import run_page

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


def twice(features: int) -> nn.Module:
    class Twice(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    return Twice()


def quieter(graphs: Graphs, generator: torch.Generator) -> Graphs:
    noise = torch.rand(graphs.x.shape, generator=generator, dtype=graphs.x.dtype)
    return dataclasses.replace(graphs, x=graphs.x * noise)


def torn(graphs: Graphs, generator: torch.Generator) -> Graphs:
    return dataclasses.replace(graphs, edge_index=graphs.edge_index + 1)


def fewer(graphs: Graphs, generator: torch.Generator) -> Graphs:
    keep = graphs.batch > 0
    nodes = keep.cumsum(0) - 1
    edges = nodes[graphs.edge_index[:, keep[graphs.edge_index].all(0)]]
    return Graphs(graphs.x[keep], edges, graphs.batch[keep] - 1, graphs.y[1:])


def made(**changes: Any) -> nn.Module:
    return make_encoder(dataclasses.replace(ATLAS, **changes), 1)


def views_of(augmentation: Any) -> list[Graphs]:
    config = dataclasses.replace(ATLAS, augmentations=augmentation)
    return [view for _, view in graph.train.views(config, load("atlas", Path()), 0)]


def test_the_code_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = run_page("graph.md")
    sys.modules.pop("mine")
    assert names["features"].shape == (60, 48)
    assert 0 <= names["found"]["accuracy"] <= 100
    with torch.no_grad():
        np.testing.assert_array_equal(embed(names["again"], names["graphs"]), names["features"])


EDGES = torch.tensor([[0, 1, 1, 1, 2], [1, 0, 1, 2, 1]])  # with a self-loop


def of(**changes: Any) -> Data:
    """A graph of three nodes with what differs."""
    return Data(**{"x": torch.ones(3, 2), "edge_index": EDGES, "y": torch.tensor([1])} | changes)


def test_graphs_of_pyg_are_made_as_those_of_the_collection() -> None:
    one = of(x=torch.tensor([[1], [2], [3]]))
    other = of(x=torch.ones(2), edge_index=torch.tensor([[0], [1]]))
    found = from_pyg([one, other, Data(x=torch.ones(1, 1))])
    assert found.x.tolist() == [[1.0], [2.0], [3.0], [1.0], [1.0], [1.0]]
    assert found.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [3, 4], [4, 3]]
    assert found.batch.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.y.tolist() == [1, 1, -1]


@pytest.mark.parametrize(
    "given", [[of(edge_index=EDGES.int())], Batch.from_data_list([of()]), DataLoader([of()])]
)
def test_other_forms_of_a_graph_lose_nothing(given: Any) -> None:
    found = from_pyg(given)
    assert found.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert found.x.tolist() == [[1, 1]] * 3
    assert found.y.tolist() == [1]


def test_batches_are_taken_apart_and_graphs_without_edges_or_features_are_taken() -> None:
    joined = of(x=torch.ones(3, 0))
    lone = of(x=torch.ones(3, 0), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([0]))
    found = from_pyg(DataLoader([lone, joined, lone], batch_size=2))
    assert from_pyg([Data(num_nodes=3, edge_index=torch.tensor([]))]).edge_index.shape == (2, 0)
    assert found.x.tolist() == [[1.0]] * 9
    assert found.batch.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found.edge_index.shape == (2, 4)
    assert found.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("y", "label"),
    [
        *((1, 1), (2.0, 2), (True, 1), (np.int64(3), 3), ([4], 4), (torch.tensor([[5]]), 5)),
        *((None, -1), (-1, -1), (0.5, -1), (float("inf"), -1), (torch.tensor([1, 2]), -1)),
        *((torch.tensor([float("nan")]), -1), (1e30, -1), (-3, -1)),
    ],
)
def test_a_label_is_one_whole_number_or_none(y: Any, label: int) -> None:
    assert from_pyg([of(y=y)]).y.tolist() == [label]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (of(edge_index=EDGES + 1), "larger indices"),
        (of(edge_index=EDGES - 1), "negative indices"),
        (of(edge_index=EDGES.t()), "shape"),
        (of(edge_index=EDGES.float()), "float32"),
        (ToSparseTensor()(of()), "adj_t"),
        (Data(pos=torch.ones(3, 3), face=EDGES[:, :1]), "no edge_index"),
        (of(x=torch.ones(6, 2), num_nodes=3), "batch"),
        (of(x=torch.ones(3, 3)), "node features"),
        (of(x=None), "node features"),
        (of(x=torch.full((3, 2), torch.nan)), "graph 1 is nan"),
        (of(x=torch.full((3, 2), 1e300, dtype=torch.double)), "graph 1 is inf"),
        (of(x=torch.ones(0, 2), edge_index=EDGES[:, :0]), "graph 1 has no nodes"),
        (of(y="mutagen"), "graph 1"),
        (of(batch=torch.tensor([0, 0, 1])), "batch"),
        (HeteroData(), "HeteroData"),
    ],
)
def test_a_graph_that_cannot_be_taken_is_refused(wrong: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        from_pyg([of(), wrong])


TWO = from_pyg([of(), of()])
INFINITE = dataclasses.replace(TWO, x=TWO.x.index_fill(0, torch.tensor(4), torch.inf))


def across(target: int) -> Tensor:
    edges = TWO.edge_index.clone()
    edges[1, 0] = target
    return edges


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda run: from_pyg([]), "without graphs"),
        (lambda run: from_pyg(of()), "single graph"),
        *(
            (lambda run, changes=changes: check(dataclasses.replace(TWO, **changes)), word)
            for changes, word in (
                ({"edge_index": across(3)}, "0 -> 3"),
                ({"edge_index": across(6)}, "0 -> 6"),
                ({"edge_index": TWO.edge_index.float()}, "float32"),
                ({"edge_index": TWO.edge_index.t()}, r"\(8, 2\)"),
                ({"x": TWO.x.long()}, "int64"),
                ({"batch": TWO.batch.flip(0)}, "batch"),
                ({"y": TWO.y[:1]}, "batch"),
                ({"y": torch.tensor([0, 1, 0])}, "graph 2"),
            )
        ),
        (lambda run: check(INFINITE), "node 1 of graph 1 is inf"),
        (lambda run: embed(Encoder(2), INFINITE), "node 1 of graph 1 is inf"),
        (lambda run: graph.pretrain(ATLAS, INFINITE, run), "node 1 of graph 1 is inf"),
        (lambda run: graph.pretrain(ATLAS, from_pyg([of()]), run), "1 graphs"),
        (lambda run: embed(Encoder(7), TWO), "2 node features"),
        (lambda run: embed(GIN(2, 4, 1), TWO), "Pooled"),  # it would give a row for each node
        (lambda run: made(network="Foo"), "gin, GIN"),  # which differ in case alone
        (lambda run: made(network="GraphSAG"), "GraphSAGE"),
        (lambda run: made(network=nothing), "nothing makes a int"),
        (lambda run: made(network=sums), r"Sums returns \(1, 1\)"),
        (lambda run: made(network=twice), "Twice returns tuple"),
        (lambda run: made(network="GCN", readout="last"), "last"),
        (lambda run: made(readout="mean"), "readout"),
        (lambda run: made(network="GAT", layers=0), "layers"),
        (lambda run: made(network="GAT", hidden=-1), "hidden"),
        (lambda run: views_of(fewer), "63 graphs"),
        (lambda run: views_of(torn), "torn: edge"),
        (lambda run: check_view("mine", TWO, {}), "dict"),
        (lambda run: evaluation.score("svm", np.ones((20, 2)), np.arange(20) % 2, 0), "svm"),
    ],
)
def test_what_cannot_be_used_is_refused(
    call: Callable[[Run], object], word: str, tmp_path: Path
) -> None:
    with Run(tmp_path / "run", ATLAS) as run, pytest.raises(ValueError, match=word):
        call(run)


def test_a_kernel_matrix_too_large_for_the_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "LARGEST_KERNEL", 19)
    with pytest.raises(ValueError, match="20 graphs"):
        svm_ten_fold(np.ones((20, 2)), np.arange(20) % 2, 0)


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
    # As are norms of PyG's that are over a graph.
    torch.manual_seed(0)
    normed = Pooled(GCN(1, 4, 2, norm="graph_norm"), 1).eval()
    both = normed(graphs.x, graphs.edge_index, graphs.batch, 2)
    for number, x in enumerate((graphs.x[:2], graphs.x[2:])):
        alone = normed(x, graphs.edge_index, torch.zeros(len(x)).long(), 1)
        torch.testing.assert_close(both[number], alone[0])


def test_an_augmentation_of_one_s_own_is_used() -> None:
    seen, again = views_of(quieter), views_of(quieter)
    assert all(0 <= float(view.x.min()) < float(view.x.max()) < 1 for view in seen)
    assert all(torch.equal(a.x, b.x) for a, b in zip(seen, again, strict=True))


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


def test_double_precision_is_kept_and_edge_features_are_named() -> None:
    exact = torch.tensor([[1 / 3], [1 + 2**-40]], dtype=torch.float64)
    item = Data(x=exact, edge_index=torch.tensor([[0], [1]]))
    assert torch.equal(from_pyg([item]).x, exact)
    assert from_pyg([Data(x=exact.half(), edge_index=item.edge_index)]).x.dtype == torch.float32
    item.edge_attr = torch.ones(1, 2)
    with pytest.warns(UserWarning, match="edge_attr"):
        from_pyg([item])
    item = Data(x=exact, pos=torch.ones(2, 3), edge_index=item.edge_index)
    with pytest.warns(UserWarning, match="pos"):
        from_pyg([item])
