# ruff: noqa: RUF001
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shared.experiment.data import MissingData, sha256_of_lines
from tests.stages.errors import error_of
from text.config import TASKS
from text.data import (
    _FILES,
    LAYOUTS,
    checked_sentences,
    corpus_fingerprint,
    fetch,
    load_task,
    missing,
    sentences,
    task_fingerprint,
)

# Most tasks here are made up; one test holds the notice.
pytestmark = pytest.mark.filterwarnings("ignore:.*not the sentences of SentEval:RuntimeWarning")
NOWHERE = Path("nowhere")


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """Files of the corpus "novels" below ``root``, which is returned."""
    for name, content in files.items():
        path = root / "novels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def read(root: Path, layout: str) -> list[tuple[int, str]]:
    return list(sentences("novels", layout, root))


def split(root: Path, paragraph: str) -> list[str]:
    return [sentence for _, sentence in read(write(root, {"a.txt": paragraph}), "paragraphs")]


# Of the files of the four tasks of two classes, the positive class first.
BINARY = {
    "MR": {"rt-polarity.pos": 5331, "rt-polarity.neg": 5331},
    "CR": {"custrev.pos": 2407, "custrev.neg": 1368},
    "SUBJ": {"subj.objective": 5000, "subj.subjective": 5000},
    "MPQA": {"mpqa.pos": 3312, "mpqa.neg": 7294},
}
OTHERS = {
    "TREC": {"train_5500.label": 5452, "TREC_10.label": 500},
    "MRPC": {"msr_paraphrase_train.txt": 4077, "msr_paraphrase_test.txt": 1726},
}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files of SentEval in their formats and lengths; each line names its file and number."""
    root = tmp_path_factory.mktemp("intact")
    coarse = ("NUM:dist", "ABBR:exp", "LOC:city", "HUM:ind", "ENTY:cremat", "DESC:manner")
    counts = {
        f"{task}/{file}": count
        for task, files in {**BINARY, **OTHERS}.items()
        for file, count in files.items()
    }
    for name, count in counts.items():
        lines = [f"{name} line {number} , “ quoted ” ." for number in range(1, count + 1)]
        if name.startswith("TREC"):
            lines = [f"{coarse[place % 6]} {line}" for place, line in enumerate(lines)]
        if name.startswith("MRPC"):
            lines = [
                f'{place % 2}\t{place}\t{place + 1}\t{line}\tnot "{line}'
                for place, line in enumerate(lines)
            ]
            lines[0] = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        path = root / "senteval" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


@pytest.fixture
def senteval(intact: Path, tmp_path: Path) -> Path:
    """A data root with generated tasks, free to be damaged."""
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    return tmp_path


def change_lines(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    lines = change(path.read_text(encoding="utf-8").split("\n")[:-1])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# Paragraphs to sentences; "|" stands between the sentences of a paragraph


@pytest.mark.parametrize(
    "marked",
    [
        "It rained. |Nobody came. |Why?",
        # closing quotes and brackets
        "“Come in.” |She did. |(He stayed.) |‘No.’ |Then she left.",
        "“ ‘Never.’ ” |He sat down.",
        "“So I said, ‘Never.’” |He sat down.",
        '"Go." |"Why?" |She went. |(She had to.) |[Note.] |"\'Now.\'" |End.',
        "’Tis true. |’Tis pity. |“’Tis so.”",
        # dialogue goes on in lower case
        "“Yes!” he said. |“No!” she said.",
        "He cried, “Go away!” and left. |“Why?—” he began.",
        "“You!”—he stopped. |“Élan?” était là.",
        "“You?” |Émile came.",
        # abbreviations and initials, in quotes, before a quote and after a dash
        "Mr. and Mrs. Smith met Dr. Jones. |He left St. Mary’s.",
        "“I am Mr. Smith.” |He bowed. |“Mr. Smith!” |“Ask Mrs. Brown.” |She did.",
        "That day—Mr. Smith came. |(Dr. Jones did not.) |‘Capt. Hook!’",
        "J. R. R. Tolkien wrote it. |“M. Poirot,” she said.",
        "It fell, e.g. Paris, i.e. France. |In the U.S. it did not.",
        "He said no. |Then he sat. |It took years, etc. |It was 1914. |They left.",
        # several marks, ellipses
        "What?! |No!!! |Yes.",
        "“I see … perhaps.” |He stopped… |Then he ran. |“Well…” |He sat.",
        "“I see... perhaps.” |He stopped... |Then he ran.",
        "It ends. … |It begins. . . . |“It goes on. …”",
        "3.5 miles, 7.30 p.m. or so, at www.example.org. |Done.",
        "Without an end",
    ],
)
def test_paragraphs_are_split_where_a_reader_would(tmp_path: Path, marked: str) -> None:
    expected = [sentence.strip() for sentence in marked.split("|")]
    assert split(tmp_path, marked.replace("|", "")) == expected


def test_white_space_within_a_paragraph_is_single_spaces(tmp_path: Path) -> None:
    found = split(tmp_path, "\ufeff \tMr.\u00a0Smith  came\u2003in.\t He \x0b sat. \r\n")
    assert found == ["Mr. Smith came in.", "He sat."]


# Layouts


@pytest.mark.parametrize(
    ("layout", "text", "expected"),
    [
        (  # a blank line ends a chapter
            "paragraphs",
            "\n\nOne. Two.\nThree.\n\n \t\n\nFour.\n\n",
            [(0, "One."), (0, "Two."), (0, "Three."), (1, "Four.")],
        ),
        (  # lines are taken as they are
            "sentences",
            "one . two  three\nfour ?\n\n\nmr. \u00a0 five",
            [(0, "one . two  three"), (0, "four ?"), (1, "mr. \u00a0 five")],
        ),
        (  # lines are joined to paragraphs, and two blank ones end a chapter
            "wrapped",
            "\n\nOne is\nlo\u00ad\nng. Two\n  is, too.\n\nThree\n\n\nFour\n\n\nFive. Six\nseven.",
            [
                *((0, "One is long."), (0, "Two is, too."), (0, "Three"), (1, "Four")),
                *((2, "Five."), (2, "Six seven.")),
            ],
        ),
    ],
)
def test_layouts_say_what_a_line_is(
    tmp_path: Path, layout: str, text: str, expected: list[tuple[int, str]]
) -> None:
    assert read(write(tmp_path, {"a.txt": text}), layout) == expected


LINES = "One.\nTwo.\n\nThree.\n\n\nFour – ‘né’.\n"


@pytest.mark.parametrize("end", ["\r\n", "\r", "\r\r\n"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lines_may_end_in_any_way(tmp_path: Path, layout: str, end: str) -> None:
    plain = read(write(tmp_path / "unix", {"a.txt": LINES}), layout)
    assert len(plain) == 4
    assert read(write(tmp_path / "other", {"a.txt": LINES.replace("\n", end)}), layout) == plain


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_file_starts_a_chapter_and_files_come_in_order_of_name(
    tmp_path: Path, layout: str
) -> None:
    files: dict[str, str | bytes] = {
        "c.TXT": "Fourth.",
        "b/y.txt": "Third.\n\n\n",
        "b/x.txt": "\ufeffSecond.\n",
        "a.txt": "First.\n\n\nStill first.",
        "aa.txt": "\n\n",
        # What is not read.
        "d.md": "Markup.",
        "._a.txt": b"\x00\x05\x16\x07",
        "b/.ipynb_checkpoints/x-checkpoint.txt": "Second.",
    }
    expected = [(0, "First."), (1, "Still first."), (2, "Second."), (3, "Third."), (4, "Fourth.")]
    assert read(write(tmp_path, files), layout) == expected


def test_the_manual_is_prose_and_each_topic_a_chapter() -> None:
    found = list(sentences("manual", "wrapped", NOWHERE))
    assert found == list(sentences("manual", "paragraphs", NOWHERE))
    assert len(found) > 2000
    chapters = [chapter for chapter, _ in found]
    assert chapters == sorted(chapters)
    assert len(set(chapters)) > 70
    text = [sentence for _, sentence in found]
    assert all(sentence.isprintable() and "  " not in sentence for sentence in text)
    assert not any("****" in sentence or "::=" in sentence[:40] for sentence in text)
    assert all(sentence[-1] in '.:?!…)"”’' for sentence in text)
    assert 10 < np.mean([len(sentence.split()) for sentence in text]) < 30


# Bad corpora


def test_a_corpus_that_is_not_there_or_has_no_sentence_is_named(tmp_path: Path) -> None:
    for action in (
        lambda: sentences("novels", "paragraphs", tmp_path),
        lambda: corpus_fingerprint("novels", tmp_path),
    ):
        with pytest.raises(MissingData) as caught:
            action()
        assert (caught.value.name, caught.value.folder) == ("novels", tmp_path / "novels")
    found = missing("novels", ("MR", "topics"), tmp_path)
    assert [(each.name, each.folder.name) for each in found] == [
        *(("novels", "novels"), ("senteval", "MR"))
    ]
    write(tmp_path, {"readme.md": "Nothing here."})
    (tmp_path / "novels" / "folder.txt").mkdir()
    for action in (
        lambda: sentences("novels", "paragraphs", tmp_path),
        lambda: fetch("novels", tmp_path),
    ):
        assert "novels" in error_of(action)
    (tmp_path / "novels" / "folder.txt").rmdir()
    write(tmp_path, {"a.txt": "", "b.txt": "\n\n \n\n", "c.txt": b"\xef\xbb\xbf\r\n"})
    for layout in LAYOUTS:
        assert "no sentences" in error_of(lambda layout=layout: read(tmp_path, layout))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\xef\xbb\xbfOne.\nna\xefve", "UTF-8"),
        (b"One.\nT\0wo.\n", "line 2"),
    ],
)
def test_files_that_are_not_text_are_named(tmp_path: Path, content: bytes, word: str) -> None:
    write(tmp_path, {"a.txt": "Zero.", "b.txt": content})
    stream = sentences("novels", "paragraphs", tmp_path)
    assert next(stream) == (0, "Zero.")
    message = error_of(lambda: list(stream))
    assert str(tmp_path / "novels" / "b.txt") in message
    assert word in message


def test_official_bookcorpus_has_two_files(tmp_path: Path) -> None:
    folder = tmp_path / "bookcorpus"
    folder.mkdir()
    (folder / "books_large_p1.txt").write_text("the first part .\n`` yes , '' mr. a said .\n")
    (folder / "readme.txt").write_text("This is no book.")
    for action in (
        lambda: sentences("bookcorpus", "sentences", tmp_path),
        lambda: fetch("bookcorpus", tmp_path),
    ):
        assert "books_large_p2.txt" in error_of(action)
    (folder / "books_large_p2.txt").write_text("the second .\n")
    fetch("bookcorpus", tmp_path)
    assert list(sentences("bookcorpus", "sentences", tmp_path)) == [
        (0, "the first part ."),
        (0, "`` yes , '' mr. a said ."),
        (1, "the second ."),
    ]


# Sentences from elsewhere


def test_sentences_are_taken_by_position_from_any_column() -> None:
    expected = ["It rained.", "", "Why?"]
    for column in (
        expected,
        (each for each in expected),
        np.array(expected),
        np.array(expected, dtype=object),
        pd.Series(expected, index=[2, 0, 1]),
        pd.DataFrame({"text": expected}, index=["c", "a", "b"])["text"],
    ):
        found = list(checked_sentences(column))
        assert found == expected
        assert {type(sentence) for sentence in found} == {str}


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ("It rained.", "list"),
        ({"It rained."}, "set"),
        (pd.DataFrame({"text": ["It rained."]}), "2 dimensions"),
        (["a", None], "sentence 1"),
        (pd.Series(["a", "b", np.nan]), "sentence 2"),
        ([b"a"], "sentence 0"),
    ],
)
def test_columns_and_entries_that_are_no_sentences_are_named(column: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        list(checked_sentences(column))


# SentEval's tasks


@pytest.mark.parametrize("name", BINARY)
def test_binary_tasks_have_the_positive_class_first(intact: Path, name: str) -> None:
    (positive, first), (negative, second) = BINARY[name].items()
    task = load_task(name, intact)
    assert task.labels.tolist() == [1] * first + [0] * second
    assert (len(task.first), task.second, task.train) == (first + second, None, first + second)
    assert task.first[0] == f"{name}/{positive} line 1 , “ quoted ” ."
    assert task.first[first] == f"{name}/{negative} line 1 , “ quoted ” ."


def test_trec_has_coarse_classes_and_msrp_pairs(intact: Path) -> None:
    task = load_task("TREC", intact)
    assert (len(task.first), task.second, task.train) == (5952, None, 5452)
    assert task.labels[[*range(7), 5452, 5453, 5454]].tolist() == [5, 0, 4, 3, 2, 1, 5, 5, 0, 4]
    assert task.first[5452] == "TREC/TREC_10.label line 1 , “ quoted ” ."
    task = load_task("MSRP", intact)
    assert (len(task.first), len(task.second), task.train) == (5801, 5801, 4076)
    assert task.labels.dtype == np.int64
    assert task.labels[[0, 1, 2, 4076, 4077, 4078]].tolist() == [1, 0, 1] * 2
    assert task.first[0] == "MRPC/msr_paraphrase_train.txt line 2 , “ quoted ” ."
    assert task.second[4076] == 'not "MRPC/msr_paraphrase_test.txt line 2 , “ quoted ” .'


def test_blank_lines_are_sentences_and_separators_end_no_line(senteval: Path) -> None:
    path = senteval / "senteval" / "CR" / "custrev.neg"
    change_lines(path, lambda lines: ["", "a\u2028b\x0cc\x85d", *lines[2:-1], " "])
    with pytest.warns(RuntimeWarning, match="custrev.neg: not the sentences of SentEval's file"):
        task = load_task("CR", senteval)
    assert task.first[2407:2409] == ("", "a\u2028b\x0cc\x85d")
    assert task.first[-1] == ""
    assert len(task.first) == 3775


def test_other_sentences_than_senteval_s_are_noticed(
    senteval: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [senteval / "senteval" / known.path for known in _FILES["MR"]]
    digests = [sha256_of_lines(file.read_text(encoding="utf-8").splitlines()) for file in files]
    known = [one._replace(digest=of[:16]) for one, of in zip(_FILES["MR"], digests, strict=True)]
    monkeypatch.setitem(_FILES, "MR", tuple(known))
    positive, negative = files
    positive.write_bytes(positive.read_bytes().replace(b"\n", b"\r\n"))
    with warnings.catch_warnings(record=True) as caught:
        load_task("MR", senteval)
    assert not caught
    whole = positive.read_bytes()
    positive.write_bytes(whole.replace(b"line", b"lime", 1))
    with pytest.warns(RuntimeWarning, match="rt-polarity.pos: not the sentences of SentEval's"):
        load_task("MR", senteval)
    positive.write_bytes(negative.read_bytes())
    negative.write_bytes(whole)
    assert negative.name in error_of(lambda: load_task("MR", senteval))


@pytest.mark.parametrize(
    ("task", "name", "line", "text"),
    [
        ("MR", "MR/rt-polarity.neg", 5331, None),  # a line less
        ("TREC", "TREC/train_5500.label", 9, "WHO:x Who ?"),
        ("MSRP", "MRPC/msr_paraphrase_test.txt", 1726, "1\tx" + "a" * 90),
    ],
)
def test_damaged_files_are_named(
    senteval: Path, task: str, name: str, line: int, text: str | None
) -> None:
    path = senteval / "senteval" / name
    put = [] if text is None else [text]
    change_lines(path, lambda lines: [*lines[: line - 1], *put, *lines[line:]])
    said = error_of(lambda: load_task(task, senteval))
    assert said.startswith(f"{path}: 5330 lines" if text is None else f"{path}, line {line}: ")


def test_missing_and_unknown_tasks_are_named(senteval: Path) -> None:
    assert missing("manual", TASKS, senteval) == []
    (senteval / "senteval" / "TREC" / "TREC_10.label").unlink()
    shutil.rmtree(senteval / "senteval" / "MR")
    for action in (load_task, lambda name, root: task_fingerprint([name], root)):
        with pytest.raises(MissingData) as caught:
            action("TREC", senteval)
        assert caught.value.folder == senteval / "senteval" / "TREC"
        with pytest.raises(ValueError, match="SST"):
            action("SST", senteval)
    said = error_of(lambda: fetch("senteval", senteval))
    assert "MR/rt-polarity.pos, MR/rt-polarity.neg, TREC/TREC_10.label" in said


# The embedded tasks


@pytest.mark.parametrize(
    ("name", "train", "counts"),
    [("topics", 120, [60, 60]), ("questions", 160, [50] * 4), ("neighbours", 120, [80, 80])],
)
def test_classes_of_the_embedded_tasks_are_equally_large(
    name: str, train: int, counts: list[int]
) -> None:
    task = load_task(name, NOWHERE)
    assert task.labels.dtype == np.int64
    assert task.train == train
    assert np.bincount(task.labels).tolist() == counts
    assert len(set(np.bincount(task.labels[:train]))) == 1
    assert len(task.first) == len(task.second or task.first) == len(task.labels)
    assert len(set(task.first)) > 0.95 * len(task.first)


def test_neighbours_follow_each_other_and_the_others_are_half_a_topic_away() -> None:
    topic = [sentence for _, sentence in sentences("manual", "wrapped", NOWHERE)]
    task = load_task("neighbours", NOWHERE)
    distances: dict[int, set[bool]] = {0: set(), 1: set()}
    for first, second, label in zip(task.first, task.second, task.labels.tolist(), strict=True):
        following = {topic[i + 1] for i, each in enumerate(topic[:-1]) if each == first}
        distances[label].add(second in following)
        near = {topic[i + 2] for i, each in enumerate(topic[:-2]) if each == first}
        assert label or second not in near
    assert True in distances[1]
    assert distances[0] == {False}


# Fingerprints


def test_fingerprint_of_a_corpus_follows_names_and_contents(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"a/x.txt": "One.", "b/x.txt": "Two.", "c.txt": "Three."}

    def of(files: dict[str, str | bytes]) -> str:
        shutil.rmtree(tmp_path / "novels", ignore_errors=True)
        return corpus_fingerprint("novels", write(tmp_path, files))

    assert of(files) == of(files) == of(files | {"readme.md": "Not read."})
    others = [
        files | {"c.txt": "Thre."},
        files | {"d.txt": ""},
        files | {"a/x.txt": "Two.", "b/x.txt": "One."},
        {"a/x.txt": "One.", "d/x.txt": "Two.", "c.txt": "Three."},
    ]
    assert len({of(files), *map(of, others)}) == 5


def test_fingerprint_of_tasks_follows_their_files(senteval: Path) -> None:
    known = {name: task_fingerprint([name], senteval) for name in TASKS}
    both = task_fingerprint(["MR", "CR"], senteval)
    assert len({*known.values(), both}) == 7
    change_lines(
        senteval / "senteval" / "MR" / "rt-polarity.neg", lambda lines: ["new", *lines[1:]]
    )
    after = {name: task_fingerprint([name], senteval) for name in TASKS}
    assert [name for name in TASKS if after[name] != known[name]] == ["MR"]
    assert task_fingerprint(["MR", "CR"], senteval) != both


# Fetching


def test_fetch_verifies_what_is_there(senteval: Path) -> None:
    fetch("senteval", senteval)
    fetch("manual", senteval)
    fetch("novels", write(senteval, {"a.txt": "One.\n"}))
    write(senteval, {"b.txt": b"\xff"})
    assert "b.txt" in error_of(lambda: fetch("novels", senteval))
    change_lines(senteval / "senteval" / "MPQA" / "mpqa.pos", lambda lines: lines[1:])
    assert "mpqa.pos" in error_of(lambda: fetch("senteval", senteval))


# Real files


def real(suite_data: Path, name: str) -> Path:
    if not (suite_data / name).is_dir():
        pytest.skip(f"needs real data: {suite_data / name} is no folder")
    return suite_data


def test_real_book_is_split_without_losing_a_word(tmp_path: Path, suite_data: Path) -> None:
    book = real(suite_data, "books") / "books" / "agatha-christie_the-big-four.txt"
    (tmp_path / "books").mkdir()
    shutil.copy(book, tmp_path / "books")
    found = list(sentences("books", "paragraphs", tmp_path))
    chapters = book.read_text(encoding="utf-8").strip().split("\n\n")
    assert found[-1][0] == len(chapters) - 1
    for number, chapter in enumerate(chapters):
        own = [sentence for each, sentence in found if each == number]
        assert " ".join(" ".join(own).split()) == " ".join(chapter.split())
    assert len(found) == 5033
    broken = [text for _, text in found if text.endswith((" Mr.", "“Mr.", " Dr.", " Mrs."))]
    assert broken == []
