import dataclasses
import hashlib
import json
import os
import pickle
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

# After the call above, without which the import fails beside a CPU build of torch.
import torchvision
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.transforms.v2 import functional

import vision.data
from shared.errors import UserError
from tests.stages.errors import error_of
from vision.augmentation import POLICIES, parameters
from vision.data import central_crops, choose, fetch, fingerprint, load, stream
from vision.datasets import DATASETS, DIGITS, Dataset, describe, missing
from vision.images import ImageFiles, Images


@pytest.fixture(autouse=True)
def workers_for_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vision.data.FEW_FILES", 0)


NOWHERE = Path("nowhere")
WNIDS = ("n00000001", "n00000002", "n00000003")


def never(*arguments: object) -> None:
    raise AssertionError("must not be called")


def small(folder: str, classes: int, train: int, test: int) -> Dataset:
    return Dataset(folder, classes, 64, train, test, (0.5,) * 3, (0.5,) * 3)


def save_image(path: Path, seed: int, width: int = 64, height: int = 64, mode: str = "RGB") -> None:
    """A smooth random image, for JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    image.convert(mode).save(path, format="JPEG", quality=95)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def decoded(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


# The embedded set


def test_digits_are_scikit_learns_in_three_equal_channels():
    train, test = (load(DIGITS, NOWHERE, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (1297, 500)
    assert torch.equal(load(DIGITS, NOWHERE, "pretrain").pixels, train.pixels)
    pixels, labels = torch.cat([train.pixels, test.pixels]), torch.cat([train.labels, test.labels])
    assert pixels.shape == (1797, 3, 8, 8)
    assert pixels.dtype == torch.uint8
    assert (pixels == pixels[:, :1]).all()
    bunch = load_digits()
    assert torch.equal(labels, torch.from_numpy(bunch.target))
    assert np.abs(pixels[:, 0].numpy() / 255 * 16 - bunch.images).max() < 0.04
    # The first row of the first digit has the grays 0 0 5 13 9 1 0 0 of 16.
    assert train.pixels[0, 1, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    arrays = (train.pixels, train.labels, test.pixels, test.labels)
    content = b"".join(array.numpy().tobytes() for array in arrays)
    assert fingerprint(DIGITS, NOWHERE) == hashlib.sha256(content).hexdigest()
    dataset = describe(DIGITS)
    assert float(train.pixels.float().div(255).mean()) == pytest.approx(dataset.mean[0], abs=5e-5)
    assert float(train.pixels.float().div(255).std()) == pytest.approx(dataset.std[0], abs=5e-5)


# Choosing and ordering


def test_choice_is_balanced_in_order_and_fixed_by_the_seed():
    labels = torch.arange(1000) % 10
    number = torch.arange(1000)
    pixels = torch.stack([number // 256, number % 256], dim=1).to(torch.uint8)[..., None, None]
    images = Images(pixels, labels)

    def numbers(chosen: Images) -> torch.Tensor:
        return 256 * chosen.pixels[:, 0, 0, 0].long() + chosen.pixels[:, 1, 0, 0]

    chosen = choose(images, 103, seed=1)
    assert chosen.labels.bincount().tolist() == [11, 11, 11, 10, 10, 10, 10, 10, 10, 10]
    positions = numbers(chosen)
    assert (positions.diff() > 0).all()
    assert torch.equal(chosen.labels, positions % 10)
    assert torch.equal(positions, numbers(choose(images, 103, seed=1)))
    assert not torch.equal(positions, numbers(choose(images, 103, seed=2)))
    smaller = numbers(choose(images, 40, seed=1))
    assert torch.isin(smaller, positions).all()
    # Of each class any image may be chosen, not only its first ones.
    assert positions.float().mean() == pytest.approx(500, abs=100)
    assert choose(images, None) is images
    for count in (0, 1001):
        assert f"images = {count}" in error_of(partial(choose, images, count))
    labels = torch.cat([torch.zeros(500), torch.ones(500), -torch.ones(9000)]).long()
    images = ImageFiles(tuple(map(Path, map(str, range(10_000)))), labels)
    count = (choose(images, 2000).labels + 1).bincount().tolist()
    assert sum(count) == 2000
    assert count[0] == pytest.approx(1800, abs=40)  # three standard deviations are 36


# CIFAR and STL-10


def test_real_cifar10_has_the_published_labels_and_mean(suite_data: Path):
    if not (suite_data / "cifar-10-batches-py").is_dir():
        pytest.skip("needs CIFAR-10 below SUITE_DATA")
    train, test = (load("CIFAR10", suite_data, split) for split in ("train", "test"))
    assert train.labels.bincount().tolist() == [5000] * 10
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    mean = train.pixels.sum((0, 2, 3)) / (255 * 50_000 * 32 * 32)
    assert mean.tolist() == pytest.approx(DATASETS["CIFAR10"].mean, abs=6e-5)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 7 training and 3 test images in CIFAR-100's format."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part, labels in (("train", [99, 0, 5, 5, 98, 3, 1]), ("test", [4, 99, 0])):
        content = {
            "data": generator.integers(0, 256, (len(labels), 3072), dtype=np.uint8),
            "fine_labels": labels,
            "coarse_labels": [19] * len(labels),
        }
        (folder / part).write_bytes(pickle.dumps(content))
    names = [f"class {i}" for i in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    source = torchvision.datasets.CIFAR100
    monkeypatch.setattr(source, "train_list", [["train", md5(folder / "train")]])
    monkeypatch.setattr(source, "test_list", [["test", md5(folder / "test")]])
    meta = {"filename": "meta", "key": "fine_label_names", "md5": md5(folder / "meta")}
    monkeypatch.setattr(source, "meta", meta)
    return tmp_path


def test_cifar100_has_the_fine_labels(cifar100: Path):
    train, test = (load("CIFAR100", cifar100, split) for split in ("pretrain", "test"))
    assert train.labels.tolist() == [99, 0, 5, 5, 98, 3, 1]
    assert test.labels.tolist() == [4, 99, 0]
    content = pickle.loads((cifar100 / "cifar-100-python" / "test").read_bytes())
    # Red, green and blue, each row by row.
    assert np.array_equal(test.pixels, content["data"].reshape(3, 3, 32, 32))
    meta = cifar100 / "cifar-100-python" / "meta"
    meta.write_bytes(b"")
    assert error_of(lambda: load("CIFAR100", cifar100, "train")).startswith(f"{meta}: its MD5")
    meta.unlink()
    assert "meta" in error_of(lambda: fetch("CIFAR100", cifar100))


def test_verified_once_and_again_when_a_file_has_changed(
    cifar100: Path, monkeypatch: pytest.MonkeyPatch
):
    known = fingerprint("CIFAR100", cifar100)
    with monkeypatch.context() as patch:
        patch.setattr("vision.archives.verify_checksums", never)
        assert fingerprint("CIFAR100", cifar100) == known
        with pytest.raises(AssertionError, match="must not be called"):  # whatever is known
            fetch("CIFAR100", cifar100)
    (cifar100 / "cifar-100-python" / ".verified").write_text("half a")
    assert fingerprint("CIFAR100", cifar100) == known
    file = cifar100 / "cifar-100-python" / "train"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    assert error_of(lambda: load("CIFAR100", cifar100, "test")).startswith(f"{file}: its MD5")


@pytest.fixture
def stl10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 4 training, 3 test and 6 unlabelled images in STL-10's format."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 3), ("unlabeled", 6)):
        pixels = generator.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        (folder / f"{part}_X.bin").write_bytes(pixels.tobytes())
    (folder / "train_y.bin").write_bytes(bytes([1, 10, 3, 3]))
    (folder / "test_y.bin").write_bytes(bytes([2, 9, 10]))
    source = torchvision.datasets.STL10
    for name in ("train_list", "test_list"):
        listed = [[part, md5(folder / part)] for part, _ in getattr(source, name)]
        monkeypatch.setattr(source, name, listed)
    return tmp_path


def test_stl10_pretrains_on_the_unlabelled_images_too(stl10: Path):
    pretrain, train, test = (load("STL10", stl10, split) for split in ("pretrain", "train", "test"))
    assert train.labels.tolist() == [0, 9, 2, 2]
    assert test.labels.tolist() == [1, 8, 9]
    assert pretrain.labels.tolist() == [0, 9, 2, 2] + [-1] * 6
    assert pretrain.pixels.shape == (10, 3, 96, 96)
    assert torch.equal(pretrain.pixels[:4], train.pixels)
    content = (stl10 / "stl10_binary" / "unlabeled_X.bin").read_bytes()
    channel, row, column = 2, 17, 80
    # The file goes down the columns.
    position = (5 * 3 + channel) * 96 * 96 + column * 96 + row
    assert pretrain.pixels[9, channel, row, column] == content[position]
    assert DATASETS["STL10"].train + DATASETS["STL10"].unlabelled == 105_000


def test_missing_and_unknown_datasets_are_named(tmp_path: Path):
    assert "CIFAR11" in error_of(lambda: load("CIFAR11", tmp_path, "train"))
    with pytest.raises(ValueError, match="validation"):
        load(DIGITS, tmp_path, "validation")
    (tmp_path / "cifar-10-batches-py").mkdir()
    names = ("CIFAR10", "digits", "ImageNet100", "imagenette", "CIFAR100")
    found = missing(names, tmp_path)
    assert [each.name for each in found] == ["ImageNet100", "imagenette", "CIFAR100"]
    words = ("image-net.org", "github.com", "--dataset CIFAR100")
    assert all(word in str(each) for each, word in zip(found, words, strict=True))
    assert str(pickle.loads(pickle.dumps(found[0]))) == str(found[0])
    with pytest.raises(UserError, match="'CIFAR'"):
        missing(["CIFAR"], tmp_path)


# TinyImageNet


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with TinyImageNet's layout: 3 classes, 4 training images each, 5 in val."""
    folder = tmp_path / "tiny-imagenet-200"
    for label, wnid in enumerate(WNIDS):
        (folder / "train" / wnid).mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("0\t0\t62\t62\n")
        for number in range(4):
            file = folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG"
            save_image(file, seed=10 * label + number, mode="L" if number == 2 else "RGB")
    lines = []
    for number, label in enumerate((2, 0, 1, 2, 2)):
        save_image(folder / "val" / "images" / f"val_{number}.JPEG", seed=100 + number)
        lines.append(f"val_{number}.JPEG\t{WNIDS[label]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    monkeypatch.setitem(DATASETS, "TinyImageNet", small("tiny-imagenet-200", 3, 12, 5))
    return tmp_path


def tiny_file(root: Path, wnid: int, number: int) -> Path:
    name = f"{WNIDS[wnid]}_{number}.JPEG"
    return root / "tiny-imagenet-200" / "train" / WNIDS[wnid] / "images" / name


def test_tiny_imagenet_is_decoded_with_its_labels(tiny: Path):
    train, test = (load("TinyImageNet", tiny, split) for split in ("pretrain", "test"))
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert test.labels.tolist() == [2, 0, 1, 2, 2]
    for position in range(12):
        file = tiny_file(tiny, position // 4, position % 4)
        assert torch.equal(train.pixels[position], decoded(file))
    assert (train.pixels[2] == train.pixels[2, :1]).all()  # a gray file
    val = tiny / "tiny-imagenet-200" / "val" / "images"
    assert torch.equal(test.pixels[3], decoded(val / "val_3.JPEG"))
    known = fingerprint("TinyImageNet", tiny)
    save_image(tiny_file(tiny, 1, 1), seed=7)
    assert fingerprint("TinyImageNet", tiny) != known
    changed = load("TinyImageNet", tiny, "train").pixels != train.pixels
    assert changed.flatten(1).any(1).nonzero().flatten().tolist() == [5]


def test_damaged_images_are_counted_and_named_or_left_out(tiny: Path):
    for number in range(4):
        truncate(tiny_file(tiny, 0, number))
    tiny_file(tiny, 1, 0).write_bytes(b"")
    tiny_file(tiny, 1, 1).write_text("<html>not found</html>")
    save_image(tiny_file(tiny, 2, 3), seed=0, width=32)
    folder = tiny / "tiny-imagenet-200"
    for _ in range(2):  # decoded now, or cached_until_changed
        message = error_of(lambda: load("TinyImageNet", tiny, "train"))
        assert "7 images" in message
        assert str(tiny_file(tiny, 0, 3).relative_to(folder)) in message
        with pytest.warns(UserWarning, match="7 images"):
            train = load("TinyImageNet", tiny, "train", allow_missing=True)
        assert train.labels.tolist() == [1, 1, 2, 2, 2]
        assert torch.equal(train.pixels[1], decoded(tiny_file(tiny, 1, 3)))
        assert torch.equal(train.pixels[4], decoded(tiny_file(tiny, 2, 2)))
    assert len(load("TinyImageNet", tiny, "test")) == 5
    file = folder / "val" / "val_annotations.txt"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], "val_2.JPEG\tn00000009\t0", *lines[3:]]) + "\n")
    assert f"{file}, line 3" in error_of(lambda: load("TinyImageNet", tiny, "test"))


