"""Measured tables as files: a page in Markdown with its picture, CSV, LaTeX, and the records."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.experiment.checkout import UNKNOWN
from shared.experiment.config import slug
from shared.experiment.data import is_approximate
from shared.experiment.files import write_atomically
from shared.experiment.frame import processor_of
from shared.experiment.records import RECORDS, Record, record_line
from shared.experiment.templates import render
from shared.report import pictures, wording
from shared.report.claims import Reading
from shared.report.measuring import Measured, MeasuredCell, highest, refuse_smoke
from shared.report.pictures import BLUE, Panel, Picture, Point, narrow, with_cuts
from shared.report.wording import (
    SCALES,
    Spread,
    aggregate_grids,
    further_grids,
    groups_of,
    headline,
    is_additional,
    legend_of,
    marks_of,
    measured_lines,
    metric_text,
    origin,
    published_row,
    ranges,
)

ADDITIONAL = "additional"  # the page of the additional questions
ACROSS = 4  # panels of a picture beside each other
TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {"<": "$<$", ">": "$>$"} | {char: f"\\{char}" for char in "&%$#_{}"}
FIT_TO_PAGE = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
SHORT_COMMIT = 10  # characters
MOST_LISTED = 2  # commits or processors; more are counted


def markdown(measured: Measured, readings: Sequence[Reading] = ()) -> str:
    """The page of a table: numbers, claims, further metrics, notes, runs."""
    # A figure that is this table, whole or in parts, as in figure-3-a.png.
    own_figure = re.compile(rf"{re.escape(measured.table.name)}(-.*)?\.png")
    done = [reading for reading in readings if reading.measured]
    records = (record for cell in measured.flat for record in cell.records.values())
    return page(
        "table",
        globals(),
        measured=measured,
        table=measured.table,
        done=done,
        idle=len(readings) - len(done),
        up="../" * len(measured.folder.parts),
        papers=dict.fromkeys(reading.claim.paper or ADDITIONAL for reading in readings),
        pictures=[name for name in measured.figures if own_figure.fullmatch(name)],
        others=[name for name in measured.figures if not own_figure.fullmatch(name)],
        grids=[*aggregate_grids(measured), *further_grids(measured)],
        first_record=next(records, None),
    )


def csv_text(measured: Measured) -> str:
    """One line per row and column, unrounded, with the value of every declared seed."""
    table = measured.table
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["domain", "paper", "table", "scale", "row", "additional", "column", "metric", "unit"]
        + ["protocol", "measured_mean", "measured_sd", "measured_low", "measured_high"]
        + ["seeds_measured", "seeds_declared", "published_mean", "published_std", "difference"]
        + [f"measured_seed_{seed}" for seed in measured.seeds]
        + ["status"]
    )
    for cell in measured.flat:
        summary, published = cell.summary, cell.published
        writer.writerow(
            [table.domain, table.paper, table.name, SCALES[measured.tier], cell.row.label]
            + ["yes" if is_additional(cell.row, table) else "no", cell.column.label]
            + [table.metric_of(cell.column), table.unit, table.protocol]
            + ([summary.mean, summary.sd, summary.low, summary.high] if summary else [None] * 4)
            + [len(cell.values), len(cell.declared)]
            + ([published.mean, published.std] if published else [None] * 2)
            + [cell.difference]
            + [cell.values.get(seed) for seed in measured.seeds]
            + ["; ".join(f"seed {seed}: {why}" for seed, why in cell.missing.items())]
        )
    return stream.getvalue()


def latex(measured: Measured, spread: Spread = "deviation") -> str:
    """The numbers as a table of LaTeX; needs the packages booktabs and graphicx."""
    lines = [
        [tex_escaped(text) for text in (label, source, *texts)]
        for label, source, texts in _lines(measured, spread)
    ]
    head = ["method", "", *(column.label for column in measured.columns)]
    published = origin(measured.table.published)
    caption = f"{measured.table.title}: {headline(measured, spread)} {published}".rstrip()
    return tex_table(
        head,
        lines,
        caption=caption,
        label=f"{measured.tier} {measured.table.address}",
        notes=legend_of(measured),
        column_format="l" * len(head),
    )


def write(
    results: Path,
    measured: Measured,
    readings: Sequence[Reading] = (),
    *,
    tex: Spread | None = None,
) -> None:
    """Write a table, its picture and its records below ``results``, each file atomically.

    The files are ``[short/]<domain>/<paper>/<table>.{md,csv,png,pdf,records.jsonl}``; with ``tex``
    one of LaTeX, too.
    """
    refuse_smoke(measured)
    folder, name = results / measured.folder, measured.table.name
    lines = "".join(map(record_line, measured.records))
    write_atomically(folder / f"{name}{RECORDS}", lines)
    write_atomically(folder / f"{name}.md", markdown(measured, readings))
    write_atomically(folder / f"{name}.csv", csv_text(measured))
    if panels := _panels(measured):
        pictures.write(folder / f"{name}.png", _picture(panels))
    if tex:
        write_atomically(folder / f"{name}.tex", latex(measured, tex))


def tex_escaped(text: str) -> str:
    """Text in one line, with LaTeX's special characters escaped."""
    return "".join(TEX.get(char, char) for char in " ".join(text.split()))


