"""A step in chunks is the step of the whole batch: loss, gradient, and what dropout drew."""

import copy
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shared import (
    Objective,
    Projection,
    consistency,
    distance_polarization,
    hard_nce,
    in_chunks,
    info_nce,
    large_batch,
    max_margin,
    query_key,
    term,
)
from shared.chunks import check_chunk, split
from shared.compat import make_torchvision_importable
from tests import agreement

make_torchvision_importable()

HARD = Objective(term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0))
OBJECTIVES = {
    "every part": Objective(
        term(info_nce, temperature=nn.Parameter(torch.tensor(0.5))),
        (term(distance_polarization, weight=0.3), term(consistency, weight=0.2)),
        Projection(weight=0.1, options={"norm": "l21", "alpha": 0.1}),
    ),
    "solver": Objective(term(max_margin, gamma=2.0)),
    "weights": HARD,
}


def encoder(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), *layers, nn.Tanh(), nn.Linear(32, 5)).double()


def views(count: int = 22) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, count, 6, generator=generator, dtype=torch.float64)


def gradients(loss: Tensor, *modules: nn.Module) -> list[Tensor]:
    parameters = [each for module in modules for each in module.parameters()]
    found = torch.autograd.grad(loss, [each for each in parameters if each.requires_grad])
    return [each.to_dense() if each.is_sparse else each for each in found]


def check_equal(
    mine: tuple[Tensor, Sequence[Tensor]], whole: tuple[Tensor, Sequence[Tensor]], limit: float
) -> None:
    """The loss to a share of itself, or of 1; the gradient to a share of its length."""
    mine_value, value = mine[0].detach(), whole[0].detach()
    assert abs(mine_value - value) <= limit * value.abs().clamp(min=1)
    found, gradient = (torch.cat([each.flatten() for each in some[1]]) for some in (mine, whole))
    assert gradient.norm() > 0
    assert (found - gradient).norm() <= limit * gradient.norm()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives(name: str) -> None:
    network, criterion = encoder(), OBJECTIVES[name].build(dim=5).double()
    found = large_batch(network, criterion, views(), chunk=4)
    plain = criterion.of_views(*map(network, views()))
    modules = (network, criterion)
    check_equal((found, gradients(found, *modules)), (plain, gradients(plain, *modules)), 1e-10)


def test_other_builders_and_several_tensors_a_view() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder()

        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return self.inner(x * weight)

    network = Weighted()
    criterion = HARD.build(dim=5)
    weighted = [(view, view.abs()) for view in views()]
    found = large_batch(network, criterion, weighted, chunk=4)
    plain = criterion.of_views(*(network(*each) for each in weighted))
    check_equal((found, gradients(found, network)), (plain, gradients(plain, network)), 1e-10)

    query, key = (in_chunks(network, split(4, *each), network) for each in weighted)
    found = criterion(query_key(query, key))[0]
    plain = criterion(query_key(*(network(*each) for each in weighted)))[0]
    check_equal((found, gradients(found, network)), (plain, gradients(plain, network)), 1e-10)


def by_chunks(network: nn.Module, view: Tensor, chunk: int) -> Tensor:
    """The embeddings of chunks one after the other, every activation of which is kept."""
    return torch.cat([network(*each) for each in split(chunk, view)])


def test_dropout_draws_the_same_numbers_again() -> None:
    network = encoder(nn.Dropout(0.5))
    criterion = HARD.build(dim=5)
    torch.manual_seed(3)
    found = large_batch(network, criterion, views(), chunk=4)
    torch.rand(7)  # what is drawn before the gradient is taken does not matter
    before = torch.get_rng_state()
    mine = gradients(found, network)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    plain = criterion.of_views(*(by_chunks(network, each, 4) for each in views()))
    check_equal((found, mine), (plain, gradients(plain, network)), 1e-10)
    torch.manual_seed(4)
    other = large_batch(network, criterion, views(), chunk=4)
    assert (other - found).abs() > 1e-3


def test_batch_norm_sees_chunks_and_its_statistics_follow_each_once() -> None:
    network = encoder(nn.BatchNorm1d(32))
    other = copy.deepcopy(network)
    criterion = HARD.build(dim=5)
    found = large_batch(network, criterion, views(), chunk=4)
    mine = gradients(found, network)
    plain = criterion.of_views(*(by_chunks(other, each, 4) for each in views()))
    check_equal((found, mine), (plain, gradients(plain, other)), 1e-10)
    for name, buffer in other.named_buffers():
        assert torch.equal(network.get_buffer(name), buffer), name
    whole = criterion.of_views(*map(network, views()))
    assert (whole - found).abs() > 1e-3
    network.eval()
    found = large_batch(network, criterion, views(), chunk=4)
    plain = criterion.of_views(*map(network, views()))
    check_equal((found, gradients(found, network)), (plain, gradients(plain, network)), 1e-10)


