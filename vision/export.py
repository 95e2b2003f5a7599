"""Image encoders as files for other libraries: safetensors with torchvision's or timm's names.

Shapes: S side in pixels, H features of the backbone.

The metadata hold the features of a fixed input, as a check that this code and the installed
torchvision still build the network that was trained.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.export import (
    CONFIG,
    Export,
    export_run,
    fill,
    is_exported,
    loading,
    loss_names,
    naming_damage,
    network_of,
    read_weights,
    remade,
    save_weights,
    training_of,
)
from shared.experiment.initial import FILE, InitialWeights
from shared.experiment.records import Record
from shared.experiment.weights import Match, initialise
from shared.functions import function_name, identity
from shared.pixels import normalise
from vision.config import Backbone, Config, Stem
from vision.datasets import OWN, describe
from vision.encoder import BUILDERS, LAB, encoder_of, width_of
from vision.features import statistics

NEEDS = ("backbone", "stem", "image_size", "features")  # of the metadata
PROBE_SIDE = 32  # pixels of the fixed input
PROBE_GROUPS = 16  # groups of features whose sums are kept
TOLERANCE = 1e-2  # of the features' norm, for other hardware; a different network is about 1 off


def save_encoder(
    encoder: nn.Module,
    folder: Path,
    *,
    config: Config,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> None:
    """Write ``encoder.safetensors`` with what is needed to rebuild and to check the network.

    Args:
        encoder: of ``vision.networks_of(config)``, on any device; it may be compiled, averaged, or
            wrapped for several devices.
        folder: created if needed; the file in it is replaced atomically.
        config: of the run that trained it.
        mean: of each colour, as given to :func:`vision.pretrain`; by default those of the
            configuration's dataset.
        std: of each colour.

    Raises:
        ValueError: a module whose parameters are not those of the configuration's backbone;
            ``mean`` without ``std``, or numbers on another scale than 0 to 1.
    """
    backbone, size, lab = config.backbone, config.image_size, config.method == "cmc"
    network = remade(
        encoder, lambda: encoder_of(backbone, config.stem, size=size, heads=config.heads, lab=lab)
    )
    if mean is None and std is None:
        mean, std = statistics(config, describe(config.dataset))
    if mean is None or std is None:
        raise ValueError("mean and std are given together, as to vision.pretrain")
    normalise(torch.zeros(1, 3, 1, 1), mean, std)  # refuses another scale
    metadata = {
        "backbone": backbone if isinstance(backbone, str) else identity(backbone),
        "stem": config.stem,
        "dim": str(width_of(network, backbone, size)),
        "image_size": str(size),
        "mean": json.dumps([*mean]),
        "std": json.dumps([*std]),
        "features": json.dumps(_probe(network, backbone, size).tolist()),
    }
    if config.heads is not None:
        metadata["heads"] = str(config.heads)
    save_weights(network, folder, {**metadata, **({"colours": LAB} if lab else {})})


def load_encoder(path: Path, backbone: Callable[[], nn.Module] | None = None) -> nn.Module:
    """The encoder of a file, on the CPU, in eval mode: (B, 3, S, S) -> (B, H).

    Args:
        path: the file, or a folder that holds ``encoder.safetensors``.
        backbone: the function that makes the network, if the run's was made by one.

    Raises:
        UserError: no such file, or one that is not as :func:`save_encoder` wrote it.
    """
    state, metadata = read_weights(path, NEEDS)
    made_by: Backbone = network_of(path, metadata["backbone"], backbone)
    stem: Stem = metadata["stem"]  # type: ignore[assignment] # make_encoder refuses others
    with naming_damage(path):
        size = int(metadata["image_size"])
        heads = int(metadata["heads"]) if "heads" in metadata else None
        lab = metadata.get("colours") == LAB
        network = fill(lambda: encoder_of(made_by, stem, size=size, heads=heads, lab=lab), state)
        _check_features(path, network, made_by, size, metadata)
    return network


def started(encoder: nn.Module, config: Config, init: InitialWeights) -> None:
    """Start an encoder of the configuration, in training mode, from weights, in place.

    They are those of an export or of another program.
    """
    remedy = "set backbone, stem, image_size and heads as in the file"
    if isinstance(config.backbone, str):
        check_architecture(init.file, config.backbone)
    match = initialise(encoder, init, remedy)
    if lacking := other_stem(encoder, match):
        raise UserError(
            f"{init.file}: its network has no {' and no '.join(lacking)} behind bn1, by the "
            f"numbers of its parts; {remedy}"
        )
    if is_exported(init.file):
        _, metadata = read_weights(init.file, NEEDS)
        with naming_damage(init.file):
            size = int(metadata["image_size"])
            _check_features(init.file, encoder.eval(), config.backbone, size, metadata)
        encoder.train()


def check_architecture(file: Path, backbone: str) -> None:
    """Refuse a file of the Hugging Face hub whose config.json names another network of timm.

    Networks of equal tensors may differ, as ``resnet50`` and ``resnetblur50`` do.
    """
    beside = file.with_name("config.json")
    try:
        content = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    name = content.get("architecture") if isinstance(content, dict) else None
    if isinstance(name, str) and name.partition(".")[0] != backbone.partition(".")[0]:
        raise UserError(
            f"{file}: {beside.name} beside it says {name}, not {backbone}; use --backbone {name}, "
            f"or move the file elsewhere if it is another"
        )


def other_stem(network: nn.Module, match: Match) -> list[str]:
    """The parts of a ResNet's stem that a checkpoint's network lacks by the numbers of its parts.

    In an ``nn.Sequential`` the ReLU and the pooling after ``bn1`` have numbers of their own.
    """
    if not match.numbers.keys() >= {"bn1", "layer1"}:
        return []
    between = match.numbers["layer1"] - match.numbers["bn1"] - 1
    absent = {0: ("relu", "maxpool"), 1: ("maxpool",)}.get(between, ())
    return [layer for layer in absent if not isinstance(network.get_submodule(layer), nn.Identity)]


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, and return it.

    An earlier export in ``target`` is replaced.
    """
    return export_run(folder, target, Config, [FILE], _describe)


