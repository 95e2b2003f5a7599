"""Weights that training starts from, as a configuration names them; needs no torch.

:mod:`shared.experiment.weights` loads them into a network.
"""

from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import UserError
from shared.experiment.config import option
from shared.experiment.data import sha256_of, sha256_of_files

FILE = "encoder.safetensors"


@dataclass(frozen=True)
class InitialWeights:
    """Weights that training starts from, identified in configurations by their content alone."""

    file: Path = field(compare=False)  # a checkpoint, or a folder that holds a model
    sha256: str  # of the file, or over names and contents of the folder's files
    prefix: str | None = option(None)  # of the network's keys in a checkpoint of several

    @classmethod
    def of(cls, path: Path | str, prefix: str | None = None) -> "InitialWeights":
        """The weights of a checkpoint, of an exported folder, or of a model of transformers."""
        path = Path(path)
        if path.is_dir() and (path / FILE).is_file():
            path = path / FILE
        return cls(path.absolute(), _sha256(path), prefix)

    def check(self) -> None:
        """Compare the content with the configured one."""
        if _sha256(self.file) != self.sha256:
            text = "changed since it was configured as init; restore it, or set init again"
            raise UserError(f"{self.file}: {text}")


def _sha256(path: Path) -> str:
    if path.is_dir():
        files = [file for file in path.iterdir() if file.is_file() and file.name[0] != "."]
        if not any(file.suffix in (".safetensors", ".bin") for file in files):
            raise UserError(f"{path}: no model in this folder; give an export or a checkpoint")
        return sha256_of_files(files)
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give a checkpoint or an exported folder")
    return sha256_of(path)
