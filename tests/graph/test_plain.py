"""Whole runs beside plain programs that share only augmentations and the encoder with them."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graph
from graph import train as module
from graph.augmentation import augment
from graph.config import GRAPHCL, Config
from graph.data import Graphs
from graph.encoder import Encoder, ProjectionHead, make_encoder
from graph.train import own_part, views
from shared import Criterion, Objective, Projection, distributed
from shared.experiment.run import Run
from shared.experiment.run_folders import WATCHED
from tests.stages.training import finish, losses, spied

LOW_RANK = Objective(GRAPHCL.loss, projection=Projection(0.3, {"norm": "l21", "alpha": 0.1}))
CONFIG = Config(
    dataset="own",
    objective=LOW_RANK,
    augmentations=("attribute_mask", "subgraph", "edge_perturb", "node_drop"),
    drop_ratio=0.4,
    subgraph_ratio=0.3,
    hidden=6,
    layers=2,
    batch_size=8,
    epochs=2,
    seed=1,
    fold_seed=3,
)
AUTHORS = dataclasses.replace(CONFIG, authors_augmentation=True, reshuffle=False)
# Without noise in place of features, which then stay on the device.
UNMASKED = dataclasses.replace(AUTHORS, augmentations=("node_drop", "edge_perturb"))


def random_graphs(count: int = 25) -> list[tuple[Tensor, Tensor]]:
    """Features and edges of rings of 5 to 9 nodes with a chord; no two features are alike."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        nodes = 5 + number % 5
        ring = [(node, (node + 1) % nodes) for node in range(nodes)] + [(0, 2)]
        edges = sorted(ring + [(target, source) for source, target in ring])
        x = torch.randn(nodes, 3, generator=generator) + torch.arange(3)
        made.append((x.double(), torch.tensor(edges).T))
    return made


def union(members: list[tuple[Tensor, Tensor]], *, loops: bool = False) -> Graphs:
    """One disjoint union; with ``loops`` each node but a graph's last has a self-loop."""
    sizes = [len(x) for x, _ in members]
    first = [sum(sizes[:place]) for place in range(len(sizes))]
    edges = [edges + start for (_, edges), start in zip(members, first, strict=True)]
    if loops:
        own = [
            start + node
            for start, size in zip(first, sizes, strict=True)
            for node in range(size - 1)
        ]
        edges.append(torch.tensor([own, own]))
    return Graphs(
        torch.cat([x for x, _ in members]),
        torch.cat(edges, 1),
        torch.arange(len(members)).repeat_interleave(torch.tensor(sizes)),
        torch.arange(len(members)) % 2,
    )


def embedded(encoder: nn.Module, graphs: Graphs) -> Tensor:
    return encoder(graphs.x, graphs.edge_index, graphs.batch, graphs.num_graphs)  # type: ignore[no-any-return]


def plain_loss(anchors: Tensor, others: Tensor) -> Tensor:
    """GraphCL's: cosines over 0.2, an anchor's positive left out of its denominator."""
    cosines = nn.functional.cosine_similarity(anchors[:, None], others[None], dim=2) / 0.2
    rows = range(len(cosines))
    terms = [cosines[i, [j for j in rows if j != i]].logsumexp(0) - cosines[i, i] for i in rows]
    return torch.stack(terms).mean()


