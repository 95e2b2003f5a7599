"""What ``./reproduce.sh test --gpu`` says at its end, to be pasted into an issue."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from shared.experiment.checkout import commit
from shared.experiment.environment import driver


def summary(stats: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """The GPU, versions, outcomes, and each step's time, of pytest's reports by outcome."""
    yield "--- paste from here into an issue ---"
    here = commit()
    yield f"commit {here['commit'][:12]}{', with changes' if here['dirty'] else ''}"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            memory = about.total_memory / 2**30
            yield f"GPU {index}: {about.name}, {about.major}.{about.minor}, {memory:.0f} GiB"
    else:
        yield "no GPU that torch can use: nothing is proven"
    yield (
        f"driver {driver()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}, Python {platform.python_version()}"
    )
    counts = {name: len(stats.get(name, ())) for name in ("passed", "failed", "error", "skipped")}
    seconds = sum(each.duration for each in stats.get("passed", ()))
    yield f"{', '.join(f'{count} {name}' for name, count in counts.items())}; {seconds:.0f} s"
    for name in ("failed", "error"):
        for each in stats.get(name, ()):
            reason = str(each.longrepr).strip().splitlines()[-1:]
            yield f"{name}: {each.nodeid} {' '.join(reason)[:120]}"
    steps = [
        value
        for each in stats.get("passed", ())
        for name, value in each.user_properties
        if name == "step"
    ]
    if steps:
        yield "step: ms (host ms, waits; peak GB)"
    for each in steps:
        yield (
            f"{each['step']}: {each['milliseconds']:.1f} ({each['host']:.1f}, {each['waits']}; "
            f"{each['gigabytes']:.1f})"
        )
    yield "--- to here ---"
