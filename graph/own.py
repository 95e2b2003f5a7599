"""Your own graphs, in PyG's formats.

Shapes: V nodes, E directed edges, F node features, G graphs.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.utils import is_sparse, remove_self_loops, to_edge_index, to_undirected

from graph import data as datasets
from graph.data import Graphs, check
from shared.errors import UserError, first_line
from shared.experiment.data import sha256_of

# Fields that show that a graph has edges, in a form that is not supported.
EDGE_FEATURES = ("edge_attr", "edge_weight")
OWN = "file:"  # before the path of the user's own file
# The classes that a Data in a file consists of.
PYG = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
_OTHER_EDGES = ("edge", "adj", "face", "pos")


def from_pyg(dataset: Iterable[Any]) -> Graphs:
    """The graphs of a PyG dataset, a list of ``Data``, a ``Batch``, or a loader of batches.

    Nodes and edges are treated as :func:`graph.load` does: edges get their opposite direction,
    self-loops are removed, duplicates merged; edge features are dropped with a warning, positions
    without.

    Accepted fields of each ``Data``:

    - ``x``: (V,) or (V, F) real and finite, stays float64 or becomes float32; constant 1 if no
      graph has any. All graphs have the same F.
    - ``edge_index``: (2, E) integers from 0 to V - 1; or ``adj_t`` or ``adj`` as made by
      ``ToSparseTensor``. A graph without edges has an empty one, or none.
    - ``y``: a whole number from 0, as a tensor, an array or a Python number. Any other number
      (NaN, infinite, a fraction, -1) and several numbers are not a label, -1.

    Raises:
        ValueError: no graph, or one that is not as described; the message names the graph, the
            field and the remedy.
    """
    features: list[Tensor | None] = []
    members, labels = [], []
    dropped: set[str] = set()
    has_positions = False
    for number, item in enumerate(_single_graphs(dataset)):
        try:
            _check_kind(item)
            edges = _edges(item)
            x = _features(item)
            nodes = _node_count(item, x, edges)
            labels.append(_label(item.y))
        except ValueError as error:
            raise ValueError(f"graph {number} {error}") from None
        features.append(x)
        dropped |= {name for name in EDGE_FEATURES if name in item and item[name] is not None}
        has_positions |= "pos" in item and item.pos is not None
        edges = to_undirected(remove_self_loops(edges)[0], num_nodes=nodes)
        members.append(Data(edge_index=edges, num_nodes=nodes))
    if not members:
        raise ValueError("a dataset without graphs")
    if dropped:
        warnings.warn(
            f"{' and '.join(sorted(dropped))} of the edges are not used: no network here takes "
            f"them; omit them",
            stacklevel=2,
        )
    if has_positions:
        warnings.warn(
            "pos of the nodes is not used: no network here takes it; append it to x, or omit it",
            stacklevel=2,
        )
    _check_widths([0 if x is None else x.shape[1] for x in features])
    union = Batch.from_data_list(members)
    present = [x for x in features if x is not None]
    x = torch.cat(present) if present else torch.ones(len(union.batch), 1)
    graphs = Graphs(x, union.edge_index, union.batch, torch.tensor(labels))
    check(dataclasses.replace(graphs, x=x.float()))  # finite in either precision
    return graphs


def _single_graphs(dataset: Iterable[Any]) -> Iterator[Any]:
    """The members of a dataset, those of its batches one by one."""
    if isinstance(dataset, Data) and not isinstance(dataset, Batch):
        raise ValueError("this is a single graph; give a dataset or a list: from_pyg([data, ...])")
    for item in [dataset] if isinstance(dataset, Batch) else dataset:
        if not isinstance(item, Batch):
            yield item
            continue
        try:
            yield from item.to_data_list()
        except RuntimeError as error:
            raise ValueError(f"a batch cannot be split into graphs ({error}); give them") from None


def _check_kind(item: Any) -> None:
    if not isinstance(item, Data):
        remedy = (
            "make it one kind of node and edge: data.to_homogeneous()"
            if type(item).__name__ == "HeteroData"
            else "give torch_geometric.data.Data"
        )
        raise ValueError(f"is of type {type(item).__name__}; {remedy}")
    if "batch" in item and torch.as_tensor(item["batch"]).unique().numel() > 1:
        raise ValueError("has a batch vector, so that it is several; give them one by one")


def _edges(item: Data) -> Tensor:
    """The edges (2, E) of one graph, from whichever field holds them."""
    for field in ("edge_index", "adj_t", "adj"):
        value = item[field] if field in item else None
        if value is None:
            continue
        if is_sparse(value):
            # adj_t is the transpose, which makes no difference: edges become undirected later.
            edges: Tensor = to_edge_index(value)[0].cpu()
            return edges
        if field == "edge_index":
            return _edge_index(value)
        raise ValueError(f"has its edges in a dense {field}; omit the transform ToDense")
    other = [name for name in item.keys() if name.startswith(_OTHER_EDGES)]
    if other:
        raise ValueError(
            f"has no edge_index but {', '.join(sorted(other))}; give it an edge_index first, for "
            f"instance by FaceToEdge() or KNNGraph() of torch_geometric.transforms"
        )
    return torch.zeros(2, 0, dtype=torch.long)


def _edge_index(value: Any) -> Tensor:
    edges = _tensor("edge_index", value)
    if not edges.numel():
        return torch.zeros(2, 0, dtype=torch.long)
    if edges.ndim != 2 or len(edges) != 2:
        transposed = edges.ndim == 2 and edges.shape[1] == 2
        remedy = "transpose it: edge_index.t()" if transposed else "the two ends are its rows"
        raise ValueError(f"has an edge_index of shape {tuple(edges.shape)}, not (2, E); {remedy}")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise ValueError(
            f"has an edge_index of {str(edges.dtype).removeprefix('torch.')}; nodes are named by "
            f"whole numbers: edge_index.long()"
        )
    return edges.long()


def _features(item: Data) -> Tensor | None:
    """Node features (V, F), or None where there are none."""
    if item.x is None:
        return None
    x = _tensor("x", item.x.to_dense() if isinstance(item.x, Tensor) else item.x)
    if x.is_complex() or not x.ndim:
        raise ValueError(f"has an x of shape {tuple(x.shape)} and {x.dtype}; give real (V, F)")
    x = x.detach().to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    x = x.reshape(len(x), math.prod(x.shape[1:]))
    return x if x.shape[1] else None


def _node_count(item: Data, x: Tensor | None, edges: Tensor) -> int:
    """Number of nodes, against which features and edges are checked."""
    nodes = int(item.num_nodes or 0) if x is None or "num_nodes" in item else len(x)
    if not nodes:
        raise ValueError("has no nodes; omit it")
    if x is not None and len(x) != nodes:
        raise ValueError(f"has num_nodes {nodes} and {len(x)} rows of x; give them the same number")
    wrong = ((edges < 0) | (edges >= nodes)).any(0)
    if wrong.any():
        source, target = edges[:, wrong][:, 0].tolist()
        raise ValueError(
            f"has {nodes} nodes and an edge {source} -> {target}; they are counted from 0 to "
            f"{nodes - 1} in each graph"
        )
    return nodes


def _label(y: Any) -> int:
    """The class, -1 for none."""
    if y is None:
        return -1
    try:
        values = np.asarray(y.tolist() if isinstance(y, Tensor) else y)
    except ValueError:
        return -1  # rows of several lengths
    if values.dtype.kind not in "biuf":
        raise ValueError(f"has the label {str(y)[:40]!r}; number the classes from 0")
    if values.size != 1:
        return -1
    label = float(values.item())
    if not math.isfinite(label) or label != round(label):
        return -1
    if label < -1:
        raise ValueError(f"has the label {label:.0f}; number the classes from 0 (-1 is none)")
    return int(label) if label < 2**31 else -1


def _tensor(field: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).as_subclass(Tensor).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        what = type(value).__name__
        raise ValueError(f"has a {what} as {field} ({error}); give a tensor of numbers") from None


def _check_widths(widths: list[int]) -> None:
    for number, width in enumerate(widths):
        if width != widths[0]:
            raise ValueError(
                f"graph {number} has {width or 'no'} node features, graph 0 has "
                f"{widths[0] or 'none'}; give all the same"
            )


def file(path: str | Path) -> Graphs:
    """The graphs in a file of ``torch.save``: a list of ``Data``, or an ``InMemoryDataset``.

    Read with ``weights_only``, so that no code of the file is run.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; name a file of torch.save")
    try:
        content = _load(path)
        if isinstance(content, tuple):  # (data, slices, ...) of InMemoryDataset.save
            content = _unpack(content)
        return from_pyg(content)
    except Exception as error:  # of other content, whatever PyG raises
        why = f"{first_line(error)}; save a list of torch_geometric.data.Data"
        raise UserError(f"{path}: {why}") from None


