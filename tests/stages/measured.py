"""Committed records, and tables measured by given ones, as the frame would join them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shared.experiment.frame import ReadRecord, join
from shared.experiment.records import RECORDS, Damaged, Record, records_in
from shared.experiment.tables import Table, Tier
from shared.report import measuring


def read_records(results: Path) -> list[Record]:
    """All records below ``results``, in the order of their files and lines."""
    records = []
    for file in sorted(results.rglob(f"*{RECORDS}")):
        for record in records_in(file):
            if isinstance(record, Damaged):
                raise record
            records.append(record)
    return records


def measure(
    table: Table,
    tier: Tier,
    records: Iterable[Record],
    status: Mapping[str, str] | None = None,
    figures: Sequence[str] = (),
) -> measuring.Measured:
    """The table measured by ``records``."""
    lines = join(table, tier, map(ReadRecord, records), status)
    return measuring.measure(table, tier, lines, figures)
