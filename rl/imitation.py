"""An encoder trained on an expert's frames only, and the return of a policy on its features.

The frames come from an expert at three levels of skill, one fixed set for all seeds; the encoder is
trained without rewards and actions. A head on the frozen features is then fitted to the expert's
action in each frame, and its return is measured.

Shapes: n frames, d features, A dimensions of an action, B observations, K frames of a stack, C
pixels of a crop.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rl.agent import adam, autocast, descend, perceptron
from rl.config import ImitationConfig, check
from rl.data import Frames, expert_frames, frames_fingerprint
from rl.encoder import Encoder
from rl.environment import make_vector, renderer_in_use, settings_of, task_fingerprint
from rl.evaluation import centre_crops, evaluation_seeds, returns, state_probe
from rl.expert import Expert, mean_action, trained_expert
from rl.probe import STRIDE, part_of, pretrain, state_so_far
from rl.train import random_policy, save_weights
from shared.experiment.domain import Metrics
from shared.experiment.run import Run

# Crops (B, 3K, C, C) uint8 -> features (B, d) float32, on the CPU.
Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Material:
    """What all rows and seeds of a task share: the expert, its frames, and its actions in them.

    actions: in the training frames and in the test frames, (n, A) float32 in [-1, 1].
    """

    expert: Expert
    train: Frames
    test: Frames
    actions: tuple[Tensor, Tensor]


def measure(config: ImitationConfig, run: Run) -> Metrics:
    """Train an encoder on an expert's frames, fit a head to its actions, and measure its return.

    The expert and its frames are made by the first run that needs them.
    """
    check(config)
    run.record(renderer=renderer_in_use())
    material = material_of(config, run)
    fingerprint = frames_fingerprint(material.train), frames_fingerprint(material.test)
    run.record_data(
        **{config.task: task_fingerprint(config.task)},
        expert=material.expert.fingerprint,
        frames=fingerprint[0],
        test_frames=fingerprint[1],
    )
    if config.acts != "head":
        return evaluate_policy(
            config, run, policy_without_features(config, material), {"observe": "state"}
        )

    if config.probe_input == "pixels":
        features = principal_components(config, material.train)
    else:
        run.score = partial(state_so_far, config, material.train, material.test)
        contrast = pretrain(config, material.train, run)
        save_weights(run, contrast, ("encoder.",))
        features = feature_extractor(config, contrast.encoder.eval())
    train, test = (
        extract_features(config, features, part) for part in (material.train, material.test)
    )
    from sklearn.metrics import r2_score

    head = fit_head(config, train, material.actions[0])
    agreement = 100 * float(r2_score(material.actions[1].numpy(), head(test).numpy()))

    read = state_probe(
        train[::STRIDE],
        material.train.state[::STRIDE],
        material.train.episode[::STRIDE],
        test[::STRIDE],
        material.test.state[::STRIDE],
        material.train.names,
    )

    def act(observation: Tensor) -> Tensor:
        side = (observation.shape[-1] - config.crop) // 2
        window = slice(side, side + config.crop)
        return head(features(observation[:, :, window, window]))

    result = evaluate_policy(config, run, act, {})
    details = result["details"] | read.pop("details")
    return {**result, "action_r2": agreement, **read, "details": details}


def material_of(config: ImitationConfig, run: Run) -> Material:
    """The expert of a configuration's task, and its frames; made unless they are stored."""
    expert = trained_expert(
        config.task,
        config.action_repeat,
        episode_steps=config.episode_steps,
        decisions=config.expert_decisions,
        seed=config.material_seed,
        data_root=run.data_root,
        progress=run.progress,
    )
    frames = expert_frames(
        expert,
        config.task,
        config.action_repeat,
        episodes=config.probe_episodes,
        test_episodes=config.probe_test_episodes,
        steps=config.probe_steps,
        frame_size=config.frame_size,
        quality=config.quality,
        seed=config.material_seed,
        data_root=run.data_root,
        progress=run.progress,
    )
    cut = len(expert.policies) * config.probe_episodes * config.probe_steps
    train, test = part_of(frames, 0, cut), part_of(frames, cut, len(frames.frames))
    best = expert.policies["expert"]
    actions = tuple(
        torch.from_numpy(mean_action(best, part.state.numpy())) for part in (train, test)
    )
    return Material(expert, train, test, (actions[0], actions[1]))


