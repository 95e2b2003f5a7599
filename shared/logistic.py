"""L2-regularised logistic regression on many training sets and for many costs at once.

With w the weights, b the intercept and x_i the features of row i, the problem of a training set T
and a cost C is to minimise

    C * sum over i in T of loss_i(x_i w + b) + |w|^2 / 2,

the objective of scikit-learn's ``LogisticRegression(C=cost)``: binomial loss for two classes,
softmax for more, intercept not penalised. Ten folds times many costs on the same features take it
less than half of that class's time, one training set between half and twice as long
(``benchmarks/probe.py``); committed records rest on its solutions.
All training sets are subsets of the same rows, and share the expensive computations:

* The features are centred, which changes only the intercept, and rotated into the eigenbasis of
  X'X, which does not change the penalty. There the Hessian of every problem is nearly diagonal,
  1 + C * curvature of the loss * eigenvalue, however badly X is conditioned.
* With more than two classes the curvature of a row couples the classes, which no diagonal can
  represent, and it differs between rows once the classes separate. The initial Hessian is then
  that of all training sets together at their starting points, factorised once for each cost,
  unless there are too many features. So it is with two classes once a cost takes many steps.
* All training sets take their L-BFGS steps (Nocedal and Wright 2006, Algorithm 7.4) together, from
  that initial Hessian. One product with the features gives the scores along all directions, another
  all gradients; the line search needs only scores.
* Costs are solved in ascending order, and each training set starts from an extrapolation of its
  solutions at the two costs before. Labels outside a training set do not enter its solution;
  features outside it only determine the basis.

Shapes: n rows, d features, F training sets, C costs, K columns of scores (1 for two classes, else
the number of classes), P training sets not solved yet at one cost, r coordinates of the rotated
features and the constant 1 of the intercept.
"""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

HISTORY = 20  # steps that L-BFGS remembers
SEARCHES = 2  # evaluations along a direction
CHECK_EVERY = 2  # steps between convergence checks, each of which waits for the device
SMALLEST_CURVATURE = 1e-6  # of the initial Hessian, where all rows are far from the boundary
ABSENT = -1e30  # the score of a class that a training set lacks: finite, but its exp is 0
LARGEST_HESSIAN = 4096  # columns K r of a Hessian that is factorised
FEW_STEPS = 20  # at a cost; two classes that take more start from a factorised Hessian at the next
NEGLIGIBLE = 0.03  # relative curvature below which rows are left out of that Hessian
LARGEST_BLOCK = 2**25  # scores held at a time while predicting


