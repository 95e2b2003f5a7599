"""Accuracy of finding the next and the previous sentence, in books that were not trained on.

The metric that quick-thoughts' program prints during training: within a block of consecutive
sentences, how often the sentence that f of one scores highest is the next one, or the previous one.
The sentence itself is excluded. Only sentences whose neighbour is in their block and chapter are
scored. Both directions are trained equally, so a perfect encoder finds each for about half of them.

Shapes: n sentences, B of a block.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError

NEXT, PREVIOUS = "next_sentence", "previous_sentence"
NEIGHBOURS = (NEXT, PREVIOUS)

# From the start and stop of a block to the scores of its sentences with each other, (B, B).
Scores = Callable[[int, int], Tensor]


def neighbour_accuracies(scores: Scores, chapter: np.ndarray, size: int) -> dict[str, float]:
    """Share of sentences for which each of ``NEIGHBOURS`` is found, in percent.

    chapter: of every sentence, (n,). size: B; an incomplete last block is ignored.
    """
    index = torch.arange(size)
    right, scored = dict.fromkeys(NEIGHBOURS, 0), dict.fromkeys(NEIGHBOURS, 0)
    for start in range(0, len(chapter) - size + 1, size):
        stop = start + size
        of = torch.from_numpy(chapter[start:stop].astype(np.int64))
        nearest = scores(start, stop).cpu().fill_diagonal_(-torch.inf).argmax(1)
        for name, neighbour in ((NEXT, index + 1), (PREVIOUS, index - 1)):
            inside = (neighbour >= 0) & (neighbour < size)
            inside &= of[neighbour.clamp(0, size - 1)] == of
            right[name] += int((nearest == neighbour)[inside].sum())
            scored[name] += int(inside.sum())
    if not scored[NEXT]:
        raise UserError(
            f"the {len(chapter)} held-out sentences have no two neighbours in a block of {size}; "
            f"raise held_out, or lower batch_size"
        )
    return {name: 100 * right[name] / scored[name] for name in NEIGHBOURS}
