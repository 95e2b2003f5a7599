"""What holds of every claim: as data, as sentences, and on the first screen of the page."""

import dataclasses
import html as entities
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_report import RECORDS, TABLE, cell_of, make_table, record_of

from shared.experiment.records import Record
from shared.experiment.tables import Claim, Power, Row, Table, Tier
from shared.report.claims import entries, json_text, sentences
from shared.report.measuring import Measured, measure
from shared.report.page import site, write_site
from shared.report.site import SHAPES, claim_page
from shared.report.statistics import KINDS, power_of

ROOT = Path(__file__).parents[1]
TYPES = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "list of strings": (list,),
    "list of integers": (list,),
    "object": (dict,),
    "null": (type(None),),
}
OWN = "Asked by this suite, not by the paper: is <b>ours</b> & new better? Measured: ours."


def both_tiers() -> list[Measured]:
    """Three seeds at the paper's setting, two at a smaller budget, with a floor and a question."""
    power = Power(1.0, 0.5, ("MUTAG",), "Published.", "short")
    own = Claim(OWN, "MMCL", "GraphCL", ("MUTAG",), 0.5, tiers=("short",))
    table = make_table(
        rows=(*TABLE.rows, Row("largest class", {"loss": "none"}, floor=True)),
        powers=(*TABLE.powers, power),
        claims=(*TABLE.claims, own),
    )
    short = [
        *in_tier(table, "GraphCL", {0: 80.0, 1: 81.0}, "short"),
        *in_tier(table, "MMCL", {0: 81.0, 1: 85.0}, "short"),
        *in_tier(table, "largest class", {0: 66.5, 1: 66.5}, "short"),
    ]
    tiers: tuple[Tier, ...] = ("paper", "short")
    return [measure(table, tier, [*RECORDS, *short], {}) for tier in tiers]


def in_tier(table: Table, row: str, values: dict[int, float], tier: Tier) -> list[Record]:
    return [
        record_of(cell, values[cell.seed]) for cell in table.cells(tier, row=row, column="MUTAG")
    ]


def documented() -> dict[str, list[str]]:
    """By key of an entry its types, as docs/report.md has them."""
    text = (ROOT / "docs/report.md").read_text(encoding="utf-8")
    return {
        key: types.split(" or ")
        for key, types in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    }


def check(content: dict[str, Any]) -> None:
    """Hold a claims.json against its documented form."""
    keys = documented()
    assert content["form"] == "claims-v2"
    assert set(content["papers"]) == {entry["paper"] for entry in content["claims"]}
    for entry in content["claims"]:
        assert list(entry) == list(keys)
        for key, types in keys.items():
            allowed = tuple(each for name in types for each in TYPES[name])
            assert type(entry[key]) in allowed, (key, entry[key])
        assert entry["verdict"] in KINDS
        assert entry["counts"] == (not entry["because"])
        words = {"reproduced", "same direction", "not reproduced", "inconclusive"}
        assert entry["tier"] == "paper" or entry["verdict"] not in words
        assert all(type(seed) is int for seed in entry["seeds"])


def test_claims_have_the_numbers_of_the_records() -> None:
    content = json.loads(json_text(entries(both_tiers())))
    check(content)
    paper, dd, short, _, own = content["claims"]
    # 87.9 - 86, 89 - 87, 90.1 - 88: mean 2.0, deviation 0.1, t(0.975, 2) = 4.302653.
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert paper["gain"] == pytest.approx(2.0)
    assert (paper["low"], paper["high"]) == pytest.approx((2 - half, 2 + half), abs=1e-6)
    assert (paper["published_gain"], paper["tolerance"]) == (pytest.approx(1.62), 0.5)
    assert (paper["verdict"], paper["counts"], paper["because"]) == ("reproduced", True, [])
    assert (paper["seeds"], paper["declared_seeds"]) == ([0, 1, 2], 3)
    assert (paper["floor"], paper["arithmetic_spread"]) == (None, None)
    assert paper["power"] == {
        "gain": 1.6,
        "spread": 0.5,
        "declared": pytest.approx(power_of(3, 1.6, 0.5)),
        "reached": pytest.approx(power_of(3, 1.6, 0.1)),
    }
    assert (dd["verdict"], dd["gain"], dd["power"], dd["counts"]) == ("not run", None, None, False)
    assert (short["tier"], short["verdict"], short["gain"]) == ("short", "undecided", 2.5)
    assert short["because"] == ["undecided: says neither yes nor no"]
    assert short["floor"] == {"row": "largest class", "mean": 66.5}
    assert (own["asked_here"], own["claim"]) == (True, OWN)