# ImageNet


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with ImageNet's layout: 3 classes, 4 training images each, 2 in val."""
    for label, wnid in enumerate(WNIDS):
        for number in range(4):
            file = tmp_path / "imagenet" / "train" / wnid / f"{wnid}_{number}.JPEG"
            width, height = 60 + 20 * number, 100 - 10 * label
            save_image(file, 10 * label + number, width, height)
        for number in range(2):
            file = tmp_path / "imagenet" / "val" / wnid / f"ILSVRC2012_val_{number}.JPEG"
            save_image(file, 100 + 10 * label + number, 90, 70)
    monkeypatch.setitem(DATASETS, "ImageNet", small("imagenet", 3, 12, 6))
    return tmp_path


def imagenet_file(root: Path, wnid: int, number: int) -> Path:
    name = f"{WNIDS[wnid]}_{number}.JPEG"
    return root / "imagenet" / "train" / WNIDS[wnid] / name


def test_imagenet_is_a_list_of_files_known_by_names_and_sizes(imagenet: Path):
    train, test = (load("ImageNet", imagenet, split) for split in ("pretrain", "test"))
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert train.files[6] == imagenet_file(imagenet, 1, 2)
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    part = train.subset(torch.tensor([11, 6]))
    assert part.files == (imagenet_file(imagenet, 2, 3), imagenet_file(imagenet, 1, 2))
    assert part.labels.tolist() == [2, 1]
    known = fingerprint("ImageNet", imagenet)
    file = imagenet / "imagenet" / "val" / WNIDS[2] / "ILSVRC2012_val_1.JPEG"
    os.utime(file, (0, 0))
    assert fingerprint("ImageNet", imagenet) == known
    file.rename(file.with_name("ILSVRC2012_val_7.JPEG"))
    renamed = fingerprint("ImageNet", imagenet)
    truncate(file.with_name("ILSVRC2012_val_7.JPEG"))
    assert len({known, renamed, fingerprint("ImageNet", imagenet)}) == 3


