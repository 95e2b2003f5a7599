"""The protocols beside the programs that they are named after; ``tests/parity/README.md``."""

import copy
import hashlib
import importlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shared import logistic
from text import senteval
from text.data import Task
from text.evaluation import PROTOCOLS, evaluate

PARITY = Path(__file__).resolve().parents[1] / "parity" / "text" / "senteval.json"
OFFICIAL = json.loads(PARITY.read_text())
GENERATED, REAL = OFFICIAL["generated"], OFFICIAL["real"]


def cases(outputs: dict[str, dict[str, Any]]) -> list[Any]:
    return [pytest.param(protocol, task) for protocol, of in outputs.items() for task in of]


def check(details: dict[str, Any], official: dict[str, Any]) -> None:
    """Accuracies agree to SentEval's two decimals, and so does F1; costs are the same."""
    assert details["costs"] == official["costs"]
    assert np.mean(details["fold_accuracies"]) == pytest.approx(official["accuracy"], abs=0.0101)
    if "fold_accuracies" in official:
        expected = pytest.approx(official["fold_accuracies"], abs=0.0051)
        assert details["fold_accuracies"] == expected
    if "f1" in official:
        assert details["fold_f1"] == [pytest.approx(official["f1"], abs=0.0051)]


def of_a_table(sentences: Sequence[str]) -> np.ndarray:
    return summed([[GENERATED["words"][word] for word in each.split()] for each in sentences], 5)


@cache
def of_a_hash(word: str) -> np.ndarray:
    numbers = np.frombuffer(hashlib.sha256(word.encode()).digest(), dtype=np.uint8)
    return (numbers.astype(np.float64) - 127.5) / 73.9  # of variance 1


def hashed(sentences: Sequence[str]) -> np.ndarray:
    return summed([[of_a_hash(word) for word in each.split()] for each in sentences], 32)


def summed(vectors: Sequence[Sequence[Any]], dimensions: int) -> np.ndarray:
    """Sums over the root of the number of words; a blank line is 0."""
    rows = [np.sum(of, axis=0) / np.sqrt(len(of)) if of else np.zeros(dimensions) for of in vectors]
    return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize(("protocol", "task"), cases(GENERATED["outputs"]))
def test_generated_sentences(protocol: str, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = GENERATED["tasks"][task]
    second = None if data["second"] is None else tuple(data["second"])
    given = Task(tuple(data["first"]), second, np.array(data["labels"]), data["train"])
    module = importlib.import_module("text.evaluation")
    monkeypatch.setattr(module, "load_task", lambda name, root: given)
    result = evaluate(of_a_table, Path("nowhere"), tasks=[task], protocol=protocol)
    check(result["details"][task], GENERATED["outputs"][protocol][task])


def stopped_early(
    x: Tensor, y: Tensor, rows: np.ndarray, validation: np.ndarray | None, decay: float
) -> nn.Linear:
    """SentEval's classifier, one at a time, with torch's own parts."""
    random = np.random.RandomState(1111)
    torch.manual_seed(1111)
    model = nn.Linear(x.shape[1], 3).to(x)
    adam = torch.optim.Adam(model.parameters(), weight_decay=decay)
    if validation is None:
        order = random.permutation(len(rows))
        validation, rows = np.split(rows[order], [len(rows) // 20])
    best, worse, kept = -1, 0, model
    for _ in range(51):  # of 204 epochs, four at a time
        for _ in range(4):
            order = random.permutation(len(rows))
            for start in range(0, len(rows), 64):
                batch = rows[order[start : start + 64]]
                adam.zero_grad()
                cross_entropy(model(x[batch]), y[batch]).backward()
                adam.step()
        right = int((model(x[validation]).argmax(1) == y[validation]).sum())
        if right > best:
            best, kept = right, copy.deepcopy(model)
        else:
            worse += 1
            if worse > 5:
                break
    return kept


def test_classifiers_with_early_stopping_are_trained_as_one_by_one() -> None:
    """Sets of rows of different sizes, with and without validation rows of their own."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (150,), generator=generator)
    x = torch.randn(150, 5, generator=generator, dtype=torch.float64) + 0.8 * torch.eye(3, 5)[y]
    every, decays = np.random.default_rng(0).permutation(150), (0.0, 0.05, 0.5)
    training = [(every[:100], every[100:]), (every[50:], every[:50])]
    training += [(every[:100], None), (every[:90], every[90:]), (every[60:], None)]
    found = senteval.predictions(x, y, training, decays)
    classes = set()
    for place, (rows, validation) in enumerate(training):
        for number, decay in enumerate(decays):
            model = stopped_early(x, y, rows, validation, decay)
            weights, biases = senteval._trained(x, y, [(rows, validation)], decays, 3)
            torch.testing.assert_close(weights[0, number], model.weight.detach())
            torch.testing.assert_close(biases[0, number], model.bias.detach())
            assert torch.equal(found[place, number], model(x).argmax(1))
            classes.add(tuple(found[place, number].tolist()))
    assert len(classes) > 8


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "task"), cases(REAL["outputs"]))
def test_real_sentences(
    suite_data: Path, protocol: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exactly as the programs solve, all is theirs; in single precision the accuracy is.

    Costs can be so nearly as good as each other (MPQA's are) that a processor's rounding in single
    precision decides which is best.
    """
    official = REAL["outputs"][protocol][task]
    found = evaluate(hashed, suite_data, tasks=[task], protocol=protocol)
    assert found[task] == pytest.approx(official["accuracy"], abs=0.02)
    if not PROTOCOLS[protocol].nested.stopped_early:  # SentEval's network is not solved by it
        fit = logistic.fit
        monkeypatch.setattr(
            logistic, "fit", lambda features, *rest: fit(features.double(), *rest, tolerance=1e-12)
        )
        found = evaluate(hashed, suite_data, tasks=[task], protocol=protocol)
    check(found["details"][task], official)
