"""From sentences to token ids: tokenizer, ids on disk, batches.

Shapes: n sentences of a corpus, B of a batch, T tokens of its longest, V words of a vocabulary.

A corpus is read twice, once for its vocabulary and once for its ids, and is never held in memory.
Its ids are stored below the data root, in one folder per corpus, vocabulary and case:

    prepared/<corpus>-<layout>-<vocabulary>-<case>-<hash>/
        ids.bin           the tokens of all sentences in order: uint16, int32 for V > 65,536
        offsets.bin       n + 1 int64: the tokens of sentence i are ids[offsets[i]:offsets[i + 1]]
        chapters.bin      n int32
        tokenizer.json
        meta.json         settings, the counts that the other files have to match, and the first
                          chapter of each file of the corpus
        SHA256SUMS        of all the above
"""

import contextlib
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from shared.errors import UserError
from shared.experiment.data import build_once, read_meta, short_hash, write_meta, writing
from shared.experiment.files import write_atomically
from shared.notices import Progress
from text.data import INVISIBLE, checked_sentences, corpus_fingerprint, sentences

# The tokenizers library can keep threads, which a forked process does not inherit: it would wait
# for them forever, or warn. They would gain little, since reading sentences takes as long.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

UNKNOWN, UNKNOWN_ID = "<unk>", 0
PAD, PAD_ID = "<pad>", 1

# Part of the key of prepared ids, as are the rules below; to be increased whenever the same text is
# stored differently, including by a change of how text.data splits sentences.
FORMAT = 3
FILES = ("ids.bin", "offsets.bin", "chapters.bin", "tokenizer.json", "meta.json")
CHUNK = 500  # sentences that are encoded together

# Typography is converted to that of the task files, in this order. They write a dash as two
# hyphens, an ellipsis sometimes with spaces, and occasionally "don 't".
REPLACED: tuple[tuple[str, str], ...] = (
    (f"[{INVISIBLE}]", ""),  # a soft hyphen would split its word in two
    (r"[\u201c\u201d\u201e\u201f\u2033]|``|''", '"'),  # double quotes
    (r"[\u2018\u2019\u201b\u02bc\u2032`]", "'"),  # single quotes and apostrophes
    (r"[\u2010\u2011\u2212]", "-"),  # hyphens and the minus sign
    (r"[\u2012-\u2015\u2e3a\u2e3b]|-{2,}", "--"),  # dashes
    (r"\u2026|\.(?: ?\.)+", "..."),
    (r"(?<=[Nn]) (?='[Tt]\b)", ""),
)
_LETTER = r"[\p{L}\p{M}\p{N}]"
_END = rf"(?!{_LETTER})"
_NOT = rf"(?i:n't){_END}"
_CLITIC = rf"'(?i:s|re|ve|ll|d|m){_END}"
_FUSED = (("can", "not"), ("gim", "me"), ("gon", "na"), ("got", "ta"), ("lem", "me"), ("wan", "na"))
_PART = rf"(?:(?!{_NOT}){_LETTER})+"  # of a word, between hyphens and apostrophes
# A token, in the manner of the Penn Treebank: the first of these that matches. A period is a
# separate token except in numbers and after single letters, since the task files have both "mr ."
# and "Mr.".
TOKEN = "|".join(
    (
        _NOT,
        _CLITIC,
        rf"'(?i:(?:em|t){_END}|t(?=is{_END}|was{_END}))",  # 'em, 't|is, 't|was
        "(?i:" + "|".join(rf"{first}(?={second}{_END})" for first, second in _FUSED) + ")",
        r"(?:\p{L}\.){2,}",  # U.S., a.m.
        r"(?i:-[lr][rcs]b-)",  # the Treebank's brackets
        rf"{_PART}(?:(?:-|(?!{_CLITIC})'|(?<=\p{{N}})[.,:/](?=\p{{N}})){_PART})*",
        r"\.\.\.|--|[^\s\p{C}]",
    )
)


