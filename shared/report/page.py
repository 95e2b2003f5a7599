"""The report as a site: this module makes its first screen, what holds of every claim.

The pages behind it are those of ``shared.report.site``; the frame of all is ``frame.html.j2``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.experiment.runs import write_atomically
from shared.experiment.tables import TIERS, Tier
from shared.report import losses
from shared.report.claims import CLAIMS, Entry, entries, tallied
from shared.report.claims import write as write_claims
from shared.report.curves import Curve
from shared.report.measuring import Measured, refuse_smoke
from shared.report.paperwork import BIBTEX, CHECKLIST, bibtex, checklist
from shared.report.site import (
    SITE,
    claim_page,
    forms,
    gain_text,
    loss_page,
    pages,
    table_page,
    titles,
)
from shared.report.statistics import Kind
from shared.report.wording import DASH, name_of

INDEX = "index.html"
# What a paper's comparisons are summed up by: who asks, and of which budget it speaks.
PARTS: Mapping[tuple[bool, Tier], str] = {
    (False, "paper"): "its claims, at the paper's setting",
    (False, "short"): "its claims, at a smaller budget",
    (True, "paper"): "asked by this suite, at the paper's setting",
    (True, "short"): "asked by this suite, at a smaller budget",
}


def site(
    measured: Sequence[Measured],
    every: Sequence[Measured] | None = None,
    curves: Mapping[str, Curve] | None = None,
) -> dict[str, str]:
    """By its path below the folder of results every page, the first screen first.

    Args:
        measured: the tables that are shown.
        every: those whose claims are listed; None for the same ones.
        curves: kept learning curves, by the hash of their record.

    Raises:
        ValueError: a table of the smoke tier, which never enters results.
    """
    for each in measured:
        refuse_smoke(each)
    every = measured if every is None else every
    return {INDEX: _first_screen(measured, every), **dict(pages(measured, every, curves))}


def write_site(
    results: Path,
    measured: Sequence[Measured],
    every: Sequence[Measured] | None = None,
    curves: Mapping[str, Curve] | None = None,
) -> None:
    """Write the site and what it leads to: ``claims.json``, the papers' BibTeX, the checklist.

    Pages of an earlier site that this one has no more are deleted.

    Raises:
        ValueError: a table of the smoke tier.
    """
    texts = site(measured, every, curves)
    every = measured if every is None else every
    write_claims(results, entries(every))
    write_atomically(results / BIBTEX, bibtex())
    write_atomically(results / CHECKLIST, checklist(measured))
    for path, text in texts.items():
        write_atomically(results / path, text)
    for file in sorted((results / SITE).rglob("*.html")):
        if file.relative_to(results).as_posix() not in texts:
            file.unlink()


def _first_screen(measured: Sequence[Measured], every: Sequence[Measured]) -> str:
    listed = entries(every)
    known = titles(every)
    papers = [
        _Paper.of(paper, known.get(paper, ""), listed)
        for paper in dict.fromkeys(entry.paper for entry in listed)
    ]
    return (
        forms()
        .get_template("page.html.j2")
        .render(
            up="",
            title="What holds of the papers' claims",
            papers=papers,
            parts=[
                part
                for part in PARTS.values()
                if any(part in each.parts and each.parts[part].measured for each in papers)
            ],
            filters={
                name: sorted({getattr(entry, name) for entry in listed})
                for name in ("paper", "domain", "tier")
            },
            files={
                CLAIMS: "every comparison as data",
                BIBTEX: "the papers",
                CHECKLIST: "the NeurIPS checklist, as far as records answer it",
            },
            tables=[(name_of(each), each.table.title, table_page(each)) for each in measured],
            losses=[(each.name, loss_page(each.name)) for each in losses.PORTRAITS],
        )
    )


@dataclass(frozen=True)
class _Block:
    """The comparisons of one claim in one domain and tier, summed up."""

    tier: Tier
    tally: list[tuple[int, Kind, bool]]
    facts: list[str]


@dataclass(frozen=True)
class _Line:
    """A claim of which something is measured."""

    anchor: str
    sentence: str
    link: str
    blocks: Mapping[str, list[_Block]]


@dataclass(frozen=True)
class _Idle:
    """A claim of which nothing is measured."""

    sentence: str
    link: str
    domains: str
    where: str


@dataclass(frozen=True)
class _Part:
    """Some comparisons of a paper, summed up."""

    tally: list[tuple[int, Kind, bool]]
    measured: int
    all: int


@dataclass(frozen=True)
class _Paper:
    """What the page begins with, for one paper."""

    name: str
    title: str
    parts: Mapping[str, _Part]
    domains: list[str]
    lines: list[_Line]
    idle: list[_Idle]

    @classmethod
    def of(cls, name: str, title: str, listed: Sequence[Entry]) -> "_Paper":
        by_sentence: dict[str, list[Entry]] = {}
        by_part: dict[str, list[Entry]] = {}
        for entry in listed:
            if entry.paper == name:
                by_sentence.setdefault(entry.sentence, []).append(entry)
                by_part.setdefault(PARTS[entry.asked_here, entry.tier], []).append(entry)
        parts = {}
        for part, some in by_part.items():
            measured = [entry for entry in some if entry.measured]
            parts[part] = _Part(tallied(measured), len(measured), len(some))
        lines, idle = [], []
        for text, some in by_sentence.items():
            domains = list(dict.fromkeys(entry.domain for entry in some))
            link = claim_page(name, text)
            if any(entry.measured for entry in some):
                blocks = {
                    domain: [
                        _Block(tier, tallied(own), _facts(own))
                        for tier in TIERS
                        if (own := [e for e in some if (e.domain, e.tier) == (domain, tier)])
                    ]
                    for domain in domains
                }
                anchor = Path(link).stem
                lines.append(_Line(f"claim--{anchor}", text, link, blocks))
            else:
                where = ", ".join(dict.fromkeys(f"{e.domain} {e.table}" for e in some))
                idle.append(_Idle(text, link, " ".join(domains), where))
        seen = list(dict.fromkeys(domain for line in lines for domain in line.blocks))
        return cls(name, title, parts, seen, lines, idle)


def _facts(some: Sequence[Entry]) -> list[str]:
    """Gains measured and published, seeds and power of the measured ones, a line each."""
    measured = [entry for entry in some if entry.measured]
    gains = [entry.gain for entry in measured if entry.gain is not None]
    if not gains:
        return []
    lows = [entry.low for entry in measured if entry.low is not None]
    highs = [entry.high for entry in measured if entry.high is not None]
    if len(measured) == 1:
        text = f"gain {gain_text(measured[0])}"
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
