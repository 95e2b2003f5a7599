"""What a function is called in a configuration."""

import ast
import functools
import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import shared
from shared import distance_polarization, functions, info_nce, term
from shared.experiment.config import canonical
from shared.functions import function_name, identity
from tests.stages.errors import error_of

ROOT = Path(shared.__file__).resolve().parents[1]

SOURCE = """\
'''A module.'''
import math

import torch

import helpers

SCALE = 2.0

def loss(pairs, similarity, *, temperature):
    '''A loss.'''
    return helpers.scaled(similarity, SCALE).sum(1) / temperature
"""
HELPERS = "from deep.inside import one\n\n\ndef scaled(x, scale):\n    return one() * scale * x\n"
INSIDE = "from . import other\n\n\ndef one():\n    return other.ONE\n"
BESIDE = {
    "helpers.py": HELPERS,
    "deep/__init__.py": "",
    "deep/inside.py": INSIDE,
    "deep/other.py": "ONE = 1.0\n",
    "unused.py": "TWO = 2.0\n",
}


def load(
    text: str, folder: Path, name: str = "my_losses", beside: Mapping[str, str] = BESIDE
) -> Any:
    """A module from a file, loaded by its path and known to nobody, with modules beside it."""
    for path, content in {**beside, "any.py": text}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        return _loaded(folder, name)
    finally:
        sys.path.remove(str(folder))
        for each in set(sys.modules) - before:
            del sys.modules[each]


def _loaded(folder: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, folder / "any.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_function_of_the_project_goes_by_its_name() -> None:
    assert identity(info_nce) == "info_nce"
    assert canonical(term(distance_polarization, weight=2.0))["function"] == "distance_polarization"
    for name in shared.__all__:
        item = getattr(shared, name)
        if isinstance(item, type(identity)):
            assert identity(item) == function_name(identity(item)) == name


def test_a_function_from_outside_goes_by_module_name_and_source(tmp_path: Path) -> None:
    first = identity(load(SOURCE, tmp_path / "a").loss)
    name, _, digest = first.partition("@")
    assert name == function_name(first) == "my_losses.loss"
    assert len(digest) == 64
    assert identity(load(SOURCE, tmp_path / "b").loss) == first  # the place does not matter
    assert identity(load(SOURCE, tmp_path / "c", "his_losses").loss) == f"his_losses.loss@{digest}"


@pytest.mark.parametrize(
    ("same", "file", "old", "new"),
    [
        (False, "any.py", ".sum(1) / temperature", ".mean(1) / temperature"),
        (False, "any.py", "*, temperature)", "*, temperature=1)"),
        (False, "any.py", "SCALE = 2.0", "SCALE = 3.0"),
        (False, "any.py", "import torch", "from torch import *"),
        (False, "helpers.py", "one() * scale", "one() + scale"),
        (False, "deep/__init__.py", "", "import torch"),
        (False, "deep/inside.py", "other.ONE", "2 * other.ONE"),
        (False, "deep/other.py", "1.0", "1.5"),
        (True, "any.py", "A loss.", "Another text."),
        (True, "any.py", "    '''A loss.'''\n", ""),
        (True, "any.py", "import torch\n", "# what it needs\nimport torch  # version 2\n\n\n"),
        (True, "helpers.py", "one() * scale * x", "((one() * scale) * x)"),
        (True, "unused.py", "2.0", "3.0"),
    ],
)
def test_another_source_is_another_function(
    tmp_path: Path, same: bool, file: str, old: str, new: str
) -> None:
    """Its own file, and what that imports from beside it; not comments, docstrings and layout."""
    files = {**BESIDE, "any.py": SOURCE}
    assert old in files[file]
    files[file] = files[file].replace(old, new) if old else new
    text = files.pop("any.py")
    first = identity(load(SOURCE, tmp_path / "a").loss)
    assert (identity(load(text, tmp_path / "b", beside=files).loss) == first) is same


def test_files_are_those_of_the_identity_until_one_is_edited_or_deleted(tmp_path: Path) -> None:
    loss = load(SOURCE, tmp_path).loss
    identity(loss)
    names = {"any.py", "helpers.py", "deep/__init__.py", "deep/inside.py", "deep/other.py"}
    assert functions.files_of(loss) == {name: tmp_path / name for name in names}
    assert functions.is_as_loaded(loss)
    (tmp_path / "deep/other.py").write_text("ONE = 1.5\n")
    assert not functions.is_as_loaded(loss)
    (tmp_path / "deep/other.py").write_text(BESIDE["deep/other.py"])
    assert functions.is_as_loaded(loss)
    (tmp_path / "any.py").unlink()
    assert not functions.is_as_loaded(loss)


def test_installed_packages_and_the_project_are_not_read(tmp_path: Path) -> None:
    """A module beside the project imports it; one in a package that is installed imports others."""
    place = tmp_path / "site-packages"
    file = Path(load(SOURCE, place).__file__)
    assert list(functions._files(file, file.parent)) == [file]
    beside = functions._imported(ast.parse("import shared.losses, vision"), ROOT / "mine.py", ROOT)
    found = list(beside)
    assert ROOT / "shared" / "losses.py" in found
    assert all(map(functions._is_other_code, found))


def outer() -> Callable[..., Any]:
    def inner(pairs: Any, similarity: Any) -> Any: ...

    return inner


@functools.wraps(info_nce)
def wrapped(*arguments: Any, **numbers: Any) -> Any:
    return 2 * info_nce(*arguments, **numbers)


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda pairs, similarity: similarity.sum(1), "lambda"),
        (outer(), "outer.<locals>.inner"),
        (functools.partial(info_nce, temperature=0.5), "partial"),
        (torch.sum, "sum"),
        (torch.nn.CosineSimilarity(), "CosineSimilarity"),
        (torch.nn.CosineSimilarity, "class"),
        (wrapped, "shared.losses.info_nce"),
    ],
)
def test_functions_that_cannot_be_imported_by_name_are_refused_at_once(
    function: Any, word: str
) -> None:
    assert word in error_of(lambda: term(function), ValueError)


