"""A measured table in the terminal."""

import textwrap
from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from shared.report.measuring import Measured, MeasuredCell
from shared.report.statistics import Kind
from shared.report.wording import (
    HERE,
    OVER_COLUMNS,
    aggregates_of,
    badge,
    by_claim,
    evidence_of,
    explain,
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
            here = [_narrow_lines(cell, marks) for cell in cells]
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
    for what, head, over_columns in aggregates_of(measured):
        summed = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in head:
            summed.add_column(name, justify="left" if name == head[0] else "right")
        for line in over_columns:
            summed.add_row(*map(Text, line))
        parts += [Text(f"\n{OVER_COLUMNS}. {what}", style="bold"), summed]
    parts += [Text(line, style="dim") for line in evidence_of(measured)]
    for claim, verdicts in by_claim(measured):
        reasons = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        idle = [
            judged.column
            for judged in verdicts
            if judged.verdict.kind == "not run" and not judged.outlook
        ]
        for judged in verdicts:
            kind = judged.verdict.kind
            if judged.column not in idle:
                reasons.add_row(
                    Text(judged.column),
                    Text(badge(judged, measured.tier), style=KIND_COLOURS[kind]),
                    Text(explain(judged, measured)),
                )
        parts.append(Text(f"\nClaim: {claim.text}", style="bold"))
        if len(idle) < len(verdicts):
            parts.append(Padding(reasons, (0, 0, 0, 2)))
        if idle:
            parts.append(Text(f"  not run: {', '.join(idle)}", style=KIND_COLOURS["not run"]))
    return Group(*parts)


def _narrow_lines(cell: MeasuredCell, marks: Mapping[str, int]) -> list[str]:
    lines = measured_lines(cell, marks)
    return textwrap.wrap(lines[0], NARROW) if cell.unavailable else lines
