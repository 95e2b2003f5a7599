"""Training and evaluation of an agent from pixels: one readable loop.

Shapes: A dimensions of an action, B of a batch.
"""

# In the order of a run:
#   measure, check_agent   a run: what is refused and recorded before anything is rendered
#   train_with             the loop: act -> environment -> replay -> update, evaluated on the way
#     make_update          an update of rl.agent.Agent, as a CUDA graph where it can be captured
#     evaluation           returns of some episodes, one entry of the curve
#   summary_of             the metrics of the protocol, from the curve
#   write_curve, save_weights    what the run leaves beside its result

import contextlib
import csv
import functools
import io
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from gymnasium.vector import VectorEnv
from safetensors.torch import save_file
from torch import Tensor

from rl.agent import Agent
from rl.config import Config, check
from rl.environment import make_environment, make_vector, settings_of
from rl.evaluation import SUMMARIES, Curve, evaluation_seeds, returns
from rl.replay import Draw, Replay
from rl.simulator import renderer_in_use, task_fingerprint
from shared.capture import Captured, can_capture
from shared.experiment.data import sha256_of, write_sums
from shared.experiment.files import replacing, write_atomically
from shared.experiment.run import Run

SAVE_EVERY = 120.0  # seconds between two checkpoints
LOG_EVERY = 100  # updates averaged in a line of the log

Update = Callable[[Draw, int], dict[str, Tensor]]
Environments = VectorEnv[Any, Any, Any]


class Progress:
    """The loop's state for checkpoints, besides networks and replay: environment and curve."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment  # see train_with
        self.curve: list[dict[str, float]] = []  # one entry for each evaluation

    def state_dict(self) -> dict[str, Any]:
        """The environment in mid-episode, and the curve."""
        return {"environment": self.environment.snapshot(), "curve": self.curve}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore environment and curve."""
        self.environment.restore(state["environment"])
        self.curve = state["curve"]


def measure(config: Config, run: Run) -> dict[str, Any]:
    """Soft actor-critic with the contrastive step, evaluated during training.

    Steps are environment steps everywhere except inside this loop, which counts the agent's
    decisions, of ``action_repeat`` environment steps each.

    Args:
        config: what to do.
        run: where it is logged, saved and resumed from.

    Returns:
        The metrics of the protocol, see :data:`rl.evaluation.SUMMARIES`, and the curve as details.

    Raises:
        ValueError: an unknown protocol, numbers of steps that do not divide, or what
            :func:`rl.config.check` refuses.
        FloatingPointError: training or simulation diverged.
    """
    check_agent(config)
    run.record_data(**{config.task: task_fingerprint(config.task)})
    run.record(renderer=renderer_in_use())
    return train_with(
        config,
        run,
        functools.partial(make_environment, config),
        evaluation_environments,
        episodes=1 + config.environment_steps // config.episode_steps,
    )


def check_agent(config: Config) -> None:
    """Check the configuration of an agent before anything is rendered."""
    if config.protocol not in SUMMARIES:
        known = ", ".join(SUMMARIES)
        raise ValueError(f"no protocol {config.protocol!r} for agents; there are {known}")
    check(config)
    if config.evaluate_every % config.action_repeat or (
        config.environment_steps % config.evaluate_every
    ):
        raise ValueError(
            f"evaluate_every {config.evaluate_every} must be a multiple of action_repeat "
            f"{config.action_repeat} and divide environment_steps {config.environment_steps}"
        )


def train_with(
    config: Config,
    run: Run,
    make: Callable[[], Any],
    several: Callable[[Config, Run], Environments],
    *,
    episodes: int | None,
) -> dict[str, Any]:
    """The same in any :class:`rl.environment.Environment`.

    The configuration has been checked. ``make`` makes the environment to train in, ``several``
    those for all episodes of an evaluation; ``episodes`` are expected in training (None: any).
    """
    if not config.train:
        with contextlib.closing(several(config, run)) as environments:
            (dimensions,) = environments.single_action_space.shape or ()
            policy = random_policy(config, dimensions)
            entry = evaluation(config, run, environments, policy, config.environment_steps)
        return summary_of(config, [entry])

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with contextlib.ExitStack() as opened:
        environment = opened.enter_context(contextlib.closing(make()))
        dimensions = environment.action_space.shape[0]
        decisions = config.environment_steps // config.action_repeat
        agent = Agent(config, dimensions, device=device)
        replay = Replay(
            run.folder / "replay",
            decisions,
            frame_size=config.frame_size,
            stack=config.stack,
            action_dimensions=dimensions,
            device=device,
            episodes=episodes,
        )
        progress = Progress(environment)
        run.keep_checkpoint = False
        run.temporary.append(replay.folder)  # the checkpoint cannot be used without it
        run.track(agent=agent, **agent.optimisers, replay=replay, progress=progress)
        update = make_update(agent, replay, config)
        environments = opened.enter_context(contextlib.closing(several(config, run)))

        def act(observation: Tensor) -> Tensor:
            return agent.act(observation.to(device), sample=False).cpu()

        for step in run.steps(
            decisions,
            "environment steps",
            unit=config.action_repeat,
            log_every=LOG_EVERY,
            save_every=SAVE_EVERY,
        ):
            if step == 0:
                _begin_episode(environment, replay, config.seed)
            updates = step >= config.initial_steps
            if updates:
                observation = torch.from_numpy(environment.observation)[None].to(device)
                action = agent.act(observation, sample=True)[0].cpu().numpy()
                # On a GPU this returns at once: physics and rendering run in parallel with it.
                run.means.add(update(replay.draw(config.batch_size, config.crop), step))
            else:
                action = (2 * torch.rand(dimensions) - 1).numpy()
            _, reward, terminated, truncated, _ = environment.step(action)
            replay.add(action, reward, environment.frame, terminated)
            if terminated or truncated:
                _begin_episode(environment, replay)

            done = (step + 1) * config.action_repeat
            if updates and ((step + 1) % LOG_EVERY == 0 or step + 1 == decisions):
                agent.check_finite(step)
            if done % config.evaluate_every == 0:
                progress.curve.append(evaluation(config, run, environments, act, done))
                _report_evaluation(config, run, progress.curve)
        save_weights(run, agent, ("contrast.encoder.", "actor."))
        return summary_of(config, progress.curve)


