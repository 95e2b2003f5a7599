import contextlib
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rl import environment as module
from rl import simulator
from rl.config import ACTION_REPEATS, TASKS, Config
from rl.environment import DeepMindControl, make_environment
from rl.simulator import renderer_in_use, task_fingerprint
from shared.errors import UserError
from shared.experiment.data import sha256_of_files

SIZE = 24
CARTPOLE = "cartpole_swingup"


def make(task: str = CARTPOLE, **changes: Any) -> DeepMindControl:
    """A task with small frames and the papers' action repeat."""
    settings: dict[str, Any] = {
        "action_repeat": ACTION_REPEATS.get(task, 1),
        "frame_size": SIZE,
        "quality": "fast",
    }
    return DeepMindControl(task, **{**settings, **changes})


def actions_for(environment: DeepMindControl, count: int) -> np.ndarray:
    shape = (count, *environment.action_space.shape)
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def through_disk(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(snapshot, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def story(environment: DeepMindControl, actions: np.ndarray) -> list[bytes]:
    """All that comes of actions and of the episode begun after them."""
    told: list[bytes] = []
    for action in actions:
        observation, reward, _, _, info = environment.step(action)
        told += [observation.tobytes(), np.float64(reward).tobytes(), info["state"].tobytes()]
    observation, info = environment.reset()
    return [*told, observation.tobytes(), info["state"].tobytes()]


def run(program: str, variables: dict[str, str], *paths: Path) -> Any:
    """A program in a fresh process with these variables, and further paths to import from."""
    path = os.pathsep.join([str(Path(module.__file__).parents[1]), *map(str, paths)])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def cartpole() -> Iterator[DeepMindControl]:
    """One for many tests, each of which begins with a reset."""
    environment = make()
    yield environment
    environment.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the choice is DM Control's")
def test_a_variable_that_leaves_no_renderer_is_named() -> None:
    program = (
        "from rl.environment import DeepMindControl, make_environment\n"
        "from shared.errors import UserError\n"
        "try: DeepMindControl('cartpole_swingup', action_repeat=8, frame_size=8)\n"
        "except UserError as error: print(error)"
    )
    others = {each: text for each, text in os.environ.items() if each not in simulator._VARIABLES}
    done = run(program, {**others, "MUJOCO_GL": "vulkan"})
    assert done.stdout.count("\n") == 1, done.stderr
    assert all(word in done.stdout for word in ("MUJOCO_GL=vulkan", "libegl1", "libosmesa6"))


def test_a_process_forked_from_one_that_drew_says_so(cartpole: DeepMindControl) -> None:
    cartpole.reset(seed=0)
    vector = gymnasium.make_vec(
        "rl/cartpole-swingup-v0", 1, "async", vector_kwargs={"context": "fork"}, frame_size=8
    )
    try:
        with pytest.raises(UserError, match="spawn"):
            vector.reset()
    finally:
        vector.close(terminate=True)


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="needs DM Control, which is not built for Python 3.13"
)
def test_a_fresh_process_chooses_and_stays_quiet(tmp_path: Path) -> None:
    """Triton comes before the first frame; after it, it ends the process where Mesa draws."""
    # The walker is one of the models that MuJoCo warns about.
    program = (
        "import sys, rl.environment as module, rl.simulator\n"
        "assert 'dm_control' not in sys.modules and 'mujoco' not in sys.modules\n"
        "config = rl.Config(task='walker_walk').reduced()\n"
        "environment = module.make_environment(config)\n"
        "assert 'triton' in sys.modules\n"
        "environment.reset(seed=0)\n"
    )
    if find_spec("triton") is None:  # a build of torch without it
        (tmp_path / "triton.py").touch()
    else:
        program += "rl.Agent(config, action_dimensions=6)\n"  # imports it
    program += "environment.close()\nprint(rl.simulator.renderer_in_use())"
    variables = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    done = run(program, variables, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    backend, _, device = done.stdout.strip().partition(": ")
    assert backend in ("egl", "osmesa")
    assert device
    assert renderer_in_use().startswith(f"{os.environ['MUJOCO_GL']}: ")


@pytest.mark.parametrize("task", [*TASKS, "quadruped_walk"])  # whose actions have other bounds
def test_decisions_are_those_of_dm_control(task: str) -> None:
    environment = make(task, quality="full")
    observation, info = environment.reset(seed=5)
    actions = actions_for(environment, 3) * np.float32(1.5)

    domain, name = simulator.domain_and_name(task)
    theirs = simulator.suite().load(domain, name, task_kwargs={"random": 5})
    bounds = theirs.action_spec()
    share = (np.clip(actions.astype(np.float64), -1, 1) + 1) / 2
    inside = bounds.minimum + share * (bounds.maximum - bounds.minimum)
    frames, states, rewards = [], [], []
    for decision in range(-1, len(actions)):
        steps = ACTION_REPEATS.get(task, 1)
        times = [theirs.reset()] if decision < 0 else [theirs.step(inside[decision])]
        times += [theirs.step(inside[decision]) for _ in range(steps - 1 if decision >= 0 else 0)]
        rewards.append(sum(time.reward or 0.0 for time in times))
        states.append([x for value in times[-1].observation.values() for x in np.ravel(value)])
        frames.append(theirs.physics.render(SIZE, SIZE, camera_id=0).transpose(2, 0, 1))
    theirs.reset()
    frames.append(theirs.physics.render(SIZE, SIZE, camera_id=0).transpose(2, 0, 1))
    theirs.physics.free()

    assert info["state"].tolist() == states[0]
    assert len(environment.state_names) == len(set(environment.state_names)) == len(states[0])
    np.testing.assert_array_equal(observation, np.concatenate([frames[0]] * 3))
    kept = [(observation, observation.copy())]
    for decision, action in enumerate(actions, start=1):
        observation, reward, terminated, truncated, info = environment.step(action)
        kept += [(observation, observation.copy()), (info["frame"], info["frame"].copy())]
        last = [frames[max(decision - back, 0)] for back in (2, 1, 0)]
        np.testing.assert_array_equal(observation, np.concatenate(last))
        np.testing.assert_array_equal(info["frame"], frames[decision])
        assert info["state"].tolist() == environment.state.tolist() == states[decision]
        assert reward == pytest.approx(rewards[decision], abs=1e-12)
        assert (terminated, truncated) == (False, False)
    assert not np.array_equal(frames[0], frames[-1])
    assert environment.observation is observation
    assert environment.frame is info["frame"]
    for returned, copy in kept:
        np.testing.assert_array_equal(returned, copy)
    np.testing.assert_array_equal(environment.reset()[0], np.concatenate([frames[-1]] * 3))
    environment.close()
    environment.close()


def test_an_episode_has_its_number_of_environment_steps() -> None:
    # More than DM Control's own limit, which is 1000 for each of the tasks.
    environment = make(action_repeat=100, episode_steps=1100)
    environment.reset(seed=0)
    ends = []
    while environment._running:
        ends.append(environment.step(np.zeros(environment.action_space.shape))[2:4])
    assert ends == [(False, False)] * 10 + [(False, True)]
    seconds = 1100 * environment._inner.control.control_timestep()
    assert environment._inner.control.physics.time() == pytest.approx(seconds)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        environment.step(np.zeros(environment.action_space.shape))
    environment.close()


def test_a_task_that_ends_itself_terminates_within_a_decision(
    cartpole: DeepMindControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = cartpole._inner.control.task
    monkeypatch.setattr(task, "get_reward", lambda physics: 1.0)
    monkeypatch.setattr(
        task, "get_termination", lambda physics: 0.0 if physics.time() > 0.105 else None
    )
    cartpole.reset(seed=0)
    assert cartpole.step(np.zeros(1))[1:4] == (8.0, False, False)
    assert cartpole.step(np.zeros(1))[1:4] == (3.0, True, False)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        cartpole.step(np.zeros(1))
    cartpole.reset()
    assert cartpole.step(np.zeros(1))[1:4] == (8.0, False, False)


@pytest.mark.parametrize("task", TASKS)
def test_a_restored_environment_goes_on_to_the_bit(task: str) -> None:
    environment, fresh = make(task), make(task)
    actions = actions_for(environment, 12)
    environment.reset(seed=1)
    environment.step(actions[0])
    environment.reset()
    # From the start of an episode, and from its middle.
    for before, after in [(0, 3), (9, 12)]:
        for action in actions[:before]:
            environment.step(action)
        fresh.restore(through_disk(environment.snapshot()))
        for name in ("observation", "frame", "state"):
            np.testing.assert_array_equal(getattr(fresh, name), getattr(environment, name))
        np.testing.assert_array_equal(fresh._inner.draw(), environment._inner.draw())
        again = zip(fresh.snapshot().values(), environment.snapshot().values(), strict=True)
        assert all(str(one) == str(other) for one, other in again)
        assert story(fresh, actions[:after]) == story(environment, actions[:after])
    environment.close()
    fresh.close()


def test_a_snapshot_keeps_its_moment_and_the_end_of_an_episode() -> None:
    environment, fresh = make(episode_steps=24), make(episode_steps=24)
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.snapshot()
    environment.reset(seed=1)
    actions = actions_for(environment, 3)
    environment.step(actions[0])
    middle = environment.snapshot()
    assert [environment.step(action)[3] for action in actions[1:]] == [False, True]
    end = environment.snapshot()

    fresh.restore(middle)
    assert [fresh.step(action)[3] for action in actions[1:]] == [False, True]
    np.testing.assert_array_equal(fresh.observation, environment.observation)
    fresh.restore(end)
    with pytest.raises(gymnasium.error.ResetNeeded):
        fresh.step(actions[0])
    np.testing.assert_array_equal(fresh.reset()[0], environment.reset()[0])

    middle["state"] = middle["state"] + 1
    with pytest.raises(ValueError, match="other frames"):
        fresh.restore(middle)
    for one in (environment, fresh):
        one.close()


def test_a_configuration_says_all_that_its_environment_is() -> None:
    config = Config(
        task="walker_walk",
        action_repeat=3,
        frame_size=30,
        stack=2,
        episode_steps=60,
        quality="fast",
    )
    with contextlib.closing(make_environment(config)) as environment:
        model = environment._inner.control.physics.model
        assert model.vis.quality.offsamples == 0
        assert environment.observation_space.shape == (6, 30, 30)
        environment.reset(seed=0)
        ends = [environment.step(np.zeros(6))[3] for _ in range(20)]
    assert ends == [False] * 19 + [True]


def test_gymnasium_finds_the_tasks() -> None:
    for task in TASKS:
        specification = gymnasium.spec(f"rl/{task.replace('_', '-')}-v0")
        assert specification.entry_point == "rl.environment:DeepMindControl"
        assert specification.kwargs == {"task": task, "action_repeat": ACTION_REPEATS[task]}
        assert specification.max_episode_steps is None  # the environment knows its own end
    environment = gymnasium.make(
        "rl.environment:rl/ball-in-cup-catch-v0", frame_size=8, quality="fast"
    )
    inside = environment.unwrapped
    assert isinstance(inside, DeepMindControl)
    assert (inside._name, inside._repeat) == ("ball_in_cup_catch", 4)
    assert inside.observation_space.shape == (9, 8, 8)
    environment.close()


def test_fast_frames_are_dm_controls_without_multisampling_and_with_coarser_shadows() -> None:
    """Each of the two settings changes pixels, so that neither can be left out unseen."""
    actions = [1.0, -0.5]
    fast = make("walker_walk", frame_size=64, quality="fast")
    found = [fast.reset(seed=5)[1]["frame"]]
    found += [fast.step(np.full(6, action, np.float32))[4]["frame"] for action in actions]

    def theirs(*, samples: bool, shadows: bool) -> list[np.ndarray]:
        control = simulator.suite().load("walker", "walk", task_kwargs={"random": 5})
        if samples:
            control.physics.model.vis.quality.offsamples = 0
        if shadows:
            control.physics.model.vis.quality.shadowsize = 512
        control.reset()
        frames = [control.physics.render(64, 64, camera_id=0).transpose(2, 0, 1)]
        for action in actions:
            for _ in range(ACTION_REPEATS["walker_walk"]):
                control.step(np.full(6, action))
            frames.append(control.physics.render(64, 64, camera_id=0).transpose(2, 0, 1))
        control.physics.free()
        return frames

    for one, other in zip(found, theirs(samples=True, shadows=True), strict=True):
        assert np.array_equal(one, other)
    for lacking in ({"samples": True, "shadows": False}, {"samples": False, "shadows": True}):
        assert not np.array_equal(found, theirs(**lacking))
    fast.close()


def test_a_picture_is_the_frame_upright(cartpole: DeepMindControl) -> None:
    cartpole.reset(seed=0)
    np.testing.assert_array_equal(cartpole._inner.draw(), cartpole.frame.transpose(1, 2, 0))
    picture = cartpole.render()
    assert (picture.shape, picture.dtype) == ((240, 240, 3), np.uint8)
    assert cartpole.metadata["render_fps"] == 12  # 8 steps of 0.01 seconds
    # The sky is above the floor, and brighter.
    assert picture[:16].mean() > picture[-16:].mean()
    # Rendering in another size leaves the frames alone.
    before = cartpole.frame
    cartpole.reset(seed=0)
    np.testing.assert_array_equal(cartpole.frame, before)


def test_fingerprints_tell_tasks_and_versions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {task: task_fingerprint(task) for task in TASKS}
    assert len(set(before.values())) == len(TASKS)
    home = Path(simulator.suite().__file__).parent
    files = [home / "cartpole.py", home / "cartpole.xml", *(home / "common").glob("*.xml")]
    versions = [version(name) for name in ("mujoco", "dm-control")]
    text = " ".join([CARTPOLE, sha256_of_files(files), *versions])
    assert before[CARTPOLE] == hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setattr(simulator, "version", lambda name: f"{name} of tomorrow")
    assert task_fingerprint(CARTPOLE) != before[CARTPOLE]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: make("cartpole_swing"), "cartpole_swing"),
        (lambda: make("lqr_lqr_2_1"), "bounds"),
        (lambda: task_fingerprint("cartpole"), "cartpole"),
        (lambda: make(action_repeat=3), "action_repeat 3"),
        (lambda: make(quality="medium"), "medium"),
        (lambda: make(action_repeat=0), "0"),
        (lambda: make(frame_size=0), "0"),
        (lambda: make(frame_size=481), "481"),
    ],
)
def test_wrong_tasks_and_settings_are_errors(call: Callable[[], object], word: str) -> None:
    with pytest.raises((UserError, ValueError), match=word):
        call()


@pytest.mark.parametrize(
    "action", [np.zeros(2), np.zeros((1, 1)), np.array([np.nan]), np.array([np.inf]), 0.5]
)
def test_wrong_actions_are_errors(cartpole: DeepMindControl, action: Any) -> None:
    cartpole.reset(seed=0)
    with pytest.raises(ValueError, match="1 finite"):
        cartpole.step(action)


def test_rewards_and_simulations_that_are_not_finite_are_errors(
    cartpole: DeepMindControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    cartpole.reset(seed=0)
    cartpole.step(np.zeros(1))
    with monkeypatch.context() as patch:
        patch.setattr(cartpole._inner.control.task, "get_reward", lambda physics: np.nan)
        with pytest.raises(FloatingPointError, match="nan in step 16"):
            cartpole.step(np.zeros(1))
    cartpole.reset(seed=0)
    cartpole._inner.control.physics.data.qvel[:] = np.nan
    with pytest.raises(FloatingPointError, match=CARTPOLE):
        cartpole.step(np.zeros(1))
