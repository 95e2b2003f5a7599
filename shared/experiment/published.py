"""Published numbers, notes and claims: read from TOML files, checked, given to tables.

Each ``[[claim]]`` has the keys of :class:`~shared.experiment.tables.Claim` and, in
``[[claim.comparisons]]``, which rows are compared where: ``tables`` (``paper/table``), ``pairs`` of
rows (the one that the gain is of, first), and optionally ``columns`` (all if left out), ``tiers``
(those of the table, but for smoke), ``beside`` and ``apart``.
``[settings."paper/table".tier]`` says how a tier relates to the paper: ``word``, ``differences``,
in ``by_paper`` the differences from other papers whose claims are judged on the table, and ``""``
for additional questions, and in ``other_data`` what stands in for a paper's data. ``[chosen_here]``
lists by table the rows with a number of the suite's, ``[[tuned]]`` those for which other values of
a hyperparameter were tried.
"""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from shared.errors import UserError
from shared.experiment.tables import (
    Claim,
    Comparison,
    Form,
    Published,
    Row,
    Scope,
    Setting,
    SettingWord,
    Table,
    Tier,
    Tuned,
    Value,
)

NUMBERS: Mapping[Form, str] = {
    "size": "size",
    "comparable": "margin",
    "null": "margin",
    "no gain": "margin",
}
PRINTED = ("mean", "std", "interval")  # keys of a row's numbers, fields of Value
PLACES = {"tables", "pairs", "columns", "tiers", "beside", "apart"}


def with_claims(
    tables: Mapping[str, tuple[Table, ...]], file: Path
) -> dict[str, tuple[Table, ...]]:
    """The tables of a domain, by paper, with the claims and settings of ``file``."""
    content = read_toml(file)
    rows: dict[str, set[str]] = {}  # by table; those of different tiers may share a name
    for table in (table for group in tables.values() for table in group):
        labels = rows.setdefault(f"{table.paper}/{table.name}", set())
        labels |= {row.label for row in table.rows}
    claims: dict[str, tuple[Claim, Sequence[Mapping[str, Any]]]] = {}
    for entry in content.get("claim", ()):
        claim = _claim(entry, f"{file}: {entry.get('id', 'a claim without id')}")
        if claim.id in claims:
            raise ValueError(f"{file}: {claim.id} is declared twice")
        claims[claim.id] = claim, entry["comparisons"]
    named = {name for _, entries in claims.values() for each in entries for name in each["tables"]}
    chosen_here: Mapping[str, Sequence[str]] = content.get("chosen_here", {})
    tuned: dict[str, list[Tuned]] = {}
    for entry in content.get("tuned", ()):
        values = {**entry, "values": tuple(entry["values"])}
        tuned.setdefault(values.pop("table"), []).append(Tuned(**values))
    if strange := {*named, *content.get("settings", {}), *chosen_here, *tuned} - rows.keys():
        raise ValueError(f"{file}: no table {', '.join(sorted(strange))}")
    for name in {*chosen_here, *tuned}:
        others = {label for each in tuned.get(name, ()) for label in (each.row, each.chosen)}
        if strange := ({*chosen_here.get(name, ())} | others) - rows[name]:
            raise ValueError(f"{file}: {name} has no row {', '.join(sorted(strange))}")

    def filled(table: Table) -> Table:
        name = f"{table.paper}/{table.name}"
        claims_of_table = []
        for claim, entries in claims.values():
            here = [entry for entry in entries if name in entry["tables"]]
            if comparisons := tuple(pair for entry in here for pair in _comparisons(entry, table)):
                claims_of_table.append(dataclasses.replace(claim, comparisons=comparisons))
        settings = {
            tier: _setting(entry, tier, f"{file}: {name}")
            for tier, entry in content.get("settings", {}).get(name, {}).items()
            if tier in table.tiers
        }
        return table.with_claims(
            claims=tuple(claims_of_table),
            settings=settings,
            chosen_here=tuple(chosen_here.get(name, ())),
            tuned=tuple(tuned.get(name, ())),
        )

    result = {paper: tuple(map(filled, group)) for paper, group in tables.items()}
    for paper, group in result.items():
        if not any(table.claims for table in group):
            raise UserError(f"{file}: has no claim on {paper}'s tables; restore the file from git")
    return result


