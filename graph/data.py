"""Graph datasets: the TU collection as PyG reads it, and an embedded set for smoke runs.

Shapes: V nodes, E directed edges, F node features, G graphs.

A dataset and a batch of it are the same thing here, a :class:`Graphs`: one disjoint union of graphs
in flat tensors. A batch is then a few gathers instead of a collation of many small objects.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.io import read_tu_data
from torch_geometric.utils import coalesce

from graph.datasets import DATASETS, command, missing, raw_files, raw_folder
from shared.errors import UserError
from shared.experiment.data import fetch_archive, sha256_of_files, writing
from shared.experiment.files import replacing
from shared.experiment.states import read_state, write_state
from shared.pixels import to_device

ATLAS = "atlas"
URL = "https://www.chrsmrrs.com/graphkerneldatasets"  # of the TU collection
STORED = ("x", "edge_index", "batch", "y")  # of Graphs, of a dataset


@dataclass(frozen=True)
class Graphs:
    """A disjoint union of graphs: a dataset, a batch, or an augmented view of a batch.

    x: (V, F) float node features. edge_index: (2, E) directed edges, both directions of each
    undirected one. batch: (V,) the graph of each node, non-decreasing. y: (G,) class labels, -1
    where there is none. rows: (V,) the row of each node in features that are kept elsewhere, in
    place of x, which then has no columns; see :func:`graph.train.kept_features`.
    """

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    y: Tensor
    rows: Tensor | None = None

    @property
    def num_graphs(self) -> int:
        """Number of graphs, including those that have lost all their edges."""
        return self.y.numel()

    def to(self, device: torch.device | str) -> "Graphs":
        """The same graphs on ``device``, by copies that do not block."""
        target = torch.device(device)
        parts = {name: part for name, part in vars(self).items() if part is not None}
        return Graphs(**{name: to_device(part, target) for name, part in parts.items()})

    def of_nodes(self, nodes: Tensor) -> dict[str, Any]:
        """Features and rows of some nodes, as arguments of a new :class:`Graphs`."""
        rows = None if self.rows is None else self.rows.index_select(0, nodes)
        return {"x": self.x.index_select(0, nodes), "rows": rows}


def check(graphs: Graphs, name: str = "graphs") -> None:
    """Refuse graphs that violate :class:`Graphs`, or include one without nodes; any device."""
    if not isinstance(graphs, Graphs):
        what = type(graphs).__name__
        raise ValueError(f"{name}: not graph.Graphs but {what}; use graph.from_pyg(dataset)")
    x, edges, batch, y = graphs.x, graphs.edge_index, graphs.batch, graphs.y
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"{name}: x is {x.dtype} of shape {tuple(x.shape)}, not floats (V, F)")
    for field, value, dimensions in (("edge_index", edges, 2), ("batch", batch, 1), ("y", y, 1)):
        if value.dtype != torch.long or value.ndim != dimensions:
            raise ValueError(
                f"{name}: {field} is {value.dtype} of shape {tuple(value.shape)}; whole numbers "
                f"(torch.long) in {dimensions} dimensions are expected"
            )
    if len(edges) != 2:
        raise ValueError(f"{name}: edge_index has shape {tuple(edges.shape)}, not (2, E)")
    if len(batch) != len(x) or bool((batch.diff() < 0).any()):
        raise ValueError(f"{name}: batch has to give the graph of each of {len(x)} nodes, in order")
    if batch.numel() and not 0 <= int(batch[0]) <= int(batch[-1]) < len(y):
        raise ValueError(f"{name}: batch names graphs outside 0 to {len(y) - 1}, as many as y has")
    empty = torch.bincount(batch, minlength=len(y)) == 0
    if empty.any():
        raise ValueError(f"{name}: graph {int(empty.nonzero()[0])} has no nodes; omit it")
    infinite = ~x.isfinite()
    if infinite.any():
        node, feature = infinite.nonzero()[0].tolist()
        owner = int(batch[node])
        inside = int((batch[:node] == owner).sum())
        raise ValueError(
            f"{name}: feature {feature} of node {inside} of graph {owner} is "
            f"{float(x[node, feature])}; replace it, or omit the graph"
        )
    outside = ((edges < 0) | (edges >= len(x))).any(0)
    wrong = outside.clone()
    wrong[~outside] = batch[edges[0, ~outside]] != batch[edges[1, ~outside]]
    if wrong.any():
        source, target = edges[:, wrong][:, 0].tolist()
        raise ValueError(
            f"{name}: edge {source} -> {target} is invalid; it has to join two nodes of one graph"
        )


def load(name: str, data_root: Path) -> Graphs:
    """The dataset ``name`` from ``data_root/TUDataset``, or the embedded one for ``"atlas"``.

    Node labels are one-hot features, constant 1 where there are none; edge labels and attributes
    are dropped, self-loops removed, duplicate edges merged. The raw files are verified each time,
    and read by PyG where they have changed since.

    Raises:
        MissingData: the raw files are not there.
        UserError: the name is unknown, or the files are not the collection's.
    """
    if name == ATLAS:
        return _atlas()
    _check_name(name)
    if errors := missing(name, data_root):
        raise errors[0]
    raw, source = raw_folder(name, data_root), fingerprint(name, data_root)
    if source != (DATASETS[name].files or source):
        raise UserError(
            f"{raw}: not the files of the collection; delete the folder and run: {command(name)}"
        )
    parsed = raw.parent / "graphs.pt"
    graphs = _stored_graphs(parsed, source)
    if graphs is None:
        graphs = _parsed_graphs(raw, name)
        state = {part: vars(graphs)[part] for part in STORED}
        with writing(parsed), replacing(parsed) as part:
            write_state(part, {"source": source, **state})
    return graphs


def fetch(name: str, data_root: Path) -> None:
    """Download the dataset if it is not there, and verify it in any case."""
    if name == ATLAS:
        return
    _check_name(name)
    raw = raw_folder(name, data_root)
    if not raw_files(name, data_root):
        fetch_archive(name, f"{URL}/{name}.zip", raw.parent, DATASETS[name].archive)
        if not (raw.parent / name).is_dir():
            archive = raw.parent / f"{name}.zip"
            raise UserError(f"{archive}: has no folder {name}; delete it and run: {command(name)}")
        (raw.parent / name).replace(raw)
    load(name, data_root)


def fingerprint(name: str, data_root: Path) -> str:
    """SHA-256 over the raw files of a dataset, or over the arrays of the embedded one."""
    if name == ATLAS:
        parts = (vars(_atlas())[name] for name in STORED)
        return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()
    return sha256_of_files(raw_files(name, data_root))


def permutation(count: int, seed: int, epoch: int | None = None) -> Tensor:
    """An order of ``count`` graphs as a pure function of the seed, or of seed and epoch.

    Without an epoch it is the authors' version (shuffled once, so that every epoch has the same
    batches); with one, every epoch has another order.
    """
    entropy = [seed, 0 if epoch is None else epoch + 1]
    return torch.from_numpy(np.random.default_rng(entropy).permutation(count))


@dataclass(frozen=True)
class Layout:
    """Where the nodes and edges of each graph lie.

    nodes, edges: (G,) how many a graph has. by_graph: (E,) the edges, sorted by graph; None where
    they are stored so.
    """

    nodes: Tensor
    edges: Tensor
    by_graph: Tensor | None


def layout(graphs: Graphs) -> Layout:
    """The layout of graphs, found once for all epochs."""
    owner = graphs.batch[graphs.edge_index[0]]
    nodes, edges = (
        torch.bincount(graph_index, minlength=graphs.num_graphs)
        for graph_index in (graphs.batch, owner)
    )
    # Edges need not be sorted by graph (appended self-loops are not).
    is_sorted = bool((owner[1:] >= owner[:-1]).all())
    return Layout(nodes, edges, None if is_sorted else torch.argsort(owner, stable=True))


def batches(
    graphs: Graphs, batch_size: int, order: Tensor | None = None, graph_layout: Layout | None = None
) -> Iterator[Graphs]:
    """Consecutive batches of ``graphs`` taken in ``order`` (default: as stored).

    Every graph of ``order`` is in exactly one batch; the last batch may be small.
    ``graph_layout`` is the :func:`layout` of the graphs, where it is known.

    Raises:
        ValueError: the batch size is not positive.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    order = torch.arange(graphs.num_graphs) if order is None else order
    graph_layout = layout(graphs) if graph_layout is None else graph_layout
    first_node = graph_layout.nodes.cumsum(0) - graph_layout.nodes
    first_edge = graph_layout.edges.cumsum(0) - graph_layout.edges
    for chosen in torch.split(order.to(graphs.x.device), batch_size):
        count = graph_layout.nodes[chosen]
        node, graph = _concatenated_ranges(first_node[chosen], count)
        edge, owner = _concatenated_ranges(first_edge[chosen], graph_layout.edges[chosen])
        shift = (count.cumsum(0) - count - first_node[chosen])[owner]
        edge = edge if graph_layout.by_graph is None else graph_layout.by_graph[edge]
        edge_index = graphs.edge_index.index_select(1, edge) + shift
        yield Graphs(
            **graphs.of_nodes(node), edge_index=edge_index, batch=graph, y=graphs.y[chosen]
        )


