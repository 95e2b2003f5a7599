"""Folders of images of one's own and Hugging Face datasets, from pretraining to their scores."""

import dataclasses
from pathlib import Path
from typing import Any

import datasets as hf
import numpy as np
import pytest
import torch
from PIL import Image as Picture

from shared.errors import UserError
from shared.experiment.data import MissingData
from shared.experiment.run import Run
from tests.stages.pages import run_page
from vision import data, datasets
from vision.config import Config
from vision.data import central_crops, choose, fingerprint, load
from vision.datasets import describe
from vision.evaluation import evaluate
from vision.hub import hub_images
from vision.own import folder
from vision.train import pretrain

CLASSES = ("blue", "green", "red")
COLOURS = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


def picture(number: int, label: int) -> Picture.Image:
    """Mostly of one of three colours; sides differ."""
    noise = np.random.default_rng([number, label]).integers(0, 60, (20 + number % 3, 24, 3))
    noise[:, :, 2 - label] += 180
    return Picture.fromarray(noise.astype(np.uint8))


def save_pets(pets: Path) -> Path:
    for split, count in (("train", 8), ("val", 4)):
        for label, name in enumerate(CLASSES):
            place = pets / split / name
            place.mkdir(parents=True)
            for number in range(count):
                picture(number + 10 * count, label).save(place / f"{number}.png")
    return pets


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return save_pets(tmp_path / "pets")


def hub(columns: dict[str, list[Any]], **features: Any) -> Any:
    """A dataset of Hugging Face's library; images and numbers unless it is said."""
    known = {"pixels": hf.Image(), "kind": hf.Value("int64"), **features}
    chosen = hf.Features({name: known[name] for name in columns})
    return hf.Dataset.from_dict(columns, features=chosen)


def test_a_folder_has_its_classes_in_the_order_of_their_names(pets: Path) -> None:
    train, test = folder(pets), folder(pets, "test")
    assert (len(train), len(test)) == (24, 12)
    assert train.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert [file.parent.name for file in test.files] == [n for n in CLASSES for _ in range(4)]
    name = f"folder:{pets}"
    assert load(name, Path("nowhere"), "pretrain").files == train.files
    assert load(name, Path("nowhere"), "test").files == test.files
    found = describe(name)
    assert (found.classes, found.train, found.test, found.streams) == (3, 24, 12, True)
    assert found.mean == describe("ImageNet").mean
    assert choose(train, 6).labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.read_own(pets, pets) == ({"dataset": name}, {name: fingerprint(name, pets)})
    with pytest.raises(UserError, match="fewer than two classes"):
        data.read_own(pets / "train" / "red", pets)
    with pytest.raises(MissingData, match="none"):
        folder(pets / "none")
    (found,) = datasets.missing([f"folder:{pets}/none"], pets)
    assert found.name == f"folder:{pets}/none"
    with pytest.raises(UserError, match="folder:PATH"):
        describe("pets")
    with pytest.raises(UserError, match="nothing to fetch"):
        data.fetch(f"folder:{pets}", pets)


def test_damaged_images_are_named_all_or_left_out(pets: Path) -> None:
    for name in ("train/red/0.png", "train/blue/3.png", "val/red/1.png"):
        (pets / name).write_bytes(b"")
    (pets / "train" / "red" / "8.png").symlink_to("gone.png")
    images = folder(pets)
    assert len(images) == 25
    assert len(fingerprint(f"folder:{pets}", Path("nowhere"))) == 64
    named = "4 of 37 .*train/blue/3.png .*train/red/0.png .*train/red/8.png .*val/red/1.png"
    with pytest.raises(UserError, match=named):
        list(central_crops(images, 16))
    with pytest.warns(UserWarning, match=r"3 of 25 .*train/blue/3\.png"):
        intact = load(f"folder:{pets}", Path("nowhere"), "train", allow_missing=True)
    assert intact.labels.bincount().tolist() == [7, 8, 7]
    assert sum(len(batch) for batch in central_crops(intact, 16)) == 22


