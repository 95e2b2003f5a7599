"""The frame: the cells of declared tables joined with the records of their runs, nowhere else.

:func:`load` reads committed records and the finished runs of this disk into a :class:`Frame`. What
is done, valid, expensive or measured is a selection of its lines.

A record is valid for a cell only if it was measured in the same tier, with the protocol and exactly
the configuration that the table declares today, after upgrades (:mod:`shared.experiment.config`);
otherwise it is stale. Only declared seeds are used, so that seeds cannot be added until a claim is
confirmed.
"""

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shared.experiment.config import USER_TIER, is_archived, run_key
from shared.experiment.records import (
    ENCODER_PROCESSOR,
    NUMBER,
    RECORDS,
    Damaged,
    Reason,
    Record,
    computed_on,
    read_failure,
    read_record,
    records_in,
)
from shared.experiment.tables import TIERS, UNITS, Cell, Table, Tier

if TYPE_CHECKING:
    import pandas as pd

Origin = Literal["run", "record"]
Status = Literal["valid", "invalid", "missing", "undeclared"]
STALE = f"{Reason.STALE}: measured with another configuration"
UNDECLARED = f"{Reason.UNDECLARED}: not among the declared rows, columns and seeds"
ROUNDING = 1e-6  # relative: a mean of hundreds in float32 may exceed 100 by this much


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as it was written, and where it was read."""

    record: Record
    origin: Origin = "record"  # a finished run on this disk, or a committed record
    where: str = ""  # the folder of the run, or file and line
    group: str = ""  # ``[tier/]domain/paper/table`` of the file, ``domain/dataset`` of a run


@dataclass(frozen=True, slots=True)
class Measurement:
    """A cell with its valid record, in today's form."""

    table: Table
    cell: Cell
    record: Record  # under the address of the cell


@dataclass(frozen=True, slots=True)
class Line:
    """A cell with one record of its run; also a cell without any, and a record without a cell."""

    table: Table
    tier: Tier
    cell: Cell | None  # None for a record of no declared cell
    # In today's form, under the address of the cell; None for a cell without any.
    record: Record | None
    source: ReadRecord | None  # as it was written
    why: str  # why the cell has no valid record; empty where it has one
    counts: bool  # whether the line is the one of its cell: the last valid one, or the last

    @property
    def status(self) -> Status:
        """What the line says of its cell."""
        if self.record is None:
            return "missing"
        if self.cell is None:
            return "undeclared"
        return "invalid" if self.why else "valid"

    @property
    def measurement(self) -> Measurement | None:
        """The cell with its record; None unless that is valid."""
        if self.cell is None or self.record is None or self.why:
            return None
        return Measurement(self.table, self.cell, self.record)


@dataclass(frozen=True)
class Frame:
    """Cells and their records."""

    # By address of a table and tier, those of its cells in their order, then those of records
    # without a cell.
    lines: Mapping[tuple[str, Tier], Sequence[Line]]
    # Everything that was read, in order; also what belongs to no line.
    sources: Sequence[ReadRecord] = ()
    # What could not be read: its origin, and what is wrong.
    damaged: Sequence[tuple[Origin, Damaged]] = ()

    def of(self, table: Table, tier: Tier) -> Sequence[Line]:
        """The lines of one table in one tier."""
        return self.lines.get((table.address, tier), ())

    def __iter__(self) -> Iterator[Line]:
        return (line for lines in self.lines.values() for line in lines)

    def check(self, *origins: Origin) -> None:
        """Raise the first error of what could not be read, of these origins or of both."""
        for origin, error in self.damaged:
            if not origins or origin in origins:
                raise error

    def dataframe(self) -> "pd.DataFrame":
        """The lines that count as a long table, with one row for each cell and metric.

        A cell without a record has one row, with the metric of its table and NaN.
        """
        import pandas as pd

        return pd.DataFrame([row for line in self if line.counts for row in _rows(line)])


