"""How often the next sentence is found, in books that were not trained on.

What quick-thoughts' program counts of a model while it is trained: in a block of consecutive
sentences, whether the sentence that f of one of them scores highest is the next one, or the one
before. No sentence is found to be its own neighbour. Counted are sentences whose neighbour is in
their block and chapter. Both directions are trained alike, so that a perfect encoder finds each for
about half of the sentences.

Shapes: n sentences, B of a block.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError

NEXT, PREVIOUS = "next_sentence", "previous_sentence"
NEIGHBOURS = (NEXT, PREVIOUS)

# From before which sentence, and up to before which: how well each goes with each, (B, B).
Scores = Callable[[int, int], Tensor]


def neighbour_accuracies(scores: Scores, chapter: np.ndarray, size: int) -> dict[str, float]:
    """Shares of ``NEIGHBOURS`` that are found, in percent.

    Args:
        scores: of the sentences of a block.
        chapter: of every sentence, (n,).
        size: B; what is left over at the end is not looked at.

    Raises:
        UserError: no two neighbours in any block.
    """
    own = torch.arange(size)
    right, asked = dict.fromkeys(NEIGHBOURS, 0), dict.fromkeys(NEIGHBOURS, 0)
    for start in range(0, len(chapter) - size + 1, size):
        stop = start + size
        of = torch.from_numpy(chapter[start:stop].astype(np.int64))
        found = scores(start, stop).cpu().fill_diagonal_(-torch.inf).argmax(1)
        for name, place in ((NEXT, own + 1), (PREVIOUS, own - 1)):
            inside = (place >= 0) & (place < size)
            inside &= of[place.clamp(0, size - 1)] == of
            right[name] += int((found == place)[inside].sum())
            asked[name] += int(inside.sum())
    if not asked[NEXT]:
        raise UserError(
            f"the {len(chapter)} held-out sentences have no two neighbours in a block of {size}; "
            f"raise held_out, or lower batch_size"
        )
    return {name: 100 * right[name] / asked[name] for name in NEIGHBOURS}
