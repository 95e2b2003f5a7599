"""Pretraining on graphs and its evaluation: one readable loop."""

import dataclasses
import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from graph.augmentation import add_self_loops_but_last, augment
from graph.config import Config
from graph.data import ATLAS, Graphs, Layout, batches, check, layout, permutation
from graph.datasets import DATASETS
from graph.encoder import ProjectionHead, make_encoder
from graph.evaluation import LOGISTIC, calibrate, embed, score, sizes
from graph.export import save_encoder
from graph.own import fingerprint, load
from shared import Criterion
from shared.chunks import check_chunk, in_chunks
from shared.distributed import gather, local_slice, replicated, synchronise, world_size
from shared.errors import UserError
from shared.experiment.own import record_own
from shared.experiment.run import Run
from shared.experiment.weights import initialise
from shared.pairs import paired_views

PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
SAVE_EVERY = 30.0  # seconds between two checkpoints: more than most epochs take


def measure(config: Config, run: Run) -> dict[str, object]:
    """Pretrain an encoder, embed the unaugmented graphs, and score them.

    Args:
        config: what to do.
        run: where it is logged, saved and resumed from.

    Returns:
        The metrics of the protocol, in percent, with the values that each is the mean of.
    """
    graphs = load(config.dataset, run.data_root)
    run.record_data(**{config.dataset: fingerprint(config.dataset, run.data_root)})
    graphs = dataclasses.replace(graphs, x=graphs.x.to(PRECISIONS[config.precision]))

    if config.features != "encoder":
        if config.init is not None:
            raise ValueError(
                f"features {config.features!r} have no weights to start from; drop init"
            )
        run.progress(0, 1, config.protocol)
        constant = np.zeros((graphs.num_graphs, 1))
        trivial = sizes(graphs) if config.features == "sizes" else constant
        return score(config.protocol, trivial, graphs.y.numpy(), config.fold_seed, run.workers)

    if config.init is not None:
        run.record_data(init=config.init.sha256)

    def score_so_far(encoder: nn.Module, criterion: Criterion, **_: object) -> dict[str, float]:
        features = evaluated_features(config, encoder, criterion, graphs)
        metrics = score(LOGISTIC, features, graphs.y.numpy(), config.fold_seed)
        return {"accuracy": metrics["accuracy"]}

    run.score = score_so_far
    encoder, criterion = pretrain(config, graphs, run)
    run.continue_on_rank_zero()
    run.progress(config.epochs, config.epochs, config.protocol)
    if config.calibrate:
        calibrate(encoder, graphs, config.batch_size)
    if run.tier != "smoke":
        width = graphs.x.shape[1]
        save_encoder(encoder, run.folder, config=config, features=width)
    embeddings = evaluated_features(config, encoder, criterion, graphs)
    return score(config.protocol, embeddings, graphs.y.numpy(), config.fold_seed, run.workers)


