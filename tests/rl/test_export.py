"""What exports of control have of their own; the rest is the contract in tests/experiment."""

import dataclasses
import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from rl.encoder import Encoder
from rl.export import MODEL, POLICY, load, read, write
from shared.errors import UserError
from shared.experiment.data import SUMS
from shared.experiment.export import CARD, CONFIG
from shared.experiment.initial import FILE
from tests.experiment.test_export_contract import AGENT, PROBE, agent, probe


def test_an_exported_probe_says_what_it_is(tmp_path: Path) -> None:
    agent(tmp_path / "agent")
    probe(tmp_path / "run")
    (tmp_path / "agent" / SUMS).unlink()  # runs of earlier versions left none
    target = write(tmp_path / "agent", tmp_path / "export")
    assert {path.name for path in target.iterdir()} == {POLICY, CONFIG, SUMS, CARD}
    target = write(tmp_path / "run", tmp_path / "probe")
    assert {path.name for path in target.iterdir()} == {FILE, CONFIG, SUMS, CARD}
    encoder = load(target)
    assert isinstance(encoder, Encoder)
    assert not encoder.training


def test_cards_say_what_they_are_of(tmp_path: Path) -> None:
    agent(tmp_path / "run")
    said = ModelCard((write(tmp_path / "run", tmp_path / "export") / CARD).read_text()).data
    assert said.pipeline_tag == "reinforcement-learning"
    assert [each.metric_value for each in said.eval_results] == [4.0]
    agent(tmp_path / "plain", dataclasses.replace(AGENT, contrastive=False))
    plain = (write(tmp_path / "plain", tmp_path / "other") / CARD).read_text()
    assert not ModelCard(plain).data.tags
    probe(tmp_path / "untrained", dataclasses.replace(PROBE, train=False))
    card = (write(tmp_path / "untrained", tmp_path / "baseline") / CARD).read_text()
    assert "not trained" in card


def test_another_configuration_beside_the_weights_is_seen(tmp_path: Path) -> None:
    agent(tmp_path / "run")
    fields = json.loads((tmp_path / "run" / CONFIG).read_text())
    (tmp_path / "run" / CONFIG).write_text(json.dumps({**fields, "hidden": 9}))
    with pytest.raises(UserError, match="size mismatch"):
        read(tmp_path / "run")
    (tmp_path / "run" / MODEL).unlink()
    with pytest.raises(UserError, match=MODEL):
        read(tmp_path / "run")
