"""The tables of LMCL, CLLR and MMCL: what is in their cells."""

import dataclasses
import json
import math
from typing import Any

import pytest

from shared import (
    consistency,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    max_margin,
)
from shared.experiment.tables import TIERS, Cell, Table, Tier, canonical_json, load_published
from vision.augmentation import POLICIES
from vision.config import CMC, HCL, Config, ToyConfig
from vision.evaluation import PROTOCOLS
from vision.methods import check
from vision.tables_cllr import CLLR
from vision.tables_common import SHORT
from vision.tables_lmcl import LMCL
from vision.tables_mmcl import FILE, MMCL

TABLES = {table.address.removeprefix("vision/"): table for table in (*LMCL, *CLLR, *MMCL)}
IMAGE_TABLES = [name for name in TABLES if name != "lmcl/table-1"]

STL10_AND_CIFAR10 = [
    f"{dataset}, {batch_size}"
    for dataset in ("STL-10", "CIFAR-10")
    for batch_size in (32, 64, 128, 256, 512)
]


def cell(table: str, row: str, column: str, tier: Tier = "paper") -> Cell:
    cells = TABLES[table].cells(tier, row=row, column=None if tier == "smoke" else column)
    return cells[0]


def config_of(table: str, row: str, column: str, tier: Tier = "paper") -> Config:
    config = cell(table, row, column, tier).config
    assert isinstance(config, Config)
    return config


def numbers(config: Config) -> dict[str, Any]:
    return dict(config.objective.loss.numbers)


def printed(table: str, row: str, column: str) -> tuple[float, float | None]:
    value = TABLES[table].published.value(row, column)
    assert value is not None
    return value.mean, value.std


@pytest.mark.parametrize(
    ("name", "rows", "columns", "seeds"),
    [
        ("lmcl/table-1", 9, 2, 24),
        ("lmcl/table-2", 13, 4, 1),
        ("lmcl/table-3", 9, 5, 1),
        ("lmcl/figure-4", 9, 10, 1),
        ("cllr/table-1", 16, 4, 5),
        ("cllr/table-3", 14, 4, 1),
        ("cllr/figure-4", 13, 10, 1),
        ("mmcl/table-1", 10, 5, 1),
        ("mmcl/table-1-few-shot", 10, 2, 1),
        ("mmcl/table-1-linear", 10, 11, 1),
        ("mmcl/table-2", 7, 1, 1),
        ("mmcl/table-3", 7, 1, 1),
        ("mmcl/table-6", 4, 2, 1),
        ("mmcl/table-7", 5, 3, 1),
        ("mmcl/table-8", 6, 2, 1),
        ("mmcl/longer-training", 4, 2, 1),
        ("mmcl/figure-3a", 6, 2, 1),
        ("mmcl/figure-3c", 3, 5, 1),
    ],
)
def test_what_the_papers_print_is_declared(name: str, rows: int, columns: int, seeds: int) -> None:
    table = TABLES[name]
    assert (len(table.rows), len(table.columns)) == (rows, columns)
    cells = table.cells("paper")
    assert len(cells) == rows * columns * seeds


def test_no_table_is_left_out() -> None:
    assert len(TABLES) == 30
    assert all(table.domain == "vision" for table in TABLES.values())


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_has_a_meaning_and_an_address(name: str, tier: Tier) -> None:
    cells = TABLES[name].cells(tier)
    sources = {(each.row, each.source, each.seed) for each in cells}  # columns may share a run
    assert len({each.address for each in cells}) == len(sources)
    for each in cells:
        assert json.loads(canonical_json(each.config))["seed"] == each.seed
        if isinstance(each.config, Config):
            check(each.config)
            assert set(each.config.augmentations) <= set(POLICIES)
            assert each.config.protocol in PROTOCOLS


@pytest.mark.parametrize("name", TABLES)
def test_columns_leave_the_network_to_the_tier(name: str) -> None:
    for column in TABLES[name].columns:
        assert not {"stem", "backbone"} & set(column.changes)


