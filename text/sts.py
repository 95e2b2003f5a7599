"""Semantic textual similarity: cosines of sentence vectors against human judgements.

The protocol is that of Conneau and Kiela's SentEval 2018 for STS12 to STS16, without training:
Pearson's and Spearman's correlation of the cosines with the gold scores in each part of a year, and
over its parts the plain mean and the mean weighted by their numbers of pairs. Pairs without a gold
score are left out; STS13 lacks its part SMT, whose licence forbids its distribution. SentEval fits
a regression to STS-B and SICK-R; here their test parts, too, are scored by the cosine alone, as
later papers do.

Folders below ``senteval/`` under the data root, as SentEval's program lays them out:

    STS/<year>-en-test/STS.input.<part>.txt   two sentences a line, separated by a tab
    STS/<year>-en-test/STS.gs.<part>.txt      their score, 0 to 5, or nothing
    STS/STSBenchmark/sts-test.csv             genre, file, year, number, score, both sentences; tabs
    SICK/SICK_test_annotated.txt              a header; number, both sentences, score, judgement

Shapes: n pairs, d dimensions of a vector.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import pearsonr, spearmanr

from shared.errors import UserError, program, suggestion
from shared.experiment.data import MissingData, sha256_of_files, sha256_of_lines
from shared.notices import Progress, notice
from text.data import SENTEVAL, check_tasks, lines_of
from text.evaluation import checked_vectors

if TYPE_CHECKING:  # takes seconds to import
    from text.encoder import Encode, HasEncode

PROTOCOL = "sts"
# The parts of each year in SentEval.
YEARS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
# Of the others: the file, the columns of both sentences and of the score, and lines of header.
_TEST_PARTS = {
    "STS-B": ("STS/STSBenchmark/sts-test.csv", (5, 6, 4), 0),
    "SICK-R": ("SICK/SICK_test_annotated.txt", (1, 2, 3), 1),
}
STS_TASKS = (*YEARS, *_TEST_PARTS)
# Pairs with a gold score, over all parts.
PAIRS = dict(zip(STS_TASKS, (3108, 1500, 3750, 3000, 1186, 1379, 4927), strict=True))
_HOW = (
    f"run SentEval's data/downstream/get_transfer_data.bash (github.com/facebookresearch/SentEval) "
    f"and put its folders STS and SICK into {SENTEVAL}/ below the data root"
)


@dataclass(frozen=True)
class Part:
    """Pairs of sentences with their gold scores (n,) float64."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: np.ndarray