def load(
    tables: Iterable[Table],
    *,
    runs: Path | None = None,
    results: Path | None = None,
    tiers: Sequence[Tier] = TIERS,
    status: Mapping[str, str] | None = None,
    also: Sequence[Cell] = (),
    everything: bool = False,
    domain: str | None = None,
    records_stay: bool = False,
    before: Frame | None = None,
) -> Frame:
    """The cells of ``tables`` with the finished runs of this disk and the committed records.

    A run takes precedence over a committed record of the same cell, unless ``records_stay``.

    Args:
        tables: of one domain or several.
        runs: the folder of runs; None: no run is read.
        results: the folder of results; None: no committed record is read.
        tiers: the tiers to read.
        status: by address, why a cell has no result, where that is known.
        also: cells of the tables with seeds that they do not declare.
        everything: whether records of other tables and runs of no cell are read as well, into
            ``sources``.
        domain: with ``everything``, the only domain that is read; None for all.
        records_stay: whether a valid committed record takes precedence over a run.
        before: a frame of the same tables, whose committed records are taken in place of files.
    """
    damaged: list[tuple[Origin, Damaged]] = []
    chosen = [(table, tier) for table in tables for tier in tiers if tier in table.tiers]
    committed: list[ReadRecord] = []
    if before is not None:
        committed = [source for source in before.sources if source.origin == "record"]
    elif results is not None:
        files = [results / f"{name_of(*key)}{RECORDS}" for key in chosen]
        if everything:
            files = [
                file
                for file in sorted(results.rglob(f"*{RECORDS}"))
                if domain is None or domain in file.relative_to(results).parts[:2]
            ]
        committed = list(_committed(results, filter(Path.exists, files), damaged))
    by_table: dict[str, list[ReadRecord]] = {}
    for source in committed:
        by_table.setdefault(source.record.address.rsplit("/", 3)[0], []).append(source)
    disk = None if runs is None else _Disk(runs)
    lines: dict[tuple[str, Tier], list[Line]] = {}
    for table, tier in chosen:
        further = [
            cell for cell in also if (cell.table_address, cell.tier) == (table.address, tier)
        ]
        cells = tuple(
            {(cell.address, cell.column): cell for cell in (*further, *table.cells(tier))}.values()
        )
        finished_runs = list(disk.finished(cells)) if disk else []
        reasons = {**(disk.status if disk else {}), **(status or {})}
        records = by_table.get(name_of(table, tier), ())
        ordered = [*finished_runs, *records] if records_stay else [*records, *finished_runs]
        lines[table.address, tier] = join(table, tier, ordered, reasons, cells)
    if disk is None:
        return Frame(lines, committed, damaged)
    if everything:
        disk.read_others(domain)
    damaged += [("run", error) for error in disk.damaged.values()]
    return Frame(lines, [*committed, *disk.sources.values()], damaged)


def join(
    table: Table,
    tier: Tier,
    sources: Iterable[ReadRecord],
    status: Mapping[str, str] | None = None,
    cells: Sequence[Cell] | None = None,
) -> list[Line]:
    """The cells of a table in a tier with those of ``sources`` that belong to them.

    A record belongs to the cells with the key of its configuration, whatever its address; if
    several records have one key, each cell gets those with its own address, if any. A record
    without a cell stays under its own address; records of other tiers and tables are left out. Of
    two valid records of a cell the later counts. ``status`` says by address why a cell has none.
    """
    prefix = f"{name_of(table, tier)}/"
    cells = table.cells(tier) if cells is None else cells
    cells_by_key: dict[str, set[str]] = {}
    for cell in cells:
        cells_by_key.setdefault(cell.key, set()).add(cell.address)
    candidates: list[tuple[ReadRecord, Record, str]] = []
    recorded: dict[str, set[str]] = {}
    for source in sources:
        address = source.record.address
        if address.startswith(prefix):
            today = source.record.upgraded(type(table.config))
            key = run_key(str(today.result["tier"]), today.config)
            candidates.append((source, today, key))
            recorded.setdefault(key, set()).add(address)
    by_address: dict[str, list[tuple[ReadRecord, Record]]] = {}
    for source, today, key in candidates:
        # Its own cell, and cells with its configuration that no record names.
        with_key = cells_by_key.get(key, set())
        targets = (with_key & {today.address}) | (with_key - recorded[key])
        for address in targets or {today.address}:
            by_address.setdefault(address, []).append((source, replace(today, address=address)))

    metrics = {column.label: table.metric_of(column) for column in table.columns_of(tier)}
    lines: list[Line] = []
    for cell in cells:
        records = by_address.get(cell.address, ())
        faults = [fault_of(today, cell, table, metrics[cell.column]) for _, today in records]
        valid = (index for index, fault in enumerate(faults) if fault is None)
        counting = max(valid, default=len(faults) - 1)
        for index, ((source, today), fault) in enumerate(zip(records, faults, strict=True)):
            lines.append(Line(table, tier, cell, today, source, fault or "", index == counting))
        if not records:
            why = (status or {}).get(cell.address, table.failure_of(cell) or Reason.NOT_RUN)
            lines.append(Line(table, tier, cell, None, None, why, counts=True))
    declared = {cell.address for cell in cells}
    for address, undeclared in by_address.items():
        if address not in declared:
            last, _ = undeclared[-1]
            for source, today in undeclared:
                lines.append(Line(table, tier, None, today, source, UNDECLARED, source is last))
    return lines


