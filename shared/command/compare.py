"""Rows of a table beside each other: declared ones, those with settings, and losses of the user's.

Where a run of the same configuration is finished here, or its record is known, it is reused; the
rest is run, below ``runs/own/`` what a user has changed and as any cell of the table what not.
``--to`` is output, made each time of runs and records; ``records/comparison.json`` there has the
rows, columns and seeds, and which seeds were chosen before any number of theirs was written.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from argparse import Namespace
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import filelock
from rich.console import Console
from rich.text import Text

from shared import functions
from shared.command.cells import Chosen, Places, choose_tables, domain_of, most_helpful
from shared.command.own import (
    apply_settings,
    baseline_of,
    column_metrics,
    load_loss,
    print_changes,
    trainable_rows,
    with_loss,
)
from shared.command.plan import lines_of_comparison, plan_table
from shared.command.pool import jobs_of
from shared.command.running import joined, print_ending, run_waiting
from shared.errors import UserError, first_of
from shared.experiment import frame
from shared.experiment.config import USER_TIER, slug
from shared.experiment.data import writing
from shared.experiment.environment import current_environment
from shared.experiment.files import replacing, write_atomically
from shared.experiment.folders import printable
from shared.experiment.frame import finished, processor_of, refused
from shared.experiment.records import RECORDS, Reason, Record, computed_on, read_json
from shared.experiment.run_folders import LOG
from shared.experiment.tables import Cell, Column, Published, Table, Tier
from shared.objective import Objective, Term
from shared.report.comparison import (
    KEPT,
    WRITTEN,
    Comparison,
    ComparisonRow,
    Number,
    NumberOrigin,
    headline,
    main_grid,
    origins,
    p_of,
    write,
)
from shared.report.console import empty_grid, say
from shared.report.wording import TIER_NOTES, counted, gain_text, named_seeds, shown_metric

FORM = "comparison-v3"
INDEX = "comparison.json"
LOSSES = "losses"  # the folder of the files of the user's losses, beside the records
Coordinates = tuple[str, str, int]  # row, column and seed
Sources = Mapping[Coordinates, NumberOrigin | None]  # None where a run is not there yet
UserLoss = tuple[Path, str, list[str], Term]  # file, function, numbers as given, the loss
STYLES = {"better": "green", "worse": "red", "undecided": "yellow"}


@dataclass(frozen=True)
class Selection:
    """The rows of one table that are compared, before anything runs."""

    table: Table
    tier: Tier
    changed: tuple[str, ...]  # the settings of every row
    own: str  # the name of data of the user's; empty for the table's
    against: str  # label of the baseline
    rows: tuple[ComparisonRow, ...]
    cells: tuple[Cell, ...]  # of the rows
    # By row and column, the seeds that were chosen before a number of it was written.
    declared: Mapping[tuple[str, str], Collection[int]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in which a row has a cell, in the order of the table."""
        labels = {cell.column for cell in self.cells}
        columns = self.table.columns_of(self.tier)
        return tuple(column for column in columns if column.label in labels)

    @property
    def scope(self) -> dict[str, str]:
        """What two comparisons in one folder have in common."""
        return {
            "table": self.table.address,
            "tier": self.tier,
            "data": self.own or "of the table",
            "settings": ", ".join(self.changed) or "none",
        }


@dataclass(frozen=True)
class Known:
    """The finished runs and the records that make a run unnecessary."""

    places: Places
    # By key, the records of others from --records, then the committed ones of this processor.
    records: Mapping[str, Sequence[NumberOrigin]]
    elsewhere: Mapping[str, set[str]]  # by key, other processors with a committed record
    processor: str  # of this machine
    data_hashes: Mapping[str, str]  # of data of the user's, by their name in a configuration

    def sources(self, selection: Selection) -> Sources:
        """The source of each run that is compared."""
        return {_coordinates(cell): self._source(cell, selection.table) for cell in selection.cells}

    def _source(self, cell: Cell, table: Table) -> NumberOrigin | None:
        """The finished run or else the record that is valid for a cell."""
        run = finished(cell, self.places.runs)
        log = self.places.runs / cell.folder / LOG
        here = [NumberOrigin(run, "run here", log)] if run else []
        for source in (*here, *self.records.get(cell.key, ())):
            record = source.record
            if not _is_valid(record.upgraded(type(cell.config)), cell, table):
                continue
            for name, digest in self.data_hashes.items():
                if record.environment["data"].get(name, digest) != digest:
                    raise UserError(
                        f"{name.partition(':')[2]} holds other data than those of {record.address} "
                        f"({source.origin}); rename it, or start over with --again"
                    )
            return dataclasses.replace(
                source, record=dataclasses.replace(record, address=cell.address)
            )
        return None


