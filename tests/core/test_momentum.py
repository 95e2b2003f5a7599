"""Networks that follow others, and the bank of keys, against loops and bit for bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Teacher, enqueue, follow, mixed_negatives, random_bank
from shared.momentum import bank_size
from shared.pairs import unit_rows
from tests.stages import reference


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    return layers.to(dtype)


def values(module: nn.Module) -> list[float]:
    return [float(x) for item in module.parameters() for x in item.detach().flatten()]


def test_a_head_may_have_no_parameters() -> None:
    student, head = network(1), nn.Identity()
    teacher = Teacher(network(0), head)
    teacher.follow(student, head, 0.0)
    assert values(teacher) == values(student)


@pytest.mark.parametrize("rate", [0.0, 0.05, 1.0])
def test_following_equals_the_loop(rate: float) -> None:
    online, target = network(0), network(1).requires_grad_(False)
    start, kept = values(target), values(online)
    for _ in range(3):
        follow(target, online, rate)
        start = reference.following(start, kept, rate)
    torch.testing.assert_close(
        torch.tensor(values(target), dtype=torch.float64),
        torch.tensor(start, dtype=torch.float64),
        rtol=1e-12,
        atol=1e-14,
    )
    assert values(online) == kept
    assert not any(item.requires_grad for item in target.parameters())
    if rate == 1:
        assert values(target) == kept


def test_statistics_of_a_batch_norm_do_not_follow() -> None:
    online = network(0)
    target = copy.deepcopy(online)
    online(torch.randn(8, 3, dtype=torch.float64) + 5)
    follow(target, online, 1.0)
    assert torch.equal(target[1].running_mean, torch.zeros(5, dtype=torch.float64))


def test_a_copy_in_16_bits_is_no_average() -> None:
    online, target = network(0, torch.bfloat16), network(1, torch.bfloat16)
    follow(target, online, 1.0)
    assert values(target) == values(online)


def test_a_teacher_starts_as_the_student_and_takes_no_gradient() -> None:
    encoder, head = network(), nn.Linear(2, 4).double()
    teacher = Teacher(encoder, head).eval()
    # The names in checkpoints.
    assert set(teacher.state_dict()) == {
        f"{part}.{name}"
        for part, module in (("encoder", encoder), ("head", head))
        for name in module.state_dict()
    }
    inputs = torch.randn(6, 3, dtype=torch.float64)
    keys = teacher(inputs)
    assert torch.equal(keys, head(encoder.eval()(inputs)))
    assert not keys.requires_grad
    assert not any(item.requires_grad for item in teacher.parameters())
    assert all(item.requires_grad for item in (*encoder.parameters(), *head.parameters()))
    with torch.no_grad():
        encoder[0].weight.add_(1)
        head.bias.add_(2)
    weight, bias = teacher.encoder[0].weight.clone(), teacher.head.bias.clone()
    teacher.follow(encoder, head, momentum=0.75)
    torch.testing.assert_close(teacher.encoder[0].weight, weight + 0.25)
    torch.testing.assert_close(teacher.head.bias, bias + 0.5)


@pytest.mark.parametrize("batch", [3, 7, 9])
def test_the_bank_equals_the_loop(batch: int) -> None:
    torch.manual_seed(0)
    bank = random_bank(7, 4).double()
    rows: list[Tensor] = list(bank.clone())
    for _ in range(4):
        keys = torch.randn(batch, 4, requires_grad=True)
        enqueue(bank, keys)
        rows = reference.bank(rows, list(keys.detach()))
        torch.testing.assert_close(bank, torch.stack(rows).double(), rtol=1e-6, atol=1e-7)
    assert not bank.requires_grad


def test_a_bank_is_shorter_than_the_training_set() -> None:
    sizes = {count: bank_size(2048, count) for count in (9537, 2049, 2048, 819, 400, 24, 2)}
    assert sizes == {9537: 2048, 2049: 2048, 2048: 256, 819: 256, 400: 200, 24: 12, 2: 1}
    assert bank_size(16, 24) == 16


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: random_bank(0, 4), "queue 0"),
        (lambda: follow(network(0, torch.float32), network(1), 0.5), "float64"),
        (lambda: follow(nn.Sequential(*network()[:1]), network(), 0.5), "architecture"),
        (lambda: follow(nn.Linear(3, 5), nn.Linear(5, 3), 0.5), "architecture"),
        (lambda: follow(network(0, torch.float16), network(1, torch.float16), 0.001), "rounding"),
        (lambda: Teacher(network(), network()).follow(network(), network(), 2.0), "rate"),
        (lambda: mixed(hardest=8), "hardest is from 1 to the 7 keys"),
    ],
)
def test_what_cannot_be_used_is_refused(call: Callable[[], Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()


def mixed(hardest: int) -> Tensor:
    return mixed_negatives(
        torch.ones(2, 4), random_bank(7, 4), hardest=hardest, pairs=1, with_query=1
    )


def test_mixtures_are_of_a_query_s_own_hardest_keys() -> None:
    """The loop of the paper's Eqs. 3 and 4, with the draws in the order that they are made in."""
    torch.manual_seed(0)
    bank, queries = random_bank(12, 4), 3 * torch.randn(5, 4, requires_grad=True)
    torch.manual_seed(7)
    found = mixed_negatives(queries, bank, hardest=3, pairs=40, with_query=30)
    assert found.shape == (5, 70, 4)
    assert not found.requires_grad
    torch.manual_seed(7)
    shares = [torch.rand(5, 40, 1)]
    places = [torch.randint(3, (5, 40)), torch.randint(3, (5, 40))]
    shares.append(0.5 * torch.rand(5, 30, 1))
    places.append(torch.randint(3, (5, 30)))
    for row, query in enumerate(unit_rows(queries.detach())):
        cosines = [float((query * key).sum()) for key in bank]
        hardest = sorted(range(12), key=lambda k: -cosines[k])[:3]
        for place in range(40):
            one, two = (bank[hardest[int(places[i][row, place])]] for i in (0, 1))
            share = float(shares[0][row, place])
            mixture = (1 - share) * one + share * two
            torch.testing.assert_close(found[row, place], mixture / mixture.norm())
        for place in range(30):
            key, share = bank[hardest[int(places[2][row, place])]], float(shares[1][row, place])
            mixture = share * query + (1 - share) * key
            torch.testing.assert_close(found[row, 40 + place], mixture / mixture.norm())
    torch.manual_seed(7)
    half = mixed_negatives(queries.half(), bank.half(), hardest=3, pairs=40, with_query=30)
    torch.testing.assert_close(half, found, rtol=0, atol=1e-3)
    # With less than half of the query in it, a mixture lies nearer to the key.
    assert float(shares[1].max()) < 0.5
