"""The pages behind the first screen: one for each claim, table and loss, and the runs of a table.

Pages are files that open from disk: they load one style sheet and nothing else. Their addresses
follow from what they are about, so that a link holds for as long as the claim or table stands.
"""

import hashlib
import re
import shlex
import statistics as plain
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from shared.experiment.history import differing, shown
from shared.experiment.records import Record
from shared.experiment.tables import Row, canonical, canonical_json, slug
from shared.report import drawings, losses
from shared.report.blocks import Lines, Numbers, numbers_of, reasons_of
from shared.report.claims import Entry, entries
from shared.report.curves import Curve
from shared.report.measuring import Judged, Measured, MeasuredCell
from shared.report.statistics import DECIDED, Kind
from shared.report.wording import (
    DASH,
    HERE,
    PRINTED,
    figures_of,
    groups_of,
    headline,
    is_ours,
    legend_of,
    marks_of,
    mean_sd,
    measured_lines,
    name_of,
    named_seeds,
    no_numbers,
    origin,
    printed_value,
    seeds_of,
    tier_note,
)

SITE = "site"
STYLE = "site.css"
HOURS = 3600.0
NOTHING_SAID = (
    "Nothing is printed or declared that says how large a gain is to be seen, so no number of "
    "seeds follows; declare a power first."
)
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


@dataclass(frozen=True)
class Compared:
    """One comparison with all that its page shows of it."""

    entry: Entry
    judged: Judged
    measured: Measured

    @property
    def rows(self) -> tuple[Row, Row]:
        """The row said to be better, and the other."""
        found = {row.label: row for row in self.measured.table.rows}
        return found[self.entry.better], found[self.entry.than]

    @property
    def cells(self) -> tuple[MeasuredCell, MeasuredCell]:
        """Both rows in the column."""
        found = {cell.row.label: cell for cell in self.measured.column(self.entry.column)}
        return found[self.entry.better], found[self.entry.than]


