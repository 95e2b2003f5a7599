"""Messages that are shown during training and also written to the record of the run."""

import sys
import warnings
from collections.abc import Callable

# Called with the steps done, their total, and a description of them, like Run.progress.
Progress = Callable[[int, int, str], None]

# Called with every notice in this process; a run adds itself from its start to its end.
listeners: list[Callable[[str], None]] = []


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
