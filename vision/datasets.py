"""Datasets of images: what is known of one, and its images in memory or as files."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vision.images import labels_of, pixels_of
from vision.prepared import PreparedImages
from vision.transfer_data import SOURCES

if TYPE_CHECKING:
    from vision.own import HubColumn

DIGITS = "digits"
OWN = "folder:"  # before the path of the user's own folder


Split = Literal["pretrain", "train", "test"]
Part = Literal["train", "test"]  # of the sets of single image files, which pretrain on "train"
Metric = Literal["top1", "mean_per_class", "map11"]


@dataclass(frozen=True)
class Dataset:
    """What a dataset looks like: its folder, counts, and the statistics that normalise it.

    ``size`` is the side of the images in pixels, for ImageNet that of the usual crop. ``mean`` and
    ``std`` belong to the red, green and blue channel, in units of the largest pixel value. Of the
    transfer suite, ``metric`` is what it scores the set by, ``validation`` how many of the training
    images, the last ones, are published as validation images, and a set without test images is for
    few-shot episodes alone.
    """

    folder: str
    classes: int
    size: int
    train: int
    test: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    unlabelled: int = 0
    metric: Metric = "top1"
    validation: int = 0

    @property
    def streams(self) -> bool:
        """Whether its images are read from disk as they are needed."""
        streamed = {*_STREAMED, *(DATASETS[name].folder for name in SOURCES)}
        return self.folder in streamed or Path(self.folder).is_absolute()


IMAGENET_MEAN = (0.485, 0.456, 0.406)


IMAGENET_STD = (0.229, 0.224, 0.225)


def _suite(
    folder: str, classes: int, train: int, test: int, metric: Metric = "top1", validation: int = 0
) -> Dataset:
    """A set of the transfer suite, whose program normalises all by ImageNet's statistics."""
    seen = (224, train, test, IMAGENET_MEAN, IMAGENET_STD)
    return Dataset(folder, classes, *seen, metric=metric, validation=validation)


# The statistics are those of the programs the papers build on: ReSSL (Zheng et al. 2021) has those
# of the small sets, HCL (Robinson et al. 2021) CIFAR-10's for all.
DATASETS: dict[str, Dataset] = {
    "CIFAR10": Dataset(
        "cifar-10-batches-py",
        classes=10,
        size=32,
        train=50_000,
        test=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    ),
    "CIFAR100": Dataset(
        "cifar-100-python",
        classes=100,
        size=32,
        train=50_000,
        test=10_000,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    ),
    "STL10": Dataset(
        "stl10_binary",
        classes=10,
        size=96,
        train=5_000,
        test=8_000,
        mean=(0.4408, 0.4279, 0.3867),
        std=(0.2682, 0.2610, 0.2686),
        unlabelled=100_000,
    ),
    "TinyImageNet": Dataset(
        "tiny-imagenet-200",
        classes=200,
        size=64,
        train=100_000,
        test=10_000,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2302, 0.2265, 0.2262),
    ),
    "ImageNet100": Dataset("imagenet", 100, 224, 126_689, 5_000, IMAGENET_MEAN, IMAGENET_STD),
    "imagenette": Dataset("imagenette", 10, 160, 9_469, 3_925, IMAGENET_MEAN, IMAGENET_STD),
    "ImageNet": Dataset("imagenet", 1000, 224, 1_281_167, 50_000, IMAGENET_MEAN, IMAGENET_STD),
    "Aircraft": _suite("fgvc-aircraft-2013b", 100, 6_667, 3_333, "mean_per_class", 3_333),
    "Caltech101": _suite("caltech101", 101, 3_030, 5_647, "mean_per_class"),
    "Cars": _suite("stanford_cars", 196, 8_144, 8_041),
    "DTD": _suite("dtd", 47, 3_760, 1_880, validation=1_880),
    "Flowers": _suite("flowers-102", 102, 2_040, 6_149, "mean_per_class", 1_020),
    "Food": _suite("food-101", 101, 75_750, 25_250),
    "Pets": _suite("oxford-iiit-pet", 37, 3_680, 3_669, "mean_per_class"),
    "SUN397": _suite("SUN397", 397, 19_850, 19_850),
    "VOC2007": _suite("VOCdevkit/VOC2007", 20, 5_011, 4_952, "map11", 2_510),
    "EuroSAT": _suite("eurosat", 10, 27_000, 0),
    "CropDiseases": _suite("CropDiseases", 38, 43_456, 0),
}

_DIGITS = Dataset("", 10, 8, 1297, 500, (0.3059, 0.3059, 0.3059), (0.3754, 0.3754, 0.3754))

# By folder, the sources of those that may not, or need not, be redistributed.
_STREAMED = {
    "imagenet": "ILSVRC 2012 from image-net.org",
    "imagenette": "imagenette2-160 from github.com/fastai/imagenette",
}


@dataclass(frozen=True)
class Images:
    """Images in memory: a split, or a part of one.

    What :func:`vision.images.pixels_of` takes is converted to its contract.

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


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk, of any size; :func:`stream` and :func:`central_crops` read them.

    files: n paths, a column of a dataset, see :func:`vision.own.hub_images`, or prepared images.
    labels: (n,) int64, -1 where there is none; of VOC2007 (n, C), see :mod:`vision.transfer_data`.
    upright: whether images are turned as their EXIF data say, which torchvision does not. place:
    your own folder, if they are from one: all of it is checked once one of its images is found to
    be damaged.
    """

    files: "tuple[Path, ...] | HubColumn | PreparedImages"
    labels: Tensor
    upright: bool = False
    place: Path | None = None

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
