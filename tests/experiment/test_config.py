"""Records outlive the code: what was written down by another name counts, what differs does not."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from graph.config import Config
from graph.tables import TABLES
from shared.command.cells import DOMAINS, tables_of
from shared.experiment.config import (
    added,
    canonical,
    differences,
    option,
    place_of,
    upgraded_config,
)
from shared.experiment.tables import Table
from shared.report.measuring import Measured
from tests.stages.measured import measure, read_records

ROOT = Path(__file__).resolve().parents[2]
RECORDS = read_records(ROOT / "results")
GRAPH = TABLES["mmcl"][0]
GRAPH_RECORDS = ROOT / "results/graph/mmcl/table-4.records.jsonl"


def tables() -> Iterator[Table]:
    for domain in DOMAINS:
        for some in tables_of(domain).values():
            yield from some


def counted(measured: Measured) -> set[str]:
    """Addresses of the records whose numbers stand in the table."""
    return {r.address for cells in measured.cells for cell in cells for r in cell.records.values()}


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


# A field that is added later


@dataclass(frozen=True)
class Wider(Config):
    """Graph's configuration with one more field; older runs did without what it now does."""

    dropout: float = added(0.5, was=0.0)


def widened(kind: type, **changes: Any) -> Table:
    """Graph's Table 4 of the configuration ``kind``, whose rows make further changes."""
    fields = {item.name: getattr(Config(), item.name) for item in dataclasses.fields(Config)}
    rows = tuple(dataclasses.replace(row, changes={**row.changes, **changes}) for row in GRAPH.rows)
    return dataclasses.replace(GRAPH, config=kind(**fields), rows=rows)


@pytest.mark.parametrize(
    ("table", "counts"),
    [
        (widened(Wider, dropout=0.0), True),
        (widened(Wider), False),  # today's default is not what the records had
        (widened(Wider, dropout=0.1), False),
        (widened(Wider, dropout=0.0, hidden=33), False),
    ],
)
def test_an_older_record_has_what_fields_were_before_they_were(table: Table, counts: bool) -> None:
    measured = measure(table, "paper", RECORDS)
    assert len(counted(measured)) == (len(lines(GRAPH_RECORDS)) if counts else 0)
    # What is written stays what was made.
    assert [r.config for r in measured.records] == [
        json.loads(line)["config"] for line in lines(GRAPH_RECORDS)
    ]


def test_a_field_that_says_nothing_about_older_runs_makes_them_stale() -> None:
    kind = dataclasses.make_dataclass("Config", [("extra", int, 0)], bases=(Config,), frozen=True)
    assert counted(measure(widened(kind), "paper", RECORDS)) == set()


def test_an_unknown_key_is_named_in_one_line() -> None:
    record = next(each for each in RECORDS if each.address.startswith(f"{GRAPH.address}/"))
    odd = dataclasses.replace(record, config={**record.config, "wombats": 3})
    measured = measure(GRAPH, "paper", [odd])
    assert counted(measured) == set()
    whys = {why for cells in measured.cells for cell in cells for why in cell.missing.values()}
    assert any("stale" in why and "wombats" in why for why in whys)


def test_records_of_a_row_that_was_renamed_count_and_are_kept_as_they_were_made() -> None:
    table = GRAPH
    rows = tuple(
        dataclasses.replace(row, label="The baseline") if row.label == "GraphCL" else row
        for row in table.rows
    )
    exceptions = tuple(
        dataclasses.replace(
            each, rows=tuple("The baseline" if row == "GraphCL" else row for row in each.rows)
        )
        for each in table.seed_exceptions
    )
    table = dataclasses.replace(table, rows=rows, claims=(), seed_exceptions=exceptions)
    measured = measure(table, "paper", RECORDS)
    assert len(counted(measured)) == len(lines(GRAPH_RECORDS))
    assert "graph/mmcl/table-4/the-baseline/mutag/seed-0" in counted(measured)
    addresses = {record.address for record in measured.records}
    assert addresses == {json.loads(line)["address"] for line in lines(GRAPH_RECORDS)}


def test_every_difference_is_named() -> None:
    today = Config(hidden=16)
    before = canonical(today)
    del before["precision"]  # float32, before the field was there
    assert differences(before, dataclasses.replace(today, precision="float32")) == []
    before |= {"hidden": 32, "wombats": 3}
    before["objective"] |= {"penalties": [{}]}
    assert "; ".join(differences(before, today)) == (
        "hidden: 32 there, 16 here; objective.penalties: [{}] there, [] here; "
        'precision: "float32" there, "float64" here; wombats: 3 there, nothing here'
    )
    mine, other = (f"mine.loss@{digits * 32}" for digits in ("ab", "cd"))
    (said,) = differences(
        {**canonical(today), "network": mine}, dataclasses.replace(today, network=other)
    )
    assert said == (
        "network: mine.loss with source abababababab... there, "
        "mine.loss with source cdcdcdcdcdcd... here"
    )


def test_a_removed_field_stays_in_the_canonical_form_and_is_added_to_older_ones() -> None:
    @dataclasses.dataclass(frozen=True)
    class Smaller:
        seed: int = 0
        REMOVED: ClassVar[dict[str, Any]] = {"update": "dense"}

    assert canonical(Smaller()) == {"seed": 0, "update": "dense"}
    assert upgraded_config({"seed": 0}, Smaller) == canonical(Smaller())
    assert differences({"seed": 0, "update": "rows"}, Smaller()) == [
        'update: "rows" there, "dense" here'
    ]


def test_an_option_is_in_the_canonical_form_only_if_used() -> None:
    @dataclasses.dataclass(frozen=True)
    class Optional:
        seed: int = 0
        chunk: int | None = option(None)

    assert canonical(Optional()) == {"seed": 0}
    assert canonical(Optional(chunk=8)) == {"seed": 0, "chunk": 8}
    assert upgraded_config({"seed": 0}, Optional) == {"seed": 0}
    assert upgraded_config({"seed": 0, "chunk": 8}, Optional) == {"seed": 0, "chunk": 8}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (
            {
                "dataset": "CIFAR-10",
                "objective": {
                    "loss": {"function": "info_nce"},
                    "penalties": [{"function": "losses.spread@0123"}],
                },
            },
            "cifar-10/info-nce-losses-spread-seed-3-KEY",
        ),
        ({"task": "walk", "objective": None}, "walk/untrained-seed-3-KEY"),
        ({"train": False, "other": "Text", "dataset": 5}, "text/untrained-seed-3-KEY"),
        ({}, "data/seed-3-KEY"),
    ],
)
def test_the_folder_of_a_run_says_data_loss_and_seed(content: dict[str, Any], place: str) -> None:
    assert place_of("graph", {**content, "seed": 3}, "KEY") == Path("graph", place)