def approximate(folder: Path, **more: object) -> None:
    (folder / "APPROXIMATE.json").write_text(json.dumps({"what": "a part of it", **more}))


def test_missing_images_of_imagenet_are_counted_and_another_layout_is_refused(imagenet: Path):
    imagenet_file(imagenet, 1, 3).unlink()
    assert "1 of 12" in error_of(lambda: load("ImageNet", imagenet, "train"))
    with pytest.warns(UserWarning, match="1 of 12"):
        train = load("ImageNet", imagenet, "train", allow_missing=True)
    assert train.labels.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    approximate(imagenet / "imagenet")  # a reduced copy is taken once its marker says so
    assert load("ImageNet", imagenet, "pretrain").files == train.files
    fetch("ImageNet", imagenet)
    assert re.fullmatch("[0-9a-f]{64} approximate", fingerprint("ImageNet", imagenet))
    (imagenet / "imagenet" / "APPROXIMATE.json").write_text("{}")
    assert "'what'" in error_of(lambda: load("ImageNet", imagenet, "train"))
    place = imagenet / "imagenet" / "val"
    for wnid in WNIDS:
        (place / wnid).rename(place / f"class {wnid}")
    assert error_of(lambda: load("ImageNet", imagenet, "test")).startswith(f"{place}: ")


