"""CUDA graphs: what may be captured, and that what was captured gives the same numbers.

What must not wait for an accelerator is looked at without one, on tensors that hold no numbers:
whatever reads a number on the way (``.item()``, ``if tensor``, indexing by a mask) raises on the
meta device. What a library's kernels wait for inside cannot be seen here.

Graphs themselves are captured and replayed on a simulated GPU, and on a real one where there is.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from rl import agent
from rl.agent import Agent
from rl.config import Config
from rl.replay import Batch
from shared import (
    Criterion,
    Objective,
    Pairs,
    Projection,
    alignment,
    context_window,
    info_nce,
    max_margin,
    query_key,
    term,
    two_views,
)
from shared.capture import WARM_UP, Captured, can_capture
from shared.pairs import local_global
from shared.svm import GRAPHS
from tests.stages.agreement import OBJECTIVES
from tests.stages.simulated_device import SimulatedDevice
from vision.config import Config as VisionConfig
from vision.methods import networks_of
from vision.methods.base import Step
from vision.train import can_be_captured, make_optimiser, make_step

META = torch.device("meta")


def windows(x: Tensor, z: Tensor) -> Pairs:
    return context_window(x, z, 1, document=torch.zeros(len(x), dtype=torch.int64, device=META))


def graphs(x: Tensor, z: Tensor) -> Pairs:
    return local_global(x, z, torch.zeros(len(x), dtype=torch.int64, device=META))


@contextlib.contextmanager
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
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if "nuclear" not in name])
def test_no_objective_reads_a_number(name: str, pairs: Callable[[Tensor, Tensor], Pairs]) -> None:
    """Nor does the solver, whatever its library does."""
    for step in (1, 100):  # the loss of the latter is looked at elsewhere
        loss, parts = loss_of(OBJECTIVES[name], pairs, step)
        assert loss.device == META
        assert all(part.device == META for part in parts.values())


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if "nuclear" in name])
def test_the_nuclear_norm_does_and_is_declared_to(name: str) -> None:
    assert OBJECTIVES[name].synchronises
    with pytest.raises(RuntimeError, match="meta tensor"):
        loss_of(OBJECTIVES[name], two_views)


def test_what_waits_is_the_solver_and_the_nuclear_norm_alone() -> None:
    waiting = {name for name, each in OBJECTIVES.items() if each.synchronises}
    assert waiting == {name for name in OBJECTIVES if "max_margin" in name or "nuclear" in name}
    loss = term(info_nce, temperature=0.5)
    assert not Objective(loss, projection=Projection()).synchronises
    assert not Objective(
        loss, projection=Projection(kwargs={"form": "authors", "norm": "none"})
    ).synchronises


def on_meta(config: Config) -> Any:
    """An agent without numbers, and a batch for it."""

    def adam(parameters: Any, rate: float, first_beta: float = 0.9) -> torch.optim.Adam:
        return torch.optim.Adam(list(parameters), rate, betas=(first_beta, 0.999), foreach=False)

    with mock.patch.object(agent, "adam", adam):
        found = Agent(config, 2, device=META)
    shape = (3, config.batch_size, 3 * config.stack, config.crop, config.crop)
    crops = torch.empty(shape, dtype=torch.uint8, device=META)
    action = torch.empty(config.batch_size, 2, device=META)
    reward, terminated = torch.empty(2, config.batch_size, device=META)
    return found, Batch(*crops, action, reward, terminated)


@pytest.mark.parametrize("step", [1, 2])  # without and with a step of the actor
@pytest.mark.parametrize(
    "name", ["info_nce", "hard_nce", "margins", "info_nce, polarized", "info_nce, l21 projection"]
)
@no_autocast()
def test_an_update_of_the_agent_reads_no_number(name: str, step: int) -> None:
    config = Config(
        crop=44, filters=4, hidden=16, batch_size=4, objective=OBJECTIVES[name], similarity="cosine"
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


# Captured functions

GPU = torch.device("cuda", 0)
CALLS = WARM_UP + 3  # of which the last three replay


@pytest.fixture(autouse=True)
def graphs_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUITE_GRAPHS", "1")


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.cuda)])
def gpu(request: pytest.FixtureRequest) -> Iterator[SimulatedDevice | None]:
    """A simulated GPU, which counts; or the real one, with deterministic algorithms."""
    if request.param == "real":
        request.getfixturevalue("exact")
        yield None
        return
    with SimulatedDevice() as device:
        yield device


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=1e-6, atol=1e-6)


def moving(mean: Tensor) -> Callable[..., dict[str, Tensor]]:
    """A function that draws numbers and changes a tensor in place, as a batch norm does."""

    def function(x: Tensor, places: Tensor) -> dict[str, Tensor]:
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        noisy = x + torch.rand_like(x)
        return {"centred": noisy - mean, "chosen": noisy.index_select(0, places).sum()}

    return function


def test_a_captured_function_gives_what_it_gives_by_itself(gpu: SimulatedDevice | None) -> None:
    torch.manual_seed(0)
    inputs = [(torch.randn(4, 3).to(GPU), torch.randperm(4)[:2]) for _ in range(CALLS)]
    every: list[list[Tensor]] = []
    for graph in (False, True):
        torch.manual_seed(1)
        mean = torch.zeros(3).to(GPU)
        function = moving(mean)
        if graph:
            function = Captured(function, GPU, changed=lambda mean=mean: [mean])
        elif gpu is not None:
            gpu.waits.clear()
        found = [function(x, places if graph else places.to(GPU)) for x, places in inputs]
        every.append([each[name] for each in found for name in each] + [mean])
    assert_same(every[1], every[0])
    assert len({float(each.sum()) for each in every[1]}) == len(every[1])
    if gpu is not None:
        assert gpu.operators["graph"] == CALLS - WARM_UP
        waited = {where for _, where in gpu.waits if where.startswith("shared/capture.py")}
        assert waited == {"shared/capture.py _are_equal"}  # the first replay, with the function
        # Where its libraries have set themselves up, and the nodes of gradients belong.
        assert [each.launched > 0 for each in gpu.captured_on] == [True]


def test_gradients_are_those_of_the_latest_call(gpu: SimulatedDevice | None) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 1).to(GPU)
    weight = layer.weight

    def gradient(x: Tensor) -> dict[str, Tensor]:
        layer.zero_grad()
        loss = layer(x).square().sum()
        loss.backward()
        return {"loss": loss.detach()}

    captured = Captured(gradient, GPU, layer.parameters())
    inputs = [torch.randn(4, 3).to(GPU) for _ in range(CALLS)]
    for place, x in enumerate(inputs):
        assert weight.grad is None or place
        captured(x)
        found = weight.grad.clone()
        gradient(x)  # as it is, in between
        assert_same([found], [weight.grad])


def test_other_shapes_are_refused(gpu: SimulatedDevice | None) -> None:
    double = Captured(lambda x: {"twice": 2 * x}, GPU)
    double(torch.ones(2).to(GPU))
    for other in (torch.ones(1), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(
            ValueError, match=r"the same shapes and types at every call, here \(2,\)"
        ):
            double(other.to(GPU))


@pytest.mark.parametrize("first", [1, WARM_UP + 1])  # the latter captures
def test_the_first_calls_may_be_in_inference_mode(gpu: SimulatedDevice | None, first: int) -> None:
    double = Captured(lambda x: {"twice": 2 * x}, GPU)
    for place in range(first + CALLS):
        x = torch.full((2,), float(place)).to(GPU)
        with torch.inference_mode(place < first):
            found = double(x)["twice"]
        assert found.tolist() == [2 * place] * 2
    assert not found.is_inference()


def test_a_function_that_waits_cannot_be_captured() -> None:
    with SimulatedDevice():
        normalised = Captured(lambda x: {"share": x / float(x.sum())}, GPU)
        x = torch.ones(2).to("cuda")
        for _ in range(WARM_UP):
            normalised(x)
        with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
            normalised(x)


def test_nothing_is_recorded_where_it_cannot_be() -> None:
    assert not can_capture(torch.device("cpu"))
    assert not can_capture(META)
    with SimulatedDevice():
        assert can_capture(GPU)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert not can_capture(GPU)
        inside: list[bool] = []
        torch.func.vmap(lambda x: inside.append(can_capture(GPU)) or x)(torch.ones(2))
        assert inside == [False]
        with mock.patch("shared.capture.world_size", return_value=2):
            assert not can_capture(GPU)
        with mock.patch.dict("os.environ", SUITE_GRAPHS="0"):
            assert not can_capture(GPU)


# The solver of max_margin

SOLVERS: list[dict[str, Any]] = [
    {"steps": 10},
    {"steps": 10, "step_size": 1e-3, "momentum": "nesterov", "start": "random"},
    {"steps": 10, "kernel": "tanh", "gamma": 1.0, "unit_diagonal": True},
]


def step_of_solver(x: Tensor, anchors: Any, numbers: dict[str, Any]) -> list[Tensor]:
    """The loss of the projected gradient, and its gradient."""
    leaf = x.requires_grad_()
    criterion = Objective(term(max_margin, solver="projected_gradient", **numbers)).build(8)
    loss, _ = criterion(two_views(*leaf, anchors=anchors), step=1)
    loss.backward()
    assert leaf.grad is not None
    return [loss.detach(), leaf.grad]


@pytest.mark.parametrize("anchors", ["both", "second"])
@pytest.mark.parametrize("numbers", SOLVERS, ids=str)
def test_the_captured_solver_is_the_solver(
    gpu: SimulatedDevice | None, numbers: dict[str, Any], anchors: str
) -> None:
    torch.manual_seed(0)
    every = [torch.randn(2, 16, 8) for _ in range(CALLS)]
    found: list[list[Tensor]] = []
    for recorded in (False, True):
        torch.manual_seed(1)
        with mock.patch("shared.svm.can_capture", return_value=recorded):
            results = [step_of_solver(x.clone().to(GPU), anchors, numbers) for x in every]
        found.append([item for each in results for item in each])
    assert_same(found[1], found[0])
    assert len({float(loss) for loss in found[1][::2]}) == CALLS
    if gpu is not None:
        assert gpu.operators["graph"] == CALLS - WARM_UP


def test_batches_of_ever_new_shapes_are_not_captured() -> None:
    with SimulatedDevice() as device:
        for size in [*range(2, 2 + GRAPHS + 1)] * (WARM_UP + 1):
            step_of_solver(torch.randn(2, size, 8).to(GPU), "both", {"steps": 2})
        assert device.operators["graph"] == 0


def test_inside_another_graph_the_solver_is_a_part_of_it() -> None:
    short = {"steps": 5}
    with SimulatedDevice() as device:
        step = Captured(
            lambda x: dict(zip("lg", step_of_solver(x.detach(), "both", short), strict=True)), GPU
        )
        for place in range(2 * CALLS):
            x = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(place)).to(GPU)
            before = device.operators.total()
            found = step(x)
            count = device.operators.total() - before
            assert_same(list(found.values()), step_of_solver(x, "both", short))
        assert count == 1 + 1 + 2


# The training step of vision

PROJECTED = OBJECTIVES["info_nce, l21 projection"]
VISION: dict[str, tuple[int, dict[str, Any]]] = {  # steps, and what differs from SimCLR
    "SimCLR": (8, {}),
    "SimCLR with CLLR's projection and Adam": (8, {"objective": PROJECTED, "optimiser": "adam"}),
    "MoCo v2 with mixed negatives from a step on": (
        14,
        {"method": "moco_v2", "mixed": (16, 8, 4), "mixed_from": 2.0},
    ),
    "MoCo v3 with LARS": (8, {"method": "moco_v3", "symmetric": True, "optimiser": "lars"}),
    "BYOL": (8, {"method": "byol", "objective": Objective(term(alignment))}),
}


def small_vision(**changes: Any) -> VisionConfig:
    small = VisionConfig(
        backbone="resnet8",
        stem="strided",
        head_hidden=64,
        head_output=32,
        predictor_hidden=64,
        queue=128,
        batch_size=8,
        objective=OBJECTIVES["info_nce"],
    )
    return dataclasses.replace(small, **changes)


PER_EPOCH = 4  # steps, of which the first is looked at


def train_vision(config: VisionConfig, steps: int) -> tuple[list[dict[str, float]], list[Tensor]]:
    """The parts of the loss of each step on made-up views, and what was trained."""
    torch.manual_seed(0)
    networks = networks_of(config).to(GPU).train()
    criterion = Criterion(config.objective, networks.dim, check_every=PER_EPOCH).to(GPU)
    modules = nn.ModuleList([networks, criterion])
    optimiser = make_optimiser(config, modules)
    train_step = make_step(config, networks, criterion, optimiser)
    parts = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 0.01 / (1 + step)  # a number of the host that changes
        views = torch.randn(2, config.batch_size, 3, 32, 32).to(GPU)
        parts.append(train_step((views[0], views[1]), Step(step, step / PER_EPOCH)))
        networks.follow(0.9 + 0.005 * step)
    return [{name: float(part) for name, part in each.items()} for each in parts], list(
        modules.state_dict().values()
    )


@pytest.mark.parametrize("name", VISION)
def test_captured_steps_of_vision_are_the_eager_ones(
    gpu: SimulatedDevice | None, name: str
) -> None:
    steps, changes = VISION[name]
    config = small_vision(**changes)
    assert can_be_captured(config)
    graphs, trained = train_vision(config, steps)
    if gpu is not None:
        kinds = 2 if config.mixed else 1
        assert gpu.operators["graph"] == steps - kinds * WARM_UP
    with mock.patch("vision.train.can_be_captured", return_value=False):
        eager, expected = train_vision(config, steps)
    assert graphs == eager
    assert all(map(torch.equal, trained, expected))


def gradients_of(network: nn.Module) -> Iterator[Any]:
    """The nodes that add up the gradients of trained parameters: those in use, or new ones."""
    for parameter in network.parameters():
        if parameter.requires_grad:
            yield parameter.expand_as(parameter).grad_fn.next_functions[0][0]


def outliving(network: nn.Module, step: Callable[[], object]) -> int:
    """How many of these nodes outlive a step whose result is kept."""
    nodes = list(gradients_of(network))
    for node in nodes:
        node.metadata["before"] = True
    kept = step()
    del node
    nodes.clear()
    found = sum("before" in each.metadata for each in gradients_of(network))
    del kept
    return found


class Held(nn.Linear):
    """A network that keeps its latest output, and with it the graph behind."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept = super().forward(x)
        return self.kept


