"""Pictures: points with intervals, histograms, curves, and images in a grid.

Callers supply numbers and text; style and file formats are set here. Equal numbers give equal
files.
"""

import io
import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import ArrayLike
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from shared.experiment.files import replacing

INK, GREY, RULE, BAND = "#1d2433", "#5d6678", "#d5dae2", "#f5f6f9"
BLUE, RED, GREEN = "#0b4f8a", "#c8553d", "#0b7a75"
# Okabe and Ito's colours without yellow: distinct for all colour vision, and in grey.
CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
DASHES = ("-", "--", ":", "-.")  # for names that share a colour
LEVELS: tuple[Any, ...] = ("--", ":", "-.", (0, (8, 3)), (0, (5, 1, 1, 1, 1, 1)))  # across panels
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
SCALE = 28  # characters below a panel that has others beside it
NOTE = 0.056  # inches of a character of a note
WIDTH, NARROW = 9.0, 6.5  # inches of a figure of images, and of any figure at least
LEADING = 9  # points from one line of notes above a panel to the next
THOUSANDS = 10_000  # from here on ticks are written like 10k
DPI = 150  # of a figure in its own file
ABOVE = "above"  # marks a legend in the place of a title
COLORS = 128  # in a picture of points; rare colours are kept, as they have a meaning
TEXT, FORM = (
    "Numbers",
    "points-v4",
)  # key and version of the text in a file; change the version with the style
# Metadata that would differ between equal drawings, by format.
VARYING: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class Point:
    """A number with its interval, on a line of a panel.

    Args:
        value: the number, finite.
        low: lower end of its interval; None where it has none.
        high: the upper end.
        published: what a paper gives for it; None where it gives nothing.
        published_error: standard error of that number, for a thin line, its 95% interval; 0: none.
        color: of the mark and its interval.
        note: a few words at the end of the line.
        marker: its shape, as matplotlib names them.
    """

    value: float
    low: float | None = None
    high: float | None = None
    published: float | None = None
    published_error: float = 0.0
    color: str = BLUE
    note: str = ""
    marker: str = "o"


@dataclass(frozen=True)
class Mean(Point):
    """A mean over seeds, with the averaged numbers as small marks.

    Args:
        each: the averaged numbers.
    """

    each: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Points on lines with a common scale.

    Args:
        title: the title above.
        unit: the label of the scale.
        lines: by label, the points of a line, drawn one below the other; empty for an empty line.
        rule: position of a dashed line through the panel; None for none.
    """

    title: str
    unit: str
    lines: Mapping[str, Sequence[Point]]
    rule: float | None = None

    def every(self) -> Iterator[Point]:
        """The points of all lines."""
        return (point for some in self.lines.values() for point in some)


def narrow(unit: str) -> str:
    """The label of a scale in lines that end before the next panel begins."""
    return "\n".join(textwrap.wrap(unit, SCALE))


@dataclass(frozen=True)
class Picture:
    """Panels of points with intervals; those beside each other share the labels of their lines.

    Args:
        panels: at least one; those of one row of the picture have the same lines.
        across: the number of panels beside each other.
        legend: the colours of points by their meaning.
        markers: their shapes by their meaning, where not a disc.
        published: the meaning of open marks; empty without any.
        rule: the meaning of the dashed lines; empty for none in the legend.
    """

    panels: Sequence[Panel]
    across: int
    legend: Mapping[str, str]
    published: str = ""
    rule: str = ""
    markers: Mapping[str, str] = field(default_factory=dict)


def points(picture: Picture, *, one_scale: bool = False) -> Figure:
    """Draw points with intervals; panels below each other with one unit have one scale.

    Args:
        picture: what is drawn.
        one_scale: whether all panels have the same scale.
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
        notes = max((len(point.note) for panel in panels for point in panel.every()), default=0)
        width = max(8.4 if not notes else 6.4, 2.9 + 2.1 * across) + NOTE * notes
        size = (width, 0.45 + sum(heights) + 0.68 * down)
        figure = Figure(figsize=size)
        axes = figure.subplots(down, across, sharex=one_scale, squeeze=False, height_ratios=heights)
        for place, axis in enumerate(axes.flat):
            if place < len(panels):
                _draw(axis, panels[place], labelled=place % across == 0)
            else:
                axis.set_axis_off()
        if across == 1:
            for unit in {panel.unit for panel in panels}:
                some = [
                    a for a, panel in zip(axes.flat, panels, strict=False) if panel.unit == unit
                ]
                limits = [axis.get_xlim() for axis in some]
                for axis in some:
                    axis.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
        marks = [
            Line2D(
                [],
                [],
                color=color,
                marker=picture.markers.get(meaning, "o"),
                markersize=4,
                linewidth=1.2,
                label=meaning,
            )
            for meaning, color in picture.legend.items()
        ]
        if picture.published:
            errors = any(point.published_error for panel in panels for point in panel.every())
            line = _INTERVAL if errors else {"linestyle": ""}
            marks.append(Line2D([], [], label=picture.published, **line, **_PUBLISHED))
        if picture.rule:
            marks.append(Line2D([], [], label=picture.rule, **_RULE))
        legend = figure.legend(handles=marks, loc="outside upper left", ncols=len(marks))
        legend.set_gid(ABOVE)
    return figure


