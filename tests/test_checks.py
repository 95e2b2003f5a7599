"""What is refused at the door of losses, penalties and pairs, and what N = 0 gives."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import (
    Criterion,
    Objective,
    Pairs,
    Projection,
    alignment,
    band_statistics,
    consistency,
    context_window,
    cosine,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    inner_product,
    local_global,
    margin_nce,
    max_margin,
    query_key,
    same_label,
    term,
    two_views,
)
from shared.checks import check_cosines
from tests import layouts, reference

Loss = Callable[..., Any]
DOORS: dict[str, tuple[Loss, dict[str, Any]]] = {
    "info_nce": (info_nce, {"temperature": 0.5}),
    "debiased_nce": (debiased_nce, {"temperature": 0.5, "tau_plus": 0.1}),
    "hard_nce": (hard_nce, {"temperature": 0.5, "tau_plus": 0.1, "beta": 1.0}),
    "margin_nce": (margin_nce, {"temperature": 0.5, "angular": 0.2}),
    "alignment": (alignment, {}),
    "max_margin": (max_margin, {}),
    "distance_polarization": (distance_polarization, {}),
    "band_statistics": (band_statistics, {}),
    "consistency": (consistency, {}),
}
NEED_COSINES = [name for name in DOORS if name not in ("info_nce", "band_statistics")]


def rows(count: int, dim: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def twelve() -> tuple[Pairs, Tensor]:
    first, second = rows(12), rows(12, seed=1)
    return query_key(first, second), cosine(first, second)


# Similarities


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize(
    "mutate",
    [
        lambda similarity: similarity[:, :1],
        lambda similarity: torch.cat([similarity, similarity], dim=1),
        lambda similarity: similarity[:1],
        lambda similarity: similarity[:, 0],
        lambda similarity: similarity[None],
    ],
    ids=["column", "twice as wide", "row", "vector", "batch"],
)
def test_a_similarity_of_another_shape_is_refused(
    name: str, mutate: Callable[[Tensor], Tensor]
) -> None:
    loss, numbers = DOORS[name]
    pairs, similarity = twelve()
    with pytest.raises(ValueError, match=r"row for each anchor .* \(12, 12\); got \("):
        loss(pairs, mutate(similarity), **numbers)


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_a_similarity_of_other_numbers_is_refused(name: str, dtype: torch.dtype) -> None:
    loss, numbers = DOORS[name]
    pairs, similarity = twelve()
    with pytest.raises(ValueError, match="similarity holds floating-point numbers; got torch"):
        loss(pairs, similarity.to(dtype), **numbers)


@pytest.mark.parametrize("name", NEED_COSINES)
def test_what_is_no_cosine_is_refused_where_cosines_are_needed(name: str) -> None:
    loss, numbers = DOORS[name]
    pairs, similarity = twelve()
    message = r"similarity holds cosines here; got .*: take shared.cosine, not divided"
    for wrong in (similarity / 0.1, inner_product(10 * pairs.anchor, pairs.candidate)):
        with pytest.raises(ValueError, match=message):
            loss(pairs, wrong, **numbers)
    loss(pairs, similarity, **numbers)


def test_cosines_may_be_off_by_a_thousandth_and_what_is_ignored_by_anything() -> None:
    case = layouts.make("masks", 6)
    pairs = case.pairs(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate)
    ignored = ~(pairs.positive | pairs.negative)
    for value in (1e9, -math.inf, math.nan):
        loss = margin_nce(pairs, similarity.masked_fill(ignored, value), temperature=0.5)
        torch.testing.assert_close(loss, margin_nce(pairs, similarity, temperature=0.5))
    for mask in (pairs.positive, pairs.negative):
        for sign in (1, -1):
            margin_nce(pairs, similarity.masked_fill(mask, sign * 1.0009), temperature=0.5)
            moved = similarity.masked_fill(mask, sign * 1.0011).masked_fill(ignored, math.nan)
            with pytest.raises(ValueError, match=r"got -?1.001: take"):
                margin_nce(pairs, moved, temperature=0.5)


def test_a_floor_of_its_own_needs_no_cosines() -> None:
    pairs, similarity = twelve()
    for loss, numbers in (DOORS["debiased_nce"], DOORS["hard_nce"]):
        assert torch.isfinite(loss(pairs, 30 * similarity, **numbers, floor="minimum")).all()


def test_the_criterion_looks_at_cosines_every_so_many_steps_on_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device is pretended: the door then leaves the look to the criterion."""
    looks = []

    def seen(pairs: Pairs, similarity: Tensor) -> None:
        looks.append(similarity.shape)
        check_cosines(pairs, similarity)

    class Elsewhere:
        type = "accelerator"

    monkeypatch.setattr("shared.objective.check_cosines", seen)
    monkeypatch.setattr("shared.checks.readable", lambda tensor: False)
    criterion = Criterion(Objective(term(alignment)), 4, check_every=5)
    pairs, similarity = twelve()

    class There(Tensor):
        device = Elsewhere()  # type: ignore[assignment]

    criterion.similarity = lambda *_: similarity.mul(3).as_subclass(There)
    with pytest.raises(ValueError, match="similarity holds cosines here"):
        criterion(pairs, step=10)
    for step in (11, 12, 14):
        criterion(pairs, step=step)
    assert len(looks) == 1


