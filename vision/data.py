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
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from shared.errors import UserError, first_line, first_of
from shared.experiment.data import (
    APPROXIMATE,
    MARKER,
    approximation,
    check_prepared,
    fetch_archive,
    remembered,
    sha256_of_files,
    sha256_of_lines,
)
from shared.experiment.files import write_atomically
from shared.experiment.folders import class_files
from vision import crops, prepared
from vision.augmentation import Policy
from vision.crops import Crops
from vision.datasets import (
    _DIGITS,
    _STREAMED,
    DATASETS,
    DIGITS,
    OWN,
    Part,
    Split,
    describe,
    fetching_command,
    folder_of,
    how_to_get,
)
from vision.images import Column, ImageFiles, Images, fault_of, size_of
from vision.images import decode as _decode
from vision.prepared import PreparedImages
from vision.transfer_data import SOURCES, torchvision_datasets

# The classes of ImageNet-100: github.com/HobbitLong/CMC, imagenet100.txt (Tian et al. 2020).
_IMAGENET100 = Path(__file__).with_name("imagenet100.txt")
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
        return _prepared(name, data_root, part, prepared_side)
    if name == DIGITS:
        return _digits(part)
    if name.startswith(OWN):
        from vision import own  # torchvision takes a second

        return own.folder(describe(name).folder, part, skip_damaged=allow_missing)
    if name in _ARCHIVES:
        return _archive(name, data_root, split)
    if name == "TinyImageNet":
        return _tiny_imagenet(data_root, part, allow_missing)
    return _imagenet(name, data_root, part, allow_missing)


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
    if name in _ARCHIVES:
        _verify_checksums(name, folder)
    elif describe(name).streams:
        _decode_all(name, data_root)
    load(name, data_root, "train")
    if describe(name).test:
        load(name, data_root, "test")
    check_prepared(data_root / PREPARED, f"{name}-*")


def prepare(name: str, data_root: Path, side: int, say: Callable[[str], None] = print) -> None:
    """Decode all images of a streamed dataset once, for ``load(..., prepared_side=side)``.

    ``side`` is in pixels, of the shorter side; smaller images keep their size. ``say`` is told the
    size before anything is written, and then the progress.
    """
    _check_preparable(name)
    parts: list[Part] = ["train", "test"] if describe(name).test else ["train"]
    files: list[Path] = []
    for part in parts:
        load(name, data_root, part)  # checks that none is missing or damaged
        files += _listing(name, folder_of(name, data_root), part)[0]
    folder = _prepared_folder(name, fingerprint(name, data_root), data_root, side)
    prepared.prepare(folder, files, side, say)
    prepared.read(folder, _preparing(name, side, folder))  # which compares the checksums


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
        parts = (_digits("train"), _digits("test"))
        arrays = [tensor.numpy() for part in parts for tensor in (part.pixels, part.labels)]
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    folder = folder_of(name, data_root)
    files = _raw_files(name, folder)
    end = "" if approximation(folder) is None else APPROXIMATE
    if folder.name == "imagenet" or name.startswith(OWN):
        names = (f"{file.relative_to(folder)} {_size_of(file)}" for file in files)
        return sha256_of_lines(names) + end

    def verified() -> str:
        if name in _ARCHIVES:
            _verify_checksums(name, folder)
        return sha256_of_files(file for file in files if file.is_file())

    return remembered(folder / ".verified", files, verified) + end


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


# Sets in archives: CIFAR, STL-10 and the embedded digits


@functools.cache
def _digits(part: Part) -> Images:
    """Scikit-learn's digits, 17 grays spread over the 256 of a byte; the last 500 are "test"."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    gray = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))
    digits = Images(gray[:, None].repeat(1, 3, 1, 1), torch.from_numpy(bunch.target).long())
    train, test = torch.arange(len(digits)).split([_DIGITS.train, _DIGITS.test])
    return digits.subset(test if part == "test" else train)


_UNLABELLED = "unlabeled_X.bin"
_ARCHIVES = ("CIFAR10", "CIFAR100", "STL10")


def _reader(name: str) -> Any:
    """Torchvision's class for an archive, whose files need not be hashed again at every load."""
    verified = {"_check_integrity": lambda self: True}
    return type(name, (getattr(torchvision_datasets(), name),), verified)


