"""The builders of the core beside their reference loops, on the same embeddings.

``build`` takes the module that holds the builders, so that a mutated copy of the core can be put
in its place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from shared import pairs as core
from shared.pairs import Pairs
from tests import reference


@dataclass(frozen=True)
class Case:
    leaves: tuple[Tensor, ...]
    build: Callable[..., Pairs]
    loops: Callable[..., reference.Layout]

    def fresh(self) -> list[Tensor]:
        """Copies of the embeddings that collect gradients."""
        return [leaf.clone().requires_grad_() for leaf in self.leaves]

    def pairs(self, leaves: list[Tensor], module: ModuleType | SimpleNamespace = core) -> Pairs:
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


def assert_agreement(
    case: Case,
    ours: Callable[[Pairs, list[Tensor]], Tensor],
    loops: Callable[[reference.Layout, list[Tensor]], Tensor],
) -> None:
    """Values agree to 1e-12, gradients with respect to every embedding to 1e-10."""
    mine, theirs = case.fresh(), case.fresh()
    value, expected = ours(case.pairs(mine), mine), loops(case.layout(theirs), theirs)
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12 * scale)
    # Anchors weighted unequally, so that an error in one is not made good by another.
    upstream = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view(value.shape)
    for leaf, other, got, want in zip(
        mine,
        theirs,
        gradients(value, upstream, mine),
        gradients(expected, upstream, theirs),
        strict=True,
    ):
        assert leaf.shape == other.shape
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10 * scale)


def gradients(value: Tensor, upstream: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Gradients of ``sum upstream * value``, zeros where a leaf takes no part."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(
        torch.autograd.grad(
            (upstream * value).sum(), leaves, allow_unused=True, materialize_grads=True
        )
    )
