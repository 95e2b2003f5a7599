"""Scores of a trained model outside the tables: what the domains' ``score`` have in common."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared.experiment.domain import Asked
from shared.experiment.runs import Run


def measured(
    config: Any,
    protocol: str,
    score: Callable[[Any, Run], Mapping[str, Any]],
    asked: Asked,
) -> dict[str, Any]:
    """The metrics of a protocol, printed at once, and where and on which data they were taken.

    Args:
        config: what to score by; its protocol and seed are set here.
        protocol: its name.
        score: gives the metrics; its run has a folder that is gone afterwards.
        asked: knows the seed and where data lie.
    """
    config = dataclasses.replace(config, protocol=protocol, seed=asked.seed)
    asked.say(f"{protocol}: measuring")
    with (
        tempfile.TemporaryDirectory() as folder,
        Run(
            Path(folder) / "run",
            config,
            data_root=asked.data_root,
            allow_missing="skip_damaged" in asked.options,
        ) as run,
    ):
        metrics = dict(score(config, run))
        # At once, so that what is finished is seen whatever happens to the next protocol.
        for metric, value in metrics.items():
            if isinstance(value, int | float):
                asked.say(f"{protocol}: {metric} {value:.2f}")
        environment = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
    return {"metrics": metrics, "environment": environment}