def _load(path: Path) -> Any:
    """What ``torch.save`` wrote."""
    try:
        with torch.serialization.safe_globals(PYG):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of a damaged file, whatever torch raises, such as a KeyError
        if "eights only" in str(error) or "eights_only" in str(error):
            raise ValueError("it holds other objects than tensors and PyG's Data") from None
        raise ValueError("damaged, or not written by torch.save") from None


def _unpack(content: tuple[Any, ...]) -> list[Any]:
    """The graphs of an ``InMemoryDataset``, from what it saves."""
    data, slices, *_ = content
    data = Data.from_dict(data) if isinstance(data, dict) else data
    count = len(next(iter(slices.values()))) - 1
    return [separate(Data, data, number, slices, decrement=False) for number in range(count)]


def read(path: Path, data_root: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The changes of a configuration that trains and is scored on a file, and its hash."""
    graphs = file(path)
    labels = graphs.y.numpy()
    if len(np.unique(labels)) < 2 or labels.min() < 0:
        raise UserError(f"{path}: needs a label y from 0 on for every graph, and two classes")
    from graph.evaluation import ten_folds  # needs scikit-learn, which takes a second

    try:
        ten_folds(labels[:, None], labels, 0)  # the training comes first
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    name = f"{OWN}{path}"
    return {"dataset": name}, {name: sha256_of(path)}


def load(name: str, data_root: Path) -> Graphs:
    """A dataset of :func:`graph.load`, or the graphs of ``"file:PATH"``."""
    if name.startswith(OWN):
        return file(name.removeprefix(OWN))
    return datasets.load(name, data_root)


def fingerprint(name: str, data_root: Path) -> str:
    """SHA-256 over the files of what :func:`load` reads."""
    if name.startswith(OWN):
        return sha256_of(Path(name.removeprefix(OWN)))
    return datasets.fingerprint(name, data_root)
