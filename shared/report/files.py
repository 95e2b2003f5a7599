"""Measured tables as files: a page in Markdown with its picture, CSV, LaTeX, and the records."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from shared.experiment.config import slug
from shared.experiment.data import is_approximate
from shared.experiment.files import write_atomically
from shared.experiment.frame import processor_of
from shared.experiment.records import RECORDS, Record, record_line
from shared.report import pictures
from shared.report.claims import Reading
from shared.report.measuring import (
    Measured,
    MeasuredCell,
    refuse_smoke,
    trivial_baseline_of,
)
from shared.report.pictures import BLUE, Panel, Picture, Point
from shared.report.wording import (
    LOOKED,
    METRICS,
    SCALES,
    Grid,
    Spread,
    elsewhere,
    further_of,
    gain_text,
    groups_of,
    headline,
    is_additional,
    legend_of,
    marks_of,
    measured_lines,
    named_seeds,
    origin,
    over_columns,
    published_row,
    scale_note,
)

ADDITIONAL = "additional"  # the page of the additional questions
# Of a reading, see reading_cells.
HEAD = ("rows", "column", "word", "gain, 95% interval", "published gain", "seeds of each")
ACROSS = 4  # panels of a picture beside each other
TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {"<": "$<$", ">": "$>$"} | {each: f"\\{each}" for each in "&%$#_{}"}
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
COMMIT = 10  # characters shown of one
FEW = 2  # commits or processors that are listed by name


def markdown(measured: Measured, readings: Sequence[Reading] = ()) -> str:
    """The page of a table: numbers, claims, further metrics, notes, runs.

    Args:
        measured: the table.
        readings: of its claims.
    """
    table = measured.table
    up = "../" * len(measured.folder.parts)
    lines = [f"# {escaped(table.title)}", ""]
    papers = dict.fromkeys(each.claim.paper or ADDITIONAL for each in readings)
    links = ", ".join(f"[{name}]({up}{name}.md)" for name in papers)
    lines += [f"[All results]({up}README.md){f', claims: {links}' * bool(links)}", ""]
    lines += [f"`{table.address}` ({SCALES[measured.tier]}): {escaped(table.section)}.", ""]
    lines += [f"Lines marked **measured**: {escaped(headline(measured))}", ""]
    if measured.tier != "smoke":
        lines += [f"Lines marked *published*: {escaped(origin(table.published))}", ""]
    if note := scale_note(measured):
        lines += [escaped(note), ""]
    lines += _numbers(measured)
    lines += [line for text in legend_of(measured) for line in (escaped(text), "")]
    if _drawn(measured):
        lines += [f"![Means with 95% intervals, row by row]({table.name}.png)", ""]
    lines += _figures(measured)
    if any(each.measured for each in readings):
        lines += ["## Outcomes of claims", "", *_claims(readings, up)]
    for grid in (*over_columns(measured), *further_of(measured)):
        lines += [f"## {escaped(grid.heading)}", "", *grid_lines(grid), ""]
    for heading, remarks in _remarks(measured):
        lines += [f"## {heading}", "", *(f"- {escaped(each)}" for each in remarks), ""]
    lines += ["## Published elsewhere", ""] if table.references else []
    for published in table.references:
        grid = elsewhere(published)
        lines += [escaped(grid.heading), "", *grid_lines(grid), ""]
        lines += [f"- {escaped(f'{label}: {note}')}" for label, note in published.notes.items()]
        lines += [""] * bool(published.notes)
    if runs := list(_runs(measured)):
        lines += ["## The runs behind the numbers", "", *_about_runs(measured), ""]
        head = ("method", "column", "seeds", "commit", "processor", "hours")
        lines += [*grid_lines(Grid("", head, tuple(runs)), numbers=False), ""]
    return "\n".join(lines).rstrip() + "\n"


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
    for cell in (cell for cells in measured.cells for cell in cells):
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
    """The numbers as a table of LaTeX; needs the packages booktabs and graphicx.

    Args:
        measured: the table.
        spread: what stands beside a mean: the standard deviation over seeds or its 95% interval.
    """
    lines = [[*map(tex_escaped, line)] for line in _lines(measured, spread)]
    head = ["method", "", *(column.label for column in measured.columns)]
    caption = (
        f"{measured.table.title}: {headline(measured, spread)} {origin(measured.table.published)}"
    )
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

    The files are ``[short/]<domain>/<paper>/<table>.{md,csv,png,pdf,records.jsonl}``.

    Args:
        results: the folder.
        measured: the table.
        readings: of its claims.
        tex: what stands beside a mean in ``<table>.tex``; None: it is not written.
    """
    refuse_smoke(measured)
    folder, name = results / measured.folder, measured.table.name
    lines = "".join(map(record_line, measured.records))
    write_atomically(folder / f"{name}{RECORDS}", lines)
    write_atomically(folder / f"{name}.md", markdown(measured, readings))
    write_atomically(folder / f"{name}.csv", csv_text(measured))
    if panels := _drawn(measured):
        pictures.write(folder / f"{name}.png", _picture(panels))
    if tex:
        write_atomically(folder / f"{name}.tex", latex(measured, tex))


