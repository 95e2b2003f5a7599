import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedTokenizerFast

from text.encoder import (
    ENCODERS,
    BagOfWords,
    QuickThought,
    QuickThoughtConfig,
    Recurrent,
    Transformer,
    _in_one_block,
    sentence_encoder,
    vectors_of,
)

KINDS = tuple(ENCODERS)
WORDS = "a rose is it not and by any other name".split()
SENTENCES = [
    "it is a rose",
    "rose",
    "a rose by any other name is a rose and a rose",
    "not a tulip",
    "",
    "name it",
]


def config(kind: str, **changes: int) -> QuickThoughtConfig:
    sizes = {"vocab_size": 20, "embedding": 6, "hidden": 8, "heads": 2, "length": 10, **changes}
    return QuickThoughtConfig(kind=kind, **sizes)


def made(kind: str, seed: int = 0, **changes: int) -> QuickThought:
    torch.manual_seed(seed)
    return QuickThought(config(kind, **changes))


def nontrivial(kind: str, **changes: int) -> QuickThought:
    """In float64, no two parameters alike, no bias zero."""
    model = made(kind, **changes).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def batch(lengths: tuple[int, ...] = (3, 7, 1, 5, 7, 2), words: int = 20) -> tuple[Tensor, Tensor]:
    """Ids and mask; what lies under the padding are words as any others."""
    torch.manual_seed(3)
    ids = torch.randint(words, (len(lengths), max(lengths)))
    return ids, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words parted by spaces."""
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<pad>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


# Encoders against loops


def states_loop(encoder: Recurrent, ids: Tensor, mask: Tensor) -> Tensor:
    """The final states of torch's cell, each sentence by itself, so that there is no padding."""
    rows = []
    for row, kept in zip(ids, mask, strict=True):
        _, state = encoder.gru(encoder.embedding.weight[row[kept], None])
        rows.append(state.flatten())
    return torch.stack(rows)


def sum_loop(encoder: BagOfWords, ids: Tensor, mask: Tensor) -> Tensor:
    table = encoder.embedding.weight
    return torch.stack(
        [sum(table[int(i)] for i in row[kept]) for row, kept in zip(ids, mask, strict=True)]
    )


def mean_loop(encoder: Transformer, ids: Tensor, mask: Tensor) -> Tensor:
    """Each sentence by itself, so that there is no padding."""
    states = [
        encoder.network(input_ids=row[kept][None]).last_hidden_state[0]
        for row, kept in zip(ids, mask, strict=True)
    ]
    return torch.stack([sum(sentence) / len(sentence) for sentence in states])


LOOPS: dict[str, Callable[..., Tensor]] = {
    "gru": states_loop,
    "bag_of_words": sum_loop,
    "transformer": mean_loop,
}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, {}) for kind in KINDS), ("gru", {"bidirectional": False, "hidden": 5})],
)
def test_values_and_gradients_are_those_of_the_loop(kind: str, changes: dict[str, int]) -> None:
    model, (ids, mask) = nontrivial(kind, **changes), batch()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    assert len(set(places)) == len(places)  # f and g share no weights
    found = model(ids, mask)
    for encoder, one in zip((model.sentence, model.context), found, strict=True):
        expected = LOOPS[kind](encoder, ids, mask)
        assert one.shape == (len(ids), model.dim)
        torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-9)
        weight = torch.randn_like(expected)
        parameters = list(encoder.parameters())
        for mine, theirs in zip(
            torch.autograd.grad((one * weight).sum(), parameters, allow_unused=True),
            torch.autograd.grad((expected * weight).sum(), parameters, allow_unused=True),
            strict=True,
        ):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