def make_tokenizer(
    sentences: Iterable[str], vocabulary: int, lower_case: bool
) -> PreTrainedTokenizerFast:
    """A tokenizer into words, with the most frequent words of ``sentences`` as its vocabulary.

    Among equally frequent words, the first in code point order is kept. The text "<pad>" is not
    padding but three tokens.

    Args:
        sentences: read once and not kept.
        vocabulary: the largest number of words, including the unknown word (id 0) but not the
            padding (id 1).
        lower_case: whether to lower-case.

    Raises:
        ValueError: the vocabulary has no room for a word, or a sentence is not a string.
    """
    if vocabulary < 2:
        raise ValueError(f"vocabulary must be at least 2, the unknown word included: {vocabulary}")
    tokenizer = Tokenizer(WordLevel({UNKNOWN: UNKNOWN_ID}, unk_token=UNKNOWN))
    steps = [normalizers.NFC(), *(normalizers.Replace(Regex(a), b) for a, b in REPLACED)]
    if lower_case:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    # The matches are the tokens; anything between them is dropped.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "removed", invert=True)
    trainer = WordLevelTrainer(
        vocab_size=vocabulary + 1, special_tokens=[UNKNOWN, PAD], show_progress=False
    )
    tokenizer.train_from_iterator(checked_sentences(sentences), trainer)
    return _wrapped(tokenizer)


@dataclass(frozen=True)
class Batch:
    """Consecutive sentences, on the CPU.

    ids: (B, T) int64, padding after the last token. mask: (B, T) bool, True at tokens. chapter:
    (B,) int64, counted over the whole corpus.
    """

    ids: Tensor
    mask: Tensor
    chapter: Tensor


@dataclass(frozen=True)
class Tokens:
    """The token ids of a corpus, memory-mapped: only what a batch needs is read from the disk.

    ids: (all tokens,) uint16 or int32. offsets: (n + 1,) int64, where each sentence begins, and the
    end. chapter: (n,) int32, counted over the whole corpus. books: the first chapter of each file.
    """

    ids: np.ndarray
    offsets: np.ndarray
    chapter: np.ndarray
    books: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.chapter)

    def part(self, start: int, stop: int) -> "Tokens":
        """The sentences from ``start`` up to, not including, ``stop``."""
        return Tokens(self.ids, self.offsets[start : stop + 1], self.chapter[start:stop])

    def batch(self, start: int, stop: int, length: int) -> Batch:
        """The sentences from ``start`` up to, not including, ``stop``, cut after ``length`` tokens.

        Raises:
            ValueError: there are no such sentences.
        """
        if not 0 <= start < stop <= len(self):
            raise ValueError(f"no sentences {start} to {stop} in a corpus of {len(self)}")
        offsets = np.asarray(self.offsets[start : stop + 1])
        flat = np.asarray(self.ids[offsets[0] : offsets[-1]])
        first = offsets[:-1] - offsets[0]
        count = np.minimum(np.diff(offsets), length)
        column = np.arange(count.max())
        mask = column < count[:, None]
        # Beyond the end of a sentence any valid index will do.
        index = np.minimum(first[:, None] + column, len(flat) - 1)
        ids = np.where(mask, flat[index], PAD_ID).astype(np.int64)
        chapter = self.chapter[start:stop].astype(np.int64)
        return Batch(*(torch.from_numpy(np.asarray(array)) for array in (ids, mask, chapter)))


def prepare(
    corpus: str,
    layout: str,
    data_root: Path,
    *,
    vocabulary: int = 0,
    lower_case: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
    progress: Progress | None = None,
) -> tuple[Tokens, PreTrainedTokenizerFast]:
    """The token ids of a corpus and the tokenizer that made them, built on first use.

    Concurrent processes build them once, and an interrupted build is repeated. Sentences without
    tokens are left out.

    Args:
        corpus: see :func:`text.data.sentences`, as for ``layout`` and ``data_root``.
        layout: what a line is.
        data_root: the folder that holds the corpus; ``prepared`` is created in it.
        vocabulary: see :func:`make_tokenizer`, as for ``lower_case``.
        lower_case: whether to lower-case.
        tokenizer: in place of one of the corpus's words; ``vocabulary`` and ``lower_case`` then
            say nothing.
        progress: called during a build with the number of sentences done, their total (0 while
            unknown), and a description.

    Raises:
        MissingData: the corpus is not there.
        UserError: it has no words, cannot be read, the data root cannot be written, or the files
            that were prepared are damaged.
        ValueError: the vocabulary has no room for a word.
    """
    key = {
        "corpus": corpus,
        "fingerprint": corpus_fingerprint(corpus, data_root),
        "layout": layout,
        "vocabulary": vocabulary,
        "lower_case": lower_case,
        "rules": [FORMAT, REPLACED, TOKEN],
    }
    words = f"{vocabulary}-{'lower' if lower_case else 'cased'}"
    if tokenizer is not None:
        words = "given"
        key |= {"tokenizer": tokenizer.backend_tokenizer.to_str(), "rules": FORMAT}
    name = f"{re.sub('[/:]', '-', corpus)}-{layout}-{words}-{short_hash(key)}"
    folder = data_root / "prepared" / name
    build_once(folder, lambda part: _build(part, key, data_root, tokenizer, progress))
    tokens, made = _read_tokens(folder)
    return tokens, tokenizer or made


