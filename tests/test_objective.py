"""An objective is the sum of its parts, in every combination."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import (
    Criterion,
    Objective,
    Projection,
    Term,
    consistency,
    cosine,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    inner_product,
    margin_nce,
    max_margin,
    query_key,
    same_label,
    term,
    two_views,
)
from tests import layouts, reference

LOSSES: dict[str, tuple[Term, Any]] = {
    "info_nce": (
        term(info_nce, temperature=0.3),
        lambda layout, s: reference.info_nce(
            s, layout.positives, layout.negatives, temperature=0.3
        ),
    ),
    "graphcl": (
        term(info_nce, temperature=0.3, positive_in_denominator=False),
        lambda layout, s: reference.info_nce(
            s,
            layout.positives,
            layout.negatives,
            temperature=0.3,
            positive_in_denominator=False,
        ),
    ),
    "debiased_nce": (
        term(debiased_nce, temperature=0.3, tau_plus=0.1),
        lambda layout, s: reference.debiased_nce(
            s, layout.positives, layout.negatives, temperature=0.3, tau_plus=0.1
        ),
    ),
    "hard_nce": (
        term(hard_nce, temperature=0.3, tau_plus=0.1, beta=1.0),
        lambda layout, s: reference.hard_nce(
            s, layout.positives, layout.negatives, temperature=0.3, tau_plus=0.1, beta=1.0
        ),
    ),
    "margin_nce": (
        term(margin_nce, weight=2.0, temperature=0.3, angular=0.4, subtractive=0.1),
        lambda layout, s: reference.margin_nce(
            s,
            layout.positives,
            layout.negatives,
            temperature=0.3,
            angular=0.4,
            subtractive=0.1,
        )[0],
    ),
    "closed form": (
        term(max_margin, gamma=2.0),
        lambda layout, _: reference.max_margin(layout, gamma=2.0),
    ),
    "projected gradient": (
        term(max_margin, gamma=2.0, solver="projected_gradient", steps=2000),
        lambda layout, _: reference.max_margin(
            layout, lambda delta: reference.dual_exact(delta, 100.0), gamma=2.0
        ),
    ),
}
REGULARISERS: dict[str, dict[str, Any]] = {
    "none": {},
    "distance polarization": {"penalties": (term(distance_polarization, weight=0.2, upper=0.6),)},
    "two bands": {
        "penalties": (
            term(distance_polarization, weight=0.2, reduction="mean"),
            term(distance_polarization, weight=0.3, among="all", lower=0.5, upper=0.9),
        )
    },
    "l21": {"projection": Projection(0.1, {"norm": "l21", "alpha": 0.5})},
    "nuclear": {"projection": Projection(0.1, {"norm": "nuclear", "alpha": 0.5})},
    "authors": {"projection": Projection(0.1, {"form": "authors", "norm": "none", "rows": 2})},
    "both": {
        "penalties": (term(distance_polarization, weight=0.2),),
        "projection": Projection(0.3, {"norm": "l21", "alpha": 0.5}),
    },
}


def expected_regularisers(
    objective: Objective, layout: reference.Layout, similarity: Tensor, matrix: Tensor | None
) -> Tensor:
    total = similarity.new_zeros(())
    for penalty in objective.penalties:
        numbers = {"lower": 0.1, "upper": 0.5, "reduction": "anchor_sum", **penalty.numbers}
        chosen = layout.negatives
        if numbers.pop("among", "negatives") == "all":
            chosen = [p + n for p, n in zip(layout.positives, layout.negatives, strict=True)]
        total = total + penalty.weight * reference.distance_polarization(
            similarity, chosen, **numbers
        )
    if objective.projection is not None:
        options = dict(objective.projection.options)
        assert matrix is not None
        if options.get("form") == "authors":
            value = reference.low_rank_authors(matrix, [layout.anchor])
        else:
            value = reference.low_rank_paper(
                matrix, layout.anchor, norm=options["norm"], alpha=options["alpha"]
            )
        total = total + objective.projection.weight * value
    return total


@pytest.mark.pairwise
@pytest.mark.parametrize("regulariser", REGULARISERS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_every_loss_with_every_regulariser_is_the_sum_of_the_loops(
    name: str, loss: str, regulariser: str
) -> None:
    torch.manual_seed(0)
    loss_term, loops = LOSSES[loss]
    objective = Objective(loss_term, **REGULARISERS[regulariser])
    criterion = objective.build(3).double()
    matrix = None
    if criterion.projection is not None:
        with torch.no_grad():
            criterion.projection.matrix.normal_()
        matrix = criterion.projection.matrix.detach()

    def expected(layout: reference.Layout, _: list[Tensor]) -> Tensor:
        similarity = reference.cosines(layout.anchor, layout.candidate)
        losses = loops(layout, similarity)
        with_positive = [i for i, own in enumerate(layout.positives) if own]
        mean = sum(losses[i] for i in with_positive) / len(with_positive)
        return loss_term.weight * mean + expected_regularisers(
            objective, layout, similarity, matrix
        )

    if loss == "margin_nce":  # its loops have no graph of their own; values only
        case = layouts.make(name, 4)
        leaves = list(case.leaves)
        got, _ = criterion(case.pairs(leaves))
        torch.testing.assert_close(
            got.detach(), expected(case.layout(leaves), leaves), rtol=1e-12, atol=1e-12
        )
    elif loss == "projected gradient":  # converged to 1e-7 only
        case = layouts.make(name, 4)
        leaves = list(case.leaves)
        got, _ = criterion(case.pairs(leaves))
        torch.testing.assert_close(
            got.detach(), expected(case.layout(leaves), leaves), rtol=1e-6, atol=1e-6
        )
    else:
        layouts.assert_agreement(
            layouts.make(name, 4), lambda pairs, _: criterion(pairs)[0], expected
        )


def test_the_parts_are_named_and_detached() -> None:
    rows = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    objective = Objective(
        term(hard_nce, weight=0.5, temperature=0.5, tau_plus=0.1, beta=1.0),
        penalties=(term(distance_polarization, weight=0.2, lower=0.2, upper=0.7),),
        projection=Projection(0.1, {"alpha": 3.0}),
    )
    total, parts = objective.build(4)(two_views(*rows))
    assert set(parts) == {
        "hard_nce",
        "distance_polarization",
        "share_in_band",
        "mean_cosine",
        "projection_reconstruction",
        "projection_norm",
    }
    assert not any(part.requires_grad for part in parts.values())
    assert float(total.detach()) == pytest.approx(
        0.5 * float(parts["hard_nce"])
        + 0.2 * float(parts["distance_polarization"])
        + 0.1 * float(parts["projection_reconstruction"] + 3.0 * parts["projection_norm"]),
        rel=1e-6,
    )
    assert float(parts["projection_norm"]) == pytest.approx(4.0)
    pairs = two_views(*rows.detach())
    distance = (1 - cosine(pairs.anchor, pairs.candidate)[pairs.negative]) / 2
    share = ((distance > 0.2) & (distance < 0.7)).float().mean()
    assert float(parts["share_in_band"]) == pytest.approx(float(share))


def test_features_of_their_own_for_the_projection() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 6, 4, generator=generator)
    features = torch.randn(2, 6, 9, generator=generator)
    objective = Objective(
        term(info_nce, temperature=0.5),
        projection=Projection(0.7, {"form": "authors", "norm": "none"}),
    )
    criterion = objective.build(9)
    assert criterion.projection is not None
    total, parts = criterion(two_views(*rows), features=list(features))
    penalty, _ = criterion.projection(list(features))
    assert float(total.detach()) == pytest.approx(
        float(parts["info_nce"]) + 0.7 * float(penalty.detach()), rel=1e-6
    )


class Bilinear(nn.Module):
    """CURL's similarity."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.matrix = nn.Parameter(torch.rand(dim, dim, generator=generator, dtype=torch.float64))

    def forward(self, anchor: Tensor, candidate: Tensor) -> Tensor:
        return anchor @ self.matrix @ candidate.T


