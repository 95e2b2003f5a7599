"""SwAV's loss against an independent program; its queue and its prototypes: test_plain."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import cosine
from vision.methods.swav import codes, crop_pairs, swapped_prediction

CASES = json.loads((Path(__file__).parents[1] / "parity" / "vision" / "swav.json").read_text())


def test_codes_are_finite_where_the_exponentials_are_not() -> None:
    scores = torch.linspace(-1, 1, 20).view(4, 5)
    assert torch.isfinite(codes(scores, epsilon=1e-4, iterations=3)).all()


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
