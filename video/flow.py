"""Optical flow, TV-L1 or DIS, computed once per video and stored as images, one file per video.

DIS, dense inverse search, is an approximation for small budgets: a hundred times as fast as TV-L1
(313 frames of 128 x 96 a second against 2.5), it differs from it by half a pixel on average
(correlation 0.85). Results with one do not carry over to the other.

Shapes: T frames of a video, H x W pixels of a frame.

The format is that of [CoCLR], Han et al. 2020: the flow to the next frame in pixels, clipped to
-20 to 20, which is mapped to 0 to 255; the third channel is 128, the value for no motion. The last
flow is repeated, so that a video has as many flows as frames.

A file is an uncompressed zip of T JPEG images 00000.jpg, 00001.jpg, ..., whose channels red, green
and blue are x, y and filler. What it was made from is part of the name of its folder.
"""

import contextlib
import itertools
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from shared.errors import UserError
from shared.experiment.files import replacing
from shared.experiment.folders import printable
from video.decoding import decode

BOUND = 20.0  # pixels; [CoCLR]
FILLER = 128  # [CoCLR]
QUALITY = 95  # of JPEG; chroma at full resolution, since it holds the motion

# Zach et al. 2007, by OpenCV; these are its defaults, which [CoCLR] takes.
TVL1 = {
    "tau": 0.25,
    "lambda_": 0.15,
    "theta": 0.3,
    "nscales": 5,
    "warps": 5,
    "epsilon": 0.01,
    "innnerIterations": 30,  # OpenCV's spelling
    "outerIterations": 10,
    "scaleStep": 0.8,
    "gamma": 0.0,
    "medianFiltering": 5,
    "useInitialFlow": False,
}

# Kroeger et al. 2016, "Fast Optical Flow using Dense Inverse Search", by OpenCV, with the settings
# of its preset for medium quality.
DIS = {"preset": "medium"}

NAMES = {"tvl1": "TV-L1", "dis": "DIS"}
PARAMETERS: dict[str, dict[str, Any]] = {"tvl1": TVL1, "dis": DIS}


def settings_of(method: str) -> dict[str, Any]:
    """The settings of a flow method."""
    if method not in NAMES:
        raise ValueError(f"flow is by {' or '.join(NAMES)}; got {method!r}")
    head = {"method": NAMES[method], **PARAMETERS[method]}
    return {**head, "bound": BOUND, "filler": FILLER, "quality": QUALITY}


def video_flow(file: Path, folder: Path, method: str) -> np.ndarray:
    """The flow (T, H, W, 3) uint8 of a video, by its file in ``folder``.

    The file is made if it is missing or damaged, and gets its name only when it is complete.
    ``method`` is of ``NAMES``.
    """
    target = folder / f"{file.stem}.zip"
    with contextlib.suppress(OSError, ValueError, zipfile.BadZipFile):
        return _read(target)
    frames = np.stack(list(decode(file)))
    if len(frames) < 2:
        raise UserError(f"{printable(file)}: one frame alone has no flow")
    with one_thread():
        flow = flow_frames(frames, method)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(target) as part, zipfile.ZipFile(part, "w") as archive:
        for number, image in enumerate(flow):
            archive.writestr(f"{number:05d}.jpg", _jpeg(image))
    return _read(target)


def _read(file: Path) -> np.ndarray:
    with zipfile.ZipFile(file) as archive:
        return np.stack([_decoded(archive.read(name)) for name in archive.namelist()])


def flow_frames(frames: np.ndarray, method: str = "tvl1") -> np.ndarray:
    """The flow (T, H, W, 3) uint8 from each frame (T, H, W, 3) to the next, the last one repeated.

    ``method`` is of ``NAMES``.
    """
    settings_of(method)
    algorithm: Any
    if method == "tvl1":
        algorithm = cv2.optflow.DualTVL1OpticalFlow_create(**TVL1)  # type: ignore[attr-defined]
    else:
        medium = cv2.DISOPTICAL_FLOW_PRESET_MEDIUM
        algorithm = cv2.DISOpticalFlow_create(medium)  # type: ignore[attr-defined]
    grays = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    flow = np.full(frames.shape, FILLER, np.uint8)
    for number, (gray, following) in enumerate(itertools.pairwise(grays)):
        flow[number, ..., :2] = encoded(algorithm.calc(gray, following, None))
    flow[-1] = flow[-2]
    return flow


def stored_flow(frames: np.ndarray, method: str) -> np.ndarray:
    """What :func:`video_flow` gives of the frames' flow (T, H, W, 3) uint8, with JPEG's losses."""
    return np.stack([_decoded(_jpeg(image)) for image in flow_frames(frames, method)])


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """One OpenCV thread in this process, where videos are shared out, not the pixels of a frame."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


def encoded(flow: np.ndarray) -> np.ndarray:
    """Motion in pixels as uint8: -20 and below are 0, no motion is 128, 20 and above are 255."""
    return np.rint((flow.clip(-BOUND, BOUND) + BOUND) * (255 / (2 * BOUND))).astype(np.uint8)


def _jpeg(image: np.ndarray) -> bytes:
    """The content of a JPEG file of an image (H, W, 3) uint8, red first."""
    parameters = [
        cv2.IMWRITE_JPEG_QUALITY,
        QUALITY,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    ]
    _, data = cv2.imencode(".jpg", image[..., ::-1], parameters)  # OpenCV: blue first
    return data.tobytes()


def _decoded(data: bytes) -> np.ndarray:
    """The image (H, W, 3) uint8 of a JPEG file's content, red first."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if image is None:
        raise ValueError("not an image")
    return image
