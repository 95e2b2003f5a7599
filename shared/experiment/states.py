"""States of torch in files: written through memory, checked when they are read."""

import contextlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.errors import first_line, naming


def write_state(file: Path, state: Any) -> None:
    """Write a state as torch does, but through memory: only Python's write reports a full disk."""
    content = io.BytesIO()
    torch.save(state, content)
    with naming("write", file):
        file.write_bytes(content.getbuffer())


def read_state(file: Path) -> Any:
    """The state in a file of :func:`write_state`, on the CPU, read with ``weights_only``.

    A damaged file is a ``ValueError`` of one line without the file's name.
    """
    check_state(file)
    with _damage_as_value_error():
        # To the CPU: a state saved on one device is read on any other.
        return torch.load(file, map_location="cpu", weights_only=True)


def check_state(file: Path) -> None:
    """Compare the checksums in a file of :func:`write_state`, which torch does not; same errors."""
    with _damage_as_value_error(), zipfile.ZipFile(file) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"the checksum of its part {damaged} is wrong")


def not_finite(state: Any, name: str = "") -> str | None:
    """The name, with dots, of the first tensor in nested states that is NaN or infinite."""
    if isinstance(state, Tensor):
        state = state.values() if state.layout is torch.sparse_coo else state
        return name if state.is_floating_point() and not torch.isfinite(state).all() else None
    if isinstance(state, (list, tuple)):
        state = dict(enumerate(state))
    if not isinstance(state, Mapping):
        return None
    faults = (
        not_finite(part, f"{name}.{key}" if name else str(key)) for key, part in state.items()
    )
    return next(filter(None, faults), None)


@contextlib.contextmanager
def _damage_as_value_error() -> Iterator[None]:
    """Turn what reading a damaged file raises, which can be anything, into a ValueError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = first_line(error)
        if "weights_only" in str(error) or "Weights only" in reason:
            # torch advises to load the file with the code that it may hold.
            reason = "it holds other things than tensors and numbers"
        raise ValueError(reason) from error
