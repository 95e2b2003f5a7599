"""The papers' claims against the measured tables: comparisons with their words, as one frame.

A comparison is a method, its baseline and the columns of a claim at one scale; its gain is the mean
over the columns. The rules are in ``docs/claims.md`` and :mod:`shared.report.judge`.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.experiment.files import write_atomically
from shared.experiment.tables import Claim, Comparison, Table, Tier, Tuned, Value
from shared.objective import SHARE_PREFIX
from shared.report.judge import (
    FORMS,
    LEVEL,
    MARGIN,
    Gain,
    Word,
    adjust,
    measured,
    word_of,
)
from shared.report.measuring import (
    SCALES,
    Measured,
    MeasuredCell,
    differing,
    highest,
    refuse_smoke,
)
from shared.report.statistics import Estimate, Summary, gain_of, holm, summarise

CLAIMS, SHARES, ITERATIONS = "claims.json", "shares.json", "iterations.json"
FORM = "claims-v9"
SAME_COST = 1.25  # times the baseline's seconds an iteration, the margin of the suite
# A margin is part of this loss as a penalty is of its objective: no other loss than InfoNCE.
WITH_MARGINS = "margin_nce"
Shares = Mapping[tuple[str, str, str], float]  # by address of the table, row and column


@dataclass(frozen=True)
class ColumnGain:
    """One column of a comparison; method first in each pair."""

    label: str
    metric: str  # key of the result
    seeds: tuple[tuple[int, ...], tuple[int, ...]]  # the finished ones
    levels: tuple[float | None, float | None]  # means of both rows
    estimate: Estimate | None  # of the gain; None where a row has no finished seed
    printed: tuple[float | None, float | None]  # what the paper prints for both rows
    floor: float | None  # the best untrained row
    second: tuple[Mapping[int, float], Mapping[int, float]] | None  # a second metric of both rows

    @property
    def printed_gain(self) -> float | None:
        """The printed gain; None where the paper does not give both rows."""
        method, baseline = self.printed
        # Printed numbers have few digits; rounding removes the error of the subtraction.
        return None if method is None or baseline is None else round(method - baseline, 9)


@dataclass(frozen=True)
class Judged:
    """A comparison of a claim with its gain and word."""

    claim: Claim  # with the comparisons of its table
    scale: str  # of ``SCALES``
    address: str  # ``domain/paper/table`` of the table
    tier: Tier
    method: str  # label of the row whose gain is measured
    baseline: str  # label of the row that it is compared with
    part: str  # label of the column, where each is a comparison of its own; else empty
    unit: str  # of the metric
    columns: tuple[ColumnGain, ...]  # the declared ones
    gain: Gain
    other_data: str  # what stands in for the paper's data; empty for nothing
    differences: tuple[str, ...]  # what differs most from the paper
    remarks: tuple[str, ...]  # other data or processors of the two rows, a sentence each

    @property
    def path(self) -> str:
        """The page of its table below the results, without its ending."""
        return self.address if self.tier == "paper" else f"{self.tier}/{self.address}"

    @property
    def is_measured(self) -> bool:
        """Whether both rows have a finished seed in a column."""
        return bool(self.gain.columns)

    @property
    def in_mean(self) -> tuple[ColumnGain, ...]:
        """The columns that the gain is the mean of."""
        return tuple(column for column in self.columns if column.label in self.gain.in_mean)

    @property
    def has_word(self) -> bool:
        """Whether it has a word of its own: not in a claim about every column, or most."""
        return self.claim.scope == "each" and not self.gain.beside

    @property
    def word(self) -> Word:
        """Its word; empty where it has none."""
        return word_of(self.gain)[0] if self.has_word else ""

    @property
    def text(self) -> str:
        """The word with its reason, as the reader sees it: yes or no for a question."""
        if not self.has_word:
            return ""
        word, why = word_of(self.gain)
        if self.claim.additional:
            word = {"as claimed": "yes", "contrary": "no"}.get(word, word)  # type: ignore[assignment]
        return f"{word}{f' ({why})' * bool(why)}{', untuned' * self.gain.untuned}"

    @property
    def printed(self) -> float | None:
        """The mean of the printed gains over the columns of its mean; None where one is missing."""
        gains = [column.printed_gain for column in self.in_mean or self.columns]
        return None if None in gains else statistics.fmean(g for g in gains if g is not None)

    @property
    def size(self) -> str:
        """Where the printed gain, or the least one that is claimed, lies; empty without any."""
        least, interval = self.claim.size, self.gain.estimate.interval
        if self.other_data:
            return f"other data: {self.other_data}"
        if interval is None or self.gain.ranked or (least is None and self.printed is None):
            return ""
        low, high = interval
        if least is not None:
            return "excluded" if high < least else "reached" if low >= least else "neither"
        assert self.printed is not None
        if low <= self.printed <= high:
            return f"inside, 0 {'inside too' if low <= 0 <= high else 'outside'}"
        return f"excluded, gain {'above' if low > self.printed else 'below'}"

    @property
    def floor(self) -> float | None:
        """The mean of the best untrained rows over the columns of its mean."""
        floors = [column.floor for column in self.in_mean]
        return None if None in floors else statistics.fmean(x for x in floors if x is not None)

    @property
    def second(self) -> Estimate | None:
        """The gain by a second metric, where it has the other sign and either excludes 0."""
        pairs = [column.second for column in self.in_mean]
        values = [pair for pair in pairs if pair and all(pair)]
        if not values or len(values) < len(pairs):
            return None
        gain = gain_of([(list(one.values()), list(other.values())) for one, other in values])
        sure = any(
            i is not None and not i[0] <= 0 <= i[1]
            for i in (gain.interval, self.gain.estimate.interval)
        )
        return gain if sure and gain.gain * self.gain.estimate.gain < 0 else None


def judged(tables: Iterable[Measured], shares: Shares | None = None) -> tuple[Judged, ...]:
    """Every comparison of the measured tables, papers' claims first, with its word.

    p values are adjusted over the comparisons of a claim at one scale. ``shares`` are of the
    gradient over whole runs, for rows whose records do not have them.
    """
    found: list[Judged] = []
    for table in tables:
        refuse_smoke(table)
        found += _of_table(table, shares or {})
    families: dict[tuple[str, str], dict[int, Gain]] = {}
    for index, comparison in enumerate(found):
        family = families.setdefault((comparison.claim.id, comparison.scale), {})
        family[index] = comparison.gain
    for family in families.values():
        for index, gain in adjust(family).items():
            found[index] = replace(found[index], gain=gain)
    order = list(dict.fromkeys(comparison.claim.id for comparison in found))
    scales = list(SCALES.values())
    return tuple(
        sorted(
            found,
            key=lambda c: (c.claim.additional, order.index(c.claim.id), scales.index(c.scale)),
        )
    )


def by_claim(comparisons: Iterable[Judged]) -> list[list[Judged]]:
    """The comparisons of each claim at each scale; of a claim that was not run all together."""
    groups: dict[tuple[str, str], list[Judged]] = {}
    every = list(comparisons)
    done = {c.claim.id for c in every if c.is_measured}
    for comparison in every:
        if comparison.is_measured:
            groups.setdefault((comparison.claim.id, comparison.scale), []).append(comparison)
        elif comparison.claim.id not in done:
            groups.setdefault((comparison.claim.id, ""), []).append(comparison)
    return list(groups.values())


def word_of_claim(group: Sequence[Judged]) -> str:
    """The word of a claim about every column, or most of them, from all columns of a group.

    Empty for other claims, whose comparisons have the words.
    """
    scope = group[0].claim.scope
    if scope == "each":
        return ""
    if not group[0].is_measured:
        return "not run"
    tests = []
    columns = 0
    for comparison in group:
        if comparison.gain.beside:
            continue
        columns += len(comparison.in_mean)
        for label in comparison.gain.in_mean if comparison.gain.p is not None else ():
            estimate = comparison.gain.columns[label]
            if estimate.error is not None:
                form = FORMS[comparison.claim.form]
                tests.append(form(estimate.above, estimate.below, comparison.gain.margin))
    adjusted = holm([min(test) for test in tests])
    claimed = sum(
        (test[0] if scope == "every" else p) < LEVEL and test[0] < test[1]
        for test, p in zip(tests, adjusted, strict=True)
    )
    contrary = sum(p < LEVEL and test[1] < test[0] for test, p in zip(tests, adjusted, strict=True))
    most = columns // 2 + 1
    needed, against = (columns, 1) if scope == "every" else (most, most)
    word = "as claimed" if claimed >= needed else "contrary" if contrary >= against else "undecided"
    return f"{word} (+{claimed} -{contrary} of {columns})"


def survivors(comparisons: Iterable[Judged], paper: str) -> tuple[int, int, int]:
    """Decided comparisons of a paper, those that survive Holm over all of it, and how many it has.

    A comparison that several claims make counts once.
    """
    distinct: dict[Any, Judged] = {}
    for each in comparisons:
        if each.claim.paper == paper and each.gain.p is not None and not each.gain.beside:
            key = (each.address, each.method, each.baseline, each.gain.in_mean)
            distinct[*key, round(each.gain.p, 12)] = each
    adjusted = holm([each.gain.p or 0.0 for each in distinct.values()])
    decided = [
        p
        for each, p in zip(distinct.values(), adjusted, strict=True)
        if word_of(each.gain)[0] in ("as claimed", "contrary")
    ]
    return len(decided), sum(p < LEVEL for p in decided), len(distinct)


def _of_table(table: Measured, shares: Shares) -> Iterator[Judged]:
    """The comparisons of one table, before p values are adjusted."""
    for claim in table.table.claims:
        for declared in claim.comparisons:
            if table.tier in declared.tiers:
                for columns in (
                    [(label,) for label in declared.columns]
                    if declared.apart
                    else [declared.columns]
                ):
                    for rows in _rows_of(table, declared):
                        yield _comparison(table, claim, declared, columns, rows, shares)


@dataclass(frozen=True)
class _Rows:
    """The two rows of a comparison, and how they were tuned."""

    method: str
    baseline: str
    beside: bool = False  # another comparison has the word
    untuned: bool = False


def _rows_of(table: Measured, declared: Comparison) -> list[_Rows]:
    """The rows as declared and, where values were tried for the baseline, as chosen."""
    plain = _Rows(declared.method, declared.baseline)
    small = table.table.setting(table.tier).word == "reduced"
    if not small or not _another_loss(table, declared.method, declared.baseline):
        return [plain]
    of_method, of_baseline = (
        next((t for t in table.table.tuned if label in (t.row, t.chosen)), None)
        for label in (declared.method, declared.baseline)
    )
    alike = _alike(of_method, of_baseline)
    if of_baseline is None:
        return [replace(plain, untuned=True)]
    chosen = _Rows(of_method.chosen if of_method else declared.method, of_baseline.chosen)
    if chosen == plain:
        # The tuned row itself has no word until the other one was tuned alike.
        as_declared = of_baseline.row == declared.baseline
        return [
            replace(plain, untuned=not alike and as_declared, beside=not (alike or as_declared))
        ]
    return [replace(plain, untuned=not alike, beside=alike), replace(chosen, beside=not alike)]


def _alike(method: Tuned | None, baseline: Tuned | None) -> bool:
    """Whether both rows were tuned by one rule, and neither has its value at an edge."""
    return bool(method and baseline and not method.at_edge and not baseline.at_edge)


def _another_loss(table: Measured, first: str, second: str) -> bool:
    """Whether two trained rows have different losses; margins, kernels and solvers do not count."""
    names = []
    for label in (first, second):
        cell = next(iter(table.table.cells(table.tier, row=label)), None)
        objective = getattr(cell.config, "objective", None) if cell else None
        if objective is None or not getattr(cell.config, "train", True):  # type: ignore[union-attr]
            return False
        names.append(objective.loss.function.__name__)
    return names[0] != names[1] and WITH_MARGINS not in names


def _comparison(
    table: Measured,
    claim: Claim,
    declared: Comparison,
    labels: Sequence[str],
    rows: _Rows,
    shares: Shares,
) -> Judged:
    """One comparison with its gain."""
    declaration, setting = table.table, table.table.setting(table.tier)
    cells: dict[str, tuple[MeasuredCell, MeasuredCell]] = {}
    floors: dict[str, float | None] = {}
    for label in labels:
        column = {cell.row.label: cell for cell in table.column(label)}
        cells[label] = column[rows.method], column[rows.baseline]
        metric = declaration.metric_of(cells[label][0].column)
        best = highest((cell for cell in column.values() if cell.row.untrained), metric)
        floors[label] = best[0] if best else None
    metrics = {label: declaration.metric_of(pair[0].column) for label, pair in cells.items()}
    values = {
        label: (pair[0].read(metrics[label]), pair[1].read(metrics[label]))
        for label, pair in cells.items()
    }
    sources = {pair[0].column.run_name for pair in cells.values()}
    first = next(iter(cells.values()))
    gain = measured(
        values,
        claim.form,
        _margin(claim, table, sum(all(pair) for pair in values.values())),
        one_run=len(labels) > 1 and len(sources) == 1,
        failed=(_failed(table, first[0]), _failed(table, first[1])),
        post_hoc=any(cell.post_hoc for pair in cells.values() for cell in pair),
    )
    known = [
        share
        for label in gain.in_mean
        if (share := _share(table, cells[label][0], shares)) is not None
    ]
    gain = replace(
        gain,
        beside=rows.beside,
        untuned=rows.untuned,
        declared=len(labels),
        data_sets=claim.data_sets,
        share=max(known, default=None),
        chosen_here=rows.method in declaration.chosen_here,
    )
    columns = tuple(
        ColumnGain(
            label,
            metrics[label],
            (tuple(sorted(values[label][0])), tuple(sorted(values[label][1]))),
            (_mean(values[label][0]), _mean(values[label][1])),
            gain.columns.get(label),
            _printed(declaration, pair, metrics[label]),
            floors[label],
            (pair[0].read(declared.beside), pair[1].read(declared.beside))
            if declared.beside
            else None,
        )
        for label, pair in cells.items()
    )
    return Judged(
        claim=claim,
        scale=table.scale,
        address=declaration.address,
        tier=table.tier,
        method=rows.method,
        baseline=rows.baseline,
        part=labels[0] if declared.apart else "",
        unit=declaration.unit_of(next(iter(metrics.values()))),
        columns=columns,
        gain=gain,
        other_data=setting.other_data.get(claim.paper, ""),
        differences=setting.by_paper.get(claim.paper, setting.differences),
        remarks=tuple(dict.fromkeys(_remarks(cells[label] for label in gain.columns))),
    )


def _margin(claim: Claim, table: Measured, columns: int) -> float:
    """The margin of a claim of no difference, or none worse; 0 for what has none."""
    if claim.form in ("superiority", "size"):
        return 0.0
    if claim.margin is not None:
        return claim.margin
    images = table.table.domain == "vision"
    return MARGIN if images or (table.table.domain == "graph" and columns > 1) else 0.0


def _mean(values: Mapping[int, float]) -> float | None:
    return summarise(values.values()).mean if values else None


def _printed(
    table: Table, pair: tuple[MeasuredCell, MeasuredCell], metric: str
) -> tuple[float | None, float | None]:
    """The published means of both rows.

    None for both where the two rows measure one printed row, which has no gain over itself, and for
    another metric than the table's.
    """
    published: list[Value | None] = [cell.published for cell in pair]
    same = pair[0].row.published == pair[1].row.published
    if same or metric != table.metric_of(pair[0].column):
        return None, None
    method, baseline = (value.mean if value else None for value in published)
    return method, baseline


def _failed(table: Measured, cell: MeasuredCell) -> tuple[int, int]:
    """How many seeds of a cell are declared as failed, and how many it has."""
    count = sum(
        cell.column.label in (of.columns or (cell.column.label,))
        and of.applies_to(table.tier, cell.row.label, cell.column.label)
        and seed not in cell.records
        for of in table.table.failed.values()
        for seed in of.seeds
    )
    return (count, len(cell.declared)) if count else (0, 0)


def _share(table: Measured, cell: MeasuredCell, shares: Shares) -> float | None:
    """The largest share of a row's penalties and projection over whole runs, in one column."""
    recorded = [
        max(numbers)
        for record in cell.records.values()
        if (numbers := _shares_of(record.environment.get("facts", {}), record.config))
    ]
    if recorded:
        return statistics.median(recorded)
    return shares.get((table.table.address, cell.row.label, cell.column.run_name))


