"""The losses against their reference loops, at their limits, and at the edges of their inputs.

Tests with a ``core`` run on mutated copies of it, too (``test_mutation.py``). Margins and the
support vector machines behind ``max_margin`` have files of their own.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import shared
from shared.pairs import blocks_of_rows
from tests.stages import layouts, reference

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("info_nce", {"temperature": 0.1}),
    ("info_nce", {"temperature": 0.5, "positive_in_denominator": False}),
    ("debiased_nce", {"temperature": 0.5, "tau_plus": 0.1}),
    ("debiased_nce", {"temperature": 0.1, "tau_plus": 0.7}),
    ("hard_nce", {"temperature": 0.5, "tau_plus": 0.0, "beta": 1.0}),
    ("hard_nce", {"temperature": 0.5, "tau_plus": 0.1, "beta": 0.5}),
    ("hard_nce", {"temperature": 0.5, "tau_plus": 0.1, "beta": 0.7, "detach_weights": True}),
    ("hard_nce", {"temperature": 0.5, "tau_plus": 0.6, "beta": 0.7, "floor": "minimum"}),
    ("alignment", {}),
    ("alignment", {"curvature": 0.7}),
]
# At the edges, of margins and machines, too; the sines of angular margins are softened there, in
# the core and in the loops.
EDGY = [
    *SETTINGS[:2],
    *SETTINGS[5:],
    ("margin_nce", {"temperature": 0.5, "angular": 0.3, "ratio": "row"}),
    ("margin_nce", {"temperature": 0.5, "subtractive": 0.3, "emphasis": 3.0, "attenuation": 0.8}),
    ("max_margin", {}),
    ("max_margin", {"kernel": "linear"}),
]


@pytest.mark.parametrize("layout", layouts.KINDS)
@pytest.mark.parametrize(("function", "numbers"), SETTINGS, ids=str)
def test_losses_equal_their_loops(
    function: str, numbers: dict[str, Any], layout: str, core: Any
) -> None:
    layouts.assert_equals_loops(function, layout, core, **numbers)


def test_blocks_of_rows_change_nothing(core: Any) -> None:
    """More rows than one block holds; the reference here is torch's own log-sum-exp."""
    rows = torch.randn(600, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = []
    for own in (True, False):
        leaf = rows.clone().requires_grad_()
        pairs = core.query_key(leaf, rows)
        scores = core.cosine(pairs.anchor, pairs.candidate)
        assert len(blocks_of_rows(scores)) > 1
        if own:
            loss = core.info_nce(pairs, scores, temperature=0.2)
        else:
            loss = torch.logsumexp(scores / 0.2, 1) - scores.diagonal() / 0.2
        results.append(layouts.differentiated(loss, [leaf]))
    layouts.assert_close(*results)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("function", "numbers"),
    [*EDGY, ("consistency", {"temperature": 0.3}), ("distance_polarization", {"among": "anchors"})],
    ids=str,
)
def test_within_autocast_and_of_16_bits_losses_compute_in_single_precision(
    function: str, numbers: dict[str, Any], half: bool, core: Any
) -> None:
    """In a loop of the user's, with a bank in single precision."""
    query, key, bank = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    if half:
        query, key = query.bfloat16(), key.bfloat16()

    def value(query: Tensor, key: Tensor) -> Tensor:
        pairs = core.query_key(query, key, bank)
        similarity = core.cosine(pairs.anchor, pairs.candidate)
        found: Tensor = getattr(core, function)(pairs, similarity, **numbers)
        return found

    with torch.autocast("cpu", torch.bfloat16):
        found, scores = value(query, key), core.inner_product(query, query)
    assert torch.equal(found, value(query.float(), key.float()))
    assert torch.equal(scores, query.float() @ query.float().T)
    assert found.dtype == scores.dtype == torch.float32


