"""What of the suite is fast, and what the log of a run says of the rest."""

import re
import shutil
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

PROGRAM = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("c", range(2))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("a", range(4))
def test_product(a, b, c):
    pass

@pytest.mark.parametrize("a", range(3))
def test_skipped(a):
    pytest.skip("no such device")
"""


def run(tmp_path: Path, *words: str) -> str:
    """What pytest prints of the program above, beside this suite's conftest.py."""
    shutil.copyfile(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    (tmp_path / "test_program.py").write_text(PROGRAM)
    markers = ["slow: of minutes", "pairwise: a product"]
    lines = "\n".join(f"    {marker}" for marker in markers)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{lines}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_pair_of_values_is_fast_and_each_reason_to_skip_is_said_once(tmp_path: Path) -> None:
    said = run(tmp_path, "-m", "not slow", "--numprocesses", "1")
    names = re.findall(r"PASSED.*test_product\[(.*)\]", said)
    fast = {tuple(map(int, name.split("-"))) for name in names}
    every = set(product(range(4), range(3), range(2)))
    assert fast < every
    for one, other in combinations(range(3), 2):
        assert {(x[one], x[other]) for x in fast} == {(x[one], x[other]) for x in every}
    assert "\n3 skipped: no such device\n" in said
    assert said.count("no such device") == 1
