"""Configurations of agents and probes that would be computed wrongly are refused."""

import dataclasses
from typing import Any

import pytest

from rl.config import Config, ProbeConfig, check


@pytest.mark.parametrize(
    ("config", "changes", "word"),
    [
        (Config(), {"precision": "bf16"}, "precision"),
        (Config(), {"discount": 99.0}, "discount"),
        (Config(), {"encoder_momentum": 5.0}, "encoder_momentum"),
        (Config(), {"action_repeat": 0}, "action_repeat"),
        (Config(), {"update_every": -1}, "update_every"),
        (Config(), {"initial_temperature": 0.0}, "initial_temperature"),
        (Config(), {"learning_rate": -1.0}, "learning_rate"),
        (Config(), {"environment_steps": 8000}, "initial_steps"),
        (Config(), {"initial_steps": 0}, "initial_steps"),
        (ProbeConfig(), {"probe_input": "Pixels"}, "probe_input"),
        (ProbeConfig(), {"protocol": "mine"}, "protocol"),
        (ProbeConfig(), {"contrastive": False}, "train=False"),
        (ProbeConfig(), {"probe_input": "pixels"}, "train=False"),
        (ProbeConfig(), {"probe_episodes": 4}, "probe_episodes"),
        (ProbeConfig(), {"probe_test_episodes": 0}, "probe_test_episodes"),
    ],
)
def test_what_would_be_ignored_or_wrong_is_refused(
    config: Config, changes: dict[str, Any], word: str
) -> None:
    check(config)
    with pytest.raises(ValueError, match=word):
        check(dataclasses.replace(config, **changes))


def test_another_action_repeat_than_curl_s_is_said() -> None:
    with pytest.warns(UserWarning, match="action_repeat of walker_walk is 2; this run has 8"):
        check(Config(task="walker_walk"))
