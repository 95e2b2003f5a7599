import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import Criterion, LowRankProjection, Objective, Projection, info_nce, term, two_views
from shared.projection import nuclear_norm, reduce_matrix
from tests.stages import layouts, reference

FORMS: list[dict[str, Any]] = [
    {"norm": "none"},
    {"norm": "nuclear", "alpha": 0.3, "rows": 3},
    {"norm": "nuclear", "alpha": 10.0, "rows": 7},
    {"norm": "l21", "alpha": 1.0, "unit_features": True},
    {"norm": "none", "form": "authors", "rows": 3},
]


def features(count: int = 6, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, generator=generator, dtype=torch.float64)


def projection(core: Any, **options: Any) -> Any:
    """In float64, with a matrix drawn at random."""
    made = core.LowRankProjection(5, **options).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        made.matrix.copy_(torch.randn(made.matrix.shape, generator=generator))
    return made


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_the_penalty_equals_its_loops(options: dict[str, Any], core: Any) -> None:
    made = projection(core, **options)
    mine, others = ([each.requires_grad_() for each in (features(), features(4, 2))] for _ in "12")
    matrix = made.matrix.detach().clone().requires_grad_()
    numbers = {"alpha": 10.0} | options
    if numbers.pop("form", "paper") == "authors":
        expected = reference.low_rank_authors(matrix, others)
    else:
        numbers.pop("rows", None)
        expected = reference.low_rank_paper(matrix, torch.cat(others), **numbers)
        value, parts = made(torch.cat(mine))
        torch.testing.assert_close(value, expected)
        norm = numbers["alpha"] * parts["norm"]
        torch.testing.assert_close(parts["reconstruction"] + norm, value.detach())
    value, _ = made(mine)
    layouts.assert_close(
        layouts.differentiated(value, [made.matrix, *mine]),
        layouts.differentiated(expected, [matrix, *others]),
    )


def test_starts() -> None:
    assert torch.equal(LowRankProjection(3).matrix, torch.eye(3))
    assert torch.equal(LowRankProjection(3, rows=2).matrix, torch.eye(2, 3))
    normal = LowRankProjection(40, form="authors", norm="none", rows=30).matrix
    assert normal.shape == (30, 40)
    assert float(normal.detach().std()) == pytest.approx(1, abs=0.1)
    assert torch.equal(
        LowRankProjection(3, form="authors", norm="none", init="identity").matrix, torch.eye(3)
    )
    assert not torch.equal(LowRankProjection(3, init="normal").matrix, torch.eye(3))


def test_the_identity_costs_nothing_but_its_norm() -> None:
    """|I| is 5 in both norms, and the reconstruction is exact."""
    for norm in ("l21", "nuclear"):
        made = LowRankProjection(5, norm=norm, alpha=2.0)
        value, parts = made(features().float())
        assert float(parts["reconstruction"]) == 0
        assert float(value.detach()) == pytest.approx(10.0)
    made = LowRankProjection(5, form="authors", norm="none", init="identity")
    rows = features().float().requires_grad_()
    value, _ = made(rows)
    assert float(value.detach()) == pytest.approx(0, abs=1e-6)
    value.backward()
    assert torch.isfinite(rows.grad).all()


