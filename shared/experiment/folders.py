"""User data in folders, one for each class, as for torchvision's ImageFolder.

    pets/train/<class>/     to train on; classes are numbered in the order of their names
    pets/val/<class>/       to test on, or pets/test/; not needed for pretraining
    pets/<class>/           without these folders, everything is to train on
    pets/                   files without folders of classes: pretraining without labels

The parts may also be called ``training``, ``valid``, ``validation`` and ``testing``, in upper or
lower case. The files of a class may be at any depth below its folder; links are followed, and no
folder is read twice.

The module serves images and videos: the domain supplies the endings of its files and a check for
damaged ones.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

from shared.errors import UserError
from shared.experiment.data import MissingData

# To train and to test on; of the latter the first that exists is used.
PARTS = (("train", "training"), ("val", "valid", "validation"), ("test", "testing"))
# Files of operating systems and programs, beside names that begin with a dot.
LEFTOVERS = {
    "__macosx",
    "@eadir",
    "$recycle.bin",
    "lost+found",
    "__pycache__",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
}
MOST_NAMED = 100  # damaged files listed in one error
FEWER_NAMED = 5  # folders or classes listed in a summary


class LeftOut(UserWarning):
    """Part of a folder is not used; the text is :meth:`Folder.summary`."""


@dataclass(frozen=True)
class Folder:
    """The usable content of a folder.

    Attributes:
        path: the folder.
        what: the kind of files, such as "images".
        classes: their names, in the order of their numbers; empty without labels.
        train: files to train on and the numbers of their classes, -1 without classes.
        test: likewise to test on; None without such a part.
        left_out: unused content with its number, for messages.
        odd: other unexpected content, likewise.
    """

    path: Path
    what: str
    classes: tuple[str, ...]
    train: tuple[tuple[Path, int], ...]
    test: tuple[tuple[Path, int], ...] | None
    left_out: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()

    def summary(self) -> str:
        """One line: counts, unused and unexpected content."""
        of = f" of {len(self.classes):,} classes" if self.classes else " without classes"
        tested = "" if self.test is None else f" to train on, {len(self.test):,} to test on"
        line = f"{printable(self.path)}: {len(self.train):,} {self.what}{of}{tested}"
        if self.left_out:
            line += f"; left out: {', '.join(self.left_out)}"
        return "; ".join([line, *self.odd])

    def warn(self) -> None:
        """Warn with the summary if something is unused or unexpected."""
        if self.left_out or self.odd:
            warnings.warn(self.summary(), LeftOut, stacklevel=3)


def layout_of(what: str) -> str:
    """The expected layout of a folder of ``what``, for the end of an error."""
    return f"{what} belong in train/<class>/ and, to test on, in val/<class>/ or test/<class>/"


def read_folder(path: Path, name: str, what: str, endings: Sequence[str]) -> Folder:
    """The files of a folder and their classes, in the order of their paths.

    Left out and counted are hidden files and files of systems (``.ipynb_checkpoints``, ``._x.png``,
    ``Thumbs.db``) at every level, files with other endings, files beside the folders of classes,
    and folders beside ``train``. Files are not opened here, see :func:`undamaged`.

    Args:
        path: the folder; its names need not be UTF-8.
        name: of the dataset.
        what: the kind of files, such as "images".
        endings: of the files to read, in lower case, with their dots.

    Raises:
        MissingData: there is no such folder.
        UserError: nothing to train on, two folders for the same part, a class only in the test
            part, a single class that holds only folders, or a folder that cannot be read.
    """
    if not path.is_dir():
        raise MissingData(name, path, "", f"make that folder: {layout_of(what)}")
    try:
        return _read(path, what, endings)
    except OSError as error:
        where = printable(error.filename or path)
        raise UserError(
            f"{where}: cannot be read ({error.strerror}); change its permissions, or remove it"
        ) from error


def class_files(
    place: Path, classes: Mapping[str, int], endings: Sequence[str]
) -> list[tuple[Path, int]]:
    """The files of a data set's folders of classes, hidden ones left out, and their numbers.

    Args:
        place: holds a folder for each class.
        classes: their numbers by name; the files come in the order of the names.
        endings: as of :func:`read_folder`.

    Raises:
        FileNotFoundError: a class without a folder.
    """
    lister = _Lister(endings)
    return [
        (file, classes[name]) for name in sorted(classes) for file in lister.below(place / name)
    ]


def undamaged(
    files: Sequence[Path],
    fault_of: Callable[[Path], str | None],
    *,
    place: Path,
    what: str,
    skip_damaged: bool = False,
) -> list[int]:
    """Positions of the undamaged files; every file is checked.

    Args:
        files: of a folder.
        fault_of: returns what is wrong with a file, or None; called from several threads.
        place: the folder, for messages.
        what: the kind of files, such as "images".
        skip_damaged: leave damaged ones out, with a warning that lists them.

    Raises:
        UserError: some are damaged, and ``skip_damaged`` is off; it lists them.
    """
    with ThreadPool() as pool:
        faults = list(pool.imap(fault_of, files, chunksize=16))
    good = [number for number, fault in enumerate(faults) if fault is None]
    if len(good) == len(files):
        return good
    bad = [
        f"{printable(_below(place, file))} ({fault})"
        for file, fault in zip(files, faults, strict=True)
        if fault is not None
    ]
    more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
    text = f"{len(bad)} of {len(files)} {what} are damaged: {', '.join(bad[:MOST_NAMED])}{more}"
    if not skip_damaged:
        remedy = "restore or delete them, or leave them out: --skip-damaged"
        raise UserError(f"{printable(place)}: {text}; {remedy}")
    warnings.warn(f"{printable(place)}: left out, {text}", stacklevel=3)
    return good


def printable(path: str | Path) -> str:
    """A path as text that can be printed anywhere: bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _below(place: Path, file: Path) -> Path:
    return file.relative_to(place) if file.is_relative_to(place) else file


