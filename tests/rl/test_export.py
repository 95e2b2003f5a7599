import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rl.agent import Agent, Contrast
from rl.config import Config, ImitationConfig, ProbeConfig
from rl.encoder import Encoder
from rl.export import (
    CONFIG,
    ENCODER,
    ENCODER_NAMES,
    MODEL,
    POLICY,
    POLICY_NAMES,
    SUMS,
    load,
    read,
    write,
)
from rl.train import save_weights
from shared.errors import UserError
from shared.experiment.runs import Run

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


def front_of(card: str) -> dict[str, object]:
    header = card.split("---\n", 2)[1]
    return {
        key: json.loads(value)
        for key, value in (line.split(": ", 1) for line in header.splitlines())
    }


def test_an_exported_policy_acts_as_the_agent(tmp_path: Path) -> None:
    agent = finished_agent(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "deep" / "export")
    assert target == tmp_path / "deep" / "export"
    assert {path.name for path in target.iterdir()} == {POLICY, CONFIG, SUMS, "README.md"}
    before = torch.get_rng_state()
    act = load(target)
    assert torch.equal(torch.get_rng_state(), before)
    expected = agent.act(observations(20), sample=False)
    assert expected.shape == (5, 2)
    assert expected.std(0).min() > 1e-4  # the observations differ
    assert torch.equal(act(observations(20)), expected)
    assert torch.equal(act(observations(20)), expected)  # no noise
    assert set(load_file(target / POLICY)) == {
        name for name in agent.state_dict() if name.startswith(("contrast.encoder.", "actor."))
    }


