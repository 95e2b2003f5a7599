"""What a verdict rests on beside its interval, and whether it counts.

A verdict that says yes or no counts only where

- no trained row that it compares lies below a floor of its column, else it is *no evidence*;
- the gain has the same sign in the claim's second read-out, where it names one, else the claim
  stays open;
- the tier declared beforehand what it is to see (``shared.experiment.tables.Power``);
- the gain lies further than the arithmetic spread from what would turn the verdict over: a yes from
  0, a no from the gain that it denies, the published one or in a shorter tier the declared one. The
  spread is how far the same seed moves under other code paths of the processor, as measured by
  repeats;
- both rows were measured on the same data, by their hashes.

Spreads are sample standard deviations; where several groups are taken together, their variances are
averaged with their degrees of freedom as weights.
"""

import math
import statistics as plain
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shared.experiment.tables import Claim, Power, Tier
from shared.report.statistics import DECIDED, Kind, Verdict, power_of, seeds_for

NO_POWER = "no power was declared"
WITHIN_ARITHMETIC = "the arithmetic spread could turn it over"
OTHER_DATA = "its rows were measured on different data"


@dataclass(frozen=True)
class Floor:
    """The highest of the trivial rows of a column: its label and its mean."""

    row: str
    mean: float


@dataclass(frozen=True)
class ArithmeticSpread:
    """How far one seed moves under other code paths, in one column.

    Args:
        sd: over paths, of the same seed, pooled over the repeated cells.
        over_seeds: over seeds, of the rows that were repeated, pooled; None where they have one.
        cells: how many cells were repeated.
        runs: how many runs those are, the counted ones among them.
    """

    sd: float
    over_seeds: float | None
    cells: int
    runs: int


@dataclass(frozen=True)
class Weighed:
    """A verdict with what it rests on.

    Args:
        verdict: the verdict, left open or void where it has to be.
        remarks: what is to be said of it, a sentence each.
        against: why it does not count although it says yes or no; empty if it counts or is open.
    """

    verdict: Verdict
    remarks: tuple[str, ...]
    against: tuple[str, ...]


def pooled(groups: Iterable[Sequence[float]]) -> float | None:
    """The deviation within groups, pooled; None where no group has two values."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            squares += plain.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def weigh(
    verdict: Verdict,
    claim: Claim,
    tier: Tier,
    *,
    trained: Sequence[tuple[str, float]] = (),
    floor: Floor | None = None,
    second: float | None = None,
    arithmetic: ArithmeticSpread | None = None,
    power: Power | None = None,
    seeds: int = 0,
    differing: Sequence[str] = (),
) -> Weighed:
    """Hold a verdict against the evidence, by the rules of this module.

    Args:
        verdict: what the interval says.
        claim: the claim; only its second read-out matters here.
        tier: the tier that was judged.
        trained: label and mean of those of the two rows that are no floors.
        floor: the highest floor of the column; None if none is measured.
        second: the gain in the second read-out; None if it is not measured.
        arithmetic: of the column; None if nothing was repeated.
        power: what the tier is to see in the column; None if nothing was declared.
        seeds: how many seeds both rows are declared to have.
        differing: data that both rows used, with other hashes.
    """
    if verdict.kind == "not run":
        return Weighed(verdict, (), ())
    kind: Kind = verdict.kind
    open_: Kind = "inconclusive" if tier == "paper" else "undecided"
    remarks: list[str] = []
    against: list[str] = []
    if claim.second:
        if second is None:
            remarks.append(f"The second read-out, {claim.second}, is not measured.")
            agrees = False
        else:
            agrees = verdict.gain is not None and _sign(second) == _sign(verdict.gain)
            how = "agrees" if agrees else "disagrees"
            remarks.append(
                f"The second read-out, {claim.second}, {how} in sign: gain {second:+.2f}."
            )
        kind = kind if agrees or kind not in DECIDED else open_
    below = [] if floor is None else [each for each in trained if each[1] < floor.mean]
    if floor is not None and below:
        kind = "no evidence"
        rows = " and ".join(f"{label} ({mean:.2f})" for label, mean in below)
        remarks.append(f"Below the floor '{floor.row}' ({floor.mean:.2f}): {rows}.")
    if arithmetic is not None and verdict.gain is not None:
        denied = _denied(verdict, tier, power)
        if abs(verdict.gain - denied) <= arithmetic.sd:
            against.append(WITHIN_ARITHMETIC)
            what = f"The gain of {denied:g} that is denied is no further away than"
            remarks.append(
                f"{what if denied else 'The gain does not exceed'} the arithmetic spread of "
                f"{arithmetic.sd:.2f}: so far does the same seed move under other code paths."
            )
    if differing:
        against.append(OTHER_DATA)
        remarks.append(f"Its rows were measured on different data: {', '.join(differing)}.")
    if power is None:
        against.append(NO_POWER)
    elif verdict.sd is not None:
        used = len(verdict.seeds_used)
        declared, reached = powers_of(power, verdict, seeds)
        assert reached is not None  # there is a spread
        remarks.append(
            f"Power for the declared gain of {power.gain:g}: declared {declared:.2f} ({seeds} "
            f"seeds, spread {power.spread:.2f}), reached {reached:.2f} ({used} seeds, spread "
            f"{verdict.sd:.2f})."
        )
    if kind not in DECIDED:
        against = []
    elif against:
        remarks.append(f"Does not count: {'; '.join(against)}.")
    return Weighed(replace(verdict, kind=kind), tuple(remarks), tuple(against))


def _denied(verdict: Verdict, tier: Tier, power: Power | None) -> float:
    """The gain that a verdict says no to; 0 for one that says yes or leaves it open."""
    if verdict.kind not in ("not reproduced", "no gain"):
        return 0.0
    asked = verdict.published_gain if tier == "paper" else power and power.gain
    return asked or 0.0


def powers_of(power: Power, verdict: Verdict, seeds: int) -> tuple[float, float | None]:
    """The power for the declared gain: as declared, and as the measured spread makes it.

    Args:
        power: what was declared.
        verdict: whose seeds and spread are taken.
        seeds: how many seeds are declared.

    Returns:
        Both powers; None for the second where fewer than two seeds leave no spread.
    """
    used = len(verdict.seeds_used)
    reached = None if verdict.sd is None else power_of(used, power.gain, verdict.sd)
    return power_of(seeds, power.gain, power.spread), reached


def power_sentence(power: Power, fewest: int) -> str:
    """What a tier is to see, and whether the declared seeds suffice.

    Args:
        power: what was declared.
        fewest: the fewest seeds that a claim of these columns rests on, as declared.
    """
    needed = seeds_for(power.gain, power.spread)
    assert needed is not None  # a declared gain is above 0
    enough = f"{fewest} are declared" if fewest >= needed else f"only {fewest} are declared"
    return (
        f"{', '.join(power.columns)}: to see a gain of {power.gain:g} at a spread of "
        f"{power.spread:g} with 80% power takes {needed} seeds; {enough}. {power.why}"
    )


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
