"""Checks of the records: unaltered, valid for a declared cell, reproducible.

:func:`check` reads every record in ``results/`` and every finished run; nothing is computed.
:func:`rerun` runs some of the recorded cells again. Numbers are equal to the bit on one kind of
processor, with one path of the BLAS and one set of versions; elsewhere a single seed can only be
compared with the spread over seeds.
"""

import hashlib
import itertools
import math
import re
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from shared.experiment.frame import (
    NOT_RUN,
    REFUSED,
    Line,
    Measurement,
    Origin,
    Source,
    load,
    name_of,
)
from shared.experiment.records import Record, read_record
from shared.experiment.tables import Cell, Table

DEVIATIONS = 3.0  # standard deviations over seeds by which another processor may differ
PATHS = {
    "cpu_capability": "CPU capability",
    "blas": "BLAS path",
    "numpy_and_scipy": "BLAS of numpy",
}
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
    """What :func:`check` found.

    Args:
        groups: what was read.
        faults: what is wrong, one line each.
        notes: what is worth knowing without being wrong, one line each.
        matched: the valid committed records.
    """

    groups: tuple[Group, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    matched: tuple[Measurement, ...]


@dataclass(frozen=True)
class Rerun:
    """The outcome of running one recorded cell again.

    Args:
        address: of the cell; empty for a remark about all of them.
        fault: whether it contradicts the record.
        text: one line.
        compared: whether a number was compared.
    """

    address: str
    fault: bool
    text: str
    compared: bool = True


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
    lines: dict[str, list[Line]] = {}
    for line in frame:
        if line.source is not None:
            lines.setdefault(line.source.where, []).append(line)
    read: dict[tuple[Origin, str], list[Source]] = {}
    for source in frame.sources:
        read.setdefault((source.origin, source.group), []).append(source)
    faults: dict[Origin, list[str]] = {"record": [], "run": []}
    for origin, error in frame.damaged:
        faults[origin].append(str(error))
    groups: list[Group] = []
    notes: list[str] = []
    matched: list[Measurement] = []
    for (origin, name), sources in read.items():
        valid = 0
        for source in sources:
            homes = _homes(source, lines.get(source.where, ()))
            whys = _objections(source, homes)
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
    notes = [*_not_in_history(committed), *notes]
    return Checked(tuple(groups), (*faults["record"], *faults["run"]), tuple(notes), tuple(matched))


def _homes(source: Source, lines: Sequence[Line]) -> list[Line]:
    """The lines of the table that a record lies beside, or of the cells of a run."""
    if source.origin == "record":
        return [line for line in lines if name_of(line.table, line.tier) == source.group]
    return [line for line in lines if line.cell is not None]


def _objections(source: Source, lines: Sequence[Line]) -> list[str]:
    """Why a record must not be committed, or a run is not believed; nothing if it is right."""
    if source.origin == "run":
        return sorted(
            {f"is not valid: {line.why}" for line in lines if line.why.startswith(REFUSED)}
        )
    whys = [_invalid(source.record)]
    if not lines:
        whys.append("is not valid: no table declares it today")
    whys += [f"is not valid: {line.why}" for line in lines if line.why]
    return sorted(set(filter(None, whys)))


def summary(checked: Checked) -> Grid:
    """One line for each table of results, and for each dataset with runs on this disk."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    grid.add_column("table", no_wrap=True)
    for name in ("records", "valid", "clean commit", "data hash"):
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
    grid.caption = Text(f"By processor: {on or 'no records'}")
    return grid


def shuffled(matched: Iterable[Measurement], draw: int) -> list[Measurement]:
    """The records in a random order seeded by ``draw``; longer samples begin with shorter ones."""

    def rank(each: Measurement) -> str:
        return hashlib.sha256(f"{draw} {each.record.address}".encode()).hexdigest()

    return sorted(matched, key=rank)


def rerun(
    waiting: Sequence[Measurement],
    number: int,
    everything: Sequence[Measurement],
    runs: Path,
    start: Callable[[list[Cell]], Mapping[str, str]],
) -> Iterator[Rerun]:
    """Run recorded cells again and compare; a cell without its data is replaced by another.

    Args:
        waiting: the candidates, in the order in which they are taken.
        number: how many to run.
        everything: all valid records, for the spread over seeds.
        runs: the folder in which ``start`` makes the runs.
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
                why = why.removeprefix(f"{NOT_RUN}: ")
                yield Rerun(address, False, f"cannot be run here: {why}", compared=False)
                continue
            done += 1
            anew = read_record(runs / each.cell.folder, address)
            if anew is None:
                yield Rerun(address, True, why or "failed without a message")
            else:
                yield compare(each, anew, everything)
        left = [each for each in left if (each.table.address, each.cell.source) not in lacking]
    if done < number:
        text = f"{done} of {number} cells could be run; there are no others"
        yield Rerun("", False, text, compared=False)


def compare(recorded: Measurement, anew: Record, everything: Sequence[Measurement]) -> Rerun:
    """Compare a new run of a cell with its record.

    On the same kind of processor, BLAS path, versions and threads the bits must be equal; elsewhere
    the metrics that the table shows may differ by ``DEVIATIONS`` standard deviations over the
    recorded seeds.
    """
    address, record = recorded.record.address, recorded.record
    if record.environment["data"] != anew.environment["data"]:
        return Rerun(address, True, "the data differ from those of the record, by their hash")
    others = _differing_conditions(record.environment, anew.environment)
    if _numbers(record) == _numbers(anew):
        return Rerun(address, False, "; ".join(["equal to the bit", *others]))
    names = {
        recorded.table.metric_of(column)
        for column in recorded.table.columns_of(recorded.cell.tier)
        if recorded.cell.source in (column.run, column.label)
    }
    texts, fault, compared = [], False, False
    for name in sorted(names):
        there, here = (float(each.result["metrics"][name]) for each in (record, anew))
        text = f"{name} differs by {here - there:+.6g} ({here:.6g}, {there:.6g} recorded)"
        spread, of_what = _spread(recorded, name, everything)
        compared |= not others or spread is not None
        if not others:
            fault = True
        elif spread is None:
            text = f"{text}, not comparable: {of_what}"
        else:
            outside = abs(here - there) > DEVIATIONS * spread
            fault |= outside
            place = "outside" if outside else "within"
            text = f"{text}, spread {of_what} {spread:.3g}: {place} {DEVIATIONS:g} of it"
        texts.append(text)
    if not others:
        others = ["on the same processor, BLAS path, versions and threads"]
    return Rerun(address, fault, f"{'; '.join(others)}: {'; '.join(texts)}", compared)


def _invalid(record: Record) -> str | None:
    """Why a record must not be committed, whichever cell it is of; None if nothing forbids it."""
    environment = record.environment
    if environment["dirty"]:
        return "was not measured at a clean commit"
    if not COMMIT.fullmatch(environment["commit"]):
        return f"names no commit but {environment['commit'][:40]!r}"
    for name, digest in environment["data"].items():
        if not DATA_HASH.fullmatch(digest):
            return f"has {digest[:70]!r} as the hash of {name}"
    if number := next(_not_finite(record.result["metrics"]), None):
        return f"has a metric that is not a finite number: {number}"
    return None


def _not_finite(value: Any, name: str = "") -> Iterator[str]:
    """The metrics, nested ones included, that are words for no finite number.

    Reading refuses the numbers themselves.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _not_finite(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for each in value:
            yield from _not_finite(each, name)
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
        kinds[group.name]
        for group in groups
        if group.name in kinds and any(r.environment["data"] for r in group.records.values())
    }
    for group in groups:
        hashes: dict[tuple[str, str], list[tuple[str, str, str]]] = {}  # by column and data
        for where, record in group.records.items():
            data = record.environment["data"]
            if not data and kinds.get(group.name) in with_data:
                yield f"{where}: {record.address} names no data, unlike others of its kind"
            *_, column, seed = record.address.split("/")
            for name, digest in data.items():
                hashes.setdefault((column, name), []).append((where, seed, digest))
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


def _not_in_history(groups: Iterable[Group]) -> list[str]:
    """Notes on commits that this repository does not have, or that git is missing."""
    records = [record for group in groups for record in group.records.values()]
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
        return ["no git here: the commits of records were not looked up"] if commits else []
    unknown = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("missing")]
    return [f"commit {each} of a record is not in this copy's history" for each in unknown]


def _differing_conditions(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The conditions for equal bits that do not hold; empty where bits must be equal."""
    found = []
    processors = [str(each["hardware"].get("processor")) for each in (there, here)]
    if processors[0] != processors[1]:
        found.append(f"another processor ({processors[1]}, {processors[0]} recorded)")
    if any(each["hardware"].get("accelerators") for each in (there, here)):
        found.append("an accelerator, where bits may differ")
    if "arithmetic" not in there:
        found.append("BLAS path not recorded")
    else:
        found += [
            f"another {words}"
            for name, words in PATHS.items()
            if there["arithmetic"].get(name) != here["arithmetic"].get(name)
        ]
    # A package that only one of them has installed was used by neither.
    first, second = there["versions"], here["versions"]
    if names := sorted(name for name in first if second.get(name, first[name]) != first[name]):
        found.append(f"other versions of {', '.join(names)}")
    if there.get("threads") != here.get("threads"):
        found.append("another number of threads")
    return found


def _numbers(record: Record) -> dict[str, Any]:
    """The metrics without details, which include times."""
    metrics = record.result["metrics"]
    return {name: value for name, value in metrics.items() if not isinstance(value, dict)}


def _spread(
    recorded: Measurement, metric: str, everything: Iterable[Measurement]
) -> tuple[float | None, str]:
    """Standard deviation over recorded seeds, and of which; None where no row has two seeds."""
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
    return None, "one seed is recorded, so the spread over seeds is unknown"
