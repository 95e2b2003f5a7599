"""Semantic textual similarity on files of a few lines each, in SentEval's layout."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.data import MissingData
from text.sts import PAIRS, STS_TASKS, YEARS, evaluate_sts, load_sts, sts_fingerprint
from text.tokens import make_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*do not compare with others:RuntimeWarning")

# Two sentences and how alike they are.
ROWS = (
    ("a dog runs over the field", "the dog runs over a field", 4.8),
    ("a man plays the piano", "a man plays the guitar", 2.4),
    ("two birds sit on the wire", "the market fell on monday", 0.0),
    ("she opens the old window", "the old window is opened", 4.2),
    ("rain is expected by noon", "no rain is expected", 1.6),
    ("a boat leaves the harbour", "a ship leaves the harbour", 3.8),
    ("he reads a book", "a book is read by a man", 3.6),
)


def lay_out(data_root: Path) -> Path:
    """All files of the seven tasks; parts of a year have different numbers of pairs."""
    folder = data_root / "senteval"
    for year, parts in YEARS.items():
        place = folder / "STS" / f"{year}-en-test"
        place.mkdir(parents=True)
        for number, part in enumerate(parts):
            rows = [ROWS[(each + number) % 7] for each in range(7 - number % 3)]
            pairs = [f"{first}\t{second}\n" for first, second, _ in rows]
            scores = [f"{score}\n" for *_, score in rows]
            (place / f"STS.input.{part}.txt").write_text("".join(pairs))
            (place / f"STS.gs.{part}.txt").write_text("".join(scores))
    benchmark = folder / "STS" / "STSBenchmark" / "sts-test.csv"
    benchmark.parent.mkdir()
    head = "main-captions\tMSRvid\t2012test"
    benchmark.write_text(
        "".join(f"{head}\t{n:04d}\t{s:.3f}\t{a}\t{b}\n" for n, (a, b, s) in enumerate(ROWS))
    )
    sick = folder / "SICK" / "SICK_test_annotated.txt"
    sick.parent.mkdir()
    lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
    lines += [f"{n}\t{a}\t{b}\t{s}\tNEUTRAL" for n, (a, b, s) in enumerate(ROWS[:5])]
    sick.write_bytes("\r\n".join([*lines, ""]).encode())  # as its authors distribute it
    return folder


def encode(texts: Sequence[str]) -> np.ndarray:
    """The sum of a random vector of each word."""
    return np.stack(
        [
            sum(np.random.default_rng(zlib.crc32(w.encode())).normal(size=5) for w in text.split())
            for text in texts
        ]
    ).astype(np.float32)


def cosine(first: str, second: str) -> float:
    u, v = encode([first, second]).astype(float)
    return float(u @ v / np.sqrt((u @ u) * (v @ v)))


def test_correlations_are_scipys_and_means_weigh_parts_as_senteval(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with pytest.warns(RuntimeWarning, match="do not compare with others"):
        found = evaluate_sts(encode, tmp_path)
    assert found["protocol"] == "sts"
    for number, part in enumerate(YEARS["STS14"]):
        rows = [ROWS[(each + number) % 7] for each in range(7 - number % 3)]
        system, gold = [cosine(a, b) for a, b, _ in rows], [score for *_, score in rows]
        details = found["details"]["STS14"][part]
        assert details["pairs"] == len(rows)
        assert details["pearson"] == pytest.approx(100 * pearsonr(system, gold)[0], abs=1e-4)
        assert details["spearman"] == pytest.approx(100 * spearmanr(system, gold)[0], abs=1e-9)
    for year in YEARS:
        parts = found["details"][year].values()
        for kind in ("spearman", "pearson"):
            plain = sum(each[kind] for each in parts) / len(parts)
            weighted = sum(each[kind] * each["pairs"] for each in parts)
            weighted /= sum(each["pairs"] for each in parts)
            assert found[f"{year}_{kind}_mean"] == pytest.approx(plain)
            assert found[f"{year}_{kind}_wmean"] == pytest.approx(weighted)
            assert plain != pytest.approx(weighted, abs=1e-3)
    for task, rows in (("STS-B", ROWS), ("SICK-R", ROWS[:5])):
        system, gold = [cosine(a, b) for a, b, _ in rows], [score for *_, score in rows]
        assert found[f"{task}_spearman"] == pytest.approx(100 * spearmanr(system, gold)[0])
        assert found[f"{task}_pearson"] == pytest.approx(100 * pearsonr(system, gold)[0], abs=1e-4)


def test_pairs_without_a_score_are_left_out_and_empty_vectors_have_cosine_0(tmp_path: Path) -> None:
    place = lay_out(tmp_path) / "STS" / "STS16-en-test"
    (place / "STS.gs.answer-answer.txt").write_text("4.8\n\n0\n\n1.6\n\n\n")
    part = load_sts("STS16", tmp_path)["answer-answer"]
    assert part.first == tuple(ROWS[row][0] for row in (0, 2, 4))
    assert part.second == tuple(ROWS[row][1] for row in (0, 2, 4))
    assert part.gold.tolist() == [4.8, 0, 1.6]

    def blank(texts: Sequence[str]) -> np.ndarray:
        known = np.array([["rain" not in text] for text in texts])
        return encode(texts) * known

    found = evaluate_sts(blank, tmp_path, tasks=["STS16"])["details"]["STS16"]["answer-answer"]
    system = [cosine(*ROWS[0][:2]), cosine(*ROWS[2][:2]), 0.0]
    assert found["pearson"] == pytest.approx(100 * pearsonr(system, part.gold)[0], abs=1e-4)


@pytest.mark.parametrize(
    ("encoder", "tasks", "word"),
    [
        (lambda texts: np.ones((len(texts), 3)), STS_TASKS, "STS12 MSRpar: all cosines"),
        (lambda texts: np.full((len(texts), 3), np.nan), STS_TASKS, "STS12 MSRpar: dimension 0"),
        (encode, ["STS11"], "STS11"),
        (encode, [], "no tasks"),
        (encode, ["STS13"], "STS13 FNWN: all gold"),
    ],
)
def test_scores_that_would_mean_nothing_are_refused(
    encoder: Any, tasks: Sequence[str], word: str, tmp_path: Path
) -> None:
    folder = lay_out(tmp_path)
    (folder / "STS" / "STS13-en-test" / "STS.gs.FNWN.txt").write_text("1\n" * 7)
    with pytest.raises(ValueError, match=word):
        evaluate_sts(encoder, tmp_path, tasks=tasks)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    folder = lay_out(tmp_path)
    before = sts_fingerprint(STS_TASKS, tmp_path)
    gold = folder / "STS" / "STS15-en-test" / "STS.gs.belief.txt"
    for content, word in (
        ("4\n2\n", "2 scores"),
        ("4\n2\n1\n3,5\n0\n", "line 4"),
    ):
        gold.write_text(content)
        assert sts_fingerprint(STS_TASKS, tmp_path) != before
        with pytest.raises(UserError, match=f"{gold.name}.*{word}"):
            load_sts("STS15", tmp_path)
    sick = folder / "SICK" / "SICK_test_annotated.txt"
    sick.write_text("pair_ID\tsentence_A\n1\tA dog runs\n")
    with pytest.raises(UserError, match=f"{sick.name}, line 2"):
        load_sts("SICK-R", tmp_path)
    sick.unlink()
    with pytest.raises(MissingData, match=sick.name):
        load_sts("SICK-R", tmp_path)


@pytest.mark.slow
def test_the_verb_scores_any_model_by_sts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import BertConfig, BertModel

    sentences = [sentence for first, second, _ in ROWS for sentence in (first, second)]
    tokenizer = make_tokenizer(sentences, 60, True)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), intermediate_size=16, **shape))
    model.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    words = ["evaluate", "text", str(tmp_path / "bert"), "--protocol", "sts"]
    words += ["--data-root", str(tmp_path / "data"), "--out", str(tmp_path / "found.json")]
    capsys.readouterr()
    assert main(words) == 2
    assert "STS.input.MSRpar.txt" in capsys.readouterr().err
    lay_out(tmp_path / "data")
    assert main(words) == 0
    assert "SICK-R_spearman" in capsys.readouterr().out
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["data"] == list(STS_TASKS) == list(PAIRS)
    found = written["protocols"]["sts"]
    assert list(found["environment"]["data"]) == ["tasks"]
    assert len(found["metrics"]["details"]) == 7