def compare(options: Namespace, places: Places) -> int:
    """Compare rows with a baseline: run what is missing, print a table, write it with ``--to``.

    With ``plan_only`` nothing is run. Returns the exit code.
    """
    if options.data is None:
        return _compare(options, places)
    # The configuration names data by a path relative to the working directory, which has to be the
    # name of the file alone, so that the same data in another folder give the same run.
    data = Path(os.path.abspath(options.data))
    if not data.exists():
        raise UserError(f"--data {options.data}: there is no such file or folder in {Path.cwd()}")
    options.data = Path(data.name)
    options.to = options.to and options.to.absolute()
    options.records = [folder.absolute() for folder in options.records]
    options.loss = [(file.absolute(), *rest) for file, *rest in options.loss]
    places = Places(*(folder.absolute() for folder in (places.runs, places.results, places.data)))
    with contextlib.chdir(data.parent):
        return _compare(options, places)


def _compare(options: Namespace, places: Places) -> int:
    console = Console(stderr=options.cells is not None)
    selections, known = _select(options, places, console)
    planned_keys: set[str] = set()
    chosen = []
    for selection in selections:
        sources = known.sources(selection)
        _print_sources(console, selection, sources, known)
        missing = tuple(
            cell for cell in selection.cells if options.again or not sources[_coordinates(cell)]
        )
        if missing:
            chosen.append(Chosen(selection.table, missing))
            frame = joined(chosen[-1:], places)
            plan = plan_table(*chosen[-1], places, frame, jobs_of(options), planned_keys)
            console.print(plan, crop=False)
    if options.plan_only:
        if options.cells is not None:
            for line in lines_of_comparison(chosen, places, options, console):
                print(line)
        return 0
    pool = run_waiting(chosen, places, options, console) if chosen else None
    for selection in selections:
        sources = known.sources(selection)
        if not any(sources.values()):
            continue
        comparison = _comparison_of(selection, sources, pool.outcomes if pool else {})
        _print_comparison(console, comparison)
        _print_folders(console, selection, places)
        if options.to is not None:
            with writing(options.to, "choose another folder with --to"):
                kept = options.to / KEPT
                kept.mkdir(parents=True, exist_ok=True)
                with filelock.FileLock(kept / ".lock"):  # others may write there, too
                    _check_earlier(options, selection, {run for run in sources if sources[run]})
                    names = _write(options.to, comparison, selection, console)
            say(console, f"written to {options.to}: {', '.join(names)}, {KEPT}/")
    return print_ending(console, pool, again=options.again) if pool else 0


def _select(options: Namespace, places: Places, console: Console) -> tuple[list[Selection], Known]:
    """A selection for each table that has the rows, and what is known of them."""
    losses: list[UserLoss] = [(*given, load_loss(*given)) for given in options.loss]
    tables, data_hashes = _tables(options, places)
    selections, refusals = [], []
    for table in tables:
        try:
            selections.append(_rows_of(table, options, losses, console))
        except UserError as error:
            refusals.append(error)
    if not selections:
        raise most_helpful(refusals)
    if options.to is not None:
        if len(selections) > 1:
            names = ", ".join(selection.table.name for selection in selections)
            raise UserError(f"--to {options.to} takes one table; choose with --table: {names}")
        selections = [_with_earlier(options, selections[0])]
    cells = [cell for selection in selections for cell in selection.cells]
    return selections, _known(cells, data_hashes, places, options, console)


def _tables(options: Namespace, places: Places) -> tuple[Sequence[Table], Mapping[str, str]]:
    """The tables whose rows are compared, and the hashes of data of the user's by name."""
    domain, *papers = options.words
    if options.data is None:
        return choose_tables(domain, papers[0], options.table, options.tier), {}
    own_data = domain_of(domain).own_data
    if own_data is None:
        raise UserError(f"{domain} compares on its own tasks; omit --data, and name a paper")
    if options.tier == "smoke":
        raise UserError("the smoke tier has data of its own; omit --tier smoke or --data")
    paper = papers[0] if papers else own_data.paper
    name = options.table or (None if papers else own_data.table)
    tables = choose_tables(domain, paper, name, options.tier)
    if len(tables) > 1:
        names = ", ".join(table.name for table in tables)
        raise UserError(f"--data takes the rows of one table; choose with --table: {names}")
    changes, hashes = own_data.read(options.data, places.data)
    # In tables, and not as a formula in a spreadsheet.
    label = printable(options.data.stem).lstrip("=+-@") or "data"
    return [_on_data(tables[0], options.tier, own_data.columns, label, changes)], hashes


