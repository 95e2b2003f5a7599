"""The checked-out commit, and the time; needs no torch."""

import datetime
import os
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "unknown"  # of an installed package, or of the files without git


def of_checkout(name: str) -> Path:
    """A file or folder of the checkout whose reproduce.sh was called; else of the current one."""
    if "SUITE_COMMAND" in os.environ and Path.cwd() != ROOT:
        return ROOT / name
    return Path(name)


def commit() -> dict[str, Any]:
    """The checked-out commit, and whether code that runs use has uncommitted changes."""
    code = [path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()]
    unknown = {"commit": UNKNOWN, "dirty": True}
    if not (ROOT / ".git").exists():  # installed, perhaps inside another project's checkout
        return unknown
    try:
        status = git("status", "--porcelain=2", "--branch", "--", "pyproject.toml", *sorted(code))
    except (OSError, subprocess.CalledProcessError):  # no git, or a damaged checkout
        return unknown
    head = re.search(r"^# branch\.oid ([0-9a-f]{40,})$", status, re.MULTILINE)
    if head is None:  # without any commit
        return unknown
    changed = any(not line.startswith("# ") for line in status.splitlines())
    return {"commit": head[1], "dirty": changed}


def git(*arguments: str, stdin: str = "") -> str:
    """What git says in the folder of the code; OSError without git, CalledProcessError of git."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, input=stdin, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
