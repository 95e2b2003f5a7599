"""Words follow from the committed records by the rules of docs/claims.md, and each can fail."""

import copy
import dataclasses
import importlib
import json
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import scipy
from toy.tables import CLAIM, TABLES

from shared.command.cells import DOMAINS
from shared.experiment.config import canonical
from shared.experiment.data import is_approximate
from shared.experiment.published import with_claims
from shared.experiment.records import Record, read_records
from shared.experiment.tables import Claim, Published, Seeds, Setting, Table, Value
from shared.experiment.templates import escaped
from shared.objective import SHARE
from shared.report.claims import (
    CLAIMS,
    FORM,
    ITERATIONS,
    Finding,
    Reading,
    findings,
    json_text,
    read_costs,
    readings,
    significant,
)
from shared.report.files import ADDITIONAL
from shared.report.measuring import Measured
from shared.report.pictures import shown_by
from shared.report.statistics import seeds_for, wider
from shared.report.summary import Results, first_page, paper_page, write
from shared.report.wording import ADJUSTED, ADJUSTED_NOTE, LOOKED, LOOKED_NOTE
from tests.measured import measure
from tests.recomputed_words import differing, recomputed

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
    return measure(table, "paper", records)


def said(form: str = "superiority", columns: tuple[str, ...] = ("left",), **changes: Any) -> Claim:
    (comparison,) = CLAIM.comparisons
    comparison = dataclasses.replace(comparison, columns=columns)
    return dataclasses.replace(CLAIM, form=form, comparisons=(comparison,), **changes)


def outcome(*arguments: Any, **changes: Any) -> str:
    (reading,) = readings([measured(*arguments, **changes)])
    return reading.outcome


UP, LEVEL, DOWN = (75.0, 76.0, 74.5), (70.1, 71.1, 69.3), (65.0, 66.0, 64.2)
REBUILT = {"paper": Setting("rebuilt")}


@pytest.mark.parametrize(
    ("better", "claim", "published", "expected", "elsewhere"),
    [
        # Superiority, without a published gain, with one that fits, and with one that is larger.
        (UP, said(), (), "confirmed", "agrees"),
        (LEVEL, said(), (), "open", "open"),
        (DOWN, said(), (), "contradicted", "disagrees"),
        (UP, said(), (Value(75.0), Value(70.0)), "confirmed", "agrees"),
        (UP, said(), (Value(95.0), Value(70.0)), "partly", "agrees"),
        (LEVEL, said(), (Value(95.0), Value(70.0)), "contradicted", "open"),
        # A gain that is larger than published denies nothing.
        (UP, said(), (Value(70.1), Value(70.0)), "confirmed", "agrees"),
        # The published gain has an uncertainty of its own.
        (UP, said(), (Value(85.0, 9.0), Value(70.0, 9.0)), "confirmed", "agrees"),
        # Size: only at the paper's setting does it count.
        (UP, said("size", size=1.0), (), "confirmed", "agrees"),
        (UP, said("size", size=15.0), (), "partly", "agrees"),
        (LEVEL, said("size", size=15.0), (), "contradicted", "open"),
        # Not worse than by a margin.
        (LEVEL, said("comparable", margin=6.0), (), "confirmed", "agrees"),
        (LEVEL, said("comparable", margin=1.0), (), "open", "open"),
        (DOWN, said("comparable", margin=1.0), (), "contradicted", "disagrees"),
        # No gain worth the name; a loss counts against it, too.
        (LEVEL, said("null", margin=6.0), (), "confirmed", "agrees"),
        (LEVEL, said("null", margin=1.0), (), "open", "open"),
        (UP, said("null", margin=1.0), (), "contradicted", "disagrees"),
        (DOWN, said("null", margin=1.0), (), "contradicted", "disagrees"),
        # No improvement: a loss does not count against it.
        (LEVEL, said("no gain", margin=6.0), (), "confirmed", "agrees"),
        (DOWN, said("no gain", margin=1.0), (), "confirmed", "agrees"),
        (LEVEL, said("no gain", margin=1.0), (), "open", "open"),
        (UP, said("no gain", margin=1.0), (), "contradicted", "disagrees"),
        # One seed, no spread and no seed.
        ((75.0,), said(), (), "one seed", "one seed"),
        ((75.0, 75.0), said(), (), "open", "open"),
        ((), said(), (), "not run", "not run"),
    ],
)
def test_each_word_has_its_rule(
    better: Sequence[float],
    claim: Claim,
    published: Sequence[Value],
    expected: str,
    elsewhere: str,
) -> None:
    assert outcome(better, claim, published) == expected
    assert outcome(better, claim, published, settings=REBUILT) == elsewhere


