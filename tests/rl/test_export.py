import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rl.agent import Agent, Contrast
from rl.config import Config, ProbeConfig
from rl.encoder import Encoder
from rl.export import ENCODER_NAMES, MODEL, POLICY, POLICY_NAMES, load, read, write
from rl.train import save_weights
from shared.errors import UserError
from shared.experiment.data import SUMS
from shared.experiment.export import CARD, CONFIG
from shared.experiment.initial import FILE
from shared.experiment.run import Run

State = dict[str, Tensor]
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
SCORES = {
    "r2": 40.5,
    "r2_position": 60.75,
    "r2_velocity": 20.25,
    "details": {
        "targets": {"position[0]": 60.75, "velocity[0]": 20.25},
        "penalty": 0.1,
        "left_out": [],
    },
}


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


def observations(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (5, 9, size, size), dtype=torch.uint8, generator=generator)


def check_the_card(
    target: Path, monkeypatch: pytest.MonkeyPatch, inputs: Tensor, expected: Tensor
) -> None:
    """The code of a card gives this for other inputs than its zeros."""
    (code,) = (
        part.split("```")[0] for part in (target / CARD).read_text().split("```python\n")[1:]
    )
    zeros = f"torch.zeros({(1, *inputs.shape[1:])}, dtype=torch.uint8)"
    monkeypatch.chdir(target)
    assert zeros in code
    names: dict[str, Tensor] = {"inputs": inputs}
    exec(code.replace(zeros, "inputs"), names)
    assert torch.equal(names["action" if "action" in names else "features"], expected)


def test_an_exported_policy_acts_as_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = finished_agent(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    assert {path.name for path in target.iterdir()} == {POLICY, CONFIG, SUMS, CARD}
    before = torch.get_rng_state()
    act = load(target)
    assert torch.equal(torch.get_rng_state(), before)
    expected = agent.act(observations(20), sample=False)
    assert expected.shape == (5, 2)
    assert expected.std(0).min() > 1e-4  # the observations differ
    assert torch.equal(act(observations(20)), expected)
    assert torch.equal(act(observations(20)), expected)  # no noise
    assert torch.equal(read(tmp_path / "run")(observations(20)), expected)
    check_the_card(target, monkeypatch, observations(20), expected)


def test_an_exported_probe_is_its_encoder_and_replaces_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_agent(tmp_path / "agent")
    contrast = finished_probe(tmp_path / "run")
    target = write(tmp_path / "agent", tmp_path / "export")
    write(tmp_path / "run", target)
    assert {path.name for path in target.iterdir()} == {FILE, CONFIG, SUMS, CARD}
    encoder = load(target)
    assert isinstance(encoder, Encoder)
    assert not encoder.training
    with torch.no_grad():
        expected = contrast.encoder(observations(16))
        assert torch.equal(encoder(observations(16)), expected)
        check_the_card(target, monkeypatch, observations(16), expected)
    assert load_file(target / FILE).keys() == contrast.encoder.state_dict().keys()


def test_the_card_of_a_policy_says_what_it_is(tmp_path: Path) -> None:
    finished_agent(tmp_path / "run")
    card = (write(tmp_path / "run", tmp_path / "export") / CARD).read_text()
    said = ModelCard(card).data
    assert said.pipeline_tag == "reinforcement-learning"
    assert [each.metric_value for each in said.eval_results] == [412.25]
    for text in (
        "# policy-finger-spin-info-nce\n",
        "whose encoder is trained by the contrastive loss `info_nce`, too; 100000 environment",
        "Protocol `dmc-return-v1` on finger_spin, tier `short`",
        "| return | 412.25 |",
        "101.5 after 10000, 412.2 after 20000",
    ):
        assert text in card
    finished_agent(tmp_path / "plain", dataclasses.replace(AGENT, contrastive=False))
    card = (write(tmp_path / "plain", tmp_path / "other") / CARD).read_text()
    assert "without a contrastive loss;" in card
    assert not ModelCard(card).data.tags


def test_the_card_of_a_probe_says_whose_frames_it_saw(tmp_path: Path) -> None:
    finished_probe(tmp_path / "run")
    card = (write(tmp_path / "run", tmp_path / "export") / CARD).read_text()
    for text in (
        "100 episodes of a random policy: 500 updates",
        "| r2 | 40.50 |\n| r2_position | 60.75 |\n| r2_velocity | 20.25 |",
        "position[0] 60.75, velocity[0] 20.25",
        "Output: 6 features",
    ):
        assert text in card
    finished_probe(tmp_path / "untrained", dataclasses.replace(PROBE, train=False))
    card = (write(tmp_path / "untrained", tmp_path / "export") / CARD).read_text()
    assert "not trained at all" in card


def edit_shape(state: State) -> None:
    state["actor.head.norm.weight"] = torch.ones(7)


def rename_key(state: State) -> None:
    state["actor.policy.9.bias"] = state.pop("actor.policy.2.bias")


def add_key(state: State) -> None:
    state["critics.first.0.bias"] = torch.zeros(8)


@pytest.mark.parametrize("edit", [edit_shape, rename_key, add_key])
def test_weights_that_do_not_fit_are_not_exported(
    tmp_path: Path, edit: Callable[[State], None]
) -> None:
    finished_agent(tmp_path / "run")
    state = load_file(tmp_path / "run" / MODEL)
    edit(state)
    save_file(state, tmp_path / "run" / MODEL)
    with pytest.raises(UserError, match=r"model\.safetensors: damaged or edited") as caught:
        write(tmp_path / "run", tmp_path / "export")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("; delete the folder and run its cell again")
    assert not (tmp_path / "export").exists()


def test_a_flipped_bit_is_seen_in_a_run_and_in_an_export(tmp_path: Path) -> None:
    agent = finished_agent(tmp_path / "run")
    with Run(tmp_path / "run", AGENT) as run:
        save_weights(run, agent, POLICY_NAMES)
    target = write(tmp_path / "run", tmp_path / "export")
    for file in (target / POLICY, target / CONFIG, tmp_path / "run" / MODEL):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(UserError, match=f"the SHA-256 of {file.name} is not the one in"):
            read(file.parent) if file.name == MODEL else load(file.parent)
        file.write_bytes(content)
    load(target)
    (target / SUMS).write_text("")
    with pytest.raises(UserError, match="SHA256SUMS does not list"):
        load(target)
    with pytest.raises(UserError, match="SHA256SUMS: there is no such file"):
        load(tmp_path)


def test_another_configuration_beside_the_weights_is_seen(tmp_path: Path) -> None:
    finished_agent(tmp_path / "run")
    fields = json.loads((tmp_path / "run" / CONFIG).read_text())
    (tmp_path / "run" / CONFIG).write_text(json.dumps({**fields, "hidden": 9}))
    with pytest.raises(UserError, match="size mismatch"):
        read(tmp_path / "run")


def test_runs_that_keep_no_network_are_refused(tmp_path: Path) -> None:
    finished_agent(tmp_path / "random", dataclasses.replace(AGENT, train=False))
    (tmp_path / "random" / MODEL).unlink()
    with pytest.raises(UserError, match="the run has no such file; baselines train no model"):
        write(tmp_path / "random", tmp_path / "export")
    with pytest.raises(UserError, match="there is no such file; delete the folder and run its"):
        read(tmp_path / "random")
    assert not (tmp_path / "export").exists()
