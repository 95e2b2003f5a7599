"""Measured tables: the frame's lines of a table, beside the numbers that a paper gives.

``claims`` judges the papers' claims on measured tables, and the other modules of this package
present both.
"""

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shared.experiment.frame import Line, processor_of
from shared.experiment.records import Record
from shared.experiment.tables import (
    Column,
    Row,
    SettingWord,
    Table,
    Tier,
    Value,
)
from shared.report.statistics import Summary, summarise

SCALES: Mapping[SettingWord, str] = {
    "reduced": "small",
    "rebuilt": "the paper's budget (rebuilt)",
    "paper's": "the paper's setting",
}


@dataclass(frozen=True)
class MeasuredCell:
    """One row in one column over all declared seeds."""

    row: Row
    column: Column
    records: Mapping[int, Record]  # by seed, the valid records, in today's form
    values: Mapping[int, float]  # by seed, the metric of those records
    missing: Mapping[int, str]  # by seed, why a declared seed has no number
    published: Value | None  # None where the paper gives none
    declared: tuple[int, ...] = ()  # its seeds; empty where the row has no cell in the column
    fewer: bool = False  # whether those are not all of the tier's
    post_hoc: bool = False  # whether some were added after others had been seen

    @functools.cached_property
    def summary(self) -> Summary | None:
        """Over the seeds in ``values``; None without any."""
        return summarise(self.values.values()) if self.values else None

    @property
    def difference(self) -> float | None:
        """Measured mean minus published mean; None where either is missing."""
        return self.summary.mean - self.published.mean if self.summary and self.published else None

    def read(self, metric: str) -> dict[int, float]:
        """By seed another metric of the valid records, where they have it."""
        return finite_values(self.records, metric)


@dataclass(frozen=True)
class Measured:
    """A table in one tier with all its measurements."""

    table: Table
    tier: Tier
    # For each row of the table, one cell per column of the tier; or a part of them.
    cells: tuple[tuple[MeasuredCell, ...], ...]
    ignored: tuple[str, ...]  # finished runs that are not used, one line each
    # Every record of the table and tier, one per address, sorted by address: the valid one, else
    # the last one given; as it was written.
    records: tuple[Record, ...]
    # Names of the paper's pictures in ``figures/`` beside the written table.
    figures: tuple[str, ...] = ()
    chosen: tuple[int, ...] = ()  # the seeds that are shown, of a part; empty for all

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the cells."""
        return tuple(cell.column for cell in self.cells[0])

    @property
    def flat(self) -> Iterator[MeasuredCell]:
        """All cells, row by row."""
        return itertools.chain.from_iterable(self.cells)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The declared seeds of the tier, or the chosen ones; a cell may have fewer."""
        return self.chosen or self.table.seeds[self.tier]

    def column(self, label: str) -> tuple[MeasuredCell, ...]:
        """The cells of one column, in the order of the rows."""
        return tuple(cell for cell in self.flat if cell.column.label == label)

    @property
    def scale(self) -> str:
        """The name of its scale."""
        return scale_of(self.table, self.tier)

    @property
    def folder(self) -> Path:
        """The folder of the written table, below that of results."""
        return folder_of(self.table, self.tier)


def scale_of(table: Table, tier: Tier) -> str:
    """The name of a tier's scale."""
    return "smoke" if tier == "smoke" else SCALES[table.setting(tier).word]


