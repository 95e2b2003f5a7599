"""Logging to Weights & Biases beside TensorBoard; needs the extra ``wandb``."""

import hashlib
from collections.abc import Mapping
from typing import Any

from shared.errors import UserError
from shared.experiment.config import canonical, canonical_json

VARIABLE = "SUITE_WANDB"  # the project to which all runs of the command line are sent


def weights_and_biases(run: Any, project: str) -> None:
    """Also send what a :class:`shared.experiment.run.Run` logs from now on to Weights & Biases.

    A resumed run, inside its ``with``, continues the same run there. Nothing is sent before the
    first line of the log; ``WANDB_MODE=offline`` keeps it in the run's folder, and the library's
    other variables apply.
    """
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            f"wandb is not installed; install it with: pip install wandb, or unset {VARIABLE}"
        ) from error
    run.loggers.append(_Session(wandb, run, project))


class _Session:
    """A run at Weights & Biases, started by its first line."""

    def __init__(self, library: Any, run: Any, project: str) -> None:
        self._library = library
        self._run = run
        self._project = project
        self._session: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """One line of the log."""
        if self._session is None:
            folder, config = self._run.folder.absolute(), self._run.config
            identity = hashlib.sha256(f"{folder}\n{canonical_json(config)}".encode()).hexdigest()
            self._session = self._library.init(
                project=self._project,
                name="/".join(folder.parts[-3:]),
                id=identity[:16],
                dir=str(folder),
                config=canonical(config),
                resume="allow",
            )
        self._session.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish the run there."""
        if self._session is not None:
            self._session.finish()
