"""Outcomes of the papers' claims: the summary, and a page of claims for each paper.

``results/README.md`` is the summary; ``results/<paper>.md`` has every claim of a paper under an
anchor of its own, ``results/additional.md`` has the additional questions of the suite.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import UserError
from shared.experiment.records import Record
from shared.experiment.runs import write_atomically
from shared.experiment.tables import SettingWord, Tier
from shared.report import pictures
from shared.report.claims import BELOW, SETTINGS, Finding, Outcome, Reading, findings
from shared.report.files import ADDITIONAL, HEAD, escaped, reading_cells, rows_of, table_lines
from shared.report.measuring import Measured, folder_of
from shared.report.pictures import Panel, Picture, Point
from shared.report.wording import counted, gain_text

SUMMARY = "README.md"
BEGINS, ENDS = "<!-- claims: written by ./reproduce.sh report -->", "<!-- claims end -->"
RULES = "docs/claims.md"
COLORS: Mapping[Outcome, str] = {
    "confirmed": "#1b7f4b",
    "partly": "#2b83ba",
    "imprecise": "#8a94a6",
    "contradicted": "#c0392b",
}
AT: Mapping[SettingWord, str] = {
    "paper's": "at the paper's setting",
    "rebuilt": "at a rebuilt setting",
    "reduced": "at a reduced setting",
}
SHOWN: tuple[Outcome, ...] = ("confirmed", "partly", "contradicted", "imprecise")
LABEL = 44  # characters of a line of a claim in the picture
UNITS = {"%": "percentage points", "": "no unit"}  # of a difference


@dataclass(frozen=True)
class Paper:
    """A paper, and its claim in one sentence.

    Args:
        name: its short name.
        title: its title.
        cited: authors and year.
        says: what it claims, in one sentence.
    """

    name: str
    title: str
    cited: str
    says: str


PAPERS: Mapping[str, Paper] = {
    "lmcl": Paper(
        "LMCL",
        "Large-Margin Contrastive Learning with Distance Polarization Regularizer",
        "Chen et al. 2021",
        "Pushing pairwise distances out of a middle band (distance polarization) improves "
        "contrastive baselines on images, text and control: by at least 1 point on CIFAR-10 and 2 "
        "on STL-10.",
    ),
    "cllr": Paper(
        "CLLR",
        "Learning Contrastive Embedding in Low-Dimensional Space",
        "Chen et al. 2022",
        "Learning a low-rank projection together with the embedding improves contrastive baselines "
        "on images, text and control: by at least 1 point on CIFAR-10 and 2 on STL-10.",
    ),
    "mmcl": Paper(
        "MMCL",
        "Max-Margin Contrastive Learning",
        "Shah et al. 2022",
        "Weighting negatives as a support vector machine does (in closed form, INV, or by "
        "projected gradient, PGD) improves contrastive learning of images, graphs and videos.",
    ),
    "margins": Paper(
        "margins",
        "Understanding Contrastive Learning Through the Lens of Margins",
        "Rho et al. 2023",
        "A margin works mainly by its emphasis on positives, which raises the accuracy of MoCo and "
        "leaves SimCLR's flat; curvature of the gradient and the ratio of denominators add to it.",
    ),
}


@dataclass(frozen=True)
class Results:
    """All measured tables, and the outcomes of the claims.

    Args:
        tables: every table of the paper-scale and reduced tiers, measured or not.
        readings: the readings of all of them.
    """

    tables: Sequence[Measured]
    readings: Sequence[Reading]
    findings: tuple[Finding, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", findings(self.readings))

    def of(self, paper: str) -> list[Finding]:
        """The findings of a paper; of the additional questions for an empty name."""
        return [each for each in self.findings if each.claim.paper == paper]

    def read_from(self, measured: Measured) -> list[Reading]:
        """The readings of one table."""
        at = (measured.table.address, measured.tier)
        return [each for each in self.readings if (each.address, each.tier) == at]


def sentence(results: Results, paper: str) -> str:
    """The outcomes of a paper's claims in one sentence, setting by setting."""
    some = results.of(paper)
    parts = []
    for setting in SETTINGS:
        counts = Counter(each.outcome for each in some if each.setting == setting)
        if text := [f"{counts[outcome]} {outcome}" for outcome in SHOWN if counts[outcome]]:
            parts.append(f"{', '.join(text)} {AT[setting]}")
    if left := _left_out(some):
        parts.append(f"{len(left)} not measured")
    name = PAPERS[paper].name if paper else "Additional questions"
    return f"{name}, {counted(len(_ids(some)), 'claim')}: {'; '.join(parts)}."


