"""SwAV: the code of one crop is predicted from the others (Caron et al. 2020).

Shapes: V crops of an image, the two large ones first, B images, D dimensions of an embedding, K
prototypes, Q older embeddings of each large crop, N = 2 B anchors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from shared.checks import TEMPERATURE, checked
from shared.distributed import gather, local_slice
from shared.momentum import enqueue
from shared.pairs import Gather, Pairs, two_views, unit_rows
from shared.precision import upcast
from shared.ranges import COUNT, POSITIVE
from vision.config import Config
from vision.methods.base import Compared, Networks, Step


class SwAV(Networks):
    """Crops against prototypes: two large crops, then any number of small ones."""

    options = ("small_crops",)
    loss = ("swapped_prediction", "it compares with prototypes, which the method has")
    queue: Tensor | None

    def __init__(self, config: Config, images: int) -> None:
        super().__init__(config, images)
        self.prototypes = nn.Linear(config.head_output, config.prototypes, bias=False)
        # Of zeros until it is full.
        queue = torch.zeros(2, config.queue, config.head_output) if config.queue else None
        self.register_buffer("queue", queue)
        self._is_full = False

    def compare(self, views: tuple[Tensor, ...], step: Step) -> Compared:
        """All crops against the prototypes.

        As in its program, crops of one size share a forward pass of the backbone, and all of them
        one of the head, so that batch norms see them together.
        """
        weight = self.prototypes.weight
        with torch.no_grad():
            weight.copy_(unit_rows(weight))
        passes = [views[:2], views[2:]][: 2 if self.config.small_crops else 1]
        features = torch.cat([self.encoder(torch.cat(crops)) for crops in passes])
        embeddings = self.head(features).unflatten(0, (len(views), -1))
        still = step.epoch < self.config.prototypes_still
        prototypes = weight.detach() if still else weight
        pairs = crop_pairs(embeddings, prototypes, self.full_queue(step), gather=gather)
        return [pairs], list(features.unflatten(0, (len(views), -1))[:2])

    def full_queue(self, step: Step) -> Tensor | None:
        """The queue once it is full, which is checked until then; None before and without."""
        if self.queue is None or step.epoch < self.config.queue_from:
            return None
        self._is_full = self._is_full or bool(self.queue[:, -1].any())
        return self.queue if self._is_full else None

    def remember(self, pairs: list[Pairs], step: Step) -> None:
        """Replace the oldest embeddings of the queue, if there is one, by those of the batch."""
        (crops,) = pairs
        assert isinstance(crops, Crops)
        if self.queue is not None and step.epoch >= self.config.queue_from:
            for bank, crop in zip(self.queue, crops.crops, strict=False):  # of the large ones
                enqueue(bank, gather(crop.detach()))

    @staticmethod
    def faults(config: Config) -> Iterator[str]:
        """Of the prototypes."""
        if config.prototypes < 2:
            yield f"prototypes {config.prototypes}: a single one cannot discriminate; use 2"


@dataclass(frozen=True, kw_only=True)
class Crops(Pairs):
    """The pairs of two large crops, for penalties; all crops and prototypes, for SwAV's loss."""

    crops: Tensor  # (V, B, D), embeddings of all crops
    prototypes: Tensor  # (K, D), of length 1
    # (2, Q, D), of unit norm: earlier embeddings over which codes are balanced together with the
    # batch; None for none.
    older: Tensor | None


def crop_pairs(
    crops: Tensor, prototypes: Tensor, older: Tensor | None = None, *, gather: Gather | None = None
) -> Crops:
    """The pairs of embeddings (V, B, D): two views, and the rest of :class:`Crops`.

    With ``gather`` the crops are this process's part of a global batch.
    """
    pairs = two_views(crops[0], crops[1], gather=gather)
    given = {item.name: getattr(pairs, item.name) for item in fields(pairs) if item.init}
    return Crops(**given, crops=crops, prototypes=prototypes, older=older)


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
