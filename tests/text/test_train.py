import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import text
from shared import Objective, Projection, info_nce, max_margin, term
from shared.errors import UserError
from shared.experiment.run import Run
from tests.text.test_plain import random_sentences, tokens_of
from text.config import Config
from text.train import (
    has_neighbours,
    make_criterion,
    pretrain,
    shape_of,
    train_step,
)

SMALL = dataclasses.replace(Config().reduced(), steps=6, tasks=("neighbours",))
NCE = term(info_nce, temperature=0.1)


def test_embeddings_that_are_not_finite_are_named_with_their_step() -> None:
    config = dataclasses.replace(SMALL, encoder="bag_of_words", batch_size=12)
    model = text.QuickThought(shape_of(config, 50))
    with torch.no_grad():
        model.sentence.embedding.weight.fill_(math.nan)
    criterion = make_criterion(config, model.dim)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    batch = tokens_of(random_sentences(12)).batch(0, 12, config.length)
    with pytest.raises(FloatingPointError, match="NaN or infinite at step 3"):
        train_step(config, model, criterion, optimiser, batch, 3)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"similarity": "dot"}, "dot"),
        ({"diagonal": "zero", "similarity": "cosine"}, "inner products"),
        (
            {"objective": Objective(NCE, projection=Projection(0.1, {"unit_features": True}))},
            "unit_features",
        ),
        ({"objective": Objective(term(max_margin, gamma=0.5))}, "cosines"),
    ],
)
def test_meaningless_configurations_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        make_criterion(dataclasses.replace(SMALL, **changes), 4)


def test_a_corpus_without_neighbours_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Where each sentence is a chapter of its own, every loss would be 0."""
    short, alone = (tokens_of(random_sentences(count)) for count in (49, 200))
    alone.chapter[:] = np.arange(200)
    for tokens, word in ((short, "batch_size 50"), (alone, "layout")):
        with Run(tmp_path / word, SMALL) as run, pytest.raises(UserError, match=word):
            pretrain(SMALL, tokens, run, words=50)
        assert not (tmp_path / word / "log.jsonl").exists()
    # A pair that the batches divide is none, and one within a batch is enough.
    for first, found in ((49, False), (50, True)):
        alone.chapter[:] = np.arange(200)
        alone.chapter[first + 1] = first
        assert has_neighbours(alone, 50) == found
