"""What the verbs do that run no cells of their own: report, verify, figures, film, export, data."""

import argparse
import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from shared.command import collect, domains, verify
from shared.command.domains import domain_of, find_cell, tables_of_paper
from shared.command.places import Committed, Places, measure, run_folder, settle
from shared.command.pool import Pool, default_jobs
from shared.errors import UserError, suggestion
from shared.experiment.records import Record, read_record
from shared.experiment.runs import Interrupted
from shared.experiment.tables import Cell, Tier, slug
from shared.report import claims, files, summary
from shared.report.figures import write as write_figures
from shared.report.wording import counted

RESULTS = Path("results")
README = Path("README.md")  # it says in short what the project's own results hold
NO_RECORDS = (
    "note: no committed records below {}; they come with the checkout, not with the package"
)
FIGURES = Path("exports/figures")  # beside no committed file


def report(places: Places, source: Path | None = None, *, tex: bool = False) -> int:
    """Write results/ from its records and every finished run; print a sentence for each paper.

    Args:
        places: where both lie.
        source: a folder of finished runs made elsewhere; each is checked before it is taken.
        tex: whether to write every table as LaTeX, too.

    Returns:
        The exit code: 1 if a run of ``source`` was refused.
    """
    taken: list[Record] = []
    refused: list[str] = []
    if source is not None:
        taken, refused = collect.collected(source, domains.every_table(), places)
        print(f"{counted(len(taken), 'run')} taken from {source}, {len(refused)} refused")
    results = write_results(places, taken, tex=tex)
    if not any(each.records for each in results.tables):
        print(NO_RECORDS.format(places.results))
    for paper in summary.PAPERS:
        print(summary.sentence(results, paper))
    written = sum(bool(each.records) for each in results.tables)
    print(f"{counted(written, 'table')}; the summary of all: {places.results / summary.SUMMARY}")
    return print_faults(refused)


def write_results(
    places: Places, taken: Sequence[Record] = (), *, tex: bool = False
) -> summary.Results:
    """Write the pages, pictures, CSV files and records below ``places.results``.

    Args:
        places: where records and runs lie.
        taken: further records.
        tex: whether to write every table as LaTeX, too.
    """
    committed = Committed.read(places)
    committed = Committed([*committed.records, *taken], committed.repeats)
    tables = []
    for domain in domains.present_domains():
        settle(places, domain)
        own = committed.of(domain)
        for table in domains.every_table(domain):
            tiers = (tier for tier in table.tiers if tier != "smoke")
            tables += [measure(table, tier, places, {}, own) for tier in tiers]
    every = claims.readings(tables)
    results = summary.Results(tables, every)
    for measured in tables:
        if measured.records:
            files.write(places.results, measured, results.read_from(measured), tex=tex)
    claims.write(places.results, every)
    summary.write(places.results, results)
    if places.results.resolve() == RESULTS.resolve() and README.exists():
        summary.write_in_short(README, results)
    return results


def verify_records(domain: str | None, places: Places, options: argparse.Namespace) -> int:
    """Check records and finished runs; with ``--rerun`` run some of the records' cells anew."""
    console = Console()
    for each in domains.present_domains() if domain is None else (domain,):
        settle(places, each)
    checked = verify.check(domains.every_table(domain), places.results, places.runs, domain)
    console.print(verify.summary(checked))
    if not any(each.committed for each in checked.groups):
        print(NO_RECORDS.format(places.results))
    faults = list(checked.faults)
    for note in checked.notes:
        print(f"note: {note}")
    if options.rerun:
        for outcome in _run_anew(checked.counted, places, options, console):
            text = ": ".join(filter(None, (outcome.address, outcome.text)))
            if outcome.fault:
                faults.append(text)
            else:
                print(text)
    return print_faults(faults)


