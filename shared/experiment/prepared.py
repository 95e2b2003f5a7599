"""Folders that are prepared from the data once, by whichever process comes first, and then kept."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import UserError
from shared.experiment.data import SUMS, check_sums

ROOM = "name a data root with room that can be written: --data-root or SUITE_DATA"


@contextlib.contextmanager
def writing(target: Path, remedy: str = ROOM) -> Iterator[None]:
    """Says of an error of the file system what it hindered and what helps.

    Args:
        target: what is written.
        remedy: what the message says to do.

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
    """Have ``build`` fill a folder, unless that was done, or another process is just doing it.

    It is filled under another name and moved in one step when it is complete; what a killed process
    left is deleted.

    Args:
        folder: made, with those above it.
        build: told where to put everything.
        last: the files that a complete folder has.
        whole: says of a complete folder whether it can be used; one that cannot is built anew.
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
                    assert waiting is not None  # else there is none
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
    """Compare what was prepared in ``folders``, in folders of such names, with its sums.

    Raises:
        UserError: something is damaged; one line.
    """
    for sums in sorted(folders.glob(f"{pattern}/{SUMS}")):
        check_sums(sums.parent, made_again(sums.parent))


def made_again(folder: Path) -> str:
    """What helps where a prepared folder is damaged."""
    return f"delete {folder}, to have it made again"
