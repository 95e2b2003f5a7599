"""How far the core is from reference implementations, for every loss, builder, penalty and dtype.

``python tests/numerics.py`` in the checkout writes docs/numerics.md and docs/numerics.csv; a test
computes them again and holds them against what is written.
"""

import csv
import io
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from shared import (  # noqa: E402
    Objective,
    Projection,
    Term,
    alignment,
    consistency,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
    max_margin,
    term,
)
from tests.core import test_distributed as distributed  # noqa: E402 (needs the line above)
from tests.stages import layouts, reference  # noqa: E402

SPEED = "\n## Speed\n"  # what follows on the page is not written here
PAGE, TABLE = ROOT / "docs/numerics.md", ROOT / "docs/numerics.csv"
DIM, SIZE = 3, 4
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
DERIVATIVES = ("value", "first", "second")
BUILDERS = ("two views", "query key bank", "context window", "local global", "same label")
BAND = {"lower": 0.1, "upper": 0.5}
LOOPS = "slow loops in float64"
BY_HAND = "derivatives by hand in slow loops"
DIFFERENCES = "differences of the first derivative"
ONE_PROCESS = "one process with the whole batch"
STEP = 1e-5  # of those differences, in float64
UNSTEADY = 30.0  # by how much another processor's rounding may exceed the written error


LOSSES: dict[str, Term] = {
    "info_nce": term(info_nce, temperature=0.5),
    "debiased_nce": term(debiased_nce, temperature=0.5, tau_plus=0.1),
    "hard_nce": term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0),
    "margin_nce": term(margin_nce, temperature=0.5, angular=0.3, subtractive=0.2),
    "max_margin": term(max_margin, gamma=0.5),
    "alignment": term(alignment),
}
PENALTIES: dict[str, dict[str, Any]] = {
    "none": {},
    "distance_polarization": {
        "penalties": (term(distance_polarization, weight=0.3, **BAND),),
    },
    "consistency": {"penalties": (term(consistency, weight=0.3, temperature=0.5),)},
    "low rank, l2,1": {"projection": Projection(0.2, {"norm": "l21", "alpha": 0.5})},
    "low rank, nuclear": {"projection": Projection(0.2, {"norm": "nuclear", "alpha": 0.5})},
}
# Not the identity, whose equal singular values have no second derivative in the twin.
MATRIX = torch.tensor([[1.0, 0.2, 0.0], [0.1, 0.7, 0.3], [0.0, -0.2, 0.4]], dtype=torch.float64)


@dataclass(frozen=True)
class Error:
    """The largest error of one combination, relative to the largest number where that exceeds 1.

    The fields are the columns of docs/numerics.csv.
    """

    loss: str
    builder: str
    penalty: str
    dtype: str
    processes: int
    derivative: str
    error: float
    against: str


def errors() -> Iterator[Error]:
    """Those of every combination on one process, then those of losses on several."""
    for loss in LOSSES:
        for builder in BUILDERS:
            for penalty in PENALTIES:
                for dtype in DTYPES:
                    yield from errors_of(loss, builder, penalty, dtype)
    with tempfile.TemporaryDirectory() as folder:
        distributed.leave_results(Path(folder))
        yield from errors_on_processes(Path(folder))


def errors_of(loss: str, builder: str, penalty: str, dtype: str) -> Iterator[Error]:
    """Those of one combination on one process, by derivative."""
    case = layouts.make(builder, SIZE, DIM, seed=2)
    inputs = [leaf.to(DTYPES[dtype]) for leaf in case.leaves]
    objective = Objective(LOSSES[loss], **PENALTIES[penalty])

    def value_of(leaves: list[Tensor], kind: torch.dtype) -> Tensor:
        criterion = objective.build(DIM)
        if criterion.projection is not None:
            criterion.projection.to(kind).matrix.data.copy_(MATRIX)
        value, _ = criterion(case.pairs(leaves))
        return value

    by_hand = loss in reference.DIFFERENTIATED_BY_HAND
    leaves = [leaf.clone().requires_grad_() for leaf in inputs]
    exact = [leaf.double().requires_grad_() for leaf in inputs]
    value = value_of(leaves, torch.float64 if dtype == "float64" else torch.float32)
    computed = _by_derivative(layouts.differentiated(value, leaves, 2), len(leaves))
    value = layouts.objective_of_loops(objective, case.layout(exact), MATRIX)
    orders = 1 if by_hand else 2
    expected = _by_derivative(layouts.differentiated(value, exact, orders), len(leaves))
    against = [LOOPS, LOOPS, LOOPS]
    if by_hand:
        expected[2] = _differences(lambda leaves: value_of(leaves, torch.float64), exact)
        against[1:] = [BY_HAND, DIFFERENCES]
    for derivative, *pair, how in zip(DERIVATIVES, computed, expected, against, strict=True):
        yield Error(loss, builder, penalty, dtype, 1, derivative, _error(*pair), how)


