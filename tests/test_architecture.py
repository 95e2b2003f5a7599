"""The rules of the house, by reading the sources."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOMAINS = ("vision", "text", "rl", "graph", "video")
SHARED = sorted((ROOT / "shared").glob("*.py"))
SOURCES = SHARED + sorted(path for name in DOMAINS for path in (ROOT / name).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield node.lineno, (node.module or "").split(".")[0]


def test_there_is_something_to_read() -> None:
    assert {path.stem for path in SHARED} >= {"pairs", "losses", "svm", "objective"}
    assert "torch" in {name for _, name in imported(ROOT / "shared" / "losses.py")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_imports_no_domain_and_a_domain_no_other(path: Path) -> None:
    home = path.relative_to(ROOT).parts[0]
    forbidden = set(DOMAINS) - {home} | {"tests", "benchmarks"}
    found = [f"{path}:{line}: {name}" for line, name in imported(path) if name in forbidden]
    assert not found


def test_importing_the_core_needs_torch_and_numpy_only() -> None:
    """Whatever is loaded beyond what torch and numpy load themselves is the core's own."""
    program = """
import sys
import numpy, torch, torch.distributed
before = {name.split(".")[0] for name in sys.modules}
import shared
after = {name.split(".")[0] for name in sys.modules}
print(*sorted(after - before - set(sys.stdlib_module_names)))
print(*sorted(after))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    added, everything = done.stdout.splitlines()
    assert added.split() == ["shared"]
    forbidden = "scipy sklearn rich filelock torch_geometric yaml tensorboard psutil torchvision"
    assert not set(everything.split()) & set(forbidden.split())


def undocumented(path: Path) -> list[str]:
    """Public functions, classes and methods without a docstring; nested functions are private."""
    found = []

    def look(node: ast.Module | ast.ClassDef, prefix: str) -> None:
        for item in node.body:
            if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            # autograd functions are private classes; magic methods say what they do
            if item.name.startswith("_"):
                continue
            if not ast.get_docstring(item):
                found.append(f"{prefix}{item.name}")
            if isinstance(item, ast.ClassDef):
                look(item, f"{prefix}{item.name}.")

    tree = ast.parse(path.read_text())
    if not ast.get_docstring(tree):
        found.append("the module")
    look(tree, "")
    return found


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.name)
def test_everything_public_in_the_core_has_a_docstring(path: Path) -> None:
    assert not undocumented(path)


def test_a_missing_docstring_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('"""A."""\nclass Public:\n    """B."""\n    def method(self): ...\n')
    assert undocumented(source) == ["Public.method"]
