from typing import Any

import pytest
import torch

from shared import Criterion, query_key, two_views
from shared.experiment.tables import Cell, Table, Value, canonical_json
from vision.augmentation import POLICIES
from vision.config import Config
from vision.methods import check
from vision.tables import TABLES
from vision.tables_common import ON_CIFAR10, QUARTER, short_note
from vision.tables_common import SHORT as SHORT_OF_OTHERS
from vision.tables_margins import COLUMNS, MARGINS, REFERENCES, SHORT, TRANSFERS

BY_NAME = {table.name: table for table in MARGINS}
DATASETS = ("CIFAR10", "CIFAR100", "STL10", "TinyImageNet")


def config(table: str, row: str, column: str, tier: Any = "paper") -> Config:
    (cell,) = BY_NAME[table].cells(tier, row=row, column=column, seeds=[0])
    assert isinstance(cell.config, Config)
    return cell.config


def numbers(table: str, row: str, column: str) -> dict[str, Any]:
    return dict(config(table, row, column).objective.loss.numbers)


def every_cell() -> list[Cell]:
    tiers: tuple[Any, ...] = ("paper", "short", "smoke")
    return [cell for table in MARGINS for tier in tiers for cell in table.cells(tier)]


def test_every_paper_is_collected_under_its_name() -> None:
    assert list(TABLES) == ["lmcl", "cllr", "mmcl", "margins"]
    assert [table.name for table in TABLES["margins"]] == [table.name for table in MARGINS]
    for paper, tables in TABLES.items():
        assert tables
        assert {(table.domain, table.paper) for table in tables} == {("vision", paper)}


def test_the_papers_tables_and_figures_are_all_there() -> None:
    assert list(BY_NAME) == [
        *(f"table-{number}" for number in (1, 2, 3, 4, 9, 10)),
        *(f"figure-{number}" for number in (3, 4, 5, 6, 7)),
        "table-2-cifar10",
        *(f"figure-{number}-cifar10" for number in (3, 4, 5, 6, 7)),
        "table-4-small",
    ]
    assert {table.address for table in MARGINS} == {f"vision/margins/{name}" for name in BY_NAME}


@pytest.mark.parametrize("table", MARGINS, ids=lambda table: table.name)
def test_every_cell_has_a_meaning(table: Table) -> None:
    tiers: tuple[Any, ...] = ("paper", "short", "smoke")
    for tier in tiers:
        for cell in table.cells(tier):
            assert isinstance(cell.config, Config)
            check(cell.config)
            assert cell.config.protocol == table.protocol


def test_addresses_are_unique() -> None:
    addresses = [cell.address for cell in every_cell()]
    assert len(addresses) == len(set(addresses)) > 2000


def test_columns_have_the_sizes_of_their_dataset() -> None:
    for table in ("table-2", "figure-5"):
        for column in DATASETS:
            of = config(table, "MoCo", column)
            larger = column in ("STL10", "TinyImageNet")
            assert (of.dataset, of.evaluate_on) == (column, None)
            assert (of.image_size, of.stem) == ((64, "small") if larger else (32, "cifar"))
            assert of.teacher_momentum == (0.996 if larger else 0.99)
            assert (of.epochs, of.batch_size, of.learning_rate) == (200, 256, 0.06)


# What Tables 5 to 8 print for CIFAR10, CIFAR100, STL10 and TinyImageNet.
TUNED: dict[str, dict[str, tuple[float, ...]]] = {
    "MoCo + margins": {"angular": (0.1, 0.5, 0.4, 0.1), "subtractive": (0.4, 0.7, 0.6, 0.4)},
    "MoCo + pos.": {"emphasis": (20, 20, 40, 20)},
    "MoCo + pos. & curv.": {"emphasis": (20, 40, 40, 40), "curvature": (0.7, 1, 2.5, 2.5)},
    "MoCo + ratio.": {"angular": (1.6, 1.6, 0.4, 1.6)},
    "SimCLR + margins": {"angular": (0.5, 0.6, 0, 0), "subtractive": (0.4, 0.6, 0.2, 0.8)},
    "SimCLR + pos.": {"emphasis": (1.125, 1.0625, 1.0625, 1.0625)},
    "SimCLR + pos. & curv.": {"emphasis": (2.5, 2, 1.25, 1.125), "curvature": (0.7, 0.7, 0.7, 1)},
    "SimCLR + ratio.": {"angular": (0.2, 0.2, 0.4, 0.2)},
}


