import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from shared import logistic
from shared.logistic import Solution, fit

COSTS = [2.0**power for power in (-2, 0, 3, 8)]


def clouds(
    rows: int, features: int, classes: int, distance: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Overlapping classes, columns of very different scale, two of them equal, one constant."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) % classes)
    points = rng.normal(size=(rows, features))
    points += distance * rng.normal(size=(classes, features))[labels] / np.sqrt(features)
    points *= np.logspace(0.5, -1.5, features)
    points[:, 0] += 3
    points[:, 1] = points[:, 0]
    points[:, 2] = 1.5
    return torch.tensor(points), torch.tensor(labels)


def folds(rows: int, count: int = 3) -> Tensor:
    """All but every count-th row, for each remainder, and at last everything."""
    remainder = torch.arange(rows)[:, None] % count
    return torch.cat([remainder != torch.arange(count), torch.ones(rows, 1, dtype=torch.bool)], 1)


def objective(
    features: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    intercepts: np.ndarray,
    cost: float,
) -> float:
    """In float64, as scikit-learn's documentation has it; weights (d, K), intercepts (K,)."""
    scores = features.astype(np.float64) @ weights + intercepts
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], 1)
    losses = -log_softmax(scores, axis=1)[np.arange(len(labels)), labels]
    return cost * float(losses.sum()) + float((weights.astype(np.float64) ** 2).sum()) / 2


def reference(features: np.ndarray, labels: np.ndarray, cost: float) -> LogisticRegression:
    # scikit-learn's L-BFGS takes thousands of steps over columns of very different scale.
    model = LogisticRegression(C=cost, tol=1e-8, max_iter=1000, solver="newton-cholesky")
    with threadpool_limits(1):
        return model.fit(features.astype(np.float64), labels)


def compare(
    features: Tensor, labels: Tensor, training: Tensor, costs: Sequence[float], solution: Solution
) -> list[float]:
    """Shares of predictions of all rows that differ, after the objectives were found equal."""
    x, y = features.numpy(), labels.numpy()
    predicted = solution.predict(features).numpy()
    differences = []
    for fold, inside in enumerate(training.T.numpy()):
        for place, cost in enumerate(costs):
            model = reference(x[inside], y[inside], cost)
            best = objective(
                x[inside],
                y[inside],
                model.coef_.T[:, : 1 if y.max() == 1 else None],
                model.intercept_,
                cost,
            )
            ours = objective(
                x[inside],
                y[inside],
                solution.weights[fold, place].numpy(),
                solution.intercepts[fold, place].numpy(),
                cost,
            )
            assert ours == pytest.approx(best, rel=1e-5)
            assert solution.objective[fold, place].item() == pytest.approx(ours, rel=2e-5)
            differences.append(float((model.predict(x) != predicted[fold, place]).mean()))
    return differences


def test_two_classes_take_few_steps() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 2
    points = torch.randn(600, 80, generator=generator) + 0.4 * labels[:, None]
    everything = torch.ones(600, 1, dtype=torch.bool)
    costs = [2.0**power for power in range(-2, 7)]
    solution = fit(points, labels, everything, costs)
    assert solution.iterations < 80
    compare(points, labels, everything, costs, solution)
    # Wider than long, at costs far apart: the start at each is extrapolated from those before.
    x, y = clouds(60, 100, 2)
    assert fit(x, y, folds(60), COSTS).iterations < 125


@pytest.mark.parametrize(
    ("rows", "features", "classes", "dtype"),
    [
        (150, 12, 2, torch.float32),
        (60, 100, 2, torch.float64),
        (150, 10, 4, torch.float64),
        (60, 90, 3, torch.float32),
    ],
)
def test_agrees_with_scikit_learn(rows: int, features: int, classes: int, dtype: torch.dtype):
    x, y = clouds(rows, features, classes)
    training = folds(rows)
    # What float32 can reach for costs and columns as different as these.
    solution = fit(x.to(dtype), y, training, COSTS, tolerance=1e-6)
    columns = 1 if classes == 2 else classes
    assert solution.weights.shape == (4, 4, features, columns)
    assert solution.intercepts.shape == (4, 4, columns)
    assert solution.weights.dtype == dtype
    assert max(compare(x, y, training, COSTS, solution)) <= 0.02
    # Equal columns share their weight, and a constant one has none.
    atol = 1e-3 if dtype == torch.float32 else 1e-4
    torch.testing.assert_close(
        solution.weights[:, :, 0], solution.weights[:, :, 1], atol=atol, rtol=1e-3
    )
    assert solution.weights[:, :, 2].abs().max() < 1e-4


