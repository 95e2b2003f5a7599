"""Readings follow from the committed records by the registered rules, and each rule can fail."""

import dataclasses
import importlib
import itertools
import json
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest
import scipy
from statsmodels.formula.api import ols
from toy.tables import CLAIM, TABLES

from shared.command.cells import DOMAINS
from shared.experiment.claims import with_claims
from shared.experiment.records import Record, read_records, read_repeats
from shared.experiment.tables import Claim, Published, Setting, Table, Tier, Value, canonical
from shared.report.claims import BELOW, FORM, Finding, Reading, findings, json_text, readings
from shared.report.measuring import Measured, measure
from shared.report.statistics import holm
from shared.report.summary import Results, first_page, paper_page

ROOT = Path(__file__).resolve().parents[1]
PLAIN = (70.0, 71.0, 69.0)
TOY = dataclasses.replace(TABLES["toy"][0], unit="%", claims=())


def measured(
    better: Sequence[float],
    claim: Claim | None = None,
    published: Sequence[Value] = (),
    plain: Sequence[float] = PLAIN,
    **changes: Any,
) -> Measured:
    """The toy table with values of both rows in its left column, by seed."""
    claim = claim or said()
    numbers = Published("Toy", "Toys", ("left",), {"plain": (None,), "better": (None,)})
    if published:
        numbers = dataclasses.replace(
            numbers, rows={"better": (published[0],), "plain": (published[1],)}, runs=5
        )
    table = dataclasses.replace(
        TOY,
        claims=(claim,),
        published=numbers,
        seeds={"paper": tuple(range(max(len(better), len(plain), 1)))},
        **changes,
    )
    records = []
    for row, values in (("plain", plain), ("better", better)):
        for cell, value in zip(table.cells(row=row, column="left"), values, strict=False):
            environment = {"data": {}, "commit": "", "hardware": {}, "facts": {}}
            result = {
                "tier": "paper",
                "protocol": "toy-v1",
                "metrics": {"accuracy": value, "norm": -value},
                "seconds": 1.0,
            }
            records.append(Record(cell.address, canonical(cell.config), environment, result))
    return measure(table, "paper", records, {})


def said(form: str = "superiority", columns: tuple[str, ...] = ("left",), **changes: Any) -> Claim:
    (comparison,) = CLAIM.comparisons
    comparison = dataclasses.replace(comparison, columns=columns)
    return dataclasses.replace(CLAIM, form=form, comparisons=(comparison,), **changes)


def outcome(*arguments: Any, **changes: Any) -> str:
    (reading,) = readings([measured(*arguments, **changes)])
    return reading.outcome


@pytest.mark.parametrize(
    ("better", "claim", "published", "expected"),
    [
        # Superiority, without a published gain, with one that fits, and with one that is larger.
        ((75.0, 76.0, 74.0), said(), (), "confirmed"),
        ((70.5, 70.0, 71.0), said(), (), "imprecise"),
        ((65.0, 66.0, 64.0), said(), (), "contradicted"),
        ((75.0, 76.0, 74.0), said(), (Value(75.0), Value(70.0)), "confirmed"),
        ((75.0, 76.0, 74.0), said(), (Value(85.0), Value(70.0)), "partly"),
        ((70.5, 70.0, 71.0), said(), (Value(85.0), Value(70.0)), "contradicted"),
        # A gain that is larger than published denies nothing.
        ((75.0, 76.0, 74.0), said(), (Value(70.1), Value(70.0)), "confirmed"),
        # The published gain has an uncertainty of its own.
        ((75.0, 76.0, 74.0), said(), (Value(85.0, 9.0), Value(70.0, 9.0)), "confirmed"),
        # Size.
        ((75.0, 76.0, 74.0), said("size", size=1.0), (), "confirmed"),
        ((75.0, 76.0, 74.0), said("size", size=5.0), (), "imprecise"),
        ((75.0, 76.0, 74.0), said("size", size=9.0), (), "partly"),
        ((70.5, 70.0, 71.0), said("size", size=9.0), (), "contradicted"),
        # Not worse than by a margin.
        ((69.5, 70.5, 68.5), said("comparable", margin=4.0), (), "confirmed"),
        ((69.5, 70.5, 68.5), said("comparable", margin=1.0), (), "imprecise"),
        ((65.0, 66.0, 64.0), said("comparable", margin=1.0), (), "contradicted"),
        # No gain worth the name.
        ((70.2, 71.2, 69.2), said("null", margin=4.0), (), "confirmed"),
        ((70.2, 71.2, 69.2), said("null", margin=1.0), (), "imprecise"),
        ((75.0, 76.0, 74.0), said("null", margin=1.0), (), "contradicted"),
        ((65.0, 66.0, 64.0), said("null", margin=1.0), (), "contradicted"),
        # One seed has no interval; no seed is nothing.
        ((75.0,), said(), (), "imprecise"),
        ((), said(), (), "not measured"),
    ],
)
def test_each_outcome_has_its_rule(
    better: Sequence[float], claim: Claim, published: Sequence[Value], expected: str
) -> None:
    assert outcome(better, claim, published) == expected


