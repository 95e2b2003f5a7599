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
import shutil
from collections.abc import Callable, Mapping
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
from shared.experiment.data import SUMS, check_sums, sha256_of, write_sums
from shared.experiment.history import upgraded_config
from shared.experiment.records import Record, read_record
from shared.experiment.runs import replacing, write_atomically
from shared.experiment.tables import canonical_json
from shared.functions import function_name

# Deterministic actions (B, A) in [-1, 1] for observations (B, 3K, S, S), uint8.
Policy = Callable[[Tensor], Tensor]

MODEL = "model.safetensors"  # in the folder of a run
POLICY = "policy.safetensors"
ENCODER = "encoder.safetensors"
CONFIG = "config.json"
REMEDY = "copy or export it again"
RUN_REMEDY = "delete the folder and run its cell again"

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
    record = read_record(folder, folder.name)
    if record is None:
        raise UserError(f"{folder}: not a finished run (no result.json); run its cell first")
    record = record.upgraded(Config)
    if record.result["tier"] == "smoke":
        raise UserError(f"{folder}: a smoke run proves the path only; export one of another tier")
    probe = record.config["protocol"] == "state-probe-v1"
    if probe and record.config["probe_input"] == "pixels":
        raise UserError(f"{folder}: this run reads raw pixels, without an encoder; export another")
    if not probe and not record.config["train"]:
        raise UserError(
            f"{folder}: this run is the random policy, without a network; export another"
        )
    read(folder)

    weights, other = (ENCODER, POLICY) if probe else (POLICY, ENCODER)
    target.mkdir(parents=True, exist_ok=True)
    (target / other).unlink(missing_ok=True)  # one from an earlier export to the same place
    for source, name in ((MODEL, weights), (CONFIG, CONFIG)):
        with replacing(target / name) as part:
            shutil.copyfile(folder / source, part)
    sums = {name: sha256_of(target / name) for name in (weights, CONFIG)}
    write_sums(target, sums)
    write_atomically(target / "README.md", _card(record, sums))
    return target


def read(folder: Path, weights: str = MODEL) -> Policy | Encoder:
    """What the weights in a folder are of, on the CPU, see :func:`load`.

    Args:
        folder: of a run, whose weights are compared with their checksum unless an earlier version
            wrote none; or of an export, whose checksums are :func:`load`'s to compare.
        weights: the file's name.

    Raises:
        UserError: weights that are missing, damaged or another network's.
    """
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
            if fields["protocol"] == "state-probe-v1":
                return _encoder(config, state)
            return _policy(config, state)
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        remedy = RUN_REMEDY if weights == MODEL else REMEDY
        raise _damaged(file, f"{type(error).__name__}: {error}", remedy) from error


def _encoder(config: Config, state: Mapping[str, Tensor]) -> Encoder:
    _check_names(state, ENCODER_NAMES)
    encoder = make_encoder(config)
    encoder.load_state_dict({name.removeprefix("encoder."): state[name] for name in state})
    return encoder.eval()


