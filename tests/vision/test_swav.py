"""SwAV's loss against an independent program; its queue and its prototypes: test_plain."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import cosine, term
from vision.methods.swav import codes, crop_pairs, swapped_prediction

CASES = json.loads((Path(__file__).parents[1] / "parity" / "vision" / "swav.json").read_text())
LOSS = term(swapped_prediction)


def units(*shape: int, seed: int = 0) -> Tensor:
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows / rows.norm(dim=-1, keepdim=True)


def test_codes_use_the_prototypes_alike() -> None:
    found = codes(units(9, 4) @ units(3, 4, seed=1).T, epsilon=0.3, iterations=20)
    torch.testing.assert_close(found.sum(1), torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(found.sum(0), torch.full((3,), 3.0).double(), rtol=1e-3, atol=0)


def test_codes_are_finite_where_the_exponentials_are_not() -> None:
    assert torch.isfinite(codes(units(4, 3) @ units(5, 3).T, epsilon=1e-4, iterations=3)).all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['settings']['small'])} small")
def test_value_and_gradients_are_those_of_an_independent_program(case: dict[str, Any]) -> None:
    settings = case["settings"]

    def double(rows: Any) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    first, second = (double(case[name]).requires_grad_() for name in ("first", "second"))
    older = double(settings["queue"]) if settings["queue"] else None
    crops = torch.stack([first, second, *map(double, settings["small"])])
    pairs = crop_pairs(crops, double(settings["prototypes"]), older)
    numbers = {name: settings[name] for name in ("temperature", "epsilon", "iterations")}
    value = swapped_prediction(pairs, cosine(pairs.anchor, pairs.candidate), **numbers).mean()
    assert float(value.detach()) == pytest.approx(case["value"], rel=1e-12)
    for got, name in zip(
        torch.autograd.grad(value, (first, second)), ("first", "second"), strict=True
    ):
        torch.testing.assert_close(got, double(case[f"grad_{name}"]), rtol=1e-10, atol=1e-10)
