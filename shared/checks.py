"""Validation of the arguments of losses and penalties, and of the words of a configuration.

Shapes: N anchors, M candidates. Checks that would wait for an accelerator run on the CPU only.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from shared.pairs import Pairs, readable
from shared.precision import full_precision, upcast

Temperature = float | Tensor
"""A number, or a scalar tensor that may be learned (as CLIP does)."""

Function = TypeVar("Function", bound=Callable[..., Any])

COSINE_SLACK = 1e-3  # rounding moves cosines out of [-1, 1], in single precision by 1e-6


@dataclass(frozen=True)
class Range:
    """The allowed values of an argument, and the words for an error, which follow its name."""

    words: str
    holds: Callable[[Any], bool]


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


def _is_temperature(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return POSITIVE.holds(value)
    if value.ndim or not value.is_floating_point():
        raise ValueError(
            f"a learned temperature is a scalar tensor of floating-point numbers; "
            f"got {value.dtype} of shape {tuple(value.shape)}"
        )
    return not readable(value) or 0 < float(value.detach()) < math.inf


TEMPERATURE = Range(POSITIVE.words, _is_temperature)


def require(name: str, value: Any, allowed: Range) -> None:
    """Raise a ``ValueError`` that names the argument unless its value is in the range."""
    if not allowed.holds(value):
        shown = value.item() if isinstance(value, Tensor) and not value.ndim else value
        raise ValueError(f"{name} {allowed.words}; got {shown!r}")


@dataclass(frozen=True)
class Use:
    """Fields of a configuration that have an effect only under a condition.

    Args:
        fields: their names.
        holds: whether a configuration uses them.
        words: the condition, in words that follow "needs".
    """

    fields: tuple[str, ...]
    holds: Callable[[Any], bool]
    words: str


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
    except NameError:  # of a user's class, a type that is known in its function alone
        return
    for name, hint in hints.items():
        value = getattr(config, name)
        if not _fits(value, hint):
            known = ", ".join(map(str, _words(hint)))
            raise ValueError(f"{name} is one of {known}; got {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is one of the words of a type hint, if that has words."""
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


def check_names(
    function: Callable[..., Any], numbers: Mapping[str, Any], called: str | None = None
) -> None:
    """Raise a ``ValueError`` unless the function takes these keyword arguments.

    ``called`` is the function's name in the message, by default its own.
    """
    called = called or function.__name__
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    if unknown := set(numbers) - set(known):
        takes = ", ".join(sorted(known)) or "none: keyword-only arguments, after a *, are numbers"
        raise ValueError(f"{called} takes no {', '.join(sorted(unknown))}; it takes {takes}")
    needed = {name for name, value in known.items() if value is inspect.Parameter.empty}
    if missing := needed - set(numbers):
        raise ValueError(f"{called} needs {', '.join(sorted(missing))}")


