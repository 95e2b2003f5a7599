"""Summaries against hand-computed numbers and scipy; one test per kind of verdict."""

import math

import pytest
from scipy import stats

from shared.statistics import KINDS, Summary, Verdict, judge, paired_gain, seeds_for, summarise
from shared.tables import Claim, Value

CLAIM = Claim("ours beats theirs", "ours", "theirs", ("MUTAG",), tolerance=0.5)
THEIRS = {0: 86.0, 1: 87.0, 2: 88.0}


def shifted(*gains: float) -> dict[int, float]:
    """A better row that gains these points over ``THEIRS``, seed by seed."""
    return {seed: THEIRS[seed] + gain for seed, gain in enumerate(gains)}


def verdict(
    better: dict[int, float],
    than: dict[int, float] = THEIRS,
    gain: float | None = 2.0,
    std: float | None = None,
) -> Verdict:
    printed = (None, None) if gain is None else (Value(80.0 + gain, std), Value(80.0, std))
    return judge(CLAIM, better, than, *printed)


def test_summary_of_five_numbers() -> None:
    summary = summarise([1, 2, 3, 4, 5])
    assert (summary.n, summary.mean) == (5, 3.0)
    assert summary.sd == pytest.approx(math.sqrt(2.5))  # 10 / (5 - 1)
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)  # t(0.975, 4)
    assert summary.low == pytest.approx(3 - half)
    assert summary.high == pytest.approx(3 + half)


def test_one_number_has_no_deviation() -> None:
    assert summarise([87.5]) == Summary(1, 87.5, None, None, None)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_summary_refuses(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no values|must be finite"):
        summarise(values)


def test_paired_gain_uses_common_seeds_only() -> None:
    better = {0: 88.0, 1: 90.0, 2: 89.0, 7: 50.0}
    than = {2: 88.0, 1: 87.0, 0: 86.0, 9: 1.0}
    gain = paired_gain(better, than)
    assert (gain.n, gain.mean, gain.sd) == (3, 2.0, 1.0)  # differences 2, 3, 1
    expected = stats.ttest_rel([88, 90, 89], [86, 87, 88]).confidence_interval(0.95)
    assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high))
    with pytest.raises(ValueError, match="no values"):
        paired_gain({0: 1.0}, {1: 1.0})


@pytest.mark.parametrize(
    ("effect", "seeds"),
    [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)],  # the usual tables of power for a paired t test
)
def test_seeds_for_known_effects(effect: float, seeds: int) -> None:
    assert seeds_for(effect, 1.0) == seeds
    assert seeds_for(-3 * effect, 3.0) == seeds


def test_seeds_for_is_the_smallest_number() -> None:
    for effect in (0.01, 0.3, 0.7, 1.5, 4.0, 30.0):
        seeds = seeds_for(effect, 1.0)
        assert seeds is not None
        power = {
            n: stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, effect * math.sqrt(n))
            for n in (seeds - 1, seeds)
            if n > 1
        }
        assert power.pop(seeds) >= 0.80
        assert all(less < 0.80 for less in power.values())


def test_seeds_for_edges() -> None:
    assert seeds_for(0.0, 1.0) is None
    assert seeds_for(1.0, 0.0) == 2


def test_not_run() -> None:
    result = verdict({})
    assert (result.kind, result.gain, result.seeds_used) == ("not run", None, ())
    assert result.published_gain == 2.0
    assert result.sentence == "no finished seed of ours; published +2.00."
    assert "of ours and of theirs" in verdict({}, {}).sentence


def test_inconclusive_without_two_common_seeds() -> None:
    disjoint = verdict({0: 88.0}, {1: 86.0})
    assert (disjoint.kind, disjoint.gain) == ("inconclusive", None)
    assert "no seed in common" in disjoint.sentence
    one = verdict({0: 88.0, 5: 1.0}, {0: 86.0, 1: 86.0})
    assert (one.kind, one.gain, one.low, one.seeds_used) == ("inconclusive", 2.0, None, (0,))
    assert "one common seed" in one.sentence


