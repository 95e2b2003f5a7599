"""Processes that begin with everything imported: forked from one that has done so, and no more."""

import importlib
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.spawn import spawn, start_processes


def run(work: Callable[..., None], arguments: tuple[Any, ...], count: int, *modules: str) -> None:
    """Run ``work(place, *arguments)`` in ``count`` processes, and wait for them.

    They begin with ``modules`` and ``work`` imported, which would be most of what short work takes.
    """
    spawn(_first, (work, arguments, count, modules), nprocs=1)


def _first(
    _: int, work: Callable[..., None], arguments: tuple[Any, ...], count: int, modules: list[str]
) -> None:
    for name in modules:
        importlib.import_module(name)
    start_processes(work, arguments, nprocs=count, start_method="fork")
