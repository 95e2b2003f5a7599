"""Whole runs beside plain programs that take sentences one by one, without padding."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

import text
from shared import Objective, Projection, info_nce, term
from shared.experiment.run import Run
from tests.stages.training import losses, spied
from text import evaluation, export
from text.config import Config
from text.encoder import sentence_encoder
from text.tokens import Tokens, order_of_batches
from text.train import pretrain, shape_of

WORDS, BATCH, LENGTH = 30, 7, 4
NCE = term(info_nce, temperature=0.1)
BAG = Config(
    corpus="own",
    layout="sentences",
    vocabulary=WORDS - 1,  # beside the padding
    encoder="bag_of_words",
    embedding=5,
    length=LENGTH,
    similarity="cosine",
    objective=Objective(NCE, projection=Projection(3.0, {"norm": "l21", "alpha": 0.1})),
    projection_dimensions=4,
    batch_size=BATCH,
    order="shuffled",
    epochs=2,
    dropout=0.3,
    learning_rate=0.01,
    clip=0.3,
    seed=1,
)
GRU = dataclasses.replace(
    BAG,
    encoder="gru",
    hidden=6,
    objective=Objective(term(info_nce, temperature=1.0)),
    similarity="inner_product",
    diagonal="zero",
    reach=2,
    order="corpus",
    clip=0.05,
)
Sentences = Sequence[tuple[int, Sequence[int]]]  # of each its chapter and its words


def random_sentences(count: int = 24) -> Sentences:
    """1 to 9 words, in chapters of five; three batches of seven, and three left over."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 10, count)
    return [(n // 5, generator.integers(2, WORDS, size).tolist()) for n, size in enumerate(sizes)]


def tokens_of(sentences: Sentences) -> Tokens:
    ids = [word for _, words in sentences for word in words]
    ends = np.cumsum([0, *(len(words) for _, words in sentences)])
    chapters = np.array([chapter for chapter, _ in sentences], np.int32)
    return Tokens(np.array(ids, np.uint16), ends.astype(np.int64), chapters)


def vector(encoder: Any, words: Sequence[int]) -> Tensor:
    """One sentence's."""
    rows = encoder.embedding.weight[torch.tensor(list(words[:LENGTH]))]
    if not hasattr(encoder, "gru"):
        return rows.sum(0)
    states = encoder.gru(rows[:, None])[1]  # the last of each direction
    return torch.cat([states[0, 0], states[1, 0]])


def plain_loss(config: Config, f: Tensor, g: Tensor, chapters: Sequence[int]) -> Tensor:
    """Softmax over the others; with the diagonal "zero" a sentence itself scores 0."""
    if config.similarity == "cosine":
        scores = cosine_similarity(f[:, None], g[None], dim=2) / 0.1
    else:
        scores = f @ g.T
    values = []
    for i, chapter in enumerate(chapters):
        places = [j for j in range(len(f)) if 0 < abs(i - j) <= config.reach]
        near = [j for j in places if chapters[j] == chapter]
        rest = scores[i, [j for j in range(len(f)) if j != i]]
        if config.diagonal == "zero":
            rest = torch.cat([rest, rest.new_zeros(1)])
        if near:
            values.append(rest.logsumexp(0) - scores[i, near].mean())
    return torch.stack(values).mean()


def clipped(weight: Tensor, largest: float) -> None:
    """Scale a gradient by its own norm."""
    weight.grad *= min(1.0, largest / (float(weight.grad.norm()) + 1e-6))


def plain_training(
    config: Config, sentences: Sentences, words: int = WORDS
) -> tuple[text.QuickThought, Tensor, list[float]]:
    """The encoders, L and the losses of all steps; the batches of both epochs are of 7."""
    torch.manual_seed(1)
    model = text.QuickThought(shape_of(config, words)).train()
    both = (model.sentence, model.context)
    matrix = nn.Parameter(torch.eye(2 * model.dim))
    low_rank = config.objective.projection is not None
    adam = torch.optim.Adam([*model.parameters(), *([matrix] if low_rank else [])], lr=0.01)
    per_epoch, values = len(sentences) // BATCH, []
    for step in range(2 * per_epoch):
        epoch, number = divmod(step, per_epoch)
        if config.order == "shuffled":
            number = int(np.random.default_rng([1, epoch]).permutation(per_epoch)[number])
        batch = sentences[number * BATCH : (number + 1) * BATCH]
        f, g = (torch.stack([vector(encoder, words) for _, words in batch]) for encoder in both)
        if config.dropout:
            kept = (torch.rand(1, f.shape[1]) > 0.3).float()
            f, g = f * kept, g * kept
        loss = plain_loss(config, f, g, [chapter for chapter, _ in batch])
        if low_rank:
            pair = torch.cat([f, g], 1)
            rebuilt = (pair @ matrix.T @ matrix - pair).square().sum(1).mean()
            loss = loss + 3.0 * (rebuilt + 0.1 * matrix.norm(dim=0).sum())
        adam.zero_grad()
        loss.backward()
        for encoder in both:
            for weight in encoder.parameters():
                clipped(weight, config.clip)
        if low_rank:
            clipped(matrix, config.clip)
        adam.step()
        values.append(loss.item())
    return model, matrix.detach(), values


@pytest.mark.parametrize("config", [BAG, GRU], ids=["bag of words", "gru"])
def test_training_is_the_plain_loop(tmp_path: Path, config: Config) -> None:
    sentences = random_sentences()
    with Run(tmp_path, config) as run:
        model, criterion = pretrain(config, tokens_of(sentences), run, words=WORDS)
    expected, matrix, values = plain_training(config, sentences)
    assert losses(tmp_path) == [pytest.approx(sum(values) / 6, rel=2e-6)]
    for name, found in model.state_dict().items():
        other = expected.state_dict()[name]
        torch.testing.assert_close(found, other, rtol=1e-3, atol=2e-4, msg=name)
    if criterion.projection is not None:
        torch.testing.assert_close(
            criterion.projection.matrix.detach(), matrix, rtol=1e-3, atol=2e-4
        )


def test_steps_end_a_training_before_its_epochs(tmp_path: Path) -> None:
    config = dataclasses.replace(GRU, steps=4, dropout=0.0)
    with Run(tmp_path, config) as run:
        pretrain(config, tokens_of(random_sentences()), run, words=WORDS)
    values = plain_training(config, random_sentences())[2]
    assert losses(tmp_path) == [pytest.approx(sum(values[:4]) / 4, rel=2e-6)]


def books(folder: Path) -> list[Sentences]:
    """Two books, of nine and 24 sentences, as they are written; a chapter may not span both."""
    folder.mkdir()
    made = []
    for name, sentences in (("a", random_sentences(9)), ("b", random_sentences(24))):
        lines, before = [], 0
        for chapter, words in sentences:
            lines += [""] * (chapter - before) + [" ".join(f"w{word}" for word in words)]
            before = chapter
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        made.append(sentences)
    return made


@pytest.mark.parametrize("kind", ["low rank", "low rank of length 1", "untrained"])
def test_a_whole_run_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The first book is held out, and scored; what the tasks see are vectors of [f ; g], or L's."""
    held_out, read = books(tmp_path / "novels")
    config = dataclasses.replace(
        BAG,
        corpus="novels",
        vocabulary=20,
        held_out=1,
        tasks=("neighbours",),
        train=kind != "untrained",
    )
    if kind == "untrained":
        config = dataclasses.replace(config, objective=Objective(NCE))
    elif kind != "low rank":
        config = dataclasses.replace(config, normalise_projected=True)
    seen: list[Any] = []

    def evaluated(encode: Any, data_root: Path, **options: Any) -> dict[str, float]:
        del options["progress"]
        seen.append((encode, data_root, options))
        return {"mean": 12.0}

    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    trained = spied(monkeypatch, text.train, "pretrain", lambda result, *_, **__: result[0])
    with Run(tmp_path / "run", config, data_root=tmp_path) as run:
        metrics = run.finish(text.measure(config, run))["metrics"]
        assert run.score(trained[0]).items() <= metrics.items()  # what is shown in the meantime
    ((encode, root, options),) = seen
    assert root == tmp_path
    saved, tokenizer, project = export.read(tmp_path / "run" / "model")
    again = sentence_encoder(saved, tokenizer, project=project)
    assert options == {"tasks": ("neighbours",), "protocol": "skip-thoughts-nested-10fold-v2"}

    ids = json.loads((tmp_path / "run/model/tokenizer.json").read_text())["model"]["vocab"]
    known = {word: ids.get(f"w{word}", 0) for word in range(2, WORDS)}
    assert 0 in known.values()  # there was no room for the rarest

    def of(sentences: Sentences) -> Sentences:
        return [(chapter, [known[word] for word in words]) for chapter, words in sentences]

    if config.train:
        model, matrix, _ = plain_training(config, of(read), len(ids))
    else:
        torch.manual_seed(1)
        model = text.QuickThought(shape_of(config, len(ids)))
    sentences = ["w5 w6", "w7 never w8", "w3", "w4 w5 w6 w7 w8 w9"]  # the last is cut
    rows = [[ids.get(word, 0) for word in sentence.split()] for sentence in sentences]
    with torch.no_grad():
        f, g = (
            torch.stack([vector(encoder, row) for row in rows])
            for encoder in (model.sentence, model.context)
        )
        if config.train:
            strongest = matrix.norm(dim=0).topk(4).indices
            expected = torch.cat([f, g], 1)[:, strongest] @ matrix[:, strongest].T
            expected = normalize(expected, dim=1) if config.normalise_projected else expected
        else:
            expected = torch.cat([normalize(f, dim=1), normalize(g, dim=1)], 1)
        np.testing.assert_allclose(encode(sentences), expected, rtol=1e-3, atol=2e-4)
        np.testing.assert_allclose(again(sentences), encode(sentences), rtol=1e-6, atol=1e-6)
        # One block of seven; the last two of the book are in none.
        block = of(held_out)[:BATCH]
        f, g = (
            torch.stack([vector(encoder, words) for _, words in block])
            for encoder in (model.sentence, model.context)
        )
    scores = cosine_similarity(f[:, None], g[None], dim=2).fill_diagonal_(-math.inf)
    found = scores.argmax(1).tolist()
    for name, ahead in (("next_sentence", 1), ("previous_sentence", -1)):
        asked = [i for i in range(BATCH) if 0 <= i + ahead < BATCH]
        asked = [i for i in asked if block[i][0] == block[i + ahead][0]]
        right = sum(found[i] == i + ahead for i in asked)
        assert metrics[name] == pytest.approx(100 * right / len(asked))
    assert metrics["mean"] == 12.0


def test_seeds_are_apart_in_start_and_order() -> None:
    starts, orders = set(), set()
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        model = text.QuickThought(shape_of(BAG, WORDS))
        tables = [part.embedding.weight.detach() for part in (model.sentence, model.context)]
        starts |= {float(table.sum()) for table in tables}
        orders |= {str(order_of_batches(9, seed, epoch, True)) for epoch in (0, 1, 2)}
    assert (len(starts), len(orders)) == (6, 9)
    assert order_of_batches(4, 1, 1, False).tolist() == [0, 1, 2, 3]
    # Committed runs had this order.
    assert order_of_batches(6, 0, 0, True).tolist() == [3, 2, 5, 4, 0, 1]