def test_an_exported_probe_is_its_encoder(tmp_path: Path) -> None:
    contrast = finished_probe(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    assert {path.name for path in target.iterdir()} == {ENCODER, CONFIG, SUMS, "README.md"}
    encoder = load(target)
    assert isinstance(encoder, Encoder)
    assert not encoder.training
    assert torch.equal(encoder(observations(16)), contrast.encoder(observations(16)))


def test_an_export_replaces_one_of_the_other_kind(tmp_path: Path) -> None:
    finished_agent(tmp_path / "agent")
    finished_probe(tmp_path / "probe")
    for run, weights in (("agent", POLICY), ("probe", ENCODER), ("agent", POLICY)):
        target = write(tmp_path / run, tmp_path / "export")
        assert {path.name for path in target.iterdir()} == {weights, CONFIG, SUMS, "README.md"}
        load(target)


def test_the_card_of_a_policy_says_what_it_is(tmp_path: Path) -> None:
    finished_agent(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    card = (target / "README.md").read_text()
    front = front_of(card)
    assert front["pipeline_tag"] == "reinforcement-learning"
    (model,) = front["model-index"]  # type: ignore[misc, attr-defined]
    (result,) = model["results"]
    assert result["dataset"] == {"type": "finger_spin", "name": "DM Control finger_spin"}
    assert result["metrics"] == [{"type": "mean_reward", "name": "return", "value": 412.25}]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    for text in (
        "# policy-finger-spin-info-nce\n",
        "whose encoder is trained by the contrastive loss `info_nce`, too; 100000 environment",
        "batches of 16,\nseed 0",
        "cannot stand beside published ones",
        environment["commit"],
        f"finger_spin: SHA-256 `{'5f' * 32}`",
        "Protocol `dmc-return-v1`, tier `short`",
        "| 10000 | 101.5 | 2 |\n| 20000 | 412.2 | 2 |",
        f"`{POLICY}`: SHA-256 `{hashlib.sha256((target / POLICY).read_bytes()).hexdigest()}`",
        (tmp_path / "run" / CONFIG).read_text(),
    ):
        assert text in card
    plain = dataclasses.replace(AGENT, contrastive=False)
    finished_agent(tmp_path / "plain", plain, tier="paper")
    card = (write(tmp_path / "plain", tmp_path / "other") / "README.md").read_text()
    assert "without a contrastive loss;" in card
    assert "Trained in the paper's setting" in card
    assert "contrastive-learning" not in card.split("## ")[0]


def test_the_card_of_a_probe_says_what_it_is(tmp_path: Path) -> None:
    finished_probe(tmp_path / "run")
    card = (write(tmp_path / "run", tmp_path / "export") / "README.md").read_text()
    front = front_of(card)
    assert front["pipeline_tag"] == "image-feature-extraction"
    (model,) = front["model-index"]  # type: ignore[misc, attr-defined]
    assert [item["value"] for item in model["results"][0]["metrics"]] == [40.5, 60.75, 20.25]
    for text in (
        "100 episodes of a random policy: 500 updates",
        "Protocol `state-probe-v1`",
        "| r2 | 40.50 |\n| r2_position | 60.75 |\n| r2_velocity | 20.25 |\n| position[0] | 60.75 |",
        "Output: 6 features",
    ):
        assert text in card
    finished_probe(tmp_path / "untrained", dataclasses.replace(PROBE, train=False))
    card = (write(tmp_path / "untrained", tmp_path / "other") / "README.md").read_text()
    assert "not trained at all" in card


def test_the_encoder_of_an_imitation_says_whose_frames_it_saw(tmp_path: Path) -> None:
    fields = {**vars(AGENT), "protocol": "imitation-return-v1", "probe_episodes": 12}
    with Run(tmp_path / "run", ImitationConfig(**fields), tier="short") as run:
        run.record_data(finger_spin="5f" * 32, frames="6e" * 32, expert="7d" * 32)
        save_weights(run, Contrast(run.config), ENCODER_NAMES)
        run.finish({"return": 512.5, **SCORES})
    card = (write(tmp_path / "run", tmp_path / "export") / "README.md").read_text()
    for text in (
        "12 episodes at each of three levels of an expert's skill: 500 updates",
        "| return | 512.50 |\n| r2 | 40.50 |",
    ):
        assert text in card
    (model,) = front_of(card)["model-index"]  # type: ignore[misc, attr-defined]
    kinds = [item["type"] for item in model["results"][0]["metrics"]]
    assert kinds == ["mean_reward", "r2", "r2", "r2"]
    assert isinstance(load(tmp_path / "export"), Encoder)


@pytest.mark.parametrize("make", [finished_agent, finished_probe])
def test_the_lines_of_the_card_run(
    make: Callable[[Path], nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make(tmp_path / "run")
    card = (write(tmp_path / "run", tmp_path / "export") / "README.md").read_text()
    (block,) = (part.split("```")[0] for part in card.split("```python\n")[1:])
    monkeypatch.chdir(tmp_path / "export")
    names: dict[str, object] = {}
    exec(block, names)
    if isinstance(module, Contrast):
        black = torch.zeros(1, 9, 16, 16, dtype=torch.uint8)
        assert torch.equal(names["features"], module.encoder(black))  # type: ignore[arg-type]
    else:
        assert isinstance(names["total"], float)
        assert names["environment"].unwrapped.frame.shape == (3, 20, 20)  # type: ignore[attr-defined]


def edit_tensor(state: State) -> None:
    state["actor.policy.4.bias"][0] += 1


def edit_shape(state: State) -> None:
    state["actor.head.norm.weight"] = torch.ones(7)


def rename_key(state: State) -> None:
    state["actor.policy.9.bias"] = state.pop("actor.policy.2.bias")


def drop_key(state: State) -> None:
    del state["actor.policy.2.bias"]


def add_key(state: State) -> None:
    state["critics.first.0.bias"] = torch.zeros(8)


EDITS = [edit_tensor, edit_shape, rename_key, drop_key, add_key]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_export_is_refused(tmp_path: Path, edit: Callable[[State], None]) -> None:
    finished_agent(tmp_path / "run")
    file = write(tmp_path / "run", tmp_path / "export") / POLICY
    state = load_file(file)
    edit(state)
    save_file(state, file)
    with pytest.raises(UserError, match=r"SHA-256 of policy\.safetensors is not the one in"):
        load(tmp_path / "export")


@pytest.mark.parametrize("edit", EDITS[1:])
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


def flips(content: bytes, count: int = 60) -> Iterator[bytes]:
    """The content with one bit flipped, at places all over it."""
    last = 8 * len(content)
    for place in range(0, last, last // count | 1):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        yield bytes(damaged)


def test_a_flipped_bit_of_what_a_run_keeps_is_seen(tmp_path: Path) -> None:
    agent = finished_agent(tmp_path / "run")
    with Run(tmp_path / "run", AGENT) as run:
        save_weights(run, agent, POLICY_NAMES)
    file = tmp_path / "run" / MODEL
    content = file.read_bytes()
    for damaged in flips(content):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"the SHA-256 of model\.safetensors") as caught:
            write(tmp_path / "run", tmp_path / "export")
        assert str(caught.value).endswith("; delete the folder and run its cell again")
    assert not (tmp_path / "export").exists()
    file.write_bytes(content)
    write(tmp_path / "run", tmp_path / "export")
    load(tmp_path / "export")


def test_the_weights_of_a_run_are_read_where_they_lie(tmp_path: Path) -> None:
    agent = finished_agent(tmp_path / "run")
    policy = read(tmp_path / "run")
    seen = observations(20)
    assert torch.equal(policy(seen), agent.act(seen, sample=False))
    contrast = finished_probe(tmp_path / "probe")
    crops = observations(16)
    with torch.no_grad():
        assert torch.equal(read(tmp_path / "probe")(crops), contrast.encoder(crops))
    fields = json.loads((tmp_path / "run" / CONFIG).read_text())
    (tmp_path / "run" / CONFIG).write_text(json.dumps({**fields, "hidden": 9}))
    with pytest.raises(UserError, match="size mismatch"):
        read(tmp_path / "run")


def test_a_damaged_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SHA256SUMS: there is no such file"):
        load(tmp_path)
    finished_agent(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    fields = json.loads((target / CONFIG).read_text())
    (target / CONFIG).write_text(json.dumps({**fields, "crop": 18}))
    with pytest.raises(UserError, match=r"SHA-256 of config\.json"):
        load(target)
    (target / CONFIG).unlink()
    with pytest.raises(UserError, match=r"config\.json is missing"):
        load(target)
    (target / SUMS).write_text("")
    with pytest.raises(UserError, match="SHA256SUMS does not list"):
        load(target)
    content = (tmp_path / "run" / MODEL).read_bytes()
    (tmp_path / "run" / MODEL).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors: damaged or edited"):
        write(tmp_path / "run", target)


def test_runs_without_a_network_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a finished run"):
        write(tmp_path / "nothing", tmp_path / "export")
    finished_agent(tmp_path / "smoke", tier="smoke")
    with pytest.raises(UserError, match="a smoke run"):
        write(tmp_path / "smoke", tmp_path / "export")
    finished_agent(tmp_path / "random", dataclasses.replace(AGENT, train=False))
    raw = dataclasses.replace(PROBE, train=False, probe_input="pixels")
    finished_probe(tmp_path / "pixels", raw)
    for run in ("random", "pixels"):
        (tmp_path / run / MODEL).unlink()
        with pytest.raises(UserError, match="keeps no network, as random actions, raw pixels"):
            write(tmp_path / run, tmp_path / "export")
    finished_agent(tmp_path / "lost")
    (tmp_path / "lost" / MODEL).unlink()
    with pytest.raises(UserError, match="there is no such file"):
        write(tmp_path / "lost", tmp_path / "export")
    assert not (tmp_path / "export").exists()
