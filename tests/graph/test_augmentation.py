"""The augmentations against loops that follow their rules with the same draws, and against chance.

Every node's single feature is its number in the batch (plus one), so that views can be traced back.
"""

import dataclasses
import math
from collections import Counter
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.stats import kstest

from graph.augmentation import NAMES, add_self_loops_but_last, augment
from graph.data import Graphs

PROGRAM = {"add_edges": False, "mask_with_noise": True, "one_hop": True, "drop_isolated": True}


def union(graphs: list[nx.Graph]) -> Graphs:
    edges, owner = [], []
    for number, graph in enumerate(graphs):
        nodes = {node: len(owner) + i for i, node in enumerate(graph)}
        both = [(nodes[a], nodes[b]) for a, b in graph.edges]
        edges += sorted(both + [(b, a) for a, b in both])
        owner += [number] * len(graph)
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    x = torch.arange(1.0, len(owner) + 1).unsqueeze(1)
    return Graphs(x, edge_index, torch.tensor(owner), torch.arange(len(graphs)) % 2)


def mixed_batch() -> Graphs:
    """Sizes from 1 to 150; sparse, dense, complete, edgeless, disconnected."""
    random = [nx.gnp_random_graph(n, p, seed=n) for n, p in [(12, 0.3), (31, 0.15), (150, 0.03)]]
    special = [nx.complete_graph(9), nx.star_graph(40), nx.path_graph(2), nx.empty_graph(5)]
    return union([*random, nx.empty_graph(1), *special, nx.cycle_graph(25)])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def nodes_of(graphs: Graphs) -> list[list[int]]:
    """Traced node numbers of every graph."""
    traced = (graphs.x[:, 0].long() - 1).tolist()
    found: list[list[int]] = [[] for _ in range(graphs.num_graphs)]
    for node, owner in zip(traced, graphs.batch.tolist(), strict=True):
        found[owner].append(node)
    return found


# The reference implementation: slow loops, the same draws in the same order


def uniform(rng: torch.Generator, *shape: int) -> Any:
    return torch.rand(*shape, generator=rng, dtype=torch.float64).tolist()


def smallest(items: list, draws: list[float], ratio: float) -> set:
    ranked = sorted(zip(draws, items, strict=True))
    return {item for _, item in ranked[: int(ratio * len(items))]}


def choose(items: list, owner_of: Any, graphs: list[int], ratio: float, rng: Any) -> set:
    candidates = [item for item in items if owner_of(item) in graphs]
    draws = dict(zip(candidates, uniform(rng, len(candidates)), strict=True))
    chosen = set()
    for graph in graphs:
        own = [item for item in candidates if owner_of(item) == graph]
        chosen |= smallest(own, [draws[item] for item in own], ratio)
    return chosen


def reference(
    graphs: Graphs,
    name: str,
    rng: torch.Generator,
    *,
    ratio: float = 0.2,
    subgraph_ratio: float = 0.2,
    add_edges: bool = True,
    one_hop: bool = False,
    drop_isolated: bool = False,
) -> tuple[set[int], set[tuple[int, int]], set[int]]:
    """Kept nodes, kept edges and masked nodes, when every graph is augmented by ``name``."""
    owner = graphs.batch.tolist()
    every = list(range(graphs.num_graphs))
    members = [[v for v in range(len(owner)) if owner[v] == g] for g in every]
    edges = [(a, b) for a, b in graphs.edge_index.T.tolist()]
    uniform(rng, len(every))  # the choice among the names
    kept, masked = set(range(len(owner))), set()
    if name == "node_drop":
        kept -= choose(sorted(kept), owner.__getitem__, every, ratio, rng)
    if name == "attribute_mask":
        masked = choose(sorted(kept), owner.__getitem__, every, ratio, rng)
    if name == "edge_perturb" and not add_edges:
        gone = choose(edges, lambda edge: owner[edge[0]], every, ratio, rng)
        edges = [edge for edge in edges if edge not in gone]
    if name == "edge_perturb" and add_edges:
        pairs = [(a, b) for a, b in edges if a < b]
        gone = choose(pairs, lambda pair: owner[pair[0]], every, ratio, rng)
        pairs_left = set(pairs) - gone
        first, second = uniform(rng, 2, len(gone))
        for number, (a, _) in enumerate(pair for pair in pairs if pair in gone):
            own = members[owner[a]]
            one = own[int(first[number] * len(own))]
            others = [v for v in own if v != one]
            other = others[int(second[number] * len(others))]
            pairs_left.add((min(one, other), max(one, other)))
        loops = [edge for edge in edges if edge[0] == edge[1]]
        edges = [*loops, *pairs_left, *((b, a) for a, b in pairs_left)]
    if name == "subgraph":
        neighbours = {v: [b for a, b in edges if a == v] or [v] for v in range(len(owner))}
        sample = star if one_hop else walk
        kept = sample(members, neighbours, subgraph_ratio, rng)
    edges = [(a, b) for a, b in edges if a in kept and b in kept]
    if drop_isolated:
        connected = {v for edge in edges for v in edge}
        for own in members:
            if connected & set(own):
                kept -= set(own) - connected
    return kept, {(a, b) for a, b in edges if a != b}, masked


