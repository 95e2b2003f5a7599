"""The effects of margins on logits and gradients, one by one (Rho et al. 2023).

Shapes: N anchors, M candidates; ``similarity`` is (N, M) and holds cosines, theta their angles. The
margins change the positive's value; the weights change gradients only, through
:func:`scale_gradient`, and carry no gradient themselves.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from shared.checks import TEMPERATURE, Temperature
from shared.pairs import Pairs
from shared.precision import without_negative
from shared.ranges import FINITE, POSITIVE, SHARE, one_of, require

# sin(theta) is computed as sqrt(1 - cos^2 + SOFTENING): at cos = +-1 its slope is then 1 / 3e-4
# instead of infinite, and its value 3e-4 instead of 0.
SOFTENING = 1e-7
ATTENUATION_CAP = 100.0
RATIO_CAP = 1e6
CURVATURE_FORM = one_of("equation_10", "algorithm_3")


def scale_gradient(value: Tensor, factor: Tensor | float) -> Tensor:
    """``value``, bit for bit, with its gradient multiplied by ``factor``.

    It is the line through ``value`` with slope ``factor``, both constant. A loss L applied to it
    therefore has the second derivative ``factor L'' factor``, that of a loss whose input moves
    ``factor`` times as far, and not ``factor L''``, the derivative of the scaled gradient. The
    factor is a constant in derivatives of all orders.
    """
    constant = value.detach()
    return constant + factor * (value - constant)


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
    """``1 / (1 - alpha q)`` with q the softmax probability of the anchor's positives (Eq. 12).

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
