"""Pictures: points with intervals, histograms, curves, and images in a grid.

Callers supply numbers and text; style and file formats are set here. Equal numbers give equal
files.
"""

import io
import itertools
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

from shared.errors import naming
from shared.experiment.files import replacing

INK, GREY, RULE, BAND = "#1d2433", "#5d6678", "#d5dae2", "#f5f6f9"
BLUE, RED, GREEN = "#0b4f8a", "#c8553d", "#0b7a75"
# Okabe and Ito's colours without yellow: distinct for all colour vision, and in grey.
CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
DASHES = ("-", "--", ":", "-.")  # for names that share a colour
# For horizontal lines that have no curve.
LEVEL_DASHES: tuple[Any, ...] = ("--", ":", "-.", (0, (8, 3)), (0, (5, 1, 1, 1, 1, 1)))
STYLE: dict[Any, Any] = {
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
PUBLISHED: dict[str, Any] = {"marker": "D", "markersize": 3.6, "mec": INK, "mfc": "white"}
RULE_LINE: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (4, 2))}
MARGIN: dict[str, Any] = {"color": INK, "marker": "|", "markersize": 9, "mew": 1.0}
LINE_HEIGHT = 0.19  # inches of a line of points
UNIT_LENGTH = 28  # characters of a scale's label that fit below a panel with others beside it
CHARACTER_WIDTH = 0.056  # inches of a character of a note
WIDTH, LEAST_WIDTH = 9.0, 6.5  # inches of a figure of images, and of any figure at least
LINE_SPACING = 9  # points from one line of text above a histogram to the next
THOUSANDS = 10_000  # from here on ticks are written like 10k
DPI = 150  # of a figure in its own file
TITLED = "titled"  # identifies the legend whose title is that of the figure
COLORS = 128  # in a picture of points; rare colours are kept, as they have a meaning
TEXT_KEY = "Numbers"  # of the text in a PNG file
TEXT_VERSION = "points-v5"  # change it with the style, so that files are drawn again
# Metadata that would differ between equal drawings, by format.
METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class Point:
    """A number with its interval, on a line of a panel."""

    value: float  # finite
    low: float | None = None  # lower end of its interval; None where it has none
    high: float | None = None  # the upper end
    published: float | None = None  # what a paper gives for it; None where it gives nothing
    color: str = BLUE  # of the mark and its interval
    note: str = ""  # a few words at the end of the line
    marker: str = "o"  # its shape, as matplotlib names them
    # Ends of the range within which it counts as no difference, drawn as ticks.
    margin: tuple[float, ...] = ()


