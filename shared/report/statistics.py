"""Mean, deviation and interval over seeds, and the verdict on a paper's claim.

A claim says that one row beats another in a column. Its verdict rests on the paired differences
of the seeds that both rows finished, and on their 95% t interval. The rules, in this order:

- *not run*: one of the two rows has no finished seed in the column.
- *inconclusive*: fewer than two common seeds, so there is no interval.

Only the paper tier can reproduce a paper, or not:

- The interval lies above 0: *reproduced* when the interval, widened by the claim's tolerance on
  both sides, contains the published gain; otherwise *same direction*. A claim without published
  gain has no size to reproduce and stays at *same direction*.
- The interval lies below 0: *not reproduced*.
- The interval contains 0: *not reproduced* when even its upper end plus the tolerance stays below
  the published gain; otherwise *inconclusive*, with the number of seeds at which a paired t test
  (5%, two-sided) has 80% power to see the published gain, given the measured deviation of the
  paired differences.

A shorter tier has words of its own, which are about its budget:

- *gain*: the interval lies above 0.
- *no gain*: it lies below 0, or contains 0 and ends below the gain that the tier was declared to
  see.
- *undecided*: otherwise, with the number of seeds that would see that gain (the published one where
  none was declared).

What a verdict rests on besides is the matter of :mod:`shared.report.evidence`, which may leave it
open or call it *no evidence*. Each column is judged by itself; nothing is corrected for the number
of columns. The verdict also says whether the published gain is smaller than the deviation over
seeds: the larger one of the two rows, as measured (at least two seeds in each row) or as published.

Over all columns a row is summed up by its interquartile mean with a stratified bootstrap interval,
as proposed by Agarwal et al. 2021 (arXiv 2108.13264). Shape letters: N values.
"""

import functools
import math
import statistics as plain
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import scipy  # loads scipy.stats when it is first used: processes of cells do without
from numpy.typing import ArrayLike, NDArray

from shared.experiment.tables import Claim, Power, Tier, Value

Kind = Literal[
    "reproduced",
    "same direction",
    "not reproduced",
    "inconclusive",
    "gain",
    "no gain",
    "undecided",
    "no evidence",
    "not run",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
# What says yes or no; the others leave a claim open.
DECIDED: tuple[Kind, ...] = ("reproduced", "same direction", "not reproduced", "gain", "no gain")
CONFIDENCE = 0.95
POWER = 0.80
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
class Verdict:
    """What the measured seeds say about one claim in one column.

    Args:
        kind: one of ``KINDS``.
        sentence: the verdict in one line.
        gain: mean paired difference, better minus worse; None without a common seed.
        low: lower end of its 95% interval; None with fewer than two common seeds.
        high: upper end.
        published_gain: difference of the published means; None where the paper prints none.
        seeds_used: the seeds that both rows finished.
        seeds_needed: seeds that would see the published gain (in a shorter tier the declared one)
            with 80% power; None unless the interval left the claim open.
        inside: where the published gain is smaller than the deviation over seeds, the words that
            say so; else None.
        sd: standard deviation of the paired differences; None with fewer than two common seeds.
    """

    kind: Kind
    sentence: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    published_gain: float | None = None
    seeds_used: tuple[int, ...] = ()
    seeds_needed: int | None = None
    inside: str | None = None
    sd: float | None = None


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
    half = _critical(n) * sd / math.sqrt(n)
    return Summary(n, mean, sd, mean - half, mean + half)


def paired_gain(better: Mapping[int, float], than: Mapping[int, float]) -> Summary:
    """Summary of ``better - than`` over the seeds that both have.

    Raises:
        ValueError: no common seed, or a number that is not finite.
    """
    return summarise(better[seed] - than[seed] for seed in _common(better, than))


def seeds_for(gain: float, sd: float) -> int | None:
    """Smallest number of seeds at which a paired t test sees ``gain`` with 80% power.

    The test is two-sided at 5%; the power is exact, from the noncentral t distribution, and
    counts only rejections on the side of the gain.

    Args:
        gain: true mean of the paired differences.
        sd: their standard deviation.

    Returns:
        The number of seeds, at least 2; None when no number suffices because the gain is 0.
    """
    if gain == 0:
        return None
    if sd == 0:
        return 2
    # Below 2 seeds there is no test; the power grows with n, so bracket by doubling, then bisect.
    too_few, enough = 1, 2
    while power_of(enough, gain, sd) < POWER:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if power_of(middle, gain, sd) < POWER:
            too_few = middle
        else:
            enough = middle
    return enough


@functools.cache
def power_of(n: int, gain: float, sd: float) -> float:
    """Power with which a paired t test over ``n`` seeds sees ``gain``, as in :func:`seeds_for`.

    Args:
        n: how many seeds; fewer than two see nothing.
        gain: true mean of the paired differences.
        sd: their standard deviation.
    """
    if n < 2 or gain == 0:
        return 0.0
    if sd == 0:
        return 1.0
    return float(scipy.stats.nct.sf(_critical(n), n - 1, abs(gain) / sd * math.sqrt(n)))


@functools.cache
def _critical(n: int) -> float:
    """What t of ``n`` differences has to exceed, two-sided; a report asks thousands of times."""
    return float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))


