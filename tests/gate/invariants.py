"""What may not change unnoticed, in one command, whose output is a list of differences.

``python tests/gate/invariants.py`` compares the working tree with the files beside it:

``cells.txt``
    a line for each row of every table in every tier: the number of its cells, and a hash over their
    canonical configurations.
``keys.txt``
    a line for each table in each tier: the number of its cells, and a hash over their addresses and
    keys, by which runs and records are found.
``records.txt``
    a line for each file of committed records: the first digits of the SHA-256 of each one that
    counts.
``published.txt``
    a line for each transcribed table: the number of its rows and published numbers, and a hash over
    both.
``words.txt``
    what names in configurations stand for, and the constants beside them: augmentations, protocols,
    costs, seeds. A key does not change with these, so that a record would count on.
``defaults.txt``
    what each number of a loss is where it is left out, since records hold the given ones alone. A
    new one may join with the default that does what was done before.

and with what an earlier commit makes (``--before``, else HEAD) in a temporary clone: ten fixed
cells have the same numbers to the bit, and in each domain a finished run is read, a stopped one
goes on to the numbers of one in one go, and an exported model is loaded, see ``runs.py``.

It prints each line that differs, with ``-`` as it was and ``+`` as it is, and ends with 1 if there
are any. Each of them belongs under **Numbers** in the changelog, with its reason. ``--update``
writes the files, ``--without-runs`` leaves out the earlier commit (four minutes on one core).
"""

import argparse
import ast
import difflib
import hashlib
import importlib
import inspect
import itertools
import math
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GATE = ROOT / "tests/gate"
sys.path[:0] = [str(ROOT)]

import shared  # noqa: E402 (this checkout's)
from shared.command.cells import DOMAINS, every_table  # noqa: E402
from shared.command.verify import check  # noqa: E402
from shared.experiment.config import canonical_json  # noqa: E402
from shared.experiment.published import load_published  # noqa: E402


def declared_cells() -> list[str]:
    """``tier/domain/paper/table | row | number of cells | hash``, sorted."""
    lines = []
    for table in every_table():
        for tier in table.tiers:
            for row, cells in itertools.groupby(table.cells(tier), lambda cell: cell.row):
                texts = [f"{cell.column}: {canonical_json(cell.config)}" for cell in cells]
                lines.append(f"{tier}/{table.address} | {row} | {len(texts)} | {short(texts)}")
    return sorted(lines)


def declared_keys() -> list[str]:
    """``tier/domain/paper/table | number of cells | hash of addresses and keys``, sorted."""
    lines = []
    for table in every_table():
        for tier in table.tiers:
            texts = [f"{cell.address} {cell.key}\n" for cell in table.cells(tier)]
            lines.append(f"{tier}/{table.address} | {len(texts)} | {short(texts)}")
    return sorted(lines)


def short(texts: Sequence[str]) -> str:
    """The first digits of their SHA-256."""
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def counted_records() -> list[str]:
    """``file: hash hash ...``, sorted, of the committed records that count."""
    checked = check(every_table(), ROOT / "results", ROOT / "no-runs")
    assert checked.faults == ()
    committed = [group for group in checked.groups if group.committed]
    assert all(group.valid == len(group.records) for group in committed)
    return sorted(
        f"{group.name}: {' '.join(sorted(str(r.sha256)[:8] for r in group.records.values()))}"
        for group in committed
    )


def published_numbers() -> list[str]:
    """``file table | rows | numbers | hash``, sorted, of every transcription; each is sound."""
    lines = []
    for file in ROOT.glob("*/published/*.toml"):
        if file.name in ("claims.toml", "notes.toml"):
            continue
        for key, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if not isinstance(entry, dict):
                continue
            published, place = load_published(file, key), f"{file.relative_to(ROOT)} {key}"
            # No figure prints numbers.
            assert bool(published.rows) is bool(published.columns) is not key.startswith("figure")
            assert published.source, place
            assert len(set(published.columns)) == len(published.columns), place
            assert set(published.notes) <= set(published.rows), place
            assert all(any(values) for values in published.rows.values()), place
            numbers = [value for values in published.rows.values() for value in values if value]
            assert all(math.isfinite(value.mean) for value in numbers), place
            assert all(0 <= (value.std or 0) < math.inf for value in numbers), place
            digest = short([repr((published.columns, published.rows))])
            lines.append(f"{place} | {len(published.rows)} | {len(numbers)} | {digest}")
    return sorted(lines)