@dataclass(frozen=True)
class Mean(Point):
    """A mean, with the averaged numbers as small marks."""

    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Points on lines with a common scale."""

    title: str
    unit: str  # label of the scale
    # By label, the points of a line, drawn one below the other; empty for an empty line.
    lines: Mapping[str, Sequence[Point]]
    rule: float | None = None  # position of a dashed line through the panel; None for none

    def points(self) -> Iterator[Point]:
        """The points of all lines."""
        return itertools.chain.from_iterable(self.lines.values())


def narrow(unit: str) -> str:
    """The label of a scale in lines that end before the next panel begins."""
    return "\n".join(textwrap.wrap(unit, UNIT_LENGTH))


@dataclass(frozen=True)
class Picture:
    """Panels of points with intervals; those beside each other share the labels of their lines."""

    panels: Sequence[Panel]  # at least one; those of one row of the picture have the same lines
    across: int  # how many panels stand beside each other
    legend: Mapping[str, str]  # the colours of points by their meaning
    published: str = ""  # the meaning of open marks; empty without any
    rule: str = ""  # the meaning of the dashed lines; empty for none in the legend
    # Their shapes by their meaning, where not a disc.
    markers: Mapping[str, str] = field(default_factory=dict)


def points(picture: Picture, *, one_scale: bool = False) -> Figure:
    """Draw points with intervals; panels below each other with one unit have one scale.

    With ``one_scale`` all panels have the same.
    """
    panels = picture.panels
    if not panels:
        raise ValueError("a picture needs at least one panel")
    columns = min(picture.across, len(panels))
    rows = math.ceil(len(panels) / columns)
    heights = [
        LINE_HEIGHT * sum(_height(*line) for line in panels[row * columns].lines.items())
        for row in range(rows)
    ]
    drawn = [point for panel in panels for point in panel.points()]
    note = CHARACTER_WIDTH * max((len(point.note) for point in drawn), default=0)
    width = max(6.4 if note else 8.4, 2.9 + 2.1 * columns) + note
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, 0.45 + sum(heights) + 0.68 * rows))
        grid_axes = figure.subplots(
            rows, columns, sharex=one_scale, squeeze=False, height_ratios=heights
        )
        axes = list(grid_axes.flat)
        for number, axis in enumerate(axes):
            if number < len(panels):
                _draw_panel(axis, panels[number], labelled=number % columns == 0)
            else:
                axis.set_axis_off()
        if columns == 1:
            for unit in {panel.unit for panel in panels}:
                _share_scale([axis for axis, p in zip(axes, panels, strict=True) if p.unit == unit])
        marks = _legend_marks(picture)
        legend = figure.legend(handles=marks, loc="outside upper left", ncols=len(marks))
        legend.set_gid(TITLED)
    return figure


def _share_scale(axes: Sequence[Axes]) -> None:
    """Give all axes the range that holds those of each."""
    lows, highs = zip(*(axis.get_xlim() for axis in axes), strict=True)
    for axis in axes:
        axis.set_xlim(min(lows), max(highs))


def _placed(panel: Panel) -> Iterator[tuple[float, Point]]:
    """The points of a panel with their heights."""
    top = 0
    for label, line in panel.lines.items():
        height = _height(label, line)
        for row, point in enumerate(line):
            yield top + row + (height - len(line)) / 2, point
        top += height


def _legend_marks(picture: Picture) -> list[Line2D]:
    """What the legend explains."""
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
        marks.append(Line2D([], [], label=picture.published, linestyle="", **PUBLISHED))
    if picture.rule:
        marks.append(Line2D([], [], label=picture.rule, **RULE_LINE))
    if any(point.margin for panel in picture.panels for point in panel.points()):
        marks.append(Line2D([], [], label="margin of the claim", linestyle="", **MARGIN))
    return marks


def _height(label: str, line: Sequence[Point]) -> int:
    """The height of a line in lines of text: its points or its label, whichever needs more."""
    return max(1, len(line), label.count("\n") + 1)


def _draw_panel(axis: Axes, panel: Panel, *, labelled: bool) -> None:
    top, ticks = 0, []
    for number, (label, line) in enumerate(panel.lines.items()):
        height = _height(label, line)
        ticks.append(top + (height - 1) / 2)
        if number % 2 == 0:
            axis.axhspan(top - 0.5, top + height - 0.5, color=BAND, linewidth=0, zorder=0)
        top += height
    for y, point in _placed(panel):
        _draw_point(axis, y, point)
    if panel.rule is not None:
        axis.axvline(panel.rule, zorder=1, **RULE_LINE)
    axis.set_ylim(top - 0.5, -0.5)
    axis.set_yticks(ticks, list(panel.lines) if labelled else [""] * len(ticks))
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x")
    axis.margins(x=0.06)
    axis.set_title(panel.title)
    axis.set_xlabel(panel.unit, loc="left")


def _draw_point(axis: Axes, y: float, point: Point) -> None:
    if point.low is not None and point.high is not None:
        axis.plot([point.low, point.high], [y, y], color=point.color, linewidth=1.3)
    if isinstance(point, Mean):
        ys = [y] * len(point.values)
        axis.plot(point.values, ys, "o", color=point.color, alpha=0.5, markersize=2.5, mew=0)
    axis.plot([point.value], [y], point.marker, color=point.color, markersize=4.5)
    if point.margin:
        axis.plot(point.margin, [y] * len(point.margin), linestyle="", **MARGIN)
    if point.published is not None:
        axis.plot([point.published], [y], linestyle="", **PUBLISHED)
    if point.note:
        axis.annotate(
            point.note,
            (1.0, y),
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
    """A panel of curves over one axis."""

    title: str
    x_label: str
    y_label: str
    # By name, the values of all runs at each x: their mean is drawn and, if there are several, a
    # band of one standard deviation.
    lines: Mapping[str, Mapping[float, Sequence[float]]]
    # By name, horizontal lines; one with the name of a curve has its colour.
    levels: Mapping[str, float] = field(default_factory=dict)
    limits: tuple[float, float] | None = None  # of the y axis; None for automatic ones
    shade: tuple[float, float] | None = None  # range of y values that is shaded; None for none


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
    with mpl.rc_context(STYLE):
        figure, axes = grid(len(panels), across)
        names = dict.fromkeys(name for panel in panels for name in panel.lines)
        level_names = dict.fromkeys(n for panel in panels for n in panel.levels if n not in names)
        level_styles = {
            name: {"color": GREY, "linewidth": 1, "linestyle": dash}
            for name, dash in zip(level_names, itertools.cycle(LEVEL_DASHES), strict=False)
        }
        xs = sorted({x for panel in panels for line in panel.lines.values() for x in line})
        positions = {x: number for number, x in enumerate(xs)} if even else {x: x for x in xs}
        for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
            styles = _styles(names if together else panel.lines, ordered=ordered)
            for name, line in panel.lines.items():
                runs = {positions[x]: line[x] for x in sorted(line)}
                _draw_curve(axis, runs, bars=even, label=name, **styles[name])
            for name, value in panel.levels.items():
                if name in styles:
                    axis.axhline(value, **styles[name] | {"linestyle": ":"})
                else:
                    axis.axhline(value, label=name, **level_styles[name])
            if panel.shade:
                axis.axhspan(*panel.shade, color=RULE, alpha=0.5, linewidth=0, zorder=0)
            axis.set(title=panel.title, ylim=panel.limits)
            axis.set(xlabel=panel.x_label, ylabel=panel.y_label)
            axis.grid(visible=True)
            if even:
                axis.set_xticks(range(len(xs)), [f"{x:.4g}" for x in xs], rotation=45)
            elif xs and xs[-1] >= THOUSANDS:
                axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            elif all(float(x).is_integer() for x in xs):
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            if not (panel.lines or panel.levels):
                axis.set_axis_off()
            elif not together and number >= len(panels) - across:
                axis.legend()
        if together:
            _legend_beside(figure)
    return figure


def _draw_curve(
    axis: Axes, runs: Mapping[float, Sequence[float]], *, bars: bool, label: str, **style: Any
) -> None:
    """Draw the mean of all runs at each x, with their deviations as bars or as a band."""
    xs = list(runs)
    means = np.array([np.mean(values) for values in runs.values()])
    deviations = np.array([np.std(v, ddof=1) if len(v) > 1 else 0 for v in runs.values()])
    if bars:
        axis.errorbar(
            xs, means, deviations, label=label, marker="o", markersize=3, capsize=2, **style
        )
        return
    axis.plot(xs, means, label=label, **style)
    if deviations.any():
        ends = means - deviations, means + deviations
        axis.fill_between(xs, *ends, color=style["color"], alpha=0.15, linewidth=0)


@dataclass(frozen=True)
class Histogram:
    """A panel of distributions."""

    title: str
    # By name, the values of each; empty if there are none yet, which the panel says.
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
    all_values = np.concatenate([values for groups in arrays for values in groups.values()])
    edges = np.histogram_bin_edges(all_values, bins, limits)
    styles = _styles(dict.fromkeys(name for groups in arrays for name in groups))
    with mpl.rc_context(STYLE):
        figure, axes = grid(len(panels), across)
        for axis, panel, groups in zip(axes, panels, arrays, strict=True):
            axis.set(title=panel.title, xlabel=unit, ylabel="density", xlim=(edges[0], edges[-1]))
            if not groups:
                axis.text(0.5, 0.5, "no finished run", ha="center", transform=axis.transAxes)
            if band:
                axis.set_title(panel.title, pad=7 + LINE_SPACING * len(groups))
                axis.axvspan(*band, color=RULE, alpha=0.5, linewidth=0, zorder=0)
            for number, (name, values) in enumerate(groups.items()):
                color = styles[name]["color"]
                density, _ = np.histogram(values, edges, density=True)
                axis.stairs(density, edges, label=name, **styles[name])
                if len(groups) == 2:
                    axis.stairs(density, edges, fill=True, color=color, alpha=0.3)
                if band:
                    mean, inside = values.mean(), ((band[0] < values) & (values < band[1])).mean()
                    axis.axvline(mean, color=color, linewidth=0.9, linestyle="--")
                    # Above the axes, clear of the histograms; the colours make it the legend.
                    axis.annotate(
                        f"{name}: mean {mean:.2f}, {100 * inside:.0f}% in band",
                        (0, 1),
                        (0, 3 + LINE_SPACING * (len(groups) - 1 - number)),
                        xycoords="axes fraction",
                        textcoords="offset points",
                        color=color,
                        fontsize=7,
                    )
        if not band:
            _legend_beside(figure)
    return figure


@dataclass(frozen=True)
class Tile:
    """An image with a title."""

    image: ArrayLike  # shape [height, width, 3]
    title: str
    color: str = INK  # of the title


def images(rows: Sequence[Sequence[Tile]]) -> Figure:
    """Draw images of one size, row by row; all rows have one length."""
    tiles = [tile for row in rows for tile in row]
    across = len(rows[0])
    height, width, _ = np.shape(tiles[0].image)
    tile_width = WIDTH / across
    tile_height = tile_width * height / width + 0.17 * max(t.title.count("\n") + 2 for t in tiles)
    with mpl.rc_context(STYLE):
        figure, axes = grid(len(tiles), across, (tile_width, tile_height))
        for axis, tile in zip(axes, tiles, strict=True):
            axis.imshow(np.asarray(tile.image))
            axis.set_title(tile.title, color=tile.color, fontsize=7.5, pad=3)
            axis.set_axis_off()
    return figure


def grid(
    count: int, across: int, size: tuple[float, float] = (2.7, 2.3)
) -> tuple[Figure, list[Axes]]:
    """A figure with axes for some panels, line by line, ``across`` at most beside each other.

    ``size`` is that of a panel in inches, width and height.
    """
    if not count:
        raise ValueError("a picture needs at least one panel")
    columns = min(across, count)
    rows = math.ceil(count / columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(LEAST_WIDTH, size[0] * columns), 0.8 + size[1] * rows))
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def label(figure: Figure, title: str, caption: str) -> None:
    """Write a title above a figure and a caption below it."""
    font = FontProperties(size=10, weight="bold")
    if figure.legends and figure.legends[0].get_gid() == TITLED:
        figure.legends[0].set_title(title, font)
        figure.legends[0].set_alignment("left")
        figure.set_figheight(figure.get_figheight() + 0.7)
    else:
        figure.suptitle(title, color=INK, fontproperties=font)
    figure.supxlabel(caption, fontsize=6.5, color=GREY, wrap=True)


def _styles(names: Iterable[str], *, ordered: bool = False) -> dict[str, dict[str, Any]]:
    """Colour and dash of each name."""
    names = list(names)
    if ordered:
        shades = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(names)))
        return {
            n: {"color": shade, "linewidth": 1.3} for n, shade in zip(names, shades, strict=True)
        }
    return {
        name: {
            "color": CYCLE[number % len(CYCLE)],
            "linestyle": DASHES[number // len(CYCLE) % len(DASHES)],
            "linewidth": 1.3,
        }
        for number, name in enumerate(names)
    }


def _legend_beside(figure: Figure) -> None:
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
    stream = io.BytesIO()  # on a full disk the PDF of matplotlib fails with another error
    with mpl.rc_context({"pdf.fonttype": 42}):  # TrueType; conferences refuse the default, Type 3
        figure.savefig(stream, format=kind, dpi=DPI, metadata=dict(METADATA[kind]))
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part, naming("write", file):
        part.write_bytes(stream.getvalue())


def write(file: Path, picture: Picture) -> None:
    """Write points as a PNG of few colours, with its numbers as text in the file.

    A file with the same numbers is left unchanged, since drawing takes a second.
    """
    numbers = json.dumps({"form": TEXT_VERSION, **asdict(picture)}, sort_keys=True)
    if file.exists() and shown_by(file) == numbers:
        return
    figure, stream = points(picture), io.BytesIO()
    figure.savefig(stream, format="png")
    metadata = PngInfo()
    metadata.add_text(TEXT_KEY, numbers)
    with Image.open(stream) as image, replacing(file) as part:
        reduced = image.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE)
        reduced.save(part, format="png", optimize=True, pnginfo=metadata)


def shown_by(file: Path) -> str:
    """The numbers that :func:`write` left in a PNG, as JSON; empty in any other."""
    with Image.open(file) as image:
        image.load()
        return str(getattr(image, "text", {}).get(TEXT_KEY, ""))
