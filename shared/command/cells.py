"""Domains, tables and cells by name, and where on this disk their runs, results and data are.

The one list of domains, and the one module that imports them. It needs no torch: a mistyped word is
answered at once.
"""

import importlib
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shared.errors import UserError, suggestion
from shared.experiment.config import USER_TIER, slug
from shared.experiment.data import MissingData
from shared.experiment.domain import Domain, Experiment
from shared.experiment.store import FOLDER, encoder_key
from shared.experiment.tables import TIERS, Cell, Table, Tier

DOMAINS = ("vision", "text", "rl", "graph", "video")


def domain_of(name: str) -> Domain:
    """The domain of that name."""
    if name not in DOMAINS:
        raise UserError(f"no domain {name!r}{suggestion(name, DOMAINS, 'domains are')}")
    return imported(name)


def imported(name: str) -> Domain:
    """The ``DOMAIN`` of a package, whether or not ``DOMAINS`` has it."""
    module = importlib.import_module(name)
    domain = getattr(module, "DOMAIN", None)
    if not isinstance(domain, Domain):
        file = module.__file__ or name
        raise UserError(f"{file} gives no DOMAIN; if it hides the suite's package, rename it")
    return domain


def experiment_of(cell: Cell) -> Experiment[Any]:
    """What the domain of a cell provides for its kind of configuration."""
    return imported(cell.domain).experiment(cell.config)


def encoder_of(cell: Cell) -> str | None:
    """What identifies the encoder of a cell, which other cells may share; None without one."""
    pretraining = experiment_of(cell).pretraining
    part = None if pretraining is None else pretraining(cell.config)
    return None if part is None else encoder_key(part)


def missing_data(cell: Cell, data: Path) -> Sequence[MissingData]:
    """The datasets that a cell lacks below ``data``, as far as its domain can tell."""
    find = experiment_of(cell).missing
    return find(cell.config, data) if find else ()


def tables_of(domain: str) -> Mapping[str, tuple[Table, ...]]:
    """The tables that a domain declares, by paper."""
    return domain_of(domain).tables


def every_table(domain: str | None = None) -> list[Table]:
    """The tables of all papers, in one domain or in all."""
    names = [domain] if domain else DOMAINS
    return [table for name in names for tables in tables_of(name).values() for table in tables]


def tables_of_paper(domain: str, paper: str) -> tuple[Table, ...]:
    """The tables of one paper in one domain."""
    tables = tables_of(domain)
    if paper not in tables:
        raise UserError(f"{domain} has no paper {paper!r}{suggestion(paper, tables, 'it has')}")
    return tables[paper]


class Chosen(NamedTuple):
    """A table and its chosen cells, which are of one tier."""

    table: Table
    cells: tuple[Cell, ...]

    @property
    def tier(self) -> Tier:
        """The tier of the cells."""
        return self.cells[0].tier


def choose(options: Namespace) -> list[Chosen]:
    """The chosen cells, table by table; tables without the row or the column are left out."""
    if options.cell:
        by_table: dict[tuple[Tier, str], Chosen] = {}
        for found in map(find_cell, options.cell):
            name = found.tier, found.table.address
            before = by_table[name].cells if name in by_table else ()
            by_table[name] = Chosen(found.table, (*before, *found.cells))
        return list(by_table.values())
    chosen, refused = [], []
    domain, paper = options.words
    for table in choose_tables(domain, paper, options.table, options.tier):
        choice = {"row": options.row, "column": options.column, "seeds": options.seeds}
        try:
            chosen.append(Chosen(table, table.cells(options.tier, **choice)))
        except UserError as error:
            refused.append(error)
    if not chosen:
        raise most_helpful(refused)
    if not any(selected.cells for selected in chosen):
        raise UserError("nothing to run: the chosen rows have none of the seeds given by --seeds")
    return [selected for selected in chosen if selected.cells]


def most_helpful(refused: Sequence[UserError]) -> UserError:
    """Of the errors of several tables, the first that suggests a similar name, else the first."""
    return next((error for error in refused if "did you mean" in str(error)), refused[0])


def choose_tables(domain: str, paper: str, name: str | None, tier: Tier) -> tuple[Table, ...]:
    """The tables of a paper that have the tier, or the one of that number or name.

    Two may have one name, and no tier in common.
    """
    tables = chosen = tables_of_paper(domain, paper)
    if name is not None:
        names = {f"table-{name}", slug(name)}
        chosen = tuple(table for table in tables if table.name in names)
        if not chosen:
            known = suggestion(name, [table.name for table in tables], "it has")
            raise UserError(f"{domain}/{paper} has no table {name!r}{known}")
    if not any(tier in table.tiers for table in chosen):
        lacks = f"has no {tier} tier; add --tier"
        texts = (f"{table.address} {lacks} {' or --tier '.join(table.tiers)}" for table in chosen)
        raise UserError("; ".join(texts))
    return tuple(table for table in chosen if tier in table.tiers)


def find_cell(address: str) -> Chosen:
    """The cell of an address."""
    parts = address.strip("/").split("/")
    tier: Tier = "paper"
    if parts[0] in TIERS:
        tier = parts.pop(0)  # type: ignore[assignment]  # checked on the line above
    if len(parts) != 6 or not re.fullmatch(r"seed-\d+", parts[5]):
        raise UserError(
            f"a cell is addressed as [tier/]domain/paper/table/row/column/seed-n; got {address!r}"
        )
    domain, paper, name, row, column, seed = parts
    seeds = (int(seed.removeprefix("seed-")),)
    (table, *_) = choose_tables(domain, paper, name, tier)
    return Chosen(table, table.cells(tier, row=row, column=column, seeds=seeds))


@dataclass(frozen=True)
class Places:
    """The folders of runs, results and data."""

    runs: Path
    results: Path
    data: Path

    def store_of(self, cell: Cell) -> Path | None:
        """The store of a cell's encoder; None in the smoke tier, whose training is faster."""
        runs = self.runs / USER_TIER if cell.own else self.runs
        return None if cell.tier == "smoke" else runs / FOLDER
