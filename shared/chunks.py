"""Steps of a large batch at the memory of a small one: the encoder takes the batch in chunks.

A contrastive loss needs the embeddings of the whole batch, but the encoder's activations of only
one chunk at a time (Gao et al. 2021, GradCache): each chunk is encoded twice, first for its
embeddings and again when the gradient reaches them. Loss and gradient are those of the whole batch.
What an encoder changes in itself as it encodes (running statistics, the vectors of a spectral norm)
is changed once: the second time starts from what the first started from, and leaves no trace.

Shapes: B instances of a batch, C of a chunk, D dimensions of an embedding.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from shared.criterion import Criterion
from shared.distributed import world_size
from shared.ranges import COUNT, optional, require


def large_batch(
    encoder: Callable[..., Tensor],
    criterion: Criterion,
    views: Tensor | Sequence[Tensor | tuple[Tensor, ...]],
    chunk: int,
    *,
    modules: Sequence[nn.Module] = (),
    step: int | None = None,
) -> Tensor:
    """The loss of two views of a large batch, a scalar whose ``backward()`` goes chunk by chunk.

    Loss and gradient equal those of ``criterion.of_views(encoder(first), encoder(second))``. For
    other builders of pairs, use :func:`in_chunks`.

    Args:
        encoder: a module, or a function around modules; one view (C, ...) -> (C, D).
        criterion: with any loss, penalties and projection.
        views: two tensors (B, ...), also stacked as (2, B, ...), or two tuples of such, for example
            ids and masks.
        chunk: the largest C.
        modules: see :func:`in_chunks`.
        step: see :meth:`shared.criterion.Criterion.forward`.

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
    random numbers (dropout), autocast and buffers. A batch norm in training mode normalises each
    chunk by itself, and its running statistics are updated once for each chunk. State outside of
    tensors that modules hold (a counter, a list) is changed twice.

    Args:
        function: called with the arguments of a chunk; returns C rows, or a tuple of such tensors.
        chunks: the arguments of each call, see :func:`split`. A single chunk is called only once.
        modules: those that the function uses, whose state is kept; none if it is a module itself.

    Raises:
        ValueError: a function without its modules.
    """
    all_chunks = list(chunks)
    if len(all_chunks) == 1:
        return function(*all_chunks[0])
    if isinstance(function, nn.Module):
        modules = (*modules, function)
    if not modules:
        raise ValueError("name the modules that the function uses")
    used = [submodule for module in modules for submodule in module.modules()]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        state = _State(list(dict.fromkeys(used)))
        return state.first_pass(), _SecondPass(state)

    outputs = [
        checkpoint(function, *arguments, use_reentrant=False, context_fn=contexts)
        for arguments in all_chunks
    ]
    if isinstance(outputs[0], Tensor):
        return torch.cat(outputs)
    return tuple(torch.cat(pieces) for pieces in zip(*outputs, strict=True))


def split(chunk: int | None, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Tensors (B, ...) in parts of at most ``chunk`` rows and nearly equal size; None: in one part.

    A chunk that is not a positive integer is a ``ValueError``.
    """
    require("chunk", chunk, optional(COUNT))
    count = 1 if chunk is None else max(1, -(-len(tensors[0]) // chunk))
    return list(zip(*(tensor.tensor_split(count) for tensor in tensors), strict=True))


def check_chunk(chunk: int | None) -> None:
    """Raise a ``ValueError`` for an invalid chunk of a configuration.

    With several processes any chunk is invalid: each has a part of the batch already.
    """
    require("chunk", chunk, optional(COUNT))
    if chunk is not None and world_size() > 1:
        raise ValueError(f"chunk {chunk} is for one process; omit chunk, or start without torchrun")


class _State:
    """The tensors of modules besides parameters, as they were before a chunk's first pass."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.before: list[tuple[nn.Module, str, Tensor]] = []

    @contextlib.contextmanager
    def first_pass(self) -> Iterator[None]:
        """Keep what the first pass changes: another tensor under the name, or other content."""
        held = list(_stateful_tensors(self.modules))
        versions = [tensor._version for _, _, tensor in held]
        copies = _copies(held)
        yield
        self.before = [
            (module, name, copy)
            for (module, name, tensor), version, (_, _, copy) in zip(
                held, versions, copies, strict=True
            )
            # the kernels of norms with running statistics do not count what they write
            if isinstance(module, _NormBase)
            or getattr(module, name) is not tensor
            or tensor._version != version
        ]


class _SecondPass:
    """A later pass of a chunk, from the state before the first; may be entered more than once."""

    def __init__(self, state: _State) -> None:
        self.state = state
        self.after: list[tuple[nn.Module, str, Tensor]] = []

    def __enter__(self) -> None:
        # What the first pass has saved for its gradient must not be changed in place, not even
        # back: the later pass has tensors of its own.
        self.after = list(_stateful_tensors(self.state.modules))
        for module, name, copy in _copies(self.state.before):
            setattr(module, name, copy)

    def __exit__(self, *error: object) -> None:
        for module, name, tensor in self.after:
            if getattr(module, name) is not tensor:
                setattr(module, name, tensor)


def _stateful_tensors(modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Module, name and tensor of each buffer, and of each plain attribute without a gradient."""
    for module in modules:
        for name, value in (*module._buffers.items(), *vars(module).items()):
            if isinstance(value, Tensor) and not value.requires_grad:
                yield module, name, value


def _copies(
    held: Sequence[tuple[nn.Module, str, Tensor]],
) -> list[tuple[nn.Module, str, Tensor]]:
    """The same with copies of the tensors; one that is held twice has one copy."""
    copies = {id(tensor): tensor.detach().clone() for _, _, tensor in held}
    return [(module, name, copies[id(tensor)]) for module, name, tensor in held]