def test_holm_is_over_the_readings_of_one_claim_at_one_setting() -> None:
    gain = (72.5, 73.5, 72.0)
    alone = readings([measured(gain)])
    assert (alone[0].outcome, alone[0].adjusted) == ("confirmed", alone[0].p)
    level = measured(LEVEL, name="table-9")
    together = readings([measured(gain), level, level])
    assert [each.outcome for each in together] == ["open"] * 3
    assert [each.open_by_adjustment for each in together] == [True, False, False]
    assert together[0].p == alone[0].p
    assert together[0].adjusted == pytest.approx(3 * alone[0].p)  # type: ignore[operator]
    # Another setting, another claim, and readings without a word are in other families.
    apart = readings([measured(gain), measured(LEVEL, settings=REBUILT)])
    other = readings([measured(gain), measured(LEVEL, said(id="other"))])
    single = readings([measured(gain), measured((75.0,))])
    assert apart[0].adjusted == other[0].adjusted == single[0].adjusted == alone[0].p
    assert apart[1].setting == "rebuilt"
    # Said of every dataset, each reading stands for itself.
    every = measured(gain, said(scope="every")), measured(LEVEL, said(scope="every"))
    assert [each.outcome for each in readings(every)] == ["confirmed", "open"]


def found(*gains: Sequence[float], claim: Claim | None = None, **changes: Any) -> Finding:
    (finding,) = findings(readings([measured(gain, claim, **changes) for gain in gains]))
    return finding


@pytest.mark.parametrize(
    ("gains", "each", "every", "most"),
    [
        ((UP, UP), "agrees", "agrees", "agrees"),
        ((UP, LEVEL), "agrees in 1 of 2", "open", "open"),
        ((UP, DOWN), "mixed", "disagrees", "disagrees"),
        ((DOWN, DOWN), "disagrees", "disagrees", "disagrees"),
        ((LEVEL, DOWN), "disagrees in 1 of 2", "disagrees", "disagrees"),
        ((LEVEL, LEVEL), "open", "open", "open"),
        ((UP, (70.0,)), "agrees", "open", "open"),
        ((UP, UP, DOWN), "mixed", "disagrees", "agrees"),
        (((70.0,), ()), "open", "open", "open"),
        (((), ()), "not run", "not run", "not run"),
    ],
)
def test_a_finding_is_one_word_for_all_readings(
    gains: Sequence[Sequence[float]], each: str, every: str, most: str
) -> None:
    assert found(*gains, settings=REBUILT).word == each
    assert found(*gains, claim=said(scope="every"), settings=REBUILT).word == every
    assert found(*gains, claim=said(scope="most"), settings=REBUILT).word == most


def test_a_question_has_no_setting_of_a_paper_that_was_not_run() -> None:
    text = "The paper's setting: not run"
    question = said(paper="", place="", source="")
    for claim, expected in ((said(paper="mmcl"), True), (question, False)):
        tables = [measured(UP, claim, settings=REBUILT)]
        assert (text in first_page(Results(tables, readings(tables)))) is expected


