"""Outcomes of the papers' claims: the summary, and a page of claims for each paper.

``results/README.md`` is the summary; ``results/<paper>.md`` has every claim of a paper under an
anchor of its own, ``results/additional.md`` has the additional questions of the suite.
"""

import functools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    findings,
    said,
    significant,
)
from shared.report.files import ADDITIONAL, page, rows_of
from shared.report.measuring import Measured
from shared.report.pictures import Panel, Picture, Point
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
    "rebuilt": "rebuilt, at the paper's data and budget",
    "reduced": "small runs",
}
# In the order in which a finding's line has them.
WHY: Mapping[Outcome, str] = {
    "collapsed": "collapsed",
    "baseline collapsed": "compared with a row that has collapsed",
    "below the bar": "below {bar}",
    "inert": "with an inert term",
    "one seed": "of one seed",
}
# The columns of the table of outcomes.
COUNTED: Mapping[str, tuple[Outcome, ...]] = {
    "agree": ("confirmed", "agrees", "partly"),
    "disagree": ("contradicted", "disagrees"),
    "open": ("open", "mixed"),
    "say nothing": ("says nothing",),
}
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
        further: what it also says, and why no word is given for it.
        costs: what it says of the time of an iteration, with the rows that are timed for it.
    """

    name: str
    title: str
    cited: str
    says: str
    further: tuple[str, ...] = ()
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
    """All measured tables, and the outcomes of the claims.

    Args:
        tables: every table of the paper-scale and reduced tiers, measured or not.
        readings: the readings of all of them.
        on_gpus: what cells take on GPUs, in words; None where that is not wanted.
        costs: of iterations that were timed.
    """

    tables: Sequence[Measured]
    readings: Sequence[Reading]
    on_gpus: Callable[[Sequence[Cell]], str] | None = None
    costs: Sequence[Cost] = ()
    findings: tuple[Finding, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", findings(self.readings))

    def of(self, paper: str) -> list[Finding]:
        """The findings of a paper; of the additional questions for an empty name."""
        return [each for each in self.findings if each.claim.paper == paper]

    @functools.cached_property
    def left(self) -> dict[str, str]:
        """By paper what its missing runs take; its own page and the first one say so."""
        return {
            paper: _left(self, [reading for each in self.of(paper) for reading in each.readings])
            for paper in PAPERS
        }

    def read_from(self, measured: Measured) -> list[Reading]:
        """The readings of one table."""
        at = (measured.table.address, measured.tier)
        return [each for each in self.readings if (each.address, each.tier) == at]


def sentence(results: Results, paper: str) -> str:
    """The outcomes of a paper's claims in one sentence."""
    some = results.of(paper)
    parts = []
    for setting in SETTINGS:
        words = Counter(each.word for each in some if each.setting == setting and each.measured)
        if words:
            text = ", ".join(f"{number} {word}" for word, number in words.items())
            parts.append(f"{AT[setting]}: {text}")
    if left := _not_run(some):
        parts.append(f"{len(left)} not run")
    name = PAPERS[paper].name if paper else "Additional questions"
    return f"{name}, {counted(len(_ids(some)), 'claim')}: {'; '.join(parts)}."


def in_short(results: Results, folder: str = "") -> str:
    """What was measured at the papers' settings, and a table of the outcomes of all papers' claims.

    Args:
        results: the results.
        folder: path of the results, relative to the document.
    """
    lines = []
    for key, paper in PAPERS.items():
        some = results.of(key)
        cells = [_count([each for each in some if each.outcome in of]) for of in COUNTED.values()]
        left = f"{len(_not_run(some))} of {len(_ids(some))}"
        clear = _significant(results, key)
        printed = f"{sum(clear)} of {len(clear)}" if clear else "none printed"
        lines.append((f"[{paper.name}]({folder}{key}.md)", *cells, left, printed))
    at_paper = [
        f"{PAPERS[each.claim.paper].name}'s {each.claim.place}"
        for each in results.findings
        if each.measured and each.setting == "paper's" and each.claim.paper in PAPERS
    ]
    return page("in_short", globals(), at_paper=at_paper, lines=lines)


