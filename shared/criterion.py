"""Computes an objective, and holds its trained parameters."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from shared.checks import check_cosines, check_negatives
from shared.distributed import all_reduce_sum, share_of_mean, world_size
from shared.functions import loaded
from shared.late import Late
from shared.losses import debiased_nce, hard_nce, info_nce, max_margin
from shared.margins import margin_nce
from shared.notices import notice
from shared.objective import SHARE, Objective, Term
from shared.pairs import Gather, Pairs, cosine, two_views
from shared.penalties import band_statistics, distance_polarization
from shared.precision import full_precision, upcast
from shared.projection import LowRankProjection
from shared.ranges import COUNT, STEP, optional, require

Similarity = Callable[[Tensor, Tensor], Tensor]
Parts = dict[str, Tensor]

# Losses whose value for equal similarities, hence for collapsed embeddings, is the logarithm of the
# number of candidates (more with margins).
SOFTMAX = (info_nce, debiased_nce, hard_nce, margin_nce)
WARM_UP = 200  # steps before the check for a collapse
NEAR_CHANCE = 0.05  # nats
COLLAPSE_CHECKS = 3  # consecutive checks with a loss near that value, before the warning
SHARES_EVERY = 100  # steps between two measurements of the terms' shares of the gradient
DEFERRED = "deferred/"  # begins the names of what a CUDA graph computes for a later check


class Criterion(nn.Module):
    """Computes an :class:`Objective`, and holds its trained parameters.

    These are the projection's, a learned similarity's, and learned temperatures, which each
    criterion copies from the objective. Pass ``criterion.parameters()`` to the optimiser.

    Args:
        objective: the objective.
        dim: see :meth:`Objective.build`.
        similarity: see :meth:`Objective.build`.
        check_every: the number of steps between checks for NaN in the loss and for the range of
            cosines on an accelerator, where the loss is read at the call after that; on the CPU
            every step is checked. After ``WARM_UP`` steps a softmax loss is also compared with its
            value for equal similarities, and a warning is given once if the embeddings may have
            collapsed.
    """

    def __init__(
        self,
        objective: Objective,
        dim: int,
        similarity: Similarity = cosine,
        check_every: int = 50,
    ) -> None:
        super().__init__()
        require("dim", dim, COUNT)
        require("check_every", check_every, COUNT)
        if not callable(similarity):
            raise ValueError(
                f"similarity is a function of anchors and candidates; got {similarity!r}"
            )
        objective = _imported(objective)
        terms = (objective.loss, *objective.penalties)
        for item in terms:
            item.check()
        function, kwargs = objective.loss.function, objective.loss.kwargs
        needs_cosines = getattr(function, "needs_cosines", lambda _: False)
        self._needs_cosines: bool = needs_cosines(kwargs)
        if similarity is not cosine and self._needs_cosines:
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
        self.check_every = check_every
        self._checks_at_chance = 0  # in a row
        # Whether a loss of the user's is yet to have a gradient, or a notice that it has none.
        self._looks_for_gradient = "@" in objective.loss.identity
        self._deferred: list[_DeferredCheck] = []
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

    @property
    def objective(self) -> Objective:
        """The objective, with this criterion's own copies of its learned numbers."""
        terms = (self._objective.loss, *self._objective.penalties)
        loss, *penalties = (
            replace(item, kwargs={**item.kwargs, **self._learned_numbers(place)})
            for place, item in enumerate(terms)
        )
        return replace(self._objective, loss=loss, penalties=tuple(penalties))

    @objective.setter
    def objective(self, objective: Objective) -> None:
        self._objective = _imported(objective)

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

        Raises:
            FloatingPointError: NaN or infinite embeddings or loss, on any of the processes; on an
                accelerator those of an earlier step.
            ValueError: embeddings instead of pairs, features of another width than ``dim``, a step
                that is not an integer, a batch without negatives, or invalid arguments of the loss
                or a penalty.
        """
        if others or not isinstance(pairs, Pairs):
            raise ValueError(
                "a criterion takes pairs, which a builder makes of embeddings: "
                "criterion(two_views(first, second)), or criterion.of_views(first, second) for "
                "the loss alone"
            )
        require("step", step, optional(STEP))
        with full_precision(pairs.anchor):
            pairs = _upcast_pairs(pairs)
            similarity = self.similarity(pairs.anchor, pairs.candidate)
            on_cpu = similarity.device.type == "cpu"
            # A CUDA graph cannot read: it computes what every check needs, see checked_parts.
            captured = similarity.is_cuda and torch.cuda.is_current_stream_capturing()
            # On the meta device there is nothing to read.
            due = (step or 0) % self.check_every == 0 and not similarity.is_meta
            if not captured:
                self._run_deferred_checks(step)
            if on_cpu or (due and not captured):
                self._check_input(pairs, similarity, step)
            value = self._loss(pairs, similarity)
            # Anchors without a positive are left out of the mean.
            defined = _with_positive(pairs)
            mean = value.sum() / defined.clamp(min=1)
            to_check = {"mean": mean.detach()}
            if captured or (due and (step or 0) >= WARM_UP):
                to_check |= self._loss_at_chance(pairs, similarity)
            if pairs.blocks:
                mean = share_of_mean(value, defined)
            terms = {self._term_names[0]: self._objective.loss.weight * mean}
            parts = {self._term_names[0]: mean.detach()}
            for more_terms, more_parts in (
                self._penalty_terms(pairs, similarity),
                self._projection_term(pairs, features),
            ):
                terms |= more_terms
                parts |= more_parts
            loss, *further_terms = terms.values()
            for term_value in further_terms:
                loss = loss + term_value
            measured = step is not None and (captured or step % SHARES_EVERY == 0)
            if measured and (len(terms) > 1 or (on_cpu and self._looks_for_gradient)):
                embeddings = (pairs.anchor, pairs.candidate)
                # The input of a projection comes before the embeddings, or is made of them.
                before = () if self.projection is None or features is None else features
                shares = _gradient_shares(terms, before) or _gradient_shares(terms, embeddings)
                parts |= shares if len(terms) > 1 else {}
                if on_cpu:
                    self._warn_without_gradient(shares, step)
            if pairs.blocks:
                means = all_reduce_sum(torch.stack(list(parts.values()))) / world_size()
                parts = dict(zip(parts, means, strict=True))
            finite, checked = _finiteness(pairs, loss, everywhere=on_cpu or due)
            if on_cpu:
                _check_finite(finite, checked, step)
                if "chance" in to_check:
                    self._warn_if_collapsed(to_check["mean"], to_check["chance"], step)
            else:
                # Whoever reads the parts finds out, at any step.
                parts[self._term_names[0]] = parts[self._term_names[0]].where(finite, math.nan)
                to_check |= {"finite": finite.to(checked), "loss": checked}
                if captured:
                    parts |= {f"{DEFERRED}{name}": x.detach() for name, x in to_check.items()}
                elif due:
                    self._deferred.append(_DeferredCheck(step, to_check))
        return loss, parts

    def _loss(self, pairs: Pairs, similarity: Tensor) -> Tensor:
        """The loss for each anchor, (N,), without its weight."""
        return self._objective.loss(pairs, similarity, **self._learned_numbers(0))

    def _check_input(self, pairs: Pairs, similarity: Tensor, step: int | None) -> None:
        """Refuse what the loss cannot be computed of, where it may be read."""
        function = self._objective.loss.function
        if function is max_margin:
            # The factorisation on the CPU does not accept NaN.
            _check_finite(*_finiteness(pairs, similarity.sum()), step)
        if self._needs_cosines and similarity.device.type != "cpu":
            check_cosines(pairs, similarity)
        if getattr(function, "needs_negatives", False):
            check_negatives(function.__name__, pairs)

    def _penalty_terms(self, pairs: Pairs, similarity: Tensor) -> tuple[Parts, Parts]:
        """The penalties by name with their weights, and their parts."""
        terms: Parts = {}
        parts: Parts = {}
        cosines = similarity
        if self._objective.penalties and self.similarity is not cosine:
            cosines = cosine(pairs.anchor, pairs.candidate)
        for place, penalty in enumerate(self._objective.penalties, start=1):
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
        self, pairs: Pairs, features: Tensor | Sequence[Tensor] | None
    ) -> tuple[Parts, Parts]:
        """The projection's penalty with its weight, and its parts; nothing without one."""
        if self.projection is None or self._objective.projection is None:
            return {}, {}
        given = pairs.anchor if features is None else features
        value, parts = self.projection(given, together=pairs.blocks > 0)
        named = {f"projection_{name}": item for name, item in parts.items()}
        return {"projection": self._objective.projection.weight * value}, named

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
        """The parts of a step without those that a CUDA graph adds for checks, which are made here.

        A graph can neither check its loss nor omit what is due at some steps only. The code
        that replays it calls this after each step.

        Args:
            parts: of the step, which may have run eagerly.
            step: its number.

        Raises:
            FloatingPointError: NaN or infinite embeddings or loss, at an earlier step.
        """
        self._run_deferred_checks(step)
        to_check = {
            name.removeprefix(DEFERRED): part
            for name, part in parts.items()
            if name.startswith(DEFERRED)
        }
        if to_check and self.projection is not None:
            self.projection.check_norm()
        if to_check and step % self.check_every == 0:
            if step < WARM_UP:
                to_check.pop("chance", None)
            self._deferred.append(_DeferredCheck(step, to_check))
        undue = () if step % SHARES_EVERY == 0 else (SHARE,)
        return {name: x for name, x in parts.items() if not name.startswith((DEFERRED, *undue))}

    def _run_deferred_checks(self, step: int | None) -> None:
        """Read and check what an accelerator computed at steps before this one."""
        for check in [each for each in self._deferred if step is None or each.step != step]:
            self._deferred.remove(check)
            found = check.read()
            _check_finite(found["finite"] == 1, found["loss"], check.step)
            if "chance" in found:
                self._warn_if_collapsed(found["mean"], found["chance"], check.step)

    @torch.no_grad()
    def _loss_at_chance(self, pairs: Pairs, similarity: Tensor) -> dict[str, Tensor]:
        """The loss of identical embeddings, for a softmax."""
        if self._objective.loss.function not in SOFTMAX or not len(similarity):
            return {}
        value = self._loss(pairs, similarity.mean().expand_as(similarity))
        return {"chance": value.sum() / _with_positive(pairs).clamp(min=1)}

    def _warn_without_gradient(self, shares: Mapping[str, Tensor], step: int | None) -> None:
        """Warn once if a loss of the user's has no gradient before any step at which it has one."""
        name = self._term_names[0]
        share = shares.get(f"{SHARE}{name}")
        if share is None or not self._looks_for_gradient or not self._objective.loss.weight:
            return
        self._looks_for_gradient = False
        if share == 0:
            notice(
                f"at step {step} the gradient of {name} on the embeddings is 0: it trains nothing; "
                f"look for what detaches, rounds or clamps"
            )

    def _warn_if_collapsed(self, mean: Tensor, chance: Tensor, step: int | None) -> None:
        """Warn once if the loss stays near that of identical embeddings."""
        self._checks_at_chance = self._checks_at_chance + 1 if mean > chance - NEAR_CHANCE else 0
        if self._checks_at_chance == COLLAPSE_CHECKS:
            notice(
                f"at step {step} the contrastive loss is {float(mean):.2f}; identical embeddings "
                f"would give {float(chance):.2f}: they may have collapsed; lower the learning rate"
            )


