"""Upgrades of older configurations to today's form.

A record stays valid as long as its meaning is unchanged, even if the code is renamed. A field that
was added later says which value older records have::

    symmetric: bool = added(False, was=True)  # runs from before the field had both directions

Renames and moves are in the :class:`History` of a domain, which its configurations have as
``history: ClassVar[History]``; those of the core, which all domains share, are in :data:`CORE`. The
core declares an added field by ``field(default=..., metadata={"was": ...})``.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from shared.experiment.tables import OPTION, canonical

WAS = "was"
FUNCTION = re.compile("(.+)@([0-9a-f]{12})[0-9a-f]{52}")  # of shared.functions.identity
NOTHING: Final = object()


@dataclass(frozen=True)
class History:
    """Renames since older records were written; applied from first to last.

    An old name never gets a new meaning: it cannot be declared again.

    Args:
        renamed: ``"Class.old.path"`` to ``"new.path"``, both below a dataclass of that name; a
            path leads through mappings and dataclasses.
        values: ``"Class.path"`` to the old names of its values, each with today's name.
        removed: ``"Class.path"`` to the value with which a run equals one without the field;
            records with another value are stale.
        functions: old names of functions of the project to new ones.
        numbers: ``"function.old"`` to the new name of a function's argument, under the function's
            current name.

    Raises:
        ValueError: a value that is listed as both old and new.
    """

    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    removed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    functions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    numbers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for path, names in self.values.items():
            if both := sorted(names.keys() & set(names.values())):
                raise ValueError(f"values: {both[0]!r} is an old and a new value of {path}")


CORE = History()


def added(
    default: Any = dataclasses.MISSING, *, was: Any, default_factory: Any = dataclasses.MISSING
) -> Any:
    """A field that older records lack.

    Args:
        default: of the field.
        was: the value of runs from before the field existed.
        default_factory: makes the default, in place of ``default``.
    """
    field: Any = dataclasses.field  # its types allow only one of the two
    return field(default=default, default_factory=default_factory, metadata={WAS: was})


def option(default: Any) -> Any:
    """A field that is left out of the canonical form while it has its default, as in older runs.

    So the hashes and folders of runs that do not use it stay as they were.
    """
    return dataclasses.field(default=default, metadata={OPTION: True})


def upgraded_config(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """A canonical configuration of any age in today's form; unknown keys stay."""
    return _object(canonical(config), kind, _histories(kind))


def differences(config: Mapping[str, Any], today: Any) -> list[str]:
    """Where ``config``, of any age, differs from ``today``: one phrase for each key.

    Args:
        config: canonical, as it was written.
        today: a configuration.
    """
    there, here = upgraded_config(config, type(today)), canonical(today)
    return [f"{path}: {_compared(*pair)}" for path, *pair in differing(there, here)]


def form_of(kinds: Iterable[type]) -> str:
    """A digest of everything that :func:`upgraded_config` uses for these classes."""
    waiting, found = list(kinds), []
    for kind in waiting:
        fields = [
            (item.name, canonical(item.metadata.get(WAS))) for item in dataclasses.fields(kind)
        ]
        found.append([kind.__name__, repr(_histories(kind)), fields])
        for part in _parts_of(hint for hint, _ in _fields(kind).values()):
            if isinstance(part, type) and is_dataclass(part) and part not in waiting:
                waiting.append(part)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _parts_of(hints: Iterable[Any]) -> Iterator[Any]:
    """Type hints and their arguments, recursively."""
    for hint in hints:
        yield hint
        yield from _parts_of(get_args(hint))


def _histories(kind: type) -> tuple[History, ...]:
    return (CORE, getattr(kind, "history", History()))


def _object(value: dict[str, Any], kind: type, histories: tuple[History, ...]) -> dict[str, Any]:
    """The fields of a dataclass, in place."""
    names = {each.__name__ for each in kind.__mro__}
    for history in histories:
        for path, new in history.renamed.items():
            owner, *old = path.split(".")
            if owner in names:
                _move(value, old, new.split("."))
        for path, called in history.values.items():
            owner, *at = path.split(".")
            if owner in names and isinstance(_at(value, at), str) and _at(value, at) in called:
                _at(value, at[:-1])[at[-1]] = called[_at(value, at)]
        for path, gone in history.removed.items():
            owner, *old = path.split(".")
            if owner in names and _at(value, old) == canonical(gone):
                _take(value, old)
    for name, (hint, was) in _fields(kind).items():
        if name in value:
            value[name] = _value(value[name], hint, histories)
        elif was is not NOTHING:
            value[name] = canonical(was)
    if isinstance(value.get("function"), str) and isinstance(value.get("numbers"), dict):
        for history in histories:
            for old_name, new in history.functions.items():
                if value["function"] == old_name:
                    value["function"] = new
            for path, new in history.numbers.items():
                function, old_name = path.split(".")
                if function == value["function"]:
                    _move(value["numbers"], [old_name], [new])
    return value


def _value(value: Any, hint: Any, histories: tuple[History, ...]) -> Any:
    """A value of a field that is declared as ``hint``."""
    if not isinstance(value, (dict, list)):
        return value
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if isinstance(value, dict) and isinstance(option, type) and is_dataclass(option):
            return _object(value, option, histories)
        if isinstance(value, list) and get_origin(option) is tuple:
            return [_value(each, get_args(option)[0], histories) for each in value]
    return value


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, Any]]:
    """By name of each field its type, and what it was in runs from before it was there."""
    hints = get_type_hints(kind)
    return {
        item.name: (hints[item.name], item.metadata.get(WAS, NOTHING))
        for item in dataclasses.fields(kind)
    }


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value.get(name, NOTHING) if isinstance(value, dict) else NOTHING
    return value


def _take(value: dict[str, Any], path: list[str]) -> Any:
    return _at(value, path[:-1]).pop(path[-1])


def _move(value: dict[str, Any], old: list[str], new: list[str]) -> None:
    """Move the value at ``old``, if there is one; never overwrite."""
    if _at(value, old) is NOTHING or _at(value, new) is not NOTHING:
        return
    target = value
    for name in new[:-1]:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            return
    target[new[-1]] = _take(value, old)


def differing(there: Any, here: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path and both values of every difference between two canonical values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in sorted(there.keys() | here.keys()):
            pair = there.get(name, NOTHING), here.get(name, NOTHING)
            yield from differing(*pair, f"{path}.{name}" if path else name)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, pair in enumerate(zip(there, here, strict=True)):
            yield from differing(*pair, f"{path}.{number}")
    elif there != here:
        yield path, there, here


def _compared(there: Any, here: Any) -> str:
    """``3 there, 4 here``; the name of two functions with one name only once."""
    first, second = shown(there), "no such key" if here is NOTHING else shown(here)
    start = first.rpartition(" ")[0]
    if start.endswith(" with source") and second.startswith(start):
        second = second.removeprefix(start).strip()
    return f"{first} there, {second} here"


def shown(value: Any) -> str:
    """A canonical value as one short line."""
    if value is NOTHING:
        return "nothing"
    if isinstance(value, str) and (found := FUNCTION.fullmatch(value)):
        return "{} with source {}...".format(*found.groups())
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
