"""Trained policies and encoders as folders that can be checked and loaded, with a model card.

Shapes: B observations, K frames of a stack, S pixels of a frame, C of a crop, H width of the
latent, A dimensions of an action.

    policy.safetensors     of an agent: its encoder and its actor
    encoder.safetensors    of a probe, in place of the policy: the encoder
    config.json            of the run, which says how the networks are built
    SHA256SUMS             of both, as sha256sum writes and checks it
    README.md              the model card

A finished run keeps the weights in its folder as ``model.safetensors``.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rl.agent import Agent, make_encoder
from rl.config import Config
from rl.encoder import Encoder
from shared.errors import UserError
from shared.experiment.data import SUMS, check_sums
from shared.experiment.export import (
    REMEDY,
    RUN_REMEDY,
    Card,
    copy_checked,
    damaged,
    exportable,
    lines_of,
    loss_names,
    python,
    write_card,
)
from shared.experiment.history import upgraded_config
from shared.experiment.records import Record

# Deterministic actions (B, A) in [-1, 1] for observations (B, 3K, S, S), uint8.
Policy = Callable[[Tensor], Tensor]

MODEL = "model.safetensors"  # in the folder of a run
POLICY = "policy.safetensors"
ENCODER = "encoder.safetensors"
CONFIG = "config.json"

# Of the names of Agent.state_dict() and of Contrast.state_dict(), what an export holds.
POLICY_NAMES = ("contrast.encoder.", "actor.")
ENCODER_NAMES = ("encoder.",)

# The fields of a configuration that decide how the networks are built and fed.
BUILDING = ("crop", "stack", "filters", "convolutions", "latent", "hidden", "precision")


def load(folder: Path) -> Policy | Encoder:
    """The policy of an exported agent, or the encoder of an exported probe, on the CPU.

    A policy takes observations (B, 3K, S, S), uint8, and gives the means of its actions, (B, A) in
    [-1, 1]. An encoder, in eval mode, takes their crops (B, 3K, C, C), uint8, and gives (B, H).

    Args:
        folder: as :func:`write` made it.

    Raises:
        UserError: no such folder, or one that is not as :func:`write` left it.
    """
    weights = POLICY if (folder / POLICY).is_file() else ENCODER
    check_sums(folder, REMEDY, (weights, CONFIG))
    return read(folder, weights)


def write(folder: Path, target: Path) -> Path:
    """Put a finished run's weights and a model card into ``target``, a folder, and return it.

    Args:
        folder: of the run.
        target: made if it is not there; files of the same names in it are replaced.

    Raises:
        UserError: a run that is not finished or has no network, or a damaged file.
    """
    record = exportable(folder, Config)
    if not record.config["train"] and not (folder / MODEL).is_file():
        raise UserError(
            f"{folder}: this run keeps no network, as random actions, raw pixels and experts do "
            "not; export another"
        )
    kind, _ = _read(folder, MODEL)

    for other in (POLICY, ENCODER):  # one may be from an earlier export to the same place
        (target / other).unlink(missing_ok=True)
    sums = copy_checked({kind.file: folder / MODEL, CONFIG: folder / CONFIG}, target)
    return write_card(target, record, _card(record, kind), sums)


def read(folder: Path, weights: str = MODEL) -> Policy | Encoder:
    """What the weights in a folder are of, by their names, on the CPU, see :func:`load`.

    Args:
        folder: of a run, whose weights are compared with their checksum unless an earlier version
            wrote none; or of an export, whose checksums are :func:`load`'s to compare.
        weights: the file's name.

    Raises:
        UserError: weights that are missing, damaged or another network's.
    """
    _, network = _read(folder, weights)
    return network


def _read(folder: Path, weights: str) -> tuple["_Kind", Policy | Encoder]:
    """What the weights are of, see :func:`read`, and of which kind that is."""
    file = folder / weights
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; delete the folder and run its cell again")
    if weights == MODEL and (folder / SUMS).is_file():
        check_sums(folder, RUN_REMEDY, [MODEL])
    try:
        fields = upgraded_config(json.loads((folder / CONFIG).read_text()), Config)
        config = dataclasses.replace(Config(), **{name: fields[name] for name in BUILDING})
        state = load_file(file)
        # Building a network draws its first weights; the caller's random numbers must not move.
        with torch.random.fork_rng(devices=[]):
            encoder = all(name.startswith(ENCODER_NAMES) for name in state)
            kind = _ENCODER if encoder else _POLICY
            return kind, kind.build(config, state)
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        remedy = RUN_REMEDY if weights == MODEL else REMEDY
        raise damaged(file, f"{type(error).__name__}: {error}", remedy) from error


def _encoder(config: Config, state: Mapping[str, Tensor]) -> Encoder:
    encoder = make_encoder(config)
    encoder.load_state_dict({name.removeprefix("encoder."): state[name] for name in state})
    return encoder.eval()


def _policy(config: Config, state: Mapping[str, Tensor]) -> Policy:
    if foreign := sorted(name for name in state if not name.startswith(POLICY_NAMES)):
        raise ValueError(f"unexpected: {', '.join(foreign)}")
    # The actor's last layer gives mean and deviation of each dimension.
    agent = Agent(config, len(state["actor.policy.4.bias"]) // 2)
    own = agent.state_dict()
    expected = {name for name in own if name.startswith(POLICY_NAMES)}
    if missing := sorted(expected - set(state)):
        raise ValueError(f"missing: {', '.join(missing)}")
    agent.load_state_dict({**own, **state})
    return partial(agent.eval().act, sample=False)


# The model card

# By protocol, what an encoder was trained on; the words are filled from the configuration.
SEEN = {
    "state-probe-v1": "{probe_episodes} episodes of a random policy",
    "imitation-return-v1": "{probe_episodes} episodes at each of three levels of an expert's skill",
}
HUB_NAMES = {"return": "mean_reward", "mean_return": "mean_reward"}  # of metrics; others are R^2


def _card(record: Record, kind: "_Kind") -> Card:
    config, metrics = record.config, record.result["metrics"]
    losses = loss_names(config["objective"])
    contrastive = ["contrastive-learning", *losses] if config["contrastive"] else []
    name = "-".join([kind.name, config["task"], *contrastive[1:]]).replace("_", "-")
    about, *points = kind.describe(config, " + ".join(losses))
    return Card(
        name=name,
        about=about,
        points=points,
        tags=("deep-reinforcement-learning", "dm-control", *contrastive),
        pipeline=kind.pipeline,
        task="reinforcement-learning",
        scores=[
            (
                {"type": config["task"], "name": f"DM Control {config['task']}"},
                [
                    {"type": HUB_NAMES.get(label, "r2"), "name": label, "value": value}
                    for label, value in _scores(metrics).items()
                ],
            )
        ],
        loading=python(*kind.lines(config)),
        data=f"Pictures rendered by DM Control's task `{config['task']}`.",
        measured=f", tier `{record.result['tier']}`, after the last step.",
        results=kind.results(metrics),
        use=f"{kind.what} for research on contrastive learning: comparison of losses on\none "
        "simulated task. One seed of one configuration, on pictures of one renderer; it is of no "
        "use on\nreal machines.",
        licence="DM Control has terms of its own.",
    )


def _describe_policy(config: Mapping[str, Any], losses: str) -> tuple[str, str, str]:
    """What it is, what goes in and what comes out."""
    contrast = (
        f"whose encoder is trained by the contrastive loss `{losses}`, too"
        if config["contrastive"]
        else "without a contrastive loss"
    )
    return (
        f"A policy for DM Control's `{config['task']}` from pixels: soft actor-critic\n"
        f"{contrast}; {config['environment_steps']} environment steps, batches of "
        f"{config['batch_size']},\nseed {config['seed']}.",
        f"Input: {config['stack']} frames of {config['frame_size']} x {config['frame_size']} "
        "pixels, RGB,\n  0 to 255, the oldest first; it sees their centre crop of "
        f"{config['crop']} pixels.",
        "Output: an action in [-1, 1] for each dimension, repeated for "
        f"{config['action_repeat']}\n  environment steps; the mean of the policy, without noise.",
    )


def _describe_encoder(config: Mapping[str, Any], losses: str) -> tuple[str, str, str]:
    """What it is, what goes in and what comes out."""
    training = (
        f"trained without rewards by the contrastive loss `{losses}` on\n"
        f"{SEEN[config['protocol']].format(**config)}: {config['probe_updates']} "
        f"updates, batches of {config['batch_size']}, seed {config['seed']}"
        if config["train"]
        else f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    )
    return (
        f"An encoder of pictures of DM Control's `{config['task']}`, {training}.",
        f"Input: crops of {config['crop']} x {config['crop']} pixels of {config['stack']} frames, "
        "RGB, 0 to\n  255, the oldest first.",
        f"Output: {config['latent']} features.",
    )


LOADING = '= load(Path("."))  # this folder; checks every SHA-256'


def _lines_of_policy(config: Mapping[str, Any]) -> list[str]:
    """How to load and use the folder."""
    names = ("action_repeat", "frame_size", "stack", "quality", "episode_steps")
    return [
        "from pathlib import Path",
        "",
        "import torch",
        "",
        "from rl.environment import DeepMindControl",
        "from rl.export import load",
        "",
        f"act {LOADING}",
        "environment = DeepMindControl(",
        f'    "{config["task"]}",',
        *(f"    {name}={json.dumps(config[name])}," for name in names),
        ")",
        "observation, _ = environment.reset(seed=0)",
        "total, done = 0.0, False",
        "while not done:",
        "    action = act(torch.from_numpy(observation)[None])[0].numpy()",
        "    observation, reward, terminated, truncated, _ = environment.step(action)",
        "    total, done = total + reward, terminated or truncated",
    ]


def _lines_of_encoder(config: Mapping[str, Any]) -> list[str]:
    """How to load and use the folder."""
    shape = (1, 3 * config["stack"], config["crop"], config["crop"])
    return [
        "from pathlib import Path",
        "",
        "import torch",
        "",
        "from rl.export import load",
        "",
        f"encoder {LOADING}",
        f"features = encoder(torch.zeros({shape}, dtype=torch.uint8))",
    ]


def _scores(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run without their details."""
    return {name: value for name, value in metrics.items() if name != "details"}