@pytest.mark.parametrize("classes", [2, 3])
def test_separable_classes(classes: int):
    x, y = clouds(90, 8, classes, distance=20.0)
    training = folds(90)
    solution = fit(x.float(), y, training, COSTS, tolerance=1e-6)
    assert max(compare(x, y, training, COSTS, solution)) == 0
    assert (solution.predict(x) == y).all()


def test_same_bits_again_and_the_same_up_to_rounding_with_two_threads():
    x, y = clouds(120, 20, 3)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 1, 2, 2):
        torch.set_num_threads(count)
        results.append(fit(x.float(), y, folds(120), [1.0], tolerance=1e-6))
    torch.set_num_threads(threads)
    for one, two in (results[:2], results[2:]):
        assert torch.equal(one.weights, two.weights)
        assert torch.equal(one.objective, two.objective)
    torch.testing.assert_close(results[0].objective, results[2].objective, rtol=1e-6, atol=0)


def test_a_class_that_a_training_set_lacks_is_never_predicted():
    x, y = clouds(90, 6, 3)
    training = torch.stack([y != 1, torch.ones(90, dtype=torch.bool)], 1)
    solution = fit(x, y, training, [1.0, 4.0])
    assert (solution.intercepts[0, :, 1] == -torch.inf).all()
    assert solution.weights[0, :, :, 1].abs().max() == 0
    assert solution.predict(x)[0].unique().tolist() == [0, 2]
    assert solution.predict(x)[1].unique().tolist() == [0, 1, 2]
    kept = y != 1
    two = fit(x[kept], y[kept] // 2, training[kept][:, :1], [2.0, 8.0])
    # Two columns of half the weight each: a quarter of the penalty twice, so twice the cost.
    halves = solution.weights[0, :, :, 2]
    torch.testing.assert_close(2 * halves, two.weights[0, :, :, 0], rtol=2e-2, atol=2e-3)


def test_prediction_in_blocks(monkeypatch: pytest.MonkeyPatch):
    x, y = clouds(80, 9, 3)
    solution = fit(x, y, folds(80), COSTS)
    whole = solution.predict(x)
    scores = torch.einsum("nd,fcdk->fcnk", x, solution.weights)
    assert torch.equal(whole, (scores + solution.intercepts[:, :, None]).argmax(3))
    monkeypatch.setattr(logistic, "LARGEST_BLOCK", 1)
    assert torch.equal(solution.predict(x), whole)


def test_few_iterations_warn():
    x, y = clouds(80, 9, 2)
    with pytest.warns(RuntimeWarning, match="16 of 16 .* max_iterations"):
        solution = fit(x, y, folds(80), COSTS, max_iterations=1)
    assert solution.iterations == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(x, y, folds(80), COSTS).iterations > 8


def test_a_tolerance_out_of_reach_of_single_precision_is_told_with_the_remedies():
    x, y = clouds(300, 6, 3)
    x, everything = 30 * x.float(), torch.ones(300, 1, dtype=torch.bool)
    with pytest.warns(RuntimeWarning, match="within 1e-08 .* tolerance .* float64"):
        coarse = fit(x, y, everything, [256.0], max_iterations=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        looser = fit(x, y, everything, [256.0], tolerance=1e-4)
        double = fit(x.double(), y, everything, [256.0])
    assert max(looser.iterations, double.iterations) < 100
    for solution in (coarse, looser):
        torch.testing.assert_close(solution.objective, double.objective, rtol=1e-4, atol=0)


def test_a_hessian_that_is_singular_to_single_precision_is_done_without():
    x, y = clouds(300, 6, 3)
    everything = torch.ones(300, 1, dtype=torch.bool)
    found = fit((30 * x).float(), y, everything, [1e4], tolerance=1e-6)
    expected = fit(30 * x, y, everything, [1e4])
    torch.testing.assert_close(found.objective, expected.objective, rtol=1e-6, atol=0)


def test_wrong_arguments():
    x, y = clouds(30, 4, 2)
    training = folds(30)
    broken, single = x.clone(), training.clone()
    broken[7, 3] = float("nan")
    single[:, 2] &= y == 1
    for arguments, word in (((broken, y, training), "row 7 is nan"), ((x, y, single), "set 2")):
        with pytest.raises(ValueError, match=word):
            fit(*arguments, [1.0])


@pytest.mark.cuda
def test_same_on_a_gpu():
    x, y = clouds(200, 30, 3)
    training = folds(200)
    here = fit(x, y, training, COSTS, tolerance=1e-14)
    there = fit(x.cuda(), y.cuda(), training.cuda(), COSTS, tolerance=1e-14)
    torch.testing.assert_close(there.weights.cpu(), here.weights, rtol=1e-5, atol=1e-6)
