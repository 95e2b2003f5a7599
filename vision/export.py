"""Trained encoders as files that others can read: safetensors with torchvision's names.

Shapes: S side in pixels, H features of the backbone.

A file carries a SHA-256 over everything in it, and the features of a fixed input: the first says
that the file is as it was written, the second that this code and this torchvision still build the
network that was trained.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from shared.errors import UserError
from shared.experiment.export import (
    FEATURES,
    NOT_PROJECTED,
    Card,
    accuracies,
    damaged,
    exportable,
    lines_of,
    python,
    write_card,
)
from shared.experiment.records import Record
from shared.experiment.runs import replacing
from shared.functions import function_name, identity
from vision.config import Backbone, Config
from vision.data import OWN, describe
from vision.encoder import (
    BUILDERS,
    LabEncoder,
    fixed_size,
    make_encoder,
    name_of,
    width_of,
)
from vision.evaluation import statistics

FILE = "encoder.safetensors"
LAB = "lab"  # two networks, of the lightness and the colours of an image
PROBE_SIDE = 32  # pixels of the fixed input
PROBE_GROUPS = 16  # sums over as many groups of features are kept
TOLERANCE = 1e-2  # of the features' norm, for other hardware; another network differs by about 1

# Names of the datasets on the Hugging Face hub; others go by their own name.
HUB = {
    "CIFAR10": "uoft-cs/cifar10",
    "CIFAR100": "uoft-cs/cifar100",
    "ImageNet": "ILSVRC/imagenet-1k",
}


def save_encoder(encoder: nn.Module, file: Path, *, config: Config) -> None:
    """Write the encoder's state, with what is needed to rebuild and to check it.

    Args:
        encoder: of ``vision.Networks(config)``, on any device.
        file: where to; replaced in one move.
        config: of the run that trained it.

    Raises:
        ValueError: a module with other parameters than the configuration's backbone has.
    """
    state = {name: item.detach().cpu().contiguous() for name, item in encoder.state_dict().items()}
    lab = config.method == "cmc"
    backbone, size = config.backbone, config.image_size
    try:
        network = _rebuild(backbone, config.stem, state, size=size, lab=lab)
    except RuntimeError as error:
        raise ValueError(f"this module is no {name_of(backbone)} as built here: {error}") from error
    mean, std = statistics(config, describe(config.dataset))
    metadata = {
        "format": "pt",
        "backbone": backbone if isinstance(backbone, str) else identity(backbone),
        "stem": config.stem,
        "dim": str(width_of(network, backbone, size)),
        "image_size": str(config.image_size),
        "mean": json.dumps(mean),
        "std": json.dumps(std),
        "features": json.dumps(_probe(network, _probe_side(backbone, size)).tolist()),
    }
    if lab:  # other files have no such entry
        metadata["colours"] = LAB
    metadata["sha256"] = _digest(state, metadata)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        save_file(state, part, metadata)


def load_encoder(path: Path, backbone: Callable[[], nn.Module] | None = None) -> nn.Module:
    """The encoder of a file, on the CPU, in eval mode: (B, 3, S, S) -> (B, H).

    Args:
        path: the file, or a folder that holds ``encoder.safetensors``.
        backbone: what makes the network, if a function made that of the run.

    Raises:
        UserError: no such file, or one that is not as :func:`save_encoder` wrote it.
    """
    metadata, state = read(path)
    made_by: Backbone = backbone or metadata.get("backbone", "")
    if isinstance(made_by, str) and "@" in made_by:
        raise UserError(
            f"{path}: its network is made by {function_name(made_by)}; give that function, too: "
            f"load_encoder(path, {function_name(made_by).rpartition('.')[2]})"
        )
    try:
        lab = metadata.get("colours") == LAB
        size = int(metadata["image_size"])
        network = _rebuild(made_by, metadata["stem"], state, size=size, lab=lab)
        stored = torch.tensor(json.loads(metadata["features"]), dtype=torch.float64)
    except (KeyError, RuntimeError, ValueError) as error:
        raise damaged(path, str(error)) from error
    difference = torch.linalg.vector_norm(_probe(network, _probe_side(made_by, size)) - stored)
    if not difference <= TOLERANCE * torch.linalg.vector_norm(stored):
        raise UserError(
            f"{path}: its features are not those stored when it was written; use the version of "
            f"this project and of torchvision that wrote it"
        )
    return network


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file, or of the one in a folder, whose SHA-256 is right.

    Raises:
        UserError: no such file, or one that is not as :func:`save_encoder` wrote it.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; give an exported folder or its {FILE}")
    try:
        with safe_open(file, framework="pt") as stream:
            metadata: dict[str, str] = stream.metadata() or {}
            state = {name: stream.get_tensor(name) for name in stream.keys()}
    except SafetensorError as error:
        raise damaged(file, str(error)) from error
    if "sha256" not in metadata:
        raise UserError(f"{file}: not written by this project (no fingerprint); export a run of it")
    if metadata["sha256"] != _digest(state, metadata):
        raise damaged(file, "its SHA-256 is not the one written into it")
    return metadata, state


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, a folder, and return it.

    Args:
        folder: of the run.
        target: made if it is not there; its ``encoder.safetensors`` and ``README.md`` are replaced.

    Raises:
        UserError: a run that is not finished or has no encoder, or a damaged file.
    """
    record = exportable(folder, Config)
    if "backbone" not in record.config:
        raise UserError(f"{folder}: this run trains no image encoder; export one that does")
    source = folder / FILE
    load_encoder(source)
    target.mkdir(parents=True, exist_ok=True)
    with replacing(target / FILE) as part:
        shutil.copyfile(source, part)
    metadata, _ = read(target)
    return write_card(target, record, _card(record, metadata))