def _stored_graphs(parsed: Path, source: str) -> Graphs | None:
    """The stored graphs, if they were parsed from raw files with this fingerprint."""
    if not parsed.exists():
        return None
    try:
        state = read_state(parsed)
    except ValueError as error:
        raise UserError(f"{parsed}: damaged ({error}), delete it and run again") from error
    return Graphs(**state) if state.pop("source") == source else None


def _parsed_graphs(raw: Path, name: str) -> Graphs:
    """Verified raw files as read by PyG; its own processed file could run code when loaded."""
    data, slices, sizes = read_tu_data(str(raw), name)
    unlabelled = data.x is None
    count = torch.tensor(data._num_nodes) if unlabelled else slices["x"].diff()
    edge_count = slices["edge_index"].diff()
    owner = torch.repeat_interleave(torch.arange(len(edge_count)), edge_count)
    edge_index = data.edge_index + (count.cumsum(0) - count)[owner]  # numbered from 0 per graph
    batch = torch.repeat_interleave(torch.arange(len(count)), count)
    if unlabelled:
        return Graphs(torch.ones(len(batch), 1), edge_index, batch, data.y)
    return Graphs(data.x[:, sizes["num_node_attributes"] :].contiguous(), edge_index, batch, data.y)


def _check_name(name: str) -> None:
    if name not in DATASETS:
        raise UserError(f"unknown dataset {name!r}; known are {', '.join(DATASETS)} and {ATLAS}")


