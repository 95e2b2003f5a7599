"""Checks of committed records and finished runs: unaltered, plausible, valid for a declared cell.

Nothing is computed; :mod:`shared.command.rerun` runs recorded cells again.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from shared.experiment.config import USER_TIER
from shared.experiment.frame import (
    Line,
    Measurement,
    Origin,
    ReadRecord,
    folder_key,
    load,
    name_of,
    processor_of,
)
from shared.experiment.records import Reason, Record
from shared.experiment.tables import Table

COMMIT = re.compile("[0-9a-f]{40}")
DATA_HASH = re.compile("(?!0{64})[0-9a-f]{64}( approximate)?")
IDLE = "{}: {} finished, but of no cell that is declared today"


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

    A committed record must be unaltered and plausible, from a clean commit, from the same data as
    the others of its column, and valid for a cell of ``tables``; a run on this disk must be
    unaltered and plausible.
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
            notes.append(IDLE.format(name, idle))
    committed = [group for group in groups if group.committed]
    faults["record"] += _inconsistent_data(committed, tables)
    notes = [*_misplaced(frame.sources, runs, domain), *notes]
    return Checked(tuple(groups), (*faults["record"], *faults["run"]), tuple(notes), tuple(matched))


def summary(checked: Checked) -> Grid:
    """One line for each table of results, and for each dataset with runs on this disk."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    grid.add_column("table", no_wrap=True)
    for name in ("records", "valid", "clean commit", "data hash"):
        grid.add_column("\n".join(name.split()), justify="right", no_wrap=True)
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
        whys = {line.why for line in of_cells if Reason.REFUSED.begins(line.why)}
        return of_cells, sorted(f"is not valid: {why}" for why in whys)
    of_cells = [line for line in lines if name_of(line.table, line.tier) == source.group]
    whys = {line.why for line in of_cells if line.why}
    if not of_cells:
        whys = {"no table declares it today"}
    faults = [f"is not valid: {why}" for why in whys]
    if fault := _fault_of(source.record):
        faults.append(fault)
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


def _inconsistent_data(groups: Sequence[Group], tables: Iterable[Table]) -> Iterator[str]:
    """Records whose data differ from those of the records beside them.

    A dataset has one hash in a column and seed, and one over all seeds where most of them agree:
    data that a run makes itself, such as frames, may differ from seed to seed. A record without
    data is a fault where others of the same kind of configuration have some.
    """
    kinds = {name_of(table, tier): type(table.config) for table in tables for tier in table.tiers}
    with_data = {
        kinds.get(group.name)
        for group in groups
        if any(record.environment["data"] for record in group.records.values())
    } - {None}
    for group in groups:
        hashes: defaultdict[tuple[str, str], list[tuple[str, str, str]]] = defaultdict(list)
        for where, record in group.records.items():
            data = record.environment["data"]
            if not data and kinds.get(group.name) in with_data:
                yield f"{where}: {record.address} names no data, unlike others of its kind"
            *_, column, seed = record.address.split("/")
            for name, digest in data.items():
                hashes[column, name].append((where, seed, digest))
        for (column, name), of_column in hashes.items():
            for where, digest, expected in _unusual_hashes(of_column):
                yield (
                    f"{where}: {name} has another hash than the rest of the column {column}: "
                    f"{digest[:12]}..., not {expected[:12]}..."
                )


def _unusual_hashes(hashes: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Of a column's places, seeds and hashes: the places with an unexpected hash, it, the expected.

    Expected is the hash of most records, or without one the most frequent of the same seed.
    """
    usual, times = Counter(digest for *_, digest in hashes).most_common(1)[0]
    by_seed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for _, seed, digest in hashes:
        by_seed[seed][digest] += 1
    for where, seed, digest in hashes:
        expected = usual if 2 * times > len(hashes) else by_seed[seed].most_common(1)[0][0]
        if digest != expected:
            yield where, digest, expected


def left_out(tables: Sequence[Table], runs: Path) -> Iterator[str]:
    """Notes on the finished runs below ``runs`` that are of no cell of ``tables``."""
    frame = load(tables, runs=runs, everything=True)
    yield from _misplaced(frame.sources, runs, None)
    of_cells = {line.source.where for line in frame if line.source is not None}
    idle = Counter(
        source.group
        for source in frame.sources
        if source.where not in of_cells and source.where.endswith(f"-{folder_key(source.record)}")
    )
    for name, count in sorted(idle.items()):
        yield IDLE.format(name, count)


def _misplaced(sources: Iterable[ReadRecord], runs: Path, domain: str | None) -> Iterator[str]:
    """Notes on finished runs that do not count because of their folder, as after a copy.

    With a domain, folders that lie elsewhere are noted where a part of their path has its name.
    """
    for source in sources:
        if source.origin == "record":
            continue
        key = folder_key(source.record)
        if not source.where.endswith(f"-{key}"):
            yield f"{source.where}: does not count under this name; rename it to end with -{key}"
    stray: Counter[str] = Counter()
    for file in runs.rglob("result.json"):
        parts = file.relative_to(runs).parts
        if domain not in (None, *parts[:-1]):
            continue
        if len(parts) - (parts[0] == USER_TIER) != 4:  # domain, dataset, run, file
            stray[parts[0]] += 1
    for name, count in sorted(stray.items()):
        where = f"{runs / name}: {count} finished, which do not count there"
        yield f"{where}; move them to {runs}/DOMAIN/DATASET/RUN"
