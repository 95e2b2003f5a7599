"""A table as one picture: measured means and gains beside the published ones.

Above are the rows, below what the claims compare. Means of a tier with a smaller budget have
another scale than the published ones, which are left out there; the gains are beside each other in
every tier. What is drawn stands in the PNG as text, too, so that a test can hold a picture against
the records that it shows.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

from shared.errors import UserError
from shared.experiment.runs import replacing
from shared.experiment.tables import slug
from shared.report.evidence import Floor
from shared.report.measuring import (
    Judged,
    Measured,
    MeasuredCell,
    arithmetic_of,
    floor_of,
    power_in,
    refuse_smoke,
)
from shared.report.wording import HERE, groups_of, mean_sd, name_of, origin

TEXT = "Numbers"  # the keyword of the PNG's text
FORM = "measured-beside-published-v3"
INK, BLUE, RED, GREY, BAND = "#1d2433", "#0b4f8a", "#c8553d", "#5d6678", "#f3f5f8"
FAINT = "#9aa3b2"
SHADE = "#8fb4d6"  # of a deviation
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": "#b9c0cc",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": "#e4e7ec",
    "axes.axisbelow": True,
    "xtick.color": GREY,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "figure.constrained_layout.use": True,
}
AIM_LINE: dict[str, Any] = {"color": "#2e7d4f", "linewidth": 1.2, "linestyle": (0, (1, 1.5))}
SPREAD: dict[str, Any] = {"color": "#e3d9c0", "linewidth": 0}  # of rounding alone
FLOOR_LINE: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 2))}
PARTIAL = "*"
ROOM, ROOM_GAINS = 0.58, 0.5  # of a panel's width is for marks, the rest for the text beside them
LEAST_WIDTH = 9.8  # inches, for title and legend
LEAST = 4.0  # the least width of a scale, so that noise does not fill a panel
LEAST_GAINS = 2.0  # the same of gains
# By the better and the other row, by column, a verdict.
Compared = Mapping[tuple[str, str], Mapping[str, Judged]]


def numbers_of(measured: Measured) -> dict[str, Any]:
    """What a picture of a table shows, as JSON has it: its numbers, cell by cell, gain by gain."""
    measured = _on_one_scale(measured)
    return {
        "form": FORM,
        "table": measured.table.address,
        "tier": measured.tier,
        "unit": measured.table.unit,
        "floors": {label: [floor.row, floor.mean] for label, floor in _floors(measured).items()},
        "spreads": {
            column.label: _spread(measured, place) for place, column in enumerate(measured.columns)
        },
        "gains": [
            {
                "better": better,
                "than": than,
                "column": column,
                "gain": judged.verdict.gain,
                "low": judged.verdict.low,
                "high": judged.verdict.high,
                "published": judged.verdict.published_gain,
                "verdict": judged.verdict.kind,
                "counts": judged.counts,
            }
            for (better, than), found in _compared(measured).items()
            for column, judged in found.items()
        ],
        "cells": [
            {
                "row": cell.row.label,
                "column": cell.column.label,
                "seeds": sorted(cell.values),
                "mean": cell.summary.mean,
                "sd": cell.summary.sd,
                "low": cell.summary.low,
                "high": cell.summary.high,
                "published": cell.published and [cell.published.mean, cell.published.std],
            }
            for cells in measured.cells
            for cell in cells
            if cell.summary is not None
        ],
    }


def _floors(measured: Measured) -> dict[str, Floor]:
    """By label of the column its highest floor, where one is measured."""
    found = {}
    for column in measured.columns:
        cells = measured.column(column.label)
        if floor := floor_of(cells, measured.table.metric_of(column)):
            found[column.label] = floor
    return found


def _on_one_scale(measured: Measured) -> Measured:
    """Without the published means where those of a smaller budget lie far from them."""
    if measured.tier == "paper":
        return measured
    cells = tuple(tuple(replace(cell, published=None) for cell in some) for some in measured.cells)
    return replace(measured, cells=cells)


def _spread(measured: Measured, place: int) -> float | None:
    """The arithmetic spread of a column's own metric; None where nothing was repeated."""
    column = measured.columns[place]
    metric = measured.table.metric_of(column)
    found = arithmetic_of(measured.column(column.label), metric)
    return None if found is None else found.sd