def _archive(name: str, data_root: Path, split: Split) -> Images:
    fingerprint(name, data_root)  # verifies the files
    if name == "STL10":
        folder = folder_of(name, data_root)
        # An approximate copy may lack the unlabelled images.
        everything = "train+unlabeled" if (folder / _UNLABELLED).is_file() else "train"
        source = _reader(name)(data_root, everything if split == "pretrain" else split)
        pixels, labels = source.data, source.labels
    else:
        source = _reader(name)(data_root, train=split != "test")
        pixels, labels = source.data.transpose(0, 3, 1, 2), source.targets
    pixels = torch.from_numpy(np.ascontiguousarray(pixels))
    return Images(pixels, torch.from_numpy(np.array(labels, dtype=np.int64)))


def _checksums(name: str, folder: Path) -> dict[str, str]:
    """The MD5 of each file: as torchvision has them, or as the marker of a copy says."""
    if (marker := approximation(folder)) is not None:
        return dict(marker.md5)
    source = _reader(name)
    checksums = dict(source.train_list + source.test_list)
    if name != "STL10":
        checksums[source.meta["filename"]] = source.meta["md5"]
    return checksums


def _verify_checksums(name: str, folder: Path) -> None:
    remedy = _remedy(name, folder)
    for part, checksum in _checksums(name, folder).items():
        if not (folder / part).is_file():
            raise UserError(f"{folder}: expected {part}, found {_content(folder)}; {remedy}")
        if not torchvision_datasets().utils.check_integrity(folder / part, checksum):
            raise UserError(f"{folder / part}: its MD5 is not {checksum}; {remedy}")


# Sets of single image files: TinyImageNet and the ImageNets


def _tiny_imagenet(data_root: Path, part: Part, allow_missing: bool) -> Images:
    """All images of a part without damaged ones, decoded once, see :mod:`vision.prepared`."""
    name = "TinyImageNet"
    source, side = fingerprint(name, data_root), describe(name).size
    if _verdict(name, data_root)[:1] != [source]:
        _decode_all(name, data_root)
    files = _imagenet(name, data_root, part, allow_missing)
    assert isinstance(files.files, tuple)
    folder = _prepared_folder(f"{name}-{part}", source, data_root, side)
    prepared.prepare(folder, files.files, side, lambda _: None)
    stored = prepared.read(folder, f"delete {folder} and run again")
    pixels = stored.pixels.view(len(files), side, side, 3).permute(0, 3, 1, 2)
    return Images(pixels.contiguous(), files.labels)


def _imagenet(name: str, data_root: Path, part: Part, allow_missing: bool) -> ImageFiles:
    """The files of a part, without those that :func:`fetch` found damaged."""
    folder = folder_of(name, data_root)
    files, labels = _listing(name, folder, part)
    _check_count(name, folder, part, len(files), allow_missing)
    known = {folder / damaged for damaged in _verdict(name, data_root)[1:]}
    images = ImageFiles(tuple(files), torch.tensor(labels))
    damaged = [_name(folder, file) for file in files if file in known]
    if not damaged:
        return images
    _leave_out(name, folder, damaged, allow_missing)
    intact = [position for position, file in enumerate(files) if file not in known]
    return images.subset(torch.tensor(intact))


