"""The margins: logits, weights, and gradients scaled while values stay as they are."""

import math
from typing import Any

import pytest
import torch

from shared import angular_margin, cosine, info_nce, margin_nce, query_key
from tests.stages import layouts, reference

SETTINGS: list[dict[str, Any]] = [
    {"angular": 0.5, "subtractive": 0.2},
    {"angular": 3.1},
    {"emphasis": 3.0},
    {"curvature": 2.5, "emphasis": 2.0},
    {"curvature": 0.5, "curvature_form": "algorithm_3"},
    {"angular": 0.4, "subtractive": 0.1, "ratio": "row", "emphasis": 1.5},
    {"angular": 0.4, "ratio": "positive", "emphasis": 2.0, "curvature": 1.0},
    {"attenuation": 0.5},
    {"angular": 0.2, "ratio": "row", "attenuation": 0.7, "emphasis": 1.2},
    {"subtractive": 0.3, "ratio": "positive", "attenuation": 1.0, "attenuation_scope": "positive"},
]


@pytest.mark.parametrize("layout", ["two views", "query key bank", "same label", "masks"])
@pytest.mark.parametrize("numbers", SETTINGS, ids=str)
def test_values_and_gradients_equal_the_written_out_ones(
    numbers: dict[str, Any], layout: str, core: Any
) -> None:
    layouts.assert_equals_loops("margin_nce", layout, core, temperature=0.4, **numbers)


@pytest.mark.parametrize("angular", [0.3, 1.6, 3.1])
def test_softening_the_sine_moves_the_equation_by_less_than_a_millionth(angular: float) -> None:
    """``cos(theta + m1)`` itself, by arc cosines, away from the angles 0 and pi."""
    case = layouts.make("two views", 5, seed=5)
    pairs, layout = case.pairs(list(case.leaves)), case.layout(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate)
    moved = angular_margin(pairs, similarity, margin=angular)[pairs.positive]
    exact = torch.cos(similarity[pairs.positive].arccos() + angular)
    torch.testing.assert_close(moved, exact, rtol=0, atol=1e-6)
    where = layout.positives, layout.negatives
    numbers = {"temperature": 1.0, "angular": angular}
    expected, _ = reference.margin_nce(similarity, *where, softening=0.0, **numbers)
    value = margin_nce(pairs, similarity, **numbers)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("numbers", [{}, {"ratio": "row"}, {"ratio": "positive"}], ids=str)
def test_margins_of_zero_are_info_nce(numbers: dict[str, Any]) -> None:
    case = layouts.make("masks", 5)
    pairs = case.pairs(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate).requires_grad_()
    value, base = (
        layouts.differentiated(loss(pairs, similarity, temperature=0.3, **options), [similarity])
        for loss, options in ((margin_nce, numbers), (info_nce, {}))
    )
    assert torch.equal(value[0], base[0])
    torch.testing.assert_close(value[1], base[1], rtol=1e-14, atol=1e-16)


def test_figures_of_the_two_curvature_forms(core: Any) -> None:
    """x = 0.25: .25 and .56 at c = 0.5, .99 and .89 at c = 2.5; equal at c = 1."""
    quarter = torch.tensor([math.cos(math.pi / 4)], dtype=torch.float64)
    for exponent, equation, listing in (
        (0.5, 0.25, 0.5625),
        (2.5, 0.9873, 0.8913),
        (1, 0.75, 0.75),
    ):
        weights = [
            float(core.curvature_weight(quarter, exponent=exponent, form=form))
            for form in ("equation_10", "algorithm_3")
        ]
        assert weights == pytest.approx([equation, listing], abs=1e-4)


@pytest.mark.parametrize("margin", [math.nan, math.inf, "0.1"])
def test_a_margin_that_is_no_number_is_refused(margin: Any, core: Any) -> None:
    pairs = core.query_key(torch.eye(3), torch.eye(3))
    for function in (core.angular_margin, core.subtractive_margin):
        with pytest.raises(ValueError, match="margin is a finite number; got"):
            function(pairs, torch.eye(3), margin=margin)


