"""The control tables: what the gate does not hold of them, and what every row trains.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

import dataclasses
import itertools

import pytest
import torch

from rl.agent import make_criterion
from rl.config import Config
from rl.tables import TABLE_4, TABLE_5, TABLES
from shared import Objective, query_key
from shared.experiment.tables import Table

EVERY = tuple(itertools.chain.from_iterable(TABLES.values()))


def config_of(table: Table, row: str) -> Config:
    config = table.cells(table.tiers[0], row=row, column="Swingup")[0].config
    assert isinstance(config, Config)
    return config


# What is declared


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.address)
def test_a_gain_is_credited_to_a_method_whose_rows_differ_in_nothing_else(table: Table) -> None:
    """Without penalties and projection, a row with the method is the one it is compared with."""
    methods = ("lmcl-table-5", "cllr-table-4", "distance-polarization", "low-rank")
    for claim in (each for each in table.claims if any(name in each.id for name in methods)):
        for each in claim.comparisons:
            (config, without) = (
                table.cells(table.tiers[0], row=label, column=each.columns[0])[0].config
                for label in (each.method, each.baseline)
            )
            assert isinstance(config, Config)
            plain = Objective(config.objective.loss)
            assert dataclasses.replace(config, objective=plain) == without


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
def test_the_objective_of_every_row_is_defined_for_its_scores(config: Config) -> None:
    query, key = torch.randn(2, 10, 50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss, _ = make_criterion(config)(query_key(query, key))
    loss.backward()
    assert torch.isfinite(loss)
    assert loss != 0
