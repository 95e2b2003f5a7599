"""Pictures of the site as inline SVG: one style, colours from the page, readable in grey and dark.

Numbers are rounded to a tenth of a pixel, so that equal records give an equal file. What a picture
shows stands beside it as a table; its description says what the marks are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath
from numpy.typing import NDArray

WIDTH = 420.0  # of every picture, so that it fits a telephone unscaled
LEFT, RIGHT = 8.0, 8.0
STRIP = 46.0  # of a column
DASHES = ("", "6 3", "2 3", "8 3 2 3")
POINTS = 120  # the most of a drawn curve


@dataclass(frozen=True)
class Strip:
    """Paired gains of one column.

    Args:
        label: of the column.
        gains: by seed.
        mean: of the gains.
        low: lower end of the interval of the mean; None for one seed.
        high: its upper end.
        published: the gain that the paper prints; None for none.
        spread: how far the same seed moves under other code paths; None if not measured.
    """

    label: str
    gains: Mapping[int, float]
    mean: float
    low: float | None
    high: float | None
    published: float | None
    spread: float | None


def gains(strips: Sequence[Strip], unit: str) -> str:
    """For each column its gains, seed by seed, with mean, interval and what is published.

    Every column has the same scale, with 0 on it.
    """
    ends = [0.0]
    for strip in strips:
        ends += strip.gains.values()
        ends += (x for x in (strip.low, strip.high, strip.published) if x is not None)
    scale = _Scale.over(ends)
    height = STRIP * len(strips) + 32
    parts = []
    for number, strip in enumerate(strips):
        top = number * STRIP
        middle = top + 32
        text = f"{strip.mean:+.2f}"
        if strip.low is not None and strip.high is not None:
            text += f" [{strip.low:+.2f}, {strip.high:+.2f}]"
        parts += [
            f'<text x="{LEFT:.0f}" y="{top + 14:.0f}" class="t">{escape(strip.label)}</text>',
            f'<text x="{WIDTH - RIGHT:.0f}" y="{top + 14:.0f}" class="t end here">{text}</text>',
        ]
        if strip.spread:
            left, right = scale(-strip.spread), scale(strip.spread)
            parts.append(
                f'<rect x="{left:.1f}" y="{middle - 9:.1f}" width="{right - left:.1f}" height="18" '
                'class="band"/>'
            )
        parts.append('<g class="dots">')
        parts += (
            f'<circle cx="{scale(gain):.1f}" cy="{middle + _spread(place):.1f}">'
            f"<title>seed {seed}: {gain:+.2f}</title></circle>"
            for place, (seed, gain) in enumerate(sorted(strip.gains.items()))
        )
        parts.append("</g>")
        if strip.low is not None and strip.high is not None:
            parts.append(
                f'<path d="M{scale(strip.low):.1f} {middle - 5:.1f}v10m0 -5H{scale(strip.high):.1f}'
                'm0 -5v10" class="line"/>'
            )
        parts.append(
            f'<path d="M{scale(strip.mean):.1f} {middle - 9:.1f}v18" class="line strong"/>'
        )
        if strip.published is not None:
            parts.append(
                f'<path d="M{scale(strip.published):.1f} {middle - 6:.1f}l6 6l-6 6l-6 -6z" '
                f'class="printed"><title>published {strip.published:+.2f}</title></path>'
            )
    below = STRIP * len(strips) + 4
    axis = _axis(scale, below, 4.0, "gain" + (f" ({unit})" if unit else ""))
    zero = f'<path d="M{scale(0):.1f} 2V{below:.1f}" class="zero"/>'
    return _picture(
        [axis, zero, *parts],
        height,
        "Gains of the better row over the other, seed by seed: dots are seeds, the bar is the mean "
        "with its 95% interval, the open diamond the published gain, the dashed line no gain"
        + (", the shaded band the arithmetic spread." if any(s.spread for s in strips) else "."),
    )


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    across: str,
    up: str,
    told: str,
    band: tuple[float, float] | None = None,
) -> str:
    """Curves over a common axis, told apart by dashes and by their names at the top.

    Args:
        lines: by name the places across and the values; what is not finite is left out.
        across: what the places are.
        up: what the values are.
        told: what the picture shows, for those who cannot see it.
        band: a range across that is shaded.
    """
    found = {
        name: [
            (x, y)
            for x, y in _thinned(list(zip(*points, strict=True)))
            if math.isfinite(x) and math.isfinite(y)
        ]
        for name, points in lines.items()
    }
    found = {name: points for name, points in found.items() if points}
    if not found:
        return ""
    every = [point for points in found.values() for point in points]
    scale = _Scale.over([x for x, _ in every], left=44.0)
    top = 18.0 * len(found) + 8
    rise = _Scale.over([y for _, y in every], left=-(top + 150), right=-top)
    parts = []
    if band is not None:
        left, right = scale(band[0]), scale(band[1])
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="150" '
            'class="band"/>'
        )
    for tick in rise.ticks():
        y = -rise(tick)
        parts.append(
            f'<path d="M44 {y:.1f}H{WIDTH - RIGHT:.0f}" class="grid"/>'
            f'<text x="40" y="{y + 4:.1f}" class="t end soft">{_plain(tick)}</text>'
        )
    parts.append(_axis(scale, top + 154, top, across))
    for number, (name, points) in enumerate(found.items()):
        dash = DASHES[number % len(DASHES)]
        style = f' stroke-dasharray="{dash}"' if dash else ""
        tone = number % 4
        path = _path([(scale(x), -rise(y)) for x, y in points])
        at = 14 + 18 * number
        parts += [
            f'<path d="{path}" class="curve c{tone}"{style}/>',
            f'<path d="M{LEFT:.0f} {at - 4}h28" class="curve c{tone}"{style}/>',
            f'<text x="{LEFT + 34:.0f}" y="{at}" class="t">{escape(name)}</text>',
        ]
    if up:
        parts.append(f'<text x="{WIDTH - RIGHT:.0f}" y="14" class="t end soft">{escape(up)}</text>')
    return _picture(parts, top + 184, told)


def equation(latex: str, size: float = 17.0) -> str:
    """An equation as outlines, in the colour of the text; its source is the description.

    Args:
        latex: what stands between dollars, as far as matplotlib's mathtext goes.
        size: of its letters, in pixels.

    Raises:
        ValueError: mathtext cannot set it.
    """
    outline = TextPath((0, 0), f"${latex}$", size=size)
    box = outline.get_extents()
    path = _outlined(outline, box.ymax)
    width, height = box.xmax + 2, box.ymax - box.ymin + 4
    return (
        f'<svg class="equation" role="img" aria-label="{escape(latex)}" '
        f'viewBox="-1 -2 {width:.1f} {height:.1f}" width="{width:.0f}" height="{height:.0f}">'
        f'<path d="{path}"/></svg>'
    )


@dataclass(frozen=True)
class _Scale:
    """From numbers to pixels."""

    low: float
    high: float
    left: float
    right: float

    @classmethod
    def over(
        cls, numbers: Iterable[float], left: float = LEFT + 8, right: float = WIDTH - RIGHT - 8
    ) -> "_Scale":
        """What holds all numbers, with a little room at both ends."""
        values = list(numbers)
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or max(abs(high), 1.0) / 2
        return cls(low - room, high + room, left, right)

    def __call__(self, number: float) -> float:
        share = (number - self.low) / (self.high - self.low)
        return self.left + share * (self.right - self.left)

    def ticks(self) -> list[float]:
        """Some four round numbers."""
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
        first = math.ceil(self.low / step)
        return [step * n for n in range(first, math.floor(self.high / step) + 1)]


def _axis(scale: _Scale, below: float, top: float, name: str) -> str:
    """Ticks below a picture, and what they count."""
    parts = []
    for tick in scale.ticks():
        x = scale(tick)
        parts.append(
            f'<path d="M{x:.1f} {top:.1f}V{below:.1f}" class="grid"/>'
            f'<text x="{x:.1f}" y="{below + 12:.1f}" class="t mid soft">{_plain(tick)}</text>'
        )
    parts.append(
        f'<text x="{WIDTH - RIGHT:.0f}" y="{below + 22:.1f}" class="t end soft">'
        f"{escape(name)}</text>"
    )
    return "".join(parts)


def _plain(number: float) -> str:
    return f"{number + 0.0:.6g}"  # no negative zero


def _spread(place: int) -> float:
    """Where the dot of a seed lies above or below the middle, so that equal gains are seen."""
    return (-6.0, -2.0, 2.0, 6.0)[place % 4]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``POINTS`` of them, the first and the last among these."""
    if len(points) <= POINTS:
        return points
    return [points[round(n * (len(points) - 1) / (POINTS - 1))] for n in range(POINTS)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Points as a path of SVG: the first, and then the steps from each to the next, in few words.

    Steps are those between rounded points, so that no error grows along the path.
    """
    tenths = [(round(10 * x), round(10 * y)) for x, y in points]
    steps = [(x - left, y - above) for (left, above), (x, y) in pairwise(tenths)]
    words = ("l" if steps else "") + " ".join(f"{x / 10:g} {y / 10:g}" for x, y in steps)
    return f"M{tenths[0][0] / 10:g} {tenths[0][1] / 10:g}{words}".replace(" -", "-")


def _outlined(outline: Outline, top: float) -> str:
    """The outlines of letters as a path of SVG, whose y goes down."""
    parts = []
    for points, code in outline.iter_segments(simplify=False, curves=True):
        letter = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "z"}[int(code)]
        pairs: NDArray[np.float64] = np.asarray(points).reshape(-1, 2)
        texts = () if letter == "z" else (f"{x:.1f} {top - y:.1f}" for x, y in pairs)
        parts.append(letter + " ".join(texts))
    return "".join(parts)


def _picture(parts: Iterable[str], height: float, told: str) -> str:
    return (
        f'<svg class="picture" role="img" aria-label="{escape(told)}" '
        f'viewBox="0 0 {WIDTH:.0f} {height:.0f}">{"".join(parts)}</svg>'
    )
