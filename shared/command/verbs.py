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
from rich.text import Text

from shared.command import domains, verify
from shared.command.choosing import find_cell
from shared.command.domains import domain_of, present_domains, tables_of, tables_of_paper
from shared.command.places import Committed, Places, finished, measure, run_folder, settle
from shared.command.pool import Pool, default_jobs
from shared.errors import UserError, suggestion
from shared.experiment.records import read_record
from shared.experiment.runs import Interrupted
from shared.experiment.tables import Cell, Tier, slug
from shared.report import curves, files
from shared.report.claims import entries, has_marks, sentences, write_in_short
from shared.report.console import terminal
from shared.report.measuring import Measured
from shared.report.page import write_site

RESULTS = Path("results")
README = Path("README.md")  # it says in short what the project's own results hold
# Tables, each in a tier, whose picture the documents show; it shows the project's own results.
DOCUMENTS: Mapping[tuple[str, Tier], Path] = {
    ("graph/mmcl/table-4", "paper"): Path("docs/table-4.png"),
    ("vision/lmcl/table-1", "paper"): Path("docs/lmcl-table-1.png"),
    ("vision/margins/table-2-cifar10", "short"): Path("docs/table-2-cifar10.png"),
    ("video/mmcl/table-5-small", "short"): Path("docs/table-5-small.png"),
}


def report(places: Places) -> int:
    """Write results/ from every finished run of the paper and short tiers, and print the tables."""
    shown, every = write_results(places)
    console = Console()
    for measured in shown:
        console.print(terminal(measured))
    for sentence in sentences(entries(every)).values():
        console.print(Text(f"\n{sentence}"))
    print(f"{len(shown)} tables written to {places.results}, open {places.results / 'index.html'}")
    return 0


def write_results(places: Places) -> tuple[list[Measured], list[Measured]]:
    """Write results/ from the records in it and every finished run of the paper and short tiers.

    Returns:
        The tables that hold anything, and all tables.
    """
    from shared.report import picture  # brings matplotlib, which no cell needs

    committed = Committed.read(places)
    shown, every = [], []
    kept: dict[str, curves.Curve] = {}
    for domain in present_domains():
        settle(places, domain)
        for tables in tables_of(domain).values():
            for table in tables:
                for tier in table.tiers:
                    if tier == "smoke":
                        continue
                    measured = measure(table, tier, places, {}, committed)
                    every.append(measured)
                    if measured.records:
                        shown.append(measured)
                        files.write(places.results, measured)
                        kept |= keep_curves(measured, places)
                        drawn = DOCUMENTS.get((table.address, tier))
                        if drawn and places.results.resolve() == RESULTS.resolve():
                            picture.write(drawn, measured)
    write_site(places.results, shown, every, kept)
    if places.results.resolve() == RESULTS.resolve() and has_marks(README):
        write_in_short(README, entries(every))
    return shown, every


def serve_report(places: Places, port: int) -> int:
    """Show the report in a browser, written anew whenever a run ends, until it is interrupted."""
    from shared.command.serving import serve

    return serve(places, lambda: write_results(places), port)


def keep_curves(measured: Measured, places: Places) -> dict[str, curves.Curve]:
    """Keep the learning curves of a table's counted runs, and give them by hash of the record."""
    counted = {r.address: r for cells in measured.cells for c in cells for r in c.records.values()}
    logs = {}
    for cell in measured.table.cells(measured.tier):
        folder = run_folder(places, cell)
        if (folder / curves.LOG).exists() and (own := finished(cell, places)) is not None:
            logs[str(own.sha256)] = folder / curves.LOG
    folder, name = places.results / measured.folder, measured.table.name
    curves.keep(folder, name, counted.values(), logs)
    return curves.read(folder, name)


def verify_records(domain: str | None, places: Places, options: argparse.Namespace) -> int:
    """Check records and finished runs; with ``--rerun`` run some of the records' cells anew."""
    console = Console()
    for each in present_domains() if domain is None else (domain,):
        settle(places, each)
    checked = verify.check(domains.every_table(domain), places.results, places.runs, domain)
    console.print(verify.summary(checked))
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


def draw(domain: str, paper: str, places: Places) -> int:
    """Draw the figures of a paper; prints where they are."""
    tables_of_paper(domain, paper)
    figures = domain_of(domain).figures
    if figures is None:
        raise UserError(f"{domain} draws no figures")
    settle(places, domain)
    files = figures(paper, places.runs, places.results, data_root=places.data)
    if not files:
        raise UserError(f"{domain}/{paper}: there is no figure to draw")
    for file in files:
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
            found.fetch(name, places.data)
            print(f"{name}: ready in {places.data} ({time.monotonic() - started:.1f} s)")
        except UserError as error:
            failed += 1
            print(error, file=sys.stderr)
    return 1 if failed else 0
