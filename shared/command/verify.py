"""Checks of committed records and finished runs: unaltered, plausible, valid for a declared cell.

Nothing is computed; :mod:`shared.command.rerun` runs recorded cells again.
"""

import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from shared.experiment.config import USER_TIER
from shared.experiment.environment import git
from shared.experiment.frame import (
    REFUSED,
    Line,
    Measurement,
    Origin,
    Source,
    folder_key,
    load,
    name_of,
    processor_of,
)
from shared.experiment.records import Record
from shared.experiment.tables import Table

COMMIT = re.compile("[0-9a-f]{40}")
DATA_HASH = re.compile("(?!0{64})[0-9a-f]{64}( approximate)?")


@dataclass(frozen=True)
class Group:
    """The records of one file of results, or the finished runs on one dataset.

    Args:
        name: ``[tier/]domain/paper/table`` of records, ``domain/dataset`` of runs.
        committed: whether they are records in ``results/``.
        records: the readable ones, by file and line.
        count: how many of them are valid for a cell.
    """

    name: str
    committed: bool
    records: Mapping[str, Record]
    count: int


@dataclass(frozen=True)
class Checked:
    """What :func:`check` found: what it read, faults and notes of a line each, the valid records.

    Notes are worth knowing without being faults; ``matched`` are committed records alone.
    """

    groups: tuple[Group, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    matched: tuple[Measurement, ...]


def check(tables: Sequence[Table], results: Path, runs: Path, domain: str | None = None) -> Checked:
    """Check every record below ``results`` and every finished run below ``runs``.

    A committed record must be unaltered and plausible, from a clean commit, from the same data as
    the others of its column, and valid for a cell of ``tables``; a run on this disk must be
    unaltered and plausible.

    Args:
        tables: those of the domain, or of all.
        results: the folder of results.
        runs: the folder of runs; it need not exist.
        domain: the only domain to check; None for all.
    """
    frame = load(tables, runs=runs, results=results, everything=True, domain=domain)
    lines: defaultdict[str, list[Line]] = defaultdict(list)
    for line in frame:
        if line.source is not None:
            lines[line.source.where].append(line)
    by_group: defaultdict[tuple[Origin, str], list[Source]] = defaultdict(list)
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
            homes, whys = _judged(source, lines[source.where])
            faults[origin] += [f"{source.where}: {source.record.address} {why}" for why in whys]
            if homes and not whys:
                valid += 1
                matched += [each for each in [homes[0].measurement] if each and origin == "record"]
        groups.append(Group(name, origin == "record", {x.where: x.record for x in sources}, valid))
        addresses = Counter(source.record.address for source in sources)
        if origin == "record":
            twice = [address for address, times in addresses.items() if times > 1]
            faults[origin] += [f"{name}: two records of {address}" for address in twice]
        elif idle := len(sources) - valid:
            notes.append(f"{name}: {idle} finished, but of no cell that is declared today")
    committed = [group for group in groups if group.committed]
    faults["record"] += _inconsistent_data(committed, tables)
    notes = [*_not_in_history(committed), *_misplaced(frame.sources, runs), *notes]
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
        clean = sum(not each["dirty"] for each in environments)
        hashed = sum(bool(each["data"]) for each in environments)
        processors.update(map(processor_of, group.records.values()))
        label = Text(f"{'' if group.committed else 'runs: '}{group.name}")
        grid.add_row(label, *map(str, (len(environments), group.count, clean, hashed)))
    on = ", ".join(f"{name}: {count}" for name, count in sorted(processors.items()))
    grid.caption = Text(f"By processor: {on or 'no records'}")
    return grid


def _judged(source: Source, lines: Sequence[Line]) -> tuple[list[Line], list[str]]:
    """The lines of a record's cells, and why it may not be committed, or a run is not believed.

    Those of a record are of the table that it lies beside.
    """
    if source.origin == "run":
        homes = [line for line in lines if line.cell is not None]
        whys = {line.why for line in homes if line.why.startswith(REFUSED)}
        return homes, sorted(f"is not valid: {why}" for why in whys)
    homes = [line for line in lines if name_of(line.table, line.tier) == source.group]
    whys = {line.why for line in homes if line.why} if homes else {"no table declares it today"}
    return homes, sorted([f"is not valid: {why}" for why in whys] + _faults_of(source.record))


def _faults_of(record: Record) -> list[str]:
    """Why a record may not be committed, whichever cell it is of: the first reason, if any."""
    environment = record.environment
    if environment["dirty"]:
        return ["was not measured at a clean commit"]
    if not COMMIT.fullmatch(environment["commit"]):
        return [f"names no commit but {environment['commit'][:40]!r}"]
    for name, digest in environment["data"].items():
        if not DATA_HASH.fullmatch(digest):
            return [f"has {digest[:70]!r} as the hash of {name}"]
    words = next(_words_for_numbers(record.result["metrics"]), None)
    return [f"has a metric that is not a finite number: {words}"] if words else []


def _words_for_numbers(value: Any, name: str = "") -> Iterator[str]:
    """The metrics, nested ones included, that are a word for no finite number.

    Reading a record refuses the numbers themselves.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _words_for_numbers(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for each in value:
            yield from _words_for_numbers(each, name)
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
        for (column, name), some in hashes.items():
            usual, times = Counter(digest for *_, digest in some).most_common(1)[0]
            for where, seed, digest in some:
                of_seed = Counter(each for _, other, each in some if other == seed)
                most = usual if 2 * times > len(some) else of_seed.most_common(1)[0][0]
                if digest != most:
                    yield (
                        f"{where}: {name} has another hash than the rest of the column {column}: "
                        f"{digest[:12]}..., not {most[:12]}..."
                    )


def _misplaced(sources: Iterable[Source], runs: Path) -> Iterator[str]:
    """Notes on finished runs that count for nothing since they lie elsewhere, as after a copy."""
    for source in (each for each in sources if each.origin == "run"):
        key = folder_key(source.record)
        if not source.where.endswith(f"-{key}"):
            yield f"{source.where}: counts for nothing under this name; let it end with -{key}"
    stray: Counter[str] = Counter()
    for file in runs.rglob("result.json"):
        parts = file.relative_to(runs).parts
        if len(parts) - (parts[0] == USER_TIER) != 4:  # domain, dataset, run, file
            stray[parts[0]] += 1
    for name, count in sorted(stray.items()):
        where = f"{runs / name}: {count} finished, which count for nothing there"
        yield f"{where}; move them to {runs}/DOMAIN/DATASET/RUN"


def _not_in_history(groups: Iterable[Group]) -> list[str]:
    """Notes on commits that this repository does not have, or that git is missing."""
    records = [record for group in groups for record in group.records.values()]
    commits = sorted({record.environment["commit"] for record in records})
    try:
        found = git("cat-file", "--batch-check", given="\n".join(commits))
    except (OSError, subprocess.CalledProcessError):
        return ["no git here: the commits of records were not looked up"] if commits else []
    unknown = [line.split()[0] for line in found.splitlines() if line.endswith("missing")]
    return [f"commit {each} of a record is not in this copy's history" for each in unknown]
