"""What the site says of every loss, penalty and projection: equation, picture, certificates.

The pictures are computed from the functions themselves: an anchor at angle 0 of the unit circle,
its positive and six negatives at fixed angles, and one of them moving; drawn is the derivative of
the loss by the cosine of the moving one.
"""

import functools
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.losses import alignment, debiased_nce, hard_nce, info_nce, margin_nce, max_margin
from shared.objective import Objective
from shared.pairs import Pairs, cosine
from shared.penalties import consistency, distance_polarization
from shared.projection import LowRankProjection
from shared.report import drawings

ROOT = Path(__file__).parents[2]
POSITIVE = 0.6  # cosine of the positive where a negative moves
NEGATIVES = (-0.9, -0.5, -0.2, 0.0, 0.3, 0.5)
PLACES = 81  # of a curve
_NCE = "tests/test_losses.py::test_nce_losses_equal_their_loops"
# By name of a loss, penalty or projection its slow twin in tests/reference.py, and the test that
# holds the two together; a test sees to it that they are there.
TWINS = {
    **dict.fromkeys(("info_nce", "debiased_nce", "hard_nce", "margin_nce"), _NCE),
    "alignment": "tests/test_losses.py::test_alignment_equals_its_loops_in_value_and_gradient",
    "max_margin": "tests/test_svm.py::test_closed_form_loss_and_gradient_equal_the_loops",
    "distance_polarization": "tests/test_penalties.py::test_value_and_gradient_equal_the_loops",
    "consistency": "tests/test_penalties.py::test_consistency_equals_the_loops",
    "LowRankProjection": "tests/test_projection.py::test_the_papers_form_equals_its_loops",
}
# By the name of a parity case the function that it is a case of, where the two differ.
CASES = {"graphcl_nce": "info_nce", "supcon": "info_nce", "moco": "info_nce", "co2": "consistency"}
PARITY = "tests/test_parity.py::test_value_and_gradients_are_those_of_the_authors_program"


@dataclass(frozen=True)
class Portrait:
    """What is particular of a loss.

    Args:
        function: the loss, penalty or projection.
        equations: in LaTeX, as far as mathtext goes.
        symbols: what the letters are.
        variants: by name in the picture the numbers that the function is called with.
        moving: what moves in the picture: ``"negative"``, ``"positive"`` or ``"scale"`` of L.
    """

    function: Callable[..., Any]
    equations: tuple[str, ...]
    symbols: str
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    moving: str = "negative"

    @property
    def name(self) -> str:
        """Of the function."""
        return self.function.__name__


