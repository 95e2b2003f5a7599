"""What watches a training: finite numbers, a collapse, and the terms' shares of the gradient.

On the CPU every step is checked. On an accelerator, which reading would keep waiting, the loss of
every so many steps is read at the call after that; a CUDA graph, which cannot read at all, computes
what every check needs, and :meth:`Monitor.after_replay` checks it. After ``WARM_UP`` steps a loss
with a softmax is also compared with its value for equal similarities, and a warning is given once
if the embeddings may have collapsed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shared.checks import check_cosines, check_negatives
from shared.distributed import all_reduce_sum
from shared.late import Late
from shared.losses import debiased_nce, hard_nce, info_nce, max_margin
from shared.margins import margin_nce
from shared.notices import notice
from shared.objective import SHARE_PREFIX, Term
from shared.pairs import Pairs
from shared.projection import LowRankProjection

Parts = dict[str, Tensor]

# Losses whose value for equal similarities, hence for collapsed embeddings, is the logarithm of the
# number of candidates (more with margins).
SOFTMAX = (info_nce, debiased_nce, hard_nce, margin_nce)
WARM_UP = 200  # steps before the check for a collapse
NEAR_CHANCE = 0.05  # nats
COLLAPSE_CHECKS = 3  # consecutive checks with a loss near that value, before the warning
SHARES_EVERY = 100  # steps between two measurements of the terms' shares of the gradient
DEFERRED = "deferred/"  # begins the names of what a CUDA graph computes for a later check


class Moment(NamedTuple):
    """A step, and what may be read at it."""

    step: int | None
    on_cpu: bool  # anything
    captured: bool  # nothing, now or when it is replayed
    due: bool  # the checks at every so many steps


class Monitor:
    """Watches the steps of one criterion.

    Args:
        loss: the objective's.
        name: of the loss among the parts.
        check_every: the number of steps between two checks on an accelerator.
        needs_cosines: whether the loss is defined for cosines only.
        projection: whose collapse is noticed, too.
    """

    def __init__(
        self,
        loss: Term,
        name: str,
        check_every: int,
        needs_cosines: bool,
        projection: LowRankProjection | None,
    ) -> None:
        self.loss, self.name, self.check_every = loss, name, check_every
        self.needs_cosines, self.projection = needs_cosines, projection
        self._warns_of_projection = True
        self._checks_at_chance = 0  # in a row
        # Whether a loss of the user's is yet to have a gradient, or a notice that it has none.
        self._looks_for_gradient = "@" in loss.identity
        self._deferred: list[_DeferredCheck] = []

    def begin(self, pairs: Pairs, similarity: Tensor, step: int | None) -> Moment:
        """What may be read; checks earlier steps, and what the loss is computed of."""
        moment = Moment(
            step,
            on_cpu=similarity.device.type == "cpu",
            captured=similarity.is_cuda and torch.cuda.is_current_stream_capturing(),
            # On the meta device there is nothing to read.
            due=(step or 0) % self.check_every == 0 and not similarity.is_meta,
        )
        if not moment.captured:
            self._run_deferred_checks(step)
        if moment.on_cpu or (moment.due and not moment.captured):
            if self.loss.function is max_margin:
                # The factorisation on the CPU does not accept NaN.
                _check_finite(*_finiteness(pairs, similarity.sum()), step)
            if self.needs_cosines and not moment.on_cpu:
                check_cosines(pairs, similarity)
            if getattr(self.loss.function, "needs_negatives", False):
                check_negatives(self.loss.function.__name__, pairs)
        return moment

    def compares_with_chance(self, moment: Moment) -> bool:
        """Whether the loss of identical embeddings is to be computed."""
        late = moment.due and (moment.step or 0) >= WARM_UP
        return (moment.captured or late) and self.loss.function in SOFTMAX

    def shares(
        self,
        moment: Moment,
        terms: Mapping[str, Tensor],
        before: Tensor | Sequence[Tensor],
        pairs: Pairs,
    ) -> Parts:
        """The share of each of several terms in the gradient, at the steps at which it is measured.

        It is that on the embeddings, or on what lies before them.
        """
        step, looks = moment.step, moment.on_cpu and self._looks_for_gradient
        measured = step is not None and (moment.captured or step % SHARES_EVERY == 0)
        if not measured or not (len(terms) > 1 or looks):
            return {}
        shares = _gradient_shares(terms, before)
        shares = shares or _gradient_shares(terms, (pairs.anchor, pairs.candidate))
        share = shares.get(f"{SHARE_PREFIX}{self.name}")
        if looks and share is not None and self.loss.weight:
            self._looks_for_gradient = False
            if share == 0:
                notice(
                    f"at step {step} the gradient of {self.name} on the embeddings is 0: it trains "
                    f"nothing; look for what detaches, rounds or clamps"
                )
        return shares if len(terms) > 1 else {}

    def end(
        self,
        moment: Moment,
        pairs: Pairs,
        loss: Tensor,
        parts: Parts,
        to_check: Mapping[str, Tensor],
    ) -> Parts:
        """Check the loss, now or later; returns the parts.

        ``to_check`` holds the mean of this process's losses, and where it is compared with that,
        the mean of identical embeddings, ``chance``.
        """
        if self.projection is not None and (moment.captured or moment.due):
            to_check = {**to_check, "projection": self.projection.share_left()}
        finite, checked = _finiteness(pairs, loss, everywhere=moment.on_cpu or moment.due)
        if moment.on_cpu:
            _check_finite(finite, checked, moment.step)
            self._check_collapse(to_check, moment.step)
            return parts
        # Whoever reads the parts finds out, at any step.
        parts = {**parts, self.name: parts[self.name].where(finite, math.nan)}
        to_check = {**to_check, "finite": finite.to(checked), "loss": checked}
        if moment.captured:
            return parts | {f"{DEFERRED}{name}": x.detach() for name, x in to_check.items()}
        if moment.due:
            self._deferred.append(_DeferredCheck(moment.step, to_check))
        return parts

    def after_replay(self, parts: Mapping[str, Tensor], step: int) -> Parts:
        """The parts of a step without what a CUDA graph adds.

        A graph can neither check its loss nor omit what is due at some steps only. The code
        that replays it calls this after each step, which may also have run eagerly.
        """
        self._run_deferred_checks(step)
        to_check = {
            name.removeprefix(DEFERRED): part
            for name, part in parts.items()
            if name.startswith(DEFERRED)
        }
        if to_check and step % self.check_every == 0:
            if step < WARM_UP:
                to_check.pop("chance", None)
            self._deferred.append(_DeferredCheck(step, to_check))
        undue = () if step % SHARES_EVERY == 0 else (SHARE_PREFIX,)
        return {name: x for name, x in parts.items() if not name.startswith((DEFERRED, *undue))}

    def _run_deferred_checks(self, step: int | None) -> None:
        """Read and check what an accelerator computed at steps before this one."""
        for check in [each for each in self._deferred if step is None or each.step != step]:
            self._deferred.remove(check)
            found = check.read()
            _check_finite(found["finite"] == 1, found["loss"], check.step)
            self._check_collapse(found, check.step)

    def _check_collapse(self, found: Mapping[str, Tensor], step: int | None) -> None:
        """Warn once if the loss stays near that of identical embeddings, or L near 0."""
        if self.projection is not None and "projection" in found and self._warns_of_projection:
            self._warns_of_projection = not self.projection.warn_if_collapsed(found["projection"])
        if "chance" not in found:
            return
        mean, chance = found["mean"], found["chance"]
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
    return {f"{SHARE_PREFIX}{name}": share for name, share in zip(terms, shares, strict=True)}


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
