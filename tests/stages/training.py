"""What tests of training share: runs to their end, their logs, resumed ones, calls looked at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted

Measure = Callable[[Any, Run], Any]


def finish(folder: Path, config: Any, measure: Measure, **options: Any) -> dict[str, Any]:
    """The metrics of a run."""
    with Run(folder, config, **options) as run:
        metrics: dict[str, Any] = run.finish(measure(config, run))["metrics"]
    return metrics


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def stop(folder: Path, config: Any, measure: Measure, **options: Any) -> Run:
    """A run that is told to stop at once, and does so as soon as it has saved its state."""
    with Run(folder, config, **options) as run:
        run.stopping = True
        with pytest.raises(Interrupted):
            measure(config, run)
    return run


def spied(patch: pytest.MonkeyPatch, home: Any, name: str, note: Callable[..., Any]) -> list[Any]:
    """What ``note`` makes of the result and the arguments of each call from here on."""
    notes: list[Any] = []
    original = getattr(home, name)

    def spy(*args: Any, **keywords: Any) -> Any:
        result = original(*args, **keywords)
        notes.append(note(result, *args, **keywords))
        return result

    patch.setattr(home, name, spy)
    return notes
