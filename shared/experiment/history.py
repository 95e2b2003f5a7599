"""Configurations of earlier days, brought to the form that they have today.

A record counts as long as its meaning is unchanged, whatever the code is called by now. What an
older record has without saying so stands beside the field that was added later::

    symmetric: bool = added(False, was=True)  # runs from before the field had both directions

Renames and moves stand in the one :class:`History` of a domain, which its configurations carry as
``history: ClassVar[History]``; those of the core, which all domains share, in :data:`CORE`. The
core itself declares an added field by ``field(default=..., metadata={"was": ...})``.
"""

import copy
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from shared.experiment.tables import NOT_WRITTEN, canonical

WAS = "was"
FUNCTION = re.compile("(.+)@([0-9a-f]{12})[0-9a-f]{52}")  # of shared.functions.identity
NOTHING: Final = object()


@dataclass(frozen=True)
class History:
    """What was called otherwise in older records; applied from first to last.

    A renaming never gives an old name a new meaning: a key that stands here as old cannot be
    declared again.

    Args:
        renamed: ``"Class.old.path"`` to ``"new.path"``, both below a dataclass of that name; a
            path leads through mappings and dataclasses.
        values: ``"Class.path"`` to what its values were called, each with its name of today.
        removed: ``"Class.path"`` to the one value that a run could have and still be what a run
            without the field is; records with another value do not count.
        functions: old names of functions of the project to new ones.
        numbers: ``"function.old"`` to the new name of a function's number; the function by its
            name of today.

    Raises:
        ValueError: a value that is both an old and a new one.
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
    default: Any = dataclasses.MISSING,
    *,
    was: Any,
    default_factory: Any = dataclasses.MISSING,
    optional: bool = False,
) -> Any:
    """A field that older records lack.

    Args:
        default: of the field.
        was: the value that runs had from before the field was there.
        default_factory: makes the default, in place of ``default``.
        optional: not written while it is None, so that the keys of all other runs stay as they are.
    """
    field: Any = dataclasses.field  # whose types know one of the two
    metadata = {NOT_WRITTEN: "while None"} if optional else {WAS: was}
    return field(default=default, default_factory=default_factory, metadata=metadata)


def upgraded_config(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """A canonical configuration of any age as it would be today; unknown keys stay."""
    return _object(copy.deepcopy(dict(config)), kind, _histories(kind))


def differences(config: Mapping[str, Any], today: Any) -> list[str]:
    """What ``config``, of any age, says otherwise than ``today``: one phrase for each key.

    Args:
        config: canonical, as it was written.
        today: a configuration.
    """
    there, here = upgraded_config(config, type(today)), canonical(today)
    return [f"{path}: {_compared(*pair)}" for path, *pair in differing(there, here)]


def form_of(kinds: Iterable[type]) -> str:
    """A digest of what :func:`upgraded_config` goes by, for some classes of configurations."""
    waiting, found = list(kinds), []
    for kind in waiting:
        fields = [
            (item.name, canonical(item.metadata.get(WAS))) for item in dataclasses.fields(kind)
        ]
        found.append([kind.__name__, repr(_histories(kind)), fields])
        for part in _parts_of(list(_hints(kind).values())):
            if isinstance(part, type) and is_dataclass(part) and part not in waiting:
                waiting.append(part)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _parts_of(hints: Iterable[Any]) -> Iterator[Any]:
    """Hints, and what they are made of."""
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
    hints = _hints(kind)
    for item in dataclasses.fields(kind):
        if item.name in value:
            value[item.name] = _value(value[item.name], hints[item.name], histories)
        elif WAS in item.metadata:
            value[item.name] = canonical(item.metadata[WAS])
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
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if isinstance(value, dict) and isinstance(option, type) and is_dataclass(option):
            return _object(value, option, histories)
        if isinstance(value, list) and get_origin(option) is tuple:
            return [_value(each, get_args(option)[0], histories) for each in value]
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value.get(name, NOTHING) if isinstance(value, dict) else NOTHING
    return value


def _take(value: dict[str, Any], path: list[str]) -> Any:
    return _at(value, path[:-1]).pop(path[-1])


def _move(value: dict[str, Any], old: list[str], new: list[str]) -> None:
    """Move what is at ``old``, if anything is; never over something."""
    if _at(value, old) is NOTHING or _at(value, new) is not NOTHING:
        return
    target = value
    for name in new[:-1]:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            return
    target[new[-1]] = _take(value, old)


def differing(there: Any, here: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path and both values of every place where two canonical values differ."""
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
    """``3 there, 4 here``; of functions of one name, the name once."""
    first, second = shown(there), "no such key" if here is NOTHING else shown(here)
    start = first.rpartition(" ")[0]
    if start.endswith(" with source") and second.startswith(start):
        second = second.removeprefix(start).strip()
    return f"{first} there, {second} here"


def shown(value: Any) -> str:
    """A canonical value in one short line."""
    if value is NOTHING:
        return "nothing"
    if isinstance(value, str) and (found := FUNCTION.fullmatch(value)):
        return "{} with source {}...".format(*found.groups())
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