def test_holm_is_over_the_readings_of_one_claim_at_one_setting() -> None:
    gain = (72.5, 73.5, 71.5)
    alone = readings([measured(gain)])
    assert (alone[0].outcome, alone[0].adjusted) == ("confirmed", alone[0].p)
    level = measured((70.1, 71.1, 69.1), name="table-9")
    together = readings([measured(gain), level, level])
    assert [each.outcome for each in together] == ["imprecise"] * 3
    assert together[0].p == alone[0].p
    assert together[0].adjusted == pytest.approx(3 * alone[0].p)  # type: ignore[operator]
    # Another setting, and another claim, are other families.
    elsewhere = {"paper": Setting("rebuilt")}
    apart = readings([measured(gain), measured((70.1, 71.1, 69.1), settings=elsewhere)])
    other = readings([measured(gain), measured((70.1, 71.1, 69.1), said(id="other"))])
    assert apart[0].adjusted == other[0].adjusted == alone[0].p
    assert apart[1].setting == "rebuilt"
    # Said of every dataset, each reading stands for itself.
    every = measured(gain, said(every=True)), measured((70.1, 71.1, 69.1), said(every=True))
    assert [each.outcome for each in readings(every)] == ["confirmed", "imprecise"]


def found(*gains: Sequence[float], claim: Claim | None = None) -> Finding:
    (finding,) = findings(readings([measured(gain, claim) for gain in gains]))
    return finding


UP, LEVEL, DOWN = (75.0, 76.0, 74.0), (70.1, 71.1, 69.1), (65.0, 66.0, 64.0)


@pytest.mark.parametrize(
    ("gains", "once", "every"),
    [
        ((UP, UP), "confirmed", "confirmed"),
        ((UP, LEVEL), "partly", "partly"),
        ((UP, DOWN), "partly", "contradicted"),
        ((LEVEL, DOWN), "contradicted", "contradicted"),
        ((LEVEL, LEVEL), "imprecise", "imprecise"),
        ((UP, ()), "confirmed", "partly"),
        (((), ()), "not measured", "not measured"),
    ],
)
def test_a_finding_is_one_word_for_all_readings(
    gains: Sequence[Sequence[float]], once: str, every: str
) -> None:
    assert found(*gains).outcome == once
    assert found(*gains, claim=said(every=True)).outcome == every


def test_contradictions_of_a_finding_are_adjusted() -> None:
    barely = (67.9, 68.9, 66.9)  # p = 0.06 without a correction, of two rows
    assert outcome((67.5, 68.5, 66.5)) == "contradicted"
    finding = found((67.5, 68.5, 66.5), LEVEL, LEVEL, barely)
    assert ("contradicted", 1) in finding.tally
    assert finding.outcome == "imprecise"


