"""``max_margin``: its dual solvers against one dense problem for each anchor."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shared import Pairs, cosine, max_margin, query_key, svm, two_views
from shared.svm import dual_weights
from tests import layouts, reference

DEFAULTS: dict[str, Any] = {
    "gamma": 0.5,
    "cost": 100.0,
    "ridge": 0.1,
    "kernel": "rbf",
    "offset": 0.0,
    "solver": "closed_form",
    "steps": 50,
    "step_size": None,
    "start": "closed_form",
    "unit_diagonal": False,
}
KERNELS: list[dict[str, Any]] = [
    {"gamma": 0.02},
    {"gamma": 0.5},
    {"gamma": 25.0},
    {"kernel": "linear"},
    {"kernel": "linear", "unit_diagonal": True},
    {"kernel": "tanh", "gamma": 1.5},
    {"kernel": "tanh", "gamma": 1.5, "unit_diagonal": True},
    {"kernel": "tanh", "gamma": 1.0, "offset": 0.4, "unit_diagonal": True},
    {"ridge": 1e-3},
    {"ridge": 2.0, "gamma": 2.0},
    {"cost": 0.5},
    {"cost": math.inf, "gamma": 2.0},
]
OF_KERNEL = ("gamma", "ridge", "kernel", "offset", "unit_diagonal")


def weights(pairs: Pairs, cosines: Tensor | None = None, **numbers: Any) -> Tensor:
    among = cosine(pairs.candidate, pairs.candidate) if cosines is None else cosines
    return dual_weights(pairs, among, **{**DEFAULTS, **numbers})


def expected_weights(
    layout: reference.Layout, solve: reference.Solve | None = None, **numbers: Any
) -> Tensor:
    numbers = {**DEFAULTS, **numbers}
    cost = numbers["cost"]
    return reference.dual_weights(
        reference.cosines(layout.candidate, layout.candidate),
        layout.positives,
        layout.negatives,
        solve or (lambda delta: reference.dual_closed_form(delta, cost)),
        **{name: numbers[name] for name in OF_KERNEL},
    )


def drawn(name: str, size: int, spread: float = 1.0) -> tuple[Pairs, reference.Layout]:
    """Random rows, or a nearly collapsed embedding where the spread is small."""
    case = layouts.make(name, size, dim=4, seed=size)
    leaves = [torch.ones(4, dtype=torch.float64) + spread * leaf for leaf in case.leaves]
    if spread == 1:
        leaves = list(case.leaves)
    return case.pairs(leaves), case.layout(leaves)


# The loss as a whole


@pytest.mark.parametrize("numbers", KERNELS, ids=str)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_closed_form_loss_and_gradient_equal_the_loops(name: str, numbers: dict[str, Any]) -> None:
    for size in (1, 2, 6):
        layouts.assert_agreement(
            layouts.make(name, size, dim=4, seed=size),
            lambda pairs, _: max_margin(pairs, cosine(pairs.anchor, pairs.candidate), **numbers),
            lambda layout, _: reference.max_margin(layout, **numbers),
        )


@pytest.mark.parametrize("solver", ["closed_form", "projected_gradient", "exact"])
@pytest.mark.parametrize("name", ["two views", "query key bank", "documents", "masks"])
def test_the_gradient_is_that_of_fixed_weights(name: str, solver: str) -> None:
    case = layouts.make(name, 5, dim=4)
    mine, other = case.fresh(), case.fresh()
    pairs = case.pairs(mine)
    loss = max_margin(pairs, cosine(pairs.anchor, pairs.candidate), solver=solver)  # type: ignore[arg-type]
    same = case.pairs(other)
    fixed = weights(same, solver=solver)
    assert not fixed.requires_grad
    expected = (fixed * torch.exp(cosine(same.anchor, same.candidate) - 1)).sum(1)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-10)
    for got, want in zip(
        torch.autograd.grad(loss.sum(), mine, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected.sum(), other, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_with_views_exchanged_it_is_the_program_of_the_authors() -> None:
    """Row i's machine: first view i against the other first views, seen from second view i."""
    first, second = torch.randn(
        2, 5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    pairs = query_key(second, first)
    loss = max_margin(pairs, cosine(second, first), gamma=2.0)
    points = torch.nn.functional.normalize(first, dim=1)
    views = torch.nn.functional.normalize(second, dim=1)
    for i in range(5):
        rest = [j for j in range(5) if j != i]
        kernel = torch.exp(-2 * (points[:, None] - points[None]).square().sum(2))
        delta = 1 + kernel[rest][:, rest] - kernel[i, rest][:, None] - kernel[i, rest][None, :]
        delta += 0.1 * torch.eye(4, dtype=torch.float64)
        alpha = torch.linalg.solve(delta, torch.full((4,), 2.0, dtype=torch.float64)).clamp(0, 100)
        seen = torch.exp(-2 * (points - views[i]).square().sum(1))
        expected = alpha @ seen[rest] - alpha.sum() * seen[i]
        assert float(loss[i]) == pytest.approx(float(expected), rel=1e-10)


# The closed form


@pytest.mark.parametrize("gamma", [0.02, 0.5, 2.0])
@pytest.mark.parametrize(("name", "size"), [("query key", 16), ("second view", 8)])
def test_closed_form_on_collapsed_features(name: str, size: int, gamma: float) -> None:
    pairs, layout = drawn(name, size, spread=0.01)
    assert 0.999 < float(cosine(pairs.candidate, pairs.candidate).min()) < 1
    expected = expected_weights(layout, gamma=gamma, cost=1e4)
    scale = float(expected.abs().max())
    assert scale > 10
    got = weights(pairs, gamma=gamma, cost=1e4)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10 * scale)
    single = Pairs(pairs.anchor.float(), pairs.candidate.float(), pairs.positive, pairs.negative)
    got = weights(single, gamma=gamma, cost=1e4)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-3 * scale)


