"""Losses with margins, and the effects of margins on logits and gradients, one by one.

Shapes: N anchors, M candidates; ``similarity`` is (N, M) and holds cosines, theta their angles. The
margins change the positive's value; the weights change gradients only, through
:func:`shared.losses.scale_gradient`, and carry no gradient themselves.

Source: Rho et al. 2023.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from shared.checks import TEMPERATURE, Temperature, checked
from shared.losses import info_nce, mean_over_positives, scale_gradient
from shared.pairs import Pairs
from shared.precision import without_negative
from shared.ranges import FINITE, NOT_NEGATIVE, POSITIVE, SHARE, one_of, optional, require

# sin(theta) is computed as sqrt(1 - cos^2 + SOFTENING): at cos = +-1 its slope is then 1 / 3e-4
# instead of infinite, and its value 3e-4 instead of 0.
SOFTENING = 1e-7
ATTENUATION_CAP = 100.0
RATIO_CAP = 1e6
CURVATURE_FORM = one_of("equation_10", "algorithm_3")


@checked(
    negatives=True,
    temperature=TEMPERATURE,
    angular=FINITE,
    subtractive=FINITE,
    emphasis=NOT_NEGATIVE,
    curvature=optional(POSITIVE),
    curvature_form=CURVATURE_FORM,
    ratio=optional(one_of("row", "positive")),
    attenuation=SHARE,
    attenuation_scope=one_of("row", "positive"),
    cosines=True,
)
def margin_nce(
    pairs: Pairs,
    similarity: Tensor,
    *,
    temperature: Temperature,
    angular: float = 0.0,
    subtractive: float = 0.0,
    emphasis: float = 1.0,
    curvature: float | None = None,
    curvature_form: Literal["equation_10", "algorithm_3"] = "equation_10",
    ratio: Literal["row", "positive"] | None = None,
    attenuation: float = 0.0,
    attenuation_scope: Literal["row", "positive"] = "row",
) -> Tensor:
    """InfoNCE with margins, or with single effects of margins on the gradient.

    ``angular`` and ``subtractive`` change the positive's logit to
    ``(cos(theta + angular) - subtractive) / temperature``. The others change no value and scale
    gradients: the positive's by ``emphasis`` and by the curvature weight, and the row's or the
    positive's by the ratio of the denominators without and with margins and by the attenuation
    weight. With all defaults it is :func:`info_nce`. Only gradients of similarities are scaled (for
    second derivatives, see :func:`shared.losses.scale_gradient`); a learned temperature gets the
    unscaled derivative.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        temperature: positive.
        angular: m1, radians.
        subtractive: m2, in units of the cosine.
        emphasis: s, factor on the positive's gradient, at least 0.
        curvature: exponent c of :func:`curvature_weight`; None: off.
        curvature_form: as printed in Eq. 10, or in Algorithm 3.
        ratio: the margins only determine the ratio r_i and are not part of the loss; r_i
            multiplies the gradient of the anchor's whole row (as the paper's text has it) or of
            its positive (Algorithm 4); None: off.
        attenuation: alpha of :func:`attenuation_weight`, in [0, 1]; 0: off.
        attenuation_scope: ``"row"`` is type I, ``"positive"`` type II.

    Returns:
        (N,).

    Source: Rho et al. 2023, Eqs. 4, 8-12, Section 5.4, Algorithms 2-6.
    """
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


@checked(curvature=optional(POSITIVE), curvature_form=CURVATURE_FORM, cosines=True)
def alignment(
    pairs: Pairs,
    similarity: Tensor,
    *,
    curvature: float | None = None,
    curvature_form: Literal["equation_10", "algorithm_3"] = "equation_10",
) -> Tensor:
    """BYOL's loss, ``2 - 2 cos`` to the positive, without negatives.

    Collapsed embeddings minimise it; BYOL's predictor and momentum teacher prevent the collapse.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        curvature: exponent c of :func:`curvature_weight`, which scales the gradient
            and leaves the value unchanged; None: off.
        curvature_form: as printed in Eq. 10, or in Algorithm 3.

    Returns:
        (N,).

    Source: Grill et al. 2020, Eq. 2; Rho et al. 2023, Section 3 (beta = 0) and Eqs. 10-11.
    """
    if curvature is not None:
        weight = curvature_weight(similarity, exponent=curvature, form=curvature_form)
        similarity = scale_gradient(similarity, weight)
    positives = pairs.positives()
    return mean_over_positives(2 - 2 * similarity.gather(1, positives.clamp(min=0)), positives)


def angular_margin(pairs: Pairs, similarity: Tensor, *, margin: float) -> Tensor:
    """``cos(theta + margin)`` in place of the positive's ``cos(theta)`` (Eq. 4, m1).

    There is no clamp where ``theta + margin`` exceeds pi: a larger angle then lowers the loss, and
    two encoders without shared weights can collapse to two opposite points. The sine of theta is
    the root of 1 - cos^2 + 1e-7, whose slope stays finite at cos = +-1.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        margin: m1, radians.

    Returns:
        (N, M).

    Raises:
        ValueError: a margin that is not finite.
    """
    require("margin", margin, FINITE)
    sine = (without_negative(1 - similarity.square()) + SOFTENING).sqrt()
    moved = similarity * math.cos(margin) - sine * math.sin(margin)
    return torch.where(pairs.positive, moved, similarity)


def subtractive_margin(pairs: Pairs, similarity: Tensor, *, margin: float) -> Tensor:
    """``cos(theta) - margin`` in place of the positive's ``cos(theta)`` (Eq. 4, m2), (N, M).

    Raises:
        ValueError: a margin that is not finite.
    """
    require("margin", margin, FINITE)
    return torch.where(pairs.positive, similarity - margin, similarity)


def curvature_weight(
    similarity: Tensor,
    *,
    exponent: float,
    form: Literal["equation_10", "algorithm_3"] = "equation_10",
) -> Tensor:
    """The weight of a pair by its angle, which decreases from 1 at theta = 0 to 0 at theta = pi.

    Args:
        similarity: (N, M), cosines.
        exponent: c, positive.
        form: ``"equation_10"``: ``(1 - (theta / pi)^c)^(1 / c)``; ``"algorithm_3"``: as printed in
            that listing, ``(1 - theta / pi)^(1 / c)``. They agree at c = 1 only; the limits stated
            in the text are those of the equation.

    Returns:
        (N, M), without gradient.
    """
    require("exponent", exponent, POSITIVE)
    require("form", form, CURVATURE_FORM)
    angle = similarity.detach().clamp(-1, 1).arccos() / math.pi
    if form == "equation_10":
        return (1 - angle**exponent).clamp(min=0) ** (1 / exponent)
    return (1 - angle) ** (1 / exponent)


def margin_ratio(
    pairs: Pairs, similarity: Tensor, margined: Tensor, *, temperature: Temperature
) -> Tensor:
    """Ratio of the denominators without and with margins (Section 5.4), one per anchor.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        margined: (N, M), the same after :func:`angular_margin` and :func:`subtractive_margin`.
        temperature: positive.

    Returns:
        r_i, (N,), without gradient; at most 1e6, and 1 for an anchor without candidates.
    """
    require("temperature", temperature, TEMPERATURE)
    mask = pairs.positive | pairs.negative
    plain = _log_denominator(similarity, mask, temperature)
    ratio = (plain - _log_denominator(margined, mask, temperature)).exp()
    return torch.where(mask.any(1), ratio, 1.0).clamp(max=RATIO_CAP)


def attenuation_weight(
    pairs: Pairs, similarity: Tensor, *, temperature: Temperature, alpha: float
) -> Tensor:
    """``1 / (1 - alpha q)`` with q the softmax probability of all the anchor's positives (Eq. 12).

    Algorithms 5 and 6 print ``p / (p - alpha q)``, which is 0 / 0 at alpha = 0; here the weight is
    computed directly, and capped at 100, since for alpha = 1 it is unbounded as q goes to 1.

    Args:
        pairs: N anchors, M candidates.
        similarity: (N, M), cosines.
        temperature: positive.
        alpha: strength in [0, 1]; 0 gives 1 everywhere.

    Returns:
        (N,), without gradient.
    """
    require("alpha", alpha, SHARE)
    require("temperature", temperature, TEMPERATURE)
    total = _log_denominator(similarity, pairs.positive | pairs.negative, temperature)
    positive = _log_denominator(similarity, pairs.positive, temperature)
    probability = torch.where(pairs.positive.any(1), (positive - total).exp(), 0.0)
    return (1 / (1 - alpha * probability)).clamp(max=ATTENUATION_CAP)


def _log_denominator(similarity: Tensor, mask: Tensor, temperature: Temperature) -> Tensor:
    scores = (similarity / temperature).detach()
    return torch.logsumexp(scores.masked_fill(~mask, -math.inf), dim=1)
