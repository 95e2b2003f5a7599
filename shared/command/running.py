"""Running chosen cells, each in its own process, and printing the tables that they fill."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from shared.command.domains import Chosen
from shared.command.places import Places, finished, measure, run_folder, settle
from shared.command.plan import planned
from shared.command.pool import Pool, default_jobs
from shared.experiment.records import read_json
from shared.experiment.runs import INTERRUPTED, check_config, set_aside
from shared.experiment.store import forget
from shared.experiment.tables import Cell
from shared.report.console import terminal
from shared.report.measuring import narrowed
from shared.report.wording import counted, printed_value


def plan_cells(chosen: Sequence[Chosen], places: Places, options: argparse.Namespace) -> int:
    """Print what of the cells is done and what the rest takes; returns the exit code."""
    console = Console()
    _checked(chosen, places)
    jobs = options.jobs or default_jobs(options.threads)
    counted: set[str] = set()
    for each in chosen:
        console.print(planned(each.table, each.cells, places, jobs, counted))
    return 0


def run_cells(chosen: Sequence[Chosen], places: Places, options: argparse.Namespace) -> int:
    """Run what is not done of the cells, and print their tables; returns the exit code."""
    console = Console()
    if options.slurm:
        from shared.command import slurm

        waiting = not_done(chosen, places, options, console)
        if options.again:
            move_aside(waiting, places, console)
        return slurm.submit(chosen, waiting, places, options, console) if waiting else 0
    pool = run_waiting(chosen, places, options, console)
    show_tables(chosen, places, pool.outcomes, console)
    return say_how_it_went(console, pool, again=options.again)


def show_tables(
    chosen: Sequence[Chosen], places: Places, outcomes: dict[str, str], console: Console
) -> None:
    """Print the rows and columns of the tables that the cells lie in.

    Args:
        chosen: the cells.
        places: where their runs lie.
        outcomes: by address, why a cell has no result.
        console: where to.
    """
    for each in chosen:
        measured = measure(each.table, each.cells[0].tier, places, outcomes)
        rows, columns = ({getattr(cell, of) for cell in each.cells} for of in ("row", "column"))
        console.print(terminal(narrowed(measured, rows, columns)))


def run_waiting(
    chosen: Sequence[Chosen],
    places: Places,
    options: argparse.Namespace,
    console: Console,
    *,
    own: bool = False,
) -> Pool:
    """Run what is not done of the cells; the pool then says what kept some from being done.

    Args:
        chosen: the cells.
        places: where their runs lie.
        options: how to run them.
        console: where progress is shown.
        own: whether they are someone's own, see :class:`shared.command.pool.Pool`.
    """
    waiting = not_done(chosen, places, options, console)
    pool = Pool(
        places,
        options.jobs or default_jobs(options.threads),
        threads=options.threads,
        deterministic=options.deterministic,
        allow_missing=options.allow_missing,
        download=not options.no_download,
        console=console,
        own=own,
        main=main_metrics(chosen),
        minutes=options.minutes,
    )
    if waiting:
        pool.run(waiting, (lambda: move_aside(waiting, places, console)) if options.again else None)
    return pool


def main_metrics(chosen: Sequence[Chosen]) -> dict[str, tuple[str, str]]:
    """By address the metric of a cell's first column, and what the paper prints there, if any.

    On the embedded data of the smoke tier nothing is printed.
    """
    found: dict[str, tuple[str, str]] = {}
    for each in chosen:
        table = each.table
        labels = {row.label: row.published for row in table.rows}
        for cell in each.cells:
            columns = {column.label: column for column in table.columns_of(cell.tier)}
            label = labels.get(cell.row)  # someone's own row stands in no table
            value = table.published.value(label, cell.column) if label else None
            printed = "" if value is None or cell.tier == "smoke" else printed_value(value)
            found.setdefault(cell.address, (table.metric_of(columns[cell.column]), printed))
    return found


def not_done(
    chosen: Sequence[Chosen], places: Places, options: argparse.Namespace, console: Console
) -> list[Cell]:
    """What is not done of the cells, or all of them to be run again; the cheapest first."""
    places.runs.mkdir(parents=True, exist_ok=True)
    cells = _checked(chosen, places, again=options.again)
    waiting = [cell for cell in cells if options.again or finished(cell, places) is None]
    left = {cell.key for cell in waiting}
    every = {cell.address: cell.key for each in chosen for cell in each.cells}
    if ready := sum(key not in left for key in every.values()):
        console.print(f"{counted(ready, 'cell')} done already")
    return _cheapest_first(waiting, chosen)


def _cheapest_first(cells: Sequence[Cell], chosen: Sequence[Chosen]) -> list[Cell]:
    """The cells in such an order that most of a table is there long before its largest column."""
    minutes = {
        (each.table.address, column.label): column.minutes
        for each in chosen
        for tier in each.table.tiers
        for column in each.table.columns_of(tier)
    }
    return sorted(cells, key=lambda cell: minutes[cell.table_address, cell.column])


def say_how_it_went(console: Console, *pools: Pool, again: bool) -> int:
    """Say what kept cells from being done; returns the exit code."""
    if any(pool.interrupted for pool in pools):
        without = " without --again" if again else ""
        console.print(f"interrupted; the same command{without} goes on from here")
        return INTERRUPTED
    outcomes = [each for pool in pools for each in pool.outcomes.items()]
    for address, why in outcomes:
        print(f"{address}: {why}", file=sys.stderr)
    return 1 if outcomes else 0


def _every(chosen: Sequence[Chosen]) -> list[Cell]:
    """One cell for each run: columns and tables may read theirs from one and the same."""
    cells: dict[str, Cell] = {}
    for each in chosen:
        for cell in each.cells:
            cells.setdefault(cell.key, cell)
    return list(cells.values())


def _checked(chosen: Sequence[Chosen], places: Places, *, again: bool = False) -> list[Cell]:
    """The cells, checked; before anything runs, as a conflict must not come up after hours."""
    settle(places, chosen[0].table.domain)
    cells = _every(chosen)
    for cell in cells if not again else ():
        check_config(run_folder(places, cell), cell.config)
    return cells


def move_aside(cells: Sequence[Cell], places: Places, console: Console) -> None:
    """Move every run of the cells aside, and say so; their encoders leave the store."""
    moved = []
    for cell in cells:
        if (folder := run_folder(places, cell)).exists():
            if (environment := folder / "environment.json").is_file():
                forget(places.store, read_json(environment))
            moved.append(set_aside(folder))
    if moved:
        where = f"{moved[0]}{', ...' if len(moved) > 1 else ''}"
        text = f"moved {counted(len(moved), 'run')} aside: {where}"
        console.print(text, soft_wrap=True, markup=False)