def in_short(results: Results, folder: str = "") -> str:
    """A Markdown table of the outcomes of all papers' claims, and one claim of each with its gains.

    Args:
        results: the results.
        folder: path of the results, relative to the document.
    """
    lines, examples = [], []
    for key, paper in PAPERS.items():
        some = results.of(key)
        cells = []
        for outcome in SHOWN:
            here = Counter(each.setting for each in some if each.outcome == outcome)
            text = ", ".join(f"{here[setting]} {setting}" for setting in SETTINGS if here[setting])
            cells.append(text or "none")
        left = f"{len(_left_out(some))} of {len(_ids(some))}"
        lines.append((f"[{paper.name}]({folder}{key}.md)", *cells, left))
        if measured := [each for each in some if _measured(each)]:
            first = min(measured, key=lambda each: SHOWN.index(each.outcome))
            link = f"[{first.outcome}]({folder}{key}.md#{first.claim.id})"
            examples.append(f"- {paper.name}, {link} {AT[first.setting]}: {_gains(first)}.")
    head = ("paper", *SHOWN, "not measured")
    table = table_lines(head, lines, numbers=False)
    text = (
        "One claim of each paper, with its gains and their 95% intervals (of more than three, the "
        "middle one):"
    )
    return "\n".join([*table, "", text, "", *examples]) + "\n"


def write_in_short(document: Path, results: Results) -> None:
    """Write :func:`in_short` between its two markers in a document.

    Raises:
        UserError: the document lacks one of them.
    """
    before, first, rest = document.read_text(encoding="utf-8").partition(BEGINS)
    _, last, after = rest.partition(ENDS)
    if not first or not last:
        raise UserError(f"{document} has no lines {BEGINS} and {ENDS}; put them where claims go")
    write_atomically(document, f"{before}{BEGINS}\n{in_short(results, 'results/')}{ENDS}{after}")


def write(folder: Path, results: Results) -> None:
    """Write the summary, the pages of all papers and their pictures below the folder of results."""
    write_atomically(folder / SUMMARY, first_page(results))
    for paper in (*PAPERS, ""):
        name = paper or ADDITIONAL
        write_atomically(folder / f"{name}.md", paper_page(results, paper))
        if panels := _panels(results.of(paper)):
            pictures.write(folder / f"{name}.png", _picture(panels))


def first_page(results: Results) -> str:
    """The first page of the results, in Markdown."""
    lines = [
        "# Which claims held up",
        "",
        "The claims of four papers on margins in contrastive learning, tested by new runs. The "
        "table counts claims by the setting in which they were measured: the paper's, rebuilt "
        "(the paper omits details that decide the outcome), or reduced (real data, a smaller "
        "budget, network or dataset: it shows how the methods compare there, not at the paper's "
        "own setting).",
        "",
        *in_short(results).splitlines(),
        "",
        "A reading is one claim for two rows of a table in one column. It is **confirmed** if its "
        "gain is significantly on the claimed side, **contradicted** if what is claimed or "
        "published is significantly excluded, **partly** confirmed if the direction holds but the "
        "size does not, and **imprecise** otherwise. A claim is confirmed if all its measured "
        "readings are, partly confirmed if some are, and contradicted if none is even partly and, "
        "after Holm's correction for their number, at least one excludes it. Intervals are those "
        "of single readings, and the published gain has an error of its own: an interval may "
        "exclude 0 or the published gain and the reading still be imprecise. Where a trained "
        "row scores below a trivial baseline, a reading says little about what the rows have "
        "learned "
        f"([rules](../{RULES}); [data](claims.json)).",
        "",
    ]
    for key, paper in PAPERS.items():
        lines += [f"## {paper.name}", "", *_five_lines(results, key), ""]
        lines += _shown(results.of(key), key)
    if questions := results.of(""):
        lines += ["## Additional questions", ""]
        lines += ["Questions of this suite, not claims of the papers "]
        lines[-1] += f"([all of them]({ADDITIONAL}.md)):"
        lines += ["", *_outcomes_of(questions, ADDITIONAL), ""]
    lines += ["## Tables", "", *_tables(results)]
    return "\n".join(lines).rstrip() + "\n"


