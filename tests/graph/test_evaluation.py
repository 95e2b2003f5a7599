import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from graph import evaluation
from graph.data import ATLAS, load
from graph.encoder import Encoder
from graph.evaluation import COSTS, calibrate, embed, logistic_ten_fold, svm_ten_fold
from graph.tables import TABLE_4


def blobs(count: int, classes: int, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes with columns of different scale, as sum-pooled features are."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    features = rng.normal(size=(count, 6)) + distance * rng.normal(size=(classes, 6))[labels]
    return (features * 2.0 ** np.arange(6)).astype(np.float32), labels


def reference_protocol(
    features: np.ndarray, labels: np.ndarray, seed: int, *scalers: StandardScaler, of: Any = None
) -> tuple[list, list]:
    """The protocol as the words say it, with scikit-learn's own search; of some folds alone."""
    accuracies, costs = [], []
    folds = StratifiedKFold(n_splits=10, shuffle=True, random_state=seed)
    for number, (train, test) in enumerate(folds.split(features, labels)):
        if of is not None and number not in of:
            continue  # a search takes a while
        machine = make_pipeline(*scalers, SVC(kernel="rbf", gamma="scale"))
        grid = {"svc__C": [0.001, 0.01, 0.1, 1, 10, 100, 1000]}
        search = GridSearchCV(machine, grid, cv=5, scoring="accuracy")
        search.fit(features[train], labels[train])
        predicted = search.best_estimator_.predict(features[test])
        accuracies.append(100 * float((predicted == labels[test]).mean()))
        costs.append(float(search.best_params_["svc__C"]))
    return accuracies, costs


def test_protocol_is_the_nested_search():
    features, labels = blobs(90, 2, 0.7)
    accuracies, costs = reference_protocol(features, labels, 0)
    found = svm_ten_fold(features, labels, 0)
    assert found["fold_accuracies"] == pytest.approx(accuracies, abs=1e-12)
    assert found["fold_costs"] == costs
    assert found["accuracy"] == pytest.approx(sum(accuracies) / 10)
    assert found["protocol"] == "svm-10fold-nested-v1"
    assert len(set(costs)) > 1  # the choice of C is put to the test


@pytest.mark.slow
def test_any_number_of_workers_scores_alike(monkeypatch):
    features, labels = blobs(90, 2, 0.7)
    alone = svm_ten_fold(features, labels, 3, workers=1)
    monkeypatch.setattr(evaluation, "PARALLEL_FROM", 0)
    assert svm_ten_fold(features, labels, 3, workers=2) == alone


def test_constant_features_give_the_share_of_the_larger_class():
    labels = np.repeat([0, 1], [40, 60])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = svm_ten_fold(np.ones((100, 3)), labels, 0)
    assert found["accuracy"] == pytest.approx(60)
    assert found["fold_costs"] == [COSTS[0]] * 10


def counted(*counts: int) -> np.ndarray:
    """Labels of classes with these numbers of members."""
    return np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        (counted(5, 4), "9 graphs"),
        (counted(8, 8), "8 graphs"),
        (counted(30), "class 0"),
        (counted(29, 1), "class 1 has 1 of 30"),
        (counted(28, 2), "class 1 has 2 of 30"),
        (counted(15, 15) - 1, "graph 0 has no label"),
        (counted(15, 15) / 1, "float64"),
        (counted(15, 14, 2), r"\(31,\)"),
    ],
)
def test_labels_that_ten_folds_cannot_score_are_refused(labels, fault):
    features = np.random.default_rng(0).normal(size=(min(len(labels), 30), 2))
    for protocol in (svm_ten_fold, logistic_ten_fold):
        with pytest.raises(ValueError, match=fault):
            protocol(features, labels, 0)


def test_a_class_of_three_is_scored_and_said_to_be_rare():
    features = np.random.default_rng(0).normal(size=(33, 2))
    with pytest.warns(RuntimeWarning, match=r"1 \(3\)$") as seen:
        found = svm_ten_fold(features, counted(30, 3), 0)
    assert len(seen) == 1
    assert found["fold_accuracies"] == reference_protocol(features, counted(30, 3), 0)[0]


def test_features_that_are_not_finite_are_named():
    features, labels = blobs(40, 2, 1.0)
    features[7, 2] = np.nan
    with pytest.raises(ValueError, match="feature 2 of graph 7 is nan"):
        svm_ten_fold(features, labels, 0)


def test_embedding_is_that_of_evaluation_mode_and_leaves_the_encoder_alone():
    graphs = load(ATLAS, Path("nowhere"))
    torch.manual_seed(0)
    encoder = Encoder(1)
    encoder(graphs.x, graphs.edge_index, graphs.batch, graphs.num_graphs)  # moves the averages
    before = {key: value.clone() for key, value in encoder.state_dict().items()}

    found = embed(encoder, graphs, batch_size=50)
    assert encoder.training
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    with torch.no_grad():
        expected = encoder.eval()(graphs.x, graphs.edge_index, graphs.batch, graphs.num_graphs)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(embed(encoder, graphs, batch_size=50), found)
    assert not encoder.training


@pytest.mark.cuda
def test_embedding_moves_graphs_to_the_encoder():
    graphs = load(ATLAS, Path("nowhere"))
    encoder = Encoder(1)
    expected = embed(encoder, graphs)
    np.testing.assert_allclose(embed(encoder.to("cuda"), graphs), expected, rtol=1e-3, atol=1e-3)


def test_standardised_metric_is_a_pipeline_of_scikit_learn() -> None:
    """The scaler is fitted on each training part alone, those of the search for C included."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 2
    features = rng.normal(size=(90, 5)) + 0.8 * labels[:, None]
    features[:, 0] *= 1e2  # rules the kernel where it is not standardised
    features[:, 1] = 3.0  # constant
    features[:, 3] *= 1e-3
    features[7, 2] = 1e3  # is in one test part alone, whose training part it must not scale
    found = svm_ten_fold(features, labels, 0, standardise=True)
    folds = StratifiedKFold(10, shuffle=True, random_state=0).split(features, labels)
    chosen = [number for number, (_, test) in enumerate(folds) if number < 2 or 7 in test]
    expected, costs = reference_protocol(features, labels, 0, StandardScaler(), of=chosen)
    assert [found["fold_accuracies"][fold] for fold in chosen] == pytest.approx(expected)
    assert [found["fold_costs"][fold] for fold in chosen] == costs
    both = evaluation.score(TABLE_4.protocol, features, labels, 5)
    alone = svm_ten_fold(features, labels, 5, standardise=True)
    assert both["accuracy_standardised"] == alone["accuracy"]
    assert alone["accuracy"] != found["accuracy"]  # other folds
    assert both["accuracy"] < found["accuracy"] - 5


def test_calibration_leaves_mode_and_momentum_and_no_trace_of_earlier_averages() -> None:
    """Which these are, a plain program says; here, that nothing else changes."""
    graphs = load(ATLAS, Path("nowhere"))
    torch.manual_seed(0)
    encoder = Encoder(graphs.x.shape[1]).eval()
    calibrate(encoder, graphs, batch_size=20)
    assert not any(module.training for module in encoder.modules())
    assert encoder.norms[0].momentum == 0.1
    after = embed(encoder, graphs)
    encoder.train()(graphs.x, graphs.edge_index, graphs.batch, graphs.num_graphs)
    calibrate(encoder, graphs, batch_size=20)  # whatever the averages were
    np.testing.assert_allclose(embed(encoder, graphs), after, rtol=1e-5)
