"""The pages behind the first screen: drawings, losses, curves, and all of it in a browser."""

import dataclasses
import gzip
import html as entities
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from browser import MISSING, PROGRAM, axe, browser
from test_report import MMCL, RECORDS, TABLE, make_table, record_of, records_of
from toy.tables import SHARED

from shared.command import reproduce
from shared.errors import UserError
from shared.experiment.runs import write_atomically
from shared.report import curves, drawings, losses
from shared.report.measuring import measure
from shared.report.page import site
from shared.report.paperwork import PAPERS, bibtex, checklist
from shared.report.site import claim_page, compared, deciding

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def marks(picture: str, kind: str, place: str) -> list[float]:
    """Where the marks of a kind lie."""
    found = re.findall(rf'<{kind} [^>]*?{place}="([\d.-]+)"', picture)
    return [float(each) for each in found]


def test_gains_lie_where_they_belong() -> None:
    strip = drawings.Strip("MUTAG", {0: -1.0, 1: 0.0, 2: 4.0}, 1.0, -1.5, 3.5, 2.0, 0.5)
    other = drawings.Strip("<DD>", {0: 2.0}, 2.0, None, None, None, None)
    picture = drawings.gains([strip, other], "%")
    first, second, third, of_other = marks(picture, "circle", "cx")
    # One scale for all columns: distances are as the gains.
    assert (third - second) / (second - first) == pytest.approx(4, rel=0.01)
    assert of_other == pytest.approx((second + third) / 2, abs=0.2)
    diamond = float(re.findall(r'<path d="M([\d.]+) [\d.]+l6 6', picture)[0])
    assert diamond == pytest.approx(of_other, abs=0.2)
    assert "&lt;DD&gt;" in picture
    assert "<title>seed 2: +4.00</title>" in picture
    assert "the shaded band the arithmetic spread" in picture
    assert 'class="band"' not in drawings.gains([other], "%")


def test_curves_are_thinned_and_leave_out_what_is_not_finite() -> None:
    steps = list(range(1000))
    values = [math.nan if step == 500 else float(step) for step in steps]
    picture = drawings.curves({"loss": (steps, values)}, "step", "", "A loss.")
    (path,) = re.findall(r'<path d="M([^"]*)" class="curve c0"/><path d="M8', picture)
    first, rest = (list(map(float, re.findall(r"-?[\d.]+", part))) for part in path.split("l"))
    steps = list(zip(rest[::2], rest[1::2], strict=True))
    assert len(steps) < drawings.POINTS
    assert all(x > 0 > y for x, y in steps)  # up in a picture is a smaller y
    # A straight line from corner to corner, whose steps do not add up errors.
    assert first == [pytest.approx(44 + 0.05 / 1.1 * 360, abs=0.06), pytest.approx(169.2, abs=0.06)]
    assert sum(x for x, _ in steps) == pytest.approx(360 / 1.1, abs=0.11)
    assert sum(y for _, y in steps) == pytest.approx(-150 / 1.1, abs=0.11)
    single = drawings.curves({"loss": ([1], [2.0])}, "step", "", "")
    assert re.search(r'<path d="M[\d.]+ [\d.]+" class="curve c0"/>', single)
    assert drawings.curves({"loss": ([1], [math.nan])}, "step", "", "") == ""


def test_an_equation_says_its_source_and_what_cannot_be_set_is_refused() -> None:
    picture = drawings.equation(r"a < \frac{b}{c}")
    assert 'aria-label="a &lt; \\frac{b}{c}"' in picture
    with pytest.raises(ValueError, match="frac"):
        drawings.equation(r"\frac{")


@pytest.mark.parametrize("portrait", losses.PORTRAITS, ids=lambda each: each.name)
def test_every_loss_has_its_portrait(portrait: losses.Portrait) -> None:
    for latex in portrait.equations:
        assert drawings.equation(latex)
    assert losses.told(portrait)[-1].startswith(("Source:", "It is constant"))
    assert losses.TWINS[portrait.name] in losses.certificates(portrait)[0]
    assert losses.caption(portrait).endswith(".")


def test_portraits_are_of_all_losses_penalties_and_projections() -> None:
    assert {each.name for each in losses.PORTRAITS} == set(losses.TWINS)