def test_a_collapse_is_warned_about(core: Any) -> None:
    made = core.LowRankProjection(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(features().float())
        made.warn_if_collapsed()
        with torch.no_grad():
            made.matrix.mul_(2e-3)
        made.warn_if_collapsed()
    with torch.no_grad():
        made.matrix.mul_(0.4)
    with pytest.warns(RuntimeWarning, match=r"8\.0e-04 .* alpha"):
        made.warn_if_collapsed()
    with pytest.warns(RuntimeWarning, match="collapsed"):
        made.project(features().float())


def test_a_collapse_is_warned_about_once_in_training() -> None:
    objective = Objective(term(info_nce, temperature=0.5), projection=Projection(0.1))
    criterion = Criterion(objective, 5, check_every=4)
    assert criterion.projection is not None
    pairs = two_views(*torch.randn(2, 3, 5))
    with torch.no_grad():
        criterion.projection.matrix.mul_(1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in (1, 2, 3):
            criterion(pairs, step=step)
    with pytest.warns(RuntimeWarning, match="collapsed"):
        criterion(pairs, step=4)
    with warnings.catch_warnings():  # whoever takes its features is told again
        warnings.simplefilter("error")
        criterion(pairs, step=8)
    with pytest.warns(RuntimeWarning, match="collapsed"):
        criterion.projection.warn_if_collapsed()


def test_the_warning_survives_a_reload() -> None:
    made, other = LowRankProjection(4, init="normal"), LowRankProjection(4)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.initial_norm, made.initial_norm)
    assert float(made.initial_norm) == pytest.approx(float(made.matrix.detach().norm()))


@pytest.mark.parametrize("kind", ["random", "wide", "identity", "deficient", "zero"])
def test_the_nuclear_norm_and_its_gradient_are_those_of_the_decomposition(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = 3 if kind == "wide" else 5
    matrix = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    if kind == "identity":
        matrix = 0.7 * torch.eye(5, dtype=torch.float64)
    if kind == "deficient":
        matrix[:, 3:] = matrix[:, :2]
    if kind == "zero":
        matrix.zero_()
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    rank = {"wide": 3, "deficient": 3, "zero": 0}.get(kind, 5)
    # Of the subgradients where a singular value is zero, the one without it.
    expected = left[:, :rank] @ right[:rank]
    leaf = matrix.clone().requires_grad_()
    value = nuclear_norm(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close(value.detach(), values.sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("selection", ["columns", "svd"])
def test_the_reduced_matrix_is_that_of_the_loops(selection: Any, core: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, dimensions in ((4, 1), (6, 2), (8, 3)):
        matrix = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
        expected = reference.reduced_matrix(matrix, dimensions, selection)
        found = core.projection.reduce_matrix(matrix, dimensions, selection)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_projected_features(core: Any) -> None:
    rows = features()
    for norm, selection in (("l21", "columns"), ("nuclear", "svd"), ("none", "svd")):
        made = projection(core, norm=norm)
        matrix = made.matrix.detach()
        torch.testing.assert_close(made.project(rows), rows @ matrix.T)
        reduced = reference.reduced_matrix(matrix, 2, selection)
        found = made.project(rows, dimensions=2)
        torch.testing.assert_close(found, rows @ reduced.T)
        assert not found.requires_grad
    made = projection(core, unit_features=True)
    torch.testing.assert_close(made.project(rows), made.project(7 * rows))


def test_columns_are_kept_by_number_where_there_are_fewer_rows_than_that() -> None:
    """3 rows, 6 columns, 4 of them asked for: two are dropped."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    assert int((reduce_matrix(matrix, 4, "columns") != 0).any(0).sum()) == 4
    torch.testing.assert_close(reduce_matrix(matrix, 4, "svd"), matrix)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_the_penalty_is_computed_in_single_precision(options: dict[str, Any], core: Any) -> None:
    """Of features in half precision, within autocast, and with a matrix in half precision."""
    made, some = projection(core, **options).float(), features().bfloat16()
    expected = made(some.float())[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = made(some)[0]
    assert torch.equal(found, expected)
    assert found.dtype == torch.float32
    found.backward()
    assert torch.isfinite(made.matrix.grad).all()
    made.half()
    value = made(some)[0]
    assert torch.equal(value, made.float()(some)[0])
    assert value.dtype == torch.float32


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float64])
def test_features_take_the_precision_of_the_matrix(precision: torch.dtype, core: Any) -> None:
    made, some = projection(core).float(), features().to(precision)
    for function in (made.project, made.reconstruct):
        assert torch.equal(function(some), function(some.float()))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: LowRankProjection(5, norm="l1"), "l21"),
        (lambda: LowRankProjection(5, form="authors"), "norm"),
        (lambda: LowRankProjection(5, alpha=-1.0), "alpha"),
        (lambda: reduce_matrix(torch.eye(3), 0, "svd"), "dimensions"),
        (lambda: LowRankProjection(3)(torch.ones(2, 4)), r"\(2, 4\)"),
        (lambda: LowRankProjection(3)(torch.ones(2, 2, 3)), r"\(2, 2, 3\)"),
    ],
)
def test_unusable_settings_are_named(call: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()