def seeds_sentence(
    better: Mapping[int, float],
    than: Mapping[int, float],
    published_better: Value | None,
    published_than: Value | None,
) -> str:
    """How many seeds would see the published gain with 80% power; empty where nothing tells.

    Rests on the paired differences of the common seeds; with fewer than two of them on the printed
    deviations of both rows, as if their runs were independent.
    """
    gain = _published_gain(published_better, published_than)
    if not gain or published_better is None or published_than is None:
        return ""
    origin = ""
    if len(_common(better, than)) > 1:
        sd = paired_gain(better, than).sd
        assert sd is not None  # two or more seeds
    elif published_better.std is not None and published_than.std is not None:
        sd = math.hypot(published_better.std, published_than.std)
        origin = ", from the printed deviations of independent runs"
    else:
        return ""
    return f"{seeds_for(gain, sd)} seeds would see the published gain with 80% power{origin}."


def compared(mine: Mapping[int, float], other: Mapping[int, float]) -> tuple[str, str]:
    """Whether one's own row is better than another, in one word, and what that rests on.

    The rule is that of verdicts, without a published gain: the 95% t interval of the paired
    differences over common seeds.

    Args:
        mine: value by seed of one's own row.
        other: value by seed of the row that it is held against.

    Returns:
        "better", "worse", "inconclusive" or "not run"; and the sentence.
    """
    seeds = _common(mine, other)
    if not seeds:
        return "not run", "the two rows have no finished seed in common"
    gain = paired_gain(mine, other)
    if gain.sd is None or gain.low is None or gain.high is None:
        return "inconclusive", f"gain {gain.mean:+.2f}, but one common seed has no interval"
    interval = f"gain {gain.mean:+.2f}, 95% interval [{gain.low:+.2f}, {gain.high:+.2f}]"
    sentence = f"{interval} over {gain.n} seeds"
    if gain.low > 0 or gain.high < 0:
        return "better" if gain.low > 0 else "worse", sentence
    if not gain.mean and not gain.sd:
        return "inconclusive", f"{sentence}; both are equal in every seed"
    sentence += "; the interval contains 0"
    if needed := seeds_for(gain.mean, gain.sd):
        sentence += f"; {needed} seeds would show a true gain of that size with 80% power"
    return "inconclusive", sentence


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
        Its lower and upper end; None where a column has a single value, whose deviation over seeds
        nothing tells.

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