def test_attenuation_is_capped_and_1_at_alpha_0(core: Any) -> None:
    rows = torch.eye(3, dtype=torch.float64)
    pairs = core.query_key(rows, rows)
    weight = core.attenuation_weight
    assert (weight(pairs, rows, temperature=0.01, alpha=0.0) == 1).all()
    assert (weight(pairs, rows, temperature=0.01, alpha=1.0) == 100).all()
    half = weight(pairs, torch.zeros(3, 3).double(), temperature=torch.tensor(0.5), alpha=0.9)
    torch.testing.assert_close(half, torch.full((3,), 1 / 0.7, dtype=torch.float64))


def test_the_ratio_of_denominators_is_capped_and_1_without_candidates(core: Any) -> None:
    rows = torch.eye(3, dtype=torch.float64)
    none = torch.zeros(3, 3, dtype=torch.bool)
    others = torch.ones(3, 3, dtype=torch.bool).triu(1)
    pairs = core.Pairs(rows, rows, none, others)
    ratio = core.margin_ratio(pairs, rows, rows - 1, temperature=0.01)
    assert ratio.tolist() == [1e6, 1e6, 1.0]


def test_weights_are_constants_for_a_learned_temperature_too(core: Any) -> None:
    rows, temperature = torch.eye(3), torch.tensor(0.5, requires_grad=True)
    weight = core.attenuation_weight(
        core.query_key(rows, rows), rows, temperature=temperature, alpha=0.9
    )
    assert not weight.requires_grad
    weight = core.margin_ratio(
        core.query_key(rows, rows), rows, rows - 0.1, temperature=temperature
    )
    assert not weight.requires_grad
    assert not core.curvature_weight(rows.requires_grad_(), exponent=0.7).requires_grad


@pytest.mark.parametrize("numbers", SETTINGS, ids=str)
def test_slopes_are_finite_at_the_angles_0_and_pi(numbers: dict[str, Any], core: Any) -> None:
    pairs = core.query_key(torch.eye(5), torch.eye(5))
    for value in (1.0, -1.0, 1.0000001, -1.0000001):
        for dtype, temperature in ((torch.float32, 0.01), (torch.float64, 0.5)):
            similarity = torch.full((5, 5), value, dtype=dtype, requires_grad=True)
            loss = core.margin_nce(pairs, similarity, temperature=temperature, **numbers)
            for found in layouts.differentiated(loss, [similarity]):
                assert torch.isfinite(found).all()


@pytest.mark.parametrize("cosine", [1.0, -1.0])
def test_the_slope_at_the_angles_0_and_pi_is_that_of_the_softened_sine(
    cosine: float, core: Any
) -> None:
    pair = torch.eye(2, dtype=torch.float64)[:1]
    similarity = torch.full((1, 1), cosine, dtype=torch.float64, requires_grad=True)
    core.angular_margin(core.query_key(pair, pair), similarity, margin=0.2).sum().backward()
    assert similarity.grad is not None
    expected = math.cos(0.2) + math.sin(0.2) * cosine / math.sqrt(1e-7)
    assert float(similarity.grad) == pytest.approx(expected)


@pytest.mark.parametrize("scope", ["row", "positive"])
def test_a_huge_ratio_stays_finite(scope: Any) -> None:
    """At temperature 0.01 the two denominators lie up to exp(200) apart."""
    rows = torch.eye(2, 4, requires_grad=True)
    pairs = query_key(rows, rows)
    margins: dict[str, Any] = {"angular": 1.6, "subtractive": 1.0, "ratio": scope}
    loss = margin_nce(pairs, cosine(rows, rows), temperature=0.01, **margins)
    assert torch.equal(loss, info_nce(pairs, cosine(rows, rows), temperature=0.01))
    loss.sum().backward()
    assert torch.isfinite(rows.grad).all()
