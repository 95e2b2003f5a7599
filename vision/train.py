"""Contrastive pretraining on images and its evaluation: one readable loop.

Shapes: n images of the training set, B of a batch, S side in pixels, H features of the backbone.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shared import Criterion, LowRankProjection, Pairs
from shared.capture import Captured, can_capture
from shared.distributed import local_slice, replicated, synchronise
from shared.errors import UserError
from shared.experiment import store
from shared.experiment.data import sha256_of
from shared.experiment.files import link
from shared.experiment.initial import FILE
from shared.experiment.own import record_own
from shared.experiment.run import Run
from shared.pixels import to_device
from shared.precision import bfloat16
from shared.projection import extractor_of
from vision import checkpoints
from vision.augmentation import POLICIES, augment
from vision.config import PRETRAINING, Config
from vision.data import choose, load, permutation, stream
from vision.datasets import DATASETS, Split, describe
from vision.evaluation import PROTOCOLS, evaluate
from vision.export import load_encoder, save_encoder
from vision.features import load_split, record_data, statistics
from vision.images import ImageFiles, Images
from vision.methods import check, networks_of
from vision.methods.base import Networks, Step
from vision.trivial import Trivial, calibrate

PROJECTION = "projection.safetensors"  # of an entry of the store: L, where there is one
WATCHED = "knn-200-v1"  # the protocol that scores an encoder during its training,
WATCHED_IMAGES: dict[Split, int] = {"train": 5000, "test": 1000}  # on at most this many images
SAVE_EVERY = 300.0  # seconds between two checkpoints, of over 100 MB each

Forward = Callable[..., tuple[Tensor, dict[str, Tensor], list[Pairs]]]  # see loss_of_views
TrainStep = Callable[[tuple[Tensor, ...], Step], dict[str, Tensor]]  # views and step -> parts


def measure(config: Config, run: Run) -> dict[str, object]:
    """Pretrain an encoder without labels, and evaluate it by the configuration's protocol.

    Args:
        config: what to do.
        run: where it is logged, saved and resumed from.

    Returns:
        The metrics of the protocol, in percent.

    Raises:
        ValueError: an inconsistent configuration.
    """
    mean, std = statistics(config, describe(config.dataset))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if config.weights is not None:
        check(config)
        encoder = checkpoints.load(config, run.data_root)
        run.record_data(weights=sha256_of(checkpoints.file_of(config.weights, run.data_root)))
        return evaluate(config, encoder.to(device), run)
    images = load_split(config, config.dataset, "pretrain", run)
    images = choose(images, config.images)
    record_data(run, config.dataset)
    if config.features != "encoder":
        check(config)
        return evaluate(config, Trivial(config.features, mean, std).to(device), run)
    if config.init is not None:
        run.record_data(init=config.init.sha256)
    check(config)
    run.keep_checkpoint = False  # of an earlier attempt, where another run has trained it since
    if run.store is None:
        networks, criterion = _pretrained_parts(config, images, run, mean, std)
        encoder, projection = networks.encoder, criterion.projection
        if run.tier != "smoke":
            save_encoder(encoder, run.folder, config=config)
    else:
        recorded = run.environment["data"]
        data = {"files": recorded[config.dataset], "images": len(images)}
        if config.prepared_side is not None:
            data["prepared"] = recorded["prepared"]
        part = store.part_of(config, PRETRAINING)

        def train() -> Callable[[Path], None]:
            return partial(_save_parts, config, *_pretrained_parts(config, images, run, mean, std))

        folder = store.pretrained(run, part, data, train)
        encoder, projection = _load_parts(config, folder, device)
        if run.tier != "smoke":
            link(folder / FILE, run.folder / FILE)
    project = extractor_of(projection, config.projection_dimensions)
    return evaluate(config, encoder, run, project=project)


def _score_so_far(config: Config, run: Run) -> Callable[..., dict[str, object]]:
    """A function from networks and criterion to ``knn_top1`` on part of the evaluated images.

    With a protocol of the transfer suite they are of the pretraining set.
    """

    @cache  # at the first call
    def prepared() -> tuple[Config, list[Images | ImageFiles]]:
        transfers = PROTOCOLS[config.protocol].transfer is not None
        other = None if transfers else config.evaluate_on
        scored = dataclasses.replace(config, evaluate_on=other, protocol=WATCHED, beside=None)
        parts = []
        for split, most in WATCHED_IMAGES.items():
            name = other or config.dataset
            images = load(name, run.data_root, split, allow_missing=run.allow_missing)
            parts.append(choose(images, min(most, len(images))))
        return scored, parts

    def score(networks: Networks, criterion: Criterion, **_: object) -> dict[str, object]:
        scored, (train, test) = prepared()
        project = extractor_of(criterion.projection, config.projection_dimensions)
        return evaluate(scored, networks.encoder, run, project=project, images=(train, test))

    return score


def _pretrained_parts(
    config: Config,
    images: Images | ImageFiles,
    run: Run,
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[Networks, Criterion]:
    """Networks and criterion, ready for evaluation; only the first of several processes returns."""
    run.score = _score_so_far(config, run)
    networks, criterion = pretrain(config, images, run, mean=mean, std=std)
    run.continue_on_rank_zero()
    if config.calibrated:
        calibrate(networks.encoder, images, config.image_size, mean, std)
    return networks, criterion


def _save_parts(config: Config, networks: Networks, criterion: Criterion, folder: Path) -> None:
    """Write the parts needed for evaluation into an entry of the store."""
    save_encoder(networks.encoder, folder, config=config)
    if criterion.projection is not None:
        state = criterion.projection.state_dict()
        save_file({name: item.cpu() for name, item in state.items()}, folder / PROJECTION)


def _load_parts(
    config: Config, folder: Path, device: str
) -> tuple[nn.Module, LowRankProjection | None]:
    """Encoder and projection of an entry of the store, on ``device``."""
    encoder = load_encoder(folder).to(device)
    if config.compile:
        encoder.compile()
    if config.objective.projection is None:
        return encoder, None
    state = load_file(folder / PROJECTION)
    projection = LowRankProjection(len(state["matrix"].T), **config.objective.projection.kwargs)
    projection.load_state_dict(state)
    return encoder, projection.to(device)


def pretrain(
    config: Config,
    images: Images | ImageFiles,
    run: Run,
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[Networks, Criterion]:
    """Train the networks of a configuration on images without labels, yours or a dataset's.

    Args:
        config: how; its fields about datasets and evaluation are not used.
        images: n images.
        run: where it is logged, saved and resumed from.
        mean: of each colour, on the scale from 0 to 1.
        std: of each colour.

    Returns:
        The networks, on the GPU if there is one, and the criterion with its trained parameters.

    Raises:
        ValueError: an inconsistent configuration.
        UserError: fewer images than a batch has.
        FloatingPointError: the training diverged.
    """
    check(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    per_epoch = len(images) // config.batch_size
    if per_epoch == 0:
        raise UserError(
            f"batch_size {config.batch_size} is larger than the {len(images)} training images; "
            f"lower it"
        )
    content = (images.pixels,) if isinstance(images, Images) else (images.labels,)
    record_own(run, config, "dataset", DATASETS, *content)
    networks = networks_of(config, len(images)).to(device)
    criterion = Criterion(config.objective, networks.dim, check_every=per_epoch).to(device)
    synchronise(networks)
    optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))
    run.keep_checkpoint = False
    first = run.track(networks=networks, criterion=criterion, optimiser=optimiser)
    if config.compile:
        networks.encoder.compile()
    forward = replicated(loss_of_views, networks, criterion)
    train_step = make_step(config, networks, criterion, optimiser, forward)

    networks.train()
    total = config.epochs * per_epoch
    every_view = batches(
        config, images, device, first, total, mean=mean, std=std, workers=run.workers
    )

    def state(step: int) -> dict[str, float]:
        rate = learning_rate(config, step, per_epoch)
        return {"epoch": step // per_epoch + 1, "learning_rate": rate}

    steps = run.steps(total, "pretraining", log_every=per_epoch, save_every=SAVE_EVERY, also=state)
    for step, views in zip(steps, every_view, strict=True):
        samples = None
        if config.method == "cmc":
            samples = to_device(samples_of(config, step, len(images)), torch.device(device))
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, step, per_epoch)
        run.means.add(train_step(views, Step(step, step / per_epoch, samples)))
        networks.follow(teacher_momentum(config, step, total))
    return networks, criterion


def loss_of_views(
    config: Config, networks: Networks, criterion: Criterion, views: tuple[Tensor, ...], step: Step
) -> tuple[Tensor, dict[str, Tensor], list[Pairs]]:
    """The loss of the views of a batch, its parts, and the pairs of each direction."""
    views = tuple(view.contiguous(memory_format=torch.channels_last) for view in views)
    device = views[0].device.type
    # Chunks have a context of their own: vision.methods.base.
    half = config.precision == "bfloat16" and config.chunk is None
    with bfloat16(device, enabled=half):
        pairs, features = networks.compare(views, step)
    objective = config.objective_at(int(step.epoch))
    values, every_part = [], []
    for direction in pairs:
        value, parts = criterion(
            direction, features=features, step=step.number, objective=objective
        )
        values.append(value)
        every_part.append(parts)
    loss = config.loss_factor * torch.stack(values).mean()
    means = {name: torch.stack([part[name] for part in every_part]).mean() for name in parts}
    return loss, means, pairs


def make_step(
    config: Config,
    networks: Networks,
    criterion: Criterion,
    optimiser: torch.optim.Optimizer,
    forward: Forward = loss_of_views,
) -> TrainStep:
    """A function that trains on views, (B, 3, S, S) each, and returns the parts of the loss.

    On several processes the views are this one's part of them, and ``forward`` is
    :func:`loss_of_views` as :func:`shared.distributed.replicated`.
    """

    def eager(views: tuple[Tensor, ...], step: Step) -> dict[str, Tensor]:
        """All but the optimiser's step: new gradients, new keys in a queue."""
        loss, parts, pairs = forward(config, networks, criterion, views, step)
        optimiser.zero_grad()
        loss.backward()
        networks.remember(pairs, step)
        return {"loss": loss.detach(), **parts}

    captures = can_be_captured(config) and can_capture(next(networks.parameters()).device)
    gradient = captured(eager, config, networks, optimiser) if captures else eager

    def train_step(views: tuple[Tensor, ...], step: Step) -> dict[str, Tensor]:
        parts = gradient(views, step)
        optimiser.step()
        return criterion.checked_parts(parts, step.number)

    return train_step


