"""Rows of a table beside each other: declared ones, those with settings, and losses of the user's.

Where a run of the same configuration is finished here, or its record is known, it stands in; the
rest is run, below ``runs/own/`` what a user has changed and as any cell of the table what not. A
folder that a comparison was written to can be extended: it holds the records, and what they are.

    TO/table.md, table.tex, table.csv, gains.pdf, curves.pdf, METHODS.md
    TO/records/comparison.json    rows, columns and seeds, with the key of each run
    TO/records/TABLE.records.jsonl
    TO/records/.../               the same of others, copied there
"""

import argparse
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from shared import functions
from shared.command.cells import (
    Chosen,
    Places,
    choose_tables,
    domain_of,
    most_helpful,
    run_folder,
)
from shared.command.own import (
    able_rows,
    baseline_of,
    load_loss,
    older_runs,
    print_changes,
    shown_columns,
    with_loss,
    with_set,
    without_hashes,
)
from shared.command.plan import planned
from shared.command.pool import default_jobs
from shared.command.running import print_ending, run_waiting
from shared.errors import UserError
from shared.experiment import frame
from shared.experiment.config import USER_TIER, differing, slug
from shared.experiment.config import shown as shown_value
from shared.experiment.environment import current_environment
from shared.experiment.files import write_atomically
from shared.experiment.frame import NOT_RUN, finished, processor_of, refused
from shared.experiment.records import RECORDS, Damaged, Record, read_json
from shared.experiment.run import LOG
from shared.experiment.tables import Cell, Column, Published, Row, Table, Tier
from shared.objective import Term
from shared.report import comparison as shown
from shared.report.comparison import KEPT, Comparison, Line, Number, Source
from shared.report.console import say
from shared.report.wording import DASH, TIER_NOTES, counted, gain_text, named_seeds, shown_metric

FORM = "comparison-v1"
SHEET = "comparison.json"
HERE = "run here"
Place = tuple[str, str, int]  # row, column and seed
STYLES = {"better": "green", "worse": "red", "open": "yellow"}


@dataclass(frozen=True)
class Sheet:
    """What a comparison is of: ``comparison.json``.

    Args:
        table: address of the table.
        tier: of the cells.
        changed: the settings of every row.
        own: the name of data of the user's; empty for the table's.
        against: label of the baseline.
        rows: the rows.
        runs: the key of each run by row, column and seed.
        failed: likewise why a run has failed.
    """

    table: str
    tier: Tier
    changed: tuple[str, ...]
    own: str
    against: str
    rows: tuple[Line, ...]
    runs: Mapping[Place, str] = field(default_factory=dict)
    failed: Mapping[Place, str] = field(default_factory=dict)

    @property
    def scope(self) -> dict[str, str]:
        """What two comparisons in one folder have in common."""
        return {
            "table": self.table,
            "tier": self.tier,
            "data": self.own or "of the table",
            "settings": ", ".join(self.changed) or "none",
        }


