import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import LowRankProjection
from shared.projection import CHECK_EVERY, nuclear_norm, reduce_matrix
from tests import reference

PAPER: list[dict[str, Any]] = [
    {"norm": "l21"},
    {"norm": "nuclear"},
    {"norm": "none"},
    {"norm": "l21", "alpha": 0.3, "rows": 3},
    {"norm": "nuclear", "alpha": 0.3, "rows": 3},
    {"norm": "nuclear", "rows": 7},
    {"norm": "l21", "unit_features": True, "alpha": 1.0},
]


def projection(dim: int = 5, seed: int = 0, **options: Any) -> LowRankProjection:
    """In float64, with a matrix drawn at random."""
    made = LowRankProjection(dim, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.matrix.copy_(torch.randn(made.matrix.shape, generator=generator))
    return made


def features(count: int = 6, dim: int = 5, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64)


def assert_same_with_gradients(
    value: Tensor, expected: Tensor, mine: list[Tensor], theirs: list[Tensor]
) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(value, mine),
        torch.autograd.grad(expected, theirs),
        rtol=1e-9,
        atol=1e-10,
    )


@pytest.mark.parametrize("options", PAPER, ids=str)
def test_the_papers_form_equals_its_loops(options: dict[str, Any]) -> None:
    made = projection(**options)
    first, second = features().requires_grad_(), features(seed=2).requires_grad_()
    matrix = made.matrix.detach().clone().requires_grad_()
    others = [first.detach().clone().requires_grad_(), second.detach().clone().requires_grad_()]
    expected = reference.low_rank_paper(
        matrix,
        torch.cat(others),
        norm=options["norm"],
        alpha=options.get("alpha", 10.0),
        unit_features=options.get("unit_features", False),
    )
    value, parts = made([first, second])
    assert_same_with_gradients(value, expected, [made.matrix, first, second], [matrix, *others])
    whole, _ = made(torch.cat([first, second]))
    torch.testing.assert_close(whole, value)
    torch.testing.assert_close(
        parts["reconstruction"] + options.get("alpha", 10.0) * parts["norm"], value.detach()
    )


@pytest.mark.parametrize("rows", [None, 3, 8])
def test_the_authors_form_equals_its_loops(rows: int | None) -> None:
    made = projection(form="authors", norm="none", rows=rows)
    views = [features().requires_grad_(), features(4, seed=2).requires_grad_()]
    matrix = made.matrix.detach().clone().requires_grad_()
    others = [view.detach().clone().requires_grad_() for view in views]
    value, _ = made(views)
    expected = reference.low_rank_authors(matrix, others)
    assert_same_with_gradients(value, expected, [made.matrix, *views], [matrix, *others])
    alone, _ = made(views[0])
    torch.testing.assert_close(alone, reference.low_rank_authors(matrix, others[:1]))


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


def test_a_collapse_is_warned_about() -> None:
    made = LowRankProjection(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(features().float())
        made.warn_if_collapsed()
        with torch.no_grad():
            made.matrix.mul_(2e-3)
        made.warn_if_collapsed()
    with torch.no_grad():
        made.matrix.mul_(0.4)
    with pytest.warns(RuntimeWarning, match=r"L has collapsed to 8.0e-04 .* lower alpha \(10.0\)"):
        made.warn_if_collapsed()
    with pytest.warns(RuntimeWarning, match="collapsed"):
        made.project(features().float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(CHECK_EVERY - 1):
            made(features().float())
    with pytest.warns(RuntimeWarning, match="collapsed"):
        made(features().float())


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


@pytest.mark.parametrize("rows", [4, 6, 8])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("selection", ["columns", "svd", "qr"])
def test_the_reduced_matrix_is_that_of_the_loops(
    selection: str, dimensions: int, rows: int
) -> None:
    generator = torch.Generator().manual_seed(rows)
    matrix = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        reduce_matrix(matrix, dimensions, selection),  # type: ignore[arg-type]
        reference.reduced_matrix(matrix, dimensions, selection),
        rtol=1e-9,
        atol=1e-10,
    )


def test_projected_features() -> None:
    rows = features()
    for options, selection in (
        ({"norm": "l21"}, "columns"),
        ({"norm": "nuclear"}, "svd"),
        ({"norm": "none"}, "svd"),
    ):
        made = projection(**options)
        matrix = made.matrix.detach()
        torch.testing.assert_close(made.project(rows), rows @ matrix.T)
        torch.testing.assert_close(
            made.project(rows, dimensions=2),
            rows @ reference.reduced_matrix(matrix, 2, selection).T,
        )
        torch.testing.assert_close(
            made.project(rows, dimensions=2, selection="qr"),
            rows @ reference.reduced_matrix(matrix, 2, "qr").T,
        )
        assert not made.project(rows).requires_grad
    made = projection(unit_features=True)
    torch.testing.assert_close(made.project(rows), made.project(7 * rows))
    made = projection(unit_features=False)
    torch.testing.assert_close(7 * made.project(rows), made.project(7 * rows))


def test_columns_are_kept_by_number_where_there_are_fewer_rows_than_that() -> None:
    """3 rows, 6 columns, 4 of them asked for: two are dropped."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    for selection in ("columns", "qr"):
        reduced = reduce_matrix(matrix, 4, selection)
        assert int((reduced != 0).any(0).sum()) == (4 if selection == "columns" else 3)
    torch.testing.assert_close(reduce_matrix(matrix, 4, "svd"), matrix)


def test_half_precision_features_are_lifted() -> None:
    made = LowRankProjection(5)
    value, _ = made(features().bfloat16())
    assert value.dtype == torch.float32
    value.backward()
    assert torch.isfinite(made.matrix.grad).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "code"}, "form is 'paper' or 'authors'; got 'code'"),
        ({"norm": "l1"}, "norm is 'l21', 'nuclear' or 'none'; got 'l1'"),
        ({"form": "authors"}, "the authors' form has no norm of L; got norm 'l21'"),
        ({"alpha": -1.0}, "alpha is at least 0 and finite; got -1"),
        ({"init": "zeros"}, "init is 'identity' or 'normal'; got 'zeros'"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LowRankProjection(5, **options)


def test_selections_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="dimensions is a positive whole number; got 0"):
        reduce_matrix(torch.eye(3), 0, "svd")
    for dimensions in (2, 256):
        with pytest.raises(ValueError, match="selection is 'columns', 'svd' or 'qr'; got 'rows'"):
            reduce_matrix(torch.eye(3), dimensions, "rows")  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [-1, 0, "a", 2.5])
def test_a_width_is_a_positive_whole_number(dim: Any) -> None:
    with pytest.raises(ValueError, match="dim is a positive whole number"):
        LowRankProjection(dim)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.ones(2, 4), r"shape \(B, 3\), as the projection was built .*got \(2, 4\)"),
        (torch.ones(2, 3, dtype=torch.int64), "floating-point tensors .*got torch.int64"),
        ([], "got none"),
    ],
)
def test_features_that_do_not_fit_are_named(features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LowRankProjection(3)(features)
