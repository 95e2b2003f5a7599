"""GraphCL's encoder, a graph isomorphism network pooled at every layer; PyG's networks; the head.

An encoder is a module with ``forward(x, edge_index, batch, num_graphs)``, (G, D), and ``dim``, D;
those made here also have ``features``, F.

Shapes: V nodes, E directed edges, F node features, G graphs, H hidden units, L layers.
"""

import inspect
import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch_geometric.nn import GINConv, global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.nn.models.basic_gnn import BasicGNN

from graph.config import Config
from shared.errors import suggestion
from shared.experiment.export import stating
from shared.modes import evaluating
from shared.ranges import COUNT, require

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")


class Encoder(nn.Module):
    """GIN with a sum readout of every layer (Xu et al. 2019, Eq. 4.1, as set up by GraphCL).

    A layer is a GINConv with eps 0 and the perceptron Linear-ReLU-Linear, then ReLU, then batch
    normalisation. Linear weights are Xavier-uniform, biases zero.
    """

    def __init__(self, features: int, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.features, self.dim = features, hidden * layers
        widths = [features] + [hidden] * (layers - 1)
        self.convolutions = nn.ModuleList(GINConv(_perceptron(w, hidden, hidden)) for w in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in widths)
        self.apply(_initialise)  # last, since GINConv resets its layers

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Graph embeddings (G, L * H) of features x (V, F), edges (2, E), owners batch (V,)."""
        adjacency = _adjacency(edge_index, x)
        with_gradient = x.is_cuda and torch.is_grad_enabled()
        transposed = _adjacency(edge_index.flip(0), x) if with_gradient else None
        readouts = []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            if transposed is None:
                x = convolution(x, adjacency)
            else:
                sums = _SumOverSources.apply(x, adjacency, transposed)
                x = convolution.get_submodule("nn")(sums + x)  # with eps 0
            x = norm(x.relu())
            readouts.append(global_add_pool(x, batch, num_graphs))
        return torch.cat(readouts, dim=1)


READOUTS = {"sum": global_add_pool, "mean": global_mean_pool, "max": global_max_pool}
# By name, the networks of torch_geometric.nn that need only widths and a number of layers.
NETWORKS: dict[str, Callable[..., Any]] = {
    name: model
    for name, model in vars(torch_geometric.nn).items()
    if inspect.isclass(model) and issubclass(model, BasicGNN) and model is not BasicGNN
    if name != "PNA"  # it needs the degrees of the data
}


class Pooled(nn.Module):
    """A graph encoder from a node-level network, ``(x, edge_index) -> (V, D)``.

    Args:
        model: such as those of ``torch_geometric.nn``.
        features: F, to find the width of its output.
        readout: of :data:`READOUTS`, over the nodes of each graph.

    Raises:
        ValueError: an unknown readout, or a model that does not give a row for each node.
    """

    def __init__(self, model: nn.Module, features: int, readout: str = "sum") -> None:
        super().__init__()
        if readout not in READOUTS:
            raise ValueError(f"readout is one of {', '.join(READOUTS)}; got {readout!r}")
        self.model, self.features = model, features
        self.pool = READOUTS[readout]
        self.by_graph = bool(getattr(model, "supports_norm_batch", False))
        with torch.no_grad(), evaluating(model):
            output = model(torch.ones(3, features), torch.tensor([[0, 1], [1, 0]]))
        if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != 3:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"{type(model).__name__} returns {shape} for 3 nodes, not a row for each; give a "
                f"node-level network, or a module with dim and the signature of graph.Encoder"
            )
        self.dim = output.shape[1]

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Graph embeddings (G, D) of features x (V, F), edges (2, E), owners batch (V,)."""
        # Some normalisations are over the nodes of each graph.
        owners = {"batch": batch, "batch_size": num_graphs} if self.by_graph else {}
        pooled: Tensor = self.pool(self.model(x, edge_index, **owners), batch, num_graphs)
        return pooled


def make_encoder(config: Config, features: int) -> nn.Module:
    """The encoder that a configuration names.

    Args:
        config: its ``network`` is ``"gin"``, a name of :data:`NETWORKS`, of which ``hidden`` and
            ``layers`` are the widths and the depth, or a function from F to a module: a node-level
            network, which is pooled by ``readout``, or an encoder with ``dim``.
        features: F.
    """
    network = config.network
    for name in ("layers", "hidden"):
        require(name, getattr(config, name), COUNT)
    if network == "gin":
        if config.readout != "sum":
            raise ValueError(f"gin sums over nodes; omit readout, got {config.readout!r}")
        return _with_facts(Encoder(features, config.hidden, config.layers), config)
    if callable(network):
        model: Any = network(features)
        if not isinstance(model, nn.Module):
            what = type(model).__name__
            raise ValueError(f"{network.__name__} makes a {what}; it has to make a torch module")
        return model if hasattr(model, "dim") else Pooled(model, features, config.readout)
    if network not in NETWORKS:
        known = ["gin", *NETWORKS]
        raise ValueError(f"no network {network!r}{suggestion(network, known, 'there are')}")
    model = NETWORKS[network](features, config.hidden, config.layers)
    return _with_facts(Pooled(model, features, config.readout), config)


def _with_facts(encoder: nn.Module, config: Config) -> nn.Module:
    """The encoder with the facts that its export states, since no tensor shows them."""
    names = ("network", "layers", "hidden", "readout")
    return stating(encoder, **{name: json.dumps(getattr(config, name)) for name in names})


class ProjectionHead(nn.Sequential):
    """Linear-ReLU-Linear of constant width, between the embedding and the loss (GraphCL)."""

    def __init__(self, dim: int) -> None:
        super().__init__(*_perceptron(dim, dim, dim))
        self.apply(_initialise)


def _perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    """Xavier-uniform weights, bitwise equal on every processor.

    torch's ``xavier_uniform_`` draws the same numbers but rounds them once or twice, depending on
    the processor, and over twenty epochs a last bit becomes a different accuracy.
    """
    if isinstance(module, nn.Linear):
        bound = math.sqrt(6 / (module.in_features + module.out_features))
        module.weight.copy_((2 * torch.rand_like(module.weight) - 1) * bound)
        nn.init.zeros_(module.bias)


class _SumOverSources(torch.autograd.Function):
    """The product of an adjacency with features, whose gradient takes the transposed adjacency.

    torch would transpose in each backward pass, which sorts, and waits for the GPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return adjacency @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ gradient, None, None


def _adjacency(edge_index: Tensor, x: Tensor) -> Tensor:
    """The (V, V) sparse matrix whose product with x sums over the sources of each node's edges.

    Compared with gathering and scattering along the edges, forward and backward take two thirds of
    the time on DD, whose epochs are the longest, and up to two fifths more on small graphs.
    """
    nodes = x.size(0)
    order = torch.argsort(edge_index[1], stable=True)
    # bincount would read its size from a GPU.
    degree = edge_index.new_zeros(nodes).scatter_add_(
        0, edge_index[1], edge_index.new_ones(len(order))
    )
    # The argument check_invariants does not help: torch 2.11 reads the default first, and warns
    # that it is not set.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_csr_tensor(
            nn.functional.pad(degree.cumsum(0), (1, 0)),
            edge_index[0, order],
            x.new_ones(edge_index.size(1)),
            (nodes, nodes),
        )