class _Lister:
    """Lists folders, and counts what it leaves out."""

    def __init__(self, endings: Sequence[str]) -> None:
        self.endings = tuple(endings)
        self.left: Counter[str] = Counter()  # by what it is

    def content(self, place: Path) -> tuple[list[Path], list[Path]]:
        """The folders and the files with one of the endings in a folder, by name."""
        folders, files = [], []
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                ending = Path(entry.name).suffix.lower()
                if entry.name.startswith(".") or entry.name.lower() in LEFTOVERS:
                    self.left["hidden"] += 1
                elif _is_folder(entry):
                    folders.append(Path(entry.path))
                # A link that leads nowhere is a damaged file.
                elif ending in self.endings and (entry.is_symlink() or entry.is_file()):
                    files.append(Path(entry.path))
                else:
                    self.left[printable(ending) or "without an ending"] += 1
        return folders, files

    def below(self, place: Path) -> list[Path]:
        """The files of a class: those of each folder from ``place`` down, by the folders' paths."""
        found: dict[str, list[Path]] = {}
        seen: set[tuple[int, int]] = set()
        waiting = [place]
        while waiting:
            folder = waiting.pop()
            status = folder.stat()
            if (status.st_dev, status.st_ino) not in seen:  # a link may lead back
                seen.add((status.st_dev, status.st_ino))
                folders, found[str(folder)] = self.content(folder)
                waiting += reversed(folders)
        return [file for folder in sorted(found) for file in found[folder]]


def _read(path: Path, what: str, endings: Sequence[str]) -> Folder:
    def fault(place: Path, why: str) -> UserError:
        return UserError(f"{printable(place)}: {why}; {layout_of(what)}")

    lister, odd = _Lister(endings), list[str]()
    folders, files = lister.content(path)
    parts = [[each for each in folders if each.name.lower() in names] for names in PARTS]
    for some in parts:
        if len(some) > 1:
            several = " and ".join(f"{each.name}/" for each in some)
            raise fault(path, f"has {several}, which are the same part; keep one")
    train, test = parts[0], (parts[1] or parts[2])
    if test and not train:
        raise fault(path, f"has {test[0].name}/ and no train/")
    place, beside = path, 0
    if train:
        (place,) = train
        beside, others = len(files), [each for each in folders if each not in (*train, *test)]
        folders, files = lister.content(place)
        for each in others if files else ():
            if each.name.lower() not in sum(PARTS, ()) and _Lister(endings).content(each)[1]:
                raise fault(
                    path,
                    f"has {what} in {place.name}/ and in {printable(each.name)}/ beside it; if "
                    f"{place.name} is a class, put all classes below {place.name}/",
                )
        if others:
            odd.append(f"{_some([each.name for each in others])} beside {place.name}/ not read")
    classes = {folder.name: lister.below(folder) for folder in folders}
    if any(classes.values()):
        beside += len(files)
    else:
        classes = {"": files}
    if not any(classes.values()):
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(lister.left.items()))
        there = f"; there are {kinds}" if kinds else ""
        raise fault(place, f"no {what} in it ({', '.join(lister.endings)}){there}")
    names = tuple(filter(None, classes))
    if len(names) == 1 and all(file.parent != place / names[0] for file in classes[names[0]]):
        raise fault(place, f"its only class, {printable(names[0])}, holds only folders")
    if empty := [name for name in names if not classes[name]]:
        odd.append(f"without {what}: {_some(empty)}")
    numbers = {name: number for number, name in enumerate(names)}
    tested: list[tuple[Path, int]] = []
    for part in test:
        folders, files = lister.content(part)
        if folders and not names:
            raise fault(part, f"has folders of classes, {printable(place)} has none")
        if files:
            odd.append(f"{len(files):,} {what} in {part.name}/ are in no class")
        for each in folders:
            if each.name not in numbers:
                raise fault(part, f"{printable(each.name)} is no class of {printable(place)}")
            tested += [(file, numbers[each.name]) for file in lister.below(each)]
    left = [f"{count:,} {kind}" for kind, count in sorted(lister.left.items())]
    left += [f"{beside:,} beside the folders"] if beside else []
    trained = tuple((file, numbers.get(name, -1)) for name in classes for file in classes[name])
    return Folder(path, what, names, trained, tuple(tested) or None, tuple(left), tuple(odd))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - FEWER_NAMED} more" if len(names) > FEWER_NAMED else ""
    return f"{', '.join(map(printable, names[:FEWER_NAMED]))}{more}"