def _on_data(
    table: Table, tier: Tier, labels: Sequence[str], name: str, changes: Mapping[str, Any]
) -> Table:
    """The rows of a table on other data, in those of its columns that have these labels, or all."""
    declared = [column for column in table.columns if column.label in labels] or table.columns
    columns = tuple(
        dataclasses.replace(
            column,
            label=name if len(declared) == 1 else column.label,
            run=name if column.run else "",
            changes={**column.changes, **changes},
        )
        for column in declared
    )
    claims = tuple(
        dataclasses.replace(
            claim,
            comparisons=tuple(
                dataclasses.replace(pair, columns=(), beside="") for pair in claim.comparisons
            ),
        )
        for claim in table.claims
    )
    return dataclasses.replace(
        table,
        title=f"Contrastive losses on {name}",
        rows=tuple(dataclasses.replace(row, published=None, in_columns={}) for row in table.rows),
        columns=columns,
        seeds={tier: (0, 1, 2)},
        published=Published("data of one's own", name, (), {}),
        claims=claims,
        seed_exceptions=(),
        failed={},
    )


def _rows_of(
    table: Table, options: Namespace, losses: Sequence[UserLoss], console: Console
) -> Selection:
    """The rows of a table that are asked for, with the user's losses and variants."""
    tier: Tier = options.tier
    choice: dict[str, Any] = {"column": options.column or None, "seeds": options.seeds}
    labels = [*options.rows, *(name for name, settings in options.row if not settings)]
    variants = [(name, settings) for name, settings in options.row if settings]
    baseline = _baseline(table, tier, options, labels)
    if labels or losses or variants:
        labels += [baseline]
    declared = table.cells(tier, row=labels or None, **choice)
    if not any(cell.row == baseline for cell in declared):
        raise UserError(f"{table.address}: {baseline} has no cell in the chosen columns")
    cells = declared
    if options.set:
        cells = apply_settings(declared, options.set)
        print_changes(console, f"{table.address} as declared", declared, cells)
    if options.data is not None:
        cells = tuple(dataclasses.replace(cell, own=True) for cell in cells)
    untrained = {row.label: row.baseline for row in table.rows}
    chosen = dict.fromkeys(cell.row for cell in cells)  # in the order of the table
    rows = [ComparisonRow(label, "", baseline=untrained[label]) for label in chosen]
    of_baseline = [cell for cell in cells if cell.row == baseline]
    for file, name, numbers, loss in losses:
        label = _new_label(", ".join([name, *numbers]), table, rows)
        rows.append(ComparisonRow(label, f"{baseline} with the loss {name} of {file.name}"))
        with_this = tuple(with_loss(cell, loss, label) for cell in of_baseline)
        title = f"{table.address}: {label} is {baseline} with your loss; what differs"
        print_changes(console, title, of_baseline, with_this)
        cells = (*with_this, *cells)  # so that a loss that fails is seen first
    for name, settings in variants:
        row = _only_row(table, tier, name)
        of_row = table.cells(tier, row=row, **choice)
        text = ", ".join(settings)
        label = _new_label(f"{row}, {text}", table, rows)
        rows.append(ComparisonRow(label, f"{row} with {text}", baseline=untrained[row]))
        plain = apply_settings(of_row, options.set) if options.set else of_row
        varied = apply_settings(of_row, [*options.set, *settings])
        if [cell.key for cell in varied] == [cell.key for cell in plain]:
            raise UserError(f"--row {name}: {row} has {text} already")
        cells += tuple(dataclasses.replace(cell, row=label) for cell in varied)
    data = str(options.data or "")
    return Selection(table, tier, tuple(options.set), data, baseline, tuple(rows), cells)


