"""The video table: what is in its rows, what it claims, and what every row trains."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from shared import (
    Objective,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
    max_margin,
    query_key,
    term,
    two_views,
)
from shared.command.domains import find_cell
from shared.experiment.records import read_records
from shared.experiment.tables import TIERS, Table, Tier, canonical_json
from shared.pairs import Pairs
from shared.report.files import markdown
from shared.report.measuring import measure
from video.config import EMBEDDED, Config
from video.encoder import check
from video.tables import (
    CLOSED,
    FLOORS,
    LABELS,
    SMALL,
    TABLE_5,
    TABLE_5_CLOSED,
    TABLE_5_SMALL,
    TABLES,
)

MMCL = ("MMCL INV, both views", "MMCL INV, first view", "MMCL PGD, both views")
CLLR = "CLLR(SimCLR+{}-norm), norm over batch"
NUMBERS = {"gamma": 0.5, "cost": 100.0, "ridge": 0.1}
SMALL_NOTES = " ".join(TABLE_5_SMALL.notes)
WHERE: dict[Tier, Table] = {"paper": TABLE_5, "short": TABLE_5_SMALL, "smoke": TABLE_5}


def config_of(row: str, column: str = "RGB linear", tier: Tier = "paper") -> Config:
    table = TABLE_5 if tier == "paper" else TABLE_5_SMALL
    config = table.cells(tier, row=row, column=column)[0].config
    assert isinstance(config, Config)
    return config


def smoke_of(row: str) -> Config:
    (cell,) = TABLE_5.cells("smoke", row=row)
    assert isinstance(cell.config, Config)
    return cell.config


def pairs_of(config: Config, first: Tensor, second: Tensor) -> Pairs:
    """Who is compared with whom, by the builders that the table's texts are about."""
    if config.method == "moco":
        bank = torch.randn(9, first.shape[1], generator=torch.Generator().manual_seed(1))
        return query_key(first, second, bank, in_batch=False)
    if config.pairs == "first_view":
        return query_key(second, first)
    return two_views(first, second, anchors="both" if config.pairs == "both" else "second")


# What is declared


def test_the_table() -> None:
    assert {paper: [table.address for table in some] for paper, some in TABLES.items()} == {
        "mmcl": ["video/mmcl/table-5", "video/mmcl/table-5-small", "video/mmcl/table-5"]
    }
    assert (TABLE_5.metric, TABLE_5.protocol) == ("top1", "coclr-linear-retrieval-v2")
    assert TABLE_5.also == ("ridge", "R@5", "R@10", "R@20", "top1_low", "top1_high")
    assert TABLE_5.seeds == {"paper": (0, 1, 2), "smoke": (0,)}
    assert TABLE_5.config == Config()
    assert TABLE_5_SMALL.seeds == {"short": (0, 1, 2, 3), "smoke": (0,)}
    assert TABLE_5_SMALL.protocol == TABLE_5.protocol


def test_tables_of_one_name_have_no_tier_in_common() -> None:
    tiers = [(table.name, tier) for table in TABLES["mmcl"] for tier in table.tiers]
    assert len(set(tiers)) == len(tiers)


def test_a_cell_is_found_in_the_table_that_has_its_tier() -> None:
    for tier, table in (("", TABLE_5), ("short/", TABLE_5_CLOSED)):
        chosen = find_cell(f"{tier}video/mmcl/table-5/simclr/rgb/seed-0")
        assert chosen.table.title == table.title
        assert {cell.config.protocol for cell in chosen.cells} == {table.protocol}


def test_the_closed_tier_is_that_of_its_records_and_claims_nothing() -> None:
    assert TABLE_5_CLOSED.seeds == {"short": (0,)}
    assert TABLE_5_CLOSED.claims == ()
    records = [
        record
        for record in read_records(Path(__file__).parents[2] / "results")
        if record.address.startswith("short/video/mmcl/table-5/")
    ]
    assert {record.address for record in records} == {
        cell.address for cell in TABLE_5_CLOSED.cells("short")
    }
    measured = measure(TABLE_5_CLOSED, "short", records, {})
    assert all(cell.values for row in measured.cells for cell in row)
    assert not measured.ignored
    best = max(cell.summary.mean for row in measured.cells for cell in row[1:] if cell.summary)
    assert best < 58  # as the notes say, by a thumbnail
    for cell in TABLE_5_CLOSED.cells("short"):
        assert cell.config.protocol == "coclr-linear-retrieval-v1"
        for name, value in CLOSED.items():
            assert getattr(cell.config, name) == value