def test_a_sentence_counts_what_each_tier_says_in_its_own_words() -> None:
    assert sentences(entries(both_tiers())) == {
        "mmcl": "mmcl: at the paper's setting 1 reproduced count; paper tier: 1 of 2 comparisons "
        "measured (1 reproduced); short tier, at its budget: 1 of 2 comparisons measured "
        "(1 undecided); asked by this suite besides, short tier, at its budget: 1 of 1 comparisons "
        "measured (1 undecided)."
    }
    silent = measure(make_table(powers=()), "paper", RECORDS, {})
    assert sentences(entries([silent])) == {
        "mmcl": "mmcl: no verdict at the paper's setting counts yet; paper tier: 1 of 2 "
        "comparisons measured (1 reproduced that does not count)."
    }
    (entry, _) = entries([silent])
    assert entry.because == ("no power was declared",)


def test_a_claim_is_listed_under_the_paper_that_says_it() -> None:
    foreign = Claim("Theirs is better (Table 9).", "MMCL", "GraphCL", ("MUTAG",), 0.5, paper="lmcl")
    measured = measure(make_table(claims=(*TABLE.claims, foreign)), "paper", RECORDS, {})
    *own, theirs = entries([measured])
    assert {entry.paper for entry in own} == {"mmcl"}
    assert (theirs.paper, theirs.address, theirs.table) == ("lmcl", TABLE.address, TABLE.name)
    pages = site([measured])
    page = pages[claim_page("lmcl", theirs.claim)]
    assert "lmcl, measured beside Max-Margin Contrastive Learning, Table 4: Section 5.3" in page
    assert "./reproduce.sh graph mmcl --table table-4 --row MMCL" in page
    assert page not in [pages[claim_page("mmcl", entry.sentence)] for entry in own]
    assert sentences([theirs])["lmcl"].startswith("lmcl: at the paper's setting 1 ")


def test_smoke_makes_no_claim() -> None:
    record = record_of(cell_of("MMCL", "embedded sample", 0, "smoke"), 60.0)
    with pytest.raises(ValueError, match="smoke"):
        entries([measure(TABLE, "smoke", [record], {})])


