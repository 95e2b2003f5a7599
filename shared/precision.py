"""Precision: float32 of losses and on a GPU, and bfloat16 on CPUs without such instructions.

On a CPU without bfloat16 instructions torch emulates them number by number: an epoch of a ResNet
takes ten times as long as in float32. The same product is computed here by rounding the factors to
bfloat16, multiplying and adding in float32, and rounding the result once; gradients likewise. CPUs
with such instructions do the same, except for the order of summation.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import threshold
from torch.overrides import TorchFunctionMode

# The operations in which networks spend their time, of those that autocast runs in half precision.
PRODUCTS = (torch.conv1d, torch.conv2d, torch.conv3d, torch.nn.functional.linear)


@functools.cache
def native_bfloat16(device: str) -> bool:
    """Whether a kind of device ("cpu", "cuda") multiplies bfloat16 at full speed."""
    if device != "cpu":
        return True
    # The check that torch makes before it calls oneDNN; there is no public function.
    return bool(
        torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def upcast(tensor: Tensor) -> Tensor:
    """``tensor``, promoted to single precision if it has half."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def cast_for(network: nn.Module, tensor: Tensor) -> Tensor:
    """``tensor`` in the precision of the network's parameters, unchanged if it has none."""
    kinds = (item.dtype for item in network.parameters() if item.is_floating_point())
    return tensor.to(next(kinds, tensor.dtype))


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Outside of autocast on the tensor's device, which would round the factors of products."""
    kind = tensor.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Compute products, convolutions and recurrent layers in full float32 on a GPU.

    By default torch rounds the factors of convolutions and recurrent layers to TF32, 10 bits of
    mantissa.
    """
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]


def tf32_allowed() -> bool:
    """Whether a GPU may use TF32 in place of float32, in products or convolutions."""
    return (
        bool(torch.backends.cudnn.allow_tf32) or torch.get_float32_matmul_precision() != "highest"
    )


@contextlib.contextmanager
def bfloat16(device: str, *, enabled: bool = True) -> Iterator[None]:
    """Autocast to bfloat16, for a forward pass; the backward pass uses the same precision.

    On a CPU without fast bfloat16, convolutions and linear layers compute in float32 on factors
    rounded to bfloat16, and round their results and gradients. With ``enabled`` False nothing is
    cast, not even inside a caller's autocast.

    Args:
        device: the kind of device of the tensors, "cpu" or "cuda".
        enabled: whether to use half precision.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast(device, torch.bfloat16, enabled=enabled))
        if enabled and not native_bfloat16(device):
            stack.enter_context(_Rounded())
        yield


class _Rounded(TorchFunctionMode):
    """Products within autocast, in float32 on factors rounded to bfloat16."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in PRODUCTS or not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            wide = [_rounded(argument) for argument in args]
            output = func(*wide, **{name: _rounded(argument) for name, argument in kwargs.items()})
            return output if output.dtype == torch.float64 else output.bfloat16()


def _rounded(argument: Any) -> Any:
    """Rounded to bfloat16, as float32; float64 is unchanged, as in autocast."""
    if not isinstance(argument, Tensor) or argument.dtype == torch.float64:
        return argument
    return argument.bfloat16().float()


def without_negative(values: Tensor) -> Tensor:
    """The values, with 0 where rounding or a formula has made them negative.

    The slope at 0 is 1. That of torch's clamp is 1 up to torch 2.13, and 0 from torch 2.14 on.
    """
    return threshold(values, -1e-30, 0.0)
