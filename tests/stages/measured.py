"""Tables measured by given records, as the frame would join them."""

from collections.abc import Iterable, Mapping, Sequence

from shared.experiment.frame import ReadRecord, join
from shared.experiment.records import Record
from shared.experiment.tables import Table, Tier
from shared.report import measuring


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
