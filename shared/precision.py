"""Precision of networks: float32 itself on a GPU, and bfloat16 on processors without instructions.

Where a CPU multiplies no bfloat16, torch does it number by number: an epoch of a ResNet takes ten
times as long as in float32. What such a product is can be had otherwise: its factors are rounded to
bfloat16, products and sums are taken in float32, and the result is rounded once; gradients
likewise. That is what processors with such instructions do, but for the order of their sums.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# What networks spend their time in, of all that autocast takes in half precision.
PRODUCTS = (torch.conv1d, torch.conv2d, torch.conv3d, torch.nn.functional.linear)


@functools.cache
def native_bfloat16(device: str) -> bool:
    """Whether a kind of device ("cpu", "cuda") has products of bfloat16 that are fast."""
    if device != "cpu":
        return True
    # What torch itself asks before it hands such a product to oneDNN; there is no public way.
    return bool(
        torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Within the context a GPU takes float32 as it is, in products, convolutions and GRUs.

    Torch's default rounds the factors of convolutions and recurrent layers to TF32, 10 bits of
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
    """Whether a GPU may take TF32 for float32, in products or in convolutions."""
    return (
        bool(torch.backends.cudnn.allow_tf32) or torch.get_float32_matmul_precision() != "highest"
    )


@contextlib.contextmanager
def bfloat16(device: str, *, enabled: bool = True) -> Iterator[None]:
    """Autocast to bfloat16 within the context, for a forward pass; the backward pass follows it.

    On a CPU that is slow at it, convolutions and linear maps compute in float32 on factors that are
    rounded to bfloat16, and round their results and gradients. Where ``enabled`` is False, nothing
    is cast, not even within the autocast of a caller.

    Args:
        device: the kind of device of the tensors, "cpu" or "cuda".
        enabled: whether half precision is wanted.
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
            wide = [_rounded(each) for each in args]
            found = func(*wide, **{name: _rounded(each) for name, each in kwargs.items()})
            return found if found.dtype == torch.float64 else found.bfloat16()


def _rounded(argument: Any) -> Any:
    """As float32 with a bfloat16's digits; float64, which autocast leaves, as it is."""
    if not isinstance(argument, Tensor) or argument.dtype == torch.float64:
        return argument
    return argument.bfloat16().float()
