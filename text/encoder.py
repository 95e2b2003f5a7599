"""Sentence encoders: quick-thoughts' pair f and g, and functions from sentences to vectors.

Shapes: B sentences, T tokens of the longest, V words, E width of a word vector, H width of one
encoder, n sentences to encode, d width of their vectors.

[QT]: Logeswaran and Lee 2018, and its program S2V. Its GRU is TensorFlow 1's, which applies the
reset gate before the recurrent product of the candidate, U (r * h); torch's, for cuDNN's sake,
applies it after, r * (U h + b). Everything else about the cell is the same.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_sequence

from shared.experiment.compat import make_torchvision_importable
from shared.modes import evaluating
from shared.pairs import unit_rows
from shared.pixels import to_device
from text.data import checked_sentences
from text.tokens import UNKNOWN_ID

make_torchvision_importable()

from transformers import (  # noqa: E402 (needs the line above)
    AutoConfig,
    AutoModel,
    BertConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.generic import ModelOutput  # noqa: E402

PROJECTION = "projection.safetensors"  # beside a saved model: CLLR's L, the tensor "matrix"
NORMALISED = "normalised"  # in the metadata of that file, if the vectors are

Encode = Callable[[Sequence[str]], np.ndarray]  # n sentences -> (n, d) float32


class HasEncode(Protocol):
    """Any object with a method ``encode``, such as a model of sentence-transformers."""

    def encode(self, sentences: list[str], /) -> Any:
        """Vectors (n, d): an array, a tensor, or a sequence of either."""


class QuickThoughtConfig(PretrainedConfig):
    """The architecture of a :class:`QuickThought`; the defaults are [QT]'s.

    Args:
        kind: ``"gru"``, ``"bag_of_words"`` or ``"transformer"``.
        vocab_size: V.
        embedding: E of a GRU, E = H of a bag of words; a transformer's E is its H.
        hidden: H of a GRU, both directions together, and of a transformer.
        bidirectional: of a GRU.
        layers: of a transformer.
        heads: of a transformer.
        backbone: the configuration of a Hugging Face encoder, in place of layers and heads.
        length: tokens kept of a sentence that is encoded; the maximum of a transformer.
        pad_token_id: padding of shorter sentences.

    Raises:
        ValueError: an unknown key, or an odd width of two directions together.
    """

    model_type = "quick-thought"

    kind: str = "gru"
    vocab_size: int = 50_001
    embedding: int = 620
    hidden: int = 1200
    bidirectional: bool = True
    layers: int = 2
    heads: int = 4
    backbone: dict[str, Any] | None = None
    length: int = 50
    pad_token_id: int = 1

    @property
    def hidden_size(self) -> int:
        """Width of [f ; g], under transformers' name for a model's output width."""
        return 2 * (self.embedding if self.kind == "bag_of_words" else self.hidden)

    def __post_init__(self, **others: Any) -> None:
        super().__post_init__(**others)
        # The base class keeps unknown keys as attributes, including misspelt ones. Some releases of
        # transformers pass private ones of their own.
        unknown = others.keys() & vars(self).keys() - {"model_type"}
        if unknown := {key for key in unknown if not key.startswith("_")}:
            raise ValueError(f"QuickThoughtConfig has no {', '.join(sorted(unknown))}")
        if self.kind == "gru" and self.bidirectional and self.hidden % 2:
            raise ValueError(f"hidden is even, half for each direction; got {self.hidden}")


class Recurrent(nn.Module):
    """The final states of a GRU in both directions, concatenated: [QT]'s encoder."""

    def __init__(self, config: QuickThoughtConfig) -> None:
        super().__init__()
        self.dim = config.hidden
        self.embedding = nn.Embedding(config.vocab_size, config.embedding)
        units = config.hidden // 2 if config.bidirectional else config.hidden
        self.gru = nn.GRU(config.embedding, units, bidirectional=config.bidirectional)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids and (B,) lengths on the CPU -> (B, H)."""
        # Sorted here, since pack_padded_sequence would synchronise with the device.
        lengths, order = lengths.sort(descending=True)
        ids = input_ids[to_device(order, input_ids.device)]
        packed = pack_padded_sequence(ids, lengths, batch_first=True)
        words = PackedSequence(self.embedding(packed.data), packed.batch_sizes)
        states = torch.cat(list(_last_of_cell(self.gru, words)), dim=1)
        return states[to_device(order.argsort(), states.device)]


def _last_of_cell(cell: nn.GRU, words: PackedSequence) -> Tensor:
    """The final states (directions, B, units) of a cell; under autocast, in autocast's dtype.

    torch's autocast runs recurrent cells in float16 regardless of its dtype, and float16 would need
    loss scaling. The cells therefore run outside autocast, on inputs and weights converted here;
    gradients flow to the weights through the conversion.
    """
    device = words.data.device.type
    if not torch.is_autocast_enabled(device):
        last: Tensor = cell(words)[1]
        return last
    kind = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        data = words.data.to(kind)
        parameters = [weight for direction in cell.all_weights for weight in direction]
        if data.is_cuda:
            weights = _in_one_block(parameters, kind)
        else:
            weights = [weight.to(kind) for weight in parameters]
        directions = 2 if cell.bidirectional else 1
        zeros = data.new_zeros(directions, int(words.batch_sizes[0]), cell.hidden_size)
        options = (weights, cell.bias, 1, 0.0, cell.training, cell.bidirectional)  # one layer
        return torch.gru(data, words.batch_sizes, zeros, *options)[1]


def _in_one_block(weights: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    """A cell's weights in another dtype as views of one tensor, matrices before biases.

    That is cuDNN's order in memory; weights in another order are copied at every call.
    """
    order = sorted(range(len(weights)), key=lambda index: weights[index].dim() == 1)
    block = torch.cat([weights[index].flatten() for index in order]).to(kind)
    parts = block.split([weights[index].numel() for index in order])
    moved = dict(zip(order, parts, strict=True))
    return [moved[index].view_as(weight) for index, weight in enumerate(weights)]


class BagOfWords(nn.Module):
    """The sum of the words' vectors: [QT]'s alternative encoder."""

    def __init__(self, config: QuickThoughtConfig) -> None:
        super().__init__()
        self.dim = config.embedding
        self.embedding = nn.Embedding(config.vocab_size, config.embedding)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids and (B,) lengths on the CPU -> (B, H)."""
        # Without padding: takes half as long as a masked sum for sentences of 8 in rows of 13.
        positions = _mask(lengths, input_ids.shape[1]).flatten().nonzero().squeeze(1)
        starts = lengths.cumsum(0) - lengths
        device = input_ids.device
        return nn.functional.embedding_bag(
            input_ids.flatten()[to_device(positions, device)],
            self.embedding.weight,
            to_device(starts, device),
            mode="sum",
        )


