import dataclasses
import inspect
import itertools
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from toy.tables import BETTER, CLAIM, PLAIN, SHARED, TABLES
from toy.train import Config

import shared
from shared.command.cells import DOMAINS, tables_of
from shared.errors import UserError
from shared.experiment.config import canonical, canonical_json, run_key, slug
from shared.experiment.initial import InitialWeights
from shared.experiment.published import load_notes, load_published
from shared.experiment.tables import Claim, Column, Row, Seeds, Tier, Value
from tests.stages.measured import read_records

ROOT = Path(__file__).resolve().parents[2]
TABLE = TABLES["toy"][0]


def _about(claim: Claim, **changes: Any) -> Claim:
    (comparison,) = claim.comparisons
    return dataclasses.replace(claim, comparisons=(dataclasses.replace(comparison, **changes),))


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_row_of_the_projected_gradient_tells_its_steps(domain: str) -> None:
    """The paper has up to 1000."""
    default = inspect.signature(shared.max_margin).parameters["steps"].default
    for table in itertools.chain.from_iterable(tables_of(domain).values()):
        deviations = {row.label: " ".join(row.deviation.split()) for row in table.rows}
        for cell in table.cells(table.tiers[0]):
            objective = getattr(cell.config, "objective", None)
            numbers = objective.loss.kwargs if objective else {}
            if numbers.get("solver") == "projected_gradient":
                assert re.search(rf"\b{numbers.get('steps', default)}\b", deviations[cell.row])


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_table_of_every_domain_builds(domain: str) -> None:
    tables = tables_of(domain)
    assert tables
    for paper, some in tables.items():
        for table in some:
            assert (table.domain, table.paper) == (domain, paper)
            assert table.tiers
            # What a paper says is said by one that has tables of its own here, or asked besides.
            assert {claim.paper for claim in table.claims} <= {"", *tables}
            for tier in table.tiers:
                cells = table.cells(tier)
                assert len({(cell.address, cell.column) for cell in cells}) == len(cells) > 0
                assert len(canonical_json([cell.config for cell in cells])) > 0
                assert {cell.config.seed for cell in cells} == set(table.seeds[tier])


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_objective_of_every_table_has_valid_numbers(domain: str) -> None:
    """A process that has imported no loss declares them unchecked."""
    checked = 0
    for table in (table for tables in tables_of(domain).values() for table in tables):
        for tier in table.tiers:
            for cell in {(c.row, c.run_name): c for c in table.cells(tier)}.values():
                if objective := getattr(cell.config, "objective", None):
                    for item in (objective.loss, *objective.penalties):
                        item.check()
                        checked += 1
    assert checked > 10


def test_every_night_runs_every_paper_of_every_domain() -> None:
    workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^          - (\w+) (\w+)$", workflow, re.MULTILINE)
    smoke = [
        (domain, paper)
        for domain in DOMAINS
        for paper, some in tables_of(domain).items()
        if any("smoke" in table.tiers for table in some)
    ]
    assert sorted(listed) == sorted(smoke)


def test_committed_results_are_those_of_the_declared_cells() -> None:
    """A row or default that changes makes its committed numbers stale: run it again, or say so."""
    declared = {
        cell.address: cell.config
        for domain in DOMAINS
        for some in tables_of(domain).values()
        for table in some
        for tier in ("paper", "short")
        for cell in table.cells(tier)
    }
    records = read_records(ROOT / "results")
    assert records
    for record in records:
        config = declared[record.address]
        assert record.upgraded(type(config)).config == canonical(config), record.address
        assert record.environment["dirty"] is False
        assert record.sha256 is not None  # compared with the content where records are read
        assert record.result["tier"] != "smoke"


