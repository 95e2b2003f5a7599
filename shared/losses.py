"""One pure function per loss: ``(pairs, similarity, *, numbers) -> (N,)``, unreduced.

Shapes: N anchors, M candidates. ``similarity`` is the (N, M) matrix of the pairs' similarities
(cosines unless a function says otherwise); entries outside both masks are never read. Half
precision is lifted to float32; everything exponential happens in log space. An anchor without a
positive has loss 0.

Notation in the formulas: s = similarity / temperature, p a positive, n the number of negatives.
With several positives an anchor's loss is the mean over them.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shared import svm
from shared.margins import (
    angular_margin,
    attenuation_weight,
    curvature_weight,
    margin_ratio,
    scale_gradient,
    subtractive_margin,
)
from shared.pairs import Pairs, cosine

Floor = Literal["cosine", "minimum"]


def info_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: float,
    positive_in_denominator: bool = True,
) -> Tensor:
    """InfoNCE / NT-Xent: ``-s_p + log sum_j exp(s_j)``.

    The sum runs over negatives and positives (SimCLR, CPC; quick-thoughts with several positives),
    or over negatives alone (GraphCL's ``loss_cal``; the value may then be negative).

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M).
        temperature: positive.
        positive_in_denominator: False is GraphCL's form.

    Returns:
        (N,).

    Source: Chen et al. 2020 (SimCLR), Eq. 1; You et al. 2020 (GraphCL), Eq. 3 and its program.
    """
    _check_temperature(temperature)
    masks = (pairs.negative, pairs.positive) if positive_in_denominator else (pairs.negative,)
    positives = pairs.positives()
    total, score = _logsumexp_and_pick(_lift(similarity), 1 / temperature, masks, positives)
    # With nothing to compare its positive with, an anchor has no loss in GraphCL's form either.
    loss = torch.where(total[:, None] == -math.inf, 0.0, total[:, None] - score)
    return _mean_over_positives(loss, positives)


def debiased_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: float,
    tau_plus: float,
    floor: Floor = "cosine",
) -> Tensor:
    """Debiased contrastive loss (DCL): negatives corrected for the positives among them.

    ``-log(exp(s_p) / (exp(s_p) + Ng))`` with
    ``Ng = max((sum_neg exp(s) - tau_plus n mean_pos exp(s)) / (1 - tau_plus), floor)``.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M).
        temperature: positive.
        tau_plus: class prior, in [0, 1).
        floor: ``"cosine"`` is ``n exp(-1 / temperature)``, right for cosines; ``"minimum"`` is
            ``n exp(min_neg s)``, for unbounded similarities.

    Returns:
        (N,).

    Source: Chuang et al. 2020, Eq. 8 with M = 1, and their program.
    """
    return hard_nce(
        pairs, similarity, temperature=temperature, tau_plus=tau_plus, beta=0.0, floor=floor
    )


def hard_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: float,
    tau_plus: float,
    beta: float,
    floor: Floor = "cosine",
    detach_weights: bool = False,
) -> Tensor:
    """Hard-negative loss (HCL): debiased, with negatives weighted by ``exp(beta s)``.

    In :func:`debiased_nce` the sum over negatives becomes ``n sum w exp(s)`` with
    ``w = softmax(beta s)`` over the negatives; ``beta = 0`` is :func:`debiased_nce`.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M).
        temperature: positive.
        tau_plus: class prior, in [0, 1).
        beta: concentration on hard negatives, at least 0.
        floor: see :func:`debiased_nce`.
        detach_weights: True keeps the gradient out of the weights; the authors' program lets it
            through.

    Returns:
        (N,).

    Source: Robinson et al. 2021, Eq. 4, and their program (estimator "hard").
    """
    _check_temperature(temperature)
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus is a probability below 1; got {tau_plus}")
    if beta < 0:
        raise ValueError(f"beta is at least 0; got {beta}")
    if floor not in ("cosine", "minimum"):
        raise ValueError(f"floor is 'cosine' or 'minimum'; got {floor!r}")
    similarity = _lift(similarity)
    positives = pairs.positives()
    masks = (pairs.negative,)
    count = pairs.negative.sum(1)
    log_count = count.to(similarity.dtype).log()

    log_sum, score = _logsumexp_and_pick(
        similarity, (1 + beta) / temperature, masks, positives, pick_scale=1 / temperature
    )
    if beta > 0:
        log_weights, _ = _logsumexp_and_pick(similarity, beta / temperature, masks, positives)
        if detach_weights:
            log_sum, log_weights = scale_gradient(log_sum, 1 / (1 + beta)), log_weights.detach()
        log_sum = log_sum - log_weights + log_count

    if floor == "cosine":
        log_floor = log_count - 1 / temperature
    else:
        lowest = similarity.detach().masked_fill(~pairs.negative, math.inf).amin(1)
        log_floor = log_count + lowest / temperature
    log_negatives = log_sum
    if tau_plus > 0:
        present = positives >= 0
        log_positive = torch.logsumexp(score.masked_fill(~present, -math.inf), dim=1)
        log_positive = log_positive - present.sum(1).clamp(min=1).to(score.dtype).log()
        excess = log_positive + log_count + math.log(tau_plus) - log_sum
        # Where the correction takes everything the floor rules; the logarithm is kept away from it.
        room = (excess < 0) & (count > 0)
        excess = torch.where(room, excess, -1.0)
        corrected = log_sum + torch.log(-torch.expm1(excess)) - math.log1p(-tau_plus)
        log_negatives = torch.where(room, corrected, -math.inf)
    log_negatives = torch.where(log_negatives > log_floor, log_negatives, log_floor)
    # Without a negative the loss is 0 (log of 1), as in info_nce.
    log_negatives = torch.where(count > 0, log_negatives, -math.inf)
    return _mean_over_positives(_softplus(log_negatives[:, None] - score), positives)


def margin_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: float,
    angular: float = 0.0,
    subtractive: float = 0.0,
    emphasis: float = 1.0,
    curvature: float | None = None,
    curvature_form: Literal["equation_10", "algorithm_3"] = "equation_10",
    ratio: Literal["row", "positive"] | None = None,
    attenuation: float = 0.0,
    attenuation_scope: Literal["row", "positive"] = "row",
) -> Tensor:
    """InfoNCE with margins, or with one of the effects of margins on the gradient alone.

    ``angular`` and ``subtractive`` change the positive's logit to
    ``(cos(theta + angular) - subtractive) / temperature``. The others leave every value as it is
    and scale gradients: of the positive by ``emphasis`` and by the curvature weight, of the row or
    the positive by the ratio of denominators without and with the margins, and by the attenuation
    weight. All defaults together are :func:`info_nce`.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        temperature: positive.
        angular: m1, radians.
        subtractive: m2.
        emphasis: s, factor on the positive's gradient.
        curvature: exponent c of :func:`shared.margins.curvature_weight`; None: off.
        curvature_form: as printed in Eq. 10, or in Algorithm 3.
        ratio: the margins only set the ratio r_i, and the loss is without them; r_i multiplies
            the gradient of the anchor's whole row (text) or of its positive (Algorithm 4).
        attenuation: alpha of :func:`shared.margins.attenuation_weight`; 0: off.
        attenuation_scope: ``"row"`` is type I, ``"positive"`` type II.

    Returns:
        (N,).

    Source: Rho et al. 2023, Eqs. 4, 8-12, Section 5.4, Algorithms 2-6.
    """
    _check_temperature(temperature)
    if ratio not in (None, "row", "positive"):
        raise ValueError(f"ratio is 'row' or 'positive'; got {ratio!r}")
    if attenuation_scope not in ("row", "positive"):
        raise ValueError(f"attenuation_scope is 'row' or 'positive'; got {attenuation_scope!r}")
    similarity = _lift(similarity)
    margined = similarity
    if angular:
        margined = angular_margin(pairs, margined, margin=angular)
    if subtractive:
        margined = subtractive_margin(pairs, margined, margin=subtractive)

    positive_weight: Tensor | float = emphasis
    row_weight: Tensor | float = 1.0
    if curvature is not None:
        weight = curvature_weight(similarity, exponent=curvature, form=curvature_form)
        positive_weight = positive_weight * weight
    if ratio is not None:
        weight = margin_ratio(pairs, similarity, margined, temperature=temperature)
        weight = weight[:, None]
        margined = similarity
        if ratio == "row":
            row_weight = row_weight * weight
        else:
            positive_weight = positive_weight * weight
    if attenuation:
        weight = attenuation_weight(pairs, similarity, temperature=temperature, alpha=attenuation)
        weight = weight[:, None]
        if attenuation_scope == "row":
            row_weight = row_weight * weight
        else:
            positive_weight = positive_weight * weight

    if isinstance(positive_weight, Tensor) or positive_weight != 1:
        emphasised = scale_gradient(margined, positive_weight)
        margined = torch.where(pairs.positive, emphasised, margined)
    if isinstance(row_weight, Tensor):
        margined = scale_gradient(margined, row_weight)
    return info_nce(pairs, margined, temperature=temperature)


def alignment(
    pairs: Pairs,
    similarity: Tensor,
    *,
    curvature: float | None = None,
    curvature_form: Literal["equation_10", "algorithm_3"] = "equation_10",
) -> Tensor:
    """BYOL's loss, ``2 - 2 cos`` to the positive: no negative takes part.

    It is constant where all embeddings are equal; BYOL's predictor and moving teacher keep a
    network from going there.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        curvature: exponent c of :func:`shared.margins.curvature_weight`, which scales the gradient
            and leaves the value as it is; None: off.
        curvature_form: as printed in Eq. 10, or in Algorithm 3.

    Returns:
        (N,).

    Source: Grill et al. 2020, Eq. 2; Rho et al. 2023, Section 3 (beta = 0) and Eqs. 10-11.
    """
    similarity = _lift(similarity)
    if curvature is not None:
        weight = curvature_weight(similarity, exponent=curvature, form=curvature_form)
        similarity = scale_gradient(similarity, weight)
    positives = pairs.positives()
    return _mean_over_positives(2 - 2 * similarity.gather(1, positives.clamp(min=0)), positives)


def max_margin(
    pairs: Pairs,
    similarity: Tensor,
    *,
    gamma: float = 0.5,
    cost: float = 100.0,
    ridge: float = 0.1,
    kernel: svm.Kernel = "rbf",
    offset: float = 0.0,
    solver: svm.Solver = "closed_form",
    steps: int = 50,
    step_size: float | None = None,
    start: svm.Start = "closed_form",
    unit_diagonal: bool = False,
) -> Tensor:
    """Max-margin contrastive loss (MMCL): the negatives that support an SVM, by their dual weights.

    For each anchor an SVM separates its positive candidate c_p from its negative candidates c_j;
    the loss is its decision function at the anchor a, ``sum_j alpha_j K(c_j, a) - (sum_j alpha_j)
    K(c_p, a)``. No gradient flows through alpha. Which negatives take part is the builder's matter:
    ``two_views(first, second, anchors="second")`` is the paper's Algorithm 1 (2B - 2 negatives),
    ``query_key(second, first)`` the authors' program (the B - 1 others of the first view).

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        gamma: multiplier of the squared distance, ``exp(-gamma |x - y|^2)``: 1 / (2 sigma^2) in
            the paper's convention, 1 / sigma in the authors' program. For the tanh kernel the
            multiplier of the cosine; unused by the linear kernel.
        cost: C, upper limit of each dual variable; ``math.inf`` for none.
        ridge: beta, added to the diagonal of the dual's matrix; positive.
        kernel: ``"rbf"``, ``"linear"`` or ``"tanh"`` (``tanh(gamma cos + offset)``).
        offset: eta of the tanh kernel.
        solver: ``"closed_form"`` (INV), ``"projected_gradient"`` (PGD), or ``"exact"`` (the box
            QP to convergence, slow).
        steps: of the projected gradient.
        step_size: of the projected gradient; None takes 1 / lambda_max for each anchor with
            momentum, a number (the authors' 1e-3) plain steps of that size.
        start: of the projected gradient: ``"closed_form"``, or the authors' ``"random"``.
        unit_diagonal: keep 1 for K(c_p, c_p) in the dual where the kernel's diagonal is not 1
            (the authors' tanh kernel).

    Returns:
        (N,); the mean over anchors is the papers' loss.

    Raises:
        ValueError: unknown kernel, solver or start, or a number out of range.

    Source: Shah et al. 2022, Proposition 1 and Algorithm 1. One factorisation serves all anchors.
    """
    similarity = _lift(similarity)
    points = _lift(pairs.candidate.detach())
    among = similarity.detach() if pairs.anchor is pairs.candidate else cosine(points, points)
    weights = svm.dual_weights(
        pairs,
        among,
        gamma=gamma,
        cost=cost,
        ridge=ridge,
        kernel=kernel,
        offset=offset,
        solver=solver,
        steps=steps,
        step_size=step_size,
        start=start,
        unit_diagonal=unit_diagonal,
    )
    return (weights * svm.kernel_values(similarity, kernel, gamma, offset)).sum(1)


class _LogSumExpAndPick(torch.autograd.Function):
    """Masked log-sum-exp of every row and the scores at given columns, in one pass each way.

    Going through blocks of rows, it needs no temporary of the size of the matrix, and its gradient
    is written once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        scale: float,
        masks: tuple[Tensor, ...],
        index: Tensor,
        pick_scale: float,
    ) -> tuple[Tensor, Tensor]:
        total = similarity.new_empty(len(similarity))
        for rows in _blocks(similarity):
            block = similarity[rows] * scale
            block.masked_fill_(_excluded(masks, rows), -math.inf)
            total[rows] = torch.logsumexp(block, dim=1)
        picked = similarity.gather(1, index.clamp(min=0)) * pick_scale
        ctx.save_for_backward(similarity, total, index, *masks)
        ctx.scale, ctx.pick_scale = scale, pick_scale
        return total, picked

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, total_gradient: Tensor, picked_gradient: Tensor
    ) -> tuple[Tensor, None, None, None, None]:
        similarity, total, index, *masks = ctx.saved_tensors
        # A row without entries has total -inf; its exponentials must come out as 0, not nan.
        total = torch.where(total == -math.inf, math.inf, total)
        factor = (total_gradient * ctx.scale)[:, None]
        gradient = torch.empty_like(similarity)
        for rows in _blocks(similarity):
            block = torch.mul(similarity[rows], ctx.scale, out=gradient[rows])
            block.sub_(total[rows, None]).exp_().mul_(factor[rows])
            block.masked_fill_(_excluded(tuple(masks), rows), 0.0)
        picked = torch.where(index >= 0, picked_gradient * ctx.pick_scale, 0.0)
        gradient.scatter_add_(1, index.clamp(min=0), picked)
        return gradient, None, None, None, None


