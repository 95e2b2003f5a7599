"""Checks of committed records and finished runs: unaltered, plausible, valid for a declared cell.

Nothing is computed; :mod:`shared.command.rerun` runs recorded cells again.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from shared.experiment.frame import (
    Line,
    Measurement,
    Origin,
    ReadRecord,
    load,
    name_of,
    processor_of,
)
from shared.experiment.records import Reason, Record
from shared.experiment.tables import Table

COMMIT = re.compile("[0-9a-f]{40}")
DATA_HASH = re.compile("(?!0{64})[0-9a-f]{64}( approximate)?")


@dataclass(frozen=True)
class Group:
    """The records of one file of results, or the finished runs on one dataset."""

    name: str  # ``[tier/]domain/paper/table`` of records, ``domain/dataset`` of runs
    committed: bool  # whether they are records in ``results/``
    records: Mapping[str, Record]  # the readable ones, by file and line
    valid: int  # how many of them are valid for a cell


@dataclass(frozen=True)
class Checked:
    """What :func:`check` found."""

    groups: tuple[Group, ...]  # what it read
    faults: tuple[str, ...]  # a line each
    notes: tuple[str, ...]  # what is worth knowing without being a fault, a line each
    matched: tuple[Measurement, ...]  # the valid ones among the committed records, with their cells


def check(tables: Sequence[Table], results: Path, runs: Path, domain: str | None = None) -> Checked:
    """Check every record below ``results``, and every finished run below ``runs`` if it exists.

    A committed record must be unaltered and plausible, from a clean commit and valid for a cell of
    ``tables``; a run on this disk must be unaltered and plausible.
    """
    frame = load(tables, runs=runs, results=results, everything=True, domain=domain)
    lines: defaultdict[str, list[Line]] = defaultdict(list)
    for line in frame:
        if line.source is not None:
            lines[line.source.where].append(line)
    by_group: defaultdict[tuple[Origin, str], list[ReadRecord]] = defaultdict(list)
    for source in frame.sources:
        by_group[source.origin, source.group].append(source)
    faults: dict[Origin, list[str]] = {"record": [], "run": []}
    for origin, error in frame.damaged:
        faults[origin].append(str(error))
    groups: list[Group] = []
    notes: list[str] = []
    matched: list[Measurement] = []
    for (origin, name), sources in by_group.items():
        valid = 0
        for source in sources:
            of_cells, reasons = _lines_and_faults(source, lines[source.where])
            faults[origin] += [f"{source.where}: {source.record.address} {why}" for why in reasons]
            if of_cells and not reasons:
                valid += 1
                if origin == "record" and (measurement := of_cells[0].measurement):
                    matched.append(measurement)
        records = {source.where: source.record for source in sources}
        groups.append(Group(name, origin == "record", records, valid))
        if origin == "record":
            times = Counter(record.address for record in records.values())
            twice = [address for address, count in times.items() if count > 1]
            faults[origin] += [f"{name}: two records of {address}" for address in twice]
        elif idle := len(sources) - valid:
            notes.append(f"{name}: {idle} finished, but of no cell that is declared today")
    return Checked(tuple(groups), (*faults["record"], *faults["run"]), tuple(notes), tuple(matched))


def summary(checked: Checked) -> Grid:
    """One line for each table of results, and for each dataset with runs on this disk."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    grid.add_column("table", no_wrap=True)
    for name in ("records", "valid", "clean\ncommit", "data\nhash"):
        grid.add_column(name, justify="right", no_wrap=True)
    processors: Counter[str] = Counter()
    for group in checked.groups:
        environments = [record.environment for record in group.records.values()]
        clean = sum(not environment["dirty"] for environment in environments)
        hashed = sum(bool(environment["data"]) for environment in environments)
        processors.update(map(processor_of, group.records.values()))
        label = Text(f"{'' if group.committed else 'runs: '}{group.name}")
        grid.add_row(label, *map(str, (len(environments), group.valid, clean, hashed)))
    on = ", ".join(f"{name}: {count}" for name, count in sorted(processors.items()))
    grid.caption = Text(f"By processor: {on or 'no records'}")
    return grid


def _lines_and_faults(source: ReadRecord, lines: Sequence[Line]) -> tuple[list[Line], list[str]]:
    """Those of a source's lines that are of cells, and why it is not valid.

    The cells of a record are those of the table that it is stored beside.
    """
    if source.origin == "run":
        of_cells = [line for line in lines if line.cell is not None]
        faults = {line.why for line in of_cells if Reason.REFUSED.begins(line.why)}
    else:
        of_cells = [line for line in lines if name_of(line.table, line.tier) == source.group]
        faults = {line.why for line in of_cells if line.why}
        if not of_cells:
            faults = {"no table declares it today"}
    faults = {f"is not valid: {why}" for why in faults}
    if source.origin == "record" and (fault := _fault_of(source.record)):
        faults.add(fault)
    return of_cells, sorted(faults)


def _fault_of(record: Record) -> str | None:
    """Why a record may not be committed, whichever cell it is of: the first reason, if any."""
    environment = record.environment
    if environment["dirty"]:
        return "was not measured at a clean commit"
    if not COMMIT.fullmatch(environment["commit"]):
        return f"names no commit but {environment['commit'][:40]!r}"
    for name, digest in environment["data"].items():
        if not DATA_HASH.fullmatch(digest):
            return f"has {digest[:70]!r} as the hash of {name}"
    text = next(_not_finite(record.result["metrics"]), None)
    return f"has a metric that is not a finite number: {text}" if text else None


def _not_finite(value: Any, name: str = "") -> Iterator[str]:
    """The metrics, nested ones included, that are null or the word "nan", "inf" or "-inf".

    Reading a record refuses such numbers themselves.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for item in value:
            yield from _not_finite(item, name)
    elif value in (None, "nan", "inf", "-inf"):
        yield f"{name} is {value}"