def _concatenated_ranges(first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenated ranges ``first[i] .. first[i] + count[i] - 1``, and the ``i`` of each entry."""
    owner = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    inside = torch.arange(len(owner), device=count.device) - (count.cumsum(0) - count)[owner]
    return first[owner] + inside, owner


@cache
def _atlas() -> Graphs:
    """The 128 connected graphs of 5 to 7 nodes with (1) or without (0) a triangle.

    The classes are matched in nodes and edges, so that neither count gives the label away: of each
    size as many of one class as of the other, taken evenly from the atlas.
    """
    by_size: dict[tuple[int, int], tuple[list[nx.Graph], list[nx.Graph]]] = {}
    for graph in nx.graph_atlas_g():
        if graph.number_of_nodes() >= 5 and nx.is_connected(graph):
            size = (graph.number_of_nodes(), graph.number_of_edges())
            by_size.setdefault(size, ([], []))[any(nx.triangles(graph).values())].append(graph)
    members = []
    for classes in by_size.values():
        count = min(map(len, classes))
        for label, of_class in enumerate(classes):
            chosen = [of_class[i * len(of_class) // count] for i in range(count)]
            members += [Data(edge_index=_edge_index(g), num_nodes=len(g), y=label) for g in chosen]
    union = Batch.from_data_list(members)
    return Graphs(torch.ones(union.num_nodes, 1), union.edge_index, union.batch, union.y)


def _edge_index(graph: nx.Graph) -> Tensor:
    edges = torch.tensor(list(graph.edges)).t()
    both_ways: Tensor = coalesce(torch.cat((edges, edges.flip(0)), 1))
    return both_ways