def captured(
    gradient: TrainStep, config: Config, networks: Networks, optimiser: torch.optim.Optimizer
) -> TrainStep:
    """The gradient of a step as a CUDA graph.

    The optimiser's step, whose learning rate is a number of the host, stays outside of the graph.
    One graph is for all steps: what only some of them need is left out afterwards. It keeps the
    memory of a step's activations, so no step runs eagerly beside it.
    """
    trained = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    device = next(networks.parameters()).device
    now, mixes, graph = Step(), False, None

    def eager(*views: Tensor) -> dict[str, Tensor]:
        return gradient(views, now)

    def replayed(views: tuple[Tensor, ...], step: Step) -> dict[str, Tensor]:
        nonlocal now, mixes, graph
        now, mixed = step, step.epoch >= config.mixed_from
        if graph is None or mixed != mixes:  # the memory of the one before is freed
            mixes, graph = mixed, None
            graph = Captured(eager, device, trained, networks.buffers)
        return graph(*views)

    return replayed


def can_be_captured(config: Config) -> bool:
    """Whether steps launch the same kernels, and wait for the device only to check the loss."""
    return (
        # The solver of max_margin and the nuclear norm wait for the device. Only max_margin has a
        # kernel width that may change with the epoch.
        not config.objective.synchronises
        and config.chunk is None  # chunks have backward passes of their own
        and not config.compile  # compiled code is launched as a whole already
        # SwAV reads whether its queue is full; CMC takes the images' numbers from the host.
        and config.method not in ("swav", "cmc")
    )


