"""Values and gradients of the authors' own programs; see parity/README.md."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).resolve().parent.parent / "parity"
CASES: list[Any] = [
    pytest.param(case, id=f"{path.stem}-{place}-{case['loss']}")
    for path in sorted(FOLDER.glob("*.json"))
    for place, case in enumerate(json.loads(path.read_text()))
    if path.stem != "mmcl_pgd"
]


def mean_loss(case: dict[str, Any], first: Tensor, second: Tensor, core: Any) -> Tensor:
    """The case's loss by the core (or a copy of it): the mean over anchors."""
    settings, name = case["settings"], case["loss"]
    if name == "graphcl_nce":
        pairs = core.query_key(first, second)
        return core.info_nce(
            pairs,
            core.cosine(first, second),
            temperature=settings["temperature"],
            positive_in_denominator=False,
        ).mean()
    if name == "max_margin":
        assert settings["layout"] == "two_views, negatives of the first view only"
        assert settings["solver"] == "closed form"
        assert settings["kernel"] == "rbf exp(-|x-y|^2/gamma)"
        return core.max_margin(
            core.query_key(second, first),
            core.inner_product(second, first),
            gamma=1 / settings["gamma"],
            cost=settings["cost"],
            ridge=settings["ridge"],
        ).mean()
    if name in ("moco", "co2"):
        bank = torch.tensor(settings["bank"], dtype=torch.float64)
        pairs = core.query_key(first, second, bank, in_batch=False)
        similarity = core.cosine(first, pairs.candidate)
        numbers = {"temperature": settings["temperature"]}
        if name == "co2":
            return core.consistency(pairs, similarity, with_positive=True, **numbers).mean()
        return core.info_nce(pairs, similarity, **numbers).mean()
    if name == "supcon":
        views = {"both views": [first, second], "first view": [first]}
        chosen = views[settings["layout"].removeprefix("same_label, ")]
        rows = torch.cat(chosen)
        pairs = core.same_label(rows, torch.tensor(settings["label"]).repeat(len(chosen)))
        value = core.info_nce(pairs, core.cosine(rows, rows), temperature=settings["temperature"])
        # Anchors alone in their class do not count, there as in the criterion.
        mean: Tensor = value.sum() / pairs.positive.any(1).sum() + 0 * second.sum()
        return mean
    assert settings["layout"] == "two_views"
    losses: dict[str, Callable[..., Tensor]] = {
        "info_nce": core.info_nce,
        "debiased_nce": core.debiased_nce,
        "hard_nce": core.hard_nce,
    }
    pairs = core.two_views(first, second)
    numbers = {key: number for key, number in settings.items() if key != "layout"}
    similarity = core.inner_product(pairs.anchor, pairs.candidate)
    return losses[name](pairs, similarity, **numbers).mean()


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_those_of_the_authors_program(
    case: dict[str, Any], core: Any
) -> None:
    first = torch.tensor(case["first"], dtype=torch.float64, requires_grad=True)
    second = torch.tensor(case["second"], dtype=torch.float64, requires_grad=True)
    value = mean_loss(case, first, second, core)
    assert float(value.detach()) == pytest.approx(case["value"], rel=1e-12, abs=1e-12)
    for got, expected in zip(
        torch.autograd.grad(value, (first, second)),
        (case["grad_first"], case["grad_second"]),
        strict=True,
    ):
        torch.testing.assert_close(
            got, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize("place", range(6))
def test_projected_gradient_is_that_of_the_authors_program(place: int, core: Any) -> None:
    """Dual variables, steps, value and gradients, from the program's start."""
    case = json.loads((FOLDER / "mmcl_pgd.json").read_text())[place]
    settings = case["settings"]
    as_tensor = {name: torch.tensor(case[name], dtype=torch.float64) for name in ("start", "dual")}
    first = torch.tensor(case["first"], dtype=torch.float64, requires_grad=True)
    second = torch.tensor(case["second"], dtype=torch.float64, requires_grad=True)
    others = ~torch.eye(len(first), dtype=torch.bool)
    start = torch.zeros(others.shape, dtype=torch.float64)
    start[others] = as_tensor["start"].flatten()
    number = torch.tensor(settings["momentum_start"], dtype=torch.float64)
    found: list[tuple[Tensor, int]] = []
    solve = core.svm._projected_gradient

    def solved(*args: Any, **kwargs: Any) -> tuple[Tensor, int]:
        dual, steps = solve(*args, **kwargs)
        found.append((dual[others].clone(), steps))
        return dual, steps

    with (
        mock.patch.object(core.svm, "_random_start", return_value=start),
        mock.patch.object(core.svm, "_first_of_momentum", return_value=number),
        mock.patch.object(core.svm, "_projected_gradient", solved),
    ):
        value = core.max_margin(
            core.query_key(second, first),
            core.inner_product(second, first),
            gamma=settings["gamma"],
            cost=torch.inf if settings["C"] == -1 else settings["C"],
            ridge=settings["ridge"],
            solver="projected_gradient",
            steps=settings["most_steps"],
            step_size=settings["eta"],
            momentum={"nesterov": "nesterov", "vanilla": "none"}[settings["solver"]],
            stop=settings["stop"],
            start="random",
        ).mean()
    ((dual, steps),) = found
    assert steps == case["steps"]
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(dual, as_tensor["dual"].flatten(), **close)
    assert float(value.detach()) == pytest.approx(case["value"], rel=1e-10, abs=1e-10)
    for got, name in zip(
        torch.autograd.grad(value, (first, second)), ("grad_first", "grad_second"), strict=True
    ):
        torch.testing.assert_close(got, torch.tensor(case[name], dtype=torch.float64), **close)


def test_the_cases_are_there_and_can_fail(core: Any) -> None:
    cases = {case.values[0]["loss"]: case.values[0] for case in CASES}
    assert len(CASES) >= 20
    assert len(cases) == 8
    case, check = cases["info_nce"], test_value_and_gradients_are_those_of_the_authors_program
    with pytest.raises(AssertionError):
        check({**case, "value": case["value"] * (1 + 1e-11)}, core)
    moved = [[x + 1e-8 for x in row] for row in case["grad_second"]]
    with pytest.raises(AssertionError):
        check({**case, "grad_second": moved}, core)
