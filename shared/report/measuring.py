"""Measured tables: records of finished runs joined with the numbers that a paper gives.

``measure`` joins a declared table with the records of its cells; ``claims`` evaluates the papers'
claims on it, and the other modules of this package present both.

A record is valid for a cell only if it was measured in the same tier, with the protocol and exactly
the configuration that the table declares today, after upgrades (``shared.experiment.config``);
otherwise the cell is stale. Only declared seeds are used, so that nobody can add seeds until a
claim is confirmed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shared.experiment.config import run_key
from shared.experiment.records import Record, impossible, read_record
from shared.experiment.tables import AGGREGATES, Cell, Column, Row, Table, Tier, Value
from shared.report.statistics import (
    Summary,
    interquartile_mean,
    stratified_bootstrap,
    summarise,
)

NOT_RUN = "not run"
REFUSED = "refused"  # an altered file or an impossible number
STALE = "stale: measured with another configuration"
STATISTICS = dict(zip(AGGREGATES, (interquartile_mean,), strict=True))


@dataclass(frozen=True)
class MeasuredCell:
    """One row in one column over all declared seeds.

    Args:
        row: the row.
        column: the column.
        records: by seed, the valid records, in today's form.
        values: by seed, the metric of those records.
        missing: by seed, why a declared seed has no number.
        summary: over the seeds in ``values``; None without any.
        published: the published number; None where the paper gives none.
        difference: measured mean minus published mean; None where either is missing.
        declared: its seeds; empty where the row has no cell in the column.
        fewer: whether those are not all of the tier's.
        looked: whether some were added after others had been seen.
    """

    row: Row
    column: Column
    records: Mapping[int, Record]
    values: Mapping[int, float]
    missing: Mapping[int, str]
    summary: Summary | None
    published: Value | None
    difference: float | None
    declared: tuple[int, ...] = ()
    fewer: bool = False
    looked: bool = False

    def read(self, metric: str) -> dict[int, float]:
        """By seed another metric of the valid records, where they have it."""
        found = {seed: r.result["metrics"].get(metric) for seed, r in self.records.items()}
        return {
            seed: float(value)
            for seed, value in found.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }


@dataclass(frozen=True)
class Aggregate:
    """One statistic of a row over all finished seeds of all columns.

    Args:
        statistic: its name, of ``AGGREGATES``.
        row: label of the row.
        value: the statistic.
        interval: its 95% stratified bootstrap interval; None where a column has one seed.
        count: the number of values.
        declared: the number of values if every declared seed were finished.
    """

    statistic: str
    row: str
    value: float
    interval: tuple[float, float] | None
    count: int
    declared: int


@dataclass(frozen=True)
class Measured:
    """A table in one tier with all its measurements.

    Args:
        table: the declared table.
        tier: its tier.
        cells: for each row of the table, one cell per column of the tier; or a part of them.
        ignored: finished runs that are not used, one line each.
        records: every record of the table and tier, one per address, sorted by address: the valid
            one, else the last one given; as it was written.
        figures: names of the paper's pictures in ``figures/`` beside the written table.
        aggregates: the table's aggregates, for rows with a finished seed in every column.
    """

    table: Table
    tier: Tier
    cells: tuple[tuple[MeasuredCell, ...], ...]
    ignored: tuple[str, ...]
    records: tuple[Record, ...]
    figures: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the cells."""
        return tuple(cell.column for cell in self.cells[0])

    @property
    def seeds(self) -> tuple[int, ...]:
        """The declared seeds of the tier; a cell may have fewer."""
        return self.table.seeds[self.tier]

    def column(self, label: str) -> tuple[MeasuredCell, ...]:
        """The cells of one column, in the order of the rows."""
        return tuple(cell for cells in self.cells for cell in cells if cell.column.label == label)

    @property
    def folder(self) -> Path:
        """The folder of the written table, below that of results."""
        return folder_of(self.table, self.tier)


