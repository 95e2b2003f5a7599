"""Pretraining on sentences that starts from a saved model, with its shape and its tokenizer."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    RobertaConfig,
)

import text
from shared.errors import UserError
from shared.experiment.initial import InitialWeights
from shared.experiment.run import Run
from text import export
from text.config import Config
from text.saved import starting_point
from text.tokens import make_tokenizer

SMALL = dataclasses.replace(Config().reduced(), steps=2, tasks=("neighbours",))
SENTENCES = ["the rain fell all night", "nobody slept in the house"]
SHAPES = {
    "gpt2": GPT2Config(n_embd=32, n_layer=1, n_head=2),
    "bert": BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
    "distilbert": DistilBertConfig(dim=32, n_layers=1, n_heads=2),
    "roberta": RobertaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
}


def save(folder: Path, kind: str, **shape: Any) -> Any:
    """A model of transformers, of more rows than words, with its tokenizer.

    It begins and ends each sentence with a word of its own, and pads by itself.
    """
    tokenizer = make_tokenizer([*SENTENCES, "[CLS] [SEP]"], 40, True)
    tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    inner = tokenizer.backend_tokenizer
    ends = [(word, inner.token_to_id(word)) for word in ("[CLS]", "[SEP]")]
    inner.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    inner.enable_padding(length=20)
    config = SHAPES[kind].__class__(**{**SHAPES[kind].to_dict(), "vocab_size": 50, **shape})
    torch.manual_seed(3)
    model = AutoModel.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("kind", SHAPES)
def test_any_encoder_of_transformers_starts_both(tmp_path: Path, kind: str) -> None:
    network = save(tmp_path, kind)
    model, tokenizer = starting_point(InitialWeights.of(tmp_path), 6)
    given = tokenizer(SENTENCES[:1], max_length=6, truncation=True, return_tensors="pt")
    with torch.no_grad():
        expected = network(**given).last_hidden_state.mean(1)
        for training in (False, True):  # without dropout
            for found in model.train(training)(*given.values()):
                torch.testing.assert_close(found, expected)
    assert text.sentence_encoder(model, tokenizer)(SENTENCES).shape == (2, 64)
    for name, parameter in model.named_parameters():
        assert "pooler" not in name
        assert parameter.requires_grad


def test_sentences_have_the_tokens_of_the_model(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    (tmp_path / "mine").mkdir()
    lines = "The rain fell all night in the house.\nNobody slept.\n"
    (tmp_path / "mine" / "a.txt").write_text(lines)
    _, tokenizer = starting_point(InitialWeights.of(tmp_path), 6)
    tokens, same = text.prepare("mine", "sentences", tmp_path, tokenizer=tokenizer)
    assert same is tokenizer
    rows = [tokenizer.convert_ids_to_tokens(tokens.batch(i, i + 1, 6).ids[0]) for i in range(2)]
    assert rows == [
        ["[CLS]", "the", "rain", "fell", "all", "[SEP]"],
        ["[CLS]", "nobody", "slept", "<unk>", "[SEP]"],
    ]


def test_what_cannot_be_started_from_is_said(tmp_path: Path) -> None:
    save(tmp_path / "bert", "bert", max_position_embeddings=8)
    init = InitialWeights.of(tmp_path / "bert")
    with pytest.raises(UserError, match="length=8"):
        starting_point(init, 9)
    with pytest.raises(UserError, match="a file"):
        starting_point(InitialWeights.of(tmp_path / "bert/model.safetensors"), 8)
    config = dataclasses.replace(SMALL, init=init, length=8)
    tokens, other = text.prepare("manual", "wrapped", tmp_path, vocabulary=100)
    with Run(tmp_path / "run", config, data_root=tmp_path) as run:
        with pytest.raises(UserError, match="encoder=transformer"):
            run.finish(text.measure(config, run))
        with pytest.raises(ValueError, match="its tokenizer"):
            text.train.pretrain(config, tokens, run, words=len(other), tokenizer=other)


@pytest.mark.slow
def test_a_run_starts_from_a_model_and_is_exported(tmp_path: Path) -> None:
    network = save(tmp_path / "bert", "bert")
    init = InitialWeights.of(tmp_path / "bert")
    config = dataclasses.replace(SMALL, encoder="transformer", init=init, learning_rate=0.0)
    with Run(tmp_path / "run", config, data_root=tmp_path / "data") as run:
        run.finish(text.measure(config, run))
        assert run.environment["data"]["init"] == init.sha256
    target = export.write(tmp_path / "run", tmp_path / "export")
    encode = export.load(target)
    tokenizer = starting_point(init, 50)[1]
    states = network(**tokenizer(SENTENCES[:1], return_tensors="pt")).last_hidden_state.mean(1)
    half = torch.nn.functional.normalize(states.detach()).numpy()
    assert encode(SENTENCES[:1])[:, :32] == pytest.approx(half, abs=1e-5)
    onward = dataclasses.replace(config, init=InitialWeights.of(target))
    assert starting_point(onward.init, 50)[0].config.backbone["model_type"] == "bert"
