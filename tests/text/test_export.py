import dataclasses
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, pipeline

from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.data import SUMS
from shared.experiment.export import CARD
from shared.experiment.run import Run
from tests.stages.pages import run_page
from text.config import Config
from text.encoder import NORMALISED, Projected, QuickThought, sentence_encoder
from text.evaluation import evaluate
from text.export import FILES, MODEL, MODULES, PROJECTION, load, read, write
from text.tokens import make_tokenizer
from text.train import save_model, shape_of

SENTENCES = (
    "The rain fell all night on the roof .",
    "Nobody in the house slept .",
    "In the morning the road was gone .",
    "She laughed , and shut the window again .",
    "He had lost the key to the old house .",
)
CONFIG = Config(vocabulary=40, embedding=6, hidden=8, layers=1, heads=2, length=12, epochs=3)
METRICS = {
    **{"MR": 70.25, "CR": 75.5, "SUBJ": 88.0, "MPQA": 84.0, "TREC": 81.5, "MSRP": 69.75},
    "MSRP_f1": 79.125,
    "mean": 78.17,
    "protocol": "skip-thoughts-nested-10fold-v2",
    "details": {"MR": {"majority": 50.0}},
}


def finished(
    folder: Path, config: Config = CONFIG, tier: str = "short", matrix: Tensor | None = None
) -> QuickThought:
    """A finished run's folder, without the training."""
    tokenizer = make_tokenizer(SENTENCES, config.vocabulary, config.lower_case)
    torch.manual_seed(config.seed)
    model = QuickThought(shape_of(config, len(tokenizer)))
    with Run(folder, config, tier=tier) as run:
        run.record_data(books="5f" * 32)
        model.save_pretrained(folder / MODEL)
        tokenizer.save_pretrained(folder / MODEL)
        if matrix is not None:
            metadata = {NORMALISED: "true"} if config.normalise_projected else None
            save_file({"matrix": matrix}, folder / MODEL / PROJECTION, metadata)
        run.finish(METRICS)
    return model.eval()


def a_projection(config: Config = CONFIG, rows: int = 5) -> Tensor:
    return torch.randn(rows, 2 * config.hidden, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("kind", "projected"),
    [("gru", True), ("gru", False), ("bag_of_words", False), ("transformer", True)],
)
def test_an_export_and_the_code_of_its_card_give_the_vectors_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, projected: bool
) -> None:
    """A projection acts on the pair as it is."""
    config = dataclasses.replace(CONFIG, encoder=kind, hidden=8, embedding=8)
    matrix = a_projection(config) if projected else None
    model = finished(tmp_path / "run", config, matrix=matrix)
    tokenizer = make_tokenizer(SENTENCES, CONFIG.vocabulary, CONFIG.lower_case)
    project = None if matrix is None else lambda pair: pair @ matrix.T
    sentences = [*SENTENCES, " ".join(SENTENCES), ""]
    expected = sentence_encoder(model, tokenizer, project=project)(sentences)
    assert np.ptp(expected, axis=0).min() > 1e-3  # the sentences differ

    target = write(tmp_path / "run", tmp_path / "deep" / "export")
    np.testing.assert_allclose(load(target)(sentences), expected, rtol=1e-4, atol=1e-6)
    (code,) = re.findall(r"```python\n(.*?)```", (target / CARD).read_text(), re.DOTALL)
    monkeypatch.chdir(target)
    names: dict[str, Callable[..., Any]] = {}
    exec(code, names)
    assert np.array_equal(names["encode"](sentences), load(target)(sentences))
    if projected:
        return
    again = AutoModel.from_pretrained(target, local_files_only=True)
    words = AutoTokenizer.from_pretrained(target, local_files_only=True)
    assert np.array_equal(sentence_encoder(again.eval(), words)(sentences), expected)


