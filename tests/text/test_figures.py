import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from shared.experiment.run import Run
from shared.experiment.tables import Cell, Tier
from text import data, figures
from text.encoder import Projected, QuickThought, QuickThoughtConfig
from text.export import MODEL, PROJECTION
from text.figures import distances_of, evaluated_pair, scored_pair
from text.tables import TABLES
from text.tokens import prepare

WORDS = "rain fell on the old house and nobody inside it slept until morning came again".split()
WIDTH = 8


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    """Two small books of 420 sentences, so that there is one whole batch of 400."""
    generator = random.Random(0)
    (tmp_path / "data" / "books").mkdir(parents=True)
    for book in ("one", "two"):
        chapters = []
        for _ in range(7):
            sentences = [
                " ".join(generator.choices(WORDS, k=generator.randint(3, 7))).capitalize() + "."
                for _ in range(30)
            ]
            paragraphs = (" ".join(sentences[start : start + 3]) for start in range(0, 30, 3))
            chapters.append("\n".join(paragraphs))
        (tmp_path / "data" / "books" / f"{book}.txt").write_text("\n\n".join(chapters) + "\n")
    return tmp_path / "data"


def cell_of(paper: str, row: str, tier: Tier = "short") -> Cell:
    name = {"lmcl": "table-4", "cllr": "table-2"}[paper] + ("-small" if tier == "short" else "")
    (table,) = (each for each in TABLES[paper] if each.name == name and tier in each.tiers)
    return table.cells(tier, row=row, seeds=(0,))[0]


def tokenizer_of(cell: Cell, data_root: Path) -> Any:
    config = cell.config
    words = {"vocabulary": config.vocabulary, "lower_case": config.lower_case}
    return prepare(config.corpus, config.layout, data_root, **words)[1]


def finish(runs: Path, data_root: Path, cell: Cell, matrix: Tensor | None = None) -> QuickThought:
    """A finished run of a cell with a model of its own, without the training."""
    config, tokenizer = cell.config, tokenizer_of(cell, data_root)
    torch.manual_seed(len(cell.row))
    sizes = {"embedding": WIDTH, "hidden": WIDTH, "length": config.length}
    model = QuickThought(QuickThoughtConfig(vocab_size=len(tokenizer), **sizes)).eval()
    with Run(runs / cell.folder, config, tier=cell.tier) as run:
        model.save_pretrained(run.folder / MODEL)
        tokenizer.save_pretrained(run.folder / MODEL)
        if matrix is not None:
            save_file({"matrix": matrix}, run.folder / MODEL / PROJECTION)
        run.finish({"mean": 70.0})
    return model


def test_figures_compare_the_scored_and_the_evaluated_vectors() -> None:
    f, g = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
    matrix = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, -1.0]])
    project, unit = (Projected(matrix, normalise) for normalise in (False, True))
    assert [each.tolist() for each in scored_pair(f, g, project)] == [[[3, 4]], [[0, 2]]]
    for vectors in evaluated_pair(f, g, project):
        assert vectors.tolist() == [[9, -2]]
    for vectors in evaluated_pair(f, g, unit):
        assert vectors[0].tolist() == pytest.approx([9 / 85**0.5, -2 / 85**0.5])
    for vectors in evaluated_pair(f, g, None):
        assert vectors[0].tolist() == pytest.approx([0.6, 0.8, 0, 1])


def by_loops(
    model: QuickThought, cell: Cell, data_root: Path, vectors: Callable[[Tensor, Tensor], Tensor]
) -> tuple[list[float], list[float]]:
    """The distances of the first 400 sentences, sentence by sentence."""
    config, tokenizer = cell.config, tokenizer_of(cell, data_root)
    rows = list(data.sentences(config.corpus, config.layout, data_root))[:400]
    assert len(rows) == 400
    first, second = [], []
    for _, sentence in rows:
        ids = torch.tensor([tokenizer(sentence, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            f, g = model(ids, torch.ones_like(ids, dtype=torch.bool))
        one, other = vectors(f[0], g[0])
        first.append((one / one.norm()).double().numpy())
        second.append((other / other.norm()).double().numpy())
    near, far = [], []
    for i, (chapter, _) in enumerate(rows):
        for j, (other_chapter, _) in enumerate(rows):
            distance = (1 - float(first[i] @ second[j])) / 2
            if abs(i - j) == 1 and chapter == other_chapter:
                near.append(distance)
            elif i != j:
                far.append(distance)
    return near, far


def test_distances_are_those_of_the_models_sentences(tmp_path: Path, data_root: Path) -> None:
    cell = cell_of("lmcl", "QT")
    model = finish(tmp_path, data_root, cell)
    config: Any = cell.config
    found = distances_of(tmp_path / cell.folder, config, data_root, scored_pair)
    near, far = by_loops(model, cell, data_root, lambda f, g: (f, g))
    np.testing.assert_allclose(found["neighbours"], near, atol=1e-5)
    np.testing.assert_allclose(found["others"], far, atol=1e-5)
    assert len(near) == 2 * 399 - 2 * 13  # 14 chapters, of which the last is cut

    matrix = torch.randn(3, 2 * WIDTH, generator=torch.Generator().manual_seed(0))
    cell = cell_of("cllr", "CLLR(DCL+l21-norm)")
    model = finish(tmp_path, data_root, cell, matrix)
    found = distances_of(tmp_path / cell.folder, config, data_root, evaluated_pair)
    near, far = by_loops(model, cell, data_root, lambda f, g: (matrix @ torch.cat([f, g]),) * 2)
    np.testing.assert_allclose(found["neighbours"], near, atol=1e-5)
    np.testing.assert_allclose(found["others"], far, atol=1e-5)


def test_every_row_is_declared() -> None:
    for paper, rows in (("lmcl", figures.LMCL_ROWS), ("cllr", figures.CLLR_ROWS)):
        for label in (label for line in rows for label in line):
            assert cell_of(paper, label).row == label
    penalty = cell_of("lmcl", "LMCL(DCL+DP)").config.objective.penalties[0]
    assert (penalty.kwargs["lower"], penalty.kwargs["upper"]) == figures.BAND
