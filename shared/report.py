"""From finished runs to tables that show what was measured beside what a paper prints.

``measure`` joins a declared table with the records of its finished cells; the renderers turn the
outcome into text for the terminal, Markdown, LaTeX, CSV and one HTML page. A measured number and a
published one never share a cell: every line or column says whose numbers it holds.

A record counts for a cell only if it was measured in the same tier, with the protocol and with
exactly the configuration that the table declares today; otherwise the cell is stale. Only declared
seeds count, so that nobody can add seeds until a claim comes out right.
"""

import csv
import dataclasses
import hashlib
import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import UserError
from shared.statistics import Kind, Summary, Verdict, judge, summarise
from shared.tables import (
    Cell,
    Claim,
    Column,
    Published,
    Row,
    Table,
    Tier,
    Value,
    canonical,
    canonical_json,
    slug,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shared.runs import Record

NOT_RUN = "not run"
STALE = "stale: measured with another configuration"
HERE, PRINTED = "measured here", "published"
DASH = "–"  # noqa: RUF001 (an en dash is meant)
NAMED_ROWS = 3  # more rows without a result are counted in the legend, not named
TIER_NOTES: dict[Tier, str] = {
    "paper": "",
    "short": "Short tier: real data, smaller budget than the paper's; verdicts are about this "
    "budget.",
    "smoke": "Smoke tier: embedded data, proves the path only; comparable with nothing published.",
}
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
        records: by seed, the records that count.
        values: by seed, the metric of those records.
        missing: by seed, why a declared seed has no number.
        summary: over the seeds in ``values``; None without any.
        published: the printed number; None where the paper prints none.
        difference: measured mean minus published mean; None where either lacks.
    """

    row: Row
    column: Column
    records: Mapping[int, "Record"]
    values: Mapping[int, float]
    missing: Mapping[int, str]
    summary: Summary | None
    published: Value | None
    difference: float | None


@dataclass(frozen=True)
class Judged:
    """The verdict on one claim in one column."""

    claim: Claim
    column: str
    verdict: Verdict


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
            that counts, else the last one given.
    """

    table: Table
    tier: Tier
    cells: tuple[tuple[MeasuredCell, ...], ...]
    verdicts: tuple[Judged, ...]
    ignored: tuple[str, ...]
    records: tuple["Record", ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the tier."""
        return self.table.columns_of(self.tier)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The declared seeds of the tier."""
        return self.table.seeds[self.tier]


def measure(
    table: Table,
    tier: Tier,
    records: Sequence["Record"],
    status: Mapping[str, str],
) -> Measured:
    """Join ``table`` with the records of its finished cells.

    Args:
        table: the declared table.
        tier: which tier to show; records of other tiers are left out.
        records: finished runs, of this or any other table; where two records of one address
            both count, the later one is taken.
        status: by address of a cell, why it has no result; "not run" where it says nothing.
    """
    by_address: dict[str, list[Record]] = {}
    for record in records:
        by_address.setdefault(record.address, []).append(record)

    declared: dict[tuple[str, str], list[Cell]] = {}
    for cell in table.cells(tier):
        declared.setdefault((cell.row, cell.column), []).append(cell)

    grid = tuple(
        tuple(
            _measure_cell(table, row, column, declared[row.label, column.label], by_address, status)
            for column in table.columns_of(tier)
        )
        for row in table.rows
    )
    known = {cell.address for cells in declared.values() for cell in cells}
    prefix = f"{'' if tier == 'paper' else f'{tier}/'}{table.address}/"
    kept = {
        record.address: record
        for record in records
        if record.address.startswith(prefix) and record.result["tier"] == tier
    }
    kept |= {r.address: r for cells in grid for cell in cells for r in cell.records.values()}
    ignored = tuple(
        f"{address}: not among the declared rows, columns and seeds, so it does not count"
        for address in sorted(kept)
        if address not in known
    )
    verdicts = _judge_all(table, grid) if tier != "smoke" else ()
    return Measured(table, tier, grid, verdicts, ignored, tuple(kept[a] for a in sorted(kept)))


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
        grid.add_column("\n".join(textwrap.wrap(column.label, 12)), justify="right")
    marks = _marks(measured)
    for heading, rows in _groups(measured):
        grid.add_section()
        if heading:
            grid.add_row(Text(heading, style="italic"))
        for cells in rows:
            measured_lines = [_measured_lines(cell, measured, marks) for cell in cells]
            height = max(map(len, measured_lines))
            printed = _printed_row(cells, measured)
            whose = Text("here" + "\n" * (height - 1))
            if printed:
                whose.append("\npaper", style="dim italic")
            texts = []
            for index, lines in enumerate(measured_lines):
                text = Text(lines[0], style="" if cells[index].values else "dim")
                text.append("".join("\n" + line for line in lines[1:]), style="yellow")
                text.append("\n" * (height - len(lines)))
                if printed:
                    text.append("\n" + printed[index], style="dim italic")
                texts.append(text)
            grid.add_row(Text(cells[0].row.label), whose, *texts)

    parts: list[RenderableType] = [
        Text(f"{table.address}: {table.title}", style="bold"),
        Text(f"here = {HERE}: {_headline(measured)}"),
    ]
    if measured.tier != "smoke":
        parts.append(Text(f"paper = copied from {table.published.source}", style="dim italic"))
    if note := _tier_note(measured):
        parts.append(Text(note, style="bold yellow"))
    parts.append(grid)
    parts.extend(Text(line, style="dim") for line in _legend(measured))
    for claim, verdicts in _by_claim(measured):
        reasons = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        idle = [judged.column for judged in verdicts if judged.verdict.kind == "not run"]
        for judged in verdicts:
            kind = judged.verdict.kind
            if judged.column not in idle:
                reasons.add_row(
                    Text(judged.column),
                    Text(kind, style=KIND_COLOURS[kind]),
                    Text(_explain(judged, measured)),
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
    marks = _marks(measured)
    columns = [column.label for column in measured.columns]
    lines = [f"# {_md(table.title)}", ""]
    lines += [f"`{table.address}`, {_md(table.section)}.", ""]
    lines += [f"Lines marked **{HERE}**: {_md(_headline(measured))}", ""]
    if measured.tier != "smoke":
        lines += [f"Lines marked *{PRINTED}*: {_md(_origin(table.published))}.", ""]
    if note := _tier_note(measured):
        lines += [f"**{_md(note)}**", ""]
    lines += _md_row(["method", "whose number", *columns])
    lines += _md_row([":--", ":--", *["--:"] * len(columns)], plain=True)
    for heading, rows in _groups(measured):
        if heading:
            lines += _md_row([f"*{_md(heading)}*", "", *[""] * len(columns)], plain=True)
        for cells in rows:
            here = ["<br>".join(_measured_lines(cell, measured, marks)) for cell in cells]
            label = _md(cells[0].row.label)
            lines += _md_row([label, f"**{HERE}**", *here], plain=True)
            if printed := _printed_row(cells, measured):
                lines += _md_row(
                    ["", f"*{PRINTED}*", *(f"*{text}*" for text in printed)], plain=True
                )
    lines.append("")
    lines += [line for text in _legend(measured) for line in (_md(text), "")]
    for claim, verdicts in _by_claim(measured):
        lines += [f"**Claim.** {_md(claim.text)}", ""]
        lines += _md_row(["column", "verdict", "why"])
        lines += _md_row([":--"] * 3, plain=True)
        for judged in verdicts:
            why = _md(_explain(judged, measured))
            lines += _md_row([_md(judged.column), f"**{judged.verdict.kind}**", why], plain=True)
        lines.append("")
    for heading, remarks in _remarks(measured):
        lines += [f"**{heading}**", "", *(f"- {_md(remark)}" for remark in remarks), ""]
    for reference in table.references:
        lines += [f"**Published elsewhere.** {_md(_origin(reference))}", ""]
        lines += _md_row(["method", *reference.columns])
        lines += _md_row([":--", *["--:"] * len(reference.columns)], plain=True)
        for label, values in reference.rows.items():
            lines += _md_row([label, *map(_value, values)])
        lines += ["", *(f"{_md(k)}: {_md(v)}\n" for k, v in reference.notes.items())]
    return "\n".join(lines).rstrip() + "\n"


def latex(measured: Measured) -> str:
    """The table as a LaTeX ``table`` that needs the package booktabs."""
    table = measured.table
    marks = _marks(measured)
    width = len(measured.columns) + 2
    caption = [f"{table.title} ({table.section}). Lines marked {HERE}: {_headline(measured)}"]
    if measured.tier != "smoke":
        caption.append(f"Lines marked {PRINTED}: {_origin(table.published)}.")
    caption += [_tier_note(measured), *_legend(measured)]
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\begin{{tabular}}{{ll{'r' * len(measured.columns)}}}",
        "\\toprule",
        _tex_row(["method", "whose number", *(column.label for column in measured.columns)]),
    ]
    for heading, rows in _groups(measured):
        lines.append("\\midrule")
        if heading:
            lines.append(f"\\multicolumn{{{width}}}{{l}}{{\\textit{{{_tex(heading)}}}}} \\\\")
        for cells in rows:
            here = [", ".join(_measured_lines(cell, measured, marks)) for cell in cells]
            lines.append(_tex_row([cells[0].row.label, HERE, *here]))
            if printed := _printed_row(cells, measured):
                lines.append(_tex_row(["", PRINTED, *printed], italic=True))
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
                + ["yes" if cell.row.published is None else "no", cell.column.label]
                + [table.metric, table.unit, table.protocol]
                + ([summary.mean, summary.sd, summary.low, summary.high] if summary else [None] * 4)
                + [len(cell.values), len(measured.seeds)]
                + ([published.mean, published.std] if published else [None] * 2)
                + [cell.difference]
                + [cell.values.get(seed) for seed in measured.seeds]
                + ["; ".join(f"seed {seed}: {why}" for seed, why in cell.missing.items())]
            )
    return stream.getvalue()


def html(measured: Sequence[Measured]) -> str:
    """One self-contained page with every table of ``measured``.

    Raises:
        ValueError: a table of the smoke tier, which never enters results.
    """
    for each in measured:
        _refuse_smoke(each)
    contents = "".join(
        f'<li><a href="#{_anchor(each)}">{escape(_name(each))}</a> {escape(each.table.title)}</li>'
        for each in measured
    )
    body = "".join(map(_html_table, measured)) or "<p>No table has a finished cell yet.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Measured beside published</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        "<header><h1>Measured beside published</h1>\n"
        f'<p>Columns marked <b class="here">{HERE}</b> are results of this repository: mean ± '
        f'sample standard deviation over seeds. Columns marked <i class="printed">{PRINTED}</i> '
        "are copied from the papers; the small signed number below is measured minus published. "
        "A measured number leads to the runs behind it.</p>\n"
        f"<nav><ul>{contents}</ul></nav></header>\n<main>{body}</main>\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def write(results: Path, measured: Measured) -> None:
    """Write a table and its records below ``results``, each file moved over its target.

    The files are ``[short/]<domain>/<paper>/<table>.{md,csv,tex,records.jsonl}``.

    Raises:
        ValueError: the smoke tier, which never enters results.
    """
    from shared.runs import write_atomically  # brings torch, which only the runs need

    _refuse_smoke(measured)
    lines = [json.dumps(dataclasses.asdict(each), sort_keys=True) for each in measured.records]
    table = measured.table
    folder = results / ("" if measured.tier == "paper" else measured.tier)
    folder = folder / table.domain / table.paper
    write_atomically(folder / f"{table.name}.records.jsonl", "".join(f"{line}\n" for line in lines))
    write_atomically(folder / f"{table.name}.md", markdown(measured))
    write_atomically(folder / f"{table.name}.csv", csv_text(measured))
    write_atomically(folder / f"{table.name}.tex", latex(measured))


def write_index(results: Path, measured: Sequence[Measured]) -> None:
    """Write the page of all tables to ``results/index.html``, moved over its target.

    Raises:
        ValueError: a table of the smoke tier.
    """
    from shared.runs import write_atomically  # brings torch, which only the runs need

    write_atomically(results / "index.html", html(measured))


def read_records(results: Path) -> list["Record"]:
    """All records below ``results``, in the order of their files and lines.

    Raises:
        UserError: a line that is not a record.
    """
    from shared.runs import Record  # brings torch, which only the runs need

    records = []
    for file in sorted(results.rglob("*.records.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                records.append(Record(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"{file}, line {number}: not a record ({error}); restore the file from git"
                ) from None
    return records


# Measuring


def _measure_cell(
    table: Table,
    row: Row,
    column: Column,
    cells: Sequence[Cell],
    by_address: Mapping[str, Sequence["Record"]],
    status: Mapping[str, str],
) -> MeasuredCell:
    records: dict[int, Record] = {}
    values: dict[int, float] = {}
    missing: dict[int, str] = {}
    for cell in cells:
        why = status.get(cell.address, NOT_RUN)
        for record in by_address.get(cell.address, ()):
            fault = _fault(record, cell, table)
            if fault is None:
                records[cell.seed] = record
                values[cell.seed] = float(record.result["metrics"][table.metric])
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


def _fault(record: "Record", cell: Cell, table: Table) -> str | None:
    """Why ``record`` does not count for ``cell``; None when it does."""
    result = record.result
    if result["tier"] != cell.tier:
        return f"stale: measured in the {result['tier']} tier"
    if result["protocol"] != table.protocol:
        return f"stale: measured with protocol {result['protocol']}"
    if record.config != canonical(cell.config):
        return STALE
    value = result["metrics"].get(table.metric)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"failed: the result has no finite {table.metric}"
    return None


def _judge_all(table: Table, grid: tuple[tuple[MeasuredCell, ...], ...]) -> tuple[Judged, ...]:
    found = {(cell.row.label, cell.column.label): cell for cells in grid for cell in cells}
    verdicts = []
    for claim in table.claims:
        for column in claim.columns:
            better, than = found[claim.better, column], found[claim.than, column]
            verdict = judge(claim, better.values, than.values, better.published, than.published)
            verdicts.append(Judged(claim, column, verdict))
    return tuple(verdicts)


def _refuse_smoke(measured: Measured) -> None:
    if measured.tier == "smoke":
        raise ValueError(f"{measured.table.address}: the smoke tier never enters results")


# What all renderers say


def _mean_sd(mean: float, sd: float | None) -> str:
    return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def _value(value: Value | None) -> str:
    return DASH if value is None else _mean_sd(value.mean, value.std)


def _count(cell: MeasuredCell, measured: Measured) -> str:
    done, declared = len(cell.values), len(measured.seeds)
    if done < declared:
        return f"{done} of {declared} seeds"
    return f"{done} seed{'s' if done > 1 else ''}"


def _measured_lines(cell: MeasuredCell, measured: Measured, marks: Mapping[str, int]) -> list[str]:
    if cell.summary is None:
        reasons = sorted({marks[why] for why in cell.missing.values()})
        return [f"{DASH} ({', '.join(map(str, reasons))})"]
    lines = [_mean_sd(cell.summary.mean, cell.summary.sd)]
    return [*lines, _count(cell, measured)] if cell.missing else lines


def _printed_row(cells: Sequence[MeasuredCell], measured: Measured) -> list[str]:
    """The published line below a row; empty where no paper prints the row."""
    if cells[0].row.published is None or measured.tier == "smoke":
        return []
    return [_value(cell.published) for cell in cells]


def _groups(measured: Measured) -> list[tuple[str, list[tuple[MeasuredCell, ...]]]]:
    """The rows that the paper prints, then our own under a heading of their own."""
    printed = [cells for cells in measured.cells if cells[0].row.published is not None]
    ours = [cells for cells in measured.cells if cells[0].row.published is None]
    return [pair for pair in (("", printed), ("ours (not in paper)", ours)) if pair[1]]


def _headline(measured: Measured) -> str:
    table = measured.table
    unit = f" ({table.unit})" if table.unit else ""
    seeds = ", ".join(map(str, measured.seeds))
    spread = f"mean ± sample standard deviation over seeds {seeds}"
    if len(measured.seeds) == 1:
        spread = f"seed {seeds} only"
    return (
        f"{table.metric}{unit}, {spread}; protocol {table.protocol}; "
        f"varies between repeats: {table.varies}."
    )


def _tier_note(measured: Measured) -> str:
    note = TIER_NOTES[measured.tier]
    if measured.tier == "short" and measured.table.short:
        budget = ", ".join(f"{k} = {canonical(v)}" for k, v in measured.table.short.items())
        note = f"{note} Budget: {budget}."
    return note


def _origin(published: Published) -> str:
    return f"{published.source}: {published.title} ({published.statistic})"


def _marks(measured: Measured) -> dict[str, int]:
    """A number for every reason that leaves a declared seed without a result."""
    reasons = (why for cells in measured.cells for cell in cells for why in cell.missing.values())
    return {why: number for number, why in enumerate(dict.fromkeys(reasons), start=1)}


def _legend(measured: Measured) -> list[str]:
    return [
        f"({number}) {'; '.join(_places(measured, why))}: {why}"
        for why, number in _marks(measured).items()
    ]


def _places(measured: Measured, why: str) -> list[str]:
    """The columns, rows and seeds that lack a result for one reason, in few words."""
    places = []
    for column in zip(*measured.cells, strict=True):
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
            places.append(f"{column[0].column.label} ({which})")
    if places == [f"{column.label} (all rows)" for column in measured.columns]:
        return ["every cell"]
    return places


def _by_claim(measured: Measured) -> Iterator[tuple[Claim, list[Judged]]]:
    for claim in measured.table.claims:
        if verdicts := [judged for judged in measured.verdicts if judged.claim is claim]:
            yield claim, verdicts


def _explain(judged: Judged, measured: Measured) -> str:
    verdict = judged.verdict
    parts = [verdict.sentence]
    if verdict.inside:
        parts.append(f"{verdict.inside[0].upper()}{verdict.inside[1:]}.")
    if 0 < len(verdict.seeds_used) < len(measured.seeds):
        parts.append(f"Rests on {len(verdict.seeds_used)} of {len(measured.seeds)} declared seeds.")
    return " ".join(parts)


def _remarks(measured: Measured) -> list[tuple[str, list[str]]]:
    """Deviations, what is known of the published numbers, notes, and what does not count."""
    table = measured.table
    printed = [f"{label}: {note}" for label, note in table.published.notes.items()]
    remarks = [
        (
            "Where a row deviates from the paper",
            [f"{row.label}: {row.deviation}" for row in table.rows if row.deviation],
        ),
        ("About the published numbers", [*printed, *table.published.warnings]),
        ("Notes", list(table.notes)),
        ("Finished but not counted", list(measured.ignored)),
    ]
    return [(heading, lines) for heading, lines in remarks if lines]


def _name(measured: Measured) -> str:
    address = measured.table.address
    return address if measured.tier == "paper" else f"{address} ({measured.tier} tier)"


# Markdown and LaTeX


def _md(text: str) -> str:
    text = re.sub(r"([\\|*_`\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


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


# HTML

_STYLE = """
:root { --ink: #1d2433; --soft: #5d6678; --line: #dde2ea; --here: #0b4f8a; --ours: #f3f8f4; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 1.5rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .25rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .3rem 0; max-width: 60rem; }
a { color: var(--here); }
code { font-size: .85em; overflow-wrap: anywhere; }
small, .soft { color: var(--soft); font-size: .85rem; }
.banner { background: #fff4d6; border-left: 4px solid #d99a00; padding: .5rem .8rem; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .84rem; }
th, td { padding: .3rem .45rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead th { vertical-align: bottom; }
thead th[colspan] { text-align: center; border-left: 1px solid var(--line); }
th:first-child, tbody th { text-align: left; }
tbody th { font-weight: 600; white-space: normal; min-width: 10rem; max-width: 16rem;
  position: sticky; left: 0; background: inherit; }
tbody tr { background: #fff; }
td small { display: block; font-size: .75rem; }
.here { color: var(--here); }
.printed { color: var(--soft); font-style: italic; font-weight: normal; }
td.here { font-weight: 600; border-left: 1px solid var(--line); }
td.here small { font-weight: normal; }
td.partial small { color: #9a5b00; }
tr.group th { padding-top: 1rem; background: var(--ours); font-style: italic; }
tbody.ours tr { background: var(--ours); }
.tag { font: 600 .7rem/1 system-ui, sans-serif; border: 1px solid #5f9b6d; color: #2f6b3d;
  border-radius: 3px; padding: .1rem .3rem; white-space: nowrap; }
ul.verdicts { list-style: none; padding: 0; margin: .3rem 0; max-width: 64rem; }
ul.verdicts li { padding: .35rem 0; border-bottom: 1px solid var(--line); }
.kind { display: inline-block; border-radius: 3px; padding: .05rem .45rem; font-weight: 600;
  font-size: .8rem; }
.reproduced { background: #d9f2df; color: #145a26; }
.same-direction { background: #d8eef5; color: #0e4f63; }
.not-reproduced { background: #fbdedb; color: #8a1c12; }
.inconclusive { background: #fdefc8; color: #6f4b00; }
.not-run { background: #e8eaee; color: #444b58; }
details { border-bottom: 1px solid var(--line); padding: .3rem 0; }
details:target { background: #eef5fc; }
summary { cursor: pointer; }
dl { margin: .3rem 0 .3rem 1rem; font-size: .88rem; overflow-wrap: anywhere; }
dt { font-weight: 600; float: left; clear: left; margin-right: .5rem; }
dd { margin: 0; }
@media (max-width: 46rem) {
  body { padding: 1rem; }
  .results, .results tbody, .results tr, .results th { display: block; }
  .results thead { display: none; }
  .results tbody th { position: static; border: 0; max-width: none; }
  .results tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  .results td { display: grid; grid-template-columns: 1fr auto; column-gap: .6rem; border: 0;
    padding: .1rem .45rem; }
  .results td::before { content: attr(data-label); font-weight: normal; text-align: left; }
  .results td small { grid-column: 2; }
  .results td.none { display: none; }
}
"""

_SCRIPT = """
function reveal() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
reveal();
"""


def _anchor(measured: Measured, cell: MeasuredCell | None = None) -> str:
    labels = (cell.row.label, cell.column.label) if cell else ()
    return "--".join(map(slug, (f"{measured.tier} {measured.table.address}", *labels)))


def _html_table(measured: Measured) -> str:
    table = measured.table
    marks = _marks(measured)
    datasets = "".join(
        f'<th colspan="2" scope="colgroup">{escape(column.label)}</th>'
        for column in measured.columns
    )
    whose = f'<th class="here">{HERE}</th><th class="printed">{PRINTED}</th>' * len(
        measured.columns
    )
    bodies = ""
    for heading, rows in _groups(measured):
        head = ""
        if heading:
            span = 1 + 2 * len(measured.columns)
            head = f'<tr class="group"><th colspan="{span}">{escape(heading)}</th></tr>'
        lines = "".join(_html_row(cells, measured, marks) for cells in rows)
        bodies += f'<tbody class="{"ours" if heading else "paper"}">{head}{lines}</tbody>\n'
    note = _tier_note(measured)
    legend = "".join(f'<p class="soft">{escape(line)}</p>\n' for line in _legend(measured))
    remarks = "".join(
        f"<h3>{escape(heading)}</h3>\n<ul>"
        + "".join(f"<li>{escape(line)}</li>" for line in lines)
        + "</ul>\n"
        for heading, lines in _remarks(measured)
    )
    runs = "".join(
        _html_runs(cell, measured) for cells in measured.cells for cell in cells if cell.records
    )
    return (
        f'<section id="{_anchor(measured)}">\n<h2>{escape(table.title)}</h2>\n'
        f'<p class="soft"><code>{escape(_name(measured))}</code>, {escape(table.section)}</p>\n'
        + (f'<p class="banner">{escape(note)}</p>\n' if note else "")
        + f'<p><b class="here">{HERE}</b>: {escape(_headline(measured))}</p>\n'
        f'<p><i class="printed">{PRINTED}</i>: {escape(_origin(table.published))}</p>\n'
        f'<div class="scroll"><table class="results">\n<thead><tr><th rowspan="2">method</th>'
        f"{datasets}</tr><tr>{whose}</tr></thead>\n{bodies}</table></div>\n{legend}"
        + "".join(_html_claim(claim, judged, measured) for claim, judged in _by_claim(measured))
        + remarks
        + "".join(map(_html_reference, table.references))
        + (f"<h3>The runs behind the numbers</h3>\n{runs}" if runs else "")
        + "</section>\n"
    )


def _html_row(cells: Sequence[MeasuredCell], measured: Measured, marks: Mapping[str, int]) -> str:
    row = cells[0].row
    tag = ' <span class="tag">ours</span>' if row.published is None else ""
    texts = []
    for cell in cells:
        label = escape(cell.column.label)
        if cell.summary is None:
            here = escape(_measured_lines(cell, measured, marks)[0])
        else:
            number = _mean_sd(cell.summary.mean, cell.summary.sd)
            here = (
                f'<a href="#{_anchor(measured, cell)}">{number}</a>'
                f"<small>{_count(cell, measured)}</small>"
            )
        printed = _value(cell.published) if row.published else ""
        if cell.difference is not None:
            printed += f"<small>{cell.difference:+.2f}</small>"
        partial = " partial" if cell.values and cell.missing else ""
        none = " none" if cell.published is None else ""
        texts.append(
            f'<td class="here{partial}" data-label="{label}, {HERE}">{here}</td>'
            f'<td class="printed{none}" data-label="{label}, {PRINTED}">{printed}</td>'
        )
    return f'<tr><th scope="row">{escape(row.label)}{tag}</th>{"".join(texts)}</tr>\n'


def _html_claim(claim: Claim, verdicts: Sequence[Judged], measured: Measured) -> str:
    lines = "".join(
        f"<li><b>{escape(judged.column)}</b> "
        f'<span class="kind {slug(judged.verdict.kind)}">{judged.verdict.kind}</span> '
        f"{escape(_explain(judged, measured))}</li>\n"
        for judged in verdicts
    )
    return f'<h3>Claim: {escape(claim.text)}</h3>\n<ul class="verdicts">{lines}</ul>\n'


def _html_reference(reference: Published) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in reference.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f'<td class="printed">{_value(value)}</td>' for value in values)
        + "</tr>"
        for label, values in reference.rows.items()
    )
    notes = "".join(
        f'<p class="soft">{escape(label)}: {escape(note)}</p>'
        for label, note in reference.notes.items()
    )
    return (
        f'<h3>Published elsewhere</h3>\n<p class="printed">{escape(_origin(reference))}</p>\n'
        f'<div class="scroll"><table><thead><tr><th>method</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n{notes}"
    )


def _html_runs(cell: MeasuredCell, measured: Measured) -> str:
    """The disclosure behind one measured number: what was run, where, and at what cost."""
    assert cell.summary is not None  # a cell with records has values
    rows = ""
    for seed, record in cell.records.items():
        digest = hashlib.sha256(canonical_json(record.config).encode()).hexdigest()
        rows += (
            f"<tr><td>{seed}</td><td>{cell.values[seed]:.2f}</td>"
            f"<td>{record.result['seconds']:.1f}</td>"
            f"<td>{record.result['peak_memory_bytes'] / 2**20:.0f}</td>"
            f"<td>{escape(str(record.environment['started']))}</td>"
            f'<td><code title="{digest}">{digest[:12]}</code></td>'
            f'<td><code title="started as: {escape(str(record.environment["command"]))}">'
            f"./reproduce.sh --cell {escape(record.address)}</code></td></tr>\n"
        )
    facts = ""
    for name, describe in (
        ("commit", _commit),
        ("data, SHA-256", lambda record: _plain(record.environment["data"])),
        ("machine", lambda record: _plain(record.environment["hardware"])),
        ("versions", lambda record: _plain(record.environment["versions"])),
    ):
        seeds: dict[str, list[int]] = {}
        for seed, record in cell.records.items():
            seeds.setdefault(describe(record), []).append(seed)
        for text, which in seeds.items():
            only = f" (seed {', '.join(map(str, which))})" if len(seeds) > 1 else ""
            facts += f"<dt>{name}{only}</dt><dd>{escape(text)}</dd>\n"
    number = _mean_sd(cell.summary.mean, cell.summary.sd)
    return (
        f'<details id="{_anchor(measured, cell)}"><summary>{escape(cell.row.label)}, '
        f'{escape(cell.column.label)}: <b class="here">{number}</b> '
        f"<small>{_count(cell, measured)}</small></summary>\n<dl>{facts}</dl>\n"
        '<div class="scroll"><table><thead><tr><th>seed</th>'
        f"<th>{escape(measured.table.metric)}</th><th>seconds</th><th>peak MiB</th>"
        "<th>started</th><th>configuration, SHA-256</th><th>command</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div></details>\n"
    )


def _commit(record: "Record") -> str:
    dirty = " (dirty: with uncommitted changes)" if record.environment["dirty"] else ""
    return f"{record.environment['commit']}{dirty}"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in sorted(value.items()))
    return str(value)