def _count(some: Sequence[Finding]) -> str:
    """How many findings, with those that differ in kind."""
    if not some:
        return "none"
    kinds = Counter(
        " and ".join(
            kind
            for kind, holds in (
                ("rebuilt", each.setting == "rebuilt"),
                ("in part", each.outcome == "partly"),
                ("mixed", each.outcome == "mixed"),
            )
            if holds
        )
        for each in some
    )
    del kinds[""]
    beside = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return f"{len(some)} ({beside})" if beside else str(len(some))


def _significant(results: Results, paper: str) -> list[bool]:
    """For each claimed gain that is printed with deviations, whether it is clear."""
    return [
        clear
        for measured in results.tables
        if measured.tier == "paper" and measured.table.paper == paper
        for claim, _, _, clear in significant(measured.table)
        if claim.paper == paper
    ]


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
    for each in results.tables:
        cells = [cell for cells in each.cells for cell in cells if cell.declared]
        path = (each.folder / each.table.name).as_posix()
        done = sum(cell.summary is not None for cell in cells)
        tables.append((path, each.table.title, done, len(cells)))
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
        done=[some for some in by_claim.values() if any(each.measured for each in some)],
        idle=[some for some in by_claim.values() if not any(each.measured for each in some)],
        looked=any(each.looked for one in results.of(key) for each in one.measured),
        printed=_printed(results),
        costs=[cost for cost in results.costs if cost.row in timed],
    )