def finite_values(records: Mapping[int, Record], metric: str) -> dict[int, float]:
    """By seed a metric of records, where they have it as a finite number."""
    values = {seed: record.result["metrics"].get(metric) for seed, record in records.items()}
    return {
        seed: float(value)
        for seed, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def measure(
    table: Table, tier: Tier, lines: Sequence[Line], figures: Sequence[str] = ()
) -> Measured:
    """The measured table, from the lines of the frame for it and its tier."""
    by_pair: dict[tuple[str, str], list[Line]] = {}
    by_address: dict[str, Line] = {}  # the valid line, else the last one
    for line in lines:
        if line.cell is not None and line.counts:
            by_pair.setdefault((line.cell.row, line.cell.column), []).append(line)
        if line.record is not None and line.record.result["tier"] == tier:
            by_address[line.record.address] = line
    by_address |= {line.record.address: line for line in lines if line.record and not line.why}
    cells = tuple(
        tuple(
            _measure_cell(table, row, column, by_pair.get((row.label, column.label), ()))
            for column in table.columns_of(tier)
        )
        for row in table.rows
    )
    ignored = tuple(
        f"{address}: {line.why}, so it is not used"
        for address, line in sorted(by_address.items())
        if line.cell is None
    )
    as_written = [line.source.record for line in by_address.values() if line.source]
    records = tuple({r.address: r for r in sorted(as_written, key=lambda r: r.address)}.values())
    return Measured(table, tier, cells, ignored, records, tuple(figures))


def narrowed(
    measured: Measured,
    rows: Collection[str],
    columns: Collection[str],
    seeds: Collection[int] | None = None,
) -> Measured:
    """The part of a measured table with some rows, columns and seeds.

    Where the table declares none of the seeds, all are shown.
    """
    chosen = tuple(seed for seed in measured.seeds if seeds is None or seed in seeds)
    if seeds is not None and chosen and chosen != measured.seeds:
        cells = tuple(
            tuple(_with_seeds(cell, chosen) for cell in row_cells) for row_cells in measured.cells
        )
        measured = replace(measured, cells=cells, chosen=chosen)
    cells = tuple(
        tuple(cell for cell in row_cells if cell.column.label in columns)
        for row_cells in measured.cells
        if row_cells[0].row.label in rows
    )
    return replace(measured, cells=cells)


def _with_seeds(cell: MeasuredCell, chosen: Sequence[int]) -> MeasuredCell:
    """The cell over some of its seeds."""
    declared = tuple(seed for seed in cell.declared if seed in chosen)
    return replace(
        cell,
        records={seed: record for seed, record in cell.records.items() if seed in chosen},
        values={seed: value for seed, value in cell.values.items() if seed in chosen},
        missing={seed: why for seed, why in cell.missing.items() if seed in chosen},
        declared=declared,
        fewer=cell.fewer and declared != tuple(chosen),
    )


def folder_of(table: Table, tier: Tier) -> Path:
    """``[short/]<domain>/<paper>``: the folder of a written table, below that of results."""
    return Path("" if tier == "paper" else tier, table.domain, table.paper)


def read_figures(results: Path, table: Table, tier: Tier) -> tuple[str, ...]:
    """Names of the pictures (PNG) in the folder of the paper's figures, sorted."""
    folder = results / folder_of(table, tier) / "figures"
    return tuple(sorted(file.name for file in folder.glob("*.png")))


def refuse_smoke(measured: Measured) -> None:
    """Raise ValueError for a table of the smoke tier, which never enters results."""
    if measured.tier == "smoke":
        raise ValueError(f"{measured.table.address}: the smoke tier never enters results")


def _measure_cell(table: Table, row: Row, column: Column, lines: Sequence[Line]) -> MeasuredCell:
    """The cell of a row and a column, from its lines of the frame."""
    records: dict[int, Record] = {}
    values: dict[int, float] = {}
    missing: dict[int, str] = {}
    seeds = []
    for line in lines:
        assert line.cell is not None
        seed = line.cell.seed
        seeds.append(seed)
        if line.record is not None and not line.why:
            records[seed] = line.record
            values[seed] = float(line.record.result["metrics"][table.metric_of(column)])
        else:
            missing[seed] = line.why
    published = None
    if row.published is not None and lines:  # no published number where the row has no cell
        published = table.published.value(row.published, column.label)
    fewer = bool(lines) and row.seeds is None and tuple(seeds) != table.seeds[lines[0].tier]
    first_added = table.post_hoc_seeds.get(lines[0].tier, {}).get(row.label) if lines else None
    post_hoc = first_added is not None and any(seed >= first_added for seed in seeds)
    return MeasuredCell(
        row, column, records, values, missing, published, tuple(seeds), fewer, post_hoc
    )


def highest(cells: Iterable[MeasuredCell], metric: str) -> tuple[float, str] | None:
    """The highest mean of a metric in some cells, and the label of its row; None without any."""
    means = ((values, cell.row.label) for cell in cells if (values := cell.read(metric)))
    return max(((summarise(v.values()).mean, label) for v, label in means), default=None)


def differing(first: MeasuredCell, second: MeasuredCell) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of datasets with different hashes in a common seed of two cells, and their processors.

    The processors are those of both cells if they are not the same, else none.
    """
    data: set[str] = set()
    for seed in first.records.keys() & second.records.keys():
        hashes, expected = (cell.records[seed].environment["data"] for cell in (second, first))
        data |= {name for name in expected if hashes.get(name, expected[name]) != expected[name]}
    on_first, on_second = ({processor_of(r) for r in c.records.values()} for c in (first, second))
    processors = on_first | on_second if on_first != on_second else set()
    return tuple(sorted(data)), tuple(sorted(processors))
