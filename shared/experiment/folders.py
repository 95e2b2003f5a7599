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
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

from shared.errors import UserError, first_of
from shared.experiment.data import MissingData, sha256_of

TRAIN = ("train", "training")
TEST = (("val", "valid", "validation"), ("test", "testing"))  # the first that exists is used
SPLITS = (*TRAIN, *TEST[0], *TEST[1])
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
EMPTY = 32  # bytes that hold no image and no video: placeholders, which may be equal
SMALL = 2**14  # bytes of a file whose copies are found whatever their names
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


def layout_of(what: str) -> str:
    """The expected layout of a folder of ``what``, for the end of an error."""
    return f"{what} belong in train/<class>/ and, to test on, in val/<class>/ or test/<class>/"


def read_folder(path: Path, name: str, what: str, endings: Sequence[str]) -> Folder:
    """The files of a folder and their classes, in the order of their paths.

    Left out and counted are hidden files and files of systems (``.ipynb_checkpoints``, ``._x.png``,
    ``Thumbs.db``) at every level, files with other endings, links to folders and files that are
    read anyway, files beside the folders of classes, and folders beside ``train``. A folder whose
    only content is a folder of its own name or a part's (``train/train/cat``) is skipped. Files are
    not opened here, see :func:`undamaged`.

    Args:
        path: the folder; its names need not be UTF-8.
        name: of the dataset.
        what: the kind of files, such as "images".
        endings: of the files to read, in lower case, with their dots.
    """
    if not path.is_dir():
        raise MissingData(name, path, "", f"make that folder: {layout_of(what)}")
    try:
        return _Reader(path, what, endings).read()
    except OSError as error:
        where = printable(error.filename or path)
        raise UserError(
            f"{where}: cannot be read ({error.strerror}); change its permissions, or remove it"
        ) from error


def class_files(
    folder: Path, classes: Mapping[str, int], endings: Sequence[str]
) -> list[tuple[Path, int]]:
    """The files of a data set's folders of classes, hidden ones left out, and their numbers.

    classes: their numbers by name; the files come in the order of the names. endings: as of
    :func:`read_folder`.
    """
    reader = _Reader(folder, "files", endings)
    reader.known = reader.read_anyway(folder, folder)
    files = reader.part(folder, sorted(classes))
    return [(file, classes[name]) for name, paths in files.items() for file in paths]


def undamaged(
    files: Sequence[Path],
    fault_of: Callable[[Path], str | None],
    *,
    folder: Path,
    what: str,
    skip_damaged: bool = False,
) -> list[int]:
    """Positions of the undamaged files; every file is checked.

    fault_of: returns what is wrong with a file, or None; called from several threads. folder: of
    all files, for messages. skip_damaged: leave damaged ones out, with a warning that lists them.
    """
    with ThreadPool() as pool:
        faults = list(pool.imap(fault_of, files, chunksize=16))
    good = [number for number, fault in enumerate(faults) if fault is None]
    if len(good) == len(files):
        return good
    bad = [
        f"{printable(_relative(folder, file))} ({fault})"
        for file, fault in zip(files, faults, strict=True)
        if fault is not None
    ]
    text = f"{len(bad)} of {len(files)} {what} are damaged: {first_of(bad, MOST_NAMED)}"
    if not skip_damaged:
        remedy = (
            "restore or delete them, or omit them: --allow-missing, in Python skip_damaged=True"
        )
        raise UserError(f"{printable(folder)}: {text}; {remedy}")
    warnings.warn(f"{printable(folder)}: left out, {text}", stacklevel=3)
    return good


