"""Sets of single image files: the ImageNets, the transfer suite, and TinyImageNet.

Of each image it is noted once whether it can be decoded; all of them can also be decoded once, see
:mod:`vision.prepared`. ``source`` is the fingerprint of a set's files.
"""

import functools
import re
import warnings
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, get_args

import torch

from shared.errors import UserError, first_line, first_of
from shared.experiment.data import approximation, sha256_of_lines
from shared.experiment.files import write_atomically
from shared.experiment.folders import class_files
from vision import prepared
from vision.datasets import (
    DATASETS,
    OWN,
    Part,
    content_of,
    describe,
    fetching_command,
    folder_of,
    remedy_of,
)
from vision.images import ImageFiles, Images, fault_of, size_of
from vision.transfer_data import SOURCES, torchvision_datasets

# The classes of ImageNet-100: github.com/HobbitLong/CMC, imagenet100.txt (Tian et al. 2020).
_IMAGENET100 = Path(__file__).with_name("imagenet100.txt")


def tiny_imagenet(data_root: Path, part: Part, source: str, allow_missing: bool) -> Images:
    """All images of a part without damaged ones, decoded once, see :mod:`vision.prepared`."""
    name = "TinyImageNet"
    side = describe(name).size
    if _verdict(name, data_root)[:1] != [source]:
        decode_all(name, data_root, source)
    files = image_files(name, data_root, part, allow_missing)
    assert isinstance(files.files, tuple)
    folder = prepared_folder(f"{name}-{part}", source, data_root, side)
    prepared.prepare(folder, files.files, side, lambda _: None)
    stored = prepared.read(folder, f"delete {folder} and run again")
    pixels = stored.pixels.view(len(files), side, side, 3).permute(0, 3, 1, 2)
    return Images(pixels.contiguous(), files.labels)


def image_files(name: str, data_root: Path, part: Part, allow_missing: bool) -> ImageFiles:
    """The files of a part, without those that :func:`decode_all` found damaged."""
    folder = folder_of(name, data_root)
    files, labels = listing(name, folder, part)
    _check_count(name, folder, part, len(files), allow_missing)
    known = {folder / damaged for damaged in _verdict(name, data_root)[1:]}
    images = ImageFiles(tuple(files), torch.tensor(labels))
    damaged = [_name(folder, file) for file in files if file in known]
    if not damaged:
        return images
    fault = f"{folder}: {len(damaged)} images damaged or missing: {first_of(damaged, 5)}"
    _tolerate(name, fault, allow_missing)
    intact = [position for position, file in enumerate(files) if file not in known]
    return images.subset(torch.tensor(intact))


def decode_all(name: str, data_root: Path, source: str) -> None:
    """Decode all images of this fingerprint, unless that was done, and note the damaged ones."""
    if _verdict(name, data_root) == [source]:
        return
    folder = folder_of(name, data_root)
    files = [file for part in get_args(Part) for file in listing(name, folder, part)[0]]
    side = describe(name).size if name == "TinyImageNet" else None
    with ThreadPool() as pool:  # Pillow decodes without Python's lock
        faults = pool.imap(functools.partial(_is_damaged, side=side), files, chunksize=64)
        damaged = [_name(folder, file) for file, fault in zip(files, faults, strict=True) if fault]
    write_atomically(_verdict_file(name, data_root), "\n".join([source, *damaged]) + "\n")


def _is_damaged(file: Path, side: int | None) -> bool:
    """Whether an image cannot be decoded, or has other sides than these."""
    return fault_of(file) is not None or (side is not None and size_of(file) != (side, side))


def _verdict(name: str, data_root: Path) -> list[str]:
    """The fingerprint of the ImageNet whose images were all decoded, and the damaged ones."""
    file = _verdict_file(name, data_root)
    return file.read_text().splitlines() if file.exists() else []


def _verdict_file(name: str, data_root: Path) -> Path:
    return data_root / f"{name}-decoded.txt"  # the folder of the images is often not ours


def listing(name: str, folder: Path, part: Part) -> tuple[list[Path], list[Any]]:
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
            f"{remedy_of(name, folder)}"
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
            remedy = remedy_of(name, folder.parent)
            raise UserError(f"{annotations}, line {number}: {text}; {remedy}")
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
            f"{searched}: {count} images, {name} has {expected}; {remedy_of(name, folder)}"
        )
    if count < expected:
        fault = f"{searched}: {expected - count} of {expected} images missing"
        _tolerate(name, fault, allow_missing)


def _tolerate(name: str, fault: str, allow_missing: bool) -> None:
    if not allow_missing:
        command = fetching_command(name)
        remedy = f"restore them and run: {command}, or continue without them: --allow-missing"
        raise UserError(f"{fault}; {remedy}")
    warnings.warn(f"{fault}; continuing without them", stacklevel=2)


def _wrong_layout(name: str, folder: Path, expected: str) -> UserError:
    remedy = remedy_of(name, folder.parent)
    return UserError(f"{folder}: expected {expected}, found {content_of(folder)}; {remedy}")


PREPARED = Path("prepared", "vision")  # below the data root


def prepared_images(name: str, data_root: Path, part: Part, side: int, source: str) -> ImageFiles:
    """A part of a dataset as :mod:`vision.prepared` keeps it, training images first."""
    files, labels = listing(name, folder_of(name, data_root), part)
    _check_count(name, folder_of(name, data_root), part, len(files), allow_missing=False)
    folder = prepared_folder(name, source, data_root, side)
    if not folder.is_dir():
        others = sorted(folder.parent.glob(f"{name}-{side}-*"))
        stale = f"; {others[0]} is of other files, and can be deleted" if others else ""
        raise UserError(f"{folder}: not prepared; {preparing(name, side)}{stale}")
    images = prepared.read(folder, preparing(name, side, folder))
    first = 0 if part == "train" else len(images) - len(files)
    return ImageFiles(images.chosen(slice(first, first + len(files))), torch.tensor(labels))


def prepared_folder(name: str, source: str, data_root: Path, side: int) -> Path:
    """Where the images are that are decoded from the files of this fingerprint."""
    key = sha256_of_lines([source, str(prepared.FORMAT)])
    return data_root / PREPARED / f"{name}-{side}-{key[:10]}"


def check_preparable(name: str) -> None:
    """Refuse a dataset whose images are not streamed from disk."""
    if name.startswith(OWN) or not describe(name).streams:
        able = ", ".join(dataset for dataset in DATASETS if describe(dataset).streams)
        raise UserError(f"{name} cannot be prepared; these can, which are streamed: {able}")


def preparing(name: str, side: int, damaged: Path | None = None) -> str:
    """The command that prepares a dataset, after what is damaged was deleted."""
    first = "" if damaged is None else f"delete {damaged} and "
    return f"{first}run: {fetching_command(name)} --prepare {side}"


def _name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).as_posix()
