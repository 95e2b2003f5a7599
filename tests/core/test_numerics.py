"""The page about numerics says what is so."""

import csv
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest
from numerics import (
    BUILDERS,
    DERIVATIVES,
    DTYPES,
    LOSSES,
    PAGE,
    PENALTIES,
    SPEED,
    TABLE,
    UNSTEADY,
    Error,
    errors_of,
    errors_on_processes,
    page,
)

SLOW = pytest.mark.slow
EPSILON = {"float64": 2e-15, "float32": 5e-7, "bfloat16": 5e-3}


def written() -> list[Error]:
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return [
            Error(**{**each, "processes": int(each["processes"]), "error": float(each["error"])})
            for each in csv.DictReader(stream)
        ]


def test_the_page_is_drawn_from_its_table_and_has_every_combination() -> None:
    every = written()
    assert PAGE.read_text(encoding="utf-8").partition(SPEED)[0] == page(every)
    alone = [each for each in every if each.builder != "all"]
    count = len(LOSSES) * len(BUILDERS) * len(PENALTIES) * len(DTYPES) * len(DERIVATIVES)
    assert len(alone) == len(set(map(key_of, alone))) == count
    assert {each.processes for each in every} == {1, 2, 4}


def key_of(each: Error) -> tuple[object, ...]:
    return each.loss, each.builder, each.penalty, each.dtype, each.processes, each.derivative


def larger_than_written(errors: Iterable[Error]) -> list[Error]:
    """Those of the errors, of which there are some, that are NaN or beyond what the page says."""
    known = {key_of(each): each.error for each in written()}
    measured = list(errors)
    assert measured
    return [
        each
        for each in measured
        if not each.error <= UNSTEADY * max(known[key_of(each)], EPSILON[each.dtype])
    ]


@pytest.mark.parametrize(
    "loss", [each if each == "margin_nce" else pytest.param(each, marks=SLOW) for each in LOSSES]
)
def test_errors_are_no_larger_than_written(loss: str) -> None:
    """Each builder with each penalty, in one dtype."""
    every = enumerate(product(BUILDERS, PENALTIES))
    errors = (error for n, each in every for error in errors_of(loss, *each, [*DTYPES][n % 3]))
    assert larger_than_written(errors) == []


@SLOW
def test_nor_are_they_on_several_processes(left_by_processes: Path) -> None:
    assert larger_than_written(errors_on_processes(left_by_processes)) == []
