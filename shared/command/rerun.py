"""Recorded cells run again, and compared with their records.

Numbers are equal to the bit on one kind of processor, with one path of the BLAS and one set of
versions. Elsewhere sums are rounded in another order, and how much that changes a cell is asked of
this processor: it runs the cell once more on another of its code paths. Where the two differ by
little, a record that is further away is at fault; where they differ by much, and where versions or
an accelerator are others, the cell cannot be compared here.
"""

import argparse
import functools
import hashlib
import itertools
import os
import subprocess
import sys
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
from shared.experiment.frame import Measurement, processor_of
from shared.experiment.records import Reason, Record, read_record
from shared.experiment.run_folders import Interrupted
from shared.experiment.tables import Cell

# Another processor may differ by so many times what another code path of this one does, if that is
# no more than this share of the value.
TIMES, SHARE = 10.0, 1e-3
# What chooses the code path that every x86 processor has; others ignore it.
OTHER_PATH = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Prescott",
}
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
        runs = Path(folder)
        pool = Pool(replace(places, runs=runs), options, console)

        def run(cells: list[Cell]) -> Mapping[str, str]:
            pool.run(cells)
            if pool.interrupted:
                raise Interrupted
            return pool.outcomes

        def on_another_path(cell: Cell) -> Record | None:
            """Run it in a process of its own, whose libraries read ``OTHER_PATH``."""
            other = runs / "another-path"
            command = [sys.executable, "-m", "shared", "--cell", cell.address, "--no-download"]
            command += ["--runs", str(other), "--data-root", str(places.data.resolve())]
            command += ["--threads", str(options.threads), "--jobs", "1"]
            command += ["--allow-missing"] if options.allow_missing else []
            environment = {**os.environ, **OTHER_PATH}
            subprocess.run(command, env=environment, capture_output=True, check=False)
            return read_record(other / cell.folder, cell.address)

        yield from run_and_compare(shuffled(chosen), options.rerun, runs, run, on_another_path)


def _is_chosen(cell: Cell, options: argparse.Namespace) -> bool:
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

    def rank(measured: Measurement) -> str:
        return hashlib.sha256(f"0 {measured.record.address}".encode()).hexdigest()

    return sorted(matched, key=rank)


def run_and_compare(
    candidates: Sequence[Measurement],
    number: int,
    runs: Path,
    run: Callable[[list[Cell]], Mapping[str, str]],
    on_another_path: Callable[[Cell], Record | None],
) -> Iterator[Rerun]:
    """Run some recorded cells again and compare; one without its data is replaced by the next.

    ``run`` runs cells of one domain below ``runs``, and gives by address why one has no result.
    ``on_another_path`` runs one as another processor might.
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
            if Reason.NOT_RUN.begins(why):
                without_data.add((measured.table.address, measured.cell.run_name))
                why = why.removeprefix(f"{Reason.NOT_RUN}: ")
                yield Rerun(address, False, f"cannot be run here: {why}", compared=False)
                continue
            done += 1
            new = read_record(runs / measured.cell.folder, address)
            if new is None:
                yield Rerun(address, True, why)
            else:
                again = functools.partial(on_another_path, measured.cell)
                yield compare(measured, new, again)
        left = [m for m in left if (m.table.address, m.cell.run_name) not in without_data]
    if done < number:
        text = f"{done} of {number} cells could be run; there are no others"
        yield Rerun("", False, text, compared=False)


def compare(
    recorded: Measurement, new: Record, on_another_path: Callable[[], Record | None]
) -> Rerun:
    """Compare a new run of a cell with its record.

    On the same kind of processor, BLAS path, versions and threads the bits must be equal. Where
    only the rounding may differ, ``on_another_path`` says by how much, see the module.
    """
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
        same = "on the same processor, BLAS path, versions and threads"
        return Rerun(address, True, f"{same}: {'; '.join(texts.values())}")
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
