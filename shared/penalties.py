"""Penalties on pairwise similarities: ``(pairs, similarity, *, numbers) -> (N,)``.

Shapes: N anchors, M candidates; ``similarity`` is (N, M) and holds cosines. The mean over anchors
is the penalty of the batch. For pairs of a global batch (``Pairs.blocks``) the mean is over the
anchors of all processes, and anchors and pairs are counted over all processes.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from shared.checks import TEMPERATURE, checked
from shared.distributed import all_reduce_sum, gather_ragged, row_counts
from shared.pairs import Pairs, blocks_of_rows, cosine, fill, unit_rows
from shared.precision import upcast, without_negative
from shared.ranges import FINITE, FLAG, one_of, require


def _is_band(numbers: Mapping[str, Any]) -> None:
    lower, upper = numbers["lower"], numbers["upper"]
    require("lower", lower, FINITE)
    require("upper", upper, FINITE)
    if not 0 <= lower < upper <= 1:
        raise ValueError(f"0 <= lower < upper <= 1; got lower {lower}, upper {upper}")


@checked(
    _is_band,
    reduction=one_of("anchor_sum", "mean", "sum"),
    among=one_of("negatives", "all", "anchors"),
    cosines=True,
)
def distance_polarization(
    pairs: Pairs,
    similarity: Tensor,
    *,
    lower: float = 0.1,
    upper: float = 0.5,
    reduction: Literal["anchor_sum", "mean", "sum"] = "anchor_sum",
    among: Literal["negatives", "all", "anchors"] = "negatives",
) -> Tensor:
    """LMCL's penalty, which pushes distances out of the band between ``lower`` and ``upper``.

    With ``D = (1 - cos) / 2`` in [0, 1], the penalty of a pair is
    ``|min((D - lower) (D - upper), 0)|``. The paper does not say how pairs are added up, hence
    ``reduction``.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        lower: delta+.
        upper: delta-, above ``lower``.
        reduction: after the final mean over anchors, ``"anchor_sum"`` is the sum over an anchor's
            pairs, averaged over anchors, ``"mean"`` the mean over all pairs, ``"sum"`` their sum.
        among: ``"negatives"``; ``"all"``: positives as well; ``"anchors"``: pairs of anchors (all
            i != j), whose cosines are computed here.

    Returns:
        (N,).

    Source: Chen et al. 2021 (LMCL), Eqs. 6 and 10.
    """
    cosines, excluded = _chosen(pairs, similarity, among)
    if torch._C._are_functorch_transforms_active():
        # Nested transforms differentiate torch's own operations only.
        value = _depth(cosines, excluded, lower, upper).sum(1)
    else:
        value = _Band.apply(cosines, excluded, lower, upper)
    if reduction == "anchor_sum":
        return value
    anchors = row_counts(value).sum() if pairs.blocks else len(value)
    if reduction == "sum":
        return value * anchors
    count = _count(pairs, cosines, among)
    count = all_reduce_sum(count) if pairs.blocks else count
    return value * (anchors / count.clamp(min=1).to(value.dtype))


def _depth(cosines: Tensor, excluded: Tensor, lower: float, upper: float) -> Tensor:
    """The depth of each pair inside the band, (N, M); 0 for excluded pairs."""
    distance = (1 - cosines) / 2
    return fill(without_negative((distance - lower) * (upper - distance)), excluded, 0.0)


class _Band(torch.autograd.Function):
    """The row sums of :func:`_depth`, by blocks of rows that fit into a processor's cache.

    Only the arguments are saved for the backward pass; derivatives of any order are correct. It
    works on doubled distances, which changes no digit.
    """

    @staticmethod
    def forward(ctx: Any, cosines: Tensor, excluded: Tensor, lower: float, upper: float) -> Tensor:
        ctx.band = lower, upper
        ctx.save_for_backward(cosines, excluded)
        value = cosines.new_zeros(len(cosines))
        for rows in blocks_of_rows(cosines):
            double = 1 - cosines[rows]
            depth = (2 * upper - double).mul_(double.sub_(2 * lower)).clamp_(min=0)
            torch.sum(fill(depth, excluded[rows], 0.0), 1, out=value[rows])
        return value.div_(4)

    @staticmethod
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor, None, None, None]:
        cosines, excluded = ctx.saved_tensors
        lower, upper = ctx.band
        if torch.is_grad_enabled():  # in a second derivative
            value = _depth(cosines, excluded, lower, upper).sum(1)
            (slope,) = torch.autograd.grad(value, cosines, by_value, create_graph=True)
            return slope, None, None, None
        gradient = torch.empty_like(cosines)
        # The band with its ends, as the open interval that _within takes.
        ends = torch.tensor([2 * lower, 2 * upper], dtype=cosines.dtype)
        first, last = ends.nextafter(ends.new_tensor([-1.0, 3.0])).tolist()
        factor = by_value[:, None] / 4
        for rows in blocks_of_rows(cosines):
            double = 1 - cosines[rows]
            slope = (double - 2 * lower).mul_(factor[rows])
            slope.sub_((2 * upper - double).mul_(factor[rows]))
            within = _within(slope, double, first, last, out=gradient[rows])
            fill(within, excluded[rows], 0.0)
        return gradient, None, None, None


def _within(
    values: Tensor, at: Tensor, low: float, high: float, out: Tensor | None = None
) -> Tensor:
    """The values where ``low < at < high``, 0 elsewhere; many times as fast as a mask."""
    out = torch.empty_like(values) if out is None else out
    chosen: Tensor = torch.ops.aten.hardtanh_backward(values, at, low, high, grad_input=out)
    return chosen


def _count(pairs: Pairs, cosines: Tensor, among: str) -> Tensor:
    """How many pairs there are, a scalar."""
    if among == "anchors":
        others = cosines.numel() - len(cosines)
        return torch.full((), others, dtype=torch.int64, device=cosines.device)
    # count_nonzero is many times as fast as a sum.
    count = torch.count_nonzero(pairs.negative)
    return count + torch.count_nonzero(pairs.positive) if among == "all" else count


@checked(temperature=TEMPERATURE, with_positive=FLAG, cosines=True)
def consistency(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: float = 0.05,
    with_positive: bool = False,
) -> Tensor:
    """CO2's penalty: an anchor and its positive should have the same similarities to the negatives.

    With p the softmax of an anchor's cosines with its negatives, and q that of its positive's
    cosines with the same negatives: ``(KL(p | q) + KL(q | p)) / 2``, averaged over the positives of
    an anchor; 0 for an anchor without positives or negatives. The gradient flows through both,
    except into the keys of a teacher.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        temperature: of both softmaxes.
        with_positive: True includes the cosine of anchor and positive in both softmaxes, as
            lightly's implementation does.

    Returns:
        (N,).

    Source: Wei et al. 2021 (CO2), Section 2.
    """
    index = pairs.positives()
    candidate = unit_rows(upcast(pairs.candidate)).to(similarity.dtype)
    of_positive = candidate[index.clamp(min=0)] @ candidate.T
    defined = pairs.negative.any(1, keepdim=True)
    mask = (pairs.negative | ~defined)[:, None].expand_as(of_positive)
    of_anchor = similarity[:, None].expand_as(of_positive)
    if with_positive:
        shared = similarity.gather(1, index.clamp(min=0))[..., None]
        of_anchor, of_positive = (
            torch.cat([rows, shared], dim=2) for rows in (of_anchor, of_positive)
        )
        mask = torch.cat([mask, torch.ones_like(shared, dtype=torch.bool)], dim=2)
    # Other candidates contribute nothing: probability 0, and equal log probabilities.
    p, q = (
        torch.where(mask, (rows / temperature).masked_fill(~mask, -torch.inf).log_softmax(2), 0.0)
        for rows in (of_anchor, of_positive)
    )
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(2) / 2
    present = (index >= 0) & defined
    return torch.where(present, divergence, 0.0).sum(1) / present.sum(1).clamp(min=1)


@checked(_is_band)
@torch.no_grad()
def band_statistics(
    pairs: Pairs, similarity: Tensor, *, lower: float = 0.1, upper: float = 0.5
) -> dict[str, Tensor]:
    """Share of the negative pairs inside the band, and their mean cosine (two scalars).

    For pairs of a global batch they are those of the global batch.
    """
    # Detached, since torch.func's forward mode ignores no_grad and knows no out=.
    cosines, excluded = _chosen(pairs, similarity.detach(), "negatives")
    count = _count(pairs, cosines, "negatives")
    inside, summed = torch.zeros_like(count), cosines.new_zeros(())
    blocks = blocks_of_rows(cosines)
    ones = torch.ones_like(cosines[blocks[0]]) if blocks else cosines
    room = torch.empty_like(ones)  # one for all blocks: fresh memory costs more than a sum
    for rows in blocks:
        block = cosines[rows]
        buffer = room[: len(block)]
        _within(ones[: len(block)], block, 1 - 2 * upper, 1 - 2 * lower, out=buffer)
        inside += fill(buffer, excluded[rows], 0.0).sum(1).long().sum()
        summed += fill(buffer.copy_(block), excluded[rows], 0.0).sum()
    if pairs.blocks:
        count, inside = all_reduce_sum(torch.stack([count, inside])).unbind()
        summed = all_reduce_sum(summed)
    count = count.clamp(min=1)
    return {"share_in_band": inside / count, "mean_cosine": summed / count}


def _chosen(pairs: Pairs, similarity: Tensor, among: str) -> tuple[Tensor, Tensor]:
    """Cosines, and those that are left out, as :func:`shared.pairs.fill` takes them."""
    if among != "anchors":
        return similarity, pairs.excluded(positives=among == "negatives")
    gathered, start = gather_ragged(pairs.anchor) if pairs.blocks else (pairs.anchor, 0)
    cosines = cosine(pairs.anchor, gathered)
    return cosines, torch.arange(start, start + len(cosines), device=cosines.device)[:, None]