def paper_page(results: Results, key: str) -> str:
    """The page of a paper with all its claims, or for an empty name of the additional questions."""
    some = results.of(key)
    paper = PAPERS.get(key)
    title = f"{paper.name}: {paper.title} ({paper.cited})" if paper else "Additional questions"
    lines = [f"# {escaped(title)}", "", f"[All results]({SUMMARY})", ""]
    lines += [*_five_lines(results, key), ""] if paper else []
    lines += _shown(some, key or ADDITIONAL)
    by_claim: dict[str, list[Finding]] = {}
    for finding in some:
        by_claim.setdefault(finding.claim.id, []).append(finding)
    idle = []
    for name, found in by_claim.items():
        claim = found[0].claim
        place = f" ({escaped(claim.place)})" if claim.place else ""
        if any(map(_measured, found)):
            heading = escaped(claim.sentence.rstrip("."))
            lines += [f'<a id="{name}"></a>', "", f"## {heading}{place}", ""]
            lines += [line for finding in found for line in _finding(finding)]
        else:
            tables = ", ".join(dict.fromkeys(r.address for f in found for r in f.readings))
            lines_of = f'- <a id="{name}"></a>{escaped(claim.sentence)}{place}: `{tables}`'
            idle.append(lines_of)
    lines += ["## Not measured", "", *idle] if idle else []
    return "\n".join(lines).rstrip() + "\n"


def _shown(some: Sequence[Finding], name: str) -> list[str]:
    """The picture of a page, if it shows anything."""
    return [f"![Gains with 95% intervals, claim by claim]({name}.png)", ""] if _panels(some) else []


def _five_lines(results: Results, key: str) -> list[str]:
    """A paper's claim, what was run, the outcomes, what was not measured, and its cost."""
    some = results.of(key)
    left = _left_out(some)
    places = dict.fromkeys(
        f"[{escaped(each.claim.place)}]({key}.md#{each.claim.id})"
        for each in some
        if each.claim.id in left
    )
    said = sentence(results, key).partition(": ")[2]
    return [
        f"- **It claims:** {escaped(PAPERS[key].says)}",
        f"- **Run:** {_run(results, some)}",
        f"- **Outcome:** {said}",
        *(f"    {line}" for line in _outcomes_of(some, key)),
        f"- **Not measured:** {'; '.join(places) or 'nothing'}.",
        f"- **Still to run:** {_left(results, [r for each in some for r in each.readings])}",
    ]


def _outcomes_of(some: Sequence[Finding], page: str) -> list[str]:
    """The measured claims, each with its outcome and an example."""
    lines = []
    for each in sorted(some, key=lambda each: SETTINGS.index(each.setting)):
        if _measured(each):
            link = f"[{escaped(each.claim.sentence.rstrip('.'))}]({page}.md#{each.claim.id})"
            end = "" if each.claim.sentence.endswith("?") else "."
            lines.append(
                f"- **{each.outcome}**, {AT[each.setting]}: {link}{end} "
                f"{_gains(each)}; {_tally(each)}.{_below(each)}"
            )
    return lines


def _below(finding: Finding) -> str:
    """How many of the measured readings have a trained row below a trivial baseline."""
    measured = [each for each in finding.readings if each.measured]
    below = sum(any(BELOW in remark for remark in each.remarks) for each in measured)
    if not below:
        return ""
    where = "all" if below == len(measured) else f"{below} of {len(measured)}"
    return f" In {where} measured readings a trained row scores below a trivial baseline."


def _gains(finding: Finding) -> str:
    """The gains of a finding with their intervals; of more than three, the range and the middle."""
    found = sorted(
        (each for each in finding.readings if each.low is not None),
        key=lambda each: each.gain or 0.0,
    )
    if not found:
        return "No interval: a row has a single seed"
    if len(found) <= 3:
        return "; ".join(map(_gain, reversed(found)))
    low, high = (f"{each.gain:+z.2f}" for each in (found[0], found[-1]))
    return f"Gains from {low} to {high}; the middle one is {_gain(found[(len(found) - 1) // 2])}"


def _gain(reading: Reading) -> str:
    """Rows, column, gain with interval, and the published or claimed gain."""
    gain = gain_text(reading.gain, reading.low, reading.high)
    beside = f", published {reading.published:+z.2f}" if reading.published is not None else ""
    if reading.claim.size is not None:
        beside = f", at least {reading.claim.size:+g} claimed"
    return f"{escaped(f'{rows_of(reading)} on {reading.column}')}: {gain}{beside}"


