"""Older configurations in today's form.

A record stays valid as long as its meaning is unchanged. A new field is an :func:`option`, which
the canonical form leaves out at its default, so that runs without it keep their keys and folders;
one whose default is not what older runs did is :func:`added`, and says what they did::

    symmetric: bool = added(False, was=True)  # runs from before the field had both directions
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shared.experiment.tables import OPTION, canonical

WAS = "was"
FUNCTION = re.compile("(.+)@([0-9a-f]{12})[0-9a-f]{52}")  # of shared.functions.identity
NOTHING: Final = object()


def added(default: Any, *, was: Any) -> Any:
    """A field that older records lack; ``was`` is what runs did before it existed."""
    return dataclasses.field(default=default, metadata={WAS: was})


def option(default: Any) -> Any:
    """A field that is left out of the canonical form while it has its default, as in older runs.

    So the hashes and folders of runs that do not use it stay as they were.
    """
    return dataclasses.field(default=default, metadata={OPTION: True})


def upgraded_config(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """A canonical configuration of any age in today's form; unknown keys stay."""
    return {**_before(kind), **config}


@functools.cache
def _before(kind: type) -> dict[str, Any]:
    """By name of each added field, what runs from before it did."""
    return {
        item.name: canonical(item.metadata[WAS])
        for item in dataclasses.fields(kind)
        if WAS in item.metadata
    }


def differences(config: Mapping[str, Any], today: Any) -> list[str]:
    """Where ``config``, of any age, differs from ``today``: one phrase for each key.

    Args:
        config: canonical, as it was written.
        today: a configuration.
    """
    there, here = upgraded_config(config, type(today)), canonical(today)
    return [f"{path}: {_compared(*pair)}" for path, *pair in differing(there, here)]


def differing(there: Any, here: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path and both values of every difference between two canonical values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in sorted(there.keys() | here.keys()):
            pair = there.get(name, NOTHING), here.get(name, NOTHING)
            yield from differing(*pair, f"{path}.{name}" if path else name)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, pair in enumerate(zip(there, here, strict=True)):
            yield from differing(*pair, f"{path}.{number}")
    elif there != here:
        yield path, there, here


def _compared(there: Any, here: Any) -> str:
    """``3 there, 4 here``; the name of two functions with one name only once."""
    first, second = shown(there), "no such key" if here is NOTHING else shown(here)
    start = first.rpartition(" ")[0]
    if start.endswith(" with source") and second.startswith(start):
        second = second.removeprefix(start).strip()
    return f"{first} there, {second} here"


def shown(value: Any) -> str:
    """A canonical value as one short line."""
    if value is NOTHING:
        return "nothing"
    if isinstance(value, str) and (found := FUNCTION.fullmatch(value)):
        return "{} with source {}...".format(*found.groups())
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