@pytest.mark.parametrize("name", TABLES)
def test_readings_of_one_printed_row_differ_and_say_how(name: str) -> None:
    """Two rows with one printed label are two readings of it, each with its own reason."""
    readings: dict[str, list[Any]] = {}
    for row in TABLES[name].rows:
        if row.published is not None:
            readings.setdefault(row.published, []).append(row)
    for rows in readings.values():
        if len(rows) > 1:
            assert all(row.deviation for row in rows)
            assert len({row.deviation for row in rows}) == len(rows)
            assert len({canonical_json([row.changes, row.in_columns]) for row in rows}) == len(rows)


@pytest.mark.parametrize("name", TABLES)
def test_no_two_rows_are_the_same_run(name: str) -> None:
    table: Table = TABLES[name]
    for column in table.columns:
        configs = [
            canonical_json(each.config)
            for each in table.cells("paper", column=column.label, seeds=(0,))
        ]
        assert len(set(configs)) == len(configs)


# ImageNet's tables on one core


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("lmcl/table-2", 13, 2),
        ("cllr/table-3", 14, 2),
        ("mmcl/table-2", 7, 2),
        ("mmcl/table-3", 7, 2),
        ("mmcl/longer-training", 4, 4),
    ],
)
def test_tables_of_imagenet_have_a_short_tier_on_real_images(
    name: str, rows: int, columns: int
) -> None:
    table, paper = TABLES[f"{name}-small"], TABLES[name]
    assert "short" not in paper.tiers
    assert table.tiers == ("short", "smoke")
    assert (len(table.rows), len(table.columns)) == (rows + 4, columns)
    assert [row.label for row in table.rows[:rows]] == [row.label for row in paper.rows]
    for each in table.cells("short"):
        config = each.config
        assert isinstance(config, Config)
        streamed = config.dataset == "imagenette"
        assert streamed or config.dataset == "CIFAR10"
        assert (config.image_size, config.backbone) == (64 if streamed else 32, "resnet8")
        assert config.stem == "strided"
        if config.epochs:
            assert (config.optimiser, config.learning_rate) == ("sgd", 0.06)
            assert config.queue == 1024
            assert config.epochs % (40 if streamed else 5) == 0
            assert config.beside == paper.protocol
        if each.row == "MoCHI":
            assert (config.mixed, config.mixed_from) == ((64, 64, 8), 1.0)
    (longer,) = (table for table in (TABLES["mmcl/longer-training-small"],))
    assert [column.label for column in longer.columns] == [
        "CIFAR10, 10 epochs",
        "imagenette, 80 epochs",
        "CIFAR10, 20 epochs",
        "imagenette, 160 epochs",
    ]


# The protocol of DCL's and HCL's programs


@pytest.mark.parametrize(
    ("table", "row", "column", "dataset", "epochs", "batch_size", "test_size"),
    [
        ("lmcl/table-3", "lambda=0.1", "tau_0.3", "STL10", 100, 256, 96),
        ("lmcl/figure-4", "DCL", "STL-10, 32", "STL10", 100, 32, 96),
        ("lmcl/figure-4", "HCL", "CIFAR-10, 512", "CIFAR10", 100, 512, None),
        ("cllr/table-1", "512-dim (w/o R)", "stl10_ep400", "STL10", 400, 256, 96),
        ("cllr/table-1", "512-dim (w/o R)", "cifar10_ep100", "CIFAR10", 100, 256, None),
        ("mmcl/table-6", "linear x.y", "cifar100", "CIFAR100", 200, 256, None),
        ("mmcl/table-7", "SimCLR", "batch64", "STL10", 400, 64, 96),
        ("mmcl/table-8", "MMCL_INV", "stl10", "STL10", 400, 256, 96),
        ("mmcl/figure-3c", "MMCL_PGD", "25 epochs", "STL10", 25, 256, 96),
    ],
)
def test_hcl_protocol(
    table: str,
    row: str,
    column: str,
    dataset: str,
    epochs: int,
    batch_size: int,
    test_size: int | None,
) -> None:
    config = config_of(table, row, column)
    assert config.dataset == dataset
    assert (config.epochs, config.batch_size) == (epochs, batch_size)
    assert (config.image_size, config.test_size, config.stem) == (32, test_size, "cifar")
    same = ("statistics", "backbone", "head_hidden", "augmentations", "optimiser", "schedule")
    for name in (*same, "learning_rate", "weight_decay", "warmup_epochs"):
        assert getattr(config, name) == HCL[name], name


