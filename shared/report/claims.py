"""Words for claims: one reading for each column of each table, and a finding over them.

A :class:`Reading` is one claim in one column of one table and tier; a :class:`Finding` is one claim
over all its readings at one setting. The rules are in ``docs/claims.md``.
"""

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from shared.experiment.files import write_atomically
from shared.experiment.frame import NOT_RUN
from shared.experiment.records import Record
from shared.experiment.tables import Claim, Comparison, SettingWord, Table, Tier, Value
from shared.objective import SHARE
from shared.report.items import sentence as mcnemar_sentence
from shared.report.measuring import Measured, MeasuredCell, differing, highest, refuse_smoke
from shared.report.statistics import (
    LEVEL,
    ColumnModel,
    Estimate,
    Summary,
    Values,
    holm,
    seeds_for,
    summarise,
    welch_of,
    wider,
)

CLAIMS, SHARES, ITERATIONS = "claims.json", "shares.json", "iterations.json"
FORM = "claims-v7"
SAME_COST = 1.25  # times the baseline's seconds an iteration, the margin of the suite
INERT = 0.01  # share of the gradient on the embeddings below which a term is inert
NEAR = 1.0  # point, from the accuracy of the largest class, within which a row has collapsed
RANK = 2.0  # effective rank of the features below which a row has collapsed
RUNS = 3  # of a published mean, where the paper does not state them
Outcome = Literal[
    "confirmed",
    "partly",
    "contradicted",
    "agrees",
    "disagrees",
    "mixed",
    "open",
    "one seed",
    "collapsed",
    "baseline collapsed",
    "below the bar",
    "inert",
    "uninformative",
    "not run",
]
SILENT: tuple[Outcome, ...] = ("collapsed", "baseline collapsed", "below the bar", "inert")
FOR: tuple[Outcome, ...] = ("agrees", "confirmed", "partly")
AGAINST: tuple[Outcome, ...] = ("disagrees", "contradicted")
SETTINGS: tuple[SettingWord, ...] = get_args(SettingWord)
Shares = Mapping[tuple[str, Tier, str], float]  # by address, tier and row


@dataclass(frozen=True)
class Reading:
    """One claim in one column of one table and tier; in the order of fields in ``claims.json``."""

    claim: Claim
    address: str  # ``domain/paper/table`` of the table
    tier: Tier
    # ``paper's``, ``rebuilt`` (details that the paper leaves out were filled in) or ``reduced``.
    setting: SettingWord
    differences: tuple[str, ...]  # what differs most from the paper, up to three sentences
    better: str  # label of the row whose gain is measured
    than: str  # label of the row that it is compared with
    column: str
    metric: str  # key of the result
    unit: str  # of the metric
    protocol: str  # name and version of the evaluation protocol
    outcome: Outcome = "open"  # or why it has none
    # ``better`` minus ``than`` in the unit of the metric: the difference of the means, of the
    # estimate with the wider interval if there is one.
    gain: float | None = None
    low: float | None = None  # lower end of the wider 95% interval; None without one
    high: float | None = None  # its upper end
    estimates: tuple[Estimate, ...] = ()  # of the gain; both have to give the outcome
    p: float | None = None  # the larger p value of the two estimates
    # ``p`` after Holm's adjustment, or ``p`` itself for a claim about every dataset; None for a
    # reading that is in no family.
    adjusted: float | None = None
    level: float | None = None  # mean of the two rows
    bar: float | None = None  # that of the table's bar in the column; None without one
    bar_row: str = ""  # the row that is the bar
    # The published gain; None where the paper does not give both rows.
    published: float | None = None
    # Its standard error; None where the paper gives no deviations.
    published_error: float | None = None
    seeds_better: tuple[int, ...] = ()  # finished seeds of ``better``
    seeds_than: tuple[int, ...] = ()  # finished seeds of ``than``
    looked: bool = False  # whether seeds of a row were added after others had been seen
    failed: str = ""  # how many seeds of which rows were run and gave no number
    # Seeds of each row with which 80% of studies would see the published or claimed gain after
    # Holm's adjustment; None unless there is one above 0 and the reading is open.
    seeds_needed: int | None = None
    # A metric that ranks the rows differently, other data or processors, test items; a sentence
    # each.
    remarks: tuple[str, ...] = ()

    @property
    def table(self) -> str:
        """Name of the table."""
        return self.address.rpartition("/")[2]

    @property
    def measured(self) -> bool:
        """Whether both rows have a finished seed."""
        return self.outcome != "not run"

    @property
    def word(self) -> str:
        """Its outcome as the reader sees it."""
        return outcome_text(self.outcome, self.claim)

    @property
    def open_by_adjustment(self) -> bool:
        """Whether it is open only because of Holm's adjustment: its own p value is small."""
        return self.outcome == "open" and self.p is not None and self.p < LEVEL


