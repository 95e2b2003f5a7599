"""Domains, tables and cells by name, and where on this disk their runs, results and data are.

The one list of domains, and the one module that imports them. It needs no torch: a mistyped word is
answered at once.
"""

import argparse
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from shared.errors import UserError, suggestion
from shared.experiment.config import USER_TIER, slug
from shared.experiment.domain import Domain
from shared.experiment.store import FOLDER, encoder_key
from shared.experiment.tables import TIERS, Cell, Table, Tier

DOMAINS = ("vision", "text", "rl", "graph", "video")


def domain_of(name: str) -> Domain:
    """The domain of that name."""
    if name not in DOMAINS:
        raise UserError(f"no domain {name!r}{suggestion(name, DOMAINS, 'domains are')}")
    if not find_spec(name):
        implemented = ", ".join(present_domains())
        raise UserError(f"{name} is not implemented yet; implemented: {implemented}")
    return imported(name)


def imported(name: str) -> Domain:
    """The ``DOMAIN`` of a package, whether or not ``DOMAINS`` has it."""
    module = importlib.import_module(name)
    domain = getattr(module, "DOMAIN", None)
    if not isinstance(domain, Domain):
        file = Path(module.__file__ or name)
        if name in DOMAINS and file.resolve().parents[1] != Path(__file__).resolve().parents[2]:
            raise UserError(
                f"{file.parent} hides the suite's package {name!r}: rename it, or start where it "
                f"does not come first on sys.path"
            )
        raise TypeError(f"{name} gives no DOMAIN; see shared.experiment.domain")
    return domain


def encoder_of(cell: Cell) -> str | None:
    """What identifies the encoder of a cell, which other cells may share; None without one."""
    pretraining = imported(cell.domain).experiment(cell.config).pretraining
    part = None if pretraining is None else pretraining(cell.config)
    return None if part is None else encoder_key(part)


def tables_of(domain: str) -> Mapping[str, tuple[Table, ...]]:
    """The tables that a domain declares, by paper."""
    return domain_of(domain).tables


def every_table(domain: str | None = None) -> list[Table]:
    """The tables of all papers, in one domain or in all that are installed."""
    names = [domain] if domain else present_domains()
    return [table for name in names for tables in tables_of(name).values() for table in tables]


def tables_of_paper(domain: str, paper: str) -> tuple[Table, ...]:
    """The tables of one paper in one domain."""
    tables = tables_of(domain)
    if paper not in tables:
        raise UserError(f"{domain} has no paper {paper!r}{suggestion(paper, tables, 'it has')}")
    return tables[paper]


def present_domains() -> tuple[str, ...]:
    """The domains whose packages are installed."""
    return tuple(filter(find_spec, DOMAINS))


@dataclass(frozen=True)
class Chosen:
    """A table and its chosen cells."""

    table: Table
    cells: tuple[Cell, ...]


def choose(options: argparse.Namespace) -> list[Chosen]:
    """The chosen cells, table by table; tables without the row or the column are left out."""
    if options.cell:
        by_table: dict[tuple[Tier, str], Chosen] = {}
        for found in map(find_cell, options.cell):
            name = found.cells[0].tier, found.table.address
            before = by_table[name].cells if name in by_table else ()
            by_table[name] = Chosen(found.table, (*before, *found.cells))
        return with_cells(list(by_table.values()))
    domain, paper = options.words
    tables = choose_tables(domain, paper, options.table, options.tier)
    chosen, refused = [], []
    for table in tables:
        choice = {"row": options.row, "column": options.column, "seeds": options.seeds}
        try:
            chosen.append(Chosen(table, table.cells(options.tier, **choice)))
        except UserError as error:
            refused.append(error)
    if not chosen:
        raise most_helpful(refused)
    return with_cells(chosen)


def with_cells(chosen: Sequence[Chosen]) -> list[Chosen]:
    """The tables in which a cell is chosen."""
    if not any(selected.cells for selected in chosen):
        raise UserError("nothing to run: the chosen rows have none of the seeds given by --seeds")
    return [selected for selected in chosen if selected.cells]


def most_helpful(refused: Sequence[UserError]) -> UserError:
    """Of the errors of several tables, the first that suggests a similar name, else the first."""
    return next((error for error in refused if "did you mean" in str(error)), refused[0])


def choose_tables(domain: str, paper: str, name: str | None, tier: Tier) -> tuple[Table, ...]:
    """The tables of a paper that have the tier, or the one of that number or name."""
    tables = chosen = tables_of_paper(domain, paper)
    if name is not None:
        names = {f"table-{name}", slug(name)}
        chosen = tuple(table for table in tables if table.name in names)
        if not chosen:
            known = suggestion(name, [table.name for table in tables], "it has")
            raise UserError(f"{domain}/{paper} has no table {name!r}{known}")
    if not any(tier in table.tiers for table in chosen):
        raise UserError("; ".join(_no_part(table, tier) for table in chosen))
    return tuple(table for table in chosen if tier in table.tiers)


def _no_part(table: Table, tier: Tier) -> str:
    tiers = table.tiers
    return f"{table.address} has no {tier} tier; add --tier {' or --tier '.join(tiers)}"


def find_cell(address: str) -> Chosen:
    """The cell of an address."""
    parts = address.strip("/").split("/")
    tier: Tier = "paper"
    if parts[0] in TIERS:
        tier = parts.pop(0)  # type: ignore[assignment]  # checked on the line above
    form = "[tier/]domain/paper/table/row/column/seed-n"
    if len(parts) != 6 or not re.fullmatch(r"seed-\d+", parts[5]):
        raise UserError(f"a cell is addressed as {form}; got {address!r}")
    domain, paper, name, row, column, seed = parts
    seeds = (int(seed.removeprefix("seed-")),)
    tables = tables_of_paper(domain, paper)
    named = [table for table in tables if table.name == name]
    for table in named:  # two may have one name, and no tier in common
        if tier in table.tiers:
            return Chosen(table, table.cells(tier, row=row, column=column, seeds=seeds))
    if named:
        raise UserError("; ".join(_no_part(table, tier) for table in named))
    known = suggestion(name, [table.name for table in tables], "there are")
    raise UserError(f"no table {domain}/{paper}/{name}{known}; cells are addressed as {form}")


@dataclass(frozen=True)
class Places:
    """The folders of runs, results and data."""

    runs: Path
    results: Path
    data: Path

    def absolute(self) -> "Places":
        """The same folders, for another working directory."""
        return Places(self.runs.absolute(), self.results.absolute(), self.data.absolute())

    @property
    def store(self) -> Path:
        """The folder of pretrained models that several cells share."""
        return self.runs / FOLDER

    def store_of(self, cell: Cell) -> Path | None:
        """The store of a cell; None in the smoke tier, where training is faster than storing."""
        home = replace(self, runs=self.runs / USER_TIER) if cell.own else self
        return None if cell.tier == "smoke" else home.store


def run_folder(places: Places, cell: Cell) -> Path:
    """The folder of a cell's run, which it shares with every cell of an equal configuration."""
    return places.runs / cell.folder
