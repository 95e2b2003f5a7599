import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

from graph import evaluation
from graph.data import ATLAS, load
from graph.encoder import Encoder
from graph.evaluation import COSTS, embed, svm_ten_fold


def blobs(count: int, classes: int, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes with columns of different scale, as sum-pooled features are."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    features = rng.normal(size=(count, 6)) + distance * rng.normal(size=(classes, 6))[labels]
    return (features * 2.0 ** np.arange(6)).astype(np.float32), labels


def protocol_twin(features: np.ndarray, labels: np.ndarray, seed: int) -> tuple[list, list]:
    """The protocol as the words say it, with scikit-learn's own search."""
    accuracies, costs = [], []
    folds = StratifiedKFold(n_splits=10, shuffle=True, random_state=seed)
    for train, test in folds.split(features, labels):
        search = GridSearchCV(
            SVC(kernel="rbf", gamma="scale"),
            {"C": [0.001, 0.01, 0.1, 1, 10, 100, 1000]},
            cv=5,
            scoring="accuracy",
        )
        search.fit(features[train], labels[train])
        predicted = search.best_estimator_.predict(features[test])
        accuracies.append(100 * float((predicted == labels[test]).mean()))
        costs.append(float(search.best_params_["C"]))
    return accuracies, costs


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("count", "classes", "distance"), [(90, 2, 0.7), (150, 3, 0.9)])
def test_protocol_is_the_nested_search(count: int, classes: int, distance: float, seed: int):
    features, labels = blobs(count, classes, distance)
    accuracies, costs = protocol_twin(features, labels, seed)
    found = svm_ten_fold(features, labels, seed)
    assert found["fold_accuracies"] == pytest.approx(accuracies, abs=1e-12)
    assert found["fold_costs"] == costs
    assert found["accuracy"] == pytest.approx(sum(accuracies) / 10)
    assert found["protocol"] == "svm-10fold-nested-v1"
    assert len(set(costs)) > 1  # the choice of C is put to the test


@pytest.mark.slow
def test_protocol_on_embedded_graphs_and_any_number_of_workers(monkeypatch):
    graphs = load(ATLAS, Path("nowhere"))
    torch.manual_seed(0)
    features, labels = embed(Encoder(1), graphs), graphs.y.numpy()
    alone = svm_ten_fold(features, labels, 3, workers=1)
    assert (alone["fold_accuracies"], alone["fold_costs"]) == protocol_twin(features, labels, 3)
    monkeypatch.setattr(evaluation, "PARALLEL_FROM", 0)
    assert svm_ten_fold(features, labels, 3, workers=2) == alone
    assert 50 < alone["accuracy"] < 95


def test_fold_seed_decides_the_folds():
    features, labels = blobs(90, 2, 0.7)
    first, again, other = (svm_ten_fold(features, labels, seed) for seed in (0, 0, 1))
    assert first == again
    assert first["fold_accuracies"] != other["fold_accuracies"]


def test_noise_is_not_predicted():
    rng = np.random.default_rng(1)
    found = svm_ten_fold(rng.normal(size=(300, 4)), np.arange(300) % 2, 0)
    assert 35 < found["accuracy"] < 65


def test_constant_features_give_the_share_of_the_larger_class():
    labels = np.repeat([0, 1], [40, 60])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = svm_ten_fold(np.ones((100, 3)), labels, 0)
    assert found["accuracy"] == pytest.approx(60)
    assert found["fold_costs"] == [COSTS[0]] * 10


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_named(value: float):
    features, labels = blobs(40, 2, 1.0)
    features[7, 2] = value
    with pytest.raises(ValueError, match=f"feature 2 of graph 7 is {value}"):
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


def test_embedding_of_a_graph_does_not_depend_on_its_batch():
    graphs = load(ATLAS, Path("nowhere"))
    encoder = Encoder(1).eval()
    alone, together = (embed(encoder, graphs, batch_size=size) for size in (1, 128))
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
def test_embedding_moves_graphs_to_the_encoder():
    graphs = load(ATLAS, Path("nowhere"))
    encoder = Encoder(1)
    expected = embed(encoder, graphs)
    np.testing.assert_allclose(embed(encoder.to("cuda"), graphs), expected, rtol=1e-3, atol=1e-3)
