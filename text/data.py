"""Corpora as sentences in order, and the tasks on which a sentence encoder is evaluated.

Shapes: n sentences of a task.

Folders under the data root:

    <corpus>/**/*.txt     plain text (see lines_of); what a line of it is, the layout says
    bookcorpus/           books_large_p1.txt and books_large_p2.txt, one sentence a line
    senteval/             MR CR SUBJ MPQA TREC MRPC with SentEval's files, one example a line
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics as _MANUAL
from typing import Literal, NamedTuple, get_args

import numpy as np

from shared.errors import UserError, program
from shared.experiment.data import MissingData, check_prepared, sha256_of_files, sha256_of_lines
from shared.lazy import LazyImport
from shared.notices import notice
from text.config import EMBEDDED_TASKS, TASKS

MANUAL = "manual"
BOOKCORPUS = "bookcorpus"
SENTEVAL = "senteval"
Layout = Literal["paragraphs", "sentences", "wrapped"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

# Invisible characters within words: soft hyphen, word joiner, byte order mark.
INVISIBLE = "\u00ad\u2060\ufeff"

OWN = "folder:"  # before the path of the user's own folder
# Datasets that cannot be downloaded, and the expected content of the folder of that name.
DATASETS: dict[str, str] = {
    "books": (
        "put plain text there, such as public-domain novels: *.txt in UTF-8, one paragraph a line "
        "and a blank line between chapters"
    ),
    BOOKCORPUS: (
        "BookCorpus cannot be distributed; put your copy's books_large_p1.txt and "
        "books_large_p2.txt there, one sentence a line"
    ),
    SENTEVAL: (
        "put SentEval's files there: MR/rt-polarity.{pos,neg}, CR/custrev.{pos,neg}, "
        "SUBJ/subj.{objective,subjective}, MPQA/mpqa.{pos,neg}, TREC/{train_5500,TREC_10}.label, "
        "MRPC/msr_paraphrase_{train,test}.txt; or score on the two tasks that come with the suite: "
        "--set tasks=topics,questions"
    ),
}
_BOOKCORPUS_FILES = ("books_large_p1.txt", "books_large_p2.txt")


@dataclass(frozen=True)
class Task:
    """Sentences with labels: those of the training part, then those of the test part.

    first: n sentences, unchanged lines of the files. second: the other sentence of each pair, None
    for tasks on single sentences. labels: (n,) int64, classes from 0. train: number of training
    rows, n if the protocol makes its own folds.
    """

    first: tuple[str, ...]
    second: tuple[str, ...] | None
    labels: np.ndarray
    train: int


def lines_of(file: Path) -> Iterator[str]:
    """The lines of a text file without line ends; used for corpora and tasks.

    Accepted is UTF-8, with or without a byte order mark. A line ends at LF, CR LF, CR CR LF, or CR.
    Everything else in a line is kept. The file is never read as a whole.
    """
    before = ""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            for number, line in enumerate(text, 1):
                if "\0" in line:
                    raise UserError(f"{file}, line {number}: a NUL character; convert it to UTF-8")
                # CR CR LF is one line end, of a file converted to Windows' line ends twice.
                if not (line == "\r\n" and before.endswith("\r")):
                    yield line.rstrip("\r\n")
                before = line
    except UnicodeDecodeError:
        raise UserError(
            f"{file}: not UTF-8; convert it, for example with: iconv -f WINDOWS-1252 -t UTF-8"
        ) from None


def checked_sentences(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences one by one, in order, checked before they are encoded or counted.

    Accepted is any iterable of strings: a list, a generator, a numpy array, a pandas column, which
    is read by position regardless of its index.
    """
    if isinstance(sentences, str | bytes):
        raise ValueError("sentences is a sequence of sentences, not a single one; put it in a list")
    if isinstance(sentences, Mapping | Set):
        kind = type(sentences).__name__
        raise ValueError(f"sentences is a {kind}, which has no order; give a list")
    if (dimensions := getattr(sentences, "ndim", 1)) != 1:
        raise ValueError(f"sentences has {dimensions} dimensions; give one column, or a list")
    for number, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            remedy = "decode it" if isinstance(sentence, bytes) else "omit it, or put ''"
            kind = type(sentence).__name__
            raise ValueError(f"sentence {number} is not text but {sentence!r} ({kind}); {remedy}")
        yield str(sentence)  # numpy has a string type of its own


