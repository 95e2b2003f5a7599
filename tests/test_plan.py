"""The plan: what is done and what the rest takes, row by row and column by column."""

import io
import json
import shutil
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from toy.tables import TABLES as TOY

from graph.tables import TABLE_4
from shared.command.domains import DOMAINS, tables_of
from shared.command.places import Places
from shared.command.plan import Cost, costs_of, planned
from shared.experiment.tables import Table, slug

ROOT = Path(__file__).resolve().parents[1]
EVERY = [table for name in DOMAINS for some in tables_of(name).values() for table in some]


def places(folder: Path, results: Path | None = None) -> Places:
    return Places(folder / "runs", results or folder / "results", folder / "data")


def text_of(table: Table, here: Places, tier: str = "paper") -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    console.print(planned(table, table.cells(tier), here, 2, {}))
    return stream.getvalue()


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.address)
def test_every_table_fits_eighty_columns_with_every_row_and_column(
    table: Table, tmp_path: Path
) -> None:
    tier = table.tiers[0]
    text = text_of(table, places(tmp_path), tier)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    seeds: dict[tuple[str, str], set[int]] = {}
    for cell in table.cells(tier):
        seeds.setdefault((cell.row, cell.source), set()).add(cell.seed)
    counted = sum(text.count(f" 0/{count} ") for count in {len(some) for some in seeds.values()})
    assert counted == len(seeds)


