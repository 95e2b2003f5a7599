"""Image files decoded once, at a reduced size: the pixels of a data set in one file.

Shapes: n images, h x w pixels of one.

    prepared/vision/<dataset>-<side>-<hash>/
        pixels.bin      the images in order, (h, w, 3) bytes each
        sizes.npy       (n, 2) int32: h and w of each
        SHA256SUMS      of both

Pixels are stored as they are, not as JPEG of that size: on one core, decoding such a JPEG takes
longer than making two crops of 224 pixels (measured by a script of commit dba64e36).
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from shared.errors import UserError
from shared.experiment.data import (
    ROOM,
    SUMS,
    build_once,
    cached_until_changed,
    check_sums,
    sha256_of,
    write_sums,
    writing,
)
from shared.pixels import mapped_pixels
from vision.crops import with_shorter_side
from vision.images import decode, size_of

FORMAT = 1  # to be raised when the same files give other pixels
PIXELS, SIZES = "pixels.bin", "sizes.npy"
AT_ONCE = 256  # images that are in memory while they are decoded

Result = TypeVar("Result")


class PreparedImages:
    """Images of a prepared folder, (3, h, w) uint8 each, memory-mapped and not to be written to.

    sha256: of the folder's ``SHA256SUMS``, and thus of pixels and sizes.
    remedy: what to do where they are damaged.
    """

    def __init__(
        self, folder: Path, sha256: str, start: np.ndarray, sizes: np.ndarray, remedy: str = ""
    ) -> None:
        self.folder = folder
        self.remedy = remedy
        self.sha256 = sha256
        self.start = start
        self.sizes = sizes
        self.pixels = mapped_pixels(folder / PIXELS)

    def __reduce__(self) -> tuple[object, ...]:
        """Processes that load data map the file again; its pixels are not sent to them."""
        return PreparedImages, (self.folder, self.sha256, self.start, self.sizes, self.remedy)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Tensor:
        start, (height, width) = int(self.start[index]), self.sizes[index].tolist()
        pixels = self.pixels[start : start + 3 * height * width]
        return pixels.view(height, width, 3).permute(2, 0, 1)

    def chosen(self, index: Sequence[int] | slice) -> "PreparedImages":
        """The images at some positions."""
        chosen = self.start[index], self.sizes[index]
        return PreparedImages(self.folder, self.sha256, *chosen, self.remedy)

    def check(self) -> None:
        """Compare all pixels with their sums; 1 s for each GB."""
        check_sums(self.folder, self.remedy, (PIXELS, SIZES))


def prepare(
    folder: Path, files: Sequence[Path], side: int, say: Callable[[str], None] = print
) -> None:
    """Decode files into a folder, unless that is done; wait if another process is doing it.

    The shorter side of an image is reduced to ``side`` pixels, bilinearly with antialias, as in
    evaluation; smaller images keep their size. What was interrupted starts again. ``say`` is told
    the size before anything is written, and then the progress.
    """

    def build(part: Path) -> None:
        with writing(folder), ThreadPool() as pool:  # Pillow decodes without Python's lock
            needed = sum(_in_order(pool, partial(_bytes, side=side), files))
            free = shutil.disk_usage(part).free
            amount = f"{len(files):,} images at {side} pixels take {needed / 1e9:.1f} GB"
            if needed > free:
                raise UserError(f"{folder}: {amount}, {free / 1e9:.1f} GB are free; {ROOM}")
            say(f"{folder}: {amount} of {free / 1e9:.1f} GB that are free")
            sizes, digest = [], hashlib.sha256()
            with (part / PIXELS).open("wb") as stream:
                for image in _in_order(pool, partial(_pixels, side=side), files):
                    stream.write(image.data)
                    digest.update(image.data)
                    sizes.append(image.shape[:2])
                    if len(sizes) * 10 // len(files) > (len(sizes) - 1) * 10 // len(files):
                        say(f"{len(sizes):,} images decoded")
            np.save(part / SIZES, np.array(sizes, np.int32))
            sums = {PIXELS: digest.hexdigest(), SIZES: sha256_of(part / SIZES)}
            write_sums(part, sums)

    build_once(folder, build, (SUMS,))


def read(folder: Path, remedy: str) -> PreparedImages:
    """The images of a folder of :func:`prepare`; ``remedy`` is what to do where it is damaged.

    Everything is compared with the sums when it is first read and whenever the size or time of a
    file has changed; in a read-only folder each time.
    """
    if not (folder / SUMS).is_file():
        raise UserError(f"{folder}: {SUMS} is missing; {remedy}")

    def intact() -> str:
        check_sums(folder, remedy, (PIXELS, SIZES))
        return sha256_of(folder / SUMS)

    files = [folder / name for name in (PIXELS, SIZES, SUMS)]
    sha256 = cached_until_changed(folder / ".verified", files, intact)
    sizes = np.load(folder / SIZES)
    ends = np.cumsum(3 * sizes.prod(1, dtype=np.int64))
    return PreparedImages(folder, sha256, np.concatenate([[0], ends[:-1]]), sizes, remedy)


def _in_order(
    pool: ThreadPool, function: Callable[[Path], Result], files: Sequence[Path]
) -> Iterator[Result]:
    """The results for all files in order, with few of them in memory at a time."""
    for start in range(0, len(files), AT_ONCE):
        yield from pool.imap(function, files[start : start + AT_ONCE])


def _bytes(file: Path, side: int) -> int:
    """How many an image takes, by its header."""
    height, width = _reduced(*size_of(file), side)
    return 3 * height * width


def _pixels(file: Path, side: int) -> np.ndarray:
    """An image as it is stored, (h, w, 3) uint8."""
    image = decode(file)
    height, width = _reduced(image.height, image.width, side)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def _reduced(height: int, width: int, side: int) -> tuple[int, int]:
    return with_shorter_side(height, width, min(side, height, width))
