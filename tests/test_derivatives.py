"""Second derivatives, learned temperatures, and the transforms of ``torch.func``.

Hessian-vector products are compared with those of the reference loops, which torch differentiates
twice by itself, and with finite differences of the gradient where nothing in the loss is held
constant.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import (
    LowRankProjection,
    Pairs,
    alignment,
    angular_margin,
    attenuation_weight,
    consistency,
    cosine,
    curvature_weight,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
    margin_ratio,
    max_margin,
)
from tests import layouts, reference

Loss = Callable[..., Tensor]
NCE: dict[str, tuple[Loss, Loss, dict[str, Any]]] = {
    "info_nce": (info_nce, reference.info_nce, {}),
    "graphcl": (info_nce, reference.info_nce, {"positive_in_denominator": False}),
    "debiased_nce": (debiased_nce, reference.debiased_nce, {"tau_plus": 0.1}),
    "floored": (debiased_nce, reference.debiased_nce, {"tau_plus": 0.7}),
    "lowest": (debiased_nce, reference.debiased_nce, {"tau_plus": 0.7, "floor": "minimum"}),
    "hard_nce": (hard_nce, reference.hard_nce, {"tau_plus": 0.1, "beta": 0.7}),
    "detached": (
        hard_nce,
        reference.hard_nce,
        {"tau_plus": 0.1, "beta": 0.7, "detach_weights": True},
    ),
    "lowest hard": (
        hard_nce,
        reference.hard_nce,
        {"tau_plus": 0.6, "beta": 0.7, "floor": "minimum"},
    ),
}
SMOOTH: dict[str, tuple[Loss, dict[str, Any]]] = {
    "info_nce": (info_nce, {"temperature": 0.5}),
    "graphcl": (info_nce, {"temperature": 0.5, "positive_in_denominator": False}),
    "debiased_nce": (debiased_nce, {"temperature": 0.5, "tau_plus": 0.05}),
    "hard_nce": (hard_nce, {"temperature": 0.5, "tau_plus": 0.05, "beta": 1.0}),
    "margin_nce": (margin_nce, {"temperature": 0.5, "angular": 0.4, "subtractive": 0.2}),
    "alignment": (alignment, {}),
    "distance_polarization": (distance_polarization, {"lower": 0.0, "upper": 1.0}),
    "consistency": (consistency, {"temperature": 0.5}),
    "among anchors": (
        distance_polarization,
        {"lower": 0.0, "upper": 1.0, "among": "anchors", "reduction": "mean"},
    ),
}
WITH_TEMPERATURE = [name for name, (_, numbers) in SMOOTH.items() if "temperature" in numbers]


def directions(leaves: list[Tensor]) -> list[Tensor]:
    return [torch.arange(1, leaf.numel() + 1).view(leaf.shape).cos().to(leaf) for leaf in leaves]


def hessian_vector(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The Hessian of the weighted sum of ``value`` times a fixed vector."""
    upstream = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view(value.shape)
    total = (upstream * value).sum() / value.numel()
    options: Any = {"allow_unused": True, "materialize_grads": True}
    gradients = torch.autograd.grad(total, leaves, create_graph=True, **options)
    along = directions(leaves)
    product = torch.stack([(g * v).sum() for g, v in zip(gradients, along, strict=True)]).sum()
    if not product.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(product, leaves, **options))


