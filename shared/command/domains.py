"""The domains, found by their names: the one list of them, and the one place that imports them."""

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shared.errors import UserError, suggestion
from shared.experiment.tables import Table

if TYPE_CHECKING:
    from shared.experiment.domain import Domain

DOMAINS = ("vision", "text", "rl", "graph", "video")


def domain_of(name: str) -> "Domain":
    """The domain of that name.

    Raises:
        UserError: no such domain, or it is not there.
    """
    if name not in DOMAINS:
        raise UserError(f"no domain {name!r}{suggestion(name, DOMAINS, 'domains are')}")
    if not find_spec(name):
        there = ", ".join(present_domains())
        raise UserError(f"{name} is not implemented yet; implemented: {there}")
    return imported(name)


def imported(name: str) -> "Domain":
    """The domain that the front of a package gives, of ``DOMAINS`` or not.

    Raises:
        TypeError: the package gives none.
    """
    from shared.experiment.domain import Domain  # needs torch, which words and options do not

    domain = getattr(importlib.import_module(name), "DOMAIN", None)
    if not isinstance(domain, Domain):
        raise TypeError(f"{name} gives no DOMAIN; see shared.experiment.domain")
    return domain


def tables_of(domain: str) -> Mapping[str, tuple[Table, ...]]:
    """The tables that a domain declares, by paper.

    Raises:
        UserError: no such domain, or it is not there.
    """
    return domain_of(domain).tables


def every_table(domain: str | None = None) -> list[Table]:
    """The tables of all papers, in one domain or in all that are there.

    Raises:
        UserError: as :func:`tables_of`.
    """
    papers = [tables_of(each) for each in ([domain] if domain else present_domains())]
    return [table for some in papers for tables in some.values() for table in tables]


def tables_of_paper(domain: str, paper: str) -> tuple[Table, ...]:
    """The tables of one paper in one domain.

    Raises:
        UserError: as :func:`tables_of`, or the domain has no such paper.
    """
    tables = tables_of(domain)
    if paper not in tables:
        raise UserError(f"{domain} has no paper {paper!r}{suggestion(paper, tables, 'it has')}")
    return tables[paper]


def present_domains() -> tuple[str, ...]:
    """Those that are there."""
    return tuple(filter(find_spec, DOMAINS))