def test_columns_of_a_dataset_are_found_and_read_when_needed() -> None:
    pixels: list[Any] = [picture(i, i % 3) for i in range(12)]
    pixels[7] = {"bytes": b""}
    dataset = hub({"pixels": pixels, "kind": [0, 1, 2] * 4}, kind=hf.ClassLabel(num_classes=3))
    images = hub_images(dataset)
    assert images.labels.tolist() == [0, 1, 2] * 4
    part = images.subset(torch.tensor([5, 2]))
    assert part.labels.tolist() == [2, 2]
    assert part.files[0].tobytes() == picture(5, 2).tobytes()
    unlabelled = hub_images(dataset.select_columns(["pixels"]))
    assert unlabelled.labels.tolist() == [-1] * 12
    for given, word in (
        ((hub({"pixels": [], "kind": []}, kind=hf.Image()),), "pixels, kind"),
        ((dataset, "pixel"), "pixels"),
        ((dataset.select_columns(["kind"]),), "kind"),
        (({"train": dataset},), "dict"),
        ((dataset.to_iterable_dataset(),), "IterableDataset"),
    ):
        with pytest.raises(UserError, match=word):
            hub_images(*given)


@pytest.mark.parametrize(
    ("column", "value"),
    [("pixels", None), ("pixels", {"bytes": b""}), ("kind", None), ("kind", -2)],
)
def test_a_row_that_cannot_be_used_is_named(column: str, value: Any) -> None:
    columns: dict[str, list[Any]] = {"pixels": [picture(0, 0)] * 3, "kind": [0, 1, 2]}
    columns[column][1] = value
    with pytest.raises(UserError, match=f"'{column}', row 1"):
        list(central_crops(hub_images(hub(columns), label="kind"), 16))


def scored(config: Config, images: Any, tmp_path: Path) -> dict[str, object]:
    with Run(tmp_path / "run", config, tier="own") as run:
        networks, _ = pretrain(config, images, run, **COLOURS)
        return evaluate(config, networks.encoder, run, images=(images, images))


def test_a_dataset_gives_what_the_same_images_in_a_folder_give(pets: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(
        Config().reduced(),
        backbone="resnet8",
        batch_size=8,
        epochs=1,
        image_size=16,
        statistics="ImageNet",
        protocol="linear-l2-v1",
    )
    files = folder(pets)
    dataset = hub(
        {"pixels": [Picture.open(file) for file in files.files], "kind": files.labels.tolist()}
    )
    found = scored(config, files, tmp_path / "files")
    assert found == scored(config, hub_images(dataset, label="kind"), tmp_path / "hub")
    assert found["l2_top1"] == 100.0
    unlabelled = hub_images(dataset)
    with pytest.raises(ValueError, match="no label"):
        scored(config, unlabelled, tmp_path / "none")


def test_columns_named_as_labels_are_labels() -> None:
    pixels = [Picture.new("RGB", (4, 4), (k, k, k)) for k in range(4)]

    def made(values: list[Any], kind: Any) -> Any:
        return hub({"pixels": pixels, "label": values}, label=kind)

    numbers = made([3, 0, -1, 2], hf.Value("int64"))
    part = hub_images(numbers).subset(torch.tensor([2, 1]))
    assert [np.asarray(part.files[place])[0, 0, 0] for place in (0, 1)] == [2, 1]
    assert hub_images(numbers).labels.tolist() == [3, 0, -1, 2]
    texts = made(["dog", "cat", None, "dog"], hf.Value("string"))
    with pytest.warns(UserWarning, match="cat, dog"):
        assert hub_images(texts).labels.tolist() == [1, 0, -1, 1]
    several = made([[0], [1, 0], [], [1]], hf.Sequence(hf.ClassLabel(num_classes=2)))
    with pytest.warns(UserWarning, match="label"):
        assert hub_images(several).labels.tolist() == [-1] * 4


def test_a_loop_of_one_s_own_trains_and_is_scored() -> None:
    names = run_page("vision.md")
    assert names["features"].shape == (64, 128)
    assert 0 <= names["top1"] <= 100
    assert all(item.grad.isfinite().all() for item in names["modules"].parameters())
