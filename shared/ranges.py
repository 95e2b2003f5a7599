"""The values that arguments and the fields of configurations may have; needs no torch."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The allowed values of an argument, and the words for an error, which follow its name."""

    words: str
    holds: Callable[[Any], bool]


Pairing = Literal["both", "both_views", "first_view", "second_view"]  # shared.pairs.paired_views


def one_of(*values: str) -> Range:
    """One of these words."""
    *most, last = map(repr, values)
    return Range(f"is {', '.join(most)} or {last}", lambda x: isinstance(x, str) and x in values)


def optional(allowed: Range) -> Range:
    """The range, or None."""
    return Range(f"{allowed.words}, or None", lambda x: x is None or allowed.holds(x))


def _number(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, Real) and not isinstance(x, bool) and holds(x)


POSITIVE = Range("is positive and finite", _number(lambda x: 0 < x < math.inf))
POSITIVE_OR_INFINITE = Range("is positive", _number(lambda x: x > 0))
NOT_NEGATIVE = Range("is at least 0 and finite", _number(lambda x: 0 <= x < math.inf))
FINITE = Range("is a finite number", _number(lambda x: -math.inf < x < math.inf))
COUNT = Range(
    "is a positive whole number", _number(lambda x: isinstance(x, Integral) and int(x) > 0)
)
STEP = Range("is a whole number from 0", _number(lambda x: isinstance(x, Integral) and int(x) >= 0))
PROBABILITY = Range("is a probability below 1", _number(lambda x: 0 <= x < 1))
SHARE = Range("lies in [0, 1]", _number(lambda x: 0 <= x <= 1))
FLAG = Range("is True or False", lambda x: isinstance(x, bool))


def require(name: str, value: Any, allowed: Range) -> None:
    """Raise a ``ValueError`` that names the argument unless its value is in the range."""
    if not allowed.holds(value):
        shown = value.item() if getattr(value, "ndim", None) == 0 else value  # a scalar tensor
        raise ValueError(f"{name} {allowed.words}; got {shown!r}")


@dataclass(frozen=True)
class Use:
    """Fields of a configuration that have an effect only under a condition."""

    fields: tuple[str, ...]  # their names
    holds: Callable[[Any], bool]  # whether a configuration uses them
    words: str  # the condition, in words that follow "needs"


def require_ranges(config: Any) -> None:
    """Raise a ValueError for a field outside the range that its class gives in ``ranges``."""
    for allowed, names in getattr(config, "ranges", {}).items():
        for name in names:
            require(name, getattr(config, name), allowed)


def without_effect(config: Any, names: Iterable[str]) -> dict[str, str]:
    """Those of the fields that differ from their default and have no effect, and what they need.

    The class says so in ``uses``.
    """
    defaults = {item.name: item.default for item in fields(config)}
    return {
        name: use.words
        for use in getattr(config, "uses", ())
        for name in use.fields
        if name in names and getattr(config, name) != defaults[name] and not use.holds(config)
    }


def require_words(config: Any) -> None:
    """Raise a ``ValueError`` for a field that is declared Literal and has another value."""
    try:
        hints = get_type_hints(type(config))
    except NameError:  # the class is a user's, and its types are known only inside a function
        return
    for name, hint in hints.items():
        value = getattr(config, name)
        if not _fits(value, hint):
            known = ", ".join(map(str, _words(hint)))
            raise ValueError(f"{name} is one of {known}; got {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is one of the literals of a type hint; True for hints without literals."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(value == allowed and type(value) is type(allowed) for allowed in arguments)
    if origin in (Union, UnionType):
        return any(_fits(value, alternative) for alternative in arguments)
    if origin is tuple and isinstance(value, tuple):
        kinds = arguments[:1] * len(value) if arguments[-1:] == (...,) else arguments
        return all(map(_fits, value, kinds))
    return value is None if hint is NoneType else True


def _words(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(word for alternative in get_args(hint) for word in _words(alternative))


def check_names(function: Callable[..., Any], numbers: Mapping[str, Any]) -> None:
    """Raise a ``ValueError`` unless the function takes these keyword arguments."""
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    check_known(function.__name__, numbers, known)
    needed = {name for name, value in known.items() if value is inspect.Parameter.empty}
    if missing := needed - set(numbers):
        raise ValueError(f"{function.__name__} needs {', '.join(sorted(missing))}")


def check_known(called: str, numbers: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ``ValueError`` for a keyword argument that ``called`` does not take."""
    if unknown := set(numbers) - set(known):
        takes = ", ".join(sorted(known)) or "none: keyword-only arguments, after a *, are numbers"
        raise ValueError(f"{called} takes no {', '.join(sorted(unknown))}; it takes {takes}")