@pytest.mark.parametrize("row", TUNED)
def test_printed_hyperparameters_arrive(row: str) -> None:
    for table, columns in (("table-2", COLUMNS), ("table-3", TRANSFERS)):
        for column in columns:
            # In transfer it is the dataset of pretraining that they are tuned for.
            place = DATASETS.index(column.changes["dataset"])
            expected: dict[str, Any] = {name: values[place] for name, values in TUNED[row].items()}
            if row.endswith("ratio."):
                expected["ratio"] = "row"
            assert numbers(table, row, column.label) == {"temperature": 0.25, **expected}
            method = config(table, row, column.label).method
            assert method == ("moco_v3" if row.startswith("MoCo") else "simclr")


def test_byol_has_curvature_alone() -> None:
    assert [numbers("table-2", "BYOL + curv.", column) for column in DATASETS] == [
        {"curvature": curvature} for curvature in (1, 2.5, 5, 2.5)
    ]
    assert numbers("table-2", "BYOL", "STL10") == {}
    assert config("table-2", "BYOL", "STL10").method == "byol"
    assert numbers("table-3", "BYOL + curv.", "STL10_to_TinyImageNet") == {"curvature": 5}


def test_attenuation_follows_row_and_column() -> None:
    for method in ("MoCo", "SimCLR"):
        for alpha in (0.25, 1.0):
            for name, scope in (("typeI", "row"), ("typeII", "positive")):
                found = numbers("table-1", f"{method}, alpha={alpha:g}", f"STL10_{name}")
                assert found["attenuation"] == alpha
                assert found["attenuation_scope"] == scope
        one, two = (
            config("table-1", f"{method}, alpha=0", f"CIFAR100_{name}")
            for name in ("typeI", "typeII")
        )
        assert one == two == config("table-2", method, "CIFAR100")


def test_transfer_is_the_same_encoder_probed_elsewhere() -> None:
    there = config("table-3", "MoCo + pos.", "TinyImageNet_to_STL10")
    home = config("table-2", "MoCo + pos.", "TinyImageNet")
    assert there.evaluate_on == "STL10"
    assert there.dataset == "TinyImageNet"
    assert there.objective == home.objective
    assert (there.image_size, there.teacher_momentum) == (64, 0.996)


def test_long_runs() -> None:
    for table, column in (("table-9", "CIFAR10"), ("table-10", "CIFAR10_to_CIFAR100")):
        for emphasis in (1, 10, 20, 40):
            of = config(table, f"s={emphasis}", column)
            assert of.epochs == 1000
            assert of.method == "moco_v3"
            assert of.objective.loss.numbers["emphasis"] == emphasis
    assert config("table-9", "s=10", "STL10", "short").epochs == 50


def test_moco_v3_on_imagenet_has_the_reading_of_the_text_and_that_of_the_program() -> None:
    text = config("table-4", "MoCov3", "top1")
    program = config("table-4", "MoCov3, authors' program", "top1")
    assert (text.augmentations, text.loss_factor) == (("simclr", "simclr"), 1.0)
    assert not text.head_output_norm
    assert program.augmentations == ("moco_v3_first", "moco_v3_second")
    temperature = program.objective.loss.numbers["temperature"]
    assert program.loss_factor == 2 * (2 * temperature)  # the mean over two directions, 2 tau
    assert (program.head_output_norm, program.head_output_scale) == (True, False)
    first, second = (POLICIES[name] for name in program.augmentations)
    assert (first.blur, first.solarize, second.blur, second.solarize) == (1.0, 0.0, 0.1, 0.2)
    for policy in (first, second):
        assert policy.scale == (0.2, 1.0)
        assert policy.jitter == (0.4, 0.4, 0.2, 0.1)
    emphasised = config("table-4", "MoCov3 + pos. & curv., authors' program", "top1")
    assert emphasised.objective.loss.numbers["emphasis"] == 10.0


