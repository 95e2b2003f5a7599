"""The documents as a site: it is built without a complaint, and every block of code is run."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

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
