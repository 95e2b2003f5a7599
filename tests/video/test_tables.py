"""The video table: what the gate does not hold of it, and what every row trains.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from shared import query_key, two_views
from shared.command.cells import find_cell
from shared.experiment.tables import Table, Tier
from shared.pairs import Pairs
from video.config import Config
from video.encoder import check
from video.tables import CLAIMED, TABLE_5, TABLE_5_CLOSED, TABLE_5_SMALL, TABLES

MMCL = ("MMCL INV, both views", "MMCL INV, first view", "MMCL PGD, both views")
AT: dict[Tier, Table] = {"paper": TABLE_5, "short": TABLE_5_SMALL}


def config_of(row: str, tier: Tier = "paper") -> Config:
    config = AT[tier].cells(tier, row=row)[0].config
    assert isinstance(config, Config)
    return config


def pairs_of(config: Config, first: Tensor, second: Tensor) -> Pairs:
    """Who is compared with whom, by the builders that the table's notes are about."""
    if config.method == "moco":
        bank = torch.randn(9, first.shape[1], generator=torch.Generator().manual_seed(1))
        return query_key(first, second, bank, in_batch=False)
    if config.pairs == "first_view":
        return query_key(second, first)
    return two_views(first, second, anchors="both" if config.pairs == "both" else "second")


def test_every_row_states_its_own_deviation() -> None:
    assert len({row.deviation for row in TABLE_5.rows}) == len(TABLE_5.rows)
    for table in TABLES["mmcl"]:
        for row in table.rows:
            additional = row.deviation.startswith("Not reported for video by any paper")
            assert additional is (row.published is None)
            assert "{" not in row.deviation


def test_a_cell_is_found_in_the_table_that_has_its_tier() -> None:
    for tier, table in (("", TABLE_5), ("short/", TABLE_5_CLOSED)):
        chosen = find_cell(f"{tier}video/mmcl/table-5/simclr/rgb/seed-0")
        assert chosen.table.title == table.title
        assert {cell.config.protocol for cell in chosen.cells} == {table.protocol}
    assert TABLE_5_CLOSED.claims == ()


def test_two_columns_are_read_from_one_run() -> None:
    found = [cell.address for cell in TABLE_5_SMALL.cells("short", row=MMCL[0], seeds=[1])]
    address = "short/video/mmcl/table-5-small/mmcl-inv-both-views/{}/seed-1"
    assert found == [address.format(name) for name in ("rgb", "rgb", "flow", "flow")]
    assert [column.metric for column in TABLE_5.columns] == ["top1", "R@1", "top1", "R@1"]


@pytest.mark.parametrize(
    ("row", "tier", "negatives"),
    [
        (MMCL[0], "paper", 254),
        (MMCL[1], "paper", 127),
        (MMCL[2], "paper", 254),
        (MMCL[0], "short", 126),
        (MMCL[1], "short", 63),
    ],
)
def test_as_many_negatives_as_a_deviation_states(row: str, tier: Tier, negatives: int) -> None:
    config = config_of(row, tier)
    pairs = pairs_of(config, torch.eye(config.batch_size), torch.eye(config.batch_size))
    assert set(pairs.negative.sum(1).tolist()) == {negatives}
    assert set(pairs.positive.sum(1).tolist()) == {1}
    (deviation,) = (each.deviation for each in AT[tier].rows if each.label == row)
    assert str(negatives) in deviation


def test_the_steps_that_the_reduced_moco_states() -> None:
    config = config_of("MoCo-v2", "short")
    assert 819 // config.batch_size * config.epochs == 480
    assert 0.999**480 == pytest.approx(3 / 5, abs=0.03)


def test_the_rows_with_one_seed_more_are_those_of_the_claims() -> None:
    for table in TABLES["mmcl"][:2]:
        comparisons = [each for claim in table.claims for each in claim.comparisons]
        claimed = {label for each in comparisons for label in (each.better, each.than)}
        assert claimed == set(CLAIMED)


def test_every_configuration_has_a_meaning() -> None:
    for table in TABLES["mmcl"]:
        for tier in table.tiers:
            for cell in table.cells(tier):
                assert isinstance(cell.config, Config)
                check(cell.config)


def test_what_the_notes_state_of_wilson_intervals() -> None:
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


@pytest.mark.parametrize("row", [row.label for row in TABLE_5.rows if not row.baseline])
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
