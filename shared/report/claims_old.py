"""Every claim of every table as data: what was said, what was measured of it, and what counts.

One entry is one *comparison*: one claim in one column of one table in one tier. ``claims.json`` has
all of them (``docs/report.md`` says what each key means), the page begins with them as a matrix,
and one sentence for each paper is counted from them.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import UserError
from shared.experiment.runs import write_atomically
from shared.experiment.tables import TIERS, Tier
from shared.report.evidence import powers_of
from shared.report.measuring import (
    Judged,
    Measured,
    arithmetic_of,
    floor_of,
    power_in,
    refuse_smoke,
)
from shared.report.statistics import DECIDED, KINDS, Kind
from shared.report.wording import DASH, explain

CLAIMS = "claims.json"
FORM = "claims-v2"
MEASURED_AS = re.compile(r" Measured(?: against)?: ")  # what follows names the rows
NOT_RUN: Kind = "not run"
BEGINS, ENDS = "<!-- claims: written by ./reproduce.sh report -->", "<!-- claims end -->"


@dataclass(frozen=True)
class Entry:
    """One claim in one column; the fields are the keys of ``claims.json``, see docs/report.md."""

    paper: str
    address: str
    table: str
    domain: str
    tier: Tier
    claim: str
    asked_here: bool
    better: str
    than: str
    column: str
    metric: str
    unit: str
    protocol: str
    verdict: Kind
    counts: bool
    because: tuple[str, ...]
    published_gain: float | None
    tolerance: float
    gain: float | None
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    declared_seeds: int
    seeds_needed: int | None
    power: dict[str, float | None] | None
    floor: dict[str, Any] | None
    arithmetic_spread: float | None
    why: str

    @property
    def measured(self) -> bool:
        """Whether both rows have a finished seed."""
        return self.verdict != NOT_RUN

    @property
    def sentence(self) -> str:
        """The claim without the rows that it was measured with."""
        return MEASURED_AS.split(self.claim)[0]


def entries(measured: Iterable[Measured]) -> tuple[Entry, ...]:
    """Every comparison of the measured tables, in their order.

    Raises:
        ValueError: a table of the smoke tier, which never enters results.
    """
    found: list[Entry] = []
    for each in measured:
        refuse_smoke(each)
        found += (_entry(judged, each) for judged in each.verdicts)
    return tuple(found)


def sentences(every: Sequence[Entry]) -> dict[str, str]:
    """By paper, in one sentence, how many comparisons say what, and whether any counts."""
    return {paper: _sentence(every, paper) for paper in dict.fromkeys(e.paper for e in every)}


def in_short(every: Sequence[Entry]) -> str:
    """A small table in Markdown: for each paper what its comparisons say, in each tier."""
    head = "| paper | at the paper's setting | at a smaller budget, of which it speaks |"
    lines = [head, "|---|---|---|"]
    for paper in dict.fromkeys(entry.paper for entry in every):
        texts = []
        for tier in ("paper", "short"):
            some = [e for e in every if (e.paper, e.tier) == (paper, tier)]
            measured = [e for e in some if e.measured]
            counting = sum(e.counts for e in measured)
            text = f"none of {len(some)} comparisons is measured" if some else DASH
            if measured:
                told = ", ".join(f"{number} {kind}" for kind, number in _kinds(measured))
                text = f"{told}; {counting or 'none'} of them count{'s' * (counting == 1)}"
                text += f" ({len(measured)} of {len(some)} comparisons)"
            texts.append(text)
        lines.append(f"| {paper} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def write_in_short(document: Path, every: Sequence[Entry]) -> None:
    """Put :func:`in_short` between its two marks in a document.

    Raises:
        UserError: the document lacks one of them.
    """
    before, first, rest = document.read_text(encoding="utf-8").partition(BEGINS)
    _, last, after = rest.partition(ENDS)
    if not first or not last:
        raise UserError(f"{document} has no lines {BEGINS} and {ENDS}; put them where claims go")
    write_atomically(document, f"{before}{BEGINS}\n{in_short(every)}{ENDS}{after}")


def has_marks(document: Path) -> bool:
    """Whether a document is there and has a place for :func:`in_short`."""
    return document.is_file() and BEGINS in document.read_text(encoding="utf-8")


def tallied(some: Iterable[Entry]) -> list[tuple[int, Kind, bool]]:
    """How many comparisons say what: number, verdict, and whether that is left out of account."""
    counted = Counter((e.verdict, e.verdict in DECIDED and not e.counts) for e in some)
    return [
        (counted[kind, idle], kind, idle)
        for kind in KINDS
        for idle in (False, True)
        if counted[kind, idle]
    ]


def json_text(every: Sequence[Entry]) -> str:
    """The entries as JSON, a line each, after one sentence for each paper."""
    lines = ",\n".join(
        json.dumps(dataclasses.asdict(entry), ensure_ascii=False, allow_nan=False)
        for entry in every
    )
    papers = json.dumps(sentences(every), ensure_ascii=False, indent=1)
    return f'{{"form": "{FORM}",\n"papers": {papers},\n"claims": [\n{lines}\n]}}\n'


def write(results: Path, every: Sequence[Entry]) -> None:
    """Write ``results/claims.json``, moved over its target."""
    write_atomically(results / CLAIMS, json_text(every))


def _entry(judged: Judged, measured: Measured) -> Entry:
    table, claim, verdict = measured.table, judged.claim, judged.verdict
    column = measured.column(judged.column)
    metric = claim.metric or table.metric_of(column[0].column)
    power = power_in(table, measured.tier, judged.column)
    seen = None
    if power is not None:
        declared, reached = powers_of(power, verdict, len(judged.declared))
        seen = {
            "gain": power.gain,
            "spread": power.spread,
            "declared": declared,
            "reached": reached,
        }
    floor = floor_of(column, metric)
    arithmetic = arithmetic_of(column, metric)
    because = judged.against
    if verdict.kind not in DECIDED:
        because = (f"{verdict.kind}: says neither yes nor no",)
    return Entry(
        paper=claim.paper or table.paper,
        address=table.address,
        table=table.name,
        domain=table.domain,
        tier=measured.tier,
        claim=claim.text,
        asked_here=claim.asked_here,
        better=claim.better,
        than=claim.than,
        column=judged.column,
        metric=metric,
        unit=table.unit_of(metric),
        protocol=table.protocol,
        verdict=verdict.kind,
        counts=judged.counts,
        because=because,
        published_gain=verdict.published_gain,
        tolerance=claim.tolerance,
        gain=verdict.gain,
        low=verdict.low,
        high=verdict.high,
        seeds=verdict.seeds_used,
        declared_seeds=len(judged.declared),
        seeds_needed=verdict.seeds_needed,
        power=seen,
        floor=None if floor is None else {"row": floor.row, "mean": floor.mean},
        arithmetic_spread=None if arithmetic is None else arithmetic.sd,
        why=explain(judged, measured),
    )


def _sentence(every: Sequence[Entry], paper: str) -> str:
    own = [entry for entry in every if entry.paper == paper and not entry.asked_here]
    besides = [entry for entry in every if entry.paper == paper and entry.asked_here]
    parts = []
    if own:
        at_paper = [entry for entry in own if entry.tier == "paper" and entry.counts]
        said = "no verdict at the paper's setting counts yet"
        if at_paper:
            said = f"at the paper's setting {_tally(at_paper)} count"
        parts = [said, *_by_tier(own)]
    asked = "asked by this suite besides" if own else "asked by this suite"
    parts += [f"{asked}, {text}" for text in _by_tier(besides)]
    return f"{paper}: {'; '.join(parts)}."


def _by_tier(some: Sequence[Entry]) -> Iterator[str]:
    for tier in TIERS:
        of_tier = [entry for entry in some if entry.tier == tier]
        measured = [entry for entry in of_tier if entry.measured]
        budget = "" if tier == "paper" else ", at its budget"
        if measured:
            yield (
                f"{tier} tier{budget}: {len(measured)} of {len(of_tier)} comparisons measured "
                f"({_tally(measured)})"
            )
        elif of_tier:
            yield f"{tier} tier: none of {len(of_tier)} comparisons measured"


def _tally(some: Iterable[Entry]) -> str:
    return ", ".join(
        f"{number} {kind}{_leaving(number) if idle else ''}" for number, kind, idle in tallied(some)
    )


def _kinds(some: Iterable[Entry]) -> list[tuple[Kind, int]]:
    counted = Counter(entry.verdict for entry in some)
    return [(kind, counted[kind]) for kind in KINDS if counted[kind]]


def _leaving(number: int) -> str:
    return " that does not count" if number == 1 else " that do not count"
