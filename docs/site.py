"""What mkdocs asks of this repository: the results as pages of the site, links out of docs/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ("md", "png", "csv", "json", "jsonl")  # endings of what the site shows of results/
INTO = re.compile(r"\]\(\.\./(results/[^)]+)\)")
OUT = re.compile(r"\[([^\]]+)\]\(\.\./(?!results/)[^)]+\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Take the results in."""
    for file in sorted((ROOT / "results").rglob("*")):
        if file.suffix.removeprefix(".") in RESULTS:
            name = file.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Lead links to where the site has a page, and let those out of it be their words alone."""
    if page.file.src_uri.startswith("results/"):
        return markdown.replace("](../docs/", "](../")
    return OUT.sub(r"\1", INTO.sub(r"](\1)", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Show the roles of docstrings (``:func:`x```) as code."""
    return re.sub(r":(?:func|class|meth|attr|mod):(<code>)", r"\1", html)
