"""What every renderer of a measured table says, in the same words.

A measured number and a published one never share a cell: every line or column says whose numbers
it holds.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shared.experiment.data import is_approximate
from shared.experiment.tables import Claim, Column, Published, Row, Table, Tier, Value, canonical
from shared.report.evidence import power_sentence
from shared.report.measuring import (
    Judged,
    Measured,
    MeasuredCell,
    arithmetic_of,
    floor_of,
)
from shared.report.statistics import RESAMPLES, Summary, summarise

OVER_COLUMNS = "Over all columns"
HERE, PRINTED = "measured here", "published"
NO_NUMBERS = "the paper prints no numbers for this"
DASH = "–"  # noqa: RUF001 (an en dash is meant)
NAMED_ROWS = 3  # more rows without a result are counted in the legend, not named
TIER_NOTES: dict[Tier, str] = {
    "paper": "",
    "short": "Short tier: real data, smaller budget than the paper's; verdicts are about this "
    "budget.",
    "smoke": "Smoke tier: embedded data, proves the path only; comparable with nothing published.",
}


@dataclass(frozen=True)
class Further:
    """A further metric of the runs behind a table, measured here as the table's own is.

    Args:
        metric: its key in the results.
        unit: its unit.
        columns: labels of the columns, or of their runs.
        rows: by label of the row, one summary over seeds for each column; None without a number.
    """

    metric: str
    unit: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Summary | None, ...]]

    @property
    def heading(self) -> str:
        """What the numbers are."""
        return f"{self.metric}: of the same runs" + (f" ({self.unit})" if self.unit else "")

    @property
    def lines(self) -> dict[str, list[str]]:
        """The numbers of each row as text; a dash for none."""
        return {
            label: [DASH if each is None else mean_sd(each.mean, each.sd) for each in summaries]
            for label, summaries in self.rows.items()
        }


def is_ours(row: Row, table: Table) -> bool:
    """Whether no paper has the row; where the paper only plots, every row is the paper's."""
    return row.published is None and bool(table.published.rows)


def mean_sd(mean: float, sd: float | None) -> str:
    """A mean and, where there is one, its deviation."""
    return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def printed_value(value: Value | None) -> str:
    """A published number; a dash where the paper prints none."""
    return DASH if value is None else mean_sd(value.mean, value.std)


def printed_lines(published: Published) -> dict[str, list[str]]:
    """The printed numbers of each row as text."""
    return {label: list(map(printed_value, some)) for label, some in published.rows.items()}


def seeds_of(cell: MeasuredCell) -> str:
    """How many of the declared seeds a measured number rests on."""
    done, declared = len(cell.values), len(cell.declared)
    if done < declared:
        return f"{done} of {declared} seeds"
    return f"{done} seed{'s' if done > 1 else ''}"