def test_a_function_without_a_file_is_refused() -> None:
    names: dict[str, Any] = {"__name__": "typed"}
    exec("def loss(pairs, similarity): ...", names)
    with pytest.raises(ValueError, match="typed"):
        term(names["loss"])


@pytest.mark.slow
def test_a_program_and_its_processes_call_a_function_the_same(tmp_path: Path) -> None:
    """As __main__, as __main__ of a process that it starts, by -m, and imported."""
    program = """
        import sys
        from multiprocessing import get_context

        from shared.functions import identity

        def loss(pairs, similarity):
            return similarity

        def say(connection):
            connection.send(identity(loss))

        if __name__ == "__main__":
            context = get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=say, args=(there,))
            process.start()
            print(identity(loss), here.recv())
            process.join()
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(program))

    def said(*arguments: str) -> list[str]:
        environment = {"PYTHONPATH": f"{Path(shared.__file__).parents[1]}"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    alone, child = said("mine.py")
    assert alone == child
    assert function_name(alone) == "__main__.loss"
    module, module_child = said("-m", "mine")
    imported = said("-c", "import mine; print(mine.identity(mine.loss))")
    assert [module, module_child] == imported * 2
    assert module == alone.replace("__main__", "mine")


def test_a_package_of_the_users_may_be_called_as_one_of_ours(tmp_path: Path) -> None:
    """By its name alone, a changed loss would be taken for the one of a finished run."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/__init__.py").touch()
    (tmp_path / "text/losses.py").write_text("def loss(pairs, similarity):\n    return 1\n")
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "from shared.functions import identity; from text.losses import loss; "
            "print(identity(loss))",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{Path(shared.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("text.losses.loss@")