# Pairs


def masks() -> dict[str, Any]:
    positive = torch.eye(3, 4, dtype=torch.bool)
    return {
        "anchor": rows(3),
        "candidate": rows(4, seed=1),
        "positive": positive,
        "negative": ~positive,
    }


def test_a_candidate_cannot_be_positive_and_negative() -> None:
    given = masks()
    given["negative"][2, 2] = True
    with pytest.raises(ValueError, match="positive or negative for an anchor; got both"):
        Pairs(**given)


@pytest.mark.parametrize(
    "index",
    [
        [[1], [1], [2]],
        [[0], [1], [-1]],
        [[0], [1], [4]],
        [[0], [1], [-2]],
        [[0, 0], [1, -1], [2, -1]],
        [[0, 3], [1, -1], [2, -1]],
        [[0], [1]],
        [0, 1, 2],
        [[0.0], [1.0], [2.0]],
    ],
    ids=str,
)
@pytest.mark.parametrize("which", ["positive_index", "outsider_index"])
def test_indices_that_contradict_their_masks_are_refused(which: str, index: Any) -> None:
    with pytest.raises(ValueError, match=f"{which} lists each candidate of its mask once"):
        Pairs(**masks(), **{which: torch.tensor(index)})


def test_indices_that_agree_with_their_masks_are_taken() -> None:
    for index in ([[0], [1], [2]], [[0, -1], [-1, 1], [2, -1]]):
        pairs = Pairs(
            **masks(), positive_index=torch.tensor(index), outsider_index=torch.tensor(index)
        )
        assert pairs.positives().tolist() == index


@pytest.mark.parametrize("size", [1, 5, 20])
@pytest.mark.parametrize("name", layouts.MAKERS)
def test_the_pairs_of_the_builders_would_pass_the_check(name: str, size: int) -> None:
    case = layouts.make(name, size)
    made, layout = case.pairs(list(case.leaves)), case.layout(list(case.leaves))
    Pairs(
        made.anchor,
        made.candidate,
        made.positive,
        made.negative,
        made.positive_index,
        made.outsider_index,
    )
    everyone = range(len(layout.candidate))
    for positives in (True, False):
        found = made.excluded(positives=positives)
        if found.dtype == torch.bool:
            listed = reference_indices(found)
        else:
            listed = [sorted(j for j in row if j >= 0) for row in found.tolist()]
        compared = [
            others if positives else own + others
            for own, others in zip(layout.positives, layout.negatives, strict=True)
        ]
        assert listed == [[j for j in everyone if j not in chosen] for chosen in compared]


