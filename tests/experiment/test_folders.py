"""Folders of one's own data: what is read, what is left out, and that it is said."""

import os
import shutil
import warnings
from functools import partial
from pathlib import Path

import pytest

from shared.errors import UserError
from shared.experiment.compat import make_torchvision_importable
from shared.experiment.data import MissingData
from shared.experiment.folders import (
    Folder,
    LeftOut,
    class_files,
    printable,
    read_folder,
    undamaged,
)

ENDINGS = (".png", ".jpg")
USUAL = ("train/cat/0.png", "train/dog/0.png", "val/cat/0.png", "val/dog/0.png")


def made(tmp_path: Path, *names: str) -> Path:
    """A folder with such files."""
    root = tmp_path / "pets"
    root.mkdir()
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"content")
    return root


def read(root: Path) -> Folder:
    return read_folder(root, "folder:pets", "images", ENDINGS)


def listed(root: Path) -> list[tuple[str, int]]:
    return [(str(file.relative_to(root)), label) for file, label in read(root).train]


def test_classes_have_numbers_in_the_order_of_their_names(tmp_path: Path) -> None:
    root = made(tmp_path, *USUAL, "train/cat/b/2.JPG", "train/cat/a/1.png")
    assert listed(root) == [
        ("train/cat/0.png", 0),
        ("train/cat/a/1.png", 0),
        ("train/cat/b/2.JPG", 0),
        ("train/dog/0.png", 1),
    ]
    content = read(root)
    assert content.classes == ("cat", "dog")
    assert [label for _, label in content.test or ()] == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        content.warn()  # there is nothing to say


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("cat/0.png", "dog/0.png"), ""),
        (("training/cat/0.png", "training/dog/0.png", "testing/cat/0.png"), "test on: dog"),
        (("Train/cat/0.png", "Train/dog/0.png", "Valid/cat/0.png"), "test on: dog"),
        (("train/train/cat/0.png", "train/train/dog/0.png", "val/val/cat/0.png"), "train/train/"),
        (("pets/train/cat/0.png", "pets/train/dog/0.png"), "read from pets/train/"),
        (("pets/cat/0.png", "pets/dog/0.png", "__MACOSX/._pets"), "read from pets/"),
        (("archive/train/cat/0.png", "archive/train/dog/0.png"), "read from archive/train/"),
        (("train/images/cat/0.png", "train/images/dog/0.png"), "read from train/images/"),
    ],
)
def test_other_layouts_have_the_same_classes(
    tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    root = made(tmp_path, *names)
    content = read(root)
    assert content.classes == ("cat", "dog")
    assert [label for _, label in content.train] == [0, 1]
    assert said in content.summary()
    assert bool(content.odd) == bool(said)


def test_files_left_out_are_counted_in_one_line(tmp_path: Path) -> None:
    root = made(
        tmp_path,
        *USUAL,
        "train/.ipynb_checkpoints/0.png",
        "train/cat/.ipynb_checkpoints/0-checkpoint.png",
        "train/dog/._0.png",
        "train/bird/Thumbs.db",
        "train/cat/1.heic",
        "train/cat/2.HEIC",
        "train/cat/notes",
        "train/stray.png",
        "test/cat/0.png",
    )
    assert [label for _, label in read(root).train] == [1, 2]  # bird keeps its number
    with pytest.warns(LeftOut) as caught:
        read(root).warn()
    (line,) = (str(each.message) for each in caught)
    for part in (
        "2 images of 3 classes to train on, 2 to test on",
        *("4 hidden", "1 without", "2 .heic", "1 image beside", "test beside train/", "train/bird"),
    ):
        assert part in line


def test_links_to_folders_are_left_out_inside_a_class_and_may_be_one(tmp_path: Path) -> None:
    root = made(tmp_path, *USUAL)
    cat = root / "train" / "cat"
    for name, target in (("above", root), ("dogs", root / "train/dog"), ("itself", "itself")):
        (cat / name).symlink_to(target)
    assert listed(root) == [("train/cat/0.png", 0), ("train/dog/0.png", 1)]
    assert "2 links to folders" in read(root).summary()
    (root / "train" / "elsewhere").symlink_to(made(tmp_path / "pets", "x/7.png").parent / "pets/x")
    assert listed(root)[-1] == ("train/elsewhere/7.png", 2)


def test_the_order_is_torchvision_s_whatever_the_names(tmp_path: Path) -> None:
    make_torchvision_importable()
    from torchvision.datasets.folder import make_dataset

    names = ("cat/b.png", "cat/a/x.png", "cat/a b/y.png", "cat/a/c/z.png", "dog/é.png", "dog/Z.jpg")
    root = made(tmp_path, *names)
    expected = make_dataset(str(root), {"cat": 7, "dog": 3}, ENDINGS)
    (root / "cat" / ".hidden.png").write_bytes(b"content")
    (root / "cat" / "again").symlink_to(root / "cat")
    found = class_files(root, {"cat": 7, "dog": 3}, ENDINGS)
    assert [(str(file), label) for file, label in found] == expected
    assert [file for file, _ in read(root).train] == [file for file, _ in found]


def test_files_without_classes_are_there_to_pretrain_on(tmp_path: Path) -> None:
    root = made(tmp_path, "1.png", "0.png", ".DS_Store", "2.heic", "thumbs/.x")
    content = read(root)
    assert listed(root) == [("0.png", -1), ("1.png", -1)]
    assert (content.classes, content.test) == ((), None)
    assert "2 images without classes; left out: 2 hidden, 1 .heic" in content.summary()


def test_files_to_test_on_without_classes_are_left_out(tmp_path: Path) -> None:
    root = made(tmp_path, "train/cat/0.png", "train/dog/0.png", "test/0.png")
    assert read(root).test is None
    assert "left out: 1 image in test/" in read(root).summary()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((*USUAL, "valid/cat/0.png"), "val/ and valid/"),
        ((*USUAL, "val/violet/0.png"), "violet"),
        (("val/cat/0.png",), "no train/"),
        (("train/0.png", "val/cat/0.png"), "val: has folders of classes"),
        (("train/cat/0.heic",), "1 .heic"),
        (("train/.cat/0.png",), "no images"),
    ],
)
def test_a_layout_that_has_no_meaning_is_refused(
    tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        read(made(tmp_path, *names))


def test_a_folder_that_is_not_there_is_missing_data(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="data missing"):
        read(tmp_path / "none")


def test_names_need_not_be_utf_8(tmp_path: Path) -> None:
    root = made(tmp_path, "cat/0.png", "dog/0.png")
    os.rename(os.fsencode(root / "cat"), os.fsencode(root) + b"/caf\xe9")
    content = read(root)
    assert [label for _, label in content.train] == [0, 1]
    assert printable(content.classes[0]) == "caf\\xe9"
    (root / "dog" / "0.png").unlink()
    assert read(root).summary().endswith("without images: dog")


def test_one_error_names_every_damaged_file(tmp_path: Path) -> None:
    root = made(tmp_path, *(f"cat/{number}.png" for number in range(9)))
    files = [file for file, _ in read(root).train]

    def fault_of(file: Path) -> str | None:
        return "truncated" if file.stem in "258" else None

    named = r"3 of 9 images .*cat/2\.png .*cat/5\.png .*cat/8\.png"
    with pytest.raises(UserError, match=rf"{named}.* --allow-missing"):
        undamaged(files, fault_of, folder=root, what="images")
    with pytest.warns(UserWarning, match=named):
        good = undamaged(files, fault_of, folder=root, what="images", skip_damaged=True)
    assert good == [0, 1, 3, 4, 6, 7]
    assert undamaged(files[:2], fault_of, folder=root, what="images") == [0, 1]


@pytest.mark.parametrize("how", ["linked", "hard link", "copy", "large copy", "whole part"])
def test_test_files_that_are_training_files_are_refused(tmp_path: Path, how: str) -> None:
    size = 40_000 if how == "large copy" else 100
    for part, number in (("train", 1), ("train", 2), ("val", 3)):
        place = tmp_path / part / "cat"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes(bytes([number]) * size)
    read = partial(read_folder, tmp_path, "folder:x", "images", [".png"])
    assert read().test == ((tmp_path / "val/cat/3.png", 0),)
    source, other = tmp_path / "train/cat/2.png", tmp_path / "val/cat/9.png"
    match how:
        case "linked":
            other.symlink_to(source)
        case "hard link":
            other.hardlink_to(source)
        case "copy":
            other.write_bytes(source.read_bytes())
        case "large copy":  # of a larger file by its name
            other.with_name("2.png").write_bytes(source.read_bytes())
        case "whole part":
            shutil.rmtree(tmp_path / "val")
            shutil.copytree(tmp_path / "train", tmp_path / "val")
    count = 2 if how == "whole part" else 1
    with pytest.raises(UserError, match=rf"{count} images? to test on .* val/cat/.* train/cat/"):
        read()


def test_a_link_to_a_pipe_is_no_file(tmp_path: Path) -> None:
    root = made(tmp_path, *USUAL)
    os.mkfifo(tmp_path / "pipe")
    (root / "train" / "cat" / "1.png").symlink_to(tmp_path / "pipe")
    assert not any("1.png" in name for name, _ in listed(root) if name.startswith("train/cat"))


def test_names_with_line_breaks_and_escapes_are_printed_in_one_line(tmp_path: Path) -> None:
    odd = "dog\n# Heading\x1b[2J\u202e"
    root = made(tmp_path, "cat/0.png", f"{odd}/0.png", "cat/x.\x1b[5mtxt")
    (root / f"{odd}empty").mkdir()
    content = read(root)
    files = [file for file, _ in content.train]
    with pytest.raises(UserError) as caught:
        undamaged(files, lambda file: "broken", folder=root, what="images")
    for text in (content.summary(), str(caught.value)):
        assert text.isprintable()
        assert "Heading" in text
