"""Checks of committed records and finished runs: unaltered, plausible, valid for a declared cell.

Some of the recorded cells are run again on demand, and compared with their records. Numbers are
equal to the bit on one kind of processor, with one path of the BLAS and one set of versions.
Elsewhere sums are rounded in another order, and how much that changes a cell is asked of this
processor: it runs the cell once more on another of its code paths. Where the two differ by little,
a record that is further away is at fault; where they differ by much, and where versions or an
accelerator are others, the cell cannot be compared here.
"""

import functools
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from shared.command.cells import Places
from shared.command.pool import Pool
from shared.errors import UserError
from shared.experiment.config import slug
from shared.experiment.frame import (
    Line,
    Measurement,
    Origin,
    ReadRecord,
    load,
    name_of,
    processor_of,
)
from shared.experiment.records import Reason, Record, read_record
from shared.experiment.run_folders import Interrupted
from shared.experiment.tables import Cell, Table

COMMIT = re.compile("[0-9a-f]{40}")
NOT_FINITE = re.compile(r'(?<=[\[ ])(null|"nan"|"-?inf")(?=[,\]}])')  # a value in JSON
DATA_HASH = re.compile("(?!0{64})[0-9a-f]{64}( approximate)?")
# Another processor may differ by so many times what another code path of this one does, if that is
# no more than this share of the value.
TIMES, SHARE = 10.0, 1e-3
# What chooses the code path that every x86 processor has; others ignore it.
OTHER_PATH = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Prescott",
}
PATHS = {"cpu_capability": "CPU capability", "numpy_and_scipy": "BLAS of numpy"}


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
            twice = (address for address, count in times.items() if count > 1)
            faults[origin] += (f"{name}: two records of {address}" for address in twice)
        elif idle := len(sources) - valid:
            notes.append(f"{name}: {idle} finished, but of no cell that is declared today")
    return Checked(tuple(groups), (*faults["record"], *faults["run"]), tuple(notes), tuple(matched))


