"""McNemar's test on the test items of two rows."""

import math

import pytest

from shared.experiment.records import Record
from shared.report.items import mcnemar, right_alone, sentence


def record(right: dict[str, str] | None, data: str = "a", left_out: str = "0") -> Record:
    details = {"classes": 2} if right is None else {"classes": 2, "right": right}
    environment = {"data": {"set": data}, "facts": {"left_out": left_out}}
    return Record("x", {}, environment, {"metrics": {"top1": 50.0, "details": details}})


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (5, 5), (12, 3), (3, 12), (40, 22)])
def test_the_p_value_is_the_sum_over_the_tails(first: int, second: int) -> None:
    n = first + second
    tail = sum(math.comb(n, k) for k in range(min(first, second) + 1)) / 2**n
    assert mcnemar(first, second) == pytest.approx(min(1.0, 2 * tail))


def test_counts_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="items are counted; got -1 and 2"):
        mcnemar(-1, 2)


def test_items_that_one_row_alone_has_right_are_counted() -> None:
    # 1010 0110 1000 0000 and 1100 0011 0000 0000
    better, than = record({"top1": "a680"}), record({"top1": "c300"})
    assert right_alone(better, than, "top1") == (3, 2)
    assert right_alone(than, better, "top1") == (2, 3)


@pytest.mark.parametrize(
    "other",
    [
        record(None),
        record({"R@1": "c300"}),
        record({"top1": "c3"}),
        record({"top1": "c300"}, data="b"),
        record({"top1": "c300"}, left_out="1"),
    ],
)
def test_other_items_are_not_compared(other: Record) -> None:
    better = record({"top1": "a680"})
    assert right_alone(better, other, "top1") is None
    assert right_alone(other, better, "top1") is None
    assert sentence({0: better}, {0: other}, "top1") == ""


def test_seeds_with_a_clear_difference_are_counted() -> None:
    better = {0: record({"top1": "fff0"}), 1: record({"top1": "a680"}), 2: record(None)}
    than = {0: record({"top1": "0000"}), 1: record({"top1": "c300"}), 3: record({"top1": "ff"})}
    assert sentence(better, than, "top1") == (
        "McNemar's test on the test items, seed by seed: p < 0.05 for 1 of 2 seeds, 1 of them in "
        "favour of the first row."
    )