def _policy(config: Config, state: Mapping[str, Tensor]) -> Policy:
    _check_names(state, POLICY_NAMES)
    # The actor's last layer gives mean and deviation of each dimension.
    agent = Agent(config, len(state["actor.policy.4.bias"]) // 2)
    own = agent.state_dict()
    expected = {name for name in own if name.startswith(POLICY_NAMES)}
    if missing := sorted(expected - set(state)):
        raise ValueError(f"missing: {', '.join(missing)}")
    agent.load_state_dict({**own, **state})
    return partial(agent.eval().act, sample=False)


def _check_names(state: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> None:
    if foreign := sorted(name for name in state if not name.startswith(prefixes)):
        raise ValueError(f"unexpected: {', '.join(foreign)}")


def _damaged(path: Path, reason: str, remedy: str) -> UserError:
    reason = " ".join(reason.split())
    return UserError(f"{path}: damaged or edited ({reason}); {remedy}")


# The model card


def _card(record: Record, sums: Mapping[str, str]) -> str:
    """The model card, as the Hugging Face hub reads it."""
    config, result, environment = record.config, record.result, record.environment
    probe = ENCODER in sums
    objective = config["objective"]
    losses = [function_name(objective["loss"]["function"])]
    losses += [function_name(penalty["function"]) for penalty in objective["penalties"]]
    tags = ["deep-reinforcement-learning", "dm-control"]
    if config["contrastive"] or probe:
        tags += ["contrastive-learning", *losses]
    kind = "encoder" if probe else "policy"
    name = "-".join([kind, config["task"], *tags[3:]]).replace("_", "-")
    scores = _scores(result["metrics"])
    front = {
        "license": "mit",
        "library_name": "pytorch",
        "pipeline_tag": "image-feature-extraction" if probe else "reinforcement-learning",
        "tags": tags,
        "model-index": [
            {
                "name": name,
                "results": [
                    {
                        "task": {"type": "reinforcement-learning"},
                        "dataset": {"type": config["task"], "name": f"DM Control {config['task']}"},
                        "metrics": [
                            {"type": "mean_reward" if label == "return" else "r2", "name": label}
                            | {"value": value}
                            for label, value in scores.items()
                        ],
                    }
                ],
            }
        ],
    }
    # JSON values are YAML, too.
    header = "\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items())
    data = "\n".join(f"- {name}: SHA-256 `{h}`" for name, h in environment["data"].items())
    files = "\n".join(f"- `{name}`: SHA-256 `{digest}`" for name, digest in sums.items())
    dirty = ", with uncommitted changes" if environment["dirty"] else ""
    budget = (
        "Trained in the paper's setting (tier `paper`)."
        if result["tier"] == "paper"
        else f"Not trained in the paper's setting (tier `{result['tier']}`): its numbers cannot "
        "stand beside published ones."
    )
    describe = _describe_probe if probe else _describe_policy
    return f"""---
{header}
---

# {name}

{describe(config, " + ".join(losses))}
{budget}

- Code: commit `{environment["commit"]}`{dirty}.
- Command: `{environment["command"]}`

## How to load

```python
{_lines(config, probe)}
```

## Data

Pictures rendered by DM Control's task `{config["task"]}`.

{data}

## Results

Protocol `{result["protocol"]}`, tier `{result["tier"]}`, after the last step.

{_results(result["metrics"], probe)}

## Intended use and limits

{"Features" if probe else "A policy"} for research on contrastive learning: comparison of losses on
one simulated task. One seed of one configuration, on pictures of one renderer; it is of no use on
real machines.

## Licence

MIT, as the code. DM Control has terms of its own.

## Files

{files}

## Configuration

```json
{canonical_json(config)}```
"""


def _describe_policy(config: Mapping[str, Any], losses: str) -> str:
    contrast = (
        f"whose encoder is trained by the contrastive loss `{losses}`, too"
        if config["contrastive"]
        else "without a contrastive loss"
    )
    return f"""A policy for DM Control's `{config["task"]}` from pixels: soft actor-critic
{contrast}; {config["environment_steps"]} environment steps, batches of {config["batch_size"]},
seed {config["seed"]}.

- Input: {config["stack"]} frames of {config["frame_size"]} x {config["frame_size"]} pixels, RGB,
  0 to 255, the oldest first; it sees their centre crop of {config["crop"]} pixels.
- Output: an action in [-1, 1] for each dimension, repeated for {config["action_repeat"]}
  environment steps; the mean of the policy, without noise."""


def _describe_probe(config: Mapping[str, Any], losses: str) -> str:
    training = (
        f"trained without rewards by the contrastive loss `{losses}` on\n"
        f"{config['probe_episodes']} episodes of a random policy: {config['probe_updates']} "
        f"updates, batches of {config['batch_size']}, seed {config['seed']}"
        if config["train"]
        else f"not trained at all, as initialised with seed {config['seed']}: a baseline"
    )
    return f"""An encoder of pictures of DM Control's `{config["task"]}`, {training}.

- Input: crops of {config["crop"]} x {config["crop"]} pixels of {config["stack"]} frames, RGB, 0 to
  255, the oldest first.
- Output: {config["latent"]} features."""


def _lines(config: Mapping[str, Any], probe: bool) -> str:
    """How to load and use the folder."""
    lines = ["from pathlib import Path", "", "import torch", ""]
    loading = '= load(Path("."))  # this folder; checks every SHA-256'
    if probe:
        shape = (1, 3 * config["stack"], config["crop"], config["crop"])
        return "\n".join(
            [
                *lines,
                "from rl.export import load",
                "",
                f"encoder {loading}",
                f"features = encoder(torch.zeros({shape}, dtype=torch.uint8))",
            ]
        )
    names = ("action_repeat", "frame_size", "stack", "quality", "episode_steps")
    return "\n".join(
        [
            *lines,
            "from rl.environment import DeepMindControl",
            "from rl.export import load",
            "",
            f"act {loading}",
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
    )


def _scores(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run without their details."""
    return {name: value for name, value in metrics.items() if name != "details"}


def _results(metrics: Mapping[str, Any], probe: bool) -> str:
    """The measured numbers as tables."""
    if probe:
        rows = {**_scores(metrics), **metrics["details"]["targets"]}
        lines = [f"| {name} | {value:.2f} |" for name, value in rows.items()]
        return "\n".join(["| R^2 in percent | value |", "|:--|--:|", *lines])
    lines = [
        f"| {entry['step']} | {entry['return']:.1f} | {len(entry['episodes'])} |"
        for entry in metrics["details"]["curve"]
    ]
    return "\n".join(["| environment steps | return | episodes |", "|--:|--:|--:|", *lines])
