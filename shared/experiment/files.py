"""Files that are never seen half-written, and states of torch in them.

Every file is written beside its target, flushed to disk, and moved over it, so that a process
killed at any moment leaves either the old or the new one.
"""

import contextlib
import io
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.errors import naming


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to, which is flushed to disk and moved over it at the end."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with naming("fsync", path), part.open("rb") as stream:
            os.fsync(stream.fileno())
        with naming("rename", path):
            part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def link(source: Path, target: Path) -> None:
    """Link a file that never changes to a second path, or copy it where links are impossible."""
    if target.exists() and target.samefile(source):  # the same file would not be replaced
        return
    with replacing(target) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is never seen half-written; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, naming("write", path):
        part.write_text(text, encoding="utf-8")


def write_state(file: Path, state: Any) -> None:
    """Write a state as torch does, but through memory: only Python's write reports a full disk."""
    content = io.BytesIO()
    torch.save(state, content)
    with naming("write", file):
        file.write_bytes(content.getbuffer())


def read_state(file: Path) -> Any:
    """The state in a file of :func:`write_state`, on the CPU, read with ``weights_only``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a damaged file; one line without the file's name.
    """
    check_state(file)
    with _damage_as_value_error():
        # To the CPU: a state saved on one device is read on any other.
        return torch.load(file, map_location="cpu", weights_only=True)


def check_state(file: Path) -> None:
    """Compare the checksums in a file of :func:`write_state`, which torch does not.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a damaged file; one line without the file's name.
    """
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
        reason = str(error).partition("\n")[0] or type(error).__name__
        if "weights_only" in str(error) or "Weights only" in reason:
            # torch advises to load the file with the code that it may hold.
            reason = "it holds other things than tensors and numbers"
        raise ValueError(reason) from error