def sentences(
    corpus: str, layout: str, data_root: Path, books: list[int] | None = None
) -> Iterator[tuple[int, str]]:
    """The sentences of a corpus in order, each with the number of its chapter, from 0 on.

    ``"manual"`` is embedded: the prose of the topics of Python's ``help()``, each a chapter
    regardless of the layout. Every other corpus is a folder below ``data_root``; its files are read
    line by line in the order of their paths, and each starts a new chapter.

    Args:
        corpus: ``"manual"``, the name of a folder below the data root, or ``"folder:PATH"``.
        layout: what a line of the files is. ``"paragraphs"``: a paragraph, and a blank line ends a
            chapter. ``"sentences"``: a sentence, and a blank line ends a chapter. ``"wrapped"``: a
            part of a paragraph; a blank line ends the paragraph, two or more end the chapter.
        data_root: the folder that holds the datasets.
        books: gets the number of the first chapter of each file, while iterating.

    Raises:
        MissingData: the folder is not there.
        UserError: it holds no text, or a file cannot be read by :func:`lines_of`; the latter while
            iterating.
        ValueError: the layout is unknown.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    books = [] if books is None else books
    if corpus == MANUAL:
        books.extend(range(len(_MANUAL)))
        return _manual()
    files = _corpus_files(corpus, data_root)
    return _numbered(_corpus_folder(corpus, data_root), files, layout, books)


def corpus_fingerprint(corpus: str, data_root: Path) -> str:
    """SHA-256 over paths and contents of a corpus's files, or over the embedded sentences."""
    if corpus == MANUAL:
        return sha256_of_lines(f"{chapter} {sentence}" for chapter, sentence in _manual())
    files = _corpus_files(corpus, data_root)
    # The order of the files follows from their paths, which the hash of the contents leaves out.
    paths = [file.relative_to(_corpus_folder(corpus, data_root)).as_posix() for file in files]
    return sha256_of_lines([*paths, sha256_of_files(files)])


def load_task(name: str, data_root: Path) -> Task:
    """A task of ``text.config.TASKS`` from ``data_root/senteval``, or an embedded one.

    Order and labels are those of SentEval: first the positive class, labelled 1 (of SUBJ the
    objective sentences), then the negative one; TREC's six coarse classes in alphabetical order.
    A blank line is an empty sentence. A notice names files whose sentences are not SentEval's. The
    embedded tasks are made from the manual: ``"topics"``, which of two fields a sentence is from
    (no test part); ``"questions"``, which of four topics; ``"neighbours"``, whether the second
    sentence follows the first.

    Raises:
        MissingData: a file of the task is not there.
        UserError: a file cannot be read by :func:`lines_of`, has another number of lines, is
            swapped with the other one, or a line cannot be parsed.
        ValueError: the name is unknown.
    """
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    files = _task_files(name, data_root)
    contents = _read(name, files)
    if name == "TREC":
        return _questions_of_trec(files, contents)
    if name == "MSRP":
        return _pairs_of_msrp(files, contents)
    positive, negative = contents
    labels = np.repeat([1, 0], [len(positive), len(negative)])
    return Task((*positive, *negative), None, labels, train=len(labels))


def task_fingerprint(tasks: Sequence[str], data_root: Path) -> str:
    """SHA-256 over the files of tasks, over the sentences of the embedded ones."""
    parts = []
    for name in tasks:
        if name in _EMBEDDED:
            task = load_task(name, data_root)
            parts.append(repr((name, task.first, task.second, task.labels.tolist(), task.train)))
        else:
            parts.append(f"{name} {sha256_of_files(_task_files(name, data_root))}")
    return sha256_of_lines(parts)