def test_the_rows() -> None:
    assert {row.label: row.published for row in TABLE_5.rows} == {
        "8 x 8 thumbnail": None,
        "colour histogram": None,
        "untrained encoder": None,
        "untrained encoder, calibrated": None,
        "MoCo-v2": "MoCo-v2",
        "MoCo-v2, batch 64": "MoCo-v2",
        "SimCLR": None,
        **dict.fromkeys(MMCL, "MMCL"),
        "DCL": None,
        "HCL": None,
        "LMCL(SimCLR+DP)": None,
        CLLR.format("l21"): None,
        CLLR.format("nuclear"): None,
        "margins": None,
    }
    for row in TABLE_5.rows:
        ours = "Printed by no paper for video" in row.deviation
        assert ours is (row.published is None)
    assert len({row.deviation for row in TABLE_5.rows}) == len(TABLE_5.rows)


def test_two_columns_are_read_from_one_run() -> None:
    assert {column.label: (column.metric, column.changes) for column in TABLE_5.columns} == {
        "RGB linear": ("top1", {"modality": "rgb"}),
        "RGB R@1": ("R@1", {"modality": "rgb"}),
        "Flow linear": ("top1", {"modality": "flow"}),
        "Flow R@1": ("R@1", {"modality": "flow"}),
    }
    for tier, table in WHERE.items():
        assert [column.label for column in table.columns] == list(LABELS)
        if tier != "smoke":
            cells = table.cells(tier)
            seeds = sum(len(table.seeds_of(tier, row, table.columns[0])) for row in table.rows)
            assert seeds == len(table.rows) * 3 + (4 if tier == "short" else 0)
            assert len(cells) == 4 * seeds
            assert len({cell.address for cell in cells}) == 2 * seeds
    found = [cell.address for cell in TABLE_5_SMALL.cells("short", row=MMCL[0], seeds=[1])]
    address = "short/video/mmcl/table-5-small/mmcl-inv-both-views/{}/seed-1"
    assert found == [address.format(name) for name in ("rgb", "rgb", "flow", "flow")]


@pytest.mark.parametrize("tier", TIERS)
def test_rows_are_different_runs(tier: Tier) -> None:
    texts: dict[tuple[str, str], str] = {}
    for cell in WHERE[tier].cells(tier, seeds=(0,)):
        texts[cell.row, cell.run] = text = canonical_json(cell.config)
        assert json.loads(text)["seed"] == 0
    runs = len(set(texts.values()))
    # Where all batches are small, MoCo's second row is the same run as its first.
    assert len(texts) - runs == {"paper": 0, "short": 0, "smoke": 1}[tier]
    for (row, run), text in texts.items():
        if row == "MoCo-v2, batch 64":
            assert (text == texts["MoCo-v2", run]) is (tier != "paper")


def test_a_table_without_results_can_be_shown() -> None:
    for tier, table in WHERE.items():
        text = markdown(measure(table, tier, [], {}))
        for row in table.rows:
            assert f"| {row.label} |" in text
        assert "InfoNCE, 800 epochs" in text