def _baseline(table: Table, tier: Tier, options: Namespace, chosen: list[str]) -> str:
    """The row that the others are compared with: as asked, else the one claims are made against.

    Where that is not among the chosen rows, it is the first of them.
    """
    label = None
    if options.against is not None:
        label = _only_row(table, tier, options.against)
    elif chosen:
        labels = [table.cells(tier, row=name)[0].row for name in chosen]
        has_usual = options.loss or trainable_rows(table, tier)
        usual = baseline_of(table, tier).label if has_usual else ""
        label = usual if usual in labels else labels[0]
    if label is None or options.loss:
        return baseline_of(table, tier, label).label
    return label


def _only_row(table: Table, tier: Tier, name: str) -> str:
    """The label of the row of that name, which may not be a printed label of several."""
    labels = list(dict.fromkeys(cell.row for cell in table.cells(tier, row=name)))
    if len(labels) > 1:
        raise UserError(f"{name!r} names several rows; choose one: {' | '.join(labels)}")
    return labels[0]


def _new_label(label: str, table: Table, rows: Sequence[ComparisonRow]) -> str:
    """The label of a row of the user's: the same whichever rows of the table are chosen."""
    if slug(label) in {slug(row.label) for row in table.rows}:
        label = f"{label} (yours)"
    if slug(label) in {slug(row.label) for row in rows}:
        raise UserError(f"two rows are called {label}; rename the function in one of the files")
    return label


def _is_valid(record: Record, cell: Cell, table: Table) -> bool:
    """Whether a record, in today's form, is of exactly a cell's configuration and possible."""
    result = record.result
    column = table.column_of(cell.tier, cell.column)
    metric = shown_metric(table.metric_of(column), [result["metrics"]])
    return (
        record.config == cell.content
        and result["tier"] in (cell.tier, USER_TIER)
        and result["protocol"] == cell.config.protocol
        and refused(result["metrics"], table, metric) is None
    )


def _known(
    cells: Sequence[Cell],
    data_hashes: Mapping[str, str],
    places: Places,
    options: Namespace,
    console: Console,
) -> Known:
    """What makes a run of these cells unnecessary; says which records of others are of no cell."""
    kinds = {type(cell.config) for cell in cells}
    by_key: dict[str, list[NumberOrigin]] = {}
    for folder in options.records:
        loaded = frame.load((), results=folder, everything=True)
        loaded.check()
        if not loaded.sources:
            raise UserError(f"--records {folder}: no file there ends with {RECORDS}")
        hashes: dict[str, str | None] = {}
        for record in (source.record for source in loaded.sources):
            if hashes.setdefault(record.address, record.sha256) != record.sha256:
                raise UserError(f"--records {folder}: two records of {record.address}; keep one")
        found = frame.by_key(loaded.sources, options.tier, kinds, users=True)
        used = {record.address for cell in cells for record in found.get(cell.key, ())}
        if left := [address for address in hashes if address not in used]:
            text = f"of no chosen row, column, seed or configuration: {first_of(left, 1)}"
            say(console, f"{folder}: {counted(len(left), 'record')} {text}")
        for key, records in found.items():
            by_key.setdefault(key, []).extend(map(_recorded, records))
    processor = computed_on(current_environment(1))
    elsewhere: dict[str, set[str]] = {}
    committed = frame.load((), results=places.results, everything=True, domain=options.words[0])
    committed.check()
    for key, records in frame.by_key(committed.sources, options.tier, kinds).items():
        for record in records:
            if processor_of(record) == processor:
                by_key.setdefault(key, []).append(_recorded(record))
            else:
                elsewhere.setdefault(key, set()).add(processor_of(record))
    return Known(places, by_key, elsewhere, processor, data_hashes)


def _recorded(record: Record) -> NumberOrigin:
    return NumberOrigin(record, f"recorded at {str(record.environment['commit'])[:7]}")


def _with_earlier(options: Namespace, selection: Selection) -> Selection:
    """The selection with the seeds that were chosen before a number was written to the folder."""
    declared: dict[tuple[str, str], Collection[int]] = {}
    for cell in selection.cells:
        declared[cell.row, cell.column] = {*declared.get((cell.row, cell.column), ()), cell.seed}
    declared |= _check_earlier(options, selection, {*map(_coordinates, selection.cells)})
    return dataclasses.replace(selection, declared=declared)


