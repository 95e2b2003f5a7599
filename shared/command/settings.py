"""Settings given as text, ``NAME=VALUE``, converted to the type of what they set."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shared.errors import UserError, suggestion
from shared.experiment.config import AnyConfig
from shared.experiment.initial import InitialWeights
from shared.functions import loaded
from shared.objective import Objective, Term
from shared.projection import LowRankProjection
from shared.ranges import require_ranges

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
WORDS |= {InitialWeights: "a file or folder of weights"}
SWITCH = {"true": True, "false": False}
OWN = ("folder:", "file:")  # before the path of data of the user's, in a configuration


def with_settings(config: AnyConfig, settings: Sequence[str]) -> AnyConfig:
    """``config`` with settings such as ``epochs=3`` and ``objective.temperature=0.1`` applied.

    ``objective.NUMBER`` is a number of the loss; ``objective.PENALTY.NUMBER`` one of a penalty or,
    as ``objective.projection.NUMBER``, of the projection; both also have a ``weight``.
    """
    hints = get_type_hints(type(config))
    fields = {item.name: hints[item.name] for item in dataclasses.fields(config)}
    names = [setting.partition("=")[0].strip() for setting in settings]
    values: dict[str, Any] = {}
    numbers: dict[str, dict[str, str]] = {}  # of an objective, by field, then by name
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if names.count(name) > 1:
            raise UserError(f"--set {name} is given {names.count(name)} times; give it once")
        field, dot, number = name.partition(".")
        if not equals:
            raise UserError(f"--set {setting!r}: write it as NAME=VALUE")
        if name == "seed":
            raise UserError("--set seed: seeds are chosen with --seeds")
        if field not in fields:
            known = suggestion(field, [other for other in fields if other != "seed"], "there are")
            raise UserError(f"--set {name}: no field {field!r}{known}")
        value = getattr(config, field)
        if isinstance(value, Objective) and dot:
            numbers.setdefault(field, {})[number] = text
        elif dot or Objective in (fields[field], *get_args(fields[field])):
            what = "set its numbers, as in objective.temperature=0.1, or --with a loss"
            what = f"it has no part {number!r}" if dot else what
            raise UserError(f"--set {name}: {field} is {value!r}; {what}")
        else:
            values[field] = typed(f"--set {name}", text, fields[field])
    for field, texts in numbers.items():
        values[field] = _with_numbers(getattr(config, field), texts)
    new = dataclasses.replace(config, **values)
    try:
        require_ranges(new)
    except ValueError as error:
        raise UserError(f"--set {error}") from None
    return new


def typed(name: str, text: str, hint: Any) -> Any:
    """The value of ``text`` as something declared as ``hint``."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if text == "None" and NoneType in options:  # "none" may itself be a valid text
        return None
    for option in options:
        try:
            return _value(text, option)
        except ValueError:
            continue
    for option in options:
        if get_origin(option) is Literal:
            known = suggestion(text, map(str, get_args(option)), "it can be")
            raise UserError(f"{name}: {text!r} is not known{known}")
    wanted = " or ".join(filter(None, map(_words, options))) or "no text"
    raise UserError(f"{name} is {wanted}; got {text!r}")


def kwargs_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments of a loss or penalty, with their type hints."""
    function = loaded(function)
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # a user's function may have no types
        hints = {}
    return {
        name: hints.get(name, Any)
        for name, item in inspect.signature(function).parameters.items()
        if item.kind is inspect.Parameter.KEYWORD_ONLY
    }


def checked_term(function: Callable[..., Any], weight: float, kwargs: Mapping[str, Any]) -> Term:
    """The term; an invalid one raises a UserError."""
    try:
        made = Term(function, kwargs, weight)
        made.check()
    except ValueError as error:
        raise UserError(str(error)) from None
    return made


def _with_numbers(objective: Objective, texts: Mapping[str, str]) -> Objective:
    """The objective with numbers changed, all at once: two may be valid only together."""
    terms = {
        "": objective.loss,
        **{penalty.function.__name__: penalty for penalty in objective.penalties},
    }
    projection = objective.projection
    hints: dict[str, Any] = {}
    for prefix, part in terms.items():
        start = f"{prefix}." if prefix else ""
        hints |= {start + name: hint for name, hint in kwargs_of(part.function).items()}
        hints |= {f"{prefix}.weight": float} if prefix else {}
    if projection:
        known = kwargs_of(LowRankProjection.__init__)
        hints |= {"projection.weight": float}
        hints |= {f"projection.{name}": hint for name, hint in known.items()}
    changes: dict[str, dict[str, Any]] = {}  # by term, then by number
    for path, text in texts.items():
        if path not in hints:
            others = suggestion(path, hints, "there are")
            raise UserError(f"--set objective.{path}: {objective!r} has no {path!r}{others}")
        prefix, _, name = path.rpartition(".")
        changes.setdefault(prefix, {})[name] = typed(f"--set objective.{path}", text, hints[path])

    def new(part: Term, prefix: str = "") -> Term:
        if prefix not in changes:
            return part
        kwargs = {**part.kwargs, **changes[prefix]}
        weight = kwargs.pop("weight", part.weight) if prefix else part.weight
        return checked_term(part.function, weight, kwargs)

    if projection and "projection" in changes:
        kwargs = {**projection.kwargs, **changes["projection"]}
        weight = kwargs.pop("weight", projection.weight)
        try:
            projection = dataclasses.replace(projection, weight=weight, kwargs=kwargs)
        except ValueError as error:
            raise UserError(str(error)) from None
    penalties = tuple(new(penalty, penalty.function.__name__) for penalty in objective.penalties)
    return dataclasses.replace(
        objective, loss=new(objective.loss), penalties=penalties, projection=projection
    )


def _value(text: str, hint: Any) -> Any:
    """The value; raises ValueError if ``text`` does not fit."""
    if hint is NoneType and text.lower() == "none":
        return None
    if hint in (bool, Any) and text.lower() in SWITCH:
        return SWITCH[text.lower()]
    if hint is Any:
        if text == "None":
            return None
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return text
    if hint is InitialWeights:
        file, _, prefix = text.partition(",prefix=")
        return InitialWeights.of(Path(file), prefix or None)
    if hint is str and text.startswith(OWN):
        what, _, folder = text.partition(":")
        return f"{what}:{Path(folder).expanduser()}"
    if hint in (int, float, str):
        value = hint(text)
        if value != value:
            raise ValueError
        return value
    if get_origin(hint) is Literal:
        matching = [choice for choice in get_args(hint) if str(choice) == text]
        if not matching:
            raise ValueError
        return matching[0]
    if get_origin(hint) is tuple:
        if text[:1] in ("(", "["):  # Python's brackets would be parts of the texts
            raise ValueError
        parts = [part.strip() for part in text.split(",")] if text else []
        kinds = get_args(hint)
        if kinds[-1] is ...:
            kinds = (kinds[0],) * len(parts)
        return tuple(_value(part, kind) for part, kind in zip(parts, kinds, strict=True))
    raise ValueError


def _words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return f"{WORDS[inner].removeprefix('a ')}s joined by commas" if inner in WORDS else ""
    return "none" if hint is NoneType else WORDS.get(hint, "")
