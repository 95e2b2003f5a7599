"""Evaluation of sentence vectors on classification tasks: protocols, named and versioned.

There are two kinds of task. Without a test part, ten outer folds are scored in turn, and the cost C
of a fold's logistic regression is chosen on ten inner folds of its training part alone (nested
cross-validation); the result is the mean of the ten accuracies. With a test part, C is chosen on
ten folds of the training part, and the classifier of the whole training part is scored on the test
part. A pair of sentences with vectors u and v has the features ``[|u - v| ; u * v]``. Ties go to
the first cost; features are not scaled.

``skip-thoughts-nested-10fold-v2``: the evaluation programs of Kiros et al. 2015, which
quick-thoughts (Logeswaran and Lee 2018) calls and the papers here follow. Single sentences are
shuffled once and folded in contiguous parts; pairs are folded in a random order and C maximises
their mean F1, not accuracy. Blank lines of a file (CR has four, MPQA three) are left out; in the
first version, ``skip-thoughts-nested-10fold-v1``, and in SentEval they are sentences as any other.

``senteval-v1``: the logistic regression (not the network) of Conneau and Kiela's SentEval 2018.
Folds are stratified, with its seed; each cost's mean accuracy in percent is rounded to two decimals
before the best is taken (results are not). SentEval sorts sentences by their number of words, then
by label, only to reduce padding; that decides who falls into which fold and therefore belongs to
the protocol. Its words of MSRP come from a tokeniser, here they are split at spaces: those folds,
which only choose C, are not identical.

``senteval-mlp-v1``: SentEval's other classifier, its default, with which most published tables were
made: the same folds; the same linear model, trained by Adam with early stopping on the fold that
then chooses its weight decay (:mod:`text.senteval`). Weight decays take the place of costs.

The logistic regressions of both programs used the liblinear of their time, which fits a classifier
for each class against the others and penalises the intercept. Here the model is binomial or
multinomial and the intercept is free, as in today's scikit-learn.

Shapes: n sentences (or pairs) of a task, d dimensions of a vector, F training sets, C costs.
"""

import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from threadpoolctl import threadpool_limits
from torch import Tensor

from shared import logistic
from shared.notices import Progress
from text import senteval
from text.config import TASKS
from text.data import Task, check_tasks, load_task

if TYPE_CHECKING:  # transformers takes seconds to import, which every process of tfidf would wait
    from text.encoder import Encode, HasEncode

# A classifier's training rows and validation rows; None for the classifier that is scored.
Training = tuple[np.ndarray, np.ndarray | None]
# From training sets and costs to the predictions (F, C, n) of their classifiers.
Predict = Callable[[Sequence[Training], Sequence[float]], np.ndarray]

# TREC's test part of 500 questions moves the mean of the six tasks more than any other.
WITHOUT_TREC = "mean_without_TREC"

SHUFFLE_SEED = 1234  # of Kiros et al.'s programs
DEFAULT_PROTOCOL = "skip-thoughts-nested-10fold-v2"

# One-letter words and punctuation marks are tokens: "I", "a", "?" and "!" help to classify.
TOKEN = r"(?u)\w+|[^\w\s]"
# Of the largest entry of the mean loss's gradient. Each cost starts at the solution of the one
# before: scikit-learn's 1e-4 would stop there. On a fold of MR, 1e-7 gives the same accuracies.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Search:
    """How the cost of a logistic regression is chosen."""

    # Of the rows before folding: as given, shuffled, or by number of words.
    order: Literal["given", "shuffled", "length"]
    folds: KFold | StratifiedKFold  # scikit-learn's splitter, for both inner and outer folds
    costs: tuple[float, ...]  # values of C, ascending
    # The metric whose mean over the inner folds is maximised.
    score: Literal["accuracy", "f1"] = "accuracy"
    decimals: int | None = None  # to which that mean, in percent, is rounded; None: not rounded
    # Whether the classifier is SentEval's network without a hidden layer, and ``costs`` are weight
    # decays.
    stopped_early: bool = False


