"""The text tables: what is in their rows, that columns share a run, and what every row trains."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import (
    Objective,
    context_window,
    cosine,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    inner_product,
    margin_nce,
    max_margin,
    term,
)
from shared.command.domains import find_cell
from shared.experiment.records import read_records
from shared.experiment.tables import TIERS, Published, Table, Tier, Value, canonical_json, changed
from shared.objective import Similarity
from shared.report.measuring import measure
from text.config import Config
from text.evaluation import WITHOUT_TREC
from text.neighbours import NEXT, PREVIOUS
from text.tables import (
    CLLR_ROWS,
    CLOSED,
    LMCL_ROWS,
    RAW_RATE,
    SMALL,
    TABLE_2,
    TABLE_2_BOOKCORPUS,
    TABLE_2_CLOSED,
    TABLE_2_SMALL,
    TABLE_4,
    TABLE_4_BOOKCORPUS,
    TABLE_4_CLOSED,
    TABLE_4_SMALL,
    TABLES,
    with_exchanged,
)

RESULTS = Path(__file__).parents[2] / "results"
EVERY = (TABLE_4, TABLE_4_BOOKCORPUS, TABLE_2, TABLE_2_BOOKCORPUS)
SMALL_TABLES = (TABLE_4_SMALL, TABLE_2_SMALL)
PAIRED = ((TABLE_4, TABLE_4_BOOKCORPUS), (TABLE_2, TABLE_2_BOOKCORPUS))
BASELINES = ["majority class", "tf-idf unigrams", "untrained encoder"]
SIMILARITIES: dict[str, Similarity] = {"cosine": cosine, "inner_product": inner_product}
DEBIASED = {"temperature": 0.1, "tau_plus": 0.01}
tables = pytest.mark.parametrize("table", EVERY, ids=lambda table: table.address)
small_tables = pytest.mark.parametrize("table", SMALL_TABLES, ids=lambda table: table.address)
closed_tables = pytest.mark.parametrize(
    "table", [TABLE_4_CLOSED, TABLE_2_CLOSED], ids=lambda table: table.address
)


def config_of(table: Table, row: str, tier: Tier = "paper") -> Config:
    config = table.cells(tier, row=row)[0].config
    assert isinstance(config, Config)
    return config


def configs_of(table: Table) -> list[Any]:
    """One configuration for each row."""
    return [
        pytest.param(config_of(table, row.label), id=f"{table.name}, {row.label}")
        for row in table.rows
    ]


def pairs_of(config: Config, scale: float = 1.0) -> tuple[Tensor, Tensor, Any]:
    """f and g of ten sentences from two chapters, and who is compared with whom."""
    generator = torch.Generator().manual_seed(0)
    f, g = (scale * torch.randn(10, 6, generator=generator) for _ in range(2))
    f.requires_grad_()
    g.requires_grad_()
    chapter = torch.tensor([0] * 6 + [1] * 4)
    return f, g, context_window(f, g, config.reach, document=chapter)


# What is declared


def test_both_papers_are_there_on_both_corpora() -> None:
    assert {paper: [table.name for table in some] for paper, some in TABLES.items()} == {
        "lmcl": ["table-4", "table-4-bookcorpus", "table-4-small", "table-4"],
        "cllr": ["table-2", "table-2-bookcorpus", "table-2-small", "table-2"],
    }
    assert TABLE_4_BOOKCORPUS.address == "text/lmcl/table-4-bookcorpus"
    assert TABLE_2.section == "Chen et al. 2022 (CLLR), Table 2"


def test_the_rows_of_lmcl() -> None:
    assert [row.label for row in TABLE_4.rows] == [
        *BASELINES,
        "QT",
        "QT, authors' zero diagonal",
        "QT, cosine",
        "DCL",
        "HCL",
        "LMCL(QT+DP)",
        "LMCL(QT+DP), mean",
        "LMCL(QT+DP), cosine",
        "LMCL(DCL+DP)",
        "LMCL(DCL+DP), mean",
        "LMCL(HCL+DP)",
        "LMCL(HCL+DP), mean",
        "DCL, raw scores",
        "margins",
        "MMCL",
    ]


def test_the_rows_of_cllr() -> None:
    assert [row.label for row in TABLE_2.rows] == [
        *BASELINES,
        "QT",
        "QT, cosine",
        "DCL",
        "HCL",
        "CLLR(DCL+l21-norm)",
        "CLLR(DCL+nuclear-norm)",
        "CLLR(DCL+l21-norm), norm over batch",
        "CLLR(DCL+nuclear-norm), norm over batch",
        "CLLR(QT+l21-norm), norm over batch",
        "CLLR(QT+nuclear-norm), norm over batch",
    ]


@tables
def test_seeds(table: Table) -> None:
    assert table.seeds == {"paper": (0, 1, 2), "smoke": (0,)}
    seeds: dict[str, set[int]] = {}
    for cell in table.cells("paper"):
        seeds.setdefault(cell.row, set()).add(cell.seed)
    assert seeds.pop("majority class") == seeds.pop("tf-idf unigrams") == {0}
    assert all(each == {0, 1, 2} for each in seeds.values())


def test_tables_of_one_name_have_no_tier_in_common() -> None:
    for some in TABLES.values():
        tiers = [(table.name, tier) for table in some for tier in table.tiers]
        assert len(set(tiers)) == len(tiers)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("table", [*EVERY, *SMALL_TABLES], ids=lambda table: table.address)
def test_rows_of_one_table_are_different_runs(table: Table, tier: Tier) -> None:
    texts = {}
    for cell in table.cells(tier, seeds=(0,)):
        texts[cell.row] = text = canonical_json(cell.config)
        assert json.loads(text)["seed"] == 0
    assert len(set(texts.values())) == len(texts) == (len(table.rows) if tier in table.tiers else 0)


@tables
def test_every_row_says_what_it_is(table: Table) -> None:
    """No published row is the paper's exact setting, and two readings of one give two reasons."""
    assert all(row.deviation for row in table.rows)
    assert len({row.deviation for row in table.rows}) == len(table.rows)


