"""What is said of a measured table beside its numbers, as one document of blocks.

Terminal, Markdown, LaTeX and the site show these blocks, each in its own form; so claims,
aggregates and remarks are the same in all of them, and in the same order.
"""

from dataclasses import dataclass

from shared.experiment.tables import Published
from shared.report.measuring import Measured
from shared.report.statistics import Kind
from shared.report.wording import (
    OVER_COLUMNS,
    aggregates_of,
    also_of,
    badge,
    by_claim,
    evidence_of,
    explain,
    origin,
    printed_lines,
    remarks_of,
)

EVIDENCE = "What counts as evidence here"


@dataclass(frozen=True)
class Numbers:
    """A small table.

    Args:
        heading: of the block.
        what: what the numbers are.
        head: of the columns, the first that of the rows' labels.
        rows: label, then one text a column.
        printed: whether a paper prints the numbers; else they are measured here.
        notes: what is known of single rows, a sentence each.
    """

    heading: str
    what: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    printed: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lines:
    """A heading and sentences."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """The verdict on a claim in one column: what is said of it in few words, and why.

    Args:
        column: its label.
        kind: of the verdict.
        badge: the verdict with its tier.
        why: with all that it rests on.
        idle: whether nothing ran and nothing tells how many seeds it would take.
    """

    column: str
    kind: Kind
    badge: str
    why: str
    idle: bool


@dataclass(frozen=True)
class Verdicts:
    """A claim and its verdicts, column by column."""

    claim: str
    said: tuple[Said, ...]


Block = Numbers | Lines | Verdicts


def numbers_of(measured: Measured) -> list[Numbers]:
    """What stands right below the table: rows summed up over columns, further metrics."""
    summed = [
        Numbers(OVER_COLUMNS, what, tuple(head), tuple(map(tuple, lines)))
        for what, head, lines in aggregates_of(measured)
    ]
    return summed + [
        Numbers(
            "Measured here, too",
            further.heading,
            ("method", *further.columns),
            tuple((label, *texts) for label, texts in further.lines.items()),
        )
        for further in also_of(measured)
    ]


def reasons_of(measured: Measured) -> list[Block]:
    """What the verdicts rest on: evidence, claims, remarks, numbers of other papers."""
    found: list[Block] = []
    if evidence := evidence_of(measured):
        found.append(Lines(EVIDENCE, tuple(evidence)))
    for claim, verdicts in by_claim(measured):
        said = tuple(
            Said(
                judged.column,
                judged.verdict.kind,
                badge(judged, measured.tier),
                explain(judged, measured),
                judged.verdict.kind == "not run" and not judged.outlook,
            )
            for judged in verdicts
        )
        found.append(Verdicts(claim.text, said))
    found += (Lines(heading, tuple(lines)) for heading, lines in remarks_of(measured))
    return found + [_reference(reference) for reference in measured.table.references]


def _reference(reference: Published) -> Numbers:
    """Printed numbers of another paper, and what is known of them."""
    return Numbers(
        "Published elsewhere",
        origin(reference),
        ("method", *reference.columns),
        tuple((label, *texts) for label, texts in printed_lines(reference).items()),
        printed=True,
        notes=tuple(f"{label}: {note}" for label, note in reference.notes.items()),
    )