def _check_earlier(
    options: Namespace, selection: Selection, kept: Collection[Coordinates]
) -> dict[tuple[str, str], Collection[int]]:
    """Refuse to lose what the folder of ``--to`` has; the seeds that were chosen before a look.

    Files that only have the names of a comparison's are refused, a comparison of other data or
    settings, and rows or seeds that are not among those ``kept``, but with ``--replace``.
    """
    folder, file = options.to, options.to / KEPT / INDEX
    if not file.exists():
        if names := [name for name in WRITTEN if (folder / name).exists()]:
            raise UserError(
                f"{folder} holds {', '.join(names)} without the {KEPT}/{INDEX} of a comparison, "
                f"and would lose them; choose another --to, or move them away"
            )
        return {}
    content = read_json(file)
    if content.get("form") != FORM:
        raise UserError(f"{file} is not of the form {FORM}; move it away, or choose another --to")
    for name, now in selection.scope.items():
        if content["scope"].get(name) != now:
            raise UserError(
                f"{folder} holds a comparison with {name} {content['scope'].get(name)}, not {now}; "
                f"choose another --to, or the same {name}"
            )
    seeds: dict[str, set[int]] = {}  # by row, of what would be lost
    for run in content["runs"]:
        if (run["row"], run["column"], run["seed"]) not in kept:
            seeds.setdefault(run["row"], set()).add(run["seed"])
    if seeds and not options.replace:
        texts = [f"{row} ({named_seeds(sorted(some))})" for row, some in sorted(seeds.items())]
        raise UserError(
            f"{folder} has what this command would not write: {'; '.join(texts)}; choose them, too "
            f"(--rows, --with, --seeds; --records for those of others), or add --replace"
        )
    return {(each["row"], each["column"]): each["seeds"] for each in content["declared"]}


def _coordinates(cell: Cell) -> Coordinates:
    return cell.row, cell.column, cell.seed


def _print_sources(console: Console, selection: Selection, sources: Sources, known: Known) -> None:
    """Print what is compared with what, and for each row which seeds are there and from where."""
    rows = counted(len(selection.rows), "row")
    address, against = selection.table.address, selection.against
    say(console, f"{address} ({selection.tier} tier): {rows}, compared with {against}")
    columns_by_text: dict[str, list[str]] = {}
    for (row, column), number in _numbers_of(selection, sources, {}, "to run").items():
        columns_by_text.setdefault(f"{row}: {origins(number)}", []).append(column)
    for text, columns in columns_by_text.items():
        where = "" if len(columns) == len(selection.columns) else f" ({', '.join(columns)})"
        say(console, f"  {text}{where}")
    missing = [cell for cell in selection.cells if sources[_coordinates(cell)] is None]
    runs, to_run = ({cell.key for cell in some} for some in (selection.cells, missing))
    say(console, f"  {len(runs) - len(to_run)} of {counted(len(runs), 'run')} there")
    if processors := {name for key in to_run for name in known.elsewhere.get(key, ())}:
        names = ", ".join(sorted(processors))
        say(console, f"  recorded on {names}, not on {known.processor}: run here")


def _numbers_of(
    selection: Selection, found: Sources, outcomes: Mapping[str, str], otherwise: str
) -> dict[tuple[str, str], Number]:
    """By row and column the runs that are there, and by address or ``otherwise`` why not."""
    sources: defaultdict[tuple[str, str], dict[int, NumberOrigin]] = defaultdict(dict)
    missing: defaultdict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for cell in selection.cells:
        place = cell.row, cell.column
        if (source := found[_coordinates(cell)]) is not None:
            sources[place][cell.seed] = source
        else:
            missing[place][cell.seed] = outcomes.get(cell.address, otherwise)
    places = dict.fromkeys((cell.row, cell.column) for cell in selection.cells)
    return {place: Number("", "", sources[place], missing[place]) for place in places}