_PUBLISHED: dict[str, Any] = {"marker": "D", "markersize": 3.6, "mec": INK, "mfc": "white"}
_INTERVAL: dict[str, Any] = {"color": INK, "linewidth": 0.6}  # of a published number
_RULE: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (4, 2))}


def _height(label: str, some: Sequence[Point]) -> int:
    """The height of a line in text lines: of its points or its label, whichever is more."""
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
    if isinstance(point, Mean):
        each = [at] * len(point.each)
        axis.plot(point.each, each, "o", color=point.color, alpha=0.5, markersize=2.5, mew=0)
    axis.plot([point.value], [at], point.marker, color=point.color, markersize=4.5)
    if point.published is not None:
        if point.published_error:
            ends = [point.published + sign * 1.96 * point.published_error for sign in (-1, 1)]
            axis.plot(ends, [at + 0.25, at + 0.25], **_INTERVAL)
        axis.plot([point.published], [at], linestyle="", **_PUBLISHED)
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


@dataclass(frozen=True)
class Curves:
    """A panel of curves over one axis.

    Args:
        title: the title above.
        across: label of the x axis.
        up: label of the y axis.
        lines: by name, the values of all runs at each x: their mean is drawn and, if there are
            several, a band of one standard deviation.
        levels: by name, horizontal lines; one with the name of a curve has its colour.
        limits: of the y axis; None for automatic ones.
        shade: range of y values that is shaded; None for none.
    """

    title: str
    across: str
    up: str
    lines: Mapping[str, Mapping[float, Sequence[float]]]
    levels: Mapping[str, float] = field(default_factory=dict)
    limits: tuple[float, float] | None = None
    shade: tuple[float, float] | None = None


def curves(
    panels: Sequence[Curves],
    across: int,
    *,
    even: bool = False,
    ordered: bool = False,
    together: bool = True,
) -> Figure:
    """Draw curves; a panel without any stays empty.

    Args:
        panels: at least one.
        across: the number of panels beside each other.
        even: whether x values are evenly spaced on the axis, whatever they are; one may be
            infinite.
        ordered: whether the names have an order, which their colours then show.
        together: whether a name has one colour in all panels, and all share one legend; else each
            panel in the last line has a legend, which also applies to those above it.
    """
    with mpl.rc_context(LOOK):
        figure, axes = grid(len(panels), across)
        every = dict.fromkeys(name for panel in panels for name in panel.lines)
        across_only = dict.fromkeys(n for panel in panels for n in panel.levels if n not in every)
        levels = {
            name: {"color": GREY, "linewidth": 1, "linestyle": LEVELS[number % len(LEVELS)]}
            for number, name in enumerate(across_only)
        }
        places = sorted({x for panel in panels for line in panel.lines.values() for x in line})
        ticks = {x: number for number, x in enumerate(places)} if even else {x: x for x in places}
        for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
            looks = _looks(every if together else panel.lines, ordered=ordered)
            for name, line in panel.lines.items():
                _curve(axis, {ticks[x]: line[x] for x in sorted(line)}, even, name, looks[name])
            for name, value in panel.levels.items():
                look = looks[name] | {"linestyle": ":"} if name in looks else levels[name]
                axis.axhline(value, label="" if name in looks else name, **look)
            if panel.shade:
                axis.axhspan(*panel.shade, color=RULE, alpha=0.5, linewidth=0, zorder=0)
            axis.set(title=panel.title, xlabel=panel.across, ylabel=panel.up, ylim=panel.limits)
            axis.grid(visible=True)
            if even:
                axis.set_xticks(range(len(places)), [f"{x:.4g}" for x in places], rotation=45)
            elif places and places[-1] >= THOUSANDS:
                axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            elif all(float(x).is_integer() for x in places):
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            if not (panel.lines or panel.levels):
                axis.set_axis_off()
            elif not together and number >= len(panels) - across:
                axis.legend()
        if together:
            _legend(figure)
    return figure


