"""Trained encoders as folders that transformers reads, with a model card.

Shapes: n sentences, H width of one encoder, R rows of CLLR's projection.

    config.json, model.safetensors              QuickThought.from_pretrained
    tokenizer.json, tokenizer_config.json       AutoTokenizer.from_pretrained
    projection.safetensors                      the tensor "matrix" (R, 2H), of CLLR's rows only
    modules.json and what it names              SentenceTransformer, with the projection
    SHA256SUMS                                  of all the above, as sha256sum writes and checks it
    README.md                                   the model card

A finished run keeps the first three lines in its folder ``model/``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.compat import make_torchvision_importable
from shared.errors import UserError, suggestion
from shared.experiment.data import SUMS, check_sums, sha256_of, write_sums
from shared.experiment.domain import Asked, Scores
from shared.experiment.export import (
    REMEDY,
    Card,
    copy_checked,
    damaged,
    exportable,
    lines_of,
    loss_names,
    python,
    write_card,
)
from shared.experiment.records import Record
from shared.experiment.runs import Run, write_atomically
from shared.experiment.scoring import measured

make_torchvision_importable()

from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402 (needs the line above)

from text.config import TASKS, Config  # noqa: E402
from text.data import task_fingerprint  # noqa: E402
from text.encoder import (  # noqa: E402
    QuickThought,
    SentenceEncoder,
    sentence_encoder,
)
from text.evaluation import DEFAULT_PROTOCOL, PROTOCOLS, evaluate  # noqa: E402
from text.saved import hugging_face_encoder  # noqa: E402

MODEL = "model"  # the folder below that of a run
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
PROJECTION = "projection.safetensors"
DENSE = "1_Dense"  # CLLR's projection as sentence-transformers has it
MODULES = (
    "modules.json",
    "sentence_bert_config.json",
    f"{DENSE}/config.json",
    f"{DENSE}/model.safetensors",
)

CORPORA = {
    "books": "Public-domain books, as found in the folder `books`; the model holds none of their "
    "text but the words of its vocabulary.",
    "bookcorpus": "BookCorpus, which may not be distributed; the model holds none of its text but "
    "the words of its vocabulary. Its terms are those under which you obtained it.",
    "manual": "The manual that ships with Python, under the licence of Python.",
}
OWN_CORPUS = (
    "The folder of plain text `{name}`, whose terms are its owner's to state; the model holds none "
    "of it but the words of its vocabulary."
)


def load(folder: Path) -> SentenceEncoder:
    """The sentence encoder of an exported folder: n sentences -> (n, 2H), or (n, R) if projected.

    Args:
        folder: as :func:`write` made it.

    Raises:
        UserError: no such folder, or one that is not as :func:`write` left it.
    """
    _check_sums(folder)
    model, tokenizer, matrix = read(folder)
    if matrix is None:
        return sentence_encoder(model, tokenizer)
    return sentence_encoder(model, tokenizer, project=lambda pair: pair @ matrix.to(pair).T)


def read(folder: Path) -> tuple[QuickThought, PreTrainedTokenizerFast, Tensor | None]:
    """Model in eval mode, tokenizer, and projection (R, 2H) if there is one; nothing is guessed.

    Args:
        folder: an export, or the folder ``model/`` of a run.

    Raises:
        UserError: a file that is missing, damaged, or does not fit the others.
    """
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(
                f"{folder / name}: there is no such file; give an exported folder, or a run that "
                f"keeps its model"
            )
    try:
        # transformers declares the model alone here, without the report.
        loaded: Any = QuickThought.from_pretrained(
            folder, local_files_only=True, output_loading_info=True
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        file = folder / PROJECTION
        matrix = load_file(file)["matrix"] if file.is_file() else None
    # Whatever a damaged file makes these libraries raise; tokenizers raises Exception itself.
    except Exception as error:
        raise damaged(folder, f"{type(error).__name__}: {error}") from error
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if keys := sorted(map(str, report[kind])):
            raise damaged(folder, f"{kind.replace('_', ' ')}: {', '.join(keys)}")
    if len(tokenizer) != model.config.vocab_size:
        raise damaged(folder, f"{len(tokenizer)} words beside {model.config.vocab_size} embeddings")
    if matrix is not None and (matrix.ndim != 2 or matrix.shape[1] != 2 * model.dim):
        raise damaged(
            folder, f"a projection {tuple(matrix.shape)} for pairs of width {2 * model.dim}"
        )
    return model.eval(), tokenizer, matrix


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's model and a model card into ``target``, a folder, and return it.

    Args:
        folder: of the run.
        target: made if it is not there; files of the same names in it are replaced.

    Raises:
        UserError: a run that is not finished or keeps no model, or a damaged file.
    """
    record = exportable(folder, Config)
    if "corpus" not in record.config:
        raise UserError(f"{folder}: this run trains no sentence encoder; export one that does")
    if record.config["baseline"]:
        raise UserError(
            f"{folder}: this run is the baseline {record.config['baseline']!r}, which trains no "
            f"encoder; export one that does"
        )
    source = folder / MODEL
    if (source / SUMS).is_file():  # not of an earlier version
        _check_sums(source)
    model, _, matrix = read(source)
    names = FILES if matrix is None else (*FILES, PROJECTION)
    if matrix is None:  # one from an earlier export to the same place
        for name in (PROJECTION, *MODULES):
            (target / name).unlink(missing_ok=True)
    sums = copy_checked({name: source / name for name in names}, target)
    sums |= _write_modules(target, matrix)
    write_sums(target, sums)
    return write_card(target, record, _card(record, model, matrix), sums)


