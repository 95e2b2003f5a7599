"""Every formula of the core a second time, as slow loops straight from the papers' equations.

Nothing here calls the core, and nothing is done in log space, in blocks or for all anchors at once.
Inputs are float64 tensors. Gradients come from automatic differentiation of the loops, except for
margins that scale gradients while leaving values alone: there the gradient is written down.

Shapes: N anchors, M candidates. ``positives`` and ``negatives`` hold one list of candidate indices
for each anchor.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from torch import Tensor

Indices = list[list[int]]
DIFFERENTIATED_BY_HAND = ("margin_nce", "alignment")


# Who is compared with whom


@dataclass(frozen=True)
class Layout:
    anchor: Tensor
    candidate: Tensor
    positives: Indices
    negatives: Indices


def two_views(first: Tensor, second: Tensor, anchors: str = "both") -> Layout:
    """Candidates 0..B-1 are the first views, B..2B-1 the second views."""
    size = len(first)
    rows, positives, negatives = [], [], []
    for view in (0, 1) if anchors == "both" else (1,):
        for instance in range(size):
            rows.append((first, second)[view][instance])
            positives.append([(1 - view) * size + instance])
            negatives.append([k * size + j for k in (0, 1) for j in range(size) if j != instance])
    return Layout(torch.stack(rows), torch.cat([first, second]), positives, negatives)


def query_key(
    query: Tensor, key: Tensor, bank: Tensor | None = None, in_batch: bool = True
) -> Layout:
    size = len(query)
    candidate = key if bank is None else torch.cat([key, bank])
    positives = [[i] for i in range(size)]
    first = 0 if in_batch else size
    negatives = [[j for j in range(first, len(candidate)) if j != i] for i in range(size)]
    return Layout(query, candidate, positives, negatives)


def own_negatives(layout: Layout, own: Tensor) -> Layout:
    """Each anchor's own rows, (N, S, D), stand after the candidates, set after set."""
    count, each = len(layout.candidate), own.shape[1]
    negatives = [
        [*others, *(count + each * i + j for j in range(each))]
        for i, others in enumerate(layout.negatives)
    ]
    candidate = torch.cat([layout.candidate, *own])
    return Layout(layout.anchor, candidate, layout.positives, negatives)


def context_window(
    sentence: Tensor, context: Tensor, reach: int, document: Sequence[int] | None = None
) -> Layout:
    size = len(sentence)
    positives: Indices = []
    negatives: Indices = []
    for i in range(size):
        near = [
            j
            for j in range(size)
            if j != i
            and i - reach <= j <= i + reach
            and (document is None or document[i] == document[j])
        ]
        positives.append(near)
        negatives.append([j for j in range(size) if j != i and j not in near])
    return Layout(sentence, context, positives, negatives)


def local_global(node: Tensor, graph: Tensor, owner: Sequence[int]) -> Layout:
    positives = [[g] for g in owner]
    negatives = [[j for j in range(len(graph)) if j != g] for g in owner]
    return Layout(node, graph, positives, negatives)


def same_label(embedding: Tensor, label: Sequence[int]) -> Layout:
    everyone = range(len(label))
    positives = [[j for j in everyone if j != i and label[j] == label[i]] for i in everyone]
    negatives = [[j for j in everyone if label[j] != label[i]] for i in everyone]
    return Layout(embedding, embedding, positives, negatives)


def without_copies(layout: Layout, copies: Callable[[int, int], bool]) -> Layout:
    """The layout less the negatives that ``copies`` says are copies of the anchor's instance."""
    negatives = [
        [j for j in others if not copies(i, j)] for i, others in enumerate(layout.negatives)
    ]
    return Layout(layout.anchor, layout.candidate, layout.positives, negatives)


def unit(row: Tensor) -> Tensor:
    length = math.sqrt(sum(float(x) ** 2 for x in row.detach()))
    return row / (row * row).sum().sqrt() if length > 0 else row


def cosines(anchor: Tensor, candidate: Tensor) -> Tensor:
    """(N, M) cosines; a row of zeros has cosine 0 with everything."""
    return torch.stack(
        [torch.stack([(unit(a) * unit(c)).sum() for c in candidate]) for a in anchor]
    )


# Losses. The mean is over an anchor's positives; an anchor without one has loss 0.


