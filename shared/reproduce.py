"""The command line: plan the cells of a table, run each in its own process, report.

Exit codes: 0 all is done; 1 a cell failed or its data are missing; 2 the input cannot be used;
75 interrupted, the same command goes on.
"""

import argparse
import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as TextTable

from shared import report, report_html, verify
from shared.data import MissingData, data_root
from shared.errors import UserError
from shared.history import differences, home
from shared.records import Damaged, Record, read_failure, read_record, read_records
from shared.runs import (
    INTERRUPTED,
    Conflict,
    Interrupted,
    Locked,
    Run,
    adopt,
    check_config,
    record_failure,
    set_aside,
)
from shared.tables import TIERS, Cell, Config, Table, Tier, canonical, canonical_json, slug

DOMAINS = ("vision", "text", "rl", "graph", "video")
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
# Where the plan has its figures from.
SOURCES = {
    "measured": "measured on this machine",
    "estimated": "estimated by a calibration on this machine",
    "declared": "declared for one CPU core",
}


@dataclass(frozen=True)
class Places:
    """Where things lie."""

    runs: Path
    results: Path
    data: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {_describe_os_error(error)}", file=sys.stderr)
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


def tables_of(domain: str) -> dict[str, tuple[Table, ...]]:
    """The tables that a domain declares, by paper.

    Raises:
        UserError: no such domain, or none of its tables can be run yet.
    """
    if domain not in DOMAINS:
        raise UserError(f"no domain {domain!r}; domains are: {', '.join(DOMAINS)}")
    if not _present(domain):
        there = ", ".join(filter(_present, DOMAINS))
        raise UserError(f"{domain} is not implemented yet; implemented: {there}")
    tables: dict[str, tuple[Table, ...]] = importlib.import_module(f"{domain}.tables").TABLES
    return tables


def _present(domain: str) -> bool:
    return bool(find_spec(domain) and find_spec(f"{domain}.tables"))


def _tables_of_paper(domain: str, paper: str) -> tuple[Table, ...]:
    tables = tables_of(domain)
    if paper not in tables:
        raise UserError(f"{domain} has no paper {paper!r}; it has: {', '.join(tables)}")
    return tables[paper]


def _choose(
    domain: str, paper: str, options: argparse.Namespace
) -> list[tuple[Table, tuple[Cell, ...]]]:
    tables = chosen = _tables_of_paper(domain, paper)
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
    for table in tables_of(domain).get(paper, ()):
        if table.name == name:
            if tier not in table.tiers:
                raise UserError(_no_part(table, tier))
            seeds = (int(seed.removeprefix("seed-")),)
            return table, table.cells(tier, row=row, column=column, seeds=seeds)
    raise UserError(f"no table {domain}/{paper}/{name}; cells are addressed as {form}")


# ---- running ------------------------------------------------------------------------------------


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
            check_config(_home(places, cell), cell.config)
    jobs = options.jobs or _default_jobs(options.threads)
    if options.plan:
        estimates = _estimate(cells, places, options.threads, console)
        for table, some in chosen:
            console.print(_plan(table, some, places, jobs, estimates))
        return 0

    places.runs.mkdir(parents=True, exist_ok=True)
    minutes = {
        (table.address, column.label): column.minutes
        for table, _ in chosen
        for column in table.columns_of(tier)
    }
    if options.again:
        _set_aside(cells, places, console)
    waiting = [cell for cell in cells if _finished(cell, places) is None]
    # The cheapest first: most of a table is there long before its largest column.
    waiting.sort(key=lambda cell: minutes[cell.table_address, cell.column])
    pool = _Pool(
        places,
        jobs,
        threads=options.threads,
        allow_missing=options.allow_missing,
        download=not options.no_download,
        console=console,
    )
    for why, count in Counter(map(report.unavailable, every)).items():
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
        console.print(report.terminal(measured))
    if pool.interrupted:
        without = " without --again" if options.again else ""
        console.print(f"interrupted; the same command{without} goes on from here")
        return INTERRUPTED
    for address, why in pool.outcomes.items():
        print(f"{address}: {why}", file=sys.stderr)
    return 1 if pool.outcomes else 0


def _home(places: Places, cell: Cell) -> Path:
    """The folder of a cell's run."""
    return home(places.runs, cell.address, type(cell.config))