def test_questions_are_answered_yes_or_no() -> None:
    question = said(paper="", place="", source="")
    for at in (REBUILT, {}):  # and so at the scale of a paper, which does not ask them
        assert found(UP, claim=question, settings=at).word == "yes"
        assert found(DOWN, claim=question, settings=at).word == "no"
        assert found(UP, LEVEL, claim=question, settings=at).word == "yes in 1 of 2"
        assert found(DOWN, LEVEL, LEVEL, claim=question, settings=at).word == "no in 1 of 3"


def beside(
    values: Sequence[float],
    facts: dict[str, str] | None = None,
    claim: Claim | None = None,
    **row: Any,
) -> tuple[Measured, Reading]:
    """The toy table, at a rebuilt setting, with a third row; ``facts`` are of the better row."""
    one = measured(UP, claim, settings=REBUILT)
    third = dataclasses.replace(TOY.rows[0], label="third", published=None, **row)
    third = dataclasses.replace(third, changes={"offset": 9.0})  # a run of its own
    table = dataclasses.replace(one.table, rows=(*one.table.rows, third))
    records = [
        dataclasses.replace(r, environment=r.environment | {"facts": facts or {}})
        if "/better/" in r.address
        else r
        for r in one.records
    ]
    for cell, value in zip(table.cells(row="third", column="left"), values, strict=False):
        result = one.records[0].result | {"metrics": {"accuracy": value}}
        environment = one.records[0].environment
        records.append(Record(cell.address, canonical(cell.config), environment, result))
    made = measure(table, "paper", records)
    return made, readings([made])[0]


def test_two_rows_below_the_bar_say_nothing() -> None:
    chance = [99.0, 98.0, 97.0]
    assert beside(chance, baseline=True)[1].outcome == "agrees"
    _, reading = beside(chance, baseline=True, bar=True)
    assert (reading.outcome, reading.adjusted, reading.bar) == ("below the bar", None, 98.0)
    # By the mean of the two rows, 72.6: one of them may lie below it.
    assert beside([72.0], baseline=True, bar=True)[1].outcome == "agrees"


def test_rows_that_collapse_or_are_inert_say_nothing() -> None:
    near = {"baseline": True, "majority": True, "seeds": (0,)}
    assert beside([75.5], **near)[1].outcome == "baseline collapsed"  # and so is the better row
    assert beside([68.0], **near)[1].outcome == "agrees"
    low, high = {"effective_rank": "1.5"}, {"effective_rank": "7"}
    assert beside([50.0], low)[1].outcome == "collapsed"
    assert beside([50.0], high)[1].outcome == "agrees"
    small = {f"{SHARE}penalty": "0.005", f"{SHARE}None": "0.99"}
    assert beside([50.0], small)[1].outcome == "inert"
    assert beside([50.0], small, said("comparable", margin=1.0))[1].outcome == "agrees"
    assert beside([50.0], {f"{SHARE}penalty": "0.02"})[1].outcome == "agrees"
    made, _ = beside([50.0])
    shares = {(made.table.address, made.tier, "better"): 0.005}
    assert readings([made], shares)[0].outcome == "inert"
    finding = findings(readings([made], shares))[0]
    assert (finding.outcome, finding.informative) == ("uninformative", ())


def test_remarks_change_no_word() -> None:
    plain = readings([measured(UP)])[0]
    claim = said()
    (comparison,) = claim.comparisons
    claim = dataclasses.replace(
        claim, comparisons=(dataclasses.replace(comparison, beside="norm"),)
    )
    one = measured(UP, claim, also=("norm",), units={"norm": "% of variance"})
    records = [
        dataclasses.replace(
            r,
            environment=r.environment
            | {"data": {"toys": r.address}, "hardware": {"processor": r.address[-16:-7]}},
        )
        for r in one.records
    ]
    (remarked,) = readings([measure(one.table, "paper", records)])
    assert remarked.remarks[:2] == (
        "By norm the gain has the other sign: -5.17.",
        "The two rows were measured on different data: toys.",
    )
    assert remarked.remarks[2].startswith("Their processors differ: ")
    for name in ("outcome", "gain", "low", "high", "p", "estimates"):
        assert getattr(remarked, name) == getattr(plain, name)