def info_nce(
    similarity: Tensor,
    positives: Indices,
    negatives: Indices,
    *,
    temperature: float,
    positive_in_denominator: bool = True,
) -> Tensor:
    """``-log(exp(s_p / t) / sum_j exp(s_j / t))``, GraphCL's sum without the positive.

    With nothing but its positive to compare with, an anchor has loss 0 in either form.
    """
    losses = []
    for row, own, others in zip(similarity, positives, negatives, strict=True):
        loss = row.new_zeros(())
        if own and (others or positive_in_denominator):
            total = sum((torch.exp(row[j] / temperature) for j in others), row.new_zeros(()))
            if positive_in_denominator:
                total = total + sum(torch.exp(row[p] / temperature) for p in own)
            for p in own:
                loss = loss - torch.log(torch.exp(row[p] / temperature) / total) / len(own)
        losses.append(loss)
    return torch.stack(losses)


def hard_nce(
    similarity: Tensor,
    positives: Indices,
    negatives: Indices,
    *,
    temperature: float,
    tau_plus: float,
    beta: float,
    floor: str = "cosine",
    detach_weights: bool = False,
) -> Tensor:
    """HCL: ``-log(pos / (pos + Ng))``, ``Ng`` from negatives weighted by ``neg^beta``."""
    losses = []
    for row, own, others in zip(similarity, positives, negatives, strict=True):
        loss = row.new_zeros(())
        if own and others:
            count = len(others)
            scores = [row[j] / temperature for j in others]
            importance = [torch.exp(beta * s) for s in scores]
            if detach_weights:
                importance = [w.detach() for w in importance]
            weighted = sum(w * torch.exp(s) for w, s in zip(importance, scores, strict=True))
            reweighted = weighted / (sum(importance) / count)
            positive = [torch.exp(row[p] / temperature) for p in own]
            mean_positive = sum(positive) / len(own)
            estimate = (reweighted - tau_plus * count * mean_positive) / (1 - tau_plus)
            lowest = count * torch.exp(-row.new_ones(()) / temperature)
            if floor == "minimum":
                lowest = count * torch.exp(
                    min(float(row[j].detach()) for j in others)
                    / torch.as_tensor(temperature, dtype=row.dtype)
                )
            if float(estimate.detach()) < float(lowest.detach()):
                estimate = lowest
            loss = sum(-torch.log(e / (e + estimate)) for e in positive) / len(own)
        losses.append(loss)
    return torch.stack(losses)


def debiased_nce(
    similarity: Tensor, positives: Indices, negatives: Indices, **numbers: Any
) -> Tensor:
    """DCL: as HCL, with equal weights, which make the plain sum over the negatives."""
    return hard_nce(similarity, positives, negatives, beta=0.0, **numbers)


# The margins paper


def curvature_weight(cosine: float, exponent: float, form: str) -> float:
    """Eq. 10, ``|(1 - x^c)^(1/c)|`` at ``x = theta / pi``, or what Algorithm 3 prints."""
    x = math.acos(max(-1.0, min(1.0, cosine))) / math.pi
    if form == "equation_10":
        return abs((1 - x**exponent) ** (1 / exponent))
    return (1 - x) ** (1 / exponent)


def margined_cosine(
    cosine: float, angular: float, subtractive: float, softening: float
) -> tuple[float, float]:
    """``cos(theta + m1) - m2`` and its derivative with respect to ``cos(theta)``.

    ``softening`` is added under the root of the sine; 0 is the equation itself.
    """
    if not angular:
        return cosine - subtractive, 1.0
    sine = math.sqrt(max(1 - cosine**2, 0.0) + softening)
    value = cosine * math.cos(angular) - sine * math.sin(angular)
    return value - subtractive, math.cos(angular) + math.sin(angular) * cosine / sine


