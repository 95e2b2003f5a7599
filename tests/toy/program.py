"""The command line with the toy domain alone, as a process: for what signals and limits do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AtOnce = Callable[..., tuple[str, str]]  # what the fixture at_once gives


def start(
    folder: Path, *arguments: str, module: tuple[str, ...] = ("toy",)
) -> subprocess.Popen[str]:
    """The command at work in a folder, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", *module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(
    folder: Path, *arguments: str, code: int = 0, module: tuple[str, ...] = ("toy",)
) -> tuple[str, str]:
    """What a command that has ended with this code has printed."""
    process = start(folder, *arguments, module=module)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err
    return out, err
