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
from shared.experiment.run_folders import Interrupted
from shared.experiment.tables import Cell

DEVIATIONS = 3.0  # standard deviations over seeds by which another processor may differ
PATHS = {
    "cpu_capability": "CPU capability",
    "blas": "BLAS path",
    "numpy_and_scipy": "BLAS of numpy",
}


@dataclass(frozen=True)
class Rerun:
    """The outcome of running one recorded cell again."""

    address: str  # of the cell; empty for a remark about all of them
    fault: bool  # whether it contradicts the record
    text: str  # one line
    compared: bool = True  # whether a number was compared


def run_again(
    matched: Sequence[Measurement],
    places: Places,
    options: argparse.Namespace,
    console: Console,
) -> Iterator[Rerun]:
    """Run a sample of the recorded cells, in a temporary folder, and compare."""
    chosen = [measured for measured in matched if _is_chosen(measured.cell, options)]
    if not chosen:
        raise UserError("nothing to run again: no valid record matches the options")
    options.no_download, options.watch = True, None
    with tempfile.TemporaryDirectory() as folder:
        temporary = replace(places, runs=Path(folder))
        pool = Pool(temporary, options, console)

        def run(cells: list[Cell]) -> Mapping[str, str]:
            pool.run(cells)
            if pool.interrupted:
                raise Interrupted
            return pool.outcomes

        candidates = shuffled(chosen)
        yield from run_and_compare(candidates, options.rerun, matched, temporary.runs, run)


def _is_chosen(cell: Cell, options: argparse.Namespace) -> bool:
    """Whether a cell is one of the table, rows, columns and seeds that the options name."""
    return (
        options.table in (None, cell.table, cell.table.removeprefix("table-"))
        and all(
            names is None or {*map(slug, names)} & {*map(slug, labels)}
            for names, labels in (
                (options.row, {cell.row}),
                (options.column, {cell.column, cell.run}),
            )
        )
        and (options.seeds is None or cell.seed in options.seeds)
    )


def shuffled(matched: Iterable[Measurement]) -> list[Measurement]:
    """The records in a random order, always the same; longer samples begin with shorter ones."""

    def rank(measured: Measurement) -> str:
        return hashlib.sha256(f"0 {measured.record.address}".encode()).hexdigest()

    return sorted(matched, key=rank)


def run_and_compare(
    candidates: Sequence[Measurement],
    number: int,
    matched: Sequence[Measurement],
    runs: Path,
    run: Callable[[list[Cell]], Mapping[str, str]],
) -> Iterator[Rerun]:
    """Run some recorded cells again and compare; one without its data is replaced by the next.

    ``run`` runs cells of one domain below ``runs``, and gives by address why one has no result.
    ``matched`` are all valid records, for the spread over seeds.
    """

    def domain_of(measured: Measurement) -> str:
        return measured.cell.domain

    left, done = list(candidates), 0
    without_data: set[tuple[str, str]] = set()  # tables and columns
    while batch := sorted(left[: number - done], key=domain_of):
        left = left[len(batch) :]
        outcomes: dict[str, str] = {}
        for _, of_domain in itertools.groupby(batch, domain_of):
            outcomes |= run([measured.cell for measured in of_domain])
        for measured in batch:
            address = measured.record.address
            why = outcomes.get(address, "failed without a message")
            if why.startswith(NOT_RUN):
                without_data.add((measured.table.address, measured.cell.source))
                why = why.removeprefix(f"{NOT_RUN}: ")
                yield Rerun(address, False, f"cannot be run here: {why}", compared=False)
                continue
            done += 1
            new = read_record(runs / measured.cell.folder, address)
            yield Rerun(address, True, why) if new is None else compare(measured, new, matched)
        left = [m for m in left if (m.table.address, m.cell.source) not in without_data]
    if done < number:
        text = f"{done} of {number} cells could be run; there are no others"
        yield Rerun("", False, text, compared=False)