def by_key(
    sources: Iterable[ReadRecord], tier: Tier, kinds: Iterable[type], *, users: bool = False
) -> dict[str, list[Record]]:
    """Records by the keys that their runs have today, whatever table they are of.

    ``kinds`` are the classes that their configurations may be of. With ``users``, runs outside
    tables count as if they were of the tier.
    """
    records: dict[str, list[Record]] = {}
    for record in (source.record for source in sources):
        if record.result["tier"] == tier or (users and record.result["tier"] == USER_TIER):
            for key in {run_key(tier, record.upgraded(kind).config) for kind in kinds}:
                records.setdefault(key, []).append(record)
    return records


def fault_of(record: Record, cell: Cell, table: Table, metric: str) -> str | None:
    """Why ``record``, in today's form, is not valid for ``cell``; None if it is."""
    result = record.result
    if result["tier"] != cell.tier:
        return f"{Reason.STALE}: measured in the {result['tier']} tier"
    if result["protocol"] != table.protocol:
        return f"{Reason.STALE}: measured with protocol {result['protocol']}"
    if record.config != cell.content:
        unknown = ", ".join(sorted(record.config.keys() - cell.content.keys()))
        return f"{STALE}, with {unknown}, of which nothing is known today" if unknown else STALE
    value = result["metrics"].get(metric)
    if not isinstance(value, NUMBER) or not math.isfinite(value):
        return f"{Reason.FAILED}: the result has no finite {metric}"
    return refused(result["metrics"], table, metric)


def refused(metrics: Mapping[str, Any], table: Table, metric: str) -> str | None:
    """Why ``metric``, or another that the table shows, is impossible; None if they are not."""
    names = [name for name in (metric, *table.also) if name in metrics]
    faults = [impossible(name, metrics[name], table.unit_of(name)) for name in names]
    return f"{Reason.REFUSED}: {'; '.join(filter(None, faults))}" if any(faults) else None


def impossible(name: str, value: Any, unit: str) -> str | None:
    """Why ``value`` cannot be the metric ``name`` in ``unit``; None if it can."""
    if isinstance(value, bool) or not isinstance(value, NUMBER) or not math.isfinite(value):
        return f"{name} is {json.dumps(value)}, not a finite number"
    low, high = UNITS[unit]
    if low - ROUNDING * abs(low) <= value <= high + ROUNDING * abs(high):
        return None
    return f"{name} is {value:g}, outside {low:g} to {high:g} {unit}"


def name_of(table: Table, tier: Tier) -> str:
    """``[tier/]domain/paper/table``: how the addresses of a table's cells begin."""
    return table.address if tier == "paper" else f"{tier}/{table.address}"


def processor_of(record: Record) -> str:
    """What a run computed on, and its encoder where another run trained that elsewhere."""
    encoder = record.environment.get("facts", {}).get(ENCODER_PROCESSOR)
    return ", encoder: ".join(filter(None, (computed_on(record.environment), encoder)))


