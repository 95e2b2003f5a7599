"""Optical flow, TV-L1 or DIS, computed once per video and stored as images, one file per video.

DIS, dense inverse search, is an approximation for small budgets: a hundred times as fast as TV-L1
(313 frames of 128 x 96 a second against 2.5), it differs from it by half a pixel on average
(correlation 0.85). Results with one do not carry over to the other.

Shapes: T frames of a video, H x W pixels of a frame.

The format is that of [CoCLR], Han et al. 2020: the flow to the next frame in pixels, clipped to
-20 to 20, which is mapped to 0 to 255; the third channel is 128, the value for no motion. The last
flow is repeated, so that a video has as many flows as frames.

A file is an uncompressed zip of T JPEG images 00000.jpg, 00001.jpg, ..., whose channels red, green
and blue are x, y and filler, preceded by a member flow.json with their source and settings.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import warnings
import zipfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from shared.errors import UserError
from shared.experiment.data import writing
from shared.experiment.files import replacing
from shared.notices import Progress
from video.decoding import decode
from video.workers import in_order

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
    """The settings of a flow method, which are also stored in its files."""
    if method not in NAMES:
        raise ValueError(f"flow is by {' or '.join(NAMES)}; got {method!r}")
    head = {"method": NAMES[method], **PARAMETERS[method]}
    return {**head, "bound": BOUND, "filler": FILLER, "quality": QUALITY}


def prepare_flow(
    files: Sequence[Path],
    folder: Path,
    workers: int = 1,
    progress: Progress | None = None,
    method: str = "tvl1",
) -> list[Path]:
    """The flow files of videos, in order; missing ones are computed.

    A file gets its name only when it is complete, so that an interrupted call continues with the
    missing ones. Existing files are read once and kept if they are intact and were made from this
    video with these settings. Others are computed again, with a warning.

    files: videos of different names. folder: for the flow files, ``<name of the video>.zip``; it is
    created. Callers have to ensure that no other process writes there. workers: processes; 1: this
    one. progress: called with the videos done, their number, and what is done. method: of
    ``NAMES``.
    """
    targets = [_target(file, folder) for file in files]
    if len(set(targets)) < len(targets):
        raise ValueError("two videos with one name would share a flow file")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob(".*.part"):  # left by a killed process
            part.unlink()
    errors = []
    prepare = functools.partial(_prepare, folder=folder, method=method)
    with contextlib.closing(in_order(prepare, files, workers)) as outcomes:
        for done, outcome in enumerate(outcomes, start=1):
            if isinstance(outcome, UserError):
                errors.append(outcome)
            elif outcome is not None:
                warnings.warn(f"{outcome}; computed again", stacklevel=2)
            if progress is not None:
                progress(done, len(files), "optical flow")
    if errors:
        more = f" (and {len(errors) - 1} more videos)" if len(errors) > 1 else ""
        raise UserError(f"{errors[0]}{more}")
    return targets


def read_flow(file: Path) -> np.ndarray:
    """The flow (T, H, W, 3) uint8 of a video from its file."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = _images(json.loads(archive.read("flow.json"))["frames"])
            return np.stack([_decoded(archive.read(name)) for name in names])
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; have the flow computed first") from None
    except _DAMAGE as error:
        raise UserError(f"{file}: damaged ({error}); delete it, to have it made again") from None


def flow_frames(frames: np.ndarray, method: str = "tvl1") -> np.ndarray:
    """The flow (T, H, W, 3) uint8 from each frame (T, H, W, 3) to the next, the last one repeated.

    ``method`` is of ``NAMES``.
    """
    if len(frames) < 2:
        raise ValueError(f"flow needs at least 2 frames, got {len(frames)}")
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
    """What :func:`read_flow` gives of the frames' flow (T, H, W, 3) uint8, with JPEG's losses."""
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


# Errors of a damaged zip or JSON; NotImplementedError and RuntimeError if a flag is damaged
_DAMAGE = (
    zipfile.BadZipFile,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)


def _target(file: Path, folder: Path) -> Path:
    return folder / f"{file.stem}.zip"


def _prepare(file: Path, folder: Path, method: str) -> UserError | str | None:
    """Compute the flow of a video if needed; its error, or what was wrong with a replaced file."""
    target = _target(file, folder)
    try:
        source = _source(file)
        fault = None
        if target.exists() and (fault := _fault(target, source, method)) is None:
            return None
        frames = np.stack(list(decode(file)))
        if len(frames) < 2:
            raise UserError(f"{file}: one frame alone has no flow; omit the video")
        with one_thread():
            flow = flow_frames(frames, method)
        with writing(target):
            _write(target, flow, source, method)
    except UserError as error:
        return error
    return fault


def _source(file: Path) -> dict[str, Any]:
    """The description of a video in its flow file."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})") from None
    return {"video": file.name, "sha256": hashlib.sha256(content).hexdigest()}


def _write(target: Path, flow: np.ndarray, source: dict[str, Any], method: str) -> None:
    """Write a video's flow file atomically."""
    with replacing(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        meta = {"frames": len(flow), "source": source, "settings": settings_of(method)}
        archive.writestr("flow.json", json.dumps(meta))
        for name, image in zip(_images(len(flow)), flow, strict=True):
            archive.writestr(name, _jpeg(image))


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


def _fault(target: Path, source: dict[str, Any], method: str) -> str | None:
    """Why a flow file cannot be used; None if it can."""
    try:
        with zipfile.ZipFile(target) as archive:
            meta = json.loads(archive.read("flow.json"))
            if meta["source"] != source:
                return f"{target}: made from another video"
            if meta["settings"] != settings_of(method):
                return f"{target}: made with other settings"
            if archive.namelist() != ["flow.json", *_images(meta["frames"])]:
                return f"{target}: damaged (not {meta['frames']} images)"
            broken = archive.testzip()  # by the members' checksums
    except _DAMAGE as error:
        return f"{target}: damaged ({error})"
    return None if broken is None else f"{target}: damaged ({broken})"


def _decoded(data: bytes) -> np.ndarray:
    """The image (H, W, 3) uint8 of a JPEG file's content, red first."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if image is None:
        raise ValueError("not an image")
    return image


def _images(frames: int) -> list[str]:
    return [f"{frame:05d}.jpg" for frame in range(frames)]