def named_seeds(seeds: Sequence[int]) -> str:
    """``seed 3``, or ``seeds 0-4, 7`` with those that follow each other as one."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    listed = ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)
    return f"seed{'s' if len(seeds) > 1 else ''} {listed}"


def measured_lines(cell: MeasuredCell, marks: Mapping[str, int]) -> list[str]:
    """What a cell shows: its number and how many seeds it lacks, or the marks of its reasons."""
    if not cell.declared:
        return [""]  # the row has no part in the column
    if cell.summary is None:
        reasons = sorted({marks[why] for why in cell.missing.values()})
        return [f"{DASH} ({', '.join(map(str, reasons))})"]
    lines = [mean_sd(cell.summary.mean, cell.summary.sd)]
    return [*lines, seeds_of(cell)] if cell.missing or cell.fewer else lines


def printed_row(cells: Sequence[MeasuredCell], measured: Measured) -> list[str]:
    """The published line below a row; empty where no paper prints the row."""
    if cells[0].row.published is None or measured.tier == "smoke":
        return []
    return [printed_value(cell.published) if cell.declared else "" for cell in cells]


def groups_of(measured: Measured) -> list[tuple[str, list[tuple[MeasuredCell, ...]]]]:
    """The rows that the paper has, then our own under a heading of their own."""
    ours = [cells for cells in measured.cells if is_ours(cells[0].row, measured.table)]
    printed = [cells for cells in measured.cells if not is_ours(cells[0].row, measured.table)]
    return [pair for pair in (("", printed), ("ours (not in paper)", ours)) if pair[1]]


def headline(measured: Measured) -> str:
    """What the measured numbers are."""
    table = measured.table
    unit = f" ({table.unit})" if table.unit else ""
    shown: dict[str, list[str]] = {}
    for column in measured.columns:
        shown.setdefault(table.metric_of(column), []).append(column.label)
    metrics = ", ".join(shown)
    if len(shown) > 1:
        metrics = "; ".join(f"{metric} in {', '.join(some)}" for metric, some in shown.items())
    seeds = named_seeds(measured.seeds)
    spread = f"mean ± sample standard deviation over {seeds}"
    if len(measured.seeds) == 1:
        spread = f"{seeds} only"
    if any(cell.fewer for cells in measured.cells for cell in cells):
        spread += " (fewer where a cell says so)"
    return (
        f"{metrics}{unit}, {spread}; protocol {table.protocol}; "
        f"varies between repeats: {table.varies}."
    )


def tier_note(measured: Measured) -> str:
    """What a tier other than the paper's means for the numbers."""
    note = TIER_NOTES[measured.tier]
    if measured.tier == "short" and measured.table.short:
        budget = ", ".join(f"{k} = {canonical(v)}" for k, v in measured.table.short.items())
        note = f"{note} Budget: {budget}."
    return note


def origin(published: Published) -> str:
    """Where the printed numbers come from, and what they are."""
    return f"{published.source}: {published.title} ({published.statistic})"


def no_numbers(table: Table) -> str:
    """What is said in place of the origin where the paper only plots."""
    return f"{table.published.source}: {NO_NUMBERS}."


def figures_of(measured: Measured) -> tuple[list[str], list[str]]:
    """The pictures named after the table (``figure-3.png``, ``figure-3-a.png``), and the rest."""
    own = re.compile(rf"{re.escape(measured.table.name)}(-.*)?\.png")
    return (
        [name for name in measured.figures if own.fullmatch(name)],
        [name for name in measured.figures if not own.fullmatch(name)],
    )


def also_of(measured: Measured) -> list[Further]:
    """The further metrics of the runs behind a table, one grid each, of the cells that have any."""
    grids = []
    for metric in measured.table.also:
        found: dict[tuple[str, str], Summary] = {}
        for cell in (cell for cells in measured.cells for cell in cells):
            numbers = [
                float(record.result["metrics"][metric])
                for record in cell.records.values()
                if metric in record.result["metrics"]
            ]
            if numbers:
                found[cell.row.label, _run_of(cell.column)] = summarise(numbers)
        columns = [
            name
            for name in dict.fromkeys(map(_run_of, measured.columns))
            if any(name == at for _, at in found)
        ]
        rows = {
            row.label: tuple(found.get((row.label, column)) for column in columns)
            for row in measured.table.rows
            if any(row.label == of for of, _ in found)
        }
        if rows:
            grids.append(Further(metric, measured.table.unit_of(metric), tuple(columns), rows))
    return grids


def _run_of(column: Column) -> str:
    """What the runs behind a column are called: columns that are read from one run share it."""
    return column.run or column.label


def aggregates_of(measured: Measured) -> list[tuple[str, list[str], list[list[str]]]]:
    """For each aggregate with a number: what it is, and a small table's head and lines."""
    tables = []
    for name in measured.table.aggregates:
        lines = []
        for each in measured.aggregates:
            if each.statistic == name:
                interval = "none, a column has one seed"
                if each.interval is not None:
                    interval = "[{:.2f}, {:.2f}]".format(*each.interval)
                count = str(each.count)
                if each.count < each.declared:
                    count = f"{each.count} of {each.declared}"
                lines.append([each.row, f"{each.value:.2f}", interval, count])
        if lines:
            what = (
                f"{name.capitalize()} of all finished seeds of all columns, {HERE}, with its 95% "
                f"stratified bootstrap interval (seeds resampled within each column, {RESAMPLES} "
                "times). Rows with a finished seed in every column."
            )
            tables.append((what, ["method", name, "95% interval", "values"], lines))
    return tables