def forms() -> Environment:
    """The templates of this folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(slug=slug, shapes=SHAPES, here=HERE, printed=PRINTED)
    return environment


def claim_page(paper: str, sentence: str) -> str:
    """Where the page of a claim lies below the folder of results: its permanent address."""
    name = slug(sentence)
    if len(name) > 100:  # of a file's name; what is cut off is told apart by its hash
        name = f"{name[:90].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{SITE}/claims/{paper}--{name}.html"


def table_page(measured: Measured) -> str:
    """Where the page of a table lies below the folder of results."""
    return f"{SITE}/tables/{_name(measured)}.html"


def runs_page(measured: Measured) -> str:
    """Where the page of the runs of a table lies below the folder of results."""
    return f"{SITE}/runs/{_name(measured)}.html"


def loss_page(name: str) -> str:
    """Where the page of a loss lies below the folder of results."""
    return f"{SITE}/losses/{name}.html"


def compared(every: Sequence[Measured]) -> list[Compared]:
    """Every comparison of the measured tables, in their order."""
    return [
        Compared(entry, judged, measured)
        for measured in every
        for entry, judged in zip(entries([measured]), measured.verdicts, strict=True)
    ]


def pages(
    shown_tables: Sequence[Measured],
    every: Sequence[Measured],
    curves: Mapping[str, Curve] | None = None,
) -> Iterator[tuple[str, str]]:
    """Path and text of every page behind the first screen, and of the style sheet.

    Args:
        shown_tables: the tables that have records.
        every: those whose claims are listed.
        curves: kept learning curves, by the hash of their record.
    """
    environment = forms()
    yield f"{SITE}/{STYLE}", Path(__file__).with_name(STYLE).read_text(encoding="utf-8")
    comparisons = compared(every)
    tables = {(each.tier, each.table.address): table_page(each) for each in shown_tables}
    known = titles(every)
    by_claim: dict[tuple[str, str], list[Compared]] = {}
    for each in comparisons:
        by_claim.setdefault((each.entry.paper, each.entry.sentence), []).append(each)
    form = environment.get_template("claim.html.j2")
    for (paper, sentence), some in by_claim.items():
        yield (
            claim_page(paper, sentence),
            form.render(
                up="../../",
                title=sentence,
                paper=paper,
                sources=list(dict.fromkeys(_source(each, known) for each in some)),
                groups=[_group(group, tables) for group in _grouped(some)],
            ),
        )
    form = environment.get_template("table.html.j2")
    runs = environment.get_template("runs.html.j2")
    for measured in shown_tables:
        yield table_page(measured), form.render(**_table(measured))
        yield (
            runs_page(measured),
            runs.render(
                up="../../",
                title=f"Runs of {name_of(measured)}",
                table=Path(table_page(measured)).name,
                **_runs(measured, curves or {}),
            ),
        )
    form = environment.get_template("loss.html.j2")
    used = [(each, _losses_by_row(each)) for each in every]
    for portrait in losses.PORTRAITS:
        yield loss_page(portrait.name), form.render(**_loss(portrait, used, comparisons, tables))


def titles(every: Sequence[Measured]) -> dict[str, str]:
    """By paper its title, from where its printed numbers come."""
    return {
        each.table.paper: each.table.published.source.split(", ")[0]
        for each in every
        if any(not (claim.asked_here or claim.paper) for claim in each.table.claims)
    }


def anchor(cell: MeasuredCell) -> str:
    """Of the runs of a cell on their page."""
    return f"{slug(cell.row.label)}--{slug(cell.column.label)}"


def gain_text(entry: Entry) -> str:
    """A gain with its interval."""
    if entry.gain is None:
        return DASH
    if entry.low is None or entry.high is None:
        return f"{entry.gain:+.2f}, no interval"
    return f"{entry.gain:+.2f} [{entry.low:+.2f}, {entry.high:+.2f}]"


def power_text(entry: Entry) -> str:
    """Power reached and declared of one comparison; empty where none was declared."""
    if entry.power is None:
        return ""
    reached = entry.power["reached"]
    return f"{DASH if reached is None else f'{reached:.2f}'} ({entry.power['declared']:.2f})"


def deciding(each: Compared) -> str:
    """What would decide a comparison: seeds, and the hours that both rows take for them."""
    entry, judged = each.entry, each.judged
    if entry.counts:
        return "It is decided, and counts."
    if entry.verdict == "no evidence":
        return (
            "No number of seeds: a row that was trained lies below one that learned nothing, so "
            "the setting has to change."
        )
    if entry.verdict in DECIDED:
        return f"It says yes or no, but {' and '.join(entry.because)}."
    used = len(entry.seeds)
    if entry.seeds_needed is not None and entry.seeds_needed > used:
        more = entry.seeds_needed - used
        return f"{entry.seeds_needed} seeds, {more} more than there are: {_hours(each, more)}."
    if entry.seeds_needed is not None:
        if entry.tier == "paper":
            return "The seeds suffice; the tolerance that was fixed beforehand keeps it open."
        return (
            f"{entry.seeds_needed} seeds see the gain that is asked for with 80% power, and there "
            f"are {used}; for a smaller one declare its power first."
        )
    if used < entry.declared_seeds:
        more = entry.declared_seeds - used
        declared = "1 seed is" if entry.declared_seeds == 1 else f"{entry.declared_seeds} seeds are"
        told = f"{declared} declared, {more} to run: {_hours(each, more)}."
        return f"{told} {judged.outlook}".strip()
    return NOTHING_SAID


def commands(some: Sequence[Compared]) -> list[str]:
    """What runs both rows of a claim in its columns, and skips what is done."""
    first = some[0].entry
    whole = {each.entry.column for each in some} == {c.label for c in some[0].measured.columns}
    columns: list[str | None] = [None] if whole else [each.entry.column for each in some]
    words = ["./reproduce.sh", first.domain, some[0].measured.table.paper, "--table", first.table]
    found = []
    for row in (first.better, first.than):
        for column in columns:
            line = [*words, "--row", row] + (["--column", column] if column else [])
            line += [] if first.tier == "paper" else ["--tier", first.tier]
            found.append(shlex.join(line))
    return found


def _name(measured: Measured) -> str:
    parts = (measured.tier, *measured.table.address.split("/"))
    return "-".join(map(slug, parts))


def _source(each: Compared, known: Mapping[str, str]) -> str:
    table, paper = each.measured.table, each.judged.claim.paper
    source = f"{table.published.source}: {table.section}"
    return f"{known.get(paper, paper)}, measured beside {source}" if paper else source


def _grouped(some: Sequence[Compared]) -> list[list[Compared]]:
    """Comparisons of the same two rows of one table in one tier; the measured ones first."""
    found: dict[tuple[str, ...], list[Compared]] = {}
    for each in some:
        entry = each.entry
        key = (entry.address, entry.tier, entry.better, entry.than)
        found.setdefault(key, []).append(each)
    return sorted(found.values(), key=lambda g: not any(each.entry.measured for each in g))


def _group(some: Sequence[Compared], tables: Mapping[Any, str]) -> dict[str, Any]:
    first = some[0]
    entry, measured = first.entry, first.measured
    link = tables.get((measured.tier, measured.table.address))
    told = [each for each in some if each.entry.measured]
    return {
        "heading": f"{entry.domain}, {entry.table}, {entry.tier} tier",
        "rows": f"{entry.better} over {entry.than}",
        "measured": bool(told),
        "link": link and f"../tables/{Path(link).name}",
        "note": tier_note(measured),
        "claim": entry.claim,
        "deviations": [f"{row.label}: {row.deviation}" for row in first.rows if row.deviation],
        "picture": Markup(drawings.gains(strips, entry.unit))
        if (strips := [strip for each in told if (strip := _strip(each))])
        else "",
        "lines": [_line(each) for each in told],
        "published": ", ".join(
            f"{each.entry.column} {each.entry.published_gain:+.2f}"
            for each in some
            if each.entry.published_gain is not None
        )
        or "none is printed",
        "idle": [each.entry.column for each in some if told and not each.entry.measured],
        "whys": [(each.entry.column, each.entry.why) for each in told],
        "deciding": _told_together([(each.entry.column, deciding(each)) for each in some]),
        "changes": _changes(measured, *first.rows, entry.column),
        "metric": " / ".join(dict.fromkeys(each.entry.metric for each in told or some)),
        "unit": entry.unit,
        "protocol": entry.protocol,
        "tolerance": f"{entry.tolerance:g}",
        "varies": measured.table.varies,
        "commands": commands(some),
    }


def _told_together(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Columns of which the same is said, in one line."""
    by_text: dict[str, list[str]] = {}
    for column, text in pairs:
        by_text.setdefault(text, []).append(column)
    return [(", ".join(columns), text) for text, columns in by_text.items()]


