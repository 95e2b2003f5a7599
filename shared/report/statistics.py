"""Means over seeds, the linear model of a column, and the tests of claims.

The rules are registered in ``docs/claims.md``. statsmodels and scipy do the statistics; both are
imported on use, since processes of cells do not need them. Shape letters: N values.
"""

import functools
import math
import statistics as plain
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy  # loads scipy.stats when it is first used
from numpy.typing import ArrayLike, NDArray

Model = Literal["pooled", "Welch", "seed-blocked", "paired"]
Values = Mapping[int, float]  # by seed
LEVEL = 0.05
CONFIDENCE = 1 - LEVEL
POWER = 0.80
CERTAIN = 8.0  # a gain, in standard deviations, that two seeds detect
ROUNDING = 1e-12  # relative, below which values are equal
TRIMMED = 0.25  # of the values, at each end
RESAMPLES = 2000


@dataclass(frozen=True)
class Summary:
    """Mean, deviation and 95% interval of one number per seed.

    Args:
        n: how many seeds.
        mean: their mean.
        sd: sample standard deviation (divisor n - 1); None for one seed.
        low: lower end of the 95% t interval of the mean; None for one seed.
        high: its upper end; None for one seed.
    """

    n: int
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Estimate:
    """The gain of one row over another, and its uncertainty.

    Args:
        gain: difference of the rows' means in the model.
        error: its standard error.
        freedom: degrees of freedom of the t distribution.
        model: the model.
    """

    gain: float
    error: float
    freedom: float
    model: Model

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the gain."""
        half = _critical(self.freedom) * self.error
        return self.gain - half, self.gain + half

    def p_above(self, bound: float) -> float:
        """Two-sided p value for a gain above ``bound``; 1 where it is not above it."""
        return self._p(self.gain - bound)

    def p_below(self, bound: float, error: float = 0.0) -> float:
        """Two-sided p value for a gain below ``bound``; 1 where it is not below it.

        Args:
            bound: the number that the gain is compared with.
            error: standard error of ``bound`` itself, added in quadrature.
        """
        return replace(self, error=math.hypot(self.error, error))._p(bound - self.gain)

    def _p(self, distance: float) -> float:
        if distance <= 0:
            return 1.0
        if self.error == 0:
            return 0.0
        return float(2 * scipy.stats.t.sf(distance / self.error, self.freedom))


def summarise(values: Iterable[float]) -> Summary:
    """Summary of one number per seed.

    Raises:
        ValueError: no number, or a number that is not finite.
    """
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
    """Summary of ``better - than`` over the seeds that both have.

    Raises:
        ValueError: no common seed, or a number that is not finite.
    """
    return summarise(better[seed] - than[seed] for seed in sorted(better.keys() & than.keys()))


def interquartile_mean(values: ArrayLike) -> NDArray[np.float64]:
    """Mean of the middle half of the values: a quarter of them, rounded down, is cut at each end.

    Source: Agarwal et al. 2021, section 4.3.

    Args:
        values: (..., N).

    Returns:
        (...,).

    Raises:
        ValueError: no value, or a value that is not finite.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape[-1] == 0 or not np.isfinite(numbers).all():
        raise ValueError("an interquartile mean needs at least one value, and finite ones only")
    return np.asarray(scipy.stats.trim_mean(numbers, TRIMMED, axis=-1))


