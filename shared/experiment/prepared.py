"""Folders that one process prepares from the data, and all others use."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import UserError
from shared.experiment.data import SUMS, check_sums

ROOM = "choose a writable data root with free space: --data-root or SUITE_DATA"


@contextlib.contextmanager
def writing(target: Path, remedy: str = ROOM) -> Iterator[None]:
    """Turn an OSError into an error that says what could not be written, and the remedy.

    Args:
        target: the file or folder.
        remedy: the end of the message.

    Raises:
        UserError: in place of an OSError; one line.
    """
    try:
        yield
    except OSError as error:
        text = f"cannot be written ({error.strerror or error}); {remedy}"
        raise UserError(f"{target}: {text}") from None


def build_once(
    folder: Path,
    build: Callable[[Path], None],
    last: Sequence[str] = ("meta.json", SUMS),
    *,
    whole: Callable[[Path], bool] | None = None,
    waiting: Callable[[], None] | None = None,
) -> None:
    """Have ``build`` fill a folder, unless it is complete; wait if another process is filling it.

    It is filled under another name and moved in one step; leftovers of killed processes are
    deleted.

    Args:
        folder: the folder; parents are made.
        build: called with the folder to fill.
        last: the files that make a folder complete.
        whole: whether a complete folder is usable; an unusable one is built again.
        waiting: called every second while another process is at work on it.

    Raises:
        UserError: the folder cannot be written.
    """

    def is_built() -> bool:
        complete = all((folder / name).is_file() for name in last)
        return complete and (whole is None or whole(folder))

    if is_built():
        return
    with contextlib.ExitStack() as stack:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder.parent / f".{folder.name}.lock")
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=-1 if waiting is None else 1)
                except Timeout:
                    assert waiting is not None  # without it the lock waits for ever
                    waiting()
            stack.callback(lock.release)
        if is_built():
            return
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        stack.callback(shutil.rmtree, part, ignore_errors=True)
        with writing(folder):
            part.mkdir()
        build(part)
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)  # one that is not complete
            part.rename(folder)


def check_prepared(folders: Path, pattern: str) -> None:
    """Check the sums of the prepared folders in ``folders`` whose names match ``pattern``.

    Raises:
        UserError: one is damaged; one line.
    """
    for sums in sorted(folders.glob(f"{pattern}/{SUMS}")):
        check_sums(sums.parent, made_again(sums.parent))


def made_again(folder: Path) -> str:
    """The remedy for a damaged prepared folder."""
    return f"delete {folder}, to have it made again"
