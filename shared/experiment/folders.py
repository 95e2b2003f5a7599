"""A folder of one's own data, with a folder for each class, as torchvision's ImageFolder has it.

    pets/train/<class>/     to train on; classes are numbered in the order of their names
    pets/val/<class>/       to test on, or pets/test/; not needed for pretraining
    pets/<class>/           without these folders, all is to train on

What lies in a class's folder is the domain's matter.
"""

from dataclasses import dataclass
from pathlib import Path

from shared.errors import UserError
from shared.experiment.data import MissingData


@dataclass(frozen=True)
class ClassFolders:
    """Where the classes of a folder lie.

    Args:
        train: the folder of those to train on.
        test: likewise to test on; None: there is none.
        classes: their names, in order.
    """

    train: Path
    test: Path | None
    classes: tuple[str, ...]


def layout_of(what: str) -> str:
    """Where "images", or whatever it is, should lie; ends the errors about such folders."""
    return f"{what} lie in train/<class>/ and, to test on, in val/<class>/ or test/<class>/"


def class_folders(path: Path, name: str, what: str) -> ClassFolders:
    """The folders of classes below a folder; hidden ones are none.

    Args:
        path: the folder.
        name: what its data are called.
        what: what should lie there, "images" for one.

    Raises:
        MissingData: there is no such folder.
        UserError: no classes, something to test on and nothing to train on, or a class to test on
            alone.
    """
    layout = layout_of(what)
    if not path.is_dir():
        raise MissingData(name, path, "", f"make that folder: {layout}")
    train = path / "train" if (path / "train").is_dir() else path
    test = next((path / part for part in ("val", "test") if (path / part).is_dir()), None)
    if test and train == path:
        raise UserError(f"{path}: has {test.name}/ and no train/; {layout}")
    classes = _names(train)
    if not classes:
        raise UserError(
            f"{train}: no folders of classes; {layout} (one class will do for pretraining)"
        )
    for each in _names(test) if test else ():
        if each not in classes:
            raise UserError(f"{test}: {each} is no class of {train}; {layout}")
    return ClassFolders(train, test, classes)


def _names(place: Path) -> tuple[str, ...]:
    found = (each.name for each in place.iterdir() if each.is_dir() and each.name[0] != ".")
    return tuple(sorted(found))
