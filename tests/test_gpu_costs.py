"""What plan says of a GPU, from docs/expected.csv; and what a long run says before it starts."""

import argparse
import csv
import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console
from toy.program import AtOnce

from shared.command import gpu, reproduce, running
from shared.command.cells import DOMAINS, Chosen, Places, every_table, tables_of_paper
from shared.command.gpu import GpuCost, GpuStep, cost_of, kind_of, step_of, trains
from shared.command.pool import Pool
from shared.experiment.tables import Cell, Table

ROOT = Path(__file__).resolve().parents[1]
SIMCLR = "SimCLR"


def table(domain: str, paper: str, name: str) -> Table:
    (found,) = (
        each
        for each in tables_of_paper(domain, paper)
        if each.name == name and "paper" in each.tiers
    )
    return found


def cells(domain: str, paper: str, name: str, **choice: str) -> tuple[Cell, ...]:
    return table(domain, paper, name).cells("paper", **choice)  # type: ignore[arg-type]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, GpuStep]:
    """The lines of the table, for a test to fill."""
    lines: dict[str, GpuStep] = {}
    monkeypatch.setattr(gpu, "steps_by_kind", lambda: lines)
    return lines


def test_what_a_step_costs_follows_from_its_kind() -> None:
    (cell, *_) = cells("vision", "margins", "table-2", row=SIMCLR, column="CIFAR10")
    config = cell.config
    kind = kind_of("vision", config)
    assert kind.endswith("precision=bfloat16 loss=softmax batch=256")
    for changes in ({"seed": 9}, {"epochs": 3}, {"learning_rate": 0.1}, {"dataset": "CIFAR100"}):
        assert kind_of("vision", dataclasses.replace(config, **changes)) == kind  # type: ignore[type-var]
    for changes in ({"batch_size": 64}, {"backbone": "resnet50"}, {"precision": "float32"}):
        assert kind_of("vision", dataclasses.replace(config, **changes)) != kind  # type: ignore[type-var]
    assert kind_of("vision", config, batch=8) == kind.replace("batch=256", "batch=8")


