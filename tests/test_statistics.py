"""The model of a column and its tests, held against statsmodels and scipy by another route."""

import math
import statistics

import numpy as np
import pandas
import pytest
import scipy
from statsmodels.formula.api import ols
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower

from shared.report.statistics import (
    ColumnModel,
    Estimate,
    compared,
    equal_variances,
    holm,
    interquartile_mean,
    paired_gain,
    pooled_deviation,
    seeds_for,
    stratified_bootstrap,
    summarise,
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


@pytest.mark.parametrize(
    ("rows", "blocked", "formula", "model"),
    [
        (ROWS, False, "y ~ C(row, Treatment('plain'))", "pooled"),
        (SHARED, True, "y ~ C(row, Treatment('plain')) + C(seed)", "seed-blocked"),
    ],
)
def test_the_linear_model_is_that_of_the_formula(
    rows: dict[str, dict[int, float]], blocked: bool, formula: str, model: str
) -> None:
    estimate = ColumnModel(rows, blocked=blocked).estimate("better", "plain")
    assert estimate is not None
    fit = ols(formula, table(rows)).fit()
    name = "C(row, Treatment('plain'))[T.better]"
    assert (estimate.model, estimate.freedom) == (model, fit.df_resid)
    assert estimate.gain == pytest.approx(fit.params[name])
    assert estimate.interval == pytest.approx(tuple(fit.conf_int().loc[name]))
    assert estimate.p_above(0) == pytest.approx(fit.pvalues[name])
    assert estimate.p_above(1) == pytest.approx(float(fit.t_test(f"{name} = 1").pvalue))


def test_unequal_variances_leave_the_two_rows_alone() -> None:
    rows = ROWS | {"wild": {0: 10.0, 1: 90.0, 2: 55.0}}
    assert not equal_variances([list(values.values()) for values in rows.values()])
    estimate = ColumnModel(rows).estimate("better", "plain")
    assert estimate is not None
    samples = [list(rows[label].values()) for label in ("better", "plain")]
    welch = scipy.stats.ttest_ind(*samples, equal_var=False)
    assert (estimate.model, estimate.freedom) == ("Welch", pytest.approx(welch.df))
    assert estimate.interval == pytest.approx(tuple(welch.confidence_interval(0.95)))
    assert estimate.p_above(0) == pytest.approx(welch.pvalue)


def test_unequal_residuals_beside_shared_seeds_leave_the_pairs_of_two_rows() -> None:
    wild = {0: 60.0, 1: -30.0, 2: 95.0, 3: 5.0}
    # Of few rows a wild one takes the seeds' means with it, and all residuals grow alike.
    more = {f"more {n}": {s: y + n / (s + 2) for s, y in SHARED["plain"].items()} for n in range(9)}
    rows = SHARED | more | {"wild": wild}
    estimate = ColumnModel(rows, blocked=True).estimate("better", "plain")
    assert estimate is not None
    samples = [list(rows[label].values()) for label in ("better", "plain")]
    pairs = scipy.stats.ttest_rel(*samples)
    assert (estimate.model, estimate.freedom) == ("paired", pairs.df)
    assert estimate.interval == pytest.approx(tuple(pairs.confidence_interval(0.95)))


def test_a_row_with_one_seed_has_no_estimate_but_a_part_in_the_model() -> None:
    model = ColumnModel(ROWS | {"single": {0: 80.0}})
    assert model.estimate("single", "plain") is None
    assert model.estimate("better", "absent") is None
    assert model.estimate("better", "plain") == ColumnModel(ROWS).estimate("better", "plain")


def test_rows_that_never_vary_differ_for_certain() -> None:
    estimate = ColumnModel({"a": {0: 2.0, 1: 2.0}, "b": {0: 1.0, 1: 1.0}}).estimate("a", "b")
    assert estimate is not None
    assert (estimate.p_above(0), estimate.p_above(1), estimate.p_below(2)) == (0.0, 1.0, 0.0)
    assert not equal_variances([[1.0, 1.0], [1.0, 2.0]])


def test_p_values_are_1_on_the_wrong_side_and_take_in_the_error_of_the_bound() -> None:
    estimate = Estimate(gain=1.0, error=0.5, freedom=10.0, model="pooled")
    assert (estimate.p_above(1.0), estimate.p_above(2.0), estimate.p_below(0.5)) == (1.0, 1.0, 1.0)
    t = 1.0 / math.hypot(0.5, 0.7)
    assert estimate.p_below(2.0, 0.7) == pytest.approx(2 * scipy.stats.t.sf(t, 10))
    low, high = estimate.interval
    assert estimate.p_above(low) == pytest.approx(0.05)
    assert estimate.p_below(high) == pytest.approx(0.05)


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


def test_one_row_is_compared_with_another_in_a_word() -> None:
    assert compared(ROWS["better"], ROWS["plain"])[0] == "better"
    assert compared(ROWS["plain"], ROWS["better"])[0] == "worse"
    assert compared(ROWS["other"], ROWS["plain"])[0] == "imprecise"
    assert compared({}, ROWS["plain"])[0] == "not measured"
    assert compared({0: 1.0}, ROWS["plain"]) == (
        "imprecise",
        "gain -70.17, but a row with one seed has no interval",
    )


def test_deviations_within_groups_are_pooled() -> None:
    groups = [[1.0, 3.0], [5.0], [2.0, 2.0, 5.0]]
    assert pooled_deviation(groups) == pytest.approx(math.sqrt((2 + 6) / 3))
    assert pooled_deviation([[1.0]]) is None


def test_interquartile_mean_cuts_a_quarter_at_each_end() -> None:
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0]) == pytest.approx(2.5)
    assert interquartile_mean([[1.0, 2.0, 30.0], [4.0, 5.0, 6.0]]) == pytest.approx([11.0, 5.0])
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