@pytest.mark.parametrize("layout", ["two views", "masks"])
def test_limits(layout: str) -> None:
    """Without hardness debiased, and without debiasing InfoNCE, where there are negatives."""
    case = layouts.make(layout, 5)
    pairs = case.pairs(list(case.leaves))
    similarity = shared.cosine(pairs.anchor, pairs.candidate).requires_grad_()

    def found(loss: Callable[..., Tensor], **numbers: Any) -> tuple[Tensor, ...]:
        value = loss(pairs, similarity, temperature=0.3, **numbers)
        some = pairs.negative.any(1) & (pairs.positive.sum(1) == 1)
        return layouts.differentiated(value[some], [similarity])

    plain = found(shared.debiased_nce, tau_plus=0.2)
    layouts.assert_close(found(shared.hard_nce, tau_plus=0.2, beta=0.0), plain)
    layouts.assert_close(found(shared.hard_nce, tau_plus=0.2, beta=1e-9), plain, 1e4)
    contrast = found(shared.info_nce)
    layouts.assert_close(found(shared.hard_nce, tau_plus=0.0, beta=0.0), contrast)


def edge(kind: str) -> tuple[Tensor, Tensor]:
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows = torch.nn.functional.normalize(rows, dim=1)
    if kind == "identical":
        return rows[:1].expand(4, 3).clone(), rows[:1].expand(4, 3).clone()
    if kind == "antipodal":
        return rows, -rows
    return rows * torch.tensor([[1.0], [0.0], [1.0], [0.0]], dtype=torch.float64), rows


@pytest.mark.parametrize("kind", ["identical", "antipodal", "zero rows"])
@pytest.mark.parametrize(("function", "numbers"), EDGY, ids=str)
def test_edges_are_finite_and_equal_the_loops(
    function: str, numbers: dict[str, Any], kind: str, core: Any
) -> None:
    """1e-9 in double and 1e-4 in single precision; there also where exp would overflow."""
    settings = [(numbers, torch.float64, 1e-9), (numbers, torch.float32, 1e-4)]
    if "temperature" in numbers:
        # A cosine is known to 1e-7, a score to 1e-5; the angular margin at angle 0 to more.
        cold = numbers | {"temperature": 0.01}
        settings.append((cold, torch.float32, 3e-2 if "angular" in numbers else 1e-3))
    for layout in (reference.two_views, reference.query_key):
        for chosen, dtype, tolerance in settings:
            first, second = (rows.to(dtype, copy=True).requires_grad_() for rows in edge(kind))
            pairs = getattr(core, layout.__name__)(first, second)
            similarity = core.cosine(pairs.anchor, pairs.candidate)
            value = getattr(core, function)(pairs, similarity, **chosen)
            expected = reference.value(function, layout(*edge(kind)), **chosen)
            scale = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(value.double(), expected, rtol=0, atol=tolerance * scale)
            for found in layouts.differentiated(value, [first, second], 2):
                assert torch.isfinite(found).all()


@pytest.mark.parametrize("layout", ["two views", "masks"])
@pytest.mark.parametrize(("function", "numbers"), SETTINGS[:8], ids=str)
def test_a_negative_that_is_nan_makes_the_loss_nan_and_an_ignored_one_does_not(
    function: str, numbers: dict[str, Any], layout: str, core: Any
) -> None:
    """In a loop of the user's, which sees at once that something is wrong."""
    case = layouts.make(layout, 5)
    pairs = case.pairs(list(case.leaves), core)
    similarity = core.cosine(pairs.anchor, pairs.candidate).detach()
    expected = getattr(core, function)(pairs, similarity, **numbers)
    ignored = ~(pairs.positive | pairs.negative)
    assert ignored.any()
    bad = similarity.masked_fill(ignored, math.nan)
    assert torch.equal(getattr(core, function)(pairs, bad, **numbers), expected)
    for row in pairs.negative.any(1).nonzero().flatten().tolist():
        bad = similarity.clone()
        bad[row, pairs.negative[row].nonzero()[0]] = math.nan
        found = getattr(core, function)(pairs, bad, **numbers)
        known = torch.arange(len(found)) != row
        assert torch.equal(found[known], expected[known])
        assert found[row].isnan() == pairs.positive[row].any()
