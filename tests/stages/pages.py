"""What tests of pages share: the Python of a page run from top to bottom, LaTeX compiled."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run_page(page: str) -> dict[str, Any]:
    """The names that the code of a page of ``docs`` leaves, run in the current folder."""
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, f"docs/{page}", "exec"), names)
    return names


def fault_of_latex(table: str, folder: Path) -> str:
    """Why an article with the table does not compile, or is wider than the page; else empty."""
    program = next(filter(shutil.which, ("tectonic", "pdflatex")), None)
    if program is None:
        pytest.skip("needs LaTeX: pdflatex or tectonic")
    text = "\\documentclass{article}\n\\usepackage[T1]{fontenc}\n"
    text += "\\usepackage{booktabs,graphicx}\n"
    (folder / "page.tex").write_text(f"{text}\\begin{{document}}\n{table}\\end{{document}}\n")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if program == "pdflatex" else []
    done = subprocess.run([program, *options, "page.tex"], cwd=folder, capture_output=True)
    whole = done.returncode == 0 and (folder / "page.pdf").read_bytes().startswith(b"%PDF")
    said = done.stdout.decode(errors="replace")
    return "" if whole and "Overfull" not in said else said[-2000:] or "it says nothing"
