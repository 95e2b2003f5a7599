"""User data in folders, one for each class, as for torchvision's ImageFolder.

    pets/train/<class>/     to train on; classes are numbered in the order of their names
    pets/val/<class>/       to test on, or pets/test/; not needed for pretraining
    pets/<class>/           without these folders, everything is to train on
    pets/                   files without folders of classes: pretraining without labels

The parts may also be called ``training``, ``valid``, ``validation`` and ``testing``, in upper or
lower case. The files of a class may be at any depth below its folder.

The module serves images and videos: the domain supplies the endings of its files and a check for
damaged ones.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NoReturn

from shared.errors import UserError, first_of
from shared.experiment.data import MissingData, sha256_of

TRAIN = ("train", "training")
TEST = (("val", "valid", "validation"), ("test", "testing"))  # the first that exists is used
SPLITS = (*TRAIN, *TEST[0], *TEST[1])
# What operating systems and programs leave, beside names that begin with a dot.
LEFTOVERS = {"__macosx", "@eadir", "$recycle.bin", "lost+found", "__pycache__", "thumbs.db"}
MOST_NAMED = 100  # damaged files listed in one error
EMPTY = 32  # bytes that hold no image and no video: placeholders, which may be equal
FEWER_NAMED = 5  # folders or classes listed in a summary


class LeftOut(UserWarning):
    """Part of a folder is not used; the text is :meth:`Folder.summary`."""


@dataclass(frozen=True)
class Folder:
    """The usable content of a folder."""

    path: Path
    what: str  # the kind of files, such as "images"
    classes: tuple[str, ...]  # their names, in the order of their numbers; empty without labels
    train: tuple[tuple[Path, int], ...]  # files and the numbers of their classes, -1 without
    test: tuple[tuple[Path, int], ...] | None  # likewise; None without such a part
    left_out: tuple[str, ...] = ()  # unused content with its number, for messages
    odd: tuple[str, ...] = ()  # other unexpected content, likewise

    def summary(self) -> str:
        """One line: counts, unused and unexpected content."""
        of = f" of {_count(len(self.classes), 'classes')}" if self.classes else " without classes"
        tested = "" if self.test is None else f" to train on, {len(self.test):,} to test on"
        line = f"{printable(self.path)}: {_count(len(self.train), self.what)}{of}{tested}"
        if self.left_out:
            line += f"; left out: {', '.join(self.left_out)}"
        return "; ".join([line, *self.odd])

    def warn(self) -> None:
        """Warn with the summary if something is unused or unexpected."""
        if self.left_out or self.odd:
            warnings.warn(self.summary(), LeftOut, stacklevel=3)


@dataclass
class _LeftOut:
    """What reading a folder leaves out."""

    hidden: int = 0
    links: int = 0  # to folders
    beside: int = 0  # files beside the folders of classes
    other: Counter[str] = field(default_factory=Counter)  # files by ending
    further: list[str] = field(default_factory=list)

    def texts(self, what: str) -> Iterator[str]:
        """Each with its number."""
        if self.hidden:
            yield f"{self.hidden} hidden"
        for ending, count in sorted(self.other.items()):
            yield f"{count} {printable(ending)}" if ending else f"{count} without an ending"
        if self.links:
            yield f"{_count(self.links, 'links')} to folders"
        if self.beside:
            yield f"{_count(self.beside, what)} beside the folders"
        yield from self.further


def layout_of(what: str) -> str:
    """The expected layout of a folder of ``what``, for the end of an error."""
    return f"{what} belong in train/<class>/ and, to test on, in val/<class>/ or test/<class>/"


def read_folder(path: Path, name: str, what: str, endings: Sequence[str]) -> Folder:
    """The files of a folder and their classes, in the order of their paths.

    Left out and counted are hidden files and files of systems (``.ipynb_checkpoints``, ``._x.png``,
    ``Thumbs.db``) at every level, files with other endings, links to folders inside a class, files
    beside the folders of classes, and folders beside ``train``. A folder whose only content is a
    folder of its own name or a part's (``train/train/cat``) is skipped. Files are not opened here,
    see :func:`undamaged`.

    ``name`` is that of the dataset, ``what`` the kind of files, such as "images", ``endings`` are
    those of the files to read, in lower case with their dots. Names need not be UTF-8.
    """
    if not path.is_dir():
        raise MissingData(name, path, "", f"make that folder: {layout_of(what)}")
    endings, left, odd = tuple(endings), _LeftOut(), list[str]()

    def refuse(folder: Path, why: str) -> NoReturn:
        raise UserError(f"{printable(folder)}: {why}; {layout_of(what)}")

    def classes_in(part: Path) -> dict[str, list[Path]]:
        """The files of each class of a part."""
        left.hidden += sum(is_hidden(name) for name in os.listdir(part))
        files = {folder.name: _files_below(folder, endings, left) for folder in _folders_in(part)}
        empty = [name for name, of_class in files.items() if not of_class]
        if empty and len(empty) < len(files):
            where = f"{printable(_relative(path, part))}/" if part != path else ""
            odd.append(f"without {what}: {where}{_first_names(empty)}")
        return files

    root = _innermost(path, path, what, SPLITS)

    def part_of(names: Sequence[str]) -> Path | None:
        """The one folder of these names, in whichever case."""
        matching = [folder for folder in _folders_in(root) if folder.name.lower() in names]
        if len(matching) > 1:
            listed = " and ".join(f"{folder.name}/" for folder in matching)
            refuse(root, f"has {listed}, which are the same part; keep one")
        return matching[0] if matching else None

    train, test, other = part_of(TRAIN) or root, part_of(TEST[0]), part_of(TEST[1])
    test = test or other
    if test is not None and train == root:
        refuse(root, f"has {test.name}/ and no train/")
    if train != root:
        strays = [folder.name for folder in _folders_in(root) if folder not in (train, test)]
        if strays:
            left.further.append(f"{_first_names(strays)} beside {train.name}/")
        left.beside += len(_files_in(root, endings))
    train = _innermost(train, path, what)
    test = None if test is None else _innermost(test, path, what)
    if train != path and not (train.parent == path and train.name.lower() in TRAIN):
        odd.append(f"read from {printable(_relative(path, train))}/")
    files = classes_in(train)
    classes = tuple(files)
    if any(files.values()):
        left.beside += len(_files_in(train, endings))
    else:
        classes, files = (), {"": _files_in(train, endings, left)}
    if not any(files.values()):
        there = ", ".join(left.texts(what))
        refuse(train, f"no {what} in it ({', '.join(endings)}); left out: {there or 'nothing'}")
    numbers = {name: number for number, name in enumerate(classes)}
    trained = tuple((file, numbers.get(name, -1)) for name in files for file in files[name])
    tested = None
    if test is not None:
        files = classes_in(test)
        if files and not classes:
            refuse(test, f"has folders of classes, {printable(train)} has none")
        for name in [name for name in files if name not in classes]:
            refuse(test, f"{printable(name)} is not a class of {printable(train)}")
        beside = len(_files_in(test, endings))
        if files:
            left.beside += beside
            tested = tuple((file, numbers[name]) for name in files for file in files[name]) or None
            if lacking := [name for name in classes if name not in files]:
                odd.append(f"without {what} to test on: {_first_names(lacking)}")
            if tested is None:
                odd.append(f"no {what} in {printable(_relative(path, test))}/")
        elif beside:
            number = _count(beside, what)
            left.further.append(f"{number} in {test.name}/, which has no folders of classes")
    _check_apart(path, what, trained, tested or ())
    return Folder(path, what, classes, trained, tested, tuple(left.texts(what)), tuple(odd))


def class_files(
    folder: Path, classes: Mapping[str, int], endings: Sequence[str]
) -> list[tuple[Path, int]]:
    """The files that are not hidden in folders of classes, by name, with the numbers of these."""
    return [
        (file, classes[name])
        for name in sorted(classes)
        for file in _files_below(folder / name, tuple(endings), _LeftOut())
    ]


def undamaged(
    files: Sequence[Path],
    fault_of: Callable[[Path], str | None],
    *,
    folder: Path,
    what: str,
    skip_damaged: bool = False,
) -> list[int]:
    """Positions of the undamaged files; every file is checked.

    ``fault_of`` says what is wrong with a file, or None, in several threads. ``skip_damaged``
    leaves damaged ones out, with a warning that lists them; else they are an error.
    """
    with ThreadPool() as pool:
        faults = list(pool.imap(fault_of, files, chunksize=16))
    bad = [
        f"{printable(_relative(folder, file))} ({fault})"
        for file, fault in zip(files, faults, strict=True)
        if fault is not None
    ]
    text = f"{len(bad)} of {len(files)} {what} are damaged: {first_of(bad, MOST_NAMED)}"
    if bad and not skip_damaged:
        remedy = (
            "restore or delete them, or omit them: --allow-missing, skip_damaged=True in Python"
        )
        raise UserError(f"{printable(folder)}: {text}; {remedy}")
    if bad:
        warnings.warn(f"{printable(folder)}: left out, {text}", stacklevel=3)
    return [number for number, fault in enumerate(faults) if fault is None]


def printable(path: str | Path) -> str:
    """A path as one line that can be printed anywhere.

    Bytes that are not UTF-8, line breaks and other characters that are not printed are escaped.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _relative(folder: Path, file: Path) -> Path:
    return file.relative_to(folder) if file.is_relative_to(folder) else file


