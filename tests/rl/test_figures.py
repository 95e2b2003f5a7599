import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from resealed import set_config

from rl import figures
from rl.figures import (
    FIGURES,
    finished_runs,
    write,
)
from rl.tables import TABLES
from shared.errors import UserError
from shared.experiment.records import read_records
from shared.experiment.runs import Run
from shared.experiment.tables import Cell, Table, Tier
from shared.report import files
from shared.report.figures import Lacking
from shared.report.measuring import measure_finished


def table_of(paper: str, name: str) -> Table:
    (table,) = (each for each in TABLES[paper] if each.name == name)
    return table


def cell_of(paper: str, name: str, tier: Tier, row: str, column: str | None, seed: int) -> Cell:
    return table_of(paper, name).cells(tier, row=row, column=column, seeds=(seed,))[0]


def finish(runs: Path, cell: Cell, metrics: dict[str, Any], log: Any = ()) -> Path:
    """A finished run of a cell, without the training."""
    with Run(runs / cell.folder, cell.config, tier=cell.tier) as run:
        for step, numbers in log:
            run.log(step, **numbers)
        run.finish(metrics)
    return runs / cell.folder


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


def draw(paper: str, name: str, runs: Path) -> Figure:
    drawing = FIGURES[paper][name]
    table = table_of(paper, drawing.table)
    return drawing.draw(table, finished_runs(table, drawing.tier, runs))


def lines(axis: Axes) -> dict[str, tuple[list[float], list[float], float]]:
    """By label, what the lines of an axis show, and how wide they are; labels may come again."""
    return {
        str(line.get_label()): (
            np.asarray(line.get_xdata()).tolist(),
            np.asarray(line.get_ydata()).tolist(),
            line.get_linewidth(),
        )
        for line in axis.lines
    }


def titles(figure: Figure) -> list[str]:
    return [axis.get_title(loc="left") for axis in figure.axes]


def rows_of(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def notes(axis: Axes) -> list[str]:
    """What stands above a panel, below its title."""
    return [text.get_text() for text in axis.texts]


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(match=lambda o: hasattr(o, "get_text"))
    )


def assert_is_picture(file: Path) -> None:
    with Image.open(file) as picture:
        picture.load()
        assert picture.format == "PNG"
        colours = picture.convert("RGB").getcolors(maxcolors=2**24)
        assert len(colours) > 50


def test_curves_are_means_with_bands(tmp_path: Path) -> None:
    finish_returns(tmp_path)
    figure = draw("lmcl", "table-5-curves", tmp_path)
    swingup, walk = figure.axes
    assert titles(figure) == ["Swingup (cartpole_swingup)", "Walk (walker_walk)"]
    found = lines(swingup)
    assert list(found) == [
        "random policy",
        "CURL",
        "LMCL(CURL+DP)",
        "CURL, 100K, as printed",
    ]
    assert found["CURL"][:2] == ([50_000, 100_000], [200, 450])
    assert found["LMCL(CURL+DP)"][:2] == ([50_000, 100_000], [150, 350.25])
    assert found["LMCL(CURL+DP)"][2] < found["CURL"][2]  # one seed
    assert found["random policy"][1] == [30, 30]
    assert found["CURL, 100K, as printed"][1] == [582, 582]
    assert lines(walk)["CURL, 100K, as printed"][1] == [403, 403]
    (band,) = swingup.collections  # none of a single seed
    heights = {round(float(y), 3) for y in band.get_paths()[0].vertices[:, 1]}
    deviations = (100 * 2**0.5, 50 * 2**0.5)
    for mean, deviation in zip((200, 450), deviations, strict=True):
        assert {round(mean - deviation, 3), round(mean + deviation, 3)} <= heights
    colours = {line.get_color() for line in swingup.lines if line.get_label() == "CURL"}
    assert colours == {line.get_color() for line in walk.lines if line.get_label() == "CURL"}
    said = texts(figure)
    assert "Learning curves, rows of LMCL's table-5 (paper tier)" in said
    assert "return of 10 episodes" in said
    assert "seeds 0, 1" in said
    assert "Laskin et al. 2020 (CURL), Table 1" in said