def _shares_of(facts: Mapping[str, str], config: Mapping[str, Any]) -> list[float]:
    """The recorded shares of a run, without that of its loss."""
    loss = str((config.get("objective") or {}).get("loss", {}).get("function"))
    return [
        float(text)
        for name, text in facts.items()
        if name.startswith(SHARE_PREFIX) and name != f"{SHARE_PREFIX}{loss.partition('@')[0]}"
    ]


def _remarks(pairs: Iterable[tuple[MeasuredCell, MeasuredCell]]) -> Iterator[str]:
    """What differs between the runs of both rows."""
    for method, baseline in pairs:
        data, processors = differing(method, baseline)
        if data:
            yield f"The two rows were measured on different data: {', '.join(data)}."
        if processors:
            yield f"Their processors differ: {' and '.join(processors)}."


def read_shares(results: Path) -> Shares:
    """The shares of the gradient in ``results/shares.json``; none without it."""
    file = results / SHARES
    return {
        (entry["table"], entry["row"], entry["column"]): max(entry["terms"].values())
        for entry in (json.loads(file.read_text())["shares"] if file.exists() else ())
    }


@dataclass(frozen=True)
class Cost:
    """Seconds an iteration of a row beside those of its baseline."""

    row: str  # its label
    against: str  # that of the baseline
    ratio: Summary  # of the two, over rounds
    processor: str  # on which it was timed

    @property
    def word(self) -> Word:
        """Whether an iteration takes about the time of the baseline's."""
        low, high = self.ratio.low, self.ratio.high
        if high is not None and high < SAME_COST:
            return "as claimed"
        return "contrary" if low is not None and low > SAME_COST else "undecided"


