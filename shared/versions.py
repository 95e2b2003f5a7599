"""Whether tensors were changed in place."""

import torch
from torch import Tensor


def versions_of(*tensors: Tensor) -> list[int | None]:
    """How often each tensor has been changed in place; None where nothing counts it.

    Waits for no device. Changes are not counted in tensors made in inference mode, under
    :mod:`torch.func`, and while a compiler traces.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return [None] * len(tensors)
    return [None if tensor.is_inference() else tensor._version for tensor in tensors]