def _innermost(folder: Path, path: Path, what: str, parts: Sequence[str] = ()) -> Path:
    """The innermost of nested folders, as unpacking an archive often makes them."""
    while True:
        inside = _folders_in(folder)
        if len(inside) != 1 or _has_files(folder):
            return folder
        (only,) = inside
        name, deeper = only.name.lower(), {inner.name.lower() for inner in _folders_in(only)}
        same = name in (folder.name.lower(), path.name.lower(), what)
        if parts:  # the folder itself: what holds "train" is not a class
            wraps = name not in parts and (same or bool(deeper & set(parts)))
        else:
            wraps = same or name in SPLITS
        if not wraps or not deeper or _has_files(only):
            return folder
        folder = only


def _check_apart(
    path: Path, what: str, train: Sequence[tuple[Path, int]], test: Sequence[tuple[Path, int]]
) -> None:
    """Refuse files to test on that are links to files to train on, or copies of them."""
    if not test:
        return
    trained, tested = (
        [(file, file.stat().st_size) for file, _ in files if file.exists()]
        for files in (train, test)
    )
    sizes = {size for _, size in trained} & {size for _, size in tested if size > EMPTY}
    digests = {sha256_of(file): file for file, size in reversed(trained) if size in sizes}
    both = [
        (file, digests[digest])
        for file, size in tested
        if size in sizes and (digest := sha256_of(file)) in digests
    ]
    if both:
        first, second = (printable(_relative(path, file)) for file in both[0])
        raise UserError(
            f"{printable(path)}: {_count(len(both), what)} to test on are also to train on, the "
            f"first {first} as {second}; remove them from one of the two"
        )


