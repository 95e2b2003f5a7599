"""Checking what is on record: whether it is what was written, counts, and comes out again.

:func:`check` reads every record in ``results/`` and every finished run; nothing is computed.
:func:`rerun` runs some of the recorded cells anew. Numbers are the same to the bit on one kind of
processor, with one path of the BLAS and one set of versions; elsewhere a single seed can only be
held against how far seeds lie apart.
"""

import hashlib
import itertools
import math
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid

from shared.experiment.arithmetic import REPEATS, path_of
from shared.experiment.records import (
    RECORDS,
    REPEATED,
    Damaged,
    Record,
    read_record,
    records_in,
)
from shared.experiment.runs import OWN
from shared.experiment.tables import TIERS, Cell, Table, Tier
from shared.report.measuring import NOT_RUN, REFUSED, measure

DEVIATIONS = 3.0  # how many standard deviations over seeds another processor may lie away
PATHS = {"cpu_capability": "CPU capability", "blas": "BLAS path", "numpy_and_scipy": "numpy's BLAS"}


@dataclass(frozen=True)
class Counted:
    """A committed record and a cell that it counts for."""

    table: Table
    cell: Cell
    record: Record


@dataclass(frozen=True)
class Group:
    """The records of one table of results, or the finished runs of one table.

    Args:
        name: ``[tier/]domain/paper/table``.
        committed: whether they are records in ``results/``.
        records: those that could be read, by where they stand.
        count: how many of them count for a cell.
    """

    name: str
    committed: bool
    records: Mapping[str, Record]
    count: int


