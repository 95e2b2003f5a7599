"""From finished runs to tables: what was measured joined with what a paper prints, and judged.

``measure`` joins a declared table with the records of its finished cells; the other modules of this
room show the outcome: in the terminal (``console``), as Markdown, LaTeX and CSV (``files``), as
one HTML page (``page``) and as a picture (``picture``).

A record counts for a cell only if it was measured in the same tier, with the protocol and with
exactly the configuration that the table declares today, however that was written down at the time
(``shared.experiment.history``); otherwise the cell is stale. Only declared seeds count, so that
nobody can add seeds until a claim comes out right.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shared.experiment.history import address_today, home, unknown_keys
from shared.experiment.records import Record, impossible, read_record
from shared.experiment.tables import (
    AGGREGATES,
    Cell,
    Claim,
    Column,
    Row,
    Table,
    Tier,
    Value,
    canonical,
)
from shared.report.items import sentence
from shared.report.statistics import (
    Summary,
    Verdict,
    interquartile_mean,
    judge,
    seeds_sentence,
    stratified_bootstrap,
    summarise,
)

NOT_RUN = "not run"
UNAVAILABLE = "not implemented yet"
REFUSED = "refused"  # a file that was altered, a number that cannot be
STALE = "stale: measured with another configuration"
STATISTICS = dict(zip(AGGREGATES, (interquartile_mean,), strict=True))


@dataclass(frozen=True)
class MeasuredCell:
    """One row in one column over all declared seeds.

    Args:
        row: the row.
        column: the column.
        records: by seed, the records that count, in today's form.
        values: by seed, the metric of those records.
        missing: by seed, why a declared seed has no number.
        summary: over the seeds in ``values``; None without any.
        published: the printed number; None where the paper prints none.
        difference: measured mean minus published mean; None where either lacks.
    """

    row: Row
    column: Column
    records: Mapping[int, Record]
    values: Mapping[int, float]
    missing: Mapping[int, str]
    summary: Summary | None
    published: Value | None
    difference: float | None

    @property
    def unavailable(self) -> str:
        """Why the cell cannot run yet; empty if it can."""
        return self.row.unavailable or self.column.unavailable


@dataclass(frozen=True)
class Judged:
    """The verdict on one claim in one column.

    Args:
        claim: the claim.
        column: label of the column.
        verdict: the verdict.
        outlook: how many seeds would see the published gain; empty where the verdict says it, the
            table does not ask for it, or nothing tells.
        items: McNemar's test of each seed on the test items of both rows; empty where the records
            do not say which items were right.
    """

    claim: Claim
    column: str
    verdict: Verdict
    outlook: str = ""
    items: str = ""


@dataclass(frozen=True)
class Aggregate:
    """One statistic of a row over all finished seeds of all columns.

    Args:
        statistic: its name, of ``AGGREGATES``.
        row: label of the row.
        value: the statistic.
        interval: its 95% stratified bootstrap interval; None where a column has one seed.
        count: how many values it rests on.
        declared: how many those would be with every declared seed finished.
    """

    statistic: str
    row: str
    value: float
    interval: tuple[float, float] | None
    count: int
    declared: int


@dataclass(frozen=True)
class Measured:
    """A table in one tier with everything that was measured for it.

    Args:
        table: the declared table.
        tier: the tier of every number in it.
        cells: for each row of the table, one cell per column of the tier.
        verdicts: claim by claim, column by column; none in the smoke tier.
        ignored: what finished but does not count, one line each.
        records: every record of the table and tier, one per address, sorted by address: the one
            that counts, else the last one given; as it was made.
        figures: names of the paper's pictures; they lie in ``figures/`` beside the written table.
        aggregates: those that the table asks for, of the rows that have a finished seed in every
            column.
    """

    table: Table
    tier: Tier
    cells: tuple[tuple[MeasuredCell, ...], ...]
    verdicts: tuple[Judged, ...]
    ignored: tuple[str, ...]
    records: tuple[Record, ...]
    figures: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the tier."""
        return self.table.columns_of(self.tier)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The declared seeds of the tier."""
        return self.table.seeds[self.tier]

    @property
    def folder(self) -> Path:
        """Where the written table lies below the folder of results."""
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
        records: finished runs, of this or any other table; where two records of one address
            both count, the later one is taken.
        status: by address of a cell, why it has no result; "not run" where it says nothing.
        figures: names of the paper's pictures, from :func:`read_figures`.
    """
    prefix = f"{'' if tier == 'paper' else f'{tier}/'}{table.address}/"
    by_address: dict[str, list[Record]] = {}
    written: dict[int, Record] = {}  # by identity of what is compared, the record as it was made
    for record in records:
        if address_today(record.address, type(table.config)).startswith(prefix):
            today = record.upgraded(type(table.config))
            by_address.setdefault(today.address, []).append(today)
            written[id(today)] = record

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
        f"{address}: not among the declared rows, columns and seeds, so it does not count"
        for address in sorted(kept)
        if address not in known
    )
    verdicts = _judge_all(table, grid) if tier != "smoke" else ()
    every = tuple(written[id(kept[address])] for address in sorted(kept))
    aggregates = _aggregate(table, grid)
    return Measured(table, tier, grid, verdicts, ignored, every, tuple(figures), aggregates)


