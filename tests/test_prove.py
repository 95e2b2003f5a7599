"""Proving in slices, and the way of what was made from one machine to another: all on a CPU."""

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

from shared.command import archive
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
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code in (None, done.returncode), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A clone in which the toy's bundle has run, and the archive of it."""
    clone = copy_of(tmp_path_factory.mktemp("there") / "clone")
    said = call(clone, "prove", "--device", "cpu", "--only", "cells", "--minutes", "4")
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
    assert len(said["cells"]) == 4
    first = adopted(file)
    assert "4 records taken into" in first.stdout
    assert "says of a CPU is no proof" in first.stdout
    results = tmp_path / "results"
    assert not (results / "proof").exists()
    verified = call(clone, "verify", "--results", str(results))
    line = next(each for each in verified.stdout.splitlines() if "toy/slow/table-1" in each)
    assert line.split()[1:5] == ["4", "4", "4", "4"]  # records, count, hash right, clean commit
    record = read_record(clone / "runs" / ADDRESS, ADDRESS)
    assert record is not None
    assert record.environment["commit"] == git(clone, "rev-parse", "HEAD").strip()
    kept = (results / "toy/slow/table-1.records.jsonl").read_text()
    assert record.sha256 is not None
    assert record.sha256 in kept
    again = adopted(file)
    assert "0 records taken" in again.stdout
    assert again.stdout.count("on record already") == 4
    assert (results / "toy/slow/table-1.records.jsonl").read_text() == kept
    # What is on record is not run again.
    rest = call(
        clone,
        *("prove", "--device", "cpu", "--only", "cells", "--minutes", "4"),
        *("--results", str(results), "--runs", str(tmp_path / "runs")),
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
    assert "3 records taken" in said.stdout
    said = adopted(
        rewritten({name: lambda text: text.replace('"accuracy": ', '"accuracy": 1')}),
        code=1,
        results=tmp_path / "others",
    )
    assert f"runs/{ADDRESS}/result.json: its SHA-256 is not that" in said.stderr
    assert "3 records taken" in said.stdout
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
    assert "4 records taken" in said.stdout


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
def test_slices_end_inside_a_cell_and_the_same_command_goes_on(
    packed: tuple[Path, Path], tmp_path: Path
) -> None:
    runs, codes, stopped = tmp_path / "runs", list[int](), 0
    while (not codes or codes[-1] == 75) and len(codes) < 20:
        # Four cells take more than the first slice on any machine, and on a slow one a start does.
        minutes = 0.3 + 0.05 * len(codes)
        began = time.monotonic()
        done = call(
            packed[0],
            *("prove", "--device", "cpu", "--only", "cells", "--minutes", str(minutes)),
            *("--runs", str(runs), "--archive", str(tmp_path / "proof.zip")),
            code=None,
        )
        assert time.monotonic() - began < 60 * minutes + 15  # and what it takes to start
        codes.append(done.returncode)
        stopped += "it goes on from its checkpoint" in done.stdout
        assert ("not all is done" in done.stdout) == (done.returncode == 75)
    assert codes[-1] == 0
    assert stopped
    for address in (ADDRESS, ADDRESS.replace("seed-0", "seed-1")):
        found = read_record(runs / address, address)
        there = read_record(packed[0] / "runs" / address, address)
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
