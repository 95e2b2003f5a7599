"""Your own images in folders, as torchvision's ImageFolder reads them.

Shapes: n images.

Wherever a dataset's name is expected, ``folder:PATH`` names a folder with one subfolder of images
per class, see :mod:`shared.experiment.folders`. They are streamed and decoded when needed, by
:func:`vision.images.decode`, with EXIF orientation applied. Paths are relative to the working
directory.
"""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from shared.errors import UserError
from shared.experiment.compat import make_torchvision_importable
from shared.experiment.data import state_of
from shared.experiment.folders import Folder, layout_of, read_folder, undamaged
from vision.datasets import IMAGENET_MEAN, IMAGENET_STD, OWN, Dataset
from vision.images import ImageFiles, fault_of

make_torchvision_importable()

from torchvision.datasets.folder import IMG_EXTENSIONS  # noqa: E402 (needs the line above)

SIZE = 224  # side of a crop in pixels, unless configured
WHAT = "images"
FAULT_OF = functools.partial(fault_of, upright=True)


def folder(
    path: str | Path, split: Literal["train", "test"] = "train", *, skip_damaged: bool = False
) -> ImageFiles:
    """The n images of your own folder, with their classes.

    For the training images, one warning lists what in the folder is not used or is unexpected.

    Args:
        path: the folder, see :mod:`shared.experiment.folders` for its layout. Without class folders
            all labels are -1, which is enough for pretraining.
        split: which part.
        skip_damaged: decode all images now, and omit those that cannot be decoded, with a
            warning that lists them. Otherwise images are decoded when needed, and the first one
            that cannot be raises an error that names all such images.

    Raises:
        MissingData: there is no such folder.
        UserError: it has no images, no such part, or another layout.
    """
    content = _read(Path(path))
    if split == "train":
        content.warn()
    part = content.train if split == "train" else content.test
    if part is None:
        raise UserError(f"{path}: nothing to test on; {layout_of(WHAT)}")
    files = tuple(file for file, _ in part)
    labels = torch.tensor([label for _, label in part])
    images = ImageFiles(files, labels, upright=True, place=Path(path))
    if skip_damaged:
        images = images.subset(torch.tensor(_decodable(files, Path(path), state_of(files))))
    return images


@functools.lru_cache(maxsize=4)
def _decodable(files: tuple[Path, ...], root: Path, state: str) -> list[int]:
    """Positions of the files that can be decoded; cached until a file changes."""
    return undamaged(files, FAULT_OF, folder=root, what=WHAT, skip_damaged=True)


def check_all(path: Path) -> None:
    """Decode every image of a folder, including the test images."""
    undamaged(every_file(path), FAULT_OF, folder=path, what=WHAT)


@functools.cache
def described(path: Path) -> Dataset:
    """A folder's counts, as first read, and ImageNet's statistics."""
    content = _read(path)
    name, train, test = str(path.absolute()), len(content.train), len(content.test or ())
    return Dataset(name, len(content.classes), SIZE, train, test, IMAGENET_MEAN, IMAGENET_STD)


def summary(path: Path) -> str:
    """One line on what is read from a folder, and what is left out."""
    return _read(path).summary()


def every_file(path: Path) -> list[Path]:
    """All images of a folder, training images first."""
    content = _read(path)
    return [file for file, _ in (*content.train, *(content.test or ()))]


def check_scored(path: Path) -> None:
    """Refuse a folder on which nothing can be scored."""
    if len(_read(path).classes) < 2:
        raise UserError(f"{path}: fewer than two classes to score; {layout_of(WHAT)}")
    folder(path, "test")


_listed: dict[Path, Folder] | None = None  # the folders listed while `listed_once` lasts


@contextlib.contextmanager
def listed_once() -> Iterator[None]:
    """List each folder once while this lasts: that takes minutes for a million images."""
    global _listed
    _listed = {}
    try:
        yield
    finally:
        _listed = None


def _read(path: Path) -> Folder:
    if _listed is not None and path in _listed:
        return _listed[path]
    content = read_folder(path, f"{OWN}{path}", WHAT, IMG_EXTENSIONS)
    if _listed is not None:
        _listed[path] = content
    return content
