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
from shared.objective import Objective, Projection, Term
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
    numbers: dict[str, str] = {}  # of the objective
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
            values[field], numbers[number] = value, text
        elif dot or Objective in (fields[field], *get_args(fields[field])):
            what = "set its numbers, as in objective.temperature=0.1, or --with a loss"
            what = f"it has no part {number!r}" if dot else what
            raise UserError(f"--set {name}: {field} is {value!r}; {what}")
        else:
            values[field] = typed(f"--set {name}", text, fields[field])
    for field, value in values.items():
        if isinstance(value, Objective):
            values[field] = _with_numbers(value, numbers)
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


def _with_numbers(objective: Objective, texts: Mapping[str, str]) -> Objective:
    """The objective with numbers changed, all at once: two may be valid only together."""
    parts: dict[str, Term | Projection] = {"": objective.loss}
    parts |= {penalty.function.__name__: penalty for penalty in objective.penalties}
    if objective.projection:
        parts["projection"] = objective.projection
    hints: dict[str, Any] = {}
    for prefix, part in parts.items():
        takes = kwargs_of(part.function if isinstance(part, Term) else LowRankProjection.__init__)
        takes |= {"weight": float} if prefix else {}
        hints |= {f"{prefix}.{name}".lstrip("."): hint for name, hint in takes.items()}
    changes: dict[str, dict[str, Any]] = {}  # by part, then by number
    for path, text in texts.items():
        if path not in hints:
            others = suggestion(path, hints, "there are")
            raise UserError(f"--set objective.{path}: {objective!r} has no {path!r}{others}")
        prefix, _, name = path.rpartition(".")
        changes.setdefault(prefix, {})[name] = typed(f"--set objective.{path}", text, hints[path])
    for prefix, numbers in changes.items():
        part = parts[prefix]
        weight = numbers.pop("weight", part.weight)
        try:
            new = dataclasses.replace(part, weight=weight, kwargs={**part.kwargs, **numbers})
            if isinstance(new, Term):
                new.check()
        except ValueError as error:
            raise UserError(str(error)) from None
        parts[prefix] = new
    projection = parts.pop("projection", None)
    loss, *penalties = parts.values()
    return Objective(loss, tuple(penalties), projection)  # type: ignore[arg-type]


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
