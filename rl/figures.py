"""Figures of finished runs: learning curves, probes, rankings and distances.

Distances are drawn from the logs in the runs' folders, the others from records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rl.tables import PUBLISHED
from shared.experiment.published import load_published
from shared.experiment.run_folders import log_lines
from shared.experiment.tables import Column
from shared.report.figures import (
    CannotDraw,
    DeclaredFigure,
    DrawnFigure,
    FinishedRun,
    Source,
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
    Point,
    curves,
    points,
)
from shared.report.statistics import paired_gain

# Rows in the figures of distances.
LMCL_ROWS = (
    "CURL",
    "LMCL(CURL+DP)",
    "CURL, cosine",
    "LMCL(CURL+DP), cosine",
    "DCL",
    "LMCL(DCL+DP)",
)
CLLR_ROWS = (
    "CURL",
    "CLLR(CURL+l21-norm)",
    "CLLR(CURL+l21-norm), norm over batch",
    "CLLR(CURL+nuclear-norm)",
    "CLLR(CURL+nuclear-norm), norm over batch",
    "CLLR(CURL+), authors' form",
)
BAND = (0.1, 0.5)  # delta+ and delta- of LMCL
COSINES = (1 - 2 * BAND[1], 1 - 2 * BAND[0])  # of the distances in the band
# For each distance statistic in the log: its axis label, its limits, the shaded band.
LOGGED: dict[str, tuple[str, tuple[float, float] | None, tuple[float, float] | None]] = {
    "share_in_band": ("share of negative\npairs in the band", (0, 1), None),
    "mean_cosine": ("mean cosine of\nnegative pairs", (-1, 1), COSINES),
    "projection_norm": ("norm of L", None, None),
}
RANKED_AGAINST = "untrained encoder"
PANELS_IN_A_ROW = 3
HIGHEST = 1000  # return of an episode of DeepMind Control
SPREAD = (
    "Lines: mean over seeds; bands: one standard deviation over seeds; lines without a band have "
    "one seed."
)


def learning_curves(source: Source) -> DrawnFigure:
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


def probe_scores(source: Source) -> DrawnFigure:
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


@dataclass(frozen=True)
class Place:
    """A row in a ranking: its mean return over tasks and seeds, and its gain over another row.

    The gain is a mean over tasks, then over seeds; low and high are the ends of its 95% t interval
    over seeds, None with one seed.
    """

    row: str
    value: float
    gain: float
    low: float | None
    high: float | None
    seeds: int


def ranked(runs: Sequence[FinishedRun]) -> list[Place]:
    """The rows in descending order of mean return, each compared with ``RANKED_AGAINST``.

    A seed of a row is used if it has finished on all tasks; differences are paired by seed.
    """
    tasks = {run.config.task for run in runs}
    means: dict[str, dict[int, float]] = {}
    for row, runs_of_row in by_row(runs).items():
        seeds: dict[int, list[float]] = {}
        for run in runs_of_row:
            seeds.setdefault(run.cell.seed, []).append(run.value)
        means[row] = {
            seed: fmean(values) for seed, values in seeds.items() if len(values) == len(tasks)
        }
    base = means.get(RANKED_AGAINST, {})
    if not base:
        raise CannotDraw(f"no seed of {RANKED_AGAINST} has finished on all of {len(tasks)} tasks")
    places = []
    for row, values in means.items():
        if common := values.keys() & base.keys():
            gain = paired_gain(values, base)
            value = fmean(values[seed] for seed in common)
            places.append(Place(row, value, gain.mean, gain.low, gain.high, gain.n))
    return sorted(places, key=lambda place: -place.value)


def ranking(source: Source) -> DrawnFigure:
    """The rows of an imitation table by their gain over the untrained encoder, with intervals."""
    places = ranked(source.runs)
    lines = {place.row: [Point(place.gain, place.low, place.high)] for place in places}
    unit = f"return above that of the {RANKED_AGAINST}, points of {HIGHEST}"
    tasks = len({run.config.task for run in source.runs})
    return DrawnFigure(
        points(
            Picture([Panel("", unit, lines, 0.0)], 1, {"mean, 95% t interval over seeds": BLUE})
        ),
        "An expert imitated: ranking",
        f"Computed here: gain of each seed, mean over {tasks} task{'s' if tasks > 1 else ''}, "
        "then over seeds; bars are 95% t intervals over seeds, of paired differences, not "
        "corrected for the number of rows.",
        source.runs,
        [
            {
                "row": place.row,
                "return": place.value,
                "gain": place.gain,
                "low": place.low,
                "high": place.high,
                "seeds": place.seeds,
            }
            for place in places
        ],
    )


def distances(rows: Sequence[str]) -> Callable[[Source], DrawnFigure]:
    """A function that draws the distances of negative pairs over the training of some rows."""

    def draw(source: Source) -> DrawnFigure:
        logs = {
            run.cell.address: [*log_lines(run.folder)]
            for run in source.runs
            if run.row.label in rows
        }
        shown = [run for run in source.runs if logs.get(run.cell.address)]
        if not shown:
            where = source.runs[0].cell.table_address
            raise CannotDraw(f"no finished run of {', '.join(rows)} of {where} keeps a log")
        logged = {name for run in shown for name in logs[run.cell.address][0]}
        names = [name for name in LOGGED if name in logged]
        panels = []
        for column, runs in by_column(Source(shown, source.data, source.table)):
            for name in names:
                axis, limits, shade = LOGGED[name]
                lines = {}
                for row, runs_of_row in by_row(runs).items():
                    logs_of_row = [logs[run.cell.address] for run in runs_of_row]
                    if name in logs_of_row[0][0]:
                        lines[row] = _values_by_step(logs_of_row, name)
                panels.append(
                    Curves(
                        _panel_title(column),
                        "contrastive updates",
                        axis,
                        lines,
                        limits=limits,
                        shade=shade,
                    )
                )
        return DrawnFigure(
            curves(panels, len(names)),
            "Distances during training",
            "Computed here, in the training batches: pairs of an anchor and another image's key, "
            f"with D = (1 - cos) / 2 in the band from {BAND[0]} to {BAND[1]} that LMCL's penalty "
            f"is meant to empty (shaded: its cosines). {SPREAD}",
            shown,
        )

    return draw


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
        f"{table}-imitation": DeclaredFigure(ranking, (f"{table}-imitation",)),
        f"{table}-state-probe-distances": DeclaredFigure(
            distances(rows), (f"{table}-state-probe",)
        ),
    }
    for paper, table, rows in (("lmcl", "table-5", LMCL_ROWS), ("cllr", "table-4", CLLR_ROWS))
}
