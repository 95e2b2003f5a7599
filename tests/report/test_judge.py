"""Each rule of docs/claims.md gives its word, and each can fail."""

import dataclasses
import math
from typing import Any

import pytest

from shared.report.judge import Gain, adjust, measured, word_of

PLAIN = (70.0, 71.0, 69.0)
UP, EVEN, DOWN = (75.0, 76.0, 74.5), (70.1, 71.1, 69.3), (65.0, 66.0, 64.2)


def by_seed(values: tuple[float, ...]) -> dict[int, float]:
    return dict(enumerate(values))


def gain(
    *methods: tuple[float, ...],
    form: Any = "superiority",
    margin: float = 0.0,
    post_hoc: bool = False,
    **rules: Any,
) -> Gain:
    """A method with these values in each column, over a plain row, and alone in its family."""
    cells = {
        str(column): (by_seed(values), by_seed(PLAIN)) for column, values in enumerate(methods)
    }
    found = measured(cells, form, margin, post_hoc=post_hoc)
    return adjust({0: dataclasses.replace(found, **rules)})[0]


def test_rows_without_spread_are_not_said_to_lack_seeds() -> None:
    same, other = by_seed((90.0, 90.0, 90.0)), by_seed((80.0, 80.0, 80.0))
    assert word_of(measured({"a": (same, other)})) == ("undecided", "no spread over seeds")
    assert word_of(measured({"a": ({0: 90.0}, other)})) == ("undecided", "too few seeds")


@pytest.mark.parametrize(
    ("method", "form", "margin", "word"),
    [
        (UP, "superiority", 0.0, "as claimed"),
        (EVEN, "superiority", 0.0, "undecided"),
        (DOWN, "superiority", 0.0, "contrary"),
        (UP, "size", 0.0, "as claimed"),
        (EVEN, "comparable", 6.0, "as claimed"),
        (EVEN, "comparable", 1.0, "undecided"),
        (DOWN, "comparable", 1.0, "contrary"),
        # A loss counts against no difference, as a gain does.
        (EVEN, "null", 6.0, "as claimed"),
        (EVEN, "null", 1.0, "undecided"),
        (UP, "null", 1.0, "contrary"),
        (DOWN, "null", 1.0, "contrary"),
        # It does not against no improvement.
        (DOWN, "no gain", 1.0, "as claimed"),
        (EVEN, "no gain", 1.0, "undecided"),
        (UP, "no gain", 1.0, "contrary"),
        # Without a margin a claim of no difference cannot hold.
        (EVEN, "null", 0.0, "undecided"),
    ],
)
def test_each_form_has_its_test(
    method: tuple[float, ...], form: Any, margin: float, word: str
) -> None:
    assert word_of(gain(method, form=form, margin=margin)) == (word, "")


MARGINAL = (72.5, 73.5, 71.9)  # p is about 0.03 before any adjustment


def test_the_first_rule_that_holds_gives_the_word() -> None:
    assert word_of(measured({})) == ("not run", "")
    assert word_of(measured({"a": (by_seed(UP), {})})) == ("not run", "")
    assert word_of(gain(UP, beside=True)) == ("", "")
    assert word_of(gain(UP[:2])) == ("undecided", "too few seeds")
    assert word_of(gain((75.0,) * 3, (70.0,) * 3)) != ("undecided", "too few seeds")
    few = {"chosen_here": True, "share": 0.009}
    assert word_of(gain(UP, **few)) == ("not testable", "")
    assert word_of(gain(UP, **few | {"share": 0.01})) == ("as claimed", "")
    assert word_of(gain(UP, **few | {"chosen_here": False})) == ("as claimed", "")
    assert word_of(gain(UP, UP, declared=5)) == ("undecided", "2 of 5 columns")
    assert word_of(gain(UP, UP, declared=4)) == ("as claimed", "")
    assert word_of(gain(UP, DOWN)) == ("depends on the data", "")
    assert word_of(gain(UP, form="no gain", data_sets=4)) == ("undecided", "1 of 4 data sets")
    assert word_of(gain(DOWN, form="no gain", data_sets=4)) == ("as claimed", "")


