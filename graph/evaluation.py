"""Evaluation of graph embeddings, named and versioned.

``svm-10fold-nested-v1``: embeddings of unaugmented graphs, with the encoder in evaluation mode; ten
stratified, shuffled folds; on each training part a support vector machine (RBF kernel, gamma
``scale``) whose C is chosen by a stratified five-fold search on that part alone; accuracy on the
test fold, averaged over the folds. Features are not scaled. This is GraphCL's evaluation, except
that its authors draw the folds from the random state after pretraining; here they have a seed.

Without scaling, a few features of large variance dominate the kernel: the second metric,
``accuracy_standardised``, is the same with features standardised on each training part.

``logistic-10fold-nested-v1``, additional: the same folds and search for an L2-regularised logistic
regression on standardised features. Its memory is linear in the number of graphs, that of a kernel
matrix quadratic: 80 GB for 100,000 graphs.

Shapes: G graphs, D embedding dimensions.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn import config_context
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from graph.data import Graphs, batches, check
from shared import logistic
from shared.errors import suggestion
from shared.modes import evaluating
from shared.notices import notice

PROTOCOL = "svm-10fold-nested-v1"
LOGISTIC = "logistic-10fold-nested-v1"
LARGEST_KERNEL = 30_000  # graphs; 8 bytes times their square are 7 GB, and a fold holds two of them
STANDARDISED = "accuracy_standardised"
COSTS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
PARALLEL_FROM = 2500  # graphs; for fewer, starting processes takes longer than the folds


def embed(encoder: torch.nn.Module, graphs: Graphs, batch_size: int = 128) -> np.ndarray:
    """Embeddings (G, D) of unaugmented graphs, by the encoder in evaluation mode.

    The graphs may be on another device than the encoder, in another precision. The encoder's mode
    is restored.

    Raises:
        ValueError: graphs that :func:`graph.data.check` refuses, or of another width than the
            encoder takes; a network without ``dim``, such as one of ``torch_geometric.nn``.
    """
    check(graphs)
    width, takes = graphs.x.shape[1], getattr(encoder, "features", None)
    if takes not in (None, width):
        raise ValueError(f"graphs have {width} node features, the encoder takes {takes}")
    if not hasattr(encoder, "dim"):
        raise ValueError(
            f"{type(encoder).__name__} is no encoder of graphs, which has dim and the signature of "
            f"graph.Encoder; of a network with a row for each node graph.Pooled(network, {width}, "
            f"'sum') makes one"
        )
    weight = next(encoder.parameters())
    embeddings = []
    with torch.inference_mode(), evaluating(encoder):
        for batch in batches(graphs, batch_size):
            batch = batch.to(weight.device)
            x = batch.x.to(weight.dtype)
            embeddings.append(encoder(x, batch.edge_index, batch.batch, batch.num_graphs))
    return torch.cat(embeddings).cpu().numpy()


def sizes(graphs: Graphs) -> np.ndarray:
    """Features without structure (G, F + 2): numbers of nodes and edges, and sums of node features.

    Sums of one-hot labels are counts. A trivial baseline, which an encoder has to beat.
    """
    count = graphs.num_graphs
    nodes = torch.bincount(graphs.batch, minlength=count)
    edges = torch.bincount(graphs.batch[graphs.edge_index[0]], minlength=count) / 2
    sums = torch.zeros(count, graphs.x.shape[1], dtype=torch.float64)
    sums.index_add_(0, graphs.batch, graphs.x.double())
    return torch.cat((torch.stack((nodes, edges), 1).double(), sums), 1).numpy()


def calibrate(encoder: torch.nn.Module, graphs: Graphs, batch_size: int = 128) -> None:
    """Give the encoder's batch norms the mean statistics of all batches, in place.

    At initialisation batch norms are the identity, which they never are after training.
    """
    device = next(encoder.parameters()).device
    norms = [module for module in encoder.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
    with torch.inference_mode(), evaluating(encoder):  # which restores the modes at the end
        encoder.train()
        for batch in batches(graphs, batch_size):
            batch = batch.to(device)
            encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def svm_both(
    features: np.ndarray, labels: np.ndarray, fold_seed: int, workers: int = 1
) -> dict[str, Any]:
    """Both metrics: :func:`svm_ten_fold` on raw features, and ``accuracy_standardised``."""
    raw = svm_ten_fold(features, labels, fold_seed, workers)
    standardised = svm_ten_fold(features, labels, fold_seed, workers, standardise=True)
    return {**raw, STANDARDISED: standardised["accuracy"]}


def score(
    protocol: str, features: np.ndarray, labels: np.ndarray, fold_seed: int, workers: int = 1
) -> dict[str, Any]:
    """The metrics of a protocol (:data:`PROTOCOLS`) for features (G, D) and labels (G,)."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"no protocol {protocol!r}{suggestion(protocol, PROTOCOLS, 'there are')}")
    return PROTOCOLS[protocol](features, labels, fold_seed, workers)


