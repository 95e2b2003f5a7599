"""TV-L1 on textures that move as told, and its files: kept, resumed, found damaged."""

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from shared.errors import UserError
from tests.video.avi import write_avi
from video import flow as module
from video.data import FLOWS
from video.flow import FILLER, encoded, flow_frames, prepare_flow, read_flow

HEIGHT, WIDTH = 32, 40


def texture() -> np.ndarray:
    """Smooth colours (96, 96, 3) uint8 with detail enough to follow."""
    noise = np.random.default_rng(0).random((96, 96, 3)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 2)
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return np.rint(smooth * 255).astype(np.uint8)


def moving(frames: int, x: int, y: int) -> np.ndarray:
    """Windows (T, 32, 40, 3) uint8 of the texture, whose content moves (x, y) pixels a frame."""
    tops, lefts = (30 - y * np.arange(frames), 25 - x * np.arange(frames))
    return np.stack(
        [
            texture()[top : top + HEIGHT, left : left + WIDTH]
            for top, left in zip(tops, lefts, strict=True)
        ]
    )


def some_videos(folder: Path, count: int = 3) -> list[Path]:
    return [
        write_avi(folder / f"v_Pan_g01_c{i:02d}.avi", moving(3, 1, i % 3)) for i in range(count)
    ]


def states(files: list[Path]) -> list[tuple[int, bytes]]:
    """What changes when a file is written again, and what is in it."""
    return [(file.stat().st_mtime_ns, file.read_bytes()) for file in files]


def pixels(flow: np.ndarray) -> np.ndarray:
    """Motion (T, H, W, 2) in pixels of flow in bytes."""
    return flow[..., :2] * (40 / 255) - 20.0


# The flow


@pytest.mark.parametrize(("x", "y"), [(2, 0), (-1, 0), (0, 3), (1, -2)])
def test_flow_is_the_motion_of_the_texture(x: int, y: int):
    found = flow_frames(moving(3, x, y))
    assert found.shape == (3, HEIGHT, WIDTH, 3)
    assert found.dtype == np.uint8
    inner = pixels(found)[:, 6:-6, 6:-6]
    assert np.abs(np.median(inner, axis=(1, 2)) - (x, y)).max() < 0.1
    assert np.abs(inner - (x, y)).mean() < 0.3
    assert (found[..., 2] == FILLER).all()


@pytest.mark.parametrize("method", FLOWS)
def test_flow_is_opencvs_of_grays_of_red_green_and_blue(method: str):
    """In one channel each, red and blue move in two directions: luma follows red."""
    frames = np.concatenate([moving(3, 2, 0)[..., :1], moving(3, 0, 0)[..., 1:]], axis=3)
    frames[..., 2] = moving(3, -2, 0)[..., 2]
    weights = np.array([0.299, 0.587, 0.114])
    grays = [np.rint(frame @ weights).astype(np.uint8) for frame in frames]
    algorithm = (
        cv2.optflow.DualTVL1OpticalFlow_create(**module.TVL1)
        if method == "tvl1"
        else cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    )
    found = flow_frames(frames, method)
    for number in (0, 1):
        motion = algorithm.calc(grays[number], grays[number + 1], None)
        assert np.abs(found[number, ..., :2].astype(int) - encoded(motion)).mean() < 0.5
    assert np.array_equal(found[2], found[1])  # the last repeats the one before
    blue_first = flow_frames(np.ascontiguousarray(frames[..., ::-1]), method)
    assert np.abs(found.astype(int) - blue_first).mean() > 1


def test_another_method_is_refused_and_named():
    with pytest.raises(ValueError, match="flow is by tvl1 or dis; got 'farneback'"):
        flow_frames(moving(3, 1, 0), "farneback")
    assert set(FLOWS) == set(module.NAMES) == set(module.PARAMETERS)


def test_files_say_their_method_and_are_made_again_for_another(tmp_path: Path):
    videos = some_videos(tmp_path / "videos", 1)
    (file,) = prepare_flow(videos, tmp_path / "flow", method="dis")
    with zipfile.ZipFile(file) as archive:
        settings = json.loads(archive.read("flow.json"))["settings"]
    assert (settings["method"], settings["preset"]) == ("DIS", "medium")
    before = states([file])
    prepare_flow(videos, tmp_path / "flow", method="dis")
    assert states([file]) == before
    with pytest.warns(UserWarning, match="made with other settings; computed again"):
        prepare_flow(videos, tmp_path / "flow")


def test_motion_is_cut_off_at_twenty_pixels():
    motion = np.array([-500, -20.1, -20, -10, 0, 10, 19.99, 20, 21, 1e9], np.float32)
    assert encoded(motion).tolist() == [0, 0, 0, 64, 128, 191, 255, 255, 255, 255]
    assert encoded(np.float32([-19.9]))[0] == 1


