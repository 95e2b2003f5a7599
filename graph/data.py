"""Graph datasets: the TU collection as PyG reads it, and an embedded set for smoke runs.

Shapes: V nodes, E directed edges, F node features, G graphs.

A dataset and a batch of it are the same thing here, a :class:`Graphs`: one disjoint union of graphs
in flat tensors. A batch is then a few gathers instead of a collation of many small objects.
"""

import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx
import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.io import read_tu_data
from torch_geometric.utils import coalesce

from graph.datasets import DATASETS, Statistics, command, missing, raw_files, raw_folder
from shared.errors import UserError
from shared.experiment.data import fetch_archive, sha256_of_files
from shared.experiment.files import replacing
from shared.experiment.states import read_state, write_state
from shared.pixels import to_device

ATLAS = "atlas"
URL = "https://www.chrsmrrs.com/graphkerneldatasets"  # of the TU collection


# SHA-256 of the collection's zip files, as also given by other packages that download them, such as
# GraphDatasets.jl (src/TUDatasets.jl).
ARCHIVES = {
    "MUTAG": "c419bdc853c367d2d83da4973c45100954ae15e10f5ae2cddde6ca431f8207f6",
    "DD": "d033d7aeb1a48c4b2b47cf0390e7fc9671de70d98c8df5b11e458d2ec5515cd2",
    "REDDIT-BINARY": "982dc64ddade42a6365ba9c93f5080d0b9d315df0df492b57fd9fbb7e40dbe16",
    "REDDIT-MULTI-5K": "68587783c33d54dd6107a1fc101594fd2b9d1af4e99cafe733636f383ae0c8ee",
    "IMDB-BINARY": "b291ec8b26d85c70faa2ba0a2433e1f407ed2ef5d0fc072d36b9a95e49a1bb27",
    "NCI1": "10e1458f3bd9224f14e6d7627e74dcfd13e48d376d73935e7bd2900590ef1d82",
    "COLLAB": "cb5b772bc4f3a4690d0601378a3fc993b092aeafd63e2b0f2330137dda1cdcc6",
}
# No checksum of these is published: SHA-256 of their graphs as returned by load().
CONTENTS = {
    "PROTEINS": "fc9946484565f30016bc3b2c247a9e2b5539828fdbbdb7ccf6e4e10333bf01d5",
    "IMDB-MULTI": "b98096e47f5304e9eef72baa31ca7da0d0f2112ce76b86a47a7f3034d74cdf1d",
}


