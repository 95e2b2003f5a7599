"""Paths of the command line: given by the user, and shown to the user."""

import argparse
import os
from pathlib import Path

FROM = "SUITE_FROM"  # where reproduce.sh was called, if not in the checkout


def path(text: str) -> Path:
    """A path relative to the user's folder: reproduce.sh itself runs in the checkout.

    A shell leaves ``~`` alone in ``--runs=~/runs``; it is the home folder here, too.
    """
    if not text:  # it would be the current folder
        raise argparse.ArgumentTypeError("an empty path; name a file or folder")
    return Path(os.environ.get(FROM, ""), os.path.expanduser(text))


def from_users_folder(folder: Path) -> Path:
    """The path of a folder of the checkout, valid in the folder of the user, too."""
    return folder.absolute() if FROM in os.environ else folder