def test_short_tier() -> None:
    config = config_of("lmcl/figure-4", "SimCLR", "CIFAR-10, 64", "short")
    assert (config.backbone, config.stem, config.images, config.epochs) == (
        "resnet18",
        "small",
        4000,
        10,
    )
    assert config.batch_size == 64  # the column's, being what it is about
    assert config.probe_augmentation is False
    assert config_of("mmcl/table-8", "MMCL_INV", "stl10", "short").batch_size == 128
    for table, column, epochs in (
        ("cllr/table-1", "cifar10_ep400", 400),
        ("mmcl/figure-3c", "400 epochs", 400),
    ):
        config = config_of(
            table, "SimCLR" if "mmcl" in table else "256-dim (w/o R)", column, "short"
        )
        assert (config.epochs, config.images) == (epochs, 512)
    assert SHORT["epochs"] == 10


def test_metrics() -> None:
    for name, expected in (
        ("lmcl/table-2", ["linear_top1", "linear_top5"] * 2),
        ("cllr/table-3", ["linear_top1", "linear_top5"] * 2),
        ("mmcl/table-6", ["knn_top1"] * 2),
        ("mmcl/table-8", ["linear_top1"] * 2),
        ("mmcl/figure-3a", ["knn_top1"] * 2),
        ("mmcl/figure-3c", ["knn_top1"] * 5),
    ):
        table = TABLES[name]
        assert [table.metric_of(column) for column in table.columns] == expected
    transfer = TABLES["mmcl/table-1"]
    assert [transfer.metric_of(column) for column in transfer.columns] == [
        "finetuned_mean_per_class",
        "finetuned_top1",
        "finetuned_top1",
        "finetuned_mean_per_class",
        "finetuned_top1",
    ]


def test_table_1_is_printed_in_two_parts_and_one_column_stays_out() -> None:
    tuned, episodes = TABLES["mmcl/table-1"], TABLES["mmcl/table-1-few-shot"]
    whole = load_published(FILE, "table-1")
    rest = set(whole.columns) - set(tuned.published.columns) - set(episodes.published.columns)
    assert rest == {"nyuv2_median_angular_error"}
    assert any("Surface normals on NYUv2" in note for note in tuned.notes)
    assert {cell.config.evaluate_on for cell in tuned.cells("paper")} == {  # type: ignore[attr-defined]
        "Aircraft",
        "Cars",
        "DTD",
        "Flowers",
        "Food",
    }
    # Every read-out of a model is one pretraining, that of Table 3.
    for name, column in (("table-1", "cars"), ("table-1-few-shot", "eurosat")):
        for row in ("MMCL_PGD", "MMCL_INV", "MMCL_PGD, first view, fixed step"):
            here = config_of(f"mmcl/{name}", row, column)
            there = config_of("mmcl/table-3", row, "top1")
            same = {"evaluate_on": None, "protocol": there.protocol}
            assert dataclasses.replace(here, **same) == there


def test_the_suite_on_one_core_shares_the_pretraining_of_table_3() -> None:
    for name in ("table-1", "table-1-few-shot", "table-1-linear"):
        table = TABLES[f"mmcl/{name}-small"]
        assert [column.label for column in table.columns] == ["CIFAR100", "STL10", "imagenette"]
        assert table.tiers == ("short",)
        for each in table.cells("short"):
            config = each.config
            assert isinstance(config, Config)
            assert (config.dataset, config.evaluate_on) == ("CIFAR10", each.column)
            if config.epochs:
                there = config_of("mmcl/table-3-small", each.row, "CIFAR10", "short")
                same = {"evaluate_on": None, "protocol": there.protocol, "beside": there.beside}
                assert dataclasses.replace(config, **same) == there
    rows = {each.row for each in TABLES["mmcl/table-1-small"].cells("short")}
    assert "random network" in rows
    assert "raw pixels" not in rows


# LMCL