def read_costs(results: Path) -> tuple[Cost, ...]:
    """The iterations timed in ``results/iterations.json``; none without it."""
    file = results / ITERATIONS
    return tuple(
        Cost(entry["row"], entry["against"], summarise(entry["ratios"]), entry["processor"])
        for entry in (json.loads(file.read_text())["iterations"] if file.exists() else ())
    )


def frame(comparisons: Iterable[Judged]) -> Iterator[dict[str, Any]]:
    """The measured comparisons as one tidy frame: a row for each, then one for each of its columns.

    All rows have the same names; a row of a comparison has no column, one of a column no word.
    """
    for each in comparisons:
        if not each.is_measured:
            continue
        gain = each.gain
        common = {
            "claim": each.claim.id,
            "scale": each.scale,
            "table": each.address,
            "tier": each.tier,
            "method": each.method,
            "baseline": each.baseline,
            "part": each.part,
            "unit": each.unit,
        }
        yield (
            common
            | _row(
                "",
                "",
                gain.levels,
                gain.estimate,
                (_fewest(each, 0), _fewest(each, 1)),
                each.printed,
                each.floor,
            )
            | {
                "in_mean": len(gain.in_mean),
                "of": gain.declared,
                "above": gain.above,
                "below": gain.below,
                "p": gain.p,
                "p_holm": min(gain.adjusted) if gain.p is not None and not gain.beside else None,
                "word": each.text,
                "size": each.size,
                "margin": gain.margin,
                "smallest_margin": gain.smallest_margin,
                "untuned": gain.untuned,
                "beside": gain.beside,
                "post_hoc": gain.post_hoc,
                "share": gain.share,
                "chosen_here": gain.chosen_here,
                "other_data": each.other_data,
                "failed": [f"{k} of {n}" if k else "" for k, n in gain.failed],
            }
        )
        for column in each.columns:
            if column.estimate is None:
                continue
            seeds = (len(column.seeds[0]), len(column.seeds[1]))
            yield (
                common
                | _row(
                    column.label,
                    column.metric,
                    column.levels,
                    column.estimate,
                    seeds,
                    column.printed_gain,
                    column.floor,
                )
                | {
                    "in_mean": int(column.label in gain.in_mean),
                    "above": int(gain.signs.get(column.label, 0) > 0),
                    "below": int(gain.signs.get(column.label, 0) < 0),
                }
            )


