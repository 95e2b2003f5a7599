"""Claims as tables: README's, the page of all results, and a page for each paper.

``results/README.md`` has a line for every claim; ``results/<paper>.md`` has every claim of a paper
under an anchor of its own, ``results/additional.md`` the additional questions of the suite.
"""

import functools
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import UserError
from shared.experiment.files import write_atomically
from shared.report import pictures
from shared.report.claims import Cost, Judged, by_claim, survivors, word_of_claim
from shared.report.files import ADDITIONAL, page
from shared.report.judge import LEAST_SHARE, Word
from shared.report.measuring import Measured
from shared.report.pictures import Mean, Panel, Picture, Point
from shared.report.wording import DASH, POST_HOC, counted, gain_text, p_text

SUMMARY = "README.md"
BEGINS, ENDS = "<!-- claims: written by ./reproduce.sh report -->", "<!-- claims end -->"
# Colour and shape of a comparison in a picture, by its word.
MARKS: Mapping[Word, tuple[str, str]] = {
    "as claimed": ("#1b7f4b", "^"),
    "contrary": ("#c0392b", "v"),
    "undecided": ("#8a94a6", "o"),
    "not testable": ("#c08a1e", "s"),
}
ANSWERS: Mapping[Word, str] = {"as claimed": "yes", "contrary": "no"}  # to a question
LABEL = 44  # characters of a line of a claim in the picture
UNITS = {"%": "percentage points", "": "no unit"}  # of a difference
# The row whose accuracy tells the scale of the small runs on images.
SIMCLR = ("vision/margins/table-2-cifar10", "SimCLR")
MOST_INTERVALS = 2  # in a line of a claim; more comparisons are a count and a range


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
    """All measured tables, and the comparisons of the claims."""

    tables: Sequence[Measured]  # every table of the paper and short tiers, measured or not
    comparisons: Sequence[Judged]  # of all of them
    costs: Sequence[Cost] = ()  # of iterations that were timed

    @functools.cached_property
    def groups(self) -> list[list[Judged]]:
        """The comparisons of each claim at each scale."""
        return by_claim(self.comparisons)

    def of(self, paper: str) -> list[list[Judged]]:
        """The groups of a paper; of the additional questions for an empty name."""
        return [group for group in self.groups if group[0].claim.paper == paper]

    @functools.cached_property
    def printed(self) -> dict[str, list[float]]:
        """By claim the printed gains: means of its comparisons, else those of the paper's table."""
        gains: dict[str, list[float]] = {}
        for measured in (True, False):
            found: dict[str, dict[tuple[str, ...], float]] = {}
            for each in self.comparisons:
                if each.is_measured != measured or each.claim.id in gains:
                    continue
                of_claim = found.setdefault(each.claim.id, {})
                if measured and each.printed is not None:
                    of_claim[each.method, each.baseline, each.part] = each.printed
                for column in each.columns if not measured and each.tier == "paper" else ():
                    if column.printed_gain is not None:
                        numbers = tuple(map(str, column.printed))
                        of_claim[column.label, *numbers] = column.printed_gain
            gains |= {claim: sorted(set(of.values())) for claim, of in found.items() if of}
        return gains

    def claims_on(self, measured: Measured) -> list[Judged]:
        """A measured comparison of each claim that is judged on a table."""
        wanted = (measured.table.address, measured.tier)
        done = (c for c in self.comparisons if c.is_measured and (c.address, c.tier) == wanted)
        return list({comparison.claim.id: comparison for comparison in done}.values())


def sentence(results: Results, paper: str) -> str:
    """The words of a paper's comparisons in one sentence, for the terminal."""
    groups = results.of(paper)
    words = Counter(word for group in groups if group[0].is_measured for word in _words(group))
    not_run = sum(not group[0].is_measured for group in groups)
    parts = [f"{number} {word}" for word, number in words.items()] + [f"{not_run} not run"]
    name = PAPERS[paper].name if paper else "Additional questions"
    return f"{name}, {counted(len({g[0].claim.id for g in groups}), 'claim')}: {'; '.join(parts)}."


def _words(group: Sequence[Judged]) -> list[str]:
    """The word of a claim, or those of its comparisons."""
    if word := word_of_claim(group):
        return [word]
    return [comparison.text for comparison in group if comparison.text]


