"""What may not change unnoticed: the configuration of every cell, and which records count.

``gate/cells.txt`` has a line for each row of every table in every tier: the number of its cells
and a hash over their canonical configurations. ``gate/records.txt`` has a line for each file of
committed records: the first digits of the SHA-256 of each one that counts. A change of either
belongs under **Numbers** in the changelog, with its reason. To write both again:
``python -m tests.test_gate``.
"""

import hashlib
import itertools
from pathlib import Path

import pytest

from shared.command.cells import every_table
from shared.command.verify import check
from shared.experiment.tables import canonical_json

ROOT = Path(__file__).resolve().parents[1]
CELLS, RECORDS = (ROOT / "tests" / "gate" / name for name in ("cells.txt", "records.txt"))


def declared_cells() -> list[str]:
    """``tier/domain/paper/table | row | number of cells | hash``, sorted."""
    lines = []
    for table in every_table():
        for tier in table.tiers:
            for row, cells in itertools.groupby(table.cells(tier), lambda cell: cell.row):
                texts = [f"{cell.column}: {canonical_json(cell.config)}" for cell in cells]
                digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:16]
                lines.append(f"{tier}/{table.address} | {row} | {len(texts)} | {digest}")
    return sorted(lines)


def counted_records() -> list[str]:
    """``file: hash hash ...``, sorted, of the committed records that count, and their repeats."""
    checked = check(every_table(), ROOT / "results", ROOT / "no-runs")
    assert checked.faults == ()
    committed = [group for group in checked.groups if group.committed]
    assert all(group.count == len(group.records) for group in committed)
    return sorted(
        f"{group.name}: {' '.join(sorted(str(r.sha256)[:8] for r in group.records.values()))}"
        for group in committed
    )


def test_every_cell_has_the_configuration_it_had() -> None:
    assert declared_cells() == CELLS.read_text().splitlines()


@pytest.mark.slow
def test_every_record_that_counted_counts() -> None:
    assert counted_records() == RECORDS.read_text().splitlines()


if __name__ == "__main__":
    CELLS.parent.mkdir(exist_ok=True)
    CELLS.write_text("\n".join(declared_cells()) + "\n")
    RECORDS.write_text("\n".join(counted_records()) + "\n")
