"""What of the suite is fast, and what the log of a run says of the rest."""

import shutil
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

PROGRAM = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("c", range(2))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("a", range(4))
def test_product(a, b, c):
    print("ran", a, b, c)

@pytest.mark.parametrize("a", range(3))
def test_skipped(a):
    pytest.skip("no such device")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    shutil.copyfile(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    (tmp_path / "test_program.py").write_text(PROGRAM)
    markers = ["slow: of minutes", "pairwise: a product"]
    lines = "\n".join(f"    {marker}" for marker in markers)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{lines}\n")
    return tmp_path


def run(suite: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *words],
        cwd=suite,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ran(text: str) -> set[tuple[int, ...]]:
    lines = [line.lstrip(".s") for line in text.splitlines()]
    return {tuple(map(int, line.split()[1:])) for line in lines if line.startswith("ran ")}


def test_of_a_product_every_pair_of_values_is_fast(suite: Path) -> None:
    said = run(suite, "-m", "not slow")
    lines = [line.lstrip(".s").split() for line in said.splitlines() if "ran " in line]
    fast = {tuple(map(int, numbers)) for _, *numbers in lines}
    every = set(product(range(4), range(3), range(2)))
    assert fast < every
    for one, other in combinations(range(3), 2):
        assert {(x[one], x[other]) for x in fast} == {(x[one], x[other]) for x in every}


def test_reasons_to_skip_are_said_once_each(suite: Path) -> None:
    said = run(suite, "--numprocesses", "2")
    assert "\n3 skipped: no such device\n" in said
    assert said.count("no such device") == 1
    assert "24 passed" in said