def _row(
    column: str,
    metric: str,
    levels: tuple[float | None, float | None],
    estimate: Estimate,
    seeds: tuple[int, int],
    printed: float | None,
    floor: float | None,
) -> dict[str, Any]:
    """What a comparison and its columns have alike."""
    low, high = estimate.interval or (None, None)
    method, baseline = (None if x is None or math.isnan(x) else x for x in levels)
    return {
        "column": column,
        "metric": metric,
        "level_method": method,
        "level_baseline": baseline,
        "floor": floor,
        "gain": estimate.gain,
        "low": low,
        "high": high,
        "seeds_method": seeds[0],
        "seeds_baseline": seeds[1],
        "printed": printed,
    }


def _fewest(comparison: Judged, row: int) -> int:
    return min(len(column.seeds[row]) for column in comparison.in_mean)


def json_text(comparisons: Sequence[Judged]) -> str:
    """The text of ``claims.json``: claims by identifier, and a line for each row of the frame."""
    claims = {
        each.claim.id: {
            key: value
            for key, value in dataclasses.asdict(each.claim).items()
            if key not in ("id", "comparisons")
        }
        for each in comparisons
    }
    words = {
        group[0].claim.id: word_of_claim(group)
        for group in by_claim(comparisons)
        if group[0].claim.scope != "each"
    }
    by_id = ",\n".join(
        f"{json.dumps(key)}: {_json(value | ({'word': words[key]} if key in words else {}))}"
        for key, value in claims.items()
    )
    lines = ",\n".join(map(_json, frame(comparisons)))
    return f'{{"form": "{FORM}",\n"claims": {{\n{by_id}\n}},\n"comparisons": [\n{lines}\n]}}\n'


def write(results: Path, comparisons: Sequence[Judged]) -> None:
    """Write ``results/claims.json``, moved over its target."""
    write_atomically(results / CLAIMS, json_text(comparisons))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
