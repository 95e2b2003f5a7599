"""Computes an objective, and holds its trained parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from shared.distributed import all_reduce_sum, share_of_mean, world_size
from shared.functions import loaded
from shared.losses import debiased_nce, hard_nce
from shared.monitor import Monitor, Parts
from shared.objective import Objective, Term
from shared.pairs import Gather, Pairs, cosine, two_views
from shared.penalties import band_statistics, distance_polarization
from shared.precision import full_precision, upcast
from shared.projection import LowRankProjection

Similarity = Callable[[Tensor, Tensor], Tensor]


class Criterion(nn.Module):
    """Computes an :class:`Objective`, and holds its trained parameters.

    These are the projection's, a learned similarity's, and learned temperatures, which each
    criterion copies from the objective. Pass ``criterion.parameters()`` to the optimiser.

    Args:
        objective: the objective.
        dim: see :meth:`Objective.build`.
        similarity: see :meth:`Objective.build`.
        check_every: the number of steps between two checks, see :mod:`shared.monitor`.
    """

    def __init__(
        self,
        objective: Objective,
        dim: int,
        similarity: Similarity = cosine,
        check_every: int = 50,
    ) -> None:
        super().__init__()
        objective = _imported(objective)
        terms = (objective.loss, *objective.penalties)
        for item in terms:
            item.check()
        function, kwargs = objective.loss.function, objective.loss.kwargs
        needs_cosines: bool = getattr(function, "needs_cosines", lambda _: False)(kwargs)
        if similarity is not cosine and needs_cosines:
            if function in (debiased_nce, hard_nce):
                raise ValueError(
                    f"{function.__name__}'s floor n exp(-1 / temperature) holds for cosines only; "
                    f"with another similarity take floor='minimum'"
                )
            raise ValueError(
                f"{function.__name__} is defined for cosines only (it needs distances or "
                f"angles); build it with similarity=cosine"
            )
        self._objective = objective
        self.similarity = similarity
        self._term_names = _unique_names(terms)
        given = _learned_parameters(terms)
        # A parameter that terms share stays shared.
        place = {id(number): at for at, number in enumerate(given)}
        self._places = [
            {name: place[id(x)] for name, x in item.kwargs.items() if id(x) in place}
            for item in terms
        ]
        own = (nn.Parameter(x.detach().clone(), x.requires_grad) for x in given)
        self.learned = nn.ParameterList(own)
        self.projection: LowRankProjection | None = None
        if objective.projection is not None:
            self.projection = LowRankProjection(dim, **objective.projection.kwargs)
        name = self._term_names[0]
        self.monitor = Monitor(objective.loss, name, check_every, needs_cosines, self.projection)

    @property
    def objective(self) -> Objective:
        """The objective, with this criterion's own copies of its learned numbers."""
        terms = (self._objective.loss, *self._objective.penalties)
        loss, *penalties = (
            replace(item, kwargs={**item.kwargs, **self._learned_numbers(place)})
            for place, item in enumerate(terms)
        )
        return replace(self._objective, loss=loss, penalties=tuple(penalties))

    def _learned_numbers(self, place: int) -> dict[str, nn.Parameter]:
        """Those of a term, 0 being the loss, by name.

        They are looked up at each call: ``load_state_dict(assign=True)``, ``torch.func`` and a move
        from the meta device put other tensors in their place.
        """
        return {name: self.learned[at] for name, at in self._places[place].items()}

    def __repr__(self) -> str:
        named = self.similarity
        similarity = getattr(named, "__name__", type(named).__name__)
        return f"{type(self).__name__}({self.objective!r}, similarity={similarity})"

    def forward(
        self,
        pairs: Pairs,
        *others: Any,
        features: Tensor | Sequence[Tensor] | None = None,
        step: int | None = None,
        objective: Objective | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the batch (a scalar) and its parts, detached, by name.

        For pairs built with ``gather`` on several processes the loss is this process's share, as
        DistributedDataParallel expects: the mean over processes of the losses and of their
        gradients, those of this criterion's parameters included, is that of the global batch. The
        parts are those of the global batch, the same on all processes; shares in the gradient are
        means of those on each process.

        Args:
            pairs: N anchors, M candidates.
            others: must be empty; catches embeddings passed without a builder.
            features: the input of the projection, (B, H) or one such matrix for each view; None:
                the anchors.
            step: counted from 0; named in the error for embeddings that are not finite. At every
                100th step the parts of an objective of several terms include the share of each in
                the gradient on the embeddings, or on the input of the projection where they are
                computed from it: its norm over the sum of the terms' norms.
            objective: in place of the criterion's, with the same functions and other numbers.

        Raises:
            FloatingPointError: NaN or infinite embeddings or loss, on any of the processes; on an
                accelerator those of an earlier step.
            ValueError: embeddings instead of pairs, features of another width than ``dim``, a batch
                without negatives, or invalid arguments of the loss or a penalty.
        """
        if others or not isinstance(pairs, Pairs):
            raise ValueError(
                "a criterion takes pairs, which a builder makes of embeddings: "
                "criterion(two_views(first, second)), or criterion.of_views(first, second) for "
                "the loss alone"
            )
        objective = self._objective if objective is None else _imported(objective)
        with full_precision(pairs.anchor):
            pairs = _upcast_pairs(pairs)
            similarity = self.similarity(pairs.anchor, pairs.candidate)
            moment = self.monitor.begin(pairs, similarity, step)
            numbers = self._learned_numbers(0)
            value = objective.loss(pairs, similarity, **numbers)
            # Anchors without a positive are left out of the mean.
            defined = (pairs.positive.sum(1, dtype=torch.int32) > 0).sum()
            mean = of_batch = value.sum() / defined.clamp(min=1)
            if pairs.blocks:
                mean = share_of_mean(value, defined)
            terms = {self._term_names[0]: objective.loss.weight * mean}
            parts = {self._term_names[0]: mean.detach()}
            for more_terms, more_parts in (
                self._penalty_terms(objective, pairs, similarity),
                self._projection_term(objective, pairs, features),
            ):
                terms |= more_terms
                parts |= more_parts
            loss, *further_terms = terms.values()
            for term_value in further_terms:
                loss = loss + term_value
            # The input of a projection comes before the embeddings, or is made of them.
            before = () if self.projection is None or features is None else features
            parts |= self.monitor.shares(moment, terms, before, pairs)
            if pairs.blocks:
                means = all_reduce_sum(torch.stack(list(parts.values()))) / world_size()
                parts = dict(zip(parts, means, strict=True))
            with torch.no_grad():
                chance: Parts = {}
                if self.monitor.compares_with_chance(moment) and len(similarity):
                    same = similarity.mean().expand_as(similarity)
                    value = objective.loss(pairs, same, **numbers)
                    chance = {"chance": value.sum() / defined.clamp(min=1)}
            parts = self.monitor.end(
                moment, pairs, loss, parts, {"mean": of_batch.detach(), **chance}
            )
        return loss, parts

    def _penalty_terms(
        self, objective: Objective, pairs: Pairs, similarity: Tensor
    ) -> tuple[Parts, Parts]:
        """The penalties by name with their weights, and their parts."""
        terms: Parts = {}
        parts: Parts = {}
        cosines = similarity
        if objective.penalties and self.similarity is not cosine:
            cosines = cosine(pairs.anchor, pairs.candidate)
        for place, penalty in enumerate(objective.penalties, start=1):
            name = self._term_names[place]
            value = penalty(pairs, cosines, **self._learned_numbers(place))
            mean = value.mean() if len(value) else value.sum()  # 0 without anchors
            if pairs.blocks:
                mean = share_of_mean(value)
            parts[name] = mean.detach()
            terms[name] = penalty.weight * mean
            if penalty.function is distance_polarization:
                band = {k: x for k, x in penalty.kwargs.items() if k in ("lower", "upper")}
                parts |= band_statistics(pairs, cosines, **band)
        return terms, parts

    def _projection_term(
        self, objective: Objective, pairs: Pairs, features: Tensor | Sequence[Tensor] | None
    ) -> tuple[Parts, Parts]:
        """The projection's penalty with its weight, and its parts; nothing without one."""
        if self.projection is None or objective.projection is None:
            return {}, {}
        given = pairs.anchor if features is None else features
        value, parts = self.projection(given, together=pairs.blocks > 0)
        named = {f"projection_{name}": item for name, item in parts.items()}
        return {"projection": objective.projection.weight * value}, named

    if TYPE_CHECKING:  # of a module it is untyped
        __call__ = forward

    def of_views(
        self,
        first: Tensor,
        second: Tensor,
        *,
        gather: Gather | None = None,
        step: int | None = None,
    ) -> Tensor:
        """The loss of two views of each instance, a scalar; all that a plain SimCLR loop needs.

        Embeddings need not be normalised: the cosine, the default similarity, does that.

        Args:
            first: (B, D), first view of each instance.
            second: (B, D); row i is the other view of row i of ``first``.
            gather: see :func:`shared.two_views`.
            step: see :meth:`forward`.

        Raises:
            FloatingPointError: see :meth:`forward`.
            ValueError: see :meth:`forward`, or views of different shapes.
        """
        loss: Tensor = self(two_views(first, second, gather=gather), step=step)[0]
        return loss

    def checked_parts(self, parts: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """The parts of a step that a CUDA graph may have replayed, see :class:`Monitor`.

        Raises:
            FloatingPointError: NaN or infinite embeddings or loss, at an earlier step.
        """
        return self.monitor.after_replay(parts, step)


def _imported(objective: Objective) -> Objective:
    """The objective with its functions in the place of their names."""
    loss, *penalties = (
        replace(item, function=loaded(item.function))
        for item in (objective.loss, *objective.penalties)
    )
    return replace(objective, loss=loss, penalties=tuple(penalties))


def _unique_names(terms: Iterable[Term]) -> list[str]:
    """Names of the terms among the parts; that of a function's second term ends in ``_2``."""
    names = [item.function.__name__ for item in terms]
    counts = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}_{1 + n}" if n else name for name, n in zip(names, counts, strict=True)]


def _learned_parameters(terms: Iterable[Term]) -> list[nn.Parameter]:
    """The learned numbers of the terms, without repetitions."""
    numbers = [number for item in terms for number in item.kwargs.values()]
    return list(dict.fromkeys(x for x in numbers if isinstance(x, nn.Parameter)))


def _upcast_pairs(pairs: Pairs) -> Pairs:
    """The pairs in at least single precision; one tensor stays one tensor."""
    anchor = upcast(pairs.anchor)
    candidate = anchor if pairs.candidate is pairs.anchor else upcast(pairs.candidate)
    if anchor is pairs.anchor and candidate is pairs.candidate:
        return pairs
    return replace(pairs, anchor=anchor, candidate=candidate)
