"""Your own graphs, in PyG's formats.

Shapes: V nodes, E directed edges, F node features, G graphs.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.utils import remove_self_loops, to_undirected

import graph.data
from graph.data import Graphs, check
from shared.errors import UserError, first_line
from shared.experiment.data import sha256_of

UNUSED = ("edge_attr", "edge_weight", "pos")
# Names of fields that hold edges in another form begin with these.
OTHER_EDGES = ("edge", "adj", "face", "pos")
OWN = "file:"  # before the path of the user's own file
# The classes that a Data in a file consists of.
PYG = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]


def from_pyg(dataset: Iterable[Any]) -> Graphs:
    """The graphs of a PyG dataset, a list of ``Data``, a ``Batch``, or a loader of batches.

    Nodes and edges are treated as :func:`graph.load` does: edges get their opposite direction,
    self-loops are removed, duplicates merged; features of edges and positions are dropped with a
    warning.

    Used fields of each ``Data``:

    - ``x``: (V,) or (V, F) real and finite, stays float64 or becomes float32; constant 1 if no
      graph has any. All graphs have the same F.
    - ``edge_index``: (2, E) integers from 0 to V - 1; none or an empty one for no edges.
    - ``y``: a whole number from 0; any other number, several and none are no label, -1.

    Raises:
        ValueError: no graph, or one that is not as described.
    """
    if isinstance(dataset, Data) and not isinstance(dataset, Batch):
        raise ValueError("this is a single graph; give a dataset or a list: from_pyg([data, ...])")
    items: list[Any] = []
    for item in [dataset] if isinstance(dataset, Batch) else dataset:
        items += item.to_data_list() if isinstance(item, Batch) else [item]
    members = []
    for number, item in enumerate(items):
        try:
            members.append(_member(item))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"graph {number} {first_line(error)}") from None
    if not members:
        raise ValueError("a dataset without graphs")
    unused = [name for name in UNUSED if any(item.get(name) is not None for item in items)]
    if unused:
        warnings.warn(f"not used, no network here takes them: {', '.join(unused)}", stacklevel=2)
    widths = {member.x.shape[1] for member in members}
    if len(widths) > 1:
        raise ValueError(f"graphs have {sorted(widths)} node features; give all the same number")
    union = Batch.from_data_list(members)
    x = union.x if widths != {0} else torch.ones(union.num_nodes, 1)
    graphs = Graphs(x, union.edge_index, union.batch, union.y)
    check(dataclasses.replace(graphs, x=x.float()))  # finite in either precision
    return graphs


def _member(item: Any) -> Data:
    """A graph with the fields x (V, F), F = 0 where it has none, edge_index and y alone."""
    if not isinstance(item, Data):
        raise ValueError(f"is a {type(item).__name__}; give torch_geometric.data.Data")
    if item.get("batch") is not None and item.batch.unique().numel() > 1:
        raise ValueError("has a batch vector, so that it is several; give them one by one")
    edges = item.edge_index
    if edges is None:
        if other := [name for name in item.keys() if name.startswith(OTHER_EDGES)]:
            raise ValueError(f"has no edge_index but {', '.join(other)}; convert it first")
    elif edges.is_floating_point() and edges.numel():
        raise ValueError(f"edge_index is {edges.dtype}; nodes are named by whole numbers")
    if edges is None or not edges.numel():
        edges = torch.zeros(2, 0, dtype=torch.long)
    nodes = int(item.num_nodes or 0)
    x = torch.zeros(nodes, 0) if item.x is None else item.x.detach().cpu()
    x = x.reshape(len(x), math.prod(x.shape[1:]))
    x = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    member = Data(x=x, edge_index=edges.long().cpu(), num_nodes=nodes, y=_label(item.y))
    member.validate()  # among others that the ends of edges are nodes
    member.edge_index = to_undirected(remove_self_loops(member.edge_index)[0], num_nodes=nodes)
    return member


def _label(y: Any) -> int:
    """The class, -1 for none."""
    values = torch.as_tensor([] if y is None else y, dtype=torch.float64).flatten().tolist()
    label = values[0] if len(values) == 1 else -1.0
    return int(label) if 0 <= label < 2**31 and label.is_integer() else -1


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
    return graph.data.load(name, data_root)


def fingerprint(name: str, data_root: Path) -> str:
    """SHA-256 over the files of what :func:`load` reads."""
    if name.startswith(OWN):
        return sha256_of(Path(name.removeprefix(OWN)))
    return graph.data.fingerprint(name, data_root)
