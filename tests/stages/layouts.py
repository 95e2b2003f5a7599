"""The builders of the core beside their reference loops, on the same embeddings.

``build`` takes the module that holds the builders, so that a mutated copy of the core can be put
in its place.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared import Objective
from shared import pairs as core
from shared.pairs import Pairs
from tests.stages import reference

NOT_ALL: dict[str, bool] = {"allow_unused": True, "materialize_grads": True}  # leaves take part
SIZES = (6, 2, 1)
# What losses can tell apart: one positive or several, or none; excluded candidates as indices or as
# a mask; anchors that are the candidates.
KINDS = ("two views", "query key bank", "bank alone", "context window", "same label", "masks")


@dataclass(frozen=True)
class Case:
    leaves: tuple[Tensor, ...]
    build: Callable[..., Pairs]
    loops: Callable[..., reference.Layout]

    def fresh(self) -> list[Tensor]:
        """Copies of the embeddings that collect gradients."""
        return [leaf.clone().requires_grad_() for leaf in self.leaves]

    def pairs(self, leaves: list[Tensor], module: Any = core) -> Pairs:
        return self.build(module, *leaves)

    def layout(self, leaves: list[Tensor]) -> reference.Layout:
        return self.loops(*leaves)


def _two_views(size: int, rows: Callable[[int], Tensor], anchors: str) -> Case:
    return Case(
        (rows(size), rows(size)),
        lambda module, first, second: module.two_views(first, second, anchors=anchors),
        lambda first, second: reference.two_views(first, second, anchors),
    )


def _query_key(size: int, rows: Callable[[int], Tensor], bank: int, in_batch: bool = True) -> Case:
    leaves = (rows(size), rows(size)) + ((rows(bank),) if bank else ())
    return Case(
        leaves,
        lambda module, *rows: module.query_key(*rows, in_batch=in_batch),
        lambda *rows: reference.query_key(*rows, in_batch=in_batch),
    )


def _own_negatives(size: int, rows: Callable[[int], Tensor]) -> Case:
    """A queue of 3, and 2 negatives more for each anchor."""
    return Case(
        (rows(size), rows(size), rows(3), rows(2 * size)),
        lambda module, query, key, bank, own: module.with_own_negatives(
            module.query_key(query, key, bank, in_batch=False), own.view(size, 2, -1)
        ),
        lambda query, key, bank, own: reference.own_negatives(
            reference.query_key(query, key, bank, in_batch=False), own.view(size, 2, -1)
        ),
    )


def _context_window(size: int, rows: Callable[[int], Tensor], reach: int, cut: int) -> Case:
    document = [int(place >= cut) for place in range(size)] if cut else None
    return Case(
        (rows(size), rows(size)),
        lambda module, sentence, context: module.context_window(
            sentence,
            context,
            reach,
            document=None if document is None else torch.tensor(document),
        ),
        lambda sentence, context: reference.context_window(sentence, context, reach, document),
    )


def _local_global(size: int, rows: Callable[[int], Tensor]) -> Case:
    owner = [graph for graph in range(size) for _ in range(1 + graph % 3)][::-1]
    return Case(
        (rows(len(owner)), rows(size)),
        lambda module, node, graph: module.local_global(node, graph, torch.tensor(owner)),
        lambda node, graph: reference.local_global(node, graph, owner),
    )


def _same_label(size: int, rows: Callable[[int], Tensor]) -> Case:
    """Classes of unequal sizes; from three rows on, one row is alone in its class."""
    label = [9 if place == 2 else place % 2 for place in range(size)]
    return Case(
        (rows(size),),
        lambda module, embedding: module.same_label(embedding, torch.tensor(label)),
        lambda embedding: reference.same_label(embedding, label),
    )


def _copies(size: int, rows: Callable[[int], Tensor]) -> Case:
    """Two views of instances of which each second is a copy of the one before, by numbers."""
    number = [place // 2 for place in range(size)]
    return Case(
        (rows(size), rows(size)),
        lambda module, first, second: module.two_views(
            first, second, ignore_duplicates=torch.tensor(number)
        ),
        lambda first, second: reference.without_copies(
            reference.two_views(first, second),
            lambda i, j: number[i % size] == number[j % size],
        ),
    )


def _equal_rows(size: int, rows: Callable[[int], Tensor]) -> Case:
    """Sentences of which every third is the first again, as the context's rows show."""
    place = [0 if at % 3 == 0 else at for at in range(size)]
    return Case(
        (rows(size), rows(size)[place]),
        lambda module, sentence, context: module.context_window(
            sentence, context, 1, ignore_duplicates=True
        ),
        lambda sentence, context: reference.without_copies(
            reference.context_window(sentence, context, 1), lambda i, j: place[i] == place[j]
        ),
    )


def _masks(size: int, rows: Callable[[int], Tensor]) -> Case:
    """Masks made by hand: unequal numbers of positives, none, no negatives, ignored pairs."""
    width = size + 3
    positives = [[j for j in range(width) if (i + 2 * j) % 5 == 0][: i % 4] for i in range(size)]
    negatives = [
        [j for j in range(width) if j not in own and (i * j) % 4 != 1]
        for i, own in enumerate(positives)
    ]
    negatives[-1] = []

    def mask(indices: reference.Indices) -> Tensor:
        result = torch.zeros(size, width, dtype=torch.bool)
        for i, own in enumerate(indices):
            result[i, own] = True
        return result

    return Case(
        (rows(size), rows(width)),
        lambda module, anchor, candidate: module.Pairs(
            anchor, candidate, mask(positives), mask(negatives)
        ),
        lambda anchor, candidate: reference.Layout(anchor, candidate, positives, negatives),
    )