@dataclass(frozen=True)
class Prepared:
    """The rows of one table that are compared, before anything runs.

    Args:
        table: the table.
        sheet: its rows; the runs that the folder holds beside the cells.
        cells: of the rows.
    """

    table: Table
    sheet: Sheet
    cells: tuple[Cell, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in which a row has a cell, in the order of the table."""
        labels = {cell.column for cell in self.cells} | {column for _, column, _ in self.sheet.runs}
        columns = self.table.columns_of(self.sheet.tier)
        return tuple(each for each in columns if each.label in labels)


@dataclass
class Known:
    """The finished runs and the records that may stand in.

    Args:
        places: the folders of runs and results.
        sent: by key, the records of the folder that is written to, and their origin.
        committed: by key, the committed records.
        processor: of this machine; committed records of others do not stand in.
        run_all: whether only runs on this disk count.
        own: the hash of data of the user's, by their name in a configuration.
    """

    places: Places
    sent: Mapping[str, Source] = field(default_factory=dict)
    committed: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    processor: str = ""
    run_all: bool = False
    own: Mapping[str, str] = field(default_factory=dict)

    def source(self, cell: Cell, table: Table) -> Source | None:
        """The finished run or the record that is valid for a cell; None without one."""
        for source, where in self._candidates(cell):
            if not _is_valid(source.record.upgraded(type(cell.config)), cell, table):
                continue
            self.check_data(source.record, where)
            record = dataclasses.replace(source.record, address=cell.address)
            return dataclasses.replace(source, record=record)
        return None

    def check_data(self, record: Record, where: str) -> None:
        """Refuse a record of other data of the user's under the same name."""
        for name, digest in self.own.items():
            if record.environment["data"].get(name, digest) != digest:
                raise UserError(
                    f"{name.partition(':')[2]} holds other data than those of {where}; rename "
                    f"it, or start over with --again in another --to"
                )

    def _candidates(self, cell: Cell) -> Iterator[tuple[Source, str]]:
        """What has the key of a cell, the best first, and where it is."""
        folder = run_folder(self.places, cell)
        if (record := finished(cell, self.places.runs)) is not None:
            yield Source(record, HERE, folder / LOG), str(folder)
        if self.run_all:
            return
        if (sent := self.sent.get(cell.key)) is not None:
            yield sent, "the folder of --to"
        for each in self.committed.get(cell.key, ()):
            if processor_of(each) == self.processor:
                yield Source(each, recorded_at(each)), "the committed records"

    def elsewhere(self, cells: Sequence[Cell]) -> set[str]:
        """The other processors on which cells have a committed record."""
        every = (each for cell in cells for each in self.committed.get(cell.key, ()))
        return {processor_of(each) for each in every} - {self.processor}


def recorded_at(record: Record) -> str:
    """Where a record is from: ``recorded at 391a9aa``."""
    return f"recorded at {str(record.environment['commit'])[:7]}"


def compare(options: argparse.Namespace, places: Places) -> int:
    """Compare rows with a baseline: run what is missing, print a table, write it with ``--to``.

    Args:
        options: of the command line; with ``plan`` nothing is run.
        places: the folders of runs, results and data.

    Returns:
        The exit code.
    """
    if options.data is None:
        return _compare(options, places)
    # The configuration names data by a path relative to the working directory: theirs has to be
    # the last part alone, so that the same data elsewhere are the same run.
    places = Places(*(path.absolute() for path in (places.runs, places.results, places.data)))
    data = Path(os.path.abspath(options.data))
    options.to = options.to and options.to.absolute()
    options.loss = [(file.absolute(), *rest) for file, *rest in options.loss]
    if not data.exists():
        raise UserError(f"--data {options.data}: there is no such file or folder")
    with contextlib.chdir(data.parent):
        return _compare(argparse.Namespace(**{**vars(options), "data": Path(data.name)}), places)


def _compare(options: argparse.Namespace, places: Places) -> int:
    console = Console()
    functions.same.clear()
    prepared, known = _prepare(options, places, console)
    jobs = options.jobs or default_jobs(options.threads)
    total: set[str] = set()
    chosen = []
    for each in prepared:
        _print_sources(console, each, known)
        left = tuple(c for c in each.cells if options.again or not known.source(c, each.table))
        if left:
            console.print(planned(each.table, left, places, jobs, total))
            chosen.append(Chosen(each.table, left))
    if options.plan_only:
        return 0
    pools = [run_waiting(chosen, places, options, console, priced=True)] if chosen else []
    outcomes = {address: why for pool in pools for address, why in pool.outcomes.items()}
    for each in prepared:
        found = _compared(each, known, outcomes)
        if not found.records:
            continue
        _print(console, found)
        _print_folders(console, each, places)
        if options.to is not None:
            names = _write(options.to, found, each, options.spread)
            say(console, f"written to {options.to}: {', '.join(names)}, {KEPT}/")
    return print_ending(console, *pools, again=options.again)


def _prepare(
    options: argparse.Namespace, places: Places, console: Console
) -> tuple[list[Prepared], Known]:
    """The comparisons, one for each table that has the rows, and what stands in for runs."""
    losses = [(given, load_loss(*given)) for given in options.loss]
    domain = options.words[0]
    tables, own = _tables(options, places)
    prepared, refusals = [], []
    for table in tables:
        try:
            prepared.append(_rows_of(table, options, losses, console))
        except UserError as error:
            refusals.append(error)
    if not prepared:
        raise most_helpful(refusals)
    if options.to is not None and len(prepared) > 1:
        names = ", ".join(each.table.name for each in prepared)
        raise UserError(f"--to {options.to} takes one table; choose with --table: {names}")
    sheets = _sheets(options.to) if options.to is not None else {}
    kinds = {type(each.config) for one in prepared for each in one.cells}
    tier = options.tier
    known = Known(
        places,
        _sent(options.to, tier, kinds) if options.to is not None else {},
        {} if options.run_all else _committed(places, domain, tier, kinds),
        processor_of(Record("", {}, current_environment(1), {})),
        options.run_all,
        own,
    )
    _take_older(prepared, losses, known, sheets, options, console)
    if functions.same:  # cells keep the key that they were first asked for
        prepared = [
            dataclasses.replace(one, cells=tuple(dataclasses.replace(c) for c in one.cells))
            for one in prepared
        ]
    return [_with_kept(one, sheets, known, options) for one in prepared], known


def _tables(
    options: argparse.Namespace, places: Places
) -> tuple[Sequence[Table], Mapping[str, str]]:
    """The tables whose rows are compared, and the hash of data of the user's by their name."""
    domain, *papers = options.words
    if options.data is None:
        return choose_tables(domain, papers[0], options.table, options.tier), {}
    found = domain_of(domain).own_data
    if found is None:
        raise UserError(f"{domain} compares on its own tasks; omit --data, and name a paper")
    if options.tier == "smoke":
        raise UserError("the smoke tier has data of its own; omit --tier smoke or --data")
    paper = papers[0] if papers else found.paper
    name = options.table or (None if papers else found.table)
    (table, *others) = choose_tables(domain, paper, name, options.tier)
    if others:
        names = ", ".join(each.name for each in (table, *others))
        raise UserError(f"--data takes the rows of one table; choose with --table: {names}")
    changes, own = found.read(options.data, places.data)
    return [_on_data(table, options.tier, found.columns, options.data.stem, changes)], own


def _on_data(
    table: Table, tier: Tier, labels: Sequence[str], name: str, changes: Mapping[str, Any]
) -> Table:
    """The rows of a table on other data, in those of its columns that have these labels, or all."""
    some = [each for each in table.columns if each.label in labels] or list(table.columns)
    columns = tuple(
        dataclasses.replace(
            each, label=name if len(some) == 1 else each.label, changes={**each.changes, **changes}
        )
        for each in some
    )
    places = tuple(each.label for each in columns)
    claims = tuple(
        dataclasses.replace(
            claim,
            comparisons=tuple(
                dataclasses.replace(each, columns=places, metric="", beside="")
                for each in claim.comparisons
            ),
        )
        for claim in table.claims
    )
    return dataclasses.replace(
        table,
        title=f"Contrastive losses on {name}",
        rows=tuple(dataclasses.replace(each, published=None, in_columns={}) for each in table.rows),
        columns=columns,
        seeds={tier: (0, 1, 2)},
        published=Published("data of one's own", name, (), {}),
        claims=claims,
        references=(),
        fewer=(),
        looked={},
        settings={},
        notes=(),
    )


def _rows_of(
    table: Table,
    options: argparse.Namespace,
    losses: Sequence[tuple[tuple[Path, str, list[str]], Term]],
    console: Console,
) -> Prepared:
    """The rows of a table that are asked for, with the user's."""
    tier: Tier = options.tier
    choice: dict[str, Any] = {"column": options.column or None, "seeds": options.seeds}
    wanted = list(options.rows)
    variants = [_variant(text) for text in options.variant]
    base = _baseline(table, tier, options, wanted)
    if wanted or losses or variants:
        wanted += [base.label]
    declared = table.cells(tier, row=wanted or None, **choice)
    if not any(cell.row == base.label for cell in declared):
        raise UserError(f"{table.address}: {base.label} has no cell in the chosen columns")
    cells = with_set(declared, options.set) if options.set else declared
    if options.data is not None:
        cells = tuple(dataclasses.replace(cell, own=True) for cell in cells)
    rows = {row.label: row for row in table.rows}
    lines = [
        Line(row.label, "", row.baseline, row.majority)
        for row in table.rows
        if any(cell.row == row.label for cell in cells)
    ]
    if options.set:
        print_changes(console, f"{table.address} as declared", declared, cells)
    under = [cell for cell in cells if cell.row == base.label]
    for (file, name, numbers), loss in losses:
        label = _label(", ".join([name, *numbers]), table, lines)
        lines.append(Line(label, f"{base.label} with the loss {name} of {file.name}"))
        mine = tuple(with_loss(cell, loss, label) for cell in under)
        what = f"{table.address}: {label} is {base.label} with your loss; what differs"
        print_changes(console, what, under, mine)
        cells = (*mine, *cells)  # so that a loss that fails is seen first
    for row, settings in variants:
        some = table.cells(tier, row=_one_row(table, tier, row), **choice)
        label = _label(f"{some[0].row}, {', '.join(settings)}", table, lines)
        lines.append(
            Line(label, f"{some[0].row} with {', '.join(settings)}", rows[some[0].row].baseline)
        )
        plain = with_set(some, options.set) if options.set else some
        varied = with_set(some, [*options.set, *settings])
        if [cell.key for cell in varied] == [cell.key for cell in plain]:
            raise UserError(f"--variant {row}: {some[0].row} has {', '.join(settings)} already")
        cells += tuple(dataclasses.replace(cell, row=label) for cell in varied)
    data = str(options.data or "")
    sheet = Sheet(table.address, tier, tuple(options.set), data, base.label, tuple(lines))
    return Prepared(table, sheet, tuple(cells))


def _baseline(table: Table, tier: Tier, options: argparse.Namespace, wanted: list[str]) -> Row:
    """The row that the others are compared with: as asked, else the one claims are made against.

    Where that is not among the rows asked for, it is the first of them.
    """
    if options.against is not None:
        label = _one_row(table, tier, options.against)
    elif not wanted:
        return baseline_of(table, tier)
    else:
        asked = [table.cells(tier, row=each)[0].row for each in wanted]
        usual = baseline_of(table, tier) if options.loss or able_rows(table, tier) else None
        label = usual.label if usual and usual.label in asked else asked[0]
    if options.loss:
        return baseline_of(table, tier, label)
    return next(row for row in table.rows if row.label == label)


def _one_row(table: Table, tier: Tier, name: str) -> str:
    """The label of the row of that name, which may not be a printed label of several."""
    labels = dict.fromkeys(cell.row for cell in table.cells(tier, row=name))
    if len(labels) > 1:
        raise UserError(f"{name!r} names several rows; choose one: {' | '.join(labels)}")
    return next(iter(labels))


def _variant(text: str) -> tuple[str, list[str]]:
    """Row and settings of ``ROW:NAME=VALUE,NAME=VALUE``; a value may hold commas."""
    row, _, rest = text.partition(":")
    settings: list[str] = []
    for part in rest.split(","):
        if "=" in part or not settings:
            settings.append(part.strip())
        else:
            settings[-1] += f",{part}"
    return row.strip(), settings


def _label(label: str, table: Table, lines: Sequence[Line]) -> str:
    """The label of a row of the user's: the same whichever rows of the table are chosen."""
    if slug(label) in {slug(row.label) for row in table.rows}:
        label = f"{label} (yours)"
    if slug(label) in {slug(each.label) for each in lines}:
        raise UserError(
            f"two rows are called {label}; give it once, or rename the function in one of the files"
        )
    return label


def _is_valid(record: Record, cell: Cell, table: Table) -> bool:
    """Whether a record, in today's form, is of exactly a cell's configuration and possible."""
    result = record.result
    (column,) = (each for each in table.columns_of(cell.tier) if each.label == cell.column)
    metric = shown_metric(table.metric_of(column), [result["metrics"]])
    return (
        record.config == cell.content
        and result["tier"] in (cell.tier, USER_TIER)
        and result["protocol"] == cell.config.protocol
        and refused(result["metrics"], table, metric) is None
    )


def _committed(
    places: Places, domain: str, tier: Tier, kinds: set[type]
) -> dict[str, list[Record]]:
    """The committed records of a domain, by the key of their run in a tier."""
    known = frame.load((), results=places.results, everything=True, domain=domain)
    known.check("record")
    return frame.by_key(known.sources, tier, kinds)


def _sent(to: Path, tier: Tier, kinds: set[type]) -> dict[str, Source]:
    """By key the records in the folder that is written to, the user's and those sent to him."""
    kept = frame.load((), results=to / KEPT, everything=True)
    for _, error in kept.damaged:
        text = str(error).removesuffix("; restore the file from git")
        raise Damaged(f"{text}; ask for the file again, or move it away")
    records = frame.by_key(kept.sources, tier, kinds, users=True)
    return {key: Source(some[0], recorded_at(some[0])) for key, some in records.items()}


def _sheets(to: Path) -> dict[Path, Sheet]:
    """What the folder holds, the user's and others', by file; the user's first."""
    files = sorted((to / KEPT).rglob(SHEET), key=lambda file: len(file.parts))
    for file in (to / KEPT).rglob(f"*{RECORDS}"):
        if file.with_name(SHEET) not in files:
            raise UserError(
                f"{file} lies without {SHEET}, which says of what rows it is; copy the folder whole"
            )
    return {file: _sheet(file) for file in files}


def _sheet(file: Path) -> Sheet:
    content = read_json(file)
    try:
        if content["form"] != FORM:
            raise ValueError(f"has the form {content['form']}, this program reads {FORM}")
        return Sheet(
            content["table"],
            content["tier"],
            tuple(content["changed"]),
            content["own"],
            content["against"],
            tuple(Line(**each) for each in content["rows"]),
            {(run["row"], run["column"], run["seed"]): run["key"] for run in content["runs"]},
            {
                (run["row"], run["column"], run["seed"]): run["why"]
                for run in content.get("failed", ())  # older ones have none
            },
        )
    except KeyError as error:
        raise UserError(f"{file} lacks {error}; move it away, or choose another --to") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{file} {error}; move it away, or choose another --to") from None


def _with_kept(
    one: Prepared, sheets: Mapping[Path, Sheet], known: Known, options: argparse.Namespace
) -> Prepared:
    """With the rows, columns and seeds that the folder holds already."""
    rows = {row.label: row for row in one.sheet.rows}
    here = {_place(cell) for cell in one.cells}
    kept: dict[Place, str] = {}
    failed: dict[Place, str] = {}
    against = one.sheet.against
    for file, sheet in sheets.items():
        for what, there in sheet.scope.items():
            if there != (now := one.sheet.scope[what]):
                raise UserError(
                    f"{file.parent} holds a comparison with {what} {there}, not {now}; "
                    f"choose another --to, or the same {what}"
                )
        rows |= {row.label: row for row in sheet.rows if row.label not in rows}
        there_too = here | kept.keys()
        kept |= {place: key for place, key in sheet.runs.items() if place not in there_too}
        failed |= sheet.failed
        if options.against is None and not options.rows:
            against = sheet.against
    _check_kept(one, sheets, kept, known, options)
    order = {row.label: number for number, row in enumerate(one.table.rows)}
    ordered = sorted(rows.values(), key=lambda row: order.get(row.label, len(order)))
    failed = {place: why for place, why in failed.items() if place not in here | kept.keys()}
    sheet = dataclasses.replace(
        one.sheet, rows=tuple(ordered), runs=kept, failed=failed, against=against
    )
    return dataclasses.replace(one, sheet=sheet)


def _check_kept(
    one: Prepared,
    sheets: Mapping[Path, Sheet],
    kept: Mapping[Place, str],
    known: Known,
    options: argparse.Namespace,
) -> None:
    """Refuse a folder in which a row would be of several configurations or data, or lacks records.

    A row is known by its label alone: another one may have been called the same.
    """
    kind = type(one.table.config)
    of_row: dict[tuple[str, str], Mapping[str, Any]] = {
        (cell.row, cell.column): cell.content for cell in one.cells
    }
    for file, sheet in sheets.items():
        for place, key in sheet.runs.items():
            row, column, seed = place
            what = f"{row} in {column}, seed {seed}"
            source = known.sent.get(key)
            if source is None:
                if place in kept:
                    raise UserError(
                        f"{file} names a run of {what}, whose record is not beside it; copy the "
                        f"folder again, or move it away"
                    )
                continue
            there = source.record.upgraded(kind).config
            here = {**of_row.setdefault((row, column), there), "seed": there["seed"]}
            equal = there == here
            if options.same_loss:
                equal = without_hashes(there) == without_hashes(here)
            if not equal:
                path, *pair = next(differing(there, here))
                first, second = map(shown_value, pair)
                raise UserError(
                    f"{file.parent} has another {row}: {path} is {first} there, {second} now; "
                    f"choose another --to, or another name for a loss"
                )
            known.check_data(source.record, "the folder of --to")


def _place(cell: Cell) -> Place:
    return cell.row, cell.column, cell.seed


def _take_older(
    prepared: Sequence[Prepared],
    losses: Sequence[tuple[tuple[Path, str, list[str]], Term]],
    known: Known,
    sheets: Mapping[Path, Sheet],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Find runs of another source of a loss; with ``--same-loss`` they count as the user's."""
    of_row: dict[tuple[str, str], list[Record]] = {}
    for sheet in sheets.values():
        for (row, column, _), key in sheet.runs.items():
            if key in known.sent:
                of_row.setdefault((row, column), []).append(known.sent[key].record)
    for (file, name, _), loss in losses:
        cells = [
            cell
            for one in prepared
            for cell in one.cells
            if getattr(getattr(cell.config, "objective", None), "loss", None) is loss
        ]
        now, then, text = functions.identity(loss.function), "", ""
        pairs = [(c, record) for c in cells for record in of_row.get((c.row, c.column), ())]
        for cell, record in pairs:
            there = record.upgraded(type(cell.config)).config
            content = {**cell.content, "seed": there["seed"]}
            if there == content:
                continue
            if without_hashes(there) == without_hashes(content):
                then = record.config["objective"]["loss"]["function"]
                text = f"{file}: {name} has changed since its runs in {options.to}"
                if not options.same_loss:
                    raise UserError(
                        f"{text}; --same-loss takes them if it computes the same, else choose "
                        f"another --to or another name"
                    )
        if not then and (
            older := older_runs([Chosen(prepared[0].table, tuple(cells))], known.places)
        ):
            folder, config = older[-1]
            then = config["objective"]["loss"]["function"]
            done = sum((each / "result.json").exists() for each, _ in older)
            text = (
                f"{file}: {counted(len(older), 'run')} ({done} finished) with another source of "
                f"{name}, as {folder}"
            )
        if then and options.same_loss:
            functions.same[now] = then
            text += ": taken as the same loss on your word (--same-loss)"
        elif then:
            text += ": --same-loss takes them if it computes the same"
        if text:
            say(console, text)


def _sources(one: Prepared, known: Known) -> dict[Place, Source | None]:
    """The source of each run that is compared; None for one that is not there yet."""
    here = {_place(cell): known.source(cell, one.table) for cell in one.cells}
    kept = {place: known.sent.get(key) for place, key in one.sheet.runs.items()}
    return here | {place: source for place, source in kept.items() if source is not None}


def _print_sources(console: Console, one: Prepared, known: Known) -> None:
    """Print what is compared with what, and for each row which seeds are there and from where."""
    sheet, sources = one.sheet, _sources(one, known)
    rows = counted(len(sheet.rows), "row")
    say(console, f"{sheet.table} ({sheet.tier} tier): {rows}, compared with {sheet.against}")
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for (row, column, seed), source in sources.items():
        origin = source.origin if source else "to run"
        found.setdefault((row, column), {}).setdefault(origin, []).append(seed)
    texts: dict[str, list[str]] = {}
    for (row, column), origins in found.items():
        said = "; ".join(f"{named_seeds(sorted(s))} {origin}" for origin, s in origins.items())
        texts.setdefault(f"{row}: {said}", []).append(column)
    for text, columns in texts.items():
        where = "" if len(columns) == len(one.columns) else f" ({', '.join(columns)})"
        say(console, f"  {text}{where}")
    counts = {len(seeds) for seeds in _seeds_by_row(one).values()}
    if len(counts) > 1:
        few, many = min(counts), max(counts)
        say(console, f"  rows have {few} to {many} seeds; --seeds 0-4 runs these of all")
    left = [cell for cell in one.cells if sources[_place(cell)] is None]
    say(console, f"  {len(one.cells) - len(left)} of {counted(len(one.cells), 'cell')} there")
    if others := known.elsewhere(left):
        on = ", ".join(sorted(others))
        say(console, f"  recorded on {on}, not on {known.processor}: run here")


def _seeds_by_row(one: Prepared) -> dict[str, set[int]]:
    """The seeds of each row that is trained."""
    trained = {row.label for row in one.sheet.rows if not row.baseline}
    found: dict[str, set[int]] = {}
    for cell in one.cells:
        if cell.row in trained:
            found.setdefault(cell.row, set()).add(cell.seed)
    return found


def _compared(one: Prepared, known: Known, outcomes: Mapping[str, str]) -> Comparison:
    """The comparison, of what is finished by now."""
    addresses = {_place(cell): cell.address for cell in one.cells}
    sources: dict[tuple[str, str], dict[int, Source]] = {}
    missing: dict[tuple[str, str], dict[int, str]] = {}
    for (row, where, seed), source in _sources(one, known).items():
        if source is not None:
            sources.setdefault((row, where), {})[seed] = source
        else:
            why = outcomes.get(addresses[row, where, seed], NOT_RUN)
            missing.setdefault((row, where), {})[seed] = why
    for (row, where, seed), why in one.sheet.failed.items():
        missing.setdefault((row, where), {})[seed] = why
    records = [each.record for some in sources.values() for each in some.values()]
    numbers = {}
    results: dict[str, list[Mapping[str, Any]]] = {column.label: [] for column in one.columns}
    for (_, label), some in sources.items():
        results.setdefault(label, []).extend(
            each.record.result["metrics"] for each in some.values()
        )
    shown_of = shown_columns(one.table, one.columns, results)
    for label, metric in shown_of.items():
        for line in one.sheet.rows:
            place = (line.label, label)
            numbers[place] = Number(
                metric, one.table.unit_of(metric), sources.get(place, {}), missing.get(place, {})
            )
    shown_metrics = {number.metric for number in numbers.values()}
    protocols = dict.fromkeys(str(each.result["protocol"]) for each in records)
    return Comparison(
        one.table.address,
        one.table.title,
        one.sheet.tier,
        one.sheet.changed,
        one.sheet.own or " and ".join(shown_of),
        ", ".join(protocols) or one.table.protocol,
        one.sheet.against,
        one.sheet.rows,
        tuple(column for column in one.columns if column.label in shown_of),
        numbers,
        {each: one.table.unit_of(each) for each in one.table.also if each not in shown_metrics},
        one.table.blocked,
    )


def _print(console: Console, comparison: Comparison) -> None:
    """Print a line for each row and column: number, gain and word."""
    several = len(comparison.columns) > 1
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    names = ("method", *("column",) * several, "mean ± sd", "seeds", "gain, 95% interval", "p", "")
    for name in names:
        grid.add_column(name, justify="left" if name in ("method", "column", "") else "right")
    table = shown.main_grid(comparison)
    for line, (label, *texts) in zip(comparison.lines, table.lines, strict=True):
        for column, text in zip(comparison.columns, texts, strict=True):
            gain = comparison.gains[label, column.label]
            is_base = line.label == comparison.against
            adjusted = DASH if gain.adjusted is None else shown.p_text(gain.adjusted)
            word = ": ".join(filter(None, ("baseline", gain.word))) if is_base else gain.word
            grid.add_row(
                Text(label),
                *(Text(column.label),) * several,
                text,
                str(len(comparison.numbers[label, column.label].read())),
                "" if is_base else gain_text(gain.gain, gain.low, gain.high),
                "" if is_base else adjusted,
                Text(word, style=STYLES.get(gain.word, "")).append(
                    f": {gain.why}" if gain.why else "", style="default"
                ),
            )
    title = f"{comparison.address} ({comparison.scale}): rows beside {comparison.against}"
    console.print(Text(title, style="bold"))
    console.print(grid)
    console.print(Text(shown.headline(comparison), style="dim"))
    if note := TIER_NOTES[comparison.tier]:
        console.print(Text(note, style="bold yellow"))


def _print_folders(console: Console, one: Prepared, places: Places) -> None:
    """Print where the runs of the user's rows are, which export and evaluate take."""
    found: dict[str, list[Path]] = {}
    for cell in one.cells:
        if cell.own and (folder := run_folder(places, cell)).exists():
            found.setdefault(cell.row, []).append(folder)
    for row, folders in found.items():
        first, *others = dict.fromkeys(folders)
        more = f" and {len(others)} more beside" if others else ""
        say(console, f"  {row}: {first}{more}")


def _write(to: Path, comparison: Comparison, one: Prepared, spread: Any) -> list[str]:
    """Write the files, the records, and what they are; returns the names of the files."""
    keys = {_place(cell): cell.key for cell in one.cells} | dict(one.sheet.runs)
    places = [
        (row.label, column.label) for row in comparison.lines for column in comparison.columns
    ]
    runs = [
        {"row": row, "column": column, "seed": seed, "key": keys[row, column, seed]}
        for row, column in places
        for seed in sorted(comparison.numbers[row, column].sources)
        if (row, column, seed) in keys
    ]
    failed = [
        {"row": row, "column": column, "seed": seed, "why": why}
        for row, column in places
        for seed, why in sorted(comparison.numbers[row, column].missing.items())
        if why != NOT_RUN
    ]
    rows = [dataclasses.asdict(row) for row in comparison.lines]
    content = {"form": FORM, **vars(one.sheet), "rows": rows, "runs": runs, "failed": failed}
    write_atomically(to / KEPT / SHEET, json.dumps(content, indent=1) + "\n")
    files = shown.write(to, comparison, spread=spread)  # later, since pictures take seconds
    return [file.name for file in files if file.parent == to]
