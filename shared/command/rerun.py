"""Recorded cells run again, and compared with their records.

Numbers are equal to the bit on one kind of processor, with one path of the BLAS and one set of
versions; elsewhere a single seed can only be compared with the spread over seeds.
"""

import argparse
import hashlib
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from shared.command.cells import Places
from shared.command.pool import Pool
from shared.errors import UserError
from shared.experiment.config import slug
from shared.experiment.frame import NOT_RUN, Measurement, processor_of
from shared.experiment.records import Record, read_record
from shared.experiment.run import Interrupted
from shared.experiment.tables import Cell

DEVIATIONS = 3.0  # standard deviations over seeds by which another processor may differ
PATHS = {
    "cpu_capability": "CPU capability",
    "blas": "BLAS path",
    "numpy_and_scipy": "BLAS of numpy",
}


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


def run_again(
    matched: Sequence[Measurement],
    places: Places,
    options: argparse.Namespace,
    console: Console,
) -> Iterator[Rerun]:
    """Run a sample of the recorded cells, in a temporary folder, and compare."""

    def wanted(cell: Cell) -> bool:
        asked = ((options.row, {cell.row}), (options.column, {cell.column, cell.run}))
        return (
            options.table in (None, cell.table, cell.table.removeprefix("table-"))
            and all(
                names is None or {*map(slug, names)} & {*map(slug, labels)}
                for names, labels in asked
            )
            and (options.seeds is None or cell.seed in options.seeds)
        )

    waiting = shuffled((each for each in matched if wanted(each.cell)), options.draw or 0)
    if not waiting:
        raise UserError("nothing to run again: no valid record matches the options")
    options.no_download, options.watch = True, None
    with tempfile.TemporaryDirectory() as folder:
        new = replace(places, runs=Path(folder))
        pool = Pool(new, options, console)

        def start(some: list[Cell]) -> Mapping[str, str]:
            pool.run(some)
            if pool.interrupted:
                raise Interrupted
            return pool.outcomes

        yield from run_and_compare(waiting, options.rerun, matched, new.runs, start)


def shuffled(matched: Iterable[Measurement], draw: int) -> list[Measurement]:
    """The records in a random order seeded by ``draw``; longer samples begin with shorter ones."""

    def rank(each: Measurement) -> str:
        return hashlib.sha256(f"{draw} {each.record.address}".encode()).hexdigest()

    return sorted(matched, key=rank)


def run_and_compare(
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
    others = _differing_conditions(record, anew)
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


def _differing_conditions(record: Record, anew: Record) -> list[str]:
    """The conditions for equal bits that do not hold; empty where bits must be equal."""
    found = []
    there, here = record.environment, anew.environment
    if processor_of(record) != processor_of(anew):
        found.append(f"another processor ({processor_of(anew)}, {processor_of(record)} recorded)")
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
