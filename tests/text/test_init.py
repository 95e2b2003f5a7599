"""Pretraining on sentences that starts from a saved model, its words matched by name."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
)

from shared.errors import UserError
from shared.experiment.initial import InitialWeights
from text.config import Config
from text.encoder import QuickThought
from text.saved import initialise
from text.tokens import make_tokenizer
from text.train import save_model, shape_of

SMALL = dataclasses.replace(Config().reduced(), steps=2, tasks=("neighbours",))
OLD = ["the rain fell all night", "nobody slept in the house"]
NEW = ["the rain was in the road", "an umbrella fell"]


def saved(folder: Path, config: Config, sentences: list[str] = OLD) -> QuickThought:
    tokenizer = make_tokenizer(sentences, 40, True)
    torch.manual_seed(3)
    model = QuickThought(shape_of(config, len(tokenizer)))
    save_model(folder, model, tokenizer, None)
    return model


@pytest.mark.parametrize("encoder", ["gru", "bag_of_words", "transformer"])
def test_a_saved_pair_starts_another_with_the_words_both_know(tmp_path: Path, encoder: str) -> None:
    config = dataclasses.replace(SMALL, encoder=encoder)
    old, tokenizer = saved(tmp_path / "old", config), make_tokenizer(NEW, 40, True)
    its = make_tokenizer(OLD, 40, True).get_vocab()
    torch.manual_seed(4)
    model = QuickThought(shape_of(config, len(tokenizer)))
    fresh = model.sentence.embedding.weight.detach().clone()
    random = torch.get_rng_state()
    with pytest.warns(RuntimeWarning, match="6 of 10 words"):
        known = initialise(model, tokenizer, InitialWeights.of(tmp_path / "old"))
    assert torch.equal(torch.get_rng_state(), random)
    vocabulary = tokenizer.get_vocab()
    shared = vocabulary.keys() & its.keys()
    assert shared == {"the", "rain", "in", "fell", tokenizer.unk_token, tokenizer.pad_token}
    assert known == len(shared)
    for mine, theirs in ((model.sentence, old.sentence), (model.context, old.context)):
        for word, row in vocabulary.items():
            if word in its:
                assert torch.equal(mine.embedding.weight[row], theirs.embedding.weight[its[word]])
        for name, tensor in mine.state_dict().items():
            if not name.endswith(("embedding.weight", "word_embeddings.weight")):
                assert torch.equal(tensor, theirs.state_dict()[name]), name
    unknown = [row for word, row in vocabulary.items() if word not in its]
    assert torch.equal(model.sentence.embedding.weight[unknown], fresh[unknown])


def test_a_bert_starts_both_encoders(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, encoder="transformer")
    tokenizer = make_tokenizer(OLD, 40, True)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertModel(BertConfig(vocab_size=len(tokenizer), intermediate_size=128, **shape))
    bert.save_pretrained(tmp_path / "bert")  # of 512 positions, and with a pooler
    tokenizer.save_pretrained(tmp_path / "bert")
    model = QuickThought(shape_of(config, len(tokenizer)))
    assert initialise(model, tokenizer, InitialWeights.of(tmp_path / "bert")) == len(tokenizer)
    state = bert.state_dict()
    for mine in (model.sentence.bert, model.context.bert):
        for name, tensor in mine.state_dict().items():
            assert torch.equal(tensor, state[name][: len(tensor)]), name
    with pytest.raises(UserError, match="BertModel"):
        initialise(
            QuickThought(shape_of(SMALL, len(tokenizer))),
            tokenizer,
            InitialWeights.of(tmp_path / "bert"),
        )
    distil = DistilBertConfig(vocab_size=len(tokenizer), dim=32, n_layers=1, n_heads=2)
    DistilBertModel(distil).save_pretrained(tmp_path / "distil")
    tokenizer.save_pretrained(tmp_path / "distil")
    with pytest.raises(UserError, match="DistilBertModel"):
        initialise(model, tokenizer, InitialWeights.of(tmp_path / "distil"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_attention_heads", 4),
        ("hidden_act", "relu"),
        ("layer_norm_eps", 1e-5),
        ("is_decoder", True),
        ("position_embedding_type", "relative_key"),
    ],
)
def test_a_bert_that_computes_something_else_is_refused(
    tmp_path: Path, field: str, value: Any
) -> None:
    config = dataclasses.replace(SMALL, encoder="transformer")
    tokenizer = make_tokenizer(OLD, 40, True)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"vocab_size": len(tokenizer), "intermediate_size": 128, field: value}
    BertModel(BertConfig(**shape)).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    model = QuickThought(shape_of(config, len(tokenizer)))
    with pytest.raises(UserError, match=f"{field} {value!r}"):
        initialise(model, tokenizer, InitialWeights.of(tmp_path / "bert"))


def test_a_saved_pair_with_other_heads_is_refused(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, encoder="transformer")
    saved(tmp_path / "old", dataclasses.replace(config, heads=4))
    tokenizer = make_tokenizer(OLD, 40, True)
    model = QuickThought(shape_of(config, len(tokenizer)))
    with pytest.raises(UserError, match="num_attention_heads 4"):
        initialise(model, tokenizer, InitialWeights.of(tmp_path / "old"))


def test_other_widths_and_files_are_refused_with_the_keys(tmp_path: Path) -> None:
    saved(tmp_path / "wide", dataclasses.replace(SMALL, hidden=64))
    tokenizer = make_tokenizer(OLD, 40, True)
    model = QuickThought(shape_of(SMALL, len(tokenizer)))
    before = model.sentence.gru.weight_hh_l0.clone()
    with pytest.raises(UserError, match=r"gru\.weight_ih_l0"):
        initialise(model, tokenizer, InitialWeights.of(tmp_path / "wide"))
    assert torch.equal(model.sentence.gru.weight_hh_l0, before)
    init = InitialWeights.of(tmp_path / "wide" / "model.safetensors")
    with pytest.raises(UserError, match="a file"):
        initialise(model, tokenizer, init)