def line(results: Results, group: Sequence[Judged], folder: str = "", name: str = "") -> list[str]:
    """The line of a claim in the tables of README and results.

    Args:
        results: all results.
        group: its comparisons at one scale.
        folder: path of the results, relative to the document.
        name: what its text begins with, such as the name of the paper.
    """
    claim = group[0].claim
    link = f"{folder}{claim.paper or ADDITIONAL}.md#{claim.id}"
    scale = " (rebuilt)" if "rebuilt" in group[0].scale and group[0].is_measured else ""
    first = f"{name}[{claim.brief}]({link}){scale}"
    if not group[0].is_measured:
        return [first, _printed(results, group), DASH, DASH, "not run", DASH]
    sizes = [c.size for c in group if c.size and not c.gain.beside]
    return [
        first,
        _printed(results, group),
        _here(group),
        _seeds(group),
        _counts(_words(group)),
        _counts(sizes) or DASH,
    ]


def tally(groups: Sequence[Sequence[Judged]]) -> str:
    """How many claims have which word, and how many have several, for their comparisons."""
    counts: Counter[str] = Counter()
    for group in groups:
        words = {word.partition(" (")[0].partition(",")[0] for word in _words(group)}
        counts[words.pop() if len(words) == 1 else "with several words"] += 1
    parts = [f"{number} {word}" for word, number in counts.most_common()]
    return f"Of {len(groups)} claims that were run: {', '.join(parts)}."


def lines(results: Results, paper: str) -> list[list[str]]:
    """The lines of a paper's claims, or for an empty name of the additional questions."""
    return [line(results, group) for group in results.of(paper)]


def _printed(results: Results, group: Sequence[Judged]) -> str:
    """The printed gains of a claim: the least one that it states, else one or two, or a range."""
    size = group[0].claim.size
    if size is not None:
        return f"≥ {size:g}"
    gains = results.printed.get(group[0].claim.id, [])
    if len(gains) <= MOST_INTERVALS:
        return ", ".join(f"{gain:+z.2f}" for gain in gains) or DASH
    return f"{gains[0]:+z.2f} to {gains[-1]:+z.2f}"


def _here(group: Sequence[Judged]) -> str:
    """The levels and gains of a claim's comparisons; those beside have no interval."""
    main = [comparison for comparison in group if not comparison.gain.beside]
    intervals = [c.gain.estimate.interval for c in main if not c.gain.ranked]
    if len(main) <= MOST_INTERVALS:
        texts, before = [], ""
        for each in main:
            baseline = f"{each.gain.levels[1]:.2f}"
            start = "" if baseline == before else f"{baseline} "
            texts.append(f"{start}→ {each.gain.levels[0]:.2f}: {_gain(each)}")
            before = baseline
    else:
        gains = sorted(c.gain.estimate.gain for c in main if not c.gain.ranked)
        levels = sorted(c.gain.levels[1] for c in main)
        known = [interval for interval in intervals if interval]
        ends = ""
        if known:
            low, high = min(end[0] for end in known), max(end[1] for end in known)
            ends = f" (intervals from {_number(low)} to {_number(high)})"
        texts = [
            f"{counted(len(gains), 'comparison')}, {gains[0]:+z.2f} to {gains[-1]:+z.2f}{ends}, "
            f"of baselines at {levels[0]:.2f}" + f" to {levels[-1]:.2f}" * (levels[0] != levels[-1])
        ]
        texts += [_gain(each) for each in main if each.gain.ranked]
    beside: dict[str, list[str]] = {}
    for each in group:
        if each.gain.beside:
            beside.setdefault(each.baseline, []).append(f"{each.gain.estimate.gain:+z.2f}")
    texts += [f"over '{row}' {', '.join(gains)}" for row, gains in beside.items()]
    return "; ".join(texts)


def _number(value: float) -> str:
    """An end of an interval: one that rounds to 0 keeps its side of it."""
    return f"{round(value, 9) + 0.0:+.2f}"


def _gain(comparison: Judged) -> str:
    """The gain with its interval; of a row with many failed runs, how many finished."""
    gain = comparison.gain
    if gain.ranked:
        texts = [
            f"{n - k} of {n} runs of '{row}' finished"
            for (k, n), row in zip(
                gain.failed, (comparison.method, comparison.baseline), strict=True
            )
            if k
        ]
        return f"{', '.join(texts)} (p = {p_text(gain.p or 0.0)})"
    return gain_text(gain.estimate.gain, *(gain.estimate.interval or ()))


