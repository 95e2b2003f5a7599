"""Outcomes of claims: one reading for each column of each table, and a finding over them.

A :class:`Reading` is one claim in one column of one table and tier; a :class:`Finding` is one claim
over all its readings at one setting. The rules are registered in ``docs/claims.md``.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from shared.experiment.runs import write_atomically
from shared.experiment.tables import Claim, Comparison, Form, SettingWord, Tier, Value
from shared.report.items import sentence as mcnemar_sentence
from shared.report.measuring import (
    Measured,
    MeasuredCell,
    differing_data,
    noise_of,
    refuse_smoke,
    trivial_baseline_of,
)
from shared.report.statistics import LEVEL, ColumnModel, Estimate, Model, holm, seeds_for, summarise
from shared.report.wording import counted

CLAIMS = "claims.json"
FORM = "claims-v4"
BELOW = "scores below the trivial baseline"  # in the remark on a trained row
Outcome = Literal["confirmed", "contradicted", "partly", "imprecise", "not measured"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SETTINGS: tuple[SettingWord, ...] = get_args(SettingWord)


@dataclass(frozen=True)
class Reading:
    """One claim in one column of one table and tier.

    Gains are in the unit of the metric, ``better`` minus ``than``.

    Args:
        claim: the claim.
        address: ``domain/paper/table`` of the table.
        tier: the tier of the runs.
        setting: ``paper's``, ``rebuilt`` (details that the paper leaves out were filled in) or
            ``reduced``.
        differences: what differs most from the paper, up to three sentences.
        better: label of the row whose gain is measured.
        than: label of the row that it is compared with.
        column: label of the column.
        metric: key of the result.
        unit: unit of the metric.
        protocol: name and version of the evaluation protocol.
        outcome: one of ``OUTCOMES``.
        gain: the estimate; None where a row has no finished seed.
        low: lower end of its 95% interval; None where a row has fewer than two seeds.
        high: upper end.
        error: standard error of the gain.
        freedom: degrees of freedom of the interval.
        model: the basis of the interval: ``pooled`` (residual of all rows), ``Welch`` (two rows,
            unequal variances), ``seed-blocked`` (rows and seeds), ``paired`` (two rows, common
            seeds).
        p: two-sided p value of the claim's null hypothesis; 1 for a gain on its wrong side.
        adjusted: ``p`` adjusted by Holm over the claim's readings at this setting; equals ``p``
            where the claim is about every column.
        against: two-sided p value of the claimed or published gain; small where the measured gain
            excludes it.
        published: the published gain; None where the paper gives none.
        published_error: standard error of the published gain; None where no deviation is published.
        seeds_better: the finished seeds of ``better``.
        seeds_than: the finished seeds of ``than``.
        seeds_needed: seeds for each row with which 80% of studies would detect the published or
            claimed gain; None unless a gain above 0 is claimed or published and the outcome is
            ``imprecise``.
        remarks: trivial baselines above a trained row, a metric that ranks the rows differently,
            numerical noise, different data; a sentence each.
    """

    claim: Claim
    address: str
    tier: Tier
    setting: SettingWord
    differences: tuple[str, ...]
    better: str
    than: str
    column: str
    metric: str
    unit: str
    protocol: str
    outcome: Outcome
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    freedom: float | None = None
    model: Model | None = None
    p: float | None = None
    adjusted: float | None = None
    against: float | None = None
    published: float | None = None
    published_error: float | None = None
    seeds_better: tuple[int, ...] = ()
    seeds_than: tuple[int, ...] = ()
    seeds_needed: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def table(self) -> str:
        """Name of the table."""
        return self.address.rpartition("/")[2]

    @property
    def measured(self) -> bool:
        """Whether both rows have a finished seed."""
        return self.outcome != "not measured"


@dataclass(frozen=True)
class Finding:
    """One claim over all its readings at one setting.

    Args:
        claim: the claim, with the comparisons of the first reading.
        setting: where the readings were measured.
        outcome: one of ``OUTCOMES``.
        tally: the number of readings by outcome, without zeros, in the order of ``OUTCOMES``.
        sentence: the result in one sentence with numbers.
        readings: the readings.
    """

    claim: Claim
    setting: SettingWord
    outcome: Outcome
    tally: tuple[tuple[Outcome, int], ...]
    sentence: str
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class _Unadjusted:
    """A reading with unadjusted p values, of the claim and of its direction."""

    reading: Reading
    direction: float | None


def readings(measured: Iterable[Measured]) -> tuple[Reading, ...]:
    """Every reading of the measured tables, table by table, claim by claim, column by column.

    Args:
        measured: all tables; p values are adjusted over the readings of a claim in them.

    Raises:
        ValueError: a table of the smoke tier, which never enters results.
    """
    unadjusted: list[_Unadjusted] = []
    for each in measured:
        refuse_smoke(each)
        unadjusted += _of_table(each)
    families: dict[tuple[str, SettingWord], list[int]] = {}
    for place, one in enumerate(unadjusted):
        if one.reading.p is not None:
            families.setdefault((one.reading.claim.id, one.reading.setting), []).append(place)
    found = [each.reading for each in unadjusted]
    for places in families.values():
        some = [unadjusted[place] for place in places]
        plain = [[each.reading.p or 0.0 for each in some], [each.direction or 0.0 for each in some]]
        every = some[0].reading.claim.every
        adjusted, direction = plain if every else map(holm, plain)
        for place, one, of_claim, of_direction in zip(
            places, some, adjusted, direction, strict=True
        ):
            outcome = _outcome(one.reading, of_claim, of_direction)
            found[place] = replace(one.reading, adjusted=of_claim, outcome=outcome)
    return tuple(_with_seeds_needed(each) for each in found)


def findings(every: Sequence[Reading]) -> tuple[Finding, ...]:
    """The findings of the readings: papers first, then additional questions; by claim, setting."""
    groups: dict[tuple[str, SettingWord], list[Reading]] = {}
    for each in every:
        groups.setdefault((each.claim.id, each.setting), []).append(each)
    order = list(dict.fromkeys(key[0] for key in groups))
    found = [_finding(some) for some in groups.values()]
    return tuple(
        sorted(
            found,
            key=lambda each: (
                each.claim.additional,
                order.index(each.claim.id),
                SETTINGS.index(each.setting),
            ),
        )
    )


def json_text(every: Sequence[Reading]) -> str:
    """The text of ``claims.json``: one line for each reading.

    ``claims`` has the claims by identifier, which each of ``readings`` refers to.
    """
    claims = {
        name: {
            key: value
            for key, value in dataclasses.asdict(claim).items()
            if key not in ("id", "comparisons")
        }
        for name, claim in {each.claim.id: each.claim for each in every}.items()
    }
    said = ",\n".join(f"{json.dumps(key)}: {_line(value)}" for key, value in claims.items())
    lines = ",\n".join(
        _line(
            {
                item.name: each.claim.id if item.name == "claim" else getattr(each, item.name)
                for item in dataclasses.fields(each)
            }
        )
        for each in every
    )
    return f'{{"form": "{FORM}",\n"claims": {{\n{said}\n}},\n"readings": [\n{lines}\n]}}\n'


def write(results: Path, every: Sequence[Reading]) -> None:
    """Write ``results/claims.json``, moved over its target."""
    write_atomically(results / CLAIMS, json_text(every))


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _of_table(measured: Measured) -> Iterator[_Unadjusted]:
    """The readings of one table, claim by claim, with unadjusted p values."""
    table, tier = measured.table, measured.tier
    models: dict[tuple[str, str], ColumnModel] = {}
    for claim in table.claims:
        for comparison in claim.comparisons:
            for label in comparison.columns if tier in comparison.tiers else ():
                column = measured.column(label)
                metric = comparison.metric or table.metric_of(column[0].column)
                if (label, metric) not in models:
                    values = {
                        cell.row.label: cell.read(metric)
                        for cell in column
                        if not (cell.row.baseline and len(set(cell.read(metric).values())) < 2)
                    }
                    models[label, metric] = ColumnModel(values, blocked=table.blocked)
                yield _read(measured, claim, comparison, column, metric, models[label, metric])


def _read(
    measured: Measured,
    claim: Claim,
    comparison: Comparison,
    column: Sequence[MeasuredCell],
    metric: str,
    model: ColumnModel,
) -> _Unadjusted:
    """One reading with its estimate, p values and remarks."""
    table = measured.table
    setting = table.setting(measured.tier)
    rows = {cell.row.label: cell for cell in column}
    better, than = rows[comparison.better], rows[comparison.than]
    first, second = better.read(metric), than.read(metric)
    published, published_error = None, None
    if metric == table.metric_of(better.column):
        published, published_error = _published_gain(
            better.published, than.published, table.published.runs
        )
    reading = Reading(
        claim=claim,
        address=table.address,
        tier=measured.tier,
        setting=setting.word,
        differences=setting.differences_of(claim.paper),
        better=comparison.better,
        than=comparison.than,
        column=better.column.label,
        metric=metric,
        unit=table.unit_of(metric),
        protocol=table.protocol,
        outcome="imprecise" if first and second else "not measured",
        published=published,
        published_error=published_error,
        seeds_better=tuple(sorted(first)),
        seeds_than=tuple(sorted(second)),
    )
    if not (first and second):
        return _Unadjusted(reading, None)
    estimate = model.estimate(comparison.better, comparison.than)
    gain = summarise(first.values()).mean - summarise(second.values()).mean
    remarks = _remarks(better, than, column, comparison, metric, estimate)
    if estimate is None:
        return _Unadjusted(replace(reading, gain=gain, remarks=remarks), None)
    low, high = estimate.interval
    if published is not None and estimate.p_above(published) < LEVEL:
        remarks = (*remarks, f"The gain is larger than the published {published:+z.2f}.")
    p, direction, against = _p_values(claim, estimate, published, published_error or 0.0)
    reading = replace(
        reading,
        gain=estimate.gain,
        low=low,
        high=high,
        error=estimate.error,
        freedom=estimate.freedom,
        model=estimate.model,
        p=p,
        against=against,
        remarks=remarks,
    )
    return _Unadjusted(reading, direction)


def _published_gain(
    better: Value | None, than: Value | None, runs: int
) -> tuple[float | None, float | None]:
    """The published gain and its standard error; None for what is not stated."""
    if better is None or than is None:
        return None, None
    # Published numbers have few digits; rounding removes the error of the subtraction.
    gain = round(better.mean - than.mean, 9)
    if better.std is None or than.std is None:
        return gain, None
    return gain, math.hypot(better.std, than.std) / math.sqrt(runs)


def _p_values(
    claim: Claim, estimate: Estimate, published: float | None, published_error: float
) -> tuple[float, float, float]:
    """P values of the claim's null hypothesis, of its direction, and of the claim itself."""
    above, below = estimate.p_above, estimate.p_below
    margin, size = claim.margin or 0.0, claim.size or 0.0
    too_small = 1.0 if published is None else below(published, published_error)
    cases: dict[Form, Callable[[], tuple[float, float, float]]] = {
        "superiority": lambda: (above(0), above(0), min(below(0), too_small)),
        "size": lambda: (above(size), above(0), below(size)),
        "comparable": lambda: (above(-margin), above(-margin), min(below(-margin), too_small)),
        "null": lambda: (
            max(above(-margin), below(margin)),
            max(above(-margin), below(margin)),
            min(above(margin), below(-margin)),
        ),
    }
    return cases[claim.form]()


