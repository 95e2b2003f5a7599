"""Records of finished runs: reading and checking them.

A run's result has a SHA-256 over configuration, environment and result; its record, the copy in
``results/``, has the same one. It detects edited numbers; it is not a signature, and anyone can
compute it again.
"""

import enum
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from shared.errors import UserError
from shared.experiment.config import upgraded_config

HASH = "sha256"  # the key beside the content that it is of
NUMBER = (int, float)
ENCODER_PROCESSOR = "encoder_processor"  # a fact of an environment, see store.pretrained
RECORDS = ".records.jsonl"  # suffix of the files of a table's records in results/
# The required keys of each part; the seal refuses every edited value.
REQUIRED: Mapping[str, frozenset[str]] = {
    "config": frozenset(),
    "environment": frozenset(
        ("commit", "dirty", "command", "started", "versions", "hardware", "data")
    ),
    "result": frozenset(("metrics", "protocol", "tier", "seconds", "peak_memory_bytes")),
}


class Reason(enum.StrEnum):
    """Why a cell has no number: the word that begins the sentence which says so."""

    NOT_RUN = "not run"  # yet, or without its data
    FAILED = "failed"  # the run ended without a result
    REFUSED = "refused"  # an altered file, an impossible number, a folder of another run
    STALE = "stale"  # measured with another configuration or protocol
    UNDECLARED = "undeclared"

    def begins(self, why: str) -> bool:
        """Whether a sentence gives this reason."""
        return why.startswith(self)


class Damaged(UserError):
    """A file of a run, or a record, that is not as it was written; it is not used."""


@dataclass(frozen=True)
class Record:
    """A finished run, from its files."""

    address: str  # of its cell
    config: dict[str, Any]  # canonical configuration
    environment: dict[str, Any]  # commit, versions, hardware, data
    result: dict[str, Any]  # metrics, protocol, tier, seconds, memory
    sha256: str | None = None  # see :func:`content_hash`; None if it was never written

    def upgraded(self, kind: type) -> "Record":
        """The record in today's form, where ``kind`` is the class of its configuration."""
        return replace(self, config=upgraded_config(self.config, kind))


def computed_on(environment: Mapping[str, Any]) -> str:
    """What a run computed on: its accelerators, else its processor."""
    hardware = environment["hardware"]
    return ", ".join(hardware.get("accelerators") or [str(hardware.get("processor"))])


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


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a run."""
    try:
        return _parse(file.read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{file} is missing; move the folder away") from None
    except ValueError as error:
        raise Damaged(f"{file} is {error}; move the folder away") from None


def read_record(folder: Path, address: str) -> Record | None:
    """The finished run in ``folder``; None if there is none."""
    file = folder / "result.json"
    if not file.exists():
        return None
    parts = {name: read_json(folder / f"{name}.json") for name in REQUIRED}
    sha256 = parts["result"].pop(HASH, None)
    try:
        return _record({"address": address, HASH: sha256, **parts})
    except ValueError as error:
        raise Damaged(f"{file}: {error}; move the folder away") from None


def records_in(file: Path) -> Iterator[Record | Damaged]:
    """For each line of a file of records the record, or its error."""
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            yield _record(_parse(line))
        except (TypeError, ValueError) as error:
            yield Damaged(f"{file}, line {number}: {error}; restore the file from git")


def record_line(record: Record) -> str:
    """The record as one line of JSON."""
    return json.dumps(vars(record), sort_keys=True) + "\n"


def read_failure(folder: Path) -> str | None:
    """Why the last attempt failed; None if it did not."""
    file = folder / "failure.json"
    if not file.exists():
        return None
    return str(read_json(file).get("why"))


def _parse(text: bytes) -> dict[str, Any]:
    """The object in ``text``; the text of its ValueError continues "... is"."""
    try:
        content = json.loads(text.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"not an object of JSON but a {type(content).__name__}")
    return content


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a finite number")


def _record(content: dict[str, Any]) -> Record:
    """The record with these fields; ValueError if one is missing or was altered."""
    for name in ("address", *REQUIRED, HASH):
        if name not in content:
            raise ValueError(f"a record lacks {name!r}")
    for name, keys in REQUIRED.items():
        if lacking := keys.difference(content[name]):
            raise ValueError(f"{name} lacks {min(lacking)!r}")
    record = Record(**{name: content[name] for name in ("address", *REQUIRED, HASH)})
    if record.sha256 != content_hash(record.config, record.environment, record.result):
        raise ValueError(
            f"its SHA-256 is not that of {record.address}: configuration, environment or result "
            f"was altered"
        )
    return record
