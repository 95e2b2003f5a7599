"""Steps of a large batch at the memory of a small one: the encoder takes the batch in chunks.

A contrastive loss needs the embeddings of the whole batch, but an encoder's activations of one
chunk at a time (Gao et al. 2021, GradCache): each chunk is encoded twice, first for its embeddings
and again when the gradient reaches them. Loss and gradient are those of the whole batch.

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

    It is ``criterion.of_views(encoder(first), encoder(second))``, and so is its gradient; see
    :func:`in_chunks`, with which every builder of pairs can be had.

    Args:
        encoder: a module; one view (C, ...) -> (C, D).
        criterion: with any loss, penalties and projection.
        views: two of (B, ...); or of several tensors, such as ids and masks, in a tuple each.
        chunk: C at most.
        step: see :meth:`shared.objective.Criterion.forward`.

    Raises:
        ValueError: a chunk that is no positive whole number, or what the criterion refuses.
    """
    modules = [encoder] if isinstance(encoder, nn.Module) else []
    first, second = (
        in_chunks(encoder, split(chunk, *(view if isinstance(view, tuple) else (view,))), *modules)
        for view in views
    )
    return criterion.of_views(first, second, step=step)


def in_chunks(
    function: Callable[..., Any], chunks: Iterable[tuple[Any, ...]], *modules: nn.Module
) -> Any:
    """What a function gives for all chunks, one below the other, at the memory of one of them.

    Of a chunk nothing is kept but its output. The backward pass calls the function on it again,
    with the random numbers (dropout) and the autocast of the first time. A batch norm in training
    mode normalises each chunk by itself, and its running statistics follow each chunk once.

    Args:
        function: called with each chunk's arguments; gives a tensor of C rows, or a tuple of such.
        chunks: arguments of each call, such as :func:`split` makes. A single chunk is called once.
        modules: all in the function that have batch norms.
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
    """Tensors (B, ...) in parts of at most ``chunk`` rows, as equal as can be; None: in one part.

    Raises:
        ValueError: a chunk that is no positive whole number.
    """
    require("chunk", chunk, optional(COUNT))
    count = 1 if chunk is None else max(1, -(-len(tensors[0]) // chunk))
    return list(zip(*(each.tensor_split(count) for each in tensors), strict=True))


def check_chunk(chunk: int | None) -> None:
    """Refuse a chunk of a configuration that cannot be.

    Raises:
        ValueError: no positive whole number, or several processes, each of which has a part of the
            batch already.
    """
    require("chunk", chunk, optional(COUNT))
    if chunk is not None and world_size() > 1:
        raise ValueError(f"chunk {chunk}: chunks are of one process's batch; leave one of both out")


@contextlib.contextmanager
def _unmoved(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Batch norms work on copies of their running statistics."""
    # What a first pass keeps for its gradient may not be changed in place, not even back.
    own = [(norm, *item) for norm in norms for item in norm.named_buffers(recurse=False)]
    for norm, name, buffer in own:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in own:
            setattr(norm, name, buffer)
