"""Functions that are imported when they are called, among them the losses and penalties.

Tables and configurations say which loss a run has. To plan, report and verify no loss is computed,
and torch takes longer to import than all of these commands do.
"""

import functools
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lazy_loader

from shared.errors import lacking


@dataclass(frozen=True)
class LazyImport:
    """A function or an object by its name, ``package.module:name``, imported when it is called.

    Calling it calls the function, and gives the object if that is not a function.
    """

    name: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function with the arguments; or give the object."""
        resolved = self.load()
        return resolved(*arguments, **named) if callable(resolved) else resolved

    @property
    def __name__(self) -> str:
        return self.name.rpartition(":")[2]

    @property
    def module(self) -> str:
        """The name of its module."""
        return self.name.partition(":")[0]

    @property
    def is_imported(self) -> bool:
        """Whether its module has been imported."""
        return self.module in sys.modules

    def load(self) -> Any:
        """The function or object."""
        return _resolved(self.name)


def attach(domain: str, file: str) -> tuple[Callable[[str], Any], Callable[[], Any], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a domain, whose names are in its stub.

    A name that needs a library of the domain's extra says so where that is not installed.
    """
    get, names, public = lazy_loader.attach_stub(domain, file)

    def get_or_name_extra(name: str) -> Any:
        try:
            return get(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(lacking(domain, error), name=error.name) from error

    return get_or_name_extra, names, public


_resolved = functools.cache(pkgutil.resolve_name)


alignment = LazyImport("shared.margins:alignment")
debiased_nce = LazyImport("shared.losses:debiased_nce")
hard_nce = LazyImport("shared.losses:hard_nce")
info_nce = LazyImport("shared.losses:info_nce")
margin_nce = LazyImport("shared.margins:margin_nce")
max_margin = LazyImport("shared.losses:max_margin")
consistency = LazyImport("shared.penalties:consistency")
distance_polarization = LazyImport("shared.penalties:distance_polarization")