@dataclass(frozen=True)
class Finding:
    """One claim over all its readings at one setting."""

    claim: Claim  # the claim, with the comparisons of the first reading
    setting: SettingWord
    readings: tuple[Reading, ...]

    @functools.cached_property
    def outcome(self) -> Outcome:
        """Its word."""
        return _outcome_of_finding(self)

    @property
    def measured(self) -> tuple[Reading, ...]:
        """The readings of two rows with finished seeds."""
        return tuple(reading for reading in self.readings if reading.measured)

    @property
    def informative(self) -> tuple[Reading, ...]:
        """Those that have a word: with several seeds, and neither silent nor collapsed."""
        return tuple(e for e in self.measured if e.outcome not in (*SILENT, "one seed"))

    @property
    def word(self) -> str:
        """Its outcome as the reader sees it."""
        at_paper = self.setting == "paper's" and not self.claim.additional
        outcome = "agrees" if self.outcome == "partly" and not at_paper else self.outcome
        word = outcome_text(outcome, self.claim)
        return f"{word} {self.in_part}" if self.in_part else word

    @property
    def in_part(self) -> str:
        """In how many of its informative readings the outcome holds; empty if in all, or by rule.

        A rule decides claims about every dataset or most of them.
        """
        same = next((group for group in (FOR, AGAINST) if self.outcome in group), ())
        decided = sum(reading.outcome in same for reading in self.informative)
        if self.claim.scope != "each" or decided in (0, len(self.informative)):
            return ""
        return f"in {decided} of {len(self.informative)}"


def outcome_text(outcome: Outcome, claim: Claim) -> str:
    """An outcome in the words for a paper's claim, or for a question of the suite."""
    answers = dict.fromkeys(FOR, "yes") | dict.fromkeys(AGAINST, "no")
    return answers.get(outcome, outcome) if claim.additional else outcome


def readings(measured: Iterable[Measured], shares: Shares | None = None) -> tuple[Reading, ...]:
    """Every reading of the measured tables, table by table, claim by claim, column by column.

    p values are adjusted over the readings of a claim in all of them. ``shares`` are of the
    gradient, for rows whose runs did not record it.
    """
    judged: list[Reading] = []
    for table in measured:
        refuse_smoke(table)
        judged += _readings_of(table, shares or {})
    families: dict[tuple[str, SettingWord], list[int]] = {}  # indices into the readings
    for index, reading in enumerate(judged):
        if reading.p is not None and reading.outcome == "open":
            families.setdefault((reading.claim.id, reading.setting), []).append(index)
    for family in families.values():
        p_values = [judged[index].p or 0.0 for index in family]
        for index, p, adjusted in zip(family, p_values, holm(p_values), strict=True):
            reading = judged[index]
            for_all = reading.claim.scope == "every"
            p_for = p if for_all else adjusted  # that all hold needs no adjustment
            outcome = _outcome_of(reading, p_for, adjusted)
            size = 1 if for_all else len(family)
            judged[index] = replace(
                reading,
                adjusted=p_for,
                outcome=outcome,
                seeds_needed=_seeds_needed(reading, size) if outcome == "open" else None,
            )
    return tuple(judged)


def findings(readings: Iterable[Reading]) -> tuple[Finding, ...]:
    """The findings of the readings: papers first, then additional questions; by claim, setting."""
    groups: dict[tuple[str, SettingWord], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.claim.id, reading.setting), []).append(reading)
    order = list(dict.fromkeys(claim for claim, _ in groups))
    return tuple(
        sorted(
            (Finding(group[0].claim, group[0].setting, tuple(group)) for group in groups.values()),
            key=lambda finding: (
                finding.claim.additional,
                order.index(finding.claim.id),
                SETTINGS.index(finding.setting),
            ),
        )
    )


