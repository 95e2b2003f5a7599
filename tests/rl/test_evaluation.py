import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from rl import evaluation
from rl.config import Config
from rl.data import Frames
from rl.encoder import Encoder
from rl.environment import checked_maker
from rl.evaluation import (
    PENALTIES,
    PROTOCOLS,
    SUMMARIES,
    choose_penalty,
    embed,
    evaluate_policy,
    evaluation_seeds,
    ridge,
    state_probe,
)
from tests.rl import test_plain

EPISODES, STEPS = 10, 12
SMALL = dataclasses.replace(
    Config(), episode_steps=40, frame_size=20, crop=16, quality="fast", evaluation_episodes=2
)


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def episodes(count: int = EPISODES, steps: int = STEPS) -> Tensor:
    return torch.arange(count).repeat_interleave(steps)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"position[{number}]" for number in range(count))


# Policies


def push(observation: Tensor, *frequencies: float) -> Tensor:
    """Depends on every pixel, so that a mix-up of episodes shows."""
    total = observation.float().flatten(1).sum(1, keepdim=True)
    return torch.sin(total * torch.tensor(frequencies or (1.0,)))


def test_returns_are_those_of_single_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def act(observation: Tensor) -> Tensor:
        seen.add((observation.shape, observation.dtype, torch.is_grad_enabled()))
        return push(observation, 0.3, 1.0)

    def alone(observation: np.ndarray, _: int) -> np.ndarray:
        return act(torch.from_numpy(observation)[None])[0].numpy()

    returns = evaluate_policy(act, test_plain.CONFIG, seed=3, make=test_plain.drift)
    assert seen == {(torch.Size([3, 6, 10, 10]), torch.uint8, False)}
    assert returns == pytest.approx(test_plain.plain_returns(alone, 0, 3))
    assert len(set(returns)) == 3
    other = evaluate_policy(act, test_plain.CONFIG, seed=4, make=test_plain.drift)
    assert not set(other) & set(returns)
    for wrong in (lambda seen: act(seen).numpy(), lambda seen: act(seen)[:1]):
        with pytest.raises(ValueError, match=r"\(3, 2\)"):
            evaluate_policy(wrong, test_plain.CONFIG, seed=3, make=test_plain.drift)
    task = checked_maker(test_plain.CONFIG, test_plain.drift)
    of = {id(test_plain.CONFIG): task}
    monkeypatch.setattr(evaluation, "make_environment", lambda config: of[id(config)]())
    assert evaluate_policy(act, test_plain.CONFIG, seed=3) == returns


@pytest.mark.slow
def test_worker_processes_give_the_same_returns() -> None:
    assert evaluate_policy(push, SMALL, seed=3, workers=2) == evaluate_policy(push, SMALL, seed=3)


# Features


def made_up_frames() -> Frames:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=generator)
    episode = episodes(2, 3)
    return Frames(
        frames=pictures,
        first=torch.tensor([0, 0, 0, 3, 3, 3]),
        episode=episode,
        state=normal(1, 6, 2),
        names=names(2),
    )