def test_pairs_made_from_those_of_a_builder_may_have_padded_indices() -> None:
    made = two_views(*torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)))
    negative = made.negative.clone()
    negative[0, 1] = False
    outsiders = torch.tensor([[0, 1, 3], *([i, (i + 3) % 6, -1] for i in range(1, 6))])
    listed = dataclasses.replace(made, negative=negative, outsider_index=outsiders)
    plain = Pairs(made.anchor, made.candidate, made.positive, negative)
    assert made.complete
    assert not listed.complete
    cosines = cosine(made.anchor, made.candidate)
    for loss, numbers in ((info_nce, {}), (hard_nce, {"tau_plus": 0.1, "beta": 1.0})):
        assert torch.equal(
            loss(listed, cosines, temperature=0.1, **numbers),
            loss(plain, cosines, temperature=0.1, **numbers),
        )


def reference_indices(mask: Tensor) -> reference.Indices:
    return [row.nonzero().flatten().tolist() for row in mask]


@pytest.mark.parametrize("size", [9, 20])
@pytest.mark.parametrize("name", ["context window", "documents", "same label", "two views"])
def test_losses_that_exclude_by_index_equal_their_loops(name: str, size: int) -> None:
    case = layouts.make(name, size)
    pairs, layout = case.pairs(list(case.leaves)), case.layout(list(case.leaves))
    similarity = cosine(pairs.anchor, pairs.candidate)
    for among in (True, False):
        value = info_nce(pairs, similarity, temperature=0.3, positive_in_denominator=among)
        expected = reference.info_nce(
            similarity,
            layout.positives,
            layout.negatives,
            temperature=0.3,
            positive_in_denominator=among,
        )
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_same_label_takes_one_whole_number_for_each_row() -> None:
    for label in (torch.zeros(3), torch.tensor([0, 1]), torch.tensor([[0], [1], [1]])):
        with pytest.raises(ValueError, match="one whole number for each of the 3 rows; got"):
            same_label(rows(3), label)


