"""Image datasets: in memory where they fit, streamed from disk where they do not.

Shapes: n images of a split, B images of a batch, H x W pixels, S side of a crop.

Folders under the data root are laid out as the archives and torchvision lay them out:

    cifar-10-batches-py/  cifar-100-python/  stl10_binary/      as downloaded
    tiny-imagenet-200/    train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt
    imagenet/             train/<wnid>/*.JPEG, val/<wnid>/*.JPEG; ImageNet-100 is a part of it
    imagenette/           likewise, ten classes of ImageNet
    dtd/  eurosat/  ...   the sets of the transfer suite: vision.transfer_data

A folder with an ``APPROXIMATE.json`` that describes how it differs from the published files is
accepted in all tiers but the paper's; its fingerprint, and with it every record, is marked
"approximate".

``folder:PATH`` is your own folder, see :mod:`vision.own`. Images that are streamed can be
decoded once, at a reduced size, see :mod:`vision.prepared`.
"""

import functools
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from shared.errors import UserError, first_line
from shared.experiment.data import (
    APPROXIMATE,
    MARKER,
    approximation,
    cached_until_changed,
    check_prepared,
    fetch_archive,
    sha256_of_files,
    sha256_of_lines,
)
from vision import archives, crops, image_sets, prepared
from vision.augmentation import Policy
from vision.crops import Crops
from vision.datasets import DIGITS, OWN, Part, Split, describe, folder_of, how_to_get
from vision.images import Column, ImageFiles, Images
from vision.images import decode as _decode
from vision.prepared import PreparedImages
from vision.transfer_data import SOURCES

