"""Files of ``torch.save`` that end with a SHA-256 over their content.

The seal follows the end of the archive, where readers do not look, so ``torch.load`` reads a sealed
file like any other.
"""

import hashlib
import io
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

_MARK = b"\0sealed SHA-256\0"
_SEAL = len(_MARK) + hashlib.sha256().digest_size
_END = 22  # bytes of the record that ends an archive without a seal


def write_sealed(file: Path, state: Any) -> None:
    """Write a state and its SHA-256; not atomically, see ``replacing``.

    Raises:
        OSError: the file cannot be written.
    """
    # Through memory: Python's write reports a full disk, torch's does not.
    content = io.BytesIO()
    torch.save(state, content)
    with file.open("wb") as stream, ThreadPoolExecutor(1) as beside:
        # Hashing and writing release the global interpreter lock, and run side by side.
        digest = beside.submit(hashlib.sha256, content.getbuffer())
        stream.write(content.getbuffer())
        os.fsync(stream.fileno())
        stream.write(_MARK + digest.result().digest())


def read_sealed(file: Path) -> Any:
    """The state in a file of :func:`write_sealed`, on the CPU, read with ``weights_only``.

    A file without a seal is from an earlier version, and is accepted if torch can read it.

    Raises:
        ValueError: the file is damaged or cannot be read; one line without the file's name.
    """
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as m:
            seal = m[-_SEAL:]
            if seal.startswith(_MARK):
                with memoryview(m) as view, view[:-_SEAL] as content:
                    intact = _MARK + hashlib.sha256(content).digest() == seal
            else:
                intact = m[-_END:].startswith(b"PK\5\6")
        if not intact:
            raise ValueError("its content does not match the SHA-256 at its end")
        # To the CPU: a state saved on one device is read on any other.
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file of an earlier version can raise anything
        if isinstance(error, ValueError):
            reason = str(error)
        else:
            reason = f"{type(error).__name__}: {error}"
        raise ValueError(reason.partition("\n")[0]) from error