def test_sweeps() -> None:
    assert {row.label for row in BY_NAME["figure-5"].rows} >= {
        f"{method}, c={c}"
        for method in ("MoCo", "SimCLR", "BYOL")
        for c in ("0.3333", "0.5", "0.7", "1", "1.5", "2.5", "5")
    }
    assert numbers("figure-7", "SimCLR, m1=3.1", "CIFAR10")["angular"] == 3.1
    assert numbers("figure-6", "s=40, c=0.5", "CIFAR10") == {
        "temperature": 0.25,
        "emphasis": 40,
        "curvature": 0.5,
    }
    of = config("figure-4", "s=2.5", "batch 1024")
    assert (of.batch_size, of.learning_rate) == (1024, 0.24)
    for name in ("figure-3", "figure-4", "figure-5", "figure-6", "figure-7"):
        assert BY_NAME[name].published.rows == {}


def test_published_numbers_stand_beside_their_cells() -> None:
    published = BY_NAME["table-2"].published
    assert published.value("MoCo", "CIFAR10") == Value(89.413, 0.109)
    assert published.value("BYOL + curv.", "STL10") == Value(88.051, 0.230)
    ours = [row.label for row in BY_NAME["table-2"].rows if row.published is None]
    assert ours == [
        "DCL",
        "HCL",
        "SimCLR + DP, anchor sum",
        "SimCLR + DP, mean",
        "CLLR, l2,1",
        "CLLR, nuclear",
        "CLLR, authors' program",
        "MMCL INV, both views",
        "MMCL INV, first view",
        "MMCL PGD, both views",
        "untrained encoder",
    ]
    for table in MARGINS:
        for row in table.rows:
            assert row.published in (None, row.label.removesuffix(", authors' program"))


def test_the_other_papers_losses() -> None:
    def loss(row: str) -> tuple[str, dict[str, Any], str]:
        of = config("table-2", row, "CIFAR100")
        return of.objective.loss.function.__name__, dict(of.objective.loss.numbers), of.pairs

    assert loss("DCL") == ("debiased_nce", {"temperature": 0.25, "tau_plus": 0.1}, "both")
    assert loss("HCL") == ("hard_nce", {"temperature": 0.25, "tau_plus": 0.1, "beta": 1.0}, "both")
    kernel = {"gamma": 0.5, "cost": 100.0, "ridge": 0.1}
    assert loss("MMCL INV, both views") == ("max_margin", kernel, "both_views")
    assert loss("MMCL INV, first view") == ("max_margin", kernel, "first_view")
    gradient = {**kernel, "solver": "projected_gradient"}
    assert loss("MMCL PGD, both views") == ("max_margin", gradient, "both_views")
    for row, reduction in (("anchor sum", "anchor_sum"), ("mean", "mean")):
        (penalty,) = config("table-2", f"SimCLR + DP, {row}", "STL10").objective.penalties
        assert penalty.weight == 0.1
        assert penalty.numbers.get("reduction", "anchor_sum") == reduction
    assert config("table-2", "untrained encoder", "CIFAR10").epochs == 0
    assert config("table-2", "untrained encoder", "CIFAR10", "short").epochs == 0


@pytest.mark.parametrize("row", [row.label for row in BY_NAME["table-2"].rows])
def test_every_loss_of_table_2_has_a_gradient(row: str) -> None:
    of = config("table-2", row, "CIFAR10")
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(6, 8, generator=generator, requires_grad=True)
    second = torch.randn(6, 8, generator=generator)
    features = torch.randn(6, 8, generator=generator, requires_grad=True)
    match of.method, of.pairs:
        case "simclr", "both":
            pairs = two_views(first, second)
        case "simclr", "both_views":
            pairs = two_views(first, second, anchors="second")
        case _:
            pairs = (
                query_key(second, first) if of.pairs == "first_view" else query_key(first, second)
            )
    loss, _ = Criterion(of.objective, 8)(pairs, features=[features])
    loss.backward()
    assert torch.isfinite(loss)
    assert first.grad is not None
    assert first.grad.norm() > 1e-3
    assert (features.grad is not None) is (of.objective.projection is not None)


def test_short_tier_is_small_and_keeps_what_columns_say() -> None:
    small = config("table-2", "MoCo + pos.", "CIFAR10", "short")
    for field, value in SHORT.items():
        assert getattr(small, field) == value
    assert small.image_size == 32
    assert config("table-2", "MoCo + pos.", "STL10", "short").image_size == 64
    assert small.objective == config("table-2", "MoCo + pos.", "CIFAR10").objective