def finished(cell: Cell, runs: Path) -> Record | None:
    """The finished run of a cell; None without one, or if it is damaged (running it says so)."""
    try:
        return read_record(runs / cell.folder, cell.address)
    except Damaged:
        return None


def unfinished(cells: Iterable[Cell], runs: Path) -> list[Cell]:
    """Those of the cells that have no finished run."""
    return [cell for cell in cells if finished(cell, runs) is None]


@dataclass
class _Disk:
    """The finished runs below a folder, each read once."""

    runs: Path
    sources: dict[Path, ReadRecord] = field(default_factory=dict)
    damaged: dict[Path, Damaged] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def keys(self) -> set[str]:
        """The keys of all runs, which end the names of their folders."""
        return {folder.name.rpartition("-")[2] for folder in self.runs.glob("*/*/*")}

    def finished(self, cells: Sequence[Cell]) -> Iterator[ReadRecord]:
        """The runs of cells, one for each address."""
        for cell in {cell.address: cell for cell in cells}.values():
            folder = self.runs / cell.folder
            # Of thousands of cells, few were run here.
            if cell.key not in self.keys or not folder.exists():
                continue
            self._read(folder, cell.address)
            if folder in self.sources:
                source = self.sources[folder]
                yield replace(source, record=replace(source.record, address=cell.address))
            elif folder in self.damaged:
                self.status[cell.address] = f"{Reason.REFUSED}: {self.damaged[folder]}"
            elif why := read_failure(folder):
                self.status[cell.address] = why

    def read_others(self, domain: str | None) -> None:
        """Read the finished runs of no cell, too."""
        for file in sorted(self.runs.glob("*/*/*/result.json")):
            folder = file.parent
            first = folder.relative_to(self.runs).parts[0]
            if first != USER_TIER and domain in (None, first) and not is_archived(folder):
                self._read(folder, folder.name)

    def _read(self, folder: Path, address: str) -> None:
        """Enter a run in ``sources`` if it is finished, or in ``damaged``."""
        if folder in self.sources or folder in self.damaged:
            return
        try:
            if (record := read_record(folder, address)) is not None:
                group = folder.parent.relative_to(self.runs).as_posix()
                self.sources[folder] = ReadRecord(record, "run", str(folder), group)
            else:
                read_failure(folder)
        except Damaged as error:
            self.damaged[folder] = error


def _committed(
    results: Path, files: Iterable[Path], damaged: list[tuple[Origin, Damaged]]
) -> Iterator[ReadRecord]:
    """The records of files, in the order of their lines; errors are added to ``damaged``."""
    for file in files:
        for number, record in enumerate(records_in(file), start=1):
            if isinstance(record, Damaged):
                damaged.append(("record", record))
            else:
                group = file.relative_to(results).as_posix().removesuffix(RECORDS)
                yield ReadRecord(record, "record", f"{file}, line {number}", group)


def _rows(line: Line) -> Iterator[dict[str, Any]]:
    """The rows of a line in the long table."""
    table, cell, record = line.table, line.cell, line.record
    environment = record.environment if record else {}
    result = record.result if record else {}
    numbers: Mapping[str, float]
    if record is not None:
        numbers = {
            name: float(value)
            for name, value in result["metrics"].items()
            if isinstance(value, NUMBER) and not isinstance(value, bool)
        }
    else:
        assert cell is not None
        numbers = {table.metric_of(table.column_of(line.tier, cell.column)): math.nan}
    for metric, value in numbers.items():
        yield {
            "domain": table.domain,
            "paper": table.paper,
            "table": table.name,
            "tier": line.tier,
            "row": cell and cell.row,
            "column": cell and cell.column,
            "seed": cell and cell.seed,
            "address": cell.address if cell else record and record.address,
            "key": cell and cell.key,
            "sha": record and record.sha256,
            "commit": environment.get("commit"),
            "dirty": environment.get("dirty"),
            "processor": processor_of(record) if record else None,
            "seconds": result.get("seconds", math.nan),
            "gigabytes": result.get("peak_memory_bytes", math.nan) / 1e9,
            "status": line.status,
            "why": line.why,
            "origin": line.source.origin if line.source else None,
            "metric": metric,
            "value": value,
        }
