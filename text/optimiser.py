"""Adam for word vectors without work for words that are not in the batch.

Dense Adam updates every row of a table in every step: a row without a gradient moves on along its
first moment, which decays by a tenth per step. Here such a row is left until a batch has its word,
or training ends, and then takes all missed steps at once. The result equals that of dense Adam up
to rounding. (TensorFlow's Adam, with which quick-thoughts was trained, also updates every row.)

With m and v the moments of a row that was last updated in step r, step s > r changes it by

    m w_s / (sqrt(v) + epsilon d_s),    d_s = sqrt(1 - beta2^s) / beta2^((s - r) / 2),
    w_s = d_s rate beta1^(s - r) / (1 - beta1^s).

The sums of w_s, w_s d_s and so on depend on r only: all rows last updated in the same step share
them. d_s hardly changes within the twenty steps that matter, so 1 / (sqrt(v) + epsilon d_s) is
expanded to third order around the mean of d_s under w. In the first steps, where d_s does
change, every row is updated in every step.

Shapes: V words, E width of a word vector, U different words of a batch.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # torch's and TensorFlow's
REACH = 200  # steps after which a first moment is negligible: 0.9^200 is 7e-10
AT_ONCE = 100  # first steps, in which every row is updated
POWERS = 4  # of d_s, from the 0th on


class RowAdam:
    """Adam on tables of word vectors and on further parameters, equal to ``torch.optim.Adam``.

    The tables (V, E) have sparse gradients (``nn.Embedding.sparse``). The learning rate is the same
    in every step.
    """

    def __init__(self, tables: Sequence[Tensor], others: Sequence[Tensor], rate: float) -> None:
        self.tables = list(tables)
        self.dense = torch.optim.Adam(others, lr=rate, fused=True) if others else None
        self.rate = rate
        self._step = 0
        self._first = [torch.zeros_like(table) for table in self.tables]
        self._second = [torch.zeros_like(table) for table in self.tables]
        self._last = [torch.zeros(len(table), dtype=torch.int64) for table in self.tables]
        # (at least steps + 1, POWERS) float64: the sums of w d^n, by the step r of the last update.
        self._sums = torch.zeros(1024, POWERS, dtype=torch.float64)

    @property
    def parameters(self) -> list[Tensor]:
        """All trained parameters."""
        others = [] if self.dense is None else self.dense.param_groups[0]["params"]
        return [*self.tables, *others]

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def catch_up(self, ids: Tensor) -> None:
        """Apply the missed steps of these rows, (U,) distinct ids on the CPU."""
        for table, first, second, last in zip(
            self.tables, self._first, self._second, self._last, strict=True
        ):
            late = ids[last[ids] < self._step]
            if not len(late):
                continue
            since = last[late]
            rows = late.to(table.device)
            m, v = first[rows], second[rows]
            weight, mean, second_order, third_order = (
                moment[:, None].to(table) for moment in _around_mean(self._sums[since])
            )
            below = v.sqrt() + EPSILON * mean
            share = EPSILON / below
            table[rows] -= (
                m * weight / below * (1 + share.square() * (second_order - share * third_order))
            )
            ago = (self._step - since).to(table)[:, None]
            first[rows], second[rows] = m * BETA1**ago, v * BETA2**ago
            last[late] = self._step

    @torch.no_grad()
    def step(self) -> None:
        """One step; rows with a gradient must have caught up before the loss was computed."""
        self._step += 1
        self._count()
        for table, first, second, last in zip(
            self.tables, self._first, self._second, self._last, strict=True
        ):
            if table.grad is None:
                continue
            gradient = table.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            m = torch.lerp(values, first[rows], BETA1)
            v = torch.lerp(values.square(), second[rows], BETA2)
            first[rows], second[rows] = m, v
            scale = (1 - BETA2**self._step) ** 0.5
            moved = m / (v.sqrt() / scale + EPSILON)
            table[rows] -= self.rate / (1 - BETA1**self._step) * moved
            last[rows.cpu()] = self._step
        if self._step <= AT_ONCE:
            self.finish()
        if self.dense is not None:
            self.dense.step()

    def finish(self) -> None:
        """Apply the missed steps of all rows."""
        self.catch_up(torch.arange(len(self.tables[0])))  # all tables have equally many words

    def state_dict(self) -> dict[str, Any]:
        """The state for :meth:`load_state_dict`; missed steps stay pending."""
        return {
            "step": self._step,
            "first": self._first,
            "second": self._second,
            "last": self._last,
            "sums": self._sums,
            "dense": None if self.dense is None else self.dense.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of the same tables and parameters."""
        self._step, self._sums = state["step"], state["sums"].clone()
        for own_tensors, saved_tensors in (
            (self._first, state["first"]),
            (self._second, state["second"]),
            (self._last, state["last"]),
        ):
            for tensor, saved in zip(own_tensors, saved_tensors, strict=True):
                tensor.copy_(saved)
        if self.dense is not None:
            self.dense.load_state_dict(state["dense"])

    def _count(self) -> None:
        """Add the current step to the sums of the last ``REACH`` steps."""
        now = self._step
        ago = torch.arange(min(now, REACH), 0, -1, dtype=torch.float64)
        d = (1 - BETA2**now) ** 0.5 / BETA2 ** (ago / 2)
        weight = d * self.rate * BETA1**ago / (1 - BETA1**now)
        if now == len(self._sums):
            self._sums = torch.cat([self._sums, torch.zeros_like(self._sums)])
        self._sums[now - len(ago) : now] += weight[:, None] * d[:, None] ** torch.arange(POWERS)


def clip_each(parameters: Iterable[Tensor], largest: float, *, tokens: bool) -> None:
    """Scale each gradient separately so that its norm is at most ``largest``.

    Parameters without a gradient are skipped. With ``tokens`` the norm of a sparse gradient is
    taken over its slices, one per token, instead of over their sums per word: so does TensorFlow,
    whose gradient of an embedding table consists of slices, and therefore quick-thoughts' program.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if not gradient.is_sparse:
            nn.utils.clip_grad_norm_(parameter, largest)
            continue
        gradient = gradient if tokens else gradient.coalesce()
        norm = torch.linalg.vector_norm(gradient._values())
        parameter.grad = gradient * (largest / (norm + 1e-6)).clamp(max=1.0)


def _around_mean(sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight, mean, and second and third central moments of d, from the sums of w d^n, (U, 4)."""
    weight = sums[:, 0]
    # Where the weight is 0, no step was missed.
    one, two, three = (sums[:, 1:] / weight.clamp(min=1e-300)[:, None]).unbind(1)
    return weight, one, two - one**2, three - 3 * one * two + 2 * one**3
