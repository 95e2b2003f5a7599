"""Pages, CSV files, pictures and records belong together: a missing or other one is a fault."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_verify import commit, records  # noqa: F401 (a fixture)
from toy.program import AtOnce

from shared.experiment import manifest
from shared.experiment.records import Record

RECORDS = "toy/toy/table-1.records.jsonl"


@pytest.fixture
def results(
    tmp_path: Path,
    at_once: AtOnce,
    records: list[Record],  # noqa: F811
) -> Path:
    """A folder of results, as a report has written it."""
    commit(tmp_path / "results", records)
    at_once("report")
    out, err = at_once("verify")
    assert (err, out.splitlines()[-1]) == ("", "no fault found")
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda file: file.unlink(), f"{RECORDS} is missing, which had 3 records; restore it"),
        (
            lambda file: file.write_text(""),
            f"{RECORDS} was changed since the last report, which ha",
        ),
        (lambda file: file.with_name("table-1.csv").write_text("a"), "table-1.csv was changed"),
        (lambda file: file.with_name("table-1.png").unlink(), "table-1.png is missing; restore"),
        (lambda file: file.with_name("new.md").touch(), "new.md is not of the last report"),
        (lambda file: (file.parents[2] / manifest.MANIFEST).unlink(), "manifest.json is missing"),
        (
            lambda file: (file.parents[2] / manifest.MANIFEST).write_text("{}"),
            "manifest.json is not a manifest",
        ),
    ],
)
def test_a_missing_or_changed_file_of_a_report_is_named(
    results: Path, at_once: AtOnce, damage: Callable[[Path], object], text: str
) -> None:
    damage(results / RECORDS)
    out, err = at_once("verify", code=1)
    assert text in err
    assert err.count("\n") == 1
    assert "no fault" not in out


def test_without_results_there_is_nothing_to_compare(tmp_path: Path, at_once: AtOnce) -> None:
    out, _ = at_once("verify")
    assert "no fault found" in out


def test_pages_are_made_again_from_the_records(results: Path, at_once: AtOnce) -> None:
    out, _ = at_once("verify", "--pages")
    assert "no fault found" in out
    shutil.copy(results / "toy/toy/table-1.csv", results / "toy/toy/table-9.csv")
    for name in ("toy/toy/table-1.md", "README.md"):
        (results / name).write_text((results / name).read_text().replace("e", "E"))
    manifest.write(results)  # as if a report had written them
    at_once("verify")
    _, err = at_once("verify", "--pages", code=1)
    assert err.splitlines() == [
        "fault: results/README.md is not what the records give; run ./reproduce.sh report",
        "fault: results/toy/toy/table-1.md is not what the records give; run ./reproduce.sh report",
        "fault: results/toy/toy/table-9.csv: no record gives this file; delete it",
    ]