def test_autocast_is_that_of_the_first_time() -> None:
    network = encoder().float()
    criterion = HARD.build(dim=5)
    both = views().float()
    with torch.autocast("cpu", torch.bfloat16):
        found = large_batch(network, criterion, both, chunk=4)
    mine = gradients(found, network)
    with torch.autocast("cpu", torch.bfloat16):
        plain = criterion.of_views(*(by_chunks(network, each, 4) for each in both))
    # Gradients of weights are sums of numbers rounded to bfloat16, in another order.
    check_equal((found, mine), (plain, gradients(plain, network)), 1e-2)
    assert torch.equal(found, plain)
    exact = criterion.of_views(*map(network, both))
    assert (exact - found).abs() > 1e-5


def test_no_call_has_more_than_a_chunk_and_one_chunk_is_called_once() -> None:
    seen: list[int] = []

    def spied(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        return network(rows)

    network, criterion = encoder(), HARD.build(dim=5)
    large_batch(spied, criterion, views(), chunk=4).backward()
    assert max(seen) == 4
    assert sorted(seen) == sorted([4, 4, 4, 4, 3, 3] * 4)  # 22 rows, two views, both passes
    seen.clear()
    large_batch(spied, criterion, views(), chunk=22).backward()
    assert seen == [22, 22]


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    criterion = HARD.build(dim=5)
    for chunk in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="chunk is a positive whole number"):
            large_batch(encoder(), criterion, views(), chunk)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="chunk is a positive whole number, or None"):
            check_chunk(chunk)  # type: ignore[arg-type]
    monkeypatch.setattr("shared.chunks.world_size", lambda: 2)
    check_chunk(None)
    with pytest.raises(ValueError, match="is for one process"):
        check_chunk(4)


# The steps of the domains: the same networks on the same batch, with and without chunks.


def taken(
    domain: str, kind: str, dtype: torch.dtype = torch.float64, **changes: Any
) -> dict[str, Tensor]:
    """With batch norms fixed, which see each chunk by itself."""
    step, cpu = agreement.STEPS[domain](**changes)[kind], torch.device("cpu")
    with mock.patch.object(_BatchNorm, "train", lambda norm, _: nn.Module.train(norm, False)):
        return agreement.taken(step, Objective(term(info_nce, temperature=0.3)), cpu, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("domain", "kind"),
    [
        ("vision", "SimCLR, every loss"),
        ("vision", "MoCo v3"),
        ("text", "GRU, cosine, every loss"),
        ("text", "bag of words"),
        ("rl", "the agent, bilinear"),
        ("graph", "GIN, every loss"),
        ("video", "SimCLR, every loss"),
    ],
)
def test_the_steps_of_the_domains(domain: str, kind: str) -> None:
    changes = {"update": "rows"} if kind == "bag of words" else {}  # of sparse gradients
    sides = (taken(domain, kind, chunk=chunk, **changes) for chunk in (None, 7))
    errors = agreement.errors_of(*sides)
    limits = {"loss": 1e-10, "gradient": 1e-10}
    if domain in ("rl", "video"):  # which lift features to single precision
        limits = agreement.OF_VIDEO if domain == "video" else {"loss": 1e-5, "gradient": 1e-5}
    assert errors["loss"] <= limits["loss"]
    assert 0 < errors["gradient"] <= limits["gradient"]  # summed in another order


def test_a_chunk_of_images_is_rounded_to_bfloat16_in_both_passes() -> None:
    half, chunked, single = (
        taken("vision", "SimCLR, every loss", torch.float32, **changes)
        for changes in ({"precision": "bfloat16"}, {"precision": "bfloat16", "chunk": 16}, {})
    )
    same, other = agreement.errors_of(half, chunked), agreement.errors_of(half, single)
    assert same["loss"] < 1e-6 < other["loss"]
    assert same["gradient"] < 2e-2 < other["gradient"]


def test_methods_without_negatives_of_the_batch_take_no_chunk() -> None:
    import video.encoder
    import vision.methods
    from video.config import Config as Video
    from vision.config import Config as Vision

    with pytest.raises(ValueError, match="moco_v2 has none; leave chunk out"):
        vision.methods.check(Vision(method="moco_v2", chunk=8))
    with pytest.raises(ValueError, match="moco has none; leave chunk out"):
        video.encoder.check(Video(method="moco", chunk=8))
    vision.methods.check(Vision(chunk=8))
    video.encoder.check(Video(method="simclr", chunk=8))
