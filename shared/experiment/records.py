"""What a finished run leaves behind: reading it back, and whether it can be believed.

A run's result carries a SHA-256 over configuration, environment and result; a record, its copy in
``results/``, carries the same one. Whoever edits a number by hand is found out; the hash is no
signature, and says nothing of someone who computes it anew. Records from before there were hashes
have none, and nothing is known of them.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shared.errors import UserError
from shared.experiment.history import address_today, upgraded_config
from shared.experiment.tables import UNITS

HASH = "sha256"  # the key beside the content that it is of
NUMBER = (int, float)
RECORDS = ".records.jsonl"  # how the files in results/ end that hold a table's records
REPEATED = ".arithmetic.jsonl"  # and those of the same cells under other code paths
# What every reader may count on.
SHAPE: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "config": {},
    "environment": {
        "commit": str,
        "dirty": bool,
        "command": str,
        "started": str,
        "versions": dict,
        "hardware": dict,
        "data": dict,
    },
    "result": {
        "metrics": dict,
        "protocol": str,
        "tier": str,
        "seconds": NUMBER,
        "peak_memory_bytes": NUMBER,
    },
}
ROUNDING = 1e-6  # relative: a mean of hundreds in float32 may lie this far above 100


class Damaged(UserError):
    """A file of a run, or a record, that is not what was written; it does not count."""


@dataclass(frozen=True)
class Record:
    """A finished run, as its files say.

    Args:
        address: of its cell.
        config: canonical configuration.
        environment: where and with what it took place.
        result: metrics, protocol, tier, seconds, memory.
        sha256: see :func:`content_hash`; None for runs from before there were hashes.
    """

    address: str
    config: dict[str, Any]
    environment: dict[str, Any]
    result: dict[str, Any]
    sha256: str | None = None

    def upgraded(self, kind: type) -> "Record":
        """The record as it would be written today, where ``kind`` is its configuration's class."""
        address, config = address_today(self.address, kind), upgraded_config(self.config, kind)
        return replace(self, address=address, config=config)


def content_hash(
    config: Mapping[str, Any], environment: Mapping[str, Any], result: Mapping[str, Any]
) -> str:
    """SHA-256 over a run: of JSON without spaces, keys sorted, numbers as Python prints them.

    The address is no part of it, nor is ``run_at`` of the environment: a run that is taken over
    for another cell is the same run.
    """
    content = {
        "config": config,
        "environment": {name: value for name, value in environment.items() if name != "run_at"},
        "result": {name: value for name, value in result.items() if name != HASH},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def impossible(name: str, value: Any, unit: str) -> str | None:
    """Why ``value`` cannot be the metric ``name`` in ``unit``; None if it can."""
    if isinstance(value, bool) or not isinstance(value, NUMBER) or not math.isfinite(value):
        return f"{name} is {json.dumps(value)}, not a finite number"
    low, high = UNITS[unit]
    if low - ROUNDING * abs(low) <= value <= high + ROUNDING * abs(high):
        return None
    return f"{name} is {value:g}, outside {low:g} to {high:g} {unit}"


def read_json(file: Path) -> dict[str, Any]:
    """The object that a JSON file of a run holds.

    Raises:
        Damaged: no such file, no JSON, or something else than an object.
    """
    try:
        return _parse(file.read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{file} is missing; move the folder away") from None
    except ValueError as error:
        raise Damaged(f"{file} is {error}; move the folder away") from None


def read_record(folder: Path, address: str) -> Record | None:
    """The finished run in ``folder``; None if there is none.

    Raises:
        Damaged: a file that lacks something, or content other than its hash says.
    """
    if not (folder / "result.json").exists():
        return None
    parts = {}
    for name in SHAPE:
        parts[name] = read_json(folder / f"{name}.json")
        if fault := _misshapen(parts[name], SHAPE[name]):
            raise Damaged(f"{folder / name}.json {fault}; move the folder away")
    sha256 = parts["result"].pop(HASH, None)
    record = Record(address, **parts, sha256=sha256)
    if is_altered(record):
        raise Damaged(
            f"{folder / 'result.json'}: its SHA-256 is not that of the run's configuration, "
            "environment and result: one of them was altered; move the folder away"
        )
    return record


def read_records(results: Path) -> list[Record]:
    """All records below ``results``, in the order of their files and lines.

    Raises:
        Damaged: a line that is not a record, or content other than its hash says.
    """
    return _read(results, RECORDS)


def read_repeats(results: Path) -> list[Record]:
    """All records below ``results`` of runs under other code paths, as :func:`read_records`."""
    return _read(results, REPEATED)


def _read(results: Path, ending: str) -> list[Record]:
    records = []
    for file in sorted(results.rglob(f"*{ending}")):
        for record in records_in(file):
            if isinstance(record, Damaged):
                raise record
            records.append(record)
    return records


def records_in(file: Path) -> Iterator[Record | Damaged]:
    """For each line of a file of records the record, or the error that it deserves."""
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            yield _record(_parse(line))
        except ValueError as error:
            yield Damaged(f"{file}, line {number}: {error}; restore the file from git")


def record_line(record: Record) -> str:
    """The record as one line of JSON."""
    content = asdict(record)
    if record.sha256 is None:
        del content[HASH]
    return json.dumps(content, sort_keys=True) + "\n"


def read_failure(folder: Path) -> str | None:
    """Why the last attempt gave no result; None if nothing kept it from one.

    Raises:
        Damaged: a file that does not say it.
    """
    file = folder / "failure.json"
    if not file.exists():
        return None
    content = read_json(file)
    if fault := _misshapen(content, {"why": str}):
        raise Damaged(f"{file} {fault}; delete it")
    return str(content["why"])


def is_altered(record: Record) -> bool:
    """Whether the content is other than the hash says; of a record without one nothing is known."""
    content = (record.config, record.environment, record.result)
    return record.sha256 is not None and record.sha256 != content_hash(*content)


def _parse(text: bytes) -> dict[str, Any]:
    """The object in ``text``; ValueError, in words that go on from "is", if there is none."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        content = json.loads(text.decode(), parse_constant=refuse)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"not an object of JSON but a {type(content).__name__}")
    return content


def _record(content: dict[str, Any]) -> Record:
    """The record in the object of one line; ValueError if it is none."""
    shape = {"address": str, **dict.fromkeys(SHAPE, dict)}
    if fault := _misshapen(content, shape):
        raise ValueError(f"not a record: it {fault}")
    if unknown := set(content) - set(shape) - {HASH}:
        raise ValueError(f"not a record: unknown key {sorted(unknown)[0]!r}")
    for name in SHAPE:
        if fault := _misshapen(content[name], SHAPE[name]):
            raise ValueError(f"not a record: {name} {fault}")
    record = Record(**content)
    if is_altered(record):
        raise ValueError(f"{record.address} was altered: its SHA-256 is that of another content")
    return record


def _misshapen(content: Mapping[str, Any], shape: Mapping[str, Any]) -> str | None:
    """What ``content`` lacks of ``shape``; None if nothing."""
    for name, kind in shape.items():
        if name not in content:
            return f"lacks {name!r}"
        if not isinstance(content[name], kind):
            return f"has {json.dumps(content[name])[:40]} as {name!r}"
    return None
