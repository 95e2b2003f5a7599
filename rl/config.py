"""The configuration of an rl run; each default cites its source.

[CURL]: Laskin et al. 2020, Table 3, whose setting both papers follow; [program]: MishaLaskin/curl.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from shared import Objective, term
from shared.experiment.config import option
from shared.lazy import info_nce
from shared.ranges import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    STEP,
    Range,
    Use,
    require_ranges,
    require_words,
)

# Softmax cross-entropy over q W k': neither temperature nor normalisation; [CURL].
CURL = Objective(term(info_nce, temperature=1.0))

# By task of DM Control, in the order of the papers' tables; [CURL].
ACTION_REPEATS = {
    "finger_spin": 2,
    "cartpole_swingup": 8,
    "reacher_easy": 4,
    "cheetah_run": 4,
    "walker_walk": 2,
    "ball_in_cup_catch": 4,
}
TASKS = tuple(ACTION_REPEATS)


@dataclass(frozen=True)
class Config:
    """One agent. The defaults are [CURL]."""

    task: str = "cartpole_swingup"  # of TASKS; any DM Control task with a camera works
    action_repeat: int = 8  # that of ACTION_REPEATS for cartpole; the reward is summed over them
    episode_steps: int = 1000  # environment steps of an episode; DM Control's time limit
    frame_size: int = 100  # pixels, rendered; [CURL]
    crop: int = 84  # pixels, seen by the encoder; [CURL]
    stack: int = 3  # frames of an observation; [CURL]
    # Rendering quality: DM Control's own, or without multisampling and with coarser shadows, which
    # is about four times faster without a GPU and changes pixels by less than 1 / 255 on average.
    quality: Literal["full", "fast"] = "full"

    filters: int = 32  # of each convolution; [CURL]
    convolutions: int = 4  # layers; [CURL]
    latent: int = 50  # width of the embedding; [CURL]
    hidden: int = 1024  # width of actor and critic; [CURL]

    # False: the same agent on the same crops without the contrastive step.
    contrastive: bool = True
    objective: Objective = CURL
    similarity: Literal["bilinear", "cosine"] = "bilinear"  # [CURL]
    # The program updates the encoder twice with each contrastive gradient, with two Adam states;
    # the paper's pseudo-code once.
    double_step: bool = True

    batch_size: int = 512  # [CURL]; the program's published command: 128
    # Largest number of crops that the contrast's encoders take at once; the gradient is that of
    # the whole batch. None: all. See shared.chunks.
    chunk: int | None = option(None)
    environment_steps: int = 100_000  # frames of the physics, not decisions of the agent
    initial_steps: int = 1000  # decisions at random before the first update; [CURL]
    learning_rate: float = 1e-3  # of encoder, actor and critic; [CURL], cheetah 2e-4
    discount: float = 0.99  # for each decision; [CURL]
    initial_temperature: float = 0.1  # alpha of soft actor-critic; [CURL]
    temperature_learning_rate: float = 1e-4  # [CURL]
    critic_momentum: float = 0.01  # share of the online critic in its target; [CURL]
    encoder_momentum: float = 0.05  # likewise of the encoder, the key encoder; [CURL]
    update_every: int = 2  # updates between two of actor, temperature and targets; [CURL]
    # Additional; the program uses float32. "bfloat16" runs encoders, actor and critics under
    # autocast, which also rounds the critics' values; "bfloat16_convolutions" only convolutions.
    precision: Literal["float32", "bfloat16", "bfloat16_convolutions"] = "float32"

    evaluate_every: int = 10_000  # environment steps; additional: the program's grid misses 100K
    evaluation_episodes: int = 10  # [CURL]
    # False: actions stay uniformly random and nothing is trained. Of a probe: the encoder stays as
    # initialised.
    train: bool = True

    protocol: str = "dmc-return-v1"  # see rl.evaluation.PROTOCOLS
    # For the probe only, all additional. Episodes under a random policy are many and short, so that
    # quantities that are constant within one, such as reacher's target, take many values.
    probe_episodes: int = 100
    probe_test_episodes: int = 25
    probe_steps: int = 20  # decisions in each
    probe_updates: int = 500
    probe_input: Literal["embedding", "pixels"] = "embedding"  # what the regression reads

    seed: int = 0  # initialisation, batches, actions, episodes

    ranges: ClassVar[Mapping[Range, tuple[str, ...]]] = {
        COUNT: (
            *("action_repeat", "episode_steps", "stack", "filters", "convolutions", "latent"),
            *("hidden", "batch_size", "environment_steps", "update_every", "evaluate_every"),
            *("evaluation_episodes", "probe_episodes", "probe_test_episodes", "probe_steps"),
        ),
        STEP: ("initial_steps", "probe_updates"),
        SHARE: ("discount", "critic_momentum", "encoder_momentum"),
        NOT_NEGATIVE: ("learning_rate", "temperature_learning_rate"),
        POSITIVE: ("initial_temperature",),
    }
    uses: ClassVar[tuple[Use, ...]] = (
        Use(
            ("similarity", "double_step", "chunk"),
            lambda config: config.contrastive and config.train,
            "contrastive=true and train=true",
        ),
        Use(
            (
                *("environment_steps", "initial_steps", "evaluate_every", "update_every"),
                *("discount", "initial_temperature", "temperature_learning_rate"),
                "critic_momentum",
            ),
            lambda config: not isinstance(config, ProbeConfig),
            "an agent, not a probe",
        ),
        Use(
            (
                *("probe_episodes", "probe_test_episodes", "probe_steps", "probe_updates"),
                "probe_input",
            ),
            lambda config: isinstance(config, ProbeConfig),
            "a probe, not an agent",
        ),
    )

    def reduced(self) -> Self:
        """The same run of a small network on few small frames, for the smoke tier."""
        return dataclasses.replace(
            self,
            episode_steps=160,
            frame_size=40,
            crop=32,
            quality="fast",
            filters=8,
            latent=16,
            hidden=32,
            batch_size=16,
            environment_steps=320,
            initial_steps=16,
            evaluate_every=160,
            evaluation_episodes=2,
            probe_episodes=10,
            probe_test_episodes=5,
            probe_steps=10,
            probe_updates=20,
        )


@dataclass(frozen=True)
class ProbeConfig(Config):
    """One contrastive encoder, trained without an agent, and a probe of the state in its features.

    It has the fields of an agent's configuration, as the records of both always had.
    """

    protocol: str = "state-probe-v1"


def check(config: Config) -> None:
    """Check a configuration before anything is rendered."""
    require_words(config)
    require_ranges(config)
    if not 1 <= config.crop <= config.frame_size:
        raise ValueError(
            f"crop {config.crop} must be from 1 to frame_size {config.frame_size}, in pixels"
        )
    probe = isinstance(config, ProbeConfig)
    decisions = config.probe_steps if probe else config.episode_steps // config.action_repeat
    if decisions < config.stack:
        raise ValueError(
            f"episodes of {decisions} decisions never fill a stack of {config.stack} frames: "
            f"lower stack, or raise {'probe_steps' if probe else 'episode_steps'}"
        )
    usual = ACTION_REPEATS.get(config.task, config.action_repeat)
    if config.action_repeat != usual:
        text = f"CURL's action_repeat of {config.task} is {usual}; this run has "
        warnings.warn(f"{text}{config.action_repeat}", stacklevel=2)
    if isinstance(config, ProbeConfig):
        _check_probe(config)
    elif config.train:
        updated = config.environment_steps // config.action_repeat
        if not 1 <= config.initial_steps < updated:
            raise ValueError(
                f"initial_steps {config.initial_steps}, decisions at random, are from 1 to "
                f"{updated - 1}: the run has {updated} decisions, and none is left to train in"
            )


def _check_probe(config: ProbeConfig) -> None:
    if config.protocol != ProbeConfig.protocol:
        raise ValueError(f"protocol is {ProbeConfig.protocol!r} here; got {config.protocol!r}")
    if not config.contrastive:
        raise ValueError(
            "a probe's encoder is trained by the contrastive step alone: for an untrained one set "
            "train=False, not contrastive=False"
        )
    if config.train and config.probe_input == "pixels":
        raise ValueError("nothing here reads an encoder: set train=False")
    if config.probe_episodes < 5:
        raise ValueError(
            f"the probe needs 5 training episodes; probe_episodes gives {config.probe_episodes}"
        )
