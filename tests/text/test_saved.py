"""Encoders in folders of other libraries: their vectors, and a training that starts from them."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tr
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel

import text
from shared.errors import UserError
from shared.experiment.initial import InitialWeights
from shared.experiment.run import Run
from text import export
from text.config import Config
from text.encoder import QuickThought, QuickThoughtConfig, sentence_encoder
from text.saved import hugging_face_encoder, starting_point

WORDS = "a rose is it not and by any other name".split()
SENTENCES = ["it is a rose", "rose", "a rose by any other name is a rose", "Not a tulip", "name it"]
LONG = "a rose is not " * 300
SMALL = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {**SMALL, "intermediate_size": 32}


def tokenizer(**options: Any) -> tr.PreTrainedTokenizerFast:
    """Words parted by spaces, with [CLS] before and [SEP] behind a sentence."""
    names = ["<unk>", "<pad>", "[CLS]", "[SEP]", *WORDS]
    raw = Tokenizer(WordLevel({w: i for i, w in enumerate(names)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return tr.PreTrainedTokenizerFast(tokenizer_object=raw, **names | options)


def save(folder: Path, model: tr.PreTrainedModel | None = None, **options: Any) -> Path:
    """A folder of transformers: a small BERT of twelve positions, or the model given."""
    torch.manual_seed(0)
    made = model or tr.BertModel(tr.BertConfig(**BERT, max_position_embeddings=12, pad_token_id=1))
    made.save_pretrained(folder)
    tokenizer(**options).save_pretrained(folder)
    return folder


def sentence_transformer(
    folder: Path, pooling: str | Sequence[str] = "mean", *further: Any, **options: Any
) -> SentenceTransformer:
    """What sentence-transformers makes of a folder that it is saved to, below ``folder``."""
    plain = save(folder / "plain", **options)
    steps = [modules.Transformer(str(plain)), modules.Pooling(16, pooling_mode=pooling)]
    model = SentenceTransformer(modules=[*steps, *further], device="cpu")
    model.save(str(folder / "saved"))
    return model


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken", ("cls", "mean")])
def test_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, pooling: str | tuple[str, ...], side: str
) -> None:
    """Which encodes each sentence alone, by what is written beside the weights."""
    sentence_transformer(tmp_path, pooling, modules.Normalize(), padding_side=side)
    folder, sentences = tmp_path / "saved", [*SENTENCES, LONG]
    prompt = {"prompts": {"q": "any other "}, "default_prompt_name": "q", "truncate_dim": 5}
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | prompt))
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = np.concatenate([model.encode([each]) for each in sentences])
    found = hugging_face_encoder(folder)(sentences)
    assert found.shape == (6, 5)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_transformer_may_be_in_a_folder_of_its_own(tmp_path: Path) -> None:
    sentence_transformer(tmp_path, "max")
    folder = tmp_path / "saved"
    expected = hugging_face_encoder(folder)(SENTENCES)
    inner = folder / "0_Transformer"
    inner.mkdir()
    steps = json.loads((folder / "modules.json").read_text())
    for file in list(folder.glob("*.json")) + list(folder.glob("*.safetensors")):
        file.rename(inner / file.name)
    steps[0]["path"] = inner.name
    (folder / "modules.json").write_text(json.dumps(steps))
    assert np.array_equal(hugging_face_encoder(folder)(SENTENCES), expected)
    with pytest.raises(ValueError, match="cls"):
        hugging_face_encoder(folder, pooling="cls")


def test_weights_that_the_model_has_no_place_for_are_refused(tmp_path: Path) -> None:
    """Of a BERT with relative positions, which transformers no longer computes."""
    save(tmp_path, tr.BertForMaskedLM(tr.BertConfig(**BERT)))
    hugging_face_encoder(tmp_path)(SENTENCES)  # a head may be left
    state = load_file(tmp_path / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    save_file(
        {**state, name: torch.ones(1023, 8)}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(UserError, match="distance_embedding"):
        hugging_face_encoder(tmp_path)


@pytest.mark.parametrize("saved", [torch.float32, torch.bfloat16])
def test_pooling_can_be_asked_for_and_is_of_float32(tmp_path: Path, saved: torch.dtype) -> None:
    folder = save(tmp_path)
    tr.BertModel.from_pretrained(folder).to(saved).save_pretrained(folder)
    model = tr.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        states = model(input_ids=torch.tensor([[2, 4, 5, 3]])).last_hidden_state[0]
    expected = {"cls": states[0], "last": states[-1], "max": states.amax(0), "mean": states.mean(0)}
    for pooling, vector in {**expected, "as saved": states.mean(0)}.items():
        found = hugging_face_encoder(folder, pooling=pooling)(["a rose", LONG])[0]
        np.testing.assert_allclose(found, vector.numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="lasttoken"):
        hugging_face_encoder(folder, pooling="lasttoken")


PAD = {"pad_token_id": 1}
FAMILIES: dict[str, tuple[Any, dict[str, Any], int | None]] = {
    # Its model, a small configuration, and how many tokens it takes.
    "gpt2": (tr.GPT2Model, {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}, 64),
    "mpnet": (tr.MPNetModel, {**BERT, **PAD, "max_position_embeddings": 514}, 512),
    "xlnet": (tr.XLNetModel, {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}, None),
    "mamba": (tr.MambaModel, {**SMALL, "state_size": 4}, None),
    "distilbert": (tr.DistilBertModel, {"dim": 16, "n_layers": 1, "n_heads": 2, **PAD}, 512),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_vector_depends_on_its_sentence_alone(tmp_path: Path, name: str) -> None:
    kind, sizes, length = FAMILIES[name]
    torch.manual_seed(0)
    model = kind(kind.config_class(**sizes | {"vocab_size": 16}))
    encode = hugging_face_encoder(save(tmp_path, model, padding_side="left"))
    together = encode([*SENTENCES, LONG])
    for sentence, vector in zip(SENTENCES, together, strict=False):
        np.testing.assert_allclose(encode([sentence])[0], vector, atol=1e-5)
    ids = tokenizer()(LONG)["input_ids"]
    cut = ids if length is None else [*ids[: length - 1], 3]
    with torch.no_grad():
        states = model.eval()(input_ids=torch.tensor([cut]))[0][0]
    np.testing.assert_allclose(together[-1], states.mean(0).numpy(), atol=1e-5)


def test_a_tokenizer_without_padding_borrows_a_word(tmp_path: Path) -> None:
    expected = hugging_face_encoder(save(tmp_path))(SENTENCES)
    for other in ({"eos_token": "[SEP]"}, {}):
        save(tmp_path, pad_token=None, **other)
        np.testing.assert_allclose(hugging_face_encoder(tmp_path)(SENTENCES), expected, atol=1e-6)


def test_a_sentence_that_becomes_no_token_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    bare = tokenizer()
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    bare.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no token"):
        hugging_face_encoder(tmp_path)(["a rose", "  "])


def test_a_quick_thought_gives_both_halves(tmp_path: Path) -> None:
    model = QuickThought(QuickThoughtConfig(kind="gru", vocab_size=16, embedding=6, hidden=8))
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    encode = hugging_face_encoder(tmp_path)
    expected = sentence_encoder(model, tokenizer())(SENTENCES)
    np.testing.assert_allclose(encode(SENTENCES), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(encode.encode(SENTENCES), encode(SENTENCES))
    with pytest.raises(ValueError, match="cls"):
        hugging_face_encoder(tmp_path, pooling="cls")


def test_folders_without_an_encoder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    shape = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    both = save(tmp_path / "both", tr.T5Model(tr.T5Config(vocab_size=16, **shape)))
    for place in (tmp_path / "nowhere", tmp_path / "empty", both):
        with pytest.raises(UserError, match=str(place)):
            hugging_face_encoder(place)

    sentence_transformer(tmp_path)
    folder = tmp_path / "saved"
    config = (folder / "config.json").read_text()
    deeper = config.replace('"num_hidden_layers": 1', '"num_hidden_layers": 2')
    for name, content, word in (
        ("model.safetensors", (folder / "model.safetensors").read_bytes()[:-100], "be loaded"),
        ("modules.json", b"[{", "be loaded"),
        ("config.json", deeper.encode(), r"encoder\.layer\.1\.attention"),
        ("modules.json", None, "1_Pooling"),
    ):
        intact = (folder / name).read_bytes()
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"^{folder}.*{word}"):
            hugging_face_encoder(folder)
        (folder / name).write_bytes(intact)
    hugging_face_encoder(folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="tokenizer"):
        hugging_face_encoder(folder)


# Training that starts from a model, with its shape and its tokenizer

RUN = dataclasses.replace(Config().reduced(), steps=2, tasks=("neighbours",))
SHAPES = {
    "gpt2": tr.GPT2Config(n_embd=32, n_layer=1, n_head=2),
    "bert": tr.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
    "distilbert": tr.DistilBertConfig(dim=32, n_layers=1, n_heads=2),
    "roberta": tr.RobertaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
}


def start(folder: Path, kind: str, **shape: Any) -> Any:
    """A model of more rows than words, whose tokenizer pads by itself."""
    config = type(SHAPES[kind])(**{**SHAPES[kind].to_dict(), "vocab_size": 50, **shape})
    torch.manual_seed(3)
    model = tr.AutoModel.from_config(config)
    save(folder, model)
    words = tokenizer()
    words.backend_tokenizer.enable_padding(length=20)
    words.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("kind", SHAPES)
def test_any_encoder_of_transformers_starts_both(tmp_path: Path, kind: str) -> None:
    network = start(tmp_path, kind)
    model, words = starting_point(InitialWeights.of(tmp_path), 6)
    given = words(SENTENCES[2], max_length=6, truncation=True, return_tensors="pt")
    ids, mask = given["input_ids"], given["attention_mask"]
    with torch.no_grad():
        expected = network(input_ids=ids, attention_mask=mask).last_hidden_state.mean(1)
        for training in (False, True):  # without dropout
            for found in model.train(training)(ids, mask):
                torch.testing.assert_close(found, expected)
    assert sentence_encoder(model, words)(SENTENCES).shape == (5, 64)
    for name, parameter in model.named_parameters():
        assert "pooler" not in name
        assert parameter.requires_grad


def test_sentences_have_the_tokens_of_the_model(tmp_path: Path) -> None:
    start(tmp_path, "bert")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("a rose is it not\nname Tulip\n")
    _, words = starting_point(InitialWeights.of(tmp_path), 6)
    tokens, same = text.prepare("mine", "sentences", tmp_path, tokenizer=words)
    assert same is words
    rows = [words.convert_ids_to_tokens(tokens.batch(i, i + 1, 6).ids[0]) for i in range(2)]
    assert rows == [
        ["[CLS]", "a", "rose", "is", "it", "[SEP]"],
        ["[CLS]", "name", "<unk>", "[SEP]"],
    ]


def test_what_cannot_be_started_from_is_said(tmp_path: Path) -> None:
    start(tmp_path / "bert", "bert", max_position_embeddings=8)
    init = InitialWeights.of(tmp_path / "bert")
    with pytest.raises(UserError, match="length=8"):
        starting_point(init, 9)
    with pytest.raises(UserError, match="a file"):
        starting_point(InitialWeights.of(tmp_path / "bert/model.safetensors"), 8)
    config = dataclasses.replace(RUN, init=init, length=8)
    tokens, other = text.prepare("manual", "wrapped", tmp_path, vocabulary=100)
    with Run(tmp_path / "run", config, data_root=tmp_path) as run:
        with pytest.raises(UserError, match="encoder=transformer"):
            run.finish(text.measure(config, run))
        with pytest.raises(ValueError, match="its tokenizer"):
            text.train.pretrain(config, tokens, run, words=len(other), tokenizer=other)


@pytest.mark.slow
def test_a_run_starts_from_a_model_and_is_exported(tmp_path: Path) -> None:
    network = start(tmp_path / "bert", "bert")
    init = InitialWeights.of(tmp_path / "bert")
    config = dataclasses.replace(RUN, encoder="transformer", init=init, learning_rate=0.0)
    with Run(tmp_path / "run", config, data_root=tmp_path / "data") as run:
        run.finish(text.measure(config, run))
        assert run.environment["data"]["init"] == init.sha256
    target = export.write(tmp_path / "run", tmp_path / "export")
    given = starting_point(init, 50)[1](SENTENCES[0], return_tensors="pt")
    ids, mask = given["input_ids"], given["attention_mask"]
    states = network(input_ids=ids, attention_mask=mask).last_hidden_state.mean(1)
    half = torch.nn.functional.normalize(states.detach()).numpy()
    assert export.load(target)(SENTENCES[:1])[:, :32] == pytest.approx(half, abs=1e-5)
    onward = dataclasses.replace(config, init=InitialWeights.of(target))
    assert starting_point(onward.init, 50)[0].config.backbone["model_type"] == "bert"