def measure(
    table: Table,
    tier: Tier,
    records: Sequence[Record],
    status: Mapping[str, str],
    figures: Sequence[str] = (),
) -> Measured:
    """Join ``table`` with the records of its finished cells.

    Args:
        table: the declared table.
        tier: which tier to show; records of other tiers are left out.
        records: finished runs, of this or any other table; the later of two valid records of one
            address is used.
        status: by address of a cell, why it has no result; the default is "not run".
        figures: names of the paper's pictures, from :func:`read_figures`.
    """
    # By identity of an upgraded record, the record as it was written.
    written: dict[int, Record] = {}
    by_address = joined(table, tier, records, written)

    declared: dict[tuple[str, str], list[Cell]] = {
        (row.label, column.label): [] for row in table.rows for column in table.columns_of(tier)
    }
    for cell in table.cells(tier):
        declared[cell.row, cell.column].append(cell)

    grid = tuple(
        tuple(
            _measure_cell(table, row, column, declared[row.label, column.label], by_address, status)
            for column in table.columns_of(tier)
        )
        for row in table.rows
    )
    known = {cell.address for cells in declared.values() for cell in cells}
    kept = {
        address: record
        for address, some in by_address.items()
        for record in some
        if record.result["tier"] == tier
    }
    kept |= {r.address: r for cells in grid for cell in cells for r in cell.records.values()}
    ignored = tuple(
        f"{address}: not among the declared rows, columns and seeds, so it is not used"
        for address in sorted(kept)
        if address not in known
    )
    made = {record.address: record for record in (written[id(each)] for each in kept.values())}
    every = tuple(made[address] for address in sorted(made))
    aggregates = _aggregate(table, grid)
    return Measured(table, tier, grid, ignored, every, tuple(figures), aggregates)


def joined(
    table: Table, tier: Tier, records: Sequence[Record], written: dict[int, Record]
) -> dict[str, list[Record]]:
    """By address of a cell the table's records of its run, in today's form.

    A record belongs to the cells with the key of its configuration, whatever its address; if
    several records have one key, each cell gets those with its own address, if any. A record
    without a cell stays under its own address.

    Args:
        table: the declared table.
        tier: the tier of the cells.
        records: records of this or any other table.
        written: receives, by identity of each returned record, the record as it was written.
    """
    prefix = f"{'' if tier == 'paper' else f'{tier}/'}{table.address}/"
    cells: dict[str, set[str]] = {}
    for cell in table.cells(tier):
        cells.setdefault(cell.key, set()).add(cell.address)
    by_key: dict[str, list[tuple[Record, Record]]] = {}
    for record in records:
        if record.address.startswith(prefix):
            today = record.upgraded(type(table.config))
            key = run_key(str(record.result["tier"]), today.config)
            by_key.setdefault(key, []).append((record, today))
    found: dict[str, list[Record]] = {}
    for key, some in by_key.items():
        called = {record.address for record, _ in some}
        for record, today in some:
            homes = {record.address}
            if key in cells:
                homes &= cells[key]
                homes |= cells[key] - called
            for address in homes:
                each = replace(today, address=address)
                found.setdefault(address, []).append(each)
                written[id(each)] = record
    return found


def narrowed(measured: Measured, rows: Collection[str], columns: Collection[str]) -> Measured:
    """The part of a measured table with some rows and columns.

    Args:
        measured: the table.
        rows: their labels.
        columns: their labels; aggregates are left out unless all columns are there.
    """
    cells = tuple(
        tuple(cell for cell in some if cell.column.label in columns)
        for some in measured.cells
        if some[0].row.label in rows
    )
    whole = len(cells[0]) == len(measured.columns)
    aggregates = tuple(each for each in measured.aggregates if whole and each.row in rows)
    return replace(measured, cells=cells, aggregates=aggregates)


def measure_finished(
    table: Table, tier: Tier, runs: Path, committed: Sequence[Record] = ()
) -> Measured:
    """The table measured by ``committed`` records and the finished runs below ``runs``.

    A run takes precedence over a record of the same cell.
    """
    own = (read_record(runs / cell.folder, cell.address) for cell in table.cells(tier))
    return measure(table, tier, [*committed, *filter(None, own)], {})


def folder_of(table: Table, tier: Tier) -> Path:
    """``[short/]<domain>/<paper>``: the folder of a written table, below that of results."""
    return Path("" if tier == "paper" else tier, table.domain, table.paper)


def read_figures(results: Path, table: Table, tier: Tier) -> tuple[str, ...]:
    """Names of the pictures (PNG) in the folder of the paper's figures, sorted."""
    folder = results / folder_of(table, tier) / "figures"
    return tuple(sorted(file.name for file in folder.glob("*.png")))


