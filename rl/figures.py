"""Learning curves, probes and rankings of finished runs as pictures.

Curves, probes and rankings are drawn from the records of one table, those of finished runs and the
committed ones alike; distances from what the folder of a run keeps. Where there is nothing, the
figure is not drawn, and a line says what it waits for.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rl.config import Config
from rl.tables import PUBLISHED, TABLES
from shared.experiment.records import Record, read_records
from shared.experiment.tables import Column, Row, Table, Tier, load_published
from shared.report.figures import (
    GREY,
    GRID,
    SHADE,
    STYLE,
    Drawn,
    Finished,
    Lacking,
    caption,
    finished,
    nothing_of,
    write_figures,
)
from shared.report.statistics import paired_gain

# Rows of the figures of distances; those of one line have one colour.
LMCL_ROWS = (
    ("CURL", "LMCL(CURL+DP)"),
    ("CURL, cosine", "LMCL(CURL+DP), cosine"),
    ("DCL", "LMCL(DCL+DP)"),
)
CLLR_ROWS = (
    ("CURL",),
    ("CLLR(CURL+l21-norm)", "CLLR(CURL+l21-norm), norm over batch"),
    ("CLLR(CURL+nuclear-norm)", "CLLR(CURL+nuclear-norm), norm over batch"),
    ("CLLR(CURL+), authors' form",),
)
BAND = (0.1, 0.5)  # delta+ and delta- of LMCL
# What the log holds of distances, and how an axis says it; in this order.
LOGGED = {
    "share_in_band": "share of negative\npairs in the band",
    "mean_cosine": "mean cosine of\nnegative pairs",
    "projection_norm": "norm of L",
}
RANKED_AGAINST = "untrained encoder"
ACROSS = 3  # panels in a line
HIGHEST = 1000  # return of an episode of DeepMind Control
# Okabe and Ito's colours without yellow: apart for every kind of colour vision, and in grey.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
DASHES = ("-", "--", ":", "-.")  # of the rows that share a colour
BASELINES = {"raw pixels": ":", "untrained encoder": "--"}  # the dash of each that the probe has
LOOK: dict[Any, Any] = {**STYLE, **GRID, "legend.fontsize": 7.5}
HEADLINE: dict[str, Any] = {"fontsize": 10, "fontweight": "bold"}


Run = Finished[Config]


@dataclass(frozen=True)
class Drawing:
    """A figure of one table.

    Args:
        table: its name.
        tier: of the runs that are drawn.
        draw: what draws them.
        numbers: what is drawn as the text of a CSV file beside the picture; None for none.
    """

    table: str
    tier: Tier
    draw: Callable[[Table, Sequence[Run]], Figure]
    numbers: Callable[[Sequence[Run]], str] | None = None


def write(
    paper: str, runs: Path, results: Path, *, data_root: Path, to: Path | None = None
) -> list[Path]:
    """Draw the figures of a paper that can be drawn; print a line for each that cannot.

    Args:
        paper: ``"lmcl"`` or ``"cllr"``.
        runs: folder of the finished runs.
        results: folder of the committed records.
        data_root: not read: all that is drawn lies with the runs and records.
        to: the files go to ``[short/]rl/<paper>/figures/`` below it, by the tier of the runs that
            they are drawn from; None for ``results``.

    Returns:
        The PNG and PDF files written, and the CSV files beside them.

    Raises:
        UserError: a paper without figures.
    """
    committed = read_records(results)

    def drawn(drawing: Drawing) -> Drawn:
        (table,) = (table for table in TABLES[paper] if table.name == drawing.table)
        found = finished_runs(table, drawing.tier, runs, committed)
        numbers = drawing.numbers(found) if drawing.numbers else None
        return Drawn(table, drawing.tier, drawing.draw(table, found), numbers)

    return write_figures("rl", paper, FIGURES, drawn, to or results, LOOK)


def finished_runs(
    table: Table, tier: Tier, runs: Path, committed: Sequence[Record] = ()
) -> list[Run]:
    """What counts for a table in a tier, see :func:`shared.report.figures.finished`.

    Raises:
        Lacking: there is nothing.
    """
    found = finished(Config, table, tier, runs, committed)
    if not found:
        raise nothing_of(table, f"no finished run of {{}} ({tier} tier)", runs, tier)
    return found


# Learning curves


def learning_curves(table: Table, found: Sequence[Run]) -> Figure:
    """Environment steps against return, a panel for each task, a line for each row.

    Args:
        table: of ``dmc-return-v1``.
        found: its finished runs.
    """
    columns = _columns(table, found)
    across = min(ACROSS, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(2.4 + 2.7 * across, 1.2 + 2.4 * down))
    figure.suptitle(_title("Learning curves", table, found), **HEADLINE)
    axes = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    for axis in axes[len(columns) :]:
        axis.remove()
    trained = [row.label for row in table.rows if _trains(row)]
    looks = _looks([trained[start :: len(COLORS)] for start in range(len(COLORS))])
    printed = load_published(PUBLISHED / "references.toml", "curl-100k")
    for place, (column, axis) in enumerate(zip(columns, axes, strict=False)):
        by_row = _by_row(found, column.label)
        _head(axis, column, by_row)
        for row, runs in by_row.items():
            entries = [run.record.result["metrics"]["details"]["curve"] for run in runs]
            returns = np.array([[entry["return"] for entry in curve] for curve in entries])
            if not runs[0].config.train:  # one evaluation stands for all steps
                axis.axhline(returns.mean(), color=GREY, linestyle=":", linewidth=1, label=row)
                continue
            steps = [entry["step"] for entry in entries[0]]
            _line(axis, steps, returns, label=row, **looks[row])
        if (value := printed.value("CURL", column.label)) is not None:
            axis.axhline(value.mean, color=GREY, linewidth=0.7, label="CURL, 100K, as printed")
        axis.set(ylabel="return", xlim=(0, found[0].config.environment_steps), ylim=(0, HIGHEST))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        if place + across >= len(columns):  # the lowest of its line
            axis.set_xlabel("environment steps")
            axis.tick_params(labelbottom=True)
    _legend(figure)
    caption(
        figure,
        f"Computed here: return of {found[0].config.evaluation_episodes} episodes without noise, "
        "mean over seeds, band of one standard deviation over seeds; lines without a band are of "
        f"one seed. As printed: {printed.source}.",
    )
    return figure


def curves_csv(found: Sequence[Run]) -> str:
    """The curves, an evaluation each line: row, task, seed, step, return, seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "task", "seed", "step", "return", "seconds"])
    for run in found:
        for entry in run.record.result["metrics"]["details"]["curve"]:
            numbers = (entry[name] for name in ("step", "return", "seconds"))
            writer.writerow([run.cell.row, run.config.task, run.config.seed, *numbers])
    return text.getvalue()


