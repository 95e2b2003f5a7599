"""Means over seeds, the gain of a row over another, and the tests of claims.

The rules are in ``docs/claims.md``. Distributions are scipy.special's, which is imported on use;
scipy.stats takes longer to import than a report does without, and the tests hold every figure
against it. Shape letters: N values.
"""

import functools
import math
import statistics as plain
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.special when it is first used

LEVEL = 0.05
CONFIDENCE = 1 - LEVEL
ROUNDING = 1e-12  # relative, below which values are equal


@dataclass(frozen=True)
class Summary:
    """Mean, deviation and 95% interval of one number per seed."""

    n: int  # how many values
    mean: float
    sd: float | None = None  # sample standard deviation (divisor n - 1); None for one seed
    low: float | None = None  # lower end of the 95% t interval of the mean; None for one seed
    high: float | None = None  # its upper end; None for one seed


@dataclass(frozen=True)
class Estimate:
    """The gain of one row over another, and its uncertainty."""

    gain: float  # difference of the rows' means
    error: float | None = None  # standard error; None where it cannot be told
    freedom: float = 0.0  # degrees of freedom of the t distribution

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the gain; None without an error."""
        if self.error is None:
            return None
        half = _critical(self.freedom) * self.error
        return self.gain - half, self.gain + half

    def above(self, bound: float) -> float:
        """Twice the one-sided p value of a gain above ``bound``.

        It is below 0.05 where the 95% interval lies above ``bound``.
        """
        return self._twice(bound - self.gain)

    def below(self, bound: float) -> float:
        """The same of a gain below ``bound``."""
        return self._twice(self.gain - bound)

    def _twice(self, distance: float) -> float:
        assert self.error is not None
        p = scipy.special.stdtr(self.freedom, distance / self.error)
        return min(1.0, 2 * float(p))


def summarise(values: Iterable[float]) -> Summary:
    """Summary of one number per seed."""
    numbers = [float(value) for value in values]
    if not numbers:
        raise ValueError("no values to summarise")
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"values must be finite, got {numbers}")
    n, mean = len(numbers), plain.fmean(numbers)
    if n == 1:
        return Summary(n, mean)
    sd = plain.stdev(numbers)
    half = _critical(n - 1) * sd / math.sqrt(n)
    return Summary(n, mean, sd, mean - half, mean + half)


def gain_of(columns: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Estimate:
    """The gain of a row over another, the mean over columns, by Welch's method.

    ``columns`` has the values of both rows over their seeds in each. The variance is the sum of the
    columns' variances over their number squared, with Satterthwaite's degrees of freedom. There is
    no error where a row has a single seed, or none has any spread.
    Source: Welch 1947, Satterthwaite 1946.
    """
    gain = plain.fmean(plain.fmean(first) - plain.fmean(second) for first, second in columns)
    samples = [row for column in columns for row in column]
    if min(map(len, samples)) < 2:
        return Estimate(gain)
    parts = [(plain.variance(row) / len(row) / len(columns) ** 2, len(row) - 1) for row in samples]
    variance = math.fsum(part for part, _ in parts)
    largest = max(abs(value) for row in samples for value in row)
    if math.sqrt(variance) <= ROUNDING * largest:
        return Estimate(gain)
    freedom = variance**2 / math.fsum(part**2 / freedom for part, freedom in parts)
    return Estimate(gain, math.sqrt(variance), freedom)


def rank_test(first: Sequence[float], second: Sequence[float]) -> tuple[float, bool]:
    """The exact two-sided p value of Mann and Whitney, and whether the first row ranks higher.

    Failed runs are minus infinity, equal to each other and below all numbers.
    Source: Mann and Whitney 1947.
    """
    values = np.array([*first, *second])
    # Twice the rank, an integer with ties, too.
    ranks = 2 * (values[:, None] > values).sum(1) + (values[:, None] == values).sum(1) + 1
    ways = Counter({(0, 0): 1})  # of choosing so many values, with this sum of ranks
    for rank in ranks.tolist():
        ways += Counter({(n + 1, total + rank): count for (n, total), count in ways.items()})
    sums = {total: count for (n, total), count in ways.items() if n == len(first)}
    expected = len(first) * (len(values) + 1)
    seen = int(ranks[: len(first)].sum())
    extreme = sum(c for total, c in sums.items() if abs(total - expected) >= abs(seen - expected))
    return extreme / sum(sums.values()), seen > expected


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number. Source: Holm 1979."""
    numbers = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(numbers, kind="stable")
    steps = numbers[order] * np.arange(len(numbers), 0, -1)
    adjusted = np.empty_like(numbers)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(p) for p in adjusted]


@functools.cache
def _critical(freedom: float) -> float:
    """The two-sided critical value of t."""
    return float(scipy.special.stdtrit(freedom, (1 + CONFIDENCE) / 2))
