"""The control tables: what the gate does not hold of them, and what every row trains.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

import itertools
import math
import statistics
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl.config import Config, ImitationConfig
from rl.tables import (
    AGENTS,
    BASE_OF,
    BELOW_A_BASELINE,
    COLUMNS,
    LABELS,
    LEARNING_GATE,
    RETURNS_ON_A_CPU,
    TABLE_4,
    TABLE_4_IMITATION,
    TABLE_4_PROBE,
    TABLE_5,
    TABLE_5_IMITATION,
    TABLE_5_PROBE,
    TABLES,
    UNCLAIMED,
)
from shared import cosine, query_key
from shared.experiment.records import read_records
from shared.experiment.tables import Table, Value
from shared.objective import Similarity
from shared.report.measuring import measure, trivial_baseline_of
from shared.report.statistics import seeds_for

RESULTS = Path(__file__).parents[2] / "results"
EVERY = tuple(itertools.chain.from_iterable(TABLES.values()))
BASES = ("CURL", "DCL", "HCL")


def config_of(table: Table, row: str) -> Config:
    config = table.cells(table.tiers[0], row=row, column="Swingup")[0].config
    assert isinstance(config, Config)
    return config


def bilinear(query: Tensor, key: Tensor) -> Tensor:
    weight = torch.linspace(0, 1, query.shape[1] * key.shape[1])
    return query @ weight.view(query.shape[1], key.shape[1]) @ key.T


SIMILARITIES: dict[str, Similarity] = {"cosine": cosine, "bilinear": bilinear}


# What is declared


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.address)
def test_every_row_states_its_own_deviation(table: Table) -> None:
    """No published row is the paper's exact setting, and two readings of one give two reasons."""
    assert all(row.deviation for row in table.rows)
    assert len({row.deviation for row in table.rows}) == len(table.rows)
    # What is about an agent is not said of a row that has none.
    evaluated = any("Evaluated every" in row.deviation for row in table.rows)
    assert evaluated is (table.tiers[0] == "paper")


def test_the_tables_whose_runs_have_policies_are_filmed() -> None:
    assert [table.name for table in itertools.chain.from_iterable(AGENTS.values())] == [
        "table-5",
        "table-4",
        "learning-gate",
        "returns-on-a-cpu",
    ]


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


def test_agents_act_for_whole_episodes_and_numbers_of_steps() -> None:
    for column in COLUMNS:
        repeat = column.changes["action_repeat"]
        assert Config().episode_steps % repeat == Config().environment_steps % repeat == 0


def test_a_probe_sees_every_stack_16_times() -> None:
    config = config_of(TABLE_5_PROBE, "CURL")
    stacks = config.probe_episodes * config.probe_steps
    assert config.probe_updates * config.batch_size == 16 * stacks


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


def test_what_lies_below_a_trivial_baseline_does_so_in_the_committed_records() -> None:
    found = measure(TABLE_5_IMITATION, "short", read_records(RESULTS), {})
    below: dict[str, tuple[str, ...]] = {}
    for place, label in enumerate(LABELS):
        column = [cells[place] for cells in found.cells]
        trivial = trivial_baseline_of(column, "return")
        assert trivial is not None
        for cell in column:
            if cell.row.label in BELOW_A_BASELINE and not cell.missing:
                assert cell.summary is not None
                if cell.summary.mean < trivial[1]:
                    below[cell.row.label] = (*below.get(cell.row.label, ()), label)
    assert below == BELOW_A_BASELINE


def test_returns_on_a_cpu_do_not_take_the_run_of_the_gate() -> None:
    """The gate's run lacks the mean return: another protocol keeps the two apart."""
    gate = LEARNING_GATE.cells("short", row=LEARNING_GATE.rows[1].label)[0]
    (curl,) = RETURNS_ON_A_CPU.cells("short", row="CURL", column="Swingup", seeds=(0,))
    assert curl.key != gate.key
    different = {name for name in curl.content if curl.content[name] != gate.content[name]}
    assert different == {"protocol"}


# What the notes state