def test_remarks_change_no_outcome() -> None:
    (plain,) = readings([measured(UP)])
    trivial = dataclasses.replace(TOY.rows[0], label="chance", baseline=True, published=None)
    trivial = dataclasses.replace(trivial, changes={"offset": 9.0})  # a run of its own
    claim = said()
    (comparison,) = claim.comparisons
    beside = dataclasses.replace(comparison, beside="norm")
    claim = dataclasses.replace(claim, comparisons=(beside,))
    table = measured(UP, claim, also=("norm",), units={"norm": "% of variance"}).table
    table = dataclasses.replace(table, rows=(*table.rows, trivial))
    records = list(measured(UP, claim, also=("norm",)).records)
    (cell,) = table.cells(row="chance", column="left")[:1]
    result = records[0].result | {"metrics": {"accuracy": 99.0}}
    records.append(Record(cell.address, canonical(cell.config), records[0].environment, result))
    for place, record in enumerate(records):
        environment = record.environment | {"data": {"toys": record.address}}
        records[place] = dataclasses.replace(record, environment=environment)
    (remarked,) = readings([measure(table, "paper", records, {})])
    assert remarked.remarks == (
        "better (75.00) scores below the trivial baseline 'chance' (99.00).",
        "plain (70.00) scores below the trivial baseline 'chance' (99.00).",
        "By norm the gain has the other sign: -5.00.",
        "The two rows were measured on different data: toys.",
    )
    for name in ("outcome", "gain", "low", "high", "p", "model"):
        assert getattr(remarked, name) == getattr(plain, name)
    (larger,) = readings([measured(UP, None, (Value(70.1), Value(70.0)))])
    assert larger.remarks == ("The gain is larger than the published +0.10.",)


def test_seeds_needed_are_told_where_a_known_gain_is_still_open() -> None:
    published = (Value(71.0), Value(70.0))
    (open_,) = readings([measured(LEVEL, None, published)])
    assert (open_.outcome, open_.seeds_needed) == ("imprecise", 17)
    (settled,) = readings([measured(UP, None, published)])
    (unknown,) = readings([measured(LEVEL)])
    assert settled.seeds_needed is unknown.seeds_needed is None


def test_the_list_of_readings_names_each_claim_once() -> None:
    some = readings([measured(UP), measured(DOWN, said(id="other", paper="", place="", source=""))])
    content = json.loads(json_text(some))
    assert content["form"] == FORM
    assert list(content["claims"]) == ["toy-table-1", "other"]
    assert content["claims"]["toy-table-1"]["sentence"] == CLAIM.sentence
    first, second = content["readings"]
    assert (first["claim"], first["outcome"], first["gain"]) == (
        "toy-table-1",
        "confirmed",
        pytest.approx(5),
    )
    assert (second["claim"], second["seeds_than"]) == ("other", [0, 1, 2])
    assert [each.claim.additional for each in findings(some[::-1])] == [False, True]


def gains_on_the_page(*gains: float) -> str:
    """What the summary says of a question with these gains, each in a table of its own."""
    tables = [
        measured([value + gain for value in PLAIN], said(paper=""), name=f"table-{place}")
        for place, gain in enumerate(gains)
    ]
    page = first_page(Results(tables, readings(tables)))
    (line,) = (line for line in page.splitlines() if line.startswith("- **confirmed**"))
    return line


def test_the_summary_has_each_of_three_gains_and_the_middle_one_of_more() -> None:
    few, many = gains_on_the_page(5, 7, 6), gains_on_the_page(5, 8, 7, 6, 9)
    shown = re.findall(r"better vs. plain on left: (\+\d.00) \[", few)
    assert shown == ["+7.00", "+6.00", "+5.00"]
    assert "Gains from +5.00 to +9.00; the middle one is better vs. plain on left: +7.00 [" in many


def test_rows_below_a_trivial_baseline_are_one_line_for_each_column() -> None:
    (reading,) = readings([measured(UP)])
    below = [f"{row} (7{i}.00) {BELOW} 'chance' (99.00)." for i, row in enumerate("abc")]
    first = dataclasses.replace(reading, better="a", than="b", remarks=(*below[:2], "Noise."))
    second = dataclasses.replace(reading, better="c", than="b", remarks=tuple(below[::-1][:2]))
    page = paper_page(Results((), (first, second)), reading.claim.paper)
    assert (
        "- Below the trivial baseline 'chance' (99.00) on left: a (70.00), b (71.00), c (72.00)."
        in page
    )
    assert "- Noise. (a vs. b, left)" in page


