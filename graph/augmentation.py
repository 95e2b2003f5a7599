"""GraphCL's four augmentations, over a whole batch at once.

Shapes: V nodes, E directed edges, F node features, G graphs, W walkers (one per sampled graph).

Where GraphCL's paper and its authors' program disagree, the paper's version is the default and the
program's is an argument of :func:`augment`. The program augments graphs with the self-loops of
:func:`add_self_loops_but_last`: these are among the edges to remove, they keep a node that has lost
its other edges, and they make the seed of a star one of its own neighbours. To reproduce the
program, give :func:`augment` the batch with these loops; views never contain one.

Sources: You et al. 2020, "Graph Contrastive Learning with Augmentations", section 3.1 and Table 1;
the authors' program, unsupervised_TU/aug.py and gsimclr.py of Shen-Lab/GraphCL at 5003879, which
corrects its first release (docs/papers.md).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graph.data import Graphs

NAMES = ("node_drop", "edge_perturb", "attribute_mask", "subgraph")

_BLOCK = 64  # steps of a random walk between two checks of which walkers are done
_NEVER = np.iinfo(np.int64).max


def augment(
    graphs: Graphs,
    names: Sequence[str],
    generator: torch.Generator,
    *,
    ratio: float = 0.2,
    subgraph_ratio: float = 0.2,
    add_edges: bool = True,
    mask_with_noise: bool = False,
    one_hop: bool = False,
    drop_isolated: bool = False,
) -> Graphs:
    """A view of every graph under one of ``names``, drawn independently per graph and call.

    ``"node_drop"`` removes ``int(ratio * nodes)`` nodes. ``"edge_perturb"`` removes
    ``int(ratio * pairs)`` undirected edges and adds as many random pairs of nodes (an existing edge
    is not duplicated). ``"attribute_mask"`` zeroes the features of
    ``int(ratio * nodes)`` nodes. ``"subgraph"`` keeps the first ``int(subgraph_ratio * nodes) + 1``
    distinct nodes of a random walk of at most as many steps as the graph has nodes, and the edges
    among them. Every graph keeps its place and at least one node.

    Args:
        graphs: the batch, with both directions of every edge and no duplicate edges.
        names: what to choose from, some of :data:`NAMES`, equally likely.
        generator: the source of all randomness; its device need not be that of ``graphs``.
        ratio: share of nodes or edges to change, in [0, 1); 0.2 in the paper, 0.1 in the program.
        subgraph_ratio: share of nodes that a subgraph keeps, in [0, 1).
        add_edges: False is the program: ``int(ratio * edges)`` directed edges are removed, each
            independently of its opposite direction, and none is added.
        mask_with_noise: True is the program: features become noise of mean and deviation 0.5.
        one_hop: True is the program: instead of the walk, as many draws with replacement from the
            seed's neighbours, so that subgraphs are stars and the edges among their leaves.
        drop_isolated: True is the program: nodes without an edge (a self-loop is one) are removed
            after any augmentation, unless nothing would be left of the graph.
    """
    if not names or set(names) - set(NAMES) or len(set(names)) < len(names):
        raise ValueError(f"augmentations must be one or more of {NAMES}, got {tuple(names)}")
    for key, value in (("ratio", ratio), ("subgraph_ratio", subgraph_ratio)):
        if not 0 <= value < 1:
            raise ValueError(f"{key} must lie in [0, 1), got {value}")

    x, edge_index, batch, rows = graphs.x, graphs.edge_index, graphs.batch, graphs.rows
    kind = (_uniform(generator, graphs.num_graphs) * len(names)).long().to(x.device)
    applies = {name: kind == position for position, name in enumerate(names)}
    keep = torch.ones_like(batch, dtype=torch.bool)
    if "node_drop" in names:
        keep &= ~_choose(batch, applies["node_drop"], ratio, generator)
    if "subgraph" in names:
        sample = applies["subgraph"]
        keep &= _sample(graphs, sample, subgraph_ratio, one_hop, generator) | ~sample[batch]
    if "attribute_mask" in names:
        masked = _choose(batch, applies["attribute_mask"], ratio, generator).nonzero().squeeze(1)
        values = x.new_zeros(len(masked), x.size(1))
        if mask_with_noise:
            # In double precision, which is bitwise equal on every processor.
            noise = torch.randn(
                values.shape, generator=generator, device=generator.device, dtype=torch.float64
            )
            values = (0.5 + 0.5 * noise).to(x)
        x = x.index_copy(0, masked, values)
        rows = None if rows is None else rows.index_fill(0, masked, 0)
    if "edge_perturb" in names:
        perturb = _replace_pairs if add_edges else _remove_edges
        edge_index = perturb(edge_index, batch, applies["edge_perturb"], ratio, generator)

    source, target = edge_index
    stays = keep[source] & keep[target]
    if drop_isolated:
        connected = torch.zeros_like(keep)
        connected[edge_index[:, stays]] = True
        survives = torch.zeros_like(kind, dtype=torch.bool)
        survives[batch[connected]] = True
        keep &= connected | ~survives[batch]
    edge = (stays & (source != target)).nonzero().squeeze(1)
    node = keep.nonzero().squeeze(1)
    position = keep.cumsum(0) - 1
    edge_index = position[edge_index.index_select(1, edge)]
    kept = replace(graphs, x=x, rows=rows).of_nodes(node)
    return Graphs(**kept, edge_index=edge_index, batch=batch[node], y=graphs.y)


def add_self_loops_but_last(graphs: Graphs) -> Graphs:
    """The graphs with a self-loop on every node but the last of each graph.

    The authors' program does this, off by one, to the original view and at evaluation. A GIN layer
    already adds each node to its own sum, so these nodes are counted twice.
    """
    last = torch.ones_like(graphs.batch, dtype=torch.bool)
    last[:-1] = graphs.batch[1:] != graphs.batch[:-1]
    loops = (~last).nonzero().squeeze(1).expand(2, -1)
    return replace(graphs, edge_index=torch.cat((graphs.edge_index, loops), 1))


def _choose(owner: Tensor, eligible: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Mask (N,) of ``int(ratio * count)`` random items of every eligible graph.

    owner: (N,) the graph of each item, in any order. eligible: (G,) bool.
    """
    item = eligible[owner].nonzero().squeeze(1)
    group = owner[item]
    count = torch.bincount(group, minlength=len(eligible))
    shuffled = torch.argsort(group + _uniform(generator, len(group)).to(owner.device))
    group = group[shuffled]
    rank = torch.arange(len(group), device=owner.device) - (count.cumsum(0) - count)[group]
    quota = (ratio * count.double()).long()
    mask = torch.zeros_like(owner, dtype=torch.bool)
    mask[item[shuffled[rank < quota[group]]]] = True
    return mask