def _comparison_of(selection: Selection, found: Sources, outcomes: Mapping[str, str]) -> Comparison:
    """The comparison, of what is finished by now."""
    table, columns = selection.table, selection.columns
    by_place = _numbers_of(selection, found, outcomes, Reason.NOT_RUN)
    results: dict[str, list[Mapping[str, Any]]] = {column.label: [] for column in columns}
    for (_, column), number in by_place.items():
        results[column] += [record.result["metrics"] for record in number.records]
    metrics = column_metrics(table, columns, results)
    numbers = {
        (row.label, column): dataclasses.replace(
            by_place.get((row.label, column), Number("", "")),
            metric=metric,
            unit=table.unit_of(metric),
        )
        for column, metric in metrics.items()
        for row in selection.rows
    }
    records = [record for number in by_place.values() for record in number.records]
    protocols = dict.fromkeys(str(record.result["protocol"]) for record in records)
    is_declared = not selection.changed and not selection.own
    first_added = table.post_hoc_seeds.get(selection.tier, {}) if is_declared else {}
    post_hoc = {
        (row, column)
        for (row, column), number in by_place.items()
        if number.sources.keys() - {*selection.declared.get((row, column), number.sources)}
        or any(seed >= first_added.get(row, seed + 1) for seed in number.sources)
    }
    return Comparison(
        table.address,
        table.title,
        selection.tier,
        selection.changed,
        selection.own or " and ".join(metrics),
        ", ".join(protocols) or table.protocol,
        selection.against,
        selection.rows,
        tuple(column for column in columns if column.label in metrics),
        numbers,
        {metric: table.unit_of(metric) for metric in table.also if metric not in metrics.values()},
        post_hoc,
    )


def _copy_losses(folder: Path, selection: Selection, console: Console) -> None:
    """Copy the files of the user's losses, by row, for whoever gets the records."""
    functions_by_row = {
        cell.row: objective.loss.function
        for cell in selection.cells
        if isinstance(objective := getattr(cell.config, "objective", None), Objective)
    }
    for row, function in functions_by_row.items():
        if not isinstance(function, FunctionType) or "@" not in functions.identity(function):
            continue  # a loss of the project
        if not functions.is_as_loaded(function):
            say(console, f"{row}: the file of its loss is not that of its runs; it is not copied")
            continue
        for name, file in functions.files_of(function).items():
            copy = folder / slug(row) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with replacing(copy) as part:
                shutil.copyfile(file, part)


def _print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a line for each row and column: number, gain and word."""
    several = len(comparison.columns) > 1
    names = ("method", *("column",) * several, "mean ± sd", "seeds", "gain, 95% interval", "p", "")
    grid = empty_grid(names, left=("method", "column", ""))
    for label, *texts in main_grid(comparison).lines:
        for column, text in zip(comparison.columns, texts, strict=True):
            place = label, column.label
            word, gain, p = comparison.word(*place), "", ""
            if label == comparison.against:
                word = ": ".join(filter(None, ("baseline", word)))
            else:
                gain, p = gain_text(*comparison.interval(*place)), p_of(comparison, *place)
            seeds = str(len(comparison.numbers[place].read()))
            style = STYLES.get(word.partition(" (")[0], "")
            where = (Text(label), *(Text(column.label),) * several)
            grid.add_row(*where, text, seeds, gain, p, Text(word, style=style))
    title = f"{comparison.address} ({comparison.scale}): rows beside {comparison.against}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(grid)
    console.print(Text(headline(comparison), style="dim"))
    if note := TIER_NOTES[comparison.tier]:
        console.print(Text(note, style="bold yellow"))


def _print_folders(console: Console, selection: Selection, places: Places) -> None:
    """Print where the runs of the user's rows are, which export and evaluate take."""
    folders_by_row: dict[str, dict[Path, None]] = {}
    for cell in selection.cells:
        if cell.own and (folder := places.runs / cell.folder).exists():
            folders_by_row.setdefault(cell.row, {})[folder] = None
    for row, (first, *further) in folders_by_row.items():
        more = f" and {len(further)} more beside" if further else ""
        say(console, f"  {row}: {first}{more}")


def _write(
    folder: Path, comparison: Comparison, selection: Selection, console: Console
) -> list[str]:
    """Write the files, the records, and their index; returns the names of the files."""
    runs = [
        {"row": row.label, "column": column.label, "seed": seed}
        for row in comparison.rows
        for column in comparison.columns
        for seed in sorted(comparison.numbers[row.label, column.label].sources)
    ]
    declared = [
        {"row": row, "column": column, "seeds": sorted(seeds)}
        for (row, column), seeds in selection.declared.items()
    ]
    content = {"form": FORM, "scope": selection.scope, "runs": runs, "declared": declared}
    shutil.rmtree(folder / KEPT / LOSSES, ignore_errors=True)  # of rows that are gone
    write_atomically(folder / KEPT / INDEX, json.dumps(content, indent=1) + "\n")
    _copy_losses(folder / KEPT / LOSSES, selection, console)
    files = write(folder, comparison)  # later, since pictures take seconds
    return [file.name for file in files if file.parent == folder]