def test_smoke_is_read_by_nobody() -> None:
    with pytest.raises(ValueError, match="the smoke tier never enters results"):
        readings([measure(TABLES["toy"][0], "smoke", [], {})])


ENTRY = """
[[claim]]
id = "one"
paper = "toy"
sentence = "Better."
place = "Table 1"
source = "toy.yaml: better"
form = "superiority"
[[claim.comparisons]]
tables = ["toy/table-1"]
pairs = [["better", "plain"]]
"""


def loaded(text: str, tmp_path: Path) -> Table:
    file = tmp_path / "claims.toml"
    file.write_text(text, encoding="utf-8")
    return with_claims({"toy": (TOY,)}, file)["toy"][0]


def test_claims_of_a_file_reach_their_table(tmp_path: Path) -> None:
    settings = '[settings."toy/table-1".short]\ndifferences = ["Two steps."]\n'
    other = '[settings."toy/table-1".short.by_paper]\nother = ["Another dataset."]\n'
    table = loaded(ENTRY + settings + other, tmp_path)
    (claim,) = table.claims
    (comparison,) = claim.comparisons
    assert (comparison.columns, comparison.tiers) == (("left", "right"), ("paper", "short"))
    setting = table.setting("short")
    assert (setting.word, setting.differences) == ("reduced", ("Two steps.",))
    assert setting.differences_of("toy") == ("Two steps.",)
    assert setting.differences_of("other") == ("Another dataset.",)
    assert table.setting("paper") == Setting("paper's")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('source = "toy.yaml: better"', 'source = ""', "one: lacks its sentence, place or source"),
        ('source = "toy.yaml: better"', "", "one: .* missing .* argument: 'source'"),
        ('"superiority"', '"better"', "one: no form 'better'"),
        ('"superiority"', '"size"', "a claim of size has size"),
        ('"superiority"', '"null"\nmargin = 1.0', "a margin has a margin_source"),
        (
            'form = "superiority"',
            'form = "superiority"\ntext = "x"',
            "one: .* unexpected .* 'text'",
        ),
        ("toy/table-1", "toy/table-9", "no table toy/table-9"),
        ('"plain"', '"worst"', "one: undeclared rows"),
        ("pairs =", "rows =", "comparisons: pairs, rows|comparisons: rows"),
        (ENTRY, ENTRY + ENTRY, "one is declared twice"),
        (ENTRY, '[settings."toy/table-1".paper]\nword = "own"', "a setting is one of"),
        (
            ENTRY,
            '[settings."toy/table-1".paper.by_paper]\nother = ["1", "2", "3", "4"]',
            "three differences at most",
        ),
    ],
)
def test_a_mistake_in_a_file_of_claims_is_an_error(
    old: str, new: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=text):
        loaded(ENTRY.replace(old, new), tmp_path)


@pytest.fixture(scope="module")
def committed() -> list[Measured]:
    results = ROOT / "results"
    records, repeats = read_records(results), read_repeats(results)
    begun = {"/".join(record.address.removeprefix("short/").split("/")[:3]) for record in records}
    tiers: tuple[Tier, ...] = ("paper", "short")
    every = [
        (table, tier)
        for domain in DOMAINS
        for some in importlib.import_module(f"{domain}.tables").TABLES.values()
        for table, tier in itertools.product(some, tiers)
        if tier in table.tiers and table.claims
    ]
    return [
        measure(table, tier, records, {}, repeats=repeats)
        for table, tier in every
        if table.address in begun
    ]


