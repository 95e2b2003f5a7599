"""Training on several processes under torchrun: ranks, parts of a batch, gathering with gradient.

Shapes: B rows of this process, G rows of all, C channels.

Without a process group every function behaves as on a single process and does not communicate.
Functions that communicate must be called equally often by all processes.

A batch of G rows is divided evenly among the processes in the order of their ranks
(:func:`local_slice`). Random draws for a batch are made by process 0 (:func:`broadcast`), so that
they do not depend on the number of processes.
"""

import contextlib
import inspect
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from shared.errors import UserError

Its = ParamSpec("Its")
Given = TypeVar("Given")

_apart: list[bool] = []  # an entry for each block of :func:`single_process` that this process is in


def initialise() -> None:
    """Join the process group that torchrun describes in the environment, if there is one.

    Tensors on GPUs use nccl, those on the CPU gloo; each process has its own GPU.
    """
    if "RANK" not in os.environ or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        dist.init_process_group("gloo")


_last_group: list[Any] = []


def destroy() -> None:
    """Wait for all processes, and leave the group; each then works as a single process."""
    if dist.is_initialized():
        dist.barrier()
        # Else a DistributedDataParallel that is freed later would be its last owner, and end it
        # with Python's lock held, for which a thread of Gloo may wait: pytorch/pytorch#56297.
        _last_group[:] = [dist.group.WORLD]
        dist.destroy_process_group()


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Let this process work as if it were the only one, while the others wait for it."""
    _apart.append(True)
    try:
        yield
    finally:
        _apart.pop()


def rank() -> int:
    """Index of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() and not _apart else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() and not _apart else 1


def local_slice(count: int) -> slice:
    """This process's part of ``count`` rows; the first processes have one more if it is uneven."""
    base, more = divmod(count, world_size())
    start = rank() * base + min(rank(), more)
    return slice(start, start + base + (rank() < more))


def gather(local: Tensor, count: int | None = None) -> Tensor:
    """The rows of all processes in the order of their ranks, (B, D) -> (G, D), with gradient.

    The gradients of all processes with respect to a row are summed on the process that owns it,
    so that averaging parameter gradients over processes (as DistributedDataParallel does) gives the
    gradient of the mean of the local losses.

    Args:
        local: (B, D).
        count: G, if each process has its :func:`local_slice` of them; None: all have equally many
            rows.

    Raises:
        ValueError: on every process, if one of them has an unexpected number of rows, or rows of
            another width.
    """
    if world_size() == 1:
        return local
    return _gathered(local, _check_rows(local, count))


