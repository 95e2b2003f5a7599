"""Which tables and cells the words and options of a call choose."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from shared.command.domains import tables_of_paper
from shared.errors import UserError, suggestion
from shared.experiment.tables import TIERS, Cell, Table, Tier, slug


@dataclass(frozen=True)
class Chosen:
    """A table and those of its cells that were asked for."""

    table: Table
    cells: tuple[Cell, ...]


def choose(options: argparse.Namespace) -> list[Chosen]:
    """The chosen cells, table by table; of several tables those that have the row and the column.

    Raises:
        UserError: nothing is called as the options say.
    """
    if options.cell:
        return with_cells([find_cell(options.cell)])
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
    """Those in which a cell is chosen.

    Raises:
        UserError: there is none.
    """
    if not any(each.cells for each in chosen):
        raise UserError("nothing to run: the chosen rows have none of these --seeds")
    return [each for each in chosen if each.cells]


def most_helpful(refused: Sequence[UserError]) -> UserError:
    """Of what several tables refuse, the one that knows something of nearly that name."""
    return next((each for each in refused if "did you mean" in str(each)), refused[0])


def choose_tables(domain: str, paper: str, name: str | None, tier: Tier) -> tuple[Table, ...]:
    """The tables of a paper that have a part in the tier, or the one of that number or name.

    Raises:
        UserError: no such domain, paper or table, or none with a part in the tier.
    """
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
    return f"{table.address} is not part of the {tier} tier; it has: {', '.join(table.tiers)}"


def find_cell(address: str, *, seedless: bool = False) -> Chosen:
    """The cell of an address; ``seedless``, also all cells of one without a seed.

    Raises:
        UserError: no such cell.
    """
    parts = address.strip("/").split("/")
    tier: Tier = "paper"
    if parts[0] in TIERS:
        tier = parts.pop(0)  # type: ignore[assignment]  # checked on the line above
    seeds: tuple[int, ...] | None = None
    if parts[-1].startswith("seed-") and parts[-1].removeprefix("seed-").isdecimal():
        seeds = (int(parts.pop().removeprefix("seed-")),)
    form = f"[tier/]domain/paper/table/row/column{'[/seed-n]' if seedless else '/seed-n'}"
    if len(parts) != 5 or (seeds is None and not seedless):
        raise UserError(f"a cell is addressed as {form}; got {address!r}")
    domain, paper, name, row, column = parts
    tables = tables_of_paper(domain, paper)
    named = [table for table in tables if table.name == name]
    for table in named:  # two may have one name, and no tier in common
        if tier in table.tiers:
            return Chosen(table, table.cells(tier, row=row, column=column, seeds=seeds))
    if named:
        raise UserError("; ".join(_no_part(table, tier) for table in named))
    known = suggestion(name, [table.name for table in tables], "there are")
    raise UserError(f"no table {domain}/{paper}/{name}{known}; cells are addressed as {form}")