def significant(table: Table) -> Iterator[tuple[Claim, Comparison, str, bool]]:
    """Whether the published gains of a table's claims are significant by the paper's deviations.

    Yields, for each claim of a gain, pair of published rows and column in which the paper prints
    deviations over runs, claim, comparison, column, and whether Welch's test of the published
    numbers gives p < 0.05 for a gain above 0. A number of runs that is not stated is taken as
    ``RUNS``.
    """
    labels = {row.label: row.published for row in table.rows}
    seen: set[tuple[str, str | None, str | None, str]] = set()
    for claim in table.claims:
        if claim.form in ("null", "no gain"):
            continue
        for pair in claim.comparisons:
            for column in pair.columns if "paper" in pair.tiers else ():
                key = (claim.id, labels[pair.better], labels[pair.than], column)
                values = _published_pair(table, pair, column)
                if key in seen or not all(value and value.std for value in values):
                    continue
                seen.add(key)
                n = table.published.runs or RUNS
                numbers = [(v.mean, v.std or 0.0, n) for v in values if v]
                test = welch_of(numbers[0], numbers[1])
                yield claim, pair, column, 2 * test.p_above(0) < LEVEL


def read_shares(results: Path) -> Shares:
    """The measured shares of the gradient in ``results/shares.json``, by row; none without it.

    A row has the median over what was measured of it, of its largest penalty or projection.
    """
    file = results / SHARES
    by_row: dict[tuple[str, Tier, str], list[float]] = {}
    for entry in json.loads(file.read_text())["shares"] if file.exists() else ():
        row = (entry["table"], entry["tier"], entry["row"])
        by_row.setdefault(row, []).append(max(entry["terms"].values()))
    return {row: statistics.median(largest) for row, largest in by_row.items()}


@dataclass(frozen=True)
class Cost:
    """Seconds an iteration of a row beside those of its baseline."""

    row: str  # its label
    against: str  # that of the baseline
    ratio: Summary  # of the two, over rounds
    processor: str  # on which it was timed

    @property
    def word(self) -> Outcome:
        """Whether an iteration takes about the time of the baseline's."""
        low, high = self.ratio.low, self.ratio.high
        if high is not None and high < SAME_COST:
            return "agrees"
        return "disagrees" if low is not None and low > SAME_COST else "open"


def read_costs(results: Path) -> tuple[Cost, ...]:
    """The iterations timed in ``results/iterations.json``; none without it."""
    file = results / ITERATIONS
    return tuple(
        Cost(entry["row"], entry["against"], summarise(entry["ratios"]), entry["processor"])
        for entry in (json.loads(file.read_text())["iterations"] if file.exists() else ())
    )


def json_text(readings: Sequence[Reading]) -> str:
    """The text of ``claims.json``: one line for each finding, each setting and each reading.

    ``claims`` has the claims by identifier, which the others refer to; ``settings`` what the tables
    of the readings differ in from a paper, which all readings of a table would repeat.
    """
    claims = {
        name: {
            key: value
            for key, value in dataclasses.asdict(claim).items()
            if key not in ("id", "comparisons")
        }
        for name, claim in {reading.claim.id: reading.claim for reading in readings}.items()
    }
    by_claim = ",\n".join(f"{json.dumps(key)}: {_json(value)}" for key, value in claims.items())
    outcomes = _json_lines(
        {"claim": finding.claim.id, "setting": finding.setting, "outcome": finding.outcome}
        for finding in findings(readings)
    )
    of_tables = {(r.claim.paper, r.address, r.tier): r for r in readings}
    settings = _json_lines(
        {"paper": paper, "address": address, "tier": tier}
        | {"setting": reading.setting, "differences": reading.differences}
        for (paper, address, tier), reading in of_tables.items()
    )
    fields = [f.name for f in dataclasses.fields(Reading) if f.name != "differences"]
    lines = _json_lines(
        {name: getattr(reading, name) for name in fields}
        | {"claim": reading.claim.id}
        | {"estimates": [dataclasses.asdict(estimate) for estimate in reading.estimates]}
        for reading in readings
    )
    return (
        f'{{"form": "{FORM}",\n"claims": {{\n{by_claim}\n}},\n"findings": [\n{outcomes}\n],\n'
        f'"settings": [\n{settings}\n],\n"readings": [\n{lines}\n]}}\n'
    )