def evaluate_sts(
    encode: "Encode | HasEncode",
    data_root: Path,
    *,
    tasks: Sequence[str] = STS_TASKS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Correlations of cosines with gold scores, times 100.

    A vector of zeros has the cosine 0 with every other, as in SentEval. Keys of the result:
    ``protocol``; of a year ``<name>_spearman_mean``, ``<name>_spearman_wmean`` (weighted by pairs)
    and both of ``pearson``; of STS-B and SICK-R ``<name>_spearman`` and ``<name>_pearson``;
    ``details``, for each task and part ``spearman``, ``pearson`` and ``pairs``, their number n.

    Args:
        encode: as in :func:`text.evaluation.evaluate`.
        data_root: the folder that holds ``senteval/``.
        tasks: of ``STS_TASKS``.
        progress: called before each task with the number of tasks done, of all, and its name.

    Raises:
        ValueError: no tasks or an unknown one, no encoder, vectors that are not (n, d) or not
            finite, or a part in which all cosines or all gold scores are equal.
        MissingData: a file of a task is not there.
        UserError: a file that cannot be parsed.
    """
    check_tasks(tasks)
    metrics: dict[str, float] = {}
    details: dict[str, Any] = {}
    for done, name in enumerate(tasks):
        if progress is not None:
            progress(done, len(tasks), name)
        parts = load_sts(name, data_root)
        details[name] = {part: _correlations(encode, name, part, of) for part, of in parts.items()}
        for kind in ("spearman", "pearson"):
            values = [scores[kind] for scores in details[name].values()]
            if name in YEARS:
                pairs = [scores["pairs"] for scores in details[name].values()]
                metrics[f"{name}_{kind}_mean"] = float(np.mean(values))
                metrics[f"{name}_{kind}_wmean"] = float(np.average(values, weights=pairs))
            else:
                metrics[f"{name}_{kind}"] = values[0]
    return {"protocol": PROTOCOL, **metrics, "details": details}


def load_sts(name: str, data_root: Path) -> dict[str, Part]:
    """The parts of a task by name, those of STS-B and SICK-R ``"test"``; see the module.

    A notice says where the number of pairs is not SentEval's.
    """
    files = _files_of(name, data_root)
    if name in YEARS:
        pairs = zip(YEARS[name], files[::2], files[1::2], strict=True)
        parts = {part: _part_of(sentences, gold) for part, sentences, gold in pairs}
    else:
        parts = {"test": _test_part(files[0], *_TEST_PARTS[name][1:])}
    count = sum(len(part.gold) for part in parts.values())
    if count != PAIRS[name]:
        notice(
            f"{files[0].parent}: {count} scored pairs of {name}, {PAIRS[name]} in SentEval; scores "
            f"do not compare with others"
        )
    return parts


def sts_fingerprint(tasks: Sequence[str], data_root: Path) -> str:
    """SHA-256 over the files of tasks."""
    files = ((name, sha256_of_files(_files_of(name, data_root))) for name in tasks)
    return sha256_of_lines(f"{name} {digest}" for name, digest in files)


def _files_of(name: str, data_root: Path) -> list[Path]:
    """All files of a task; of a year sentences and scores of each part in turn."""
    if name not in STS_TASKS:
        raise ValueError(
            f"no task {name!r} of {PROTOCOL}{suggestion(name, STS_TASKS, 'there are')}"
        )
    if name in YEARS:
        folder = f"STS/{name}-en-test"
        paths = [
            f"{folder}/STS.{kind}.{part}.txt" for part in YEARS[name] for kind in ("input", "gs")
        ]
    else:
        paths = [_TEST_PARTS[name][0]]
    files = [data_root / SENTEVAL / path for path in paths]
    for file in files:
        if not file.is_file():
            how = f"{file.name} is not there: {_HOW}"
            raise MissingData(SENTEVAL, file.parent, f"{program()} data text", how)
    return files


def _part_of(sentences: Path, gold: Path) -> Part:
    """The pairs of two files that have a gold score."""
    pairs, scores = list(_rows(sentences, (0, 1))), [line.strip() for line in lines_of(gold)]
    if len(pairs) != len(scores):
        raise UserError(
            f"{gold}: {len(scores)} scores for {len(pairs)} pairs in {sentences.name}; restore "
            f"SentEval's files"
        )
    rows = [
        (first, second, _score(gold, number, score))
        for number, ((first, second), score) in enumerate(zip(pairs, scores, strict=True), 1)
        if score
    ]
    return _as_part(rows)


def _test_part(file: Path, columns: tuple[int, int, int], header: int) -> Part:
    rows = [
        (first, second, _score(file, number, score))
        for number, (first, second, score) in enumerate(_rows(file, columns, header), header + 1)
    ]
    return _as_part(rows)


def _rows(file: Path, columns: Sequence[int], header: int = 0) -> Iterator[tuple[str, ...]]:
    """Those columns of the lines after the header."""
    for number, line in enumerate(lines_of(file), 1):
        cells = line.split("\t")
        if number <= header:
            continue
        if len(cells) <= max(columns):
            raise UserError(
                f"{file}, line {number}: {line[:40]!r} has {len(cells)} of at least "
                f"{max(columns) + 1} columns separated by tabs; restore SentEval's file"
            )
        yield tuple(cells[column].strip() for column in columns)


def _score(file: Path, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{file}, line {number}: {text!r} is not a score; restore SentEval's file")
    return score


def _as_part(rows: Sequence[tuple[str, str, float]]) -> Part:
    first, second, gold = zip(*rows, strict=True)
    return Part(first, second, np.array(gold))


def _correlations(
    encode: "Encode | HasEncode", name: str, part: str, of: Part
) -> dict[str, float | int]:
    """Both correlations of a part, times 100, and its number of pairs."""
    vectors = checked_vectors(encode, f"{name} {part}", [*of.first, *of.second]).astype(np.float64)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.split(vectors / np.where(length > 0, length, 1.0), 2)
    cosines = (first * second).sum(1)
    for what, values in (("cosines", cosines), ("gold scores", of.gold)):
        # Cosines of equal vectors differ by rounding alone.
        if np.ptp(values) < 1e-12:
            raise ValueError(f"{name} {part}: all {what} are equal, which correlate with nothing")
    return {
        "spearman": 100 * float(spearmanr(cosines, of.gold).statistic),
        "pearson": 100 * float(pearsonr(cosines, of.gold).statistic),
        "pairs": len(of.gold),
    }
