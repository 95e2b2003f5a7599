"""One pure function per loss: ``(pairs, similarity, *, numbers) -> (N,)``, unreduced.

Shapes: N anchors, M candidates. ``similarity`` is the (N, M) matrix of the pairs' similarities
(cosines unless a function says otherwise); entries outside both masks have no effect, but are
similarities, too, and not NaN. Half precision is promoted to float32, autocast has no effect, and
exponentials are computed in log space. An anchor without a positive has loss 0. A temperature may
be a learned scalar tensor. Invalid numbers or similarities raise a ``ValueError``
(:func:`shared.checks.checked`). Derivatives of any order are correct, also under ``torch.func``.

Notation in the formulas: s = similarity / temperature, p a positive, n the number of negatives.
With several positives an anchor's loss is the mean over them.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from shared import svm
from shared.checks import TEMPERATURE, Temperature, checked
from shared.pairs import Pairs, blocks_of_rows, cosine, fill
from shared.precision import upcast
from shared.ranges import (
    COUNT,
    FINITE,
    FLAG,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_OR_INFINITE,
    PROBABILITY,
    one_of,
    optional,
)

Floor = Literal["cosine", "minimum"]

FLOOR = one_of("cosine", "minimum")


@checked(negatives=True, temperature=TEMPERATURE, positive_in_denominator=FLAG)
def info_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: Temperature,
    positive_in_denominator: bool = True,
) -> Tensor:
    """InfoNCE / NT-Xent: ``-s_p + log sum_j exp(s_j)``.

    The sum runs over negatives and all positives (SimCLR, CPC; quick-thoughts, SupCon's L_out), or
    over negatives alone (GraphCL's ``loss_cal``; the value may then be negative).

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M).
        temperature: positive.
        positive_in_denominator: False is GraphCL's form.

    Returns:
        (N,).

    Source: Chen et al. 2020 (SimCLR), Eq. 1; You et al. 2020 (GraphCL), Eq. 3 and its program.
    """
    scores, divisor = _divided(similarity, temperature)
    positives = pairs.positives()
    excluded = pairs.excluded(positives=not positive_in_denominator)
    total, score = _logsumexp_and_pick(scores, 1 / divisor, positives, excluded)
    # In GraphCL's form as well, an anchor without negatives has loss 0, by convention.
    loss = torch.where(total[:, None] == -math.inf, 0.0, total[:, None] - score)
    return mean_over_positives(loss, positives)


@checked(
    negatives=True,
    temperature=TEMPERATURE,
    tau_plus=PROBABILITY,
    floor=FLOOR,
    cosines=lambda numbers: numbers["floor"] == "cosine",
)
def debiased_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: Temperature,
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
    return _hard_nce(
        pairs, similarity, temperature, tau_plus, beta=0.0, floor=floor, detach_weights=False
    )


@checked(
    negatives=True,
    temperature=TEMPERATURE,
    tau_plus=PROBABILITY,
    beta=NOT_NEGATIVE,
    floor=FLOOR,
    detach_weights=FLAG,
    cosines=lambda numbers: numbers["floor"] == "cosine",
)
def hard_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: Temperature,
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
        detach_weights: True keeps the gradient out of the weights, at every order; the authors'
            program lets it through.

    Returns:
        (N,).

    Source: Robinson et al. 2021, Eq. 4, and their program (estimator "hard").
    """
    return _hard_nce(pairs, similarity, temperature, tau_plus, beta, floor, detach_weights)


def _hard_nce(
    pairs: Pairs,
    similarity: Tensor,
    temperature: Temperature,
    tau_plus: float,
    beta: float,
    floor: Floor,
    detach_weights: bool,
) -> Tensor:
    scores, divisor = _divided(similarity, temperature)
    positives = pairs.positives()
    excluded = pairs.excluded(positives=True)
    count = pairs.negative.sum(1)
    log_count = count.to(scores.dtype).log()

    # With constant weights, the exponent (1 + beta) s has the derivative of s alone.
    sloped = scale_gradient(scores, 1 / (1 + beta)) if detach_weights else scores
    log_sum, score = _logsumexp_and_pick(
        sloped, (1 + beta) / divisor, positives, excluded, pick_scale=1 / divisor
    )
    unknown = log_sum.isnan()
    if beta > 0:
        log_weights, plain_score = _logsumexp_and_pick(
            scores, beta / divisor, positives, excluded, pick_scale=1 / divisor
        )
        if detach_weights:
            log_weights, score = log_weights.detach(), plain_score
        log_sum = log_sum - log_weights + log_count

    if floor == "cosine":
        log_floor = log_count - 1 / temperature
    else:
        lowest = similarity.detach().masked_fill(~pairs.negative, math.inf).amin(1)
        # Without negatives it would be infinite, and the temperature's gradient NaN.
        log_floor = log_count + torch.where(count > 0, lowest, 0.0) / temperature
    # No comparison with NaN holds, so that it would end as the floor and look like a loss.
    log_floor = log_floor.masked_fill(unknown, math.nan)
    log_negatives = log_sum
    if tau_plus > 0:
        excess = _log_mean_exp(score, positives) + log_count + math.log(tau_plus) - log_sum
        # Where the correction leaves nothing, the floor applies; the logarithm must not see it.
        room = (excess < 0) & (count > 0)
        excess = torch.where(room, excess, -1.0)
        corrected = log_sum + torch.log(-torch.expm1(excess)) - math.log1p(-tau_plus)
        log_negatives = torch.where(room, corrected, -math.inf)
    # Without negatives both are -inf, or the first is NaN, and the loss is 0 (log of 1).
    log_negatives = torch.where(log_negatives > log_floor, log_negatives, log_floor)
    return mean_over_positives(_softplus(log_negatives[:, None] - score), positives)


@checked(
    negatives=True,
    gamma=POSITIVE,
    cost=POSITIVE_OR_INFINITE,
    ridge=POSITIVE,
    kernel=one_of("rbf", "linear", "tanh"),
    offset=FINITE,
    solver=one_of("closed_form", "projected_gradient", "exact"),
    steps=COUNT,
    step_size=optional(POSITIVE),
    momentum=one_of("restarted", "nesterov", "none"),
    stop=NOT_NEGATIVE,
    start=one_of("closed_form", "random"),
    precision=one_of("double", "single"),
    unit_diagonal=FLAG,
    cosines=True,
)
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
    momentum: svm.Momentum = "restarted",
    stop: float = 0.0,
    start: svm.Start = "closed_form",
    precision: svm.Precision = "double",
    unit_diagonal: bool = False,
) -> Tensor:
    """Max-margin contrastive loss (MMCL): negatives weighted by the dual variables of an SVM.

    For each anchor an SVM separates its positive candidate c_p from its negative candidates c_j;
    the loss is its decision function at the anchor a, ``sum_j alpha_j K(c_j, a) - (sum_j alpha_j)
    K(c_p, a)``. No gradient flows through alpha. The builder of the pairs determines the negatives:
    ``two_views(first, second, anchors="second")`` is the paper's Algorithm 1 (2B - 2 negatives),
    ``query_key(second, first)`` the authors' program (the B - 1 others of the first view).

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        gamma: multiplier of the squared distance, ``exp(-gamma |x - y|^2)``: 1 / (2 sigma^2) in
            the paper's convention, 1 / sigma in the authors' program. For the tanh kernel the
            multiplier of the cosine; unused by the linear kernel.
        cost: C, upper limit of each dual variable; ``math.inf`` for none.
        ridge: beta, added to the diagonal of the dual's matrix; positive. A ridge lost in the
            rounding of a singular kernel matrix (below about 1e-4 in single precision) is an error.
        kernel: ``"rbf"``, ``"linear"`` or ``"tanh"`` (``tanh(gamma cos + offset)``).
        offset: eta of the tanh kernel.
        solver: ``"closed_form"`` (INV), ``"projected_gradient"`` (PGD), or ``"exact"`` (the box
            QP to convergence, slow). The next six are the projected gradient's; the authors'
            program has 1000, 1e-3, ``"nesterov"``, 0.01, ``"random"`` and ``"single"``.
        steps: the most of them.
        step_size: None: 1 / lambda_max for each anchor.
        momentum: ``"restarted"`` where it points uphill; ``"nesterov"``, from a random first number
            on; or ``"none"``.
        stop: once the relative change in a step, averaged over all anchors and dual variables, is
            below it; 0: never.
        start: ``"closed_form"``, or ``"random"``: normal numbers, cut off at 0 and the cost.
        precision: of the steps.
        unit_diagonal: use 1 for K(c_p, c_p) in the dual although the kernel's diagonal is not 1
            (as the authors' program does for the tanh kernel).

    Returns:
        (N,); the mean over anchors is the loss of the authors' program, the sum that of the paper.

    Raises:
        ValueError: as every loss; see :func:`shared.checks.checked`.
        ArithmeticError: if ``"exact"`` does not converge.

    Source: Shah et al. 2022, Proposition 1 and Algorithm 1. One factorisation serves all anchors.
    """
    points = upcast(pairs.candidate.detach())
    among = similarity.detach() if pairs.anchor is pairs.candidate else cosine(points, points)
    dual = svm.Dual(
        gamma=gamma,
        cost=cost,
        ridge=ridge,
        kernel=kernel,
        offset=offset,
        solver=solver,
        steps=steps,
        step_size=step_size,
        momentum=momentum,
        stop=stop,
        start=start,
        precision=precision,
        unit_diagonal=unit_diagonal,
    )
    weights = svm.dual_weights(pairs, among, dual)
    return (weights * svm.kernel_values(similarity, kernel, gamma, offset)).sum(1)


