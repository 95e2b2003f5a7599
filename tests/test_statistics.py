"""The model of a column and its tests, held against statsmodels and scipy by another route."""

import math
import statistics

import numpy as np
import pandas
import pytest
import scipy
from statsmodels.formula.api import ols
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower, TTestPower

from shared.report.statistics import (
    ColumnModel,
    Estimate,
    holm,
    interquartile_mean,
    paired_gain,
    pooled_deviation,
    seeds_for,
    stratified_bootstrap,
    summarise,
    welch_of,
    wider,
)

# Three rows of one deviation, one without a third seed, as a column has them.
ROWS = {
    "plain": {0: 71.0, 1: 72.5, 2: 70.0},
    "better": {0: 74.0, 1: 73.0, 2: 75.5},
    "other": {0: 70.5, 1: 71.8},
}
# Rows that share what a seed changes, which is far more than what is left.
SHARED = {
    "plain": {0: 10.0, 1: 20.1, 2: 30.3, 3: 39.8},
    "better": {0: 11.2, 1: 21.0, 2: 31.1, 3: 41.0},
    "other": {0: 9.1, 1: 19.4, 3: 39.2},
}


def table(rows: dict[str, dict[int, float]]) -> pandas.DataFrame:
    return pandas.DataFrame(
        [(row, seed, y) for row, values in rows.items() for seed, y in values.items()],
        columns=["row", "seed", "y"],
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


def test_a_paired_gain_is_over_common_seeds() -> None:
    gain = paired_gain({0: 2.0, 1: 4.0, 3: 9.0}, {0: 1.0, 1: 1.0, 2: 7.0})
    assert (gain.n, gain.mean) == (2, 2.0)


def test_a_gain_is_estimated_by_the_pooled_residual_and_by_welch() -> None:
    pooled, welch = ColumnModel(ROWS).estimates("better", "plain")
    fit = ols("y ~ C(row, Treatment('plain'))", table(ROWS)).fit()
    name = "C(row, Treatment('plain'))[T.better]"
    assert (pooled.model, pooled.freedom) == ("pooled", fit.df_resid)
    assert pooled.gain == pytest.approx(fit.params[name])
    assert pooled.interval == pytest.approx(tuple(fit.conf_int().loc[name]))
    assert pooled.p_value() == pytest.approx(fit.pvalues[name])
    assert pooled.p_value(1.0) == pytest.approx(float(fit.t_test(f"{name} = 1").pvalue))
    samples = [list(ROWS[label].values()) for label in ("better", "plain")]
    test = scipy.stats.ttest_ind(*samples, equal_var=False)
    assert (welch.model, welch.freedom) == ("Welch", pytest.approx(test.df))
    assert welch.interval == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert welch.p_value() == pytest.approx(test.pvalue)
    assert wider([pooled, welch]) is wider([welch, pooled])
    low, high = wider([pooled, welch]).interval
    assert high - low == max(e.interval[1] - e.interval[0] for e in (pooled, welch))


def test_where_seeds_share_data_both_estimates_are_over_the_common_seeds() -> None:
    rows = SHARED | {"plain": SHARED["plain"] | {7: 99.0}}
    pairs, blocked = ColumnModel(rows, blocked=True).estimates("better", "plain")
    test = scipy.stats.ttest_rel(*(list(SHARED[label].values()) for label in ("better", "plain")))
    assert (pairs.model, pairs.freedom) == ("paired", test.df)
    assert pairs.interval == pytest.approx(tuple(test.confidence_interval(0.95)))
    fit = ols("y ~ C(row, Treatment('plain')) + C(seed)", table(SHARED)).fit()
    name = "C(row, Treatment('plain'))[T.better]"
    assert (blocked.model, blocked.freedom) == ("seed-blocked", fit.df_resid)
    assert blocked.gain == pytest.approx(fit.params[name])
    assert blocked.interval == pytest.approx(tuple(fit.conf_int().loc[name]))


def test_rows_that_are_not_trained_or_have_collapsed_are_in_no_pooled_residual() -> None:
    odd = {"chance": {0: 10.0, 1: 90.0}, "fixed": {0: 50.0}, "gone": {0: 1.0, 1: 40.0}}
    model = ColumnModel(
        ROWS | odd | {"expert": {0: 99.0, 1: 99.1, 2: 99.0}},
        baselines=("chance", "fixed"),
        untrained=("expert",),
        collapsed=("gone",),
    )
    assert model.estimates("better", "plain") == ColumnModel(ROWS).estimates("better", "plain")
    (alone,) = model.estimates("better", "chance")
    assert alone.model == "Welch"
    for row in ("gone", "expert"):
        assert [each.model for each in model.estimates(row, "plain")] == ["Welch"]
    (one,) = model.estimates("better", "fixed")
    test = scipy.stats.ttest_1samp(list(ROWS["better"].values()), 50.0)
    assert (one.model, one.freedom, one.p_value()) == ("one-sample", 2, pytest.approx(test.pvalue))
    low, high = test.confidence_interval(0.95)
    assert one.interval == pytest.approx((low - 50, high - 50))
    (other,) = model.estimates("fixed", "better")
    assert other.gain == -one.gain


HITS = {"plain": (20, 22, 25), "up": (21, 23, 26)}


def test_without_two_seeds_and_a_spread_there_is_no_estimate() -> None:
    rows = ROWS | {"single": {0: 80.0}, "still": {0: 3.0, 1: 3.0}}
    model = ColumnModel(rows)
    for better in ("single", "still", "absent"):
        assert model.estimates(better, "plain") == model.estimates("plain", better) == ()
    # One with a single seed has no part in the others' residual.
    assert ColumnModel(ROWS | {"single": {0: 80.0}}).estimates("better", "plain") == (
        ColumnModel(ROWS).estimates("better", "plain")
    )
    shifted = {seed: value + 1 for seed, value in SHARED["plain"].items()}
    same = ColumnModel(SHARED | {"shifted": shifted}, blocked=True)
    assert same.estimates("shifted", "plain") == ()
    thirds = {label: {s: 100 * n / 30 for s, n in enumerate(hits)} for label, hits in HITS.items()}
    assert (
        ColumnModel(thirds, blocked=True).estimates("up", "plain") == ()
    )  # equal but for rounding


def test_p_values_are_those_of_t_and_take_in_the_error_of_the_bound() -> None:
    estimate = Estimate(gain=1.0, error=0.5, freedom=10.0, model="pooled")
    assert (estimate.p_above(1.0), estimate.p_value(1.0)) == (0.5, 1.0)
    assert estimate.p_below(2.0, 0.7) == pytest.approx(
        scipy.stats.t.sf(1.0 / math.hypot(0.5, 0.7), 10)
    )
    low, high = estimate.interval
    assert estimate.p_above(low) == estimate.p_below(high) == pytest.approx(0.025)
    assert estimate.p_value(low) == pytest.approx(0.05)
    first, second = ([3.0, 5.0, 4.5, 6.0], [1.0, 2.0, 4.0])
    summaries = [(statistics.mean(x), statistics.stdev(x), len(x)) for x in (first, second)]
    test = scipy.stats.ttest_ind(first, second, equal_var=False)
    assert welch_of(*summaries).p_value() == pytest.approx(test.pvalue)


def test_holm_is_that_of_statsmodels() -> None:
    generator = np.random.default_rng(0)
    for n in (1, 2, 7, 40):
        p_values = [*generator.uniform(0, 0.2, n), 1.0]
        assert holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]))
    assert holm([]) == []