def _curve(
    axis: Axes, line: Mapping[float, Sequence[float]], even: bool, name: str, look: dict[str, Any]
) -> None:
    places = list(line)
    means = np.array([np.mean(values) for values in line.values()])
    deviations = np.array([np.std(v, ddof=1) if len(v) > 1 else 0 for v in line.values()])
    if even:
        axis.errorbar(
            places, means, deviations, label=name, marker="o", markersize=3, capsize=2, **look
        )
        return
    axis.plot(places, means, label=name, **look)
    if deviations.any():
        ends = means - deviations, means + deviations
        axis.fill_between(places, *ends, color=look["color"], alpha=0.15, linewidth=0)


@dataclass(frozen=True)
class Histogram:
    """A panel of distributions.

    Args:
        title: the title above.
        groups: by name, the values of each; empty if there are none yet, which the panel says.
    """

    title: str
    groups: Mapping[str, ArrayLike]


def histograms(
    panels: Sequence[Histogram],
    across: int,
    *,
    unit: str,
    bins: int = 50,
    limits: tuple[float, float] | None = None,
    band: tuple[float, float] | None = None,
) -> Figure:
    """Draw densities over common bins.

    Args:
        panels: at least one, one of them with values.
        across: the number of panels beside each other.
        unit: label of the x axis.
        bins: the number of bins.
        limits: range of the bins; None for the range of all values.
        band: an interval that is shaded; means and the share of values in it are then shown.
    """
    arrays = [{name: np.ravel(values) for name, values in p.groups.items()} for p in panels]
    every = [values for groups in arrays for values in groups.values()]
    edges = np.histogram_bin_edges(np.concatenate(every), bins, limits)
    looks = _looks(dict.fromkeys(name for groups in arrays for name in groups))
    with mpl.rc_context(LOOK):
        figure, axes = grid(len(panels), across)
        for axis, panel, groups in zip(axes, panels, arrays, strict=True):
            axis.set(title=panel.title, xlabel=unit, ylabel="density", xlim=(edges[0], edges[-1]))
            if not groups:
                axis.text(0.5, 0.5, "no finished run", ha="center", transform=axis.transAxes)
            if band:
                axis.set_title(panel.title, pad=7 + LEADING * len(groups))
                axis.axvspan(*band, color=RULE, alpha=0.5, linewidth=0, zorder=0)
            for number, (name, values) in enumerate(groups.items()):
                look = looks[name]
                density, _ = np.histogram(values, edges, density=True)
                axis.stairs(density, edges, label=name, **look)
                if len(groups) == 2:
                    axis.stairs(density, edges, fill=True, color=look["color"], alpha=0.3)
                if band:
                    mean, inside = values.mean(), ((band[0] < values) & (values < band[1])).mean()
                    axis.axvline(mean, color=look["color"], linewidth=0.9, linestyle="--")
                    # Above the axes, clear of the histograms; the colours make it the legend.
                    axis.annotate(
                        f"{name}: mean {mean:.2f}, {100 * inside:.0f}% in band",
                        (0, 1),
                        (0, 3 + LEADING * (len(groups) - 1 - number)),
                        xycoords="axes fraction",
                        textcoords="offset points",
                        color=look["color"],
                        fontsize=7,
                    )
        if not band:
            _legend(figure)
    return figure