def test_seeds_needed_are_told_where_a_known_gain_is_still_open() -> None:
    published = (Value(72.0, 9.0), Value(70.0, 9.0))
    one = measured(LEVEL, None, published)
    (open_,) = readings([one])
    sd = wider(open_.estimates).error / math.sqrt(2 / 3)
    assert (open_.outcome, open_.seeds_needed) == ("open", seeds_for(2.0, sd))
    several = readings([one, measured(LEVEL, name="table-9")])  # with Holm's adjustment
    assert several[0].seeds_needed == seeds_for(2.0, sd, 0.025) > seeds_for(2.0, sd)
    (settled,) = readings([measured(UP, None, published)])
    (unknown,) = readings([measured(LEVEL)])
    assert settled.seeds_needed is unknown.seeds_needed is None


def test_gains_are_significant_by_the_papers_own_deviations() -> None:
    for high, clear in ((85.0, True), (71.0, False), (60.0, False)):
        table = measured(UP, None, (Value(high, 1.5), Value(70.0, 2.0))).table
        ((claim, _, column, found_),) = significant(table)
        assert (claim.id, column, found_) == ("toy-table-1", "left", clear)
        test = scipy.stats.ttest_ind_from_stats(high, 1.5, 5, 70.0, 2.0, 5, equal_var=False)
        assert bool(test.pvalue < 0.05 and high > 70) is clear
    for published in ((Value(85.0), Value(70.0)), (Value(85.0, None, 0.4), Value(70.0, None, 0.4))):
        assert list(significant(measured(UP, None, published).table)) == []
    none_claimed = said("no gain", margin=1.0)
    published = (Value(85.0, 1.5), Value(70.0, 2.0))
    assert list(significant(measured(UP, none_claimed, published).table)) == []


def test_two_readings_of_one_printed_row_have_no_published_gain() -> None:
    """It would be 0, which no paper printed."""
    printed = (Value(85.0, 1.5), Value(70.0, 2.0))
    one = measured(UP, None, printed)
    (reading,) = readings([one])
    assert (reading.published, reading.published_error) == (15.0, pytest.approx(2.5 / 5**0.5))
    rows = tuple(dataclasses.replace(row, published="plain") for row in one.table.rows)
    numbers = dataclasses.replace(one.table.published, rows={"plain": (printed[1],)})
    table = dataclasses.replace(one.table, rows=rows, published=numbers)
    both = measure(table, "paper", one.records)
    (reading,) = readings([both])
    assert (reading.published, reading.published_error) == (None, None)
    assert list(significant(both.table)) == []


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
        pytest.approx(5 + 1 / 6),
    )
    assert (second["claim"], second["seeds_than"]) == ("other", [0, 1, 2])
    assert [each.claim.additional for each in findings(some[::-1])] == [False, True]


def test_the_summary_tells_a_claim_in_three_lines() -> None:
    def page(*gains: float) -> str:
        tables = [
            measured(
                [value + gain + 0.1 * place for place, value in enumerate(PLAIN)],
                said(paper="margins"),
                name=f"table-{number}",
                settings={"paper": Setting("reduced", ("Two steps.",))},
            )
            for number, gain in enumerate(gains)
        ]
        return first_page(Results(tables, readings(tables)))

    few, many = page(5, 7, 6), page(5, 8, 7, 6, 9)
    assert "small runs: **agrees**, +7.10 [" in few
    assert "a gain above " not in few  # what they exclude is of interest where they find no gain
    assert re.search(
        r"\*\*disagrees\*\*, -4\.90 \[.*; a gain above \S+ is excluded", page(-5, -6, -7)
    )
    assert "a gain above " not in page(5, 7, -6)
    assert "run: [toy/toy/table-0](toy/toy/table-0.md): 3 seeds. Two steps." in few
    assert "gains from +5.10 to +9.10 in 5 readings" in many
    assert "**Nothing has been measured at a paper's full setting.**" in few


