"""Proving in slices, and the way of what was made from one machine to another: all on a CPU."""

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shared.command import archive, domains, prove, worth
from shared.command.places import Places
from shared.command.targets import PEAKS, TARGETS, Target, peak_of
from shared.experiment.records import content_hash, read_record

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "toy/slow/table-1/plain/left/seed-0"


def git(folder: Path, *arguments: str) -> str:
    names = ("-c", "user.name=suite", "-c", "user.email=suite@example.org")
    done = subprocess.run(
        ["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_of(folder: Path) -> Path:
    """A clone of this checkout as it stands, with a commit of its own."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout with its .git")
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(folder))
    for name in git(ROOT, "ls-files", "-mo", "--exclude-standard", "-z").split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
        else:
            (folder / name).unlink(missing_ok=True)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "as it stands")
    return folder


def call(clone: Path, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (clone, clone / "tests")))
    done = subprocess.run(
        [sys.executable, "-m", "toy", *arguments],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code in (None, done.returncode), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A clone in which the toy's bundle has run, and the archive of it."""
    clone = copy_of(tmp_path_factory.mktemp("there") / "clone")
    said = call(clone, "prove", "--device", "cpu", "--only", "cells", "--minutes", "9")
    (file,) = (clone / "exports").glob("proof-cpu-*.zip")
    assert f"packed in exports/{file.name}" in said.stdout
    return clone, file


@pytest.fixture
def rewritten(packed: tuple[Path, Path], tmp_path: Path) -> Callable[..., Path]:
    """Writes the archive anew with other content, and the hashes that belong to it."""

    def rewrite(changes: Mapping[str, Callable[[str], str] | str], **manifest: Any) -> Path:
        with zipfile.ZipFile(packed[1]) as members:
            content = {name: members.read(name).decode() for name in members.namelist()}
        said = json.loads(content.pop(archive.MANIFEST)) | manifest
        for name, change in changes.items():
            content[name] = change if isinstance(change, str) else change(content[name])
        file = tmp_path / "changed.zip"
        options = {name: said[name] for name in ("commit", "device", "made")}
        archive.pack(file, content, **options, largest=10**7)
        return file

    return rewrite


@pytest.fixture
def adopted(packed: tuple[Path, Path], tmp_path: Path) -> Callable[..., Any]:
    """Takes an archive in with the clone's code; gives what was printed."""

    def adopt(file: Path, code: int = 0, results: Path = tmp_path / "results") -> Any:
        return call(packed[0], "adopt", str(file), "--results", str(results), code=code)

    return adopt


@pytest.mark.slow
def test_what_was_proven_is_taken_in_elsewhere_and_verify_counts_it(
    packed: tuple[Path, Path], adopted: Callable[..., Any], tmp_path: Path
) -> None:
    clone, file = packed
    with zipfile.ZipFile(file) as members:
        names = set(members.namelist())
        said = json.loads(members.read("proof.json"))
    assert {f"runs/{ADDRESS}/{name}.json" for name in ("config", "environment", "result")} < names
    assert f"runs/{ADDRESS}/log.jsonl" in names
    assert not [name for name in names if "checkpoint" in name or "tensorboard" in name]
    assert said["device"] == "cpu"
    assert len(said["cells"]) == 2
    first = adopted(file)
    assert "2 records taken into" in first.stdout
    assert "says of a CPU is no proof" in first.stdout
    results = tmp_path / "results"
    assert not (results / "proof").exists()
    verified = call(clone, "verify", "--results", str(results))
    line = next(each for each in verified.stdout.splitlines() if "toy/slow/table-1" in each)
    assert line.split()[1:5] == ["2", "2", "2", "2"]  # records, count, hash right, clean commit
    record = read_record(clone / "runs" / ADDRESS, ADDRESS)
    assert record is not None
    assert record.environment["commit"] == git(clone, "rev-parse", "HEAD").strip()
    kept = (results / "toy/slow/table-1.records.jsonl").read_text()
    assert record.sha256 is not None
    assert record.sha256 in kept
    again = adopted(file)
    assert "0 records taken" in again.stdout
    assert again.stdout.count("on record already") == 2
    assert (results / "toy/slow/table-1.records.jsonl").read_text() == kept
    # What is on record is not run again.
    rest = call(
        clone,
        *("prove", "--device", "cpu", "--only", "cells", "--minutes", "9"),
        *("--results", str(results), "--runs", str(tmp_path / "runs")),
        *("--archive", str(tmp_path / "rest.zip")),
    )
    assert "cells:" not in rest.stdout


@pytest.mark.slow
def test_another_run_of_a_recorded_cell_does_not_replace_it(
    packed: tuple[Path, Path],
    adopted: Callable[..., Any],
    rewritten: Callable[..., Path],
    tmp_path: Path,
) -> None:
    adopted(packed[1])
    file = tmp_path / "results/toy/slow/table-1.records.jsonl"
    kept = file.read_text()
    other = rewritten({f"runs/{ADDRESS}/result.json": resealed(packed[0], accuracy=12.0)})
    said = adopted(other)
    assert f"{ADDRESS}: kept as it is on record" in said.stdout
    assert file.read_text() == kept
    # What was proven of a GPU is kept beside the results.
    said = adopted(rewritten({}, device="NVIDIA H200"))
    assert f"the proof lies in {tmp_path}/results/proof/nvidia-h200" in said.stdout
    words = (tmp_path / "results/proof/nvidia-h200/proof.md").read_text()
    assert words.startswith("# What was proven on")


def resealed(clone: Path, environment: Mapping[str, Any] | None = None, **metrics: Any) -> str:
    """A run's result with other metrics and the hash that belongs to them."""
    record = read_record(clone / "runs" / ADDRESS, ADDRESS)
    assert record is not None
    result = record.result | {"metrics": record.result["metrics"] | metrics}
    there = record.environment | dict(environment or {})
    result["sha256"] = content_hash(record.config, there, result)
    return json.dumps(result)


@pytest.mark.slow
def test_a_record_that_does_not_count_is_refused_by_name_and_the_others_are_taken(
    packed: tuple[Path, Path],
    adopted: Callable[..., Any],
    rewritten: Callable[..., Path],
    tmp_path: Path,
) -> None:
    clone, name = packed[0], f"runs/{ADDRESS}/result.json"
    said = adopted(rewritten({name: resealed(clone, accuracy=180.0)}), code=1)
    assert f"{ADDRESS} is refused: refused: accuracy is 180, outside" in said.stderr
    assert "1 records taken" in said.stdout
    said = adopted(
        rewritten({name: lambda text: text.replace('"accuracy": ', '"accuracy": 1')}),
        code=1,
        results=tmp_path / "others",
    )
    assert f"{ADDRESS}/result.json: its SHA-256 is not that" in said.stderr
    assert "1 records taken" in said.stdout
    dirty = {"dirty": True}
    environment = (clone / "runs" / ADDRESS / "environment.json").read_text()
    said = adopted(
        rewritten(
            {
                name: resealed(clone, dirty),
                f"runs/{ADDRESS}/environment.json": json.dumps(json.loads(environment) | dirty),
            }
        ),
        code=1,
        results=tmp_path / "dirty",
    )
    assert f"{ADDRESS} is refused: it was not measured at a clean commit" in said.stderr
    smoke = {
        f"runs/smoke/{ADDRESS}/{part}": (clone / "runs" / ADDRESS / part).read_text()
        for part in ("config.json", "environment.json", "result.json")
    }
    said = adopted(rewritten(smoke), code=1, results=tmp_path / "smoke")
    assert f"smoke/{ADDRESS} is refused:" in said.stderr
    assert "2 records taken" in said.stdout


@pytest.mark.slow
def test_an_archive_that_cannot_be_believed_is_refused_in_one_line_and_nothing_is_written(
    packed: tuple[Path, Path],
    adopted: Callable[..., Any],
    rewritten: Callable[..., Path],
    tmp_path: Path,
) -> None:
    whole = packed[1].read_bytes()
    torn = tmp_path / "torn.zip"
    torn.write_bytes(whole[: len(whole) // 2])
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as members:
        members.writestr("notes.txt", "hello")
    swapped = tmp_path / "swapped.zip"
    with zipfile.ZipFile(packed[1]) as old, zipfile.ZipFile(swapped, "w") as new:
        for name in old.namelist():
            new.writestr(name, "{}" if name == f"runs/{ADDRESS}/config.json" else old.read(name))
    more = tmp_path / "more.zip"
    more.write_bytes(whole)
    with zipfile.ZipFile(more, "a") as members:
        members.writestr("runs/more/result.json", "{}")
    manifest = tmp_path / "manifest.zip"
    with zipfile.ZipFile(packed[1]) as old, zipfile.ZipFile(manifest, "w") as new:
        for name in old.namelist():
            text = old.read(name).decode()
            new.writestr(name, text.replace('"device": "cpu"', '"device": "NVIDIA H200"'))
    for file, why in (
        (tmp_path / "none.zip", "no archive"),
        (torn, "is no archive, or not all of one"),
        (other, "has no manifest.json: it is no archive of prove"),
        (swapped, f"runs/{ADDRESS}/config.json has another SHA-256 than its manifest says"),
        (more, "runs/more/result.json is not what its manifest lists"),
        (manifest, "manifest.json was altered"),
        (rewritten({}, commit="1" * 40), "commit 111111111111, which is not in the history"),
    ):
        said = adopted(file, code=2)
        assert why in said.stderr
        assert said.stderr.startswith("error: ")
        assert said.stderr.count("\n") == 1
    said = adopted(rewritten({"../outside.txt": "x"}), code=2)
    assert "leads out of the folder" in said.stderr
    assert not (tmp_path / "results").exists()
    assert not (tmp_path.parent / "outside.txt").exists()


@pytest.mark.slow
def test_it_stops_inside_a_cell_and_the_same_command_goes_on(
    packed: tuple[Path, Path], tmp_path: Path
) -> None:
    clone, runs = packed[0], tmp_path / "runs"
    words = ("prove", "--device", "cpu", "--only", "cells", "--runs", str(runs))
    words += ("--archive", str(tmp_path / "proof.zip"))
    path = os.pathsep.join(map(str, (clone, clone / "tests")))
    first = subprocess.Popen(
        [sys.executable, "-m", "toy", *words],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    log = runs / ADDRESS / "log.jsonl"
    while not log.exists() or log.read_text().count("\n") < 3:
        assert first.poll() is None
        time.sleep(0.05)
    first.terminate()
    said, _ = first.communicate(timeout=300)
    assert first.returncode == 75
    assert "it goes on from its checkpoint" in said
    assert said.endswith("not all is done; the same command goes on from here\n")
    assert (runs / ADDRESS / "checkpoint.pt").exists()
    with zipfile.ZipFile(tmp_path / "proof.zip") as members:
        assert json.loads(members.read("proof.json"))["cells"] == []
    reached = log.read_text()
    assert 3 <= reached.count("\n") < 30
    call(clone, *words)
    assert log.read_text().startswith(reached)  # nothing of it was done twice
    found, there = (read_record(each / ADDRESS, ADDRESS) for each in (runs, clone / "runs"))
    assert found is not None
    assert there is not None
    assert found.result["metrics"] == there.result["metrics"]  # to the bit


@pytest.mark.slow
def test_changes_without_a_commit_are_not_proven(packed: tuple[Path, Path]) -> None:
    clone = packed[0]
    file = clone / "shared/errors.py"
    before = file.read_text()
    file.write_text(before + "# changed\n")
    try:
        said = call(clone, "prove", "--device", "cpu", code=2)
    finally:
        file.write_text(before)
    assert (
        "with changes (or without git) could not be taken in anywhere; commit them" in said.stderr
    )


def proof_of(tmp_path: Path, minutes: float, **options: Any) -> prove.Proof:
    places = Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")
    given = argparse.Namespace(minutes=minutes, again=False, **options)
    return prove.Proof(places, "cpu", {"commit": "c" * 40, "dirty": False}, given, [])


def piece(name: str, program: str) -> prove.Piece:
    return prove.Piece("speed", name, (sys.executable, "-c", program, "{out}"))


WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{\"value\": 3}')"


def test_a_piece_is_done_once_and_what_it_found_is_kept(tmp_path: Path) -> None:
    done = proof_of(tmp_path, 1).do(piece("quick", WRITES))
    assert done is not None
    assert (done["state"], done["value"], done["why"]) == ("done", 3, "")
    again = proof_of(tmp_path, 1).do(piece("quick", "raise SystemExit('not run again')"))
    assert again == done


def test_a_piece_that_fails_says_its_last_word_and_is_tried_again_when_asked(
    tmp_path: Path,
) -> None:
    failing = piece("failing", "print('first'); raise SystemExit('needs a GPU')")
    failed = proof_of(tmp_path, 1).do(failing)
    assert failed is not None
    assert (failed["state"], failed["why"]) == ("failed", "needs a GPU")
    assert proof_of(tmp_path, 1).do(piece("failing", WRITES)) == failed
    proof = proof_of(tmp_path, 1)
    proof.options.again = True
    better = proof.do(piece("failing", WRITES))
    assert better is not None
    assert better["state"] == "done"


def test_the_end_of_a_slice_cuts_a_piece_which_is_begun_anew_unless_it_had_a_whole_one(
    tmp_path: Path,
) -> None:
    endless = piece("endless", "import time; time.sleep(600)")
    proof = proof_of(tmp_path, 0.1)
    assert proof.do(piece("quick", WRITES)) is not None
    began = time.monotonic()
    assert proof.do(endless) is None  # something had come before it
    assert time.monotonic() - began < 60
    assert proof.unfinished
    assert proof.do(piece("later", WRITES)) is None  # there is no time left
    cut = proof_of(tmp_path, 0.05).do(endless)
    assert cut is not None
    assert cut["state"] == "cut"
    assert "give it more with --minutes, and --again" in cut["why"]


def test_a_cell_gets_time_to_save_and_is_killed_only_after_that(tmp_path: Path) -> None:
    saves = "import signal, time; signal.signal(15, lambda *_: exit(75)); print(1); time.sleep(600)"
    deaf = "import signal, time; signal.signal(15, lambda *_: None); time.sleep(600)"
    for program in (saves, deaf):
        proof = proof_of(tmp_path, 0.05)
        began = time.monotonic()
        code = proof.run([sys.executable, "-c", program], tmp_path / "log", saves=True)
        assert code is None
        assert time.monotonic() - began < 60


def test_what_pytest_reports_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase name='one'/><testcase name='two'>"
        "<failure message='assert 1 == 2&#10;where'/></testcase>"
        "<testcase name='three'><skipped message='no GPU'/></testcase></testsuite></testsuites>"
    )
    found = prove.tests_of(report, {"why": "1 failed"})
    assert found["counts"] == {"passed": 1, "failed": 1, "skipped": 1}
    assert found["state"] == "failed"
    assert found["why"] == "1 passed, 1 failed, 1 skipped; two: assert 1 == 2"
    report.write_text("<testsuite><testcase name='three'><skipped/></testcase></testsuite>")
    assert prove.tests_of(report, {"why": ""})["state"] == "left out"  # nothing was proven
    report.unlink()
    assert prove.tests_of(report, {"why": "Killed"}) == {"state": "failed", "why": "Killed"}


def test_bundles_are_of_cells_that_there_are_and_settle_something() -> None:
    seen = set()
    for bundle in worth.BUNDLES:
        cells = worth.cells_of(bundle)
        assert cells, bundle.name
        assert {cell.row for cell in cells} == set(bundle.rows), bundle.name
        assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
        assert worth.verdicts_of(bundle) >= 1, bundle.name
        # A verdict counts only above the trivial floors of its table, where it has some.
        floors = {row.label for row in worth.table_of(bundle).rows if row.floor}
        assert floors & set(bundle.rows) or not floors, bundle.name
        seen.add(bundle.table.split("/")[0])
    assert seen == set(domains.DOMAINS)
    assert len({bundle.name for bundle in worth.BUNDLES}) == len(worth.BUNDLES)


def test_the_most_verdicts_a_minute_come_first_and_what_was_begun_before_them() -> None:
    first, *rest = worth.BUNDLES
    minutes = dict.fromkeys((bundle.name for bundle in rest), 100.0) | {first.name: 0.0}
    order = prove.ranked(worth.BUNDLES, minutes, [])
    assert first not in order  # nothing of it is left
    assert [worth.verdicts_of(each) for each in order] == sorted(
        map(worth.verdicts_of, rest), reverse=True
    )
    last = order[-1]
    assert prove.ranked(worth.BUNDLES, minutes | {last.name: 0.01}, [])[0] is last
    assert prove.ranked(worth.BUNDLES, minutes, [last.name])[0] is last


def test_speeds_are_judged_as_their_targets_say() -> None:
    slow = Target("one", "of one", "s", 2.0)
    fast = Target("other", "of the other", "steps/s", 40.0, at_least=True)
    assert slow.met(2.0)
    assert not slow.met(2.1)
    assert slow.missed_by(3.0) == 1.5
    assert fast.met(40.0)
    assert not fast.met(39.0)
    assert fast.missed_by(10.0) == 4.0
    assert len({target.name for target in TARGETS}) == len(TARGETS) == 7


@pytest.mark.parametrize(
    ("device", "bfloat16"),
    [
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
    ],
)
def test_peaks_are_found_by_what_cuda_calls_a_device(device: str, bfloat16: float) -> None:
    found = peak_of(device, "bfloat16")
    assert found is not None
    assert found[0] == bfloat16
    assert found[1].startswith("NVIDIA")
    assert peak_of("Some GPU", "bfloat16") is None
    for peak in PEAKS:
        assert peak.bfloat16 > peak.tf32 > peak.float32


def test_the_proof_in_words_says_what_was_missed_and_by_what(tmp_path: Path) -> None:
    proof = {
        "device": "NVIDIA H200",
        "commit": "c" * 40,
        "made": "today",
        "cells": ["one"],
        "pieces": [
            {"part": "tests", "name": "tests-rl", "state": "done", "why": "4 passed"},
            {
                "part": "agreement",
                "name": "agreement-rl",
                "state": "done",
                "why": "",
                "steps": [1, 2],
                "worst": {"share": 0.25, "what": "MMCL: gradient"},
            },
            {
                "part": "speed",
                "name": "speed-gru",
                "state": "done",
                "why": "",
                "value": 20.0,
                "tflops": 12.0,
                "share": 0.0125,
                "top": [["aten::mm", 0.5]],
            },
            {"part": "speed", "name": "speed-dd", "state": "failed", "why": "no DD"},
            {"part": "cells", "name": "rl/x", "state": "failed", "why": "out of memory"},
        ],
    }
    text = prove.in_words(proof)
    assert "| tests-rl | done | 4 passed |" in text
    assert "| agreement-rl | done | 2 | 0.25 | MMCL: gradient |" in text
    row = "| at least 40 steps/s | 20 steps/s | missed, 2 times too slow | 12 | 1.2% |"
    assert row in text
    assert "| at most 0.3 seconds | failed | no DD |" in text
    assert "| aten::mm | 50.0% |" in text
    assert "1 runs of the paper tier are packed" in text
    assert "- `rl/x`: failed: out of memory" in text


def test_without_a_gpu_it_says_what_to_do(
    at_once: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    _, error = at_once("prove", code=2)
    assert error.startswith("error: torch ")
    assert "sees no GPU here" in error
    assert "try the way itself with --device cpu" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--minutes", "0"), "'0' is not a positive number of minutes"),
        (("--minutes", "ten"), "'ten' is not a positive number of minutes"),
        (("--only", "test"), "no part 'test': did you mean tests?"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    at_once: Callable[..., tuple[str, str]], words: tuple[str, ...], why: str
) -> None:
    _, error = at_once("prove", *words, code=2)
    assert why in error