@pytest.mark.parametrize(
    ("loss", "loops"),
    [
        (
            term(info_nce, temperature=1.0),
            lambda layout, s: reference.info_nce(
                s, layout.positives, layout.negatives, temperature=1.0
            ),
        ),
        (
            term(hard_nce, temperature=1.0, tau_plus=0.1, beta=0.5, floor="minimum"),
            lambda layout, s: reference.hard_nce(
                s,
                layout.positives,
                layout.negatives,
                temperature=1.0,
                tau_plus=0.1,
                beta=0.5,
                floor="minimum",
            ),
        ),
    ],
)
def test_a_learned_similarity_takes_part_in_the_loss_and_not_in_the_penalty(
    loss: Term, loops: Any
) -> None:
    similarity = Bilinear(3)
    objective = Objective(loss, penalties=(term(distance_polarization, weight=0.2),))
    criterion = objective.build(3, similarity)
    assert [name for name, _ in criterion.named_parameters()] == ["similarity.matrix"]
    matrix = similarity.matrix.detach().clone().requires_grad_()

    def expected(layout: reference.Layout, _: list[Tensor]) -> Tensor:
        scores = layout.anchor @ matrix @ layout.candidate.T
        return loops(layout, scores).mean() + expected_regularisers(
            objective, layout, reference.cosines(layout.anchor, layout.candidate), None
        )

    case = layouts.make("query key", 4)
    layouts.assert_agreement(case, lambda pairs, _: criterion(pairs)[0], expected)
    leaves = list(case.leaves)
    got = torch.autograd.grad(criterion(case.pairs(leaves))[0], similarity.matrix)
    want = torch.autograd.grad(expected(case.layout(leaves), leaves), matrix)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    assert (got[0] != 0).all()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (term(max_margin), "max_margin is defined for cosines only"),
        (term(margin_nce, temperature=0.5), "margin_nce is defined for cosines only"),
        (term(debiased_nce, temperature=0.5, tau_plus=0.1), "take floor='minimum'"),
        (
            term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0, floor="cosine"),
            "hard_nce's floor .* holds for cosines only",
        ),
    ],
)
def test_losses_that_need_cosines_say_so(loss: Term, message: str) -> None:
    for similarity in (inner_product, Bilinear(3)):
        with pytest.raises(ValueError, match=message):
            Objective(loss).build(3, similarity)
    Objective(loss).build(3)


