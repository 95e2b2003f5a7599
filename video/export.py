"""Trained encoders as files that others can read: safetensors with torchvision's names.

Shapes: B clips, T frames of a clip, S side in pixels, H features of the encoder.

    encoder.safetensors    its weights; the metadata say how it is built and what it was trained on
    config.json            of the run
    SHA256SUMS             of both, as sha256sum writes and checks it
    README.md              the model card

A finished run keeps the first of these in its folder, :func:`write` makes all of them.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from shared.errors import UserError
from shared.experiment.data import SUMS, check_sums, sha256_of, write_sums
from shared.experiment.records import Record, read_record
from shared.experiment.runs import replacing, write_atomically
from shared.experiment.tables import canonical_json
from shared.functions import function_name
from video.augment import MEAN, STD
from video.config import Config
from video.encoder import encoder_of

FILE = "encoder.safetensors"
CONFIG = "config.json"
REMEDY = "copy or export it again"

# The fields of a configuration that decide how the encoder is built and fed.
KEPT = (
    "width",
    "batch_norm_momentum",
    "batch_norm_epsilon",
    "clip_frames",
    "size",
    "modality",
)
# Also of files since there are several networks; those before hold an S3D.
ADDED = ("network", "strides")
NAMES = {"s3d": "S3D", "r2plus1d": "R(2+1)D"}


def save_encoder(encoder: nn.Module, folder: Path, *, config: Config) -> None:
    """Write ``encoder.safetensors`` into a folder, with what is needed to rebuild the network.

    ``SHA256SUMS`` beside it lists it alone.

    Args:
        encoder: of the configuration's network and width, on any device.
        folder: made if it is not there; the file in it is replaced in one move.
        config: of the run that trained it.

    Raises:
        ValueError: another network, or one of another width.
    """
    state = {name: item.detach().cpu().contiguous() for name, item in encoder.state_dict().items()}
    metadata = {"format": "pt", "dim": str(encoder.dim)}
    metadata |= {name: json.dumps(getattr(config, name)) for name in (*KEPT, *ADDED)}
    try:
        _empty(metadata).load_state_dict(state)
    except RuntimeError as error:
        what = f"{NAMES[config.network]} of width {config.width}"
        raise ValueError(f"this encoder is no {what}: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FILE) as part:
        save_file(state, part, metadata)
    write_sums(folder, {FILE: sha256_of(folder / FILE)})


def load_encoder(path: Path) -> nn.Module:
    """The encoder of a file, on the CPU, in eval mode: (B, 3, T, S, S) -> (B, H).

    Args:
        path: the file; or an exported folder, whose SHA-256 sums are checked, too.

    Raises:
        UserError: no such file, or one that :func:`save_encoder` did not leave so.
    """
    if path.is_dir():
        check_sums(path, REMEDY, (FILE, CONFIG))
        path = path / FILE
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give an exported folder or its {FILE}")
    try:
        with safe_open(path, framework="pt") as stream:
            state = {name: stream.get_tensor(name) for name in stream.keys()}
            network = _empty(stream.metadata() or {})
        network.load_state_dict(state, strict=True)
    except (SafetensorError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    return network.eval()


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, a folder, and return it.

    Args:
        folder: of the run.
        target: made if it is not there; files of the same names in it are replaced.

    Raises:
        UserError: a run that is not finished or keeps no encoder, or a damaged file.
    """
    record = read_record(folder, folder.name)
    if record is None:
        raise UserError(f"{folder}: not a finished run (no result.json); run its cell first")
    record = record.upgraded(Config)
    if record.result["tier"] == "smoke":
        raise UserError(f"{folder}: a smoke run keeps no encoder; export one of another tier")
    if "clip_frames" not in record.config:
        raise UserError(f"{folder}: this run trains no video encoder; export one that does")
    dim = int(load_encoder(folder / FILE).dim)  # type: ignore[arg-type]
    if (folder / SUMS).is_file():  # not of an earlier version
        check_sums(folder, "delete the folder and run its cell again", [FILE])
    target.mkdir(parents=True, exist_ok=True)
    for name in (FILE, CONFIG):
        with replacing(target / name) as part:
            shutil.copyfile(folder / name, part)
    sums = {name: sha256_of(target / name) for name in (FILE, CONFIG)}
    write_sums(target, sums)
    write_atomically(target / "README.md", _card(record, dim, sums))
    return target


def _empty(metadata: Mapping[str, str]) -> nn.Module:
    """The network that the metadata describe, without any numbers in it."""
    names = (*KEPT, *(name for name in ADDED if name in metadata))
    described = {name: json.loads(metadata[name]) for name in names}
    # On "meta" nothing is drawn: building a network must not move the run's random numbers.
    with torch.device("meta"):
        network = encoder_of(dataclasses.replace(Config(), **described))
    return network.to_empty(device="cpu")


def _damaged(path: Path, reason: str) -> UserError:
    reason = " ".join(reason.split())
    return UserError(f"{path}: damaged or edited ({reason}); {REMEDY}")


# The model card