class _LogSumExpAndPick(torch.autograd.Function):
    """Masked log-sum-exp of every row and the scores at given columns, in one pass each way.

    The third output, the softmax of every row, is what the derivatives are computed from. Since it
    is an output, it has a derivative itself, and derivatives of any order are correct. Rows are
    processed in blocks that fit into the processor's cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        scale: float,
        pick_scale: float,
        index: Tensor,
        excluded: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        total, softmax = _softmax(similarity, scale, excluded)
        ctx.scale, ctx.pick_scale = scale, pick_scale
        ctx.save_for_backward(softmax, index)
        ctx.set_materialize_grads(False)
        return total.squeeze(1), _picked(similarity, index, pick_scale), softmax

    @staticmethod
    def backward(
        ctx: Any, by_total: Tensor | None, by_picked: Tensor | None, by_softmax: Tensor | None
    ) -> tuple[Tensor, None, None, None, None]:
        softmax, index = ctx.saved_tensors
        if by_total is None:
            by_total = softmax.new_zeros(len(softmax))
        gradient = softmax * (by_total * ctx.scale)[:, None]
        if by_softmax is not None:
            by_score = softmax * by_softmax
            gradient = gradient + ctx.scale * (by_score - softmax * by_score.sum(1, keepdim=True))
        if by_picked is not None:
            picked = torch.where(index >= 0, by_picked * ctx.pick_scale, 0.0)
            # In place unless it is differentiated again: a copy would take the memory of a matrix.
            add = gradient.scatter_add if torch.is_grad_enabled() else gradient.scatter_add_
            gradient = add(1, index.clamp(min=0), picked)
        return gradient, None, None, None, None


def _softmax(similarity: Tensor, scale: float, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp (N, 1) and softmax of the rows of ``scale * similarity``, by blocks of rows."""
    softmax = torch.empty_like(similarity, memory_format=torch.contiguous_format)
    total = similarity.new_full((len(similarity), 1), -math.inf)
    blocks = blocks_of_rows(similarity)
    room = torch.empty_like(softmax[blocks[0]]) if blocks else softmax
    finite = torch.finfo(softmax.dtype)
    for rows in blocks:
        block = softmax[rows]
        torch.mul(similarity[rows], scale, out=block)
        fill(block, excluded[rows], -math.inf)
        # Clamping avoids differences of infinities, which are NaN: a row without entries has the
        # largest entry -inf and the total -inf, and its exponentials become 0.
        largest = block.amax(1, keepdim=True).clamp_(finite.min, finite.max)
        shifted = torch.sub(block, largest, out=room[: len(block)])
        total[rows] = shifted.exp_().sum(1, keepdim=True).log_().add_(largest)
        block.sub_(total[rows].clamp(min=finite.min)).exp_()
    return total, softmax


