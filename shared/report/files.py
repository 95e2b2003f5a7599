"""Measured tables as files: a page in Markdown with its picture, CSV, and the records."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.experiment.checkout import UNKNOWN
from shared.experiment.data import is_approximate
from shared.experiment.files import write_atomically
from shared.experiment.frame import processor_of
from shared.experiment.records import RECORDS, Record, record_line
from shared.experiment.templates import render
from shared.report import pictures, wording
from shared.report.claims import Judged
from shared.report.judge import LEAST_SEEDS
from shared.report.measuring import Measured, MeasuredCell, highest, refuse_smoke
from shared.report.pictures import BLUE, Panel, Picture, Point, narrow
from shared.report.wording import (
    further_grids,
    groups_of,
    is_additional,
    marks_of,
    measured_lines,
    metric_text,
    published_row,
    ranges,
)

ADDITIONAL = "additional"  # the page of the additional questions
ACROSS = 4  # panels of a picture beside each other
DRAWN = 6  # numbers from which on a table has a picture
SHORT_COMMIT = 10  # characters
MOST_LISTED = 2  # commits or processors; more are counted


def markdown(measured: Measured, judged: Sequence[Judged] = ()) -> str:
    """The page of a table: numbers, links to the claims, further metrics, notes, runs."""
    # A figure that is this table, whole or in parts, as in figure-3-a.png.
    own_figure = re.compile(rf"{re.escape(measured.table.name)}(-.*)?\.png")
    records = (record for cell in measured.flat for record in cell.records.values())
    return page(
        "table",
        globals(),
        measured=measured,
        table=measured.table,
        judged=judged,
        up="../" * len(measured.folder.parts),
        pictures=[name for name in measured.figures if own_figure.fullmatch(name)],
        others=[name for name in measured.figures if not own_figure.fullmatch(name)],
        grids=list(further_grids(measured)),
        first_record=next(records, None),
    )


def csv_text(measured: Measured) -> str:
    """One line per row and column, unrounded, with the value of every declared seed."""
    import pandas  # takes a second to import

    table = measured.table
    lines = []
    for cell in measured.flat:
        summary, published = cell.summary, cell.published
        lines.append(
            {
                "domain": table.domain,
                "paper": table.paper,
                "table": table.name,
                "scale": measured.scale,
                "row": cell.row.label,
                "additional": "yes" if is_additional(cell.row, table) else "no",
                "column": cell.column.label,
                "metric": table.metric_of(cell.column),
                "unit": table.unit,
                "protocol": table.protocol,
                "measured_mean": summary and summary.mean,
                "measured_sd": summary and summary.sd,
                "measured_low": summary and summary.low,
                "measured_high": summary and summary.high,
                "seeds_measured": len(cell.values),
                "seeds_declared": len(cell.declared),
                "published_mean": published and published.mean,
                "published_std": published and published.std,
                "difference": cell.difference,
            }
            | {f"measured_seed_{seed}": cell.values.get(seed) for seed in measured.seeds}
            | {"status": "; ".join(f"seed {s}: {why}" for s, why in cell.missing.items())}
        )
    return str(pandas.DataFrame(lines, dtype=object).to_csv(index=False, lineterminator="\n"))


def write(results: Path, measured: Measured, judged: Sequence[Judged] = ()) -> None:
    """Write a table, its picture and its records below ``results``, each file atomically.

    The files are ``[short/]<domain>/<paper>/<table>.{md,csv,png,records.jsonl}``; tables of few
    numbers have no picture.
    """
    refuse_smoke(measured)
    folder, name = results / measured.folder, measured.table.name
    lines = "".join(map(record_line, measured.records))
    write_atomically(folder / f"{name}{RECORDS}", lines)
    write_atomically(folder / f"{name}.md", markdown(measured, judged))
    write_atomically(folder / f"{name}.csv", csv_text(measured))
    picture = folder / f"{name}.png"
    if panels := _panels(measured):
        pictures.write(picture, _picture(panels))
    else:
        picture.unlink(missing_ok=True)  # of more rows


def page(template: str, callable_names: Mapping[str, Any], **values: Any) -> str:
    """A page of Markdown from a template beside this module; blank lines in a row become one.

    The template may call ``callable_names``, of the module that fills it, beside ``wording``.
    """
    known = vars(wording) | dict(callable_names) | values
    text = render(Path(__file__).with_name(f"{template}.md.j2"), **known)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _lines(measured: Measured) -> Iterator[tuple[str, str, list[str]]]:
    """Lines of the table: label, ``measured`` or ``published``, a text for each column.

    The heading of a group is a line with nothing but its label.
    """
    marks = marks_of(measured)
    for heading, rows in groups_of(measured):
        if heading:
            yield heading, "", [""] * len(measured.columns)
        for cells in rows:
            texts = ["; ".join(measured_lines(cell, marks)) for cell in cells]
            yield cells[0].row.label, "measured", texts
            if published := published_row(cells, measured):
                yield "", "published", published


def _panels(measured: Measured) -> list[Panel]:
    """A panel for each column with a number: a line for each trained row with one.

    There are none for a table of few numbers, which is read faster than a picture.
    """
    if sum(cell.summary is not None and not cell.row.baseline for cell in measured.flat) < DRAWN:
        return []
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
            panels.append(Panel(column.label, unit, lines, trivial[0] if trivial else None))
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
    # An interval from two seeds would hide all others.
    low, high = cell.summary.low, cell.summary.high
    if cell.summary.n < LEAST_SEEDS:
        low = high = None
    return [Point(cell.summary.mean, low, high, published)]


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
