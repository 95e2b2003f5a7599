"""The papers' losses with the numbers that they print, as changes of a configuration.

A number that a paper leaves open is an argument here, and is set in the tables of each domain.
"""

from typing import Any

from shared import Objective, Projection, Term, term
from shared.experiment.tables import Row
from shared.lazy import debiased_nce, distance_polarization, hard_nce, info_nce, max_margin

# Of cosines, in text and control, where no paper gives a temperature, tau+ or beta: they were
# fixed before any run.
NCE = term(info_nce, temperature=0.1)
DCL = term(debiased_nce, temperature=0.1, tau_plus=0.01)
HCL = term(hard_nce, temperature=0.1, tau_plus=0.01, beta=1.0)

ALPHA = 10.0  # printed by CLLR
NORMS = ("l21", "nuclear")
OVER_BATCH = ", norm over batch"  # ends the labels of rows whose alpha is divided by the batch size


def trained_with(
    loss: Term, *penalties: Term, projection: Projection | None = None, **others: Any
) -> dict[str, Any]:
    """The change to an objective; ``others`` are further changes."""
    return {"objective": Objective(loss, penalties, projection), **others}


def polarization(weight: float = 0.1, **numbers: Any) -> Term:
    """LMCL's penalty; lambda = 0.1, delta+ = 0.1 and delta- = 0.5 are printed."""
    return term(distance_polarization, weight=weight, lower=0.1, upper=0.5, **numbers)


def polarized_row(
    label: str, loss: Term, similarity: str, deviation: str, reduction: str = "anchor_sum"
) -> Row:
    """A row of LMCL; it measures the published row whose label is its own up to a comma."""
    changes = trained_with(loss, polarization(reduction=reduction), similarity=similarity)
    return Row(label, changes, label.partition(",")[0], deviation)


def low_rank(norm: str, alpha: float = ALPHA, **options: Any) -> Projection:
    """CLLR's projection; lambda = 0.1 and alpha = 10 are printed.

    A direction of mean square e and singular value s of L costs alpha s + e (1 - s^2)^2, and e when
    L drops it: L keeps it only where e > alpha / max(2 s - s^3) = 0.919 alpha. The l2,1 norm is no
    smaller than the nuclear norm.
    """
    return Projection(0.1, {"norm": norm, "alpha": alpha, **options})


def svm_margin(**numbers: Any) -> Term:
    """MMCL's loss; C = 100 and the ridge of 0.1 are printed, the width of the kernel is not."""
    return term(max_margin, **{"cost": 100.0, "ridge": 0.1, **numbers})
