from typing import Any

import pytest
import torch
from torch import Tensor

from shared import (
    Pairs,
    band_statistics,
    consistency,
    cosine,
    distance_polarization,
    query_key,
    two_views,
)
from tests import layouts, reference

AMONG = ["negatives", "all", "anchors"]
REDUCTIONS = ["anchor_sum", "mean", "sum"]


def chosen(layout: reference.Layout, among: str) -> reference.Indices:
    if among == "negatives":
        return layout.negatives
    if among == "all":
        return [p + n for p, n in zip(layout.positives, layout.negatives, strict=True)]
    count = len(layout.anchor)
    return [[j for j in range(count) if j != i] for i in range(count)]


@pytest.mark.pairwise
@pytest.mark.parametrize("band", [(0.1, 0.5), (0.0, 1.0), (0.3, 0.6)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_value_and_gradient_equal_the_loops(
    name: str, among: str, reduction: str, band: tuple[float, float]
) -> None:
    lower, upper = band
    for size in (1, 2, 5):
        layouts.assert_agreement(
            layouts.make(name, size, seed=size),
            lambda pairs, _: distance_polarization(
                pairs,
                cosine(pairs.anchor, pairs.candidate),
                lower=lower,
                upper=upper,
                reduction=reduction,  # type: ignore[arg-type]
                among=among,  # type: ignore[arg-type]
            ).mean(),
            lambda layout, _: reference.distance_polarization(
                reference.cosines(
                    layout.anchor, layout.anchor if among == "anchors" else layout.candidate
                ),
                chosen(layout, among),
                lower=lower,
                upper=upper,
                reduction=reduction,
            ),
        )


def two_pairs(similarity: list[list[float]]) -> tuple[Pairs, Tensor]:
    rows = torch.eye(2, dtype=torch.float64)
    return query_key(rows, rows), torch.tensor(similarity, dtype=torch.float64)


@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_outside_the_band_value_and_gradient_are_0(reduction: str, among: str) -> None:
    """Cosines above 0.8 and below 0: distances below 0.1 and above 0.5."""
    angles = torch.tensor([0.0, 0.5, 2.4, 2.9], dtype=torch.float64)
    rows = torch.stack([angles.cos(), angles.sin()], dim=1).requires_grad_()
    pairs = two_views(rows, rows)
    value = distance_polarization(
        pairs,
        cosine(rows, rows).tile(2, 2),
        reduction=reduction,  # type: ignore[arg-type]
        among=among,  # type: ignore[arg-type]
    )
    assert (value == 0).all()
    (gradient,) = torch.autograd.grad(value.sum(), rows)
    assert (gradient == 0).all()


def test_half_precision_similarities_are_lifted() -> None:
    pairs, similarity = two_pairs([[0.4, 0.6], [0.3, 0.1]])
    assert distance_polarization(pairs, similarity.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("name", layouts.MAKERS)
def test_band_statistics_count_the_negatives_in_the_band(name: str) -> None:
    case = layouts.make(name, 6)
    pairs, layout = case.pairs(list(case.leaves)), case.layout(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate)
    found = band_statistics(pairs, similarity, lower=0.2, upper=0.7)
    listed = [float(similarity[i, j]) for i, others in enumerate(layout.negatives) for j in others]
    inside = [c for c in listed if 0.2 < (1 - c) / 2 < 0.7]
    assert 0 < len(inside) < len(listed)
    assert float(found["share_in_band"]) == pytest.approx(len(inside) / len(listed))
    assert float(found["mean_cosine"]) == pytest.approx(sum(listed) / len(listed))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"lower": 0.5, "upper": 0.5}, "0 <= lower < upper <= 1; got lower 0.5, upper 0.5"),
        ({"lower": -0.1}, "lower < upper"),
        ({"upper": 1.1}, "upper <= 1"),
        ({"reduction": "max"}, "reduction is 'anchor_sum', 'mean' or 'sum'; got 'max'"),
        ({"among": "positives"}, "among is 'negatives', 'all' or 'anchors'; got 'positives'"),
    ],
)
def test_numbers_out_of_range_are_named(numbers: dict[str, Any], message: str) -> None:
    pairs, similarity = two_pairs([[0.4, 0.6], [0.3, 0.1]])
    with pytest.raises(ValueError, match=message):
        distance_polarization(pairs, similarity, **numbers)


# CO2's consistency


@pytest.mark.parametrize("with_positive", [False, True])
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_consistency_equals_the_loops(name: str, with_positive: bool) -> None:
    numbers: dict[str, Any] = {"temperature": 0.4, "with_positive": with_positive}
    for size in (1, 2, 5):
        layouts.assert_agreement(
            layouts.make(name, size, seed=size),
            lambda pairs, _: consistency(pairs, cosine(pairs.anchor, pairs.candidate), **numbers),
            lambda layout, _: reference.consistency(layout, **numbers),
        )


def test_consistency_is_0_for_a_positive_that_is_the_anchor() -> None:
    rows, bank = torch.randn(4, 3), torch.randn(6, 3)
    pairs = query_key(rows, 2 * rows, bank, in_batch=False)
    similarity = cosine(pairs.anchor, pairs.candidate)
    assert consistency(pairs, similarity).abs().max() < 1e-6
    other = query_key(rows, rows.roll(1, 0), bank, in_batch=False)
    assert consistency(other, cosine(rows, other.candidate)).min() > 1e-2


def test_consistency_is_finite_at_a_small_temperature_and_opposite_views() -> None:
    rows = torch.randn(4, 3, requires_grad=True)
    pairs = query_key(rows, -rows, torch.randn(6, 3), in_batch=False)
    value = consistency(pairs, cosine(rows, pairs.candidate), temperature=0.01)
    (gradient,) = torch.autograd.grad(value.sum(), rows)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()
    assert value.min() > 1
