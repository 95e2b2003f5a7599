"""Baselines from word counts of a corpus, without training an encoder.

Shapes: n sentences, V words, d dimensions of a vector, B sentences of a block.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from text.data import checked_sentences
from text.encoder import Encode
from text.neighbours import Scores
from text.tokens import PAD_ID, UNKNOWN_ID, Tokens

WINDOW = 5  # words to each side, within a sentence; Levy et al. 2015 try 2, 5 and 10
SMOOTHING = 0.75  # exponent of a context's count; Levy et al. 2015, after word2vec
ITERATIONS = 4  # of the randomised singular value decomposition


def counts_of(tokens: Tokens, words: int) -> sparse.csr_matrix:
    """Word counts of each sentence, (n, V) float32; unknown words are not counted."""
    rows = np.asarray(tokens.offsets)
    ids = np.asarray(tokens.ids[rows[0] : rows[-1]]).astype(np.int32)
    return _count_matrix(ids, rows - rows[0], words)


def tfidf_scores(corpus: Tokens, tokens: Tokens, words: int) -> Scores:
    """Cosine similarities of the sentences' tf-idf; document frequencies come from ``corpus``."""
    frequency = (counts_of(corpus, words) > 0).sum(axis=0).A1
    inverse = np.log((1 + len(corpus)) / (1 + frequency)) + 1  # scikit-learn's
    return _cosines(counts_of(tokens, words) @ sparse.diags(inverse))


def ppmi_vectors(corpus: Tokens, words: int, dimensions: int, seed: int) -> np.ndarray:
    """Word vectors (V, d) float32: a truncated SVD of positive pointwise mutual information.

    The matrix is over words within ``WINDOW`` of each other, with smoothed contexts; the vectors
    are its left singular vectors times the square roots of the singular values. A word that never
    occurs has zeros. The seed is that of the decomposition, which is randomised.

    Source: Levy, Goldberg and Dagan 2015, sections 2 and 3.
    """
    if dimensions > words:
        raise ValueError(f"{dimensions} dimensions exceed {words} words; lower embedding")
    rows = np.asarray(corpus.offsets)
    ids = np.asarray(corpus.ids[rows[0] : rows[-1]]).astype(np.int32)
    sentence = np.repeat(np.arange(len(corpus), dtype=np.int32), np.diff(rows))
    known = (ids != UNKNOWN_ID) & (ids != PAD_ID)
    counts = sparse.csr_matrix((words, words), dtype=np.float32)
    for distance in range(1, WINDOW + 1):
        together = sentence[distance:] == sentence[:-distance]
        together &= known[distance:] & known[:-distance]
        pair = ids[:-distance][together], ids[distance:][together]
        ones = np.ones(len(pair[0]), np.float32)
        counts = counts + sparse.coo_matrix((ones, pair), counts.shape).tocsr()
    counts = (counts + counts.T).tocoo()
    of_word = np.bincount(counts.row, counts.data, words)
    of_context = of_word**SMOOTHING  # the matrix is symmetric
    share = of_context / max(of_context.sum(), 1.0)
    expected = of_word[counts.row] * share[counts.col]
    information = np.log(counts.data / expected).astype(np.float32)
    above_zero = information > 0
    positive = sparse.csr_matrix(
        (information[above_zero], (counts.row[above_zero], counts.col[above_zero])), counts.shape
    )
    left, values, _ = randomized_svd(positive, dimensions, n_iter=ITERATIONS, random_state=seed)
    vectors: np.ndarray = (left * np.sqrt(values)).astype(np.float32)
    vectors[of_word == 0] = 0
    return vectors


def vector_scores(vectors: np.ndarray, tokens: Tokens) -> Scores:
    """Cosines of sentences as sums of the vectors (V, d) of their words."""
    return _cosines(counts_of(tokens, len(vectors)) @ vectors)


def encoder(vectors: np.ndarray, tokenizer: PreTrainedTokenizerFast) -> Encode:
    """Sentences as sums of the vectors (V, d) of their words, of unit length; zeros without any."""

    def encode(sentences: Sequence[str]) -> np.ndarray:
        rows = tokenizer(list(checked_sentences(sentences)), add_special_tokens=False)["input_ids"]
        ends = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        ids = np.fromiter((number for row in rows for number in row), np.int32, ends[-1])
        embeddings: np.ndarray = normalize(_count_matrix(ids, ends, len(vectors)) @ vectors)
        return embeddings

    return encode


def _count_matrix(ids: np.ndarray, offsets: np.ndarray, words: int) -> sparse.csr_matrix:
    known = (ids != UNKNOWN_ID) & (ids != PAD_ID)
    shape = (len(offsets) - 1, words)
    counts = sparse.csr_matrix((known.astype(np.float32), ids, offsets), shape)
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts


def _cosines(features: np.ndarray | sparse.csr_matrix) -> Scores:
    """Of rows of features, (n, d)."""
    unit = normalize(features) if features.shape[0] else features  # there may be no held-out rows

    def scores(start: int, stop: int) -> Tensor:
        products = unit[start:stop] @ unit[start:stop].T
        return torch.from_numpy(products.toarray() if sparse.issparse(products) else products)

    return scores