def test_settings_are_the_defaults_of_opencv():
    default = cv2.optflow.DualTVL1OpticalFlow_create()
    ours = cv2.optflow.DualTVL1OpticalFlow_create(**module.TVL1)
    getters = [name for name in dir(default) if name.startswith("get") and "Name" not in name]
    assert len(getters) == 12
    for name in getters:
        assert getattr(ours, name)() == getattr(default, name)()


# The files


def test_files_hold_the_flow_of_the_decoded_videos(tmp_path: Path):
    from video.decoding import decode

    videos = some_videos(tmp_path / "videos")
    told = []
    files = prepare_flow(videos, tmp_path / "flow", 1, lambda *news: told.append(news))
    assert [file.name for file in files] == [f"v_Pan_g01_c{i:02d}.zip" for i in range(3)]
    assert told == [(i, 3, "optical flow") for i in (1, 2, 3)]
    for video, file in zip(videos, files, strict=True):
        found, expected = read_flow(file), flow_frames(np.stack(list(decode(video))))
        assert found.shape == expected.shape == (3, HEIGHT, WIDTH, 3)
        assert found.dtype == np.uint8
        apart = np.abs(found.astype(int) - expected)
        assert apart.max() <= 8
        assert apart.mean() < 1.5
        assert apart[..., 2].mean() < 1.5
    with zipfile.ZipFile(files[0]) as archive:
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}
        meta = json.loads(archive.read("flow.json"))
    assert meta["frames"] == 3
    assert meta["settings"]["lambda_"] == 0.15
    assert meta["source"]["video"] == "v_Pan_g01_c00.avi"


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def rewrite(file: Path, **changes: object) -> None:
    """The file with its last image left out, or with other words in flow.json."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if changes:
        meta = json.loads(members["flow.json"]) | changes
        members["flow.json"] = json.dumps(meta).encode()
    else:
        members.popitem()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def change_settings(file: Path) -> None:
    rewrite(file, settings={})


def change_frames(file: Path) -> None:
    rewrite(file, frames="x")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncate, "damaged"),
        (flip_a_bit, "damaged"),
        (rewrite, r"damaged \(not 3 images\)"),
        (change_frames, "damaged"),
        (change_settings, "made with other settings"),
    ],
)
def test_damaged_files_are_computed_again_and_named(
    tmp_path: Path, damage: Callable[[Path], None], why: str
):
    videos = some_videos(tmp_path / "videos", 2)
    files = prepare_flow(videos, tmp_path / "flow")
    before, expected = states(files), read_flow(files[1])
    damage(files[1])
    (tmp_path / "flow" / ".v_Pan_g01_c01.zip.1.part").write_bytes(b"PK")  # of a killed process
    with pytest.warns(UserWarning, match=f"v_Pan_g01_c01.zip: {why}.*; computed again"):
        prepare_flow(videos, tmp_path / "flow")
    assert sorted((tmp_path / "flow").iterdir()) == files
    assert states(files)[0] == before[0]
    assert np.array_equal(read_flow(files[1]), expected)
    after = states(files)
    with warnings.catch_warnings(action="error"):
        prepare_flow(videos, tmp_path / "flow")
    assert states(files) == after


def test_flow_of_another_video_of_the_same_name_is_computed_again(tmp_path: Path):
    video = write_avi(tmp_path / "v_a.avi", moving(3, 2, 0))
    (file,) = prepare_flow([video], tmp_path / "flow")
    write_avi(video, moving(3, -2, 0))
    with pytest.warns(UserWarning, match="made from another video; computed again"):
        prepare_flow([video], tmp_path / "flow")
    assert pixels(read_flow(file))[:, 6:-6, 6:-6, 0].mean() == pytest.approx(-2, abs=0.4)


def test_videos_that_cannot_be_used_are_named_after_the_others_are_done(tmp_path: Path):
    videos = some_videos(tmp_path / "videos", 2)
    single = write_avi(tmp_path / "v_single.avi", moving(1, 0, 0))
    with pytest.raises(UserError, match=r"v_single.avi: one frame alone has no flow.*$"):
        prepare_flow([single, *videos], tmp_path / "flow")
    assert len(list((tmp_path / "flow").glob("*.zip"))) == 2
    missing = tmp_path / "v_missing.avi"
    (tmp_path / "v_empty.avi").touch()
    with pytest.raises(UserError, match=r"v_missing.avi: cannot be read .*and 1 more videos") as it:
        prepare_flow([missing, tmp_path / "v_empty.avi"], tmp_path / "flow")
    assert "\n" not in str(it.value)


def test_videos_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="two videos with one name"):
        prepare_flow([tmp_path / "a" / "v.avi", tmp_path / "b" / "v.avi"], tmp_path)
