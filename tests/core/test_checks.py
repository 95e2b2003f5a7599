"""What losses, penalties and runs refuse, and what N = 0 gives."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import shared
from shared import (
    Criterion,
    Objective,
    Pairs,
    Projection,
    alignment,
    context_window,
    cosine,
    distance_polarization,
    info_nce,
    local_global,
    query_key,
    same_label,
    term,
    two_views,
)
from shared.experiment.run import Run
from shared.ranges import require_words
from tests.stages import layouts
from tests.stages.simulated_device import SimulatedDevice

DOORS: dict[str, dict[str, Any]] = {
    "info_nce": {"temperature": 0.5},
    "debiased_nce": {"temperature": 0.5, "tau_plus": 0.1},
    "hard_nce": {"temperature": 0.5, "tau_plus": 0.1, "beta": 1.0},
    "margin_nce": {"temperature": 0.5, "angular": 0.2},
    "alignment": {},
    "max_margin": {},
    "distance_polarization": {},
    "band_statistics": {},
    "consistency": {},
}
NEED_COSINES = [name for name in DOORS if name not in ("info_nce", "band_statistics")]


def rows(count: int, dim: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def twelve(core: Any = shared) -> tuple[Pairs, Tensor]:
    first, second = rows(12), rows(12, seed=1)
    return core.query_key(first, second), core.cosine(first, second)


# Similarities


@pytest.mark.parametrize("name", DOORS)
def test_similarities_of_another_kind_are_refused(name: str, core: Any) -> None:
    pairs, similarity = twelve(core)
    wrong = [
        (similarity[:, :1], r"\(12, 12\)"),
        (torch.cat([similarity, similarity], dim=1), r"\(12, 24\)"),
        (similarity.long(), "floating-point"),
    ]
    if name in NEED_COSINES:
        wrong += [(sign * similarity.abs() / 0.1, "cosines") for sign in (1, -1)]
    for given, word in wrong:
        with pytest.raises(ValueError, match=word):
            getattr(core, name)(pairs, given, **DOORS[name])
    getattr(core, name)(pairs, similarity, **DOORS[name])


def test_cosines_may_be_off_by_a_thousandth_and_what_is_ignored_by_anything(core: Any) -> None:
    case = layouts.make("masks", 6)
    pairs = case.pairs(list(case.leaves), core)
    similarity = core.cosine(pairs.anchor, pairs.candidate)
    ignored = ~(pairs.positive | pairs.negative)
    for value in (1e9, -math.inf, math.nan):
        loss = core.margin_nce(pairs, similarity.masked_fill(ignored, value), temperature=0.5)
        torch.testing.assert_close(loss, core.margin_nce(pairs, similarity, temperature=0.5))
    for mask in (pairs.positive, pairs.negative):
        for sign in (1, -1):
            core.margin_nce(pairs, similarity.masked_fill(mask, sign * 1.0009), temperature=0.5)
            moved = similarity.masked_fill(mask, sign * 1.0011).masked_fill(ignored, math.nan)
            with pytest.raises(ValueError, match=r"1\.001"):
                core.margin_nce(pairs, moved, temperature=0.5)


def test_a_floor_of_its_own_needs_no_cosines() -> None:
    pairs, similarity = twelve()
    for name in ("debiased_nce", "hard_nce"):
        loss, numbers = getattr(shared, name), DOORS[name]
        assert torch.isfinite(loss(pairs, 30 * similarity, **numbers, floor="minimum")).all()


def test_the_criterion_looks_at_cosines_every_so_many_steps_on_an_accelerator() -> None:
    with SimulatedDevice() as device:
        criterion = Criterion(Objective(term(alignment)), 4, check_every=5)
        pairs = query_key(rows(12).to("cuda"), rows(12, seed=1).to("cuda"))
        looks = []
        for step in (10, 11, 12, 14, 15):
            device.waits.clear()
            criterion(pairs, step=step)
            looks.append(any("check_cosines" in where for _, where in device.waits))
        assert looks == [True, False, False, False, True]
        criterion.similarity = lambda *both: 3 * cosine(*both)
        with pytest.raises(ValueError, match="cosines"):
            criterion(pairs, step=20)


# Numbers


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        *(("info_nce", "temperature", value) for value in (-1.0, math.nan, math.inf, "0.5", True)),
        ("info_nce", "temperature", torch.ones(12)),
        ("info_nce", "temperature", torch.tensor(1)),
        ("info_nce", "temperature", torch.tensor(-0.5)),
        ("info_nce", "positive_in_denominator", "no"),
        ("debiased_nce", "tau_plus", 1.0),
        ("hard_nce", "beta", math.nan),
        ("hard_nce", "detach_weights", 2),
        ("margin_nce", "angular", math.nan),
        ("margin_nce", "subtractive", math.inf),
        ("margin_nce", "emphasis", -1.0),
        ("margin_nce", "attenuation", 2),
        ("margin_nce", "curvature_form", "eq"),
        ("alignment", "curvature", 0.0),
        ("max_margin", "ridge", 0.0),
        ("max_margin", "steps", 2.5),
        ("max_margin", "step_size", -1e-3),
        ("max_margin", "offset", math.nan),
        ("max_margin", "kernel", "poly"),
        ("consistency", "temperature", 0.0),
        ("consistency", "with_positive", 1),
        ("distance_polarization", "lower", "a"),
        ("distance_polarization", "lower", 0.6),
        ("distance_polarization", "upper", 1.1),
        ("distance_polarization", "reduction", "max"),
        ("distance_polarization", "among", "any"),
    ],
)
def test_numbers_out_of_range_are_refused_by_term_and_by_the_function_alike(
    name: str, argument: str, value: Any, core: Any
) -> None:
    numbers = DOORS[name] | {argument: value}
    with pytest.raises(ValueError, match=argument):
        term(getattr(shared, name), **numbers)
    with pytest.raises(ValueError, match=argument):
        getattr(core, name)(*twelve(core), **numbers)


def mine(pairs: Pairs, similarity: Tensor, *, temperature: float) -> Tensor:
    return similarity.sum(1) * temperature


def test_a_function_of_ones_own_has_its_own_ranges() -> None:
    assert term(mine, temperature=-1.0).kwargs == {"temperature": -1.0}


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
PARTS: list[dict[str, Any]] = [
    *(
        {"penalties": (term(distance_polarization, reduction=reduction, among=among),)}
        for reduction, among in (("anchor_sum", "negatives"), ("mean", "anchors"))
    ),
    {"projection": Projection(kwargs={"norm": "none"})},
    {"projection": Projection(kwargs={"norm": "none", "form": "authors"})},
]


@pytest.mark.parametrize("builder", EMPTY)
def test_without_anchors_the_criterion_is_zero_with_gradient(builder: str) -> None:
    losses = [term(getattr(shared, name), **DOORS[name]) for name in [*DOORS][:6]]
    objectives = [*map(Objective, losses), *(Objective(losses[0], **part) for part in PARTS)]
    for objective in objectives:
        leaves = [torch.zeros(0, 4, requires_grad=True) for _ in range(2)]
        weight = torch.ones(4, 4, requires_grad=True)
        value, found = objective.build(4)(EMPTY[builder](*(leaf @ weight for leaf in leaves)))
        assert float(value.detach()) == 0
        assert all(float(part) == 0 for part in found.values())
        value.backward()
        assert weight.grad is not None
        assert (weight.grad == 0).all()


@dataclass(frozen=True)
class Words:
    size: Literal["small", "large"] = "small"
    layers: Literal[1, 2] | None = None
    policies: tuple[Literal["plain", "strong"], ...] = ("plain",)
    backbone: Literal["resnet"] | str = "resnet"
    seed: int = 0


@pytest.mark.parametrize(
    "changes", [{"size": "tiny"}, {"layers": 3}, {"layers": True}, {"policies": ("plain", "weak")}]
)
def test_a_run_refuses_words_that_its_configuration_cannot_have(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    require_words(Words(layers=2, policies=("strong", "plain"), backbone="mine"))
    with pytest.raises(ValueError, match=next(iter(changes))):
        Run(tmp_path, replace(Words(), **changes))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("rows", [torch.zeros(4, 3), torch.ones(4, 3)])
def test_a_collapsed_encoder_is_named_where_its_rows_are_copies(rows: torch.Tensor) -> None:
    criterion = Objective(term(info_nce, temperature=0.5)).build(3)
    with pytest.raises(ValueError, match="collapse"):
        criterion(two_views(rows, rows, ignore_duplicates=True))
    with pytest.raises(ValueError, match="larger batch"):
        criterion(two_views(rows[:1], rows[:1], ignore_duplicates=True))