def _begin_episode(environment: Any, replay: Replay, seed: int | None = None) -> None:
    """Begin an episode; with a seed the first."""
    environment.reset(seed=seed)
    replay.begin(environment.frame)


def _report_evaluation(config: Config, run: Run, curve: list[dict[str, Any]]) -> None:
    """Log, show and write the last evaluation of the curve."""
    done, scores = curve[-1]["step"], {"evaluation": curve[-1]["return"]}
    run.log(done, **scores)
    if run.watch and len(curve) % run.watch == 0:
        run.show(done, config.environment_steps, "environment steps", **scores)
    write_curve(run, config, curve)


def evaluation(
    config: Config,
    run: Run,
    environments: Environments,
    act: Callable[[Tensor], Tensor],
    step: int,
) -> dict[str, Any]:
    """One entry of the curve: the returns after ``step`` environment steps."""
    seeds = evaluation_seeds(config, step)
    sums = returns(act, environments, seeds)
    return {"step": step, "return": fmean(sums), "episodes": sums, "seconds": round(run.seconds, 1)}


def evaluation_environments(config: Config, run: Run) -> Environments:
    """Environments for all episodes of an evaluation; side by side where the run has workers."""
    return make_vector(config.evaluation_episodes, run.workers, **settings_of(config))


def summary_of(config: Config, curve: Curve) -> dict[str, Any]:
    """The metrics of a run by its protocol, and all evaluations as its details."""
    return {**SUMMARIES[config.protocol](curve), "details": {"curve": list(curve)}}


def random_policy(config: Config, dimensions: int) -> Callable[[Tensor], Tensor]:
    """Uniformly random actions (B, A), independent of the observation, seeded by the run's seed."""
    generator = torch.Generator().manual_seed(config.seed)

    def act(observation: Tensor) -> Tensor:
        return 2 * torch.rand(len(observation), dimensions, generator=generator) - 1

    return act


def write_curve(run: Run, config: Config, curve: list[dict[str, Any]]) -> None:
    """Write the evaluations so far to ``curve.csv``: task, seed, step, return, seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", "seed", "step", "return", "seconds"])
    for entry in curve:
        row = (entry[name] for name in ("step", "return", "seconds"))
        writer.writerow([config.task, config.seed, *row])
    write_atomically(run.folder / "curve.csv", text.getvalue())


def make_update(agent: Agent, replay: Replay, config: Config) -> Update:
    """One update of the agent from a draw; on a GPU as captured graphs if possible.

    An update consists of many small kernels, whose launches take longer than their work. Inside a
    graph nothing can synchronise with the device, which frames that did not fit on the GPU require,
    and some objectives, see :attr:`shared.Objective.synchronises`.
    """

    def update(draw: Draw, step: int) -> dict[str, Tensor]:
        return agent.update(replay.batch(draw, config.crop), step)

    if not (can_be_captured(config) and can_capture(replay.home)):
        return update

    number = 0

    def eager(*draw: Tensor) -> dict[str, Tensor]:
        return update(Draw(*draw), number)

    def changed() -> list[Tensor]:
        """Weights, moving averages, and the states of the optimisers."""
        states = [
            state for optimiser in agent.optimisers.values() for state in optimiser.state.values()
        ]
        tensors = [
            value for state in states for value in state.values() if isinstance(value, Tensor)
        ]
        return [*agent.parameters(), *agent.buffers(), *tensors]

    # Updates with a step of the actor, and those without.
    graphs = {actor: Captured(eager, replay.device, changed=changed) for actor in (True, False)}

    def replayed(draw: Draw, step: int) -> dict[str, Tensor]:
        nonlocal number
        number = step
        parts = graphs[step % config.update_every == 0](draw.index, draw.offsets)
        return agent.contrast.criterion.checked_parts(parts, step)

    return replayed


def can_be_captured(config: Config) -> bool:
    """Whether no update synchronises with the device."""
    in_chunks = config.chunk is not None  # which go back and forth by themselves
    return not config.contrastive or not (config.objective.synchronises or in_chunks)


def save_weights(run: Run, module: torch.nn.Module, prefixes: tuple[str, ...]) -> None:
    """Write the weights for acting or embedding to ``model.safetensors``, with ``SHA256SUMS``."""
    weights = {
        name: value.contiguous()
        for name, value in module.state_dict().items()
        if name.startswith(prefixes)
    }
    file = run.folder / "model.safetensors"
    with replacing(file) as part:
        save_file(weights, part)
    write_sums(run.folder, {file.name: sha256_of(file)})
