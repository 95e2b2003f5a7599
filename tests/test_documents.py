"""The documents as a site: it is built without a complaint, and every block of code is run."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import MISSING, PROGRAM, browser

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
# Which test runs the Python of a page, from its first block to its last.
RUN_BY = {
    "add-a-domain.md": "test_add_a_domain.py",
    "graph.md": "graph/test_own.py",
    "losses.md": "test_readme.py",
    "own.md": "test_readme.py",
    "rl.md": "rl/test_documentation.py",
    "text.md": "text/test_export.py",
    "video.md": "video/test_documentation.py",
}


def test_the_python_of_every_page_is_run_by_a_test() -> None:
    with_code = {page.name for page in PAGES if "```python" in page.read_text(encoding="utf-8")}
    assert with_code == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert page in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_every_page_stands_in_the_menu_and_is_linked_from_the_readme() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name in menu
        assert page.name == "index.md" or f"(docs/{page.name})" in readme


def test_the_first_page_lists_what_the_readme_lists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+\]\(docs/.+\.md\)$", readme, re.MULTILINE)
    assert len(listed) == len(PAGES) - 1
    assert [each.replace("(docs/", "(") for each in listed] == re.findall(
        r"^- .+$", index, re.MULTILINE
    )


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) < 7000


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)


WORDS_IN_TWO = """(() => {
  const found = [], walk = document.createTreeWalker(
    document.querySelector("article"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.parentElement.closest("pre, math, .headerlink, style")) continue;
    for (const word of node.data.matchAll(/[A-Za-z0-9]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map(each => Math.round(each.top)));
      if (tops.size > 1) found.push(word[0]);
    }
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: extra docs")
    folder = tmp_path_factory.mktemp("site")
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
    return folder


@pytest.mark.slow
def test_the_site_has_results_and_equations_and_loads_nothing_from_elsewhere(site: Path) -> None:
    api = (site / "api.html").read_text(encoding="utf-8")
    assert api.count("<math") > 12
    assert "$$" not in api
    assert ":func:" not in api
    for file in site.rglob("*.html"):
        text = file.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img)[^>]* src="(http[^"]*)"', text)
        loaded += re.findall(r'<link[^>]*stylesheet"[^>]*href="(http[^"]*)"', text)
        assert loaded == [], file
        if "results" in file.parts:  # docs' own links are checked by mkdocs
            for link in re.findall(r'(?:href|src)="(?!http|data:)([^"#]+)(?:#[^"]*)?"', text):
                assert (file.parent / unquote(link)).exists(), (file, link)


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_nothing_breaks_inside_a_word_on_a_telephone(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as window:
        window.show(390)
        for page in ("README.html", "mmcl.html", "graph/mmcl/table-4.html"):
            file = site / "results" / page
            window.open((file if file.exists() else file.with_name("index.html")).as_uri())
            assert window.ask("document.documentElement.scrollWidth") <= 390, page
            assert window.ask(WORDS_IN_TWO) == [], page
        assert window.faults == []
