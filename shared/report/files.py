"""Measured tables as files: Markdown, LaTeX, CSV, and the records behind the numbers."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from shared.experiment.records import RECORDS, REPEATED, record_line
from shared.experiment.runs import write_atomically
from shared.experiment.tables import slug
from shared.report.measuring import Measured, refuse_smoke
from shared.report.wording import (
    DASH,
    HERE,
    OVER_COLUMNS,
    PRINTED,
    aggregates_of,
    also_of,
    badge,
    by_claim,
    evidence_of,
    explain,
    figures_of,
    groups_of,
    headline,
    is_ours,
    legend_of,
    marks_of,
    measured_lines,
    no_numbers,
    origin,
    printed_lines,
    printed_row,
    remarks_of,
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
    for what, head, summed in aggregates_of(measured):
        lines += [f"**{OVER_COLUMNS}.** {_md(what)}", ""]
        lines += [*_md_row(head), *_md_row([":--", *["--:"] * (len(head) - 1)], plain=True)]
        lines += [text for line in summed for text in _md_row(line)]
        lines.append("")
    for further in also_of(measured):
        lines += _md_grid("Measured here, too", further.heading, further.columns, further.lines)
    own, others = figures_of(measured)
    lines += [line for name in own for line in (f"!{_md_link(name)}", "")]
    if others:
        lines += [f"Other figures of this paper: {', '.join(map(_md_link, others))}.", ""]
    if evidence := evidence_of(measured):
        lines += ["**What counts as evidence here**", ""]
        lines += [*(f"- {_md(line)}" for line in evidence), ""]
    for claim, verdicts in by_claim(measured):
        lines += [f"**Claim.** {_md(claim.text)}", ""]
        lines += _md_row(["column", "verdict", "why"])
        lines += _md_row([":--"] * 3, plain=True)
        for judged in verdicts:
            why = _md(explain(judged, measured))
            said = badge(judged, measured.tier)
            lines += _md_row([_md(judged.column), f"**{said}**", why], plain=True)
        lines.append("")
    for heading, remarks in remarks_of(measured):
        lines += [f"**{heading}**", "", *(f"- {_md(remark)}" for remark in remarks), ""]
    for reference in table.references:
        lines += _md_grid(
            "Published elsewhere", origin(reference), reference.columns, printed_lines(reference)
        )
        lines += [f"{_md(key)}: {_md(note)}\n" for key, note in reference.notes.items()]
    return "\n".join(lines).rstrip() + "\n"


def latex(measured: Measured) -> str:
    """The table as a LaTeX ``table`` that needs the package booktabs."""
    table = measured.table
    marks = marks_of(measured)
    width = len(measured.columns) + 2
    caption = [f"{table.title} ({table.section}). Lines marked {HERE}: {headline(measured)}"]
    if measured.tier != "smoke":
        printed = f"Lines marked {PRINTED}: {origin(table.published)}."
        caption.append(printed if table.published.rows else no_numbers(table))
    caption += [tier_note(measured), *legend_of(measured)]
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\begin{{tabular}}{{ll{'r' * len(measured.columns)}}}",
        "\\toprule",
        _tex_row(["method", "whose number", *(column.label for column in measured.columns)]),
    ]
    for heading, rows in groups_of(measured):
        lines.append("\\midrule")
        if heading:
            lines.append(f"\\multicolumn{{{width}}}{{l}}{{\\textit{{{_tex(heading)}}}}} \\\\")
        for cells in rows:
            here = [", ".join(measured_lines(cell, marks)) for cell in cells]
            lines.append(_tex_row([cells[0].row.label, HERE, *here]))
            if numbers := printed_row(cells, measured):
                lines.append(_tex_row(["", PRINTED, *numbers], italic=True))
    lines += [
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption{{{_tex(' '.join(filter(None, caption)))}}}",
        f"\\label{{tab:{slug(measured.tier + ' ' + table.address)}}}",
        "\\end{table}",
    ]
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


def _md_grid(
    heading: str, what: str, columns: Sequence[str], numbers: Mapping[str, Sequence[str]]
) -> list[str]:
    lines = [f"**{heading}.** {_md(what)}", ""]
    lines += _md_row(["method", *columns])
    lines += _md_row([":--", *["--:"] * len(columns)], plain=True)
    for label, texts in numbers.items():
        lines += _md_row([label, *texts])
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
    "±": r"$\pm$",
    DASH: "--",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))


def _tex_row(cells: Iterable[str], italic: bool = False) -> str:
    texts = (f"\\textit{{{_tex(cell)}}}" if italic and cell else _tex(cell) for cell in cells)
    return " & ".join(texts) + r" \\"
