"""Messages that are shown during training and also written to the record of the run."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

SUITE = Path(__file__).resolve().parents[1]
PACKAGES = ("shared", "graph", "rl", "text", "video", "vision")
_usual_format = warnings.formatwarning
# Called with the steps done, their total, and a description of them, like Run.progress.
Progress = Callable[[int, int, str], None]

# Called with every notice in this process; a run adds itself from its start to its end.
listeners: list[Callable[[str], None]] = []


def show_plain_warnings() -> None:
    """Show warnings of the suite's own code as one line, without the code that raised them."""
    warnings.formatwarning = _plain_format


def _plain_format(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    file = Path(filename)
    if file.is_relative_to(SUITE) and file.relative_to(SUITE).parts[0] in PACKAGES:
        return f"warning: {message}\n"
    return _usual_format(message, category, filename, lineno, line)


def notice(text: str) -> None:
    """Call the listeners, and raise a ``RuntimeWarning``."""
    for listener in listeners:
        listener(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def remark(text: str) -> None:
    """Call the listeners, and print a line to stderr, for messages that are not warnings."""
    for listener in listeners:
        listener(text)
    print(text, file=sys.stderr)