def test_a_table_costs_the_steps_of_its_trainings(known: dict[str, GpuStep]) -> None:
    some = cells("vision", "margins", "table-2", row=SIMCLR, column="CIFAR10")
    assert str(cost_of(some)) == "not estimated on a GPU"
    known[kind_of("vision", some[0].config)] = GpuStep(0.01, 6.2)
    cost = cost_of(some)
    steps = 200 * (50_000 // 256)
    assert cost.hours == pytest.approx(len(some) * steps * 0.01 / 3600)
    assert (cost.gigabytes, cost.missing) == (6.2, 0)
    assert str(cost).endswith("GPU-hours of training on H100s, up to 7 GB of GPU memory")
    costs = gpu.trainings(some[:1])
    assert gpu.total(costs).hours > 0
    assert gpu.total(costs, costs) == GpuCost()  # the plan has it already


def test_cells_that_share_an_encoder_train_it_once(known: dict[str, GpuStep]) -> None:
    """MMCL's Table 1 of 180 cells needs so many pretrainings as rows are trained, times seeds."""
    every = cells("vision", "mmcl", "table-1-linear")
    trained = {cell.row for cell in every if trains(cell.config)}
    assert 0 < len(trained) < len({cell.row for cell in every})  # the others are checkpoints
    for cell in every:
        known[kind_of("vision", cell.config)] = GpuStep(1.0, 40.0)
    one = max(cost_of([cell]).hours for cell in every)
    seeds = len({cell.seed for cell in every if cell.row in trained})
    assert 0 < cost_of(every).hours <= one * len(trained) * seeds * 1.001


def test_what_is_missing_is_said_and_no_number_given(known: dict[str, GpuStep]) -> None:
    both = [
        *cells("vision", "margins", "table-2", row=SIMCLR, column="CIFAR10")[:1],
        *cells("vision", "margins", "table-2", row="BYOL", column="CIFAR10")[:1],
    ]
    known[kind_of("vision", both[0].config)] = GpuStep(0.01, 6.2)
    assert str(cost_of(both)).endswith(", and 1 training not estimated")
    known.clear()
    assert str(cost_of(both)) == "not estimated on a GPU"
    assert str(GpuCost()) == "no training on a GPU"


def test_every_line_is_of_a_kind_that_a_table_has() -> None:
    with (ROOT / "docs" / "expected.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    kinds = {
        kind_of(cell.domain, cell.config)
        for each in every_table()
        if "paper" in each.tiers
        for cell in each.cells("paper")
        if trains(cell.config)
    }
    assert {line["kind"] for line in lines} <= kinds
    assert {line["kind"].split()[0] for line in lines} == set(DOMAINS)
    assert all(float(line["peak_bytes"]) > 0 for line in lines)
    (simclr,) = cells("vision", "margins", "table-2", row=SIMCLR, column="CIFAR10")[:1]
    assert step_of("vision", simclr.config) is not None


def test_an_allocation_request_is_one_table(
    known: dict[str, GpuStep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data first, then each table at its price after those before it; units are in the headings."""
    every = [each for each in tables_of_paper("vision", "mmcl") if "paper" in each.tiers]
    for each in every:
        for cell in each.cells("paper"):
            known[kind_of("vision", cell.config)] = GpuStep(0.01, 23.4, 0.4)
    folders = ("--runs", str(tmp_path / "runs"), "--data-root", str(tmp_path / "data"))
    words = ("plan", "vision", "mmcl", "--gpus", "8", *folders)
    assert reproduce.main(words) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "./reproduce.sh                       cells   one GPU  --jobs 8  a GPU     disk" in out
    lines = [line.strip() for line in out.splitlines()]
    assert lines[4] == "by hand: supervised-resnet50" + " " * 47 + "0.1"
    rows = {
        line.split(" --table ")[1].split()[0]: [*map(float, line.split()[-5:])]
        for line in lines
        if line.startswith("vision mmcl --table ") and len(line.split()) == 9
    }
    assert list(rows) == sorted(rows, key=lambda name: rows[name][1])  # the cheapest first
    (total,) = (line.split()[2:] for line in lines if line.startswith("in all "))
    cells = [cell for each in every for cell in each.cells("paper")]
    assert total[0] == str(len(cells))
    together = cost_of(cells)
    assert float(total[1]) == pytest.approx(together.hours, abs=0.5)
    assert sum(hours for _, hours, *_ in rows.values()) == pytest.approx(together.hours, abs=1)
    assert all(on_all >= hours / 8 - 0.1 for _, hours, on_all, *_ in rows.values())
    assert "data vision --dataset STL10" + " " * 48 + "2.6" in lines
    assert out.count("ILSVRC") == 1  # two datasets of one folder are got once
    assert "of unknown size: " in " ".join(lines)

    known.clear()
    assert reproduce.main((*words, "--table", "2")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "vision mmcl --table 2 7 unknown unknown" in out
    assert "Not estimated: 7 trainings." in out


def test_trainings_run_side_by_side_and_none_is_faster_than_alone() -> None:
    one = GpuCost(8.0, 20.0, longest=8.0)
    assert (one.hours_on(8), (one + one).hours_on(2), (one + one).hours_on(1)) == (8.0, 8.0, 16.0)


@pytest.mark.parametrize("other", ["--claims", "--device=cpu"])
def test_an_allocation_request_is_about_gpus_and_cells(at_once: AtOnce, other: str) -> None:
    words = () if other == "--claims" else ("graph", "mmcl")
    _, err = at_once("plan", *words, other, "--gpus", "8", code=2)
    assert err.startswith("error: --gpus is about chosen cells on GPUs; omit it, or --")


def test_plan_says_it_on_request(at_once: AtOnce) -> None:
    words = ("plan", "graph", "mmcl", "--table", "4", "--row", "GraphCL", "--column", "DD")
    out, _ = at_once(*words, "--device", "h100")
    assert "graph/mmcl/table-4: " in out.splitlines()[-1]
    assert "GPU-hours" in out or "not estimated" in out
    out, _ = at_once(*words, "--device", "cpu")
    assert "GPU-hours" not in out


def test_a_long_run_says_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")
    long = table("rl", "lmcl", "table-5")
    chosen = [Chosen(long, long.cells("paper"))]
    options = argparse.Namespace(again=False)
    waiting = running.unfinished_cells(chosen, here, options, Console(quiet=True))
    monkeypatch.setattr(running, "visible_devices", tuple)
    line = running.estimate(chosen, waiting, here, 2)
    assert line is not None
    assert line.startswith("306 cells, about ")
    assert " years on this CPU; " in line
    assert line.endswith("; plan shows the cost")
    monkeypatch.setattr(running, "visible_devices", lambda: ("0",))
    line = running.estimate(chosen, waiting, here, 2)
    assert line is not None
    assert "GPU" in line
    # It is printed before anything starts.
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(Pool, "run", lambda *_: None)
    given = argparse.Namespace(again=False, jobs=2, threads=1, minutes=None)
    running.run_waiting(chosen, here, given, console)
    assert line in console.file.getvalue()  # type: ignore[attr-defined]
    smoke = [Chosen(long, long.cells("smoke"))]
    assert running.estimate(smoke, smoke[0].cells, here, 2) is None


def test_claims_are_listed_by_what_decides_them_and_share_their_trainings(
    known: dict[str, GpuStep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [table("vision", "margins", "table-2")]
    assert gpu.by_claim(tables, tmp_path, tmp_path)[0] == []
    for cell in tables[0].cells("paper"):
        known[kind_of("vision", cell.config)] = GpuStep(0.01, 6.2)
    costs, missing = gpu.by_claim(tables, tmp_path, tmp_path)
    assert missing == []
    (one,) = [each for each in costs if each.claim == "margins-table-2-emphasis"]
    assert one.tables == ("vision/margins/table-2",)
    compared = {
        cell.address: cell
        for cell in tables[0].cells("paper")
        for claim in tables[0].claims
        for pair in claim.comparisons
        if not claim.additional and "paper" in pair.tiers
        if cell.row in (pair.better, pair.than) and cell.column in pair.columns
    }
    together = sum((each.cost for each in costs), GpuCost())
    assert together.hours == pytest.approx(cost_of(compared.values()).hours)
    apart = cost_of(c for c in compared.values() if c.row in ("MoCo", "MoCo + pos."))
    assert one.cost.hours <= apart.hours * (1 + 1e-9)  # MoCo may be trained for a claim before it


def test_names_of_claims_and_commands_are_whole_where_they_are_piped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce.main(["plan", "--claims", "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [each for each in lines if "margins-table-2-emphasis-margins" in each]
    assert line.rstrip().endswith("vision margins --table table-2")
