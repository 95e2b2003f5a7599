"""A step in chunks is the step of the whole batch: loss, gradient, and what dropout drew."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import (
    Criterion,
    Objective,
    Projection,
    alignment,
    consistency,
    debiased_nce,
    distance_polarization,
    hard_nce,
    in_chunks,
    info_nce,
    large_batch,
    margin_nce,
    max_margin,
    query_key,
    term,
)
from shared.chunks import check_chunk, split
from tests.stages.rounding import lengths_of, rounding

LOSSES = {
    "info_nce": term(info_nce, temperature=nn.Parameter(torch.tensor(0.5))),
    "debiased_nce": term(debiased_nce, temperature=0.5, tau_plus=0.1),
    "hard_nce": term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0),
    "margin_nce": term(margin_nce, temperature=0.5, angular=0.2),
    "max_margin": term(max_margin, gamma=2.0),
    "alignment": term(alignment),
}
PENALTIES = (term(distance_polarization, weight=0.3), term(consistency, weight=0.2))


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


def assert_equal(
    mine: tuple[Tensor, Sequence[Tensor]], whole: tuple[Tensor, Sequence[Tensor]], limit: float
) -> None:
    """The loss to a share of itself, or of 1; the gradient to a share of its length."""
    mine_value, value = mine[0].detach(), whole[0].detach()
    assert abs(mine_value - value) <= limit * value.abs().clamp(min=1)
    found, gradient = (torch.cat([each.flatten() for each in some[1]]) for some in (mine, whole))
    assert gradient.norm() > 0
    assert (found - gradient).norm() <= limit * gradient.norm()


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_penalty_and_projection(name: str, penalised: bool, projected: bool) -> None:
    projection = Projection(weight=0.1, kwargs={"norm": "l21", "alpha": 0.1})
    objective = Objective(
        LOSSES[name], PENALTIES if penalised else (), projection if projected else None
    )
    network, criterion = encoder(), objective.build(dim=5).double()
    found = large_batch(network, criterion, views(), chunk=4)
    plain = criterion.of_views(*map(network, views()))
    modules = (network, criterion)
    assert_equal((found, gradients(found, *modules)), (plain, gradients(plain, *modules)), 1e-10)


def test_other_builders_and_several_tensors_a_view() -> None:
    inner = encoder()

    def network(x: Tensor, weight: Tensor) -> Tensor:
        return inner(x * weight)

    criterion = Objective(term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0)).build(dim=5)
    weighted = [(view, view.abs()) for view in views()]
    found = large_batch(network, criterion, weighted, chunk=4, modules=[inner])
    plain = criterion.of_views(*(network(*each) for each in weighted))
    assert_equal((found, gradients(found, inner)), (plain, gradients(plain, inner)), 1e-10)

    query, key = (in_chunks(network, split(4, *each), inner) for each in weighted)
    torch.testing.assert_close(key, network(*weighted[1]))  # row by row
    found = criterion(query_key(query, key))[0]
    plain = criterion(query_key(*(network(*each) for each in weighted)))[0]
    assert_equal((found, gradients(found, inner)), (plain, gradients(plain, inner)), 1e-10)


def by_chunks(network: nn.Module, view: Tensor, chunk: int) -> Tensor:
    """The embeddings of chunks one after the other, every activation of which is kept."""
    return torch.cat([network(*each) for each in split(chunk, view)])


def test_dropout_draws_the_same_numbers_again() -> None:
    network = encoder(nn.Dropout(0.5))
    criterion = Objective(LOSSES["info_nce"]).build(dim=5).double()
    torch.manual_seed(3)
    found = large_batch(network, criterion, views(), chunk=4)
    torch.rand(7)  # what is drawn before the gradient is taken does not matter
    before = torch.get_rng_state()
    mine = gradients(found, network)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    plain = criterion.of_views(*(by_chunks(network, each, 4) for each in views()))
    assert_equal((found, mine), (plain, gradients(plain, network)), 1e-10)
    torch.manual_seed(4)
    other = large_batch(network, criterion, views(), chunk=4)
    assert (other - found).abs() > 1e-3


def test_batch_norm_sees_chunks_and_its_statistics_follow_each_once() -> None:
    network = encoder(nn.BatchNorm1d(32))
    other = copy.deepcopy(network)
    criterion = Objective(LOSSES["hard_nce"]).build(dim=5)
    found = large_batch(network, criterion, views(), chunk=4)
    mine = gradients(found, network)
    plain = criterion.of_views(*(by_chunks(other, each, 4) for each in views()))
    assert_equal((found, mine), (plain, gradients(plain, other)), 1e-10)
    for name, buffer in other.named_buffers():
        assert torch.equal(network.get_buffer(name), buffer), name
    whole = criterion.of_views(*map(network, views()))
    assert (whole - found).abs() > 1e-3
    network.eval()
    found = large_batch(network, criterion, views(), chunk=4)
    plain = criterion.of_views(*map(network, views()))
    assert_equal((found, gradients(found, network)), (plain, gradients(plain, network)), 1e-10)


def test_autocast_is_that_of_the_first_time() -> None:
    network = encoder().float()
    criterion = Objective(LOSSES["info_nce"]).build(dim=5)
    both = views().float()
    with torch.autocast("cpu", torch.bfloat16):
        found = large_batch(network, criterion, both, chunk=4)
    mine = gradients(found, network)
    with torch.autocast("cpu", torch.bfloat16):
        plain = criterion.of_views(*(by_chunks(network, each, 4) for each in both))
    # Gradients of weights are sums of numbers rounded to bfloat16, in another order.
    assert_equal((found, mine), (plain, gradients(plain, network)), 1e-2)
    assert torch.equal(found, plain)
    exact = criterion.of_views(*map(network, both))
    assert (exact - found).abs() > 1e-5


def test_no_call_has_more_than_a_chunk_and_one_chunk_is_called_once() -> None:
    seen: list[int] = []

    def spied(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        return network(rows)

    network, criterion = encoder(), Objective(LOSSES["hard_nce"]).build(dim=5)
    large_batch(spied, criterion, views(), chunk=4, modules=[network]).backward()
    assert max(seen) == 4
    assert sorted(seen) == sorted([4, 4, 4, 4, 3, 3] * 4)  # 22 rows, two views, both passes
    seen.clear()
    large_batch(spied, criterion, views(), chunk=22).backward()
    assert seen == [22, 22]


def test_unusable_chunks_views_and_criteria_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    criterion = Objective(LOSSES["hard_nce"]).build(dim=5)
    for chunk in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="chunk"):
            large_batch(encoder(), criterion, views(), chunk)  # type: ignore[arg-type]
    for arguments, word in (
        ((encoder(), criterion, (*views(), views()[0])), "3"),
        ((encoder().forward, criterion, views()), "modules"),
        ((encoder(), Objective(LOSSES["hard_nce"]), views()), r"build\(dim\)"),
    ):
        with pytest.raises(ValueError, match=word):
            large_batch(*arguments, 4)  # type: ignore[arg-type]
    monkeypatch.setattr("shared.chunks.world_size", lambda: 2)
    check_chunk(None)
    with pytest.raises(ValueError, match="one process"):
        check_chunk(4)


# The steps of the domains: the same networks on the same batch, with and without chunks.

Step = Callable[[Any], Tensor]


def vision_step(method: str, dtype: torch.dtype) -> tuple[Any, list[nn.Module], Step]:
    from vision.config import Config
    from vision.methods import networks_of
    from vision.methods.base import Step
    from vision.train import loss_of_views

    config = dataclasses.replace(
        Config().reduced(),
        backbone="resnet8",
        method=method,
        symmetric=method == "moco_v3",
        batch_size=10,
    )
    networks = networks_of(config).to(dtype).eval()
    criterion = Criterion(config.objective, networks.dim)
    batch = tuple(torch.randn(2, 10, 3, 8, 8, dtype=dtype))

    def step(config: Config) -> Tensor:
        networks.config = config
        return loss_of_views(config, networks, criterion, batch, Step())[0]

    return config, [networks], step


def text_step(kind: str, dtype: torch.dtype) -> tuple[Any, list[nn.Module], Step]:
    from text.config import Config
    from text.encoder import QuickThought
    from text.tokens import Batch
    from text.train import loss_of_batch, make_criterion, shape_of

    config = dataclasses.replace(Config().reduced(), encoder=kind, batch_size=10)
    model = QuickThought(shape_of(config, 40)).to(dtype)
    criterion = make_criterion(config, model.dim)
    mask = torch.arange(7) < torch.randint(1, 8, (10, 1))
    batch = Batch(torch.randint(2, 40, (10, 7)) * mask, mask, torch.zeros(10, dtype=torch.int64))
    return config, [model], lambda config: loss_of_batch(config, model, criterion, batch, 0)[0]


def rl_step(_: str, dtype: torch.dtype) -> tuple[Any, list[nn.Module], Step]:
    from rl.agent import Contrast
    from rl.config import ProbeConfig

    config = ProbeConfig().reduced()
    contrast = Contrast(config).to(dtype)
    crops = torch.randint(256, (2, 10, 9, config.crop, config.crop), dtype=torch.uint8)

    def step(config: Any) -> Tensor:
        contrast.config = config
        return contrast.loss(crops[0], crops[1], 0)[0]

    return config, [contrast.encoder, contrast.criterion], step


def graph_step(network: str, dtype: torch.dtype) -> tuple[Any, list[nn.Module], Step]:
    from torch_geometric.datasets import FakeDataset

    from graph import from_pyg
    from graph.config import Config
    from graph.encoder import ProjectionHead, make_encoder
    from graph.train import losses, views

    config = dataclasses.replace(Config(), network=network, batch_size=10)
    graphs = from_pyg(FakeDataset(num_graphs=10, avg_num_nodes=8, num_channels=3))
    graphs = dataclasses.replace(graphs, x=graphs.x.to(dtype))
    network_of = make_encoder(config, 3).to(dtype).eval()
    head = ProjectionHead(network_of.dim).to(dtype)
    criterion = config.objective.build(network_of.dim)
    ((original, augmented),) = views(config, graphs, 0)
    return (
        config,
        [network_of, head],
        lambda config: losses(config, network_of, head, criterion, original, augmented, 0)[0],
    )


def a_network_of_clips() -> nn.Module:
    layers = (nn.Conv3d(3, 8, 3, stride=2), nn.BatchNorm3d(8), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten())


def video_step(network: str, dtype: torch.dtype) -> tuple[Any, list[nn.Module], Step]:
    from video.config import Config
    from video.encoder import Networks
    from video.train import losses

    # The networks of the suite give float32, whatever they work in.
    made = network if dtype is torch.float32 else a_network_of_clips
    config = dataclasses.replace(Config().reduced(), method="simclr", network=made)
    networks = Networks(config, queue=0).to(dtype).eval()
    criterion = Criterion(config.objective, networks.dim)
    pair = tuple(torch.randn(2, 6, 3, 8, 32, 32, dtype=dtype))
    return config, [networks], lambda config: losses(config, networks, criterion, pair, 0)[0]


STEPS = [
    (vision_step, "simclr"),
    (vision_step, "moco_v3"),
    (text_step, "gru"),
    (text_step, "bag_of_words"),
    (text_step, "transformer"),
    (rl_step, ""),
    (graph_step, "gin"),
    (graph_step, "GAT"),
    (video_step, "s3d"),
    (video_step, "r2plus1d"),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("make", "what"), STEPS)
def test_the_steps_of_the_domains(make: Callable[..., Any], what: str, dtype: torch.dtype) -> None:
    """In double precision to 1e-10, which proves them equal; in single precision up to rounding."""
    torch.manual_seed(0)
    config, modules, step = make(what, dtype)
    chunked = dataclasses.replace(config, chunk=4)
    found, plain = step(chunked), step(config)
    limit = 1e-10 if dtype is torch.float64 else rounding(dtype, *lengths_of(*modules))
    assert_equal((found, gradients(found, *modules)), (plain, gradients(plain, *modules)), limit)


def test_a_chunk_of_images_is_rounded_to_bfloat16_in_both_passes() -> None:
    torch.manual_seed(0)
    config, modules, step = vision_step("simclr", torch.float32)
    half = dataclasses.replace(config, precision="bfloat16")
    found, plain = step(dataclasses.replace(half, chunk=4)), step(half)
    assert_equal((found, gradients(found, *modules)), (plain, gradients(plain, *modules)), 2e-2)
    assert (found - plain).abs() < 1e-5 < (step(config) - plain).abs()


def test_methods_without_negatives_of_the_batch_take_no_chunk() -> None:
    import video.encoder
    import vision.methods
    from video.config import Config as Video
    from vision.config import Config as Vision

    with pytest.raises(ValueError, match="chunk"):
        vision.methods.check(Vision(method="moco_v2", chunk=8))
    with pytest.raises(ValueError, match="chunk"):
        video.encoder.check(Video(method="moco", chunk=8))
    vision.methods.check(Vision(chunk=8))
    video.encoder.check(Video(method="simclr", chunk=8))


# Modules that change themselves as they encode.


class Instances(nn.Module):
    """An instance norm with running statistics over four channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, rows: Tensor) -> Tensor:
        return self.norm(rows.unflatten(1, (4, 8))).flatten(1)


