"""Configurations: their canonical form, the key of a run, and older ones in today's form.

A record stays valid as long as its meaning is unchanged. A new field is an :func:`option`, which
the canonical form leaves out at its default, so that runs without it keep their keys and folders;
one whose default is not what older runs did is :func:`added`, and says what they did::

    symmetric: bool = added(False, was=True)  # runs from before the field had both directions

A class names the fields that it no longer has, with the one value that its records have, in
``REMOVED``; the canonical form goes on writing them.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

from shared.functions import identity
from shared.lazy import LazyImport

OPTION = "option"  # in the metadata of a field: see option
KEY = "key"  # likewise: of the field in the canonical form, where it has another name than in code
DATA_FIELDS = ("dataset", "task", "corpus", "data")  # what configurations call their data
USER_TIER = "own"  # of runs outside tables, and the folder that they are in
LONGEST = 60  # characters of the readable parts of a folder's name
WAS = "was"
REMOVED = "REMOVED"  # of a class: see above
FUNCTION = re.compile("(.+)@([0-9a-f]{12})[0-9a-f]{52}")  # of shared.functions.identity
NOTHING: Final = object()


class Config(Protocol):
    """What the core requires of a domain's configuration: a frozen dataclass with a seed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def protocol(self) -> str:
        """Name and version of the evaluation protocol."""

    def reduced(self) -> "Config":
        """The same run on embedded data, small enough for the smoke tier."""


AnyConfig = TypeVar("AnyConfig", bound=Config)


@functools.cache  # of the labels of thousands of cells
def slug(label: str) -> str:
    """The label as a folder name: lower case, words joined by dashes."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def changed(config: AnyConfig, changes: Mapping[str, Any], where: str) -> AnyConfig:
    """``config`` with ``changes`` applied."""
    known = config.__dataclass_fields__
    if unknown := changes.keys() - known:
        raise ValueError(
            f"{where}: unknown key {', '.join(map(repr, sorted(unknown)))}; "
            f"known keys: {', '.join(sorted(known))}"
        )
    return dataclasses.replace(config, **changes)


def with_seed(config: AnyConfig, seed: int) -> AnyConfig:
    """``config`` with another seed, without checks: a report makes thousands of these."""
    copy = object.__new__(type(config))
    vars(copy).update(vars(config), seed=seed)
    return copy


def canonical(value: Any) -> Any:
    """``value`` as plain JSON data: dataclasses to objects, tuples to lists, functions to names."""
    if value is None or isinstance(value, (bool, int, str)):  # nearly all; looked at first
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no infinity
    if isinstance(value, LazyImport):
        return identity(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dict(getattr(value, REMOVED, {})) | {
            key: canonical(getattr(value, name))
            for name, key, left_out in _written_fields(type(value))
            if left_out is NOTHING or getattr(value, name) != left_out
        }
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [canonical(item) for item in value]
    if callable(value):
        return identity(value)
    shown_value = textwrap.shorten(repr(value), 80, placeholder=" ...")
    raise TypeError(
        f"{shown_value} ({type(value).__name__}) cannot be part of a configuration, which holds "
        f"numbers, texts, tuples and functions; parameters are learned in a loop of your own "
        f"with shared.Criterion, see docs/losses.md"
    )


@functools.cache
def _written_fields(kind: type) -> list[tuple[str, str, Any]]:
    """Name, key in the canonical form, and the value that is left out, of a dataclass's fields."""
    return [
        (
            item.name,
            item.metadata.get(KEY, item.name),
            item.default if OPTION in item.metadata else NOTHING,
        )
        for item in dataclasses.fields(kind)
        if item.compare
    ]


def always_there(kind: type) -> set[str]:
    """The fields that the canonical form of every configuration of a class has."""
    return {item.name for item in dataclasses.fields(kind) if OPTION not in item.metadata}


def canonical_json(value: Any) -> str:
    """The canonical form as text: equal configurations give equal text."""
    return json.dumps(canonical(value), indent=2, sort_keys=True) + "\n"


def run_key(tier: str, content: Mapping[str, Any]) -> str:
    """The identity of a run: 16 digits of a hash over its tier and canonical configuration."""
    text = json.dumps([tier, content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def place_of(domain: str, content: Mapping[str, Any], key: str) -> Path:
    """``<domain>/<dataset>/<method>-<key>``: the key identifies the run, the rest is for people.

    The dataset is the first of ``DATA_FIELDS`` that the canonical configuration has, else the
    alphabetically first field that is a text.
    """
    # Fields read from a file are in another order; the folder must be the same.
    names = [*DATA_FIELDS, *sorted(content)]
    dataset = next((content[name] for name in names if isinstance(content.get(name), str)), "")
    objective = content.get("objective")
    terms: list[Any] = []
    if isinstance(objective, Mapping):
        terms = [objective.get("loss"), *objective.get("penalties", ())]
    losses = [str(term["function"]).partition("@")[0] for term in terms if term]
    if content.get("train") is False or ("objective" in content and not losses):
        losses = ["untrained"]
    # Of a long name the end, which has the seed.
    method = slug("-".join([*losses, "seed", str(content["seed"])]))[-LONGEST:].strip("-")
    return Path(domain, slug(dataset)[:LONGEST] or "data", f"{method}-{key}")


def is_archived(folder: Path) -> bool:
    """Whether :func:`shared.experiment.run_folders.archive` has moved a run to this folder."""
    return re.search(r"-[0-9a-f]{16}\.\d+$", folder.name) is not None


def added(default: Any, *, was: Any) -> Any:
    """A field that older records lack; ``was`` is what runs did before it existed."""
    return dataclasses.field(default=default, metadata={WAS: was})


def option(default: Any) -> Any:
    """A field that the canonical form omits while it has its default, as in older runs.

    So the hashes and folders of runs that do not use it stay as they were.
    """
    return dataclasses.field(default=default, metadata={OPTION: True})


def upgraded_config(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """A canonical configuration of any age in today's form; unknown keys stay."""
    return {**_values_before(kind), **config}


@functools.cache
def _values_before(kind: type) -> dict[str, Any]:
    """By name of each added field, what runs from before it did; and the removed ones."""
    return dict(getattr(kind, REMOVED, {})) | {
        item.name: canonical(item.metadata[WAS])
        for item in dataclasses.fields(kind)
        if WAS in item.metadata
    }


def differences(config: Mapping[str, Any], today: Any) -> list[str]:
    """Where a canonical ``config``, of any age, differs from ``today``: one phrase for each key."""
    pairs = differing(upgraded_config(config, type(today)), canonical(today))
    return [f"{path}: {short_text(old)} there, {short_text(new)} here" for path, old, new in pairs]


def differing(recorded: Any, current: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path and both values of every difference between two canonical values."""
    if isinstance(recorded, Mapping) and isinstance(current, Mapping):
        for name in sorted(recorded.keys() | current.keys()):
            pair = recorded.get(name, NOTHING), current.get(name, NOTHING)
            yield from differing(*pair, f"{path}.{name}" if path else name)
    elif isinstance(recorded, list) and isinstance(current, list) and len(recorded) == len(current):
        for number, pair in enumerate(zip(recorded, current, strict=True)):
            yield from differing(*pair, f"{path}.{number}")
    elif recorded != current:
        yield path, recorded, current


def short_text(value: Any) -> str:
    """A canonical value as one short line."""
    if value is NOTHING:
        return "nothing"
    if isinstance(value, str) and (match := FUNCTION.fullmatch(value)):
        return "{} with source {}...".format(*match.groups())
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
