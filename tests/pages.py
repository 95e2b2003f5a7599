"""What tests of the documentation share: the Python of a page, run from top to bottom."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"


def run_page(page: str) -> dict[str, Any]:
    """The names that the code of a page of ``docs`` leaves, run in the current folder."""
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, f"docs/{page}", "exec"), names)
    return names
