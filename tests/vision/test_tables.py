"""What the gate does not hold of vision's tables: that cells mean something and rows differ."""

import dataclasses
import json
from collections import defaultdict

import pytest
import torch

from shared import Criterion, query_key, two_views
from shared.experiment.tables import TIERS, Row, Table, canonical_json, load_published
from vision.augmentation import POLICIES
from vision.config import Config
from vision.evaluation import PROTOCOLS
from vision.methods import check
from vision.tables import TABLES
from vision.tables_common import NOTES, ON_CIFAR10, PUBLISHED, QUARTER, SHORT, reduced_note
from vision.tables_margins import TABLE_2

ALL = {f"{paper}/{table.name}": table for paper, some in TABLES.items() for table in some}
SWEPT = {name: ALL[name.removesuffix("-cifar10")] for name in ALL if name.endswith("-cifar10")}
SMALL = {name: ALL[name.removesuffix("-small")] for name in ALL if name.endswith("-small")}


def config_of(table: str, row: str, column: str) -> Config:
    """The configuration of a cell in the first tier that its table has a part in."""
    of = ALL[table]
    config = of.cells(of.tiers[0], row=row, column=column)[0].config
    assert isinstance(config, Config)
    return config


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_every_cell_has_a_meaning_and_an_address(table: Table) -> None:
    for tier in TIERS:
        cells = table.cells(tier)
        sources = {(each.row, each.source, each.seed) for each in cells}  # columns may share a run
        assert len({each.address for each in cells}) == len(sources)
        for each in cells:
            assert json.loads(canonical_json(each.config))["seed"] == each.seed
            if isinstance(each.config, Config):
                check(each.config)
                assert set(each.config.augmentations) <= set(POLICIES)
                assert each.config.protocol in PROTOCOLS


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_no_two_rows_are_the_same_run(table: Table) -> None:
    for column in table.columns:
        cells = table.cells(table.tiers[0], column=column.label)
        configs = {(each.row, canonical_json(each.config)) for each in cells}
        assert len(configs) == len({config for _, config in configs})


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_readings_of_one_printed_row_say_how_they_differ(table: Table) -> None:
    readings: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        if row.published is not None:
            readings[row.published].append(row)
    for rows in readings.values():
        if len(rows) > 1:
            deviations = {row.deviation for row in rows}
            assert all(deviations)
            assert len(deviations) == len(rows)


@pytest.mark.parametrize("row", [row.label for row in TABLE_2.rows])
def test_every_loss_of_the_margins_paper_has_a_gradient(row: str) -> None:
    of = config_of("margins/table-2", row, "CIFAR10")
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


def test_hyperparameters_are_those_printed_for_the_dataset_of_pretraining() -> None:
    for table, column in (("table-2", "STL10"), ("table-3", "STL10_to_TinyImageNet")):
        for row, printed in (
            ("MoCo + margins", {"angular": 0.4, "subtractive": 0.6}),
            ("MoCo + pos. & curv.", {"emphasis": 40, "curvature": 2.5}),
            ("SimCLR + ratio.", {"angular": 0.4, "ratio": "row"}),
        ):
            numbers = config_of(f"margins/{table}", row, column).objective.loss.numbers
            assert numbers == {"temperature": 0.25, **printed}
        byol = config_of(f"margins/{table}", "BYOL + curv.", column)
        assert byol.objective.loss.numbers == {"curvature": 5}


def test_the_kernel_of_cifar_100_widens_and_that_of_stl_10_does_not() -> None:
    cifar100, stl10 = (
        config_of("mmcl/table-8", "MMCL_INV", name) for name in ("cifar100", "stl10")
    )
    epochs = (0, 73, 74, 123, 124, 399)
    widths = [cifar100.objective_at(epoch).loss.numbers["gamma"] for epoch in epochs]
    assert widths == pytest.approx([0.02, 0.02, 0.2, 0.2, 2.0, 2.0])
    assert {stl10.objective_at(epoch).loss.numbers["gamma"] for epoch in epochs} == {0.5}