class CellInputs(TorchFunctionMode):
    """Notes the types of all tensors that reach a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") == "gru":
            words, _, state, weights = args[:4]
            self.types |= {each.dtype for each in (words, *state, *weights)}
        return function(*args, **(kwargs or {}))


def test_weights_in_one_block_are_the_same_and_trained() -> None:
    cell = nn.GRU(3, 4, bidirectional=True)
    weights = [weight for direction in cell.all_weights for weight in direction]
    found = _in_one_block(weights, torch.bfloat16)
    for one, other in zip(found, weights, strict=True):
        assert torch.equal(one, other.bfloat16())
    pointers = sorted((each.dim() == 1, each.data_ptr(), each.nbytes) for each in found)
    for (_, start, size), (_, following, _) in itertools.pairwise(pointers):
        assert start + size == following
    gradients = torch.autograd.grad(sum((each.float() ** 2).sum() for each in found), weights)
    for gradient, weight in zip(gradients, weights, strict=True):
        assert torch.equal(gradient, (2 * weight.bfloat16().float()).bfloat16().float())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("changes", [{}, {"bidirectional": False}], ids=["both ways", "one way"])
def test_cells_compute_in_the_type_of_autocast(device: str, changes: dict[str, Any]) -> None:
    model, (ids, mask) = made("gru", **changes).to(device), batch()
    expected, _ = model(ids.to(device), mask)
    with CellInputs() as seen, torch.autocast(device, torch.bfloat16):
        f, _ = model(ids.to(device), mask)
    assert seen.types == {torch.bfloat16}
    assert f.dtype == torch.bfloat16
    torch.testing.assert_close(f.float(), expected, rtol=0.02, atol=0.005)
    gradients = torch.autograd.grad(f.float().square().sum(), list(model.sentence.parameters()))
    exact = torch.autograd.grad(expected.square().sum(), list(model.sentence.parameters()))
    for one, other in zip(gradients, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02 * float(other.abs().max()))


# Initialisation and files


def test_words_and_cells_start_as_tensorflow_s_do() -> None:
    model = made("gru", embedding=50, hidden=120)
    tables = [encoder.embedding.weight.detach() for encoder in (model.sentence, model.context)]
    for table in tables:
        assert 0.098 < float(table.abs().max()) <= 0.1
        assert float(table.std()) == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert abs(float((tables[0] * tables[1]).mean())) < 1e-3  # no copy of each other
    bounds = {"gates": (6 / (50 + 60 + 120)) ** 0.5, "candidate": (6 / (50 + 60 + 60)) ** 0.5}
    seen = 0
    for encoder in (model.sentence, model.context):
        for name, parameter in encoder.gru.named_parameters():
            parts = {"gates": parameter[:120].detach(), "candidate": parameter[120:].detach()}
            assert len(parts["candidate"]) == 60
            for part, values in parts.items():
                if name.startswith("weight"):
                    assert 0.99 * bounds[part] < float(values.abs().max()) <= bounds[part]
                    assert float(values.std()) == pytest.approx(bounds[part] / 3**0.5, rel=0.03)
                else:
                    expected = 1.0 if (part, name[:7]) == ("gates", "bias_ih") else 0.0
                    assert (values == expected).all()
                seen += 1
    assert seen == 2 * 2 * 4 * 2  # encoders, directions, parameters, parts


# From sentences to vectors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [2, 100])
def test_sentence_vectors_are_both_halves_of_unit_length(kind: str, batch_size: int) -> None:
    model = nontrivial(kind).train()
    before = torch.get_rng_state()
    found = sentence_encoder(model, word_tokenizer(), batch_size=batch_size)(SENTENCES)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert (found.dtype, found.shape) == (np.float32, (len(SENTENCES), 2 * model.dim))
    halves = found.reshape(len(SENTENCES), 2, model.dim)
    np.testing.assert_allclose(np.linalg.norm(halves, axis=2), 1, rtol=1e-6)
    for row, sentence in zip(found, SENTENCES, strict=True):
        ids = [WORDS.index(word) + 2 if word in WORDS else 0 for word in sentence.split()]
        ids = torch.tensor([(ids or [0])[:10]])
        f, g = (one[0].detach() for one in model(ids, torch.ones_like(ids)))
        expected = torch.cat([f / f.norm(), g / g.norm()])
        np.testing.assert_allclose(row, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_transformer_has_as_many_positions_as_its_length() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        made("transformer", length=5)(IDS, MASK)


def encoded(sentences: Any) -> np.ndarray:
    return sentence_encoder(made("gru"), word_tokenizer())(sentences)


IDS, MASK = batch()
GAP = MASK & (torch.arange(6) != 3)[:, None]  # nothing is left of the fourth


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: made("gru")(IDS, GAP), "sentence 3"),
        (lambda: made("gru")(IDS, MASK.flip(1)), "first tokens"),
        (lambda: made("gru")(IDS, MASK[:, :6]), r"\(6, 6\)"),
        (lambda: QuickThoughtConfig(hiden=8, emb=2), "emb, hiden"),
        (lambda: QuickThoughtConfig(hidden=7), "hidden"),
        (lambda: encoded([]), "no sentences"),
        (lambda: encoded(["a rose", None]), "sentence 1"),
        (lambda: sentence_encoder(made("gru", vocab_size=11), word_tokenizer()), "12 words"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()
    assert made("gru", length=5)(IDS, MASK)[0].shape == (6, 8)


@pytest.mark.parametrize("kind", ["array", "tensor", "tensors", "lists"])
def test_anything_with_encode_gives_vectors_and_tensors_may_require_gradients(kind: str) -> None:
    expected = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    tensor = torch.from_numpy(expected).requires_grad_()

    class Model:
        def __call__(self, sentences: list[str]) -> None:
            raise AssertionError("a model is no function of sentences")

        def encode(self, sentences: list[str]) -> Any:
            assert sentences == SENTENCES[:3]
            kinds = {"tensor": tensor.double(), "tensors": list(tensor), "lists": tensor.tolist()}
            return {"array": expected, **kinds}[kind]

    found = vectors_of(Model(), SENTENCES[:3])
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS)
def test_accelerator_agrees(kind: str) -> None:
    model, (ids, mask) = nontrivial(kind), batch()
    expected = [one.detach() for one in model(ids, mask)]
    model, ids = model.cuda(), ids.cuda()
    for where in (mask, mask.cuda()):
        for found, one in zip(model(ids, where), expected, strict=True):
            torch.testing.assert_close(found.cpu(), one)
    if kind == "transformer":  # transformers looks at the mask itself
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        f, g = model(ids, mask)
        (f.sum() + g.sum()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
