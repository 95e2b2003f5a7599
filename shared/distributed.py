"""Several processes under torchrun: who am I, gathering with gradient, seeds that know the rank.

Without an initialised process group every function behaves as on a single process.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def initialise(backend: str | None = None) -> None:
    """Join the process group that torchrun describes in the environment; none there: do nothing.

    Args:
        backend: ``"nccl"`` or ``"gloo"``; None takes nccl where CUDA is available.
    """
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))


def rank() -> int:
    """Index of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank_seed(seed: int) -> int:
    """A seed of its own for every process; process 0 keeps ``seed``."""
    return seed + 1_000_003 * rank()


def gather(local: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks, (B, D) -> (G, D), with gradient.

    The gradients of all processes with respect to a row are added up on the process that owns it,
    so that averaging parameter gradients over processes (as DistributedDataParallel does) gives the
    gradient of the mean of the local losses. All processes must hold the same number of rows.
    """
    return local if world_size() == 1 else _Gather.apply(local)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        ctx.rows = len(local)
        parts = [torch.empty_like(local) for _ in range(world_size())]
        dist.all_gather(parts, local.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        start = rank() * ctx.rows
        return total[start : start + ctx.rows]