def _tally(finding: Finding) -> str:
    """The number of readings of a finding by outcome."""
    text = ", ".join(f"{number} {outcome}" for outcome, number in finding.tally)
    return f"of {counted(len(finding.readings), 'reading')} {text}"


def _run(results: Results, some: Sequence[Finding]) -> str:
    """By setting the tables behind the readings, with rows, seeds and hours."""
    by_table = {(each.table.address, each.tier): each for each in results.tables}
    parts = []
    for setting in SETTINGS:
        found: dict[tuple[str, Tier], list[Reading]] = {}
        for reading in (r for each in some if each.setting == setting for r in each.readings):
            if reading.measured:
                found.setdefault((reading.address, reading.tier), []).append(reading)
        texts = []
        for place, readings in found.items():
            rows = {row for each in readings for row in (each.better, each.than)}
            columns = {each.column for each in readings}
            records = _records(by_table[place], rows, columns)
            seeds = [len(s) for r in readings for s in (r.seeds_better, r.seeds_than)]
            few, many = min(seeds), max(seeds)
            hours = sum(float(record.result["seconds"]) for record in records) / 3600
            measured = by_table[place]
            link = f"{folder_of(measured.table, measured.tier).as_posix()}/{measured.table.name}.md"
            texts.append(
                f"[{place[0]}]({link}) ({counted(len(rows), 'row')}, "
                f"{counted(len(columns), 'column')}, "
                f"{counted(few, 'seed') if few == many else f'{few} to {many} seeds'}, "
                f"{duration(hours)})"
            )
        if texts:
            parts.append(f"{AT[setting]}: {'; '.join(texts)}")
    return f"{'. '.join(f'{part[0].upper()}{part[1:]}' for part in parts) or 'Nothing'}."


def _records(measured: Measured, rows: set[str], columns: set[str]) -> list[Record]:
    """The records behind some cells, once each."""
    found = {
        record.address: record
        for cells in measured.cells
        for cell in cells
        if cell.row.label in rows and cell.column.label in columns
        for record in cell.records.values()
    }
    return list(found.values())


def _left(results: Results, readings: Iterable[Reading]) -> str:
    """What the missing runs at the paper's setting take, by what the tables declare of a run."""
    wanted: dict[str, set[tuple[str, str]]] = {}
    for reading in readings:
        if reading.tier == "paper":
            pairs = wanted.setdefault(reading.address, set())
            pairs |= {(reading.better, reading.column), (reading.than, reading.column)}
    minutes: dict[str, float] = {}
    for measured in results.tables:
        if measured.tier == "paper" and measured.table.address in wanted:
            pairs = wanted[measured.table.address]
            columns = {column.label: column for column in measured.columns}
            done = {(c.row.label, c.column.label): c.records for cs in measured.cells for c in cs}
            for cell in measured.table.cells("paper"):
                place = (cell.row, cell.column)
                if place in pairs and cell.seed not in done[place]:
                    minutes[cell.address] = columns[cell.column].minutes
    if not minutes:
        return "nothing at the paper's setting."
    time = duration(sum(minutes.values()) / 60)
    return f"{len(minutes):,} runs at the paper's setting, about {time} on one CPU core."


def duration(hours: float) -> str:
    """A time in a readable unit."""
    if 60 * hours < 1:
        return "less than a minute"
    if hours < 2:
        return counted(round(60 * hours), "minute")
    if hours < 48:
        return f"{hours:.0f} hours"
    days = hours / 24
    return f"{days:.0f} days" if days < 365 else f"{days / 365:,.0f} years"


def _finding(finding: Finding) -> list[str]:
    """The outcome of a claim at one setting, table by table, reading by reading."""
    said = f"**{AT[finding.setting][0].upper()}{AT[finding.setting][1:]}: {finding.outcome}.**"
    measured = [each for each in finding.readings if each.measured]
    if not measured:
        return [said, ""]
    lines = [f"{said} {escaped(finding.sentence)}", ""]
    by_table: dict[str, list[Reading]] = {}
    for each in measured:
        by_table.setdefault(_page(each), []).append(each)
    head = (*HEAD, "seeds for 80% power")
    for page, some in by_table.items():
        needed = [each.seeds_needed is not None for each in some]
        table = [
            (
                escaped(rows_of(each)),
                *reading_cells(each),
                *([str(each.seeds_needed or "")] if any(needed) else []),
            )
            for each in some
        ]
        lines += [f"From [{page.removesuffix('.md')}]({page}):", ""]
        lines += [*table_lines(head if any(needed) else head[:-1], table), ""]
        remarks = _remarks(some)
        if differences := some[0].differences:
            remarks.insert(0, f"- Differences from the paper: {escaped(' '.join(differences))}")
        lines += [*remarks, ""] if remarks else []
    return lines