def _check_rows(local: Tensor, count: int | None) -> list[int]:
    """The number of rows of each process.

    Raises the errors of :func:`gather` on every process, before any process waits for the others.
    """
    # On the CPU if the group has a backend for it, without waiting for a GPU.
    device = "cpu" if "cpu:" in str(dist.get_backend_config()) else local.device
    shape = torch.tensor([len(local), math.prod(local.shape[1:])], device=device)
    sizes = [torch.empty_like(shape) for _ in range(world_size())]
    dist.all_gather(sizes, shape)
    rows, numbers = torch.stack(sizes).T.tolist()
    world = world_size()
    wanted = [rows[0]] * world
    if count is not None:
        wanted = [count // world + (process < count % world) for process in range(world)]
    if rows != wanted:
        raise ValueError(
            f"gather: the processes hold {', '.join(map(str, rows))} rows, where "
            f"{', '.join(map(str, wanted))} are expected; omit a last batch that is smaller "
            f"(drop_last=True), or give the number of all: functools.partial(gather, "
            f"count={sum(rows)}), of which the first processes hold one more"
        )
    if len(set(numbers)) > 1:
        raise ValueError(
            f"gather: the rows of the processes have {', '.join(map(str, numbers))} numbers; "
            f"all need the same shape"
        )
    return wanted


def _gathered(local: Tensor, counts: list[int] | None = None) -> Tensor:
    """:func:`gather` without checks; ``counts`` are the rows of all processes, None: equal."""
    if world_size() == 1:
        return local
    if counts is None or min(counts) == max(counts):
        gathered: Tensor = _Gather.apply(local)
        return gathered
    padding = local.new_zeros(max(counts) - len(local), *local.shape[1:])
    parts = _gathered(torch.cat([local, padding])).split(max(counts))
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def gather_ragged(local: Tensor) -> tuple[Tensor, int]:
    """:func:`gather` for differing numbers of rows, and the index of this process's first row.

    It waits for the device once, to read the numbers.
    """
    counts = row_counts(local).tolist()
    return _gathered(local, counts), sum(counts[: rank()])


def row_counts(local: Tensor) -> Tensor:
    """The number of rows of each process, (processes,) int."""
    return _gathered(torch.full((1,), len(local), device=local.device))


def all_reduce_sum(local: Tensor) -> Tensor:
    """The sum over processes of a tensor, with :func:`gather`'s gradient."""
    return local if world_size() == 1 else _gathered(local[None]).sum(0)


def share_of_mean(local: Tensor, count: Tensor | None = None) -> Tensor:
    """This process's share of the mean over the rows of all processes, (N,) -> scalar.

    The mean of the shares over processes is that mean; N may differ between processes. ``count`` is
    the number of rows of this process to average over, a scalar; None: all.
    """
    count = row_counts(local).sum() if count is None else all_reduce_sum(count)
    return local.sum() * (world_size() / count.clamp(min=1).to(local.dtype))


def broadcast(values: Tensor) -> Tensor:
    """The values of process 0, copied into ``values`` on all others."""
    if world_size() > 1:
        dist.broadcast(values, 0)
    return values


def all_gather_objects(value: Given) -> list[Given]:
    """The values of all processes, by rank: anything that can be pickled."""
    values: list[Any] = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


def is_lost(error: Exception) -> bool:
    """Whether an error means that another process is no longer reachable."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and world_size() > 1 and "gloo" in str(error)
    )


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is set on any process; does not wait for a GPU."""
    if world_size() == 1:
        return flags
    values = torch.tensor(flags, dtype=torch.uint8)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return tuple(values.bool().tolist())


def replicated(function: Callable[Its, Given], *modules: nn.Module) -> Callable[Its, Given]:
    """The function wrapped in DistributedDataParallel for the parameters of the modules.

    On one process it is the function itself. On several the modules, all that have trained
    parameters, start with the values of process 0, and each backward pass averages the gradients
    over processes. The function is the forward pass, called once before each backward pass.
    """
    if world_size() == 1:
        return function
    # Buffers are equal on all processes: batch norms are synchronised, queues filled alike. Later
    # versions of torch renamed the option, and warn about the old name.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {name: False}
    model = DistributedDataParallel(_Called(function, modules), **options)
    if next(model.parameters()).device.type == "cpu":
        model.register_comm_hook(None, _mean_in_order)
    return model


class _Called(nn.Module):
    """A function with its modules, as a module."""

    def __init__(self, function: Callable[..., Any], modules: tuple[nn.Module, ...]) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _mean_in_order(
    state: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # exists only at run time
) -> torch.futures.Future[Tensor]:
    """The mean over processes, summed in the order of their ranks.

    The order of gloo's sum depends on a gradient's position in its bucket, and the buckets of the
    first step differ from later ones, so a resumed run would get different bits.
    """
    gradient = bucket.buffer()
    parts = [torch.empty_like(gradient) for _ in range(world_size())]
    future = dist.all_gather(parts, gradient, async_op=True).get_future()

    def mean(_: Any) -> Tensor:
        return torch.stack(parts).sum(0) / len(parts)

    done: torch.futures.Future[Tensor] = future.then(mean)
    return done


def synchronise(module: nn.Module, groups: int = 1) -> None:
    """Make the batch norms of a module use the statistics of the global batch.

    On one process it does nothing. The module is on its device; its batch norms change their class
    and nothing else. The processes are normalised in ``groups`` separate groups, which equals
    normalising the batch in that many passes on one process; their number has to be divisible by
    that of the groups.
    """
    if world_size() == 1:
        return
    if world_size() % groups:
        raise UserError(
            f"the batch is normalised in {groups} groups, which {world_size()} processes cannot "
            f"share evenly; use one, or a multiple of {groups}"
        )
    if groups == 1 and any(parameter.is_cuda for parameter in module.parameters()):
        nn.SyncBatchNorm.convert_sync_batchnorm(module)  # has its own kernels, only for GPUs
        return
    for norm in [submodule for submodule in module.modules() if isinstance(submodule, _BatchNorm)]:
        # The object stays the same for everything that refers to it: optimisers, a teacher.
        norm.__class__ = _SynchronisedNorm
        assert isinstance(norm, _SynchronisedNorm)
        norm.groups = groups


class _SynchronisedNorm(_BatchNorm):
    """A batch norm over the rows of a group of processes, on any device."""

    groups: int

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or world_size() == 1:
            return super().forward(input)
        with torch.no_grad():
            gathered = _moments(input)
            size = world_size() // self.groups
            by_group = [_merged_moments(group) for group in gathered.split(size)]
            if self.running_mean is not None and self.running_var is not None:
                for mean, variance, count in by_group:
                    self._follow(mean, variance * (count / (count - 1).clamp(min=1)))
        number = rank() // size
        mean, variance, count = by_group[number]
        normalised: Tensor = _Normalised.apply(
            input, self.weight, self.bias, mean, variance, count, self.eps, (number, size)
        )
        return normalised

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics with one pass, as torch's batch norm does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)


def _moments(rows: Tensor) -> Tensor:
    """Mean, sum of squared deviations and count of each process, (processes, 2C + 1)."""
    wide = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
    count = rows[:, :1].numel()
    mean = deviations = wide.new_zeros(rows.shape[1])
    if count:
        # Torch's own kernel for either memory format: it copies nothing.
        mean, variance = torch.batch_norm_update_stats(wide, None, None, 0.0)
        deviations = variance * count
    return _gathered(torch.cat([mean, deviations, mean.new_full((1,), count)])[None])


def _merged_moments(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (C,), variance (C,) and count over the moments of several processes."""
    count = moments[:, -1:]
    means, deviations = moments[:, :-1].chunk(2, dim=1)
    total = count.sum()
    mean = (count * means).sum(0) / total
    variance = (deviations + count * (means - mean).square()).sum(0) / total
    return mean, variance, total


class _Normalised(torch.autograd.Function):
    """A batch norm with given statistics; the gradient flows through them."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        epsilon: float,
        group: tuple[int, int],
    ) -> Tensor:
        ctx.group, ctx.has_bias, ctx.epsilon = group, bias is not None, epsilon
        ctx.save_for_backward(rows, weight, mean, variance, count)
        return functional.batch_norm(rows, mean, variance, weight, bias, False, 0.0, epsilon)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, mean, variance, count = ctx.saved_tensors
        number, size = ctx.group
        wide, slope = rows.to(mean.dtype), gradient.to(mean.dtype)
        scale = (variance + ctx.epsilon).rsqrt()
        by_weight = by_bias = torch.zeros_like(mean)
        if len(rows):  # of none, torch's kernel divides by 0
            # Both sums in one pass; neither depends on the weight.
            fixed = (scale, mean, variance, mean, scale, False, ctx.epsilon)
            _, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
                slope, wide, *fixed, (False, True, True)
            )
        both = _gathered(torch.stack([by_bias, by_weight])[None])[number * size :][:size].sum(0)
        factor = scale if weight is None else scale * weight.to(mean.dtype)
        by_mean, by_scale = (both / count).unbind()
        # factor * (slope - by_mean - by_scale * (rows - mean) * scale)
        by_rows = functional.batch_norm(
            wide, mean, variance, -factor * by_scale, -factor * by_mean, False, 0.0, ctx.epsilon
        ).addcmul_(slope, factor.view(1, -1, *[1] * (rows.ndim - 2)))
        return (
            by_rows.to(rows.dtype),
            None if weight is None else by_weight.to(weight.dtype),
            by_bias.to(mean.dtype) if ctx.has_bias else None,
            *[None] * 5,
        )


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        parts = [torch.empty_like(local) for _ in range(world_size())]
        dist.all_gather(parts, local.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed: Tensor = _SumOfOwnRows.apply(gradient)
        return summed


class _SumOfOwnRows(torch.autograd.Function):
    """The transpose of :class:`_Gather` and vice versa, so that second derivatives are correct."""

    @staticmethod
    def forward(ctx: Any, gathered: Tensor) -> Tensor:
        summed = gathered.contiguous().clone()
        dist.all_reduce(summed)
        return summed.chunk(world_size())[rank()]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gathered: Tensor = _Gather.apply(gradient)
        return gathered