@pytest.mark.parametrize("numbers", KERNELS, ids=str)
def test_closed_form_in_single_precision(numbers: dict[str, Any]) -> None:
    pairs, layout = drawn("second view", 8)
    single = Pairs(pairs.anchor.float(), pairs.candidate.float(), pairs.positive, pairs.negative)
    expected = expected_weights(layout, **numbers)
    torch.testing.assert_close(
        weights(single, **numbers).double(),
        expected,
        rtol=0,
        atol=1e-4 * float(expected.abs().max()),
    )


@pytest.mark.parametrize("name", ["query key", "second view", "documents"])
@pytest.mark.parametrize("solver", ["closed_form", "projected_gradient"])
def test_a_constant_added_to_the_kernel_changes_nothing(name: str, solver: str) -> None:
    pairs, layout = drawn(name, 6)
    cosines = cosine(pairs.candidate, pairs.candidate)
    torch.testing.assert_close(
        weights(pairs, cosines, kernel="linear", solver=solver),
        weights(pairs, cosines + 1, kernel="linear", solver=solver),
        rtol=1e-9,
        atol=1e-10,
    )
    torch.testing.assert_close(
        weights(pairs, cosines + 5, kernel="linear"),
        expected_weights(layout, kernel="linear"),
        rtol=1e-9,
        atol=1e-10,
    )