@dataclass(frozen=True)
class Protocol:
    """One search for each kind of task."""

    nested: Search  # single sentences without a test part
    tested: Search  # single sentences with a test part
    pairs: Search  # pairs of sentences
    # Whether a blank line counts as a sentence in tasks on single sentences.
    blank_lines: bool = True

    def search(self, task: Task) -> Search:
        """The search for a task of this kind."""
        if task.second is not None:
            return self.pairs
        return self.nested if task.train == len(task.labels) else self.tested

    def load(self, name: str, data_root: Path) -> Task:
        """A task with the lines that the protocol uses."""
        task = load_task(name, data_root)
        if self.blank_lines or task.second is not None:
            return task
        not_blank = np.array([bool(sentence) for sentence in task.first])
        return Task(
            tuple(itertools.compress(task.first, not_blank)),
            None,
            task.labels[not_blank],
            int(not_blank[: task.train].sum()),
        )


@dataclass(frozen=True)
class Split:
    """Rows of a task: a classifier's training set, what it is scored on, and the inner folds."""

    train: np.ndarray
    test: np.ndarray
    inner: tuple[tuple[np.ndarray, np.ndarray], ...]  # to fit and to validate, from ``train``


def _powers_of_two(first: int, last: int) -> tuple[float, ...]:
    return tuple(2.0**power for power in range(first, last + 1))


_CONTIGUOUS = KFold(10)
_SHUFFLED = KFold(10, shuffle=True, random_state=SHUFFLE_SEED)
_STRATIFIED = StratifiedKFold(10, shuffle=True, random_state=1111)

_SKIP_THOUGHTS = Protocol(
    nested=Search("shuffled", _CONTIGUOUS, _powers_of_two(0, 8)),
    tested=Search("shuffled", _CONTIGUOUS, _powers_of_two(0, 8)),
    pairs=Search("given", _SHUFFLED, _powers_of_two(0, 8), score="f1"),
)
_DECAYS = Search("length", _STRATIFIED, (1e-5, 1e-4, 1e-3, 1e-2), decimals=2, stopped_early=True)

PROTOCOLS = {
    DEFAULT_PROTOCOL: replace(_SKIP_THOUGHTS, blank_lines=False),
    "skip-thoughts-nested-10fold-v1": _SKIP_THOUGHTS,
    "senteval-v1": Protocol(
        nested=Search("length", _STRATIFIED, _powers_of_two(-2, 3), decimals=2),
        tested=Search("length", _STRATIFIED, _powers_of_two(-1, 5), decimals=2),
        pairs=Search("length", _STRATIFIED, _powers_of_two(-1, 5), decimals=2),
    ),
    "senteval-mlp-v1": Protocol(nested=_DECAYS, tested=_DECAYS, pairs=_DECAYS),
}


