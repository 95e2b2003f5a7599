"""What the records say of the papers' claims: the summary, and a page of claims for each paper.

``results/README.md`` is the summary; ``results/<paper>.md`` has every claim of a paper under an
anchor of its own, ``results/additional.md`` the questions that no paper is credited with.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import UserError
from shared.experiment.records import Record
from shared.experiment.runs import write_atomically
from shared.experiment.tables import Tier
from shared.report.claims import OUTCOMES, SETTINGS, Finding, Outcome, Reading, Setting, findings
from shared.report.files import ADDITIONAL, escaped, reading_cells, table_lines
from shared.report.measuring import Measured, folder_of
from shared.report.pictures import Panel, Point, points, save
from shared.report.wording import counted

SUMMARY = "README.md"
BEGINS, ENDS = "<!-- claims: written by ./reproduce.sh report -->", "<!-- claims end -->"
RULES = "docs/claims.md"
COLORS: Mapping[Outcome, str] = {
    "confirmed": "#1b7f4b",
    "partly": "#2b83ba",
    "imprecise": "#8a94a6",
    "contradicted": "#c0392b",
}
AT: Mapping[Setting, str] = {
    "paper's": "at the paper's setting",
    "rebuilt": "rebuilt, where the paper leaves the setting open",
    "reduced": "reduced",
}
LABEL = 44  # characters of a line of a claim in the picture


@dataclass(frozen=True)
class Paper:
    """A paper, and what it says in one sentence.

    Args:
        name: how it is called here.
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
        "Pushing pairwise distances out of the middle (distance polarization) improves contrastive "
        "baselines on images, text and control, on small images by at least 1 to 2 points.",
    ),
    "cllr": Paper(
        "CLLR",
        "Learning Contrastive Embedding in Low-Dimensional Space",
        "Chen et al. 2022",
        "Training a low-rank projection of the embedding along improves contrastive baselines on "
        "images, text and control, on small images by at least 1 to 2 points.",
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
        "What helps of a margin is the stronger pull of the positive and the curvature of its "
        "gradient; either improves MoCo, SimCLR and BYOL, on unseen data sets, too.",
    ),
}


@dataclass(frozen=True)
class Results:
    """All measured tables, and what they say of the claims.

    Args:
        tables: every table of the paper-scale and reduced tiers, measured or not.
        readings: of all of them.
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
    """What came out for a paper, in one sentence: its claims counted, in each setting."""
    parts = [f"{AT[setting]}: {text}" for setting, text in tallies(results.of(paper)).items()]
    name = PAPERS[paper].name if paper else "Additional questions"
    return f"{name}: {'; '.join(parts) or 'nothing is measured'}."


def tallies(some: Sequence[Finding]) -> dict[Setting, str]:
    """By setting with a measured claim, how many claims came out how."""
    found: dict[Setting, str] = {}
    for setting in SETTINGS:
        here = [each for each in some if each.setting == setting]
        counts = Counter(each.outcome for each in here)
        told = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
        if len(here) > counts["not measured"]:
            found[setting] = f"of {counted(len(here), 'claim')} {', '.join(told)}"
    return found


def in_short(results: Results) -> str:
    """The README's table: for each paper what came out, in each setting."""
    lines = []
    for key, paper in PAPERS.items():
        told = tallies(results.of(key))
        cells = [told.get(setting, "nothing measured") for setting in SETTINGS]
        lines.append((f"[{paper.name}](results/{key}.md), {paper.cited}", *cells))
    head = ("paper", *(AT[setting] for setting in SETTINGS))
    return "\n".join(table_lines(head, lines)) + "\n"


def write_in_short(document: Path, results: Results) -> None:
    """Put :func:`in_short` between its two marks in a document.

    Raises:
        UserError: the document lacks one of them.
    """
    before, first, rest = document.read_text(encoding="utf-8").partition(BEGINS)
    _, last, after = rest.partition(ENDS)
    if not first or not last:
        raise UserError(f"{document} has no lines {BEGINS} and {ENDS}; put them where claims go")
    write_atomically(document, f"{before}{BEGINS}\n{in_short(results)}{ENDS}{after}")