def test_one_bit_of_a_model_is_seen_in_a_run_and_in_an_export(tmp_path: Path) -> None:
    model = finished(tmp_path / "run", matrix=a_projection())
    tokenizer = make_tokenizer(SENTENCES, CONFIG.vocabulary, CONFIG.lower_case)
    project = Projected(a_projection(), normalise=False)
    save_model(tmp_path / "run" / MODEL, model, tokenizer, project)
    target = write(tmp_path / "run", tmp_path / "export")
    read_run = partial(write, tmp_path / "run", tmp_path / "other")
    kept = tmp_path / "run" / MODEL
    for folder, names, use in (
        (kept, FILES, read_run),
        (target, (*FILES, *MODULES), partial(load, target)),
    ):
        for name in (names[-1], PROJECTION):
            content = (folder / name).read_bytes()
            (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(UserError, match=f"SHA-256 of {name} "):
                use()
            (folder / name).write_bytes(content)
        use()
    (target / SUMS).write_text("".join((target / SUMS).read_text().splitlines(True)[:-1]))
    with pytest.raises(UserError, match="does not list"):  # of a file that was put beside it
        load(target)


def add_key(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({**state, "more": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})


def more_words(folder: Path) -> None:
    more = (*SENTENCES, "Something else is written here by many other hands .")
    make_tokenizer(more, 60, False).save_pretrained(folder)


def torn_tokenizer(folder: Path) -> None:
    content = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(content[: len(content) // 2])


@pytest.mark.parametrize("damage", [add_key, more_words, torn_tokenizer])
def test_a_model_whose_parts_do_not_fit_is_not_exported(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    finished(tmp_path / "run")
    damage(tmp_path / "run" / MODEL)
    with pytest.raises(UserError, match="damaged or edited"):
        write(tmp_path / "run", tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("exported", [True, False])
def test_the_verb_scores_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exported: bool
) -> None:
    finished(tmp_path / "run")
    folder = tmp_path / "run" / MODEL
    if exported:
        folder = write(tmp_path / "run", tmp_path / "out")
    words = ["evaluate", "text", str(folder), "--data", "topics,questions"]
    words += ["--protocol", "senteval-v1", "--out", str(tmp_path / "found.json")]
    assert main(words) == 0
    model, tokenizer, _ = read(folder)
    encode = sentence_encoder(model, tokenizer)
    tasks = ("topics", "questions")
    expected = evaluate(encode, tmp_path, tasks=tasks, protocol="senteval-v1")
    found = json.loads((tmp_path / "found.json").read_text())["protocols"]["senteval-v1"]
    assert found["metrics"]["mean"] == pytest.approx(expected["mean"])
    assert list(found["environment"]["data"]) == ["tasks"]
    capsys.readouterr()
    for wrong, word in (
        ([*words[:3], "--protocol", "senteval"], "senteval"),
        ([*words[:3], "--data", "topic"], "topic"),
        (["evaluate", "text", str(tmp_path / "none")], "none"),
    ):
        assert main(wrong) == 2
        assert word in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*3 scored pairs of STS-B:RuntimeWarning")
def test_the_code_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("text.md")
    letters = names["letters"]
    assert letters[:2] == [(0, "Dear Ann."), (0, "It rained all day, and nobody came.")]
    assert letters[3] == (1, "Dear Ann.")
    assert names["batch"].chapter.tolist() == [0, 0, 0, 1]
    assert names["vectors"].shape == (2, 64)
    assert names["result"]["tier"] == "own"
    assert names["commonest"]["questions"] < names["words"]["questions"] <= 100
    assert names["scores"]["protocol"] == "senteval-v1"
    assert -100 <= names["similarity"]["STS-B_spearman"] <= 100


# Other libraries


@pytest.mark.parametrize(("projected", "normalised"), [(False, False), (True, False), (True, True)])
def test_sentence_transformers_and_a_pipeline_open_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, projected: bool, normalised: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = dataclasses.replace(CONFIG, normalise_projected=normalised)
    finished(tmp_path / "run", config, matrix=a_projection() if projected else None)
    target = write(tmp_path / "run", tmp_path / "export")
    encode = load(target)
    model = SentenceTransformer(str(target), device="cpu")
    sentences = [*SENTENCES, " ".join(SENTENCES), "\u200b"]  # too many tokens, and none
    found = model.encode(sentences)
    if not projected:
        extract = pipeline("feature-extraction", model=str(target), device="cpu")
        vectors = np.concatenate([extract(sentence) for sentence in sentences])
        np.testing.assert_allclose(vectors, found, atol=1e-6)
    assert found.shape == (7, 5 if projected else 16)
    assert np.allclose(np.linalg.norm(found, axis=1), 1) is normalised
    np.testing.assert_allclose(found, encode(sentences), rtol=1e-5, atol=1e-6)
    assert model.get_embedding_dimension() == found.shape[1]
    tasks = ["neighbours"]
    assert evaluate(model, tmp_path, tasks=tasks) == evaluate(encode, tmp_path, tasks=tasks)
    model.save(str(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_array_equal(again.encode(sentences), found)


def test_the_folder_of_an_earlier_version_has_no_modules(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    expected = load(target)(SENTENCES)
    for name in MODULES[:2]:
        (target / name).unlink()
    lines = (target / SUMS).read_text().splitlines()[: len(FILES)]
    (target / SUMS).write_text("\n".join(lines) + "\n")
    assert np.array_equal(load(target)(SENTENCES), expected)
