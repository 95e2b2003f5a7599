"""Videos of one's own: folders of classes, and data sets of pytorchvideo.

Frames are kept in memory, as squares of the size that clips are cut from: 65 KB a frame for clips
of 128 pixels. They are decoded as UCF-101's are, and a damaged video is an error.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from shared.errors import UserError
from shared.experiment.folders import read_folder
from video.data import SHORTEST, Video, Videos, decode, stored_side

ENDINGS = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".m4v")
WHAT = "videos"
GROUPS = 10  # in place of recordings, of which nothing is known: every tenth video


def folder(path: str | Path, size: int) -> Videos:
    """The videos of a folder of one's own, to train and to test on.

    Args:
        path: the folder, see ``shared.experiment.folders`` for its layout.
        size: S, the side of the clips in pixels.

    Raises:
        MissingData: there is no such folder.
        UserError: it has no videos, not the layout, or a video that cannot be used.
    """
    content = read_folder(Path(path), str(path), WHAT, ENDINGS)
    content.warn()
    found = [(file, label, True) for file, label in content.train]
    found += [(file, label, False) for file, label in content.test or ()]
    return _decoded(found, content.classes, size)


def from_pytorchvideo(train: Any, size: int, *, test: Any = None) -> Videos:
    """The videos of a ``LabeledVideoDataset``, its own decoder and clips left aside.

    Args:
        train: such a data set, or pairs of a path and ``{"label": number}``.
        size: S, the side of the clips in pixels.
        test: likewise, to test on.

    Raises:
        UserError: a video that cannot be used.
    """
    from video.pytorchvideo import paths_of

    parts = [(train, True)] if test is None else [(train, True), (test, False)]
    found = [
        (Path(file), label, is_train) for part, is_train in parts for file, label in paths_of(part)
    ]
    count = 1 + max((label for _, label, _ in found), default=-1)
    return _decoded(found, [str(number) for number in range(count)], size)


def _decoded(found: Iterable[tuple[Path, int, bool]], classes: Sequence[str], size: int) -> Videos:
    side = stored_side(size)
    videos, frames, lengths = [], [], []
    for number, (file, label, train) in enumerate(found):
        squares = [_square(frame, side) for frame in decode(file)]
        if len(squares) < SHORTEST:
            raise UserError(f"{file}: {len(squares)} frames, fewer than {SHORTEST}; leave it out")
        videos.append(Video(str(file), label, number % GROUPS, train))
        lengths.append(len(squares))
        frames.append(torch.from_numpy(np.stack(squares).transpose(0, 3, 1, 2).copy()))
    length = torch.tensor(lengths)
    return Videos(
        tuple(videos), tuple(classes), torch.cat(frames), length.cumsum(0) - length, length
    )


def _square(frame: np.ndarray, side: int) -> np.ndarray:
    """The central square of a frame (H, W, 3), resized without aliasing."""
    height, width, _ = frame.shape
    least = min(height, width)
    left, top = (width - least) // 2, (height - least) // 2
    box = (left, top, left + least, top + least)
    image = Image.fromarray(frame).resize((side, side), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image)