def assert_same_curvature(got: list[Tensor], expected: list[Tensor]) -> None:
    for mine, other in zip(got, expected, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("loss", NCE)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_second_derivatives_are_those_of_the_loops(name: str, loss: str) -> None:
    function, loops, numbers = NCE[loss]
    case = layouts.make(name, 4, seed=1)
    mine, other = case.fresh(), case.fresh()
    pairs, layout = case.pairs(mine), case.layout(other)
    similarity = cosine(pairs.anchor, pairs.candidate)
    value = function(pairs, similarity, temperature=0.4, **numbers)
    cosines = reference.cosines(layout.anchor, layout.candidate)
    expected = loops(cosines, layout.positives, layout.negatives, temperature=0.4, **numbers)
    found = hessian_vector(value, mine)
    assert_same_curvature(found, hessian_vector(expected, other))
    assert max(float(x.abs().max()) for x in found) > 1e-4


@pytest.mark.parametrize("numbers", [{}, {"kernel": "linear"}, {"gamma": 2.0}], ids=str)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_second_derivatives_of_max_margin_keep_the_dual_weights_constant(
    name: str, numbers: dict[str, Any]
) -> None:
    case = layouts.make(name, 4, dim=4, seed=1)
    mine, other = case.fresh(), case.fresh()
    pairs = case.pairs(mine)
    value = max_margin(pairs, cosine(pairs.anchor, pairs.candidate), **numbers)
    expected = reference.max_margin(case.layout(other), **numbers)
    assert_same_curvature(hessian_vector(value, mine), hessian_vector(expected, other))


@pytest.mark.pairwise
@pytest.mark.parametrize("mean", [False, True], ids=["each anchor", "mean"])
@pytest.mark.parametrize("name", ["two views", "query key bank", "context window", "same label"])
@pytest.mark.parametrize("loss", SMOOTH)
def test_derivatives_of_both_orders_are_those_of_finite_differences(
    loss: str, name: str, mean: bool
) -> None:
    """A mean before the derivative hides from a backward pass that it is differentiated."""
    function, numbers = SMOOTH[loss]
    case = layouts.make(name, 3, dim=2, seed=1)

    def value(*leaves: Tensor) -> Tensor:
        pairs = case.pairs(list(leaves))
        losses = function(pairs, cosine(pairs.anchor, pairs.candidate), **numbers)
        return losses.mean() if mean else losses

    assert torch.autograd.gradcheck(value, case.fresh())
    assert torch.autograd.gradgradcheck(value, case.fresh())


@pytest.mark.parametrize("kernel", ["rbf", "linear", "tanh"])
def test_max_margin_by_finite_differences_where_the_weights_stay(kernel: str) -> None:
    case = layouts.make("query key", 4, dim=4)
    pairs = case.pairs(list(case.leaves))
    similarity = cosine(*case.leaves).mul(0.9).requires_grad_()

    def value(cosines: Tensor) -> Tensor:
        return max_margin(pairs, cosines, kernel=kernel, ridge=2.0)  # type: ignore[arg-type]

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


@pytest.mark.parametrize("temperature", [0.01, 0.5])
@pytest.mark.parametrize("loss", [*NCE, "margin_nce"])
def test_second_derivatives_are_finite_in_single_precision(loss: str, temperature: float) -> None:
    """Anchors without positives or negatives, and scores beyond the range of exp."""
    function, numbers = SMOOTH[loss] if loss == "margin_nce" else (NCE[loss][0], NCE[loss][2])
    numbers = {**numbers, "temperature": temperature}
    for name in ("masks", "two views", "documents"):
        case = layouts.make(name, 6, seed=2)
        leaves = [leaf.float().requires_grad_() for leaf in case.leaves]
        pairs = case.pairs(leaves)
        value = function(pairs, cosine(pairs.anchor, pairs.candidate), **numbers)
        assert all(torch.isfinite(item).all() for item in hessian_vector(value, leaves))


# Learned temperatures


@pytest.mark.parametrize("name", ["two views", "masks", "context window"])
@pytest.mark.parametrize("loss", NCE)
def test_a_learned_temperature_has_the_gradient_of_the_loops(name: str, loss: str) -> None:
    function, loops, numbers = NCE[loss]
    case = layouts.make(name, 5, seed=1)
    pairs, layout = case.pairs(list(case.leaves)), case.layout(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate)
    found = []
    for learned in (True, False):
        leaf = similarity.clone().requires_grad_()
        temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        if learned:
            value = function(pairs, leaf, temperature=temperature, **numbers)
        else:
            value = loops(
                leaf, layout.positives, layout.negatives, temperature=temperature, **numbers
            )
        leaves = [leaf, temperature]
        upstream = torch.linspace(0.5, 1.5, len(value), dtype=value.dtype)
        found.append((value.detach(), *layouts.gradients(value, upstream, leaves)))
        if learned:
            number = function(pairs, similarity, temperature=0.3, **numbers)
            torch.testing.assert_close(value, number, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
    assert float(found[0][2].abs()) > 1e-3


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


@pytest.mark.parametrize("name", ["two views", "query key bank", "context window", "masks"])
@pytest.mark.parametrize("loss", WITH_TEMPERATURE)
def test_transforms_of_torch_agree_with_its_plain_derivatives(loss: str, name: str) -> None:
    function, numbers = SMOOTH[loss]
    case = layouts.make(name, 4, seed=2)
    rows, *rest = case.leaves

    def mean(leaf: Tensor) -> Tensor:
        pairs = case.pairs([leaf, *rest])
        return function(pairs, cosine(pairs.anchor, pairs.candidate), **numbers).mean()

    leaf = rows.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mean(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(mean)(rows), gradient)
    hessian = torch.autograd.functional.hessian(mean, rows)
    torch.testing.assert_close(torch.func.hessian(mean)(rows), hessian)
    torch.testing.assert_close(
        torch.autograd.functional.hessian(mean, rows, vectorize=True), hessian
    )
    batch = torch.stack([rows, 2 * rows, rows.roll(1, 0)])
    torch.testing.assert_close(
        torch.func.vmap(mean)(batch), torch.stack([mean(rows) for rows in batch])
    )
    expected = torch.stack([torch.func.grad(mean)(rows) for rows in batch])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(mean))(batch), expected)
    twice = torch.func.jacfwd(torch.func.jacfwd(mean))(rows)
    torch.testing.assert_close(twice, hessian)
    together = torch.func.grad(lambda x: torch.func.vmap(mean)(x).sum())(batch)
    torch.testing.assert_close(together, expected)
