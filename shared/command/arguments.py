"""Types of arguments that several modules of the command read."""

import argparse
import os
from pathlib import Path

FROM = "SUITE_FROM"  # where reproduce.sh was called, if not in the checkout


def path(text: str) -> Path:
    """A path relative to the user's folder: reproduce.sh itself runs in the checkout."""
    if not text:  # it would be the current folder
        raise argparse.ArgumentTypeError("an empty path; name a file or folder")
    return Path(os.environ.get(FROM, ""), text)


def as_seen(folder: Path) -> Path:
    """A folder of the checkout, by a path that leads there from the user's folder."""
    return folder.absolute() if FROM in os.environ else folder
