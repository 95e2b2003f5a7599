"""Films of the policies of finished runs: one episode each, as a GIF.

Shapes: A dimensions of an action, P pixels of a film.
"""

import contextlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from rl.environment import make_environment
from rl.evaluation import evaluation_seeds
from rl.export import read
from rl.tables import AGENTS
from rl.train import random_policy
from shared.errors import UserError
from shared.experiment.files import replacing
from shared.experiment.frame import load
from shared.experiment.tables import TIERS, Tier
from shared.report.figures import FinishedRun, finished, no_runs_of

FILM = "episode.gif"  # in the folder of a run
PACE = 50  # milliseconds between frames; decisions of the six tasks take 40 to 80


def write(paper: str, tier: Tier, runs: Path) -> list[Path]:
    """Film one episode of the policy of each finished run of a paper's agents, in a tier.

    The episode starts like the first one of the run's last evaluation. The films, ``episode.gif``,
    are in each run's folder below ``runs``; one that is newer than the run's result is kept. They
    are returned in the order of the tables, including those kept.
    """
    if paper not in AGENTS:
        raise UserError(f"rl has no policies for {paper!r}; it has {', '.join(AGENTS)}")
    tiers = [name for name in TIERS if any(name in table.tiers for table in AGENTS[paper])]
    if tier not in tiers:
        raise UserError(
            f"rl/{paper} has no policy to film in the {tier} tier; use "
            f"{' or '.join(f'--tier {allowed}' for allowed in tiers)}"
        )
    frame = load(AGENTS[paper], runs=runs, tiers=(tier,))
    frame.check()
    agent_runs = [run for table in AGENTS[paper] for run in finished(frame, table, tier, runs)]
    if not agent_runs:
        reasons = [str(no_runs_of(table, tier)) for table in AGENTS[paper] if tier in table.tiers]
        raise UserError(f"there is no policy to film: {'; '.join(reasons)}")
    by_folder = {run.folder: run for run in reversed(agent_runs)}  # rows may share a run
    return [_film_of(run) for run in reversed(by_folder.values())]


def _film_of(run: FinishedRun) -> Path:
    """The film of a run, made if it is missing or older than its result."""
    film = run.folder / FILM
    result = (run.folder / "result.json").stat().st_mtime
    if not (film.exists() and film.stat().st_mtime > result):
        pictures, total = play(run)
        first, *rest = map(Image.fromarray, pictures)
        with replacing(film) as part:
            first.save(
                part,
                format="GIF",
                save_all=True,
                append_images=rest,
                duration=PACE,
                loop=0,
                comment=f"{run.record.address}: return {total:.2f}",
            )
    return film


def play(run: FinishedRun) -> tuple[np.ndarray, float]:
    """One episode of a run's policy without noise, and its return.

    It is shown by images before each decision and at the end, (n, P, P, 3) uint8.
    """
    config = run.config
    with contextlib.closing(make_environment(config)) as environment:
        if config.train:
            act = read(run.folder)
        else:
            act = random_policy(config, environment.action_space.shape[0])
        seed, *_ = evaluation_seeds(config, config.environment_steps)
        observation, _ = environment.reset(seed=seed)
        pictures, total, over = [environment.render()], 0.0, False
        while not over:
            action = act(torch.from_numpy(observation)[None])[0]
            observation, reward, terminated, truncated, _ = environment.step(action.numpy())
            pictures.append(environment.render())
            total += reward
            over = terminated or truncated
    return np.stack(pictures), total
