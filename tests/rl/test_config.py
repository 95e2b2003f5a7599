"""Configurations of agents and probes that would be computed wrongly are refused."""

import dataclasses
from typing import Any

import pytest

from rl.config import Config, ProbeConfig, check
from rl.tables import TABLES


@pytest.mark.filterwarnings("error")
def test_every_declared_configuration_is_accepted() -> None:
    cells = {
        (cell.row, cell.column, tier): cell.config
        for some in TABLES.values()
        for table in some
        for tier in table.tiers
        for cell in table.cells(tier)
    }
    assert len(cells) > 300
    for config in cells.values():
        check(config)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (Config(), {"precision": "bf16"}, "precision is one of float32, .*; got 'bf16'"),
        (Config(), {"discount": 99.0}, r"discount lies in \[0, 1\]; got 99.0"),
        (Config(), {"encoder_momentum": 5.0}, r"encoder_momentum lies in \[0, 1\]"),
        (Config(), {"action_repeat": 0}, "action_repeat is a positive whole number; got 0"),
        (Config(), {"update_every": -1}, "update_every is a positive whole number"),
        (Config(), {"initial_temperature": 0.0}, "initial_temperature is positive"),
        (Config(), {"learning_rate": -1.0}, "learning_rate is at least 0"),
        (Config(), {"environment_steps": 8000}, "initial_steps 1000, .* from 1 to 999"),
        (Config(), {"initial_steps": 0}, "initial_steps 0, .* from 1 to 12499"),
        (ProbeConfig(), {"probe_input": "Pixels"}, "probe_input is one of embedding, pixels"),
        (ProbeConfig(), {"protocol": "mine"}, "protocol is 'state-probe-v1' here; got 'mine'"),
        (ProbeConfig(), {"contrastive": False}, "set train=False, not contrastive=False"),
        (
            ProbeConfig(),
            {"probe_input": "pixels"},
            "nothing here reads an encoder: set train=False",
        ),
        (ProbeConfig(), {"probe_episodes": 4}, "needs 5 training episodes; probe_episodes gives 4"),
        (
            ProbeConfig(),
            {"probe_test_episodes": 0},
            "probe_test_episodes is a positive whole number",
        ),
    ],
)
def test_what_would_be_ignored_or_wrong_is_refused(
    config: Config, changes: dict[str, Any], message: str
) -> None:
    check(config)
    with pytest.raises(ValueError, match=message):
        check(dataclasses.replace(config, **changes))


def test_another_action_repeat_than_curl_s_is_said() -> None:
    with pytest.warns(UserWarning, match="action_repeat of walker_walk is 2; this run has 8"):
        check(Config(task="walker_walk"))
