# ruff: noqa: RUF001 (the quotation marks of printed books are what is tested)
import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from text.data import sentences
from text.tokens import PAD_ID, Tokens, make_tokenizer, prepare

LINES = (
    "It is the first line , isn't it ?",
    "The second one is short .",
    "\u200b",  # nothing to see, and no token
    "",  # ends the chapter
    "“Here’s a second chapter,” he said; “the first was longer.”",
    "It is the last line .",
)


def write(root: Path, *lines: str, corpus: str = "corpus") -> Path:
    (root / corpus).mkdir(parents=True, exist_ok=True)
    (root / corpus / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def small(root: Path, vocabulary: int = 100) -> tuple[Tokens, PreTrainedTokenizerFast]:
    return prepare("corpus", "sentences", root, vocabulary=vocabulary, lower_case=False)


def folder_of(root: Path) -> Path:
    """The one folder that was prepared."""
    (folder,) = (each for each in (root / "prepared").iterdir() if each.is_dir())
    return folder


def stored(tokens: Tokens) -> list[list[int]]:
    pairs = itertools.pairwise(tokens.offsets.tolist())
    return [tokens.ids[start:stop].tolist() for start, stop in pairs]


def words(text: str, *, lower_case: bool = False) -> list[str]:
    found: list[str] = make_tokenizer([text], 1000, lower_case).tokenize(text)
    return found


# The tokenizer


@pytest.mark.parametrize(
    ("book", "task"),
    [
        ("I don’t know.", "I do n't know ."),
        ("I don't know.", "I don 't know ."),
        ("He’s here; she'd've gone.", "He 's here ; she 'd 've gone ."),
        ("WE’LL see, ISN’T it?", "WE 'LL see , IS N'T it ?"),
        ("“Yes,” I’m told.", "`` Yes , '' I 'm told ."),
        ("‘Emma’s,’ they’re saying", "` Emma 's , ' they 're saying"),
        ("fifty-five—that’s it", "fifty-five -- that 's it"),
        ("non‑breaking", "non-breaking"),
        ("and then…", "and then . . ."),
        ("I cannot; I’m gonna.", "I can not ; I 'm gon na ."),
        ("Mr. Smith won’t", "Mr . Smith wo n't"),
        ("the characters’ $1,000.50 (50%)", "the characters ' $ 1,000.50 ( 50 % )"),
        ("’Tis ’em, rock’n’roll", "'T is 'em , rock'n'roll"),
        ("writer/director", "writer / director"),
        ("nai\u0308ve", "na\u00efve"),
        ("a rai\u00adny, rai\u2060ny \ufeffday", "a rainy , rainy day"),
    ],
)
def test_a_book_and_a_tokenised_task_file_give_the_same_tokens(book: str, task: str):
    tokens = words(book)
    assert tokens == words(task)
    # Every blank of the task file divides two tokens; those that are joined differ in nothing else.
    assert len(tokens) == len(task.replace(". . .", "...").replace("n 't", " n't").split())


def test_the_vocabulary_holds_the_most_frequent_words_and_breaks_ties_by_code_point():
    text = "b b b Z Z é é a a c c d ".split() * 3
    expected = ["<unk>", "<pad>", "b", "Z", "a", "c"]  # d and é have no place
    for seed in range(20):
        random.Random(seed).shuffle(text)
        lines = (" ".join(text[i : i + 5]) for i in range(0, len(text), 5))
        vocabulary = make_tokenizer(lines, 5, False).get_vocab()
        assert sorted(vocabulary, key=vocabulary.__getitem__) == expected
    for texts, size, word in ((["a"], 1, "at least 2"), (["a", None], 10, "sentence 1")):
        with pytest.raises(ValueError, match=word):
            make_tokenizer(texts, size, False)


@pytest.mark.parametrize("loader", [PreTrainedTokenizerFast, AutoTokenizer])
def test_a_saved_tokenizer_gives_the_same_ids(loader: Any, tmp_path: Path):
    texts = [*LINES, "Something ELSE, <pad> don’t"]
    tokenizer = make_tokenizer(LINES, 20, True)
    tokenizer.save_pretrained(tmp_path)
    loaded = loader.from_pretrained(tmp_path)
    first, second = (each(texts, padding=True) for each in (tokenizer, loaded))
    assert first["input_ids"] == second["input_ids"]
    assert first["attention_mask"] == second["attention_mask"]
    assert any(0 in row for row in first["input_ids"])


# The ids on disk


def test_the_store_is_what_a_plain_loop_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, *LINES)
    monkeypatch.setattr("text.tokens.CHUNK", 2)
    tokens, tokenizer = small(tmp_path, vocabulary=12)
    expected, chapters = [], []
    for chapter, sentence in sentences("corpus", "sentences", tmp_path):
        if ids := tokenizer(sentence)["input_ids"]:
            expected.append(ids)
            chapters.append(chapter)
    assert stored(tokens) == expected
    assert tokens.chapter.tolist() == chapters == [0, 0, 1, 1]
    assert len(tokens) == 4
    counts = Counter(word for line in LINES for word in words(line))
    assert len(tokenizer) == 13
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:11]
    assert tokenizer.convert_ids_to_tokens(list(range(2, 13))) == frequent
    meta = json.loads((folder_of(tmp_path) / "meta.json").read_text())
    assert (meta["sentences"], meta["skipped"], meta["tokens"]) == (4, 1, sum(map(len, expected)))
    assert folder_of(tmp_path).name.startswith("corpus-sentences-12-cased-")
    monkeypatch.delattr("text.tokens._build")
    second, again = small(tmp_path, vocabulary=12)
    assert isinstance(second.ids, np.memmap)  # a corpus may be larger than the memory
    assert stored(second) == expected
    texts = ["It", "nowhere at all"]
    assert again(texts, padding=True) == tokenizer(texts, padding=True)


def test_other_text_or_options_have_another_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small(write(tmp_path, *LINES))
    small(tmp_path, vocabulary=50)
    prepare("corpus", "sentences", tmp_path, vocabulary=100, lower_case=True)
    prepare("corpus", "paragraphs", tmp_path, vocabulary=100, lower_case=False)
    small(write(tmp_path, *LINES, "And more."))
    monkeypatch.setattr("text.tokens.FORMAT", 0)
    small(tmp_path)
    assert sum(each.is_dir() for each in (tmp_path / "prepared").iterdir()) == 6


# Batches


def test_a_batch_of_random_sentences_is_what_a_loop_gives():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 80, 1000)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ids = generator.integers(0, 50_000, offsets[-1]).astype(np.uint16)
    tokens = Tokens(ids, offsets, np.arange(1000, dtype=np.int32))
    batch = tokens.batch(300, 700, 50)
    assert batch.ids.shape == (400, 50)
    assert batch.chapter.tolist() == list(range(300, 700))
    for row in range(400):
        expected = ids[offsets[300 + row] : offsets[301 + row]][:50].tolist()
        assert batch.ids[row][batch.mask[row]].tolist() == expected
    assert (batch.ids[~batch.mask] == PAD_ID).all()
    assert int(batch.mask.sum()) == np.minimum(lengths[300:700], 50).sum()
    assert tokens.batch(3, 5, 1).ids[:, 0].tolist() == ids[offsets[3:5]].tolist()
    assert len(tokens.part(3, 5).offsets) == 3
