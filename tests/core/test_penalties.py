from typing import Any

import pytest
import torch

from shared import consistency, cosine, distance_polarization, query_key
from tests.stages import layouts

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


def test_band_statistics_of_several_blocks_of_rows_and_of_no_negatives(core: Any) -> None:
    rows = torch.randn(600, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = core.query_key(rows, rows)
    similarity = core.cosine(rows, rows)
    assert len(core.pairs.blocks_of_rows(similarity)) > 1
    found = core.band_statistics(pairs, similarity, lower=0.2, upper=0.7)
    cosines = similarity[pairs.negative]
    inside = (0.2 < (1 - cosines) / 2) & ((1 - cosines) / 2 < 0.7)
    torch.testing.assert_close(
        found["share_in_band"].double(), inside.double().mean(), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(found["mean_cosine"], cosines.mean())
    found = core.band_statistics(core.query_key(rows[:1], rows[:1]), similarity[:1, :1])
    assert [float(each) for each in found.values()] == [0.0, 0.0]


def test_the_slope_at_the_ends_of_the_band_is_that_inside(core: Any) -> None:
    rows = torch.eye(2, dtype=torch.float64)
    for lower, upper, end in ((0.25, 0.5, 0.5), (0.25, 0.5, 0.0)):
        similarity = torch.full((2, 2), end, dtype=torch.float64, requires_grad=True)
        value = core.distance_polarization(
            core.query_key(rows, rows), similarity, lower=lower, upper=upper
        )
        slopes = [
            torch.autograd.grad(value.sum(), similarity, retain_graph=True, create_graph=again)[0]
            for again in (False, True)
        ]
        assert float(slopes[0].abs().max()) > 0
        torch.testing.assert_close(*slopes)


def test_consistency_is_finite_at_a_small_temperature_and_opposite_views() -> None:
    torch.manual_seed(0)
    rows = torch.randn(4, 3, requires_grad=True)
    pairs = query_key(rows, -rows, torch.randn(6, 3), in_batch=False)
    value = consistency(pairs, cosine(rows, pairs.candidate), temperature=0.01)
    (gradient,) = torch.autograd.grad(value.sum(), rows)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()
    assert value.min() > 1
