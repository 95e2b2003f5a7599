"""The control tables: what is in their rows, what they claim, and what every row trains."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl.config import TASKS, Config, ImitationConfig
from rl.tables import (
    AGENTS,
    BELOW_A_FLOOR,
    F_RATIO,
    LABELS,
    LEARNING_GATE,
    ON_ALL_TASKS,
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
from shared import (
    Objective,
    cosine,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
    max_margin,
    query_key,
    term,
)
from shared.experiment.records import read_records
from shared.experiment.tables import Table, Tier, Value, canonical_json
from shared.objective import Similarity
from shared.report.files import markdown
from shared.report.measuring import measure, trivial_baseline_of
from shared.report.statistics import seeds_for

RESULTS = Path(__file__).parents[2] / "results"
RETURNS = (TABLE_5, TABLE_4)
PROBES = (TABLE_5_PROBE, TABLE_4_PROBE)
EVERY = (*RETURNS, *PROBES)
BASES = ("CURL", "DCL", "HCL")
DEBIASED = {"temperature": 0.1, "tau_plus": 0.01}
REPEATS = {"Spin": 2, "Swingup": 8, "Easy": 4, "Run": 4, "Walk": 2, "Catch": 4}
tables = pytest.mark.parametrize("table", EVERY, ids=lambda table: table.address)
returns = pytest.mark.parametrize("table", RETURNS, ids=lambda table: table.address)
probes = pytest.mark.parametrize("table", PROBES, ids=lambda table: table.address)


def full_tier(table: Table) -> Tier:
    """The tier other than smoke that the table has a part in."""
    return "paper" if table in RETURNS else "short"


def config_of(table: Table, row: str, column: str = "Swingup", tier: Tier | None = None) -> Config:
    cell = table.cells(tier or full_tier(table), row=row, column=column)[0]
    assert isinstance(cell.config, Config)
    return cell.config


def smoke_of(table: Table, row: str) -> Config:
    (cell,) = table.cells("smoke", row=row)
    assert isinstance(cell.config, Config)
    return cell.config


def bilinear(query: Tensor, key: Tensor) -> Tensor:
    weight = torch.linspace(0, 1, query.shape[1] * key.shape[1])
    return query @ weight.view(query.shape[1], key.shape[1]) @ key.T


SIMILARITIES: dict[str, Similarity] = {"cosine": cosine, "bilinear": bilinear}


# What is declared


def test_both_papers_are_there_as_returns_and_as_a_probe_and_a_gate_before_them() -> None:
    assert {paper: [table.address for table in some] for paper, some in TABLES.items()} == {
        "lmcl": ["rl/lmcl/table-5", "rl/lmcl/table-5-state-probe", "rl/lmcl/table-5-imitation"],
        "cllr": ["rl/cllr/table-4", "rl/cllr/table-4-state-probe", "rl/cllr/table-4-imitation"],
        "curl": ["rl/curl/learning-gate", "rl/curl/returns-on-a-cpu"],
    }
    # Those and no others have policies to film.
    for paper, some in TABLES.items():
        assert AGENTS[paper] == tuple(
            t for t in some if t.metric in ("return", "mean_return") and "imitation" not in t.name
        )
    assert [table.section for table in RETURNS] == [
        "Chen et al. 2021 (LMCL), Table 5",
        "Chen et al. 2022 (CLLR), Table 4",
    ]
    for table in RETURNS:
        assert (table.metric, table.protocol) == ("return", "dmc-return-v1")
        assert (table.also, table.aggregates) == ((), ("interquartile mean",))
    for table in PROBES:
        assert (table.metric, table.protocol) == ("r2", "state-probe-v1")
        assert (table.unit, table.also) == ("% of variance", ("r2_position", "r2_velocity"))
        assert table.aggregates == ()


def test_the_rows_of_lmcl() -> None:
    assert {row.label: row.published for row in TABLE_5.rows} == {
        "random policy": None,
        "SAC on the same crops": None,
        "CURL": "CURL",
        "CURL, single step": "CURL",
        "CURL, batch 128": "CURL",
        "CURL, cosine": "CURL",
        "DCL": "DCL",
        "HCL": "HCL",
        "LMCL(CURL+DP)": "LMCL(CURL+DP)",
        "LMCL(DCL+DP)": "LMCL(DCL+DP)",
        "LMCL(HCL+DP)": "LMCL(HCL+DP)",
        "LMCL(CURL+DP), mean": "LMCL(CURL+DP)",
        "LMCL(CURL+DP), cosine": "LMCL(CURL+DP)",
        "DCL, raw scores": None,
        "HCL, raw scores": None,
        "margins": None,
        "MMCL": None,
    }


def test_the_rows_of_cllr() -> None:
    assert {row.label: row.published for row in TABLE_4.rows} == {
        "random policy": None,
        "SAC on the same crops": None,
        "CURL": "CURL",
        "CURL, cosine": "CURL",
        "DCL": "DCL",
        "HCL": "HCL",
        **{
            f"CLLR({base}+{name}){suffix}": f"CLLR({base}+)"
            for base in BASES
            for name in ("l21-norm", "nuclear-norm")
            for suffix in ("", ", norm over batch")
        },
        "CLLR(CURL+), authors' form": "CLLR(CURL+)",
    }


@pytest.mark.parametrize(("table", "probe"), list(zip(RETURNS, PROBES, strict=True)))
def test_the_rows_of_a_probe_are_those_that_train_by_contrast(table: Table, probe: Table) -> None:
    left_out = ("random policy", "SAC on the same crops", "CURL, batch 128")
    contrastive = [row for row in table.rows if row.label not in left_out]
    assert [row.label for row in probe.rows] == [
        "raw pixels",
        "untrained encoder",
        *(row.label for row in contrastive),
    ]
    for row, of_returns in zip(probe.rows[2:], contrastive, strict=True):
        assert row.changes == of_returns.changes
        assert row.published is None
    # What is about the agent is not said of a row that has none.
    assert "Evaluated" not in " ".join(row.deviation for row in probe.rows)
    assert "Evaluated" in " ".join(row.deviation for row in table.rows)


@tables
def test_every_row_says_what_it_is(table: Table) -> None:
    """No published row is the paper's exact setting, and two readings of one give two reasons."""
    assert all(row.deviation for row in table.rows)
    assert len({row.deviation for row in table.rows}) == len(table.rows)