def seeds_of(members: list, rng: Any) -> list[int]:
    draws = uniform(rng, len(members))
    return [own[int(u * len(own))] for own, u in zip(members, draws, strict=True)]


def star(members: list, neighbours: dict, ratio: float, rng: Any) -> set[int]:
    seeds = seeds_of(members, rng)
    draws = iter(uniform(rng, sum(map(len, members))))
    kept = set()
    for own, seed in zip(members, seeds, strict=True):
        met = [seed]
        for u in [next(draws) for _ in own]:
            around = neighbours[seed]
            node = around[int(u * len(around))]
            if node not in met and len(met) <= int(ratio * len(own)):
                met.append(node)
        kept |= set(met)
    return kept


def walk(members: list, neighbours: dict, ratio: float, rng: Any) -> set[int]:
    here = seeds_of(members, rng)
    met = [[seed] for seed in here]
    quota = [int(ratio * len(own)) + 1 for own in members]
    steps = 0
    active = [g for g in range(len(members)) if quota[g] > 1]
    while active:
        for draws in uniform(rng, 64, len(active)):
            steps += 1
            for g, u in zip(active, draws, strict=True):
                here[g] = neighbours[here[g]][int(u * len(neighbours[here[g]]))]
                if steps <= len(members[g]) and len(met[g]) < quota[g] and here[g] not in met[g]:
                    met[g].append(here[g])
        active = [g for g in active if len(met[g]) < quota[g] and steps < len(members[g])]
    return {v for own in met for v in own}


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("drop_isolated", [False, True])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("node_drop", {}),
        ("edge_perturb", {}),
        ("edge_perturb", {"add_edges": False}),
        ("attribute_mask", {}),
        ("subgraph", {}),
        ("subgraph", {"one_hop": True}),
    ],
)
def test_view_is_that_of_the_loops(name: str, option: dict, drop_isolated: bool, loops: bool):
    graphs = add_self_loops_but_last(mixed_batch()) if loops else mixed_batch()
    for seed, ratio in enumerate((0.0, 0.1, 0.25, 0.7)):
        settings = {"ratio": ratio, "subgraph_ratio": ratio, "drop_isolated": drop_isolated}
        settings |= option
        view = augment(graphs, (name,), generator(seed), **settings)
        kept, edges, masked = reference(graphs, name, generator(seed), **settings)
        expected = torch.tensor([0.0 if v in masked else v + 1.0 for v in sorted(kept)])
        assert torch.equal(view.x[:, 0], expected)
        assert torch.equal(view.batch, graphs.batch[sorted(kept)])
        assert torch.equal(view.y, graphs.y)
        position = {v: i for i, v in enumerate(sorted(kept))}
        found = {(a, b) for a, b in view.edge_index.T.tolist()}
        assert found == {(position[a], position[b]) for a, b in edges}
        assert view.edge_index.size(1) == len(found)


# Invariants


def test_star_has_the_distribution_of_the_program():
    shape = nx.Graph([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (3, 4), (4, 5), (5, 6)])
    shape = nx.convert_node_labels_to_integers(shape, ordering="sorted")
    copies, rng = 20_000, np.random.default_rng(0)

    def program() -> tuple[int, ...]:
        """The loop of the program, self-loops but the last node's among the neighbours."""
        kept = [int(rng.integers(7))]
        around = sorted(shape[kept[0]]) + [v for v in kept if v != 6]
        for _ in range(7):
            if len(kept) > int(0.5 * 7):
                break
            node = around[rng.integers(len(around))]
            if node not in kept:
                kept.append(node)
        return tuple(sorted(kept))

    graphs = add_self_loops_but_last(union([shape] * copies))
    view = augment(graphs, ("subgraph",), generator(), subgraph_ratio=0.5, one_hop=True)
    ours = Counter(tuple(v % 7 for v in kept) for kept in nodes_of(view))
    theirs = Counter(program() for _ in range(copies))
    for kept in ours | theirs:
        assert abs(ours[kept] - theirs[kept]) < 4.5 * math.sqrt(ours[kept] + theirs[kept])


