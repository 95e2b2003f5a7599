import dataclasses
import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch import nn

from rl.agent import Agent, Contrast
from rl.config import Config, ProbeConfig
from rl.encoder import Encoder
from rl.export import ENCODER_NAMES, MODEL, POLICY, POLICY_NAMES, load, read, write
from shared.errors import UserError
from shared.experiment.data import SUMS
from shared.experiment.export import CARD, CONFIG
from shared.experiment.initial import FILE
from shared.experiment.run import Run

AGENT = dataclasses.replace(
    Config(),
    task="finger_spin",
    action_repeat=2,
    episode_steps=8,
    frame_size=20,
    crop=16,
    quality="fast",
    filters=4,
    convolutions=2,
    latent=6,
    hidden=8,
    batch_size=16,
)
PROBE = ProbeConfig(**{**vars(AGENT), "protocol": "state-probe-v1"})
RETURNS = {
    "return": 412.25,
    "details": {
        "curve": [
            {"step": 10_000, "return": 101.5, "episodes": [100.0, 103.0], "seconds": 1.0},
            {"step": 20_000, "return": 412.25, "episodes": [400.0, 424.5], "seconds": 2.0},
        ]
    },
}
SCORES = {"r2": 40.5, "details": {"targets": {"position[0]": 40.5}}}


def keep(folder: Path, module: nn.Module, prefixes: tuple[str, ...]) -> None:
    """The weights that a run of an earlier version leaves in its folder, without a checksum."""
    state = module.state_dict()
    kept = {name: state[name].contiguous() for name in state if name.startswith(prefixes)}
    save_file(kept, folder / MODEL)


def finished_agent(folder: Path, config: Config = AGENT, tier: str = "short") -> Agent:
    """A finished run's folder, without the training; weights that no initialisation gives."""
    with Run(folder, config, tier=tier) as run:
        run.record_data(finger_spin="5f" * 32)
        agent = Agent(config, 2)
        with torch.no_grad():
            for parameter in agent.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        keep(folder, agent, POLICY_NAMES)
        run.finish(RETURNS)
    return agent


def finished_probe(folder: Path, config: Config = PROBE, tier: str = "short") -> Contrast:
    with Run(folder, config, tier=tier) as run:
        run.record_data(finger_spin="5f" * 32, frames="6e" * 32)
        contrast = Contrast(config)
        keep(folder, contrast, ENCODER_NAMES)
        run.finish(SCORES)
    return contrast


def test_an_exported_probe_replaces_a_policy(tmp_path: Path) -> None:
    finished_agent(tmp_path / "agent")
    contrast = finished_probe(tmp_path / "run")
    target = write(tmp_path / "agent", tmp_path / "export")
    assert {path.name for path in target.iterdir()} == {POLICY, CONFIG, SUMS, CARD}
    write(tmp_path / "run", target)
    assert {path.name for path in target.iterdir()} == {FILE, CONFIG, SUMS, CARD}
    encoder = load(target)
    assert isinstance(encoder, Encoder)
    assert not encoder.training
    assert load_file(target / FILE).keys() == contrast.encoder.state_dict().keys()


def test_cards_say_what_they_are_of(tmp_path: Path) -> None:
    finished_agent(tmp_path / "run")
    said = ModelCard((write(tmp_path / "run", tmp_path / "export") / CARD).read_text()).data
    assert said.pipeline_tag == "reinforcement-learning"
    assert [each.metric_value for each in said.eval_results] == [412.25]
    finished_agent(tmp_path / "plain", dataclasses.replace(AGENT, contrastive=False))
    plain = (write(tmp_path / "plain", tmp_path / "other") / CARD).read_text()
    assert not ModelCard(plain).data.tags
    finished_probe(tmp_path / "untrained", dataclasses.replace(PROBE, train=False))
    card = (write(tmp_path / "untrained", tmp_path / "export") / CARD).read_text()
    assert "not trained" in card


def test_another_configuration_beside_the_weights_is_seen(tmp_path: Path) -> None:
    finished_agent(tmp_path / "run")
    fields = json.loads((tmp_path / "run" / CONFIG).read_text())
    (tmp_path / "run" / CONFIG).write_text(json.dumps({**fields, "hidden": 9}))
    with pytest.raises(UserError, match="size mismatch"):
        read(tmp_path / "run")
    (tmp_path / "run" / MODEL).unlink()
    with pytest.raises(UserError, match=MODEL):
        read(tmp_path / "run")
