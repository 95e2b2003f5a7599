import dataclasses
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from shared.errors import UserError
from shared.experiment.runs import Run
from shared.experiment.tables import Cell, Tier
from text import data, figures
from text.encoder import QuickThought, QuickThoughtConfig
from text.export import MODEL, PROJECTION
from text.figures import (
    FIGURES,
    Histograms,
    distances_of,
    evaluated_pair,
    scored_pair,
    write,
)
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


def finish(runs: Path, data_root: Path, cell: Cell, matrix: Tensor | None = None) -> QuickThought:
    """A finished run of a cell with a model of its own, without the training."""
    config = cell.config
    _, tokenizer = prepare(
        config.corpus,
        config.layout,
        data_root,
        vocabulary=config.vocabulary,
        lower_case=config.lower_case,
    )
    torch.manual_seed(len(cell.row))
    model = QuickThought(
        QuickThoughtConfig(
            kind="gru",
            vocab_size=len(tokenizer),
            embedding=WIDTH,
            hidden=WIDTH,
            length=config.length,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()
    with Run(runs / cell.folder, config, tier=cell.tier) as run:
        model.save_pretrained(run.folder / MODEL)
        tokenizer.save_pretrained(run.folder / MODEL)
        if matrix is not None:
            save_file({"matrix": matrix}, run.folder / MODEL / PROJECTION)
        run.finish({"mean": 70.0})
    return model


def draw(paper: str, runs: Path, data_root: Path) -> Figure:
    (histograms,) = FIGURES[paper].values()
    return histograms(runs, data_root)[1]


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(match=lambda o: hasattr(o, "get_text"))
    )


def titles(figure: Figure) -> list[str]:
    return [axis.get_title(loc="left") for axis in figure.axes]


def test_what_is_compared() -> None:
    f, g = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
    matrix = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, -1.0]])
    assert [each.tolist() for each in scored_pair(f, g, matrix)] == [[[3, 4]], [[0, 2]]]
    for vectors in evaluated_pair(f, g, matrix):
        assert vectors.tolist() == [[9, -2]]
    for vectors in evaluated_pair(f, g, None):
        assert vectors[0].tolist() == pytest.approx([0.6, 0.8, 0, 1])


def by_loops(
    model: QuickThought, cell: Cell, data_root: Path, vectors: Callable[[Tensor, Tensor], Tensor]
) -> tuple[list[float], list[float]]:
    """The distances of the first 400 sentences, sentence by sentence."""
    config = cell.config
    _, tokenizer = prepare(
        config.corpus,
        config.layout,
        data_root,
        vocabulary=config.vocabulary,
        lower_case=config.lower_case,
    )
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
    folder, config = tmp_path / cell.folder, dataclasses.asdict(cell.config)
    found = distances_of(folder, config, data_root, scored_pair)
    near, far = by_loops(model, cell, data_root, lambda f, g: (f, g))
    np.testing.assert_allclose(found.neighbours, near, atol=1e-5)
    np.testing.assert_allclose(found.others, far, atol=1e-5)
    assert len(near) == 2 * 399 - 2 * 13  # 14 chapters, of which the last is cut

    matrix = torch.randn(3, 2 * WIDTH, generator=torch.Generator().manual_seed(0))
    cell = cell_of("cllr", "CLLR(DCL+l21-norm)")
    model = finish(tmp_path, data_root, cell, matrix)
    found = distances_of(tmp_path / cell.folder, config, data_root, evaluated_pair)
    near, far = by_loops(model, cell, data_root, lambda f, g: (matrix @ torch.cat([f, g]),) * 2)
    np.testing.assert_allclose(found.neighbours, near, atol=1e-5)
    np.testing.assert_allclose(found.others, far, atol=1e-5)


def test_a_picture_of_the_runs_that_keep_a_model_is_written(
    tmp_path: Path, data_root: Path
) -> None:
    runs = tmp_path / "runs"
    finish(runs, data_root, cell_of("cllr", "DCL"))
    cell = cell_of("cllr", "CLLR(DCL+nuclear-norm)")
    finish(runs, data_root, cell, torch.randn(3, 2 * WIDTH))
    figure = draw("cllr", runs, data_root)
    assert titles(figure) == ["DCL", "CLLR(DCL+nuclear-norm)"]
    assert "rows of CLLR's table-2-small (short tier)" in texts(figure)
    file, _ = write("cllr", runs, tmp_path / "results", data_root=data_root)
    # Those of the short tier lie beside its tables.
    assert file == tmp_path / "results/short/text/cllr/figures/figure-3-distances.png"
    with Image.open(file) as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("RGB").getcolors(maxcolors=2**24)) > 50
    shutil.move(runs / cell.folder / MODEL, tmp_path / "away")
    assert titles(draw("cllr", runs, data_root)) == ["DCL"]
    finish(runs, data_root, cell_of("cllr", "DCL", "paper"))
    assert "(paper tier)" in texts(draw("cllr", runs, data_root))  # as soon as it has something


def test_what_lacks_is_said_in_one_line(
    tmp_path: Path, data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = "lmcl"
    assert write(paper, tmp_path / "runs", tmp_path / "results", data_root=data_root) == []
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        rf"figure-\d-distances: not drawn: no finished run of text/{paper}/table-\d-small with a "
        rf"model under .*; run ./reproduce.sh text {paper} --table table-\d-small --tier short",
        line,
    )
    finish(tmp_path / "runs", data_root, cell_of(paper, "DCL"))
    shutil.rmtree(data_root)
    assert write(paper, tmp_path / "runs", tmp_path / "results", data_root=data_root) == []
    (line,) = capsys.readouterr().out.splitlines()
    assert ": not drawn: books: data missing" in line
    assert not (tmp_path / "results").exists()
    with pytest.raises(UserError, match="text has no figures for 'mmcl'; it has lmcl, cllr"):
        write("mmcl", tmp_path, tmp_path, data_root=tmp_path)


def test_every_row_is_declared() -> None:
    for paper, drawers in FIGURES.items():
        for histograms in drawers.values():
            assert isinstance(histograms, Histograms)
            assert histograms.paper == paper
            for label in (label for line in histograms.rows for label in line):
                assert cell_of(paper, label).row == label
    penalty = cell_of("lmcl", "LMCL(DCL+DP)").config.objective.penalties[0]
    assert (penalty.numbers["lower"], penalty.numbers["upper"]) == figures.BAND