class Centred(nn.Module):
    """A moving average that is subtracted, as DINO's centre: a buffer that is bound anew."""

    def __init__(self, plain: bool = False) -> None:
        super().__init__()
        if plain:
            self.centre = torch.zeros(32, dtype=torch.float64)
        else:
            self.register_buffer("centre", torch.zeros(32, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        self.centre = 0.9 * self.centre + 0.1 * rows.detach().mean(0)
        return rows - self.centre


CHANGING: dict[str, Callable[[], list[nn.Module]]] = {
    "batch norm": lambda: [nn.BatchNorm1d(32)],
    "spectral norm": lambda: [nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32))],
    "spectral norm of hooks": lambda: [nn.utils.spectral_norm(nn.Linear(32, 32))],
    "instance norm": lambda: [Instances()],
    "centre": lambda: [Centred()],
    "centre, no buffer": lambda: [Centred(plain=True)],
}


def state_of(network: nn.Module) -> dict[str, Tensor]:
    plain = {
        f"{place}.{name}": value
        for place, module in network.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not value.requires_grad
    }
    return plain | dict(network.named_buffers())


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("layer", CHANGING)
def test_buffers_and_random_states_advance_once_a_step(layer: str, wrapped: bool) -> None:
    torch.manual_seed(2)
    network = encoder(*CHANGING[layer](), nn.Dropout(0.2)).train()
    other = copy.deepcopy(network)
    criterion = Objective(LOSSES["info_nce"]).build(dim=5).double()
    for step in range(2):
        torch.manual_seed(step)
        if wrapped:
            function, modules = (lambda rows: network(rows)), (network,)
            found = large_batch(function, criterion, views(), chunk=4, modules=modules)
        else:
            found = large_batch(network, criterion, views(), chunk=4)
        mine = gradients(found, network)
        torch.manual_seed(step)
        plain = criterion.of_views(*(by_chunks(other, each, 4) for each in views()))
        assert_equal((found, mine), (plain, gradients(plain, other)), 1e-10)
    expected = state_of(other)
    assert expected
    for name, value in state_of(network).items():
        assert torch.equal(value, expected[name]), name
    start = state_of(encoder(*CHANGING[layer](), nn.Dropout(0.2)))
    assert any(not torch.equal(value, start[name]) for name, value in expected.items())


def test_the_gradient_can_be_taken_twice() -> None:
    network = encoder(nn.BatchNorm1d(32), Centred())
    criterion = Objective(LOSSES["info_nce"]).build(dim=5).double()
    loss = large_batch(network, criterion, views(), chunk=4)
    state = {name: value.clone() for name, value in network.named_buffers()}
    parameters = list(network.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    second = torch.autograd.grad(loss, parameters)
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)
    for name, value in network.named_buffers():
        assert torch.equal(value, state[name]), name