def _files_below(folder: Path, endings: tuple[str, ...], left: _LeftOut) -> list[Path]:
    """The files of a class in torchvision's order; links to folders inside it are not followed."""

    def fail(error: OSError) -> NoReturn:
        raise error

    found = []
    for place, folders, names in os.walk(folder, onerror=fail):
        left.hidden += sum(map(is_hidden, (*folders, *names)))
        folders[:] = [name for name in folders if not is_hidden(name)]
        left.links += sum((Path(place) / name).is_symlink() for name in folders)
        for file in (Path(place) / name for name in names if not is_hidden(name)):
            if _has_ending(file, endings):
                found.append(file)
            else:
                left.other[file.suffix.lower()] += 1
    return sorted(found, key=lambda file: (str(file.parent), file.name))


def _files_in(folder: Path, endings: tuple[str, ...], left: _LeftOut | None = None) -> list[Path]:
    """The files directly in a folder; others are counted in ``left``."""
    files = [path for path in _visible(folder) if not path.is_dir()]
    if left is not None:
        left.other.update(f.suffix.lower() for f in files if not _has_ending(f, endings))
    return [file for file in files if _has_ending(file, endings)]


def _has_ending(file: Path, endings: tuple[str, ...]) -> bool:
    """Whether it is a file with one of the endings; a broken link is a damaged file."""
    return file.suffix.lower() in endings and (file.is_file() or not file.exists())


def _has_files(folder: Path) -> bool:
    return any(not path.is_dir() for path in _visible(folder))


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _visible(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden, by name."""
    return sorted(path for path in folder.iterdir() if not is_hidden(path.name))


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or one that a system leaves behind."""
    return name.startswith(".") or name.lower() in LEFTOVERS


def _count(number: int, what: str) -> str:
    """``1 image``, ``1,204 images``."""
    if number == 1:
        what = what.removesuffix("es") if what.endswith("sses") else what.removesuffix("s")
    return f"{number:,} {what}"


def _first_names(names: Sequence[str]) -> str:
    return first_of([printable(name) for name in sorted(names)], FEWER_NAMED)
