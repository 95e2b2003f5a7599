"""Imitation: whose frames, which features, what head, and what it returns."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl import imitation
from rl.agent import Contrast
from rl.config import ImitationConfig
from rl.data import Frames
from rl.environment import DeepMindControl, settings_of
from rl.evaluation import centre_crops, evaluation_seeds
from rl.expert import Expert, episode_return, mean_action
from rl.imitation import (
    Material,
    extract_features,
    feature_extractor,
    fit_head,
    material_of,
    policy_without_features,
    principal_components,
)
from shared.experiment.run import Run

SMALL = ImitationConfig().reduced()


def frames_of_noise(count: int = 60, size: int = 12) -> Frames:
    generator = torch.Generator().manual_seed(0)
    return Frames(
        torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator),
        torch.arange(count) // 10 * 10,
        torch.arange(count) // 10,
        torch.randn(count, 2, generator=generator),
        ("position", "velocity"),
    )


# The head


def test_a_head_fits_what_the_features_tell() -> None:
    torch.manual_seed(0)
    features = torch.randn(400, 5) * torch.tensor([1e-3, 1.0, 50.0, 1.0, 0.0]) + 7
    told = ((features - features.mean(0)) / features.std(0).clamp(min=1e-9))[:, :2]
    actions = (2 * told).tanh()
    config = dataclasses.replace(SMALL, head_hidden=32, head_updates=600, head_batch=64)
    head = fit_head(config, features, actions)
    assert float((head(features) - actions).square().mean()) < 0.01
    assert float(head(features).abs().max()) <= 1
    assert float((actions - actions.mean(0)).square().mean()) > 0.3


# Features


def test_principal_components_are_those_of_a_decomposition() -> None:
    config = dataclasses.replace(SMALL, crop=8, latent=5)
    frames = frames_of_noise()
    features = extract_features(config, principal_components(config, frames), frames)
    crops = centre_crops(frames, torch.arange(60), 8, config.stack)
    pixels = crops.flatten(1).double().numpy() / 255
    base = pixels[:: imitation.STRIDE]
    _, _, directions = np.linalg.svd(base - base.mean(0), full_matrices=False)
    expected = (pixels - base.mean(0)) @ directions[:5].T
    expected /= expected[:: imitation.STRIDE].std(0)
    ours = features.numpy()[:, ::-1]  # by falling variance
    signs = np.sign((ours * expected).sum(0))
    np.testing.assert_allclose(ours * signs, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_features_are_the_encoder_s_of_the_centre_crops(precision: Any) -> None:
    config = dataclasses.replace(SMALL, precision=precision, frame_size=40)
    frames = frames_of_noise(count=20, size=40)
    encoder = Contrast(config).encoder.eval()
    features = extract_features(config, feature_extractor(config, encoder), frames)
    crops = centre_crops(frames, torch.arange(20), config.crop, config.stack)
    with torch.no_grad():
        expected = encoder(crops)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    tolerance = 1e-5 if precision == "float32" else 0.1
    assert float((features - expected).abs().max()) < tolerance


# The whole


def run_of(folder: Path, data_root: Path, **changes: Any) -> dict[str, Any]:
    config = dataclasses.replace(SMALL, **changes)
    with Run(folder, config, data_root=data_root) as run:
        return run.finish(imitation.measure(config, run))


def test_the_head_reads_the_encoder_that_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the momentum encoder, which trails it."""
    frames, test = frames_of_noise(80, 40), frames_of_noise(20, 40)
    actions = torch.randn(80, 1).tanh(), torch.randn(20, 1).tanh()
    config = dataclasses.replace(SMALL, frame_size=40)
    contrast = Contrast(config)
    read: list[Any] = []

    def extractor(of: ImitationConfig, encoder: Any) -> Any:
        read.append(encoder)
        return feature_extractor(of, encoder)

    material = Material(Expert({}, {}, "0" * 64), frames, test, actions)
    result = {"return": 0.0, "details": {}}
    monkeypatch.setattr(imitation, "material_of", lambda *_: material)
    monkeypatch.setattr(imitation, "pretrain", lambda *_: contrast)
    monkeypatch.setattr(imitation, "evaluate_policy", lambda *_: dict(result))
    monkeypatch.setattr(imitation, "feature_extractor", extractor)
    with Run(tmp_path, config, data_root=tmp_path) as run:
        imitation.measure(config, run)
    assert len(read) == 1
    assert read[0] is contrast.encoder