# Columns


def test_the_exchanged_columns_take_each_other_s_numbers() -> None:
    columns = ("MR", "SUBJ", "MPQA")
    printed = Published("P", "T", columns, {"QT": (Value(1.0), Value(2.0), Value(3.0, 0.5))})
    both = with_exchanged(printed)
    assert both.columns == (*columns, "SUBJ (printed as MPQA)", "MPQA (printed as SUBJ)")
    assert both.value("QT", "SUBJ") == both.value("QT", "MPQA (printed as SUBJ)") == Value(2.0)
    assert both.value("QT", "MPQA") == both.value("QT", "SUBJ (printed as MPQA)") == Value(3.0, 0.5)
    assert both.value("QT", "MR") == Value(1.0)
    assert printed.columns == columns


@tables
def test_columns_are_read_from_one_run(table: Table) -> None:
    assert {column.label: table.metric_of(column) for column in table.columns} == {
        "MR": "MR",
        "CR": "CR",
        "SUBJ": "SUBJ",
        "SUBJ (printed as MPQA)": "SUBJ",
        "MPQA": "MPQA",
        "MPQA (printed as SUBJ)": "MPQA",
        "TREC": "TREC",
        "MSRP": "MSRP",
        "MSRP F1": "MSRP_f1",
    }
    assert {cell.address for cell in table.cells("paper", row="QT", seeds=(0,))} == {
        f"{table.address}/qt/six-tasks/seed-0"
    }
    (smoke,) = table.cells("smoke", row="QT")
    assert smoke.address == f"smoke/{table.address}/qt/embedded-sample/seed-0"
    assert table.metric == "mean"


