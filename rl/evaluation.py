"""Evaluation of policies and of encoders: protocols, named and versioned.

``dmc-return-v1``: the sum of the rewards of an episode, mean over episodes. The policy acts without
noise, in environments that training never sees and whose seeds it never uses.

``dmc-return-v2``: the same, and the mean over the evaluations of a run from a fifth of its steps
on, which varies less between seeds than the last one.

``state-probe-v1``: how well the physics state can be predicted linearly from the features of a
stack of frames. Features are standardised by their mean and deviation on the training frames;
targets need not be, since the free intercept and R^2 do not depend on their scale. One penalty for
all targets is chosen from ``PENALTIES``, which are relative to the mean diagonal of the training
frames' kernel matrix (the number of features that vary) and so are comparable for any number of
features. The penalty with the best R^2, mean over targets and five folds of whole training
episodes, is used on all training frames; ties go to the smallest. The score is R^2 on the test
frames, relative to their own mean. The regression is solved in dual form, with a frames x frames
matrix, which suits fifty features as well as raw pixels.

Shapes: n frames (m of the test part), d features, t targets, E episodes, K frames of a stack, S
pixels of a frame, C pixels of a crop, H width of the embedding, A dimensions of an action.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from threadpoolctl import threadpool_limits
from torch import Tensor

from rl.config import Config
from rl.data import Frames
from rl.encoder import Encoder
from rl.environment import Make, checked_maker, make_environment, vector_of
from rl.replay import gather
from shared.modes import evaluating

PROTOCOLS = ("dmc-return-v1", "dmc-return-v2", "state-probe-v1")

Curve = Sequence[Mapping[str, Any]]  # of each evaluation ``step`` and ``return`` at least


def last_return(curve: Curve) -> dict[str, Any]:
    """The metrics of ``dmc-return-v1``: the last evaluation's return."""
    return {"return": curve[-1]["return"]}


def last_and_mean_return(curve: Curve) -> dict[str, Any]:
    """The metrics of ``dmc-return-v2``, see above."""
    late = [entry["return"] for entry in curve if entry["step"] >= SETTLED * curve[-1]["step"]]
    return {"mean_return": fmean(late), **last_return(curve)}


# By protocol, the metrics of an agent's evaluations.
SUMMARIES: Mapping[str, Callable[[Curve], dict[str, Any]]] = {
    "dmc-return-v1": last_return,
    "dmc-return-v2": last_and_mean_return,
}
SETTLED = 1 / 5  # of a run's steps

# Separates the seeds of evaluation from any that training derives from the same number.
STREAM = 0x65766131
FOLDS = 5
# Of the kernel's mean diagonal.
PENALTIES: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(-10, 9))
COLUMNS = 1024  # features that are held in float64 at a time


def evaluate_policy(
    act: Callable[[Tensor], Tensor],
    config: Config,
    *,
    seed: int,
    make: Make | None = None,
    workers: int = 1,
) -> list[float]:
    """Returns of ``config.evaluation_episodes`` episodes, under the protocol ``dmc-return-v1``.

    The episodes run in lock-step. The result is the same for any number of workers.

    Args:
        act: observations (E, 3K, S, S) uint8 on the CPU -> actions (E, A) in [-1, 1], on any
            device.
        config: names the task and its frames.
        seed: not negative; other seeds give other episodes.
        make: your environment, as of :func:`rl.train_agent`, in place of a task of DM Control.
        workers: with more than one, every environment runs in a separate process.

    Raises:
        ValueError: what :class:`rl.Environment` refuses of ``make``.
        FloatingPointError: a reward or state that is not finite.
    """
    seeds = [episode_seed(seed, episode) for episode in range(config.evaluation_episodes)]
    make_one = checked_maker(config, make) if make else partial(make_environment, config)
    with contextlib.closing(vector_of(make_one, len(seeds), workers)) as environments:
        return returns(act, environments, seeds)


def episode_seed(seed: int, episode: int, millions: int = 0) -> int:
    """The seed, below 2^32, with which an episode of an evaluation starts."""
    # A sequence that ends in zero is the one without it.
    return int(np.random.SeedSequence((STREAM, seed, episode, millions)).generate_state(1)[0])


def evaluation_seeds(config: Config, step: int) -> list[int]:
    """The seeds of a run's evaluation after ``step`` environment steps, independent of the run."""
    millions, rest = divmod(step, 1_000_000)
    seed = config.seed * 1_000_000 + rest
    return [episode_seed(seed, episode, millions) for episode in range(config.evaluation_episodes)]


