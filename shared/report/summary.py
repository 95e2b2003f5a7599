"""Outcomes of the papers' claims: the summary, and a page of claims for each paper.

``results/README.md`` is the summary; ``results/<paper>.md`` has every claim of a paper under an
anchor of its own, ``results/additional.md`` has the additional questions of the suite.
"""

import dataclasses
import functools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import UserError
from shared.experiment.files import write_atomically
from shared.experiment.tables import Cell, Claim, SettingWord
from shared.experiment.templates import escaped
from shared.report import pictures
from shared.report.claims import (
    AGAINST,
    FOR,
    SETTINGS,
    Cost,
    Finding,
    Outcome,
    Reading,
    ends_of_margin,
    findings,
    outcome_text,
    significant,
)
from shared.report.files import ADDITIONAL, page, rows_of
from shared.report.measuring import Measured
from shared.report.pictures import Panel, Picture, Point, with_cuts
from shared.report.wording import counted, gain_text

SUMMARY = "README.md"
BEGINS, ENDS = "<!-- claims: written by ./reproduce.sh report -->", "<!-- claims end -->"
# Colour and shape of a reading in a picture, by its word.
MARKS: Mapping[Outcome, tuple[str, str]] = {
    "agrees": ("#1b7f4b", "^"),
    "disagrees": ("#c0392b", "v"),
    "open": ("#8a94a6", "o"),
}
AT: Mapping[SettingWord, str] = {
    "paper's": "at the paper's setting",
    "rebuilt": "rebuilt, at the paper's budget",
    "reduced": "small runs",
}
# In the order in which a finding's line has them.
WHY: Mapping[Outcome, str] = {
    "collapsed": "collapsed",
    "baseline collapsed": "compared with a row that has collapsed",
    "below the bar": "below {bar}",
    "inert": "with an inert term",
    "one seed": "with one seed",
}
# The columns of the table of outcomes.
COUNTED: Mapping[str, tuple[Outcome, ...]] = {
    "agree": FOR,
    "disagree": AGAINST,
    "open": ("open", "mixed"),
    "uninformative": ("uninformative",),
}
LABEL = 44  # characters of a line of a claim in the picture
UNITS = {"%": "percentage points", "": "no unit"}  # of a difference


@dataclass(frozen=True)
class Paper:
    """A paper, and its claim in one sentence."""

    name: str  # short
    title: str
    cited: str  # authors and year
    says: str  # its claim in one sentence
    further: tuple[str, ...] = ()  # what it also says, and why no word is given for it
    # What it says of the time of an iteration, with the rows that are timed for it.
    costs: tuple[str, tuple[str, ...]] | None = None


PAPERS: Mapping[str, Paper] = {
    "lmcl": Paper(
        "LMCL",
        "Large-Margin Contrastive Learning with Distance Polarization Regularizer",
        "Chen et al. 2021",
        "Pushing pairwise distances out of a middle band (distance polarization) improves "
        "contrastive baselines on images, text and control: by at least 1 point on CIFAR-10 and 2 "
        "on STL-10.",
        (
            "Distances are determined more accurately (Figure 5): no comparison of two rows.",
            "Returns vary less than CURL's: an F test of three seeds needs a ratio of 39.",
        ),
        ("The penalty adds very little overhead", ("SimCLR + DP, anchor sum",)),
    ),
    "cllr": Paper(
        "CLLR",
        "Learning Contrastive Embedding in Low-Dimensional Space",
        "Chen et al. 2022",
        "Learning a low-rank projection together with the embedding improves contrastive baselines "
        "on images, text and control: by at least 1 point on CIFAR-10 and 2 on STL-10.",
        (
            "All baselines are improved consistently (Section 4.3): judged table by table above.",
            "Returns vary less than CURL's: an F test of three seeds needs a ratio of 39.",
        ),
        ("The projection adds very little overhead", ("CLLR, l2,1", "CLLR, nuclear")),
    ),
    "mmcl": Paper(
        "MMCL",
        "Max-Margin Contrastive Learning",
        "Shah et al. 2022",
        "Weighting negatives as a support vector machine does (in closed form, INV, or by "
        "projected gradient, PGD) improves contrastive learning of images, graphs and videos.",
        ("At a batch of 128 it is close to HCL at 256 (Table 7): 'close' has no margin.",),
        (
            "An iteration takes about SimCLR's time (Figure 3, panel b)",
            ("MMCL INV, both views", "MMCL PGD, both views"),
        ),
    ),
    "margins": Paper(
        "margins",
        "Understanding Contrastive Learning Through the Lens of Margins",
        "Rho et al. 2023",
        "A margin works mainly by its emphasis on positives, which raises the accuracy of MoCo and "
        "leaves SimCLR's flat; curvature of the gradient and the ratio of denominators add to it.",
        ("The gain from s grows with the batch (Figure 4): no comparison of two rows.",),
    ),
}