def test_seeds() -> None:
    for table in RETURNS:
        assert table.seeds == {"paper": (0, 1, 2), "short": (), "smoke": (0,)}
        assert table.tiers == ("paper", "smoke")
        assert len(table.cells("paper")) == 3 * 6 * len(table.rows)
        assert table.cells("short") == ()
    for table in PROBES:
        assert table.seeds == {"paper": (), "short": (0, 1, 2), "smoke": (0,)}
        assert table.tiers == ("short", "smoke")
        assert len(table.cells("short")) == 3 * 6 * len(table.rows)
        assert table.cells("paper") == ()


@tables
def test_rows_of_one_table_are_different_runs(table: Table) -> None:
    for tier in table.tiers:
        texts = {}
        for cell in table.cells(tier, seeds=(0,)):
            texts[cell.row, cell.column] = text = canonical_json(cell.config)
            assert json.loads(text)["seed"] == 0
        # On embedded data all batches are small.
        equal = 1 if (table, tier) == (TABLE_5, "smoke") else 0
        assert len(set(texts.values())) == len(table.rows) * len(table.columns_of(tier)) - equal


@tables
def test_a_table_without_results_can_be_shown(table: Table) -> None:
    for tier in table.tiers:
        text = markdown(measure(table, tier, [], {}))
        for row in table.rows:
            assert f"| {row.label} |" in text
        for reference in table.references:
            assert reference.title in text


# Columns


@tables
def test_the_tasks_are_those_of_curl_s_table_3(table: Table) -> None:
    assert [column.label for column in table.columns] == list(REPEATS) == list(LABELS)
    configs = [config_of(table, "CURL", column) for column in LABELS]
    assert tuple(config.task for config in configs) == TASKS
    assert [config.action_repeat for config in configs] == list(REPEATS.values())
    rates = [1e-3, 1e-3, 1e-3, 2e-4, 1e-3, 1e-3]
    assert [config.learning_rate for config in configs] == rates
    for config in configs:
        assert config.episode_steps % config.action_repeat == 0
        assert config.environment_steps % config.action_repeat == 0


