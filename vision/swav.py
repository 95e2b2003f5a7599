"""SwAV: the code of one crop is predicted from the others.

Shapes: V crops of an image, the two large ones first, B images, D dimensions of an embedding, K
prototypes, Q older embeddings of each large crop, N = 2 B anchors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.checks import TEMPERATURE, checked
from shared.distributed import gather, local_slice
from shared.pairs import Gather, Pairs, two_views, unit_rows
from shared.precision import upcast
from shared.ranges import COUNT, POSITIVE


@dataclass(frozen=True, kw_only=True)
class Crops(Pairs):
    """The pairs of two large crops, for penalties; all crops and prototypes, for SwAV's loss."""

    crops: Tensor  # (V, B, D), embeddings of all crops
    prototypes: Tensor  # (K, D), of length 1
    # (2, Q, D), of unit norm: earlier embeddings over which codes are balanced together with the
    # batch; None for none.
    older: Tensor | None


def crop_pairs(
    crops: Tensor,
    prototypes: Tensor,
    older: Tensor | None = None,
    *,
    gather: Gather | None = None,
) -> Crops:
    """The pairs of embeddings (V, B, D): two views, and the rest of :class:`Crops`.

    With ``gather`` the crops are this process's part of a global batch.
    """
    pairs = two_views(crops[0], crops[1], gather=gather)
    return Crops(
        anchor=pairs.anchor,
        candidate=pairs.candidate,
        positive=pairs.positive,
        negative=pairs.negative,
        blocks=pairs.blocks,
        most_positives=pairs.most_positives,
        crops=crops,
        prototypes=prototypes,
        older=older,
    )


@checked(temperature=TEMPERATURE, epsilon=POSITIVE, iterations=COUNT)
def swapped_prediction(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Tensor:
    """The mean over all other crops v of ``-sum_k q_k log softmax_k(z_v c_k / temperature)``.

    q is the code of the anchor, a large crop: :func:`codes` of its cosines with the prototypes c,
    balanced over the batch of all processes and the kept embeddings of earlier ones, without
    gradient. Embeddings z are normalised.

    Args:
        pairs: of :func:`crop_pairs`, N anchors.
        similarity: (N, N); not used.
        temperature: of the prediction.
        epsilon: see :func:`codes`.
        iterations: see :func:`codes`.

    Returns:
        (N,).

    Source: Caron et al. 2020 (SwAV), Eqs. 1 and 2, and its program.
    """
    if not isinstance(pairs, Crops):
        raise ValueError("swapped_prediction needs crops and prototypes; use method 'swav'")
    views, batch, _ = pairs.crops.shape
    prototypes = upcast(pairs.prototypes)
    units = unit_rows(upcast(pairs.crops).flatten(0, 1))
    scores = (units @ prototypes.T).view(views, batch, -1)
    predicted = (scores / temperature).log_softmax(2)
    values = []
    for crop in (0, 1):
        known = scores[crop].detach()
        known = gather(known) if pairs.blocks else known
        local = local_slice(len(known)) if pairs.blocks else slice(batch)
        if pairs.older is not None:
            known = torch.cat([known, pairs.older[crop] @ prototypes.detach().T])
        code = codes(known, epsilon=epsilon, iterations=iterations)[local]
        others = torch.cat([predicted[:crop], predicted[crop + 1 :]])
        values.append(-(code * others).sum(2).mean(0))
    return torch.cat(values).to(similarity.dtype)


@torch.no_grad()
def codes(scores: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Soft assignments (n, K) of n scores (n, K) to K prototypes, with equal use of all prototypes.

    Sinkhorn and Knopp's iteration on ``exp(scores / epsilon)``, in log space: each prototype's
    shares are scaled to an equal sum, then each row's to 1, ``iterations`` times.

    Source: Caron et al. 2020 (SwAV), Eq. 5.
    """
    log = scores / epsilon
    for _ in range(iterations):
        log = log - log.logsumexp(0, keepdim=True)
        log = log - log.logsumexp(1, keepdim=True)
    return log.exp()