class Transformer(nn.Module):
    """The mean over the tokens of a small BERT without dropout, or of the ``backbone``."""

    def __init__(self, config: QuickThoughtConfig) -> None:
        super().__init__()
        self.dim = config.hidden
        if config.backbone is None:
            shape: PretrainedConfig = BertConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                intermediate_size=4 * config.hidden,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                max_position_embeddings=config.length,
                pad_token_id=config.pad_token_id,
            )
        else:
            shape = AutoConfig.for_model(**config.backbone)
        self.network = AutoModel.from_config(shape)
        self.network.pooler = None  # not part of a mean, and without a gradient

    @property
    def embedding(self) -> nn.Embedding:
        """The table of word vectors, (V, H)."""
        table: nn.Embedding = self.network.get_input_embeddings()
        return table

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids and (B,) lengths on the CPU -> (B, H)."""
        mask = to_device(_mask(lengths, input_ids.shape[1]), input_ids.device)
        return mean_of_tokens(
            self.network(input_ids=input_ids, attention_mask=mask).last_hidden_state, mask
        )


ENCODERS: dict[str, type[Recurrent] | type[BagOfWords] | type[Transformer]] = {
    "gru": Recurrent,
    "bag_of_words": BagOfWords,
    "transformer": Transformer,
}


class QuickThought(PreTrainedModel):
    """Two encoders that share no weights: f for a sentence, g for its context ([QT]).

    ``sentence`` and ``context`` each have their own word vectors (``.embedding``); ``dim`` is H.
    """

    config_class = QuickThoughtConfig

    def __init__(self, config: QuickThoughtConfig) -> None:
        super().__init__(config)
        self.sentence = ENCODERS[config.kind](config)
        self.context = ENCODERS[config.kind](config)
        self.dim = self.sentence.dim
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The f and the g of every sentence, (B, H) each, not normalised.

        Args:
            input_ids: (B, T) int64, each row's tokens, then its padding.
            attention_mask: (B, T) bool, True at tokens; on the CPU even if the ids are not, to
                avoid a synchronisation.

        Raises:
            ValueError: a row without tokens or with padding before a token.
        """
        mask = attention_mask.cpu().bool()
        if input_ids.ndim != 2 or mask.shape != input_ids.shape:
            raise ValueError(
                f"input_ids and attention_mask are (sentences, tokens); got shapes "
                f"{tuple(input_ids.shape)} and {tuple(mask.shape)}"
            )
        lengths = mask.sum(1)
        if not lengths.all():
            raise ValueError(f"sentence {int(lengths.argmin())} of the batch has no token")
        if not torch.equal(mask, _mask(lengths, mask.shape[1])):
            raise ValueError("attention_mask is True at a row's first tokens and False after them")
        return self.sentence(input_ids, lengths), self.context(input_ids, lengths)

    def vectors(
        self, ids: Sequence[Sequence[int]], project: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The vectors of B sentences, [f/|f| ; g/|g|] (B, 2H), or (B, d) of the pair projected.

        Args:
            ids: the tokens of each sentence; those beyond ``config.length`` are left out.
            project: (B, 2H) -> (B, d) of the unnormalised pair [f ; g].

        Raises:
            ValueError: a sentence without tokens.
        """
        rows = [torch.tensor(row[: self.config.length], dtype=torch.int64) for row in ids]
        mask = _mask(torch.tensor([len(row) for row in rows]), max(map(len, rows)))
        padded = pad_sequence(rows, batch_first=True, padding_value=self.config.pad_token_id)
        f, g = QuickThought.forward(self, padded.to(self.device), mask)
        if project is not None:
            return project(torch.cat([f, g], dim=1))
        return torch.cat([unit_rows(f), unit_rows(g)], dim=1)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """[QT]'s initialisation of a table or a cell; transformers calls it, also for BERT's own.

        TensorFlow keeps a GRU cell's weights in two kernels over inputs and state together: one for
        the two gates, (E + units, 2 units), and one for the candidate, (E + units, units). Each is
        Glorot-uniform as a whole, so torch's matrices use these kernels' bounds.
        """
        # Without those loaded from a file: transformers makes nn.init leave them as they are, but
        # not their slices.
        to_start = {
            name: parameter
            for name, parameter in module.named_parameters(recurse=False)
            if not getattr(parameter, "_is_hf_initialized", False)
        }
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.GRU):
            units = module.hidden_size
            for name, parameter in to_start.items():
                gates, candidate = parameter[: 2 * units], parameter[2 * units :]
                if name.startswith("weight"):
                    for kernel, outputs in ((gates, 2 * units), (candidate, units)):
                        bound = (6 / (module.input_size + units + outputs)) ** 0.5
                        nn.init.uniform_(kernel, -bound, bound)
                elif name.startswith("bias_ih"):
                    nn.init.ones_(gates)
                    nn.init.zeros_(candidate)
                else:  # torch adds a second bias to the one that TensorFlow has
                    nn.init.zeros_(parameter)


@dataclass
class SentenceVectors(ModelOutput):
    """The output of :class:`QuickThoughtVectors`; its first and only item is (B, 2H)."""

    sentence_embedding: Tensor | None = None


class QuickThoughtVectors(QuickThought):
    """A :class:`QuickThought` that returns sentence vectors; ``AutoModel`` loads a folder as this.

    transformers' pipelines use only the first item of a model's output.
    """

    def forward(  # type: ignore[override] # a different result is its purpose
        self, input_ids: Tensor, attention_mask: Tensor, return_dict: bool = True
    ) -> SentenceVectors | tuple[Tensor]:
        """The vectors [f/|f| ; g/|g|], (B, 2H).

        A sentence without tokens is one unknown word; tokens beyond ``config.length`` are left out.
        ``attention_mask`` is True at tokens. With ``return_dict=False`` the result is a tuple with
        only the vectors, as for all transformers models.
        """
        f, g = self._pair(input_ids, attention_mask)
        output = SentenceVectors(torch.cat([unit_rows(f), unit_rows(g)], dim=1))
        return output if return_dict else (output[0],)

    def pair(self, input_ids: Tensor, attention_mask: Tensor) -> SentenceVectors:
        """The same for the unnormalised [f ; g], to which CLLR's L is applied."""
        return SentenceVectors(torch.cat(self._pair(input_ids, attention_mask), dim=1))

    def _pair(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        ids, mask = input_ids[:, : self.config.length], attention_mask[:, : self.config.length]
        empty = ~mask.bool().any(1, keepdim=True)
        if empty.any():
            room = max(0, 1 - ids.shape[1])
            ids, mask = (nn.functional.pad(tensor, (0, room)) for tensor in (ids, mask.bool()))
            first = empty & (torch.arange(ids.shape[1], device=ids.device) == 0)
            ids, mask = ids.long().masked_fill(first, UNKNOWN_ID), mask | first
        return super().forward(ids, mask)


AutoConfig.register(QuickThoughtConfig.model_type, QuickThoughtConfig, exist_ok=True)
AutoModel.register(QuickThoughtConfig, QuickThoughtVectors, exist_ok=True)


@dataclass(frozen=True)
class Projected:
    """CLLR's L as it is evaluated: unnormalised pairs [f ; g] (n, 2H) -> vectors (n, R)."""

    matrix: Tensor  # (R, 2H)
    normalise: bool  # whether the vectors are divided by their length

    def __call__(self, pairs: Tensor) -> Tensor:
        """The vectors of pairs, in their precision and on their device."""
        vectors = pairs @ self.matrix.to(pairs).T
        return unit_rows(vectors) if self.normalise else vectors


class SentenceEncoder:
    """A function from n sentences to their vectors (n, d) float32; ``encode`` is the same function.

    The model's mode is restored after every call. ``vectors`` computes those of a batch of
    sentences, which ``about`` describes.
    """

    def __init__(
        self,
        model: nn.Module,
        vectors: Callable[[list[str]], Tensor],
        batch_size: int,
        about: str = "[f ; g]",
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.about = about
        self._vectors = vectors

    @torch.no_grad()
    def __call__(self, sentences: Iterable[str]) -> np.ndarray:
        """The vectors of the sentences, in their order; see :func:`text.data.checked_sentences`."""
        given = list(checked_sentences(sentences))
        if not given:
            raise ValueError("no sentences to encode")
        # Sentences of similar length together, to limit padding; length in characters is a proxy.
        order = sorted(range(len(given)), key=lambda row: len(given[row]))
        blocks = []
        with evaluating(self.model):
            for start in range(0, len(order), self.batch_size):
                batch = [given[row] for row in order[start : start + self.batch_size]]
                blocks.append(self._vectors(batch).float().cpu().numpy())
        by_length = np.concatenate(blocks)
        result = np.empty_like(by_length)
        result[order] = by_length
        return result

    def encode(self, sentences: Iterable[str]) -> np.ndarray:
        """The same under the name that sentence-transformers and its benchmarks use."""
        return self(sentences)


def vectors_of(encode: Encode | HasEncode, sentences: list[str]) -> np.ndarray:
    """The vectors of n sentences by any kind of encoder, unchanged, as a float32 array.

    ``encode`` is a function of sentences, or an object with a method ``encode``, which takes
    precedence. It may return tensors on any device, even ones that require gradients.
    """
    function = getattr(encode, "encode", encode)
    if not callable(function):
        raise ValueError(
            f"encode is a function of sentences, or has a method encode; got {encode!r}"
        )
    output = function(sentences)
    if isinstance(output, Sequence) and len(output) and isinstance(output[0], Tensor):
        output = torch.stack(list(output))
    if isinstance(output, Tensor):
        output = output.detach().float().cpu().numpy()
    return np.asarray(output, dtype=np.float32)


def sentence_encoder(
    model: QuickThought,
    tokenizer: PreTrainedTokenizerBase,
    *,
    project: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 256,
) -> SentenceEncoder:
    """The sentence vectors of a model: [f/|f| ; g/|g|], d = 2H ([QT]).

    Sentences are cut at ``model.config.length`` tokens; one without tokens is one unknown word.

    Args:
        model: on the device to compute on; its mode is restored after every call.
        tokenizer: the model's.
        project: (n, 2H) -> (n, d), applied to the unnormalised pair [f ; g] instead of normalising
            its two halves (CLLR's L).
        batch_size: sentences of similar length that are encoded together.

    Returns:
        A function of n sentences, also available as its method ``encode``; it raises ValueError if
        there are none.

    Raises:
        ValueError: a tokenizer with more words than the model.
    """
    words, unknown = model.config.vocab_size, tokenizer.unk_token_id
    if len(tokenizer) > words:
        raise ValueError(f"the tokenizer has {len(tokenizer)} words, the model {words}")

    def vectors(sentences: list[str]) -> Tensor:
        rows = tokenizer(sentences, truncation=True, max_length=model.config.length)["input_ids"]
        return model.vectors([row or [unknown] for row in rows], project)

    return SentenceEncoder(model, vectors, batch_size)


def _mask(lengths: Tensor, tokens: int) -> Tensor:
    """(B,) -> (B, T) bool: the first tokens of each row."""
    return torch.arange(tokens, device=lengths.device) < lengths[:, None]


def mean_of_tokens(states: Tensor, weight: Tensor) -> Tensor:
    """The mean (B, H) of states (B, T, H), weighted by (B, T): by a mask, over the tokens."""
    weight = weight.to(states.dtype)
    return torch.einsum("bth,bt->bh", states, weight) / weight.sum(1, keepdim=True)
