"""Records of finished runs: reading and checking them.

A run's result has a SHA-256 over configuration, environment and result; its record, the copy in
``results/``, has the same one. It detects edited numbers; it is not a signature, and anyone can
compute it again.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.errors import UserError
from shared.experiment.history import upgraded_config
from shared.experiment.tables import UNITS

HASH = "sha256"  # the key beside the content that it is of
NUMBER = (int, float)
RECORDS = ".records.jsonl"  # suffix of the files of a table's records in results/
REPEATED = ".arithmetic.jsonl"  # suffix of those of the same cells under other code paths
# The keys of each part, and their types; further ones may be there.
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
ROUNDING = 1e-6  # relative: a mean of hundreds in float32 may exceed 100 by this much


class Damaged(UserError):
    """A file of a run, or a record, that is not as it was written; it is not used."""


@dataclass(frozen=True)
class Record:
    """A finished run, from its files.

    Args:
        address: of its cell.
        config: canonical configuration.
        environment: commit, versions, hardware, data.
        result: metrics, protocol, tier, seconds, memory.
        sha256: see :func:`content_hash`; None if it was never written.
    """

    address: str
    config: dict[str, Any]
    environment: dict[str, Any]
    result: dict[str, Any]
    sha256: str | None = None

    def upgraded(self, kind: type) -> "Record":
        """The record in today's form, where ``kind`` is the class of its configuration."""
        return replace(self, config=upgraded_config(self.config, kind))


def content_hash(
    config: Mapping[str, Any], environment: Mapping[str, Any], result: Mapping[str, Any]
) -> str:
    """SHA-256 over a run: of JSON without spaces, with sorted keys and Python's number format.

    The address and the environment's ``run_at`` are left out: cells with equal configurations have
    the same run.
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
    """The object in a JSON file of a run.

    Raises:
        Damaged: no such file, no JSON, or no object.
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
        Damaged: a file that lacks something, or does not match its hash.
    """
    if not (folder / "result.json").exists():
        return None
    parts = {}
    for name in SHAPE:
        parts[name] = read_json(folder / f"{name}.json")
        if fault := _misshapen(parts[name], name):
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
        Damaged: a line that is not a record, or does not match its hash.
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
    """For each line of a file of records the record, or its error."""
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            yield _record(_parse(line))
        except ValueError as error:
            yield Damaged(f"{file}, line {number}: {error}; restore the file from git")


def record_line(record: Record) -> str:
    """The record as one line of JSON."""
    return json.dumps(vars(record), sort_keys=True) + "\n"


def read_failure(folder: Path) -> str | None:
    """Why the last attempt failed; None if it did not.

    Raises:
        Damaged: a file without a reason.
    """
    file = folder / "failure.json"
    if not file.exists():
        return None
    content = read_json(file)
    if not isinstance(content.get("why"), str):
        raise Damaged(f"{file} has no text as 'why'; delete it")
    return str(content["why"])


def is_altered(record: Record) -> bool:
    """Whether the content does not match the hash."""
    return record.sha256 != content_hash(record.config, record.environment, record.result)


def _parse(text: bytes) -> dict[str, Any]:
    """The object in ``text``; the text of its ValueError continues "... is"."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"not an object of JSON but a {type(content).__name__}")
    return content


def _record(content: dict[str, Any]) -> Record:
    """The record in the object of one line; ValueError if it is not one."""
    kinds = {"address": str, **dict.fromkeys(SHAPE, dict), HASH: str}
    for name, kind in kinds.items():
        if name not in content:
            raise ValueError(f"not a record: it lacks {name!r}")
        if not isinstance(content[name], kind):
            raise ValueError(f"not a record: it has {_short(content[name])} as {name!r}")
    if unknown := content.keys() - kinds.keys():
        raise ValueError(f"not a record: unknown key {sorted(unknown)[0]!r}")
    for name in SHAPE:
        if fault := _misshapen(content[name], name):
            raise ValueError(f"not a record: {name} {fault}")
    record = Record(**content)
    if is_altered(record):
        raise ValueError(f"{record.address} was altered: its SHA-256 is that of another content")
    return record


def _misshapen(content: Mapping[str, Any], part: str) -> str | None:
    """What is wrong with the keys and types of a part of a record; None if nothing."""
    for name, kind in SHAPE[part].items():
        if name not in content:
            return f"lacks {name!r}"
        if not isinstance(content[name], kind):
            return f"has {_short(content[name])} as {name!r}"
    return None


def _short(value: Any) -> str:
    return json.dumps(value)[:40]
