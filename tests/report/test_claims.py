"""The claims' comparisons, their pages and pictures; all words a second time by another program."""

import copy
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from toy.tables import CLAIM, TABLES

from shared.command.cells import every_table
from shared.experiment.config import canonical
from shared.experiment.data import is_approximate
from shared.experiment.published import with_claims
from shared.experiment.records import Record
from shared.experiment.tables import Claim, Column, Published, Seeds, Setting, Table, Tuned, Value
from shared.experiment.templates import escaped
from shared.lazy import info_nce, margin_nce, max_margin
from shared.objective import Objective, term
from shared.report.claims import (
    CLAIMS,
    ITERATIONS,
    Judged,
    by_claim,
    frame,
    judged,
    read_costs,
    survivors,
    word_of_claim,
)
from shared.report.measuring import Measured
from shared.report.pages import ADDITIONAL, Results, first_page, lines, paper_page, tally, write
from shared.report.pictures import shown_by
from shared.report.wording import DASH, POST_HOC
from tests.rules6 import differences
from tests.stages.measured import measure, read_records

ROOT = Path(__file__).resolve().parents[2]
PLAIN = (70.0, 71.0, 69.0)
UP, EVEN, DOWN = (75.0, 76.0, 74.5), (70.1, 71.1, 69.3), (65.0, 66.0, 64.2)
TOY = dataclasses.replace(TABLES["toy"][0], unit="%", claims=())


def said(form: str = "superiority", columns: tuple[str, ...] = ("left",), **changes: Any) -> Claim:
    (comparison,) = CLAIM.comparisons
    apart = changes.pop("apart", False)
    beside = changes.pop("beside", "")
    comparison = dataclasses.replace(comparison, columns=columns, apart=apart, beside=beside)
    return dataclasses.replace(CLAIM, form=form, comparisons=(comparison,), **changes)


def measured(
    left: Sequence[float],
    claim: Claim | None = None,
    published: Sequence[Value] = (),
    right: Sequence[float] = (),
    facts: dict[str, str] | None = None,
    **changes: Any,
) -> Measured:
    """The toy table with values of the better row by seed, in its left and right column."""
    numbers = Published("Toy", "Toys", ("left",), {"plain": (None,), "better": (None,)})
    if published:
        rows = {"better": (published[0],), "plain": (published[1],)}
        numbers = dataclasses.replace(numbers, rows=rows, runs=5)
    table = dataclasses.replace(
        TOY,
        claims=(claim or said(),),
        published=numbers,
        seeds={"paper": tuple(range(max(len(left), len(right), len(PLAIN))))},
        **changes,
    )
    records = []
    columns = {"left": left, "right": right}
    for column, values in columns.items():
        for row, of_row in (("plain", PLAIN if values else ()), ("better", values)):
            cells = table.cells(row=row, column=column)
            for cell, value in zip(cells, of_row, strict=False):
                environment = {"data": {}, "commit": "", "hardware": {}, "facts": facts or {}}
                result = {
                    "tier": "paper",
                    "protocol": "toy-v1",
                    "metrics": {"accuracy": value, "norm": -value},
                    "seconds": 1.0,
                }
                records.append(Record(cell.address, canonical(cell.config), environment, result))
    return measure(table, "paper", records)


def one(*arguments: Any, **changes: Any) -> Judged:
    (found,) = judged([measured(*arguments, **changes)])
    return found


def results(*tables: Measured) -> Results:
    return Results(tables, judged(tables))


def test_holm_is_over_the_comparisons_of_one_claim_at_one_scale() -> None:
    marginal = (72.5, 73.5, 71.9)
    tables = [measured(marginal, name=f"table-{n}") for n in range(3)]
    assert {each.text for each in judged(tables)} == {"undecided (after adjustment)"}
    rebuilt = {"paper": Setting("rebuilt")}
    other = measured(marginal, name="table-9", settings=rebuilt)
    third = measured(marginal, said(id="another"), name="table-8")
    words = [each.text for each in judged([tables[0], other, third])]
    assert words == ["as claimed"] * 3