def test_a_printed_column_that_is_left_out_is_named() -> None:
    tuned, episodes = ALL["mmcl/table-1"], ALL["mmcl/table-1-few-shot"]
    printed = {*tuned.published.columns, *episodes.published.columns}
    whole = load_published(PUBLISHED / "mmcl.toml", "table-1")
    assert set(whole.columns) - printed == {"nyuv2_median_angular_error"}
    assert any("Surface normals on NYUv2" in note for note in tuned.notes)


def test_every_note_is_shown_somewhere() -> None:
    shown = {note for table in ALL.values() for note in table.notes}
    shown |= {row.deviation for table in ALL.values() for row in table.rows}
    everything = "\n".join(shown)
    assert [name for name, note in NOTES.items() if note not in everything] == []


# Reduced runs


@pytest.mark.parametrize("name", [*SWEPT, *SMALL])
def test_derived_tables_have_the_rows_of_their_paper_and_the_trivial_baselines(name: str) -> None:
    table, source = ALL[name], (SWEPT | SMALL)[name]
    if table.section.endswith("(MMCL), Table 1"):  # from the encoders of Table 3
        source = ALL["mmcl/table-3"]
    assert "paper" not in table.tiers
    rows = [row.label for row in table.rows if not row.baseline]
    assert rows == [row.label for row in source.rows if not row.baseline]
    baselines = {row.label for row in table.rows if row.baseline}
    assert baselines == {"raw pixels", "8x8 thumbnail", "colour histogram", "random network"}
    if name in SWEPT:  # one run of a baseline serves every column
        for label in baselines:
            cells = table.cells("short", row=label, seeds=(0,))
            assert len({each.key for each in cells}) == 1


@pytest.mark.parametrize("name", [name for name in SWEPT if name.startswith("margins/figure")])
def test_sweeps_on_cifar10_keep_what_the_figure_is_about(name: str) -> None:
    figure = SWEPT[name]
    for cell in ALL[name].cells("short", row=figure.rows[1].label):
        there, here = config_of(f"margins/{figure.name}", cell.row, cell.column), cell.config
        assert isinstance(here, Config)
        for field in ("objective", "method", "batch_size", "learning_rate"):
            assert getattr(here, field) == getattr(there, field)
        assert here.epochs == QUARTER["epochs"] == ON_CIFAR10["epochs"] / 4


@pytest.mark.parametrize("part", ["table-1", "table-1-few-shot", "table-1-linear"])
def test_transfer_shares_the_pretraining_of_table_3(part: str) -> None:
    for tier, ending, column in (("paper", "", "top1"), ("short", "-small", "CIFAR10")):
        table = ALL[f"mmcl/{part}{ending}"]
        for each in table.cells(tier):  # type: ignore[arg-type]
            here = each.config
            assert isinstance(here, Config)
            if here.epochs:
                there = config_of(f"mmcl/table-3{ending}", each.row, column)
                same = {"evaluate_on": None, "protocol": there.protocol, "beside": there.beside}
                assert dataclasses.replace(here, **same) == there


def test_rows_with_a_claim_have_three_seeds_and_the_others_one() -> None:
    table = ALL["margins/table-2-cifar10"]
    comparisons = [each for claim in table.claims for each in claim.comparisons]
    claimed = {name for each in comparisons for name in (each.better, each.than)}
    assert claimed
    for row in table.rows:
        seeds = {cell.seed for cell in table.cells("short", row=row.label)}
        three = row.label in claimed or row.label == "random network"
        assert seeds == ({0, 1, 2} if three else {0}), row.label


def test_reduced_runs_are_described_by_what_they_change() -> None:
    note = (
        "Reduced runs: ResNet-18 with pooling after the first convolution, 4000 images, 10 epochs, "
        "batches of 128, a probe on features of unaugmented images."
    )
    assert reduced_note(SHORT) == note
    assert note in ALL["mmcl/table-8"].notes
    with pytest.raises(ValueError, match="reduced runs: no description of precision"):
        reduced_note({**SHORT, "precision": "float32"})
