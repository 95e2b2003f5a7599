"""What is done otherwise on a GPU: precision, compiled encoders, images that lie there, no waits.

``test_agreement.py`` compares a step of every domain with the same step on the CPU.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Criterion, query_key, two_views
from tests.stages.agreement import OBJECTIVES
from vision.config import Config
from vision.images import Images
from vision.methods import networks_of
from vision.methods.base import Networks, Step
from vision.train import batches, make_optimiser, make_step

SMALL = dataclasses.replace(
    Config(),
    backbone="resnet8",
    stem="strided",
    head_hidden=64,
    head_output=32,
    batch_size=32,
    precision="float32",
)
ON = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device inside raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@pytest.mark.parametrize(
    "name", [name for name, each in OBJECTIVES.items() if not each.synchronises]
)
def test_losses_and_their_gradients_do_not_wait_for_the_device(name: str) -> None:
    criterion = OBJECTIVES[name].build(16).cuda()
    x, z = (torch.randn(8, 16, device="cuda", requires_grad=True) for _ in range(2))
    for pairs in (two_views, query_key):
        criterion(pairs(x, z), features=[x, z], step=1)[0].backward()  # libraries set themselves up
        with no_waiting():
            criterion(pairs(x, z), features=[x, z], step=1)[0].backward()


@pytest.mark.cuda
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if "max_margin" in name])
def test_the_solver_gives_the_same_loss_and_gradient(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(2, 64, 32, generator=generator)
    found = []
    for device in ("cpu", "cuda"):
        views = given.clone().to(device).requires_grad_()
        loss, _ = OBJECTIVES[name].build(32).to(device)(two_views(*views), step=1)
        loss.backward()
        assert views.grad is not None
        found.append((loss.detach().cpu(), views.grad.cpu()))
    (loss, gradient), (there, its_gradient) = found
    torch.testing.assert_close(there, loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(its_gradient, gradient, rtol=1e-2, atol=1e-5)


def steps(config: Config, device: str, *, compiled: bool = False) -> tuple[list[float], Networks]:
    """Losses of three steps on made-up views, and the networks after them."""
    torch.manual_seed(0)
    networks = networks_of(config).to(device).train()
    criterion = Criterion(config.objective, networks.dim).to(device)
    optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))
    if compiled:
        # What is generated for a GPU is not what is for a CPU: there, the graph alone is tested.
        networks.encoder.compile(backend="inductor" if device == "cuda" else "aot_eager")
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, config.batch_size, 3, 32, 32, generator=generator).to(device)
    pair = (views[0], views[1])
    train_step = make_step(config, networks, criterion, optimiser)
    losses = [float(train_step(pair, Step(step))["loss"]) for step in range(3)]
    return losses, networks


@pytest.mark.slow
@pytest.mark.parametrize("device", ON)
def test_half_precision_trains_as_single_precision_does(device: str) -> None:
    single, _ = steps(SMALL, device)
    half, networks = steps(dataclasses.replace(SMALL, precision="bfloat16"), device)
    assert half == pytest.approx(single, rel=0.03)
    assert half != single  # it was another precision
    assert {x.dtype for x in networks.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("device", ON)
def test_a_compiled_encoder_trains_as_the_plain_one_does(device: str) -> None:
    plain, _ = steps(SMALL, device)
    compiled, networks = steps(SMALL, device, compiled=True)
    assert compiled == pytest.approx(plain, rel=1e-3)
    assert not [name for name in networks.state_dict() if "_orig_mod" in name]


@pytest.mark.cuda
def test_images_that_lie_on_the_device_are_served_there_without_a_wait() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (96, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.zeros(96, dtype=torch.int64))
    served: dict[str, list[tuple[Tensor, ...]]] = {}
    for device in ("cpu", "cuda"):
        options: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        given = batches(SMALL, images, device, 0, 3, **options)
        served[device] = [next(given)]
        with no_waiting() if device == "cuda" else contextlib.nullcontext():
            served[device].append(next(given))
        assert all(view.device.type == device for view in served[device][1])
    for there, here in zip(served["cuda"], served["cpu"], strict=True):
        for view, expected in zip(there, here, strict=True):
            torch.testing.assert_close(view.cpu(), expected, atol=5e-5, rtol=0)