def score(asked: Asked) -> Scores:
    """Score an exported folder, or any encoder that transformers reads, by named protocols.

    Raises:
        UserError: no such folder, an unknown protocol or task, or tasks that are not there.
    """
    tasks = tuple((asked.data or ",".join(TASKS)).split(","))
    names = asked.protocols or (DEFAULT_PROTOCOL,)
    for each in names:
        if each not in PROTOCOLS:
            raise UserError(f"no protocol {each!r}{suggestion(each, PROTOCOLS, 'there are')}")
    exported = (asked.model / SUMS).is_file()
    encode = load(asked.model) if exported else hugging_face_encoder(asked.model)
    projected = exported and (asked.model / PROJECTION).is_file()
    how = "projected by CLLR's L" if projected else "not projected"
    asked.say(
        f"took every tensor of an export of this project, {how}"
        if exported
        else f"took the model of transformers in it: {encode.about}"
    )

    def protocol_of(protocol: str) -> dict[str, Any]:
        def by(config: Any, run: Run) -> Mapping[str, Any]:
            run.record_data(tasks=task_fingerprint(tasks, run.data_root))
            return evaluate(encode, run.data_root, tasks=tasks, protocol=protocol)

        return measured(Config(tasks=tasks), protocol, by, asked)

    facts = {"model": str(asked.model), "data": list(tasks)}
    weights = asked.model / "model.safetensors"
    if weights.is_file():
        facts["sha256"] = sha256_of(weights)
    return Scores(facts=facts, protocols={each: protocol_of(each) for each in names})


def _check_sums(folder: Path) -> None:
    further = [name for name in (PROJECTION, *MODULES) if (folder / name).exists()]
    check_sums(folder, REMEDY, (*FILES, *further))