def test_planned_minutes_and_memory_are_those_of_the_nine_classes() -> None:
    config = Config()
    # 1.6 seconds for each of two clips of a pair, a third of it where there is no way back.
    pretraining = 300 * 6 * 2 * 128 * 1.6
    forward = 100 * 819 + 10 * 5 * 306 + 5 * 1125
    assert config.epochs * (819 // config.batch_size) == 300 * 6
    for column in TABLE_5.columns:
        assert column.minutes == pytest.approx((pretraining + forward * 1.6 / 3) / 60, abs=50)
        assert column.gigabytes == pytest.approx(1 + 256 * 0.45)


# Settings


def test_changes_of_the_rows() -> None:
    assert config_of("MoCo-v2") == Config()
    moco = config_of("MoCo-v2")
    assert (moco.method, moco.queue, moco.teacher_momentum) == ("moco", 2048, 0.999)
    assert moco.objective == Objective(term(info_nce, temperature=0.07))
    assert config_of("MoCo-v2, batch 64") == dataclasses.replace(Config(), batch_size=64)
    assert config_of("untrained encoder") == dataclasses.replace(Config(), train=False)
    assert config_of("SimCLR") == dataclasses.replace(Config(), method="simclr")
    assert config_of("SimCLR", "Flow R@1") == dataclasses.replace(
        Config(), method="simclr", modality="flow"
    )


@pytest.mark.parametrize(
    ("row", "objective"),
    [
        (MMCL[0], Objective(term(max_margin, **NUMBERS))),
        (MMCL[1], Objective(term(max_margin, **NUMBERS))),
        (MMCL[2], Objective(term(max_margin, **NUMBERS, solver="projected_gradient"))),
        ("DCL", Objective(term(debiased_nce, temperature=0.07, tau_plus=0.1))),
        ("HCL", Objective(term(hard_nce, temperature=0.07, tau_plus=0.1, beta=1.0))),
        (
            "LMCL(SimCLR+DP)",
            Objective(
                term(info_nce, temperature=0.07),
                (term(distance_polarization, weight=0.1, lower=0.1, upper=0.5),),
            ),
        ),
        ("margins", Objective(term(margin_nce, temperature=0.07, angular=0.5, subtractive=0.4))),
    ],
)
def test_losses_of_a_batch_change_the_objective_alone(row: str, objective: Objective) -> None:
    pairs = {MMCL[0]: "both_views", MMCL[1]: "first_view", MMCL[2]: "both_views"}.get(row, "both")
    changes: dict[str, Any] = {"objective": objective, "pairs": pairs}
    assert config_of(row) == dataclasses.replace(config_of("SimCLR"), **changes)


@pytest.mark.parametrize("norm", ["l21", "nuclear"])
def test_cllr_adds_its_projection_to_simclr(norm: str) -> None:
    config = config_of(CLLR.format(norm))
    projection = config.objective.projection
    assert projection is not None
    assert (projection.weight, projection.options) == (0.1, {"norm": norm, "alpha": 10 / 128})
    objective = dataclasses.replace(config.objective, projection=None)
    assert dataclasses.replace(config, objective=objective) == config_of("SimCLR")
    assert config.projection_dimensions == 256


@pytest.mark.parametrize(
    ("row", "batch_size", "negatives"),
    [
        ("SimCLR", 128, 254),
        (MMCL[0], 128, 254),
        (MMCL[1], 128, 127),
        (MMCL[2], 128, 254),
        (MMCL[0], 64, 126),  # the short tier's
        (MMCL[1], 64, 63),
    ],
)
def test_as_many_negatives_as_are_said(row: str, batch_size: int, negatives: int) -> None:
    tier: Tier = "paper" if batch_size == 128 else "short"
    config = config_of(row, tier=tier)
    assert config.batch_size == batch_size
    pairs = pairs_of(config, torch.eye(batch_size), torch.eye(batch_size))
    assert set(pairs.negative.sum(1).tolist()) == {negatives}
    assert set(pairs.positive.sum(1).tolist()) == {1}
    if row in MMCL:
        for text in (
            *(each.deviation for each in WHERE[tier].rows if each.label == row),
            *((SMALL_NOTES,) if tier == "short" else ()),
        ):
            assert str(negatives) in text


def test_the_short_tier() -> None:
    base = TABLE_5_SMALL.config
    assert isinstance(base, Config)
    assert base.objective == Objective(term(info_nce, temperature=0.1))
    assert dataclasses.replace(base, objective=Config().objective) == dataclasses.replace(
        Config(), **SMALL
    )
    for row in TABLE_5.rows:
        if row.label == "MoCo-v2, batch 64":
            continue  # the same run as MoCo-v2 there
        short, paper = config_of(row.label, tier="short"), config_of(row.label)
        for name in ("method", "pairs", "train", "queue", "protocol", "dataset", "seed"):
            assert getattr(short, name) == getattr(paper, name)
        theirs, ours = paper.objective, short.objective
        assert ours.loss.function is theirs.loss.function
        numbers = dict(theirs.loss.numbers)
        if "temperature" in numbers:
            numbers["temperature"] = 0.1
        assert ours.loss.numbers == numbers
        assert ours.penalties == theirs.penalties
        if theirs.projection is not None:
            assert ours.projection is not None
            assert ours.projection.options["alpha"] == 10 / 64
    assert 819 // base.batch_size * base.epochs == 480  # steps, of which MoCo's deviation speaks
    assert 0.999**480 == pytest.approx(3 / 5, abs=0.03)
    assert base.flow == "dis"
    assert "DIS" in TABLE_5_SMALL.title


@pytest.mark.parametrize("tier", ["paper", "short"])
def test_floors_train_nothing(tier: Tier) -> None:
    for row in WHERE[tier].rows:
        config = config_of(row.label, tier=tier)
        assert config.train is (row not in FLOORS)
        assert row.floor is (row in FLOORS)
        assert config.calibrate is (row.label == "untrained encoder, calibrated")
    assert WHERE[tier].rows[: len(FLOORS)] == FLOORS


@pytest.mark.parametrize(("tier", "seeds"), [("paper", 3), ("short", 4)])
def test_rows_with_a_claim_have_more_seeds_in_the_short_tier(tier: Tier, seeds: int) -> None:
    (table,) = (each for each in TABLES["mmcl"] if tier in each.tiers and each.claims)
    comparisons = [each for claim in table.claims for each in claim.comparisons]
    claimed = {label for each in comparisons for label in (each.better, each.than)}
    for row in table.rows:
        wanted = seeds if row.label in claimed else 3
        assert len(table.seeds_of(tier, row, table.columns[0])) == wanted


def test_smoke_is_the_real_run_smaller() -> None:
    for cell in TABLE_5_SMALL.cells("smoke"):
        small = config_of(cell.row, tier="short")
        assert cell.config == small.reduced()
        assert cell.config.network == small.network
    for row in TABLE_5.rows:
        smoke, full = smoke_of(row.label), config_of(row.label)
        assert smoke.dataset == EMBEDDED
        assert smoke == full.reduced()
        for name in ("clip_frames", "size", "width", "batch_size", "epochs", "queue"):
            assert getattr(smoke, name) < getattr(full, name)
        for name in ("objective", "method", "pairs", "train", "modality", "protocol"):
            assert getattr(smoke, name) == getattr(full, name)


@pytest.mark.parametrize("tier", TIERS)
def test_every_configuration_has_a_meaning(tier: Tier) -> None:
    for table in TABLES["mmcl"]:
        for cell in table.cells(tier):
            check(cell.config)
    for cell in TABLE_5.cells(tier, seeds=(0,)):
        if config_of(cell.row).network != "s3d":
            continue  # a feature of as few frames as there are
        with pytest.raises(ValueError, match="clip_frames 7"):
            check(dataclasses.replace(cell.config, clip_frames=7))


# Claims


def test_what_the_notes_say_of_wilson_intervals() -> None:
    def half(accuracy: float, videos: int) -> float:
        found = binomtest(round(accuracy * videos / 100), videos).proportion_ci(method="wilson")
        return 50 * float(found.high - found.low)

    printed = [value.mean for row in TABLE_5.published.rows.values() for value in row if value]
    assert len(printed) == 8
    assert all(5 < half(value, 306) < 6 for value in printed)
    assert max(round(half(value, 3783), 1) for value in printed) == 1.6


def test_the_baseline_is_quoted() -> None:
    """The printed row of MoCo-v2 is CoCLR's InfoNCE, number by number."""
    (reference,) = TABLE_5.references
    printed = TABLE_5.published.value
    assert reference.value("InfoNCE, 500 epochs", "RGB linear") == printed("MoCo-v2", "RGB linear")
    for column in ("RGB R@1", "Flow R@1"):
        value = reference.value("InfoNCE, released checkpoints", column)
        assert value == printed("MoCo-v2", column)


# What every row trains


@pytest.mark.parametrize("row", [row.label for row in TABLE_5.rows])
def test_the_objective_of_every_row_has_a_loss_and_a_gradient(row: str) -> None:
    config = config_of(row)
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(10, 6, generator=generator).requires_grad_() for _ in range(2))
    features = torch.randn(10, 12, generator=generator).requires_grad_()
    criterion = config.objective.build(12)
    loss, parts = criterion(pairs_of(config, first, second), features=features)
    loss.backward()
    assert torch.isfinite(loss)
    for embedding in (first, second):
        assert embedding.grad is not None
        assert torch.isfinite(embedding.grad).all()
        assert embedding.grad.abs().sum() > 0
    for penalty in config.objective.penalties:
        assert parts[penalty.function.__name__] > 0
    if config.objective.projection is not None:
        assert criterion.projection is not None
        assert criterion.projection.matrix.grad is not None
        assert criterion.projection.matrix.grad.abs().sum() > 0