# Where the archives are, by https where torchvision has http, and their SHA-256: of the CIFARs as
# Keras, of STL-10 as TensorFlow Datasets has it, of TinyImageNet as several projects publish it.
_DOWNLOADS = {
    "CIFAR10": (
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    "CIFAR100": (
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
    "STL10": (
        "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    ),
    "TinyImageNet": (
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    ),
}

AnyImages = TypeVar("AnyImages", Images, ImageFiles, Images | ImageFiles)


def load(
    name: str,
    data_root: Path,
    split: Split,
    *,
    allow_missing: bool = False,
    prepared_side: int | None = None,
) -> Images | ImageFiles:
    """A split of a dataset: in memory, or for ImageNet and its parts as a list of files.

    ``"pretrain"`` is the training split, with STL-10's unlabelled images; ``"test"`` of the
    ImageNets is their validation split. Files are verified before they are read for the first time
    and whenever a size or time of modification has changed: CIFAR and STL-10 by torchvision's
    checksums, TinyImageNet by decoding all images. Of ImageNet only layout and counts are checked
    each time; it is :func:`fetch` that decodes its images, and :func:`stream` stops at damaged
    ones.

    Args:
        name: of ``DATASETS``, ``"digits"``, or ``"folder:PATH"``.
        data_root: the folder that holds the datasets.
        split: which part.
        allow_missing: omit, with a warning, images that are missing or were found damaged;
            for the sets of single image files.
        prepared_side: read the images that :func:`prepare` decoded with this many pixels of the
            shorter side, instead of the files.

    Raises:
        MissingData: the dataset is not there.
        UserError: the name is unknown, the layout is another, files are missing or damaged, or the
            images are not prepared from these files.
        ValueError: the split is unknown.
    """
    describe(name)
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    part: Part = "test" if split == "test" else "train"
    if prepared_side is not None:
        image_sets.check_preparable(name)
        source = fingerprint(name, data_root)
        return image_sets.prepared_images(name, data_root, part, prepared_side, source)
    if name == DIGITS:
        return archives.digits(part)
    if name.startswith(OWN):
        from vision import own  # torchvision takes a second

        return own.folder(describe(name).folder, part, skip_damaged=allow_missing)
    if name in archives.ARCHIVES:
        fingerprint(name, data_root)  # verifies the files
        return archives.archive(name, data_root, split)
    if name == "TinyImageNet":
        source = fingerprint(name, data_root)
        return image_sets.tiny_imagenet(data_root, part, source, allow_missing)
    return image_sets.image_files(name, data_root, part, allow_missing)


def fetch(name: str, data_root: Path) -> None:
    """Download the dataset if it is missing, and verify it in any case.

    Decoding all of ImageNet takes hours; it is not repeated while names and sizes are the same.
    """
    if name == DIGITS:
        return
    if name.startswith(OWN):
        raise UserError(f"{name} is your own folder: there is nothing to fetch")
    folder = data_root / describe(name).folder
    if not folder.is_dir():
        _download(name, data_root)
    if name in archives.ARCHIVES:
        archives.verify_checksums(name, folder)
    elif describe(name).streams:
        image_sets.decode_all(name, data_root, fingerprint(name, data_root))
    load(name, data_root, "train")
    if describe(name).test:
        load(name, data_root, "test")
    check_prepared(data_root / image_sets.PREPARED, f"{name}-*")


def prepare(name: str, data_root: Path, side: int, say: Callable[[str], None] = print) -> None:
    """Decode all images of a streamed dataset once, for ``load(..., prepared_side=side)``.

    ``side`` is in pixels, of the shorter side; smaller images keep their size. ``say`` is told the
    size before anything is written, and then the progress.
    """
    image_sets.check_preparable(name)
    parts: list[Part] = ["train", "test"] if describe(name).test else ["train"]
    files: list[Path] = []
    for part in parts:
        load(name, data_root, part)  # checks that none is missing or damaged
        files += image_sets.listing(name, folder_of(name, data_root), part)[0]
    folder = image_sets.prepared_folder(name, fingerprint(name, data_root), data_root, side)
    prepared.prepare(folder, files, side, say)
    prepared.read(folder, image_sets.preparing(name, side, folder))  # which compares the checksums


def read_own(path: Path, data_root: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The changes of a configuration that trains and is scored on a folder, and its hash."""
    from vision import own

    own.check_scored(path)
    name = f"{OWN}{path}"
    return {"dataset": name}, {name: fingerprint(name, data_root)}


def fingerprint(name: str, data_root: Path) -> str:
    """SHA-256 over the files of a dataset, or over the arrays of the embedded one.

    Reading the ImageNets would take an hour: theirs, and that of your own folder, is over the names
    and sizes of the files. The other files are verified and read once; a file beside them keeps the
    result until a size or time of modification has changed.
    """
    if name == DIGITS:
        parts = (archives.digits("train"), archives.digits("test"))
        arrays = [tensor.numpy() for part in parts for tensor in (part.pixels, part.labels)]
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    folder = folder_of(name, data_root)
    files = _raw_files(name, folder)
    end = "" if approximation(folder) is None else APPROXIMATE
    if folder.name == "imagenet" or name.startswith(OWN):
        names = (f"{file.relative_to(folder)} {_size_of(file)}" for file in files)
        return sha256_of_lines(names) + end

    def verified() -> str:
        if name in archives.ARCHIVES:
            archives.verify_checksums(name, folder)
        return sha256_of_files(file for file in files if file.is_file())

    return cached_until_changed(folder / ".verified", files, verified) + end


def choose(images: AnyImages, count: int | None, seed: int = 0) -> AnyImages:
    """A class-balanced part of a split, fixed by the seed, in the order of the split.

    Each class has the same count, the first ones one more where the count does not divide evenly;
    what a class lacks comes from the others. A split with unlabelled images, or with images of
    several classes, is drawn from uniformly. With one seed, the larger parts contain the smaller
    ones.

    Args:
        images: the split.
        count: size of the part; None: all.
        seed: of the choice.

    Raises:
        UserError: the split has fewer images, or the count is not positive.
    """
    if count is None:
        return images
    if not 1 <= count <= len(images):
        raise UserError(f"images = {count}: the split has {len(images)}, choose from 1 to that")
    order = np.random.default_rng(seed).permutation(len(images))
    labels = images.labels.cpu().numpy()[order]
    if labels.ndim == 1 and labels.min() >= 0:
        by_class = np.argsort(labels, kind="stable")
        rank = np.empty(len(labels), dtype=np.int64)  # of each image among those of its class
        rank[by_class] = np.arange(len(labels)) - np.searchsorted(
            labels[by_class], labels[by_class]
        )
        order = order[np.lexsort((labels, rank))]
    index = torch.from_numpy(np.sort(order[:count]))
    return images.subset(index.to(images.labels.device))


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """An order of ``count`` images, (count,) int64, as a pure function of seed and epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def stream(
    images: ImageFiles,
    batches: Iterable[np.ndarray],
    policies: Sequence[Policy],
    size: int | Sequence[int],
    seed: int,
    epoch: int,
    workers: int = 0,
) -> Iterator[tuple[Tensor, ...]]:
    """Random crops of images on disk: for each batch one (B, 3, S, S) uint8 tensor per view.

    The box of a crop is that of :func:`vision.augmentation.parameters` for the image's position in
    ``images``; neither order nor content depends on the number of workers. Of the policies
    ``scale``, ``ratio`` and ``bicubic`` are used; the rest is left to
    :func:`vision.augmentation.augment` with the policy's ``scale=None``.

    batches: of each batch (B,) positions in ``images``. policies: of view 0, 1, ... size: S in
    pixels, of all views or of each. workers: processes that decode; 0: this one.
    """
    crop = functools.partial(
        crops.random_crops,
        policies=tuple(policies),
        sizes=(size,) * len(policies) if isinstance(size, int) else tuple(size),
        seed=seed,
        epoch=epoch,
    )
    yield from _loaded(images, crop, batches, workers)


def central_crops(
    images: ImageFiles,
    size: int,
    crop_fraction: float = 0.875,
    *,
    batch_size: int = 256,
    workers: int = 0,
) -> Iterator[Tensor]:
    """Central crops of images on disk, in their order: (B, 3, S, S) uint8.

    As torchvision does it, the shorter side is first resized to ``size / crop_fraction`` pixels,
    bilinearly: 256 for 224. With 0 workers this process decodes.
    """
    batches = [batch.numpy() for batch in torch.arange(len(images)).split(batch_size)]
    crop = functools.partial(crops.central_crops, size=size, resized=round(size / crop_fraction))
    for (view,) in _loaded(images, crop, batches, workers):
        yield view


# What all sets need


def _download(name: str, data_root: Path) -> None:
    folder = data_root / describe(name).folder
    if how := how_to_get(name, folder):
        raise UserError(f"{name} is not downloaded by this project: {how}")
    if name in SOURCES:
        _download_by_torchvision(name, data_root)
        return
    url, sha256 = _DOWNLOADS[name]
    fetch_archive(name, url, data_root, sha256)


def _download_by_torchvision(name: str, data_root: Path) -> None:
    """Over https and against a checksum, both torchvision's; :class:`UserError` if that fails."""
    get = SOURCES[name].get
    assert get is not None  # otherwise how_to_get says how
    folder = data_root / describe(name).folder
    try:
        data_root.mkdir(parents=True, exist_ok=True)
        get(data_root)
    # What a download raises depends on the transport and on the archive.
    except Exception as error:
        if not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)  # it would be taken for the data
        raise UserError(
            f"{name}: download by torchvision failed: {first_line(error)}; on a machine without "
            f"network, copy {folder} from one that has it"
        ) from error


def _raw_files(name: str, folder: Path) -> list[Path]:
    """All files of a dataset that are read; missing ones among them where their names are known."""
    if name.startswith(OWN):
        from vision import own  # torchvision takes a second

        return own.every_file(folder)
    marker = [folder / MARKER] if (folder / MARKER).is_file() else []
    if name in archives.ARCHIVES:
        return [*marker, *(folder / part for part in archives.checksums(name, folder))]
    files = [file for part in get_args(Part) for file in image_sets.listing(name, folder, part)[0]]
    if name == "TinyImageNet":
        files.append(folder / "val" / "val_annotations.txt")
    if name in SOURCES:
        files += [
            file for pattern in SOURCES[name].annotations for file in sorted(folder.glob(pattern))
        ]
    return [*marker, *files]


def _size_of(file: Path) -> str:
    """Its size in bytes, or "missing" for a broken link."""
    try:
        return str(file.stat().st_size)
    except OSError:
        return "missing"


# Reading image files


@dataclass(frozen=True)
class _Batches(TorchDataset[tuple[Tensor, ...] | UserError]):
    """Batches of views: element (B,) positions is one (B, 3, S, S) tensor for each view."""

    files: tuple[Path, ...] | Column
    crop: Crops
    upright: bool

    def __getitem__(self, batch: np.ndarray) -> tuple[Tensor, ...] | UserError:
        if isinstance(self.files, PreparedImages):  # memory-mapped: all at once
            images = [self.files[i] for i in batch.tolist()]
            return tuple(map(crops.stacked, self.crop(images, batch)))
        try:
            singles = [
                self.crop([_decode(self.files[i], upright=self.upright)], np.array([i]))
                for i in batch.tolist()
            ]
        except UserError as error:
            return error  # raised in a worker, it would come with the worker's traceback as text
        views = zip(*singles, strict=True)
        return tuple(crops.stacked([crop for (crop,) in view]) for view in views)


# With fewer images, a pass over them takes less time than starting workers.
FEW_FILES = 5000


def _loaded(
    images: ImageFiles, crop: Crops, batches: Iterable[np.ndarray], workers: int
) -> Iterator[tuple[Tensor, ...]]:
    loader = DataLoader(
        _Batches(images.files, crop, images.upright),
        batch_size=None,
        sampler=batches,
        num_workers=workers if len(images) > FEW_FILES else 0,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # otherwise each pass would draw from the global one
    )
    for views in loader:
        if isinstance(views, UserError):
            if images.place is not None:  # one error for all of them, not one after the other
                from vision import own  # torchvision takes a second

                own.check_all(images.place)
            raise views
        yield views