def _outcome(reading: Reading, adjusted: float, direction: float) -> Outcome:
    """The outcome of a reading that has an interval."""
    excluded = reading.against is not None and reading.against < LEVEL
    if adjusted < LEVEL and not excluded:
        return "confirmed"
    if direction < LEVEL and excluded:
        return "partly"
    return "contradicted" if excluded else "imprecise"


def _with_seeds_needed(reading: Reading) -> Reading:
    """The reading with the number of seeds needed, where it is imprecise and that is known."""
    targets = {"size": reading.claim.size, "superiority": reading.published}
    target = targets.get(reading.claim.form)
    if reading.outcome != "imprecise" or not target or target < 0 or reading.error is None:
        return reading
    seeds = (len(reading.seeds_better), len(reading.seeds_than))
    sd = reading.error / math.sqrt(1 / seeds[0] + 1 / seeds[1])
    return replace(reading, seeds_needed=seeds_for(target, sd))


def _remarks(
    better: MeasuredCell,
    than: MeasuredCell,
    column: Sequence[MeasuredCell],
    comparison: Comparison,
    metric: str,
    estimate: Estimate | None,
) -> tuple[str, ...]:
    """Remarks beside an outcome, a sentence each."""
    remarks = []
    if estimate is None:
        remarks.append("A row with one seed has no interval.")
    trivial = trivial_baseline_of(column, metric)
    for cell in (better, than):
        mean = summarise(cell.read(metric).values()).mean
        if trivial is not None and not cell.row.baseline and mean < trivial[1]:
            remarks.append(
                f"{cell.row.label} ({mean:.2f}) {BELOW} '{trivial[0]}' ({trivial[1]:.2f})."
            )
    if comparison.beside:
        first, second = (cell.read(comparison.beside) for cell in (better, than))
        if first and second and estimate is not None:
            gain = summarise(first.values()).mean - summarise(second.values()).mean
            if gain * estimate.gain < 0:
                remarks.append(f"By {comparison.beside} the gain has the other sign: {gain:+z.2f}.")
    noise = noise_of(column, metric)
    if noise is not None:
        beside = "" if noise.over_seeds is None else f"; over seeds it is {noise.over_seeds:.2f}"
        remarks.append(
            f"Numerical noise: rerunning {counted(noise.cells, 'seed')} of "
            f"{' and '.join(noise.rows)} with sums in another order gives a standard deviation of "
            f"{noise.sd:.2f}{beside}."
        )
    if differing := differing_data(better, than):
        remarks.append(f"The two rows were measured on different data: {', '.join(differing)}.")
    if items := mcnemar_sentence(better.records, than.records, metric):
        remarks.append(items)
    return tuple(remarks)