def _printed(results: Results) -> dict[str, list[str]]:
    """By claim, sentences on its gains by the deviations of the paper's own tables."""
    sentences: dict[str, list[str]] = {}
    for table in (each.table for each in results.tables if each.tier == "paper"):
        found: dict[str, list[bool]] = {}
        for claim, _, _, clear in significant(table):
            found.setdefault(claim.id, []).append(clear)
        runs = table.published.runs
        how = f"{runs} runs" if runs else "three runs assumed, since none are stated"
        for name, clear_ones in found.items():
            sentences.setdefault(name, []).append(
                f"In the paper's own table {sum(clear_ones)} of {len(clear_ones)} of its gains are "
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
    silent = Counter(each.outcome for each in finding.measured if each.outcome in WHY)
    bar = next((f"'{name}'" for name in _bars(finding.measured)), "the bar")
    reasons = [
        f"{silent[why]} of {len(finding.measured)} {text.format(bar=bar)}"
        for why, text in WHY.items()
        if why in silent
    ]
    found = sorted(
        (each for each in finding.informative if each.low is not None and each.high is not None),
        key=lambda each: each.gain or 0.0,
    )
    texts: list[str] = []
    if len(found) in (1, 2, 3):
        texts += map(_gain, reversed(found))
    elif found:
        low, high = (f"{each.gain:+z.2f}" for each in (found[0], found[-1]))
        texts.append(f"gains from {low} to {high} in {len(found)} readings")
    if found and finding.claim.form in ("superiority", "size") and finding.setting != "paper's":
        texts.append(
            f"a gain above {max(each.high or 0.0 for each in found):+z.2f} is excluded here"
        )
    if found and finding.claim.margin:
        texts.append(f"the margin is {finding.claim.margin:g}")
    every = [*reasons, *texts] if "collapsed" in silent else [*texts, *reasons]
    return f", {'; '.join(every)}." if every else "."


def _bars(some: Sequence[Reading]) -> dict[str, None]:
    """The rows that the bars of some readings are named after."""
    return dict.fromkeys(each.bar_row for each in some if each.bar_row)


def _gain(reading: Reading) -> str:
    """Rows, column and gain with its interval."""
    gain = gain_text(reading.gain, reading.low, reading.high)
    return f"{gain} ({escaped(f'{rows_of(reading)}, {reading.column}')})"


def _run(finding: Finding) -> str:
    """The tables behind a finding: seeds, what differs from the paper, the level of the rows."""
    texts = []
    for path, some in _by_table(finding).items():
        seeds = sorted({len(s) for each in some for s in (each.seeds_better, each.seeds_than)})
        several = (
            f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else counted(seeds[0], "seed")
        )
        parts = [several, *(each.rstrip(".") for each in some[0].differences)]
        levels = [(each.level, each.bar, each.bar_row) for each in some if each.bar is not None]
        if len({each.column for each in some}) == 1 and levels:
            level, bar, name = levels[0]
            parts.append(f"The rows reach {level:.0f}, '{name}' {bar:.0f}")
        texts.append(f"[{path}]({path}.md): {escaped('. '.join(parts))}")
    if finding.setting != "paper's":
        texts.append("The paper's setting: not run")
    return ". ".join(texts) + "."


def _by_table(finding: Finding) -> dict[str, list[Reading]]:
    """The measured readings by the page of their table, without its ending."""
    found: dict[str, list[Reading]] = {}
    for each in finding.measured:
        path = each.address if each.tier == "paper" else f"{each.tier}/{each.address}"
        found.setdefault(path, []).append(each)
    return found


def _left(results: Results, readings: Iterable[Reading]) -> str:
    """What the missing runs at the paper's setting take, by what the tables declare of a run."""
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
            done = {(c.row.label, c.column.label): c.records for cs in measured.cells for c in cs}
            for cell in measured.table.cells("paper"):
                place = (cell.row, cell.column)
                if place in pairs and cell.seed not in done[place]:
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
        yield f"Differences from the paper: {' '.join(differences)}"
    found: dict[str, list[Reading]] = {}
    for each in readings:
        for remark in each.remarks:
            found.setdefault(remark, []).append(each)
    for remark, some in found.items():
        columns = dict.fromkeys(each.column for each in some)
        whole = all(each in some for each in readings if each.column in columns)
        names = columns if whole else dict.fromkeys(f"{rows_of(e)}, {e.column}" for e in some)
        yield f"{remark} ({'; '.join(names)})" if len(some) < len(readings) else remark


def _ids(some: Iterable[Finding]) -> set[str]:
    return {each.claim.id for each in some}


def _not_run(some: Sequence[Finding]) -> list[Claim]:
    """The claims that were not measured at any setting."""
    done = _ids(each for each in some if each.measured)
    return list({each.claim.id: each.claim for each in some if each.claim.id not in done}.values())


def _panels(some: Sequence[Finding]) -> list[Panel]:
    """A panel for each table: a line for each claim, a point for each gain that has a word."""
    found: dict[tuple[SettingWord, str, str], dict[str, list[Point]]] = {}
    for finding in some:
        for reading in finding.informative:
            if reading.gain is None or reading.low is None:
                continue
            place = (reading.setting, reading.address, reading.unit)
            label = "\n".join(textwrap.wrap(finding.claim.sentence, LABEL))
            color, marker = MARKS[_sign(reading)]
            found.setdefault(place, {}).setdefault(label, []).append(
                Point(
                    reading.gain,
                    reading.low,
                    reading.high,
                    color=color,
                    note=f"{rows_of(reading)}, {reading.column}",
                    marker=marker,
                )
            )
    return [
        Panel(
            f"{address} ({AT[setting]})",
            f"gain over the second row ({UNITS.get(unit, unit)})",
            lines,
            rule=0.0,
        )
        for (setting, address, unit), lines in found.items()
    ]


def _sign(reading: Reading) -> Outcome:
    """Which mark a reading has."""
    if reading.outcome in FOR:
        return "agrees"
    return "disagrees" if reading.outcome in AGAINST else "open"


def _picture(panels: Sequence[Panel], claim: Claim) -> Picture:
    """The picture of some panels; its legend has the words for claims of the kind of ``claim``."""
    shown = {point.color for panel in panels for point in panel.every()}
    looks = {said(word, claim): look for word, look in MARKS.items()}
    legend = {word: color for word, (color, _) in looks.items() if color in shown}
    return Picture(panels, 1, legend, markers={word: mark for word, (_, mark) in looks.items()})
