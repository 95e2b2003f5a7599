"""The documents as a site: it is built without a complaint, and every block of code is run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

import shared
from shared.report.claims import FORM
from tests.stages.browser import MISSING, PROGRAM, browser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
# Which test runs the Python of a page, from its first block to its last.
RUN_BY = {
    "graph.md": ("graph/test_own.py",),
    "guide.md": ("experiment/test_frame.py",),
    "losses.md": ("repository/test_readme.py",),
    "own.md": ("repository/test_readme.py", "repository/test_add_a_domain.py"),
    "rl.md": ("rl/test_documentation.py",),
    "text.md": ("text/test_export.py",),
    "video.md": ("video/test_documentation.py",),
    "vision.md": ("vision/test_own.py",),
}


def test_the_python_of_every_page_is_run_by_a_test() -> None:
    with_code = {page.name for page in PAGES if "```python" in page.read_text(encoding="utf-8")}
    assert with_code == set(RUN_BY)
    for page, tests in RUN_BY.items():
        for test in tests:
            assert page in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_every_page_is_in_the_menu_and_is_linked_from_the_readme() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name in menu
        assert f"(docs/{page.name})" in readme


def test_every_module_of_the_core_is_named_for_contributors() -> None:
    table = (
        (ROOT / "docs/contributing.md").read_text(encoding="utf-8").split("## Where things are")[1]
    )
    for folder in ("shared", "shared/experiment", "shared/report", "shared/command"):
        (line,) = [each for each in table.splitlines() if each.startswith(f"| `{folder}/` |")]
        modules = {file.stem for file in (ROOT / folder).glob("[a-z]*.py")}
        assert modules - set(re.findall(r"`(\w+)`", line)) == set()


def test_every_page_begins_with_what_the_reader_can_do() -> None:
    for page in PAGES:
        first = page.read_text(encoding="utf-8").split("\n\n")[1]
        assert page.name in ("claims.md", "papers.md") or first.startswith("After this page you ")


def test_no_page_promises_that_a_card_loads_its_file_without_this_project() -> None:
    for page in PAGES:
        words = " ".join(page.read_text(encoding="utf-8").split())
        assert not re.search(r"card [^.;]* alone loads", words), page.name


def test_files_that_are_named_beside_the_tables_exist() -> None:
    named = {
        name
        for file in ROOT.glob("*/published/*.toml")
        for name in re.findall(
            r"\b(?:benchmarks|docs|tests|results|shared)/[\w/]+\.\w+",
            file.read_text(encoding="utf-8"),
        )
    }
    assert "results/iterations.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_date_to_cite_is_that_of_the_release_and_there_is_none_before() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## (\S+) \((.+)\)$", changelog, re.MULTILINE)[0]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    dates = re.findall(r"^date-released: (.+)$", cited, re.MULTILINE)
    assert version == shared.__version__
    assert dates == [each for each in (date,) if each != "unreleased"]


@pytest.fixture(scope="module")
def site(filled_once: Callable[..., Path]) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: extra docs")
    return filled_once("site", build)


def build(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.slow
def test_the_site_has_results_and_equations_and_loads_nothing_from_elsewhere(site: Path) -> None:
    losses = (site / "losses.html").read_text(encoding="utf-8")
    assert losses.count("<math") > 12
    assert "$$" not in losses
    assert ":func:" not in losses
    for file in site.rglob("*.html"):
        text = file.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img)[^>]* src="(http[^"]*)"', text)
        loaded += re.findall(r'<link[^>]*stylesheet"[^>]*href="(http[^"]*)"', text)
        assert loaded == [], file
        if "results" in file.parts:  # docs' own links are checked by mkdocs
            for link in re.findall(r'(?:href|src)="(?!http|data:)([^"#]+)(?:#[^"]*)?"', text):
                assert (file.parent / unquote(link)).exists(), (file, link)


SEARCH = """new Promise(done => {
  const field = document.querySelector("[data-md-component=search-query]");
  document.querySelector("#__search").click();
  field.focus();
  field.value = "distance_polarization";
  field.dispatchEvent(new Event("input", {bubbles: true}));
  field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
  const look = () => {
    const found = [...document.querySelectorAll(".md-search-result__link")].map(each => each.href);
    found.length ? done(found) : setTimeout(look, 100);
  };
  look();
})"""


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_the_search_works_from_disk(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as window:
        window.show(1400)
        window.open((site / "guide.html").as_uri())
        found = window.ask(SEARCH)
        assert any("losses.html" in each for each in found), found
        assert window.faults == []


def test_the_keys_of_claims_are_explained() -> None:
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8").partition("## `claims.json`")[2]
    assert f'`form` is `"{FORM}"`' in text
    content = json.loads((ROOT / "results/claims.json").read_text(encoding="utf-8"))
    keys = {key for row in content["comparisons"] for key in row}
    assert keys - set(re.findall(r"`(\w+)`", text)) == set()
