"""The margins: logits, weights, and gradients scaled while values stay as they are."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import (
    Pairs,
    angular_margin,
    attenuation_weight,
    cosine,
    curvature_weight,
    info_nce,
    margin_nce,
    query_key,
)
from tests import layouts, reference

SETTINGS: list[dict[str, Any]] = [
    {"angular": 0.3},
    {"angular": 1.6},
    {"angular": 3.1},
    {"subtractive": 0.4},
    {"angular": 0.5, "subtractive": 0.2},
    {"emphasis": 3.0},
    {"curvature": 0.7},
    {"curvature": 2.5, "emphasis": 2.0},
    {"curvature": 0.5, "curvature_form": "algorithm_3"},
    {"angular": 0.4, "ratio": "row"},
    {"angular": 0.4, "subtractive": 0.1, "ratio": "row", "emphasis": 1.5},
    {"subtractive": 0.3, "ratio": "positive"},
    {"angular": 0.4, "ratio": "positive", "emphasis": 2.0, "curvature": 1.0},
    {"attenuation": 0.5},
    {"attenuation": 1.0, "attenuation_scope": "positive"},
    {"angular": 0.2, "ratio": "row", "attenuation": 0.7, "emphasis": 1.2},
    {"angular": 0.2, "ratio": "positive", "attenuation": 0.7, "attenuation_scope": "positive"},
]


def loops(
    layout: reference.Layout, similarity: Tensor, softening: float = 1e-7, **numbers: Any
) -> tuple[Tensor, Tensor]:
    if "curvature" in numbers:
        numbers["curvature_exponent"] = numbers.pop("curvature")
    return reference.margin_nce(
        similarity, layout.positives, layout.negatives, softening=softening, **numbers
    )


def drawn(name: str, size: int = 5) -> tuple[Pairs, reference.Layout, Tensor]:
    """Pairs, their reference layout, and cosines that take a gradient."""
    case = layouts.make(name, size, seed=size)
    pairs = case.pairs(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate).requires_grad_()
    return pairs, case.layout(list(case.leaves)), similarity


@pytest.mark.pairwise
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("numbers", SETTINGS, ids=str)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_values_and_gradients_equal_the_written_out_ones(
    name: str, numbers: dict[str, Any], temperature: float
) -> None:
    for size in (1, 2, 5):
        pairs, layout, similarity = drawn(name, size)
        value = margin_nce(pairs, similarity, temperature=temperature, **numbers)
        expected, gradient = loops(layout, similarity.detach(), temperature=temperature, **numbers)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
        upstream = torch.linspace(0.5, 1.5, len(value), dtype=torch.float64)
        (got,) = torch.autograd.grad((upstream * value).sum(), similarity)
        torch.testing.assert_close(got, upstream[:, None] * gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("angular", [0.3, 1.6, 3.1])
def test_softening_the_sine_moves_the_equation_by_less_than_a_millionth(angular: float) -> None:
    """``cos(theta + m1)`` itself, by arc cosines, away from the angles 0 and pi."""
    pairs, layout, similarity = drawn("two views")
    value = margin_nce(pairs, similarity, temperature=1.0, angular=angular)
    expected, _ = loops(layout, similarity.detach(), 0.0, temperature=1.0, angular=angular)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    moved = angular_margin(pairs, similarity, margin=angular)[pairs.positive]
    exact = torch.cos(similarity[pairs.positive].arccos() + angular)
    torch.testing.assert_close(moved, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", layouts.MAKERS)
@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"emphasis": 1.0, "attenuation": 0.0},
        {"angular": 0.0, "subtractive": 0.0, "ratio": "row"},
        {"ratio": "positive"},
    ],
    ids=str,
)
def test_margins_of_zero_are_info_nce(name: str, numbers: dict[str, Any]) -> None:
    pairs, _, similarity = drawn(name)
    base = info_nce(pairs, similarity, temperature=0.3)
    value = margin_nce(pairs, similarity, temperature=0.3, **numbers)
    assert torch.equal(value, base)
    torch.testing.assert_close(
        torch.autograd.grad(value.sum(), similarity),
        torch.autograd.grad(base.sum(), similarity),
        rtol=1e-14,
        atol=1e-16,
    )


def test_figures_of_the_two_curvature_forms() -> None:
    """x = 0.25: .25 and .56 at c = 0.5, .99 and .89 at c = 2.5; equal at c = 1."""
    quarter = torch.tensor([math.cos(math.pi / 4)], dtype=torch.float64)
    for exponent, equation, listing in (
        (0.5, 0.25, 0.5625),
        (2.5, 0.9873, 0.8913),
        (1, 0.75, 0.75),
    ):
        weights = [
            float(curvature_weight(quarter, exponent=exponent, form=form))
            for form in ("equation_10", "algorithm_3")
        ]
        assert weights == pytest.approx([equation, listing], abs=1e-4)


def test_attenuation_is_capped_and_1_at_alpha_0() -> None:
    rows = torch.eye(3, dtype=torch.float64)
    pairs = query_key(rows, rows)
    similarity = cosine(rows, rows)
    assert (attenuation_weight(pairs, similarity, temperature=0.01, alpha=0.0) == 1).all()
    assert (attenuation_weight(pairs, similarity, temperature=0.01, alpha=1.0) == 100).all()
    half = attenuation_weight(pairs, torch.zeros(3, 3).double(), temperature=0.5, alpha=0.9)
    torch.testing.assert_close(half, torch.full((3,), 1 / 0.7, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numbers", SETTINGS, ids=str)
def test_slopes_are_finite_at_the_angles_0_and_pi(
    numbers: dict[str, Any], dtype: torch.dtype
) -> None:
    pairs, _, _ = drawn("query key")
    for value in (1.0, -1.0, 1.0000001, -1.0000001):
        similarity = torch.full((5, 5), value, dtype=dtype, requires_grad=True)
        for temperature in (0.01, 0.5):
            loss = margin_nce(pairs, similarity, temperature=temperature, **numbers)
            (gradient,) = torch.autograd.grad(loss.sum(), similarity)
            assert torch.isfinite(loss).all()
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("scope", ["row", "positive"])
def test_a_huge_ratio_stays_finite(scope: str) -> None:
    """At temperature 0.01 the two denominators lie up to exp(200) apart."""
    rows = torch.eye(2, 4, requires_grad=True)
    pairs = query_key(rows, rows)
    similarity = cosine(rows, rows)
    loss = margin_nce(
        pairs,
        similarity,
        temperature=0.01,
        angular=1.6,
        subtractive=1.0,
        ratio=scope,  # type: ignore[arg-type]
    )
    assert torch.equal(loss, info_nce(pairs, similarity, temperature=0.01))
    loss.sum().backward()
    assert torch.isfinite(rows.grad).all()
