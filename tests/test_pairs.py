from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from shared import Pairs, context_window, cosine, inner_product, local_global, query_key, two_views
from shared.pairs import Pairing, paired_views, with_own_negatives
from tests import layouts, reference


def indices(mask: Tensor) -> reference.Indices:
    return [row.nonzero().flatten().tolist() for row in mask]


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_builders_choose_the_pairs_of_their_reference(name: str, size: int) -> None:
    case = layouts.make(name, size)
    pairs, layout = case.pairs(list(case.leaves)), case.layout(list(case.leaves))
    assert torch.equal(pairs.anchor, layout.anchor)
    assert torch.equal(pairs.candidate, layout.candidate)
    assert indices(pairs.positive) == layout.positives
    assert indices(pairs.negative) == layout.negatives


def test_builders_reject_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\(3, 2\) and \(4, 2\)"):
        two_views(torch.zeros(3, 2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"own is of shape \(3, 'S', 2\); got \(2, 4, 2\)"):
        with_own_negatives(query_key(torch.zeros(3, 2), torch.zeros(3, 2)), torch.zeros(2, 4, 2))
    with pytest.raises(ValueError, match="one row per instance"):
        query_key(torch.zeros(3, 2), torch.zeros(3, 5))
    with pytest.raises(ValueError, match="reach is a positive whole number; got 0"):
        context_window(torch.zeros(3, 2), torch.zeros(3, 2), 0)
    with pytest.raises(ValueError, match="anchors is 'both' or 'second'; got 'first'"):
        two_views(torch.zeros(3, 2), torch.zeros(3, 2), anchors="first")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="owner counts the 3 graphs from 0; got 0 to 3"):
        local_global(torch.zeros(2, 2), torch.zeros(3, 2), torch.tensor([0, 3]))


def test_pairs_rejects_masks_of_wrong_shape_or_type() -> None:
    rows, mask = torch.zeros(3, 2), torch.zeros(3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"negative is a bool mask of shape \(3, 3\); got"):
        Pairs(rows, rows, mask, mask[:2])
    with pytest.raises(ValueError, match=r"positive is a bool mask .* torch.float32"):
        Pairs(rows, rows, mask.float(), mask)
    with pytest.raises(ValueError, match="are matrices"):
        Pairs(rows[0], rows, mask, mask)


def test_a_copy_in_either_view_or_in_the_bank_is_no_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second, bank = (torch.randn(n, 3, generator=generator) for n in (4, 4, 3))
    first[2] = first[0]  # as images are after no augmentation, by chance of one view
    pairs = two_views(first, second, ignore_duplicates=True)
    plain = two_views(first, second)
    gone = (plain.negative & ~pairs.negative).nonzero().tolist()
    # Instances 0 and 2 are copies, and then in both views.
    assert gone == [[i, j] for i in (0, 2, 4, 6) for j in (0, 2, 4, 6) if i % 4 != j % 4]
    assert torch.equal(pairs.positive, plain.positive)

    bank[1] = second[3]
    pairs = query_key(first, second, bank, in_batch=False, ignore_duplicates=True)
    assert (~pairs.negative[:, 4:]).nonzero().tolist() == [[3, 1]]
    pairs = query_key(first, second, bank, ignore_duplicates=torch.tensor([5, 6, 5, 7]))
    expected = [{1, 3}, {0, 2, 3}, {1, 3}, {0, 1, 2}]
    assert [set(row) - {4, 5, 6} for row in indices(pairs.negative)] == expected
    assert pairs.negative[:, 4:].all()  # a bank has no numbers
    graph = torch.randn(3, 3, generator=generator)
    pairs = local_global(
        first, graph, torch.tensor([0, 1, 1, 2]), ignore_duplicates=torch.tensor([1, 0, 1])
    )
    assert indices(pairs.negative) == [[1], [0, 2], [0, 2], [1]]
    zeros = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]])
    assert indices(query_key(zeros, zeros, ignore_duplicates=True).negative) == [[1], [0, 2], [1]]
    assert paired_views(first, second, "both", ignore_duplicates=True).negative.sum() == 40
    for wrong in (torch.zeros(3, dtype=torch.int64), torch.zeros(4)):
        with pytest.raises(ValueError, match="ignore_duplicates holds one whole number for each"):
            two_views(first, second, ignore_duplicates=wrong)


def test_similarities_are_those_of_the_loops() -> None:
    generator = torch.Generator().manual_seed(3)
    anchor = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    candidate = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(cosine(anchor, candidate), reference.cosines(anchor, candidate))
    torch.testing.assert_close(cosine(anchor, anchor), reference.cosines(anchor, anchor))
    by_hand = [[sum(a * c for a, c in zip(x, y, strict=True)) for y in candidate] for x in anchor]
    torch.testing.assert_close(
        inner_product(anchor, candidate), torch.tensor(by_hand, dtype=torch.float64)
    )


def test_a_row_of_zeros_has_cosine_0_and_a_finite_gradient() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    similarity = cosine(rows, rows)
    torch.testing.assert_close(
        similarity, torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    )
    (slope,) = torch.autograd.grad(similarity.sum(), rows, create_graph=True)
    assert torch.isfinite(slope).all()
    assert torch.isfinite(torch.autograd.grad(slope.sum(), rows)[0]).all()


def test_one_name_for_one_pairing() -> None:
    first, second = torch.randn(4, 3), torch.randn(4, 3)
    expected = {
        "both": two_views(first, second),
        "both_views": two_views(first, second, anchors="second"),
        "first_view": query_key(second, first),
        "second_view": query_key(first, second),
    }
    assert set(expected) == set(get_args(Pairing))
    for name, pairs in expected.items():
        found = paired_views(first, second, name)
        for field in ("anchor", "candidate", "positive", "negative"):
            assert torch.equal(getattr(found, field), getattr(pairs, field))
    assert paired_views(first, second, "first_view").candidate is first
    assert paired_views(first, second, "second_view").candidate is second
    assert paired_views(first, second, "both_views").anchor is second
    with pytest.raises(ValueError, match="pairs is one of both, both_views, first_view, second"):
        paired_views(first, second, "symmetric")


def test_lengths_may_be_as_extreme_as_the_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 16, generator=generator)
    expected = cosine(rows, rows)
    for scale in (3e37, 1e30, 3e19, 1e-23, 1e-25, 1e-36):
        scaled = (scale * rows).requires_grad_()
        found = cosine(scaled, scaled)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        found.square().sum().backward()
        assert scaled.grad is not None
        assert torch.isfinite(scaled.grad).all()
    powers = 2.0 ** torch.tensor([[60], [-60], [-100], [0]])
    assert torch.equal(cosine(powers * rows, rows), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: cosine(x.long(), x.long()), "floating-point numbers; got torch.int64"),
        (lambda x: two_views(x.long(), x.long()), "floating-point numbers; got torch.int64"),
        (lambda x: two_views(x.numpy(), x.numpy()), "torch tensors; got ndarray"),
        (lambda x: two_views(x[0], x[0]), "are matrices"),
        (lambda x: cosine(x, x[:, :1]), r"of one width; got shapes \(3, 2\) and \(3, 1\)"),
        (lambda x: inner_product(x, x.double()), "one precision and device; got torch.float32"),
        (lambda x: query_key(x, x, x[:, :1]), r"bank is of shape \(K, 2\), .*got \(3, 1\)"),
        (lambda x: local_global(x, x, x[:, 0]), "owner holds one whole number"),
        (lambda x: context_window(x, x, document=torch.arange(2)), "document holds one whole"),
    ],
)
def test_what_are_no_embeddings_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.ones(3, 2))
