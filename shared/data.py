"""What every domain needs of data: where they lie, what is missing, and a hash of what was used."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from shared.errors import UserError


class MissingData(UserError):
    """A dataset that is not on this disk; cells that need it are 'not run', the others go on."""

    def __init__(self, name: str, folder: Path, command: str) -> None:
        super().__init__(f"{name}: data missing in {folder}; fetch it with: {command}")
        self.name = name
        self.folder = folder
        self.command = command

    def __reduce__(self) -> tuple[type["MissingData"], tuple[str, Path, str]]:
        return type(self), (self.name, self.folder, self.command)


def data_root(argument: str | Path | None = None) -> Path:
    """The folder that holds the datasets: the argument, else ``SUITE_DATA``, else ``data/``."""
    return Path(argument or os.environ.get("SUITE_DATA") or "data")


def sha256_of_files(files: Iterable[Path]) -> str:
    """One SHA-256 over names and contents of ``files``, taken in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
