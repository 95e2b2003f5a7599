"""Trained encoders of graphs as files that others can read: safetensors.

Shapes: F node features, G graphs, D features of the encoder.

    encoder.safetensors    its weights; the metadata say how it is built and what it was trained on
    config.json            of the run
    SHA256SUMS             of both, as sha256sum writes and checks it
    README.md              the model card

A finished run keeps the first of these in its folder, :func:`write` makes all of them.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graph.augmentation import add_self_loops_but_last
from graph.config import Config
from graph.data import fingerprint, load
from graph.encoder import make_encoder
from graph.evaluation import embed
from graph.evaluation import score as scored
from shared.errors import UserError
from shared.experiment.data import check_sums, sha256_of
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

# The fields of a configuration that decide how the encoder is built and fed.
KEPT = ("network", "readout", "layers", "hidden", "precision", "authors_augmentation", "dataset")


def save_encoder(encoder: nn.Module, folder: Path, *, config: Config, features: int) -> None:
    """Write ``encoder.safetensors`` into a folder, with what is needed to rebuild the network.

    ``SHA256SUMS`` beside it lists it alone.

    Args:
        encoder: that of the configuration, on any device.
        folder: made if it is not there; the file in it is replaced in one move.
        config: of the run that trained it.
        features: F.
    """
    metadata = {"dim": str(encoder.dim), "features": str(features)}
    metadata |= {name: json.dumps(canonical(getattr(config, name))) for name in KEPT}
    save_weights(encoder, folder, metadata)


def load_encoder(path: Path, network: Callable[[int], Any] | None = None) -> nn.Module:
    """The encoder of a file, on the CPU, in eval mode: called as :class:`graph.Encoder` is.

    Args:
        path: the file; or an exported folder, whose SHA-256 sums are checked, too.
        network: what makes it, if a function made that of the run.

    Raises:
        UserError: no such file, or one that :func:`save_encoder` did not leave so.
    """
    return _read(path, network)[0]


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's encoder and a model card into ``target``, a folder, and return it.

    Args:
        folder: of the run.
        target: made if it is not there; files of the same names in it are replaced.

    Raises:
        UserError: a run that is not finished or keeps no encoder, or a damaged file.
    """
    record = exportable(folder, Config)
    if record.config.get("features") != "encoder":
        raise UserError(f"{folder}: this run has no graph encoder; export one that has")
    if not (folder / FILE).is_file():
        raise UserError(f"{folder}: the run keeps no encoder; run its cell again (--again)")
    check_sums(folder, RUN_REMEDY, [FILE])
    _, metadata = read_weights(folder / FILE)
    sums = copy_checked({name: folder / name for name in (FILE, CONFIG)}, target)
    return write_card(target, record, _card(record, metadata), sums)


def score(asked: Asked) -> Scores:
    """Score an exported encoder by named protocols, on its data set or another of its width.

    Raises:
        UserError: no export, an unknown data set, or one with other node features.
    """
    encoder, config, width = _read(asked.model, None)
    name = asked.data or config.dataset
    graphs = load(name, asked.data_root)
    if graphs.x.shape[1] != width:
        raise UserError(
            f"{name} has {graphs.x.shape[1]} node features, {asked.model} takes {width}; score on "
            f"a data set like {config.dataset}"
        )
    asked.say(f"took every tensor of {function_name(str(canonical(config.network)))}")
    loops = add_self_loops_but_last(graphs) if config.authors_augmentation else graphs
    features = embed(encoder, loops)

    def protocol_of(protocol: str) -> Mapping[str, Any]:
        def by(config: Any, run: Run) -> Mapping[str, Any]:
            run.record_data(**{name: fingerprint(name, run.data_root)})
            return scored(protocol, features, graphs.y.numpy(), config.fold_seed, run.workers)

        return measured(config, protocol, by, asked)

    file = weights_file(asked.model)
    return Scores(
        facts={"model": str(file), "sha256": sha256_of(file), "data": name},
        protocols={each: protocol_of(each) for each in asked.protocols or (config.protocol,)},
    )


def _read(path: Path, network: Callable[[int], Any] | None) -> tuple[nn.Module, Config, int]:
    """The encoder of a file, what is kept of its configuration, and its number of node features."""
    state, metadata = read_weights(path)
    file = weights_file(path)
    try:
        said = {name: json.loads(metadata[name]) for name in KEPT}
        if network is None:
            ask_for_network(file, said["network"])
        config = Config(**{**said, "network": network or said["network"]})
        features = int(metadata["features"])
        with torch.random.fork_rng(devices=[]):
            encoder = make_encoder(config, features)
        encoder.to({"float64": torch.float64, "float32": torch.float32}[config.precision])
        encoder.load_state_dict(state, strict=True)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(file, f"{type(error).__name__}: {error}") from error
    return encoder.eval(), config, features


# The model card


def _card(record: Record, metadata: Mapping[str, str]) -> Card:
    config = record.config
    losses = loss_names(config["objective"])
    network = function_name(config["network"])
    parts = [network.rpartition(".")[2], config["dataset"]]
    parts += losses if config["train"] else ["untrained"]
    metrics = {
        label: value
        for label, value in record.result["metrics"].items()
        if isinstance(value, int | float)
    }
    training = (
        f"trained without labels on all graphs of {config['dataset']} with\nthe loss "
        f"`{' + '.join(losses)}`, {config['epochs']} epochs, batches of {config['batch_size']}, "
        f"seed {config['seed']}"
        if config["train"]
        else f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    )
    loops = (
        "; with a self-loop on every\n  node but the last of each graph, as it was trained"
        if config["authors_augmentation"]
        else ""
    )
    results = lines_of(*metrics.items(), header=("metric", "value"))
    if config["objective"]["projection"]:
        results += f"\n\n{NOT_PROJECTED}"
    return Card(
        name="-".join(parts).replace("_", "-").lower(),
        about=f"A graph encoder ({network}), {training}.",
        points=(
            f"Input: graphs with {metadata['features']} node features{loops}.",
            f"Output: {metadata['dim']} features of each graph, in {config['precision']}.",
        ),
        tags=("graphs", "contrastive-learning", "self-supervised-learning", *losses),
        pipeline="graph-ml",
        task="graph-classification",
        datasets=(config["dataset"],),
        scores=[({"type": config["dataset"], "name": config["dataset"]}, accuracies(metrics))],
        loading=_loading(config["network"]),
        measured=f", tier `{record.result['tier']}`, last epoch; in percent.",
        results=results,
        use=FEATURES.format(evaluated=config["dataset"], inputs="graphs"),
        licence="The graphs it was trained on have terms of their own.",
    )


def _loading(network: str) -> str:
    module, _, name = function_name(network).rpartition(".")
    own = "@" in network
    return python(
        "from pathlib import Path",
        *([f"from {module} import {name}  # yours, which made the network"] if own else []),
        "from graph import embed, load",
        "from graph.export import load_encoder",
        "",
        f'encoder = load_encoder(Path("."){f", {name}" if own else ""})  # checks every SHA-256',
        'features = embed(encoder, load("MUTAG", Path("data")))  # or graph.from_pyg(...)',
    )
