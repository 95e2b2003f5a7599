"""Next and previous sentences of held-out books, and the baselines that count words."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from torch import Tensor

import text
from shared.errors import UserError
from tests.stages.training import finish, spied
from text import baselines, evaluation
from text.config import Config
from text.data import sentences
from text.neighbours import NEIGHBOURS, NEXT, PREVIOUS, neighbour_accuracies
from text.tokens import Tokens, make_tokenizer, prepare
from text.train import held_out

SMALL = dataclasses.replace(Config(held_out=6).reduced(), steps=2, tasks=("neighbours",))
PROSE = [
    "the cat sat on the mat",
    "a dog ran to the cat",
    "the mat was red and the dog was black",
    "rain fell on the red roof",
    "nobody saw the rain",
    "the roof was black",
]


def tokens_of(lines: list[str]) -> tuple[Tokens, list[list[int]], int]:
    tokenizer = make_tokenizer(lines, 18, True)  # one word of PROSE is unknown to it
    rows = tokenizer(lines, add_special_tokens=False)["input_ids"]
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    ids = np.array([each for row in rows for each in row], np.uint16)
    return Tokens(ids, offsets, np.zeros(len(lines), np.int32)), rows, len(tokenizer)


def by_loops(matrix: Tensor, chapter: list[int], size: int) -> dict[str, float]:
    """Shares of neighbours that are found, sentence by sentence."""
    right: dict[str, list[bool]] = {name: [] for name in NEIGHBOURS}
    for start in range(0, len(chapter) - size + 1, size):
        block = range(start, start + size)
        for i in block:
            found = max((j for j in block if j != i), key=lambda j, i=i: matrix[i, j])
            for name, j in ((NEXT, i + 1), (PREVIOUS, i - 1)):
                if j in block and chapter[i] == chapter[j]:
                    right[name].append(found == j)
    return {name: 100 * sum(each) / len(each) for name, each in right.items()}


@pytest.mark.parametrize("count", [27, 28])  # the last block is not full, or is
def test_accuracies_are_those_of_the_loop(count: int) -> None:
    size = 7
    matrix = torch.randn(count, count, generator=torch.Generator().manual_seed(size))
    matrix += 2 * torch.eye(count).roll(1, 1)  # the next sentence, most of the time
    matrix.fill_diagonal_(99.0)  # oneself, always, which does not count
    chapter = ([0] * 5 + [1] * 13 + [2] * 13)[:count]
    found = neighbour_accuracies(lambda a, b: matrix[a:b, a:b].clone(), np.array(chapter), size)
    assert found == pytest.approx(by_loops(matrix, chapter, size))
    assert found[NEXT] > found[PREVIOUS]


def test_chapters_without_neighbours_are_named() -> None:
    with pytest.raises(UserError, match="block of 3"):
        neighbour_accuracies(lambda a, b: torch.zeros(3, 3), np.arange(9), 3)


# Books that are held out


def test_books_end_where_their_chapters_end(tmp_path: Path) -> None:
    folder = tmp_path / "novels"
    folder.mkdir()
    (folder / "a.txt").write_text("One. Two.\nThree.\n\n\n\nFour.\n")
    (folder / "b.txt").write_text("\nFive.\n\nSix. Seven.\n\n")
    (folder / "c.txt").write_text("Eight.\n")
    every = list(sentences("novels", "paragraphs", tmp_path))
    assert [chapter for chapter, _ in every] == [0, 0, 0, 1, 2, 3, 3, 4]
    tokens, _ = prepare("novels", "paragraphs", tmp_path, vocabulary=20, lower_case=True)
    assert list(tokens.books) == [0, 2, 4]
    with pytest.raises(UserError, match="3 books"):
        held_out(Config(corpus="novels", held_out=3), tokens)
    config = Config(corpus="novels", held_out=2)
    unread, rest = held_out(config, tokens)
    assert (list(unread.chapter), list(rest.chapter)) == ([0, 0, 0, 1, 2, 3, 3], [4])
    assert rest.batch(0, 1, 50).ids.tolist() == tokens.batch(7, 8, 50).ids.tolist()
    nothing, everything = held_out(dataclasses.replace(config, held_out=0), tokens)
    assert (len(nothing), len(everything)) == (0, len(tokens))


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def test_the_majority_guesses_among_the_others_of_a_block(tmp_path: Path, data_root: Path) -> None:
    config = dataclasses.replace(SMALL, baseline="majority")
    metrics = finish(tmp_path, config, text.measure, tier="smoke", data_root=data_root)
    assert metrics["neighbours"] == 50.0
    assert metrics[NEXT] == metrics[PREVIOUS] == 100 / 49
    config = dataclasses.replace(config, held_out=0)
    alone = finish(tmp_path / "all", config, text.measure, tier="smoke", data_root=data_root)
    assert metrics.keys() - alone.keys() == set(NEIGHBOURS)


def test_baselines_count_the_books_that_are_read_and_score_the_others(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(SMALL, train=False, seed=3)
    tokens, tokenizer = prepare(
        config.corpus, config.layout, data_root, vocabulary=1000, lower_case=False
    )
    unread, read = held_out(config, tokens)
    assert 0 < len(unread) < len(read)
    for name in ("evaluate", "tfidf"):  # on the tasks, which are not asked about
        monkeypatch.setattr(evaluation, name, lambda *_, **__: {"mean": 1.0})
    counted = spied(monkeypatch, baselines, "ppmi_vectors", lambda _, *args: args)
    states = spied(monkeypatch, baselines, "randomized_svd", lambda _, *__, **named: named)
    vectors = spied(monkeypatch, baselines, "vector_scores", lambda _, __, scored: scored)
    weighed = spied(monkeypatch, baselines, "tfidf_scores", lambda _, *args: args)
    for baseline in ("ppmi_svd", "tfidf"):
        own = dataclasses.replace(config, baseline=baseline)
        finish(tmp_path / baseline, own, text.measure, tier="smoke", data_root=data_root)
    ((corpus, words, dimensions, seed),) = counted
    assert (words, dimensions, seed) == (len(tokenizer), 2 * config.embedding, 3)
    assert states == [{"n_iter": 4, "random_state": 3}]
    assert np.array_equal(corpus.offsets, read.offsets)
    assert np.array_equal(vectors[0].offsets, unread.offsets)
    ((corpus, scored, words),) = weighed
    assert words == len(tokenizer)
    assert np.array_equal(corpus.offsets, read.offsets)
    assert np.array_equal(scored.offsets, unread.offsets)


# Counts of words


def test_cosines_of_tfidf_are_scikit_learn_s() -> None:
    tokens, rows, words = tokens_of(PROSE)
    dense = np.zeros((len(rows), words))
    for row, ids in enumerate(rows):
        for each in ids:
            dense[row, each] += each > 0
    assert (dense.sum(1) < [len(row) for row in rows]).any()  # something is unknown
    expected = TfidfTransformer().fit(dense[2:]).transform(dense[:2]).toarray()
    scores = baselines.tfidf_scores(tokens.part(2, 6), tokens.part(0, 2), words)
    torch.testing.assert_close(
        scores(0, 2).double(), torch.from_numpy(expected @ expected.T), atol=1e-6, rtol=0
    )


def test_vectors_of_words_span_their_mutual_information() -> None:
    """Every entry of the matrix by loops; its singular values are the squared column norms."""
    tokens, rows, words = tokens_of(PROSE)
    together = np.zeros((words, words))
    for row in rows:
        for i, first in enumerate(row):
            for j, second in enumerate(row):
                if i != j and abs(i - j) <= baselines.WINDOW and first > 0 and second > 0:
                    together[first, second] += 1
    margin = together.sum(1)
    share = margin**0.75 / (margin**0.75).sum()
    matrix = np.zeros_like(together)
    for i in range(words):
        for j in range(words):
            if together[i, j]:
                matrix[i, j] = max(0.0, math.log(together[i, j] / (margin[i] * share[j])))
    vectors = baselines.ppmi_vectors(tokens, words, 6, seed=0)
    left, values, _ = np.linalg.svd(matrix)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=0) ** 2, values[:6], rtol=1e-3)
    expected = (left[:, :6] * values[:6]) @ left[:, :6].T
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-2)
    assert not vectors[0].any()  # the unknown word
    with pytest.raises(ValueError, match="99 dimensions"):
        baselines.ppmi_vectors(tokens, words, 99, seed=0)


def test_sentences_are_sums_of_their_words_vectors() -> None:
    tokens, rows, words = tokens_of(PROSE)
    vectors = np.random.default_rng(0).normal(size=(words, 3)).astype(np.float32)
    sums = np.stack([sum(vectors[each] for each in row if each > 0) for row in rows])
    unit = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    tokenizer = make_tokenizer(PROSE, 18, True)
    found = baselines.encoder(vectors, tokenizer)([*PROSE, "qwertz"])
    np.testing.assert_allclose(found[:-1], unit, atol=1e-6)
    assert not found[-1].any()
    scores = baselines.vector_scores(vectors, tokens)(1, 4)
    np.testing.assert_allclose(scores, unit[1:4] @ unit[1:4].T, atol=1e-6)
    baselines.vector_scores(vectors, tokens.part(0, 0))  # nothing held out, nothing asked