@pytest.mark.parametrize(
    ("table", "row", "subj", "mpqa"),
    [
        (TABLE_4, "QT", 86.6, 93.4),
        (TABLE_4_BOOKCORPUS, "LMCL(HCL+DP)", 87.2, 94.0),
        (TABLE_2, "CLLR(DCL+nuclear-norm)", 87.2, 95.8),
        (TABLE_2_BOOKCORPUS, "CLLR(DCL+l21-norm)", 87.9, 93.7),
    ],
)
def test_published_numbers_in_both_readings(
    table: Table, row: str, subj: float, mpqa: float
) -> None:
    value = table.published.value
    assert value(row, "SUBJ") == value(row, "MPQA (printed as SUBJ)") == Value(subj)
    assert value(row, "MPQA") == value(row, "SUBJ (printed as MPQA)") == Value(mpqa)
    assert value(row, "MSRP F1") is None


# Settings


@pytest.mark.parametrize("books", [TABLE_4, TABLE_2], ids=lambda table: table.address)
def test_the_paper_tier_is_quick_thought_for_as_many_steps_on_books(books: Table) -> None:
    assert config_of(books, "QT") == Config(epochs=55, steps=114_466)
    assert 54 * 2_090 < 114_466 <= 55 * 2_090  # the last epoch is not whole
    assert books.protocol == Config().protocol == "skip-thoughts-nested-10fold-v2"


@pytest.mark.parametrize(("books", "bookcorpus"), PAIRED, ids=lambda table: table.address)
def test_on_bookcorpus_it_is_the_same_table(books: Table, bookcorpus: Table) -> None:
    assert books.rows == bookcorpus.rows
    assert books.published == bookcorpus.published
    elsewhere = {"corpus": "bookcorpus", "layout": "sentences", "epochs": 1}
    for row in books.rows:
        config = config_of(books, row.label)
        assert config.corpus == "books"
        assert config_of(bookcorpus, row.label) == changed(config, elsewhere, "")


def test_equal_rows_of_both_papers_are_equal_runs() -> None:
    common = {row.label for row in TABLE_4.rows} & {row.label for row in TABLE_2.rows}
    assert common == {*BASELINES, "QT", "QT, cosine", "DCL", "HCL"}
    pairs = zip((*PAIRED[0], TABLE_4_SMALL), (*PAIRED[1], TABLE_2_SMALL), strict=True)
    for lmcl, cllr in pairs:
        for label in common:
            for tier in lmcl.tiers:
                assert config_of(lmcl, label, tier) == config_of(cllr, label, tier)


@tables
def test_baselines(table: Table) -> None:
    assert config_of(table, "majority class").baseline == "majority"
    assert config_of(table, "tf-idf unigrams").baseline == "tfidf"
    untrained = config_of(table, "untrained encoder")
    assert untrained == dataclasses.replace(config_of(table, "QT"), train=False)


@pytest.mark.parametrize(
    ("row", "function", "similarity", "numbers"),
    [
        ("QT", info_nce, "inner_product", {"temperature": 1.0}),
        ("QT, authors' zero diagonal", info_nce, "inner_product", {"temperature": 1.0}),
        ("QT, cosine", info_nce, "cosine", {"temperature": 0.1}),
        ("DCL", debiased_nce, "cosine", DEBIASED),
        ("HCL", hard_nce, "cosine", {**DEBIASED, "beta": 1.0}),
        (
            "DCL, raw scores",
            debiased_nce,
            "inner_product",
            {"temperature": 1.0, "tau_plus": 0.01, "floor": "minimum"},
        ),
        ("margins", margin_nce, "cosine", {"temperature": 0.1, "angular": 0.5, "subtractive": 0.4}),
        ("MMCL", max_margin, "cosine", {"gamma": 0.5, "cost": 100.0, "ridge": 0.1}),
    ],
)
def test_losses(row: str, function: Any, similarity: str, numbers: dict[str, float]) -> None:
    config = config_of(TABLE_4, row)
    assert config.objective == Objective(term(function, **numbers))
    assert config.similarity == similarity
    assert config.diagonal == ("zero" if row == "QT, authors' zero diagonal" else "masked")


