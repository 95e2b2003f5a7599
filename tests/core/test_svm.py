"""``max_margin``: its dual solvers against one dense problem for each anchor."""

import inspect
import math
import re
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shared import Pairs, cosine, max_margin, query_key, svm, two_views
from shared.svm import Dual, dual_weights
from tests.stages import layouts, reference

KERNELS: list[dict[str, Any]] = [
    {"gamma": 0.5},
    {"kernel": "tanh", "gamma": 1.0, "offset": 0.4, "unit_diagonal": True},
    {"gamma": 2.0, "cost": math.inf, "ridge": 1e-3},
    {"cost": 0.5},
    {"kernel": "linear", "unit_diagonal": True},
    {"kernel": "tanh", "gamma": 1.5},
]
PLAIN_STEPS: dict[str, Any] = {
    "solver": "projected_gradient",
    "steps": 3,
    "step_size": 0.03,
    "momentum": "none",
}
# With what they may be off by, in 1e-12 of values and 1e-10 of gradients.
SOLVERS: list[tuple[dict[str, Any], float]] = [
    ({"solver": "exact", "cost": 0.4}, 1e5),
    ({"solver": "exact", "gamma": 2.0}, 1e5),
    ({"solver": "projected_gradient", "gamma": 2.0, "steps": 200}, 1e8),
    ({**PLAIN_STEPS, "cost": 0.5}, 1.0),
    ({**PLAIN_STEPS, "kernel": "tanh", "unit_diagonal": True}, 1.0),
    ({**PLAIN_STEPS, "momentum": "restarted", "steps": 15, "step_size": 0.15, "cost": 0.7}, 1.0),
]


@pytest.mark.parametrize("layout", [*layouts.KINDS, "documents"])
@pytest.mark.parametrize("numbers", KERNELS, ids=str)
def test_closed_form_loss_and_gradient_equal_the_loops(
    numbers: dict[str, Any], layout: str, core: Any
) -> None:
    layouts.assert_equals_loops("max_margin", layout, core, **numbers)


@pytest.mark.parametrize("layout", ["two views", "context window", "masks"])
@pytest.mark.parametrize(("numbers", "tolerance"), SOLVERS, ids=str)
def test_other_solvers_equal_the_loops(
    numbers: dict[str, Any], tolerance: float, layout: str, core: Any
) -> None:
    with mock.patch.object(core.svm, "EXACT_STEPS", 500):
        layouts.assert_equals_loops("max_margin", layout, core, tolerance, **numbers)


# The settings of MMCL's program, as the tables have them.
AUTHORS: dict[str, Any] = {
    "solver": "projected_gradient",
    "steps": 1000,
    "step_size": 1e-3,
    "momentum": "nesterov",
    "stop": 0.01,
    "start": "random",
}
PARAMETERS = inspect.signature(max_margin).parameters.values()
DEFAULTS = {each.name: each.default for each in PARAMETERS if each.kind is each.KEYWORD_ONLY}


def weights(pairs: Pairs, cosines: Tensor | None = None, **numbers: Any) -> Tensor:
    among = cosine(pairs.candidate, pairs.candidate) if cosines is None else cosines
    return dual_weights(pairs, among, Dual(**{**DEFAULTS, **numbers}))


def drawn(name: str, size: int, spread: float = 1.0) -> tuple[Pairs, reference.Layout]:
    """Random rows, or a nearly collapsed embedding where the spread is small."""
    case = layouts.make(name, size, dim=4, seed=size)
    leaves = list(case.leaves)
    if spread != 1:
        leaves = [1 + spread * leaf for leaf in leaves]
    return case.pairs(leaves), case.layout(leaves)


@pytest.mark.parametrize("gamma", [0.02, 2.0])
def test_closed_form_on_collapsed_features(gamma: float) -> None:
    pairs, layout = drawn("second view", 8, spread=0.01)
    assert 0.999 < float(cosine(pairs.candidate, pairs.candidate).min()) < 1
    expected = reference.dual_weights(
        reference.cosines(layout.candidate, layout.candidate),
        layout.positives,
        layout.negatives,
        lambda delta: reference.dual_closed_form(delta, 1e4),
        gamma=gamma,
        ridge=0.1,
    )
    scale = float(expected.abs().max())
    assert scale > 10
    found = weights(pairs, gamma=gamma, cost=1e4)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * scale)
    single = Pairs(pairs.anchor.float(), pairs.candidate.float(), pairs.positive, pairs.negative)
    found = weights(single, gamma=gamma, cost=1e4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3 * scale)


@pytest.mark.parametrize("solver", ["closed_form", "projected_gradient"])
def test_a_constant_added_to_the_kernel_changes_nothing(solver: str) -> None:
    pairs, _ = drawn("documents", 6)
    cosines = cosine(pairs.candidate, pairs.candidate)
    found = [weights(pairs, cosines + some, kernel="linear", solver=solver) for some in (0, 1)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1, 256, 601])