def finish(here: Places, address: str, config: object, seconds: float, gigabytes: float) -> None:
    """A finished run, as far as a plan looks at it."""
    from shared.experiment.tables import canonical_json

    folder = here.runs / address
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(canonical_json(config))
    environment = {
        "commit": "c",
        "dirty": False,
        "command": "",
        "started": "",
        "versions": {},
        "hardware": {},
        "data": {},
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    result = {"metrics": {"accuracy": 1.0}, "protocol": "toy-v1", "tier": "paper"}
    result |= {"seconds": seconds, "peak_memory_bytes": gigabytes * 1e9}
    (folder / "result.json").write_text(json.dumps(result))


def test_costs_are_those_of_the_row_then_of_the_next_best_known(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    here, cells = places(tmp_path), table.cells("paper")
    for cell in cells:
        if (cell.row, cell.column, cell.seed) in {("plain", "left", 0), ("plain", "left", 1)}:
            finish(here, str(cell.folder), cell.config, 120.0 + cell.seed, 2.5)
    costs = costs_of(table, cells, here, {})
    assert costs["plain", "left"] == Cost(2, 3, 120.5, 2.5, "measured")
    assert costs["better", "left"] == Cost(0, 3, 120.5, 2.5, "column")
    assert costs["better", "right"] == Cost(0, 3, 60.0, 1.0, "declared")
    text = text_of(table, here)
    rows = [line.split() for line in text.splitlines() if line.startswith(" ") and "/3" in line]
    assert rows == [
        ["plain", "2/3", "2.0", "min", "0/3", "~60", "s", "5.0", "min"],
        ["better", "0/3", "~2.0", "min", "0/3", "~60", "s", "9.0", "min"],
    ]
    (left,) = (line.split() for line in text.splitlines() if line.startswith(" time left"))
    assert left == ["time", "left", "8.0", "min", "6.0", "min", "14", "min"]
    (memory,) = (line.split() for line in text.splitlines() if line.startswith(" memory"))
    assert memory == ["memory", "of", "one", "2.5", "GB", "1.0", "GB"]
    words = " ".join(text.split())
    assert "10 of 12 cells to run, 2 at a time: about 7.0 min, 5.0 GB of memory, 5 MB" in words
    assert "measured on this machine; ~ as other rows of the column took on this machine" in words
    # An estimate of the row's own configuration comes before what others took.
    from shared.command.plan import _without_seed

    (cell, *_) = table.cells("paper", row="better", column="left")
    estimates = {_without_seed(cell.config): (7.0, 3.0)}
    costs = costs_of(table, cells, here, estimates)
    assert costs["better", "left"] == Cost(0, 3, 420.0, 3.0, "estimated")
    assert costs["plain", "left"].source == "measured"


def test_rows_cost_what_their_records_say(tmp_path: Path) -> None:
    """MMCL's projected gradient is not GraphCL."""
    here = places(tmp_path, ROOT / "results")
    costs = costs_of(TABLE_4, TABLE_4.cells("paper"), here, {})
    lines = (ROOT / "results/graph/mmcl/table-4.records.jsonl").read_text().splitlines()
    taken: dict[str, list[float]] = {}
    for record in map(json.loads, lines):
        row, column = record["address"].split("/")[3:5]
        if column == "mutag":
            taken.setdefault(row, []).append(record["result"]["seconds"])
    for row in ("MMCL PGD, both views", "GraphCL"):
        cost = costs[row, "MUTAG"]
        assert cost.source == "recorded"
        assert cost.seconds == pytest.approx(median(taken[slug(row)]))
    assert taken["mmcl-pgd-both-views"] != taken["graphcl"]
    assert costs["GraphCL", "REDDIT-MULTI-5K"].source == "declared"
    words = " ".join(text_of(TABLE_4, here).split())
    assert "Time and memory: ~ as the committed records took, elsewhere; ~ declared" in words


def test_data_that_are_not_there_are_named_with_the_remedy(tmp_path: Path) -> None:
    _, figure = TOY["partial"]
    here = places(tmp_path)
    wanted = (
        f"Data to get first: toys: data missing in {here.data / 'toys'}; fetch it with: "
        "./reproduce.sh data toy --dataset toys"
    )

    def unfolded() -> str:
        return "".join(text_of(figure, here).split())

    assert "".join(wanted.split()) in unfolded()
    assert unfolded().count("Datatogetfirst") == 1
    for cell in figure.cells("paper", column="far"):
        finish(here, str(cell.folder), cell.config, 60.0, 1.0)
    assert "Datatogetfirst" not in unfolded()
    for cell in figure.cells("paper", column="far"):
        shutil.rmtree(here.runs / cell.folder)
    assert "Datatogetfirst" in unfolded()
    (here.data / "toys").mkdir(parents=True)
    assert "Datatogetfirst" not in unfolded()


def test_what_is_done_takes_no_time(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    for cell in table.cells("paper"):
        finish(places(tmp_path), cell.address, cell.config, 60.0, 1.0)
    text = text_of(table, places(tmp_path))
    rows = [line.split() for line in text.splitlines() if "/3" in line]
    assert rows == [[row, "3/3", "3/3", "done"] for row in ("plain", "better")]
    assert "0 of 12 cells to run" in text


def test_what_several_cells_train_once_is_counted_once(tmp_path: Path) -> None:
    """Rows of MMCL's Table 1 train what Table 3 does, and nothing where it is kept."""
    tables = {table.name: table for table in tables_of("vision")["mmcl"]}
    here, counted = places(tmp_path), set[str]()
    cells = tables["table-3"].cells("paper", row="MMCL_INV")
    first = costs_of(tables["table-3"], cells, here, {}, counted)["MMCL_INV", "top1"]
    assert (first.shared, first.time) == (0.0, first.seconds)
    assert len(counted) == 1

    few = tables["table-1-few-shot"]
    cells = few.cells("paper", row="MMCL_INV")
    assert len(cells) == 2
    costs = costs_of(few, cells, here, {}, counted)
    for cost in costs.values():
        # 100 epochs of 1.3 million images, six passes each, against one pass of the target's.
        assert 0.9999 < cost.shared / cost.seconds < 1
        assert cost.time == pytest.approx(cost.seconds - cost.shared)
    alone = costs_of(few, cells, here, {})
    assert all(cost.shared == 0 for cost in alone.values())
    whole, left = (costs_of(few, cells, here, {}, set()) for _ in range(2))
    assert [cost.shared > 0 for cost in whole.values()] == [False, True]
    assert whole == left

    from shared.command.pool import pretraining_of
    from shared.experiment.store import RECORD, key_of

    part = pretraining_of(cells[0])
    assert part is not None
    entry = here.store / key_of(part, {"files": "whichever"})
    entry.mkdir(parents=True)
    (entry / RECORD).write_text("{}")
    kept = costs_of(few, cells, here, {}, set())
    assert all(cost.shared > 0 for cost in kept.values())


def test_a_run_that_took_its_encoder_over_counts_what_it_would_have_taken(tmp_path: Path) -> None:
    (table,) = TOY["toy"]
    here = places(tmp_path)
    (cell,) = table.cells("paper", row="plain", column="left", seeds=[0])
    finish(here, str(cell.folder), cell.config, 20.0, 1.0)
    file = here.runs / cell.folder / "environment.json"
    environment = json.loads(file.read_text()) | {"facts": {"encoder_seconds": "100.5"}}
    file.write_text(json.dumps(environment))
    assert costs_of(table, [cell], here, {})["plain", "left"].seconds == 120.5