@pytest.mark.parametrize(
    ("base", "row", "reduction"),
    [
        ("QT", "LMCL(QT+DP)", "anchor_sum"),
        ("QT", "LMCL(QT+DP), mean", "mean"),
        ("QT, cosine", "LMCL(QT+DP), cosine", "anchor_sum"),
        ("DCL", "LMCL(DCL+DP)", "anchor_sum"),
        ("DCL", "LMCL(DCL+DP), mean", "mean"),
        ("HCL", "LMCL(HCL+DP)", "anchor_sum"),
        ("HCL", "LMCL(HCL+DP), mean", "mean"),
    ],
)
def test_lmcl_adds_its_penalty_to_the_base_and_nothing_else(
    base: str, row: str, reduction: str
) -> None:
    plain, polarized = config_of(TABLE_4, base), config_of(TABLE_4, row)
    penalty = term(distance_polarization, weight=0.1, lower=0.1, upper=0.5, reduction=reduction)
    objective = dataclasses.replace(plain.objective, penalties=(penalty,))
    assert polarized == dataclasses.replace(plain, objective=objective)


@pytest.mark.parametrize(("name", "norm"), [("l21-norm", "l21"), ("nuclear-norm", "nuclear")])
@pytest.mark.parametrize(
    ("base", "suffix", "alpha"),
    [
        ("DCL", "", 10.0),
        ("DCL", ", norm over batch", 0.025),
        ("QT", ", norm over batch", 0.025),
    ],
)
def test_cllr_adds_its_projection_to_the_base_and_nothing_else(
    base: str, suffix: str, alpha: float, name: str, norm: str
) -> None:
    plain = config_of(TABLE_2, base)
    low_rank = config_of(TABLE_2, f"CLLR({base}+{name}){suffix}")
    projection = low_rank.objective.projection
    assert projection is not None
    assert (projection.weight, projection.options) == (0.1, {"norm": norm, "alpha": alpha})
    assert low_rank.projection_dimensions == 256
    objective = dataclasses.replace(low_rank.objective, projection=None)
    assert dataclasses.replace(low_rank, objective=objective) == plain


# Claims


# The short tier


@small_tables
def test_the_short_tier(table: Table) -> None:
    assert table.seeds == {"short": tuple(range(10)), "smoke": (0,)}
    paper = {"lmcl": TABLE_4, "cllr": TABLE_2}[table.paper]
    assert [row.label for row in table.rows] == [
        *BASELINES,
        "PPMI-SVD",
        *(row.label for row in paper.rows[len(BASELINES) :]),
    ]
    for row in table.rows:
        config = config_of(table, row.label, "short")
        raw = config.train and config.baseline is None and config.similarity != "cosine"
        assert config.learning_rate == (RAW_RATE if raw else 5e-3)
        changes = {**SMALL, **row.changes, "learning_rate": config.learning_rate}
        assert config == changed(Config(), changes, "")
        assert (config.embedding, config.epochs, config.held_out) == (50, 1, 6)
    assert config_of(table, "QT", "short").learning_rate == RAW_RATE


@small_tables
def test_the_floors_of_the_short_tier(table: Table) -> None:
    assert {row.label for row in table.rows if row.floor} == {*BASELINES, "PPMI-SVD"}
    ppmi = config_of(table, "PPMI-SVD", "short")
    assert (ppmi.baseline, ppmi.embedding, ppmi.held_out) == ("ppmi_svd", 50, 6)


@small_tables
def test_the_columns_of_the_short_tier(table: Table) -> None:
    assert {column.label: table.metric_of(column) for column in table.columns} == {
        "MR": "MR",
        "CR": "CR",
        "SUBJ (printed as MPQA)": "SUBJ",
        "MPQA (printed as SUBJ)": "MPQA",
        "TREC": "TREC",
        "MSRP": "MSRP",
        "MSRP F1": "MSRP_f1",
        "mean of the tasks": "mean",
        "mean without TREC": WITHOUT_TREC,
        "next sentence": NEXT,
    }
    assert table.also == (PREVIOUS,)
    assert table.published.value("QT", "SUBJ (printed as MPQA)") == Value(93.4)
    assert len({cell.address for cell in table.cells("short", row="QT")}) == 10