def test_reproduced() -> None:
    result = verdict(shifted(1.9, 2.0, 2.1))
    half = 4.3026527 * 0.1 / math.sqrt(3)  # t(0.975, 2)
    assert result.kind == "reproduced"
    assert result.gain == pytest.approx(2.0)
    assert (result.low, result.high) == pytest.approx((2 - half, 2 + half))
    assert result.seeds_used == (0, 1, 2)
    assert result.seeds_needed is None
    assert result.sentence.startswith("gain +2.00, 95% interval [+1.75, +2.25] over 3 seeds")


def test_tolerance_widens_the_interval_on_both_sides() -> None:
    close = shifted(1.9, 2.0, 2.1)  # interval 2 ± 0.248, tolerance 0.5
    assert verdict(close, gain=2.74).kind == "reproduced"
    assert verdict(close, gain=2.76).kind == "same direction"
    assert verdict(close, gain=1.26).kind == "reproduced"
    assert verdict(close, gain=1.24).kind == "same direction"


def test_same_direction_says_which_way() -> None:
    assert "smaller than published" in verdict(shifted(1.9, 2.0, 2.1), gain=4).sentence
    assert "larger than published" in verdict(shifted(1.9, 2.0, 2.1), gain=0.1).sentence


def test_claim_without_published_gain_has_no_size() -> None:
    result = verdict(shifted(1.9, 2.0, 2.1), gain=None)
    assert (result.kind, result.published_gain, result.inside) == ("same direction", None, None)
    vague = verdict(shifted(-1, 0, 1), gain=None)
    assert (vague.kind, vague.seeds_needed) == ("inconclusive", None)


def test_not_reproduced_below_zero() -> None:
    result = verdict(shifted(-1.9, -2.0, -2.1), gain=0.1)
    assert result.kind == "not reproduced"
    assert "negative" in result.sentence


def test_not_reproduced_when_the_interval_ends_too_low() -> None:
    # Differences -0.1, 0, 0.1: interval ±0.248, so with the tolerance it ends at 0.748.
    assert verdict(shifted(-0.1, 0.0, 0.1), gain=0.76).kind == "not reproduced"
    assert verdict(shifted(-0.1, 0.0, 0.1), gain=0.74).kind == "inconclusive"


def test_inconclusive_says_how_many_seeds() -> None:
    result = verdict(shifted(-1.0, 1.0, 3.0), gain=2.0)  # mean 1, deviation 2: effect 1
    assert result.kind == "inconclusive"
    assert result.seeds_needed == 10
    assert "10 seeds would see the published gain with 80% power" in result.sentence


def test_more_seeds_are_not_the_remedy_when_the_tolerance_is_wide() -> None:
    result = verdict(shifted(-0.1, 0.0, 0.1), gain=0.4)  # effect 4
    assert (result.kind, result.seeds_needed) == ("inconclusive", 3)
    assert "only the tolerance keeps the claim open" in result.sentence


def test_published_gain_inside_the_deviation() -> None:
    # Both measured rows deviate by 1, so 0.9 lies inside and 1.1 does not.
    better = shifted(1.9, 2.0, 2.1)
    measured = verdict(better, gain=0.9).inside
    assert measured == "the claimed gain lies inside one standard deviation (measured 1.10)"
    assert verdict(better, gain=1.2).inside is None
    printed = verdict({}, gain=0.9, std=1.34).inside
    assert printed == "the claimed gain lies inside one standard deviation (published 1.34)"
    assert verdict({}, gain=1.4, std=1.34).inside is None
    assert verdict({}, gain=0.9).inside is None


def test_kinds_are_the_five_of_the_report() -> None:
    assert set(KINDS) == {
        "reproduced",
        "same direction",
        "not reproduced",
        "inconclusive",
        "not run",
    }