def test_the_slopes_are_those_of_the_equations() -> None:
    at = 40  # the middle: a cosine of 0
    found = losses.slopes("info_nce")["temperature 0.5"]
    assert found[0][at] == pytest.approx(0, abs=1e-12)
    others = sum(math.exp(c / 0.5) for c in losses.NEGATIVES)
    total = math.exp(losses.POSITIVE / 0.5) + others + 1
    assert found[1][at] == pytest.approx(1 / total / 0.5, rel=1e-9)
    # (D - 0.1)(D - 0.5) at D = 1/2 (1 - c): its slope by c, where the minimum is taken.
    places, values = losses.slopes("distance_polarization")["band 0.1 to 0.5"]
    for place, value in zip(places, values, strict=True):
        distance = (1 - place) / 2
        if min(abs(distance - 0.1), abs(distance - 0.5)) > 1e-6:  # at its ends there are two
            inside = 0.1 < distance < 0.5
            assert value == pytest.approx((distance - 0.3) if inside else 0, abs=1e-9)
    places, values = losses.slopes("LowRankProjection")["alpha 0.1"]
    for place, value in zip(places, values, strict=True):
        assert value == pytest.approx(-4 * place * (1 - place**2) + 0.1 * 8, rel=1e-6)
    assert set(losses.slopes("alignment")["as it is"][1]) == {-2.0}


def test_parity_is_counted_from_the_cases() -> None:
    cases = [
        case
        for file in (ROOT / "tests/parity").glob("*.json")
        for case in json.loads(file.read_text())
    ]
    counted = 0
    for portrait in losses.PORTRAITS:
        line = losses.certificates(portrait)[1]
        found = re.match(r"Held to (\d+) outputs", line)
        counted += int(found[1]) if found else 0
    assert counted == len(cases) > 10


def test_what_would_decide_a_comparison() -> None:
    told = {}
    vague = {0: 86.0, 1: 89.0, 2: 89.5}
    graphcl = records_of("GraphCL", "MUTAG", {0: 86.0, 1: 87.0, 2: 88.0})
    for name, records in {
        "open": [*graphcl, *records_of("MMCL", "MUTAG", vague)],
        "decided": [*graphcl, *records_of("MMCL", "MUTAG", MMCL)],
        "none": [],
    }.items():
        mutag = compared([measure(TABLE, "paper", records, {})])[0]
        told[name] = mutag, deciding(mutag)
    assert told["decided"][1] == "It is decided, and counts."
    # 34.2 seconds of each of both rows for every further seed.
    needed = told["open"][0].entry.seeds_needed
    assert needed is not None
    assert needed > 3
    hours = (needed - 3) * 2 * 34.2 / 3600
    shown = f"{hours:.1f} hours" if hours >= 0.1 else f"{round(60 * hours)} minutes"
    assert told["open"][1] == (
        f"{needed} seeds, {needed - 3} more than there are: about {shown} one after the other, by "
        "the median of the records."
    )
    assert told["none"][1].startswith("3 seeds are declared, 3 to run: about ")
    assert "by the declared time of one CPU core" in told["none"][1]
    # The declared time is that of the paper tier.
    (short, _) = compared([measure(TABLE, "short", [], {})])
    assert deciding(short) == (
        "2 seeds are declared, 2 to run: ./reproduce.sh plan says how long that takes."
    )
    single = make_table(seeds={"paper": (0, 1, 2), "short": (0,), "smoke": (0,)})
    (short, _) = compared([measure(single, "short", [], {})])
    assert deciding(short).startswith("1 seed is declared, 1 to run: ")


def test_a_verdict_without_power_says_so() -> None:
    (mutag, _) = compared([measure(make_table(powers=()), "paper", RECORDS, {})])
    assert deciding(mutag) == "It says yes or no, but no power was declared."


LOGGED = {"loss": [4.06644, 3.0, 2.0], "info_nce": [4.06644, 3.0, 2.0]}


def log_of(file: Path, steps: int = 3) -> Path:
    lines = [
        json.dumps({"step": n + 1, "seconds": 0.1 * n, "loss": 4.06644 / (n + 1), "note": "text"})
        for n in range(steps)
    ]
    write_atomically(file, "\n".join([*lines, '{"step": 9, "lo']))
    return file


def test_curves_of_counted_runs_are_kept_beside_their_records(tmp_path: Path) -> None:
    records = [
        dataclasses.replace(record, sha256=str(n) * 64)
        for n, record in enumerate(records_of("MMCL", "MUTAG", MMCL))
    ]
    log = log_of(tmp_path / "log.jsonl", 1000)
    curves.keep(tmp_path, "table-4", records, {"1" * 64: log})
    file = tmp_path / f"table-4{curves.CURVES}"
    assert file.stat().st_size < 2000
    (curve,) = curves.read(tmp_path, "table-4").values()
    assert curve.address == records[1].address
    steps, values = curve.lines()["loss"]
    assert set(curve.steps) == {"loss"}  # neither the time nor what is no number
    assert len(steps) == curves.KEPT
    assert (steps[0], steps[-1], values[0]) == (1, 1000, 4.066)
    # Without the run's folder they stay; the file is not touched where nothing is new.
    before = file.stat().st_mtime_ns
    curves.keep(tmp_path, "table-4", records, {})
    assert file.stat().st_mtime_ns == before
    # The page of the runs draws them.
    table = measure(TABLE, "paper", records, {})
    page = site([table], None, curves.read(tmp_path, "table-4"))
    (runs,) = (text for path, text in page.items() if "/runs/" in path)
    assert runs.count('class="curve c0"') == 2  # the curve, and its line beside its name
    # But of a run that was taken over: there where it ran.
    elsewhere = [
        dataclasses.replace(each, environment=dict(each.environment) | {"run_at": "elsewhere"})
        for each in records
    ]
    page = site([measure(TABLE, "paper", elsewhere, {})], None, curves.read(tmp_path, "table-4"))
    assert "taken over from the equal run elsewhere" in "".join(page.values())
    assert 'class="curve' not in "".join(text for path, text in page.items() if "/runs/" in path)
    # Curves of runs that do not count any more go.
    curves.keep(tmp_path, "table-4", records[:1], {})
    assert not file.exists()