def defaults() -> list[str]:
    """``function argument = default`` of everything that a term or a projection may omit."""
    names = ("alignment", "consistency", "debiased_nce", "distance_polarization", "hard_nce")
    return [
        f"{name} {key} = {item.default!r}"
        for name in (*names, "info_nce", "margin_nce", "max_margin", "LowRankProjection")
        for key, item in inspect.signature(getattr(shared, name)).parameters.items()
        if item.kind is item.KEYWORD_ONLY and item.default is not item.empty
    ]


# Modules with constants that decide numbers.
WORDS = {
    "graph": "augmentation evaluation train",
    "rl": "agent evaluation probe replay train",
    "text": "baselines evaluation neighbours senteval tokens",
    "video": "augmentation evaluation train",
    "vision": "augmentation encoder evaluation features train transfer toy",
}


# What steers speed, memory, logs and files alone.
NO_NUMBERS = {
    *("AT_ONCE", "CHECK_EVERY", "CHUNK", "COLUMNS", "ENTRIES", "FILES", "FORMAT", "FRAMES"),
    *("LARGEST_BLOCK", "LARGEST_KERNEL", "LOG_EVERY", "PARALLEL_FROM", "PROJECTION", "SAVE_EVERY"),
    *("TRIED", "VECTORS", "_BLOCK"),
}


def words() -> list[str]:
    """``module.NAME = value``, and a line for each entry of a dictionary."""
    lines = []
    for domain, modules in WORDS.items():
        for module in (f"{domain}.{name}" for name in modules.split()):
            home = importlib.import_module(module)
            for node in ast.parse(inspect.getsource(home)).body:
                targets = (
                    node.targets
                    if isinstance(node, ast.Assign)
                    else [getattr(node, "target", None)]
                )
                for target in targets:
                    for named in ast.walk(target) if target is not None else ():
                        if not isinstance(named, ast.Name) or named.id in NO_NUMBERS:
                            continue
                        if named.id.strip("_").isupper():
                            value = getattr(home, named.id)
                            entries = value.items() if isinstance(value, dict) else [("", value)]
                            lines += [
                                f"{module}.{named.id} {key} = {entry!r}" for key, entry in entries
                            ]
    # Functions have no text of their own.
    return sorted(" ".join(line.split()) for line in lines if " at 0x" not in line)


LISTS: dict[str, Callable[[], list[str]]] = {
    "cells": declared_cells,
    "keys": declared_keys,
    "records": counted_records,
    "published": published_numbers,
    "words": words,
    "defaults": defaults,
}


def known(name: str) -> list[str]:
    """The lines of a file beside this one; none where there is no file yet."""
    file = GATE / f"{name}.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def differences(before: Sequence[str], after: Sequence[str], name: str) -> list[str]:
    """The lines that are only in one of both, marked."""
    return list(difflib.unified_diff(before, after, name, name, n=0, lineterm=""))


def of_runs(checkout: Path, action: str, folder: Path, domain: str) -> list[str]:
    """The lines of ``runs.py`` of a checkout; why it ended is one of them where it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gate.runs", action, str(folder), domain],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if " | " in line]
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["without a message"]
        why = next((line for line in said if line.startswith("Fatal")), said[-1])
        lines.append(f"{domain} | {action} failed | {why}")
    return lines


def runs_that_differ(before: str, domains: Sequence[str]) -> Iterator[str]:
    """What an earlier commit makes beside what this tree makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        clone, made = Path(folder) / "clone", Path(folder) / "made"
        git = ("git", "-C", str(ROOT), "-c", "advice.detachedHead=false")
        subprocess.run([*git, "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
        commit = subprocess.run(
            [*git, "rev-parse", before], capture_output=True, text=True, check=True
        ).stdout.strip()
        subprocess.run(["git", "-C", str(clone), "checkout", "-q", commit], check=True)
        for domain in domains:
            lines = of_runs(clone, "make", made, domain)
            yield from differences(lines, of_runs(ROOT, "take-up", made, domain), domain)


def main() -> int:
    """Print the differences; 1 if there are any."""
    parser = argparse.ArgumentParser(description="What may not change unnoticed.")
    parser.add_argument("--update", action="store_true", help="write the files")
    parser.add_argument("--before", default="HEAD", help="the commit whose runs are taken up")
    parser.add_argument("--without-runs", action="store_true")
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=DOMAINS)
    options = parser.parse_args()
    found = 0
    for name, lines_of in LISTS.items():
        lines = lines_of()
        for line in differences(known(name), lines, name):
            print(line, flush=True)
            found += 1
        if options.update:
            (GATE / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not options.without_runs:
        for line in runs_that_differ(options.before, options.domains):
            print(line, flush=True)
            found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