@torch.no_grad()
def returns(
    act: Callable[[Tensor], Tensor],
    environments: VectorEnv[Any, Any, Any],
    seeds: Sequence[int],
) -> list[float]:
    """Sum of the rewards of one episode of each environment.

    environments: one for each seed; their earlier episodes have no influence. act: see
    :func:`evaluate_policy`.
    """
    # The base class declares one number; both vector classes take one for each environment.
    observations, _ = environments.reset(seed=list(seeds))  # type: ignore[arg-type]
    sums = np.zeros(len(seeds))
    running = np.ones(len(seeds), dtype=bool)
    while running.any():
        chosen = act(torch.from_numpy(observations))
        wanted = environments.action_space.shape
        if not isinstance(chosen, Tensor) or tuple(chosen.shape) != wanted:
            shape = tuple(chosen.shape) if hasattr(chosen, "shape") else ""
            raise ValueError(
                f"act returns actions, a tensor {wanted}; got {type(chosen).__name__} {shape}"
            )
        actions = chosen.detach().float().cpu().numpy()
        observations, rewards, terminated, truncated, _ = environments.step(actions)
        sums[running] += rewards[running]
        ended = terminated | truncated
        running &= ~ended
        if ended.any() and running.any():
            # A vector steps as a whole: finished environments continue with an ignored episode.
            observations, _ = environments.reset(options={"reset_mask": ended})
    return [float(total) for total in sums]


@torch.no_grad()
def embed(
    encoder: Encoder,
    frames: Frames,
    *,
    crop: int,
    stack: int,
    precision: str,
    batch_size: int = 128,
) -> Tensor:
    """Embeddings (n, H), float32, on the CPU, of the stack that ends with each frame.

    The encoder may be on any device; its mode is restored. With the precision "bfloat16" it runs
    under autocast.
    """
    device = next(encoder.parameters()).device
    half = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with half, evaluating(encoder):
        parts = [
            encoder(centre_crops(frames, rows, crop, stack).to(device)).float()
            for rows in torch.arange(len(frames.frames)).split(batch_size)
        ]
    return torch.cat(parts).cpu()


def pixels(frames: Frames, crop: int, stack: int) -> Tensor:
    """The encoder's input for each frame, flattened, (n, 3K C C), float32 in [0, 1]."""
    rows = torch.arange(len(frames.frames))
    return centre_crops(frames, rows, crop, stack).flatten(1).float().div_(255)


def centre_crops(frames: Frames, rows: Tensor, crop: int, stack: int) -> Tensor:
    """Centre crops (B, 3K, C, C), uint8, of the stacks that end with the frames ``rows`` (B,)."""
    corner = (frames.frames.shape[-1] - crop) // 2
    offsets = torch.full((len(rows), 2), corner)
    first = frames.first[rows]
    return gather(frames.frames, rows, first, offsets, stack=stack, crop=crop)


def state_probe(
    train: Tensor,
    train_state: Tensor,
    train_episode: Tensor,
    test: Tensor,
    test_state: Tensor,
    names: Sequence[str],
) -> dict[str, Any]:
    """R^2 in percent of the protocol ``state-probe-v1``, the same for any number of threads.

    Keys of the result: ``r2``, the mean over all targets; ``r2_velocity``, over those whose name
    starts with "velocity"; ``r2_position``, over the others except touch sensors (both only if
    there are such targets); ``details``: ``targets``, R^2 of each target by name, ``penalty``, the
    chosen one of ``PENALTIES``, and ``left_out``, the names of targets that are constant on the
    training frames or on the test frames.

    Args:
        train: features (n, d) of the training frames.
        train_state: their targets (n, t).
        train_episode: the episode (n,) of each.
        test: features (m, d) of frames of other episodes.
        test_state: their targets (m, t).
        names: of the targets.

    Raises:
        ValueError: shapes that do not fit, features or targets that are not finite, fewer than five
            training episodes, or no target that varies.
    """
    sets = {"train": (train, train_state), "test": (test, test_state)}
    for part, (features, state) in sets.items():
        if features.ndim != 2 or features.shape[1] != train.shape[1]:
            raise ValueError(f"{part} features are (n, d); got {tuple(features.shape)}")
        if tuple(state.shape) != (len(features), len(names)):
            raise ValueError(
                f"{part} states are {(len(features), len(names))} for these features and names; "
                f"got {tuple(state.shape)}"
            )
        if not torch.isfinite(state).all():
            raise ValueError(f"{part} states are not finite")
    groups = train_episode.cpu().numpy()
    if groups.shape != (len(train),):
        raise ValueError(f"train_episode is ({len(train)},); got {groups.shape}")
    if len(np.unique(groups)) < FOLDS:
        raise ValueError(
            f"the penalty is chosen in {FOLDS} folds of whole episodes; "
            f"got {len(np.unique(groups))} training episodes"
        )
    # Before the number of threads is limited: it loads a BLAS of its own.
    from sklearn.metrics import r2_score

    targets, scored = train_state.cpu().double().numpy(), test_state.cpu().double().numpy()
    varying = (np.ptp(targets, axis=0) > 0) & (np.ptp(scored, axis=0) > 0)
    if not varying.any():
        raise ValueError("no target varies on both the training frames and the test frames")
    targets, scored = targets[:, varying], scored[:, varying]

    # Sums in BLAS depend on the number of threads; the result must not.
    with threadpool_limits(1, user_api="blas"):
        kernel, test_kernel = kernels(_array(train), _array(test))
        scale = kernel.diagonal().mean() or 1.0  # 0 where no feature varies: the mean is predicted
        kernel, test_kernel = kernel / scale, test_kernel / scale
        penalty = choose_penalty(kernel, targets, groups)
        (predicted,) = ridge(kernel, targets, test_kernel, (penalty,))
    scores = 100 * r2_score(scored, predicted, multioutput="raw_values")

    scored_names = [name for name, varies in zip(names, varying, strict=True) if varies]
    velocity = np.array([name.startswith("velocity") for name in scored_names])
    touch = np.array([name.startswith("touch") for name in scored_names])
    result: dict[str, Any] = {"r2": float(scores.mean())}
    for key, members in (("r2_position", ~velocity & ~touch), ("r2_velocity", velocity)):
        if members.any():
            result[key] = float(scores[members].mean())
    result["details"] = {
        "targets": {name: float(score) for name, score in zip(scored_names, scores, strict=True)},
        "penalty": penalty,
        "left_out": [name for name, varies in zip(names, varying, strict=True) if not varies],
    }
    return result


