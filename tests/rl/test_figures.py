from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import drawn, finish, lines, rows_of, table_of, titles

from rl.figures import FIGURES, ranked
from rl.tables import TABLES
from shared.experiment.frame import load
from shared.experiment.tables import Cell, Tier
from shared.report.figures import CannotDraw, DrawnFigure, finished


def cell_of(paper: str, name: str, tier: Tier, row: str, column: str | None, seed: int) -> Cell:
    declared = table_of(TABLES, paper, name, tier)
    return declared.cells(tier, row=row, column=column, seeds=(seed,))[0]


def draw(figure: str, runs: Path) -> DrawnFigure:
    return drawn(TABLES, FIGURES, figure, runs)[1]


def curve(*returns: float) -> dict[str, Any]:
    entries = [
        {"step": 50_000 * place, "return": each, "episodes": [each], "seconds": 0.5 * place}
        for place, each in enumerate(returns, start=1)
    ]
    return {"return": returns[-1], "details": {"curve": entries}}


def finish_returns(runs: Path) -> None:
    """Two seeds of one row, one of another, and random actions; two tasks."""
    for row, column, seed, returns in (
        ("LMCL(CURL+DP)", "Swingup", 0, (150.0, 350.25)),
        ("CURL", "Walk", 0, (5.0, 6.0)),
        ("CURL", "Swingup", 1, (300.0, 500.0)),
        ("CURL", "Swingup", 0, (100.0, 400.0)),
    ):
        finish(runs, cell_of("lmcl", "table-5", "paper", row, column, seed), curve(*returns))
    for seed, value in ((0, 20.0), (1, 40.0)):
        cell = cell_of("lmcl", "table-5", "paper", "random policy", "Swingup", seed)
        entry = {"step": 100_000, "return": value, "episodes": [value], "seconds": 1.0}
        finish(runs, cell, {"return": value, "details": {"curve": [entry]}})


def finish_probes(runs: Path, paper: str, scores: dict[tuple[str, str, int], float]) -> None:
    name = {"lmcl": "table-5", "cllr": "table-4"}[paper] + "-state-probe"
    for (row, column, seed), score in scores.items():
        cell = cell_of(paper, name, "short", row, column, seed)
        log = []
        if cell.config.train:
            for step in (20, 40):
                parts = {"share_in_band": score / step, "mean_cosine": 1 - score / 100}
                if cell.config.objective.projection and "authors" not in row:
                    parts["projection_norm"] = 50.0 - step
                log.append((step, parts))
        finish(runs, cell, {"r2": score}, log)


def test_curves_have_a_panel_for_each_task_and_their_numbers_beside_them(tmp_path: Path) -> None:
    finish_returns(tmp_path)
    found = draw("lmcl/table-5-curves", tmp_path)
    swingup, walk = found.figure.axes
    assert titles(found.figure) == ["Swingup (cartpole_swingup)", "Walk (walker_walk)"]
    shown = lines(swingup)
    assert shown["CURL"] == ([50_000, 100_000], [200, 450])
    assert shown["LMCL(CURL+DP)"] == ([50_000, 100_000], [150, 350.25])
    assert shown["random policy"][1] == [30, 30]
    assert shown["CURL, 100K, as printed"][1] == [582, 582]
    assert lines(walk)["CURL, 100K, as printed"][1] == [403, 403]
    assert "return of 10 episodes" in found.caption
    assert "Laskin et al. 2020 (CURL), Table 1" in found.caption
    assert len(found.numbers) == 10
    assert found.numbers[2] == {
        "row": "CURL",
        "task": "cartpole_swingup",
        "seed": 0,
        "step": 50_000,
        "return": 100.0,
        "seconds": 0.5,
    }


def test_the_probe_shows_seeds_means_and_baselines(tmp_path: Path) -> None:
    scores = {
        ("CURL", "Spin", 0): 50.0,
        ("CURL", "Spin", 2): 60.0,
        ("untrained encoder", "Spin", 0): 30.0,
        ("untrained encoder", "Spin", 1): 40.0,
        ("raw pixels", "Spin", 0): 80.0,
        ("DCL", "Catch", 0): 20.0,
        ("raw pixels", "Swingup", 0): 80.0,  # baselines alone: no panel
    }
    finish_probes(tmp_path, "lmcl", scores)
    found = draw("lmcl/table-5-state-probe", tmp_path)
    assert titles(found.figure) == ["Spin (finger_spin)", "Catch (ball_in_cup_catch)"]
    spin, catch = found.figure.axes
    assert rows_of(spin) == ["raw pixels", "untrained encoder", "CURL"]
    assert rows_of(catch) == ["DCL"]
    assert [np.asarray(line.get_xdata()).tolist() for line in spin.lines] == [
        [80],
        [80],
        [30, 40],
        [35],
        [50, 60],
        [55],
        [80, 80],
    ]
    assert len(found.runs) == 6


def test_the_probe_waits_for_more_than_baselines(tmp_path: Path) -> None:
    finish_probes(tmp_path, "lmcl", {("raw pixels", "Spin", 0): 8.0})
    with pytest.raises(CannotDraw, match="state-probe that trains an encoder"):
        draw("lmcl/table-5-state-probe", tmp_path)


