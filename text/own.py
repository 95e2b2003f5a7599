"""Your own text, as a corpus that rows are compared on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text.data import OWN, corpus_fingerprint


def read(path: Path, data_root: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The changes of a configuration that trains on the text files of a folder, and their hash.

    No book is held out: a folder may hold a single file.
    """
    corpus = f"{OWN}{path}"
    digest = corpus_fingerprint(corpus, data_root)
    return {"corpus": corpus, "held_out": 0}, {corpus: digest}