def policy_without_features(
    config: ImitationConfig, material: Material
) -> Callable[[Tensor], Tensor]:
    """A policy without features: the expert on states (B, n), or uniformly random actions."""
    if config.acts == "random":
        return random_policy(config, material.actions[0].shape[1])
    best = material.expert.policies["expert"]
    return lambda state: torch.from_numpy(mean_action(best, state.numpy()))


def evaluate_policy(
    config: ImitationConfig, run: Run, act: Callable[[Tensor], Tensor], others: dict[str, Any]
) -> dict[str, Any]:
    """The return of a policy over a configuration's episodes, each in a separate environment.

    act: observations (B, ...) -> actions (B, A). others: further settings of the environments.
    """
    seeds = evaluation_seeds(config, config.environment_steps)
    decisions = config.episode_steps // config.action_repeat
    settings = settings_of(config) | others
    with contextlib.closing(make_vector(len(seeds), run.workers, **settings)) as environments:
        sums = returns(act, environments, seeds, decisions, run.progress)
    return {"return": fmean(sums), "details": {"episodes": sums}}


def feature_extractor(config: ImitationConfig, encoder: Encoder) -> Features:
    """Features of an encoder on any device."""
    device = next(encoder.parameters()).device

    @torch.no_grad()
    def features(crops: Tensor) -> Tensor:
        crops = crops.to(device)
        with autocast(config, crops):
            embedded: Tensor = encoder(crops)
        return embedded.float().cpu()

    return features


def principal_components(config: ImitationConfig, frames: Frames) -> Features:
    """As many principal components of raw pixels as an encoder's embedding is wide."""
    rows = torch.arange(0, len(frames.frames), STRIDE)
    pixels = centre_crops(frames, rows, config.crop, config.stack).flatten(1).float().div_(255)
    mean = pixels.mean(0)
    pixels -= mean
    # By the Gram matrix, since there are fewer frames than pixels.
    values, vectors = torch.linalg.eigh((pixels @ pixels.T).double())
    count = min(config.latent, len(rows) - 1)
    values, vectors = values[-count:], vectors[:, -count:]
    # Unit variance on these frames; the floor damps components that are only rounding.
    floor = float(values[-1]) * 1e-9
    scale = (values / len(rows)).clamp(min=floor).sqrt()
    components = pixels.T @ (vectors / values.clamp(min=floor).sqrt()).float()
    return lambda crops: (crops.flatten(1).float().div(255) - mean) @ components / scale.float()


def extract_features(config: ImitationConfig, features: Features, frames: Frames) -> Tensor:
    """The features (n, d) of the centre-cropped stack that ends with each frame."""
    parts = torch.arange(len(frames.frames)).split(128)
    return torch.cat(
        [features(centre_crops(frames, rows, config.crop, config.stack)) for rows in parts]
    )


def fit_head(
    config: ImitationConfig, features: Tensor, actions: Tensor
) -> Callable[[Tensor], Tensor]:
    """A head fitted to actions by least squares: features (B, d) -> actions (B, A) in [-1, 1].

    It standardises the features (n, d), and has two hidden layers. Its random numbers depend on the
    seed only, so that all rows of a seed have the same initial head and order of batches.
    """
    if not torch.isfinite(features).all():
        raise ValueError("features are not finite; the encoder has diverged")
    mean, deviation = features.mean(0), features.std(0)
    # Constant features are dropped, including those that vary by rounding only.
    scale = torch.where(features.amax(0) > features.amin(0), 1 / deviation, 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = perceptron(features.shape[1], config.head_hidden, actions.shape[1])
        optimiser = adam(network.parameters(), config.head_learning_rate)
        for _ in range(config.head_updates):
            rows = torch.randint(len(features), (config.head_batch,))
            inputs = (features[rows] - mean) * scale
            descend((network(inputs).tanh() - actions[rows]).square().mean(), optimiser)

    @torch.no_grad()
    def head(inputs: Tensor) -> Tensor:
        action: Tensor = network((inputs - mean) * scale).tanh()
        return action

    return head