def _card(record: Record, dim: int, sums: Mapping[str, str]) -> str:
    """The model card, as the Hugging Face hub reads it."""
    config, result, environment = record.config, record.result, record.environment
    objective = config["objective"]
    losses = [function_name(objective["loss"]["function"])]
    losses += [function_name(penalty["function"]) for penalty in objective["penalties"]]
    parts = [config["network"], config["dataset"], config["modality"]]
    parts += [config["method"], *losses] if config["train"] else ["untrained"]
    name = "-".join(parts).replace("_", "-")
    metrics = {
        label: value for label, value in result["metrics"].items() if isinstance(value, int | float)
    }
    front = {
        "license": "mit",
        "library_name": "pytorch",
        "pipeline_tag": "feature-extraction",
        "tags": ["video", "contrastive-learning", "self-supervised-learning", *parts],
        "datasets": [config["dataset"]],
        "model-index": [
            {
                "name": name,
                "results": [
                    {
                        "task": {"type": "video-classification"},
                        "dataset": {"type": config["dataset"], "name": config["dataset"]},
                        "metrics": [
                            {"type": "accuracy", "name": label, "value": value}
                            for label, value in metrics.items()
                        ],
                    }
                ],
            }
        ],
    }
    # JSON values are YAML, too.
    header = "\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items())
    data = "\n".join(f"- {label}: SHA-256 `{h}`" for label, h in environment["data"].items())
    files = "\n".join(f"- `{label}`: SHA-256 `{digest}`" for label, digest in sums.items())
    rows = "\n".join(f"| {label} | {value:.2f} |" for label, value in metrics.items())
    dirty = ", with uncommitted changes" if environment["dirty"] else ""
    training = (
        f"trained without labels on clips of {config['dataset']}: {config['method']}\n"
        f"with the loss `{' + '.join(losses)}`, {config['epochs']} epochs, batches of "
        f"{config['batch_size']}, seed {config['seed']}"
        if config["train"]
        else f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    )
    budget = (
        "Trained in the paper's setting (tier `paper`)."
        if result["tier"] == "paper"
        else f"Not trained in the paper's setting (tier `{result['tier']}`): its numbers cannot "
        "stand beside published ones."
    )
    method = {"tvl1": "TV-L1", "dis": "DIS"}[config["flow"]]
    channels = (
        "RGB"
        if config["modality"] == "rgb"
        else f"{method} flow (x and y, -20 to 20 pixels as 0 to 1, and 128 / 255 as third channel)"
    )
    details = result["metrics"].get("details", {})
    counts = "".join(
        f"- {label.replace('_', ' ')}: {count}\n"
        for label, count in details.items()
        if isinstance(count, int)
    )
    projection = (
        "\nThe metrics are those of features under the low-rank projection that was trained beside "
        "the encoder; the projection is not part of this file.\n"
        if objective["projection"]
        else ""
    )
    return f"""---
{header}
---

# {name}

{NAMES[config["network"]]} of width {config["width"]:g}, {training}.
{budget}

- Input: clips (B, 3, {config["clip_frames"]}, {config["size"]}, {config["size"]}) of consecutive
  frames, {channels}
  in [0, 1], normalised with mean {list(MEAN)} and deviation {list(STD)}.
- Output: {dim} features, the mean over time and place of the last block.
- Code: commit `{environment["commit"]}`{dirty}.
- Command: `{environment["command"]}`

## Data

{data}

## Results

Protocol `{result["protocol"]}` on split {config["split"]}, tier `{result["tier"]}`, last epoch;
accuracies in percent, `_low` and `_high` are the ends of Wilson's 95% interval over test videos.

| metric | value |
|:--|--:|
{rows}

{counts}{projection}
## How to load

{_loading(config)}

## Intended use and limits

Features for research on contrastive learning: linear probes, nearest neighbours, comparison of
losses. One seed of one configuration, evaluated on {config["dataset"]} alone; nothing is known of
its features on other videos, and it has been checked neither for bias nor for fitness in any
decision about people.

## Licence

MIT, as the code. The videos it was trained on have terms of their own.

## Files

{files}

## Configuration

```json
{canonical_json(config)}```
"""


def _loading(config: Mapping[str, Any]) -> str:
    """How to load the file, at full width also without this project."""
    shape = (1, 3, config["clip_frames"], config["size"], config["size"])
    lines = [
        "```python",
        "from pathlib import Path",
        "",
        "import torch",
        "from video.export import load_encoder",
        "",
        'encoder = load_encoder(Path("."))  # this folder; checks every SHA-256',
        f"features = encoder(torch.zeros({shape}))",
        "```",
    ]
    if config["width"] == 1 and config["network"] == "s3d":
        constants = f"eps={config['batch_norm_epsilon']}, momentum={config['batch_norm_momentum']}"
        lines += [
            "",
            "or with torchvision alone:",
            "",
            "```python",
            "from functools import partial",
            "",
            "import torch",
            "from safetensors.torch import load_file",
            "from torchvision.models.video import S3D",
            "",
            f"encoder = S3D(norm_layer=partial(torch.nn.BatchNorm3d, {constants}))",
            "encoder.classifier = torch.nn.Identity()",
            f'encoder.load_state_dict(load_file("{FILE}"))',
            "encoder.avgpool = torch.nn.Identity()  # what follows takes the mean of everything",
            "encoder.eval()",
            f"features = encoder(torch.zeros({shape}))",
            "```",
        ]
    return "\n".join(lines)