def write(results: Path, readings: Sequence[Reading]) -> None:
    """Write ``results/claims.json``, moved over its target."""
    write_atomically(results / CLAIMS, json_text(readings))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_lines(values: Iterable[Any]) -> str:
    return ",\n".join(map(_json, values))


def _readings_of(measured: Measured, shares: Shares) -> Iterator[Reading]:
    """The readings of one table, claim by claim, without the words that need all of a claim's."""
    table, tier = measured.table, measured.tier
    models: dict[tuple[str, str], ColumnModel] = {}
    inert = {cells[0].row.label for cells in measured.cells if _is_inert(measured, cells, shares)}
    for claim in table.claims:
        for comparison in claim.comparisons:
            for label in comparison.columns if tier in comparison.tiers else ():
                column = measured.column(label)
                metric = comparison.metric or table.metric_of(column[0].column)
                if (label, metric) not in models:
                    models[label, metric] = column_model(
                        {cell.row.label: cell.read(metric) for cell in column},
                        {cell.row.label: [*cell.records.values()] for cell in column},
                        baselines={cell.row.label for cell in column if cell.row.baseline},
                        majority=[
                            cell.row.label
                            for cell in column
                            if cell.row.majority and cell.column.classes
                        ],
                        blocked=table.blocked,
                    )
                model = models[label, metric]
                yield _reading_of(measured, claim, comparison, column, metric, model, inert)


def column_model(
    values: Mapping[str, Values],
    records: Mapping[str, Sequence[Record]],
    *,
    baselines: Collection[str],
    majority: Sequence[str],
    blocked: bool,
) -> ColumnModel:
    """The estimates of a column, with those of its rows that have collapsed.

    Rows in ``majority`` predict the largest class; there are none where nothing is classified.
    """
    largest = next((summarise(values[x].values()).mean for x in majority if values[x]), None)
    collapsed = {
        label
        for label in values
        if label not in baselines and _has_collapsed(values[label], records[label], largest)
    }
    untrained = {
        label
        for label, found in records.items()
        if any(record.config.get("train") is False for record in found)
    }
    return ColumnModel(
        values, baselines=baselines, untrained=untrained, collapsed=collapsed, blocked=blocked
    )


def _has_collapsed(values: Values, records: Sequence[Record], largest_class: float | None) -> bool:
    """Whether every seed scores like the largest class, or has features of one direction."""
    ranks = [record.environment.get("facts", {}).get("effective_rank") for record in records]
    known = [float(rank) for rank in ranks if rank is not None]
    if known and len(known) == len(ranks) and max(known) < RANK:
        return True
    if not values or largest_class is None:
        return False
    return max(values.values()) <= largest_class + NEAR


def _is_inert(measured: Measured, cells: Sequence[MeasuredCell], shares: Shares) -> bool:
    """Whether the penalties and the projection of a row have almost no share of the gradient."""
    recorded = [
        max(numbers)
        for cell in cells
        for record in cell.records.values()
        if (numbers := _shares_of(record.environment.get("facts", {}), record.config))
    ]
    row = (measured.table.address, measured.tier, cells[0].row.label)
    share = statistics.median(recorded) if recorded else shares.get(row)
    return share is not None and share < INERT


def _shares_of(facts: Mapping[str, str], config: Mapping[str, Any]) -> list[float]:
    """The recorded shares of a run, without that of its loss."""
    loss = str((config.get("objective") or {}).get("loss", {}).get("function"))
    return [
        float(text)
        for name, text in facts.items()
        if name.startswith(SHARE) and name != f"{SHARE}{loss.partition('@')[0]}"
    ]