def batches(
    config: Config,
    images: Images | ImageFiles,
    device: str,
    first: int,
    total: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    workers: int = 0,
) -> Iterator[tuple[Tensor, ...]]:
    """The views of the batches of steps ``first`` to ``total - 1``, (B, 3, S, S) each.

    Two of them, and SwAV's small crops; one for CMC.

    Order and augmentations are functions of (seed, epoch, sample) alone; what is left of an epoch
    after its last full batch is dropped. On several processes it is this one's part of each batch.
    """
    # CMC's two views are the lightness and the colours of one crop.
    large = config.augmentations[: 1 if config.method == "cmc" else 2]
    small = (config.small_augmentation,) * config.small_crops
    policies = [POLICIES[name] for name in (*large, *small)]
    sizes = (config.image_size,) * len(large) + (config.small_size,) * len(small)
    remaining = policies
    if isinstance(images, Images):
        images = images.to(device)
    else:  # their sizes differ: the crops are made where the files are read
        remaining = [dataclasses.replace(policy, scale=None) for policy in policies]
    per_epoch = len(images) // config.batch_size
    for epoch in range(first // per_epoch, math.ceil(total / per_epoch)):
        order = permutation(len(images), config.seed, epoch)[: per_epoch * config.batch_size]
        chosen = order.reshape(per_epoch, config.batch_size)[:, local_slice(config.batch_size)]
        chosen = chosen[first - epoch * per_epoch :] if first > epoch * per_epoch else chosen
        pixels_of_views: Iterator[tuple[Tensor, ...]]
        if isinstance(images, Images):
            index = torch.from_numpy(chosen).to(images.pixels.device)
            pixels_of_views = ((images.pixels[rows],) * len(policies) for rows in index)
        else:
            pixels_of_views = stream(images, chosen, policies, sizes, config.seed, epoch, workers)
        for samples, pixels in zip(chosen, pixels_of_views, strict=True):
            yield tuple(
                augment(
                    view_pixels.to(device, non_blocking=True),
                    policy,
                    size,
                    seed=config.seed,
                    epoch=epoch,
                    samples=samples,
                    view=view,
                    mean=mean,
                    std=std,
                )
                for view, (policy, size, view_pixels) in enumerate(
                    zip(remaining, sizes, pixels, strict=True)
                )
            )


def samples_of(config: Config, step: int, count: int) -> Tensor:
    """The indices (B,) of the images of a step, among ``count``; those of all processes."""
    epoch, number = divmod(step, count // config.batch_size)
    order = permutation(count, config.seed, epoch)
    return torch.from_numpy(order[number * config.batch_size :][: config.batch_size])


def make_optimiser(config: Config, modules: nn.Module) -> torch.optim.Optimizer:
    """The configuration's optimiser over everything that is trained.

    LARS leaves batch norms and biases out of weight decay and of its adaptation; SGD and Adam
    decay everything, as the programs that use them do.
    """
    trained = [parameter for parameter in modules.parameters() if parameter.requires_grad]
    usual: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    match config.optimiser:
        case "sgd":
            return torch.optim.SGD(trained, momentum=config.sgd_momentum, **usual)
        case "adam":
            return torch.optim.Adam(trained, **usual)
        case "lars":
            from timm.optim.lars import Lars  # imports much that the others do not need

            vectors = [parameter for parameter in trained if parameter.ndim < 2]
            groups = [
                {"params": [parameter for parameter in trained if parameter.ndim >= 2]},
                # timm's Lars adapts the rate only where there is weight decay
                {"params": vectors, "weight_decay": 0.0},
            ]
            optimizer: torch.optim.Optimizer = Lars(
                groups, momentum=config.sgd_momentum, trust_coeff=1e-3, **usual
            )
            return optimizer
    raise ValueError(f"optimiser is 'sgd', 'adam' or 'lars'; got {config.optimiser!r}")


def learning_rate(config: Config, step: int, per_epoch: int) -> float:
    """The rate of a step: linear warm-up, then the schedule, both per step."""
    epoch = step / per_epoch
    if epoch < config.warmup_epochs:
        return config.learning_rate * (step + 1) / (config.warmup_epochs * per_epoch)
    match config.schedule:
        case "constant":
            return config.learning_rate
        case "cosine":
            done = (epoch - config.warmup_epochs) / (config.epochs - config.warmup_epochs)
            return config.learning_rate * (1 + math.cos(math.pi * done)) / 2
        case "steps":
            passed = sum(epoch >= milestone for milestone in config.milestones)
            return float(config.learning_rate * 0.1**passed)
    raise ValueError(f"schedule is 'constant', 'cosine' or 'steps'; got {config.schedule!r}")


def teacher_momentum(config: Config, step: int, total: int) -> float:
    """The share of itself that the teacher keeps after a step; "cosine" ends at 1."""
    if config.teacher_schedule == "constant":
        return config.teacher_momentum
    return 1 - (1 - config.teacher_momentum) * (1 + math.cos(math.pi * step / total)) / 2
