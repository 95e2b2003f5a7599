"""The dual of MMCL's support vector machines, for all anchors of a batch at once.

Shapes: N anchors, M candidates (the points of the SVMs). The SVM of an anchor separates one
positive candidate p from the negatives Y. With K the kernel matrix of the candidates,

    Delta = K_pp 11' + K_YY - K_Yp 1' - 1 K_pY + ridge I,   minimise a' Delta a / 2 - 2 1'a
    over 0 <= a <= cost                                      (Shah et al. 2022, Proposition 1,
                                                              and the ridge of their program).

All anchors share one matrix. Let P = (K + ridge I)^-1 and

    B = P - P 1 1' P / (1' P 1),

the corner of the inverse of K + ridge I bordered by ones. Without the box the solution for an
anchor whose negatives are everything but p is ``a_j = -2 B_jp / (1 - ridge B_pp)``; every further
candidate that is left out is a rank-one downdate of B. One inverse therefore replaces N solves:
O(M^3 + N M) in place of O(N M^3) time, O(M^2) in place of O(N M^2) memory. Each of its rows is the
solution of one anchor, so the whole inverse is needed. It is computed in double precision:
with 1024 candidates single precision has an error of 1e-5 of the largest weight, 200 times the
effect of rounding the cosines to single precision. Adding a constant to K changes nothing, so an
RBF kernel is stored as exp(.) - 1.

Dual weights are constants in the loss: nothing here carries a gradient.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shared.capture import Captured, can_capture
from shared.distributed import all_reduce_sum, broadcast, rank, row_counts
from shared.pairs import Pairs, blocks_of_rows, indices_of, readable
from shared.precision import full_precision

Kernel = Literal["rbf", "linear", "tanh"]
Solver = Literal["closed_form", "projected_gradient", "exact"]
Momentum = Literal["restarted", "nesterov", "none"]
Start = Literal["closed_form", "random"]
Precision = Literal["double", "single"]

EXACT_TOLERANCE = 1e-10
EXACT_STEPS = 200_000
# The largest relative errors of the dual weights by rounding, of the cosines and of the inverse.
ROUNDING_OF_COSINES = 0.01
ROUNDING_OF_INVERSE = 0.01
# The largest matrix that LAPACK inverts on a CPU; above it, block inversion by products is faster.
# Another number changes the last bits, and with them records in double precision.
LARGEST_FACTORISED = 256
# Added to a dual variable by which its change is divided (the authors' program).
SMALL = 1e-7
# The number of shapes and settings for which the projected gradient is kept as a CUDA graph.
GRAPHS = 4


@dataclass(frozen=True, kw_only=True)
class Dual:
    """The numbers of the dual and of its solver; :func:`shared.losses.max_margin` explains them."""

    gamma: float
    cost: float
    ridge: float
    kernel: Kernel
    offset: float
    solver: Solver
    steps: int
    step_size: float | None
    momentum: Momentum
    stop: float
    start: Start
    precision: Precision
    unit_diagonal: bool


def kernel_values(cosines: Tensor, kernel: Kernel, gamma: float, offset: float = 0.0) -> Tensor:
    """The kernel of unit vectors with these cosines, up to a constant (1 for ``"rbf"``).

    The constant drops out of the dual and of the loss; without it close points keep their digits.
    ``"rbf"`` is ``exp(-gamma |x - y|^2) - 1``, ``"linear"`` the cosine, ``"tanh"`` is ``tanh(gamma
    cos + offset)``; gamma is positive.
    """
    if kernel == "rbf":
        return torch.expm1(2 * gamma * (cosines - 1))
    if kernel == "linear":
        return cosines
    if kernel == "tanh":
        return torch.tanh(gamma * cosines + offset)
    raise ValueError(f"kernel is 'rbf', 'linear' or 'tanh'; got {kernel!r}")


@torch.no_grad()
def dual_weights(pairs: Pairs, cosines: Tensor, dual: Dual) -> Tensor:
    """The weight of every candidate in every anchor's decision function, (N, M).

    Row i holds the dual variables of anchor i at its negatives, minus their sum at its positive,
    and 0 elsewhere; with several positives, the mean over one SVM for each. ``cosines`` are those
    among the candidates, (M, M). On the CPU a ridge that is lost in the rounding of a singular
    kernel matrix is a ``ValueError`` where the matrix is inverted.
    """
    if not cosines.numel():
        return torch.zeros_like(pairs.negative, dtype=cosines.dtype)
    kernel, gamma, cost, ridge = dual.kernel, dual.gamma, dual.cost, dual.ridge
    random = dual.solver != "closed_form" and dual.start == "random"
    with full_precision(cosines):
        points = torch.empty_like(cosines, dtype=torch.float64)
        for rows in blocks_of_rows(cosines):
            points[rows] = kernel_values(cosines[rows].double(), kernel, gamma, dual.offset)
        # What the authors' tanh kernel adds to Delta by using 1 for K_pp; the rbf kernel's diagonal
        # differs from 1 by rounding only.
        excess = None
        if dual.unit_diagonal and kernel != "rbf":
            excess = 1 - points.diagonal()

        positives, most = pairs.positives(), pairs.most_non_negatives
        if most is not None:  # without the positive
            most = None if readable(points) else most - 1
        if not random:
            definite = kernel != "tanh"
            bordered, complement = _bordered_inverse(points, ridge, definite=definite)
            if readable(bordered):
                slope = {"rbf": 2 * gamma, "linear": 1.0, "tanh": gamma}[kernel]
                rounding = torch.finfo(cosines.dtype).eps * slope * math.sqrt(len(points))
                _check_ridge(points, bordered, ridge, rounding, definite=definite)
        if pairs.blocks and (random or dual.stop):
            # Processes draw a start and stop together for each column: as many on every process.
            width = int(row_counts(positives.T).max())
            padding = (0, width - positives.shape[1])
            positives = torch.nn.functional.pad(positives, padding, value=-1)
        several_positives = positives.shape[1] != 1
        total = points.new_zeros(pairs.negative.shape) if several_positives else None
        for column in positives.unbind(1):
            present = column >= 0
            positive = column.clamp(min=0)
            if random:
                weights = _random_start(pairs, points).clamp(0, cost) * pairs.negative
            else:
                others = indices_of((~pairs.negative).scatter(1, positive[:, None], False), most)
                others = others.sort(dim=1, descending=True).values
                weights = _closed_form(
                    bordered, complement, positive, others, pairs.negative, excess, ridge
                ).clamp_(0, cost)
            if dual.solver != "closed_form":
                first = _first_of_momentum(pairs, points, dual.momentum)
                negative = pairs.negative & present[:, None]
                tensors: tuple[Tensor, ...] = (points, positive, negative, weights, first)
                if excess is not None:
                    tensors += (excess[positive, None],)
                if dual.precision == "single":
                    tensors = tuple(x.float() if x.is_floating_point() else x for x in tensors)
                weights = _solve_box(tensors, dual, bool(pairs.blocks))
            weights.mul_(present[:, None])
            weights = _with_positive(weights, positive)
            total = weights if total is None else total.add_(weights)
        assert total is not None
        if several_positives:
            total /= (positives >= 0).sum(1).clamp(min=1)[:, None]
        return total.to(cosines.dtype)


def _random_start(pairs: Pairs, points: Tensor) -> Tensor:
    """Standard normal numbers, (N, M), of the precision of the points.

    For a part of a global batch they are the rows that its anchors would have on one process:
    process 0 draws for all anchors from its own generator, and the generators of the other
    processes do not advance. Each process temporarily holds the numbers of all anchors.
    """
    if not pairs.blocks:
        return torch.randn_like(pairs.negative, dtype=points.dtype)
    counts = (row_counts(pairs.negative) // pairs.blocks).tolist()
    every_draw = points.new_empty(pairs.blocks, sum(counts), len(points))
    if rank() == 0:
        every_draw.normal_()
    before = sum(counts[: rank()])
    return broadcast(every_draw)[:, before : before + counts[rank()]].flatten(0, 1)


def _first_of_momentum(pairs: Pairs, points: Tensor, momentum: Momentum) -> Tensor:
    """The first number of the momentum's sequence, a scalar; of a global batch that of process 0.

    1, or for ``"nesterov"`` a number above 0 and below 1, drawn as the authors' program does.
    """
    if momentum != "nesterov":
        return points.new_ones(())
    first = torch.rand_like(points[0, 0]).clamp(min=1e-8)
    return broadcast(first) if pairs.blocks else first


def _check_ridge(
    points: Tensor, bordered: Tensor, ridge: float, rounding: float, *, definite: bool
) -> None:
    """Raise a ``ValueError`` if rounding dominates the inverse.

    points: kernel values, (M, M). bordered: B, (M, M), nan where the factorisation failed.
    rounding: approximate change of the eigenvalues by the rounding of kernel values. definite:
    whether the kernel is positive definite.
    """
    # The inverse of a smallest eigenvalue l has a relative error of rounding / l and, computed in
    # double precision, of eps * trace / l^2. With a definite kernel, l is at least the ridge.
    trace = float(points.diagonal().abs().sum().clamp(min=len(points)))
    smallest = max(
        rounding / ROUNDING_OF_COSINES,
        math.sqrt(torch.finfo(torch.float64).eps * trace / ROUNDING_OF_INVERSE),
    )
    lowest, highest = bordered.aminmax()
    if torch.maximum(-lowest, highest) * smallest <= 1:
        return
    if not points.isfinite().all():
        return  # the loss is not finite either; the criterion's error names the step
    matrix = f"the kernel matrix of these {len(points)} points"
    if not definite:
        raise ValueError(
            f"with ridge {ridge:g} {matrix} is singular to the precision of their cosines: the "
            f"tanh kernel is not positive definite; use a larger ridge, or another kernel"
        )
    raise ValueError(
        f"ridge {ridge:g} is lost in rounding: {matrix} is singular to the precision of their "
        f"cosines; use {1.1 * smallest:.2g} or more"
    )


def _bordered_inverse(points: Tensor, ridge: float, *, definite: bool) -> tuple[Tensor, Tensor]:
    """B (M, M) and the diagonal of 1 - ridge B (M,), of kernel values known up to a constant.

    The kernel is centred, and the constant direction, on which B vanishes, gets the mean diagonal
    as its eigenvalue, which keeps the matrix well conditioned; ``1 - ridge B_tt`` is computed as a
    sum of non-negative terms rather than by subtraction.
    """
    size = len(points)
    mean = points.mean(0, keepdim=True)
    centred = (points - mean).sub_(mean.T).add_(mean.mean())
    constant = centred.diagonal().mean().clamp(min=0)
    inverse = centred + constant / size
    inverse.diagonal().add_(ridge)
    if definite:
        _invert_definite(inverse)
    else:  # the tanh kernel is not positive definite
        inverse, failed = torch.linalg.inv_ex(inverse)
        inverse.add_(torch.where(failed > 0, math.nan, 0.0))
    bordered = inverse.sub_(1 / ((constant + ridge) * size))
    return bordered, 1 / size + centred.mul_(bordered).sum(1)


def _invert_definite(matrix: Tensor) -> None:
    """Invert a positive definite (M, M) matrix in place; NaN if that fails.

    Above ``LARGEST_FACTORISED`` by Schur complements of 2 x 2 blocks, which consists of products;
    not on an accelerator, where it would launch many small kernels.
    """
    size = len(matrix)
    if matrix.device.type != "cpu" or size <= LARGEST_FACTORISED:
        # Raising an error would wait for the device.
        factor, failed = torch.linalg.cholesky_ex(matrix)
        matrix.copy_(torch.cholesky_inverse(torch.where(failed > 0, math.nan, factor)))
        return
    half = size // 2
    first, below, second = matrix[:half, :half], matrix[half:, :half], matrix[half:, half:]
    _invert_definite(first)
    product = below @ first
    second.addmm_(product, below.T, alpha=-1)
    _invert_definite(second)
    below.addmm_(second, product, beta=0, alpha=-1)
    first.addmm_(product.T, below, alpha=-1)
    matrix[:half, half:] = below.T


def _closed_form(
    bordered: Tensor,
    complement: Tensor,
    positive: Tensor,
    others: Tensor,
    negative: Tensor,
    excess: Tensor | None,
    ridge: float,
) -> Tensor:
    """The dual variables without the box, (N, M), 0 outside the negatives.

    bordered: B, (M, M). complement: diagonal of 1 - ridge B, (M,). positive: (N,), the positive
    candidate of each anchor. others: (N, Q), further excluded candidates, padded with -1. negative:
    (N, M) bool. excess: (M,), see :func:`dual_weights`; None: 0.
    """
    # In the module's notation, for an anchor with positive p and further excluded candidates E: B'
    # is the bordered inverse without E, and a_j = -2 B'_jp / (1 - ridge B'_pp).
    denominator = complement[positive]  # 1 - ridge B_pp, to become 1 - ridge B'_pp
    removed = torch.zeros_like(denominator)  # B_pp - B'_pp
    index = others.clamp(min=0)
    if others.shape[1]:
        real = others >= 0
        at_positive = torch.where(real, bordered[index, positive[:, None]], 0.0)
        block = bordered[index[:, :, None], index[:, None, :]]
        # Padding gets the rows and columns of the identity, which decouples it.
        identity = torch.eye(block.shape[1], dtype=block.dtype, device=block.device)
        block = torch.where(real[:, :, None] & real[:, None, :], block, identity)
        # Removing rows from a matrix is a Schur complement of its inverse: B'_jp = B_jp - B_jE
        # coefficient with coefficient = B_EE^-1 B_Ep, the rank-one downdates of all of E at once.
        # solve_ex does not wait for the device; a singular block gives values that are not finite.
        coefficient = torch.linalg.solve_ex(block, at_positive[:, :, None]).result[:, :, 0]
        removed = (coefficient * at_positive).sum(1)
    denominator = denominator + ridge * removed
    # Using 1 for K_pp adds excess 11' to Delta, as if p alone had a ridge smaller by the excess:
    # 1 - (ridge - excess) B'_pp.
    if excess is not None:
        denominator = denominator + excess[positive] * (bordered[positive, positive] - removed)
    result = bordered.new_empty(negative.shape)
    for rows in blocks_of_rows(result):
        column = result[rows].copy_(bordered[positive[rows]])  # B_jp
        for position in range(others.shape[1]):  # to become B'_jp
            column -= coefficient[rows, position, None] * bordered[index[rows, position]]
        column.mul_(-2).div_(denominator[rows, None])
        column.masked_fill_(~negative[rows], 0.0)
    return result


def _solve_box(tensors: tuple[Tensor, ...], dual: Dual, everywhere: bool) -> Tensor:
    """:func:`_projected_gradient`; on a GPU as a CUDA graph, captured once for each shape.

    What stops early reads numbers from the device, which a graph cannot.
    """
    device = tensors[0].device
    if dual.solver == "exact" or dual.stop or not can_capture(device):
        return _projected_gradient(*tensors, dual=dual, everywhere=everywhere)[0]
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    return _captured_solver(shapes, dual, torch.cuda.current_stream(device))(*tensors)["weights"]


@functools.lru_cache(GRAPHS)
def _captured_solver(
    shapes: tuple[tuple[int, ...], ...], dual: Dual, stream: torch.cuda.Stream
) -> Captured:
    """The graph of all calls with tensors of these shapes, these numbers, and on this stream."""

    def solve(*tensors: Tensor) -> dict[str, Tensor]:
        return {"weights": _projected_gradient(*tensors, dual=dual)[0]}

    return Captured(solve, stream.device)


def _projected_gradient(
    points: Tensor,
    positive: Tensor,
    negative: Tensor,
    weights: Tensor,
    first: Tensor,
    excess: Tensor | None = None,
    *,
    dual: Dual,
    everywhere: bool = False,
) -> tuple[Tensor, int]:
    """Projected gradient descent on all box QPs at once: one (N, M) x (M, M) product per step.

    The default is FISTA (Beck and Teboulle 2009): the step of each anchor is 1 / lambda_max, and
    its momentum restarts when it points uphill (O'Donoghue and Candes 2015). ``first`` is the first
    number of the momentum's sequence. ``everywhere``: the anchors of all processes stop together.
    Returns the weights and the number of steps.
    """
    cost, ridge, exact = dual.cost, dual.ridge, dual.solver == "exact"

    def delta(a: Tensor, linear: float = 0.0) -> Tensor:
        """Delta a - linear, 0 outside the negatives."""
        product = _with_positive(a, positive) @ points
        product = product - product.gather(1, positive[:, None]) + ridge * a
        if excess is not None:  # (N, 1)
            product = product + excess * a.sum(1, keepdim=True)
        return torch.where(negative, product - linear if linear else product, 0.0)

    if dual.step_size is None:
        direction = negative.to(weights.dtype)
        largest = weights.new_ones(len(weights))
        for _ in range(30):
            direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp(
                min=1e-30
            )
            direction = delta(direction)
            largest = torch.linalg.vector_norm(direction, dim=1)
        # Power iteration converges from below.
        step = 1 / (1.1 * largest.clamp(min=ridge))[:, None]
    else:
        step = weights.new_full((len(weights), 1), dual.step_size)

    extrapolated, momentum = weights, first.expand(len(weights), 1)
    for count in range(1, 1 + (EXACT_STEPS if exact else dual.steps)):
        gradient = delta(extrapolated, 2.0)
        new_weights = (extrapolated - step * gradient).clamp(0, cost)
        update = new_weights - weights
        if dual.momentum == "restarted":
            uphill = (gradient * update).sum(1, keepdim=True) > 0
            momentum = torch.where(uphill, 1.0, momentum)
            next_momentum = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            factor = torch.where(uphill, 0.0, (momentum - 1) / next_momentum)
        elif dual.momentum == "nesterov":
            # b of b^2 = (1 - b) a^2 follows a (Nesterov 2004, scheme 2.2.19 without convexity).
            square = momentum.square()
            next_momentum = ((square.square() + 4 * square).sqrt() - square) / 2
            factor = momentum * (1 - momentum) / (square + next_momentum)
        else:
            next_momentum, factor = momentum, torch.zeros_like(momentum)
        extrapolated = new_weights + factor * update
        momentum = next_momentum
        change = (update / (weights + SMALL)).abs().sum() if dual.stop else None
        weights = new_weights
        if change is not None:
            both = torch.stack([change, negative.sum().to(change.dtype)])
            change, number = all_reduce_sum(both) if everywhere else both
            if change < dual.stop * number:
                return weights, count
        if exact and count % 50 == 0:
            # At the optimum a projected step of size 1 leaves the point unchanged.
            residual = weights - (weights - delta(weights, 2.0)).clamp(0, cost)
            gap = float(residual.abs().max())
            if gap <= EXACT_TOLERANCE * max(1.0, float(weights.max())):
                return weights, count
            if not math.isfinite(gap):
                break
    if exact:
        raise ArithmeticError(
            f"the exact solver did not converge in {EXACT_STEPS} steps; raise the ridge, or "
            f"give a finite cost"
        )
    return weights, dual.steps


def _with_positive(weights: Tensor, positive: Tensor) -> Tensor:
    """(N, M) dual variables, with minus their sum at each anchor's positive."""
    return weights.scatter_add(1, positive[:, None], -weights.sum(1, keepdim=True))