def _logsumexp_and_pick(
    similarity: Tensor,
    scale: float,
    index: Tensor,
    excluded: Tensor,
    pick_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of ``scale * similarity`` without the excluded entries, (N,), and picked scores.

    The picked scores are ``pick_scale * similarity`` at ``index``, (N, P).
    """
    pick_scale = scale if pick_scale is None else pick_scale
    if torch._C._are_functorch_transforms_active():
        # Nested transforms differentiate torch's own operations only.
        scores = fill(similarity * scale, excluded, -math.inf)
        return torch.logsumexp(scores, dim=1), _picked(similarity, index, pick_scale)
    total, picked, _ = _LogSumExpAndPick.apply(similarity, scale, pick_scale, index, excluded)
    return total, picked


def _picked(similarity: Tensor, index: Tensor, scale: float) -> Tensor:
    return similarity.gather(1, index.clamp(min=0)) * scale


def scale_gradient(value: Tensor, factor: Tensor | float) -> Tensor:
    """``value``, bit for bit, with its gradient multiplied by ``factor``, which broadcasts.

    It is the line through ``value`` with slope ``factor``, both constant. A loss L applied to it
    therefore has the second derivative ``factor L'' factor``, that of a loss whose input moves
    ``factor`` times as far, and not ``factor L''``, the derivative of the scaled gradient. The
    factor is a constant in derivatives of all orders.
    """
    constant = value.detach()
    return constant + factor * (value - constant)


def _divided(similarity: Tensor, temperature: Temperature) -> tuple[Tensor, float]:
    """Similarities, and the number that they still have to be divided by.

    Division by a learned temperature happens here, so that it gets its gradient.
    """
    if isinstance(temperature, Tensor):
        return similarity / temperature, 1.0
    return similarity, temperature


def _log_mean_exp(score: Tensor, positives: Tensor) -> Tensor:
    """Logarithm of the mean of exp of (N, P) over the actual positives; 0 where there is none."""
    present = positives >= 0
    known = score.masked_fill(~present, -math.inf)
    # The second derivative of a log-sum-exp over nothing is NaN.
    known = known.masked_fill(~present.any(1, keepdim=True), 0.0)
    count = present.sum(1).clamp(min=1)
    return torch.logsumexp(known, dim=1) - count.to(score.dtype).log()


def mean_over_positives(loss: Tensor, positives: Tensor) -> Tensor:
    """Mean of (N, P) over the actual positives; 0 for an anchor that has none."""
    present = positives >= 0
    loss = torch.where(present, loss, 0.0)
    return loss[:, 0] if loss.shape[1] == 1 else loss.sum(1) / present.sum(1).clamp(min=1)


def _softplus(x: Tensor) -> Tensor:
    # torch's softplus becomes linear above a threshold; this is exact everywhere. Where exp(-x)
    # would overflow in the second derivative, softplus(x) equals exp(x) to the last digit.
    small = x < math.log(torch.finfo(x.dtype).tiny)
    rest = torch.where(small, 0.0, x)
    tail = torch.where(small, x, -math.inf).exp()
    return torch.where(small, tail, torch.logaddexp(rest, torch.zeros_like(rest)))
