"""The report as one HTML page: what holds of every claim, then the tables behind it.

Every number leads to the runs behind it. The frame of the page is ``page.html.j2``.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from shared.experiment.records import Record
from shared.experiment.runs import write_atomically
from shared.experiment.tables import TIERS, Claim, Published, Tier, canonical_json, slug
from shared.report.claims import CLAIMS, Entry, entries, sentences, tallied
from shared.report.claims import write as write_claims
from shared.report.measuring import Judged, Measured, MeasuredCell, refuse_smoke
from shared.report.statistics import DECIDED, Kind
from shared.report.wording import (
    DASH,
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


def html(measured: Sequence[Measured], every: Sequence[Measured] | None = None) -> str:
    """One page: what holds of the papers' claims, then every table; only pictures lie outside it.

    Args:
        measured: the tables that are shown.
        every: those whose claims are listed; None for the same ones.

    Raises:
        ValueError: a table of the smoke tier, which never enters results.
    """
    for each in measured:
        refuse_smoke(each)
    every = measured if every is None else every
    listed = entries(every)
    tables = {(each.tier, each.table.address): _anchor(each) for each in measured}
    titles = _titles(every)
    form = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template("page.html.j2")
    return form.render(
        papers=[
            _Paper.of(paper, titles.get(paper, ""), sentence, listed, tables)
            for paper, sentence in sentences(listed).items()
        ],
        filters={
            name: sorted({getattr(entry, name) for entry in listed})
            for name in ("paper", "domain", "tier")
        },
        shapes=SHAPES,
        heads=HEADS,
        slug=slug,
        claims_file=CLAIMS,
        here=HERE,
        printed=PRINTED,
        tables=Markup("".join(map(_html_table, measured))),  # each escapes what it shows
    )


def write_index(
    results: Path, measured: Sequence[Measured], every: Sequence[Measured] | None = None
) -> None:
    """Write ``results/index.html`` and the ``claims.json`` that it leads to; see :func:`html`.

    Raises:
        ValueError: a table of the smoke tier.
    """
    text = html(measured, every)
    write_claims(results, entries(measured if every is None else every))
    write_atomically(results / "index.html", text)


# Besides its colour every verdict has a shape: filled says yes, a cross or a fall says no.
SHAPES: dict[Kind, str] = {
    "reproduced": "●",
    "same direction": "◐",
    "not reproduced": "✕",
    "inconclusive": "○",
    "gain": "▲",
    "no gain": "▼",
    "undecided": "◇",
    "no evidence": "∅",
    "not run": DASH,
}
HEADS = (
    "rows",
    "where",
    "verdict",
    "gain, 95% interval",
    "published gain",
    "seeds",
    "power reached (declared)",
)


@dataclass(frozen=True)
class _Block:
    """The comparisons of one claim in one domain and tier, summed up."""

    tier: Tier
    tally: list[tuple[int, Kind, bool]]
    facts: list[str]


@dataclass(frozen=True)
class _One:
    """One measured comparison: its rows, then the texts under the further ``HEADS``."""

    domain: str
    tier: Tier
    kind: Kind
    rows: str
    link: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class _Line:
    """A claim of which something is measured."""

    anchor: str
    sentence: str
    blocks: Mapping[str, list[_Block]]
    measured: list[_One]


@dataclass(frozen=True)
class _Idle:
    """A claim of which nothing is measured."""

    sentence: str
    domains: str
    where: str


@dataclass(frozen=True)
class _Paper:
    """What the page begins with, for one paper."""

    name: str
    title: str
    sentence: str
    domains: list[str]
    lines: list[_Line]
    idle: list[_Idle]

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        sentence: str,
        listed: Sequence[Entry],
        tables: Mapping[tuple[Tier, str], str],
    ) -> "_Paper":
        by_sentence: dict[str, list[Entry]] = {}
        for entry in listed:
            if entry.paper == name:
                by_sentence.setdefault(entry.sentence, []).append(entry)
        lines, idle = [], []
        for text, some in by_sentence.items():
            domains = list(dict.fromkeys(entry.domain for entry in some))
            if measured := [entry for entry in some if entry.measured]:
                blocks = {
                    domain: [
                        _Block(tier, tallied(own), _facts(own))
                        for tier in TIERS
                        if (own := [e for e in some if (e.domain, e.tier) == (domain, tier)])
                    ]
                    for domain in domains
                }
                ones = [_one(entry, tables) for entry in measured]
                lines.append(_Line(f"claim--{name}--{slug(text)}", text, blocks, ones))
            else:
                where = ", ".join(dict.fromkeys(f"{e.domain} {e.table}" for e in some))
                idle.append(_Idle(text, " ".join(domains), where))
        seen = list(dict.fromkeys(domain for line in lines for domain in line.blocks))
        return cls(name, title, sentence, seen, lines, idle)


def _titles(every: Sequence[Measured]) -> dict[str, str]:
    """By paper its title, from where its printed numbers come."""
    return {
        each.table.paper: each.table.published.source.split(", ")[0]
        for each in every
        if any(not claim.asked_here for claim in each.table.claims)
    }


def _one(entry: Entry, tables: Mapping[tuple[Tier, str], str]) -> _One:
    idle = entry.verdict in DECIDED and not entry.counts
    address = f"{entry.domain}/{entry.paper}/{entry.table}"
    metric = " ".join(filter(None, (entry.metric, f"({entry.unit})" if entry.unit else "")))
    texts = (
        f"{entry.domain}, {entry.table}, {entry.column}: {metric}",
        f"{entry.tier} tier: {entry.verdict}{', does not count' if idle else ''}",
        _gain(entry),
        DASH if entry.published_gain is None else f"{entry.published_gain:+.2f}",
        f"{len(entry.seeds)} of {entry.declared_seeds}",
        _power([entry]) or "not declared",
    )
    link = tables.get((entry.tier, address), "")
    rows = f"{entry.better} over {entry.than}"
    return _One(entry.domain, entry.tier, entry.verdict, rows, link, texts)


def _facts(some: Sequence[Entry]) -> list[str]:
    """Gains measured and published, seeds and power of the measured ones, a line each."""
    measured = [entry for entry in some if entry.measured]
    gains = [entry.gain for entry in measured if entry.gain is not None]
    if not gains:
        return []
    lows = [entry.low for entry in measured if entry.low is not None]
    highs = [entry.high for entry in measured if entry.high is not None]
    if len(measured) == 1:
        text = f"gain {_gain(measured[0])}"
    else:
        text = f"gains {_signed(gains)}"
        if lows and highs:
            text += f", 95% intervals within [{min(lows):+.2f}, {max(highs):+.2f}]"
            if without := len(measured) - len(lows):
                text += f" ({without} without one)"
    printed = [entry.published_gain for entry in measured if entry.published_gain is not None]
    text += f"; published {_signed(printed)}" if printed else "; the paper prints no gain"
    used = _numbers([len(entry.seeds) for entry in measured], "d")
    declared = _numbers([entry.declared_seeds for entry in measured], "d")
    power = _power(measured)
    return [
        text,
        f"{used} of {declared} seeds; "
        + (f"power reached (declared) {power}" if power else "no power declared"),
    ]


def _gain(entry: Entry) -> str:
    if entry.gain is None:
        return DASH
    if entry.low is None or entry.high is None:
        return f"{entry.gain:+.2f}, no interval"
    return f"{entry.gain:+.2f} [{entry.low:+.2f}, {entry.high:+.2f}]"


def _power(some: Sequence[Entry]) -> str:
    """Power reached and declared; empty where none was declared."""
    powers = [entry.power for entry in some if entry.power is not None]
    declared = [each["declared"] for each in powers if each["declared"] is not None]
    reached = [each["reached"] for each in powers if each["reached"] is not None]
    if not declared:
        return ""
    return f"{_numbers(reached, '.2f') if reached else DASH} ({_numbers(declared, '.2f')})"


def _signed(numbers: Sequence[float]) -> str:
    return _numbers(numbers, "+.2f")


def _numbers(numbers: Sequence[float], form: str) -> str:
    """The least and the greatest of some numbers; one number where they are the same."""
    least, most = f"{min(numbers):{form}}", f"{max(numbers):{form}}"
    return least if least == most else f"{least} to {most}"


# Wide tables scroll by themselves, with the arrow keys, too.
_SCROLL = '<div class="scroll" tabindex="0">'


def _anchor(measured: Measured, cell: MeasuredCell | None = None) -> str:
    labels = (cell.row.label, cell.column.label) if cell else ()
    return "--".join(map(slug, (f"{measured.tier} {measured.table.address}", *labels)))


def _html_table(measured: Measured) -> str:
    table, width = measured.table, len(measured.columns)
    marks = marks_of(measured)
    each, heads = 1, f'<th class="here" scope="col">{HERE}</th>'
    source = escape(no_numbers(table))
    if table.published.rows:
        each, heads = 2, f'{heads}<th class="printed" scope="col">{PRINTED}</th>'
        source = f'<i class="printed">{PRINTED}</i>: {escape(origin(table.published))}'
    datasets = "".join(
        f'<th colspan="{each}" scope="colgroup">{escape(column.label)}</th>'
        for column in measured.columns
    )
    bodies = ""
    for heading, rows in groups_of(measured):
        head = ""
        if heading:
            over = f'colspan="{1 + each * width}" scope="rowgroup"'
            head = f'<tr class="group"><th {over}>{escape(heading)}</th></tr>'
        lines = "".join(_html_row(cells, measured, marks) for cells in rows)
        bodies += f'<tbody class="{"ours" if heading else "paper"}">{head}{lines}</tbody>\n'
    note = tier_note(measured)
    legend = "".join(f'<p class="soft">{escape(line)}</p>\n' for line in legend_of(measured))
    remarks = "".join(
        f"<h4>{escape(heading)}</h4>\n<ul>"
        + "".join(f"<li>{escape(line)}</li>" for line in lines)
        + "</ul>\n"
        for heading, lines in remarks_of(measured)
    )
    runs = "".join(
        _html_runs(cell, measured) for cells in measured.cells for cell in cells if cell.records
    )
    return (
        f'<details class="table" id="{_anchor(measured)}" data-paper="{escape(table.paper)}" '
        f'data-domain="{escape(table.domain)}" data-tier="{measured.tier}">'
        f"<summary><h3>{escape(table.title)}</h3> <code>{escape(name_of(measured))}</code>"
        f'</summary>\n<p class="soft">{escape(table.section)}</p>\n'
        + (f'<p class="banner">{escape(note)}</p>\n' if note else "")
        + f'<p><b class="here">{HERE}</b>: {escape(headline(measured))}</p>\n'
        f"<p>{source}</p>\n"
        f'{_SCROLL}<table class="results">\n<caption>{escape(name_of(measured))}, measured beside '
        'published</caption>\n<thead><tr><th rowspan="2" scope="col">method</th>'
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
        + (f"<h4>The runs behind the numbers</h4>\n{runs}" if runs else "")
        + "</details>\n"
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
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
        rows = "".join(
            f'<tr><th scope="row">{escape(label)}</th>'
            + "".join(f'<td class="here">{escape(number)}</td>' for number in numbers)
            + "</tr>"
            for label, *numbers in lines
        )
        text += (
            f'<h4>{OVER_COLUMNS}</h4>\n<p class="here">{escape(what)}</p>\n'
            f"{_SCROLL}<table><caption>{OVER_COLUMNS}</caption><thead><tr>{heads}</tr></thead>"
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
    return f"<h4>What counts as evidence here</h4>\n<ul>{lines}</ul>\n" if lines else ""


def _html_claim(claim: Claim, verdicts: Sequence[Judged], measured: Measured) -> str:
    lines = "".join(
        f"<li><b>{escape(judged.column)}</b> "
        f'<span class="kind {slug(judged.verdict.kind)}">{badge(judged, measured.tier)}</span> '
        f"{escape(explain(judged, measured))}</li>\n"
        for judged in verdicts
    )
    return f'<h4>Claim: {escape(claim.text)}</h4>\n<ul class="verdicts">{lines}</ul>\n'


def _html_grid(
    heading: str,
    whose: str,
    what: str,
    columns: Sequence[str],
    numbers: Mapping[str, Sequence[str]],
) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f'<td class="{whose}">{text}</td>' for text in texts)
        + "</tr>"
        for label, texts in numbers.items()
    )
    return (
        f'<h4>{heading}</h4>\n<p class="{whose}">{escape(what)}</p>\n'
        f"{_SCROLL}<table><caption>{escape(what)}</caption>"
        f'<thead><tr><th scope="col">method</th>{head}</tr></thead>'
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
            f'<tr><th scope="row">{seed}</th><td>{cell.values[seed]:.2f}</td>'
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
    names = ("seed", measured.table.metric_of(cell.column), "seconds", "peak MiB", "started")
    heads = "".join(
        f'<th scope="col">{escape(name)}</th>'
        for name in (*names, "configuration, SHA-256", "command")
    )
    return (
        f'<details id="{_anchor(measured, cell)}"><summary>{escape(cell.row.label)}, '
        f'{escape(cell.column.label)}: <b class="here">{number}</b> '
        f"<small>{seeds_of(cell)}</small></summary>\n<dl>{facts}</dl>\n"
        f"{_SCROLL}<table><caption>The runs of this number</caption><thead><tr>{heads}</tr></thead>"
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