_PAIRS = (
    "s is the similarity of an anchor and a candidate, tau the temperature, P the positives of the "
    "anchor i, N its n negatives"
)
_DEBIASED = (
    r"\ell_{ip} = -\log\frac{e^{s_{ip}/\tau}}{e^{s_{ip}/\tau} + G_i},\quad "
    r"\ell_i = \frac{1}{|P_i|}\sum_{p \in P_i} \ell_{ip}"
)
PORTRAITS = (
    Portrait(
        info_nce,
        (
            r"\ell_i = \frac{1}{|P_i|}\sum_{p \in P_i} \left(-\frac{s_{ip}}{\tau} + "
            r"\log \sum_{j} e^{s_{ij}/\tau}\right)",
        ),
        f"{_PAIRS}; j goes over positives and negatives.",
        {f"temperature {t}": {"temperature": t} for t in (0.1, 0.2, 0.5)},
    ),
    Portrait(
        debiased_nce,
        (
            _DEBIASED,
            r"G_i = \max\left(\frac{\sum_{j \in N_i} e^{s_{ij}/\tau} - \tau^+ n\, "
            r"\frac{1}{|P_i|}\sum_{p \in P_i} e^{s_{ip}/\tau}}{1 - \tau^+},\; n\, e^{-1/\tau}"
            r"\right)",
        ),
        f"{_PAIRS}, tau+ the class prior.",
        {f"tau_plus {t}": {"temperature": 0.5, "tau_plus": t} for t in (0.0, 0.1, 0.2)},
    ),
    Portrait(
        hard_nce,
        (
            _DEBIASED,
            r"G_i = \max\left(\frac{n \sum_{j \in N_i} w_{ij}\, e^{s_{ij}/\tau} - \tau^+ n\, "
            r"\frac{1}{|P_i|}\sum_{p \in P_i} e^{s_{ip}/\tau}}{1 - \tau^+},\; n\, e^{-1/\tau}"
            r"\right)",
            r"w_{ij} = \frac{e^{\beta s_{ij}/\tau}}{\sum_{k \in N_i} e^{\beta s_{ik}/\tau}}",
        ),
        f"{_PAIRS}, tau+ the class prior, beta the concentration on hard negatives.",
        {
            f"beta {b}": {"temperature": 0.5, "tau_plus": 0.1, "beta": b}
            for b in (0.0, 0.5, 1.0, 2.0)
        },
    ),
    Portrait(
        margin_nce,
        (
            r"\ell_i = -\frac{z_{ip}}{\tau} + \log\left(e^{z_{ip}/\tau} + "
            r"\sum_{j \in N_i} e^{s_{ij}/\tau}\right)",
            r"z_{ip} = \cos(\theta_{ip} + m_1) - m_2",
            r"r_c(\theta) = \left(1 - (\theta/\pi)^c\right)^{1/c}",
        ),
        "s is the cosine, theta its angle, tau the temperature, m1 the angular and m2 the "
        "subtractive margin; r weights the positive's gradient where a curvature c is set.",
        {
            "no margin": {"temperature": 0.25},
            "angular 0.4": {"temperature": 0.25, "angular": 0.4},
            "subtractive 0.4": {"temperature": 0.25, "subtractive": 0.4},
            "curvature 0.5": {"temperature": 0.25, "curvature": 0.5},
        },
        "positive",
    ),
    Portrait(
        max_margin,
        (
            r"\ell_i = \sum_{j \in N_i} \alpha_{ij} K(c_j, a_i) - "
            r"\left(\sum_{j \in N_i} \alpha_{ij}\right) K(c_p, a_i)",
            r"\alpha_i = \mathrm{clip}_{[0, C]}\left(2\, (\Delta_i + \beta I)^{-1} 1\right)",
            r"\Delta_{jk} = K(c_j, c_k) - K(c_j, c_p) - K(c_p, c_k) + K(c_p, c_p),\quad "
            r"K(x, y) = e^{-\gamma |x - y|^2}",
        ),
        "a is the anchor, c the candidates with the positive p, alpha the dual variables of its "
        "SVM (no gradient goes through them), C their bound, beta the ridge.",
        {f"gamma {g}": {"gamma": g, "cost": 1.0, "ridge": 0.1} for g in (0.5, 1.0, 4.0)},
    ),
    Portrait(
        alignment,
        (r"\ell_i = 2 - 2 \cos\theta_{ip}",),
        "theta is the angle of the anchor i and its positive p.",
        {"as it is": {}, "curvature 0.5": {"curvature": 0.5}, "curvature 2": {"curvature": 2.0}},
        "positive",
    ),
    Portrait(
        distance_polarization,
        (
            r"\ell_i = \sum_{j \in N_i} \left|\min\left((D_{ij} - \delta^+)(D_{ij} - \delta^-),"
            r"\, 0\right)\right|",
            r"D_{ij} = (1 - \cos\theta_{ij}) / 2",
        ),
        "theta is the angle of the anchor i and the candidate j, delta+ (lower) and delta- (upper) "
        "the ends of the band.",
        {"band 0.1 to 0.5": {}, "band 0.2 to 0.4": {"lower": 0.2, "upper": 0.4}},
    ),
    Portrait(
        consistency,
        (
            r"\ell_i = \frac{1}{2} \sum_{j \in N_i} (p_{ij} - q_{ij}) \log\frac{p_{ij}}{q_{ij}}",
            r"p_{ij} = \frac{e^{s_{ij}/\tau}}{\sum_{k \in N_i} e^{s_{ik}/\tau}},\quad "
            r"q_{ij} = \frac{e^{s_{pj}/\tau}}{\sum_{k \in N_i} e^{s_{pk}/\tau}}",
        ),
        f"{_PAIRS}, of which p is one.",
        {f"temperature {t}": {"temperature": t} for t in (0.05, 0.2, 0.5)},
    ),
    Portrait(
        LowRankProjection,
        (
            r"\frac{1}{B}\sum_{i=1}^{B} |L^T L f_i - f_i|^2 + \alpha\, \|L\|",
            r"\|L\|_{2,1} = \sum_k |L_{\cdot k}|,\quad \|L\|_* = \sum_k \sigma_k(L)",
        ),
        "f are the B features of a batch, L the trained projection with columns k and singular "
        "values sigma, alpha the weight of its norm.",
        {f"alpha {a}": {"alpha": a} for a in (0.0, 0.05, 0.1)},
        "scale",
    ),
)


def told(portrait: Portrait) -> list[str]:
    """What the docstring says up to its arguments, and its source."""
    blocks = (inspect.getdoc(portrait.function) or "").split("\n\n")
    end = next((i for i, block in enumerate(blocks) if block.startswith("Args:")), len(blocks))
    kept = [block for i, block in enumerate(blocks) if i < end or block.startswith("Source:")]
    return [" ".join(block.split()) for block in kept]


@functools.cache
def slopes(name: str) -> dict[str, tuple[list[float], list[float]]]:
    """By variant of a loss where it was asked, and its derivative there.

    Raises:
        KeyError: no such loss.
    """
    portrait = {each.name: each for each in PORTRAITS}[name]
    if portrait.moving == "scale":
        return {key: _over_scales(numbers) for key, numbers in portrait.variants.items()}
    return {
        key: _over_cosines(portrait.function, portrait.moving, numbers)
        for key, numbers in portrait.variants.items()
    }