def missing(corpus: str | None, tasks: Sequence[str], data_root: Path) -> list[MissingData]:
    """What is not there of a corpus and of tasks."""
    errors: dict[str, MissingData] = {}
    if corpus not in (None, MANUAL):
        try:
            _corpus_files(corpus, data_root)
        except MissingData as error:
            errors[error.name] = error
        except UserError:
            pass  # it is there, and damaged: reading it names the file
    for task in tasks:
        try:
            task in _EMBEDDED or _task_files(task, data_root)
        except MissingData as error:
            errors[error.name] = error
    return list(errors.values())


def fetch(name: str, data_root: Path) -> None:
    """Verify a dataset and the files prepared from it; none of them can be downloaded.

    ``name`` is of ``DATASETS``, or that of another corpus.
    """
    folder = data_root / name
    if name == SENTEVAL:
        paths = [file.path for files in _FILES.values() for file in files]
        if missing := [path for path in paths if not (folder / path).is_file()]:
            raise UserError(f"{folder}: {', '.join(missing)} missing; {_remedy(name)}")
        for task in TASKS:
            load_task(task, data_root)
        return
    check_prepared(data_root / "prepared", f"{name.replace('/', '-')}-*")
    try:
        for _ in sentences(name, "sentences", data_root):  # reads each line, in any layout
            pass
    except MissingData:
        raise UserError(f"{folder}: missing; {_remedy(name)}") from None


# Corpora

SPLIT = LazyImport("text.splitting:split")


def _numbered(
    folder: Path, files: Sequence[Path], layout: str, books: list[int]
) -> Iterator[tuple[int, str]]:
    """The sentences of files, each with the number of its chapter; empty chapters have none."""
    chapter, empty = 0, True
    for file in files:
        books.append(chapter)
        for sentence in _sentences_of(file, layout):
            if sentence is not None:
                yield chapter, sentence
                empty = False
            elif not empty:
                chapter += 1
                empty = True
    if not chapter:
        raise UserError(f"{folder}: no sentences in its files; {_remedy(folder.name)}")


def _sentences_of(file: Path, layout: str) -> Iterator[str | None]:
    """The sentences of a file, and None wherever a chapter ends, once or several times."""
    paragraph: list[str] = []
    blank = 0
    for raw in lines_of(file):
        line = raw.strip() if layout == "wrapped" else _visible(raw).strip()
        blank = 0 if line else blank + 1
        if layout == "sentences":
            yield line or None
        elif layout == "paragraphs":
            yield from SPLIT(line) if line else [None]
        elif line:
            paragraph.append(line)
        elif blank == 1:
            yield from SPLIT(_joined(paragraph))
            paragraph = []
        else:
            yield None
    yield from SPLIT(_joined(paragraph))
    yield None


def _joined(lines: Sequence[str]) -> str:
    """The lines of a paragraph joined; a word that a soft hyphen splits across two is rejoined."""
    return _visible(" ".join(lines).replace("\u00ad ", "")).strip()


def _visible(text: str) -> str:
    return text.translate(dict.fromkeys(map(ord, INVISIBLE)))


def _corpus_folder(corpus: str, data_root: Path) -> Path:
    """The folder of a corpus: below the data root, or where the user says."""
    is_own = corpus.startswith(OWN)
    return Path(corpus.removeprefix(OWN)) if is_own else data_root / corpus


def _corpus_files(corpus: str, data_root: Path) -> list[Path]:
    folder = _corpus_folder(corpus, data_root)
    if not folder.is_dir():
        raise _missing(corpus, folder, folder)
    if corpus == BOOKCORPUS:
        files = [folder / name for name in _BOOKCORPUS_FILES]
        if missing := [file.name for file in files if not file.is_file()]:
            raise UserError(f"{folder}: {', '.join(missing)} missing; {_remedy(corpus)}")
        return files
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() == ".txt"
        and file.is_file()
        # Files left by file managers and editors: ._a.txt, .ipynb_checkpoints/a-checkpoint.txt.
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not files:
        raise UserError(f"{folder}: no .txt files; {_remedy(corpus)}")
    return files


