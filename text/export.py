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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from shared.errors import UserError
from shared.experiment.compat import make_torchvision_importable
from shared.experiment.data import SUMS, check_sums, sha256_of
from shared.experiment.domain import EvaluationRequest, Scores, measure_protocol
from shared.experiment.export import (
    REMEDY,
    Export,
    damaged,
    export_run,
    loss_names,
    python_block,
    training_of,
)
from shared.experiment.records import Record
from shared.experiment.run import Run

make_torchvision_importable()

from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402 (needs the line above)

from text import sts  # noqa: E402
from text.config import TASKS, Config  # noqa: E402
from text.data import task_fingerprint  # noqa: E402
from text.encoder import (  # noqa: E402
    NORMALISED,
    PROJECTION,
    Projected,
    QuickThought,
    SentenceEncoder,
    sentence_encoder,
)
from text.evaluation import DEFAULT_PROTOCOL, PROTOCOLS, evaluate  # noqa: E402
from text.saved import hugging_face_encoder  # noqa: E402

MODEL = "model"  # the folder below that of a run
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
DENSE = "1_Dense"  # CLLR's projection as sentence-transformers has it
NORMALIZE = "2_Normalize"
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
    "Plain text, `{name}`, whose terms are its owner's to state; the model holds none "
    "of it but the words of its vocabulary."
)


def load(folder: Path) -> SentenceEncoder:
    """The encoder of an exported folder: n sentences -> (n, 2H), or (n, R) if projected."""
    further = [name for name in (PROJECTION, *MODULES) if (folder / name).exists()]
    check_sums(folder, REMEDY, (*FILES, *further))
    model, tokenizer, project = read(folder)
    return sentence_encoder(model, tokenizer, project=project)


def read(folder: Path) -> tuple[QuickThought, PreTrainedTokenizerFast, Projected | None]:
    """Model in eval mode, tokenizer, and projection if there is one; nothing is guessed.

    The folder is an export, or ``model/`` of a run.
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
        project = _projection(file) if file.is_file() else None
    # A damaged file can make these libraries raise anything; tokenizers raises Exception itself.
    except Exception as error:
        raise damaged(folder, f"{type(error).__name__}: {error}") from error
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if keys := sorted(map(str, report[kind])):
            raise damaged(folder, f"{kind.replace('_', ' ')}: {', '.join(keys)}")
    words = model.config.vocab_size
    # The embeddings of a Hugging Face encoder may have rows that no word uses.
    if len(tokenizer) > words or (model.config.backbone is None and len(tokenizer) < words):
        raise damaged(folder, f"{len(tokenizer)} words beside {words} embeddings")
    return model.eval(), tokenizer, project


def _projection(file: Path) -> Projected:
    with safe_open(file, "pt") as content:
        return Projected(content.get_tensor("matrix"), NORMALISED in (content.metadata() or {}))


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's model and a model card into ``target``, and return it.

    An earlier export in ``target`` is replaced.
    """
    names = [*FILES, *([PROJECTION] if (folder / MODEL / PROJECTION).is_file() else [])]
    needs = [f"{MODEL}/{name}" for name in names]
    return export_run(folder, target, Config, needs, _describe)


