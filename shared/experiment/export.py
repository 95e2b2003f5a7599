"""What the exports of all domains have in common: which runs, checked copies, and the model card.

A card is a ``README.md`` as the Hugging Face hub reads it; ``card.md.j2`` is its form.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared.errors import UserError
from shared.experiment.data import check_sums, sha256_of, write_sums
from shared.experiment.records import Record, read_record
from shared.experiment.runs import replacing, write_atomically
from shared.experiment.tables import canonical_json
from shared.functions import function_name

CARD = "README.md"
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