class Tables(HTMLParser):
    """For every table whether it begins with a caption, and every heading cell without scope."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables = 0
        self.captions = 0
        self.bare: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.last = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tables += tag == "table"
        self.captions += tag == "caption" and self.last == "table"
        if tag == "th" and "scope" not in values:
            self.bare.append(str(self.getpos()))
        self.ids += [str(values["id"])] if "id" in values else []
        self.links += [str(values[key]) for key in ("href", "src") if key in values]
        self.last = tag


def first_screen(measured: list[Measured], every: list[Measured] | None = None) -> str:
    return site(measured, every)["index.html"]


def words_of(text: str) -> str:
    return " ".join(entities.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_the_page_begins_with_every_claim(tmp_path: Path) -> None:
    measured = both_tiers()
    write_site(tmp_path, measured)
    screen = (tmp_path / "index.html").read_text(encoding="utf-8")
    written = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert written == json.loads(json_text(entries(measured)))
    words = words_of(screen)
    assert (
        "mmcl ● 1 reproduced 1 of 2 measured ◇ 1 undecided 1 of 2 measured "
        "◇ 1 undecided 1 of 1 measured"
    ) in words
    assert "paper tier ● 1 reproduced – 1 not run" in words  # noqa: RUF001 (the page's dash)
    assert "short tier , at its budget ◇ 1 undecided" in words
    assert "<b>ours</b>" not in screen
    assert "is <b>ours</b> & new better?" in words
    assert "short tier: reproduced" not in words
    # Every shape is another one, so that no verdict is told by its colour alone.
    assert set(SHAPES) == set(KINDS)
    assert len(set(SHAPES.values())) == len(KINDS)


def test_the_page_of_a_claim_has_every_seed_and_what_would_decide_it() -> None:
    measured = both_tiers()
    pages = site(measured)
    (entry, _) = entries([measured[0]])
    page = pages[claim_page("mmcl", entry.sentence)]
    words = words_of(page)
    # Gain and interval, published gain, seeds, power reached (declared), floor, arithmetic spread.
    assert entry.power is not None
    declared, reached = (entry.power[key] for key in ("declared", "reached"))
    assert (
        f"MUTAG ● reproduced +2.00 [{entry.low:+.2f}, {entry.high:+.2f}] +1.62 3 of 3 "
        f"{reached:.2f} ({declared:.2f}) not measured not measured"
    ) in words
    assert re.findall(r"<title>seed (\d): ([^<]*)</title>", page)[:3] == [
        ("0", "+1.90"),
        ("1", "+2.00"),
        ("2", "+2.10"),
    ]
    assert "<title>published +1.62</title>" in page
    assert "MUTAG It is decided, and counts." in words
    assert "DD It cannot run" not in words
    assert "3 seeds are declared, 3 to run: about" in words
    assert 'loss "nce" "mmcl"' in words
    # The commands are those of both rows; every column is claimed, so that none is named.
    start = "./reproduce.sh graph mmcl --table table-4 --row"
    assert f"<code>{start} MMCL\n{start} GraphCL\n</code>" in page
    assert "./reproduce.sh graph mmcl --table table-4 --row MMCL --tier short" in page


def test_the_address_of_a_claim_is_that_of_its_sentence() -> None:
    long = "word " * 60
    assert claim_page("mmcl", "MMCL is better (5.3).") == (
        "site/claims/mmcl--mmcl-is-better-5-3.html"
    )
    assert len(claim_page("mmcl", long)) < 130
    assert claim_page("mmcl", long) != claim_page("mmcl", f"{long} more")


def test_an_interval_that_some_gains_lack_is_not_said_of_them() -> None:
    columns = ("MUTAG", "DD")
    table = make_table(claims=(Claim("Better.", "MMCL", "GraphCL", columns, 0.5),))
    records = [*RECORDS, record_of(cell_of("MMCL", "DD", 0), 70.0)]
    words = words_of(first_screen([measure(table, "paper", records, {})]))
    assert "gains -8.00 to +2.00, 95% intervals within [+1.75, +2.25] (1 without one)" in words
    assert "1 to 3 of 3 seeds" in words


def test_every_table_of_every_page_has_a_caption_and_scopes() -> None:
    table = make_table(also=("folds_mean",), aggregates=("interquartile mean",))
    every = [*both_tiers(), measure(dataclasses.replace(table, name="table-5"), "paper", [], {})]
    tables = 0
    for path, text in site(every).items():
        if path.endswith(".html"):
            page = Tables(text)
            assert page.tables == page.captions
            assert page.bare == []
            tables += page.tables
    assert tables > 10


def test_claims_of_tables_without_a_record_are_named_but_not_shown_as_measured() -> None:
    idle = measure(make_table(name="table-6"), "paper", [], {})
    text = first_screen([], [idle])
    words = words_of(text)
    assert "1 of its claims is not run in any tier MMCL improves on GraphCL (5.3)" in words
    assert "No table has a finished cell yet." in text
    assert 'class="matrix"' not in text


def test_the_committed_claims_have_their_documented_form() -> None:
    content = json.loads((ROOT / "results/claims.json").read_text(encoding="utf-8"))
    check(content)
    for each in content["claims"]:
        assert each["address"].split("/")[::2] == [each["domain"], each["table"]]
