"""Graph encoders as files for other libraries: safetensors, with PyG's names for its networks.

Shapes: F node features, G graphs, D features of the encoder.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graph.augmentation import add_self_loops_but_last
from graph.config import Config
from graph.data import ATLAS, fingerprint, load
from graph.datasets import DATASETS
from graph.encoder import make_encoder
from graph.evaluation import PROTOCOLS, embed
from graph.evaluation import score as scored
from shared.errors import UserError
from shared.experiment.config import canonical
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

# The fields of a configuration that determine the encoder and its input.
KEPT = ("network", "readout", "layers", "hidden", "precision", "authors_augmentation", "dataset")


def save_encoder(
    encoder: nn.Module,
    folder: Path,
    *,
    config: Config,
    features: int,
    dataset: str | None = None,
) -> None:
    """Write ``encoder.safetensors`` into a folder, with what is needed to rebuild the network.

    Args:
        encoder: that of the configuration, on any device; it may be compiled, averaged, or
            wrapped for several devices.
        folder: created if needed; the file in it is replaced atomically.
        config: of the run that trained it.
        features: F.
        dataset: what it was trained on, if that has another name than in the configuration.

    Raises:
        ValueError: another network than the configuration's.
    """
    network = remade(encoder, lambda: make_encoder(config, features))
    config = dataclasses.replace(config, dataset=dataset or config.dataset)
    metadata = {"dim": str(network.dim), "features": str(features)}
    metadata |= {name: json.dumps(canonical(getattr(config, name))) for name in KEPT}
    save_weights(network, folder, metadata)


def load_encoder(path: Path, network: Callable[[int], Any] | None = None) -> nn.Module:
    """The encoder of a file, on the CPU, in eval mode: called as :class:`graph.Encoder` is.

    Args:
        path: the file; or an exported folder, whose SHA-256 sums are also checked.
        network: the function that makes it, if the run's was made by one.

    Raises:
        UserError: no such file, or one that is not as :func:`save_encoder` wrote it.
    """
    return _read(path, network)[0]


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, and return it.

    An earlier export in ``target`` is replaced.
    """
    return export_run(folder, target, Config, [FILE], _describe)


def score(request: EvaluationRequest) -> Scores:
    """Score an exported encoder by named protocols, on its dataset or one with equal features."""
    encoder, config, width = _read(request.model, None)
    protocols = request.chosen(PROTOCOLS, config.protocol)
    name = request.data or config.dataset
    if not request.data and name not in (*DATASETS, ATLAS):
        raise UserError(
            f"{request.model} was trained on {name}, which is not a dataset of the tables; name "
            f"one with --data, or score your own graphs in Python: graph.svm_ten_fold"
        )
    graphs = load(name, request.data_root)
    if graphs.x.shape[1] != width:
        raise UserError(
            f"{name} has {graphs.x.shape[1]} node features, {request.model} takes {width}; score "
            f"on a dataset like {config.dataset}"
        )
    request.say(f"loaded every tensor of {config.network}")
    loops = add_self_loops_but_last(graphs) if config.authors_augmentation else graphs
    features = embed(encoder, loops)

    def by(config: Any, run: Run) -> Mapping[str, Any]:
        run.record_data(**{name: fingerprint(name, run.data_root)})
        labels = graphs.y.numpy()
        return scored(config.protocol, features, labels, config.seed, run.workers)  # of the folds

    return scores_of(request, file_of(request.model), name, protocols, config, by)


def _read(path: Path, network: Callable[[int], Any] | None) -> tuple[nn.Module, Config, int]:
    """The encoder of a file, the stored part of its configuration, and the number of features."""
    state, metadata = read_weights(path, (*KEPT, "features"))
    with naming_damage(path):
        stated = {name: json.loads(metadata[name]) for name in KEPT}
        config = Config(**{**stated, "network": network_of(path, stated["network"], network)})
        features = int(metadata["features"])
        kind = {"float64": torch.float64, "float32": torch.float32}[config.precision]
        return fill(lambda: make_encoder(config, features).to(kind), state), config, features


def _describe(folder: Path, record: Record) -> Export:
    config = record.config
    _, metadata = read_weights(folder / FILE, KEPT)
    if "@" not in config["network"]:
        load_encoder(folder / FILE)
    network, dataset = function_name(config["network"]), json.loads(metadata["dataset"])
    loops = (
        "; with a self-loop on every\n  node but the last of each graph, as it was trained"
        if config["authors_augmentation"]
        else ""
    )
    return Export(
        files={FILE: folder / FILE, CONFIG: folder / CONFIG},
        name=(network.rpartition(".")[2], dataset, *([] if config["train"] else ["untrained"])),
        losses=loss_names(config["objective"]) if config["train"] else (),
        about=f"An encoder of graphs ({network}), "
        f"{training_of(config, f'all graphs of {dataset}')}",
        input=f"graphs with {metadata['features']} node features{loops}",
        output=f"{metadata['dim']} features of each graph, in {config['precision']}",
        loading=loading(
            "graph",
            config["network"],
            "# features = graph.embed(encoder, graphs), of graph.load or graph.from_pyg",
        ),
        pipeline="graph-ml",
        modality="graphs",
        evaluated=dataset,
    )
