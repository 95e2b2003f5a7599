"""The tables of a report as one HTML page: every number leads to the runs behind it."""

import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shared.experiment.records import Record
from shared.experiment.runs import write_atomically
from shared.experiment.tables import Claim, Published, canonical_json, slug
from shared.report.measuring import Judged, Measured, MeasuredCell, refuse_smoke
from shared.report.wording import (
    HERE,
    OVER_COLUMNS,
    PRINTED,
    aggregates_of,
    also_of,
    badge,
    by_claim,
    evidence_of,
    explain,
    figures_of,
    groups_of,
    headline,
    is_ours,
    legend_of,
    marks_of,
    mean_sd,
    measured_lines,
    name_of,
    no_numbers,
    origin,
    printed_lines,
    printed_value,
    remarks_of,
    seeds_of,
    tier_note,
)


def html(measured: Sequence[Measured]) -> str:
    """One page with every table of ``measured``; only pictures lie outside it.

    Raises:
        ValueError: a table of the smoke tier, which never enters results.
    """
    for each in measured:
        refuse_smoke(each)
    contents = "".join(
        f'<li><a href="#{_anchor(each)}">{escape(name_of(each))}</a> '
        f"{escape(each.table.title)}</li>"
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


def write_index(results: Path, measured: Sequence[Measured]) -> None:
    """Write the page of all tables to ``results/index.html``, moved over its target.

    Raises:
        ValueError: a table of the smoke tier.
    """
    write_atomically(results / "index.html", html(measured))


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
.gain { background: #d8eef5; color: #0e4f63; }
.no-gain { background: #fbdedb; color: #8a1c12; }
.inconclusive, .undecided { background: #fdefc8; color: #6f4b00; }
.no-evidence, .not-run { background: #e8eaee; color: #444b58; }
details { border-bottom: 1px solid var(--line); padding: .3rem 0; }
details:target { background: #eef5fc; }
summary { cursor: pointer; }
dl { margin: .3rem 0 .3rem 1rem; font-size: .88rem; overflow-wrap: anywhere; }
dt { font-weight: 600; float: left; clear: left; margin-right: .5rem; }
dd { margin: 0; }
img { max-width: 100%; }
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
    table, width = measured.table, len(measured.columns)
    marks = marks_of(measured)
    each, heads = 1, f'<th class="here">{HERE}</th>'
    source = escape(no_numbers(table))
    if table.published.rows:
        each, heads = 2, f'{heads}<th class="printed">{PRINTED}</th>'
        source = f'<i class="printed">{PRINTED}</i>: {escape(origin(table.published))}'
    datasets = "".join(
        f'<th colspan="{each}" scope="colgroup">{escape(column.label)}</th>'
        for column in measured.columns
    )
    bodies = ""
    for heading, rows in groups_of(measured):
        head = ""
        if heading:
            head = f'<tr class="group"><th colspan="{1 + each * width}">{escape(heading)}</th></tr>'
        lines = "".join(_html_row(cells, measured, marks) for cells in rows)
        bodies += f'<tbody class="{"ours" if heading else "paper"}">{head}{lines}</tbody>\n'
    note = tier_note(measured)
    legend = "".join(f'<p class="soft">{escape(line)}</p>\n' for line in legend_of(measured))
    remarks = "".join(
        f"<h3>{escape(heading)}</h3>\n<ul>"
        + "".join(f"<li>{escape(line)}</li>" for line in lines)
        + "</ul>\n"
        for heading, lines in remarks_of(measured)
    )
    runs = "".join(
        _html_runs(cell, measured) for cells in measured.cells for cell in cells if cell.records
    )
    return (
        f'<section id="{_anchor(measured)}">\n<h2>{escape(table.title)}</h2>\n'
        f'<p class="soft"><code>{escape(name_of(measured))}</code>, {escape(table.section)}</p>\n'
        + (f'<p class="banner">{escape(note)}</p>\n' if note else "")
        + f'<p><b class="here">{HERE}</b>: {escape(headline(measured))}</p>\n'
        f"<p>{source}</p>\n"
        f'<div class="scroll"><table class="results">\n<thead><tr><th rowspan="2">method</th>'
        f"{datasets}</tr><tr>{heads * width}</tr></thead>\n{bodies}</table></div>\n{legend}"
        + _html_aggregates(measured)
        + "".join(
            _html_grid("Measured here, too", "here", each.heading, each.columns, each.lines)
            for each in also_of(measured)
        )
        + _html_figures(measured)
        + _html_evidence(measured)
        + "".join(_html_claim(claim, judged, measured) for claim, judged in by_claim(measured))
        + remarks
        + "".join(map(_html_reference, table.references))
        + (f"<h3>The runs behind the numbers</h3>\n{runs}" if runs else "")
        + "</section>\n"
    )


def _html_row(cells: Sequence[MeasuredCell], measured: Measured, marks: Mapping[str, int]) -> str:
    row = cells[0].row
    tag = ' <span class="tag">ours</span>' if is_ours(row, measured.table) else ""
    texts = []
    for cell in cells:
        label = escape(cell.column.label)
        if cell.summary is None:
            here = escape(measured_lines(cell, marks)[0])
        else:
            number = mean_sd(cell.summary.mean, cell.summary.sd)
            here = (
                f'<a href="#{_anchor(measured, cell)}">{number}</a><small>{seeds_of(cell)}</small>'
            )
        printed = printed_value(cell.published) if row.published and cell.declared else ""
        if cell.difference is not None:
            printed += f"<small>{cell.difference:+.2f}</small>"
        partial = " partial" if cell.values and cell.missing else ""
        none = " none" if cell.published is None else ""
        texts.append(f'<td class="here{partial}" data-label="{label}, {HERE}">{here}</td>')
        if measured.table.published.rows:
            texts.append(
                f'<td class="printed{none}" data-label="{label}, {PRINTED}">{printed}</td>'
            )
    return f'<tr><th scope="row">{escape(row.label)}{tag}</th>{"".join(texts)}</tr>\n'


def _html_aggregates(measured: Measured) -> str:
    text = ""
    for what, head, lines in aggregates_of(measured):
        heads = "".join(f"<th>{escape(name)}</th>" for name in head)
        rows = "".join(
            f'<tr><th scope="row">{escape(label)}</th>'
            + "".join(f'<td class="here">{escape(number)}</td>' for number in numbers)
            + "</tr>"
            for label, *numbers in lines
        )
        text += (
            f'<h3>{OVER_COLUMNS}</h3>\n<p class="here">{escape(what)}</p>\n'
            f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>\n"
        )
    return text


def _html_figures(measured: Measured) -> str:
    """The pictures of the table, and links to the other ones of its paper."""
    own, others = (
        [(escape(name), quote((measured.folder / "figures" / name).as_posix())) for name in names]
        for names in figures_of(measured)
    )
    text = "".join(f'<p><img src="{path}" alt="{name}"></p>\n' for name, path in own)
    links = ", ".join(f'<a href="{path}">{name}</a>' for name, path in others)
    return text + (f'<p class="soft">Other figures of this paper: {links}.</p>\n' if links else "")


def _html_evidence(measured: Measured) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in evidence_of(measured))
    return f"<h3>What counts as evidence here</h3>\n<ul>{lines}</ul>\n" if lines else ""


def _html_claim(claim: Claim, verdicts: Sequence[Judged], measured: Measured) -> str:
    lines = "".join(
        f"<li><b>{escape(judged.column)}</b> "
        f'<span class="kind {slug(judged.verdict.kind)}">{badge(judged, measured.tier)}</span> '
        f"{escape(explain(judged, measured))}</li>\n"
        for judged in verdicts
    )
    return f'<h3>Claim: {escape(claim.text)}</h3>\n<ul class="verdicts">{lines}</ul>\n'


def _html_grid(
    heading: str,
    whose: str,
    what: str,
    columns: Sequence[str],
    numbers: Mapping[str, Sequence[str]],
) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f'<td class="{whose}">{text}</td>' for text in texts)
        + "</tr>"
        for label, texts in numbers.items()
    )
    return (
        f'<h3>{heading}</h3>\n<p class="{whose}">{escape(what)}</p>\n'
        f'<div class="scroll"><table><thead><tr><th>method</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n"
    )


def _html_reference(reference: Published) -> str:
    """Printed numbers of another paper, and what is known of them."""
    numbers = origin(reference), reference.columns, printed_lines(reference)
    return _html_grid("Published elsewhere", "printed", *numbers) + "".join(
        f'<p class="soft">{escape(label)}: {escape(note)}</p>'
        for label, note in reference.notes.items()
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
            f"./reproduce.sh --cell {escape(record.address)}</code>"
            f"{_taken_over(record)}</td></tr>\n"
        )
    facts = ""
    for name, describe in (
        ("commit", _commit),
        ("data, SHA-256", lambda record: _plain(record.environment["data"])),
        ("machine", _machine),
        ("versions", lambda record: _plain(record.environment["versions"])),
    ):
        seeds: dict[str, list[int]] = {}
        for seed, record in cell.records.items():
            seeds.setdefault(describe(record), []).append(seed)
        for text, which in seeds.items():
            only = f" (seed {', '.join(map(str, which))})" if len(seeds) > 1 else ""
            # An empty line has no height, and the next one would slip beside this name.
            facts += f"<dt>{name}{only}</dt><dd>{escape(text) or 'none'}</dd>\n"
    number = mean_sd(cell.summary.mean, cell.summary.sd)
    return (
        f'<details id="{_anchor(measured, cell)}"><summary>{escape(cell.row.label)}, '
        f'{escape(cell.column.label)}: <b class="here">{number}</b> '
        f"<small>{seeds_of(cell)}</small></summary>\n<dl>{facts}</dl>\n"
        '<div class="scroll"><table><thead><tr><th>seed</th>'
        f"<th>{escape(measured.table.metric_of(cell.column))}</th><th>seconds</th><th>peak MiB</th>"
        "<th>started</th><th>configuration, SHA-256</th><th>command</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div></details>\n"
    )


def _taken_over(record: Record) -> str:
    if "run_at" not in record.environment:
        return ""
    return f"<small>taken over from the equal run {escape(record.environment['run_at'])}</small>"


def _commit(record: Record) -> str:
    dirty = " (dirty: with uncommitted changes)" if record.environment["dirty"] else ""
    return f"{record.environment['commit']}{dirty}"


def _machine(record: Record) -> str:
    return _plain(record.environment["hardware"] | record.environment.get("facts", {}))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in sorted(value.items()))
    return str(value)