def test_checksums_of_an_approximate_copy_are_its_marker_s(cifar100: Path):
    folder = cifar100 / "cifar-100-python"
    exact = fingerprint("CIFAR100", cifar100)
    with (folder / "train").open("rb") as stream:
        content = pickle.load(stream)
    content["data"] = content["data"] // 2
    (folder / "train").write_bytes(pickle.dumps(content))
    assert "its MD5 is not" in error_of(lambda: load("CIFAR100", cifar100, "train"))
    approximate(folder, md5={name: md5(folder / name) for name in ("train", "test", "meta")})
    assert load("CIFAR100", cifar100, "train").pixels.max() < 128
    digest, _, end = fingerprint("CIFAR100", cifar100).partition(" ")
    assert end == "approximate"
    assert digest != exact
    truncate(folder / "test")
    assert "its MD5 is not" in error_of(lambda: load("CIFAR100", cifar100, "train"))


def test_what_fetch_has_decoded_is_known_to_be_damaged(
    imagenet: Path, monkeypatch: pytest.MonkeyPatch
):
    truncate(imagenet_file(imagenet, 0, 2))
    assert len(load("ImageNet", imagenet, "train")) == 12  # not decoded yet
    for action in (fetch, partial(load, split="train")):
        assert "n00000001_2.JPEG" in error_of(partial(action, "ImageNet", imagenet))
    with pytest.warns(UserWarning, match="1 images damaged"):
        train = load("ImageNet", imagenet, "train", allow_missing=True)
    assert imagenet_file(imagenet, 0, 2) not in train.files
    assert train.labels.tolist() == [0] * 3 + [1] * 4 + [2] * 4
    save_image(imagenet_file(imagenet, 0, 2), seed=2, width=100, height=100)
    fetch("ImageNet", imagenet)
    assert len(load("ImageNet", imagenet, "train")) == 12
    monkeypatch.setattr("vision.image_sets.fault_of", never)
    fetch("ImageNet", imagenet)  # nothing is decoded again


