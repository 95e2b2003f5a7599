"""Checking what is on record: whether it is what was written, counts, and comes out again.

:func:`check` reads every record in ``results/`` and every finished run; nothing is computed.
:func:`rerun` runs some of the recorded cells anew. Numbers are the same to the bit on one kind of
processor, with one path of the BLAS and one set of versions; elsewhere a single seed can only be
held against how far seeds lie apart.
"""

import hashlib
import itertools
import math
import re
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from shared.experiment.environment import REPEATS, path_of
from shared.experiment.records import (
    RECORDS,
    REPEATED,
    Damaged,
    Record,
    read_record,
    records_in,
)
from shared.experiment.runs import OWN, is_aside
from shared.experiment.tables import TIERS, Cell, Table, Tier, run_key
from shared.report.measuring import NOT_RUN, fault_of, refused

DEVIATIONS = 3.0  # how many standard deviations over seeds another processor may lie away
PATHS = {"cpu_capability": "CPU capability", "blas": "BLAS path", "numpy_and_scipy": "numpy's BLAS"}
COMMIT = re.compile("[0-9a-f]{40}")
DATA_HASH = re.compile("(?!0{64})[0-9a-f]{64}( approximate)?")


@dataclass(frozen=True)
class Counted:
    """A committed record and a cell that it counts for."""

    table: Table
    cell: Cell
    record: Record


@dataclass(frozen=True)
class Group:
    """The records of one file of results, or the finished runs on one dataset.

    Args:
        name: ``[tier/]domain/paper/table`` of records, ``domain/dataset`` of runs.
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

    A committed record has to be as it was written, possible, made by a clean commit, from the same
    data as the others of its column, and to count for a cell of ``tables``; a run on this disk has
    to be as it was written and possible.

    Args:
        tables: those of the domain, or of all.
        results: the folder of results.
        runs: the folder of runs; it need not exist.
        domain: the only domain to look at; None for all.
    """
    declared = _declared(tables)
    groups: list[Group] = []
    faults: list[str] = []
    counted: list[Counted] = []
    for file, name in _files(results, RECORDS, domain):
        records = _readable(file, faults)
        found, wrong = _judged(declared.get(name), records)
        for address, times in Counter(record.address for record in records.values()).items():
            if times > 1:
                wrong.append((name, f"two records of {address}"))
        groups.append(Group(name, True, records, len(found)))
        faults += [f"{where}: {fault}" for where, fault in wrong]
        counted += found.values()
    faults += _odd_data(groups, declared)
    for group, found_wrong in _repeats(results, declared, counted, domain):
        groups.append(group)
        faults += found_wrong
    notes = _not_in_history(groups)
    for group, found_wrong in _finished(runs, tables, domain):
        groups.append(group)
        faults += found_wrong
        if idle := len(group.records) - group.count:
            notes.append(f"{group.name}: {idle} finished, but of no cell as it is declared today")
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
        _, wrong = _judged(declared.get(name), {"": record})
        if wrong:
            found[record.address] = "; ".join(fault for _, fault in wrong)
        elif name.startswith("smoke/"):
            found[record.address] = "the smoke tier proves the path only and never enters results"
    return found