def _compared(measured: Measured) -> Compared:
    """By the rows that claims compare, by column, the verdicts on the column's metric with a gain.

    Where several claims compare the same rows, the first is taken: their gains are one.
    """
    metrics = {each.label: measured.table.metric_of(each) for each in measured.columns}
    found: dict[tuple[str, str], dict[str, Judged]] = {}
    for judged in measured.verdicts:
        claim = judged.claim
        if judged.verdict.gain is not None and claim.metric in ("", metrics[judged.column]):
            found.setdefault((claim.better, claim.than), {}).setdefault(judged.column, judged)
    return found


def draw(measured: Measured) -> Figure:
    """A panel for each column that has a number, a line for each row that has one.

    The highest floor of a column goes through its whole panel. Below, where claims are measured, a
    panel of their gains, a line for each two rows that are compared.

    Raises:
        ValueError: a table of the smoke tier, or one without a number.
    """
    refuse_smoke(measured)
    measured = _on_one_scale(measured)
    shown = [
        place
        for place, _ in enumerate(measured.columns)
        if any(cells[place].summary for cells in measured.cells)
    ]
    if not shown:
        raise ValueError(f"{measured.table.address}: nothing is measured, so nothing to draw")
    lines: list[tuple[float, tuple[MeasuredCell, ...]]] = []
    headings: list[tuple[float, str]] = []
    height = 0.0
    for heading, rows in groups_of(measured):
        drawn = [cells for cells in rows if any(cell.summary for cell in cells)]
        if heading and drawn:
            headings.append((height + 0.1, heading))
            height += 1
        for cells in drawn:
            lines.append((height, cells))
            height += 1.25 if any(cell.published for cell in cells) else 1
    compared = _compared(measured)
    heights = [height, 1.6 * len(compared)] if compared else [height]
    with mpl.rc_context(STYLE):
        width = max(LEAST_WIDTH, 3.2 + 2.35 * len(shown))
        figure = Figure(figsize=(width, 1.75 + 0.235 * sum(heights) + 0.8 * len(heights)))
        # The empty lines are the legend's.
        figure.suptitle(f"{measured.table.title}\n\n", fontsize=13, fontweight="bold")
        figure.supxlabel(_caption(measured), fontsize=7.5, color=GREY, wrap=True)
        floors = _floors(measured)
        areas = figure.subplots(
            len(heights), len(shown), sharey="row", squeeze=False, height_ratios=heights
        )
        for axis, place in zip(areas[0], shown, strict=True):
            floor = floors.get(measured.columns[place].label)
            _panel(axis, [(at, cells[place]) for at, cells in lines], floor)
            axis.set_title(measured.columns[place].label, loc="left", fontweight="bold", pad=6)
            axis.set_xlabel(_unit(measured, place), color=GREY, loc="left")
        first = areas[0][0]
        first.set_yticks([at for at, _ in lines], [cells[0].row.label for _, cells in lines])
        first.set_ylim(height - 0.4, -0.75)
        for at, heading in headings:
            first.text(
                -0.02, at, heading, transform=first.get_yaxis_transform(), ha="right",
                va="center", fontstyle="italic", color=GREY,
            )  # fmt: skip
        if compared:
            _draw_gains(areas[1], measured, shown, compared)
        below = (0.5, 1 - 0.28 / figure.get_figheight())
        handles = _legend(measured, bool(floors), compared)
        figure.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=below,
            ncols=math.ceil(len(handles) / 2),
            frameon=False,
        )
    return figure


def _unit(measured: Measured, place: int) -> str:
    metric = measured.table.metric_of(measured.columns[place])
    return metric + (f", {measured.table.unit}" if measured.table.unit else "")