def test_lmcl_toy_table() -> None:
    table = TABLES["lmcl/table-1"]
    assert table.seeds["paper"] == tuple(range(20, 44))  # those before were seen
    readings = {
        (reduction, normalised): cell(
            "lmcl/table-1", f"LMCT, {reduction}, {name}", "nested_moons"
        ).config
        for reduction in ("anchor_sum", "mean", "sum")
        for name, normalised in (("inner product", False), ("normalised", True))
    }
    for (reduction, normalised), config in readings.items():
        assert isinstance(config, ToyConfig)
        assert config.data == "nested_moons"
        assert config.normalised is normalised
        assert config.objective is not None
        (penalty,) = config.objective.penalties
        assert penalty.weight == 0.1
        assert dict(penalty.numbers) == {"lower": 0.1, "upper": 0.5, "reduction": reduction}
    plain = cell("lmcl/table-1", "Euclidean space", "three_bars").config
    assert isinstance(plain, ToyConfig)
    assert plain.objective is None
    conventional = cell("lmcl/table-1", "Conventional CT, normalised", "three_bars").config
    assert isinstance(conventional, ToyConfig)
    assert conventional.objective is not None
    assert conventional.objective.penalties == ()
    assert printed("lmcl/table-1", "Euclidean space", "three_bars") == (75.2, 1.2)
    assert printed("lmcl/table-1", "LMCT (ours)", "nested_moons") == (85.2, 2.3)


@pytest.mark.parametrize("reduction", ["anchor_sum", "mean"])
@pytest.mark.parametrize("weight", [0.01, 0.1, 0.5, 5.0])
@pytest.mark.parametrize("temperature", [0.1, 0.2, 0.25, 0.3, 0.4])
def test_lmcl_sensitivity(weight: float, temperature: float, reduction: str) -> None:
    row = f"lambda={weight:g}" + ("" if reduction == "anchor_sum" else ", mean")
    config = config_of("lmcl/table-3", row, f"tau_{temperature}")
    assert config.objective.loss.function is info_nce
    assert numbers(config) == {"temperature": temperature}
    (penalty,) = config.objective.penalties
    assert penalty.function is distance_polarization
    assert penalty.weight == weight
    assert penalty.numbers["reduction"] == reduction
    assert printed("lmcl/table-3", "lambda=0.5", "tau_0.25") == (80.7, None)


def test_lmcl_sensitivity_starts_from_simclr() -> None:
    config = config_of("lmcl/table-3", "lambda=0", "tau_0.2")
    assert numbers(config) == {"temperature": 0.2}
    assert config.objective.penalties == ()


@pytest.mark.parametrize(
    ("base", "function", "expected"),
    [
        ("SimCLR", info_nce, {"temperature": 0.5}),
        ("DCL", debiased_nce, {"temperature": 0.5, "tau_plus": 0.1}),
        ("HCL", hard_nce, {"temperature": 0.5, "tau_plus": 0.1, "beta": 1.0}),
    ],
)
def test_lmcl_figure_4(base: str, function: Any, expected: dict[str, float]) -> None:
    table = TABLES["lmcl/figure-4"]
    assert [column.label for column in table.columns] == STL10_AND_CIFAR10
    plain = config_of("lmcl/figure-4", base, "CIFAR-10, 256")
    assert plain.objective.penalties == ()
    for row, reduction in (
        (f"LMCL({base}+DP)", "anchor_sum"),
        (f"LMCL({base}+DP), mean", "mean"),
    ):
        config = config_of("lmcl/figure-4", row, "CIFAR-10, 256")
        assert config.objective.loss == plain.objective.loss
        assert config.objective.loss.function is function
        assert numbers(config) == expected
        (penalty,) = config.objective.penalties
        assert penalty.weight == 0.1
        assert dict(penalty.numbers) == {"lower": 0.1, "upper": 0.5, "reduction": reduction}
    assert table.published.rows == {}


@pytest.mark.parametrize("table", ["lmcl/table-2", "cllr/table-3"])
def test_imagenet100_is_in_cmc_s_framework(table: str) -> None:
    for column, queue in (("n1024_top5", 1024), ("n4096_top1", 4096)):
        config = config_of(table, "HCL", column)
        assert (config.dataset, config.queue, config.method) == ("ImageNet100", queue, "moco_v2")
        assert numbers(config) == {"temperature": 0.07, "tau_plus": 0.01, "beta": 1.0}
        assert config.milestones == CMC["milestones"]
        assert config.protocol == "linear-cmc-v1"
    assert printed(table, "HCL", "n4096_top5") == (92.32, None)


