"""Measured tables as files: Markdown, LaTeX, CSV, and the records behind the numbers."""

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from shared.experiment.records import RECORDS, REPEATED, record_line
from shared.experiment.runs import write_atomically
from shared.experiment.tables import slug
from shared.report.blocks import Block, Lines, Numbers, numbers_of, reasons_of
from shared.report.measuring import Measured, refuse_smoke
from shared.report.wording import (
    DASH,
    HERE,
    PRINTED,
    figures_of,
    groups_of,
    headline,
    is_ours,
    legend_of,
    marks_of,
    measured_lines,
    no_numbers,
    origin,
    printed_row,
    tier_note,
)


def markdown(measured: Measured) -> str:
    """The table as Markdown: one line of measured numbers per row, the published ones below it."""
    table = measured.table
    marks = marks_of(measured)
    columns = [column.label for column in measured.columns]
    lines = [f"# {_md(table.title)}", ""]
    lines += [f"`{table.address}`, {_md(table.section)}.", ""]
    lines += [f"Lines marked **{HERE}**: {_md(headline(measured))}", ""]
    if measured.tier != "smoke":
        printed = f"Lines marked *{PRINTED}*: {_md(origin(table.published))}."
        lines += [printed if table.published.rows else _md(no_numbers(table)), ""]
    if note := tier_note(measured):
        lines += [f"**{_md(note)}**", ""]
    lines += _md_row(["method", "whose number", *columns])
    lines += _md_row([":--", ":--", *["--:"] * len(columns)], plain=True)
    for heading, rows in groups_of(measured):
        if heading:
            lines += _md_row([f"*{_md(heading)}*", "", *[""] * len(columns)], plain=True)
        for cells in rows:
            here = ["<br>".join(measured_lines(cell, marks)) for cell in cells]
            label = _md(cells[0].row.label)
            lines += _md_row([label, f"**{HERE}**", *here], plain=True)
            if numbers := printed_row(cells, measured):
                lines += _md_row(
                    ["", f"*{PRINTED}*", *(text and f"*{text}*" for text in numbers)], plain=True
                )
    lines.append("")
    lines += [line for text in legend_of(measured) for line in (_md(text), "")]
    lines += [line for block in numbers_of(measured) for line in _md_block(block)]
    own, others = figures_of(measured)
    lines += [line for name in own for line in (f"!{_md_link(name)}", "")]
    if others:
        lines += [f"Other figures of this paper: {', '.join(map(_md_link, others))}.", ""]
    lines += [line for block in reasons_of(measured) for line in _md_block(block)]
    return "\n".join(lines).rstrip() + "\n"


def latex(measured: Measured) -> str:
    """The table for a two-column page, as floats over both columns; needs the package booktabs.

    What is too wide or too long for one float goes on in a further one. What is said of the table
    beside its numbers follows as text.
    """
    table = measured.table
    caption = [f"{table.title} ({table.section}). Upright: {headline(measured)}"]
    if measured.tier != "smoke":
        printed = f"Italic: {PRINTED}, {origin(table.published)}."
        caption.append(printed if table.published.rows else no_numbers(table))
    caption += [tier_note(measured), *legend_of(measured)]
    head = ["method", *(column.label for column in measured.columns)]
    lines = ["% needs \\usepackage{booktabs}"]
    lines += _tex_floats(
        head,
        list(_tex_rows(measured)),
        " ".join(filter(None, caption)),
        slug(f"{measured.tier} {table.address}"),
    )
    for block in (*numbers_of(measured), *reasons_of(measured)):
        lines += _tex_block(block)
    return "\n".join(lines) + "\n"


