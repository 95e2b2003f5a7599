"""Networks that follow others, and the bank of keys that their outputs are kept in.

Shapes: B inputs of a batch, D dimensions of a key, Q keys of a bank.
"""

import copy

import torch
from torch import Tensor, nn

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
        ValueError: networks whose parameters are not of the same shapes.
    """
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
        follow(self.encoder, encoder, 1 - momentum)
        follow(self.head, head, 1 - momentum)


def random_bank(count: int, dim: int) -> Tensor:
    """A bank (Q, D) of directions drawn evenly, to start with.

    Args:
        count: Q.
        dim: D.

    Raises:
        ValueError: a bank without keys.
    """
    if count < 1:
        raise ValueError(f"queue {count}: its keys are the only negatives; take 1 or more")
    return unit_rows(torch.randn(count, dim))


@torch.no_grad()
def enqueue(bank: Tensor, keys: Tensor) -> None:
    """Put keys into a bank, in place of its oldest; of too many keys, the first.

    Args:
        bank: (Q, D), the newest batch first; changed in place.
        keys: (B, D), of any length and precision; what is kept of them has length 1.
    """
    everything = torch.cat([unit_rows(keys.float()), bank])
    bank.copy_(everything[: len(bank)])