def test_each_graph_draws_its_own_augmentation():
    graphs = union([nx.cycle_graph(20)] * 4000)
    view = augment(graphs, NAMES, generator(), ratio=0.3)
    sizes = view.batch.bincount(minlength=4000)
    masked = torch.zeros(4000, dtype=torch.bool)
    masked[view.batch[view.x[:, 0] == 0]] = True
    edges = view.batch[view.edge_index[0]].bincount(minlength=4000)
    counts = {
        "node_drop": int((sizes == 14).sum()),
        "subgraph": int((sizes <= 5).sum()),
        "attribute_mask": int(masked.sum()),
        "edge_perturb": int(((sizes == 20) & ~masked).sum()),
    }
    assert sum(counts.values()) == 4000
    assert all(abs(count - 1000) < 4 * math.sqrt(750) for count in counts.values())
    assert (edges[masked] == 40).all()
    again = augment(graphs, NAMES, generator(), ratio=0.3)
    assert torch.equal(again.x, view.x)
    assert torch.equal(again.edge_index, view.edge_index)


@pytest.mark.parametrize("settings", [{}, PROGRAM])
@pytest.mark.parametrize("name", NAMES)
def test_batch_without_any_edge_survives(name: str, settings: dict):
    view = augment(union([nx.empty_graph(1), nx.empty_graph(7)]), (name,), generator(), **settings)
    assert torch.equal(view.batch.unique(), torch.tensor([0, 1]))
    assert view.edge_index.shape == (2, 0)


@pytest.mark.parametrize(
    ("names", "settings", "word"),
    [
        ((), {}, "augmentations"),
        (("node_drop", "noddrop"), {}, "noddrop"),
        (("subgraph",), {"ratio": 1.0}, "ratio"),
        (("subgraph",), {"subgraph_ratio": -0.1}, "subgraph_ratio"),
    ],
)
def test_wrong_arguments_are_named(names: tuple[str, ...], settings: dict, word: str):
    with pytest.raises(ValueError, match=word):
        augment(mixed_batch(), names, generator(), **settings)


@pytest.mark.cuda
@pytest.mark.parametrize("settings", [{}, PROGRAM])
def test_accelerator_gives_the_same_view(settings: dict):
    graphs = add_self_loops_but_last(mixed_batch())
    for seed in range(5):
        here = augment(graphs, NAMES, generator(seed), **settings)
        there = augment(graphs.to("cuda"), NAMES, generator(seed), **settings)
        assert there.x.is_cuda
        assert torch.equal(there.x.cpu(), here.x)
        assert torch.equal(there.batch.cpu(), here.batch)
        edges = [sorted(view.edge_index.T.tolist()) for view in (here, there)]
        assert edges[0] == edges[1]


def test_the_programs_mask_is_noise_of_mean_and_deviation_a_half() -> None:
    graphs = union([nx.cycle_graph(100) for _ in range(40)])
    graphs = dataclasses.replace(graphs, x=torch.full((4000, 3), 7.0, dtype=torch.float64))
    view = augment(graphs, ("attribute_mask",), generator(), ratio=0.5, mask_with_noise=True)
    masked = (view.x != 7).all(1)
    assert int(masked.sum()) == 2000
    noise = view.x[masked]
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(noise.std()) == pytest.approx(0.5, abs=0.03)
    assert kstest(noise.flatten().numpy(), "norm", (0.5, 0.5)).pvalue > 0.01
    assert torch.equal(view.x[~masked], graphs.x[~masked])


def test_the_program_is_the_corrected_one() -> None:
    """GraphCL's first release kept what should be dropped: of node dropping a tenth of a graph."""
    complete = union([nx.complete_graph(50)])
    for name, nodes in (("node_drop", 45), ("subgraph", 11)):
        view = augment(complete, [name], generator(), ratio=0.1, **PROGRAM)
        assert len(view.x) == nodes
