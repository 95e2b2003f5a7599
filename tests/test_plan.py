"""The plan: what is done and what the rest takes, row by row and column by column."""

import dataclasses
import io
import json
import math
import re
from pathlib import Path
from statistics import median

import pytest
from filelock import FileLock
from rich.console import Console
from toy.program import AtOnce
from toy.tables import TABLES as TOY

from graph.tables import TABLE_4
from shared.command import plan
from shared.command.cells import DOMAINS, Places, pretraining_of, run_folder, tables_of
from shared.command.gpu import trains
from shared.command.plan import LONG, Cost, RunCost, costs_of, planned, side_by_side
from shared.experiment.config import canonical_json, slug
from shared.experiment.records import content_hash
from shared.experiment.store import RECORD, SAVED, key_of
from shared.experiment.tables import Cell, Table

ROOT = Path(__file__).resolve().parents[1]
FIRST = [some[0] for name in DOMAINS for some in tables_of(name).values()]


def places(folder: Path, results: Path | None = None) -> Places:
    return Places(folder / "runs", results or folder / "results", folder / "data")


def text_of(table: Table, here: Places, tier: str = "paper", jobs: int = 2) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    console.print(planned(table, table.cells(tier), here, jobs), crop=False)
    return stream.getvalue()


def finish(
    here: Places, cell: Cell, seconds: float, gigabytes: float, facts: dict[str, str] | None = None
) -> None:
    """A finished run, as far as a plan looks at it."""
    folder = run_folder(here, cell)
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
        "facts": facts or {},
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    result = {"metrics": {"accuracy": 1.0}, "protocol": "toy-v1", "tier": "paper"}
    result |= {"seconds": seconds, "peak_memory_bytes": int(gigabytes * 1e9)}
    result |= {"finished": "2026-01-01T00:00:00+00:00"}
    result["sha256"] = content_hash(json.loads(canonical_json(cell.config)), environment, result)
    (folder / "result.json").write_text(json.dumps(result))