def judge(
    claim: Claim,
    better: Mapping[int, float],
    than: Mapping[int, float],
    published_better: Value | None,
    published_than: Value | None,
    tier: Tier = "paper",
    declared: Power | None = None,
) -> Verdict:
    """The verdict on ``claim`` in one column, by the rules of this module.

    Args:
        claim: the claim; only its row labels and its tolerance matter here.
        better: measured value by seed of the row said to be better.
        than: measured value by seed of the row said to be worse.
        published_better: the printed number of the better row.
        published_than: the printed number of the worse row.
        tier: whose words the verdict takes.
        declared: what the tier is to see in the column; None if nothing was declared.
    """
    open_: Kind = "inconclusive" if tier == "paper" else "undecided"
    published = _published_gain(published_better, published_than)
    inside = _inside(published, better, than, published_better, published_than)
    missing = [
        label for label, values in ((claim.better, better), (claim.than, than)) if not values
    ]
    seeds = _common(better, than)
    if missing or len(seeds) < 2:
        gain = paired_gain(better, than).mean if seeds else None
        if missing:
            kind: Kind = "not run"
            why = f"no finished seed of {' and of '.join(missing)}"
        elif gain is None:
            kind, why = open_, "the two rows have no seed in common"
        else:
            kind, why = open_, f"gain {gain:+.2f}, but one common seed has no interval"
        sentence = f"{why}{_beside(published)}."
        return Verdict(
            kind, sentence, gain, published_gain=published, seeds_used=seeds, inside=inside
        )

    summary = paired_gain(better, than)
    gain, sd, low, high = summary.mean, summary.sd, summary.low, summary.high
    assert sd is not None  # two or more seeds
    assert low is not None
    assert high is not None
    needed = None
    if tier != "paper":
        kind, needed, why = _at_this_budget(sd, low, high, len(seeds), published, declared)
    elif low > 0:
        if published is None:
            kind, why = "same direction", "the paper prints no gain to compare with"
        elif low - claim.tolerance <= published <= high + claim.tolerance:
            kind, why = "reproduced", f"tolerance {claim.tolerance:g}"
        else:
            kind = "same direction"
            side = "smaller" if gain < published else "larger"
            why = f"{side} than published by more than the tolerance of {claim.tolerance:g}"
    elif high < 0:
        kind, why = "not reproduced", "the measured gain is negative"
    elif published is None:
        kind, why = "inconclusive", "the interval contains 0 and the paper prints no gain"
    elif high + claim.tolerance < published:
        kind = "not reproduced"
        why = (
            f"the interval contains 0 and, with the tolerance of {claim.tolerance:g}, "
            "ends below the published gain"
        )
    else:
        kind = "inconclusive"
        needed = seeds_for(published, sd)
        why = "the interval contains 0" + _outlook(needed, len(seeds))
    sentence = (
        f"gain {gain:+.2f}, 95% interval [{low:+.2f}, {high:+.2f}] "
        f"over {len(seeds)} seeds{_beside(published)}; {why}."
    )
    return Verdict(kind, sentence, gain, low, high, published, seeds, needed, inside, sd)


def _at_this_budget(
    sd: float,
    low: float,
    high: float,
    used: int,
    published: float | None,
    declared: Power | None,
) -> tuple[Kind, int | None, str]:
    """Kind, seeds needed and reason in a tier that is shorter than the paper's."""
    if low > 0:
        return "gain", None, "the interval lies above 0"
    if high < 0:
        return "no gain", None, "the measured gain is negative"
    if declared is not None and high < declared.gain:
        why = (
            "the interval contains 0 and ends below the gain of "
            f"{declared.gain:g} that this tier is to see"
        )
        return "no gain", None, why
    target, whose = published, "published"
    if declared is not None:
        target, whose = declared.gain, "declared"
    if target is None:
        return "undecided", None, "the interval contains 0 and no gain is printed or declared"
    needed = seeds_for(target, sd)
    return (
        "undecided",
        needed,
        "the interval contains 0" + _outlook(needed, used, whose, tolerant=False),
    )


def _common(better: Mapping[int, float], than: Mapping[int, float]) -> tuple[int, ...]:
    return tuple(sorted(better.keys() & than.keys()))


def _published_gain(better: Value | None, than: Value | None) -> float | None:
    if better is None or than is None:
        return None
    # Printed numbers have few digits; what subtraction adds beyond them is no difference.
    return round(better.mean - than.mean, 9)


def _beside(published: float | None) -> str:
    return "" if published is None else f"; published {published:+.2f}"


def _outlook(
    needed: int | None, used: int, whose: str = "published", *, tolerant: bool = True
) -> str:
    if needed is None:
        return "; the published gain is 0, which no number of seeds can show"
    if needed > used:
        return f"; {needed} seeds would see the {whose} gain with 80% power"
    text = f"; {needed} seeds suffice to see the {whose} gain with 80% power"
    # Of a shorter tier no published gain is asked for, so no tolerance keeps it open.
    return f"{text}, so only the tolerance keeps the claim open" if tolerant else text


def _inside(
    gain: float | None,
    better: Mapping[int, float],
    than: Mapping[int, float],
    published_better: Value | None,
    published_than: Value | None,
) -> str | None:
    if gain is None:
        return None
    if len(better) > 1 and len(than) > 1:
        measured = max(plain.stdev(better.values()), plain.stdev(than.values()))
        if abs(gain) < measured:
            return f"the claimed gain lies inside one standard deviation (measured {measured:.2f})"
    printed = [
        value.std for value in (published_better, published_than) if value and value.std is not None
    ]
    if printed and abs(gain) < max(printed):
        return f"the claimed gain lies inside one standard deviation (published {max(printed):.2f})"
    return None