def _strip(each: Compared) -> drawings.Strip | None:
    entry = each.entry
    if entry.gain is None:
        return None
    high, low = (cell.read(entry.metric) for cell in each.cells)
    return drawings.Strip(
        entry.column,
        {seed: high[seed] - low[seed] for seed in entry.seeds},
        entry.gain,
        entry.low,
        entry.high,
        entry.published_gain,
        entry.arithmetic_spread,
    )


def _line(each: Compared) -> dict[str, Any]:
    entry = each.entry
    idle = entry.verdict in DECIDED and not entry.counts
    floor = entry.floor
    return {
        "column": entry.column,
        "kind": entry.verdict,
        "said": f"{entry.verdict}{', does not count' if idle else ''}",
        "texts": (
            gain_text(entry),
            DASH if entry.published_gain is None else f"{entry.published_gain:+.2f}",
            f"{len(entry.seeds)} of {entry.declared_seeds}",
            power_text(entry) or "not declared",
            f"{floor['mean']:.2f} ({floor['row']})" if floor else "not measured",
            "not measured" if entry.arithmetic_spread is None else f"{entry.arithmetic_spread:.2f}",
        ),
    }


def _changes(measured: Measured, better: Row, than: Row, column: str) -> list[tuple[str, ...]]:
    """Where the configurations of two rows differ: path, that of the worse, that of the better."""
    configs = [
        next(iter(measured.table.cells(measured.tier, row=row.label, column=column)), None)
        for row in (than, better)
    ]
    if any(cell is None for cell in configs):
        return []
    there, here = (canonical(cell.config) for cell in configs if cell is not None)
    return [
        (path, shown(old), shown(new))
        for path, old, new in differing(there, here)
        if path not in ("seed", "history")
    ]


def _hours(each: Compared, seeds: int) -> str:
    """The time of some seeds of both rows: as their records took, else as the column declares.

    A table that has the paper tier declares the time of that tier alone.
    """
    total, recorded = 0.0, True
    for cell in each.cells:
        seconds = [float(record.result["seconds"]) for record in cell.records.values()]
        recorded = recorded and bool(seconds)
        total += plain.median(seconds) if seconds else 60 * cell.column.minutes
    if not recorded and each.entry.tier != "paper" and "paper" in each.measured.table.tiers:
        return "./reproduce.sh plan says how long that takes"
    hours = seeds * total / HOURS
    text = f"{hours:.1f} hours" if hours >= 0.1 else f"{max(1, round(60 * hours))} minutes"
    basis = "the median of the records" if recorded else "the declared time of one CPU core"
    return f"about {text} one after the other, by {basis}"