def print_faults(faults: Sequence[str]) -> int:
    """Print what is wrong, a line each, to stderr; returns the exit code."""
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _run_anew(
    counted: Sequence[verify.Counted],
    places: Places,
    options: argparse.Namespace,
    console: Console,
) -> Iterator[verify.Outcome]:
    def wanted(cell: Cell) -> bool:
        asked = ((options.row, {cell.row}), (options.column, {cell.column, cell.run}))
        return (
            options.table in (None, cell.table, cell.table.removeprefix("table-"))
            and all(name is None or slug(name) in map(slug, labels) for name, labels in asked)
            and (options.seeds is None or cell.seed in options.seeds)
        )

    waiting = verify.drawn((each for each in counted if wanted(each.cell)), options.draw)
    if not waiting:
        raise UserError("nothing to run anew: no record that counts is of what was asked for")
    jobs = options.jobs or default_jobs(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        new = dataclasses.replace(places, runs=Path(folder))
        pool = Pool(
            new,
            jobs,
            threads=options.threads,
            deterministic=options.deterministic,
            allow_missing=options.allow_missing,
            download=False,
            console=console,
        )

        def start(cells: list[Cell]) -> Mapping[str, str]:
            pool.run(cells)
            if pool.interrupted:
                raise Interrupted
            return pool.outcomes

        yield from verify.rerun(waiting, options.rerun, counted, new.runs, start)


def draw(domain: str, paper: str, places: Places, to: Path | None = None) -> int:
    """Draw the figures of a paper; prints where they are.

    Args:
        domain: the domain.
        paper: one of its papers.
        places: where runs, records and data lie.
        to: the folder of the figures; None for ``exports/figures``, where none is committed.
    """
    tables_of_paper(domain, paper)
    figures = domain_of(domain).figures
    if figures is None:
        raise UserError(f"{domain} draws no figures")
    settle(places, domain)
    found = write_figures(
        domain_of(domain).tables,
        figures(),
        paper,
        places.runs,
        places.results,
        places.data,
        to or FIGURES,
    )
    if not found:
        raise UserError(f"{domain}/{paper}: there is no figure to draw")
    for file in found:
        print(file)
    return 0


def film(domain: str, paper: str, tier: Tier, places: Places) -> int:
    """Film the finished runs of a paper in a tier; prints where the films are."""
    tables_of_paper(domain, paper)
    shoot = domain_of(domain).film
    if shoot is None:
        raise UserError(f"{domain} films nothing")
    settle(places, domain)
    files = shoot(paper, tier, places.runs)
    if not files:
        raise UserError(f"{domain}/{paper}: there is no finished run of the {tier} tier to film")
    for file in files:
        print(file)
    return 0


def export(run: str, folder: Path, domain: str | None, target: Path | None, places: Places) -> int:
    """Write the model of a finished run, given by folder or address; prints where it is."""
    address = Path(run)
    if not (folder / "config.json").exists():
        try:
            cell = find_cell(run).cells[0]
        except UserError:
            raise UserError(
                f"no run {run!r}: neither a run's folder nor the address of a cell"
            ) from None
        settle(places, cell.domain)
        folder = run_folder(places, cell)
        if not (folder / "config.json").exists():
            raise UserError(f"{run} has no run in {places.runs}/; run it with --cell {run}")
    else:
        address = Path(folder.resolve().name)
        with contextlib.suppress(ValueError):  # it lies elsewhere
            address = folder.resolve().relative_to(places.runs.resolve())
    home = next((part for part in address.parts if part in domains.DOMAINS), "")
    if domain is None and not home:
        raise UserError(f"{folder} is not where the cells of a domain lie; name it with --domain")
    domain = domain or home
    write = domain_of(domain).export
    if write is None:
        raise UserError(f"{domain} exports no models")
    if read_record(folder, str(address)) is None:
        raise UserError(f"{folder}: the run is not finished; it needs a result.json to be exported")
    print(write(folder, target or Path("exports") / address))
    return 0


def fetch(domain: str, dataset: str | None, places: Places) -> int:
    """Fetch what is missing, verify what is there; one line for each dataset."""
    found = domain_of(domain)
    datasets = found.datasets()
    names = [dataset] if dataset else list(datasets)
    if unknown := set(names) - set(datasets):
        name = unknown.pop()
        raise UserError(f"{domain} has no dataset {name!r}{suggestion(name, datasets, 'it has')}")
    failed = 0
    for name in names:
        started = time.monotonic()
        try:
            content = found.fetch(name, places.data)
            seconds = time.monotonic() - started
            print(f"{name}: ready in {places.data} ({seconds:.1f} s)")
            if content:
                print(content)
        except UserError as error:
            failed += 1
            print(error, file=sys.stderr)
    return 1 if failed else 0
