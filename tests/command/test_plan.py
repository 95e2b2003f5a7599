"""The plan: what is done and what the rest takes, row by row and column by column."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.console import Console
from toy.program import AtOnce
from toy.tables import TABLES as TOY

from graph.tables import TABLE_4
from shared.command import plan
from shared.command.cells import Chosen, Places, every_table, tables_of
from shared.command.plan import Cost, costs_of, kind_of, plan_table, trains
from shared.command.running import joined
from shared.experiment.config import canonical_json, slug
from shared.experiment.frame import Frame
from shared.experiment.records import content_hash
from shared.experiment.tables import Cell, Table

ROOT = Path(__file__).resolve().parents[2]


def places(folder: Path, results: Path | None = None) -> Places:
    return Places(folder / "runs", results or folder / "results", folder / "data")


def of(table: Table, cells: Sequence[Cell], here: Places) -> Frame:
    return joined([Chosen(table, tuple(cells))], here)


def text_of(
    table: Table, here: Places, tier: str = "paper", jobs: int = 2, recorded: Sequence[str] = ()
) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    cells = table.cells(tier)
    frame = of(table, cells, here)
    plan = plan_table(table, cells, here, frame, jobs, recorded=recorded)
    console.print(plan, crop=False)
    return stream.getvalue()


def finish(here: Places, cell: Cell, seconds: float) -> None:
    """A finished run, as far as a plan looks at it."""
    folder = here.runs / cell.folder
    folder.mkdir(parents=True, exist_ok=True)  # shared by cells of equal configuration
    (folder / "config.json").write_text(canonical_json(cell.config))
    environment = {
        "commit": "c" * 40,
        "dirty": False,
        "command": "",
        "started": "2026-01-01T00:00:00+00:00",
        "versions": {},
        "hardware": {},
        "data": {"toys": "a" * 64},
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    result = {"metrics": {"accuracy": 1.0}, "protocol": "toy-v1", "tier": "paper"}
    result |= {"seconds": seconds, "peak_memory_bytes": 0}
    result |= {"finished": "2026-01-01T00:00:00+00:00"}
    result["sha256"] = content_hash(json.loads(canonical_json(cell.config)), environment, result)
    (folder / "result.json").write_text(json.dumps(result))


def test_a_table_has_a_line_for_every_row_and_one_for_all(tmp_path: Path) -> None:
    cells = TABLE_4.cells("paper")
    lines = text_of(TABLE_4, places(tmp_path)).splitlines()
    number = len({cell.address for cell in cells})
    (total,) = (line.split() for line in lines if line.startswith(" all "))
    assert total[:3] == ["all", f"0/{number}", f"{number}"]
    rows = {cell.row for cell in cells}
    assert sum(bool(re.search(r" 0/\d+ ", line)) for line in lines) == len(rows) + 1


def test_times_come_from_equal_configurations_then_from_the_column(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    here, cells = places(tmp_path), table.cells("paper")
    for cell in cells:
        if (cell.row, cell.column, cell.seed) in {("plain", "left", 0), ("plain", "left", 1)}:
            finish(here, cell, 120.0 + cell.seed)
    costs = costs_of(table, cells, of(table, cells, here))
    assert costs["plain", "left"] == Cost(2, 3, 1, 120.5, "measured")
    assert costs["better", "left"] == Cost(0, 3, 3, 120.5, "column")
    assert costs["plain", "right"] == Cost(0, 3, 3)
    # The configuration of "better" is the same in both columns: its runs are counted once.
    assert costs["better", "right"] == Cost(0, 3, 0)
    words = " ".join(text_of(table, here).split())
    assert "plain 2/6 4 2.0 min, unknown 2.0 min or more" in words
    assert "all 2/12 10 2.0 min to ~2.0 min, unknown 8.0 min or more" in words
    assert "10 of 12 cells to run: at least 8.0 min of one core, 4.0 min at --jobs 2." in words
    words = " ".join(text_of(table, here, jobs=9).split())
    assert "8.0 min of one core, 2.0 min at --jobs 9." in words  # as long as the longest
    # Seeds beyond the declared ones take what those took; so does a row that is chosen alone.
    chosen = table.cells("paper", row="plain", column="left", seeds=[7])
    assert costs_of(table, chosen, of(table, chosen, here))["plain", "left"].source == "measured"
    seen = {cell.key for cell in chosen}
    assert costs_of(table, chosen, of(table, chosen, here), seen)["plain", "left"].runs == 0


def test_rows_cost_what_their_records_say(tmp_path: Path) -> None:
    """MMCL's projected gradient is not GraphCL."""
    here = places(tmp_path, ROOT / "results")
    costs = costs_of(TABLE_4, TABLE_4.cells("paper"), of(TABLE_4, TABLE_4.cells("paper"), here))
    lines = (ROOT / "results/graph/mmcl/table-4.records.jsonl").read_text().splitlines()
    taken: dict[str, list[float]] = {}
    for record in map(json.loads, lines):
        row, column = record["address"].split("/")[3:5]
        if column == "mutag":
            taken.setdefault(row, []).append(record["result"]["seconds"])
    for row in ("MMCL PGD, both views", "GraphCL"):
        each = costs[row, "MUTAG"]
        assert each.source == "recorded"
        assert each.seconds == pytest.approx(median(taken[slug(row)]))
    assert taken["mmcl-pgd-both-views"] != taken["graphcl"]
    assert costs["GraphCL", "REDDIT-MULTI-5K"].source == "unknown"
    words = " ".join(text_of(TABLE_4, here).split())
    assert "Times: ~ from committed records of other machines; ~ as other rows" in words
    assert "a cell has up to " in words
    (number,) = re.findall(r"On a GPU the training of (\d+) cells takes about [\d.]+ hours", words)
    of_kind = [cell for cell in TABLE_4.cells("paper") if cell.column == "DD"]
    assert 0 < int(number) < len(of_kind)  # neither with penalties nor by max_margin


