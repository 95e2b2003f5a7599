"""The documents as a site: it is built without a complaint, and every block of code is run."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared.report import losses

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


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: extra docs"
)
def test_the_site_is_built_without_a_complaint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    api = (tmp_path / "api/index.html").read_text(encoding="utf-8")
    for portrait in losses.PORTRAITS:
        assert f'id="shared.{portrait.function.__module__[7:]}.{portrait.name}"' in api
    assert api.count('class="equation"') == sum(len(each.equations) for each in losses.PORTRAITS)
    assert "EQUATIONS" not in api
    assert ":func:" not in api
    # It opens without a network.
    for file in tmp_path.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img)[^>]* src="(http[^"]*)"', file.read_text("utf-8"))
        loaded += re.findall(
            r'<link[^>]*stylesheet"[^>]*href="(http[^"]*)"', file.read_text("utf-8")
        )
        assert loaded == [], file
