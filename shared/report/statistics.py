"""Means over seeds, the two estimates of a gain, and the tests of claims.

The rules are in ``docs/claims.md``. Distributions are scipy.special's, which is imported on use;
scipy.stats and statsmodels take longer to import than a report does without, and the tests hold
every figure against them. Shape letters: N values.
"""

import bisect
import functools
import math
import statistics as plain
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # loads scipy.special when it is first used
from numpy.typing import ArrayLike, NDArray

Model = Literal["pooled", "Welch", "paired", "seed-blocked", "one-sample"]
Values = Mapping[int, float]  # by seed
LEVEL = 0.05
CONFIDENCE = 1 - LEVEL
POWER = 0.80
ROUNDING = 1e-12  # relative, below which values are equal
TRIMMED = 0.25  # of the values, at each end
RESAMPLES = 2000


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
    error: float  # standard error
    freedom: float  # degrees of freedom of the t distribution
    model: Model  # how it was estimated

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the gain."""
        half = _critical(self.freedom) * self.error
        return self.gain - half, self.gain + half

    def p_value(self, bound: float = 0.0) -> float:
        """Two-sided p value of a gain other than ``bound``."""
        return 2 * min(self.p_above(bound), self.p_below(bound))

    def p_above(self, bound: float) -> float:
        """One-sided p value of a gain above ``bound``."""
        return float(scipy.special.stdtr(self.freedom, -(self.gain - bound) / self.error))

    def p_below(self, bound: float, error: float = 0.0) -> float:
        """One-sided p value of a gain below ``bound``, whose own standard error is ``error``."""
        distance = (self.gain - bound) / math.hypot(self.error, error)
        return float(scipy.special.stdtr(self.freedom, distance))


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


def pooled_deviation(groups: Iterable[Sequence[float]]) -> float | None:
    """The deviation within groups; None where no group has two values."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            squares += plain.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def paired_gain(better: Values, than: Values) -> Summary:
    """Summary of ``better - than`` over the seeds that both have."""
    return summarise(better[seed] - than[seed] for seed in sorted(better.keys() & than.keys()))


