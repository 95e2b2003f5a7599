"""Films of finished runs' policies."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rl import train
from rl.agent import Agent
from rl.config import Config
from rl.export import POLICY_NAMES
from rl.film import play, write
from rl.tables import TABLE_5
from shared.errors import UserError
from shared.experiment.frame import load
from shared.experiment.run import Run
from shared.report.figures import finished


@pytest.mark.slow
def test_a_film_is_the_first_episode_of_the_last_evaluation(tmp_path: Path) -> None:
    """Of a policy as initialised and of the random one; made again once there is another result."""
    for row in ("random policy", "CURL"):
        (cell,) = TABLE_5.cells("smoke", row=row)
        config = cell.config
        assert isinstance(config, Config)
        with Run(tmp_path / cell.folder, config, tier="smoke", data_root=tmp_path) as run:
            if row == "random policy":
                run.finish(train.measure(config, run))
                continue
            agent = Agent(config, 1)
            train.save_weights(run, agent, POLICY_NAMES)
            environments = train.evaluation_environments(config, run)
            act = partial(agent.act, sample=False)
            entry = train.evaluation(config, run, environments, act, config.environment_steps)
            environments.close()
            run.finish(train.summary_of(config, [entry]))
    films = write("lmcl", "smoke", tmp_path)
    random, curl, same = finished(load([TABLE_5], runs=tmp_path), TABLE_5, "smoke", tmp_path)
    assert same.folder == curl.folder  # "CURL, batch 128" is filmed once
    assert films == [run.folder / "episode.gif" for run in (random, curl)]

    pictures, total = play(curl)
    decisions = curl.config.episode_steps // curl.config.action_repeat
    assert pictures.shape == (decisions + 1, 240, 240, 3)
    evaluated = curl.record.result["metrics"]["details"]["curve"][-1]["episodes"]
    assert total == pytest.approx(evaluated[0], rel=1e-3)
    assert abs(total - evaluated[1]) > 1e-2 * total
    with Image.open(films[1]) as picture:
        # Pictures that do not differ are one that is shown for longer.
        assert decisions // 2 < picture.n_frames <= decisions + 1
        for frame, expected in ((0, pictures[0]), (picture.n_frames - 1, pictures[-1])):
            picture.seek(frame)
            shown = np.asarray(picture.convert("RGB"), dtype=int)
            assert np.abs(shown - expected).mean() < 4  # of 255; the palette has 256 colours

    for file in films:
        file.write_bytes(b"kept")
    later = films[0].stat().st_mtime + 10
    os.utime(films[0].parent / "result.json", (later, later))
    assert write("lmcl", "smoke", tmp_path) == films
    assert films[0].read_bytes()[:6] == b"GIF89a"
    assert films[1].read_bytes() == b"kept"
    (curl.folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors"):
        play(curl)


@pytest.mark.parametrize(
    ("paper", "tier", "word"),
    [
        ("mmcl", "paper", "mmcl"),
        ("lmcl", "short", "--tier paper"),
        ("curl", "paper", "--tier short"),
        ("curl", "short", "curl/returns-on-a-cpu"),
        ("cllr", "paper", "cllr/table-4"),
    ],
)
def test_papers_and_tiers_without_a_policy_are_refused(
    paper: str, tier: str, word: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=word):
        write(paper, tier, tmp_path)