def test_nodes_that_outlive_a_step_are_seen() -> None:
    for kind, count in ((nn.Linear, 0), (Held, 2)):
        network = kind(2, 1)
        assert outliving(network, lambda n=network: n(torch.ones(1, 2)).sum().backward()) == count


@pytest.mark.parametrize("name", VISION)
def test_no_node_of_vision_outlives_its_step(name: str) -> None:
    """They belong to the stream of their step, and a capture on another one is refused."""
    _, changes = VISION[name]
    config = small_vision(**changes)
    networks = networks_of(config).train()
    criterion = Criterion(config.objective, networks.dim)
    modules = nn.ModuleList([networks, criterion])
    optimiser = make_optimiser(config, modules)
    views = torch.randn(2, config.batch_size, 3, 32, 32)
    train_step = make_step(config, networks, criterion, optimiser)
    assert outliving(modules, lambda: train_step((views[0], views[1]), Step())) == 0


def test_no_node_of_the_agent_outlives_its_update() -> None:
    config = Config(crop=44, filters=4, hidden=16, batch_size=4)
    found = Agent(config, 2)
    shape = (3, config.batch_size, 3 * config.stack, config.crop, config.crop)
    crops = torch.randint(0, 256, shape, dtype=torch.uint8)
    reward, terminated = torch.rand(config.batch_size), torch.zeros(config.batch_size)
    batch = Batch(*crops, torch.rand(config.batch_size, 2), reward, terminated)
    assert outliving(found, lambda: found.update(batch, 2)) == 0


def test_what_waits_or_launches_by_itself_is_not_captured_in_vision() -> None:
    assert can_be_captured(VisionConfig())
    for changes in (
        {"objective": OBJECTIVES["max_margin, closed form"]},
        {"objective": OBJECTIVES["info_nce, nuclear projection"]},
        {"chunk": 8},
        {"compile": True},
        {"method": "swav"},
        {"method": "cmc"},
    ):
        assert not can_be_captured(dataclasses.replace(VisionConfig(), **changes))
