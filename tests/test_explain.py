"""The page about one cell, and what it points to."""

import ast
import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import shared.losses
import shared.penalties
from shared.report.losses import TWINS

ROOT = Path(__file__).resolve().parents[1]
Call = Callable[..., tuple[str, str]]


def functions(file: Path) -> dict[str, str]:
    """The source of every function of a file, by name."""
    text = file.read_text()
    body = [each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
    return {each.name: ast.get_source_segment(text, each) or "" for each in body}


def test_every_loss_has_a_twin_and_the_test_that_holds_them_together_is_there() -> None:
    declared = {"LowRankProjection"}
    for module in (shared.losses, shared.penalties):
        declared |= {
            name
            for name, value in vars(module).items()
            if hasattr(value, "check_numbers") and value.__module__ == module.__name__
            if name != "band_statistics"  # what is logged of a penalty, and minimised by nobody
        }
    assert set(TWINS) == declared
    twins = functions(ROOT / "tests/reference.py")
    for name, node in TWINS.items():
        file, test = node.split("::")
        source = (ROOT / file).read_text()
        assert test in functions(ROOT / file), node
        twin = "low_rank_paper" if name == "LowRankProjection" else name
        assert twin in twins
        assert f"reference.{twin}" in source or f"{twin} as" in source, node
        assert name in source


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_page_leads_from_the_paper_to_the_verdict(at_once: Call) -> None:
    address = "graph/mmcl/table-4/mmcl-inv-both-views/mutag"
    results = ROOT / "results"
    out, err = at_once("explain", address, "--results", str(results))
    assert err == ""
    page = words(out)
    assert page.startswith(f"{address} MMCL INV, both views, MUTAG, paper tier, seeds 0-")
    for text in (
        "It says: MMCL is better than GraphCL on every dataset (Table 4).",
        "It prints, as MMCL: 88.42 ± 1.33 %",
        "Here: The paper prints neither the kernel width",
        "claims are made against: objective.loss.function:",
        "Beside the row GraphCL, which ",
        'objective.loss.function: "info_nce" -> "max_margin"',
        'pairs: "second_view" -> "both_views"',
        "max_margin(gamma=0.5, cost=100.0, ridge=0.1)",
        "sum_j alpha_j K(c_j, a) - (sum_j alpha_j) K(c_p, a)",
        "Source: Shah et al. 2022, Proposition 1 and Algorithm 1.",
        "by tests/test_svm.py::test_closed_form_loss_and_gradient_equal_the_loops",
    ):
        assert text in page, text
    claims = json.loads((results / "claims.json").read_text(encoding="utf-8"))["claims"]
    names = {"better": "MMCL INV, both views", "than": "GraphCL", "column": "MUTAG"}
    (claim,) = (each for each in claims if names.items() <= each.items() and each["seeds"])
    start = f"MMCL INV, both views over GraphCL: {claim['verdict']}: gain {claim['gain']:+.2f}"
    assert start in page
    assert "Args:" not in page
    lines = (results / "graph/mmcl/table-4.records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for seed in range(5):
        (record,) = (each for each in records if each["address"] == f"{address}/seed-{seed}")
        number, environment = record["result"]["metrics"]["accuracy"], record["environment"]
        told = f"seed {seed}: {number:.4g}, in {results}; commit {environment['commit'][:12]}"
        assert told in page
        assert f"data MUTAG {environment['data']['MUTAG'][:12]}" in page
    one, _ = at_once("explain", f"{address}/seed-3", "--results", str(results))
    assert "seed 3: " in one
    assert "seed 4: " not in one


def test_pages_of_rows_without_a_baseline_a_loss_or_a_record(at_once: Call) -> None:
    page = words(at_once("explain", "toy/toy/table-1/better/right")[0])
    assert "Beside the table's configuration: offset: 0.0 -> 2.0" in page
    assert "The row has no objective." in page
    assert "seeds 0-2: not run" in page
    assert "better over plain: not run" in page
    page = words(at_once("explain", "toy/partial/figure-3/curve/left")[0])
    assert "None: no claim is about it." in page
    page = words(at_once("explain", "smoke/graph/mmcl/table-4/graphcl-dp-mean/embedded-sample")[0])
    assert "The penalty 0.1 * distance_polarization(reduction='mean')" in page
    assert "by tests/test_penalties.py::test_value_and_gradient_equal_the_loops" in page
    assert "It has no such row." in page
    page = words(at_once("explain", "graph/mmcl/table-4/cllr-nuclear/mutag/seed-0")[0])
    assert "The projection 0.1 * LowRankProjection(norm='nuclear')" in page


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("graph/mmcl/table-4/graphcl", "a cell is addressed as [tier/]domain/paper/table/row/colu"),
        ("graph/mmcl/table-5/graphcl/mutag", "no table graph/mmcl/table-5: did you mean table-4?"),
        ("graph/mmcl/table-4/grahpcl/mutag", "has no row 'grahpcl': did you mean GraphCL?"),
        ("toy/shared/table-1/base/left/seed-2", "the row has no such seed"),
        ("grahp/mmcl/table-4/graphcl/mutag", "no domain 'grahp': did you mean graph?"),
    ],
)
def test_a_cell_that_is_not_there_is_one_clear_line(at_once: Call, address: str, text: str) -> None:
    _, err = at_once("explain", address, code=2)
    assert err.startswith("error: ")
    assert text in err
    assert err.count("\n") == 1


def test_docstrings_hold_equations() -> None:
    """What the page shows of a loss is its docstring up to the arguments."""
    for name in TWINS:
        found = getattr(shared, name)
        assert "``" in (inspect.getdoc(found) or "").split("Args:")[0], name
