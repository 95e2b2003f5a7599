"""Where the log of a run is also sent: TensorBoard's files, and Weights & Biases."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from shared.errors import UserError
from shared.experiment.config import Config, canonical, canonical_json

VARIABLE = "SUITE_WANDB"  # the project to which all runs of the command line are sent


class Logger(Protocol):
    """Receives the log of a run as well."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Receive one line."""

    def close(self) -> None:
        """Called when the run ends."""


class TensorBoard:
    """Writes event files below a run's folder, from its first line on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """One line of the log."""
        if self._writer is None:
            from tensorboard.summary.writer import event_file_writer
            from torch.utils.tensorboard import SummaryWriter

            socket = event_file_writer.socket
            # Otherwise the name of this machine would be part of the file's.
            event_file_writer.socket = SimpleNamespace(gethostname=lambda: "run")
            try:
                self._writer = SummaryWriter(str(self._folder), purge_step=step)
            finally:
                event_file_writer.socket = socket
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        """Flush the files."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """Sends lines to a project of Weights & Biases, from the first one on.

    A run that resumes in the same folder continues the same run there. ``WANDB_MODE=offline`` keeps
    it in the run's folder, and the library's other variables apply.
    """

    def __init__(self, folder: Path, config: Config, project: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                f"wandb is not installed; install it with: pip install wandb, or unset {VARIABLE}"
            ) from error
        folder = folder.absolute()
        self._start = functools.partial(
            wandb.init,
            project=project,
            name="/".join(folder.parts[-3:]),
            id=hashlib.sha256(f"{folder}\n{canonical_json(config)}".encode()).hexdigest()[:16],
            dir=str(folder),
            config=canonical(config),
            resume="allow",
        )
        self._session: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """One line of the log."""
        if self._session is None:
            self._session = self._start()
        self._session.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish the run there."""
        if self._session is not None:
            self._session.finish()