def margin_nce(
    similarity: Tensor,
    positives: Indices,
    negatives: Indices,
    *,
    temperature: float,
    angular: float = 0.0,
    subtractive: float = 0.0,
    emphasis: float = 1.0,
    curvature: float | None = None,
    curvature_form: str = "equation_10",
    ratio: str | None = None,
    attenuation: float = 0.0,
    attenuation_scope: str = "row",
    softening: float = 1e-7,
) -> tuple[Tensor, Tensor]:
    """The loss of each anchor, (N,), and its gradient with respect to the cosines, (N, M).

    The base is ``L = mean_p(-d_p) + log sum_k exp(d_k)`` with ``dL/dd_k = q_k - [k = p] / P``; each
    effect multiplies the gradient of the positives or of the row.
    """
    losses = torch.zeros(len(similarity), dtype=torch.float64)
    gradient = torch.zeros(similarity.shape, dtype=torch.float64)
    for i, (own, others) in enumerate(zip(positives, negatives, strict=True)):
        if not own:
            continue
        s = similarity[i].tolist()
        plain = {j: s[j] / temperature for j in own + others}
        slope = {j: 1 / temperature for j in own + others}
        margined = dict(plain)
        for p in own:
            value, derivative = margined_cosine(s[p], angular, subtractive, softening)
            margined[p] = value / temperature
            if ratio is None:
                slope[p] = derivative / temperature
        row_weight = 1.0
        positive_weight = {p: emphasis for p in own}
        if curvature is not None:
            for p in own:
                positive_weight[p] *= curvature_weight(s[p], curvature, curvature_form)
        if ratio is not None:
            r = sum(map(math.exp, plain.values())) / sum(map(math.exp, margined.values()))
            if ratio == "row":
                row_weight *= r
            else:
                positive_weight = {p: w * r for p, w in positive_weight.items()}
            margined = plain
        if attenuation:
            total = sum(map(math.exp, plain.values()))
            q = sum(math.exp(plain[p]) for p in own) / total
            weight = 100.0 if attenuation * q >= 0.99 else 1 / (1 - attenuation * q)
            if attenuation_scope == "row":
                row_weight *= weight
            else:
                positive_weight = {p: w * weight for p, w in positive_weight.items()}
        total = sum(map(math.exp, margined.values()))
        losses[i] = math.log(total) - sum(margined[p] for p in own) / len(own)
        for j, logit in margined.items():
            by_logit = math.exp(logit) / total
            if j in own:
                by_logit = positive_weight[j] * (by_logit - 1 / len(own))
            gradient[i, j] = row_weight * by_logit * slope[j]
    return losses, gradient


def alignment(
    similarity: Tensor,
    positives: Indices,
    negatives: Indices,
    *,
    curvature: float | None = None,
    curvature_form: str = "equation_10",
) -> tuple[Tensor, Tensor]:
    """BYOL's loss of each anchor, (N,), and its gradient with respect to the cosines, (N, M)."""
    losses = torch.zeros(len(similarity), dtype=torch.float64)
    gradient = torch.zeros(similarity.shape, dtype=torch.float64)
    for i, own in enumerate(positives):
        for p in own:
            cosine = float(similarity[i, p])
            weight = 1.0
            if curvature is not None:
                weight = curvature_weight(cosine, curvature, curvature_form)
            losses[i] += (2 - 2 * cosine) / len(own)
            gradient[i, p] = -2 * weight / len(own)
    return losses, gradient


# The support vector machines of MMCL


def kernel_value(cosine: Tensor | float, kernel: str, gamma: float, offset: float = 0.0) -> Tensor:
    """Of two unit vectors, whose squared distance is ``2 - 2 cos``."""
    cosine = torch.as_tensor(cosine, dtype=torch.float64)
    if kernel == "rbf":
        return torch.exp(-gamma * (2 - 2 * cosine))
    if kernel == "linear":
        return cosine
    return torch.tanh(gamma * cosine + offset)


def dual_matrix(
    kernel: np.ndarray, positive: int, others: list[int], ridge: float, unit_diagonal: bool
) -> np.ndarray:
    """Proposition 1's Delta plus the ridge, for one anchor."""
    first = 1.0 if unit_diagonal else kernel[positive, positive]
    delta = np.zeros((len(others), len(others)))
    for a, j in enumerate(others):
        for b, k in enumerate(others):
            delta[a, b] = first + kernel[j, k] - kernel[j, positive] - kernel[positive, k]
            if j == k:
                delta[a, b] += ridge
    return delta


def dual_closed_form(delta: np.ndarray, cost: float) -> np.ndarray:
    twos = torch.full((len(delta),), 2.0, dtype=torch.float64)
    return torch.linalg.solve(torch.from_numpy(delta), twos).clamp(0, cost).numpy()


def dual_exact(delta: np.ndarray, cost: float) -> np.ndarray:
    """``min a' Delta a / 2 - 2 1'a`` in the box, as bounded least squares on the factor."""
    factor = np.linalg.cholesky(delta)
    target = scipy.linalg.solve_triangular(factor, np.full(len(delta), 2.0), lower=True)
    solution = scipy.optimize.lsq_linear(
        factor.T, target, bounds=(0, cost), method="bvls", tol=1e-14, max_iter=10 * len(delta)
    )
    return np.asarray(solution.x)