def _numbers(one: Measured, reading: Reading) -> pandas.DataFrame:
    """What the model of a reading rests on: row, seed and value of everything in its column."""
    found = []
    for cell in one.column(reading.column):
        values = {
            seed: record.result["metrics"][reading.metric] for seed, record in cell.records.items()
        }
        if not (cell.row.baseline and len(set(values.values())) < 2):
            found += [(cell.row.label, seed, float(value)) for seed, value in values.items()]
    return pandas.DataFrame(found, columns=["row", "seed", "y"])


def _fitted(data: pandas.DataFrame, *, blocked: bool) -> tuple[Any, bool]:
    """The linear model of a column by statsmodels' formula, and whether its variances are equal."""
    fit = ols("y ~ 0 + row" + (" + C(seed)" if blocked else ""), data).fit()
    counts = data.row.value_counts()
    groups = [fit.resid[data.row == label].to_numpy() for label, n in counts.items() if n > 1]
    even = all(group.std() > 1e-12 for group in groups) and scipy.stats.bartlett(*groups)[1] >= 0.05
    return fit, even


Fits = dict[tuple[str, str, str, str], tuple[pandas.DataFrame, Any, bool]]


def _by_another_route(
    one: Measured, reading: Reading, known: Fits
) -> tuple[float, float, float, float]:
    """Gain, both ends of its interval, degrees of freedom: statsmodels' formulas, or scipy.

    Readings of one column share its model, which ``known`` keeps.
    """
    key = (one.table.address, one.tier, reading.column, reading.metric)
    if key not in known:
        data = _numbers(one, reading)
        known[key] = (data, *_fitted(data, blocked=one.table.blocked))
    data, fit, even = known[key]
    if even:
        contrast = [
            (name == f"row[{reading.better}]") - (name == f"row[{reading.than}]") + 0.0
            for name in fit.params.index
        ]
        test = fit.t_test(contrast)
        return float(test.effect[0]), *test.conf_int()[0], fit.df_resid
    rows = [data[data.row == label].set_index("seed").y for label in (reading.better, reading.than)]
    if one.table.blocked:
        first, second = rows[0].align(rows[1], join="inner")
        test = scipy.stats.ttest_rel(first, second)
        return (first - second).mean(), *test.confidence_interval(0.95), test.df
    test = scipy.stats.ttest_ind(*rows, equal_var=False)
    return rows[0].mean() - rows[1].mean(), *test.confidence_interval(0.95), test.df


def test_every_reading_follows_from_the_committed_records(committed: list[Measured]) -> None:
    """Estimate, interval, p value, Holm and outcome, by statsmodels' formulas and scipy."""
    every = readings(committed)
    by_table = {(one.table.address, one.tier, one.table.protocol): one for one in committed}
    families: dict[tuple[str, str], list[tuple[Reading, float, float, bool]]] = {}
    known: Fits = {}
    assert sum(each.measured for each in every) > 200
    for reading in every:
        one = by_table[reading.address, reading.tier, reading.protocol]
        cells = {cell.row.label: cell for cell in one.column(reading.column)}
        counts = [
            len(cells[label].read(reading.metric)) for label in (reading.better, reading.than)
        ]
        assert reading.measured == (min(counts) > 0)
        if min(counts) < 2:
            assert reading.outcome in ("not measured", "imprecise")
            assert reading.low is None
            continue
        gain, low, high, freedom = _by_another_route(one, reading, known)
        ours = (reading.gain, reading.low, reading.high, reading.freedom)
        assert ours == pytest.approx((gain, low, high, freedom), rel=1e-6, abs=1e-6), reading
        t = scipy.stats.t(freedom)
        error = (high - gain) / t.ppf(0.975) or 1e-300
        claim = reading.claim
        claimed = {"size": claim.size, "comparable": -(claim.margin or 0)}.get(claim.form, 0.0)
        p = 2 * min(t.sf((gain - claimed) / error), 0.5)  # type: ignore[operator]
        p_zero = 2 * min(t.sf(gain / error), 0.5)
        excluded = high < claimed  # type: ignore[operator]
        published = _printed(one.table, reading)
        if claim.form in ("superiority", "comparable") and published is not None:
            wide = math.hypot(error, published[1])
            excluded |= gain + t.ppf(0.975) * wide < published[0]
        if claim.form == "null":
            margin = claim.margin or 0.0
            sides = (t.sf((gain + margin) / error), t.cdf((gain - margin) / error))
            p = p_zero = 2 * min(max(sides), 0.5)
            excluded = low > margin or high < -margin
        if claim.form == "comparable":
            p_zero = p
        assert reading.p == pytest.approx(p, rel=1e-5, abs=1e-12), reading
        families.setdefault((claim.id, reading.setting), []).append((reading, p, p_zero, excluded))
    for some in families.values():
        adjusted = [[p for _, p, _, _ in some], [p for _, _, p, _ in some]]
        if not some[0][0].claim.every:
            adjusted = [holm(each) for each in adjusted]  # statsmodels' in test_statistics
        for (reading, _, _, excluded), p, direction in zip(some, *adjusted, strict=True):
            word = "contradicted" if excluded else "imprecise"
            if p < 0.05 and not excluded:
                word = "confirmed"
            elif direction < 0.05 and excluded:
                word = "partly"
            assert reading.outcome == word, reading
            assert reading.adjusted == pytest.approx(p, rel=1e-5, abs=1e-12)