# CLLR


@pytest.mark.parametrize("dimensions", [4096, 3072, 2048, 512, 256])
def test_cllr_without_projection(dimensions: int) -> None:
    config = config_of("cllr/table-1", f"{dimensions}-dim (w/o R)", "stl10_ep100")
    assert config.head_output == dimensions
    assert config.objective.projection is None


@pytest.mark.parametrize("dimensions", [512, 256])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("(w/ l2,1)", {"norm": "l21", "alpha": 10.0}),
        ("(w/ nuclear)", {"norm": "nuclear", "alpha": 10.0}),
        ("(w/ l2,1), norm over batch", {"norm": "l21", "alpha": 10 / 256}),
        ("(w/ nuclear), norm over batch", {"norm": "nuclear", "alpha": 10 / 256}),
    ],
)
def test_cllr_with_projection(dimensions: int, row: str, expected: dict[str, Any]) -> None:
    config = config_of("cllr/table-1", f"{dimensions}-dim {row}", "cifar10_ep400")
    assert config.objective.projection is not None
    assert config.objective.projection.weight == 0.1
    assert dict(config.objective.projection.options) == expected
    assert config.projection_dimensions == dimensions
    assert (config.epochs, config.head_output) == (400, 128)


@pytest.mark.parametrize("dimensions", [512, 256])
def test_cllr_without_sparsity(dimensions: int) -> None:
    config = config_of("cllr/table-1", f"{dimensions}-dim (w/o sparsity, alpha=0)", "stl10_ep100")
    assert config.objective.projection is not None
    options = dict(config.objective.projection.options)
    assert options == {"norm": "none", "alpha": 0.0, "rows": dimensions}
    assert config.projection_dimensions == dimensions


def test_cllr_authors_program() -> None:
    config = config_of("cllr/table-1", "512-dim, authors' program", "stl10_ep400")
    assert config.objective.projection is not None
    assert config.objective.projection.options["form"] == "authors"
    assert config.objective.projection.options["rows"] == 512
    assert config.head_output == 1024


def test_cllr_published_numbers_keep_their_warning() -> None:
    table = TABLES["cllr/table-1"]
    assert printed("cllr/table-1", "256-dim (w/ nuclear)", "cifar10_ep400") == (93.1, 1.3)
    assert printed("cllr/table-1", "4096-dim (w/o R)", "stl10_ep100") == (55.1, 1.1)
    assert any("LOW" in warning for warning in table.published.warnings)
    assert table.seeds["paper"] == (0, 1, 2, 3, 4)


def test_cllr_figure_4() -> None:
    assert [column.label for column in TABLES["cllr/figure-4"].columns] == STL10_AND_CIFAR10
    for base, function in (("SimCLR", info_nce), ("HCL", hard_nce)):
        for name, norm in (("l2,1", "l21"), ("nuclear", "nuclear")):
            row = f"CLLR({base}+{name}-norm)"
            for batch_size in (32, 512):
                column = f"STL-10, {batch_size}"
                config = config_of("cllr/figure-4", row, column)
                assert config.objective.loss.function is function
                assert config.objective.projection is not None
                assert config.objective.projection.options == {"norm": norm, "alpha": 10.0}
                assert config.projection_dimensions == 256
                config = config_of("cllr/figure-4", f"{row}, norm over batch", column)
                assert config.objective.projection is not None
                assert config.objective.projection.options["alpha"] == 10.0 / batch_size


