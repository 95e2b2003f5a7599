"""Images of a Hugging Face dataset, decoded when needed, with EXIF orientation applied.

Shapes: n images.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from shared.errors import UserError, first_line, suggestion
from vision.images import ImageFiles

LABELS = ("label", "labels", "class", "category", "target")
SHOWN = 8  # classes that a message names


def hub_images(dataset: Any, image: str | None = None, label: str | None = None) -> ImageFiles:
    """The n images of a Hugging Face ``datasets.Dataset``, decoded when needed.

    Args:
        dataset: one split; any object with ``features``, a length, ``select`` and indexable rows.
        image: its column of images; None: the only one.
        label: its column of classes; None: the only ``ClassLabel``, else a column of numbers or
            texts with one of the names :data:`LABELS`, or no labels if there is none. Texts become
            classes in sorted order, with a warning that lists them.

    Raises:
        UserError: no such column, several candidates, a dataset that is streamed, or classes that
            are neither numbers nor texts. Damaged images raise one in :func:`vision.data.stream`.
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, dict) or not hasattr(dataset, "__len__"):
        raise UserError(
            f"{type(dataset).__name__} is not one split of a datasets.Dataset; give "
            f"load_dataset(...)['train'], without streaming=True"
        )
    image = _column(features, image, "Image")
    if image is None:
        raise UserError(f"no column of images; there are: {', '.join(features)}")
    if hasattr(dataset, "with_format"):
        dataset = dataset.with_format(None)  # Pillow images, whatever format was set
    label = _column(features, label, "ClassLabel") or _column_by_name(features)
    column = HubColumn(dataset.select_columns([image]), image)
    return ImageFiles(column, _labels(dataset, label), upright=True)


def _labels(dataset: Any, name: str | None) -> torch.Tensor:
    """The classes (n,) int64 of a column; -1 without one."""
    if name is None:
        return torch.full((len(dataset),), -1)
    values = dataset[name][:]
    texts = {value for value in values if isinstance(value, str)}
    if texts and all(value is None or isinstance(value, str) for value in values):
        classes = {text: number for number, text in enumerate(sorted(texts))}
        shown = ", ".join([*classes][:SHOWN]) + (", ..." if len(classes) > SHOWN else "")
        warnings.warn(
            f"column {name!r} holds texts, which are {len(classes)} classes in sorted order: "
            f"{shown}; if another split lacks some, encode both together: "
            f"dataset.class_encode_column({name!r})",
            stacklevel=3,
        )
        return torch.tensor([-1 if value is None else classes[value] for value in values])
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            raise UserError(
                f"column {name!r}, row {row}: {value!r} is not a class number; convert it: "
                f"dataset.class_encode_column({name!r})"
            )
    return torch.tensor(values, dtype=torch.int64)


def _column_by_name(features: dict[str, Any]) -> str | None:
    """The column of numbers or texts whose name says that it holds classes."""
    names = [name for name in features if name.lower() in LABELS]
    usable = [name for name in names if _holds_classes(features[name])]
    if len(usable) == 1:
        return usable[0]
    if names:
        warnings.warn(
            f"the images have no labels: none is taken from {', '.join(names)}; name a column of "
            f"one class for each image with label=",
            stacklevel=3,
        )
    return None


def _holds_classes(feature: Any) -> bool:
    """Whether a column of a Hugging Face dataset holds whole numbers or texts."""
    kind = str(getattr(feature, "dtype", ""))
    return type(feature).__name__ == "Value" and kind.startswith(("int", "uint", "string", "large"))


class HubColumn(Sequence[Any]):
    """The images of a column as Pillow images; a subset is a column as well."""

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset = dataset
        self.name = name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        row = int(index)
        try:
            image = self.dataset[row][self.name]
        except Exception as error:  # its type depends on the damage
            raise UserError(
                f"column {self.name!r}, row {row}: cannot be decoded ({first_line(error)}); omit "
                f"the row"
            ) from error
        if not isinstance(image, Image.Image):
            raise UserError(
                f"column {self.name!r}, row {row}: {type(image).__name__} instead of an image; "
                f"omit such rows, or cast the column: dataset.cast_column({self.name!r}, "
                f"datasets.Image())"
            )
        return image

    def chosen(self, index: Sequence[int]) -> "HubColumn":
        """The images at some positions, without decoding any."""
        return HubColumn(self.dataset.select(index), self.name)


def _column(features: dict[str, Any], name: str | None, kind: str) -> str | None:
    """The column of that name, or the only one of that kind."""
    if name is not None:
        if name not in features:
            raise UserError(f"no column {name!r}{suggestion(name, features, 'there are')}")
        return name
    names = [name for name, feature in features.items() if type(feature).__name__ == kind]
    if len(names) > 1:
        raise UserError(f"several columns of type {kind}, name one: {', '.join(names)}")
    return names[0] if names else None
