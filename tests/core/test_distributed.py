"""1, 2 and 4 processes give the loss and the gradients of one process."""

import functools
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from shared import (
    Criterion,
    Objective,
    Pairs,
    Projection,
    Term,
    alignment,
    context_window,
    cosine,
    debiased_nce,
    distance_polarization,
    distributed,
    hard_nce,
    info_nce,
    local_global,
    margin_nce,
    max_margin,
    query_key,
    same_label,
    term,
    two_views,
)
from shared import pairs as pairs_module
from shared.distributed import (
    all_gather_objects,
    all_reduce_sum,
    any_rank,
    broadcast,
    gather,
    gather_ragged,
    initialise,
    local_slice,
    rank,
    share_of_mean,
    single_process,
    synchronise,
    world_size,
)
from shared.errors import UserError
from tests.stages import forked, layouts

WORLDS = (1, 2, 4)
GLOBAL, INPUTS, DIM = 8, 5, 4  # instances of the global batch, inputs and outputs of the encoder
BANK = torch.randn(3, DIM, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
# The documents of the sentences and the nodes of the graphs: of two processes, one has three
# sentences with a neighbour and the other four, and a document reaches over both; of four, one
# has one such sentence. Nodes differ likewise.
DOCUMENT = torch.tensor([0, 1, 1, 2, 2, 3, 3, 3])
NODES = torch.tensor([1, 2, 1, 3, 2, 4, 1, 1])


LOSSES: dict[str, Term] = {
    "info_nce": term(info_nce, weight=1.5, temperature=0.3),
    "graphcl": term(info_nce, temperature=0.3, positive_in_denominator=False),
    "debiased_nce": term(debiased_nce, temperature=0.3, tau_plus=0.1),
    "hard_nce": term(hard_nce, temperature=0.3, tau_plus=0.1, beta=1.0),
    "hard_nce, minimum": term(
        hard_nce, temperature=0.3, tau_plus=0.6, beta=1.0, floor="minimum", detach_weights=True
    ),
    "margins": term(margin_nce, temperature=0.3, angular=0.4, subtractive=0.1, emphasis=2.0),
    "effects on the row": term(
        margin_nce, temperature=0.3, angular=0.4, ratio="row", attenuation=0.6
    ),
    "effects on the positive": term(
        margin_nce,
        temperature=0.3,
        subtractive=0.2,
        curvature=0.7,
        ratio="positive",
        attenuation=0.6,
        attenuation_scope="positive",
    ),
    "alignment": term(alignment, curvature=0.7),
    "closed form": term(max_margin, gamma=2.0),
    "projected gradient": term(max_margin, gamma=2.0, solver="projected_gradient", steps=20),
    "random start": term(
        max_margin,
        gamma=2.0,
        solver="projected_gradient",
        steps=20,
        step_size=1e-3,
        momentum="nesterov",
        stop=0.01,
        start="random",
    ),
    "exact": term(max_margin, gamma=2.0, ridge=1.0, cost=0.5, solver="exact"),
}
PENALTIES: dict[str, tuple[Term, ...]] = {
    f"{reduction} among {among}": (
        term(
            distance_polarization,
            weight=0.3 + 0.1 * place + 0.05 * further,
            lower=0.2,
            upper=0.8,
            reduction=reduction,
            among=among,
        ),
    )
    for place, reduction in enumerate(("anchor_sum", "mean", "sum"))
    for further, among in enumerate(("negatives", "all", "anchors"))
}
PENALTIES |= {"none": (), "every": tuple(one for (one,) in PENALTIES.values())}
PROJECTIONS: dict[str, Projection | None] = {
    "none": None,
    "l21": Projection(0.2, {"norm": "l21", "alpha": 0.5}),
    "nuclear": Projection(0.2, {"norm": "nuclear", "alpha": 0.5, "unit_features": True}),
    "authors": Projection(0.2, {"form": "authors", "norm": "none", "rows": 3}),
}
PROJECTIONS["authors, each view"] = PROJECTIONS["authors"]


@dataclass(frozen=True)
class Batch:
    """What one process holds: inputs of both views (2, B, inputs), documents, nodes per graph."""

    inputs: Tensor
    document: Tensor
    nodes: Tensor

    def part(self, rows: slice) -> "Batch":
        return Batch(self.inputs[:, rows], self.document[rows], self.nodes[rows])


def _local_global(first: Tensor, second: Tensor, batch: Batch, collect: Any) -> Pairs:
    owner = torch.arange(len(first)).repeat_interleave(batch.nodes)
    number = torch.arange(len(owner)) - (batch.nodes.cumsum(0) - batch.nodes)[owner]
    node = first[owner] * (1 + number[:, None]) + number[:, None]
    return local_global(node, second, owner, gather=collect)


def _masks(first: Tensor, second: Tensor, batch: Batch, collect: Any) -> Pairs:
    """Pairs by hand, where one process has anchors with more positives than the other has."""
    label = batch.document
    keys, labels, start = second, label, 0
    if collect is not None:
        keys, labels, start = collect(second), collect(label), rank() * len(label)
    positive = label[:, None] == labels
    negative = ~positive
    row = torch.arange(len(label))
    positive[row, start + row] = False
    return Pairs(first, keys, positive, negative, blocks=int(collect is not None))


BUILDERS: dict[str, Callable[[Tensor, Tensor, Batch, Any], Pairs]] = {
    "two_views": lambda a, b, _, collect: two_views(a, b, gather=collect),
    "second view": lambda a, b, _, collect: two_views(a, b, anchors="second", gather=collect),
    "query_key": lambda a, b, _, collect: query_key(a, b, gather=collect),
    "query_key, bank": lambda a, b, _, collect: query_key(a, b, BANK, gather=collect),
    "bank alone": lambda a, b, _, collect: query_key(a, b, BANK, in_batch=False, gather=collect),
    "context_window": lambda a, b, batch, collect: context_window(
        a, b, 2, document=batch.document, gather=collect
    ),
    "local_global": _local_global,
    "same_label": lambda a, _, batch, collect: same_label(a, batch.document, gather=collect),
    "masks": _masks,
}


def whole() -> Batch:
    """The global batch."""
    inputs = torch.randn(
        2, GLOBAL, INPUTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return Batch(inputs, DOCUMENT, NODES)


class Model(nn.Module):
    """An encoder and its criterion, as one module: what DistributedDataParallel is given."""

    def __init__(self, builder: str, loss: str, penalty: str, projection: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        start = torch.randn(INPUTS, DIM, generator=generator, dtype=torch.float64)
        self.encoder = nn.Parameter(start)
        self.builder, self.by_view = builder, projection == "authors, each view"
        learned = layouts.Bilinear(DIM) if loss == "bilinear" else cosine
        chosen = LOSSES["info_nce"] if loss == "bilinear" else LOSSES[loss]
        objective = Objective(chosen, PENALTIES[penalty], PROJECTIONS[projection])
        self.criterion: Criterion = objective.build(DIM, learned).double()
        if self.criterion.projection is not None:
            matrix = self.criterion.projection.matrix.data
            matrix.copy_(torch.randn(matrix.shape, generator=generator, dtype=torch.float64))

    def forward(self, batch: Batch, collect: Any) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        views = batch.inputs @ self.encoder
        pairs = BUILDERS[self.builder](views[0], views[1], batch, collect)
        features = list(views) if self.by_view else None
        return *self.criterion(pairs, features=features), views


def combinations() -> Iterator[tuple[str, str, str, str]]:
    """Builder, loss, penalty and projection: each by itself, and added to others.

    A criterion adds up its parts, so that not everything has to meet everything: losses meet the
    builders whose anchors differ in number or in positives, and penalties those that are counted.
    """
    adding = list(PROJECTIONS)
    for turn, (builder, loss) in enumerate(zip(BUILDERS, LOSSES, strict=False)):
        yield builder, "info_nce", "none", "none"
        yield builder, loss, "every", adding[turn % len(adding)]
    for loss in LOSSES:
        yield "masks", loss, "none", "none"
        yield "local_global", loss, "every", "none"
    for penalty in PENALTIES:
        yield from ((builder, "info_nce", penalty, "none") for builder in ("masks", "local_global"))
    for projection in PROJECTIONS:
        yield "local_global", "info_nce", "none", projection
        yield "second view", "info_nce", "none", projection
    yield "query_key", "bilinear", "every", "none"


def result(names: tuple[str, ...], batch: Batch, collect: Any) -> dict[str, Any]:
    """Loss, parts, and the gradients of all parameters and of the embeddings."""
    model = Model(*names)
    torch.manual_seed(3 + rank())
    loss, parts, views = model(batch, collect)
    of = [views, *model.parameters()]
    by_views, *by_parameters = torch.autograd.grad(loss, of)
    return {"loss": loss.detach(), "parts": parts, "parameters": by_parameters, "views": by_views}


def results(batch: Batch, collect: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    return {names: result(names, batch, collect) for names in dict.fromkeys(combinations())}


@functools.cache
def expected() -> dict[tuple[str, ...], dict[str, Any]]:
    """The results of one process without a group."""
    return results(whole(), None)


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What processes make of their results, as DistributedDataParallel does: means.

    What a process holds for its own rows is as many times their share as there are processes.
    """
    return {
        "loss": torch.stack([each["loss"] for each in found]).mean(),
        "parts": found[0]["parts"],
        "parameters": [
            torch.stack(one).mean(0)
            for one in zip(*(each["parameters"] for each in found), strict=True)
        ],
        "views": torch.cat([each["views"] for each in found], dim=1) / len(found),
    }


def leave_results(folder: Path) -> None:
    """What 1, 2 and 4 processes make of the batch, in a file of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        forked.run(work, (str(folder),), max(WORLDS))


def work(place: int, folder: str) -> None:
    """One of four processes, of which the first, and the first two, also do without the others."""
    torch.set_num_threads(1)
    for world in WORLDS:
        if place < world:
            work_among(place, world, folder)


def work_among(place: int, world: int, folder: str) -> None:
    """One process: its slice of the batch, its negatives from all."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{world}", rank=place, world_size=world
    )
    assert (rank(), world_size()) == (place, world)
    size = GLOBAL // world
    own = whole().part(slice(place * size, (place + 1) * size))
    with pytest.MonkeyPatch.context() as patch:
        forbid(patch, world == 1)
        torch.save(results(own, gather), Path(folder) / f"{world}-{place}.pt")
    gathering(place, world)
    if world > 1:
        communicating(place, world, own)
        wrapped(own)
    if place == 0:
        # The other processes do not take part: local pairs must not wait for them.
        with pytest.MonkeyPatch.context() as patch:
            forbid(patch, True)
            for names in combinations():
                if names[2] == "every" or names[1] == "random start":
                    result(names, own, None)
    dist.barrier()
    dist.destroy_process_group()


def forbid(patch: pytest.MonkeyPatch, forbidden: bool) -> None:
    """Communication is an error from here on."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("this communicates")

    for name in ("all_gather", "all_reduce", "broadcast") if forbidden else ():
        patch.setattr(dist, name, fail)


def gathering(place: int, world: int) -> None:
    """The gradient of a gathered row is every process's share, added up; so is the second."""
    rows = torch.full((2, 1), float(place), requires_grad=True)
    everyone = gather(rows)
    wanted = [float(other) for other in range(world) for _ in range(2)]
    assert everyone.flatten().tolist() == wanted
    (first,) = torch.autograd.grad((everyone**3 * (place + 1)).sum(), rows, create_graph=True)
    shares = world * (world + 1) / 2
    assert first.flatten().tolist() == [shares * 3 * place**2] * 2
    # Every process has an interest of its own in the gradients of its rows.
    (second,) = torch.autograd.grad((first * (place + 2)).sum(), rows)
    assert second.flatten().tolist() == [shares * 6 * place * (place + 2)] * 2

    for count in (world, world + 1, 2 * world - 1):
        own = local_slice(count)
        assert own.stop - own.start in (count // world, -(-count // world))
        numbers = torch.arange(float(count)).requires_grad_()
        collected = gather(numbers[own, None], count)
        assert collected.flatten().tolist() == numbers.tolist()
        (each,) = torch.autograd.grad((collected**2).sum() * (place + 1), numbers)
        wanted = [2 * shares * n if own.start <= n < own.stop else 0 for n in range(count)]
        assert each.tolist() == wanted

    ragged, start = gather_ragged(torch.full((place + 1, 2), float(place)))
    assert ragged[:, 0].tolist() == [float(p) for p in range(world) for _ in range(p + 1)]
    assert start == place * (place + 1) / 2
    assert all_reduce_sum(torch.tensor(place + 1)).item() == shares


def communicating(place: int, world: int, own: Batch) -> None:
    """What several processes do together besides losses."""
    stopping(place, own)
    uneven(place, world)
    size = GLOBAL // world
    for groups in (1, 2):
        normalising(place, world, groups, slice(place * size, (place + 1) * size))
    normalising(place, world, 1, slice(0, GLOBAL if place == 1 else 0))
    with pytest.raises(UserError, match="3 groups"):
        synchronise(nn.BatchNorm1d(2), 3)
    assert any_rank(place == 1, False) == (True, False)
    assert all_gather_objects({"at": place}) == [{"at": other} for other in range(world)]
    assert broadcast(torch.full((2,), place)).tolist() == [0, 0]


class Passes(TorchDispatchMode):
    """Counts the operators whose result is as large as the rows of a batch norm."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.count = numbers, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple) else out
        large = isinstance(first, Tensor) and first.numel() == self.numbers
        self.count += large and not func.is_view
        return out


def normalising(place: int, world: int, groups: int, own: slice) -> None:
    """Synchronised batch norms are those of the whole batch, or of its groups one by one."""
    generator = torch.Generator().manual_seed(5)
    rows, weights = torch.randn(2, GLOBAL, 3, 8, 8, generator=generator, dtype=torch.float64)
    rows = rows * 2 + 7
    ours, whole_ = nn.BatchNorm2d(3).double(), nn.BatchNorm2d(3).double()
    for norm in (ours, whole_):
        norm.weight.data.copy_(torch.tensor([1.0, 2.0, 3.0]))
    inside = nn.Sequential(ours)
    synchronise(inside, groups)
    kind = torch.channels_last if groups == 1 else torch.contiguous_format
    mine = rows[own].clone(memory_format=kind).requires_grad_()
    everyone = rows.clone().requires_grad_()
    slope = weights[own].contiguous(memory_format=kind)
    with Passes(mine.numel()) as passes:
        made = inside(mine)
        made.backward(slope)
    # The result, and the two terms of its gradient: all else reads the rows without a copy.
    assert passes.count <= 3 or not len(mine)
    wanted = torch.cat([whole_(some) for some in everyone.chunk(groups)])
    (wanted * weights).sum().backward()
    close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
    close(made, wanted[own])
    assert mine.grad is not None
    assert everyone.grad is not None
    close(mine.grad, everyone.grad[own])
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        close(all_reduce_sum(parameter.grad), dict(whole_.named_parameters())[name].grad)
    close(dict(ours.named_buffers()), dict(whole_.named_buffers()))
    close(inside.eval()(mine), whole_.eval()(everyone)[own])


def stopping(place: int, own: Batch) -> None:
    """A query that is NaN on one process stops all of them, also before a factorisation."""
    views = own.inputs[:, :, :DIM].clone()
    if place == 0:
        views[0, 0, 0] = torch.nan
    for loss in ("info_nce", "closed form"):
        with pytest.raises(FloatingPointError, match=r"(not finite|infinite) at step 5"):
            Objective(LOSSES[loss]).build(DIM)(query_key(*views, gather=gather), step=5)


def uneven(place: int, world: int) -> None:
    """Every process says what does not fit, and none waits for the others."""
    rows = torch.ones(4 - (place == world - 1), DIM)
    with pytest.raises(ValueError, match=r"hold 4, .*3 rows, where 4, .*4 are expected"):
        two_views(rows, rows, gather=gather)
    with pytest.raises(ValueError, match=r"are expected"):
        gather(rows, count=world * 4)
    with pytest.raises(ValueError, match="need the same shape"):
        gather(torch.ones(4, DIM + (place == 0)))
    whole_ = functools.partial(gather, count=4 * world - 1)
    assert len(two_views(rows, rows, gather=whole_).candidate) == 2 * (4 * world - 1)


def wrapped(own: Batch) -> None:
    """DistributedDataParallel itself, around encoder and criterion."""
    criterion, views = Objective(LOSSES["info_nce"]).build(DIM), own.inputs[:, :, :DIM]
    expected, _ = criterion(two_views(*views, gather=gather))
    assert torch.equal(criterion.of_views(*views, gather=gather), expected)
    names = ("two_views", "info_nce", "every", "authors")
    model = nn.parallel.DistributedDataParallel(Model(*names))
    model(own, gather)[0].backward()
    wanted = result(names, whole(), None)["parameters"]
    got = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def assert_same(found: dict[str, Any], wanted: dict[str, Any], name: tuple[str, ...]) -> None:
    for key, want in wanted.items():
        torch.testing.assert_close(
            found[key],
            want,
            rtol=1e-10,
            atol=1e-10,
            check_dtype=key != "parts",
            msg=lambda text, key=key: f"{', '.join(name)}, {key}: {text}",
        )


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_processes_together_give_what_one_gives(world: int, left_by_processes: Path) -> None:
    found = [torch.load(left_by_processes / f"{world}-{place}.pt") for place in range(world)]
    for name, wanted in expected().items():
        of_all = [each[name] for each in found]
        assert_same(together(of_all), wanted, name)
        assert all(each["parts"] == of_all[0]["parts"] for each in of_all)
        for gradient in (*wanted["parameters"], wanted["views"]):
            assert float(gradient.abs().max()) > 1e-3, name


class Threads:
    """Processes that are threads of one, and wait for each other wherever they communicate."""

    def __init__(self, world: int, patch: pytest.MonkeyPatch) -> None:
        self.world, self.local = world, threading.local()
        self.barrier, self.given = threading.Barrier(world, timeout=60), [None] * world
        for name in ("all_gather", "all_reduce", "broadcast", "all_gather_object"):
            patch.setattr(dist, name, getattr(self, name))
        patch.setattr(dist, "is_initialized", lambda: True)
        patch.setattr(dist, "get_rank", lambda: self.local.rank)
        patch.setattr(dist, "get_world_size", lambda: world)
        patch.setattr(dist, "get_backend_config", lambda: "cpu:gloo")

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(functools.partial(self.work, work), range(self.world)))

    def work(self, work: Callable[[int], Any], place: int) -> Any:
        self.local.rank = place
        try:
            return work(place)
        except BaseException:
            self.barrier.abort()
            raise

    def exchanged(self, value: Any) -> list[Any]:
        self.given[rank()] = value.detach().clone() if isinstance(value, Tensor) else value
        self.barrier.wait()
        every = [*self.given]
        self.barrier.wait()
        return every

    def all_gather(self, parts: list[Tensor], local: Tensor, async_op: bool = False) -> Any:
        for part, other in zip(parts, self.exchanged(local), strict=True):
            part.copy_(other)
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(None)
        return SimpleNamespace(get_future=lambda: future) if async_op else None

    def all_reduce(self, local: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        every = torch.stack(self.exchanged(local))
        local.copy_(every.sum(0) if op == dist.ReduceOp.SUM else every.amax(0))

    def broadcast(self, values: Tensor, source: int) -> None:
        values.copy_(self.exchanged(values)[source])

    def all_gather_object(self, values: list[Any], value: Any) -> None:
        values[:] = self.exchanged(value)


ALSO_IN_THREADS = [
    *((builder, "info_nce", "none", "none") for builder in BUILDERS),
    ("masks", "hard_nce", "every", "l21"),
    ("local_global", "info_nce", "none", "authors, each view"),
]


@pytest.mark.parametrize("world", [2, 4])
def test_threads_together_give_what_one_gives(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no processes of their own, in a second."""
    size = GLOBAL // world
    wanted = {names: result(names, whole(), None) for names in ALSO_IN_THREADS}

    def work(place: int) -> dict[tuple[str, ...], dict[str, Any]]:
        own = whole().part(slice(place * size, (place + 1) * size))
        gathering(place, world)
        communicating(place, world, own)
        bucket = SimpleNamespace(buffer=lambda: torch.tensor([place, 3.0 * place]))
        mean = distributed._mean_in_order(None, bucket).wait()  # of the gradients of a step
        assert mean.tolist() == [(world - 1) / 2, 3 * (world - 1) / 2]
        return {names: result(names, own, gather) for names in ALSO_IN_THREADS}

    with monkeypatch.context() as patch:
        found = Threads(world, patch).run(work)
        with single_process():
            assert (rank(), world_size()) == (0, 1)
    for names, want in wanted.items():
        assert_same(together([each[names] for each in found]), want, names)


class Wrapper(nn.Module):
    """What DistributedDataParallel is asked for."""

    def __init__(self, module: nn.Module, forward_sync_buffers: bool = True) -> None:
        super().__init__()
        self.module, self.sends_buffers = module, forward_sync_buffers

    def register_comm_hook(self, state: None, hook: Any) -> None:
        self.hook = hook

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def test_a_function_is_replicated_with_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(2, 1)

    def function(x: int, *, y: int) -> int:
        return x - y

    assert distributed.replicated(function, layer) is function
    assert not distributed.is_lost(RuntimeError("[gloo] Connection closed by peer"))
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "DistributedDataParallel", Wrapper)
    model: Any = distributed.replicated(function, layer)
    assert model(5, y=3) == 2
    assert not model.sends_buffers
    assert model.hook is distributed._mean_in_order
    assert list(map(id, model.parameters())) == list(map(id, layer.parameters()))
    assert distributed.is_lost(RuntimeError("[gloo] Connection closed by peer"))
    assert not distributed.is_lost(RuntimeError("shapes"))


def test_every_builder_that_gathers_takes_part() -> None:
    gathering = {
        name
        for name, function in vars(pairs_module).items()
        if inspect.isfunction(function) and "gather" in inspect.signature(function).parameters
    }
    builders = {"two_views", "query_key", "context_window", "local_global", "same_label"}
    # The pairs of two views are those of two_views and query_key.
    assert gathering - {"_blocks", "_start", "_numbers_of", "paired_views"} == builders


def test_one_process_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    initialise()
    assert not dist.is_initialized()
    assert (rank(), world_size(), local_slice(7)) == (0, 1, slice(0, 7))
    rows = torch.randn(3, 2)
    assert gather(rows) is rows
    assert all_reduce_sum(rows) is rows
    assert [float(share_of_mean(rows[:n, 0])) for n in (1, 0)] == [float(rows[0, 0]), 0.0]
    assert gather_ragged(rows)[1] == 0
    assert torch.equal(gather_ragged(rows)[0], rows)


def test_gathering_on_one_process_changes_nothing() -> None:
    for name, found in results(whole(), gather).items():
        assert_same(found, expected()[name], name)


LEAVES = """
import tempfile
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from shared import distributed

dist.barrier = lambda: None  # which would nearly always give Gloo's threads the time they need
for _ in range(700):
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(8)]
        works[-1].wait()
        del works
        distributed.destroy()
        del model
print("all have ended")
"""


@pytest.mark.slow
def test_a_model_that_outlives_the_group_does_not_hang() -> None:
    """Where nothing else holds the group it does: four times of four within 500."""
    command = [sys.executable, "-c", LEAVES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "all have ended\n", done.stderr