def stratified_bootstrap(
    columns: Sequence[Sequence[float]],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> tuple[float, float] | None:
    """95% percentile interval of a statistic over all columns, resampling seeds in each column.

    Equal values give an equal interval: the resamples are drawn from a fixed seed. Source: Agarwal
    et al. 2021, section 4.1.

    Args:
        columns: for each column one value per seed.
        statistic: of values (..., N), along the last axis.

    Returns:
        Its lower and upper end; None where a column has a single value, whose spread over seeds is
        unknown.

    Raises:
        ValueError: no column, or a column without values.
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
    """The linear model of one column: a mean for each row and, where declared, for each seed.

    Args:
        rows: by label of the row its values; rows without any are left out.
        blocked: whether all rows of a seed share its data, so that the seed is a factor.
    """

    def __init__(self, rows: Mapping[str, Values], *, blocked: bool = False) -> None:
        from statsmodels.regression.linear_model import OLS

        self._rows = {label: values for label, values in rows.items() if values}
        self._labels = list(self._rows)
        seeds = sorted({seed for values in self._rows.values() for seed in values})
        factors = seeds[1:] if blocked else []  # the first seed is the reference
        numbers, design, groups = [], [], []
        for place, values in enumerate(self._rows.values()):
            for seed, value in values.items():
                numbers.append(value)
                groups.append(place)
                row = [float(place == each) for each in range(len(self._labels))]
                design.append([*row, *(float(seed == each) for each in factors)])
        self._blocked = blocked
        self._fit = None
        if len(numbers) > len(design[0] if design else []):
            matrix = np.array(design)
            fit = OLS(np.array(numbers), matrix).fit()
            residuals = [fit.resid[np.array(groups) == each] for each in range(len(self._labels))]
            if np.linalg.matrix_rank(matrix) == matrix.shape[1] and equal_variances(residuals):
                self._fit = fit

    def estimate(self, better: str, than: str) -> Estimate | None:
        """The gain of ``better`` over ``than``; None where either has fewer than two seeds."""
        first, second = (self._rows.get(label, {}) for label in (better, than))
        if min(len(first), len(second)) < 2:
            return None
        if self._fit is not None:
            contrast = np.zeros(len(self._fit.params))
            contrast[self._labels.index(better)] = 1
            contrast[self._labels.index(than)] = -1
            test = self._fit.t_test(contrast)
            model: Model = "seed-blocked" if self._blocked else "pooled"
            gain, error = float(test.effect[0]), float(test.sd[0, 0])
            return Estimate(gain, error, float(test.df_denom), model)
        if self._blocked and len(first.keys() & second.keys()) > 1:
            return paired(first, second)
        return welch(first, second)


def equal_variances(groups: Iterable[Sequence[float]]) -> bool:
    """Whether Bartlett's test does not reject equal variances at 5%; True for less than two groups.

    Groups with one value are left out; one whose values are all equal has no variance to pool.
    """
    several = [np.asarray(group, dtype=np.float64) for group in groups if len(group) > 1]
    if any(np.ptp(group) <= ROUNDING * np.abs(group).max() for group in several):
        return False
    return len(several) < 2 or bool(scipy.stats.bartlett(*several).pvalue >= LEVEL)


def welch(first: Values, second: Values) -> Estimate:
    """Gain of the first row over the second by their own variances; two seeds in each at least.

    Source: Welch 1947.
    """
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    samples = [np.fromiter(values.values(), float) for values in (first, second)]
    gain = float(samples[0].mean() - samples[1].mean())
    if all(np.ptp(sample) == 0 for sample in samples):
        return Estimate(gain, 0.0, float(len(first) + len(second) - 2), "Welch")
    both = CompareMeans(*map(DescrStatsW, samples))
    return Estimate(gain, float(both.std_meandiff_separatevar), float(both.dof_satt()), "Welch")


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


def seeds_for(gain: float, sd: float) -> int:
    """Seeds for each of two rows with which a t test at 5% detects ``gain`` in 80% of studies.

    Args:
        gain: the true gain, above 0.
        sd: standard deviation over seeds, of either row.

    Returns:
        The number of seeds, at least 2.
    """
    from statsmodels.stats.power import TTestIndPower

    if gain >= CERTAIN * sd:
        return 2
    power = TTestIndPower()
    # The power grows with the number: bracket by doubling, then bisect.
    too_few, enough = 1, 2
    while power.power(gain / sd, enough, LEVEL) < POWER:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if power.power(gain / sd, middle, LEVEL) < POWER:
            too_few = middle
        else:
            enough = middle
    return enough


def compared(mine: Values, other: Values) -> tuple[str, str]:
    """Whether a user's row is better than another, in one word, and a sentence with the numbers.

    Args:
        mine: value by seed of the user's row.
        other: value by seed of the row that it is compared with.

    Returns:
        "better", "worse", "imprecise" or "not measured"; and the sentence.
    """
    if not mine or not other:
        return "not measured", "one of the two rows has no finished seed"
    if min(len(mine), len(other)) < 2:
        gain = plain.fmean(mine.values()) - plain.fmean(other.values())
        return "imprecise", f"gain {gain:+z.2f}, but a row with one seed has no interval"
    estimate = ColumnModel({"mine": mine, "other": other}).estimate("mine", "other")
    assert estimate is not None  # two seeds in each row
    low, high = estimate.interval
    sentence = f"gain {estimate.gain:+z.2f}, 95% interval [{low:+z.2f}, {high:+z.2f}]"
    sentence += f" over {len(mine)} and {len(other)} seeds ({estimate.model})"
    if low > 0 or high < 0:
        return "better" if low > 0 else "worse", sentence
    return "imprecise", f"{sentence}; the interval contains 0"


@functools.cache
def _critical(freedom: float) -> float:
    """The two-sided critical value of t."""
    return float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