def test_a_comparison_is_the_mean_of_its_columns_and_those_apart_are_several() -> None:
    both = said(columns=("left", "right"))
    found = one(UP, both, right=DOWN)
    assert found.gain.estimate.gain == pytest.approx(0.1167, abs=1e-3)
    assert (found.text, found.gain.above, found.gain.below) == ("depends on the data", 1, 1)
    apart = judged([measured(UP, said(columns=("left", "right"), apart=True), right=DOWN)])
    assert [(each.part, each.text) for each in apart] == [
        ("left", "as claimed"),
        ("right", "contrary"),
    ]


@pytest.mark.parametrize(
    ("scope", "left", "right", "word"),
    [
        ("every", UP, UP, "as claimed (+2 -0 of 2)"),
        ("every", UP, EVEN, "undecided (+1 -0 of 2)"),
        ("every", UP, DOWN, "contrary (+1 -1 of 2)"),
        ("most", UP, UP, "as claimed (+2 -0 of 2)"),
        ("most", UP, DOWN, "undecided (+1 -1 of 2)"),
        ("most", DOWN, DOWN, "contrary (+0 -2 of 2)"),
    ],
)
def test_a_claim_about_every_column_or_most_has_one_word(
    scope: str, left: Any, right: Any, word: str
) -> None:
    claim = said(columns=("left", "right"), scope=scope)
    found = judged([measured(left, claim, right=right)])
    assert word_of_claim(found) == word
    assert [each.text for each in found] == [""]


@pytest.mark.parametrize(
    ("left", "claim", "printed", "size"),
    [
        (UP, said(), (75.0, 70.0), "inside, 0 outside"),
        (EVEN, said(), (70.5, 70.0), "inside, 0 inside too"),
        (EVEN, said(), (90.0, 70.0), "excluded, gain below"),
        (UP, said(), (70.1, 70.0), "excluded, gain above"),
        (UP, said("size", size=1.0), (), "reached"),
        (UP, said("size", size=5.0), (), "neither"),
        (EVEN, said("size", size=15.0), (), "excluded"),
        (UP, said(), (), ""),
    ],
)
def test_the_size_is_a_column_of_its_own(
    left: Any, claim: Claim, printed: tuple[float, ...], size: str
) -> None:
    found = one(left, claim, tuple(map(Value, printed)))
    assert found.size == size
    other = {"paper": Setting("reduced", other_data={"toy": "other toys"})}
    assert one(left, claim, tuple(map(Value, printed)), settings=other).size.startswith("other")


def test_columns_of_one_run_count_once_a_seed() -> None:
    columns = tuple(Column(label, run="both") for label in ("left", "right"))
    both = one(UP, said(columns=("left", "right")), columns=columns)
    assert both.gain.estimate == one(UP).gain.estimate


def test_rows_on_other_data_or_processors_are_remarked() -> None:
    found = measured(UP)
    places = {"plain": ("a" * 64, "EPYC"), "better": ("b" * 64, "Xeon")}
    records = []
    for record in found.records:
        digest, processor = places[record.address.split("/")[3]]
        environment = {"data": {"toys": digest}, "hardware": {"processor": processor}}
        records.append(
            dataclasses.replace(record, environment={**record.environment, **environment})
        )
    (comparison,) = judged([measure(found.table, "paper", records)])
    on_data, on_processors = comparison.remarks
    assert "toys" in on_data
    assert "EPYC and Xeon" in on_processors


def test_two_rows_of_one_printed_row_have_no_printed_gain() -> None:
    rows = tuple(dataclasses.replace(row, published="better") for row in TOY.rows)
    published = Published("Toy", "Toys", ("left",), {"better": (Value(75.0),)})
    found = measured(UP)
    cells = dataclasses.replace(found.table, rows=rows, published=published)
    records = list(found.records)
    (comparison,) = judged([measure(cells, "paper", records)])
    assert (comparison.printed, comparison.size) == (None, "")