# The probe


def probe_scores(table: Table, found: Sequence[Run]) -> Figure:
    """What each row's embedding says of the state, a panel for each task, a mark for each seed.

    Args:
        table: of ``state-probe-v1``.
        found: its finished runs; tasks with baselines alone are left out.

    Raises:
        Lacking: all of them are baselines.
    """
    shown = []
    for column in _columns(table, found):
        by_row = _by_row(found, column.label)
        if rows := [row for row, runs in by_row.items() if runs[0].config.train]:
            shown.append((column, by_row, rows))
    if not shown:
        raise Lacking(f"no finished run of {table.address} that trains an encoder")
    heights = [len(rows) + 0.6 for _, _, rows in shown]
    figure = Figure(figsize=(7.5, 1.1 + 0.19 * sum(heights) + 0.45 * len(shown)))
    figure.suptitle(_title("Physics state read from the embedding", table, found), **HEADLINE)
    # One below the other on one scale, each as high as it has rows.
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for (column, by_row, rows), axis in zip(shown, axes, strict=True):
        _head(axis, column, by_row)
        for row, runs in by_row.items():
            scores = np.array([run.record.result["metrics"]["r2"] for run in runs])
            if not runs[0].config.train:
                look = {"color": GREY, "linestyle": BASELINES[row], "linewidth": 1.1}
                axis.axvline(scores.mean(), label=row, **look)
                continue
            place = rows.index(row)
            dots = [place] * len(scores)
            axis.plot(scores, dots, ".", color=COLORS[0], markersize=4.5, label="one seed")
            mean = {"color": COLORS[1], "markersize": 5, "fillstyle": "none"}  # dots show through
            axis.plot(scores.mean(), place, "D", label="mean over seeds", **mean)
        axis.set(yticks=range(len(rows)), yticklabels=rows)
        axis.set_ylim(len(rows) - 0.2, -0.8)  # the table's first row on top
    axes[-1].set_xlabel("R² of the state, %")
    axes[-1].set_xlim(min(0, axes[-1].get_xlim()[0]), None)
    _legend(figure)
    caption(
        figure,
        "Computed here: R² in percent of ridge regression from the embedding of frames of a random "
        "policy to the physics state, mean over the entries of the state, on held-out episodes. "
        "Vertical lines: means over seeds.",
    )
    return figure


# Rankings


