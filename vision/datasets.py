"""Datasets of images: what is known of one, and its images in memory or as files."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.errors import UserError, program
from shared.experiment.data import MissingData
from shared.lazy import LazyImport
from vision.transfer_data import SOURCES

DIGITS = "digits"
OWN = "folder:"  # before the path of the user's own folder
DESCRIBED = LazyImport("vision.own:described")

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


def describe(name: str) -> Dataset:
    """Counts and statistics of a dataset, or of the embedded one for ``"digits"``."""
    if name == DIGITS:
        return _DIGITS
    if name.startswith(OWN):
        described: Dataset = DESCRIBED(Path(name.removeprefix(OWN)))
        return described
    if name not in DATASETS:
        known = f"{', '.join(DATASETS)}, {DIGITS} and {OWN}PATH"
        raise UserError(f"unknown dataset {name!r}; known are {known}")
    return DATASETS[name]


def missing(names: Iterable[str], data_root: Path) -> list[MissingData]:
    """Which of some datasets have no folder below the data root."""
    errors = []
    for name in names:
        try:
            if name != DIGITS:
                folder_of(name, data_root)
        except MissingData as error:
            errors.append(error)
    return errors


def folder_of(name: str, data_root: Path) -> Path:
    """The folder of a dataset; :class:`MissingData` without it."""
    folder = data_root / describe(name).folder
    if not folder.is_dir():
        raise MissingData(name, folder, fetching_command(name), how_to_get(name, folder))
    return folder


def fetching_command(name: str) -> str:
    """The command that downloads and verifies a dataset."""
    return f"{program()} data vision --dataset {name}"


def how_to_get(name: str, folder: Path) -> str:
    """What to do for a set that nothing downloads; empty for the others."""
    if name in SOURCES:
        return SOURCES[name].how
    if folder.name not in _STREAMED:
        return ""
    layout = f"{folder}/train/<wnid>/*.JPEG and {folder}/val/<wnid>/*.JPEG"
    return f"get {_STREAMED[folder.name]} and unpack it to {layout}"


def content_of(folder: Path) -> str:
    """The first names in a folder, for messages."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "nothing"


def remedy_of(name: str, folder: Path) -> str:
    """What to do where the files of a dataset are others than they should be."""
    if name in SOURCES and (how := SOURCES[name].how):
        return how
    if folder.name in _STREAMED:
        return f"{name} belongs in {folder}/train/<wnid>/*.JPEG and {folder}/val/<wnid>/*.JPEG"
    return f"delete {folder} and run: {fetching_command(name)}"
