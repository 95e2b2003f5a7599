"""The image datasets of the transfer suite (Ericsson et al. 2021): their files and classes.

They are expected below the data root in torchvision's layouts. "train" is the training part
followed by the published validation images, if there are any. For VOC2007 a label is one number per
class: 1, 0, and -1 where only objects marked difficult show the class, which the challenge ignores.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.experiment.folders import class_files

Files = list[tuple[Path, Any]]  # each with its class, or for VOC2007 with one number per class
PER_CLASS = 30  # training images per class of Caltech-101


def torchvision_datasets() -> Any:
    """``torchvision.datasets``, imported only when needed, since importing it takes seconds."""
    from shared.experiment.compat import make_torchvision_importable

    make_torchvision_importable()
    return importlib.import_module("torchvision.datasets")


@dataclass(frozen=True)
class Source:
    """Where a dataset's files are, and where to get them."""

    # The images of a part ("train" or "test"), given the data root; any other layout than
    # torchvision's raises OSError, RuntimeError, ValueError or KeyError.
    files: Callable[[Path, str], Files]
    # Patterns, below the dataset's folder, of the files with classes and splits.
    annotations: tuple[str, ...] = ()
    # Downloads it, if torchvision does so by https and with a checksum.
    get: Callable[[Path], object] | None = None
    how: str = ""  # what to do if it cannot be downloaded; ends with the expected layout


def _torchvision_splits(
    name: str, *train: str, attribute: str = "_image_files"
) -> Callable[[Path, str], Files]:
    """The images of a torchvision dataset; its training part consists of the splits ``train``."""

    def files(root: Path, part: str) -> Files:
        parts = train if part == "train" else ("test",)
        datasets = [
            getattr(torchvision_datasets(), name)(str(root), split=split) for split in parts
        ]
        return [
            (Path(file), int(label))
            for dataset in datasets
            for file, label in zip(getattr(dataset, attribute), dataset._labels, strict=True)
        ]

    return files


def _download(name: str) -> Callable[[Path], object]:
    """Downloads a torchvision dataset."""
    return lambda root: getattr(torchvision_datasets(), name)(str(root), download=True)


def _caltech101(root: Path, part: str) -> Files:
    """30 images of each class, the same in every run, are "train", the others "test"."""
    import numpy as np  # planning, which reads the tables, goes without it

    folder = root / "caltech101" / "101_ObjectCategories"
    classes = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and path.name != "BACKGROUND_Google"
    )
    images: Files = []
    for label, name in enumerate(classes):
        files = sorted((folder / name).glob("*.jpg"))
        order = np.random.default_rng([0, label]).permutation(len(files))
        chosen = order[:PER_CLASS] if part == "train" else order[PER_CLASS:]
        images += [(files[position], label) for position in sorted(chosen.tolist())]
    return images


def _cars(root: Path, part: str) -> Files:
    dataset = torchvision_datasets().StanfordCars(str(root), split=part)
    return [(Path(file), int(label)) for file, label in dataset._samples]


def _sun397(root: Path, part: str) -> Files:
    """The first of the published partitions, which torchvision's loader does not support."""
    folder = root / "SUN397"
    lines = (folder / "ClassName.txt").read_text().split()
    classes = {line.strip("/"): label for label, line in enumerate(lines)}
    listing = "Training_01.txt" if part == "train" else "Testing_01.txt"
    names = (folder / listing).read_text().split()
    return [
        (folder / name.strip("/"), classes[name.strip("/").rpartition("/")[0]]) for name in names
    ]


VOC_CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
).split()
# Values in the classification task's lists: present, absent, and difficult objects only.
_VOC_LABEL = {"1": 1, "-1": 0, "0": -1}


def _voc2007(root: Path, part: str) -> Files:
    images: Files = []
    for split in ("train", "val") if part == "train" else ("test",):
        dataset = torchvision_datasets().VOCDetection(str(root), year="2007", image_set=split)
        labels: dict[str, list[int]] = {Path(file).stem: [] for file in dataset.images}
        lists = root / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main"
        for name in VOC_CLASSES:
            for line in (lists / f"{name}_{split}.txt").read_text().splitlines():
                image, presence = line.split()
                labels[image].append(_VOC_LABEL[presence])
        images += [(Path(file), labels[Path(file).stem]) for file in dataset.images]
    return images


def _class_folders(*below: str) -> Callable[[Path, str], Files]:
    """All images in folders named by class; without splits, all are training images."""

    def files(root: Path, part: str) -> Files:
        if part != "train":
            return []
        folder = root.joinpath(*below)
        names = sorted(path.name for path in folder.glob("[!.]*") if path.is_dir())
        classes = {name: label for label, name in enumerate(names)}
        return [*class_files(folder, classes, torchvision_datasets().folder.IMG_EXTENSIONS)]

    return files


SOURCES: dict[str, Source] = {
    "Aircraft": Source(
        _torchvision_splits("FGVCAircraft", "train", "val"),
        ("data/*.txt",),
        how="get fgvc-aircraft-2013b.tar.gz from www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft and "
        "unpack it to fgvc-aircraft-2013b/data/images/*.jpg",
    ),
    "Caltech101": Source(_caltech101, get=_download("Caltech101")),
    "Cars": Source(
        _cars,
        ("devkit/*.mat", "*.mat"),
        how="get a copy of Stanford Cars, whose own address is gone, and lay it out as "
        "stanford_cars/cars_train/*.jpg, cars_test/*.jpg, devkit/*.mat and "
        "cars_test_annos_withlabels.mat",
    ),
    "DTD": Source(
        _torchvision_splits("DTD", "train", "val"), ("dtd/labels/*1.txt",), get=_download("DTD")
    ),
    "Flowers": Source(
        _torchvision_splits("Flowers102", "train", "val"), ("*.mat",), get=_download("Flowers102")
    ),
    "Food": Source(
        _torchvision_splits("Food101", "train"),
        ("meta/*.json", "meta/*.txt"),
        how="get food-101.tar.gz from data.vision.ee.ethz.ch/cvl and unpack it to "
        "food-101/images/<class>/*.jpg and food-101/meta",
    ),
    "Pets": Source(
        _torchvision_splits("OxfordIIITPet", "trainval", attribute="_images"),
        ("annotations/*.txt",),
        get=_download("OxfordIIITPet"),
    ),
    "SUN397": Source(
        _sun397,
        ("ClassName.txt", "*_01.txt"),
        how="get SUN397.tar.gz and Partitions.zip from vision.princeton.edu/projects/2010/SUN and "
        "unpack them to SUN397/<letter>/<class>/*.jpg and SUN397/Training_01.txt, Testing_01.txt",
    ),
    "VOC2007": Source(
        _voc2007,
        ("ImageSets/Main/*.txt",),
        get=lambda root: [
            torchvision_datasets().VOCDetection(
                str(root), year="2007", image_set=part, download=True
            )
            for part in ("trainval", "test")
        ],
    ),
    "EuroSAT": Source(_class_folders("eurosat", "2750"), get=_download("EuroSAT")),
    "CropDiseases": Source(
        _class_folders("CropDiseases", "dataset", "train"),
        how="get the PlantVillage images as BSCD-FSL has them (github.com/IBM/cdfsl-benchmark) and "
        "unpack them to CropDiseases/dataset/train/<class>/*.jpg",
    ),
}
