"""What ``report`` has written, by hash: so that a page without its records is noticed.

``results/manifest.json`` has the SHA-256 of every page, CSV file, picture and file of records, and
the number of records in each of the latter.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from shared.errors import program
from shared.experiment.data import sha256_of
from shared.experiment.files import write_atomically
from shared.experiment.records import RECORDS

MANIFEST = "manifest.json"
TEXTS = (".md", ".csv")


def write(results: Path) -> None:
    """Write the manifest of all files below ``results``."""
    files = {name: sha256_of(results / name) for name in _files(results)}
    records = {
        name: len((results / name).read_bytes().splitlines())
        for name in files
        if name.endswith(RECORDS)
    }
    content = {"files": files, "records": records}
    write_atomically(results / MANIFEST, json.dumps(content, indent=1) + "\n")


def faults(results: Path) -> list[str]:
    """Which files below ``results`` are not those that ``report`` wrote; one line each."""
    file = results / MANIFEST
    existing = set(_files(results))
    if not file.is_file():
        return [f"{file} is missing; {program()} report writes it"] * bool(existing)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        files = {str(name): str(digest) for name, digest in content["files"].items()}
        records = {str(name): int(count) for name, count in content["records"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{file} is not a manifest ({error}); restore it from git"]
    lines = []
    for name in sorted(existing | files.keys()):
        had = f", which had {records[name]} records" if name in records else ""
        if name not in existing:
            lines.append(f"{results / name} is missing{had}; restore it from git")
        elif name not in files:
            lines.append(f"{results / name} is not of the last report; run {program()} report")
        elif sha256_of(results / name) != files[name]:
            text = f"{results / name} was changed since the last report{had}"
            lines.append(f"{text}; restore it from git, or run {program()} report")
    return lines


def other_texts(results: Path, rebuilt: Path) -> list[str]:
    """The pages and CSV files below ``results`` that differ from those in ``rebuilt``."""
    differences = []
    expected, existing = (
        {name for name in _files(folder) if name.endswith(TEXTS) and "figures" not in name}
        for folder in (rebuilt, results)
    )
    for name in sorted(expected | existing):
        if name not in expected:
            differences.append(f"{results / name}: no record gives this file; delete it")
        elif name not in existing:
            differences.append(f"{results / name} is missing; run {program()} report")
        elif (results / name).read_bytes() != (rebuilt / name).read_bytes():
            differences.append(
                f"{results / name} is not what the records give; run {program()} report"
            )
    return differences


def _files(results: Path) -> Iterator[str]:
    """The names of the files below ``results``, in order, but for the manifest and hidden ones."""
    for path in sorted(results.rglob("*")):
        name = path.relative_to(results).as_posix()
        if path.is_file() and name != MANIFEST and not path.name.startswith("."):
            yield name