def pretrain(config: Config, graphs: Graphs, run: Run) -> tuple[nn.Module, Criterion]:
    """Train the encoder of a configuration on graphs without labels, yours or a dataset's.

    Args:
        config: how; its fields about datasets and evaluation are not used.
        graphs: all of them.
        run: where it is logged, saved and resumed from.

    Returns:
        The encoder, on the GPU if there is one, and the criterion with its trained parameters.

    Raises:
        ValueError: an invalid configuration, or graphs that :func:`graph.data.check` refuses.
        UserError: more processes than the last batch of an epoch has graphs.
        FloatingPointError: the training diverged.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = PRECISIONS[config.precision]
    check(graphs)
    check_chunk(config.chunk)
    check_batches(config, graphs)
    data = (graphs.x, graphs.edge_index, graphs.batch)
    record_own(run, config, "dataset", (*DATASETS, ATLAS), *data)
    graphs = dataclasses.replace(graphs, x=graphs.x.to(dtype))
    # Drawn in single precision, so that both precisions start from the same weights.
    encoder = make_encoder(config, graphs.x.shape[1]).to(device, dtype)
    if config.init is not None:
        remedy = "set network, hidden, layers and readout as in the file, and take its features"
        initialise(encoder, config.init, remedy)
    dim: int = encoder.dim  # type: ignore[assignment] # of every encoder
    head = ProjectionHead(dim).to(device, dtype)
    criterion = config.objective.build(dim).to(device, dtype)
    modules = nn.ModuleList([encoder, head, criterion])
    synchronise(modules)
    optimiser = torch.optim.Adam(modules.parameters(), lr=config.learning_rate)
    run.track(encoder=encoder, head=head, criterion=criterion, optimiser=optimiser)
    forward = replicated(losses, encoder, head, criterion)

    features, by_row = kept_features(config, graphs, device)
    graph_layout = layout(graphs)
    modules.train()
    per_epoch = math.ceil(graphs.num_graphs / config.batch_size)
    epochs = config.epochs if config.train else 0
    for epoch in run.steps(epochs, "pretraining", save_every=SAVE_EVERY):
        for batch, (original, augmented) in enumerate(views(config, by_row, epoch, graph_layout)):
            step = epoch * per_epoch + batch
            arguments = (original, augmented, step, features)
            loss, parts = forward(config, encoder, head, criterion, *arguments)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            run.means.add({"loss": loss.detach(), **parts})
    return encoder, criterion


def kept_features(
    config: Config, graphs: Graphs, device: torch.device | str
) -> tuple[Tensor | None, Graphs]:
    """Features that stay on the device, and the graphs with ``rows`` of them in place of ``x``.

    Batches and views are then made of rows, which are few bytes. A masked node has row 0, which is
    zero. None, and the graphs as they are, where augmentations compute with features.
    """
    masks = "attribute_mask" in config.augmentations if not callable(config.augmentations) else None
    if masks is None or (masks and config.authors_augmentation):
        return None, graphs
    first = int(masks)
    x = nn.functional.pad(graphs.x, (0, 0, first, 0)) if masks else graphs.x
    rows = torch.arange(first, first + len(graphs.x))
    return x.to(device), dataclasses.replace(graphs, x=graphs.x[:, :0], rows=rows)


def views(
    config: Config, graphs: Graphs, epoch: int, graph_layout: Layout | None = None
) -> Iterator[tuple[Graphs, Graphs]]:
    """The batches of an epoch, each with its original and its augmented graphs.

    Order and augmentations are functions of (seed, epoch) alone. ``graph_layout`` is that
    of the graphs, where it is known.
    """
    authors = config.authors_augmentation
    order = permutation(graphs.num_graphs, config.seed, epoch if config.reshuffle else None)
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    for batch in batches(graphs, config.batch_size, order, graph_layout):
        original = add_self_loops_but_last(batch) if authors else batch
        if callable(config.augmentations):
            augmented = config.augmentations(original, generator)
            check_view(config.augmentations.__name__, original, augmented)
        else:
            augmented = augment(
                original,
                config.augmentations,
                generator,
                ratio=config.drop_ratio,
                subgraph_ratio=config.subgraph_ratio,
                add_edges=not authors,
                mask_with_noise=authors,
                one_hop=authors,
                drop_isolated=authors,
            )
        # A single graph has nothing to be compared with.
        if batch.num_graphs > 1:
            yield original, augmented


def check_view(name: str, original: Graphs, view: Graphs) -> None:
    """Refuse an invalid result of the user's own augmentation."""
    if not isinstance(view, Graphs):
        raise ValueError(f"{name} returns a {type(view).__name__}; it has to return graph.Graphs")
    if view.num_graphs != original.num_graphs or view.x.shape[1:] != original.x.shape[1:]:
        raise ValueError(
            f"{name} returns {view.num_graphs} graphs of {view.x.shape[-1]} features for "
            f"{original.num_graphs} of {original.x.shape[-1]}; every graph has to keep its place"
        )
    check(view, name)


def losses(
    config: Config,
    encoder: nn.Module,
    head: ProjectionHead,
    criterion: Criterion,
    original: Graphs,
    augmented: Graphs,
    step: int,
    kept: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch and its parts; for ``kept`` see :func:`kept_features`.

    On several processes each encodes its part of the batch.
    """
    device = next(encoder.parameters()).device
    features = []
    for view in (original, augmented):
        part = own_part(view).to(device)
        if part.rows is not None and kept is not None:
            part = dataclasses.replace(part, x=kept.index_select(0, part.rows), rows=None)
        features.append(encoded(encoder, part, config.chunk))
    x, z = (head(feature) for feature in features)
    collect = partial(gather, count=original.num_graphs)
    pairs = paired_views(x, z, config.pairs, gather=collect)
    loss, parts = criterion(pairs, features=features, step=step)
    return loss, parts


def encoded(encoder: nn.Module, view: Graphs, chunk: int | None) -> Tensor:
    """Features (B, H) of the graphs of a view, in chunks of ``chunk`` graphs; None: of all."""
    parts = [view] if chunk is None else batches(view, chunk)
    arguments = [(part.x, part.edge_index, part.batch, part.num_graphs) for part in parts]
    features: Tensor = in_chunks(encoder, arguments, encoder)
    return features


def own_part(batch: Graphs) -> Graphs:
    """This process's part of a batch."""
    if world_size() == 1:
        return batch
    rows = local_slice(batch.num_graphs)
    (graphs,) = batches(batch, batch.num_graphs, torch.arange(rows.start, rows.stop))
    return graphs


def check_batches(config: Config, graphs: Graphs) -> None:
    """Refuse batches of single graphs, and more processes than the last batch has graphs.

    A single graph in the last of several batches is left out.
    """
    if min(graphs.num_graphs, config.batch_size) < 2 and config.train:
        raise ValueError(
            f"{graphs.num_graphs} graphs in batches of {config.batch_size}: a graph is compared "
            f"with others; use at least two of each"
        )
    left = graphs.num_graphs % config.batch_size
    if 1 < left < world_size():
        raise UserError(
            f"the last batch of {config.dataset} has {left} graphs, too few for {world_size()} "
            f"processes; use {left} or fewer"
        )


def evaluated_features(
    config: Config, encoder: nn.Module, criterion: Criterion, graphs: Graphs
) -> np.ndarray:
    """The features to score, (G, H): the encoder's, after CLLR's L if there is one."""
    if config.authors_augmentation:
        graphs = add_self_loops_but_last(graphs)
    features = embed(encoder, graphs)
    projection = criterion.projection
    if projection is None:
        return features
    return projection.project(torch.from_numpy(features).to(projection.matrix)).cpu().numpy()
