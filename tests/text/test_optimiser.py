"""Adam that leaves rows alone until they are needed, against torch's, which does not."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared.experiment.randomness import seed_everything
from text.config import Config
from text.encoder import QuickThought
from text.optimiser import RowAdam, clip_each
from text.tokens import Batch
from text.train import make_criterion, make_optimiser, shape_of, train_step

WORDS, WIDTH = 40, 3


def batches(steps: int, rare: int = 150) -> list[tuple[Tensor, Tensor]]:
    """Words of each step, some of them rare, and the gradients of their tokens, of any size."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for step in range(steps):
        ids = torch.randint(0, WORDS - 10, (6,), generator=generator)
        if step % rare == 7:
            ids = torch.cat([ids, torch.arange(WORDS - 10, WORDS - 2)])
        scale = 10.0 ** torch.randint(-9, 2, (len(ids), 1), generator=generator)
        found.append((ids, scale * torch.randn(len(ids), WIDTH, generator=generator).double()))
    return found


def train(dtype: torch.dtype, steps: int, rate: float) -> tuple[Tensor, Tensor]:
    """The tables that both make of equal gradients."""
    start = torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    dense, rows = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    adam, ours = torch.optim.Adam([dense], lr=rate), RowAdam([rows], [], rate)
    for ids, values in batches(steps):
        gradient = torch.sparse_coo_tensor(
            ids[None], values.to(dtype), start.shape, check_invariants=True
        )
        dense.grad, rows.grad = gradient.to_dense(), gradient
        ours.catch_up(ids.unique())
        assert (rows[ids] - dense[ids]).abs().max() < (1e-6 if dtype == torch.float64 else 5e-6)
        adam.step()
        ours.step()
    ours.finish()
    assert torch.equal(rows[-2:], start[-2:])  # never met
    return rows.detach(), dense.detach()


@pytest.mark.parametrize(("dtype", "rate"), [(torch.float32, 5e-3), (torch.float64, 5e-4)])
def test_it_is_dense_adam_up_to_rounding(dtype: torch.dtype, rate: float) -> None:
    """With rows that wait for up to 150 steps, and gradients from below epsilon to above 1."""
    rows, dense = train(dtype, 400, rate)
    # Of single precision, dense Adam itself rounds 400 times.
    assert (rows - dense).abs().max() < (1e-6 if dtype == torch.float64 else 5e-6)
    assert (dense[:-2] - rows[-1]).abs().min() > 1e-3  # something moved


def config_of(**changes: Any) -> Config:
    small = dataclasses.replace(Config().reduced(), batch_size=20, vocabulary=200, embedding=8)
    return dataclasses.replace(small, hidden=8, learning_rate=5e-3, **changes)


def trained(config: Config, steps: int = 130) -> dict[str, Tensor]:
    seed_everything(0)
    model: Any = QuickThought(shape_of(config, 200)).double()  # rounding alone would tell apart
    criterion = make_criterion(config, model.dim).double()
    optimiser = make_optimiser(config, model, criterion)
    generator = torch.Generator().manual_seed(2)
    for step in range(steps):
        # Early words come often, late ones seldom.
        ids = (200 * torch.rand(20, 7, generator=generator) ** 3).long().clamp(min=2)
        mask = torch.arange(7) < torch.randint(1, 8, (20, 1), generator=generator)
        batch = Batch(ids.where(mask, 1), mask, torch.zeros(20, dtype=torch.int64))
        train_step(config, model, criterion, optimiser, batch, step)
    if isinstance(optimiser, RowAdam):
        optimiser.finish()
    state: dict[str, Tensor] = model.state_dict()
    return state


@pytest.mark.parametrize("encoder", ["gru", "bag_of_words"])
def test_a_training_by_rows_ends_where_a_dense_one_does(encoder: str) -> None:
    config = config_of(encoder=encoder)
    dense = trained(config)
    rows = trained(dataclasses.replace(config, update="rows"))
    for name, value in dense.items():
        torch.testing.assert_close(rows[name], value, atol=1e-6, rtol=0)


def test_it_goes_on_from_where_it_stopped() -> None:
    start = torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(1))
    tables = [nn.Parameter(start.clone()) for _ in range(3)]
    other = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    whole, first = (RowAdam([tables[n]], [other[n]], 1e-2) for n in (0, 1))
    second: RowAdam | None = None
    for step, (ids, values) in enumerate(batches(160, rare=20)):
        gradient = torch.sparse_coo_tensor(
            ids[None], values.float(), start.shape, check_invariants=True
        )
        if step == 130:
            tables[2].data.copy_(tables[1])
            other[2].data.copy_(other[1])
            second = RowAdam([tables[2]], [other[2]], 1e-2)
            second.load_state_dict(first.state_dict())
        for at, optimiser in ((0, whole), (1, first) if second is None else (2, second)):
            optimiser.zero_grad()
            tables[at].grad, other[at].grad = gradient.clone(), torch.full((2,), 0.01 * step)
            optimiser.catch_up(ids.unique())
            optimiser.step()
    assert second is not None
    whole.finish()
    second.finish()
    assert torch.equal(tables[0], tables[2])
    assert torch.equal(other[0], other[2])


# Clipping


def test_the_norm_of_a_table_s_gradient_is_over_words_or_tokens() -> None:
    """Two tokens of one word: (3, 0) and (1, 0) add up to norm 4; apart they have sqrt(10)."""
    for tokens, norm in ((False, 4.0), (True, 10**0.5)):
        table = nn.Parameter(torch.zeros(5, 2))
        values = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
        table.grad = torch.sparse_coo_tensor(
            torch.tensor([[2, 2]]), values, (5, 2), check_invariants=True
        )
        clip_each([table], 1.0, tokens=tokens)
        assert table.grad is not None
        assert table.grad.to_dense()[2].tolist() == pytest.approx([4.0 / norm, 0.0], abs=1e-5)
        clip_each([table], 100.0, tokens=tokens)
        assert table.grad.to_dense()[2].tolist() == pytest.approx([4.0 / norm, 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update": "lazy"}, "update is 'dense' or 'rows'; got 'lazy'"),
        ({"clip_words": "rows"}, "clip_words is 'words' or 'tokens'; got 'rows'"),
    ],
)
def test_other_names_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trained(config_of(**changes), 1)
