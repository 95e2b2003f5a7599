"""Texts for a paper that uses the records: BibTeX of the four papers, the NeurIPS checklist."""

import statistics as plain
from collections import Counter
from collections.abc import Iterable, Sequence

from shared.experiment.records import Record
from shared.report.measuring import Measured

BIBTEX = "papers.bib"
CHECKLIST = "checklist.md"
PAPERS = {
    "lmcl": {
        "kind": "inproceedings",
        "author": "Chen, Shuo and Niu, Gang and Gong, Chen and Li, Jun and Yang, Jian and "
        "Sugiyama, Masashi",
        "title": "Large-Margin Contrastive Learning with Distance Polarization Regularizer",
        "booktitle": "International Conference on Machine Learning",
        "year": "2021",
    },
    "cllr": {
        "kind": "inproceedings",
        "author": "Chen, Shuo and Gong, Chen and Li, Jun and Yang, Jian and Niu, Gang and "
        "Sugiyama, Masashi",
        "title": "Learning Contrastive Embedding in Low-Dimensional Space",
        "booktitle": "Advances in Neural Information Processing Systems",
        "year": "2022",
    },
    "mmcl": {
        "kind": "inproceedings",
        "author": "Shah, Anshul and Sra, Suvrit and Chellappa, Rama and Cherian, Anoop",
        "title": "Max-Margin Contrastive Learning",
        "booktitle": "AAAI Conference on Artificial Intelligence",
        "year": "2022",
    },
    "margins": {
        "kind": "article",
        "author": "Rho, Daniel and Kim, TaeSoo and Park, Sooill and Park, Jaehyun and Park, JaeHan",
        "title": "Understanding Contrastive Learning Through the Lens of Margins",
        "journal": "arXiv preprint arXiv:2306.11526",
        "year": "2023",
    },
}


def bibtex() -> str:
    """The four papers, by the short names that the suite gives them."""
    entries = []
    for name, fields in PAPERS.items():
        lines = "".join(f"  {key} = {{{text}}},\n" for key, text in fields.items() if key != "kind")
        entries.append(f"@{fields['kind']}{{{name},\n{lines}}}\n")
    return "\n".join(entries)


def checklist(measured: Sequence[Measured]) -> str:
    """What records answer of the NeurIPS checklist, in the order of its questions.

    Args:
        measured: the tables with their records; of these the ones that count are spoken of.
    """
    records = {
        record.sha256 or record.address: record
        for each in measured
        for cells in each.cells
        for cell in cells
        for record in cell.records.values()
    }
    some = list(records.values())
    seeds = [len(c.values) for each in measured for cells in each.cells for c in cells if c.values]
    verdicts = [judged for each in measured for judged in each.verdicts]
    declared = sum(any(each.table.powers) for each in measured)
    lines = [
        "# Answers to the NeurIPS checklist, from the records",
        "",
        f"Of {len(some)} runs that count, in {len(measured)} tables. What the records do not know "
        "(limitations, societal impact, licences of new assets) is for authors to answer.",
        "",
        "**Claims.** Every claim that was compared has a computed verdict: "
        f"{_counted(judged.verdict.kind for judged in verdicts)}; "
        f"{sum(judged.counts for judged in verdicts)} of them count.",
        "",
        "**Experimental result reproducibility.** Every number leads to the command that makes it "
        "again (`./reproduce.sh --cell ADDRESS`), the configuration, the commit and the hash of "
        f"the data; {_share(r.environment['dirty'] for r in some)} of the runs were made with "
        "uncommitted changes.",
        "",
        "**Experimental setting and details.** The configuration of every run is in its record, "
        f"whole. Protocols: {_counted(str(r.result['protocol']) for r in some)}.",
        "",
        "**Experiment statistical significance.** Mean and sample standard deviation over "
        f"{_range(seeds)} seeds, 95% t intervals of paired differences; what varies between "
        f"repeats stands with every table. Power was declared beforehand in {declared} of "
        f"{len(measured)} tables; verdicts elsewhere do not count.",
        "",
        f"**Experiments compute resources.** {_hours(some):.1f} hours in all, one run after the "
        f"other; a run takes {_seconds(some)}; peak memory {_memory(some)}. Processors: "
        f"{_counted(_processor(r) for r in some)}.",
        "",
        "**Open access to data and code.** Code and records lie in this repository; data are "
        "fetched and verified by hash (`./reproduce.sh data DOMAIN`) where they may be.",
    ]
    return "\n".join(lines) + "\n"


def _counted(names: Iterable[str]) -> str:
    found = Counter(names)
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "none"


def _share(flags: Iterable[bool]) -> str:
    values = list(flags)
    return f"{sum(values)} of {len(values)}"


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _processor(record: Record) -> str:
    hardware = record.environment["hardware"]
    return ", ".join(hardware.get("accelerators") or [str(hardware.get("processor"))])


def _hours(some: Sequence[Record]) -> float:
    return sum(float(record.result["seconds"]) for record in some) / 3600


def _seconds(some: Sequence[Record]) -> str:
    seconds = [float(record.result["seconds"]) for record in some]
    if not seconds:
        return "no time"
    return f"{min(seconds):.0f} to {max(seconds):.0f} s (median {plain.median(seconds):.0f})"


def _memory(some: Sequence[Record]) -> str:
    gigabytes = [float(record.result["peak_memory_bytes"]) / 1e9 for record in some]
    return f"{min(gigabytes):.1f} to {max(gigabytes):.1f} GB" if gigabytes else "none"