def _finding(some: Sequence[Reading]) -> Finding:
    """One claim at one setting over its readings."""
    claim = some[0].claim
    measured = [each for each in some if each.measured]
    counts = Counter(each.outcome for each in some)
    tally = tuple((word, counts[word]) for word in OUTCOMES if counts[word])
    against = [each.against for each in measured if each.against is not None]
    excluded = any(p < LEVEL for p in holm(against))
    whole = len(measured) == len(some) or not claim.every
    outcome: Outcome = "imprecise"
    if not measured:
        outcome = "not measured"
    elif counts["confirmed"] == len(measured) and whole:
        outcome = "confirmed"
    elif excluded and (claim.every or not counts["confirmed"] + counts["partly"]):
        outcome = "contradicted"
    elif counts["confirmed"] or counts["partly"]:
        outcome = "partly"
    text = _sentence(claim, some, measured, tally)
    return Finding(claim, some[0].setting, outcome, tally, text, tuple(some))


def _sentence(
    claim: Claim,
    some: Sequence[Reading],
    measured: Sequence[Reading],
    tally: Sequence[tuple[Outcome, int]],
) -> str:
    """The result, with numbers."""
    if not measured:
        return f"None of {len(some)} readings was measured."
    if len(measured) == 1:
        (one,) = measured
        said = f"{one.better} vs. {one.than} on {one.column}: gain {one.gain:+z.2f}"
        if one.low is not None:
            said += f" [{one.low:+z.2f}, {one.high:+z.2f}]"
    else:
        gains = [each.gain for each in measured if each.gain is not None]
        said = f"Gains from {min(gains):+z.2f} to {max(gains):+z.2f}"
    if claim.size is not None:
        said += f", at least {claim.size:+g} claimed"
    if claim.margin is not None:
        said += f", with a margin of {claim.margin:g} ({claim.margin_source})"
    words = ", ".join(f"{number} {word}" for word, number in tally)
    return f"{said}; of {len(some)} readings {words}."
