import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl.replay import Draw, Replay, gather
from tests.stages.errors import error_of
from tests.stages.simulated_device import SimulatedDevice

SIZE, STACK, CROP = 12, 3, 9
CPU = torch.device("cpu")


def make(folder: Path, capacity: int = 100, device: torch.device = CPU, **changes: Any) -> Replay:
    settings = {"frame_size": SIZE, "stack": STACK, "action_dimensions": 2}
    return Replay(folder, capacity, device=device, **(settings | changes))


def frame_of(number: int, size: int = SIZE) -> np.ndarray:
    """The frame with this number, the same each time it is asked for."""
    return np.random.default_rng(number).integers(0, 256, (3, size, size), dtype=np.uint8)


def action_of(number: int) -> np.ndarray:
    return np.array([number, -number / 8], dtype=np.float32)


def fill(replay: Replay, start: int, stop: int, episode: int = 7) -> list[tuple[int, int]]:
    """Add frames in episodes of that many; for each transition its frame and the first one."""
    made = []
    for number in range(start, stop):
        if number % episode == 0:
            replay.begin(frame_of(number))
        else:
            over = number % episode == episode - 1
            replay.add(action_of(number), number / 4, frame_of(number), over)
            made.append((number - 1, number // episode * episode))
    return made


def crops_of(
    frames: list[np.ndarray], newest: int, first: int, corner: list[int], stack: int, crop: int
) -> np.ndarray:
    """The cropped stack, put together from its definition."""
    y, x = corner
    shown = [max(number, first) for number in range(newest - stack + 1, newest + 1)]
    return np.concatenate([frames[n][:, y : y + crop, x : x + crop] for n in shown])


# Stacks and crops


@pytest.mark.parametrize(("stack", "crop"), [(1, 12), (2, 1), (4, 9)])
def test_gather_is_what_a_plain_loop_gives(stack: int, crop: int):
    frames = [frame_of(number) for number in range(21)]
    torch.manual_seed(stack)
    index = torch.arange(21).repeat(3)
    first = index // 7 * 7
    offsets = torch.randint(SIZE - crop + 1, (63, 2))
    offsets[0], offsets[-1] = 0, SIZE - crop  # the last bytes of all
    made = gather(torch.from_numpy(np.stack(frames)), index, first, offsets, stack=stack, crop=crop)
    assert made.shape == (63, 3 * stack, crop, crop)
    assert made.dtype == torch.uint8
    for row in range(63):
        corner = offsets[row].tolist()
        expected = crops_of(frames, int(index[row]), int(first[row]), corner, stack, crop)
        np.testing.assert_array_equal(made[row], expected)


def test_gather_reaches_beyond_two_gigabytes_and_copies_no_frames(tmp_path: Path):
    count = 80_000  # 2.4 GB, all of it a hole in a file but for the last frame
    file = str(tmp_path / "frames.bin")
    flat = torch.from_file(file, shared=True, size=count * 30_000, dtype=torch.uint8)
    frames = flat.view(count, 3, 100, 100)
    frames[-1] = torch.from_numpy(frame_of(0, 100))
    index, offsets = torch.tensor([count - 1]), torch.tensor([[16, 5]])
    made = gather(frames, index, index, offsets, stack=1, crop=84)
    np.testing.assert_array_equal(made[0], frame_of(0, 100)[:, 16:, 5:89])
    with pytest.raises(RuntimeError, match="view"):
        gather(frames.mT, index, index, offsets, stack=1, crop=84)


def test_a_batch_is_what_the_transitions_say(tmp_path: Path):
    replay = make(tmp_path / "of" / "a run")
    made = fill(replay, 0, 40)
    assert len(replay) == len(made) == 34
    torch.manual_seed(0)
    draw = replay.draw(200, CROP)
    batch = replay.batch(draw, CROP)
    frames = [frame_of(number) for number in range(40)]
    seen = set()
    for row, number in enumerate(draw.index.tolist()):
        newest, first = made[number]
        seen.add(newest - first)
        for part, later, corners in zip(
            (batch.observation, batch.next_observation, batch.positive),
            (0, 1, 0),
            draw.offsets,
            strict=True,
        ):
            corner = corners[row].tolist()
            expected = crops_of(frames, newest + later, first, corner, STACK, CROP)
            np.testing.assert_array_equal(part[row], expected)
        np.testing.assert_array_equal(batch.action[row], action_of(newest + 1))
        assert batch.reward[row] == (newest + 1) / 4
        assert batch.terminated[row] == ((newest + 1) % 7 == 6)
    assert seen == set(range(6))  # the beginnings of episodes among them
    assert batch.action.dtype == batch.reward.dtype == torch.float32


def test_draws_and_additions_out_of_order_are_refused(tmp_path: Path):
    replay = make(tmp_path, capacity=2)
    with pytest.raises(ValueError, match="empty"):
        replay.draw(4, CROP)
    with pytest.raises(ValueError, match="begin"):
        replay.add(action_of(0), 0.0, frame_of(0))
    replay.begin(frame_of(0))
    with pytest.raises(ValueError, match="empty"):
        replay.draw(4, CROP)
    for frame in (frame_of(0, 11), frame_of(0).astype(np.int16), frame_of(0)[:1]):
        with pytest.raises(ValueError, match=r"\(3, 12, 12\)"):
            replay.add(action_of(1), 0.0, frame)
    with pytest.raises(ValueError, match="2 numbers"):
        replay.add(np.zeros(3, dtype=np.float32), 0.0, frame_of(1))
    for action, reward in ((action_of(1), np.nan), (np.full_like(action_of(1), np.inf), 0.0)):
        with pytest.raises(ValueError, match="not finite"):
            replay.add(action, reward, frame_of(1))
    assert len(replay) == 0
    replay.add(action_of(1), 0.0, frame_of(1))
    for crop in (0, SIZE + 1):
        with pytest.raises(ValueError, match="12"):
            replay.draw(4, crop)
    with pytest.raises(ValueError, match="crops"):
        replay.batch(replay.draw(50, CROP), SIZE)
    replay.begin(frame_of(2))
    replay.add(action_of(3), 0.0, frame_of(3))
    with pytest.raises(ValueError, match="full"):
        replay.add(action_of(4), 0.0, frame_of(4))
    replay.begin(frame_of(4))  # after the last transition, as a loop does
    with pytest.raises(ValueError, match="too short"):
        replay.begin(frame_of(5))
    assert len(replay) == 2


def test_the_space_of_a_whole_run_is_taken_when_it_is_made(tmp_path: Path):
    capacity, episodes = 5_000, 100
    make(tmp_path, capacity, frame_size=20, action_dimensions=6, episodes=episodes)
    status = (tmp_path / "frames.bin").stat()
    needed = (capacity + episodes + 1) * 1200
    assert needed <= status.st_size <= 1.2 * needed
    assert status.st_blocks * 512 >= status.st_size
    make(tmp_path, 1100)  # in environments of one's own an action may be an episode
    assert (tmp_path / "frames.bin").stat().st_size == 2201 * 3 * SIZE**2


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files as POSIX does")
@pytest.mark.parametrize("fallocate", [True, False])
def test_without_room_it_is_not_made(
    fallocate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import resource

    if not fallocate:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 * 3 * SIZE**2 + 7, hard))
    try:
        message = error_of(lambda: make(tmp_path, 10_000, frame_size=100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert message.startswith(f"{tmp_path / 'frames.bin'}: ")
    assert "0.6 GB" in message
    assert not (tmp_path / "frames.bin").exists()
    make(tmp_path)


# States and resumption


def bytes_of(folder: Path, frames: int) -> bytes:
    return (folder / "frames.bin").read_bytes()[: frames * 3 * SIZE**2]


def assert_equal(first: Replay, second: Replay) -> None:
    torch.manual_seed(1)
    draw = first.draw(64, CROP)
    exactly = partial(torch.testing.assert_close, rtol=0, atol=0)
    exactly(vars(first.batch(draw, CROP)), vars(second.batch(draw, CROP)))
    exactly(first.state_dict(), second.state_dict())


def saved(replay: Replay, file: Path) -> dict[str, Any]:
    """The state, through a file as of a checkpoint."""
    torch.save(replay.state_dict(), file)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


@pytest.mark.parametrize(("cut", "lost"), [(20, 9), (21, 0), (48, 9)])  # 21 begins an episode
def test_a_killed_run_goes_on_as_if_nothing_had_been(cut: int, lost: int, tmp_path: Path):
    whole = make(tmp_path / "whole")
    fill(whole, 0, 60)
    killed = make(tmp_path / "killed")
    fill(killed, 0, cut)
    state = saved(killed, tmp_path / "state.pt")
    fill(killed, cut, cut + lost, episode=5)  # other ones than those that come instead
    resumed = make(tmp_path / "killed")
    resumed.load_state_dict(state)
    assert len(resumed) == len(state["reward"])
    fill(resumed, cut, 60)
    assert_equal(resumed, whole)
    assert bytes_of(tmp_path / "killed", 60) == bytes_of(tmp_path / "whole", 60)
    assert bytes_of(tmp_path / "killed", 60) == b"".join(frame_of(n).tobytes() for n in range(60))


def test_an_empty_state_and_what_an_earlier_run_left(tmp_path: Path):
    fill(make(tmp_path), 0, 30)
    replay = make(tmp_path)
    empty = saved(make(tmp_path), tmp_path / "state.pt")
    assert (empty["frames"], empty["episode"]) == (0, 0)
    replay.load_state_dict(empty)
    assert len(replay) == 0
    fill(replay, 0, 10)
    other = make(tmp_path / "other")
    fill(other, 0, 10)
    assert_equal(replay, other)


def test_the_frames_reach_the_disk_before_the_state_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    replay = make(tmp_path)
    fill(replay, 0, 10)
    flushed: list[int] = []
    monkeypatch.setattr(np.memmap, "flush", lambda of: flushed.append(of.nbytes))
    replay.state_dict()
    assert flushed == [(tmp_path / "frames.bin").stat().st_size]


def test_deletion_leaves_what_is_not_its_own(tmp_path: Path):
    for name in ("first", "second"):
        replay = make(tmp_path / name)
        fill(replay, 0, 10)
        if name == "second":
            (tmp_path / name / "notes.txt").touch()
        replay.delete()
    assert [path.name for path in tmp_path.rglob("*")] == ["second", "notes.txt"]


# Bad input


@pytest.mark.parametrize("change", ["gone", "cut", "other"])
def test_frames_that_are_not_those_of_the_state_are_refused(change: str, tmp_path: Path):
    replay = make(tmp_path)
    fill(replay, 0, 30)
    state, file = replay.state_dict(), tmp_path / "frames.bin"
    if change == "gone":
        file.unlink()
    if change == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    other = make(tmp_path, frame_size=10 if change == "other" else SIZE)
    message = error_of(lambda: other.load_state_dict(state))
    assert message.startswith(f"{file}: ")


# Speed and accelerators


@pytest.mark.parametrize("simulated", [True, pytest.param(False, marks=pytest.mark.cuda)])
def test_a_gpu_gives_the_same_batches_also_from_a_graph(simulated: bool, tmp_path: Path):
    with SimulatedDevice() if simulated else contextlib.nullcontext():
        device = torch.device("cuda")
        replays = [make(tmp_path / name, device=torch.device(name)) for name in ("cpu", "cuda")]
        for replay in replays:
            fill(replay, 0, 40)
        resumed = make(tmp_path / "cuda", device=device)
        resumed.load_state_dict(replays[1].state_dict())
        assert replays[1].home.type == resumed.home.type == "cuda"
        draws = [resumed.draw(32, CROP) for _ in range(3)]
        static = Draw(draws[0].index.to(device), draws[0].offsets.to(device))
        resumed.batch(static, CROP)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = resumed.batch(static, CROP)
        for draw in draws:
            static.index.copy_(draw.index)
            static.offsets.copy_(draw.offsets)
            graph.replay()
            expected = vars(replays[0].batch(draw, CROP))
            for made in (captured, resumed.batch(draw, CROP), replays[1].batch(draw, CROP)):
                for name, value in vars(made).items():
                    assert value.is_cuda
                    assert torch.equal(value.cpu(), expected[name])