def test_same_label_over_processes_has_the_classes_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes, this one the second, and what a gather collects."""
    label = torch.tensor([0, 1, 1, 2])
    embedding = rows(4)
    monkeypatch.setattr("shared.pairs.part", lambda count: slice(count // 2, count))

    def gather(local: Tensor) -> Tensor:
        whole = embedding if local.is_floating_point() else label[:, None]
        assert torch.equal(local, whole[2:])
        return whole

    part, whole = same_label(embedding[2:], label[2:], gather=gather), same_label(embedding, label)
    assert torch.equal(part.candidate, embedding)
    for name in ("positive", "negative"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[2:])


# Numbers


@pytest.mark.parametrize(
    ("loss", "numbers", "message"),
    [
        (info_nce, {"temperature": -1.0}, "temperature is positive and finite; got -1.0"),
        (info_nce, {"temperature": math.nan}, "temperature is positive and finite; got nan"),
        (info_nce, {"temperature": "0.5"}, "temperature is positive and finite; got '0.5'"),
        (info_nce, {"temperature": torch.full((12,), 0.5)}, r"scalar tensor .* shape \(12,\)"),
        (info_nce, {"temperature": torch.tensor(1)}, "scalar tensor .* torch.int64"),
        (
            info_nce,
            {"temperature": torch.tensor(-0.5)},
            r"temperature is positive and finite; got tensor\(-",
        ),
        (
            info_nce,
            {"temperature": 0.5, "positive_in_denominator": "no"},
            "positive_in_denominator is True or False; got 'no'",
        ),
        (debiased_nce, {"temperature": 0.5, "tau_plus": 1.0}, "tau_plus is a probability below 1"),
        (
            hard_nce,
            {"temperature": 0.5, "tau_plus": 0.1, "beta": math.nan},
            "beta is at least 0 and finite; got nan",
        ),
        (
            hard_nce,
            {"temperature": 0.5, "tau_plus": 0.1, "beta": 1.0, "detach_weights": 2},
            "detach_weights is True or False; got 2",
        ),
        (margin_nce, {"temperature": 0.5, "angular": math.nan}, "angular is a finite number"),
        (margin_nce, {"temperature": 0.5, "subtractive": math.inf}, "subtractive is a finite"),
        (
            margin_nce,
            {"temperature": 0.5, "emphasis": -1.0},
            "emphasis is at least 0 and finite; got -1.0",
        ),
        (margin_nce, {"temperature": 0.5, "attenuation": 2}, r"attenuation lies in \[0, 1\]"),
        (margin_nce, {"temperature": 0.5, "curvature_form": "eq"}, "curvature_form is 'equation_"),
        (alignment, {"curvature": 0.0}, "curvature is positive and finite, or None; got 0"),
        (max_margin, {"ridge": 0.0}, "ridge is positive and finite; got 0.0"),
        (max_margin, {"steps": 2.5}, "steps is a positive whole number; got 2.5"),
        (max_margin, {"step_size": -1e-3}, "step_size is positive and finite, or None; got -0.001"),
        (max_margin, {"offset": math.nan}, "offset is a finite number; got nan"),
        (max_margin, {"kernel": "poly"}, "kernel is 'rbf', 'linear' or 'tanh'; got 'poly'"),
        (max_margin, {"steps": math.inf}, "steps is a positive whole number; got inf"),
        (info_nce, {"temperature": math.inf}, "temperature is positive and finite; got inf"),
        (distance_polarization, {"lower": "a"}, "lower is a finite number; got 'a'"),
        (consistency, {"temperature": 0.0}, "temperature is positive and finite; got 0"),
        (consistency, {"with_positive": 1}, "with_positive is True or False; got 1"),
        (distance_polarization, {"lower": 0.6}, "got lower 0.6, upper 0.5"),
        (distance_polarization, {"among": "positives"}, "among is 'negatives', 'all' or 'anchors'"),
    ],
)
def test_numbers_out_of_range_are_refused_by_term_and_by_the_function_alike(
    loss: Loss, numbers: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        term(loss, **numbers)
    with pytest.raises(ValueError, match=message):
        loss(*twelve(), **numbers)


def mine(pairs: Pairs, similarity: Tensor, *, temperature: float) -> Tensor:
    return similarity.sum(1) * temperature


def test_a_function_of_ones_own_has_its_own_ranges() -> None:
    assert term(mine, temperature=-1.0).numbers == {"temperature": -1.0}


# Nothing to compare


EMPTY: dict[str, Callable[[Tensor, Tensor], Pairs]] = {
    "two views": two_views,
    "second view": lambda x, y: two_views(x, y, anchors="second"),
    "query key": query_key,
    "bank": lambda x, y: query_key(x, y, torch.randn(3, 4)),
    "context window": context_window,
    "local global": lambda x, y: local_global(x, y, torch.zeros(0, dtype=torch.int64)),
    "nodes of no graph": lambda x, y: local_global(x, torch.randn(3, 4), torch.tensor([]).long()),
    "same label": lambda x, y: same_label(torch.cat([x, y]), torch.zeros(0, dtype=torch.int64)),
}
PARTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    **{
        f"{reduction} {among}": {
            "penalties": (term(distance_polarization, reduction=reduction, among=among),)
        }
        for reduction in ("anchor_sum", "mean", "sum")
        for among in ("negatives", "anchors")
    },
    "paper": {"projection": Projection(options={"norm": "none"})},
    "authors": {"projection": Projection(options={"norm": "none", "form": "authors"})},
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("builder", EMPTY)
def test_without_anchors_the_criterion_is_zero_with_gradient(builder: str, parts: str) -> None:
    names = ("distance_polarization", "band_statistics")
    for name in DOORS:
        if name in names:
            continue
        loss, numbers = DOORS[name]
        leaves = [torch.zeros(0, 4, requires_grad=True) for _ in range(2)]
        weight = torch.ones(4, 4, requires_grad=True)
        criterion = Objective(term(loss, **numbers), **PARTS[parts]).build(4)
        value, found = criterion(EMPTY[builder](*(leaf @ weight for leaf in leaves)))
        assert float(value.detach()) == 0
        assert all(float(part) == 0 for part in found.values())
        value.backward()
        assert weight.grad is not None
        assert (weight.grad == 0).all()
