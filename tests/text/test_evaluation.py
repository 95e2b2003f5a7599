import dataclasses
import importlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold
from sklearn.utils import shuffle

from text.config import EMBEDDED_TASKS
from text.data import Task, load_task
from text.evaluation import DEFAULT_PROTOCOL, PROTOCOLS, choose_cost, evaluate, majority, tfidf

MODULE = importlib.import_module("text.evaluation")
EXACT = [name for name in PROTOCOLS if name != "senteval-mlp-v1"]
NOWHERE = Path("nowhere")
TASK = ["questions"]


def encode(texts: Sequence[str]) -> np.ndarray:
    """Counts of words by their hash, scaled; 0 for a blank line.

    So many dimensions suffice for the manual's sentences, of which other Pythons have others.
    """
    counts = np.zeros((len(texts), 128), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            counts[row, zlib.crc32(word.encode()) % 128] += 1
    return counts / np.sqrt(1 + counts.sum(axis=1, keepdims=True))


def reference_of_words(task: Task) -> tuple[float, float]:
    """Cost and accuracy in percent of tf-idf on a task with a test part, by plain loops."""

    def guesses(train: np.ndarray, test: np.ndarray, costs: Sequence[float]) -> list[np.ndarray]:
        vectorizer = TfidfVectorizer(lowercase=True, token_pattern=r"(?u)\w+|[^\w\s]")
        parts = [part for part in (task.first, task.second) if part is not None]
        vectorizer.fit([part[row] for part in parts for row in train])
        vectors = [vectorizer.transform(part).toarray() for part in parts]
        features = vectors[0]
        if task.second is not None:
            features = np.hstack([np.abs(vectors[0] - vectors[1]), vectors[0] * vectors[1]])
        classifiers = [LogisticRegression(C=cost, solver="newton-cg", tol=1e-9) for cost in costs]
        return [
            of.fit(features[train], task.labels[train]).predict(features[test])
            for of in classifiers
        ]

    def score(rows: np.ndarray, found: np.ndarray) -> float:
        if task.second is None:
            return float((task.labels[rows] == found).mean())
        return float(f1_score(task.labels[rows], found))

    rows = np.arange(task.train)
    folds = KFold(10)
    if task.second is None:
        rows = shuffle(rows, random_state=1234)
    else:
        folds = KFold(10, shuffle=True, random_state=1234)
    costs = [2.0**power for power in range(9)]
    scores = [
        [score(rows[rest], guess) for guess in guesses(rows[fit], rows[rest], costs)]
        for fit, rest in folds.split(rows)
    ]
    cost = costs[int(np.mean(scores, axis=0).argmax())]
    test = np.arange(task.train, len(task.labels))
    (guess,) = guesses(rows, test, [cost])
    return cost, 100 * float((task.labels[test] == guess).mean())


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Task], None]:
    """Makes a task that stands for every name."""
    return lambda task: monkeypatch.setattr(
        MODULE, "load_task", lambda name, data_root: {NOWHERE: task}[data_root]
    )


def test_the_first_of_the_best_costs_wins_and_decimals_make_equals() -> None:
    assert choose_cost([[0.2, 0.4], [0.5, 0.3], [0.6, 0.2], [0.1, 0.1]], None) == 1
    close = [[0.90, 0.60], [0.90001, 0.60003], [0.9002, 0.6002]]
    assert choose_cost(close, None) == 2
    assert choose_cost(close[:2], None) == 1
    assert choose_cost(close[:2], 2) == 0
    assert choose_cost(close, 2) == 2
    assert choose_cost(close, 0) == 0


def test_embedded_tasks_are_encoded_once_and_learnt() -> None:
    asked: list[int] = []
    calls: list[tuple[int, int, str]] = []

    def hashed(texts: Sequence[str]) -> np.ndarray:
        asked.append(len(texts))
        return encode(texts)

    result = evaluate(
        hashed, NOWHERE, tasks=EMBEDDED_TASKS, progress=lambda *call: calls.append(call)
    )
    tasks = [load_task(name, NOWHERE) for name in EMBEDDED_TASKS]
    assert asked == [len(task.labels) * (2 if task.second else 1) for task in tasks]
    assert calls == [(0, 3, "topics"), (1, 3, "questions"), (2, 3, "neighbours")]
    keys = {"protocol", "mean", "details", "neighbours_f1", *EMBEDDED_TASKS}
    assert set(result) == keys
    assert result["mean"] == pytest.approx(np.mean([result[name] for name in EMBEDDED_TASKS]))
    for name in ("topics", "questions"):
        assert result[name] > result["details"][name]["majority"] + 5