@dataclass(frozen=True)
class Solution:
    """The minima of all training sets at all costs, in the given order."""

    weights: Tensor  # (F, C, d, K)
    intercepts: Tensor  # (F, C, K); -inf for a class that a training set lacks
    objective: Tensor  # (F, C), float64
    iterations: int  # L-BFGS steps, over all costs

    def predict(self, features: Tensor) -> Tensor:
        """Classes (F, C, n), int64, of features (n, d) of the same width d as in the fit."""
        _, costs, _, columns = self.weights.shape
        features = features.to(self.weights)
        block = max(1, LARGEST_BLOCK // max(1, len(features) * costs * columns))
        predicted = []
        for weights, intercepts in zip(
            self.weights.split(block), self.intercepts.split(block), strict=True
        ):
            scores = torch.einsum("fcdk,nd->fckn", weights, features) + intercepts[..., None]
            predicted.append((scores[:, :, 0] > 0).long() if columns == 1 else scores.argmax(2))
        return torch.cat(predicted)


@torch.no_grad()
def fit(
    features: Tensor,
    labels: Tensor,
    training: Tensor,
    costs: Sequence[float],
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
) -> Solution:
    """Logistic regression on every training set for every cost.

    Computes in the features' precision, at least float32, on their device. Calls with the same
    number of threads give bit-identical results.

    Args:
        features: (n, d), floating point.
        labels: (n,) int64, classes counted from 0.
        training: (n, F) bool, the rows of each training set.
        costs: positive, scikit-learn's C.
        tolerance: a problem is solved when its objective is above the minimum by no more than this
            share; most end a tenth of it above. Rounding decides how small it may be: in float32
            most problems reach 1e-6, and those with high costs or columns of very different scale
            may not reach 1e-8 in any number of steps.
        max_iterations: steps at each cost.

    Warns:
        RuntimeWarning: there are problems that ``max_iterations`` steps did not solve.

    Raises:
        ValueError: a feature that is not finite, a training set with one class only.
    """
    _check(features, labels, training)
    classes = int(labels.max()) + 1
    columns = 1 if classes == 2 else classes
    dtype = torch.promote_types(features.dtype, torch.float32)
    used = training.any(1)
    features, labels, inside = features[used].to(dtype), labels[used], training[used].T.to(dtype)
    lacking = (inside @ one_hot(labels, classes).to(dtype))[:, :columns] == 0

    centre = features.mean(0)
    coordinates, bases, eigenvalues = _rotate(features - centre)
    rows = torch.cat([coordinates, torch.ones_like(coordinates[:, :1])], 1)
    if classes == 2:
        rows *= 1 - 2 * labels[:, None]
    penalised = torch.ones_like(rows[0])
    penalised[-1] = 0
    eigenvalues = torch.cat([eigenvalues, eigenvalues.new_tensor([len(rows)])])
    data = _Data(rows, labels, penalised, eigenvalues)

    point = rows.new_zeros(len(inside), columns, rows.shape[1])
    offset = rows.new_zeros(lacking.shape).masked_fill(lacking, ABSENT)[..., None]
    _, wrong = _losses(data, _scores(data, point, offset), inside)
    first_gradient = _gradient(data, _residual(data, wrong)).flatten(1).norm(dim=1)

    weights = rows.new_empty(len(inside), len(costs), features.shape[1], columns)
    intercepts = rows.new_empty(len(inside), len(costs), columns)
    objective = torch.empty(intercepts.shape[:2], dtype=torch.float64, device=rows.device)
    unsolved, iterations = [], 0
    ahead, path = point, list[Tensor]()
    use_factor = columns > 1
    for index in sorted(range(len(costs)), key=costs.__getitem__):
        minima = _minimise(
            data, inside, offset, costs[index], ahead, tolerance, max_iterations, use_factor
        )
        iterations += minima.steps
        use_factor |= minima.steps > FEW_STEPS  # two classes that are nearly separable
        objective[:, index] = minima.objective
        turned = minima.point[..., :-1].flatten(0, 1)
        for basis in bases:  # one product for all training sets: separate ones take seconds
            turned = turned @ basis.T
        weights[:, index] = turned.view(*point.shape[:2], -1).mT
        intercepts[:, index] = minima.point[..., -1] - centre @ weights[:, index]
        unsolved.append(minima.gradient / (costs[index] * first_gradient[minima.unsolved]))

        ahead = _extrapolated([*path, minima.point])
        path = [*path, minima.point][-2:]
    gradients = torch.cat(unsolved)
    if len(gradients):
        remedy = "raise the tolerance or max_iterations"
        if dtype == torch.float32:  # whose rounding keeps some gradients from becoming that small
            remedy += ", or give the features in float64"
        warnings.warn(
            f"{len(gradients)} of {objective.numel()} logistic regressions were not within "
            f"{tolerance:g} of their minimum after {max_iterations} iterations (largest gradient "
            f"left: {gradients.max():.1e} of the one at zero): {remedy}",
            RuntimeWarning,
            stacklevel=3,  # past the decorator
        )
    if columns > 1:
        # A constant for all classes has no effect; scikit-learn's intercepts add up to 0.
        mean = intercepts.masked_fill(lacking[:, None], torch.nan).nanmean(2, keepdim=True)
        intercepts = (intercepts - mean).masked_fill(lacking[:, None], -torch.inf)
    return Solution(weights, intercepts, objective, iterations)


@dataclass(frozen=True)
class _Data:
    """The data shared by all training sets."""

    # Rotated features and a 1 for the intercept, (n, r); with two classes, rows of class 1 are
    # negated, so that scores are those of the wrong class.
    rows: Tensor
    labels: Tensor  # (n,)
    penalised: Tensor  # (r,), 1 for weights and 0 for the intercept
    eigenvalues: Tensor  # (r,), squared lengths of the columns of ``rows``


@dataclass(frozen=True)
class _Minima:
    """The result at one cost."""

    point: Tensor  # (F, K, r)
    objective: Tensor  # (F,)
    steps: int  # taken by the last training set
    unsolved: Tensor  # (P,), numbers of the training sets that were not solved
    gradient: Tensor  # (P,), norms of their gradients


@dataclass
class _State:
    """The training sets that are not solved yet."""

    sets: Tensor  # (P,), their numbers
    present: Tensor  # (P, K, 1), 1 for the classes that they have and 0 for the others
    inside: Tensor  # (P, n), 1 for their rows and 0 for the others
    diagonal: Tensor  # (P, K, r), of a Hessian in which all rows have their mean curvature
    point: Tensor  # (P, K, r)
    scores: Tensor  # (P, K, n), of every class, minus that of the right one, at ``point``
    objective: Tensor  # (P,), float64
    gradient: Tensor  # (P, K, r)
    # The last steps, the changes of the gradient (P, K, r) and one over their product (P, 1, 1).
    history: list[tuple[Tensor, Tensor, Tensor]]

    def keep(self, sets: Tensor) -> None:
        """Drop all training sets but these."""
        for name, whole in vars(self).items():
            if isinstance(whole, Tensor):
                setattr(self, name, whole[sets])
        self.history = [
            (step[sets], change[sets], inverse[sets]) for step, change, inverse in self.history
        ]


def _check(features: Tensor, labels: Tensor, training: Tensor) -> None:
    """Raise the errors of :func:`fit`."""
    check_finite(features)
    present = one_hot(labels).double().T @ training.double() > 0
    poor = (present.sum(0) < 2).nonzero()[:, 0].tolist()
    if poor:
        classes = present[:, poor[0]].nonzero()[:, 0].tolist()
        raise ValueError(f"training set {poor[0]} needs at least two classes; it has {classes}")


def check_finite(features: Tensor, what: str = "") -> None:
    """Raise a ``ValueError`` that names the first of the features (n, d) that is not finite."""
    finite = features.isfinite()
    if not finite.all():
        row, column = finite.logical_not().nonzero()[0].tolist()
        value = features[row, column].item()
        raise ValueError(f"feature {column} of {what and what + ' '}row {row} is {value}")


def _extrapolated(path: Sequence[Tensor]) -> Tensor:
    """The starting point at the next cost, (F, K, r), extrapolated from the last minima.

    From cost to cost the change of the minimum grows or shrinks by a slowly varying factor.
    """
    if len(path) < 3:
        return path[-1]
    change, before = path[-1] - path[-2], path[-2] - path[-3]
    factor = _product(change, before) / _product(before, before).clamp(min=1e-30)
    return path[-1] + factor.clamp(0, 1)[:, None, None].to(change.dtype) * change


def _rotate(features: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """Coordinates (n, r) in the eigenbasis of the Gram matrix, its factors, its eigenvalues (r,).

    The factors multiply to the basis (d, r), the last one first. With more features than rows, r is
    n, and there are two factors: the eigenvectors, and an orthonormal basis of the rows, which
    Householder reflections keep orthonormal even if rows repeat.
    """
    bases = []
    if features.shape[0] < features.shape[1]:
        span, triangle = torch.linalg.qr(features.T)
        bases, features = [span], triangle.T
    eigenvalues, basis = torch.linalg.eigh(features.T @ features)
    return features @ basis, [basis, *bases], eigenvalues.clamp(min=0)


def _minimise(
    data: _Data,
    inside: Tensor,
    offset: Tensor,
    cost: float,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    use_factor: bool,
) -> _Minima:
    """The minima of all training sets at one cost, searched from ``start`` (F, K, r).

    inside: 1 for the rows of a training set and 0 for the others, (F, n). offset: added to the
    scores, (F, K, 1). use_factor: start from a factorised Hessian, unless it is too large.
    """
    scores = _scores(data, start, offset)
    loss, wrong = _losses(data, scores, inside)
    residual = _residual(data, wrong)
    use_factor &= start.shape[1] <= LARGEST_HESSIAN // start.shape[2]
    factor = _factor(data, cost, residual, inside) if use_factor else None
    state = _State(
        sets=torch.arange(len(start), device=start.device),
        present=(offset > ABSENT).to(start),
        inside=inside,
        diagonal=_diagonal(data, cost, residual),
        point=start,
        scores=scores,
        objective=cost * loss + _product(start, start * data.penalised) / 2,
        gradient=cost * _gradient(data, residual) + start * data.penalised,
        history=[],
    )
    point, objective = torch.empty_like(start), torch.empty_like(state.objective)
    for step in range(max_iterations + 1):
        if step % CHECK_EVERY == 0 or step == max_iterations:
            remaining = (_gap(data, state) > tolerance * state.objective).nonzero()[:, 0]
            if len(remaining) < len(state.sets) or step == max_iterations:
                point[state.sets] = state.point
                objective[state.sets] = state.objective
                state.keep(remaining)
            if not len(remaining):
                break
        if step < max_iterations:
            _step(data, state, cost, factor)
    return _Minima(point, objective, step, state.sets, state.gradient.flatten(1).norm(dim=1))


def _gap(data: _Data, state: _State) -> Tensor:
    """Upper bounds of the objectives' distances from their minima, (P,).

    With the best intercept for every w, the objective has at least the curvature of |w|^2 / 2, so
    half the squared gradient is a bound. The intercept contributes the decrease that a Newton step
    predicts.
    """
    curvature = torch.where(data.penalised > 0, 1, state.diagonal)
    return _product(state.gradient, state.gradient / curvature) / 2


def _diagonal(data: _Data, cost: float, residual: Tensor) -> Tensor:
    """The diagonal of a Hessian (P, K, r), from the derivatives of the losses (P, K, n)."""
    curvature = (residual.abs() * (1 - residual.abs())).mean(2, keepdim=True)
    return data.penalised + cost * curvature.clamp(min=SMALLEST_CURVATURE) * data.eigenvalues


def _factor(data: _Data, cost: float, residual: Tensor, inside: Tensor) -> Tensor | None:
    """Cholesky factor of the Hessian of all training sets together.

    It is a lower triangle, (K r, K r); None where the matrix is singular to the features'
    precision. The probabilities of a row are averaged over the training sets that contain it, and
    the row is weighted by their share. The intercept is penalised here, which makes the matrix
    definite.

    residual: derivatives of the loss with respect to the scores, (F, K, n). inside: 1 for the rows
    of a training set and 0 for the others, (F, n).
    """
    rows, classes = data.rows, residual.shape[1]
    width = rows.shape[1]
    sets = inside.sum(0)
    mean, share = residual.sum(0) / sets.clamp(min=1), cost * sets / len(inside)

    def block(weight: Tensor) -> Tensor:
        curved = weight > NEGLIGIBLE * weight.mean()
        curved_rows = rows[curved]
        return (weight[curved, None] * curved_rows).T @ curved_rows

    if classes == 1:
        hessian = block(share * mean[0] * (1 - mean[0]))
    else:
        probability = mean + one_hot(data.labels, classes).T.to(rows)
        blocks = rows.new_zeros(classes, width, classes, width)
        # The diagonal blocks make the sum over classes vanish.
        for first, second in itertools.combinations(range(classes), 2):
            coupled = block(share * probability[first] * probability[second])
            blocks[first, :, second] = blocks[second, :, first] = -coupled
            blocks[first, :, first] += coupled
            blocks[second, :, second] += coupled
        hessian = blocks.view(classes * width, -1)
    hessian.diagonal().add_(1)
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if failed:  # lost in rounding
        factor, failed = torch.linalg.cholesky_ex(hessian.double())
    return None if failed else factor.to(rows)


def _solved(factor: Tensor, right: Tensor) -> Tensor:
    """The solutions (P, K, r) of the Hessian with that factor for the right sides (P, K, r)."""
    solved: Tensor = torch.cholesky_solve(right.flatten(1).T, factor)
    return solved.T.view_as(right)


def _step(data: _Data, state: _State, cost: float, factor: Tensor | None) -> None:
    """One step of L-BFGS."""
    direction = _direction(state, factor)
    along = _scores(data, direction)
    length = _length(data, state, cost, direction, along)[:, None, None].to(along.dtype)
    step = length * direction
    state.point = state.point + step
    state.scores = torch.addcmul(state.scores, length, along)
    loss, wrong = _losses(data, state.scores, state.inside)
    penalised = state.point * data.penalised
    state.objective = cost * loss + _product(state.point, penalised) / 2
    residual = _residual(data, wrong)
    state.diagonal = _diagonal(data, cost, residual)
    gradient = cost * _gradient(data, residual) + penalised
    change, state.gradient = gradient - state.gradient, gradient
    product = _product(step, change)[:, None, None].to(step.dtype)
    # Positive up to rounding; a step whose curvature is lost in rounding is not remembered.
    inverse = torch.where(product > 0, 1 / product, 0.0)
    state.history = [*state.history, (step, change, inverse)][-HISTORY:]


def _direction(state: _State, factor: Tensor | None) -> Tensor:
    """The L-BFGS direction (P, K, r), from the factorised initial Hessian, or the diagonal one."""
    direction = -state.gradient
    shares = []
    for step, change, inverse in reversed(state.history):
        share = inverse * (step * direction).sum((1, 2), keepdim=True)
        direction -= share * change
        shares.append(share)
    if factor is None:
        direction /= state.diagonal
    else:  # it would also change the weights of absent classes
        direction = _solved(factor, direction) * state.present
    for (step, change, inverse), share in zip(state.history, reversed(shares), strict=True):
        direction += (share - inverse * (change * direction).sum((1, 2), keepdim=True)) * step
    return direction


def _length(data: _Data, state: _State, cost: float, direction: Tensor, along: Tensor) -> Tensor:
    """The step length (P,) in ``direction`` (P, K, r), which changes the scores by ``along``.

    It is the best of a few Newton steps inside a bracket; ``along`` is (P, K, n).

    The objective is convex with bounded curvature, which gives a length that certainly decreases
    it. The bracket and the choice of the best start from that length.
    """
    moved = direction * data.penalised
    straight, square = _product(state.point, moved), _product(direction, moved)
    largest = 0.25 if along.shape[1] == 1 else 0.5
    squares = along.square()
    rows = torch.linalg.vecdot(_over_classes(squares), state.inside)
    low = -_product(state.gradient, direction) / (cost * largest * rows + square)
    high = torch.full_like(low, torch.inf)
    best: Tensor = low
    lowest, length = state.objective, low.clamp(min=1)
    unmoved = _product(state.point, state.point * data.penalised) / 2
    for search in range(SEARCHES):
        scores = torch.addcmul(state.scores, length[:, None, None].to(along.dtype), along)
        loss, wrong = _losses(data, scores, state.inside)
        objective = cost * loss + unmoved + length * (straight + length * square / 2)
        best = torch.where(objective < lowest, length, best)
        lowest = torch.minimum(objective, lowest)
        if search == SEARCHES - 1:
            break

        mean = _over_classes(wrong * along)
        spread = (wrong * squares).sum((1, 2)) - mean.square().sum(1)
        first = cost * mean.sum(1, dtype=torch.float64) + straight + length * square
        second = cost * spread + square
        low, high = torch.where(first <= 0, length, low), torch.where(first > 0, length, high)
        newton = length - first / second
        middle = torch.where(high.isinf(), 2 * length, (low + high) / 2)
        length = torch.where((newton > low) & (newton < high), newton, middle)
    return best


def _scores(data: _Data, point: Tensor, offset: Tensor | None = None) -> Tensor:
    """The scores of every class, minus that of the right one, at a point (P, K, r): (P, K, n)."""
    scores = (point.flatten(0, 1) @ data.rows.T).view(*point.shape[:2], -1)
    scores = scores if offset is None else scores + offset
    return (
        scores if scores.shape[1] == 1 else scores - scores.gather(1, _index_of_class(data, scores))
    )


def _losses(data: _Data, scores: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The loss (P,) of a training set, and the probabilities of the wrong classes (P, K, n).

    The probabilities are 0 outside the training set. They and the loss stay accurate where they are
    small because classes are separable.
    """
    if scores.shape[1] == 1:
        margin, wrong = scores[:, 0], torch.sigmoid(scores)
    else:
        scores = scores.scatter(1, _index_of_class(data, scores), -torch.inf)
        margin = scores.logsumexp(1)
        wrong = scores.softmax(1) * torch.sigmoid(margin)[:, None]
    loss = -(logsigmoid(-margin) * inside).sum(1, dtype=torch.float64)
    return loss, wrong * inside[:, None]


def _over_classes(values: Tensor) -> Tensor:
    """The sum over classes (P, n) of (P, K, n), without a copy for a single class."""
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)


def _residual(data: _Data, wrong: Tensor) -> Tensor:
    """Derivatives of the loss with respect to the scores, from the wrong classes' probabilities."""
    if wrong.shape[1] == 1:
        return wrong
    return wrong.scatter(1, _index_of_class(data, wrong), -wrong.sum(1, keepdim=True))


def _index_of_class(data: _Data, scores: Tensor) -> Tensor:
    """The index of the right class among the scores (P, K, n): (P, 1, n)."""
    return data.labels.expand(len(scores), 1, -1)


def _gradient(data: _Data, residual: Tensor) -> Tensor:
    """The gradient of the summed loss, (P, K, r), from the residuals (P, K, n)."""
    return (residual.flatten(0, 1) @ data.rows).view(*residual.shape[:2], -1)


def _product(first: Tensor, second: Tensor) -> Tensor:
    """Inner products of each training set, (P,), in float64."""
    return (first * second).sum((1, 2), dtype=torch.float64)
