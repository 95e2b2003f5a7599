"""The video table: what the gate does not hold of it.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

from shared.command.cells import find_cell
from video.config import Config
from video.encoder import check
from video.tables import CLAIMED, TABLE_5, TABLE_5_CLOSED, TABLE_5_SMALL, TABLES


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
    found = [
        cell.address for cell in TABLE_5_SMALL.cells("short", row="MMCL INV, both views", seeds=[1])
    ]
    address = "short/video/mmcl/table-5-small/mmcl-inv-both-views/{}/seed-1"
    assert found == [address.format(name) for name in ("rgb", "rgb", "flow", "flow")]
    assert [column.metric for column in TABLE_5.columns] == ["top1", "R@1", "top1", "R@1"]


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
