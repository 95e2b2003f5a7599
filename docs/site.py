"""What mkdocs asks of this repository: README as the first page, and the results as pages."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ("md", "png", "csv", "json", "jsonl")  # endings of what the site shows of results/
INTO = re.compile(r"\]\(\.\./(results/[^)]+)\)")
BADGE = re.compile(r"^\[!\[.*\n\n", re.MULTILINE)  # only the code host has what it shows
OUT = re.compile(r"\[([^\]]+)\]\(\.\./(?!results/)[^)]+\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add README as the first page, and everything below results/."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    for file in sorted((ROOT / "results").rglob("*")):
        if file.suffix.removeprefix(".") in RESULTS:
            name = file.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links at the site's pages; a link to a file that the site lacks becomes plain text."""
    if page.file.src_uri == "index.md":
        return BADGE.sub("", markdown).replace("](docs/", "](")
    if page.file.src_uri.startswith("results/"):
        return markdown.replace("](../docs/", "](../")
    return OUT.sub(r"\1", INTO.sub(r"](\1)", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Show the roles of docstrings (``:func:`x```) as code."""
    return re.sub(r":(?:func|class|meth|attr|mod):(<code>)", r"\1", html)