def test_a_term_without_a_share_is_not_testable_if_the_suite_chose_its_number() -> None:
    low = {"gradient_share_penalty": "0.004"}
    assert one(UP, facts=low, chosen_here=("better",)).text == "not testable"
    assert one(UP, facts=low).text == "as claimed"
    assert one(UP, facts=low).gain.share == 0.004
    assert one(UP, chosen_here=("better",)).text == "as claimed"  # no share is known
    address = ("toy/toy/table-1", "better", "left")
    (known,) = judged([measured(UP, chosen_here=("better",))], {address: 0.004})
    assert known.text == "not testable"
    both = measured(UP, said(columns=("left", "right")), right=UP)
    (known,) = judged([both], {address: 0.004, (*address[:2], "right"): 0.2})
    assert known.gain.share == 0.2


def test_failed_seeds_are_those_that_the_table_declares() -> None:
    seeds = Seeds((2, 3, 4, 5), rows=("better",))
    found = measured((99.0, 98.0, 97.0, 1, 1, 1), failed={"failed: singular": seeds})
    failed = tuple(f"better/left/seed-{seed}" for seed in seeds.seeds)
    records = [record for record in found.records if not record.address.endswith(failed)]
    (comparison,) = judged([measure(found.table, "paper", records)])
    assert comparison.gain.failed == ((4, 6), (0, 0))
    assert comparison.gain.ranked
    page = paper_page(Results((), (comparison,)), "toy")
    assert "2 of 6 runs of 'better' finished" in page


def tuned_table(tuned: tuple[Tuned, ...], method: Any, baseline: Any) -> Any:
    """The reduced toy table whose rows train with two losses."""
    objectives = {"better": Objective(method), "plain": Objective(baseline)}

    @dataclasses.dataclass(frozen=True)
    class Config:
        objective: Any

    class Stub:
        tier = "short"

        class table:
            @staticmethod
            def setting(_: str) -> Setting:
                return Setting("reduced")

            @staticmethod
            def cells(_: str, row: str) -> list[Any]:
                return [dataclasses.make_dataclass("Cell", ["config"])(Config(objectives[row]))]

    Stub.table.tuned = tuned  # type: ignore[attr-defined]
    return Stub


def test_another_loss_meets_the_baseline_that_was_tuned_alike() -> None:
    from shared.report.claims import _rows_of

    (pair,) = CLAIM.comparisons
    mmcl, nce = term(max_margin), term(info_nce, temperature=0.5)

    def rows(*tuned: Tuned, method: Any = mmcl) -> list[tuple[str, bool, bool]]:
        objectives = {"tuned plain": nce}
        stub = tuned_table(tuned, method, objectives["tuned plain"])
        return [(r.baseline, r.beside, r.untuned) for r in _rows_of(stub, pair)]

    values = (0.1, 0.25, 0.5)
    method = Tuned("better", "better", values, 0.25)
    kept, edge = (Tuned("plain", "plain", values, value) for value in (0.25, 0.1))
    moved = Tuned("plain", "tuned plain", (0.05, *values), 0.1)
    moved_to_edge = Tuned("plain", "tuned plain", values, 0.1)
    assert rows() == [("plain", False, True)]
    assert rows(method, kept) == [("plain", False, False)]
    assert rows(method, edge) == [("plain", False, True)]
    assert rows(kept) == [("plain", False, True)]  # the method was not tuned
    assert rows(method, moved_to_edge) == [("plain", False, True), ("tuned plain", True, False)]
    assert rows(method, moved) == [("plain", True, False), ("tuned plain", False, False)]
    # Margins are part of a loss, and a term is added to one.
    assert rows(method=term(margin_nce, temperature=0.1)) == [("plain", False, False)]
    assert rows(method=nce) == [("plain", False, False)]


