"""Steps of a large batch at the memory of a small one: the encoder takes the batch in chunks.

A contrastive loss needs the embeddings of the whole batch, but the encoder's activations of only
one chunk at a time (Gao et al. 2021, GradCache): each chunk is encoded twice, first for its
embeddings and again when the gradient reaches them. Loss and gradient are those of the whole batch.

Shapes: B instances of a batch, C of a chunk, D dimensions of an embedding.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from shared.checks import COUNT, optional, require
from shared.distributed import world_size
from shared.objective import Criterion


def large_batch(
    encoder: Callable[..., Tensor],
    criterion: Criterion,
    views: Sequence[Tensor | tuple[Tensor, ...]],
    chunk: int,
    *,
    step: int | None = None,
) -> Tensor:
    """The loss of two views of a large batch, a scalar whose ``backward()`` goes chunk by chunk.

    Loss and gradient equal those of ``criterion.of_views(encoder(first), encoder(second))``. For
    other builders of pairs, use :func:`in_chunks`.

    Args:
        encoder: a module; one view (C, ...) -> (C, D).
        criterion: with any loss, penalties and projection.
        views: two tensors (B, ...), or two tuples of such, for example ids and masks.
        chunk: the largest C.
        step: see :meth:`shared.objective.Criterion.forward`.

    Raises:
        ValueError: a chunk that is not a positive integer, other than two views, an objective that
            is not built, or what the criterion refuses.
    """
    if len(views) != 2:
        raise ValueError(f"views are two, of every instance; got {len(views)}")
    if not isinstance(criterion, Criterion):
        raise ValueError(
            f"criterion is built from an objective, objective.build(dim); "
            f"got {type(criterion).__name__}"
        )
    modules = [encoder] if isinstance(encoder, nn.Module) else []
    first, second = (
        in_chunks(encoder, split(chunk, *(view if isinstance(view, tuple) else (view,))), *modules)
        for view in views
    )
    return criterion.of_views(first, second, step=step)


def in_chunks(
    function: Callable[..., Any], chunks: Iterable[tuple[Any, ...]], *modules: nn.Module
) -> Any:
    """The outputs of a function for all chunks, concatenated, at the memory of one chunk.

    Only the output of a chunk is kept. The backward pass calls the function again, with the same
    random numbers (dropout) and autocast. A batch norm in training mode normalises each chunk by
    itself, and its running statistics are updated once for each chunk.

    Args:
        function: called with the arguments of a chunk; returns C rows, or a tuple of such tensors.
        chunks: the arguments of each call, see :func:`split`. A single chunk is called only once.
        modules: the modules that the function uses; their batch norms are handled as said above.
    """
    every = list(chunks)
    if len(every) == 1:
        return function(*every[0])
    norms = [each for module in modules for each in module.modules()]
    norms = [each for each in norms if isinstance(each, _BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return contextlib.nullcontext(), _unmoved(norms)

    outputs = [
        checkpoint(function, *each, use_reentrant=False, context_fn=contexts) for each in every
    ]
    if isinstance(outputs[0], Tensor):
        return torch.cat(outputs)
    return tuple(torch.cat(each) for each in zip(*outputs, strict=True))


def split(chunk: int | None, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Tensors (B, ...) in parts of at most ``chunk`` rows and nearly equal size; None: in one part.

    Raises:
        ValueError: a chunk that is not a positive integer.
    """
    require("chunk", chunk, optional(COUNT))
    count = 1 if chunk is None else max(1, -(-len(tensors[0]) // chunk))
    return list(zip(*(each.tensor_split(count) for each in tensors), strict=True))


def check_chunk(chunk: int | None) -> None:
    """Refuse an invalid chunk of a configuration.

    Raises:
        ValueError: not a positive integer, or several processes, each of which has a part of the
            batch already.
    """
    require("chunk", chunk, optional(COUNT))
    if chunk is not None and world_size() > 1:
        raise ValueError(f"chunk {chunk} is for one process; leave out chunk or --processes")


@contextlib.contextmanager
def _unmoved(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Let batch norms update copies of their running statistics."""
    # What the first pass has saved for its gradient must not be changed in place, not even back.
    own = [(norm, *item) for norm in norms for item in norm.named_buffers(recurse=False)]
    for norm, name, buffer in own:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in own:
            setattr(norm, name, buffer)
