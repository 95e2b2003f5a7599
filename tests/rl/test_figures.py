from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl.figures import FIGURES
from rl.tables import TABLES
from shared.experiment.tables import Cell, Tier
from shared.report.figures import CannotDraw, DrawnFigure
from tests.stages.drawing import drawn, finish, lines, rows_of, table_of, titles


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


def finish_probes(runs: Path, scores: dict[tuple[str, str, int], float]) -> None:
    for (row, column, seed), score in scores.items():
        finish(
            runs, cell_of("lmcl", "table-5-state-probe", "short", row, column, seed), {"r2": score}
        )


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
        ("DCL", "Catch", 0): 20.0,
        ("raw pixels", "Swingup", 0): 80.0,  # baselines alone: no panel
    }
    finish_probes(tmp_path, {("raw pixels", "Spin", 0): 80.0})
    with pytest.raises(CannotDraw):  # baselines alone
        draw("lmcl/table-5-state-probe", tmp_path)
    finish_probes(tmp_path, scores)
    found = draw("lmcl/table-5-state-probe", tmp_path)
    assert titles(found.figure) == ["Spin (finger_spin)", "Catch (ball_in_cup_catch)"]
    spin, catch = found.figure.axes
    assert rows_of(spin) == ["raw pixels", "untrained encoder", "CURL"]
    assert rows_of(catch) == ["DCL"]
    drawn_values = [np.asarray(line.get_xdata()).tolist() for line in spin.lines]
    assert drawn_values == [[80], [80], [30, 40], [35], [50, 60], [55], [80, 80]]
    assert len(found.runs) == 6