@pytest.mark.parametrize(
    ("gain", "sd"), [(1.0, 1.0), (0.5, 0.8), (0.6, 0.1), (0.1, 2.0), (0.05, 2.0)]
)
def test_seeds_are_the_fewest_with_the_power(gain: float, sd: float) -> None:
    seeds = seeds_for(gain, sd)
    power = TTestIndPower()
    assert power.power(gain / sd, seeds, 0.05) >= 0.8
    assert seeds == 2 or power.power(gain / sd, seeds - 1, 0.05) < 0.8
    level = 0.05 / 26
    more = seeds_for(gain, sd, level)
    assert more > seeds
    if gain < 2 * sd:  # where statsmodels knows
        assert power.power(gain / sd, more, level) >= 0.8 > power.power(gain / sd, more - 1, level)
    pairs = seeds_for(gain, sd, level, is_paired=True)
    effect = gain / (sd * math.sqrt(2))  # in deviations of the differences
    assert pairs > more or gain > 2 * sd
    if gain < 2 * sd:
        assert TTestPower().power(effect, pairs, level) >= 0.8
        assert TTestPower().power(effect, pairs - 1, level) < 0.8


def test_deviations_within_groups_are_pooled() -> None:
    groups = [[1.0, 3.0], [5.0], [2.0, 2.0, 5.0]]
    assert pooled_deviation(groups) == pytest.approx(math.sqrt((2 + 6) / 3))
    assert pooled_deviation([[1.0]]) is None


def test_interquartile_mean_cuts_a_quarter_at_each_end() -> None:
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0]) == pytest.approx(2.5)
    assert interquartile_mean([[1.0, 2.0, 30.0], [4.0, 5.0, 6.0]]) == pytest.approx([11.0, 5.0])
    for count in range(1, 14):
        values = np.random.default_rng(count).normal(size=(3, count))
        trimmed = scipy.stats.trim_mean(values, 0.25, axis=-1)
        assert np.array_equal(interquartile_mean(values), trimmed)
    for values in ([], [1.0, math.nan]):
        with pytest.raises(ValueError, match="at least one value, and finite ones only"):
            interquartile_mean(values)


def test_the_bootstrap_resamples_seeds_within_columns() -> None:
    spread = stratified_bootstrap([[0.0, 1.0], [100.0, 101.0]], lambda v: v.mean(axis=-1))
    assert spread == (50.0, 51.0)
    assert stratified_bootstrap([[0.0, 1.0], [2.0]], interquartile_mean) is None
    for columns in ([], [[1.0, 2.0], []]):
        with pytest.raises(ValueError, match="at least one value in every column"):
            stratified_bootstrap(columns, interquartile_mean)
