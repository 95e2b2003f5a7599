"""What a run costs: the first steps of its own loop, on made-up data, in a passing folder.

A domain's training is done with few items in a batch and with more, and the line through both drawn
on to the run's batch. What autograd keeps for the way back and what is tracked is counted as it is
kept. The loss is timed by itself, at the run's batch: solvers do not grow along lines.
"""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from shared.experiment.runs import (
    Run,
    Stateful,
    random_state,
    restore_random_state,
    seed_everything,
)
from shared.experiment.tables import Config, canonical_json
from shared.objective import Objective
from shared.pairs import Pairs, two_views

ENOUGH = 0.5  # seconds; where a step takes as long, none with more items is timed
GROWTH = 4  # times as many items in the next batch that is timed

Its = TypeVar("Its", bound=Config)


class _Enough(Exception):
    """The steps that were to be timed are done."""


@dataclass(frozen=True)
class Cost:
    """What a loop costs on this machine.

    Args:
        per_step: seconds of a step, however small its batch.
        per_item: seconds of a step for each item of its batch.
        fixed: bytes of what is tracked (parameters, optimisers, teachers) and of gradients.
        kept: bytes that a step keeps for its way back for each item of its batch.
    """

    per_step: float
    per_item: float
    fixed: float
    kept: float

    def seconds(self, batch: int) -> float:
        """Of a step with so many items."""
        return self.per_step + batch * self.per_item


class Trial(Run):
    """A run that takes a few steps, writes nothing of itself, and notes what each takes."""

    def __init__(self, folder: Path, config: Config, steps: int) -> None:
        super().__init__(folder, config)
        self.times: list[float] = []
        self.kept = 0
        self.held = 0
        self._steps = steps

    def record_data(self, **fingerprints: str) -> None:
        """Nothing: there is no environment to note them in."""

    def record(self, **facts: str) -> None:
        """Nothing, likewise."""

    def track(self, **objects: Stateful) -> int:
        """Remember what is held; there is nothing to restore."""
        self._tracked = objects
        return 0

    def log(self, step: int, **numbers: float) -> None:
        """Nothing: nobody reads it."""

    def steps(self, total: int, what: str, **options: Any) -> Iterator[int]:
        """The first steps; after them the training is left."""
        for step in range(min(total, self._steps)):
            self.means.take()
            sizes: dict[int, int] = {}

            def keep(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
                return tensor

            start = clock()
            with saved_tensors_hooks(keep, lambda tensor: tensor):
                yield step
            self.times.append(clock() - start)
            self.kept = sum(sizes.values())
        self.held = self._held()  # now: what is tracked may be closed as the training is left
        raise _Enough

    def _held(self) -> int:
        """Bytes of what is tracked, and of the gradients of its modules."""
        tensors = list(_tensors({name: item.state_dict() for name, item in self._tracked.items()}))
        for item in self._tracked.values():
            if isinstance(item, torch.nn.Module):
                tensors += [each.grad for each in item.parameters() if each.grad is not None]
        return sum({each.data_ptr(): each.nbytes for each in tensors}.values())


def cost_of(
    train: Callable[[Its, Run], object],
    config: Its,
    deciding: Mapping[str, Any],
    *,
    smallest: int = 2,
    largest: int = 256,
    skip: int = 1,
    cycle: int = 1,
) -> Cost:
    """What the loop of a training costs; equal questions are measured once.

    Args:
        train: calls :meth:`Run.steps` once, on data of any content.
        config: any with the class's defaults; it is trained with these, but for ``deciding``.
        deciding: the fields that decide what an item costs, and their values.
        smallest: items of the first batch that is timed.
        largest: items of the last, which steps of over half a second leave out.
        skip: steps before those that count, in which kernels are chosen.
        cycle: steps that differ and come again and again; their mean counts.
    """
    alike = dataclasses.replace(config, **deciding)
    key = f"{train.__module__}.{train.__qualname__} {torch.get_num_threads()}"
    name = f"{key} {canonical_json(alike)}"
    if name not in _costs:
        _costs[name] = _measured(train, alike, smallest, largest, skip, cycle)
    return _costs[name]


_costs: dict[str, Cost] = {}


def _measured(
    train: Callable[[Its, Run], object], config: Its, size: int, largest: int, skip: int, cycle: int
) -> Cost:
    tried: list[tuple[int, float, int]] = []
    while True:
        with tempfile.TemporaryDirectory() as folder, _generators_restored():
            sized = dataclasses.replace(config, batch_size=size)
            trial = Trial(Path(folder), sized, skip + 2 * cycle)
            seed_everything(config.seed)
            with contextlib.suppress(_Enough):
                train(sized, trial)
            held = trial.held
            rounds = [trial.times[at : at + cycle] for at in (skip, skip + cycle)]
            tried.append((size, min(sum(each) / cycle for each in rounds), trial.kept))
        if len(tried) > 1 and (size * GROWTH > largest or tried[-1][1] >= ENOUGH):
            break
        size *= GROWTH
    (few, shorter, less), (more, longer, most) = tried[0], tried[-1]
    per_item = max(0.0, longer - shorter) / (more - few)
    return Cost(
        per_step=max(0.0, shorter - few * per_item),
        per_item=per_item,
        fixed=float(held),
        kept=max(0.0, (most - less) / (more - few)),
    )


_losses: dict[str, float] = {}


def seconds_of_loss(
    objective: Objective,
    batch: int,
    dim: int,
    pairs: Callable[[Tensor, Tensor], Pairs] = two_views,
) -> float:
    """Seconds of a loss and its gradient for two views (batch, dim) of random directions.

    Penalties and projections are left out; equal questions are measured once.
    """
    name = f"{canonical_json(objective.loss)} {batch} {dim} {pairs.__qualname__}"
    if name not in _losses:
        _losses[name] = _timed_loss(Objective(objective.loss), batch, dim, pairs)
    return _losses[name]


def _timed_loss(
    objective: Objective, batch: int, dim: int, pairs: Callable[[Tensor, Tensor], Pairs]
) -> float:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, batch, dim, generator=generator).to(device).requires_grad_()
    criterion = objective.build(dim).to(device)
    times = []
    for _ in range(2):  # the first also chooses kernels
        start = clock()
        criterion(pairs(views[0], views[1]), step=1)[0].backward()
        times.append(clock() - start)
    return min(times)


def clock() -> float:
    """Seconds; on the CPU of the processor for each thread, which no other process stretches."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()


@contextlib.contextmanager
def _generators_restored() -> Iterator[None]:
    """Whoever plans keeps the random numbers that were to come."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
