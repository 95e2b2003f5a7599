"""The command line: plan the cells of a table, run each in its own process, report.

Exit codes: 0 all is done; 1 a cell failed or its data are missing; 2 the input cannot be used;
75 interrupted, the same command goes on.
"""

import argparse
import dataclasses
import importlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from shared.command import domains, verify
from shared.command.domains import present_domains, tables_of, tables_of_paper
from shared.command.places import Places, finished, measure, run_folder
from shared.command.plan import estimated, planned
from shared.command.pool import Pool, default_jobs, describe_os_error, twins_of
from shared.errors import UserError
from shared.experiment.data import data_root
from shared.experiment.records import read_record
from shared.experiment.runs import INTERRUPTED, Interrupted, check_config, set_aside
from shared.experiment.tables import TIERS, Cell, Table, Tier, slug
from shared.report import files
from shared.report.console import terminal
from shared.report.measuring import unavailable
from shared.report.page import write_index

USAGE = """\
  ./reproduce.sh graph mmcl                    every table of that paper in that domain
  ./reproduce.sh graph mmcl --tier smoke       the same on embedded data, in about a minute
  ./reproduce.sh graph mmcl --table 4 --row GraphCL --column MUTAG --seeds 0,1
  ./reproduce.sh graph mmcl --plan             cells, what is done, time, memory, disk; runs nothing
  ./reproduce.sh graph mmcl --row MMCL --again     old runs are moved aside, not deleted, and redone
  ./reproduce.sh --cell graph/mmcl/table-4/graphcl/mutag/seed-3
  ./reproduce.sh report                        finished runs -> results/, its page and docs/*.png
  ./reproduce.sh vision lmcl --figures         finished runs -> figures/ beside their tables
  ./reproduce.sh rl lmcl --video               finished runs -> an episode in runs/.../episode.gif
  ./reproduce.sh export RUN --to FOLDER        the model of a finished run, by folder or address
  ./reproduce.sh verify                        check every record; --rerun 3 runs three cells anew
  ./reproduce.sh data graph                    fetch or verify the data of a domain
  ./reproduce.sh test                          the fast tests; --all: every one, as CI does
"""
RESULTS = Path("results")
# Tables that the documents show as a picture; they show what the project's own results hold.
DOCUMENTS = {"graph/mmcl/table-4": Path("docs/table-4.png")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {describe_os_error(error)}", file=sys.stderr)
        return 1


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./reproduce.sh", usage="\n" + USAGE, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="DOMAIN PAPER | report | ...", help=argparse.SUPPRESS)
    add("--tier", choices=TIERS, default="paper", help="the paper's setting, less of it, or a test")
    add("--table", help="one table, by number or name")
    add("--row", help="one row, by label")
    add("--column", help="one column, by label")
    add("--seeds", type=_seeds, help="for example 0,1,2; default: those of the table")
    add("--cell", help="one cell, by address")
    add("--plan", action="store_true", help="say what would run, and run nothing")
    add("--again", action="store_true", help="move the chosen runs aside, and run them anew")
    add("--figures", action="store_true", help="draw the figures of finished runs, and run nothing")
    add("--video", action="store_true", help="film the models of finished runs, and run nothing")
    add("--jobs", type=_positive, help="cells at a time; default: cores / threads, on a GPU one")
    add("--threads", type=_positive, default=1, help="threads of each cell; default: 1")
    add("--no-download", action="store_true", help="do not fetch missing data")
    add("--allow-missing", action="store_true", help="leave out files that data sets lack")
    add("--dataset", help="with 'data': one dataset")
    add("--to", type=Path, help="with 'export': where to; default: exports/ADDRESS")
    add("--domain", help="with 'export': whose run it is, for folders outside --runs")
    add("--rerun", type=_positive, metavar="N", help="with 'verify': cells to run anew")
    add("--draw", type=int, default=0, help="with 'verify --rerun': another number, other cells")
    add("--data-root", type=Path, help="where datasets lie; default: SUITE_DATA, else data/")
    add("--runs", type=Path, default=Path("runs"), help="where runs lie")
    add("--results", type=Path, default=RESULTS, help="where the report goes")
    options = parser.parse_args(arguments)
    places = Places(options.runs, options.results, data_root(options.data_root))

    match options.words:
        case ["report"]:
            return _report(places)
        case ["verify"]:
            return _verify(None, places, options)
        case ["verify", domain]:
            return _verify(domain, places, options)
        case ["data", domain]:
            return _data(domain, options.dataset, places)
        case ["export", run]:
            return _export(run, options.domain, options.to, places)
        case [domain, paper] if options.figures:
            return _draw(domain, paper, places)
        case [domain, paper] if options.video:
            return _film(domain, paper, options.tier, places)
        case [] if options.cell and not (options.figures or options.video):
            table, cells = _find_cell(options.cell)
            return _run([(table, cells)], places, options)
        case [domain, paper] if not options.cell:
            return _run(_choose(domain, paper, options), places, options)
    raise UserError(f"say what to run:\n{USAGE}".rstrip())


def _choose(
    domain: str, paper: str, options: argparse.Namespace
) -> list[tuple[Table, tuple[Cell, ...]]]:
    tables = chosen = tables_of_paper(domain, paper)
    if options.table is not None:
        names = {f"table-{options.table}", slug(options.table)}
        chosen = tuple(table for table in tables if table.name in names)
        if not chosen:
            known = ", ".join(table.name for table in tables)
            raise UserError(f"{domain}/{paper} has no table {options.table!r}; it has: {known}")
    tier = options.tier
    if not any(tier in table.tiers for table in chosen):
        raise UserError("; ".join(_no_part(table, tier) for table in chosen))
    return [
        (table, table.cells(tier, row=options.row, column=options.column, seeds=options.seeds))
        for table in chosen
        if tier in table.tiers
    ]


def _no_part(table: Table, tier: Tier) -> str:
    return f"{table.address} is not part of the {tier} tier; it has: {', '.join(table.tiers)}"


def _find_cell(address: str) -> tuple[Table, tuple[Cell, ...]]:
    parts = address.strip("/").split("/")
    tier: Tier = "paper"
    if parts[0] in TIERS:
        tier = parts.pop(0)  # type: ignore[assignment]  # checked on the line above
    form = "[tier/]domain/paper/table/row/column/seed-n"
    if len(parts) != 6 or not parts[5].removeprefix("seed-").isdecimal():
        raise UserError(f"a cell is addressed as {form}; got {address!r}")
    domain, paper, name, row, column, seed = parts
    named = [table for table in tables_of(domain).get(paper, ()) if table.name == name]
    for table in named:  # two may have one name, and no tier in common
        if tier in table.tiers:
            seeds = (int(seed.removeprefix("seed-")),)
            return table, table.cells(tier, row=row, column=column, seeds=seeds)
    if named:
        raise UserError("; ".join(_no_part(table, tier) for table in named))
    raise UserError(f"no table {domain}/{paper}/{name}; cells are addressed as {form}")


def _run(
    chosen: list[tuple[Table, tuple[Cell, ...]]], places: Places, options: argparse.Namespace
) -> int:
    console = Console()
    # Columns that are read from one run give cells of one address.
    every = list({cell.address: cell for _, some in chosen for cell in some}.values())
    if not every:
        raise UserError("nothing to run: the chosen rows have none of these --seeds")
    tier = every[0].tier
    cells = [cell for cell in every if not cell.unavailable]
    if options.again and options.plan:
        raise UserError("--again moves runs aside, --plan touches nothing; leave one of them out")
    for cell in cells:  # before anything runs: a conflict must not come up after hours
        if not options.again:
            check_config(run_folder(places, cell), cell.config)
    jobs = options.jobs or default_jobs(options.threads)
    if options.plan:
        estimates = estimated(cells, places, options.threads, console)
        for table, some in chosen:
            console.print(planned(table, some, places, jobs, estimates))
        return 0

    places.runs.mkdir(parents=True, exist_ok=True)
    minutes = {
        (table.address, column.label): column.minutes
        for table, _ in chosen
        for column in table.columns_of(tier)
    }
    if options.again:
        _set_aside(cells, places, console)
    waiting = [cell for cell in cells if finished(cell, places) is None]
    # The cheapest first: most of a table is there long before its largest column.
    waiting.sort(key=lambda cell: minutes[cell.table_address, cell.column])
    pool = Pool(
        places,
        jobs,
        threads=options.threads,
        allow_missing=options.allow_missing,
        download=not options.no_download,
        console=console,
    )
    for why, count in Counter(map(unavailable, every)).items():
        if why:
            console.print(f"{count} cells are {why}", soft_wrap=True, highlight=False, markup=False)
    if len(waiting) < len(cells):
        console.print(f"{len(cells) - len(waiting)} cells are done already")
    twins = twins_of(waiting)
    if options.again:  # what is to run anew is not taken over from an old run
        chosen_now = {cell.address for cell in waiting}
        twins = {
            address: tuple(twin for twin in some if twin in chosen_now)
            for address, some in twins.items()
        }
    if waiting:
        pool.run(waiting, twins)

    for table, _ in chosen:
        measured = measure(table, tier, places, pool.outcomes)
        console.print(terminal(measured))
    if pool.interrupted:
        without = " without --again" if options.again else ""
        console.print(f"interrupted; the same command{without} goes on from here")
        return INTERRUPTED
    for address, why in pool.outcomes.items():
        print(f"{address}: {why}", file=sys.stderr)
    return 1 if pool.outcomes else 0


def _set_aside(cells: Sequence[Cell], places: Places, console: Console) -> None:
    """Move every run of the cells aside, and say so."""
    moved = []
    for cell in cells:
        while (folder := run_folder(places, cell)).exists():  # at an earlier address, too
            moved.append(set_aside(folder))
    if moved:
        where = f"{moved[0]}{', ...' if len(moved) > 1 else ''}"
        console.print(f"{len(moved)} runs were moved aside: {where}", soft_wrap=True, markup=False)


def _report(places: Places) -> int:
    """Write results/ from every finished run of the paper and short tiers."""
    from shared.report import picture  # brings matplotlib, which no cell needs

    shown = []
    for domain in present_domains():
        for tables in tables_of(domain).values():
            for table in tables:
                for tier in table.tiers:
                    if tier == "smoke":
                        continue
                    measured = measure(table, tier, places, {}, results=True)
                    if measured.records:
                        shown.append(measured)
                        files.write(places.results, measured)
                        drawn = DOCUMENTS.get(table.address) if tier == "paper" else None
                        if drawn and places.results == RESULTS:
                            picture.write(drawn, measured)
                        Console().print(terminal(measured))
    write_index(places.results, shown)
    print(f"{len(shown)} tables written to {places.results}, open {places.results / 'index.html'}")
    return 0


def _verify(domain: str | None, places: Places, options: argparse.Namespace) -> int:
    """Check records and finished runs; with ``--rerun`` run some of the records' cells anew."""
    console = Console()
    papers = [tables_of(each) for each in ([domain] if domain else present_domains())]
    tables = [table for some in papers for tables in some.values() for table in tables]
    checked = verify.check(tables, places.results, places.runs, domain)
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
            pool.run(cells, {cell.address: () for cell in cells})
            if pool.interrupted:
                raise Interrupted
            return pool.outcomes

        yield from verify.rerun(waiting, options.rerun, counted, new.runs, start)


def _draw(domain: str, paper: str, places: Places) -> int:
    """Draw the figures of a paper; prints where they are."""
    tables_of_paper(domain, paper)
    if not find_spec(f"{domain}.figures"):
        raise UserError(f"{domain} draws no figures")
    figures = importlib.import_module(f"{domain}.figures")
    files = figures.write(paper, places.runs, places.results, data_root=places.data)
    if not files:
        raise UserError(f"{domain}/{paper}: there is no figure to draw")
    for file in files:
        print(file)
    return 0


def _film(domain: str, paper: str, tier: Tier, places: Places) -> int:
    """Film the finished runs of a paper in a tier; prints where the films are."""
    tables_of_paper(domain, paper)
    module = f"{domain}.figures"
    film = getattr(importlib.import_module(module), "film", None) if find_spec(module) else None
    if film is None:
        raise UserError(f"{domain} films nothing")
    files = film(paper, tier, places.runs)
    if not files:
        raise UserError(f"{domain}/{paper}: there is no finished run of the {tier} tier to film")
    for file in files:
        print(file)
    return 0


def _export(run: str, domain: str | None, target: Path | None, places: Places) -> int:
    """Write the model of a finished run, given by folder or address; prints where it is."""
    folder = Path(run) if (Path(run) / "config.json").exists() else places.runs / run
    if not (folder / "config.json").exists():
        raise UserError(f"no run {run!r}: neither a run's folder nor an address in {places.runs}/")
    try:
        address = folder.resolve().relative_to(places.runs.resolve())
        home = next((part for part in address.parts if part not in TIERS), "")
    except ValueError:  # it lies elsewhere
        address, home = Path(folder.resolve().name), ""
    if domain is None and home not in domains.DOMAINS:
        raise UserError(f"{folder} is not where the cells of a domain lie; name it with --domain")
    domain = domain or home
    tables_of(domain)
    if not find_spec(f"{domain}.export"):
        raise UserError(f"{domain} exports no models")
    if read_record(folder, str(address)) is None:
        raise UserError(f"{folder}: the run is not finished; it needs a result.json to be exported")
    export = importlib.import_module(f"{domain}.export")
    print(export.write(folder, target or Path("exports") / address))
    return 0


def _data(domain: str, dataset: str | None, places: Places) -> int:
    """Fetch what is missing, verify what is there; one line for each dataset."""
    tables_of(domain)
    data = importlib.import_module(f"{domain}.data")
    names = [dataset] if dataset else list(data.DATASETS)
    if unknown := set(names) - set(data.DATASETS):
        known = ", ".join(data.DATASETS)
        raise UserError(f"{domain} has no dataset {unknown.pop()!r}; it has: {known}")
    failed = 0
    for name in names:
        started = time.monotonic()
        try:
            data.fetch(name, places.data)
            print(f"{name}: ready in {places.data} ({time.monotonic() - started:.1f} s)")
        except UserError as error:
            failed += 1
            print(error, file=sys.stderr)
    return 1 if failed else 0


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 0,1,2") from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