def _results_of_policy(metrics: Mapping[str, Any]) -> str:
    """The curve as a table."""
    return lines_of(
        *(
            (entry["step"], f"{entry['return']:.1f}", len(entry["episodes"]))
            for entry in metrics["details"]["curve"]
        ),
        header=("environment steps", "return", "episodes"),
        numbers=3,
    )


def _results_of_encoder(metrics: Mapping[str, Any]) -> str:
    """The measured numbers as a table."""
    rows = {**_scores(metrics), **metrics["details"]["targets"]}
    return lines_of(*rows.items(), header=("return, or R^2 in percent", "value"))


@dataclass(frozen=True)
class _Kind:
    """What an export is of, and how its card speaks of it."""

    build: Callable[[Config, Mapping[str, Tensor]], Policy | Encoder]
    name: str
    file: str
    what: str
    pipeline: str
    describe: Callable[[Mapping[str, Any], str], tuple[str, str, str]]
    lines: Callable[[Mapping[str, Any]], list[str]]
    results: Callable[[Mapping[str, Any]], str]


_POLICY = _Kind(
    _policy,
    "policy",
    POLICY,
    "A policy",
    "reinforcement-learning",
    _describe_policy,
    _lines_of_policy,
    _results_of_policy,
)
_ENCODER = _Kind(
    _encoder,
    "encoder",
    ENCODER,
    "Features",
    "image-feature-extraction",
    _describe_encoder,
    _lines_of_encoder,
    _results_of_encoder,
)