def plain_training(config: Config, epochs: int = 2) -> tuple[nn.Module, Tensor, list[float]]:
    """Encoder, L and mean loss of each epoch, for 25 graphs in batches of 8, the last left out."""
    authors, members = config.authors_augmentation, random_graphs()
    torch.manual_seed(1)
    encoder, head = Encoder(3, 6, 2).double(), ProjectionHead(12).double()
    matrix = torch.eye(12, dtype=torch.float64).requires_grad_()
    adam = torch.optim.Adam([*encoder.parameters(), *head.parameters(), matrix], lr=0.01)
    of_epochs = []
    for epoch in range(epochs):
        order = np.random.default_rng([1, 0 if authors else epoch + 1]).permutation(25)
        generator = torch.Generator().manual_seed(1_000_003 + epoch)
        values = []
        for start in (0, 8, 16):
            original = union([members[i] for i in order[start : start + 8]], loops=authors)
            augmented = augment(
                original,
                config.augmentations,
                generator,
                ratio=0.4,
                subgraph_ratio=0.3,
                add_edges=not authors,
                mask_with_noise=authors,
                one_hop=authors,
                drop_isolated=authors,
            )
            features = [embedded(encoder, view) for view in (original, augmented)]
            both = torch.cat(features)
            rebuilt = (both @ matrix.T @ matrix - both).square().sum(1).mean()
            penalty = rebuilt + 0.1 * matrix.norm(dim=0).sum()
            loss = plain_loss(*(head(feature) for feature in features)) + 0.3 * penalty
            adam.zero_grad()
            loss.backward()
            adam.step()
            values.append(loss.item())
        of_epochs.append(sum(values) / 3)
    return encoder, matrix.detach(), of_epochs


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    states = found.state_dict(), expected.state_dict()
    torch.testing.assert_close(*states, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("config", [CONFIG, AUTHORS, UNMASKED], ids=["paper", "program", "kept"])
def test_training_is_the_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    together = spied(monkeypatch, module, "replicated", lambda _, function, *modules: modules)
    kept = spied(monkeypatch, module, "kept_features", lambda result, *_: result[0] is not None)
    with Run(tmp_path, config) as run:
        encoder, criterion = graph.pretrain(config, union(random_graphs()), run)
    assert [list(map(type, modules)) for modules in together] == [
        [Encoder, ProjectionHead, Criterion]
    ]
    assert kept == [config is not AUTHORS]
    expected, matrix, of_epochs = plain_training(config)
    assert_same(encoder, expected)
    assert criterion.projection is not None
    torch.testing.assert_close(criterion.projection.matrix.detach(), matrix)
    assert losses(tmp_path) == pytest.approx(of_epochs, rel=1e-9)


def test_single_precision_starts_from_the_same_weights(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, precision="float32")
    with Run(tmp_path, config) as run:
        encoder, _ = graph.pretrain(config, union(random_graphs()), run)
    expected, _, of_epochs = plain_training(config)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    assert losses(tmp_path)[0] == pytest.approx(of_epochs[0], rel=1e-3)
    for found, other in zip(encoder.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.double(), other, rtol=0.1, atol=0.02)


def scored(
    tmp_path: Path, patch: pytest.MonkeyPatch, config: Config, watch: int = 0
) -> list[list[Any]]:
    """What a run scores, each time: the protocol, features and the seed of the folds."""
    given: list[list[Any]] = []
    graphs = union(random_graphs())  # in single precision, as data sets are
    given_out = dataclasses.replace(graphs, x=graphs.x.float())
    patch.setattr(module, "load", lambda name, root: {("own", tmp_path): given_out}[name, root])
    patch.setattr(module, "fingerprint", lambda name, root: f"{name} in {root.name}")
    patch.setattr(module, "score", lambda *args: given.append(list(args)) or {"accuracy": 1.0})
    options = {"data_root": tmp_path, "watch": watch, "show": lambda text: None}
    assert finish(tmp_path / "run", config, graph.measure, **options) == {"accuracy": 1.0}
    record = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert record["data"] == {"own": f"own in {tmp_path.name}"}
    for _, _, labels, *_ in given:
        assert labels.tolist() == [number % 2 for number in range(25)]
    return [[protocol, features, seed] for protocol, features, _, seed, *_ in given]


def plain_features(encoder: nn.Module, graphs: Graphs) -> Tensor:
    with torch.no_grad():
        return embedded(encoder.eval(), graphs)


@pytest.mark.parametrize("config", [CONFIG, AUTHORS], ids=["paper", "program"])
def test_what_a_trained_run_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    """L f of unaugmented graphs in their order; the program's have self-loops here, too."""
    found = scored(tmp_path, monkeypatch, config, watch=1)
    whole = union(random_graphs(), loops=config.authors_augmentation)
    for (_, features, _), epochs in zip(found, (1, 2, 2), strict=True):
        encoder, matrix, _ = plain_training(config, epochs)
        expected = plain_features(encoder, whole) @ matrix.T
        np.testing.assert_allclose(features, expected, rtol=1e-6, atol=1e-8)
    assert not np.allclose(expected, plain_features(encoder, whole), atol=1e-3)
    watched = ("logistic-10fold-nested-v1", 3)  # a look at each epoch, by the quicker protocol
    assert [(name, seed) for name, _, seed in found] == [
        *[watched] * 2,
        ("svm-10fold-nested-v1", 3),
    ]
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line[f"{WATCHED}accuracy"] for line in lines] == [1.0, 1.0]