@torch.no_grad()
def _probe(network: nn.Module, backbone: Backbone, size: int) -> Tensor:
    """Sums (PROBE_GROUPS,) over groups of the features of a fixed input."""
    side = PROBE_SIDE if backbone in BUILDERS else size  # other networks may accept only S
    # A wave whose length is not a divisor of a row, so that every position differs.
    images = torch.sin(0.37 * torch.arange(3 * side**2, dtype=torch.float64, device="cpu")).float()
    features: Tensor = network(images.view(1, 3, side, side))
    return torch.stack([group.sum() for group in features.double()[0].tensor_split(PROBE_GROUPS)])


def _check_features(
    path: Path, network: nn.Module, backbone: Backbone, size: int, metadata: Mapping[str, str]
) -> None:
    """Refuse a network, in eval mode, whose features are not those that an export states."""
    stored = torch.tensor(json.loads(metadata["features"]), dtype=torch.float64)
    difference = torch.linalg.vector_norm(_probe(network, backbone, size) - stored)
    if not difference <= TOLERANCE * torch.linalg.vector_norm(stored):
        raise UserError(
            f"{path}: its features differ from those stored when it was written; use the versions "
            f"of this project and of torchvision that wrote it"
        )


def _describe(folder: Path, record: Record) -> Export:
    config = record.config
    _, metadata = read_weights(folder / FILE, NEEDS)
    if "@" not in metadata["backbone"]:
        load_encoder(folder / FILE)
    dataset, evaluated = (
        Path(name).name if name.startswith(OWN) else name
        for name in (config["dataset"], config["evaluate_on"] or config["dataset"])
    )
    backbone = function_name(metadata["backbone"])
    pooled = ", the average pool of the last block" if backbone in BUILDERS else ""
    return Export(
        files={FILE: folder / FILE, CONFIG: folder / CONFIG},
        name=(backbone, dataset, config["method"]),
        losses=loss_names(config["objective"]),
        about=f"An encoder of images ({backbone}), {training_of(config, dataset)}",
        input=f"RGB in [0, 1], normalised with mean {metadata['mean']} and deviation "
        f"{metadata['std']};\n  trained on crops of {metadata['image_size']} pixels",
        output=f"{metadata['dim']} features{pooled}",
        loading=loading("vision", metadata["backbone"]),
        pipeline="image-feature-extraction",
        modality="images",
        evaluated=evaluated,
        left_out=("linear_best_top1",),  # the best epoch was chosen on the test images
    )
