"""Your own videos: folders by class, and pytorchvideo's datasets.

Frames are kept in memory, as squares of the size that clips are cropped from: 65 KB a frame for
clips of 128 pixels. They are decoded like UCF-101's, upright.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from shared.errors import UserError
from shared.experiment.data import sha256_of_files, sha256_of_lines
from shared.experiment.folders import Folder, layout_of, printable, read_folder, undamaged
from video import data
from video.config import OWN
from video.data import Video, Videos, stored_side, too_short
from video.decoding import decode, fault_of

ENDINGS = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".m4v")
WHAT = "videos"
GROUPS = 10  # in place of recordings, which are unknown: every tenth video


def folder(
    path: str | Path, size: int, *, flow: str | None = None, skip_damaged: bool = False
) -> Videos:
    """The training and test videos of your own folder.

    Args:
        path: the folder, see :mod:`shared.experiment.folders` for its layout. Without class folders
            all labels are -1, which is enough for pretraining.
        size: S, the side of the clips in pixels.
        flow: "tvl1" or "dis": their optical flow, as :func:`video.load` makes it, for a
            configuration of ``modality="flow"``; None: the frames.
        skip_damaged: omit videos that cannot be used, with a warning that lists them.

    Raises:
        MissingData: there is no such folder.
        UserError: it has no videos, another layout, or unusable videos, which are all named.
        ValueError: there is no such method of flow.
    """
    content = read_folder(Path(path), str(path), WHAT, ENDINGS)
    content.warn()
    entries = [(file, label, True) for file, label in content.train]
    entries += [(file, label, False) for file, label in content.test or ()]
    return _decoded(entries, content.classes, size, Path(path), skip_damaged, flow)


def from_pytorchvideo(
    train: Any, size: int, *, test: Any = None, skip_damaged: bool = False
) -> Videos:
    """The videos of a ``LabeledVideoDataset``, whose own decoder and clips are not used.

    Args:
        train: such a dataset, or pairs of a path and ``{"label": number}``.
        size: S, the side of the clips in pixels.
        test: likewise, to test on.
        skip_damaged: omit videos that cannot be used, with a warning that lists them.

    Raises:
        UserError: unusable videos, which are all named.
    """
    from video.pytorchvideo import paths_of

    parts = [(train, True)] if test is None else [(train, True), (test, False)]
    entries = [
        (Path(file), label, is_train) for part, is_train in parts for file, label in paths_of(part)
    ]
    count = 1 + max(label for _, label, _ in entries)
    classes = [str(number) for number in range(count)]
    common_folder = Path(os.path.commonpath([file.absolute().parent for file, _, _ in entries]))
    return _decoded(entries, classes, size, common_folder, skip_damaged)


def _decoded(
    entries: Sequence[tuple[Path, int, bool]],
    classes: Sequence[str],
    size: int,
    common_folder: Path,
    skip_damaged: bool,
    flow: str | None = None,
) -> Videos:
    side = stored_side(size)
    frames: dict[Path, Tensor] = {}
    threads: AbstractContextManager[None] = nullcontext()
    if flow is not None:
        from video.flow import one_thread, stored_flow  # needs OpenCV

        threads = one_thread()

    def fault(file: Path) -> str | None:
        try:
            if flow is None:
                squares = [_square(frame, side) for frame in decode(file)]
            else:
                squares = [*decode(file)]
        except UserError as error:
            return fault_of(error, file)
        if why := too_short(len(squares)):
            return why
        if flow is not None:
            squares = [
                _square(flow_frame, side) for flow_frame in stored_flow(np.stack(squares), flow)
            ]
        frames[file] = torch.from_numpy(np.stack(squares).transpose(0, 3, 1, 2).copy())
        return None

    files = [file for file, _, _ in entries]
    with threads:
        good = undamaged(files, fault, folder=common_folder, what=WHAT, skip_damaged=skip_damaged)
    if not good:
        raise UserError(f"{printable(common_folder)}: no video in it can be used")
    videos = [
        Video(str(file), label, number % GROUPS, train)
        for number, (file, label, train) in enumerate(entries[position] for position in good)
    ]
    kept_frames = [frames[files[number]] for number in good]
    length = torch.tensor([len(clip) for clip in kept_frames])
    return Videos(
        tuple(videos),
        tuple(classes),
        torch.cat(kept_frames),
        length.cumsum(0) - length,
        length,
        modality="rgb" if flow is None else "flow",
    )


def _square(frame: np.ndarray, side: int) -> np.ndarray:
    """The central square of a frame (H, W, 3), resized without aliasing."""
    height, width, _ = frame.shape
    least = min(height, width)
    left, top = (width - least) // 2, (height - least) // 2
    box = (left, top, left + least, top + least)
    image = Image.fromarray(frame).resize((side, side), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image)


def read(path: Path, data_root: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The changes of a configuration that trains and is scored on a folder, and its hash."""
    content = read_folder(path, str(path), WHAT, ENDINGS)
    if len(content.classes) < 2 or not content.test:
        raise UserError(f"{path}: needs two classes and videos to test on; {layout_of(WHAT)}")
    name = f"{OWN}{path}"
    return {"dataset": name}, {name: fingerprint(name, data_root)}


def fingerprint(name: str, data_root: Path) -> str:
    """SHA-256 over the files of a data set, or of the folder ``"folder:PATH"``."""
    if not name.startswith(OWN):
        return data.fingerprint(name, data_root)
    content = read_content(name)
    files = [file for file, _ in (*content.train, *(content.test or ()))]
    names = [str(file.relative_to(content.path)) for file in files]
    return sha256_of_lines([*names, sha256_of_files(files)])


def read_content(name: str) -> Folder:
    """The files of the folder ``"folder:PATH"``."""
    path = name.removeprefix(OWN)
    return read_folder(Path(path), path, WHAT, ENDINGS)