def _write_modules(target: Path, matrix: Tensor | None) -> dict[str, str]:
    """What a ``SentenceTransformer`` reads beside the model; the SHA-256 of each file, by name."""
    whole, part = "sentence_transformers.models.Transformer", "sentence_transformers.models.Dense"
    modules = [{"idx": 0, "name": "0", "path": "", "type": whole}]
    method = "forward" if matrix is None else "pair"
    configs: dict[str, Any] = {
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {
                "text": {"method": method, "method_output_name": "sentence_embedding"}
            },
            "module_output_name": "sentence_embedding",
        }
    }
    if matrix is not None:
        modules.append({"idx": 1, "name": "1", "path": DENSE, "type": part})
        (target / DENSE).mkdir(exist_ok=True)
        configs[f"{DENSE}/config.json"] = {
            "in_features": matrix.shape[1],
            "out_features": matrix.shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        save_file({"linear.weight": matrix.contiguous()}, target / DENSE / "model.safetensors")
    for name, content in {"modules.json": modules, **configs}.items():
        write_atomically(target / name, json.dumps(content, indent=2) + "\n")
    return {name: sha256_of(target / name) for name in MODULES if (target / name).exists()}


# The model card


def _card(record: Record, model: QuickThought, matrix: Tensor | None) -> Card:
    config = record.config
    losses = loss_names(config["objective"])
    scores = _scores(config["tasks"], record.result["metrics"])
    steps = "" if config["steps"] is None else f", at most {config['steps']} steps"
    training = (
        f"trained without labels on consecutive sentences of `{config['corpus']}` with the loss "
        f"`{' + '.join(losses)}`: {config['epochs']} epochs{steps}, batches of "
        f"{config['batch_size']} sentences, seed {config['seed']}"
        if config["train"]
        else f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    )
    case = "lower case" if config["lower_case"] else "case matters"
    output = (
        f"{2 * model.dim} numbers, [f/|f| ; g/|g|]: each half has length 1"
        if matrix is None
        else f"{len(matrix)} numbers, L [f ; g] under the low-rank projection L that was trained "
        f"beside the encoders (`{PROJECTION}`)"
    )
    here = python(
        "from pathlib import Path",
        "",
        "from text.export import load",
        "",
        'encode = load(Path("."))  # this folder; checks every SHA-256',
        'vectors = encode(["It was a dark night.", "The rain fell in torrents."])',
    )
    parts = python(*_transformers_lines(matrix))
    name = "-".join(["quick-thought", config["encoder"], *losses, config["corpus"]])
    return Card(
        name=name.replace("_", "-").lower(),
        about=f"Two sentence encoders f and g ({config['encoder']}, {model.dim} numbers each, no "
        f"shared weights),\n{training}.",
        points=(
            f"Input: sentences. A vocabulary of {model.config.vocab_size}, {case}; at most\n"
            f"  {config['length']} tokens of a sentence.",
            f"Output: {output}.",
        ),
        tags=("sentence-embeddings", "contrastive-learning", "quick-thoughts", *losses),
        pipeline="feature-extraction",
        library="transformers",
        task="text-classification",
        scores=[
            (
                {"type": task, "name": task},
                [
                    {"type": "f1" if kind == "F1" else "accuracy", "value": value}
                    for which, kind, value in scores
                    if which == task
                ],
            )
            for task in config["tasks"]
        ],
        loading=f"{here}\n\nor with transformers, beside this project's classes:\n\n{parts}",
        data=CORPORA.get(config["corpus"], OWN_CORPUS.format(name=config["corpus"])),
        measured=f", tier `{record.result['tier']}`, after the last step; in percent.",
        results=lines_of(*scores, header=("task", "metric", "value")),
        use="""\
Features for research on contrastive learning: linear classifiers on sentence vectors, comparison of
losses. One seed of one configuration; it has been checked neither for bias nor for fitness in any
decision about people, and it speaks the language of its corpus.""",
        licence="Texts and tasks have terms of their own.",
    )


def _scores(tasks: Sequence[str], metrics: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Task, kind of metric and percentage, in the order of the tasks, then their mean."""
    scores = []
    for task in tasks:
        scores.append((task, "accuracy", metrics[task]))
        if f"{task}_f1" in metrics:
            scores.append((task, "F1", metrics[f"{task}_f1"]))
    return [*scores, ("mean of the tasks", "accuracy", metrics["mean"])]


def _transformers_lines(matrix: Tensor | None) -> list[str]:
    """How to load the folder by its parts."""
    lines = [
        "from transformers import AutoTokenizer",
        "",
        "from text.encoder import QuickThought, sentence_encoder",
        "",
        'model = QuickThought.from_pretrained(".")',
        'tokenizer = AutoTokenizer.from_pretrained(".", local_files_only=True)',
    ]
    if matrix is None:
        return [*lines, "encode = sentence_encoder(model, tokenizer)"]
    return [
        "from safetensors.torch import load_file",
        *lines,
        f'matrix = load_file("{PROJECTION}")["matrix"]',
        "project = lambda pair: pair @ matrix.to(pair).T",
        "encode = sentence_encoder(model, tokenizer, project=project)",
    ]
