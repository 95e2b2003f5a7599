"""Prepared images: what is stored, what is read from it, and what is noticed."""

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

import vision
from shared.command.reproduce import main
from shared.experiment.data import MARKER, SUMS
from shared.experiment.run import Run
from tests.stages.errors import error_of
from tests.stages.training import finish, losses
from vision.augmentation import POLICIES, parameters
from vision.config import Config
from vision.data import central_crops, fingerprint, load, prepare, stream
from vision.datasets import DATASETS, Dataset
from vision.features import record_data
from vision.images import ImageFiles

SIDE = 32
# By name of the file: height and width, and the mode in which it is stored.
FILES = {
    "0.JPEG": (60, 50, "RGB"),
    "1.JPEG": (40, 77, "L"),
    "2.JPEG": (50, 64, "CMYK"),
    "3.JPEG": (33, 33, "RGB"),
    "4.png": (20, 90, "RGBA"),  # smaller than what is asked for
}
WNIDS = ("n00000001", "n00000002")


def save(file: Path, seed: int, height: int, width: int, mode: str = "RGB") -> None:
    """A smooth random image that its EXIF data would turn on its side."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.convert(mode).save(file, exif=exif)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with a small imagenette: two classes, five images each to train on, one to test.

    Workers are used for any number of images.
    """
    for label, wnid in enumerate(WNIDS):
        for number, (name, form) in enumerate(FILES.items()):
            save(tmp_path / "imagenette" / "train" / wnid / name, 10 * label + number, *form)
        save(tmp_path / "imagenette" / "val" / wnid / "9.JPEG", 50 + label, 64, 48)
    small = Dataset("imagenette", 2, 160, 10, 2, (0.5,) * 3, (0.25,) * 3)
    monkeypatch.setitem(DATASETS, "imagenette", small)
    monkeypatch.setattr("vision.data.FEW_FILES", 0)
    return tmp_path


def prepared(root: Path, split: vision.data.Split = "train", side: int = SIDE) -> ImageFiles:
    images = load("imagenette", root, split, prepared_side=side)
    return images


def folder_of(root: Path) -> Path:
    (folder,) = (root / "prepared" / "vision").glob("[!.]*")
    return folder


def as_stored(file: Path) -> np.ndarray:
    """The image of a file, reduced as Pillow reduces it, written down once more."""
    with Image.open(file) as image:
        pixels = image.convert("RGB")
    width, height = pixels.size
    if min(width, height) > SIDE:
        scale = SIDE / min(width, height)
        size = (int(width * scale + 1e-9), int(height * scale + 1e-9))
        pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(pixels)


