"""Sentence encoders that transformers or sentence-transformers saved to a local folder.

Shapes: B sentences, T tokens of the longest, H width of a token's state, n sentences.

Besides the weights, these files determine a sentence's vector:

modules.json                             the steps: a transformer, pooling, normalisation
<transformer>/sentence_bert_config.json  max_seq_length, do_lower_case
<pooling>/config.json                    how tokens are pooled; whether the prompt's are included
config_sentence_transformers.json        prompts, and which one precedes every sentence
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tokenizers import normalizers
from torch import Tensor, nn

from shared.compat import make_torchvision_importable
from shared.errors import UserError
from shared.experiment.weights import InitialWeights, some
from shared.notices import notice
from shared.pairs import unit_rows
from text.encoder import QuickThought, SentenceEncoder, mean_of_tokens, sentence_encoder

make_torchvision_importable()

from transformers import (  # noqa: E402 (needs the line above)
    AutoModel,
    AutoTokenizer,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

Pooling = Literal["as saved", "mean", "cls", "last", "max"]
REMEDY = "save an encoder and its tokenizer there with save_pretrained"
OTHERWISE = "load it with SentenceTransformer and give that to text.evaluate"
NO_LIMIT = 10**9  # tokenizers without a limit have a model_max_length of 1e30
LOWER_CASE = normalizers.Lowercase()
WORD_TABLES = ("embedding.weight", "word_embeddings.weight")
POSITIONS = "position_embeddings.weight"


def _first(states: Tensor, mask: Tensor) -> Tensor:
    return _at(states, mask.to(torch.uint8).argmax(1))  # where a prompt is left out, after it


def _last(states: Tensor, mask: Tensor) -> Tensor:
    return _at(states, mask.shape[1] - 1 - mask.flip(1).to(torch.uint8).argmax(1))


def _at(states: Tensor, place: Tensor) -> Tensor:
    return states[torch.arange(len(states), device=states.device), place]


def _largest(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(~mask[..., None], -torch.inf).amax(1)


def _mean_by_root(states: Tensor, mask: Tensor) -> Tensor:
    return mean_of_tokens(states, mask) * mask.sum(1, keepdim=True).sqrt()


def _mean_by_place(states: Tensor, mask: Tensor) -> Tensor:
    return mean_of_tokens(states, mask * torch.arange(1, mask.shape[1] + 1, device=mask.device))


# States (B, T, H) and mask (B, T) to vectors (B, H), by sentence-transformers' names.
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first,
    "max": _largest,
    "mean": mean_of_tokens,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _mean_by_place,
    "lasttoken": _last,
}
# Folders from before version 6 have a Boolean for each; several poolings are concatenated, in this
# order.
_BEFORE_6 = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Saved:
    """The settings of an encoder that its folder holds besides the weights.

    Attributes:
        poolings: names of ``POOLINGS``; the vectors of several are concatenated.
        prompt: precedes every sentence.
        pool_prompt: whether its tokens are pooled as well.
        unit_length: whether vectors are normalised.
        length: tokens kept of a sentence, including special ones; None: the tokenizer's limit.
        lower_case: whether sentences are lower-cased before they are tokenized.
    """

    poolings: tuple[str, ...]
    prompt: str
    pool_prompt: bool
    unit_length: bool
    length: int | None
    lower_case: bool


def hugging_face_encoder(
    folder: Path | str, *, pooling: Pooling = "as saved", batch_size: int = 64
) -> SentenceEncoder:
    """The sentence vectors of a transformers encoder in a local folder.

    They equal those of sentence-transformers: its ``max_seq_length``, lower-casing, default prompt,
    pooling and normalisation are read if they are stored with the weights. A sentence's vector does
    not depend on the others in its batch: padding always follows the tokens, whichever side the
    tokenizer pads on. Sentences are truncated to the smallest limit of tokenizer, folder and
    position embeddings. A :class:`text.QuickThought` saved with its tokenizer gives the same as
    :func:`text.sentence_encoder`. Nothing is downloaded. Computation is in float32, on a GPU if
    there is one.

    Args:
        folder: written by ``save_pretrained`` of a model and of its tokenizer, or by
            sentence-transformers.
        pooling: of the last layer's states. ``"as saved"``: as stored in the folder, the mean over
            the tokens if nothing is stored; ``"mean"``, ``"cls"`` (the first token), ``"last"`` or
            ``"max"`` override it.
        batch_size: sentences of similar length that are encoded together.

    Returns:
        A function of n sentences, also available as its method ``encode``; its ``about`` describes
        what was read. It raises ValueError if there are no sentences, or if the tokenizer returns
        no token for one.

    Raises:
        UserError: the folder does not hold an encoder with all its weights and a tokenizer, or has
            a step after the transformer other than pooling and normalisation.
        ValueError: an unknown pooling, or one for a ``QuickThought``, which has its own.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling is one of {', '.join(get_args(Pooling))}; got {pooling!r}")
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; {REMEDY}")
    steps = _steps(folder)
    place = folder / steps[0][1] if steps else folder
    model, tokenizer = _loaded(place)
    if isinstance(model, QuickThought):
        if pooling != "as saved":
            raise ValueError(f"pooling {pooling!r} does not apply to a QuickThought; leave it out")
        return sentence_encoder(model, tokenizer, batch_size=batch_size)
    saved = _saved(folder, steps)
    poolings = saved.poolings
    if pooling != "as saved":
        poolings = ("lasttoken" if pooling == "last" else pooling,)
    length = _length(model, tokenizer, saved.length)
    _pad_on_the_right(tokenizer)
    accepted = inspect.signature(model.forward).parameters
    left_out = 0 if saved.pool_prompt else _tokens_of_prompt(tokenizer, saved.prompt)

    def vectors(sentences: list[str]) -> Tensor:
        texts = [saved.prompt + sentence for sentence in sentences]
        if saved.lower_case:  # by the library that sentence-transformers uses
            texts = [LOWER_CASE.normalize_str(each) for each in texts]
        tokens = tokenizer(
            texts,
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
        mask = tokens["attention_mask"].bool()
        mask[:, :left_out] = False
        found = torch.cat([POOLINGS[each](states, mask) for each in poolings], dim=1)
        return unit_rows(found) if saved.unit_length else found

    about = (
        f"{' and '.join(poolings)} of a sentence's tokens, "
        f"{'of any number' if length is None else f'at most {length}'}"
        + (f", after the prompt {saved.prompt!r}" if saved.prompt else "")
        + (", in lower case" if saved.lower_case else "")
        + (", scaled to length 1" if saved.unit_length else "")
    )
    # A model that takes no mask would read the padding.
    batch_size = batch_size if "attention_mask" in accepted else 1
    return SentenceEncoder(model, vectors, batch_size, about)


def initialise(
    model: QuickThought, tokenizer: PreTrainedTokenizerBase, init: InitialWeights
) -> int:
    """Start a model from a saved one, and return how many words have a vector in it.

    Takes a :class:`text.QuickThought` of the same kind and widths, or a BERT for both encoders of a
    ``"transformer"``. Vectors of words are matched by the words; words that the saved model lacks
    keep theirs, with a notice. Of the positions of a BERT the first ones are taken.

    Args:
        model: is filled in place.
        tokenizer: the model's.
        init: a folder of transformers, with its tokenizer.

    Raises:
        UserError: no such folder, another kind of model, or missing or unexpected tensors.
    """
    init.check()
    if not init.file.is_dir():
        raise UserError(f"{init.file}: a file; give the folder that holds it and its tokenizer")
    with torch.random.fork_rng(devices=[]):
        found, its_tokenizer = _loaded(init.file)
    pairs: list[tuple[Any, Any]]
    if isinstance(found, QuickThought):
        pairs = [(model.sentence, found.sentence), (model.context, found.context)]
    elif isinstance(found, BertModel) and model.config.kind == "transformer":
        pairs = [(each.bert, found) for each in (model.sentence, model.context)]
    else:
        kind = type(found).__name__
        raise UserError(
            f"{init.file}: holds a {kind}, which does not fit encoder={model.config.kind!r}; give "
            f"a QuickThought, or a BertModel with encoder='transformer'"
        )
    ids, rows = _common_words(tokenizer, its_tokenizer)
    if not ids:
        raise UserError(f"{init.file}: its tokenizer shares no word with the corpus; give another")
    for target, source in pairs:
        wanted = target.state_dict()
        state = {name: item.to(model.device) for name, item in source.state_dict().items()}
        for name, tensor in wanted.items():
            if name.endswith(WORD_TABLES) and state[name].shape[1:] == tensor.shape[1:]:
                table = tensor.clone()
                table[ids] = state[name][rows]
                state[name] = table
            elif name.endswith(POSITIONS) and name in state:
                state[name] = state[name][: len(tensor)]
        wrong = [
            name
            for name, item in wanted.items()
            if name not in state or state[name].shape != item.shape
        ]
        unexpected = [name for name in state if name not in wanted and "pooler" not in name]
        if wrong or unexpected:
            raise UserError(
                f"{init.file}: does not fill encoder={model.config.kind!r}: missing or of another "
                f"shape are {some(wrong)}, unexpected are {some(unexpected)}; set encoder, "
                f"embedding, hidden, layers and heads as in its config.json"
            )
        target.load_state_dict({name: state[name] for name in wanted})
    if len(ids) < len(tokenizer):
        notice(
            f"init: {len(ids)} of {len(tokenizer)} words have a vector in the model to start from; "
            f"the others start at random"
        )
    return len(ids)


def _common_words(
    tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase
) -> tuple[list[int], list[int]]:
    """The ids of the words that both know, unknown words and padding among them, in both."""
    theirs = dict(other.get_vocab())
    for own, its in (
        (tokenizer.unk_token, other.unk_token_id),
        (tokenizer.pad_token, other.pad_token_id),
    ):
        if its is not None:
            theirs[str(own)] = its
    common = sorted(
        (i, theirs[word]) for word, i in tokenizer.get_vocab().items() if word in theirs
    )
    return [i for i, _ in common], [row for _, row in common]


def _loaded(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The complete model and tokenizer; the model in float32, on the GPU if there is one."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, report = AutoModel.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # tokenizers raises Exception itself for a damaged file
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{folder}: cannot be loaded ({reason}); {REMEDY}") from error
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if missing:
        raise UserError(f"{folder}: weights are missing ({missing[0]} is the first); {REMEDY}")
    if model.config.is_encoder_decoder:
        raise UserError(f"{folder}: an encoder with a decoder; {REMEDY}")
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers invents one without a file
        raise UserError(f"{folder}: a tokenizer without words; {REMEDY}")
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _steps(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of sentence-transformers' steps; none without ``modules.json``."""
    file = folder / "modules.json"
    listed = _json(file, [])
    if not all(isinstance(step, dict) for step in listed):
        raise UserError(f"{file}: not a list of objects; get the file again")
    steps = [
        (str(each.get("type")).rpartition(".")[2], str(each.get("path", ""))) for each in listed
    ]
    if file.is_file() and (not steps or steps[0][0] != "Transformer"):
        raise UserError(f"{file}: the first step is no Transformer; {OTHERWISE}")
    return steps


def _saved(folder: Path, steps: list[tuple[str, str]]) -> Saved:
    """The settings in the files beside the weights."""
    kinds = [kind for kind, _ in steps]
    if steps and kinds not in (
        ["Transformer", "Pooling"],
        ["Transformer", "Pooling", "Normalize"],
    ):
        raise UserError(
            f"{folder / 'modules.json'}: the steps {', '.join(kinds)} are not Transformer, Pooling "
            f"and possibly Normalize; {OTHERWISE}"
        )
    transformer, pooling = (folder / path for _, path in steps[:2] or [("", ""), ("", "1_Pooling")])
    file = pooling / "config.json"
    if steps and not file.is_file():
        raise UserError(f"{file}: there is no such file; get the folder again")
    pool = _json(file, {})
    poolings = pool.get("pooling_mode") or [
        mode for key, mode in _BEFORE_6.items() if pool.get(key)
    ]
    # The default is the mean, as in sentence-transformers.
    poolings = (poolings,) if isinstance(poolings, str) else tuple(poolings) or ("mean",)
    if unknown := [mode for mode in poolings if mode not in POOLINGS]:
        raise UserError(f"{file}: unknown pooling {unknown[0]!r}; {OTHERWISE}")

    # sentence_bert_config.json, or by an earlier name such as sentence_roberta_config.json.
    files = sorted(transformer.glob("sentence_*_config.json"))
    said = _json(files[0], {}) if files else {}
    file = folder / "config_sentence_transformers.json"
    prompts = _json(file, {})
    known, default = prompts.get("prompts") or {}, prompts.get("default_prompt_name")
    if default is not None and default not in known:
        raise UserError(f"{file}: the default prompt {default!r} is not among its prompts; add it")
    return Saved(
        poolings=poolings,
        prompt=known.get(default) or "",
        pool_prompt=bool(pool.get("include_prompt", True)),
        unit_length="Normalize" in kinds,
        length=said.get("max_seq_length"),
        lower_case=bool(said.get("do_lower_case")),
    )


def _json(file: Path, missing: Any) -> Any:
    """The content of a file, of the type of ``missing``, which is returned if there is no file."""
    if not file.is_file():
        return missing
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error}); get the file again") from None
    if not isinstance(found, type(missing)):
        kind = "a list" if isinstance(missing, list) else "an object"
        raise UserError(f"{file}: not {kind}; get the file again")
    return found


def _length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, said: int | None
) -> int | None:
    """The largest number of tokens of a sentence; None: unlimited."""
    limits = [
        tokenizer.model_max_length if said is None else said,
        getattr(model.config, "max_position_embeddings", None),  # -1 of XLNet, none of Mamba
    ]
    for name, module in model.named_modules():
        # RoBERTa and its relatives number positions after the padding's: 512 of 514 are left.
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            padding = -1 if module.padding_idx is None else module.padding_idx
            limits.append(module.num_embeddings - padding - 1)
    return min((int(each) for each in limits if each and 0 < each < NO_LIMIT), default=None)


def _pad_on_the_right(tokenizer: PreTrainedTokenizerBase) -> None:
    """Pad after the tokens, with any token, since the mask hides it."""
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        first = tokenizer.convert_ids_to_tokens(0)
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or first


def _tokens_of_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> int:
    """The number of a prompt's tokens before a sentence, without a special one at its end."""
    ids = tokenizer(prompt)["input_ids"] if prompt else []
    return len(ids) - bool(ids and ids[-1] in tokenizer.all_special_ids)
