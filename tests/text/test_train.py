import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import text
from shared import (
    Objective,
    Projection,
    info_nce,
    max_margin,
    term,
)
from shared.errors import UserError
from shared.experiment.run import Run
from tests.stages.training import assert_resumes_to_the_bit
from text import train
from text.config import Config
from text.export import read
from text.tokens import Batch, Tokens, prepare
from text.train import (
    evaluated_projection,
    has_neighbours,
    make_criterion,
    make_optimiser,
    pairs_of,
    pretrain,
    save_model,
    shape_of,
    train_step,
)

SMALL = dataclasses.replace(Config().reduced(), steps=6, tasks=("neighbours",))
NCE = term(info_nce, temperature=0.1)
LOW_RANK = Objective(NCE, projection=Projection(0.1, {"norm": "nuclear", "alpha": 0.1}))


def made_up(sentences: int, words: int = 50, chapters: int = 1, seed: int = 0) -> Tokens:
    """Sentences of 1 to 9 random words in chapters of equal length."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 10, sentences)
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
    ids = generator.integers(2, words, offsets[-1]).astype(np.uint16)
    return Tokens(ids, offsets, (np.arange(sentences) * chapters // sentences).astype(np.int32))


def batch_of(config: Config, **options: Any) -> Batch:
    return made_up(config.batch_size, **options).batch(0, config.batch_size, config.length)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": "gru", "diagonal": "zero"},
        {
            "encoder": "bag_of_words",
            "order": "shuffled",
            "similarity": "cosine",
            "objective": LOW_RANK,
        },
    ],
    ids=["gru", "low_rank"],
)
def test_stopped_and_resumed_it_gives_the_same_bits(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = dataclasses.replace(SMALL, **changes)
    of_run: dict[str, Any] = {"tier": "smoke", "data_root": tmp_path / "data"}
    assert_resumes_to_the_bit(tmp_path, config, text.measure, stops=2, logged=1, **of_run)
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


def scores(batch: int = 7, width: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    f, g = torch.randn(2, batch, width, generator=generator, dtype=torch.float64)
    return f, g


@pytest.mark.parametrize("diagonal", ["masked", "zero"])
def test_quick_thoughts_loss_is_the_cross_entropy_of_its_program(diagonal: str) -> None:
    config = Config(diagonal=diagonal)
    f, g = scores()
    loss, _ = make_criterion(config, 5)(pairs_of(config, f, g, torch.zeros(7, dtype=torch.int64)))
    total = 0.0
    for i in range(7):
        near = [j for j in (i - 1, i + 1) if 0 <= j < 7]
        others = [math.exp(float(f[i] @ g[j])) for j in range(7) if j != i]
        denominator = sum(others) + (1.0 if diagonal == "zero" else 0.0)
        total += sum(math.log(denominator) - float(f[i] @ g[j]) for j in near) / len(near)
    assert float(loss) == pytest.approx(total / 7, rel=1e-12)


def test_context_does_not_cross_chapters_and_a_batch_without_positives_has_no_loss() -> None:
    f, g = scores()
    chapter = torch.tensor([0, 0, 1, 2, 2, 2, 3])
    pairs = pairs_of(Config(), f, g, chapter)
    found = {(int(i), int(j)) for i, j in pairs.positive.nonzero()}
    assert found == {(0, 1), (1, 0), (3, 4), (4, 3), (4, 5), (5, 4)}
    f.requires_grad_()
    pairs = pairs_of(Config(), f, g, torch.arange(7))
    loss, _ = make_criterion(Config(), 5)(pairs)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert torch.equal(f.grad, torch.zeros_like(f))


def test_the_gradient_of_each_variable_is_clipped_by_itself() -> None:
    config = dataclasses.replace(SMALL, encoder="gru", batch_size=12, clip=1e-3)
    torch.manual_seed(0)
    model = text.QuickThought(shape_of(config, 50))
    criterion = make_criterion(config, model.dim)
    before = {name: item.detach().clone() for name, item in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    train_step(config, model, criterion, optimiser, batch_of(config), 0)
    moved = {
        name: float((item.detach() - before[name]).double().norm())
        for name, item in model.named_parameters()
    }
    assert max(moved.values()) == pytest.approx(1e-3, rel=1e-2)
    assert sum(norm > 0.9e-3 for norm in moved.values()) > len(moved) // 2


def test_embeddings_that_are_not_finite_are_named_with_their_step() -> None:
    config = dataclasses.replace(SMALL, encoder="bag_of_words", batch_size=12)
    model = text.QuickThought(shape_of(config, 50))
    with torch.no_grad():
        model.sentence.embedding.weight.fill_(math.nan)
    criterion = make_criterion(config, model.dim)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(FloatingPointError, match="NaN or infinite at step 3"):
        train_step(config, model, criterion, optimiser, batch_of(config), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": "dot"}, "similarity is 'inner_product' or 'cosine'; got 'dot'"),
        ({"diagonal": "one"}, "diagonal is 'masked' or 'zero'; got 'one'"),
        ({"diagonal": "zero", "similarity": "cosine"}, "for quick-thoughts' inner products only"),
        (
            {"objective": Objective(NCE, projection=Projection(0.1, {"unit_features": True}))},
            "has no unit_features",
        ),
        ({"objective": Objective(term(max_margin, gamma=0.5))}, "cosines only"),
    ],
)
def test_meaningless_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_criterion(dataclasses.replace(SMALL, **changes), 4)


def test_a_corpus_smaller_than_a_batch_is_named(tmp_path: Path) -> None:
    with Run(tmp_path, SMALL) as run, pytest.raises(UserError) as error:
        pretrain(SMALL, made_up(49), run, words=50)
    assert str(error.value) == (
        "batch_size 50 is larger than the 49 sentences of the corpus; lower it, or add more text"
    )


def test_a_training_records_the_tokens_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = []
    for place, seed in enumerate((0, 0, 1)):
        config = dataclasses.replace(SMALL, corpus="letters", steps=1)
        with Run(tmp_path / str(place), config) as run:
            pretrain(config, made_up(100, seed=seed), run, words=50)
            hashes.append(run.environment["data"]["own"])
            assert run.config == config
    assert hashes[0] == hashes[1] != hashes[2]
    assert "corpus" not in capsys.readouterr().err
    for _ in range(2):  # the same command resumes it
        with Run(tmp_path / "named", SMALL) as run:
            pretrain(SMALL, made_up(100), run, words=50)
            assert run.config.corpus == "own"
        assert json.loads((tmp_path / "named/config.json").read_text())["corpus"] == "own"
    assert "the configuration says corpus='manual', the data were given" in capsys.readouterr().err


def test_a_corpus_without_neighbours_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Where each sentence is a chapter of its own, every loss would be 0."""
    alone = made_up(200, chapters=200)
    with Run(tmp_path / "a", SMALL) as run, pytest.raises(UserError) as error:
        pretrain(SMALL, alone, run, words=50)
    assert str(error.value) == (
        "no sentence of the corpus manual has a neighbour of its chapter in a batch of 50: "
        "there are no positives; is layout='wrapped' right?"
    )
    assert not (tmp_path / "a" / "log.jsonl").exists()
    # A pair that the batches divide is none, and one within a batch is enough.
    for first, found in ((49, False), (50, True)):
        alone.chapter[:] = np.arange(200)
        alone.chapter[first + 1] = first
        assert has_neighbours(alone, 50) == found