def test_majority_is_that_of_the_training_part(serve: Callable[[Task], None]) -> None:
    labels = np.array([1] * 6 + [0] * 4 + [0] * 3 + [1])
    texts = tuple("abcdefghijklmn")
    serve(Task(texts, texts, labels, 10))
    # Class 1 is right once in four: precision 1/4, recall 1.
    assert majority(NOWHERE, tasks=["some"]) == {
        "protocol": DEFAULT_PROTOCOL,
        "mean": 25.0,
        "some": 25.0,
        "some_f1": pytest.approx(40),
        "details": {
            "some": {
                "fold_accuracies": [25.0],
                "fold_f1": [pytest.approx(40)],
                "sentences": 14,
                "majority": 75.0,
            }
        },
    }
    # A fold of two of a class makes that class the rarer one in training; one of each, neither.
    texts, labels = tuple("abcdefghijklmnopqrst"), np.arange(20) % 2
    serve(Task(texts, None, labels, 20))
    pairs = labels[shuffle(np.arange(20), random_state=1234)].reshape(10, 2)
    expected = [0.0 if first == second else 50.0 for first, second in pairs]
    result = majority(NOWHERE, tasks=["some"])
    assert result["details"]["some"]["fold_accuracies"] == expected
    assert result["some"] == np.mean(expected) < 50


@pytest.mark.parametrize(("name", "rows", "train"), [("questions", 40, 32), ("neighbours", 40, 30)])
def test_tfidf_learns_words_from_each_training_set_alone(
    serve: Callable[[Task], None], name: str, rows: int, train: int
) -> None:
    whole = load_task(name, NOWHERE)
    chosen = np.linspace(0, whole.train - 1, rows).astype(int)
    parts = [
        None if part is None else tuple(part[row] for row in chosen)
        for part in (whole.first, whole.second)
    ]
    task = Task(*parts, whole.labels[chosen], train)  # type: ignore[arg-type]
    serve(task)
    cost, accuracy = reference_of_words(task)
    found = tfidf(NOWHERE, tasks=["some"])
    assert found["details"]["some"]["costs"] == [cost]
    assert found["some"] == pytest.approx(accuracy)


@pytest.mark.slow
def test_words_are_counted_alike_by_any_number_of_workers() -> None:
    alone, shared = (tfidf(NOWHERE, tasks=["neighbours"], workers=workers) for workers in (1, 2))
    assert shared["details"]["neighbours"] == alone["details"]["neighbours"]


def with_infinity(texts: Sequence[str]) -> np.ndarray:
    vectors = encode(texts)
    vectors[163, 4] = np.inf
    return vectors


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: evaluate(lambda texts: encode(texts)[1:], NOWHERE, tasks=["topics"]), "119"),
        (lambda: evaluate(lambda texts: encode(texts)[:, 0], NOWHERE, tasks=["topics"]), "120,"),
        (
            lambda: evaluate(with_infinity, NOWHERE, tasks=["neighbours"]),
            "neighbours: dimension 4 of sentence 163 is inf",
        ),
        (lambda: evaluate(encode, NOWHERE, protocol="v2"), "v2"),
        (lambda: majority(NOWHERE, tasks=[]), "no tasks"),
        (lambda: evaluate(encode, NOWHERE, tasks="topics"), "string"),
        (lambda: tfidf(NOWHERE, tasks=["CoLA"]), "CoLA"),
        (lambda: tfidf(NOWHERE, tasks=TASK, protocol="senteval-mlp-v1"), "senteval-mlp-v1"),
        (lambda: evaluate(3, NOWHERE, tasks=TASK), "encode"),
    ],
)
def test_what_cannot_be_scored_is_refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()


@pytest.mark.cuda
def test_scores_on_the_gpu_are_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluate(encode, NOWHERE, tasks=["neighbours"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert evaluate(encode, NOWHERE, tasks=["neighbours"]) == found


def test_the_mean_stands_with_and_without_trec(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {name: load_task(other, NOWHERE) for name, other in (("TREC", "questions"),)}
    monkeypatch.setattr(
        MODULE, "load_task", lambda name, root: tasks.get(name) or load_task(name, root)
    )
    result = majority(NOWHERE, tasks=("topics", "TREC", "neighbours"))
    accuracies = [result[name] for name in ("topics", "TREC", "neighbours")]
    assert result["mean"] == pytest.approx(np.mean(accuracies))
    assert result["mean_without_TREC"] == pytest.approx((accuracies[0] + accuracies[2]) / 2)
    assert "mean_without_TREC" not in majority(NOWHERE, tasks=("TREC",))
    assert "mean_without_TREC" not in majority(NOWHERE, tasks=("topics",))


def test_blank_lines_count_in_the_first_version_and_in_senteval_only(
    serve: Callable[[Task], None],
) -> None:
    task = load_task("topics", NOWHERE)
    blank = [3, 17, 18]
    lines = tuple("" if row in blank else text for row, text in enumerate(task.first))
    serve(dataclasses.replace(task, first=lines))
    asked: list[int] = []

    def counted(texts: Sequence[str]) -> np.ndarray:
        asked.append(texts.count(""))
        return encode(texts)

    found = {name: evaluate(counted, NOWHERE, tasks=["some"], protocol=name) for name in EXACT}
    assert EXACT[0] == DEFAULT_PROTOCOL == "skip-thoughts-nested-10fold-v2"
    assert asked == [0, 3, 3]
    sizes = [each["details"]["some"]["sentences"] for each in found.values()]
    assert sizes == [117, 120, 120]
    kept = np.delete(np.arange(120), blank)
    serve(Task(tuple(lines[row] for row in kept), None, task.labels[kept], train=117))
    without = evaluate(counted, NOWHERE, tasks=["some"], protocol=EXACT[1])
    assert found[DEFAULT_PROTOCOL]["details"] == without["details"]