def test_imagenet100_has_the_hundred_classes_of_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    listed = Path(vision.data.__file__).with_name("imagenet100.txt").read_text().split()
    assert len(set(listed)) == 100
    assert listed == sorted(listed)
    assert (listed[0], listed[-1]) == ("n01558993", "n13040303")
    folder = tmp_path / "imagenet"
    for number, wnid in enumerate([*listed, "n99999999"]):
        save_image(folder / "train" / wnid / "0.JPEG", number, 8, 8)
        save_image(folder / "val" / wnid / "0.JPEG", number, 8, 8)
    monkeypatch.setitem(DATASETS, "ImageNet100", small("imagenet", 100, 100, 100))
    train = load("ImageNet100", tmp_path, "pretrain")
    assert [file.parent.name for file in train.files] == listed
    assert train.labels.tolist() == list(range(100))
    (folder / "val" / listed[5]).rename(folder / "val" / "elsewhere")
    assert listed[5] in error_of(lambda: load("ImageNet100", tmp_path, "test"))


# Streaming


def streamed(
    images: ImageFiles, *batches: list[int], workers: int = 0, epoch: int = 3, seed: int = 5
) -> list[tuple[torch.Tensor, ...]]:
    """Of each batch a view of one policy, and two of another."""
    policies = [POLICIES["simclr"], POLICIES["ressl_weak"], POLICIES["ressl_weak"]]
    positions = [np.array(batch) for batch in batches]
    return list(stream(images, positions, policies, 24, seed, epoch, workers))