def test_prepared_images_are_the_reduced_files_to_the_bit(root: Path) -> None:
    prepare("imagenette", root, SIDE, str)
    for split in ("train", "pretrain", "test"):
        files = load("imagenette", root, split)
        images = prepared(root, split)
        assert torch.equal(images.labels, files.labels)
        assert len(images) == len(files)
        for file, found in zip(files.files, images.files, strict=True):
            assert found.dtype == torch.uint8
            assert np.array_equal(found.permute(1, 2, 0).numpy(), as_stored(file))
    assert [tuple(image.shape[1:]) for image in list(prepared(root).files)[:5]] == [
        (38, 32),
        (32, 61),
        (32, 40),
        (32, 32),
        (20, 90),
    ]
    # A worker maps the file, and is not sent the pixels.
    images = prepared(root).subset(torch.tensor([6, 1])).files
    sent = pickle.dumps(images)
    assert len(sent) < (folder_of(root) / "pixels.bin").stat().st_size / 10
    assert all(map(torch.equal, pickle.loads(sent), images))


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Antialiased bilinear resizing, (height, width, 3): a triangle along each axis in turn."""

    def along(values: np.ndarray, size: int) -> np.ndarray:
        count = len(values)
        widened = max(count / size, 1.0)
        lines = []
        for place in range(size):
            centre = (place + 0.5) * count / size
            weights = np.maximum(0, 1 - abs((np.arange(count) + 0.5 - centre) / widened))
            lines.append(np.floor(np.tensordot(weights / weights.sum(), values, 1) + 0.5))
        return np.stack(lines)

    columns = along(pixels.astype(np.float64).transpose(1, 0, 2), width).transpose(1, 0, 2)
    return along(columns, height)


def test_random_crops_are_boxes_of_the_reduced_image(root: Path) -> None:
    prepare("imagenette", root, SIDE, str)
    files = load("imagenette", root, "train").files
    policies = [POLICIES["simclr"], POLICIES["mmcl_imagenet"], POLICIES["plain"]]
    batch = np.array([7, 0, 4, 2])
    (views,) = stream(prepared(root), [batch], policies, (24, 20, 16), 5, 3)
    for view, (policy, size) in enumerate(zip(policies, (24, 20, 16), strict=True)):
        assert views[view].shape == (4, 3, size, size)
        assert views[view].dtype == torch.uint8
        assert views[view].is_contiguous()
        for sample, crop in zip(batch, views[view], strict=True):
            pixels = as_stored(files[sample])
            height, width = pixels.shape[:2]
            box = parameters(policy, 5, 3, np.array([sample]), view, height, width)
            top, left = int(box.top[0]), int(box.left[0])
            part = pixels[top : top + int(box.height[0]), left : left + int(box.width[0])].copy()
            mode = "bicubic" if policy.bicubic else "bilinear"
            tensor = torch.from_numpy(part).permute(2, 0, 1)[None]
            expected = interpolate(tensor, (size, size), mode=mode, antialias=True)[0]
            assert torch.equal(crop, expected)
            if not policy.bicubic:
                reference = resized(part, size, size).transpose(2, 0, 1)
                assert np.abs(crop.numpy() - reference).max() <= 1


def test_central_crops_from_the_prepared_side_are_those_of_the_files(root: Path) -> None:
    prepare("imagenette", root, SIDE, str)
    files = load("imagenette", root, "train")
    large = torch.tensor([0, 1, 2, 3, 5, 6, 7, 8])  # the others are smaller than that side
    (expected,) = central_crops(files.subset(large), 28)
    (found,) = central_crops(prepared(root).subset(large), 28)
    assert torch.equal(found, expected)

    (crop,) = next(central_crops(prepared(root).subset(torch.tensor([4])), 14))
    reference = resized(as_stored(files.files[4]), 16, 72)[1:15, 29:43]
    assert np.abs(crop.permute(1, 2, 0).numpy() - reference).max() <= 1


@pytest.mark.slow
def test_crops_do_not_depend_on_the_instructions_of_the_cpu() -> None:
    script = """
import hashlib, numpy, torch
from vision import crops
from vision.augmentation import POLICIES
pixels = numpy.random.default_rng(0).integers(0, 256, (8, 90, 120, 3), dtype=numpy.uint8)
images = [torch.from_numpy(each).permute(2, 0, 1) for each in pixels]
policies, found = [POLICIES["simclr"], POLICIES["mmcl_imagenet"]], hashlib.sha256()
for view in crops.random_crops(images, numpy.arange(8), policies, (64, 224), 0, 0):
    found.update(torch.stack(view).numpy().tobytes())
print(torch.backends.cpu.get_cpu_capability(), found.hexdigest())
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **more},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for more in ({}, {"ATEN_CPU_CAPABILITY": "default"})
    ]
    assert said[1][0] == "DEFAULT"
    assert said[0][1] == said[1][1]


@pytest.mark.parametrize("name", ["pixels.bin", "sizes.npy", SUMS])
def test_an_altered_file_is_noticed(root: Path, name: str) -> None:
    prepare("imagenette", root, SIDE, str)
    prepared(root)
    folder = folder_of(root)
    content = bytearray((folder / name).read_bytes())
    content[-5] ^= 1
    (folder / name).write_bytes(content)
    for action in (lambda: prepared(root), lambda: vision.data.fetch("imagenette", root)):
        assert error_of(action).startswith(f"{folder}: damaged or edited (")
    (folder / SUMS).unlink()
    assert SUMS in error_of(lambda: prepared(root))
    shutil.rmtree(folder)
    prepare("imagenette", root, SIDE, str)
    prepared(root)


