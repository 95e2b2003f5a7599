"""GraphCL's encoder: a graph isomorphism network read out at every layer, and a projection head.

Shapes: V nodes, E directed edges, F node features, G graphs, H hidden units, L layers.
"""

import math
import warnings

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv, global_add_pool

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")


class Encoder(nn.Module):
    """GIN with a sum readout of every layer (Xu et al. 2019, Eq. 4.1, as set up by GraphCL).

    A layer is a GINConv with eps 0 and the perceptron Linear-ReLU-Linear, then ReLU, then batch
    normalisation. Linear weights are Xavier-uniform, biases zero.
    """

    def __init__(self, features: int, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.dim = hidden * layers
        widths = [features] + [hidden] * (layers - 1)
        self.convolutions = nn.ModuleList(GINConv(_perceptron(w, hidden, hidden)) for w in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in widths)
        self.apply(_initialise)  # last, for GINConv resets the layers it is given

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Graph embeddings (G, L * H) of features x (V, F), edges (2, E), owners batch (V,)."""
        adjacency = _adjacency(edge_index, x)
        readouts = []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x, adjacency).relu())
            readouts.append(global_add_pool(x, batch, num_graphs))
        return torch.cat(readouts, dim=1)


class ProjectionHead(nn.Sequential):
    """Linear-ReLU-Linear of constant width, between the embedding and the loss (GraphCL)."""

    def __init__(self, dim: int) -> None:
        super().__init__(*_perceptron(dim, dim, dim))
        self.apply(_initialise)


def _perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    """Xavier-uniform weights, to the bit the same on every processor.

    torch's own ``xavier_uniform_`` draws the same numbers and rounds them once or twice, as the
    processor has it, and twenty epochs make a different accuracy of a last bit.
    """
    if isinstance(module, nn.Linear):
        bound = math.sqrt(6 / (module.in_features + module.out_features))
        module.weight.copy_((2 * torch.rand_like(module.weight) - 1) * bound)
        nn.init.zeros_(module.bias)


def _adjacency(edge_index: Tensor, x: Tensor) -> Tensor:
    """The (V, V) sparse matrix whose product with x sums over the sources of each node's edges.

    Forward and backward take two thirds of the time of gathering and scattering along the edges on
    DD, whose epochs are the longest, and up to two fifths more on sets of small graphs.
    """
    nodes = x.size(0)
    order = torch.argsort(edge_index[1], stable=True)
    degree = torch.bincount(edge_index[1], minlength=nodes)
    return torch.sparse_csr_tensor(
        nn.functional.pad(degree.cumsum(0), (1, 0)),
        edge_index[0, order],
        x.new_ones(edge_index.size(1)),
        (nodes, nodes),
        check_invariants=False,
    )