@closed_tables
def test_the_closed_tier_is_that_of_its_records_and_claims_nothing(table: Table) -> None:
    assert table.claims == ()
    records = [
        record
        for record in read_records(RESULTS)
        if record.address.startswith(f"short/{table.address}/")
    ]
    assert {record.address for record in records} == {cell.address for cell in table.cells("short")}
    measured = measure(table, "short", records, {})
    assert all(cell.values for row in measured.cells for cell in row)
    assert not measured.ignored
    for cell in table.cells("short"):
        assert isinstance(cell.config, Config)
        for name, value in CLOSED.items():
            assert getattr(cell.config, name) == value
    of = {tier: find_cell(f"{tier}{table.address}/qt/six-tasks/seed-0") for tier in ("", "short/")}
    assert of["short/"].table.title == table.title != of[""].table.title


# What every row trains


@pytest.mark.parametrize("config", [*configs_of(TABLE_4), *configs_of(TABLE_2)])
def test_the_objective_of_every_row_has_a_loss_and_a_gradient(config: Config) -> None:
    f, g, pairs = pairs_of(config)
    criterion = config.objective.build(12, SIMILARITIES[config.similarity])
    loss, parts = criterion(pairs, features=torch.cat([f, g], dim=1))
    loss.backward()
    assert torch.isfinite(loss)
    for each in (f, g):
        assert each.grad is not None
        assert torch.isfinite(each.grad).all()
        assert each.grad.abs().sum() > 0
    assert (criterion.projection is None) is (config.objective.projection is None)
    if criterion.projection is not None:
        matrix = criterion.projection.matrix
        assert matrix.shape == (12, 12)
        assert matrix.grad is not None
        assert matrix.grad.abs().sum() > 0
    for penalty in config.objective.penalties:
        assert parts[penalty.function.__name__] > 0


@pytest.mark.parametrize("row", ["QT", "LMCL(QT+DP)", "DCL, raw scores"])
def test_raw_scores_may_be_large(row: str) -> None:
    """The final states of GRUs of 1200 give inner products of hundreds."""
    config = config_of(TABLE_4, row)
    f, g, pairs = pairs_of(config, scale=20.0)
    assert inner_product(f, g).max() > 500
    loss, _ = config.objective.build(12, inner_product)(pairs)
    loss.backward()
    assert torch.isfinite(loss)
    assert f.grad is not None
    assert torch.isfinite(f.grad).all()


def test_quick_thought_by_hand() -> None:
    """The mean over sentences of the mean over neighbours of -log softmax, itself left out."""
    config = config_of(TABLE_4, "QT")
    f, g, pairs = pairs_of(config)
    loss, _ = config.objective.build(12, inner_product)(pairs)
    chapters = ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    total = 0.0
    for chapter in chapters:
        for i in chapter:
            scores = {j: (f[i] @ g[j]).item() for j in range(10) if j != i}
            log_sum = float(torch.tensor(list(scores.values())).logsumexp(0))
            neighbours = [j for j in (i - 1, i + 1) if j in chapter]
            total += sum(log_sum - scores[j] for j in neighbours) / len(neighbours)
    assert loss.item() == pytest.approx(total / 10, rel=1e-5)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("margins", "margin_nce is defined for cosines only"),
        ("MMCL", "max_margin is defined for cosines only"),
        ("DCL", "debiased_nce's floor .* holds for cosines only"),
        ("HCL", "hard_nce's floor .* holds for cosines only"),
        ("LMCL(HCL+DP)", "hard_nce's floor .* holds for cosines only"),
        ("CLLR(DCL+nuclear-norm)", "debiased_nce's floor .* holds for cosines only"),
    ],
)
def test_raw_scores_are_refused_where_they_have_no_meaning(row: str, reason: str) -> None:
    rows = {each.label: each for each in (*LMCL_ROWS, *CLLR_ROWS)}
    with pytest.raises(ValueError, match=reason):
        rows[row].changes["objective"].build(12, inner_product)
