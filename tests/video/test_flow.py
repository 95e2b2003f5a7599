"""TV-L1 on textures that move as told, and its files: kept, resumed, found damaged."""

import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from shared.errors import UserError
from tests.video.test_decoding import write_avi
from video import flow as module
from video.data import FLOWS
from video.decoding import decode
from video.flow import FILLER, encoded, flow_frames, video_flow

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
    with pytest.raises(ValueError, match="farneback"):
        flow_frames(moving(3, 1, 0), "farneback")
    assert set(FLOWS) == set(module.NAMES) == set(module.PARAMETERS)


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
    video = write_avi(tmp_path / "v_Pan_g01_c00.avi", moving(3, 1, 0))
    found = video_flow(video, tmp_path / "flow", "dis")
    expected = flow_frames(np.stack(list(decode(video))), "dis")
    assert found.shape == expected.shape == (3, HEIGHT, WIDTH, 3)
    assert found.dtype == np.uint8
    apart = np.abs(found.astype(int) - expected)
    assert apart.max() <= 8
    assert apart.mean() < 1.5
    assert apart[..., 2].mean() < 1.5
    (file,) = (tmp_path / "flow").iterdir()
    with zipfile.ZipFile(file) as archive:
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.namelist() == ["00000.jpg", "00001.jpg", "00002.jpg"]
    # A damaged file is computed again, a whole one is not.
    whole = file.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:-1], whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]):
        file.write_bytes(damaged)
        assert np.array_equal(video_flow(video, tmp_path / "flow", "dis"), found)
        assert file.read_bytes()[-1:] == whole[-1:]
    video.unlink()
    assert np.array_equal(video_flow(video, tmp_path / "flow", "dis"), found)
    single = write_avi(tmp_path / "v_single.avi", moving(1, 0, 0))
    with pytest.raises(UserError, match="v_single"):
        video_flow(single, tmp_path / "flow", "dis")
