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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared.errors import UserError, suggestion
from shared.experiment.data import SUMS, check_sums, sha256_of, sha256_of_files
from shared.experiment.domain import Asked, Scores
from shared.experiment.export import (
    CONFIG,
    FEATURES,
    FILE,
    NOT_PROJECTED,
    RUN_REMEDY,
    Card,
    accuracies,
    ask_for_network,
    copy_checked,
    damaged,
    exportable,
    lines_of,
    loss_names,
    python,
    read_weights,
    save_weights,
    weights_file,
    write_card,
)
from shared.experiment.records import Record
from shared.experiment.runs import Run
from shared.experiment.scoring import measured
from shared.experiment.tables import canonical
from shared.functions import function_name
from video.augmentation import MEAN, STD
from video.config import Config
from video.data import UCF101, fingerprint, load
from video.encoder import encoder_of, name_of
from video.evaluation import PROTOCOLS, evaluate
from video.own import folder

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
    metadata = {"dim": str(encoder.dim)}
    metadata |= {name: json.dumps(canonical(getattr(config, name))) for name in (*KEPT, *ADDED)}
    try:
        _empty(config).load_state_dict(encoder.state_dict())
    except RuntimeError as error:
        what = f"{_called(config)} of width {config.width}"
        raise ValueError(f"this encoder is no {what}: {error}") from error
    save_weights(encoder, folder, metadata)


def load_encoder(path: Path, network: Callable[[], Any] | None = None) -> nn.Module:
    """The encoder of a file, on the CPU, in eval mode: (B, 3, T, S, S) -> (B, H).

    Args:
        path: the file; or an exported folder, whose SHA-256 sums are checked, too.
        network: what makes it, if a function made that of the run.

    Raises:
        UserError: no such file, or one that :func:`save_encoder` did not leave so.
    """
    return _read(path, network)[0]


def _read(path: Path, network: Callable[[], Any] | None) -> tuple[nn.Module, Config]:
    """The encoder of a file, and its configuration as far as the file says it."""
    state, metadata = read_weights(path)
    file = weights_file(path)
    try:
        described = _described(metadata)
        if network is None:
            ask_for_network(file, str(described.network))
        else:
            described = dataclasses.replace(described, network=network)
        made = _empty(described)
        made.load_state_dict(state, strict=True)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(file, f"{type(error).__name__}: {error}") from error
    return made.eval(), described


