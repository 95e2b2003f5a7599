"""Figures of finished runs: learning curves of agents, and probes."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rl.tables import PUBLISHED
from shared.experiment.published import load_published
from shared.experiment.tables import Column
from shared.report.figures import (
    CannotDraw,
    DeclaredFigure,
    DrawnFigure,
    FigureRuns,
    by_column,
    by_row,
)
from shared.report.pictures import (
    BLUE,
    GREY,
    Curves,
    Mean,
    Panel,
    Picture,
    curves,
    points,
)

PANELS_IN_A_ROW = 3
HIGHEST = 1000  # return of an episode of DeepMind Control
SPREAD = (
    "Lines: mean over seeds; bands: one standard deviation over seeds; lines without a band have "
    "one seed."
)


def learning_curves(source: FigureRuns) -> DrawnFigure:
    """Environment steps against return, a panel for each task, a line for each row."""
    printed = load_published(PUBLISHED / "references.toml", "curl-100k")
    panels = []
    for column, runs in by_column(source):
        lines: dict[str, dict[float, list[float]]] = {}
        levels = {}
        for row, runs_of_row in by_row(runs).items():
            line = _values_by_step(
                [run.metrics["details"]["curve"] for run in runs_of_row], "return"
            )
            if runs_of_row[0].config.train:
                lines[row] = line
            else:  # a single evaluation, drawn as a horizontal line
                levels[row] = fmean(value for values in line.values() for value in values)
        if (value := printed.value("CURL", column.label)) is not None:
            levels["CURL, 100K, as printed"] = value.mean
        axes = ("environment steps", "return")
        panels.append(Curves(_panel_title(column), *axes, lines, levels, (0, HIGHEST)))
    numbers = [
        {
            "row": run.row.label,
            "task": run.config.task,
            "seed": run.cell.seed,
            **{name: entry[name] for name in ("step", "return", "seconds")},
        }
        for run in source.runs
        for entry in run.metrics["details"]["curve"]
    ]
    return DrawnFigure(
        curves(panels, PANELS_IN_A_ROW),
        "Learning curves",
        f"Computed here: return of {source.runs[0].config.evaluation_episodes} episodes without "
        f"noise. {SPREAD} As printed: {printed.source}.",
        source.runs,
        numbers,
    )


def probe_scores(source: FigureRuns) -> DrawnFigure:
    """How well the state is predicted from each row's embedding: a panel per task, a mark per seed.

    Tasks with only baselines are left out.
    """
    panels, shown = [], []
    for column, runs in by_column(source):
        if not any(run.config.train for run in runs):
            continue
        shown += runs
        lines, baselines = {}, []
        for row, runs_of_row in by_row(runs).items():
            scores = tuple(float(run.metrics["r2"]) for run in runs_of_row)
            trained = runs_of_row[0].config.train
            lines[row] = [Mean(fmean(scores), color=BLUE if trained else GREY, values=scores)]
            if not trained:
                baselines.append(fmean(scores))
        rule = max(baselines, default=None)
        panels.append(Panel(_panel_title(column), "R² of the state, %", lines, rule))
    if not panels:
        raise CannotDraw(
            f"no finished run of {source.runs[0].cell.table_address} that trains an encoder"
        )
    legend = {"trained": BLUE, "baseline": GREY}
    return DrawnFigure(
        points(Picture(panels, 1, legend, rule="the best baseline"), one_scale=True),
        "Physics state read from the embedding",
        "Computed here: R² in percent of ridge regression from the embedding of frames of a random "
        "policy to the physics state, mean over the entries of the state, on held-out episodes. "
        "Small marks: one seed each; large ones: their mean.",
        shown,
    )


def _values_by_step(
    logs: Sequence[Sequence[dict[str, Any]]], name: str
) -> dict[float, list[float]]:
    """The values of a logged number in all runs, by step."""
    values: dict[float, list[float]] = {}
    for entry in (entry for log in logs for entry in log):
        values.setdefault(entry["step"], []).append(entry[name])
    return values


def _panel_title(column: Column) -> str:
    return f"{column.label} ({column.changes['task']})"


FIGURES = {
    paper: {
        f"{table}-curves": DeclaredFigure(learning_curves, (table,)),
        f"{table}-state-probe": DeclaredFigure(probe_scores, (f"{table}-state-probe",)),
    }
    for paper, table in (("lmcl", "table-5"), ("cllr", "table-4"))
}