def test_runs_that_several_columns_are_read_from_are_told_once() -> None:
    cells = {cell.address: cell for cell in SHARED.cells("paper", row="plain", seeds=(0, 1))}
    metrics = {"accuracy": 5.0, "norm": 7.0}
    records = [
        record_of(cell, 5.0, metrics=metrics, protocol=SHARED.protocol) for cell in cells.values()
    ]
    assert len(records) == 4  # "right" has runs of its own
    page = site([measure(SHARED, "paper", records, {})], None, {})
    (runs,) = (text for path, text in page.items() if "/runs/" in path)
    for start in {record.address.rpartition("-")[0] for record in records}:
        assert runs.count(f"--cell {start}-<i>SEED</i><") == 1
    assert 'Read from the runs of <a href="#plain--left">plain, left</a>' in runs
    assert runs.count("Read from the runs of") == 1
    # Hashes of data and the machine, too; every number says which.
    told = dict(re.findall(r'<li id="((?:data|place)-\d)">(.+?)</li>', runs))
    assert list(told) == ["data-1", "data-2", "place-1"]  # each column has its data
    assert all(runs.count(text) == 1 for text in told.values())
    linked = re.findall(r'<a href="#((?:data|place)-\d)">', runs)
    assert sorted(linked) == ["data-1", "data-2", "place-1", "place-1"]
    assert '<details id="plain--norm">' in runs
    assert re.findall(r"<li>(.*?)</li>", runs) == ["0: 7.00", "1: 7.00"]


def test_a_broken_file_of_curves_is_named(tmp_path: Path) -> None:
    file = tmp_path / f"table-4{curves.CURVES}"
    for content in (b"no gzip", gzip.compress(b"[1]\n"), gzip.compress(b'{"address": 1}\n')):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"table-4\.curves\.gz holds no curves .*restore"):
            curves.read(tmp_path, "table-4")


def test_texts_for_a_paper_come_from_the_records() -> None:
    text = checklist([measure(TABLE, "paper", RECORDS, {})])
    assert f"Of {len(RECORDS)} runs that count, in 1 tables." in text
    assert "1 reproduced, 1 not run; 1 of them count" in text
    assert f"{len(RECORDS)} Some <Processor>" in text
    hours = sum(record.result["seconds"] for record in RECORDS) / 3600
    assert f"{hours:.1f} hours in all" in text
    assert set(re.findall(r"@\w+\{(\w+),", bibtex())) == set(PAPERS)
    assert bibtex().count("{") == bibtex().count("}")