@dataclass(frozen=True)
class Results:
    """All measured tables, and the outcomes of the claims."""

    tables: Sequence[Measured]  # every table of the paper-scale and reduced tiers, measured or not
    readings: Sequence[Reading]  # of all of them
    # What cells take on GPUs, in words; None where that is not wanted.
    on_gpus: Callable[[Sequence[Cell]], str] | None = None
    costs: Sequence[Cost] = ()  # of iterations that were timed

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the readings."""
        return findings(self.readings)

    def of(self, paper: str) -> list[Finding]:
        """The findings of a paper; of the additional questions for an empty name."""
        return [finding for finding in self.findings if finding.claim.paper == paper]

    @functools.cached_property
    def left(self) -> dict[str, str]:
        """By paper what its missing runs take; its own page and the first one say so."""
        return {
            paper: _left(self, [r for finding in self.of(paper) for r in finding.readings])
            for paper in PAPERS
        }

    def read_from(self, measured: Measured) -> list[Reading]:
        """The readings of one table."""
        wanted = (measured.table.address, measured.tier)
        return [r for r in self.readings if (r.address, r.tier) == wanted]


def sentence(results: Results, paper: str) -> str:
    """The outcomes of a paper's claims in one sentence."""
    of_paper = results.of(paper)
    parts = []
    for setting in SETTINGS:
        words = Counter(f.word for f in of_paper if f.setting == setting and f.measured)
        if words:
            text = ", ".join(f"{number} {word}" for word, number in words.items())
            parts.append(f"{AT[setting]}: {text}")
    if not_run := _not_run(of_paper):
        parts.append(f"{len(not_run)} not run")
    name = PAPERS[paper].name if paper else "Additional questions"
    return f"{name}, {counted(len(_ids(of_paper)), 'claim')}: {'; '.join(parts)}."


def in_short(results: Results, folder: str = "") -> str:
    """What was measured at the papers' settings, and a table of the outcomes of all papers' claims.

    ``folder`` is the path of the results, relative to the document.
    """
    lines = []
    for key, paper in PAPERS.items():
        of_paper = results.of(key)
        counts = [
            _count([finding for finding in of_paper if finding.outcome in outcomes])
            for outcomes in COUNTED.values()
        ]
        not_run = f"{len(_not_run(of_paper))} of {len(_ids(of_paper))}"
        clear = _significant(results, key)
        printed = f"{sum(clear)} of {len(clear)}" if clear else "none printed"
        lines.append((f"[{paper.name}]({folder}{key}.md)", *counts, not_run, printed))
    at_paper = [
        f"{PAPERS[finding.claim.paper].name}'s {finding.claim.place}"
        for finding in results.findings
        if finding.measured and finding.setting == "paper's" and finding.claim.paper in PAPERS
    ]
    return page("in_short", globals(), at_paper=at_paper, lines=lines)


