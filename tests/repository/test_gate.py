"""What may not change unnoticed; ``gate/invariants.py`` says what, and writes the files again."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.gate import invariants, runs
from tests.gate.invariants import known


def test_numbers_that_a_term_leaves_out_mean_what_they_meant() -> None:
    assert set(known("defaults")) - set(invariants.defaults()) == set()


def test_printed_numbers_are_as_they_were_transcribed() -> None:
    assert invariants.published_numbers() == known("published")


def test_names_in_configurations_stand_for_what_they_stood_for() -> None:
    assert invariants.words() == known("words")


def test_every_cell_has_the_configuration_it_had() -> None:
    assert invariants.declared_cells() == known("cells")


def test_every_cell_has_the_address_and_key_it_had() -> None:
    assert invariants.declared_keys() == known("keys")


@pytest.mark.slow
def test_every_record_that_counted_counts() -> None:
    assert invariants.counted_records() == known("records")


def test_records_of_a_column_are_of_the_same_data() -> None:
    """Frames are drawn by a run, so that each seed has its own."""
    hashes: defaultdict[tuple[Path, str, str, str], set[str]] = defaultdict(set)
    for file in (invariants.ROOT / "results").rglob("*.records.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            table, column, seed = record["address"].rsplit("/", 2)
            data = record["environment"]["data"]
            assert data or table.startswith("vision/lmcl/table-1/"), record["address"]
            for name, digest in data.items():
                hashes[file, column, name, seed if name == "frames" else ""].add(digest)
    assert len(hashes) > 50
    assert all(len(found) == 1 for found in hashes.values())


@pytest.mark.slow
def test_what_a_checkout_makes_is_taken_up_and_a_change_is_seen(tmp_path: Path) -> None:
    made = invariants.of_runs(invariants.ROOT, "make", tmp_path, "graph")
    assert [line.split(" | ")[1] for line in made] == [
        "run",
        "stopped and ended",
        "read",
        "exported model",
        "run",
    ]
    assert invariants.of_runs(invariants.ROOT, "take-up", tmp_path, "graph") == made
    # A finished run that is no longer what it was, and a model that is gone.
    result = tmp_path / "graph/made/0/result.json"
    content = json.loads(result.read_text())
    content["metrics"]["accuracy"] += 1
    result.write_text(json.dumps(content))
    changed = invariants.of_runs(invariants.ROOT, "take-up", tmp_path, "graph")
    assert invariants.differences(made, changed, "graph")


def test_the_ten_cells_are_declared() -> None:
    tables = {table.address: table for table in invariants.every_table()}
    for cells in runs.CELLS.values():
        for address, row in cells:
            assert len(tables[address].cells("smoke", row=row)) == 1
