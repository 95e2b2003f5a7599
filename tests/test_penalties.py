from typing import Any

import pytest
import torch

from shared import consistency, cosine, distance_polarization, query_key
from tests import layouts

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("distance_polarization", {"reduction": "anchor_sum", "among": "negatives"}),
    ("distance_polarization", {"reduction": "mean", "among": "negatives", "lower": 0.3}),
    ("distance_polarization", {"reduction": "mean", "among": "all", "upper": 0.6}),
    ("distance_polarization", {"reduction": "mean", "among": "anchors", "upper": 0.6}),
    ("distance_polarization", {"reduction": "sum", "among": "all", "lower": 0.0, "upper": 1.0}),
    ("consistency", {"temperature": 0.4}),
    ("consistency", {"temperature": 0.4, "with_positive": True}),
]


@pytest.mark.parametrize("layout", layouts.KINDS)
@pytest.mark.parametrize(("function", "numbers"), SETTINGS, ids=str)
def test_penalties_equal_their_loops(
    function: str, numbers: dict[str, Any], layout: str, core: Any
) -> None:
    layouts.assert_equals_loops(function, layout, core, **numbers)


def test_half_precision_similarities_are_lifted() -> None:
    rows = torch.eye(2)
    similarity = torch.tensor([[0.4, 0.6], [0.3, 0.1]]).bfloat16()
    assert distance_polarization(query_key(rows, rows), similarity).dtype == torch.float32


@pytest.mark.parametrize("layout", ["two views", "context window", "masks"])
def test_band_statistics_count_the_negatives_in_the_band(layout: str, core: Any) -> None:
    case = layouts.make(layout, 6)
    pairs, loops = case.pairs(list(case.leaves), core), case.layout(list(case.leaves))
    similarity = core.cosine(pairs.anchor, pairs.candidate)
    found = core.band_statistics(pairs, similarity, lower=0.2, upper=0.7)
    listed = [float(similarity[i, j]) for i, others in enumerate(loops.negatives) for j in others]
    inside = [c for c in listed if 0.2 < (1 - c) / 2 < 0.7]
    assert 0 < len(inside) < len(listed)
    assert float(found["share_in_band"]) == pytest.approx(len(inside) / len(listed))
    assert float(found["mean_cosine"]) == pytest.approx(sum(listed) / len(listed))


def test_consistency_is_finite_at_a_small_temperature_and_opposite_views() -> None:
    torch.manual_seed(0)
    rows = torch.randn(4, 3, requires_grad=True)
    pairs = query_key(rows, -rows, torch.randn(6, 3), in_batch=False)
    value = consistency(pairs, cosine(rows, pairs.candidate), temperature=0.01)
    (gradient,) = torch.autograd.grad(value.sum(), rows)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()
    assert value.min() > 1
