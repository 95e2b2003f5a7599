import contextlib
import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from graph.augmentation import augment
from graph.data import ATLAS, Graphs, load
from graph.encoder import Encoder, ProjectionHead, _adjacency, _SumOverSources
from tests.stages.simulated_device import SimulatedDevice


def graphs_with_features() -> Graphs:
    """The embedded graphs, without some directed edges and with random features, in float64."""
    torch.manual_seed(0)
    atlas = load(ATLAS, Path("nowhere"))
    atlas = augment(atlas, ("edge_perturb",), torch.Generator(), ratio=0.3, add_edges=False)
    return Graphs(
        torch.randn(len(atlas.x), 5, dtype=torch.float64), atlas.edge_index, atlas.batch, atlas.y
    )


def encode(encoder: nn.Module, graphs: Graphs) -> Tensor:
    return encoder(graphs.x, graphs.edge_index, graphs.batch, graphs.num_graphs)


def dense_reference(encoder: Encoder, graphs: Graphs, training: bool) -> Tensor:
    """The encoder as loops over layers and graphs with the dense matrix A + I."""
    nodes = len(graphs.x)
    adjacency = torch.eye(nodes, dtype=graphs.x.dtype)
    for source, target in graphs.edge_index.T.tolist():
        adjacency[target, source] += 1
    h, readouts = graphs.x, []
    for convolution, norm in zip(encoder.convolutions, encoder.norms, strict=True):
        first, second = convolution.nn[0], convolution.nn[2]
        h = adjacency @ h
        h = (h @ first.weight.T + first.bias).clamp(min=0)
        h = (h @ second.weight.T + second.bias).clamp(min=0)
        if training:
            mean, variance = h.mean(0), ((h - h.mean(0)) ** 2).mean(0)
        else:
            mean, variance = norm.running_mean, norm.running_var
        h = (h - mean) / torch.sqrt(variance + 1e-5) * norm.weight + norm.bias
        pooled = [h[graphs.batch == graph].sum(0) for graph in range(graphs.num_graphs)]
        readouts.append(torch.stack(pooled))
    return torch.cat(readouts, 1)


def nontrivial_encoder() -> Encoder:
    torch.manual_seed(1)
    encoder = Encoder(5, hidden=8, layers=3).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.4)
    for norm in encoder.norms:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return encoder


@pytest.mark.parametrize("training", [False, True])
def test_encoder_is_the_dense_reference(training: bool):
    encoder, graphs = nontrivial_encoder().train(training), graphs_with_features()
    expected = dense_reference(encoder, graphs, training)
    weight = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weight).sum(), list(encoder.parameters()))
    found = encode(encoder, graphs)
    assert found.shape == (graphs.num_graphs, encoder.dim) == (128, 24)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    found_gradients = torch.autograd.grad((found * weight).sum(), list(encoder.parameters()))
    for one, other in zip(found_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_sums_on_a_gpu_have_the_gradient_of_torchs_product():
    """There the transposed adjacency is made once, here of edges in one direction alone."""
    edges = torch.randint(7, (2, 20), generator=torch.Generator().manual_seed(0))
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    adjacency, transposed = _adjacency(edges, x), _adjacency(edges.flip(0), x)
    expected, found = adjacency @ x, _SumOverSources.apply(x, adjacency, transposed)
    assert torch.equal(found, expected)
    assert len(adjacency.crow_indices()) == 8
    weights = torch.randn(7, 3, dtype=torch.float64)
    gradients = [torch.autograd.grad((each * weights).sum(), x)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-14, atol=1e-14)


def test_graph_without_nodes_has_a_zero_embedding():
    found = nontrivial_encoder().eval()(
        torch.ones(2, 5, dtype=torch.float64),
        torch.empty(2, 0, dtype=torch.long),
        torch.tensor([0, 2]),
        4,
    )
    assert (found[[1, 3]] == 0).all()
    assert (found[[0, 2]] != 0).any(1).all()


def test_linear_layers_start_xavier_uniform_with_zero_bias():
    torch.manual_seed(0)
    encoder, head = Encoder(300, hidden=200, layers=2), ProjectionHead(200)
    linears = [m for m in [*encoder.modules(), *head.modules()] if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears[:4]] == [(300, 200)] + [(200, 200)] * 3
    assert len(linears) == 6
    for linear in linears:
        bound = (6 / (linear.in_features + linear.out_features)) ** 0.5
        assert linear.weight.abs().max() <= bound
        assert float(linear.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.02)
        assert (linear.bias == 0).all()


@pytest.mark.parametrize("simulated", [True, pytest.param(False, marks=pytest.mark.cuda)])
def test_accelerator_agrees(simulated: bool):
    encoder, graphs = nontrivial_encoder(), graphs_with_features()
    other = copy.deepcopy(encoder)
    expected = encode(encoder, graphs)
    expected.square().sum().backward()
    with SimulatedDevice() if simulated else contextlib.nullcontext():
        found = encode(other.to("cuda"), graphs.to("cuda"))
        found.square().sum().backward()
        torch.testing.assert_close(found.cpu(), expected)
        for one, two in zip(other.parameters(), encoder.parameters(), strict=True):
            torch.testing.assert_close(one.grad.cpu(), two.grad)