def _claim(entry: Mapping[str, Any], where: str) -> Claim:
    fields = {key: value for key, value in entry.items() if key != "comparisons"}
    try:
        claim = Claim(**fields, comparisons=())
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
    for name, words in (("form", get_args(Form)), ("scope", get_args(Scope))):
        if (word := getattr(claim, name)) not in words:
            raise ValueError(f"{where}: no {name} {word!r}; {', '.join(words)}")
    if not claim.sentence or (claim.paper and not (claim.place and claim.source)):
        raise ValueError(f"{where}: lacks its sentence, place or source")
    number = NUMBERS.get(claim.form)
    given = {key for key in ("size", "margin") if key in fields}
    if given - {number} or (number == "size" and not given):
        raise ValueError(f"{where}: a claim of {claim.form} has {number or 'no number'}")
    if not entry.get("comparisons"):
        raise ValueError(f"{where}: nothing is compared")
    for comparison in entry["comparisons"]:
        if unknown := set(comparison) - PLACES or {"tables", "pairs"} - set(comparison):
            raise ValueError(f"{where}: comparisons: {', '.join(sorted(unknown))}")
    return claim


def _comparisons(entry: Mapping[str, Any], table: Table) -> list[Comparison]:
    declared = tuple(tier for tier in table.tiers if tier != "smoke")
    tiers = tuple(tier for tier in entry.get("tiers", declared) if tier in declared)
    columns = tuple(entry.get("columns", (column.label for column in table.columns)))
    others = {key: entry[key] for key in ("beside", "apart") if key in entry}
    return [
        Comparison(better, than, columns, tiers, **others)
        for better, than in entry["pairs"]
        if tiers
    ]


def _setting(entry: Mapping[str, Any], tier: Tier, where: str) -> Setting:
    word = entry.get("word", "paper's" if tier == "paper" else "reduced")
    differences = tuple(entry.get("differences", ()))
    by_paper = {paper: tuple(texts) for paper, texts in entry.get("by_paper", {}).items()}
    if word not in get_args(SettingWord) or max(map(len, (differences, *by_paper.values()))) > 3:
        raise ValueError(
            f"{where}: a setting is one of {', '.join(get_args(SettingWord))}, with "
            "three differences at most"
        )
    return Setting(word, differences, by_paper, entry.get("other_data", {}))


def load_published(file: Path, table: str) -> Published:
    """Read one table of a TOML file of published numbers."""
    content = read_toml(file)
    try:
        entry = content[table]
        columns = tuple(entry["columns"])
        rows: dict[str, tuple[Value | None, ...]] = {}
        for label, row in entry["rows"].items():
            numbers = [row.get(key, [math.nan] * len(columns)) for key in PRINTED]
            if any(len(of_columns) != len(columns) for of_columns in numbers):
                raise ValueError(f"{file}: {table}: {label}: not one number per column")
            # TOML has no null: nan stands for a number that the paper does not print.
            rows[label] = tuple(
                None if math.isnan(mean) else Value(mean, *(None if x != x else x for x in spread))
                for mean, *spread in zip(*numbers, strict=True)
            )
        return Published(
            source=", ".join(filter(None, (content.get("paper"), entry["label"]))),
            title=entry["title"],
            columns=columns,
            rows=rows,
            statistic=entry["statistic"],
            notes={name: row["note"] for name, row in entry["rows"].items() if "note" in row},
            warnings=tuple(entry.get("warnings", ())),
            runs=entry.get("runs"),
        )
    except KeyError as error:
        raise ValueError(f"{file}: {table}: missing key {error}") from None


class Notes(dict[str, str]):
    """Notes by name, from a file."""

    file: Path

    def __missing__(self, name: str) -> str:
        raise ValueError(f"{self.file}: no note {name!r}; add it there, or correct the name")

    def lines(self, names: str) -> tuple[str, ...]:
        """The notes whose names are given, separated by spaces, for below a table."""
        return tuple(self[name] for name in names.split())

    def text(self, names: str) -> str:
        """The same as one text, for a row."""
        return " ".join(self.lines(names))

    def row(
        self, label: str, changes: Mapping[str, Any] | None = None, names: str = "", **others: Any
    ) -> Row:
        """A row; its deviation is made of the named notes, ``others`` are further fields."""
        return Row(label, changes or {}, deviation=self.text(names), **others)


def load_notes(file: Path) -> Notes:
    """Read the notes of a domain's tables: a TOML file of texts by name; line breaks are spaces."""
    notes = Notes({name: " ".join(text.split()) for name, text in read_toml(file).items()})
    notes.file = file
    return notes


@functools.cache
def read_toml(file: Path) -> dict[str, Any]:
    """The content of a file that several tables are read from."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:  # no TOML, or no UTF-8
        raise UserError(f"{file}: {error}; restore the file from git") from None
