"""Tasks of mteb on our encoders and on sentence-transformers' models; all data are local."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shared.experiment.run import Run
from text.config import Config
from text.data import load_task
from text.export import load, write
from text.train import measure

mteb = pytest.importorskip("mteb", reason="mteb is not installed")

from datasets import Dataset, DatasetDict  # noqa: E402 (comes with mteb)
from mteb.abstasks.classification import AbsTaskClassification  # noqa: E402
from mteb.abstasks.pair_classification import AbsTaskPairClassification  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402

from text.mteb import MtebEncoder  # noqa: E402

pytestmark = pytest.mark.slow  # the import of mteb alone takes seconds
NOWHERE = Path("nowhere")


def described(name: str, kind: str, score: str) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        type=kind,
        main_score=score,
        description="Sentences that come with the suite.",
        reference=None,
        dataset={"path": "local", "revision": "1"},
        category="t2c",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation=None,
    )


class Questions(AbsTaskClassification):
    metadata = described("Questions", "Classification", "accuracy")

    def load_data(self, num_proc: int | None = None, **others: Any) -> None:
        task = load_task("questions", NOWHERE)
        parts = {"train": slice(task.train), "test": slice(task.train, None)}
        self.dataset = DatasetDict(
            {
                name: Dataset.from_dict({"text": task.first[rows], "label": task.labels[rows]})
                for name, rows in parts.items()
            }
        )
        self.data_loaded = True


class Neighbours(AbsTaskPairClassification):
    metadata = described("Neighbours", "PairClassification", "similarity_ap")

    def load_data(self, num_proc: int | None = None, **others: Any) -> None:
        task = load_task("neighbours", NOWHERE)
        assert task.second is not None
        columns = {"sentence1": task.first, "sentence2": task.second, "labels": task.labels}
        self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
        self.data_loaded = True


def scores(model: Any) -> dict[str, dict[str, float]]:
    """Of each task all that mteb measures on its test part."""
    found = mteb.evaluate(
        model,
        [Questions(), Neighbours()],
        cache=None,  # what is kept under a name from before would count
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"batch_size": 16, "show_progress_bar": False},
    )
    return {
        result.task_name: {
            name: value
            for name, value in result.scores["test"][0].items()
            if isinstance(value, float)
        }
        for result in found
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    config = dataclasses.replace(Config(encoder="bag_of_words").reduced(), tasks=("topics",))
    with Run(folder / "run", config, tier="short") as run:
        run.finish(measure(config, run))
    return write(folder / "run", folder / "export")


def test_scores_of_ours_and_of_sentence_transformers_are_equal(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    encode, model = load(exported), SentenceTransformer(str(exported), device="cpu")
    ours, theirs = scores(MtebEncoder(encode, "suite/letters")), scores(model)
    assert ours.keys() == theirs.keys() == {"Questions", "Neighbours"}
    for task in ours:
        assert ours[task] == pytest.approx(theirs[task], abs=1e-6, nan_ok=True)
    assert ours["Questions"]["accuracy"] > 0.3  # of four classes, equally many
    assert {"similarity_ap", "cosine_ap", "euclidean_ap"} < ours["Neighbours"].keys()
    # Through our door a model of theirs scores as through mteb's own, and other vectors do not.
    same = scores(MtebEncoder(model, "theirs/letters"))
    other = scores(MtebEncoder(lambda texts: encode(texts)[:, :3], "suite/first-three"))
    for task in ours:
        assert same[task] == pytest.approx(theirs[task], abs=1e-9, nan_ok=True)
        assert other[task]["main_score"] != pytest.approx(ours[task]["main_score"], abs=1e-3)


def test_vectors_of_all_batches_come_in_their_order_and_are_compared_by_cosines() -> None:
    table = {"a": [3.0, 4.0], "b": [4.0, -3.0], "c": [0.0, 0.0], "d": [-6.0, -8.0]}
    asked: list[list[str]] = []

    def encode(texts: list[str]) -> np.ndarray:
        asked.append(list(texts))
        return np.array([table[text] for text in texts])

    model = MtebEncoder(encode, "suite/table", revision="2")
    batches = [{"text": ["a", "b"]}, {"text": ["c"]}, {"text": ["d"]}]
    vectors = model.encode(batches, task_metadata=Questions.metadata, hf_split="test", batch_size=2)
    assert asked == [["a", "b", "c", "d"]]
    np.testing.assert_array_equal(vectors, [table[text] for text in "abcd"])
    cosines = [[1, 0, 0, -1], [0, 1, 0, 0]]
    np.testing.assert_allclose(model.similarity(vectors[:2], vectors), cosines, atol=1e-6)
    each = model.similarity_pairwise(torch.from_numpy(vectors), vectors[::-1].copy())
    np.testing.assert_allclose(each, [-1, 0, 0, -1], atol=1e-6)
    with pytest.raises(ValueError, match="name is 'organisation/model'; got 'letters'"):
        MtebEncoder(encode, "letters")
