"""What a function is called in a configuration."""

import functools
import importlib.util
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shared
from shared import distance_polarization, info_nce, term
from shared.experiment.tables import canonical
from shared.functions import function_name, identity

SOURCE = """\
import math
from os.path import *

import torch

SCALE = 2.0
TABLE = {}
TABLE["a"] = 1
LIST = []
LIST.append(1)
UNUSED = 5
if SCALE > 1:
    SHIFT = 1.0

def helper(similarity):
    return SCALE * similarity + SHIFT + TABLE["a"] + len(LIST)

def twice(function):
    def inner(pairs, similarity, *, temperature):
        return 2 * function(pairs, similarity, temperature=temperature)
    inner.__qualname__, inner.__wrapped__ = function.__qualname__, function
    return inner

def set_scale(value):
    global SCALE
    SCALE = value + 1

def other(pairs, similarity):
    UNSEEN = 3
    return similarity.sum(1) + UNSEEN

@twice
def loss(pairs, similarity, *, temperature):
    UNUSED = helper(similarity)
    return UNUSED.sum(1) / temperature
"""


def load(text: str, folder: Path, name: str = "my_losses") -> Any:
    """A module from a file, loaded by its path and known to nobody."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "any.py").write_text(text)
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
    assert identity(load(SOURCE, tmp_path / "a").other) != first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED.sum(1) / temperature", "UNUSED.mean(1) / temperature"),
        (
            "def loss(pairs, similarity, *, temperature)",
            "def loss(pairs, similarity, *, temperature=1)",
        ),
        ("return SCALE * similarity", "return similarity"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("SHIFT = 1.0", "SHIFT = 2.0"),
        ('TABLE["a"] = 1', 'TABLE["a"] = 2'),
        ("LIST.append(1)", "LIST.extend([1, 2])"),
        ("2 * function(", "3 * function("),
        ("@twice\n", ""),
        ("value + 1", "value + 2"),
        ("from os.path import *", "from ntpath import *"),
    ],
)
def test_another_source_is_another_function(tmp_path: Path, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    changed = SOURCE.replace(old, new)
    assert identity(load(changed, tmp_path / "b").loss) != identity(load(SOURCE, tmp_path).loss)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED = 5", "UNUSED = 6"),  # the name inside loss is its own
        ("similarity.sum(1) + UNSEEN", "similarity.mean(1)"),
        ("UNUSED = 5", "UNUSED = 5\n\n\nif __name__ == '__main__':\n    helper(0)"),
        ("import torch", "# what it needs\nimport torch  # version 2"),
    ],
)
def test_what_a_function_does_not_rest_on_may_change(tmp_path: Path, old: str, new: str) -> None:
    changed = SOURCE.replace(old, new)
    assert changed != SOURCE
    same = identity(load(changed, tmp_path / "b").loss) == identity(load(SOURCE, tmp_path).loss)
    assert same


def test_where_names_are_looked_up_by_text_the_whole_module_counts(tmp_path: Path) -> None:
    text = "A = 1\ndef loss(pairs, similarity):\n    return globals()['A'] * similarity\n"
    first = identity(load(text, tmp_path / "a").loss)
    assert identity(load(text.replace("A = 1", "A = 2"), tmp_path / "b").loss) != first


def outer() -> Callable[..., Any]:
    def inner(pairs: Any, similarity: Any) -> Any: ...

    return inner


@functools.wraps(info_nce)
def wrapped(*arguments: Any, **numbers: Any) -> Any:
    return 2 * info_nce(*arguments, **numbers)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda pairs, similarity: similarity.sum(1), "a lambda has no name"),
        (outer(), "outer.<locals>.inner is defined inside a function"),
        (functools.partial(info_nce, temperature=0.5), "partial is not a plain function"),
        (torch.sum, "sum is not a plain function"),
        (math.sqrt, "sqrt is not a plain function"),
        (torch.nn.CosineSimilarity(), "CosineSimilarity is not a plain function"),
        (wrapped, "shared.losses.info_nce is another function than this one"),
    ],
)
def test_what_cannot_be_found_again_is_refused_at_once(function: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as error:
        term(function)
    assert str(error.value).endswith("; define it with def at the top level of a module's file")
    assert "\n" not in str(error.value)


def test_a_function_without_a_file_is_refused() -> None:
    names: dict[str, Any] = {"__name__": "typed"}
    exec("def loss(pairs, similarity): ...", names)
    with pytest.raises(ValueError, match=r"the source of typed\.loss is not available"):
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