def dual_projected_gradient(
    delta: np.ndarray, start: np.ndarray, cost: float, steps: int, step_size: float, restarted: bool
) -> np.ndarray:
    """Where it is restarted, with FISTA's momentum, which starts again where it points uphill."""
    alpha, ahead, number = start, start, 1.0
    for _ in range(steps):
        gradient = delta @ ahead - 2
        new = np.array([min(max(a, 0.0), cost) for a in ahead - step_size * gradient])
        factor = 0.0
        if restarted and gradient @ (new - alpha) > 0:
            number = (1 + 5**0.5) / 2  # the second of the sequence, from 1
        elif restarted:
            following = (1 + (1 + 4 * number**2) ** 0.5) / 2
            factor, number = (number - 1) / following, following
        ahead = new + factor * (new - alpha)
        alpha = new
    return alpha


Solve = Callable[[np.ndarray], np.ndarray]


def dual_weights(
    among: Tensor,
    positives: Indices,
    negatives: Indices,
    solve: Solve,
    *,
    gamma: float,
    ridge: float,
    kernel: str = "rbf",
    offset: float = 0.0,
    unit_diagonal: bool = False,
) -> Tensor:
    """(N, M): dual variables at the negatives, minus their sum at the positive, from (M, M)."""
    values = kernel_value(among.detach(), kernel, gamma, offset).numpy()
    weights = torch.zeros(len(positives), len(among), dtype=torch.float64)
    for i, (own, others) in enumerate(zip(positives, negatives, strict=True)):
        if not others:
            continue
        for p in own:
            delta = dual_matrix(values, p, others, ridge, unit_diagonal and kernel != "rbf")
            for j, alpha in zip(others, solve(delta), strict=True):
                weights[i, j] += alpha / len(own)
                weights[i, p] -= alpha / len(own)
    return weights


def max_margin(
    layout: Layout,
    *,
    gamma: float = 0.5,
    cost: float = 100.0,
    ridge: float = 0.1,
    kernel: str = "rbf",
    offset: float = 0.0,
    unit_diagonal: bool = False,
    solver: str = "closed_form",
    steps: int = 50,
    step_size: float = 0.0,
    momentum: str = "restarted",
) -> Tensor:
    """``sum_j alpha_j K(c_j, a) - (sum_j alpha_j) K(c_p, a)``, (N,).

    Of a projected gradient with momentum and steps of its own size, the optimum it leads to.
    """

    def solve(delta: np.ndarray) -> np.ndarray:
        start = dual_closed_form(delta, cost)
        if solver == "closed_form":
            return start
        if solver == "exact" or not step_size:
            return dual_exact(delta, cost)
        restarted = momentum == "restarted"
        return dual_projected_gradient(delta, start, cost, steps, step_size, restarted)

    weights = dual_weights(
        cosines(layout.candidate.detach(), layout.candidate.detach()),
        layout.positives,
        layout.negatives,
        solve,
        gamma=gamma,
        ridge=ridge,
        kernel=kernel,
        offset=offset,
        unit_diagonal=unit_diagonal,
    )
    values = kernel_value(cosines(layout.anchor, layout.candidate), kernel, gamma, offset)
    return torch.stack(
        [
            sum((w * k for w, k in zip(ws, ks, strict=True)), torch.zeros((), dtype=ks.dtype))
            for ws, ks in zip(weights, values, strict=True)
        ]
    )


# Penalties


def distance_polarization(
    layout: Layout,
    *,
    lower: float = 0.1,
    upper: float = 0.5,
    reduction: str = "anchor_sum",
    among: str = "negatives",
) -> Tensor:
    """``|min((D - d+) (D - d-), 0)|`` with ``D = (1 - cos) / 2`` over chosen pairs, a scalar."""
    count = len(layout.anchor)
    chosen = layout.negatives
    if among == "all":
        chosen = [p + n for p, n in zip(layout.positives, layout.negatives, strict=True)]
    elif among == "anchors":
        chosen = [[j for j in range(count) if j != i] for i in range(count)]
    others = layout.anchor if among == "anchors" else layout.candidate
    total = layout.anchor.new_zeros(())
    for row, columns in zip(cosines(layout.anchor, others), chosen, strict=True):
        for j in columns:
            distance = (1 - row[j]) / 2
            product = (distance - lower) * (distance - upper)
            if float(product.detach()) < 0:
                total = total - product
    if reduction == "mean":
        return total / max(1, sum(map(len, chosen)))
    return total / count if reduction == "anchor_sum" else total


