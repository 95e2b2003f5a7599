"""Validation of the arguments of losses and penalties.

Shapes: N anchors, M candidates. Checks that would wait for an accelerator run on the CPU only.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from shared.pairs import Pairs, readable
from shared.precision import full_precision, upcast
from shared.ranges import POSITIVE, Range, check_names, require

Temperature = float | Tensor
"""A number, or a scalar tensor that may be learned (as CLIP does)."""

Function = TypeVar("Function", bound=Callable[..., Any])

COSINE_SLACK = 1e-3  # rounding moves cosines out of [-1, 1], in single precision by 1e-6


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

    NaN passes, since :class:`shared.criterion.Criterion` reports it. The matrix is read once; on an
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
