"""States of torch in files: written through memory, checked when they are read."""

import io
import zipfile
from collections.abc import Mapping
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
    try:
        with zipfile.ZipFile(file) as archive:  # torch does not compare the checksums
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of its part {damaged} is wrong")
        # To the CPU: a state saved on one device is read on any other.
        return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged file can raise anything
        reason = first_line(error)
        if "weights_only" in str(error) or "Weights only" in reason:
            # torch advises to load the file with the code that it may hold.
            reason = "it holds other things than tensors and numbers"
        raise ValueError(reason) from error


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
