"""Files that are never seen half-written.

Every file is written beside its target, flushed to disk, and moved over it, so that a process
killed at any moment leaves either the old or the new one.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

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