def _counts(words: Sequence[str]) -> str:
    """Equal words once with their number: ``2 undecided; 1 contrary``."""
    counts = Counter(words)
    if len(counts) == 1:
        ((word, number),) = counts.items()
        return word if number == 1 else f"{word} ({number})"
    return "; ".join(f"{number} {word}" for word, number in counts.items())


def _seeds(group: Sequence[Judged]) -> str:
    """The numbers of finished seeds of method and baseline, over all comparisons."""
    texts = []
    for row in (0, 1):
        numbers = sorted({len(c.seeds[row]) for each in group for c in each.in_mean})
        texts.append(f"{numbers[0]}" + f" to {numbers[-1]}" * (len(numbers) > 1))
    post_hoc = f" {POST_HOC}" * any(each.gain.post_hoc for each in group)
    return ", ".join(dict.fromkeys(texts)) + post_hoc


def in_short(results: Results, folder: str = "") -> str:
    """README's section: what was run, the table of the chosen claims, and what is left.

    ``folder`` is the path of the results, relative to the document.
    """
    chosen, before = [], ""
    for key, paper in PAPERS.items():
        for group in results.of(key):
            if group[0].claim.readme and group[0].is_measured:
                name = f"[{paper.name}]({folder}{key}.md): " if key != before else ""
                chosen.append(line(results, group, folder, name))
                before = key
    simclr = next(
        (c for c in results.comparisons if (c.address, c.baseline) == SIMCLR and c.is_measured),
        None,
    )
    papers = [group for group in results.groups if group[0].claim.paper]
    left = sum(not group[0].is_measured for group in papers)
    return page(
        "in_short",
        globals(),
        lines=chosen,
        groups=[group for group in papers if group[0].is_measured],
        here=simclr.gain.levels[1] if simclr else None,
        there=simclr.columns[0].printed[1] if simclr else None,
        left=left,
        every=len({group[0].claim.id for group in papers}),
        folder=folder,
    )


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
            pictures.write(folder / f"{name}.png", _picture(panels, additional=not paper))


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
    groups = results.of(key)
    paper = PAPERS.get(key)
    timed = paper.costs[1] if paper and paper.costs else ()
    settings: dict[tuple[str, tuple[str, ...]], None] = {}
    for group in groups:
        for comparison in group if group[0].is_measured else ():
            settings[comparison.path, comparison.differences] = None
    return page(
        "paper",
        globals(),
        results=results,
        key=key,
        paper=paper,
        settings=list(settings),
        done=[group for group in groups if group[0].is_measured],
        idle=[group for group in groups if not group[0].is_measured],
        post_hoc=any(c.gain.post_hoc for group in groups for c in group),
        survivors=survivors(results.comparisons, key) if key else None,
        costs=[cost for cost in results.costs if cost.row in timed],
    )


def _row(comparison: Judged) -> list[str]:
    """The line of a comparison on a paper's page."""
    gain = comparison.gain
    columns = ""
    if len(comparison.columns) > 1:
        columns = f"+{gain.above} -{gain.below} of {len(comparison.in_mean)}"
    floor = DASH if comparison.floor is None else f"{comparison.floor:.2f}"
    seeds = [sorted({len(c.seeds[row]) for c in comparison.in_mean}) for row in (0, 1)]
    counts = [f"{n[0]}" + f" to {n[-1]}" * (len(n) > 1) for n in seeds]
    part = f", {comparison.part}" if comparison.part else ""
    return [
        f"{comparison.method}{part}: {gain.levels[0]:.2f}",
        f"{comparison.baseline}: {gain.levels[1]:.2f}",
        floor,
        _gain(comparison),
        columns,
        ", ".join(dict.fromkeys(counts)) + f" {POST_HOC}" * gain.post_hoc,
        _printed_with_levels(comparison),
        comparison.text or DASH,
        comparison.size or DASH,
    ]


def _printed_with_levels(comparison: Judged) -> str:
    """The printed gain, and the printed levels that it is the difference of."""
    if comparison.claim.size is not None:
        return f"≥ {comparison.claim.size:g}"
    if comparison.printed is None:
        return DASH
    levels = [
        sum(c.printed[row] or 0.0 for c in comparison.in_mean) / len(comparison.in_mean)
        for row in (1, 0)
    ]
    return f"{comparison.printed:+z.2f} ({levels[0]:.2f} → {levels[1]:.2f})"


