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
from graph.data import Graphs, batches, fingerprint, load, permutation
from graph.encoder import Encoder, ProjectionHead
from graph.evaluation import calibrate, embed, read_out, sizes
from shared import Criterion, Pairs
from shared.distributed import gather, part, replicated, synchronise, world_size
from shared.errors import UserError
from shared.experiment.runs import Run
from shared.pairs import paired_views


def measure(config: Config, run: Run) -> dict[str, object]:
    """Pretrain an encoder, embed the unaugmented graphs, and score them.

    Args:
        config: what to do.
        run: where it is logged, saved and resumed from.

    Returns:
        The metrics of the protocol: ``accuracy`` in percent and what it is the mean of, and the
        second read-out's.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"float64": torch.float64, "float32": torch.float32}[config.precision]
    graphs = load(config.dataset, run.data_root)
    graphs = dataclasses.replace(graphs, x=graphs.x.to(dtype))
    run.record_data(**{config.dataset: fingerprint(config.dataset, run.data_root)})

    if config.features != "encoder":
        run.progress(0, 1, config.protocol)
        constant = np.zeros((graphs.num_graphs, 1))
        trivial = sizes(graphs) if config.features == "sizes" else constant
        return read_out(trivial, graphs.y.numpy(), config.fold_seed, run.workers)

    # Drawn in single precision whatever follows, so that both precisions start from one point.
    encoder = Encoder(graphs.x.shape[1], config.hidden, config.layers).to(device, dtype)
    head = ProjectionHead(encoder.dim).to(device, dtype)
    criterion = config.objective.build(encoder.dim).to(device, dtype)
    modules = nn.ModuleList([encoder, head, criterion])
    synchronise(modules)
    optimiser = torch.optim.Adam(modules.parameters(), lr=config.learning_rate)
    run.track(encoder=encoder, head=head, criterion=criterion, optimiser=optimiser)
    forward = replicated(losses, encoder, head, criterion)

    check_last_batch(config, graphs)
    modules.train()
    per_epoch = math.ceil(graphs.num_graphs / config.batch_size)
    for epoch in run.steps(config.epochs if config.train else 0, "pretraining"):
        for batch, (original, augmented) in enumerate(views(config, graphs, epoch)):
            step = epoch * per_epoch + batch
            loss, parts = forward(config, encoder, head, criterion, original, augmented, step)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            run.means.add({"loss": loss.detach(), **parts})

    run.alone()
    run.progress(config.epochs, config.epochs, config.protocol)
    if config.calibrate:
        calibrate(encoder, graphs, config.batch_size)
    embeddings = evaluated_features(config, encoder, criterion, graphs)
    return read_out(embeddings, graphs.y.numpy(), config.fold_seed, run.workers)


def views(config: Config, graphs: Graphs, epoch: int) -> Iterator[tuple[Graphs, Graphs]]:
    """The batches of an epoch, each with its original and its augmented graphs.

    Order and augmentations are functions of (seed, epoch) alone.
    """
    authors = config.authors_augmentation
    order = permutation(graphs.num_graphs, config.seed, epoch if config.reshuffle else None)
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    for batch in batches(graphs, config.batch_size, order):
        original = add_self_loops_but_last(batch) if authors else batch
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
        # A lone graph has nothing to be compared with.
        if batch.num_graphs > 1:
            yield original, augmented


def losses(
    config: Config,
    encoder: Encoder,
    head: ProjectionHead,
    criterion: Criterion,
    original: Graphs,
    augmented: Graphs,
    step: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch and its parts."""
    pairs, features = compare(config, encoder, head, original, augmented)
    loss, parts = criterion(pairs, features=features, step=step)
    return loss, parts


def compare(
    config: Config, encoder: Encoder, head: ProjectionHead, original: Graphs, augmented: Graphs
) -> tuple[Pairs, list[Tensor]]:
    """The pairs of a batch, and the encoder's features of both views, (B, H) each.

    On several processes these are of this one's part of the batch.
    """
    device = next(encoder.parameters()).device
    features = [
        encoder(view.x, view.edge_index, view.batch, view.num_graphs)
        for view in (own_part(original).to(device), own_part(augmented).to(device))
    ]
    x, z = (head(feature) for feature in features)
    collect = partial(gather, count=original.num_graphs)
    return paired_views(x, z, config.pairs, gather=collect), features


def own_part(batch: Graphs) -> Graphs:
    """This process's part of a batch."""
    if world_size() == 1:
        return batch
    own = part(batch.num_graphs)
    (graphs,) = batches(batch, batch.num_graphs, torch.arange(own.start, own.stop))
    return graphs


def check_last_batch(config: Config, graphs: Graphs) -> None:
    """Refuse more processes than the last batch of an epoch has graphs; a lone one is left out.

    Raises:
        UserError: a process would have none.
    """
    left = graphs.num_graphs % config.batch_size
    if 1 < left < world_size():
        raise UserError(
            f"the last batch of {config.dataset} has {left} graphs, too few for {world_size()} "
            f"processes; take {left} or fewer"
        )


def evaluated_features(
    config: Config, encoder: Encoder, criterion: Criterion, graphs: Graphs
) -> np.ndarray:
    """What the protocol scores, (G, H): the encoder's features, under CLLR's L if there is one."""
    if config.authors_augmentation:
        graphs = add_self_loops_but_last(graphs)
    features = embed(encoder, graphs)
    projection = criterion.projection
    if projection is None:
        return features
    return projection.project(torch.from_numpy(features).to(projection.matrix)).cpu().numpy()
