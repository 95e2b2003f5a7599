"""The sets of the transfer suite, in small copies laid out as torchvision lays them out."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from shared.errors import UserError
from shared.experiment.data import MARKER
from vision.data import fetch, fingerprint, load
from vision.datasets import describe, missing
from vision.domain import DOMAIN
from vision.transfer_data import SOURCES, VOC_CLASSES

from torchvision import datasets as sources  # isort: skip  (vision makes it importable)


def image(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(file)


def text(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def lay_out(folder: Path, images: Iterable[str], **lists: Sequence[str]) -> None:
    """Images of a folder, and lists by their names, in which "__" stands for "/"."""
    for name in images:
        image(folder / name)
    for name, lines in lists.items():
        text(folder / f"{name.replace('__', '/')}.txt", *lines)


def aircraft(root: Path) -> None:
    lay_out(
        root / "fgvc-aircraft-2013b" / "data",
        (f"images/{number}.jpg" for number in (1, 2, 3, 4)),
        variants=["707-320", "A300 B4"],
        images_variant_train=["1 707-320"],
        images_variant_val=["2 A300 B4"],
        images_variant_test=["3 A300 B4", "4 707-320"],
    )


def caltech101(root: Path) -> None:
    for name in ("BACKGROUND_Google", "ant", "yin_yang"):
        for number in range(32):
            image(root / "caltech101" / "101_ObjectCategories" / name / f"image_{number:04}.jpg")


def cars(root: Path) -> None:
    folder = root / "stanford_cars"
    kind = np.dtype([("class", "O"), ("fname", "O")])
    (folder / "devkit").mkdir(parents=True)
    for file, place, classes in (
        ("devkit/cars_train_annos.mat", "cars_train", [2, 1]),
        ("cars_test_annos_withlabels.mat", "cars_test", [1, 1, 2]),
    ):
        said = [(label, f"{number:05}.jpg") for number, label in enumerate(classes)]
        savemat(folder / file, {"annotations": np.array(said, dtype=kind)})
        lay_out(folder / place, (name for _, name in said))
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["a", "b"], dtype="O")})


def dtd(root: Path) -> None:
    names = {"train": ["b/1.jpg", "a/4.jpg"], "val": ["a/2.jpg", "b/5.jpg"]}
    names["test"] = ["b/3.jpg", "a/6.jpg"]
    images = (f"images/{name}" for some in names.values() for name in some)
    lists = {f"labels__{part}1": some for part, some in names.items()}
    lay_out(root / "dtd" / "dtd", images, **lists)


def flowers(root: Path) -> None:
    folder = root / "flowers-102"
    lay_out(folder, (f"jpg/image_{number:05}.jpg" for number in range(1, 5)))
    savemat(folder / "imagelabels.mat", {"labels": [1, 2, 1, 2]})
    savemat(folder / "setid.mat", {"trnid": [2, 3], "valid": [1, 1], "tstid": [4, 4]})


def food(root: Path) -> None:
    folder = root / "food-101"
    lay_out(folder / "images", ("x/1.jpg", "y/2.jpg", "y/3.jpg"))
    text(folder / "meta" / "train.json", json.dumps({"x": ["x/1"], "y": ["y/2"]}))
    text(folder / "meta" / "test.json", json.dumps({"x": [], "y": ["y/3"]}))


def pets(root: Path) -> None:
    lay_out(
        root / "oxford-iiit-pet",
        ("images/Abyssinian_1.jpg", "images/pug_2.jpg", "images/pug_3.jpg"),
        annotations__trainval=["Abyssinian_1 1 1 1", "pug_2 2 2 1"],
        annotations__test=["pug_3 2 2 1"],
    )


def sun397(root: Path) -> None:
    names = ["/b/bar/indoor/sun_1.jpg", "/a/abbey/sun_2.jpg", "/a/abbey/sun_3.jpg"]
    lay_out(
        root / "SUN397",
        (name.strip("/") for name in names),
        ClassName=["/a/abbey", "/b/bar/indoor"],
        Training_01=names[:2],
        Testing_01=names[2:],
    )


def voc2007(root: Path) -> None:
    said = {"train": {"01": ("1", "-1")}, "val": {"02": ("0", "1")}, "test": {"03": ("-1", "-1")}}
    for part, images in said.items():
        lists = {
            f"ImageSets__Main__{name}_{part}": [
                f"{key} {two[place] if place < 2 else '-1'}" for key, two in images.items()
            ]
            for place, name in enumerate(VOC_CLASSES)
        }
        lists[f"ImageSets__Main__{part}"] = list(images)
        files = (f"JPEGImages/{key}.jpg" for key in images)
        lay_out(root / "VOCdevkit" / "VOC2007", files, **lists)


# By set: what makes a small copy, and names and classes of its parts, training images first.
Listed = list[tuple[str, object]]
SMALL: dict[str, tuple[Callable[[Path], None], Listed, Listed]] = {
    "Aircraft": (aircraft, [("1", 0), ("2", 1)], [("3", 1), ("4", 0)]),
    "Cars": (cars, [("00000", 1), ("00001", 0)], [("00000", 0), ("00001", 0), ("00002", 1)]),
    "DTD": (dtd, [("1", 1), ("4", 0), ("2", 0), ("5", 1)], [("3", 1), ("6", 0)]),
    "Flowers": (
        flowers,
        [(f"image_0000{number}", label) for number, label in ((2, 1), (3, 0), (1, 0), (1, 0))],
        [("image_00004", 1), ("image_00004", 1)],
    ),
    "Food": (food, [("1", 0), ("2", 1)], [("3", 1)]),
    "Pets": (pets, [("Abyssinian_1", 0), ("pug_2", 1)], [("pug_3", 1)]),
    "SUN397": (sun397, [("sun_1", 1), ("sun_2", 0)], [("sun_3", 0)]),
    "VOC2007": (
        voc2007,
        [("01", [1, 0, *[0] * 18]), ("02", [-1, 1, *[0] * 18])],
        [("03", [0] * 20)],
    ),
    "EuroSAT": (
        lambda root: lay_out(root / "eurosat/2750", ("Forest/2.jpg", "AnnualCrop/1.jpg")),
        [("1", 0), ("2", 1)],
        [],
    ),
    "CropDiseases": (
        lambda root: lay_out(root / "CropDiseases/dataset/train", ("Tomato/2.jpg", "Apple/1.jpg")),
        [("1", 0), ("2", 1)],
        [],
    ),
}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of Flowers torchvision knows the checksums of the lists, which a small copy cannot have.
    monkeypatch.setattr(sources.Flowers102, "_check_integrity", lambda self: True)


def listed(images: object) -> list[tuple[str, object]]:
    return [
        (file.stem, label) for file, label in zip(images.files, images.labels.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", SMALL)
def test_files_and_classes_are_those_of_the_lists(name: str, tmp_path: Path) -> None:
    make, train, test = SMALL[name]
    make(tmp_path)
    text(tmp_path / describe(name).folder / MARKER, json.dumps({"what": "a small copy"}))
    assert describe(name).streams
    images = load(name, tmp_path, "train")
    assert listed(images) == train
    assert all(file.is_file() for file in images.files)
    if test:
        assert listed(load(name, tmp_path, "test")) == test
    else:
        assert describe(name).test == 0
        with pytest.raises(UserError, match=name):
            load(name, tmp_path, "test")
    assert fingerprint(name, tmp_path).endswith(" approximate")


def test_caltech_has_thirty_images_of_each_class_to_train_on(tmp_path: Path) -> None:
    caltech101(tmp_path)
    text(tmp_path / "caltech101" / MARKER, json.dumps({"what": "a small copy"}))
    train, test = (load("Caltech101", tmp_path, part) for part in ("train", "test"))
    assert train.labels.bincount().tolist() == [30, 30]
    assert test.labels.bincount().tolist() == [2, 2]
    assert not set(train.files) & set(test.files)


def test_every_set_of_the_suite_is_declared_and_made_small_here() -> None:
    assert {"Caltech101", *SMALL} == set(SOURCES)
    assert all(bool(each.get) is not bool(each.how) for each in SOURCES.values())


def test_missing_data_and_other_layouts_are_named(tmp_path: Path) -> None:
    (pets_, cars_) = missing(["Pets", "Cars"], tmp_path)
    assert "--dataset Pets" in str(pets_)
    assert "stanford_cars/cars_train/*.jpg" in str(cars_)
    with pytest.raises(UserError, match="Cars"):
        fetch("Cars", tmp_path)
    (tmp_path / "dtd").mkdir()
    with pytest.raises(UserError, match="DTD"):
        load("DTD", tmp_path, "train")
    dtd(tmp_path)
    with pytest.raises(UserError, match="3756 of 3760"):
        load("DTD", tmp_path, "train")


def test_a_plan_names_the_missing_sets() -> None:
    (table,) = (each for each in DOMAIN.tables["mmcl"] if each.name == "table-1")
    (cell,) = table.cells("paper", row="InsDis", column="cars")
    experiment = DOMAIN.experiment(cell.config)
    found = [each.name for each in experiment.missing(cell.config, Path("nowhere"))]
    assert found == ["insdis-resnet50", "Cars"]