def test_the_saved_model_and_projection_give_the_evaluated_vectors(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, encoder="bag_of_words", objective=LOW_RANK, embedding=8)
    config = dataclasses.replace(config, similarity="cosine", projection_dimensions=3)
    _, tokenizer = prepare("manual", "wrapped", tmp_path, vocabulary=300, lower_case=False)
    torch.manual_seed(0)
    model = text.QuickThought(shape_of(config, len(tokenizer)))
    criterion = make_criterion(config, model.dim)
    assert criterion.projection is not None
    with torch.no_grad():
        criterion.projection.matrix.copy_(torch.randn(16, 16))
    features = torch.randn(5, 16)
    expected = criterion.projection.project(features, dimensions=3)
    for normalise in (True, False):
        config = dataclasses.replace(config, normalise_projected=normalise)
        project = evaluated_projection(config, criterion)
        assert project is not None
        assert project.matrix.shape == (16, 16)
        assert torch.linalg.matrix_rank(project.matrix) == 3
        lengths = expected.norm(dim=1, keepdim=True) if normalise else 1
        torch.testing.assert_close(project(features), expected / lengths)

        for _ in range(2):  # the second time over what an interrupted evaluation has left
            save_model(tmp_path / "model", model, tokenizer, project)
        loaded, words, saved = read(tmp_path / "model")
        assert saved is not None
        assert torch.equal(saved.matrix, project.matrix)
        assert saved.normalise is normalise
    assert words.get_vocab() == tokenizer.get_vocab()
    for name, item in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], item)
    assert not list(tmp_path.glob(".*.part"))


def test_dropout_leaves_the_same_dimensions_out_of_every_f_and_g() -> None:
    """As quick-thoughts' program does: one mask a step, and what is kept is not scaled."""
    seen: list[tuple[Tensor, Tensor]] = []

    def spied(config: Config, f: Tensor, g: Tensor, chapter: Tensor) -> Any:
        seen.append((f.detach(), g.detach()))
        return pairs_of(config, f, g, chapter)

    for dropout in (0.0, 0.3):
        config = dataclasses.replace(SMALL, dropout=dropout, hidden=400)
        torch.manual_seed(0)
        model = text.QuickThought(shape_of(config, 60))
        criterion = make_criterion(config, model.dim)
        optimiser = make_optimiser(config, model, criterion)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "pairs_of", spied)
            for step in range(2):
                torch.manual_seed(step)
                train_step(config, model, criterion, optimiser, batch_of(config), step)
    (whole, _), _, (masked_f, masked_g), (later, _) = seen
    gone = (masked_f == 0).all(0)
    assert 0.2 < gone.double().mean() < 0.4
    assert torch.equal(gone, (masked_g == 0).all(0))
    assert torch.equal(masked_f[:, ~gone], whole[:, ~gone])
    assert not torch.equal(gone, (later == 0).all(0))