def tex_table(
    head: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    caption: str,
    label: str,
    column_format: str,
    notes: Sequence[str] = (),
) -> str:
    """A table of LaTeX by pandas; one that is wider than the page is scaled down to it.

    The lines are LaTeX; head, caption, label and the notes below are plain text.
    """
    import pandas  # takes a second to import

    text: str = pandas.DataFrame(lines, columns=[*map(tex_escaped, head)]).to_latex(
        index=False,
        escape=False,
        column_format=column_format,
        caption=tex_escaped(caption),
        label=f"tab:{slug(label)}",
    )
    small = "".join(f"\\par{{\\footnotesize {tex_escaped(note)}}}\n" for note in notes)
    text = text.replace("\\begin{tabular}", f"{FIT_TO_PAGE}\\begin{{tabular}}")
    return text.replace("\\end{tabular}\n", f"\\end{{tabular}}}}\n{small}")


def page(template: str, callable_names: Mapping[str, Any], **values: Any) -> str:
    """A page of Markdown from a template beside this module; blank lines in a row become one.

    The template may call ``callable_names``, of the module that fills it, beside ``wording``.
    """
    known = vars(wording) | {"rows_of": rows_of} | dict(callable_names) | values
    text = render(Path(__file__).with_name(f"{template}.md.j2"), **known)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def rows_of(reading: Reading) -> str:
    """The two rows that a reading compares."""
    return f"{reading.better} vs. {reading.than}"


def _lines(
    measured: Measured, spread: Spread = "deviation"
) -> Iterator[tuple[str, str, list[str]]]:
    """Lines of the table: label, ``measured`` or ``published``, a text for each column.

    The heading of a group is a line with nothing but its label.
    """
    marks = marks_of(measured)
    for heading, rows in groups_of(measured):
        if heading:
            yield heading, "", [""] * len(measured.columns)
        for cells in rows:
            texts = ["; ".join(measured_lines(cell, marks, spread)) for cell in cells]
            yield cells[0].row.label, "measured", texts
            if published := published_row(cells, measured):
                yield "", "published", published


def _panels(measured: Measured) -> list[Panel]:
    """A panel for each column with a number: a line for each trained row with one."""
    rows = [
        cells
        for cells in measured.cells
        if not cells[0].row.baseline and any(cell.summary for cell in cells)
    ]
    table, panels = measured.table, []
    for number, column in enumerate(measured.columns):
        if any(cells[number].summary for cells in rows):
            metric = table.metric_of(column)
            unit = narrow(metric_text(metric, table.unit_of(metric)))
            lines = {cells[0].row.label: _points(cells[number], measured) for cells in rows}
            baselines = (c for c in measured.column(column.label) if c.row.baseline)
            trivial = highest(baselines, metric)
            panels.append(
                Panel(column.label, unit, with_cuts(lines), trivial[0] if trivial else None)
            )
    return panels


def _picture(panels: Sequence[Panel]) -> Picture:
    published = any(p.published is not None for panel in panels for p in panel.points())
    baseline = any(panel.rule is not None for panel in panels)
    return Picture(
        panels,
        ACROSS,
        {"mean, 95% interval": BLUE},
        published="published mean" if published else "",
        rule="highest trivial baseline" if baseline else "",
    )


def _points(cell: MeasuredCell, measured: Measured) -> list[Point]:
    """The mean of a cell with its interval and the published mean; none if nothing was measured."""
    if cell.summary is None:
        return []
    # Means of a smaller budget have another scale than the published ones.
    published = cell.published.mean if cell.published and measured.tier == "paper" else None
    return [Point(cell.summary.mean, cell.summary.low, cell.summary.high, published)]


def _remarks(measured: Measured) -> list[tuple[str, list[str]]]:
    """Notes on single numbers, by heading."""
    table = measured.table
    records = {r.address: r for cell in measured.flat for r in cell.records.values()}
    incomplete = [
        address for address, record in records.items() if record.environment.get("allow_missing")
    ]
    approximate = {
        name
        for record in records.values()
        for name, sha256 in record.environment["data"].items()
        if is_approximate(sha256)
    }
    notes = [f"{row}: {note}" for row, note in table.published.notes.items()]
    return [
        (
            "Deviations from the paper",
            [f"{row.label}: {row.deviation}" for row in table.rows if row.deviation],
        ),
        ("About the published numbers", [*notes, *table.published.warnings]),
        ("Notes", list(table.notes)),
        ("Runs with missing data files", sorted(incomplete)),
        ("Data that are not the published files", sorted(approximate)),
        ("Finished runs of undeclared rows, columns or seeds", list(measured.ignored)),
    ]


def _runs(measured: Measured) -> Iterator[tuple[str, ...]]:
    """For each measured cell its seeds, commits, processors and hours."""
    for cell in (cell for cell in measured.flat if cell.records):
        records = list(cell.records.values())
        hours = sum(float(record.result["seconds"]) for record in records) / 3600
        yield (
            cell.row.label,
            cell.column.label,
            ranges(sorted(cell.records)),
            _listed({commit_name(record) for record in records}, "commits"),
            _listed({processor_of(record) for record in records}, "processors"),
            f"{hours:.2f}" if hours >= 0.005 else "0",
        )


def commit_name(record: Record, changed: str = ", changed") -> str:
    """The first characters of a record's commit, and ``changed`` if the code had changes."""
    commit = str(record.environment["commit"])
    has_changes = bool(record.environment["dirty"]) and commit != UNKNOWN
    return f"{commit[:SHORT_COMMIT]}{changed * has_changes}"


def _listed(names: set[str], plural: str) -> str:
    return ", ".join(sorted(names)) if len(names) <= MOST_LISTED else f"{len(names)} {plural}"
