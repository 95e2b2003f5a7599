"""What may not change unnoticed: configurations of cells, records that count, published numbers.

``gate/cells.txt`` has a line for each row of every table in every tier: the number of its cells
and a hash over their canonical configurations. ``gate/records.txt`` has a line for each file of
committed records: the first digits of the SHA-256 of each one that counts. ``gate/published.txt``
has a line for each transcribed table: the number of its rows and published numbers, and a hash over
both. ``gate/defaults.txt`` has what each number of a loss is where it is left out: records hold the
given ones alone. A new one may join with the default that does what was done before. Any other
change belongs under **Numbers** in the changelog, with its reason. To write all again:
``python -m tests.test_gate``.
"""

import hashlib
import inspect
import itertools
import math
import tomllib
from pathlib import Path

import pytest

import shared
from shared.command.cells import every_table
from shared.command.verify import check
from shared.experiment.config import canonical_json
from shared.experiment.published import load_published

ROOT = Path(__file__).resolve().parents[1]
CELLS, RECORDS, PUBLISHED, DEFAULTS = (
    ROOT / "tests/gate" / f"{name}.txt" for name in ("cells", "records", "published", "defaults")
)


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
    """``file: hash hash ...``, sorted, of the committed records that count."""
    checked = check(every_table(), ROOT / "results", ROOT / "no-runs")
    assert checked.faults == ()
    committed = [group for group in checked.groups if group.committed]
    assert all(group.valid == len(group.records) for group in committed)
    return sorted(
        f"{group.name}: {' '.join(sorted(str(r.sha256)[:8] for r in group.records.values()))}"
        for group in committed
    )


def published_numbers() -> list[str]:
    """``file table | rows | numbers | hash``, sorted, of every transcription; each is sound."""
    lines = []
    for file in ROOT.glob("*/published/*.toml"):
        if file.name in ("claims.toml", "notes.toml"):
            continue
        for key, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if not isinstance(entry, dict):
                continue
            published, place = load_published(file, key), f"{file.relative_to(ROOT)} {key}"
            # No figure prints numbers.
            assert bool(published.rows) is bool(published.columns) is not key.startswith("figure")
            assert published.source, place
            assert len(set(published.columns)) == len(published.columns), place
            assert set(published.notes) <= set(published.rows), place
            assert all(any(values) for values in published.rows.values()), place
            numbers = [value for values in published.rows.values() for value in values if value]
            assert all(math.isfinite(value.mean) for value in numbers), place
            assert all(0 <= (value.std or 0) < math.inf for value in numbers), place
            text = repr((published.columns, published.rows))
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            lines.append(f"{place} | {len(published.rows)} | {len(numbers)} | {digest}")
    return sorted(lines)


def defaults() -> list[str]:
    """``function argument = default`` of everything that a term or a projection may omit."""
    names = ("alignment", "consistency", "debiased_nce", "distance_polarization", "hard_nce")
    return [
        f"{name} {key} = {item.default!r}"
        for name in (*names, "info_nce", "margin_nce", "max_margin", "LowRankProjection")
        for key, item in inspect.signature(getattr(shared, name)).parameters.items()
        if item.kind is item.KEYWORD_ONLY and item.default is not item.empty
    ]


def test_numbers_that_a_term_leaves_out_mean_what_they_meant() -> None:
    assert set(DEFAULTS.read_text().splitlines()) - set(defaults()) == set()


def test_printed_numbers_are_as_they_were_transcribed() -> None:
    assert published_numbers() == PUBLISHED.read_text().splitlines()


def test_every_cell_has_the_configuration_it_had() -> None:
    assert declared_cells() == CELLS.read_text().splitlines()


@pytest.mark.slow
def test_every_record_that_counted_counts() -> None:
    assert counted_records() == RECORDS.read_text().splitlines()


if __name__ == "__main__":
    CELLS.parent.mkdir(exist_ok=True)
    CELLS.write_text("\n".join(declared_cells()) + "\n")
    RECORDS.write_text("\n".join(counted_records()) + "\n")
    PUBLISHED.write_text("\n".join(published_numbers()) + "\n")
    DEFAULTS.write_text("\n".join(defaults()) + "\n")