def test_questions_are_answered_yes_or_no(tmp_path: Path) -> None:
    claims = [said(paper=paper, id=f"{paper}-{n}") for paper in ("margins", "") for n in (0, 1)]
    tables = [
        measured(values, claim) for values, claim in zip((UP, DOWN, UP, DOWN), claims, strict=True)
    ]
    assert [each.text for each in judged(tables)] == ["as claimed", "contrary", "yes", "no"]
    write(tmp_path, results(*tables))
    for name, words in (("margins", {"as claimed", "contrary"}), (ADDITIONAL, {"yes", "no"})):
        assert {*json.loads(shown_by(tmp_path / f"{name}.png"))["legend"]} == words


def test_a_second_read_out_is_said_where_it_has_the_other_sign_and_one_is_sure() -> None:
    def second(values: Any) -> Any:
        units = {"norm": "% of variance"}  # which may be below 0
        return one(values, said(beside="norm"), also=("norm",), units=units).second

    assert second(UP).gain == pytest.approx(-(5 + 1 / 6))
    assert second(EVEN) is None
    assert one(UP, said(beside="accuracy")).second is None


def test_a_picture_has_printed_gains_margins_and_columns(tmp_path: Path) -> None:
    claim = said("comparable", ("left", "right"), margin=1.5, paper="margins")
    table = measured(UP, claim, (Value(77.0), Value(70.0)), right=EVEN)
    write(tmp_path, results(table))
    (panel,) = json.loads(shown_by(tmp_path / "margins.png"))["panels"]
    ((point,),) = panel["lines"].values()
    assert point["margin"] == [-1.5]
    assert point["values"] == pytest.approx([5.1667, 0.1667], abs=1e-3)
    alone = measured(UP, said(paper="margins"), (Value(77.0), Value(70.0)))
    write(tmp_path, results(alone))
    (panel,) = json.loads(shown_by(tmp_path / "margins.png"))["panels"]
    ((point,),) = panel["lines"].values()
    assert (point["published"], point["values"]) == (7.0, [])
    write(tmp_path, results(measured(UP, said("no gain", margin=1.5, paper="margins"))))
    (panel,) = json.loads(shown_by(tmp_path / "margins.png"))["panels"]
    ((point,),) = panel["lines"].values()
    assert point["margin"] == [1.5]


def test_the_terminal_and_the_pages_have_what_was_judged() -> None:
    added = {"paper": {"better": 1}}
    found = results(
        measured(UP, said(paper="lmcl", declared="2026-01-01, before"), post_hoc_seeds=added)
    )
    page = paper_page(found, "lmcl")
    assert f"| 3 {POST_HOC} |" in page
    assert "Declared 2026-01-01, before." in page
    assert "as claimed" in page
    assert "[better is better](lmcl.md#toy-table-1)" in first_page(found)
    idle = results(measured((), said(paper="lmcl")))
    assert "## Not run" in paper_page(idle, "lmcl")
    assert "| not run |" in first_page(idle)


def test_the_lines_of_claims_by_hand() -> None:
    """The plain row is at 70, the better one 5.17 above, 0.17 above or 4.93 below."""
    columns = measured(
        (*UP, 75.5), said(id="columns", paper="lmcl", columns=("left", "right")), right=DOWN
    )
    several = [
        measured(values, said(id="several", paper="lmcl"), name=f"table-{number}")
        for number, values in enumerate((UP, EVEN, DOWN), start=2)
    ]
    low = measured(
        UP,
        said(id="low", paper="lmcl"),
        (Value(77.0), Value(70.5)),
        facts={"gradient_share_penalty": "0.004"},
        chosen_here=("better",),
        name="table-5",
    )
    found = results(columns, *several, low)
    words = "1 as claimed; 1 undecided; 1 contrary"
    three = "3 comparisons, -4.93 to +5.17 (intervals from -7.10 to +7.24), of baselines at 70.00"
    printed = "inside, 0 outside"
    assert [rest for _, *rest in lines(found, "lmcl")] == [
        [DASH, "70.00 → 71.46: +1.46 [-2.53, +5.45]", "4, 3", "undecided", DASH],
        [DASH, three, "3", words, DASH],
        ["+6.50", "70.00 → 75.17: +5.17 [+3.09, +7.24]", "3", "not testable", printed],
    ]
    assert tally(found.of("lmcl")).endswith(": 1 undecided, 1 with several words, 1 not testable.")
    page = paper_page(found, "lmcl").replace("\\", "")
    for line in (
        f"better: 71.46 | plain: 70.00 | {DASH} | +1.46 [-2.53, +5.45] | +1 -0 of 2 | 4, 3 |",
        f"better → plain | left | 75.25 | 70.00 | +5.25 [+3.23, +7.27] | 4, 3 | {DASH} | above |",
        f"better → plain | right | 67.67 | 70.00 | -2.33 [-10.50, +5.85] | 4, 3 | {DASH} |  |",
        "+6.50 (70.50 → 77.00) | not testable | inside, 0 outside |",
        "The term has 0.4% of the gradient over the whole run.",
    ):
        assert line in page
    assert "| 4 of 4 |" in first_page(results(columns))


