"""Contrastive pretraining on clips and its evaluation: one readable loop.

Shapes: n training videos, B of a batch, T frames of a clip, S side in pixels, H features.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from shared import Criterion, Pairs
from shared.distributed import local_slice, replicated, synchronise
from shared.errors import UserError
from shared.experiment.own import record_own
from shared.experiment.run import Run
from shared.momentum import bank_size
from shared.projection import extractor_of
from video import own
from video.config import BASELINES, EMBEDDED, OWN, Config
from video.data import DATASETS, Videos, load
from video.encoder import GROUPS, Networks, autocast, check, compare
from video.evaluation import evaluate, long_enough, retrieval_so_far
from video.export import save_encoder
from video.loading import batches

SAVE_EVERY = 120.0  # seconds between two checkpoints, of over 100 MB each

Forward = Callable[..., tuple[Tensor, dict[str, Tensor], Pairs]]  # see losses


def measure(config: Config, run: Run) -> dict[str, Any]:
    """Pretrain an encoder on clips without labels, and evaluate it by the configuration's protocol.

    Args:
        config: what to do.
        run: where it is logged, saved and resumed from.

    Returns:
        The metrics of the protocol, in percent.
    """
    if config.dataset.startswith(OWN):
        videos = own.folder(
            config.dataset.removeprefix(OWN),
            config.size,
            flow=config.flow if config.modality == "flow" else None,
            skip_damaged=run.allow_missing,
        )
    else:
        videos = load(
            config.dataset,
            run.data_root,
            split=config.split,
            modality=config.modality,
            flow=config.flow,
            size=config.size,
            workers=run.workers,
            allow_missing=run.allow_missing,
            progress=run.progress,
        )
    run.record_data(**{config.dataset: own.fingerprint(config.dataset, run.data_root)})
    every, videos = len(videos.videos), long_enough(config, videos)
    left_out = len(videos.left_out) + every - len(videos.videos)
    run.record(classes=f"{len(videos.classes)} present", left_out=str(left_out))
    if config.init is not None:
        run.record_data(init=config.init.sha256)

    def score(networks: Networks, criterion: Criterion, **_: object) -> dict[str, float]:
        project = extractor_of(criterion.projection, config.projection_dimensions)
        return retrieval_so_far(config, networks.encoder, videos, project)

    run.score = score
    networks, criterion = pretrain(config, videos.of(train=True), run)
    run.continue_on_rank_zero()
    if run.tier != "smoke" and config.network not in BASELINES:
        save_encoder(networks.encoder, run.folder, config=config)
    project = extractor_of(criterion.projection, config.projection_dimensions)
    return evaluate(config, networks.encoder, videos, run, project=project)


def pretrain(config: Config, videos: Videos, run: Run) -> tuple[Networks, Criterion]:
    """Train the networks of a configuration on videos without labels, yours or a dataset's.

    Args:
        config: how; its fields about datasets and evaluation are not used.
        videos: n videos.
        run: where it is logged, saved and resumed from.

    Returns:
        The networks, on the GPU if there is one, and the criterion with its trained parameters.

    Raises:
        ValueError: an inconsistent configuration, or videos of another modality.
        UserError: fewer videos than a batch has.
        FloatingPointError: the training diverged.
    """
    check(config)
    videos.check(config.modality)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    per_epoch = len(videos.videos) // config.batch_size
    if per_epoch == 0:
        raise UserError(
            f"batch_size {config.batch_size} is larger than the {len(videos.videos)} training "
            f"videos; lower it"
        )
    record_own(run, config, "dataset", (*DATASETS, EMBEDDED), videos.frames, videos.length)
    networks = Networks(config, queue=bank_size(config.queue, len(videos.videos))).to(device)
    criterion = Criterion(config.objective, networks.dim, check_every=per_epoch).to(device)
    if not config.train:
        if config.calibrate:
            calibrate(config, networks.encoder, videos, device, workers=run.workers)
        return networks, criterion
    synchronise(networks, groups=GROUPS if config.method == "moco" else 1)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimiser]
    optimiser = kind(
        nn.ModuleList([networks, criterion]).parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=True,
    )
    run.keep_checkpoint = False
    first = run.track(networks=networks, criterion=criterion, optimiser=optimiser)
    forward = replicated(losses, networks, criterion)

    networks.train()
    total = config.epochs * per_epoch

    def state(step: int) -> dict[str, float]:
        epoch = step // per_epoch
        return {"epoch": epoch + 1, "learning_rate": learning_rate(config, epoch)}

    steps = run.steps(total, "pretraining", log_every=per_epoch, save_every=SAVE_EVERY, also=state)
    chosen = batches_of(config, len(videos.videos), first, total)
    pairs = batches(config, videos, chosen, device=device, workers=run.workers)
    with contextlib.closing(pairs):
        for step, pair in zip(steps, pairs, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(config, step // per_epoch)
            run.means.add(train_step(config, networks, criterion, optimiser, pair, step, forward))
            networks.follow(config.teacher_momentum)
    return networks, criterion


def losses(
    config: Config,
    networks: Networks,
    criterion: Criterion,
    pair: tuple[Tensor, Tensor],
    step: int,
) -> tuple[Tensor, dict[str, Tensor], Pairs]:
    """The loss of two clips of each video, its parts, and the pairs."""
    with autocast(config.precision, pair[0]):
        pairs, features = compare(config, networks, *pair)
    loss, parts = criterion(pairs, features=features, step=step)
    return loss, parts, pairs


def train_step(
    config: Config,
    networks: Networks,
    criterion: Criterion,
    optimiser: torch.optim.Optimizer,
    pair: tuple[Tensor, Tensor],
    step: int,
    forward: Forward = losses,
) -> dict[str, Tensor]:
    """One step of the optimiser on two clips (B, 3, T, S, S) of each video; the loss's parts.

    On several processes they are the clips of this one's part of the batch, and ``forward`` is
    :func:`losses` as :func:`shared.distributed.replicated`.
    """
    loss, parts, pairs = forward(config, networks, criterion, pair, step)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    networks.remember(pairs)
    return {"loss": loss.detach(), **parts}


def calibrate(
    config: Config, encoder: nn.Module, videos: Videos, device: torch.device, *, workers: int = 1
) -> None:
    """Give the batch norms of an untrained encoder the statistics of one epoch of first views."""
    order = order_of(len(videos.videos), config.seed, 0)
    chosen = ((index, 0) for index in order.split(config.batch_size))
    update_bn(batches(config, videos, chosen, device=device, workers=workers), encoder)


def order_of(videos: int, seed: int, epoch: int) -> Tensor:
    """In which order the videos come in an epoch, a function of (seed, epoch)."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(videos, generator=generator)


def batches_of(config: Config, videos: int, first: int, total: int) -> Iterator[tuple[Tensor, int]]:
    """Which videos (B,) each step from ``first`` to ``total - 1`` sees, and its epoch.

    What is left of an epoch after its last full batch is not seen. On several processes it is this
    one's part of each batch.
    """
    per_epoch = videos // config.batch_size
    for step in range(first, total):
        epoch, number = divmod(step, per_epoch)
        if number == 0 or step == first:
            order = order_of(videos, config.seed, epoch)
        index = order[number * config.batch_size : (number + 1) * config.batch_size]
        yield index[local_slice(config.batch_size)], epoch


def learning_rate(config: Config, epoch: int) -> float:
    """The rate of an epoch: a tenth after each milestone, or half a turn of the cosine."""
    if config.schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * epoch / config.epochs)) / 2
    passed = sum(epoch >= milestone for milestone in config.milestones)
    return config.learning_rate * 0.1**passed