@dataclass(frozen=True)
class Place:
    """A row in a ranking: its mean return over tasks and seeds, and what it gains over another.

    The gain is a mean over tasks, then over seeds; low and high are the ends of its 95% t interval
    over seeds, None with one seed.
    """

    row: str
    value: float
    gain: float
    low: float | None
    high: float | None
    seeds: int


def ranked(found: Sequence[Run], than: str = RANKED_AGAINST) -> list[Place]:
    """The rows from the highest mean return to the lowest, each held against the row ``than``.

    A seed of a row counts when it has finished on all tasks; differences are of equal seeds.

    Raises:
        Lacking: the row ``than`` has no such seed.
    """
    tasks = {run.config.task for run in found}
    means: dict[str, dict[int, float]] = {}
    for row, runs in _by_row(found).items():
        seeds: dict[int, list[float]] = {}
        for run in runs:
            value = float(run.record.result["metrics"]["return"])
            seeds.setdefault(run.config.seed, []).append(value)
        means[row] = {seed: fmean(some) for seed, some in seeds.items() if len(some) == len(tasks)}
    base = means.get(than, {})
    if not base:
        raise Lacking(f"no seed of {than} has finished on all of {len(tasks)} tasks")
    places = []
    for row, values in means.items():
        if common := values.keys() & base.keys():
            gain = paired_gain(values, base)
            value = fmean(values[seed] for seed in common)
            places.append(Place(row, value, gain.mean, gain.low, gain.high, gain.n))
    return sorted(places, key=lambda place: -place.value)


def ranking(table: Table, found: Sequence[Run]) -> Figure:
    """The rows of an imitation by what they gain over the untrained encoder, with intervals.

    Args:
        table: of ``imitation-return-v1``.
        found: its finished runs.
    """
    places = ranked(found)
    figure = Figure(figsize=(7.5, 1.6 + 0.24 * len(places)))
    figure.suptitle(_title("An expert imitated: ranking", table, found), **HEADLINE)
    axis = figure.subplots()
    axis.axvline(0, color=GREY, linewidth=0.8)
    for height, place in enumerate(places):
        if place.low is not None and place.high is not None:
            axis.plot([place.low, place.high], [height, height], color=COLORS[0], linewidth=1.4)
        axis.plot(place.gain, height, "o", color=COLORS[0], markersize=4.5)
    axis.set(yticks=range(len(places)), yticklabels=[place.row for place in places])
    axis.set_ylim(len(places) - 0.4, -0.6)  # the highest on top
    axis.set_xlabel(f"return above that of the {RANKED_AGAINST}, points of 1000")
    tasks = len({run.config.task for run in found})
    caption(
        figure,
        f"Computed here: mean over {tasks} task{'s' if tasks > 1 else ''} of what each seed gains, "
        "then over seeds; bars are 95% t intervals over seeds, of paired differences. Nothing is "
        "corrected for the number of rows.",
    )
    return figure


def ranking_csv(found: Sequence[Run]) -> str:
    """The ranking, a row each line: row, return, gain, low, high, seeds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "return", "gain", "low", "high", "seeds"])
    for place in ranked(found):
        writer.writerow(dataclasses.astuple(place))
    return text.getvalue()


def distances(rows: Sequence[Sequence[str]]) -> Callable[[Table, Sequence[Run]], Figure]:
    """What draws how the distances of negative pairs move as the encoders of some rows train.

    Args:
        rows: labels; those of one line have one colour.
    """
    looks = _looks(rows)

    def draw(table: Table, found: Sequence[Run]) -> Figure:
        logs = {run.cell.address: _log(run.folder) for run in found if run.cell.row in looks}
        shown = [run for run in found if logs.get(run.cell.address)]
        if not shown:
            raise Lacking(f"no finished run of {', '.join(looks)} of {table.address} keeps a log")
        logged = {name for run in shown for name in logs[run.cell.address][0]}
        names = [name for name in LOGGED if name in logged]
        columns = _columns(table, shown)
        figure = Figure(figsize=(2.6 + 2.7 * len(names), 1.2 + 1.8 * len(columns)))
        figure.suptitle(_title("Distances while the encoders train", table, shown), **HEADLINE)
        axes = figure.subplots(len(columns), len(names), sharex=True, sharey="col", squeeze=False)
        for column, across in zip(columns, axes, strict=True):
            by_row = _by_row(shown, column.label)
            for name, axis in zip(names, across, strict=True):
                _head(axis, column, by_row)
                axis.set_ylabel(LOGGED[name])
                if name == "mean_cosine":
                    axis.axhspan(*(1 - 2 * np.array(BAND)), color=SHADE, linewidth=0, zorder=0)
                for row in (row for row in looks if row in by_row):
                    lines = [logs[run.cell.address] for run in by_row[row]]
                    if name in lines[0][0]:
                        steps = [line["step"] for line in lines[0]]
                        values = np.array([[line[name] for line in log] for log in lines])
                        _line(axis, steps, values, label=row, **looks[row])
                if name != "projection_norm":  # a band may reach beyond what there is
                    axis.set_ylim(0 if name == "share_in_band" else -1, 1)
        for down in axes.T:  # no row of a task may have a projection
            drawn = [axis for axis in down if axis.lines]
            for axis in set(down) - set(drawn):
                axis.remove()
            drawn[-1].set(xlabel="contrastive updates", xlim=(0, None))
            drawn[-1].tick_params(labelbottom=True)
        _legend(figure)
        caption(
            figure,
            "Computed here, in the batches of training: pairs of an anchor and another image's "
            f"key, with D = (1 - cos) / 2 in the band from {BAND[0]} to {BAND[1]} that LMCL's "
            "penalty empties (shaded: its cosines). Mean over seeds, band of one standard "
            "deviation over seeds; lines without a band are of one seed.",
        )
        return figure

    return draw


def _log(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's log; none where the run keeps none."""
    file = folder / "log.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# Drawing


