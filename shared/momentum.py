"""Networks that follow others, and the bank of keys that their outputs are kept in.

Shapes: B inputs of a batch, D dimensions of a key, Q keys of a bank, S mixtures of each query.
"""

import copy

import torch
from torch import Tensor, nn

from shared.checks import COUNT, SHARE, require
from shared.pairs import unit_rows


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move every parameter of ``target`` the share ``rate`` of the way to ``online``'s.

    Buffers stay: batch norms of a network that is in training mode have statistics of their own.

    Args:
        target: of the same build as ``online``; changed in place.
        online: stays as it is.
        rate: from 0, nothing moves, to 1; a teacher of momentum m follows at the rate ``1 - m``.

    Raises:
        ValueError: networks whose parameters are not of the same shapes, or another rate.
    """
    require("rate", rate, SHARE)
    mine: list[Tensor] = list(target.parameters())
    theirs: list[Tensor] = list(online.parameters())
    if [item.shape for item in mine] != [item.shape for item in theirs]:
        raise ValueError("a network follows one of its own build; the parameters' shapes differ")
    torch._foreach_lerp_(mine, theirs, rate)


class Teacher(nn.Module):
    """The moving average of an encoder with its head, which gives keys: no gradient.

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
        """Move every parameter the share ``1 - momentum`` of the way to the student's.

        Raises:
            ValueError: see :func:`follow`.
        """
        require("momentum", momentum, SHARE)
        follow(self.encoder, encoder, 1 - momentum)
        follow(self.head, head, 1 - momentum)


def random_bank(count: int, dim: int) -> Tensor:
    """A bank (Q, D) of directions drawn evenly, to start with.

    Args:
        count: Q.
        dim: D.

    Raises:
        ValueError: a bank without keys, or a size that is no whole number.
    """
    if not COUNT.holds(count):
        raise ValueError(f"queue {count}: its keys are the only negatives; take 1 or more")
    require("dim", dim, COUNT)
    return unit_rows(torch.randn(count, dim))


@torch.no_grad()
def enqueue(bank: Tensor, keys: Tensor) -> None:
    """Put keys into a bank, in place of its oldest; of too many keys, the first.

    Args:
        bank: (Q, D), the newest batch first; changed in place.
        keys: (B, D), of any length and precision; what is kept of them has length 1.

    Raises:
        ValueError: keys that are not (B, D).
    """
    if keys.ndim != 2 or keys.shape[1:] != bank.shape[1:]:
        raise ValueError(
            f"keys are of shape (B, {bank.shape[-1]}), as wide as the bank; got {tuple(keys.shape)}"
        )
    everything = torch.cat([unit_rows(keys.float()), bank])
    bank.copy_(everything[: len(bank)])


@torch.no_grad()
def mixed_negatives(
    query: Tensor, bank: Tensor, *, hardest: int, pairs: int, with_query: int
) -> Tensor:
    """Synthetic negatives (B, S, D) of length 1, S = ``pairs + with_query``, each query's own.

    A mixture of two is ``a x + (1 - a) y`` with a from [0, 1), of two of the query's nearest keys;
    one with the query has a from [0, 0.5) for the query. Drawn from torch's generator of the
    device; no gradient.

    Args:
        query: (B, D), of any length and precision.
        bank: (Q, D), of length 1.
        hardest: how many keys nearest to a query are mixed, MoCHI's N.
        pairs: mixtures of two keys, MoCHI's s.
        with_query: mixtures of a key and the query, MoCHI's s'.

    Raises:
        ValueError: more keys than the bank has, or fewer than 1.

    Source: Kalantidis et al. 2020 (MoCHI), Eqs. 3 and 4.
    """
    if not 1 <= hardest <= len(bank):
        raise ValueError(f"hardest is from 1 to the {len(bank)} keys of the bank; got {hardest}")
    query = unit_rows(query.float())
    nearest = (query @ bank.T).topk(hardest, dim=1).indices
    count, device = len(query), query.device

    def drawn(mixtures: int) -> Tensor:
        place = torch.randint(hardest, (count, mixtures), device=device)
        return bank[nearest.gather(1, place)]

    share = torch.rand(count, pairs, 1, device=device)
    of_two = torch.lerp(drawn(pairs), drawn(pairs), share)
    share = 0.5 * torch.rand(count, with_query, 1, device=device)
    of_query = torch.lerp(drawn(with_query), query[:, None].expand(-1, with_query, -1), share)
    mixed = torch.cat([of_two, of_query], dim=1)
    return unit_rows(mixed.flatten(0, 1)).view_as(mixed)
