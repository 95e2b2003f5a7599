"""Learning curves of counted runs, kept beside their records: a few KB each, thinned.

A run's log lies in its folder, which is not committed. While the folder is at hand, ``report``
keeps of every logged number at most ``KEPT`` values, with four digits, in ``<table>.curves.gz``:
a line of JSON for each run, under the hash of the record that it belongs to.
"""

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import UserError
from shared.experiment.records import Record
from shared.experiment.runs import replacing

CURVES = ".curves.gz"
LOG = "log.jsonl"
KEPT = 60
DIGITS = 4
ACROSS = ("step", "seconds")  # what a line of the log has beside the logged numbers


@dataclass(frozen=True)
class Curve:
    """What a run logged.

    Args:
        address: of its cell.
        sha256: of its record.
        steps: for each name the steps at which it was logged.
        values: and its values there.
    """

    address: str
    sha256: str
    steps: Mapping[str, tuple[float, ...]]
    values: Mapping[str, tuple[float, ...]]

    def lines(self) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
        """By name the steps and the values."""
        return {name: (self.steps[name], self.values[name]) for name in self.steps}


def logged(file: Path) -> dict[str, tuple[list[float], list[float]]]:
    """By name the steps and values of a log; a torn last line, and what is no number, are left out.

    Raises:
        OSError: it cannot be read.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        step = content.get("step") if isinstance(content, dict) else None
        if not isinstance(step, (int, float)):
            continue
        for name, value in content.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name not in ACROSS and number and math.isfinite(value):
                steps, values = found.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    return found


def read(folder: Path, table: str) -> dict[str, Curve]:
    """The kept curves of a table, by the hash of their record; none without a file.

    Raises:
        UserError: the file is not what was written.
    """
    file = folder / f"{table}{CURVES}"
    if not file.exists():
        return {}
    try:
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        curves = [_curve(json.loads(line)) for line in lines]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} holds no curves ({error}); restore the file from git") from None
    return {curve.sha256: curve for curve in curves}


def keep(folder: Path, table: str, records: Iterable[Record], logs: Mapping[str, Path]) -> None:
    """Keep the curves of some records, those that were kept before and those whose logs are there.

    Args:
        folder: of the table's files.
        table: its name.
        records: those that count; curves of others are dropped.
        logs: by hash of a record the log of its run.
    """
    before = read(folder, table)
    after: dict[str, Curve] = {}
    for record in records:
        sha256 = record.sha256 or ""  # runs from before there were hashes have no curve
        if sha256 in before:
            after[sha256] = before[sha256]
        elif sha256 in logs and (found := logged(logs[sha256])):
            after[sha256] = _thin(record.address, sha256, found)
    # The same content compressed elsewhere may be other bytes: what is equal is left as it is.
    if after != before:
        file = folder / f"{table}{CURVES}"
        if not after:
            file.unlink()
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(_line(curve) for curve in after.values())
        with replacing(file) as part:
            part.write_bytes(gzip.compress(text.encode(), mtime=0))


def _thin(address: str, sha256: str, found: Mapping[str, tuple[list[float], list[float]]]) -> Curve:
    steps, values = {}, {}
    for name, (all_steps, all_values) in found.items():
        places = list(_places(len(all_steps)))
        steps[name] = tuple(all_steps[place] for place in places)
        values[name] = tuple(float(f"{all_values[place]:.{DIGITS}g}") for place in places)
    return Curve(address, sha256, steps, values)


def _places(count: int) -> Iterator[int]:
    """At most ``KEPT`` places of ``count``, evenly, the first and the last among them."""
    if count <= KEPT:
        yield from range(count)
        return
    for number in range(KEPT):
        yield round(number * (count - 1) / (KEPT - 1))


def _line(curve: Curve) -> str:
    numbers = {name: [curve.steps[name], curve.values[name]] for name in curve.steps}
    content = {"address": curve.address, "sha256": curve.sha256, "numbers": numbers}
    return json.dumps(content, separators=(",", ":")) + "\n"


def _curve(content: Mapping[str, object]) -> Curve:
    numbers = content["numbers"]
    if not isinstance(numbers, dict):
        raise ValueError("a line without numbers")
    return Curve(
        str(content["address"]),
        str(content["sha256"]),
        {name: tuple(steps) for name, (steps, _) in numbers.items()},
        {name: tuple(values) for name, (_, values) in numbers.items()},
    )