def evaluate(
    encode: "Encode | HasEncode",
    data_root: Path,
    *,
    tasks: Sequence[str] = TASKS,
    protocol: str = DEFAULT_PROTOCOL,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Accuracy of logistic regression on the vectors of ``encode``, in percent.

    Each task is encoded once, and all its classifiers are solved together, on the GPU if there is
    one. Keys of the result: ``protocol``; ``mean``, the mean accuracy over the tasks, and
    ``mean_without_TREC``, if TREC is one of several; the name of each task, its accuracy; for pairs
    also ``<name>_f1``, F1 in percent; ``details``, for each task ``costs``, the C chosen in each
    fold, ``fold_accuracies`` (a single one with a test part), for pairs ``fold_f1``,
    ``sentences``, the number n of sentences or pairs, and ``majority``, the share of the most
    frequent class among the scored rows.

    Args:
        encode: sentences -> their vectors (n, d), or an object with such a method ``encode``, such
            as a model of sentence-transformers; see :func:`text.encoder.vectors_of`.
        data_root: the folder that holds the datasets.
        tasks: see :func:`text.data.load_task`.
        protocol: see ``PROTOCOLS``.
        progress: called before each task with the number of tasks done, of all, and its name.

    Raises:
        ValueError: an unknown protocol, no tasks, no encoder, or vectors that are not (n, d) or not
            finite.
        shared.experiment.data.MissingData: a task is not below ``data_root``.
    """

    def classifiers(name: str, task: Task, search: Search) -> Predict:
        fit = _stopped_early if search.stopped_early else _logistic_regression
        return partial(fit, _features(encode, name, task), task)

    return _search_and_score(classifiers, data_root, tasks, protocol, progress)


def tfidf(
    data_root: Path,
    *,
    tasks: Sequence[str] = TASKS,
    protocol: str = DEFAULT_PROTOCOL,
    workers: int = 1,
) -> dict[str, Any]:
    """The result of :func:`evaluate` for tf-idf of words, the same for any number of workers.

    Words are lower-cased and include single letters and punctuation marks. Vocabulary and inverse
    document frequencies come from each training set alone. scikit-learn solves the sparse problems.
    """
    with contextlib.ExitStack() as stack:
        map_function: Callable[..., Iterable[np.ndarray]] = map
        if workers > 1:
            context = multiprocessing.get_context("forkserver")
            pool = ProcessPoolExecutor(workers, mp_context=context)
            map_function = stack.enter_context(pool).map

        def classifiers(name: str, task: Task, search: Search) -> Predict:
            if search.stopped_early:
                raise ValueError(f"{protocol} has no classifier of words; give another protocol")
            counts = CountVectorizer(token_pattern=TOKEN).fit_transform(_sentences(task))

            def predict(training: Sequence[Training], costs: Sequence[float]) -> np.ndarray:
                pairs = task.second is not None
                one = partial(_tfidf_predictions, counts, task.labels, pairs, costs)
                return np.stack(list(map_function(one, [rows for rows, _ in training])))

            return predict

        return _search_and_score(classifiers, data_root, tasks, protocol)


def majority(
    data_root: Path, *, tasks: Sequence[str] = TASKS, protocol: str = DEFAULT_PROTOCOL
) -> dict[str, Any]:
    """The result of :func:`evaluate`, without costs, for the majority class of the training part.

    Ties go to the first class. On balanced tasks whose folds are not stratified this falls below
    50: the majority class of the training part is the minority class of the test fold.
    """
    searches = _protocol(protocol)
    check_tasks(tasks)
    details = {}
    for name in tasks:
        task = searches.load(name, data_root)
        splits = splits_of(task, searches.search(task))
        commonest = [np.bincount(task.labels[split.train]).argmax() for split in splits]
        predicted = [
            np.full(len(split.test), label) for split, label in zip(splits, commonest, strict=True)
        ]
        details[name] = _scores(task, splits, predicted)
    return _summary(protocol, details)


def splits_of(task: Task, search: Search) -> list[Split]:
    """What is trained and scored: ten outer folds, or one split where the task has a test part."""
    rows, labels = _ordered_rows(task, search.order), task.labels
    if task.train == len(labels):
        folds = search.folds.split(rows, labels[rows])
        parts = [(rows[train], rows[test]) for train, test in folds]
    else:
        parts = [(rows, np.arange(task.train, len(labels)))]
    return [
        Split(
            train,
            test,
            tuple(
                (train[fit], train[validate])
                for fit, validate in search.folds.split(train, labels[train])
            ),
        )
        for train, test in parts
    ]


def choose_cost(scores: Sequence[Sequence[float]], decimals: int | None) -> int:
    """Number of the first cost with the best mean score.

    scores: for each cost those of the inner folds, from 0 to 1. decimals: to which the mean in
    percent is rounded before the comparison; None: no rounding.
    """
    means = np.array([np.mean(of) for of in scores])
    return int(np.argmax(means if decimals is None else np.round(100 * means, decimals)))


def _ordered_rows(task: Task, order: Literal["given", "shuffled", "length"]) -> np.ndarray:
    """The rows of the training part in the order in which they are folded."""
    rows = np.arange(task.train)
    if order == "shuffled":
        np.random.RandomState(SHUFFLE_SEED).shuffle(rows)
    elif order == "length":
        parts = (task.first,) if task.second is None else (task.first, task.second)
        words = [np.array([len(sentence.split()) for sentence in part]) for part in parts]
        keys = [task.labels, *words[::-1]]  # the last decides first
        rows = np.lexsort([key[: task.train] for key in keys])
    return rows


def _search_and_score(
    classifiers: Callable[[str, Task, Search], Predict],
    data_root: Path,
    tasks: Sequence[str],
    protocol: str,
    progress: Progress | None = None,
) -> dict[str, Any]:
    searches = _protocol(protocol)
    check_tasks(tasks)
    details = {}
    for done, name in enumerate(tasks):
        if progress is not None:
            progress(done, len(tasks), name)
        task = searches.load(name, data_root)
        search = searches.search(task)
        splits = splits_of(task, search)
        costs, predicted = _search(task, search, splits, classifiers(name, task, search))
        details[name] = {"costs": costs, **_scores(task, splits, predicted)}
    return _summary(protocol, details)


def _search(
    task: Task, search: Search, splits: Sequence[Split], predict: Predict
) -> tuple[list[float], list[np.ndarray]]:
    """The cost chosen in each split, and the predictions for its test rows with that cost."""
    training = [pair for split in splits for pair in ((split.train, None), *split.inner)]
    predictions = iter(predict(training, search.costs))  # in the order of the training sets
    costs, predicted = [], []
    score = _SCORES[search.score]
    for split in splits:
        outer = next(predictions)
        inner = [(next(predictions), validate) for _, validate in split.inner]
        scores = [
            [score(task.labels[validate], of[number, validate]) for of, validate in inner]
            for number in range(len(search.costs))
        ]
        best = choose_cost(scores, search.decimals)
        costs.append(search.costs[best])
        predicted.append(outer[best, split.test])
    return costs, predicted


def _scores(task: Task, splits: Sequence[Split], predicted: Sequence[np.ndarray]) -> dict[str, Any]:
    """What ``details`` says of a task, but for the costs; ``predicted`` are those of test rows."""
    labels = [task.labels[split.test] for split in splits]

    def percent(score: Callable[[np.ndarray, np.ndarray], float]) -> list[float]:
        return [
            100 * score(true, prediction)
            for true, prediction in zip(labels, predicted, strict=True)
        ]

    scored = np.concatenate(labels)
    details: dict[str, Any] = {"fold_accuracies": percent(_SCORES["accuracy"])}
    if task.second is not None:
        details["fold_f1"] = percent(_SCORES["f1"])
    return details | {
        "sentences": len(task.labels),
        "majority": 100 * float(np.bincount(scored).max()) / len(scored),
    }


def _summary(protocol: str, details: dict[str, dict[str, Any]]) -> dict[str, Any]:
    accuracies = {name: float(np.mean(of["fold_accuracies"])) for name, of in details.items()}
    f1 = {
        f"{name}_f1": float(np.mean(of["fold_f1"]))
        for name, of in details.items()
        if "fold_f1" in of
    }
    means = {"mean": float(np.mean(list(accuracies.values())))}
    others = [value for name, value in accuracies.items() if name != "TREC"]
    if 0 < len(others) < len(accuracies):
        means[WITHOUT_TREC] = float(np.mean(others))
    return {"protocol": protocol, **means, **accuracies, **f1, "details": details}


def _protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}; got {name!r}")
    return PROTOCOLS[name]


def _accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(labels == predicted))


def _f1(labels: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1; 0 where it neither occurs nor is predicted."""
    # Scikit-learn's takes a thousand times as long, since it checks its input.
    either = labels.sum() + predicted.sum()
    return float(2 * (labels * predicted).sum() / either) if either else 0.0


_SCORES = {"accuracy": _accuracy, "f1": _f1}


def _sentences(task: Task) -> list[str]:
    """All sentences of a task: n, or 2n with those that come second after those that come first."""
    return [*task.first, *(task.second or ())]


def checked_vectors(encode: "Encode | HasEncode", name: str, sentences: list[str]) -> np.ndarray:
    """The vectors (n, d) float32 of n sentences; ``name`` is the task, for messages.

    For ``encode`` see :func:`text.encoder.vectors_of`.
    """
    from text.encoder import vectors_of

    vectors = vectors_of(encode, sentences)
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise ValueError(
            f"{name}: encode gives one row for each of {len(sentences)} sentences; "
            f"got an array of shape {vectors.shape}"
        )
    if not np.isfinite(vectors).all():
        sentence, dimension = np.argwhere(~np.isfinite(vectors))[0]
        raise ValueError(
            f"{name}: dimension {dimension} of sentence {sentence} is "
            f"{vectors[sentence, dimension]}: {sentences[sentence]!r}"
        )
    return vectors


def _features(encode: "Encode | HasEncode", name: str, task: Task) -> Tensor:
    """Features (n, d) of sentences or (n, 2d) of pairs, on the GPU where there is one."""
    vectors = checked_vectors(encode, name, _sentences(task))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    features = torch.tensor(vectors, device=device)
    if task.second is None:
        return features
    first, second = features.chunk(2)
    return torch.cat([(first - second).abs(), first * second], dim=1)


def _logistic_regression(
    features: Tensor, task: Task, training: Sequence[Training], costs: Sequence[float]
) -> np.ndarray:
    # No row of a test part reaches the solver. The largest task has 110 training sets, 9 costs and
    # 10,662 rows: 42 MB for each float32 of all scores, so that they need not be cut into blocks.
    member = np.zeros((task.train, len(training)), dtype=bool)
    for column, (rows, _) in enumerate(training):
        member[rows, column] = True
    labels = torch.from_numpy(task.labels[: task.train]).to(features.device)
    members = torch.from_numpy(member).to(features.device)
    solution = logistic.fit(features[: task.train], labels, members, costs)
    return solution.predict(features).cpu().numpy()


def _stopped_early(
    features: Tensor, task: Task, training: Sequence[Training], decays: Sequence[float]
) -> np.ndarray:
    labels = torch.from_numpy(task.labels).to(features.device)
    return senteval.predictions(features, labels, training, decays).cpu().numpy()


def _tfidf_predictions(
    counts: sparse.csr_matrix,
    labels: np.ndarray,
    pairs: bool,
    costs: Sequence[float],
    train: np.ndarray,
) -> np.ndarray:
    """Predictions (C, n) for all rows, from one training set and words counted over all rows.

    Newton's method is many times as fast here as L-BFGS, and liblinear would penalise the
    intercept.
    """
    rows = np.concatenate([train, train + len(labels)]) if pairs else train
    known = np.flatnonzero(counts[rows].getnnz(axis=0))
    counts = counts[:, known]
    features = TfidfTransformer().fit(counts[rows]).transform(counts)
    if pairs:
        first, second = features[: len(labels)], features[len(labels) :]
        features = sparse.hstack([abs(first - second), first.multiply(second)], format="csr")
    classifier = LogisticRegression(solver="newton-cg", tol=TOLERANCE, warm_start=True)
    predicted = []
    # Sums in BLAS depend on the number of threads; the result must not.
    with threadpool_limits(1, user_api="blas"):
        for cost in costs:
            classifier.set_params(C=cost)
            classifier.fit(features[train], labels[train])
            predicted.append(classifier.predict(features))
    return np.stack(predicted)