def test_planned_minutes_are_those_of_a_cpu() -> None:
    minutes = [column.minutes for column in TABLE_5.columns]
    # 8 seconds for each of 49,000, 11,500 and 24,000 updates.
    assert minutes == [6533, 1533, 3200, 3200, 6533, 3200]
    assert [column.gigabytes for column in TABLE_4.columns] == [4.5, 3.4, 3.8, 3.8, 4.5, 3.8]
    assert all(column.minutes == 2 for column in TABLE_5_PROBE.columns)


# Settings


@returns
def test_the_default_of_the_paper_tier_is_curl(table: Table) -> None:
    assert config_of(table, "CURL") == Config()
    assert Config().batch_size == 512
    assert Config().double_step


def test_equal_rows_of_both_papers_are_equal_runs() -> None:
    base = {"CURL", "CURL, cosine", "DCL", "HCL"}
    for lmcl, cllr, controls in (
        (TABLE_5, TABLE_4, {"random policy", "SAC on the same crops"}),
        (TABLE_5_PROBE, TABLE_4_PROBE, {"raw pixels", "untrained encoder"}),
    ):
        common = {row.label for row in lmcl.rows} & {row.label for row in cllr.rows}
        assert common == base | controls
        for tier in lmcl.tiers:
            for label in common:
                of_lmcl = [cell.config for cell in lmcl.cells(tier, row=label)]
                assert of_lmcl == [cell.config for cell in cllr.cells(tier, row=label)]


@probes
def test_a_probe_changes_batch_precision_and_protocol_alone(table: Table) -> None:
    of_returns = TABLE_5 if table is TABLE_5_PROBE else TABLE_4
    changed: dict[str, Any] = {
        "protocol": "state-probe-v1",
        "batch_size": 64,
        "precision": "bfloat16",
    }
    for row in table.rows[2:]:
        for column in LABELS:
            config = config_of(of_returns, row.label, column)
            changed_config = dataclasses.replace(config, **changed)
            assert canonical_json(config_of(table, row.label, column)) == canonical_json(
                changed_config
            )
    curl = config_of(table, "CURL")
    assert (curl.probe_episodes, curl.probe_test_episodes, curl.probe_steps) == (100, 25, 20)
    assert (curl.probe_updates, curl.probe_input) == (500, "embedding")
    # "Every stack is seen 16 times."
    stacks = curl.probe_episodes * curl.probe_steps
    assert curl.probe_updates * curl.batch_size == 16 * stacks
    assert config_of(table, "untrained encoder") == dataclasses.replace(curl, train=False)
    raw = dataclasses.replace(curl, train=False, probe_input="pixels")
    assert config_of(table, "raw pixels") == raw


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("random policy", {"train": False}),
        ("SAC on the same crops", {"contrastive": False}),
        ("CURL, single step", {"double_step": False}),
        ("CURL, batch 128", {"batch_size": 128}),
    ],
)
def test_controls_change_one_thing(row: str, changes: dict[str, Any]) -> None:
    assert config_of(TABLE_5, row) == dataclasses.replace(Config(), **changes)


@pytest.mark.parametrize(
    ("row", "function", "similarity", "numbers"),
    [
        ("CURL", info_nce, "bilinear", {"temperature": 1.0}),
        ("CURL, cosine", info_nce, "cosine", {"temperature": 0.1}),
        ("DCL", debiased_nce, "cosine", DEBIASED),
        ("HCL", hard_nce, "cosine", {**DEBIASED, "beta": 1.0}),
        (
            "DCL, raw scores",
            debiased_nce,
            "bilinear",
            {"temperature": 1.0, "tau_plus": 0.01, "floor": "minimum"},
        ),
        (
            "HCL, raw scores",
            hard_nce,
            "bilinear",
            {"temperature": 1.0, "tau_plus": 0.01, "beta": 1.0, "floor": "minimum"},
        ),
        ("margins", margin_nce, "cosine", {"temperature": 0.1, "angular": 0.5, "subtractive": 0.4}),
        ("MMCL", max_margin, "cosine", {"gamma": 0.5, "cost": 100.0, "ridge": 0.1}),
    ],
)
def test_losses(
    row: str, function: Callable[..., Tensor], similarity: str, numbers: dict[str, Any]
) -> None:
    for table in (TABLE_5, TABLE_5_PROBE):
        config = config_of(table, row)
        assert config.objective == Objective(term(function, **numbers))
        assert config.similarity == similarity


