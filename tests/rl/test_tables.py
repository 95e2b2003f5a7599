"""The control tables: what the gate does not hold of them, and what every row trains.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch

from rl.agent import make_criterion
from rl.config import Config, ImitationConfig
from rl.tables import (
    BASE_OF,
    BELOW_A_BASELINE,
    LABELS,
    TABLE_4,
    TABLE_4_IMITATION,
    TABLE_4_PROBE,
    TABLE_5,
    TABLE_5_IMITATION,
    TABLE_5_PROBE,
    TABLES,
    UNCLAIMED,
)
from shared import Objective, query_key
from shared.experiment.methods import ALPHA, OVER_BATCH
from shared.experiment.records import read_records
from shared.experiment.tables import Table
from shared.report.measuring import highest
from tests.measured import measure

RESULTS = Path(__file__).parents[2] / "results"
EVERY = tuple(itertools.chain.from_iterable(TABLES.values()))


def config_of(table: Table, row: str) -> Config:
    config = table.cells(table.tiers[0], row=row, column="Swingup")[0].config
    assert isinstance(config, Config)
    return config


# What is declared


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.address)
def test_every_row_states_its_own_deviation(table: Table) -> None:
    """No published row is the paper's exact setting, and two readings of one give two reasons."""
    assert all(row.deviation for row in table.rows)
    assert len({row.deviation for row in table.rows}) == len(table.rows)
    # What is about an agent is not said of a row that has none.
    evaluated = any("Evaluated every" in row.deviation for row in table.rows)
    assert evaluated is (table.tiers[0] == "paper")


@pytest.mark.parametrize(
    ("lmcl", "cllr"),
    [
        (TABLE_5, TABLE_4),
        (TABLE_5_PROBE, TABLE_4_PROBE),
        (TABLE_5_IMITATION, TABLE_4_IMITATION),
    ],
)
def test_both_papers_share_the_runs_of_equal_rows(lmcl: Table, cllr: Table) -> None:
    common = {row.label for row in lmcl.rows} & {row.label for row in cllr.rows}
    assert {"CURL", "CURL, cosine", "DCL", "HCL"} < common
    for tier in lmcl.tiers:
        for label in common:
            one, other = ({c.key for c in t.cells(tier, row=label)} for t in (lmcl, cllr))
            assert one == other


@pytest.mark.parametrize("table", [TABLE_5_IMITATION, TABLE_4_IMITATION], ids=lambda t: t.address)
def test_an_imitation_runs_what_its_claims_compare(table: Table) -> None:
    (claims,) = (each.claims for each in TABLES[table.paper] if each.name == table.name)
    comparisons = [each for claim in claims for each in claim.comparisons]
    claimed = {label for each in comparisons for label in (each.better, each.than)}
    assert not claimed & set(UNCLAIMED)
    rows = {row.label: row for row in table.rows}
    for each in comparisons:
        run = [c.label for c in table.columns if table.seeds_of("short", rows[each.better], c)]
        assert each.columns == tuple(run)
        assert each.beside == "action_r2"
        assert BASE_OF.get(each.better, each.than) == each.than
    for cell in table.cells("short"):
        assert isinstance(cell.config, ImitationConfig)
        assert cell.config.material_seed == 0  # expert and frames are the same for all seeds


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.address)
def test_a_gain_is_credited_to_a_method_whose_rows_differ_in_nothing_else(table: Table) -> None:
    """Without penalties and projection, a row with the method is the one it is compared with."""
    methods = ("lmcl-table-5", "cllr-table-4", "distance-polarization", "low-rank")
    for claim in (each for each in table.claims if any(name in each.id for name in methods)):
        for each in claim.comparisons:
            (config, without) = (
                table.cells(table.tiers[0], row=label, column=each.columns[0])[0].config
                for label in (each.better, each.than)
            )
            assert isinstance(config, Config)
            plain = Objective(config.objective.loss)
            assert dataclasses.replace(config, objective=plain) == without


@pytest.mark.parametrize("table", [TABLE_5, TABLE_4], ids=lambda table: table.address)
def test_the_largest_published_gain_is_told(table: Table) -> None:
    mean = {label: [v.mean for v in row if v] for label, row in table.published.rows.items()}
    gains = [
        with_method - without
        for label, row in mean.items()
        if "(" in label
        for with_method, without in zip(row, mean[label[5:].partition("+")[0]], strict=True)
    ]
    assert any(f"without the method is {max(gains):g}." in note for note in table.notes)


def test_tables_say_what_alpha_over_the_batch_and_which_precision_their_runs_have() -> None:
    label = f"CLLR(DCL+l21-norm){OVER_BATCH}"
    _, probe, imitation = TABLES["cllr"]
    for table in (probe, imitation):
        config = table.cells("short", row=label, column="Easy")[0].config
        assert isinstance(config, Config)
        assert config.objective.projection is not None
        assert 8 * config.objective.projection.kwargs["alpha"] == ALPHA / config.batch_size
        assert any("alpha = 10 / 512, an eighth of 10 / 64" in note for note in table.notes)
        assert any("alpha = 10 / 512" in text for text in table.setting("short").differences)
        (row,) = (row for row in table.rows if row.label == label)
        assert "batch size of the paper scale (alpha = 10 / 512)" in row.deviation
    for table in (imitation, TABLES["lmcl"][2]):
        assert config_of(table, "DCL").precision == "bfloat16_convolutions"
        for told in (table.notes, table.setting("short").differences):
            assert any("convolutions in bfloat16" in text for text in told)


def test_rows_said_to_lie_below_a_trivial_baseline_do_so_in_the_committed_records() -> None:
    found = measure(TABLE_5_IMITATION, "short", read_records(RESULTS))
    below: dict[str, tuple[str, ...]] = {}
    for place, label in enumerate(LABELS):
        column = [cells[place] for cells in found.cells]
        trivial = highest((cell for cell in column if cell.row.baseline), "return")
        assert trivial is not None
        for cell in column:
            if cell.row.label in BELOW_A_BASELINE and not cell.missing:
                assert cell.summary is not None
                if cell.summary.mean < trivial[0]:
                    below[cell.row.label] = (*below.get(cell.row.label, ()), label)
    assert below == BELOW_A_BASELINE


# What every row trains


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config_of(table, row.label), id=f"{table.name}, {row.label}")
        for table in (TABLE_5, TABLE_4)
        for row in table.rows
        if table is TABLE_5 or row.label.startswith("CLLR")
    ],
)
def test_the_objective_of_every_row_is_defined_for_its_scores(config: Config) -> None:
    query, key = torch.randn(2, 10, 50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss, _ = make_criterion(config)(query_key(query, key))
    loss.backward()
    assert torch.isfinite(loss)
    assert loss != 0
