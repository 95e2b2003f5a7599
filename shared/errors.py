"""The one exception whose text alone is shown to the user, and words that many of them share."""

import difflib
import os
import sys
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Input that cannot be used: one line that names the thing and says what would be right.

    The command line prints the text without a traceback and exits with code 2.
    """


def program() -> str:
    """How the command line is called here: ``./reproduce.sh``, or ``margins`` where that was."""
    if "SUITE_COMMAND" in os.environ:  # reproduce.sh sets it
        return "./reproduce.sh"
    installed = not (Path(__file__).resolve().parents[1] / "reproduce.sh").is_file()
    return "margins" if installed or Path(sys.argv[0]).name == "margins" else "./reproduce.sh"


def suggestion(word: str, known: Iterable[str], has: str = "known") -> str:
    """What to say after an unknown ``word``: the nearest of the known ones, or all of them.

    Args:
        word: what was given.
        known: what could have been.
        has: what the known ones are called, as in "; it has: one, two".
    """
    by_case = {each.lower(): each for each in known}
    if near := difflib.get_close_matches(word.lower(), by_case, n=1):
        return f": did you mean {by_case[near[0]]}?"
    return f"; {has}: {', '.join(by_case.values())}"


def describe_os_error(error: OSError) -> str:
    """What could not be read or written, and what to do about it."""
    where = f" {error.filename}" if error.filename else ""
    return (
        f"cannot read or write{where}: {error.strerror or error}; what was finished before is "
        f"intact; free space or permissions there, or choose another folder (--runs, --results)"
    )
