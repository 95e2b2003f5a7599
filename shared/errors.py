"""The exception for unusable input, and phrases that many error messages share."""

import contextlib
import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

NAME = "margins-in-contrastive-learning"
SPACE, RIGHTS = "free space there", "change the permissions there"
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), SPACE),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), RIGHTS),
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ELOOP: "replace the link, which leads to itself",
    **dict.fromkeys((errno.ENOLCK, errno.ENOTSUP), "use a file system that supports the call"),
}


class UserError(Exception):
    """Unusable input: one line that names the problem and the remedy.

    The command line prints the text without a traceback and exits with code 2.
    """


def program() -> str:
    """The name of the command line: ``./reproduce.sh``, or ``margins`` if installed."""
    if "SUITE_COMMAND" in os.environ:  # reproduce.sh sets it
        return "./reproduce.sh"
    installed = not (Path(__file__).resolve().parents[1] / "reproduce.sh").is_file()
    return "margins" if installed or Path(sys.argv[0]).name == "margins" else "./reproduce.sh"


def lacking(extra: str, why: object) -> str:
    """The line about a library that is not installed, of the extra of a domain."""
    return (
        f"{why}; install the suite with its extra for {extra}: pip install '{NAME}[{extra}]', or "
        f"pip install '.[{extra}]' in a checkout"
    )


def not_installed(extra: str) -> list[str]:
    """The libraries of an extra that are not installed; none where the suite itself is not."""
    try:
        requirements = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return []
    lines = (line.partition(";") for line in requirements)
    names = [
        re.split(r"[^\w.-]", line)[0]
        for line, _, marker in lines
        if marker.strip() in (f'extra == "{extra}"', f"extra == '{extra}'")
    ]
    return [name for name in names if not any(metadata.distributions(name=name))]


def suggestion(word: str, known: Iterable[str], has: str = "known") -> str:
    """The end of an error about an unknown ``word``: the nearest known one, or all of them.

    ``has`` introduces their list, as in "; it has: one, two".
    """
    by_case: dict[str, dict[str, None]] = {}  # names may differ in case alone, as gin and GIN
    for known_name in known:
        by_case.setdefault(known_name.lower(), {})[known_name] = None
    if near := difflib.get_close_matches(word.lower(), by_case, n=1):
        return f": did you mean {' or '.join(by_case[near[0]])}?"
    return f"; {has}: {', '.join(name for names in by_case.values() for name in names)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; without a message the name of its type."""
    return str(error).partition("\n")[0] or type(error).__name__


def first_of(names: Sequence[str], most: int) -> str:
    """At most this many of some names, and how many more there are: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def describe_os_error(error: OSError) -> str:
    """What could not be read or written, and what to do about it."""
    where = f" {error.filename}" if error.filename else ""
    remedy = REMEDIES.get(error.errno or 0, "")
    return (
        f"cannot read or write{where}: {error.strerror or error}; what was finished before is "
        f"intact; {remedy}{', or ' * bool(remedy)}choose another folder "
        f"(--runs, --results, --data-root)"
    )


@contextlib.contextmanager
def naming(call: str, file: Path) -> Iterator[None]:
    """Give an OSError of a call that names no file, such as fsync, the call and the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:  # the latter: a time limit
            raise
        raise OSError(error.errno, f"{call}: {error.strerror or error}", str(file)) from error