def _digest(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over the metadata without itself, and every tensor's name, type, shape and bytes."""
    rest = {name: text for name, text in metadata.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _rebuild(
    backbone: Backbone, stem: Any, state: Mapping[str, Tensor], *, size: int, lab: bool
) -> nn.Module:
    """The encoder with this state, in eval mode.

    Raises:
        RuntimeError: keys or shapes that are not those of the network.
    """
    with torch.random.fork_rng(devices=[]):  # a run's random numbers go on as they are
        network: nn.Module
        if lab:
            network = LabEncoder(backbone, stem)
        else:
            network = make_encoder(backbone, stem, size=size)
    network.load_state_dict(state, strict=True)
    return network.eval()


def _probe_side(backbone: Backbone, size: int) -> int:
    """Side of the fixed input: a network that is not a ResNet here may take no other than S."""
    return PROBE_SIDE if backbone in BUILDERS else size


@torch.no_grad()
def _probe(network: nn.Module, side: int) -> Tensor:
    """Sums (PROBE_GROUPS,) over groups of the features of a fixed input."""
    # Waves of a length that shares no factor with a row: every position is different.
    images = torch.sin(0.37 * torch.arange(3 * side**2, dtype=torch.float64, device="cpu")).float()
    features: Tensor = network(images.view(1, 3, side, side))
    return torch.stack([each.sum() for each in features.double()[0].tensor_split(PROBE_GROUPS)])


def _card(record: Record, metadata: Mapping[str, str]) -> Card:
    config = record.config
    loss = function_name(config["objective"]["loss"]["function"])
    dataset, evaluated = (
        Path(name).name if name.startswith(OWN) else name
        for name in (config["dataset"], config["evaluate_on"] or config["dataset"])
    )
    metrics = {
        name: value
        for name, value in record.result["metrics"].items()
        # The best epoch was chosen on the test images.
        if isinstance(value, int | float) and name != "linear_best_top1"
    }
    results = lines_of(*metrics.items(), header=("metric", "value"))
    if config["objective"]["projection"]:
        results += f"\n\n{NOT_PROJECTED}"
    backbone = function_name(metadata["backbone"])
    name = f"{config['method']}-{loss}-{backbone}-{dataset}".lower()
    return Card(
        name=name,
        about=f"A {backbone} trained without labels on {dataset}: "
        f"{config['method']} with the\nloss `{loss}`, {config['epochs']} epochs, batches of "
        f"{config['batch_size']}, seed {config['seed']}.",
        points=(
            f"Input: RGB in [0, 1], normalised with mean {metadata['mean']} and deviation "
            f"{metadata['std']};\n  trained on crops of {metadata['image_size']} pixels.",
            f"Output: {metadata['dim']} features"
            + (", the average pool of the last block." if backbone in BUILDERS else "."),
        ),
        tags=("contrastive-learning", "self-supervised-learning", config["method"], loss),
        pipeline="image-feature-extraction",
        task="image-classification",
        datasets=() if config["dataset"].startswith(OWN) else (HUB.get(dataset, dataset),),
        scores=[
            (
                {"type": HUB.get(evaluated, evaluated), "name": evaluated},
                accuracies(metrics),
            )
        ],
        loading=_loading(metadata),
        measured=f" on {evaluated}, tier `{record.result['tier']}`, last epoch; accuracies in\n"
        "percent.",
        results=results,
        use=FEATURES.format(evaluated=evaluated, inputs="images"),
        licence="The images it was trained on have terms of their own.",
    )


def _loading(metadata: Mapping[str, str]) -> str:
    """How to load the file, with this project and without."""
    backbone, stem = metadata["backbone"], metadata["stem"]
    if "@" in backbone:
        module, _, name = function_name(backbone).rpartition(".")
        return python(
            "from pathlib import Path",
            f"from {module} import {name}  # yours, which made the network",
            "from vision.export import load_encoder",
            "",
            f'encoder = load_encoder(Path("{FILE}"), {name})',
        )
    here = python(
        "from pathlib import Path",
        "from vision.export import load_encoder",
        "",
        f'encoder = load_encoder(Path("{FILE}"))',
    )
    if metadata.get("colours") == LAB:
        return (
            f"{here}\n\nIt turns RGB into Lab and has two networks of half the width: `LabEncoder`."
        )
    if backbone in ("resnet8", "resnet20"):
        alone = "The network is this project's, made of torchvision's blocks: see `SmallResNet`."
        return f"{here}\n\n{alone}"
    load = [f'encoder.load_state_dict(load_file("{FILE}"))', "encoder.eval()"]
    if backbone not in BUILDERS:
        sized = f", img_size={metadata['image_size']}" if fixed_size(backbone) else ""
        lines = ["import timm", "from safetensors.torch import load_file", ""]
        lines.append(f'encoder = timm.create_model("{backbone}", num_classes=0{sized})')
        return f"{here}\n\nor with timm alone:\n\n{python(*lines, *load)}"
    lines = ["import torch, torchvision", "from safetensors.torch import load_file", ""]
    lines += [f"encoder = torchvision.models.{backbone}()", "encoder.fc = torch.nn.Identity()"]
    if stem != "imagenet":
        stride = 2 if stem == "strided" else 1
        conv = f"torch.nn.Conv2d(3, 64, 3, stride={stride}, padding=1, bias=False)"
        lines.append(f"encoder.conv1 = {conv}")
    if stem in ("cifar", "strided"):
        lines.append("encoder.maxpool = torch.nn.Identity()")
    return f"{here}\n\nor with torchvision alone:\n\n{python(*lines, *load)}"