def test_what_an_untrained_run_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrated, batch norms have the means over all batches, each normalised by its own."""
    config = Config(dataset="own", train=False, hidden=6, layers=2, batch_size=8, seed=1)
    members = random_graphs()
    torch.manual_seed(1)
    encoder = Encoder(3, 6, 2).double()
    plain = scored(tmp_path / "plain", monkeypatch, config)[0][1]
    np.testing.assert_allclose(plain, plain_features(encoder, union(members)), rtol=1e-9)

    parts = [union(members[start : start + 8]) for start in (0, 8, 16, 24)]
    inputs = [part.x for part in parts]
    with torch.no_grad():
        for convolution, norm in zip(encoder.convolutions, encoder.norms, strict=True):
            hidden = [
                convolution(x, part.edge_index).relu()
                for x, part in zip(inputs, parts, strict=True)
            ]
            norm.running_mean = torch.stack([x.mean(0) for x in hidden]).mean(0)
            norm.running_var = torch.stack([x.var(0) for x in hidden]).mean(0)
            inputs = [
                (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt() for x in hidden
            ]
    calibrated = dataclasses.replace(config, calibrate=True)
    found = scored(tmp_path / "calibrated", monkeypatch, calibrated)[0][1]
    expected = plain_features(encoder, union(members))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    assert not np.allclose(found, plain, rtol=0.1)


def test_what_trivial_baselines_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Config(dataset="own", features="sizes", train=False)
    found = scored(tmp_path / "sizes", monkeypatch, sizes)[0][1]
    expected = [[len(x), len(x) + 1, *x.sum(0).tolist()] for x, _ in random_graphs()]
    np.testing.assert_allclose(found, expected)
    constant = dataclasses.replace(sizes, features="constant")
    found = scored(tmp_path / "constant", monkeypatch, constant)[0][1]
    assert found.shape == (25, 1)
    assert len(np.unique(found)) == 1


@pytest.mark.parametrize("name", ["node_drop", "edge_perturb", "attribute_mask", "subgraph"])
@pytest.mark.parametrize("authors", [False, True])
def test_epochs_and_seeds_have_augmentations_of_their_own(name: str, authors: bool) -> None:
    """In one order: only the draws can tell the views of two epochs, or of two seeds, apart."""
    graphs = union(random_graphs(26))  # the last two are a batch
    config = dataclasses.replace(
        CONFIG, augmentations=(name,), reshuffle=False, authors_augmentation=authors
    )

    def seen(seed: int, epoch: int) -> list[tuple[list[Any], list[Any]]]:
        pairs = views(dataclasses.replace(config, seed=seed), graphs, epoch)
        return [(view.x.tolist(), view.edge_index.tolist()) for _, view in pairs]

    first, again, later = seen(1, 0), seen(1, 0), seen(1, 1)
    assert first == again
    assert all(one != other for one, other in zip(first, later, strict=True))
    assert len({json.dumps(part) for part in first}) == 4  # no two batches


def test_seeds_start_and_order_apart() -> None:
    """No seed is another's, whatever the epoch, in start, order and augmentation."""
    config = dataclasses.replace(CONFIG, augmentations=("attribute_mask",))
    graphs = union(random_graphs())
    starts, orders, masks = set(), set(), set()
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        start = make_encoder(dataclasses.replace(config, seed=seed), 3)
        starts.add(str([float(weight.detach().sum()) for weight in start.parameters()]))
        for epoch in (0, 1, 2):
            pairs = list(views(dataclasses.replace(config, seed=seed), graphs, epoch))
            orders.add(str([original.x[0, 0].item() for original, _ in pairs]))
            # Which places are masked, whatever graph is there.
            masks.add(str([(view.x == 0).all(1).tolist() for _, view in pairs]))
    assert (len(starts), len(orders), len(masks)) == (3, 9, 9)


@pytest.mark.parametrize("cuts", [[0, 8], [0, 3, 6, 8]])
def test_processes_share_a_batch(monkeypatch: pytest.MonkeyPatch, cuts: list[int]) -> None:
    members, world = random_graphs(8), len(cuts) - 1
    for home in (distributed, module):
        monkeypatch.setattr(home, "world_size", lambda: world)
    for place in range(world):
        monkeypatch.setattr(distributed, "rank", lambda place=place: place)
        found, expected = own_part(union(members)), union(members[cuts[place] : cuts[place + 1]])
        for name in ("x", "edge_index", "batch"):
            assert torch.equal(getattr(found, name), getattr(expected, name))


def test_one_view_twice_leaves_nothing_to_learn_but_uniformity(tmp_path: Path) -> None:
    """Without changes both views are the graph: each positive's cosine is 1, at any step."""
    config = dataclasses.replace(
        CONFIG, objective=GRAPHCL, augmentations=("node_drop",), drop_ratio=0.0, epochs=1
    )
    members = random_graphs(8)
    with Run(tmp_path, config) as run:
        graph.pretrain(config, union(members), run)
    torch.manual_seed(1)
    encoder, head = Encoder(3, 6, 2).double(), ProjectionHead(12).double()
    z = nn.functional.normalize(head(embedded(encoder, union(members))), dim=1)
    cosines = (z @ z.T / 0.2).fill_diagonal_(-math.inf)
    expected = (cosines.logsumexp(1) - 1 / 0.2).mean()
    assert losses(tmp_path) == [pytest.approx(expected.item(), rel=1e-9)]