def _logsumexp_and_pick(
    similarity: Tensor,
    scale: float,
    masks: tuple[Tensor, ...],
    index: Tensor,
    pick_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of ``scale * similarity`` where any mask is True, (N,), and the scores picked.

    The picked scores are ``pick_scale * similarity`` at ``index``, (N, P).
    """
    pick_scale = scale if pick_scale is None else pick_scale
    result: tuple[Tensor, Tensor] = _LogSumExpAndPick.apply(
        similarity, scale, masks, index, pick_scale
    )
    return result


def _blocks(matrix: Tensor) -> list[slice]:
    # 16 MB of float32: larger blocks need more memory; smaller ones mean more operations, at the
    # end of each of which all threads wait for the last. An accelerator takes all rows at once.
    size = len(matrix)
    if matrix.device.type == "cpu":
        size = max(1, 2**22 // max(1, matrix.shape[1]))
    return [slice(start, start + size) for start in range(0, len(matrix), max(1, size))]


def _excluded(masks: tuple[Tensor, ...], rows: slice) -> Tensor:
    allowed = masks[0][rows]
    for mask in masks[1:]:
        allowed = allowed | mask[rows]
    return ~allowed


def _mean_over_positives(loss: Tensor, positives: Tensor) -> Tensor:
    """Mean of (N, P) over the real positives; 0 for an anchor that has none."""
    present = positives >= 0
    return torch.where(present, loss, 0.0).sum(1) / present.sum(1).clamp(min=1)


def _softplus(x: Tensor) -> Tensor:
    # torch's softplus turns linear above a threshold; this is exact everywhere.
    return torch.logaddexp(x, torch.zeros_like(x))


def _lift(similarity: Tensor) -> Tensor:
    half = similarity.dtype in (torch.float16, torch.bfloat16)
    return similarity.float() if half else similarity


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature is positive; got {temperature}")