def _by_derivative(tensors: Sequence[Tensor], leaves: int) -> list[Tensor]:
    """The value, its gradient, and its Hessian along a fixed direction, each as one vector."""
    return [_flat(part) for part in (tensors[:1], tensors[1 : 1 + leaves], tensors[1 + leaves :])]


def _differences(function: Callable[[list[Tensor]], Tensor], leaves: list[Tensor]) -> Tensor:
    """The Hessian along the same direction, by differences of the gradient."""
    sides = []
    for sign in (1, -1):
        moved = [
            (leaf.detach() + sign * STEP * direction).requires_grad_()
            for leaf, direction in zip(leaves, layouts.directions(leaves), strict=True)
        ]
        sides.append(_flat(torch.autograd.grad(function(moved), moved)))
    return (sides[0] - sides[1]) / (2 * STEP)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0), *(t.detach().double().flatten() for t in tensors)])


def _error(computed: Tensor, expected: Tensor) -> float:
    return float((computed - expected).abs().max() / max(1.0, float(expected.abs().max())))


def errors_on_processes(folder: Path) -> Iterator[Error]:
    """What 1, 2 and 4 processes have left of a batch beside one process that holds it all."""
    for world in distributed.WORLDS:
        results = [
            torch.load(folder / f"{world}-{rank}.pt", weights_only=True) for rank in range(world)
        ]
        largest: dict[tuple[str, str, str], float] = {}
        for names, expected in distributed.expected().items():
            _, loss, penalty, projection = names
            if loss == "random start":  # each process draws its own start
                continue
            computed = distributed.together([result[names] for result in results])
            added = "none" if (penalty, projection) == ("none", "none") else "penalties"
            for derivative, name in (("value", "loss"), ("first", "views")):
                key = loss, added, derivative
                error = _error(_flat([computed[name]]), _flat([expected[name]]))
                largest[key] = max(error, largest.get(key, 0.0))
        for (loss, added, derivative), error in largest.items():
            yield Error(loss, "all", added, "float64", world, derivative, error, ONE_PROCESS)


def table(all_errors: list[Error]) -> str:
    """All of them as CSV, errors with one digit."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(Error.__dataclass_fields__)
    for error in all_errors:
        writer.writerow({**vars(error), "error": f"{error.error:.0e}"}.values())
    return stream.getvalue()


def page(all_errors: list[Error]) -> str:
    """The largest errors by loss, as Markdown."""
    on_one = [error for error in all_errors if error.against != ONE_PROCESS]
    lines = [
        "# Numerics and speed",
        "",
        "Value, gradient, and Hessian along a direction are compared with reference",
        f"implementations for every combination of {len(LOSSES)} losses, {len(BUILDERS)} builders",
        f"of pairs, {len(PENALTIES)} penalties and {len(DTYPES)} dtypes. The table shows",
        "the largest absolute error, divided by the largest entry where that exceeds 1;",
        "`docs/numerics.csv` has each combination. `python tests/numerics.py` writes both; tests",
        f"allow {UNSTEADY:.0f} times these errors, since the last bits differ between processors.",
        "",
        f"The references are {LOOPS}, differentiated by torch. For",
        f"{' and '.join(reference.DIFFERENTIATED_BY_HAND)} the first derivative is compared with",
        f"{BY_HAND}, the second with {DIFFERENCES}",
        "(off by up to 1e-8). Gradients of inputs in bfloat16 are rounded to its resolution, 4e-3.",
        "",
    ]
    lines += ["## By loss", ""]
    columns = " | ".join(f"{dtype}, {d}" for dtype in DTYPES for d in DERIVATIVES)
    lines += [f"| loss | {columns} |", "|---|" + "---|" * len(DTYPES) * len(DERIVATIVES)]
    for loss in LOSSES:
        cells = [
            _largest(on_one, loss=loss, dtype=dtype, derivative=derivative)
            for dtype in DTYPES
            for derivative in DERIVATIVES
        ]
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    on_several = [error for error in all_errors if error.against == ONE_PROCESS]
    exact = [error for error in on_several if error.loss == "exact"]
    others = [error for error in on_several if error.loss != "exact"]
    lines += [
        "",
        f"In float64, value and gradient on two and four processes agree with {ONE_PROCESS}",
        f"to {_largest(others)}, with the exact solver of max_margin to {_largest(exact)}.",
    ]
    return "\n".join(lines) + "\n"


def _largest(all_errors: list[Error], **fields: Any) -> str:
    """The largest of the errors with these values of their fields, with one digit."""
    chosen = [error.error for error in all_errors if fields.items() <= vars(error).items()]
    if not chosen:
        return "–"  # noqa: RUF001 (an en dash is meant)
    largest = max(chosen)
    assert math.isfinite(largest), fields
    return "0" if largest == 0 else f"{largest:.0e}"


if __name__ == "__main__":
    computed = list(errors())
    TABLE.write_text(table(computed), encoding="utf-8")
    _, speed, rest = PAGE.read_text(encoding="utf-8").partition(SPEED)
    PAGE.write_text(page(computed) + speed + rest, encoding="utf-8")
    print(f"{len(computed)} combinations written to {PAGE} and {TABLE}")
