"""The domains, found by their names: the one list of them, and the tables that they declare."""

import importlib
from importlib.util import find_spec

from shared.errors import UserError, suggestion
from shared.experiment.tables import Table

DOMAINS = ("vision", "text", "rl", "graph", "video")


def tables_of(domain: str) -> dict[str, tuple[Table, ...]]:
    """The tables that a domain declares, by paper.

    Raises:
        UserError: no such domain, or none of its tables can be run yet.
    """
    if domain not in DOMAINS:
        raise UserError(f"no domain {domain!r}{suggestion(domain, DOMAINS, 'domains are')}")
    if not _present(domain):
        there = ", ".join(present_domains())
        raise UserError(f"{domain} is not implemented yet; implemented: {there}")
    tables: dict[str, tuple[Table, ...]] = importlib.import_module(f"{domain}.tables").TABLES
    return tables


def tables_of_paper(domain: str, paper: str) -> tuple[Table, ...]:
    """The tables of one paper in one domain.

    Raises:
        UserError: as :func:`tables_of`, or the domain has no such paper.
    """
    tables = tables_of(domain)
    if paper not in tables:
        raise UserError(f"{domain} has no paper {paper!r}{suggestion(paper, tables, 'it has')}")
    return tables[paper]


def _present(domain: str) -> bool:
    return bool(find_spec(domain) and find_spec(f"{domain}.tables"))


def present_domains() -> tuple[str, ...]:
    """Those that are there."""
    return tuple(filter(_present, DOMAINS))