def test_curves_lie_beside_their_picture_as_numbers(tmp_path: Path) -> None:
    finish_returns(tmp_path / "runs")
    written = write("lmcl", tmp_path / "runs", tmp_path / "results", data_root=tmp_path)
    folder = tmp_path / "results/rl/lmcl/figures"
    assert written == [folder / f"table-5-curves.{kind}" for kind in ("png", "pdf", "csv")]
    assert sorted(folder.iterdir()) == sorted(written)
    assert_is_picture(written[0])
    assert written[1].read_bytes().startswith(b"%PDF")
    assert written[2].read_text() == (
        "row,task,seed,step,return,seconds\n"
        "random policy,cartpole_swingup,0,100000,20.0,1.0\n"
        "random policy,cartpole_swingup,1,100000,40.0,1.0\n"
        "CURL,cartpole_swingup,0,50000,100.0,0.5\n"
        "CURL,cartpole_swingup,0,100000,400.0,1.0\n"
        "CURL,cartpole_swingup,1,50000,300.0,0.5\n"
        "CURL,cartpole_swingup,1,100000,500.0,1.0\n"
        "CURL,walker_walk,0,50000,5.0,0.5\n"
        "CURL,walker_walk,0,100000,6.0,1.0\n"
        "LMCL(CURL+DP),cartpole_swingup,0,50000,150.0,0.5\n"
        "LMCL(CURL+DP),cartpole_swingup,0,100000,350.25,1.0\n"
    )


def test_the_probe_shows_seeds_means_and_baselines(tmp_path: Path) -> None:
    scores = {
        ("CURL", "Spin", 0): 50.0,
        ("CURL", "Spin", 2): 60.0,
        ("MMCL", "Spin", 0): 70.0,
        ("untrained encoder", "Spin", 0): 30.0,
        ("untrained encoder", "Spin", 1): 40.0,
        ("raw pixels", "Spin", 0): 80.0,
        ("DCL", "Catch", 0): 20.0,
    }
    finish_probes(tmp_path, "lmcl", scores)
    figure = draw("lmcl", "table-5-state-probe", tmp_path)
    assert titles(figure) == ["Spin (finger_spin)", "Catch (ball_in_cup_catch)"]
    spin, catch = figure.axes
    assert rows_of(spin) == ["CURL", "MMCL"]  # no line for a row without a run
    assert rows_of(catch) == ["DCL"]
    low, high = spin.get_ylim()
    assert low > high  # the first row is on top
    marks = {
        (str(line.get_label()), *np.asarray(line.get_ydata()).tolist()): np.asarray(
            line.get_xdata()
        ).tolist()
        for line in spin.lines
    }
    assert marks == {
        ("raw pixels", 0, 1): [80, 80],
        ("untrained encoder", 0, 1): [35, 35],
        ("one seed", 0, 0): [50, 60],
        ("mean over seeds", 0): [55],
        ("one seed", 1): [70],
        ("mean over seeds", 1): [70],
    }
    assert lines(catch)["one seed"][:2] == ([20], [0])
    assert notes(spin) == ["seeds 0, 1, 2; some rows have fewer"]
    assert notes(catch) == ["seed 0"]
    assert "rows of LMCL's table-5-state-probe (short tier)" in texts(figure)


def test_the_probe_is_drawn_from_committed_records(tmp_path: Path) -> None:
    scores = {("CURL", "Spin", seed): 50.0 + seed for seed in (0, 1)}
    finish_probes(tmp_path / "runs", "lmcl", scores)
    table = table_of("lmcl", "table-5-state-probe")
    measured = measure_finished(table, "short", tmp_path / "runs")
    files.write(tmp_path / "results", measured)
    shutil.rmtree(tmp_path / "runs")
    written = write("lmcl", tmp_path / "runs", tmp_path / "results", data_root=tmp_path)
    assert [file.name for file in written] == ["table-5-state-probe.png", "table-5-state-probe.pdf"]
    committed = read_records(tmp_path / "results")
    found = finished_runs(table, "short", tmp_path / "runs", committed)
    assert [run.record.result["metrics"]["r2"] for run in found] == [50, 51]
    with pytest.raises(Lacking):  # a film needs the run's own folder
        finished_runs(table, "short", tmp_path / "runs")