def test_inversion_by_blocks(size: int, core: Any) -> None:
    points = torch.randn(size, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = points @ points.T + 0.1 * torch.eye(size, dtype=torch.float64)  # inverse: up to 10
    inverse = matrix.clone()
    core.svm._invert_definite(inverse)
    torch.testing.assert_close(inverse, torch.linalg.inv(matrix), rtol=0, atol=1e-8)
    matrix[-1, -1] = -1.0  # no longer definite
    core.svm._invert_definite(matrix)
    assert matrix.isnan().all()


def test_the_inverse_of_a_singular_indefinite_kernel_is_nan(core: Any) -> None:
    """Centred, minus a ridge of 1 everywhere but in the direction of the constant, which gets 0."""
    points = torch.tensor([[-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    bordered, _ = core.svm._bordered_inverse(points, 1.0, definite=False)
    assert bordered.isnan().all()


@pytest.mark.parametrize(("gamma", "spread"), [(0.5, 1.0), (0.02, 0.01)])
def test_fifty_accelerated_steps_come_close_to_the_optimum(gamma: float, spread: float) -> None:
    """Objective within 1e-3 of the optimum's, from the closed form; never above the start's."""
    pairs, layout = drawn("second view", 12, spread)
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


def test_a_random_start_leads_to_the_same_optimum() -> None:
    torch.manual_seed(0)
    pairs, _ = drawn("masks", 6)
    exact = weights(pairs, solver="exact")
    random = {"solver": "projected_gradient", "start": "random"}
    found = weights(pairs, steps=1000, **random)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    early = [weights(pairs, steps=1, step_size=1e-3, momentum="none", **random) for _ in range(2)]
    assert (early[0] - early[1]).abs().max() > 0.1
    for found in early:
        assert (found[~(pairs.negative | pairs.positive)] == 0).all()
        torch.testing.assert_close(found.sum(1), torch.zeros(len(found), dtype=torch.float64))


@pytest.mark.parametrize("gamma", [0.02, 0.5, 2.0])
def test_the_authors_solver_in_single_precision_is_that_in_double(gamma: float) -> None:
    """To 1e-5 of the largest weight; both draw the same numbers from the global generator."""
    first, second = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
    found = []
    for precision in ("double", "single"):
        torch.manual_seed(1)
        found.append(weights(query_key(second, first), **AUTHORS, gamma=gamma, precision=precision))
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(*found, rtol=0, atol=1e-5 * float(found[0].abs().max()))
    again = weights(query_key(second, first), **AUTHORS, gamma=gamma)
    assert (again - found[0]).abs().max() > 1e-3  # other numbers
    optimum = weights(query_key(second, first), solver="exact", gamma=gamma)
    cosines = torch.nn.functional.cosine_similarity(optimum, found[0])
    assert gamma < 0.1 or float(cosines.mean()) > 0.95


def test_processes_draw_the_start_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first draws for all, in the order of their anchors; and a first number of momentum."""
    first, second = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    whole, points, drawn = two_views(first, second), torch.zeros(14, 14).double(), []
    torch.manual_seed(1)
    expected = svm._random_start(whole, points)
    monkeypatch.setattr(svm, "row_counts", lambda mask: torch.tensor([8, 6]))
    monkeypatch.setattr(svm, "broadcast", lambda values: drawn.append(values.clone()) or drawn[0])
    for place, own in enumerate((slice(0, 4), slice(4, 7))):
        rows = torch.arange(14).view(2, 7)[:, own].flatten()
        masks = whole.positive[rows], whole.negative[rows]
        part = Pairs(whole.anchor[rows], whole.candidate, *masks, blocks=2)
        monkeypatch.setattr(svm, "rank", lambda place=place: place)
        torch.manual_seed(1 + place)
        assert torch.equal(svm._random_start(part, points), expected[rows])
    assert 0 < svm._first_of_momentum(whole, points, "nesterov") < 1
    assert svm._first_of_momentum(whole, points, "none") == 1


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
@pytest.mark.parametrize(("builder", "candidates"), [(two_views, 192), (query_key, 96)])
def test_no_tensor_is_larger_than_a_matrix(builder: Any, candidates: int, solver: Any) -> None:
    first, second = torch.randn(2, 96, 8, requires_grad=True)
    with LargestTensor() as largest:
        pairs = builder(first, second)
        similarity = cosine(pairs.anchor, pairs.candidate)
        max_margin(pairs, similarity, solver=solver, steps=5).sum().backward()
    assert candidates**2 <= largest.entries <= 2 * candidates**2


@pytest.mark.parametrize("kernel", ["linear", "rbf", "tanh"])
@pytest.mark.parametrize("ridge", [10.0**-power for power in (1, 4, 6, 12)])
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
            if kernel == "tanh":
                assert refusal.startswith(f"with ridge {ridge:g} the kernel matrix of these")
                continue
            assert refusal.startswith(f"ridge {ridge:g} is lost in rounding")
            (named,) = re.findall("use (.*) or more", refusal)
            taken = float(named)
        exact = limit if taken < 1e-5 else loss(wide, taken)
        assert (loss(precision, taken).double() - exact).abs().max() < 0.02
