"""Films of finished runs' policies."""

import dataclasses
import os
import shutil
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of two rows of the smoke tier; the second with a policy as initialised."""
    runs = tmp_path_factory.mktemp("trained")
    for row in ("random policy", "CURL"):
        (cell,) = TABLE_5.cells("smoke", row=row)
        config = cell.config
        assert isinstance(config, Config)
        with Run(runs / cell.folder, config, tier="smoke", data_root=runs) as run:
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
    return runs


@pytest.mark.slow
def test_films_show_an_episode(trained: Path) -> None:
    films = write("lmcl", "smoke", trained)
    random, curl, same = finished(load([TABLE_5], runs=trained), TABLE_5, "smoke", trained)
    assert same.folder == curl.folder  # "CURL, batch 128" is filmed once
    assert films == [run.folder / "episode.gif" for run in (random, curl)]
    decisions = curl.config.episode_steps // curl.config.action_repeat
    for file, run in zip(films, (random, curl), strict=True):
        with Image.open(file) as picture:
            assert picture.format == "GIF"
            assert picture.size == (240, 240)
            assert picture.info["loop"] == 0
            assert picture.info["comment"].startswith(f"{run.record.address}: return ".encode())
            shown = []
            for frame in range(picture.n_frames):
                picture.seek(frame)
                shown.append(np.asarray(picture.convert("RGB"), dtype=int))
                assert picture.info["duration"] % 50 == 0
        # Pictures that do not differ are one that is shown for longer.
        assert decisions // 2 < len(shown) <= decisions + 1
        assert np.abs(shown[0] - shown[-1]).max() > 50
    pictures, _ = play(curl)
    with Image.open(films[1]) as picture:
        first = np.asarray(picture.convert("RGB"), dtype=int)
    assert np.abs(first - pictures[0]).mean() < 4  # of 255; the palette has 256 colours


@pytest.mark.slow
def test_the_episode_is_the_first_of_the_last_evaluation(trained: Path) -> None:
    (curl,) = (
        run
        for run in finished(load([TABLE_5], runs=trained), TABLE_5, "smoke", trained)
        if run.cell.row == "CURL"
    )
    pictures, total = play(curl)
    assert pictures.shape == (
        curl.config.episode_steps // curl.config.action_repeat + 1,
        240,
        240,
        3,
    )
    evaluated = curl.record.result["metrics"]["details"]["curve"][-1]["episodes"]
    assert total == pytest.approx(evaluated[0], rel=1e-3)
    assert abs(total - evaluated[1]) > 1e-2 * total


@pytest.mark.slow
def test_films_are_kept_until_there_is_another_result(trained: Path) -> None:
    first = write("lmcl", "smoke", trained)
    for file in first:
        file.write_bytes(b"kept")
    assert write("lmcl", "smoke", trained) == first
    assert {file.read_bytes() for file in first} == {b"kept"}
    stale = first[0]
    later = stale.stat().st_mtime + 10
    os.utime(stale.parent / "result.json", (later, later))
    write("lmcl", "smoke", trained)
    assert stale.read_bytes()[:6] == b"GIF89a"
    assert first[-1].read_bytes() == b"kept"


@pytest.mark.slow
def test_a_policy_that_is_lost_is_named(trained: Path, tmp_path: Path) -> None:
    (curl,) = (
        run
        for run in finished(load([TABLE_5], runs=trained), TABLE_5, "smoke", trained)
        if run.cell.row == "CURL"
    )
    lost = tmp_path / "lost"
    shutil.copytree(curl.folder, lost)
    (lost / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: there is no such file"):
        play(dataclasses.replace(curl, folder=lost))


def test_papers_and_tiers_without_a_policy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rl has no policies for 'mmcl'; it has lmcl, cllr, curl"):
        write("mmcl", "paper", tmp_path)
    with pytest.raises(
        UserError, match=r"rl/lmcl has no policy .* short tier; use --tier paper or --tier smoke$"
    ):
        write("lmcl", "short", tmp_path)
    with pytest.raises(
        UserError, match=r"rl/curl has no policy .* paper tier; use --tier short or --tier smoke$"
    ):
        write("curl", "paper", tmp_path)
    with pytest.raises(
        UserError, match=r"learning-gate.*; no finished run of rl/curl/returns-on-a-cpu"
    ):
        write("curl", "short", tmp_path)
    with pytest.raises(UserError, match=r"no policy to film: no finished run of rl/cllr/table-4"):
        write("cllr", "paper", tmp_path)