def _missing(name: str, folder: Path, belongs: Path) -> MissingData:
    """The exception for data that no command fetches, with the folder that they belong in."""
    return MissingData(name, folder, f"{program()} data text", f"{belongs}: {_remedy(name)}")


def _remedy(name: str) -> str:
    return DATASETS.get(name, DATASETS["books"])


# The manual


# A paragraph of prose, rather than a heading, a signature, a field or code.
_PROSE = re.compile(r'[A-Z"“](?=(?:\S+ ){4}).*[.:]')


def _manual() -> Iterator[tuple[int, str]]:
    for chapter, topic in enumerate(sorted(_MANUAL)):
        for sentence in _topic(topic):
            yield chapter, sentence


@functools.cache
def _topic(name: str) -> tuple[str, ...]:
    paragraphs = (" ".join(block.split()) for block in re.split(r"\n\s*\n", _MANUAL[name]))
    prose = filter(_PROSE.fullmatch, paragraphs)
    return tuple(sentence for paragraph in prose for sentence in SPLIT(paragraph))


def _spread(topic: str, count: int) -> list[str]:
    """``count`` sentences of a topic, spread evenly over its length."""
    topic_sentences = _topic(topic)
    return [topic_sentences[number * len(topic_sentences) // count] for number in range(count)]


def _topics() -> Task:
    first = (*_spread("specialnames", 60), *_spread("compound", 60))
    return Task(first, None, np.repeat([1, 0], 60), train=120)


def _questions() -> Task:
    topics = [_spread(name, 50) for name in ("compound", "debugger", "string-methods", "types")]
    # Every fifth sentence of a topic is in the test part.
    rows = [
        (label, sentence)
        for test in (False, True)
        for label, topic in enumerate(topics)
        for position, sentence in enumerate(topic)
        if (position % 5 == 4) == test
    ]
    labels = np.array([label for label, _ in rows])
    return Task(tuple(sentence for _, sentence in rows), None, labels, train=160)


def _neighbours() -> Task:
    topic_sentences = _topic("specialnames")
    positions = [number * len(topic_sentences) // 160 for number in range(160)]
    labels = np.arange(160) % 2
    # Sentences that do not follow are taken from half a topic away.
    steps = np.where(labels, 1, len(topic_sentences) // 2)
    second = [
        topic_sentences[(position + step) % len(topic_sentences)]
        for position, step in zip(positions, steps, strict=True)
    ]
    return Task(
        tuple(topic_sentences[position] for position in positions), tuple(second), labels, train=120
    )


_EMBEDDED = dict(zip(EMBEDDED_TASKS, (_topics, _questions, _neighbours), strict=True))


# SentEval's tasks


class _File(NamedTuple):
    """A SentEval file, its number of lines, and the first digits of their SHA-256.

    The lines are hashed without line ends and surrounding spaces.
    """

    path: str
    lines: int
    digest: str


# The hashes are those of the files that the committed records were computed on.
_FILES = {
    "MR": (
        _File("MR/rt-polarity.pos", 5331, "8701b500f20fcc58"),
        _File("MR/rt-polarity.neg", 5331, "56a3655de9b769c7"),
    ),
    "CR": (
        _File("CR/custrev.pos", 2407, "15eeb0b9424043bb"),
        _File("CR/custrev.neg", 1368, "8f29d7fa39f98627"),
    ),
    "SUBJ": (
        _File("SUBJ/subj.objective", 5000, "fdbe34773b18696d"),
        _File("SUBJ/subj.subjective", 5000, "3f1c2a57051502b0"),
    ),
    "MPQA": (
        _File("MPQA/mpqa.pos", 3312, "7d9c3f9b7a0ee63e"),
        _File("MPQA/mpqa.neg", 7294, "dba0200571bd2b26"),
    ),
    "TREC": (
        _File("TREC/train_5500.label", 5452, "016243a7ddb38024"),
        _File("TREC/TREC_10.label", 500, "033f22c028c2bbba"),
    ),
    "MSRP": (  # each begins with a header
        _File("MRPC/msr_paraphrase_train.txt", 4077, "b289e86dd89473a3"),
        _File("MRPC/msr_paraphrase_test.txt", 1726, "0d1a876ed5b29dc9"),
    ),
}
_COARSE = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_QUESTION = re.compile(rf"({'|'.join(_COARSE)}):\w+ (.*)")
_PAIR = re.compile(r"([01])\t\d+\t\d+\t([^\t]*)\t([^\t]*)")


def check_tasks(tasks: Sequence[str]) -> None:
    """Refuse no tasks at all, and a string, whose letters would be taken for names."""
    if isinstance(tasks, str):
        raise ValueError(f"tasks are a sequence of names, such as ({tasks!r},); got a string")
    if not tasks:
        raise ValueError("no tasks to evaluate on")


def _task_files(name: str, data_root: Path) -> list[Path]:
    if name not in _FILES:
        raise ValueError(f"task must be one of {', '.join((*_FILES, *_EMBEDDED))}, got {name!r}")
    files = [data_root / SENTEVAL / file.path for file in _FILES[name]]
    for file in files:
        if not file.is_file():
            raise _missing(SENTEVAL, file.parent, data_root / SENTEVAL)
    return files


def _read(name: str, files: Sequence[Path]) -> list[list[str]]:
    """The lines of the two files of a task, checked against their known counts and hashes."""
    contents = [[_visible(line).strip() for line in lines_of(file)] for file in files]
    digests = [sha256_of_lines(lines)[:16] for lines in contents]
    known = [file.digest for file in _FILES[name]]
    for file, digest, other in zip(files, digests, known[::-1], strict=True):
        if digest == other:
            one, two = (path.name for path in files)
            raise UserError(f"{file}: has the lines of the other file; swap {one} and {two}")
    changed = []
    for file, lines, digest, expected in zip(files, contents, digests, _FILES[name], strict=True):
        if len(lines) != expected.lines:
            raise UserError(
                f"{file}: {len(lines)} lines, expected {expected.lines}; restore SentEval's file"
            )
        if digest != expected.digest:
            changed.append(str(file))
    if changed:
        notice(
            f"{', '.join(changed)}: not the sentences of SentEval's file, though as many; scores "
            f"on {name} are not comparable with others"
        )
    return contents


def _match(
    file: Path, lines: Sequence[str], pattern: re.Pattern[str], form: str, header: int = 0
) -> list[tuple[str, ...]]:
    """The groups of the pattern in each line after the header."""
    groups = []
    for number, line in enumerate(lines[header:], start=header + 1):
        match = pattern.fullmatch(line)
        if not match:
            raise UserError(
                f"{file}, line {number}: {line[:40]!r} is not {form}; restore SentEval's file"
            )
        groups.append(match.groups())
    return groups


def _questions_of_trec(files: Sequence[Path], contents: Sequence[Sequence[str]]) -> Task:
    train, test = (
        _match(*pair, _QUESTION, "'COARSE:fine question'")
        for pair in zip(files, contents, strict=True)
    )
    coarse, questions = zip(*train, *test, strict=True)
    labels = np.array([_COARSE.index(label) for label in coarse])
    return Task(questions, None, labels, train=len(train))


def _pairs_of_msrp(files: Sequence[Path], contents: Sequence[Sequence[str]]) -> Task:
    form = "0 or 1, two numbers and two sentences, separated by tabs"
    train, test = (
        _match(*pair, _PAIR, form, header=1) for pair in zip(files, contents, strict=True)
    )
    labels, first, second = zip(*train, *test, strict=True)
    return Task(first, second, np.array(labels).astype(np.int64), train=len(train))