def _reading_of(
    measured: Measured,
    claim: Claim,
    comparison: Comparison,
    column: Sequence[MeasuredCell],
    metric: str,
    model: ColumnModel,
    inert: set[str],
) -> Reading:
    """One reading with its estimates, p value and remarks; "open" where a word may follow."""
    table = measured.table
    setting = table.setting(measured.tier)
    rows = {cell.row.label: cell for cell in column}
    better, than = rows[comparison.better], rows[comparison.than]
    first, second = better.read(metric), than.read(metric)
    published, published_error = None, None
    if metric == table.metric_of(better.column):
        pair = _published_pair(table, comparison, better.column.label)
        published, published_error = _published_gain(*pair, table.published.runs)
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
        published=published,
        published_error=published_error,
        seeds_better=tuple(sorted(first)),
        seeds_than=tuple(sorted(second)),
        looked=better.looked or than.looked,
        failed=", ".join(filter(None, map(_failed, (better, than)))),
    )
    if not (first and second):
        return replace(reading, outcome="not run")
    means = [summarise(values.values()).mean for values in (first, second)]
    bar, bar_row = highest((cell for cell in column if cell.row.bar), metric) or (None, "")
    estimates = model.estimates(comparison.better, comparison.than)
    reading = replace(
        reading,
        gain=means[0] - means[1],
        level=sum(means) / 2,
        bar=bar,
        bar_row=bar_row,
        estimates=estimates,
        remarks=_remarks(better, than, comparison, metric, means[0] - means[1]),
    )
    if estimates:
        widest = wider(estimates)
        low, high = widest.interval
        p = max(_p_value(claim, estimate) for estimate in estimates)
        reading = replace(reading, gain=widest.gain, low=low, high=high, p=p)
    return replace(reading, outcome=_why_silent(reading, better, than, model.collapsed, inert))


def _why_silent(
    reading: Reading,
    better: MeasuredCell,
    than: MeasuredCell,
    collapsed: frozenset[str],
    inert: set[str],
) -> Outcome:
    """Why a reading is not informative about its claim; "open" if it may."""
    pair = {better.row.label, than.row.label}
    with_baseline = better.row.baseline or than.row.baseline
    if than.row.label in collapsed:
        return "baseline collapsed"
    if better.row.label in collapsed:
        return "collapsed"
    assert reading.level is not None
    if not with_baseline and reading.bar is not None and reading.level < reading.bar:
        return "below the bar"
    if pair & inert and reading.claim.form in ("superiority", "size"):
        return "inert"
    fewest = min(
        len(seeds)
        for cell, seeds in ((better, reading.seeds_better), (than, reading.seeds_than))
        if not (cell.row.baseline and cell.row.seeds)  # nothing in it depends on a seed
    )
    return "one seed" if fewest < 2 else "open"


def _published_pair(
    table: Table, pair: Comparison, column: str
) -> tuple[Value | None, Value | None]:
    """The published numbers of both rows of a comparison in a column.

    None for both where the two rows are readings of one printed row, which has no gain over itself.
    """
    labels = {row.label: row.published or "" for row in table.rows}
    if labels[pair.better] == labels[pair.than]:
        return None, None
    better, than = (
        table.published.value(labels[label], column) for label in (pair.better, pair.than)
    )
    return better, than


def _published_gain(
    better: Value | None, than: Value | None, runs: int | None
) -> tuple[float | None, float | None]:
    """The published gain and its standard error; None for what is not stated."""
    if better is None or than is None:
        return None, None
    # Published numbers have few digits; rounding removes the error of the subtraction.
    gain = round(better.mean - than.mean, 9)
    if better.std is None or than.std is None:
        return gain, None
    return gain, math.hypot(better.std, than.std) / math.sqrt(runs or RUNS)


def _p_value(claim: Claim, estimate: Estimate) -> float:
    """Two-sided p value of the gain against what the claim excludes."""
    margin = claim.margin or 0.0
    if claim.form == "null":
        return min(1.0, 2 * max(estimate.p_above(-margin), estimate.p_below(margin)))
    return estimate.p_value(_threshold(claim))


def ends_of_margin(claim: Claim) -> tuple[float, ...]:
    """The gains that a claim of being comparable, or of no difference, is tested against."""
    if claim.form == "null" and claim.margin:
        return -claim.margin, claim.margin
    return (_threshold(claim),) if _threshold(claim) else ()


def _threshold(claim: Claim) -> float:
    """The gain on one side of which a claim holds."""
    return {"comparable": -1.0, "no gain": 1.0}.get(claim.form, 0.0) * (claim.margin or 0.0)


