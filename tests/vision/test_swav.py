"""SwAV's loss against an independent program, its queue and its prototypes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import Criterion, Objective, cosine, term
from vision.config import Config
from vision.methods.base import Step
from vision.methods.swav import SwAV, codes, crop_pairs, swapped_prediction
from vision.train import make_optimiser, make_step

CASES = json.loads((Path(__file__).parents[1] / "parity" / "vision" / "swav.json").read_text())
LOSS = term(swapped_prediction)
SMALL = dataclasses.replace(
    Config().reduced(),
    method="swav",
    objective=Objective(LOSS),
    head_hidden=16,
    head_output=8,
    prototypes=5,
    queue=0,
    batch_size=6,
)


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


def views(count: int, config: Config = SMALL) -> tuple[Tensor, ...]:
    sizes = [8, 8, *[6] * (count - 2)]
    return tuple(torch.randn(config.batch_size, 3, side, side) for side in sizes)


def step(config: Config, networks: SwAV, epoch: float) -> dict[str, Tensor]:
    criterion = Criterion(config.objective, networks.dim)
    optimiser = make_optimiser(config, networks)
    return make_step(config, networks, criterion, optimiser)(views(2), Step(epoch=epoch))


def test_prototypes_have_length_1_and_stay_while_they_are_to() -> None:
    config = dataclasses.replace(SMALL, prototypes_still=1.0, learning_rate=0.1)
    networks = SwAV(config)
    weight = networks.prototypes.weight
    step(config, networks, 0.9)
    start = weight.detach().clone()
    torch.testing.assert_close(start.norm(dim=1), torch.ones(5))
    step(config, networks, 0.9)
    assert torch.equal(weight, start / start.norm(dim=1, keepdim=True))
    step(config, networks, 1.0)
    assert not torch.allclose(weight, start, atol=1e-4)


def test_the_queue_fills_from_its_epoch_on_and_counts_once_full() -> None:
    config = dataclasses.replace(SMALL, queue=9, queue_from=2.0)
    networks = SwAV(config)
    assert networks.queue is not None
    step(config, networks, 1.9)
    assert not networks.queue.any()
    now = Step(epoch=2.0)
    for filled in (6, 9):
        (pairs,), _ = networks.compare(views(2), now)
        assert pairs.older is None  # type: ignore[attr-defined]
        networks.remember([pairs], now)
        assert int(networks.queue.any(2).sum()) == 2 * filled
        newest = pairs.crops.detach()  # type: ignore[attr-defined]
        newest = newest / newest.norm(dim=2, keepdim=True)
        torch.testing.assert_close(networks.queue[:, :6], newest)
    (pairs,), _ = networks.compare(views(2), now)
    assert pairs.older is networks.queue  # type: ignore[attr-defined]