@pytest.mark.parametrize("table", FIRST, ids=lambda table: table.address)
def test_a_table_fits_eighty_columns_with_every_row_and_column(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = table.tiers[0]
    short = text_of(table, places(tmp_path), tier)
    monkeypatch.setattr(plan, "LONG", math.inf)
    text = text_of(table, places(tmp_path), tier)
    lines = (text + short).splitlines()  # a line with commands is not broken
    assert max(len(line) for line in lines if not line.startswith("Data to get first")) <= 80
    assert "…" not in text
    seeds: dict[tuple[str, str], set[int]] = {}
    for cell in table.cells(tier):
        seeds.setdefault((cell.row, cell.source), set()).add(cell.seed)
    counted = sum(text.count(f" 0/{count} ") for count in {len(some) for some in seeds.values()})
    assert counted == len(seeds)
    seconds = sum(
        cost.time for cost in costs_of(table, table.cells(tier), places(tmp_path), set()).values()
    )
    assert short.startswith(f"{table.address}: 0/") == (seconds >= LONG)


def test_a_table_that_would_take_years_is_one_line(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    columns = tuple(dataclasses.replace(each, minutes=2e5) for each in table.columns)
    slow = dataclasses.replace(table, columns=columns)
    text = " ".join(text_of(slow, places(tmp_path)).split())
    times = "about 3.4 years of one core, 1.7 years at --jobs 2 (declared)"
    assert text == f"toy/toy/table-1: 0/12 cells done; left: {times}"
    # How many run at a time does not change the form; none takes less than 2e5 minutes.
    text = " ".join(text_of(slow, places(tmp_path), jobs=1000).split())
    assert text.endswith("left: about 3.4 years of one core, 139 d at --jobs 1000 (declared)")


def test_cells_side_by_side_take_as_long_as_the_longest() -> None:
    def cost(seeds: int, seconds: float, **known: float) -> Cost:
        return Cost(0, seeds, RunCost(seconds, 1.0, "declared"), **known)

    assert side_by_side([cost(1, 60.0)], 2) == 60.0
    assert side_by_side([cost(4, 60.0)], 2) == 120.0
    assert side_by_side([cost(3, 10.0), cost(1, 60.0)], 2) == 60.0
    assert side_by_side([cost(2, 60.0, shared=90.0)], 2) == 30.0  # the encoder is trained elsewhere
    assert side_by_side([cost(0, 60.0)], 2) == side_by_side([], 2) == 0.0


def test_times_come_from_equal_configurations_then_from_the_column(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    here, cells = places(tmp_path), table.cells("paper")
    for cell in cells:
        if (cell.row, cell.column, cell.seed) in {("plain", "left", 0), ("plain", "left", 1)}:
            finish(here, cell, 120.0 + cell.seed, 2.5)
    costs = costs_of(table, cells, here)
    assert costs["plain", "left"] == Cost(2, 3, RunCost(120.5, 2.5, "measured"))
    assert costs["better", "left"] == Cost(0, 3, RunCost(120.5, 2.5, "column"))
    # The configuration of "better" is the same in both columns: its runs are counted once.
    assert costs["better", "right"] == Cost(0, 3, RunCost(60.0, 1.0, "declared"), 180.0)
    text = text_of(table, here)
    rows = [line.split() for line in text.splitlines() if line.startswith(" ") and "/3" in line]
    assert rows == [
        ["plain", "2/3", "2.0", "min", "0/3", "~60", "s", "5.0", "min"],
        ["better", "0/3", "~2.0", "min", "0/3", "~60", "s", "6.0", "min"],
    ]
    (left,) = (line.split() for line in text.splitlines() if line.startswith(" time left"))
    assert left == ["time", "left", "8.0", "min", "3.0", "min", "11", "min"]
    (memory,) = (line.split() for line in text.splitlines() if line.startswith(" memory"))
    assert memory == ["memory", "of", "one", "2.5", "GB", "1.0", "GB"]
    words = " ".join(text.split())
    times = "about 11 min of one core, 5.5 min at --jobs 2"
    assert f"10 of 12 cells to run: {times}, 5.0 GB of memory, 5 MB" in words
    assert "Time and memory: measured on this machine; ~ as other rows of the column took;" in words
    # Seeds beyond the declared ones take what those took; so does a row that is chosen alone.
    chosen = table.cells("paper", row="plain", column="left", seeds=[7])
    assert costs_of(table, chosen, here)["plain", "left"].run.source == "measured"


def test_a_run_of_another_length_counts_in_proportion(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    longer = dataclasses.replace(table.rows[0], label="longer", changes={"steps": 30})
    other = dataclasses.replace(longer, label="other", changes={"steps": 30, "batch_size": 8})
    rows = tuple(dataclasses.replace(each, published=None) for each in (longer, other))
    table = dataclasses.replace(table, rows=(*table.rows, *rows))
    here = places(tmp_path)
    (cell,) = table.cells("paper", row="plain", column="right", seeds=[0])
    finish(here, cell, 60.0, 2.0)
    costs = costs_of(table, table.cells("paper"), here)
    assert costs["longer", "right"].run == RunCost(600.0, 2.0, "scaled")
    assert costs["other", "right"].run == RunCost(600.0, 2.0, "column")


def test_rows_cost_what_their_records_say(tmp_path: Path) -> None:
    """MMCL's projected gradient is not GraphCL."""
    here = places(tmp_path, ROOT / "results")
    costs = costs_of(TABLE_4, TABLE_4.cells("paper"), here)
    lines = (ROOT / "results/graph/mmcl/table-4.records.jsonl").read_text().splitlines()
    taken: dict[str, list[float]] = {}
    for record in map(json.loads, lines):
        row, column = record["address"].split("/")[3:5]
        if column == "mutag":
            taken.setdefault(row, []).append(record["result"]["seconds"])
    for row in ("MMCL PGD, both views", "GraphCL"):
        each = costs[row, "MUTAG"].run
        assert each.source == "recorded"
        assert each.seconds == pytest.approx(median(taken[slug(row)]))
    assert taken["mmcl-pgd-both-views"] != taken["graphcl"]
    assert costs["GraphCL", "REDDIT-MULTI-5K"].run.source == "declared"
    words = " ".join(text_of(TABLE_4, here).split())
    assert "Time and memory: ~ from committed records of other machines; ~ as other rows" in words


def test_data_that_are_not_there_are_named_with_the_remedy(tmp_path: Path) -> None:
    _, figure = TOY["partial"]
    here = places(tmp_path)
    wanted = (
        f"Data to get first: toys: data missing in {here.data / 'toys'}; fetch it with: "
        "./reproduce.sh data toy --dataset toys"
    )

    assert wanted in text_of(figure, here)
    assert text_of(figure, here).count("Data to get first") == 1
    (here.data / "toys").mkdir(parents=True)
    assert "Data to get first" not in text_of(figure, here)
    (here.data / "toys").rmdir()
    for cell in figure.cells("paper", column="far"):
        finish(here, cell, 60.0, 1.0)
    assert "Data to get first" not in text_of(figure, here)


def test_what_is_done_takes_no_time(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    for cell in table.cells("paper"):
        finish(places(tmp_path), cell, 60.0, 1.0)
    text = text_of(table, places(tmp_path))
    rows = [line.split() for line in text.splitlines() if "/3" in line]
    assert rows == [[row, "3/3", "3/3", "done"] for row in ("plain", "better")]
    assert "0 of 12 cells to run" in text


def test_what_several_cells_train_once_is_counted_once(tmp_path: Path) -> None:
    """Rows of MMCL's Table 1 train what Table 3 does, and nothing where it is kept."""
    tables = {table.name: table for table in tables_of("vision")["mmcl"]}
    here, counted = places(tmp_path), set[str]()
    cells = tables["table-3"].cells("paper", row="MMCL_INV")
    first = costs_of(tables["table-3"], cells, here, counted)["MMCL_INV", "top1"]
    assert (first.shared, first.time) == (0.0, first.run.seconds)
    again = costs_of(tables["table-3"], cells, here, counted)["MMCL_INV", "top1"]
    assert again.time == 0  # an equal configuration is one run

    few = tables["table-1-few-shot"]
    cells = few.cells("paper", row="MMCL_INV")
    assert len(cells) == 2
    assert all(cost.time == 0 for cost in costs_of(few, cells, here, counted).values())
    whole = costs_of(few, cells, here)
    assert [cost.time > 0 for cost in whole.values()] == [True, False]

    part = pretraining_of(cells[0])
    assert part is not None
    entry = here.store / key_of(part, {"files": "whichever"})
    entry.mkdir(parents=True)
    (entry / RECORD).write_text("{}")
    assert all(cost.time == 0 for cost in costs_of(few, cells, here, set()).values())


def test_many_cells_of_few_pretrainings_cost_these(tmp_path: Path) -> None:
    """MMCL's Table 1: 180 cells of ten models, of which three are trained and seven downloaded."""
    counted, here, minutes = set[str](), places(tmp_path), 700_000
    cells, seconds, unknown = 0, 0.0, 0
    for table in tables_of("vision")["mmcl"]:
        if table.name in ("table-1", "table-1-few-shot", "table-1-linear"):
            costs = costs_of(table, table.cells("paper"), here, counted).values()
            cells += sum(cost.seeds for cost in costs)
            seconds += sum(cost.time for cost in costs)
            unknown += sum(cost.unknown for cost in costs)
    assert (cells, seconds, unknown) == (180, 3 * 60 * minutes, 177)
    (table, *_) = tables_of("vision")["mmcl"]
    words = " ".join(text_of(table, here).split())
    assert "about 4.0 years of one core, 2.0 years at --jobs 2, 47 evaluations not est" in words


def test_rows_that_train_say_nothing_of_those_that_do_not(tmp_path: Path) -> None:
    (table,) = (each for each in tables_of("vision")["margins"] if each.name == "table-4-small")
    tier, here = table.tiers[0], places(tmp_path)
    cells = table.cells(tier)
    (trivial, *_) = (cell for cell in cells if not trains(cell.config))
    finish(here, trivial, 10.0, 0.5)
    costs = costs_of(table, cells, here, set())
    for cell in cells:
        each = costs[cell.row, cell.source].run
        if cell.column == trivial.column:
            assert each.source in (("declared",) if trains(cell.config) else ("measured", "column"))


def test_a_run_that_found_its_encoder_says_what_both_parts_take(tmp_path: Path) -> None:
    tables = {table.name: table for table in tables_of("vision")["mmcl"]}
    table, here = tables["table-1-few-shot"], places(tmp_path)
    cells = table.cells("paper", row="MMCL_INV", column=table.columns[0].label)
    seconds = {SAVED: "100.5"}
    finish(here, cells[0], 20.0, 1.0, seconds)
    chosen = table.cells("paper", row="MMCL_INV", column=table.columns[0].label, seeds=[8])
    (cost,) = costs_of(table, chosen, here, set()).values()
    assert (cost.run.seconds, cost.run.evaluation, cost.time) == (120.5, 20.0, 120.5)
    part = pretraining_of(chosen[0])
    assert part is not None
    entry = here.store / key_of(part, {"files": "whichever"})
    entry.mkdir(parents=True)
    (entry / RECORD).write_text("{}")
    (cost,) = costs_of(table, chosen, here, set()).values()
    assert cost.time == 20.0


def test_recorded_cells_are_shown_as_such_and_not_run(at_once: AtOnce, tmp_path: Path) -> None:
    results = str(Path(__file__).resolve().parents[1] / "results")
    choice = ("graph", "mmcl", "--table", "4", "--row", "HCL", "--column", "MUTAG")
    choice += ("--seeds", "0-1", "--results", results)
    text = "graph/mmcl/table-4: 2 cells recorded at 391a9aa; --again runs them here"
    out, _ = at_once("plan", *choice)
    assert text in out
    assert "to run" not in out
    out, _ = at_once(*choice)
    assert text in out
    assert re.search(r"HCL +8\d\.\d\d ± ", out)
    assert not list((tmp_path / "runs").rglob("result.json"))


def test_cells_that_run_have_failed_or_were_stopped_are_named(
    at_once: AtOnce, tmp_path: Path
) -> None:
    words = ("toy", "toy", "--table", "1", "--column", "left", "--seeds", "0-2")
    out, _ = at_once("plan", *words)
    assert "failed" not in out
    here = places(tmp_path)
    (table,) = TOY["toy"]
    for cell in table.cells("paper", row="plain", column="left"):
        folder = run_folder(here, cell)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(canonical_json(cell.config))
        (folder / "log.jsonl").write_text(f'{{"step": {cell.seed}}}\n')
        if cell.seed == 1:
            (folder / "failure.json").write_text('{"why": "RuntimeError: too cold"}')
    address = "toy/toy/table-1/plain/left/seed-"
    with FileLock(run_folder(here, table.cells("paper", row="plain", column="left")[0]) / ".lock"):
        out, _ = at_once("plan", *words)
    assert out.splitlines()[-4:] == [
        f'running   {address}0  {{"step": 0}}',
        f"failed    {address}1  RuntimeError: too cold",
        f'stopped   {address}2  {{"step": 2}}',
        "1 running, 1 failed, 1 stopped",
    ]
    finish(here, table.cells("paper", row="plain", column="left")[1], 60.0, 1.0)
    out, _ = at_once("plan", *words)
    assert out.splitlines()[-1] == "2 stopped"
    assert "plain 1/3 " in " ".join(out.split())


def test_a_record_of_an_accelerator_says_nothing_of_a_core(tmp_path: Path) -> None:
    (table,) = (each for each in tables_of("vision")["margins"] if each.name == "table-2-cifar10")
    name = f"short/{table.address}.records.jsonl"
    lines = (ROOT / "results" / name).read_text().splitlines(keepends=True)
    on_gpu = [line for line in lines if '"accelerators": ["NVIDIA' in line]
    assert on_gpu
    here = places(tmp_path)
    (here.results / name).parent.mkdir(parents=True)
    (here.results / name).write_text("".join(on_gpu))
    costs = costs_of(table, table.cells("short"), here)
    assert {cost.run.source for cost in costs.values()} <= {"declared", "unknown"}
