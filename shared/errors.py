"""The exception for unusable input, and phrases that many error messages share."""

import difflib
import os
import sys
from collections.abc import Iterable
from pathlib import Path


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


def suggestion(word: str, known: Iterable[str], has: str = "known") -> str:
    """The end of an error about an unknown ``word``: the nearest known one, or all of them.

    Args:
        word: the unknown word.
        known: the known words.
        has: introduces the list of the known words, as in "; it has: one, two".
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