def _table(measured: Measured) -> dict[str, Any]:
    table = measured.table
    marks = marks_of(measured)
    own, others = (
        [(name, quote(f"../../{(measured.folder / 'figures' / name).as_posix()}")) for name in some]
        for some in figures_of(measured)
    )
    runs = Path(runs_page(measured)).name
    folder = f"../../{measured.folder.as_posix()}/{table.name}"
    return {
        "up": "../../",
        "title": table.title,
        "address": name_of(measured),
        "section": table.section,
        "note": tier_note(measured),
        "headline": headline(measured),
        "source": origin(table.published) if table.published.rows else "",
        "without": no_numbers(table),
        "columns": [column.label for column in measured.columns],
        "groups": [
            (heading, [_row(cells, measured, marks, runs) for cells in rows])
            for heading, rows in groups_of(measured)
        ],
        "legend": legend_of(measured),
        "numbers": numbers_of(measured),
        "figures": own,
        "others": others,
        "blocks": [(_sort(block), block) for block in reasons_of(measured)],
        "runs": runs,
        "files": {
            f"{table.name}.{end}": quote(f"{folder}.{end}")
            for end in ("csv", "md", "tex", "records.jsonl")
        },
    }


def _sort(block: object) -> str:
    return (
        "numbers"
        if isinstance(block, Numbers)
        else ("lines" if isinstance(block, Lines) else "verdicts")
    )


def _row(
    cells: Sequence[MeasuredCell], measured: Measured, marks: Mapping[str, int], runs: str
) -> dict[str, Any]:
    row = cells[0].row
    found = []
    for cell in cells:
        number = seeds = link = ""
        if cell.summary is None:
            number = measured_lines(cell, marks)[0]
        else:
            number, seeds = mean_sd(cell.summary.mean, cell.summary.sd), seeds_of(cell)
            link = f"{runs}#{anchor(cell)}"
        found.append(
            {
                "number": number,
                "seeds": seeds,
                "link": link,
                "partial": bool(cell.values and cell.missing),
                "none": cell.published is None,
                "printed": printed_value(cell.published) if row.published and cell.declared else "",
                "difference": "" if cell.difference is None else f"{cell.difference:+.2f}",
            }
        )
    return {"label": row.label, "ours": is_ours(row, measured.table), "cells": found}