@pytest.mark.parametrize(
    ("base", "row", "reduction"),
    [
        ("CURL", "LMCL(CURL+DP)", "anchor_sum"),
        ("CURL", "LMCL(CURL+DP), mean", "mean"),
        ("CURL, cosine", "LMCL(CURL+DP), cosine", "anchor_sum"),
        ("DCL", "LMCL(DCL+DP)", "anchor_sum"),
        ("HCL", "LMCL(HCL+DP)", "anchor_sum"),
    ],
)
def test_lmcl_adds_its_penalty_to_the_base_and_nothing_else(
    base: str, row: str, reduction: str
) -> None:
    plain, polarized = config_of(TABLE_5, base), config_of(TABLE_5, row)
    penalty = term(distance_polarization, weight=0.1, lower=0.1, upper=0.5, reduction=reduction)
    objective = dataclasses.replace(plain.objective, penalties=(penalty,))
    assert polarized == dataclasses.replace(plain, objective=objective)


@pytest.mark.parametrize(("name", "norm"), [("l21-norm", "l21"), ("nuclear-norm", "nuclear")])
@pytest.mark.parametrize(("suffix", "alpha"), [("", 10.0), (", norm over batch", 10 / 512)])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("table", [TABLE_4, TABLE_4_PROBE], ids=lambda table: table.name)
def test_cllr_adds_its_projection_to_the_base_and_nothing_else(
    table: Table, base: str, suffix: str, alpha: float, name: str, norm: str
) -> None:
    low_rank = config_of(table, f"CLLR({base}+{name}){suffix}")
    projection = low_rank.objective.projection
    assert projection is not None
    assert (projection.weight, projection.options) == (0.1, {"norm": norm, "alpha": alpha})
    objective = dataclasses.replace(low_rank.objective, projection=None)
    assert dataclasses.replace(low_rank, objective=objective) == config_of(table, base)


def test_the_authors_form_has_a_quarter_of_the_dimensions() -> None:
    config = config_of(TABLE_4, "CLLR(CURL+), authors' form")
    projection = config.objective.projection
    assert projection is not None
    assert projection.weight == 0.1
    assert projection.options == {"norm": "none", "alpha": 0.0, "form": "authors", "rows": 12}
    assert config.latent // 4 == 2048 // 4 // 512 * 12
    objective = dataclasses.replace(config.objective, projection=None)
    assert dataclasses.replace(config, objective=objective) == Config()


@tables
def test_smoke_is_the_real_run_smaller(table: Table) -> None:
    assert len(table.cells("smoke")) == len(table.rows)
    small = ("batch_size", "frame_size", "crop", "latent", "environment_steps", "probe_updates")
    for row in table.rows:
        smoke, full = smoke_of(table, row.label), config_of(table, row.label)
        assert smoke.crop <= smoke.frame_size
        assert smoke.environment_steps % smoke.action_repeat == 0
        for name in small:
            assert getattr(smoke, name) < getattr(full, name)
        for name in ("objective", "similarity", "double_step", "contrastive", "train", "protocol"):
            assert getattr(smoke, name) == getattr(full, name)
        assert smoke.probe_input == full.probe_input


# Claims