def refused(metrics: Mapping[str, Any], table: Table, metric: str) -> str | None:
    """Why metrics of a result are impossible in ``table``; None if they are not."""
    names = [name for name in (metric, *table.also) if name in metrics]
    found = [
        fault for name in names if (fault := impossible(name, metrics[name], table.unit_of(name)))
    ]
    return f"{REFUSED}: {'; '.join(found)}" if found else None


def refuse_smoke(measured: Measured) -> None:
    """Raise ValueError for a table of the smoke tier, which never enters results."""
    if measured.tier == "smoke":
        raise ValueError(f"{measured.table.address}: the smoke tier never enters results")


def _measure_cell(
    table: Table,
    row: Row,
    column: Column,
    cells: Sequence[Cell],
    by_address: Mapping[str, Sequence[Record]],
    status: Mapping[str, str],
) -> MeasuredCell:
    records: dict[int, Record] = {}
    values: dict[int, float] = {}
    missing: dict[int, str] = {}
    for cell in cells:
        why = status.get(cell.address, NOT_RUN)
        for record in by_address.get(cell.address, ()):
            fault = fault_of(record, cell, table, table.metric_of(column))
            if fault is None:
                records[cell.seed] = record
                values[cell.seed] = float(record.result["metrics"][table.metric_of(column)])
            else:
                why = fault
        if cell.seed not in records:
            missing[cell.seed] = why
    summary = summarise(values.values()) if values else None
    published = None
    if row.published is not None:
        # No published number where the row has no cell.
        published = table.published.value(row.published, column.label) if cells else None
    difference = summary.mean - published.mean if summary and published else None
    seeds = tuple(cell.seed for cell in cells)
    fewer = bool(seeds) and row.seeds is None and seeds != tuple(table.seeds[cells[0].tier])
    looked = bool(cells) and row.label in table.looked.get(cells[0].tier, ())
    return MeasuredCell(
        row, column, records, values, missing, summary, published, difference, seeds, fewer, looked
    )


def fault_of(record: Record, cell: Cell, table: Table, metric: str) -> str | None:
    """Why ``record``, in today's form, is not valid for ``cell``; None if it is."""
    result = record.result
    if result["tier"] != cell.tier:
        return f"stale: measured in the {result['tier']} tier"
    if result["protocol"] != table.protocol:
        return f"stale: measured with protocol {result['protocol']}"
    if record.config != cell.content:
        unknown = ", ".join(sorted(record.config.keys() - cell.content.keys()))
        return f"{STALE}, with {unknown}, of which nothing is known today" if unknown else STALE
    metrics = result["metrics"]
    value = metrics.get(metric)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"failed: the result has no finite {metric}"
    return refused(metrics, table, metric)


def trivial_baseline_of(column: Sequence[MeasuredCell], metric: str) -> tuple[str, float] | None:
    """Label and mean of the highest trivial baseline of a column, by one metric; None without."""
    means = [
        (cell.row.label, summarise(values.values()).mean)
        for cell in column
        if cell.row.baseline and (values := cell.read(metric))
    ]
    return max(means, key=lambda each: each[1], default=None)


def differing(first: MeasuredCell, second: MeasuredCell) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of datasets with different hashes in a common seed of two cells, and their processors.

    The processors are those of both cells if they are not the same, else none.
    """
    data: set[str] = set()
    for seed in first.records.keys() & second.records.keys():
        mine, theirs = (cell.records[seed].environment["data"] for cell in (first, second))
        data |= {name for name in mine if mine[name] != theirs.get(name, mine[name])}
    ours, others = ({processor_of(r) for r in c.records.values()} for c in (first, second))
    return tuple(sorted(data)), tuple(sorted(ours | others)) if ours != others else ()


def processor_of(record: Record) -> str:
    """What a run computed on: its accelerators, else its processor."""
    hardware = record.environment["hardware"]
    return ", ".join(hardware.get("accelerators") or [str(hardware.get("processor"))])


def _aggregate(table: Table, grid: tuple[tuple[MeasuredCell, ...], ...]) -> tuple[Aggregate, ...]:
    found = []
    for name in table.aggregates:
        statistic = STATISTICS[name]
        for cells in grid:
            columns = [list(cell.values.values()) for cell in cells]
            if all(columns):
                value = float(statistic(np.concatenate(columns)))
                interval = stratified_bootstrap(columns, statistic)
                count = sum(map(len, columns))
                declared = sum(len(cell.declared) for cell in cells)
                label = cells[0].row.label
                found.append(Aggregate(name, label, value, interval, count, declared))
    return tuple(found)