def _printed(table: Table, reading: Reading) -> tuple[float, float] | None:
    """The published gain and its standard error, from the transcribed numbers."""
    labels = {row.label: row.published for row in table.rows}
    columns = {column.label: table.metric_of(column) for column in table.columns}
    values = [
        table.published.value(labels[label] or "", reading.column)
        for label in (reading.better, reading.than)
    ]
    if None in values or columns[reading.column] != reading.metric:
        return None
    first, second = values
    assert first is not None
    assert second is not None
    spread = math.sqrt(((first.std or 0) ** 2 + (second.std or 0) ** 2) / table.published.runs)
    return first.mean - second.mean, spread if None not in (first.std, second.std) else 0.0


# Whose own numbers say otherwise in some column, as its sentence or a warning of the table tells.
AGAINST_ITS_NUMBERS = {
    "lmcl-table-5",
    "lmcl-table-3",
    "cllr-table-1-100",
    "cllr-table-1-nuclear",
    "mmcl-table-7-hcl",
}


def test_claims_are_true_of_the_published_numbers() -> None:
    against: set[str] = set()
    for domain in DOMAINS:
        for some in importlib.import_module(f"{domain}.tables").TABLES.values():
            for table in some:
                labels = {row.label: row.published for row in table.rows}
                against |= {
                    claim.id
                    for claim in table.claims
                    for each in claim.comparisons
                    for column in each.columns
                    if (better := table.published.value(labels[each.better] or "", column))
                    and (than := table.published.value(labels[each.than] or "", column))
                    and better.mean <= than.mean
                }
    assert against == AGAINST_ITS_NUMBERS


def test_every_claim_has_its_source_and_margins_are_the_papers_deviations() -> None:
    claims: dict[str, Claim] = {}
    for domain in DOMAINS:
        for some in importlib.import_module(f"{domain}.tables").TABLES.values():
            for table in some:
                for claim in table.claims:
                    said = dataclasses.replace(claim, comparisons=())
                    assert claims.setdefault(claim.id, said) == said
    assert {claim.paper for claim in claims.values()} == {"", "lmcl", "cllr", "mmcl", "margins"}
    for claim in claims.values():
        assert claim.sentence.endswith("?" if claim.additional else "."), claim.id
        if not claim.additional:
            file, phrase = claim.source.split(": ", 1)
            assert file.endswith((".yaml", ".md")), claim.id
            assert phrase, claim.id
    table_2 = next(
        t for t in importlib.import_module("vision.tables").TABLES["margins"] if t.name == "table-2"
    )
    deviations = [v.std for row in table_2.published.rows.values() for v in row if v and v.std]
    for claim in claims.values():
        if claim.paper == "margins" and claim.margin:
            assert claim.margin == pytest.approx(2 * statistics.median(deviations), abs=0.05)
