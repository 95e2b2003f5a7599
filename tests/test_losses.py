"""The losses against their reference loops, at their limits, and at the edges of their inputs.

The support vector machines behind ``max_margin`` have a file of their own.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import (
    Objective,
    Pairs,
    alignment,
    context_window,
    cosine,
    debiased_nce,
    hard_nce,
    info_nce,
    margin_nce,
    max_margin,
    query_key,
    term,
    two_views,
)
from shared.pairs import blocks_of_rows
from tests import layouts, reference

Loss = Callable[..., Tensor]

NCE: list[tuple[Loss, Loss, dict[str, Any]]] = [
    (info_nce, reference.info_nce, {}),
    (info_nce, reference.info_nce, {"positive_in_denominator": False}),
    (debiased_nce, reference.debiased_nce, {"tau_plus": 0.0}),
    (debiased_nce, reference.debiased_nce, {"tau_plus": 0.1}),
    (debiased_nce, reference.debiased_nce, {"tau_plus": 0.7}),
    (debiased_nce, reference.debiased_nce, {"tau_plus": 0.1, "floor": "minimum"}),
    (hard_nce, reference.hard_nce, {"tau_plus": 0.0, "beta": 1.0}),
    (hard_nce, reference.hard_nce, {"tau_plus": 0.1, "beta": 0.5}),
    (hard_nce, reference.hard_nce, {"tau_plus": 0.5, "beta": 2.0}),
    (hard_nce, reference.hard_nce, {"tau_plus": 0.1, "beta": 1.0, "detach_weights": True}),
    (hard_nce, reference.hard_nce, {"tau_plus": 0.3, "beta": 1.0, "floor": "minimum"}),
]
# One setting of each loss, for properties that all of them share.
LOSSES: dict[str, tuple[Loss, dict[str, Any]]] = {
    "info_nce": (info_nce, {"temperature": 0.5}),
    "graphcl": (info_nce, {"temperature": 0.5, "positive_in_denominator": False}),
    "debiased_nce": (debiased_nce, {"temperature": 0.5, "tau_plus": 0.1}),
    "hard_nce": (hard_nce, {"temperature": 0.5, "tau_plus": 0.1, "beta": 1.0}),
    "hard_nce, detached": (
        hard_nce,
        {"temperature": 0.5, "tau_plus": 0.1, "beta": 1.0, "detach_weights": True},
    ),
    "angular": (margin_nce, {"temperature": 0.5, "angular": 0.3}),
    "subtractive": (margin_nce, {"temperature": 0.5, "subtractive": 0.3}),
    "emphasis": (margin_nce, {"temperature": 0.5, "emphasis": 3.0}),
    "curvature": (margin_nce, {"temperature": 0.5, "curvature": 0.7}),
    "ratio": (margin_nce, {"temperature": 0.5, "angular": 0.3, "ratio": "row"}),
    "ratio, positive": (margin_nce, {"temperature": 0.5, "angular": 0.3, "ratio": "positive"}),
    "attenuation": (margin_nce, {"temperature": 0.5, "attenuation": 0.8}),
    "attenuation, positive": (
        margin_nce,
        {"temperature": 0.5, "attenuation": 1.0, "attenuation_scope": "positive"},
    ),
    "alignment": (alignment, {}),
    "alignment, curvature": (alignment, {"curvature": 0.7}),
    "max_margin": (max_margin, {}),
    "projected gradient": (max_margin, {"solver": "projected_gradient"}),
    "linear kernel": (max_margin, {"kernel": "linear"}),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize(("loss", "loops", "numbers"), NCE)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_nce_losses_equal_their_loops(
    name: str, loss: Loss, loops: Loss, numbers: dict[str, Any], temperature: float
) -> None:
    for size in (1, 2, 5):
        layouts.assert_agreement(
            layouts.make(name, size, seed=size),
            lambda pairs, _: loss(
                pairs,
                cosine(pairs.anchor, pairs.candidate),
                temperature=temperature,
                **numbers,
            ),
            lambda layout, _: loops(
                reference.cosines(layout.anchor, layout.candidate),
                layout.positives,
                layout.negatives,
                temperature=temperature,
                **numbers,
            ),
        )


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"curvature": 0.7},
        {"curvature": 2.5},
        {"curvature": 2.5, "curvature_form": "algorithm_3"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_alignment_equals_its_loops_in_value_and_gradient(
    name: str, numbers: dict[str, Any]
) -> None:
    case = layouts.make(name, 5)
    layout = case.layout(list(case.leaves))
    similarity = reference.cosines(layout.anchor, layout.candidate).requires_grad_()
    value = alignment(case.pairs(list(case.leaves)), similarity, **numbers)
    renamed = {"curvature_exponent" if k == "curvature" else k: v for k, v in numbers.items()}
    expected, slope = reference.alignment(similarity.detach(), layout.positives, **renamed)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(value.sum(), similarity)
    torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=1e-12)


def test_the_floor_rules_where_the_correction_takes_everything() -> None:
    """A positive so close that the corrected sum is negative: value from the floor, no gradient."""
    similarity = torch.tensor([[1.0, -0.9, -0.8]], dtype=torch.float64, requires_grad=True)
    rows = torch.zeros(1, 1, dtype=torch.float64)
    positive = torch.tensor([[True, False, False]])
    pairs = Pairs(rows, torch.zeros(3, 1, dtype=torch.float64), positive, ~positive)
    loss = debiased_nce(pairs, similarity, temperature=0.5, tau_plus=0.3)
    floor, own = 2 * math.exp(-2), math.exp(2)
    assert float(loss.detach()) == pytest.approx(-math.log(own / (own + floor)), rel=1e-14)
    loss.sum().backward()
    share = floor / (own + floor)
    torch.testing.assert_close(
        similarity.grad, torch.tensor([[-2 * share, 0.0, 0.0]], dtype=torch.float64)
    )


def test_blocks_of_rows_change_nothing() -> None:
    """More rows than one block holds; the reference here is torch's own log-sum-exp."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2100, 4, generator=generator, dtype=torch.float64)
    bank = torch.randn(100, 4, generator=generator, dtype=torch.float64)
    results = []
    for own in (True, False):
        leaf = query.clone().requires_grad_()
        pairs = query_key(leaf, query, bank)
        scores = cosine(pairs.anchor, pairs.candidate)
        assert len(blocks_of_rows(scores)) > 1
        if own:
            loss = info_nce(pairs, scores, temperature=0.2)
        else:
            loss = torch.logsumexp(scores / 0.2, 1) - scores.diagonal() / 0.2
        results.append((loss, torch.autograd.grad(loss.sum(), leaf)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


# Limits


def similarity_of(name: str, size: int = 5) -> tuple[Pairs, Tensor]:
    case = layouts.make(name, size)
    pairs = case.pairs(list(case.leaves))
    return pairs, cosine(pairs.anchor, pairs.candidate)


def value_and_gradient(
    loss: Loss, pairs: Pairs, similarity: Tensor, **numbers: Any
) -> tuple[Tensor, Tensor]:
    similarity = similarity.clone().requires_grad_()
    value = loss(pairs, similarity, **numbers)
    return value.detach(), torch.autograd.grad(value.sum(), similarity)[0]


@pytest.mark.parametrize("name", ["two views", "query key bank"])
def test_without_debiasing_and_hardness_it_is_info_nce(name: str) -> None:
    pairs, similarity = similarity_of(name)
    torch.testing.assert_close(
        value_and_gradient(hard_nce, pairs, similarity, temperature=0.3, tau_plus=0.0, beta=0.0),
        value_and_gradient(info_nce, pairs, similarity, temperature=0.3),
        rtol=1e-12,
        atol=1e-14,
    )


@pytest.mark.parametrize("name", layouts.MAKERS)
def test_without_hardness_it_is_debiased(name: str) -> None:
    pairs, similarity = similarity_of(name)
    results = [
        value_and_gradient(loss, pairs, similarity, temperature=0.3, tau_plus=0.2, **numbers)
        for loss, numbers in (
            (debiased_nce, {}),
            (hard_nce, {"beta": 0.0}),
            (hard_nce, {"beta": 1e-9}),
        )
    ]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    torch.testing.assert_close(results[2], results[0], rtol=1e-7, atol=1e-7)


# Edges


def edge_embeddings(kind: str) -> tuple[Tensor, Tensor]:
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows = torch.nn.functional.normalize(rows, dim=1)
    if kind == "identical":
        return rows[:1].expand(4, 3).clone(), rows[:1].expand(4, 3).clone()
    if kind == "antipodal":
        return rows, -rows
    if kind == "zero rows":
        return rows * torch.tensor([[1.0], [0.0], [1.0], [0.0]], dtype=torch.float64), rows
    if kind == "positives equal":
        return rows, rows.clone()
    if kind == "one pair":
        return rows[:1], rows[1:2]
    assert kind == "two pairs"
    return rows[:2], rows[2:]


EDGES = ["identical", "antipodal", "zero rows", "positives equal", "one pair", "two pairs"]
BUILDERS: dict[str, Callable[[Tensor, Tensor], Pairs]] = {
    "two_views": two_views,
    "query_key": query_key,
    "context_window": context_window,
}
LOOPS: dict[str, Callable[..., Tensor]] = {
    "info_nce": reference.info_nce,
    "debiased_nce": reference.debiased_nce,
    "hard_nce": reference.hard_nce,
}


def expected_of(loss: Loss, layout: reference.Layout, **numbers: Any) -> Tensor:
    """Values of the loops, (N,)."""
    if loss is max_margin:
        solver = numbers.pop("solver", "closed_form")
        if solver == "projected_gradient":
            return reference.max_margin(layout, lambda d: reference.dual_exact(d, 100), **numbers)
        return reference.max_margin(layout, **numbers)
    similarity = reference.cosines(layout.anchor, layout.candidate)
    if "curvature" in numbers:
        numbers["curvature_exponent"] = numbers.pop("curvature")
    if loss is alignment:
        return reference.alignment(similarity, layout.positives, **numbers)[0]
    if loss is margin_nce:
        return reference.margin_nce(similarity, layout.positives, layout.negatives, **numbers)[0]
    return LOOPS[loss.__name__](similarity, layout.positives, layout.negatives, **numbers)


def expected_layout(builder: str, first: Tensor, second: Tensor) -> reference.Layout:
    if builder == "context_window":
        return reference.context_window(first, second, 1)
    return getattr(reference, builder)(first, second)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize("name", LOSSES)
def test_edges_are_finite_and_equal_the_loops(
    name: str, kind: str, builder: str, dtype: torch.dtype
) -> None:
    """1e-9 in float64, and 1e-4 of the largest value in float32."""
    loss, numbers = LOSSES[name]
    exact = edge_embeddings(kind)
    first, second = (rows.to(dtype, copy=True).requires_grad_() for rows in exact)
    pairs = BUILDERS[builder](first, second)
    value = loss(pairs, cosine(pairs.anchor, pairs.candidate), **numbers)
    expected = expected_of(loss, expected_layout(builder, *exact), **numbers)
    scale = max(1.0, float(expected.abs().max()))
    # At the angles 0 and pi sines are softened (1e-7 under the root), in ours and in the loops;
    # the projected gradient has done 50 steps, the loops solve the box QP.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    if name == "projected gradient":
        tolerance = max(tolerance, 1e-6)
    torch.testing.assert_close(value.double(), expected, rtol=0, atol=tolerance * scale)
    if value.requires_grad:
        value.sum().backward()
        for rows in (first, second):
            assert rows.grad is None or torch.isfinite(rows.grad).all()


@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize(
    "name", [name for name, (_, numbers) in LOSSES.items() if "temperature" in numbers]
)
def test_temperature_one_hundredth_in_single_precision(name: str, kind: str) -> None:
    """Scores reach +-100, beyond the range of exp in float32; the loops run in float64."""
    loss, numbers = LOSSES[name]
    numbers = {**numbers, "temperature": 0.01}
    exact = edge_embeddings(kind)
    first, second = (rows.float().requires_grad_() for rows in exact)
    pairs = two_views(first, second)
    value = loss(pairs, cosine(pairs.anchor, pairs.candidate), **numbers)
    expected = expected_of(loss, reference.two_views(*exact), **numbers)
    # A cosine is known to 1e-7, a score to 1e-5; the angular margin at angle 0 to more.
    tolerance = 3e-2 if "angular" in numbers else 1e-3
    torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=tolerance)
    value.sum().backward()
    assert torch.isfinite(first.grad).all()
    assert torch.isfinite(second.grad).all()


@pytest.mark.parametrize("temperature", [0.01, 0.5])
@pytest.mark.parametrize("name", LOSSES)
def test_bfloat16_embeddings_are_lifted(name: str, temperature: float) -> None:
    """The criterion computes in float32 whatever the embeddings are stored in."""
    loss, numbers = LOSSES[name]
    if "temperature" in numbers:
        numbers = {**numbers, "temperature": temperature}
    generator = torch.Generator().manual_seed(2)
    stored = [torch.randn(6, 4, generator=generator).bfloat16() for _ in range(2)]
    criterion = Objective(term(loss, **numbers)).build(4)
    leaves = [rows.clone().requires_grad_() for rows in stored]
    value, _ = criterion(two_views(*leaves))
    value.backward()
    exact = [rows.double().requires_grad_() for rows in stored]
    expected, _ = criterion(two_views(*exact))
    expected.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-4)
    for mine, other in zip(leaves, exact, strict=True):
        assert mine.grad.dtype == torch.bfloat16
        scale = float(other.grad.abs().max())
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=0, atol=1e-2 * scale)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", LOSSES)
def test_embeddings_that_are_not_finite_are_an_error_that_names_the_step(
    name: str, bad: float
) -> None:
    loss, numbers = LOSSES[name]
    criterion = Objective(term(loss, **numbers)).build(3)
    rows = torch.randn(5, 3)
    broken = rows.clone()
    broken[2, 1] = bad
    for pairs in (two_views(broken, rows), query_key(rows, broken), query_key(broken, rows)):
        with pytest.raises(FloatingPointError, match="embeddings are NaN or infinite at step 12"):
            criterion(pairs, step=12)
