"""Films of the policies of finished runs: one episode each, as GIF and, with a codec, as MP4.

Shapes: A dimensions of an action, P pixels of a film.
"""

import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rl.environment import RENDERED, make_environment
from rl.evaluation import evaluation_seeds
from rl.export import read
from rl.tables import AGENTS
from rl.train import random_policy
from shared.errors import UserError
from shared.experiment.files import replacing
from shared.experiment.frame import load
from shared.experiment.tables import TIERS, Tier
from shared.report.figures import FinishedRun, finished, no_runs_of

FILM, CODED = "episode.gif", "episode.mp4"  # in the folder of a run
PACE = 50  # milliseconds between frames; decisions of the six tasks take 40 to 80
CODEC = "libx264"


def write(paper: str, tier: Tier, runs: Path) -> list[Path]:
    """Film one episode of the policy of each finished run of a paper's agents, in a tier.

    The episode starts like the first one of the run's last evaluation. The films, ``episode.gif``
    and, if PyAV is installed and has the codec, ``episode.mp4``, are in each run's folder below
    ``runs``; one that is newer than the run's result is kept. They are returned in the order of the
    tables, including those kept.
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
    return [film for run in reversed(by_folder.values()) for film in _films_of(run)]


def _films_of(run: FinishedRun) -> list[Path]:
    """The films of a run, made if they are missing or older than its result."""
    films = [run.folder / FILM, *([run.folder / CODED] if codec_is_there() else [])]
    result = (run.folder / "result.json").stat().st_mtime
    if all(file.exists() and file.stat().st_mtime > result for file in films):
        return films
    pictures, total = play(run)
    text = f"{run.record.address}: return {total:.2f}"
    for file, write in zip(films, (write_gif, write_mp4), strict=False):
        with replacing(file) as part:
            write(part, pictures, text)
    return films


def codec_is_there() -> bool:
    """Whether films can be encoded as MP4: PyAV, of the video domain's extra, with H.264."""
    if importlib.util.find_spec("av") is None:
        return False
    import av

    return CODEC in av.codecs_available


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
        pictures, total, over = [environment.picture(RENDERED)], 0.0, False
        while not over:
            action = act(torch.from_numpy(observation)[None])[0]
            observation, reward, terminated, truncated, _ = environment.step(action.numpy())
            pictures.append(environment.picture(RENDERED))
            total += reward
            over = terminated or truncated
    return np.stack(pictures), total


def write_gif(file: Path, pictures: np.ndarray, comment: str) -> None:
    """Write a looping GIF with one palette, which keeps it small and free of flicker.

    pictures: (n, P, P, 3) uint8. comment: stored in the file, as in :func:`write_mp4`.
    """
    sample = pictures[:: max(1, len(pictures) // 8)]
    palette = Image.fromarray(np.concatenate(sample)).quantize(256)
    first, *rest = (
        Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE)
        for picture in pictures
    )
    first.save(
        file,
        format="GIF",
        save_all=True,
        append_images=rest,
        duration=PACE,
        loop=0,
        comment=comment,
    )


def write_mp4(file: Path, pictures: np.ndarray, comment: str) -> None:
    """Write an MP4 in H.264, which players and browsers support; P is even."""
    import av

    with av.open(str(file), "w", format="mp4") as container:
        container.metadata["comment"] = comment
        stream: Any = container.add_stream(CODEC, rate=1000 // PACE)  # of pictures
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
