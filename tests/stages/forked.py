"""Processes that begin with everything imported: forked from one that has done so, and no more."""

import importlib
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.spawn import spawn, start_processes


def run(work: Callable[..., None], arguments: tuple[Any, ...], count: int, *modules: str) -> None:
    """Run ``work(place, *arguments)`` in ``count`` processes, and wait for them.

    Where each imported for itself, that would be most of what short work takes.

    Args:
        work: a function of a module's own, which is imported by that.
        arguments: what it is given after its place.
        count: how many.
        modules: what else to import beforehand.

    Raises:
        ProcessRaisedException: one of them failed.
    """
    spawn(_first, (work, arguments, count, modules), nprocs=1)


def _first(
    _: int, work: Callable[..., None], arguments: tuple[Any, ...], count: int, modules: list[str]
) -> None:
    for name in modules:
        importlib.import_module(name)
    start_processes(work, arguments, nprocs=count, start_method="fork")
