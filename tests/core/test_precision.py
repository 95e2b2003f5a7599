"""Half precision: what a product of rounded factors is, by float64, and where it is taken."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared import precision
from shared.precision import bfloat16, native_bfloat16

Product = Callable[..., Tensor]

# Small whole numbers of nine bits, of which bfloat16 keeps eight: sums of products are exact in any
# order, and what is rounded, and what is not, shows.
CASES: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "linear": (functional.linear, (6, 5), (3, 5), {}),
    "conv1d": (torch.conv1d, (2, 3, 7), (4, 3, 3), {"padding": 1}),
    "conv2d": (torch.conv2d, (2, 3, 6, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    "conv3d": (torch.conv3d, (2, 2, 3, 4, 4), (3, 2, 2, 3, 3), {"padding": 1}),
}


@pytest.fixture
def software(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without instructions for bfloat16."""
    monkeypatch.setattr(precision, "native_bfloat16", lambda device: False)


def whole(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(-500, 500, shape, generator=generator).float()


@pytest.mark.usefixtures("software")
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_rounded_factors(name: str) -> None:
    """Value and gradients, to the bit, as float64 has them between the roundings."""
    product, shape, weights, options = CASES[name]
    generator = torch.Generator().manual_seed(3)
    leaves = [whole(size, generator).requires_grad_() for size in (shape, weights, (weights[0],))]
    with bfloat16("cpu"):
        found = product(*leaves, **options)
    arriving = whole(tuple(found.shape), generator).bfloat16()
    found.backward(arriving)

    factors = [leaf.detach().bfloat16().double().requires_grad_() for leaf in leaves]
    assert not torch.equal(factors[0].float(), leaves[0])  # rounding does something
    exact = product(*factors, **options)
    exact.backward(arriving.double())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.bfloat16())
    for leaf, factor in zip(leaves, factors, strict=True):
        assert leaf.grad.dtype == torch.float32
        assert torch.equal(leaf.grad, factor.grad.bfloat16().float())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 5),
    )


@pytest.mark.usefixtures("software")
def test_a_network_computes_as_under_autocast() -> None:
    """As torch's own half precision has it, whose roundings stand at the same places."""
    images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    outputs, gradients = [], []
    for context in (bfloat16("cpu"), torch.autocast("cpu", torch.bfloat16)):
        made = network()
        with context:
            output = made(images)
        output.float().square().mean().backward()
        outputs.append(output)
        gradients.append([parameter.grad for parameter in made.parameters()])
    assert outputs[0].dtype == outputs[1].dtype == torch.bfloat16
    assert torch.allclose(outputs[0].float(), outputs[1].float(), rtol=0.02, atol=0.01)
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        assert (ours - theirs).norm() <= 0.02 * theirs.norm() + 1e-4


@pytest.mark.usefixtures("software")
def test_double_precision_and_code_without_autocast_are_not_cast() -> None:
    x, weight = torch.full((1, 1), 257.0), torch.ones(1, 1)
    with bfloat16("cpu"):
        assert functional.linear(x, weight).item() == 256
        with torch.autocast("cpu", enabled=False):  # as losses compute
            assert functional.linear(x, weight).item() == 257
        double = functional.linear(x.double(), weight=weight.double())
        assert (double.dtype, double.item()) == (torch.float64, 257)
        with bfloat16("cpu", enabled=False):
            assert functional.linear(x, weight).item() == 257
    assert functional.linear(x, weight).item() == 257


def test_software_is_for_processors_that_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[bool] = []
    monkeypatch.setattr(precision, "_Rounded", lambda: contextlib.nullcontext(entered.append(True)))
    for native in (True, False):
        monkeypatch.setattr(precision, "native_bfloat16", lambda device, is_=native: is_)
        for enabled in (True, False):
            entered.clear()
            with bfloat16("cpu", enabled=enabled):
                assert torch.is_autocast_enabled("cpu") == enabled
            assert entered == ([True] if enabled and not native else [])
    assert native_bfloat16("cuda")


def test_float32_is_no_tf32_within() -> None:
    cudnn = torch.backends.cudnn
    torch.set_float32_matmul_precision("high")
    try:
        assert precision.tf32_allowed()
        with precision.without_tf32():
            assert not precision.tf32_allowed()
            cudnn.allow_tf32 = True
            assert precision.tf32_allowed()
        assert torch.get_float32_matmul_precision() == "high"
        assert cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