def compare(recorded: Measurement, new: Record, matched: Sequence[Measurement]) -> Rerun:
    """Compare a new run of a cell with its record.

    On the same kind of processor, BLAS path, versions and threads the bits must be equal; elsewhere
    the metrics that the table shows may differ by ``DEVIATIONS`` standard deviations over the
    recorded seeds, those of ``matched``.
    """
    address, old = recorded.record.address, recorded.record
    if old.environment["data"] != new.environment["data"]:
        return Rerun(address, True, "the data differ from those of the record, by their hash")
    differences = _differing_conditions(old, new)
    if _numbers(old) == _numbers(new):
        return Rerun(address, False, "; ".join(["equal to the bit", *differences]))
    metrics = {
        recorded.table.metric_of(column)
        for column in recorded.table.columns_of(recorded.cell.tier)
        if column.source == recorded.cell.source
    }
    texts, fault, compared = [], not differences, not differences
    for metric in sorted(metrics):
        before, after = (float(record.result["metrics"][metric]) for record in (old, new))
        text = f"{metric} differs by {after - before:+.6g} ({after:.6g}, {before:.6g} recorded)"
        if differences:
            spread, of_what = _spread(recorded, metric, matched)
            if spread is None:
                text = f"{text}, not comparable: {of_what}"
            else:
                compared = True
                outside = abs(after - before) > DEVIATIONS * spread
                fault |= outside
                relation = "outside" if outside else "within"
                text = f"{text}, spread {of_what} {spread:.3g}: {relation} {DEVIATIONS:g} of it"
        texts.append(text)
    conditions = differences or ["on the same processor, BLAS path, versions and threads"]
    return Rerun(address, fault, f"{'; '.join(conditions)}: {'; '.join(texts)}", compared)


def _differing_conditions(old: Record, new: Record) -> list[str]:
    """The conditions for equal bits that do not hold; empty where bits must be equal."""
    texts = []
    before, after = old.environment, new.environment
    if processor_of(old) != processor_of(new):
        texts.append(f"another processor ({processor_of(new)}, {processor_of(old)} recorded)")
    if any(environment["hardware"].get("accelerators") for environment in (before, after)):
        texts.append("an accelerator, where bits may differ")
    if "arithmetic" not in before:
        texts.append("BLAS path not recorded")
    else:
        texts += [
            f"another {words}"
            for name, words in PATHS.items()
            if before["arithmetic"].get(name) != after["arithmetic"].get(name)
        ]
    # A package that is installed for only one of them was used by neither.
    shared = before["versions"].keys() & after["versions"].keys()
    if names := sorted(n for n in shared if before["versions"][n] != after["versions"][n]):
        texts.append(f"other versions of {', '.join(names)}")
    if before.get("threads") != after.get("threads"):
        texts.append("another number of threads")
    return texts


def _numbers(record: Record) -> dict[str, Any]:
    """The metrics without details, which include times."""
    metrics = record.result["metrics"]
    return {name: value for name, value in metrics.items() if not isinstance(value, dict)}


def _spread(
    recorded: Measurement, metric: str, matched: Iterable[Measurement]
) -> tuple[float | None, str]:
    """Standard deviation over recorded seeds, and of which; None where no row has two seeds."""
    by_row: dict[str, list[float]] = {}
    cell = recorded.cell
    for other in matched:
        column = (other.cell.table_address, other.cell.tier, other.cell.source)
        if column == (cell.table_address, cell.tier, cell.source):
            value = float(other.record.result["metrics"][metric])
            by_row.setdefault(other.cell.row, []).append(value)
    same_row = by_row.get(cell.row, [])
    if len(same_row) > 1:
        return statistics.stdev(same_row), f"over {len(same_row)} seeds"
    others = [statistics.stdev(values) for values in by_row.values() if len(values) > 1]
    if others:
        mean = math.sqrt(statistics.fmean(sd * sd for sd in others))
        return mean, f"over seeds of {len(others)} other rows of the column (this row has one seed)"
    return None, "one seed is recorded, so the spread over seeds is unknown"