def marks_of(measured: Measured) -> dict[str, int]:
    """A number for every reason that leaves a declared seed without a result."""
    reasons = (why for cells in measured.cells for cell in cells for why in cell.missing.values())
    return {why: number for number, why in enumerate(dict.fromkeys(reasons), start=1)}


def legend_of(measured: Measured) -> list[str]:
    """One line for each reason that leaves a declared seed without a result."""
    return [
        f"({number}) {'; '.join(_places(measured, why))}: {why}"
        for why, number in marks_of(measured).items()
    ]


def _places(measured: Measured, why: str) -> list[str]:
    """The columns, rows and seeds that lack a result for one reason, in few words."""
    by_column = []
    for column in zip(*measured.cells, strict=True):
        places = []
        rows: dict[tuple[int, ...], list[str]] = {}
        for cell in column:
            if seeds := tuple(seed for seed, reason in cell.missing.items() if reason == why):
                # Rows without any result stand together, however many seeds each has.
                rows.setdefault(seeds if seeds != cell.declared else (), []).append(cell.row.label)
        for seeds, labels in rows.items():
            which = ", ".join(labels) if len(labels) <= NAMED_ROWS else f"{len(labels)} rows"
            if len(labels) == sum(bool(cell.declared) for cell in column):
                which = "all rows"
            if seeds:
                which = f"{named_seeds(seeds)} of {which}"
            places.append(which)
        by_column.append(places)
    first = by_column[0]
    if first == ["all rows"] and by_column.count(first) == len(by_column):
        return ["every cell"]
    if len(by_column) > 1 and by_column.count(first) == len(by_column):
        return [f"every column ({which})" for which in first]
    return [
        f"{column.label} ({which})"
        for column, places in zip(measured.columns, by_column, strict=True)
        for which in places
    ]


def by_claim(measured: Measured) -> Iterator[tuple[Claim, list[Judged]]]:
    """The claims that were judged, each with its verdicts."""
    for claim in measured.table.claims:
        if verdicts := [judged for judged in measured.verdicts if judged.claim is claim]:
            yield claim, verdicts


def badge(judged: Judged, tier: Tier) -> str:
    """A verdict in few words, which always name its tier."""
    said: str = judged.verdict.kind
    budget = tier != "paper" and said not in ("not run", "no evidence")
    without = ", does not count" if judged.against else ""
    return f"{tier} tier{', at this budget' if budget else ''}: {said}{without}"