def test_cells_in_the_order_of_the_table_with_their_changes() -> None:
    cells = TABLE.cells("paper")
    ends = ["left/seed-0", "left/seed-1", "left/seed-2", "right/seed-0"]
    assert [cell.address for cell in cells[:4]] == [f"toy/toy/table-1/plain/{end}" for end in ends]
    by_address = {cell.address: cell.config for cell in cells}
    assert by_address["toy/toy/table-1/plain/right/seed-2"] == Config(offset=1.0, seed=2)
    assert by_address["toy/toy/table-1/better/right/seed-0"].offset == 2.0  # the row overrides
    short = TABLE.cells("short")[0]
    assert short.address == "short/toy/toy/table-1/plain/left/seed-0"
    assert short.config.steps == 2
    smoke = TABLE.cells("smoke")
    assert [cell.column for cell in smoke] == ["embedded sample"] * 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rows": (Row("plain", {"stesp": 1}, "plain"), BETTER)}, "'stesp'"),
        ({"columns": (Column("left", {"of": 1}), Column("right"))}, "'of'"),
        ({"short": {"stepz": 2}}, "'stepz'"),
        ({"rows": (PLAIN, Row("Plain!"), BETTER)}, "address"),
        ({"columns": (Column("left"), Column("LEFT"), Column("right"))}, "columns"),
        ({"rows": (PLAIN,)}, "'better'"),
        ({"columns": (Column("left"),)}, "'right'"),
        ({"rows": (PLAIN, BETTER, Row("x", published="y"))}, "'y'"),
        ({"unit": "per cent"}, "'per cent'"),
        ({"protocol": "toy-v2"}, "'toy-v2'"),
        (
            {"columns": (Column("left", run="a"), Column("right", {"offset": 1.0}, run="a"))},
            "differ in plain",
        ),
        (
            {"rows": (PLAIN, dataclasses.replace(BETTER, in_columns={"up": {"offset": 1.0}}))},
            "'up'",
        ),
        ({"seed_exceptions": (Seeds((0,), ("up",)),)}, "'up'"),
        ({"seed_exceptions": (Seeds((0,), rows=("worst",)),)}, "'worst'"),
        ({"seed_exceptions": (Seeds((3,), ("left",)),)}, "none of the paper"),
        ({"seed_exceptions": (Seeds((0,), ("left",)), Seeds((1,), rows=("plain",)))}, "twice"),
        ({"claims": (_about(CLAIM, baseline="worst"),)}, "'worst'"),
        ({"claims": (_about(CLAIM, columns=("up",)),)}, "'up'"),
        ({"claims": (_about(CLAIM, beside="nom"),)}, "'nom'"),
        ({"units": {"nom": "%"}}, "'nom'"),
        ({"also": ("nom",), "units": {"nom": "furlongs"}}, "'furlongs'"),
    ],
)
def test_a_mistake_in_a_declaration_is_an_error(change: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(TABLE, **change)


def test_a_table_without_seeds_in_a_tier_has_no_part_in_it() -> None:
    assert TABLE.tiers == ("paper", "short", "smoke")
    rows = (PLAIN, BETTER, Row("base", seeds=(2,)))
    for seeds in ({"short": (1, 2), "smoke": (2,)}, {"paper": (), "short": (2,), "smoke": (0, 2)}):
        table = dataclasses.replace(TABLE, rows=rows, seeds=seeds)
        assert table.tiers == ("short", "smoke")
        assert table.cells("paper") == table.cells("paper", seeds=(0, 1)) == ()
        assert [cell.seed for cell in table.cells("short", row="base")] == [2, 2]
        assert {cell.seed for cell in table.cells("short")} == set(seeds["short"])
    with pytest.raises(ValueError, match="base"):
        dataclasses.replace(TABLE, rows=rows, seeds={"short": (1, 2), "smoke": (0,)})
    with pytest.raises(ValueError, match="no tier has seeds"):
        dataclasses.replace(TABLE, seeds={"paper": ()})


def test_rows_may_have_fewer_seeds_in_some_columns() -> None:
    other = Row("other", baseline=True)
    table = dataclasses.replace(
        TABLE,
        rows=(PLAIN, BETTER, other, Row("base", seeds=(0,))),
        seed_exceptions=(
            Seeds((0, 1), ("right",), ("plain",)),
            Seeds((), ("left",), ("other",), tiers=("paper", "short")),
            Seeds((2,), ("right",), ("other",)),
        ),
    )
    seeds: dict[str, list[int]] = {}
    for cell in table.cells("paper"):
        seeds.setdefault(f"{cell.row} {cell.column}", []).append(cell.seed)
    every = {"plain left": [0, 1, 2], "better left": [0, 1, 2], "better right": [0, 1, 2]}
    some = {"plain right": [0, 1], "other right": [2], "base left": [0], "base right": [0]}
    assert seeds == every | some
    short = [(cell.row, cell.column) for cell in table.cells("short")]
    assert ("other", "left") not in short
    assert ("other", "right") in short
    assert [cell.row for cell in table.cells("smoke")] == ["plain", "better", "other", "base"]
    # Whoever names seeds gets them, but not where the row has no part.
    assert [cell.seed for cell in table.cells(row="plain", column="right", seeds=(7,))] == [7]
    assert not table.cells(row="other", column="left", seeds=(0,))


def test_changes_of_a_row_in_one_column_are_applied_last() -> None:
    tuned = Row(
        "tuned",
        {"offset": 2.0, "steps": 4},
        in_columns={"right": {"offset": 3.0}, "left": {"offset": 9.0, "steps": 5}},
    )
    table = dataclasses.replace(
        TABLE,
        rows=(PLAIN, BETTER, tuned),
        columns=(*TABLE.columns, Column("middle", {"offset": 1.0})),
    )

    def numbers(tier: Tier, column: str) -> tuple[float, int]:
        (config,) = (c.config for c in table.cells(tier, row="tuned", column=column, seeds=(0,)))
        return config.offset, config.steps

    assert numbers("paper", "left") == (9.0, 5)
    assert numbers("paper", "right") == (3.0, 4)
    assert numbers("paper", "middle") == (2.0, 4)
    assert numbers("short", "left") == (9.0, 5)
    # The smoke tier has no such column: the first one that the row names stands for all.
    assert numbers("smoke", "embedded sample") == (3.0, 2)
    assert table.cells("paper", row="plain") == TABLE.cells("paper", row="plain") + table.cells(
        "paper", row="plain", column="middle"
    )


def test_undeclared_rows_and_columns_cannot_be_selected() -> None:
    assert len(TABLE.cells("paper", row="PLAIN", column="Left", seeds=(9,))) == 1
    with pytest.raises(UserError, match="'worse'"):
        TABLE.cells("paper", row="worse")
    with pytest.raises(UserError, match="'middle'"):
        TABLE.cells("paper", column="middle")


def test_canonical_form() -> None:
    value = {"b": (1, 2.5), "a": run_key, "c": CLAIM}
    assert canonical(value)["a"] == "run_key"
    assert canonical(value)["b"] == [1, 2.5]
    assert canonical(value)["c"]["comparisons"][0]["columns"] == ["left", "right"]
    assert canonical(InitialWeights(Path("anywhere"), "ab")) == {"sha256": "ab"}
    assert canonical_json({"b": 1, "a": 2}) == '{\n  "a": 2,\n  "b": 1\n}\n'
    learned = torch.nn.Parameter(torch.tensor(0.5))
    for value in (object(), learned, torch.zeros(500)):
        with pytest.raises(TypeError) as caught:
            canonical({"x": value})
        assert len(str(caught.value)) < 300


def test_the_key_of_a_cell_is_that_of_its_configuration() -> None:
    table = tables_of("graph")["mmcl"][0]
    for cell in (*table.cells(seeds=(0, 10, 123)), *table.cells("smoke")):
        assert cell.config == dataclasses.replace(cell.config)
        assert cell.config.seed == cell.seed
        assert cell.key == run_key(cell.tier, canonical(cell.config))
        assert cell.content == canonical(cell.config)


def test_slug() -> None:
    assert slug("CLLR, l2,1") == "cllr-l2-1"
    assert slug("GraphCL + DP, mean") == "graphcl-dp-mean"
    assert slug("  REDDIT-BINARY ") == "reddit-binary"


def test_load_published(tmp_path: Path) -> None:
    file = tmp_path / "paper.toml"
    text = """
        paper = "A paper"
        [t]
        label = "Table 1"
        title = "Things"
        statistic = "mean"
        columns = ["a", "b"]
        [t.rows.x]
        mean = [1.5, nan]
        std = [nan, nan]
        """
    file.write_text(text)
    published = load_published(file, "t")
    assert published.source == "A paper, Table 1"
    assert published.rows == {"x": (Value(1.5, None), None)}
    for new, old, problem in (("[1.5]", "[1.5, nan]", "t: x"), ("titel", "title", "'title'")):
        wrong = tmp_path / f"{new}.toml"  # a file is read once, so each has its own
        wrong.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=problem):
            load_published(wrong, "t")