def order_of_batches(batches: int, seed: int, epoch: int, shuffled: bool) -> np.ndarray:
    """The order of an epoch's batches, (batches,) int64, a pure function of the arguments.

    A batch is a block of consecutive sentences; only the order of the blocks is shuffled.
    """
    if not shuffled:
        return np.arange(batches)
    return np.random.default_rng([seed, epoch]).permutation(batches)


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PAD,
        padding_side="right",
        split_special_tokens=True,  # the text "<pad>" is not padding
        model_input_names=["input_ids", "attention_mask"],
    )


def _build(
    part: Path,
    key: dict[str, Any],
    data_root: Path,
    tokenizer: PreTrainedTokenizerFast | None,
    progress: Progress | None,
) -> None:
    meta = _write_tokens(part, key, data_root, tokenizer, progress)
    with writing(part.parent):
        write_meta(part, meta, FILES)


def _write_tokens(
    folder: Path,
    key: dict[str, Any],
    data_root: Path,
    tokenizer: PreTrainedTokenizerFast | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write all files but ``meta.json``, whose content is returned."""
    corpus, layout = key["corpus"], key["layout"]
    read, books = 0, list[int]()

    def texts() -> Iterator[str]:
        nonlocal read
        for _, sentence in sentences(corpus, layout, data_root, books):
            read += 1
            if progress is not None and read % CHUNK == 0:
                progress(read, 0, f"counting the words of {corpus}")
            yield sentence

    if tokenizer is None:
        tokenizer = make_tokenizer(texts(), key["vocabulary"], key["lower_case"])
    kind = "<u2" if len(tokenizer) <= 1 << 16 else "<i4"
    written, tokens, done = 0, 0, 0
    with contextlib.ExitStack() as files:
        with writing(folder):
            text = tokenizer.backend_tokenizer.to_str()
            write_atomically(folder / "tokenizer.json", text)
            names = ("ids.bin", "offsets.bin", "chapters.bin")
            ids, offsets, chapters = (
                files.enter_context((folder / name).open("wb", buffering=0)) for name in names
            )
            _write(offsets, np.zeros(1, "<i8"))
        pairs = sentences(corpus, layout, data_root)
        while chunk := list(itertools.islice(pairs, CHUNK)):
            numbers, strings = zip(*chunk, strict=True)
            encoded = tokenizer.backend_tokenizer.encode_batch_fast(strings)
            rows = [encoding.ids for encoding in encoded]
            count = np.fromiter(map(len, rows), np.int64, len(rows))
            ends = tokens + count[count > 0].cumsum()
            with writing(folder):
                _write(ids, np.fromiter(itertools.chain.from_iterable(rows), kind))
                _write(offsets, ends.astype("<i8"))
                _write(chapters, np.array(numbers, "<i4")[count > 0])
            written, tokens, done = written + len(ends), tokens + int(count.sum()), done + len(rows)
            if progress is not None:
                progress(done, read, f"encoding {corpus}")
        with writing(folder):
            for file in (ids, offsets, chapters):
                os.fsync(file.fileno())
    if not tokens:
        raise UserError(f"{data_root / corpus}: no sentence with a word in it")
    counts = {"sentences": written, "skipped": done - written, "tokens": tokens}
    return counts | {"words": len(tokenizer), "type": kind, "books": books} | key


def _write(file: io.FileIO, numbers: np.ndarray) -> None:
    """Write all, or raise: a buffered file would retry, and fail again, on closing."""
    left = memoryview(numbers.tobytes())
    while left:
        left = left[file.write(left) :]


def _read_tokens(folder: Path) -> tuple[Tokens, PreTrainedTokenizerFast]:
    """The content of ``folder``, after checking that it is intact."""
    meta = read_meta(folder, FILES)
    kinds = {"ids.bin": meta["type"], "offsets.bin": "<i8", "chapters.bin": "<i4"}
    arrays = (np.memmap(folder / name, kind, mode="r") for name, kind in kinds.items())
    ids, offsets, chapter = arrays
    tokens = Tokens(ids, offsets, chapter, meta["books"])
    return tokens, _wrapped(Tokenizer.from_file(str(folder / "tokenizer.json")))