def score(request: EvaluationRequest) -> Scores:
    """Score an exported folder, or any encoder that transformers reads, by named protocols."""
    names = request.chosen((*PROTOCOLS, sts.PROTOCOL), DEFAULT_PROTOCOL)
    model_folder = request.model / MODEL  # of a run
    folder = model_folder if (model_folder / SUMS).is_file() else request.model
    exported = (folder / SUMS).is_file()
    encode = load(folder) if exported else hugging_face_encoder(folder)
    projected = exported and (folder / PROJECTION).is_file()
    how = "projected by CLLR's L" if projected else "not projected"
    request.say(
        f"loaded every tensor of an export of this project, {how}"
        if exported
        else f"loaded the model in it: {encode.about}"
    )

    def tasks_of(protocol: str) -> tuple[str, ...]:
        if request.data:
            return tuple(request.data.split(","))
        return sts.STS_TASKS if protocol == sts.PROTOCOL else TASKS

    def protocol_of(protocol: str) -> dict[str, Any]:
        tasks = tasks_of(protocol)

        def by(config: Any, run: Run) -> Mapping[str, Any]:
            if protocol == sts.PROTOCOL:
                run.record_data(tasks=sts.sts_fingerprint(tasks, run.data_root))
                return sts.evaluate_sts(encode, run.data_root, tasks=tasks)
            run.record_data(tasks=task_fingerprint(tasks, run.data_root))
            return evaluate(encode, run.data_root, tasks=tasks, protocol=protocol)

        return measure_protocol(Config(tasks=tasks), protocol, by, request)

    data = dict.fromkeys(task for name in names for task in tasks_of(name))
    facts = {"model": str(folder), "data": list(data)}
    weights = folder / "model.safetensors"
    if weights.is_file():
        facts["sha256"] = sha256_of(weights)
    return Scores(facts=facts, protocols={name: protocol_of(name) for name in names})


def _modules(project: Projected | None) -> dict[str, bytes]:
    """The further files that a ``SentenceTransformer`` reads, by name."""
    parts = [("Transformer", "")]
    if project is not None:
        parts.append(("Dense", DENSE))
        if project.normalise:
            parts.append(("Normalize", NORMALIZE))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(parts)
    ]
    method = "forward" if project is None else "pair"
    configs: dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {
                "text": {"method": method, "method_output_name": "sentence_embedding"}
            },
            "module_output_name": "sentence_embedding",
        },
    }
    weights = {}
    if project is not None:
        matrix = project.matrix
        configs[f"{DENSE}/config.json"] = {
            "in_features": matrix.shape[1],
            "out_features": matrix.shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        weights[f"{DENSE}/model.safetensors"] = save({"linear.weight": matrix.contiguous()})
    contents = {name: json.dumps(content, indent=2) + "\n" for name, content in configs.items()}
    return {name: content.encode() for name, content in contents.items()} | weights


def _describe(folder: Path, record: Record) -> Export:
    config = record.config
    model, _, project = read(folder / MODEL)
    names = FILES if project is None else (*FILES, PROJECTION)
    sentences = f"consecutive sentences of `{config['corpus']}`"
    case = "lower case" if config["lower_case"] else "case matters"
    case = "that of the weights it started from" if config.get("init") else case
    return Export(
        files={**{name: folder / MODEL / name for name in names}, **_modules(project)},
        name=("quick-thought", config["encoder"], config["corpus"]),
        losses=loss_names(config["objective"]) if config["train"] else (),
        about=f"Two sentence encoders f and g ({config['encoder']}, {model.dim} numbers each, no "
        f"shared weights),\n{training_of(config, sentences)}",
        input=f"sentences. A vocabulary of {model.config.vocab_size}, {case}; at most\n"
        f"  {config['length']} tokens of a sentence",
        output=f"{2 * model.dim} numbers, [f/|f| ; g/|g|]: each half has length 1"
        if project is None
        else f"{len(project.matrix)} numbers, L [f ; g] under the low-rank projection L that was "
        f"trained beside the encoders (`{PROJECTION}`){', of length 1' * project.normalise}",
        loading=LOADING,
        pipeline="feature-extraction",
        modality="texts",
        evaluated=", ".join(config["tasks"]),
        data=CORPORA.get(config["corpus"], OWN_CORPUS.format(name=config["corpus"])),
        library="transformers",
        projected=True,
    )


LOADING = f"""{
    python_block(
        "from pathlib import Path",
        "",
        "from text.export import load",
        "",
        'encode = load(Path("."))  # this folder; checks every SHA-256',
        'vectors = encode(["It was a dark night.", "The rain fell in torrents."])',
    )
}

`SentenceTransformer(".")` gives the same once `text.encoder`, which has the model, is imported."""