def consistency(
    layout: Layout, *, temperature: float = 0.05, with_positive: bool = False
) -> Tensor:
    """``(KL(p | q) + KL(q | p)) / 2`` over an anchor's negatives, mean over positives, (N,)."""

    def shares(row: Tensor, others: list[int], more: list[Tensor]) -> list[Tensor]:
        cosine = [(unit(row) * unit(layout.candidate[j])).sum() for j in others] + more
        exponentials = [torch.exp(number / temperature) for number in cosine]
        total = sum(exponentials, row.new_zeros(()))
        return [number / total for number in exponentials]

    values = []
    for anchor, own, others in zip(layout.anchor, layout.positives, layout.negatives, strict=True):
        value = anchor.new_zeros(())
        for positive in own if others else ():
            row = layout.candidate[positive]
            more = [(unit(anchor) * unit(row)).sum()] if with_positive else []
            one, other = shares(anchor, others, more), shares(row, others, more)
            for p, q in zip(one, other, strict=True):
                value = value + (p * torch.log(p / q) + q * torch.log(q / p)) / 2 / len(own)
        values.append(value)
    return torch.stack(values)


class _ByHand(torch.autograd.Function):
    """Values whose gradient by the cosines is given."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return upstream[:, None] * slope, None, None


def value(name: str, layout: Layout, **numbers: Any) -> Tensor:
    """What the core's loss or penalty of that name gives: (N,), or a scalar for polarization."""
    function: Callable[..., Any] = globals()[name]
    if name in ("max_margin", "distance_polarization", "consistency"):
        return function(layout, **numbers)
    similarity = cosines(layout.anchor, layout.candidate)
    where = layout.positives, layout.negatives
    if name in DIFFERENTIATED_BY_HAND:
        return _ByHand.apply(similarity, *function(similarity.detach(), *where, **numbers))
    return function(similarity, *where, **numbers)


def low_rank_paper(
    matrix: Tensor, features: Tensor, *, norm: str, alpha: float, unit_features: bool = False
) -> Tensor:
    """``mean_i |L'L f_i - f_i|^2 + alpha |L|``."""
    total = matrix.new_zeros(())
    for row in features:
        feature = unit(row) if unit_features else row
        difference = matrix.T @ (matrix @ feature) - feature
        total = total + sum(d * d for d in difference) / len(features)
    if norm == "l21":
        for column in matrix.T:
            total = total + alpha * sum(x * x for x in column).sqrt()
    elif norm == "nuclear":
        smaller = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        total = total + alpha * sum(v.sqrt() for v in torch.linalg.eigvalsh(smaller))
    return total


def low_rank_authors(matrix: Tensor, views: Sequence[Tensor]) -> Tensor:
    """Per view the Frobenius norm of unit features minus unit reconstructions, over B."""
    total = matrix.new_zeros(())
    for view in views:
        squares = matrix.new_zeros(())
        for row in view:
            feature = unit(row)
            squares = squares + (feature - unit(matrix.T @ (matrix @ feature))).square().sum()
        total = total + squares.sqrt() / len(view)
    return total


def reduced_matrix(matrix: Tensor, dimensions: int, selection: str) -> Tensor:
    """L with all but some columns zero, or projected on its largest right singular vectors."""
    if selection == "svd":
        _, vectors = torch.linalg.eigh(matrix.T @ matrix)
        kept = vectors[:, -dimensions:]
        return matrix @ kept @ kept.T
    order = sorted(range(matrix.shape[1]), key=lambda h: -float(matrix[:, h].norm()))
    reduced = torch.zeros_like(matrix)
    for h in order[:dimensions]:
        reduced[:, h] = matrix[:, h]
    return reduced


# What follows a network


def following(target: Sequence[float], online: Sequence[float], rate: float) -> list[float]:
    """Numbers that moved the share ``rate`` of the way to others."""
    return [(1 - rate) * old + rate * new for old, new in zip(target, online, strict=True)]


def bank(old: Sequence[Tensor], keys: Sequence[Tensor]) -> list[Tensor]:
    """A bank after a batch: its keys come first, of length 1, and as many leave at the end."""
    rows: list[Tensor] = []
    for place in range(len(old)):
        rows.append(unit(keys[place]) if place < len(keys) else old[place - len(keys)])
    return rows