def test_what_the_notes_say_of_the_printed_numbers() -> None:
    printed = {**TABLE_5.published.rows, **TABLE_4.published.rows}
    assert len(printed) == 9
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
    for base in BASES:
        lmcl, cllr = printed[f"LMCL({base}+DP)"], printed[f"CLLR({base}+)"]
        run, walk = LABELS.index("Run"), LABELS.index("Walk")
        assert lmcl[run] == cllr[run]
        assert lmcl[walk] != cllr[walk]
        assert (lmcl[walk] or Value(0)).mean == (cllr[walk] or Value(1)).mean
        assert TABLE_5.published.rows[base] == TABLE_4.published.rows[base]
    curl = next(reference for reference in TABLE_5.references if "100K" in reference.source)
    higher = [
        label
        for label, ours, theirs in zip(LABELS, printed["CURL"], curl.rows["CURL"], strict=True)
        if ours and theirs and ours.mean > theirs.mean
    ]
    assert higher == ["Swingup", "Easy", "Walk", "Catch"]


@returns
def test_what_the_note_says_of_variances(table: Table) -> None:
    """F with 2 and 2 degrees of freedom is a closed form: P(F > x) = 1 / (1 + x)."""
    assert 1 / (1 + F_RATIO) == 0.025
    method = "LMCL(CURL+DP)" if table is TABLE_5 else "CLLR(CURL+)"
    ratios = [
        ((one.std or 0) / (other.std or 1)) ** 2
        for one, other in zip(
            table.published.rows["CURL"], table.published.rows[method], strict=True
        )
        if one and other
    ]
    assert len(ratios) == 6
    assert max(ratios) < F_RATIO
    note = table.notes[-1]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times" in note
    assert note.startswith(f"Said of {table.section.rpartition(', ')[2]}, too")


# Questions of our own


@pytest.mark.parametrize(
    ("table", "of_returns"), [(TABLE_5_IMITATION, TABLE_5), (TABLE_4_IMITATION, TABLE_4)]
)
def test_an_imitation_has_the_contrastive_rows_of_the_returns(
    table: Table, of_returns: Table
) -> None:
    assert (table.metric, table.unit) == ("return", "points of 1000")
    assert {name: table.unit_of(name) for name in table.also} == dict.fromkeys(
        ("action_r2", "r2", "r2_position", "r2_velocity"), "% of variance"
    )
    base = ["random actions", "raw pixels", "untrained encoder", "state expert"]
    assert [row.label for row in table.rows[:4]] == base
    assert [row.label for row in table.rows if row.baseline] == base[:3]
    left_out = ("random policy", "SAC on the same crops", "CURL, batch 128")
    contrastive = [row for row in of_returns.rows if row.label not in left_out]
    assert [row.label for row in table.rows[4:]] == [row.label for row in contrastive]
    for row, other in zip(table.rows[4:], contrastive, strict=True):
        assert row.changes == other.changes
        config = table.cells("short", row=row.label)[0].config
        assert isinstance(config, ImitationConfig)
        assert config.material_seed == 0
    cells = table.cells("short", seeds=(0,))
    assert len({canonical_json(cell.config) for cell in cells}) == len(cells)
    slow = {cell.column for cell in cells if cell.config.expert_decisions == 60_000}
    assert slow == {"Spin", "Easy", "Run", "Walk"}
    (claims,) = (each.claims for each in TABLES[table.paper] if each.name == table.name)
    comparisons = [each for claim in claims for each in claim.comparisons]
    claimed = {label for each in comparisons for label in (each.better, each.than)}
    assert not claimed & set(UNCLAIMED)
    base_of = {each.better: each.than for each in comparisons if each.better != "CURL"}
    for row in table.rows:
        seeds = {
            column.label: len(table.seeds_of("short", row, column)) for column in table.columns
        }
        if row.label in UNCLAIMED:
            assert seeds == dict.fromkeys(LABELS, 0) | {"Catch": 2}
        elif row.label in ON_ALL_TASKS or row.label not in base_of:
            assert seeds == dict.fromkeys(LABELS, 4)
        else:
            unasked = BELOW_A_FLOOR.get(base_of[row.label], ())
            assert seeds == dict.fromkeys(LABELS, 4) | dict.fromkeys(unasked, 0)
    for each in comparisons:
        better = next(row for row in table.rows if row.label == each.better)
        run = [column for column in table.columns if table.seeds_of("short", better, column)]
        assert each.columns == tuple(column.label for column in run)
        assert each.beside == "action_r2"
    # What both papers' tables ask alike is run once.
    common = {row.label for row in TABLE_5_IMITATION.rows} & {
        row.label for row in TABLE_4_IMITATION.rows
    }
    assert common == {*base, "CURL", "CURL, cosine", "DCL", "HCL"}
    for label in common:
        one, other = (
            [cell.config for cell in each.cells("short", row=label)]
            for each in (TABLE_5_IMITATION, TABLE_4_IMITATION)
        )
        assert one == other