MAKERS: dict[str, Callable[[int, Callable[[int], Tensor]], Case]] = {
    "two views": lambda size, rows: _two_views(size, rows, "both"),
    "second view": lambda size, rows: _two_views(size, rows, "second"),
    "query key": lambda size, rows: _query_key(size, rows, 0),
    "query key bank": lambda size, rows: _query_key(size, rows, 4),
    "bank alone": lambda size, rows: _query_key(size, rows, 4, in_batch=False),
    "own negatives": _own_negatives,
    "context window": lambda size, rows: _context_window(size, rows, 1, 0),
    "documents": lambda size, rows: _context_window(size, rows, 2, size // 2),
    "local global": _local_global,
    "same label": _same_label,
    "copies": _copies,
    "equal rows": _equal_rows,
    "masks": _masks,
}


def make(name: str, size: int, dim: int = 3, seed: int = 0) -> Case:
    """The case of that name, on normally distributed float64 rows."""
    generator = torch.Generator().manual_seed(seed)
    return MAKERS[name](
        size, lambda count: torch.randn(count, dim, generator=generator, dtype=torch.float64)
    )


class Bilinear(nn.Module):
    """CURL's similarity, whose matrix is trained."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.matrix = nn.Parameter(torch.rand(dim, dim, generator=generator, dtype=torch.float64))

    def forward(self, anchor: Tensor, candidate: Tensor) -> Tensor:
        return anchor @ self.matrix @ candidate.T


# The core beside its loops


def directions(leaves: Sequence[Tensor]) -> list[Tensor]:
    return [torch.arange(1, leaf.numel() + 1).view(leaf.shape).cos().to(leaf) for leaf in leaves]


def hessian_vector(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The Hessian of a scalar times a fixed vector."""
    first = torch.autograd.grad(value, leaves, create_graph=True, **NOT_ALL)
    along = zip(first, directions(leaves), strict=True)
    product = torch.stack([(slope * direction).sum() for slope, direction in along]).sum()
    if not product.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(product, leaves, **NOT_ALL))


def differentiated(value: Tensor, leaves: Sequence[Tensor], order: int = 1) -> tuple[Tensor, ...]:
    """The value, the gradients of a weighted sum and, at order 2, its Hessian times a vector.

    Anchors are weighted unequally, so that an error in one is not made good by another.
    """
    upstream = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view(value.shape)
    total = (upstream * value).sum() if value.numel() > 1 else value.sum()
    if not value.requires_grad:
        return (value, *(torch.zeros_like(leaf) for leaf in order * [*leaves]))
    first = torch.autograd.grad(total, leaves, retain_graph=order > 1, **NOT_ALL)
    second = hessian_vector(total, leaves) if order > 1 else ()
    return (value.detach(), *first, *second)


@functools.cache
def of_loops(
    function: str, layout: str, size: int, order: int, numbers: tuple[tuple[str, Any], ...]
) -> tuple[Tensor, ...]:
    case = make(layout, size, dim=4, seed=size)
    leaves = case.fresh()
    value = reference.value(function, case.layout(leaves), **dict(numbers))
    return differentiated(value, leaves, order)


def assert_equals_loops(
    function: str, layout: str, core: Any, tolerance: float = 1.0, **numbers: Any
) -> None:
    """Values agree with the loops to 1e-12, gradients and Hessians to 1e-10, times a tolerance."""
    order = 1 if function in reference.DIFFERENTIATED_BY_HAND else 2
    for size in SIZES:
        case = make(layout, size, dim=4, seed=size)
        leaves = case.fresh()
        pairs = case.pairs(leaves, core)
        value = getattr(core, function)(
            pairs, core.cosine(pairs.anchor, pairs.candidate), **numbers
        )
        found = differentiated(
            value.mean() if function == "distance_polarization" else value, leaves, order
        )
        assert_close(
            found, of_loops(function, layout, size, order, tuple(numbers.items())), tolerance
        )


def assert_close(
    found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1.0
) -> None:
    """What :func:`differentiated` gives, relative to the largest number where that exceeds 1."""
    for place, (got, want) in enumerate(zip(found, expected, strict=True)):
        limit = tolerance * (1e-10 if place else 1e-12)
        scale = max(1.0, float(want.abs().max()) if want.numel() else 0.0)
        torch.testing.assert_close(got, want, rtol=limit, atol=limit * scale)


def objective_of_loops(
    objective: Objective, layout: reference.Layout, matrix: Tensor | None
) -> Tensor:
    """What an objective's criterion gives, a scalar, where its projection has this matrix."""
    loss = objective.loss
    losses = reference.value(loss.function.__name__, layout, **loss.kwargs)
    total = loss.weight * losses.sum() / max(1, sum(map(bool, layout.positives)))
    for each in objective.penalties:
        value = reference.value(each.function.__name__, layout, **each.kwargs)
        total = total + each.weight * value.mean()
    if objective.projection is None:
        return total
    assert matrix is not None
    options = {**objective.projection.kwargs}
    if options.pop("form", "paper") == "authors":
        penalty = reference.low_rank_authors(matrix, [layout.anchor])
    else:
        penalty = reference.low_rank_paper(matrix, layout.anchor, **options)
    return total + objective.projection.weight * penalty
