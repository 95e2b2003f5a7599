"""Finished runs made elsewhere: each is checked before ``report`` takes it into results/.

The folder has the layout of ``--runs``, copied from another machine. A run is refused
unless its hash is right, its commit is in the history of this checkout and was clean, and it is
valid for a cell as declared today. A cell that already has another record keeps it.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shared.command import verify
from shared.command.cells import Places
from shared.errors import UserError
from shared.experiment.records import Damaged, Record, read_record
from shared.experiment.tables import Cell, Table

LARGEST = 2**30  # bytes, total size of the files that are read
FILES = ("config.json", "environment.json", "result.json")


def collected(
    source: Path, tables: Sequence[Table], places: Places
) -> tuple[list[Record], list[str]]:
    """The accepted records of the runs below ``source``, and why the others are refused.

    Args:
        source: a folder of runs.
        tables: those of all domains.
        places: the folder of the records that exist already.

    Raises:
        UserError: no such folder, no finished run in it, or files larger than ``LARGEST``.
    """
    if not source.is_dir():
        raise UserError(f"--from {source}: no such folder; name a folder of runs")
    found = sorted(file.parent for file in source.rglob("result.json") if file.is_file())
    if not found:
        raise UserError(f"--from {source}: no finished run (result.json) below it")
    files = [folder / name for folder in found for name in FILES]
    if (size := sum(file.stat().st_size for file in files if file.is_file())) > LARGEST:
        raise UserError(f"--from {source}: {size >> 20} MB of results; at most {LARGEST >> 20}")
    cells = _cells(tables)
    there = {
        each.cell.address: each.record.sha256
        for each in verify.check(tables, places.results, source / "none").matched
    }
    taken: list[Record] = []
    refused: list[str] = []
    history: dict[str, bool] = {}
    for folder in found:
        own = cells.get(folder.relative_to(source).as_posix())
        if own is None:
            refused.append(f"{folder}: belongs to no cell that is declared today")
            continue
        try:
            record = read_record(folder, own[0].address)
        except Damaged as error:
            refused.append(str(error).removesuffix("; move the folder away"))
            continue
        assert record is not None  # its result was found
        commit = record.environment["commit"]
        if commit not in history:
            history[commit] = _is_in_history(commit)
        if why := verify.objections(tables, [record]).get(record.address):
            refused.append(f"{folder}: {why}")
        elif not history[commit]:
            refused.append(f"{folder}: commit {commit[:12]} is not in the history checked out here")
        else:
            for cell in own:
                if there.get(cell.address, record.sha256) == record.sha256:
                    taken.append(replace(record, address=cell.address))
                else:
                    refused.append(f"{folder}: {cell.address} has another record, which stays")
    return taken, refused


def _cells(tables: Sequence[Table]) -> dict[str, list[Cell]]:
    """The cells that can enter results, by the folder of their run."""
    found: dict[str, list[Cell]] = {}
    for table in tables:
        for tier in table.tiers:
            for cell in table.cells(tier) if tier != "smoke" else ():
                some = found.setdefault(cell.folder.as_posix(), [])
                if cell.address not in [each.address for each in some]:
                    some.append(cell)
    return found


def _is_in_history(commit: str) -> bool:
    """Whether a commit is the checked-out one or an ancestor of it."""
    if not verify.COMMIT.fullmatch(commit):
        return False
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    root = Path(__file__).resolve().parents[2]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, check=False).returncode == 0
    except OSError:
        raise UserError("--from needs git to look up commits; install git") from None