def test_distances_are_of_the_figures_rows_by_task(tmp_path: Path) -> None:
    scores = {
        ("CURL", "Spin", 0): 8.0,
        ("CURL", "Spin", 1): 16.0,
        ("LMCL(CURL+DP)", "Spin", 0): 4.0,
        ("MMCL", "Spin", 0): 4.0,  # not of the figure
        ("untrained encoder", "Swingup", 0): 4.0,
        ("DCL", "Swingup", 0): 4.0,
    }
    finish_probes(tmp_path, "lmcl", scores)
    found = draw("lmcl/table-5-state-probe-distances", tmp_path)
    spin, swingup = ["Spin (finger_spin)"], ["Swingup (cartpole_swingup)"]
    assert titles(found.figure) == 2 * spin + 2 * swingup
    share, cosine, share_below, _ = found.figure.axes
    assert [axis.get_ylabel().split()[0] for axis in (share, cosine)] == ["share", "mean"]
    assert [*lines(share)] == ["CURL", "LMCL(CURL+DP)"]
    assert [*lines(share_below)] == ["DCL"]
    steps, means = lines(share)["CURL"]
    assert (steps, means) == ([20, 40], pytest.approx([0.6, 0.3]))
    assert lines(cosine)["CURL"][1] == pytest.approx([0.88, 0.88])
    assert cosine.get_ylim() == (-1, 1)
    # Shaded: cosines of the distances 0.5 and 0.1.
    (shaded,) = cosine.patches
    assert (shaded.get_y(), shaded.get_height()) == pytest.approx((0.0, 0.8))
    for log in tmp_path.rglob("log.jsonl"):
        log.unlink()
    with pytest.raises(CannotDraw, match=r"no finished run of CURL, .* keeps a log"):
        draw("lmcl/table-5-state-probe-distances", tmp_path)


def test_distances_of_cllr_have_the_norm_where_it_was_logged(tmp_path: Path) -> None:
    rows = ("CURL", "CLLR(CURL+nuclear-norm)", "CLLR(CURL+), authors' form")
    finish_probes(tmp_path, "cllr", {(row, "Spin", 0): 8.0 for row in rows})
    share, _, norm = draw("cllr/table-4-state-probe-distances", tmp_path).figure.axes
    assert norm.get_ylabel() == "norm of L"
    assert {*lines(share)} == {*rows}
    assert lines(norm) == {"CLLR(CURL+nuclear-norm)": ([20, 40], [30, 10])}


def finish_imitations(runs: Path, returns: dict[tuple[str, str], tuple[float, ...]]) -> None:
    """By row and column, the return of each seed from 0 on."""
    for (row, column), values in returns.items():
        for seed, value in enumerate(values):
            cell = cell_of("lmcl", "table-5-imitation", "short", row, column, seed)
            finish(runs, cell, {"return": value, "r2": 1.0})


def test_a_ranking_is_of_paired_means_over_tasks(tmp_path: Path) -> None:
    returns = {
        ("untrained encoder", "Spin"): (100.0, 200.0, 50.0),
        ("untrained encoder", "Catch"): (300.0, 100.0, 50.0),
        ("CURL", "Spin"): (120.0, 230.0, 999.0),
        ("CURL", "Catch"): (320.0, 130.0),  # the third seed has not finished there
        ("HCL", "Spin"): (190.0, 210.0, 60.0),
        ("HCL", "Catch"): (310.0, 120.0, 60.0),
    }
    finish_imitations(tmp_path, returns)
    table = table_of(TABLES, "lmcl", "table-5-imitation", "short")
    first, second, third = ranked(finished(load([table], runs=tmp_path), table, "short", tmp_path))
    assert (first.row, first.value, first.gain, first.seeds) == ("CURL", 200.0, 25.0, 2)
    # Gains of 20 and 30: 25 and 12.706 standard errors of 5 on each side.
    assert first.low == pytest.approx(25 - 63.53, abs=0.01)
    assert first.high == pytest.approx(25 + 63.53, abs=0.01)
    assert (second.row, second.seeds, third.row) == ("HCL", 3, "untrained encoder")
    assert second.gain == pytest.approx((50 + 15 + 10) / 3)
    assert (third.gain, third.low, third.high) == (0, 0, 0)
    found = draw("lmcl/table-5-imitation", tmp_path)
    assert rows_of(found.figure.axes[0]) == ["CURL", "HCL", "untrained encoder"]
    assert [line["gain"] for line in found.numbers] == [first.gain, second.gain, 0]
    assert [*found.numbers[0]] == ["row", "return", "gain", "low", "high", "seeds"]
    assert "mean over 2 tasks" in found.caption


def test_a_ranking_waits_for_its_base_on_all_tasks(tmp_path: Path) -> None:
    finish_imitations(tmp_path, {("untrained encoder", "Spin"): (1.0,), ("CURL", "Catch"): (2.0,)})
    with pytest.raises(CannotDraw, match="no seed of untrained encoder has finished on all of 2"):
        draw("lmcl/table-5-imitation", tmp_path)
