"""Who is compared with whom, and how similar they are."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from shared import (
    Pairs,
    context_window,
    cosine,
    distributed,
    local_global,
    query_key,
    same_label,
    two_views,
)
from shared import pairs as pairs_module
from shared.pairs import Pairing, fill, paired_views, with_own_negatives
from tests.stages import layouts, reference


def indices(mask: Tensor) -> reference.Indices:
    return [row.nonzero().flatten().tolist() for row in mask]


COUNTED = ("own negatives", "same label", "copies", "equal rows", "masks")


@pytest.mark.parametrize("layout", layouts.MAKERS)
def test_builders_choose_the_pairs_of_their_reference(layout: str, core: Any) -> None:
    for size in (1, 2, 5, 20):
        case = layouts.make(layout, size)
        pairs, expected = case.pairs(list(case.leaves), core), case.layout(list(case.leaves))
        assert torch.equal(pairs.anchor, expected.anchor)
        assert torch.equal(pairs.candidate, expected.candidate)
        assert indices(pairs.positive) == expected.positives
        assert indices(pairs.negative) == expected.negatives
        for row, positives in zip(pairs.positives(), expected.positives, strict=True):
            assert sorted(row[row >= 0].tolist()) == positives
        # Both are known to most builders, so that nothing has to be counted.
        of = (pairs.most_positives, pairs.most_non_negatives)
        assert (None in of) == (layout in COUNTED)
        for most, mask in zip(of, (pairs.positive, ~pairs.negative), strict=True):
            assert most is None or int(mask.sum(1).max()) <= most


def masks() -> dict[str, Any]:
    positive = torch.eye(3, 4, dtype=torch.bool)
    rows = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    return {"anchor": rows[:3], "candidate": rows, "positive": positive, "negative": ~positive}


def test_masks_that_do_not_fit_are_refused(core: Any) -> None:
    with pytest.raises(ValueError, match="both"):
        core.Pairs(**masks() | {"positive": masks()["negative"]})
    with pytest.raises(ValueError, match="3 positives"):
        core.Pairs(
            **masks() | {"positive": ~masks()["positive"], "negative": masks()["positive"]},
            most_positives=2,
        )
    assert core.Pairs(**masks(), most_positives=2).positives().max(1).values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("changed", ["positive", "negative", "replaced", "not"])
def test_losses_read_the_masks_as_they_are(changed: str, core: Any) -> None:
    pairs = core.two_views(*torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)))
    if changed == "positive":
        pairs.positive[0] = pairs.positive[0].roll(1)
        pairs.negative[0] &= ~pairs.positive[0]
    elif changed == "negative":
        pairs.negative[:, 2] = False
    elif changed == "replaced":
        positive = pairs.positive.roll(1, 1) & pairs.negative
        pairs = replace(pairs, positive=positive, negative=pairs.negative & ~positive)
    anew = core.Pairs(pairs.anchor, pairs.candidate, pairs.positive, pairs.negative)
    assert torch.equal(pairs.positives(), anew.positives())
    for positives in (True, False):
        excluded = [item.excluded(positives=positives) for item in (pairs, anew)]
        filled = [fill(torch.zeros(8, 8), item, 1.0) for item in excluded]
        assert torch.equal(*filled)
        assert (excluded[0].dtype == torch.bool) == (changed != "not")


def test_a_copy_in_either_view_or_in_the_bank_is_no_negative(core: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second, bank = (torch.randn(n, 3, generator=generator) for n in (4, 4, 3))
    first[2] = first[0]  # as images are after no augmentation, by chance of one view
    pairs = core.two_views(first, second, ignore_duplicates=True)
    plain = core.two_views(first, second)
    gone = (plain.negative & ~pairs.negative).nonzero().tolist()
    # Instances 0 and 2 are copies, and then in both views.
    assert gone == [[i, j] for i in (0, 2, 4, 6) for j in (0, 2, 4, 6) if i % 4 != j % 4]
    assert torch.equal(pairs.positive, plain.positive)

    bank[1] = second[3]
    pairs = core.query_key(first, second, bank, in_batch=False, ignore_duplicates=True)
    assert (~pairs.negative[:, 4:]).nonzero().tolist() == [[3, 1]]
    pairs = core.query_key(first, second, bank, ignore_duplicates=torch.tensor([5, 6, 5, 7]))
    expected = [{1, 3}, {0, 2, 3}, {1, 3}, {0, 1, 2}]
    assert [set(row) - {4, 5, 6} for row in indices(pairs.negative)] == expected
    assert pairs.negative[:, 4:].all()  # a bank has no numbers
    graph = torch.randn(3, 3, generator=generator)
    pairs = core.local_global(
        first, graph, torch.tensor([0, 1, 1, 2]), ignore_duplicates=torch.tensor([1, 0, 1])
    )
    assert indices(pairs.negative) == [[1], [0, 2], [0, 2], [1]]
    zeros = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]])
    found = core.query_key(zeros, zeros, ignore_duplicates=True)
    assert indices(found.negative) == [[1], [0, 2], [1]]
    assert paired_views(first, second, ignore_duplicates=True).negative.sum() == 40


def test_minus_one_is_no_label_and_no_number(core: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(6, 3, generator=generator) for _ in range(2))
    label = torch.tensor([0, 0, 1, 1, -1, -1])
    pairs = core.same_label(first, label)
    assert indices(pairs.positive) == [[1], [0], [3], [2], [], []]
    assert indices(pairs.negative) == [[2, 3], [2, 3], [0, 1], [0, 1], [], []]
    # The loss is that of the rows with a label alone.
    known = core.same_label(first[:4], label[:4])
    for loss, numbers in ((core.info_nce, {}), (core.hard_nce, {"tau_plus": 0.1, "beta": 1.0})):
        values = [
            loss(each, core.cosine(each.anchor, each.candidate), temperature=0.5, **numbers)
            for each in (pairs, known)
        ]
        torch.testing.assert_close(values[0][:4], values[1])
        assert not values[0][4:].any()
    for build in (core.two_views, core.query_key):
        numbered = build(first, second, ignore_duplicates=torch.tensor([0, 0, 1, 1, -1, -1]))
        other = build(first, second, ignore_duplicates=torch.tensor([0, 0, 1, 1, 2, 3]))
        assert torch.equal(numbered.negative, other.negative)


def test_similarities_are_those_of_the_loops(core: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    anchor = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    candidate = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(core.cosine(anchor, candidate), reference.cosines(anchor, candidate))
    torch.testing.assert_close(core.cosine(anchor, anchor), reference.cosines(anchor, anchor))
    by_hand = [[sum(a * c for a, c in zip(x, y, strict=True)) for y in candidate] for x in anchor]
    torch.testing.assert_close(
        core.inner_product(anchor, candidate), torch.tensor(by_hand, dtype=torch.float64)
    )


def test_a_row_of_zeros_has_cosine_0_and_a_finite_gradient(core: Any) -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    similarity = core.cosine(rows, rows)
    torch.testing.assert_close(
        similarity, torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    )
    (slope,) = torch.autograd.grad(similarity.sum(), rows, create_graph=True)
    assert torch.isfinite(slope).all()
    assert torch.isfinite(torch.autograd.grad(slope.sum(), rows)[0]).all()
    # As if a row of zeros had length 1, also where no row has a length.
    for some in (rows, torch.zeros_like(rows, requires_grad=True)):
        (slope,) = torch.autograd.grad(core.cosine(some, rows.detach()).sum(), some)
        assert slope[0].tolist() == pytest.approx([0.6, 0.8])


LABEL, BANK = torch.tensor([0, 1, 0, 2, 1, 1]), torch.ones(2, 3)
ON_PROCESSES: dict[str, Any] = {
    "both": lambda x, y, label, gather: two_views(x, y, gather=gather, ignore_duplicates=label),
    "second": lambda x, y, _, gather: two_views(x, y, anchors="second", gather=gather),
    "keys": lambda x, y, label, gather: query_key(
        x, y, BANK, gather=gather, ignore_duplicates=label
    ),
    "bank": lambda x, y, _, gather: query_key(x, y, BANK, in_batch=False, gather=gather),
    "window": lambda x, y, label, gather: context_window(
        x, y, document=label // 2, gather=gather, ignore_duplicates=label
    ),
    "graphs": lambda x, y, label, gather: local_global(
        x, y, torch.arange(len(y)), gather=gather, ignore_duplicates=label
    ),
    "label": lambda x, _, label, gather: same_label(x, label, gather=gather),
}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", ON_PROCESSES)
def test_a_process_has_its_rows_of_the_pairs_of_all(
    name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two, to which a function gives the rows of both."""
    first, second = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    build, own = ON_PROCESSES[name], slice(3 * place, 3 * place + 3)
    whole = build(first, second, LABEL, None)

    def gather(local: Tensor) -> Tensor:
        every = (first, second, LABEL[:, None], LABEL[:, None] // 2)
        return next(one for one in every if torch.equal(one[own], local))

    for home in (distributed, pairs_module):
        monkeypatch.setattr(home, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "rank", lambda: place)
    found = build(first[own], second[own], LABEL[own], gather)
    rows = torch.arange(len(whole.anchor)).view(-1, 6)[:, own].flatten()
    assert found.blocks == len(whole.anchor) // 6
    assert torch.equal(found.candidate, whole.candidate)
    for part in ("anchor", "positive", "negative"):
        assert torch.equal(getattr(found, part), getattr(whole, part)[rows]), part


def test_own_negatives_take_the_precision_of_the_others() -> None:
    rows = torch.eye(3)
    found = with_own_negatives(query_key(rows, rows), torch.ones(3, 2, 3, dtype=torch.float64))
    assert found.candidate.dtype == torch.float32


def test_pairs_print_their_sizes_and_no_numbers() -> None:
    made = two_views(torch.randn(3, 5), torch.randn(3, 5))
    assert repr(made) == "Pairs(6 anchors, 6 candidates, 5 dimensions)"


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
        for field in ("positive", "negative", "anchor", "candidate"):
            assert torch.equal(getattr(found, field), getattr(pairs, field))


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


def test_whole_numbers_may_be_of_any_kind_and_a_reach_longer_than_the_batch() -> None:
    rows, owner = torch.eye(4), torch.tensor([0, 1, 1, 2])
    of_bytes = local_global(rows, rows, owner.to(torch.uint8))
    assert torch.equal(of_bytes.positive, local_global(rows, rows, owner).positive)
    everyone = context_window(rows, rows, np.int64(10**15))
    assert torch.equal(everyone.positive, ~torch.eye(4, dtype=torch.bool))
    assert torch.equal(everyone.positives(), context_window(rows, rows, 4).positives())


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda x: two_views(x, x[:2]), r"\(2, 2\)"),
        (lambda x: two_views(x, x, anchors="first"), "anchors"),
        (lambda x: two_views(x, x, ignore_duplicates=x[:, 0]), "ignore_duplicates"),
        (lambda x: two_views(x, x, ignore_duplicates=torch.arange(2)), "ignore_duplicates"),
        (lambda x: paired_views(x, x, "any"), "both_views"),
        (lambda x: query_key(x, x, in_batch=False), "bank"),
        (lambda x: context_window(x, x, 0), "reach"),
        (lambda x: context_window(x, x, document=torch.arange(2)), "document"),
        (lambda x: local_global(x, x, torch.arange(1, 4)), "1 to 3"),
        (lambda x: same_label(x, [0, 1, 2]), "list"),
        (lambda x: Pairs(**masks() | {"negative": masks()["negative"][:2]}), r"\(3, 4\)"),
        (lambda x: Pairs(**masks() | {"positive": torch.ones(3, 4)}), "float32"),
        (lambda x: Pairs(**masks() | {"anchor": x[0]}), "matrices"),
    ],
)
def test_shapes_and_labels_that_do_not_fit_are_named(call: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call(torch.ones(3, 2))