def _remove_edges(
    edge_index: Tensor, batch: Tensor, eligible: Tensor, ratio: float, generator: torch.Generator
) -> Tensor:
    """Edges without ``int(ratio * edges)`` directed ones of every eligible graph."""
    return edge_index[:, ~_choose(batch[edge_index[0]], eligible, ratio, generator)]


def _replace_pairs(
    edge_index: Tensor, batch: Tensor, eligible: Tensor, ratio: float, generator: torch.Generator
) -> Tensor:
    """Edges with ``int(ratio * pairs)`` undirected ones of every eligible graph replaced."""
    source, target = edge_index
    changed = eligible[batch[source]]
    low, high = edge_index[:, changed & (source < target)]
    owner = batch[low]
    removed = _choose(owner, eligible, ratio, generator)

    owner = owner[removed]  # one new pair for each removed one
    count = torch.bincount(batch, minlength=len(eligible))
    start, size = (count.cumsum(0) - count)[owner], count[owner]
    draws = _uniform(generator, 2, len(owner)).to(batch.device)
    node, partner = (draws[0] * size).long(), (draws[1] * (size - 1)).long()
    partner += partner >= node  # any other node of the graph
    added = torch.stack((node, partner)).sort(0).values + start

    pairs = torch.cat((torch.stack((low, high))[:, ~removed], added), 1)
    nodes = len(batch)
    key = torch.unique(pairs[0] * nodes + pairs[1])
    pairs = torch.stack((key // nodes, key % nodes))
    untouched = edge_index[:, ~changed | (source == target)]
    return torch.cat((untouched, pairs, pairs.flip(0)), 1)


def _sample(
    graphs: Graphs, eligible: Tensor, ratio: float, one_hop: bool, generator: torch.Generator
) -> Tensor:
    """Mask (V,) of the nodes that the subgraphs of the eligible graphs keep.

    On the CPU for every device: a walk is a chain of tiny steps.
    """
    batch = graphs.batch.cpu().numpy()
    count = np.bincount(batch, minlength=graphs.num_graphs)
    owner = np.flatnonzero(eligible.cpu().numpy())
    offset = _uniform(generator, len(owner)).cpu().numpy() * count[owner]
    seed = (count.cumsum() - count)[owner] + offset.astype(np.int64)
    quota = (ratio * count).astype(np.int64) + 1

    # A node without neighbours is its own neighbour, so that every draw is defined.
    source, target = graphs.edge_index.cpu().numpy()
    degree = np.bincount(source, minlength=len(batch))
    if (source[1:] < source[:-1]).any():  # TU's edges are sorted, appended self-loops are not
        target = target[np.argsort(source, kind="stable")]
    start, alone = degree.cumsum() - degree, np.flatnonzero(degree == 0)
    start[alone], degree[alone] = len(target) + np.arange(len(alone)), 1
    neighbours = (np.append(target, alone), start, degree)

    first_draw = np.full(len(batch), _NEVER)  # the draw that first visited each node
    first_draw[seed] = 0
    if one_hop:
        _draw_star(neighbours, seed, count[owner], first_draw, generator)
    else:
        _walk(neighbours, seed, count[owner], quota[owner], first_draw, generator)
    visited = np.flatnonzero(first_draw != _NEVER)
    visited = visited[np.lexsort((first_draw[visited], batch[visited]))]
    group = batch[visited]
    visited_count = np.bincount(group, minlength=len(count))
    rank = np.arange(len(visited)) - (visited_count.cumsum() - visited_count)[group]
    mask = torch.zeros(len(batch), dtype=torch.bool)
    mask[torch.from_numpy(visited[rank < quota[group]])] = True
    return mask.to(graphs.batch.device)


def _draw_star(
    neighbours: tuple[np.ndarray, np.ndarray, np.ndarray],
    seed: np.ndarray,
    draws: np.ndarray,
    first_draw: np.ndarray,
    generator: torch.Generator,
) -> None:
    """Enter in ``first_draw`` (V,) the ``draws`` (W,) from the neighbours of each seed (W,)."""
    target, start, degree = neighbours
    centre = np.repeat(seed, draws)
    number = np.arange(1, len(centre) + 1) - np.repeat(draws.cumsum() - draws, draws)
    offset = _uniform(generator, len(centre)).cpu().numpy() * degree[centre]
    np.minimum.at(first_draw, target[start[centre] + offset.astype(np.int64)], number)


def _walk(
    neighbours: tuple[np.ndarray, np.ndarray, np.ndarray],
    seed: np.ndarray,
    limit: np.ndarray,
    quota: np.ndarray,
    first_draw: np.ndarray,
    generator: torch.Generator,
) -> None:
    """Enter in ``first_draw`` (V,) random walks from each seed (W,).

    A walk continues until it has visited ``quota`` (W,) distinct nodes or made ``limit`` (W,)
    steps; it may overshoot the quota, but not the limit.
    """
    target, start, degree = neighbours
    position, distinct = seed.copy(), np.ones_like(seed)
    walker = np.flatnonzero((distinct < quota) & (limit > 0))
    done = 0
    while len(walker):
        chance = _uniform(generator, _BLOCK, len(walker)).cpu().numpy()
        path = np.empty(chance.shape, np.int64)
        node = position[walker]
        for step in range(_BLOCK):
            node = target[start[node] + (chance[step] * degree[node]).astype(np.int64)]
            path[step] = node
        position[walker] = node
        number = np.arange(done + 1, done + _BLOCK + 1)[:, None]
        valid = number <= limit[walker]
        fresh = valid & (first_draw[path] == _NEVER)
        np.minimum.at(first_draw, path[fresh], np.broadcast_to(number, path.shape)[fresh])
        # A node may be visited several times in a block: the first visit is the one that counts.
        distinct[walker] += (fresh & (first_draw[path] == number)).sum(0)
        done += _BLOCK
        walker = walker[(distinct[walker] < quota[walker]) & (limit[walker] > done)]


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Uniform draws from [0, 1), on the generator's device so that they depend on it alone."""
    return torch.rand(*shape, generator=generator, device=generator.device, dtype=torch.float64)
