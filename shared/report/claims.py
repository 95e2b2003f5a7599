"""Every claim as data: its readings, one for each column of each table, and what they come to.

A :class:`Reading` is one claim in one column of one table and tier; a :class:`Finding` is one claim
over all its readings at one setting. The rules are registered in ``docs/claims.md``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from shared.experiment.tables import Claim, Tier
from shared.report.measuring import Measured

Outcome = Literal["confirmed", "contradicted", "partly", "imprecise", "not measured"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Setting = Literal["paper's", "rebuilt", "reduced"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
Model = Literal["pooled", "Welch", "seed-blocked", "paired"]


@dataclass(frozen=True)
class Reading:
    """One claim in one column of one table and tier.

    Gains are in the unit of the metric, ``better`` minus ``than``.

    Args:
        claim: the claim.
        address: ``domain/paper/table`` of the table that it is read from.
        tier: the tier of the runs.
        setting: ``paper's``, ``rebuilt`` (what the paper leaves out was filled in) or ``reduced``.
        differences: what differs most from the paper, up to three sentences.
        better: label of the row that the gain is of.
        than: label of the row that it is measured against.
        column: label of the column.
        metric: key of the result.
        unit: unit of the metric.
        protocol: name and version of the evaluation protocol.
        outcome: one of ``OUTCOMES``.
        gain: the estimate; None where a row has no finished seed.
        low: lower end of its 95% interval; None where a row has fewer than two seeds.
        high: upper end.
        freedom: degrees of freedom of the interval.
        model: what it rests on: ``pooled`` (residual of all rows), ``Welch`` (two rows, unequal
            variances), ``seed-blocked`` (rows and seeds), ``paired`` (two rows, common seeds).
        p: two-sided p value of the claim's null hypothesis; 1 for a gain on its wrong side.
        adjusted: ``p`` adjusted by Holm over the claim's readings at this setting; equals ``p``
            where the claim is said of every column.
        against: two-sided p value of what the claim, or the printed gain, says; small where the
            measured gain excludes it.
        printed: the printed gain; None where the paper prints none.
        printed_error: standard error of the printed gain; None where no deviation is printed.
        seeds_better: the finished seeds of ``better``.
        seeds_than: the finished seeds of ``than``.
        seeds_needed: seeds for each row with which the printed or claimed gain would be seen in 80%
            of studies; None unless the outcome is ``imprecise`` and such a gain above 0 is known.
        remarks: trivial baselines above a trained row, a metric that orders the rows otherwise,
            numerical noise, different data; a sentence each.
    """

    claim: Claim
    address: str
    tier: Tier
    setting: Setting
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
    freedom: float | None = None
    model: Model | None = None
    p: float | None = None
    adjusted: float | None = None
    against: float | None = None
    printed: float | None = None
    printed_error: float | None = None
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
        claim: the claim, as the first of the readings has it.
        setting: where the readings were measured.
        outcome: one of ``OUTCOMES``.
        tally: how many readings have which outcome, without zeros, in the order of ``OUTCOMES``.
        sentence: what came out, in one sentence with numbers.
        readings: the readings.
    """

    claim: Claim
    setting: Setting
    outcome: Outcome
    tally: tuple[tuple[Outcome, int], ...]
    sentence: str
    readings: tuple[Reading, ...]


def readings(measured: Iterable[Measured]) -> tuple[Reading, ...]:
    """Every reading of the measured tables, table by table, claim by claim, column by column.

    Args:
        measured: all tables whose readings belong together: p values are adjusted over them.

    Raises:
        ValueError: a table of the smoke tier, which never enters results.
    """
    raise NotImplementedError


def findings(every: Sequence[Reading]) -> tuple[Finding, ...]:
    """The claims of some readings: papers first, then additional questions; by claim, setting."""
    raise NotImplementedError


def json_text(every: Sequence[Reading]) -> str:
    """The text of ``claims.json``: one line for each reading."""
    raise NotImplementedError


def write(results: Path, every: Sequence[Reading]) -> None:
    """Write ``results/claims.json``, moved over its target."""
    raise NotImplementedError
