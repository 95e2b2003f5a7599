"""Warnings during training that are also written to the record of the run."""

import warnings
from collections.abc import Callable

# Called with every notice in this process; a run adds itself from its start to its end.
listeners: list[Callable[[str], None]] = []


def notice(text: str) -> None:
    """Call the listeners, and raise a ``RuntimeWarning``."""
    for listener in listeners:
        listener(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