def write(folder: Path, results: Results) -> None:
    """Write the summary, the pages of all papers and their pictures below the folder of results."""
    write_atomically(folder / SUMMARY, summary(results))
    for paper in (*PAPERS, ""):
        name = paper or ADDITIONAL
        write_atomically(folder / f"{name}.md", paper_page(results, paper))
        if panels := _panels(results.of(paper)):
            legend = {
                outcome: color
                for outcome, color in COLORS.items()
                if any(point.color == color for panel in panels for point in _in(panel))
            }
            printed = any(p.printed is not None for panel in panels for p in _in(panel))
            figure = points(panels, across=1, legend=legend, printed="printed gain" * printed)
            save(figure, folder / f"{name}.png")


def summary(results: Results) -> str:
    """The first page of the results, in Markdown."""
    lines = [
        "# What held up",
        "",
        f"Four papers on margins in contrastive learning, their claims held against new runs "
        f"([the rules](../{RULES}), registered before they were applied; [the same as data]"
        f"(claims.json)). A claim is **confirmed** where the 95% interval of the gain lies on the "
        f"claimed side, **contradicted** where it excludes what is claimed or printed, **partly** "
        f"confirmed where the direction holds and the size does not, and **imprecise** where the "
        f"interval contains both. *Reduced* means real data at a smaller budget: it says how the "
        f"methods compare there, not what the paper's own setting would give.",
        "",
    ]
    for key, paper in PAPERS.items():
        lines += [f"## {paper.name}", "", *_five_lines(results, key), ""]
        if _panels(results.of(key)):
            lines += [f"![Gains with 95% intervals, claim by claim]({key}.png)", ""]
    if asked := results.of(""):
        lines += ["## Additional questions", ""]
        lines += ["Questions of this suite, which no paper is credited with.", ""]
        lines += [
            *_came_out(asked, ADDITIONAL),
            "",
            f"All of them: [{ADDITIONAL}.md]({ADDITIONAL}.md).",
            "",
        ]
    lines += ["## Tables", "", *_tables(results)]
    return "\n".join(lines).rstrip() + "\n"


def paper_page(results: Results, key: str) -> str:
    """The page of a paper with all its claims, or for an empty name of the additional questions."""
    some = results.of(key)
    paper = PAPERS.get(key)
    title = f"{paper.name}: {paper.title} ({paper.cited})" if paper else "Additional questions"
    lines = [f"# {escaped(title)}", "", f"[All results]({SUMMARY})", ""]
    lines += [*_five_lines(results, key), ""] if paper else []
    if _panels(some):
        lines += [f"![Gains with 95% intervals, claim by claim]({key or ADDITIONAL}.png)", ""]
    by_claim: dict[str, list[Finding]] = {}
    for finding in some:
        by_claim.setdefault(finding.claim.id, []).append(finding)
    measured = {name: f for name, f in by_claim.items() if any(_measured(each) for each in f)}
    for name, found in measured.items():
        claim = found[0].claim
        lines += [f'<a id="{name}"></a>', "", f"## {escaped(claim.sentence)}", ""]
        lines += [f"{escaped(claim.place)}.", ""] if claim.place else []
        for finding in found:
            lines += _finding(finding)
    if idle := [found[0] for name, found in by_claim.items() if name not in measured]:
        lines += ["## Not measured", ""]
        for finding in idle:
            tables = ", ".join(dict.fromkeys(each.address for each in finding.readings))
            claim = finding.claim
            place = f" ({escaped(claim.place)})" if claim.place else ""
            lines.append(f'- <a id="{claim.id}"></a>{escaped(claim.sentence)}{place}: `{tables}`')
    return "\n".join(lines).rstrip() + "\n"


def _five_lines(results: Results, key: str) -> list[str]:
    """What a paper claims, what was run, what came out, what was not run, what it would take."""
    some = results.of(key)
    idle = [each for each in some if not _measured(each)]
    left = {each.claim.id for each in idle} - {f.claim.id for f in some if _measured(f)}
    every = {each.claim.id for each in some}
    tables = dict.fromkeys(r.table for each in idle if each.claim.id in left for r in each.readings)
    hours = _hours_left(results, [r for each in some for r in each.readings])
    missing = (
        f"{len(left)} of {counted(len(every), 'claim')}" if left else "every claim was measured"
    )
    where = f", of {', '.join(tables)}" if left else ""
    return [
        f"- **It claims:** {escaped(PAPERS[key].says)}",
        f"- **Run:** {_run(results, some)}",
        f"- **Came out:** {sentence(results, key).partition(': ')[2]}",
        *(f"  {line}" for line in _came_out(some, key)),
        f"- **Not run:** {missing}{where}.",
        f"- **It would take:** {hours}",
    ]