def _legend(measured: Measured, floors: bool, compared: Compared) -> list[Artist]:
    marks: Any = ({"marker": m, "markersize": 4.5, "linewidth": 1} for m in "oD")
    dot, diamond = marks
    means = any(cell.published for cells in measured.cells for cell in cells)
    printed = "published ± deviation" if means else "published gain"
    handles: list[Artist] = [
        Line2D([], [], color=BLUE, **dot, label=f"{HERE}: mean, 95% interval"),
        Line2D([], [], color=SHADE, linewidth=4, label="± deviation over seeds"),
        Line2D([], [], color=RED, mfc="white", **diamond, label=printed),
    ]
    if floors:
        handles.append(Line2D([], [], **FLOOR_LINE, label="highest floor: nothing is learned"))
    if compared:
        handles.append(Line2D([], [], **AIM_LINE, label="gain that the seeds are to see"))
        if any(_spread(measured, place) for place in range(len(measured.columns))):
            handles.append(Patch(**SPREAD, label="arithmetic spread: one seed, other code paths"))
    return handles


def _draw_gains(
    axes: Sequence[Axes], measured: Measured, shown: Sequence[int], compared: Compared
) -> None:
    """What claims compare: a panel for each column, a line for each two rows."""
    places = range(len(compared))
    asked = {(each.claim.better, each.claim.than, each.column) for each in measured.verdicts}
    for axis, place in zip(axes, shown, strict=True):
        label = measured.columns[place].label
        spread = _spread(measured, place)
        if spread is not None:
            axis.axvspan(-spread, spread, label="arithmetic spread", zorder=0.5, **SPREAD)
        axis.axvline(0, color=INK, linewidth=0.9, zorder=1, label="no gain")
        ends = [0.0]
        if power := power_in(measured.table, measured.tier, label):
            axis.axvline(power.gain, label="declared gain", zorder=1, **AIM_LINE)
            ends.append(power.gain)
        for at, (rows, found) in zip(places, compared.items(), strict=True):
            if at % 2 == 0:
                axis.axhspan(at - 0.5, at + 0.5, color=BAND, linewidth=0, zorder=0)
            if judged := found.get(label):
                ends += _gain(axis, at, judged)
            elif (*rows, label) in asked:
                _text(axis, ROOM_GAINS, at, "no result", FAINT)
        _limits(axis, ends, LEAST_GAINS, ROOM_GAINS)
        axis.set_xlabel(f"gain in {_unit(measured, place)}", color=GREY, loc="left")
    axes[0].set_yticks(places, [f"{better}\nover {than}" for better, than in compared])
    axes[0].set_ylim(len(compared) - 0.5, -0.5)


def _gain(axis: Axes, at: int, judged: Judged) -> list[float]:
    """One gain with its interval and the published one; the ends of what was drawn."""
    verdict, label = judged.verdict, f"{judged.claim.better} over {judged.claim.than}"
    assert verdict.gain is not None  # such claims alone are drawn
    printed = verdict.published_gain
    up, down = (at, at) if printed is None else (at - 0.17, at + 0.17)
    ends = [verdict.gain]
    if verdict.low is not None and verdict.high is not None:
        axis.plot([verdict.low, verdict.high], [up, up], color=BLUE, linewidth=1.2)
        ends += [verdict.low, verdict.high]
    axis.plot([verdict.gain], [up], "o", color=BLUE, markersize=4.5, label=label)
    weight = "bold" if judged.counts else "normal"
    _text(axis, ROOM_GAINS, up, f"{verdict.gain:+.2f} {verdict.kind}", BLUE, weight)
    if printed is not None:
        axis.plot(
            [printed], [down], "D", color=RED, markersize=3.8, mfc="white",
            label=f"{label} published",
        )  # fmt: skip
        _text(axis, ROOM_GAINS, down, f"{printed:+.2f}", RED)
        ends.append(printed)
    return ends


