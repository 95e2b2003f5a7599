"""Finite differences, learned temperatures, scaled gradients, and the transforms of ``torch.func``.

Gradients and Hessians are compared with those of the loops in the tests of each loss.
"""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import shared
from shared import (
    LowRankProjection,
    Objective,
    Pairs,
    angular_margin,
    attenuation_weight,
    cosine,
    curvature_weight,
    distance_polarization,
    margin_nce,
    margin_ratio,
    max_margin,
    term,
)
from tests.stages import layouts, reference

NCE: list[tuple[str, dict[str, Any]]] = [
    ("info_nce", {"temperature": 0.5}),
    ("info_nce", {"temperature": 0.5, "positive_in_denominator": False}),
    ("debiased_nce", {"temperature": 0.5, "tau_plus": 0.05}),
    ("hard_nce", {"temperature": 0.5, "tau_plus": 0.05, "beta": 1.0}),
    ("hard_nce", {"temperature": 0.5, "tau_plus": 0.6, "beta": 0.7, "floor": "minimum"}),
]
SMOOTH: list[tuple[str, dict[str, Any]]] = [
    *NCE[:4],
    ("margin_nce", {"temperature": 0.5, "angular": 0.4, "subtractive": 0.2}),
    ("consistency", {"temperature": 0.5}),
    ("alignment", {}),
    ("distance_polarization", {"lower": 0.0, "upper": 1.0}),
    ("distance_polarization", {"lower": 0.0, "upper": 1.0, "among": "anchors"}),
]


@pytest.mark.parametrize(("layout", "mean"), [("query key bank", True), ("same label", False)])
@pytest.mark.parametrize(("function", "numbers"), SMOOTH, ids=str)
def test_derivatives_of_both_orders_are_those_of_finite_differences(
    function: str, numbers: dict[str, Any], layout: str, mean: bool
) -> None:
    """A mean before the derivative hides from a backward pass that it is differentiated."""
    case = layouts.make(layout, 3, dim=2, seed=1)

    def value(*leaves: Tensor) -> Tensor:
        pairs = case.pairs(list(leaves))
        similarity = cosine(pairs.anchor, pairs.candidate)
        losses: Tensor = getattr(shared, function)(pairs, similarity, **numbers)
        return losses.mean() if mean else losses

    assert torch.autograd.gradcheck(value, case.fresh())
    assert torch.autograd.gradgradcheck(value, case.fresh())


@pytest.mark.parametrize("kernel", ["rbf", "linear", "tanh"])
def test_max_margin_by_finite_differences_where_the_weights_stay(kernel: Any) -> None:
    case = layouts.make("query key", 3, dim=4)
    pairs = case.pairs(list(case.leaves))
    similarity = cosine(*case.leaves).mul(0.9).requires_grad_()

    def value(cosines: Tensor) -> Tensor:
        return max_margin(pairs, cosines, kernel=kernel, ridge=2.0)

    assert torch.autograd.gradcheck(value, similarity)
    assert torch.autograd.gradgradcheck(value, similarity)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "l21"},
        {"norm": "nuclear"},
        {"norm": "none", "unit_features": True},
        {"form": "authors", "norm": "none"},
    ],
    ids=str,
)
def test_derivatives_of_the_projection(options: dict[str, Any]) -> None:
    """The nuclear norm away from equal singular values, where a second derivative is defined."""
    generator = torch.Generator().manual_seed(0)
    projection = LowRankProjection(3, alpha=0.7, **options).double()
    start = torch.randn(3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)

    def value(matrix: Tensor, features: Tensor) -> Tensor:
        result = torch.func.functional_call(projection, {"matrix": matrix}, (features,))
        penalty: Tensor = result[0]
        return penalty

    assert torch.autograd.gradcheck(value, (start, rows))
    assert torch.autograd.gradgradcheck(value, (start, rows))


def both_weights(pairs: Pairs, similarity: Tensor, numbers: dict[str, Any]) -> Tensor:
    """The factor of every similarity's gradient, (N, M)."""
    factor = torch.ones_like(similarity)
    by_curvature = curvature_weight(similarity, exponent=numbers.get("curvature") or 1.0)
    if "curvature" in numbers:
        factor = torch.where(pairs.positive, by_curvature, factor)
    factor = torch.where(pairs.positive, numbers.get("emphasis", 1.0) * factor, factor)
    if "attenuation" in numbers:
        alpha = numbers["attenuation"]
        weight = attenuation_weight(pairs, similarity, temperature=0.5, alpha=alpha)
        factor = factor * weight[:, None]
    if "ratio" in numbers:
        moved = angular_margin(pairs, similarity, margin=numbers["angular"])
        weight = margin_ratio(pairs, similarity, moved, temperature=0.5)[:, None]
        factor = torch.where(pairs.positive, factor * weight, factor)
    return factor.detach()