def _came_out(some: Sequence[Finding], page: str) -> list[str]:
    """The claims with an outcome, and how many are imprecise."""
    told = [each for each in some if each.outcome in ("confirmed", "partly", "contradicted")]
    return [
        f"- **{each.outcome}** ({each.setting} setting): [{escaped(each.claim.sentence)}]"
        f"({page}.md#{each.claim.id}) {escaped(each.sentence)}"
        for each in told
    ]


def _run(results: Results, some: Sequence[Finding]) -> str:
    """By setting the tables that the readings rest on, with rows, seeds and hours."""
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


def _hours_left(results: Results, readings: Iterable[Reading]) -> str:
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
        return "nothing more at the paper's setting."
    time = duration(sum(minutes.values()) / 60)
    return f"{len(minutes):,} more runs at the paper's setting, about {time} on one CPU core."


def duration(hours: float) -> str:
    """A time that one can picture."""
    if hours < 1:
        return f"{60 * hours:.0f} minutes"
    if hours < 48:
        return f"{hours:.0f} hours"
    days = hours / 24
    return f"{days:.0f} days" if days < 365 else f"{days / 365:,.0f} years"


def _finding(finding: Finding) -> list[str]:
    """What came out for a claim at one setting, reading by reading."""
    lines = [
        f"**{AT[finding.setting].capitalize()}: {finding.outcome}.** {escaped(finding.sentence)}",
        "",
    ]
    measured = [each for each in finding.readings if each.measured]
    head = ("rows", "table", "column", "outcome", "gain, 95% interval", "printed gain", "seeds")
    table = [
        (
            escaped(f"{each.better} over {each.than}"),
            f"[{each.table}]({_page(each)})",
            *reading_cells(each),
        )
        for each in measured
    ]
    lines += [*table_lines(head, table), ""]
    if idle := len(finding.readings) - len(measured):
        lines += [f"Not measured: {idle} more.", ""]
    remarks: dict[str, list[str]] = {}
    for each in measured:
        for remark in (*each.remarks, *_seeds_needed(each)):
            remarks.setdefault(remark, []).append(f"{each.better}, {each.column}")
    for remark, places in remarks.items():
        where = f" ({'; '.join(places)})" if len(places) < len(measured) else ""
        lines.append(f"- {escaped(f'{remark}{where}')}")
    lines += [""] * bool(remarks)
    if differences := dict.fromkeys(text for each in measured for text in each.differences):
        lines += [f"What differs from the paper: {escaped(' '.join(differences))}", ""]
    return lines


def _seeds_needed(reading: Reading) -> list[str]:
    if reading.seeds_needed is None:
        return []
    return [f"{reading.seeds_needed} seeds a row would see the gain in 80% of studies."]


def _page(reading: Reading) -> str:
    """The page of a reading's table, as seen from the folder of results."""
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
    return table_lines(head, lines)


def _measured(finding: Finding) -> bool:
    return finding.outcome != "not measured"


def _panels(some: Sequence[Finding]) -> list[Panel]:
    """A panel for each table and metric of a setting: its claims down, gains along."""
    found: dict[tuple[str, str, str], dict[str, list[Point]]] = {}
    for finding in some:
        for reading in finding.readings:
            if reading.gain is None:
                continue
            unit = reading.metric + (f" ({reading.unit})" if reading.unit else "")
            lines = found.setdefault((reading.setting, reading.address, unit), {})
            label = "\n".join(textwrap.wrap(finding.claim.sentence, LABEL))
            lines.setdefault(label, []).append(
                Point(
                    reading.gain,
                    reading.low,
                    reading.high,
                    reading.printed,
                    COLORS[reading.outcome],
                    f"{reading.better}, {reading.column}",
                )
            )
    return [
        Panel(f"{address} ({setting})", f"gain in {unit}", lines, zero=True)
        for (setting, address, unit), lines in found.items()
    ]


def _in(panel: Panel) -> Iterator[Point]:
    return (point for some in panel.lines.values() for point in some)