@pytest.mark.parametrize(
    ("ratios", "word", "text"),
    [
        ([1.0, 1.1, 1.2], "open", "takes 1.10 [0.85, 1.35] times"),
        ([1.1, 1.101, 1.102], "agrees", "takes 1.10 [1.10, 1.10] times"),
        ([1.1, 1.25, 1.4], "open", "takes 1.25 [0.88, 1.62] times"),
        ([1.7, 1.71, 1.72], "disagrees", "takes 1.71 [1.69, 1.73] times"),
    ],
)
def test_the_time_of_an_iteration_has_a_word_beside_the_findings(
    ratios: list[float], word: str, text: str, tmp_path: Path
) -> None:
    row = {"row": "CLLR, nuclear", "against": "SimCLR", "ratios": ratios, "processor": "EPYC"}
    (tmp_path / ITERATIONS).write_text(json.dumps({"iterations": [row, {**row, "row": "DCL"}]}))
    results = Results((), (), costs=read_costs(tmp_path))
    lines = [line for line in paper_page(results, "cllr").splitlines() if "overhead" in line]
    assert len(lines) == 1
    assert escaped(f": {word}. An iteration of CLLR, nuclear {text}") in lines[0]
    assert "Time of an iteration" not in paper_page(results, "lmcl")


def test_smoke_is_read_by_nobody() -> None:
    with pytest.raises(ValueError, match="the smoke tier never enters results"):
        readings([measure(TABLES["toy"][0], "smoke", [])])


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


def test_the_settings_of_all_committed_readings_are_told_once() -> None:
    content = json.loads((ROOT / "results" / CLAIMS).read_text())
    told = {(each["paper"], each["address"], each["tier"]): each for each in content["settings"]}
    assert len(told) == len(content["settings"])
    papers = {name: claim["paper"] for name, claim in content["claims"].items()}
    places = {
        (papers[each["claim"]], each["address"], each["tier"]): each["setting"]
        for each in content["readings"]
    }
    assert {place: each["setting"] for place, each in told.items()} == places


def test_claims_on_files_that_are_not_the_published_ones_say_so() -> None:
    records = read_records(ROOT / "results")
    for domain in DOMAINS:
        for some in importlib.import_module(f"{domain}.tables").TABLES.values():
            for table in some:
                comparisons = [each for claim in table.claims for each in claim.comparisons]
                for tier in {tier for each in comparisons for tier in each.tiers} & {*table.tiers}:
                    found = measure(table, tier, records)
                    hashes = [h for r in found.records for h in r.environment["data"].values()]
                    if any(map(is_approximate, hashes)):
                        told = " ".join(table.setting(tier).differences)
                        assert "re-encoded cop" in told, table.address


def test_every_word_follows_from_the_committed_records_by_another_program() -> None:
    content = json.loads((ROOT / "results" / CLAIMS).read_text())
    ours = recomputed()
    assert differing(content, ours) == []
    assert sum(numbers is not None for _, numbers in ours[0].values()) > 150
    for part in ("readings", "findings"):
        mutated = copy.deepcopy(content)
        one = next(each for each in mutated[part] if each["outcome"] == "disagrees")
        one["outcome"] = "agrees"
        assert len(differing(mutated, ours)) == 1


