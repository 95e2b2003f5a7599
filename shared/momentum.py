"""Momentum teachers and the bank (queue) of their keys.

Shapes: B inputs of a batch, D dimensions of a key, Q keys of a bank, S mixtures of each query.
"""

import copy

import torch
from torch import Tensor, nn

from shared.distributed import broadcast, local_slice, world_size
from shared.pairs import unit_rows
from shared.precision import upcast
from shared.ranges import COUNT, SHARE, require

SMALL_QUEUE = 256  # keys, where a queue would hold all instances


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Update the parameters of ``target`` as an exponential moving average of ``online``'s.

    Buffers are left alone: batch norms in training mode have statistics of their own.

    Args:
        target: of the same architecture as ``online``; changed in place.
        online: unchanged.
        rate: in [0, 1], the weight of ``online``; ``1 - m`` for a teacher of momentum m.

    Raises:
        ValueError: networks whose parameters have different shapes or precisions, a rate outside
            [0, 1], or an average in 16 bits, whose rounding would swallow the updates.
    """
    require("rate", rate, SHARE)
    targets: list[Tensor] = list(target.parameters())
    sources: list[Tensor] = list(online.parameters())
    if [item.shape for item in targets] != [item.shape for item in sources]:
        raise ValueError("both networks need the same architecture; the parameters' shapes differ")
    small = [item.dtype for item in targets if item.dtype.itemsize < 4]
    if small and 0 < rate < 1:
        raise ValueError(
            f"a moving average in {small[0]} is lost to rounding; keep both networks in float32, "
            f"and compute in 16 bits with torch.autocast"
        )
    for one, other in zip(targets, sources, strict=True):
        if one.dtype != other.dtype:
            raise ValueError(
                f"both networks need the same precision; got {one.dtype} and {other.dtype}: move "
                f"both with .to(), or compute in 16 bits with torch.autocast"
            )
    if targets:  # a head may be an identity
        torch._foreach_lerp_(targets, sources, rate)


class Teacher(nn.Module):
    """The moving average of an encoder with its head, which computes keys without gradient.

    Args:
        encoder: the student's encoder, which is copied.
        head: the student's head, which is copied.

    Source: He et al. 2020 (MoCo), Eq. 2.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.head = copy.deepcopy(head).requires_grad_(False)

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs (B, ...) -> keys (B, D)."""
        keys: Tensor = self.head(self.encoder(inputs))
        return keys

    def follow(self, encoder: nn.Module, head: nn.Module, momentum: float) -> None:
        """Update the parameters as a moving average of the student's.

        Raises:
            ValueError: see :func:`follow`.
        """
        follow(self.encoder, encoder, 1 - momentum)
        follow(self.head, head, 1 - momentum)


def bank_size(queue: int, instances: int) -> int:
    """The number of keys to keep of a queue, given how many instances are trained on.

    A queue as long as the training set would hold older keys of each instance itself as negatives.
    """
    return queue if queue < instances else min(SMALL_QUEUE, instances // 2)


def random_bank(count: int, dim: int) -> Tensor:
    """An initial bank (Q, D) of uniformly random directions.

    Args:
        count: Q.
        dim: D.

    Raises:
        ValueError: a bank without keys.
    """
    if not COUNT.holds(count):
        raise ValueError(f"queue {count}: its keys are the only negatives; use 1 or more")
    return unit_rows(torch.randn(count, dim))


@torch.no_grad()
def enqueue(bank: Tensor, keys: Tensor) -> None:
    """Put keys into a bank, in place of its oldest ones; if there are too many, the first Q.

    Args:
        bank: (Q, D), the newest batch first; changed in place.
        keys: (B, D), of any norm and precision; they are normalised.
    """
    everything = torch.cat([unit_rows(upcast(keys)), bank])
    bank.copy_(everything[: len(bank)])


@torch.no_grad()
def mixed_negatives(
    query: Tensor,
    bank: Tensor,
    *,
    hardest: int,
    pairs: int,
    with_query: int,
    together: bool = False,
) -> Tensor:
    """Synthetic negatives (B, S, D) of norm 1, S = ``pairs + with_query`` for each query.

    A mixture of two keys is ``a x + (1 - a) y`` with a from [0, 1), of two of the query's nearest
    keys; in a mixture with the query, the query has weight a from [0, 0.5). Drawn from torch's
    generator of the device; no gradient.

    Args:
        query: (B, D), of any norm and precision.
        bank: (Q, D), of norm 1.
        hardest: the number of nearest keys that are mixed, MoCHI's N.
        pairs: mixtures of two keys, MoCHI's s.
        with_query: mixtures of a key and the query, MoCHI's s'.
        together: the queries are this process's part of a global batch, for all of which process 0
            draws.

    Raises:
        ValueError: more keys than the bank has, or fewer than 1.

    Source: Kalantidis et al. 2020 (MoCHI), Eqs. 3 and 4.
    """
    if not 1 <= hardest <= len(bank):
        raise ValueError(f"hardest is from 1 to the {len(bank)} keys of the bank; got {hardest}")
    query, bank = unit_rows(upcast(query)), upcast(bank)
    nearest = (query @ bank.T).topk(hardest, dim=1).indices
    count, device = len(query) * (world_size() if together else 1), query.device

    def own(draws: Tensor) -> Tensor:
        return broadcast(draws)[local_slice(count)] if together else draws

    def drawn(mixtures: int) -> Tensor:
        index = own(torch.randint(hardest, (count, mixtures), device=device))
        return bank[nearest.gather(1, index)]

    share = own(torch.rand(count, pairs, 1, device=device)).to(query)
    of_two = torch.lerp(drawn(pairs), drawn(pairs), share)
    share = 0.5 * own(torch.rand(count, with_query, 1, device=device)).to(query)
    of_query = torch.lerp(drawn(with_query), query[:, None].expand(-1, with_query, -1), share)
    mixed = torch.cat([of_two, of_query], dim=1)
    return unit_rows(mixed.flatten(0, 1)).view_as(mixed)