def csv_text(measured: Measured) -> str:
    """One line per row and column, unrounded, with the value of every declared seed."""
    table = measured.table
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["domain", "paper", "table", "tier", "row", "ours", "column", "metric", "unit", "protocol"]
        + ["measured_mean", "measured_sd", "measured_low", "measured_high"]
        + ["seeds_measured", "seeds_declared", "published_mean", "published_std", "difference"]
        + [f"measured_seed_{seed}" for seed in measured.seeds]
        + ["status"]
    )
    for cells in measured.cells:
        for cell in cells:
            summary, published = cell.summary, cell.published
            writer.writerow(
                [table.domain, table.paper, table.name, measured.tier, cell.row.label]
                + ["yes" if is_ours(cell.row, table) else "no", cell.column.label]
                + [table.metric_of(cell.column), table.unit, table.protocol]
                + ([summary.mean, summary.sd, summary.low, summary.high] if summary else [None] * 4)
                + [len(cell.values), len(cell.declared)]
                + ([published.mean, published.std] if published else [None] * 2)
                + [cell.difference]
                + [cell.values.get(seed) for seed in measured.seeds]
                + ["; ".join(f"seed {seed}: {why}" for seed, why in cell.missing.items())]
            )
    return stream.getvalue()


def write(results: Path, measured: Measured) -> None:
    """Write a table and its records below ``results``, each file moved over its target.

    The files are ``[short/]<domain>/<paper>/<table>.{md,csv,tex,records.jsonl}``, and
    ``<table>.arithmetic.jsonl`` where cells were repeated under other code paths.

    Raises:
        ValueError: the smoke tier, which never enters results.
    """
    refuse_smoke(measured)
    folder, name = results / measured.folder, measured.table.name
    lines = "".join(map(record_line, measured.records))
    write_atomically(folder / f"{name}{RECORDS}", lines)
    if measured.repeats:
        lines = "".join(map(record_line, measured.repeats))
        write_atomically(folder / f"{name}{REPEATED}", lines)
    write_atomically(folder / f"{name}.md", markdown(measured))
    write_atomically(folder / f"{name}.csv", csv_text(measured))
    write_atomically(folder / f"{name}.tex", latex(measured))


def _md(text: str) -> str:
    text = re.sub(r"([\\|*_`\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _md_link(figure: str) -> str:
    return f"[{_md(figure)}](figures/{quote(figure)})"


def _md_block(block: Block) -> list[str]:
    if isinstance(block, Lines):
        return [f"**{block.heading}**", "", *(f"- {_md(line)}" for line in block.lines), ""]
    if isinstance(block, Numbers):
        lines = [f"**{block.heading}.** {_md(block.what)}", "", *_md_row(block.head)]
        lines += _md_row([":--", *["--:"] * (len(block.head) - 1)], plain=True)
        lines += [line for row in block.rows for line in _md_row(row)]
        return [*lines, "", *(line for note in block.notes for line in (_md(note), ""))]
    lines = [f"**Claim.** {_md(block.claim)}", "", *_md_row(["column", "verdict", "why"])]
    lines += _md_row([":--"] * 3, plain=True)
    for each in block.said:
        lines += _md_row([_md(each.column), f"**{each.badge}**", _md(each.why)], plain=True)
    return [*lines, ""]


def _md_row(cells: Iterable[str], plain: bool = False) -> list[str]:
    """One line of a Markdown table; ``plain`` cells are Markdown already."""
    return ["| " + " | ".join(cells if plain else map(_md, cells)) + " |"]


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    DASH: "--",
    "/": r"/\allowbreak{}",
    "_": r"\_\allowbreak{}",
    **{character: f"\\{character}" for character in "&%$#{}"},
}
TEX_COLUMNS = 6  # beside the labels, so that they fit the width of a page in two columns
TEX_LINES = 56  # of a float, so that it fits the height
TEX_LABEL = 30  # characters of a line of a label
LINE_BREAK = r" \\ "
TEX_HEADING = 13  # and of a column's heading


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))