def test_what_lies_below_a_floor_does_so_in_the_committed_records() -> None:
    found = measure(TABLE_5_IMITATION, "short", read_records(RESULTS), {})
    below: dict[str, tuple[str, ...]] = {}
    for place, label in enumerate(LABELS):
        column = [cells[place] for cells in found.cells]
        floor = trivial_baseline_of(column, "return")
        assert floor is not None
        for cell in column:
            if cell.row.label in BELOW_A_FLOOR and not cell.missing:
                assert cell.summary is not None
                if cell.summary.mean < floor[1]:
                    below[cell.row.label] = (*below.get(cell.row.label, ()), label)
    assert below == BELOW_A_FLOOR


def test_the_short_tier_of_returns_is_the_gate_s_agent_on_two_tasks() -> None:
    table = RETURNS_ON_A_CPU
    assert [column.label for column in table.columns] == ["Swingup", "Catch"]
    assert [row.label for row in table.rows] == [
        "random policy",
        "SAC on the same crops",
        "CURL",
        "LMCL(CURL+DP)",
        "LMCL(DCL+DP)",
        "CLLR(CURL+nuclear-norm), norm over batch",
    ]
    assert table.seeds["short"] == tuple(range(8))
    assert len(table.cells("short")) == 6 * 2 * 8
    gate = LEARNING_GATE.cells("short", row="CURL, batch 128, bfloat16 convolutions")[0].config
    (curl,) = table.cells("short", row="CURL", column="Swingup", seeds=(0,))
    # Another protocol, so that the gate's run, which lacks the mean, is not taken for this one.
    assert isinstance(gate, Config)
    assert curl.config == dataclasses.replace(gate, protocol="dmc-return-v2")
    for row in ("LMCL(CURL+DP)", "LMCL(DCL+DP)"):
        ours, paper_s = config_of(table, row, tier="short"), config_of(TABLE_5, row)
        assert (ours.objective, ours.similarity) == (paper_s.objective, paper_s.similarity)
    projection = config_of(table, table.rows[-1].label, tier="short").objective.projection
    assert projection is not None
    assert projection.options == {"norm": "nuclear", "alpha": 10 / 128}
    # What the note says of a printed gain at a rerun's deviations.
    assert seeds_for(682 - 680, math.sqrt((117**2 + 126**2) / 2)) == 58014
    assert "some 58,000 seeds" in table.notes[-1]


# What every row trains


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config_of(table, row.label), id=f"{table.name}, {row.label}")
        for table in RETURNS
        for row in table.rows
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


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("margins", "margin_nce is defined for cosines only"),
        ("MMCL", "max_margin is defined for cosines only"),
        ("DCL", "debiased_nce's floor .* holds for cosines only"),
        ("LMCL(HCL+DP)", "hard_nce's floor .* holds for cosines only"),
    ],
)
def test_raw_scores_are_refused_where_they_have_no_meaning(row: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        config_of(TABLE_5, row).objective.build(50, bilinear)


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


def test_a_direction_is_kept_where_the_deviation_says_so() -> None:
    """alpha s + e (1 - s^2)^2 has a minimum below e, its value at s = 0, for e > 0.919 alpha."""
    sizes = torch.linspace(0, 1.5, 15001, dtype=torch.float64)
    for alpha in (10.0, 10 / 512):
        for factor, kept in ((0.915, False), (0.925, True)):
            energy = factor * alpha
            costs = alpha * sizes + energy * (1 - sizes**2) ** 2
            assert bool(costs.argmin() > 0) is kept
    assert int(50 / 9.19) == 5  # directions of |q|^2 = 50 that can exceed it
