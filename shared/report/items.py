"""McNemar's test of two rows on the same test items.

An interval over seeds tells whether a gain holds for other seeds on the same test items. McNemar's
test tells whether it holds for other items with the same seed. Runs may keep which test items they
classify correctly under ``details.right`` of their metrics: for each metric a string of hexadecimal
digits with one bit per item, the first item in the highest bit, padded with zeros to whole bytes.
"""

from collections.abc import Mapping
from typing import Any

import scipy  # loads scipy.special when it is first used

from shared.experiment.records import Record
from shared.report.statistics import LEVEL
from shared.report.wording import counted


def mcnemar(first: int, second: int) -> float:
    """McNemar's exact test, two-sided: its p value, from the items that one row alone has right.

    Source: McNemar 1947; exact, by the binomial distribution of ``first`` among both.
    """
    if min(first, second) < 0:
        raise ValueError(f"items are counted; got {first} and {second}")
    if first == second:
        return 1.0
    fewer, both = min(first, second), first + second
    return min(1.0, 2 * float(scipy.special.bdtr(fewer, both, 0.5)))


def right_alone(better: Record, than: Record, metric: str) -> tuple[int, int] | None:
    """How many items only the one, and only the other of two records classifies correctly.

    None where one of them has no such details, or where the items differ: other data, or other
    items left out.
    """
    digits = [_right_digits(record, metric) for record in (better, than)]
    if None in digits or len(set(map(len, filter(None, digits)))) > 1:
        return None
    for name in ("data", "facts"):
        if better.environment.get(name) != than.environment.get(name):
            return None
    first, second = (int(digit or "0", 16) for digit in digits)
    return (first & ~second).bit_count(), (second & ~first).bit_count()


def sentence(better: Mapping[int, Record], than: Mapping[int, Record], metric: str) -> str:
    """The result of McNemar's test of two rows, seed by seed; empty without details."""
    tests = []
    for seed in sorted(better.keys() & than.keys()):
        if (counts := right_alone(better[seed], than[seed], metric)) is not None:
            tests.append((mcnemar(*counts), counts[0] > counts[1]))
    if not tests:
        return ""
    clear = [first for p, first in tests if p < LEVEL]
    return (
        f"McNemar's test on the test items, seed by seed: p < {LEVEL} for {len(clear)} of "
        f"{counted(len(tests), 'seed')}, {sum(clear)} of them in favour of the first row."
    )


def _right_digits(record: Record, metric: str) -> str | None:
    details: Any = record.result["metrics"].get("details")
    right = details.get("right") if isinstance(details, dict) else None
    digits = right.get(metric) if isinstance(right, dict) else None
    return digits if isinstance(digits, str) else None