def test_distances_of_lmcl(tmp_path: Path) -> None:
    scores = {
        ("CURL", "Spin", 0): 8.0,
        ("CURL", "Spin", 1): 16.0,
        ("LMCL(CURL+DP)", "Spin", 0): 4.0,
        ("MMCL", "Spin", 0): 4.0,  # not of the figure
        ("untrained encoder", "Swingup", 0): 4.0,
        ("DCL", "Swingup", 0): 4.0,
    }
    finish_probes(tmp_path, "lmcl", scores)
    figure = draw("lmcl", "table-5-state-probe-distances", tmp_path)
    spin, swingup = ["Spin (finger_spin)"], ["Swingup (cartpole_swingup)"]
    assert titles(figure) == 2 * spin + 2 * swingup
    share, cosine, share_below, _ = figure.axes
    assert [axis.get_ylabel().split()[0] for axis in (share, cosine)] == ["share", "mean"]
    assert [*lines(share)] == ["CURL", "LMCL(CURL+DP)"]
    assert [*lines(share_below)] == ["DCL"]
    steps, means, _ = lines(share)["CURL"]
    assert (steps, means) == ([20, 40], pytest.approx([0.6, 0.3]))
    assert lines(cosine)["CURL"][1] == pytest.approx([0.88, 0.88])
    assert cosine.get_ylim() == (-1, 1)  # a cosine below what the first panel shows is not cut off
    assert notes(share) == ["seeds 0, 1; some rows have fewer"]
    assert notes(share_below) == ["seed 0"]
    (shaded,) = cosine.patches
    edges = sorted(
        {
            round(float(y), 6)
            for y in shaded.get_extents()
            .transformed(cosine.transData.inverted())
            .get_points()[:, 1]
        }
    )
    assert edges == [0.0, 0.8]  # cosines of the distances 0.5 and 0.1
    plain, polarized = share.lines
    assert plain.get_color() == polarized.get_color()
    assert plain.get_linestyle() != polarized.get_linestyle()


def test_distances_of_cllr_have_the_norm(tmp_path: Path) -> None:
    scores = {
        ("CURL", "Spin", 0): 8.0,
        ("CLLR(CURL+nuclear-norm)", "Spin", 0): 8.0,
        ("CLLR(CURL+), authors' form", "Spin", 0): 8.0,
    }
    finish_probes(tmp_path, "cllr", scores)
    share, _, norm = draw("cllr", "table-4-state-probe-distances", tmp_path).axes
    assert norm.get_ylabel() == "norm of L"
    assert [*lines(share)] == [row for row, _, _ in scores]
    assert lines(norm)["CLLR(CURL+nuclear-norm)"][:2] == ([20, 40], [30, 10])
    assert len(norm.lines) == 1