def _details(comparison: Judged) -> Iterator[str]:
    """What stands beside a word, a sentence each."""
    gain = comparison.gain
    if gain.p is not None:
        adjusted = "" if gain.beside else f", {p_text(min(gain.adjusted))} after Holm"
        yield f"p = {p_text(gain.p)}{adjusted}."
    if gain.margin and gain.smallest_margin is not None:
        smallest = f"{gain.smallest_margin:.2f}"
        yield f"The margin is {gain.margin:g}; the smallest that would hold is {smallest}."
    elif gain.smallest_margin is not None:
        yield f"There is no margin; the smallest that would hold is {gain.smallest_margin:.2f}."
    if gain.share is not None and gain.share < LEAST_SHARE:
        yield f"The term has {100 * gain.share:.2g}% of the gradient over the whole run."
    for (k, n), row in zip(gain.failed, (comparison.method, comparison.baseline), strict=True):
        if k and not gain.ranked:
            yield f"{n - k} of {n} runs of {row} finished."
    if second := comparison.second:
        by = gain_text(second.gain, *(second.interval or ()))
        declared = next(c for c in comparison.claim.comparisons if c.beside)
        yield f"By {declared.beside} the gain has the other sign: {by}."
    yield from comparison.remarks


def _columns(comparison: Judged) -> Iterator[list[str]]:
    """A line for each column of a comparison that has several."""
    for column in comparison.columns if len(comparison.columns) > 1 else ():
        if column.estimate is None:
            continue
        method, baseline = column.levels
        sign = comparison.gain.signs.get(column.label)
        counted_in = {None: "not in the mean", 0: "", 1: "above", -1: "below"}[sign]
        counts = dict.fromkeys(str(len(seeds)) for seeds in column.seeds)
        yield [
            f"{comparison.method} → {comparison.baseline}",
            column.label,
            f"{method:.2f}",
            f"{baseline:.2f}",
            gain_text(column.estimate.gain, *(column.estimate.interval or ())),
            ", ".join(counts),
            gain_text(column.printed_gain),
            counted_in,
        ]


def _panels(groups: Sequence[Sequence[Judged]]) -> list[Panel]:
    """A panel for each table: a line for each claim, a point for each comparison in it."""
    lines_of: dict[tuple[str, str, str], dict[str, list[Point]]] = {}
    for group in groups:
        for each in group:
            interval = each.gain.estimate.interval
            if not each.is_measured or each.gain.ranked or interval is None:
                continue
            color, marker = MARKS.get(each.word, MARKS["undecided"])
            label = "\n".join(textwrap.wrap(each.claim.brief, LABEL))
            panel = (each.scale, each.address, each.unit)
            values = [c.estimate.gain for c in each.columns if c.estimate is not None]
            lines_of.setdefault(panel, {}).setdefault(label, []).append(
                Mean(
                    each.gain.estimate.gain,
                    *interval,
                    published=each.claim.size if each.claim.size is not None else each.printed,
                    color=color,
                    note=f"{each.method} vs. {each.baseline}" + f", {each.part}" * bool(each.part),
                    marker=marker,
                    margin=_ends_of_margin(each),
                    values=tuple(values) if len(values) > 1 else (),
                )
            )
    return [
        Panel(
            f"{address} ({scale})",
            f"gain over the second row ({UNITS.get(unit, unit)})",
            lines,
            rule=0.0,
        )
        for (scale, address, unit), lines in lines_of.items()
    ]


def _ends_of_margin(comparison: Judged) -> tuple[float, ...]:
    """The gains that a claim of no difference, or none worse, is tested against."""
    margin = comparison.gain.margin
    ends = {"null": (-margin, margin), "comparable": (-margin,), "no gain": (margin,)}
    return ends.get(comparison.claim.form, ()) if margin else ()


def _picture(panels: Sequence[Panel], *, additional: bool) -> Picture:
    """The picture of some panels; for questions its legend has their words."""
    shown = {point.color for panel in panels for point in panel.points()}
    looks = {
        (ANSWERS.get(word, word) if additional else word): look for word, look in MARKS.items()
    }
    legend = {word: color for word, (color, _) in looks.items() if color in shown}
    printed = any(point.published is not None for panel in panels for point in panel.points())
    return Picture(
        panels,
        1,
        legend,
        published="printed gain" if printed else "",
        markers={word: mark for word, (_, mark) in looks.items()},
    )
