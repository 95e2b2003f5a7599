"""Sets that are read whole from their archives: CIFAR, STL-10, and the embedded digits."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared.errors import UserError
from shared.experiment.data import approximation
from vision.datasets import _DIGITS, Part, Split, content_of, folder_of, remedy_of
from vision.images import Images
from vision.transfer_data import torchvision_datasets


@functools.cache
def digits(part: Part) -> Images:
    """Scikit-learn's digits, 17 grays spread over the 256 of a byte; the last 500 are "test"."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    gray = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))
    digits = Images(gray[:, None].repeat(1, 3, 1, 1), torch.from_numpy(bunch.target).long())
    train, test = torch.arange(len(digits)).split([_DIGITS.train, _DIGITS.test])
    return digits.subset(test if part == "test" else train)


UNLABELLED = "unlabeled_X.bin"
ARCHIVES = ("CIFAR10", "CIFAR100", "STL10")


def _reader(name: str) -> Any:
    """Torchvision's class for an archive, whose files need not be hashed again at every load."""
    verified = {"_check_integrity": lambda self: True}
    return type(name, (getattr(torchvision_datasets(), name),), verified)


def archive(name: str, data_root: Path, split: Split) -> Images:
    """A split of a set whose files have been verified."""
    if name == "STL10":
        folder = folder_of(name, data_root)
        # An approximate copy may lack the unlabelled images.
        everything = "train+unlabeled" if (folder / UNLABELLED).is_file() else "train"
        source = _reader(name)(data_root, everything if split == "pretrain" else split)
        pixels, labels = source.data, source.labels
    else:
        source = _reader(name)(data_root, train=split != "test")
        pixels, labels = source.data.transpose(0, 3, 1, 2), source.targets
    pixels = torch.from_numpy(np.ascontiguousarray(pixels))
    return Images(pixels, torch.from_numpy(np.array(labels, dtype=np.int64)))


def checksums(name: str, folder: Path) -> dict[str, str]:
    """The MD5 of each file: as torchvision has them, or as the marker of a copy says."""
    if (marker := approximation(folder)) is not None:
        return dict(marker.md5)
    source = _reader(name)
    checksums = dict(source.train_list + source.test_list)
    if name != "STL10":
        checksums[source.meta["filename"]] = source.meta["md5"]
    return checksums


def verify_checksums(name: str, folder: Path) -> None:
    """Refuse files that are missing or others than the published ones."""
    remedy = remedy_of(name, folder)
    for part, checksum in checksums(name, folder).items():
        if not (folder / part).is_file():
            raise UserError(f"{folder}: expected {part}, found {content_of(folder)}; {remedy}")
        if not torchvision_datasets().utils.check_integrity(folder / part, checksum):
            raise UserError(f"{folder / part}: its MD5 is not {checksum}; {remedy}")
