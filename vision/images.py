"""Conversion of every image to 8-bit pixels, or a one-line error that says why it cannot be done.

The type says what the values mean; it is never guessed from the values of one image:

    uint8               from 0 to 255, unchanged
    uint16              from 0 to 65535, scaled to 0 to 255 and rounded; 12-bit TIFF likewise
    bool                0 and 255
    float, any width    from 0 to 1, times 255 and rounded
    any other           refused: signed and wider integers have no agreed range

Files and Pillow images become RGB: grey ones in three equal channels, palettes by their colours,
CMYK and YCbCr as Pillow converts them; alpha is dropped. Only the first of several frames is used.
Arrays keep their channels, see :func:`pixels_of`.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from shared.errors import UserError
from shared.experiment.folders import printable

SLACK = 1e-4  # tolerance of floats beyond 0 and 1, which resizing produces; far below 1 / 255
# Formats that Pillow reads by itself: PostScript would be handed to another program.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_BITS, _PHOTOMETRIC = 258, 262  # tags of TIFF
# Formats whose unsigned 16-bit values Pillow returns in mode "I", scaled to 65535.
_WIDE_FORMATS = ("PNG", "PPM")


def decode(image: Path | Image.Image, *, upright: bool = False) -> Image.Image:
    """An image in RGB, of an image of Pillow, or a file of :data:`FORMATS` in any mode.

    ``upright`` applies the EXIF orientation. torchvision's datasets are read without it, as
    torchvision reads them.
    """
    if isinstance(image, Image.Image):
        with _decoding(f"image of mode {image.mode}"):
            return _rgb(image, upright)
    # From a stream: given a name, Pillow maps the grey pixels of a TIFF that is not compressed into
    # memory, and breaks their rows at the width of the image once turned upright.
    with _decoding(printable(image)), image.open("rb") as stream, _opened(stream) as opened:
        return _rgb(opened, upright)


def size_of(file: Path) -> tuple[int, int]:
    """Height and width in pixels that the header of an image file states."""
    with _decoding(printable(file)), _opened(file) as opened:
        return opened.height, opened.width


def _opened(file: Path | BinaryIO) -> Image.Image:
    return Image.open(file, formats=FORMATS)


def fault_of(file: Path, *, upright: bool = False) -> str | None:
    """Why :func:`decode` refuses a file; None if it does not."""
    try:
        decode(file, upright=upright)
    except UserError as error:
        return _reason(error.__cause__ or error)
    return None


def pixels_of(values: Any) -> Tensor:
    """Pixels (n, C, H, W) uint8 of a tensor or array of that shape and one of the types above."""
    values = _as_tensor(values)
    if values.ndim != 4:
        raise ValueError(
            f"pixels are (n, channels, height, width), got {tuple(values.shape)}; "
            f"for one channel: pixels.unsqueeze(1)"
        )
    if values.size(1) > 4 and values.size(3) in (1, 3, 4):
        raise ValueError(
            f"pixels are (n, channels, height, width), got {tuple(values.shape)}, which looks like "
            f"channels last; give pixels.permute(0, 3, 1, 2)"
        )
    return _eight_bits(values)


def labels_of(values: Any, count: int) -> Tensor:
    """Labels (n,) int64, or (n, C) for several classes in one image; -1 where there is none."""
    labels = _as_tensor(values)
    if labels.ndim not in (1, 2) or len(labels) != count:
        raise ValueError(f"labels of {count} images are ({count},), got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels are integers, got {labels.dtype}; give labels.long()")
    return labels if labels.ndim == 2 else labels.long()


def in_channels(pixels: Tensor, channels: int) -> Tensor:
    """Pixels (n, C, H, W) with ``channels`` channels; a single grey one is repeated."""
    actual = pixels.size(1)
    if actual == channels:
        return pixels
    if actual == 1:
        return pixels.expand(-1, channels, -1, -1)
    remedy = "; drop alpha: pixels[:, :3]" if (actual, channels) == (4, 3) else ""
    raise ValueError(
        f"images have {actual} channels, mean and deviation {channels}; give as many{remedy}"
    )


@contextlib.contextmanager
def _decoding(name: str) -> Iterator[None]:
    try:
        yield
    # What Pillow raises depends on the damage.
    except Exception as error:
        raise UserError(f"{name}: cannot be decoded ({_reason(error)})") from error


def _rgb(image: Image.Image, upright: bool) -> Image.Image:
    if upright and image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    mode = image.mode
    if mode.startswith("I;16") or mode in ("I", "F"):
        return Image.fromarray(_grey(image)).convert("RGB")
    return image.convert("RGB")


def _grey(image: Image.Image) -> np.ndarray:
    """(H, W) uint8 of a grey image with more than 8 bits."""
    tags = getattr(image, "tag_v2", {})
    values = np.asarray(image)
    if image.mode == "I":
        if image.format not in _WIDE_FORMATS:
            raise ValueError(
                f"32-bit or signed integers, here from {values.min()} to {values.max()}, have no "
                f"agreed range; save unsigned 8 or 16 bits"
            )
        values = values.astype(np.uint16)
    elif image.mode != "F":
        values = values.astype(np.uint16)  # from either byte order
        largest = 2 ** int(tags.get(_BITS, (16,))[0]) - 1
        if tags.get(_PHOTOMETRIC) == 0:  # white is zero, which Pillow inverts at 8 bits only
            values = largest - values
        if largest != 65535:
            values = np.rint(values * (65535 / largest)).astype(np.uint16)
    return _eight_bits(torch.from_numpy(values.copy())).numpy()


def _eight_bits(values: Tensor) -> Tensor:
    """Numbers as uint8, by their type."""
    if values.dtype == torch.uint8:
        return values
    if values.dtype == torch.bool:
        return values.to(torch.uint8) * 255
    if values.dtype == torch.uint16:
        return ((values.to(torch.int32) + 128) // 257).to(torch.uint8)
    if not values.is_floating_point():
        raise ValueError(
            f"pixels of {values.dtype} have no agreed range; give uint8 from 0 to 255, uint16 "
            f"from 0 to 65535, or floats from 0 to 1"
        )
    if values.numel() == 0:
        return values.to(torch.uint8)
    low, high = (float(end) for end in values.aminmax())
    if not (-SLACK <= low and high <= 1 + SLACK):  # also true of NaN
        raise ValueError(
            f"float pixels are from 0 to 1, before normalisation; got {low:g} to {high:g}"
        )
    return (values.double() * 255).round_().clamp_(0, 255).to(torch.uint8)


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(np.array(array))  # copied: maybe read-only, or of negative strides


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Pillow's own message repeats the path, which is printed before it.
    text = str(error).partition("\n")[0]
    return (
        "not an image that Pillow reads"
        if "cannot identify" in text
        else (text or type(error).__name__)
    )


@dataclass(frozen=True)
class Images:
    """Images in memory: a split, or a part of one.

    What :func:`pixels_of` takes is converted to its contract.

    pixels: (n, C, H, W) uint8; C is 3, 1 for grey, or what an encoder has ``channels`` for.
    labels: (n,) int64, -1 where there is none.

    Raises:
        ValueError: pixels whose range is not known, or others than numbers for each image.
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        pixels = pixels_of(self.pixels)
        object.__setattr__(self, "pixels", pixels)
        object.__setattr__(self, "labels", labels_of(self.labels, len(pixels)))

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Images":
        """The same images on ``device``."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def subset(self, index: Tensor) -> "Images":
        """The images at the positions ``index``, (m,) int64, in that order."""
        return Images(self.pixels[index], self.labels[index])


class Column(Protocol):
    """Images that are no files: a column of a dataset, or prepared ones."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...

    def chosen(self, index: Sequence[int], /) -> "Column":
        """The images at some positions."""


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk, of any size; :func:`stream` and :func:`central_crops` read them.

    files: n paths, a column of a dataset (:func:`vision.hub.hub_images`), or prepared images.
    labels: (n,) int64, -1 where there is none; of VOC2007 (n, C), see :mod:`vision.transfer_data`.
    """

    files: tuple[Path, ...] | Column
    labels: Tensor
    upright: bool = False  # whether images are turned as their EXIF data say; torchvision does not
    # Your own folder, if they are from one: all of it is checked once one of its images is found to
    # be damaged.
    place: Path | None = None

    def __repr__(self) -> str:
        return f"ImageFiles({len(self)} images)"

    def __len__(self) -> int:
        return len(self.files)

    def subset(self, index: Tensor) -> "ImageFiles":
        """The images at the positions ``index``, (m,) int64, in that order."""
        places = index.tolist()
        files = (
            tuple(self.files[i] for i in places)
            if isinstance(self.files, tuple)
            else self.files.chosen(places)
        )
        return dataclasses.replace(self, files=files, labels=self.labels[index])
