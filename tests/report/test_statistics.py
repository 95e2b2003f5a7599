"""Gains and their tests, held against scipy and statsmodels by another route."""

import math
import statistics

import numpy as np
import pytest
import scipy
from scipy.stats import ttest_ind
from statsmodels.stats.multitest import multipletests

from shared.report.statistics import (
    Estimate,
    gain_of,
    holm,
    rank_test,
    summarise,
)


def test_summary_of_five_numbers() -> None:
    summary = summarise([1.0, 2.0, 3.0, 4.0, 5.0])
    low, high = scipy.stats.t.interval(0.95, 4, 3.0, statistics.stdev(range(5)) / math.sqrt(5))
    assert (summary.n, summary.mean) == (5, 3.0)
    assert (summary.low, summary.high) == pytest.approx((low, high))
    one = summarise([2.5])
    assert (one.n, one.mean, one.sd, one.low, one.high) == (1, 2.5, None, None, None)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_a_summary_of_nothing_or_of_what_is_not_finite_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no values|must be finite"):
        summarise(values)


COLUMNS = [
    ([74.0, 73.0, 75.5], [71.0, 72.5, 70.0, 69.1]),
    ([60.0, 61.5], [58.0, 59.0, 57.0]),
    ([80.0, 80.1, 80.3, 79.9], [81.0, 79.0]),
]


def test_a_gain_in_one_column_is_welchs() -> None:
    for first, second in COLUMNS:
        estimate, test = gain_of([(first, second)]), ttest_ind(first, second, equal_var=False)
        assert estimate.interval == pytest.approx(tuple(test.confidence_interval()))
        for bound in (0.0, -1.5, 2.0):
            shifted = [value - bound for value in first]
            above = ttest_ind(shifted, second, equal_var=False, alternative="greater").pvalue
            assert estimate.above(bound) == pytest.approx(min(1, 2 * above))
            assert estimate.below(bound) == pytest.approx(min(1, 2 * (1 - above)))


def test_the_mean_gain_of_columns_has_satterthwaites_freedom() -> None:
    estimate = gain_of(COLUMNS)
    parts = [
        (np.var(row, ddof=1) / len(row) / len(COLUMNS) ** 2, len(row) - 1)
        for column in COLUMNS
        for row in column
    ]
    variance = sum(v for v, _ in parts)
    freedom = variance**2 / sum(v**2 / f for v, f in parts)
    gains = [np.mean(first) - np.mean(second) for first, second in COLUMNS]
    ends = scipy.stats.t.interval(0.95, freedom, np.mean(gains), math.sqrt(variance))
    assert estimate.gain == pytest.approx(np.mean(gains))
    assert estimate.interval == pytest.approx(ends)


def test_without_two_seeds_and_a_spread_there_is_no_interval() -> None:
    assert gain_of([([1.0], [0.0, 0.5])]) == Estimate(0.75)
    thirds = [0.1 + 0.2, 0.3, 0.3]  # equal but for rounding
    assert gain_of([(thirds, [0.0, 0.0])]).interval is None


def test_the_rank_test_is_that_of_scipy() -> None:
    """Without ties, where scipy's exact test holds; failed runs are ties below all."""
    generator = np.random.default_rng(0)
    for sizes in ((8, 3), (4, 6), (20, 20)):
        first, second = (generator.normal(size=size) for size in sizes)
        test = scipy.stats.mannwhitneyu(first, second, method="exact")
        p, higher = rank_test(first.tolist(), second.tolist())
        assert p == pytest.approx(test.pvalue)
        assert higher == (test.statistic > sizes[0] * sizes[1] / 2)
    p, higher = rank_test([*range(8)], [-1.0, -2.0, *[-math.inf] * 6])
    assert (p, higher) == (pytest.approx(2 / math.comb(16, 8)), True)


def test_holm_is_that_of_statsmodels() -> None:
    generator = np.random.default_rng(0)
    for n in (1, 2, 7, 40):
        p_values = [*generator.uniform(0, 0.2, n), 1.0]
        assert holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]))
    assert holm([]) == []