def measure_finished(
    table: Table, tier: Tier, runs: Path, committed: Sequence[Record] = ()
) -> Measured:
    """The table as ``committed`` records and the finished runs below ``runs`` fill it.

    Where both hold a cell, the run counts.
    """
    own = (
        read_record(home(runs, cell.address, type(cell.config)), cell.address)
        for cell in table.cells(tier)
    )
    return measure(table, tier, [*committed, *filter(None, own)], {})


def folder_of(table: Table, tier: Tier) -> Path:
    """``[short/]<domain>/<paper>``: where a table is written below the folder of results."""
    return Path("" if tier == "paper" else tier, table.domain, table.paper)


def read_figures(results: Path, table: Table, tier: Tier) -> tuple[str, ...]:
    """Names of the pictures (PNG) that lie in the folder of the paper's figures, sorted."""
    folder = results / folder_of(table, tier) / "figures"
    return tuple(sorted(file.name for file in folder.glob("*.png")))


def refused(metrics: Mapping[str, Any], table: Table, metric: str) -> str | None:
    """Why numbers of a result cannot be those that ``table`` shows of it; None when they can."""
    names = [name for name in (metric, *table.also) if name in metrics]
    found = [fault for name in names if (fault := impossible(name, metrics[name], table.unit))]
    return f"{REFUSED}: {'; '.join(found)}" if found else None


def refuse_smoke(measured: Measured) -> None:
    """Raise ValueError for a table of the smoke tier, which never enters results."""
    if measured.tier == "smoke":
        raise ValueError(f"{measured.table.address}: the smoke tier never enters results")


def unavailable(cell: Cell) -> str:
    """Status of a cell that cannot run yet; empty for one that can."""
    return f"{UNAVAILABLE}: {cell.unavailable}" if cell.unavailable else ""


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
        why = unavailable(cell) or status.get(cell.address, NOT_RUN)
        for record in by_address.get(cell.address, ()):
            fault = _fault(record, cell, table, table.metric_of(column))
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
        published = table.published.value(row.published, column.label)
    difference = summary.mean - published.mean if summary and published else None
    return MeasuredCell(row, column, records, values, missing, summary, published, difference)


def _fault(record: Record, cell: Cell, table: Table, metric: str) -> str | None:
    """Why ``record`` does not count for ``cell``; None when it does."""
    if cell.unavailable:  # what its configuration does is not yet what its labels say
        return unavailable(cell)
    result = record.result
    if result["tier"] != cell.tier:
        return f"stale: measured in the {result['tier']} tier"
    if result["protocol"] != table.protocol:
        return f"stale: measured with protocol {result['protocol']}"
    if unknown := unknown_keys(record.config, cell.config):
        return f"{STALE}, with {', '.join(unknown)}, of which nothing is known today"
    if record.config != canonical(cell.config):
        return STALE
    metrics = result["metrics"]
    value = metrics.get(metric)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"failed: the result has no finite {metric}"
    return refused(metrics, table, metric)


def _judge_all(table: Table, grid: tuple[tuple[MeasuredCell, ...], ...]) -> tuple[Judged, ...]:
    found = {(cell.row.label, cell.column.label): cell for cells in grid for cell in cells}
    verdicts = []
    for claim in table.claims:
        for column in claim.columns:
            better, than = found[claim.better, column], found[claim.than, column]
            numbers = (better.values, than.values, better.published, than.published)
            verdict = judge(claim, *numbers)
            said = verdict.seeds_needed is not None
            outlook = seeds_sentence(*numbers) if table.aggregates and not said else ""
            items = sentence(better.records, than.records, table.metric_of(better.column))
            verdicts.append(Judged(claim, column, verdict, outlook, items))
    return tuple(verdicts)


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
                declared = count + sum(len(cell.missing) for cell in cells)
                label = cells[0].row.label
                found.append(Aggregate(name, label, value, interval, count, declared))
    return tuple(found)
