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
    FILE,
    Export,
    export_run,
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
from shared.experiment.records import Record
from shared.functions import function_name, identity
from shared.pixels import normalise
from vision.config import Backbone, Config, Stem
from vision.data import OWN, describe
from vision.encoder import BUILDERS, LabEncoder, fixed_size, make_encoder, width_of
from vision.evaluation import statistics

NEEDS = ("backbone", "stem", "image_size", "features")  # of the metadata
LAB = "lab"  # two networks, of the lightness and the colours of an image
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
        encoder: of ``vision.Networks(config)``, on any device.
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
    network = remade(encoder, lambda: _make(backbone, config.stem, size, lab))
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
    save_weights(encoder, folder, {**metadata, **({"colours": LAB} if lab else {})})


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
        network = fill(lambda: _make(made_by, stem, size, metadata.get("colours") == LAB), state)
        stored = torch.tensor(json.loads(metadata["features"]), dtype=torch.float64)
        found = _probe(network, made_by, size)
    difference = torch.linalg.vector_norm(found - stored)
    if not difference <= TOLERANCE * torch.linalg.vector_norm(stored):
        raise UserError(
            f"{path}: its features differ from those stored when it was written; use the versions "
            f"of this project and of torchvision that wrote it"
        )
    return network


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, a folder, and return it.

    Args:
        folder: of the run.
        target: of a new folder, or of an earlier export, which is replaced.

    Raises:
        UserError: see :func:`shared.experiment.export.export_run`.
    """
    return export_run(folder, target, Config, [FILE], _describe)


def _make(backbone: Backbone, stem: Stem, size: int, lab: bool) -> nn.Module:
    return LabEncoder(backbone, stem) if lab else make_encoder(backbone, stem, size=size)


@torch.no_grad()
def _probe(network: nn.Module, backbone: Backbone, size: int) -> Tensor:
    """Sums (PROBE_GROUPS,) over groups of the features of a fixed input."""
    side = PROBE_SIDE if backbone in BUILDERS else size  # other networks may accept only S
    # A wave whose length is not a divisor of a row, so that every position differs.
    images = torch.sin(0.37 * torch.arange(3 * side**2, dtype=torch.float64, device="cpu")).float()
    features: Tensor = network(images.view(1, 3, side, side))
    return torch.stack([each.sum() for each in features.double()[0].tensor_split(PROBE_GROUPS)])


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
        takes=f"RGB in [0, 1], normalised with mean {metadata['mean']} and deviation "
        f"{metadata['std']};\n  trained on crops of {metadata['image_size']} pixels",
        gives=f"{metadata['dim']} features{pooled}",
        loading=loading("vision", metadata["backbone"], "", *_alone(metadata)),
        pipeline="image-feature-extraction",
        inputs="images",
        evaluated=evaluated,
        left_out=("linear_best_top1",),  # the best epoch was chosen on the test images
    )


def _alone(metadata: Mapping[str, str]) -> tuple[str, list[str]]:
    """The library that also has the network, and how to load it there; empty if there is none."""
    backbone, stem = metadata["backbone"], metadata["stem"]
    load = [f'encoder.load_state_dict(load_file("{FILE}"))', "encoder.eval()"]
    if "@" in backbone or "colours" in metadata or backbone in ("resnet8", "resnet20"):
        return "", []
    if backbone not in BUILDERS:
        sized = f", img_size={metadata['image_size']}" if fixed_size(backbone) else ""
        make = f'encoder = timm.create_model("{backbone}", num_classes=0{sized})'
        return "timm", ["import timm", "", make, *load]
    lines = [
        "import torchvision",
        "",
        f"encoder = torchvision.models.{backbone}()",
        "encoder.fc = torch.nn.Identity()",
    ]
    if stem != "imagenet":
        stride = 2 if stem == "strided" else 1
        conv = f"torch.nn.Conv2d(3, 64, 3, stride={stride}, padding=1, bias=False)"
        lines.append(f"encoder.conv1 = {conv}")
    if stem in ("cifar", "strided"):
        lines.append("encoder.maxpool = torch.nn.Identity()")
    return "torchvision", [*lines, *load]
