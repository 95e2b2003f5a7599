"""The text tables: what the gate does not hold of them, and what every row trains.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

import pytest
import torch

from shared.command.cells import find_cell
from shared.experiment.tables import Table, Value
from text.config import Config
from text.tables import (
    TABLE_2,
    TABLE_2_BOOKCORPUS,
    TABLE_2_CLOSED,
    TABLE_4,
    TABLE_4_CLOSED,
)
from text.train import make_criterion, pairs_of


def config_of(table: Table, row: str) -> Config:
    config = table.cells("paper", row=row)[0].config
    return config


@pytest.mark.parametrize(
    ("table", "row", "subj", "mpqa"),
    [(TABLE_4, "QT", 86.6, 93.4), (TABLE_2_BOOKCORPUS, "CLLR(DCL+l21-norm)", 87.9, 93.7)],
)
def test_published_numbers_in_both_readings(
    table: Table, row: str, subj: float, mpqa: float
) -> None:
    value = table.published.value
    assert value(row, "SUBJ") == value(row, "MPQA (printed as SUBJ)") == Value(subj)
    assert value(row, "MPQA") == value(row, "SUBJ (printed as MPQA)") == Value(mpqa)
    assert value(row, "MSRP F1") is None


@pytest.mark.parametrize("closed", [TABLE_4_CLOSED, TABLE_2_CLOSED], ids=lambda t: t.address)
def test_a_closed_setting_has_the_address_of_the_paper_scale_and_no_claims(closed: Table) -> None:
    assert closed.claims == ()
    of = {tier: find_cell(f"{tier}{closed.address}/qt/six-tasks/seed-0") for tier in ("", "short/")}
    assert of["short/"].table.title == closed.title != of[""].table.title


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config_of(table, row.label), id=f"{table.name}, {row.label}")
        for table in (TABLE_4, TABLE_2)
        for row in table.rows
        if table is TABLE_4 or row.label.startswith("CLLR")
    ],
)
def test_the_objective_of_every_row_is_defined_for_its_scores(config: Config) -> None:
    f, g = torch.randn(2, 10, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    criterion = make_criterion(config, 6)
    loss, _ = criterion(
        pairs_of(config, f, g, torch.arange(10) // 6), features=torch.cat([f, g], 1)
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert loss != 0
