"""Exported policies and encoders of control, as folders that can be checked and loaded.

Shapes: B observations, K frames of a stack, S pixels of a frame, C of a crop, H width of the
latent, A dimensions of an action.

    policy.safetensors     of an agent: its encoder and its actor
    encoder.safetensors    of a probe: its encoder, instead of a policy
    config.json            of the run, from which the networks are built

A finished run keeps the weights in its folder as ``model.safetensors``.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from rl.agent import Agent, make_encoder
from rl.config import Config
from rl.encoder import Encoder
from shared.errors import UserError
from shared.experiment.config import upgraded_config
from shared.experiment.data import SUMS, check_sums
from shared.experiment.export import (
    CONFIG,
    REMEDY,
    RUN_REMEDY,
    Export,
    export_run,
    fill,
    loss_names,
    naming_damage,
    python_block,
    training_of,
)
from shared.experiment.initial import FILE
from shared.experiment.records import Record

# Deterministic actions (B, A) in [-1, 1] for observations (B, 3K, S, S), uint8.
Policy = Callable[[Tensor], Tensor]

MODEL = "model.safetensors"  # in the folder of a run
POLICY = "policy.safetensors"

# Prefixes of the names in Agent.state_dict() and Contrast.state_dict() that are exported.
POLICY_NAMES = ("contrast.encoder.", "actor.")
ENCODER_NAMES = ("encoder.",)

# The fields of a configuration that determine the networks and their input.
NETWORK_FIELDS = (
    *("frame_size", "crop", "stack"),
    *("filters", "convolutions", "latent", "hidden", "precision"),
)


def load(folder: Path) -> Policy | Encoder:
    """The policy of an exported agent, or the encoder of an exported probe, on the CPU.

    A policy maps observations (B, 3K, S, S), uint8, to mean actions, (B, A) in [-1, 1]. An encoder,
    in eval mode, maps crops of them (B, 3K, C, C), uint8, to features (B, H).
    """
    weights = POLICY if (folder / POLICY).is_file() else FILE
    check_sums(folder, REMEDY, (weights, CONFIG))
    return _build(folder / weights, REMEDY)


def read(folder: Path) -> Policy | Encoder:
    """The policy or encoder of a run's weights, on the CPU, see :func:`load`.

    They are checked against their checksum, which runs of earlier versions lack.
    """
    file = folder / MODEL
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; {RUN_REMEDY}")
    if (folder / SUMS).is_file():
        check_sums(folder, RUN_REMEDY, [MODEL])
    return _build(file, RUN_REMEDY)


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's weights and a model card into ``target``, and return it.

    An earlier export in ``target`` is replaced.
    """
    return export_run(folder, target, Config, [MODEL], _describe)


def _build(file: Path, remedy: str) -> Policy | Encoder:
    """The network of the weights in a file, built from the configuration beside it."""
    with naming_damage(file, remedy):
        fields = upgraded_config(json.loads((file.parent / CONFIG).read_text()), Config)
        config = dataclasses.replace(Config(), **{name: fields[name] for name in NETWORK_FIELDS})
        state = load_file(file)
        if any(name.startswith(POLICY_NAMES) for name in state):
            return _policy(config, state)
        return fill(lambda: make_encoder(config), _without_prefix(state))


def _without_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An encoder's tensors without the prefix that their names have in the folder of a run."""
    return {name.removeprefix(ENCODER_NAMES[0]): item for name, item in state.items()}


def _policy(config: Config, state: Mapping[str, Tensor]) -> Policy:
    # The actor's last layer gives mean and standard deviation of each dimension.
    with torch.random.fork_rng(devices=[]):  # the caller's random state must not change
        agent = Agent(config, len(state["actor.policy.4.bias"]) // 2)
    initial = agent.state_dict()
    expected = {name for name in initial if name.startswith(POLICY_NAMES)}
    if other := sorted(expected ^ set(state)):
        raise ValueError(f"missing or unexpected: {', '.join(other)}")
    agent.load_state_dict({**initial, **state})
    return partial(agent.eval().act, sample=False)


def _describe(folder: Path, record: Record) -> Export:
    config = record.config
    is_encoder = isinstance(read(folder), Encoder)
    losses = loss_names(config["objective"]) if config["contrastive"] and config["train"] else []
    if not config["train"]:
        training = training_of(config, "")
    else:
        how = f"by the contrastive loss `{' + '.join(losses)}`" if losses else "without contrast"
        budget = (
            f"{config['probe_updates']} updates on {config['probe_episodes']} episodes of a random "
            f"policy, without rewards"
            if is_encoder
            else f"{config['environment_steps']} environment steps of soft actor-critic"
        )
        training = (
            f"its encoder trained {how}:\n{budget}, batches of {config['batch_size']}, seed "
            f"{config['seed']}"
        )
    what, use = ("encoder", "features") if is_encoder else ("policy", "action")
    size = config["crop"] if is_encoder else config["frame_size"]
    shape = (1, 3 * config["stack"], size, size)
    output = (
        f"{config['latent']} features"
        if is_encoder
        else f"an action in [-1, 1] for each dimension, repeated for {config['action_repeat']}\n"
        "  environment steps; the mean of the policy, without noise"
    )
    weights: Path | bytes = folder / MODEL
    if is_encoder:
        weights = save(_without_prefix(load_file(folder / MODEL)))
    return Export(
        files={FILE if is_encoder else POLICY: weights, CONFIG: folder / CONFIG},
        name=(what, config["task"]),
        losses=losses,
        about=f"The {what} of pictures of DM Control's task `{config['task']}`, {training}",
        input=f"{config['stack']} frames of {size} x {size} pixels, RGB, 0 to 255, oldest first",
        output=output,
        loading=python_block(
            "from pathlib import Path",
            "",
            "import torch",
            "from rl.export import load",
            "",
            f'{what} = load(Path("."))  # this folder; checks every SHA-256',
            f"{use} = {what}(torch.zeros({shape}, dtype=torch.uint8))",
        ),
        pipeline="image-feature-extraction" if is_encoder else "reinforcement-learning",
        modality="tasks and renderers",
        evaluated=config["task"],
        data=f"Pictures rendered by DM Control's task `{config['task']}`.",
        projected=True,  # the exported network is the one that was scored
    )