# MMCL


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("mmcl/table-6", "RBF exp(-|x-y|^2/(2 sigma^2))"),
        ("mmcl/table-8", "MMCL_PGD"),
        ("mmcl/table-8", "MMCL_INV"),
        ("mmcl/table-8", "MMCL_INV, first view"),
        ("mmcl/figure-3a", "C = 100"),
    ],
)
def test_mmcl_kernel_width(table: str, row: str) -> None:
    cifar100 = config_of(table, row, "cifar100")
    widths = [
        cifar100.objective_at(epoch).loss.numbers["gamma"] for epoch in (0, 73, 74, 123, 124, 399)
    ]
    assert widths == pytest.approx([0.02, 0.02, 0.2, 0.2, 2.0, 2.0])
    stl10 = config_of(table, row, "stl10")
    assert stl10.gamma_schedule == ()
    assert stl10.objective_at(399).loss.numbers["gamma"] == 0.5
    for config in (cifar100, stl10):
        assert config.objective.loss.function is max_margin
        assert (numbers(config)["cost"], numbers(config)["ridge"]) == (100.0, 0.1)


@pytest.mark.parametrize(
    ("row", "pairs", "solver", "step_size"),
    [
        ("MMCL_PGD", "both_views", "projected_gradient", None),
        ("MMCL_PGD, first view", "first_view", "projected_gradient", None),
        ("MMCL_PGD, first view, fixed step", "first_view", "projected_gradient", 1e-3),
        ("MMCL_INV", "both_views", "closed_form", None),
        ("MMCL_INV, first view", "first_view", "closed_form", None),
    ],
)
@pytest.mark.parametrize("column", ["cifar100", "stl10"])
def test_mmcl_variants(
    row: str, pairs: str, solver: str, step_size: float | None, column: str
) -> None:
    config = config_of("mmcl/table-8", row, column)
    assert config.pairs == pairs
    assert numbers(config).get("solver", "closed_form") == solver
    assert numbers(config).get("step_size") == step_size
    if step_size is not None:
        assert (numbers(config)["steps"], numbers(config)["start"]) == (1000, "random")


def test_mmcl_kernels() -> None:
    linear = config_of("mmcl/table-6", "linear x.y", "cifar100")
    assert numbers(linear)["kernel"] == "linear"
    assert linear.gamma_schedule == ()
    tanh = config_of("mmcl/table-6", "tanh(-gamma x.y + eta)", "stl10")
    assert (numbers(tanh)["kernel"], numbers(tanh)["gamma"], numbers(tanh)["offset"]) == (
        "tanh",
        1.0,
        0.0,
    )
    assert tanh.protocol == "knn-200-v1"
    assert printed("mmcl/table-6", "linear x.y", "cifar100") == (41.43, None)
    assert printed("mmcl/table-6", "tanh(-gamma x.y + eta)", "stl10") == (80.5, None)


def test_mmcl_batch_sizes() -> None:
    table = TABLES["mmcl/table-7"]
    assert [column.changes["batch_size"] for column in table.columns] == [64, 128, 256]
    assert printed("mmcl/table-7", "Ours (MMCL)", "batch64") == (80.11, None)
    assert printed("mmcl/table-7", "HCL", "batch256") == (87.44, None)


def test_mmcl_slack() -> None:
    slacks = [
        numbers(config_of("mmcl/figure-3a", row.label, "cifar100"))["cost"]
        for row in TABLES["mmcl/figure-3a"].rows
    ]
    assert slacks == [0.01, 0.1, 1.0, 10.0, 100.0, math.inf]


def test_mmcl_convergence() -> None:
    table = TABLES["mmcl/figure-3c"]
    assert [column.changes["epochs"] for column in table.columns] == [25, 50, 100, 200, 400]
    assert config_of("mmcl/figure-3c", "SimCLR", "50 epochs").pairs == "both"
    assert config_of("mmcl/figure-3c", "MMCL_INV", "50 epochs").pairs == "both_views"


@pytest.mark.parametrize(
    ("table", "column", "dataset", "batch_size", "epochs", "warmup"),
    [
        ("mmcl/table-2", "top1", "ImageNet100", 128, 200, 20.0),
        ("mmcl/table-3", "top1", "ImageNet", 256, 100, 10.0),
        ("mmcl/longer-training", "epochs_400", "ImageNet", 256, 400, 40.0),
    ],
)
def test_mmcl_on_imagenet(
    table: str, column: str, dataset: str, batch_size: int, epochs: int, warmup: float
) -> None:
    config = config_of(table, "MMCL_PGD", column)
    assert (config.dataset, config.batch_size, config.epochs) == (dataset, batch_size, epochs)
    assert config.warmup_epochs == warmup
    assert (config.optimiser, config.pairs, config.statistics) == ("lars", "both_views", "none")
    assert numbers(config) == {
        "gamma": 0.1,
        "cost": 100.0,
        "ridge": 0.1,
        "solver": "projected_gradient",
    }
    authors = config_of(table, "MMCL_PGD, first view, fixed step", column)
    assert authors.pairs == "first_view"
    assert numbers(authors)["cost"] == math.inf