def _decode_all(name: str, data_root: Path) -> None:
    """Decode all images of an ImageNet, unless that was done, and note the damaged ones."""
    source = fingerprint(name, data_root)
    if _verdict(name, data_root) == [source]:
        return
    folder = folder_of(name, data_root)
    files = _raw_files(name, folder)
    side = describe(name).size if name == "TinyImageNet" else None
    with ThreadPool() as pool:  # Pillow decodes without Python's lock
        faults = pool.imap(functools.partial(_is_damaged, side=side), files, chunksize=64)
        damaged = [_name(folder, file) for file, fault in zip(files, faults, strict=True) if fault]
    verdict = _verdict_file(name, data_root)
    try:
        write_atomically(verdict, "\n".join([source, *damaged]) + "\n")
    except OSError as error:
        raise UserError(f"{verdict}: cannot store which images are damaged: {error}") from error


def _is_damaged(file: Path, side: int | None) -> bool:
    """Whether an image cannot be decoded, or has other sides than these."""
    return fault_of(file) is not None or (side is not None and size_of(file) != (side, side))


def _verdict(name: str, data_root: Path) -> list[str]:
    """The fingerprint of the ImageNet whose images were all decoded, and the damaged ones."""
    file = _verdict_file(name, data_root)
    return file.read_text().splitlines() if file.exists() else []


def _verdict_file(name: str, data_root: Path) -> Path:
    return data_root / f"{name}-decoded.txt"  # the folder of the images is often not ours


def _listing(name: str, folder: Path, part: Part) -> tuple[list[Path], list[Any]]:
    """The files of a part and their classes, numbered in the order of the names."""
    if name in SOURCES:
        return _suite_listing(name, folder, part)
    classes = {wnid: label for label, wnid in enumerate(_classes(name, folder))}
    if name == "TinyImageNet" and part == "test":
        return _annotated(name, folder / "val", classes)
    folder_of_part = folder / ("val" if part == "test" else "train")
    for wnid in classes:
        if not (folder_of_part / wnid).is_dir():
            raise _wrong_layout(name, folder_of_part, f"a folder {wnid}")
    entries = class_files(folder_of_part, classes, torchvision_datasets().folder.IMG_EXTENSIONS)
    return [file for file, _ in entries], [label for _, label in entries]


def _suite_listing(name: str, folder: Path, part: Part) -> tuple[list[Path], list[Any]]:
    root = Path(*folder.parts[: -len(Path(describe(name).folder).parts)])
    try:
        entries = SOURCES[name].files(root, part)
    # What a loader raises depends on which file is missing.
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder}: not {name} as torchvision lays it out ({first_line(error)}); "
            f"{_remedy(name, folder)}"
        ) from error
    return [file for file, _ in entries], [label for _, label in entries]


def _classes(name: str, folder: Path) -> list[str]:
    if name == "ImageNet100":
        return _IMAGENET100.read_text().split()
    names = (path.name for path in (folder / "train").glob("n*") if path.is_dir())
    classes = sorted(wnid for wnid in names if re.fullmatch(r"n\d{8}", wnid))
    if len(classes) != (expected := describe(name).classes):
        what = f"{expected} folders named like n01440764 (there are {len(classes)})"
        raise _wrong_layout(name, folder / "train", what)
    return classes


def _annotated(name: str, folder: Path, classes: dict[str, int]) -> tuple[list[Path], list[int]]:
    """The validation images of TinyImageNet as its annotations list them, there or not."""
    annotations = folder / "val_annotations.txt"
    for path in (annotations, folder / "images"):
        if not path.exists():
            raise _wrong_layout(name, folder, path.name)
    files, labels = [], []
    lines = annotations.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        file, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in classes:
            text = f"{wnid!r} is not a class of {folder.parent / 'train'}"
            raise UserError(f"{annotations}, line {number}: {text}; {_remedy(name, folder.parent)}")
        files.append(folder / "images" / file)
        labels.append(classes[wnid])
    return files, labels