def test_smoke_tier_keeps_a_rows_tuned_objective() -> None:
    smoke = config("table-2", "MoCo + pos. & curv.", "embedded sample", "smoke")
    assert smoke.dataset == "digits"
    assert smoke.objective.loss.numbers == {
        "temperature": 0.25,
        "emphasis": 20.0,
        "curvature": 0.7,
    }


def test_references_name_where_they_are_from() -> None:
    assert REFERENCES.exists()
    sources = [reference.source for reference in BY_NAME["table-2"].references]
    assert sources == [
        "pc-cp/Benchmark-Methods-For-MNN (ReSSL's small-data program, linear evaluation)",
        "Zheng et al. 2021 (ReSSL), its MoCo v2 row",
    ]


# The tier on CIFAR-10


def test_rows_with_a_claim_have_three_seeds_and_the_others_one() -> None:
    (table,) = (each for each in TABLES["margins"] if each.name == "table-2-cifar10")
    comparisons = [each for claim in table.claims for each in claim.comparisons]
    claimed = {name for each in comparisons for name in (each.better, each.than)}
    for row in table.rows:
        seeds = {cell.seed for cell in table.cells("short", row=row.label)}
        three = row.label in claimed or row.label == "random network"
        assert seeds == ({0, 1, 2} if three else {0}), row.label
    assert claimed == {row.label for row in table.rows} - {
        "DCL",
        "HCL",
        "CLLR, authors' program",
        "MMCL INV, first view",
        "raw pixels",
        "8x8 thumbnail",
        "colour histogram",
        "random network",
    }


def test_every_table_of_the_tier_has_its_floors() -> None:
    floors = {
        "raw pixels": ("pixels", False),
        "8x8 thumbnail": ("thumbnail", False),
        "colour histogram": ("histogram", False),
        "random network": ("encoder", True),
    }
    tables = [table for some in TABLES.values() for table in some if "cifar10" in table.name]
    assert len(tables) == 10
    for table in tables:
        for row, (features, calibrated) in floors.items():
            cells = table.cells("short", row=row, seeds=(0,))
            assert next(each.baseline for each in table.rows if each.label == row)
            assert len({canonical_json(cell.config) for cell in cells}) == 1  # for every column
            of = cells[0].config
            assert isinstance(of, Config)
            assert (of.features, of.calibrated, of.epochs) == (features, calibrated, 0)


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7])
def test_sweeps_on_cifar10_are_those_of_the_paper_at_a_quarter_of_the_budget(number: int) -> None:
    figure, small = BY_NAME[f"figure-{number}"], BY_NAME[f"figure-{number}-cifar10"]
    rows = [row.label for row in small.rows if row.label != "random network"]
    assert rows[:-3] == [row.label for row in figure.rows]
    for cell in small.cells("short", row=figure.rows[1].label):
        at_home = config(f"figure-{number}", cell.row, cell.column)
        of = cell.config
        assert isinstance(of, Config)
        assert (of.objective, of.method) == (at_home.objective, at_home.method)
        assert (of.batch_size, of.learning_rate) == (at_home.batch_size, at_home.learning_rate)
        assert of.epochs == QUARTER["epochs"] == ON_CIFAR10["epochs"] / 4
        assert of.warmup_epochs / of.epochs == ON_CIFAR10["warmup_epochs"] / ON_CIFAR10["epochs"]
        assert cell.seed == 0


def test_notes_on_the_short_tier_say_what_it_is() -> None:
    (note,) = (note for note in BY_NAME["table-2"].notes if note.startswith("Short tier: ResNet"))
    assert "5000 images, 12 epochs, batches of 128, a learning rate of 0.03" in note
    long = BY_NAME["table-9"]
    assert any("50 epochs in place of 12" in note for note in long.notes)
    assert short_note(SHORT_OF_OTHERS) == (
        "Short tier: ResNet-18 with pooling after the first convolution, 4000 images, 10 epochs, "
        "batches of 128, a probe on features of unaugmented images."
    )
    with pytest.raises(ValueError, match="short tier: no words for precision"):
        short_note({**SHORT_OF_OTHERS, "precision": "float32"})
