"""Summaries against hand-computed numbers and scipy; one test per kind of verdict."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from shared.experiment.tables import Claim, Power, Tier, Value, slug
from shared.report.console import KIND_COLOURS
from shared.report.site import SHAPES
from shared.report.statistics import (
    DECIDED,
    KINDS,
    RESAMPLES,
    Summary,
    Verdict,
    interquartile_mean,
    judge,
    paired_gain,
    power_of,
    seeds_for,
    seeds_sentence,
    stratified_bootstrap,
    summarise,
)

ROOT = Path(__file__).resolve().parents[1]
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
    tier: Tier = "paper",
    declared: Power | None = None,
) -> Verdict:
    printed = (None, None) if gain is None else (Value(80.0 + gain, std), Value(80.0, std))
    return judge(CLAIM, better, than, *printed, tier, declared)


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


def test_a_short_tier_has_words_of_its_own() -> None:
    """The intervals of the tests above; none of them can say anything of the paper."""
    cases = {(1.9, 2.0, 2.1): "gain", (-1.9, -2.0, -2.1): "no gain", (-1.0, 1.0, 3.0): "undecided"}
    for gains, kind in cases.items():
        for published in (2.0, 9.0, None):
            result = verdict(shifted(*gains), gain=published, tier="short")
            assert result.kind == kind
    assert verdict({}, tier="short").kind == "not run"
    assert verdict({0: 88.0}, {1: 86.0}, tier="short").kind == "undecided"
    assert verdict({0: 88.0}, {0: 86.0}, tier="short").kind == "undecided"
    undecided = verdict(shifted(-1.0, 1.0, 3.0), tier="short")
    assert "10 seeds would see the published gain with 80% power" in undecided.sentence
    vague = verdict(shifted(-1.0, 1.0, 3.0), gain=None, tier="short")
    assert (vague.seeds_needed, vague.sd) == (None, 2.0)


def test_a_short_tier_is_measured_by_the_gain_that_it_declared() -> None:
    # Differences -0.1, 0, 0.1: the interval ends at 0.248. No tolerance is added.
    none = shifted(-0.1, 0.0, 0.1)
    seen, missed = (Power(gain, 0.1, ("MUTAG",), "why", "short") for gain in (0.25, 0.24))
    assert verdict(none, tier="short", declared=seen).kind == "no gain"
    result = verdict(none, tier="short", declared=missed)
    assert (result.kind, result.seeds_needed) == ("undecided", 4)
    assert "4 seeds would see the declared gain with 80% power" in result.sentence
    assert "tolerance" not in result.sentence
    # The paper tier goes by the published gain.
    assert verdict(none, gain=0.74, declared=seen).kind == "inconclusive"


def test_power_of_known_effects() -> None:
    """The usual tables of power for a paired t test."""
    assert power_of(34, 0.5, 1.0) == pytest.approx(0.808, abs=1e-3)
    assert power_of(10, -2.0, 2.0) == pytest.approx(0.803, abs=1e-3)
    assert (power_of(1, 9.0, 1.0), power_of(5, 0.0, 1.0), power_of(2, 0.1, 0.0)) == (0, 0, 1)
    for n in (2, 5, 20):
        assert power_of(n, 1.0, 1.5) < power_of(n + 1, 1.0, 1.5)


def test_every_kind_is_decided_or_leaves_the_claim_open() -> None:
    assert set(KINDS) - set(DECIDED) == {"inconclusive", "undecided", "no evidence", "not run"}
    assert set(KINDS) == set(KIND_COLOURS)  # each has a look in the terminal, and on the page
    assert set(KINDS) == set(SHAPES)
    style = (ROOT / "shared/report/site.css").read_text()
    assert all(f".{slug(kind)}" in style for kind in KINDS)


def test_interquartile_mean_of_known_values() -> None:
    assert interquartile_mean([8, 1, 2, 3, 4, 5, 6, -700]) == 3.5  # 2, 3, 4, 5
    assert interquartile_mean([900, 1, 2, 3, 4]) == 3.0  # a quarter of five is one value
    assert interquartile_mean([1, 2, 6]) == 3.0  # of three none
    assert interquartile_mean([7.5]) == 7.5
    values = np.random.default_rng(3).normal(size=(4, 37))
    expected = [math.fsum(sorted(line)[9:28]) / 19 for line in values.tolist()]
    assert interquartile_mean(values).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf, 1.0, 2.0, 3.0]])
def test_interquartile_mean_refuses(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value, and finite ones only"):
        interquartile_mean(values)


def test_bootstrap_resamples_the_seeds_of_each_column() -> None:
    columns = [[1.0, 2.0, 4.0], [100.0, 130.0], [7.0, 7.0, 7.0, 9.0]]
    generator = np.random.default_rng(0)
    chosen = [generator.integers(len(each), size=(RESAMPLES, len(each))) for each in columns]
    means = []
    for resample in range(RESAMPLES):
        values = []
        for column, indices in zip(columns, chosen, strict=True):
            values += [column[index] for index in indices[resample]]
        means.append(stats.trim_mean(values, 0.25))
    expected = np.percentile(means, [2.5, 97.5])
    assert stratified_bootstrap(columns, interquartile_mean) == pytest.approx(tuple(expected))


def test_bootstrap_does_not_mix_columns() -> None:
    """However far apart columns lie, an interval is as wide as their seeds are."""
    columns = [[0.0, 0.2, 0.1], [500.0, 500.1], [1000.0, 1000.2, 1000.1, 1000.3]]
    interval = stratified_bootstrap(columns, lambda values: values.mean(axis=-1))
    assert interval is not None
    low, high = interval
    assert 0 < high - low < 0.3
    assert low < np.mean([value for column in columns for value in column]) < high


def test_bootstrap_needs_two_seeds_in_every_column() -> None:
    assert stratified_bootstrap([[1.0], [2.0]], interquartile_mean) is None
    assert stratified_bootstrap([[1.0, 3.0], [2.0]], interquartile_mean) is None
    for columns in ([], [[1.0, 2.0], []]):
        with pytest.raises(ValueError, match="at least one value in every column"):
            stratified_bootstrap(columns, interquartile_mean)


def test_bootstrap_covers_about_as_often_as_it_says() -> None:
    """Three columns of 20 seeds, symmetric about 0, 10 and 20: their interquartile mean is 10."""
    generator, covered, trials = np.random.default_rng(1), 0, 300
    for _ in range(trials):
        columns = generator.normal([[0.0], [10.0], [20.0]], [[1.0], [2.0], [1.0]], size=(3, 20))
        interval = stratified_bootstrap(columns.tolist(), interquartile_mean)
        assert interval is not None
        covered += interval[0] <= 10 <= interval[1]
    assert 0.89 <= covered / trials <= 0.98


def test_seeds_that_would_see_the_published_gain() -> None:
    two, nought = Value(82.0), Value(80.0)
    better = shifted(-1.0, 1.0, 3.0)  # deviation 2: effect 1
    sentence = "10 seeds would see the published gain with 80% power."
    assert seeds_sentence(better, THEIRS, two, nought) == sentence
    assert seeds_sentence(shifted(9.0, 11.0, 13.0), THEIRS, two, nought) == sentence
    # The measured deviation comes before the printed ones.
    assert seeds_sentence(better, THEIRS, Value(82.0, 9.0), Value(80.0, 9.0)) == sentence
    assert seeds_sentence(better, THEIRS, two, Value(82.0)) == ""
    assert seeds_sentence(better, THEIRS, two, None) == ""


def test_seeds_from_the_printed_deviations() -> None:
    printed = (Value(82.0, 1.2), Value(80.0, 1.6))  # of the difference: 2, so effect 1
    expected = (
        "10 seeds would see the published gain with 80% power, from the printed deviations of "
        "independent runs."
    )
    for better, than in (({}, {}), ({0: 88.0}, THEIRS), ({7: 88.0, 8: 89.0}, THEIRS)):
        assert seeds_sentence(better, than, *printed) == expected
    assert seeds_sentence({}, {}, Value(82.0, 1.2), Value(80.0)) == ""
    assert seeds_sentence({}, {}, Value(80.0, 1.2), Value(80.0, 1.2)) == ""