def _check_count(name: str, folder: Path, part: Part, count: int, allow_missing: bool) -> None:
    expected: int = getattr(describe(name), part)
    if count and approximation(folder) is not None:
        return
    if not expected:
        raise UserError(f"{name} has no {part} images: it is one part, for few-shot episodes")
    searched = folder
    if name not in SOURCES:
        searched = folder / ("val" if part == "test" else "train")
    if count > expected or not count:
        raise UserError(
            f"{searched}: {count} images, {name} has {expected}; {_remedy(name, folder)}"
        )
    if count < expected:
        fault = f"{searched}: {expected - count} of {expected} images missing"
        _tolerate(name, fault, allow_missing)


def _leave_out(name: str, folder: Path, damaged: list[str], allow_missing: bool) -> None:
    fault = f"{folder}: {len(damaged)} images damaged or missing: {first_of(damaged, 5)}"
    _tolerate(name, fault, allow_missing)


def _tolerate(name: str, fault: str, allow_missing: bool) -> None:
    if not allow_missing:
        command = fetching_command(name)
        remedy = f"restore them and run: {command}, or continue without them: --allow-missing"
        raise UserError(f"{fault}; {remedy}")
    warnings.warn(f"{fault}; continuing without them", stacklevel=2)


def _wrong_layout(name: str, folder: Path, expected: str) -> UserError:
    remedy = _remedy(name, folder.parent)
    return UserError(f"{folder}: expected {expected}, found {_content(folder)}; {remedy}")


# Prepared images


PREPARED = Path("prepared", "vision")  # below the data root


def _prepared(name: str, data_root: Path, part: Part, side: int) -> ImageFiles:
    """A part of a dataset as :func:`prepare` decoded it, training images first."""
    _check_preparable(name)
    files, labels = _listing(name, folder_of(name, data_root), part)
    _check_count(name, folder_of(name, data_root), part, len(files), allow_missing=False)
    folder = _prepared_folder(name, fingerprint(name, data_root), data_root, side)
    if not folder.is_dir():
        others = sorted(folder.parent.glob(f"{name}-{side}-*"))
        stale = f"; {others[0]} is of other files, and can be deleted" if others else ""
        raise UserError(f"{folder}: not prepared; {_preparing(name, side)}{stale}")
    images = prepared.read(folder, _preparing(name, side, folder))
    first = 0 if part == "train" else len(images) - len(files)
    return ImageFiles(images.chosen(slice(first, first + len(files))), torch.tensor(labels))


def _prepared_folder(name: str, source: str, data_root: Path, side: int) -> Path:
    """Where the images are that are decoded from the files of this fingerprint."""
    key = sha256_of_lines([source, str(prepared.FORMAT)])
    return data_root / PREPARED / f"{name}-{side}-{key[:10]}"


def _check_preparable(name: str) -> None:
    if name.startswith(OWN) or not describe(name).streams:
        able = ", ".join(dataset for dataset in DATASETS if describe(dataset).streams)
        raise UserError(f"{name} cannot be prepared; these can, which are streamed: {able}")


def _preparing(name: str, side: int, damaged: Path | None = None) -> str:
    first = "" if damaged is None else f"delete {damaged} and "
    return f"{first}run: {fetching_command(name)} --prepare {side}"


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
    if name in _ARCHIVES:
        return [*marker, *(folder / part for part in _checksums(name, folder))]
    files = _listing(name, folder, "train")[0] + _listing(name, folder, "test")[0]
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


def _name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).as_posix()


def _content(folder: Path) -> str:
    """The first names in a folder, for messages."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "nothing"


def _remedy(name: str, folder: Path) -> str:
    if name in SOURCES and (how := SOURCES[name].how):
        return how
    if folder.name in _STREAMED:
        return f"{name} belongs in {folder}/train/<wnid>/*.JPEG and {folder}/val/<wnid>/*.JPEG"
    return f"delete {folder} and run: {fetching_command(name)}"


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
    images: ImageFiles,
    crop: Crops,
    batches: Iterable[np.ndarray],
    workers: int,
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
