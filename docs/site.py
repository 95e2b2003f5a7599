"""What mkdocs asks of this repository: equations as on the report's site, links out of docs/.

Equations stand once, in ``shared.report.losses``; a line ``EQUATIONS name`` brings them to a page.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from shared.report import drawings, losses

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\]\(\.\./(results/[^)#]+\.(?:png|svg))\)")
REPOSITORY = re.compile(r"\[([^\]]+)\]\(\.\./(?!results/[^)]*\.(?:png|svg))[^)]+\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Take the pictures of the results that pages show."""
    for page in sorted(Path(config.docs_dir).glob("*.md")):
        for name in OUTSIDE.findall(page.read_text(encoding="utf-8")):
            if files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Bring the equations, and let links to what is no part of the site be their words alone."""
    portraits = {each.name: each for each in losses.PORTRAITS}

    def equations(found: re.Match[str]) -> str:
        portrait = portraits[found[1]]
        lines = "\n".join(f"<p>{drawings.equation(each)}</p>" for each in portrait.equations)
        return f"\n{lines}\n\n{portrait.symbols}\n"

    markdown = re.sub(r"^EQUATIONS (\w+)$", equations, markdown, flags=re.MULTILINE)
    return REPOSITORY.sub(r"\1", OUTSIDE.sub(r"](\1)", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Show the roles of docstrings (``:func:`x```) as code."""
    return re.sub(r":(?:func|class|meth|attr|mod):(<code>)", r"\1", html)