def checked(
    *rules: Callable[[Mapping[str, Any]], None],
    cosines: Callable[[Mapping[str, Any]], bool] | bool = False,
    negatives: bool = False,
    **ranges: Range,
) -> Callable[[Function], Function]:
    """Check the arguments of a loss or penalty, and compute it in at least single precision.

    The checked function has three further attributes. Two take the numbers as a mapping:
    ``check_kwargs`` raises what the call would raise for them (:func:`shared.objective.term` uses
    it), and ``needs_cosines`` returns whether similarities have to be cosines. The third,
    ``needs_negatives``, is ``negatives``.

    Args:
        rules: checks of several numbers together.
        cosines: whether similarities have to be cosines; a function if that depends on the numbers.
        negatives: whether the loss needs negatives.
        ranges: of single numbers, by name.

    Raises:
        ValueError: by the checked function, for arguments that are missing, unknown or out of
            range, a similarity that is not a floating-point (N, M) matrix, or (on the CPU) numbers
            that are not cosines.
    """

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        keywords = [item for item in parameters if item.kind is item.KEYWORD_ONLY]
        defaults = {item.name: item.default for item in keywords if item.default is not item.empty}
        allowed = {item.name for item in keywords}
        needed = allowed - set(defaults)

        def check_kwargs(kwargs: Mapping[str, Any]) -> None:
            kwargs = {**defaults, **kwargs}
            for name, allowed in ranges.items():
                if name in kwargs:
                    require(name, kwargs[name], allowed)
            for rule in rules:
                rule(kwargs)

        def needs_cosines(kwargs: Mapping[str, Any]) -> bool:
            return cosines({**defaults, **kwargs}) if callable(cosines) else cosines

        name = function.__name__

        def wrapper(pairs: Pairs, similarity: Tensor | None = None, **kwargs: Any) -> Any:
            if not isinstance(pairs, Pairs):
                raise ValueError(
                    f"{name} takes pairs and their similarities, which a builder makes of "
                    f"embeddings: pairs = two_views(first, second); got {type(pairs).__name__}"
                )
            if not isinstance(similarity, Tensor):
                raise ValueError(
                    f"{name} needs the pairs' similarities: "
                    f"{name}(pairs, cosine(pairs.anchor, pairs.candidate), ...)"
                )
            if kwargs.keys() - allowed or needed - kwargs.keys():
                check_names(function, kwargs)
            check_kwargs(kwargs)
            check_similarity(pairs, similarity)
            if needs_cosines(kwargs) and readable(similarity):
                check_cosines(pairs, similarity)
            with full_precision(similarity):
                return function(pairs, upcast(similarity), **kwargs)

        functools.update_wrapper(wrapper, function)
        vars(wrapper).update(
            check_kwargs=check_kwargs, needs_cosines=needs_cosines, needs_negatives=negatives
        )
        return cast(Function, wrapper)

    return decorate


def check_similarity(pairs: Pairs, similarity: Tensor) -> None:
    """Raise a ``ValueError`` unless ``similarity`` is a floating-point (N, M) matrix."""
    shape = tuple(pairs.positive.shape)
    if tuple(similarity.shape) != shape:
        raise ValueError(
            f"similarity has a row for each anchor and a column for each candidate, {shape}; "
            f"got {tuple(similarity.shape)}"
        )
    if not similarity.is_floating_point():
        raise ValueError(f"similarity holds floating-point numbers; got {similarity.dtype}")


def check_negatives(name: str, pairs: Pairs) -> None:
    """Raise a ``ValueError`` if no anchor, of one positive each, has a negative.

    ``name`` is that of the loss. On an accelerator it waits for the device.
    """
    # Nearly always the first anchor has a negative, and nothing else is read.
    if not len(pairs.anchor) or pairs.negative[0].any() or pairs.negative.any():
        return
    if pairs.positives().shape[1] > 1:
        return
    rows = pairs.candidate
    if len(rows) > 2 and (rows == rows[0]).all():
        raise ValueError(
            f"{name} compares with negatives, and all {len(rows)} candidates are equal, so that "
            f"they are copies of one another: did the encoder collapse? Find out why, or leave "
            f"out ignore_duplicates"
        )
    raise ValueError(
        f"{name} compares with negatives, and a batch of {len(pairs.anchor)} anchors and "
        f"{len(pairs.candidate)} candidates has none: use a larger batch, and omit a last "
        f"one that is too small (drop_last=True)"
    )


def check_cosines(pairs: Pairs, similarity: Tensor) -> None:
    """Raise a ``ValueError`` if a positive's or a negative's similarity is not a cosine.

    NaN passes, since :class:`shared.objective.Criterion` reports it. The matrix is read once; on an
    accelerator it waits for the device.
    """
    values = similarity.detach()
    limit = 1 + max(COSINE_SLACK, 2 * torch.finfo(values.dtype).eps)
    if not values.numel():
        return
    lowest, highest = values.aminmax()
    if lowest >= -limit and highest <= limit:
        return
    outside = (values.abs() > limit) & (pairs.positive | pairs.negative)
    if outside.any():
        raise ValueError(
            f"similarity holds cosines here; got {float(values[outside][0]):.4g}: use "
            f"shared.cosine, not divided by the temperature"
        )