def test_pixels_altered_with_size_and_time_kept_are_noticed(root: Path) -> None:
    """At the end of a run."""
    config = dataclasses.replace(CONFIG, prepared_side=SIDE)
    prepare("imagenette", root, SIDE, str)
    pixels = folder_of(root) / "pixels.bin"
    before = pixels.stat()
    with Run(root / "run", config, tier="smoke", data_root=root) as run:
        metrics = vision.measure(config, run)
        pixels.write_bytes(bytes(before.st_size))
        os.utime(pixels, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert "damaged or edited" in error_of(lambda: run.finish(metrics))
    assert not (root / "run" / "result.json").exists()


def test_images_of_other_files_or_of_another_side_are_not_taken(root: Path) -> None:
    assert f"--prepare {SIDE}" in error_of(lambda: prepared(root))
    prepare("imagenette", root, SIDE, str)
    old = folder_of(root)
    before = prepared(root).files
    error_of(lambda: prepared(root, side=SIDE + 1))

    save(root / "imagenette" / "train" / WNIDS[0] / "0.JPEG", 99, 60, 50)
    assert str(old) in error_of(lambda: prepared(root))
    prepare("imagenette", root, SIDE, str)
    after = prepared(root).files
    assert after.sha256 != before.sha256
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])


def test_only_complete_sets_of_image_files_are_prepared(root: Path) -> None:
    for name in ("CIFAR10", "digits", f"folder:{root / 'imagenette'}"):
        for action in (
            lambda name=name: prepare(name, root, SIDE, str),
            lambda name=name: load(name, root, "train", prepared_side=SIDE),
        ):
            assert "cannot be prepared" in error_of(action)
    file = root / "imagenette" / "train" / WNIDS[1] / "3.JPEG"
    for content in (file.read_bytes()[:-100], b"text", None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        said = error_of(lambda: prepare("imagenette", root, SIDE, str))
        assert str(file) in said or "1 of 10" in said
        assert not [*(root / "prepared" / "vision").glob("[!.]*")]


def test_the_command_prepares_one_dataset(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--data-root", str(root)]
    assert main(["data", "vision", "--dataset", "imagenette", *place]) == 0
    assert not (root / "prepared").exists()
    assert main(["data", "vision", "--dataset", "imagenette", "--prepare", "32", *place]) == 0
    assert folder_of(root).name.startswith("imagenette-32-")
    assert main(["data", "vision", "--dataset", "imagenette", "--prepare", *place]) == 0
    assert len([*(root / "prepared" / "vision").glob("imagenette-256-*")]) == 1
    capsys.readouterr()
    assert main(["data", "vision", "--prepare", *place]) == 2
    assert "--dataset" in capsys.readouterr().err
    assert main(["data", "graph", "--prepare", *place]) == 2
    assert "graph" in capsys.readouterr().err


def test_the_paper_tier_takes_no_approximate_copy(root: Path) -> None:
    (root / "imagenette" / MARKER).write_text(json.dumps({"what": "a part"}))
    with Run(root / "run", CONFIG, tier="short", data_root=root) as run:
        record_data(run, "imagenette")
        assert run.environment["data"] == {"imagenette": fingerprint("imagenette", root)}
    with Run(root / "paper", CONFIG, tier="paper", data_root=root) as run:
        assert "approximate" in error_of(lambda: record_data(run, "imagenette"))


# Runs


CONFIG = dataclasses.replace(
    Config(backbone="resnet8").reduced(),
    dataset="imagenette",
    images=None,
    image_size=24,
    batch_size=4,
    epochs=2,
)


def data_of(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "environment.json").read_text())["data"]
    return found


@pytest.mark.slow
def test_a_run_records_the_prepared_images(root: Path) -> None:
    config = dataclasses.replace(CONFIG, prepared_side=SIDE)
    of_run: dict[str, Any] = {"tier": "smoke", "data_root": root}
    with Run(root / "early", config, **of_run) as run:
        error_of(lambda: vision.measure(config, run))
    prepare("imagenette", root, SIDE, str)
    images = prepared(root).files
    # An encoder trained on the files is not taken for one of these.
    for name, each in (("plain", CONFIG), ("stored", config)):
        finish(root / name, each, vision.measure, **of_run, store=root / "encoders")
    records = [json.loads(each.read_text()) for each in (root / "encoders").glob("*/record.json")]
    assert sorted(each["data"].get("prepared", "") for each in records) == ["", images.sha256]
    assert list(data_of(root / "plain")) == ["imagenette"]
    assert data_of(root / "stored") == {**data_of(root / "plain"), "prepared": images.sha256}
    assert losses(root / "plain") != losses(root / "stored")
    other = dataclasses.replace(config, evaluate_on="digits")  # from its files
    finish(root / "other", other, vision.measure, **of_run)
    assert data_of(root / "other").keys() == {"imagenette", "prepared", "digits"}