def test_mmcl_s_baselines_on_imagenet() -> None:
    assert config_of("mmcl/table-3", "SimCLR (254 negatives)", "top1").batch_size == 128
    assert config_of("mmcl/table-3", "SimCLR (510 negatives)", "top1").batch_size == 256
    assert config_of("mmcl/table-2", "MoCo-v2", "top1").queue == 16_000
    moco = config_of("mmcl/table-3", "MoCo-v2", "top1")
    assert (moco.queue, moco.optimiser, moco.statistics) == (65_536, "sgd", "ImageNet")
    assert printed("mmcl/table-3", "SimCLR (510 negatives)", "top1") == (60.62, None)
    assert printed("mmcl/table-2", "Ours (MMCL)", "top1") == (80.7, None)
    assert printed("mmcl/longer-training", "Ours (MMCL)", "epochs_400") == (69.9, None)
    assert printed("mmcl/table-1-few-shot", "Ours (MMCL)", "eurosat") == (88.75, 0.4)


def test_the_first_moco_and_mochi() -> None:
    first = config_of("mmcl/table-2", "MoCo", "top1")
    assert (first.method, first.head_layers, first.queue) == ("moco_v2", 1, 16_000)
    assert numbers(first) == {"temperature": 0.07}
    assert (first.augmentations, first.schedule) == (("cmc", "cmc"), "steps")
    assert (first.milestones, first.epochs) == ((120, 160), 200)
    for table, queue, start in (("mmcl/table-2", 16_000, 10.0), ("mmcl/table-3", 65_536, 15.0)):
        plain, mixed = (config_of(table, row, "top1") for row in ("MoCo-v2", "MoCHI"))
        changes = {"mixed": (1024, 1024, 128), "mixed_from": start}
        assert mixed == dataclasses.replace(plain, **changes)
        assert mixed.queue == queue
        assert config_of(table, "MoCHI", "top1", "smoke").mixed == (16, 8, 4)
    # The program of CMC's MoCo has a linear head, as the first MoCo.
    assert config_of("lmcl/table-2", "MoCo", "n1024_top1").head_layers == 1


def test_cmc() -> None:
    for table, row, column in (
        ("lmcl/table-2", "CMC", "n4096_top1"),
        ("lmcl/table-2", "LMCL(CMC+DP)", "n4096_top5"),
        ("cllr/table-3", "CLLR(CMC+nuclear-norm)", "n4096_top1"),
        ("mmcl/table-2", "CMC", "top1"),
        ("cllr/table-3-small", "CLLR(CMC+l2,1-norm)", "imagenette"),
    ):
        tier: Tier = "short" if table.endswith("small") else "paper"
        config = config_of(table, row, column, tier)
        assert (config.method, config.statistics, config.head_layers) == ("cmc", "none", 1)
        assert (config.memory_momentum, config.loss_factor) == (0.5, 2.0)
        assert numbers(config) == {"temperature": 0.07}
        queue = {"lmcl": 4096, "cllr": 4096, "mmcl": 16_000}[table.split("/")[0]]
        assert config.queue == (1024 if tier == "short" else queue)
        assert bool(config.objective.penalties) is ("DP" in row)
        assert (config.objective.projection is not None) is ("norm" in row)
        smoke = config_of(table, row, column, "smoke")
        assert smoke.statistics == "none"
        check(smoke)
    assert printed("lmcl/table-2", "LMCL(CMC+DP)", "n4096_top1") == (75.67, None)


