"""The rules of the house, by reading the sources."""

import ast
import graphlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOMAINS = ("vision", "text", "rl", "graph", "video")
SHARED = sorted((ROOT / "shared").rglob("*.py"))
# The rooms of shared/, each of which may import itself and those before it.
ROOMS = ("core", "experiment", "report", "command")
SOURCES = SHARED + sorted(path for name in DOMAINS for path in (ROOT / name).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, also inside functions, or for types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import."""
    for line, name in imports(path):
        yield line, name.split(".")[0]


def room_of(name: str) -> str:
    """The room in which ``shared.<name>`` lies; what lies in none of the others is the core's."""
    room = name.split(".")[1] if "." in name else ""
    # The door through which `python -m shared` reaches the command line; nothing imports it.
    return "command" if room == "__main__" else room if room in ROOMS else "core"


def wrong_way(path: Path, room: str) -> list[str]:
    """What a file of a room imports from a room that it must not know."""
    allowed = ROOMS[: ROOMS.index(room) + 1]
    return [
        f"{path}:{line}: {name}"
        for line, name in imports(path)
        if name.split(".")[0] == "shared" and room_of(name) not in allowed
    ]


def test_a_clone_keeps_the_ends_of_lines() -> None:
    """With core.autocrlf, reproduce.sh would not start, and no hash of results would fit."""
    assert "* -text" in (ROOT / ".gitattributes").read_text().splitlines()


def test_names_that_examples_import_exist() -> None:
    """mypy does not read them."""
    for path in (ROOT / "docs").rglob("*.py"):
        for line, name in imports(path):
            if name.split(".")[0] in ("shared", *DOMAINS):
                assert pkgutil.resolve_name(name) is not None, f"{path}:{line}: {name}"


def test_the_core_imports_no_domain_and_a_domain_no_other() -> None:
    assert [
        f"{path}:{line}: {name}"
        for path in SOURCES
        for line, name in imported(path)
        if name in {*DOMAINS, "tests", "benchmarks", "results"} - {path.relative_to(ROOT).parts[0]}
    ] == []


def test_imports_run_one_way_through_the_rooms() -> None:
    """From the command line to reports to experiments to the core; domains know no command line."""
    found = []
    for path in SOURCES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found += wrong_way(path, room_of(name) if name.startswith("shared.") else "report")
    assert found == []


def test_no_modules_import_each_other() -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ("shared", *DOMAINS)
        for path in (ROOT / package).rglob("*.py")
    }
    needed = {
        module: {
            found
            for _, name in imports(path)
            for found in (name, name.rpartition(".")[0])
            if found in files and found != module
        }
        for module, path in files.items()
    }
    needed["shared.objective"].remove("shared.criterion")  # for the type of what build returns
    circle: list[str] = []
    try:
        graphlib.TopologicalSorter(needed).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert circle == []


def test_cells_and_records_are_joined_in_one_place() -> None:
    keys = {"shared.experiment.config.run_key"}
    records = {"shared.experiment.records.records_in"}
    found = {
        str(path.relative_to(ROOT))
        for path in SHARED
        if keys & (names := {name for _, name in imports(path)}) and records <= names
    }
    assert found == {"shared/experiment/frame.py"}
    readers = [path for path in SHARED if (keys | records) & {name for _, name in imports(path)}]
    names = {"frame.py", "tables.py", "worker.py"}  # a table makes keys, a worker checks one
    assert {path.name for path in readers} == names


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("core", "from shared import experiment"),
        ("experiment", "def later():\n    from shared.report import measuring"),
        ("report", "from shared import __main__"),
    ],
)
def test_an_import_the_wrong_way_is_seen(room: str, line: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(f"from shared import Pairs, svm\n{line}\n")
    (seen,) = wrong_way(source, room)
    assert "shared." in seen
    assert wrong_way(source, "command") == []


def test_importing_the_core_needs_torch_and_numpy_only() -> None:
    """Whatever is loaded beyond what torch and numpy load themselves is the core's own."""
    program = """
import sys
import numpy, torch, torch.distributed
before = {name.split(".")[0] for name in sys.modules}
from shared import *
assert info_nce.__module__ == "shared.losses"
after = {name.split(".")[0] for name in sys.modules}
print(*sorted(after - before - set(sys.stdlib_module_names)))
print(*sorted(after))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    added, everything = done.stdout.splitlines()
    assert added.split() == ["lazy_loader", "shared"]
    forbidden = "scipy sklearn rich filelock torch_geometric yaml tensorboard psutil torchvision"
    assert not set(everything.split()) & set(forbidden.split())
