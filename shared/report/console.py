"""A measured table for the terminal."""

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from shared.errors import program
from shared.report.measuring import Measured, MeasuredCell
from shared.report.wording import (
    TIER_NOTES,
    groups_of,
    headline,
    legend_of,
    marks_of,
    measured_lines,
    origin,
    published_row,
)

LABEL, HEADER = 26, 13  # characters of a line of a label; words are not broken
GAP = 2  # between columns
PAPER = "  paper"  # begins a line of published numbers


def say(console: Console, text: str) -> None:
    """Print a line as it is: not wrapped, without colours and markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def unbroken(text: str, style: str = "") -> Text:
    """A line with an address or a command, to be printed with ``crop=False``."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def empty_grid(names: Sequence[str], left: Collection[str]) -> Grid:
    """An empty table: the columns in ``left`` are aligned left, those of numbers right."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        grid.add_column(Text(name), justify="left" if name in left else "right", overflow="fold")
    return grid


def blocks(widths: Iterable[int], room: int) -> Iterator[slice]:
    """The slices of columns of these widths that fit beside each other."""
    first, left = 0, room
    for position, width in enumerate(widths):
        if position > first and width + GAP > left:
            yield slice(first, position)
            first, left = position, room
        left -= width + GAP
    yield slice(first, None)


@dataclass(frozen=True)
class Terminal:
    """A measured table for a console of any width; columns that do not fit go below the first."""

    measured: Measured  # the table, or a part of it
    results: Path  # the folder that its page will be in

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table in as many blocks as the width needs, then its notes."""
        measured = self.measured
        table = measured.table
        yield unbroken(f"{table.address} ({measured.scale}): {table.title}", "bold")
        first = _width([cells[0].row.label for cells in measured.cells], LABEL)
        parts = list(blocks(self._widths(), options.max_width - first))
        for part in parts:
            yield self._grid(part)
        if len(parts) > 1:
            yield Text(f"{len(measured.columns)} columns in {len(parts)} blocks, to fit the width")
        yield Text(headline(measured), style="dim")
        if measured.tier == "smoke":
            yield Text(TIER_NOTES["smoke"], style="yellow")
        elif told := origin(table.published):
            start = "paper: " if table.published.rows else ""
            yield Text(f"{start}{told}", style="dim italic")
        if missing := legend_of(measured):
            yield Text("; ".join(missing), style="dim")
        if measured.tier != "smoke":
            page = (self.results / measured.folder / f"{table.name}.md").as_posix()
            yield unbroken(f"Claims, deviations, runs: {program()} report writes {page}")

    def _widths(self) -> Iterator[int]:
        marks = marks_of(self.measured)
        rows = [(cells, published_row(cells, self.measured)) for cells in self.measured.cells]
        for position, column in enumerate(self.measured.columns):
            texts = [text for cells, _ in rows for text in _lines_of(cells[position], marks)]
            texts += [published[position] for _, published in rows if published]
            yield max(_width([column.label], HEADER), *map(len, texts))

    def _grid(self, block: slice) -> Grid:
        measured = self.measured
        grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        grid.add_column("method", no_wrap=True)
        for column in measured.columns[block]:
            header = Text("\n".join(_lines(column.label, HEADER)))
            grid.add_column(header, justify="right", no_wrap=True)
        marks = marks_of(measured)
        for heading, rows in groups_of(measured):
            grid.add_section()
            if heading:
                grid.add_row(Text(heading, style="italic"))
            for cells in rows:
                lines_of_cells = [_lines_of(cell, marks) for cell in cells[block]]
                grid.add_row(
                    Text("\n".join(_lines(cells[0].row.label, LABEL))),
                    *(_cell(*pair) for pair in zip(cells[block], lines_of_cells, strict=True)),
                )
                if published := published_row(cells, measured):
                    grid.add_row(*(Text(t, style="dim italic") for t in (PAPER, *published[block])))
        return grid


def _lines_of(cell: MeasuredCell, marks: Mapping[str, int]) -> list[str]:
    """The text of a cell; where seeds are missing, with the marks of the reasons."""
    first, *further = measured_lines(cell, marks)
    if cell.values and cell.missing:
        reasons = ", ".join(map(str, sorted({marks[why] for why in cell.missing.values()})))
        further = [f"{text} ({reasons})" for text in further]
    return [first, *further]


def _cell(cell: MeasuredCell, lines: Sequence[str]) -> Text:
    first, further = ("", "yellow") if cell.values else ("dim", "dim")
    text = Text(lines[0], style=first)
    text.append("".join(f"\n{line}" for line in lines[1:]), style=further)
    return text


def _lines(label: str, width: int) -> list[str]:
    """A label wrapped between words."""
    return textwrap.wrap(label, width, break_long_words=False, break_on_hyphens=False) or [""]


def _width(labels: Sequence[str], width: int) -> int:
    return max(len(line) for label in labels for line in _lines(label, width))