def test_figures_of_the_probe_are_written(tmp_path: Path) -> None:
    rows = ("CURL", "CLLR(CURL+l21-norm)", "untrained encoder", "raw pixels")
    scores = {(row, "Walk", seed): 30.0 + seed for row in rows for seed in (0, 1)}
    finish_probes(tmp_path / "runs", "cllr", scores)
    written = write("cllr", tmp_path / "runs", tmp_path / "results", data_root=tmp_path)
    folder = tmp_path / "results/short/rl/cllr/figures"
    names = ("table-4-state-probe.png", "table-4-state-probe-distances.png")
    assert written[::2] == [folder / name for name in names]
    for file in written[::2]:
        assert_is_picture(file)


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
    table = table_of("lmcl", "table-5-imitation")
    found = finished_runs(table, "short", tmp_path)
    first, second, third = figures.ranked(found)
    assert (first.row, first.value, first.gain, first.seeds) == ("CURL", 200.0, 25.0, 2)
    # Gains of 20 and 30: 25 and 12.706 standard errors of 5 on each side.
    assert first.low == pytest.approx(25 - 63.53, abs=0.01)
    assert first.high == pytest.approx(25 + 63.53, abs=0.01)
    assert (second.row, second.seeds, third.row) == ("HCL", 3, "untrained encoder")
    assert second.gain == pytest.approx((50 + 15 + 10) / 3)
    assert (third.gain, third.low, third.high) == (0, 0, 0)
    lines_ = figures.ranking_csv(found).splitlines()
    assert lines_[0] == "row,return,gain,low,high,seeds"
    assert lines_[1].startswith("CURL,200.0,25.0,-38.5")
    figure = figures.ranking(table, found)
    assert rows_of(figure.axes[0]) == ["CURL", "HCL", "untrained encoder"]
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in marks] == [first.gain, second.gain, 0]
    assert "mean over 2 tasks" in texts(figure)


def test_a_ranking_waits_for_its_base_on_all_tasks(tmp_path: Path) -> None:
    finish_imitations(tmp_path, {("untrained encoder", "Spin"): (1.0,), ("CURL", "Catch"): (2.0,)})
    with pytest.raises(Lacking, match="no seed of untrained encoder has finished on all of 2"):
        draw("lmcl", "table-5-imitation", tmp_path)


def test_what_lacks_is_said_in_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert write("lmcl", runs, tmp_path / "results", data_root=tmp_path) == []
    assert capsys.readouterr().out.splitlines() == [
        f"table-5-curves: not drawn: no finished run of rl/lmcl/table-5 (paper tier) under {runs}; "
        "run ./reproduce.sh rl lmcl --table table-5",
        *(
            f"{name}: not drawn: no finished run of rl/lmcl/{table} (short tier) under {runs}; "
            f"run ./reproduce.sh rl lmcl --table {table} --tier short"
            for name, table in (
                ("table-5-state-probe", "table-5-state-probe"),
                ("table-5-imitation", "table-5-imitation"),
                ("table-5-state-probe-distances", "table-5-state-probe"),
            )
        ),
    ]
    assert not (tmp_path / "results").exists()


def test_runs_that_do_not_count(tmp_path: Path) -> None:
    table = table_of("lmcl", "table-5")
    cell = cell_of("lmcl", "table-5", "paper", "CURL", "Spin", 0)
    folder = finish(tmp_path, cell, curve(1.0, 2.0))
    assert [run.cell for run in finished_runs(table, "paper", tmp_path)] == [cell]
    said = (folder / "config.json").read_text()
    set_config(folder, said.replace('"batch_size": 512', '"batch_size": 511'))
    with pytest.raises(Lacking):  # of an earlier declaration
        finished_runs(table, "paper", tmp_path)
    set_config(folder, said)
    (folder / "result.json").unlink()
    with pytest.raises(Lacking):
        finished_runs(table, "paper", tmp_path)


def test_the_probe_waits_for_more_than_baselines(tmp_path: Path) -> None:
    finish_probes(tmp_path, "lmcl", {("raw pixels", "Spin", 0): 8.0})
    with pytest.raises(Lacking, match="state-probe that trains an encoder"):
        draw("lmcl", "table-5-state-probe", tmp_path)


def test_distances_wait_for_a_log(tmp_path: Path) -> None:
    finish_probes(tmp_path, "lmcl", {("CURL", "Spin", 0): 8.0, ("MMCL", "Spin", 0): 8.0})
    cell = cell_of("lmcl", "table-5-state-probe", "short", "CURL", "Spin", 0)
    (tmp_path / cell.folder / "log.jsonl").unlink()
    with pytest.raises(Lacking, match=r"no finished run of CURL, .* keeps a log"):
        draw("lmcl", "table-5-state-probe-distances", tmp_path)


def test_an_unknown_paper_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rl has no figures for 'mmcl'; it has lmcl, cllr"):
        write("mmcl", tmp_path, tmp_path, data_root=tmp_path)