class _DeferredCheck:
    """Scalars of one step on an accelerator, to be checked at a later step, when they are here."""

    def __init__(self, step: int | None, values: Mapping[str, Tensor]) -> None:
        self.step, self._names, self._late = step, tuple(values), Late(*values.values())

    def read(self) -> dict[str, Tensor]:
        """The scalars by name, on the host."""
        return dict(zip(self._names, map(torch.tensor, self._late.read()), strict=True))


def _gradient_shares(
    terms: Mapping[str, Tensor], embeddings: Tensor | Sequence[Tensor]
) -> dict[str, Tensor]:
    """The share of each term in the gradient on the embeddings; none where it is not taken.

    None are given without a graph, nor where it does not lead from every term to ``embeddings``, as
    for features whose chunks have backward passes of their own, nor where it leads through a
    checkpoint with ``use_reentrant=True``, which only a whole backward pass can cross.
    """
    several = [embeddings] if isinstance(embeddings, Tensor) else embeddings
    inputs = list({id(each): each for each in several if each.requires_grad}.values())
    if not inputs or not torch.is_grad_enabled():
        return {}
    norms: list[Tensor] = []
    for value in terms.values():
        if not value.requires_grad:
            norms.append(value.new_zeros(()))
            continue
        try:
            found = torch.autograd.grad(value, inputs, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            return {}
        some = [each.float().norm() for each in found if each is not None]
        if not some:
            return {}
        norms.append(torch.stack(some).norm().to(value))
    every = torch.stack(norms)
    shares = every / every.sum().clamp(min=torch.finfo(every.dtype).tiny)
    return {f"{SHARE}{name}": share for name, share in zip(terms, shares, strict=True)}


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


def _finiteness(pairs: Pairs, value: Tensor, *, everywhere: bool = True) -> tuple[Tensor, Tensor]:
    """Whether the embeddings are finite, and a value that is as well where all processes' are."""
    # Embeddings are checked as well: anchors without a positive have loss 0 whatever they are.
    finite = torch.isfinite(pairs.anchor).all()
    if pairs.candidate is not pairs.anchor:
        finite = finite & torch.isfinite(pairs.candidate).all()
    value = torch.where(finite, value.detach(), math.nan)
    # On all processes at once, so that none waits for one that has stopped.
    return finite, all_reduce_sum(value) if pairs.blocks and everywhere else value


def _check_finite(finite: Tensor, value: Tensor, step: int | None) -> None:
    if torch.isfinite(value):
        return
    where = "" if step is None else f" at step {step}"
    what, cause = "embeddings are NaN or infinite", "the input"
    if finite:
        what, cause = "the loss is not finite", "the loss function"
    raise FloatingPointError(f"{what}{where}; lower the learning rate or check {cause}")


def _with_positive(pairs: Pairs) -> Tensor:
    """The number of anchors that have a positive, a scalar."""
    return (pairs.positive.sum(1, dtype=torch.int32) > 0).sum()


def _upcast_pairs(pairs: Pairs) -> Pairs:
    """The pairs in at least single precision; one tensor stays one tensor."""
    anchor = upcast(pairs.anchor)
    candidate = anchor if pairs.candidate is pairs.anchor else upcast(pairs.candidate)
    if anchor is pairs.anchor and candidate is pairs.candidate:
        return pairs
    return replace(pairs, anchor=anchor, candidate=candidate)