def _count(findings: Sequence[Finding]) -> str:
    """How many findings, and how many of them are rebuilt, in part or mixed."""
    if not findings:
        return "none"
    kinds = Counter(
        " and ".join(
            kind
            for kind, holds in (
                ("rebuilt", finding.setting == "rebuilt"),
                ("in part", finding.in_part or finding.outcome == "partly"),
                ("mixed", finding.outcome == "mixed"),
            )
            if holds
        )
        for finding in findings
    )
    del kinds[""]
    details = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return f"{len(findings)} ({details})" if details else str(len(findings))


def _significant(results: Results, paper: str) -> list[bool]:
    """For each claimed gain of a paper's own tables with deviations, whether it is significant.

    A gain that several claims are about counts once.
    """
    clear_gains: dict[tuple[str, str | None, str | None, str], bool] = {}
    for measured in results.tables:
        table = measured.table
        if measured.tier == "paper" and table.paper == paper:
            printed = {row.label: row.published for row in table.rows}
            for claim, pair, column, clear in significant(table):
                if claim.paper == paper:
                    key = (table.name, printed[pair.better], printed[pair.than], column)
                    clear_gains[key] = clear
    return list(clear_gains.values())


def write_in_short(document: Path, results: Results) -> None:
    """Write :func:`in_short` between its two markers in a document."""
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
            pictures.write(folder / f"{name}.png", _picture(panels, results.of(paper)[0].claim))


def first_page(results: Results) -> str:
    """The first page of the results, in Markdown."""
    tables = []
    for measured in results.tables:
        cells = [cell for cell in measured.flat if cell.declared]
        path = (measured.folder / measured.table.name).as_posix()
        done = sum(cell.summary is not None for cell in cells)
        tables.append((path, measured.table.title, done, len(cells)))
    return page("summary", globals(), results=results, tables=tables)


def paper_page(results: Results, key: str) -> str:
    """The page of a paper with all its claims, or for an empty name of the additional questions."""
    by_claim: dict[str, list[Finding]] = {}
    for finding in results.of(key):
        by_claim.setdefault(finding.claim.id, []).append(finding)
    paper = PAPERS.get(key)
    timed = paper.costs[1] if paper and paper.costs else ()
    return page(
        "paper",
        globals(),
        results=results,
        key=key,
        paper=paper,
        done=[group for group in by_claim.values() if any(f.measured for f in group)],
        idle=[group for group in by_claim.values() if not any(f.measured for f in group)],
        looked=any(r.looked for finding in results.of(key) for r in finding.measured),
        adjusted=any(r.open_by_adjustment for f in results.of(key) for r in f.measured),
        printed=_printed(results),
        costs=[cost for cost in results.costs if cost.row in timed],
    )


def _printed(results: Results) -> dict[str, list[str]]:
    """By claim, sentences on its gains by the deviations of the paper's own tables."""
    sentences: dict[str, list[str]] = {}
    for table in (measured.table for measured in results.tables if measured.tier == "paper"):
        by_claim: dict[str, list[bool]] = {}
        for claim, _, _, clear in significant(table):
            by_claim.setdefault(claim.id, []).append(clear)
        runs = table.published.runs
        how = f"{runs} runs" if runs else "three runs assumed, since none are stated"
        for name, gains in by_claim.items():
            sentences.setdefault(name, []).append(
                f"In the paper's own table {sum(gains)} of {len(gains)} of its gains are "
                f"significant (Welch's test, {how})."
            )
    return sentences


def _margin(claim: Claim) -> str:
    """What a claim of being comparable, or of no difference, is judged by; empty for another."""
    meaning = {
        "comparable": "Comparable or better is a gain above -{:g}",
        "null": "No difference is a gain within {:g} of 0",
        "no gain": "No gain is a gain below {:g}",
    }.get(claim.form)
    return f"{meaning.format(claim.margin)}: {claim.margin_source}." if meaning else ""


