"""The identity of a function in a configuration: its name, and for user code a hash of its source.

A run is identified by its configuration. A function of the project is identified by its name, since
the record of a run has the project's commit. Any other function is identified by its name and a
SHA-256 over the statements of its module that it depends on. Its imports and the location of the
file have no influence.
"""

import ast
import dis
import functools
import hashlib
import inspect
import tokenize
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

PROJECT = ("shared", "vision", "text", "rl", "graph", "video")
REMEDY = "define it with def at the top level of a module's file"
# With these a function may read names that do not occur in its code.
DYNAMIC = {"eval", "exec", "globals", "locals", "vars"}


def identity(function: Callable[..., Any]) -> str:
    """``name`` of a function of the project; of any other ``module.name@`` and a SHA-256.

    Raises:
        ValueError: a function that another process could not import, or whose source is not
            available: a lambda, a nested, wrapped or partial function, a builtin.
    """
    if not isinstance(function, FunctionType):
        what = getattr(function, "__qualname__", type(function).__qualname__)
        raise ValueError(f"{what} is not a plain function; {REMEDY}")
    return _identity(function)


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
    found: Any = home.get(name.split(".")[0])
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    spec = home.get("__spec__")  # tells the name of a module that is run with -m
    module = spec.name if spec else str(home.get("__name__")).replace("__mp_main__", "__main__")
    if found is not function:
        raise ValueError(f"{module}.{name} is another function than this one; {REMEDY}")
    if module.split(".")[0] in PROJECT:
        return name.rpartition(".")[2]
    try:
        with tokenize.open(inspect.getsourcefile(original) or "") as stream:
            text = stream.read()
    except (OSError, TypeError):
        raise ValueError(f"the source of {module}.{name} is not available; {REMEDY}") from None
    digest = hashlib.sha256(_foundation(text, name.split(".")[0]).encode()).hexdigest()
    return f"{module}.{name}@{digest}"


def _foundation(text: str, name: str) -> str:
    """The statements of a module that ``name`` depends on, in order; all if that is uncertain.

    They are those that bind or change the name, or a name that one of them uses.
    """
    lines = text.split("\n")
    try:
        statements = ast.parse(text).body
    except SyntaxError:  # edited since it was imported
        return text
    compiled = [compile(ast.Module([each], []), "", "exec") for each in statements]
    used = [{name for code in _codes(top) for name in code.co_names} for top in compiled]
    changed = [_changed(*pair) for pair in zip(statements, compiled, strict=True)]
    wanted, kept = {name, "*"}, set[int]()
    while more := {i for i, names in enumerate(changed) if names & wanted} - kept:
        kept |= more
        wanted = wanted.union(*(used[i] for i in more))
    if wanted & DYNAMIC or not any(name in changed[i] for i in kept):
        return text
    parts = []
    for i in sorted(kept):
        decorators = getattr(statements[i], "decorator_list", [])
        first = min(each.lineno for each in (statements[i], *decorators))
        parts += lines[first - 1 : statements[i].end_lineno]
    return "\n".join(parts)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code object and all nested ones."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _changed(statement: ast.stmt, top: CodeType) -> set[str]:
    """Global names that a statement binds or changes; ``*`` stands for unknown ones."""
    names = {each.argval for each in dis.get_instructions(top) if "STORE_NAME" in each.opname}
    for code in _codes(top):  # a function may bind global names, too
        names |= {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return names
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names.add("*")
        target: ast.AST = node
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            target = node.value.func  # NAMES.append(...)
        elif not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):  # NAMES[0] = ...
            continue
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
            if isinstance(target, ast.Name):
                names.add(target.id)
    return names