def _finished(cell: Cell, places: Places) -> Record | None:
    """The finished run of a cell; None, too, for a damaged one, which is refused when run."""
    return _undamaged(_home(places, cell), cell.address)


def _undamaged(folder: Path, address: str) -> Record | None:
    try:
        return read_record(folder, address)
    except Damaged:
        return None


def _set_aside(cells: Sequence[Cell], places: Places, console: Console) -> None:
    """Move every run of the cells aside, and say so."""
    moved = []
    for cell in cells:
        while (folder := _home(places, cell)).exists():  # at an earlier address, too
            moved.append(set_aside(folder))
    if moved:
        where = f"{moved[0]}{', ...' if len(moved) > 1 else ''}"
        console.print(f"{len(moved)} runs were moved aside: {where}", soft_wrap=True, markup=False)


def measure(
    table: Table, tier: Tier, places: Places, outcomes: dict[str, str], *, results: bool = False
) -> report.Measured:
    """The table as the runs on this disk fill it; with ``results`` also the committed records."""
    records: list[Record] = []
    status = dict(outcomes)
    for cell in table.cells(tier):
        folder = _home(places, cell)
        try:
            record = read_record(folder, cell.address)
            if record is not None:
                records.append(record)
            elif cell.address not in status:
                status[cell.address] = read_failure(folder) or report.NOT_RUN
        except Damaged as error:
            status[cell.address] = f"{report.REFUSED}: {error}"
    figures: tuple[str, ...] = ()
    if results:  # of two records that count for one cell, the report takes the later: the local
        records = [*read_records(places.results), *records]
        figures = report.read_figures(places.results, table, tier)
    return report.measure(table, tier, records, status, figures)


