"""Markdown from Jinja templates, which lie beside the modules that fill them."""

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in r"\|*_`[]"} | {"&": "&amp;", "<": "&lt;"}
)


def escaped(text: str) -> str:
    """Text with Markdown's special characters escaped; a filter in templates."""
    return " ".join(text.split()).translate(SPECIAL)


def render(template: Path, /, **names: Any) -> str:
    """The text of a template, which may import its neighbours and knows these names alone."""
    return _environment(template.parent).get_template(template.name).render(names)


@functools.cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["escaped"] = escaped
    return environment
