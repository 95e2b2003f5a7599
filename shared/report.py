"""From finished runs to tables that show what was measured beside what a paper prints.

``measure`` joins a declared table with the records of its finished cells; the renderers turn the
outcome into text for the terminal, Markdown, LaTeX and CSV, and in ``shared.report_html`` into one
page. A measured number and a published one never share a cell: every line or column says whose
numbers it holds.

A record counts for a cell only if it was measured in the same tier, with the protocol and with
exactly the configuration that the table declares today, however that was written down at the time
(``shared.history``); otherwise the cell is stale. Only declared
seeds count, so that nobody can add seeds until a claim comes out right.
"""

import csv
import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from shared.history import address_today, home, unknown_keys
from shared.records import Record, impossible, read_record, record_line
from shared.statistics import (
    RESAMPLES,
    Kind,
    Summary,
    Verdict,
    interquartile_mean,
    judge,
    seeds_sentence,
    stratified_bootstrap,
    summarise,
)
from shared.tables import (
    AGGREGATES,
    Cell,
    Claim,
    Column,
    Published,
    Row,
    Table,
    Tier,
    Value,
    canonical,
    slug,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

NOT_RUN = "not run"
UNAVAILABLE = "not implemented yet"
REFUSED = "refused"  # a file that was altered, a number that cannot be
STALE = "stale: measured with another configuration"
OVER_COLUMNS = "Over all columns"
HERE, PRINTED = "measured here", "published"
NO_NUMBERS = "the paper prints no numbers for this"
DASH = "–"  # noqa: RUF001 (an en dash is meant)
NARROW = 12  # characters of a column in the terminal, so that five of them fit
NAMED_ROWS = 3  # more rows without a result are counted in the legend, not named
TIER_NOTES: dict[Tier, str] = {
    "paper": "",
    "short": "Short tier: real data, smaller budget than the paper's; verdicts are about this "
    "budget.",
    "smoke": "Smoke tier: embedded data, proves the path only; comparable with nothing published.",
}
STATISTICS = dict(zip(AGGREGATES, (interquartile_mean,), strict=True))
KIND_COLOURS: dict[Kind, str] = {
    "reproduced": "green",
    "same direction": "cyan",
    "not reproduced": "red",
    "inconclusive": "yellow",
    "not run": "bright_black",
}


@dataclass(frozen=True)
class MeasuredCell:
    """One row in one column over all declared seeds.

    Args:
        row: the row.
        column: the column.
        records: by seed, the records that count, in today's form.
        values: by seed, the metric of those records.
        missing: by seed, why a declared seed has no number.
        summary: over the seeds in ``values``; None without any.
        published: the printed number; None where the paper prints none.
        difference: measured mean minus published mean; None where either lacks.
    """

    row: Row
    column: Column
    records: Mapping[int, Record]
    values: Mapping[int, float]
    missing: Mapping[int, str]
    summary: Summary | None
    published: Value | None
    difference: float | None

    @property
    def unavailable(self) -> str:
        """Why the cell cannot run yet; empty if it can."""
        return self.row.unavailable or self.column.unavailable


@dataclass(frozen=True)
class Judged:
    """The verdict on one claim in one column.

    Args:
        claim: the claim.
        column: label of the column.
        verdict: the verdict.
        outlook: how many seeds would see the published gain; empty where the verdict says it, the
            table does not ask for it, or nothing tells.
    """

    claim: Claim
    column: str
    verdict: Verdict
    outlook: str = ""


@dataclass(frozen=True)
class Aggregate:
    """One statistic of a row over all finished seeds of all columns.

    Args:
        statistic: its name, of ``AGGREGATES``.
        row: label of the row.
        value: the statistic.
        interval: its 95% stratified bootstrap interval; None where a column has one seed.
        count: how many values it rests on.
        declared: how many those would be with every declared seed finished.
    """

    statistic: str
    row: str
    value: float
    interval: tuple[float, float] | None
    count: int
    declared: int


@dataclass(frozen=True)
class Further:
    """A further metric of the runs behind a table, measured here as the table's own is.

    Args:
        metric: its key in the results.
        unit: of the table.
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


@dataclass(frozen=True)
class Measured:
    """A table in one tier with everything that was measured for it.

    Args:
        table: the declared table.
        tier: the tier of every number in it.
        cells: for each row of the table, one cell per column of the tier.
        verdicts: claim by claim, column by column; none in the smoke tier.
        ignored: what finished but does not count, one line each.
        records: every record of the table and tier, one per address, sorted by address: the one
            that counts, else the last one given; as it was made.
        figures: names of the paper's pictures; they lie in ``figures/`` beside the written table.
        aggregates: those that the table asks for, of the rows that have a finished seed in every
            column.
    """

    table: Table
    tier: Tier
    cells: tuple[tuple[MeasuredCell, ...], ...]
    verdicts: tuple[Judged, ...]
    ignored: tuple[str, ...]
    records: tuple[Record, ...]
    figures: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the tier."""
        return self.table.columns_of(self.tier)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The declared seeds of the tier."""
        return self.table.seeds[self.tier]

    @property
    def folder(self) -> Path:
        """Where the written table lies below the folder of results."""
        return folder_of(self.table, self.tier)


def measure(
    table: Table,
    tier: Tier,
    records: Sequence[Record],
    status: Mapping[str, str],
    figures: Sequence[str] = (),
) -> Measured:
    """Join ``table`` with the records of its finished cells.

    Args:
        table: the declared table.
        tier: which tier to show; records of other tiers are left out.
        records: finished runs, of this or any other table; where two records of one address
            both count, the later one is taken.
        status: by address of a cell, why it has no result; "not run" where it says nothing.
        figures: names of the paper's pictures, from :func:`read_figures`.
    """
    prefix = f"{'' if tier == 'paper' else f'{tier}/'}{table.address}/"
    by_address: dict[str, list[Record]] = {}
    written: dict[int, Record] = {}  # by identity of what is compared, the record as it was made
    for record in records:
        if address_today(record.address, type(table.config)).startswith(prefix):
            today = record.upgraded(type(table.config))
            by_address.setdefault(today.address, []).append(today)
            written[id(today)] = record

    declared: dict[tuple[str, str], list[Cell]] = {
        (row.label, column.label): [] for row in table.rows for column in table.columns_of(tier)
    }
    for cell in table.cells(tier):
        declared[cell.row, cell.column].append(cell)

    grid = tuple(
        tuple(
            _measure_cell(table, row, column, declared[row.label, column.label], by_address, status)
            for column in table.columns_of(tier)
        )
        for row in table.rows
    )
    known = {cell.address for cells in declared.values() for cell in cells}
    kept = {
        address: record
        for address, some in by_address.items()
        for record in some
        if record.result["tier"] == tier
    }
    kept |= {r.address: r for cells in grid for cell in cells for r in cell.records.values()}
    ignored = tuple(
        f"{address}: not among the declared rows, columns and seeds, so it does not count"
        for address in sorted(kept)
        if address not in known
    )
    verdicts = _judge_all(table, grid) if tier != "smoke" else ()
    every = tuple(written[id(kept[address])] for address in sorted(kept))
    aggregates = _aggregate(table, grid)
    return Measured(table, tier, grid, verdicts, ignored, every, tuple(figures), aggregates)


def terminal(measured: Measured) -> "RenderableType":
    """The table, its verdicts and its legend for the terminal; fits 100 columns."""
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    table = measured.table
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("method", max_width=26)
    grid.add_column("whose", no_wrap=True)
    for column in measured.columns:
        grid.add_column("\n".join(textwrap.wrap(column.label, NARROW)), justify="right")
    marks = marks_of(measured)
    for heading, rows in groups_of(measured):
        grid.add_section()
        if heading:
            grid.add_row(Text(heading, style="italic"))
        for cells in rows:
            here = [_narrow_lines(cell, marks) for cell in cells]
            height = max(map(len, here))
            printed = _printed_row(cells, measured)
            whose = Text("here" + "\n" * (height - 1))
            if printed:
                whose.append("\npaper", style="dim italic")
            texts = []
            for index, lines in enumerate(here):
                first, further = ("", "yellow") if cells[index].values else ("dim", "dim")
                text = Text(lines[0], style=first)
                text.append("".join("\n" + line for line in lines[1:]), style=further)
                text.append("\n" * (height - len(lines)))
                if printed:
                    text.append("\n" + printed[index], style="dim italic")
                texts.append(text)
            grid.add_row(Text(cells[0].row.label), whose, *texts)

    parts: list[RenderableType] = [
        Text(f"{table.address}: {table.title}", style="bold"),
        Text(f"here = {HERE}: {headline(measured)}"),
    ]
    if measured.tier != "smoke":
        source = table.published.source
        copied = f"paper = copied from {source}" if table.published.rows else no_numbers(table)
        parts.append(Text(copied, style="dim italic"))
    if note := tier_note(measured):
        parts.append(Text(note, style="bold yellow"))
    parts.append(grid)
    parts.extend(Text(line, style="dim") for line in legend_of(measured))
    for what, head, over_columns in aggregates_of(measured):
        summed = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in head:
            summed.add_column(name, justify="left" if name == head[0] else "right")
        for line in over_columns:
            summed.add_row(*map(Text, line))
        parts += [Text(f"\n{OVER_COLUMNS}. {what}", style="bold"), summed]
    for claim, verdicts in by_claim(measured):
        reasons = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        idle = [
            judged.column
            for judged in verdicts
            if judged.verdict.kind == "not run" and not judged.outlook
        ]
        for judged in verdicts:
            kind = judged.verdict.kind
            if judged.column not in idle:
                reasons.add_row(
                    Text(judged.column),
                    Text(kind, style=KIND_COLOURS[kind]),
                    Text(explain(judged, measured)),
                )
        parts.append(Text(f"\nClaim: {claim.text}", style="bold"))
        if len(idle) < len(verdicts):
            parts.append(Padding(reasons, (0, 0, 0, 2)))
        if idle:
            parts.append(Text(f"  not run: {', '.join(idle)}", style=KIND_COLOURS["not run"]))
    return Group(*parts)


def markdown(measured: Measured) -> str:
    """The table as Markdown: one line of measured numbers per row, the published ones below it."""
    table = measured.table
    marks = marks_of(measured)
    columns = [column.label for column in measured.columns]
    lines = [f"# {_md(table.title)}", ""]
    lines += [f"`{table.address}`, {_md(table.section)}.", ""]
    lines += [f"Lines marked **{HERE}**: {_md(headline(measured))}", ""]
    if measured.tier != "smoke":
        printed = f"Lines marked *{PRINTED}*: {_md(origin(table.published))}."
        lines += [printed if table.published.rows else _md(no_numbers(table)), ""]
    if note := tier_note(measured):
        lines += [f"**{_md(note)}**", ""]
    lines += _md_row(["method", "whose number", *columns])
    lines += _md_row([":--", ":--", *["--:"] * len(columns)], plain=True)
    for heading, rows in groups_of(measured):
        if heading:
            lines += _md_row([f"*{_md(heading)}*", "", *[""] * len(columns)], plain=True)
        for cells in rows:
            here = ["<br>".join(measured_lines(cell, marks)) for cell in cells]
            label = _md(cells[0].row.label)
            lines += _md_row([label, f"**{HERE}**", *here], plain=True)
            if numbers := _printed_row(cells, measured):
                lines += _md_row(
                    ["", f"*{PRINTED}*", *(f"*{text}*" for text in numbers)], plain=True
                )
    lines.append("")
    lines += [line for text in legend_of(measured) for line in (_md(text), "")]
    for what, head, summed in aggregates_of(measured):
        lines += [f"**{OVER_COLUMNS}.** {_md(what)}", ""]
        lines += [*_md_row(head), *_md_row([":--", *["--:"] * (len(head) - 1)], plain=True)]
        lines += [text for line in summed for text in _md_row(line)]
        lines.append("")
    for further in also_of(measured):
        lines += _md_grid("Measured here, too", further.heading, further.columns, further.lines)
    own, others = figures_of(measured)
    lines += [line for name in own for line in (f"!{_md_link(name)}", "")]
    if others:
        lines += [f"Other figures of this paper: {', '.join(map(_md_link, others))}.", ""]
    for claim, verdicts in by_claim(measured):
        lines += [f"**Claim.** {_md(claim.text)}", ""]
        lines += _md_row(["column", "verdict", "why"])
        lines += _md_row([":--"] * 3, plain=True)
        for judged in verdicts:
            why = _md(explain(judged, measured))
            lines += _md_row([_md(judged.column), f"**{judged.verdict.kind}**", why], plain=True)
        lines.append("")
    for heading, remarks in remarks_of(measured):
        lines += [f"**{heading}**", "", *(f"- {_md(remark)}" for remark in remarks), ""]
    for reference in table.references:
        lines += _md_grid(
            "Published elsewhere", origin(reference), reference.columns, printed_lines(reference)
        )
        lines += [f"{_md(key)}: {_md(note)}\n" for key, note in reference.notes.items()]
    return "\n".join(lines).rstrip() + "\n"


def latex(measured: Measured) -> str:
    """The table as a LaTeX ``table`` that needs the package booktabs."""
    table = measured.table
    marks = marks_of(measured)
    width = len(measured.columns) + 2
    caption = [f"{table.title} ({table.section}). Lines marked {HERE}: {headline(measured)}"]
    if measured.tier != "smoke":
        printed = f"Lines marked {PRINTED}: {origin(table.published)}."
        caption.append(printed if table.published.rows else no_numbers(table))
    caption += [tier_note(measured), *legend_of(measured)]
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\begin{{tabular}}{{ll{'r' * len(measured.columns)}}}",
        "\\toprule",
        _tex_row(["method", "whose number", *(column.label for column in measured.columns)]),
    ]
    for heading, rows in groups_of(measured):
        lines.append("\\midrule")
        if heading:
            lines.append(f"\\multicolumn{{{width}}}{{l}}{{\\textit{{{_tex(heading)}}}}} \\\\")
        for cells in rows:
            here = [", ".join(measured_lines(cell, marks)) for cell in cells]
            lines.append(_tex_row([cells[0].row.label, HERE, *here]))
            if numbers := _printed_row(cells, measured):
                lines.append(_tex_row(["", PRINTED, *numbers], italic=True))
    lines += [
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption{{{_tex(' '.join(filter(None, caption)))}}}",
        f"\\label{{tab:{slug(measured.tier + ' ' + table.address)}}}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv_text(measured: Measured) -> str:
    """One line per row and column, unrounded, with the value of every declared seed."""
    table = measured.table
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["domain", "paper", "table", "tier", "row", "ours", "column", "metric", "unit", "protocol"]
        + ["measured_mean", "measured_sd", "measured_low", "measured_high"]
        + ["seeds_measured", "seeds_declared", "published_mean", "published_std", "difference"]
        + [f"measured_seed_{seed}" for seed in measured.seeds]
        + ["status"]
    )
    for cells in measured.cells:
        for cell in cells:
            summary, published = cell.summary, cell.published
            writer.writerow(
                [table.domain, table.paper, table.name, measured.tier, cell.row.label]
                + ["yes" if is_ours(cell.row, table) else "no", cell.column.label]
                + [table.metric_of(cell.column), table.unit, table.protocol]
                + ([summary.mean, summary.sd, summary.low, summary.high] if summary else [None] * 4)
                + [len(cell.values), len(cell.values) + len(cell.missing)]
                + ([published.mean, published.std] if published else [None] * 2)
                + [cell.difference]
                + [cell.values.get(seed) for seed in measured.seeds]
                + ["; ".join(f"seed {seed}: {why}" for seed, why in cell.missing.items())]
            )
    return stream.getvalue()


def write(results: Path, measured: Measured) -> None:
    """Write a table and its records below ``results``, each file moved over its target.

    The files are ``[short/]<domain>/<paper>/<table>.{md,csv,tex,records.jsonl}``.

    Raises:
        ValueError: the smoke tier, which never enters results.
    """
    from shared.runs import write_atomically  # brings torch, which only the runs need

    refuse_smoke(measured)
    folder, name = results / measured.folder, measured.table.name
    lines = "".join(map(record_line, measured.records))
    write_atomically(folder / f"{name}.records.jsonl", lines)
    write_atomically(folder / f"{name}.md", markdown(measured))
    write_atomically(folder / f"{name}.csv", csv_text(measured))
    write_atomically(folder / f"{name}.tex", latex(measured))


def folder_of(table: Table, tier: Tier) -> Path:
    """``[short/]<domain>/<paper>``: where a table is written below the folder of results."""
    return Path("" if tier == "paper" else tier, table.domain, table.paper)


def read_figures(results: Path, table: Table, tier: Tier) -> tuple[str, ...]:
    """Names of the pictures (PNG) that lie in the folder of the paper's figures, sorted."""
    folder = results / folder_of(table, tier) / "figures"
    return tuple(sorted(file.name for file in folder.glob("*.png")))


def measure_finished(
    table: Table, tier: Tier, runs: Path, committed: Sequence[Record] = ()
) -> Measured:
    """The table as ``committed`` records and the finished runs below ``runs`` fill it.

    Where both hold a cell, the run counts.
    """
    own = (
        read_record(home(runs, cell.address, type(cell.config)), cell.address)
        for cell in table.cells(tier)
    )
    return measure(table, tier, [*committed, *filter(None, own)], {})


# Measuring


def _measure_cell(
    table: Table,
    row: Row,
    column: Column,
    cells: Sequence[Cell],
    by_address: Mapping[str, Sequence[Record]],
    status: Mapping[str, str],
) -> MeasuredCell:
    records: dict[int, Record] = {}
    values: dict[int, float] = {}
    missing: dict[int, str] = {}
    for cell in cells:
        why = unavailable(cell) or status.get(cell.address, NOT_RUN)
        for record in by_address.get(cell.address, ()):
            fault = _fault(record, cell, table, table.metric_of(column))
            if fault is None:
                records[cell.seed] = record
                values[cell.seed] = float(record.result["metrics"][table.metric_of(column)])
            else:
                why = fault
        if cell.seed not in records:
            missing[cell.seed] = why
    summary = summarise(values.values()) if values else None
    published = None
    if row.published is not None:
        published = table.published.value(row.published, column.label)
    difference = summary.mean - published.mean if summary and published else None
    return MeasuredCell(row, column, records, values, missing, summary, published, difference)


def _fault(record: Record, cell: Cell, table: Table, metric: str) -> str | None:
    """Why ``record`` does not count for ``cell``; None when it does."""
    if cell.unavailable:  # what its configuration does is not yet what its labels say
        return unavailable(cell)
    result = record.result
    if result["tier"] != cell.tier:
        return f"stale: measured in the {result['tier']} tier"
    if result["protocol"] != table.protocol:
        return f"stale: measured with protocol {result['protocol']}"
    if unknown := unknown_keys(record.config, cell.config):
        return f"{STALE}, with {', '.join(unknown)}, of which nothing is known today"
    if record.config != canonical(cell.config):
        return STALE
    metrics = result["metrics"]
    value = metrics.get(metric)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"failed: the result has no finite {metric}"
    return refused(metrics, table, metric)


def refused(metrics: Mapping[str, Any], table: Table, metric: str) -> str | None:
    """Why numbers of a result cannot be those that ``table`` shows of it; None when they can."""
    names = [name for name in (metric, *table.also) if name in metrics]
    found = [fault for name in names if (fault := impossible(name, metrics[name], table.unit))]
    return f"{REFUSED}: {'; '.join(found)}" if found else None


def _judge_all(table: Table, grid: tuple[tuple[MeasuredCell, ...], ...]) -> tuple[Judged, ...]:
    found = {(cell.row.label, cell.column.label): cell for cells in grid for cell in cells}
    verdicts = []
    for claim in table.claims:
        for column in claim.columns:
            better, than = found[claim.better, column], found[claim.than, column]
            numbers = (better.values, than.values, better.published, than.published)
            verdict = judge(claim, *numbers)
            said = verdict.seeds_needed is not None
            outlook = seeds_sentence(*numbers) if table.aggregates and not said else ""
            verdicts.append(Judged(claim, column, verdict, outlook))
    return tuple(verdicts)


def _aggregate(table: Table, grid: tuple[tuple[MeasuredCell, ...], ...]) -> tuple[Aggregate, ...]:
    found = []
    for name in table.aggregates:
        statistic = STATISTICS[name]
        for cells in grid:
            columns = [list(cell.values.values()) for cell in cells]
            if all(columns):
                value = float(statistic(np.concatenate(columns)))
                interval = stratified_bootstrap(columns, statistic)
                count = sum(map(len, columns))
                declared = count + sum(len(cell.missing) for cell in cells)
                label = cells[0].row.label
                found.append(Aggregate(name, label, value, interval, count, declared))
    return tuple(found)


def refuse_smoke(measured: Measured) -> None:
    """Raise ValueError for a table of the smoke tier, which never enters results."""
    if measured.tier == "smoke":
        raise ValueError(f"{measured.table.address}: the smoke tier never enters results")


# What all renderers say


def unavailable(cell: Cell) -> str:
    """Status of a cell that cannot run yet; empty for one that can."""
    return f"{UNAVAILABLE}: {cell.unavailable}" if cell.unavailable else ""


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
    done, declared = len(cell.values), len(cell.values) + len(cell.missing)
    if done < declared:
        return f"{done} of {declared} seeds"
    return f"{done} seed{'s' if done > 1 else ''}"


def measured_lines(cell: MeasuredCell, marks: Mapping[str, int]) -> list[str]:
    """What a cell shows: its number and how many seeds it lacks, or the marks of its reasons."""
    if cell.summary is None:
        reasons = sorted({marks[why] for why in cell.missing.values()})
        what = UNAVAILABLE if cell.unavailable else DASH
        return [f"{what} ({', '.join(map(str, reasons))})"]
    lines = [mean_sd(cell.summary.mean, cell.summary.sd)]
    return [*lines, seeds_of(cell)] if cell.missing else lines


def _narrow_lines(cell: MeasuredCell, marks: Mapping[str, int]) -> list[str]:
    lines = measured_lines(cell, marks)
    return textwrap.wrap(lines[0], NARROW) if cell.unavailable else lines


def _printed_row(cells: Sequence[MeasuredCell], measured: Measured) -> list[str]:
    """The published line below a row; empty where no paper prints the row."""
    if cells[0].row.published is None or measured.tier == "smoke":
        return []
    return [printed_value(cell.published) for cell in cells]


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
    seeds = ", ".join(map(str, measured.seeds))
    if len(measured.seeds) > 5 and measured.seeds == tuple(range(len(measured.seeds))):
        seeds = f"0 to {measured.seeds[-1]}"
    spread = f"mean ± sample standard deviation over seeds {seeds}"
    if len(measured.seeds) == 1:
        spread = f"seed {seeds} only"
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
            grids.append(Further(metric, measured.table.unit, tuple(columns), rows))
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
                rows.setdefault(seeds, []).append(cell.row.label)
        for seeds, labels in rows.items():
            which = ", ".join(labels) if len(labels) <= NAMED_ROWS else f"{len(labels)} rows"
            if len(labels) == len(column):
                which = "all rows"
            if seeds != measured.seeds:
                which = f"seed {', '.join(map(str, seeds))} of {which}"
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


def explain(judged: Judged, measured: Measured) -> str:
    """The sentence of a verdict and what it rests on."""
    verdict = judged.verdict
    parts = [verdict.sentence]
    if verdict.inside:
        parts.append(f"{verdict.inside[0].upper()}{verdict.inside[1:]}.")
    if 0 < len(verdict.seeds_used) < len(measured.seeds):
        parts.append(f"Rests on {len(verdict.seeds_used)} of {len(measured.seeds)} declared seeds.")
    if judged.outlook:
        parts.append(judged.outlook)
    return " ".join(parts)


def remarks_of(measured: Measured) -> list[tuple[str, list[str]]]:
    """Deviations, what is known of the published numbers, notes, and what does not count."""
    table = measured.table
    printed = [f"{label}: {note}" for label, note in table.published.notes.items()]
    counted = [r for cells in measured.cells for cell in cells for r in cell.records.values()]
    incomplete = [r.address for r in counted if r.environment.get("allow_missing")]
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


# Markdown and LaTeX


def _md(text: str) -> str:
    text = re.sub(r"([\\|*_`\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _md_link(figure: str) -> str:
    return f"[{_md(figure)}](figures/{quote(figure)})"


def _md_grid(
    heading: str, what: str, columns: Sequence[str], numbers: Mapping[str, Sequence[str]]
) -> list[str]:
    lines = [f"**{heading}.** {_md(what)}", ""]
    lines += _md_row(["method", *columns])
    lines += _md_row([":--", *["--:"] * len(columns)], plain=True)
    for label, texts in numbers.items():
        lines += _md_row([label, *texts])
    return [*lines, ""]


def _md_row(cells: Iterable[str], plain: bool = False) -> list[str]:
    """One line of a Markdown table; ``plain`` cells are Markdown already."""
    return ["| " + " | ".join(cells if plain else map(_md, cells)) + " |"]


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    DASH: "--",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))


def _tex_row(cells: Iterable[str], italic: bool = False) -> str:
    texts = (f"\\textit{{{_tex(cell)}}}" if italic and cell else _tex(cell) for cell in cells)
    return " & ".join(texts) + r" \\"