def score(asked: Asked) -> Scores:
    """Score an exported encoder by named protocols, on UCF-101, another data set or a folder.

    Raises:
        UserError: no export, an unknown protocol, data that are not there, or a folder for an
            encoder of flow.
    """
    name = asked.data or UCF101
    protocols = asked.protocols or (Config().protocol,)
    for each in protocols:
        if each not in PROTOCOLS:
            raise UserError(f"no protocol {each!r}{suggestion(each, PROTOCOLS, 'there are')}")
    encoder, described = _read(asked.model, None)
    file = weights_file(asked.model)
    config = dataclasses.replace(described, dataset=name)
    asked.say(f"took every tensor of {_called(config)} of width {config.width:g}")
    encoder = encoder.to("cuda" if torch.cuda.is_available() else "cpu")

    own = Path(name).is_dir()
    if own and config.modality == "flow":
        raise UserError(f"{name}: a folder is read as RGB, this encoder takes flow")

    def by(config: Any, run: Run) -> Mapping[str, Any]:
        if own:
            videos = folder(name, config.size, skip_damaged=run.allow_missing)
            run.record_data(**{name: sha256_of_files(Path(each.name) for each in videos.videos)})
            return evaluate(config, encoder, videos, run)
        videos = load(
            name,
            run.data_root,
            split=config.split,
            modality=config.modality,
            flow=config.flow,
            size=config.size,
            workers=run.workers,
            allow_missing=run.allow_missing,
        )
        run.record_data(**{name: fingerprint(name, run.data_root)})
        return evaluate(config, encoder, videos, run)

    return Scores(
        facts={"model": str(file), "sha256": sha256_of(file), "data": name},
        protocols={each: measured(config, each, by, asked) for each in protocols},
    )


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, a folder, and return it.

    Args:
        folder: of the run.
        target: made if it is not there; files of the same names in it are replaced.

    Raises:
        UserError: a run that is not finished or keeps no encoder, or a damaged file.
    """
    record = exportable(folder, Config)
    if "clip_frames" not in record.config:
        raise UserError(f"{folder}: this run trains no video encoder; export one that does")
    dim = int(load_encoder(folder / FILE).dim)  # type: ignore[arg-type]
    if (folder / SUMS).is_file():  # not of an earlier version
        check_sums(folder, RUN_REMEDY, [FILE])
    sums = copy_checked({name: folder / name for name in (FILE, CONFIG)}, target)
    return write_card(target, record, _card(record, dim), sums)


def _empty(config: Config) -> nn.Module:
    """The network of a configuration, whose numbers are to be replaced."""
    with torch.random.fork_rng(devices=[]):  # a run's random numbers go on as they are
        return encoder_of(config)


def _called(config: Config) -> str:
    name = name_of(config.network)
    return NAMES.get(name, name)


def _described(metadata: Mapping[str, str]) -> Config:
    """The configuration as far as the metadata say it."""
    names = (*KEPT, *(name for name in ADDED if name in metadata))
    return dataclasses.replace(Config(), **{name: json.loads(metadata[name]) for name in names})


# The model card


def _card(record: Record, dim: int) -> Card:
    config = record.config
    losses = loss_names(config["objective"])
    network = function_name(config["network"]).rpartition(".")[2]
    parts = [network, config["dataset"], config["modality"]]
    parts += [config["method"], *losses] if config["train"] else ["untrained"]
    metrics = {
        label: value
        for label, value in record.result["metrics"].items()
        if isinstance(value, int | float)
    }
    training = (
        f"trained without labels on clips of {config['dataset']}: {config['method']}\n"
        f"with the loss `{' + '.join(losses)}`, {config['epochs']} epochs, batches of "
        f"{config['batch_size']}, seed {config['seed']}"
        if config["train"]
        else f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    )
    method = {"tvl1": "TV-L1", "dis": "DIS"}[config["flow"]]
    channels = (
        "RGB"
        if config["modality"] == "rgb"
        else f"{method} flow (x and y, -20 to 20 pixels as 0 to 1, and 128 / 255 as third channel)"
    )
    results = [lines_of(*metrics.items(), header=("metric", "value"))]
    if details := record.result["metrics"].get("details"):
        counts = (f"- {label.replace('_', ' ')}: {count}" for label, count in details.items())
        results.append("\n".join(counts))
    if config["objective"]["projection"]:
        results.append(NOT_PROJECTED)
    return Card(
        name="-".join(parts).replace("_", "-"),
        about=f"An encoder of clips, {NAMES.get(network, network)} of width {config['width']:g}, "
        f"{training}.",
        points=(
            f"Input: clips (B, 3, {config['clip_frames']}, {config['size']}, {config['size']}) of "
            f"consecutive\n  frames, {channels}\n"
            f"  in [0, 1], normalised with mean {list(MEAN)} and deviation {list(STD)}.",
            f"Output: {dim} features, the mean over time and place of the last block.",
        ),
        tags=("video", "contrastive-learning", "self-supervised-learning", *parts),
        pipeline="feature-extraction",
        task="video-classification",
        datasets=(config["dataset"],),
        scores=[({"type": config["dataset"], "name": config["dataset"]}, accuracies(metrics))],
        loading=_loading(config),
        measured=f" on split {config['split']}, tier `{record.result['tier']}`, last epoch;\n"
        "accuracies in percent, `_low` and `_high` are the ends of Wilson's 95% interval over test "
        "videos.",
        results="\n\n".join(results),
        use=FEATURES.format(evaluated=config["dataset"], inputs="videos"),
        licence="The videos it was trained on have terms of their own.",
    )


def _loading(config: Mapping[str, Any]) -> str:
    """How to load the file, at full width also without this project."""
    shape = (1, 3, config["clip_frames"], config["size"], config["size"])
    here = python(
        "from pathlib import Path",
        "",
        "import torch",
        "from video.export import load_encoder",
        "",
        'encoder = load_encoder(Path("."))  # this folder; checks every SHA-256',
        f"features = encoder(torch.zeros({shape}))",
    )
    if config["width"] != 1 or config["network"] != "s3d":
        return here
    constants = f"eps={config['batch_norm_epsilon']}, momentum={config['batch_norm_momentum']}"
    elsewhere = python(
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
    )
    return f"{here}\n\nor with torchvision alone:\n\n{elsewhere}"