def printable(path: str | Path) -> str:
    """A path as one line that can be printed anywhere.

    Bytes that are not UTF-8, line breaks and other characters that are not printed are escaped.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _relative(folder: Path, file: Path) -> Path:
    return file.relative_to(folder) if file.is_relative_to(folder) else file


class _Reader:
    """Reads one folder, and counts what it leaves out."""

    def __init__(self, path: Path, what: str, endings: Sequence[str]) -> None:
        self.path, self.what, self.endings = path, what, tuple(endings)
        self.hidden = self.links = self.beside = 0
        self.other: Counter[str] = Counter()  # by ending
        self.unused: list[str] = []
        self.odd: list[str] = []
        self.known: set[tuple[int, int]] = set()  # folders that no link may lead to
        self.symlinks: set[Path] = set()  # of the files

    def read(self) -> Folder:
        root = self._innermost(self.path, SPLITS)
        parts = self._parts_of(root)
        train = parts.get("train", root)
        test = next((parts[name] for name in ("val", "test") if name in parts), None)
        if test is not None and train == root:
            raise self._error_at(root, f"has {test.name}/ and no train/")
        self._note_unused(root, train, test)
        train = self._innermost(train)
        test = None if test is None else self._innermost(test)
        as_documented = train.parent == self.path and train.name.lower() in TRAIN
        if train != self.path and not as_documented:
            self.odd.append(f"read from {printable(_relative(self.path, train))}/")
        self.known = self.read_anyway(root, train, test)

        files = self.part(train, self._classes(train))
        classes = tuple(files)
        if not any(files.values()):
            classes, files = (), {"": self._without_classes(train)}
        elif strays := self._files_in(train):
            self.beside += len(strays)
        if not any(files.values()):
            raise self._nothing_found(train)
        if train.parent == root and not classes:
            self._check_no_class_called_train(root, train)
        trained = _with_class_numbers(files, classes)
        tested = self._test_files(test, train, classes)
        self._check_apart(trained, tested or ())
        return Folder(
            self.path,
            self.what,
            classes,
            trained,
            tested,
            tuple(self._left_out_counts()),
            tuple(self.odd),
        )

    def read_anyway(self, root: Path, *parts: Path | None) -> set[tuple[int, int]]:
        """The folders that a link inside a class must not lead to: classes, parts, all parents."""
        places = [self.path, *self.path.resolve().parents, root, *self._folders(root)]
        for part in parts:
            if part is not None:
                places += [part, *part.resolve().parents, *self._folders(part)]
        return {_identity(folder) for folder in places}

    def _parts_of(self, root: Path) -> dict[str, Path]:
        """The existing folders of "train", "val" and "test"."""
        parts: dict[str, Path] = {}
        for part, names in (("train", TRAIN), ("val", TEST[0]), ("test", TEST[1])):
            matching = [folder for folder in self._folders(root) if folder.name.lower() in names]
            if len(matching) > 1:
                listed = " and ".join(f"{folder.name}/" for folder in matching)
                raise self._error_at(root, f"has {listed}, which are the same part; keep one")
            if matching:
                parts[part] = matching[0]
        return parts

    def _note_unused(self, root: Path, train: Path, test: Path | None) -> None:
        """Note unused content beside the folders of the parts."""
        if train == root:
            return
        strays = [folder for folder in self._folders(root) if folder not in (train, test)]
        if strays:
            self.unused.append(
                f"{_first_names([folder.name for folder in strays])} beside {train.name}/"
            )
        self.beside += len(self._files_in(root))

    def _check_no_class_called_train(self, root: Path, train: Path) -> None:
        """Refuse ``train`` with files between other folders with files: a class, or a part?"""
        for folder in self._folders(root):
            if folder.name.lower() not in SPLITS and self._files_in(folder):
                raise self._error_at(
                    root,
                    f"has {self.what} in {train.name}/ and in {printable(folder.name)}/ beside it; "
                    f"if {train.name} is a class, put all classes below {train.name}/",
                )

    def _test_files(
        self, test: Path | None, train: Path, classes: tuple[str, ...]
    ) -> tuple[tuple[Path, int], ...] | None:
        """The files to test on; None where they have no labels."""
        if test is None:
            return None
        names = self._classes(test)
        if not names or not classes:
            if names:
                raise self._error_at(test, f"has folders of classes, {printable(train)} has none")
            if unlabelled := len(self._without_classes(test)):
                number = _count(unlabelled, self.what)
                self.unused.append(f"{number} in {test.name}/, which has no folders of classes")
            return None
        for name in names:
            if name not in classes:
                raise self._error_at(
                    test, f"{printable(name)} is not a class of {printable(train)}"
                )
        self.beside += len(self._files_in(test))
        files = _with_class_numbers(self.part(test, names), classes)
        if not files:
            self.odd.append(f"no {self.what} in {printable(_relative(self.path, test))}/")
        return files or None

    def _check_apart(
        self, train: Sequence[tuple[Path, int]], test: Sequence[tuple[Path, int]]
    ) -> None:
        """Refuse files to test on that are files to train on: links, and copies.

        Copies are found among small files, and among files of one name.
        """
        if not test:
            return
        sizes: dict[int, list[Path]] = {}
        places: dict[tuple[int, int], Path] = {}
        for file in [file for file, _ in train if file.exists()]:
            status = file.stat()
            places.setdefault((status.st_dev, status.st_ino), file)
            sizes.setdefault(status.st_size, []).append(file)
        digests: dict[int, dict[str, Path]] = {}
        both = []
        for file in [file for file, _ in test if file.exists()]:
            status = file.stat()
            other = places.get((status.st_dev, status.st_ino))
            size = status.st_size
            if other is None and size > EMPTY and (alike := sizes.get(size)) is not None:
                if size <= SMALL:
                    if size not in digests:
                        digests[size] = {sha256_of(path): path for path in reversed(alike)}
                    other = digests[size].get(sha256_of(file))
                elif named := [path for path in alike if path.name == file.name]:
                    digest = sha256_of(file)
                    other = next((path for path in named if sha256_of(path) == digest), None)
            if other is not None:
                both.append((file, other))
        if both:
            first, second = (printable(_relative(self.path, path)) for path in both[0])
            raise UserError(
                f"{printable(self.path)}: {_count(len(both), self.what)} to test on are also "
                f"to train on, the first {first} as {second}; remove them from one of the two"
            )

    def part(self, root: Path, names: Sequence[str]) -> dict[str, list[Path]]:
        """The files of each class of a part, each file once."""
        self._visible_entries(root)  # counts hidden files
        seen, known_folders = set(self.known), set[tuple[int, int]]()
        files: dict[str, list[Path]] = {}
        for name in names:
            paths: list[Path] = []
            if (identity := _identity(root / name)) in known_folders:
                self.links += 1  # another name of a class
            else:
                folders = dict(self._walk(root / name, seen))
                paths = [file for folder in sorted(folders) for file in folders[folder]]
            known_folders.add(identity)
            files[name] = paths
        self._drop_links(files)
        empty = [name for name, paths_of_class in files.items() if not paths_of_class]
        if empty and len(empty) < len(files):
            where = f"{printable(_relative(self.path, root))}/" if root != self.path else ""
            self.odd.append(f"without {self.what}: {where}{_first_names(empty)}")
        # In the order of their folders a class's own files come first.
        deep = [
            name
            for name, paths_of_class in files.items()
            if paths_of_class
            and paths_of_class[0].parent != root / name
            and len({paths_of_class[end].relative_to(root / name).parts[0] for end in (0, -1)}) > 1
        ]
        if deep:
            below = _first_names([folder.name for folder in self._folders(root / deep[0])])
            more = f" and {len(deep) - 1} other classes" if len(deep) > 1 else ""
            self.odd.append(f"class {printable(deep[0])}{more} holds only folders: {below}")
        return files

    def _walk(
        self, start: Path, seen: set[tuple[int, int]]
    ) -> Iterator[tuple[str, Sequence[Path]]]:
        """Each folder from ``start`` down, none twice, and the files in it by name."""
        files = []
        for entry in self._visible_entries(start):
            if _is_folder(entry):
                if (identity := _identity(Path(entry.path))) in seen:
                    self.links += 1
                    continue
                seen.add(identity)
                yield from self._walk(Path(entry.path), seen)
            elif self._has_our_ending(entry):
                files.append(Path(entry.path))
                if entry.is_symlink():
                    self.symlinks.add(files[-1])
            else:
                self.other[Path(entry.name).suffix.lower()] += 1
        yield str(start), files

    def _drop_links(self, files: dict[str, list[Path]]) -> None:
        """Remove links to files that are read anyway from ``files``."""
        if not self.symlinks:
            return
        everything = [file for paths in files.values() for file in paths]
        real = {_identity(file) for file in everything if file not in self.symlinks}
        for paths_of_class in files.values():
            for file in [
                path for path in paths_of_class if path in self.symlinks and path.exists()
            ]:
                if (identity := _identity(file)) in real:
                    paths_of_class.remove(file)
                    self.links += 1
                real.add(identity)

    def _innermost(self, folder: Path, also: Sequence[str] = ()) -> Path:
        """The innermost of nested folders, as unpacking an archive often makes them."""
        while True:
            inside = self._folders(folder)
            if len(inside) != 1 or self._files_in(folder):
                return folder
            (only,) = inside
            name, deeper = only.name.lower(), [inner.name.lower() for inner in self._folders(only)]
            same = name in (folder.name.lower(), self.path.name.lower(), self.what)
            if also:  # the folder itself: what holds "train" is not a class
                wraps = name not in also and bool(same or set(deeper) & set(also))
            else:
                wraps = same or name in SPLITS
            if not wraps or not deeper or self._files_in(only):
                return folder
            folder = only

    def _classes(self, folder: Path) -> list[str]:
        return [inner.name for inner in self._folders(folder)]

    def _without_classes(self, folder: Path) -> list[Path]:
        """The files of a folder without classes; those with other endings are counted."""
        for entry in self._visible_entries(folder, count=False):
            if not _is_folder(entry) and not self._has_our_ending(entry):
                self.other[Path(entry.name).suffix.lower()] += 1
        files = {"": self._files_in(folder)}
        self.symlinks.update(file for file in files[""] if file.is_symlink())
        self._drop_links(files)
        return files[""]

    def _files_in(self, folder: Path) -> list[Path]:
        """The files directly in a folder."""
        entries = self._visible_entries(folder, count=False)
        return [
            Path(entry.path)
            for entry in entries
            if not _is_folder(entry) and self._has_our_ending(entry)
        ]

    def _folders(self, folder: Path) -> list[Path]:
        entries = self._visible_entries(folder, count=False)
        return [Path(entry.path) for entry in entries if _is_folder(entry)]

    def _has_our_ending(self, entry: os.DirEntry[str]) -> bool:
        """Whether it is a file with one of the endings; a broken link is a damaged file."""
        ending = Path(entry.name).suffix.lower()
        return ending in self.endings and (entry.is_file() or not Path(entry.path).exists())

    def _visible_entries(self, folder: Path, *, count: bool = True) -> list[os.DirEntry[str]]:
        """The entries of a folder that are not hidden, by name."""
        with os.scandir(folder) as entries:
            all_entries = sorted(entries, key=lambda entry: entry.name)
        visible = [item for item in all_entries if not is_hidden(item.name)]
        self.hidden += (len(all_entries) - len(visible)) * count
        return visible

    def _left_out_counts(self) -> Iterator[str]:
        if self.hidden:
            yield f"{self.hidden} hidden"
        for ending, count in sorted(self.other.items()):
            yield f"{count} {printable(ending)}" if ending else f"{count} without an ending"
        if self.links:
            yield f"{_count(self.links, 'links')} to files that are read anyway"
        if self.beside:
            yield f"{_count(self.beside, self.what)} beside the folders"
        yield from self.unused

    def _nothing_found(self, folder: Path) -> UserError:
        """The error that there is nothing to train on."""
        counts = sorted(self.other.items())
        others = ", ".join(f"{count} {printable(ending)}" for ending, count in counts)
        hint = f"; there are {others}" if others else ""
        return self._error_at(folder, f"no {self.what} in it ({', '.join(self.endings)}){hint}")

    def _error_at(self, folder: Path, why: str) -> UserError:
        return UserError(f"{printable(folder)}: {why}; {layout_of(self.what)}")


def _with_class_numbers(
    files: Mapping[str, Sequence[Path]], classes: tuple[str, ...]
) -> tuple[tuple[Path, int], ...]:
    numbers = {name: number for number, name in enumerate(classes)}
    return tuple((file, numbers.get(name, -1)) for name, paths in files.items() for file in paths)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or one that a system leaves behind."""
    return name.startswith(".") or name.lower() in LEFTOVERS


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identity(path: Path) -> tuple[int, int]:
    """Device and inode, which are equal for two paths to the same folder or file."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _count(number: int, what: str) -> str:
    """``1 image``, ``1,204 images``."""
    if number == 1:
        what = what.removesuffix("es") if what.endswith("sses") else what.removesuffix("s")
    return f"{number:,} {what}"


def _first_names(names: Sequence[str] | set[str]) -> str:
    return first_of([printable(name) for name in sorted(names)], FEWER_NAMED)