@dataclass(frozen=True)
class Tile:
    """An image with a title.

    Args:
        image: shape [height, width, 3].
        title: the title above.
        color: of the title.
    """

    image: ArrayLike
    title: str
    color: str = INK


def images(rows: Sequence[Sequence[Tile]]) -> Figure:
    """Draw images of one size, row by row.

    Args:
        rows: at least one; all of one length.
    """
    height, width, _ = np.shape(rows[0][0].image)
    across = len(rows[0])
    tall = WIDTH / across * height / width + 0.17 * max(
        tile.title.count("\n") + 2 for row in rows for tile in row
    )
    with mpl.rc_context(LOOK):
        figure, axes = grid(across * len(rows), across, (WIDTH / across, tall))
        for axis, tile in zip(axes, (tile for row in rows for tile in row), strict=True):
            axis.imshow(np.asarray(tile.image))
            axis.set_title(tile.title, color=tile.color, fontsize=7.5, pad=3)
            axis.set_axis_off()
    return figure


def grid(
    count: int, across: int, size: tuple[float, float] = (2.7, 2.3)
) -> tuple[Figure, list[Axes]]:
    """A figure with axes for some panels, line by line.

    Args:
        count: of the panels; at least one.
        across: the largest number of panels beside each other.
        size: of a panel in inches, width and height.
    """
    if not count:
        raise ValueError("a picture needs at least one panel")
    across = min(across, count)
    down = math.ceil(count / across)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(max(NARROW, size[0] * across), 0.8 + size[1] * down))
        axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def label(figure: Figure, title: str, caption: str) -> None:
    """Write a title above a figure and a caption below it."""
    look = FontProperties(size=10, weight="bold")
    if figure.legends and figure.legends[0].get_gid() == ABOVE:
        figure.legends[0].set_title(title, look)
        figure.legends[0].set_alignment("left")
        figure.set_figheight(figure.get_figheight() + 0.7)
    else:
        figure.suptitle(title, color=INK, fontproperties=look)
    figure.supxlabel(caption, fontsize=6.5, color=GREY, wrap=True)


def _looks(names: Iterable[str], *, ordered: bool = False) -> dict[str, dict[str, Any]]:
    """Colour and dash of each name."""
    named = list(names)
    if ordered:
        shades = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(named)))
        return {
            name: {"color": shade, "linewidth": 1.3}
            for name, shade in zip(named, shades, strict=True)
        }
    return {
        name: {
            "color": CYCLE[number % len(CYCLE)],
            "linestyle": DASHES[number // len(CYCLE) % len(DASHES)],
            "linewidth": 1.3,
        }
        for number, name in enumerate(named)
    }


def _legend(figure: Figure) -> None:
    """One legend for all panels, beside them; the figure grows by its width."""
    handles: dict[str, Artist] = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.set_figwidth(figure.get_figwidth() + 0.6 + 0.065 * max(map(len, handles)))
    figure.legend(list(handles.values()), list(handles), loc="outside right center")


def save(figure: Figure, file: Path) -> None:
    """Write a figure atomically, in the format of the file's ending."""
    kind = file.suffix.removeprefix(".")
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        figure.savefig(part, format=kind, dpi=DPI, metadata=dict(VARYING[kind]))


def write(file: Path, picture: Picture) -> None:
    """Write points as a PNG of few colours, with its numbers as text in the file, and as a PDF.

    Files with the same numbers are left unchanged, since drawing takes a second.
    """
    numbers = json.dumps({"form": FORM, **asdict(picture)}, sort_keys=True)
    vectors = file.with_suffix(".pdf")
    if file.exists() and vectors.exists() and shown_by(file) == numbers:
        return
    figure, stream = points(picture), io.BytesIO()
    figure.savefig(stream, format="png")
    notes = PngInfo()
    notes.add_text(TEXT, numbers)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(vectors) as part:
        figure.savefig(part, format="pdf", metadata=dict(VARYING["pdf"]))
    with Image.open(stream) as image, replacing(file) as part:
        few = image.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE)
        few.save(part, format="png", optimize=True, pnginfo=notes)


def shown_by(file: Path) -> str:
    """The numbers in the text of a PNG; empty without any."""
    with Image.open(file) as image:
        image.load()
        return str(getattr(image, "text", {}).get(TEXT, ""))
