"""The papers' figures: their declaration by a domain, the runs behind them, their files.

A domain's module of figures has ``FIGURES``: for each paper its figures by name. A figure whose
runs or data are missing is not drawn, and a line says what it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from shared.errors import UserError, program
from shared.experiment.data import MissingData
from shared.experiment.files import write_atomically
from shared.experiment.frame import Frame, load
from shared.experiment.records import Record
from shared.experiment.tables import Cell, Column, Row, Table, Tier
from shared.report import pictures
from shared.report.measuring import folder_of, scale_of
from shared.report.wording import counted, named_seeds

SOURCES: tuple[Tier, ...] = ("paper", "short")  # the first with finished runs is drawn; never smoke
KINDS = ("png", "pdf")


class CannotDraw(Exception):
    """A figure has no runs or data to be drawn from; the text says in one line what is missing."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a table, its record and folder."""

    cell: Cell  # the first of the cells that read the run
    row: Row
    column: Column
    value: float  # its metric in the column
    record: Record  # in today's form
    folder: Path  # which may be missing for a committed record

    @property
    def config(self) -> Any:
        """The configuration of the run, of the domain's own class."""
        return self.cell.config

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Everything that the run measured."""
        metrics: Mapping[str, Any] = self.record.result["metrics"]
        return metrics


@dataclass(frozen=True)
class FigureRuns:
    """The input of a figure."""

    # Finished runs of one table in one tier, row by row, at least one; empty for a figure that
    # needs no run.
    runs: Sequence[FinishedRun]
    data: Path  # the folder of datasets
    table: Table | None = None  # the table of the runs


@dataclass(frozen=True)
class DrawnFigure:
    """A figure with its title, caption and numbers."""

    figure: Figure  # one of :mod:`shared.report.pictures`
    title: str
    caption: str  # whose figure it follows, and what was computed
    runs: Sequence[FinishedRun] = ()  # those that it shows
    # The drawn numbers, for a CSV file beside it; all lines have the same keys.
    numbers: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class DeclaredFigure:
    """A declared figure."""

    # Draws it; raises ``CannotDraw`` or ``MissingData`` if something is missing.
    draw: Callable[[FigureRuns], DrawnFigure]
    # Names of the tables whose runs it can be drawn from, the best first; empty for a figure that
    # needs no run.
    tables: tuple[str, ...] = ()


Figures = Mapping[str, Mapping[str, DeclaredFigure]]


def finished(frame: Frame, table: Table, tier: Tier, runs: Path) -> list[FinishedRun]:
    """The runs and records of a table in a tier, row by row."""
    rows = {row.label: row for row in table.rows}
    columns = {column.label: column for column in table.columns_of(tier)}
    finished_runs: dict[str, FinishedRun] = {}  # by address
    for line in frame.of(table, tier):
        if line.counts and (measured := line.measurement):
            cell, record = measured.cell, measured.record
            column = columns[cell.column]
            value = float(record.result["metrics"][table.metric_of(column)])
            run = FinishedRun(cell, rows[cell.row], column, value, record, runs / cell.folder)
            finished_runs.setdefault(cell.address, run)
    return list(finished_runs.values())


def no_runs_of(table: Table, tier: Tier) -> CannotDraw:
    """The exception for a table without finished runs in a tier, with the command for them."""
    option = "" if tier == "paper" else f" --tier {tier}"
    return CannotDraw(
        f"no finished run of {table.address} ({scale_of(table, tier)}); run {program()} "
        f"{table.domain} {table.paper} --table {table.name}{option}"
    )


def by_row(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """The runs by the label of their row."""
    rows: dict[str, list[FinishedRun]] = {}
    for run in runs:
        rows.setdefault(run.row.label, []).append(run)
    return rows


def by_column(source: FigureRuns) -> list[tuple[Column, list[FinishedRun]]]:
    """The columns that have runs, in the order of the table, and their runs."""
    columns: dict[str, list[FinishedRun]] = {}
    for run in source.runs:
        columns.setdefault(run.column.label, []).append(run)
    order = [column.label for column in source.table.columns] if source.table else []
    return [(columns[label][0].column, columns[label]) for label in order if label in columns]


def origin(runs: Sequence[FinishedRun]) -> str:
    """The runs of a figure, in one line."""
    if len(runs) <= 2:
        return f"Drawn from {' and '.join(run.record.address for run in runs)}."
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        seeds.setdefault((run.row.label, run.column.label), []).append(run.cell.seed)
    fewer = ", some rows with fewer" if len({tuple(sorted(s)) for s in seeds.values()}) > 1 else ""
    first = runs[0].cell
    return (
        f"Drawn from {counted(len(runs), 'run')} of {first.table_address}, "
        f"{named_seeds(sorted({run.cell.seed for run in runs}))}{fewer}, protocol "
        f"{first.config.protocol}."
    )


def draw(
    declared: DeclaredFigure, tables: Sequence[Table], frame: Frame, runs: Path, data: Path
) -> tuple[Tier, DrawnFigure]:
    """Draw a figure from the first tier and table of its paper that it can be drawn from."""
    if not declared.tables:
        return "paper", _in_style(declared, FigureRuns((), data))
    best_first = [table for name in declared.tables for table in tables if table.name == name]
    candidates = [(tier, table) for tier in SOURCES for table in best_first if tier in table.tiers]
    reasons: list[CannotDraw | MissingData] = []
    for tier, table in candidates:
        if finished_runs := finished(frame, table, tier, runs):
            try:
                return tier, _in_style(declared, FigureRuns(finished_runs, data, table))
            except (CannotDraw, MissingData) as reason:
                reasons.append(reason)
    if reasons:
        raise reasons[0]
    tier, table = candidates[-1]
    raise no_runs_of(table, tier)


def _in_style(declared: DeclaredFigure, source: FigureRuns) -> DrawnFigure:
    with mpl.rc_context(pictures.STYLE):
        return declared.draw(source)


def write(
    tables: Mapping[str, Sequence[Table]],
    figures: Figures,
    paper: str,
    runs: Path,
    results: Path,
    data: Path,
    to: Path,
) -> list[Path]:
    """Draw the figures of a paper that can be drawn; print a line for each that cannot.

    Files go to ``[short/]<domain>/<paper>/figures/`` below ``to``, by the tier of a figure's runs.
    Returns the PNG and PDF files written, and the CSV files beside them.
    """
    domain = next(iter(tables.values()))[0].domain
    if paper not in figures:
        raise UserError(f"{domain} has no figures for {paper!r}; it has {', '.join(figures)}")
    frame = load(tables[paper], runs=runs, results=results, tiers=SOURCES)
    frame.check()
    written = []
    for name, declared in figures[paper].items():
        try:
            tier, drawn = draw(declared, tables[paper], frame, runs, data)
        except (CannotDraw, MissingData) as reason:
            print(f"{name}: not drawn: {reason}")
            continue
        title, caption = drawn.title, drawn.caption
        if drawn.runs:
            address = drawn.runs[0].cell.table_address
            table = next(table for table in tables[paper] if table.address == address)
            title, caption = f"{title} ({scale_of(table, tier)})", f"{caption} {origin(drawn.runs)}"
        pictures.label(drawn.figure, title, caption)
        folder = to / folder_of(tables[paper][0], tier) / "figures"
        for kind in KINDS:
            pictures.save(drawn.figure, folder / f"{name}.{kind}")
            written.append(folder / f"{name}.{kind}")
        if drawn.numbers:
            write_atomically(folder / f"{name}.csv", _csv_text(drawn.numbers))
            written.append(folder / f"{name}.csv")
    return written


def _csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    import pandas  # takes a second to import

    return str(pandas.DataFrame(lines, dtype=object).to_csv(index=False, lineterminator="\n"))
