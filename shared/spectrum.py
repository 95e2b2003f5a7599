"""How many directions the features of an encoder use."""

import torch
from torch import Tensor


def effective_rank(features: Tensor) -> float:
    """The exponential of the entropy of the singular values of centred features (n, H).

    It is H where all directions have one variance, and near 1 where features have collapsed to a
    line; features that are all equal have 0.

    Source: Roy and Vetterli 2007, on features without their mean.
    """
    exact = features.detach().double()
    centred = exact - exact.mean(0)
    variances = torch.linalg.eigvalsh(centred.T @ centred).clamp(min=0)
    # Constant features have a small variance, since their mean is rounded.
    floor = (torch.finfo(torch.float32).eps * exact.abs().max()) ** 2 * len(exact)
    values = variances[variances > floor].sqrt()
    if not len(values):
        return 0.0
    shares = values / values.sum()
    return float(torch.exp(-(shares * shares.log()).sum()))
