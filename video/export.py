"""Clip encoders as files for other libraries: safetensors, with the names of their library.

Shapes: B clips, T frames of a clip, S side in pixels, H features of the encoder.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared.errors import UserError
from shared.experiment.config import canonical
from shared.experiment.data import sha256_of_files
from shared.experiment.domain import EvaluationRequest, Scores, scores_of
from shared.experiment.export import (
    CONFIG,
    Export,
    export_run,
    file_of,
    fill,
    loading,
    loss_names,
    naming_damage,
    network_of,
    read_weights,
    remade,
    save_weights,
    training_of,
)
from shared.experiment.initial import FILE
from shared.experiment.records import Record
from shared.experiment.run import Run
from shared.functions import function_name
from video.augmentation import MEAN, STD
from video.config import SPLITS, Config
from video.data import UCF101, fingerprint, load
from video.encoder import encoder_of, name_of
from video.evaluation import PROTOCOLS, evaluate
from video.own import folder as own_folder

# The fields of a configuration that determine the encoder and its input.
KEPT = (
    "width",
    "batch_norm_momentum",
    "batch_norm_epsilon",
    "clip_frames",
    "size",
    "modality",
)
# Further fields in files written since there are several networks; earlier files hold an S3D.
ADDED = ("network", "strides", "flow")  # the method, of encoders of flow alone
NAMES = {"s3d": "S3D", "r2plus1d": "R(2+1)D"}


def save_encoder(encoder: nn.Module, folder: Path, *, config: Config) -> None:
    """Write ``encoder.safetensors`` into a folder, with what is needed to rebuild the network.

    The folder is created if needed, and the file in it replaced atomically. ``config`` is that of
    the run that trained the encoder, which may be compiled, averaged, or wrapped for several
    devices.
    """
    network = remade(encoder, lambda: encoder_of(config))
    metadata = {"dim": str(network.dim)}
    names = [name for name in (*KEPT, *ADDED) if name != "flow" or config.modality == "flow"]
    metadata |= {name: json.dumps(canonical(getattr(config, name))) for name in names}
    save_weights(network, folder, metadata)


def load_encoder(path: Path, network: Callable[[], Any] | None = None) -> nn.Module:
    """The encoder of a file, on the CPU, in eval mode: (B, 3, T, S, S) -> (B, H).

    Args:
        path: the file; or an exported folder, whose SHA-256 sums are also checked.
        network: the function that makes it, if the run's was made by one.
    """
    return _read(path, network)[0]


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, and return it.

    An earlier export in ``target`` is replaced.
    """
    return export_run(folder, target, Config, [FILE], _describe)


def score(request: EvaluationRequest) -> Scores:
    """Score an exported encoder by named protocols, on UCF-101, another dataset or a folder."""
    name = request.data or UCF101
    protocols = request.chosen(PROTOCOLS, Config().protocol)
    encoder, described = _read(request.model, None)
    config = dataclasses.replace(described, dataset=name)
    request.say(
        f"loaded every tensor of {_display_name(name_of(config.network))} of width {config.width:g}"
    )
    encoder = encoder.to("cuda" if torch.cuda.is_available() else "cpu")

    is_folder = Path(name).is_dir()
    split = request.options.get("split")
    if is_folder and split:
        raise UserError(f"{name}: a folder of your own has no splits; omit --split")
    if split not in (None, "all", *map(str, SPLITS)):
        raise UserError(f"--split {split}: there are {', '.join(map(str, SPLITS))}, and all")
    splits = SPLITS if split == "all" else (int(split or config.split),)

    def by(config: Any, run: Run) -> Mapping[str, Any]:
        if is_folder:
            flow = config.flow if config.modality == "flow" else None
            videos = own_folder(name, config.size, flow=flow, skip_damaged=run.allow_missing)
            run.record_data(**{name: sha256_of_files(Path(video.name) for video in videos.videos)})
            return evaluate(config, encoder, videos, run)
        run.record_data(**{name: fingerprint(name, run.data_root)})
        by_split = {}
        for number in splits:
            videos = load(
                name,
                run.data_root,
                split=number,
                modality=config.modality,
                flow=config.flow,
                size=config.size,
                workers=run.workers,
                allow_missing=run.allow_missing,
            )
            chosen = dataclasses.replace(config, split=number)
            by_split[number] = evaluate(chosen, encoder, videos, run)
        return over_splits(by_split) if len(by_split) > 1 else by_split[splits[0]]

    return scores_of(request, file_of(request.model), name, protocols, config, by)


def over_splits(by_split: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each metric over splits, then each split's own as ``<metric>_split<n>``.

    The mean has no interval: the splits share videos.
    """
    single = {
        f"{name}_split{split}": value
        for split, metrics in by_split.items()
        for name, value in metrics.items()
        if name != "details"
    }
    names = [
        name
        for name in next(iter(by_split.values()))
        if name != "details" and not name.endswith(("_low", "_high"))
    ]
    means = {
        name: sum(scores[name] for scores in by_split.values()) / len(by_split) for name in names
    }
    return (
        means
        | single
        | {"details": {f"split{split}": m["details"] for split, m in by_split.items()}}
    )


def _read(path: Path, network: Callable[[], Any] | None) -> tuple[nn.Module, Config]:
    """The encoder of a file, and the stored part of its configuration."""
    state, metadata = read_weights(path, KEPT)
    with naming_damage(path):
        names = (*KEPT, *(name for name in ADDED if name in metadata))
        config = Config(**{name: json.loads(metadata[name]) for name in names})
        made_by = network_of(path, str(config.network), network)
        config = dataclasses.replace(config, network=made_by)
        return fill(lambda: encoder_of(config), state), config


def _display_name(network: str) -> str:
    return NAMES.get(network, network)


def _describe(folder: Path, record: Record) -> Export:
    config = record.config
    _, metadata = read_weights(folder / FILE, KEPT)
    if "@" not in config["network"]:
        load_encoder(folder / FILE)
    network = function_name(config["network"]).rpartition(".")[2]
    dataset, frames, size = config["dataset"], config["clip_frames"], config["size"]
    flow = {"tvl1": "TV-L1", "dis": "DIS"}[config["flow"]]
    channels = (
        "RGB"
        if config["modality"] == "rgb"
        else f"{flow} flow (x and y, -20 to 20 pixels as 0 to 1, and 128 / 255 as third channel)"
    )
    use = f"features = encoder(torch.zeros(1, 3, {frames}, {size}, {size}))"
    return Export(
        files={FILE: folder / FILE, CONFIG: folder / CONFIG},
        name=(
            network,
            dataset,
            config["modality"],
            config["method"] if config["train"] else "untrained",
        ),
        losses=loss_names(config["objective"]) if config["train"] else (),
        about=f"An encoder of clips, {_display_name(network)} of width {config['width']:g}, "
        f"{training_of(config, f'clips of {dataset}')}",
        input=f"clips (B, 3, {frames}, {size}, {size}) of consecutive\n  frames, {channels}\n"
        f"  in [0, 1], normalised with mean {list(MEAN)} and deviation {list(STD)}",
        output=f"{metadata['dim']} features",
        loading=loading("video", config["network"], use),
        pipeline="feature-extraction",
        modality="videos",
        evaluated=f"{dataset}, split {config['split']}",
        notes=["`_low` and `_high` are the ends of Wilson's 95% interval over test videos."],
    )