def evidence_of(measured: Measured) -> list[str]:
    """What the table can see, and what its numbers are held against, a line each."""
    table, tier = measured.table, measured.tier
    if not measured.verdicts:
        return []
    judged_in = dict.fromkeys(judged.column for judged in measured.verdicts)
    lines = []
    powers = [power for power in table.powers if power.tier == tier]
    for power in powers:
        seeds = [len(each.declared) for each in measured.verdicts if each.column in power.columns]
        lines.append(f"Power. {power_sentence(power, min(seeds, default=0))}")
    told = {column for power in powers for column in power.columns}
    if silent := [column for column in judged_in if column not in told]:
        where = _all_or(silent, judged_in)
        lines.append(f"Power. Nothing was declared for {where}; no verdict counts there.")
    floors, unmeasured, ways, unknown = [], [], [], []
    for label in judged_in:
        column = measured.column(label)
        metric = table.metric_of(column[0].column)
        floor = floor_of(column, metric)
        if floor is None:
            unmeasured.append(label)
        else:
            below = [
                cell.row.label
                for cell in column
                if cell.summary and not cell.row.floor and cell.summary.mean < floor.mean
            ]
            some = ", ".join(below) if len(below) <= NAMED_ROWS else f"{len(below)} trained rows"
            floors.append(f"{label} {floor.mean:.2f} ({floor.row}; below it: {some or 'no row'})")
        spread = arithmetic_of(column, metric)
        if spread is None:
            unknown.append(label)
        else:
            seeds_too = DASH if spread.over_seeds is None else f"{spread.over_seeds:.2f}"
            ways.append(
                f"{label} {spread.sd:.2f}, beside {seeds_too} over seeds ({spread.cells} cells, "
                f"{spread.runs} runs)"
            )
    if floors:
        lines.append(f"Highest floor. {'; '.join(floors)}.")
    if unmeasured:
        why = "measured" if any(row.floor for row in table.rows) else "declared"
        lines.append(f"Highest floor. None is {why} for {_all_or(unmeasured, judged_in)}.")
    if ways:
        lines.append(f"Arithmetic spread, the same seed under other code paths. {'; '.join(ways)}.")
    if unknown:
        lines.append(f"Arithmetic spread. Not measured for {_all_or(unknown, judged_in)}.")
    if second := list(dict.fromkeys(c.second for c in table.claims if c.second)):
        lines.append(f"Second read-out, which has to agree in sign: {', '.join(second)}.")
    return lines


def _all_or(some: Sequence[str], every: Collection[str]) -> str:
    return "any column" if len(some) == len(every) else ", ".join(some)


def explain(judged: Judged, measured: Measured) -> str:
    """The sentence of a verdict and what it rests on."""
    verdict = judged.verdict
    parts = [verdict.sentence]
    if verdict.inside:
        parts.append(f"{verdict.inside[0].upper()}{verdict.inside[1:]}.")
    if 0 < len(verdict.seeds_used) < len(judged.declared):
        parts.append(
            f"Rests on {len(verdict.seeds_used)} of {len(judged.declared)} declared seeds."
        )
    parts += judged.remarks
    if judged.outlook:
        parts.append(judged.outlook)
    if judged.items:
        parts.append(judged.items)
    return " ".join(parts)


def remarks_of(measured: Measured) -> list[tuple[str, list[str]]]:
    """Deviations, what is known of the published numbers, notes, and what does not count."""
    table = measured.table
    printed = [f"{label}: {note}" for label, note in table.published.notes.items()]
    counted = [r for cells in measured.cells for cell in cells for r in cell.records.values()]
    incomplete = [r.address for r in counted if r.environment.get("allow_missing")]
    approximate = Counter(
        name
        for r in counted
        for name, hash in r.environment["data"].items()
        if is_approximate(hash)
    )
    adopted = {  # columns may share a run
        record.address: (cell.row.label, record.environment["run_at"].rsplit("/", 3)[0])
        for cells in measured.cells
        for cell in cells
        for record in cell.records.values()
        if "run_at" in record.environment
    }
    remarks = [
        (
            "Where a row deviates from the paper",
            [f"{row.label}: {row.deviation}" for row in table.rows if row.deviation],
        ),
        ("About the published numbers", [*printed, *table.published.warnings]),
        ("Notes", list(table.notes)),
        ("Measured with --allow-missing: files that were missing or broken left out", incomplete),
        (
            "Measured on approximate copies: the data are not the published files",
            [f"{name}: {count} records" for name, count in sorted(approximate.items())],
        ),
        (
            "Taken over from runs of an equal configuration",
            [
                f"{row}: {count} from {table}"
                for (row, table), count in Counter(adopted.values()).items()
            ],
        ),
        ("Finished but not counted", list(measured.ignored)),
    ]
    return [(heading, lines) for heading, lines in remarks if lines]


def name_of(measured: Measured) -> str:
    """Address and tier."""
    address = measured.table.address
    return address if measured.tier == "paper" else f"{address} ({measured.tier} tier)"