def _by_row(found: Sequence[Run], column: str | None = None) -> dict[str, list[Run]]:
    """The runs by the label of their row, those of one column or of all."""
    rows: dict[str, list[Run]] = {}
    for run in found:
        if column in (None, run.cell.column):
            rows.setdefault(run.cell.row, []).append(run)
    return rows


def _trains(row: Row) -> bool:
    """Whether a row trains an encoder; the others are baselines."""
    return bool(row.changes.get("train", Config.train))


def _columns(table: Table, found: Sequence[Run]) -> list[Column]:
    """The columns of the table that have runs."""
    there = {run.cell.column for run in found}
    return [column for column in table.columns if column.label in there]


def _line(axis: Axes, steps: Sequence[float], values: np.ndarray, **look: Any) -> None:
    """The mean over seeds, values (seeds, steps), in its band of a deviation; one seed is thin."""
    mean = values.mean(0)
    axis.plot(steps, mean, linewidth=0.8 if len(values) == 1 else 1.5, **look)
    if len(values) > 1:
        deviation = values.std(0, ddof=1)
        axis.fill_between(
            steps, mean - deviation, mean + deviation, color=look["color"], alpha=0.15, linewidth=0
        )


def _looks(rows: Sequence[Sequence[str]]) -> dict[str, dict[str, str]]:
    """Colour and dash of each row: a colour for each line of rows, a dash for each row in it."""
    return {
        row: {"color": color, "linestyle": dash}
        for color, line in zip(COLORS, rows, strict=False)
        for dash, row in zip(DASHES, line, strict=False)
    }


def _legend(figure: Figure) -> None:
    """One legend for all panels, beside them."""
    handles: dict[str, Artist] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside right center")


def _head(axis: Axes, column: Column, by_row: dict[str, list[Run]]) -> None:
    """Name the task of a panel, and the seeds behind what it shows."""
    axis.set_title(f"{column.label} ({column.changes['task']})", loc="left", pad=15)
    seeds = [tuple(sorted(run.config.seed for run in runs)) for runs in by_row.values()]
    every = sorted(set().union(*seeds))
    fewer = "; some rows have fewer" if len(set(seeds)) > 1 else ""
    axis.annotate(
        f"seed{'s' if len(every) > 1 else ''} {', '.join(map(str, every))}{fewer}",
        (0, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        color=GREY,
        fontsize=7,
    )


def _title(what: str, table: Table, found: Sequence[Run]) -> str:
    return f"{what}, rows of {table.paper.upper()}'s {table.name} ({found[0].cell.tier} tier)"


FIGURES: dict[str, dict[str, Drawing]] = {
    "lmcl": {
        "table-5-curves": Drawing("table-5", "paper", learning_curves, curves_csv),
        "table-5-state-probe": Drawing("table-5-state-probe", "short", probe_scores),
        "table-5-imitation": Drawing("table-5-imitation", "short", ranking, ranking_csv),
        "table-5-state-probe-distances": Drawing(
            "table-5-state-probe", "short", distances(LMCL_ROWS)
        ),
    },
    "cllr": {
        "table-4-curves": Drawing("table-4", "paper", learning_curves, curves_csv),
        "table-4-state-probe": Drawing("table-4-state-probe", "short", probe_scores),
        "table-4-imitation": Drawing("table-4-imitation", "short", ranking, ranking_csv),
        "table-4-state-probe-distances": Drawing(
            "table-4-state-probe", "short", distances(CLLR_ROWS)
        ),
    },
}