@dataclass(frozen=True)
class Checked:
    """What :func:`check` found.

    Args:
        groups: what was read.
        faults: what is wrong, one line each.
        notes: what is not wrong, but has to be said.
        counted: the committed records that count.
    """

    groups: tuple[Group, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    counted: tuple[Counted, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of running one recorded cell anew.

    Args:
        address: of the cell; empty for a remark about all.
        fault: whether it contradicts the record.
        text: one line.
    """

    address: str
    fault: bool
    text: str


def check(tables: Sequence[Table], results: Path, runs: Path, domain: str | None = None) -> Checked:
    """Check every record below ``results`` and every finished run below ``runs``.

    A committed record has to be as it was written, possible, made by a clean commit, and to count
    for a cell of ``tables``; a run on this disk has to be as it was written and possible.

    Args:
        tables: those of the domain, or of all.
        results: the folder of results.
        runs: the folder of runs; it need not exist.
        domain: the only domain to look at; None for all.
    """
    declared = _declared(tables)
    groups, faults, notes, counted = [], [], [], []
    found = itertools.chain(_committed(results), _finished(runs))
    for (name, committed), some in itertools.groupby(found, key=lambda each: each[:2]):
        if domain not in (None, next((part for part in name.split("/") if part not in TIERS), "")):
            continue
        records: dict[str, Record] = {}
        for *_, where, record in some:
            if isinstance(record, Damaged):
                faults.append(str(record))
            else:
                records[where] = record
        cells, whys = _join(declared.get(name), list(records.values()))
        for where, record in records.items():
            faulty = [why for why in whys.get(record.address, ()) if committed or _refused(why)]
            faults += [f"{where}: {record.address} does not count: {why}" for why in faulty]
            if committed and record.environment["dirty"]:
                faults.append(f"{where}: {record.address} was not measured at a clean commit")
        addresses = [record.address for record in records.values()]
        for address in {each for each in addresses if addresses.count(each) > 1}:
            faults.append(f"{name}: two records of {address}")
        counting = [record for record in records.values() if record.address not in whys]
        groups.append(Group(name, committed, records, len(counting)))
        if committed:
            counted += [
                Counted(declared[name][0], cell, record)
                for record in counting
                for cell in cells[record.address][:1]
            ]
        if without := sum(record.sha256 is None for record in records.values()):
            notes.append(f"{name}: {without} without a hash, from before there were any")
        if not committed and (idle := len(records) - len(counting)):
            notes.append(f"{name}: {idle} finished, but of no cell as it is declared today")
    for group, wrong in _repeats(results, declared, counted, domain):
        groups.append(group)
        faults += wrong
    notes += _not_in_history(groups)
    return Checked(tuple(groups), tuple(faults), tuple(notes), tuple(counted))


def objections(tables: Sequence[Table], records: Iterable[Record]) -> dict[str, str]:
    """By address, why a record cannot be taken into the results; those that can are not named.

    Args:
        tables: those of all domains.
        records: finished runs.
    """
    declared = _declared(tables)
    found = {}
    for record in records:
        name = record.address.rsplit("/", 3)[0]
        _, whys = _join(declared.get(name), [record])
        if why := whys.get(record.address):
            found[record.address] = "; ".join(why)
        elif name.startswith("smoke/"):
            found[record.address] = "the smoke tier proves the path only and never enters results"
        elif record.environment["dirty"]:
            found[record.address] = "it was not measured at a clean commit"
    return found


def summary(checked: Checked) -> Grid:
    """One line for each table of results, and for each table with runs on this disk."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    grid.add_column("table", no_wrap=True)
    for name in ("records", "count", "hash right", "clean commit", "data hash"):
        grid.add_column("\n".join(name.split()), justify="right", no_wrap=True)
    processors: Counter[str] = Counter()
    for group in checked.groups:
        records = group.records.values()
        environments = [record.environment for record in records]
        numbers = (
            len(records),
            group.count,
            sum(record.sha256 is not None for record in records),
            sum(not environment["dirty"] for environment in environments),
            sum(bool(environment["data"]) for environment in environments),
        )
        processors.update(str(each["hardware"].get("processor")) for each in environments)
        grid.add_row(f"{'' if group.committed else 'runs: '}{group.name}", *map(str, numbers))
    on = ", ".join(f"{name}: {count}" for name, count in sorted(processors.items()))
    grid.caption = f"By processor: {on or 'nothing is on record'}"
    return grid


def drawn(counted: Iterable[Counted], choice: int) -> list[Counted]:
    """The records in an order that only ``choice`` decides; a longer sample begins as a shorter."""

    def rank(each: Counted) -> str:
        return hashlib.sha256(f"{choice} {each.record.address}".encode()).hexdigest()

    return sorted(counted, key=rank)


def rerun(
    waiting: Sequence[Counted],
    number: int,
    everything: Sequence[Counted],
    runs: Path,
    start: Callable[[list[Cell]], Mapping[str, str]],
) -> Iterator[Outcome]:
    """Run recorded cells anew and compare; in place of a cell that lacks its data comes another.

    Args:
        waiting: the candidates, in the order in which they are taken.
        number: how many to run.
        everything: all records that count: how far seeds lie apart.
        runs: where ``start`` puts the runs.
        start: runs cells of one domain; gives by address why one has no result.
    """
    left, done = list(waiting), 0
    lacking: set[tuple[str, str]] = set()
    while batch := left[: number - done]:
        left = left[len(batch) :]
        batch.sort(key=lambda each: each.cell.domain)
        outcomes: dict[str, str] = {}
        for _, some in itertools.groupby(batch, key=lambda each: each.cell.domain):
            outcomes |= start([each.cell for each in some])
        for each in batch:
            address, why = each.record.address, outcomes.get(each.record.address)
            if why is not None and why.startswith(NOT_RUN):
                lacking.add((each.table.address, each.cell.source))
                yield Outcome(address, False, f"cannot be run here: {why}")
                continue
            done += 1
            anew = read_record(runs / address, address)
            if anew is None:
                yield Outcome(address, True, why or "failed without a word")
            else:
                yield compare(each, anew, everything)
        left = [each for each in left if (each.table.address, each.cell.source) not in lacking]
    if done < number:
        yield Outcome("", False, f"{done} of {number} cells could be run: no further one is there")


def compare(recorded: Counted, anew: Record, everything: Sequence[Counted]) -> Outcome:
    """Hold a run of the same cell against its record.

    Equal bits are equal. Other bits contradict the record on the same kind of processor, BLAS
    path, versions and threads; elsewhere only if a metric that the table shows lies further away
    than ``DEVIATIONS`` standard deviations over the recorded seeds.
    """
    address, record = recorded.record.address, recorded.record
    if record.environment["data"] != anew.environment["data"]:
        return Outcome(address, True, "the data are others than the record names by their hash")
    others = _other_circumstances(record.environment, anew.environment)
    if _numbers(record) == _numbers(anew):
        return Outcome(address, False, "; ".join(["equal to the bit", *others]))
    names = {
        recorded.table.metric_of(column)
        for column in recorded.table.columns_of(recorded.cell.tier)
        if recorded.cell.source in (column.run, column.label)
    }
    texts, fault = [], False
    for name in sorted(names):
        there, here = (float(each.result["metrics"][name]) for each in (record, anew))
        text = f"{name} differs by {here - there:+.6g} ({here:.6g}, {there:.6g} on record)"
        spread, of_what = _spread(recorded, name, everything)
        if not others:
            fault = True
        elif spread is None:
            text = f"{text}, not judged: {of_what}"
        else:
            outside = abs(here - there) > DEVIATIONS * spread
            fault |= outside
            place = "outside" if outside else "within"
            text = f"{text}, spread {of_what} {spread:.3g}: {place} {DEVIATIONS:g} of it"
        texts.append(text)
    if not others:
        others = ["on the same processor, BLAS path, versions and threads"]
    return Outcome(address, fault, f"{'; '.join(others)}: {'; '.join(texts)}")


Found = tuple[str, bool, str, Record | Damaged]


def _committed(results: Path) -> Iterator[Found]:
    for file in sorted(results.rglob(f"*{RECORDS}")):
        name = file.relative_to(results).as_posix().removesuffix(RECORDS)
        for number, record in enumerate(records_in(file), start=1):
            yield name, True, f"{file}, line {number}", record


def _finished(runs: Path) -> Iterator[Found]:
    for file in sorted(runs.rglob("result.json")):
        address = file.parent.relative_to(runs).as_posix()
        # What the report holds against its records, and runs of no table: shared.command.own.
        if address.startswith((f"{REPEATS}/", f"{OWN}/")):
            continue
        name = address.rsplit("/", 3)[0]
        try:
            record: Record | Damaged | None = read_record(file.parent, address)
        except Damaged as error:
            record = error
        if record is not None:
            yield name, False, str(file.parent), record


def _repeats(
    results: Path,
    declared: Mapping[str, tuple[Table, Tier]],
    counted: Sequence[Counted],
    domain: str | None,
) -> Iterator[tuple[Group, list[str]]]:
    """The committed records of runs under other code paths, and what is wrong with them.

    Each has to be as it was written, possible, made by a clean commit, of a cell whose record
    counts, under a path that neither that record nor another repeat of it has.
    """
    paths = {each.record.address: path_of(each.record.environment) for each in counted}
    for file in sorted(results.rglob(f"*{REPEATED}")):
        name = file.relative_to(results).as_posix().removesuffix(REPEATED)
        if domain not in (None, next((part for part in name.split("/") if part not in TIERS), "")):
            continue
        records: dict[str, Record] = {}
        faults: list[str] = []
        right = 0
        seen: set[tuple[str, str | None]] = set()
        for number, record in enumerate(records_in(file), start=1):
            where = f"{file}, line {number}"
            if isinstance(record, Damaged):
                faults.append(str(record))
                continue
            records[where] = record
            before = len(faults)
            path = path_of(record.environment)
            _, whys = _join(declared.get(name), [record])
            faults += [
                f"{where}: {record.address} does not count: {why}"
                for why in whys.get(record.address, ())
            ]
            if record.environment["dirty"]:
                faults.append(f"{where}: {record.address} was not measured at a clean commit")
            if record.address not in paths:
                faults.append(f"{where}: {record.address} repeats a cell without a record")
            elif path in (None, paths[record.address]) or (record.address, path) in seen:
                faults.append(f"{where}: {record.address} is under no other code path")
            seen.add((record.address, path))
            right += len(faults) == before
        yield Group(f"{name}, repeated", True, records, right), faults


def _declared(tables: Iterable[Table]) -> dict[str, tuple[Table, Tier]]:
    """The tables in each of their tiers, by ``[tier/]domain/paper/table``."""
    return {
        ("" if tier == "paper" else f"{tier}/") + table.address: (table, tier)
        for table in tables
        for tier in table.tiers
    }


def _join(
    declared: tuple[Table, Tier] | None, records: Sequence[Record]
) -> tuple[dict[str, list[Cell]], dict[str, list[str]]]:
    """By address the cells of a table, and why a record does not count for them."""
    cells: dict[str, list[Cell]] = {}
    whys: dict[str, list[str]] = {}
    if declared is None:
        return cells, {record.address: ["no table declares it today"] for record in records}
    table, tier = declared
    for cell in table.cells(tier):
        cells.setdefault(cell.address, []).append(cell)
    measured = measure(table, tier, records, {})
    missing = {
        (cell.row.label, cell.column.label): cell.missing for row in measured.cells for cell in row
    }
    for record in records:
        found = [
            missing[cell.row, cell.column].get(cell.seed) for cell in cells.get(record.address, ())
        ]
        if not found:
            found = ["not among the declared rows, columns and seeds"]
        if some := sorted({why for why in found if why is not None}):
            whys[record.address] = some
    return cells, whys


def _refused(why: str) -> bool:
    return why.startswith(REFUSED)


def _not_in_history(groups: Iterable[Group]) -> list[str]:
    """A note on commits that this repository does not know; none where there is no git to ask."""
    records = [record for group in groups if group.committed for record in group.records.values()]
    commits = sorted({record.environment["commit"] for record in records})
    try:
        done = subprocess.run(
            ["git", "cat-file", "--batch-check"],
            cwd=Path(__file__).resolve().parents[2],
            input="\n".join(commits),
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ["no git here: commits of records were not looked up"] if commits else []
    unknown = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("missing")]
    return [f"commit {each} of a record is not in this copy's history" for each in unknown]


def _other_circumstances(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What decides bits and is not the same; empty where equal bits are promised."""
    found = []
    processors = [str(each["hardware"].get("processor")) for each in (there, here)]
    if processors[0] != processors[1]:
        found.append(f"other processor ({processors[1]}, {processors[0]} on record)")
    if any(each["hardware"].get("accelerators") for each in (there, here)):
        found.append("an accelerator, which promises no bits")
    if "arithmetic" not in there:
        found.append("BLAS path not on record")
    else:
        found += [
            f"other {words}"
            for name, words in PATHS.items()
            if there["arithmetic"].get(name) != here["arithmetic"].get(name)
        ]
    # What only one of them has installed, neither the one's run nor the other's has used.
    first, second = there["versions"], here["versions"]
    if names := sorted(name for name in first if second.get(name, first[name]) != first[name]):
        found.append(f"other versions of {', '.join(names)}")
    if there.get("threads") != here.get("threads"):
        found.append("another number of threads")
    return found


def _numbers(record: Record) -> dict[str, Any]:
    """Metrics but for details, which also hold times."""
    metrics = record.result["metrics"]
    return {name: value for name, value in metrics.items() if not isinstance(value, dict)}


def _spread(
    recorded: Counted, metric: str, everything: Iterable[Counted]
) -> tuple[float | None, str]:
    """Standard deviation over recorded seeds, and of what; None where nothing has two seeds."""
    by_row: dict[str, list[float]] = {}
    cell = recorded.cell
    for each in everything:
        place = (each.cell.table_address, each.cell.tier, each.cell.source)
        if place == (cell.table_address, cell.tier, cell.source):
            value = float(each.record.result["metrics"][metric])
            by_row.setdefault(each.cell.row, []).append(value)
    own = by_row.get(cell.row, [])
    if len(own) > 1:
        return statistics.stdev(own), f"over {len(own)} seeds"
    others = [statistics.stdev(values) for values in by_row.values() if len(values) > 1]
    if others:
        mean = math.sqrt(statistics.fmean(sd * sd for sd in others))
        return mean, f"over seeds of {len(others)} other rows of the column (this row has one seed)"
    return None, "one seed is on record, and nothing tells how far seeds lie apart"
