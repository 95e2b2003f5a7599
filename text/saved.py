"""Sentence encoders that transformers or sentence-transformers saved to a local folder.

A folder with ``modules.json`` is one of sentence-transformers, and is read by that library.

Shapes: B sentences, T tokens of the longest, H width of a token's state, n sentences.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.compat import make_torchvision_importable
from shared.experiment.initial import InitialWeights
from shared.experiment.weights import DERIVED
from text.encoder import (
    QuickThought,
    QuickThoughtConfig,
    SentenceEncoder,
    mean_of_tokens,
    sentence_encoder,
)

make_torchvision_importable()

from transformers import (  # noqa: E402 (needs the line above)
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar  # noqa: E402

Pooling = Literal["as saved", "mean", "cls", "last", "max"]
REMEDY = "save an encoder and its tokenizer there with save_pretrained"
MODULES = "modules.json"
BESIDE = ("1_Pooling", "sentence_bert_config.json", "config_sentence_transformers.json")
NO_LIMIT = 10**9  # tokenizers without a limit have a model_max_length of 1e30


# From states (B, T, H) and their mask (B, T) to (B, H).
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_of_tokens,
    "cls": lambda states, mask: states[:, 0],
    "last": lambda states, mask: states[
        torch.arange(len(states), device=states.device), mask.sum(1) - 1
    ],
    "max": lambda states, mask: states.masked_fill(~mask[..., None], -torch.inf).amax(1),
}


def hugging_face_encoder(
    folder: Path | str, *, pooling: Pooling = "as saved", batch_size: int = 64
) -> SentenceEncoder:
    """The sentence vectors of an encoder in a local folder.

    A folder of sentence-transformers gives ``SentenceTransformer(folder).encode``: with its steps,
    prompt, limit of tokens and precision. Of a folder of transformers the last layer's states are
    pooled, in float32, and sentences are truncated to the smallest limit of tokenizer and position
    embeddings. A sentence's vector does not depend on the others in its batch: padding follows the
    tokens, and where sentence-transformers pads before them, sentences are encoded one by one. A
    :class:`text.QuickThought` saved with its tokenizer gives the same as
    :func:`text.sentence_encoder`. Nothing is downloaded. Runs on a GPU if there is one.

    Args:
        folder: written by ``save_pretrained`` of a model and of its tokenizer, or by
            sentence-transformers.
        pooling: over the tokens, of a folder of transformers. ``"as saved"``: the mean, or what
            sentence-transformers stored; ``"mean"``, ``"cls"`` (the first token), ``"last"`` or
            ``"max"``.
        batch_size: sentences of similar length that are encoded together.

    Returns:
        A function of n sentences, also available as its method ``encode``; its ``about`` describes
        what was read. It raises ValueError if there are no sentences, if the tokenizer returns
        no token for one, or if a vector is not finite.

    Raises:
        UserError: the folder does not hold an encoder with all its weights and a tokenizer, holds
            weights that the encoder has no place for, or lacks ``modules.json`` beside other files
            of sentence-transformers.
        ValueError: an unknown pooling, or one for a model that has its own.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling is one of {', '.join(get_args(Pooling))}; got {pooling!r}")
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; {REMEDY}")
    if (folder / MODULES).is_file():
        if pooling != "as saved":
            raise ValueError(f"a folder of sentence-transformers has its pooling; omit {pooling!r}")
        return _of_the_library(folder, batch_size)
    if names := [name for name in BESIDE if (folder / name).exists()]:
        raise UserError(
            f"{folder}: has {names[0]} but no {MODULES}; get the folder of sentence-transformers "
            f"again, or remove {names[0]}"
        )
    model, tokenizer = _loaded(folder)
    if isinstance(model, QuickThought):
        if pooling != "as saved":
            raise ValueError(f"a QuickThought has its pooling; omit {pooling!r}")
        return sentence_encoder(model, tokenizer, batch_size=batch_size)
    pooled = "mean" if pooling == "as saved" else pooling
    length = _length(model, tokenizer)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:  # any token will do, since the mask hides it
        first = tokenizer.convert_ids_to_tokens(0)
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or first
    accepted = inspect.signature(model.forward).parameters

    def vectors(sentences: list[str]) -> Tensor:
        tokens = tokenizer(
            sentences,
            padding=True,
            truncation=length is not None,
            max_length=length,
            return_attention_mask=True,
            return_tensors="pt",
        )
        counts = tokens["attention_mask"].sum(1)
        if not counts.all():
            sentence = sentences[int(counts.argmin())]
            raise ValueError(f"the tokenizer returns no token for {sentence!r}")
        tokens = tokens.to(model.device)
        states = model(**{name: tokens[name] for name in tokens if name in accepted})[0]
        return POOLINGS[pooled](states, tokens["attention_mask"].bool())

    limit = "of any number" if length is None else f"at most {length}"
    about = f"{pooled} of a sentence's tokens, {limit}"
    # A model that takes no mask would read the padding.
    batch_size = batch_size if "attention_mask" in accepted else 1
    return SentenceEncoder(model, vectors, batch_size, about)


