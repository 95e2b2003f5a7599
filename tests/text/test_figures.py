import dataclasses
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from resealed import set_config
from safetensors.torch import save_file
from torch import Tensor

from shared.errors import UserError
from shared.experiment.runs import Run
from shared.experiment.tables import Cell, Tier
from shared.report.figures import Lacking
from text import data, figures
from text.encoder import QuickThought, QuickThoughtConfig
from text.export import MODEL, PROJECTION
from text.figures import (
    FIGURES,
    Histograms,
    distances_of,
    evaluated_pair,
    fixed_batches,
    pair_distances,
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


def notes(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_batches_are_whole_and_evenly_spread() -> None:
    assert fixed_batches(100, 40) == [(0, 40), (40, 80)]
    assert fixed_batches(30, 40) == [(0, 30)]
    many = fixed_batches(100 * 40 + 7, 40)
    assert [start // 40 for start, _ in many] == [0, 14, 28, 42, 57, 71, 85, 99]
    assert all(stop - start == 40 for start, stop in many)


def test_distances_of_neighbours_and_others() -> None:
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [0.0, 1.0]])
    second = torch.tensor([[5.0, 0.0], [0.0, -1.0], [0.0, 1.0], [1.0, 0.0]])
    chapter = torch.tensor([0, 0, 0, 1])
    near, far = pair_distances(first, second, chapter, reach=1)
    # (0, 1), (1, 0), (1, 2), (2, 1)
    assert near.tolist() == pytest.approx([0.5, 0.5, 0.0, 0.5])
    # (0, 2), (0, 3), (1, 3), (2, 0), (2, 3), (3, 0), (3, 1), (3, 2)
    assert far.tolist() == pytest.approx([0.5, 0.0, 0.5, 1.0, 1.0, 0.5, 1.0, 0.0])
    near, far = pair_distances(first, second, chapter, reach=2)
    assert (len(near), len(far)) == (6, 6)


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
    folder, config = tmp_path / cell.address, dataclasses.asdict(cell.config)
    found = distances_of(folder, config, data_root, scored_pair)
    near, far = by_loops(model, cell, data_root, lambda f, g: (f, g))
    np.testing.assert_allclose(found.neighbours, near, atol=1e-5)
    np.testing.assert_allclose(found.others, far, atol=1e-5)
    assert len(near) == 2 * 399 - 2 * 13  # 14 chapters, of which the last is cut

    matrix = torch.randn(3, 2 * WIDTH, generator=torch.Generator().manual_seed(0))
    cell = cell_of("cllr", "CLLR(DCL+l21-norm)")
    model = finish(tmp_path, data_root, cell, matrix)
    found = distances_of(tmp_path / cell.address, config, data_root, evaluated_pair)
    near, far = by_loops(model, cell, data_root, lambda f, g: (matrix @ torch.cat([f, g]),) * 2)
    np.testing.assert_allclose(found.neighbours, near, atol=1e-5)
    np.testing.assert_allclose(found.others, far, atol=1e-5)


def test_the_figure_shows_what_was_measured(tmp_path: Path, data_root: Path) -> None:
    cells = [cell_of("lmcl", row) for row in ("QT", "DCL", "LMCL(DCL+DP)")]
    for cell in cells:
        finish(tmp_path, data_root, cell)
    figure = draw("lmcl", tmp_path, data_root)
    assert titles(figure) == ["QT", "DCL", "LMCL(QT+DP)", "LMCL(DCL+DP)"]  # no column without any
    assert notes(figure.axes[2]) == ["no finished run"]
    assert "rows of LMCL's table-4-small (short tier)" in texts(figure)
    assert "seed 0" in texts(figure)
    for cell, axis in zip(cells, [figure.axes[place] for place in (0, 1, 3)], strict=True):
        config = dataclasses.asdict(cell.config)
        found = distances_of(tmp_path / cell.address, config, data_root, scored_pair)
        for values, said in zip((found.neighbours, found.others), notes(axis), strict=True):
            inside = 100 * np.mean((values > 0.1) & (values < 0.5))
            assert said.endswith(f": mean {values.mean():.2f}, {inside:.0f}% in band")
        for outline, values in zip(
            axis.patches[1::2], (found.neighbours, found.others), strict=True
        ):
            heights, edges, _ = outline.get_data()
            assert np.sum(heights * np.diff(edges)) == pytest.approx(1)
            expected = np.histogram(values, 50, (0, 1), density=True)[0]
            np.testing.assert_allclose(heights, expected)
    limits = {axis.get_ylim() for axis in figure.axes} | {axis.get_xlim() for axis in figure.axes}
    assert len(limits) == 2


def test_a_picture_is_written(tmp_path: Path, data_root: Path) -> None:
    finish(tmp_path / "runs", data_root, cell_of("cllr", "DCL"))
    finish(
        tmp_path / "runs",
        data_root,
        cell_of("cllr", "CLLR(DCL+nuclear-norm)"),
        torch.randn(3, 2 * WIDTH),
    )
    file, _ = write("cllr", tmp_path / "runs", tmp_path / "results", data_root=data_root)
    # cell_of gives cells of the short tier, whose tables lie there
    assert file == tmp_path / "results/short/text/cllr/figures/figure-3-distances.png"
    with Image.open(file) as picture:
        picture.load()
        assert picture.format == "PNG"
        colours = picture.convert("RGB").getcolors(maxcolors=2**24)
        assert len(colours) > 50


def test_the_papers_tier_is_drawn_as_soon_as_it_has_something(
    tmp_path: Path, data_root: Path
) -> None:
    finish(tmp_path, data_root, cell_of("lmcl", "QT"))
    finish(tmp_path, data_root, cell_of("lmcl", "HCL"))
    finish(tmp_path, data_root, cell_of("lmcl", "HCL", "paper"))
    figure = draw("lmcl", tmp_path, data_root)
    assert titles(figure) == ["HCL"]
    assert "(paper tier)" in texts(figure)


def test_runs_that_do_not_count(tmp_path: Path, data_root: Path) -> None:
    cell = cell_of("lmcl", "QT")
    with pytest.raises(Lacking, match="no finished run of text/lmcl/table-4-small with a model"):
        draw("lmcl", tmp_path, data_root)
    finish(tmp_path, data_root, cell)
    folder = tmp_path / cell.address
    (folder / "result.json").rename(folder / "later")
    with pytest.raises(Lacking):  # not finished
        draw("lmcl", tmp_path, data_root)
    (folder / "later").rename(folder / "result.json")
    shutil.move(folder / MODEL, tmp_path / "away")
    with pytest.raises(Lacking):  # keeps no model
        draw("lmcl", tmp_path, data_root)
    shutil.move(tmp_path / "away", folder / MODEL)
    said = (folder / "config.json").read_text()
    set_config(folder, said.replace('"batch_size": 400', '"batch_size": 300'))
    with pytest.raises(Lacking):  # of an earlier declaration
        draw("lmcl", tmp_path, data_root)
    set_config(folder, said)
    assert titles(draw("lmcl", tmp_path, data_root)) == ["QT"]


@pytest.mark.parametrize("paper", ["lmcl", "cllr"])
def test_what_lacks_is_said_in_one_line(
    tmp_path: Path, data_root: Path, capsys: pytest.CaptureFixture[str], paper: str
) -> None:
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


def test_an_unknown_paper_is_refused(tmp_path: Path) -> None:
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
