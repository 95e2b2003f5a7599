"""What is worth knowing of a training that goes on: a warning, and a line in the run's record."""

import warnings
from collections.abc import Callable

# Who is told of every notice in this process; a run is, from its start to its end.
listeners: list[Callable[[str], None]] = []


def notice(text: str) -> None:
    """Raise a ``RuntimeWarning``, after whoever listens was told."""
    for listener in listeners:
        listener(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