def test_swav() -> None:
    for table in ("lmcl/table-2", "cllr/table-3"):
        config = config_of(table, "SwAV", "n4096_top1")
        assert (config.method, config.queue, config.queue_from) == ("swav", 4096, 15.0)
        assert numbers(config) == {"temperature": 0.1, "epsilon": 0.05, "iterations": 3}
        assert (config.image_size, config.small_crops, config.small_size) == (224, 6, 96)
        assert (config.prototypes, config.optimiser, config.learning_rate) == (3000, "lars", 0.15)
        for column, side in (("CIFAR10", 16), ("imagenette", 32)):
            small = config_of(f"{table}-small", "SwAV", column, "short")
            assert (small.small_crops, small.small_size, small.prototypes) == (6, side, 100)
            assert (small.optimiser, small.learning_rate, small.queue) == ("sgd", 0.06, 1024)
    with_penalty = config_of("lmcl/table-2", "LMCL(SwAV+DP)", "n1024_top1")
    (penalty,) = with_penalty.objective.penalties
    assert penalty.function is distance_polarization
    for row, norm in (("CLLR(SwAV+l2,1-norm)", "l21"), ("CLLR(SwAV+nuclear-norm)", "nuclear")):
        projection = config_of("cllr/table-3", row, "n1024_top1").objective.projection
        assert projection is not None
        assert projection.options["norm"] == norm
    figure = config_of("cllr/figure-4", "SwAV", "STL-10, 64")
    assert (figure.small_crops, figure.small_size, figure.prototypes) == (6, 16, 300)
    assert (figure.optimiser, figure.batch_size) == ("adam", 64)
    assert printed("lmcl/table-2", "SwAV", "n4096_top1") == (75.78, None)


def test_co2() -> None:
    for table, column, temperature, method in (
        ("cllr/table-3", "n4096_top1", 0.07, "moco_v2"),
        ("cllr/figure-4", "STL-10, 64", 0.5, "simclr"),
        ("cllr/figure-4-cifar10", "CIFAR-10, 64", 0.5, "simclr"),
    ):
        tier: Tier = "short" if table.endswith("cifar10") else "paper"
        config = config_of(table, "CO2", column, tier)
        assert config.method == method
        assert numbers(config) == {"temperature": temperature}
        (penalty,) = config.objective.penalties
        assert (penalty.function, penalty.weight) == (consistency, 1.0)
        assert dict(penalty.numbers) == {"temperature": 0.05}
    assert printed("cllr/table-3", "CO2", "n4096_top1") == (73.96, None)


# The tier on CIFAR-10


@pytest.mark.parametrize(
    ("name", "rows", "runs"),
    [
        ("lmcl/figure-4-cifar10", 9, 5),
        ("cllr/figure-4-cifar10", 13, 5),
        ("mmcl/figure-3a-cifar10", 6, 1),
        ("mmcl/figure-3c-cifar10", 3, 3),
    ],
)
def test_sweeps_on_cifar10(name: str, rows: int, runs: int) -> None:
    table = TABLES[name]
    assert len(table.rows) == rows + 4  # the floors
    assert len(table.columns) == runs
    assert table.tiers == ("short", "smoke")
    figure = TABLES[name.removesuffix("-cifar10")]
    for each in table.cells("short"):
        config = each.config
        assert isinstance(config, Config)
        assert (config.dataset, config.backbone, config.stem) == ("CIFAR10", "resnet8", "strided")
        if config.epochs:
            assert (config.optimiser, config.learning_rate) == ("adam", 1e-3)
            assert config.images is None
    assert [row.label for row in table.rows[:rows]] == [row.label for row in figure.rows]


def test_what_a_row_changes_in_a_column_it_changes_on_cifar10_too() -> None:
    config = config_of(
        "cllr/figure-4-cifar10", "CLLR(HCL+l2,1-norm), norm over batch", "CIFAR-10, 64", "short"
    )
    assert config.batch_size == 64
    assert config.objective.projection is not None
    assert config.objective.projection.options["alpha"] == 10 / 64
    slack = config_of("mmcl/figure-3a-cifar10", "C = 0.01", "CIFAR10", "short")
    assert numbers(slack) == {"gamma": 0.5, "cost": 0.01, "ridge": 0.1}
    assert slack.beside is None
    for epochs in (1, 2, 5):
        cell = config_of("mmcl/figure-3c-cifar10", "SimCLR", f"{epochs} epochs", "short")
        assert (cell.epochs, cell.schedule) == (epochs, "constant")