def _of_the_library(folder: Path, batch_size: int) -> SentenceEncoder:
    """What sentence-transformers makes of its folder."""
    from sentence_transformers import SentenceTransformer  # takes seconds

    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = SentenceTransformer(str(folder), device=device, local_files_only=True)
        inner = getattr(model[0], "model", None)
        if isinstance(inner, PreTrainedModel):
            modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
            inner_folder = folder / modules[0]["path"]
            if (inner_folder / "config.json").is_file():
                # The library does not tell which weights it found.
                kind: Any = type(inner)
                report = kind.from_pretrained(
                    inner_folder, local_files_only=True, output_loading_info=True
                )[1]
                _check_complete(folder, inner, report)
    except UserError:
        raise
    except Exception as error:  # whatever the folder's modules raise
        raise _unreadable(folder, error, "save it again with SentenceTransformer.save") from error
    if (words := getattr(model, "tokenizer", None)) is not None:
        _check_words(folder, words)

    def vectors(sentences: list[str]) -> Tensor:
        embeddings: Tensor = model.encode(
            sentences, batch_size=len(sentences), show_progress_bar=False, convert_to_tensor=True
        )
        if not (finite := embeddings.isfinite().all(1)).all():
            raise ValueError(
                f"the vector of {sentences[int(finite.int().argmin())]!r} is not finite"
            )
        return embeddings

    steps = ", ".join(type(module).__name__ for module in model)
    about = f"sentence-transformers' {steps}, at most {model.max_seq_length} tokens"
    left = getattr(words, "padding_side", "right") == "left"
    return SentenceEncoder(model, vectors, 1 if left else batch_size, about)


def starting_point(
    init: InitialWeights, length: int
) -> tuple[QuickThought, PreTrainedTokenizerFast]:
    """The model that training starts from, and the tokenizer that its sentences have to have.

    The folder holds a :class:`text.QuickThought`, or any Hugging Face encoder: both f and g then
    start from it, without its dropout.

    Of a sentence ``length`` tokens are kept, the model's own first and last among them.
    """
    init.check()
    if not init.file.is_dir():
        raise UserError(f"{init.file}: a file; give the folder that holds it and its tokenizer")
    loaded, tokenizer = _loaded(init.file)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"{init.file}: its tokenizer has no tokenizer.json; save it with one")
    if isinstance(loaded, QuickThought):
        shape = loaded.config
        limit = shape.length if shape.kind == "transformer" else None
    else:
        limit = _length(loaded, tokenizer)
        described = loaded.config.to_dict()
        dropped = {  # of GPT-2 it is attn_pdrop
            name: 0.0 for name in described if "drop" in name and isinstance(described[name], float)
        }
        shape = QuickThoughtConfig(
            kind="transformer",
            vocab_size=loaded.get_input_embeddings().num_embeddings,
            hidden=loaded.config.hidden_size,
            backbone={**described, **dropped},
            pad_token_id=tokenizer.pad_token_id or 0,
        )
    if limit is not None and limit < length:
        raise UserError(f"{init.file}: takes at most {limit} tokens; set length={limit}")
    shape.length = length
    with torch.random.fork_rng(devices=[]):
        model = QuickThought(shape)
    state = loaded.state_dict()
    if not isinstance(loaded, QuickThought):
        kept = {name: item for name, item in state.items() if not name.startswith("pooler.")}
        both = ("sentence", "context")
        state = {f"{part}.network.{name}": kept[name] for part in both for name in kept}
    model.load_state_dict(state)
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.enable_truncation(length)
    return model, tokenizer


def _loaded(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The complete model and tokenizer; the model in float32, on the GPU if there is one."""
    disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, report = AutoModel.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # tokenizers raises Exception itself for a damaged file
        raise _unreadable(folder, error, REMEDY) from error
    _check_complete(folder, model, report)
    if model.config.is_encoder_decoder:
        raise UserError(f"{folder}: an encoder with a decoder; {REMEDY}")
    _check_words(folder, tokenizer)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _unreadable(folder: Path, error: Exception, remedy: str) -> UserError:
    reason = str(error).strip().partition("\n")[0]
    return UserError(f"{folder}: cannot be loaded ({reason}); {remedy}")


def _check_complete(folder: Path, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuse weights that lack some of the model's, or belong to parts that it does not have."""
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if missing:
        raise UserError(f"{folder}: weights are missing ({missing[0]} is the first); {REMEDY}")
    inside = dict(model.named_children())
    names = [name.removeprefix(f"{model.base_model_prefix}.") for name in report["unexpected_keys"]]
    over = sorted(
        name
        for name in names
        if name.partition(".")[0] in inside and not name.endswith(DERIVED) and "pooler" not in name
    )
    if over:
        raise UserError(
            f"{folder}: has weights that {type(model).__name__} has no place for ({over[0]} is the "
            f"first); use the version of transformers that saved it, or give another model"
        )


def _check_words(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers invents one without a file
        raise UserError(f"{folder}: a tokenizer without words; {REMEDY}")


def _length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The largest number of tokens of a sentence; None: unlimited."""
    limits = [
        tokenizer.model_max_length,
        getattr(model.config, "max_position_embeddings", None),  # -1 of XLNet, none of Mamba
    ]
    for name, module in model.named_modules():
        # RoBERTa and its relatives number positions after the padding's: 512 of 514 are left.
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            padding = -1 if module.padding_idx is None else module.padding_idx
            limits.append(module.num_embeddings - padding - 1)
    return min((int(limit) for limit in limits if limit and 0 < limit < NO_LIMIT), default=None)