def _gains(finding: Finding) -> str:
    """The gains of a finding, what they exclude, and the readings without a word."""
    silent = Counter(r.outcome for r in finding.measured if r.outcome in WHY)
    bars = dict.fromkeys(r.bar_row for r in finding.measured if r.outcome == "below the bar")
    bar = " or ".join(f"'{row}'" for row in bars)
    reasons = [
        f"{silent[why]} of {len(finding.measured)} {text.format(bar=bar)}"
        for why, text in WHY.items()
        if why in silent
    ]
    # Other tables that were not run at all are those of further budgets.
    places = {(r.address, r.tier) for r in finding.measured}
    declared = sum((r.address, r.tier) in places for r in finding.readings)
    if unmeasured := declared - len(finding.measured):
        reasons.append(f"{unmeasured} of {declared} not run")
    ordered = sorted(
        (r for r in finding.informative if r.low is not None and r.high is not None),
        key=lambda reading: reading.gain or 0.0,
    )
    texts: list[str] = []
    if len(ordered) in (1, 2, 3):
        texts += map(_gain, reversed(ordered))
    elif ordered:
        low, high = (f"{reading.gain:+z.2f}" for reading in (ordered[0], ordered[-1]))
        texts.append(f"gains from {low} to {high} in {len(ordered)} readings")
    of_gain = finding.claim.form in ("superiority", "size") and finding.setting != "paper's"
    if ordered and of_gain and finding.outcome not in (*FOR, "mixed"):
        texts.append(f"a gain above {max(r.high or 0.0 for r in ordered):+z.2f} is excluded here")
    if ordered and finding.claim.margin:
        texts.append(f"the margin is {finding.claim.margin:g}")
    texts = [*reasons, *texts] if "collapsed" in silent else [*texts, *reasons]
    return f", {'; '.join(texts)}." if texts else "."


def _gain(reading: Reading) -> str:
    """Rows, column and gain with its interval."""
    gain = gain_text(reading.gain, reading.low, reading.high)
    failed = f"; {reading.failed}" * bool(reading.failed)
    return f"{gain} ({escaped(f'{rows_of(reading)}, {reading.column}{failed}')})"


def _run(finding: Finding, above: Sequence[Finding]) -> str:
    """The tables behind a finding: seeds, what differs from the paper, the level of the rows.

    What differs is not repeated where one of the findings ``above`` it says the same of a table.
    """
    texts = []
    told = {
        (path, readings[0].differences)
        for other in above
        for path, readings in _by_table(other).items()
    }
    for path, readings in _by_table(finding).items():
        counts = sorted({len(seeds) for r in readings for seeds in (r.seeds_better, r.seeds_than)})
        seeds = (
            f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else counted(counts[0], "seed")
        )
        differences = readings[0].differences
        if differences and (path, differences) in told:
            differences = ("Setting as above",)
        parts = [seeds, *(text.rstrip(".") for text in differences)]
        levels = [(r.level, r.bar, r.bar_row) for r in readings if r.bar is not None]
        if len({reading.column for reading in readings}) == 1 and levels:
            level, bar, name = levels[0]
            parts.append(f"The mean of both rows is {level:.0f}, that of '{name}' {bar:.0f}")
        texts.append(f"[{path}]({path}.md): {escaped('. '.join(parts))}")
    if finding.setting != "paper's" and not finding.claim.additional:
        texts.append("The paper's setting: not run")
    return ". ".join(texts) + "."


def _by_table(finding: Finding) -> dict[str, list[Reading]]:
    """The measured readings by the page of their table, without its ending."""
    by_path: dict[str, list[Reading]] = {}
    for reading in finding.measured:
        prefix = "" if reading.tier == "paper" else f"{reading.tier}/"
        by_path.setdefault(f"{prefix}{reading.address}", []).append(reading)
    return by_path