@pytest.mark.parametrize(
    ("ratios", "word", "text"),
    [
        ([1.0, 1.1, 1.2], "undecided", "takes 1.10 [0.85, 1.35] times"),
        ([1.1, 1.101, 1.102], "as claimed", "takes 1.10 [1.10, 1.10] times"),
        ([1.7, 1.71, 1.72], "contrary", "takes 1.71 [1.69, 1.73] times"),
    ],
)
def test_the_time_of_an_iteration_has_a_word(
    ratios: list[float], word: str, text: str, tmp_path: Path
) -> None:
    row = {"row": "CLLR, nuclear", "against": "SimCLR", "ratios": ratios, "processor": "EPYC"}
    (tmp_path / ITERATIONS).write_text(json.dumps({"iterations": [row, {**row, "row": "DCL"}]}))
    costs = Results((), (), costs=read_costs(tmp_path))
    (told,) = (each for each in paper_page(costs, "cllr").splitlines() if "overhead" in each)
    assert escaped(f": {word}. An iteration of CLLR, nuclear {text}") in told
    assert "Time of an iteration" not in paper_page(costs, "lmcl")


def test_smoke_is_judged_by_nobody() -> None:
    with pytest.raises(ValueError, match="the smoke tier never enters results"):
        judged([measure(TABLES["toy"][0], "smoke", [])])


