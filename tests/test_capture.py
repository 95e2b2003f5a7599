"""What must not wait for an accelerator, looked at without one, on tensors that hold no numbers.

Whatever reads a number on the way (``.item()``, ``if tensor``, indexing by a mask) raises on the
meta device. What a library's kernels wait for inside cannot be seen here.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from rl import agent
from rl.agent import Agent
from rl.config import Config
from rl.replay import Batch
from shared import (
    Objective,
    Pairs,
    Projection,
    context_window,
    info_nce,
    query_key,
    term,
    two_views,
)
from shared.pairs import local_global
from tests.agreement import OBJECTIVES

META = torch.device("meta")


def windows(x: Tensor, z: Tensor) -> Pairs:
    return context_window(x, z, 1, document=torch.zeros(len(x), dtype=torch.int64, device=META))


def graphs(x: Tensor, z: Tensor) -> Pairs:
    return local_global(x, z, torch.zeros(len(x), dtype=torch.int64, device=META))


@pytest.fixture(autouse=True)
def no_autocast() -> Iterator[None]:
    """There is none on the meta device."""
    with (
        mock.patch("torch.autocast", return_value=contextlib.nullcontext()),
        mock.patch("torch.is_autocast_enabled", return_value=False),
    ):
        yield


def loss_of(
    objective: Objective, pairs: Callable[[Tensor, Tensor], Pairs], step: int = 1
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss, its parts, and the way back, all on the meta device."""
    criterion = objective.build(16)
    if criterion.projection is not None:
        criterion.projection._calls = 1  # at which it does not look at its norm
    criterion.to(META)
    x, z = (torch.empty(8, 16, device=META, requires_grad=True) for _ in range(2))
    loss, parts = criterion(pairs(x, z), features=[x, z], step=step)
    loss.backward()
    assert x.grad is not None
    return loss, parts


@pytest.mark.parametrize("pairs", [two_views, query_key, windows, graphs])
@pytest.mark.parametrize("name", [name for name, each in OBJECTIVES.items() if not each.waits])
def test_no_objective_reads_a_number(name: str, pairs: Callable[[Tensor, Tensor], Pairs]) -> None:
    loss, parts = loss_of(OBJECTIVES[name], pairs)
    assert loss.device == META
    assert all(part.device == META for part in parts.values())


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if "nuclear" in name])
def test_the_nuclear_norm_does_and_is_declared_to(name: str) -> None:
    assert OBJECTIVES[name].waits
    with pytest.raises(RuntimeError, match="meta tensor"):
        loss_of(OBJECTIVES[name], two_views)


def test_what_waits_is_the_solver_and_the_nuclear_norm_alone() -> None:
    waiting = {name for name, each in OBJECTIVES.items() if each.waits}
    assert waiting == {name for name in OBJECTIVES if "max_margin" in name or "nuclear" in name}
    loss = term(info_nce, temperature=0.5)
    assert not Objective(loss, projection=Projection()).waits
    assert not Objective(
        loss, projection=Projection(options={"form": "authors", "norm": "none"})
    ).waits


@pytest.mark.parametrize(
    "name", [name for name in OBJECTIVES if "max_margin" in name and "nuclear" not in name]
)
def test_the_solver_reads_no_number_either_whatever_its_library_does(name: str) -> None:
    loss_of(OBJECTIVES[name], two_views)


def test_a_look_at_the_loss_is_seen_here() -> None:
    """So that the tests above can fail: at a step that is looked at, a number is read."""
    with pytest.raises(RuntimeError, match="meta tensor"):
        loss_of(OBJECTIVES["info_nce"], two_views, step=50)


def on_meta(config: Config) -> Any:
    """An agent without numbers, and a batch for it."""

    def adam(parameters: Any, rate: float, first_beta: float = 0.9) -> torch.optim.Adam:
        return torch.optim.Adam(list(parameters), rate, betas=(first_beta, 0.999), foreach=False)

    with mock.patch.object(agent, "adam", adam):
        found = Agent(config, 2, device=META)
    shape = (3, config.batch_size, 3 * config.stack, config.crop, config.crop)
    crops = torch.empty(shape, dtype=torch.uint8, device=META)
    action = torch.empty(config.batch_size, 2, device=META)
    return found, Batch(*crops, action, torch.empty(config.batch_size, device=META))


@pytest.mark.parametrize("step", [1, 2])  # without and with a step of the actor
@pytest.mark.parametrize(
    "name", ["info_nce", "hard_nce", "margins", "info_nce, polarized", "info_nce, l21 projection"]
)
def test_an_update_of_the_agent_reads_no_number(name: str, step: int) -> None:
    config = Config(
        crop=44,
        filters=4,
        hidden=16,
        batch_size=4,
        objective=OBJECTIVES[name],
        similarity="cosine",
    )
    found, batch = on_meta(config)
    projection = found.contrast.criterion.projection
    if projection is not None:
        projection._calls = 1
    parts = found.update(batch, step)
    assert ("actor_loss" in parts) == (step % config.update_every == 0)
    assert all(part.device == META for part in parts.values())
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        found.check_finite(step)  # which does look
