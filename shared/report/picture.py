"""A table as one picture: measured means beside the published ones, with the numbers in the file.

What is drawn stands in the PNG as text, too, so that a test can hold a picture against the records
that it shows.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from shared.errors import UserError
from shared.experiment.runs import replacing
from shared.experiment.tables import slug
from shared.report.evidence import Floor
from shared.report.measuring import Measured, MeasuredCell, floor_of, refuse_smoke
from shared.report.wording import HERE, groups_of, mean_sd, name_of, origin

TEXT = "Numbers"  # the keyword of the PNG's text
FORM = "measured-beside-published-v2"
INK, BLUE, RED, GREY, BAND = "#1d2433", "#0b4f8a", "#c8553d", "#5d6678", "#f3f5f8"
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
FLOOR_LINE: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 2))}
PARTIAL = "*"
ROOM = 0.62  # of a panel's width is for marks, the rest for the numbers beside them
LEAST_WIDTH = 9.8  # inches, for title and legend
LEAST = 4.0  # the least width of a scale, so that noise does not fill a panel


def numbers_of(measured: Measured) -> dict[str, Any]:
    """What a picture of a table shows, as JSON has it: for each drawn cell its numbers."""
    return {
        "form": FORM,
        "table": measured.table.address,
        "tier": measured.tier,
        "unit": measured.table.unit,
        "floors": {label: [floor.row, floor.mean] for label, floor in _floors(measured).items()},
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


def draw(measured: Measured) -> Figure:
    """A panel for each column that has a number, a line for each row that has one.

    The highest floor of a column goes through its whole panel.

    Raises:
        ValueError: a table of the smoke tier, or one without a number.
    """
    refuse_smoke(measured)
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
        if heading:
            headings.append((height + 0.1, heading))
            height += 1
        for cells in rows:
            if any(cell.summary for cell in cells):
                lines.append((height, cells))
                height += 1.25 if any(cell.published for cell in cells) else 1
    with mpl.rc_context(STYLE):
        width = max(LEAST_WIDTH, 2.9 + 2.05 * len(shown))
        figure = Figure(figsize=(width, 1.75 + 0.235 * height))
        # The empty line is the legend's.
        figure.suptitle(f"{measured.table.title}\n", fontsize=13, fontweight="bold")
        figure.supxlabel(_caption(measured), fontsize=7.5, color=GREY, wrap=True)
        floors = _floors(measured)
        axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axis, place in zip(axes, shown, strict=True):
            floor = floors.get(measured.columns[place].label)
            _panel(axis, [(at, cells[place]) for at, cells in lines], floor)
            axis.set_title(measured.columns[place].label, loc="left", fontweight="bold", pad=6)
            axis.set_xlabel(
                measured.table.metric_of(measured.columns[place])
                + (f", {measured.table.unit}" if measured.table.unit else ""),
                color=GREY,
                loc="left",
            )
        axes[0].set_yticks([at for at, _ in lines], [cells[0].row.label for _, cells in lines])
        axes[0].set_ylim(height - 0.4, -0.75)
        for at, heading in headings:
            axes[0].text(
                -0.02, at, heading, transform=axes[0].get_yaxis_transform(), ha="right",
                va="center", fontstyle="italic", color=GREY,
            )  # fmt: skip
        marks: Any = ({"marker": m, "markersize": 4.5, "linewidth": 1} for m in "oD")
        dot, diamond = marks
        handles = [
            Line2D([], [], color=BLUE, **dot, label=f"{HERE}: mean, 95% interval"),
            Line2D([], [], color=SHADE, linewidth=4, label="± deviation over seeds"),
            Line2D([], [], color=RED, mfc="white", **diamond, label="published ± deviation"),
        ]
        if floors:
            handles.append(Line2D([], [], **FLOOR_LINE, label="highest floor: nothing is learned"))
        below = (0.5, 1 - 0.26 / figure.get_figheight())
        figure.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=below,
            ncols=len(handles),
            frameon=False,
        )
    return figure


def write(file: Path, measured: Measured) -> None:
    """Draw a table as a PNG that holds its numbers as text, moved over its target."""
    figure = draw(measured)
    numbers = json.dumps(numbers_of(measured), sort_keys=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        figure.savefig(part, format="png", dpi=180, metadata={TEXT: numbers, "Software": None})


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
            _number(axis, at, "no result" if cell.declared else "", "#9aa3b2")
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
        _number(axis, at + up, text, BLUE)
        ends += [] if far else [summary.mean - sd, summary.mean + sd]
        if printed:
            std = printed.std or 0
            axis.errorbar(
                [printed.mean], [at + down], xerr=[[std], [std]], fmt="D", color=RED,
                markersize=3.8, elinewidth=0.9, mfc="white", label=f"{label} published",
            )  # fmt: skip
            _number(axis, at + down, mean_sd(printed.mean, printed.std), RED)
            ends += [printed.mean - std, printed.mean + std]
    low, high = min(ends), max(ends)
    spare = max(LEAST - (high - low), 0.08 * (high - low)) / 2
    low, high = low - spare, high + spare
    axis.set_xlim(low, low + (high - low) / ROOM)
    axis.set_xticks([tick for tick in axis.get_xticks() if low <= tick <= high])


def _number(axis: Axes, at: float, text: str, color: str) -> None:
    axis.text(
        ROOM + 0.03, at, text, transform=axis.get_yaxis_transform(), va="center", fontsize=7,
        color=color,
    )  # fmt: skip