def _remarks(measured: Sequence[Reading]) -> list[str]:
    """The remarks of a table's readings, each once, with the rows or columns that it is about."""
    found: dict[str, list[Reading]] = {}
    below: dict[tuple[str, str], dict[str, None]] = {}  # rows by column and trivial baseline
    for each in measured:
        for remark in each.remarks:
            row, is_below, baseline = remark.partition(f" {BELOW} ")
            if is_below:
                below.setdefault((each.column, baseline.rstrip(".")), {})[row] = None
            else:
                found.setdefault(remark, []).append(each)
    lines = [
        f"- Below the trivial baseline {escaped(f'{baseline} on {column}')}: "
        f"{escaped(', '.join(rows))}."
        for (column, baseline), rows in below.items()
    ]
    for remark, some in found.items():
        columns = dict.fromkeys(each.column for each in some)
        whole = all(each in some for each in measured if each.column in columns)
        names = columns if whole else dict.fromkeys(f"{rows_of(e)}, {e.column}" for e in some)
        where = f" ({'; '.join(names)})" if len(some) < len(measured) else ""
        lines.append(f"- {escaped(f'{remark}{where}')}")
    return lines


def _page(reading: Reading) -> str:
    """The page of a reading's table, relative to the folder of results."""
    domain, paper, table = reading.address.split("/")
    return "/".join(
        (*([] if reading.tier == "paper" else [reading.tier]), domain, paper, f"{table}.md")
    )


def _tables(results: Results) -> list[str]:
    head = ("table", "what", "numbers")
    lines = []
    for each in results.tables:
        cells = [cell for cells in each.cells for cell in cells if cell.declared]
        if done := sum(cell.summary is not None for cell in cells):
            path = (each.folder / f"{each.table.name}.md").as_posix()
            lines.append(
                (
                    f"[{path.removesuffix('.md')}]({path})",
                    escaped(each.table.title),
                    f"{done} of {len(cells)}",
                )
            )
    return table_lines(head, lines, numbers=False)


def _measured(finding: Finding) -> bool:
    return finding.outcome != "not measured"


def _ids(some: Iterable[Finding]) -> set[str]:
    return {each.claim.id for each in some}


def _left_out(some: Sequence[Finding]) -> set[str]:
    """The claims that were not measured at any setting."""
    return _ids(some) - _ids(filter(_measured, some))


def _panels(some: Sequence[Finding]) -> list[Panel]:
    """A panel for each table at a setting: a line for each claim, a point for each gain."""
    found: dict[tuple[str, str, str], dict[str, list[Point]]] = {}
    for finding in some:
        for reading in finding.readings:
            if reading.gain is None:
                continue
            place = (reading.setting, reading.address, reading.unit)
            label = "\n".join(textwrap.wrap(finding.claim.sentence, LABEL))
            found.setdefault(place, {}).setdefault(label, []).append(
                Point(
                    reading.gain,
                    reading.low,
                    reading.high,
                    reading.published,
                    reading.published_error or 0.0,
                    COLORS[reading.outcome],
                    f"{reading.better}, {reading.column}",
                )
            )
    panels = [
        Panel(f"{address}: {setting} setting", f"gain ({UNITS.get(unit, unit)})", lines, rule=0.0)
        for (setting, address, unit), lines in found.items()
    ]
    # Panels without an interval, of single seeds, come last.
    return sorted(panels, key=lambda panel: all(point.low is None for point in panel.every()))


def _picture(panels: Sequence[Panel]) -> Picture:
    points = [point for panel in panels for point in panel.every()]
    shown = {point.color for point in points}
    legend = {str(outcome): color for outcome, color in COLORS.items() if color in shown}
    published = any(point.published is not None for point in points)
    return Picture(panels, 1, legend, "published gain, with its 95% interval if known" * published)
