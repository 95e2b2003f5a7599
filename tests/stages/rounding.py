"""How far the same sums in another order may lie apart.

A library adds up the terms of a product or a convolution in an order that depends on the processor,
on the instructions it chooses and on the number of rows. A sum of n terms is then off by about
sqrt(n) epsilon of its terms' size (Higham and Mary 2019), and the errors of layers that follow each
other add up.
"""

import math

import torch
from torch import nn


def rounding(dtype: torch.dtype, *lengths: int) -> float:
    """The relative difference that sums of these lengths, one after the other, may have."""
    return torch.finfo(dtype).eps * sum(map(math.sqrt, lengths))


def lengths_of(*modules: nn.Module) -> list[int]:
    """The number of terms in each sum of the layers: the inputs of every weight's outputs."""
    parameters = (each for module in modules for each in module.parameters())
    return [each[0].numel() for each in parameters if each.ndim > 1]
