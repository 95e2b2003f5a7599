"""What ``verify`` says of records and runs, on the toy domain."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from toy.program import AtOnce
from toy.tables import TABLES, run_of

from shared.command import verify
from shared.command.cells import Places
from shared.command.pool import Pool
from shared.experiment.environment import arithmetic_used
from shared.experiment.frame import Measurement
from shared.experiment.records import Reason, Record, content_hash, read_record, record_line
from shared.experiment.tables import Cell
from shared.report.files import commit_name

ROOT = Path(__file__).resolve().parents[2]
TABLE = TABLES["toy"][0]
PLACE = "toy/toy/table-1/plain/left"
ALL = [table for some in TABLES.values() for table in some]


@pytest.fixture
def records(done: Path) -> list[Record]:
    """Of those runs, as a clean commit would have made them."""
    found = [
        read_record(run_of(done / "runs", f"{PLACE}/seed-{s}"), f"{PLACE}/seed-{s}")
        for s in range(3)
    ]
    return [changed(record, {"dirty": False}) for record in found if record is not None]


def changed(
    record: Record, environment: Mapping[str, Any], metrics: Mapping[str, Any] | None = None
) -> Record:
    """The record with changes, and the hash that belongs to them."""
    new = record.environment | dict(environment)
    result = record.result | {"metrics": record.result["metrics"] | dict(metrics or {})}
    hashed = content_hash(record.config, new, result)
    return dataclasses.replace(record, environment=new, result=result, sha256=hashed)


def commit(results: Path, records: Sequence[Record], name: str = "toy/toy/table-1") -> Path:
    file = results / f"{name}.records.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(map(record_line, records)))
    return file


def check(tmp_path: Path) -> verify.Checked:
    return verify.check(ALL, tmp_path / "results", tmp_path / "runs")


def test_an_unknown_commit_is_not_said_to_have_changes(records: list[Record]) -> None:
    of_a_package = changed(records[0], {"commit": "unknown", "dirty": True})
    assert commit_name(of_a_package) == "unknown"
    of_a_checkout = changed(records[0], {"commit": "0123456789abcdef", "dirty": True})
    assert commit_name(of_a_checkout, " with changes") == "0123456789 with changes"


def test_records_as_they_were_written_have_no_fault(tmp_path: Path, records: list[Record]) -> None:
    commit(tmp_path / "results", records)
    checked = check(tmp_path)
    assert checked.faults == checked.notes == ()
    (group,) = checked.groups
    assert (group.name, group.committed, group.valid) == ("toy/toy/table-1", True, 3)
    assert [each.record for each in checked.matched] == records
    assert {each.cell.address for each in checked.matched} == {each.address for each in records}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda r: changed(r, {}, {"accuracy": 180.0}), "accuracy is 180"),
        (lambda r: changed(r, {}, {"accuracy": "nan"}), "no finite accuracy"),
        (lambda r: changed(r, {}, {"norm": "inf"}), '"norm": "inf"'),
        (lambda r: changed(r, {}, {"details": {"curve": [1.0, "nan"]}}), '[1.0, "nan"'),
        # Reading refuses the numbers themselves, at any depth.
        (lambda r: changed(r, {}, {"details": {"curve": [1.0, float("nan")]}}), "NaN"),
        (lambda r: changed(r, {}, {"norm": float("-inf")}), "-Infinity"),
        (lambda r: changed(r, {"commit": "HEAD"}), "'HEAD'"),
        (lambda r: changed(r, {"data": {"toys": "0" * 64}}), "hash of toys"),
        (lambda r: changed(r, {"data": {"toys": "ab"}}), "hash of toys"),
        (lambda r: dataclasses.replace(r, sha256=None), "SHA-256"),
        (lambda r: dataclasses.replace(r, sha256="0" * 64), "SHA-256"),
        (lambda r: changed(r, {"dirty": True}), "clean commit"),
        (
            lambda r: changed(dataclasses.replace(r, config=r.config | {"steps": 9}), {}),
            "stale: measured with another configuration",
        ),
        (
            lambda r: changed(dataclasses.replace(r, result=r.result | {"protocol": "v0"}), {}),
            "stale: measured with protocol v0",
        ),
        (
            lambda r: changed(
                dataclasses.replace(r, address=f"{PLACE}/seed-9", config=r.config | {"seed": 9}), {}
            ),
            "not among the declared",
        ),
        (lambda r: dataclasses.replace(r, address=f"{PLACE}/seed-0"), "two records of"),
    ],
)
def test_every_fault_of_a_record_is_one_line(
    tmp_path: Path, records: list[Record], change: Callable[[Record], Record], fault: str
) -> None:
    first, second, third = records
    file = commit(tmp_path / "results", [first, change(second), third])
    checked = check(tmp_path)
    named = [each for each in checked.faults if fault in each]
    assert len(named) == 1
    assert "\n" not in named[0]
    assert f"{file}, line 2: " in named[0] or "two records" in fault
    assert {each.record.address for each in checked.matched} >= {third.address}


def test_records_of_no_table_are_a_fault(tmp_path: Path, records: list[Record]) -> None:
    commit(tmp_path / "results", records[:1], "toy/toy/table-9")
    (fault,) = check(tmp_path).faults
    assert "is not valid: no table declares it today" in fault


def test_one_domain_alone(tmp_path: Path, records: list[Record]) -> None:
    commit(tmp_path / "results", records)
    commit(tmp_path / "results", [changed(records[0], {"dirty": True})], "short/other/toy/table-1")
    results, runs = tmp_path / "results", tmp_path / "runs"
    assert verify.check(ALL, results, runs, "toy").faults == ()
    assert len(verify.check(ALL, results, runs, "other").faults) == 2


def test_exit_codes(done: Path, tmp_path: Path, records: list[Record], at_once: AtOnce) -> None:
    file = commit(tmp_path / "results", records)
    out, err = at_once("verify", "toy", "--runs", str(done / "runs"))
    assert err == ""
    assert "toy/toy/table-1 3 3 3 0" in " ".join(out.split())
    assert "runs: toy/works 9 9" in " ".join(out.split())
    assert out.endswith("\nno fault found\n")
    content = file.read_text()
    file.write_text(content[:-20] + "\n")
    out, err = at_once("verify", "toy", code=1)
    assert err.startswith("fault: results/toy/toy/table-1.records.jsonl, line 3: not JSON")
    assert err.count("\n") == 1
    assert "no fault" not in out
    _, err = at_once("verify", "nowhere", code=2)
    assert err.startswith("error: no domain 'nowhere'")
    commit(tmp_path / "results", records)
    _, err = at_once("verify", "toy", "--rerun", "1", "--row", "better", code=2)
    assert err.startswith("error: nothing to run again")


def test_an_edited_run_is_a_fault_and_does_not_count(
    done: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    run = run_of(Path("runs"), f"{PLACE}/seed-0")
    file = tmp_path / run / "result.json"
    content = json.loads(file.read_text())
    content["metrics"]["accuracy"] = 180.0
    file.write_text(json.dumps(content))
    _, err = at_once("verify", "toy", code=1)
    assert err.startswith(f"fault: {run}/result.json: its SHA-256 is not")
    # Neither the table nor the report believes it; what else is there goes on.
    assert str(run) in at_once("report", "--results", "elsewhere", code=1)[1]
    only = ("--row", "plain", "--column", "left", "--seeds", "0,1")
    out, err = at_once("toy", "toy", *only, code=1)
    assert "180" not in out
    assert err.startswith(f"{PLACE}/seed-0: refused: {run}/result.json: its SHA-256")
    out, _ = at_once("plan", "toy", "toy", *only)
    assert "1 of 2 cells to run" in out
    # Nor with the hash that belongs to it.
    parts = (json.loads((run / f"{name}.json").read_text()) for name in ("config", "environment"))
    file.write_text(json.dumps(content | {"sha256": content_hash(*parts, content)}))
    _, err = at_once("verify", "toy", code=1)
    assert "is not valid: refused: accuracy is 180, outside -inf to 100" in err


@pytest.mark.slow
def test_cells_are_run_anew_and_compared(
    tmp_path: Path, records: list[Record], at_once: AtOnce
) -> None:
    same, other, far = records
    value = other.result["metrics"]["accuracy"]
    other = changed(other, {}, {"accuracy": value + 1e-9})
    hardware = far.environment["hardware"] | {"processor": "Another"}
    value = far.result["metrics"]["accuracy"]
    far = changed(far, {"hardware": hardware}, {"accuracy": value + 1e-9})
    commit(tmp_path / "results", [same, other, far])
    out, err = at_once("verify", "toy", "--rerun", "5", code=1)
    assert f"{same.address}: equal to the bit\n" in out
    (fault,) = err.splitlines()
    assert fault.startswith(f"fault: {other.address}: on the same processor, BLAS path, versions")
    assert "accuracy differs by -1e-09" in fault
    (line,) = (each for each in out.splitlines() if each.startswith(f"{far.address}: another proc"))
    # A process of its own does not know the toys.
    assert "Another recorded): accuracy differs by -1e-09" in line
    assert line.endswith(": no other code path could be run here")
    assert "3 of 5 cells could be run; there are no others" in out
    assert not (tmp_path / "runs").exists()
    out, _ = at_once("verify", "toy", "--rerun", "5", "--seeds", "0")
    assert "equal to the bit" in out
    assert "1 of 5 cells could be run" in out


def test_to_compare_nothing_is_not_to_find_no_fault(
    tmp_path: Path, records: list[Record], at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: Pool, some: list[Cell]) -> None:
        self.outcomes = {cell.address: f"{Reason.NOT_RUN}: data missing; get them" for cell in some}

    monkeypatch.setattr(Pool, "run", start)
    commit(tmp_path / "results", records)
    out, err = at_once("verify", "toy", "--rerun", "2", code=1)
    assert "cannot be run here: data missing; get them\n" in out
    assert "no fault found" not in out
    assert err == "fault: nothing was compared: no chosen cell could be run again and compared\n"


def counted(record: Record, row: str = "plain", seed: int = 0) -> Measurement:
    (cell,) = TABLE.cells(row=row, column="left", seeds=[seed])
    return Measurement(TABLE, cell, dataclasses.replace(record, address=cell.address))


OTHER = {"hardware": {"processor": "Another"}}


PATH = {"arithmetic": {"cpu_capability": "DEFAULT", "numpy_and_scipy": []}}


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        (OTHER, "processor"),
        ({"arithmetic": {}}, "CPU capability; another BLAS of numpy"),
        ({"threads": 2}, "threads"),
        (None, "not recorded"),
    ],
)
def test_another_rounding_is_held_to_that_of_another_code_path(
    records: list[Record], environment: dict[str, Any] | None, word: str
) -> None:
    first, *_ = records
    if environment is None:
        kept = {name: value for name, value in first.environment.items() if name != "arithmetic"}
        recorded = counted(dataclasses.replace(first, environment=kept))
    else:
        recorded = counted(changed(first, environment))
    value = first.result["metrics"]["accuracy"]

    def compared(off: float, rounded: float) -> verify.Rerun:
        anew = changed(first, {}, {"accuracy": value + off})
        other = changed(first, PATH, {"accuracy": value + off + rounded})
        return verify.compare(recorded, anew, lambda: other)

    for off, rounded, (fault, known), end in (
        (1.6, 0.0, (True, True), "by 0: "),
        (-1.6, 0.1, (True, True), "by 0.1: "),
        (1e-6, 1e-6, (False, True), "by 1e-06: "),
        (1.6, -0.5, (False, False), "by 0.5: "),
    ):
        outcome = compared(off, rounded)
        assert (outcome.fault, outcome.compared) == (fault, known)
        assert word in outcome.text
        assert f"accuracy differs by {off:+g}" in outcome.text
        assert end in outcome.text
    outcome = verify.compare(recorded, first, lambda: pytest.fail("nothing is to be explained"))
    assert (outcome.fault, outcome.text.split("; ")[0]) == (False, "equal to the bit")
    assert word in outcome.text


def never() -> None:
    pytest.fail("another code path would tell nothing")


@pytest.mark.parametrize(
    ("environment", "path", "words"),
    [
        ({"versions": {"torch": "1", "absent": "2"}}, never, "other versions of torch"),
        ({"hardware": OTHER["hardware"] | {"accelerators": ["GPU"]}}, never, "an accelerator"),
        (OTHER, lambda: None, "no other code path"),  # it failed
        (OTHER, lambda: {}, "no other code path"),  # it is the same path
    ],
)
def test_what_rounding_does_not_explain_cannot_be_compared(
    records: list[Record],
    environment: dict[str, Any],
    path: Callable[[], dict[str, Any] | None],
    words: str,
) -> None:
    first, *_ = records
    anew = changed(first, {}, {"accuracy": first.result["metrics"]["accuracy"] + 1e-3})

    def elsewhere() -> Record | None:
        found = path()
        return None if found is None else changed(first, found)

    outcome = verify.compare(counted(changed(first, environment)), anew, elsewhere)
    assert (outcome.fault, outcome.compared) == (False, False)
    assert words in outcome.text


def test_other_data_are_a_fault(records: list[Record]) -> None:
    first, *_ = records
    outcome = verify.compare(counted(first), changed(first, {"data": {"toys": "ab"}}), lambda: None)
    assert outcome.fault
    assert "data" in outcome.text


def test_in_place_of_a_cell_without_data_comes_another(
    done: Path, tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [counted(record, seed=seed) for seed, record in enumerate(records)]
    far = dataclasses.replace(every[1].cell, column="far")
    away = Measurement(TABLE, far, dataclasses.replace(records[1], address=far.address))
    asked: list[list[int]] = []

    def run(self: Pool, cells: list[Cell]) -> None:
        asked.append([cell.seed for cell in cells])
        shutil.copytree(done / "runs", self.places.runs, dirs_exist_ok=True)
        far = [cell for cell in cells if cell.column == "far"]
        self.outcomes |= {cell.address: f"{Reason.NOT_RUN}: data missing" for cell in far}

    monkeypatch.setattr(Pool, "run", run)
    monkeypatch.setattr(verify, "shuffled", list)
    names = ("table", "row", "column", "seeds")
    options = Namespace(rerun=2, jobs=1, threads=1, **dict.fromkeys(names))
    places = Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")
    order = [every[0], away, every[2]]
    outcomes = list(verify.run_again(order, places, options, Console(quiet=True)))
    assert asked == [[0, 1], [2]]
    assert [(each.fault, each.text) for each in outcomes] == [
        (False, "equal to the bit"),
        (False, "cannot be run here: data missing"),
        (False, "equal to the bit"),
    ]


def test_a_sample_is_a_matter_of_the_number_alone(records: list[Record]) -> None:
    every = [counted(records[0], seed=seed) for seed in range(20)]
    order = [each.cell.seed for each in verify.shuffled(every)]
    assert order == [each.cell.seed for each in verify.shuffled(reversed(every))]
    assert sorted(order) == list(range(20)) != order


def test_the_arithmetic_is_on_record(records: list[Record]) -> None:
    found = records[0].environment["arithmetic"]
    assert found["cpu_capability"] == arithmetic_used()["cpu_capability"] != ""
    assert found["numpy_and_scipy"]


@pytest.mark.slow
def test_variables_that_steer_the_arithmetic_are_seen_and_the_server_starts_no_thread() -> None:
    """In a process of its own, as in the server that the processes of cells are forked of."""
    program = (
        "import json, psutil, scipy.linalg, torch; before = psutil.Process().num_threads(); "
        "import shared.command.preloaded; "
        "from shared.experiment.environment import arithmetic_used; "
        "found = arithmetic_used()['cpu_capability']; "
        "print(psutil.Process().num_threads() - before, torch.cuda.is_initialized(), found)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=True,
    )
    started, uses_gpu, found = done.stdout.split(maxsplit=2)
    assert (started, uses_gpu) == ("0", "False")
    assert found.strip() in ("DEFAULT", "NO AVX", "NO_AVX")