def _tex_rows(measured: Measured) -> Iterator[list[str]]:
    """The lines of the table: label, then cells, as LaTeX; a single text is a heading."""
    marks = marks_of(measured)
    for heading, rows in groups_of(measured):
        if heading:
            yield [f"\\textit{{{_tex(heading)}}}"]
        for cells in rows:
            here = []
            for cell in cells:
                number, *seeds = measured_lines(cell, marks)
                few = f"$^{{{len(cell.values)}/{len(cell.declared)}}}$" if seeds else ""
                here.append(_tex(number.replace(" ± ", "±")) + few)
            yield [_tex_lines(cells[0].row.label, TEX_LABEL, "l"), *here]
            if numbers := printed_row(cells, measured):
                short = (each.replace(" ± ", "±") for each in numbers)
                yield ["", *(f"\\textit{{{_tex(each)}}}" if each else "" for each in short)]


def _tex_lines(text: str, width: int, side: str) -> str:
    """Text in as many lines as a narrow cell needs."""
    lines = list(map(_tex, textwrap.wrap(text, width))) or [""]
    stacked = LINE_BREAK.join(lines)
    return lines[0] if len(lines) == 1 else f"\\shortstack[{side}]{{{stacked}}}"


def _tex_floats(
    head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str
) -> list[str]:
    """Floats over both columns of a page that hold the rows; the cells of ``rows`` are LaTeX."""
    parts = []
    for first in range(1, len(head), TEX_COLUMNS):
        columns = slice(first, first + TEX_COLUMNS)
        for begin in _begins(rows):
            parts.append((columns, rows[begin]))
    lines = []
    for number, (columns, some) in enumerate(parts):
        shown = head[columns]
        lines += [
            "\\begin{table*}",
            "\\centering\\scriptsize\\setlength{\\tabcolsep}{3pt}",
            f"\\begin{{tabular}}{{l{'r' * len(shown)}}}",
            "\\toprule",
            _tex_line([_tex(head[0]), *(_tex_lines(name, TEX_HEADING, "r") for name in shown)]),
            "\\midrule",
        ]
        for row in some:
            if len(row) == 1:
                lines += [f"\\multicolumn{{{len(shown) + 1}}}{{l}}{{{row[0]}}} \\\\"]
            else:
                lines.append(_tex_line([row[0], *row[columns]]))
        told = (
            f"\\caption{{{_tex(caption)}}}\n\\label{{tab:{label}}}"
            if number == 0
            else (f"\\par\\smallskip Table~\\ref{{tab:{label}}}, continued.")
        )
        lines += ["\\bottomrule", "\\end{tabular}", told, "\\end{table*}"]
    return lines


def _begins(rows: Sequence[Sequence[str]]) -> Iterator[slice]:
    """Where the rows are cut: never between a measured line and the published one below it."""
    begin = lines = 0
    for end, row in enumerate(rows):
        height = 1 + row[0].count(LINE_BREAK)
        if row[0] and lines + height > TEX_LINES:
            yield slice(begin, end)
            begin, lines = end, 0
        lines += height
    yield slice(begin, len(rows))


def _tex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _tex_block(block: Block) -> list[str]:
    if isinstance(block, Numbers):
        rows = [[_tex_lines(row[0], TEX_LABEL, "l"), *map(_tex, row[1:])] for row in block.rows]
        told = " ".join((f"{block.heading}. {block.what}", *block.notes))
        return _tex_floats(block.head, rows, told, slug(told))
    if isinstance(block, Lines):
        heading, lines = block.heading, list(map(_tex, block.lines))
    else:
        heading = f"Claim. {block.claim}"
        idle = [each.column for each in block.said if each.idle]
        lines = [
            f"\\textit{{{_tex(each.column)}}}, {_tex(each.badge)}: {_tex(each.why)}"
            for each in block.said
            if not each.idle
        ]
        lines += [f"not run: {_tex(', '.join(idle))}"] if idle else []
    items = [f"\\item {line}" for line in lines]
    return [
        "\\begin{sloppypar}\\footnotesize",
        f"\\noindent\\textbf{{{_tex(heading)}}}",
        "\\begin{itemize}",
        *items,
        "\\end{itemize}",
        "\\end{sloppypar}",
    ]