@dataclass(frozen=True)
class Graphs:
    """A disjoint union of graphs: a dataset, a batch, or an augmented view of a batch.

    x: (V, F) float node features. edge_index: (2, E) directed edges, both directions of each
    undirected one. batch: (V,) the graph of each node, non-decreasing. y: (G,) class labels, -1
    where there is none.
    """

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    y: Tensor

    @property
    def num_graphs(self) -> int:
        """Number of graphs, including those that have lost all their edges."""
        return self.y.numel()

    def to(self, device: torch.device | str) -> "Graphs":
        """The same graphs on ``device``, by copies that do not block."""
        target = torch.device(device)
        parts = (self.x, self.edge_index, self.batch, self.y)
        return Graphs(*(to_device(part, target) for part in parts))


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
    are dropped, self-loops removed, duplicate edges merged. The raw files are verified before they
    are read for the first time and whenever they have changed since.

    Raises:
        MissingData: the raw files are not there.
        UserError: the name is unknown, or a file is damaged.
    """
    if name == ATLAS:
        return _atlas()
    _statistics(name)
    raw, parsed = raw_folder(name, data_root), raw_folder(name, data_root).parent / "graphs.pt"
    if errors := missing(name, data_root):
        raise errors[0]
    source = fingerprint(name, data_root)
    graphs = _stored_graphs(parsed, source)
    if graphs is None:
        try:
            with FileLock(raw.parent / "processing.lock"):
                graphs = _stored_graphs(parsed, source)
                if graphs is None:  # no other process has parsed it in the meantime
                    verify_raw(raw, name)
                    graphs = _parsed_graphs(raw, name)
                    with replacing(parsed) as part:
                        write_state(part, {"source": source, **vars(graphs)})
        except OSError as error:
            raise UserError(f"{parsed}: cannot store the parsed graphs: {error}") from error
    return graphs


def fetch(name: str, data_root: Path) -> None:
    """Download the dataset if it is not there, and verify it in any case."""
    if name == ATLAS:
        return
    _statistics(name)
    raw = raw_folder(name, data_root)
    if not raw_files(name, data_root):
        fetch_archive(name, f"{URL}/{name}.zip", raw.parent, ARCHIVES.get(name))
        if not (raw.parent / name).is_dir():
            archive = raw.parent / f"{name}.zip"
            raise UserError(f"{archive}: has no folder {name}; delete it and run: {command(name)}")
        (raw.parent / name).replace(raw)
    verify_raw(raw, name)
    content = _sha256_of_graphs(load(name, data_root))
    if content != CONTENTS.get(name, content):
        raise UserError(
            f"{raw}: not the published graphs; delete it and {raw.parent / name}.zip, and run: "
            f"{command(name)}"
        )


def fingerprint(name: str, data_root: Path) -> str:
    """SHA-256 over the raw files of a dataset, or over the arrays of the embedded one."""
    if name == ATLAS:
        return _sha256_of_graphs(_atlas())
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
        yield Graphs(graphs.x.index_select(0, node), edge_index, graph, graphs.y[chosen])


def verify_raw(folder: Path, name: str) -> None:
    """Check the raw TU files in ``folder`` against each other and the published statistics."""
    files = _RawFiles(folder, name)
    graph = _verified_indicator(files, _statistics(name))
    _verify_labels(files, _statistics(name), graph)
    _verify_edges(files, _statistics(name), graph)


@dataclass(frozen=True)
class _RawFiles:
    """The files ``NAME_part.txt`` of a TU dataset."""

    folder: Path
    name: str

    def path(self, part: str) -> Path:
        return self.folder / f"{self.name}_{part}.txt"

    def fault(self, part: str, text: str, line: int | None = None) -> UserError:
        location = f"{self.path(part)}, line {line}" if line else f"{self.path(part)}"
        return UserError(f"{location}: {text}; delete {self.folder} and run: {command(self.name)}")

    def read(self, part: str, columns: int | None, number: type = int) -> np.ndarray:
        """All rows; any number of columns if ``columns`` is None, but the same in every row."""
        if not self.path(part).is_file():
            raise self.fault(part, "file missing")
        content = self.path(part).read_bytes()
        lines = content.count(b"\n")
        # PyG drops what follows the last line end.
        if not content.endswith(b"\n"):
            raise self.fault(part, "the file ends in the middle of the line", lines + 1)
        try:
            rows: np.ndarray = np.loadtxt(
                io.BytesIO(content), dtype=number, delimiter=",", comments=None, ndmin=2
            )
        except ValueError:
            raise self.fault(part, *_first_bad_line(content, columns, number)) from None
        if len(rows) != lines or columns not in (None, rows.shape[1]):
            raise self.fault(part, *_first_bad_line(content, columns, number))
        return rows

    def check_length(self, part: str, rows: np.ndarray, count: int, of: str) -> None:
        if len(rows) != count:
            raise self.fault(part, f"{len(rows)} lines for {count} {of}")


def _verified_indicator(files: _RawFiles, published: Statistics) -> np.ndarray:
    """The graph of each node, (V,), counted from 1."""
    part = "graph_indicator"
    graph: np.ndarray = files.read(part, 1)[:, 0]
    step = np.diff(graph, prepend=0)
    valid = (step == 0) | (step == 1)
    valid[0] = graph[0] == 1
    if not valid.all():
        line = int(np.argmin(valid))
        before = f"after graph {graph[line - 1]}" if line else "first"
        raise files.fault(part, f"graph {graph[line]} comes {before}", line + 1)
    graphs, mean = int(graph[-1]), len(graph) / int(graph[-1])
    if graphs != published.graphs:
        raise files.fault(part, f"{graphs} graphs, published are {published.graphs}")
    if abs(mean - published.nodes) > 0.01:
        raise files.fault(part, f"{mean:.2f} nodes per graph, published are {published.nodes}")
    return graph


def _verify_labels(files: _RawFiles, published: Statistics, graph: np.ndarray) -> None:
    """Check labels of graphs and nodes, and node attributes if there are any."""
    labels = files.read("graph_labels", 1)
    files.check_length("graph_labels", labels, published.graphs, "graphs")
    if (classes := len(np.unique(labels))) != published.classes:
        text = f"{classes} classes, published are {published.classes}"
        raise files.fault("graph_labels", text)
    if published.features > 1 or files.path("node_labels").exists():
        labels = files.read("node_labels", 1)
        files.check_length("node_labels", labels, len(graph), "nodes")
        if (width := int(np.ptp(labels)) + 1) != published.features:
            text = f"labels span {width} values, published are {published.features}"
            raise files.fault("node_labels", text)
    if files.path("node_attributes").exists():
        attributes = files.read("node_attributes", None, float)
        files.check_length("node_attributes", attributes, len(graph), "nodes")


def _verify_edges(files: _RawFiles, published: Statistics, graph: np.ndarray) -> None:
    """Check that edges are within one graph, in both directions, and as many as published."""

    def stop_at(wrong: np.ndarray, text: str) -> None:
        if wrong.any():
            line = int(np.argmax(wrong))
            edge = f"edge {edges[line, 0]}, {edges[line, 1]}"
            raise files.fault("A", f"{edge} {text}", line + 1)

    edges: np.ndarray = files.read("A", 2)
    for part, number in (("edge_labels", int), ("edge_attributes", float)):
        if files.path(part).exists():
            files.check_length(part, files.read(part, None, number), len(edges), "edges")
    nodes = len(graph)
    stop_at((edges.min(1) < 1) | (edges.max(1) > nodes), f"leaves the nodes 1 to {nodes}")
    source, target = edges.T - 1
    stop_at(graph[source] != graph[target], "joins two graphs")
    backward = target * nodes + source
    distinct = _distinct(source * nodes + target)
    if not np.array_equal(distinct, _distinct(backward)):
        stop_at(~np.isin(backward, distinct), "lacks its opposite direction")
    mean = np.count_nonzero(distinct // nodes != distinct % nodes) / 2 / published.graphs
    if abs(mean - published.edges) > published.edge_tolerance:
        text = f"{mean:.2f} undirected edges per graph, published are {published.edges}"
        raise files.fault("A", text)


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
    """Verified raw files as read by PyG; its own processed file is not to be trusted.

    Where ``weights_only`` refuses that file, PyG loads it without.
    """
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


def _sha256_of_graphs(graphs: Graphs) -> str:
    tensors = (graphs.x, graphs.edge_index, graphs.batch, graphs.y)
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def _statistics(name: str) -> Statistics:
    if name not in DATASETS:
        raise UserError(f"unknown dataset {name!r}; known are {', '.join(DATASETS)} and {ATLAS}")
    return DATASETS[name]


def _first_bad_line(content: bytes, columns: int | None, number: type) -> tuple[str, int]:
    """What is wrong with the first line that is not a row of numbers, and its number."""
    pattern = r"\s*[+-]?\d{1,18}\s*" if number is int else r"\s*[+-]?[\d.]+([eE][+-]?\d+)?\s*"
    lines = content.decode(errors="replace").split("\n")[:-1]
    columns = columns or lines[0].count(",") + 1
    for position, line in enumerate(lines, start=1):
        fields = line.split(",")
        if not line.strip():
            return "the line is empty", position
        if len(fields) != columns:
            return f"{len(fields)} values instead of {columns}", position
        for field in fields:
            if not re.fullmatch(pattern, field):
                kind = "an integer" if number is int else "a number"
                return f"{field.strip()[:40]!r} is not {kind}", position
    return "not a table of numbers", 1


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Sorted distinct values; several times faster here than ``numpy.unique``."""
    keys = np.sort(keys)
    return keys[np.flatnonzero(np.diff(keys, prepend=-1))]


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