def summary(checked: Checked) -> Grid:
    """One line for each table of results, and for each table with runs on this disk."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    grid.add_column("table", no_wrap=True)
    for name in ("records", "count", "clean commit", "data hash"):
        grid.add_column("\n".join(name.split()), justify="right", no_wrap=True)
    processors: Counter[str] = Counter()
    for group in checked.groups:
        records = group.records.values()
        environments = [record.environment for record in records]
        numbers = (
            len(records),
            group.count,
            sum(not environment["dirty"] for environment in environments),
            sum(bool(environment["data"]) for environment in environments),
        )
        processors.update(str(each["hardware"].get("processor")) for each in environments)
        grid.add_row(Text(f"{'' if group.committed else 'runs: '}{group.name}"), *map(str, numbers))
    on = ", ".join(f"{name}: {count}" for name, count in sorted(processors.items()))
    grid.caption = Text(f"By processor: {on or 'nothing is on record'}")
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
            anew = read_record(runs / each.cell.folder, address)
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


def _files(results: Path, ending: str, domain: str | None) -> Iterator[tuple[Path, str]]:
    """The files of records, each with ``[tier/]domain/paper/table``; of one domain or of all."""
    for file in sorted(results.rglob(f"*{ending}")):
        name = file.relative_to(results).as_posix().removesuffix(ending)
        parts = [part for part in name.split("/") if part not in TIERS]
        if domain in (None, parts[0]):
            yield file, name


def _readable(file: Path, faults: list[str]) -> dict[str, Record]:
    """The records of a file by where they stand; lines that are none are added to ``faults``."""
    records = {}
    for number, record in enumerate(records_in(file), start=1):
        if isinstance(record, Damaged):
            faults.append(str(record))
        else:
            records[f"{file}, line {number}"] = record
    return records


def _judged(
    declared: tuple[Table, Tier] | None, records: Mapping[str, Record]
) -> tuple[dict[str, Counted], list[tuple[str, str]]]:
    """By where it stands what a good record counts for; where each other stands, and its fault."""
    counted: dict[str, Counted] = {}
    wrong: list[tuple[str, str]] = []
    by_key: dict[str, list[Cell]] = {}
    by_address: dict[str, list[Cell]] = {}
    if declared is not None:
        table, tier = declared
        metrics = {column.label: table.metric_of(column) for column in table.columns}
        for cell in table.cells(tier):
            by_key.setdefault(cell.key, []).append(cell)
            by_address.setdefault(cell.address, []).append(cell)
    for where, record in records.items():
        whys = [_unfit(record)]
        if declared is None:
            whys.append("does not count: no table declares it today")
        else:
            today = record.upgraded(type(table.config))
            same = by_key.get(run_key(str(record.result["tier"]), today.config), [])
            cells = [cell for cell in same if cell.address == record.address] or same
            cells = cells or by_address.get(record.address, [])
            if not cells:
                whys.append("does not count: not among the declared rows, columns and seeds")
            for cell in cells:
                if why := fault_of(today, cell, table, metrics[cell.column]):
                    whys.append(f"does not count: {why}")
        if found := sorted(set(filter(None, whys))):
            wrong += [(where, f"{record.address} {why}") for why in found]
        else:
            counted[where] = Counted(table, cells[0], replace(record, address=cells[0].address))
    return counted, wrong


def _unfit(record: Record) -> str | None:
    """What no committed record may be, whatever it is of; None if it is fit."""
    environment = record.environment
    if environment["dirty"]:
        return "was not measured at a clean commit"
    if not COMMIT.fullmatch(environment["commit"]):
        return f"names no commit but {environment['commit'][:40]!r}"
    for name, digest in environment["data"].items():
        if not DATA_HASH.fullmatch(digest):
            return f"has {digest[:70]!r} as the hash of {name}"
    if number := next(_not_finite(record.result["metrics"]), None):
        return f"has a metric that is no finite number: {number}"
    return None


def _not_finite(value: Any, name: str = "") -> Iterator[str]:
    """The metrics, also those below others, that are infinite or not a number."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _not_finite(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for each in value:
            yield from _not_finite(each, name)
    elif value is None or value in ("nan", "inf", "-inf"):
        yield f"{name} is {value}"