def stacked(frames: Frames, crop: int) -> Tensor:
    """Centre crops of stacks of three, by loops."""
    corner = (8 - crop) // 2
    window = slice(corner, corner + crop)
    stacks = []
    for index in range(6):
        members = [max(index - back, 3 * (index // 3)) for back in (2, 1, 0)]
        stacks.append(torch.cat([frames.frames[of][:, window, window] for of in members]))
    return torch.stack(stacks)


def test_an_embedding_is_the_encoder_on_centre_crops() -> None:
    frames = made_up_frames()
    torch.manual_seed(0)
    encoder = Encoder(channels=9, size=6, filters=4, layers=1, latent=5)
    found = embed(encoder, frames, crop=6, stack=3, precision="float32", batch_size=4)
    assert encoder.training
    assert not found.requires_grad
    torch.testing.assert_close(found, encoder(stacked(frames, 6)).detach())
    half = embed(encoder, frames, crop=6, stack=3, precision="bfloat16")
    assert half.dtype == torch.float32
    assert not torch.equal(half, found)
    torch.testing.assert_close(half, found, rtol=0.05, atol=0.05)


# The probe


@pytest.mark.parametrize("width", [7, 200])
def test_scores_are_those_of_scikit_learn(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "COLUMNS", 5)  # in blocks
    train = 3 + normal(0, 120, width) * torch.arange(1, width + 1)
    train[:, 2] = 0.1  # its deviation in floating point is not 0
    test = 3 + normal(1, 60, width) * torch.arange(1, width + 1)
    weights = normal(2, width, 3) / width
    train_state = train @ weights + 50 * normal(3, 120, 3)
    test_state = test @ weights + 50 * normal(4, 60, 3)
    result = state_probe(train.float(), train_state, episodes(), test.float(), test_state, names(3))
    penalty = result["details"]["penalty"]
    assert penalty in PENALTIES
    inputs = StandardScaler().fit(train.float().double())
    first = inputs.transform(train.float().double())
    # Each frame's inner product with itself, on average: the number of features that vary.
    strength = penalty * np.square(first).sum(1).mean()
    targets = StandardScaler().fit(train_state)
    model = Ridge(strength).fit(first, targets.transform(train_state))
    predicted = targets.inverse_transform(model.predict(inputs.transform(test.float().double())))
    expected = 100 * r2_score(test_state.numpy(), predicted, multioutput="raw_values")
    found = list(result["details"]["targets"].values())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert result["r2"] == pytest.approx(expected.mean())
    assert list(result["details"]["targets"]) == list(names(3))


def test_ridge_is_that_of_scikit_learn() -> None:
    features, targets = 1 + normal(0, 20, 5).numpy(), 2 + normal(1, 20, 2).numpy()
    new = 1 + normal(2, 9, 5).numpy()
    kernel, other = features @ features.T, new @ features.T
    for penalty, found in zip((0.01, 1.0), ridge(kernel, targets, other, (0.01, 1.0)), strict=True):
        expected = Ridge(penalty).fit(features, targets).predict(new)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_folds_do_not_split_episodes() -> None:
    # Features tell the episode, and the target is a number of the episode. Among the frames of an
    # episode it can be looked up; in a new episode, it cannot.
    episode = episodes()
    features = normal(0, EPISODES, 30)[episode].numpy()
    target = normal(1, EPISODES, 1)[episode].numpy()
    kernel = features @ features.T / 30
    every = np.arange(EPISODES * STEPS)
    assert choose_penalty(kernel, target, episode.numpy()) > 100
    assert choose_penalty(kernel, target, every) < 0.01


def test_targets_that_do_not_vary_are_left_out() -> None:
    train, test = normal(0, 120, 4), normal(1, 60, 4)
    train_state, test_state = 0.01 * train, 0.01 * test
    labels = ("height", "position[0]", "touch[0]", "velocity[0]")
    touched = torch.cat([test_state[:, :2], normal(2, 60, 1), test_state[:, 3:]], 1)
    result = state_probe(train, train_state, episodes(), test, touched, labels)
    assert result["r2_position"] > 99 > result["r2"]  # a touch is no position
    train_state[:, 1] = 0.1
    test_state[:, 2] = 7
    result = state_probe(train, train_state, episodes(), test, test_state, labels)
    assert result["details"]["left_out"] == ["position[0]", "touch[0]"]
    assert list(result["details"]["targets"]) == ["height", "velocity[0]"]
    assert result["r2"] > 99
    assert result["r2_position"] > 99
    assert result["r2_velocity"] > 99
    test_state[:, 3] = 0
    result = state_probe(train, train_state, episodes(), test, test_state, labels)
    assert "r2_velocity" not in result
    half = train.bfloat16().requires_grad_(), test.bfloat16()
    rounded = half[0].detach().float(), half[1].float()
    assert state_probe(half[0], train_state, episodes(), half[1], test_state, labels) == (
        state_probe(rounded[0], train_state, episodes(), rounded[1], test_state, labels)
    )
    test_state[:, 0] = 0
    with pytest.raises(ValueError, match="no target varies"):
        state_probe(train, train_state, episodes(), test, test_state, labels)


def test_wrong_arguments_are_named() -> None:
    train, test = normal(0, 120, 4), normal(1, 60, 4)
    broken = test.clone()
    broken[3, 2] = torch.nan
    for given, word in (
        ((train, train, episodes(4, 30), test, test), "4 training episodes"),
        ((train, train, episodes(), test[:, :3], test), "test features"),
        ((train, train[:, :3], episodes(), test, test), "train states"),
        ((train, train, episodes()[1:], test, test), "train_episode"),
        ((train, train, episodes(), test, broken), "test states"),
        ((train, train, episodes(), broken, test), "features"),
    ):
        with pytest.raises(ValueError, match=word):
            state_probe(*given, names(4))


def test_the_second_version_of_returns_adds_their_mean_from_a_fifth_on() -> None:
    curve = [
        {"step": 10_000 * place, "return": value, "episodes": [value]}
        for place, value in enumerate((1000.0, 10.0, *[20.0] * 7, 40.0), start=1)
    ]
    assert SUMMARIES["dmc-return-v1"](curve) == {"return": 40.0}
    mean = (10 + 7 * 20 + 40) / 9  # from 20,000 of 100,000 steps on
    assert SUMMARIES["dmc-return-v2"](curve) == {"mean_return": pytest.approx(mean), "return": 40.0}
    # Random actions are evaluated once.
    assert SUMMARIES["dmc-return-v2"](curve[-1:]) == {"mean_return": 40.0, "return": 40.0}
    assert set(SUMMARIES) < set(PROTOCOLS)


def test_evaluations_of_different_seeds_and_steps_share_no_episode() -> None:
    """Below a million steps the seeds are those of the records, above they are others."""
    for seed, step in ((0, 100_000), (3, 990_000)):
        recorded = [
            int(np.random.SeedSequence((0x65766131, seed * 10**6 + step, e)).generate_state(1)[0])
            for e in range(10)
        ]
        assert evaluation_seeds(Config(seed=seed), step) == recorded
    places = [(seed, step) for seed in range(3) for step in (10_000, 1_010_000, 2_010_000)]
    found = [number for s, step in places for number in evaluation_seeds(Config(seed=s), step)]
    assert len(set(found)) == len(found)