def test_what_the_notes_state_of_the_printed_numbers() -> None:
    printed = {**TABLE_5.published.rows, **TABLE_4.published.rows}
    deviations = [value.std for row in printed.values() for value in row if value and value.std]
    assert len(deviations) == 54
    assert statistics.median(deviations) == 53
    gains = [
        high.mean - low.mean
        for method in ("LMCL({}+DP)", "CLLR({}+)")
        for base in BASES
        for high, low in zip(printed[method.format(base)], printed[base], strict=True)
        if high and low
    ]
    assert len(gains) == 36
    assert max(gains) == 42
    run, walk = LABELS.index("Run"), LABELS.index("Walk")
    for base in BASES:
        lmcl, cllr = printed[f"LMCL({base}+DP)"], printed[f"CLLR({base}+)"]
        assert lmcl[run] == cllr[run]
        assert lmcl[walk] != cllr[walk]
        assert (lmcl[walk] or Value(0)).mean == (cllr[walk] or Value(1)).mean
        assert TABLE_5.published.rows[base] == TABLE_4.published.rows[base]
    curl = next(reference for reference in TABLE_5.references if "100K" in reference.source)
    higher = [
        label
        for label, here, there in zip(LABELS, printed["CURL"], curl.rows["CURL"], strict=True)
        if here and there and here.mean > there.mean
    ]
    assert higher == ["Swingup", "Easy", "Walk", "Catch"]


@pytest.mark.parametrize(
    ("table", "method"),
    [(TABLE_5, "LMCL(CURL+DP)"), (TABLE_4, "CLLR(CURL+)")],
    ids=["lmcl", "cllr"],
)
def test_what_a_note_states_of_variances(table: Table, method: str) -> None:
    """F with 2 and 2 degrees of freedom is a closed form: P(F > x) = 1 / (1 + x)."""
    assert 1 / (1 + 39) == 0.025
    rows = table.published.rows
    ratios = [
        ((one.std or 0) / (other.std or 1)) ** 2
        for one, other in zip(rows["CURL"], rows[method], strict=True)
        if one and other
    ]
    assert len(ratios) == 6
    assert max(ratios) < 39
    note = table.notes[-1]
    assert table.section.rpartition(", ")[2] in note
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times" in note


def test_what_a_note_states_of_the_seeds_that_a_printed_gain_takes() -> None:
    assert seeds_for(682 - 680, math.sqrt((117**2 + 126**2) / 2)) == 58014
    assert "some 58,000 seeds" in RETURNS_ON_A_CPU.notes[-1]


def test_a_direction_is_kept_where_a_deviation_states_it() -> None:
    """alpha s + e (1 - s^2)^2 has a minimum below e, its value at s = 0, for e > 0.919 alpha."""
    sizes = torch.linspace(0, 1.5, 15001, dtype=torch.float64)
    for factor, kept in ((0.915, False), (0.925, True)):
        energy = factor * 10
        costs = 10 * sizes + energy * (1 - sizes**2) ** 2
        assert bool(costs.argmin() > 0) is kept
    assert int(50 / 9.19) == 5  # directions of |q|^2 = 50 that can exceed it


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
def test_the_objective_of_every_row_has_a_loss_and_a_gradient(config: Config) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(10, 50, generator=generator) for _ in range(2))
    query.requires_grad_()
    criterion = config.objective.build(config.latent, SIMILARITIES[config.similarity])
    loss, parts = criterion(query_key(query, key))
    loss.backward()
    assert torch.isfinite(loss)
    assert query.grad is not None
    assert torch.isfinite(query.grad).all()
    assert query.grad.abs().sum() > 0
    for penalty in config.objective.penalties:
        assert parts[penalty.function.__name__] > 0
    projection = config.objective.projection
    assert (criterion.projection is None) is (projection is None)
    if criterion.projection is not None and projection is not None:
        matrix = criterion.projection.matrix
        assert matrix.shape == (projection.options.get("rows", 50), 50)
        assert matrix.grad is not None
        assert matrix.grad.abs().sum() > 0


@pytest.mark.parametrize("row", ["CURL", "LMCL(CURL+DP)", "DCL, raw scores", "HCL, raw scores"])
def test_raw_scores_may_be_large(row: str) -> None:
    """A LayerNorm's q and k and a W of U[0, 1) give scores of tens and hundreds."""
    generator = torch.Generator().manual_seed(0)
    query, key = (3 * torch.randn(10, 50, generator=generator) for _ in range(2))
    assert bilinear(query, key).abs().max() > 100
    query.requires_grad_()
    loss, _ = config_of(TABLE_5, row).objective.build(50, bilinear)(query_key(query, key))
    loss.backward()
    assert torch.isfinite(loss)
    assert query.grad is not None
    assert torch.isfinite(query.grad).all()