def twins_of(cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    """By address, the other cells of the domain and tier with an equal configuration.

    Two papers print the same baselines: what one table has run, another need not run again.
    """
    if not cells:
        return {}
    wanted = {canonical_json(cell.config) for cell in cells}
    by_config: dict[str, dict[str, None]] = {text: {} for text in wanted}
    for tables in tables_of(cells[0].domain).values():
        for table in tables:
            for cell in table.cells(cells[0].tier):
                text = canonical_json(cell.config)
                if text in wanted and not cell.unavailable:
                    by_config[text][cell.address] = None
    return {
        cell.address: tuple(
            address for address in by_config[canonical_json(cell.config)] if address != cell.address
        )
        for cell in cells
    }


class _Pool:
    """Runs cells side by side, each in a process of its own that starts with everything imported.

    Processes are forked from a server that has imported the domain and computed nothing: that is
    fast, and safe for threads, CUDA and renderers.
    """

    def __init__(
        self,
        places: Places,
        jobs: int,
        *,
        threads: int,
        allow_missing: bool,
        download: bool,
        console: Console,
    ) -> None:
        self.places = places
        self.jobs = jobs
        self.threads = threads
        self.allow_missing = allow_missing
        self.download = download
        self.console = console
        self.interrupted = False
        self.outcomes: dict[str, str] = {}  # by address, why a cell has no result
        self._waiting: list[Cell] = []
        self._twins: Mapping[str, tuple[str, ...]] = {}
        self._running: dict[
            Any, tuple[Cell, Any]
        ] = {}  # by the pipe that the process talks through
        self._tried: set[str] = set()  # datasets that could not be fetched

    def run(self, cells: list[Cell], twins: Mapping[str, tuple[str, ...]]) -> None:
        """Run the cells; what kept some from being done is then in ``outcomes``.

        Args:
            cells: of one domain.
            twins: by address, where an equal run may lie; see :func:`twins_of`.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["shared.reproduce", f"{cells[0].domain}.train", "torch.utils.tensorboard"]
        )
        workers = max(1, (os.cpu_count() or 1) // min(self.jobs, len(cells)))
        self._waiting, self._twins, told = list(cells), twins, False
        with _asked_to_stop() as asked, self._progress(len(cells)) as show:
            while self._running or (self._waiting and not asked):
                while len(self._running) < self.jobs and not asked and (cell := self._next()):
                    here, there = context.Pipe()
                    options = (self.threads, workers, self.allow_missing)
                    given = (cell, self._twins[cell.address], self.places, *options, there)
                    process = context.Process(target=_work, args=given, name=cell.address)
                    process.start()
                    there.close()
                    self._running[here] = (cell, process)
                if asked and not told:
                    told = True
                    for _, process in self._running.values():
                        process.terminate()
                for pipe in wait(list(self._running), timeout=0.2):
                    self._listen(pipe, show, stopping=bool(asked))
        self.interrupted |= bool(asked and self._waiting)

    def _next(self) -> Cell | None:
        """Take the first cell that waits, but for those whose twin is running."""
        running = {cell.address for cell, _ in self._running.values()}
        for cell in self._waiting:
            if running.isdisjoint(self._twins[cell.address]):
                self._waiting.remove(cell)
                return cell
        return None

    def _listen(self, pipe: Any, show: Callable[..., None], *, stopping: bool) -> None:
        """Take one message of a process; any but progress is its last."""
        cell, process = self._running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            why = f"failed: its process ended with code {process.exitcode}"
            # Told to stop before it could listen, a process just ends.
            message = ("interrupted",) if stopping else ("failed", "", why)
        if message[0] == "progress":
            show(cell, message)
            return
        process.join()
        del self._running[pipe]
        pipe.close()
        if message[0] == "missing" and self._fetch(cell, message[1]):
            self._waiting.insert(0, cell)
            return
        if message[0] == "interrupted":
            self.interrupted = True
        elif message[0] != "done":
            self.outcomes[cell.address] = message[-1]
            if message[0] != "refused":  # a refused folder belongs to another run
                self._note(cell, message)
        show(cell, message)

    def _note(self, cell: Cell, message: tuple[Any, ...]) -> None:
        _, trace, why = message
        with contextlib.suppress(OSError):  # a full disk is the failure already reported
            record_failure(_home(self.places, cell), why, trace)

    def _fetch(self, cell: Cell, name: str) -> bool:
        """Try once to fetch a dataset that a cell misses."""
        if not self.download or name in self._tried:
            return False
        self._tried.add(name)
        self.console.print(f"fetching {name} ...")
        try:
            importlib.import_module(f"{cell.domain}.data").fetch(name, self.places.data)
        except (UserError, OSError) as error:
            self.console.print(f"fetching {name} failed: {error}", soft_wrap=True)
            return False
        return True

    @contextlib.contextmanager
    def _progress(self, total: int) -> Iterator[Any]:
        """A function to show (cell, message) with: bars on a terminal, else a line per cell."""
        done = 0

        def line(cell: Cell, message: tuple[Any, ...]) -> None:
            nonlocal done
            if message[0] != "progress":
                done += 1
                self.console.print(
                    f"[{done}/{total}] {cell.address}: {_sentence(message)}",
                    soft_wrap=True,
                    highlight=False,
                    markup=False,
                )

        if not self.console.is_terminal:
            yield line
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        with Progress(*columns, console=self.console) as bars:
            every = bars.add_task("cells", total=total)
            single: dict[str, Any] = {}

            def show(cell: Cell, message: tuple[Any, ...]) -> None:
                if message[0] == "progress":
                    _, count, of, what = message
                    if cell.address not in single:
                        single[cell.address] = bars.add_task("", total=of)
                    label = f"{cell.row} / {cell.column} / seed {cell.seed}: {what}"
                    bars.update(single[cell.address], completed=count, total=of, description=label)
                    return
                line(cell, message)
                bars.advance(every)
                if cell.address in single:
                    bars.remove_task(single.pop(cell.address))

            yield show


def _work(
    cell: Cell,
    twins: tuple[str, ...],
    places: Places,
    threads: int,
    workers: int,
    allow_missing: bool,
    pipe: Connection,
) -> None:
    """The process of one cell: run it, and say through the pipe how it went."""
    import torch

    # One cell gives the same numbers to the bit however many run beside it; with another number
    # of threads the last bits may differ, so that is not left to the machine.
    torch.set_num_threads(threads)
    # Bits are promised on the CPU alone: on a GPU that would cost much of its speed.
    torch.use_deterministic_algorithms(not torch.cuda.is_available(), warn_only=True)
    torch.backends.cudnn.benchmark = True
    folder = _home(places, cell)

    def progress(done: int, total: int, what: str) -> None:
        with contextlib.suppress(OSError):
            pipe.send(("progress", done, total, what))

    run = Run(
        folder,
        cell.config,
        tier=cell.tier,
        workers=workers,
        data_root=places.data,
        allow_missing=allow_missing,
        progress=progress,
    )
    try:
        domain = importlib.import_module(cell.domain)
        with run:
            _stop_with_parent(run)
            done = _equal_runs(cell, twins, places)
            if read_record(folder, cell.address) is None and done:
                adopt(folder, *done[0], cell.config)
            elif read_record(folder, cell.address) is None:
                run.finish(domain.run(cell.config, run))
            record = read_record(folder, cell.address)
        assert record is not None  # just written
        message: tuple[Any, ...] = ("done", record.result, record.environment.get("run_at"))
    except Interrupted:
        message = ("interrupted",)
    except MissingData as error:
        why = f"{report.NOT_RUN}: data missing; fetch it with: {error.command}"
        message = ("missing", error.name, why)
    except (Locked, Conflict, Damaged) as error:
        message = ("refused", str(error))
    except OSError as error:
        message = ("failed", traceback.format_exc(), f"failed: {_describe_os_error(error)}")
    except UserError as error:
        message = ("failed", traceback.format_exc(), f"failed: {error}")
    except FloatingPointError as error:
        why = f"failed: {error}"
        if run.saved_step is not None:
            file = folder / "checkpoint.pt"
            why = f"{why}; last good checkpoint: {file} at step {run.saved_step}"
        message = ("failed", traceback.format_exc(), why)
    except Exception as error:
        why = f"failed: {type(error).__name__}: {error}".splitlines()[0]
        if _is_out_of_memory(error):
            why = f"failed: {_describe_out_of_memory(cell.config)}"
        message = ("failed", traceback.format_exc(), why)
    with contextlib.suppress(OSError):  # the parent is gone; the files say it all
        pipe.send(message)


def _equal_runs(cell: Cell, twins: Sequence[str], places: Places) -> list[tuple[Path, str]]:
    """Folder and address of the finished runs that have the cell's configuration to this day."""
    found = []
    for twin in twins:
        folder = home(places.runs, twin, type(cell.config))
        record = _undamaged(folder, twin)
        if record is not None and not differences(record.config, cell.config):
            found.append((folder, twin))
    return found


def _stop_with_parent(run: Run) -> None:
    """Save and stop when the process that started this one is gone."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            run.stopping = True

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """A list that fills when SIGTERM or SIGINT arrives."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sentence(message: tuple[Any, ...]) -> str:
    if message[0] == "done":
        numbers = {
            name: value
            for name, value in message[1]["metrics"].items()
            if isinstance(value, (int, float))
        }
        shown = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        whose = f"taken over from {message[2]}: " if message[2] else ""
        return f"{whose}{shown} ({message[1]['seconds']:.0f} s)"
    if message[0] == "interrupted":
        return "interrupted, state saved"
    return str(message[-1])


def _describe_os_error(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return (
        f"cannot read or write{where}: {error.strerror or error}; what was finished before is "
        f"intact; free space or permissions there, or choose another folder (--runs, --results)"
    )


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The allocator of the CPU has no exception of its own, only these words.
    words = ("not enough memory", "can't allocate memory")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def _describe_out_of_memory(config: Config) -> str:
    size = getattr(config, "batch_size", None)
    return "out of memory" if size is None else f"out of memory; lower batch_size ({size})"


def _default_jobs(threads: int) -> int:
    import torch

    return 1 if torch.cuda.is_available() else max(1, (os.cpu_count() or 1) // threads)


# ---- plan, report, data -------------------------------------------------------------------------


def _plan(
    table: Table,
    cells: tuple[Cell, ...],
    places: Places,
    jobs: int,
    estimates: Mapping[str, tuple[float, float]],
) -> TextTable:
    """What is done, and what the rest will take: measured where cells of the column are done."""
    text = TextTable(title=f"{table.address}: {table.title}", title_justify="left")
    for name in ("row", "column", "seeds done", "seeds to run", "minutes each", "memory", "source"):
        left_aligned = name in ("row", "column", "source")
        text.add_column(name, justify="left" if left_aligned else "right")
    cells = tuple({cell.address: cell for cell in cells}.values())
    available = [cell for cell in cells if not cell.unavailable]
    records = {cell.address: _finished(cell, places) for cell in available}
    columns = {column.label: column for column in table.columns_of(cells[0].tier)}
    minutes_left, memory, sources = 0.0, 0.0, set()
    for row, label in dict.fromkeys((cell.row, cell.column) for cell in cells):
        some = [cell for cell in cells if (cell.row, cell.column) == (row, label)]
        if some[0].unavailable:
            text.add_row(row, some[0].source, "", "", "", "", report.unavailable(some[0]))
            continue
        own = [record for cell in some if (record := records[cell.address])]
        left = len(some) - len(own)
        same_column = (records[cell.address] for cell in available if cell.column == label)
        own = own or [record for record in same_column if record]
        source = "declared"
        minutes, gigabytes = columns[label].minutes, columns[label].gigabytes
        if own:
            source = "measured"
            minutes = statistics.median(r.result["seconds"] for r in own) / 60
            gigabytes = max(r.result["peak_memory_bytes"] for r in own) / 1e9
        elif estimate := estimates.get(_without_seed(some[0].config)):
            source = "estimated"
            minutes, gigabytes = estimate
        sources.add(source)
        minutes_left += minutes * left
        memory = max(memory, gigabytes if left else 0.0)
        numbers = (str(len(some) - left), str(left), f"{minutes:.1f}", f"{gigabytes:.1f} GB")
        text.add_row(row, some[0].source, *numbers, source)
    left = sum(record is None for record in records.values())
    known = "; ".join(words for source, words in SOURCES.items() if source in sources)
    caption = [
        f"{left} of {len(available)} cells to run, {jobs} at a time: about "
        f"{minutes_left / jobs:.0f} minutes, {memory * min(jobs, max(left, 1)):.1f} GB of memory, "
        f"{max(1, left // 2)} MB of disk."
    ]
    if len(available) < len(cells):
        caption.append(f"{len(cells) - len(available)} cells are {report.UNAVAILABLE}.")
    if known:
        caption.append(f"Minutes and memory: {known}.")
    text.caption = " ".join(caption)
    text.caption_justify = "left"
    return text


def _estimate(
    cells: Sequence[Cell], places: Places, threads: int, console: Console
) -> dict[str, tuple[float, float]]:
    """Minutes and gigabytes that a domain expects of its cells, by configuration without seed.

    Only for columns without a finished cell; empty for domains that estimate nothing.
    """
    if not cells or not find_spec(f"{cells[0].domain}.estimate"):
        return {}
    import torch

    estimate = importlib.import_module(f"{cells[0].domain}.estimate").estimate
    torch.set_num_threads(threads)  # those of the cells that it speaks for
    measured = {(cell.table, cell.column) for cell in cells if _finished(cell, places)}
    unknown = [cell for cell in cells if (cell.table, cell.column) not in measured]
    examples = {_without_seed(cell.config): cell for cell in unknown}
    found = {}
    with console.status("estimating") as status:
        for number, (key, cell) in enumerate(examples.items(), start=1):
            status.update(f"estimating {number} of {len(examples)}: {cell.row} / {cell.column}")
            found[key] = estimate(cell.config, places.data)
    return found


def _without_seed(config: Config) -> str:
    return canonical_json({k: v for k, v in canonical(config).items() if k != "seed"})


def _report(places: Places) -> int:
    """Write results/ from every finished run of the paper and short tiers."""
    from shared import report_picture  # brings matplotlib, which no cell needs

    shown = []
    for domain in filter(_present, DOMAINS):
        for tables in tables_of(domain).values():
            for table in tables:
                for tier in table.tiers:
                    if tier == "smoke":
                        continue
                    measured = measure(table, tier, places, {}, results=True)
                    if measured.records:
                        shown.append(measured)
                        report.write(places.results, measured)
                        drawn = DOCUMENTS.get(table.address) if tier == "paper" else None
                        if drawn and places.results == RESULTS:
                            report_picture.write(drawn, measured)
                        Console().print(report.terminal(measured))
    report_html.write_index(places.results, shown)
    print(f"{len(shown)} tables written to {places.results}, open {places.results / 'index.html'}")
    return 0


def _verify(domain: str | None, places: Places, options: argparse.Namespace) -> int:
    """Check records and finished runs; with ``--rerun`` run some of the records' cells anew."""
    console = Console()
    papers = [tables_of(each) for each in ([domain] if domain else filter(_present, DOMAINS))]
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
    jobs = options.jobs or _default_jobs(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        new = dataclasses.replace(places, runs=Path(folder))
        pool = _Pool(
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
    _tables_of_paper(domain, paper)
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
    _tables_of_paper(domain, paper)
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
    if domain is None and home not in DOMAINS:
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