def summary(checked: Checked) -> Grid:
    """One line for each table of results, and for each dataset with runs on this disk."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    grid.add_column("table", no_wrap=True)
    for name in ("records", "valid", "clean\ncommit", "data\nhash"):
        grid.add_column(name, justify="right", no_wrap=True)
    for group in checked.groups:
        environments = [record.environment for record in group.records.values()]
        clean = sum(not environment["dirty"] for environment in environments)
        hashed = sum(bool(environment["data"]) for environment in environments)
        label = Text(f"{'' if group.committed else 'runs: '}{group.name}")
        grid.add_row(label, *map(str, (len(environments), group.valid, clean, hashed)))
    records = itertools.chain(*(group.records.values() for group in checked.groups))
    processors = Counter(map(processor_of, records))
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
        return of_cells, sorted(f"is not valid: {why}" for why in faults)
    of_cells = [line for line in lines if name_of(line.table, line.tier) == source.group]
    faults = {line.why for line in of_cells if line.why}
    faults |= set() if of_cells else {"no table declares it today"}
    of_itself = filter(None, [_fault_of(source.record)])
    return of_cells, [*of_itself, *(f"is not valid: {why}" for why in sorted(faults))]


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
    metrics = json.dumps(record.result["metrics"])  # reading refuses the numbers themselves
    if found := NOT_FINITE.search(metrics):
        return f"has a metric that is not a finite number: ...{metrics[: found.end()][-40:]}"
    return None


@dataclass(frozen=True)
class Rerun:
    """The outcome of running one recorded cell again."""

    address: str  # of the cell; empty for a remark about all of them
    fault: bool  # whether it contradicts the record
    text: str  # one line
    compared: bool = True  # whether a number was compared


def run_again(
    matched: Sequence[Measurement], places: Places, options: Namespace, console: Console
) -> Iterator[Rerun]:
    """Run a sample of the recorded cells; one without its data is replaced by the next."""
    left = shuffled(measured for measured in matched if _is_chosen(measured.cell, options))
    if not left:
        raise UserError("nothing to run again: no valid record matches the options")
    options.no_download, options.watch, options.again = True, None, False
    done = 0
    without_data: set[tuple[str, str]] = set()  # tables and columns
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        pool = Pool(replace(places, runs=runs), options, console)
        while batch := sorted(left[: options.rerun - done], key=lambda each: each.cell.domain):
            left = left[len(batch) :]
            for _, of_domain in itertools.groupby(batch, lambda each: each.cell.domain):
                pool.run([measured.cell for measured in of_domain])
                if pool.interrupted:
                    raise Interrupted
            for measured in batch:
                cell, address = measured.cell, measured.record.address
                why = pool.outcomes.get(address, "failed without a message")
                if Reason.NOT_RUN.begins(why):
                    without_data.add((measured.table.address, cell.run_name))
                    why = why.removeprefix(f"{Reason.NOT_RUN}: ")
                    yield Rerun(address, False, f"cannot be run here: {why}", compared=False)
                    continue
                done += 1
                if (new := read_record(runs / cell.folder, address)) is None:
                    yield Rerun(address, True, why)
                else:
                    other = functools.partial(_on_another_path, cell, runs / "other", pool)
                    yield compare(measured, new, other)
            left = [m for m in left if (m.table.address, m.cell.run_name) not in without_data]
    if done < options.rerun:
        text = f"{done} of {options.rerun} cells could be run; there are no others"
        yield Rerun("", False, text, compared=False)


def _on_another_path(cell: Cell, runs: Path, pool: Pool) -> Record | None:
    """The record of a cell run in a process of its own, whose libraries read ``OTHER_PATH``."""
    command = [sys.executable, "-m", "shared", "--cell", cell.address, "--no-download"]
    command += ["--runs", str(runs), "--data-root", str(pool.places.data.resolve())]
    command += ["--threads", str(pool.options.threads), "--jobs", "1"]
    command += ["--allow-missing"] if pool.options.allow_missing else []
    subprocess.run(command, env={**os.environ, **OTHER_PATH}, capture_output=True, check=False)
    return read_record(runs / cell.folder, cell.address)


def _is_chosen(cell: Cell, options: Namespace) -> bool:
    """Whether a cell is one of the table, rows, columns and seeds that the options name."""
    choice = (
        (options.table and [options.table], {cell.table, cell.table.removeprefix("table-")}),
        (options.row, {cell.row}),
        (options.column, {cell.column, cell.run}),
    )
    return (options.seeds is None or cell.seed in options.seeds) and all(
        names is None or {*map(slug, names)} & {*map(slug, labels)} for names, labels in choice
    )


def shuffled(matched: Iterable[Measurement]) -> list[Measurement]:
    """The records in a random order, always the same; longer samples begin with shorter ones."""
    hash_of = hashlib.sha256
    return sorted(matched, key=lambda each: hash_of(f"0 {each.record.address}".encode()).digest())


def compare(
    recorded: Measurement, new: Record, on_another_path: Callable[[], Record | None]
) -> Rerun:
    """Compare a new run of a cell with its record, see the module."""
    address, old = recorded.record.address, recorded.record
    if old.environment["data"] != new.environment["data"]:
        return Rerun(address, True, "the data differ from those of the record, by their hash")
    rounding, others = _differing_conditions(old, new)
    if _numbers(old) == _numbers(new):
        return Rerun(address, False, "; ".join(["equal to the bit", *rounding, *others]))
    table, cell = recorded.table, recorded.cell
    columns = [each for each in table.columns_of(cell.tier) if each.run_name == cell.run_name]
    metrics = sorted({table.metric_of(column) for column in columns})

    def values(record: Record) -> dict[str, float]:
        return {metric: float(record.result["metrics"][metric]) for metric in metrics}

    before, after = values(old), values(new)
    texts = {
        metric: f"{metric} differs by {after[metric] - before[metric]:+.6g} "
        f"({after[metric]:.6g}, {before[metric]:.6g} recorded)"
        for metric in metrics
    }
    where = "; ".join(rounding + others)
    if not where:
        where = "on the same processor, BLAS path, versions and threads"
        return Rerun(address, True, f"{where}: {'; '.join(texts.values())}")
    other = None if others else on_another_path()
    if other is None or _arithmetic(other) == _arithmetic(new):
        why = "cannot be compared here" if others else "no other code path could be run here"
        text = f"{where}: {'; '.join(texts.values())}: {why}"
        return Rerun(address, False, text, compared=False)
    fault, compared = False, True
    for metric, value in values(other).items():
        off, rounded = abs(after[metric] - before[metric]), abs(after[metric] - value)
        texts[metric] += f", another code path of this processor by {rounded:.6g}: "
        if off > TIMES * rounded:
            fault = True
            texts[metric] += "that does not explain it"
        elif TIMES * rounded <= SHARE * abs(before[metric]):
            texts[metric] += "as rounding does"
        else:
            compared = False
            texts[metric] += "cannot be compared here"
    return Rerun(address, fault, f"{where}: {'; '.join(texts.values())}", fault or compared)


def _arithmetic(record: Record) -> dict[str, Any]:
    """What the libraries report of their code paths."""
    return {name: record.environment.get("arithmetic", {}).get(name) for name in PATHS}


def _differing_conditions(old: Record, new: Record) -> tuple[list[str], list[str]]:
    """The conditions for equal bits that do not hold: those of rounding alone, and the others."""
    rounding, others = [], []
    before, after = old.environment, new.environment
    if processor_of(old) != processor_of(new):
        rounding.append(f"another processor ({processor_of(new)}, {processor_of(old)} recorded)")
    if "arithmetic" in before:
        one, other = _arithmetic(old), _arithmetic(new)
        rounding += [f"another {PATHS[name]}" for name in PATHS if one[name] != other[name]]
    else:
        rounding.append("BLAS path not recorded")
    if before.get("threads") != after.get("threads"):
        rounding.append("another number of threads")
    if any(environment["hardware"].get("accelerators") for environment in (before, after)):
        others.append("an accelerator, where bits may differ")
    # A package that is installed for only one of them was used by neither.
    shared = before["versions"].keys() & after["versions"].keys()
    if names := sorted(n for n in shared if before["versions"][n] != after["versions"][n]):
        others.append(f"other versions of {', '.join(names)}")
    return rounding, others


def _numbers(record: Record) -> dict[str, Any]:
    """The metrics without details, which include times."""
    metrics = record.result["metrics"]
    return {name: value for name, value in metrics.items() if not isinstance(value, dict)}
