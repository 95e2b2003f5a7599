"""What exports of all domains have in common: which runs, weights, checked copies, the model card.

A card is a ``README.md`` as the Hugging Face hub reads it; ``card.md.j2`` is its form.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.data import check_sums, sha256_of, write_sums
from shared.experiment.records import Record, read_record
from shared.experiment.runs import replacing, write_atomically
from shared.experiment.tables import canonical_json
from shared.functions import function_name

CARD = "README.md"
FILE = "encoder.safetensors"
CONFIG = "config.json"  # of the run
REMEDY = "copy or export it again"
RUN_REMEDY = "delete the folder and run its cell again"

NOT_PROJECTED = (
    "The metrics are those of features under the low-rank projection that was trained beside the "
    "encoder; the projection is not part of this file."
)
FEATURES = (
    "Features for research on contrastive learning: linear probes, nearest neighbours, comparison "
    "of\nlosses. One seed of one configuration, evaluated on {evaluated} alone; nothing is known "
    "of its\nfeatures on other {inputs}, and it has been checked neither for bias nor for fitness "
    "in any\ndecision about people."
)


@dataclass(frozen=True)
class Card:
    """What a domain says of a trained network; the rest of a card is the run's record.

    Args:
        name: of the model.
        about: what it is and how it was trained.
        points: what goes in and what comes out, an item each.
        tags: for the hub.
        pipeline: what it does, in the hub's words.
        task: what it was measured on, in the hub's words.
        scores: for each dataset, as the hub has it, the metrics, as the hub has them.
        loading: how to load the files, Markdown.
        measured: what follows the name of the protocol.
        results: the numbers, Markdown.
        use: what it is for and what is not known of it.
        licence: of what it was trained on.
        data: what precedes the hashes of the data.
        library: that loads it.
        datasets: that it was trained on, by the hub's names.
    """

    name: str
    about: str
    points: Sequence[str]
    tags: Sequence[str]
    pipeline: str
    task: str
    scores: Sequence[tuple[Mapping[str, str], Sequence[Mapping[str, Any]]]]
    loading: str
    measured: str
    results: str
    use: str
    licence: str
    data: str = ""
    library: str = "pytorch"
    datasets: Sequence[str] = ()


def exportable(folder: Path, kind: type) -> Record:
    """The record of a finished run, in today's form.

    Args:
        folder: of the run.
        kind: of the configuration.

    Raises:
        UserError: a run that is not finished, or of the smoke tier.
    """
    record = read_record(folder, folder.name)
    if record is None:
        raise UserError(f"{folder}: not a finished run (no result.json); run its cell first")
    if record.result["tier"] == "smoke":
        raise UserError(f"{folder}: a smoke run proves the path only; export one of another tier")
    return record.upgraded(kind)


def damaged(path: Path, reason: str, remedy: str = REMEDY) -> UserError:
    """That a file or folder is not as it was written, in one line."""
    return UserError(f"{path}: damaged or edited ({' '.join(reason.split())}); {remedy}")


def save_weights(module: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
    """Write ``encoder.safetensors`` into a folder, and ``SHA256SUMS``, which lists it alone.

    Args:
        module: on any device.
        folder: made if it is not there; the file in it is replaced in one move.
        metadata: what is needed to rebuild the network.
    """
    state = {name: item.detach().cpu().contiguous() for name, item in module.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FILE) as part:
        save_file(state, part, {"format": "pt", **metadata})
    write_sums(folder, {FILE: sha256_of(folder / FILE)})


def weights_file(path: Path) -> Path:
    """The file itself, or that of an exported folder.

    Raises:
        UserError: there is none.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; give an exported folder or its {FILE}")
    return file


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file that :func:`save_weights` left.

    Args:
        path: the file; or a folder, whose SHA-256 sums are checked, too.

    Raises:
        UserError: no such file, or a damaged one.
    """
    file = weights_file(path)
    if path.is_dir():
        check_sums(path, REMEDY, (FILE, CONFIG) if (path / CARD).exists() else (FILE,))
    try:
        with safe_open(file, framework="pt") as stream:
            state = {name: stream.get_tensor(name) for name in stream.keys()}
            return state, dict(stream.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise damaged(file, f"{type(error).__name__}: {error}") from error


def ask_for_network(file: Path, network: str) -> None:
    """Refuse to rebuild a network that a function of one's own made.

    Raises:
        UserError: names that function.
    """
    if "@" in network:
        name = function_name(network)
        raise UserError(
            f"{file}: its network is made by {name}; give that function, too: "
            f"load_encoder(path, {name.rpartition('.')[2]})"
        )


def copy_checked(sources: Mapping[str, Path], target: Path) -> dict[str, str]:
    """Copy files into a folder under the names given, with ``SHA256SUMS``; the sums, by name.

    Raises:
        UserError: a copy is not what its source is.
    """
    sums = {name: sha256_of(source) for name, source in sources.items()}
    target.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        with replacing(target / name) as part:
            shutil.copyfile(source, part)
    write_sums(target, sums)
    check_sums(target, REMEDY, sums)
    return sums


def write_card(target: Path, record: Record, card: Card, sums: Mapping[str, str] = {}) -> Path:
    """Write a model card into a folder, which is returned.

    Args:
        target: a folder.
        record: of the run, in today's form.
        card: what the domain says.
        sums: SHA-256 of the files beside the card, by name.
    """
    front = {
        "license": "mit",
        "library_name": card.library,
        "pipeline_tag": card.pipeline,
        "tags": list(card.tags),
        **({"datasets": list(card.datasets)} if card.datasets else {}),
        "model-index": [
            {
                "name": card.name,
                "results": [
                    {"task": {"type": card.task}, "dataset": dataset, "metrics": metrics}
                    for dataset, metrics in card.scores
                ],
            }
        ],
    }
    # nothing is HTML here, so nothing is escaped
    forms = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = forms.get_template("card.md.j2").render(
        # JSON values are YAML, too.
        front="\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        card=card,
        result=record.result,
        environment=record.environment,
        files=sums,
        config=canonical_json(record.config),
    )
    write_atomically(target / CARD, text)
    return target


def loss_names(objective: Mapping[str, Any]) -> list[str]:
    """The names of an objective's loss and penalties."""
    terms = [objective["loss"], *objective["penalties"]]
    return [function_name(term["function"]) for term in terms]


def accuracies(metrics: Mapping[str, float]) -> list[dict[str, Any]]:
    """Percentages by name as the hub has them."""
    return [{"type": "accuracy", "name": name, "value": value} for name, value in metrics.items()]


def lines_of(*rows: Sequence[str | float], header: Sequence[str], numbers: int = 1) -> str:
    """A table in Markdown; the last columns are numbers, those that are not whole to 2 digits."""
    words = len(header) - numbers
    lines = [header, [":--"] * words + ["--:"] * numbers]
    lines += [[f"{item:.2f}" if isinstance(item, float) else str(item) for item in r] for r in rows]
    first, second, *rest = (" | ".join(line) for line in lines)
    return "\n".join([f"| {first} |", f"|{second.replace(' ', '')}|", *(f"| {r} |" for r in rest)])


def python(*lines: str) -> str:
    """A block of code in Markdown."""
    return "\n".join(["```python", *lines, "```"])