def test_a_kind_of_step_is_named_by_what_it_takes() -> None:
    """Each kind that was measured on a GPU is one of a table."""
    of_papers = [table for table in every_table() if "paper" in table.tiers]
    cells = [cell for table in of_papers for cell in table.cells("paper")]
    kinds = {kind_of(cell.domain, cell.config) for cell in cells if trains(cell.config)}
    with plan.MEASURED.open() as stream:
        assert {line["kind"] for line in csv.DictReader(stream)} <= kinds
    (cell, *_) = (cell for cell in cells if cell.table_address == "vision/margins/table-2")
    kind = kind_of("vision", cell.config)
    longer: Any = dataclasses.replace(cell.config, seed=9, epochs=3)  # type: ignore[call-arg]
    assert kind_of("vision", longer) == kind
    for changes in ({"batch_size": 64}, {"backbone": "resnet50"}, {"precision": "float32"}):
        assert kind_of("vision", dataclasses.replace(cell.config, **changes)) != kind  # type: ignore[type-var]


def test_data_that_are_not_there_are_named_with_the_remedy(tmp_path: Path) -> None:
    _, figure = TOY["partial"]
    here = places(tmp_path)
    text = text_of(figure, here)
    assert text.count("Data to get first") == 1
    assert "./reproduce.sh data toy --dataset toys" in text
    (here.data / "toys").mkdir(parents=True)
    assert "Data to get first" not in text_of(figure, here)
    (here.data / "toys").rmdir()
    for cell in figure.cells("paper", column="far"):
        finish(here, cell, 60.0)
    assert "Data to get first" not in text_of(figure, here)


def test_recorded_cells_are_shown_as_such_and_not_run(
    at_once: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = str(Path(__file__).resolve().parents[2] / "results")
    choice = ("graph", "mmcl", "--table", "4", "--row", "HCL", "--column", "MUTAG")
    choice += ("--seeds", "0-1", "--results", results)
    text = "graph/mmcl/table-4: nothing to train: all 2 cells have committed results (391a9aa)"
    out, _ = at_once("plan", *choice)
    assert text in out
    assert "to run" not in out
    monkeypatch.setattr(forkserver, "ensure_running", None)  # nothing runs: no server is started
    out, _ = at_once(*choice)
    assert text in out
    assert re.search(r"HCL +8\d\.\d\d ± ", out)
    assert not list((tmp_path / "runs").rglob("result.json"))


def test_a_record_of_an_accelerator_says_nothing_of_a_core(tmp_path: Path) -> None:
    (table,) = (each for each in tables_of("vision")["margins"] if each.name == "table-2-cifar10")
    name = f"short/{table.address}.records.jsonl"
    lines = (ROOT / "results" / name).read_text().splitlines(keepends=True)
    on_gpu = [line for line in lines if '"accelerators": ["NVIDIA' in line]
    assert on_gpu
    here = places(tmp_path)
    (here.results / name).parent.mkdir(parents=True)
    (here.results / name).write_text("".join(on_gpu))
    costs = costs_of(table, table.cells("short"), of(table, table.cells("short"), here))
    assert {cost.source for cost in costs.values()} == {"unknown"}


def test_what_is_recorded_is_done_and_what_is_left_is_named(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    recorded = [cell.address for cell in table.cells("paper") if cell.column == "left"]
    words = " ".join(text_of(table, places(tmp_path), recorded=recorded).split())
    assert "all 6/12 6" in words
    assert "6 of 12 cells to run." in words
    assert "Left in right (6)." in words