def _array(features: Tensor) -> np.ndarray:
    """Features without gradient, in float32 at least."""
    wide = torch.promote_types(features.dtype, torch.float32)
    array: np.ndarray = features.detach().cpu().to(wide).numpy()
    return array


def kernels(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inner products (n, n) and (m, n), float64, of features standardised by the training part.

    A feature that is constant on the training frames is ignored.
    """
    kernel = np.zeros((len(train), len(train)))
    test_kernel = np.zeros((len(test), len(train)))
    for start in range(0, train.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        block, other = train[:, columns].astype(np.float64), test[:, columns].astype(np.float64)
        if not (np.isfinite(block).all() and np.isfinite(other).all()):
            raise ValueError("features are not finite")
        # Not by the standard deviation, which rounding makes positive for equal values.
        varying = np.ptp(block, axis=0) > 0
        mean, deviation = block.mean(0)[varying], block.std(0)[varying]
        block = (block[:, varying] - mean) / deviation
        other = (other[:, varying] - mean) / deviation
        kernel += block @ block.T
        test_kernel += other @ block.T
    return kernel, test_kernel


def ridge(
    kernel: np.ndarray, targets: np.ndarray, other: np.ndarray, penalties: Sequence[float]
) -> np.ndarray:
    """Predictions (penalties, m, t) of ridge regression with a free intercept.

    One eigendecomposition serves all penalties, which are positive and added to the kernel's
    diagonal.

    kernel: inner products (n, n) of the features of the fitted rows. targets: (n, t), of these
    rows. other: inner products (m, n) of the rows to predict with those.
    """
    from sklearn.preprocessing import KernelCenterer

    centre = KernelCenterer().fit(kernel)
    values, vectors = np.linalg.eigh(centre.transform(kernel))
    # The kernel matrix has no negative eigenvalues except by rounding.
    values = values.clip(min=0)[:, None]
    rotated = vectors.T @ (targets - targets.mean(0))
    basis = centre.transform(other) @ vectors
    return np.stack(
        [targets.mean(0) + basis @ (rotated / (values + penalty)) for penalty in penalties]
    )


def choose_penalty(kernel: np.ndarray, targets: np.ndarray, groups: np.ndarray) -> float:
    """The penalty of ``PENALTIES`` with the best R^2, mean over targets and folds of whole groups.

    kernel: inner products (n, n) of the features. targets: (n, t). groups: (n,), the group of each
    row; at least as many as folds.
    """
    from sklearn.metrics import r2_score
    from sklearn.model_selection import GroupKFold

    scores = np.zeros(len(PENALTIES))
    for fit, validate in GroupKFold(FOLDS).split(targets, groups=groups):
        inner, outer = kernel[np.ix_(fit, fit)], kernel[np.ix_(validate, fit)]
        predicted = ridge(inner, targets[fit], outer, PENALTIES)
        scores += [r2_score(targets[validate], of) for of in predicted]
    return PENALTIES[int(np.argmax(scores))]
