"""Several processes under torchrun: who am I, gathering with gradient, seeds that know the rank.

Without an initialised process group every function behaves as on a single process, and on a single
process none communicates. All processes must call what communicates equally often.
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


def gather_ragged(local: Tensor) -> tuple[Tensor, int]:
    """:func:`gather` for numbers of rows that may differ, and where those of this process begin.

    It waits for the device once, to learn the numbers.
    """
    counts = lengths(local).tolist()
    padding = local.new_zeros(max(counts) - len(local), *local.shape[1:])
    padded = gather(torch.cat([local, padding])).unflatten(0, (len(counts), max(counts)))
    rows = torch.cat([part[:count] for part, count in zip(padded, counts, strict=True)])
    return rows, sum(counts[: rank()])


def lengths(local: Tensor) -> Tensor:
    """The number of rows that each process holds, (processes,) int."""
    return gather(torch.tensor([len(local)], device=local.device))


def total(local: Tensor) -> Tensor:
    """The sum over processes of a tensor of one shape, with :func:`gather`'s gradient."""
    return local if world_size() == 1 else gather(local[None]).sum(0)


def share_of_mean(local: Tensor, count: Tensor | None = None) -> Tensor:
    """This process's share of the mean over the rows of all processes, (N,) -> scalar.

    The mean over processes of what they return is that mean, however many rows each has.

    Args:
        local: (N,), N may differ between processes.
        count: how many rows of this process count in the mean, a scalar; None: all.
    """
    count = lengths(local).sum() if count is None else total(count)
    return local.sum() * (world_size() / count.clamp(min=1).to(local.dtype))


def from_first(values: Tensor) -> Tensor:
    """The values of process 0, written over ``values`` on all others."""
    if world_size() > 1:
        dist.broadcast(values, 0)
    return values


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        parts = [torch.empty_like(local) for _ in range(world_size())]
        dist.all_gather(parts, local.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        own: Tensor = _SumOfOwnRows.apply(gradient)
        return own


class _SumOfOwnRows(torch.autograd.Function):
    """The transpose of :class:`_Gather`, and the other way round: second derivatives are right."""

    @staticmethod
    def forward(ctx: Any, everyone: Tensor) -> Tensor:
        summed = everyone.contiguous().clone()
        dist.all_reduce(summed)
        return summed.chunk(world_size())[rank()]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        everyone: Tensor = _Gather.apply(gradient)
        return everyone