ENTRY = """
[[claim]]
id = "one"
paper = "toy"
sentence = "Better."
brief = "better"
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
    settings += 'other_data = { toy = "other toys" }\n'
    other = '[settings."toy/table-1".short.by_paper]\nother = ["Another dataset."]\n'
    more = '[chosen_here]\n"toy/table-1" = ["better"]\n[[tuned]]\ntable = "toy/table-1"\n'
    more += 'row = "plain"\nchosen = "better"\nvalues = [0.1, 0.5]\nvalue = 0.5\n'
    table = loaded(ENTRY + settings + other + more, tmp_path)
    (claim,) = table.claims
    (comparison,) = claim.comparisons
    assert (comparison.columns, comparison.tiers) == (("left", "right"), ("paper", "short"))
    setting = table.setting("short")
    assert (setting.word, setting.differences) == ("reduced", ("Two steps.",))
    assert setting.by_paper == {"other": ("Another dataset.",)}
    assert setting.other_data == {"toy": "other toys"}
    assert table.setting("paper") == Setting("paper's")
    assert table.chosen_here == ("better",)
    (tuned,) = table.tuned
    assert (tuned.chosen, tuned.at_edge) == ("better", True)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('source = "toy.yaml: better"', 'source = ""', "sentence, place or source"),
        ('source = "toy.yaml: better"', "", "'source'"),
        ('"superiority"', '"better"', "no form 'better'"),
        ('"superiority"', '"size"', "a claim of size has size"),
        ('"superiority"', '"superiority"\nmargin = 1.0', "superiority has no number"),
        ("toy/table-1", "toy/table-9", "no table toy/table-9"),
        ('"plain"', '"worst"', "undeclared rows"),
        ("pairs =", "rows =", "comparisons"),
        (ENTRY, ENTRY + ENTRY, "declared twice"),
        (ENTRY, ENTRY + '[chosen_here]\n"toy/table-1" = ["worst"]\n', "no row worst"),
        (ENTRY, '[settings."toy/table-1".paper]\nword = "own"', "a setting is one of"),
    ],
)
def test_a_mistake_in_a_file_of_claims_is_an_error(
    old: str, new: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=text):
        loaded(ENTRY.replace(old, new), tmp_path)


def test_every_word_follows_from_the_records_by_another_program(tmp_path: Path) -> None:
    assert differences(ROOT / "results") == []
    content = json.loads((ROOT / "results" / CLAIMS).read_text(encoding="utf-8"))
    assert sum(not row["column"] for row in content["comparisons"]) > 150
    mutated = copy.deepcopy(content)
    lines = [row for row in mutated["comparisons"] if row.get("word") == "contrary"]
    lines[0]["word"] = "as claimed"
    lines[1]["gain"] += 0.01
    mutated["claims"]["mmcl-table-8"]["word"] = "as claimed (+2 -0 of 2)"
    (tmp_path / CLAIMS).write_text(json.dumps(mutated), encoding="utf-8")
    assert len(differences(ROOT / "results", tmp_path / CLAIMS)) == 3


def all_claims() -> Iterator[tuple[Table, Claim]]:
    for table in every_table():
        for claim in table.claims:
            yield table, claim


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
    for table, claim in all_claims():
        labels = {row.label: row.published for row in table.rows}
        against |= {
            claim.id
            for each in claim.comparisons
            if claim.form not in ("null", "no gain")
            for column in each.columns
            if (better := table.published.value(labels[each.method] or "", column))
            and (than := table.published.value(labels[each.baseline] or "", column))
            and better.mean <= than.mean
        }
    assert against == AGAINST_ITS_NUMBERS


def test_a_claim_is_the_same_in_all_its_tables_and_has_a_date_once_it_was_run() -> None:
    claims: dict[str, Claim] = {}
    for _, claim in all_claims():
        alone = dataclasses.replace(claim, comparisons=())
        assert claims.setdefault(claim.id, alone) == alone
    content = json.loads((ROOT / "results" / CLAIMS).read_text(encoding="utf-8"))
    run = {row["claim"] for row in content["comparisons"]}
    assert [claim.id for claim in claims.values() if claim.id in run and not claim.declared] == []


def test_claims_on_files_that_are_not_the_published_ones_say_so() -> None:
    records = read_records(ROOT / "results")
    for table in every_table():
        comparisons = [each for claim in table.claims for each in claim.comparisons]
        for tier in {tier for each in comparisons for tier in each.tiers} & {*table.tiers}:
            found = measure(table, tier, records)
            hashes = [h for r in found.records for h in r.environment["data"].values()]
            if any(map(is_approximate, hashes)):
                told = " ".join(table.setting(tier).differences)
                assert "re-encoded cop" in told, table.address


def test_the_frame_is_tidy_and_survivors_are_counted_once() -> None:
    both = said(columns=("left", "right"))
    tables = [
        measured(UP, both, right=UP),
        measured(UP, said(id="again", columns=("left", "right")), right=UP),
    ]
    found = judged(tables)
    rows = list(frame(found))
    assert [row["column"] for row in rows] == ["", "left", "right"] * 2
    assert survivors(found, "toy") == (1, 1, 1)
    assert len(by_claim(found)) == 2


def test_readmes_table_is_made_of_the_frame() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## What was found")[2].partition("\n## ")[0]
    table = [row for row in section.splitlines() if row.startswith("| [")]
    assert 15 <= len(table) <= 25
    ids = re.findall(r"\.md#([\w-]+)\)", "\n".join(table))
    assert ids
    assert {*ids} == {claim.id for _, claim in all_claims() if claim.readme}