@pytest.mark.parametrize("size", [1, 256, 601])
def test_inversion_by_blocks(size: int) -> None:
    points = torch.randn(size, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = points @ points.T + 0.1 * torch.eye(size, dtype=torch.float64)  # inverse: up to 10
    inverse = matrix.clone()
    svm._invert_definite(inverse)
    torch.testing.assert_close(inverse, torch.linalg.inv(matrix), rtol=0, atol=1e-8)
    matrix[-1, -1] = -1.0  # no longer definite
    svm._invert_definite(matrix)
    assert matrix.isnan().all()


# The other solvers


@pytest.mark.parametrize("numbers", [{"gamma": 2.0}, {"cost": 0.4}, {"kernel": "linear"}], ids=str)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_exact_equals_bounded_least_squares(name: str, numbers: dict[str, Any]) -> None:
    pairs, layout = drawn(name, 6)
    cost = {**DEFAULTS, **numbers}["cost"]
    expected = expected_weights(layout, lambda delta: reference.dual_exact(delta, cost), **numbers)
    torch.testing.assert_close(
        weights(pairs, solver="exact", **numbers), expected, rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("numbers", [{}, {"cost": 0.5}, {"kernel": "tanh", "unit_diagonal": True}])
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_steps_of_a_fixed_size_are_those_of_a_loop_over_anchors(
    name: str, numbers: dict[str, Any]
) -> None:
    pairs, layout = drawn(name, 6)
    cost = {**DEFAULTS, **numbers}["cost"]
    for steps in (1, 7):
        expected = expected_weights(
            layout,
            lambda delta, steps=steps: reference.dual_projected_gradient(
                delta, reference.dual_closed_form(delta, cost), cost, steps, 1e-2
            ),
            **numbers,
        )
        found = weights(pairs, solver="projected_gradient", steps=steps, step_size=1e-2, **numbers)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    if name == "two views" and "cost" not in numbers:
        assert (found - weights(pairs, **numbers)).abs().max() > 1e-2


@pytest.mark.parametrize("spread", [1.0, 0.01])
@pytest.mark.parametrize("gamma", [0.02, 0.5, 2.0])
@pytest.mark.parametrize("name", ["query key", "second view"])
def test_fifty_accelerated_steps_come_close_to_the_optimum(
    name: str, gamma: float, spread: float
) -> None:
    """Objective within 1e-3 of the optimum's, from the closed form; never above the start's."""
    pairs, layout = drawn(name, 16, spread)
    kernel = reference.kernel_value(
        reference.cosines(layout.candidate, layout.candidate), "rbf", gamma
    ).numpy()
    objectives = {}
    for solver in ("closed_form", "projected_gradient", "exact"):
        found = weights(pairs, solver=solver, gamma=gamma)
        values = []
        for row, own, others in zip(found, layout.positives, layout.negatives, strict=True):
            delta = torch.from_numpy(reference.dual_matrix(kernel, own[0], others, 0.1, False))
            values.append(row[others] @ delta @ row[others] / 2 - 2 * row[others].sum())
        objectives[solver] = torch.stack(values)
    optimum = objectives["exact"]
    gap = (objectives["projected_gradient"] - optimum) / optimum.abs()
    assert float(gap.min()) > -1e-7
    assert float(gap.max()) < 1e-3
    assert (objectives["projected_gradient"] <= objectives["closed_form"] + 1e-9).all()


@pytest.mark.parametrize("name", ["two views", "query key bank", "documents", "masks"])
def test_a_random_start_leads_to_the_same_optimum(name: str) -> None:
    torch.manual_seed(0)
    pairs, _ = drawn(name, 6)
    exact = weights(pairs, solver="exact")
    found = weights(pairs, solver="projected_gradient", start="random", steps=3000)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    early = [
        weights(pairs, solver="projected_gradient", start="random", steps=1, step_size=1e-3)
        for _ in range(2)
    ]
    assert (early[0] - early[1]).abs().max() > 0.1
    for found in early:
        assert (found[~(pairs.negative | pairs.positive)] == 0).all()
        torch.testing.assert_close(found.sum(1), torch.zeros(len(found), dtype=torch.float64))


# What it costs


class LargestTensor(TorchDispatchMode):
    """Records the number of entries of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for item in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(item, Tensor):
                self.entries = max(self.entries, item.numel())
        return result


@pytest.mark.parametrize("solver", ["closed_form", "projected_gradient"])
@pytest.mark.parametrize(
    ("builder", "candidates"), [(two_views, 192), (query_key, 96)], ids=["two_views", "query_key"]
)
def test_no_tensor_is_larger_than_a_matrix(builder: Any, candidates: int, solver: str) -> None:
    first, second = torch.randn(2, 96, 8, requires_grad=True)
    with LargestTensor() as largest:
        pairs = builder(first, second)
        similarity = cosine(pairs.anchor, pairs.candidate)
        max_margin(pairs, similarity, solver=solver, steps=5).sum().backward()  # type: ignore[arg-type]
    assert candidates**2 <= largest.entries <= 2 * candidates**2


def test_the_measure_sees_a_cube() -> None:
    with LargestTensor() as largest:
        torch.ones(10, 1, 1) * torch.ones(1, 10, 1) * torch.ones(1, 1, 10)
    assert largest.entries == 1000


def test_autocast_does_not_reach_the_solver() -> None:
    pairs, _ = drawn("two views", 6)
    single = Pairs(pairs.anchor.float(), pairs.candidate.float(), pairs.positive, pairs.negative)
    cosines = cosine(single.candidate, single.candidate)
    expected = weights(single, cosines, solver="projected_gradient")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(weights(single, cosines, solver="projected_gradient"), expected)


@pytest.mark.parametrize("kernel", ["linear", "rbf", "tanh"])
@pytest.mark.parametrize("ridge", [10.0**-power for power in (1, 4, 6, 8, 12, 20)])
def test_a_ridge_serves_or_is_refused_on_a_singular_kernel(ridge: float, kernel: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 16, generator=generator).repeat(4, 1)  # each point four times
    wide = rows.double()

    def loss(rows: Tensor, ridge: float) -> Tensor:
        pairs = query_key(rows, rows)
        similarity = cosine(rows, rows)
        return max_margin(pairs, similarity, ridge=ridge, kernel=kernel, cost=math.inf)

    limit = loss(wide, 1e-5)
    for precision in (rows, wide):
        taken, refusal = ridge, ""
        try:
            loss(precision, ridge)
        except ValueError as error:
            refusal = str(error)
        if refusal:
            assert ridge < 1e-4
            assert refusal.startswith(f"ridge {ridge:g} is lost in rounding")
            if kernel == "tanh":
                continue
            (named,) = re.findall("take (.*) or more", refusal)
            taken = float(named)
        exact = limit if taken < 1e-5 else loss(wide, taken)
        assert (loss(precision, taken).double() - exact).abs().max() < 0.02