def logistic_ten_fold(
    features: np.ndarray, labels: np.ndarray, fold_seed: int, workers: int = 1
) -> dict[str, Any]:
    """Ten-fold accuracy of logistic regression on features (G, D) for labels (G,).

    Keys of the result as those of :func:`svm_ten_fold`. Features are standardised on each outer
    training part; constant ones become 0.

    Args:
        features: embeddings, not standardised.
        labels: classes.
        fold_seed: determines the ten folds; the inner five follow from them.
        workers: not used; all regressions of a fold are solved together.

    Raises:
        ValueError: as :func:`svm_ten_fold`.
    """
    features, labels = np.asarray(features), np.asarray(labels)
    folds = ten_folds(features, labels, fold_seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    everything = torch.from_numpy(features).to(device, torch.float64)
    y = torch.from_numpy(labels).to(device)
    accuracies, costs = [], []
    for train, test in folds:
        inside = everything[train]
        spread = inside.std(0, unbiased=False)
        scale = torch.where(spread > 0, spread, torch.inf)
        centre = inside.mean(0)
        inside, outside = (inside - centre) / scale, (everything[test] - centre) / scale
        inner = _inner_folds(labels[train])
        member = np.ones((len(train), len(inner) + 1), dtype=bool)
        for column, (_, validate) in enumerate(inner):
            member[validate, column] = False
        solution = logistic.fit(inside, y[train], torch.from_numpy(member).to(device), COSTS)
        right = solution.predict(inside) == y[train]
        scores = [
            right[column, :, torch.from_numpy(validate).to(device)].double().mean(1)
            for column, (_, validate) in enumerate(inner)
        ]
        best = int(torch.stack(scores).mean(0).cpu().numpy().argmax())  # ties go to the smallest
        correct = solution.predict(outside)[-1, best] == y[test]
        accuracies.append(100 * float(correct.double().mean()))
        costs.append(COSTS[best])
    return {
        "protocol": LOGISTIC,
        "accuracy": float(np.mean(accuracies)),
        "fold_accuracies": accuracies,
        "fold_costs": costs,
    }


def svm_ten_fold(
    features: np.ndarray,
    labels: np.ndarray,
    fold_seed: int,
    workers: int = 1,
    *,
    standardise: bool = False,
) -> dict[str, Any]:
    """Ten-fold accuracy of features (G, D) for labels (G,), the same for any number of workers.

    Keys of the result: ``protocol``; ``accuracy``, the mean over the folds, in percent;
    ``fold_accuracies``, in percent; ``fold_costs``, the C chosen in each fold.

    Args:
        features: embeddings, not standardised.
        labels: classes.
        fold_seed: determines the ten folds; the inner five follow from them.
        workers: processes that share the ten folds of a large dataset.
        standardise: scale features to mean 0 and standard deviation 1 on every part that an SVM is
            fitted on; constant ones become 0.

    Raises:
        ValueError: a feature that is not finite, a graph without a label, fewer graphs or members
            of a class than ten folds with five inner ones need (the fold is named), or more graphs
            than a kernel matrix has room for.
    """
    features, labels = np.asarray(features), np.asarray(labels)
    folds = ten_folds(features, labels, fold_seed)
    if len(features) > LARGEST_KERNEL:
        raise ValueError(
            f"the kernel matrix of {len(features)} graphs has {8 * len(features) ** 2 / 1e9:.0f} "
            f"GB; set protocol to {LOGISTIC!r}"
        )
    features = features.astype(np.float64)
    score_fold = partial(_fold, features, labels, standardise)
    if workers == 1 or len(labels) < PARALLEL_FROM:
        results = [score_fold(fold) for fold in folds]
    else:
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(min(workers, len(folds)), mp_context=context) as pool:
            results = list(pool.map(score_fold, folds))
    accuracies = [100 * accuracy for accuracy, _ in results]
    return {
        "protocol": PROTOCOL,
        "accuracy": float(np.mean(accuracies)),
        "fold_accuracies": accuracies,
        "fold_costs": [cost for _, cost in results],
    }


PROTOCOLS: dict[str, Callable[[np.ndarray, np.ndarray, int, int], dict[str, Any]]] = {
    PROTOCOL: svm_both,
    LOGISTIC: logistic_ten_fold,
}


def ten_folds(
    features: np.ndarray, labels: np.ndarray, fold_seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ten folds, as indices of their training and test parts.

    A class in the test part of a fold has to be in its training part as well, for the ten folds and
    the inner five: three members suffice, two do not.
    """
    if features.ndim != 2 or labels.shape != (len(features),):
        raise ValueError(
            f"features of shape {features.shape} and labels of shape {labels.shape}; give (G, D) "
            f"and (G,)"
        )
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {labels.dtype}; number the classes from 0, as integers")
    if len(labels) < 10:
        raise ValueError(f"{len(labels)} graphs; ten folds need ten or more")
    if labels.min() < 0:
        raise ValueError(
            f"graph {int(np.argmax(labels < 0))} has no label (-1 is none); score labelled ones, "
            f"and number the classes from 0"
        )
    if not np.isfinite(features).all():
        graph, dimension = np.argwhere(~np.isfinite(features))[0]
        value = features[graph, dimension]
        raise ValueError(f"feature {dimension} of graph {graph} is {value}; cannot be classified")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) == 1:
        raise ValueError(f"all graphs are of class {classes[0]}; scores need at least two classes")
    if counts.max() < 10:
        raise ValueError(
            f"the largest class has {counts.max()} graphs; ten stratified folds need at least ten"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        folds = StratifiedKFold(10, shuffle=True, random_state=fold_seed)
        splits = list(folds.split(features, labels))
    for number, (train, test) in enumerate(splits, start=1):
        _check_learnable(f"fold {number} of ten", labels, train, test)
    for number, (train, _) in enumerate(splits, start=1):
        for inner, (fit, validate) in enumerate(_inner_folds(labels[train]), start=1):
            fold = f"inner fold {inner} of fold {number}"
            _check_learnable(fold, labels, train[fit], train[validate])
    if counts.min() < 10:
        rare = ", ".join(f"{k} ({n})" for k, n in zip(classes, counts, strict=True) if n < 10)
        notice(f"classes with fewer than ten graphs, absent from some test folds: {rare}")
    return splits


def _inner_folds(labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The five folds within a training part with these labels."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        return list(StratifiedKFold(5).split(labels, labels))


def _check_learnable(fold: str, labels: np.ndarray, fit: np.ndarray, test: np.ndarray) -> None:
    missing = np.setdiff1d(labels[test], labels[fit])
    if len(missing):
        count = int((labels == missing[0]).sum())
        raise ValueError(
            f"{fold} is impossible: class {missing[0]} has {count} of {len(labels)} graphs, none "
            f"of them in the training part; omit classes of one or two graphs"
        )


def _fold(
    features: np.ndarray,
    labels: np.ndarray,
    standardise: bool,
    fold: tuple[np.ndarray, np.ndarray],
) -> tuple[float, float]:
    """Test accuracy in [0, 1], and the C with the best inner accuracy (ties go to the smallest)."""
    train, test = fold
    # Sums in BLAS depend on the number of threads; the result must not.
    with threadpool_limits(1, user_api="blas"):
        inner = [
            _accuracies(features, labels, train[fit], train[validate], COSTS, standardise)
            for fit, validate in _inner_folds(labels[train])
        ]
        cost = COSTS[int(np.argmax(np.mean(inner, axis=0)))]
        return _accuracies(features, labels, train, test, (cost,), standardise)[0], cost


def _accuracies(
    features: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    costs: Sequence[float],
    standardise: bool,
) -> list[float]:
    """Accuracy on the test part for each C, all with one kernel matrix.

    The predictions are those of ``GridSearchCV`` over ``SVC()``, which recomputes the kernel for
    every C: on PROTEINS and DD a fold takes about half of its time, 0.44 to 0.53.
    """
    if standardise:
        spread = features[train].std(0)
        features = (features - features[train].mean(0)) / np.where(spread > 0, spread, 1.0)
    # scikit-learn's gamma="scale", which is 1 for constant features.
    variance = features[train].var()
    gamma = 1 / (features.shape[1] * variance) if variance else 1.0
    kernel = rbf_kernel(features[train], gamma=gamma)
    test_kernel = rbf_kernel(features[test], features[train], gamma=gamma)
    # On few graphs, checks of input that is known to be valid would take most of the time.
    with config_context(assume_finite=True, skip_parameter_validation=True):
        machines = (SVC(C=cost, kernel="precomputed").fit(kernel, labels[train]) for cost in costs)
        return [
            float((machine.predict(test_kernel) == labels[test]).mean()) for machine in machines
        ]
