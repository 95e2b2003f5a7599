"""A measured table in the terminal."""

import textwrap

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from shared.report.blocks import Block, Lines, Numbers, numbers_of, reasons_of
from shared.report.measuring import Measured
from shared.report.statistics import Kind
from shared.report.wording import (
    HERE,
    groups_of,
    headline,
    legend_of,
    marks_of,
    measured_lines,
    no_numbers,
    printed_row,
    tier_note,
)

NARROW = 12  # characters of a column in the terminal, so that five of them fit
KIND_COLOURS: dict[Kind, str] = {
    "reproduced": "green",
    "same direction": "cyan",
    "not reproduced": "red",
    "inconclusive": "yellow",
    "gain": "cyan",
    "no gain": "red",
    "undecided": "yellow",
    "no evidence": "magenta",
    "not run": "bright_black",
}


def terminal(measured: Measured) -> RenderableType:
    """The table, its verdicts and its legend for the terminal; fits 100 columns."""
    table = measured.table
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("method", max_width=26)
    grid.add_column("whose", no_wrap=True)
    for column in measured.columns:
        grid.add_column("\n".join(textwrap.wrap(column.label, NARROW)), justify="right")
    marks = marks_of(measured)
    for heading, rows in groups_of(measured):
        grid.add_section()
        if heading:
            grid.add_row(Text(heading, style="italic"))
        for cells in rows:
            here = [measured_lines(cell, marks) for cell in cells]
            height = max(map(len, here))
            printed = printed_row(cells, measured)
            whose = Text("here" + "\n" * (height - 1))
            if printed:
                whose.append("\npaper", style="dim italic")
            texts = []
            for index, lines in enumerate(here):
                first, further = ("", "yellow") if cells[index].values else ("dim", "dim")
                text = Text(lines[0], style=first)
                text.append("".join("\n" + line for line in lines[1:]), style=further)
                text.append("\n" * (height - len(lines)))
                if printed:
                    text.append("\n" + printed[index], style="dim italic")
                texts.append(text)
            grid.add_row(Text(cells[0].row.label), whose, *texts)

    parts: list[RenderableType] = [
        Text(f"{table.address}: {table.title}", style="bold"),
        Text(f"here = {HERE}: {headline(measured)}"),
    ]
    if measured.tier != "smoke":
        source = table.published.source
        copied = f"paper = copied from {source}" if table.published.rows else no_numbers(table)
        parts.append(Text(copied, style="dim italic"))
    if note := tier_note(measured):
        parts.append(Text(note, style="bold yellow"))
    parts.append(grid)
    parts.extend(Text(line, style="dim") for line in legend_of(measured))
    for block in (*numbers_of(measured), *reasons_of(measured)):
        parts += _block(block)
    return Group(*parts)


def _block(block: Block) -> list[RenderableType]:
    if isinstance(block, Lines):
        told = (Text(f"- {line}", style="dim") for line in block.lines)
        return [Text(f"\n{block.heading}", style="bold"), *told]
    if isinstance(block, Numbers):
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for place, name in enumerate(block.head):
            grid.add_column(
                "\n".join(textwrap.wrap(name, NARROW)), justify="right" if place else "left"
            )
        for row in block.rows:
            grid.add_row(*map(Text, row))
        notes = (Text(note, style="dim") for note in block.notes)
        return [Text(f"\n{block.heading}. {block.what}", style="bold"), grid, *notes]
    reasons = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for each in block.said:
        if not each.idle:
            badge = Text(each.badge, style=KIND_COLOURS[each.kind])
            reasons.add_row(Text(each.column), badge, Text(each.why))
    idle = [each.column for each in block.said if each.idle]
    parts: list[RenderableType] = [Text(f"\nClaim: {block.claim}", style="bold")]
    if len(idle) < len(block.said):
        parts.append(Padding(reasons, (0, 0, 0, 2)))
    if idle:
        parts.append(Text(f"  not run: {', '.join(idle)}", style=KIND_COLOURS["not run"]))
    return parts
