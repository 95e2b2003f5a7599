"""Pictures of numbers, in three forms: points with intervals, histograms and curves.

Callers supply numbers and words; the look and the files' formats are settled here. Equal numbers
give equal files.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from shared.experiment.runs import replacing

INK, GREY, RULE, BAND = "#1d2433", "#5d6678", "#d5dae2", "#f5f6f9"
BLUE, RED = "#0b4f8a", "#c8553d"
LOOK: dict[Any, Any] = {
    "savefig.dpi": 110,
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": "#b9c0cc",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "grid.color": "#e4e7ec",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
LINE = 0.19  # inches of a line of points
COLORS = 128  # of a picture of points; the rare ones are kept, which mean something
TEXT, FORM = "Numbers", "points-v2"  # of the text in its file; another look needs another form
# What of a file would differ from one drawing to the next, by its format.
VARYING: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class Point:
    """A number with its interval, on a line of a panel.

    Args:
        value: the number; a finite one.
        low: lower end of its interval; None where it has none.
        high: the upper end.
        printed: what a paper prints for it; None where it prints nothing.
        color: of the mark and its interval.
        note: a few words at the end of the line.
    """

    value: float
    low: float | None = None
    high: float | None = None
    printed: float | None = None
    color: str = BLUE
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """Points on lines under one scale.

    Args:
        title: stands above.
        unit: stands below the scale.
        lines: by label, the points of a line, drawn one below the other; none for an empty line.
        rule: where a dashed line is drawn through the panel; None for none.
    """

    title: str
    unit: str
    lines: Mapping[str, Sequence[Point]]
    rule: float | None = None

    def every(self) -> Iterator[Point]:
        """The points of all lines."""
        return (point for some in self.lines.values() for point in some)


@dataclass(frozen=True)
class Picture:
    """Panels of points with intervals; those beside each other share the labels of their lines.

    Args:
        panels: at least one; those of one row of the picture have the same lines.
        across: how many stand beside each other.
        legend: by what it means, a colour of the points.
        printed: what the open marks are; empty where there are none.
        rule: what the dashed lines are; empty where that is plain.
    """

    panels: Sequence[Panel]
    across: int
    legend: Mapping[str, str]
    printed: str = ""
    rule: str = ""


def points(picture: Picture) -> Figure:
    """Draw points with intervals.

    Raises:
        ValueError: no panel.
    """
    panels = picture.panels
    if not panels:
        raise ValueError("a picture needs at least one panel")
    across = min(picture.across, len(panels))
    down = math.ceil(len(panels) / across)
    heights = [
        LINE * sum(_height(*line) for line in panels[row * across].lines.items())
        for row in range(down)
    ]
    with mpl.rc_context(LOOK):
        size = (max(8.4, 2.9 + 2.1 * across), 0.45 + sum(heights) + 0.68 * down)
        figure = Figure(figsize=size)
        axes = figure.subplots(down, across, squeeze=False, height_ratios=heights)
        for place, axis in enumerate(axes.flat):
            if place < len(panels):
                _draw(axis, panels[place], labelled=place % across == 0)
            else:
                axis.set_axis_off()
        marks = [
            Line2D([], [], color=color, marker="o", markersize=4, linewidth=1.2, label=meaning)
            for meaning, color in picture.legend.items()
        ]
        if picture.printed:
            marks.append(Line2D([], [], linestyle="", label=picture.printed, **_PRINTED))
        if picture.rule:
            marks.append(Line2D([], [], label=picture.rule, **_RULE))
        figure.legend(handles=marks, loc="outside upper left", ncols=len(marks))
    return figure


_PRINTED: dict[str, Any] = {"marker": "D", "markersize": 3.6, "mec": RED, "mfc": "white"}
_RULE: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (4, 2))}


def _height(label: str, some: Sequence[Point]) -> int:
    """In lines: of the points, or of the label where it is higher."""
    return max(1, len(some), label.count("\n") + 1)


def _draw(axis: Axes, panel: Panel, *, labelled: bool) -> None:
    at, ticks = 0, []
    for number, (label, some) in enumerate(panel.lines.items()):
        height = _height(label, some)
        ticks.append((at + (height - 1) / 2, label))
        if number % 2 == 0:
            axis.axhspan(at - 0.5, at + height - 0.5, color=BAND, linewidth=0, zorder=0)
        for down, point in enumerate(some):
            _point(axis, at + down + (height - len(some)) / 2, point)
        at += height
    if panel.rule is not None:
        axis.axvline(panel.rule, zorder=1, **_RULE)
    axis.set_ylim(at - 0.5, -0.5)
    axis.set_yticks(
        [place for place, _ in ticks], [label if labelled else "" for _, label in ticks]
    )
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x")
    axis.margins(x=0.06)
    axis.set_title(panel.title)
    axis.set_xlabel(panel.unit, loc="left")


def _point(axis: Axes, at: float, point: Point) -> None:
    if point.low is not None and point.high is not None:
        axis.plot([point.low, point.high], [at, at], color=point.color, linewidth=1.3)
    axis.plot([point.value], [at], "o", color=point.color, markersize=4)
    if point.printed is not None:
        axis.plot([point.printed], [at], linestyle="", **_PRINTED)
    if point.note:
        axis.annotate(
            point.note,
            (1.0, at),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=GREY,
            annotation_clip=False,
        )


def histogram(
    groups: Mapping[str, ArrayLike], *, unit: str, bins: int = 40, title: str = ""
) -> Figure:
    """The distributions of some groups over common bins, each to an area of 1.

    Args:
        groups: by name, its values; at least one, each with finite values.
        unit: what the values are.
        bins: how many, over the range of all values.
        title: stands above.
    """
    arrays = {name: np.asarray(values, float).ravel() for name, values in groups.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(arrays.values())), bins)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(5.0, 3.2))
        axis = figure.subplots()
        for name, values in arrays.items():
            axis.hist(
                values, edges.tolist(), density=True, histtype="stepfilled", alpha=0.45, label=name
            )
        axis.set(xlabel=unit, ylabel="density", title=title)
        axis.legend()
    return figure


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]], *, across: str, up: str, title: str = ""
) -> Figure:
    """Curves over a common axis.

    Args:
        lines: by name, places across of shape [n], and values of shape [n], or [runs, n] for the
            mean of runs with the band from the least to the greatest.
        across: what the places are.
        up: what the values are.
        title: stands above.
    """
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(5.0, 3.2))
        axis = figure.subplots()
        for name, (places, values) in lines.items():
            some = np.atleast_2d(np.asarray(values, float))
            (line,) = axis.plot(np.asarray(places, float), some.mean(0), label=name)
            if len(some) > 1:
                band = some.min(0), some.max(0)
                axis.fill_between(
                    np.asarray(places, float), *band, color=line.get_color(), alpha=0.2, linewidth=0
                )
        axis.set(xlabel=across, ylabel=up, title=title)
        axis.grid(visible=True)
        axis.legend()
    return figure


def save(figure: Figure, file: Path) -> None:
    """Write a figure, in the format of the file's ending, moved over its target."""
    kind = file.suffix.removeprefix(".")
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        figure.savefig(part, format=kind, metadata=dict(VARYING[kind]))


def write(file: Path, picture: Picture) -> None:
    """Write points as a PNG of few colours, which holds what it shows as text.

    A file that shows the same already is left as it is: drawing takes a second.
    """
    told = json.dumps({"form": FORM, **asdict(picture)}, sort_keys=True)
    if file.exists() and shown_by(file) == told:
        return
    stream = io.BytesIO()
    points(picture).savefig(stream, format="png")
    notes = PngInfo()
    notes.add_text(TEXT, told)
    file.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(stream) as image, replacing(file) as part:
        few = image.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE)
        few.save(part, format="png", optimize=True, pnginfo=notes)


def shown_by(file: Path) -> str:
    """What a PNG says it shows; empty where it says nothing."""
    with Image.open(file) as image:
        image.load()
        return str(getattr(image, "text", {}).get(TEXT, ""))
