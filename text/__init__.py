"""The text domain: quick-thoughts on books, with any objective, and the evaluation on six tasks.

The names of ``__init__.pyi`` are imported when first used: planning and reporting stay quick.
``text.evaluate`` is the function, as in ``text.evaluate(encode, data_root)``, although a module
has the same name; that module's contents come with ``from text.evaluate import ...`` as usual.
"""

import sys
from types import ModuleType
from typing import Any

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Package(ModuleType):
    """A package whose ``evaluate`` stays the function when Python binds the module's name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "evaluate" and isinstance(value, ModuleType):
            value = value.evaluate
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
