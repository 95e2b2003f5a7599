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
from shared.experiment.files import replacing
from shared.experiment.frame import load
from shared.experiment.tables import Tier
from shared.report.figures import FinishedRun, finished

FILM = "episode.gif"  # in the folder of a run
PACE = 50  # milliseconds between frames; decisions of the six tasks take 40 to 80


def write(paper: str, tier: Tier, runs: Path) -> list[Path]:
    """Film an episode of the policy of each finished run of a paper's agents, in a tier.

    The episode starts like the first one of the run's last evaluation. The films, in the order of
    the tables, are ``episode.gif`` in each run's folder below ``runs``.
    """
    tables = AGENTS.get(paper, ())
    frame = load(tables, runs=runs, tiers=(tier,))
    frame.check()
    every = [run for table in tables for run in finished(frame, table, tier, runs)]
    by_folder = {run.folder: run for run in every}  # rows may share a run
    for folder, run in by_folder.items():
        first, *rest = map(Image.fromarray, play(run)[0])
        with replacing(folder / FILM) as part:
            first.save(part, format="GIF", save_all=True, append_images=rest, duration=PACE, loop=0)
    return [folder / FILM for folder in by_folder]


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
