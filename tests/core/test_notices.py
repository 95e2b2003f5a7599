"""A loss that stays where equal similarities have it is noticed, and the run's record says so."""

import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from toy.train import Config

from shared import (
    Criterion,
    Objective,
    Pairs,
    Term,
    alignment,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
    max_margin,
    query_key,
    term,
    two_views,
)
from shared.experiment.run import Run
from shared.monitor import COLLAPSE_CHECKS, WARM_UP
from shared.notices import listeners, notice

N, D = 16, 4
SOFTMAX = [
    term(info_nce, temperature=0.1),
    term(debiased_nce, temperature=0.1, tau_plus=0.1),
    term(hard_nce, temperature=0.1, tau_plus=0.1, beta=1.0),
    term(margin_nce, temperature=0.1, angular=0.2, subtractive=0.1),
]


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What is noticed, in place of its warnings."""
    texts: list[str] = []
    listeners.append(texts.append)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield texts
    listeners.remove(texts.append)


def alike(spread: float = 1e-3) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key of embeddings that are all but equal."""
    generator = torch.Generator().manual_seed(0)
    first, second = (1 + spread * torch.randn(N, D, generator=generator) for _ in range(2))
    return first, second


def steps_of(criterion: Criterion, pairs: Pairs, start: int = 0, stop: int = 500) -> None:
    for step in range(start, stop, 5):  # of which it looks at some
        criterion(pairs, step=step)


@pytest.mark.parametrize("loss", SOFTMAX, ids=lambda loss: loss.function.__name__)
def test_a_collapse_is_noticed_once_after_the_warm_up(loss: Term, heard: list[str]) -> None:
    criterion = Criterion(Objective(loss), D, check_every=20)
    pairs = query_key(*alike())
    last = WARM_UP + 20 * (COLLAPSE_CHECKS - 1)
    steps_of(criterion, pairs, WARM_UP - 60, last)
    assert heard == []
    criterion(pairs, step=last)
    (text,) = heard
    assert text.startswith(f"at step {last} the contrastive loss is ")
    steps_of(criterion, pairs, last + 1, last + 100)
    assert len(heard) == 1


def test_looks_at_collapsed_embeddings_count_in_a_row(heard: list[str]) -> None:
    criterion = Criterion(Objective(SOFTMAX[0]), D, check_every=20)
    apart = torch.eye(N, D) + torch.eye(N, D).roll(1, 0)
    for look in range(3 * COLLAPSE_CHECKS):
        views = alike() if look % COLLAPSE_CHECKS else (apart, apart)
        criterion(query_key(*views), step=WARM_UP + 20 * look)
    assert heard == []


def test_what_equal_similarities_give_is_the_logarithm_of_the_candidates(heard: list[str]) -> None:
    for pairs, count in ((query_key(*alike()), N), (two_views(*alike()), 2 * N - 1)):
        criterion = Criterion(Objective(SOFTMAX[0]), D, check_every=20)
        steps_of(criterion, pairs, WARM_UP)
        assert f"identical embeddings would give {math.log(count):.2f}:" in heard[-1]
    assert len(heard) == 2


def test_embeddings_that_tell_pairs_apart_are_not_noticed(heard: list[str]) -> None:
    torch.manual_seed(0)
    points = torch.randn(N, 64)
    for loss in SOFTMAX:
        criterion = Criterion(Objective(loss), 64, check_every=20)
        steps_of(criterion, query_key(points, points + 0.1 * torch.randn(N, 64)), WARM_UP)
    assert heard == []


def test_losses_without_a_softmax_and_calls_without_a_step_are_left_alone(heard: list[str]) -> None:
    pairs = query_key(*alike(spread=0.3))
    for loss in (term(alignment), term(max_margin, gamma=0.5, cost=1.0, ridge=0.1)):
        steps_of(Criterion(Objective(loss), D, check_every=20), pairs, WARM_UP, WARM_UP + 90)
    criterion = Criterion(Objective(SOFTMAX[0]), D, check_every=1)
    for _ in range(WARM_UP + 10):
        criterion(query_key(*alike()))
    assert heard == []


def hinge(pairs: Pairs, similarity: torch.Tensor, *, limit: float) -> torch.Tensor:
    """A loss of a user's, without a gradient where no negative is as similar as that."""
    return ((similarity - limit).relu() * pairs.negative).sum(1)


@pytest.mark.parametrize("penalties", [(), (term(distance_polarization, weight=0.1),)])
def test_a_loss_of_the_users_without_a_gradient_is_named_once(
    heard: list[str], penalties: tuple[Term, ...]
) -> None:
    def trained(limits: float, weight: float = 1.0) -> None:
        views = (torch.randn(N, D, requires_grad=True) for _ in range(2))
        objective = Objective(term(hinge, weight=weight, limit=limits), penalties)
        steps_of(Criterion(objective, D), query_key(*views))

    trained(limits=-1.0)
    trained(limits=1.0, weight=0.0)  # as the user wants it
    assert heard == []
    trained(limits=1.0)
    (text,) = heard
    assert "the gradient of hinge on the embeddings is 0" in text


def test_it_is_a_warning_and_does_not_change_the_loss() -> None:
    criterion = Criterion(Objective(SOFTMAX[0]), D, check_every=20)
    pairs = query_key(*alike())
    before, _ = criterion(pairs, step=0)
    with pytest.warns(RuntimeWarning, match="collapsed"):
        steps_of(criterion, pairs, WARM_UP)
    after, _ = criterion(pairs, step=WARM_UP)
    assert torch.equal(before, after)


def test_the_record_of_a_run_says_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def notices() -> list[str] | None:
        kept: list[str] | None = json.loads((folder / "environment.json").read_text()).get(
            "notices"
        )
        return kept

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with Run(folder, Config()) as run:
            run.track()
            assert notices() is None
            notice("first")
            run.checkpoint(1)
        notice("of nobody's run")
        with Run(folder, Config()) as run:  # goes on from the checkpoint
            run.track()
            notice("second")
            run.finish({"loss": 1.0})
        assert notices() == ["first", "second"]
        (folder / "checkpoint.pt").unlink()
        (folder / "result.json").unlink()
        with Run(folder, Config()):  # starts again
            assert notices() is None
    assert not listeners