def test_what_holm_takes_away_is_said() -> None:
    family = adjust({name: gain(MARGINAL) for name in "abc"})
    assert word_of(gain(MARGINAL)) == ("as claimed", "")
    assert {word_of(each) for each in family.values()} == {("undecided", "after adjustment")}
    # What stands beside has no p value in the family.
    beside = adjust({"a": gain(MARGINAL), "b": gain(UP, beside=True), "c": gain(UP, beside=True)})
    assert word_of(beside["a"]) == ("as claimed", "")


def test_seeds_after_a_look_need_more() -> None:
    one = gain(MARGINAL, post_hoc=True)
    assert one.p is not None
    assert 0.005 < one.p < 0.033
    assert word_of(one) == ("as claimed", "")
    close = (72.0, 73.2, 71.9)
    assert 0.033 < (gain(close).p or 0) < 0.05
    assert word_of(gain(close)) == ("as claimed", "")
    assert word_of(gain(close, post_hoc=True)) == ("undecided", "after adjustment")


def test_a_column_wholly_below_the_margin_is_not_no_worse() -> None:
    """Four columns of which one loses: the mean alone would be no worse."""
    columns = [(71.2, 72.2, 70.2)] * 3 + [(67.0, 68.0, 66.0)]
    columns = [tuple(x + 1e-3 * i for x in c) for i, c in enumerate(columns)]
    found = gain(*columns, form="comparable", margin=2.5)
    assert found.adjusted[0] < 0.05
    assert not found.loses_a_column
    assert word_of(found)[0] == "as claimed"
    tight = [tuple(70 + (x - 70) / 20 for x in PLAIN)] * 2
    cells = {
        str(i): (by_seed(tuple(x + shift for x in row)), by_seed(row))
        for i, (row, shift) in enumerate(zip(tight, (0.5, -0.7), strict=True))
    }
    loses = adjust({0: measured(cells, "comparable", 0.5)})[0]
    assert loses.loses_a_column
    assert word_of(loses)[0] in ("undecided", "depends on the data")


def test_the_smallest_margin_is_the_end_of_the_interval() -> None:
    low, high = gain(EVEN).estimate.interval or (math.nan, math.nan)
    margins = [gain(EVEN, form=form).smallest_margin for form in ("comparable", "no gain", "null")]
    assert margins == pytest.approx([-low, high, max(-low, high)])
    assert gain(EVEN).smallest_margin is None
    assert gain(UP, form="comparable").smallest_margin == 0.0


def test_failed_runs_rank_below_all_numbers() -> None:
    row = tuple(float(60 + i) for i in range(8))
    cells = {"a": (by_seed(row), {0: 30.0, 1: 40.0})}
    failed = measured(cells, failed=((0, 0), (6, 8)))
    assert failed.ranked
    assert word_of(adjust({0: failed})[0]) == ("as claimed", "")
    few = measured(cells, failed=((0, 0), (2, 4)))
    assert not few.ranked
    assert word_of(adjust({0: few})[0]) == ("undecided", "too few seeds")
    many = measured({"a": (by_seed(UP), by_seed(PLAIN))}, failed=((0, 0), (3, 13)))
    assert not many.ranked  # less than a quarter


def test_a_column_with_fewer_seeds_stands_below() -> None:
    cells = {"a": (by_seed(UP), by_seed(PLAIN)), "b": (by_seed((90.0,)), by_seed(PLAIN))}
    found = measured(cells)
    assert (found.in_mean, {*found.columns}) == (("a",), {"a", "b"})
    assert found.estimate.gain == pytest.approx(5 + 1 / 6)


def test_columns_of_one_run_are_averaged_by_seed() -> None:
    """What a seed shifts in one column it takes back in the other."""
    one = (by_seed((75.0, 77.0, 73.0)), by_seed((70.0, 72.0, 68.0)))
    other = (by_seed((75.0, 73.0, 77.1)), by_seed((70.0, 68.0, 72.0)))
    apart, together = (measured({"a": one, "b": other}, one_run=run) for run in (False, True))
    assert apart.estimate.gain == pytest.approx(together.estimate.gain)
    assert (together.estimate.error or 0) < 0.1 < (apart.estimate.error or 0)
