"""Images of one's own: folders as torchvision's ImageFolder reads them, Hugging Face datasets.

Shapes: n images.

Wherever the name of a data set is asked for, ``folder:PATH`` names a folder with a folder of images
for each class, see ``shared.experiment.folders``. Both kinds are streamed from disk and decoded as
they are needed. A path is as seen from the working directory.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from shared.compat import make_torchvision_importable
from shared.errors import UserError, suggestion
from shared.experiment.folders import ClassFolders, class_folders, layout_of
from vision.data import IMAGENET_MEAN, IMAGENET_STD, OWN, Dataset, ImageFiles

make_torchvision_importable()

from torchvision.datasets.folder import (  # noqa: E402 (needs the line above)
    IMG_EXTENSIONS,
    make_dataset,
)

SIZE = 224  # side of a crop in pixels, if nothing else is said
WHAT = "images"


def folder(path: str | Path, split: Literal["train", "test"] = "train") -> ImageFiles:
    """The images of a folder of one's own with their classes, n of them.

    Args:
        path: the folder, see ``shared.experiment.folders`` for its layout.
        split: which part.

    Raises:
        MissingData: there is no such folder.
        UserError: it has no images, no such part, or not the layout.
    """
    found = _found(Path(path))
    place = found.train if split == "train" else found.test
    if place is None:
        raise UserError(f"{path}: nothing to test on; {layout_of(WHAT)}")
    numbers = {name: number for number, name in enumerate(found.classes)}
    files = make_dataset(str(place), numbers, IMG_EXTENSIONS, allow_empty=True)
    if not files:
        raise UserError(
            f"{place}: no images in it ({', '.join(IMG_EXTENSIONS)}); {layout_of(WHAT)}"
        )
    return ImageFiles(
        tuple(Path(file) for file, _ in files), torch.tensor([label for _, label in files])
    )


@functools.cache
def described(path: Path) -> Dataset:
    """Counts of a folder as they are when it is first looked at, and ImageNet's statistics.

    Raises:
        UserError: as :func:`folder`.
    """
    found = _found(path)
    trained, tested = len(folder(path)), len(folder(path, "test")) if found.test else 0
    where, classes = str(path.absolute()), len(found.classes)
    return Dataset(where, classes, SIZE, trained, tested, IMAGENET_MEAN, IMAGENET_STD)


def every_file(path: Path) -> list[Path]:
    """All images of a folder, those to train on first."""
    parts = [folder(path), *([folder(path, "test")] if _found(path).test else [])]
    return [file for part in parts for file in part.files if isinstance(file, Path)]


def _found(path: Path) -> ClassFolders:
    return class_folders(path, f"{OWN}{path}", WHAT)


def hub_images(dataset: Any, image: str | None = None, label: str | None = None) -> ImageFiles:
    """A Hugging Face ``datasets.Dataset`` as images, n of them, that are decoded when needed.

    Args:
        dataset: one split; whatever has ``features``, a length, ``select`` and rows by number.
        image: its column of images; None: the only one.
        label: its column of classes; None: the only ``ClassLabel``, or no labels if there is none.

    Raises:
        UserError: no such column, or more than one that it could be.
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, dict):
        raise UserError(
            f"{type(dataset).__name__} has no columns; give one split of a datasets.Dataset, such "
            f"as load_dataset(...)['train']"
        )
    image = _column(features, image, "Image")
    if image is None:
        raise UserError(f"no column of images; there are: {', '.join(features)}")
    label = _column(features, label, "ClassLabel")
    labels = torch.full((len(dataset),), -1) if label is None else torch.tensor(dataset[label][:])
    return ImageFiles(HubColumn(dataset.select_columns([image]), image), labels)


class HubColumn(Sequence[Any]):
    """The images of a column, as Pillow has them; a part of it is a column, too."""

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset = dataset
        self.name = name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[int(index)][self.name]

    def chosen(self, index: Sequence[int]) -> "HubColumn":
        """The images at some positions, without decoding any."""
        return HubColumn(self.dataset.select(index), self.name)


def _column(features: dict[str, Any], name: str | None, kind: str) -> str | None:
    """The column of that name, or the only one of that kind."""
    if name is not None:
        if name not in features:
            raise UserError(f"no column {name!r}{suggestion(name, features, 'there are')}")
        return name
    found = [each for each, what in features.items() if type(what).__name__ == kind]
    if len(found) > 1:
        raise UserError(f"several columns are of {kind}s, say which: {', '.join(found)}")
    return found[0] if found else None