# Whose own numbers say otherwise in some column, as its sentence or a warning of the table tells.
AGAINST_ITS_NUMBERS = {
    "lmcl-table-5",
    "cllr-table-4-consistent",
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
                    if claim.form not in ("null", "no gain")
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


def test_the_margin_of_a_claim_stands_beside_its_word() -> None:
    claim = said("comparable", margin=1.5, margin_source="twice a deviation, 0.75")
    tables = (measured((72.0, 73.0, 71.0), claim),)
    page = paper_page(Results(tables, readings(tables)), claim.paper)
    assert "Comparable or better is a gain above -1.5: twice a deviation, 0.75." in page
    assert "; the margin is 1.5." in page


@pytest.mark.parametrize(
    ("form", "ends"),
    [("comparable", [-1.5]), ("null", [-1.5, 1.5]), ("no gain", [1.5]), ("superiority", None)],
)
def test_the_margin_of_a_claim_is_drawn_beside_its_gains(
    tmp_path: Path, form: Any, ends: list[float] | None
) -> None:
    margin = {"margin": 1.5, "margin_source": "twice a deviation, 0.75"} if ends else {}
    claim = said(form, paper="margins", **margin)
    tables = (measured((72.0, 73.0, 71.0), claim, settings=REBUILT),)
    write(tmp_path, Results(tables, readings(tables)))
    (panel,) = json.loads(shown_by(tmp_path / f"{claim.paper}.png"))["panels"]
    assert [point.get("margin") for line in panel["lines"].values() for point in line] == [ends]


def test_collapsed_readings_stand_first_in_the_line_of_a_finding() -> None:
    low, _ = beside([99.0, 98.0, 97.0], baseline=True, bar=True)
    collapsed, _ = beside([50.0], {"effective_rank": "1.5"})
    clear, _ = beside([50.0])
    tables = (low, collapsed, clear)
    page = paper_page(Results(tables, readings(tables)), CLAIM.paper)
    assert "agrees**, 1 of 3 collapsed; 1 of 3 below 'third'; +5.17 [" in page


def test_a_finding_names_each_row_that_it_lies_below() -> None:
    low, reading = beside([99.0, 98.0, 97.0], baseline=True, bar=True)
    other = dataclasses.replace(reading, column="other", bar_row="fourth")
    page = paper_page(Results((low,), (reading, other)), CLAIM.paper)
    assert "2 of 2 below 'third' or 'fourth'" in page


def test_a_page_says_what_its_mark_beside_a_number_of_seeds_means() -> None:
    note = f"\n{LOOKED_NOTE}\n"
    for looked, marked in (({"paper": {"better": 1}}, True), ({}, False)):
        tables = (measured(UP, looked=looked),)
        page = paper_page(Results(tables, readings(tables)), CLAIM.paper)
        assert (f"| 3 {LOOKED} |" in page, note in page) == (marked, marked)


def test_a_finding_says_how_many_seeds_failed() -> None:
    for failed in ({"failed: singular": Seeds((2,), rows=("better",))}, {}):
        tables = (measured((72.5, 73.5), failed=failed),)
        page = paper_page(Results(tables, readings(tables)), CLAIM.paper)
        assert page.count("left; 1 of 3 seeds of better failed)") == bool(failed)


def test_a_page_marks_what_only_the_adjustment_leaves_open() -> None:
    gain, level = measured((72.5, 73.5, 72.0)), measured(LEVEL, name="table-9")
    for tables, marked in (((gain, level, level), True), ((gain,), False)):
        page = paper_page(Results(tables, readings(tables)), CLAIM.paper)
        assert (f"| **open** {ADJUSTED} |" in page, ADJUSTED_NOTE in page) == (marked, marked)


def test_the_legend_of_a_picture_has_the_words_of_its_page(tmp_path: Path) -> None:
    for number, (paper, up, down) in enumerate(
        (("margins", "agrees", "disagrees"), ("", "yes", "no"))
    ):
        claims = [said(paper=paper, id=name) for name in ("up", "down")]
        tables = [
            measured(values, claim, settings=REBUILT)
            for values, claim in zip((UP, DOWN), claims, strict=True)
        ]
        folder = tmp_path / str(number)
        write(folder, Results(tables, readings(tables)))
        shown = shown_by(folder / f"{paper or ADDITIONAL}.png")
        assert {*json.loads(shown)["legend"]} == {up, down}