def picture(portrait: Portrait) -> str:
    """The derivative of a loss as SVG."""
    if portrait.moving == "scale":
        across, what = "c, for L = c times the identity", "the penalty by the scale c of L"
    else:
        across = f"cosine of the anchor and the moving {portrait.moving}"
        what = f"the loss by the cosine of a {portrait.moving}"
    return drawings.curves(
        slopes(portrait.name),
        across,
        "derivative",
        f"The derivative of {what}, for {', '.join(portrait.variants)}.",
        (0.0, 0.8) if portrait.function is distance_polarization else None,
    )


def caption(portrait: Portrait) -> str:
    """What the picture is of, and how to read it."""
    if portrait.moving == "scale":
        return (
            "The derivative of the penalty by c, where L is c times the identity, for features of "
            "length 1 in 8 dimensions and the l2,1 norm: where it is above 0, descent shrinks L."
        )
    others = f"the positive at {POSITIVE}, " if portrait.moving == "negative" else ""
    pushes = "pushed away" if portrait.moving == "negative" else "pulled closer the stronger"
    sign = "above 0, it is" if portrait.moving == "negative" else "below 0, it is"
    extra = ""
    if portrait.function is distance_polarization:
        extra = " Shaded: the band from 0.1 to 0.5 in distance; below its middle pairs are pulled."
    return (
        f"The derivative of the loss by the cosine of one {portrait.moving}, as it moves; {others}"
        f"the other negatives at {', '.join(map(str, NEGATIVES))}. Where it is {sign} {pushes}"
        f"{'' if portrait.moving == 'negative' else ' the lower the curve'}.{extra}"
    )


def certificates(portrait: Portrait) -> list[str]:
    """What holds the function to its equation, and to other programs, the authors' first."""
    lines = [f"Held to slow loops written from the equation by {TWINS[portrait.name]}"]
    found = _parity().get(portrait.name, Counter())
    if not found:
        return [*lines, "No other program gives outputs to hold it against."]
    sources = ", ".join(f"{source} ({count})" for source, count in found.items())
    return [
        *lines,
        f"Held to {sum(found.values())} outputs of other programs, values to 1e-12 and gradients "
        f"to 1e-10, by {PARITY}: {sources}",
    ]


def names_in(objective: Any) -> set[str]:
    """The losses, penalties and projection that an objective is made of."""
    if not isinstance(objective, Objective):
        return set()
    found = {objective.loss.function.__name__}
    found |= {penalty.function.__name__ for penalty in objective.penalties}
    return found | ({LowRankProjection.__name__} if objective.projection is not None else set())


@functools.cache
def _parity() -> dict[str, Counter[str]]:
    """By function how many cases there are of each program; none without the tests' folder."""
    found: dict[str, Counter[str]] = {}
    for file in sorted((ROOT / "tests/parity").glob("*.json")):
        for case in json.loads(file.read_text(encoding="utf-8")):
            name = CASES.get(case["loss"], case["loss"])
            found.setdefault(name, Counter())[case["source"]] += 1
    return found


def _over_cosines(
    function: Callable[..., Tensor], moving: str, numbers: Mapping[str, Any]
) -> tuple[list[float], list[float]]:
    """One anchor a place: all see the fixed candidates, and each alone the one that moves there."""
    places = -0.99 + 1.98 * torch.arange(PLACES, dtype=torch.float64) / (PLACES - 1)
    others = [POSITIVE, *NEGATIVES] if moving == "negative" else NEGATIVES
    cosines = torch.cat([torch.tensor(others, dtype=torch.float64), places])
    sines = (1 - cosines.square()).sqrt()
    sines[len(others) :] *= -1  # on the other side of the anchor, so that it never lies on another
    alone = torch.eye(PLACES, dtype=torch.bool)
    seen = torch.cat([torch.ones(PLACES, len(others), dtype=torch.bool), alone], 1)
    positive = torch.zeros_like(seen)
    if moving == "negative":
        positive[:, 0] = True
    else:
        positive[:, len(others) :] = alone
    anchor = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(PLACES, 2)
    pairs = Pairs(anchor, torch.stack([cosines, sines], 1), positive, seen & ~positive)
    similarity = cosine(pairs.anchor, pairs.candidate).requires_grad_()
    value = function(pairs, similarity, **numbers).sum()
    (slope,) = torch.autograd.grad(value, similarity)
    return places.tolist(), slope[:, len(others) :].diagonal().tolist()


def _over_scales(numbers: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    features = torch.eye(8, dtype=torch.float64)
    places, values = [], []
    for number in range(PLACES):
        scale = 0.02 + 1.28 * number / (PLACES - 1)
        projection = LowRankProjection(8, **numbers).double()
        with torch.no_grad():
            projection.matrix.mul_(scale)
        penalty, _ = projection(features)
        (slope,) = torch.autograd.grad(penalty, projection.matrix)
        places.append(scale)
        values.append(float(slope.diagonal().sum()))
    return places, values
