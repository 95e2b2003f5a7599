"""The identity of a function in a configuration: its name, and for user code a hash of its source.

A run is identified by its configuration. A function of the project is identified by its name, since
the record of a run has the project's commit. Any other function, in a package named ``text`` or
``graph`` as well, is identified by its name and a SHA-256 over the syntax of its file and of every
module that the file imports from beside it, and these in turn. Comments, docstrings and layout do
not count, nor does the location of the file. Installed packages do not either, nor files that the
code reads, nor modules that it imports under a name that is made while it runs: where those change,
the user has to start new runs.
"""

import ast
import functools
import hashlib
import inspect
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from shared.lazy import LazyImport

PROJECT = ("shared", "vision", "text", "rl", "graph", "video")
REMEDY = "define it with def at the top level of a module's file"


def identity(function: Callable[..., Any]) -> str:
    """``name`` of a function of the project; of any other ``module.name@`` and a SHA-256."""
    if isinstance(function, LazyImport):
        if function.module.split(".")[0] in PROJECT:
            return function.__name__
        function = function.load()
    if not isinstance(function, FunctionType):
        what = getattr(function, "__qualname__", type(function).__qualname__)
        kind = "a class" if isinstance(function, type) else "not a plain function"
        raise ValueError(f"{what} is {kind}; {REMEDY}")
    return _identity(function)


def loaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, imported if it was not."""
    return function.load() if isinstance(function, LazyImport) else function


def function_name(identity: str) -> str:
    """The name in an :func:`identity`."""
    return identity.partition("@")[0]


@functools.cache  # as of the first call: a file that is edited later does not change what runs
def _identity(function: FunctionType) -> str:
    name = function.__qualname__
    if "<lambda>" in name:
        raise ValueError(f"a lambda has no name; {REMEDY}")
    if "<locals>" in name:
        raise ValueError(f"{name} is defined inside a function; {REMEDY}")
    original = inspect.unwrap(function)
    home = original.__globals__
    target: Any = home.get(name.split(".")[0])
    for part in name.split(".")[1:]:
        target = getattr(target, part, None)
    spec = home.get("__spec__")  # tells the name of a module that is run with -m
    module = spec.name if spec else str(home.get("__name__")).replace("__mp_main__", "__main__")
    if target is not function:
        raise ValueError(f"{module}.{name} is another function than this one; {REMEDY}")
    if module.split(".")[0] in PROJECT and _is_of_project(Path(str(home.get("__file__")))):
        return name.rpartition(".")[2]
    try:
        file = Path(inspect.getsourcefile(original) or "").resolve()
        parts = _syntax_of(file, _root(file, module))
    except (OSError, TypeError):
        raise ValueError(f"the source of {module}.{name} is not available; {REMEDY}") from None
    return f"{module}.{name}@{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"


def files_of(function: FunctionType) -> dict[str, Path]:
    """The file of a function of the user's, and those of the modules that it imports beside it.

    By their paths below the folder that its imports begin in.
    """
    file = Path(inspect.getsourcefile(function) or "").resolve()
    root = _root(file, function.__module__)
    return {
        str(path.relative_to(root)) if path.is_relative_to(root) else path.name: path
        for path in _files(file, root)
    }


def is_as_loaded(function: FunctionType) -> bool:
    """Whether its files are still there, and unedited."""
    try:
        return _identity.__wrapped__(function) == _identity(function)
    except ValueError:  # deleted since it was imported
        return False


def _root(file: Path, module: str) -> Path:
    """The folder that a module's absolute imports begin in."""
    depth = module.count(".") + (file.name == "__init__.py")
    return file.parents[min(depth, len(file.parents) - 1)]


def _syntax_of(file: Path, root: Path) -> list[str]:
    """The syntax of a file, then of what it imports from beside it in the order of their names."""
    first, *others = _files(file, root).values()
    return [first, *sorted(others)]


def _files(file: Path, root: Path) -> dict[Path, str]:
    """The syntax of a file and of all that it imports from beside it, and these in turn."""
    trees: dict[Path, str] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path in trees:
            continue
        with tokenize.open(path) as stream:
            text = stream.read()
        try:
            tree = ast.parse(text)
        except SyntaxError:  # edited since it was imported
            trees[path] = text
            continue
        waiting += (other for other in _imported(tree, path, root) if not _is_other_code(other))
        trees[path] = ast.dump(_without_docstrings(tree))
    return trees


def _imported(tree: ast.Module, file: Path, root: Path) -> Iterator[Path]:
    """The files beside ``file``, or below ``root``, that its import statements name."""
    for node in ast.walk(tree):
        names: list[str] = []
        homes = [root, file.parent]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = [node.module] if node.module else []
            names = [".".join([*start, alias.name]) for alias in node.names]
            if node.level:
                homes = [[file.parent, *file.parent.parents][node.level - 1]]
        for home in homes:
            for name in names:
                parts = name.split(".")
                for end in range(1, len(parts) + 1):  # packages on the way are imported, too
                    path = home.joinpath(*parts[:end])
                    for candidate in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
                        if candidate.is_file():
                            yield candidate.resolve()


def _is_other_code(file: Path) -> bool:
    """Whether a file is of this project or of an installed package, whose versions are recorded."""
    return _is_of_project(file) or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def _is_of_project(file: Path) -> bool:
    root = Path(__file__).resolve().parents[1]
    return any(file.resolve().is_relative_to(root / name) for name in PROJECT)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree without docstrings, and without empty lists, which not every Python dumps."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
        for name, value in ast.iter_fields(node):
            if value == []:
                delattr(node, name)
    return tree
