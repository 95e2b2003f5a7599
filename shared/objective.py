"""An objective is plain data: a loss, penalties, an optional projection. It needs no torch.

>>> import torch
>>> from shared import distance_polarization, hard_nce, two_views
>>> objective = Objective(
...     term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0),
...     penalties=(term(distance_polarization, weight=0.1),),
... )
>>> objective
hard_nce(temperature=0.5, tau_plus=0.1, beta=1.0) + 0.1 * distance_polarization()
>>> criterion = objective.build(dim=3)
>>> loss, parts = criterion(two_views(torch.eye(3), torch.eye(3)))
>>> sorted(parts)
['distance_polarization', 'hard_nce', 'mean_cosine', 'share_in_band']
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.functions import identity, loaded
from shared.lazy import LazyImport
from shared.ranges import (
    COUNT,
    FINITE,
    FLAG,
    NOT_NEGATIVE,
    Range,
    check_known,
    check_names,
    one_of,
    optional,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor

    from shared.criterion import Criterion
    from shared.pairs import Pairs

SHARE_PREFIX = "gradient_share_"  # begins the names of the shares of the gradient among the parts
CRITERION = LazyImport("shared.criterion:Criterion")
PAIRS = ("anchor", "candidate", "positive", "negative")  # the tensors that terms are computed of
LOW_RANK = "LowRankProjection"
PROJECTION: Mapping[str, Range] = {  # its keyword arguments
    "form": one_of("paper", "authors"),
    "norm": one_of("l21", "nuclear", "none"),
    "alpha": NOT_NEGATIVE,
    "rows": optional(COUNT),
    "init": optional(one_of("identity", "normal")),
    "unit_features": FLAG,
}


@dataclass(frozen=True, repr=False)
class Term:
    """A loss or penalty function with its keyword arguments; made by :func:`term`."""

    function: "Callable[..., Tensor] | LazyImport"
    kwargs: Mapping[str, Any] = field(metadata={"key": "numbers"})  # as records call it
    weight: float = 1.0

    def __call__(self, pairs: "Pairs", similarity: "Tensor", **others: Any) -> "Tensor":
        """The value for each anchor, (N,), without the weight; ``others`` replace its arguments.

        Raises:
            ValueError: a function that returns anything else, such as the mean over the batch, or
                that changes its arguments in place: the terms after it are computed of them, too.
        """
        from torch import Tensor

        from shared.versions import versions_of

        given = {name: getattr(pairs, name) for name in PAIRS} | {"similarity": similarity}
        before = versions_of(*given.values())
        value = self.function(pairs, similarity, **{**self.kwargs, **others})
        after = versions_of(*given.values())
        for name, earlier, later in zip(given, before, after, strict=True):
            if earlier != later:
                raise ValueError(
                    f"{self.function.__name__} changes {name} in place, which penalties are "
                    f"computed of, too; change a copy, {name}.clone()"
                )
        if not isinstance(value, Tensor) or value.shape != (len(pairs.anchor),):
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"{self.function.__name__} returns a tensor with one value for each anchor, "
                f"({len(pairs.anchor)},), and takes no mean over them; got {found}"
            )
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Term):
            return NotImplemented
        ours, theirs = (
            (item.function, item.kwargs, item.weight)
            if type(self.function) is type(other.function)
            else (item.identity, item.kwargs, item.weight)
            for item in (self, other)
        )
        return ours == theirs

    @property
    def identity(self) -> str:
        """Of the function: for one of the project its name, see :mod:`shared.functions`."""
        return identity(self.function)

    def __post_init__(self) -> None:
        require("weight", self.weight, FINITE)

    def check(self) -> None:
        """Raise a ``ValueError``, see :func:`term`."""
        identity(self.function)
        function = loaded(self.function)
        if "weight" in inspect.signature(function).parameters:
            raise ValueError(
                f"{function.__name__} has an argument weight, which is what a term is multiplied "
                f"by; give it another name"
            )
        check_names(function, self.kwargs)
        for name, value in self.kwargs.items():
            if getattr(value, "requires_grad", False) and not _is_parameter(value):
                raise ValueError(
                    f"{name} requires a gradient and is not a torch.nn.Parameter, so that "
                    f"criterion.parameters() would not hold it: give the parameter itself, and "
                    f"compute its exponential or the like in a function of your own"
                )
        if check_kwargs := getattr(function, "check_kwargs", None):
            check_kwargs(self.kwargs)

    def __repr__(self) -> str:
        return _call_text(self.weight, self.function.__name__, self.kwargs)


def term(
    function: "Callable[..., Tensor] | LazyImport", /, *, weight: float = 1.0, **kwargs: Any
) -> Term:
    """A :class:`Term`, checked against the function's signature and ranges.

    A temperature given as ``nn.Parameter`` is learned: every criterion has its own copy. A function
    that is yet to be imported is checked when a criterion is built.

    Raises:
        ValueError: a function that another process cannot import, such as a lambda; an unknown or
            missing keyword argument, or one out of range; a tensor that requires a gradient and is
            no parameter; a function that calls an argument ``weight``.
    """
    made = Term(function, kwargs, weight)
    if not isinstance(function, LazyImport) or function.is_imported:
        made.check()
    return made


@dataclass(frozen=True, repr=False)
class Projection:
    """A low-rank projection and its weight.

    ``kwargs`` are those of :class:`shared.projection.LowRankProjection`.

    Raises:
        ValueError: a weight that is not finite, arguments that the projection does not take, or
            one out of range.
    """

    weight: float = 0.1
    kwargs: Mapping[str, Any] = field(default_factory=dict, metadata={"key": "options"})

    def __post_init__(self) -> None:
        require("weight", self.weight, FINITE)
        check_projection(self.kwargs)

    def __repr__(self) -> str:
        return _call_text(self.weight, LOW_RANK, self.kwargs)


def check_projection(kwargs: Mapping[str, Any]) -> None:
    """Raise a ``ValueError`` for invalid arguments of a low-rank projection."""
    check_known(LOW_RANK, kwargs, PROJECTION)
    for name, value in kwargs.items():
        require(name, value, PROJECTION[name])
    norm = kwargs.get("norm", "l21")
    if kwargs.get("form") == "authors" and norm != "none":
        raise ValueError(f"the authors' form has no norm of L; got norm {norm!r}")


@dataclass(frozen=True, repr=False)
class Objective:
    """The training objective: ``mean loss + sum weight * mean penalty + weight * projection``.

    Raises:
        ValueError: a loss or penalty that is not a :class:`Term`.
    """

    loss: Term
    penalties: tuple[Term, ...] = ()
    projection: Projection | None = None

    def __post_init__(self) -> None:
        for item in (self.loss, *self.penalties):
            if not isinstance(item, Term):
                name = getattr(item, "__name__", repr(item))
                raise ValueError(
                    f"an objective is made of terms, a function with its arguments: take "
                    f"term({name}, ...) in place of {name}"
                )

    @property
    def synchronises(self) -> bool:
        """Whether computing it waits for an accelerator, so that no CUDA graph can capture it.

        The solver of :func:`shared.losses.max_margin` and the singular values of a nuclear norm do.
        The periodic checks of the criterion and of the projection are not meant: a capture omits
        them.
        """
        projection = self.projection
        nuclear = projection is not None and projection.kwargs.get("norm") == "nuclear"
        return self.loss.identity == "max_margin" or nuclear

    def build(self, dim: int, similarity: "Callable[..., Tensor] | None" = None) -> "Criterion":
        """The :class:`shared.criterion.Criterion` for features of width ``dim``.

        Args:
            dim: H, width of the features that a projection works on.
            similarity: (N, D), (M, D) -> (N, M); may be a module with parameters. None: cosines.

        Raises:
            ValueError: a loss that is not defined for this similarity.
        """
        options = {} if similarity is None else {"similarity": similarity}
        built: Criterion = CRITERION(self, dim, **options)
        return built

    def __repr__(self) -> str:
        parts = (self.loss, *self.penalties, self.projection)
        return " + ".join(repr(part) for part in parts if part is not None)


def _is_parameter(value: Any) -> bool:
    from torch import nn

    return isinstance(value, nn.Parameter)


def _call_text(weight: float, name: str, kwargs: Mapping[str, Any]) -> str:
    shown = (
        (key, "learned" if hasattr(x, "requires_grad") else repr(x)) for key, x in kwargs.items()
    )
    call = f"{name}({', '.join(f'{key}={text}' for key, text in shown)})"
    return call if weight == 1 else f"{weight} * {call}"
