"""Running chosen cells, each in its own process, and measuring the tables that they fill."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from rich.console import Console

from shared.command.cells import Chosen, Places
from shared.command.plan import lines_of, plan_table, steps_of
from shared.command.pool import Pool, jobs_of
from shared.errors import UserError, first_of, lacking, not_installed, program
from shared.experiment.frame import Frame, load, unfinished
from shared.experiment.run_folders import INTERRUPTED, check_config
from shared.experiment.tables import Cell
from shared.report.console import Terminal, say
from shared.report.measuring import measure, narrowed
from shared.report.wording import counted, named_seeds, published_value

FEW = 2  # commits that are listed by name


def plan_cells(chosen: Sequence[Chosen], places: Places, options: Namespace) -> int:
    """Print which cells are done and what the rest would cost; returns the exit code.

    With ``--cells`` print the cells still to run instead, as lines of an array job.
    """
    console = Console(stderr=options.cells is not None)
    _distinct_runs(chosen, places)
    _print_undeclared_seeds(chosen, console)
    frame = joined(chosen, places)
    to_run = _without_recorded(chosen, frame, places, options, console)
    if options.cells is not None:
        for line in lines_of(to_run, places, options, console):
            print(line)
        return 0
    seen: set[str] = set()
    left = {cell.address for selected in to_run for cell in selected.cells}
    for selected in chosen:
        recorded = {cell.address for cell in selected.cells} - left
        if len(recorded) < len(selected.cells):
            plan = plan_table(*selected, places, frame, jobs_of(options), seen, recorded)
            console.print(plan, crop=False)
    return 0


def run_cells(chosen: Sequence[Chosen], places: Places, options: Namespace) -> int:
    """Run the unfinished cells, and print their tables; returns the exit code."""
    console = Console()
    _print_undeclared_seeds(chosen, console)
    frame = joined(chosen, places)
    to_run = _without_recorded(chosen, frame, places, options, console)
    pool = run_waiting(to_run, places, options, console)
    if not pool.interrupted:
        records = frame if to_run != list(chosen) else None
        show_tables(chosen, places, pool.outcomes, console, records)
    return print_ending(console, pool, again=options.again)


def joined(chosen: Sequence[Chosen], places: Places) -> Frame:
    """The tables of the chosen cells with their runs, and but for the smoke tier their records."""
    smoke = chosen[0].tier == "smoke"
    return load(
        [selected.table for selected in chosen],
        runs=places.runs,
        results=None if smoke else places.results,
        tiers=("smoke",) if smoke else ("paper", "short"),
        also=[cell for selected in chosen for cell in selected.cells],
    )


def _without_recorded(
    chosen: Sequence[Chosen], frame: Frame, places: Places, options: Namespace, console: Console
) -> list[Chosen]:
    """The cells but for those whose number is that of a committed record, which is printed.

    A run that was begun here, by ``--again``, goes on.
    """
    if options.again or options.cell:
        return list(chosen)
    to_run = []
    for table, cells in chosen:
        commits = {
            found.cell.address: str(found.record.environment["commit"])[:7]
            for line in frame.of(table, cells[0].tier)
            if line.counts and line.source and line.source.origin == "record"
            if (found := line.measurement)
        }
        folders = {cell.address: places.runs / cell.folder for cell in cells}
        recorded = {
            address
            for address, folder in folders.items()
            if address in commits and (not folder.exists() or (folder / "result.json").exists())
        }
        rest = tuple(cell for cell in cells if cell.address not in recorded)
        if recorded:
            names = sorted({commits[address] for address in recorded})
            of = ", ".join(names) if len(names) <= FEW else f"of {len(names)} commits"
            one = len(recorded) == 1
            all_of = "" if rest or one else "nothing to train: all "
            have = f"{all_of}{counted(len(recorded), 'cell')} {'has' if one else 'have'}"
            again = f"to train {'it' if one else 'them'} here add --again"
            say(console, f"{table.address}: {have} committed results ({of}); {again}")
        if rest:
            to_run.append(Chosen(table, rest))
    return to_run


def _print_undeclared_seeds(chosen: Sequence[Chosen], console: Console) -> None:
    """Print which seeds no table declares, and what becomes of them."""
    for table, cells in chosen:
        declared = {(cell.row, cell.column, cell.seed) for cell in table.cells(cells[0].tier)}
        seeds_of_row: dict[str, set[int]] = {cell.row: set() for cell in cells}
        for cell in cells:
            if (cell.row, cell.column, cell.seed) not in declared:
                seeds_of_row[cell.row].add(cell.seed)
        rows_of_seeds: dict[tuple[int, ...], list[str]] = {}
        for row, undeclared in seeds_of_row.items():
            rows_of_seeds.setdefault(tuple(sorted(undeclared)), []).append(row)
        rows_of_seeds.pop((), None)
        for seeds, rows in rows_of_seeds.items():
            where = "" if len(rows) == len(seeds_of_row) else f" of {'; '.join(rows)}"
            what = f"{named_seeds(seeds)}{where} {'is' if len(seeds) == 1 else 'are'} not declared"
            text = f"{table.address}: {what}: run and kept, in no table; compare uses them"
            say(console, text)


def show_tables(
    chosen: Sequence[Chosen],
    places: Places,
    outcomes: dict[str, str],
    console: Console,
    records: Frame | None = None,
) -> None:
    """Print the rows and columns of the chosen cells, with the reasons for those without a result.

    Committed records of the frame ``records`` are shown where there is no run.
    """
    for table, cells in chosen:
        tier = cells[0].tier
        frame = load([table], runs=places.runs, tiers=(tier,), status=outcomes, before=records)
        measured = measure(table, tier, frame.of(table, tier))
        rows, columns, seeds = (
            {getattr(cell, name) for cell in cells} for name in ("row", "column", "seed")
        )
        terminal = Terminal(narrowed(measured, rows, columns, seeds), places.results)
        console.print(terminal, crop=False)
    if chosen and chosen[0].tier == "smoke":
        words = f"{chosen[0].table.domain} {chosen[0].table.paper}"
        say(console, f"The tables: {program()} {words}; their cost: {program()} plan {words}")


def run_waiting(
    chosen: Sequence[Chosen], places: Places, options: Namespace, console: Console
) -> Pool:
    """Run the unfinished cells; the returned pool has the outcomes of those without a result."""
    waiting = unfinished_cells(chosen, places, options, console)
    pool = Pool(places, options, console, main_metrics(chosen))
    _check_known(waiting)
    if with_data := pool.leave_out(waiting):
        pool.run(with_data)
        # What this command left to another one may be done by now.
        without = [cell for cell in waiting if cell.address in pool.outcomes]
        left = {cell.address for cell in unfinished(without, places.runs)}
        pool.outcomes = {name: why for name, why in pool.outcomes.items() if name in left}
    return pool


def _check_known(cells: Sequence[Cell]) -> None:
    """Refuse what no cell could run with: an extra that is not installed, a batch without data."""
    for domain in dict.fromkeys(cell.domain for cell in cells):
        if libraries := not_installed(domain):
            raise UserError(lacking(domain, f"{', '.join(libraries)} not installed"))
    for cell in cells:
        if steps_of(cell) == 0:
            size = getattr(cell.config, "batch_size", None)
            why = f"batch_size {size} is larger than its training data"
            raise UserError(f"{cell.address}: {why}; lower it: --set batch_size=N")


def main_metrics(chosen: Sequence[Chosen]) -> dict[str, tuple[str, str]]:
    """By address the metric of a cell's first column, and what the paper gives there, if anything.

    No published number applies to a user's cells or to the embedded data of smoke.
    """
    metrics: dict[str, tuple[str, str]] = {}
    for table, cells in chosen:
        labels = {row.label: row.published for row in table.rows}
        for cell in cells:
            metric = table.metric_of(table.column_of(cell.tier, cell.column))
            label = None if cell.own or cell.tier == "smoke" else labels.get(cell.row)
            value = table.published.value(label, cell.column) if label else None
            metrics.setdefault(cell.address, (metric, published_value(value) if value else ""))
    return metrics


def unfinished_cells(
    chosen: Sequence[Chosen], places: Places, options: Namespace, console: Console
) -> list[Cell]:
    """The unfinished cells, or with --again all of them."""
    places.runs.mkdir(parents=True, exist_ok=True)
    cells = _distinct_runs(chosen, places, again=options.again)
    waiting = cells if options.again else unfinished(cells, places.runs)
    if done := len(cells) - len(waiting):
        console.print(f"{counted(done, 'run')} done already")
    return waiting


def print_ending(console: Console, pool: Pool, *, again: bool) -> int:
    """Print why cells have no result; returns the exit code."""
    if pool.interrupted:
        without = " without --again" if again else ""
        console.print(f"interrupted; rerun the same command{without} to resume")
        return INTERRUPTED
    by_reason: dict[str, list[str]] = {}
    for address, why in pool.outcomes.items():
        by_reason.setdefault(why, []).append(address)
    for why, addresses in by_reason.items():
        addresses.sort()  # whichever of them ended first
        most = len(addresses) if len(addresses) <= FEW + 1 else 1
        print(f"{first_of(addresses, most)}: {why}", file=sys.stderr)
    return 1 if by_reason else 0


def _distinct_runs(chosen: Sequence[Chosen], places: Places, *, again: bool = False) -> list[Cell]:
    """One cell for each run, which columns and tables may share.

    Unless they run again, their configurations are compared with those of the runs here: a conflict
    must not surface after hours.
    """
    cells: dict[str, Cell] = {}
    for cell in (cell for selected in chosen for cell in selected.cells):
        if cells.setdefault(cell.key, cell) is cell and not again:
            check_config(places.runs / cell.folder, cell.config)
    return list(cells.values())