def test_every_command_of_a_claim_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {
        entities.unescape(line)
        for file in (RESULTS / "site/claims").glob("*.html")
        for line in re.findall(
            r"^(?:<pre[^>]*><code>)?(\./reproduce.sh .*)$", file.read_text(), re.M
        )
    }
    assert len(commands) > 100
    for command in sorted(commands)[:: len(commands) // 12]:
        words = shlex.split(command)[1:]
        assert reproduce.main(["plan", *words, "--runs", str(tmp_path)]) == 0, command
        assert " cells " in capsys.readouterr().out


def sentence_of(claim: dict[str, Any]) -> str:
    """A claim without the rows that it is measured on."""
    return re.split(r" Measured(?: against)?: ", claim["claim"])[0]


def test_the_committed_site_is_small_and_whole() -> None:
    claims = json.loads((RESULTS / "claims.json").read_text())["claims"]
    index = (RESULTS / "index.html").read_text()
    assert len(index) < 300_000
    files = [file for file in (RESULTS / "site").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 5_000_000
    wanted = {claim_page(each["paper"], sentence_of(each)) for each in claims}
    assert {f"site/claims/{file.name}" for file in (RESULTS / "site/claims").iterdir()} == wanted
    assert set(re.findall(r'href="(site/claims/[^"]*)"', index)) == wanted
    for file in [RESULTS / "index.html", *(each for each in files if each.suffix == ".html")]:
        for link in re.findall(r'(?:href|src)="([^"#]+)[^"]*"', file.read_text()):
            there = (file.parent / unquote(link)).exists()
            assert link == "data:," or there, (file, link)


BAD = """<!doctype html><html lang="en"><title>bad</title><body><main><h1>bad</h1>
<img src="missing.png"><p style="width: 2000px; color: #eee; background: #fff">pale</p>
<script>console.error("wrong")</script></main></body></html>"""
# Each kind of page is looked at with every rule, in both schemes and at both widths; of the pages
# beyond the first of a kind colours, which their style sheet settles, are left out.
RUN_AXE = """axe.run(document, {resultTypes: ["violations"], rules: {"color-contrast":
  {enabled: %s}}}).then((found) => found.violations
  .filter((each) => ["serious", "critical"].includes(each.impact))
  .map((each) => each.id + ": " + each.nodes[0].html.slice(0, 200)))"""
OPEN_ALL = "for (const each of document.querySelectorAll('details')) each.open = true; innerWidth"
TOO_WIDE = """[...document.querySelectorAll("body *")]
  .filter((each) => !each.closest(".scroll, pre"))
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1).slice(0, 3)
  .map((each) => each.outerHTML.slice(0, 120))"""


def looked_at(window: Any, file: Path, source: str | None, *, colours: bool) -> list[str]:
    """What is wrong with a page, at both widths in both schemes."""
    faults = []
    window.faults.clear()
    window.show(1400, dark=False)
    window.open(file.as_uri())
    for width in (1400, 390):
        for dark in (False, True):
            window.show(width, dark=dark)
            assert window.ask(OPEN_ALL) == width
            if window.ask("document.documentElement.scrollWidth") > width:
                faults.append(f"wider than {width}: {window.ask(TOO_WIDE)}")
            if source is not None and (colours or (width, dark) == (390, False)):
                if window.ask("window.axe === undefined"):
                    window.ask(f"{source};0")
                faults += window.ask(RUN_AXE % ("true" if colours else "false"))
    return faults + window.faults


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_a_browser_finds_no_fault_in_any_page(tmp_path: Path) -> None:
    source = axe()
    (tmp_path / "bad.html").write_text(BAD)
    with browser(tmp_path / "profile") as window:
        found = " ".join(looked_at(window, tmp_path / "bad.html", source, colours=True))
        assert "wider than 1400" in found  # what is wrong is seen
        assert "wrong" in found
        assert "not loaded: net::ERR_FILE_NOT_FOUND" in found
        if source is not None:
            assert "color-contrast" in found
            assert "image-alt" in found
        folders = set()
        for file in [RESULTS / "index.html", *sorted((RESULTS / "site").rglob("*.html"))]:
            faults = looked_at(window, file, source, colours=file.parent not in folders)
            folders.add(file.parent)
            assert faults == [], file
    if source is None:
        pytest.skip("pages were opened, but axe-core-python is not installed: extra test")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_the_matrix_shows_the_records_numbers_and_its_filter_works(tmp_path: Path) -> None:
    claims = json.loads((RESULTS / "claims.json").read_text())["claims"]
    with browser(tmp_path / "profile") as window:
        window.show(1400, dark=False)
        window.open((RESULTS / "index.html").as_uri())
        shown = window.ask(
            "[...document.querySelectorAll('.block')].map((b) =>"
            "[b.closest('.paper').dataset.paper, b.dataset.domain, b.dataset.tier,"
            "...[...b.querySelectorAll('.kind')].map((k) => k.innerText)])"
        )
        counted: dict[tuple[str, ...], int] = {}
        for paper, domain, tier, *badges in shown:
            for badge in badges:
                _, number, kind = badge.split(" ", 2)
                key = paper, domain, tier, kind.removesuffix(", not counted")
                counted[key] = counted.get(key, 0) + int(number)
        measured = {
            (each["paper"], sentence_of(each)) for each in claims if each["verdict"] != "not run"
        }
        wanted: dict[tuple[str, ...], int] = {}
        for each in claims:
            if (each["paper"], sentence_of(each)) in measured:
                key = each["paper"], each["domain"], each["tier"], each["verdict"]
                wanted[key] = wanted.get(key, 0) + 1
        assert counted == wanted
        window.ask(
            "tier = document.getElementById('filter').elements.tier; tier.value = 'paper';"
            "tier.dispatchEvent(new Event('change', {bubbles: true}))"
        )
        tiers = window.ask(
            "[...document.querySelectorAll('.block')].filter((b) => b.checkVisibility())"
            ".map((b) => b.dataset.tier)"
        )
        assert set(tiers) == {"paper"}