def interquartile_mean(values: ArrayLike) -> NDArray[np.float64]:
    """Mean of the middle half of values (..., N): a quarter, rounded down, is cut at each end.

    Source: Agarwal et al. 2021, section 4.3.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape[-1] == 0 or not np.isfinite(numbers).all():
        raise ValueError("an interquartile mean needs at least one value, and finite ones only")
    cut = int(TRIMMED * numbers.shape[-1])
    last = numbers.shape[-1] - cut
    return np.asarray(np.partition(numbers, (cut, last - 1), axis=-1)[..., cut:last].mean(-1))


def stratified_bootstrap(
    columns: Sequence[Sequence[float]],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> tuple[float, float] | None:
    """95% percentile interval of a statistic over all columns, resampling seeds in each column.

    None where a column has a single value, whose spread over seeds is unknown. Equal values give an
    equal interval: the resamples are drawn from a fixed seed. ``statistic`` is of values (..., N),
    along the last axis. Source: Agarwal et al. 2021, section 4.1.
    """
    if not columns or not all(columns):
        raise ValueError("a bootstrap needs at least one value in every column")
    if any(len(values) == 1 for values in columns):
        return None
    generator = np.random.default_rng(0)
    drawn = [
        np.asarray(values, dtype=np.float64)[
            generator.integers(len(values), size=(RESAMPLES, len(values)))
        ]
        for values in columns
    ]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=1)), (tail, 1 - tail))
    return float(low), float(high)


class ColumnModel:
    """Estimates of the gains between the rows of one column; each gain has two of them.

    Args:
        rows: by label of the row its values; rows without any are left out.
        baselines: labels of trivial baselines, which are compared by Welch's test alone.
        untrained: labels of other rows that nothing is trained in, such as an expert's.
        collapsed: labels of rows that have collapsed. The spread of neither over seeds tells
            anything about that of the trained ones.
        blocked: whether all rows of a seed share its data.
    """

    def __init__(
        self,
        rows: Mapping[str, Values],
        *,
        baselines: Collection[str] = (),
        untrained: Collection[str] = (),
        collapsed: Collection[str] = (),
        blocked: bool = False,
    ) -> None:
        self._rows = {label: values for label, values in rows.items() if values}
        self._baselines = baselines
        self.collapsed = frozenset(collapsed)
        self._blocked = blocked
        left_out = {*baselines, *untrained, *collapsed}
        self._trained = {
            label: values for label, values in self._rows.items() if label not in left_out
        }
        self._fits: dict[frozenset[int], _Fit] = {}  # by seeds, see _fit

    def estimates(self, better: str, than: str) -> tuple[Estimate, ...]:
        """The gain of ``better`` over ``than``, twice; once where the spread of one is left out.

        There is none where a row has too few seeds for it, or no spread over them.
        """
        first, second = (self._rows.get(label, {}) for label in (better, than))
        if than in self._baselines and not varies(second):
            return one_sample(first, second) if varies(first) and second else ()
        if better in self._baselines and not varies(first):
            return one_sample(first, second) if varies(second) and first else ()
        if not (varies(first) and varies(second)):
            return ()
        pool = {better, than} <= self._trained.keys()
        if self._blocked and not {better, than} & set(self._baselines):
            common = first.keys() & second.keys()
            if len(common) < 2:
                return ()
            pairs = paired(first, second)
            if pairs.error <= ROUNDING * max(map(abs, (*first.values(), *second.values()))):
                return ()
            return (pairs, self._seed_blocked(better, than, common)) if pool else (pairs,)
        alone = welch(first, second)
        if not pool:
            return (alone,)
        groups = [[*values.values()] for values in self._trained.values() if len(values) > 1]
        sd = pooled_deviation(groups)
        assert sd is not None  # both rows have two seeds
        error = sd * math.sqrt(1 / len(first) + 1 / len(second))
        freedom = float(sum(len(group) - 1 for group in groups))
        return Estimate(alone.gain, error, freedom, "pooled"), alone

    def _seed_blocked(self, better: str, than: str, seeds: Collection[int]) -> Estimate:
        """The gain in the model with rows and seeds as factors, over some seeds."""
        fit = self._fit(frozenset(seeds))
        contrast = np.zeros(len(fit.parameters))
        contrast[fit.labels.index(better)], contrast[fit.labels.index(than)] = 1, -1
        gain, error = contrast @ fit.parameters, math.sqrt(contrast @ fit.covariance @ contrast)
        # Its last digits, and so how a number like -0.435 is printed, depend on the processor.
        return Estimate(round(float(gain), 9), round(error, 9), fit.freedom, "seed-blocked")

    def _fit(self, seeds: frozenset[int]) -> "_Fit":
        """That model by least squares: one for all gains over these seeds."""
        if seeds in self._fits:
            return self._fits[seeds]
        rows = {
            label: {seed: values[seed] for seed in sorted(seeds) if seed in values}
            for label, values in self._trained.items()
        }
        labels = [label for label, values in rows.items() if len(values) > 1]
        _, *others = sorted(seeds)  # the first seed is the reference
        numbers, design = [], []
        for label in labels:
            for seed, value in rows[label].items():
                numbers.append(value)
                row = [float(label == name) for name in labels]
                design.append([*row, *(float(seed == other) for other in others)])
        matrix, values = np.array(design), np.array(numbers)
        inverse = np.linalg.pinv(matrix)
        parameters = inverse @ values
        freedom = float(len(matrix) - np.linalg.matrix_rank(matrix))
        variance = ((values - matrix @ parameters) ** 2).sum() / freedom
        self._fits[seeds] = _Fit(labels, parameters, variance * inverse @ inverse.T, freedom)
        return self._fits[seeds]


@dataclass(frozen=True)
class _Fit:
    """A linear model: its parameters, which begin with those of the rows, and their covariance."""

    labels: list[str]
    parameters: NDArray[np.float64]
    covariance: NDArray[np.float64]
    freedom: float


def varies(values: Values) -> bool:
    """Whether there are two values at least, and not all are equal."""
    numbers = list(values.values())
    return len(numbers) > 1 and np.ptp(numbers) > ROUNDING * np.abs(numbers).max()


def wider(estimates: Sequence[Estimate]) -> Estimate:
    """The one with the widest interval."""
    return max(estimates, key=lambda estimate: estimate.interval[1] - estimate.interval[0])


def welch(first: Values, second: Values) -> Estimate:
    """Gain of the first row over the second by their own variances; two seeds in each at least.

    Source: Welch 1947.
    """
    samples = [summarise(values.values()) for values in (first, second)]
    return welch_of(*((sample.mean, sample.sd or 0.0, sample.n) for sample in samples))


def welch_of(first: tuple[float, float, int], second: tuple[float, float, int]) -> Estimate:
    """The same from mean, sample standard deviation and number of values of both."""
    parts = [sd**2 / n for _, sd, n in (first, second)]
    terms = [part**2 / (n - 1) for part, (_, _, n) in zip(parts, (first, second), strict=True)]
    freedom = sum(parts) ** 2 / sum(terms)
    return Estimate(first[0] - second[0], math.sqrt(sum(parts)), freedom, "Welch")


def one_sample(first: Values, second: Values) -> tuple[Estimate]:
    """Gain of the first row over the second, one of which has no spread over seeds."""
    gain = summarise(first.values()).mean - summarise(second.values()).mean
    varying = summarise((first if varies(first) else second).values())
    assert varying.sd is not None
    error = varying.sd / math.sqrt(varying.n)
    return (Estimate(gain, error, varying.n - 1.0, "one-sample"),)


def paired(first: Values, second: Values) -> Estimate:
    """Gain of the first row over the second over their common seeds; two of them at least."""
    summary = paired_gain(first, second)
    assert summary.sd is not None
    error = summary.sd / math.sqrt(summary.n)
    return Estimate(summary.mean, error, summary.n - 1.0, "paired")


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number. Source: Holm 1979.

    As statsmodels' ``multipletests``, which takes half a second for each call, whatever the number.
    """
    numbers = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(numbers)
    steps = numbers[order] * np.arange(len(numbers), 0, -1)
    adjusted = np.empty_like(numbers)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(p) for p in adjusted]


def seeds_for(gain: float, sd: float, level: float = LEVEL, *, is_paired: bool = False) -> int:
    """Seeds of each of two rows with which a t test detects ``gain`` in 80% of studies.

    ``sd`` is the deviation over seeds of either row, without what a pair shares; ``gain`` is above
    0.
    """
    samples = 1 if is_paired else 2

    def power(seeds: int) -> float:
        """To see a gain, on its own side."""
        freedom = samples * (seeds - 1)
        critical = scipy.special.stdtrit(freedom, 1 - level / 2)
        noncentrality = gain / sd * math.sqrt(seeds / 2)
        return 1 - float(scipy.special.nctdtr(freedom, noncentrality, critical))

    enough = 2  # the power grows with the number
    while power(enough) < POWER:
        enough *= 2
    return bisect.bisect_left(range(enough), POWER, lo=max(2, enough // 2), key=power)


@functools.cache
def _critical(freedom: float) -> float:
    """The two-sided critical value of t."""
    return float(scipy.special.stdtrit(freedom, (1 + CONFIDENCE) / 2))