@pytest.mark.parametrize(
    ("label", "swingup", "walk"),
    [
        ("CURL", [678.02, 446.17, 587.99], [482.83, 385.23]),
        ("without the contrastive step, same crops", [454.47, 240.54, 463.26], [241.28, 360.96]),
    ],
)
def test_the_rerun_of_curl_is_the_mean_of_its_seeds(
    label: str, swingup: list[float], walk: list[float]
) -> None:
    published = load_published(ROOT / "rl/published/references.toml", "curl-rerun")
    assert published.columns == ("Swingup", "Walk")
    for value, seeds in zip(published.rows[label], (swingup, walk), strict=True):
        assert value == Value(round(statistics.fmean(seeds), 2), round(statistics.stdev(seeds), 2))
        assert ", ".join(map(str, seeds)) in published.notes[label]
    assert "n = 3 on Swingup, n = 2 on Walk" in published.statistic


def test_load_notes(tmp_path: Path) -> None:
    file = tmp_path / "notes.toml"
    file.write_text('long = """\nTwo\nlines."""\nother = "One."\n')
    notes = load_notes(file)
    assert notes.lines("long  other") == ("Two lines.", "One.")
    assert notes.text("other long") == "One. Two lines."
    assert notes.text("") == ""
    with pytest.raises(ValueError, match="'short'"):
        notes.lines("long short")


def test_columns_of_one_run_have_one_address() -> None:
    cells = SHARED.cells("short", row="plain")
    assert [(cell.column, cell.run_name, cell.address) for cell in cells] == [
        ("left", "both", "short/toy/shared/table-1/plain/both/seed-0"),
        ("norm", "both", "short/toy/shared/table-1/plain/both/seed-0"),
        ("right", "right", "short/toy/shared/table-1/plain/right/seed-0"),
    ]
    assert cells[0].config == cells[1].config
    for column, columns in (("both", ["left", "norm"]), ("norm", ["norm"])):
        selected = SHARED.cells(row="plain", column=column, seeds=(0,))
        assert [cell.column for cell in selected] == columns