def escaped(text: str) -> str:
    """Text with Markdown's special characters escaped."""
    text = re.sub(r"([\\|*_`\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def tex_escaped(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(TEX.get(each, each) for each in text)


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

    Args:
        head: of the columns, text.
        lines: as many cells each; LaTeX already.
        caption: text.
        label: text that becomes the label after ``tab:``.
        column_format: of the tabular.
        notes: text in small print below the table.
    """
    import pandas  # takes a second to import

    text: str = pandas.DataFrame(lines, columns=[*map(tex_escaped, head)]).to_latex(
        index=False,
        escape=False,
        column_format=column_format,
        caption=tex_escaped(caption),
        label=f"tab:{slug(label)}",
    )
    small = "".join(f"\\par{{\\footnotesize {tex_escaped(each)}}}\n" for each in notes)
    text = text.replace("\\begin{tabular}", f"{FIT}\\begin{{tabular}}")
    return text.replace("\\end{tabular}\n", f"\\end{{tabular}}}}\n{small}")


def grid_lines(grid: Grid, *, numbers: bool = True) -> list[str]:
    """A small table of text as Markdown."""
    lines = [tuple(map(escaped, line)) for line in grid.lines]
    return table_lines(grid.head, lines, numbers=numbers)


def table_lines(
    head: Sequence[str], lines: Iterable[Sequence[str]], *, numbers: bool = True
) -> list[str]:
    """A table in Markdown; the cells of ``lines`` are Markdown already.

    Args:
        head: of the columns.
        lines: as many cells each.
        numbers: whether all columns but the first are numbers, which are aligned right.
    """
    rules = [":--", *(["--:" if numbers else ":--"] * (len(head) - 1))]
    rows = [[escaped(each) for each in head], rules, *lines]
    return [f"| {' | '.join(cells)} |" for cells in rows]


def rows_of(reading: Reading) -> str:
    """The two rows that a reading compares."""
    return f"{reading.better} vs. {reading.than}"


def reading_cells(reading: Reading) -> tuple[str, ...]:
    """Column, word, gain and interval, published gain and seeds of a reading, as Markdown."""
    few, many = sorted((len(reading.seeds_better), len(reading.seeds_than)))
    published = gain_text(reading.published, None, None)
    if reading.published is not None and reading.published_error is not None:
        published += f" (s.e. {reading.published_error:.2f})"
    return (
        escaped(reading.column),
        f"**{reading.word}**" if reading.adjusted is not None else reading.word,
        gain_text(reading.gain, reading.low, reading.high),
        published,
        (str(few) if few == many else f"{len(reading.seeds_better)}, {len(reading.seeds_than)}")
        + f" {LOOKED}" * reading.looked,
    )


def _numbers(measured: Measured) -> list[str]:
    head = ["method", "", *(column.label for column in measured.columns)]
    lines = [
        [escaped(label), f"**{whose}**" if whose == "measured" else whose and f"*{whose}*"]
        + [f"*{text}*" if whose == "published" and text else text for text in texts]
        for label, whose, *texts in _lines(measured)
    ]
    return [*table_lines(head, lines), ""]


def _lines(measured: Measured, spread: Spread = "deviation") -> Iterator[list[str]]:
    """Lines of label, ``measured`` or ``published``, and texts by column; headings have none."""
    marks = marks_of(measured)
    for heading, rows in groups_of(measured):
        if heading:
            yield [heading, "", *[""] * len(measured.columns)]
        for cells in rows:
            here = ("; ".join(measured_lines(cell, marks, spread)) for cell in cells)
            yield [cells[0].row.label, "measured", *here]
            if published := published_row(cells, measured):
                yield ["", "published", *published]


def _drawn(measured: Measured) -> list[Panel]:
    """A panel for each column with a number: a line for each trained row with one."""
    rows = [
        cells
        for cells in measured.cells
        if not cells[0].row.baseline and any(cell.summary for cell in cells)
    ]
    metric = measured.table.metric_of
    panels = []
    for place, column in enumerate(measured.columns):
        if any(cells[place].summary for cells in rows):
            key, unit_of = metric(column), measured.table.unit_of(metric(column))
            unit = METRICS.get(key, key) + (f" ({unit_of})" if unit_of else "")
            lines = {cells[0].row.label: _points(cells[place], measured) for cells in rows}
            trivial = trivial_baseline_of(measured.column(column.label), metric(column))
            panels.append(Panel(column.label, unit, lines, trivial and trivial[1]))
    return panels


def _picture(panels: Sequence[Panel]) -> Picture:
    published = any(p.published is not None for panel in panels for p in panel.every())
    return Picture(
        panels,
        ACROSS,
        {"mean, 95% interval": BLUE},
        "published mean" * published,
        "highest trivial baseline" * any(panel.rule is not None for panel in panels),
    )


def _points(cell: MeasuredCell, measured: Measured) -> list[Point]:
    if cell.summary is None:
        return []
    # Means of a smaller budget have another scale than the published ones.
    published = cell.published.mean if cell.published and measured.tier == "paper" else None
    return [Point(cell.summary.mean, cell.summary.low, cell.summary.high, published)]


def _figures(measured: Measured) -> list[str]:
    """The pictures named after the table (``figure-3-a.png``), and links to the paper's others."""
    own = re.compile(rf"{re.escape(measured.table.name)}(-.*)?\.png")
    lines, others = [], []
    for name in measured.figures:
        link = f"[{escaped(name)}](figures/{quote(name)})"
        if own.fullmatch(name):
            lines += [f"!{link}", ""]
        else:
            others.append(link)
    return [*lines, *[f"Other figures of this paper: {', '.join(others)}.", ""] * bool(others)]


def _claims(readings: Sequence[Reading], up: str) -> list[str]:
    lines = [
        (
            f"[{each.claim.id}]({up}{each.claim.paper or ADDITIONAL}.md#{each.claim.id})",
            escaped(rows_of(each)),
            *reading_cells(each),
        )
        for each in readings
        if each.measured
    ]
    idle = sum(not each.measured for each in readings)
    table = table_lines(("claim", *HEAD), lines)
    return [*table, "", *[f"Not run: {idle} more.", ""] * bool(idle)]


def _remarks(measured: Measured) -> list[tuple[str, list[str]]]:
    """Notes on single numbers, by heading; empty headings are left out."""
    table = measured.table
    records = {r.address: r for cells in measured.cells for c in cells for r in c.records.values()}
    incomplete = [at for at, each in records.items() if each.environment.get("allow_missing")]
    approximate = {
        name
        for record in records.values()
        for name, sha256 in record.environment["data"].items()
        if is_approximate(sha256)
    }
    notes = [f"{row}: {note}" for row, note in table.published.notes.items()]
    found = [
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
    return [(heading, lines) for heading, lines in found if lines]


def _about_runs(measured: Measured) -> list[str]:
    table, name = measured.table, measured.table.name
    (first, *_) = (r for cells in measured.cells for c in cells for r in c.records.values())
    return [
        f"Protocol {table.protocol}. Varies between repeats: {escaped(table.varies)}. The "
        f"configuration, environment and data hashes of every run are in [its "
        f"record]({name}{RECORDS}), the values by seed in [the CSV file]({name}.csv). To repeat a "
        f"run: "
        f"`./reproduce.sh --cell {first.address}`."
    ]


def _runs(measured: Measured) -> Iterator[tuple[str, ...]]:
    """For each measured cell its seeds, commits, processors and hours."""
    for cell in (cell for cells in measured.cells for cell in cells if cell.records):
        some = list(cell.records.values())
        hours = sum(float(record.result["seconds"]) for record in some) / 3600
        yield (
            cell.row.label,
            cell.column.label,
            named_seeds(sorted(cell.records)).split(" ", 1)[1],
            _named({_commit(record) for record in some}, "commits"),
            _named({processor_of(record) for record in some}, "processors"),
            f"{hours:.2f}" if hours >= 0.005 else "0",
        )


def _commit(record: Record) -> str:
    dirty = ", changed" if record.environment["dirty"] else ""
    return f"{str(record.environment['commit'])[:COMMIT]}{dirty}"


def _named(some: set[str], many: str) -> str:
    return ", ".join(sorted(some)) if len(some) <= FEW else f"{len(some)} {many}"