def _left(results: Results, readings: Iterable[Reading]) -> str:
    """The cost of the missing runs at the paper's setting, as the tables declare it."""
    wanted: dict[str, set[tuple[str, str]]] = {}
    for reading in readings:
        if reading.tier == "paper":
            pairs = wanted.setdefault(reading.address, set())
            pairs |= {(reading.better, reading.column), (reading.than, reading.column)}
    minutes: dict[str, float] = {}
    left: list[Cell] = []
    for measured in results.tables:
        if measured.tier == "paper" and measured.table.address in wanted:
            pairs = wanted[measured.table.address]
            columns = {column.label: column for column in measured.columns}
            done = {(c.row.label, c.column.label): c.records for c in measured.flat}
            for cell in measured.table.cells("paper"):
                pair = (cell.row, cell.column)
                if pair in pairs and cell.seed not in done[pair]:
                    minutes[cell.address] = columns[cell.column].minutes
                    left.append(cell)
    if not minutes:
        return "nothing at the paper's setting."
    time = duration(sum(minutes.values()) / 60)
    text = f"{len(minutes):,} runs at the paper's setting, about {time} on one CPU core"
    return f"{text}{f', or {results.on_gpus(left)}' if results.on_gpus else ''}."


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


def _remarks(readings: Sequence[Reading]) -> Iterator[str]:
    """What differs from the paper, and each remark of a table's readings with what it is about."""
    if differences := readings[0].differences:
        papers = "the paper" if readings[0].claim.paper else "the papers"
        yield f"Differences from {papers}: {' '.join(differences)}"
    by_remark: dict[str, list[Reading]] = {}
    for reading in readings:
        for remark in reading.remarks:
            by_remark.setdefault(remark, []).append(reading)
    for remark, remarked in by_remark.items():
        columns = dict.fromkeys(reading.column for reading in remarked)
        whole = all(reading in remarked for reading in readings if reading.column in columns)
        names = columns if whole else dict.fromkeys(f"{rows_of(r)}, {r.column}" for r in remarked)
        yield f"{remark} ({'; '.join(names)})" if len(remarked) < len(readings) else remark


def _ids(findings: Iterable[Finding]) -> set[str]:
    return {finding.claim.id for finding in findings}


def _not_run(findings: Sequence[Finding]) -> list[Claim]:
    """The claims that were not measured at any setting."""
    done = _ids(finding for finding in findings if finding.measured)
    return list({f.claim.id: f.claim for f in findings if f.claim.id not in done}.values())


def _panels(findings: Sequence[Finding]) -> list[Panel]:
    """A panel for each table: a line for each claim, a point for each gain that has a word."""
    lines_of: dict[tuple[SettingWord, str, str], dict[str, list[Point]]] = {}
    for finding in findings:
        for reading in finding.informative:
            if reading.gain is None or reading.low is None:
                continue
            panel = (reading.setting, reading.address, reading.unit)
            label = "\n".join(textwrap.wrap(finding.claim.sentence, LABEL))
            color, marker = MARKS[_sign(reading)]
            lines_of.setdefault(panel, {}).setdefault(label, []).append(
                Point(
                    reading.gain,
                    reading.low,
                    reading.high,
                    color=color,
                    note=f"{rows_of(reading)}, {reading.column}",
                    marker=marker,
                    margin=ends_of_margin(finding.claim),
                )
            )
    return [
        Panel(
            f"{address} ({AT[setting]})",
            f"gain over the second row ({UNITS.get(unit, unit)})",
            {label: [*map(_numbered, line)] for label, line in with_cuts(lines).items()},
            rule=0.0,
        )
        for (setting, address, unit), lines in lines_of.items()
    ]


def _numbered(point: Point) -> Point:
    """A point that is cut, noted with its numbers."""
    if not point.cut:
        return point
    return dataclasses.replace(
        point, note=f"{point.note}: {gain_text(point.value, point.low, point.high)}"
    )


def _sign(reading: Reading) -> Outcome:
    """Which mark a reading has."""
    if reading.outcome in FOR:
        return "agrees"
    return "disagrees" if reading.outcome in AGAINST else "open"


def _picture(panels: Sequence[Panel], claim: Claim) -> Picture:
    """The picture of some panels; its legend has the words for claims of the kind of ``claim``."""
    shown = {point.color for panel in panels for point in panel.points()}
    looks = {outcome_text(word, claim): look for word, look in MARKS.items()}
    legend = {word: color for word, (color, _) in looks.items() if color in shown}
    return Picture(panels, 1, legend, markers={word: mark for word, (_, mark) in looks.items()})