@pytest.mark.parametrize(
    "numbers",
    [
        {"emphasis": 3.0},
        {"curvature": 0.7},
        {"attenuation": 0.8},
        {"angular": 0.4, "ratio": "positive", "emphasis": 2.0},
    ],
    ids=str,
)
def test_a_scaled_gradient_scales_the_hessian_from_both_sides(numbers: dict[str, Any]) -> None:
    case = layouts.make("two views", 3)
    pairs, layout = case.pairs(list(case.leaves)), case.layout(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate).requires_grad_()
    factor = both_weights(pairs, similarity, numbers)
    plain = similarity.detach().clone().requires_grad_()
    losses = reference.info_nce(plain, layout.positives, layout.negatives, temperature=0.5)
    (slope,) = torch.autograd.grad(losses.sum(), plain, create_graph=True)
    along = torch.linspace(-1, 1, plain.numel(), dtype=plain.dtype).view(plain.shape)
    (curved,) = torch.autograd.grad((slope * factor * along).sum(), plain)

    value = margin_nce(pairs, similarity, temperature=0.5, **numbers)
    (gradient,) = torch.autograd.grad(value.sum(), similarity, create_graph=True)
    torch.testing.assert_close(gradient, factor * slope)
    (product,) = torch.autograd.grad((gradient * along).sum(), similarity)
    torch.testing.assert_close(product, factor * curved)
    assert (factor != 1).any()


# Learned temperatures


@pytest.mark.parametrize("layout", ["two views", "masks", "same label"])
@pytest.mark.parametrize(("function", "numbers"), NCE, ids=str)
def test_a_learned_temperature_has_the_gradient_of_the_loops(
    function: str, numbers: dict[str, Any], layout: str, core: Any
) -> None:
    case = layouts.make(layout, 5, seed=1)
    pairs, loops = case.pairs(list(case.leaves), core), case.layout(list(case.leaves))
    mine, other = (torch.tensor(0.3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    similarity = core.cosine(pairs.anchor, pairs.candidate)
    value = getattr(core, function)(pairs, similarity, **{**numbers, "temperature": mine})
    expected = reference.value(function, loops, **{**numbers, "temperature": other})
    found = layouts.differentiated(value, [mine], 2)
    layouts.assert_close(found, layouts.differentiated(expected, [other], 2))
    assert float(found[1].abs()) > 1e-3


def test_a_learned_temperature_gets_the_derivative_of_the_value_under_scaled_gradients() -> None:
    case = layouts.make("two views", 4)
    pairs = case.pairs(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate)
    temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    for numbers in (
        {"emphasis": 2.0, "attenuation": 0.7},
        {"angular": 0.3, "ratio": "row"},
        {"angular": 0.3, "ratio": "positive", "curvature": 0.7},
    ):

        def value(t: Tensor, numbers: dict[str, Any] = numbers) -> Tensor:
            return margin_nce(pairs, similarity, temperature=t, **numbers)

        assert torch.autograd.gradcheck(value, (temperature,))


# torch.func


@pytest.mark.parametrize("layout", ["two views", "masks"])
@pytest.mark.parametrize(
    ("function", "numbers"),
    [*NCE, *SMOOTH[4:6], ("distance_polarization", {}), ("max_margin", {})],
    ids=str,
)
def test_transforms_of_torch_agree_with_its_plain_derivatives(
    function: str, numbers: dict[str, Any], layout: str, core: Any
) -> None:
    case = layouts.make(layout, 4, seed=2)
    rows, *rest = case.leaves

    def mean(leaf: Tensor) -> Tensor:
        pairs = case.pairs([leaf, *rest], core)
        similarity = core.cosine(pairs.anchor, pairs.candidate)
        losses: Tensor = getattr(core, function)(pairs, similarity, **numbers)
        return losses.mean()

    leaf = rows.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mean(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(mean)(rows), gradient)
    hessian = torch.autograd.functional.hessian(mean, rows)
    torch.testing.assert_close(torch.func.hessian(mean)(rows), hessian)
    vectorized = torch.autograd.functional.hessian(mean, rows, vectorize=True)
    torch.testing.assert_close(vectorized, hessian)
    batch = torch.stack([rows, rows.roll(1, 0)])
    expected = torch.stack([mean(rows) for rows in batch])
    gradients = torch.stack([torch.func.grad(mean)(rows) for rows in batch])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap of max_margin
        torch.testing.assert_close(torch.func.vmap(mean)(batch), expected)
        together = torch.func.grad(lambda x: torch.func.vmap(mean)(x).sum())(batch)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(mean))(batch), gradients)
    torch.testing.assert_close(together, gradients)


def test_an_objective_with_a_penalty_has_the_hessian_of_its_plain_derivatives() -> None:
    objective = Objective(term(max_margin), (term(distance_polarization, lower=0.0, upper=1.0),))
    criterion = objective.build(3)
    rows = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.autograd.functional.hessian(lambda x: criterion.of_views(*x), rows)
    found = torch.func.hessian(lambda x: criterion.of_views(*x))(rows)
    torch.testing.assert_close(found, expected)