def test_terms_are_checked_against_the_signature() -> None:
    with pytest.raises(ValueError, match="info_nce takes no temprature; it takes"):
        term(info_nce, temprature=0.5)
    with pytest.raises(ValueError, match="hard_nce needs beta, tau_plus"):
        term(hard_nce, temperature=0.5)
    with pytest.raises(ValueError, match="distance_polarization takes no similarity"):
        term(distance_polarization, similarity=0.5)
    made = term(distance_polarization, weight=3.0, lower=0.2)
    assert (made.weight, made.numbers) == (3.0, {"lower": 0.2})
    rows = torch.eye(2)
    pairs = query_key(rows, rows)
    value = made(pairs, torch.full((2, 2), 0.4))
    assert value.tolist() == pytest.approx([0.1 * 0.2, 0.1 * 0.2])


@pytest.mark.parametrize(
    ("loss", "regulariser"),
    [*((loss, "none") for loss in LOSSES), *(("info_nce", each) for each in REGULARISERS)],
)
def test_inside_autocast_the_criterion_computes_in_single_precision(
    loss: str, regulariser: str
) -> None:
    objective = Objective(LOSSES[loss][0], **REGULARISERS[regulariser])
    criterion = objective.build(8)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 5, generator=generator, requires_grad=True)
    inputs = torch.randn(2, 6, 5, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = (nn.functional.linear(view, weight) for view in inputs)
        assert first.dtype == torch.bfloat16
        value, parts = criterion(two_views(first, second))
    same, _ = criterion(two_views(first.float(), second.float()))
    assert value.dtype == torch.float32
    assert all(part.dtype == torch.float32 for part in parts.values())
    assert torch.equal(value, same)
    value.backward()
    assert torch.isfinite(weight.grad).all()


def test_a_loss_that_is_not_finite_is_named_as_such() -> None:
    def infinite(anchor: Tensor, candidate: Tensor) -> Tensor:
        return (anchor @ candidate.T) * math.inf

    criterion = Objective(term(info_nce, temperature=0.5)).build(3, infinite)
    with pytest.raises(FloatingPointError, match="the loss is not finite; lower"):
        criterion(query_key(torch.ones(3, 3), torch.ones(3, 3)))
    matrix = Objective(term(info_nce, temperature=0.5), projection=Projection()).build(3)
    assert matrix.projection is not None
    with torch.no_grad():
        matrix.projection.matrix[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match="the loss is not finite at step 0"):
        matrix(query_key(torch.ones(3, 3), torch.ones(3, 3)), step=0)


def test_the_criterion_can_be_saved_and_loaded() -> None:
    objective = Objective(
        term(info_nce, temperature=0.5), projection=Projection(options={"init": "normal"})
    )
    first, second = objective.build(4), objective.build(4)
    second.load_state_dict(first.state_dict())
    pairs = two_views(torch.randn(3, 4), torch.randn(3, 4))
    assert torch.equal(first(pairs)[0], second(pairs)[0])


def test_a_learned_temperature_belongs_to_the_criterion() -> None:
    shared = nn.Parameter(torch.tensor(0.5))
    objective = Objective(
        term(info_nce, temperature=shared), (term(consistency, temperature=shared),)
    )
    criterion = objective.build(3)
    (own,) = criterion.parameters()
    optimiser = torch.optim.SGD(criterion.parameters(), lr=0.1)
    criterion(two_views(torch.eye(3), torch.eye(3).flip(0)))[0].backward()
    optimiser.step()
    assert own.item() != 0.5
    assert [each.item() for each in objective.build(3).parameters()] == [0.5]
    assert shared.grad is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_embeddings_are_finite_even_where_no_anchor_has_a_positive(bad: float) -> None:
    rows = torch.eye(3)
    rows[1, 1] = bad
    for loss in (term(info_nce, temperature=0.5), term(max_margin)):
        with pytest.raises(FloatingPointError, match="embeddings are NaN or infinite"):
            Objective(loss).build(3)(same_label(rows, torch.arange(3)))


def wrong_calls() -> dict[str, tuple[Any, str]]:
    """What a criterion, an objective or a loss refuses, with its words."""
    loss = term(info_nce, temperature=0.5)
    objective, rows = Objective(loss), torch.eye(3)
    pairs = two_views(rows, rows)
    criterion = objective.build(3)
    projected = Objective(loss, projection=Projection()).build(5)
    return {
        "check_every": (lambda: Criterion(objective, 3, check_every=0), "check_every is a positi"),
        "dim": (lambda: objective.build("a"), "dim is a positive whole"),  # type: ignore[arg-type]
        "similarity": (lambda: objective.build(3, similarity=3), "similarity is a function"),  # type: ignore[arg-type]
        "step": (lambda: criterion(pairs, step="a"), "step is a whole number from 0, or None"),
        "views": (lambda: criterion(rows, rows), r"criterion\(two_views\(first, second\)\)"),
        "one pair": (lambda: criterion(two_views(rows[:1], rows[:1])), "2 anchors .* has none"),
        "width": (lambda: projected(pairs), r"\(dim=5\); got \(6, 3\)"),
        "loss": (lambda: Objective(max_margin), r"take term\(max_margin, \.\.\.\)"),  # type: ignore[arg-type]
        "penalties": (lambda: Objective(loss, loss), "penalties is a tuple of terms"),  # type: ignore[arg-type]
        "projection": (lambda: Objective(loss, projection=3), "projection is a Projection"),  # type: ignore[arg-type]
        "options": (lambda: Projection(options={"dim": -1}), "LowRankProjection takes no dim"),
        "pairs alone": (lambda: max_margin(pairs), r"cosine\(pairs.anchor, pairs.candidate\)"),  # type: ignore[call-arg]
        "embeddings": (lambda: max_margin(rows, rows), r"pairs = two_views\(first, second\)"),  # type: ignore[arg-type]
        "missing": (lambda: info_nce(pairs, rows), "info_nce needs temperature"),  # type: ignore[call-arg]
        "unknown": (lambda: max_margin(pairs, rows, c=1), "max_margin takes no c; it takes"),  # type: ignore[call-arg]
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_what_cannot_be_used_is_refused_in_one_line(name: str) -> None:
    call, message = wrong_calls()[name]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