def _runs(measured: Measured, curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Of each measured number what is behind it; runs that several columns are read from once."""
    # What many numbers have in common is told once, and numbered: hashes of data, and machines with
    # their versions.
    told: dict[str, dict[str, int]] = {"data": {}, "place": {}}
    found = []
    for cells in measured.cells:
        seen: dict[tuple[str, ...], dict[str, Any]] = {}
        for cell in cells:
            if cell.records:
                runs = tuple(record.address for record in cell.records.values())
                one = _cell(cell, measured, curves, told)
                found.append({**one, "first": seen.get(runs)})
                seen.setdefault(runs, one)
    return {"cells": found, "told": told}


def _cell(
    cell: MeasuredCell,
    measured: Measured,
    curves: Mapping[str, Curve],
    told: dict[str, dict[str, int]],
) -> dict[str, Any]:
    """What is behind one measured number: what was run, where, and at what cost."""
    assert cell.summary is not None  # a cell with records has values

    def numbered(kind: str, text: str) -> str:
        number = told[kind].setdefault(text, len(told[kind]) + 1)
        return Markup('<a href="#{0}-{1}">{0} {1}</a>').format(kind, number) if text else ""

    facts = []
    for name, describe in (
        ("commit", _commit),
        ("data", lambda record: numbered("data", _plain(record.environment["data"]))),
        ("machine and versions", lambda record: numbered("place", _place(record))),
        ("command", _command),
    ):
        seeds: dict[str, list[int]] = {}
        for seed, record in cell.records.items():
            seeds.setdefault(describe(record), []).append(seed)
        for text, which in seeds.items():
            only = f" ({named_seeds(which)})" if len(seeds) > 1 else ""
            # An empty line has no height, and the next one would slip beside this name.
            facts.append((f"{name}{only}", text or "none"))
    return {
        "anchor": anchor(cell),
        "label": f"{cell.row.label}, {cell.column.label}",
        "number": mean_sd(cell.summary.mean, cell.summary.sd),
        "seeds": seeds_of(cell),
        "facts": facts,
        "metric": measured.table.metric_of(cell.column),
        "runs": [
            {
                "seed": seed,
                "value": f"{cell.values[seed]:.2f}",
                "seconds": f"{record.result['seconds']:.1f}",
                "memory": f"{record.result['peak_memory_bytes'] / 2**20:.0f}",
                "started": str(record.environment["started"]),
                "digest": hashlib.sha256(canonical_json(record.config).encode()).hexdigest()[:12],
                "from": str(record.environment.get("run_at", "")),
            }
            for seed, record in cell.records.items()
        ],
        # Of one seed alone, the first that has some, and of a run that was taken over where it ran,
        # for a site that stays small.
        "curves": next(
            (
                (seed, picture)
                for seed, record in cell.records.items()
                if "run_at" not in record.environment
                and (picture := _curve(curves.get(record.sha256 or "")))
            ),
            None,
        ),
    }


def _curve(curve: Curve | None) -> str:
    """The losses of a run as a picture; empty where its log was not at hand."""
    if curve is None or not any(len(steps) > 1 for steps in curve.steps.values()):
        return ""
    lines = {name: points for name, points in curve.lines().items() if len(points[0]) > 1}
    first, *others = lines
    if any(lines[first] == lines[name] for name in others):
        del lines[first]  # a loss without penalties is its only part
    lines = dict(list(lines.items())[:4])
    return Markup(
        drawings.curves(lines, "step", "", f"What the run logged: {', '.join(lines)}, by step.")
    )


def _losses_by_row(measured: Measured) -> dict[str, set[str]]:
    """By label of a row the losses, penalties and projection of its cells."""
    found: dict[str, set[str]] = {}
    for cell in measured.table.cells(measured.tier):
        names = losses.names_in(getattr(cell.config, "objective", None))
        found.setdefault(cell.row, set()).update(names)
    return found


def _loss(
    portrait: losses.Portrait,
    every: Sequence[tuple[Measured, Mapping[str, set[str]]]],
    comparisons: Sequence[Compared],
    tables: Mapping[Any, str],
) -> dict[str, Any]:
    used: list[dict[str, Any]] = []
    for measured, by_row in every:
        with_it = {row for row, names in by_row.items() if portrait.name in names}
        if not with_it:
            continue
        mine = [
            each.entry
            for each in comparisons
            if each.measured is measured and each.entry.better in with_it
        ]
        counted = Counter(entry.verdict for entry in mine if entry.measured)
        link = tables.get((measured.tier, measured.table.address))
        used.append(
            {
                "table": name_of(measured),
                "link": link and f"../tables/{Path(link).name}",
                "rows": [row.label for row in measured.table.rows if row.label in with_it],
                "said": [(kind, counted[kind]) for kind in SHAPES if counted[kind]],
                "open": len(mine) - sum(counted.values()),
            }
        )
    return {
        "up": "../../",
        "title": portrait.name,
        "equations": [Markup(drawings.equation(each)) for each in portrait.equations],
        "symbols": portrait.symbols,
        "told": list(map(_marked, losses.told(portrait))),
        "picture": Markup(losses.picture(portrait)),
        "caption": losses.caption(portrait),
        "slopes": _sampled(losses.slopes(portrait.name)),
        "certificates": losses.certificates(portrait),
        "used": sorted(used, key=lambda each: not each["said"]),
    }


def _marked(text: str) -> Markup:
    """A docstring's text with what it marks as code marked as code."""
    parts = re.split(r"(?::\w+:)?`+([^`]+)`+", text)
    codes = (Markup("<code>{}</code>").format(part) for part in parts[1::2])
    return Markup("").join(part for pair in zip_longest(parts[::2], codes) for part in pair if part)


def _sampled(
    slopes: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[str], list[list[str]]]:
    """Some of the numbers behind a picture: a head and its lines."""
    (places, _), *_ = slopes.values()
    chosen = range(0, len(places), 10)
    lines = [
        [f"{places[n]:.2f}", *(f"{values[n] + 0.0:.3f}" for _, values in slopes.values())]
        for n in chosen
    ]
    return ["at", *slopes], [[text.replace("-0.000", "0.000") for text in line] for line in lines]


def _commit(record: Record) -> str:
    dirty = " (dirty: with uncommitted changes)" if record.environment["dirty"] else ""
    return f"{record.environment['commit']}{dirty}"


def _place(record: Record) -> str:
    """The machine of a run and the versions there."""
    machine = record.environment["hardware"] | record.environment.get("facts", {})
    return f"{_plain(machine)}; {_plain(record.environment['versions'])}"


def _command(record: Record) -> Markup:
    """What runs a number's cells anew: their addresses differ in the seed alone."""
    address, _, _ = record.address.rpartition("-")
    return Markup("<code>./reproduce.sh --cell {}-<i>SEED</i></code>").format(address)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in sorted(value.items()))
    return str(value)