def write(file: Path, measured: Measured) -> None:
    """Draw a table as a PNG that holds its numbers as text, moved over its target."""
    figure = draw(measured)
    numbers = json.dumps(numbers_of(measured), sort_keys=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        figure.savefig(part, format="png", dpi=140, metadata={TEXT: numbers, "Software": None})


def read(file: Path) -> dict[str, Any]:
    """The numbers that a picture says it shows.

    Raises:
        UserError: it holds none.
    """
    with Image.open(file) as picture:
        picture.load()
        text = getattr(picture, "text", {}).get(TEXT)
    if text is None:
        raise UserError(f"{file} does not say what it shows; draw it with: ./reproduce.sh report")
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def _caption(measured: Measured) -> str:
    drawn = [c for cells in measured.cells for c in cells if c.summary is not None]
    table = measured.table
    parts = [f"{table.section}; {name_of(measured)}, protocol {table.protocol}"]
    counts = {len(cell.values) for cell in drawn if not cell.missing}
    if counts:
        parts.append(f"{' or '.join(map(str, sorted(counts)))} seeds")
    if any(cell.missing for cell in drawn):
        parts.append(f"{PARTIAL} fewer seeds than declared")
    if empty := [
        column.label
        for place, column in enumerate(measured.columns)
        if not any(cells[place].summary for cells in measured.cells)
    ]:
        parts.append(f"no result: {', '.join(empty)}")
    parts.append("every panel has a scale of its own")
    if any(judged.counts for judged in measured.verdicts):
        parts.append("verdicts that count are bold")
    varies = f"Varies between repeats: {table.varies}."
    return f"{'; '.join(parts)}. {varies} Published: {origin(table.published)}."


def _panel(axis: Axes, cells: list[tuple[float, MeasuredCell]], floor: Floor | None) -> None:
    ends: list[float] = []
    if floor is not None:
        axis.axvline(floor.mean, label="highest floor", zorder=1, **FLOOR_LINE)
    for count, (at, cell) in enumerate(cells):
        if count % 2 == 0:
            axis.axhspan(at - 0.5, at + 0.6, color=BAND, linewidth=0, zorder=0)
        if cell.summary is None:
            _text(axis, ROOM, at, "no result" if cell.declared else "", FAINT)
            continue
        summary, printed = cell.summary, cell.published
        up, down = (-0.2, 0.25) if printed else (0.0, 0.0)
        label = slug(cell.row.label)
        sd = summary.sd or 0
        axis.errorbar(
            [summary.mean], [at + up], xerr=[[sd], [sd]], fmt="o", color=BLUE, markersize=4.5,
            elinewidth=3, ecolor=SHADE, label=label,
        )  # fmt: skip
        # A floor far below the others is a number, and no reason to squeeze them.
        far = floor is not None and cell.row.floor and cell.row.label != floor.row
        if summary.low is not None and summary.high is not None:
            axis.plot([summary.low, summary.high], [at + up] * 2, color=BLUE, linewidth=0.9)
            ends += [] if far else [summary.low, summary.high]
        text = mean_sd(summary.mean, summary.sd) + (PARTIAL if cell.missing else "")
        _text(axis, ROOM, at + up, text, BLUE)
        ends += [] if far else [summary.mean - sd, summary.mean + sd]
        if printed:
            std = printed.std or 0
            axis.errorbar(
                [printed.mean], [at + down], xerr=[[std], [std]], fmt="D", color=RED,
                markersize=3.8, elinewidth=0.9, mfc="white", label=f"{label} published",
            )  # fmt: skip
            _text(axis, ROOM, at + down, mean_sd(printed.mean, printed.std), RED)
            ends += [printed.mean - std, printed.mean + std]
    _limits(axis, ends, LEAST, ROOM)


def _limits(axis: Axes, ends: Sequence[float], least: float, room: float) -> None:
    """A scale that holds ``ends``, is ``least`` wide or wider, and leaves room for text."""
    low, high = min(ends), max(ends)
    spare = max(least - (high - low), 0.08 * (high - low)) / 2
    low, high = low - spare, high + spare
    axis.set_xlim(low, low + (high - low) / room)
    axis.set_xticks([tick for tick in axis.get_xticks() if low <= tick <= high])


def _text(
    axis: Axes, room: float, at: float, text: str, color: str, weight: str = "normal"
) -> None:
    axis.text(
        room + 0.03, at, text, transform=axis.get_yaxis_transform(), va="center", fontsize=7,
        color=color, fontweight=weight,
    )  # fmt: skip