def test_streamed_crops_are_those_of_torchvision(imagenet: Path):
    images = load("ImageNet", imagenet, "train")
    batch = np.array([7, 0, 11])
    for name in ("simclr", "mmcl_imagenet"):
        policy = POLICIES[name]
        (crops_of_views,) = stream(images, [batch], [policy] * 2, 24, 5, 3)
        for view, crops in enumerate(crops_of_views):
            assert (crops.shape, crops.dtype) == ((3, 3, 24, 24), torch.uint8)
            assert crops.is_contiguous()
            for sample, crop in zip(batch, crops, strict=True):
                with Image.open(images.files[sample]) as file:
                    image = file.convert("RGB")
                size = image.height, image.width
                box = parameters(policy, 5, 3, np.array([sample]), view, *size)
                sides = (int(side[0]) for side in (box.top, box.left, box.height, box.width))
                filter_ = "BICUBIC" if policy.bicubic else "BILINEAR"
                filter_ = functional.InterpolationMode[filter_]
                expected = functional.resized_crop(image, *sides, [24, 24], filter_)
                assert torch.equal(crop, functional.pil_to_tensor(expected))


def test_stream_depends_on_neither_workers_nor_batches_but_on_seed_epoch_and_view(imagenet: Path):
    images = load("ImageNet", imagenet, "train")
    batches = [[3, 1, 8, 4], [0, 2, 11], [5, 6, 7], [9, 10]]
    alone, by_workers = (streamed(images, *batches, workers=workers) for workers in (0, 2))
    for mine, theirs in zip(alone, by_workers, strict=True):
        assert all(map(torch.equal, mine, theirs))
    (views,) = streamed(images, [2, 8, 11, 3])
    for view, (first, second) in zip(views, zip(*alone[:2], strict=True), strict=True):
        assert torch.equal(view[1], first[2])
        assert torch.equal(view[2], second[2])
    assert not torch.equal(views[1], views[2])
    for changed in ({"epoch": 4}, {"seed": 6}):
        ((other, *_),) = streamed(images, [2, 8, 11, 3], **changed)
        assert not torch.equal(views[0], other)


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_stops_at_a_damaged_image_and_names_it(imagenet: Path, workers: int):
    images = load("ImageNet", imagenet, "train")
    file = imagenet_file(imagenet, 1, 1)
    truncate(file)
    message = error_of(lambda: streamed(images, [0, 1], [4, 5], [8, 9], workers=workers))
    assert message.startswith(f"{file}: cannot be decoded (")
    file.unlink()
    message = error_of(lambda: list(central_crops(images, 24, batch_size=5, workers=workers)))
    assert message.startswith(f"{file}: cannot be decoded (")


def test_central_crops_are_those_of_torchvision(imagenet: Path):
    images = load("ImageNet", imagenet, "train")
    crops = list(central_crops(images, 28, batch_size=5, workers=2))
    assert [len(crop) for crop in crops] == [5, 5, 2]
    for crop, file in zip(torch.cat(crops), images.files, strict=True):
        with Image.open(file) as image:
            resized = functional.resize(image.convert("RGB"), [32])
            expected = functional.center_crop(resized, [28, 28])
        assert torch.equal(crop, functional.pil_to_tensor(expected))
    (whole,) = central_crops(images.subset(torch.tensor([1])), 20, 1.0)
    with Image.open(images.files[1]) as image:
        expected = functional.resize(image, [20])
    assert expected.size == (20, 25)
    assert torch.equal(whole[0], functional.pil_to_tensor(expected)[:, 2:22])


def test_a_download_that_fails_leaves_no_folder_that_passes_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(data_root: Path) -> None:
        (data_root / "dtd/dtd").mkdir(parents=True)
        raise OSError("no network")

    source = dataclasses.replace(vision.data.SOURCES["DTD"], get=get)
    monkeypatch.setitem(vision.data.SOURCES, "DTD", source)
    for _ in range(2):  # the second time nothing is there either
        with pytest.raises(UserError, match="no network"):
            fetch("DTD", tmp_path)
        assert list(tmp_path.iterdir()) == []
