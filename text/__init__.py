"""The text domain: quick-thoughts on books, with any objective, and the evaluation on six tasks.

The names below are imported when first used, so that planning and reporting stay quick.
``text.evaluate`` is the function, as in ``text.evaluate(encode, data_root)``, although a module
has the same name; that module's contents come with ``from text.evaluate import ...`` as usual.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from text.config import TASKS, Config
    from text.data import LAYOUTS, Task, load_task, sentences
    from text.domain import DOMAIN
    from text.encoder import (
        Encode,
        QuickThought,
        QuickThoughtConfig,
        hugging_face_encoder,
        sentence_encoder,
    )
    from text.evaluate import PROTOCOLS, evaluate, majority, tfidf
    from text.tables import TABLES
    from text.tokens import Batch, Tokens, expand, make_tokenizer, prepare
    from text.train import run

__all__ = [
    "DOMAIN",
    "LAYOUTS",
    "PROTOCOLS",
    "TABLES",
    "TASKS",
    "Batch",
    "Config",
    "Encode",
    "QuickThought",
    "QuickThoughtConfig",
    "Task",
    "Tokens",
    "evaluate",
    "expand",
    "hugging_face_encoder",
    "load_task",
    "majority",
    "make_tokenizer",
    "prepare",
    "run",
    "sentence_encoder",
    "sentences",
    "tfidf",
]

_HOMES = {
    "DOMAIN": "domain",
    "LAYOUTS": "data",
    "PROTOCOLS": "evaluate",
    "TABLES": "tables",
    "TASKS": "config",
    "Batch": "tokens",
    "Config": "config",
    "Encode": "encoder",
    "QuickThought": "encoder",
    "QuickThoughtConfig": "encoder",
    "Task": "data",
    "Tokens": "tokens",
    "evaluate": "evaluate",
    "expand": "tokens",
    "hugging_face_encoder": "encoder",
    "load_task": "data",
    "majority": "evaluate",
    "make_tokenizer": "tokens",
    "prepare": "tokens",
    "run": "train",
    "sentence_encoder": "encoder",
    "sentences": "data",
    "tfidf": "evaluate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'text' has no attribute {name!r}")
    return getattr(importlib.import_module(f"text.{_HOMES[name]}"), name)


class _Package(ModuleType):
    """A package whose ``evaluate`` stays the function when Python binds the module's name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "evaluate" and isinstance(value, ModuleType):
            value = value.evaluate
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