def _outcome_of(reading: Reading, p_for: float, p_against: float) -> Outcome:
    """The word of a reading, by its p values as evidence for and against the claim."""
    margin = reading.claim.margin or 0.0
    assert reading.gain is not None
    assert reading.low is not None
    assert reading.high is not None
    if reading.claim.form == "null":
        agrees = p_for < LEVEL
        disagrees = reading.low > margin or reading.high < -margin
    else:
        above = reading.gain > _threshold(reading.claim)
        right = not above if reading.claim.form == "no gain" else above
        agrees = right and p_for < LEVEL
        disagrees = not right and p_against < LEVEL
    if reading.setting != "paper's":
        return "agrees" if agrees else "disagrees" if disagrees else "open"
    excluded = _size_is_excluded(reading)
    if agrees:
        return "partly" if excluded else "confirmed"
    return "contradicted" if disagrees or excluded else "open"


def _size_is_excluded(reading: Reading) -> bool:
    """Whether the gain is below the claimed or published size."""
    size = reading.claim.size if reading.claim.form == "size" else reading.published
    if size is None or reading.claim.form in ("null", "no gain"):
        return False
    widest = wider(reading.estimates)
    error = 0.0
    if reading.claim.form != "size":
        error = widest.error if reading.published_error is None else reading.published_error
    return 2 * widest.p_below(size, error) < LEVEL


def _seeds_needed(reading: Reading, family: int) -> int | None:
    """The seeds that would see the published or claimed gain, where there is one above 0."""
    targets = {"size": reading.claim.size, "superiority": reading.published}
    target = targets.get(reading.claim.form)
    if not target or target < 0 or not reading.estimates:
        return None
    seeds = (len(reading.seeds_better), len(reading.seeds_than))
    widest = wider(reading.estimates)
    sd = widest.error / math.sqrt(1 / seeds[0] + 1 / seeds[1])
    return seeds_for(target, sd, LEVEL / family, is_paired=widest.model == "paired")


def _failed(cell: MeasuredCell) -> str:
    """How many of a cell's seeds were run and gave no number; empty for none."""
    count = sum(not why.startswith(NOT_RUN) for why in cell.missing.values())
    return f"{count} of {len(cell.declared)} seeds of {cell.row.label} failed" if count else ""


def _remarks(
    better: MeasuredCell, than: MeasuredCell, comparison: Comparison, metric: str, gain: float
) -> tuple[str, ...]:
    """Remarks beside a word, a sentence each."""
    remarks = []
    if comparison.beside:
        first, second = (cell.read(comparison.beside) for cell in (better, than))
        if first and second:
            beside = summarise(first.values()).mean - summarise(second.values()).mean
            if beside * gain < 0:
                remarks.append(
                    f"By {comparison.beside} the gain has the other sign: {beside:+z.2f}."
                )
    data, processors = differing(better, than)
    if data:
        remarks.append(f"The two rows were measured on different data: {', '.join(data)}.")
    if processors:
        remarks.append(f"Their processors differ: {' and '.join(processors)}.")
    if items := mcnemar_sentence(better.records, than.records, metric):
        remarks.append(items)
    return tuple(remarks)


def _outcome_of_finding(finding: Finding) -> Outcome:
    """The outcome of a finding by those of its readings."""
    claim, informative = finding.claim, finding.informative
    at_paper = finding.setting == "paper's"
    agree: Outcome = "confirmed" if at_paper else "agrees"
    disagree: Outcome = "contradicted" if at_paper else "disagrees"
    if not finding.measured:
        return "not run"
    if not informative:
        one_seed = any(reading.outcome == "one seed" for reading in finding.measured)
        return "open" if one_seed else "uninformative"
    count, declared = len(informative), len(finding.readings)
    agreeing = sum(reading.outcome in FOR for reading in informative)
    disagreeing = sum(reading.outcome in AGAINST for reading in informative)
    if claim.scope == "every":
        if disagreeing:
            return disagree
        return agree if agreeing == count == declared else "open"
    if claim.scope == "most":
        if 2 * agreeing > declared:
            return agree
        return disagree if 2 * disagreeing >= declared else "open"
    if agreeing and disagreeing:
        return "mixed"
    if agreeing == count:
        partly = at_paper and any(reading.outcome == "partly" for reading in informative)
        return "partly" if partly else agree
    if agreeing:
        return "partly"
    return disagree if disagreeing else "open"