@pytest.mark.slow
def test_the_material_is_the_same_for_all_seeds(tmp_path: Path, built_data: Path) -> None:
    made = []
    for seed in (0, 1):
        config = dataclasses.replace(SMALL, seed=seed)
        with Run(tmp_path / str(seed), config, data_root=built_data) as run:
            made.append(material_of(config, run))
    first, second = made
    assert first.expert.fingerprint == second.expert.fingerprint
    assert torch.equal(first.train.frames, second.train.frames)
    # 3 levels of 3 episodes, and of 2 held out, 10 frames each.
    assert len(first.train.frames) == 90
    assert len(first.test.frames) == 60
    assert first.train.episode.unique().tolist() == list(range(9))
    assert first.test.episode.unique().tolist() == list(range(9, 15))
    best = first.expert.policies["expert"]
    for part, actions in zip((first.train, first.test), first.actions, strict=True):
        assert torch.equal(actions, torch.from_numpy(mean_action(best, part.state.numpy())))


@pytest.mark.slow
def test_a_run_gives_the_return_and_the_state_and_the_same_again(
    tmp_path: Path, built_data: Path
) -> None:
    result = run_of(tmp_path / "curl", built_data)
    metrics = result["metrics"]
    assert set(metrics) == {
        "return",
        "action_r2",
        "r2",
        "r2_position",
        "r2_velocity",
        "details",
    }
    assert len(metrics["details"]["episodes"]) == SMALL.evaluation_episodes
    assert metrics["return"] == pytest.approx(np.mean(metrics["details"]["episodes"]))
    assert metrics["action_r2"] < 100
    again = run_of(tmp_path / "again", built_data)["metrics"]
    assert again == metrics
    assert (tmp_path / "curl" / "model.safetensors").is_file()
    environment = (tmp_path / "curl" / "environment.json").read_text()
    assert all(name in environment for name in ('"expert"', '"frames"', '"test_frames"'))


@pytest.mark.slow
def test_policies_without_an_encoder(tmp_path: Path, built_data: Path) -> None:
    expert = run_of(tmp_path / "expert", built_data, train=False, acts="expert")["metrics"]
    assert set(expert) == {"return", "details"}
    config = dataclasses.replace(SMALL, acts="expert")
    with Run(tmp_path / "without features", config, data_root=built_data) as run:
        material = material_of(config, run)
    settings = settings_of(config)
    with contextlib.closing(DeepMindControl(**settings, observe="state")) as environment:
        seeds = evaluation_seeds(config, config.environment_steps)
        expected = [
            episode_return(material.expert.policies["expert"], environment, seed) for seed in seeds
        ]
    assert expert["details"]["episodes"] == pytest.approx(expected, rel=1e-5)
    uniform = policy_without_features(dataclasses.replace(config, acts="random"), material)
    drawn: Tensor = torch.cat([uniform(torch.zeros(64, 5)) for _ in range(4)])
    assert drawn.shape == (256, 1)
    assert -1 <= float(drawn.min()) < -0.9
    assert 0.9 < float(drawn.max()) <= 1
    for name, changes in (
        ("pixels", {"probe_input": "pixels"}),
        ("untrained", {}),
        ("random", {"acts": "random"}),
    ):
        run_of(tmp_path / name, built_data, train=False, **changes)
        kept = (tmp_path / name / "model.safetensors").is_file()
        assert kept is (name == "untrained")