def _odd_data(groups: Sequence[Group], declared: Mapping[str, tuple[Table, Tier]]) -> Iterator[str]:
    """Records made from other data than those beside them.

    In one column and seed a name has one hash. Over seeds, too, where most agree: what a run makes
    itself, frames for one, is another with each seed. A record without data is odd where others of
    the same kind of configuration have some.
    """
    with_data: set[type] = set()
    for group in groups:
        if group.name in declared and any(r.environment["data"] for r in group.records.values()):
            with_data.add(type(declared[group.name][0].config))
    for group in groups:
        columns: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
        for where, record in group.records.items():
            data = record.environment["data"]
            if not data and group.name in declared:
                if type(declared[group.name][0].config) in with_data:
                    yield f"{where}: {record.address} names no data, as others like it do"
            column, _, seed = record.address.rpartition("/")
            for name, digest in data.items():
                place = column.rpartition("/")[2], name
                columns.setdefault(place, []).append((where, seed, digest))
        for (column, name), some in columns.items():
            usual, times = Counter(digest for *_, digest in some).most_common(1)[0]
            by_seed = {
                each: Counter(digest for _, seed, digest in some if seed == each).most_common(1)
                for each in {seed for _, seed, _ in some}
            }
            for where, seed, digest in some:
                most = usual if 2 * times > len(some) else by_seed[seed][0][0]
                if digest != most:
                    yield (
                        f"{where}: other {name} than the rest of the column {column}: "
                        f"{digest[:12]}..., not {most[:12]}..."
                    )


def _finished(
    runs: Path, tables: Sequence[Table], domain: str | None
) -> Iterator[tuple[Group, list[str]]]:
    """The finished runs on this disk by dataset, and what is wrong with them."""
    found: dict[str, list[Path]] = {}
    for file in sorted(runs.glob("*/*/*/result.json")):
        name = file.parent.parent.relative_to(runs).as_posix()
        first = name.partition("/")[0]
        # What the report holds against its records, and runs of no table: shared.command.own.
        if first not in (REPEATS, OWN) and domain in (None, first) and not is_aside(file.parent):
            found.setdefault(name, []).append(file.parent)
    domains = {name.partition("/")[0] for name in found}
    cells: dict[str, list[tuple[Table, Cell]]] = {}
    for table in tables:
        for tier in table.tiers if table.domain in domains else ():
            for cell in table.cells(tier):
                cells.setdefault(cell.key, []).append((table, cell))
    for name, folders in found.items():
        records, faults, count = {}, [], 0
        for folder in folders:
            homes = cells.get(folder.name.rpartition("-")[2], [])
            try:
                record = read_record(folder, homes[0][1].address if homes else folder.name)
            except Damaged as error:
                faults.append(str(error))
                continue
            assert record is not None  # its result is there
            records[str(folder)] = record
            wrong = {
                why
                for table, cell in homes
                for column in table.columns
                if column.label == cell.column
                and (why := refused(record.result["metrics"], table, table.metric_of(column)))
            }
            faults += [f"{folder}: {record.address} does not count: {why}" for why in sorted(wrong)]
            count += bool(homes) and not wrong
        yield Group(name, False, records, count), faults


def _repeats(
    results: Path,
    declared: Mapping[str, tuple[Table, Tier]],
    counted: Sequence[Counted],
    domain: str | None,
) -> Iterator[tuple[Group, list[str]]]:
    """The committed records of runs under other code paths, and what is wrong with them.

    Each has to be fit to be committed, of a cell whose record counts, and under a path that neither
    that record nor another repeat of it has.
    """
    paths = {each.record.address: path_of(each.record.environment) for each in counted}
    for file, name in _files(results, REPEATED, domain):
        faults: list[str] = []
        records = _readable(file, faults)
        right, wrong = _judged(declared.get(name), records)
        seen: set[tuple[str, str | None]] = set()
        for where, record in records.items():
            path = path_of(record.environment)
            if record.address not in paths:
                wrong.append((where, f"{record.address} repeats a cell without a record"))
                right.pop(where, None)
            elif path in (None, paths[record.address]) or (record.address, path) in seen:
                wrong.append((where, f"{record.address} is under no other code path"))
                right.pop(where, None)
            seen.add((record.address, path))
        faults += [f"{where}: {fault}" for where, fault in wrong]
        yield Group(f"{name}, repeated", True, records, len(right)), faults


def _declared(tables: Iterable[Table]) -> dict[str, tuple[Table, Tier]]:
    """The tables in each of their tiers, by ``[tier/]domain/paper/table``."""
    return {
        ("" if tier == "paper" else f"{tier}/") + table.address: (table, tier)
        for table in tables
        for tier in table.tiers
    }


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
