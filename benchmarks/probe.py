"""Time of the L2-regularised probe beside scikit-learn's, at equal accuracy of the minimum.

Run it as ``python benchmarks/probe.py``, with nothing else running; a minute on one core.

Both solve the same problems in single precision: one training set of 4000 x 128 features in ten
classes at four costs, and its ten folds; features of one scale, and of scales that span two
decades. The excess of an objective is its share above a minimum that scikit-learn finds in double
precision. scikit-learn gets the loosest tolerance whose largest excess is no larger than ours, else
the tightest; it starts each cost from the solution of the one before, as ours does.
"""

import argparse
import itertools
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import logistic

ROWS, WIDTH, CLASSES = 4000, 128, 10
COSTS = (0.01, 0.1, 1.0, 10.0)
TOLERANCES = [10.0**-power for power in range(1, 9)]
MOST = 100_000  # steps, which none takes


def problem(decades: float) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d) of overlapping classes, whose scales span so many decades; labels (n,)."""
    random = np.random.default_rng(0)
    labels = np.arange(ROWS) % CLASSES
    centres = random.normal(size=(CLASSES, WIDTH))
    features = (centres[labels] + 3 * random.normal(size=(ROWS, WIDTH))) / 3
    return (features * np.logspace(-decades / 2, decades / 2, WIDTH)).astype(np.float32), labels


def theirs(
    features: np.ndarray, labels: np.ndarray, training: np.ndarray, tolerance: float
) -> np.ndarray:
    """scikit-learn's objectives (F, C)."""
    objectives = []
    for rows in training.T:
        model = LogisticRegression(tol=tolerance, max_iter=MOST, warm_start=True)
        for cost in COSTS:
            model.set_params(C=cost).fit(features[rows], labels[rows])
            scores = model.decision_function(features[rows].astype(np.float64))
            chosen = scores[np.arange(len(scores)), labels[rows]]
            loss = np.logaddexp.reduce(scores, axis=1) - chosen
            objectives.append(cost * loss.sum() + (model.coef_.astype(np.float64) ** 2).sum() / 2)
    return np.reshape(objectives, (-1, len(COSTS)))


def compared(name: str, training: np.ndarray, decades: float, tolerance: float, turns: int) -> None:
    """Print a row of the table."""
    features, labels = problem(decades)
    tensors = torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(training)
    minimum = theirs(features.astype(np.float64), labels, training, 1e-10)

    def ours() -> np.ndarray:
        return logistic.fit(*tensors, COSTS, tolerance=tolerance).objective.numpy()

    excess = float((ours() / minimum - 1).max())
    for loose in TOLERANCES:
        reached = float((theirs(features, labels, training, loose) / minimum - 1).max())
        if reached <= max(excess, 0):
            break
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(turns):
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        theirs(features, labels, training, loose)
        seconds["ours"].append(middle - start)
        seconds["theirs"].append(time.perf_counter() - middle)
    our_median, their_median = (statistics.median(times) for times in seconds.values())
    cells = (
        name,
        f"{decades:g}",
        f"{tolerance:.0e}",
        f"{our_median:.2f} s ({excess:.1e})",
        f"{their_median:.2f} s ({reached:.1e}), tol={loose:.0e}",
        f"{our_median / their_median:.2f}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of tolerances that single precision cannot reach
    _, labels = problem(0)
    folds = np.ones((ROWS, 10), bool)
    split = StratifiedKFold(10, shuffle=True, random_state=0).split(labels, labels)
    for fold, (_, held_out) in enumerate(split):
        folds[held_out, fold] = False
    print("| sets | decades | tolerance | this suite (excess) | scikit-learn (excess) | ratio |")
    print("|---|---|---|---|---|---|")
    for decades, tolerance in itertools.product((0, 2), (1e-4, 1e-8)):
        compared("one", np.ones((ROWS, 1), bool), decades, tolerance, options.turns)
    compared("ten folds", folds, 0, 1e-4, options.turns)


if __name__ == "__main__":
    main()
